//! The recorder: collects charges while a machine runs.
//!
//! Ordinary instructions arrive as runs of blocks: a block has a [`Shape`] (how many instructions of which class), and
//! only its executions are counted. Everything else arrives as single charges.
//!
//! Who is charged is an [`Origin`]: privilege, address space, task, and the *region of interest* that the task is in, a part of the run that
//! the guest gave a name. Origins are interned, so that a charge costs the same however much they say.
//!
//! A guest decides how many addresses it executes. Beyond [`MOST_RECORDED`] entries they are told apart less and less, in
//! the steps of [`coarse`]; what was charged in all stays exact.

pub mod coarse;
mod saved;
mod tables;

use crate::branch::{Branch, Branches, Taken};
use crate::stack::{Interned, Keeps, Record, StackId, Stacks, What};
use crate::task::{Context, Task, TaskId, Tasks};
use crate::{Class, Kind, Ticks};
use coarse::{AREA, Coarseness, Range};
use hashbrown::HashTable;
use rustc_hash::{FxBuildHasher, FxHashMap};
pub use saved::{Saved, SavedError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::hash::BuildHasher;
use tables::Tables;

/// Who is charged, apart from the instruction's address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Origin {
    /// The region of interest that the task is in.
    pub region: RegionId,
    /// Virtualization level: 0 the machine itself (host), 1 its guest, 2 a nested guest.
    pub level: u8,
    /// Privilege ring, 0 to 3.
    pub ring: u8,
    /// What the processor does besides its task.
    pub context: Context,
    /// The guest's current task.
    pub task: TaskId,
    /// Which guest of a hypervisor that runs on the machine: the physical address of the root of its EPT, or of its VMCS if it has no EPT. 0 for
    /// all other code, that of the guest of the board's own hypervisor too.
    pub guest: u64,
    /// Address space: the physical address of the root page table (CR3 without its low 12 bits), or 0 without paging.
    pub space: u64,
}

/// From where an address is seen: the same one may be another function in each guest and in each program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AddressSpace {
    /// As [`Origin::guest`].
    pub guest: u64,
    /// As [`Origin::space`]; as what a symbol belongs to, 0 stands for all of the guest.
    pub root: u64,
}

impl AddressSpace {
    /// All address spaces of a guest; with 0, of what is no such guest.
    pub fn all_of(guest: u64) -> Self {
        Self { guest, root: 0 }
    }

    /// One that is no guest's.
    pub fn of(root: u64) -> Self {
        Self { guest: 0, root }
    }

    /// Where symbols of an address that is seen from here may be, the first before the second.
    pub(crate) fn candidates(self) -> [Self; 2] {
        [self, Self::all_of(self.guest)]
    }
}

impl Origin {
    /// Code of no known task, in no region.
    pub fn new(level: u8, ring: u8, space: u64) -> Self {
        Self { level, ring, space, ..Self::default() }
    }

    /// From where addresses are seen.
    pub fn address_space(&self) -> AddressSpace {
        AddressSpace { guest: self.guest, root: self.space }
    }

    /// The same without what a guest has many of: its guests, its address space and its task.
    pub(crate) fn without_place(self) -> Self {
        Self { guest: 0, space: 0, task: TaskId(0), ..self }
    }
}

/// An interned [`Origin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OriginId(pub u32);

/// An interned [`Shape`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ShapeId(pub u32);

/// Instructions of a block by class, sorted by class.
pub type Shape = Vec<(Class, u32)>;

/// A count and what it cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Amount {
    /// How often.
    pub count: u64,
    /// Ticks charged in all.
    pub ticks: Ticks,
}

/// A part of the run that the guest gave a name: what a task and its descendants did in a stretch of time, or all that processors did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// Its name; empty for what is in no region.
    pub name: String,
    /// How often it was begun.
    pub begun: u64,
    /// How long it lasted from beginnings to ends, in ticks of the clock of the processor that said so.
    pub elapsed: Ticks,
}

