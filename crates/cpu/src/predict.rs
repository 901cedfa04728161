//! The modelled predictor for indirect branches and returns: a target cache and a return stack, sized by the profile.
//!
//! Translated code works on both in place, which is why the return stack is a ring of linked entries.

use ledger::Geometry;
use serde::{Deserialize, Serialize};

/// An entry of the return stack.
#[repr(C)]
pub struct Return {
    /// Return address, negated.
    pub(crate) negated: u64,
    /// The entry of the next call.
    pub(crate) next: *mut Return,
    /// The entry of the call before.
    pub(crate) previous: *mut Return,
    /// Where translated code goes on after the return. Modelled processors know nothing of this.
    pub(crate) code: u64,
}

/// An entry of the target cache.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Address of the branch.
    pub(crate) from: u64,
    /// Where it went.
    pub(crate) to: u64,
}

/// Predictor state of one processor.
#[derive(Serialize, Deserialize)]
#[serde(from = "Saved", into = "Saved")]
pub struct Predictor {
    targets: Box<[Target]>,
    /// Kept for its entries; all access is through `top`.
    _stack: Box<[Return]>,
    top: *mut Return,
    /// What [`Return::code`] is where it is not known.
    nowhere: u64,
    /// The code cache that [`Return::code`] is in.
    code_cache: u64,
}

/// What a predictor knows.
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
    /// An empty predictor of the given sizes.
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
            // Both neighbours lie in the same allocation.
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

    /// Whether it has the given sizes.
    pub(crate) fn fits(&self, size: &Geometry) -> bool {
        let new = Self::new(size);
        (self.targets.len(), self._stack.len()) == (new.targets.len(), new._stack.len())
    }

    /// Notes a call; a full stack overwrites its oldest entry.
    #[inline]
    pub fn call(&mut self, return_address: u64) {
        // SAFETY: `top` and the neighbours of every entry are entries of the stack, which lives as long as `self`.
        unsafe {
            self.top = (*self.top).next;
            (*self.top).negated = return_address.wrapping_neg();
            (*self.top).code = self.nowhere;
        }
    }

    /// Whether a return to `target` was predicted.
    #[inline]
    pub fn ret(&mut self, target: u64) -> bool {
        // SAFETY: as in `call`.
        unsafe {
            let hit = (*self.top).negated == target.wrapping_neg();
            self.top = (*self.top).previous;
            hit
        }
    }

    /// The slot of the indirect branch at `from`, in a cache of so many.
    #[inline]
    pub(crate) fn slot(from: u64, slots: usize) -> usize {
        (from ^ (from >> 13)) as usize & (slots - 1)
    }

    /// Slots of the target cache.
    pub(crate) fn slots(&self) -> usize {
        self.targets.len()
    }

    /// Whether the indirect branch at `from` was predicted to go to `target`; from now on it is.
    #[inline]
    pub fn indirect(&mut self, from: u64, target: u64) -> bool {
        let slot = Self::slot(from, self.targets.len());
        let slot = &mut self.targets[slot];
        let hit = *slot == Target { from, to: target };
        *slot = Target { from, to: target };
        hit
    }

    /// Forgets all targets (IBPB).
    pub fn barrier(&mut self) {
        self.targets.fill(Target::default());
    }

    /// Follows a change of the code cache: returns whose place in an older one was known go to `nowhere`.
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

    /// Forgets where the translations of what is returned to are.
    pub(crate) fn forget_code(&mut self) {
        self.code_cache = u64::MAX;
    }

    /// Where translated code finds the newest entry of the return stack, and the target cache.
    pub(crate) fn expose(&mut self) -> (*mut Return, *mut Target) {
        (self.top, self.targets.as_mut_ptr())
    }

    /// Takes the newest entry back from translated code, which only follows the ring.
    pub(crate) fn set_top(&mut self, top: *mut Return) {
        self.top = top;
    }
}
