//! Targets of indirect branches, by the mode of the code.

use super::KEYS;

/// Number of slots for targets of indirect branches.
pub const JUMP_SLOTS: usize = 32_768;
/// Marks a missing code cache: the jump tables must be cleared before they are used.
const NO_CODE: u64 = u64::MAX;
/// Bits of a target that select its slot. Bit 0 is not used: return addresses are at least two bytes apart, the length
/// of the shortest call.
pub const JUMP_MASK: u64 = (JUMP_SLOTS as u64 - 1) << JUMP_SHIFT;
const JUMP_SHIFT: u32 = 1;

fn jump_slot(target: u64) -> usize {
    ((target & JUMP_MASK) >> JUMP_SHIFT) as usize
}

/// A target of indirect branches, and the entry point of its translation.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Jump {
    /// Linear address of the target, negated.
    pub negated: u64,
    /// Address of the translation's entry point that checks the page.
    pub code: u64,
}

/// Targets of indirect branches. All address spaces share the table, because most targets are in the kernel;
/// translations check their pages.
pub struct Jumps {
    /// [`JUMP_SLOTS`] slots for each [`Key`](super::Key).
    slots: Box<[Jump]>,
    /// Code caches of the targets of 64-bit and of 32-bit code.
    of: [u64; 2],
}

impl Jumps {
    pub(crate) fn new() -> Self {
        let nowhere = Jump { negated: 0, code: 0 };
        Self { slots: vec![nowhere; KEYS * JUMP_SLOTS].into_boxed_slice(), of: [NO_CODE; 2] }
    }

    /// Handles a change of the code cache: targets in an older cache are dropped.
    #[inline]
    pub(crate) fn follow_code(&mut self, code: u64, narrow: bool) {
        const HALF: usize = KEYS / 2;
        let half = usize::from(narrow);
        if self.of[half] != code {
            self.of[half] = code;
            for (i, jump) in self.slots[half * HALF * JUMP_SLOTS..][..HALF * JUMP_SLOTS].iter_mut().enumerate() {
                // The target belongs to another slot, so it never matches.
                *jump = Jump { negated: (((i % JUMP_SLOTS) as u64 ^ 1) << JUMP_SHIFT).wrapping_neg(), code: 0 };
            }
        }
    }

    /// Drops all targets.
    pub(crate) fn forget(&mut self) {
        self.of = [NO_CODE; 2];
    }

    /// Adds a target.
    pub(crate) fn fill(&mut self, key: usize, target: u64, code: u64) {
        self.slots[key * JUMP_SLOTS + jump_slot(target)] = Jump { negated: target.wrapping_neg(), code };
    }

    /// Returns the entry point of the translation of a target, if it is known.
    pub(crate) fn find(&self, key: usize, target: u64) -> Option<u64> {
        let jump = self.slots[key * JUMP_SLOTS + jump_slot(target)];
        (jump.negated == target.wrapping_neg()).then_some(jump.code)
    }

    /// Returns the address of the table for translated code.
    pub(crate) fn expose(&self) -> *const Jump {
        self.slots.as_ptr()
    }
}
