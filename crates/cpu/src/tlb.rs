//! The translation look-aside buffers, which both serve translations and model the processor's.
//!
//! There are two levels with sizes from the profile, tagged with VPID, EPT pointer and PCID, with global entries.
//! Replacement is round-robin within a set, so a hit changes nothing, and a fast path in front
//! (`front.rs`) may serve entries that are present here without an effect on the counts. Flushes do not
//! touch entries: each entry carries the time stamp of its fill, and is valid only while it is newer than the last
//! flush that applies to it.

mod structures;

use ledger::{Geometry, Sets};
use serde::{Deserialize, Serialize};
pub use structures::Reading;
use structures::Structures;

/// Permissions and attributes of a translation, combined over all levels.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// True for a shadow stack.
    pub shadow: bool,
    /// PCID at the time of the fill.
    pub pcid: u16,
    /// VPID and EPT pointer at the time of the fill.
    context: Tag,
    /// Time of the fill; 0 if never filled.
    stamp: u64,
}

impl Entry {
    /// Creates a translation for insertion.
    pub fn new(linear: u64, physical: u64, shift: u8, perms: u8, key: u8, pcid: u16) -> Self {
        Self { linear, physical, shift, perms, key, shadow: false, pcid, context: Tag::default(), stamp: 0 }
    }

    /// Returns true if both describe the same translation of the same page, for the same address spaces.
    fn is_like(&self, other: &Self) -> bool {
        Self { stamp: other.stamp, ..*self } == *other
    }

    /// Returns the only value of [`Tag::key`] under which it may be found, or `None` if any of its context applies.
    pub fn key(&self) -> Option<u32> {
        (self.perms & perm::GLOBAL == 0).then(|| self.context.key(self.pcid))
    }

    /// Returns true if it is for the page of this size that contains `linear`.
    #[inline(always)]
    fn is_of(&self, linear: u64, shift: u8) -> bool {
        self.shift == shift && (self.linear ^ linear) >> shift == 0
    }
}

/// Effect of an insertion on the first level.
#[derive(Clone, Copy, Debug)]
pub struct Inserted {
    /// Entry that was displaced.
    pub displaced: Option<Entry>,
    /// True if the page was also present for the other kind of access, with different contents.
    pub changed: bool,
}

/// A VPID and an EPT pointer, as indices in a [`Tlb`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tag {
    vpid: u8,
    ept: u8,
}

impl Tag {
    /// Returns true if the VPID is not 0.
    pub fn vpid_tagged(self) -> bool {
        self.vpid != 0
    }

    /// Returns the context and a PCID as one number.
    pub fn key(self, pcid: u16) -> u32 {
        u32::from(self.vpid) << 24 | u32::from(self.ept) << 16 | u32::from(pcid)
    }

    /// Returns true if a value of [`Self::key`] has this VPID and PCID, with any EPT pointer.
    pub fn owns(self, key: u32, pcid: u16) -> bool {
        key >> 24 == u32::from(self.vpid) && key as u16 == pcid
    }
}

/// Number of tags that are compared at a time; sets are padded to a multiple of it.
const STEP: usize = 4;

/// A set-associative array with round-robin replacement.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct Array {
    sets: usize,
    ways: usize,
    /// Distance between sets.
    stride: usize,
    /// Search tags, which are separate so that a set fits in one cache line: see [`tag`]. A match is verified.
    tags: Vec<u32>,
    entries: Vec<Entry>,
    next: Vec<u8>,
    /// The time ([`Flushes::now`]) at which each set had no free way; 0 for never. This holds until the next flush.
    full: Vec<u64>,
}

/// Hashes a page's address to few bits, including those that differ between neighbours.
#[inline(always)]
fn tag(linear: u64, shift: u8) -> u32 {
    let page = linear >> shift;
    (page ^ page >> 32) as u32
}

