//! Two cascaded 8259A interrupt controllers with their edge/level registers (ELCR).
//!
//! An edge is latched in IRR until it is acknowledged, even if the line drops before, as in hypervisors (a real 8259A
//! turns that into a spurious interrupt). A level that drops withdraws its request: an acknowledgement then returns the
//! spurious vector, IRQ 7 or IRQ 15.

use crate::device::{At, Claim, Device, DeviceContext};
use crate::state::{Plain, StateError, require, same};
use serde::{Deserialize, Serialize};

/// Command and data ports of master and slave, and the edge/level registers.
pub const PORTS: [u16; 6] = [0x20, 0x21, 0xa0, 0xa1, 0x4d0, 0x4d1];

/// Master input to which the slave is connected.
const CASCADE: u8 = 2;

/// Meaning of the next write to the data port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum Expect {
    /// OCW1: the mask.
    #[default]
    Mask,
    /// ICW2: the vector base.
    Base,
    /// ICW3: the cascade wiring (fixed here).
    Wiring,
    /// ICW4: the mode.
    Mode,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Chip {
    irr: u8,
    isr: u8,
    imr: u8,
    lines: u8,
    elcr: u8,
    elcr_writable: u8,
    base: u8,
    expect: Expect,
    single: bool,
    wants_icw4: bool,
    level_mode: bool,
    auto_eoi: bool,
    rotate_on_auto_eoi: bool,
    special_mask: bool,
    fully_nested_cascade: bool,
    read_isr: bool,
    poll: bool,
    /// Input of highest priority.
    top: u8,
}

impl Chip {
    fn new(elcr_writable: u8) -> Self {
        Self { elcr_writable, ..Self::default() }
    }

    fn levels(&self) -> u8 {
        if self.level_mode { 0xff } else { self.elcr }
    }

    fn set_irq(&mut self, input: u8, level: bool) {
        let bit = 1u8 << (input & 7);
        if level {
            if self.levels() & bit != 0 || self.lines & bit == 0 {
                self.irr |= bit;
            }
            self.lines |= bit;
        } else {
            if self.levels() & bit != 0 {
                self.irr &= !bit;
            }
            self.lines &= !bit;
        }
    }

    /// Returns the rank (0 is highest) of the most urgent input in `set`, or 8 if there is none.
    fn rank(&self, set: u8) -> u32 {
        set.rotate_right(u32::from(self.top)).trailing_zeros()
    }

    fn input(&self, rank: u32) -> u8 {
        (rank as u8).wrapping_add(self.top) & 7
    }

    /// Returns the input that would be served now.
    fn request(&self) -> Option<u8> {
        let wanted = self.rank(self.irr & !self.imr);
        let mut serving = self.isr;
        if self.special_mask {
            serving &= !self.imr;
        }
        if self.fully_nested_cascade {
            serving &= !(1 << CASCADE);
        }
        (wanted < self.rank(serving)).then(|| self.input(wanted))
    }

    fn take(&mut self, input: u8) {
        let bit = 1u8 << input;
        if self.levels() & bit == 0 {
            self.irr &= !bit;
        }
        if !self.auto_eoi {
            self.isr |= bit;
        } else if self.rotate_on_auto_eoi {
            self.top = (input + 1) & 7;
        }
    }

    fn command(&mut self, value: u8) {
        if value & 0x10 != 0 {
            self.initialize(value);
        } else if value & 0x08 != 0 {
            if value & 0x04 != 0 {
                self.poll = true;
            }
            if value & 0x02 != 0 {
                self.read_isr = value & 0x01 != 0;
            }
            if value & 0x40 != 0 {
                self.special_mask = value & 0x20 != 0;
            }
        } else {
            self.end_of_interrupt(value >> 5, value & 7);
        }
    }

    /// Handles ICW1. The edge detectors restart: a line that is already high must fall before it requests again.
    fn initialize(&mut self, value: u8) {
        let level_mode = value & 0x08 != 0;
        let levels = if level_mode { 0xff } else { self.elcr };
        *self = Self {
            irr: self.lines & levels,
            lines: self.lines,
            elcr: self.elcr,
            elcr_writable: self.elcr_writable,
            expect: Expect::Base,
            single: value & 0x02 != 0,
            wants_icw4: value & 0x01 != 0,
            level_mode,
            ..Self::default()
        };
    }

