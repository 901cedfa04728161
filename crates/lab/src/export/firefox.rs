//! The Firefox Profiler's processed profile format, with the guest's processes and threads. A sample of a crossing weighs its cost in
//! microseconds.

use super::{Export, ExportError, task_title};
use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, CpuDelta, Frame, FrameFlags, FrameInfo, ProcessHandle, Profile, ReferenceTimestamp,
    SamplingInterval, ThreadHandle, Timestamp,
};
use ledger::Task;
use ledger::summary::Weigh;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

/// Returns the profile.
pub fn profile(export: Export) -> Result<Vec<u8>, ExportError> {
    let interval = export.nanoseconds(export.ledger.stacks.keeps.interval).max(1);
    // The clock of a run starts at zero.
    let begin = ReferenceTimestamp::from_duration_since_unix_epoch(Duration::ZERO);
    let mut profile = Profile::new("tollgate", begin, SamplingInterval::from_nanos(interval));
    profile.set_os_name("Linux");
    profile.set_symbolicated(true);
    let mut threads = Threads::default();
    let kernel = profile.add_category("Kernel", CategoryColor::Orange);
    let user = profile.add_category("User", CategoryColor::Yellow);
    let unit = match export.weigh {
        Weigh::Samples => interval,
        Weigh::Crossings => 1000,
        Weigh::Kinds(_) => 1,
    };
    let mut samples = export.samples();
    samples.sort_by_key(|sample| sample.time);
    for sample in samples {
        let time = Timestamp::from_nanos_since_reference(export.nanoseconds(sample.time));
        let thread = threads.thread(&mut profile, export.task(sample.who), time);
        let space = sample.who.address_space();
        let mut addresses: Vec<u64> = export.ledger.stacks.frames(sample.stack).collect();
        addresses.reverse();
        let frames: Vec<FrameInfo> = addresses
            .into_iter()
            .map(|address| {
                let category: CategoryHandle = if address >> 63 == 0 { user } else { kernel };
                let name = profile.intern_string(&export.ledger.frame_name(space, address));
                FrameInfo { frame: Frame::Label(name), category_pair: category.into(), flags: FrameFlags::empty() }
            })
            .collect();
        let stack = profile.intern_stack_frames(thread, frames.into_iter());
        let amount = export.amount(sample.weight);
        let weight = i32::try_from(amount.div_ceil(unit)).unwrap_or(i32::MAX);
        let spent = if matches!(export.weigh, Weigh::Kinds(_)) { 0 } else { amount };
        profile.add_sample(thread, time, stack, CpuDelta::from_nanos(spent), weight);
    }
    serde_json::to_vec(&profile).map_err(|_| ExportError::Json)
}

/// The number of a process or thread, and the name of a task that has no number of its own: an idle task, or none.
type Number<'a> = (u32, &'a str);

/// Processes and threads with samples.
#[derive(Default)]
struct Threads<'a> {
    processes: BTreeMap<Number<'a>, ProcessHandle>,
    threads: BTreeMap<Number<'a>, ThreadHandle>,
}

impl<'a> Threads<'a> {
    /// Returns the thread of a task. A thread that has executed another program keeps its number and gets the name of that
    /// program, and a process has the name of its first thread.
    fn thread(&mut self, profile: &mut Profile, task: &'a Task, time: Timestamp) -> ThreadHandle {
        let title = task_title(task);
        let own = if task.pid == 0 { title } else { "" };
        let is_first = task.pid == task.tid;
        let process = match self.processes.entry((task.pid, own)) {
            Entry::Vacant(new) => *new.insert(profile.add_process(title, task.pid, time)),
            Entry::Occupied(known) => {
                if is_first {
                    profile.set_process_name(*known.get(), title);
                }
                *known.get()
            }
        };
        let thread = *self
            .threads
            .entry((task.tid, own))
            .or_insert_with(|| profile.add_thread(process, task.tid, time, is_first));
        profile.set_thread_name(thread, title);
        thread
    }
}
