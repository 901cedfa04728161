//! A 16550A serial port.
//!
//! Transmission takes no time: a byte is in the output as soon as it is written. Received bytes wait in an unlimited
//! queue and enter the 16-byte FIFO when the board calls [`Serial::arrive`] and there is room, so input is never
//! overrun. No bytes arrive while the guest empties the FIFO: its interrupt handler would find no end, give up, and
//! never see another edge. Bytes below the FIFO's trigger level are announced at once by the character-timeout
//! interrupt instead of four characters later. The interrupt output does not depend on OUT2, as in other virtual
//! machines.
//!
//! The other end sends only while the guest listens ([`Serial::listens`]). A driver that probes or opens the port
//! clears the FIFO and reads the data register, and would lose earlier input, such as the first line of a script in a
//! pipe.

use crate::state::{Plain, StateError, require};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

use super::Line;
use crate::device::{At, Claim, Device, DeviceContext, Pin};

/// First port of COM1, which uses IRQ 4.
pub const COM1: u16 = 0x3f8;
/// Interrupt line of COM1.
pub const COM1_IRQ: u8 = 4;

const FIFO_SIZE: usize = 16;

mod ier {
    pub const RECEIVED: u8 = 1 << 0;
    pub const TRANSMITTER_EMPTY: u8 = 1 << 1;
    pub const LINE_STATUS: u8 = 1 << 2;
    pub const MODEM_STATUS: u8 = 1 << 3;
}

mod iir {
    pub const NONE: u8 = 0x01;
    pub const MODEM_STATUS: u8 = 0x00;
    pub const TRANSMITTER_EMPTY: u8 = 0x02;
    pub const RECEIVED: u8 = 0x04;
    pub const LINE_STATUS: u8 = 0x06;
    pub const TIMEOUT: u8 = 0x0c;
    pub const FIFO: u8 = 0xc0;
}

mod lsr {
    pub const DATA_READY: u8 = 1 << 0;
    pub const OVERRUN: u8 = 1 << 1;
    pub const BREAK: u8 = 1 << 4;
    pub const EMPTY: u8 = 1 << 5 | 1 << 6;
}

mod mcr {
    pub const DTR: u8 = 1 << 0;
    pub const RTS: u8 = 1 << 1;
    pub const OUT1: u8 = 1 << 2;
    pub const OUT2: u8 = 1 << 3;
    pub const LOOPBACK: u8 = 1 << 4;
}

mod msr {
    pub const TRAILING_RI: u8 = 1 << 2;
    pub const CTS: u8 = 1 << 4;
    pub const DSR: u8 = 1 << 5;
    pub const RI: u8 = 1 << 6;
    pub const DCD: u8 = 1 << 7;
}

const LCR_DLAB: u8 = 1 << 7;
const LCR_BREAK: u8 = 1 << 6;
const FCR_ENABLE: u8 = 1 << 0;
const FCR_CLEAR_RECEIVER: u8 = 1 << 1;
/// Number of consecutive reads of an empty receiver, without another access, after which the guest is assumed to wait
/// for input. A transmitting driver reads the line status two or three times in a row.
const POLLS: u8 = 8;

/// The serial port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Serial {
    ier: u8,
    lcr: u8,
    mcr: u8,
    /// Modem lines of the other end, in the upper half; changes since the last read, in the lower.
    msr: u8,
    scratch: u8,
    divisor: u16,
    fifo_enabled: bool,
    trigger: usize,
    received: VecDeque<u8>,
    waiting: VecDeque<u8>,
    errors: u8,
    transmitter_empty: bool,
    /// True if the guest has written the modem control register.
    controlled: bool,
    /// Number of consecutive reads of an empty receiver.
    polls: u8,
    /// Interrupt line.
    pub irq: Line,
    /// Output of the guest that has not been reported to the board.
    #[serde(skip)]
    pub output: Vec<u8>,
}

