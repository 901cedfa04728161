//! The board: which device answers where, and how their interrupt lines are wired.
//!
//! It is what a processor's [`Bus`] leads to. Time only moves forward here: an access by a processor that is behind another
//! one's last access is served at the later time.

use crate::devices::ioapic::{self, IoApic};
use crate::devices::lapic::{self, Interrupt, Lapic, route};
use crate::devices::pic::Pic;
use crate::devices::pit::Pit;
use crate::devices::serial::{self, Serial};
use crate::devices::{Clock, Line, read_bytes, write_bytes};
use crate::memory::GuestRam;
use cpu::{Bus, Ident};
use ledger::Ticks;
use ledger::profile::Profile;
use std::ops::Range;

/// ISA interrupt lines.
mod irq {
    pub const TIMER: u8 = 0;
}

/// How a guest ends its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Power off (ACPI S5).
    PowerOff,
    /// Reset (i8042, port 0xcf9, ACPI reset register).
    Reset,
    /// A write to the debug-exit port: exit status as QEMU's isa-debug-exit makes it.
    DebugExit(i32),
}

/// Devices beyond those every board has.
#[derive(Default)]
pub struct Parts {}

/// The devices.
pub struct Board {
    ram: GuestRam,
    now: Ticks,
    pic: Pic,
    pit: Pit,
    ioapic: IoApic,
    lapics: Vec<Lapic>,
    serial: Serial,
    ending: Option<Ending>,
}

impl Board {
    /// ID of the I/O APIC.
    pub const IO_APIC_ID: u8 = 0;

    /// A board as firmware leaves it, with `cpus` local APICs.
    pub fn new(ram: &GuestRam, cpus: usize, profile: &Profile, _parts: Parts) -> Self {
        let clock = Clock::new(profile.tsc_hz.value);
        let lapic = |index: usize| {
            let mut lapic = Lapic::new(lapic::Config {
                id: index as u32,
                bsp: index == 0,
                x2apic: true,
                physical_bits: u32::from(profile.physical_bits.value),
                clock,
                timer_hz: lapic::TIMER_HZ,
            });
            if index == 0 {
                lapic.set_virtual_wire();
            }
            lapic
        };
        Self {
            ram: ram.clone(),
            now: 0,
            pic: Pic::as_firmware_leaves(),
            pit: Pit::as_firmware_leaves(clock, 0),
            ioapic: IoApic::new(Self::IO_APIC_ID),
            lapics: (0..cpus).map(lapic).collect(),
            serial: Serial::new(),
            ending: None,
        }
    }

    /// The latest time the board has seen.
    pub fn now(&self) -> Ticks {
        self.now
    }

    /// How the guest ended the machine, once it has.
    pub fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// A processor's local APIC.
    pub fn lapic(&mut self, index: usize) -> &mut Lapic {
        &mut self.lapics[index]
    }

    /// Whether an external interrupt waits for a processor.
    pub fn interrupt(&self, index: usize) -> bool {
        self.lapics[index].interrupt().is_some()
    }

    /// When a device that all processors share does something by itself.
    pub fn next_event(&self) -> Option<Ticks> {
        self.pit.next_event()
    }

    /// When a processor's APIC timer expires.
    pub fn timer_event(&self, index: usize) -> Option<Ticks> {
        self.lapics[index].next_event()
    }

    /// Lets time pass for a processor's APIC timer, which follows the processor's own clock.
    pub fn advance_timer(&mut self, index: usize, now: Ticks) {
        if self.timer_event(index).is_some_and(|event| event <= now) {
            self.lapics[index].advance(now);
            self.settle();
        }
    }

    /// Lets time pass for the shared devices.
    pub fn advance(&mut self, now: Ticks) {
        self.now = self.now.max(now);
        if self.next_event().is_none_or(|event| event > self.now) {
            return;
        }
        let now = self.now;
        self.pit.advance(now);
        self.settle();
    }

    /// Ranges of guest memory that devices have written since the last call.
    pub fn take_written(&self) -> Vec<Range<u64>> {
        if self.ram.has_written() { self.ram.take_written() } else { Vec::new() }
    }

