//! The processors of a machine, and the loop that runs them.
//!
//! Each processor has a clock of its own. The processor that is furthest behind runs next, for a bounded time, so that
//! all processors advance together in virtual time, and their order depends on nothing but their clocks. A processor in
//! HLT or MWAIT stops until an event wakes it, and is then charged for its sleep.

use crate::acpi;
use crate::board::Board;
use crate::device::{Ending, SLICE_CYCLES};
use crate::devices::marker::Mark;
use crate::loader::Entry;
use crate::memory::GuestRam;
use crate::stacks::Stacks;
use crate::tasks::Tasks;
use cpu::BlockCache;
use cpu::arch::{Segment, TableRegister, attention};
use cpu::bus::lock;
use cpu::{Cpu, Exit};
use hypervisor::Hypervisor;
use ledger::Ticks;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use x86::{reg, seg};

/// Maximum time by which one processor may run ahead of the others, in cycles.
const QUANTUM_CYCLES: u64 = 20_000;
/// The same limit while a processor spins with PAUSE. A processor that is ahead may hold a lock that it has not yet
/// taken at the time of a processor behind it: the one behind spins for as long as the other is ahead.
const SPINNING_QUANTUM_CYCLES: u64 = 500;
/// Time for which the smaller limit applies after a turn with a PAUSE, in cycles.
const SPINNING_CYCLES: u64 = 200_000;

/// Activity state of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Activity {
    /// Executing.
    Running,
    /// In HLT.
    Halted,
    /// In MWAIT: a write to the monitored line wakes the processor too.
    Mwait {
        /// True if interrupts wake the processor even if they are masked.
        masked: bool,
    },
    /// Waiting for a start-up IPI (SIPI) after INIT.
    WaitingForStartup,
}

/// A processor and its activity.
pub struct Vcpu {
    /// The processor.
    pub cpu: Cpu,
    /// State that a hypervisor keeps for the guest on this processor.
    pub guest: Option<hypervisor::Vcpu>,
    /// Activity state.
    pub activity: Activity,
    /// Number of NMIs that wait behind the latched one.
    pub(crate) nmis: u8,
    /// End of the last turn in which the processor executed PAUSE.
    pub(crate) spun: Ticks,
}

impl Vcpu {
    /// Returns true if an external interrupt would wake the processor.
    fn heeds_interrupts(&self) -> bool {
        match self.activity {
            Activity::Halted => match &self.guest {
                Some(guest) => guest.interrupts_end_halt(&self.cpu),
                None => self.cpu.interrupts_end_halt(),
            },
            Activity::Mwait { masked } => masked || self.cpu.arch.flags & x86::flags::IF != 0,
            Activity::Running | Activity::WaitingForStartup => false,
        }
    }

    /// Returns true if the processor sleeps and an NMI would wake it.
    fn heeds_nmi(&self) -> bool {
        let pending = self.cpu.arch.attention & attention::NMI != 0 && !self.cpu.blocks_nmi();
        pending && matches!(self.activity, Activity::Halted | Activity::Mwait { .. })
    }

    /// Returns the time at which the VMX-preemption timer ends HLT in a guest of the machine's own hypervisor.
    fn preemption_timer(&self) -> Option<Ticks> {
        let timer = self.cpu.arch.vmx.timer_at;
        (self.activity == Activity::Halted && timer != Ticks::MAX).then_some(timer)
    }

    /// Returns true if the processor is in MWAIT and the monitored line was written.
    fn line_written(&self) -> bool {
        matches!(self.activity, Activity::Mwait { .. }) && self.cpu.wiring.ram.monitor(self.cpu.wiring.index).is_none()
    }

    /// Runs the hypervisor's guest, or the processor itself.
    fn run(
        &mut self,
        vm: Option<&mut Hypervisor>,
        cache: &mut BlockCache,
        deadline: Ticks,
    ) -> Result<Exit, hypervisor::Failure> {
        match (&mut self.guest, vm) {
            (Some(guest), Some(vm)) => guest.run(vm, &mut self.cpu, cache, deadline),
            _ => Ok(self.cpu.run(cache, deadline)),
        }
    }

