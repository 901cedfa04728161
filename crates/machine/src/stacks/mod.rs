//! Call stacks of the running code: at samples, and at charged crossings.
//!
//! Guest memory is only read: the guest is executed and charged as without stacks. The stacks depend only on the
//! guest's state, so both tiers and a restored machine find the same ones.

mod mapped;
mod memory;
mod programs;
pub mod unwind;

use cpu::Cpu;
use cpu::bus::lock;
use cpu::observer::{Charged, Observer};
use ledger::stack::{Keeps, Moment, Record, StackId};
use ledger::symbols::{Kallsyms, Symbols};
use ledger::{Amount, OriginId, Recorder, Symbol, TaskId, Ticks};
use memory::{Kernel, Memory, Process};
pub use programs::NamedTree;
use programs::Programs;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use unwind::{Registers, unwind};
use x86::reg;

/// Recorder of stacks for a machine's ledger.
pub struct Stacks {
    keeps: Keeps,
    kernel: Mutex<Option<Kernel>>,
    /// The files of the guest's programs.
    programs: Mutex<Programs>,
    /// The addresses of the functions that the user has given, sorted.
    given: Mutex<Vec<Range<u64>>>,
    /// The `task_struct` of the current task, by processor.
    currents: Mutex<Vec<Option<u64>>>,
    /// The task last reported to the trace, by processor.
    tasks: Mutex<Vec<Option<TaskId>>>,
}

impl Stacks {
    /// Creates the recorder for a run that keeps stacks; returns `None` if it keeps none.
    pub fn new(keeps: Keeps) -> Option<Arc<Self>> {
        let stacks = Self {
            keeps,
            kernel: Mutex::default(),
            programs: Mutex::default(),
            given: Mutex::default(),
            currents: Mutex::default(),
            tasks: Mutex::default(),
        };
        (!keeps.is_nothing()).then(|| Arc::new(stacks))
    }

    /// Makes a processor take samples and report its crossings.
    pub fn attach(self: &Arc<Self>, cpu: &mut Cpu) {
        if self.keeps.crossings || self.keeps.trace {
            cpu.wiring.observer = Some(self.clone());
        }
        cpu.sample_every(self.keeps.interval);
        let mut tasks = lock(&self.tasks);
        let processors = tasks.len().max(cpu.wiring.index + 1);
        tasks.resize(processors, None);
        lock(&self.currents).resize(processors, None);
    }

    /// Sets the trees that hold the files of the guest's programs.
    pub fn use_programs(&self, trees: Vec<NamedTree>) {
        *lock(&self.programs) = Programs::new(trees);
    }

    /// Sets functions whose addresses stay addresses, whichever file is mapped there.
    pub fn use_functions(&self, functions: &[&Symbol]) {
        let ranges = functions.iter().map(|function| function.start..function.start.saturating_add(function.size));
        let mut ranges: Vec<_> = ranges.collect();
        ranges.sort_unstable_by_key(|range| range.start);
        *lock(&self.given) = ranges;
    }

    fn is_given(&self, address: u64) -> bool {
        let given = lock(&self.given);
        let after = given.partition_point(|range| range.start <= address);
        after.checked_sub(1).is_some_and(|at| given[at].contains(&address))
    }

    /// Adds the functions of the programs that are in stacks, in the form in which stacks have them and at their addresses.
    pub fn add_programs(&self, recorder: &Recorder, symbols: &mut Symbols) {
        let mut programs = lock(&self.programs);
        programs.add_mapped(recorder, symbols);
        programs.add_to(recorder, symbols);
    }

