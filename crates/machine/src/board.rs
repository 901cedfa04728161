//! The board: which device answers where, and how their interrupt lines are wired.
//!
//! It is what a processor's [`Bus`] leads to. Time only moves forward here: an access by a processor that is behind another
//! one's last access is served at the later time. Local APIC timers follow their own processor's clock.

use crate::console::{self, Input, Takers};
use crate::devices::debug_exit::{DEBUG_EXIT, SHUTDOWN, ShutdownPort, exit_status};
use crate::devices::fw_cfg::{self, FwCfg};
use crate::devices::i8042::{self, I8042};
use crate::devices::ioapic::{self, IoApic, decode_msi};
use crate::devices::lapic::{self, Interrupt, Lapic, route};
use crate::devices::marker::{self, Mark, Marker};
use crate::devices::pic::{self, Pic};
use crate::devices::pit::{self, Pit};
use crate::devices::pm::{self, Pm, Sleep};
use crate::devices::port80::{self, DebugPorts};
use crate::devices::pvpanic::{self, PVPANIC};
use crate::devices::reset::{self, ResetPorts};
use crate::devices::rtc::{self, Rtc};
use crate::devices::serial::{self, Serial};
use crate::devices::status::{self, STATUS};
use crate::devices::testdev::{self, TestDevice};
use crate::devices::{Clock, Line, read_bytes, write_bytes};
use crate::memory::{GuestRam, layout};
use crate::pci::option_rom::OptionRom;
use crate::pci::{self, PciBus, PciError};
use crate::virtio::{Block, Console, ConsolePort, Disk, Entropy, VirtioPci};
use cpu::{Bus, Ident};
use ledger::Ticks;
use ledger::profile::{Profile, Vendor};
use std::ops::Range;

/// ISA line of the interval timer: input 2 of the I/O APIC, as the MADT says.
const TIMER_IRQ: u8 = 0;

/// How long input waits for the virtio console's driver while only the serial line is listened to.
const DRIVER_WAIT_MS: u64 = 1000;

/// How a guest ends its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// Devices beyond those every board has, and what the others start from.
pub struct Parts {
    /// Virtio block devices, in order.
    pub disks: Vec<Disk>,
    /// Start of the real-time clock, in seconds since 1970.
    pub rtc_start: u64,
    /// Seed of the virtio entropy device.
    pub seed: u64,
    /// The paravirtual interface is offered: its code is also in an expansion ROM.
    pub paravirt: bool,
    /// The console that gets what the user types.
    pub console: console::Console,
}

impl Default for Parts {
    fn default() -> Self {
        let console = console::Console::default();
        Self { disks: Vec::new(), rtc_start: rtc::DEFAULT_START, seed: 0, paravirt: false, console }
    }
}

/// Names under which memory-mapped accesses are charged; their position is the parameter of the event.
pub const MMIO_DEVICES: [&str; 7] =
    ["unassigned", "local APIC", "I/O APIC", "PCI configuration", "PCI device", "test device", "ROM"];

/// Names of the ports, for reports.
pub const PORT_DEVICES: &[(Range<u16>, &str)] = &[
    (0x20..0x22, "PIC"),
    (0x40..0x44, "PIT"),
    (0x60..0x61, "i8042"),
    (0x61..0x62, "PIT"),
    (0x64..0x65, "i8042"),
    (0x70..0x72, "RTC"),
    (0x80..0x81, "POST code (I/O delay)"),
    (0x92..0x93, "system control"),
    (0xa0..0xa2, "PIC"),
    (0xb2..0xb4, "SMI command"),
    (0xe0..0xe4, "test device"),
    (0xe9..0xea, "debug console"),
    (0xf4..0xf5, "debug exit"),
    (0x3f8..0x400, "COM1"),
    (0x4d0..0x4d2, "PIC"),
    (0x505..0x506, "pvpanic"),
    (0x510..0x512, "fw_cfg"),
    (0x600..0x620, "ACPI PM"),
    (0xcf8..0xd00, "PCI configuration"),
    (0x1f0d..0x1f0e, "status"),
    (0x1f0e..0x1f10, "marker"),
    (0x2000..0x2018, "test device"),
];

