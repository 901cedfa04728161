//! The translation look-aside buffers: the ones that are used and the ones that are modelled.
//!
//! Two levels as the profile sizes them, tagged with VPID, EPT pointer and PCID, with global entries. Replacement is round-robin within a set, so
//! a hit changes nothing and a fast path in front ([`crate::mem::Front`]) may answer for entries that are present here without
//! disturbing what is counted. Flushes do not touch entries: each entry carries the stamp of its fill, and is valid only
//! while that is newer than the last flush that concerned it.

use ledger::{Geometry, Sets};

/// Permissions and attributes of a translation, all levels combined.
pub mod perm {
    #![allow(missing_docs)]
    pub const WRITE: u8 = 1;
    pub const USER: u8 = 2;
    pub const NO_EXECUTE: u8 = 4;
    pub const DIRTY: u8 = 8;
    pub const GLOBAL: u8 = 16;
    /// EPT forbids reads.
    pub const EPT_NO_READ: u8 = 32;
    /// EPT forbids writes.
    pub const EPT_NO_WRITE: u8 = 64;
    /// EPT forbids fetches.
    pub const EPT_NO_FETCH: u8 = 128;
}

/// A cached translation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Linear address of the page.
    pub linear: u64,
    /// Physical address of the page: with EPT, the host-physical one.
    pub physical: u64,
    /// Log2 of the page size: 12, 21, 22 or 30.
    pub shift: u8,
    /// See [`perm`].
    pub perms: u8,
    /// Protection key.
    pub key: u8,
    /// PCID it was filled under.
    pub pcid: u16,
    /// VPID and EPT pointer it was filled under.
    context: Context,
    /// Fill time; 0 never was filled.
    stamp: u64,
}

impl Entry {
    /// A translation about to be inserted.
    pub fn new(linear: u64, physical: u64, shift: u8, perms: u8, key: u8, pcid: u16) -> Self {
        Self { linear, physical, shift, perms, key, pcid, context: Context::default(), stamp: 0 }
    }
}

/// A VPID and an EPT pointer, by the numbers that a [`Tlb`] gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Context {
    vpid: u8,
    ept: u8,
}

impl Context {
    /// Whether the VPID is another than 0.
    pub fn vpid_tagged(self) -> bool {
        self.vpid != 0
    }

    /// The context and a PCID in one number.
    pub fn key(self, pcid: u16) -> u32 {
        u32::from(self.vpid) << 24 | u32::from(self.ept) << 16 | u32::from(pcid)
    }

    /// Whether a number of [`Self::key`] is of this VPID, with this PCID, under whatever EPT pointer.
    pub fn owns(self, key: u32, pcid: u16) -> bool {
        key >> 24 == u32::from(self.vpid) && key as u16 == pcid
    }
}

/// A set-associative array with round-robin replacement.
struct Array {
    sets: usize,
    ways: usize,
    /// What to look for, apart from the rest so that a set fits in few cache lines: page and shift; 0 where nothing ever was.
    tags: Vec<u64>,
    entries: Vec<Entry>,
    next: Vec<u8>,
}

#[inline(always)]
fn tag(linear: u64, shift: u8) -> u64 {
    (linear >> shift << shift) | u64::from(shift)
}

impl Array {
    fn new(size: Sets) -> Self {
        let ways = usize::from(size.ways.max(1)).min(usize::from(size.entries));
        let sets = usize::from(size.entries).checked_div(ways).unwrap_or(0);
        Self {
            sets,
            ways,
            tags: vec![0; sets * ways],
            entries: vec![Entry::default(); sets * ways],
            next: vec![0; sets],
        }
    }

    #[inline]
    fn set(&self, linear: u64, shift: u8) -> usize {
        let page = (linear >> shift) as usize;
        if self.sets.is_power_of_two() { page & (self.sets - 1) } else { page % self.sets }
    }

    #[inline]
    fn find(&self, linear: u64, shift: u8, flushes: &Flushes, pcid: u16) -> Option<usize> {
        if self.sets == 0 {
            return None;
        }
        let first = self.set(linear, shift) * self.ways;
        let wanted = tag(linear, shift);
        let found = |i: &usize| self.tags[*i] == wanted && flushes.valid(&self.entries[*i], pcid);
        (first..first + self.ways).find(found)
    }

