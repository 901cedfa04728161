//! Reverse execution: another machine is created in the same way and given the same input, which makes it repeat the
//! run up to an earlier point.
//!
//! A point of the run is a number of [turns](crate::replay) (which are always at the same instructions) and a count of
//! instructions after the last of them. To find the last stop before a point, the run is repeated up to that point from
//! earlier and earlier turns. All machines of a run share one journal of its input.
//!
//! Snapshots at intervals shorten the repetition; without them it starts at the beginning.

use super::session::{Session, Stop};
use crate::host::{Host, HostFrame, Piece, Poll};
use crate::machine::Machine;
use crate::replay::Journal;
use crate::vcpus::Pause;
use cpu::stops::{Count, Place, Stops, Why};
use ledger::Ticks;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// A point of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Number of turns so far.
    pub turns: u64,
    /// Number of instructions begun since the last turn.
    pub count: Count,
}

/// Creates copies of a machine in its state before the run.
pub struct Make<'a> {
    /// Creates a machine that has not run. Returns `None` if that is no longer possible.
    pub machine: Box<dyn Fn() -> Option<Machine> + 'a>,
    /// Brings the machine to the state in which the run began, if that was a snapshot. Returns false if it can no
    /// longer be restored.
    pub begin: Box<dyn Fn(&mut Machine) -> bool + 'a>,
}

/// Information about a run in addition to the machine.
pub struct History<'m> {
    make: Option<Make<'m>>,
    /// Input from outside.
    journal: Option<Rc<RefCell<Journal>>>,
    kept: Kept,
    /// Bytes of console output so far: of the machine, and the number shown to the user.
    printed: u64,
    shown: u64,
}

impl<'m> History<'m> {
    /// Creates the history of a run. The run can go back if `make` is given.
    pub fn new(make: Option<Make<'m>>) -> Self {
        Self { make, journal: None, kept: Kept::default(), printed: 0, shown: 0 }
    }

    /// Returns true if the run can go back.
    pub fn reaches_back(&self) -> bool {
        self.make.is_some()
    }

    /// Takes a snapshot at each turn.
    #[cfg(test)]
    pub fn keep_often(&mut self) {
        self.kept.interval = 1;
    }

    /// Discards the past, which can no longer be repeated.
    pub fn forget(&mut self) {
        self.make = None;
        self.kept = Kept::default();
    }

    /// Keeps the journal of the machine's input.
    pub fn follow(&mut self, machine: &mut Machine) {
        self.journal = Some(machine.replay.journal());
    }

    /// Returns the host for a machine whose execution is `new`, or repeats earlier execution.
    pub fn relay<'a>(&'a mut self, host: &'a mut dyn Host, new: bool) -> Relay<'a, 'm> {
        Relay { history: self, host, new }
    }

    /// Takes a snapshot of the machine, if one is due.
    pub fn keep(&mut self, machine: &mut Machine) {
        let turns = machine.replay.turns();
        if self.make.is_none() || !self.kept.is_due(turns) {
            return;
        }
        match machine.snapshot(&[]) {
            Ok(file) => self.kept.add(Moment { turns, printed: self.printed, file }),
            // Reverse execution works without snapshots, more slowly.
            Err(_) => self.kept.useless.set(true),
        }
    }

    /// Returns a machine as close before a turn as possible, and the number of bytes that it has printed.
    fn nearest_before(&self, turns: u64) -> Option<(Machine, u64)> {
        let make = self.make.as_ref()?;
        // A machine is restored once: to a snapshot on the way, or to the beginning of the run.
        if let Some(moment) = self.kept.before(turns) {
            let mut machine = (make.machine)()?;
            machine.replay.follow(self.journal.clone()?);
            if machine.restore(&moment.file, &[]).is_ok() {
                return Some((machine, moment.printed));
            }
            self.kept.useless.set(true);
        }
        let mut machine = (make.machine)()?;
        if !(make.begin)(&mut machine) {
            return None;
        }
        machine.replay.follow(self.journal.clone()?);
        Some((machine, 0))
    }
}

/// A snapshot of the run.
struct Moment {
    turns: u64,
    printed: u64,
    file: Vec<u8>,
}

/// Snapshots of a run, in order.
struct Kept {
    moments: Vec<Moment>,
    /// Number of turns between two snapshots.
    interval: u64,
    /// True if this machine can't be saved or restored.
    useless: Cell<bool>,
}

impl Default for Kept {
    fn default() -> Self {
        Self { moments: Vec::new(), interval: Self::SHORTEST, useless: Cell::new(false) }
    }
}

