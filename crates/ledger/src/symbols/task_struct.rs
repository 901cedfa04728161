//! The offsets of the fields of a Linux kernel's `struct task_struct` that identify a task: from the kernel's BTF, or, without BTF, from the first tasks
//! that are made, whose numbers are known.

use super::btf::Btf;
use super::kallsyms::Landmarks;
use serde::{Deserialize, Serialize};

/// Bytes of a task's name, TASK_COMM_LEN.
pub const COMM: usize = 16;
/// PF_KTHREAD: the task is a thread of the kernel's.
pub const KERNEL_THREAD: u32 = 0x0020_0000;
/// Bytes of a `task_struct` that are looked at without BTF.
pub const LARGEST: usize = 16 << 10;

/// Offsets in `struct task_struct`, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskLayout {
    /// `pid`: the thread's number (32 bits).
    pub tid: u64,
    /// `tgid`: the process's number (32 bits).
    pub pid: u64,
    /// `comm`: its name, [`COMM`] bytes.
    pub comm: u64,
    /// `flags` (32 bits), if that is known.
    pub flags: Option<u64>,
}

impl TaskLayout {
    /// The layout by the kernel's BTF. `read` reads linear memory: all of the bytes, or it returns `false`.
    pub fn from_btf(landmarks: &Landmarks, read: impl Fn(u64, &mut [u8]) -> bool) -> Option<Self> {
        let bytes = landmarks.btf_bytes(read)?;
        let btf = Btf::parse(&bytes)?;
        let task = btf.structure("task_struct")?;
        let at = |name: &str| Some(btf.field(task, name)?.offset);
        Some(Self { tid: at("pid")?, pid: at("tgid")?, comm: at("comm")?, flags: at("flags") })
    }
}

/// Finds the layout from the first tasks: the idle task (0, `swapper`) and those that the kernel makes first, with the numbers 1, 2 and 3.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Learner {
    idle: Option<Vec<u8>>,
    made: Vec<Vec<u8>>,
}

impl Learner {
    /// Tasks that are made before the layout is clear.
    const WANTED: usize = 3;

    /// Returns true if only as many tasks have been kept as are examined.
    pub fn is_bounded(&self) -> bool {
        let all = || self.idle.iter().chain(&self.made);
        self.made.len() <= Self::WANTED && all().all(|task| task.len() <= LARGEST)
    }

    /// Shows the first processor's idle task, from its first byte on. The first one that is shown counts.
    pub fn idle(&mut self, task: Vec<u8>) {
        self.idle.get_or_insert(task);
    }

    /// Shows the next task that is made.
    pub fn made(&mut self, task: Vec<u8>) {
        if self.made.len() < Self::WANTED {
            self.made.push(task);
        }
    }

    /// The layout, once it is clear.
    pub fn layout(&self) -> Option<TaskLayout> {
        let idle = self.idle.as_ref()?;
        if self.made.len() < Self::WANTED {
            return None;
        }
        let comm = memchr::memmem::find_iter(idle, b"swapper").find(|at| {
            let rest = &idle[at + 7..];
            rest.starts_with(b"\0") || rest.starts_with(b"/0\0")
        })?;
        let number = |task: &[u8], at: usize| Some(u32::from_le_bytes(task.get(at..at + 4)?.try_into().ok()?));
        let both_are = |task: &[u8], at: usize, n: u32| number(task, at) == Some(n) && number(task, at + 4) == Some(n);
        let fits = |at: &usize| both_are(idle, *at, 0) && (1..).zip(&self.made).all(|(n, task)| both_are(task, *at, n));
        let tid = (0..comm).step_by(4).find(fits)? as u64;
        Some(TaskLayout { tid, pid: tid + 4, comm: comm as u64, flags: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbols::btf::tests::Writer;
    use proptest::prelude::*;

    #[test]
    fn the_layout_is_in_the_btf() {
        let mut w = Writer::default();
        let int = w.add("int", 1, 0, 4, &[0x20]);
        let name = w.array(int, 16);
        let rest = w.structure("", 64, &[("pid", int, 8), ("tgid", int, 12), ("comm", name, 40)]);
        w.structure("task_struct", 256, &[("flags", int, 44), ("", rest, 128)]);
        let btf = w.bytes();
        let landmarks = Landmarks { btf: Some((0x1000, 0x1000 + btf.len() as u64)), ..Landmarks::default() };
        let read = |linear: u64, out: &mut [u8]| {
            let at = (linear - 0x1000) as usize;
            btf.get(at..at + out.len()).is_some_and(|bytes| {
                out.copy_from_slice(bytes);
                true
            })
        };
        let expected = TaskLayout { tid: 136, pid: 140, comm: 168, flags: Some(44) };
        assert_eq!(TaskLayout::from_btf(&landmarks, read), Some(expected));
        assert_eq!(TaskLayout::from_btf(&Landmarks::default(), read), None);
    }

    fn task(number: u32, comm: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x5a; 512];
        // Something that looks like a pair of numbers in some tasks, but not in all.
        bytes[64..72].fill(0);
        bytes[100..104].copy_from_slice(&number.to_le_bytes());
        bytes[104..108].copy_from_slice(&number.to_le_bytes());
        bytes[200..200 + comm.len()].copy_from_slice(comm);
        bytes
    }

    #[test]
    fn the_layout_is_learned_from_the_first_tasks() {
        let mut learner = Learner::default();
        for number in 1..=3 {
            assert_eq!(learner.layout(), None);
            learner.made(task(number, b"swapper/0\0"));
        }
        assert_eq!(learner.layout(), None);
        learner.idle(task(0, b"swapper/0\0"));
        learner.idle(vec![]);
        learner.made(vec![]);
        assert_eq!(learner.layout(), Some(TaskLayout { tid: 100, pid: 104, comm: 200, flags: None }));
    }

    proptest! {
        #[test]
        fn no_memory_makes_it_panic(tasks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 4), at in 0usize..64) {
            let mut learner = Learner::default();
            let mut idle = tasks[0].clone();
            idle.splice(at.min(idle.len()).., *b"swapper");
            learner.idle(idle);
            tasks[1..].iter().for_each(|task| learner.made(task.clone()));
            let _ = learner.layout();
        }
    }
}
