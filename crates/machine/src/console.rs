//! Connects the user with the guest's consoles: selects the console that receives typed input, and watches console
//! output for a kernel panic.

use crate::state::{Plain, StateError, require, same};
use ledger::Ticks;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Maximum number of input bytes that wait for the guest before the machine stops asking the host for more.
const BACKLOG: usize = 4096;
/// Start of the line in which a Linux kernel gives the reason for a panic.
const PANIC: &[u8] = b"Kernel panic - not syncing: ";
/// Start of the last line that a panicking Linux kernel prints before it waits for ever.
const END: &[u8] = b"---[ end Kernel panic - not syncing: ";
/// Number of bytes of a line that are kept.
const LONGEST_LINE: usize = 256;

/// A console that accepts input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Console {
    /// The serial line.
    #[default]
    Serial,
    /// The virtio console.
    Virtio,
}

impl Console {
    /// Returns the console that a kernel with this command line uses as `/dev/console`: the last one that it names.
    pub fn of_command_line(line: &str) -> Self {
        let last = line.split_ascii_whitespace().filter_map(|word| word.strip_prefix("console=")).next_back();
        if last.is_some_and(|name| name.starts_with("hvc")) { Self::Virtio } else { Self::Serial }
    }
}

/// Consoles that accept input now.
#[derive(Clone, Copy, Debug)]
pub struct Takers {
    /// True if the guest listens to the serial line.
    pub serial: bool,
    /// True if the guest has a driver for the virtio console.
    pub virtio: bool,
    /// Current time.
    pub now: Ticks,
}

/// Input that waits for delivery to a console.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Input {
    waiting: VecDeque<u8>,
    preferred: Console,
    /// Maximum delay between the initialization of the serial driver, which is built into kernels, and that of the
    /// virtio console's driver.
    patience: Ticks,
    /// Time since which the guest has listened to the serial line without a driver for the virtio console.
    serial_only: Option<Ticks>,
}

impl Input {
    /// Creates the input queue of a guest whose console is `preferred`; that console's driver may be late by
    /// `patience`.
    pub fn new(preferred: Console, patience: Ticks) -> Self {
        Self { waiting: VecDeque::new(), preferred, patience, serial_only: None }
    }

    /// Appends typed bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.waiting.extend(bytes);
    }

    /// Returns the number of bytes that no console has taken.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns true if there is room for more input, given the number of `unread` bytes in the console.
    pub fn has_room(&self, unread: usize) -> bool {
        self.waiting.len() + unread < BACKLOG
    }

    /// Takes the input that can be delivered now, and selects its console. Input for the virtio console goes to the
    /// serial line if no virtio driver appears: a guest may open a shell on another console than its command line says.
    pub fn deliver(&mut self, takers: Takers) -> Option<(Console, Vec<u8>)> {
        let serial_only = takers.serial && !takers.virtio;
        self.serial_only = serial_only.then_some(self.serial_only.unwrap_or(takers.now));
        let gave_up = self.serial_only.is_some_and(|since| takers.now - since >= self.patience);
        let target = match self.preferred {
            _ if self.waiting.is_empty() => return None,
            Console::Virtio if takers.virtio => Console::Virtio,
            // The serial device itself holds the bytes until the guest listens.
            Console::Serial => Console::Serial,
            Console::Virtio if gave_up => Console::Serial,
            Console::Virtio => return None,
        };
        Some((target, self.waiting.drain(..).collect()))
    }
}

/// Watches a guest's console output for a kernel panic. Programs may print such lines too: a match is only a reason for
/// a closer look.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PanicWatch {
    line: Vec<u8>,
    /// True after a line that reports a panic.
    pub panicked: bool,
    /// True after the line that ends the panic messages.
    pub ended: bool,
}

impl PanicWatch {
    /// Processes output.
    pub fn saw(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let room = LONGEST_LINE - self.line.len();
            self.line.extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.ends_with(b"\n") {
                let text = message(&self.line);
                self.panicked |= text.starts_with(PANIC);
                self.ended |= text.starts_with(END);
                self.line.clear();
            }
        }
    }
}

