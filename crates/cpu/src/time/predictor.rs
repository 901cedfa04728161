//! The modelled predictor for indirect branches and returns: a target cache and a return stack, whose sizes are in the
//! profile. Translated code accesses both directly.

use ledger::Geometry;
use serde::{Deserialize, Serialize};

/// An entry of the target cache.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Address of the branch.
    pub(crate) from: u64,
    /// Target of its last execution.
    pub(crate) to: u64,
}

/// Predictor state of one processor.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predictor {
    targets: Box<[Target]>,
    /// Ring of the return addresses, negated, as translated code compares them.
    returns: Box<[u64]>,
    /// Position of the newest one.
    newest: usize,
}

impl Predictor {
    /// Creates an empty predictor of the given sizes.
    pub fn new(size: &Geometry) -> Self {
        Self::of_sizes(usize::from(size.target_cache), usize::from(size.return_stack))
    }

    fn of_sizes(targets: usize, entries: usize) -> Self {
        let targets = targets.max(1).next_power_of_two();
        let entries = entries.max(1);
        Self {
            targets: vec![Target::default(); targets].into_boxed_slice(),
            returns: vec![0; entries].into_boxed_slice(),
            newest: 0,
        }
    }

    /// Returns true if the predictor is possible for these sizes.
    pub(crate) fn fits(&self, size: &Geometry) -> bool {
        let new = Self::new(size);
        (self.targets.len(), self.returns.len()) == (new.targets.len(), new.returns.len())
            && self.newest < self.returns.len()
    }

    /// Records a call, and returns its position; a full stack overwrites its oldest entry.
    #[inline]
    pub fn call(&mut self, return_address: u64) -> usize {
        self.newest = if self.newest + 1 >= self.returns.len() { 0 } else { self.newest + 1 };
        self.returns[self.newest] = return_address.wrapping_neg();
        self.newest
    }

    /// Records a return. Returns true if the return to `target` was predicted.
    #[inline]
    pub fn ret(&mut self, target: u64) -> bool {
        let hit = self.returns[self.newest] == target.wrapping_neg();
        self.newest = self.newest.checked_sub(1).unwrap_or(self.returns.len() - 1);
        hit
    }

    /// Returns the slot of the indirect branch at `from`, in a cache with `slots` slots.
    #[inline]
    pub(crate) fn slot(from: u64, slots: usize) -> usize {
        (from ^ (from >> 13)) as usize & (slots - 1)
    }

    /// Returns the number of slots of the target cache.
    pub(crate) fn slots(&self) -> usize {
        self.targets.len()
    }

    /// Records an indirect branch at `from`. Returns true if `target` was predicted.
    #[inline]
    pub fn indirect(&mut self, from: u64, target: u64) -> bool {
        let slot = Self::slot(from, self.targets.len());
        let slot = &mut self.targets[slot];
        let hit = *slot == Target { from, to: target };
        *slot = Target { from, to: target };
        hit
    }

    /// Clears all targets (IBPB).
    pub fn barrier(&mut self) {
        self.targets.fill(Target::default());
    }

    /// Returns the target cache, for translated code.
    pub(crate) fn exposed_targets(&mut self) -> *mut Target {
        self.targets.as_mut_ptr()
    }

    /// Returns the ring of return addresses, for translated code, and the position of the newest one.
    pub(crate) fn exposed_returns(&mut self) -> (&mut [u64], usize) {
        (&mut self.returns, self.newest)
    }

    /// Sets the position of the newest return address, after translated code has moved along the ring.
    pub(crate) fn set_newest(&mut self, newest: usize) {
        self.newest = newest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_return_stack_forgets_its_oldest_entries() {
        let mut predictor = Predictor::of_sizes(1, 3);
        for address in 1..=4 {
            predictor.call(address);
        }
        assert_eq!([4, 3, 2, 1].map(|address| predictor.ret(address)), [true, true, true, false]);
    }

    #[test]
    fn a_position_outside_the_stack_is_impossible() {
        let size = Geometry::generic();
        let mut predictor = Predictor::new(&size);
        assert!(predictor.fits(&size));
        predictor.newest = predictor.returns.len();
        assert!(!predictor.fits(&size));
    }
}
