//! Lines on their way to the same set of the first level of data.
//!
//! On Zen 4, the misses of one set do not overlap as those of different sets do (decision 0027). Each occupies its set for a time that depends
//! on the level that has the line. The core waits if the backlog of a set exceeds what the core hides.
//!
//! Loads that wait in the core for one line are served together when the line comes. If the same few lines are read again and again, one fill
//! serves the loads of several rounds: a line that came `n` lines ago counts for `(n - ways) / loads` of its time, where `loads` is the number
//! of loads that wait.

use super::tags::{set_of, sets};
use ledger::Ticks;
use ledger::caches::Caches;
use serde::{Deserialize, Serialize};

/// The occupied sets, and the lines that have come last.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct SameSet {
    /// For each set, the time at which the set is free for another line.
    free: Vec<Ticks>,
    /// The last lines, oldest at `next`: as many as may count for less than their whole time.
    lines: Vec<u64>,
    next: usize,
}

/// No line has this number.
const NONE: u64 = u64::MAX;

impl SameSet {
    /// Creates the state of a first level to which no line is on its way.
    pub fn new(caches: &Caches) -> Self {
        Self { free: vec![0; sets(&caches.l1d) as usize], lines: vec![NONE; remembered(caches)], next: 0 }
    }

    /// Returns true if a state, which may come from a file, is possible: no set is occupied after the time `latest`.
    pub fn fits(&self, caches: &Caches, latest: Ticks) -> bool {
        self.free.len() == sets(&caches.l1d) as usize
            && self.free.iter().all(|free| *free <= latest)
            && self.lines.len() == remembered(caches)
            && self.next < self.lines.len().max(1)
    }

    /// A line comes to its set at `now`, and occupies the set for `ticks`. Returns the time for which the core waits, if it goes on for `reach`.
    pub fn add(&mut self, caches: &Caches, line: u64, now: Ticks, ticks: Ticks, reach: Ticks) -> Ticks {
        if ticks == 0 {
            return 0;
        }
        let ticks = self.share(caches, line, ticks);
        let sets = self.free.len() as u64;
        let free = &mut self.free[set_of(line, sets)];
        *free = (*free).max(now) + ticks;
        (*free - now).saturating_sub(reach)
    }

    /// Returns the part of the time that a line counts for, and remembers the line.
    fn share(&mut self, caches: &Caches, line: u64, ticks: Ticks) -> Ticks {
        let Some(oldest) = self.lines.get_mut(self.next) else { return ticks };
        *oldest = line;
        let (newest, last) = (self.next, self.lines.len());
        self.next = (newest + 1) % last;
        // From the line before the newest back to the oldest, which is behind the newest.
        let same = |known: &u64| *known == line;
        let ago = match self.lines[..newest].iter().rposition(same) {
            Some(at) => newest - at,
            None => match self.lines[newest + 1..].iter().rposition(same) {
                Some(at) => last - 1 - at,
                None => return ticks,
            },
        };
        let exceeds = (ago as Ticks).saturating_sub(Ticks::from(caches.l1d.ways));
        ticks * exceeds / Ticks::from(caches.set_loads)
    }
}

/// Returns the number of lines that may count for less than their whole time: those of the ways and of the loads that wait, or none.
fn remembered(caches: &Caches) -> usize {
    match caches.set_loads {
        0 => 0,
        loads => usize::from(caches.l1d.ways) + usize::from(loads),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{CACHES, access_to};
    use super::super::{Level, Memory};
    use ledger::caches::Caches;

    /// A first level of 64 sets, whose lines occupy their sets.
    const SETS: Caches = Caches {
        l2: Level { same_set: 12_000, ..CACHES.l2 },
        l3: match CACHES.l3 {
            Some(l3) => Some(Level { same_set: 28_000, ..l3 }),
            None => None,
        },
        memory_same_set: 60_000,
        ..CACHES
    };

    /// Returns the ticks of a miss if so many lines, each in the next of so many sets, are read again and again.
    fn each(caches: &Caches, lines: u64, sets: u64) -> u64 {
        let (mut memory, mut now, mut misses) = (Memory::new(caches, 0), 1_000_000, 0);
        let mut began = now;
        for round in 0..20 {
            if round == 10 {
                (began, misses) = (now, 0);
            }
            for n in 0..lines {
                // The order is one that no prefetcher follows.
                let n = n * 7919 % lines;
                let access = access_to(0x40_0000 + n / sets * 64 + n % sets, false, now);
                if memory.find(access.line).is_none() {
                    let miss = memory.miss(caches, access, &|_| None);
                    assert!(miss.ticks <= Memory::most(caches), "{miss:?}");
                    now += miss.ticks;
                    misses += 1;
                }
                now += 100;
            }
            assert!(memory.fits(caches, now, 0, 1));
        }
        (now - began) / misses
    }

    #[test]
    fn lines_of_a_set_come_one_after_the_other() {
        // Lines of one set of the first level are in eight sets of the second, which hold 64 of them.
        let (near, far) =
            ([1, 2].map(|sets| each(&SETS, 64 * sets, sets)), [1, 2].map(|sets| each(&SETS, 512 * sets, sets)));
        assert!((12_000..13_000).contains(&near[0]) && (6_000..8_000).contains(&near[1]), "{near:?}");
        assert!((28_000..30_000).contains(&far[0]) && (14_000..15_500).contains(&far[1]), "{far:?}");
        assert!(each(&CACHES, 64, 1) < 10_000, "without the figure");
        assert!(each(&SETS, 1024, 64) < 5_000, "other sets do not wait");
    }

    #[test]
    fn loads_that_wait_for_the_same_line_wait_once() {
        // Of the lines of one set, those that come back while 40 loads wait count for a part.
        let caches = Caches { set_loads: 40, ..SETS };
        let [few, half, all] = [12, 28, 64].map(|lines| each(&caches, lines, 1));
        assert!(few < 4_500 && (5_500..7_000).contains(&half) && (12_000..13_000).contains(&all), "{few} {half} {all}");
    }

    #[test]
    fn lines_from_memory_occupy_their_set_for_longer() {
        let memory = each(&SETS, 20_000, 1);
        assert!((60_000..62_000).contains(&memory), "{memory}");
    }
}
