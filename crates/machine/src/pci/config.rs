//! Configuration space of one function as data: its contents, and the bits that software may change.

use crate::state::{Plain, StateError, same};
use serde::{Deserialize, Serialize};

const SIZE: usize = 256;

const VENDOR: usize = 0x00;
const DEVICE: usize = 0x02;
const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const REVISION: usize = 0x08;
const CLASS: usize = 0x09;
const CACHE_LINE: usize = 0x0c;
const BARS: usize = 0x10;
const SUBSYSTEM_VENDOR: usize = 0x2c;
const SUBSYSTEM: usize = 0x2e;
const EXPANSION_ROM: usize = 0x30;
const CAPABILITIES: usize = 0x34;
const INTERRUPT_LINE: usize = 0x3c;
const INTERRUPT_PIN: usize = 0x3d;
const FIRST_CAPABILITY: usize = 0x40;

const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_MASTER: u16 = 1 << 2;
const COMMAND_INTX_DISABLE: u16 = 1 << 10;
/// Writable bits of the command register: I/O, memory, bus master, parity, SERR#, INTx disable.
const COMMAND_WRITABLE: u16 = 0x0547;
const STATUS_INTERRUPT: u8 = 1 << 3;
const STATUS_CAPABILITIES: u8 = 1 << 4;
/// Type bits of a 64-bit memory base address register.
const BAR_MEMORY64: u64 = 4;

/// Enable bit of the expansion ROM's base address register.
const ROM_ENABLE: u32 = 1;

/// Number of the expansion ROM in [`ConfigSpace::decode`], which follows that of the last base address register.
pub const ROM: usize = 6;

/// Identification of a function.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// Vendor ID.
    pub vendor: u16,
    /// Device ID.
    pub device: u16,
    /// Class, subclass and programming interface.
    pub class: u32,
    /// Revision ID.
    pub revision: u8,
    /// Subsystem vendor ID.
    pub subsystem_vendor: u16,
    /// Subsystem ID.
    pub subsystem: u16,
}

/// A 64-bit memory base address register.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Bar {
    index: usize,
    size: u64,
}

/// Configuration space with a type 0 header.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConfigSpace {
    #[serde(with = "serde_bytes")]
    bytes: [u8; SIZE],
    #[serde(with = "serde_bytes")]
    writable: [u8; SIZE],
    bars: Vec<Bar>,
    /// Size of the expansion ROM; 0 if there is none.
    rom: u32,
    /// Offset of the pointer to the next capability, and offset of that capability.
    link: usize,
    end: usize,
}

impl ConfigSpace {
    /// Creates the space of a function without base address registers and capabilities.
    pub fn new(identity: Identity) -> Self {
        let mut config = Self {
            bytes: [0; SIZE],
            writable: [0; SIZE],
            bars: Vec::new(),
            rom: 0,
            link: CAPABILITIES,
            end: FIRST_CAPABILITY,
        };
        config.set(VENDOR, &identity.vendor.to_le_bytes());
        config.set(DEVICE, &identity.device.to_le_bytes());
        config.set(REVISION, &[identity.revision]);
        config.set(CLASS, &identity.class.to_le_bytes()[..3]);
        config.set(SUBSYSTEM_VENDOR, &identity.subsystem_vendor.to_le_bytes());
        config.set(SUBSYSTEM, &identity.subsystem.to_le_bytes());
        config.allow(COMMAND, &COMMAND_WRITABLE.to_le_bytes());
        config.allow(CACHE_LINE, &[0xff]);
        config.allow(INTERRUPT_LINE, &[0xff]);
        config
    }

    /// Adds a 64-bit memory base address register at `index`, which also occupies `index + 1`. `size` is a power of two
    /// of at least 16.
    pub fn add_memory_bar(&mut self, index: usize, size: u64) {
        debug_assert!(size.is_power_of_two() && size >= 16 && index < 5);
        self.set(BARS + 4 * index, &BAR_MEMORY64.to_le_bytes());
        self.allow(BARS + 4 * index, &(!(size - 1)).to_le_bytes());
        self.bars.push(Bar { index, size });
    }

    /// Adds an expansion ROM, which is disabled until software enables it. `size` is a power of two of at least 2048.
    pub fn add_rom(&mut self, size: u32) {
        debug_assert!(size.is_power_of_two() && size >= 2048);
        self.rom = size;
        self.allow(EXPANSION_ROM, &(!(size - 1) | ROM_ENABLE).to_le_bytes());
    }

