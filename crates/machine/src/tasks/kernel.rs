//! Observation of the tasks of a Linux kernel: probes on some of its functions, and the layout of its `task_struct`.
//!
//! | function | meaning |
//! |---|---|
//! | `__switch_to(prev, next)` | the processor runs `next` from now on |
//! | `wake_up_new_task(task)` | the current task has made `task` |
//! | `__set_task_comm(task, name)` | the name of a task changes: it executes a program, or names itself |
//! | `__do_softirq()`, `handle_softirqs(ksirqd)` | soft interrupts are processed until it returns; the latter since Linux
//! 6.10, and in some earlier stable kernels |
//!
//! The functions have these names at least from Linux 5.10 to 7.3.

use crate::kernel_symbols::{self, View};
use crate::memory::GuestRam;
use crate::state::{StateError, require};
use cpu::Cpu;
use ledger::symbols::task_struct::{COMM, KERNEL_THREAD, LARGEST, Learner, TaskLayout};
use ledger::symbols::{Kallsyms, Landmarks};
use ledger::{Recorder, RegionId, Symbol, Task, TaskId, TaskKind};
use serde::{Deserialize, Serialize};

/// Meaning of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Says {
    Switch,
    NewTask,
    Name,
    SoftInterrupts,
}

const PROBES: [(&str, Says); 5] = [
    ("__switch_to", Says::Switch),
    ("wake_up_new_task", Says::NewTask),
    ("__set_task_comm", Says::Name),
    ("__do_softirq", Says::SoftInterrupts),
    ("handle_softirqs", Says::SoftInterrupts),
];

/// The reason why the tasks of a kernel have no names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TasksError {
    /// There is no kernel whose switches of tasks can be observed.
    #[error("the kernel has no function `__switch_to`, at which its switches of tasks are observed")]
    NoKernel,
    /// Nothing tells the layout of its tasks.
    #[error(
        "the kernel has no BTF (CONFIG_DEBUG_INFO_BTF is off), which describes its tasks, and its first tasks do not tell the layout of `struct task_struct`"
    )]
    NoTypes,
    /// The types of the kernel do not tell the layout of its tasks.
    #[error(
        "the kernel's BTF does not describe a `struct task_struct` that is understood, and its first tasks do not tell the layout"
    )]
    Layout,
}

/// A kernel whose tasks can be observed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// The kernel's symbol tables, for a report.
    pub tables: Option<Kallsyms>,
    probes: Vec<(u64, Says)>,
    layout: Option<TaskLayout>,
    learner: Learner,
}

/// Location of a task in memory, and its identity as last read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskIdentity {
    /// Guest-physical address of the `task_struct`, which is contiguous.
    physical: u64,
    seen: Option<Seen>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Seen {
    fields: Fields,
    id: TaskId,
}

/// The fields of a `task_struct` that identify a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Fields {
    numbers: [u32; 2],
    comm: [u8; COMM],
    flags: u32,
}

impl Fields {
    /// Reads the fields of a task. `named` is its new name if that is about to change; `kernel_thread` is true for a kernel thread, for layouts without
    /// flags. `read` reads the task's bytes from an offset on, or returns false.
    fn read(
        layout: TaskLayout,
        named: Option<[u8; COMM]>,
        kernel_thread: bool,
        read: impl Fn(u64, &mut [u8]) -> bool,
    ) -> Option<Self> {
        let word = |offset: u64| {
            let mut bytes = [0; 4];
            read(offset, &mut bytes).then(|| u32::from_le_bytes(bytes))
        };
        let flags = match layout.flags {
            Some(at) => word(at)? & KERNEL_THREAD,
            None if kernel_thread => KERNEL_THREAD,
            None => 0,
        };
        let mut comm = [0; COMM];
        match named {
            Some(name) => comm = name,
            None if read(layout.comm, &mut comm) => {}
            None => return None,
        }
        Some(Self { numbers: [word(layout.pid)?, word(layout.tid)?], comm, flags })
    }

    fn task(&self) -> Task {
        let kind = match (self.numbers, self.flags) {
            ([0, 0], _) => TaskKind::Idle,
            (_, 0) => TaskKind::Process,
            _ => TaskKind::KernelThread,
        };
        let end = self.comm.iter().position(|byte| *byte == 0).unwrap_or(COMM);
        Task::new(kind, self.numbers[0], self.numbers[1], &String::from_utf8_lossy(&self.comm[..end]))
    }
}

impl TaskIdentity {
    /// Returns true if the task that was seen last is one that was charged.
    pub fn is_known(&self, recorder: &Recorder) -> bool {
        self.seen.is_none_or(|seen| recorder.knows(seen.id, RegionId(0)))
    }
}

/// Returns true if a function has this name. Compilers append a suffix to the names of functions that they derive, as in
/// `handle_softirqs.isra.0`. The rarely executed rest of a function, `handle_softirqs.cold`, is not its beginning.
fn is(symbol: &Symbol, name: &str) -> bool {
    let mut parts = symbol.name.split('.');
    parts.next() == Some(name) && !parts.any(|suffix| suffix == "cold")
}

/// Returns true if a function of a kernel would be probed.
pub fn is_probed(symbol: &Symbol) -> bool {
    PROBES.iter().any(|(name, _)| is(symbol, name))
}

impl Kernel {
    /// Finds the kernel that a processor runs, by its own tables or else by the given `symbols`. Returns `None` if
    /// there is no kernel whose tasks can be observed.
    pub fn find(cpu: &Cpu, ram: &GuestRam, symbols: &[Symbol]) -> Option<Self> {
        let tables = kernel_symbols::running(cpu, ram);
        let functions = tables.as_ref().map_or(symbols, |tables| &tables.functions[..]);
        let landmarks = tables.as_ref().map(|tables| tables.landmarks).unwrap_or_default();
        let view = View::of(cpu);
        let found = Self::with(cpu, functions, &landmarks, |linear, out| view.read(linear, out))?;
        Some(Self { tables, ..found })
    }

