//! Call stacks of the running code: at samples, and at charged crossings.
//!
//! Guest memory is only read: the guest is executed and charged as without stacks. The stacks depend only on the
//! guest's state, so both tiers and a restored machine find the same ones.

mod memory;
mod programs;
pub mod unwind;

use cpu::Cpu;
use cpu::sampling::{Charged, Observer};
use ledger::stack::{Keeps, Moment, Record, StackId};
use ledger::symbols::{Kallsyms, Symbols};
use ledger::{Amount, OriginId, Recorder, Symbol, TaskId, Ticks};
use memory::{Kernel, Memory, Process};
pub use programs::NamedTree;
use programs::Programs;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use unwind::{Registers, unwind};
use x86::reg;

/// Recorder of stacks for a machine's ledger.
pub struct Stacks {
    keeps: Keeps,
    recorder: Rc<RefCell<Recorder>>,
    kernel: RefCell<Option<Kernel>>,
    /// The files of the guest's programs.
    programs: RefCell<Programs>,
    /// The addresses of the functions that the user has given, sorted.
    given: RefCell<Vec<Range<u64>>>,
    /// The `task_struct` of the current task, by processor.
    currents: RefCell<Vec<Option<u64>>>,
    /// The task last reported to the trace, by processor.
    tasks: RefCell<Vec<Option<TaskId>>>,
}

impl Stacks {
    /// Creates the recorder for a run that keeps stacks; returns `None` if it keeps none.
    pub fn new(keeps: Keeps, recorder: Rc<RefCell<Recorder>>) -> Option<Rc<Self>> {
        let stacks = Self {
            keeps,
            recorder,
            kernel: RefCell::default(),
            programs: RefCell::default(),
            given: RefCell::default(),
            currents: RefCell::default(),
            tasks: RefCell::default(),
        };
        (!keeps.is_nothing()).then(|| Rc::new(stacks))
    }

    /// Makes a processor take samples and report its crossings.
    pub fn attach(self: &Rc<Self>, cpu: &mut Cpu) {
        if self.keeps.crossings || self.keeps.trace {
            cpu.wiring.observer = Some(self.clone());
        }
        cpu.sample_every(self.keeps.interval);
        let mut tasks = self.tasks.borrow_mut();
        let processors = tasks.len().max(cpu.wiring.index + 1);
        tasks.resize(processors, None);
        self.currents.borrow_mut().resize(processors, None);
    }

    /// Sets the trees that hold the files of the guest's programs.
    pub fn use_programs(&self, trees: Vec<NamedTree>) {
        *self.programs.borrow_mut() = Programs::new(trees);
    }

    /// Sets functions whose addresses stay addresses, whichever file is mapped there.
    pub fn use_functions(&self, functions: &[&Symbol]) {
        let ranges = functions.iter().map(|function| function.start..function.start.saturating_add(function.size));
        let mut ranges: Vec<_> = ranges.collect();
        ranges.sort_unstable_by_key(|range| range.start);
        *self.given.borrow_mut() = ranges;
    }

    fn is_given(&self, address: u64) -> bool {
        let given = self.given.borrow();
        let after = given.partition_point(|range| range.start <= address);
        after.checked_sub(1).is_some_and(|at| given[at].contains(&address))
    }

    /// Adds the functions of the programs that are in stacks.
    pub fn add_programs(&self, symbols: &mut Symbols) {
        self.programs.borrow_mut().add_to(&self.recorder.borrow(), symbols);
    }

    /// Updates the kernel that the machine runs, and the task with which the processor begins its turn. `current` is the
    /// address of its `task_struct`.
    pub fn follow(&self, tables: Option<&Kallsyms>, current: Option<u64>, cpu: &Cpu) {
        let mut kernel = self.kernel.borrow_mut();
        if !kernel.as_ref().map_or(tables.is_none(), |kernel| tables.is_some_and(|tables| kernel.is(tables))) {
            *kernel = tables.map(Kernel::new);
        }
        self.currents.borrow_mut()[cpu.wiring.index] = current;
        self.tasks.borrow_mut()[cpu.wiring.index].get_or_insert(cpu.micro.charged.task);
    }

    /// Records the samples of a processor.
    pub fn sample(&self, cpu: &Cpu, count: u64) {
        let (origin, stack) = (cpu.engine.origin, self.stack(cpu, cpu.code_linear()));
        let mut recorder = self.recorder.borrow_mut();
        recorder.add_samples(origin, stack, count);
        drop(recorder);
        self.trace(cpu, origin, Moment::Samples(count), 0, stack);
    }

    /// Records that a processor may continue with another task.
    pub fn task(&self, current: Option<u64>, cpu: &Cpu) {
        self.currents.borrow_mut()[cpu.wiring.index] = current;
        let task = cpu.micro.charged.task;
        let before = self.tasks.borrow_mut()[cpu.wiring.index].replace(task);
        if before != Some(task) {
            self.trace(cpu, cpu.engine.origin, Moment::Task, 0, StackId(0));
        }
    }

    /// Adds a moment and its duration to the trace.
    fn trace(&self, cpu: &Cpu, origin: OriginId, moment: Moment, ticks: Ticks, stack: StackId) {
        if self.keeps.trace {
            let time = cpu.micro.clock.saturating_sub(ticks);
            let record = Record { time, cpu: cpu.wiring.index as u32, origin, moment, ticks, stack };
            self.recorder.borrow_mut().trace(record);
        }
    }

    /// Returns the stack of a processor at an instruction.
    fn stack(&self, cpu: &Cpu, ip: u64) -> StackId {
        if !cpu.engine.long64 {
            return self.recorder.borrow_mut().stack(&[ip], false);
        }
        let mut kernel = self.kernel.borrow_mut();
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
        let mut programs = self.programs.borrow_mut();
        let mut recorder = self.recorder.borrow_mut();
        let task = self.currents.borrow()[cpu.wiring.index];
        let process = task.map(|task| Process::new(&mut programs, &mut recorder, task));
        let mut memory = Memory::new(cpu, kernel, process);
        let mut stack = unwind(&mut memory, registers);
        for frame in stack.frames.iter_mut().filter(|frame| !self.is_given(**frame)) {
            *frame = memory.in_file(*frame).unwrap_or(*frame);
        }
        drop(memory);
        recorder.stack(&stack.frames, stack.whole)
    }
}

impl Observer for Stacks {
    fn charged(&self, cpu: &Cpu, charged: Charged) {
        let Charged { origin, rip, kind, count, ticks } = charged;
        let mut stack = StackId(0);
        if self.keeps.crossings && kind.family.is_crossing() {
            stack = self.stack(cpu, rip);
            self.recorder.borrow_mut().add_crossing(origin, stack, kind, Amount { count, ticks });
        }
        self.trace(cpu, origin, Moment::Event(kind), ticks, stack);
    }
}
