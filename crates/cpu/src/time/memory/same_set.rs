//! Lines on their way to the same set of the first level of data.
//!
//! On Zen 4, the misses of one set do not overlap as those of different sets do (decision 0027). Each occupies its set for a time that depends
//! on the level that has the line. The core waits if the backlog of a set exceeds what the core hides.

use super::tags::{set_of, sets};
use ledger::Ticks;
use ledger::caches::Level;
use serde::{Deserialize, Serialize};

/// For each set, the time at which the set is free for another line.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct SameSet {
    free: Vec<Ticks>,
}

impl SameSet {
    /// Creates the state of a first level to which no line is on its way.
    pub fn new(l1d: &Level) -> Self {
        Self { free: vec![0; sets(l1d) as usize] }
    }

    /// Returns true if a state, which may come from a file, is possible: no set is occupied after the time `latest`.
    pub fn fits(&self, l1d: &Level, latest: Ticks) -> bool {
        self.free.len() == sets(l1d) as usize && self.free.iter().all(|free| *free <= latest)
    }

    /// A line comes to its set at `now`, and occupies the set for `ticks`. Returns the time for which the core waits, if it goes on for `reach`.
    pub fn add(&mut self, line: u64, now: Ticks, ticks: Ticks, reach: Ticks) -> Ticks {
        let sets = self.free.len() as u64;
        let free = &mut self.free[set_of(line, sets)];
        *free = (*free).max(now) + ticks;
        (*free - now).saturating_sub(reach)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{CACHES, access_to};
    use super::super::{Caches, Level, Memory};

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
    fn lines_from_memory_occupy_their_set_for_longer() {
        let memory = each(&SETS, 20_000, 1);
        assert!((60_000..62_000).contains(&memory), "{memory}");
    }
}