    /// Resets the processor and the hypervisor's state for it, by INIT or as at power-on.
    fn reset(&mut self, init: bool) {
        self.cpu.reset(init);
        if let Some(guest) = &mut self.guest {
            guest.replaced();
        }
    }

    /// Handles an INIT signal in VMX operation: it ends HLT in a guest, which exits. A guest in the wait-for-SIPI state
    /// ignores it.
    fn hold_init(&mut self) {
        self.cpu.attend(attention::INIT);
        if self.cpu.non_root() && self.activity == Activity::Halted {
            self.activity = Activity::Running;
        }
    }

    /// Ends HLT or MWAIT at time `now`, and charges the processor for its sleep.
    fn wake(&mut self, now: Ticks) {
        let asleep = now.saturating_sub(self.cpu.micro.clock);
        self.cpu.charge_halt(1, asleep);
        self.cpu.wiring.ram.disarm_monitor(self.cpu.wiring.index);
        self.activity = Activity::Running;
    }
}

/// Reason for which the loop returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// The guest ended the machine.
    Ended(Ending),
    /// Triple fault on this processor.
    TripleFault(usize),
    /// A VM exit, with its reason, on this processor that no hypervisor handles: an error of this program.
    UnhandledExit(usize, u32),
    /// The hypervisor can't continue the guest on this processor: [`Vcpus::failure`] gives the reason.
    Failed(usize),
    /// Every processor is halted with interrupts disabled: nothing can wake one.
    Stuck,
    /// A slice is over: the machine should poll the host.
    Slice,
    /// All processors sleep until this time; the host may sleep as well.
    Idle(Ticks),
    /// A debugger wants to inspect this processor in the middle of its turn.
    Debug(usize),
}

/// All processors of a machine.
pub struct Vcpus {
    /// Processors by index.
    pub all: Vec<Vcpu>,
    /// Decoded blocks, shared by all processors.
    pub cache: BlockCache,
    /// The hypervisor, if the guest runs under one.
    pub hypervisor: Option<Hypervisor>,
    /// Reason for which the hypervisor could not continue.
    pub failure: Option<hypervisor::Failure>,
    /// Tasks that the guest runs on the processors.
    pub tasks: Tasks,
    /// Recorder of stacks, if the run keeps any.
    pub(crate) stacks: Option<Arc<Stacks>>,
    board: Arc<Mutex<Board>>,
    slice_end: Ticks,
    /// The turn in which a debugger has stopped: index of the processor, and end of the turn.
    held: Option<(usize, Ticks)>,
    /// The processor that holds what the modelled caches share.
    holder: usize,
    /// Maximum duration of one call of [`Vcpus::run`].
    pub(crate) slice: Ticks,
}

impl Vcpus {
    /// Creates the processors of a board: the first one executes, the others wait for start-up. With a hypervisor they
    /// run its guest.
    pub fn new(mut cpus: Vec<Cpu>, board: Arc<Mutex<Board>>, hypervisor: Option<Hypervisor>, ram: GuestRam) -> Self {
        let processors = cpus.len();
        let mut caches = cpus.iter_mut().filter_map(|cpu| cpu.micro.memory.as_mut());
        if let Some(first) = caches.next() {
            first.share(processors, caches);
        }
        let vcpu = |(index, cpu): (usize, Cpu)| Vcpu {
            cpu,
            guest: hypervisor.is_some().then(hypervisor::Vcpu::new),
            activity: if index == 0 { Activity::Running } else { Activity::WaitingForStartup },
            nmis: 0,
            spun: 0,
        };
        let all: Vec<Vcpu> = cpus.into_iter().enumerate().map(vcpu).collect();
        Self {
            tasks: Tasks::new(ram, all.len()),
            all,
            cache: BlockCache::new(),
            hypervisor,
            failure: None,
            stacks: None,
            board,
            slice_end: 0,
            held: None,
            holder: 0,
            slice: SLICE_CYCLES * ledger::TICKS_PER_CYCLE,
        }
    }

