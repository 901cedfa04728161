//! What a machine is asked of the functions that are waited for.

use super::{Awaited, Awaiting, Place};
use crate::machine::Machine;
use ledger::symbols::{ImageFunctions, Symbol};

impl Machine {
    /// Waits for places in functions, of which [`Machine::has_executed`] tells by their numbers. They are looked for in the machine's image, in the
    /// symbols of `files`, and in the tables of a Linux kernel that runs.
    pub fn await_functions(&mut self, places: Vec<Place>, files: &[Symbol]) {
        if places.is_empty() {
            return;
        }
        let awaited = Awaited::new(places, ImageFunctions::of(&self.image), files);
        awaited.place(&mut self.vcpus);
        self.awaited = Some(awaited);
    }

    /// What became of a place that is waited for.
    pub fn has_executed(&self, number: usize) -> Awaiting {
        match self.awaited.as_ref().and_then(|awaited| awaited.functions.get(number)) {
            Some(function) if function.executed => Awaiting::Executed,
            Some(function) if !function.at.is_empty() || !function.linked_at.is_empty() => Awaiting::NotExecuted,
            _ => Awaiting::Unknown,
        }
    }
}
