//! The guest's tasks: which one each processor runs, from which it descends, and which region of interest it is in.
//!
//! A Linux kernel is found when it says where system calls enter it (IA32_LSTAR), before it makes its first task; from then on probes on a few of its
//! functions tell what it does (`kernel.rs`). Other guests may name the task that a processor runs through the marker ports. All that is
//! read here is the guest's, and may be anything: it decides on names in a report, and on nothing else.

mod guests;
mod kernel;
mod regions;
mod state;

use crate::devices::marker::{Command, Mark};
use crate::kernel_symbols::View;
use crate::memory::GuestRam;
use cpu::charged::{Charged, Nesting};
use cpu::probe::Hit;
use cpu::{BlockCache, Cpu};
use guests::Guests;
pub use kernel::is_probed;
use kernel::{Kernel, Says, TaskIdentity};
use ledger::symbols::Kallsyms;
use ledger::{Symbol, Task, TaskId, TaskKind, Ticks};
use regions::Regions;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
pub use state::TasksState;

/// Tasks whose whereabouts are kept; a guest that has more is followed anew.
const MOST_THREADS: usize = 1 << 20;
/// Threads whose descent is known; those that are made later descend from nobody.
const MOST_DESCENTS: usize = 1 << 24;
/// Places that soft interrupts are called from.
const MOST_CALLERS: usize = 64;
/// The thread that makes the kernel's threads.
const KTHREADD: u32 = 2;

/// A task that the kernel has made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Thread {
    /// Its number, in the order in which threads were first seen; 0 is none.
    number: u32,
    identity: Option<TaskIdentity>,
    kernel_thread: bool,
    /// It was working off soft interrupts when another one took its processor.
    soft_interrupt: Option<SoftInterrupt>,
}

/// Soft interrupts are being worked off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SoftInterrupt {
    /// Where that returns to, and the stack pointer there.
    back: u64,
    stack: u64,
    /// What had been interrupted before.
    nesting: Nesting,
}

/// A processor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Processor {
    /// What was last seen in IA32_LSTAR.
    system_calls: u64,
    /// Address of the current task's `task_struct`, once that is known.
    current: Option<u64>,
    /// The current thread's number.
    number: u32,
    task: TaskId,
    soft_interrupt: Option<SoftInterrupt>,
    /// When it last ran a task other than its idle task, if it runs that now.
    idle_since: Option<Ticks>,
}

/// The guest's tasks.
pub struct Tasks {
    ram: GuestRam,
    /// Functions that are probed in a kernel that has no tables of its own.
    symbols: Vec<Symbol>,
    kernel: Option<Kernel>,
    /// Where system calls enter it.
    entry: u64,
    processors: Vec<Processor>,
    threads: FxHashMap<u64, Thread>,
    /// By thread: the one that made it.
    parents: Vec<u32>,
    /// Places that soft interrupts are called from, which have probes.
    callers: Vec<u64>,
    regions: Regions,
    guests: Guests,
}

/// The number that a text begins with and the rest of it, if it begins with one.
fn leading_number(text: &str) -> (Option<u32>, &str) {
    let parsed = text.split_once(' ').and_then(|(number, rest)| Some((number.parse().ok()?, rest)));
    parsed.map_or((None, text), |(number, rest)| (Some(number), rest))
}

impl Tasks {
    /// Of a machine with so many processors.
    pub fn new(ram: GuestRam, processors: usize) -> Self {
        Self {
            ram,
            symbols: Vec::new(),
            kernel: None,
            entry: 0,
            processors: vec![Processor::default(); processors],
            threads: FxHashMap::default(),
            parents: vec![0],
            callers: Vec::new(),
            regions: Regions::default(),
            guests: Guests::default(),
        }
    }

    /// Takes the functions of a kernel that has no tables of its own, from files that the user has given; those that are
    /// [probed](is_probed) will do.
    pub fn use_functions(&mut self, functions: Vec<Symbol>) {
        self.symbols = functions;
    }

