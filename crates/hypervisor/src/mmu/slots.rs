//! Memory slots: the host frames that back guest frames, and the log of written frames.

use super::{MmuError, RestoreError};
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
    }
}