impl Default for Serial {
    fn default() -> Self {
        Self::new()
    }
}

impl Serial {
    /// Creates a port in its reset state, with a terminal connected (DCD, DSR and CTS on).
    pub fn new() -> Self {
        Self {
            ier: 0,
            lcr: 0,
            mcr: mcr::OUT2,
            msr: msr::CTS | msr::DSR | msr::DCD,
            scratch: 0,
            divisor: 12,
            fifo_enabled: false,
            trigger: 1,
            received: VecDeque::new(),
            waiting: VecDeque::new(),
            errors: 0,
            transmitter_empty: true,
            controlled: false,
            polls: 0,
            irq: Line::default(),
            output: Vec::new(),
        }
    }

    /// Queues input for the guest.
    pub fn push_input(&mut self, bytes: &[u8]) {
        self.waiting.extend(bytes);
        self.arrive();
    }

    /// Moves queued input to the receiver, as far as there is room.
    pub fn arrive(&mut self) {
        self.refill();
        self.update();
    }

    /// Returns the number of input bytes that have not reached the receiver.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns true if the guest listens: it has enabled the receive interrupt and asserts RTS, or it polls the empty
    /// receiver. For a guest that has never written the modem control register RTS is not required.
    pub fn listens(&self) -> bool {
        let ready = self.mcr & mcr::RTS != 0 || !self.controlled;
        self.ier & ier::RECEIVED != 0 && ready || self.polls >= POLLS
    }

    /// Resets the port as a reset of the machine does. The queues to and from the other end are kept.
    fn lose_power(&mut self) {
        let (waiting, output) = (std::mem::take(&mut self.waiting), std::mem::take(&mut self.output));
        *self = Self { waiting, output, ..Self::new() };
    }

    /// Counts a read of the line status or data register.
    fn polled(&mut self) {
        if self.received.is_empty() {
            self.polls = (self.polls + 1).min(POLLS);
            // A polling guest is not noticed in any other way.
            if self.polls == POLLS {
                self.refill();
            }
        }
    }

    fn capacity(&self) -> usize {
        if self.fifo_enabled { FIFO_SIZE } else { 1 }
    }

    /// Moves queued input into the receiver while the guest listens. In loopback mode the receiver is disconnected from
    /// the line.
    fn refill(&mut self) {
        if self.mcr & mcr::LOOPBACK != 0 || !self.listens() {
            return;
        }
        let room = self.capacity().saturating_sub(self.received.len());
        let count = room.min(self.waiting.len());
        self.received.extend(self.waiting.drain(..count));
    }

    /// Returns the pending interrupt of highest priority, encoded as in IIR.
    fn pending(&self) -> u8 {
        let enabled = |bit| self.ier & bit != 0;
        if enabled(ier::LINE_STATUS) && self.errors != 0 {
            iir::LINE_STATUS
        } else if enabled(ier::RECEIVED) && !self.received.is_empty() {
            if self.fifo_enabled && self.received.len() < self.trigger { iir::TIMEOUT } else { iir::RECEIVED }
        } else if enabled(ier::TRANSMITTER_EMPTY) && self.transmitter_empty {
            iir::TRANSMITTER_EMPTY
        } else if enabled(ier::MODEM_STATUS) && self.msr & 0x0f != 0 {
            iir::MODEM_STATUS
        } else {
            iir::NONE
        }
    }

    fn update(&mut self) {
        self.irq.set(self.pending() != iir::NONE);
    }

    fn receive_loopback(&mut self, byte: u8) {
        if self.received.len() >= self.capacity() {
            self.errors |= lsr::OVERRUN;
            // Without FIFO the new byte replaces the old one; with FIFO the new byte is lost.
            if !self.fifo_enabled {
                self.received.clear();
                self.received.push_back(byte);
            }
        } else {
            self.received.push_back(byte);
        }
    }

