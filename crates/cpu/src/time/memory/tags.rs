//! Lines of a cache.

use super::LINES;
use crate::native::prefetch;
use ledger::caches::Level;
use serde::{Deserialize, Serialize};

/// A line that leaves a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Old {
    /// Guest-physical address divided by the size of a line.
    pub line: u64,
    /// True if the line differs from what the next level has.
    pub changed: bool,
}

/// A place for a line: 0 if it is empty, otherwise the line plus 1, shifted by one bit, with a flag for a changed line.
type Place = u64;

fn place(line: u64, changed: bool) -> Place {
    (line + 1) << 1 | u64::from(changed)
}

fn holds(place: Place, line: u64) -> bool {
    place >> 1 == line + 1
}

fn old(place: Place) -> Option<Old> {
    (place != 0).then(|| Old { line: (place >> 1).wrapping_sub(1), changed: place & 1 != 0 })
}

/// Returns true if a place, which may come from a file, is possible.
fn possible(place: &Place) -> bool {
    *place != 1 && *place >> 1 <= LINES
}

pub(super) fn sets(level: &Level) -> u64 {
    u64::from(level.lines) / u64::from(level.ways)
}

/// Returns the set of a line in a cache with so many sets.
#[inline]
pub(super) fn set_of(line: u64, sets: u64) -> usize {
    // Most caches have a power of two of them, which saves a division.
    (if sets.is_power_of_two() { line & (sets - 1) } else { line % sets }) as usize
}

/// A cache whose lines are replaced in turn, so that a hit changes nothing.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct InTurn {
    places: Vec<Place>,
    /// For each set, the way that is replaced next.
    next: Vec<u8>,
    ways: u16,
}

impl InTurn {
    /// Creates an empty cache.
    pub fn new(level: &Level) -> Self {
        Self { places: vec![0; level.lines as usize], next: vec![0; sets(level) as usize], ways: level.ways }
    }

    /// Returns true if a state, which may come from a file, is possible.
    pub fn fits(&self, level: &Level) -> bool {
        self.places.len() == level.lines as usize
            && self.next.len() == sets(level) as usize
            && self.ways == level.ways
            && self.next.iter().all(|next| u16::from(*next) < level.ways)
            && self.places.iter().all(possible)
    }

    fn set(&self, line: u64) -> usize {
        set_of(line, self.next.len() as u64)
    }

    /// Returns the slot of a line.
    #[inline]
    pub fn find(&self, line: u64) -> Option<usize> {
        let (ways, set) = (usize::from(self.ways), self.set(line));
        let first = set * ways;
        let way = self.places[first..first + ways].iter().position(|place| holds(*place, line))?;
        Some(first + way)
    }

    /// Marks the line in a slot as changed.
    pub fn change(&mut self, slot: usize) {
        self.places[slot] |= 1;
    }

    /// Marks the line in a slot as that of the next level.
    pub fn clean(&mut self, slot: usize) {
        self.places[slot] &= !1;
    }

    /// Empties a slot.
    pub fn drop(&mut self, slot: usize) {
        self.places[slot] = 0;
    }

    /// Returns true if the line in a slot has been changed.
    pub fn is_changed(&self, slot: usize) -> bool {
        self.places[slot] & 1 != 0
    }

    /// Adds a line that the cache does not have. Returns its slot, and the line that was there.
    pub fn add(&mut self, line: u64, changed: bool) -> (usize, Option<Old>) {
        let (ways, set) = (usize::from(self.ways), self.set(line));
        let next = &mut self.next[set];
        let slot = set * ways + usize::from(*next);
        *next = (*next + 1) % ways as u8;
        let before = std::mem::replace(&mut self.places[slot], place(line, changed));
        (slot, old(before))
    }
}

/// Puts a place in front of others, each of which takes the position behind it. Returns the last one. Sets are short: a loop is faster
/// than moving them as a whole.
#[inline]
fn push(places: &mut [Place], first: Place) -> Place {
    places.iter_mut().fold(first, |before, place| std::mem::replace(place, before))
}

/// A cache that replaces the least recently used line.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Recent {
    /// The lines of each set, the most recently used first.
    places: Vec<Place>,
    ways: u16,
    sets: u32,
}

impl Recent {
    /// Creates an empty cache.
    pub fn new(level: &Level) -> Self {
        Self { places: vec![0; level.lines as usize], ways: level.ways, sets: sets(level) as u32 }
    }

    /// Returns true if a state, which may come from a file, is possible.
    pub fn fits(&self, level: &Level) -> bool {
        self.places.len() == level.lines as usize
            && self.ways == level.ways
            && u64::from(self.sets) == sets(level)
            && self.places.iter().all(possible)
    }

    fn set(&mut self, line: u64) -> &mut [Place] {
        let ways = usize::from(self.ways);
        let first = set_of(line, u64::from(self.sets)) * ways;
        &mut self.places[first..first + ways]
    }

    /// Asks the host for the set of a line, which is looked at soon.
    #[inline]
    pub fn expect(&self, line: u64) {
        let ways = usize::from(self.ways);
        let first = set_of(line, u64::from(self.sets)) * ways;
        // A line of the host has eight places.
        (first..first + ways).step_by(8).for_each(|at| prefetch(&self.places[at]));
    }

    /// Uses a line. Returns false if it is not there.
    pub fn touch(&mut self, line: u64) -> bool {
        let set = self.set(line);
        let Some(way) = set.iter().position(|place| holds(*place, line)) else { return false };
        let place = set[way];
        push(&mut set[..=way], place);
        true
    }

    /// Marks a line as changed. Returns false if it is not there.
    pub fn change(&mut self, line: u64) -> bool {
        let Some(place) = self.set(line).iter_mut().find(|place| holds(**place, line)) else { return false };
        *place |= 1;
        true
    }

    /// Marks a line as that of the next level. Returns true if it was changed.
    pub fn clean(&mut self, line: u64) -> bool {
        let Some(place) = self.set(line).iter_mut().find(|place| holds(**place, line)) else { return false };
        let changed = *place & 1 != 0;
        *place &= !1;
        changed
    }

    /// Removes a line. Returns whether it was there, and whether it was changed.
    pub fn take(&mut self, line: u64) -> (bool, bool) {
        let set = self.set(line);
        let Some(way) = set.iter().position(|place| holds(*place, line)) else { return (false, false) };
        let changed = set[way] & 1 != 0;
        set.copy_within(way + 1.., way);
        set[set.len() - 1] = 0;
        (true, changed)
    }

    /// Adds a line that the cache does not have. Returns the line that leaves.
    pub fn add(&mut self, line: u64, changed: bool) -> Option<Old> {
        old(push(self.set(line), place(line, changed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_no_line_are_impossible() {
        let possible_places = [0, place(0, false), place(0, true), place(LINES - 1, true)];
        assert!(possible_places.iter().all(possible));
        assert!(![1, place(LINES, false), Place::MAX].iter().any(possible));
    }
}
