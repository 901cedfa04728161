//! The I/O APIC (version 0x20, 24 inputs), and the interrupt messages that the I/O APIC, MSIs and local APICs send.
//!
//! Inputs are logical: `set_irq(n, true)` means asserted, independently of the polarity in the redirection entry.

use crate::device::{At, Claim, Device, DeviceContext};
use crate::state::{Plain, StateError, require, same};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Base address.
pub const BASE: u64 = 0xfec0_0000;
/// Size of the decoded address range.
pub const SIZE: u64 = 0x1000;
/// Number of inputs.
pub const LINES: usize = 24;

/// Delivery mode of an interrupt message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Delivery {
    /// The vector, to every destination.
    Fixed,
    /// The vector, to the destination with the lowest priority.
    LowestPriority,
    /// System management interrupt; this board has none.
    Smi,
    /// Non-maskable interrupt.
    Nmi,
    /// INIT: wait for start-up.
    Init,
    /// Start-up; the vector is the page of the entry point.
    StartUp,
    /// An interrupt whose vector comes from the 8259A.
    ExtInt,
}

impl Delivery {
    /// Decodes the delivery mode field. Returns `None` for the reserved value.
    pub fn from_bits(bits: u32) -> Option<Self> {
        Some(match bits & 7 {
            0 => Delivery::Fixed,
            1 => Delivery::LowestPriority,
            2 => Delivery::Smi,
            4 => Delivery::Nmi,
            5 => Delivery::Init,
            6 => Delivery::StartUp,
            7 => Delivery::ExtInt,
            _ => return None,
        })
    }
}

/// Destination of an interrupt message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target {
    /// The local APIC with this ID, or all (0xff; from an x2APIC 0xffff_ffff).
    Physical(u32),
    /// The local APICs whose logical ID matches.
    Logical(u32),
    /// Every local APIC.
    All,
    /// Every local APIC except the one with this initial ID.
    AllBut(u32),
    /// The local APIC with this initial ID.
    Only(u32),
}

/// A message to local APICs; [`super::lapic::route`] delivers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterruptMessage {
    /// Destination.
    pub target: Target,
    /// True if the destination is a 32-bit x2APIC destination.
    pub wide: bool,
    /// Delivery mode.
    pub delivery: Delivery,
    /// The vector.
    pub vector: u8,
    /// True if level-triggered: the EOI is broadcast to I/O APICs.
    pub level_triggered: bool,
}

/// Decodes a message-signalled interrupt. Returns `None` if the address is outside the interrupt range or the delivery
/// mode is reserved.
pub fn decode_msi(address: u64, data: u32) -> Option<InterruptMessage> {
    if address >> 20 != 0xfee {
        return None;
    }
    let destination = (address >> 12 & 0xff) as u32;
    let redirect = address & 1 << 3 != 0;
    let logical = address & 1 << 2 != 0;
    let delivery = match Delivery::from_bits(data >> 8)? {
        // The redirection hint selects one of the logical destinations.
        Delivery::Fixed if redirect && logical => Delivery::LowestPriority,
        delivery => delivery,
    };
    Some(InterruptMessage {
        target: if logical { Target::Logical(destination) } else { Target::Physical(destination) },
        wide: false,
        delivery,
        vector: data as u8,
        level_triggered: data & 1 << 15 != 0,
    })
}

/// Redirection entry fields.
mod entry {
    pub const LOGICAL: u64 = 1 << 11;
    pub const REMOTE_IRR: u64 = 1 << 14;
    pub const LEVEL: u64 = 1 << 15;
    pub const MASKED: u64 = 1 << 16;
    /// Writable bits: all except delivery status, remote IRR and reserved bits.
    pub const WRITABLE: u64 = 0xff00_0000_0001_afff;
}

/// The I/O APIC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IoApic {
    /// I/O APIC ID after reset.
    first_id: u32,
    id: u32,
    arbitration: u32,
    select: u8,
    entries: [u64; LINES],
    lines: u32,
    messages: VecDeque<InterruptMessage>,
}

