//! The recorder: collects charges while a machine runs.
//!
//! Ordinary instructions arrive as runs of blocks: a block has a [`Shape`] (how many instructions of which class), and
//! only its executions are counted. Everything else arrives as single charges.
//!
//! Charges go to the current *region of interest*, a stretch of the run that the guest gave a name. Each region has tables
//! of its own that are swapped when the region changes, so that a charge costs the same with and without regions. Whoever
//! drives the processors must hand over the executions they still hold back before changing the region.

use crate::{Class, Family, Kind, Ticks};
use hashbrown::HashTable;
use rustc_hash::{FxBuildHasher, FxHashMap};
use std::hash::BuildHasher;

/// Who is charged, apart from the instruction's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Origin {
    /// Virtualization level: 0 the machine itself (host), 1 its guest, 2 a nested guest.
    pub level: u8,
    /// Privilege ring, 0 to 3.
    pub ring: u8,
    /// Address space: the physical address of the root page table (CR3 without its low 12 bits), or 0 without paging.
    pub space: u64,
}

/// An interned [`Origin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OriginId(pub u32);

/// An interned [`Shape`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShapeId(pub u32);

/// Instructions of a block by class, sorted by class.
pub type Shape = Vec<(Class, u32)>;

/// A count and what it cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// How often.
    pub count: u64,
    /// Ticks charged in all.
    pub ticks: Ticks,
}

/// A stretch of the run that the guest gave a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// Its name; empty for what is in no region.
    pub name: String,
    /// How often it was begun.
    pub begun: u64,
}

/// The most regions of different names; all further ones are charged as one.
pub const MOST_REGIONS: usize = 256;
/// The name of the region that stands for those beyond [`MOST_REGIONS`].
const FURTHER_REGIONS: &str = "(further regions)";
/// The longest name of a region, in characters.
pub const LONGEST_REGION_NAME: usize = 64;
/// The deepest nesting of regions.
const DEEPEST_REGION: usize = 64;
/// The most address spaces told apart; further ones are charged as space 0. A guest decides how many it has.
const MOST_SPACES: usize = 1 << 20;

/// Origins found without a look into the table of all.
const RECENT_ORIGINS: usize = 64;

/// Executions of one block: 20 bytes, because a run has millions of them.
#[derive(Clone, Copy)]
struct Run {
    rip: [u32; 2],
    origin: OriginId,
    shape: ShapeId,
    /// Low half of the executions; the high half is in [`Runs::high`].
    low: u32,
}

impl Run {
    fn is(&self, origin: OriginId, rip: [u32; 2], shape: ShapeId) -> bool {
        self.rip == rip && self.origin == origin && self.shape == shape
    }
}

/// Blocks that were executed: dense storage in chunks, which never moves, and an index of four bytes per block.
#[derive(Default)]
struct Runs {
    chunks: Vec<Vec<Run>>,
    index: HashTable<u32>,
    high: FxHashMap<u32, u32>,
}

const CHUNK: usize = 1 << 14;

#[inline]
fn hash(origin: OriginId, rip: [u32; 2], shape: ShapeId) -> u64 {
    FxBuildHasher
        .hash_one((u64::from(rip[0]) | u64::from(rip[1]) << 32, u64::from(origin.0) << 32 | u64::from(shape.0)))
}

impl Runs {
    #[inline]
    fn add(&mut self, origin: OriginId, rip: u64, shape: ShapeId, runs: u64) {
        let rip = [rip as u32, (rip >> 32) as u32];
        let hash = hash(origin, rip, shape);
        let chunks = &mut self.chunks;
        let found =
            self.index.find(hash, |&at| chunks[at as usize / CHUNK][at as usize % CHUNK].is(origin, rip, shape));
        let (at, before) = match found {
            Some(&at) => (at, chunks[at as usize / CHUNK][at as usize % CHUNK].low),
            None => (self.insert(hash, Run { rip, origin, shape, low: 0 }), 0),
        };
        let sum = u64::from(before).saturating_add(runs);
        self.chunks[at as usize / CHUNK][at as usize % CHUNK].low = sum as u32;
        if sum >> 32 != 0 {
            let high = self.high.entry(at).or_default();
            *high = high.saturating_add((sum >> 32) as u32);
        }
    }

