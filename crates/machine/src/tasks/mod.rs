//! The guest's tasks: the task that each processor runs, its ancestors, and its region of interest.
//!
//! A Linux kernel is found when it sets the entry point for system calls (IA32_LSTAR), before it creates its first
//! task; from then on probes on some of its functions report its activity (`kernel.rs`). Other guests may name the task
//! that a processor runs through the marker ports. All data read here belongs to the guest and may be arbitrary: it
//! affects names in a report, and nothing else.

mod guests;
mod inside;
mod kernel;
mod regions;
mod state;

use crate::devices::marker::{Command, Mark};
use crate::kernel_symbols::View;
use crate::memory::GuestRam;
use cpu::charged::Nesting;
use cpu::probe::Hit;
use cpu::stays::Suspended;
use cpu::{BlockCache, Cpu};
use guests::Guests;
pub use guests::{LOW, OF_NO_FUNCTION, OF_NO_MODULE};
use inside::Inside;
use kernel::{Kernel, Says, TaskIdentity};
pub use kernel::{TasksError, is_probed};
use ledger::symbols::Kallsyms;
use ledger::{Symbol, Task, TaskId, TaskKind, Ticks};
use regions::Regions;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
pub use state::TasksState;

/// Maximum number of tasks with a known location; beyond it the guest's tasks are discovered anew.
const MOST_THREADS: usize = 1 << 20;
/// Maximum number of threads with known ancestors; threads created later have none.
const MOST_DESCENTS: usize = 1 << 24;
/// Maximum number of addresses that soft interrupts are called from.
const MOST_CALLERS: usize = 64;
/// Number of the thread that creates kernel threads.
const KTHREADD: u32 = 2;

/// A task that the kernel has created.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Thread {
    /// Number of the thread, in the order in which threads were first seen; 0 is none.
    number: u32,
    identity: Option<TaskIdentity>,
    kernel_thread: bool,
    /// Soft interrupt processing that was in progress when the thread lost its processor.
    soft_interrupt: Option<SoftInterrupt>,
    /// Its stays in the kernel, while it does not run.
    stays: Suspended,
    /// What the guest runs whose processor the thread is, while the thread does not run.
    inside: Inside,
}

/// Soft interrupt processing in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SoftInterrupt {
    /// Return address, and the stack pointer there.
    back: u64,
    stack: u64,
    /// Interrupt nesting from before.
    nesting: Nesting,
}

/// Evaluates `is` for a task that the recorder of a processor knows.
fn task_is(cpu: &Cpu, task: TaskId, is: impl FnOnce(&Task) -> bool) -> bool {
    cpu.wiring.recorder.names().tasks().get(task.0 as usize).is_some_and(is)
}

/// Returns true for a task that exists only for soft interrupts.
fn is_daemon(task: &Task) -> bool {
    task.comm.starts_with("ksoftirqd/")
}

/// State of a processor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Processor {
    /// Last seen value of IA32_LSTAR.
    system_calls: u64,
    /// Address of the current task's `task_struct`, if it is known.
    current: Option<u64>,
    /// Number of the current thread.
    number: u32,
    /// Key of the current task if the guest declares its tasks.
    declared: u64,
    task: TaskId,
    soft_interrupt: Option<SoftInterrupt>,
    /// What a guest runs of which the current thread is a processor.
    inside: Inside,
    /// Time at which it last ran a task other than its idle task, if it runs the idle task now.
    idle_since: Option<Ticks>,
}

/// The guest's tasks.
pub struct Tasks {
    ram: GuestRam,
    /// Probed functions of a kernel that has no symbol tables of its own.
    symbols: Vec<Symbol>,
    kernel: Option<Kernel>,
    /// System call entry point of the kernel.
    entry: u64,
    processors: Vec<Processor>,
    threads: FxHashMap<u64, Thread>,
    /// Number of the creator of each thread.
    parents: Vec<u32>,
    /// Return addresses of soft interrupt processing, which have probes.
    callers: Vec<u64>,
    regions: Regions,
    guests: Guests,
}

/// Splits off a number at the beginning of a text, if there is one.
fn leading_number(text: &str) -> (Option<u32>, &str) {
    let parsed = text.split_once(' ').and_then(|(number, rest)| Some((number.parse().ok()?, rest)));
    parsed.map_or((None, text), |(number, rest)| (Some(number), rest))
}

impl Tasks {
    /// Creates the tasks of a machine with this number of processors.
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

    /// Sets the functions of a kernel that has no tables of its own, from files that the user has given; only
    /// [probed](is_probed) functions are needed.
    pub fn use_functions(&mut self, functions: Vec<Symbol>) {
        self.symbols = functions;
    }

