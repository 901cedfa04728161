//! A debugger's session with a run: its breakpoints and watchpoints, and the execution up to the next stop.

use super::history::{History, Position};
use super::unreached::Reached;
use crate::host::Host;
use crate::machine::{Machine, Outcome};
use crate::vcpus::Pause;
use cpu::stops::{Count, Stops, Watch, Watched, Why};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Maximum number of breakpoints, and of watchpoints.
const MOST: usize = 1 << 12;

/// Way in which the machine continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resume {
    /// Continue until the next stop.
    Continue,
    /// Continue until a processor has executed an instruction and is no longer `within` these addresses.
    Step {
        /// Index of the processor.
        processor: usize,
        /// Range in which more than one instruction is executed.
        within: Range<u64>,
    },
    /// Go back to the point before a processor's last instruction.
    StepBack {
        /// Index of the processor.
        processor: usize,
    },
    /// Go back to the last breakpoint or watchpoint.
    ContinueBack,
}

/// Reason for which the machine has stopped for its debugger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A processor has completed its step.
    Step(usize),
    /// A processor is before an instruction with a breakpoint.
    Breakpoint(usize),
    /// A processor has accessed a watched address or, in reverse, is about to.
    Watch(usize, u64, Watched),
    /// The debugger has interrupted the machine.
    Interrupted(usize),
    /// The run is at its beginning, and can't go back any further.
    Beginning(usize),
    /// The guest is dead; the run ends if it is continued.
    Dead(usize),
    /// The run is over.
    Ended(Outcome),
}

/// Kinds of breakpoints that are set at an address.
#[derive(Clone, Copy, Debug, Default)]
struct Wanted {
    /// True for a software breakpoint.
    software: bool,
    /// True for a hardware breakpoint.
    hardware: bool,
}

/// A run and its debugger.
pub struct Session<'a> {
    /// The machine; after reverse execution, another one that was created in the same way.
    pub machine: &'a mut Machine,
    pub(super) stops: Arc<Stops>,
    pub(super) history: History<'a>,
    pub(super) resume: Resume,
    /// True if memory addresses are physical.
    pub(super) physical: bool,
    breakpoints: BTreeMap<u64, Wanted>,
    /// Index of the processor that stopped last.
    pub(super) current: usize,
    /// True if the last stop was before an instruction, and not right after one.
    late: bool,
    /// Turn since which instructions have been counted.
    pub(super) counted_since: Option<u64>,
    /// Outcome of a dead guest.
    dead: Option<Outcome>,
    /// The breakpoints with which the guest has run since the debugger connected.
    pub(super) reached: Reached,
}

impl<'a> Session<'a> {
    /// Creates the session of a machine that has not run yet.
    pub fn new(machine: &'a mut Machine, mut history: History<'a>) -> Self {
        history.follow(machine);
        Self {
            machine,
            stops: Arc::default(),
            history,
            resume: Resume::Continue,
            physical: false,
            breakpoints: BTreeMap::new(),
            current: 0,
            late: false,
            counted_since: None,
            dead: None,
            reached: Reached::default(),
        }
    }

    /// Handles the connection of a debugger.
    pub fn attach(&mut self) {
        self.stops.clear();
        self.reached = Reached::default();
        self.machine.stand_still();
        self.current = self.machine.vcpus.next();
        for vcpu in &mut self.machine.vcpus.all {
            vcpu.cpu.debug(self.stops.clone());
        }
    }

    /// Handles the disconnection of the debugger: nothing stops the machine any more.
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

    /// Ends the run at the current point.
    pub fn give_up(&mut self) {
        self.detach();
        let vcpus = &mut self.machine.vcpus;
        vcpus.all.iter_mut().for_each(|vcpu| vcpu.cpu.abandon_block(&mut vcpus.cache));
    }

    /// Moves the stops to another machine and makes it the session's machine, at `position`.
    pub(super) fn replace(&mut self, machine: Machine, position: Position, processor: usize) {
        *self.machine = machine;
        self.counted_since = Some(position.turns);
        (self.current, self.late, self.dead) = (processor, position.count.late, None);
        for address in self.breakpoints.keys().copied().collect::<Vec<_>>() {
            self.set_breakpoint(address);
        }
        self.watches_changed();
    }

