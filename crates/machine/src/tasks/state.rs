//! What is known of the guest's tasks, as it is saved.

use super::kernel::Kernel;
use super::regions::Regions;
use super::{MOST_CALLERS, MOST_DESCENTS, MOST_THREADS, Processor, Tasks, Thread};
use crate::state::{StateError, decode, encode, require, same};
use ledger::Recorder;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Everything but the symbols that the user gives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct State {
    kernel: Option<Kernel>,
    entry: u64,
    processors: Vec<Processor>,
    threads: BTreeMap<u64, Thread>,
    parents: Vec<u32>,
    callers: Vec<u64>,
    regions: Regions,
}

impl State {
    /// Whether a machine with so many processors, and with the tasks and regions of this recorder, can be in it.
    fn check(&self, processors: usize, recorder: &Recorder) -> Result<(), StateError> {
        same(&self.processors.len(), &processors, "number of processors")?;
        let descents = self.parents.len();
        require((1..=MOST_DESCENTS).contains(&descents) && self.parents[0] == 0, "the descent of threads")?;
        // A thread is made by one that was there before: whoever follows descents comes to an end.
        let earlier = self.parents.iter().zip(0u32..).skip(1).all(|(parent, thread)| *parent < thread);
        let thread = |number: u32| (number as usize) < descents;
        require(earlier && self.processors.iter().all(|p| thread(p.number)), "the descent of threads")?;
        require(self.threads.len() <= MOST_THREADS && self.threads.values().all(|t| thread(t.number)), "threads")?;
        let seen = self.threads.values().filter_map(|thread| thread.identity.as_ref()?.task());
        let mut tasks = self.processors.iter().map(|processor| processor.task).chain(seen);
        require(tasks.all(|task| (task.0 as usize) < recorder.tasks().len()), "tasks that nobody has recorded")?;
        require(self.callers.len() <= MOST_CALLERS, "probes")?;
        self.regions.check(recorder)?;
        self.kernel.as_ref().map_or(Ok(()), Kernel::check)
    }
}

impl Tasks {
    /// The state as bytes; the same for the same state.
    pub fn save(&self) -> Result<Vec<u8>, StateError> {
        encode(&State {
            kernel: self.kernel.clone(),
            entry: self.entry,
            processors: self.processors.clone(),
            threads: self.threads.iter().map(|(task, thread)| (*task, thread.clone())).collect(),
            parents: self.parents.clone(),
            callers: self.callers.clone(),
            regions: self.regions.clone(),
        })
    }

    /// Takes on a state. `recorder` has what was recorded up to then. After an error nothing has changed.
    ///
    /// The code cache must have probes at [`Tasks::probes`] afterwards.
    pub fn restore(&mut self, bytes: &[u8], recorder: &Recorder) -> Result<(), StateError> {
        let state: State = decode(bytes)?;
        state.check(self.processors.len(), recorder)?;
        let State { kernel, entry, processors, threads, parents, callers, regions } = state;
        (self.kernel, self.entry, self.processors) = (kernel, entry, processors);
        self.threads = threads.into_iter().collect();
        (self.parents, self.callers, self.regions) = (parents, callers, regions);
        Ok(())
    }

    /// Linear addresses at which the code cache has probes for these tasks.
    pub fn probes(&self) -> impl Iterator<Item = u64> {
        self.kernel.iter().flat_map(Kernel::addresses).chain(self.callers.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::GuestRam;
    use ledger::{Task, TaskId, TaskKind};
    use proptest::prelude::*;

    fn tasks() -> Tasks {
        Tasks::new(GuestRam::new(1 << 20).unwrap(), 2)
    }

    fn thread(number: u32) -> Thread {
        Thread { number, identity: None, kernel_thread: false, soft_interrupt: None }
    }

    #[test]
    fn a_state_that_cannot_be_is_refused() {
        let mut recorder = Recorder::default();
        let known = recorder.task(Task::new(TaskKind::Process, 1, 1, "init"));
        let region = recorder.region("mine");
        let mut good: State = decode(&tasks().save().unwrap()).unwrap();
        good.processors[1] = Processor { number: 2, task: known, ..Processor::default() };
        good.parents = vec![0, 0, 1];
        good.threads = BTreeMap::from([(0x1000, thread(2))]);
        good.regions.begin(&mut recorder, "mine", Some(1), 5);
        assert_eq!(region.0, 1);
        let restored = |change: &dyn Fn(&mut State)| {
            let mut state = good.clone();
            change(&mut state);
            tasks().restore(&encode(&state).unwrap(), &recorder)
        };
        assert_eq!(restored(&|_| ()), Ok(()));
        let changes: [&dyn Fn(&mut State); 9] = [
            &|state| state.processors.truncate(1),
            &|state| state.parents[2] = 2,
            &|state| state.parents[0] = 1,
            &|state| state.parents.clear(),
            &|state| state.processors[0].number = 3,
            &|state| state.processors[0].task = TaskId(7),
            &|state| state.threads = BTreeMap::from([(1, thread(9))]),
            &|state| state.callers = vec![0; MOST_CALLERS + 1],
            &|state| {
                let mut other = Recorder::default();
                ["a", "b"].iter().for_each(|name| state.regions.begin(&mut other, name, None, 0));
            },
        ];
        for (number, change) in changes.iter().enumerate() {
            assert!(restored(change).is_err(), "change {number}");
        }
        let of_another = tasks().restore(&encode(&good).unwrap(), &Recorder::default());
        assert_eq!(of_another, Err(StateError::Impossible("tasks that nobody has recorded")));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut tasks = tasks();
            if tasks.restore(&bytes, &Recorder::default()).is_ok() {
                prop_assert_eq!(tasks.save().map(|saved| saved.len() <= bytes.len()), Ok(true));
            }
        }
    }
}
