//! The modelled predictor for the targets of indirect branches that have several.
//!
//! A branch that always goes to one target is predicted by its last one. As soon as it goes elsewhere, it counts as *varied*, and its
//! target is looked for by the branch and the targets of the last varied branches before it (Chang, Hao and Patt, Target prediction for
//! indirect jumps, 1997; Seznec, A 64-Kbytes ITTAGE indirect branch predictor, 2011): that tells a threaded interpreter's
//! next operation by the operations before. A path that is not known leaves the last target as the prediction, and gets an entry if
//! that is wrong. Branches with one target are not part of the path, and change nothing when they go there.

use super::predictor::Target;
use serde::{Deserialize, Serialize};

/// Factor by which a path and a branch become a tag: an odd number whose bits have no pattern.
pub(crate) const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// Shift of the tag to the position of its entry, in bytes.
pub(crate) const POSITION_SHIFT: u32 = 40;
/// Bits by which the path moves with each target. The fifth target before falls out of it.
pub(crate) const STEP: u32 = 12;

/// Targets by the path to them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paths {
    /// The targets of the last varied branches, the last one in the low bits.
    pub(crate) path: u64,
    /// For each tag, the target to which the branch went.
    table: Box<[Target]>,
}

impl Paths {
    /// Creates an empty table with so many entries, a power of two.
    pub(super) fn new(entries: usize) -> Self {
        Self { path: 0, table: vec![Target::default(); entries].into_boxed_slice() }
    }

    /// Returns the number of entries.
    pub(super) fn entries(&self) -> usize {
        self.table.len()
    }

    /// Returns the bits of a shifted tag that are the distance of its entry from the begin of the table.
    pub(crate) fn mask(&self) -> u64 {
        ((self.table.len() - 1) * size_of::<Target>()) as u64
    }

    /// Returns the table, for translated code.
    pub(crate) fn exposed(&mut self) -> *mut Target {
        self.table.as_mut_ptr()
    }

    /// Forgets everything (IBPB).
    pub(super) fn clear(&mut self) {
        self.path = 0;
        self.table.fill(Target::default());
    }

    /// Records that a varied branch, which went to `last` before, goes to `target`. Returns true if that was predicted.
    pub(super) fn went(&mut self, from: u64, last: u64, target: u64) -> bool {
        let tag = self.path.wrapping_add(from).wrapping_mul(FACTOR);
        let at = (tag >> POSITION_SHIFT & self.mask()) as usize / size_of::<Target>();
        let entry = &mut self.table[at];
        let known = entry.from == tag;
        let predicted = if known { entry.to } else { last };
        if predicted != target {
            *entry = Target { from: tag, to: target };
        }
        self.path = self.path << STEP ^ target;
        predicted == target
    }
}
