//! Recorded input as files, of a machine.

use crate::machine::Machine;
use crate::replay::{Event, Journal};
use crate::snapshot::error::SnapshotError;
use crate::snapshot::file::{self, Kind};
use crate::state::{decode, encode};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::rc::Rc;

/// A log of input.
#[derive(Debug, Serialize, Deserialize)]
struct Log {
    /// What the machine was made from, by name and value.
    machine: Vec<(String, String)>,
    events: Vec<Event>,
}

impl Machine {
    /// Notes all input from now on, for [`Machine::recording`].
    pub fn record(&mut self) {
        self.replay.journal();
    }

    /// The input that was noted, as a file. `images` identifies what the machine was booted from.
    pub fn recording(&self, images: &[(String, String)]) -> Result<Vec<u8>, SnapshotError> {
        let events = self.replay.events().ok_or(SnapshotError::NothingRecorded)?;
        let log = Log { machine: self.made_from(images), events };
        Ok(file::seal(Kind::Input, &encode(&log)?))
    }

    /// Gives the guest the input of a file, and no other. The machine must have been made as the one that was recorded. If it is restored from
    /// a snapshot, it gets what came later.
    pub fn replay(&mut self, bytes: &[u8], images: &[(String, String)]) -> Result<(), SnapshotError> {
        let log: Log = decode(file::open(Kind::Input, bytes)?)?;
        crate::snapshot::same_machine(&log.machine, &self.made_from(images))?;
        let journal = Journal::complete(log.events).ok_or(SnapshotError::Damaged)?;
        self.replay.follow(Rc::new(RefCell::new(journal)));
        Ok(())
    }
}