impl Array {
    fn new(size: Sets) -> Self {
        let ways = usize::from(size.ways.max(1)).min(usize::from(size.entries));
        let sets = usize::from(size.entries).checked_div(ways).unwrap_or(0);
        let stride = ways.next_multiple_of(STEP);
        Self {
            sets,
            ways,
            stride,
            tags: vec![0; sets * stride],
            entries: vec![Entry::default(); sets * stride],
            next: vec![0; sets],
            full: vec![0; sets],
        }
    }

    /// Returns true if it has the size of a new array, and its entries refer to existing contexts.
    fn fits(&self, new: &Self, flushes: &Flushes) -> bool {
        (self.sets, self.ways, self.stride) == (new.sets, new.ways, new.stride)
            && (self.tags.len(), self.entries.len()) == (new.tags.len(), new.entries.len())
            && (self.next.len(), self.full.len()) == (new.next.len(), new.full.len())
            && self.next.iter().all(|way| usize::from(*way) < self.ways)
            && self.entries.iter().all(|entry| {
                let shift = entry.stamp == 0 || SHIFTS.contains(&entry.shift);
                shift && flushes.has(entry.context) && usize::from(entry.pcid) < PCIDS
            })
    }

    #[inline]
    fn set(&self, linear: u64, shift: u8) -> usize {
        let page = (linear >> shift) as usize;
        if self.sets.is_power_of_two() { page & (self.sets - 1) } else { page % self.sets }
    }

    /// Returns the first entry of a set that is valid and for this page.
    #[inline]
    fn find(&self, linear: u64, shift: u8, flushes: &Flushes) -> Option<usize> {
        if self.sets == 0 {
            return None;
        }
        let first = self.set(linear, shift) * self.stride;
        let wanted = tag(linear, shift);
        let (steps, _) = self.tags[first..first + self.stride].as_chunks::<STEP>();
        for (number, tags) in steps.iter().enumerate() {
            let mut matching = (0..STEP).fold(0u32, |all, i| all | u32::from(tags[i] == wanted) << i);
            while matching != 0 {
                let i = first + number * STEP + matching.trailing_zeros() as usize;
                let e = &self.entries[i];
                if e.is_of(linear, shift) && flushes.valid(e) {
                    return Some(i);
                }
                matching &= matching - 1;
            }
        }
        None
    }

    /// Inserts an entry, and returns the displaced entry of any PCID. `flushes` must use the PCID of the new entry.
    fn insert(&mut self, entry: Entry, flushes: &Flushes) -> Option<Entry> {
        if self.sets == 0 {
            return None;
        }
        if let Some(i) = self.find(entry.linear, entry.shift, flushes) {
            self.entries[i] = entry;
            return None;
        }
        let set = self.set(entry.linear, entry.shift);
        let first = set * self.stride;
        let tag = tag(entry.linear, entry.shift);
        if self.full[set] != flushes.now {
            let ways = &self.entries[first..first + self.ways];
            if let Some(free) = ways.iter().position(|e| !flushes.valid_at_all(e)) {
                self.tags[first + free] = tag;
                self.entries[first + free] = entry;
                return None;
            }
            self.full[set] = flushes.now;
        }
        let way = usize::from(self.next[set]);
        self.next[set] = if way + 1 == self.ways { 0 } else { way as u8 + 1 };
        self.tags[first + way] = tag;
        Some(std::mem::replace(&mut self.entries[first + way], entry))
    }

    /// Drops the entries that cover `linear` for `pcid` or globally; `None` stands for all PCIDs.
    fn remove(&mut self, vpid: u8, linear: u64, pcid: Option<u16>, globals: bool) {
        if self.sets == 0 {
            return;
        }
        for shift in SHIFTS {
            let set = self.set(linear, shift);
            let first = set * self.stride;
            for e in &mut self.entries[first..first + self.ways] {
                let covers = e.stamp != 0 && e.is_of(linear, shift) && e.context.vpid == vpid;
                let mine = pcid.is_none_or(|p| p == e.pcid) || (globals && e.perms & perm::GLOBAL != 0);
                if covers && mine && (globals || e.perms & perm::GLOBAL == 0) {
                    e.stamp = 0;
                    self.full[set] = 0;
                }
            }
        }
    }
}

