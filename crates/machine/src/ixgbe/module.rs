//! The module in the SFP+ cage, a passive direct attach cable, and the I2C bus to its memory (SFF-8472; 82599
//! datasheet, I2CCTL). The driver controls clock and data directly (bit-banging).

use serde::{Deserialize, Serialize};

/// Bits of I2CCTL.
const CLOCK_IN: u32 = 1 << 0;
const CLOCK_OUT: u32 = 1 << 1;
const DATA_IN: u32 = 1 << 2;
const DATA_OUT: u32 = 1 << 3;

/// I2C address of the module's memory, without the direction bit.
const ADDRESS: u8 = 0xa0 >> 1;

/// Phase of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Phase {
    Idle,
    /// The module receives its address, the memory offset, or data, which it ignores.
    Address,
    Pointer,
    Write,
    Read,
}

/// The bus, and the module connected to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bus {
    clock: bool,
    data: bool,
    /// True if the module holds the data line low.
    low: bool,
    phase: Phase,
    /// Bits of the current byte, and their number; the ninth bit is the acknowledge.
    byte: u8,
    bits: u8,
    answered: bool,
    /// Offset of the next byte that is read.
    pointer: u8,
}

impl Default for Bus {
    fn default() -> Self {
        Self { clock: true, data: true, low: false, phase: Phase::Idle, byte: 0, bits: 0, answered: false, pointer: 0 }
    }
}

impl Bus {
    /// Returns the value of I2CCTL.
    pub fn read(&self) -> u32 {
        let wires = [(self.clock, CLOCK_IN | CLOCK_OUT), (self.data, DATA_OUT), (self.data && !self.low, DATA_IN)];
        wires.iter().filter(|(high, _)| *high).map(|(_, bits)| bits).sum()
    }

    /// Handles a write to I2CCTL.
    pub fn write(&mut self, value: u32) {
        let (clock, data) = (value & CLOCK_OUT != 0, value & DATA_OUT != 0);
        if self.clock && clock && self.data != data {
            // A falling data line is a start condition, a rising one a stop condition.
            (self.low, self.bits, self.byte) = (false, 0, 0);
            self.phase = if data { Phase::Idle } else { Phase::Address };
        }
        let (rises, falls) = (!self.clock && clock, self.clock && !clock);
        (self.clock, self.data) = (clock, data);
        if rises {
            self.sample();
        } else if falls {
            self.next();
        }
    }

    /// Takes one bit from the driver.
    fn sample(&mut self) {
        if self.phase == Phase::Idle {
            return;
        }
        if self.bits < 8 {
            if self.phase != Phase::Read {
                self.byte = self.byte << 1 | u8::from(self.data);
            }
        } else {
            self.answered = !self.data;
        }
        self.bits = (self.bits + 1).min(9);
    }

    /// Puts the module's next bit on the data line.
    fn next(&mut self) {
        match (self.phase, self.bits) {
            (Phase::Idle, _) | (Phase::Address | Phase::Pointer | Phase::Write, 0..8) => {}
            (Phase::Address, 8) => {
                self.low = self.byte >> 1 == ADDRESS;
                if !self.low {
                    self.phase = Phase::Idle;
                }
            }
            (Phase::Pointer, 8) => (self.low, self.pointer) = (true, self.byte),
            (Phase::Write, 8) => self.low = true,
            (Phase::Address, _) if self.byte & 1 == 0 => self.begin(Phase::Pointer),
            (Phase::Address, _) => self.send(),
            (Phase::Pointer | Phase::Write, _) => self.begin(Phase::Write),
            (Phase::Read, 0..8) => self.low = self.byte >> (7 - self.bits) & 1 == 0,
            (Phase::Read, 8) => self.low = false,
            (Phase::Read, _) if self.answered => {
                self.pointer = self.pointer.wrapping_add(1);
                self.send();
            }
            (Phase::Read, _) => self.begin(Phase::Idle),
        }
    }

    fn begin(&mut self, phase: Phase) {
        (self.phase, self.bits, self.byte, self.low) = (phase, 0, 0, false);
    }

    fn send(&mut self) {
        self.begin(Phase::Read);
        self.byte = memory(self.pointer);
        self.low = self.byte >> 7 == 0;
    }

    /// Returns true if the restored state is possible.
    pub fn is_possible(&self) -> bool {
        self.bits <= 9
    }
}

/// The module's memory: fields of SFF-8472 and their offsets.
const FIELDS: [(u8, &[u8]); 13] = [
    // SFP, two-wire interface, copper pigtail.
    (0, &[0x03, 0x04, 0x21]),
    // A passive cable for 10.3 Gb/s, one metre long.
    (8, &[0x04]),
    (12, &[103]),
    (18, &[1]),
    (20, b"Tollgate        "),
    (40, b"DAC-1M          "),
    (56, b"A   "),
    (60, &[0x01]),
    (63, &[BASE_SUM]),
    (68, b"1               "),
    (84, b"180101  "),
    (94, &[0x00]),
    (95, &[EXTENDED_SUM]),
];

/// Checksums of bytes 0 to 62 and 64 to 94.
const BASE_SUM: u8 = 0x25;
const EXTENDED_SUM: u8 = 0x7c;

fn memory(at: u8) -> u8 {
    let field = FIELDS.iter().find_map(|(first, bytes)| bytes.get(usize::from(at.checked_sub(*first)?)));
    field.copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A driver that controls the lines.
    struct Driver(Bus);

    impl Driver {
        fn wires(&mut self, clock: bool, data: bool) {
            self.0.write(if clock { CLOCK_OUT } else { 0 } | if data { DATA_OUT } else { 0 });
        }

        fn data(&self) -> bool {
            self.0.read() & DATA_IN != 0
        }

        fn start(&mut self) {
            self.wires(false, true);
            self.wires(true, true);
            self.wires(true, false);
            self.wires(false, false);
        }

        fn bit(&mut self, bit: bool) -> bool {
            self.wires(false, bit);
            self.wires(true, bit);
            let seen = self.data();
            self.wires(false, bit);
            seen
        }

        /// Sends a byte. Returns true if the module acknowledged it.
        fn send(&mut self, byte: u8) -> bool {
            (0..8).rev().for_each(|at| _ = self.bit(byte >> at & 1 != 0));
            !self.bit(true)
        }

        fn receive(&mut self, acknowledge: bool) -> u8 {
            let byte = (0..8).fold(0, |byte, _| byte << 1 | u8::from(self.bit(true)));
            self.bit(!acknowledge);
            byte
        }
    }

    #[test]
    fn the_memory_is_read() {
        let mut driver = Driver(Bus::default());
        driver.start();
        assert!(driver.send(0xa0) && driver.send(20));
        driver.start();
        assert!(driver.send(0xa1));
        let name: Vec<u8> = (0..8).map(|number| driver.receive(number < 7)).collect();
        assert_eq!(name, b"Tollgate");
        driver.start();
        assert!(!driver.send(0xa2), "there is no other address");
        driver.wires(false, false);
        driver.wires(true, false);
        driver.wires(true, true);
        assert_eq!(driver.0.phase, Phase::Idle);
    }

    #[test]
    fn the_sums_are_right() {
        let sum = |first: u8, last: u8| (first..=last).fold(0u8, |sum, at| sum.wrapping_add(memory(at)));
        assert_eq!((sum(0, 62), sum(64, 94)), (memory(63), memory(95)));
    }
}
