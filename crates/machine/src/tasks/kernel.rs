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
use ledger::symbols::Kallsyms;
use ledger::symbols::task_struct::{COMM, KERNEL_THREAD, LARGEST, Learner, TaskLayout};
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
    numbers: [u32; 2],
    comm: [u8; COMM],
    flags: u32,
    id: TaskId,
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
        let address = |name: &str| functions.iter().find(|symbol| is(symbol, name)).map(|symbol| symbol.start);
        let probes = PROBES.iter().filter_map(|(name, says)| Some((address(name)?, *says))).collect::<Vec<_>>();
        // Without this probe no task can be observed.
        probes.iter().find(|(_, says)| *says == Says::Switch)?;
        let landmarks = tables.as_ref().map(|tables| tables.landmarks).unwrap_or_default();
        let view = View::of(cpu);
        let layout = TaskLayout::from_btf(&landmarks, |linear, out| view.read(linear, out));
        let mut learner = Learner::default();
        if let (None, Some(idle)) = (layout, landmarks.init_task) {
            learner.idle(whole(cpu, idle));
        }
        Some(Self { tables, probes, layout, learner })
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
        let Some(TaskLayout { tid, pid, comm, flags }) = self.layout else { return TaskId(0) };
        let word = |offset: u64| cpu.wiring.ram.read::<u32>(identity.physical.wrapping_add(offset)).unwrap_or_default();
        let numbers = [word(pid), word(tid)];
        let flags = flags.map_or(if kernel_thread { KERNEL_THREAD } else { 0 }, |at| word(at) & KERNEL_THREAD);
        let comm = named.unwrap_or_else(|| {
            let mut bytes = [0; COMM];
            cpu.wiring.ram.read_bytes(identity.physical.wrapping_add(comm), &mut bytes);
            bytes
        });
        if let Some(seen) = identity.seen
            && (seen.numbers, seen.comm, seen.flags) == (numbers, comm, flags)
        {
            return seen.id;
        }
        let kind = match (numbers, flags & KERNEL_THREAD) {
            ([0, 0], _) => TaskKind::Idle,
            (_, 0) => TaskKind::Process,
            _ => TaskKind::KernelThread,
        };
        let end = comm.iter().position(|byte| *byte == 0).unwrap_or(COMM);
        let name = String::from_utf8_lossy(&comm[..end]);
        let id = recorder.task(Task::new(kind, numbers[0], numbers[1], &name));
        identity.seen = Some(Seen { numbers, comm, flags, id });
        id
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