/// The devices.
pub struct Board {
    ram: GuestRam,
    clock: Clock,
    now: Ticks,
    pic: Pic,
    pit: Pit,
    ioapic: IoApic,
    lapics: Vec<Lapic>,
    serial: Serial,
    rtc: Rtc,
    i8042: I8042,
    pm: Pm,
    reset: ResetPorts,
    shutdown: ShutdownPort,
    testdev: TestDevice,
    fw_cfg: FwCfg,
    marker: Marker,
    debug: DebugPorts,
    pci: PciBus,
    console: ConsolePort,
    input: Input,
    ending: Option<Ending>,
    /// The exit status that the guest has asked for.
    status: Option<u8>,
    /// Suspended to RAM: no processor runs until something wakes the machine.
    suspended: bool,
    /// The real-time clock's alarm had gone off when last looked at.
    alarm: bool,
}

impl Board {
    /// ID of the I/O APIC.
    pub const IO_APIC_ID: u8 = 0;

    /// A board as firmware leaves it, with `cpus` local APICs.
    pub fn new(ram: &GuestRam, cpus: usize, profile: &Profile, parts: Parts) -> Result<Self, PciError> {
        let clock = Clock::new(profile.tsc_hz.value);
        let x2apic = profile.cpuid().iter().any(|l| l.leaf == 1 && l.ecx & 1 << 21 != 0);
        let lapic = |index: usize| {
            let mut lapic = Lapic::new(lapic::Config {
                id: index as u32,
                bsp: index == 0,
                x2apic,
                physical_bits: u32::from(profile.physical_bits.value),
                clock,
                timer_hz: lapic::TIMER_HZ,
            });
            if index == 0 {
                lapic.set_virtual_wire();
            }
            lapic
        };
        let mut rtc = Rtc::new(clock, parts.rtc_start);
        rtc.describe_machine(ram.low_end(), ram.size() - ram.low_end(), cpus);
        let console = ConsolePort::default();
        let mut pci = PciBus::new();
        pci.add(Box::new(VirtioPci::new(Console::new(console.clone()), ram)))?;
        pci.add(Box::new(VirtioPci::new(Entropy::new(parts.seed), ram)))?;
        for (number, disk) in parts.disks.into_iter().enumerate() {
            let id = format!("tollgate{number}");
            pci.add(Box::new(VirtioPci::new(Block::new(Box::new(disk), &id), ram)))?;
        }
        if parts.paravirt {
            let rom = hypervisor::paravirt::option_rom(profile.vendor == Vendor::Amd);
            pci.add(Box::new(OptionRom::new(rom)))?;
        }
        Ok(Self {
            ram: ram.clone(),
            clock,
            now: 0,
            pic: Pic::as_firmware_leaves(),
            pit: Pit::as_firmware_leaves(clock, 0),
            ioapic: IoApic::new(Self::IO_APIC_ID),
            lapics: (0..cpus).map(lapic).collect(),
            serial: Serial::new(),
            rtc,
            i8042: I8042::new(),
            pm: Pm::new(clock, false),
            reset: ResetPorts::new(),
            shutdown: ShutdownPort::default(),
            testdev: TestDevice::new(),
            fw_cfg: FwCfg::new(ram.size(), cpus as u16),
            marker: Marker::new(cpus),
            debug: DebugPorts::default(),
            pci,
            console,
            input: Input::new(parts.console, clock.ticks(DRIVER_WAIT_MS, 1000)),
            ending: None,
            status: None,
            suspended: false,
            alarm: false,
        })
    }

    /// Whether the machine is suspended to RAM.
    pub fn suspended(&self) -> bool {
        self.suspended
    }