/// A number of a [`Region`]; 0 is what is in none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RegionId(pub u16);

/// The most regions of different names; all further ones are charged as one.
pub const MOST_REGIONS: usize = 256;
/// The name of the region that stands for those beyond [`MOST_REGIONS`].
const FURTHER_REGIONS: &str = "(further regions)";
/// The longest name of a region, in characters.
pub const LONGEST_REGION_NAME: usize = 64;
/// The most address spaces told apart; further ones are charged as space 0. A guest decides how many it has.
const MOST_SPACES: usize = 1 << 20;

/// The most blocks and events by address and task that a run keeps; where there are more, tasks of one name are no longer told apart. It
/// is less than what a ledger has room for: short tasks by the thousand would displace addresses there.
pub const MOST_BY_TASK: usize = 3 << 19;
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
    /// Origins that were asked for last, by few bits of what they differ in.
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
    tables: Tables,
    branches: Branches,
    tasks: Tasks,
    regions: Vec<Region>,
    /// What is kept of stacks. It follows from how the machine is made, and is not saved.
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

    /// The number of `origin`, the same for equal origins.
    #[inline]
    pub fn origin(&mut self, origin: Origin) -> OriginId {
        let Origin { level, ring, guest, space, task, .. } = origin;
        // The root tables of a program and of the kernel that serves it may be neighbours.
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

    /// Adds an event, with what it cost.
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

    /// Counts an execution of an indirect branch; `missed`: it was not predicted.
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

    /// The range that an address of an origin stands for, if it stands for more than itself.
    pub fn range(&self, id: OriginId, rip: u64) -> Option<Range> {
        let range = self.coarseness.range(self.origins[id.0 as usize], rip);
        let dense = || self.coarseness.folds_dense() && self.tables.is_dense(id, rip);
        range.or_else(|| dense().then(|| Range::page(rip)))
    }

    /// Adds executions of a block as they are told apart now. Returns whether anything about it is new.
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
        for &(class, count) in &self.shapes[shape.0 as usize] {
            let sum = self.tables.classes.entry((range.start, id, class)).or_default();
            *sum = sum.saturating_add(u64::from(count).saturating_mul(runs));
        }
        self.tables.classes.len() != before || self.shapes_used != shapes
    }

    /// The same for events.
    fn put_event(&mut self, id: OriginId, rip: u64, kind: Kind, amount: Amount) -> bool {
        let (id, kind) = (self.coarse_origin(id, rip), self.coarseness.kind(kind));
        let range = self.range(id, rip);
        let new = self.tables.events.add(id, range.map_or(rip, |range| range.start), kind, amount);
        if new && range.is_none() && self.coarseness.folds_dense() {
            self.tables.count(id, rip);
        }
        new
    }

    /// Tells less apart until everything fits.
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

    /// The most entries for what is told apart now.
    fn most(&self) -> usize {
        match self.coarseness.tells_tasks() {
            true => self.most_recorded.min(MOST_BY_TASK),
            false => self.most_recorded,
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
        for count in self.tables.areas.values_mut().filter(|count| count.is_some_and(|count| count as usize > from)) {
            *count = None;
            more = true;
        }
        if more {
            self.rebuild();
        }
        self.tables.len() + self.dense * self.dense_from <= self.most_recorded && !self.too_many_shapes()
    }

    /// Ends the recording: what is told apart is now decided. Every reader of a recorder needs that first.
    pub fn finish(&mut self) {
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
        for ((rip, origin, class), count) in classes {
            let origin = self.coarse_origin(origin, rip);
            let start = self.range(origin, rip).map_or(rip, |range| range.start);
            let sum = self.tables.classes.entry((start, origin, class)).or_default();
            *sum = sum.saturating_add(count);
        }
    }

    /// The same, for a run that keeps these stacks.
    pub fn keeping(self, keeps: Keeps) -> Self {
        Self { keeps, ..self }
    }

    /// Which stacks the run keeps.
    pub fn keeps(&self) -> Keeps {
        self.keeps
    }

    /// The number of a stack of these frames, the innermost first. `whole`: there are no further ones.
    pub fn stack(&mut self, frames: &[u64], whole: bool) -> StackId {
        self.stacks.stack(frames, whole)
    }

    /// The numbers of the files in which stacks have frames.
    pub fn files_of_stacks(&self) -> BTreeSet<u32> {
        self.stacks.files()
    }

    /// Adds samples of a stack, which are no charge.
    pub fn add_samples(&mut self, origin: OriginId, stack: StackId, count: u64) {
        let ticks = count.saturating_mul(self.keeps.interval);
        self.stacks.charge(origin, stack, What::Sample, Amount { count, ticks });
    }

    /// Says from which stack crossings came that have been charged.
    pub fn add_crossing(&mut self, origin: OriginId, stack: StackId, kind: Kind, amount: Amount) {
        self.stacks.charge(origin, stack, What::Crossing(kind), amount);
    }

    /// Adds to the trace.
    pub fn trace(&mut self, record: Record<OriginId>) {
        self.stacks.record(record);
    }

    /// The stacks as a ledger has them; `origin` gives the origins of numbers.
    pub(crate) fn stacks(&self, origin: impl Fn(OriginId) -> Origin) -> Stacks {
        match self.keeps.is_nothing() {
            true => Stacks::default(),
            false => self.stacks.finish(self.keeps, origin),
        }
    }

    /// The number of a task, the same for equal tasks.
    pub fn task(&mut self, task: Task) -> TaskId {
        self.tasks.number(task)
    }

    /// The number of the region of a name. Characters that can't be printed are dropped from the name.
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

    /// The number of the region of a name, if there is one.
    pub fn known_region(&self, name: &str) -> Option<RegionId> {
        let name = region_name(name);
        let position = |name: &str| self.regions.iter().position(|region| region.name == name);
        position(&name).or_else(|| position(FURTHER_REGIONS)).map(|number| RegionId(number as u16))
    }

    /// Counts a beginning of a region.
    pub fn region_begins(&mut self, region: RegionId) {
        self.regions[usize::from(region.0)].begun += 1;
    }

    /// A region that began `elapsed` ticks ago has ended; number 0: it was a while outside all regions.
    pub fn region_ends(&mut self, region: RegionId, elapsed: Ticks) {
        let sum = &mut self.regions[usize::from(region.0)].elapsed;
        *sum = sum.saturating_add(elapsed);
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

    /// The tasks by number; the first stands for none.
    pub fn tasks(&self) -> &[Task] {
        self.tasks.all()
    }

    /// Executed blocks, in no particular order: (origin, address, shape, executions).
    pub fn blocks(&self) -> impl Iterator<Item = (OriginId, u64, ShapeId, u64)> + '_ {
        self.tables.blocks.iter()
    }

    /// Events, in no particular order: (origin, address, kind, amount).
    pub fn events(&self) -> impl Iterator<Item = (OriginId, u64, Kind, Amount)> + '_ {
        self.tables.events.iter()
    }

    /// Indirect branches, in no particular order.
    pub fn branches(&self) -> impl Iterator<Item = (OriginId, Branch, Taken)> + '_ {
        self.branches.iter()
    }

    /// Instructions of blocks whose addresses were not kept, in no particular order: (origin, first address of the range, class, how
    /// many).
    pub fn classes(&self) -> impl Iterator<Item = (OriginId, u64, Class, u64)> + '_ {
        self.tables.classes.iter().map(|((rip, origin, class), count)| (*origin, *rip, *class, *count))
    }
}

fn region_name(name: &str) -> String {
    name.trim().chars().filter(|c| !c.is_control()).take(LONGEST_REGION_NAME).collect()
}

#[cfg(test)]
mod tests;
