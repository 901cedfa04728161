//! The firmware configuration device: items that a guest selects by key (port 0x510) and reads byte by byte (0x511).

use crate::device::{At, Claim, Device, DeviceContext};
use crate::state::{Plain, StateError, same};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Selector port, 2 bytes.
pub const SELECTOR: u16 = 0x510;
/// Data port, 1 byte.
pub const DATA: u16 = 0x511;

/// Keys of items.
pub mod key {
    /// "QEMU".
    pub const SIGNATURE: u16 = 0x00;
    /// Interface version: bit 0 traditional, bit 1 DMA.
    pub const ID: u16 = 0x01;
    /// RAM size in bytes, 64 bits.
    pub const RAM_SIZE: u16 = 0x03;
    /// Number of processors, 16 bits.
    pub const CPUS: u16 = 0x05;
    /// Maximum number of processors, 16 bits.
    pub const MAX_CPUS: u16 = 0x0f;
    /// End of RAM, 64 bits, as read by kvm-unit-tests.
    pub const MAX_RAM: u16 = 0x11;
    /// Directory of files: a big-endian count, then the entries.
    pub const FILE_DIRECTORY: u16 = 0x19;
}

/// The firmware configuration device, without DMA and without files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FwCfg {
    items: BTreeMap<u16, Vec<u8>>,
    selected: u16,
    offset: usize,
}

impl FwCfg {
    /// Creates the device of a machine with this amount of RAM and number of processors.
    pub fn new(ram_size: u64, cpus: u16) -> Self {
        let items = [
            (key::SIGNATURE, b"QEMU".to_vec()),
            (key::ID, 1u32.to_le_bytes().to_vec()),
            (key::RAM_SIZE, ram_size.to_le_bytes().to_vec()),
            (key::CPUS, cpus.to_le_bytes().to_vec()),
            (key::MAX_CPUS, cpus.to_le_bytes().to_vec()),
            (key::MAX_RAM, ram_size.to_le_bytes().to_vec()),
            (key::FILE_DIRECTORY, 0u32.to_be_bytes().to_vec()),
        ];
        Self { items: BTreeMap::from(items), selected: 0, offset: 0 }
    }

    /// Writes `size` bytes to a port of the device.
    pub fn write(&mut self, port: u16, size: u8, value: u32) {
        if port == SELECTOR && size == 2 {
            self.selected = value as u16;
            self.offset = 0;
        }
    }

    /// Reads `size` bytes of the selected item. Bytes after its end, and of unknown keys, are zero.
    pub fn read(&mut self, port: u16, size: u8) -> u32 {
        if port != DATA {
            return u32::MAX;
        }
        super::read_bytes(port, size, |_| {
            let byte = self.items.get(&self.selected).and_then(|item| item.get(self.offset));
            self.offset = self.offset.saturating_add(1);
            byte.copied().unwrap_or(0)
        })
    }
}

const CLAIMS: &[Claim] = &[Claim::ports("fw_cfg", SELECTOR, 2)];

impl Device for FwCfg {
    fn claims(&self) -> &'static [Claim] {
        CLAIMS
    }

    fn read(&mut self, at: At, _ctx: &mut DeviceContext) -> u64 {
        FwCfg::read(self, at.port(CLAIMS), at.size).into()
    }

    fn write(&mut self, at: At, value: u64, _ctx: &mut DeviceContext) {
        FwCfg::write(self, at.port(CLAIMS), at.size, value as u32);
    }
}

impl Plain for FwCfg {
    fn check(&self, current: &Self) -> Result<(), StateError> {
        same(&self.items, &current.items, "firmware configuration")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_read_byte_by_byte() {
        let mut device = FwCfg::new(0x1_2345_6789, 3);
        for (key, expected) in [
            (0x00, [b'Q', b'E', b'M', b'U', 0, 0, 0, 0]),
            (0x01, [1, 0, 0, 0, 0, 0, 0, 0]),
            (0x03, [0x89, 0x67, 0x45, 0x23, 1, 0, 0, 0]),
            (0x05, [3, 0, 0, 0, 0, 0, 0, 0]),
            (0x11, [0x89, 0x67, 0x45, 0x23, 1, 0, 0, 0]),
            (0x19, [0; 8]),
            (0x8000, [0; 8]),
        ] {
            device.write(SELECTOR, 2, key);
            assert_eq!([(); 8].map(|()| device.read(DATA, 1) as u8), expected, "{key:#x}");
        }
    }

    #[test]
    fn selecting_starts_over_and_other_accesses_do_nothing() {
        let mut device = FwCfg::new(0, 1);
        assert_eq!(device.read(DATA, 1), u32::from(b'Q'));
        device.write(DATA, 1, 5);
        device.write(SELECTOR, 1, 5);
        assert_eq!(device.read(DATA, 2), u32::from(u16::from_le_bytes(*b"EM")));
        device.write(SELECTOR, 2, 0);
        assert_eq!((device.read(DATA, 1), device.read(SELECTOR, 2)), (u32::from(b'Q'), u32::MAX));
    }
}