    /// Wakes a suspended machine if anything that wakes it has happened. Interrupt controllers, timers and the serial line
    /// have lost their state then, and are as firmware leaves them.
    pub fn resume(&mut self) -> bool {
        if !self.suspended || !self.pm.wakes() {
            return false;
        }
        self.suspended = false;
        self.pm.wake();
        self.pic = Pic::as_firmware_leaves();
        self.pit = Pit::as_firmware_leaves(self.clock, self.now);
        self.ioapic = IoApic::new(Self::IO_APIC_ID);
        self.serial.reset();
        for line in [&mut self.rtc.irq, &mut self.i8042.irq, &mut self.pm.irq] {
            line.forgotten();
        }
        for (index, lapic) in self.lapics.iter_mut().enumerate() {
            lapic.reset();
            if index == 0 {
                lapic.set_virtual_wire();
            }
        }
        self.settle();
        true
    }

    /// The latest time the board has seen.
    pub fn now(&self) -> Ticks {
        self.now
    }

    /// How the guest ended the machine, once it has.
    pub fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// The exit status that the guest has asked for last.
    pub fn status(&self) -> Option<u8> {
        self.status
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
        [self.pit.next_event(), self.rtc.next_event(), self.pm.next_event()].into_iter().flatten().min()
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
        self.rtc.advance(now);
        self.pm.advance(now);
        self.settle();
    }

    /// Ranges of guest memory that devices have written since the last call.
    pub fn take_written(&self) -> Vec<Range<u64>> {
        if self.ram.has_written() { self.ram.take_written() } else { Vec::new() }
    }

    /// The next beginning or end of a region of interest.
    pub fn pop_mark(&mut self) -> Option<Mark> {
        self.marker.pop()
    }

    /// What the guest printed since the last call, on any of its consoles.
    pub fn console_output(&mut self) -> Vec<u8> {
        let mut output = std::mem::take(&mut self.serial.output);
        output.append(&mut self.debug.output);
        output.append(&mut self.console.take_output());
        output
    }

    /// Bytes that the user typed and the guest has not read.
    pub fn console_waiting(&self) -> usize {
        self.input.waiting() + self.serial.waiting() + self.console.waiting()
    }

    /// Whether the guest has read most of what the user typed.
    pub fn console_room(&self) -> bool {
        self.input.has_room(self.serial.waiting() + self.console.waiting())
    }

    /// What the user typed, and what waits since earlier: to a console that takes it.
    pub fn console_input(&mut self, bytes: &[u8]) {
        self.input.push(bytes);
        let takers = Takers { serial: self.serial.listens(), virtio: self.console.open(), now: self.now };
        match self.input.deliver(takers) {
            Some((console::Console::Serial, bytes)) => self.serial.push_input(&bytes),
            Some((console::Console::Virtio, bytes)) => {
                self.console.send(&bytes);
                self.pci.poll();
            }
            None if self.serial.waiting() != 0 => self.serial.arrive(),
            None => return,
        }
        self.settle();
    }

    /// Carries what devices have to say to where it goes: interrupts, and the end of the machine.
    fn settle(&mut self) {
        let (pic, ioapic) = (&mut self.pic, &mut self.ioapic);
        isa(pic, ioapic, TIMER_IRQ, &mut self.pit.irq);
        isa(pic, ioapic, i8042::KEYBOARD_IRQ, &mut self.i8042.irq);
        isa(pic, ioapic, serial::COM1_IRQ, &mut self.serial.irq);
        isa(pic, ioapic, rtc::RTC_IRQ, &mut self.rtc.irq);
        let alarm = self.rtc.alarm_asserted();
        if alarm && !self.alarm {
            self.pm.signal(pm::event::RTC);
        }
        self.alarm = alarm;
        isa(pic, ioapic, pm::SCI_IRQ, &mut self.pm.irq);
        for (number, line) in self.testdev.lines.iter_mut().enumerate() {
            line.drain(|level| {
                ioapic.set_irq(number as u8, level);
                if number < 16 {
                    pic.set_irq(number as u8, level);
                }
            });
        }
        for (line, level) in self.pci.lines() {
            ioapic.set_irq(line as u8, level);
        }
        for msi in self.pci.take_interrupts() {
            if let Some(message) = decode_msi(msi.address, msi.data) {
                route(&mut self.lapics, &message);
            }
        }
        self.route_messages();
        let intr = self.pic.intr();
        self.lapics[0].set_lint(0, intr);
        match self.pm.take_sleep() {
            Some(Sleep::SoftOff) => self.ending = Some(Ending::PowerOff),
            Some(Sleep::Suspend) => self.suspended = true,
            None => {}
        }
        if self.i8042.take_reset() || self.reset.take_reset() {
            self.ending = Some(Ending::Reset);
        }
    }

