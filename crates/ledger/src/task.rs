//! Tasks of a guest: what it runs on its processors, and in which context.

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

/// The kind of a task, according to the guest's kernel.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    IntoStaticStr,
    VariantArray,
    Serialize,
    Deserialize,
)]
#[strum(serialize_all = "kebab-case")]
pub enum TaskKind {
    /// A process, or one of its threads.
    #[default]
    Process,
    /// A thread of the kernel's own.
    KernelThread,
    /// The task that a processor runs when there is nothing to do.
    Idle,
}

impl TaskKind {
    /// All of them, in the order of their declaration.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// The identifier used in machine-readable output.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// A task of the guest. A program that a process executes makes it another task, since its name changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Task {
    /// Its kind.
    pub kind: TaskKind,
    /// The process (what the kernel calls the thread group).
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Its name, at most [`LONGEST_COMM`] bytes.
    pub comm: String,
}

/// The longest name of a task, in bytes: a kernel's are shorter, a bare-metal guest's may be regions' names.
pub const LONGEST_COMM: usize = 63;
/// The name of tasks that have none.
const NO_NAME: &str = "(no name)";
/// The most tasks of a run that have a number here; all further ones are charged by name alone. A guest decides how many it has.
pub const MOST_TASKS: usize = 1 << 16;
/// The most names of tasks told apart; all further ones are charged as one of their kind.
pub const MOST_NAMES: usize = 1 << 10;
/// The name of the tasks that stand for those beyond [`MOST_NAMES`].
const FURTHER_TASKS: &str = "(further tasks)";

impl Task {
    /// A task. Characters that cannot be printed are dropped from its name. If nothing is left, the name is `(no name)`,
    /// because only the item that stands for no task has no name.
    pub fn new(kind: TaskKind, pid: u32, tid: u32, comm: &str) -> Self {
        let mut name = String::new();
        for c in comm.chars().filter(|c| !c.is_control()) {
            if name.len() + c.len_utf8() > LONGEST_COMM {
                break;
            }
            name.push(c);
        }
        if name.is_empty() {
            name.push_str(NO_NAME);
        }
        Self { kind, pid, tid, comm: name }
    }
}

/// An interned [`Task`]; 0 where no task is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TaskId(pub u32);

/// The activity of the processor while a task is its current one.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    IntoStaticStr,
    VariantArray,
    Serialize,
    Deserialize,
)]
#[strum(serialize_all = "kebab-case")]
pub enum Context {
    /// The task itself, with what the kernel does for it: system calls, exceptions.
    #[default]
    Task,
    /// Soft interrupts: work that the kernel had put off, done on top of whichever task there is.
    SoftInterrupt,
    /// Interrupts and NMIs, from their delivery to the end of their handlers.
    Interrupt,
}

impl Context {
    /// All of them, in the order of their declaration.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// The identifier used in machine-readable output.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The tasks of a run, each with a number, and each with the one that stands for all of its name. That depends on the order in which the guest has
/// made them, and on nothing else.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Tasks {
    all: Vec<Task>,
    /// By number: the task that stands for all of its name.
    named: Vec<TaskId>,
    numbers: FxHashMap<Task, TaskId>,
    names: usize,
}

impl Default for Tasks {
    fn default() -> Self {
        Self { all: vec![Task::default()], named: vec![TaskId(0)], numbers: FxHashMap::default(), names: 0 }
    }
}

impl Tasks {
    /// The number of a task, the same for equal tasks.
    pub fn number(&mut self, task: Task) -> TaskId {
        if let Some(number) = self.numbers.get(&task) {
            return *number;
        }
        let named = self.name(task.kind, &task.comm);
        // A task without numbers, such as that of an idle processor, stands for its name itself.
        if let Some(number) = self.numbers.get(&task) {
            return *number;
        }
        // Each name takes a place as well.
        if self.all.len() >= MOST_TASKS - MOST_NAMES {
            return named;
        }
        self.insert(task, Some(named))
    }

    /// The task that stands for all of a kind and a name.
    fn name(&mut self, kind: TaskKind, comm: &str) -> TaskId {
        let task = Task { kind, pid: 0, tid: 0, comm: comm.to_owned() };
        if let Some(number) = self.numbers.get(&task) {
            return self.by_name(*number);
        }
        if self.names >= MOST_NAMES - TaskKind::ALL.len() && comm != FURTHER_TASKS {
            return self.name(kind, FURTHER_TASKS);
        }
        self.names += 1;
        self.insert(task, None)
    }

