//! The board: it connects devices to addresses and to interrupt lines.
//!
//! The board is the [`Bus`] of a processor. Devices ([`crate::device`]) claim ranges, which are in the tables of
//! `map.rs`. After each access the board passes their outputs to interrupt controllers and processors. The time of the
//! board never goes back: an access by a processor that is behind the last access of another one is served at the later
//! time. Local APIC timers follow their own processor's clock.

mod devices;
mod map;
mod parts;
mod state;
#[cfg(test)]
mod state_tests;

pub use map::ClaimError;
pub use parts::Parts;

use crate::console::{self, Input, Takers};
use crate::device::{At, Device, DeviceContext, Ending, Outputs, Pin, Request};
use crate::devices::ioapic::decode_msi;
use crate::devices::lapic::{Interrupt, Lapic, route};
use crate::devices::marker::Mark;
use crate::devices::{Clock, pm};
use crate::host::{HostFrame, Piece};
use crate::memory::GuestRam;
use crate::pci::PciError;
use cpu::{Bus, Ident};
use devices::{Devices, Events, Id};
use ledger::Ticks;
use ledger::profile::Profile;
use map::Map;
use network::time::SECOND;
use network::{Frame, Network, Time};
use parts::Maker;
use std::ops::Range;
use std::sync::MutexGuard;

/// Input of the I/O APIC to which ISA interrupt 0, the timer's, is connected, as described in the MADT.
const TIMER_INPUT: u8 = 2;

/// Time for which input waits for the virtio console's driver while the guest listens only to the serial line.
const DRIVER_WAIT_MS: u64 = 1000;

/// Maximum number of bytes for a channel that wait for the guest before input must wait outside.
const CHANNEL_BACKLOG: usize = 64 << 10;

/// Device number of the virtio console on the PCI bus.
const CONSOLE: u8 = 1;

/// Number and name under which accesses to the memory of PCI functions are charged; guests may move it.
const PCI_MEMORY: (u32, &str) = (4, "PCI device");

