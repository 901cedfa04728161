//! The PCI bus: configuration mechanism 1, enhanced configuration space, memory windows and interrupts.
//!
//! There is one bus, with only function 0 of each device, and a host bridge as device 0. When a device is added, its
//! base address registers get addresses in the PCI window, as firmware would assign them. The guest may move them: the
//! board asks the bus for every address that no device claims.

mod config;
mod msix;
pub mod option_rom;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub use config::{ConfigSpace, Identity, ROM};
pub use msix::MsiX;

use std::ops::Range;

use ledger::Ticks;
use thiserror::Error;

use crate::acpi;
use crate::device::{At, Claim, Device, DeviceContext, Pin};
use crate::devices::Line;
use crate::host::Piece;
use crate::memory::layout;
use crate::state::{Plain, Saved, StateError, decode, encode, require, same};
use serde::{Deserialize, Serialize};

/// Ports of configuration mechanism 1: address and data, 4 bytes each.
pub const PORTS: Range<u16> = 0xcf8..0xd00;

const ADDRESS_PORT: u16 = 0xcf8;
const DATA_PORT: u16 = 0xcfc;
const ADDRESS_ENABLE: u32 = 1 << 31;
const MAX_DEVICES: usize = 32;

/// State of the input from outside that a device holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inbox {
    /// True if the guest has a driver that accepts input.
    pub open: bool,
    /// Number of bytes that the driver has not taken yet.
    pub unread: usize,
}

/// A PCI function.
pub trait Function: Saved + Send {
    /// Returns the name of the function's state.
    fn name(&self) -> &'static str;
    /// Returns the configuration space.
    fn config(&self) -> &ConfigSpace;
    /// Returns the configuration space for the assignment of resources.
    fn config_mut(&mut self) -> &mut ConfigSpace;
    /// Reads from configuration space; functions whose reads have side effects override it.
    fn config_read(&mut self, at: usize, size: u8, _ctx: &mut DeviceContext) -> u32 {
        self.config().read(at, size)
    }
    /// Writes to configuration space.
    fn config_write(&mut self, at: usize, size: u8, value: u32, _ctx: &mut DeviceContext) {
        self.config_mut().write(at, size, value);
    }
    /// Reads from the memory of a base address register or from the expansion ROM. The access lies inside it.
    fn bar_read(&mut self, _bar: usize, _offset: u64, _size: u8, _ctx: &mut DeviceContext) -> u64 {
        0
    }
    /// Writes to the memory of a base address register. The access lies inside it.
    fn bar_write(&mut self, _bar: usize, _offset: u64, _size: u8, _value: u64, _ctx: &mut DeviceContext) {}
    /// Accepts input from outside, and passes it to the driver as soon as that has room for it.
    fn input(&mut self, _bytes: &[u8], _ctx: &mut DeviceContext) {}
    /// Returns the state of the function's inbox.
    fn inbox(&self) -> Inbox {
        Inbox::default()
    }
    /// Accepts a piece of input for a channel.
    fn piece(&mut self, _piece: &Piece, _ctx: &mut DeviceContext) {}
    /// Returns the state of a channel's inbox.
    fn channel_inbox(&self, _channel: u8) -> Inbox {
        Inbox::default()
    }
    /// Returns the time of the function's next event, if it has one.
    fn next_event(&self) -> Option<Ticks> {
        None
    }
    /// Advances the function to the current time.
    fn advance(&mut self, _ctx: &mut DeviceContext) {}
    /// Returns true if the interrupt pin (INTA) is asserted.
    fn intx(&self) -> bool {
        false
    }
}

/// The bridge from the processor to the bus.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct HostBridge(ConfigSpace);

impl Plain for HostBridge {
    fn check(&self, current: &Self) -> Result<(), StateError> {
        self.0.check(&current.0)
    }
}

impl Function for HostBridge {
    fn name(&self) -> &'static str {
        "host bridge"
    }

    fn config(&self) -> &ConfigSpace {
        &self.0
    }

    fn config_mut(&mut self) -> &mut ConfigSpace {
        &mut self.0
    }
}

/// Reason for which a device can't be added.
#[derive(Debug, Error)]
pub enum PciError {
    /// All device numbers are taken.
    #[error("a PCI bus holds at most {} devices", MAX_DEVICES - 1)]
    BusFull,
    /// The memory window is full.
    #[error("the PCI memory window has no room for another {0} bytes")]
    WindowFull(u64),
}

/// The bus with its functions.
pub struct PciBus {
    functions: Vec<Box<dyn Function>>,
    address: u32,
    next_bar: u64,
    lines: [Line; acpi::PCI_LINES as usize],
}

impl Default for PciBus {
    fn default() -> Self {
        Self::new()
    }
}

