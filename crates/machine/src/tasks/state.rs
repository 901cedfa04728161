//! The saved state of the guest's tasks.

use super::kernel::Kernel;
use super::regions::Regions;
use super::{MOST_CALLERS, MOST_DESCENTS, MOST_THREADS, Processor, Tasks, Thread};
use crate::state::{StateError, require};
use cpu::{BlockCache, Ram};
use ledger::Recorder;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What is known of the guest's tasks. Threads are sorted, so that equal states are equal bytes.
#[derive(Serialize, Deserialize)]
pub struct TasksState {
    kernel: Option<Kernel>,
    entry: u64,
    processors: Vec<Processor>,
    threads: BTreeMap<u64, Thread>,
    parents: Vec<u32>,
    callers: Vec<u64>,
    regions: Regions,
}

impl TasksState {
    /// Whether it can be the state of a machine with so many processors, whose charges are these.
    fn check(&self, processors: usize, recorder: &Recorder) -> Result<(), StateError> {
        let known = |processor: &Processor| recorder.knows(processor.task, ledger::RegionId(0));
        require(self.processors.len() == processors, "tasks of another number of processors")?;
        require(self.processors.iter().all(known), "a processor's task")?;
        require(self.threads.len() <= MOST_THREADS && self.callers.len() <= MOST_CALLERS, "too many tasks")?;
        require((1..=MOST_DESCENTS).contains(&self.parents.len()), "too many threads")?;
        // Who makes a thread is older: that ends the search for an ancestor.
        let older = |(number, parent): (usize, &u32)| *parent == 0 || (*parent as usize) < number;
        require(self.parents.iter().enumerate().all(older), "a thread that descends from itself")?;
        let seen = |thread: &Thread| thread.identity.as_ref().is_none_or(|identity| identity.is_known(recorder));
        require(self.threads.values().all(seen), "a thread's task")?;
        require(self.regions.are_known(recorder), "a region")
    }
}

impl Tasks {
    /// The state.
    pub fn save(&self) -> TasksState {
        TasksState {
            kernel: self.kernel.clone(),
            entry: self.entry,
            processors: self.processors.clone(),
            threads: self.threads.iter().map(|(task, thread)| (*task, thread.clone())).collect(),
            parents: self.parents.clone(),
            callers: self.callers.clone(),
            regions: self.regions.clone(),
        }
    }

    /// Takes on a state, and sets its probes in a cache that has none.
    pub fn restore(
        &mut self,
        state: TasksState,
        recorder: &Recorder,
        cache: &mut BlockCache,
        ram: &Ram,
    ) -> Result<(), StateError> {
        state.check(self.processors.len(), recorder)?;
        let TasksState { kernel, entry, processors, threads, parents, callers, regions } = state;
        for address in kernel.iter().flat_map(Kernel::addresses).chain(callers.iter().copied()) {
            cache.add_probe(address, ram);
        }
        let threads: FxHashMap<u64, Thread> = threads.into_iter().collect();
        (self.kernel, self.entry, self.processors, self.threads) = (kernel, entry, processors, threads);
        (self.parents, self.callers, self.regions) = (parents, callers, regions);
        Ok(())
    }
}