/// Reason for which a board can't be created.
#[derive(Debug, thiserror::Error)]
pub enum BoardError {
    /// Too many devices for the PCI bus.
    #[error(transparent)]
    Pci(#[from] PciError),
    /// Devices claim conflicting ranges.
    #[error(transparent)]
    Claim(#[from] ClaimError),
}

/// The board with its devices.
pub struct Board {
    ram: GuestRam,
    now: Ticks,
    map: Map,
    devices: Devices,
    events: Events,
    outputs: Outputs,
    input: Input,
    clock: Clock,
    ending: Option<Ending>,
    /// Exit status that the guest has requested.
    status: Option<u8>,
    /// True while the machine is suspended to RAM: no processor runs until an event wakes the machine.
    suspended: bool,
    /// Device number of the device with channels on the PCI bus.
    channels: Option<u8>,
}

impl Board {
    /// ID of the I/O APIC.
    pub const IO_APIC_ID: u8 = 0;

    /// Creates a board in the state in which firmware leaves it, with `cpus` local APICs.
    pub fn new(ram: &GuestRam, cpus: usize, profile: &Profile, parts: Parts) -> Result<Self, BoardError> {
        let clock = Clock::new(profile.tsc_hz.value);
        let input = Input::new(parts.console, clock.ticks(DRIVER_WAIT_MS, 1000));
        let network = parts.network();
        let mut maker = Maker { clock, cpus, ram, profile, parts, network, channels: None };
        let mut devices = Devices::new(&mut maker)?;
        let (mut map, mut events) = (Map::new(PCI_MEMORY), Events::default());
        for &id in Id::ALL {
            let device = devices.get(id);
            map.add(id, device.claims())?;
            events.set(id, device.next_event());
        }
        Ok(Self {
            ram: ram.clone(),
            now: 0,
            map,
            devices,
            events,
            outputs: Outputs::default(),
            input,
            clock,
            ending: None,
            status: None,
            suspended: false,
            channels: maker.channels,
        })
    }

    /// Returns true while the machine is suspended to RAM.
    pub fn suspended(&self) -> bool {
        self.suspended
    }

    /// Wakes a suspended machine if a wake-up event has occurred. Interrupt controllers, timers and the serial line
    /// have then lost their state, and return to the state in which firmware leaves them.
    pub fn resume(&mut self) -> bool {
        if !self.suspended || !self.devices.pm.wakes() {
            return false;
        }
        self.suspended = false;
        self.each(|device, ctx| device.reset(ctx));
        self.carry_outputs();
        true
    }

    /// Returns the latest time that the board has seen.
    pub fn now(&self) -> Ticks {
        self.now
    }

    /// Returns the way in which the guest ended the machine, after it has.
    pub fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// Returns the exit status that the guest requested last.
    pub fn status(&self) -> Option<u8> {
        self.status
    }

    /// Returns true if the guest has asked for its workload.
    pub fn workload_asked(&self) -> bool {
        self.devices.workload.is_asked()
    }

    /// Returns the local APIC of a processor.
    pub fn lapic(&mut self, index: usize) -> &mut Lapic {
        &mut self.devices.lapics[index]
    }

    /// Returns true if an external interrupt waits for a processor.
    pub fn interrupt(&self, index: usize) -> bool {
        self.devices.lapics[index].interrupt().is_some()
    }

    /// Returns the time of the next event of a shared device.
    pub fn next_event(&self) -> Option<Ticks> {
        self.events.next()
    }

    /// Returns the time at which a processor's APIC timer expires.
    pub fn timer_event(&self, index: usize) -> Option<Ticks> {
        self.devices.lapics[index].next_event()
    }

    /// Advances a processor's APIC timer, which follows the processor's own clock.
    pub fn advance_timer(&mut self, index: usize, now: Ticks) {
        if self.timer_event(index).is_some_and(|event| event <= now) {
            self.devices.lapics[index].advance(now);
            self.carry_outputs();
        }
    }

    /// Advances the shared devices.
    pub fn advance(&mut self, now: Ticks) {
        self.now = self.now.max(now);
        if self.next_event().is_none_or(|event| event > self.now) {
            return;
        }
        self.each(|device, ctx| device.advance(ctx));
        self.carry_outputs();
    }

    /// Applies `change` to all devices, and updates the times of their next events.
    fn each(&mut self, mut change: impl FnMut(&mut dyn Device, &mut DeviceContext)) {
        let ctx = &mut DeviceContext { now: self.now, cpu: 0, ram: &self.ram, out: &mut self.outputs };
        for &id in Id::ALL {
            let device = self.devices.get(id);
            change(device, ctx);
            self.events.set(id, device.next_event());
        }
    }

    /// Takes the ranges of guest memory that devices have written since the last call.
    pub fn take_written(&self) -> Vec<Range<u64>> {
        if self.ram.has_written() { self.ram.take_written() } else { Vec::new() }
    }

    /// Takes the next begin or end mark of a region of interest.
    pub fn pop_mark(&mut self) -> Option<Mark> {
        self.devices.marker.pop()
    }

    /// Returns the name of the device at a port for reports.
    pub fn port_name(&self, port: u16) -> Option<&'static str> {
        self.map.port_name(port)
    }

    /// Returns the name of the memory whose accesses are charged under a number, for reports.
    pub fn memory_name(&self, number: u32) -> Option<&'static str> {
        self.map.memory_name(number)
    }

    /// Returns all ports that devices claim.
    pub fn port_ranges(&self) -> impl Iterator<Item = Range<u16>> {
        self.map.port_ranges()
    }

