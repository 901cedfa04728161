//! Breakpoints: the set of addresses, and the instructions of a block that may have one. [`crate::stops`] handles the
//! other stops of a debugger.

use crate::op::Op;
use rustc_hash::FxHashSet;
use x86::page::PAGE;

/// Breakpoints of a machine, by linear address.
#[derive(Clone, Debug, Default)]
pub struct Breakpoints {
    addresses: FxHashSet<u64>,
    /// Offsets of the breakpoints in their pages.
    offsets: FxHashSet<u64>,
}

impl Breakpoints {
    /// Returns true if there is a breakpoint at this linear address.
    #[inline]
    pub(crate) fn contains(&self, linear: u64) -> bool {
        !self.addresses.is_empty() && self.addresses.contains(&linear)
    }

    pub(crate) fn insert(&mut self, linear: u64) -> bool {
        self.offsets.insert(linear & (PAGE - 1));
        self.addresses.insert(linear)
    }

    pub(crate) fn remove(&mut self, linear: u64) -> bool {
        let was = self.addresses.remove(&linear);
        self.offsets = self.addresses.iter().map(|linear| linear & (PAGE - 1)).collect();
        was
    }

    /// Returns true if an operation of a block at a physical address may have a breakpoint. A block has no linear
    /// address, because it does not know the base of its segment, but its offset in the page is known.
    pub(crate) fn may_be_in(&self, physical: u64, ops: &[Op]) -> bool {
        if self.addresses.is_empty() {
            return false;
        }
        let Some(first) = ops.first().map(Op::rip) else { return false };
        ops.iter().any(|op| self.offsets.contains(&(physical.wrapping_add(op.rip().wrapping_sub(first)) & (PAGE - 1))))
    }

    /// Returns the addresses in order.
    pub fn addresses(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self.addresses.iter().copied().collect();
        all.sort_unstable();
        all
    }
}