    /// Prepares the observation of a kernel that a processor runs, by its functions and landmarks. `read` reads the kernel's image.
    pub fn with(
        cpu: &Cpu,
        functions: &[Symbol],
        landmarks: &Landmarks,
        read: impl Fn(u64, &mut [u8]) -> bool,
    ) -> Option<Self> {
        let address = |name: &str| functions.iter().find(|symbol| is(symbol, name)).map(|symbol| symbol.start);
        let probes = PROBES.iter().filter_map(|(name, says)| Some((address(name)?, *says))).collect::<Vec<_>>();
        // Without this probe no task can be observed.
        probes.iter().find(|(_, says)| *says == Says::Switch)?;
        let layout = TaskLayout::from_btf(landmarks, read);
        let mut learner = Learner::default();
        if let (None, Some(idle)) = (layout, landmarks.init_task) {
            learner.idle(whole(cpu, idle));
        }
        Some(Self { tables: None, probes, layout, learner })
    }

    /// Returns the reason why its tasks have no names, if they have none. `tables` are those of the kernel.
    pub fn names_tasks(&self, tables: Option<&Kallsyms>) -> Result<(), TasksError> {
        match self.layout {
            Some(_) => Ok(()),
            None if tables.is_some_and(|tables| tables.landmarks.btf.is_some()) => Err(TasksError::Layout),
            None => Err(TasksError::NoTypes),
        }
    }

    /// Checks that a saved state is possible.
    pub fn check(&self) -> Result<(), StateError> {
        require(self.probes.len() <= PROBES.len() && self.learner.is_bounded(), "a kernel's probes")?;
        let functions = self.tables.iter().flat_map(|tables| tables.functions.iter());
        require(functions.map(|f| f.start.checked_add(f.size)).all(|end| end.is_some()), "a kernel's functions")
    }

    /// Returns the addresses of the probed functions.
    pub fn addresses(&self) -> impl Iterator<Item = u64> {
        self.probes.iter().map(|probe| probe.0)
    }

    /// Returns the meaning of an address that has been reached, if it is one of [`Kernel::addresses`].
    pub fn says(&self, address: u64) -> Option<Says> {
        self.probes.iter().find(|probe| probe.0 == address).map(|probe| probe.1)
    }

    /// Returns the location of a task, or `None` if it is not in memory.
    pub fn identity(&self, cpu: &Cpu, task: u64) -> Option<TaskIdentity> {
        Some(TaskIdentity { physical: View::of(cpu).look_up(task)?, seen: None })
    }

    /// Learns from the first task switch: the previous task is the idle task, which gives the layout if nothing else
    /// does.
    pub fn first_switch(&mut self, cpu: &Cpu, idle: u64) {
        if self.layout.is_none() {
            self.learner.idle(whole(cpu, idle));
            self.layout = self.learner.layout();
        }
    }

    /// Learns from the creation of a task.
    pub fn made(&mut self, cpu: &Cpu, task: u64) {
        if self.layout.is_none() {
            self.learner.made(whole(cpu, task));
            self.layout = self.learner.layout();
        }
    }

    /// Returns the identity of a task. `named` is its new name if that is about to change; `kernel_thread` is true for
    /// a kernel thread, for kernels that do not store this.
    pub fn who(
        &self,
        cpu: &Cpu,
        identity: &mut TaskIdentity,
        named: Option<[u8; COMM]>,
        kernel_thread: bool,
        recorder: &Recorder,
    ) -> TaskId {
        let Some(layout) = self.layout else { return TaskId(0) };
        let read = |offset: u64, out: &mut [u8]| {
            // Memory that does not exist reads as zeros.
            cpu.wiring.ram.read_bytes(identity.physical.wrapping_add(offset), out);
            true
        };
        let Some(fields) = Fields::read(layout, named, kernel_thread, read) else { return TaskId(0) };
        if let Some(seen) = identity.seen.filter(|seen| seen.fields == fields) {
            return seen.id;
        }
        let id = recorder.task(fields.task());
        identity.seen = Some(Seen { fields, id });
        id
    }

    /// Returns the task of a guest that a processor runs, or `None` if it cannot be read. In the machine's memory a guest's task need not be contiguous,
    /// nor stay at its place.
    pub fn who_inside(&self, cpu: &Cpu, task: u64, named: Option<[u8; COMM]>) -> Option<Task> {
        let view = View::of(cpu);
        let fields = Fields::read(self.layout?, named, false, |offset, out| view.read(task.wrapping_add(offset), out))?;
        Some(fields.task())
    }

    /// Reads the name at an address, in the format of a task's name.
    pub fn name(cpu: &Cpu, address: u64) -> Option<[u8; COMM]> {
        let mut name = [0; COMM];
        let view = View::of(cpu);
        for (offset, byte) in (0u64..).zip(&mut name[..COMM - 1]) {
            if !view.read(address.wrapping_add(offset), std::slice::from_mut(byte)) {
                return None;
            }
            if *byte == 0 {
                break;
            }
        }
        Some(name)
    }
}

/// Reads the bytes of a task, as far as they are mapped.
fn whole(cpu: &Cpu, task: u64) -> Vec<u8> {
    const PIECE: usize = 256;
    let view = View::of(cpu);
    let mut bytes = Vec::new();
    let mut piece = [0; PIECE];
    while bytes.len() < LARGEST && view.read(task.wrapping_add(bytes.len() as u64), &mut piece) {
        bytes.extend_from_slice(&piece);
    }
    bytes
}