impl IoApic {
    /// Creates an I/O APIC in its reset state, with every input masked.
    pub fn new(id: u8) -> Self {
        let id = u32::from(id & 0xf) << 24;
        let entries = [entry::MASKED; LINES];
        Self { first_id: id, id, arbitration: id, select: 0, entries, lines: 0, messages: VecDeque::new() }
    }

    /// Takes the next message for the local APICs.
    pub fn pop_message(&mut self) -> Option<InterruptMessage> {
        self.messages.pop_front()
    }

    /// Drives an input.
    pub fn set_irq(&mut self, input: u8, level: bool) {
        let input = usize::from(input);
        if input >= LINES {
            return;
        }
        let bit = 1 << input;
        let rose = level && self.lines & bit == 0;
        if level {
            self.lines |= bit;
        } else {
            self.lines &= !bit;
        }
        let entry = self.entries[input];
        if entry & entry::LEVEL != 0 {
            self.serve_level(input);
        } else if rose && entry & entry::MASKED == 0 {
            self.send(input);
        }
    }

    /// Sends a level-triggered interrupt that is asserted, unmasked, and not already in service.
    fn serve_level(&mut self, input: usize) {
        let entry = self.entries[input];
        let waiting = entry & (entry::LEVEL | entry::MASKED | entry::REMOTE_IRR) == entry::LEVEL;
        if waiting && self.lines & 1 << input != 0 {
            self.send(input);
        }
    }

    fn send(&mut self, input: usize) {
        let entry = self.entries[input];
        let Some(delivery) = Delivery::from_bits((entry >> 8) as u32) else { return };
        let level_triggered = entry & entry::LEVEL != 0;
        let accepted_by_vector = matches!(delivery, Delivery::Fixed | Delivery::LowestPriority);
        if level_triggered && accepted_by_vector {
            self.entries[input] |= entry::REMOTE_IRR;
        }
        let destination = (entry >> 56) as u32;
        let logical = entry & entry::LOGICAL != 0;
        self.messages.push_back(InterruptMessage {
            target: if logical { Target::Logical(destination) } else { Target::Physical(destination) },
            wide: false,
            delivery,
            vector: entry as u8,
            level_triggered: level_triggered && accepted_by_vector,
        });
    }

    /// Ends a level-triggered interrupt: the EOI is broadcast by a local APIC, or written to the EOI register.
    pub fn eoi(&mut self, vector: u8) {
        for input in 0..LINES {
            let entry = self.entries[input];
            if entry as u8 == vector && entry & entry::REMOTE_IRR != 0 {
                self.entries[input] &= !entry::REMOTE_IRR;
                self.serve_level(input);
            }
        }
    }

    /// Reads `size` bytes at `offset`.
    pub fn read(&self, offset: u64, size: u8) -> u64 {
        let value = match offset {
            0x00 => u32::from(self.select),
            0x10 => self.register(),
            _ => 0,
        };
        u64::from(value) & mask(size)
    }

    /// Writes `size` bytes at `offset`.
    pub fn write(&mut self, offset: u64, size: u8, value: u64) {
        let value = (value & mask(size)) as u32;
        match offset {
            0x00 => self.select = value as u8,
            0x10 => self.set_register(value),
            0x40 => self.eoi(value as u8),
            _ => {}
        }
    }

    fn selected_entry(&self) -> Option<(usize, u32)> {
        let index = usize::from(self.select.checked_sub(0x10)?);
        (index / 2 < LINES).then_some((index / 2, (index as u32 & 1) * 32))
    }

    fn register(&self) -> u32 {
        match self.select {
            0 => self.id,
            1 => (LINES as u32 - 1) << 16 | 0x20,
            2 => self.arbitration,
            _ => self.selected_entry().map_or(0, |(input, shift)| (self.entries[input] >> shift) as u32),
        }
    }

    fn set_register(&mut self, value: u32) {
        if self.select == 0 {
            self.id = value & 0x0f00_0000;
            self.arbitration = self.id;
        }
        let Some((input, shift)) = self.selected_entry() else { return };
        let writable = entry::WRITABLE & 0xffff_ffff << shift;
        let entry = &mut self.entries[input];
        *entry = *entry & !writable | u64::from(value) << shift & writable;
        if *entry & entry::LEVEL == 0 {
            *entry &= !entry::REMOTE_IRR;
        }
        self.serve_level(input);
    }
}