    /// Inserts, and returns the entry that had to go, whatever PCID it was of.
    fn insert(&mut self, entry: Entry, flushes: &Flushes) -> Option<Entry> {
        if self.sets == 0 {
            return None;
        }
        let set = self.set(entry.linear, entry.shift);
        let first = set * self.ways;
        if let Some(i) = self.find(entry.linear, entry.shift, flushes, entry.pcid) {
            self.entries[i] = entry;
            return None;
        }
        let slot = match (first..first + self.ways).find(|&i| !flushes.valid_at_all(&self.entries[i])) {
            Some(free) => free,
            None => {
                let way = usize::from(self.next[set]);
                self.next[set] = ((way + 1) % self.ways) as u8;
                first + way
            }
        };
        self.tags[slot] = tag(entry.linear, entry.shift);
        let old = std::mem::replace(&mut self.entries[slot], entry);
        flushes.valid_at_all(&old).then_some(old)
    }

    /// Drops what covers `linear` under `pcid` or globally; `pcid` `None` means under any.
    fn remove(&mut self, vpid: u8, linear: u64, pcid: Option<u16>, globals: bool) {
        if self.sets == 0 {
            return;
        }
        for shift in SHIFTS {
            let first = self.set(linear, shift) * self.ways;
            for e in &mut self.entries[first..first + self.ways] {
                let covers =
                    e.stamp != 0 && e.shift == shift && linear >> shift == e.linear >> shift && e.context.vpid == vpid;
                let mine = pcid.is_none_or(|p| p == e.pcid) || (globals && e.perms & perm::GLOBAL != 0);
                if covers && mine && (globals || e.perms & perm::GLOBAL == 0) {
                    e.stamp = 0;
                }
            }
        }
    }
}

/// When translations of one VPID were flushed last.
struct OfVpid {
    vpid: u16,
    all: u64,
    non_global: u64,
    by_pcid: Vec<u64>,
}

impl OfVpid {
    fn new(vpid: u16) -> Self {
        Self { vpid, all: 0, non_global: 0, by_pcid: vec![0; 4096] }
    }
}

/// When translations through one EPT pointer were flushed last.
#[derive(Clone, Copy)]
struct OfEpt {
    /// [`EPT_TABLE`] of the pointer.
    table: u64,
    all: u64,
}

/// VPIDs and EPT pointers told apart at most; with more, everything is flushed and they are numbered anew.
const MOST_VPIDS: usize = 16;
const MOST_EPTS: usize = 255;
/// What identifies the translations of an EPT pointer: the address of its root table.
const EPT_TABLE: u64 = 0x000f_ffff_ffff_f000;

/// When what was flushed last.
struct Flushes {
    now: u64,
    current: Context,
    /// The first is VPID 0.
    vpids: Vec<OfVpid>,
    /// The first is no EPT.
    epts: Vec<OfEpt>,
}

impl Flushes {
    fn new() -> Self {
        Self {
            now: 1,
            current: Context::default(),
            vpids: vec![OfVpid::new(0)],
            epts: vec![OfEpt { table: u64::MAX, all: 0 }],
        }
    }

    #[inline]
    fn valid(&self, e: &Entry, pcid: u16) -> bool {
        e.context == self.current && (e.pcid == pcid || e.perms & perm::GLOBAL != 0) && self.valid_at_all(e)
    }

    #[inline]
    fn valid_at_all(&self, e: &Entry) -> bool {
        let of = &self.vpids[usize::from(e.context.vpid)];
        e.stamp > of.all
            && e.stamp > self.epts[usize::from(e.context.ept)].all
            && (e.perms & perm::GLOBAL != 0 || (e.stamp > of.non_global && e.stamp > of.by_pcid[usize::from(e.pcid)]))
    }

    /// Moves time on, and returns what it was.
    fn stamp(&mut self) -> u64 {
        self.now += 1;
        self.now - 1
    }

