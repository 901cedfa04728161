//! The device's configuration space (82599 datasheet, 9.3). Capabilities are at the datasheet's offsets, because the
//! driver accesses some of them by offset.

use super::{REGISTERS, VECTORS, VECTORS_SIZE, file};
use crate::pci::{ConfigSpace, Identity, MsiX};

const VENDOR: u16 = 0x8086;
/// 82599ES with an SFP+ cage, on an X520-DA2.
const DEVICE: u16 = 0x10fb;
const SUBSYSTEM: u16 = 0x0002;

const POWER: usize = 0x40;
const POWER_CAPABILITY: u8 = 0x01;
/// Power management capability version 3, with D0 and D3hot only.
const POWER_VERSION: [u8; 2] = [0x03, 0x00];
const POWER_STATE: u32 = 3;

const MSIX: usize = 0x70;

const EXPRESS: usize = 0xa0;
const EXPRESS_CAPABILITY: u8 = 0x10;
const EXPRESS_LEN: usize = 0x3c;
/// Offsets in the PCI Express capability.
const DEVICE_CAPABILITIES: usize = 0x04;
const DEVICE_CONTROL: usize = 0x08;
const LINK_CAPABILITIES: usize = 0x0c;
const LINK_CONTROL: usize = 0x10;
const LINK_STATUS: usize = 0x12;
const DEVICE_CONTROL2: usize = 0x28;
/// Function-level reset: the capability bit, and the bit that initiates the reset.
const HAS_RESET: u32 = 1 << 28;
const RESET: u32 = 1 << 15;
/// Eight lanes at 5 GT/s.
const LINK: u16 = 8 << 4 | 2;

/// Offsets of the capabilities that the device itself reads.
pub struct Capabilities {
    power: usize,
    express: usize,
}

/// Creates the configuration space of a device with this number of interrupt vectors.
pub fn config(vectors: u16) -> (ConfigSpace, MsiX, Capabilities) {
    let mut config = ConfigSpace::new(Identity {
        vendor: VENDOR,
        device: DEVICE,
        class: 0x02_0000,
        revision: 1,
        subsystem_vendor: VENDOR,
        subsystem: SUBSYSTEM,
    });
    config.add_memory_bar(REGISTERS, file::SIZE);
    config.add_memory_bar(VECTORS, VECTORS_SIZE);
    config.continue_at(POWER);
    let body = [&POWER_VERSION[..], &[0; 4]].concat();
    let power = config.add_capability(POWER_CAPABILITY, &body, &[0, 0, POWER_STATE as u8, 0]);
    config.continue_at(MSIX);
    let msix = MsiX::new(&mut config, vectors, VECTORS as u8, 0, super::PENDING as u32);
    config.continue_at(EXPRESS);
    let express = config.add_capability(EXPRESS_CAPABILITY, &express_body(), &express_writable());
    (config, msix, Capabilities { power, express })
}

/// Returns the body of the PCI Express capability, which begins after its ID and link.
fn express_body() -> Vec<u8> {
    let mut body = vec![0; EXPRESS_LEN - 2];
    let mut put = |at: usize, bytes: &[u8]| body[at - 2..at - 2 + bytes.len()].copy_from_slice(bytes);
    // An endpoint, version 2.
    put(0x02, &[2, 0]);
    // Payloads of up to 512 bytes.
    put(DEVICE_CAPABILITIES, &(HAS_RESET | 2).to_le_bytes());
    put(LINK_CAPABILITIES, &u32::from(LINK).to_le_bytes());
    put(LINK_STATUS, &LINK.to_le_bytes());
    body
}

fn express_writable() -> Vec<u8> {
    let mut writable = vec![0; EXPRESS_LEN - 2];
    for (at, mask) in [(DEVICE_CONTROL, 0xffff_u16), (LINK_CONTROL, 0x00cb), (DEVICE_CONTROL2, 0x001f)] {
        writable[at - 2..at].copy_from_slice(&mask.to_le_bytes());
    }
    writable
}

impl Capabilities {
    /// Returns true if the device is in D0.
    pub fn is_on(&self, config: &ConfigSpace) -> bool {
        config.read(self.power + 4, 2) & POWER_STATE == 0
    }

    /// Takes the driver's request for a function-level reset; returns true if there was one.
    pub fn take_reset(&self, config: &mut ConfigSpace) -> bool {
        let at = self.express + DEVICE_CONTROL;
        let control = config.read(at, 2);
        config.write(at, 2, control & !RESET);
        control & RESET != 0
    }
}
