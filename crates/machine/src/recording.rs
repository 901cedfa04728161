//! Recordings of a machine's input, as files.

use crate::machine::Machine;
use crate::replay::{Event, Journal};
use crate::snapshot::error::SnapshotError;
use crate::snapshot::file::{self, Kind};
use crate::state::decode;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::rc::Rc;

/// A log of input.
#[derive(Debug, Serialize, Deserialize)]
struct Log {
    /// Description of the machine, by name and value.
    machine: Vec<(String, String)>,
    events: Vec<Event>,
}

impl Machine {
    /// Records all input from now on, for [`Machine::recording`].
    pub fn record(&mut self) {
        self.replay.journal();
    }

    /// Returns the recorded input as a file. `images` identifies the images that the machine was booted from.
    pub fn recording(&self, images: &[(String, String)]) -> Result<Vec<u8>, SnapshotError> {
        let events = self.replay.events().ok_or(SnapshotError::NothingRecorded)?;
        let log = Log { machine: self.made_from(images), events };
        file::seal(Kind::Input, &log)
    }

    /// Replays the input of a file, and accepts no other. The machine must have been created in the same way as the
    /// recorded one. A machine restored from a snapshot gets the input that followed the snapshot.
    pub fn replay(&mut self, bytes: &[u8], images: &[(String, String)]) -> Result<(), SnapshotError> {
        let log: Log = decode(file::open(Kind::Input, bytes)?)?;
        crate::snapshot::same_machine(&log.machine, &self.made_from(images))?;
        let journal = Journal::complete(log.events).ok_or(SnapshotError::Damaged)?;
        self.replay.follow(Rc::new(RefCell::new(journal)));
        Ok(())
    }
}
