//! Breakpoints: which instructions of a block may have one. What a debugger waits for besides is in [`crate::stops`].

use crate::op::Op;
use rustc_hash::FxHashSet;
use x86::page::PAGE;

/// The breakpoints of a machine: linear addresses.
#[derive(Clone, Debug, Default)]
pub struct Breakpoints {
    addresses: FxHashSet<u64>,
    /// Their offsets in their pages.
    offsets: FxHashSet<u64>,
}

impl Breakpoints {
    /// There is a breakpoint at this linear address.
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

    /// Whether an operation of a block at a physical address may have one: a block does not know the base of its segment, but where it is in
    /// its page.
    pub(crate) fn may_be_in(&self, physical: u64, ops: &[Op]) -> bool {
        if self.addresses.is_empty() {
            return false;
        }
        let Some(first) = ops.first().map(Op::rip) else { return false };
        ops.iter().any(|op| self.offsets.contains(&(physical.wrapping_add(op.rip().wrapping_sub(first)) & (PAGE - 1))))
    }

    /// The addresses, in order.
    pub fn addresses(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self.addresses.iter().copied().collect();
        all.sort_unstable();
        all
    }
}
