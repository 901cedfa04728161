//! Tests of the interrupt controllers, connected as on a board: from an input of the I/O APIC to the vector that a
//! processor takes.

use super::ioapic::{Delivery, IoApic, decode_msi};
use super::lapic::{Interrupt, Lapic, LapicConfig, TIMER_HZ, route};
use super::pic::Pic;
use super::pit::Pit;
use super::{Clock, Line};

const CLOCK: Clock = Clock::new(2_000_000_000);
const LINE: u8 = 14;
const LEVEL: u64 = 1 << 15;
const MASKED: u64 = 1 << 16;
const LOGICAL: u64 = 1 << 11;

struct Wires {
    pic: Pic,
    ioapic: IoApic,
    lapics: Vec<Lapic>,
}

impl Wires {
    fn new(cpus: u32) -> Self {
        let config =
            |id| LapicConfig { id, bsp: id == 0, x2apic: true, physical_bits: 40, clock: CLOCK, timer_hz: TIMER_HZ };
        let mut wires = Self {
            pic: Pic::as_firmware_leaves(),
            ioapic: IoApic::new(0),
            lapics: (0..cpus).map(|id| Lapic::new(config(id))).collect(),
        };
        (0..cpus as usize).for_each(|cpu| wires.lapic_write(cpu, 0xf0, 0x1ff));
        wires
    }

    fn settle(&mut self) {
        loop {
            let mut messages = Vec::new();
            for lapic in &mut self.lapics {
                std::iter::from_fn(|| lapic.pop_eoi()).for_each(|vector| self.ioapic.eoi(vector));
                messages.extend(std::iter::from_fn(|| lapic.pop_message()));
            }
            messages.extend(std::iter::from_fn(|| self.ioapic.pop_message()));
            if messages.is_empty() {
                break;
            }
            messages.iter().for_each(|message| {
                route(&mut self.lapics, message);
            });
        }
        let intr = self.pic.intr();
        self.lapics[0].set_lint(0, intr);
    }

    fn lapic_write(&mut self, cpu: usize, offset: u64, value: u64) {
        self.lapics[cpu].mmio_write(offset, 4, value, 0);
        self.settle();
    }

    fn set_line(&mut self, level: bool) {
        self.ioapic.set_irq(LINE, level);
        self.settle();
    }

    fn set_entry(&mut self, value: u64) {
        for (half, value) in [(1, value >> 32), (0, value & 0xffff_ffff)] {
            self.ioapic.write(0, 4, 0x10 + 2 * u64::from(LINE) + half);
            self.ioapic.write(0x10, 4, value);
        }
        self.settle();
    }

    fn remote_irr(&mut self) -> bool {
        self.ioapic.write(0, 4, 0x10 + 2 * u64::from(LINE));
        self.ioapic.read(0x10, 4) & 1 << 14 != 0
    }

    /// Takes the interrupt that waits for a processor, as the processor would.
    fn take(&mut self, cpu: usize) -> Option<u8> {
        let vector = match self.lapics[cpu].interrupt()? {
            Interrupt::Vector(_) => self.lapics[cpu].acknowledge(),
            Interrupt::ExtInt => {
                self.lapics[cpu].acknowledge_extint();
                Some(self.pic.acknowledge())
            }
        };
        self.settle();
        vector
    }

    fn eoi(&mut self, cpu: usize) {
        self.lapic_write(cpu, 0xb0, 0);
    }
}

#[test]
fn simultaneous_interrupts_come_by_priority() {
    let mut wires = Wires::new(1);
    for (line, vector) in [(15, 0x66), (14, 0x78)] {
        wires.ioapic.write(0, 4, 0x10 + 2 * line);
        wires.ioapic.write(0x10, 4, vector);
        [true, false].into_iter().for_each(|level| wires.ioapic.set_irq(line as u8, level));
        wires.settle();
    }
    assert_eq!([wires.take(0), wires.take(0)], [Some(0x78), None]);
    wires.eoi(0);
    assert_eq!(wires.take(0), Some(0x66));
}

#[test]
fn level_interrupts_until_the_line_drops() {
    let mut wires = Wires::new(1);
    wires.set_entry(LEVEL | 0x77);
    wires.set_line(true);
    for _ in 0..3 {
        assert_eq!(wires.take(0), Some(0x77));
        assert!(wires.remote_irr());
        wires.eoi(0);
    }
    assert_eq!(wires.take(0), Some(0x77));
    wires.set_line(false);
    wires.eoi(0);
    assert_eq!((wires.take(0), wires.remote_irr()), (None, false));
}