/// Returns the mask of the bytes that an access of `size` bytes carries.
fn mask(size: u8) -> u64 {
    u64::MAX >> (64 - 8 * u32::from(size.clamp(1, 8)))
}

const CLAIMS: &[Claim] = &[Claim::memory("I/O APIC", BASE..BASE + SIZE, 2)];

impl Device for IoApic {
    fn claims(&self) -> &'static [Claim] {
        CLAIMS
    }

    fn read(&mut self, at: At, _ctx: &mut DeviceContext) -> u64 {
        IoApic::read(self, at.offset, at.size)
    }

    fn write(&mut self, at: At, value: u64, _ctx: &mut DeviceContext) {
        IoApic::write(self, at.offset, at.size, value);
    }

    fn reset(&mut self, _ctx: &mut DeviceContext) {
        *self = Self::new((self.first_id >> 24) as u8);
    }
}

impl Plain for IoApic {
    fn check(&self, current: &Self) -> Result<(), StateError> {
        same(&self.first_id, &current.first_id, "I/O APIC")?;
        let ids = (self.id | self.arbitration) & !0x0f00_0000 == 0;
        let entries = self.entries.iter().all(|entry| entry & !(entry::WRITABLE | entry::REMOTE_IRR) == 0);
        require(ids && entries && self.lines >> LINES == 0, "registers of the I/O APIC")?;
        require(self.messages.is_empty(), "messages on their way")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EDGE: u64 = 0;

    fn set_entry(apic: &mut IoApic, input: u8, value: u64) {
        for (index, half) in [(0, value), (1, value >> 32)] {
            apic.write(0, 4, u64::from(0x10 + 2 * input) + index);
            apic.write(0x10, 4, half & 0xffff_ffff);
        }
    }

    fn get_entry(apic: &mut IoApic, input: u8) -> u64 {
        (0..2).fold(0, |value, index| {
            apic.write(0, 4, u64::from(0x10 + 2 * input) + index);
            value | IoApic::read(apic, 0x10, 4) << (32 * index)
        })
    }

    fn vectors(apic: &mut IoApic) -> Vec<u8> {
        std::iter::from_fn(|| apic.pop_message()).map(|message| message.vector).collect()
    }

    #[test]
    fn identification_registers() {
        let mut apic = IoApic::new(0);
        // (index, written, read back)
        for (index, written, expected) in [
            (1, 0xffff_ffff, 0x0017_0020),
            (0, 0xffff_ffff, 0x0f00_0000),
            (0, 0x0800_0000, 0x0800_0000),
            (2, 0, 0x0800_0000),
            (0x50, 0xffff_ffff, 0),
        ] {
            apic.write(0, 4, index);
            apic.write(0x10, 4, written);
            assert_eq!(apic.read(0x10, 4), expected, "index {index:#x}");
        }
    }

    #[test]
    fn edges_send_once_each_and_are_lost_while_masked() {
        let mut apic = IoApic::new(0);
        set_entry(&mut apic, 14, EDGE | 0x76);
        for level in [true, true, false, true, false] {
            apic.set_irq(14, level);
        }
        assert_eq!(vectors(&mut apic), [0x76, 0x76]);
        set_entry(&mut apic, 14, entry::MASKED | 0x76);
        apic.set_irq(14, true);
        set_entry(&mut apic, 14, 0x76);
        assert!(vectors(&mut apic).is_empty());
    }

    #[test]
    fn level_waits_for_eoi_and_sends_again() {
        let mut apic = IoApic::new(0);
        set_entry(&mut apic, 14, entry::LEVEL | 0x82);
        apic.set_irq(14, true);
        assert_eq!(vectors(&mut apic), [0x82]);
        assert_ne!(get_entry(&mut apic, 14) & entry::REMOTE_IRR, 0);
        apic.set_irq(14, false);
        apic.set_irq(14, true);
        assert!(vectors(&mut apic).is_empty());
        apic.eoi(0x81);
        assert!(vectors(&mut apic).is_empty());
        apic.write(0x40, 4, 0x82);
        assert_eq!(vectors(&mut apic), [0x82]);
        apic.set_irq(14, false);
        apic.eoi(0x82);
        assert_eq!(get_entry(&mut apic, 14) & entry::REMOTE_IRR, 0);
        assert!(vectors(&mut apic).is_empty());
    }

    #[test]
    fn unmasking_an_asserted_level_sends() {
        let mut apic = IoApic::new(0);
        set_entry(&mut apic, 5, entry::LEVEL | entry::MASKED | 0x83);
        apic.set_irq(5, true);
        assert!(vectors(&mut apic).is_empty());
        set_entry(&mut apic, 5, entry::LEVEL | 0x83);
        assert_eq!(vectors(&mut apic), [0x83]);
    }

    #[test]
    fn remote_irr_is_read_only_and_cleared_by_edge_mode() {
        let mut apic = IoApic::new(0);
        set_entry(&mut apic, 5, entry::LEVEL | 0x83);
        apic.set_irq(5, true);
        set_entry(&mut apic, 5, entry::LEVEL | entry::MASKED | 0x83);
        assert_ne!(get_entry(&mut apic, 5) & entry::REMOTE_IRR, 0);
        set_entry(&mut apic, 5, entry::MASKED | 0x83);
        assert_eq!(get_entry(&mut apic, 5) & entry::REMOTE_IRR, 0);
        set_entry(&mut apic, 6, entry::REMOTE_IRR | entry::MASKED);
        assert_eq!(get_entry(&mut apic, 6), entry::MASKED);
    }

    #[test]
    fn destination_and_mode_reach_the_message() {
        let table = [
            (0x0100_0000_0000_0030, Target::Physical(1), Delivery::Fixed),
            (0x0300_0000_0000_0930, Target::Logical(3), Delivery::LowestPriority),
            (0xff00_0000_0000_0430, Target::Physical(0xff), Delivery::Nmi),
            (0x0000_0000_0000_0530, Target::Physical(0), Delivery::Init),
            (0x0000_0000_0000_0730, Target::Physical(0), Delivery::ExtInt),
        ];
        for (value, target, delivery) in table {
            let mut apic = IoApic::new(0);
            set_entry(&mut apic, 3, value);
            apic.set_irq(3, true);
            let expected = InterruptMessage { target, wide: false, delivery, vector: 0x30, level_triggered: false };
            assert_eq!(apic.pop_message(), Some(expected), "{value:#x}");
        }
    }

    #[test]
    fn msi_decodes() {
        let message = |target, delivery, level_triggered| {
            Some(InterruptMessage { target, wide: false, delivery, vector: 0x41, level_triggered })
        };
        let table = [
            (0xfee0_2000, 0x0041, message(Target::Physical(2), Delivery::Fixed, false)),
            (0xfee0_3004, 0x0041, message(Target::Logical(3), Delivery::Fixed, false)),
            (0xfee0_300c, 0x0041, message(Target::Logical(3), Delivery::LowestPriority, false)),
            (0xfee0_1000, 0xc441, message(Target::Physical(1), Delivery::Nmi, true)),
            (0xfee0_1000, 0x0341, None),
            (0xfed0_1000, 0x0041, None),
            (0x1_fee0_1000, 0x0041, None),
        ];
        for (address, data, expected) in table {
            assert_eq!(decode_msi(address, data), expected, "{address:#x} {data:#x}");
        }
    }

    proptest! {
        #[test]
        fn random_accesses_do_not_panic(ops in prop::collection::vec((0..5u8, any::<u8>(), any::<u32>()), 0..200)) {
            let mut apic = IoApic::new(1);
            for (op, select, value) in ops {
                match op {
                    0 => apic.write(0, select, u64::from(select)),
                    1 => apic.write(0x10, 4, u64::from(value)),
                    2 => { apic.read(u64::from(value), select); }
                    3 => apic.set_irq(select % 32, value & 1 != 0),
                    _ => apic.eoi(select),
                }
                apic.pop_message();
            }
        }
    }
}