    /// Returns the position of the run, if it is known without a search.
    pub(super) fn known_position(&self) -> Option<Position> {
        let turns = self.machine.replay.turns();
        if !self.machine.vcpus.is_held() {
            return Some(Position { turns, count: Count { begun: 0, late: false } });
        }
        let known = self.counted_since == Some(turns);
        known.then(|| Position { turns, count: Count { begun: self.stops.begun(), late: self.late } })
    }

    /// Returns true if the last stop was before an instruction.
    pub(super) fn is_late(&self) -> bool {
        self.late
    }

    /// Returns the addresses of all breakpoints.
    pub(super) fn breakpoints(&self) -> Vec<u64> {
        self.breakpoints.keys().copied().collect()
    }

    /// Returns true if the run can go back.
    pub(super) fn goes_back(&self) -> bool {
        self.history.reaches_back()
    }

    /// Handles a change of the guest by the debugger: earlier execution can no longer be repeated.
    pub(super) fn changed(&mut self) {
        self.history.forget();
        self.machine.replay.turn_off();
    }

    fn set_breakpoint(&mut self, address: u64) {
        self.machine.vcpus.cache.code.add_breakpoint(address);
    }

    fn forget_breakpoint(&mut self, address: u64) {
        self.machine.vcpus.cache.code.remove_breakpoint(address);
    }

    /// Adds a breakpoint. Returns false if there are too many.
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

    /// Removes a breakpoint. Returns false if there is none.
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

    /// Returns true if the breakpoint at which a processor has stopped is a hardware breakpoint only.
    pub fn is_hardware(&self, processor: usize) -> bool {
        let at = self.machine.vcpus.all[processor].cpu.code_linear();
        self.breakpoints.get(&at).is_some_and(|wanted| !wanted.software)
    }

    fn watches_changed(&mut self) {
        self.machine.vcpus.all.iter_mut().for_each(|vcpu| vcpu.cpu.watches_changed());
    }

    /// Adds a watchpoint. Returns false if it is empty, or if there are too many.
    pub fn add_watch(&mut self, watch: Watch) -> bool {
        let fits = watch.len != 0 && self.stops.watches().len() < MOST;
        if fits {
            self.stops.watch(watch);
            self.watches_changed();
        }
        fits
    }

    /// Removes a watchpoint. Returns false if there is none.
    pub fn remove_watch(&mut self, watch: Watch) -> bool {
        let was = self.stops.unwatch(watch);
        self.watches_changed();
        was
    }

    /// Prepares the machine for [`Session::resume`].
    pub fn going_on(&mut self) {
        self.stops.clear();
        self.reached.run_with(self.breakpoints.keys().copied());
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

    /// Continues counting if all instructions since the last turn have been counted.
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

    /// Runs for a while. Returns the reason if the machine has stopped.
    pub fn go(&mut self, host: &mut dyn Host, interrupted: &mut dyn FnMut() -> bool) -> Option<Stop> {
        let stop = self.resumed(host, interrupted);
        if stop.is_some() {
            self.machine.stand_still();
            self.reached.stopped_at(self.machine.vcpus.all[self.current].cpu.code_linear());
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

    /// Stops the machine at its current point on behalf of the debugger.
    pub fn interrupt(&mut self) -> Stop {
        self.stops.clear();
        self.machine.stand_still();
        self.current = self.machine.vcpus.next();
        Stop::Interrupted(self.current)
    }

    /// Runs to the next pause.
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
                // Single-stepped instructions are counted at no additional cost.
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

    /// Handles a pause outside of the processors, and records it.
    pub fn pause(&mut self, pause: Pause, host: &mut dyn Host) -> Option<Outcome> {
        let new = self.machine.replay.listens();
        let outcome = self.machine.outside(pause, &mut self.history.relay(host, new));
        if outcome.is_none() {
            self.history.keep(self.machine);
        }
        outcome
    }
}