    /// Takes the guest's output since the last call, on any of its consoles.
    pub fn console_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.outputs.printed)
    }

    /// Returns the number of bytes that consoles hold and the guest has not read.
    fn unread(&self) -> usize {
        self.devices.serial.waiting() + self.devices.pci.inbox(CONSOLE).unread
    }

    /// Returns the number of typed bytes that the guest has not read.
    pub fn console_waiting(&self) -> usize {
        self.input.waiting() + self.unread()
    }

    /// Returns true if the guest has read most of the typed bytes.
    pub fn console_room(&self) -> bool {
        self.input.has_room(self.unread())
    }

    /// Sends typed input, and input that has been waiting, to a console that accepts it.
    pub fn console_input(&mut self, bytes: &[u8]) {
        self.input.push(bytes);
        let Devices { serial, pci, .. } = &mut self.devices;
        let ctx = &mut DeviceContext { now: self.now, cpu: 0, ram: &self.ram, out: &mut self.outputs };
        let takers = Takers { serial: serial.listens(), virtio: pci.inbox(CONSOLE).open, now: self.now };
        match self.input.deliver(takers) {
            Some((console::Console::Serial, bytes)) => serial.push_input(&bytes),
            Some((console::Console::Virtio, bytes)) => {
                pci.input(CONSOLE, &bytes, ctx);
                self.events.set(Id::pci, pci.next_event());
            }
            None if serial.waiting() != 0 => serial.arrive(),
            None => return,
        }
        serial.tell(ctx);
        self.carry_outputs();
    }

    /// Returns the network to which the NICs are connected.
    pub fn network(&self) -> MutexGuard<'_, Network> {
        self.devices.network.get()
    }

    /// Delivers frames from the host to NICs.
    pub fn network_input(&mut self, frames: &[HostFrame]) {
        let now = self.clock.count(self.now, SECOND);
        for HostFrame { nic, bytes } in frames {
            self.network().host_frame(usize::from(*nic), now, bytes.clone());
        }
        self.events.set(Id::pci, self.devices.pci.next_event());
    }

    /// Delivers a frame that a bridge outside sends to the port of a NIC, at a time that may be in the future.
    pub fn network_enter(&mut self, port: usize, at: Time, frame: Frame) {
        self.network().enter(port, at, frame);
        self.events.set(Id::pci, self.devices.pci.next_event());
    }

    /// Takes the frames for the host since the last call.
    pub fn network_output(&mut self) -> Vec<HostFrame> {
        let outgoing = self.network().take_outgoing();
        outgoing.into_iter().map(|(nic, bytes)| HostFrame { nic: nic as u8, bytes }).collect()
    }

    /// Returns true if there are channels between guest and host.
    pub fn has_channels(&self) -> bool {
        self.channels.is_some()
    }

    /// Takes the guest's output on channels since the last call: channel number and bytes, in order.
    pub fn channel_output(&mut self) -> Vec<(u8, Vec<u8>)> {
        std::mem::take(&mut self.outputs.channels)
    }

    /// Returns true if the guest listens to a channel and has read most of its input.
    pub fn channel_room(&self, channel: u8) -> bool {
        let inbox = self.channels.map(|device| self.devices.pci.channel_inbox(device, channel)).unwrap_or_default();
        inbox.open && inbox.unread < CHANNEL_BACKLOG
    }

    /// Delivers input to channels.
    pub fn channel_input(&mut self, pieces: &[Piece]) {
        let Some(device) = self.channels else { return };
        let ctx = &mut DeviceContext { now: self.now, cpu: 0, ram: &self.ram, out: &mut self.outputs };
        pieces.iter().for_each(|piece| self.devices.pci.piece(device, piece, ctx));
        self.events.set(Id::pci, self.devices.pci.next_event());
        self.carry_outputs();
    }

    /// Delivers the outputs of devices: interrupts, and the end of the machine.
    fn carry_outputs(&mut self) {
        if !self.outputs.requests.is_empty() {
            self.requests();
        }
        let Devices { pic, ioapic, lapics, .. } = &mut self.devices;
        for (pin, level) in self.outputs.lines.drain(..) {
            let (irq, input) = match pin {
                Pin::Isa(0) => (0, TIMER_INPUT),
                Pin::Isa(number) | Pin::Input(number) => (number, number),
            };
            pic.set_irq(irq, level);
            ioapic.set_irq(input, level);
        }
        for msi in self.outputs.messages.drain(..) {
            if let Some(message) = decode_msi(msi.address, msi.data) {
                route(lapics, &message);
            }
        }
        self.route_messages();
        let intr = self.devices.pic.intr();
        self.devices.lapics[0].set_lint(0, intr);
    }

    /// Handles the requests of devices to the machine.
    #[cold]
    fn requests(&mut self) {
        for request in std::mem::take(&mut self.outputs.requests) {
            match request {
                Request::End(ending) => self.ending = Some(ending),
                Request::Suspend => self.suspended = true,
                Request::ExitStatus(status) => self.status = Some(status),
                Request::Alarm => {
                    let ctx = &mut DeviceContext { now: self.now, cpu: 0, ram: &self.ram, out: &mut self.outputs };
                    self.devices.pm.signal(pm::event::RTC);
                    self.devices.pm.tell(ctx);
                }
            }
        }
    }

    /// Routes messages until none is left: a message may cause another one (an EOI lets a level-triggered line fire
    /// again).
    fn route_messages(&mut self) {
        let Devices { ioapic, lapics, .. } = &mut self.devices;
        let mut moved = true;
        while std::mem::take(&mut moved) {
            while let Some(message) = ioapic.pop_message() {
                route(lapics, &message);
                moved = true;
            }
            for index in 0..lapics.len() {
                while let Some(message) = lapics[index].pop_message() {
                    route(lapics, &message);
                    moved = true;
                }
                while let Some(vector) = lapics[index].pop_eoi() {
                    ioapic.eoi(vector);
                    moved = true;
                }
            }
        }
    }

    /// Records an access of a processor to the board, and returns the board's time.
    fn touch(&mut self, who: Ident) -> Ticks {
        self.advance(who.now);
        self.now
    }

    /// Splits a port access into pieces: the device, the access, and the number of bits by which the piece is shifted.
    /// Byte registers get one access each; a register of any size gets an access that begins at it.
    fn pieces(map: &Map, port: u16, size: u8, mut piece: impl FnMut(Id, At, u32)) {
        let part = |port, size, shift, piece: &mut dyn FnMut(Id, At, u32)| match map.port(port) {
            Some(range) if !range.whole || shift == 0 => {
                let size = if range.whole { size } else { 1 };
                let at = At { claim: range.claim, offset: u64::from(port - range.first), size };
                piece(range.device, at, shift);
                range.whole
            }
            _ => false,
        };
        if part(port, size, 0, &mut piece) {
            return;
        }
        for byte in 1..size.min(4) {
            part(port.wrapping_add(byte.into()), 1, 8 * u32::from(byte), &mut piece);
        }
    }
}

