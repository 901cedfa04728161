//! Input from outside, with the time at which the guest received it. A run that gets the same input again is the same
//! run.
//!
//! Time is counted in turns here: the machine takes a turn, in which it polls the host, after each slice of virtual
//! time. While only input can wake the guest, the machine polls repeatedly, at intervals that depend on the host's
//! clock. Of these polls only the first, and the one that brings input, count as turns.
//!
//! A journal holds the input of a run, by turns. Recordings are made from it, and a debugger reverses the run along it.

use crate::host::{HostFrame, Piece, Poll};
use crate::state::{StateError, require};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::rc::Rc;

/// Input that arrived from outside in one turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    turn: u64,
    #[serde(with = "serde_bytes")]
    input: Vec<u8>,
    /// Frames for NICs.
    frames: Vec<HostFrame>,
    /// Input for channels.
    pieces: Vec<Piece>,
    /// True if the run was stopped.
    stop: bool,
}

/// Input of a run, shared by the machines that repeat it.
#[derive(Debug, Default)]
pub struct Journal {
    /// Events in the order of their turns.
    events: Vec<Event>,
    /// The last turn that any of the machines has taken: the input up to it is known.
    reached: u64,
    /// Input that arrived while the machine was stopped or repeated a part of its run.
    early: Poll,
    /// True if the journal is complete: the host is not polled for input.
    closed: bool,
}

/// Path of input into a machine.
#[derive(Debug, Default)]
pub struct Replay {
    /// Journal to which input is written and from which it is replayed. Without a journal the guest gets the host's
    /// input, and nothing is recorded.
    journal: Option<Rc<RefCell<Journal>>>,
    /// Number of journal events that this machine has received.
    given: usize,
    time: Turns,
}

/// Position of a machine in the sequence of turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turns {
    /// Number of turns so far.
    taken: u64,
    /// True if the machine had nothing to do in the last turn and waits for input.
    waits: bool,
}

/// Bound of a saved number of turns, so that the turns of the rest of a run do not overflow.
const MOST_TURNS: u64 = 1 << 62;

impl Turns {
    /// Checks that a machine can be at this position.
    pub(crate) fn check(self) -> Result<(), StateError> {
        require(self.taken < MOST_TURNS, "a number of turns that no machine takes")
    }
}

impl Journal {
    /// Creates the journal of a finished run. Returns `None` if the events can't be those of a run.
    pub(crate) fn complete(events: Vec<Event>) -> Option<Self> {
        let sorted = events.is_sorted_by_key(|event| event.turn);
        sorted.then(|| Self { events, closed: true, ..Self::default() })
    }
}

impl Replay {
    /// Returns the events so far, if there is a journal.
    pub(crate) fn events(&self) -> Option<Vec<Event>> {
        self.journal.as_ref().map(|journal| journal.borrow().events.clone())
    }

    /// Returns the number of turns so far.
    pub(crate) fn turns(&self) -> u64 {
        self.time.taken
    }

    /// Returns the position for a snapshot.
    pub(crate) fn time(&self) -> Turns {
        self.time
    }

    /// Continues from the position in a snapshot.
    pub(crate) fn go_on_from(&mut self, time: Turns) {
        self.time = time;
        self.find_next();
    }

    /// Finds the first event that the machine has not received yet.
    fn find_next(&mut self) {
        let taken = self.time.taken;
        self.given = self.journal.as_ref().map_or(0, |j| j.borrow().events.partition_point(|e| e.turn <= taken));
    }

    /// Takes a turn: accepts the host's input, and returns the input for the guest. `waiting` is true if only input can
    /// wake the guest.
    pub(crate) fn turn(&mut self, waiting: bool, poll: Poll) -> Poll {
        // Without new input the machine is still in its last turn.
        let stands = waiting && self.time.waits;
        let turn = self.time.taken + 1;
        let live = self.listens();
        let given = match &self.journal {
            None => poll,
            Some(journal) => journal.borrow_mut().turn(turn, live, poll, &mut self.given),
        };
        if !stands || !given.is_quiet() {
            self.time.taken = turn;
            if let Some(journal) = &self.journal {
                let mut journal = journal.borrow_mut();
                journal.reached = journal.reached.max(turn);
            }
        }
        self.time.waits = waiting && given.is_quiet();
        given
    }

    /// Returns true if the next poll asks the host for input.
    pub(crate) fn listens(&self) -> bool {
        self.journal.as_ref().is_none_or(|journal| {
            let journal = journal.borrow();
            !journal.closed && self.time.taken >= journal.reached
        })
    }