    /// The kernels in guests of a hypervisor that runs on the machine.
    pub(crate) fn guests(&self) -> &Guests {
        &self.guests
    }

    /// The tables of the kernel whose tasks are followed.
    pub fn kernel(&self) -> Option<&Kallsyms> {
        self.kernel.as_ref()?.tables.as_ref()
    }

    /// Looks whether a processor has set up its system calls since the last look: then it runs a kernel, perhaps another one.
    #[inline]
    pub fn look(&mut self, cpu: &mut Cpu, cache: &mut BlockCache) {
        // A hypervisor that runs on the machine has its guest's entry there, even before it enters the guest.
        let known = self.kernel.is_some() && cpu.has_hypervisor();
        if let Some(guest) = cpu.guest_of_software() {
            self.guests.look(guest, cpu);
        }
        if cpu.wiring.model.recorded && !known && cpu.arch.msr.lstar != self.processors[cpu.wiring.index].system_calls {
            self.find(cpu, cache);
        }
    }

    #[cold]
    fn find(&mut self, cpu: &mut Cpu, cache: &mut BlockCache) {
        let entry = cpu.arch.msr.lstar;
        self.processors[cpu.wiring.index].system_calls = entry;
        // The other processors of a kernel enter it where the first does, and so does one that wakes up.
        if entry != 0 && entry != self.entry {
            self.entry = entry;
            cache.remove_probes(&cpu.wiring.ram);
            self.threads.clear();
            self.callers.clear();
            for processor in &mut self.processors {
                *processor = Processor { system_calls: processor.system_calls, ..Processor::default() };
            }
            self.kernel = Kernel::find(cpu, &self.ram, &self.symbols);
            for address in self.kernel.iter().flat_map(Kernel::addresses) {
                cache.add_probe(address, &cpu.wiring.ram);
            }
        }
        if self.kernel.is_some() && self.processors[cpu.wiring.index].current.is_none() {
            // A processor begins with its idle task.
            let idle = Task::new(TaskKind::Idle, 0, 0, &format!("swapper/{}", cpu.wiring.index));
            self.processors[cpu.wiring.index].task = cpu.wiring.recorder.borrow_mut().task(idle);
            self.publish(cpu);
        }
    }

    /// A processor has reached a probe.
    pub fn reached(&mut self, hit: Hit, cpu: &mut Cpu, cache: &mut BlockCache) {
        let says = self.kernel.as_ref().and_then(|kernel| kernel.says(hit.address));
        match says {
            Some(Says::Switch) => self.switch(cpu, hit.first, hit.second),
            Some(Says::NewTask) => self.made(cpu, hit.first),
            Some(Says::Name) => self.named(cpu, hit),
            Some(Says::SoftInterrupts) => self.soft_interrupts(cpu, hit, cache),
            None => self.came_back(cpu, hit),
        }
    }

    /// A processor goes on with another task.
    fn switch(&mut self, cpu: &mut Cpu, from: u64, to: u64) {
        let processor = &mut self.processors[cpu.wiring.index];
        if processor.current.is_none()
            && let Some(kernel) = &mut self.kernel
        {
            kernel.first_switch(cpu, from);
        }
        if let Some(soft) = processor.soft_interrupt.take()
            && let Some(thread) = self.threads.get_mut(&from)
        {
            thread.soft_interrupt = Some(SoftInterrupt { nesting: Nesting::default(), ..soft });
        }
        self.know(to, 0);
        let Some(thread) = self.threads.get_mut(&to) else { return };
        let processor = &mut self.processors[cpu.wiring.index];
        processor.current = Some(to);
        processor.number = thread.number;
        processor.soft_interrupt = thread.soft_interrupt.take();
        // Whatever interrupted the task before is over as far as the next one is concerned.
        cpu.micro.charged.nesting = Nesting::default();
        self.identify(cpu, None);
        let idle = self.current_is(cpu, |task| task.kind == TaskKind::Idle);
        self.processors[cpu.wiring.index].idle_since = idle.then_some(cpu.micro.clock);
    }