    /// Returns the modem lines: in loopback mode, the port's own outputs.
    fn modem_lines(&self) -> u8 {
        if self.mcr & mcr::LOOPBACK == 0 {
            return msr::CTS | msr::DSR | msr::DCD;
        }
        [(mcr::RTS, msr::CTS), (mcr::DTR, msr::DSR), (mcr::OUT1, msr::RI), (mcr::OUT2, msr::DCD)]
            .into_iter()
            .filter(|&(out, _)| self.mcr & out != 0)
            .fold(0, |lines, (_, line)| lines | line)
    }

    fn set_mcr(&mut self, value: u8) {
        self.mcr = value & 0x1f;
        self.controlled = true;
        let lines = self.modem_lines();
        let before = self.msr & 0xf0;
        let mut changed = (before ^ lines) >> 4;
        // Only the falling edge of the ring indicator counts.
        if lines & msr::RI != 0 {
            changed &= !msr::TRAILING_RI;
        }
        self.msr = lines | self.msr & 0x0f | changed;
    }

    fn set_fcr(&mut self, value: u8) {
        let enable = value & FCR_ENABLE != 0;
        if enable != self.fifo_enabled || value & FCR_CLEAR_RECEIVER != 0 {
            self.received.clear();
        }
        self.fifo_enabled = enable;
        self.trigger = if enable { [1, 4, 8, 14][usize::from(value >> 6)] } else { 1 };
    }

    /// Reads the register at `offset` 0–7.
    pub fn read(&mut self, offset: u16) -> u8 {
        let latch = self.lcr & LCR_DLAB != 0;
        if !matches!(offset & 7, 0 | 5) || latch {
            self.polls = 0;
        }
        let value = match offset & 7 {
            0 if latch => self.divisor as u8,
            1 if latch => (self.divisor >> 8) as u8,
            0 => {
                self.polled();
                self.received.pop_front().unwrap_or(0)
            }
            1 => self.ier,
            2 => {
                let pending = self.pending();
                if pending == iir::TRANSMITTER_EMPTY {
                    self.transmitter_empty = false;
                }
                pending | if self.fifo_enabled { iir::FIFO } else { 0 }
            }
            3 => self.lcr,
            4 => self.mcr,
            5 => {
                self.polled();
                let ready = if self.received.is_empty() { 0 } else { lsr::DATA_READY };
                lsr::EMPTY | ready | std::mem::take(&mut self.errors)
            }
            6 => {
                let value = self.msr;
                self.msr &= 0xf0;
                value
            }
            _ => self.scratch,
        };
        self.update();
        value
    }

    /// Writes the register at `offset` 0–7.
    pub fn write(&mut self, offset: u16, value: u8) {
        let latch = self.lcr & LCR_DLAB != 0;
        self.polls = 0;
        match offset & 7 {
            0 if latch => self.divisor = self.divisor & 0xff00 | u16::from(value),
            1 if latch => self.divisor = self.divisor & 0x00ff | u16::from(value) << 8,
            0 => {
                if self.mcr & mcr::LOOPBACK != 0 {
                    self.receive_loopback(value);
                } else {
                    self.output.push(value);
                }
                // The transmitter is empty again at once, which causes a new interrupt.
                self.transmitter_empty = false;
                self.update();
                self.transmitter_empty = true;
            }
            1 => {
                let enabled = value & !self.ier;
                self.ier = value & 0x0f;
                if enabled & ier::TRANSMITTER_EMPTY != 0 {
                    self.transmitter_empty = true;
                }
            }
            2 => self.set_fcr(value),
            3 => {
                let starts_break = value & !self.lcr & LCR_BREAK != 0;
                self.lcr = value;
                if starts_break && self.mcr & mcr::LOOPBACK != 0 {
                    self.receive_loopback(0);
                    self.errors |= lsr::BREAK;
                }
            }
            4 => self.set_mcr(value),
            7 => self.scratch = value,
            _ => {}
        }
        self.update();
    }
}

