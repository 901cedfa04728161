//! Reverse maps: the entries that map each guest frame, and the reasons against large pages around it.

use super::pool::EntryRef;
use super::spte::{frames, frames_shift};
use rustc_hash::FxHashMap;

/// Level of the largest pages.
pub const MAX_LEVEL: u8 = 3;

/// Entries that map each frame, by level of the mapping, in no particular order.
#[derive(Default)]
pub struct Rmaps {
    heads: FxHashMap<(u64, u8), Vec<EntryRef>>,
}

impl Rmaps {
    /// Adds an entry that maps the block at `gfn` at `level`.
    pub fn add(&mut self, gfn: u64, level: u8, entry: EntryRef) {
        self.heads.entry((gfn, level)).or_default().push(entry);
    }

    /// Removes an entry. Returns true if it was there.
    pub fn remove(&mut self, gfn: u64, level: u8, entry: EntryRef) -> bool {
        let Some(head) = self.heads.get_mut(&(gfn, level)) else { return false };
        let Some(at) = head.iter().position(|other| *other == entry) else { return false };
        head.remove(at);
        if head.is_empty() {
            self.heads.remove(&(gfn, level));
        }
        true
    }

    /// Returns the entries that map a block.
    pub fn get(&self, gfn: u64, level: u8) -> &[EntryRef] {
        self.heads.get(&(gfn, level)).map_or(&[], Vec::as_slice)
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.heads.values().map(Vec::len).sum()
    }

    /// Returns all entries, with the block and level that each of them maps.
    pub fn iter(&self) -> impl Iterator<Item = (EntryRef, (u64, u8))> {
        self.heads.iter().flat_map(|(block, entries)| entries.iter().map(|entry| (*entry, *block)))
    }
}

/// Frames whose writes are watched, and blocks that must not be mapped as a whole.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tracks {
    /// Number of users that watch all writes to a frame.
    written: FxHashMap<u64, u32>,
    /// Number of frames in a block that must be mapped individually, by number of the block and level.
    small: FxHashMap<(u64, u8), u32>,
}

fn change<K: std::hash::Hash + Eq>(counts: &mut FxHashMap<K, u32>, key: K, more: bool) {
    let count = counts.entry(key).or_insert(0);
    if more {
        *count += 1;
    } else {
        *count = count.saturating_sub(1);
    }
}

impl Tracks {
    /// Returns true if all writes to a frame are watched.
    pub fn writes_seen(&self, gfn: u64) -> bool {
        self.written.get(&gfn).is_some_and(|count| *count != 0)
    }

    /// Adds or removes a user that watches all writes to a frame.
    pub fn see_writes(&mut self, gfn: u64, more: bool) {
        change(&mut self.written, gfn, more);
        if self.written.get(&gfn) == Some(&0) {
            self.written.remove(&gfn);
        }
    }

    /// Adds or removes a reason to map a frame individually.
    pub fn keep_small(&mut self, gfn: u64, more: bool) {
        for level in 2..=MAX_LEVEL {
            let key = (gfn >> frames_shift(level), level);
            change(&mut self.small, key, more);
            if self.small.get(&key) == Some(&0) {
                self.small.remove(&key);
            }
        }
    }

    /// Accounts for a frame that gets a shadow page of that level, or loses one.
    pub fn shadowed(&mut self, gfn: u64, level: u8, more: bool) {
        self.keep_small(gfn, more);
        if level > 1 {
            self.see_writes(gfn, more);
        }
    }

    /// Adds users that watch all writes to a frame, and require it to be mapped individually.
    pub fn add_users(&mut self, gfn: u64, users: u32) {
        *self.written.entry(gfn).or_default() += users;
        for level in 2..=MAX_LEVEL {
            *self.small.entry((gfn >> frames_shift(level), level)).or_default() += users;
        }
    }

    /// Returns true if the block around a frame may be mapped as a whole.
    pub fn large_allowed(&self, gfn: u64, level: u8) -> bool {
        level == 1 || !self.small.contains_key(&(gfn >> frames_shift(level), level))
    }

    /// Returns true if there are no users.
    pub fn is_empty(&self) -> bool {
        self.written.is_empty() && self.small.is_empty()
    }
}

/// Returns the first frame of the block around a frame.
pub const fn block(gfn: u64, level: u8) -> u64 {
    gfn & !(frames(level) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_by_frame_and_level() {
        let mut rmaps = Rmaps::default();
        let at = |page, index| EntryRef { page, index };
        for (gfn, level, entry) in [(7, 1, at(1, 0)), (7, 1, at(2, 0)), (7, 2, at(1, 1)), (8, 1, at(1, 0))] {
            rmaps.add(gfn, level, entry);
        }
        assert_eq!((rmaps.len(), rmaps.get(7, 1)), (4, &[at(1, 0), at(2, 0)][..]));
        let mut all: Vec<_> = rmaps.iter().collect();
        all.sort_unstable();
        let expected = [(at(1, 0), (7, 1)), (at(1, 0), (8, 1)), (at(1, 1), (7, 2)), (at(2, 0), (7, 1))];
        assert_eq!(all, expected);
        assert!(!rmaps.remove(7, 1, at(3, 0)) && !rmaps.remove(9, 1, at(1, 0)));
        assert!(rmaps.remove(7, 1, at(1, 0)) && !rmaps.remove(7, 1, at(1, 0)));
        assert_eq!((rmaps.len(), rmaps.get(7, 1), rmaps.get(7, 3)), (3, &[at(2, 0)][..], &[][..]));
        for (gfn, level, entry) in [(7, 1, at(2, 0)), (7, 2, at(1, 1)), (8, 1, at(1, 0))] {
            assert!(rmaps.remove(gfn, level, entry));
        }
        assert!(rmaps.heads.is_empty(), "nothing is kept for frames that nothing maps");
    }

    /// A frame with two users is watched until both have left.
    #[test]
    fn watched_frames_forbid_large_pages_around_them() {
        let gfn = 0x4_0201;
        for (level, writes) in [(1, false), (2, true)] {
            let mut tracks = Tracks::default();
            for users in [1, 2, 1, 0] {
                let more = users == 2 || tracks.is_empty();
                tracks.shadowed(gfn, level, more);
                assert_eq!(tracks.writes_seen(gfn), writes && users != 0);
                assert!(!tracks.writes_seen(gfn + 1) && tracks.large_allowed(gfn, 1));
                let around = [(2, gfn), (2, gfn - 1), (2, gfn + 0x1fe), (3, 0x4_0000), (3, 0x7_ffff)];
                for (level, near) in around {
                    assert_eq!(tracks.large_allowed(near, level), users == 0, "{near:#x} {level} {users}");
                }
                for (level, far) in [(2, gfn - 2), (2, gfn + 0x1ff), (3, 0x3_ffff), (3, 0x8_0000)] {
                    assert!(tracks.large_allowed(far, level), "{far:#x} {level}");
                }
                assert_eq!(tracks.is_empty(), users == 0);
            }
        }
        let (mut once, mut each) = (Tracks::default(), Tracks::default());
        once.add_users(gfn, 1);
        once.add_users(gfn, 2);
        (0..3).for_each(|_| each.shadowed(gfn, 2, true));
        assert_eq!(once, each);
        each.see_writes(gfn + 1, false);
        assert_eq!(once, each, "nobody leaves who has not come");
    }

    #[test]
    fn a_block_begins_at_a_multiple_of_its_size() {
        assert_eq!([1, 2, 3].map(|level| block(0x7_ffff, level)), [0x7_ffff, 0x7_fe00, 0x4_0000]);
    }
}