    #[cold]
    fn insert(&mut self, hash_of_run: u64, run: Run) -> u32 {
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let chunks = &mut self.chunks;
        let last = chunks.len() - 1;
        let at = (last * CHUNK + chunks[last].len()) as u32;
        chunks[last].push(run);
        self.index.insert_unique(hash_of_run, at, |&at| {
            let run = &chunks[at as usize / CHUNK][at as usize % CHUNK];
            hash(run.origin, run.rip, run.shape)
        });
        at
    }

    fn iter(&self) -> impl Iterator<Item = (OriginId, u64, ShapeId, u64)> + '_ {
        self.chunks.iter().flatten().zip(0u32..).map(|(run, at)| {
            let high = self.high.get(&at).copied().unwrap_or(0);
            let rip = u64::from(run.rip[0]) | u64::from(run.rip[1]) << 32;
            (run.origin, rip, run.shape, u64::from(run.low) | u64::from(high) << 32)
        })
    }
}

/// Events of one kind at one address, in half a cache line.
#[repr(align(32))]
struct Charge {
    rip: u64,
    /// The origin's number and the family.
    who: u32,
    param: u32,
    amount: Amount,
}

/// Origin and family in one number. There are far fewer than 2^24 origins: see [`MOST_SPACES`].
#[inline]
fn who(origin: OriginId, family: Family) -> u32 {
    origin.0 << 8 | family as u32
}

impl Charge {
    #[inline]
    fn is(&self, rip: u64, who: u32, param: u32) -> bool {
        self.rip == rip && self.who == who && self.param == param
    }
}

/// What was charged by event: dense storage, an index of it, and what was charged last by few bits of the hash, where most
/// charges find theirs.
#[derive(Default)]
struct Charges {
    all: Vec<Charge>,
    index: HashTable<u32>,
    recent: Vec<u32>,
}

const RECENT: usize = 1 << 14;

#[inline]
fn hash_of_charge(rip: u64, who: u32, param: u32) -> u64 {
    FxBuildHasher.hash_one((rip, u64::from(who) << 32 | u64::from(param)))
}

impl Charges {
    #[inline]
    fn add(&mut self, origin: OriginId, rip: u64, kind: Kind, amount: Amount) {
        let (who, param) = (who(origin, kind.family), kind.param);
        let hash = hash_of_charge(rip, who, param);
        let slot = hash as usize % RECENT;
        let guess = self.recent.get(slot).copied().unwrap_or(u32::MAX);
        let at = match self.all.get(guess as usize) {
            Some(charge) if charge.is(rip, who, param) => guess as usize,
            _ => self.find(hash, rip, who, param),
        };
        let sum = &mut self.all[at].amount;
        sum.count += amount.count;
        sum.ticks += amount.ticks;
    }

    /// The place of the charge, a new one if there is none, which is a recent one now.
    #[inline(never)]
    fn find(&mut self, hash: u64, rip: u64, who: u32, param: u32) -> usize {
        if self.recent.is_empty() {
            self.recent = vec![u32::MAX; RECENT];
        }
        let all = &mut self.all;
        let at = match self.index.find(hash, |&at| all[at as usize].is(rip, who, param)) {
            Some(&at) => at,
            None => {
                let at = all.len() as u32;
                all.push(Charge { rip, who, param, amount: Amount::default() });
                self.index.insert_unique(hash, at, |&at| {
                    let charge = &all[at as usize];
                    hash_of_charge(charge.rip, charge.who, charge.param)
                });
                at
            }
        };
        self.recent[hash as usize % RECENT] = at;
        at as usize
    }

    fn iter(&self) -> impl Iterator<Item = (OriginId, u64, Kind, Amount)> + '_ {
        self.all.iter().map(|charge| {
            let family = Family::ALL[(charge.who & 0xff) as usize];
            (OriginId(charge.who >> 8), charge.rip, Kind::new(family, charge.param), charge.amount)
        })
    }
}

/// What was charged in one region.
#[derive(Default)]
struct Tables {
    blocks: Runs,
    events: Charges,
}

/// Collects charges of one run.
pub struct Recorder {
    origins: Vec<Origin>,
    origin_ids: FxHashMap<Origin, OriginId>,
    /// Origins that were asked for last, by few bits of their space.
    recent_origins: [Option<(Origin, OriginId)>; RECENT_ORIGINS],
    shapes: Vec<Shape>,
    shape_ids: FxHashMap<Shape, ShapeId>,
    /// Tables of the current region.
    now: Tables,
    /// Tables of the other regions; those of the current one are empty here.
    others: Vec<Tables>,
    regions: Vec<Region>,
    current: usize,
    begun: Vec<usize>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self {
            origins: Vec::new(),
            origin_ids: FxHashMap::default(),
            recent_origins: [None; RECENT_ORIGINS],
            shapes: Vec::new(),
            shape_ids: FxHashMap::default(),
            now: Tables::default(),
            others: vec![Tables::default()],
            regions: vec![Region::default()],
            current: 0,
            begun: Vec::new(),
        }
    }
}

