//! The connection to a debugger: requirements on a socket, and QEMU's packets, which the protocol's library does not
//! know.

use gdbstub::conn::Connection;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::rc::Rc;
use std::time::Duration;

/// A connection to a debugger.
pub trait Wire {
    /// Waits up to `wait` for bytes and appends them to `into`. Returns false if the other end has closed the
    /// connection.
    fn receive(&mut self, wait: Duration, into: &mut VecDeque<u8>) -> io::Result<bool>;
    /// Sends all of the bytes.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// A socket that accepts debuggers.
pub trait Listener {
    /// Returns the next connection, if one arrives within `wait`.
    fn accept(&mut self, wait: Duration) -> io::Result<Option<Box<dyn Wire>>>;

    /// Passes on a remark for the user, at the end of a connection.
    fn note(&mut self, text: &str);
}

/// Buffer of bytes to be sent.
#[derive(Clone, Default)]
pub(crate) struct Outbox(Rc<RefCell<Vec<u8>>>);

impl Outbox {
    pub fn take(&self) -> Vec<u8> {
        self.0.take()
    }

    /// Adds a packet; if acknowledgements are in use, the acknowledgement of the answered packet precedes it.
    pub fn answer(&self, payload: &str, acknowledged: bool) {
        let sum = payload.bytes().fold(0u8, u8::wrapping_add);
        let plus = if acknowledged { "+" } else { "" };
        self.0.borrow_mut().extend(format!("{plus}${payload}#{sum:02x}").bytes());
    }
}

impl Connection for Outbox {
    type Error = Infallible;

    fn write(&mut self, byte: u8) -> Result<(), Infallible> {
        self.0.borrow_mut().push(byte);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

/// Maximum length of a packet.
pub(crate) const LONGEST: usize = 1 << 14;

/// Incoming data.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Incoming {
    /// Bytes for the protocol's library.
    Bytes(Vec<u8>),
    /// `qqemu.PhyMemMode`: a query for the use of physical addresses.
    AskPhysical,
    /// `Qqemu.PhyMemMode`: enables or disables physical addresses.
    SetPhysical(bool),
}

/// Extracts QEMU's packets from incoming data.
#[derive(Default)]
pub(crate) struct Framer {
    packet: Vec<u8>,
    /// True if packets are no longer acknowledged.
    pub unacknowledged: bool,
}

impl Framer {
    /// Processes the next byte. Returns `None` if more bytes are needed.
    pub fn push(&mut self, byte: u8) -> Option<Incoming> {
        // gdb sends this if an answer takes longer than two seconds. It asks for the last packet again, which a socket
        // does not lose: the answer is on its way. The protocol's library would end the session.
        if self.packet.is_empty() && byte == b'-' {
            return None;
        }
        if self.packet.is_empty() && byte != b'$' {
            return Some(Incoming::Bytes(vec![byte]));
        }
        self.packet.push(byte);
        let complete = self.packet.len() >= 4 && self.packet[self.packet.len() - 3] == b'#';
        if !complete && self.packet.len() <= LONGEST {
            return None;
        }
        let packet = std::mem::take(&mut self.packet);
        match packet.get(1..packet.len() - 3) {
            Some(b"qqemu.PhyMemMode") => Some(Incoming::AskPhysical),
            Some(b"Qqemu.PhyMemMode:0") => Some(Incoming::SetPhysical(false)),
            Some(b"Qqemu.PhyMemMode:1") => Some(Incoming::SetPhysical(true)),
            payload => {
                self.unacknowledged |= payload == Some(b"QStartNoAckMode");
                Some(Incoming::Bytes(packet))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_qemu_are_taken_out() {
        let mut framer = Framer::default();
        let mut all = Vec::new();
        all.extend(b"+$g#67$Qqemu.PhyMemMode:1#c8\x03$QStartNoAckMode#b0".iter().filter_map(|byte| framer.push(*byte)));
        let bytes = |bytes: &[u8]| Incoming::Bytes(bytes.to_vec());
        let expected =
            [bytes(b"+"), bytes(b"$g#67"), Incoming::SetPhysical(true), bytes(b"\x03"), bytes(b"$QStartNoAckMode#b0")];
        assert_eq!(all, expected);
        assert!(framer.unacknowledged);
    }

    #[test]
    fn a_debugger_that_waits_long_for_an_answer_disturbs_nothing() {
        let mut framer = Framer::default();
        let received: Vec<u8> = b"-$m-1#00-$QStartNoAckMode#b0--$g#67-"
            .iter()
            .filter_map(|byte| framer.push(*byte))
            .flat_map(|incoming| match incoming {
                Incoming::Bytes(bytes) => bytes,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(String::from_utf8(received).unwrap(), "$m-1#00$QStartNoAckMode#b0$g#67");
    }

    #[test]
    fn a_packet_without_end_is_passed_on_in_pieces() {
        let mut framer = Framer::default();
        let passed: usize =
            (0..10 * LONGEST).filter(|at| framer.push(if *at == 0 { b'$' } else { b'x' }).is_some()).count();
        assert!(passed > 0 && framer.packet.len() <= LONGEST);
    }
}