impl Kept {
    /// Minimum number of turns between two snapshots.
    const SHORTEST: u64 = 32;
    /// Maximum number of snapshots.
    const MOST: usize = 16;
    /// Maximum total size of the snapshots in bytes.
    const LARGEST: usize = 1 << 30;

    fn is_due(&self, turns: u64) -> bool {
        let last = self.moments.last().map_or(0, |moment| moment.turns);
        !self.useless.get() && turns >= last + self.interval
    }

    /// Adds a snapshot. If there are too many, every second one is dropped, and the interval is doubled.
    fn add(&mut self, moment: Moment) {
        self.moments.push(moment);
        let bytes = |moments: &[Moment]| moments.iter().map(|moment| moment.file.len()).sum::<usize>();
        while self.moments.len() > Self::MOST || self.moments.len() > 1 && bytes(&self.moments) > Self::LARGEST {
            let mut number = 0;
            self.moments.retain(|_| {
                number += 1;
                number % 2 == 0
            });
            self.interval = self.interval.saturating_mul(2);
        }
    }

    fn before(&self, turns: u64) -> Option<&Moment> {
        if self.useless.get() {
            return None;
        }
        self.moments.iter().rfind(|moment| moment.turns <= turns)
    }
}

/// Host that hides repeated output from the outside.
pub struct Relay<'a, 'm> {
    history: &'a mut History<'m>,
    host: &'a mut dyn Host,
    new: bool,
}

impl Host for Relay<'_, '_> {
    fn output(&mut self, bytes: &[u8]) {
        let history = &mut *self.history;
        history.printed += bytes.len() as u64;
        let new = history.printed.saturating_sub(history.shown).min(bytes.len() as u64);
        history.shown = history.shown.max(history.printed);
        if new != 0 {
            self.host.output(&bytes[bytes.len() - new as usize..]);
        }
    }

    fn poll(&mut self, now: Ticks, wanted: bool) -> Poll {
        self.host.poll(now, wanted)
    }

    fn frames(&mut self, room: &dyn Fn(u8) -> bool) -> Vec<HostFrame> {
        self.host.frames(room)
    }

    fn send(&mut self, frames: Vec<HostFrame>) {
        self.host.send(frames);
    }

    fn channel_output(&mut self, channel: u8, bytes: &[u8]) {
        self.host.channel_output(channel, bytes);
    }

    fn pieces(&mut self, room: &dyn Fn(u8) -> bool) -> Vec<Piece> {
        self.host.pieces(room)
    }

    fn attended(&self) -> bool {
        self.host.attended()
    }

    fn idle(&mut self, limit: Duration) {
        if self.new {
            self.host.idle(limit);
        }
    }
}

/// Host of a machine that repeats earlier execution.
struct Repeated {
    printed: u64,
    attended: bool,
}

impl Host for Repeated {
    fn output(&mut self, bytes: &[u8]) {
        self.printed += bytes.len() as u64;
    }

    fn poll(&mut self, _: Ticks, _: bool) -> Poll {
        Poll::default()
    }

    fn attended(&self) -> bool {
        self.attended
    }

    fn idle(&mut self, _: Duration) {}
}

/// A machine that repeats earlier execution.
struct Repetition<'a> {
    machine: Machine,
    host: Repeated,
    /// True if its run has ended.
    over: bool,
    /// Returns true if the debugger has cancelled the operation.
    interrupted: &'a mut dyn FnMut() -> bool,
}

impl Repetition<'_> {
    /// Runs to the next turn or stop. Returns `None` if the machine deviates from the earlier execution, or the
    /// operation is cancelled.
    fn go(&mut self) -> Option<Pause> {
        if self.over {
            return None;
        }
        let pause = self.machine.slice();
        if !matches!(pause, Pause::Debug(_)) {
            let outcome = self.machine.outside(pause, &mut self.host);
            self.over = outcome.is_some();
            if (self.interrupted)() {
                return None;
            }
        }
        Some(pause)
    }

    /// Runs to a turn.
    fn go_to(&mut self, turns: u64) -> Option<()> {
        while self.machine.replay.turns() < turns {
            self.go()?;
        }
        Some(())
    }

    /// Enables stops in the machine.
    fn attach(&mut self, stops: &Arc<Stops>) {
        self.machine.vcpus.all.iter_mut().for_each(|vcpu| vcpu.cpu.debug(stops.clone()));
    }
}

/// A stop in the past: a turn, and the number of stops since that turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Past {
    turns: u64,
    number: u64,
    processor: usize,
    why: Why,
}