/// Number of PCIDs.
const PCIDS: usize = 4096;

/// Times of the last flushes of one VPID.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct OfVpid {
    vpid: u16,
    all: u64,
    non_global: u64,
    by_pcid: Vec<u64>,
}

impl OfVpid {
    fn new(vpid: u16) -> Self {
        Self { vpid, all: 0, non_global: 0, by_pcid: vec![0; PCIDS] }
    }
}

/// Times of the last flushes of one EPT pointer.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
struct OfEpt {
    /// Bits [`EPT_TABLE`] of the pointer.
    table: u64,
    all: u64,
}

/// Maximum number of VPIDs and of EPT pointers; beyond it an old one is replaced.
const MOST_VPIDS: usize = 16;
const MOST_EPTS: usize = 255;
/// Bits of an EPT pointer that identify its translations: the address of its root table.
const EPT_TABLE: u64 = x86::ept::ADDRESS;

/// Validity limits in the current context with one PCID; computed on demand, and therefore not part of the state.
#[derive(Clone)]
struct View {
    pcid: u16,
    /// Non-global entries filled since this time are valid.
    since: u64,
    /// Global entries filled since this time are valid.
    global_since: u64,
}

impl Default for View {
    /// Returns a view of an impossible PCID, so that it is computed before use.
    fn default() -> Self {
        Self { pcid: PCIDS as u16, since: u64::MAX, global_since: u64::MAX }
    }
}

impl PartialEq for View {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// Times of all last flushes.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct Flushes {
    now: u64,
    current: Tag,
    #[serde(skip)]
    view: View,
    /// By VPID index; the first is VPID 0.
    vpids: Vec<OfVpid>,
    /// By EPT index; the first is "no EPT".
    epts: Vec<OfEpt>,
    /// Number of replaced VPIDs and EPT pointers.
    taken_over: (u64, u64),
}

impl Flushes {
    fn new() -> Self {
        Self {
            now: 1,
            current: Tag::default(),
            view: View { pcid: 0, since: 1, global_since: 1 },
            vpids: vec![OfVpid::new(0)],
            epts: vec![OfEpt { table: u64::MAX, all: 0 }],
            taken_over: (0, 0),
        }
    }

    /// Returns true if the indices of VPID and EPT pointer exist.
    fn has(&self, context: Tag) -> bool {
        usize::from(context.vpid) < self.vpids.len() && usize::from(context.ept) < self.epts.len()
    }

    /// Returns true if all internal references are valid.
    fn fits(&self) -> bool {
        self.vpids.len() <= MOST_VPIDS
            && self.epts.len() <= MOST_EPTS
            && self.has(self.current)
            && self.now < u64::MAX / 2
            && self.vpids.iter().all(|of| of.by_pcid.len() == PCIDS)
    }

    /// Selects the PCID for validity checks.
    #[inline]
    fn look_with(&mut self, pcid: u16) {
        if self.view.pcid != pcid {
            self.view.pcid = pcid;
            self.renew_view();
        }
    }

    /// Updates the view after a flush or a change of context.
    fn renew_view(&mut self) {
        let of = &self.vpids[usize::from(self.current.vpid)];
        let all = of.all.max(self.epts[usize::from(self.current.ept)].all);
        // After a restore no PCID is selected yet, and nothing is valid.
        let by_pcid = of.by_pcid.get(usize::from(self.view.pcid)).copied().unwrap_or(u64::MAX - 1);
        let non_global = of.non_global.max(by_pcid);
        self.view.since = all.max(non_global) + 1;
        self.view.global_since = all + 1;
    }

    /// Returns true if an entry is valid in the current context, with the PCID of [`Self::look_with`].
    #[inline]
    fn valid(&self, e: &Entry) -> bool {
        let View { pcid, since, global_since } = self.view;
        e.context == self.current
            && if e.perms & perm::GLOBAL != 0 { e.stamp >= global_since } else { e.stamp >= since && e.pcid == pcid }
    }

