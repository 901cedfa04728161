//! What a charge consists of: its origin, its amount, and for ordinary instructions the shape of their block.

use crate::task::{Context, TaskId};
use crate::{Class, Ticks};
use serde::{Deserialize, Serialize};

/// The origin of a charge: everything that identifies it except the instruction's address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Origin {
    /// The task's region of interest.
    pub region: RegionId,
    /// Virtualization level: 0 for the machine itself (host), 1 for its guest, 2 for a nested guest.
    pub level: u8,
    /// Privilege ring, 0 to 3.
    pub ring: u8,
    /// The context on top of the task, such as an interrupt.
    pub context: Context,
    /// The guest's current task.
    pub task: TaskId,
    /// The guest of a hypervisor that runs on the machine: the physical address of its EPT root, or of its VMCS if it has no EPT. 0 for all other
    /// code, including the guest of the board's own hypervisor.
    pub guest: u64,
    /// Address space: the physical address of the root page table (CR3 without its low 12 bits), or 0 without paging.
    pub space: u64,
}

/// The space in which an address is interpreted. One address may be different functions in different guests and programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AddressSpace {
    /// Guest, as in [`Origin::guest`].
    pub guest: u64,
    /// Root table, as in [`Origin::space`]. For a symbol, 0 stands for all spaces of the guest.
    pub root: u64,
}

impl AddressSpace {
    /// Returns the space that stands for all address spaces of a guest, or of no guest if 0.
    pub fn all_of(guest: u64) -> Self {
        Self { guest, root: 0 }
    }

    /// Returns an address space outside any such guest.
    pub fn of(root: u64) -> Self {
        Self { guest: 0, root }
    }

    /// Returns the spaces whose symbols apply to addresses of this one, in order of preference.
    pub(crate) fn candidates(self) -> [Self; 2] {
        [self, Self::all_of(self.guest)]
    }
}

impl Origin {
    /// Returns an origin without a task and outside any region.
    pub fn new(level: u8, ring: u8, space: u64) -> Self {
        Self { level, ring, space, ..Self::default() }
    }

    /// Returns the address space.
    pub fn address_space(&self) -> AddressSpace {
        AddressSpace { guest: self.guest, root: self.space }
    }

    /// Returns true if the task is one of a guest of a hypervisor that runs on the machine. The exits of such a guest are charged to the task that runs it.
    pub fn is_inside(&self) -> bool {
        self.guest != 0 && self.level != 0
    }

    /// Returns the origin without the parts of which a guest may have many: guest, address space and task.
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

/// Instructions of a block by class, sorted by class: their number, and the ticks of one execution of them all.
pub type Shape = Vec<(Class, u32, Ticks)>;

/// Returns the shape of a block with these numbers of instructions, sorted by class, where every instruction of a class has the same price.
pub fn evenly_priced(counts: &[(Class, u32)], class_ticks: &[u32; Class::COUNT]) -> Shape {
    let ticks = |class: Class, count: u32| Ticks::from(class_ticks[class as usize]) * Ticks::from(count);
    counts.iter().map(|&(class, count)| (class, count, ticks(class, count))).collect()
}

/// A count and its cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Amount {
    /// Number of occurrences.
    pub count: u64,
    /// Total ticks.
    pub ticks: Ticks,
}

impl Amount {
    /// Adds another amount; sums saturate.
    pub fn add(&mut self, more: Self) {
        self.count = self.count.saturating_add(more.count);
        self.ticks = self.ticks.saturating_add(more.ticks);
    }
}

/// Number of a [`crate::Region`]; 0 is outside all regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RegionId(pub u16);