    /// Returns the processors.
    pub fn cpus(&self) -> impl Iterator<Item = &Cpu> {
        self.all.iter().map(|vcpu| &vcpu.cpu)
    }

    /// Gives a processor what the modelled caches of all share, and tells it what the others have done.
    pub(crate) fn lend_to(&mut self, index: usize) {
        if index == self.holder {
            return;
        }
        if let Ok([from, to]) = self.all.get_disjoint_mut([self.holder, index])
            && let (Some(from), Some(to)) = (&mut from.cpu.micro.memory, &mut to.cpu.micro.memory)
        {
            from.lend(to);
        }
        self.holder = index;
    }

    /// Completes the record of the machine, which is that of the first processor: the counts of blocks, and what the other
    /// processors have recorded.
    pub fn gather(&mut self) {
        for vcpu in &mut self.all {
            vcpu.cpu.complete_tally(&mut self.cache);
        }
        for index in 1..self.all.len() {
            self.hand_over(index);
        }
        if let Some(first) = self.all.first_mut() {
            first.cpu.record_counts(&mut self.cache);
        }
    }

    /// Moves what a processor has recorded to the record of the machine.
    fn hand_over(&mut self, index: usize) {
        if let Some((first, others)) = self.all.split_first_mut()
            && let Some(other) = index.checked_sub(1).and_then(|at| others.get_mut(at))
        {
            first.cpu.wiring.recorder.take_from(&mut other.cpu.wiring.recorder);
        }
    }

    /// Charges processors for a sleep in which the run has ended: the time in the ledger is that of the machine.
    fn end_sleep(&mut self) {
        if self.furthest_behind().is_some() {
            return;
        }
        let now = self.now();
        for vcpu in self.all.iter_mut().filter(|vcpu| vcpu.activity != Activity::WaitingForStartup) {
            let asleep = now.saturating_sub(vcpu.cpu.micro.clock);
            if asleep > 0 {
                vcpu.cpu.charge_halt(1, asleep);
            }
        }
    }

    /// Returns the time of the processor that is ahead of the others.
    pub fn ahead(&self) -> Ticks {
        self.all.iter().map(|vcpu| vcpu.cpu.micro.clock).max().unwrap_or_default()
    }

    /// Ends open regions after the run, and makes the guest available for inspection.
    pub fn finish(&mut self) {
        self.end_sleep();
        let now = self.ahead();
        self.all.iter_mut().for_each(|vcpu| vcpu.cpu.end_current_stays());
        if let Some(first) = self.all.first_mut() {
            self.tasks.finish(&mut first.cpu, now);
        }
        self.show_guest();
    }

    /// Loads the guest's view of its registers into the processors, so that its memory can be inspected as the guest
    /// sees it. The guest can be run again afterwards, though not with the same charges.
    fn show_guest(&mut self) {
        for Vcpu { cpu, guest, .. } in &mut self.all {
            if let Some(guest) = guest {
                let visible = guest.visible(cpu);
                cpu.abandon_guest();
                visible.swap(cpu);
                cpu.mode_changed();
                guest.replaced();
            }
        }
    }

