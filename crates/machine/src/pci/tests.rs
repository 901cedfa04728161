//! Tests of a function with a base address register and MSI-X on the bus.

use super::testing::Rig;
use super::*;
use crate::device::Msi;

struct Thing {
    config: ConfigSpace,
    msix: MsiX,
    register: u64,
    pin: bool,
}

impl Thing {
    fn new(bar_size: u64) -> Self {
        let mut config = ConfigSpace::new(Identity {
            vendor: 0x1234,
            device: 0x5678,
            class: 0xff_0000,
            revision: 0,
            subsystem_vendor: 0,
            subsystem: 0,
        });
        config.add_memory_bar(0, bar_size);
        let msix = MsiX::new(&mut config, 3, 0, 0x1000, 0x1800);
        Self { config, msix, register: 0, pin: false }
    }
}

impl Saved for Thing {
    fn save(&self) -> Result<Vec<u8>, StateError> {
        encode(&(&self.config, &self.msix, self.register, self.pin))
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        (self.config, self.msix, self.register, self.pin) = decode(bytes)?;
        Ok(())
    }
}

impl Function for Thing {
    fn name(&self) -> &'static str {
        "thing"
    }

    fn config(&self) -> &ConfigSpace {
        &self.config
    }

    fn config_mut(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn config_write(&mut self, at: usize, size: u8, value: u32, ctx: &mut DeviceContext) {
        self.config.write(at, size, value);
        self.msix.refresh(&self.config, &mut ctx.out.messages);
    }

    fn bar_read(&mut self, _bar: usize, offset: u64, size: u8, _ctx: &mut DeviceContext) -> u64 {
        match offset {
            0x1000..0x1800 => self.msix.read_table(offset - 0x1000, size),
            0x1800.. => self.msix.read_pending(offset - 0x1800, size),
            _ => self.register,
        }
    }

    fn bar_write(&mut self, _bar: usize, offset: u64, size: u8, value: u64, ctx: &mut DeviceContext) {
        match offset {
            0x1000..0x1800 => self.msix.write_table(offset - 0x1000, size, value, &mut ctx.out.messages),
            0x10 => self.msix.raise(value as u16, &mut ctx.out.messages),
            0x18 => self.pin = value != 0,
            _ => self.register = value,
        }
    }

    fn intx(&self) -> bool {
        self.pin
    }
}

fn bus() -> Rig {
    let mut bus = Rig::new();
    assert_eq!(bus.bus.add(Box::new(Thing::new(0x2000))).unwrap(), 1);
    bus.config_write(1, 4, 2, 6);
    bus
}

const BASE: u64 = layout::PCI_WINDOW.start;

#[test]
fn both_mechanisms_reach_the_same_space() {
    let mut bus = bus();
    assert_eq!(bus.port_read(0xcfc, 4), u32::MAX);
    bus.port_write(0xcf8, 4, 0x8000_0800);
    assert_eq!(bus.port_read(0xcf8, 4), 0x8000_0800);
    assert_eq!(bus.port_read(0xcfc, 4), 0x5678_1234);
    assert_eq!((bus.port_read(0xcfe, 2), bus.port_read(0xcff, 1)), (0x5678, 0x56));
    let ecam = layout::PCI_ECAM.start + (1 << 15);
    assert_eq!(bus.mmio_read(ecam, 4), Some(0x5678_1234));
    assert_eq!(bus.mmio_read(ecam, 8), Some(0x0010_0006_5678_1234));
    assert_eq!(bus.mmio_read(ecam + 0x100, 4), Some(0));
    assert_eq!(bus.mmio_read(ecam + (1 << 12), 4), Some(0xffff_ffff));
    assert_eq!(bus.mmio_read(layout::PCI_ECAM.end - 4, 4), Some(0xffff_ffff));
    for (selector, what) in [(0x8001_0800, "bus 1"), (0x8000_0900, "function 1"), (0x8000_1000, "device 2")] {
        bus.port_write(0xcf8, 4, selector);
        assert_eq!(bus.port_read(0xcfc, 4), u32::MAX, "{what}");
    }
    bus.port_write(0xcf8, 4, 0x8000_083c);
    bus.port_write(0xcfc, 1, 0xab);
    assert_eq!(bus.port_read(0xcfc, 2), 0x01ab);
    bus.port_write(0xcf9, 1, 6);
    assert_eq!((bus.port_read(0xcf9, 1), bus.port_read(0xcf8, 4)), (0xff, 0x8000_083c));
}

#[test]
fn memory_is_decoded_while_enabled() {
    let mut bus = bus();
    assert!(bus.mmio_write(BASE, 8, 0x1122_3344_5566_7788));
    assert_eq!(bus.mmio_read(BASE, 2), Some(0x7788));
    assert_eq!(bus.bus.device_at(BASE), Some(1));
    bus.config_write(1, 4, 2, 0);
    assert_eq!(bus.mmio_read(BASE, 2), None);
    assert!(!bus.mmio_write(BASE, 2, 0));
    assert_eq!(bus.bus.device_at(BASE), None);
}

#[test]
fn masked_vectors_wait_as_pending_bits() {
    let mut bus = bus();
    let capability = bus.config_read(1, 0x34, 1) as usize;
    assert_eq!(bus.config_read(1, capability + 2, 2), 2);
    let entry = BASE + 0x1000 + 16;
    bus.mmio_write(entry, 8, 0x1_fee0_1000);
    bus.mmio_write(entry + 8, 4, 0x41);
    assert_eq!(bus.mmio_read(entry, 8), Some(0x1_fee0_1000));
    assert_eq!(bus.mmio_read(entry + 12, 4), Some(1));
    // While MSI-X is off nothing becomes pending.
    bus.mmio_write(BASE + 0x10, 4, 1);
    bus.config_write(1, capability + 2, 2, 0xc000);
    assert_eq!(bus.mmio_read(BASE + 0x1800, 8), Some(0));
    // Both masks are set: the message waits for both.
    bus.mmio_write(BASE + 0x10, 4, 1);
    assert_eq!(bus.mmio_read(BASE + 0x1800, 8), Some(2));
    bus.mmio_write(entry + 12, 4, 0);
    assert!(bus.take_interrupts().is_empty());
    bus.config_write(1, capability + 2, 2, 0x8000);
    let expected = Msi { address: 0x1_fee0_1000, data: 0x41 };
    assert_eq!(bus.take_interrupts(), [expected]);
    assert_eq!(bus.mmio_read(BASE + 0x1800, 8), Some(0));
    bus.mmio_write(BASE + 0x10, 4, 1);
    bus.mmio_write(BASE + 0x10, 4, 7);
    assert_eq!(bus.take_interrupts(), [expected]);
}

#[test]
fn pins_are_routed_to_their_lines() {
    let mut bus = bus();
    assert!(bus.lines().iter().all(|(_, level)| !level));
    bus.mmio_write(BASE + 0x18, 4, 1);
    assert_eq!(bus.lines(), [(16, false), (17, true), (18, false), (19, false)]);
    assert_eq!(bus.config_read(1, 0x3c, 2), 0x0111);
}

#[test]
fn a_full_bus_says_so() {
    let mut bus = PciBus::new();
    assert!(matches!(bus.add(Box::new(Thing::new(1 << 30))), Err(PciError::WindowFull(_))));
    for _ in 1..MAX_DEVICES {
        bus.add(Box::new(Thing::new(0x2000))).unwrap();
    }
    assert!(matches!(bus.add(Box::new(Thing::new(0x2000))), Err(PciError::BusFull)));
}