    /// Returns the kernels in guests of a hypervisor that runs on the machine.
    pub(crate) fn guests(&self) -> &Guests {
        &self.guests
    }

    /// Returns the tables of the kernel whose tasks are observed.
    pub fn kernel(&self) -> Option<&Kallsyms> {
        self.kernel.as_ref()?.tables.as_ref()
    }

    /// Returns whether the tasks of the kernel have names, or `None` if no kernel was seen, or one that declares its tasks.
    pub fn are_named(&self) -> Option<Result<(), TasksError>> {
        let declared = self.processors.iter().any(|processor| processor.declared != 0);
        match &self.kernel {
            None if self.entry == 0 || declared => None,
            None => Some(Err(TasksError::NoKernel)),
            Some(kernel) => Some(kernel.names_tasks(kernel.tables.as_ref())),
        }
    }

    /// Returns the address of the `task_struct` of the task that a processor runs, if it is known.
    pub fn current(&self, processor: usize) -> Option<u64> {
        self.processors.get(processor)?.current
    }

    /// Checks if a processor has changed its system call entry since the last check: then it runs a kernel, possibly a
    /// new one.
    #[inline]
    pub fn look(&mut self, cpu: &mut Cpu, cache: &mut BlockCache) {
        // A hypervisor that runs on the machine loads its guest's entry point even before it enters the guest.
        let known = self.kernel.is_some() && cpu.has_hypervisor();
        if let Some(guest) = cpu.guest_of_software() {
            self.look_inside(guest, cpu, cache);
        }
        if cpu.wiring.model.recorded && !known && cpu.arch.msr.lstar != self.processors[cpu.wiring.index].system_calls {
            self.find(cpu, cache);
        }
    }

    #[cold]
    fn find(&mut self, cpu: &mut Cpu, cache: &mut BlockCache) {
        let entry = cpu.arch.msr.lstar;
        self.processors[cpu.wiring.index].system_calls = entry;
        // The other processors of a kernel use the same entry point as the first, and so does one that wakes up.
        if entry != 0 && entry != self.entry {
            self.entry = entry;
            cache.code.remove_probes(&cpu.wiring.ram);
            self.threads.drain().for_each(|(_, thread)| cpu.end_suspended(thread.stays));
            self.callers.clear();
            for processor in &mut self.processors {
                *processor = Processor { system_calls: processor.system_calls, ..Processor::default() };
            }
            self.kernel = Kernel::find(cpu, &self.ram, &self.symbols);
            for address in self.kernel.iter().flat_map(Kernel::addresses).chain(self.guests.all_addresses()) {
                cache.code.add_probe(address, &cpu.wiring.ram);
            }
        }
        if self.kernel.is_some() && self.processors[cpu.wiring.index].current.is_none() {
            // A processor begins with its idle task.
            let idle = Task::new(TaskKind::Idle, 0, 0, &format!("swapper/{}", cpu.wiring.index));
            self.processors[cpu.wiring.index].task = cpu.wiring.recorder.task(idle);
            self.publish(cpu);
        }
    }

    /// Handles a probe that a processor has reached.
    pub fn reached(&mut self, hit: Hit, cpu: &mut Cpu, cache: &mut BlockCache) {
        if hit.guest.is_some() {
            return self.reached_inside(hit, cpu, cache);
        }
        let says = self.kernel.as_ref().and_then(|kernel| kernel.says(hit.address));
        match says {
            Some(Says::Switch) => self.switch(cpu, hit.first, hit.second),
            Some(Says::NewTask) => self.made(cpu, hit.first),
            Some(Says::Name) => self.named(cpu, hit),
            Some(Says::SoftInterrupts) => self.soft_interrupts(cpu, hit, cache),
            None => self.came_back(cpu, hit),
        }
    }

    /// Handles a switch to another task.
    fn switch(&mut self, cpu: &mut Cpu, from: u64, to: u64) {
        let stays = cpu.suspend_stays();
        match self.threads.get_mut(&from) {
            Some(thread) => thread.stays = stays,
            None => cpu.end_suspended(stays),
        }
        let processor = &mut self.processors[cpu.wiring.index];
        let inside = std::mem::take(&mut processor.inside);
        if let Some(thread) = self.threads.get_mut(&from) {
            thread.inside = inside;
        }
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
        cpu.resume_stays(std::mem::take(&mut thread.stays));
        let processor = &mut self.processors[cpu.wiring.index];
        processor.current = Some(to);
        processor.number = thread.number;
        processor.soft_interrupt = thread.soft_interrupt.take();
        processor.inside = std::mem::take(&mut thread.inside);
        // For the next task the interrupts of the previous one are over.
        cpu.micro.charged.nesting = Nesting::default();
        self.identify(cpu, None);
        let idle = self.current_is(cpu, |task| task.kind == TaskKind::Idle);
        self.processors[cpu.wiring.index].idle_since = idle.then_some(cpu.micro.clock);
    }