    /// Messages cause messages (an EOI lets a level-triggered line fire again): until none is left.
    fn route_messages(&mut self) {
        let mut moved = true;
        while std::mem::take(&mut moved) {
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
        }
    }

    /// Notes that a processor looks at the board.
    fn touch(&mut self, who: Ident) -> Ticks {
        self.advance(who.now);
        self.now
    }

    /// Devices whose registers are bytes.
    fn read_byte(&mut self, port: u16, now: Ticks) -> u8 {
        match port {
            _ if pic::PORTS.contains(&port) => self.pic.read(port),
            _ if pit::PORTS.contains(&port) => self.pit.read(port, now),
            _ if rtc::PORTS.contains(&port) => self.rtc.read(port, now),
            _ if i8042::PORTS.contains(&port) => self.i8042.read(port),
            serial::COM1..=0x3ff => self.serial.read(port - serial::COM1),
            port80::POST_CODE | port80::DEBUG_CONSOLE => self.debug.read(port),
            reset::SYSTEM_CONTROL_A | reset::RESET_CONTROL => self.reset.read(port),
            pm::SMI_COMMAND..=0xb3 => self.pm.read_smi(port - pm::SMI_COMMAND),
            marker::NAME | marker::CONTROL => self.marker.read(port),
            STATUS => status::PRESENT,
            PVPANIC => pvpanic::EVENTS,
            _ => 0xff,
        }
    }

    fn write_byte(&mut self, who: Ident, port: u16, value: u8, now: Ticks) {
        match port {
            _ if pic::PORTS.contains(&port) => self.pic.write(port, value),
            _ if pit::PORTS.contains(&port) => self.pit.write(port, value, now),
            _ if rtc::PORTS.contains(&port) => self.rtc.write(port, value, now),
            _ if i8042::PORTS.contains(&port) => self.i8042.write(port, value),
            serial::COM1..=0x3ff => self.serial.write(port - serial::COM1, value),
            port80::POST_CODE | port80::DEBUG_CONSOLE => self.debug.write(port, value),
            reset::SYSTEM_CONTROL_A | reset::RESET_CONTROL => self.reset.write(port, value),
            pm::SMI_COMMAND..=0xb3 => self.pm.write_smi(port - pm::SMI_COMMAND, value),
            marker::NAME | marker::CONTROL => self.marker.write(who.cpu, port, value),
            STATUS => self.status = Some(value),
            PVPANIC if pvpanic::ends(value) => self.ending = Some(Ending::Panic),
            SHUTDOWN if self.shutdown.write(value) => self.ending = Some(Ending::PowerOff),
            _ => {}
        }
    }
}

/// An ISA line goes to both interrupt controllers.
fn isa(pic: &mut Pic, ioapic: &mut IoApic, number: u8, line: &mut Line) {
    line.drain(|level| {
        pic.set_irq(number, level);
        ioapic.set_irq(if number == TIMER_IRQ { 2 } else { number }, level);
    });
}