/// Returns `size` bytes of ones.
fn ones(size: u8) -> u64 {
    u64::MAX >> (64 - 8 * u32::from(size.clamp(1, 8)))
}

impl Bus for Board {
    fn read(&mut self, who: Ident, address: u64, size: u8) -> u64 {
        let now = self.touch(who);
        let Self { map, devices, events, ram, outputs, .. } = self;
        let ctx = &mut DeviceContext { now, cpu: who.cpu, ram, out: outputs };
        let value = if devices.lapics.decodes(who.cpu, address) {
            devices.lapics[who.cpu].mmio_read(address & 0xfff, size, who.now)
        } else {
            match map.memory(address) {
                Some(range) if range.device != Id::lapics => {
                    let at = At { claim: range.claim, offset: address - range.range.start, size };
                    devices.read(range.device, at, ctx, events)
                }
                _ => {
                    let value = devices.pci.memory_read(address, size, ctx);
                    events.set(Id::pci, devices.pci.next_event());
                    value.unwrap_or(ones(size))
                }
            }
        };
        self.carry_outputs();
        value
    }

    fn write(&mut self, who: Ident, address: u64, size: u8, value: u64) {
        let now = self.touch(who);
        let Self { map, devices, events, ram, outputs, .. } = self;
        let ctx = &mut DeviceContext { now, cpu: who.cpu, ram, out: outputs };
        if devices.lapics.decodes(who.cpu, address) {
            devices.lapics[who.cpu].mmio_write(address & 0xfff, size, value, who.now);
        } else {
            match map.memory(address) {
                Some(range) if range.device != Id::lapics => {
                    let at = At { claim: range.claim, offset: address - range.range.start, size };
                    devices.write(range.device, at, value, ctx, events);
                }
                _ => {
                    devices.pci.memory_write(address, size, value, ctx);
                    events.set(Id::pci, devices.pci.next_event());
                }
            }
        }
        self.carry_outputs();
    }

