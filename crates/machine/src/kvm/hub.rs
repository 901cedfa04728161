//! State that the threads of a run share: the board, and the activity of each virtual processor.
//!
//! One lock protects all of it. A thread holds the lock while it handles an exit, and never while its processor
//! executes the guest.

use super::host::{Exit, Kick, Runner, io_error};
use super::registers::State;
use crate::acpi;
use crate::board::Board;
use crate::machine::{Outcome, ticks};
use crate::memory::GuestRam;
use cpu::{Bus, Ident};
use kvm_bindings::kvm_vcpu_events;
use ledger::{Family, Kind, Ticks};
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Activity of a virtual processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Executing, or about to execute.
    Running,
    /// In HLT.
    Halted,
    /// After reset or INIT, waiting for a start-up IPI.
    Waiting,
}

/// A virtual processor as seen by the other threads.
#[derive(Debug)]
pub struct Slot {
    /// Current activity.
    pub activity: Activity,
    /// RFLAGS.IF at its last exit.
    interrupts: bool,
    /// Handle that makes the processor leave the guest, while it executes the guest.
    inside: Option<Kick>,
    /// True if the processor will exit when it can take the pending interrupt.
    windowed: bool,
    /// State in which the processor continues, until its thread has loaded it.
    restart: Option<Box<State>>,
}

impl Slot {
    /// Prevents further kicks of the processor: its thread ends.
    pub fn silence(&mut self) {
        self.inside = None;
    }
}

/// State protected by the lock.
pub struct Shared<'a> {
    /// The devices.
    pub board: &'a mut Board,
    /// The processors.
    pub slots: Vec<Slot>,
    /// Time at which the timer thread wakes up by itself.
    timer_at: Ticks,
    /// Reason for which the threads should end, if they should.
    pub ended: Option<End>,
    /// Error of KVM if it could not continue.
    pub failure: Option<String>,
}

/// Reason for which the threads end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The run is over.
    Outcome(Outcome),
    /// The registers are to be inspected.
    Look,
}

/// Shared state, and the constants of a run.
pub struct Hub<'a> {
    shared: Mutex<Shared<'a>>,
    wake: Vec<Condvar>,
    timer: Condvar,
    pace: Pace,
    /// Registers after INIT.
    init: State,
    ram: GuestRam,
}

/// Conversion of the host's clock to the board's clock.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Start of the run.
    pub started: Instant,
    /// Frequency of the TSC.
    pub tsc_hz: u64,
}

impl Pace {
    /// Returns the board's current time.
    pub fn now(&self) -> Ticks {
        ticks(self.started.elapsed(), self.tsc_hz)
    }

    fn duration(&self, time: Ticks) -> Duration {
        let ns = u128::from(time) * 1_000_000_000 / (u128::from(self.tsc_hz) * u128::from(ledger::TICKS_PER_CYCLE));
        // A slightly late wake-up is in time; an early one would have to be repeated.
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX).saturating_add(1))
    }
}

/// Returns the initial slots: the first processor executes, the others wait.
pub fn slots(cpus: usize) -> Vec<Slot> {
    let slot = |index| Slot {
        activity: if index == 0 { Activity::Running } else { Activity::Waiting },
        interrupts: false,
        inside: None,
        windowed: false,
        restart: None,
    };
    (0..cpus).map(slot).collect()
}

impl<'a> Hub<'a> {
    /// Creates the shared state for the threads of a run, or of a part of it.
    pub fn new(board: &'a mut Board, slots: Vec<Slot>, pace: Pace, init: State, ram: GuestRam) -> Self {
        let wake = slots.iter().map(|_| Condvar::new()).collect();
        let shared = Shared { board, slots, timer_at: Ticks::MAX, ended: None, failure: None };
        Self { shared: Mutex::new(shared), wake, timer: Condvar::new(), pace, init, ram }
    }

    /// Takes the lock.
    pub fn lock(&self) -> MutexGuard<'_, Shared<'a>> {
        cpu::bus::lock(&self.shared)
    }

    /// Returns the protected state after the threads have ended.
    pub fn into_shared(self) -> Shared<'a> {
        self.shared.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the board's time.
    pub fn now(&self) -> Ticks {
        self.pace.now()
    }

