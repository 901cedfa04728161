//! Memory for a hypervisor's tables: host-physical pages that the processor's page walks can reach, and that neither
//! guests nor devices can. The pages are below 4 GiB, because a PAE root must be.

use crate::memory::{MemoryError, layout};
use cpu::mapping::Mapping;
use cpu::ram::RamRegion;
use std::ops::Range;
use std::sync::Arc;
use x86::page::PAGE;

/// Pages for a hypervisor's tables. Clones share them.
#[derive(Clone)]
pub struct HypervisorMemory {
    mapping: Arc<Mapping>,
    pages: u32,
}

impl HypervisorMemory {
    /// Maximum number of pages.
    pub const MOST_PAGES: u32 = ((layout::HYPERVISOR.end - layout::HYPERVISOR.start) / PAGE) as u32;

    /// Allocates `pages` zeroed pages, [`Self::MOST_PAGES`] at most.
    pub fn new(pages: u32) -> Result<Self, MemoryError> {
        let pages = pages.clamp(1, Self::MOST_PAGES);
        let size = u64::from(pages) * PAGE;
        let mapping = Mapping::anonymous(size as usize).map_err(|cause| MemoryError::Map { size, cause })?;
        Ok(Self { mapping: Arc::new(mapping), pages })
    }

    /// Returns the host-physical addresses of the pages.
    pub fn range(&self) -> Range<u64> {
        layout::HYPERVISOR.start..layout::HYPERVISOR.start + u64::from(self.pages) * PAGE
    }

    /// Returns the pages as a region for the processor; it is valid as long as a clone of this value lives.
    pub(crate) fn region(&self) -> RamRegion {
        RamRegion {
            start: layout::HYPERVISOR.start,
            len: u64::from(self.pages) * PAGE,
            host: self.mapping.start(),
            read_only: false,
            hidden: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_are_below_4_gib_and_beside_what_is_ram() {
        let tables = HypervisorMemory::new(u32::MAX).unwrap();
        assert_eq!(tables.range(), layout::HYPERVISOR);
        const { assert!(layout::HYPERVISOR.start >= layout::LOW_RAM_END) };
        const { assert!(layout::HYPERVISOR.end <= layout::PCI_ECAM.start) };
        assert_eq!(HypervisorMemory::new(3).unwrap().range(), 0xd000_0000..0xd000_3000);
    }
}
