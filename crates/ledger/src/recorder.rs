//! The recorder: collects charges while a machine runs.
//!
//! Ordinary instructions arrive as runs of blocks: a block has a [`Shape`] (how many instructions of which class), and
//! only its executions are counted. Everything else arrives as single charges.
//!
//! Charges go to the current *region of interest*, a stretch of the run that the guest gave a name. Each region has tables
//! of its own that are swapped when the region changes, so that a charge costs the same with and without regions. Whoever
//! drives the processors must hand over the executions they still hold back before changing the region.
//!
//! A guest decides how many addresses it executes. Beyond [`MOST_RECORDED`] entries they are told apart less and less, in
//! the steps of [`coarse`]; what was charged in all stays exact.

pub mod coarse;
mod tables;

use crate::{Class, Kind, Ticks};
use coarse::{AREA, Coarseness, Range};
use hashbrown::HashTable;
use rustc_hash::{FxBuildHasher, FxHashMap};
use std::hash::BuildHasher;
use tables::Tables;

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

/// The most blocks and events by address that a run keeps in memory: so many fill a table of a power of two.
pub const MOST_RECORDED: usize = 7 << 20;
/// The most shapes of blocks that a run keeps.
pub const MOST_SHAPES: usize = 1 << 20;
/// Shapes that no block has any longer are dropped when there are more of them than this.
const IDLE_SHAPES: usize = 1 << 16;

/// Origins found without a look into the table of all.
const RECENT_ORIGINS: usize = 64;

/// Collects charges of one run.
pub struct Recorder {
    origins: Vec<Origin>,
    origin_ids: FxHashMap<Origin, OriginId>,
    /// Origins that were asked for last, by few bits of their space.
    recent_origins: [Option<(Origin, OriginId)>; RECENT_ORIGINS],
    shapes: Vec<Shape>,
    shape_ids: HashTable<u32>,
    /// Which shapes were executed since addresses are kept, and how many these are.
    used: Vec<bool>,
    shapes_used: usize,
    coarseness: Coarseness,
    most_recorded: usize,
    most_shapes: usize,
    /// More entries than this make an area dense; and how many areas are.
    dense_from: usize,
    dense: usize,
    /// Entries of the regions that are not current.
    elsewhere: usize,
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
            shape_ids: HashTable::new(),
            used: Vec::new(),
            shapes_used: 0,
            coarseness: Coarseness::default(),
            most_recorded: MOST_RECORDED,
            most_shapes: MOST_SHAPES,
            dense_from: coarse::DENSE,
            dense: 0,
            elsewhere: 0,
            now: Tables::default(),
            others: vec![Tables::default()],
            regions: vec![Region::default()],
            current: 0,
            begun: Vec::new(),
        }
    }
}