    /// Sets the first processor to the entry state of an image.
    pub fn enter(&mut self, entry: &Entry) {
        let cpu = &mut self.all[0].cpu;
        let segment = |s: &crate::loader::EntrySegment| Segment {
            base: s.base,
            limit: s.limit,
            rights: s.rights,
            selector: s.selector,
        };
        cpu.arch.cr0 = entry.cr0;
        cpu.arch.cr3 = entry.cr3;
        cpu.arch.cr4 = entry.cr4;
        cpu.arch.msr.efer = entry.efer;
        cpu.arch.gdtr = TableRegister { base: entry.gdt.base, limit: entry.gdt.limit };
        cpu.arch.idtr = TableRegister { base: entry.idt.base, limit: entry.idt.limit };
        for number in [seg::ES, seg::SS, seg::DS, seg::FS, seg::GS] {
            cpu.arch.seg[usize::from(number)] = segment(&entry.data);
        }
        cpu.arch.seg[usize::from(seg::CS)] = segment(&entry.cs);
        cpu.arch.tr = segment(&entry.tr);
        cpu.arch.gpr = [0; 32];
        cpu.arch.gpr[usize::from(reg::RAX)] = entry.rax;
        cpu.arch.gpr[usize::from(reg::RBX)] = entry.rbx;
        cpu.arch.gpr[usize::from(reg::RSI)] = entry.rsi;
        cpu.arch.rip = entry.rip;
        cpu.set_rflags(entry.rflags);
        cpu.micro.tlb.flush_all();
        cpu.mode_changed();
        cpu.mapping_changed();
    }

    /// Returns the time that all processors have reached.
    pub fn now(&self) -> Ticks {
        let running = self.all.iter().filter(|v| v.activity == Activity::Running).map(|v| v.cpu.micro.clock).min();
        running.unwrap_or_else(|| lock(&self.board).now())
    }

    /// Runs until the machine must interact with the outside.
    pub fn run(&mut self) -> Pause {
        match self.held.take() {
            Some((index, deadline)) => {
                if let Some(pause) = self.turn(index, deadline) {
                    return pause;
                }
            }
            None => self.slice_end = self.now() + self.slice,
        }
        let shared = self.board.clone();
        loop {
            let mut board = lock(&shared);
            if let Some(ending) = board.ending() {
                return Pause::Ended(ending);
            }
            if board.suspended() {
                match self.suspended(&mut board) {
                    Some(pause) => return pause,
                    None => continue,
                }
            }
            self.signals(&mut board);
            let Some(index) = self.furthest_behind() else {
                match self.sleep(&mut board) {
                    Some(pause) => return pause,
                    None => continue,
                }
            };
            let now = self.all[index].cpu.micro.clock;
            if now >= self.slice_end {
                return Pause::Slice;
            }
            if self.timers(&mut board, now) {
                // Expired timers may have woken a processor that is further behind.
                continue;
            }
            let (deadline, time_limit) = self.horizon(&board, index);
            let interrupt = board.interrupt(index);
            drop(board);
            self.all[index].cpu.set_time_limit(time_limit);
            let pause = self.run_one(index, interrupt, deadline);
            if index != 0 && self.all[index].cpu.wiring.recorder.is_long() {
                self.hand_over(index);
            }
            if let Some(pause) = pause {
                return pause;
            }
        }
    }

    /// Runs as [`Self::run`] does, but no further than virtual time `end`.
    pub(crate) fn run_to(&mut self, end: Ticks) -> Pause {
        self.slice = end.saturating_sub(self.now());
        self.run()
    }

    /// Advances the board to `now`, which is no later than any running processor's clock. Returns true if a sleeping
    /// processor's timer expired.
    fn timers(&mut self, board: &mut Board, now: Ticks) -> bool {
        board.advance(now);
        let mut woken = false;
        for (index, vcpu) in self.all.iter_mut().enumerate() {
            match vcpu.activity {
                Activity::Running => board.advance_timer(index, vcpu.cpu.micro.clock),
                _ => {
                    if let Some(event) = vcpu.preemption_timer().filter(|event| *event <= now) {
                        vcpu.wake(event);
                        woken = true;
                        continue;
                    }
                    let Some(event) = board.timer_event(index).filter(|event| *event <= now) else { continue };
                    board.advance_timer(index, event);
                    if board.interrupt(index) && vcpu.heeds_interrupts() {
                        vcpu.wake(event);
                        woken = true;
                    }
                }
            }
        }
        woken
    }

