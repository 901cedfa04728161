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
//!
//! Each processor of a machine has a recorder of its own. They number origins, shapes, tasks, regions and frames together
//! ([`Names`]), and one of them takes what the others have recorded ([`Recorder::take_from`]) before the record is read.

mod earlier;
mod names;
mod saved;
mod tables;

use crate::branch::{Branch, Branches, Taken};
use crate::charge::{Amount, Origin, OriginId, RegionId, Shape, ShapeId};
use crate::coarse::{self, AREA, Coarseness, HALF, Range};
use crate::stack::{Keeps, Record, StackId, Stacked, Stacks, What};
use crate::stays::{Entries, Entry, Recorded, Stay, Stays};
use crate::task::{Task, TaskId};
use crate::{Class, Kind, Ticks};
use earlier::Earlier;
pub use names::Names;
use rustc_hash::FxHashMap;
pub use saved::{Saved, SavedCharges, SavedError};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
/// Number of entries, branches and records of stacks from which a recorder hands over what it has recorded, see
/// [`Recorder::is_long`].
const LONG: usize = 1 << 16;

/// Size of the cache of recent origins.
const RECENT_ORIGINS: usize = 64;

/// The recorder of a processor's charges.
pub struct Recorder {
    names: Arc<Mutex<Names>>,
    /// Cache of recent origins, indexed by a few bits in which origins differ.
    recent_origins: [Option<(Origin, OriginId)>; RECENT_ORIGINS],
    /// Flags of the shapes that were executed since addresses are kept, and the number of these shapes.
    used: Vec<bool>,
    shapes_used: usize,
    coarseness: Coarseness,
    /// Origins that are charged in place of others at this coarseness: those of addresses in each half, by number.
    coarse_origins: Vec<[Option<OriginId>; 2]>,
    most_recorded: usize,
    most_shapes: usize,
    /// Number of entries beyond which an area is dense, and the number of dense areas.
    dense_from: usize,
    dense: usize,
    tables: Tables,
    /// Charges of a saved record that this one continues, until they are needed, and the reason for which there are none.
    earlier: Option<Earlier>,
    damage: Option<SavedError>,
    branches: Branches,
    /// Settings for stacks. They follow from the machine's configuration and are not saved.
    keeps: Keeps,
    stacks: Stacked,
    stays: Recorded,
}

fn lock(names: &Mutex<Names>) -> MutexGuard<'_, Names> {
    // A number is given before it is used, so that whoever has panicked has left valid ones.
    names.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for Recorder {
    fn default() -> Self {
        Self {
            names: Arc::default(),
            recent_origins: [None; RECENT_ORIGINS],
            used: Vec::new(),
            shapes_used: 0,
            coarseness: Coarseness::default(),
            coarse_origins: Vec::new(),
            most_recorded: MOST_RECORDED,
            most_shapes: MOST_SHAPES,
            dense_from: coarse::DENSE,
            dense: 0,
            tables: Tables::default(),
            earlier: None,
            damage: None,
            branches: Branches::default(),
            keeps: Keeps::default(),
            stacks: Stacked::default(),
            stays: Recorded::default(),
        }
    }
}

impl Recorder {
    #[cfg(test)]
    pub(crate) fn with_room(most_recorded: usize) -> Self {
        Self { most_recorded, ..Self::default() }
    }

    /// Creates an empty recorder for another processor of the same machine, with the same settings and the same numbers.
    pub fn another(&self) -> Self {
        let Self { coarseness, most_recorded, most_shapes, dense_from, keeps, .. } = *self;
        let names = self.names.clone();
        Self { names, coarseness, most_recorded, most_shapes, dense_from, keeps, ..Self::default() }
    }

