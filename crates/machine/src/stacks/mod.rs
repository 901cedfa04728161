//! Call stacks of what runs: at samples, and where crossings are charged.
//!
//! Guest memory is only looked at: the guest is executed, and charged, as without stacks. What is found depends on nothing but the guest's
//! state, so that both tiers and a machine that is restored find the same.

mod memory;
pub mod unwind;

use cpu::Cpu;
use cpu::sampling::{Charged, Observer};
use ledger::stack::{Keeps, Moment, Record, StackId};
use ledger::symbols::Kallsyms;
use ledger::{Amount, OriginId, Recorder, TaskId, Ticks};
use memory::{Kernel, Memory};
use std::cell::RefCell;
use std::rc::Rc;
use unwind::{Registers, unwind};
use x86::reg;

/// Takes stacks for a machine's ledger.
pub struct Stacks {
    keeps: Keeps,
    recorder: Rc<RefCell<Recorder>>,
    kernel: RefCell<Option<Kernel>>,
    /// By processor: the task that the trace was last told of.
    tasks: RefCell<Vec<Option<TaskId>>>,
}

impl Stacks {
    /// For a run that keeps these, if it keeps any.
    pub fn new(keeps: Keeps, recorder: Rc<RefCell<Recorder>>) -> Option<Rc<Self>> {
        let stacks = Self { keeps, recorder, kernel: RefCell::default(), tasks: RefCell::default() };
        (!keeps.is_nothing()).then(|| Rc::new(stacks))
    }

    /// Has a processor take samples, and tell of its crossings.
    pub fn attach(self: &Rc<Self>, cpu: &mut Cpu) {
        if self.keeps.crossings || self.keeps.trace {
            cpu.wiring.observer = Some(self.clone());
        }
        cpu.sample_every(self.keeps.interval);
        let mut tasks = self.tasks.borrow_mut();
        let processors = tasks.len().max(cpu.wiring.index + 1);
        tasks.resize(processors, None);
    }

    /// Follows which kernel the machine runs, and which task the processor begins its turn with.
    pub fn follow(&self, tables: Option<&Kallsyms>, cpu: &Cpu) {
        let mut kernel = self.kernel.borrow_mut();
        if !kernel.as_ref().map_or(tables.is_none(), |kernel| tables.is_some_and(|tables| kernel.is(tables))) {
            *kernel = tables.map(Kernel::new);
        }
        self.tasks.borrow_mut()[cpu.wiring.index].get_or_insert(cpu.micro.charged.task);
    }

    /// A processor has got samples.
    pub fn sample(&self, cpu: &Cpu, count: u64) {
        let (origin, stack) = (cpu.engine.origin, self.stack(cpu, cpu.code_linear()));
        let mut recorder = self.recorder.borrow_mut();
        recorder.add_samples(origin, stack, count);
        drop(recorder);
        self.trace(cpu, origin, Moment::Samples(count), 0, stack);
    }

    /// A processor may go on with another task.
    pub fn task(&self, cpu: &Cpu) {
        let task = cpu.micro.charged.task;
        let before = self.tasks.borrow_mut()[cpu.wiring.index].replace(task);
        if before != Some(task) {
            self.trace(cpu, cpu.engine.origin, Moment::Task, 0, StackId(0));
        }
    }

    /// Adds to the trace what has taken so long.
    fn trace(&self, cpu: &Cpu, origin: OriginId, moment: Moment, ticks: Ticks, stack: StackId) {
        if self.keeps.trace {
            let time = cpu.micro.clock.saturating_sub(ticks);
            let record = Record { time, cpu: cpu.wiring.index as u32, origin, moment, ticks, stack };
            self.recorder.borrow_mut().trace(record);
        }
    }

    /// The stack of a processor that is at an instruction.
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
        let stack = unwind(&mut Memory::new(cpu, kernel), registers);
        self.recorder.borrow_mut().stack(&stack.frames, stack.whole)
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