impl Recorder {
    #[cfg(test)]
    pub(crate) fn with_room(most_recorded: usize) -> Self {
        Self { most_recorded, ..Self::default() }
    }

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
        let hash = |shape: &Shape| FxBuildHasher.hash_one(shape);
        let shapes = &self.shapes;
        if let Some(&id) = self.shape_ids.find(hash(shape), |&at| shapes[at as usize] == *shape) {
            return ShapeId(id);
        }
        let id = self.shapes.len() as u32;
        self.shapes.push(shape.clone());
        let shapes = &self.shapes;
        self.shape_ids.insert_unique(hash(shape), id, |&at| hash(&shapes[at as usize]));
        ShapeId(id)
    }

    /// Forgets the shapes that were not executed, if they are many. No number of a shape from before may be used again.
    pub fn forget_shapes(&mut self) {
        if self.shapes.len() <= self.shapes_used + IDLE_SHAPES {
            return;
        }
        let shapes = std::mem::take(&mut self.shapes);
        let used = std::mem::take(&mut self.used);
        self.shape_ids.clear();
        self.shapes_used = 0;
        let mut renumbered = vec![ShapeId(0); shapes.len()];
        for (at, shape) in shapes.into_iter().enumerate().filter(|(at, _)| used.get(*at) == Some(&true)) {
            renumbered[at] = self.shape(&shape);
            self.use_shape(renumbered[at]);
        }
        let renumber = |_: &mut Self, tables: &mut Tables| {
            for (origin, rip, shape, runs) in std::mem::take(&mut tables.blocks).drain() {
                let shape = renumbered[shape.0 as usize];
                tables.blocks.add(origin, rip, shape, runs);
            }
        };
        self.each_table(renumber);
    }

    fn use_shape(&mut self, shape: ShapeId) {
        if self.used.len() <= shape.0 as usize {
            self.used.resize(shape.0 as usize + 1, false);
        }
        self.shapes_used += usize::from(!std::mem::replace(&mut self.used[shape.0 as usize], true));
    }

    /// Lends each region's tables.
    fn each_table(&mut self, mut each: impl FnMut(&mut Self, &mut Tables)) {
        for id in 0..self.others.len() {
            let mut tables = std::mem::take(if id == self.current { &mut self.now } else { &mut self.others[id] });
            each(self, &mut tables);
            *(if id == self.current { &mut self.now } else { &mut self.others[id] }) = tables;
        }
    }

    /// Adds `runs` executions of the block at `rip`.
    pub fn add_block(&mut self, origin: OriginId, rip: u64, shape: ShapeId, runs: u64) {
        if runs == 0 {
            return;
        }
        if self.coarseness != Coarseness::default() {
            if self.lend_now(|recorder, now| recorder.put_block(now, origin, rip, shape, runs)) {
                self.fit();
            }
        } else if self.now.blocks.add(origin, rip, shape, runs) {
            self.use_shape(shape);
            self.fit();
        }
    }

    /// Adds an event, with what it cost.
    pub fn add(&mut self, origin: OriginId, rip: u64, kind: Kind, count: u64, ticks: Ticks) {
        let amount = Amount { count, ticks };
        if amount == Amount::default() {
            return;
        }
        if self.coarseness != Coarseness::default() {
            if self.lend_now(|recorder, now| recorder.put_event(now, origin, rip, kind, amount)) {
                self.fit();
            }
        } else if self.now.events.add(origin, rip, kind, amount) {
            self.fit();
        }
    }

    fn lend_now(&mut self, put: impl FnOnce(&mut Self, &mut Tables) -> bool) -> bool {
        let mut now = std::mem::take(&mut self.now);
        let new = put(self, &mut now);
        self.now = now;
        new
    }

    fn coarse_origin(&mut self, id: OriginId, rip: u64) -> OriginId {
        let origin = self.origins[id.0 as usize];
        let coarse = self.coarseness.origin(origin, rip);
        if coarse == origin { id } else { self.origin(coarse) }
    }

    /// The range that stands for an address, if it is not kept.
    fn range_in(&self, tables: &Tables, id: OriginId, rip: u64) -> Option<Range> {
        let range = self.coarseness.range(self.origins[id.0 as usize], rip);
        let dense = || self.coarseness.folds_dense() && tables.is_dense(id, rip);
        range.or_else(|| dense().then(|| Range::page(rip)))
    }

    /// Adds executions of a block as they are told apart now. Returns whether anything about it is new.
    fn put_block(&mut self, tables: &mut Tables, id: OriginId, rip: u64, shape: ShapeId, runs: u64) -> bool {
        let id = self.coarse_origin(id, rip);
        let shapes = self.shapes_used;
        if self.coarseness.keeps_shapes() {
            self.use_shape(shape);
        }
        let Some(range) = self.range_in(tables, id, rip) else {
            let new = tables.blocks.add(id, rip, shape, runs);
            if new && self.coarseness.folds_dense() {
                tables.count(id, rip);
            }
            return new;
        };
        let before = tables.classes.len();
        for &(class, count) in &self.shapes[shape.0 as usize] {
            let sum = tables.classes.entry((range.start, id, class)).or_default();
            *sum = sum.saturating_add(u64::from(count).saturating_mul(runs));
        }
        tables.classes.len() != before || self.shapes_used != shapes
    }

    /// The same for events.
    fn put_event(&mut self, tables: &mut Tables, id: OriginId, rip: u64, kind: Kind, amount: Amount) -> bool {
        let (id, kind) = (self.coarse_origin(id, rip), self.coarseness.kind(kind));
        let range = self.range_in(tables, id, rip);
        let new = tables.events.add(id, range.map_or(rip, |range| range.start), kind, amount);
        if new && range.is_none() && self.coarseness.folds_dense() {
            tables.count(id, rip);
        }
        new
    }

    fn entries(&self) -> usize {
        self.now.len() + self.elsewhere
    }

    /// Tells less apart until everything fits.
    fn fit(&mut self) {
        while self.entries() > self.most_recorded || self.too_many_shapes() {
            if self.folds_enough() {
                return;
            }
            let Some(next) = self.coarseness.next() else { return };
            self.coarseness = next;
            self.rebuild();
        }
    }

    fn too_many_shapes(&self) -> bool {
        self.coarseness.keeps_shapes() && self.shapes_used > self.most_shapes
    }

    /// Folds the areas that have become dense. Returns whether that is enough, and will have been whatever comes in which order.
    fn folds_enough(&mut self) -> bool {
        if !self.coarseness.folds_dense() {
            return false;
        }
        let from = self.dense_from;
        let mut more = false;
        self.each_table(|_, tables| {
            for count in tables.areas.values_mut().filter(|count| count.is_some_and(|count| count as usize > from)) {
                *count = None;
                more = true;
            }
        });
        if more {
            self.rebuild();
        }
        self.entries() + self.dense * self.dense_from <= self.most_recorded && !self.too_many_shapes()
    }

    /// Ends the recording: what is told apart is now decided. Every reader of a recorder needs that first.
    pub fn settle(&mut self) {
        while self.coarseness.folds_dense() && !self.folds_enough() {
            let Some(next) = self.coarseness.next() else { return };
            self.coarseness = next;
            self.rebuild();
            self.fit();
        }
    }

    /// Sorts everything in anew.
    #[cold]
    fn rebuild(&mut self) {
        if !self.coarseness.keeps_shapes() {
            self.used.clear();
            self.shapes_used = 0;
        }
        self.dense = 0;
        self.each_table(|recorder, tables| {
            let Tables { blocks, events, classes, areas } = std::mem::take(tables);
            for (origin, area) in areas.into_iter().filter(|(_, count)| count.is_none()).map(|(area, _)| area) {
                let kept = recorder.coarseness.range(recorder.origins[origin.0 as usize], area * AREA).is_none();
                if kept && recorder.coarseness.folds_dense() {
                    tables.areas.insert((recorder.coarse_origin(origin, area * AREA), area), None);
                }
            }
            recorder.dense += tables.areas.len();
            for (origin, rip, shape, runs) in blocks.drain() {
                recorder.put_block(tables, origin, rip, shape, runs);
            }
            for (origin, rip, kind, amount) in events.iter() {
                recorder.put_event(tables, origin, rip, kind, amount);
            }
            for ((rip, origin, class), count) in classes {
                let origin = recorder.coarse_origin(origin, rip);
                let start = recorder.range_in(tables, origin, rip).map_or(rip, |range| range.start);
                let sum = tables.classes.entry((start, origin, class)).or_default();
                *sum = sum.saturating_add(count);
            }
        });
        let current = self.current;
        self.elsewhere = self.others.iter().enumerate().filter(|(id, _)| *id != current).map(|(_, t)| t.len()).sum();
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
        self.elsewhere += self.now.len();
        std::mem::swap(&mut self.now, &mut self.others[self.current]);
        std::mem::swap(&mut self.now, &mut self.others[to]);
        self.elsewhere -= self.now.len();
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

    /// How coarsely addresses were told apart.
    pub fn coarseness(&self) -> Coarseness {
        self.coarseness
    }

    /// The range that an address of a region and an origin stands for, if it stands for more than itself.
    pub fn range(&self, region: usize, origin: OriginId, rip: u64) -> Option<Range> {
        let tables = if region == self.current { &self.now } else { self.others.get(region)? };
        self.range_in(tables, origin, rip)
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

    /// Instructions of blocks whose addresses were not kept, in no particular order: (region, origin, first address of the
    /// range, class, how many).
    pub fn classes(&self) -> impl Iterator<Item = (usize, OriginId, u64, Class, u64)> + '_ {
        self.tables().flat_map(|(region, tables)| {
            tables.classes.iter().map(move |((rip, origin, class), count)| (region, *origin, *rip, *class, *count))
        })
    }
}

fn region_name(name: &str) -> String {
    name.trim().chars().filter(|c| !c.is_control()).take(LONGEST_REGION_NAME).collect()
}

#[cfg(test)]
mod tests;
