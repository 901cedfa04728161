//! A debugger's view of a run: what it waits for, and how the machine goes on until that comes.

use super::history::{History, Position};
use crate::host::Host;
use crate::machine::{Machine, Outcome};
use crate::vcpus::Pause;
use cpu::stops::{Count, Stops, Watch, Watched, Why};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// The most breakpoints, and the most watchpoints, that are set at a time.
const MOST: usize = 1 << 12;

/// How the machine is to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resume {
    /// Until something stops it.
    Continue,
    /// Until a processor has executed an instruction, and is no longer `within` these addresses.
    Step {
        /// The processor.
        processor: usize,
        /// Where more than one instruction is executed.
        within: Range<u64>,
    },
    /// Back to where a processor was before its last instruction.
    StepBack {
        /// The processor.
        processor: usize,
    },
    /// Back to the last breakpoint or watchpoint.
    ContinueBack,
}

/// Why the machine has stopped for its debugger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A processor has made its step.
    Step(usize),
    /// A processor is before an instruction with a breakpoint.
    Breakpoint(usize),
    /// A processor has touched a watched address, or, backwards, is about to.
    Watch(usize, u64, Watched),
    /// The debugger wanted it to.
    Interrupted(usize),
    /// It is where the run began, and can't go back any further.
    Beginning(usize),
    /// The guest is dead; the run ends when it is to go on.
    Dead(usize),
    /// The run is over.
    Ended(Outcome),
}

/// Who wants a breakpoint at an address.
#[derive(Clone, Copy, Debug, Default)]
struct Wanted {
    /// As one in memory.
    software: bool,
    /// As one in hardware.
    hardware: bool,
}

/// A run and its debugger.
pub struct Session<'a> {
    /// The machine; where the run has gone back, another one that was made the same way.
    pub machine: &'a mut Machine,
    pub(super) stops: Rc<Stops>,
    pub(super) history: History<'a>,
    pub(super) resume: Resume,
    /// Addresses of memory are physical ones.
    pub(super) physical: bool,
    breakpoints: BTreeMap<u64, Wanted>,
    /// The processor that stopped last.
    pub(super) current: usize,
    /// The last stop was before an instruction, not right after one.
    late: bool,
    /// Instructions have been counted since this turn.
    pub(super) counted_since: Option<u64>,
    /// The guest is dead.
    dead: Option<Outcome>,
}

impl<'a> Session<'a> {
    /// Of a machine that has not run yet.
    pub fn new(machine: &'a mut Machine, mut history: History<'a>) -> Self {
        history.follow(machine);
        Self {
            machine,
            stops: Rc::default(),
            history,
            resume: Resume::Continue,
            physical: false,
            breakpoints: BTreeMap::new(),
            current: 0,
            late: false,
            counted_since: None,
            dead: None,
        }
    }

    /// A debugger has connected.
    pub fn attach(&mut self) {
        self.stops.clear();
        self.machine.stand_still();
        self.current = self.machine.vcpus.next();
        for vcpu in &mut self.machine.vcpus.all {
            vcpu.cpu.debug(self.stops.clone());
        }
    }

    /// The debugger is gone: nothing stops the machine any more.
    pub fn detach(&mut self) {
        self.stops.clear();
        self.stops.unwatch_all();
        self.watches_changed();
        for address in std::mem::take(&mut self.breakpoints).into_keys() {
            self.forget_breakpoint(address);
        }
        for vcpu in &mut self.machine.vcpus.all {
            vcpu.cpu.leave_alone();
        }
        self.counted_since = None;
        self.physical = false;
        self.machine.start();
    }

    /// The run ends where it is.
    pub fn give_up(&mut self) {
        self.detach();
        let vcpus = &mut self.machine.vcpus;
        vcpus.all.iter_mut().for_each(|vcpu| vcpu.cpu.abandon_block(&mut vcpus.cache));
    }