impl PciBus {
    /// Creates a bus that has only its host bridge.
    pub fn new() -> Self {
        // Red Hat's generic PCIe host bridge, which has no registers that an operating system would use.
        let identity = Identity {
            vendor: 0x1b36,
            device: 0x0008,
            class: 0x06_0000,
            revision: 0,
            subsystem_vendor: 0,
            subsystem: 0,
        };
        let bridge = HostBridge(ConfigSpace::new(identity));
        Self {
            functions: vec![Box::new(bridge)],
            address: 0,
            next_bar: layout::PCI_WINDOW.start,
            lines: Default::default(),
        }
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

    /// Allocates `size` bytes in the window.
    fn assign(&mut self, size: u64) -> Result<u64, PciError> {
        let at = self.next_bar.next_multiple_of(size);
        if at + size > layout::PCI_WINDOW.end {
            return Err(PciError::WindowFull(size));
        }
        self.next_bar = at + size;
        Ok(at)
    }

    /// Reads the configuration space of function 0 of a device on bus 0; all ones if there is no device.
    pub fn config_read(&mut self, device: u8, at: usize, size: u8, ctx: &mut DeviceContext) -> u32 {
        match self.functions.get_mut(usize::from(device)) {
            Some(function) => function.config_read(at, size, ctx),
            None => ones(size) as u32,
        }
    }

    /// Writes the configuration space of function 0 of a device on bus 0.
    pub fn config_write(&mut self, device: u8, at: usize, size: u8, value: u32, ctx: &mut DeviceContext) {
        if let Some(function) = self.functions.get_mut(usize::from(device)) {
            function.config_write(at, size, value, ctx);
        }
    }

    /// Handles IN from one of [`PORTS`].
    pub fn port_read(&mut self, port: u16, size: u8, ctx: &mut DeviceContext) -> u32 {
        match port {
            // The address register only decodes aligned 32-bit accesses.
            ADDRESS_PORT if size == 4 => self.address,
            DATA_PORT.. if PORTS.contains(&port) => match self.selected(port) {
                Some((device, at)) => self.config_read(device, at, size, ctx),
                None => ones(size) as u32,
            },
            _ => ones(size) as u32,
        }
    }

    /// Handles OUT to one of [`PORTS`].
    pub fn port_write(&mut self, port: u16, size: u8, value: u32, ctx: &mut DeviceContext) {
        match port {
            ADDRESS_PORT if size == 4 => self.address = value & !0x7f00_0003,
            DATA_PORT.. if PORTS.contains(&port) => {
                if let Some((device, at)) = self.selected(port) {
                    self.config_write(device, at, size, value, ctx);
                }
            }
            _ => {}
        }
    }

    /// Returns the device and offset that the address register selects, if bus and function exist.
    fn selected(&self, port: u16) -> Option<(u8, usize)> {
        let (bus, device, function) = (self.address >> 16 & 0xff, self.address >> 11 & 0x1f, self.address >> 8 & 7);
        let at = (self.address & 0xfc) as usize + usize::from(port - DATA_PORT);
        (self.address & ADDRESS_ENABLE != 0 && bus == 0 && function == 0).then_some((device as u8, at))
    }

    /// Returns the device and offset for an offset in enhanced configuration space.
    fn enhanced(offset: u64) -> Option<(u8, usize)> {
        let (device, function) = (offset >> 15 & 0x1f, offset >> 12 & 7);
        (function == 0).then_some((device as u8, offset as usize & 0xfff))
    }

    /// Reads enhanced configuration space; all ones if there is no function.
    fn enhanced_read(&mut self, offset: u64, size: u8, ctx: &mut DeviceContext) -> u64 {
        let Some((device, at)) = Self::enhanced(offset) else { return ones(size) };
        let low = u64::from(self.config_read(device, at, size.min(4), ctx));
        if size == 8 { low | u64::from(self.config_read(device, at + 4, 4, ctx)) << 32 } else { low }
    }

    /// Writes enhanced configuration space.
    fn enhanced_write(&mut self, offset: u64, size: u8, value: u64, ctx: &mut DeviceContext) {
        let Some((device, at)) = Self::enhanced(offset) else { return };
        self.config_write(device, at, size.min(4), value as u32, ctx);
        if size == 8 {
            self.config_write(device, at + 4, 4, (value >> 32) as u32, ctx);
        }
    }

    /// Reads 1, 2, 4 or 8 bytes of memory that no device of the board claims. Returns `None` if no function decodes the
    /// address.
    pub fn memory_read(&mut self, address: u64, size: u8, ctx: &mut DeviceContext) -> Option<u64> {
        for function in &mut self.functions {
            if let Some((bar, offset)) = function.config().decode(address, size) {
                let value = function.bar_read(bar, offset, size, ctx) & ones(size);
                self.tell(ctx);
                return Some(value);
            }
        }
        None
    }

    /// Writes 1, 2, 4 or 8 bytes of memory that no device of the board claims. Returns false if no function decodes the
    /// address.
    pub fn memory_write(&mut self, address: u64, size: u8, value: u64, ctx: &mut DeviceContext) -> bool {
        for function in &mut self.functions {
            if let Some((bar, offset)) = function.config().decode(address, size) {
                function.bar_write(bar, offset, size, value & ones(size), ctx);
                self.tell(ctx);
                return true;
            }
        }
        false
    }

    /// Returns the number of the device that decodes `address`, for attribution.
    pub fn device_at(&self, address: u64) -> Option<u8> {
        self.functions.iter().position(|f| f.config().decode(address, 1).is_some()).map(|device| device as u8)
    }

    /// Returns the functions by device number.
    pub fn functions(&self) -> impl Iterator<Item = &dyn Function> {
        self.functions.iter().map(|function| &**function)
    }

    /// Returns the function of a device.
    pub fn function(&mut self, device: usize) -> Option<&mut Box<dyn Function>> {
        self.functions.get_mut(device)
    }

    /// Delivers input from outside to a device.
    pub fn input(&mut self, device: u8, bytes: &[u8], ctx: &mut DeviceContext) {
        if let Some(function) = self.functions.get_mut(usize::from(device)) {
            function.input(bytes, ctx);
            self.tell(ctx);
        }
    }

    /// Returns the state of a device's inbox.
    pub fn inbox(&self, device: u8) -> Inbox {
        self.functions.get(usize::from(device)).map_or(Inbox::default(), |function| function.inbox())
    }

    /// Delivers a piece of input to a channel of a device.
    pub fn piece(&mut self, device: u8, piece: &Piece, ctx: &mut DeviceContext) {
        if let Some(function) = self.functions.get_mut(usize::from(device)) {
            function.piece(piece, ctx);
            self.tell(ctx);
        }
    }

    /// Returns the state of the inbox of a device's channel.
    pub fn channel_inbox(&self, device: u8, channel: u8) -> Inbox {
        self.functions.get(usize::from(device)).map_or(Inbox::default(), |function| function.channel_inbox(channel))
    }

    /// Drives the I/O APIC's inputs according to the functions' interrupt pins.
    fn tell(&mut self, ctx: &mut DeviceContext) {
        let mut asserted = [false; acpi::PCI_LINES as usize];
        for (device, function) in self.functions.iter().enumerate() {
            asserted[(acpi::pci_line(device as u8, 0) - acpi::FIRST_PCI_LINE) as usize] |= function.intx();
        }
        for (number, (line, level)) in self.lines.iter_mut().zip(asserted).enumerate() {
            line.set(level);
            ctx.drive(Pin::Input(acpi::FIRST_PCI_LINE as u8 + number as u8), line);
        }
    }
}

/// Name of accesses to configuration space.
const NAME: &str = "PCI configuration";
/// The address register only decodes aligned 32-bit accesses, and its second byte is a register of another device: the
/// reset control register.
const CLAIMS: &[Claim] = &[
    Claim::ports(NAME, ADDRESS_PORT, 1),
    Claim::ports(NAME, ADDRESS_PORT + 2, 2),
    Claim::ports(NAME, DATA_PORT, PORTS.end - DATA_PORT),
    Claim::memory(NAME, layout::PCI_ECAM, 3),
];
/// Index of enhanced configuration space among the claims.
const ENHANCED: usize = 3;

impl Device for PciBus {
    fn claims(&self) -> &'static [Claim] {
        CLAIMS
    }

