//! The PCI bus: configuration mechanism 1, enhanced configuration space, memory windows and interrupts.
//!
//! One bus, functions 0 only, a host bridge as device 0. Base address registers get addresses in the PCI window when a
//! device is added, as firmware would assign them; the guest may move them. The board calls with ports and addresses
//! and drains what comes out: messages with [`PciBus::take_interrupts`], levels with [`PciBus::lines`].

mod config;
mod msix;
pub mod option_rom;
#[cfg(test)]
mod tests;

pub use config::{Config, Identity, ROM};
pub use msix::{Msi, MsiX};

use std::ops::Range;

use thiserror::Error;

use crate::acpi;
use crate::memory::layout;

/// Ports of configuration mechanism 1: address and data, 4 bytes each.
pub const PORTS: Range<u16> = 0xcf8..0xd00;

const ADDRESS_PORT: u16 = 0xcf8;
const DATA_PORT: u16 = 0xcfc;
const ADDRESS_ENABLE: u32 = 1 << 31;
const MAX_DEVICES: usize = 32;

/// A PCI function.
pub trait Function {
    /// Its configuration space.
    fn config(&self) -> &Config;
    /// Its configuration space, to assign resources.
    fn config_mut(&mut self) -> &mut Config;
    /// A read from configuration space; functions whose reads do something override it.
    fn config_read(&mut self, at: usize, size: u8, _out: &mut Vec<Msi>) -> u32 {
        self.config().read(at, size)
    }
    /// A write to configuration space.
    fn config_write(&mut self, at: usize, size: u8, value: u32, _out: &mut Vec<Msi>) {
        self.config_mut().write(at, size, value);
    }
    /// A read from memory behind a base address register or from the expansion ROM. The access lies inside it.
    fn bar_read(&mut self, _bar: usize, _offset: u64, _size: u8, _out: &mut Vec<Msi>) -> u64 {
        0
    }
    /// A write to memory behind a base address register. The access lies inside it.
    fn bar_write(&mut self, _bar: usize, _offset: u64, _size: u8, _value: u64, _out: &mut Vec<Msi>) {}
    /// Something outside has changed (input has arrived).
    fn poll(&mut self, _out: &mut Vec<Msi>) {}
    /// Whether the interrupt pin (INTA) is asserted.
    fn intx(&self) -> bool {
        false
    }
}

/// The bridge from the processor to the bus.
struct HostBridge(Config);

impl Function for HostBridge {
    fn config(&self) -> &Config {
        &self.0
    }

    fn config_mut(&mut self) -> &mut Config {
        &mut self.0
    }
}

/// Why a device can't be added.
#[derive(Debug, Error)]
pub enum PciError {
    /// All device numbers are taken.
    #[error("a PCI bus holds at most {} devices", MAX_DEVICES - 1)]
    BusFull,
    /// The window is too small.
    #[error("the PCI memory window has no room for another {0} bytes")]
    WindowFull(u64),
}

/// The bus with its functions.
pub struct PciBus {
    functions: Vec<Box<dyn Function>>,
    address: u32,
    next_bar: u64,
    messages: Vec<Msi>,
}

impl Default for PciBus {
    fn default() -> Self {
        Self::new()
    }
}

impl PciBus {
    /// A bus with nothing but its host bridge.
    pub fn new() -> Self {
        // Red Hat's generic PCIe host bridge: no registers that an operating system would look for.
        let identity = Identity {
            vendor: 0x1b36,
            device: 0x0008,
            class: 0x06_0000,
            revision: 0,
            subsystem_vendor: 0,
            subsystem: 0,
        };
        let bridge = HostBridge(Config::new(identity));
        Self { functions: vec![Box::new(bridge)], address: 0, next_bar: layout::PCI_WINDOW.start, messages: Vec::new() }
    }

    /// Adds a device, assigns its addresses and its interrupt line, and returns its number.
    pub fn add(&mut self, mut function: Box<dyn Function>) -> Result<u8, PciError> {
        if self.functions.len() == MAX_DEVICES {
            return Err(PciError::BusFull);
        }
        let device = self.functions.len() as u8;
        let bars: Vec<(usize, u64)> = function.config().bar_sizes().collect();
        for (index, size) in bars {
            let at = self.assign(size)?;
            function.config_mut().assign_bar(index, at);
        }
        let rom = function.config().rom_size();
        if rom != 0 {
            let at = self.assign(u64::from(rom))?;
            function.config_mut().assign_rom(at as u32);
        }
        function.config_mut().set_interrupt(0, acpi::pci_line(device, 0) as u8);
        self.functions.push(function);
        Ok(device)
    }

    /// Room for `size` bytes in the window.
    fn assign(&mut self, size: u64) -> Result<u64, PciError> {
        let at = self.next_bar.next_multiple_of(size);
        if at + size > layout::PCI_WINDOW.end {
            return Err(PciError::WindowFull(size));
        }
        self.next_bar = at + size;
        Ok(at)
    }