    /// Returns true if an entry is valid in any context, with any PCID.
    #[inline]
    fn valid_at_all(&self, e: &Entry) -> bool {
        let of = &self.vpids[usize::from(e.context.vpid)];
        e.stamp > of.all
            && e.stamp > self.epts[usize::from(e.context.ept)].all
            && (e.perms & perm::GLOBAL != 0 || (e.stamp > of.non_global && e.stamp > of.by_pcid[usize::from(e.pcid)]))
    }

    /// Flushes: advances the time and lets `note` store it.
    fn flush(&mut self, note: impl FnOnce(&mut Self, u64)) {
        note(self, self.now);
        self.now += 1;
        self.renew_view();
    }

    /// Flushes a part of the current VPID.
    fn flush_current(&mut self, note: impl FnOnce(&mut OfVpid, u64)) {
        self.flush(|flushes, now| note(&mut flushes.vpids[usize::from(flushes.current.vpid)], now));
    }

    /// Returns the index of a VPID. The second value is true if the index belonged to another VPID until now, whose
    /// entries are no longer valid.
    fn number_of_vpid(&mut self, vpid: u16) -> (usize, bool) {
        if let Some(number) = self.vpids.iter().position(|of| of.vpid == vpid) {
            return (number, false);
        }
        if self.vpids.len() < MOST_VPIDS {
            self.vpids.push(OfVpid::new(vpid));
            return (self.vpids.len() - 1, false);
        }
        let number = 1 + self.taken_over.0 as usize % (MOST_VPIDS - 1);
        self.taken_over.0 = self.taken_over.0.wrapping_add(1);
        let of = &mut self.vpids[number];
        (of.vpid, of.all) = (vpid, self.now);
        self.now += 1;
        (number, true)
    }

    /// Returns the index of an EPT's root table. The second value is true if the index belonged to another one until
    /// now.
    fn number_of_ept(&mut self, table: u64) -> (usize, bool) {
        if let Some(number) = self.epts.iter().position(|of| of.table == table) {
            return (number, false);
        }
        if self.epts.len() < MOST_EPTS {
            self.epts.push(OfEpt { table, all: 0 });
            return (self.epts.len() - 1, false);
        }
        let number = 1 + self.taken_over.1 as usize % (MOST_EPTS - 1);
        self.taken_over.1 = self.taken_over.1.wrapping_add(1);
        self.epts[number] = OfEpt { table, all: self.now };
        self.now += 1;
        (number, true)
    }

    fn everything(&mut self) {
        self.flush(|flushes, now| flushes.vpids.iter_mut().for_each(|of| of.all = now));
    }
}

/// Page sizes in the order of lookups, as in [`Entry::shift`].
const SHIFTS: [u8; 4] = [12, 21, 22, 30];

/// Returns the index of a page size in [`SHIFTS`].
fn size_number(shift: u8) -> usize {
    SHIFTS.iter().position(|&s| s == shift).unwrap_or(0)
}

/// The TLBs of one processor.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Tlb {
    /// First level for data and for code, and second level.
    arrays: [Array; 7],
    /// Array for each page size, in the order of [`SHIFTS`]: for data, for code, in the second level.
    holders: [[u8; 4]; 3],
    /// Paging-structure caches.
    structures: Structures,
    flushes: Flushes,
    /// True for each page size that was ever inserted, in the order of [`SHIFTS`].
    used: [bool; 4],
    keeps_global: bool,
    keeps_large: bool,
    /// First and last address of large pages that have been cached in pieces since everything was flushed.
    in_pieces: Option<(u64, u64)>,
    /// Hash set of 2 MiB regions with a 4 KiB page of code in the first level since everything was flushed.
    small_code: Vec<u64>,
}

/// Number of bits in [`Tlb::small_code`].
const SMALL_CODE: usize = 4096;