    /// Waits until a processor may have something to do.
    pub fn sleep<'b>(&self, index: usize, shared: MutexGuard<'b, Shared<'a>>) -> MutexGuard<'b, Shared<'a>> {
        self.wake[index].wait(shared).unwrap_or_else(PoisonError::into_inner)
    }

    /// Advances the board's time until the run ends.
    pub fn pass_time(&self) {
        let mut shared = self.lock();
        while shared.ended.is_none() {
            let now = self.now();
            shared.board.advance(now);
            for index in 0..shared.slots.len() {
                shared.board.advance_timer(index, now);
            }
            if shared.board.suspended() && shared.board.resume() {
                shared.resume(self);
            }
            shared.settle(self);
            let event = shared.next_event();
            shared.timer_at = event;
            shared = match event {
                Ticks::MAX => self.timer.wait(shared).unwrap_or_else(PoisonError::into_inner),
                _ => {
                    let limit = self.pace.duration(event.saturating_sub(now));
                    self.timer.wait_timeout(shared, limit).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

impl Shared<'_> {
    /// Returns the time of the board's next event.
    fn next_event(&self) -> Ticks {
        let timers = (0..self.slots.len()).filter_map(|index| self.board.timer_event(index));
        timers.chain(self.board.next_event()).min().unwrap_or(Ticks::MAX)
    }

    /// Makes the threads end.
    pub fn end(&mut self, hub: &Hub, end: End) {
        self.ended.get_or_insert(end);
        hub.timer.notify_one();
        for index in 0..self.slots.len() {
            self.rouse(hub, index);
        }
    }

    /// Ends the run because KVM can't continue with a processor.
    pub fn fail(&mut self, hub: &Hub, index: usize, why: String) {
        self.failure.get_or_insert(why);
        self.end(hub, End::Outcome(Outcome::Failed(index)));
    }

    /// Makes a processor check for changes.
    fn rouse(&mut self, hub: &Hub, index: usize) {
        match self.slots[index].inside.take() {
            // The processor's thread clears the handle under the lock before the thread ends.
            Some(kick) => kick.leave(),
            None => hub.wake[index].notify_one(),
        }
    }

    /// Delivers changes on the board to the processors concerned.
    pub fn settle(&mut self, hub: &Hub) {
        // No decoded code and no regions of interest exist here.
        drop(self.board.take_written());
        while self.board.pop_mark().is_some() {}
        if let Some(ending) = self.board.ending() {
            self.end(hub, End::Outcome(ending.into()));
            return;
        }
        let suspended = self.board.suspended();
        for index in 0..self.slots.len() {
            let signals = self.board.lapic(index).has_signals();
            let interrupt = self.board.interrupt(index) && !self.slots[index].windowed;
            if signals || interrupt || suspended || self.slots[index].restart.is_some() {
                self.rouse(hub, index);
            }
        }
        if self.next_event() < self.timer_at {
            hub.timer.notify_one();
        }
    }

    /// Handles the wake-up from suspension to RAM: the first processor continues at the waking vector of the FACS.
    fn resume(&mut self, hub: &Hub) {
        let mut vector = [0; 4];
        let vector = if hub.ram.read(acpi::WAKING_VECTOR, &mut vector) { u32::from_le_bytes(vector) } else { 0 };
        // A processor that has not noticed the suspension yet must not continue either.
        for slot in &mut self.slots {
            slot.activity = Activity::Waiting;
        }
        if let Some(first) = self.slots.first_mut() {
            first.restart = Some(Box::new(hub.init.started((vector >> 4) as u16, u64::from(vector & 0xf))));
        }
    }

    /// Returns true if nothing can wake a processor, or only input, which can't come if the host is not attended.
    pub fn stuck(&self, attended: bool) -> bool {
        let events = self.next_event() != Ticks::MAX;
        let alive = |(index, slot): (usize, &Slot)| match slot.activity {
            Activity::Running => true,
            Activity::Halted => slot.interrupts && (events || attended || self.board.interrupt(index)),
            Activity::Waiting => false,
        };
        let wakes = self.board.suspended() && events;
        !wakes && !self.slots.iter().enumerate().any(alive) && self.slots.iter().all(|slot| slot.restart.is_none())
    }

    /// Delivers pending events to a processor. If the processor should enter the guest now, returns the injected
    /// vector, or 0.
    pub fn deliver(&mut self, hub: &Hub, index: usize, runner: &mut Runner) -> io::Result<Option<u8>> {
        let apic_base = self.board.lapic(index).apic_base();
        let slot = &mut self.slots[index];
        if self.board.suspended() {
            slot.activity = Activity::Waiting;
        }
        if let Some(state) = slot.restart.take() {
            put(runner, &state, apic_base)?;
            slot.activity = Activity::Running;
        }
        let lapic = self.board.lapic(index);
        if lapic.take_init() {
            lapic.reset();
            put(runner, &hub.init, apic_base)?;
            slot.activity = Activity::Waiting;
            slot.interrupts = false;
        }
        if let (Some(page), Activity::Waiting) = (lapic.take_startup(), slot.activity) {
            put(runner, &hub.init.started(u16::from(page) << 8, 0), apic_base)?;
            slot.activity = Activity::Running;
        }
        if slot.activity == Activity::Waiting {
            return Ok(None);
        }
        for _ in 0..lapic.take_nmis() {
            runner.fd().nmi().map_err(io_error)?;
            slot.activity = Activity::Running;
        }
        let mut pending = self.board.interrupt(index);
        if slot.activity == Activity::Halted {
            if !(pending && slot.interrupts) {
                return Ok(None);
            }
            slot.activity = Activity::Running;
        }
        let mut injected = None;
        if pending && slot.interrupts && runner.shared().ready_for_interrupt_injection != 0 {
            injected = self.board.acknowledge(Ident { cpu: index, now: hub.now() });
            if let Some(vector) = injected {
                runner.inject(vector)?;
            }
            pending = self.board.interrupt(index);
        }
        let cr8 = self.board.lapic(index).cr8();
        let run = runner.shared();
        run.ready_for_interrupt_injection = 0;
        run.request_interrupt_window = pending.into();
        run.cr8 = cr8.into();
        run.immediate_exit = 0;
        slot.windowed = pending;
        slot.inside = Some(runner.kick());
        Ok(Some(injected.unwrap_or(0)))
    }

    /// Takes over the local APIC's registers that KVM keeps, after a processor has left the guest.
    pub fn left(&mut self, index: usize, interrupts: bool, cr8: u64, apic_base: u64) {
        let slot = &mut self.slots[index];
        slot.inside = None;
        slot.windowed = false;
        slot.interrupts = interrupts;
        let lapic = self.board.lapic(index);
        if u64::from(lapic.cr8()) != cr8 {
            lapic.set_cr8(cr8 as u8);
        }
        if lapic.apic_base() != apic_base {
            // KVM has checked the value as far as it can; a value that the board does not support is ignored.
            let _ = lapic.set_apic_base(apic_base);
        }
    }

    /// Handles an exit, and returns its kind.
    pub fn serve(&mut self, hub: &Hub, index: usize, exit: Exit) -> Option<Kind> {
        let who = Ident { cpu: index, now: hub.now() };
        Some(match exit {
            Exit::In { port, size, data } => {
                for element in data.chunks_exact_mut(size.into()) {
                    let value = self.board.port_in(who, port, size);
                    element.copy_from_slice(&value.to_le_bytes()[..size.into()]);
                }
                Kind::new(Family::PortIn, port.into())
            }
            Exit::Out { port, size, data } => {
                for element in data.chunks_exact(size.into()) {
                    self.board.port_out(who, port, size, number(element) as u32);
                }
                Kind::new(Family::PortOut, port.into())
            }
            Exit::Read { address, data } => {
                for (offset, len) in pieces(data.len()) {
                    let value = self.board.read(who, address + offset as u64, len as u8);
                    data[offset..offset + len].copy_from_slice(&value.to_le_bytes()[..len]);
                }
                Kind::new(Family::MmioRead, self.board.device(address))
            }
            Exit::Write { address, data } => {
                for (offset, len) in pieces(data.len()) {
                    self.board.write(who, address + offset as u64, len as u8, number(&data[offset..offset + len]));
                }
                Kind::new(Family::MmioWrite, self.board.device(address))
            }
            Exit::Halt => {
                // The machine may have been suspended in the meantime.
                if self.slots[index].activity == Activity::Running {
                    self.slots[index].activity = Activity::Halted;
                }
                Kind::new(Family::Halt, 0)
            }
            Exit::Window => Kind::new(Family::VmExit, x86::vmx::reason::INTERRUPT_WINDOW),
            Exit::Kicked => Kind::new(Family::VmExit, x86::vmx::reason::EXTERNAL_INTERRUPT),
            Exit::Shutdown => {
                self.end(hub, End::Outcome(Outcome::TripleFault(index)));
                return None;
            }
            Exit::Failed(why) => {
                self.fail(hub, index, why);
                return None;
            }
        })
    }
}

/// Loads a new state into a processor, as INIT does: pending operations are discarded.
pub fn put(runner: &mut Runner, state: &State, apic_base: u64) -> io::Result<()> {
    runner.complete()?;
    let sregs = kvm_bindings::kvm_sregs { apic_base, ..state.sregs };
    let fd = runner.fd();
    fd.set_sregs(&sregs).and_then(|()| fd.set_regs(&state.regs)).map_err(io_error)?;
    fd.set_vcpu_events(&kvm_vcpu_events::default()).map_err(io_error)
}

/// Converts up to eight bytes to a number.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Splits an access of any length into accesses of 1, 2, 4 or 8 bytes: offset and length of each.
fn pieces(len: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let left = (len - at).min(8);
        let piece = (left != 0).then(|| (at, 1 << left.ilog2()))?;
        at += piece.1;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_of_odd_lengths_are_several() {
        for (len, expected) in [(1, vec![(0, 1)]), (8, vec![(0, 8)]), (7, vec![(0, 4), (4, 2), (6, 1)]), (0, vec![])] {
            assert_eq!(pieces(len).collect::<Vec<_>>(), expected);
        }
        assert_eq!(number(&[0x78, 0x56, 0x34, 0x12]), 0x1234_5678);
    }
}