    /// What the guest printed since the last call.
    pub fn console_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.serial.output)
    }

    /// What the user typed.
    pub fn console_input(&mut self, bytes: &[u8]) {
        self.serial.push_input(bytes);
        self.settle();
    }

    /// Carries interrupt levels and messages to where they are wired, until nothing moves any more.
    fn settle(&mut self) {
        isa(&mut self.pic, &mut self.ioapic, irq::TIMER, &mut self.pit.irq);
        isa(&mut self.pic, &mut self.ioapic, serial::COM1_IRQ, &mut self.serial.irq);
        loop {
            let mut moved = false;
            while let Some(message) = self.ioapic.pop_message() {
                route(&mut self.lapics, &message);
                moved = true;
            }
            for index in 0..self.lapics.len() {
                while let Some(message) = self.lapics[index].pop_message() {
                    route(&mut self.lapics, &message);
                    moved = true;
                }
                while let Some(vector) = self.lapics[index].pop_eoi() {
                    self.ioapic.eoi(vector);
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        let intr = self.pic.intr();
        self.lapics[0].set_lint(0, intr);
    }

    fn touch(&mut self, who: Ident) -> Ticks {
        self.advance(who.now);
        self.now
    }

    fn read_port(&mut self, port: u16, now: Ticks) -> u8 {
        match port {
            0x20 | 0x21 | 0xa0 | 0xa1 | 0x4d0 | 0x4d1 => self.pic.read(port),
            0x40..=0x43 | 0x61 => self.pit.read(port, now),
            0x3f8..=0x3ff => self.serial.read(port - serial::COM1),
            _ => 0xff,
        }
    }

    fn write_port(&mut self, port: u16, value: u8, now: Ticks) {
        match port {
            0x20 | 0x21 | 0xa0 | 0xa1 | 0x4d0 | 0x4d1 => self.pic.write(port, value),
            0x40..=0x43 | 0x61 => self.pit.write(port, value, now),
            0x3f8..=0x3ff => self.serial.write(port - serial::COM1, value),
            _ => {}
        }
    }
}

/// An ISA line goes to both interrupt controllers; the timer's is input 2 of the I/O APIC.
fn isa(pic: &mut Pic, ioapic: &mut IoApic, number: u8, line: &mut Line) {
    line.drain(|level| {
        pic.set_irq(number, level);
        ioapic.set_irq(if number == irq::TIMER { 2 } else { number }, level);
    });
}

impl Bus for Board {
    fn read(&mut self, who: Ident, address: u64, size: u8) -> u64 {
        self.touch(who);
        let value = if self.lapics[who.cpu].mmio_base() == Some(address & !0xfff) {
            self.lapics[who.cpu].mmio_read(address & 0xfff, size, who.now)
        } else if (ioapic::BASE..ioapic::BASE + ioapic::SIZE).contains(&address) {
            self.ioapic.read(address - ioapic::BASE, size)
        } else {
            u64::MAX >> (64 - 8 * u32::from(size.clamp(1, 8)))
        };
        self.settle();
        value
    }

    fn write(&mut self, who: Ident, address: u64, size: u8, value: u64) {
        self.touch(who);
        if self.lapics[who.cpu].mmio_base() == Some(address & !0xfff) {
            self.lapics[who.cpu].mmio_write(address & 0xfff, size, value, who.now);
        } else if (ioapic::BASE..ioapic::BASE + ioapic::SIZE).contains(&address) {
            self.ioapic.write(address - ioapic::BASE, size, value);
        }
        self.settle();
    }

    fn device(&self, _address: u64) -> u32 {
        0
    }

    fn port_in(&mut self, who: Ident, port: u16, size: u8) -> u32 {
        let now = self.touch(who);
        let value = read_bytes(port, size, |port| self.read_port(port, now));
        self.settle();
        value
    }

    fn port_out(&mut self, who: Ident, port: u16, size: u8, value: u32) {
        let now = self.touch(who);
        if port == 0xf4 {
            self.ending = Some(Ending::DebugExit((value as i32) << 1 | 1));
            return;
        }
        write_bytes(port, size, value, |port, byte| self.write_port(port, byte, now));
        self.settle();
    }

    fn msr_read(&mut self, who: Ident, index: u32) -> Option<u64> {
        self.touch(who);
        self.lapics[who.cpu].msr_read(index, who.now)
    }

    fn msr_write(&mut self, who: Ident, index: u32, value: u64) -> bool {
        self.touch(who);
        let written = self.lapics[who.cpu].msr_write(index, value, who.now);
        self.settle();
        written
    }

    fn acknowledge(&mut self, who: Ident) -> Option<u8> {
        self.touch(who);
        let lapic = &mut self.lapics[who.cpu];
        let vector = match lapic.interrupt()? {
            Interrupt::Vector(_) => lapic.acknowledge(),
            Interrupt::ExtInt => {
                lapic.acknowledge_extint();
                Some(self.pic.acknowledge())
            }
        };
        self.settle();
        vector
    }

    fn cr8(&mut self, who: Ident) -> u8 {
        self.lapics[who.cpu].cr8()
    }

    fn set_cr8(&mut self, who: Ident, value: u8) {
        self.lapics[who.cpu].set_cr8(value);
    }
}