    /// Returns the time of the next event: of the board, or of a timer of a processor for which `concerns` returns
    /// true.
    fn next_event(&self, board: &Board, concerns: impl Fn(usize, &Vcpu) -> bool) -> Option<Ticks> {
        let mine = self.all.iter().enumerate().filter(|(i, v)| concerns(*i, v));
        let timers = mine.flat_map(|(i, v)| [board.timer_event(i), v.preemption_timer()]);
        timers.flatten().chain(board.next_event()).min()
    }

    /// Returns true if a debugger has stopped in the middle of a turn.
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Returns the index of the processor that runs next, or in whose turn a debugger has stopped.
    pub fn next(&self) -> usize {
        self.held.map(|(index, _)| index).or_else(|| self.furthest_behind()).unwrap_or(0)
    }

    fn furthest_behind(&self) -> Option<usize> {
        let running = self.all.iter().enumerate().filter(|(_, v)| v.activity == Activity::Running);
        running.min_by_key(|(i, v)| (v.cpu.micro.clock, *i)).map(|(i, _)| i)
    }

    /// Returns the time until which a processor may run, the next event of the board, limited by the distance to the
    /// other processors; and the time until which it may read its time-stamp counter.
    fn horizon(&self, board: &Board, index: usize) -> (Ticks, Ticks) {
        let others = self.all.iter().enumerate().filter(|(i, v)| *i != index && v.activity == Activity::Running);
        let quantum = self.quantum(self.all[index].cpu.micro.clock);
        let behind = others.map(|(_, v)| v.cpu.micro.clock).min().unwrap_or(Ticks::MAX);
        let event = self.next_event(board, |i, v| i == index || v.activity != Activity::Running).unwrap_or(Ticks::MAX);
        (behind.saturating_add(quantum).min(event).min(self.slice_end), behind.min(event))
    }

    /// Returns the time by which a processor may be ahead at time `now`.
    fn quantum(&self, now: Ticks) -> Ticks {
        let spins =
            |vcpu: &Vcpu| vcpu.spun != 0 && now.saturating_sub(vcpu.spun) < SPINNING_CYCLES * ledger::TICKS_PER_CYCLE;
        let contention = self.all.get(self.holder).and_then(|Vcpu { cpu, .. }| {
            // Also while the processors wait without PAUSE.
            cpu.micro.memory.as_ref()?.turn(cpu.wiring.model.geometry.caches.as_ref()?, now)
        });
        let cycles = if self.all.iter().any(spins) { SPINNING_QUANTUM_CYCLES } else { QUANTUM_CYCLES };
        contention.unwrap_or(cycles * ledger::TICKS_PER_CYCLE)
    }

    /// Runs a processor until `deadline` at the latest; `interrupt` is true if one is pending for it.
    fn run_one(&mut self, index: usize, interrupt: bool, deadline: Ticks) -> Option<Pause> {
        self.lend_to(index);
        let vcpu = &mut self.all[index];
        vcpu.cpu.take_notice();
        if interrupt {
            vcpu.cpu.attend(attention::INTR);
        } else {
            vcpu.cpu.arch.attention &= !attention::INTR;
        }
        self.turn(index, deadline)
    }