    /// Reads the configuration space of function 0 of a device on bus 0. Nothing there: all ones.
    pub fn config_read(&mut self, device: u8, at: usize, size: u8) -> u32 {
        match self.functions.get_mut(usize::from(device)) {
            Some(function) => function.config_read(at, size, &mut self.messages),
            None => ones(size) as u32,
        }
    }

    /// Writes the configuration space of function 0 of a device on bus 0.
    pub fn config_write(&mut self, device: u8, at: usize, size: u8, value: u32) {
        if let Some(function) = self.functions.get_mut(usize::from(device)) {
            function.config_write(at, size, value, &mut self.messages);
        }
    }

    /// IN from one of [`PORTS`].
    pub fn port_read(&mut self, port: u16, size: u8) -> u32 {
        match port {
            // The address register is there for aligned 32-bit accesses only.
            ADDRESS_PORT if size == 4 => self.address,
            DATA_PORT.. if PORTS.contains(&port) => match self.selected(port) {
                Some((device, at)) => self.config_read(device, at, size),
                None => ones(size) as u32,
            },
            _ => ones(size) as u32,
        }
    }

    /// OUT to one of [`PORTS`].
    pub fn port_write(&mut self, port: u16, size: u8, value: u32) {
        match port {
            ADDRESS_PORT if size == 4 => self.address = value & !0x7f00_0003,
            DATA_PORT.. if PORTS.contains(&port) => {
                if let Some((device, at)) = self.selected(port) {
                    self.config_write(device, at, size, value);
                }
            }
            _ => {}
        }
    }

    /// What the address register selects, if there is something at that bus and function.
    fn selected(&self, port: u16) -> Option<(u8, usize)> {
        let (bus, device, function) = (self.address >> 16 & 0xff, self.address >> 11 & 0x1f, self.address >> 8 & 7);
        let at = (self.address & 0xfc) as usize + usize::from(port - DATA_PORT);
        (self.address & ADDRESS_ENABLE != 0 && bus == 0 && function == 0).then_some((device as u8, at))
    }

    /// Device and offset that an address in enhanced configuration space stands for.
    fn enhanced(address: u64) -> Option<(u8, usize)> {
        let offset = address - layout::PCI_ECAM.start;
        let (device, function) = (offset >> 15 & 0x1f, offset >> 12 & 7);
        (function == 0).then_some((device as u8, offset as usize & 0xfff))
    }

    /// Reads 1, 2, 4 or 8 bytes of memory. `None`: no device answers.
    pub fn mmio_read(&mut self, address: u64, size: u8) -> Option<u64> {
        if layout::PCI_ECAM.contains(&address) {
            let read = |(device, at)| {
                let low = u64::from(self.config_read(device, at, size.min(4)));
                if size == 8 { low | u64::from(self.config_read(device, at + 4, 4)) << 32 } else { low }
            };
            return Some(Self::enhanced(address).map_or(ones(size), read));
        }
        for function in &mut self.functions {
            if let Some((bar, offset)) = function.config().decode(address, size) {
                return Some(function.bar_read(bar, offset, size, &mut self.messages) & ones(size));
            }
        }
        None
    }

    /// Writes 1, 2, 4 or 8 bytes of memory. `false`: no device answers.
    pub fn mmio_write(&mut self, address: u64, size: u8, value: u64) -> bool {
        if layout::PCI_ECAM.contains(&address) {
            if let Some((device, at)) = Self::enhanced(address) {
                self.config_write(device, at, size.min(4), value as u32);
                if size == 8 {
                    self.config_write(device, at + 4, 4, (value >> 32) as u32);
                }
            }
            return true;
        }
        for function in &mut self.functions {
            if let Some((bar, offset)) = function.config().decode(address, size) {
                function.bar_write(bar, offset, size, value & ones(size), &mut self.messages);
                return true;
            }
        }
        false
    }

    /// The device that decodes `address`, for attribution.
    pub fn device_at(&self, address: u64) -> Option<u8> {
        self.functions.iter().position(|f| f.config().decode(address, 1).is_some()).map(|device| device as u8)
    }

    /// Lets devices look for input from outside. To be called when there may be some.
    pub fn poll(&mut self) {
        for function in &mut self.functions {
            function.poll(&mut self.messages);
        }
    }

    /// Takes the messages that devices have sent, in order.
    pub fn take_interrupts(&mut self) -> impl Iterator<Item = Msi> + '_ {
        self.messages.drain(..)
    }

    /// I/O APIC lines of the bus with their levels (true is asserted).
    pub fn lines(&self) -> [(u32, bool); acpi::PCI_LINES as usize] {
        let mut lines = std::array::from_fn(|i| (acpi::FIRST_PCI_LINE + i as u32, false));
        for (device, function) in self.functions.iter().enumerate() {
            if function.intx() {
                lines[(acpi::pci_line(device as u8, 0) - acpi::FIRST_PCI_LINE) as usize].1 = true;
            }
        }
        lines
    }
}

/// `size` bytes of ones.
fn ones(size: u8) -> u64 {
    u64::MAX >> (64 - 8 * u32::from(size.clamp(1, 8)))
}