/// Returns the position of a region in [`Tlb::small_code`].
fn small_code(linear: u64) -> (usize, u64) {
    let region = linear >> 21;
    let bit = (region ^ region >> 12 ^ region >> 24) as usize % SMALL_CODE;
    (bit / 64, 1 << (bit % 64))
}

const SECOND: usize = 2;

impl Tlb {
    /// Creates empty TLBs of the given sizes.
    pub fn new(size: &Geometry) -> Self {
        let Geometry { dtlb_4k, dtlb_2m, dtlb_1g, itlb_4k, itlb_2m, stlb, stlb_1g, ref caches, .. } = *size;
        let arrays = [dtlb_4k, dtlb_2m, dtlb_1g, itlb_4k, itlb_2m, stlb, stlb_1g].map(Array::new);
        // Without an array for 1 GiB pages, the array for 2 MiB pages contains them.
        let data_1g = if arrays[2].sets == 0 { 1 } else { 2 };
        Self {
            arrays,
            holders: [[0, 1, 1, data_1g], [3, 4, 4, 4], [5, 5, 5, 6]],
            structures: Structures::new(caches.as_ref().map(|caches| &caches.walks)),
            flushes: Flushes::new(),
            used: [false; 4],
            keeps_global: size.keeps_global,
            keeps_large: size.keeps_large,
            in_pieces: None,
            small_code: vec![0; SMALL_CODE / 64],
        }
    }

    /// Returns true if it has the given sizes and all internal references are valid.
    pub(crate) fn fits(&self, size: &Geometry) -> bool {
        let new = Self::new(size);
        let arrays = self.arrays.iter().zip(&new.arrays).all(|(array, new)| array.fits(new, &self.flushes));
        arrays
            && (self.holders, self.keeps_global, self.keeps_large) == (new.holders, new.keeps_global, new.keeps_large)
            && self.small_code.len() == new.small_code.len()
            && self.flushes.fits()
            && self.structures.fits(&new.structures, &self.flushes)
    }

    /// Finds the valid entry for `linear` in a level (0 and 1: first level for data and code), with its array.
    #[inline]
    fn find(&mut self, level: usize, linear: u64, pcid: u16) -> Option<(usize, usize)> {
        self.flushes.look_with(pcid);
        for (number, shift) in SHIFTS.into_iter().enumerate() {
            if self.used[number] {
                let holder = usize::from(self.holders[level][number]);
                if let Some(i) = self.arrays[holder].find(linear, shift, &self.flushes) {
                    return Some((holder, i));
                }
            }
        }
        None
    }

    /// Looks up a translation in the first level. A hit changes nothing.
    #[inline]
    pub fn first(&mut self, linear: u64, code: bool, pcid: u16) -> Option<&Entry> {
        let (holder, i) = self.find(usize::from(code), linear, pcid)?;
        Some(&self.arrays[holder].entries[i])
    }

    /// Looks up a translation in the second level, which changes nothing.
    #[inline]
    pub fn second(&mut self, linear: u64, pcid: u16) -> Option<&Entry> {
        let (holder, i) = self.find(SECOND, linear, pcid)?;
        Some(&self.arrays[holder].entries[i])
    }

    /// Copies an entry of [`Self::second`], which the first level does not have, to the first level. Returns the
    /// displaced entry.
    pub fn promote(&mut self, entry: Entry, code: bool) -> Option<Entry> {
        // The PCID of a global entry may differ from the current one.
        self.flushes.look_with(entry.pcid);
        self.note_code(&entry, code);
        let upper = usize::from(self.holders[usize::from(code)][size_number(entry.shift)]);
        self.arrays[upper].insert(entry, &self.flushes)
    }

