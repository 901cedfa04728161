//! The run of a machine on KVM: a thread for each processor, one for time, and this one for the host.

use super::count::{Counts, Report};
use super::host::{self, Runner};
use super::hub::{self, Activity, End, Hub, Pace, Slot};
use super::registers::State;
use super::vm::{Kvm, KvmError, call};
use crate::board::Board;
use crate::host::Host;
use crate::machine::{Machine, Outcome};
use crate::vcpus;
use cpu::bus::lock;
use ledger::{Family, Kind, Ticks};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum time for which this thread waits for the host's input before it checks for guest output.
const GLANCE: Duration = Duration::from_millis(4);
/// Time from a reported kernel panic to the first check of the kernel's stacks.
const FIRST_LOOK: Duration = Duration::from_millis(100);

impl Machine {
    /// Runs the machine on KVM until the guest ends it or the host stops it. The machine must be new, and without a
    /// hypervisor of this program. Afterwards it can be inspected as other machines can. Exits are recorded if
    /// `counted` is true.
    pub fn run_on(&mut self, kvm: Kvm, host: &mut dyn Host, counted: bool) -> Result<Outcome, KvmError> {
        host::prepare_signal().map_err(|error| KvmError::Call("sigaction", error))?;
        let cpus = self.vcpus.all.len();
        let mut vm = kvm.build(&self.ram, cpus, counted)?;
        let entry = State::of(&self.vcpus.all[0].cpu);
        self.vcpus.all[0].cpu.reset(true);
        let init = State::of(&self.vcpus.all[0].cpu);
        let board = self.board.clone();
        for (index, runner) in vm.runners.iter_mut().enumerate() {
            let state = if index == 0 { &entry } else { &init };
            let base = lock(&board).lapic(index).apic_base();
            hub::put(runner, state, base).map_err(|error| KvmError::Call("KVM_SET_SREGS", error))?;
        }
        let pace = Pace { started: Instant::now(), tsc_hz: self.profile.tsc_hz.value };
        let mut counts: Vec<Counts> = (0..cpus).map(|_| Counts::default()).collect();
        let mut report = Report::default();
        let mut slots = hub::slots(cpus);
        let outcome = loop {
            let mut board = lock(&board);
            let hub = Hub::new(&mut board, slots, pace, init, self.ram.clone());
            self.threads(&hub, &mut vm.runners, counted.then_some(&mut counts[..]), host);
            let shared = hub.into_shared();
            slots = shared.slots;
            report.failure = shared.failure;
            let ended = shared.ended;
            self.console_of(&mut board, host);
            drop(board);
            self.show(&mut vm.runners, &slots, pace.now())?;
            match ended {
                Some(End::Outcome(outcome)) => break outcome,
                _ if self.panics() => break Outcome::Panic,
                _ => {}
            }
        };
        let recorder = &mut self.vcpus.all[0].cpu.wiring.recorder;
        report.outside = counts.into_iter().map(|counts| counts.record(recorder)).collect();
        report.statistics = vm.statistics();
        report.elapsed = pace.started.elapsed();
        self.on_kvm = Some(report);
        self.finish();
        Ok(outcome)
    }

    /// Runs the threads until they should end.
    fn threads(&mut self, hub: &Hub, runners: &mut [Runner], counts: Option<&mut [Counts]>, host: &mut dyn Host) {
        let mut counts = counts.map(|counts| counts.iter_mut());
        thread::scope(|scope| {
            for (index, runner) in runners.iter_mut().enumerate() {
                let counts = counts.as_mut().and_then(|counts| counts.next());
                let begun = thread::Builder::new().spawn_scoped(scope, move || drive(hub, index, runner, counts));
                if let Err(error) = begun {
                    hub.lock().fail(hub, index, format!("its thread can't be started: {error}"));
                }
            }
            if let Err(error) = thread::Builder::new().spawn_scoped(scope, || hub.pass_time()) {
                hub.lock().fail(hub, 0, format!("the thread of the timers can't be started: {error}"));
            }
            self.attend(hub, host);
        });
    }

