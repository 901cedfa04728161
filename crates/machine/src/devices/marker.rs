//! The marker ports, with which a guest program marks the begin and end of a region of interest, or the task that a
//! processor runs.
//!
//! A processor writes the bytes of a name, terminated by NUL, to [`NAME`], and then a [`Command`] to [`CONTROL`]. Each
//! processor has a name of its own, which is kept for the next command. `docs/marker-port.md` describes the guest's
//! view.

use crate::device::{At, Claim, Device, DeviceContext};
use crate::state::{Plain, StateError, require, same};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Port for the bytes of a name.
pub const NAME: u16 = 0x1f0e;
/// Port for commands; it reads as [`PRESENT`].
pub const CONTROL: u16 = 0x1f0f;
/// Value that [`CONTROL`] reads as.
pub const PRESENT: u8 = b'M';
/// Maximum length of a name; further bytes are dropped.
pub const NAME_LIMIT: usize = 63;
/// Maximum number of marks that wait for the board.
const MARK_LIMIT: usize = 4096;

/// Command for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Begins a region of the processor's task and its descendants.
    Begin = 1,
    /// Ends a region.
    End = 2,
    /// Begins a region of everything that the machine does.
    BeginAll = 3,
    /// Sets the task that the processor runs from now on.
    Task = 4,
}

impl Command {
    fn of(value: u8) -> Option<Self> {
        [Self::Begin, Self::End, Self::BeginAll, Self::Task].into_iter().find(|command| *command as u8 == value)
    }
}

/// A mark of a processor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Index of the processor.
    pub cpu: usize,
    /// The name, in which invalid UTF-8 has been replaced.
    pub name: String,
    /// The command.
    pub command: Command,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Name {
    bytes: Vec<u8>,
    complete: bool,
}

/// The marker ports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Marker {
    names: Vec<Name>,
    marks: VecDeque<Mark>,
}

impl Marker {
    /// Creates the ports of a machine with `cpus` processors.
    pub fn new(cpus: usize) -> Self {
        Self { names: vec![Name::default(); cpus], marks: VecDeque::new() }
    }

    /// Takes the next mark. The board does so after each write, when it knows the time.
    pub fn pop(&mut self) -> Option<Mark> {
        self.marks.pop_front()
    }

    /// Reads a port.
    pub fn read(&self, port: u16) -> u8 {
        if port == CONTROL { PRESENT } else { 0xff }
    }

    /// Writes a port.
    pub fn write(&mut self, cpu: usize, port: u16, value: u8) {
        let Some(name) = self.names.get_mut(cpu) else { return };
        match (port, value) {
            // No byte has arrived since the last terminator: the name is empty.
            (NAME, 0) if name.complete => name.bytes.clear(),
            (NAME, 0) => name.complete = true,
            (NAME, byte) => {
                if std::mem::take(&mut name.complete) {
                    name.bytes.clear();
                }
                if name.bytes.len() < NAME_LIMIT {
                    name.bytes.push(byte);
                }
            }
            (CONTROL, _) => {
                let Some(command) = Command::of(value) else { return };
                let mark = Mark { cpu, name: String::from_utf8_lossy(&name.bytes).into_owned(), command };
                if self.marks.len() < MARK_LIMIT {
                    self.marks.push_back(mark);
                }
            }
            _ => {}
        }
    }
}

const CLAIMS: &[Claim] = &[Claim::bytes("marker", NAME, 2)];

impl Device for Marker {
    fn claims(&self) -> &'static [Claim] {
        CLAIMS
    }

    fn read(&mut self, at: At, _ctx: &mut DeviceContext) -> u64 {
        Marker::read(self, at.port(CLAIMS)).into()
    }

    fn write(&mut self, at: At, value: u64, ctx: &mut DeviceContext) {
        Marker::write(self, ctx.cpu, at.port(CLAIMS), value as u8);
    }
}