    /// Returns the time since which the processors have run only their idle tasks, or `None` if another task runs now
    /// or the guest's tasks are not known. Interrupts and soft interrupts do not count, since an idle kernel has timers,
    /// nor do processors that have never entered a kernel.
    pub fn idle_since(&self) -> Option<Ticks> {
        self.kernel.as_ref()?;
        let running = self.processors.iter().filter(|processor| processor.system_calls != 0);
        running.map(|processor| processor.idle_since).try_fold(0, |latest, since| Some(latest.max(since?)))
    }

    /// Adds a thread that is seen for the first time.
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
        self.threads.insert(
            task,
            Thread {
                number,
                identity: None,
                kernel_thread: false,
                soft_interrupt: None,
                stays: Suspended::default(),
                inside: Inside::default(),
            },
        );
    }

    /// Handles the creation of a task by the current one.
    fn made(&mut self, cpu: &mut Cpu, task: u64) {
        let parent = self.processors[cpu.wiring.index].number;
        // The address may have belonged to an earlier task.
        if let Some(gone) = self.threads.remove(&task) {
            cpu.end_suspended(gone.stays);
        }
        self.know(task, parent);
        if let Some(kernel) = &mut self.kernel {
            kernel.made(cpu, task);
        }
        let by_kthreadd = self.current_is(cpu, |task| task.tid == KTHREADD);
        if let Some(thread) = self.threads.get_mut(&task) {
            thread.kernel_thread = by_kthreadd;
        }
    }

    /// Evaluates `is` for the current task of a processor.
    fn current_is(&self, cpu: &Cpu, is: impl FnOnce(&Task) -> bool) -> bool {
        task_is(cpu, self.processors[cpu.wiring.index].task, is)
    }

    /// Handles a change of a task's name.
    fn named(&mut self, cpu: &mut Cpu, hit: Hit) {
        if self.processors[cpu.wiring.index].current == Some(hit.first) {
            let name = Kernel::name(cpu, hit.second);
            self.identify(cpu, name);
        }
    }

    /// Identifies the current task of a processor, and publishes it.
    fn identify(&mut self, cpu: &mut Cpu, named: Option<[u8; 16]>) {
        let processor = &mut self.processors[cpu.wiring.index];
        let thread = processor.current.and_then(|current| Some((current, self.threads.get_mut(&current)?)));
        if let (Some((current, thread)), Some(kernel)) = (thread, &self.kernel) {
            if thread.identity.is_none() {
                thread.identity = kernel.identity(cpu, current);
            }
            if let Some(identity) = &mut thread.identity {
                let recorder = &cpu.wiring.recorder;
                processor.task = kernel.who(cpu, identity, named, thread.kernel_thread, recorder);
            }
        }
        self.publish(cpu);
    }

    /// Handles the begin of soft interrupt processing, which lasts until the function returns, unless the current task
    /// exists only for it.
    fn soft_interrupts(&mut self, cpu: &mut Cpu, hit: Hit, cache: &mut BlockCache) {
        if self.current_is(cpu, is_daemon) {
            return;
        }
        let Some((back, stack)) = self.soft_interrupts_return(cpu, hit, cache) else { return };
        let processor = &mut self.processors[cpu.wiring.index];
        // One of the probed functions may call the other one, deeper in the stack.
        if processor.soft_interrupt.is_none_or(|soft| stack > soft.stack) {
            // The interrupt after which soft interrupts run has not returned yet, but only a further interrupt is
            // distinguished from them.
            let nesting = std::mem::take(&mut cpu.micro.charged.nesting);
            if processor.soft_interrupt.is_some() {
                cpu.soft_interrupts_end();
            }
            cpu.soft_interrupts_begin();
            processor.soft_interrupt = Some(SoftInterrupt { back, stack, nesting });
            self.publish(cpu);
        }
    }

    /// Returns the address to which soft interrupt processing returns, at which there is a probe from now on, and the stack pointer there.
    /// Returns `None` if there can't be a probe.
    fn soft_interrupts_return(&mut self, cpu: &Cpu, hit: Hit, cache: &mut BlockCache) -> Option<(u64, u64)> {
        let mut back = [0; 8];
        if !View::of(cpu).read(hit.stack, &mut back) {
            return None;
        }
        let back = u64::from_le_bytes(back);
        if !self.callers.contains(&back) {
            if self.callers.len() == MOST_CALLERS {
                return None;
            }
            self.callers.push(back);
            cache.code.add_probe(back, &cpu.wiring.ram);
        }
        Some((back, hit.stack.wrapping_add(8)))
    }

    /// Handles the return from soft interrupt processing.
    fn came_back(&mut self, cpu: &mut Cpu, hit: Hit) {
        let processor = &mut self.processors[cpu.wiring.index];
        let Some(soft) = processor.soft_interrupt else { return };
        if (soft.back, soft.stack) == (hit.address, hit.stack) {
            processor.soft_interrupt = None;
            cpu.soft_interrupts_end();
            cpu.micro.charged.nesting = soft.nesting;
            self.publish(cpu);
        }
    }

    /// Handles a mark from the marker ports. It may concern all processors: the caller publishes it for each.
    pub fn mark(&mut self, mark: &Mark, cpu: &mut Cpu) {
        let now = cpu.micro.clock;
        let recorder = &cpu.wiring.recorder;
        match mark.command {
            Command::Begin => {
                // Without known tasks everything is charged.
                let root = Some(self.processors[mark.cpu].number).filter(|number| *number != 0);
                self.regions.begin(recorder, &mark.name, root, now);
            }
            Command::BeginAll => self.regions.begin(recorder, &mark.name, None, now),
            Command::End => self.regions.end(recorder, &mark.name, now),
            Command::Task => self.declared(cpu, &mark.name),
        }
    }

    /// Handles a task declaration of a guest other than Linux: the name of the task, optionally preceded by its number
    /// and the number of its creator.
    fn declared(&mut self, cpu: &mut Cpu, text: &str) {
        if self.kernel.is_some() {
            return;
        }
        let (number, rest) = leading_number(text);
        let (parent, name) = if number.is_some() { leading_number(rest) } else { (None, rest) };
        let pid = number.unwrap_or(0);
        let id = match text {
            "" => TaskId(0),
            _ => cpu.wiring.recorder.task(Task::new(TaskKind::Process, pid, pid, name)),
        };
        // Tasks without a number are identified by name.
        let key = number.map_or(1 << 32 | u64::from(id.0), u64::from);
        let parent = match parent {
            Some(parent) => {
                self.know(parent.into(), 0);
                self.threads.get(&parent.into()).map_or(0, |thread| thread.number)
            }
            None => 0,
        };
        self.know(key, parent);
        let stays = cpu.suspend_stays();
        let before = self.processors[cpu.wiring.index].declared;
        match self.threads.get_mut(&before) {
            Some(thread) => thread.stays = stays,
            None => cpu.end_suspended(stays),
        }
        cpu.resume_stays(
            self.threads.get_mut(&key).map(|thread| std::mem::take(&mut thread.stays)).unwrap_or_default(),
        );
        let number = if text.is_empty() { 0 } else { self.threads.get(&key).map_or(0, |thread| thread.number) };
        let processor = &mut self.processors[cpu.wiring.index];
        (processor.task, processor.number, processor.declared) = (id, number, key);
        cpu.micro.charged.nesting = Nesting::default();
    }

    /// Sets the task and region to which a processor's activity is charged from now on.
    pub fn publish(&self, cpu: &mut Cpu) {
        let Processor { number, task, soft_interrupt, inside, .. } = self.processors[cpu.wiring.index];
        let region = self.regions.of(|root| self.descends(number, root));
        let (soft_interrupt, inside) = (soft_interrupt.is_some(), inside.charged());
        let mut charged = cpu.micro.charged;
        (charged.task, charged.region, charged.soft_interrupt, charged.inside) = (task, region, soft_interrupt, inside);
        cpu.set_charged(charged);
    }

    /// Returns true if a thread is equal to or descends from another one.
    fn descends(&self, mut thread: u32, from: u32) -> bool {
        // The creator of a thread has a smaller number.
        while thread > from {
            thread = self.parents.get(thread as usize).copied().unwrap_or(0);
        }
        thread == from
    }

    /// Ends the open regions at the end of the run, and the stays in the kernel of tasks that do not run. They are recorded by this
    /// processor.
    pub fn finish(&mut self, cpu: &mut Cpu, now: Ticks) {
        for thread in self.threads.values_mut() {
            cpu.end_suspended(std::mem::take(&mut thread.stays));
        }
        self.regions.finish(&cpu.wiring.recorder, now);
    }
}

#[cfg(test)]
mod tests;
