//! The recorder: collects charges while a machine runs.
//!
//! Ordinary instructions arrive as executions of blocks: a block has a [`Shape`] (its instructions by class: number and ticks), and only
//! its executions are counted. Everything else arrives as single charges.
//!
//! A charge belongs to an [`Origin`]: privilege, address space, task, and the task's *region of interest*, a part of the run that the guest named.
//! Origins are interned, so that the cost of recording does not depend on their size.
//!
//! A guest decides how many addresses it executes. Beyond [`MOST_RECORDED`] entries, the recorder distinguishes fewer of them, in the
//! steps of [`crate::coarse`]; totals stay exact.

mod saved;
mod tables;

use crate::branch::{Branch, Branches, Taken};
use crate::charge::{AddressSpace, Amount, Origin, OriginId, RegionId, Shape, ShapeId};
use crate::coarse::{self, AREA, Coarseness, Range};
use crate::stack::{Files, Interned, Keeps, Record, StackId, Stacks, What};
use crate::task::{Task, TaskId, Tasks};
use crate::{Class, Kind, Ticks};
use hashbrown::HashTable;
use rustc_hash::{FxBuildHasher, FxHashMap};
pub use saved::{Saved, SavedError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::hash::BuildHasher;
use tables::Tables;

/// A region of interest, named by the guest: the work of a task and its descendants in a stretch of time, or that of all processors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// Name; empty for the charges outside all regions.
    pub name: String,
    /// Number of times the region began.
    pub begun: u64,
    /// Total duration in ticks, on the clock of the processor that reported it.
    pub elapsed: Ticks,
}

/// Largest number of regions. All further names share one region.
pub const MOST_REGIONS: usize = 256;
/// The name of the region that stands for those beyond [`MOST_REGIONS`].
const FURTHER_REGIONS: &str = "(further regions)";
/// Longest name of a region, in characters.
pub const LONGEST_REGION_NAME: usize = 64;
/// Largest number of distinct address spaces; further ones are charged as space 0. A guest decides how many it has.
const MOST_SPACES: usize = 1 << 20;

/// Largest number of blocks and events by address and task. Beyond it, tasks of one name are merged. The limit is lower than a ledger's
/// capacity, because thousands of short tasks would displace addresses there.
pub const MOST_BY_TASK: usize = 3 << 19;
/// Largest number of blocks and events by address in memory, chosen so that a table of a power of two is full.
pub const MOST_RECORDED: usize = 7 << 20;
/// Largest number of block shapes.
pub const MOST_SHAPES: usize = 1 << 20;
/// Number of shapes beyond which unused ones are dropped.
const IDLE_SHAPES: usize = 1 << 16;

/// Size of the cache of recent origins.
const RECENT_ORIGINS: usize = 64;

/// The recorder of one run's charges.
pub struct Recorder {
    origins: Vec<Origin>,
    origin_ids: FxHashMap<Origin, OriginId>,
    /// Cache of recent origins, indexed by a few bits in which origins differ.
    recent_origins: [Option<(Origin, OriginId)>; RECENT_ORIGINS],
    shapes: Vec<Shape>,
    shape_ids: HashTable<u32>,
    /// Flags of the shapes that were executed since addresses are kept, and the number of these shapes.
    used: Vec<bool>,
    shapes_used: usize,
    coarseness: Coarseness,
    most_recorded: usize,
    most_shapes: usize,
    /// Number of entries beyond which an area is dense, and the number of dense areas.
    dense_from: usize,
    dense: usize,
    tables: Tables,
    branches: Branches,
    tasks: Tasks,
    regions: Vec<Region>,
    /// Settings for stacks. They follow from the machine's configuration and are not saved.
    keeps: Keeps,
    stacks: Interned,
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
            tables: Tables::default(),
            branches: Branches::default(),
            tasks: Tasks::default(),
            regions: vec![Region::default()],
            keeps: Keeps::default(),
            stacks: Interned::default(),
        }
    }
}

impl Recorder {
    #[cfg(test)]
    pub(crate) fn with_room(most_recorded: usize) -> Self {
        Self { most_recorded, ..Self::default() }
    }