#[test]
fn level_masked_while_in_service_comes_back_when_unmasked() {
    let mut wires = Wires::new(1);
    wires.set_entry(LEVEL | 0x77);
    wires.set_line(true);
    assert_eq!(wires.take(0), Some(0x77));
    wires.set_entry(LEVEL | MASKED | 0x77);
    wires.eoi(0);
    assert_eq!((wires.take(0), wires.remote_irr()), (None, false));
    wires.set_entry(LEVEL | 0x77);
    assert_eq!(wires.take(0), Some(0x77));
}

#[test]
fn handler_that_drops_the_line_and_moves_the_destination() {
    let mut wires = Wires::new(2);
    wires.set_entry(LEVEL | 0x84);
    wires.set_line(true);
    assert_eq!(wires.take(0), Some(0x84));
    wires.set_line(false);
    wires.set_entry(1 << 56 | LEVEL | 0x84);
    wires.eoi(0);
    assert!(!wires.remote_irr());
    wires.set_line(true);
    assert_eq!([wires.take(0), wires.take(1)], [None, Some(0x84)]);
}

#[test]
fn destinations_select_processors() {
    // (entry, processors)
    for (entry, expected) in [
        (1 << 56, [false, true, false, false]),
        (0xff << 56, [true; 4]),
        (0b1010 << 56 | LOGICAL, [false, true, false, true]),
        (0b0101 << 56 | LOGICAL | 1 << 8, [true, false, false, false]),
    ] {
        let mut wires = Wires::new(4);
        (0..4).for_each(|cpu| wires.lapic_write(cpu, 0xd0, 1 << (24 + cpu)));
        wires.set_entry(entry | 0x85);
        wires.set_line(true);
        assert_eq!([0, 1, 2, 3].map(|cpu| wires.take(cpu).is_some()), expected, "{entry:#x}");
    }
}

#[test]
fn trigger_mode_register_follows_the_entry() {
    let mut wires = Wires::new(1);
    for (trigger, expected) in [(0, 0), (LEVEL, 1 << 24), (0, 0)] {
        wires.set_entry(trigger | 0x78);
        wires.set_line(true);
        assert_eq!(wires.take(0), Some(0x78));
        assert_eq!(wires.lapics[0].mmio_read(0x1b0, 4, 0), expected);
        wires.set_line(false);
        wires.eoi(0);
    }
}

#[test]
fn timer_reaches_the_processor_through_the_8259_in_virtual_wire_mode() {
    let mut wires = Wires::new(1);
    wires.lapics[0].set_virtual_wire();
    let mut pit = Pit::as_firmware_leaves(CLOCK, 0);
    for _ in 0..3 {
        let due = pit.next_event().expect("running");
        pit.advance(due);
        pit.irq.drain(|level| wires.pic.set_irq(0, level));
        wires.settle();
        assert_eq!([wires.take(0), wires.take(0)], [Some(0x08), None]);
        wires.pic.write(0x20, 0x20);
        wires.settle();
    }
}

#[test]
fn all_but_self_startup_sequence() {
    let mut wires = Wires::new(3);
    for (icr, init, page) in [(0x000c_c500, true, None), (0x000c_4600, false, Some(0))] {
        wires.lapic_write(0, 0x300, icr);
        let taken: Vec<_> = wires.lapics.iter_mut().map(|lapic| (lapic.take_init(), lapic.take_startup())).collect();
        assert_eq!(taken, [(false, None), (init, page), (init, page)]);
    }
}

#[test]
fn msi_reaches_its_processor() {
    let mut wires = Wires::new(2);
    let message = decode_msi(0xfee0_1000, 0x0041).expect("an MSI");
    assert_eq!(message.delivery, Delivery::Fixed);
    assert!(route(&mut wires.lapics, &message));
    assert_eq!([wires.take(0), wires.take(1)], [None, Some(0x41)]);
}

#[test]
fn a_line_pulse_between_drains_is_one_interrupt() {
    let mut wires = Wires::new(1);
    wires.set_entry(0x50);
    let mut line = Line::default();
    (0..3).for_each(|_| line.strobe());
    line.set(false);
    line.drain(|level| wires.ioapic.set_irq(LINE, level));
    wires.settle();
    assert_eq!(wires.take(0), Some(0x50));
    wires.eoi(0);
    assert_eq!(wires.take(0), None);
}