const CLAIMS: &[Claim] = &[Claim::bytes("COM1", COM1, 8)];

impl Serial {
    /// Reports changes to the board: the interrupt line, and the guest's output.
    pub fn tell(&mut self, ctx: &mut DeviceContext) {
        ctx.drive(Pin::Isa(COM1_IRQ), &mut self.irq);
        ctx.print(&mut self.output);
    }
}

impl Device for Serial {
    fn claims(&self) -> &'static [Claim] {
        CLAIMS
    }

    fn read(&mut self, at: At, ctx: &mut DeviceContext) -> u64 {
        let value = Serial::read(self, at.offset as u16);
        self.tell(ctx);
        value.into()
    }

    fn write(&mut self, at: At, value: u64, ctx: &mut DeviceContext) {
        Serial::write(self, at.offset as u16, value as u8);
        self.tell(ctx);
    }

    fn reset(&mut self, ctx: &mut DeviceContext) {
        self.lose_power();
        self.tell(ctx);
    }
}

impl Plain for Serial {
    fn check(&self, _current: &Self) -> Result<(), StateError> {
        let trigger = if self.fifo_enabled { matches!(self.trigger, 1 | 4 | 8 | 14) } else { self.trigger == 1 };
        require(trigger && self.received.len() <= self.capacity(), "the FIFO of the serial port")?;
        let registers = self.ier < 0x10 && self.mcr < 0x20 && self.errors & !(lsr::OVERRUN | lsr::BREAK) == 0;
        require(registers && self.polls <= POLLS, "registers of the serial port")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn port(writes: &[(u16, u8)]) -> Serial {
        let mut serial = Serial::new();
        writes.iter().for_each(|&(offset, value)| serial.write(offset, value));
        serial
    }

    #[test]
    fn states_that_cannot_be_are_refused() {
        let refused = |change: &dyn Fn(&mut Serial)| {
            let mut state = port(&[(2, 0x41)]);
            change(&mut state);
            state.check(&Serial::new()).is_err()
        };
        assert!(!refused(&|state| state.received.extend([0; FIFO_SIZE])));
        assert!(refused(&|state| state.received.extend([0; FIFO_SIZE + 1])));
        assert!(refused(&|state| state.fifo_enabled = false), "a trigger without FIFO");
        assert!(refused(&|state| state.trigger = 5));
        assert!(refused(&|state| state.polls = u8::MAX));
        assert!(refused(&|state| state.ier = 0x10));
    }

    #[test]
    fn identifies_as_16550a() {
        // Scratch and interrupt enable bits, then the FIFO bits of IIR, as probed by the Linux driver.
        let mut serial = port(&[(1, 0), (7, 0x5a)]);
        assert_eq!((serial.read(1), serial.read(7)), (0, 0x5a));
        serial.write(1, 0xff);
        assert_eq!(serial.read(1), 0x0f);
        serial.write(1, 0);
        serial.write(2, 0x01);
        assert_eq!(serial.read(2), 0xc1);
        for lcr in [0x80, 0xbf] {
            serial.write(3, lcr);
            assert_ne!(serial.read(2), 0, "no extended feature register behind {lcr:#x}");
        }
        serial.write(2, 0x21);
        assert_eq!(serial.read(2) & 0xe0, 0xc0, "no 64-byte FIFO");
    }

    #[test]
    fn loopback_shows_outputs_as_inputs() {
        for (mcr, msr) in
            [(0x10, 0x00), (0x11, 0x20), (0x12, 0x10), (0x14, 0x40), (0x18, 0x80), (0x1a, 0x90), (0x0b, 0xb0)]
        {
            let mut serial = port(&[(4, mcr)]);
            assert_eq!(serial.read(6) & 0xf0, msr, "{mcr:#x}");
            assert_eq!(serial.read(6) & 0x0f, 0, "changes are shown once");
        }
    }

    #[test]
    fn ring_indicator_counts_at_its_end() {
        let mut serial = port(&[(4, 0x10)]);
        serial.read(6);
        serial.write(4, 0x14);
        assert_eq!(serial.read(6), 0x40);
        serial.write(4, 0x10);
        assert_eq!(serial.read(6), 0x04);
    }

    #[test]
    fn loopback_keeps_data_inside() {
        let mut serial = port(&[(2, 1), (4, 0x10)]);
        serial.push_input(b"x");
        (0..20).for_each(|i| serial.write(0, i));
        assert_eq!(serial.read(5) & 0x03, 0x03, "overrun");
        assert_eq!((0..16).map(|_| serial.read(0)).collect::<Vec<_>>(), (0..16).collect::<Vec<_>>());
        assert_eq!((serial.read(5) & 1, serial.output.len()), (0, 0));
        serial.write(4, mcr::RTS);
        serial.write(1, ier::RECEIVED);
        serial.arrive();
        assert_eq!(serial.read(0), b'x', "input waited outside");
    }

    /// Reads as a guest's interrupt handler does, until nothing more arrives.
    fn drain(serial: &mut Serial) -> Vec<u8> {
        let mut bytes = Vec::new();
        loop {
            let before = bytes.len();
            serial.arrive();
            serial.read(2);
            bytes.extend(std::iter::from_fn(|| (serial.read(5) & lsr::DATA_READY != 0).then(|| serial.read(0))));
            assert!(bytes.len() - before <= FIFO_SIZE && !serial.irq.level(), "a handler comes to an end");
            if bytes.len() == before {
                return bytes;
            }
        }
    }

    #[test]
    fn a_driver_that_probes_and_opens_the_port_loses_nothing() {
        let mut serial = Serial::new();
        serial.push_input(b"uname -r\n");
        // Linux: early output, probe, FIFO cleared, receiver read, interrupts on before the FIFO, and finally RTS.
        let probe: &[(u16, Option<u8>)] = &[
            (4, Some(3)),
            (5, None),
            (0, Some(b'.')),
            (5, None),
            (4, Some(0x1a)),
            (4, Some(0x08)),
            (2, Some(1)),
            (2, Some(7)),
            (2, Some(0)),
            (5, None),
            (0, None),
            (2, None),
            (6, None),
            (1, Some(5)),
            (2, Some(1)),
            (2, Some(0x81)),
        ];
        for &(offset, value) in probe {
            match value {
                Some(value) => serial.write(offset, value),
                None => {
                    serial.read(offset);
                }
            }
        }
        serial.arrive();
        assert_eq!((serial.read(5) & lsr::DATA_READY, serial.irq.level()), (0, false));
        serial.write(4, mcr::DTR | mcr::RTS | mcr::OUT2);
        serial.arrive();
        assert!(serial.irq.level());
        assert_eq!(drain(&mut serial), b"uname -r\n");
    }

    #[test]
    fn a_guest_that_is_not_ready_is_sent_nothing() {
        let mut serial = port(&[(2, 1), (1, ier::RECEIVED), (4, mcr::RTS)]);
        serial.push_input(&[b'x'; 100]);
        assert!(serial.irq.level());
        serial.write(4, 0);
        assert_eq!(drain(&mut serial).len(), FIFO_SIZE, "what had arrived");
        serial.write(4, mcr::RTS);
        assert_eq!(drain(&mut serial).len(), 100 - FIFO_SIZE);
    }

    #[test]
    fn a_guest_that_polls_is_sent_input() {
        for mcr in [None, Some(0), Some(mcr::DTR)] {
            let mut serial = Serial::new();
            mcr.iter().for_each(|&value| serial.write(4, value));
            serial.push_input(b"ab");
            let waited = (0..20).take_while(|_| serial.read(5) & lsr::DATA_READY == 0).count();
            assert!((2..20).contains(&waited), "{waited}");
            assert_eq!(serial.read(0), b'a');
            assert_eq!((serial.read(5) & lsr::DATA_READY, serial.read(0)), (lsr::DATA_READY, b'b'));
        }
    }

    #[test]
    fn a_reset_keeps_what_is_outside() {
        let mut serial = port(&[(0, b'o'), (4, 0)]);
        serial.push_input(b"i");
        serial.lose_power();
        assert_eq!((serial.waiting(), &serial.output[..]), (1, &b"o"[..]));
    }

    #[test]
    fn transmitter_interrupts_again_after_each_write_and_enable() {
        let mut serial = port(&[(1, ier::TRANSMITTER_EMPTY)]);
        assert!(serial.irq.level());
        assert_eq!((serial.read(2), serial.read(2)), (iir::TRANSMITTER_EMPTY, iir::NONE));
        assert!(!serial.irq.level());
        serial.write(0, b'a');
        assert_eq!((serial.read(2), serial.read(2)), (iir::TRANSMITTER_EMPTY, iir::NONE));
        serial.write(1, 0);
        serial.write(1, ier::TRANSMITTER_EMPTY);
        assert_eq!(serial.read(2), iir::TRANSMITTER_EMPTY);
        assert_eq!(serial.output, b"a");
    }

    #[test]
    fn each_byte_written_is_an_edge() {
        let mut serial = port(&[(1, ier::TRANSMITTER_EMPTY)]);
        serial.irq.drain(|_| ());
        serial.write(0, b'a');
        let mut levels = Vec::new();
        serial.irq.drain(|level| levels.push(level));
        assert_eq!(levels, [false, true]);
    }

    #[test]
    fn receiver_interrupts_by_trigger_and_timeout() {
        let mut serial = port(&[(2, 0x41), (1, ier::RECEIVED)]);
        for (bytes, expected) in [(1, iir::TIMEOUT), (2, iir::TIMEOUT), (1, iir::RECEIVED), (16, iir::RECEIVED)] {
            serial.push_input(&vec![b'z'; bytes]);
            assert_eq!(serial.read(2) & 0x0f, expected);
        }
        for left in (0..20).rev() {
            assert!(serial.irq.level());
            serial.read(0);
            serial.arrive();
            assert_eq!(serial.read(5) & 1 != 0, left > 0, "{left}");
        }
        assert!(!serial.irq.level());
    }

    #[test]
    fn divisor_latch_hides_data_and_enable() {
        let mut serial = port(&[(3, 0x83), (0, 1), (1, 2), (3, 0x03)]);
        assert_eq!((serial.read(0), serial.read(1), serial.output.len()), (0, 0, 0));
        serial.write(3, 0x83);
        assert_eq!((serial.read(0), serial.read(1)), (1, 2));
    }

    #[test]
    fn line_status_interrupt_is_first_and_ends_with_reading() {
        let mut serial = port(&[(1, 0x0f), (4, 0x10), (0, 1), (0, 2)]);
        assert_eq!(serial.read(2), iir::LINE_STATUS);
        assert_eq!(serial.read(5) & lsr::OVERRUN, lsr::OVERRUN);
        assert_eq!(serial.read(2), iir::RECEIVED);
        assert_eq!(serial.read(0), 2);
        assert_eq!(serial.read(2), iir::TRANSMITTER_EMPTY);
        assert_eq!(serial.read(2), iir::MODEM_STATUS);
    }

    proptest! {
        #[test]
        fn random_accesses_do_not_panic(ops in prop::collection::vec((0..3u8, any::<u16>(), any::<u8>()), 0..300)) {
            let mut serial = Serial::new();
            for (op, offset, value) in ops {
                match op {
                    0 => { serial.read(offset); }
                    1 => serial.write(offset, value),
                    _ => serial.push_input(&vec![value; usize::from(value & 31)]),
                }
                prop_assert!(serial.received.len() <= FIFO_SIZE);
            }
        }
    }
}
