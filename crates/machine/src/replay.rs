//! Input from outside, with the time at which the guest got it: a run that is given the same again is the same run.
//!
//! Time here is counted in turns: the machine takes a turn of looking at the host after each slice of virtual time. Where nothing but input
//! can wake the guest, it looks again and again, which the host's clock decides; these turns are not counted.

use crate::machine::{Machine, Poll};
use crate::snapshot::SnapshotError;
use crate::snapshot::file::{self, Kind};
use crate::state::{decode, encode};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Something that came from outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Event {
    turn: u64,
    #[serde(with = "serde_bytes")]
    input: Vec<u8>,
    /// The run was stopped.
    stop: bool,
}

/// A log of input.
#[derive(Debug, Serialize, Deserialize)]
struct Log {
    /// What the machine was made from, by name and value.
    machine: Vec<(String, String)>,
    events: Vec<Event>,
}

/// What is done with input.
#[derive(Debug, Default)]
enum Mode {
    /// The guest gets it.
    #[default]
    Live,
    /// The guest gets it, and it is noted.
    Recording(Vec<Event>),
    /// The guest gets what was noted; nobody else is listened to.
    Replaying(VecDeque<Event>),
}

/// The way of input into a machine.
#[derive(Debug, Default)]
pub struct Replay {
    mode: Mode,
    pub(crate) turns: u64,
}

impl Replay {
    /// Takes what the host has at a turn; what the guest is to get. `waiting`: only input can wake the guest.
    pub(crate) fn turn(&mut self, waiting: bool, poll: Poll) -> Poll {
        if !waiting {
            self.turns += 1;
        }
        let turn = self.turns;
        match &mut self.mode {
            Mode::Live => poll,
            Mode::Recording(events) => {
                if !poll.input.is_empty() || poll.stop {
                    events.push(Event { turn, input: poll.input.clone(), stop: poll.stop });
                }
                poll
            }
            Mode::Replaying(events) => {
                let mut given = Poll { input: Vec::new(), stop: poll.stop };
                while let Some(event) = events.pop_front_if(|event| event.turn <= turn) {
                    given.input.extend(event.input);
                    given.stop |= event.stop;
                }
                given
            }
        }
    }

    /// Whether the host is asked for input.
    pub(crate) fn listens(&self) -> bool {
        !matches!(self.mode, Mode::Replaying(_))
    }
}

impl Machine {
    /// Notes all input from now on, for [`Machine::recording`].
    pub fn record(&mut self) {
        self.replay.mode = Mode::Recording(Vec::new());
    }

    /// The input that was noted, as a file. `images` identifies what the machine was booted from.
    pub fn recording(&self, images: &[(String, String)]) -> Result<Vec<u8>, SnapshotError> {
        let Mode::Recording(events) = &self.replay.mode else { return Err(SnapshotError::NothingRecorded) };
        let log = Log { machine: self.made_from(images), events: events.clone() };
        Ok(file::seal(Kind::Input, &encode(&log)?))
    }

    /// Gives the guest the input of a file, and no other. The machine must have been made as the one that was recorded.
    pub fn replay(&mut self, bytes: &[u8], images: &[(String, String)]) -> Result<(), SnapshotError> {
        let log: Log = decode(file::open(Kind::Input, bytes)?)?;
        crate::snapshot::same_machine(&log.machine, &self.made_from(images))?;
        self.replay.mode = Mode::Replaying(log.events.into());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(input: &[u8], stop: bool) -> Poll {
        Poll { input: input.to_vec(), stop }
    }

    #[test]
    fn what_was_noted_comes_again_at_the_same_turns() {
        let mut recording = Replay { mode: Mode::Recording(Vec::new()), ..Replay::default() };
        // While the guest waits for input, the host is asked any number of times.
        let turns = [(false, ""), (false, "a"), (true, ""), (true, ""), (true, "bc"), (false, ""), (false, "d")];
        for (waiting, input) in turns {
            assert_eq!(recording.turn(waiting, poll(input.as_bytes(), false)).input, input.as_bytes());
        }
        recording.turn(false, poll(b"", true));
        let Mode::Recording(events) = recording.mode else { panic!("it records") };
        let mut replay = Replay { mode: Mode::Replaying(events.into()), ..Replay::default() };
        let got = [false, false, true, false, false].map(|waiting| replay.turn(waiting, poll(b"ignored", false)).input);
        assert_eq!(got, [&b""[..], b"abc", b"", b"", b"d"].map(<[u8]>::to_vec));
        assert!(replay.turn(false, poll(b"", false)).stop);
    }
}