    /// Since when the processors have run nothing but their idle tasks. Interrupts and soft interrupts do not count: an idle kernel has timers. `None`: another
    /// task runs now, or the guest's tasks are not known. Processors that have never entered a kernel do not count.
    pub fn idle_since(&self) -> Option<Ticks> {
        self.kernel.as_ref()?;
        let running = self.processors.iter().filter(|processor| processor.system_calls != 0);
        running.map(|processor| processor.idle_since).try_fold(0, |latest, since| Some(latest.max(since?)))
    }

    /// Keeps a thread that is seen for the first time.
    fn know(&mut self, task: u64, parent: u32) {
        if self.threads.contains_key(&task) {
            return;
        }
        if self.threads.len() >= MOST_THREADS {
            self.threads.clear();
        }
        let number = match self.parents.len() {
            MOST_DESCENTS.. => 0,
            number => {
                self.parents.push(parent);
                number as u32
            }
        };
        self.threads.insert(task, Thread { number, identity: None, kernel_thread: false, soft_interrupt: None });
    }

    /// The current task has made another one.
    fn made(&mut self, cpu: &Cpu, task: u64) {
        let parent = self.processors[cpu.wiring.index].number;
        // Another one may have been there before.
        self.threads.remove(&task);
        self.know(task, parent);
        if let Some(kernel) = &mut self.kernel {
            kernel.made(cpu, task);
        }
        let by_kthreadd = self.current_is(cpu, |task| task.tid == KTHREADD);
        if let Some(thread) = self.threads.get_mut(&task) {
            thread.kernel_thread = by_kthreadd;
        }
    }

    /// Says of the current task of a processor what `is` says.
    fn current_is(&self, cpu: &Cpu, is: impl FnOnce(&Task) -> bool) -> bool {
        let current = self.processors[cpu.wiring.index].task;
        cpu.wiring.recorder.borrow().tasks().get(current.0 as usize).is_some_and(is)
    }

    /// A task gets a name.
    fn named(&mut self, cpu: &mut Cpu, hit: Hit) {
        if self.processors[cpu.wiring.index].current == Some(hit.first) {
            let name = Kernel::name(cpu, hit.second);
            self.identify(cpu, name);
        }
    }

    /// Looks who the current task of a processor is, and publishes it.
    fn identify(&mut self, cpu: &mut Cpu, named: Option<[u8; 16]>) {
        let processor = &mut self.processors[cpu.wiring.index];
        let thread = processor.current.and_then(|current| Some((current, self.threads.get_mut(&current)?)));
        if let (Some((current, thread)), Some(kernel)) = (thread, &self.kernel) {
            if thread.identity.is_none() {
                thread.identity = kernel.identity(cpu, current);
            }
            if let Some(identity) = &mut thread.identity {
                let recorder = &mut cpu.wiring.recorder.borrow_mut();
                processor.task = kernel.who(cpu, identity, named, thread.kernel_thread, recorder);
            }
        }
        self.publish(cpu);
    }

    /// Soft interrupts are worked off from now on until that returns, unless the current task is there for nothing else.
    fn soft_interrupts(&mut self, cpu: &mut Cpu, hit: Hit, cache: &mut BlockCache) {
        let mut back = [0; 8];
        let found = View::of(cpu).read(hit.stack, &mut back);
        let daemon = self.current_is(cpu, |task| task.comm.starts_with("ksoftirqd/"));
        if !found || daemon {
            return;
        }
        let back = u64::from_le_bytes(back);
        if !self.callers.contains(&back) {
            if self.callers.len() == MOST_CALLERS {
                return;
            }
            self.callers.push(back);
            cache.add_probe(back, &cpu.wiring.ram);
        }
        let stack = hit.stack.wrapping_add(8);
        let processor = &mut self.processors[cpu.wiring.index];
        // One of the functions that are probed may call the other one, deeper in the stack.
        if processor.soft_interrupt.is_none_or(|soft| stack > soft.stack) {
            // The interrupt after which they are worked off has yet to return, but only a further one is told apart from them.
            let nesting = std::mem::take(&mut cpu.micro.charged.nesting);
            processor.soft_interrupt = Some(SoftInterrupt { back, stack, nesting });
            self.publish(cpu);
        }
    }