impl Recorder {
    /// The number of `origin`, the same for equal origins.
    #[inline]
    pub fn origin(&mut self, origin: Origin) -> OriginId {
        let Origin { level, ring, space } = origin;
        // The root tables of a program and of the kernel that serves it may be neighbours.
        let slot = (space >> 12 ^ u64::from(ring) << 4 ^ u64::from(level) << 5) as usize % RECENT_ORIGINS;
        match self.recent_origins[slot] {
            Some((known, id)) if known == origin => id,
            _ => {
                let id = self.find_origin(origin);
                self.recent_origins[slot] = Some((origin, id));
                id
            }
        }
    }

    fn find_origin(&mut self, origin: Origin) -> OriginId {
        if let Some(id) = self.origin_ids.get(&origin) {
            return *id;
        }
        if origin.space != 0 && self.origins.len() >= MOST_SPACES {
            return self.find_origin(Origin { space: 0, ..origin });
        }
        let id = OriginId(self.origins.len() as u32);
        self.origins.push(origin);
        self.origin_ids.insert(origin, id);
        id
    }

    /// The number of `shape`, the same for equal shapes.
    pub fn shape(&mut self, shape: &Shape) -> ShapeId {
        if let Some(id) = self.shape_ids.get(shape) {
            return *id;
        }
        let id = ShapeId(self.shapes.len() as u32);
        self.shapes.push(shape.clone());
        self.shape_ids.insert(shape.clone(), id);
        id
    }

    /// Adds `runs` executions of the block at `rip`.
    pub fn add_block(&mut self, origin: OriginId, rip: u64, shape: ShapeId, runs: u64) {
        self.now.blocks.add(origin, rip, shape, runs);
    }

    /// Adds an event, with what it cost.
    pub fn add(&mut self, origin: OriginId, rip: u64, kind: Kind, count: u64, ticks: Ticks) {
        self.now.events.add(origin, rip, kind, Amount { count, ticks });
    }

    /// Begins a region of interest: until it ends, or another begins, it is charged. Characters that can't be printed are
    /// dropped from the name.
    pub fn begin_region(&mut self, name: &str) {
        if self.begun.len() == DEEPEST_REGION {
            return;
        }
        let mut name = region_name(name);
        if self.regions.len() >= MOST_REGIONS - 1 && self.regions.iter().all(|region| region.name != name) {
            name = FURTHER_REGIONS.to_owned();
        }
        let id = match self.regions.iter().position(|region| region.name == name) {
            Some(id) => id,
            None => {
                self.regions.push(Region { name, begun: 0 });
                self.others.push(Tables::default());
                self.regions.len() - 1
            }
        };
        self.regions[id].begun += 1;
        self.begun.push(id);
        self.switch(id);
    }

    /// Ends the region that began last under that name; an empty name ends the innermost. Returns whether there was one.
    pub fn end_region(&mut self, name: &str) -> bool {
        let name = region_name(name);
        let at = match name.is_empty() {
            true => self.begun.len().checked_sub(1),
            false => self.begun.iter().rposition(|&id| self.regions[id].name == name),
        };
        let Some(at) = at else { return false };
        self.begun.remove(at);
        self.switch(self.begun.last().copied().unwrap_or(0));
        true
    }

    fn switch(&mut self, to: usize) {
        std::mem::swap(&mut self.now, &mut self.others[self.current]);
        std::mem::swap(&mut self.now, &mut self.others[to]);
        self.current = to;
    }

    /// The origins by number.
    pub fn origins(&self) -> &[Origin] {
        &self.origins
    }

    /// The shapes by number.
    pub fn shapes(&self) -> &[Shape] {
        &self.shapes
    }

