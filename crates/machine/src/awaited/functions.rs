//! Interface of a machine to the functions for which it waits.

use super::{Awaited, Awaiting, Place};
use crate::machine::Machine;
use ledger::symbols::{ImageFunctions, Symbol};

impl Machine {
    /// Waits for the execution of places in functions; [`Machine::has_executed`] reports on them by index. Functions
    /// are looked up in the machine's image, in the symbols of `files`, and in the tables of a running Linux kernel.
    pub fn await_functions(&mut self, places: Vec<Place>, files: &[Symbol]) {
        if places.is_empty() {
            return;
        }
        let awaited = Awaited::new(places, ImageFunctions::of(&self.image), files);
        awaited.place(&mut self.vcpus);
        self.awaited = Some(awaited);
    }

    /// Returns the status of an awaited place.
    pub fn has_executed(&self, number: usize) -> Awaiting {
        match self.awaited.as_ref().and_then(|awaited| awaited.functions.get(number)) {
            Some(function) if function.executed => Awaiting::Executed,
            Some(function) if !function.at.is_empty() || !function.linked_at.is_empty() => Awaiting::NotExecuted,
            _ => Awaiting::Unknown,
        }
    }
}
