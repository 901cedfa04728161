//! Open regions of interest: their tasks and their durations.
//!
//! A region belongs to a task and its descendants, or to everything that the machine does. If several open regions
//! apply to a task, the one that began last is charged.

use ledger::{Recorder, RegionId, TaskId, Ticks};
use serde::{Deserialize, Serialize};

/// Maximum number of open regions.
const MOST_OPEN: usize = 64;

/// An open region.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Open {
    region: RegionId,
    /// The thread that began the region; `None` for a region of everything.
    root: Option<u32>,
    begun: Ticks,
}

/// The open regions in the order of their begin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Regions {
    open: Vec<Open>,
    /// Time since which no region has been open.
    closed_since: Ticks,
}

impl Regions {
    /// Returns true if every open region has been charged; regions may come from a file.
    pub fn are_known(&self, recorder: &Recorder) -> bool {
        self.open.len() <= MOST_OPEN && self.open.iter().all(|open| recorder.knows(TaskId(0), open.region))
    }

    /// Begins a region at time `now`.
    pub fn begin(&mut self, recorder: &Recorder, name: &str, root: Option<u32>, now: Ticks) {
        if self.open.len() == MOST_OPEN {
            return;
        }
        if self.open.is_empty() {
            recorder.region_ends(RegionId(0), now.saturating_sub(self.closed_since));
        }
        let region = recorder.region(name);
        recorder.region_begins(region);
        self.open.push(Open { region, root, begun: now });
    }

    /// Ends the last region with that name; an empty name ends the last one of all. An end without a begin is a mistake
    /// of the guest, and is ignored.
    pub fn end(&mut self, recorder: &Recorder, name: &str, now: Ticks) {
        let region = recorder.known_region(name);
        let ended = |open: &Open| name.is_empty() || Some(open.region) == region;
        let Some(at) = self.open.iter().rposition(ended) else { return };
        let ended = self.open.remove(at);
        // The time of a region that is nested in itself counts once.
        if self.open.iter().all(|open| open.region != ended.region) {
            recorder.region_ends(ended.region, now.saturating_sub(ended.begun));
        } else if let Some(outer) = self.open.iter_mut().find(|open| open.region == ended.region) {
            outer.begun = outer.begun.min(ended.begun);
        }
        if self.open.is_empty() {
            self.closed_since = now;
        }
    }

    /// Ends all open regions at the end of the run.
    pub fn finish(&mut self, recorder: &Recorder, now: Ticks) {
        if self.open.is_empty() {
            recorder.region_ends(RegionId(0), now.saturating_sub(self.closed_since));
            self.closed_since = now;
        }
        while !self.open.is_empty() {
            self.end(recorder, "", now);
        }
    }

    /// Returns the region to which a thread is charged; `descends` returns true if the thread is equal to or descends
    /// from the given one.
    pub fn of(&self, descends: impl Fn(u32) -> bool) -> RegionId {
        let applies = |open: &&Open| open.root.is_none_or(&descends);
        self.open.iter().rev().find(applies).map_or(RegionId(0), |open| open.region)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns each region with the number of its starts and its duration.
    fn elapsed(recorder: &Recorder) -> Vec<String> {
        recorder.names().regions().iter().map(|r| format!("{} {} {}", r.name, r.begun, r.elapsed)).collect()
    }

    #[test]
    fn the_region_that_began_last_is_charged_to_those_it_is_of() {
        let (r, mut regions) = (Recorder::default(), Regions::default());
        let of = |regions: &Regions, thread: u32| regions.of(|root| root == thread).0;
        regions.begin(&r, "all", None, 10);
        regions.begin(&r, "one", Some(1), 20);
        assert_eq!([of(&regions, 1), of(&regions, 2)], [2, 1]);
        regions.end(&r, "all", 30);
        assert_eq!([of(&regions, 1), of(&regions, 2)], [2, 0]);
        regions.end(&r, "one", 45);
        regions.end(&r, "one", 50);
        assert_eq!([of(&regions, 1), of(&regions, 2)], [0, 0]);
        regions.finish(&r, 100);
        assert_eq!(elapsed(&r), [" 0 65", "all 1 20", "one 1 25"]);
    }

    #[test]
    fn a_region_within_itself_lasts_once() {
        let (r, mut regions) = (Recorder::default(), Regions::default());
        regions.begin(&r, "a", None, 0);
        regions.begin(&r, "a\n", Some(1), 5);
        regions.end(&r, "", 7);
        regions.end(&r, "a", 10);
        regions.begin(&r, "a", None, 20);
        regions.finish(&r, 21);
        assert_eq!(elapsed(&r), [" 0 10", "a 3 11"]);
    }

    #[test]
    fn a_guest_cannot_keep_endless_regions_open() {
        let (r, mut regions) = (Recorder::default(), Regions::default());
        for i in 0..10_000 {
            regions.begin(&r, &i.to_string(), None, i);
        }
        assert_eq!(regions.open.len(), MOST_OPEN);
        for i in 0..10_000 {
            regions.end(&r, "never begun", i);
        }
        assert_eq!(regions.open.len(), MOST_OPEN);
        assert!(r.names().regions().len() <= MOST_OPEN + 1);
    }
}
