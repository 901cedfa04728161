//! Memory slots: the host frames that back guest frames, and the log of written frames.

use super::error::{MmuError, RestoreError};
use cpu::Ram;
use serde::{Deserialize, Serialize};
use x86::page::OFFSET;

/// Configuration of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotConfig {
    /// First guest frame.
    pub gfn: u64,
    /// Number of frames.
    pub pages: u64,
    /// Host-physical address of the first frame; page aligned.
    pub hpa: u64,
    /// True if writes are handled by the user-space VMM.
    pub read_only: bool,
    /// True if written frames are logged.
    pub log_dirty: bool,
}

/// A memory slot in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// Configuration.
    pub config: SlotConfig,
    /// One bit per frame that was written since the log was last read.
    pub(super) dirty: Vec<u64>,
}

impl Slot {
    /// Returns the frame after the last one.
    pub fn end(&self) -> u64 {
        self.config.gfn + self.config.pages
    }

    /// Returns true if it backs a frame.
    pub fn contains(&self, gfn: u64) -> bool {
        gfn.wrapping_sub(self.config.gfn) < self.config.pages
    }

    /// Returns the host-physical address of a frame that it backs.
    pub fn hpa(&self, gfn: u64) -> u64 {
        self.config.hpa + ((gfn - self.config.gfn) << 12)
    }

    /// Returns true if the naturally aligned block of `pages` frames around `gfn` is backed by a block with the same
    /// alignment.
    pub fn has_block(&self, gfn: u64, pages: u64) -> bool {
        let first = gfn & !(pages - 1);
        let alike = (self.config.gfn ^ (self.config.hpa >> 12)) & (pages - 1) == 0;
        alike && first >= self.config.gfn && first + pages <= self.end()
    }

    /// Records a frame in the log. Returns true if it was not there.
    pub(super) fn mark_dirty(&mut self, gfn: u64) -> bool {
        if !self.config.log_dirty || !self.contains(gfn) {
            return false;
        }
        let number = gfn - self.config.gfn;
        let word = &mut self.dirty[(number / 64) as usize];
        let bit = 1 << (number % 64);
        let fresh = *word & bit == 0;
        *word |= bit;
        fresh
    }

    /// Enables the log, initially empty, or disables it.
    pub(super) fn set_logging(&mut self, on: bool) {
        self.config.log_dirty = on;
        self.dirty = if on { vec![0; self.config.pages.div_ceil(64) as usize] } else { Vec::new() };
    }
}

/// Limit of frame numbers on any processor.
pub(super) const GFN_END: u64 = 1 << 40;

/// All slots of a machine, by first frame.
#[derive(Clone, Debug, Default)]
pub struct Slots {
    all: Vec<Slot>,
}

impl Slots {
    /// Returns the slot of a frame.
    pub fn find(&self, gfn: u64) -> Option<&Slot> {
        let after = self.all.partition_point(|slot| slot.config.gfn <= gfn);
        self.all[..after].last().filter(|slot| slot.contains(gfn))
    }

    pub(super) fn find_mut(&mut self, gfn: u64) -> Option<&mut Slot> {
        let after = self.all.partition_point(|slot| slot.config.gfn <= gfn);
        self.all[..after].last_mut().filter(|slot| slot.contains(gfn))
    }

