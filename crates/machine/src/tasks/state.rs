//! Saved state of the guest's tasks.

use super::guests::Guests;
use super::kernel::Kernel;
use super::regions::Regions;
use super::{MOST_CALLERS, MOST_DESCENTS, MOST_THREADS, Processor, Tasks, Thread};
use crate::state::{StateError, require, same};
use cpu::{BlockCache, Ram};
use ledger::{Recorder, RegionId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Saved state of the guest's tasks, without the symbols that the user gives. Threads are sorted, so that equal states
/// are equal bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TasksState {
    kernel: Option<Kernel>,
    entry: u64,
    processors: Vec<Processor>,
    threads: BTreeMap<u64, Thread>,
    parents: Vec<u32>,
    callers: Vec<u64>,
    regions: Regions,
    guests: Guests,
}

impl TasksState {
    /// Checks that this can be the state of a machine with this number of processors and these charges.
    fn check(&self, processors: usize, recorder: &Recorder) -> Result<(), StateError> {
        same(&self.processors.len(), &processors, "number of processors")?;
        let descents = self.parents.len();
        require((1..=MOST_DESCENTS).contains(&descents) && self.parents[0] == 0, "too many threads")?;
        // A thread's creator has a smaller number, so the search for ancestors ends.
        let earlier = self.parents.iter().zip(0u32..).skip(1).all(|(parent, thread)| *parent < thread);
        require(earlier, "a thread that descends from itself")?;
        let numbers = || self.processors.iter().map(|p| p.number).chain(self.threads.values().map(|t| t.number));
        require(numbers().all(|number| (number as usize) < descents), "a thread without descent")?;
        require(self.threads.len() <= MOST_THREADS && self.callers.len() <= MOST_CALLERS, "too many tasks")?;
        let exists = |task| recorder.knows(task, RegionId(0));
        let known = |processor: &Processor| exists(processor.task) && exists(processor.inside.task());
        require(self.processors.iter().all(known), "a processor's task")?;
        require(self.threads.values().all(|thread| exists(thread.inside.task())), "a thread's guest")?;
        let seen = |thread: &Thread| thread.identity.as_ref().is_none_or(|identity| identity.is_known(recorder));
        require(self.threads.values().all(seen), "a thread's task")?;
        let stays = |thread: &Thread| thread.stays.fits(|task, region| recorder.knows(task, region));
        require(self.threads.values().all(stays), "a thread's stays in the kernel")?;
        require(self.regions.are_known(recorder), "a region")?;
        self.guests.check()?;
        self.kernel.as_ref().map_or(Ok(()), Kernel::check)
    }
}

impl Tasks {
    /// Returns the state.
    pub fn save(&self) -> TasksState {
        TasksState {
            kernel: self.kernel.clone(),
            entry: self.entry,
            processors: self.processors.clone(),
            threads: self.threads.iter().map(|(task, thread)| (*task, thread.clone())).collect(),
            parents: self.parents.clone(),
            callers: self.callers.clone(),
            regions: self.regions.clone(),
            guests: self.guests.clone(),
        }
    }

    /// Restores a state, and sets its probes in a cache that has none.
    pub fn restore(
        &mut self,
        state: TasksState,
        recorder: &Recorder,
        cache: &mut BlockCache,
        ram: &Ram,
    ) -> Result<(), StateError> {
        state.check(self.processors.len(), recorder)?;
        let TasksState { kernel, entry, processors, threads, parents, callers, regions, guests } = state;
        let probes = kernel.iter().flat_map(Kernel::addresses).chain(guests.all_addresses());
        for address in probes.chain(callers.iter().copied()) {
            cache.code.add_probe(address, ram);
        }
        (self.kernel, self.entry, self.processors) = (kernel, entry, processors);
        self.threads = threads.into_iter().collect();
        (self.parents, self.callers, self.regions, self.guests) = (parents, callers, regions, guests);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::GuestRam;
    use crate::state::decode;
    use ledger::{Task, TaskId, TaskKind};
    use proptest::prelude::*;

    fn tasks() -> Tasks {
        Tasks::new(GuestRam::new(1 << 20).unwrap(), 2)
    }

    fn thread(number: u32) -> Thread {
        Thread {
            number,
            identity: None,
            kernel_thread: false,
            soft_interrupt: None,
            stays: Default::default(),
            inside: Default::default(),
        }
    }

    #[test]
    fn a_state_that_cannot_be_is_refused() {
        let recorder = Recorder::default();
        let known = recorder.task(Task::new(TaskKind::Process, 1, 1, "init"));
        let region = recorder.region("mine");
        let mut good = tasks().save();
        good.processors[1] = Processor { number: 2, task: known, ..Processor::default() };
        good.parents = vec![0, 0, 1];
        good.threads = BTreeMap::from([(0x1000, thread(2))]);
        good.regions.begin(&recorder, "mine", Some(1), 5);
        assert_eq!(region.0, 1);
        let restored = |change: &dyn Fn(&mut TasksState)| {
            let mut state = good.clone();
            change(&mut state);
            state.check(2, &recorder)
        };
        assert_eq!(restored(&|_| ()), Ok(()));
        let changes: [&dyn Fn(&mut TasksState); 9] = [
            &|state| state.processors.truncate(1),
            &|state| state.parents[2] = 2,
            &|state| state.parents[0] = 1,
            &|state| state.parents.clear(),
            &|state| state.processors[0].number = 3,
            &|state| state.processors[0].task = TaskId(7),
            &|state| state.threads = BTreeMap::from([(1, thread(9))]),
            &|state| state.callers = vec![0; MOST_CALLERS + 1],
            &|state| {
                let other = Recorder::default();
                ["a", "b"].iter().for_each(|name| state.regions.begin(&other, name, None, 0));
            },
        ];
        for (number, change) in changes.iter().enumerate() {
            assert!(restored(change).is_err(), "change {number}");
        }
        let of_another = good.check(2, &Recorder::default());
        assert_eq!(of_another, Err(StateError::Impossible("a processor's task")));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(state) = decode::<TasksState>(&bytes) {
                let _ = state.check(2, &Recorder::default());
            }
        }
    }
}
