//! The state page that a virtual CPU shares with its guest: registration and updates.

use serde::{Deserialize, Serialize};

/// Version of the interface of this hypervisor, which supports all earlier versions too.
pub const API_VERSION: u32 = 1;
/// Size of the structure in the page, in bytes.
pub const SIZE: u32 = 0x58;
/// Number of entries in the CR3 cache.
pub const ENTRIES: usize = 4;

const GUEST_VERSION: u64 = 0x00;
const HOST_VERSION: u64 = 0x04;
const STRUCTURE_SIZE: u64 = 0x08;
const PAD: u64 = 0x0c;
const CACHE: u64 = 0x10;
const MAX_INDEX: u64 = 0x50;

/// Guest-physical memory, in words that do not cross pages.
pub trait GuestMemory {
    /// Reads a word. Returns `None` outside of RAM.
    fn read32(&self, address: u64) -> Option<u32>;
    /// Writes a word; writes outside of RAM are ignored.
    fn write32(&mut self, address: u64, value: u32);
    /// Writes a quadword.
    fn write64(&mut self, address: u64, value: u64) {
        self.write32(address, value as u32);
        self.write32(address + 4, (value >> 32) as u32);
    }
}

/// Result of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// The page is in use.
    Accepted(StatePage),
    /// Version or size are not supported; the page contains the supported version.
    Refused,
}

/// A registered page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatePage {
    address: u64,
}

impl StatePage {
    /// Performs the handshake for the page at `address`, which is RAM. `slots` is the number of entries of the CR3
    /// cache in use.
    pub fn register(memory: &mut impl GuestMemory, address: u64, slots: u32) -> Registration {
        let word = |memory: &dyn GuestMemory, at| memory.read32(address + at).unwrap_or(0);
        let version = word(memory, GUEST_VERSION);
        let good =
            (1..=API_VERSION).contains(&version) && word(memory, STRUCTURE_SIZE) == SIZE && word(memory, PAD) == 0;
        memory.write32(address + HOST_VERSION, API_VERSION);
        memory.write32(address + MAX_INDEX, 0);
        if !good {
            return Registration::Refused;
        }
        let page = Self { address };
        page.renew(memory, slots);
        Registration::Accepted(page)
    }

    /// Writes empty entries, of which the guest searches `slots`.
    pub fn renew(&self, memory: &mut impl GuestMemory, slots: u32) {
        for index in 0..ENTRIES {
            self.publish(memory, index, 0, 0);
        }
        memory.write32(self.address + HOST_VERSION, API_VERSION);
        memory.write32(self.address + MAX_INDEX, slots);
    }

    /// Returns its guest-physical address.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Writes an entry of the CR3 cache; zeros clear it.
    pub fn publish(&self, memory: &mut impl GuestMemory, index: usize, guest: u64, host: u64) {
        let at = self.address + CACHE + 16 * (index % ENTRIES) as u64;
        // The guest runs on the same processor, so it never sees a half-written entry.
        memory.write64(at, guest);
        memory.write64(at + 8, host);
    }

    /// Unregisters the page: its contents are no longer valid.
    pub fn retire(&self, memory: &mut impl GuestMemory) {
        memory.write32(self.address + MAX_INDEX, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl GuestMemory for Vec<u32> {
        fn read32(&self, address: u64) -> Option<u32> {
            self.get(address as usize / 4).copied()
        }

        fn write32(&mut self, address: u64, value: u32) {
            if let Some(word) = self.get_mut(address as usize / 4) {
                *word = value;
            }
        }
    }

    fn page(version: u32, size: u32, pad: u32) -> Vec<u32> {
        let mut page = vec![0xdead_beef; 1024];
        (page[0], page[2], page[3]) = (version, size, pad);
        page
    }

    #[test]
    fn versions_and_sizes_must_match() {
        for (version, size, pad) in [(0, SIZE, 0), (2, SIZE, 0), (1, 4096, 0), (1, SIZE - 4, 0), (1, SIZE, 1)] {
            let mut memory = page(version, size, pad);
            assert_eq!(StatePage::register(&mut memory, 0, 4), Registration::Refused);
            assert_eq!((memory[1], memory[0x14]), (API_VERSION, 0));
        }
    }

    #[test]
    fn an_accepted_page_starts_empty() {
        let mut memory = page(1, SIZE, 0);
        let Registration::Accepted(page) = StatePage::register(&mut memory, 0, 4) else { panic!("refused") };
        assert_eq!((memory[1], memory[0x14]), (API_VERSION, 4));
        assert!(memory[4..0x14].iter().all(|word| *word == 0));
        page.publish(&mut memory, 3, 0x1_2345_6000, 0xd000_0000);
        assert_eq!(memory[0x10..0x14], [0x2345_6000, 1, 0xd000_0000, 0]);
        page.retire(&mut memory);
        assert_eq!(memory[0x14], 0);
    }
}