    /// Handles OCW2.
    fn end_of_interrupt(&mut self, command: u8, input: u8) {
        match command {
            0 | 4 => self.rotate_on_auto_eoi = command == 4,
            1 | 5 => {
                let masked = if self.special_mask { self.imr } else { 0 };
                let rank = self.rank(self.isr & !masked);
                if rank < 8 {
                    let served = self.input(rank);
                    self.isr &= !(1 << served);
                    if command == 5 {
                        self.top = (served + 1) & 7;
                    }
                }
            }
            3 | 7 => {
                self.isr &= !(1 << input);
                if command == 7 {
                    self.top = (input + 1) & 7;
                }
            }
            6 => self.top = (input + 1) & 7,
            _ => {}
        }
    }

    fn data(&mut self, value: u8) {
        self.expect = match self.expect {
            Expect::Mask => {
                self.imr = value;
                Expect::Mask
            }
            Expect::Base => {
                self.base = value & 0xf8;
                match (self.single, self.wants_icw4) {
                    (false, _) => Expect::Wiring,
                    (true, true) => Expect::Mode,
                    (true, false) => Expect::Mask,
                }
            }
            Expect::Wiring if self.wants_icw4 => Expect::Mode,
            Expect::Wiring => Expect::Mask,
            Expect::Mode => {
                self.auto_eoi = value & 0x02 != 0;
                self.fully_nested_cascade = value & 0x10 != 0;
                Expect::Mask
            }
        };
    }

    fn read(&mut self, data: bool) -> u8 {
        if self.poll {
            self.poll = false;
            return self.request().map_or(0, |input| {
                self.take(input);
                0x80 | input
            });
        }
        match (data, self.read_isr) {
            (true, _) => self.imr,
            (false, true) => self.isr,
            (false, false) => self.irr,
        }
    }
}

/// The pair of controllers: IRQ 0–7 on the master, IRQ 8–15 on the slave, which is connected to the master's input 2.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pic {
    master: Chip,
    slave: Chip,
}

impl Default for Pic {
    fn default() -> Self {
        Self::new()
    }
}

impl Pic {
    /// Creates the controllers in their power-on state, not initialized.
    pub fn new() -> Self {
        Self { master: Chip::new(0xf8), slave: Chip::new(0xde) }
    }

    /// Creates the controllers in the state in which a PC BIOS leaves them: IRQ 0–7 at vector 8, IRQ 8–15 at 0x70,
    /// timer and cascade unmasked.
    pub fn as_firmware_leaves() -> Self {
        let mut pic = Self::new();
        pic.master.base = 0x08;
        pic.master.imr = !0x05;
        pic.slave.base = 0x70;
        pic.slave.imr = 0xff;
        pic
    }

    /// Drives an input. IRQ 2 is the cascade and has no line.
    pub fn set_irq(&mut self, irq: u8, level: bool) {
        match irq {
            CASCADE => {}
            0..8 => self.master.set_irq(irq, level),
            8..16 => self.slave.set_irq(irq - 8, level),
            _ => {}
        }
        self.cascade();
    }

    fn cascade(&mut self) {
        let request = self.slave.request().is_some();
        self.master.set_irq(CASCADE, request);
        if !request {
            self.master.irr &= !(1 << CASCADE);
        }
    }

    /// Returns the level of the INTR output.
    pub fn intr(&self) -> bool {
        self.master.request().is_some()
    }

    /// Executes the INTA cycles. Returns the vector of the interrupt that is now in service, or the spurious vector.
    pub fn acknowledge(&mut self) -> u8 {
        let Some(input) = self.master.request() else { return self.master.base | 7 };
        self.master.take(input);
        if input != CASCADE {
            return self.master.base | input;
        }
        let inner = self.slave.request();
        if let Some(inner) = inner {
            self.slave.take(inner);
        }
        // The slave drops its output during INTA and raises it again if requests remain.
        self.master.set_irq(CASCADE, false);
        self.cascade();
        self.slave.base | inner.unwrap_or(7)
    }

    /// Reads one of [`PORTS`].
    pub fn read(&mut self, port: u16) -> u8 {
        let value = match port {
            0x20 | 0x21 => self.master.read(port == 0x21),
            0xa0 | 0xa1 => self.slave.read(port == 0xa1),
            0x4d0 => self.master.elcr,
            0x4d1 => self.slave.elcr,
            _ => 0xff,
        };
        self.cascade();
        value
    }

