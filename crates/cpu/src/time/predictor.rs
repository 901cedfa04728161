//! The modelled predictor: a target cache for indirect branches and a return stack, whose sizes are in the profile, and in
//! a model that predicts them, the directions of conditional branches, and the targets of indirect ones by the path to them. Translated
//! code accesses all of them directly.

use super::conditional::{Conditional, key};
use super::paths::Paths;
use ledger::Geometry;
use serde::{Deserialize, Serialize};
use std::mem::offset_of;

/// An entry of the target cache.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Address of the branch. All of its bits are inverted if the branch has several targets, and these are predicted by paths.
    pub(crate) from: u64,
    /// Target of its last execution.
    pub(crate) to: u64,
}

/// Largest number of entries of the return stack, which is also a profile's limit.
pub(crate) const MOST_RETURNS: usize = 1024;

/// A return stack: a ring, saved as the list of its entries. It is an array, so that the rest of the processor is at
/// known distances from it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Vec<u64>", try_from = "Vec<u64>")]
struct Ring {
    /// The return addresses, negated, as translated code compares them.
    negated: [u64; MOST_RETURNS],
    /// Number of entries in use.
    entries: usize,
}

impl Ring {
    fn new(entries: usize) -> Self {
        Self { negated: [0; MOST_RETURNS], entries: entries.clamp(1, MOST_RETURNS) }
    }
}

impl From<Ring> for Vec<u64> {
    fn from(ring: Ring) -> Self {
        ring.negated[..ring.entries].to_vec()
    }
}

impl TryFrom<Vec<u64>> for Ring {
    type Error = &'static str;

    fn try_from(saved: Vec<u64>) -> Result<Self, Self::Error> {
        let mut ring = Self::new(saved.len());
        let entries = ring.negated.get_mut(..saved.len()).filter(|entries| !entries.is_empty());
        entries.ok_or("a return stack of a size that no profile has")?.copy_from_slice(&saved);
        Ok(ring)
    }
}

/// Predictor state of one processor.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predictor {
    targets: Box<[Target]>,
    returns: Ring,
    /// Position of the newest return address.
    newest: usize,
    /// Directions of conditional branches, if they are predicted.
    conditional: Option<Box<Conditional>>,
    /// Targets of indirect branches that have several, in the same models.
    paths: Option<Paths>,
}

impl Predictor {
    /// Distance of the return stack's first entry from the predictor's begin: each entry is an address, negated.
    pub(crate) const RETURNS: usize = offset_of!(Self, returns.negated);

    /// Creates an empty predictor of the given sizes.
    pub fn new(size: &Geometry) -> Self {
        let plain = Self::of_sizes(usize::from(size.target_cache), usize::from(size.return_stack));
        let paths = size.predicts_directions.then(|| Paths::new(plain.targets.len()));
        Self { conditional: size.predicts_directions.then(Box::default), paths, ..plain }
    }

    fn of_sizes(targets: usize, entries: usize) -> Self {
        let targets = targets.max(1).next_power_of_two();
        let targets = vec![Target::default(); targets].into_boxed_slice();
        Self { targets, returns: Ring::new(entries), newest: 0, conditional: None, paths: None }
    }

    /// Returns true if the predictor is possible for these sizes.
    pub(crate) fn fits(&self, size: &Geometry) -> bool {
        let new = Self::new(size);
        (self.targets.len(), self.returns.entries) == (new.targets.len(), new.returns.entries)
            && self.newest < self.returns.entries
            && self.conditional.is_some() == size.predicts_directions
            && self.paths.as_ref().map(Paths::entries) == new.paths.as_ref().map(Paths::entries)
    }

    /// Records a call, and returns its position; a full stack overwrites its oldest entry.
    #[inline]
    pub fn call(&mut self, return_address: u64) -> usize {
        self.newest = if self.newest + 1 >= self.returns.entries { 0 } else { self.newest + 1 };
        self.returns.negated[self.newest] = return_address.wrapping_neg();
        self.newest
    }

    /// Records a return. Returns true if the return to `target` was predicted.
    #[inline]
    pub fn ret(&mut self, target: u64) -> bool {
        let hit = self.returns.negated[self.newest] == target.wrapping_neg();
        self.newest = self.newest.checked_sub(1).unwrap_or(self.returns.entries - 1);
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
        let Target { from: of, to: last } = *slot;
        if of == from && last == target {
            return true;
        }
        let varied = of == !from;
        let Some(paths) = self.paths.as_mut().filter(|_| varied || of == from) else {
            *slot = Target { from, to: target };
            return false;
        };
        *slot = Target { from: !from, to: target };
        paths.went(from, last, target)
    }

