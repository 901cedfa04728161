//! A bus with memory for tests, driven as by the board.

use super::PciBus;
use crate::acpi;
use crate::device::Msi;
use crate::device::{At, Device, DeviceContext, Outputs, Pin};
use crate::host::Piece;
use crate::memory::{GuestRam, layout};
use crate::state::Saved;

/// The bus and its outputs.
pub struct Rig {
    pub bus: PciBus,
    pub ram: GuestRam,
    pub out: Outputs,
    pub now: u64,
    levels: [bool; acpi::PCI_LINES as usize],
}

impl Rig {
    pub fn new() -> Self {
        let ram = GuestRam::new(4 << 20).unwrap();
        Self { bus: PciBus::new(), ram, out: Outputs::default(), now: 0, levels: Default::default() }
    }

    fn with<R>(&mut self, act: impl FnOnce(&mut PciBus, &mut DeviceContext) -> R) -> R {
        let ctx = &mut DeviceContext { now: self.now, cpu: 0, ram: &self.ram, out: &mut self.out };
        let result = act(&mut self.bus, ctx);
        self.bus.tell(ctx);
        for (pin, level) in self.out.lines.drain(..) {
            let Pin::Input(line) = pin else { panic!("{pin:?} is no line of the bus") };
            self.levels[usize::from(line) - acpi::FIRST_PCI_LINE as usize] = level;
        }
        result
    }

    /// Restores the state of another bus and the known levels of its lines, without its functions.
    pub fn take_on(&mut self, other: &Self) {
        self.bus.restore(&other.bus.save().unwrap()).unwrap();
        (self.levels, self.now) = (other.levels, other.now);
    }

    fn enhanced(address: u64, size: u8) -> Option<At> {
        let claim = layout::PCI_ECAM.contains(&address);
        claim.then(|| At { claim: super::ENHANCED, offset: address - layout::PCI_ECAM.start, size })
    }

    pub fn mmio_read(&mut self, address: u64, size: u8) -> Option<u64> {
        self.with(|bus, ctx| match Self::enhanced(address, size) {
            Some(at) => Some(Device::read(bus, at, ctx)),
            None => bus.memory_read(address, size, ctx),
        })
    }

    pub fn mmio_write(&mut self, address: u64, size: u8, value: u64) -> bool {
        self.with(|bus, ctx| match Self::enhanced(address, size) {
            Some(at) => {
                Device::write(bus, at, value, ctx);
                true
            }
            None => bus.memory_write(address, size, value, ctx),
        })
    }

    pub fn config_read(&mut self, device: u8, at: usize, size: u8) -> u32 {
        self.with(|bus, ctx| bus.config_read(device, at, size, ctx))
    }

    pub fn config_write(&mut self, device: u8, at: usize, size: u8, value: u32) {
        self.with(|bus, ctx| bus.config_write(device, at, size, value, ctx));
    }

    pub fn port_read(&mut self, port: u16, size: u8) -> u32 {
        self.with(|bus, ctx| bus.port_read(port, size, ctx))
    }

    pub fn port_write(&mut self, port: u16, size: u8, value: u32) {
        self.with(|bus, ctx| bus.port_write(port, size, value, ctx));
    }

    pub fn input(&mut self, device: u8, bytes: &[u8]) {
        self.with(|bus, ctx| bus.input(device, bytes, ctx));
    }

    pub fn piece(&mut self, device: u8, piece: &Piece) {
        self.with(|bus, ctx| bus.piece(device, piece, ctx));
    }

    pub fn advance(&mut self, now: u64) {
        self.now = now;
        self.with(Device::advance);
    }

    pub fn take_interrupts(&mut self) -> Vec<Msi> {
        std::mem::take(&mut self.out.messages)
    }

    /// Returns the lines of the bus with their levels.
    pub fn lines(&self) -> [(u32, bool); acpi::PCI_LINES as usize] {
        std::array::from_fn(|i| (acpi::FIRST_PCI_LINE + i as u32, self.levels[i]))
    }
}
