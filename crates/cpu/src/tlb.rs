//! The translation look-aside buffers: the ones that are used and the ones that are modelled.
//!
//! Two levels as the profile sizes them, tagged with PCID, with global entries. Replacement is round-robin within a set, so
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
}

/// A cached translation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Linear address of the page.
    pub linear: u64,
    /// Guest-physical address of the page.
    pub physical: u64,
    /// Log2 of the page size: 12, 21, 22 or 30.
    pub shift: u8,
    /// See [`perm`].
    pub perms: u8,
    /// Protection key.
    pub key: u8,
    /// PCID it was filled under.
    pub pcid: u16,
    /// Fill time; 0 never was filled.
    stamp: u64,
}

impl Entry {
    /// A translation about to be inserted.
    pub fn new(linear: u64, physical: u64, shift: u8, perms: u8, key: u8, pcid: u16) -> Self {
        Self { linear, physical, shift, perms, key, pcid, stamp: 0 }
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
    fn remove(&mut self, linear: u64, pcid: Option<u16>, globals: bool) {
        if self.sets == 0 {
            return;
        }
        for shift in SHIFTS {
            let first = self.set(linear, shift) * self.ways;
            for e in &mut self.entries[first..first + self.ways] {
                let covers = e.stamp != 0 && e.shift == shift && linear >> shift == e.linear >> shift;
                let mine = pcid.is_none_or(|p| p == e.pcid) || (globals && e.perms & perm::GLOBAL != 0);
                if covers && mine && (globals || e.perms & perm::GLOBAL == 0) {
                    e.stamp = 0;
                }
            }
        }
    }
}

/// When what was flushed last.
struct Flushes {
    now: u64,
    all: u64,
    by_pcid: Vec<u64>,
    non_global: u64,
}

impl Flushes {
    #[inline]
    fn valid(&self, e: &Entry, pcid: u16) -> bool {
        (e.pcid == pcid || e.perms & perm::GLOBAL != 0) && self.valid_at_all(e)
    }

    #[inline]
    fn valid_at_all(&self, e: &Entry) -> bool {
        e.stamp > self.all
            && (e.perms & perm::GLOBAL != 0
                || (e.stamp > self.non_global && e.stamp > self.by_pcid[usize::from(e.pcid)]))
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
            flushes: Flushes { now: 1, all: 0, by_pcid: vec![0; 4096], non_global: 0 },
            used: [false; 4],
        }
    }

    /// Looks up a translation. From the second level it moves into the first, and the last value is what it displaced there.
    pub fn lookup(&mut self, linear: u64, code: bool, pcid: u16) -> Option<(Entry, Level, Option<Entry>)> {
        let Self { data, code: instruction, second, flushes, used } = self;
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

    /// Inserts the result of a walk at both levels and returns what it displaced at the first.
    pub fn insert(&mut self, mut entry: Entry, code: bool) -> Option<Entry> {
        let Self { data, code: instruction, second, flushes, used } = self;
        entry.stamp = flushes.now;
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

    /// Everything, global entries included.
    pub fn flush_all(&mut self) {
        self.flushes.all = self.flushes.now;
        self.flushes.now += 1;
    }

    /// All non-global entries of one PCID (MOV CR3, INVPCID type 1).
    pub fn flush_pcid(&mut self, pcid: u16) {
        self.flushes.by_pcid[usize::from(pcid & 0xfff)] = self.flushes.now;
        self.flushes.now += 1;
    }

    /// All non-global entries of all PCIDs (INVPCID type 3).
    pub fn flush_non_global(&mut self) {
        self.flushes.non_global = self.flushes.now;
        self.flushes.now += 1;
    }

    fn arrays(&mut self) -> impl Iterator<Item = &mut Array> {
        self.data.iter_mut().chain(&mut self.code).chain(&mut self.second)
    }

    /// INVLPG: the page of `linear` under `pcid`, and globally.
    pub fn flush_page(&mut self, linear: u64, pcid: u16) {
        self.arrays().for_each(|a| a.remove(linear, Some(pcid), true));
    }

    /// INVPCID type 0: the page of `linear` under `pcid`, not globally.
    pub fn flush_page_non_global(&mut self, linear: u64, pcid: u16) {
        self.arrays().for_each(|a| a.remove(linear, Some(pcid), false));
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
}