    /// Returns true if the first level has a 4 KiB page of code in the large page of size 2^`shift` around `linear`.
    pub fn has_small_code(&self, linear: u64, shift: u8) -> bool {
        let (word, bit) = small_code(linear);
        if shift == 21 && self.small_code[word] & bit == 0 {
            return false;
        }
        let small = &self.arrays[usize::from(self.holders[1][0])];
        let wanted = tag(linear, 12) >> (shift - 12);
        let inside = |(found, entry): (&u32, &Entry)| {
            *found >> (shift - 12) == wanted
                && entry.linear >> shift == linear >> shift
                && self.flushes.valid_at_all(entry)
        };
        small.tags.iter().zip(&small.entries).any(inside)
    }

    /// Returns the part of a translation for `linear` that is cached: all of it, or the part that a modelled emulator
    /// caches.
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

    /// Inserts the result of a walk in both levels.
    pub fn insert(&mut self, mut entry: Entry, code: bool) -> Inserted {
        let number = size_number(entry.shift);
        self.used[number] = true;
        entry.stamp = self.flushes.now;
        entry.context = self.flushes.current;
        self.flushes.look_with(entry.pcid);
        let [own, other, second] =
            [usize::from(code), usize::from(!code), SECOND].map(|level| usize::from(self.holders[level][number]));
        self.arrays[second].insert(entry, &self.flushes);
        // If the other first-level array has the page too, its entry is updated.
        let mut changed = false;
        if let Some(older) = self.arrays[other].find(entry.linear, entry.shift, &self.flushes) {
            let older = std::mem::replace(&mut self.arrays[other].entries[older], entry);
            changed = !older.is_like(&entry);
        }
        self.note_code(&entry, code);
        Inserted { displaced: self.arrays[own].insert(entry, &self.flushes), changed }
    }

    fn note_code(&mut self, entry: &Entry, code: bool) {
        if code && entry.shift == 12 {
            let (word, bit) = small_code(entry.linear);
            self.small_code[word] |= bit;
        }
    }

    /// Flushes everything of every VPID.
    pub fn flush_everything(&mut self) {
        self.flushes.everything();
        self.in_pieces = None;
        self.small_code.fill(0);
    }

    /// Flushes everything of the current VPID, including global entries.
    pub fn flush_all(&mut self) {
        self.flushes.flush_current(|of, now| of.all = now);
    }

    /// Flushes the non-global entries of one PCID (MOV CR3, INVPCID type 1).
    pub fn flush_pcid(&mut self, pcid: u16) {
        self.flushes.flush_current(|of, now| of.by_pcid[usize::from(pcid & 0xfff)] = now);
    }

    /// Flushes the non-global entries of all PCIDs (INVPCID type 3).
    pub fn flush_non_global(&mut self) {
        self.flushes.flush_current(|of, now| of.non_global = now);
    }

    /// Flushes the page of `linear` for `pcid`, and globally (INVLPG).
    pub fn flush_page(&mut self, linear: u64, pcid: u16) {
        let vpid = self.flushes.current.vpid;
        self.remove(vpid, linear, Some(pcid), true);
    }

    /// Flushes the page of `linear` for `pcid`, without global entries (INVPCID type 0).
    pub fn flush_page_non_global(&mut self, linear: u64, pcid: u16) {
        let vpid = self.flushes.current.vpid;
        self.remove(vpid, linear, Some(pcid), false);
    }

    /// Drops a page, or everything if the page may be cached in pieces that can't be found.
    fn remove(&mut self, vpid: u8, linear: u64, pcid: Option<u16>, globals: bool) {
        self.structures.drop_pcid(vpid, pcid);
        match self.in_pieces {
            Some((first, last)) if (first..=last).contains(&linear) => self.flush_everything(),
            _ => self.arrays.iter_mut().for_each(|a| a.remove(vpid, linear, pcid, globals)),
        }
    }

    /// Returns the current VPID and EPT pointer.
    pub fn context(&self) -> Tag {
        self.flushes.current
    }

