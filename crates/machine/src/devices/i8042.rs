//! The keyboard controller (ports 0x60 and 0x64) with an idle keyboard.
//!
//! The keyboard answers commands at once, so that drivers find it without time-outs. There is no auxiliary port: its
//! test fails, and looped-back data appears as data of the keyboard. The A20 gate is stored but always open.

use crate::state::{Plain, StateError, require};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

use super::Line;
use crate::device::{At, Claim, Device, DeviceContext, Ending, Pin, Request};

/// Data port, and command and status port.
pub const PORTS: [u16; 2] = [0x60, 0x64];
/// Interrupt line of the keyboard.
pub const KEYBOARD_IRQ: u8 = 1;

mod status {
    pub const OUTPUT_FULL: u8 = 1 << 0;
    pub const SYSTEM: u8 = 1 << 2;
    pub const COMMAND: u8 = 1 << 3;
    pub const UNLOCKED: u8 = 1 << 4;
}

/// Bits of the controller's command byte.
mod control {
    pub const KEYBOARD_INTERRUPT: u8 = 1 << 0;
    pub const SYSTEM: u8 = 1 << 2;
    pub const KEYBOARD_DISABLED: u8 = 1 << 4;
    pub const AUX_DISABLED: u8 = 1 << 5;
    pub const TRANSLATE: u8 = 1 << 6;
}

const OUTPUT_PORT_RUNNING: u8 = 1 << 0;
const OUTPUT_PORT_A20: u8 = 1 << 1;
const ACK: u8 = 0xfa;
const RESEND: u8 = 0xfe;
/// Maximum number of bytes that the keyboard queues for the controller.
const KEYBOARD_QUEUE: usize = 16;

/// Destination of the next byte written to the data port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum Next {
    #[default]
    Keyboard,
    Memory(u8),
    OutputPort,
    KeyboardBuffer,
    Loop,
    Discard,
}

/// The controller and its keyboard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct I8042 {
    memory: [u8; 32],
    next: Next,
    last_was_command: bool,
    output_port: u8,
    /// The output buffer, if the controller filled it: a new answer replaces an unread one.
    reply: Option<u8>,
    keyboard: VecDeque<u8>,
    /// Command for which the keyboard waits for a parameter.
    keyboard_command: Option<u8>,
    last_data: u8,
    reset: bool,
    /// Interrupt line of the keyboard.
    pub irq: Line,
}

impl Default for I8042 {
    fn default() -> Self {
        Self::new()
    }
}

impl I8042 {
    /// Creates the controller in the state in which firmware leaves it: self test passed, scan codes translated,
    /// keyboard enabled with its interrupt.
    pub fn new() -> Self {
        let mut memory = [0; 32];
        memory[0] = control::KEYBOARD_INTERRUPT | control::SYSTEM | control::AUX_DISABLED | control::TRANSLATE;
        Self {
            memory,
            next: Next::Keyboard,
            last_was_command: false,
            output_port: OUTPUT_PORT_RUNNING | OUTPUT_PORT_A20,
            reply: None,
            keyboard: VecDeque::new(),
            keyboard_command: None,
            last_data: 0,
            reset: false,
            irq: Line::default(),
        }
    }

    /// Returns true if the guest has requested a reset since the last call.
    pub fn take_reset(&mut self) -> bool {
        std::mem::take(&mut self.reset)
    }

    fn is(&self, bit: u8) -> bool {
        self.memory[0] & bit != 0
    }

    fn output_full(&self) -> bool {
        self.reply.is_some() || !self.keyboard.is_empty() && !self.is(control::KEYBOARD_DISABLED)
    }

    fn update(&mut self) {
        self.irq.set(self.output_full() && self.is(control::KEYBOARD_INTERRUPT));
    }

    /// Reads one of [`PORTS`].
    pub fn read(&mut self, port: u16) -> u8 {
        match port {
            0x60 => {
                if self.output_full() {
                    let byte = self.reply.take().or_else(|| self.keyboard.pop_front());
                    self.last_data = byte.unwrap_or(self.last_data);
                    // Each byte causes an edge of its own.
                    self.irq.set(false);
                    self.update();
                }
                self.last_data
            }
            0x64 => {
                let mut value = status::UNLOCKED;
                for (on, bit) in [
                    (self.output_full(), status::OUTPUT_FULL),
                    (self.is(control::SYSTEM), status::SYSTEM),
                    (self.last_was_command, status::COMMAND),
                ] {
                    value |= if on { bit } else { 0 };
                }
                value
            }
            _ => 0xff,
        }
    }