    fn read(&mut self, at: At, ctx: &mut DeviceContext) -> u64 {
        let value = match at.claim {
            ENHANCED => self.enhanced_read(at.offset, at.size, ctx),
            _ => self.port_read(at.port(CLAIMS), at.size, ctx).into(),
        };
        self.tell(ctx);
        value
    }

    fn write(&mut self, at: At, value: u64, ctx: &mut DeviceContext) {
        match at.claim {
            ENHANCED => self.enhanced_write(at.offset, at.size, value, ctx),
            _ => self.port_write(at.port(CLAIMS), at.size, value as u32, ctx),
        }
        self.tell(ctx);
    }

    /// Functions keep their power during suspension.
    fn reset(&mut self, ctx: &mut DeviceContext) {
        self.lines.iter_mut().for_each(Line::forgotten);
        self.tell(ctx);
    }

    fn next_event(&self) -> Option<Ticks> {
        self.functions.iter().filter_map(|function| function.next_event()).min()
    }

    fn advance(&mut self, ctx: &mut DeviceContext) {
        self.functions.iter_mut().for_each(|function| function.advance(ctx));
        self.tell(ctx);
    }
}

/// State of the bus itself, without its functions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct BusState {
    functions: usize,
    address: u32,
    next_bar: u64,
    lines: [Line; acpi::PCI_LINES as usize],
}

impl Saved for PciBus {
    fn save(&self) -> Result<Vec<u8>, StateError> {
        let Self { functions, address, next_bar, lines } = self;
        encode(&BusState { functions: functions.len(), address: *address, next_bar: *next_bar, lines: *lines })
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        let BusState { functions, address, next_bar, lines } = decode(bytes)?;
        same(&(functions, next_bar), &(self.functions.len(), self.next_bar), "set of PCI devices")?;
        require(address & 0x7f00_0003 == 0, "the address register of PCI")?;
        (self.address, self.lines) = (address, lines);
        Ok(())
    }
}

/// Returns `size` bytes of ones.
fn ones(size: u8) -> u64 {
    u64::MAX >> (64 - 8 * u32::from(size.clamp(1, 8)))
}
