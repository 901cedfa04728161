//! The engine's copy of answers about code: lines that the modelled first-level cache has, and lines whose branches the modelled
//! front end knows. The copy may lack lines. See [`crate::code_lines`].

use crate::time::memory::code::branch_key;
use ledger::Class;

/// Log2 of the number of slots for lines, and of those for branches: many more than the modelled cache has lines, so that few lines
/// displace each other here.
const SLOT_BITS: u32 = 14;
/// Number of slots for lines, and of those for branches.
const SLOTS: usize = 1 << SLOT_BITS;

/// A part of the lines that the first-level cache has, and of those whose branches the front end knows: a direct-mapped table
/// for each, which translated code reads.
pub struct KnownCode {
    /// For each slot the tag of the line that it has, or 0. Lines are followed by branches.
    slots: Option<Box<[u32; 2 * SLOTS]>>,
}

/// A question to [`KnownCode`]: the slot, and the tag that it must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Index of the slot.
    pub slot: usize,
    /// Tag in the slot if the answer is known to be yes.
    pub tag: u32,
}

impl Question {
    /// Returns the question for a line of code, by its guest-physical address divided by 64.
    #[inline(always)]
    pub fn line(line: u64) -> Self {
        // Lines of a restored state that are beyond all memory may share a tag with others.
        Self { slot: line as usize & (SLOTS - 1), tag: ((line >> SLOT_BITS) as u32).wrapping_add(1).max(1) }
    }

    /// Returns the question for a branch, which goes far or does not.
    #[inline(always)]
    pub fn branch(rip: u64, far: bool) -> Self {
        Self::key(branch_key(rip), far)
    }

    /// Returns the question for the branches of a line, by its key: those that go far, or the others. The two are in different slots,
    /// because many lines have both.
    #[inline(always)]
    pub fn key(key: u64, far: bool) -> Self {
        let slot = (key as usize ^ usize::from(far) << (SLOT_BITS - 1)) & (SLOTS - 1);
        let tag = ((key >> SLOT_BITS) as u32) << 1 | u32::from(far);
        Self { slot: SLOTS + slot, tag: tag + 1 }
    }
}

impl KnownCode {
    /// Creates an empty table, which has slots if code is `modelled`.
    pub fn new(modelled: bool) -> Self {
        Self { slots: modelled.then(|| Box::new([0; 2 * SLOTS])) }
    }

    /// Returns true if code is modelled.
    #[inline(always)]
    pub fn is_modelled(&self) -> bool {
        self.slots.is_some()
    }

    /// Returns true if the answer to a question is known to be yes, or if code is not modelled.
    #[inline(always)]
    pub fn has(&self, question: Question) -> bool {
        self.slots.as_ref().is_none_or(|slots| slots[question.slot] == question.tag)
    }

    /// Notes that the answer to a question is yes.
    pub fn add(&mut self, question: Question) {
        if let Some(slots) = &mut self.slots {
            slots[question.slot] = question.tag;
        }
    }

    /// Notes that the answer to a question is no.
    pub fn remove(&mut self, question: Question) {
        if let Some(slots) = &mut self.slots
            && slots[question.slot] == question.tag
        {
            slots[question.slot] = 0;
        }
    }

    /// Returns the slots, for translated code.
    pub fn expose(&self) -> *const u32 {
        self.slots.as_ref().map_or(std::ptr::null(), |slots| slots.as_ptr())
    }
}

/// Returns true if instructions of a class are branches that are always taken.
pub fn always_branches(class: Class) -> bool {
    use Class::*;
    matches!(class, Jump | Call | Return | IndirectJump | IndirectCall)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::memory::LINE_SHIFT;

    #[test]
    fn what_is_known_is_forgotten_line_by_line() {
        let mut known = KnownCode::new(true);
        let [a, b] = [Question::line(5), Question::line(5 + SLOTS as u64)];
        assert_eq!((a.slot, a.tag != b.tag), (b.slot, true));
        known.add(a);
        known.remove(b);
        assert!(known.has(a) && !known.has(b) && !known.has(Question::line(6)));
        known.add(b);
        assert!(!known.has(a) && known.has(b));
        known.remove(b);
        assert!(!known.has(b) && !known.has(Question::key(5, false)));
        assert!(KnownCode::new(false).has(a));
    }

    #[test]
    fn lines_and_branches_have_their_own_slots() {
        let question = Question::branch;
        let here = question(0xffff_ffff_8100_0040, false);
        assert!((SLOTS..2 * SLOTS).contains(&here.slot));
        assert_eq!(here, question(0xffff_ffff_8100_007f, false));
        assert_ne!(here, question(0xffff_ffff_8100_0080, false));
        assert_ne!(here, question(0x8100_0040, false));
        assert_ne!(here.slot, question(0xffff_ffff_8100_0040, true).slot);
        let other = (0xffff_ffff_8100_0040u64 >> LINE_SHIFT ^ 1 << (SLOT_BITS - 1)) << LINE_SHIFT;
        assert_eq!((question(other, true).slot, question(other, true).tag != here.tag), (here.slot, true));
        assert_eq!(Question::line(u64::MAX >> 18).tag, 1, "an empty slot has no line");
    }
}