    /// Runs a processor's turn, or the rest of it.
    fn turn(&mut self, index: usize, deadline: Ticks) -> Option<Pause> {
        let vcpu = &mut self.all[index];
        if let Some(stacks) = &self.stacks {
            stacks.follow(self.tasks.kernel(), self.tasks.current(index), &vcpu.cpu);
        }
        loop {
            match vcpu.run(self.hypervisor.as_mut(), &mut self.cache, deadline) {
                // The probe touched no device: the turn continues, with the same end.
                Ok(Exit::Probe) => {
                    if let Some(hit) = vcpu.cpu.take_probe() {
                        self.tasks.reached(hit, &mut vcpu.cpu, &mut self.cache);
                        if let Some(stacks) = &self.stacks {
                            stacks.task(self.tasks.current(index), &mut vcpu.cpu);
                        }
                    }
                    continue;
                }
                Ok(Exit::Sample) => {
                    sample(self.stacks.as_deref(), &mut vcpu.cpu);
                    continue;
                }
                Ok(Exit::Debug) => {
                    self.held = Some((index, deadline));
                    return Some(Pause::Debug(index));
                }
                Ok(Exit::Deadline | Exit::Bus) => {}
                Ok(Exit::Halt) => vcpu.activity = Activity::Halted,
                Ok(Exit::Init) => {
                    lock(&self.board).lapic(index).reset();
                    vcpu.reset(true);
                    vcpu.activity = Activity::WaitingForStartup;
                }
                Ok(Exit::WaitForStartup) => vcpu.activity = Activity::WaitingForStartup,
                Ok(Exit::Mwait { masked }) => vcpu.activity = Activity::Mwait { masked },
                Ok(Exit::Shutdown) => return Some(Pause::TripleFault(index)),
                Ok(Exit::Vm) => return Some(Pause::UnhandledExit(index, vcpu.cpu.arch.vm_exit.reason)),
                Err(failure) => {
                    self.failure = Some(failure);
                    return Some(Pause::Failed(index));
                }
            }
            break;
        }
        // This is the hypervisor's work since the guest last ran.
        if vcpu.cpu.sample_due() {
            sample(self.stacks.as_deref(), &mut vcpu.cpu);
        }
        self.tasks.look(&mut vcpu.cpu, &mut self.cache);
        let now = vcpu.cpu.micro.clock;
        if let Some(memory) = &mut vcpu.cpu.micro.memory {
            memory.end_turn(now);
        }
        if std::mem::take(&mut vcpu.cpu.micro.spins) {
            vcpu.spun = now;
        }
        let mut board = lock(&self.board);
        let (written, marks) = (board.take_written(), std::iter::from_fn(|| board.pop_mark()).collect());
        drop(board);
        self.device_writes(written);
        self.monitors(now);
        self.marks(marks);
        None
    }

    /// Processes the guest's marks of regions of interest and tasks.
    fn marks(&mut self, marks: Vec<Mark>) {
        for mark in marks {
            self.tasks.mark(&mark, &mut self.all[mark.cpu].cpu);
            for vcpu in &mut self.all {
                self.tasks.publish(&mut vcpu.cpu);
            }
        }
    }

    /// Wakes processors whose monitored line was written by a processor or a device, at time `now`.
    fn monitors(&mut self, now: Ticks) {
        if self.all[0].cpu.wiring.ram.take_triggered() {
            for vcpu in self.all.iter_mut().filter(|vcpu| vcpu.line_written()) {
                vcpu.wake(now);
            }
        }
    }

    /// Handles writes of a device to memory while no processor runs.
    pub(crate) fn device_has_written(&mut self) {
        let board = lock(&self.board);
        let (written, now) = (board.take_written(), board.now());
        drop(board);
        self.device_writes(written);
        self.monitors(now);
    }

    /// Drops decoded code that devices have overwritten.
    fn device_writes(&mut self, written: Vec<Range<u64>>) {
        if written.is_empty() {
            return;
        }
        for range in written {
            let mut at = range.start;
            while at < range.end {
                let len = (range.end - at).min(4096 - at % 4096);
                if let Some(holder) = self.all.get_mut(self.holder) {
                    holder.cpu.device_wrote(at, len);
                }
                if let Some(first) = self.all.first_mut() {
                    first.cpu.code_written(at, len);
                }
                at += len;
            }
        }
        if let Some(first) = self.all.first_mut() {
            first.cpu.drop_written_code(&mut self.cache);
        }
    }