    /// Interacts with the host until the run ends.
    fn attend(&mut self, hub: &Hub, host: &mut dyn Host) {
        loop {
            let wanted = {
                let mut shared = hub.lock();
                self.console_of(shared.board, host);
                if shared.ended.is_some() {
                    return;
                }
                shared.board.console_room()
            };
            let now = hub.now();
            let poll = host.poll(now, wanted);
            let mut shared = hub.lock();
            shared.board.console_input(&poll.input);
            if shared.board.network().reaches_host() {
                host.send(shared.board.network_output());
                let frames = host.frames(&|nic| shared.board.network().has_room(nic.into()));
                shared.board.network_input(&frames);
            }
            shared.settle(hub);
            if poll.stop {
                shared.end(hub, End::Outcome(Outcome::Stopped));
            } else if shared.stuck(host.attended()) {
                shared.end(hub, End::Outcome(Outcome::Stuck));
            } else if self.watch.ended && now >= self.look.0 {
                let first = crate::machine::ticks(FIRST_LOOK, self.profile.tsc_hz.value);
                self.look.1 = self.look.1.saturating_mul(2).max(first);
                self.look.0 = now.saturating_add(self.look.1);
                shared.end(hub, End::Look);
            }
            drop(shared);
            host.idle(GLANCE);
        }
    }

    fn console_of(&mut self, board: &mut Board, host: &mut dyn Host) {
        let bytes = board.console_output();
        if !bytes.is_empty() {
            self.watch.saw(&bytes);
            host.output(&bytes);
        }
    }

    /// Loads the guest's registers into the machine's own processors.
    fn show(&mut self, runners: &mut [Runner], slots: &[Slot], now: Ticks) -> Result<(), KvmError> {
        for ((vcpu, runner), slot) in self.vcpus.all.iter_mut().zip(runners).zip(slots) {
            runner.complete().map_err(|error| KvmError::Call("KVM_RUN", error))?;
            let regs = call("KVM_GET_REGS", runner.fd().get_regs())?;
            let sregs = call("KVM_GET_SREGS", runner.fd().get_sregs())?;
            State { regs, sregs }.show(&mut vcpu.cpu);
            vcpu.cpu.micro.clock = now;
            vcpu.activity = match slot.activity {
                Activity::Running => vcpus::Activity::Running,
                Activity::Halted => vcpus::Activity::Halted,
                Activity::Waiting => vcpus::Activity::WaitingForStartup,
            };
        }
        Ok(())
    }
}

/// The thread of a virtual processor.
fn drive(hub: &Hub, index: usize, runner: &mut Runner, mut counts: Option<&mut Counts>) {
    // The last exit, which lasts until the guest continues: kind, registers and time.
    let mut last: Option<(Kind, State, Ticks)> = None;
    let mut shared = hub.lock();
    while shared.ended.is_none() {
        let vector = match shared.deliver(hub, index, runner) {
            Ok(Some(vector)) => vector,
            Ok(None) => {
                shared = hub.sleep(index, shared);
                continue;
            }
            Err(error) => {
                shared.fail(hub, index, format!("KVM takes no registers or interrupts: {error}"));
                break;
            }
        };
        drop(shared);
        if let (Some(counts), Some((kind, state, since))) = (counts.as_mut(), last.take()) {
            counts.add(kind, &state, hub.now().saturating_sub(since));
            if vector != 0 {
                counts.add(Kind::new(Family::Interrupt, vector.into()), &state, 0);
            }
        }
        let run = runner.run();
        let since = hub.now();
        shared = hub.lock();
        let kind = match run {
            Ok(left) => {
                shared.left(index, left.interrupts, left.cr8, left.apic_base);
                shared.serve(hub, index, left.exit)
            }
            Err(error) => {
                shared.fail(hub, index, format!("KVM_RUN fails: {error}"));
                None
            }
        };
        last = kind.filter(|_| counts.is_some()).map(|kind| (kind, shown(runner), since));
        shared.settle(hub);
    }
    shared.slots[index].silence();
    drop(shared);
    if let (Some(counts), Some((kind, state, since))) = (counts, last) {
        counts.add(kind, &state, hub.now().saturating_sub(since));
    }
}

fn shown(runner: &mut Runner) -> State {
    let (regs, sregs) = runner.shown();
    State { regs, sregs }
}