    fn insert(&mut self, task: Task, named: Option<TaskId>) -> TaskId {
        let number = TaskId(self.all.len() as u32);
        self.all.push(task.clone());
        self.named.push(named.unwrap_or(number));
        self.numbers.insert(task, number);
        number
    }

    /// The task that stands for all that are called as this one.
    pub fn by_name(&self, task: TaskId) -> TaskId {
        self.named[task.0 as usize]
    }

    /// Returns true if all numbers belong to existing tasks: they may come from a file.
    pub fn fits(&self) -> bool {
        let is = |number: &TaskId| (number.0 as usize) < self.all.len();
        !self.all.is_empty()
            && self.all.len() <= MOST_TASKS
            && self.named.len() == self.all.len()
            && self.named.iter().all(is)
            && self.numbers.values().all(is)
    }

    /// The tasks by number; the first stands for none.
    pub fn all(&self) -> &[Task] {
        &self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_tasks_have_one_number() {
        let mut tasks = Tasks::default();
        let task = |pid| Task::new(TaskKind::Process, pid, pid, "sh");
        let first = tasks.number(task(1));
        assert_ne!(first, TaskId(0));
        assert_ne!(first, tasks.number(task(2)));
        assert_eq!(first, tasks.number(task(1)));
        assert_eq!(tasks.all()[first.0 as usize].pid, 1);
    }

    #[test]
    fn a_task_without_numbers_stands_for_its_name() {
        let mut tasks = Tasks::default();
        let idle = tasks.number(Task::new(TaskKind::Idle, 0, 0, "swapper/1"));
        assert_eq!((idle, idle), (tasks.by_name(idle), tasks.number(Task::new(TaskKind::Idle, 0, 0, "swapper/1"))));
        assert_eq!(tasks.all().len(), 2);
    }

    #[test]
    fn names_are_bounded_and_printable() {
        let task = Task::new(TaskKind::Process, 1, 1, &format!("a\n\u{1b}b{}", "ö".repeat(100)));
        assert!(task.comm.starts_with("abö") && task.comm.len() <= LONGEST_COMM);
    }

    #[test]
    fn a_task_without_a_name_is_not_the_one_that_stands_for_none() {
        let mut tasks = Tasks::default();
        let unnamed = tasks.number(Task::new(TaskKind::Process, 0, 0, "\u{1b}"));
        assert_ne!(unnamed, TaskId(0));
        assert!(tasks.all().iter().skip(1).all(|task| *task != Task::default()));
    }

    #[test]
    fn a_guest_with_too_many_tasks_has_one_for_the_rest_of_each_name() {
        let mut tasks = Tasks::default();
        let numbers: Vec<_> = (0..MOST_TASKS as u32 + 10)
            .map(|tid| tasks.number(Task::new(TaskKind::Process, 1, tid + 1, "t")))
            .collect();
        assert_eq!(numbers[MOST_TASKS + 5], numbers[MOST_TASKS + 9]);
        assert_eq!(numbers[MOST_TASKS + 5], tasks.by_name(numbers[0]));
        assert!(tasks.all().len() <= MOST_TASKS);
        let name = &tasks.all()[numbers[MOST_TASKS + 5].0 as usize];
        assert_eq!((name.tid, name.comm.as_str()), (0, "t"));
    }

    #[test]
    fn a_task_with_too_many_names_has_one_for_the_rest() {
        let mut tasks = Tasks::default();
        let mut number = |i: u32, kind| tasks.number(Task::new(kind, 1, 1, &format!("name {i}")));
        let process: Vec<_> = (0..3000).map(|i| number(i, TaskKind::Process)).collect();
        let thread = number(0, TaskKind::KernelThread);
        let names: Vec<_> = process.iter().map(|number| tasks.by_name(*number)).collect();
        assert_eq!(names[2000], names[2999]);
        assert_ne!(names[1], names[2]);
        assert_ne!(process[2000], process[2999], "their numbers are still told apart");
        let comm = |number: TaskId| tasks.all()[number.0 as usize].comm.as_str();
        assert_eq!((comm(names[2000]), comm(tasks.by_name(thread))), ("(further tasks)", "(further tasks)"));
        assert_ne!(names[2000], tasks.by_name(thread), "one for each kind");
    }
}
