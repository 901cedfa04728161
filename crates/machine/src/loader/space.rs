//! Allocation of guest RAM during the loading of an image.

use std::ops::Range;
use x86::page::PAGE;

use super::LoadError;
use crate::memory::{E820Kind, GuestRam, layout};

/// Guest RAM and its allocated ranges.
pub(super) struct LoadSpace<'a> {
    pub ram: &'a GuestRam,
    usable: Vec<Range<u64>>,
    /// Allocated ranges, sorted and disjoint.
    taken: Vec<Range<u64>>,
}

impl<'a> LoadSpace<'a> {
    pub fn new(ram: &'a GuestRam) -> Self {
        let usable = ram.e820().into_iter().filter(|e| e.kind == E820Kind::Usable);
        Self { ram, usable: usable.map(|e| e.start..e.start + e.len).collect(), taken: Vec::new() }
    }

    /// Allocates `len` bytes at a fixed address.
    pub fn claim(&mut self, start: u64, len: u64, what: &'static str) -> Result<(), LoadError> {
        if len == 0 {
            return Ok(());
        }
        let end = start.checked_add(len).ok_or(LoadError::Outside { what, start, end: u64::MAX })?;
        if !self.usable.iter().any(|r| r.start <= start && end <= r.end) {
            let low_end = self.ram.low_end();
            if start >= layout::LEGACY_END && end <= layout::LOW_RAM_END && end > low_end {
                return Err(LoadError::TooLittleMemory { what, start, end, ram: self.ram.size() });
            }
            return Err(LoadError::Outside { what, start, end });
        }
        let at = self.taken.partition_point(|r| r.start < start);
        let free_before = at == 0 || self.taken[at - 1].end <= start;
        let free_after = self.taken.get(at).is_none_or(|r| r.start >= end);
        if !(free_before && free_after) {
            return Err(LoadError::Overlap { what, start, end });
        }
        self.taken.insert(at, start..end);
        Ok(())
    }

    /// Returns the free ranges within `window`.
    fn gaps(&self, window: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        for usable in &self.usable {
            let mut start = usable.start.max(window.start);
            let end = usable.end.min(window.end);
            for taken in &self.taken {
                if taken.start > start && start < end {
                    gaps.push(start..taken.start.min(end));
                }
                start = start.max(taken.end);
            }
            if start < end {
                gaps.push(start..end);
            }
        }
        gaps
    }

    /// Allocates the highest `len` bytes within `window` that start at a multiple of `align`.
    pub fn highest(&mut self, len: u64, align: u64, window: Range<u64>) -> Option<u64> {
        let fit = |gap: Range<u64>| Some(gap.end.checked_sub(len)? / align * align).filter(|&at| at >= gap.start);
        let at = self.gaps(window).into_iter().rev().find_map(fit)?;
        self.claim(at, len, "boot data").ok().map(|()| at)
    }

    /// Allocates the lowest whole pages within `window` that hold `len` bytes.
    pub fn lowest_pages(&mut self, len: u64, window: Range<u64>) -> Option<u64> {
        self.lowest(len, PAGE, window)
    }

    /// Allocates the lowest `len` bytes within `window` that start at a multiple of `align`.
    pub fn lowest(&mut self, len: u64, align: u64, window: Range<u64>) -> Option<u64> {
        let fit = |gap: Range<u64>| {
            let at = gap.start.checked_next_multiple_of(align)?;
            at.checked_add(len).filter(|&end| end <= gap.end).map(|_| at)
        };
        let at = self.gaps(window).into_iter().find_map(fit)?;
        self.claim(at, len, "boot data").ok().map(|()| at)
    }

    /// Allocates conventional memory for boot data, from the top down, and fills it.
    pub fn place_low(&mut self, bytes: &[u8], align: u64) -> Result<u64, LoadError> {
        let at = self.low(bytes.len() as u64, align)?;
        self.fill(at, bytes, "boot data")?;
        Ok(at)
    }

    /// Allocates conventional memory for boot data, from the top down. The interrupt vectors and the BIOS data area are
    /// kept.
    pub fn low(&mut self, len: u64, align: u64) -> Result<u64, LoadError> {
        self.highest(len, align, PAGE..layout::CONVENTIONAL_END).ok_or(LoadError::NoLowMemory(layout::CONVENTIONAL_END))
    }

    /// Copies into RAM.
    pub fn fill(&self, start: u64, bytes: &[u8], what: &'static str) -> Result<(), LoadError> {
        let end = start.saturating_add(bytes.len() as u64);
        if self.ram.write(start, bytes) { Ok(()) } else { Err(LoadError::Outside { what, start, end }) }
    }

    /// Copies into RAM, except for allocated ranges.
    pub fn fill_free(&self, start: u64, bytes: &[u8], what: &'static str) -> Result<(), LoadError> {
        for gap in self.gaps(start..start + bytes.len() as u64) {
            self.fill(gap.start, &bytes[(gap.start - start) as usize..(gap.end - start) as usize], what)?;
        }
        Ok(())
    }

    /// Places an initrd as high as possible below `limit`.
    pub fn initrd_high(&mut self, initrd: &[u8], limit: u64) -> Result<u64, LoadError> {
        let len = initrd.len() as u64;
        let window = layout::LEGACY_END..limit;
        let at = self.highest(len, PAGE, window).ok_or(LoadError::InitrdTooBig { len })?;
        self.fill(at, initrd, "initrd")?;
        Ok(at)
    }
}