    fn current_vpid(&mut self) -> &mut OfVpid {
        &mut self.vpids[usize::from(self.current.vpid)]
    }

    /// The numbers of a VPID and an EPT's root table.
    fn find(&self, vpid: u16, table: u64) -> (Option<usize>, Option<usize>) {
        (self.vpids.iter().position(|of| of.vpid == vpid), self.epts.iter().position(|of| of.table == table))
    }

    fn everything(&mut self) {
        let now = self.stamp();
        self.vpids.iter_mut().for_each(|of| of.all = now);
    }
}

/// Where a translation was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// First level.
    First,
    /// Second level; it is in the first now.
    Second,
}

/// The TLBs of one processor.
pub struct Tlb {
    data: [Array; 3],
    code: [Array; 2],
    second: [Array; 2],
    flushes: Flushes,
    /// Page sizes that were ever inserted, in the order of [`SHIFTS`].
    used: [bool; 4],
    keeps_global: bool,
    keeps_large: bool,
    /// First and last address of large pages that pieces were kept of since everything was flushed.
    in_pieces: Option<(u64, u64)>,
}

/// The first-level array for a kind of access and a page size. Without one for 1 GiB pages, those for 2 MiB hold them.
fn first_level<'a>(data: &'a mut [Array; 3], instruction: &'a mut [Array; 2], code: bool, shift: u8) -> &'a mut Array {
    match (code, shift) {
        (false, 12) => &mut data[0],
        (false, 30) if data[2].sets != 0 => &mut data[2],
        (false, _) => &mut data[1],
        (true, 12) => &mut instruction[0],
        (true, _) => &mut instruction[1],
    }
}

/// Page sizes looked up, as the shifts of [`Entry::shift`].
const SHIFTS: [u8; 4] = [12, 21, 22, 30];

impl Tlb {
    /// Empty TLBs of the given sizes.
    pub fn new(size: &Geometry) -> Self {
        Self {
            data: [Array::new(size.dtlb_4k), Array::new(size.dtlb_2m), Array::new(size.dtlb_1g)],
            code: [Array::new(size.itlb_4k), Array::new(size.itlb_2m)],
            second: [Array::new(size.stlb), Array::new(size.stlb_1g)],
            flushes: Flushes::new(),
            used: [false; 4],
            keeps_global: size.keeps_global,
            keeps_large: size.keeps_large,
            in_pieces: None,
        }
    }

    /// Looks up a translation. From the second level it moves into the first, and the last value is what it displaced there.
    pub fn lookup(&mut self, linear: u64, code: bool, pcid: u16) -> Option<(Entry, Level, Option<Entry>)> {
        let Self { data, code: instruction, second, flushes, used, .. } = self;
        for (number, shift) in SHIFTS.into_iter().enumerate() {
            if !used[number] {
                continue;
            }
            let array = first_level(data, instruction, code, shift);
            if let Some(i) = array.find(linear, shift, flushes, pcid) {
                return Some((array.entries[i], Level::First, None));
            }
        }
        for (number, shift) in SHIFTS.into_iter().enumerate() {
            if !used[number] {
                continue;
            }
            let array = &second[usize::from(shift == 30)];
            if let Some(i) = array.find(linear, shift, flushes, pcid) {
                let entry = array.entries[i];
                let displaced = first_level(data, instruction, code, shift).insert(entry, flushes);
                return Some((entry, Level::Second, displaced));
            }
        }
        None
    }

    /// What is kept of a translation that was found for `linear`: all of it, or what the emulator that is modelled keeps.
    pub fn kept(&mut self, mut entry: Entry, linear: u64) -> Entry {
        if !self.keeps_global {
            entry.perms &= !perm::GLOBAL;
        }
        if !self.keeps_large && entry.shift > 12 {
            let (first, last) = (entry.linear, entry.linear | ((1 << entry.shift) - 1));
            self.in_pieces = Some(match self.in_pieces {
                Some((lowest, highest)) => (lowest.min(first), highest.max(last)),
                None => (first, last),
            });
            entry.physical += (linear - first) & !0xfff;
            entry.linear = linear & !0xfff;
            entry.shift = 12;
        }
        entry
    }