    /// Returns what the machine's recorders number together. While the result lives, only methods that neither number anything nor
    /// look a number up may be called, such as [`Self::blocks`] and [`Self::events`].
    pub fn names(&self) -> MutexGuard<'_, Names> {
        lock(&self.names)
    }

    /// Returns true if the recorder of a processor that is not the machine's first should hand over its record: so the memory
    /// of all recorders has the bound of one, and the record of the whole machine decides how coarse it is.
    pub fn is_long(&self) -> bool {
        self.tables.len() > LONG || self.branches.len() > LONG || self.stacks.len() > LONG || self.stays.len() > LONG
    }

    /// Moves the record of another recorder of the same machine to the end of this one, and makes the other as coarse as this
    /// one.
    pub fn take_from(&mut self, other: &mut Self) {
        for (origin, blocks) in std::mem::take(&mut other.tables.blocks).drain() {
            self.add_blocks(origin, &blocks);
        }
        let Tables { events, classes, .. } = std::mem::take(&mut other.tables);
        for (origin, rip, kind, amount) in events.iter() {
            self.add(origin, rip, kind, amount.count, amount.ticks);
        }
        if !classes.is_empty() {
            self.coarsen(other.coarseness);
            self.put_classes(classes);
            self.fit();
        }
        for (origin, branch, taken) in other.branches.take() {
            self.put_branch(origin, branch, taken);
        }
        self.stacks.take_from(&mut other.stacks, &mut lock(&self.names).frames);
        self.put_stays(other.stays.take());
        other.forget_use();
        other.dense = 0;
        other.recent_origins = [None; RECENT_ORIGINS];
        other.coarse_origins.clear();
        other.coarseness = self.coarseness;
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
                let task = if self.coarseness.tells_tasks() { task } else { self.by_name(task) };
                let id = self.names().origin(Origin { task, ..origin });
                self.recent_origins[slot] = Some((origin, id));
                id
            }
        }
    }

    /// Returns the task that stands for all that are called as this one.
    fn by_name(&self, task: TaskId) -> TaskId {
        self.names().tasks.by_name(task)
    }

    fn origin_of(&self, id: OriginId) -> Origin {
        self.names().origins[id.0 as usize]
    }

    /// Returns the number of `shape`. Equal shapes have equal numbers.
    pub fn shape(&self, shape: &Shape) -> ShapeId {
        self.names().shape(shape)
    }

    /// Drops the shapes that were not executed, if there are many. Their numbers become invalid.
    pub fn forget_shapes(&self) {
        self.names().forget_shapes();
    }

    fn use_shape(&mut self, shape: ShapeId) {
        if self.used.len() <= shape.0 as usize {
            self.used.resize(shape.0 as usize + 1, false);
        }
        if !std::mem::replace(&mut self.used[shape.0 as usize], true) {
            self.shapes_used += 1;
            self.names().use_shape(shape, true);
        }
    }

    /// Records that this recorder has no executions of any shape.
    fn forget_use(&mut self) {
        let used = std::mem::take(&mut self.used);
        let mut names = self.names();
        for at in (0..used.len()).filter(|at| used[*at]) {
            names.use_shape(ShapeId(at as u32), false);
        }
        drop(names);
        self.shapes_used = 0;
    }

    /// Adds `runs` executions of the block at `rip`.
    pub fn add_block(&mut self, origin: OriginId, rip: u64, shape: ShapeId, runs: u64) {
        self.add_blocks(origin, &[(rip, shape, runs)]);
    }

    /// Adds executions of blocks: their addresses, shapes and numbers of executions. Many at once take less time.
    pub fn add_blocks(&mut self, origin: OriginId, blocks: &[(u64, ShapeId, u64)]) {
        if self.put_blocks(origin, blocks) {
            self.fit();
        }
    }

    /// Adds executions of blocks at the current coarseness. Returns true if this created entries.
    fn put_blocks(&mut self, origin: OriginId, blocks: &[(u64, ShapeId, u64)]) -> bool {
        let before = (self.tables.len(), self.shapes_used);
        let executed = blocks.iter().copied().filter(|block| block.2 != 0);
        if self.coarseness == Coarseness::default() {
            self.keep_blocks(origin, executed);
        } else {
            for half in [0, HALF] {
                let mut kept: Vec<_> = executed.clone().filter(|block| block.0 & HALF == half).collect();
                if !kept.is_empty() {
                    let origin = self.coarse_origin(origin, half);
                    if !self.coarseness.keeps_addresses() {
                        kept.retain(|block| !self.fold_block(origin, *block));
                    }
                    self.keep_blocks(origin, kept.into_iter());
                }
            }
        }
        (self.tables.len(), self.shapes_used) != before
    }

    /// Adds executions of blocks that are kept as they are.
    fn keep_blocks(&mut self, origin: OriginId, blocks: impl Iterator<Item = (u64, ShapeId, u64)> + Clone) {
        blocks.clone().for_each(|block| self.use_shape(block.1));
        let Tables { blocks: runs, areas, .. } = &mut self.tables;
        let counts_areas = self.coarseness.folds_dense();
        runs.add(origin, blocks, |rip| {
            if counts_areas {
                tables::count(areas, origin, rip);
            }
        });
    }

    /// Adds executions of a block to the range that its address is folded into. Returns false if there is none.
    fn fold_block(&mut self, id: OriginId, (rip, shape, runs): (u64, ShapeId, u64)) -> bool {
        let Some(range) = self.range(id, rip) else { return false };
        if self.coarseness.keeps_shapes() {
            self.use_shape(shape);
        }
        for &(class, count, ticks) in &lock(&self.names).shapes[shape.0 as usize] {
            let amount = Amount { count: u64::from(count).saturating_mul(runs), ticks: ticks.saturating_mul(runs) };
            self.tables.classes.entry((range.start, id, class)).or_default().add(amount);
        }
        true
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
        self.put_branch(origin, branch, Taken { count: 1, missed: u64::from(missed) });
    }

    fn put_branch(&mut self, origin: OriginId, branch: Branch, taken: Taken) {
        let in_region = self.origin_of(origin).region != RegionId::default();
        self.branches.add(origin, in_region, branch, taken);
    }

    fn coarse_origin(&mut self, id: OriginId, rip: u64) -> OriginId {
        let half = usize::from(rip & HALF != 0);
        if let Some(known) = self.coarse_origins.get(id.0 as usize).and_then(|halves| halves[half]) {
            return known;
        }
        let origin = self.origin_of(id);
        let mut coarse = self.coarseness.origin(origin, rip);
        if !self.coarseness.tells_tasks() {
            coarse.task = self.by_name(coarse.task);
        }
        let found = if coarse == origin { id } else { self.origin(coarse) };
        if self.coarse_origins.len() <= id.0 as usize {
            self.coarse_origins.resize(id.0 as usize + 1, [None; 2]);
        }
        self.coarse_origins[id.0 as usize][half] = Some(found);
        found
    }

    /// Returns the range that an address of an origin is folded into, if any.
    pub fn range(&self, id: OriginId, rip: u64) -> Option<Range> {
        if self.coarseness.keeps_addresses() {
            return None;
        }
        let range = self.coarseness.range(self.origin_of(id), rip);
        let dense = || self.coarseness.folds_dense() && self.tables.is_dense(id, rip);
        range.or_else(|| dense().then(|| Range::page(rip)))
    }

    /// Adds events at the current coarseness. Returns true if this created an entry.
    fn put_event(&mut self, id: OriginId, rip: u64, kind: Kind, amount: Amount) -> bool {
        let (id, kind) = (self.coarse_origin(id, rip), self.coarseness.kind(kind));
        let range = self.range(id, rip);
        let new = self.tables.events.add(id, range.map_or(rip, |range| range.start), kind, amount);
        if new && range.is_none() && self.coarseness.folds_dense() {
            tables::count(&mut self.tables.areas, id, rip);
        }
        new
    }

    /// Raises the coarseness until everything fits.
    fn fit(&mut self) {
        let earlier = self.earlier.as_ref().map_or(0, |earlier| earlier.charges);
        if self.tables.len().saturating_add(earlier) > self.most() || self.too_many_shapes() {
            self.complete();
        }
        while self.tables.len() > self.most() || self.too_many_shapes() {
            if self.folds_enough() {
                return;
            }
            let Some(next) = self.coarseness.next() else { return };
            self.coarsen(next);
        }
    }

    /// Records at a coarseness from now on, if it is higher than the current one.
    fn coarsen(&mut self, coarseness: Coarseness) {
        if self.coarseness < coarseness {
            self.complete();
            self.coarseness = coarseness;
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

    /// Lets a thread prepare the charges of a saved record that this one continues.
    pub fn begin(&mut self) {
        if let Some(earlier) = &mut self.earlier {
            earlier.begin();
        }
    }

    /// Adds the charges of a saved record that this one continues, if they are not there yet.
    pub fn complete(&mut self) {
        let Some(earlier) = self.earlier.take() else { return };
        match earlier.finish() {
            Ok(tables) => {
                let Tables { blocks, events, .. } = std::mem::replace(&mut self.tables, tables);
                // So far everything is exact: there are neither classes nor areas.
                for (origin, blocks) in blocks.drain() {
                    self.tables.blocks.add(origin, blocks.into_iter(), |_| ());
                }
                for (origin, rip, kind, amount) in events.iter() {
                    self.tables.events.add(origin, rip, kind, amount);
                }
            }
            Err(damage) => self.damage = Some(damage),
        }
    }

    /// Returns an error if the charges of a saved record that this one continues were damaged.
    pub fn is_whole(&self) -> Result<(), SavedError> {
        self.damage.map_or(Ok(()), Err)
    }

    /// Ends the recording and fixes its coarseness. Call it before any method that reads the record.
    pub fn finish(&mut self) {
        self.complete();
        while self.coarseness.folds_dense() && !self.folds_enough() {
            let Some(next) = self.coarseness.next() else { return };
            self.coarsen(next);
            self.fit();
        }
    }

    /// Rebuilds all entries at the current coarseness.
    #[cold]
    fn rebuild(&mut self) {
        self.recent_origins = [None; RECENT_ORIGINS];
        self.coarse_origins.clear();
        if !self.coarseness.keeps_shapes() {
            self.forget_use();
        }
        let Tables { blocks, events, classes, areas } = std::mem::take(&mut self.tables);
        for (origin, area) in areas.into_iter().filter(|(_, count)| count.is_none()).map(|(area, _)| area) {
            let kept = self.coarseness.range(self.origin_of(origin), area * AREA).is_none();
            if kept && self.coarseness.folds_dense() {
                let origin = self.coarse_origin(origin, area * AREA);
                self.tables.areas.insert((origin, area), None);
            }
        }
        self.dense = self.tables.areas.len();
        for (origin, blocks) in blocks.drain() {
            self.put_blocks(origin, &blocks);
        }
        for (origin, rip, kind, amount) in events.iter() {
            self.put_event(origin, rip, kind, amount);
        }
        self.put_classes(classes);
        let stays = self.stays.take();
        self.put_stays(stays);
    }

    /// Adds instructions of blocks without addresses at the current coarseness.
    fn put_classes(&mut self, classes: FxHashMap<(u64, OriginId, Class), Amount>) {
        for ((rip, origin, class), amount) in classes {
            let origin = self.coarse_origin(origin, rip);
            let start = self.range(origin, rip).map_or(rip, |range| range.start);
            self.tables.classes.entry((start, origin, class)).or_default().add(amount);
        }
    }

    /// Adds a stay in the kernel, which charges nothing. `nested` is true if another stay contains it.
    pub fn add_stay(&mut self, origin: OriginId, entry: Entry, stay: Stay, nested: bool) {
        let origin =
            if self.coarseness == Coarseness::default() { origin } else { self.coarse_origin(origin, u64::MAX) };
        self.stays.add(origin, entry, stay, nested);
    }

    /// Adds stays at the current coarseness.
    fn put_stays(&mut self, all: Vec<((OriginId, Entry), Stays)>) {
        let mut stays = std::mem::take(&mut self.stays);
        stays.put(all, |origin| self.coarse_origin(origin, u64::MAX));
        self.stays = stays;
    }

    /// Returns the entries for a ledger; `origin` maps a number to its origin.
    pub(crate) fn entries(&self, origin: impl Fn(OriginId) -> Origin) -> Entries {
        self.stays.finish(origin)
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
    pub fn stack(&self, frames: &[u64], whole: bool) -> StackId {
        self.names().frames.stack(frames, whole)
    }

    /// Returns the number of a file, as [`crate::stack::Files::number`] does.
    pub fn file(&self, name: &[u8]) -> Option<u32> {
        self.names().frames.files.number(name)
    }

    /// Adds samples of a stack, which charge nothing.
    pub fn add_samples(&mut self, origin: OriginId, stack: StackId, count: u64) {
        let ticks = count.saturating_mul(self.keeps.interval);
        self.add_stack(origin, stack, What::Sample, Amount { count, ticks });
    }

    /// Adds the call stack of crossings that have been charged.
    pub fn add_crossing(&mut self, origin: OriginId, stack: StackId, kind: Kind, amount: Amount) {
        self.add_stack(origin, stack, What::Crossing(kind), amount);
    }

    fn add_stack(&mut self, origin: OriginId, stack: StackId, what: What, amount: Amount) {
        let mut names = lock(&self.names);
        self.stacks.charge(origin, stack, what, amount, &mut names.frames);
    }

    /// Adds a record to the trace.
    pub fn trace(&mut self, record: Record<OriginId>) {
        self.stacks.record(record);
    }

    /// Returns the stacks for a ledger; `origin` maps a number to its origin.
    pub(crate) fn stacks(&self, origin: impl Fn(OriginId) -> Origin) -> Stacks {
        match self.keeps.is_nothing() {
            true => Stacks::default(),
            false => self.stacks.finish(&self.names().frames, self.keeps, origin),
        }
    }

    /// Returns the number of a task. Equal tasks have equal numbers.
    pub fn task(&self, task: Task) -> TaskId {
        self.names().task(task)
    }

    /// Returns the number of the region with a name. Unprintable characters are dropped from the name.
    pub fn region(&self, name: &str) -> RegionId {
        self.names().region(name)
    }

    /// Returns the number of the region with a name, if there is one.
    pub fn known_region(&self, name: &str) -> Option<RegionId> {
        self.names().known_region(name)
    }

    /// Counts a start of a region.
    pub fn region_begins(&self, region: RegionId) {
        self.names().region_begins(region);
    }

    /// Counts the end of a region that began `elapsed` ticks ago. Number 0 counts time outside all regions.
    pub fn region_ends(&self, region: RegionId, elapsed: Ticks) {
        self.names().region_ends(region, elapsed);
    }

    /// Returns the coarseness of the record.
    pub fn coarseness(&self) -> Coarseness {
        self.coarseness
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

#[cfg(test)]
mod tests;