    /// Writes one of [`PORTS`].
    pub fn write(&mut self, port: u16, value: u8) {
        match port {
            0x60 => {
                self.last_was_command = false;
                self.data(value);
            }
            0x64 => {
                self.last_was_command = true;
                self.command(value);
            }
            _ => {}
        }
        self.update();
    }

    fn command(&mut self, value: u8) {
        self.next = Next::Keyboard;
        match value {
            0x20..=0x3f => self.reply = Some(self.memory[usize::from(value & 0x1f)]),
            0x60..=0x7f => self.next = Next::Memory(value & 0x1f),
            0xa7 => self.memory[0] |= control::AUX_DISABLED,
            0xa8 => self.memory[0] &= !control::AUX_DISABLED,
            // Auxiliary port test: the clock line is stuck low.
            0xa9 => self.reply = Some(0x01),
            0xaa => {
                self.memory[0] |= control::SYSTEM;
                self.reply = Some(0x55);
            }
            0xab => self.reply = Some(0x00),
            0xad => self.memory[0] |= control::KEYBOARD_DISABLED,
            0xae => self.memory[0] &= !control::KEYBOARD_DISABLED,
            // Input port: keyboard not locked.
            0xc0 => self.reply = Some(0x80),
            0xd0 => self.reply = Some(self.output_port),
            0xd1 => self.next = Next::OutputPort,
            0xd2 => self.next = Next::KeyboardBuffer,
            0xd3 => self.next = Next::Loop,
            0xd4 => self.next = Next::Discard,
            0xdd => self.output_port &= !OUTPUT_PORT_A20,
            0xdf => self.output_port |= OUTPUT_PORT_A20,
            0xe0 => self.reply = Some(0x00),
            0xf0..=0xff => self.reset |= value & 1 == 0,
            _ => {}
        }
    }

    fn data(&mut self, value: u8) {
        match std::mem::take(&mut self.next) {
            Next::Keyboard => self.keyboard_write(value),
            Next::Memory(index) => self.memory[usize::from(index & 0x1f)] = value,
            Next::OutputPort => {
                self.output_port = value;
                self.reset |= value & OUTPUT_PORT_RUNNING == 0;
            }
            Next::KeyboardBuffer | Next::Loop => self.reply = Some(value),
            Next::Discard => {}
        }
    }

    fn keyboard_write(&mut self, value: u8) {
        // Second byte of the keyboard's identity (0x83), and scan code set 2, both as changed by translation.
        let translated = |plain| if self.is(control::TRANSLATE) { 0x41 } else { plain };
        let (set, identity) = ([ACK, translated(0x02)], [ACK, 0xab, translated(0x83)]);
        let answer: &[u8] = match (self.keyboard_command.take(), value) {
            (Some(0xf0), 0) => &set,
            (Some(_), _) => &[ACK],
            (None, 0xed | 0xf0 | 0xf3) => {
                self.keyboard_command = Some(value);
                &[ACK]
            }
            (None, 0xee) => &[0xee],
            (None, 0xf2) => &identity,
            (None, 0xf4..=0xf6) => &[ACK],
            (None, 0xfe) => &[self.last_data],
            (None, 0xff) => &[ACK, 0xaa],
            (None, _) => &[RESEND],
        };
        let room = KEYBOARD_QUEUE.saturating_sub(self.keyboard.len());
        self.keyboard.extend(answer.iter().take(room));
    }
}

const CLAIMS: &[Claim] = &[Claim::bytes("i8042", PORTS[0], 1), Claim::bytes("i8042", PORTS[1], 1)];

impl I8042 {
    fn tell(&mut self, ctx: &mut DeviceContext) {
        ctx.drive(Pin::Isa(KEYBOARD_IRQ), &mut self.irq);
        if self.take_reset() {
            ctx.request(Request::End(Ending::Reset));
        }
    }
}

impl Device for I8042 {
    fn claims(&self) -> &'static [Claim] {
        CLAIMS
    }

    fn read(&mut self, at: At, ctx: &mut DeviceContext) -> u64 {
        let value = I8042::read(self, at.port(CLAIMS));
        self.tell(ctx);
        value.into()
    }

    fn write(&mut self, at: At, value: u64, ctx: &mut DeviceContext) {
        I8042::write(self, at.port(CLAIMS), value as u8);
        self.tell(ctx);
    }

    /// The keyboard keeps its power, because it must be able to wake the machine.
    fn reset(&mut self, ctx: &mut DeviceContext) {
        self.irq.forgotten();
        self.tell(ctx);
    }
}