    /// Returns the size of the expansion ROM, or 0 if there is none.
    pub fn rom_size(&self) -> u32 {
        self.rom
    }

    /// Sets the address of the expansion ROM, as firmware does.
    pub fn assign_rom(&mut self, address: u32) {
        self.set(EXPANSION_ROM, &address.to_le_bytes());
    }

    /// Returns index and size of each base address register.
    pub fn bar_sizes(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.bars.iter().map(|bar| (bar.index, bar.size))
    }

    /// Sets the address of a base address register, as firmware does.
    pub fn assign_bar(&mut self, index: usize, address: u64) {
        self.set(BARS + 4 * index, &(address | BAR_MEMORY64).to_le_bytes());
    }

    /// Returns the base address register (or [`ROM`]) that decodes a memory access of `size` bytes at `address`, and
    /// the offset in it.
    pub fn decode(&self, address: u64, size: u8) -> Option<(usize, u64)> {
        if self.command() & COMMAND_MEMORY == 0 {
            return None;
        }
        let hit = |bar: &Bar| {
            let offset = address.checked_sub(self.bar_address(bar))?;
            (offset.checked_add(u64::from(size))? <= bar.size).then_some((bar.index, offset))
        };
        self.bars.iter().find_map(hit).or_else(|| {
            let base = self.read(EXPANSION_ROM, 4);
            let offset = address.checked_sub(u64::from(base & !(self.rom.max(1) - 1)))?;
            let inside = offset.checked_add(u64::from(size))? <= u64::from(self.rom);
            (base & ROM_ENABLE != 0 && inside).then_some((ROM, offset))
        })
    }

    fn bar_address(&self, bar: &Bar) -> u64 {
        let at = BARS + 4 * bar.index;
        let value = u64::from(self.read(at, 4)) | u64::from(self.read(at + 4, 4)) << 32;
        value & !(bar.size - 1)
    }

    /// Sets the interrupt pin of the function (0 is INTA), and the line that firmware assigns to it.
    pub fn set_interrupt(&mut self, pin: u8, line: u8) {
        self.set(INTERRUPT_PIN, &[pin + 1]);
        self.set(INTERRUPT_LINE, &[line]);
    }

    /// Places the next capability at `at`, or after the last one if `at` is not free.
    pub fn continue_at(&mut self, at: usize) {
        self.end = self.end.max(at);
    }

    /// Adds a capability: `body` follows ID and link, `writable` masks the bits of it that software may change. Returns
    /// the offset of the capability.
    pub fn add_capability(&mut self, id: u8, body: &[u8], writable: &[u8]) -> usize {
        let at = self.end;
        self.end = (at + 2 + body.len()).next_multiple_of(4);
        debug_assert!(self.end <= SIZE);
        self.bytes[STATUS] |= STATUS_CAPABILITIES;
        self.bytes[self.link] = at as u8;
        self.link = at + 1;
        self.set(at, &[id, 0]);
        self.set(at + 2, body);
        self.allow(at + 2, writable);
        at
    }

    fn set(&mut self, at: usize, value: &[u8]) {
        self.bytes[at..at + value.len()].copy_from_slice(value);
    }

    fn allow(&mut self, at: usize, mask: &[u8]) {
        self.writable[at..at + mask.len()].copy_from_slice(mask);
    }

    /// Reads up to 4 bytes; bytes beyond the space are zero.
    pub fn read(&self, at: usize, size: u8) -> u32 {
        let byte = |i: u8| self.bytes.get(at + usize::from(i)).map_or(0, |&b| u32::from(b) << (8 * i));
        (0..size.min(4)).map(byte).sum()
    }

    /// Writes the writable bits of up to 4 bytes.
    pub fn write(&mut self, at: usize, size: u8, value: u32) {
        let range = (at..SIZE).take(usize::from(size.min(4)));
        for (i, new) in range.zip(value.to_le_bytes()) {
            self.bytes[i] = (self.bytes[i] & !self.writable[i]) | (new & self.writable[i]);
        }
    }

    fn command(&self) -> u16 {
        self.read(COMMAND, 2) as u16
    }

    /// Returns true if the function may access memory and send messages.
    pub fn is_bus_master(&self) -> bool {
        self.command() & COMMAND_MASTER != 0
    }

    /// Returns true if the function may assert its interrupt pin.
    pub fn intx_allowed(&self) -> bool {
        self.command() & COMMAND_INTX_DISABLE == 0
    }