    /// The regions by number; the first is what was in none.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    fn tables(&self) -> impl Iterator<Item = (usize, &Tables)> {
        let current = self.current;
        self.others.iter().enumerate().map(move |(id, tables)| (id, if id == current { &self.now } else { tables }))
    }

    /// Executed blocks, in no particular order: (region, origin, address, shape, executions).
    pub fn blocks(&self) -> impl Iterator<Item = (usize, OriginId, u64, ShapeId, u64)> + '_ {
        self.tables().flat_map(|(region, tables)| {
            tables.blocks.iter().map(move |(origin, rip, shape, runs)| (region, origin, rip, shape, runs))
        })
    }

    /// Events, in no particular order: (region, origin, address, kind, amount).
    pub fn events(&self) -> impl Iterator<Item = (usize, OriginId, u64, Kind, Amount)> + '_ {
        self.tables().flat_map(|(region, tables)| {
            tables.events.iter().map(move |(origin, rip, kind, amount)| (region, origin, rip, kind, amount))
        })
    }
}

fn region_name(name: &str) -> String {
    name.trim().chars().filter(|c| !c.is_control()).take(LONGEST_REGION_NAME).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn origin(recorder: &mut Recorder, space: u64) -> OriginId {
        recorder.origin(Origin { level: 0, ring: 0, space })
    }

    #[test]
    fn equal_origins_and_shapes_have_one_number() {
        let mut r = Recorder::default();
        let a = origin(&mut r, 1);
        assert_ne!(a, origin(&mut r, 2));
        assert_eq!(a, origin(&mut r, 1));
        let shape = r.shape(&vec![(Class::Alu, 3)]);
        assert_eq!(shape, r.shape(&vec![(Class::Alu, 3)]));
        assert_ne!(shape, r.shape(&vec![(Class::Alu, 4)]));
    }

    #[test]
    fn runs_add_up_beyond_32_bits() {
        let mut r = Recorder::default();
        let (o, s) = (origin(&mut r, 1), r.shape(&vec![(Class::Alu, 1)]));
        for _ in 0..5 {
            r.add_block(o, 0xffff_ffff_8100_0000, s, u64::from(u32::MAX));
        }
        let all: Vec<_> = r.blocks().collect();
        assert_eq!(all, [(0, o, 0xffff_ffff_8100_0000, s, 5 * u64::from(u32::MAX))]);
    }

    #[test]
    fn many_blocks_are_all_kept_apart() {
        let mut r = Recorder::default();
        let (o, p, s) = (origin(&mut r, 1), origin(&mut r, 2), r.shape(&vec![]));
        let n = 3 * CHUNK as u64 + 5;
        for round in 1..=2 {
            for i in 0..n {
                r.add_block(if i % 2 == 0 { o } else { p }, i * 7, s, round * i);
            }
        }
        let runs: BTreeMap<_, _> = r.blocks().map(|(_, origin, rip, _, runs)| ((origin, rip), runs)).collect();
        assert_eq!(runs.len() as u64, n);
        assert!(runs.iter().all(|((_, rip), runs)| *runs == rip / 7 * 3));
    }

    #[test]
    fn charges_go_to_the_innermost_region() {
        let mut r = Recorder::default();
        let (o, kind) = (origin(&mut r, 0), Kind::new(Family::Iret, 0));
        let charge = |r: &mut Recorder| r.add(o, 1, kind, 1, 10);
        charge(&mut r);
        r.begin_region("outer");
        charge(&mut r);
        r.begin_region("inner\n");
        charge(&mut r);
        charge(&mut r);
        assert!(r.end_region("inner"));
        charge(&mut r);
        assert!(r.end_region(""));
        assert!(!r.end_region("outer"), "it has ended");
        charge(&mut r);
        r.begin_region("inner");
        charge(&mut r);
        let mut counts: Vec<_> = r.events().map(|(region, _, _, _, amount)| (region, amount.count)).collect();
        counts.sort_unstable();
        assert_eq!(counts, [(0, 2), (1, 2), (2, 3)]);
        let regions: Vec<_> = r.regions().iter().map(|region| (region.name.as_str(), region.begun)).collect();
        assert_eq!(regions, [("", 0), ("outer", 1), ("inner", 2)]);
    }

    #[test]
    fn overlapping_regions_end_in_any_order() {
        let mut r = Recorder::default();
        r.begin_region("a");
        r.begin_region("b");
        assert!(r.end_region("a"));
        assert_eq!(r.current, 2);
        assert!(r.end_region("b"));
        assert_eq!(r.current, 0);
    }

    #[test]
    fn a_guest_cannot_make_endless_regions() {
        let mut r = Recorder::default();
        for i in 0..10_000 {
            r.begin_region(&i.to_string());
            if i % 2 == 0 {
                r.end_region("");
            }
        }
        assert!(r.regions().len() <= MOST_REGIONS);
        assert!(r.begun.len() <= DEEPEST_REGION);
    }
}