    /// Writes one of [`PORTS`].
    pub fn write(&mut self, port: u16, value: u8) {
        match port {
            0x20 => self.master.command(value),
            0x21 => self.master.data(value),
            0xa0 => self.slave.command(value),
            0xa1 => self.slave.data(value),
            0x4d0 => self.master.elcr = value & self.master.elcr_writable,
            0x4d1 => self.slave.elcr = value & self.slave.elcr_writable,
            _ => {}
        }
        self.cascade();
    }
}

const CLAIMS: &[Claim] = &[Claim::bytes("PIC", 0x20, 2), Claim::bytes("PIC", 0xa0, 2), Claim::bytes("PIC", 0x4d0, 2)];

impl Device for Pic {
    fn claims(&self) -> &'static [Claim] {
        CLAIMS
    }

    fn read(&mut self, at: At, _ctx: &mut DeviceContext) -> u64 {
        Pic::read(self, at.port(CLAIMS)).into()
    }

    fn write(&mut self, at: At, value: u64, _ctx: &mut DeviceContext) {
        Pic::write(self, at.port(CLAIMS), value as u8);
    }

    fn reset(&mut self, _ctx: &mut DeviceContext) {
        *self = Self::as_firmware_leaves();
    }
}

impl Chip {
    fn check(&self, current: &Self) -> Result<(), StateError> {
        same(&self.elcr_writable, &current.elcr_writable, "PIC")?;
        require(self.top < 8 && self.base & 7 == 0 && self.elcr & !self.elcr_writable == 0, "registers of a PIC")
    }
}