    /// Returns true if the interrupt bit of the status register is set.
    pub fn interrupt_status(&self) -> bool {
        self.bytes[STATUS] & STATUS_INTERRUPT != 0
    }

    /// Sets the interrupt bit of the status register.
    pub fn set_interrupt_status(&mut self, pending: bool) {
        self.bytes[STATUS] &= !STATUS_INTERRUPT;
        if pending {
            self.bytes[STATUS] |= STATUS_INTERRUPT;
        }
    }
}

impl Plain for ConfigSpace {
    fn check(&self, current: &Self) -> Result<(), StateError> {
        const WHAT: &str = "PCI function";
        same(&self.writable, &current.writable, WHAT)?;
        same(&self.bars, &current.bars, WHAT)?;
        same(&(self.rom, self.link, self.end), &(current.rom, current.link, current.end), WHAT)?;
        let fixed = |config: &Self| {
            let mut bytes = config.bytes;
            bytes.iter_mut().zip(config.writable).for_each(|(byte, writable)| *byte &= !writable);
            bytes[STATUS] &= !STATUS_INTERRUPT;
            bytes
        };
        same(&fixed(self), &fixed(current), WHAT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ConfigSpace {
        let identity =
            Identity { vendor: 1, device: 2, class: 0x0c0ffe, revision: 3, subsystem_vendor: 4, subsystem: 5 };
        ConfigSpace::new(identity)
    }

    #[test]
    fn bars_report_their_size_and_move() {
        let mut config = config();
        config.add_memory_bar(0, 0x8000);
        config.assign_bar(0, 0xc000_0000);
        assert_eq!(config.read(0x10, 4), 0xc000_0004);
        assert_eq!(config.decode(0xc000_0000, 4), None);
        config.write(COMMAND, 2, 2);
        assert_eq!(config.decode(0xc000_7ffc, 4), Some((0, 0x7ffc)));
        assert_eq!(config.decode(0xc000_7ffd, 4), None);
        assert_eq!(config.decode(0xbfff_ffff, 4), None);
        config.write(0x10, 4, u32::MAX);
        config.write(0x14, 4, u32::MAX);
        assert_eq!((config.read(0x10, 4), config.read(0x14, 4)), (0xffff_8004, u32::MAX));
        assert_eq!(config.decode(u64::MAX - 3, 8), None);
        config.write(0x10, 4, 0xd000_0000);
        config.write(0x14, 4, 1);
        assert_eq!(config.decode(0x1_d000_0010, 1), Some((0, 0x10)));
    }

    #[test]
    fn a_rom_is_there_when_it_is_enabled() {
        let mut config = config();
        config.add_rom(0x800);
        config.assign_rom(0xc010_0000);
        config.write(COMMAND, 2, 2);
        assert_eq!((config.read(0x30, 4), config.decode(0xc010_0000, 4)), (0xc010_0000, None));
        config.write(0x30, 4, u32::MAX);
        assert_eq!(config.read(0x30, 4), 0xffff_f801);
        config.write(0x30, 4, 0xc020_0001);
        assert_eq!(config.decode(0xc020_07fc, 4), Some((ROM, 0x7fc)));
        assert_eq!(config.decode(0xc020_07fd, 4), None);
        config.write(COMMAND, 2, 0);
        assert_eq!(config.decode(0xc020_0000, 4), None);
    }

    #[test]
    fn read_only_bits_stay_and_odd_accesses_do_no_harm() {
        let mut config = config();
        for at in 0..300 {
            for size in [1, 2, 4] {
                config.write(at, size, u32::MAX);
            }
        }
        assert_eq!(config.read(0, 4), 0x0002_0001);
        assert_eq!(config.read(8, 4), 0x0c0f_fe03);
        assert_eq!(config.read(COMMAND, 2), u32::from(COMMAND_WRITABLE));
        assert_eq!(config.read(254, 4), 0);
        assert_eq!(config.read(400, 4), 0);
    }

    #[test]
    fn capabilities_are_chained() {
        let mut config = config();
        let first = config.add_capability(9, &[1, 2, 3, 4, 5], &[]);
        let second = config.add_capability(0x11, &[0, 0], &[0xff, 0x0f]);
        assert_eq!((config.read(CAPABILITIES, 1), config.read(STATUS, 1) & 0x10), (first as u32, 0x10));
        assert_eq!(config.read(first, 2), 9 | (second as u32) << 8);
        assert_eq!(config.read(second, 2), 0x11);
        config.write(second, 4, u32::MAX);
        assert_eq!(config.read(second, 4), 0x0fff_0011);
    }
}
