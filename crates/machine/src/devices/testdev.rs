//! The test device of kvm-unit-tests: latches, software-controlled interrupt lines, and I/O memory.

use super::Line;
use crate::device::{At, Claim, Device, DeviceContext, Pin};
use crate::state::{Plain, StateError, same};
use serde::{Deserialize, Serialize};

/// The latch, accessible with 1, 2 and 4 bytes.
pub const LATCH: u16 = 0xe0;
/// Flush of the host's mapping of a page, which has no effect here.
pub const FLUSH: u16 = 0xe4;
/// The same latch, byte by byte, without the port of the debug console (0xe9).
pub const LATCH_BYTES: u16 = 0xe8;
/// First port of the interrupt lines; each line has a port.
pub const IRQ_LINES: u16 = 0x2000;
/// Number of interrupt lines.
pub const LINES: usize = 24;
/// Base address of the I/O memory.
pub const MEMORY_BASE: u64 = 0xff00_0000;
/// Size of the I/O memory.
pub const MEMORY_SIZE: u64 = 0x1_0000;

/// The test device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TestDevice {
    latch: [u8; 4],
    #[serde(with = "serde_bytes")]
    memory: Vec<u8>,
    /// The interrupt lines. They share the inputs of the interrupt controllers with other devices.
    pub lines: [Line; LINES],
}

impl Default for TestDevice {
    fn default() -> Self {
        Self::new()
    }
}

impl TestDevice {
    /// Creates the device with all registers zero.
    pub fn new() -> Self {
        Self { latch: [0; 4], memory: vec![0; MEMORY_SIZE as usize], lines: [Line::default(); LINES] }
    }

    fn latch_index(port: u16) -> Option<usize> {
        match port {
            LATCH..FLUSH => Some(usize::from(port - LATCH)),
            LATCH_BYTES..0xec => Some(usize::from(port - LATCH_BYTES)),
            _ => None,
        }
    }

    /// Reads `size` bytes of the latches.
    pub fn read(&self, port: u16, size: u8) -> u32 {
        super::read_bytes(port, size, |at| Self::latch_index(at).map_or(0xff, |index| self.latch[index]))
    }

    /// Writes `size` bytes to a port of the device.
    pub fn write(&mut self, port: u16, size: u8, value: u32) {
        let line = port.checked_sub(IRQ_LINES).and_then(|line| self.lines.get_mut(usize::from(line)));
        if let Some(line) = line {
            line.set(value != 0);
            return;
        }
        super::write_bytes(port, size, value, |at, byte| {
            if let Some(index) = Self::latch_index(at) {
                self.latch[index] = byte;
            }
        });
    }

    fn slice(offset: u64, size: u8) -> Option<std::ops::Range<usize>> {
        let end = offset.checked_add(u64::from(size.min(8)))?;
        (end <= MEMORY_SIZE).then_some(offset as usize..end as usize)
    }

    /// Reads `size` bytes of the I/O memory.
    pub fn memory_read(&self, offset: u64, size: u8) -> u64 {
        let Some(range) = Self::slice(offset, size) else { return u64::MAX };
        self.memory[range].iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
    }

    /// Writes `size` bytes of the I/O memory.
    pub fn memory_write(&mut self, offset: u64, size: u8, value: u64) {
        if let Some(range) = Self::slice(offset, size) {
            let count = range.len();
            self.memory[range].copy_from_slice(&value.to_le_bytes()[..count]);
        }
    }
}

const NAME: &str = "test device";
const CLAIMS: &[Claim] = &[
    Claim::ports(NAME, LATCH, 8),
    Claim::ports(NAME, LATCH_BYTES, 1),
    Claim::ports(NAME, LATCH_BYTES + 2, 2),
    Claim::ports(NAME, IRQ_LINES, LINES as u16),
    Claim::memory(NAME, MEMORY_BASE..MEMORY_BASE + MEMORY_SIZE, 5),
];
/// Index of the I/O memory among the claims.
const MEMORY: usize = 4;

impl TestDevice {
    fn tell(&mut self, ctx: &mut DeviceContext) {
        for (number, line) in self.lines.iter_mut().enumerate() {
            ctx.drive(Pin::Input(number as u8), line);
        }
    }
}

impl Device for TestDevice {
    fn claims(&self) -> &'static [Claim] {
        CLAIMS
    }

    fn read(&mut self, at: At, _ctx: &mut DeviceContext) -> u64 {
        match at.claim {
            MEMORY => self.memory_read(at.offset, at.size),
            _ => TestDevice::read(self, at.port(CLAIMS), at.size).into(),
        }
    }

    fn write(&mut self, at: At, value: u64, ctx: &mut DeviceContext) {
        match at.claim {
            MEMORY => self.memory_write(at.offset, at.size, value),
            _ => TestDevice::write(self, at.port(CLAIMS), at.size, value as u32),
        }
        self.tell(ctx);
    }

    fn reset(&mut self, ctx: &mut DeviceContext) {
        self.lines.iter_mut().for_each(Line::forgotten);
        self.tell(ctx);
    }
}

impl Plain for TestDevice {
    fn check(&self, current: &Self) -> Result<(), StateError> {
        same(&self.memory.len(), &current.memory.len(), "test device")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn latch_reads_back_in_every_size() {
        let mut device = TestDevice::new();
        device.write(0xe0, 4, 0x1234_5678);
        for (port, size, expected) in [
            (0xe0, 4, 0x1234_5678),
            (0xe0, 1, 0x78),
            (0xe1, 1, 0x56),
            (0xe2, 2, 0x1234),
            (0xe8, 4, 0x1234_5678),
            (0xeb, 1, 0x12),
            (0xe4, 1, 0xff),
        ] {
            assert_eq!(device.read(port, size), expected, "{port:#x} {size}");
        }
        device.write(0xe4, 4, 0);
        device.write(0xe9, 1, 0xaa);
        assert_eq!(device.read(0xe0, 4), 0x1234_aa78);
    }

    #[test]
    fn lines_follow_their_ports() {
        let mut device = TestDevice::new();
        device.write(0x200b, 1, 1);
        assert!(device.lines[11].level());
        device.write(0x200b, 4, 0);
        assert!(!device.lines[11].level());
        device.write(0x2018, 1, 1);
        assert!(device.lines.iter().all(|line| !line.level()));
    }

    #[test]
    fn memory_keeps_bytes() {
        let mut device = TestDevice::new();
        device.memory_write(0xfff8, 8, 0x0102_0304_0506_0708);
        assert_eq!(device.memory_read(0xfffa, 2), 0x0506);
        device.memory_write(0xffff, 2, 0);
        assert_eq!((device.memory_read(0xffff, 2), device.memory_read(0xffff, 1)), (u64::MAX, 1));
    }

    proptest! {
        #[test]
        fn random_accesses_do_not_panic(
            ops in prop::collection::vec((any::<bool>(), any::<u64>(), any::<u8>(), any::<u64>()), 0..100),
        ) {
            let mut device = TestDevice::new();
            for (write, place, size, value) in ops {
                let port = if value & 1 == 0 { place as u16 } else { LATCH + (place & 15) as u16 };
                if write {
                    device.write(port, size, value as u32);
                    device.memory_write(place & 0x1_ffff, size, value);
                } else {
                    device.read(port, size);
                    device.memory_read(place, size);
                }
            }
        }
    }
}
