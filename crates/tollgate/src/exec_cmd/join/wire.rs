//! The protocol between `tollgate exec --join` and the program that runs the guest, on a socket: records as those of the control channel, a letter, a
//! length (32 bits, little-endian) and a text.
//!
//! The command begins with its version and its order, and then sends input. Either side sends at most [`WINDOW`] bytes of a command's streams before the
//! other side says how many of them it has passed on, so that neither holds more, and none waits for the other.

use std::fmt::{self, Display, Formatter};

/// The version of the protocol.
pub const VERSION: &str = "1";
/// Largest number of bytes in one direction of which the other side has passed on none.
pub const WINDOW: usize = 64 << 10;
/// Largest number of bytes of a stream in one record.
pub const PIECE: usize = 32 << 10;
/// The longest record, in bytes: a word of a command line that Linux takes.
const LONGEST: usize = 128 << 10;
/// The largest order, in bytes, and its largest number of words.
const LARGEST_ORDER: usize = 2 << 20;
const MOST_WORDS: usize = 1 << 15;
/// The longest order, encoded, and a record behind it.
pub const LONGEST_ORDER: usize = LARGEST_ORDER + LONGEST + (MOST_WORDS + 1) * HEAD;
/// Largest number of groups of a user.
const MOST_GROUPS: usize = 64;
/// The number of the last signal.
const LAST_SIGNAL: u8 = 64;
const HEAD: usize = 5;

/// Kinds of records.
pub mod kind {
    /// The version of the protocol: the first record.
    pub const VERSION: u8 = b'v';
    /// A word of the command. The first one begins the order.
    pub const ARGUMENT: u8 = b'a';
    /// A variable of the environment, `NAME=VALUE`.
    pub const VARIABLE: u8 = b'e';
    /// The working directory.
    pub const DIRECTORY: u8 = b'c';
    /// User, group and supplementary groups.
    pub const USER: u8 = b'u';
    /// A bit mask of the streams that are the terminal.
    pub const TERMINALS: u8 = b't';
    /// Rows and columns of the terminal.
    pub const SIZE: u8 = b'w';
    /// The order is complete.
    pub const GO: u8 = b'g';
    /// Standard input.
    pub const INPUT: u8 = b'i';
    /// The end of standard input.
    pub const INPUT_ENDS: u8 = b'q';
    /// A stream that has no reader any more.
    pub const NO_READER: u8 = b'x';
    /// A signal for the command.
    pub const SIGNAL: u8 = b's';
    /// So many bytes have been passed on.
    pub const PASSED_ON: u8 = b'k';
    /// The join is over, whatever the command does. The guest alone gets this record.
    pub const HANG_UP: u8 = b'h';
    /// The command has been started.
    pub const BEGAN: u8 = b'b';
    /// Standard output.
    pub const OUTPUT: u8 = b'o';
    /// Standard error.
    pub const ERRORS: u8 = b'e';
    /// The command has ended with this status.
    pub const ENDED: u8 = b'z';
    /// The command was not started, or the join is refused, for this reason.
    pub const FAILED: u8 = b'f';
    /// The guest has ended, for this reason.
    pub const LOST: u8 = b'l';
}

/// Encodes a record.
pub fn record(kind: u8, text: &[u8]) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    [&[kind], &length.to_le_bytes()[..], text].concat()
}

/// The reason why records of the other side end the join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wrong(&'static str);

impl Display for Wrong {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Received bytes.
#[derive(Debug, Default)]
pub struct Received {
    bytes: Vec<u8>,
    /// Number of the bytes that have been taken.
    taken: usize,
}

impl Received {
    /// Adds bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.bytes.drain(..std::mem::take(&mut self.taken));
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the number of bytes of which no record has been made.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.taken
    }

    /// Takes the next record, if it is complete.
    pub fn next(&mut self) -> Result<Option<(u8, Vec<u8>)>, Wrong> {
        let [kind, l0, l1, l2, l3, rest @ ..] = &self.bytes[self.taken..] else { return Ok(None) };
        let length = u32::from_le_bytes([*l0, *l1, *l2, *l3]) as usize;
        if length > LONGEST {
            return Err(Wrong("a record is too long"));
        }
        let Some(text) = rest.get(..length) else { return Ok(None) };
        let record = (*kind, text.to_vec());
        self.taken += HEAD + length;
        Ok(Some(record))
    }
}

/// The part of the order that has come.
#[derive(Debug, Default)]
pub struct Order {
    has_version: bool,
    words: usize,
    bytes: usize,
    /// True once the order is complete.
    pub complete: bool,
}

fn numbers<T: std::str::FromStr>(text: &[u8]) -> Option<Vec<T>> {
    std::str::from_utf8(text).ok()?.split(' ').map(|number| number.parse().ok()).collect()
}

/// Returns the only number of a text.
pub fn number<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    numbers(text)?.pop()
}

fn is_size(text: &[u8]) -> bool {
    numbers::<u16>(text).is_some_and(|size| size.len() == 2)
}

