//! The marker ports: how a guest program names the region of interest that it enters and leaves.
//!
//! A processor sends the bytes of a name, ended by NUL, to [`NAME`], and then [`BEGIN`] or [`END`] to [`CONTROL`]. Each
//! processor has a name of its own, which stays for the next command. `docs/marker-port.md` is the guest's view.

use std::collections::VecDeque;

/// Takes a name, byte by byte.
pub const NAME: u16 = 0x1f0e;
/// Takes commands, and reads as [`PRESENT`].
pub const CONTROL: u16 = 0x1f0f;
/// What [`CONTROL`] reads as.
pub const PRESENT: u8 = b'M';
/// Command: the region begins.
pub const BEGIN: u8 = 1;
/// Command: the region ends.
pub const END: u8 = 2;
/// Bytes of a name that are kept.
pub const NAME_LIMIT: usize = 63;
/// Marks that are kept until the board takes them.
const MARK_LIMIT: usize = 4096;

/// A region begins or ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The processor that said so.
    pub cpu: usize,
    /// Name of the region; bytes that are not UTF-8 are replaced.
    pub name: String,
    /// Begins, or ends.
    pub begins: bool,
}

#[derive(Clone, Debug, Default)]
struct Name {
    bytes: Vec<u8>,
    complete: bool,
}

/// The marker ports.
#[derive(Clone, Debug, Default)]
pub struct Marker {
    names: Vec<Name>,
    marks: VecDeque<Mark>,
}

impl Marker {
    /// For a machine with so many processors.
    pub fn new(cpus: usize) -> Self {
        Self { names: vec![Name::default(); cpus], marks: VecDeque::new() }
    }

    /// Takes the next mark. The board does so after each write, while it knows the time.
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
            (NAME, 0) => name.complete = true,
            (NAME, byte) => {
                if std::mem::take(&mut name.complete) {
                    name.bytes.clear();
                }
                if name.bytes.len() < NAME_LIMIT {
                    name.bytes.push(byte);
                }
            }
            (CONTROL, BEGIN | END) => {
                let mark =
                    Mark { cpu, name: String::from_utf8_lossy(&name.bytes).into_owned(), begins: value == BEGIN };
                if self.marks.len() < MARK_LIMIT {
                    self.marks.push_back(mark);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn send(marker: &mut Marker, cpu: usize, name: &[u8]) {
        name.iter().for_each(|&byte| marker.write(cpu, NAME, byte));
    }

    fn mark(cpu: usize, name: &str, begins: bool) -> Option<Mark> {
        Some(Mark { cpu, name: name.to_owned(), begins })
    }

    #[test]
    fn regions_begin_and_end() {
        let mut marker = Marker::new(2);
        send(&mut marker, 0, b"loop\0");
        send(&mut marker, 1, b"other\0");
        marker.write(0, CONTROL, BEGIN);
        marker.write(1, CONTROL, BEGIN);
        marker.write(0, CONTROL, END);
        send(&mut marker, 0, b"next\0");
        marker.write(0, CONTROL, BEGIN);
        let expected =
            [mark(0, "loop", true), mark(1, "other", true), mark(0, "loop", false), mark(0, "next", true), None];
        expected.into_iter().for_each(|expected| assert_eq!(marker.pop(), expected));
    }

    #[test]
    fn odd_names() {
        for (bytes, name) in [(&b"\0"[..], ""), (b"a\xffb\0", "a\u{fffd}b"), (&[b'x'; 100], &"x".repeat(NAME_LIMIT))] {
            let mut marker = Marker::new(1);
            send(&mut marker, 0, bytes);
            marker.write(0, CONTROL, BEGIN);
            assert_eq!(marker.pop(), mark(0, name, true));
        }
    }

    #[test]
    fn unknown_commands_and_processors_do_nothing() {
        let mut marker = Marker::new(1);
        marker.write(0, CONTROL, 3);
        marker.write(7, CONTROL, BEGIN);
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