impl Session<'_> {
    /// Returns a machine that has repeated the run up to a turn.
    fn repetition<'a>(
        history: &'a History,
        turns: u64,
        attended: bool,
        interrupted: &'a mut dyn FnMut() -> bool,
    ) -> Option<Repetition<'a>> {
        let (machine, printed) = history.nearest_before(turns)?;
        let host = Repeated { printed, attended };
        let mut repetition = Repetition { machine, host, over: false, interrupted };
        repetition.go_to(turns)?;
        Some(repetition)
    }

    /// Sets the same breakpoints and watchpoints in another machine.
    fn same_stops(&self, repetition: &mut Repetition) -> Arc<Stops> {
        let stops = Arc::new(Stops::default());
        self.stops.watches().into_iter().for_each(|watch| stops.watch(watch));
        repetition.attach(&stops);
        let vcpus = &mut repetition.machine.vcpus;
        for vcpu in &mut vcpus.all {
            vcpu.cpu.watches_changed();
        }
        for address in self.breakpoints() {
            vcpus.cache.code.add_breakpoint(address);
        }
        stops
    }

    /// Returns the current position of the run.
    fn position(&self, attended: bool, interrupted: &mut dyn FnMut() -> bool) -> Option<Position> {
        if let Some(position) = self.known_position() {
            return Some(position);
        }
        let turns = self.machine.replay.turns();
        let mut repetition = Self::repetition(&self.history, turns, attended, interrupted)?;
        let stops = Arc::new(Stops::default());
        repetition.attach(&stops);
        stops.restart(true);
        let late = self.is_late();
        let here = &self.machine.vcpus.all[self.current].cpu;
        stops.stop_in(Some(Place::of(here, late)));
        loop {
            let Pause::Debug(index) = repetition.go()? else { return None };
            let found = &repetition.machine.vcpus.all[index].cpu;
            let count = Count { begun: stops.begun(), late };
            if found.arch.gpr == here.arch.gpr && found.rflags() == here.rflags() {
                return Some(Position { turns, count });
            }
            if !late {
                // The processor is still before its instruction, which the next resumption executes.
                stops.stop_in(None);
                stops.stop_at(Some(Count { late: true, ..count }));
                repetition.go()?;
                stops.stop_at(None);
                stops.stop_in(Some(Place::of(here, late)));
            }
        }
    }

    /// Goes to an earlier point of the run. Returns false if the debugger has cancelled the operation.
    fn seek(&mut self, position: Position, attended: bool, interrupted: &mut dyn FnMut() -> bool) -> bool {
        let reached = (|| {
            let mut repetition = Self::repetition(&self.history, position.turns, attended, interrupted)?;
            self.stops.clear();
            self.stops.restart(true);
            let mut processor = repetition.machine.vcpus.next();
            repetition.attach(&self.stops);
            if position.count != (Count { begun: 0, late: false }) {
                self.stops.ignore(true);
                self.stops.stop_at(Some(position.count));
                let Pause::Debug(index) = repetition.go()? else { return None };
                processor = index;
            }
            Some((repetition.machine, repetition.host.printed, processor))
        })();
        let Some((machine, printed, processor)) = reached else {
            // The instruction counts are lost.
            self.counted_since = None;
            self.stops.clear();
            return false;
        };
        let begun = self.stops.begun();
        self.stops.clear();
        debug_assert_eq!(begun, position.count.begun);
        self.replace(machine, position, processor);
        self.history.set_printed(printed);
        true
    }

    /// Goes back to the beginning of the run.
    fn go_to_beginning(&mut self, attended: bool, interrupted: &mut dyn FnMut() -> bool) -> Stop {
        let beginning = Position { turns: 0, count: Count { begun: 0, late: false } };
        match self.seek(beginning, attended, interrupted) {
            true => Stop::Beginning(self.current),
            false => Stop::Interrupted(self.current),
        }
    }

    /// Goes back to the point before a processor's last instruction.
    pub(super) fn step_back(
        &mut self,
        processor: usize,
        host: &mut dyn Host,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Stop {
        let attended = host.attended();
        let Some(here) = self.position(attended, interrupted) else { return Stop::Interrupted(self.current) };
        let mut end = here;
        for from in Windows::before(here.turns) {
            match self.last_instruction(processor, from, end, attended, interrupted) {
                Err(Unwanted) => return Stop::Interrupted(self.current),
                Ok(Some(position)) => {
                    return match self.seek(position, attended, interrupted) {
                        true => Stop::Step(processor),
                        false => Stop::Interrupted(self.current),
                    };
                }
                Ok(None) => end = Position { turns: from, count: Count { begun: 0, late: false } },
            }
        }
        self.go_to_beginning(attended, interrupted)
    }

    /// Finds the last point before an instruction of a processor, between a turn and a point.
    fn last_instruction(
        &self,
        processor: usize,
        from: u64,
        end: Position,
        attended: bool,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Position>, Unwanted> {
        let mut repetition = Self::repetition(&self.history, from, attended, interrupted).ok_or(Unwanted)?;
        let stops = Arc::new(Stops::default());
        repetition.attach(&stops);
        let mut last = None;
        while repetition.machine.replay.turns() < end.turns || end.count.begun != 0 || end.count.late {
            let turns = repetition.machine.replay.turns();
            stops.restart(true);
            stops.follow(Some(processor));
            stops.stop_at((turns == end.turns).then_some(end.count));
            let pause = repetition.go().ok_or(Unwanted)?;
            if let Some(begun) = stops.last_of() {
                last = Some(Position { turns, count: Count { begun, late: true } });
            }
            if matches!(pause, Pause::Debug(_)) {
                break;
            }
        }
        Ok(last)
    }

    /// Goes back to the last breakpoint or watchpoint.
    pub(super) fn continue_back(&mut self, host: &mut dyn Host, interrupted: &mut dyn FnMut() -> bool) -> Stop {
        let attended = host.attended();
        let Some(here) = self.position(attended, interrupted) else { return Stop::Interrupted(self.current) };
        let mut end = here;
        for from in Windows::before(here.turns) {
            let found = self.last_stop(from, end, attended, interrupted);
            let Ok(past) = found else { return Stop::Interrupted(self.current) };
            let Some(past) = past else {
                end = Position { turns: from, count: Count { begun: 0, late: false } };
                continue;
            };
            let position = self.place_of(past, attended, interrupted);
            let Some(position) = position else { return Stop::Interrupted(self.current) };
            if !self.seek(position, attended, interrupted) {
                return Stop::Interrupted(self.current);
            }
            self.current = past.processor;
            return match past.why {
                Why::Watch(address, kind) => Stop::Watch(past.processor, address, kind),
                Why::Breakpoint | Why::Step | Why::Reached => Stop::Breakpoint(past.processor),
            };
        }
        self.go_to_beginning(attended, interrupted)
    }

    /// Finds the last stop between a turn and a point.
    fn last_stop(
        &self,
        from: u64,
        end: Position,
        attended: bool,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Past>, Unwanted> {
        let mut repetition = Self::repetition(&self.history, from, attended, interrupted).ok_or(Unwanted)?;
        let stops = self.same_stops(&mut repetition);
        let (mut last, mut number) = (None, 0);
        let mut fresh = true;
        while repetition.machine.replay.turns() < end.turns || end.count.begun != 0 || end.count.late {
            let turns = repetition.machine.replay.turns();
            if fresh && turns == end.turns {
                stops.restart(true);
                stops.stop_at(Some(end.count));
            }
            fresh = false;
            let Pause::Debug(processor) = repetition.go().ok_or(Unwanted)? else {
                (fresh, number) = (true, 0);
                continue;
            };
            match stops.take_why() {
                Some(Why::Reached) | None => break,
                Some(why) => {
                    last = Some(Past { turns, number, processor, why });
                    number += 1;
                }
            }
        }
        Ok(last)
    }

    /// Returns the position of a stop; for a watchpoint, the position before the instruction that touches it.
    fn place_of(&self, past: Past, attended: bool, interrupted: &mut dyn FnMut() -> bool) -> Option<Position> {
        let mut repetition = Self::repetition(&self.history, past.turns, attended, interrupted)?;
        let stops = self.same_stops(&mut repetition);
        stops.restart(true);
        for _ in 0..=past.number {
            let Pause::Debug(_) = repetition.go()? else { return None };
            stops.take_why();
        }
        let begun = stops.begun();
        let count = match past.why {
            Why::Watch(..) => {
                begun.checked_sub(1).map_or(Count { begun, late: false }, |begun| Count { begun, late: true })
            }
            _ => Count { begun, late: true },
        };
        Some(Position { turns: past.turns, count })
    }
}

impl History<'_> {
    fn set_printed(&mut self, printed: u64) {
        self.printed = printed;
    }
}

/// Error: the debugger has cancelled the operation.
struct Unwanted;

/// Turns from which the run is repeated: earlier and earlier ones, at distances that double.
struct Windows {
    next: Option<u64>,
    step: u64,
}

impl Windows {
    fn before(turns: u64) -> Self {
        Self { next: Some(turns), step: 1 }
    }
}

impl Iterator for Windows {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let now = self.next?;
        self.next = (now != 0).then(|| now.saturating_sub(self.step));
        self.step *= 2;
        Some(now)
    }
}