impl Plain for Pic {
    fn check(&self, current: &Self) -> Result<(), StateError> {
        self.master.check(&current.master)?;
        self.slave.check(&current.slave)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn initialized(icw4: u8) -> Pic {
        let mut pic = Pic::new();
        for (port, base, wiring) in [(0x20, 0x30, 4), (0xa0, 0x38, 2)] {
            pic.write(port, 0x11);
            pic.write(port + 1, base);
            pic.write(port + 1, wiring);
            pic.write(port + 1, icw4);
            pic.write(port + 1, 0);
        }
        pic
    }

    fn pulse(pic: &mut Pic, irq: u8) {
        pic.set_irq(irq, true);
        pic.set_irq(irq, false);
    }

    fn isr(pic: &mut Pic, port: u16) -> u8 {
        pic.write(port, 0x0b);
        pic.read(port)
    }

    #[test]
    fn every_line_has_its_vector() {
        for irq in (0..16).filter(|&irq| irq != 2) {
            let mut pic = initialized(1);
            pulse(&mut pic, irq);
            assert!(pic.intr(), "irq {irq}");
            assert_eq!(pic.acknowledge(), 0x30 + irq);
            assert!(!pic.intr());
        }
    }

    #[test]
    fn higher_priority_nests_and_lower_waits_for_eoi() {
        let mut pic = initialized(1);
        pulse(&mut pic, 4);
        assert_eq!(pic.acknowledge(), 0x34);
        pulse(&mut pic, 5);
        assert!(!pic.intr());
        pulse(&mut pic, 1);
        assert_eq!(pic.acknowledge(), 0x31);
        pic.write(0x20, 0x20);
        assert_eq!(isr(&mut pic, 0x20), 0x10);
        assert!(!pic.intr());
        pic.write(0x20, 0x20);
        assert_eq!(pic.acknowledge(), 0x35);
    }

    #[test]
    fn slave_interrupts_back_to_back() {
        let mut pic = initialized(1);
        pulse(&mut pic, 9);
        pulse(&mut pic, 10);
        assert_eq!(pic.acknowledge(), 0x39);
        assert!(!pic.intr());
        pic.write(0xa0, 0x20);
        assert!(!pic.intr(), "the master still serves its input 2");
        pic.write(0x20, 0x20);
        assert_eq!(pic.acknowledge(), 0x3a);
    }

    #[test]
    fn held_edge_requests_once_and_held_level_again_after_eoi() {
        for (elcr, again) in [(0x00, false), (0x20, true)] {
            let mut pic = initialized(1);
            pic.write(0x4d0, elcr);
            pic.set_irq(5, true);
            assert_eq!(pic.acknowledge(), 0x35);
            pic.write(0x20, 0x65);
            assert_eq!(pic.intr(), again, "elcr {elcr:#x}");
        }
    }

    #[test]
    fn level_that_drops_is_spurious() {
        for (elcr, irq, vector) in [(0x4d0, 5, 0x37), (0x4d1, 10, 0x37)] {
            let mut pic = initialized(1);
            pic.write(elcr, 0xff);
            pic.set_irq(irq, true);
            assert!(pic.intr());
            pic.set_irq(irq, false);
            assert_eq!(pic.acknowledge(), vector);
            assert_eq!(isr(&mut pic, 0x20), 0, "a spurious interrupt is not in service");
        }
    }

    #[test]
    fn elcr_keeps_system_lines_edge_triggered() {
        let mut pic = initialized(1);
        pic.write(0x4d0, 0xff);
        pic.write(0x4d1, 0xff);
        assert_eq!((pic.read(0x4d0), pic.read(0x4d1)), (0xf8, 0xde));
    }

    #[test]
    fn auto_eoi_leaves_nothing_in_service() {
        let mut pic = initialized(3);
        pulse(&mut pic, 12);
        assert_eq!(pic.acknowledge(), 0x3c);
        assert_eq!((isr(&mut pic, 0x20), isr(&mut pic, 0xa0)), (0, 0));
    }

    #[test]
    fn rotation_moves_the_lowest_priority() {
        let mut pic = initialized(1);
        pulse(&mut pic, 3);
        assert_eq!(pic.acknowledge(), 0x33);
        pic.write(0x20, 0xa0);
        pulse(&mut pic, 0);
        pulse(&mut pic, 4);
        assert_eq!(pic.acknowledge(), 0x34, "after rotation 4 is highest");
        pic.write(0x20, 0x20);
        pic.write(0x20, 0xc7);
        assert_eq!(pic.acknowledge(), 0x30);
    }

    #[test]
    fn special_mask_lets_lower_priorities_through() {
        let mut pic = initialized(1);
        pulse(&mut pic, 1);
        pic.acknowledge();
        pic.write(0x21, 0x02);
        pulse(&mut pic, 6);
        assert!(!pic.intr());
        pic.write(0x20, 0x68);
        assert_eq!(pic.acknowledge(), 0x36);
        pic.write(0x20, 0x20);
        assert_eq!(isr(&mut pic, 0x20), 0x02, "a masked level is not ended by a non-specific EOI");
    }

    #[test]
    fn poll_acknowledges_by_reading() {
        let mut pic = initialized(1);
        pulse(&mut pic, 6);
        pic.write(0x20, 0x0c);
        assert_eq!(pic.read(0x20), 0x86);
        assert!(!pic.intr());
        pic.write(0x20, 0x0c);
        assert_eq!(pic.read(0x20), 0);
    }

    #[test]
    fn initialization_needs_a_new_edge() {
        let mut pic = initialized(1);
        pic.set_irq(3, true);
        pic.write(0x20, 0x11);
        for value in [0x40, 4, 1, 0] {
            pic.write(0x21, value);
        }
        assert!(!pic.intr());
        pic.set_irq(3, false);
        pic.set_irq(3, true);
        assert_eq!(pic.acknowledge(), 0x43);
    }

    #[test]
    fn firmware_maps_irq_11_to_0x73() {
        let mut pic = Pic::as_firmware_leaves();
        pic.write(0xa1, 0);
        pulse(&mut pic, 11);
        assert_eq!(pic.acknowledge(), 0x73);
    }

    #[test]
    fn masked_cascade_request_is_withdrawn() {
        let mut pic = initialized(1);
        pulse(&mut pic, 11);
        pic.write(0xa1, 0xff);
        assert!(!pic.intr());
        pic.write(0xa1, 0);
        assert_eq!(pic.acknowledge(), 0x3b);
    }

    proptest! {
        #[test]
        fn random_accesses_do_not_panic(ops in prop::collection::vec((0..9usize, any::<u8>(), 0..18u8), 0..200)) {
            let mut pic = Pic::new();
            for (op, value, irq) in ops {
                match op {
                    0..6 if value & 1 == 0 => { pic.read(PORTS[op]); }
                    0..6 => pic.write(PORTS[op], value),
                    6 => pic.set_irq(irq, value & 1 != 0),
                    7 if pic.intr() => { pic.acknowledge(); }
                    _ => { pic.acknowledge(); }
                }
            }
        }
    }
}