    /// Puts what the debugger waits for into another machine and makes it the session's, at `position`.
    pub(super) fn replace(&mut self, machine: Machine, position: Position, processor: usize) {
        *self.machine = machine;
        self.counted_since = Some(position.turns);
        (self.current, self.late, self.dead) = (processor, position.count.late, None);
        for address in self.breakpoints.keys().copied().collect::<Vec<_>>() {
            self.set_breakpoint(address);
        }
        self.watches_changed();
    }

    /// Where the run is, if that is known without a search.
    pub(super) fn known_position(&self) -> Option<Position> {
        let turns = self.machine.replay.turns();
        if !self.machine.vcpus.is_held() {
            return Some(Position { turns, count: Count { begun: 0, late: false } });
        }
        let known = self.counted_since == Some(turns);
        known.then(|| Position { turns, count: Count { begun: self.stops.begun(), late: self.late } })
    }

    /// Whether the last stop was before an instruction.
    pub(super) fn is_late(&self) -> bool {
        self.late
    }

    /// Addresses with breakpoints.
    pub(super) fn breakpoints(&self) -> Vec<u64> {
        self.breakpoints.keys().copied().collect()
    }

    /// Whether the run can go back.
    pub(super) fn goes_back(&self) -> bool {
        self.history.reaches_back()
    }

    /// The debugger has changed the guest: what it did before cannot be done again.
    pub(super) fn changed(&mut self) {
        self.history.forget();
        self.machine.replay.turn_off();
    }

    fn set_breakpoint(&mut self, address: u64) {
        self.machine.vcpus.cache.add_breakpoint(address);
    }

    fn forget_breakpoint(&mut self, address: u64) {
        self.machine.vcpus.cache.remove_breakpoint(address);
    }

    /// Adds a breakpoint. `false`: there are too many.
    pub fn add_breakpoint(&mut self, address: u64, hardware: bool) -> bool {
        if self.breakpoints.len() == MOST && !self.breakpoints.contains_key(&address) {
            return false;
        }
        let wanted = self.breakpoints.entry(address).or_default();
        let known = wanted.software || wanted.hardware;
        match hardware {
            true => wanted.hardware = true,
            false => wanted.software = true,
        }
        if !known {
            self.set_breakpoint(address);
        }
        true
    }

    /// Removes a breakpoint. `false`: there is none.
    pub fn remove_breakpoint(&mut self, address: u64, hardware: bool) -> bool {
        let Some(wanted) = self.breakpoints.get_mut(&address) else { return false };
        let flag = if hardware { &mut wanted.hardware } else { &mut wanted.software };
        let was = std::mem::take(flag);
        if !wanted.software && !wanted.hardware {
            self.breakpoints.remove(&address);
            self.forget_breakpoint(address);
        }
        was
    }

    /// Whether the breakpoint before which a processor stands was asked for as one in hardware only.
    pub fn is_hardware(&self, processor: usize) -> bool {
        let at = self.machine.vcpus.all[processor].cpu.code_linear();
        self.breakpoints.get(&at).is_some_and(|wanted| !wanted.software)
    }

    fn watches_changed(&mut self) {
        self.machine.vcpus.all.iter_mut().for_each(|vcpu| vcpu.cpu.watches_changed());
    }

    /// Adds a watchpoint. `false`: it is empty, or there are too many.
    pub fn add_watch(&mut self, watch: Watch) -> bool {
        let fits = watch.len != 0 && self.stops.watches().len() < MOST;
        if fits {
            self.stops.watch(watch);
            self.watches_changed();
        }
        fits
    }

    /// Removes a watchpoint. `false`: there is none.
    pub fn remove_watch(&mut self, watch: Watch) -> bool {
        let was = self.stops.unwatch(watch);
        self.watches_changed();
        was
    }