impl Order {
    /// Checks a record before the guest gets it. Returns false if it is not for the guest.
    pub fn check(&mut self, record: u8, text: &[u8]) -> Result<bool, Wrong> {
        if !self.has_version {
            self.has_version = record == kind::VERSION && text == VERSION.as_bytes();
            return if self.has_version {
                Ok(false)
            } else {
                Err(Wrong("another version of tollgate runs this guest"))
            };
        }
        let sound = match record {
            _ if self.complete => match record {
                kind::INPUT | kind::INPUT_ENDS | kind::PASSED_ON => true,
                kind::SIZE => is_size(text),
                kind::SIGNAL => number(text).is_some_and(|number: u8| (1..=LAST_SIGNAL).contains(&number)),
                kind::NO_READER => matches!(text, b"1" | b"2"),
                _ => false,
            },
            kind::ARGUMENT => true,
            // The first word of the command makes the guest expect the rest.
            _ if self.words == 0 => false,
            kind::VARIABLE => text.iter().position(|byte| *byte == b'=').is_some_and(|at| at > 0),
            kind::DIRECTORY => !text.is_empty(),
            kind::USER => numbers::<u32>(text).is_some_and(|ids| (2..=MOST_GROUPS).contains(&ids.len())),
            kind::TERMINALS => matches!(text, [b'0'..=b'7']),
            kind::SIZE => is_size(text),
            kind::GO => true,
            _ => false,
        };
        if !sound {
            return Err(Wrong("a record makes no sense here"));
        }
        if !self.complete {
            self.words += 1;
            self.bytes += text.len();
            if text.contains(&0) {
                return Err(Wrong("a word contains a zero"));
            }
            if self.words > MOST_WORDS || self.bytes > LARGEST_ORDER {
                return Err(Wrong("the command line is too long"));
            }
            self.complete = record == kind::GO;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started() -> Order {
        let mut order = Order::default();
        assert_eq!(order.check(kind::VERSION, VERSION.as_bytes()), Ok(false));
        order
    }

    #[test]
    fn records_may_come_in_pieces() {
        let bytes = [record(kind::ARGUMENT, b"ls"), record(kind::GO, b"")].concat();
        let mut received = Received::default();
        let mut all = Vec::new();
        for byte in bytes {
            received.add(&[byte]);
            all.extend(received.next().unwrap());
        }
        assert_eq!(all, [(kind::ARGUMENT, b"ls".to_vec()), (kind::GO, Vec::new())]);
        received.add(&[kind::INPUT, 0xff, 0xff, 0xff, 0]);
        assert_eq!(received.next(), Err(Wrong("a record is too long")));
    }

    #[test]
    fn an_order_begins_with_the_version() {
        for (record, text) in [(kind::VERSION, &b"0"[..]), (kind::ARGUMENT, b"ls"), (kind::GO, b"")] {
            assert!(Order::default().check(record, text).is_err(), "{record} {text:?}");
        }
        let mut order = started();
        assert!(order.check(kind::VERSION, VERSION.as_bytes()).is_err());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let good: [(u8, &[u8]); 7] = [
            (kind::ARGUMENT, b""),
            (kind::VARIABLE, b"A="),
            (kind::DIRECTORY, b"tmp"),
            (kind::USER, b"0 0 7"),
            (kind::TERMINALS, b"7"),
            (kind::SIZE, b"24 80"),
            (kind::GO, b""),
        ];
        for (record, text) in good {
            let mut order = started();
            let first = order.check(record, text);
            assert_eq!(first.is_ok(), record == kind::ARGUMENT, "{record} before the command");
            let mut order = started();
            assert_eq!(order.check(kind::ARGUMENT, b"ls"), Ok(true));
            assert_eq!(order.check(record, text), Ok(true), "{record}");
        }
        let wrong: [(u8, &[u8]); 12] = [
            (kind::ARGUMENT, b"a\0b"),
            (kind::VARIABLE, b"=1"),
            (kind::VARIABLE, b"A"),
            (kind::DIRECTORY, b""),
            (kind::USER, b"0"),
            (kind::USER, b"root 0"),
            (kind::USER, b"-1 0"),
            (kind::TERMINALS, b"8"),
            (kind::SIZE, b"24"),
            (kind::SIZE, b"70000 1"),
            (kind::INPUT, b"early"),
            (kind::HANG_UP, b""),
        ];
        for (record, text) in wrong {
            let mut order = started();
            assert_eq!(order.check(kind::ARGUMENT, b"ls"), Ok(true));
            assert!(order.check(record, text).is_err(), "{record} {text:?}");
        }
        let later: [(u8, &[u8], bool); 11] = [
            (kind::INPUT, b"\0", true),
            (kind::INPUT_ENDS, b"", true),
            (kind::SIGNAL, b"2", true),
            (kind::SIGNAL, b"0", false),
            (kind::SIGNAL, b"-9", false),
            (kind::SIGNAL, b"65", false),
            (kind::NO_READER, b"1", true),
            (kind::NO_READER, b"0", false),
            (kind::ARGUMENT, b"late", false),
            (kind::GO, b"", false),
            (kind::HANG_UP, b"", false),
        ];
        for (record, text, right) in later {
            let mut order = started();
            order.check(kind::ARGUMENT, b"ls").unwrap();
            order.check(kind::GO, b"").unwrap();
            assert_eq!(order.check(record, text).is_ok(), right, "{record} {text:?}");
        }
    }

    #[test]
    fn an_order_has_a_largest_size() {
        let mut order = started();
        let word = vec![b'x'; LONGEST];
        let taken = (0..1000).take_while(|_| order.check(kind::ARGUMENT, &word).is_ok()).count();
        assert_eq!(taken, LARGEST_ORDER / LONGEST);
        let mut order = started();
        assert_eq!((0..).take_while(|_| order.check(kind::ARGUMENT, b"").is_ok()).count(), MOST_WORDS);
    }
}