    /// Returns the number of `origin`. Equal origins have equal numbers.
    #[inline]
    pub fn origin(&mut self, origin: Origin) -> OriginId {
        let Origin { level, ring, guest, space, task, .. } = origin;
        // The root tables of a program and of its kernel may be neighbours.
        let bits = space >> 12 ^ guest >> 11 ^ u64::from(ring) << 4 ^ u64::from(level) << 5 ^ u64::from(task.0);
        let slot = bits as usize % RECENT_ORIGINS;
        match self.recent_origins[slot] {
            Some((known, id)) if known == origin => id,
            _ => {
                let task = if self.coarseness.tells_tasks() { task } else { self.tasks.by_name(task) };
                let id = self.find_origin(Origin { task, ..origin });
                self.recent_origins[slot] = Some((origin, id));
                id
            }
        }
    }

    fn find_origin(&mut self, origin: Origin) -> OriginId {
        if let Some(id) = self.origin_ids.get(&origin) {
            return *id;
        }
        if origin.address_space() != AddressSpace::default() && self.origins.len() >= MOST_SPACES {
            return self.find_origin(Origin { guest: 0, space: 0, ..origin });
        }
        let id = OriginId(self.origins.len() as u32);
        self.origins.push(origin);
        self.origin_ids.insert(origin, id);
        id
    }

    /// Returns the number of `shape`. Equal shapes have equal numbers.
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

