//! What a device of the board is: the ranges that it claims, one trait for what it does, and one argument for what it needs.

use crate::devices::Line;
use crate::memory::GuestRam;
use crate::state::Saved;
use ledger::Ticks;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The addresses of a [`Claim`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Space {
    /// I/O ports whose registers are bytes: a wider access is as many accesses, each to the device that claims the port.
    BytePorts(Range<u16>),
    /// I/O ports that take an access of any size as one, if it begins here.
    Ports(Range<u16>),
    /// Guest-physical memory, and the number under which accesses to it are charged. A ledger's file has these numbers: they stay
    /// the same for ever.
    Memory(Range<u64>, u32),
}

/// A range of addresses at which a device answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// What reports call it.
    pub name: &'static str,
    /// Where it is.
    pub space: Space,
}

impl Claim {
    /// `count` ports from `first` on, with registers of one byte.
    pub const fn bytes(name: &'static str, first: u16, count: u16) -> Self {
        Self { name, space: Space::BytePorts(first..first + count) }
    }

    /// `count` ports from `first` on, which take accesses of any size.
    pub const fn ports(name: &'static str, first: u16, count: u16) -> Self {
        Self { name, space: Space::Ports(first..first + count) }
    }

    /// Memory, whose accesses are charged under `number`.
    pub const fn memory(name: &'static str, range: Range<u64>, number: u32) -> Self {
        Self { name, space: Space::Memory(range, number) }
    }
}

/// Where an access goes, as the device that is accessed sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// Which of the device's claims, by position.
    pub claim: usize,
    /// Distance from its start.
    pub offset: u64,
    /// Bytes: 1 to 8 in memory; 1, 2 or 4 at ports; 1 at ports of bytes.
    pub size: u8,
}

impl At {
    /// The port, for a device that claims `claims`.
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
    /// An ISA interrupt, which goes to the 8259As and to the I/O APIC. The timer's, 0, is input 2 there.
    Isa(u8),
    /// The input of that number, of the I/O APIC and, below 16, of the 8259As.
    Input(u8),
}

/// How a guest ends its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// Power off (ACPI S5).
    PowerOff,
    /// Reset (i8042, port 0x92 or 0xcf9).
    Reset,
    /// The kernel said by pvpanic that it has panicked.
    Panic,
    /// A write to the debug-exit port: the exit status it asks for.
    DebugExit(u8),
}

/// What a device asks of the whole machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The guest ends the machine.
    End(Ending),
    /// The guest suspends the machine to RAM.
    Suspend,
    /// The guest states an exit status.
    ExitStatus(u8),
    /// The alarm of the real-time clock has gone off, which wakes a suspended machine.
    Alarm,
}

/// A message-signalled interrupt: a 32-bit write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Msi {
    /// Where to.
    pub address: u64,
    /// What.
    pub data: u32,
}

/// What devices have to say to the rest of the board, until it has been carried there.
#[derive(Debug, Default)]
pub struct Outputs {
    /// Levels of interrupt lines, in order.
    pub lines: Vec<(Pin, bool)>,
    /// Messages for local APICs.
    pub messages: Vec<Msi>,
    /// What is asked of the machine.
    pub requests: Vec<Request>,
    /// What the guest has printed, on any of its consoles.
    pub printed: Vec<u8>,
    /// What the guest has written to channels, by number, in order.
    pub channels: Vec<(u8, Vec<u8>)>,
}

/// What a device is given when it is accessed or time passes: the time, memory for DMA, and ways to interrupt.
pub struct DeviceContext<'a> {
    /// The time. It never goes back, except for local APICs, which follow their own processor's clock.
    pub now: Ticks,
    /// The processor that accesses the device; 0 if none does.
    pub cpu: usize,
    /// Guest memory.
    pub ram: &'a GuestRam,
    /// Where to what the device says goes.
    pub out: &'a mut Outputs,
}

impl DeviceContext<'_> {
    /// Drives an input of the interrupt controllers as a line says.
    pub fn drive(&mut self, pin: Pin, line: &mut Line) {
        line.drain(|level| self.out.lines.push((pin, level)));
    }

    /// Asks something of the machine.
    pub fn request(&mut self, request: Request) {
        self.out.requests.push(request);
    }

    /// Prints what the guest has written; `bytes` is empty afterwards.
    pub fn print(&mut self, bytes: &mut Vec<u8>) {
        self.out.printed.append(bytes);
    }
}

/// A device.
pub trait Device: Saved {
    /// Where it answers. The board refuses claims that overlap.
    fn claims(&self) -> &'static [Claim];

    /// A read from one of its ranges.
    fn read(&mut self, at: At, ctx: &mut DeviceContext) -> u64;

    /// A write to one of its ranges.
    fn write(&mut self, at: At, value: u64, ctx: &mut DeviceContext);

    /// The machine wakes from suspension to RAM: a device that has had no power in the meantime is as firmware leaves it. The
    /// interrupt controllers have forgotten the levels of lines: one that is high is driven again.
    fn reset(&mut self, _ctx: &mut DeviceContext) {}

    /// When it does something by itself.
    fn next_event(&self) -> Option<Ticks> {
        None
    }

    /// Lets time pass. An event whose time has come must be over afterwards.
    fn advance(&mut self, _ctx: &mut DeviceContext) {}
}