    /// Inserts the result of a walk at both levels and returns what it displaced at the first.
    pub fn insert(&mut self, mut entry: Entry, code: bool) -> Option<Entry> {
        let Self { data, code: instruction, second, flushes, used, .. } = self;
        entry.stamp = flushes.now;
        entry.context = flushes.current;
        if let Some(number) = SHIFTS.into_iter().position(|shift| shift == entry.shift) {
            used[number] = true;
        }
        second[usize::from(entry.shift == 30)].insert(entry, flushes);
        // If the other first-level array has the page too, it goes on having it, as it is now.
        let other = first_level(data, instruction, !code, entry.shift);
        if let Some(older) = other.find(entry.linear, entry.shift, flushes, entry.pcid) {
            other.entries[older] = entry;
        }
        first_level(data, instruction, code, entry.shift).insert(entry, flushes)
    }

    /// Everything of every VPID.
    pub fn flush_everything(&mut self) {
        self.flushes.everything();
        self.in_pieces = None;
    }

    /// Everything of the current VPID, global entries included.
    pub fn flush_all(&mut self) {
        let now = self.flushes.stamp();
        self.flushes.current_vpid().all = now;
    }

    /// All non-global entries of one PCID (MOV CR3, INVPCID type 1).
    pub fn flush_pcid(&mut self, pcid: u16) {
        let now = self.flushes.stamp();
        self.flushes.current_vpid().by_pcid[usize::from(pcid & 0xfff)] = now;
    }

    /// All non-global entries of all PCIDs (INVPCID type 3).
    pub fn flush_non_global(&mut self) {
        let now = self.flushes.stamp();
        self.flushes.current_vpid().non_global = now;
    }

    fn arrays(&mut self) -> impl Iterator<Item = &mut Array> {
        self.data.iter_mut().chain(&mut self.code).chain(&mut self.second)
    }

    /// INVLPG: the page of `linear` under `pcid`, and globally.
    pub fn flush_page(&mut self, linear: u64, pcid: u16) {
        let vpid = self.flushes.current.vpid;
        self.remove(vpid, linear, Some(pcid), true);
    }

    /// INVPCID type 0: the page of `linear` under `pcid`, not globally.
    pub fn flush_page_non_global(&mut self, linear: u64, pcid: u16) {
        let vpid = self.flushes.current.vpid;
        self.remove(vpid, linear, Some(pcid), false);
    }

    /// Drops a page, or everything if it may be kept in pieces that nothing leads to.
    fn remove(&mut self, vpid: u8, linear: u64, pcid: Option<u16>, globals: bool) {
        match self.in_pieces {
            Some((first, last)) if (first..=last).contains(&linear) => self.flush_everything(),
            _ => self.arrays().for_each(|a| a.remove(vpid, linear, pcid, globals)),
        }
    }

    /// The VPID and EPT pointer in force.
    pub fn context(&self) -> Context {
        self.flushes.current
    }

    /// Puts a VPID and an EPT pointer in force. Translations of others stay, out of reach.
    pub fn enter(&mut self, vpid: u16, eptp: Option<u64>) {
        let table = eptp.map_or(u64::MAX, |pointer| pointer & EPT_TABLE);
        let (known_vpid, known_ept) = match self.flushes.find(vpid, table) {
            (None, _) if self.flushes.vpids.len() == MOST_VPIDS => self.start_over(vpid, table),
            (_, None) if self.flushes.epts.len() == MOST_EPTS => self.start_over(vpid, table),
            known => known,
        };
        let Flushes { vpids, epts, current, .. } = &mut self.flushes;
        let vpid = known_vpid.unwrap_or_else(|| {
            vpids.push(OfVpid::new(vpid));
            vpids.len() - 1
        });
        let ept = known_ept.unwrap_or_else(|| {
            epts.push(OfEpt { table, all: 0 });
            epts.len() - 1
        });
        *current = Context { vpid: vpid as u8, ept: ept as u8 };
    }