/// Strips the kernel's prefixes, such as `[ 1.234567] ` and `[ T1]`, from a line.
fn message(mut line: &[u8]) -> &[u8] {
    while let Some(rest) = line.strip_prefix(b"[") {
        let Some(end) = rest.iter().position(|byte| *byte == b']') else { break };
        if !rest[..end].iter().all(|byte| byte.is_ascii_alphanumeric() || b" .".contains(byte)) {
            break;
        }
        line = rest[end + 1..].trim_ascii_start();
    }
    line
}

impl Input {
    /// Checks that the state can be that of `current` at time `now`.
    pub fn check(&self, current: &Self, now: Ticks) -> Result<(), StateError> {
        same(&(self.preferred, self.patience), &(current.preferred, current.patience), "console or TSC frequency")?;
        require(self.serial_only.is_none_or(|since| since <= now), "a console of the future")
    }
}

impl Plain for PanicWatch {
    fn check(&self, _current: &Self) -> Result<(), StateError> {
        require(self.line.len() <= LONGEST_LINE, "a line that is too long")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_console_of_the_command_line_is_the_guests() {
        for (line, console) in [
            ("", Console::Serial),
            ("console=ttyS0", Console::Serial),
            ("console=hvc0", Console::Virtio),
            ("console=ttyS0 quiet console=hvc0", Console::Virtio),
            ("console=hvc0 console=ttyS0,115200 root=/dev/vda", Console::Serial),
            ("myconsole=hvc0", Console::Serial),
        ] {
            assert_eq!(Console::of_command_line(line), console, "{line}");
        }
    }

    #[test]
    fn input_waits_for_a_console_that_takes_it() {
        let takers = |serial, virtio| Takers { serial, virtio, now: 50 };
        for (preferred, takers, expected) in [
            (Console::Serial, takers(false, false), Some(Console::Serial)),
            (Console::Serial, takers(false, true), Some(Console::Serial)),
            (Console::Virtio, takers(false, false), None),
            (Console::Virtio, takers(true, false), None),
            (Console::Virtio, takers(true, true), Some(Console::Virtio)),
        ] {
            let mut input = Input::new(preferred, 100);
            assert_eq!(input.deliver(takers), None);
            input.push(b"x");
            let delivered = input.deliver(takers);
            assert_eq!(delivered, expected.map(|console| (console, b"x".to_vec())), "{preferred:?} {takers:?}");
            assert_eq!(input.waiting(), usize::from(expected.is_none()));
        }
    }

    #[test]
    fn a_driver_that_does_not_come_is_not_waited_for() {
        let mut input = Input::new(Console::Virtio, 100);
        input.push(b"x");
        let mut turn = |serial, virtio, now| input.deliver(Takers { serial, virtio, now }).map(|(console, _)| console);
        assert_eq!(turn(false, false, 1000), None);
        assert_eq!(turn(true, false, 2000), None);
        assert_eq!(turn(true, false, 2099), None);
        assert_eq!(turn(false, false, 2100), None);
        assert_eq!(turn(true, false, 3000), None);
        assert_eq!(turn(true, false, 3100), Some(Console::Serial));
    }

    #[test]
    fn a_panic_is_a_line_of_the_kernel() {
        for (text, seen) in [
            (&b"[    0.560972] Kernel panic - not syncing: sysrq triggered crash\r\n"[..], (true, false)),
            (b"[    0.5][    T1] Kernel panic - not syncing: x\n", (true, false)),
            (b"Kernel panic - not syncing: x\n---[ end Kernel panic - not syncing: x ]---\n", (true, true)),
            (b"[    0.5] ---[ end Kernel panic - not syncing: x ]---\r\n", (false, true)),
            (b"what does Kernel panic - not syncing: mean?\n", (false, false)),
            (b"[what] Kernel panic - not syncing: x", (false, false)),
        ] {
            let mut whole = PanicWatch::default();
            whole.saw(text);
            let mut bytewise = PanicWatch::default();
            text.iter().for_each(|byte| bytewise.saw(&[*byte]));
            for watch in [whole, bytewise] {
                assert_eq!((watch.panicked, watch.ended), seen, "{}", String::from_utf8_lossy(text));
            }
        }
        let mut long = PanicWatch::default();
        long.saw(&[b'x'; 100_000]);
        assert_eq!(long.line.len(), LONGEST_LINE);
    }
}
