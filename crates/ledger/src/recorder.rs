//! The recorder: collects charges while a machine runs.
//!
//! Ordinary instructions arrive as runs of blocks: a block has a [`Shape`] (how many instructions of which class), and
//! only its executions are counted. Everything else arrives as single charges.

use crate::{Class, Kind, Ticks};
use rustc_hash::FxHashMap;

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

/// Collects charges of one run.
#[derive(Default)]
pub struct Recorder {
    origins: Vec<Origin>,
    origin_ids: FxHashMap<Origin, OriginId>,
    shapes: Vec<Shape>,
    shape_ids: FxHashMap<Shape, ShapeId>,
    blocks: FxHashMap<(OriginId, u64, ShapeId), u64>,
    events: FxHashMap<(OriginId, u64, Kind), Amount>,
}

impl Recorder {
    /// The number of `origin`, the same for equal origins.
    pub fn origin(&mut self, origin: Origin) -> OriginId {
        if let Some(id) = self.origin_ids.get(&origin) {
            return *id;
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
        *self.blocks.entry((origin, rip, shape)).or_default() += runs;
    }

    /// Adds an event, with what it cost.
    pub fn add(&mut self, origin: OriginId, rip: u64, kind: Kind, count: u64, ticks: Ticks) {
        let amount = self.events.entry((origin, rip, kind)).or_default();
        amount.count += count;
        amount.ticks += ticks;
    }
}