    /// Drops the shapes that were not executed, if there are many. Earlier shape numbers become invalid.
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
        for (origin, rip, shape, runs) in std::mem::take(&mut self.tables.blocks).drain() {
            self.tables.blocks.add(origin, rip, renumbered[shape.0 as usize], runs);
        }
    }

    fn use_shape(&mut self, shape: ShapeId) {
        if self.used.len() <= shape.0 as usize {
            self.used.resize(shape.0 as usize + 1, false);
        }
        self.shapes_used += usize::from(!std::mem::replace(&mut self.used[shape.0 as usize], true));
    }

    /// Adds `runs` executions of the block at `rip`.
    pub fn add_block(&mut self, origin: OriginId, rip: u64, shape: ShapeId, runs: u64) {
        if runs == 0 {
            return;
        }
        if self.coarseness != Coarseness::default() {
            if self.put_block(origin, rip, shape, runs) {
                self.fit();
            }
        } else if self.tables.blocks.add(origin, rip, shape, runs) {
            self.use_shape(shape);
            self.fit();
        }
    }

    /// Adds events with their cost.
    pub fn add(&mut self, origin: OriginId, rip: u64, kind: Kind, count: u64, ticks: Ticks) {
        let amount = Amount { count, ticks };
        if amount == Amount::default() {
            return;
        }
        if self.coarseness != Coarseness::default() {
            if self.put_event(origin, rip, kind, amount) {
                self.fit();
            }
        } else if self.tables.events.add(origin, rip, kind, amount) {
            self.fit();
        }
    }

    /// Counts an execution of an indirect branch; `missed` is true if it was mispredicted.
    pub fn add_branch(&mut self, origin: OriginId, branch: Branch, missed: bool) {
        let in_region = self.origins[origin.0 as usize].region != RegionId::default();
        self.branches.add(origin, in_region, branch, missed);
    }

    fn coarse_origin(&mut self, id: OriginId, rip: u64) -> OriginId {
        let origin = self.origins[id.0 as usize];
        let mut coarse = self.coarseness.origin(origin, rip);
        if !self.coarseness.tells_tasks() {
            coarse.task = self.tasks.by_name(coarse.task);
        }
        if coarse == origin { id } else { self.origin(coarse) }
    }

    /// Returns the range that an address of an origin is folded into, if any.
    pub fn range(&self, id: OriginId, rip: u64) -> Option<Range> {
        let range = self.coarseness.range(self.origins[id.0 as usize], rip);
        let dense = || self.coarseness.folds_dense() && self.tables.is_dense(id, rip);
        range.or_else(|| dense().then(|| Range::page(rip)))
    }

    /// Adds executions of a block at the current coarseness. Returns true if this created an entry.
    fn put_block(&mut self, id: OriginId, rip: u64, shape: ShapeId, runs: u64) -> bool {
        let id = self.coarse_origin(id, rip);
        let shapes = self.shapes_used;
        if self.coarseness.keeps_shapes() {
            self.use_shape(shape);
        }
        let Some(range) = self.range(id, rip) else {
            let new = self.tables.blocks.add(id, rip, shape, runs);
            if new && self.coarseness.folds_dense() {
                self.tables.count(id, rip);
            }
            return new;
        };
        let before = self.tables.classes.len();
        for &(class, count, ticks) in &self.shapes[shape.0 as usize] {
            let amount = Amount { count: u64::from(count).saturating_mul(runs), ticks: ticks.saturating_mul(runs) };
            self.tables.classes.entry((range.start, id, class)).or_default().add(amount);
        }
        self.tables.classes.len() != before || self.shapes_used != shapes
    }

    /// Adds events at the current coarseness. Returns true if this created an entry.
    fn put_event(&mut self, id: OriginId, rip: u64, kind: Kind, amount: Amount) -> bool {
        let (id, kind) = (self.coarse_origin(id, rip), self.coarseness.kind(kind));
        let range = self.range(id, rip);
        let new = self.tables.events.add(id, range.map_or(rip, |range| range.start), kind, amount);
        if new && range.is_none() && self.coarseness.folds_dense() {
            self.tables.count(id, rip);
        }
        new
    }

    /// Raises the coarseness until everything fits.
    fn fit(&mut self) {
        while self.tables.len() > self.most() || self.too_many_shapes() {
            if self.folds_enough() {
                return;
            }
            let Some(next) = self.coarseness.next() else { return };
            self.coarseness = next;
            self.rebuild();
        }
    }

    /// Returns the largest number of entries at the current coarseness.
    fn most(&self) -> usize {
        match self.coarseness.tells_tasks() {
            true => self.most_recorded.min(MOST_BY_TASK),
            false => self.most_recorded,
        }
    }

    fn too_many_shapes(&self) -> bool {
        self.coarseness.keeps_shapes() && self.shapes_used > self.most_shapes
    }

    /// Folds the dense areas. Returns true if that suffices, independently of the order of charges.
    fn folds_enough(&mut self) -> bool {
        if !self.coarseness.folds_dense() {
            return false;
        }
        let from = self.dense_from;
        let mut more = false;
        for count in self.tables.areas.values_mut().filter(|count| count.is_some_and(|count| count as usize > from)) {
            *count = None;
            more = true;
        }
        if more {
            self.rebuild();
        }
        self.tables.len() + self.dense * self.dense_from <= self.most_recorded && !self.too_many_shapes()
    }

    /// Ends the recording and fixes its coarseness. Call it before any method that reads the record.
    pub fn finish(&mut self) {
        while self.coarseness.folds_dense() && !self.folds_enough() {
            let Some(next) = self.coarseness.next() else { return };
            self.coarseness = next;
            self.rebuild();
            self.fit();
        }
    }

    /// Rebuilds all entries at the current coarseness.
    #[cold]
    fn rebuild(&mut self) {
        self.recent_origins = [None; RECENT_ORIGINS];
        if !self.coarseness.keeps_shapes() {
            self.used.clear();
            self.shapes_used = 0;
        }
        let Tables { blocks, events, classes, areas } = std::mem::take(&mut self.tables);
        for (origin, area) in areas.into_iter().filter(|(_, count)| count.is_none()).map(|(area, _)| area) {
            let kept = self.coarseness.range(self.origins[origin.0 as usize], area * AREA).is_none();
            if kept && self.coarseness.folds_dense() {
                let origin = self.coarse_origin(origin, area * AREA);
                self.tables.areas.insert((origin, area), None);
            }
        }
        self.dense = self.tables.areas.len();
        for (origin, rip, shape, runs) in blocks.drain() {
            self.put_block(origin, rip, shape, runs);
        }
        for (origin, rip, kind, amount) in events.iter() {
            self.put_event(origin, rip, kind, amount);
        }
        for ((rip, origin, class), amount) in classes {
            let origin = self.coarse_origin(origin, rip);
            let start = self.range(origin, rip).map_or(rip, |range| range.start);
            self.tables.classes.entry((start, origin, class)).or_default().add(amount);
        }
    }

    /// Sets the recorder's settings for stacks.
    pub fn keeping(self, keeps: Keeps) -> Self {
        Self { keeps, ..self }
    }

    /// Returns the recorder's settings for stacks.
    pub fn keeps(&self) -> Keeps {
        self.keeps
    }

    /// Returns the number of the stack with these frames, the innermost first. `whole` is false if further frames are missing.
    pub fn stack(&mut self, frames: &[u64], whole: bool) -> StackId {
        self.stacks.stack(frames, whole)
    }

    /// Returns the files of frames in files.
    pub fn files(&self) -> &Files {
        &self.stacks.files
    }

    /// Returns the number of a file, as [`Files::number`] does.
    pub fn file(&mut self, name: &[u8]) -> Option<u32> {
        self.stacks.files.number(name)
    }

    /// Returns the places in files that frames have in place of their addresses.
    pub fn frames_in_files(&self) -> BTreeSet<u64> {
        self.stacks.in_files()
    }

    /// Adds samples of a stack, which charge nothing.
    pub fn add_samples(&mut self, origin: OriginId, stack: StackId, count: u64) {
        let ticks = count.saturating_mul(self.keeps.interval);
        self.stacks.charge(origin, stack, What::Sample, Amount { count, ticks });
    }

    /// Adds the call stack of crossings that have been charged.
    pub fn add_crossing(&mut self, origin: OriginId, stack: StackId, kind: Kind, amount: Amount) {
        self.stacks.charge(origin, stack, What::Crossing(kind), amount);
    }

    /// Adds a record to the trace.
    pub fn trace(&mut self, record: Record<OriginId>) {
        self.stacks.record(record);
    }

    /// Returns the stacks for a ledger; `origin` maps a number to its origin.
    pub(crate) fn stacks(&self, origin: impl Fn(OriginId) -> Origin) -> Stacks {
        match self.keeps.is_nothing() {
            true => Stacks::default(),
            false => self.stacks.finish(self.keeps, origin),
        }
    }

    /// Returns the number of a task. Equal tasks have equal numbers.
    pub fn task(&mut self, task: Task) -> TaskId {
        self.tasks.number(task)
    }

    /// Returns the number of the region with a name. Unprintable characters are dropped from the name.
    pub fn region(&mut self, name: &str) -> RegionId {
        let mut name = region_name(name);
        if self.regions.len() >= MOST_REGIONS - 1 && self.regions.iter().all(|region| region.name != name) {
            name = FURTHER_REGIONS.to_owned();
        }
        let known = self.regions.iter().position(|region| region.name == name);
        let number = known.unwrap_or_else(|| {
            self.regions.push(Region { name, ..Region::default() });
            self.regions.len() - 1
        });
        RegionId(number as u16)
    }

    /// Returns the number of the region with a name, if there is one.
    pub fn known_region(&self, name: &str) -> Option<RegionId> {
        let name = region_name(name);
        let position = |name: &str| self.regions.iter().position(|region| region.name == name);
        position(&name).or_else(|| position(FURTHER_REGIONS)).map(|number| RegionId(number as u16))
    }

    /// Counts a start of a region.
    pub fn region_begins(&mut self, region: RegionId) {
        self.regions[usize::from(region.0)].begun += 1;
    }

    /// Counts the end of a region that began `elapsed` ticks ago. Number 0 counts time outside all regions.
    pub fn region_ends(&mut self, region: RegionId, elapsed: Ticks) {
        let sum = &mut self.regions[usize::from(region.0)].elapsed;
        *sum = sum.saturating_add(elapsed);
    }

    /// Returns the origins by number.
    pub fn origins(&self) -> &[Origin] {
        &self.origins
    }

    /// Returns the shapes by number.
    pub fn shapes(&self) -> &[Shape] {
        &self.shapes
    }

    /// Returns the regions by number; the first stands for all charges outside regions.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Returns the coarseness of the record.
    pub fn coarseness(&self) -> Coarseness {
        self.coarseness
    }

    /// Returns the tasks by number; the first stands for no task.
    pub fn tasks(&self) -> &[Task] {
        self.tasks.all()
    }

    /// Returns executed blocks in no particular order: (origin, address, shape, executions).
    pub fn blocks(&self) -> impl Iterator<Item = (OriginId, u64, ShapeId, u64)> + '_ {
        self.tables.blocks.iter()
    }

    /// Returns events in no particular order: (origin, address, kind, amount).
    pub fn events(&self) -> impl Iterator<Item = (OriginId, u64, Kind, Amount)> + '_ {
        self.tables.events.iter()
    }

    /// Returns indirect branches in no particular order.
    pub fn branches(&self) -> impl Iterator<Item = (OriginId, Branch, Taken)> + '_ {
        self.branches.iter()
    }

    /// Returns instructions of blocks whose addresses were not kept, in no particular order: (origin, first address of the range, class,
    /// amount).
    pub fn classes(&self) -> impl Iterator<Item = (OriginId, u64, Class, Amount)> + '_ {
        self.tables.classes.iter().map(|((rip, origin, class), amount)| (*origin, *rip, *class, *amount))
    }
}

fn region_name(name: &str) -> String {
    name.trim().chars().filter(|c| !c.is_control()).take(LONGEST_REGION_NAME).collect()
}

#[cfg(test)]
mod tests;