    /// Delivers NMI, INIT and start-up, and wakes processors that have a reason to wake.
    fn signals(&mut self, board: &mut Board) {
        for (index, vcpu) in self.all.iter_mut().enumerate() {
            let lapic = board.lapic(index);
            if lapic.has_signals() {
                if lapic.take_init() {
                    match vcpu.cpu.has_hypervisor() {
                        true => vcpu.hold_init(),
                        false => {
                            lapic.reset();
                            vcpu.reset(true);
                            vcpu.activity = Activity::WaitingForStartup;
                        }
                    }
                }
                // One NMI may be in service while another is latched; further ones are lost (SDM vol. 3, 6.7.1).
                let most = if vcpu.cpu.arch.nmi_blocked { 1u8 } else { 2 };
                let latched = u8::from(vcpu.cpu.arch.attention & attention::NMI != 0);
                vcpu.nmis = vcpu.nmis.saturating_add(lapic.take_nmis()).min(most.saturating_sub(latched));
                let startup = lapic.take_startup();
                if let (Some(page), Activity::WaitingForStartup) = (startup, vcpu.activity) {
                    let now = board.now();
                    if !vcpu.cpu.guest_startup(page) {
                        start(&mut vcpu.cpu, page, now);
                    }
                    vcpu.activity = Activity::Running;
                }
            }
            if vcpu.nmis != 0 && vcpu.cpu.arch.attention & attention::NMI == 0 {
                vcpu.nmis -= 1;
                vcpu.cpu.attend(attention::NMI);
            }
            if vcpu.heeds_nmi() || vcpu.heeds_interrupts() && board.interrupt(index) {
                vcpu.wake(board.now());
            }
        }
    }

    /// Advances a machine that is suspended to RAM to the event that may wake it. On wake-up the first processor
    /// continues at the waking vector of the FACS, as firmware would do.
    fn suspended(&mut self, board: &mut Board) -> Option<Pause> {
        for vcpu in &mut self.all {
            vcpu.activity = Activity::WaitingForStartup;
        }
        if !board.resume() {
            let Some(event) = board.next_event() else { return Some(Pause::Stuck) };
            board.advance(event.min(self.slice_end));
            return (event >= self.slice_end).then_some(Pause::Idle(event));
        }
        for vcpu in &mut self.all {
            vcpu.reset(false);
            vcpu.nmis = 0;
        }
        let Some(Vcpu { cpu, activity, .. }) = self.all.first_mut() else { return Some(Pause::Stuck) };
        let vector = cpu.wiring.ram.read::<u32>(acpi::WAKING_VECTOR).unwrap_or_default();
        let asleep = board.now().saturating_sub(cpu.micro.clock);
        cpu.charge_halt(1, asleep);
        cpu.arch.seg[usize::from(seg::CS)] = Segment::real((vector >> 4) as u16, true);
        cpu.arch.rip = u64::from(vector & 0xf);
        cpu.mode_changed();
        cpu.mapping_changed();
        *activity = Activity::Running;
        None
    }

    /// Advances time to the next event while no processor runs.
    fn sleep(&mut self, board: &mut Board) -> Option<Pause> {
        if !self.all.iter().any(|vcpu| vcpu.heeds_interrupts() || vcpu.preemption_timer().is_some()) {
            return Some(Pause::Stuck);
        }
        // Without an event only input from outside can wake a processor.
        let event = self.next_event(board, |_, _| true).unwrap_or(Ticks::MAX);
        if event >= self.slice_end {
            if event != Ticks::MAX {
                self.timers(board, self.slice_end);
            }
            return Some(Pause::Idle(event));
        }
        self.timers(board, event);
        None
    }
}

/// Takes the samples that are due.
#[cold]
fn sample(stacks: Option<&Stacks>, cpu: &mut Cpu) {
    let count = cpu.take_samples();
    if let Some(stacks) = stacks {
        stacks.sample(cpu, count);
    }
}

/// Handles a start-up IPI: real mode at the given page (SDM vol. 3, 9.4.3).
fn start(cpu: &mut Cpu, page: u8, now: Ticks) {
    let selector = u16::from(page) << 8;
    cpu.arch.seg[usize::from(seg::CS)] = Segment::real(selector, true);
    cpu.arch.rip = 0;
    let idle = now.saturating_sub(cpu.micro.clock);
    cpu.charge_halt(0, idle);
    cpu.mode_changed();
}

#[cfg(test)]
#[path = "vcpus_tests.rs"]
mod tests;
