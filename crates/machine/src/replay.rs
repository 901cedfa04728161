//! Input from outside, with the time at which the guest got it: a run that is given the same again is the same run.
//!
//! Time here is counted in turns: the machine takes a turn of looking at the host after each slice of virtual time. While nothing but input
//! can wake the guest, it looks again and again, as often as the host's clock has it: of these looks only the first is a turn, and the one that
//! brings input.
//!
//! A journal holds the input of a run, by turns. Recordings are made of it, and a debugger takes the run back along it.

use crate::host::{HostFrame, Piece, Poll};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::rc::Rc;

/// Something that came from outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    turn: u64,
    #[serde(with = "serde_bytes")]
    input: Vec<u8>,
    /// Frames for NICs.
    frames: Vec<HostFrame>,
    /// Input for channels.
    pieces: Vec<Piece>,
    /// The run was stopped.
    stop: bool,
}

/// The input of a run, shared by the machines that take the same way.
#[derive(Debug, Default)]
pub struct Journal {
    /// In the order of their turns.
    events: Vec<Event>,
    /// The last turn that any of the machines has taken: the input up to it is known.
    reached: u64,
    /// Input that came while the machine stood still or repeated what it had done.
    early: Poll,
    /// The journal is complete: nobody else is listened to.
    closed: bool,
}

/// The way of input into a machine.
#[derive(Debug, Default)]
pub struct Replay {
    /// Where input is noted and comes from; without it the guest gets what comes, and nothing is noted.
    journal: Option<Rc<RefCell<Journal>>>,
    /// How many of the journal's events this machine has got.
    given: usize,
    time: Turns,
}

/// Where a machine is in the sequence of turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turns {
    /// Turns so far.
    taken: u64,
    /// In the last one there was nothing to do, and only input changes that.
    waits: bool,
}

impl Journal {
    /// The journal of a run that is over. `None`: no run has these events.
    pub(crate) fn complete(events: Vec<Event>) -> Option<Self> {
        let sorted = events.is_sorted_by_key(|event| event.turn);
        sorted.then(|| Self { events, closed: true, ..Self::default() })
    }
}

impl Replay {
    /// The events so far, if they are noted.
    pub(crate) fn events(&self) -> Option<Vec<Event>> {
        self.journal.as_ref().map(|journal| journal.borrow().events.clone())
    }

    /// Turns so far.
    pub(crate) fn turns(&self) -> u64 {
        self.time.taken
    }

    /// What a snapshot keeps.
    pub(crate) fn time(&self) -> Turns {
        self.time
    }

    /// Goes on after a snapshot.
    pub(crate) fn go_on_from(&mut self, time: Turns) {
        self.time = time;
        self.find_next();
    }

    /// Finds the first event that the machine has not got yet.
    fn find_next(&mut self) {
        let taken = self.time.taken;
        self.given = self.journal.as_ref().map_or(0, |j| j.borrow().events.partition_point(|e| e.turn <= taken));
    }

    /// Takes what the host has; what the guest is to get. `waiting`: only input can wake the guest.
    pub(crate) fn turn(&mut self, waiting: bool, poll: Poll) -> Poll {
        // The machine stands where it stood at the last look, unless there is input now.
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

    /// Whether the host is asked for input at the next look.
    pub(crate) fn listens(&self) -> bool {
        self.journal.as_ref().is_none_or(|journal| {
            let journal = journal.borrow();
            !journal.closed && self.time.taken >= journal.reached
        })
    }

    /// Whether there is input that the machine has yet to get.
    pub(crate) fn has_more(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.borrow().events.len() > self.given)
    }

    /// The journal of this machine's input, which is kept from now on.
    pub(crate) fn journal(&mut self) -> Rc<RefCell<Journal>> {
        let reached = self.time.taken;
        self.journal.get_or_insert_with(|| Rc::new(RefCell::new(Journal { reached, ..Journal::default() }))).clone()
    }

    /// Takes the way of other machines.
    pub(crate) fn follow(&mut self, journal: Rc<RefCell<Journal>>) {
        self.journal = Some(journal);
        self.find_next();
    }

    /// Keeps input that came while the machine stood still.
    pub(crate) fn keep(&mut self, poll: Poll) {
        if let Some(journal) = &self.journal {
            journal.borrow_mut().keep(poll);
        }
    }

    /// Takes another way from here on than before.
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

    /// What a machine gets at a turn. `live`: no machine has taken it before.
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

    /// What the guest gets at each look, of a host that has nothing it wants.
    fn looks(replay: &mut Replay, looks: &[bool]) -> Vec<Vec<u8>> {
        looks.iter().map(|waiting| replay.turn(*waiting, poll(b"ignored", false)).input).collect()
    }

    #[test]
    fn what_was_noted_comes_again_at_the_same_turns() {
        let mut recording = Replay::default();
        let journal = recording.journal();
        // While the guest waits for input, the host is asked any number of times.
        let turns = [(false, ""), (false, "a"), (true, ""), (true, ""), (true, "bc"), (false, ""), (false, "d")];
        for (waiting, input) in turns {
            assert_eq!(recording.turn(waiting, poll(input.as_bytes(), false)).input, input.as_bytes());
        }
        recording.turn(false, poll(b"", true));
        let mut replay = Replay::default();
        replay.follow(recorded(journal.borrow().events.clone()));
        // What woke the guest comes when it waits, not when it last did something.
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
        // From where the first one is on, what was typed meanwhile comes first.
        assert!(second.listens());
        assert_eq!(second.turn(false, poll(b"z", false)).input, b"xyz");
    }
}