    /// A place that soft interrupts are called from has been reached.
    fn came_back(&mut self, cpu: &mut Cpu, hit: Hit) {
        let processor = &mut self.processors[cpu.wiring.index];
        let Some(soft) = processor.soft_interrupt else { return };
        if (soft.back, soft.stack) == (hit.address, hit.stack) {
            processor.soft_interrupt = None;
            cpu.micro.charged.nesting = soft.nesting;
            self.publish(cpu);
        }
    }

    /// The guest said something through the marker ports. It may concern all processors: the caller publishes it for each.
    pub fn mark(&mut self, mark: &Mark, cpu: &mut Cpu) {
        let now = cpu.micro.clock;
        let recorder = cpu.wiring.recorder.clone();
        match mark.command {
            Command::Begin => {
                // Where no tasks are known everything is charged.
                let root = Some(self.processors[mark.cpu].number).filter(|number| *number != 0);
                self.regions.begin(&mut recorder.borrow_mut(), &mark.name, root, now);
            }
            Command::BeginAll => self.regions.begin(&mut recorder.borrow_mut(), &mark.name, None, now),
            Command::End => self.regions.end(&mut recorder.borrow_mut(), &mark.name, now),
            Command::Task => self.declared(cpu, &mark.name),
        }
    }

    /// A guest that is no Linux says which task a processor runs: its name, in front of it its number, and between the two the number of the task that
    /// made it, if these are known.
    fn declared(&mut self, cpu: &mut Cpu, text: &str) {
        if self.kernel.is_some() {
            return;
        }
        let (number, rest) = leading_number(text);
        let (parent, name) = if number.is_some() { leading_number(rest) } else { (None, rest) };
        let pid = number.unwrap_or(0);
        let id = match text {
            "" => TaskId(0),
            _ => cpu.wiring.recorder.borrow_mut().task(Task::new(TaskKind::Process, pid, pid, name)),
        };
        // Those without a number are known by their names.
        let key = number.map_or(1 << 32 | u64::from(id.0), u64::from);
        let parent = match parent {
            Some(parent) => {
                self.know(parent.into(), 0);
                self.threads.get(&parent.into()).map_or(0, |thread| thread.number)
            }
            None => 0,
        };
        self.know(key, parent);
        let number = if text.is_empty() { 0 } else { self.threads.get(&key).map_or(0, |thread| thread.number) };
        let processor = &mut self.processors[cpu.wiring.index];
        (processor.task, processor.number) = (id, number);
        cpu.micro.charged.nesting = Nesting::default();
    }

    /// Charges what a processor does to its current task and region from now on.
    pub fn publish(&self, cpu: &mut Cpu) {
        let Processor { number, task, soft_interrupt, .. } = self.processors[cpu.wiring.index];
        let region = self.regions.of(|root| self.descends(number, root));
        let soft_interrupt = soft_interrupt.is_some();
        cpu.set_charged(Charged { task, region, soft_interrupt, ..cpu.micro.charged });
    }

    /// Whether a thread is, or descends from, another.
    fn descends(&self, mut thread: u32, from: u32) -> bool {
        // Who makes a thread has a smaller number.
        while thread > from {
            thread = self.parents.get(thread as usize).copied().unwrap_or(0);
        }
        thread == from
    }

    /// The run is over.
    pub fn finish(&mut self, recorder: &mut ledger::Recorder, now: Ticks) {
        self.regions.finish(recorder, now);
    }
}

#[cfg(test)]
mod tests;