impl Plain for I8042 {
    fn check(&self, _current: &Self) -> Result<(), StateError> {
        require(self.keyboard.len() <= KEYBOARD_QUEUE, "more bytes than the keyboard keeps")?;
        require(!self.reset, "a reset that is asked for")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drain(controller: &mut I8042) -> Vec<u8> {
        let mut out = Vec::new();
        while controller.read(0x64) & 1 != 0 {
            out.push(controller.read(0x60));
        }
        out
    }

    #[test]
    fn controller_commands_answer() {
        // (writes, answer)
        type Row = (&'static [(u16, u8)], &'static [u8]);
        let table: [Row; 10] = [
            (&[(0x64, 0xaa)], &[0x55]),
            (&[(0x64, 0xab)], &[0x00]),
            (&[(0x64, 0xa9)], &[0x01]),
            (&[(0x64, 0x20)], &[0x65]),
            (&[(0x64, 0x60), (0x60, 0x47), (0x64, 0x20)], &[0x47]),
            (&[(0x64, 0xd3), (0x60, 0x5a)], &[0x5a]),
            (&[(0x64, 0xd2), (0x60, 0x1c)], &[0x1c]),
            (&[(0x64, 0xd4), (0x60, 0xff)], &[]),
            (&[(0x64, 0xd0)], &[0x03]),
            (&[(0x64, 0xd3), (0x60, 0x5a), (0x64, 0xa9)], &[0x01]),
        ];
        for (writes, answer) in table {
            let mut controller = I8042::new();
            writes.iter().for_each(|&(port, value)| controller.write(port, value));
            assert_eq!(drain(&mut controller), answer, "{writes:x?}");
        }
    }

    #[test]
    fn keyboard_commands_answer() {
        let table: [(&[u8], &[u8]); 7] = [
            (&[0xff], &[0xfa, 0xaa]),
            (&[0xf2], &[0xfa, 0xab, 0x41]),
            (&[0xed, 0x07], &[0xfa, 0xfa]),
            (&[0xf0, 0x00], &[0xfa, 0xfa, 0x41]),
            (&[0xee], &[0xee]),
            (&[0x00], &[0xfe]),
            (&[0xf4], &[0xfa]),
        ];
        for (writes, answer) in table {
            let mut controller = I8042::new();
            writes.iter().for_each(|&value| controller.write(0x60, value));
            assert_eq!(drain(&mut controller), answer, "{writes:x?}");
        }
    }

    #[test]
    fn resets() {
        for (writes, reset) in [
            (&[(0x64, 0xfe)][..], true),
            (&[(0x64, 0xff)], false),
            (&[(0x64, 0xd1), (0x60, 0x02)], true),
            (&[(0x64, 0xd1), (0x60, 0x03)], false),
        ] {
            let mut controller = I8042::new();
            writes.iter().for_each(|&(port, value)| controller.write(port, value));
            assert_eq!((controller.take_reset(), controller.take_reset()), (reset, false), "{writes:x?}");
        }
    }

    #[test]
    fn each_byte_interrupts_and_a_disabled_keyboard_waits() {
        let mut controller = I8042::new();
        controller.write(0x60, 0xff);
        let mut edges = 0;
        for expected in [ACK, 0xaa] {
            controller.irq.drain(|level| edges += i32::from(level));
            assert_eq!(controller.read(0x60), expected);
        }
        controller.irq.drain(|level| edges += i32::from(level));
        assert_eq!((edges, controller.irq.level()), (2, false));
        controller.write(0x64, 0xad);
        controller.write(0x60, 0xee);
        assert_eq!(controller.read(0x64) & 1, 0);
        controller.write(0x64, 0xae);
        assert_eq!(controller.read(0x60), 0xee);
    }

    proptest! {
        #[test]
        fn random_accesses_do_not_panic(ops in prop::collection::vec((any::<bool>(), 0..2usize, any::<u8>()), 0..300)) {
            let mut controller = I8042::new();
            for (write, port, value) in ops {
                if write { controller.write(PORTS[port], value) } else { controller.read(PORTS[port]); }
                prop_assert!(controller.keyboard.len() <= KEYBOARD_QUEUE);
            }
        }
    }
}