impl Plain for Marker {
    fn check(&self, current: &Self) -> Result<(), StateError> {
        same(&self.names.len(), &current.names.len(), "number of processors")?;
        // Each invalid UTF-8 byte has become three bytes.
        let mark = |mark: &Mark| mark.cpu < self.names.len() && mark.name.len() <= 3 * NAME_LIMIT;
        require(self.marks.len() <= MARK_LIMIT && self.marks.iter().all(mark), "marks")?;
        require(self.names.iter().all(|name| name.bytes.len() <= NAME_LIMIT), "a name that is too long")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn send(marker: &mut Marker, cpu: usize, name: &[u8]) {
        name.iter().for_each(|&byte| marker.write(cpu, NAME, byte));
    }

    fn mark(cpu: usize, name: &str, command: Command) -> Option<Mark> {
        Some(Mark { cpu, name: name.to_owned(), command })
    }

    #[test]
    fn states_that_cannot_be_are_refused() {
        let current = Marker::new(2);
        let refused = |change: &dyn Fn(&mut Marker)| {
            let mut state = current.clone();
            change(&mut state);
            state.check(&current).is_err()
        };
        let mark = |cpu, len| Mark { cpu, name: "x".repeat(len), command: Command::Begin };
        let long = || Name { bytes: vec![b'x'; NAME_LIMIT + 1], complete: false };
        assert!(!refused(&|state| state.marks.push_back(mark(1, 3 * NAME_LIMIT))));
        assert!(refused(&|state| state.marks.push_back(mark(2, 1))));
        assert!(refused(&|state| state.marks.push_back(mark(0, 3 * NAME_LIMIT + 1))));
        assert!(refused(&|state| state.marks.extend((0..=MARK_LIMIT).map(|_| mark(0, 1)))));
        assert!(refused(&|state| state.names[1] = long()));
        assert!(refused(&|state| state.names.truncate(1)));
    }

    #[test]
    fn regions_begin_and_end() {
        let mut marker = Marker::new(2);
        send(&mut marker, 0, b"loop\0");
        send(&mut marker, 1, b"other\0");
        marker.write(0, CONTROL, 1);
        marker.write(1, CONTROL, 3);
        marker.write(0, CONTROL, 2);
        send(&mut marker, 0, b"next\0");
        marker.write(0, CONTROL, 4);
        let expected = [
            mark(0, "loop", Command::Begin),
            mark(1, "other", Command::BeginAll),
            mark(0, "loop", Command::End),
            mark(0, "next", Command::Task),
            None,
        ];
        expected.into_iter().for_each(|expected| assert_eq!(marker.pop(), expected));
    }

    #[test]
    fn odd_names() {
        for (bytes, name) in [(&b"\0"[..], ""), (b"a\xffb\0", "a\u{fffd}b"), (&[b'x'; 100], &"x".repeat(NAME_LIMIT))] {
            let mut marker = Marker::new(1);
            send(&mut marker, 0, bytes);
            marker.write(0, CONTROL, Command::Begin as u8);
            assert_eq!(marker.pop(), mark(0, name, Command::Begin));
        }
    }

    #[test]
    fn a_name_may_be_empty() {
        let mut marker = Marker::new(1);
        for (bytes, name) in [(&b"one\0"[..], "one"), (b"\0", ""), (b"\0", ""), (b"two\0", "two")] {
            send(&mut marker, 0, bytes);
            marker.write(0, CONTROL, Command::End as u8);
            assert_eq!(marker.pop(), mark(0, name, Command::End));
        }
    }

    #[test]
    fn unknown_commands_and_processors_do_nothing() {
        let mut marker = Marker::new(1);
        marker.write(0, CONTROL, 5);
        marker.write(0, CONTROL, 0);
        marker.write(7, CONTROL, Command::Begin as u8);
        assert_eq!((marker.pop(), marker.read(CONTROL), marker.read(NAME)), (None, b'M', 0xff));
    }

    proptest! {
        #[test]
        fn random_accesses_do_not_panic(ops in prop::collection::vec((0..3usize, NAME..=CONTROL, any::<u8>()), 0..200)) {
            let mut marker = Marker::new(2);
            for (cpu, port, value) in ops {
                marker.write(cpu, port, value);
                marker.read(port);
            }
        }
    }
}