    /// Returns true if a machine has taken the next turn before, in this run or in another that shares the journal.
    pub(crate) fn repeats(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| {
            let journal = journal.borrow();
            !journal.closed && self.time.taken < journal.reached
        })
    }

    /// Returns true if the journal contains input that the machine has not received yet.
    pub(crate) fn has_more(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.borrow().events.len() > self.given)
    }

    /// Returns the journal of this machine's input, which is kept from now on.
    pub(crate) fn journal(&mut self) -> Rc<RefCell<Journal>> {
        let reached = self.time.taken;
        self.journal.get_or_insert_with(|| Rc::new(RefCell::new(Journal { reached, ..Journal::default() }))).clone()
    }

    /// Follows the journal of other machines.
    pub(crate) fn follow(&mut self, journal: Rc<RefCell<Journal>>) {
        self.journal = Some(journal);
        self.find_next();
    }

    /// Keeps input that arrived while the machine was stopped.
    pub(crate) fn keep(&mut self, poll: Poll) {
        if let Some(journal) = &self.journal {
            journal.borrow_mut().keep(poll);
        }
    }

    /// Departs from the recorded run at the current turn.
    pub(crate) fn turn_off(&mut self) {
        let Some(journal) = &self.journal else { return };
        let mut journal = journal.borrow_mut();
        if !journal.closed {
            journal.events.truncate(self.given);
            journal.reached = self.time.taken;
        }
    }
}

impl Journal {
    fn keep(&mut self, poll: Poll) {
        if !self.closed {
            self.early.input.extend(poll.input);
            self.early.frames.extend(poll.frames);
            self.early.pieces.extend(poll.pieces);
        }
    }

    /// Returns the input of a turn. `live` is true if no machine has taken this turn before.
    fn turn(&mut self, turn: u64, live: bool, poll: Poll, given: &mut usize) -> Poll {
        if !live {
            let mut known = Poll { stop: poll.stop, ..Poll::default() };
            self.keep(poll);
            while let Some(event) = self.events.get(*given).filter(|event| event.turn <= turn) {
                known.input.extend_from_slice(&event.input);
                known.frames.extend_from_slice(&event.frames);
                known.pieces.extend_from_slice(&event.pieces);
                known.stop |= event.stop;
                *given += 1;
            }
            return known;
        }
        let Poll { mut input, mut frames, mut pieces, .. } = std::mem::take(&mut self.early);
        input.extend(poll.input);
        frames.extend(poll.frames);
        pieces.extend(poll.pieces);
        let poll = Poll { input, frames, pieces, stop: poll.stop };
        if !poll.is_quiet() || poll.stop {
            let Poll { input, frames, pieces, stop } = poll.clone();
            self.events.push(Event { turn, input, frames, pieces, stop });
            *given = self.events.len();
        }
        poll
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(input: &[u8], stop: bool) -> Poll {
        Poll { input: input.to_vec(), stop, ..Poll::default() }
    }

    fn recorded(events: Vec<Event>) -> Rc<RefCell<Journal>> {
        Rc::new(RefCell::new(Journal { events, closed: true, ..Journal::default() }))
    }

    /// Returns the guest's input at each poll of a host that has no new input.
    fn looks(replay: &mut Replay, looks: &[bool]) -> Vec<Vec<u8>> {
        looks.iter().map(|waiting| replay.turn(*waiting, poll(b"ignored", false)).input).collect()
    }

    #[test]
    fn what_was_noted_comes_again_at_the_same_turns() {
        let mut recording = Replay::default();
        let journal = recording.journal();
        // While the guest waits for input, the host is polled any number of times.
        let turns = [(false, ""), (false, "a"), (true, ""), (true, ""), (true, "bc"), (false, ""), (false, "d")];
        for (waiting, input) in turns {
            assert_eq!(recording.turn(waiting, poll(input.as_bytes(), false)).input, input.as_bytes());
        }
        recording.turn(false, poll(b"", true));
        let mut replay = Replay::default();
        replay.follow(recorded(journal.borrow().events.clone()));
        // Input that wakes the guest is delivered when it waits, not at its last activity.
        let got = looks(&mut replay, &[false, false, true, true, false, false]);
        assert_eq!(got, [&b""[..], b"a", b"", b"bc", b"", b"d"].map(<[u8]>::to_vec));
        assert!(replay.turn(false, poll(b"", false)).stop);
        assert_eq!(replay.time(), recording.time());
    }

    #[test]
    fn what_came_before_a_snapshot_does_not_come_again() {
        let event = |turn, input: &[u8]| {
            let (frames, pieces) = (Vec::new(), Vec::new());
            Event { turn, input: input.to_vec(), frames, pieces, stop: false }
        };
        for restored_first in [false, true] {
            let mut replay = Replay::default();
            let journal = recorded(vec![event(3, b"before"), event(5, b"after")]);
            let time = Turns { taken: 4, waits: true };
            if restored_first {
                replay.go_on_from(time);
                replay.follow(journal);
            } else {
                replay.follow(journal);
                replay.go_on_from(time);
            }
            assert_eq!(looks(&mut replay, &[true, false]), [b"after".to_vec(), Vec::new()]);
        }
    }

    #[test]
    fn a_second_machine_takes_the_way_of_the_first() {
        let mut first = Replay::default();
        let journal = first.journal();
        for input in ["a", "", "b"] {
            first.turn(false, poll(input.as_bytes(), false));
        }
        let mut second = Replay::default();
        second.follow(journal);
        assert!(!second.listens());
        let repeated = ["x", "", "y"].map(|typed| second.turn(false, poll(typed.as_bytes(), false)).input);
        assert_eq!(repeated, [&b"a"[..], b"", b"b"].map(<[u8]>::to_vec));
        // From the position of the first machine on, input typed in the meantime is delivered first.
        assert!(second.listens());
        assert_eq!(second.turn(false, poll(b"z", false)).input, b"xyz");
    }
}
