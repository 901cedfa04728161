//! The side of the modelled return stack that belongs to translated code: where the code of each return address continues.
//!
//! Translated code moves along a ring of linked entries, one for each entry of the modelled stack. A modelled return
//! address that matches implies that the code's address is valid, because every call writes both.

use crate::time::predictor::Predictor;

/// An entry of the ring.
#[repr(C)]
pub struct Return {
    /// The modelled return address, negated.
    pub(crate) negated: *mut u64,
    /// Entry of the next call.
    pub(crate) next: *mut Return,
    /// Entry of the previous call.
    pub(crate) previous: *mut Return,
    /// Address in translated code at which the return continues.
    pub(crate) code: u64,
}

/// Value of [`Returns::code_cache`] if the addresses belong to no code cache.
const NO_CODE: u64 = u64::MAX;

/// The ring of one processor.
pub(crate) struct Returns {
    ring: Box<[Return]>,
    /// Value of [`Return::code`] if the address is unknown.
    nowhere: u64,
    /// Code cache to which [`Return::code`] refers.
    code_cache: u64,
}

impl Returns {
    /// Creates a ring that follows no predictor.
    pub(crate) fn new() -> Self {
        Self { ring: Box::default(), nowhere: 0, code_cache: NO_CODE }
    }

    /// Records a call that translated code has not made: its return continues nowhere.
    #[inline]
    pub(crate) fn forget(&mut self, position: usize) {
        if let Some(entry) = self.ring.get_mut(position) {
            entry.code = self.nowhere;
        }
    }

    /// Forgets where all returns continue.
    pub(crate) fn forget_all(&mut self) {
        self.code_cache = NO_CODE;
    }

    /// Follows the predictor, and changes of the code cache: returns into an older one continue at `nowhere`. Returns
    /// the entry of the newest call, for translated code.
    #[inline]
    pub(crate) fn follow(&mut self, predictor: &mut Predictor, code_cache: u64, nowhere: u64) -> *mut Return {
        let (modelled, newest) = predictor.exposed_returns();
        if self.ring.first().map(|entry| entry.negated) != Some(modelled.as_mut_ptr()) {
            self.link(modelled);
        }
        if self.code_cache != code_cache {
            (self.code_cache, self.nowhere) = (code_cache, nowhere);
            self.ring.iter_mut().for_each(|entry| entry.code = nowhere);
        }
        &raw mut self.ring[newest]
    }

    #[cold]
    fn link(&mut self, modelled: &mut [u64]) {
        let (first, entries) = (modelled.as_mut_ptr(), modelled.len());
        let nowhere = std::ptr::null_mut();
        let entry = |at| Return { negated: first.wrapping_add(at), next: nowhere, previous: nowhere, code: 0 };
        self.ring = (0..entries).map(entry).collect();
        let first = self.ring.as_mut_ptr();
        for (at, entry) in self.ring.iter_mut().enumerate() {
            // Both neighbours are in the same allocation.
            entry.next = first.wrapping_add((at + 1) % entries);
            entry.previous = first.wrapping_add((at + entries - 1) % entries);
        }
        self.forget_all();
    }

    /// Returns the position of an entry to which translated code has moved.
    #[inline]
    pub(crate) fn position(&self, entry: *const Return) -> usize {
        (entry.addr() - self.ring.as_ptr().addr()) / size_of::<Return>()
    }
}