    /// Sets the current VPID and EPT pointer. Translations of others are kept but not used. Returns true if there were
    /// too many, and indices have been reassigned.
    #[must_use]
    pub fn enter(&mut self, vpid: u16, eptp: Option<u64>) -> bool {
        let table = eptp.map_or(u64::MAX, |pointer| pointer & EPT_TABLE);
        let (vpid, other_vpid) = self.flushes.number_of_vpid(vpid);
        let (ept, other_ept) = self.flushes.number_of_ept(table);
        self.flushes.current = Tag { vpid: vpid as u8, ept: ept as u8 };
        self.flushes.renew_view();
        other_vpid || other_ept
    }

    /// Flushes the translations of one EPT pointer, or of all (INVEPT).
    pub fn flush_ept(&mut self, eptp: Option<u64>) {
        let concerned = |of: &&mut OfEpt| eptp.is_none_or(|pointer| of.table == pointer & EPT_TABLE);
        self.flushes.flush(|flushes, now| flushes.epts[1..].iter_mut().filter(concerned).for_each(|of| of.all = now));
    }

    /// Flushes one VPID: everything, or everything except global entries (INVVPID).
    pub fn flush_vpid(&mut self, vpid: u16, globals: bool) {
        self.flushes.flush(|flushes, now| {
            let Some(of) = flushes.vpids.iter_mut().find(|of| of.vpid == vpid) else { return };
            if globals {
                of.all = now;
            } else {
                of.non_global = now;
            }
        });
    }

    /// Flushes all VPIDs except 0 (INVVPID).
    pub fn flush_vpids(&mut self) {
        self.flushes.flush(|flushes, now| flushes.vpids[1..].iter_mut().for_each(|of| of.all = now));
    }

    /// Flushes the page of one linear address of a VPID, for all PCIDs and EPT pointers (INVVPID).
    pub fn flush_page_of_vpid(&mut self, vpid: u16, linear: u64) {
        if let Some(number) = self.flushes.vpids.iter().position(|of| of.vpid == vpid) {
            self.remove(number as u8, linear, None, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(tlb: &mut Tlb, linear: u64, code: bool) -> bool {
        tlb.first(linear, code, 0).is_some() || tlb.second(linear, 0).is_some()
    }

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
            predicts_directions: false,
            keeps_global: true,
            keeps_large: true,
            caches: None,
        });
        let clean = Entry::new(0x20_0000, 0x40_0000, 21, 0, 0, 0);
        assert!(!tlb.insert(clean, true).changed);
        assert!(tlb.insert(Entry { perms: perm::DIRTY, ..clean }, false).changed);
        assert!(!tlb.insert(Entry { perms: perm::DIRTY, ..clean }, true).changed);
        for code in [true, false] {
            assert_eq!(tlb.first(0x20_1234, code, 0).expect("it is there").perms, perm::DIRTY);
        }
        tlb.flush_page(0x20_0000, 0);
        assert!(!has(&mut tlb, 0x20_1234, true) && !has(&mut tlb, 0x20_1234, false));
    }

    #[test]
    fn an_emulator_keeps_pieces_and_no_global_pages() {
        let mut tlb = Tlb::new(&Geometry { keeps_global: false, keeps_large: false, ..Geometry::generic() });
        let page = Entry::new(0xffff_8000_0020_0000, 0x40_0000, 21, perm::GLOBAL, 0, 0);
        let linear = page.linear + 0x1_2345;
        let piece = tlb.kept(page, linear);
        assert_eq!((piece.linear, piece.physical, piece.shift), (page.linear + 0x1_2000, 0x41_2000, 12));
        tlb.insert(piece, false);
        assert!(has(&mut tlb, linear, false));
        assert!(!has(&mut tlb, page.linear, false));
        tlb.flush_pcid(0);
        assert!(!has(&mut tlb, linear, false), "it is not global");
        tlb.insert(piece, false);
        let small = Entry::new(0x1000, 0x5000, 12, 0, 0, 0);
        tlb.insert(small, false);
        tlb.flush_page(0x2000, 0);
        assert!(has(&mut tlb, linear, false) && has(&mut tlb, 0x1000, false));
        tlb.flush_page(page.linear, 0);
        assert!(!has(&mut tlb, linear, false), "any address of a large page leads to all pieces");
    }
}