    /// Records the direction of a conditional branch at `from`. Returns true if it was predicted, or if directions are
    /// not.
    #[inline]
    pub fn conditional(&mut self, from: u64, taken: bool) -> bool {
        self.conditional.as_mut().is_none_or(|conditional| conditional.predicts(key(from), taken))
    }

    /// Returns the state of the directions, for translated code; null if they are not predicted.
    pub(crate) fn exposed_directions(&mut self) -> *mut Conditional {
        self.conditional.as_mut().map_or(std::ptr::null_mut(), |conditional| &raw mut **conditional)
    }

    /// Returns true if directions are predicted.
    pub(crate) fn predicts_directions(&self) -> bool {
        self.conditional.is_some()
    }

    /// Clears all targets (IBPB).
    pub fn barrier(&mut self) {
        self.targets.fill(Target::default());
        self.paths.iter_mut().for_each(Paths::clear);
    }

    /// Returns the targets by paths, if they are predicted.
    pub(crate) fn paths(&mut self) -> Option<&mut Paths> {
        self.paths.as_mut()
    }

    /// Returns the target cache, for translated code.
    pub(crate) fn exposed_targets(&mut self) -> *mut Target {
        self.targets.as_mut_ptr()
    }

    /// Returns the number of entries of the return stack, and the position of the newest one.
    #[inline]
    pub(crate) fn returns(&self) -> (usize, usize) {
        (self.returns.entries, self.newest)
    }

    /// Sets the position of the newest return address, after translated code has moved along the ring.
    #[inline]
    pub(crate) fn set_newest(&mut self, newest: usize) {
        self.newest = newest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_with_several_targets_is_predicted_by_the_path_to_it() {
        let size = Geometry { predicts_directions: true, target_cache: 1024, ..Geometry::generic() };
        let misses = |size: &Geometry, targets: &dyn Fn(u64) -> u64| {
            let mut predictor = Predictor::new(size);
            let missed = |predictor: &mut Predictor, n: u64| u32::from(!predictor.indirect(0x1000, targets(n)));
            (0..2000).map(|n| missed(&mut predictor, n)).collect::<Vec<_>>()
        };
        let late = |all: &[u32]| all[1000..].iter().sum::<u32>();
        let periodic = |n: u64| 0x2000 + 0x40 * [1, 5, 2, 5, 3, 7][n as usize % 6];
        assert_eq!(late(&misses(&size, &periodic)), 0);
        assert_eq!(late(&misses(&Geometry { predicts_directions: false, ..size }, &periodic)), 1000);
        // A branch with one target: the first execution alone.
        assert_eq!(misses(&size, &|_| 0x2000).iter().sum::<u32>(), 1);
    }

    #[test]
    fn a_full_return_stack_forgets_its_oldest_entries() {
        let mut predictor = Predictor::of_sizes(1, 3);
        for address in 1..=4 {
            predictor.call(address);
        }
        assert_eq!([4, 3, 2, 1].map(|address| predictor.ret(address)), [true, true, true, false]);
    }

    #[test]
    fn a_return_stack_is_saved_as_its_entries() {
        let mut predictor = Predictor::of_sizes(1, 3);
        predictor.call(5);
        let saved = Vec::from(predictor.returns.clone());
        assert_eq!(saved, [0, 5u64.wrapping_neg(), 0]);
        assert!(Ring::try_from(saved).is_ok_and(|ring| ring == predictor.returns));
        assert!(Ring::try_from(vec![7; MOST_RETURNS]).is_ok_and(|ring| ring.entries == MOST_RETURNS));
        for impossible in [0, MOST_RETURNS + 1] {
            assert!(Ring::try_from(vec![0; impossible]).is_err(), "{impossible} entries");
        }
    }

    #[test]
    fn a_position_outside_the_stack_is_impossible() {
        let size = Geometry::generic();
        let mut predictor = Predictor::new(&size);
        assert!(predictor.fits(&size));
        predictor.newest = predictor.returns.entries;
        assert!(!predictor.fits(&size));
    }

    #[test]
    fn directions_are_predicted_only_by_a_model_that_does() {
        let size = Geometry { predicts_directions: true, ..Geometry::generic() };
        let predictor = Predictor::new(&size);
        assert!(predictor.fits(&size) && !predictor.fits(&Geometry::generic()));
        assert!(!Predictor::new(&Geometry::generic()).fits(&size));
    }
}
