//! The modelled predictor for indirect branches and returns: a target cache and a return stack, whose sizes are in the
//! profile.
//!
//! Translated code accesses both directly; therefore the return stack is a ring of linked entries.

use ledger::Geometry;
use serde::{Deserialize, Serialize};

/// An entry of the return stack.
#[repr(C)]
pub struct Return {
    /// Negated return address.
    pub(crate) negated: u64,
    /// Entry of the next call.
    pub(crate) next: *mut Return,
    /// Entry of the previous call.
    pub(crate) previous: *mut Return,
    /// Address in translated code at which the return continues. This is not part of the modelled processor.
    pub(crate) code: u64,
}

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
#[derive(Serialize, Deserialize)]
#[serde(from = "Saved", into = "Saved")]
pub struct Predictor {
    targets: Box<[Target]>,
    /// Owner of the entries; all accesses go through `top`.
    _stack: Box<[Return]>,
    top: *mut Return,
    /// Value of [`Return::code`] if the address is unknown.
    nowhere: u64,
    /// Code cache to which [`Return::code`] refers.
    code_cache: u64,
}

/// Saved state of a predictor.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct Saved {
    targets: Vec<Target>,
    /// Return addresses, the newest first.
    returns: Vec<u64>,
}

impl From<Predictor> for Saved {
    fn from(predictor: Predictor) -> Self {
        predictor.saved()
    }
}

impl From<Saved> for Predictor {
    fn from(saved: Saved) -> Self {
        let mut predictor = Self::of_sizes(saved.targets.len(), saved.returns.len());
        for (slot, target) in predictor.targets.iter_mut().zip(saved.targets) {
            *slot = target;
        }
        for address in saved.returns.into_iter().rev() {
            predictor.call(address);
        }
        predictor
    }
}

impl Clone for Predictor {
    fn clone(&self) -> Self {
        self.saved().into()
    }
}

impl PartialEq for Predictor {
    fn eq(&self, other: &Self) -> bool {
        self.saved() == other.saved()
    }
}

impl Predictor {
    /// Creates an empty predictor of the given sizes.
    pub fn new(size: &Geometry) -> Self {
        Self::of_sizes(usize::from(size.target_cache), usize::from(size.return_stack))
    }

    fn of_sizes(targets: usize, entries: usize) -> Self {
        let targets = targets.max(1).next_power_of_two();
        let entries = entries.max(1);
        let nowhere = std::ptr::null_mut();
        let empty = || Return { negated: 0, next: nowhere, previous: nowhere, code: 0 };
        let mut stack: Box<[Return]> = (0..entries).map(|_| empty()).collect();
        let first = stack.as_mut_ptr();
        for (number, entry) in stack.iter_mut().enumerate() {
            // Both neighbours are in the same allocation.
            entry.next = first.wrapping_add((number + 1) % entries);
            entry.previous = first.wrapping_add((number + entries - 1) % entries);
        }
        Self {
            targets: vec![Target::default(); targets].into_boxed_slice(),
            _stack: stack,
            top: first,
            nowhere: 0,
            code_cache: u64::MAX,
        }
    }

    fn saved(&self) -> Saved {
        let mut returns = Vec::with_capacity(self._stack.len());
        let mut entry = self.top;
        for _ in 0..self._stack.len() {
            // SAFETY: `top` and the neighbours of every entry are entries of the stack, which lives as long as `self`.
            unsafe {
                returns.push((*entry).negated.wrapping_neg());
                entry = (*entry).previous;
            }
        }
        Saved { targets: self.targets.to_vec(), returns }
    }

    /// Returns true if the predictor has the given sizes.
    pub(crate) fn fits(&self, size: &Geometry) -> bool {
        let new = Self::new(size);
        (self.targets.len(), self._stack.len()) == (new.targets.len(), new._stack.len())
    }

    /// Records a call; a full stack overwrites its oldest entry.
    #[inline]
    pub fn call(&mut self, return_address: u64) {
        // SAFETY: `top` and the neighbours of every entry are entries of the stack, which lives as long as `self`.
        unsafe {
            self.top = (*self.top).next;
            (*self.top).negated = return_address.wrapping_neg();
            (*self.top).code = self.nowhere;
        }
    }

    /// Records a return. Returns true if the return to `target` was predicted.
    #[inline]
    pub fn ret(&mut self, target: u64) -> bool {
        // SAFETY: as in `call`.
        unsafe {
            let hit = (*self.top).negated == target.wrapping_neg();
            self.top = (*self.top).previous;
            hit
        }
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

    /// Handles a change of the code cache: returns into an older one continue at `nowhere`.
    #[inline]
    pub(crate) fn follow_code(&mut self, code_cache: u64, nowhere: u64) {
        if self.code_cache != code_cache {
            (self.code_cache, self.nowhere) = (code_cache, nowhere);
            let mut entry = self.top;
            loop {
                // SAFETY: as in `call`.
                unsafe {
                    (*entry).code = nowhere;
                    entry = (*entry).next;
                }
                if std::ptr::eq(entry, self.top) {
                    break;
                }
            }
        }
    }

    /// Clears the addresses in translated code at which returns continue.
    pub(crate) fn forget_code(&mut self) {
        self.code_cache = u64::MAX;
    }

    /// Returns the newest entry of the return stack, and the target cache, for translated code.
    pub(crate) fn expose(&mut self) -> (*mut Return, *mut Target) {
        (self.top, self.targets.as_mut_ptr())
    }

    /// Sets the newest entry after translated code has moved along the ring.
    ///
    /// # Safety
    /// `top` must be an entry of this predictor's ring: [`Self::expose`] has returned it, or an entry linked to it.
    pub(crate) unsafe fn set_top(&mut self, top: *mut Return) {
        self.top = top;
    }
}