/// Whether a port belongs to the test device.
fn is_testdev(port: u16) -> bool {
    let lines = testdev::IRQ_LINES..testdev::IRQ_LINES + testdev::LINES as u16;
    (testdev::LATCH..testdev::FLUSH + 4).contains(&port)
        || (testdev::LATCH_BYTES..testdev::LATCH_BYTES + 4).contains(&port) && port != port80::DEBUG_CONSOLE
        || lines.contains(&port)
}

/// Whether an access goes to PCI's configuration ports; one byte of them is the reset control register.
fn is_pci(port: u16, size: u8) -> bool {
    pci::PORTS.contains(&port) && !(port == reset::RESET_CONTROL && size == 1)
}

impl Bus for Board {
    fn read(&mut self, who: Ident, address: u64, size: u8) -> u64 {
        self.touch(who);
        let value = match self.device(address) {
            _ if self.lapics[who.cpu].mmio_base() == Some(address & !0xfff) => {
                self.lapics[who.cpu].mmio_read(address & 0xfff, size, who.now)
            }
            2 => self.ioapic.read(address - ioapic::BASE, size),
            5 => self.testdev.memory_read(address - testdev::MEMORY_BASE, size),
            _ => self.pci.mmio_read(address, size).unwrap_or(u64::MAX >> (64 - 8 * u32::from(size.clamp(1, 8)))),
        };
        self.settle();
        value
    }

    fn write(&mut self, who: Ident, address: u64, size: u8, value: u64) {
        self.touch(who);
        match self.device(address) {
            _ if self.lapics[who.cpu].mmio_base() == Some(address & !0xfff) => {
                self.lapics[who.cpu].mmio_write(address & 0xfff, size, value, who.now);
            }
            2 => self.ioapic.write(address - ioapic::BASE, size, value),
            5 => self.testdev.memory_write(address - testdev::MEMORY_BASE, size, value),
            _ => {
                self.pci.mmio_write(address, size, value);
            }
        }
        self.settle();
    }

    fn device(&self, address: u64) -> u32 {
        const TESTDEV: Range<u64> = testdev::MEMORY_BASE..testdev::MEMORY_BASE + testdev::MEMORY_SIZE;
        match address {
            _ if address >> 12 == lapic::DEFAULT_BASE >> 12 => 1,
            _ if (ioapic::BASE..ioapic::BASE + ioapic::SIZE).contains(&address) => 2,
            _ if layout::PCI_ECAM.contains(&address) => 3,
            _ if TESTDEV.contains(&address) => 5,
            _ if self.pci.device_at(address).is_some() => 4,
            _ => 0,
        }
    }

    fn port_in(&mut self, who: Ident, port: u16, size: u8) -> u32 {
        let now = self.touch(who);
        let value = match port {
            _ if is_pci(port, size) => self.pci.port_read(port, size),
            _ if is_testdev(port) => self.testdev.read(port, size),
            fw_cfg::SELECTOR | fw_cfg::DATA => self.fw_cfg.read(port, size),
            pm::BASE.. if port < pm::BASE + pm::SIZE => self.pm.read(port - pm::BASE, size, now),
            _ => read_bytes(port, size, |port| self.read_byte(port, now)),
        };
        self.settle();
        value
    }

    fn port_out(&mut self, who: Ident, port: u16, size: u8, value: u32) {
        let now = self.touch(who);
        match port {
            _ if is_pci(port, size) => self.pci.port_write(port, size, value),
            _ if is_testdev(port) => self.testdev.write(port, size, value),
            DEBUG_EXIT => self.ending = Some(Ending::DebugExit(exit_status(value))),
            fw_cfg::SELECTOR | fw_cfg::DATA => self.fw_cfg.write(port, size, value),
            pm::BASE.. if port < pm::BASE + pm::SIZE => self.pm.write(port - pm::BASE, size, value, now),
            _ => write_bytes(port, size, value, |port, byte| self.write_byte(who, port, byte, now)),
        }
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
