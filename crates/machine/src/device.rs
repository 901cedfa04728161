//! The interface of a device on the board: the address ranges that it claims, the trait that it implements, and the
//! context that its methods receive.

use crate::devices::Line;
use crate::memory::GuestRam;
use crate::state::Saved;
use ledger::Ticks;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Maximum time between two polls of the host (input, interruption), in cycles.
pub(crate) const SLICE_CYCLES: u64 = 2_000_000;

/// The addresses of a [`Claim`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Space {
    /// I/O ports whose registers are bytes: a wider access is as many accesses, each to the device that claims the port.
    BytePorts(Range<u16>),
    /// I/O ports that take an access of any size as one access, if it begins in this range.
    Ports(Range<u16>),
    /// Guest-physical memory, and the number under which accesses to it are charged. Ledger files contain these
    /// numbers, so a number never changes.
    Memory(Range<u64>, u32),
}

/// A range of addresses at which a device answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Name in reports.
    pub name: &'static str,
    /// Claimed addresses.
    pub space: Space,
}

impl Claim {
    /// Claims `count` ports from `first` on, with registers of one byte.
    pub const fn bytes(name: &'static str, first: u16, count: u16) -> Self {
        Self { name, space: Space::BytePorts(first..first + count) }
    }

    /// Claims `count` ports from `first` on, which take accesses of any size.
    pub const fn ports(name: &'static str, first: u16, count: u16) -> Self {
        Self { name, space: Space::Ports(first..first + count) }
    }

    /// Claims memory, whose accesses are charged under `number`.
    pub const fn memory(name: &'static str, range: Range<u64>, number: u32) -> Self {
        Self { name, space: Space::Memory(range, number) }
    }
}

/// Location of an access, relative to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// Index of the claim among the device's claims.
    pub claim: usize,
    /// Offset from the start of the claim.
    pub offset: u64,
    /// Access size in bytes: 1 to 8 in memory; 1, 2 or 4 at ports; 1 at byte ports.
    pub size: u8,
}

impl At {
    /// Returns the port number, for a device that claims `claims`.
    pub fn port(self, claims: &[Claim]) -> u16 {
        match claims.get(self.claim).map(|claim| &claim.space) {
            Some(Space::BytePorts(ports) | Space::Ports(ports)) => ports.start.wrapping_add(self.offset as u16),
            _ => 0,
        }
    }
}

/// An input of the interrupt controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
    /// An ISA interrupt, which goes to the 8259As and to the I/O APIC. ISA interrupt 0, the timer's, is input 2 of the
    /// I/O APIC.
    Isa(u8),
    /// The input with this number of the I/O APIC and, below 16, of the 8259As.
    Input(u8),
}

/// Way in which a guest ends its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// Power off (ACPI S5).
    PowerOff,
    /// Reset (i8042, port 0x92 or 0xcf9).
    Reset,
    /// The kernel reported a panic by pvpanic.
    Panic,
    /// A write to the debug-exit port, with the requested exit status.
    DebugExit(u8),
}

/// A request of a device to the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The guest ends the machine.
    End(Ending),
    /// The guest suspends the machine to RAM.
    Suspend,
    /// The guest sets an exit status.
    ExitStatus(u8),
    /// The alarm of the real-time clock, which wakes a suspended machine.
    Alarm,
}

/// A message-signalled interrupt: a 32-bit write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Msi {
    /// Address of the write.
    pub address: u64,
    /// Data of the write.
    pub data: u32,
}

/// Outputs of devices that the board has yet to process.
#[derive(Debug, Default)]
pub struct Outputs {
    /// Level changes of interrupt lines, in order.
    pub lines: Vec<(Pin, bool)>,
    /// Messages for local APICs.
    pub messages: Vec<Msi>,
    /// Requests to the machine.
    pub requests: Vec<Request>,
    /// Output of the guest, on any of its consoles.
    pub printed: Vec<u8>,
    /// Data that the guest has written to channels, with the channel number, in order.
    pub channels: Vec<(u8, Vec<u8>)>,
}

/// Context of a call to a device: the time, memory for DMA, and ways to interrupt.
pub struct DeviceContext<'a> {
    /// Current time. It never goes back, except for local APICs, which follow their own processor's clock.
    pub now: Ticks,
    /// Index of the processor that accesses the device; 0 if no processor does.
    pub cpu: usize,
    /// Guest memory.
    pub ram: &'a GuestRam,
    /// Receives the device's outputs.
    pub out: &'a mut Outputs,
}

impl DeviceContext<'_> {
    /// Applies the level of a line to an input of the interrupt controllers.
    pub fn drive(&mut self, pin: Pin, line: &mut Line) {
        line.drain(|level| self.out.lines.push((pin, level)));
    }

    /// Sends a request to the machine.
    pub fn request(&mut self, request: Request) {
        self.out.requests.push(request);
    }

    /// Prints the guest's output; `bytes` is empty afterwards.
    pub fn print(&mut self, bytes: &mut Vec<u8>) {
        self.out.printed.append(bytes);
    }
}

/// A device.
pub trait Device: Saved {
    /// Returns the claimed address ranges. The board refuses claims that overlap.
    fn claims(&self) -> &'static [Claim];

    /// Handles a read from a claimed range.
    fn read(&mut self, at: At, ctx: &mut DeviceContext) -> u64;

    /// Handles a write to a claimed range.
    fn write(&mut self, at: At, value: u64, ctx: &mut DeviceContext);

    /// Handles the wake-up from suspension to RAM: a device that has had no power returns to the state in which
    /// firmware leaves it. The interrupt controllers have forgotten the levels of lines, so the device drives every
    /// line that is high again.
    fn reset(&mut self, _ctx: &mut DeviceContext) {}

    /// Returns the time of the device's next event, if it has one.
    fn next_event(&self) -> Option<Ticks> {
        None
    }

    /// Advances the device to the current time. It must handle all events that are due.
    fn advance(&mut self, _ctx: &mut DeviceContext) {}
}