    /// Returns the slots in order.
    pub fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.all.iter()
    }

    /// Translates a guest-physical address to a host-physical one.
    pub fn translate(&self, gpa: u64) -> Option<u64> {
        Some(self.find(gpa >> 12)?.hpa(gpa >> 12) | gpa & OFFSET)
    }

    /// Returns the number of guest frames in all slots.
    pub fn pages(&self) -> u64 {
        self.all.iter().map(|slot| slot.config.pages).sum()
    }

    /// Adds a slot, which must be visible RAM, and disjoint from the others.
    pub(super) fn insert(&mut self, config: SlotConfig, ram: &Ram) -> Result<(), MmuError> {
        let end = config.gfn.checked_add(config.pages).filter(|end| *end <= GFN_END);
        let Some(end) = end.filter(|_| config.pages != 0 && config.hpa & OFFSET == 0) else {
            return Err(MmuError::SlotRange { gfn: config.gfn });
        };
        // The slots are in order and disjoint.
        let at = self.all.partition_point(|other| other.config.gfn < config.gfn);
        let before = self.all[..at].last().is_some_and(|slot| config.gfn < slot.end());
        if before || self.all.get(at).is_some_and(|slot| slot.config.gfn < end) {
            return Err(MmuError::SlotOverlap { gfn: config.gfn });
        }
        let bytes = config.pages << 12;
        let backed = ram.regions().iter().any(|region| {
            let offset = config.hpa.wrapping_sub(region.start);
            !region.hidden && offset < region.len && bytes <= region.len - offset
        });
        if !backed {
            return Err(MmuError::SlotNotRam { gfn: config.gfn });
        }
        let mut slot = Slot { config, dirty: Vec::new() };
        slot.set_logging(config.log_dirty);
        self.all.insert(at, slot);
        Ok(())
    }

    /// Restores saved slots, if they are possible in this memory.
    pub(super) fn restored(saved: Vec<Slot>, ram: &Ram) -> Result<Self, RestoreError> {
        let mut slots = Self::default();
        for Slot { config, dirty } in saved {
            slots.insert(config, ram)?;
            match slots.find_mut(config.gfn).filter(|slot| slot.dirty.len() == dirty.len()) {
                Some(slot) => slot.dirty = dirty,
                None => return Err(RestoreError::DirtyLog { gfn: config.gfn }),
            }
        }
        Ok(slots)
    }

    /// Removes the slot that begins at `gfn`.
    pub(super) fn remove(&mut self, gfn: u64) -> Option<Slot> {
        let at = self.all.iter().position(|slot| slot.config.gfn == gfn)?;
        Some(self.all.remove(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use x86::page::SHIFT;

    fn config(gfn: u64, pages: u64, hpa: u64) -> SlotConfig {
        SlotConfig { gfn, pages, hpa, read_only: false, log_dirty: false }
    }

    #[test]
    fn slots_translate_and_refuse_what_they_cannot_hold() {
        let ram = Ram::anonymous(1 << 20);
        let mut slots = Slots::default();
        slots.insert(config(0x100, 16, 0x1_0000), &ram).unwrap();
        slots.insert(config(0, 16, 0), &ram).unwrap();
        assert_eq!(slots.translate(0x10_0123), Some(0x1_0123));
        assert_eq!(slots.translate(0xf_ffff), None);
        assert_eq!(slots.translate(0x1_0000), None);
        assert_eq!(slots.translate(u64::MAX), None);
        assert!(slots.insert(config(0x10f, 1, 0), &ram).is_err());
        assert!(slots.insert(config(0x200, 1, 1 << 20), &ram).is_err());
        assert!(slots.insert(config(u64::MAX, 2, 0), &ram).is_err());
        assert!(slots.insert(config(0x200, u64::MAX, 0), &ram).is_err());
        assert!(slots.remove(0x100).is_some() && slots.find(0x100).is_none());
    }

    #[test]
    fn a_block_must_be_aligned_alike_on_both_sides() {
        let slot = |gfn, pages, hpa| Slot { config: config(gfn, pages, hpa), dirty: Vec::new() };
        assert!(slot(0x200, 0x400, 0x20_0000).has_block(0x3ff, 512));
        assert!(!slot(0x200, 0x400, 0x20_1000).has_block(0x3ff, 512));
        assert!(!slot(0x201, 0x400, 0x20_1000).has_block(0x3ff, 512));
        assert!(slot(0x201, 0x400, 0x20_1000).has_block(0x400, 512));
        // The slot begins or ends with the block, or one frame from it.
        assert!(slot(0x200, 0x200, 0).has_block(0x200, 512));
        assert!(!slot(0x200, 0x1ff, 0).has_block(0x200, 512));
        assert!(!slot(0x201, 0x1ff, 0x1000).has_block(0x201, 512));
    }

    #[test]
    fn slots_touch_but_do_not_overlap() {
        let ram = Ram::with_hidden(1 << 20, 0x1000_0000, 1 << 20);
        let mut slots = Slots::default();
        slots.insert(config(0x100, 0x10, 0), &ram).unwrap();
        let overlap = |gfn| Err(MmuError::SlotOverlap { gfn });
        for (gfn, pages) in [(0xff, 2), (0x10f, 1), (0x100, 1), (0x100, 0x10), (0xf0, 0x100), (0x104, 2)] {
            assert_eq!(slots.insert(config(gfn, pages, 0), &ram), overlap(gfn), "{gfn:#x}");
        }
        slots.insert(config(0x110, 0x10, 0x1_0000), &ram).unwrap();
        slots.insert(config(0xf0, 0x10, 0xf_0000), &ram).unwrap();
        assert_eq!(slots.iter().map(|slot| slot.config.gfn).collect::<Vec<_>>(), [0xf0, 0x100, 0x110]);
        assert_eq!(slots.pages(), 0x30);
        for (gfn, first) in [(0xf0, Some(0xf0)), (0xff, Some(0xf0)), (0x100, Some(0x100)), (0x120, None), (0xef, None)]
        {
            assert_eq!(slots.find(gfn).map(|slot| slot.config.gfn), first);
            assert_eq!(slots.find_mut(gfn).map(|slot| slot.config.gfn), first);
        }
        assert_eq!((slots.translate(0xff_fff), slots.translate(0x11f_fff)), (Some(0xff_fff), Some(0x1_ffff)));
        assert!(slots.remove(0x101).is_none() && slots.remove(0x100).is_some());
        assert!(slots.find(0x100).is_none() && slots.find(0x110).is_some());
    }

    #[test]
    fn a_slot_is_whole_pages_of_visible_memory() {
        let ram = Ram::with_hidden(1 << 20, 0x1000_0000, 1 << 20);
        let range = |gfn| Err(MmuError::SlotRange { gfn });
        let no_ram = |gfn| Err(MmuError::SlotNotRam { gfn });
        for (gfn, pages, hpa, expected) in [
            (0, 0x100, 0, Ok(())),
            (0, 0, 0, range(0)),
            (0, 1, 0x800, range(0)),
            (GFN_END - 0x10, 0x10, 0, Ok(())),
            (GFN_END - 0x10, 0x11, 0, range(GFN_END - 0x10)),
            (u64::MAX, 2, 0, range(u64::MAX)),
            (0, 1, 0xf_f000, Ok(())),
            (0, 2, 0xf_f000, no_ram(0)),
            (0, 0x101, 0, no_ram(0)),
            (0, 1, 0x1000_0000, no_ram(0)),
            (0, 1, 0x8000_0000, no_ram(0)),
        ] {
            let inserted = Slots::default().insert(config(gfn, pages, hpa), &ram);
            assert_eq!(inserted, expected, "{gfn:#x} {pages:#x} {hpa:#x}");
        }
        // The largest address has 52 bits.
        assert_eq!(GFN_END << SHIFT, 1 << 52);
    }

    #[test]
    fn the_log_has_a_bit_for_each_frame() {
        let mut slot = Slot { config: config(0x100, 130, 0), dirty: Vec::new() };
        assert!(!slot.mark_dirty(0x100), "nothing is logged");
        slot.set_logging(true);
        for (gfn, word, bit) in [(0x100, 0, 0), (0x13f, 0, 63), (0x140, 1, 0), (0x181, 2, 1)] {
            assert_eq!((slot.mark_dirty(gfn), slot.mark_dirty(gfn)), (true, false), "{gfn:#x}");
            assert_eq!(slot.dirty[word] >> bit, 1, "{gfn:#x}");
        }
        assert_eq!(slot.dirty, [1 << 63 | 1, 1, 2]);
        assert!(!slot.mark_dirty(0xff) && !slot.mark_dirty(0x182));
        slot.set_logging(false);
        assert!(slot.dirty.is_empty() && !slot.config.log_dirty);
        for (pages, words) in [(1, 1), (64, 1), (65, 2)] {
            let mut slot = Slot { config: config(0, pages, 0), dirty: Vec::new() };
            slot.set_logging(true);
            assert_eq!(slot.dirty.len(), words);
        }
    }
}
