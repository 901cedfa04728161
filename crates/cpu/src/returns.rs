//! The side of the modelled return stack that belongs to translated code: where the code of each return address continues.
//!
//! Translated code moves along a ring with one place for each entry of the modelled stack. Both are arrays within the
//! processor, so that whatever belongs to an entry is at a fixed distance from it, and translated code needs one pointer
//! for all. A modelled return address that matches implies that the code's address is valid, because every call writes
//! both.

use crate::time::predictor::MOST_RETURNS;

/// Value of [`Returns::code_cache`] if the addresses belong to no code cache.
const NO_CODE: u64 = u64::MAX;

/// The ring of one processor.
#[repr(C)]
pub(crate) struct Returns {
    /// Address of the modelled entry of the next call.
    pub(crate) next: [usize; MOST_RETURNS],
    /// Address of the modelled entry of the previous call.
    pub(crate) previous: [usize; MOST_RETURNS],
    /// Address in translated code at which the return continues.
    pub(crate) code: [u64; MOST_RETURNS],
    /// Modelled stack that the ring follows: address of its first entry, and number of entries.
    follows: (usize, usize),
    /// Value of [`Returns::code`] if the address is unknown.
    nowhere: u64,
    /// Code cache to which [`Returns::code`] refers.
    code_cache: u64,
}

impl Returns {
    /// Creates a ring that follows no predictor.
    pub(crate) fn new() -> Self {
        Self {
            next: [0; MOST_RETURNS],
            previous: [0; MOST_RETURNS],
            code: [0; MOST_RETURNS],
            follows: (0, 0),
            nowhere: 0,
            code_cache: NO_CODE,
        }
    }

    /// Records a call that translated code has not made: its return continues nowhere.
    #[inline]
    pub(crate) fn forget(&mut self, position: usize) {
        if let Some(code) = self.code.get_mut(position) {
            *code = self.nowhere;
        }
    }

    /// Forgets where all returns continue.
    pub(crate) fn forget_all(&mut self) {
        self.code_cache = NO_CODE;
    }

    /// Follows the modelled stack, whose `entries` begin at `first`, and changes of the code cache: returns into an older
    /// one continue at `nowhere`.
    #[inline]
    pub(crate) fn follow(&mut self, first: *mut u64, entries: usize, code_cache: u64, nowhere: u64) {
        if self.follows != (first.addr(), entries) {
            self.link(first, entries);
        }
        if self.code_cache != code_cache {
            (self.code_cache, self.nowhere) = (code_cache, nowhere);
            self.code[..entries].fill(nowhere);
        }
    }

    #[cold]
    fn link(&mut self, first: *mut u64, entries: usize) {
        self.follows = (first.addr(), entries);
        for at in 0..entries {
            // Both neighbours are in the same array.
            self.next[at] = first.wrapping_add((at + 1) % entries).expose_provenance();
            self.previous[at] = first.wrapping_add((at + entries - 1) % entries).expose_provenance();
        }
        self.forget_all();
    }
}