    /// Updates the kernel that the machine runs, and the task with which the processor begins its turn. `current` is the
    /// address of its `task_struct`.
    pub fn follow(&self, tables: Option<&Kallsyms>, current: Option<u64>, cpu: &Cpu) {
        let mut kernel = lock(&self.kernel);
        if !kernel.as_ref().map_or(tables.is_none(), |kernel| tables.is_some_and(|tables| kernel.is(tables))) {
            *kernel = tables.map(Kernel::new);
        }
        lock(&self.currents)[cpu.wiring.index] = current;
        lock(&self.tasks)[cpu.wiring.index].get_or_insert(cpu.micro.charged.task);
    }

    /// Records the samples of a processor.
    pub fn sample(&self, cpu: &mut Cpu, count: u64) {
        let (origin, stack) = (cpu.engine.origin, self.stack(cpu, cpu.code_linear()));
        cpu.wiring.recorder.add_samples(origin, stack, count);
        self.trace(cpu, origin, Moment::Samples(count), 0, stack);
    }

    /// Records that a processor may continue with another task.
    pub fn task(&self, current: Option<u64>, cpu: &mut Cpu) {
        lock(&self.currents)[cpu.wiring.index] = current;
        let task = cpu.micro.charged.task;
        let before = lock(&self.tasks)[cpu.wiring.index].replace(task);
        if before != Some(task) {
            self.trace(cpu, cpu.engine.origin, Moment::Task, 0, StackId(0));
        }
    }

    /// Adds a moment and its duration to the trace.
    fn trace(&self, cpu: &mut Cpu, origin: OriginId, moment: Moment, ticks: Ticks, stack: StackId) {
        if self.keeps.trace {
            let time = cpu.micro.clock.saturating_sub(ticks);
            let record = Record { time, cpu: cpu.wiring.index as u32, origin, moment, ticks, stack };
            cpu.wiring.recorder.trace(record);
        }
    }

    /// Returns the stack of a processor at an instruction.
    fn stack(&self, cpu: &Cpu, ip: u64) -> StackId {
        if !cpu.engine.long64 {
            return cpu.wiring.recorder.stack(&[ip], false);
        }
        let mut kernel = lock(&self.kernel);
        // A guest of the machine's own hypervisor has a kernel of its own.
        let kernel = kernel.as_mut().filter(|_| cpu.guest_of_software().is_none());
        let register = |number: u8| cpu.arch.gpr[usize::from(number)];
        let registers = Registers {
            ip,
            sp: register(reg::RSP),
            bp: register(reg::RBP),
            cx: register(reg::RCX),
            dx: register(reg::RDX),
            di: register(reg::RDI),
            r10: register(10),
            r11: register(11),
            r13: register(13),
            kernel: cpu.arch.cpl != 3,
        };
        let mut programs = lock(&self.programs);
        let recorder = &cpu.wiring.recorder;
        let task = lock(&self.currents)[cpu.wiring.index];
        let process = task.map(|task| Process::new(&mut programs, recorder, task));
        let mut memory = Memory::new(cpu, kernel, process);
        let mut stack = unwind(&mut memory, registers);
        for frame in stack.frames.iter_mut().filter(|frame| !self.is_given(**frame)) {
            *frame = memory.in_file(*frame).unwrap_or(*frame);
        }
        // Charges to a program are those of its own page tables, which are in use.
        let seen = if registers.kernel { Vec::new() } else { memory.found() };
        drop(memory);
        if !seen.is_empty() {
            let space = recorder.names().origins()[cpu.engine.origin.0 as usize].address_space();
            programs.see(space, seen);
        }
        recorder.stack(&stack.frames, stack.whole)
    }
}

impl Observer<Cpu> for Stacks {
    fn charged(&self, cpu: &mut Cpu, charged: Charged) {
        let Charged { origin, rip, kind, count, ticks } = charged;
        let mut stack = StackId(0);
        if self.keeps.crossings && kind.family.is_crossing() {
            stack = self.stack(cpu, rip);
            cpu.wiring.recorder.add_crossing(origin, stack, kind, Amount { count, ticks });
        }
        self.trace(cpu, origin, Moment::Event(kind), ticks, stack);
    }
}