    /// Forgets everything and what the numbers stood for; finds anew.
    #[cold]
    fn start_over(&mut self, vpid: u16, table: u64) -> (Option<usize>, Option<usize>) {
        self.arrays().for_each(|array| array.entries.fill(Entry::default()));
        self.flushes.vpids.truncate(1);
        self.flushes.epts.truncate(1);
        self.flushes.find(vpid, table)
    }

    /// INVEPT: what was translated through one EPT pointer, or through any.
    pub fn flush_ept(&mut self, eptp: Option<u64>) {
        let now = self.flushes.stamp();
        let concerned = |of: &&mut OfEpt| eptp.is_none_or(|pointer| of.table == pointer & EPT_TABLE);
        self.flushes.epts[1..].iter_mut().filter(concerned).for_each(|of| of.all = now);
    }

    /// INVVPID of one VPID: everything, or everything that is not global.
    pub fn flush_vpid(&mut self, vpid: u16, globals: bool) {
        let now = self.flushes.stamp();
        let Some(of) = self.flushes.vpids.iter_mut().find(|of| of.vpid == vpid) else { return };
        if globals {
            of.all = now;
        } else {
            of.non_global = now;
        }
    }

    /// INVVPID of all VPIDs but 0.
    pub fn flush_vpids(&mut self) {
        let now = self.flushes.stamp();
        self.flushes.vpids[1..].iter_mut().for_each(|of| of.all = now);
    }

    /// INVVPID of the page of one linear address, under whatever PCID and EPT pointer.
    pub fn flush_page_of_vpid(&mut self, vpid: u16, linear: u64) {
        if let Some(number) = self.flushes.vpids.iter().position(|of| of.vpid == vpid) {
            self.remove(number as u8, linear, None, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_code_and_data_stays_in_both_first_levels() {
        let some = Sets { entries: 8, ways: 4 };
        let none = Sets { entries: 0, ways: 0 };
        let mut tlb = Tlb::new(&Geometry {
            dtlb_4k: some,
            dtlb_2m: some,
            dtlb_1g: none,
            itlb_4k: some,
            itlb_2m: some,
            stlb: none,
            stlb_1g: none,
            target_cache: 1,
            return_stack: 1,
            keeps_global: true,
            keeps_large: true,
        });
        let clean = Entry::new(0x20_0000, 0x40_0000, 21, 0, 0, 0);
        tlb.insert(clean, true);
        tlb.insert(Entry { perms: perm::DIRTY, ..clean }, false);
        for code in [true, false] {
            let (entry, level, _) = tlb.lookup(0x20_1234, code, 0).expect("it is there");
            assert_eq!((entry.perms, level), (perm::DIRTY, Level::First));
        }
        tlb.flush_page(0x20_0000, 0);
        assert!(tlb.lookup(0x20_1234, true, 0).is_none() && tlb.lookup(0x20_1234, false, 0).is_none());
    }

    #[test]
    fn an_emulator_keeps_pieces_and_no_global_pages() {
        let mut tlb = Tlb::new(&Geometry { keeps_global: false, keeps_large: false, ..Geometry::generic() });
        let page = Entry::new(0xffff_8000_0020_0000, 0x40_0000, 21, perm::GLOBAL, 0, 0);
        let linear = page.linear + 0x1_2345;
        let piece = tlb.kept(page, linear);
        assert_eq!((piece.linear, piece.physical, piece.shift), (page.linear + 0x1_2000, 0x41_2000, 12));
        tlb.insert(piece, false);
        assert!(tlb.lookup(linear, false, 0).is_some());
        assert!(tlb.lookup(page.linear, false, 0).is_none());
        tlb.flush_pcid(0);
        assert!(tlb.lookup(linear, false, 0).is_none(), "it is not global");
        tlb.insert(piece, false);
        let small = Entry::new(0x1000, 0x5000, 12, 0, 0, 0);
        tlb.insert(small, false);
        tlb.flush_page(0x2000, 0);
        assert!(tlb.lookup(linear, false, 0).is_some() && tlb.lookup(0x1000, false, 0).is_some());
        tlb.flush_page(page.linear, 0);
        assert!(tlb.lookup(linear, false, 0).is_none(), "any address of a large page leads to all pieces");
    }
}