    fn device(&self, address: u64) -> u32 {
        match self.map.memory(address) {
            Some(range) => range.number,
            None if self.devices.pci.device_at(address).is_some() => PCI_MEMORY.0,
            None => 0,
        }
    }

    fn port_in(&mut self, who: Ident, port: u16, size: u8) -> u32 {
        let now = self.touch(who);
        let Self { map, devices, events, ram, outputs, .. } = self;
        let ctx = &mut DeviceContext { now, cpu: who.cpu, ram, out: outputs };
        let mut value = ones(size);
        Self::pieces(map, port, size, |id, at, shift| {
            let read = devices.read(id, at, ctx, events) & ones(at.size);
            value = value & !(ones(at.size) << shift) | read << shift;
        });
        self.carry_outputs();
        value as u32
    }

    fn port_out(&mut self, who: Ident, port: u16, size: u8, value: u32) {
        let now = self.touch(who);
        let Self { map, devices, events, ram, outputs, .. } = self;
        let ctx = &mut DeviceContext { now, cpu: who.cpu, ram, out: outputs };
        Self::pieces(map, port, size, |id, at, shift| {
            let piece = u64::from(value) >> shift & ones(at.size);
            devices.write(id, at, piece, ctx, events);
        });
        self.carry_outputs();
    }

    fn msr_read(&mut self, who: Ident, index: u32) -> Option<u64> {
        self.touch(who);
        self.devices.lapics[who.cpu].msr_read(index, who.now)
    }

    fn msr_write(&mut self, who: Ident, index: u32, value: u64) -> bool {
        self.touch(who);
        let written = self.devices.lapics[who.cpu].msr_write(index, value, who.now);
        self.carry_outputs();
        written
    }

    fn acknowledge(&mut self, who: Ident) -> Option<u8> {
        self.touch(who);
        let lapic = &mut self.devices.lapics[who.cpu];
        let vector = match lapic.interrupt()? {
            Interrupt::Vector(_) => lapic.acknowledge(),
            Interrupt::ExtInt => {
                lapic.acknowledge_extint();
                Some(self.devices.pic.acknowledge())
            }
        };
        self.carry_outputs();
        vector
    }

    fn end_of_interrupt(&mut self, who: Ident) {
        self.touch(who);
        self.devices.lapics[who.cpu].end_of_interrupt();
        self.carry_outputs();
    }

    fn cr8(&mut self, who: Ident) -> u8 {
        self.devices.lapics[who.cpu].cr8()
    }

    fn set_cr8(&mut self, who: Ident, value: u8) {
        self.devices.lapics[who.cpu].set_cr8(value);
    }

    fn performance_interrupt(&mut self, who: Ident, masks: bool) {
        self.devices.lapics[who.cpu].performance_interrupt(masks);
    }
}