    /// The machine is about to go on as [`Session::resume`] says.
    pub fn going_on(&mut self) {
        self.stops.clear();
        self.machine.start();
        match self.resume {
            Resume::Step { processor, .. } => {
                self.stops.step(Some(processor));
                self.machine.vcpus.all[processor].cpu.seen();
                self.count_on();
            }
            Resume::Continue if !self.stops.watches().is_empty() => self.count_on(),
            Resume::Continue => self.counted_since = None,
            Resume::StepBack { .. } | Resume::ContinueBack => {}
        }
    }

    /// Goes on counting, if all has been counted since the last turn.
    fn count_on(&mut self) {
        if !self.machine.vcpus.is_held() {
            self.stops.restart(true);
            self.counted_since = Some(self.machine.replay.turns());
        } else if self.counted_since == Some(self.machine.replay.turns()) {
            self.stops.keep_counting();
        } else {
            self.counted_since = None;
        }
    }

    /// Goes on for a while. Why the machine has stopped, if it has.
    pub fn go(&mut self, host: &mut dyn Host, interrupted: &mut dyn FnMut() -> bool) -> Option<Stop> {
        let stop = self.resumed(host, interrupted);
        if stop.is_some() {
            self.machine.stand_still();
        }
        stop
    }

    fn resumed(&mut self, host: &mut dyn Host, interrupted: &mut dyn FnMut() -> bool) -> Option<Stop> {
        if let (Some(outcome), Resume::Continue | Resume::Step { .. }) = (self.dead, &self.resume) {
            return Some(Stop::Ended(outcome));
        }
        match self.resume.clone() {
            Resume::Continue => self.forward(host, &(0..0)),
            Resume::Step { within, .. } => self.forward(host, &within),
            Resume::StepBack { processor } => Some(self.step_back(processor, host, interrupted)),
            Resume::ContinueBack => Some(self.continue_back(host, interrupted)),
        }
    }

    /// The debugger wants the machine to stop where it is.
    pub fn interrupt(&mut self) -> Stop {
        self.stops.clear();
        self.machine.stand_still();
        self.current = self.machine.vcpus.next();
        Stop::Interrupted(self.current)
    }

    /// Runs up to the next pause.
    fn forward(&mut self, host: &mut dyn Host, within: &Range<u64>) -> Option<Stop> {
        match self.machine.slice() {
            Pause::Debug(index) => {
                let why = self.stops.take_why()?;
                self.current = index;
                self.late = !matches!(why, Why::Watch(..));
                let at = self.machine.vcpus.all[index].cpu.code_linear();
                if why == Why::Step && within.contains(&at) {
                    return None;
                }
                Some(match why {
                    Why::Breakpoint => Stop::Breakpoint(index),
                    Why::Watch(address, kind) => Stop::Watch(index, address, kind),
                    Why::Step | Why::Reached => Stop::Step(index),
                })
            }
            pause => {
                let outcome = self.pause(pause, host);
                // What is looked at instruction by instruction is counted at no further cost.
                if self.counted_since.is_some() {
                    self.stops.restart(true);
                    self.counted_since = Some(self.machine.replay.turns());
                }
                let outcome = outcome?;
                self.current = self.machine.vcpus.next();
                match outcome {
                    Outcome::PowerOff | Outcome::Reset | Outcome::DebugExit(_) | Outcome::Stopped => {
                        Some(Stop::Ended(outcome))
                    }
                    Outcome::TripleFault(index) | Outcome::UnhandledExit(index, _) | Outcome::Failed(index) => {
                        self.current = index;
                        self.dead = Some(outcome);
                        Some(Stop::Dead(index))
                    }
                    Outcome::Panic | Outcome::Stuck => {
                        self.dead = Some(outcome);
                        Some(Stop::Dead(self.current))
                    }
                }
            }
        }
    }

    /// Does what is to be done outside, and notes it.
    pub fn pause(&mut self, pause: Pause, host: &mut dyn Host) -> Option<Outcome> {
        let new = self.machine.replay.listens();
        let outcome = self.machine.outside(pause, &mut self.history.relay(host, new));
        if outcome.is_none() {
            self.history.keep(self.machine);
        }
        outcome
    }
}
