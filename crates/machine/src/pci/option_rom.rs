//! A device with an expansion ROM and nothing else. The ROM contains the hypercall code of the paravirtual interface,
//! for guests that need it before they can request a page of it by MSR.

use super::{ConfigSpace, Function, Identity, ROM};
use crate::device::DeviceContext;
use crate::state::{Saved, StateError};

/// Vendor ID of the device.
pub const VENDOR: u16 = 0x1234;
/// Device ID of the device.
pub const DEVICE: u16 = 0x5447;
/// Size of the ROM in bytes.
pub const SIZE: usize = 2048;

/// The device with the ROM.
#[derive(Clone, Debug, PartialEq)]
pub struct OptionRom {
    config: ConfigSpace,
    contents: [u8; SIZE],
}

impl OptionRom {
    /// Creates a device with this ROM.
    pub fn new(contents: [u8; SIZE]) -> Self {
        let mut config = ConfigSpace::new(Identity {
            vendor: VENDOR,
            device: DEVICE,
            class: 0xff_0000,
            revision: 1,
            subsystem_vendor: 0,
            subsystem: 0,
        });
        config.add_rom(SIZE as u32);
        Self { config, contents }
    }
}

impl Function for OptionRom {
    fn name(&self) -> &'static str {
        "option ROM"
    }

    fn config(&self) -> &ConfigSpace {
        &self.config
    }

    fn config_mut(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn bar_read(&mut self, bar: usize, offset: u64, size: u8, _ctx: &mut DeviceContext) -> u64 {
        if bar != ROM {
            return 0;
        }
        let bytes = self.contents.iter().skip(offset as usize).take(usize::from(size.min(8)));
        bytes.rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
    }
}

/// The contents are not saved: they follow from the processor, which may be another one after a move.
impl Saved for OptionRom {
    fn version(&self) -> u32 {
        2
    }

    fn save(&self) -> Result<Vec<u8>, StateError> {
        self.config.save()
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        self.config.restore(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::layout;
    use crate::pci::testing::Rig;

    #[test]
    fn the_rom_is_read_once_it_is_enabled() {
        let mut contents = [0; SIZE];
        contents[..4].copy_from_slice(&[0x55, 0xaa, 4, 0xcb]);
        contents[SIZE - 1] = 0x7f;
        let mut bus = Rig::new();
        let device = bus.bus.add(Box::new(OptionRom::new(contents))).unwrap();
        assert_eq!(bus.config_read(device, 0, 4), u32::from(DEVICE) << 16 | u32::from(VENDOR));
        let at = bus.config_read(device, 0x30, 4);
        assert!(layout::PCI_WINDOW.contains(&u64::from(at)) && at & 1 == 0);
        let base = u64::from(at);
        bus.config_write(device, 4, 2, 2);
        assert_eq!(bus.mmio_read(base, 4), None);
        bus.config_write(device, 0x30, 4, at | 1);
        assert_eq!((bus.mmio_read(base, 2), bus.mmio_read(base, 8)), (Some(0xaa55), Some(0xcb04_aa55)));
        assert_eq!(bus.mmio_read(base + SIZE as u64 - 1, 1), Some(0x7f));
        assert_eq!(bus.mmio_read(base + SIZE as u64 - 1, 2), None);
        assert!(bus.mmio_write(base, 4, 0));
        assert_eq!(bus.mmio_read(base, 2), Some(0xaa55));
    }
}
