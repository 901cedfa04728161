//! The protocol on the channel `control` between this program and process 1 of the guest (guests/linux/exec/init.c): records of a letter, a
//! length (32 bits, little-endian) and a text.

/// Names of the channels, in the order of their numbers.
pub const CHANNELS: [&str; 4] = ["control", "stdin", "stdout", "stderr"];
/// Number of the channel for records.
pub const CONTROL: u8 = 0;
/// Number of the channel for the command's standard input.
pub const INPUT: u8 = 1;
/// Number of the channel for the command's standard output.
pub const OUTPUT: u8 = 2;
/// Number of the channel for the command's standard error.
pub const ERRORS: u8 = 3;

/// The longest record that a guest may send, in bytes.
const LONGEST: usize = 1 << 16;
const HEAD: usize = 5;

/// Records for the guest.
#[derive(Debug, Default)]
pub struct Records(Vec<u8>);

impl Records {
    /// Adds a record.
    pub fn add(&mut self, kind: u8, text: impl AsRef<[u8]>) {
        let text = text.as_ref();
        self.0.push(kind);
        self.0.extend((text.len() as u32).to_le_bytes());
        self.0.extend(text);
    }

    /// Takes all records, encoded.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }

    /// Returns true if there are no records.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The end of the command, as the guest reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Exit status, 128 + n after signal n.
    pub status: u8,
    /// Taint flags of the kernel (Linux: Documentation/admin-guide/tainted-kernels.rst).
    pub tainted: u64,
    /// Number of processes that the kernel killed for lack of memory.
    pub killed_for_memory: u64,
}

/// A message of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// The guest asks for its order. A saved boot stops here, before it knows the order.
    Ready,
    /// Everything is ready, and the command waits for the guest to settle.
    Prepared,
    /// The command is about to execute its first instruction.
    Began,
    /// The command has ended.
    Ended(Ended),
    /// The command could not start, for this reason.
    Failed(String),
    /// The kernel passed on these words of its command line, because it has no such parameters.
    Unknown(Vec<String>),
    /// A fact about the kernel: its name and value.
    Fact(String, String),
    /// A record about a command that has joined the guest: its number, the record's kind, and its text.
    Joined(u8, u8, Vec<u8>),
}

/// Decodes the guest's messages.
#[derive(Debug, Default)]
pub struct Hearing {
    bytes: Vec<u8>,
}

impl Hearing {
    /// Returns the messages that are complete with these bytes. Malformed records are ignored, because any program of the guest may write to the channel.
    pub fn hear(&mut self, bytes: &[u8]) -> Vec<Said> {
        self.bytes.extend_from_slice(bytes);
        let mut said = Vec::new();
        while let [kind, l0, l1, l2, l3, rest @ ..] = self.bytes.as_slice() {
            let len = u32::from_le_bytes([*l0, *l1, *l2, *l3]) as usize;
            if len > LONGEST {
                self.bytes.clear();
                break;
            }
            let Some(text) = rest.get(..len) else { break };
            said.extend(match (kind, text) {
                (b'j', [number, kind, text @ ..]) => Some(Said::Joined(*number, *kind, text.to_vec())),
                _ => understand(*kind, &String::from_utf8_lossy(text)),
            });
            self.bytes.drain(..HEAD + len);
        }
        said
    }
}

fn understand(kind: u8, text: &str) -> Option<Said> {
    match kind {
        b'r' => Some(Said::Ready),
        b'p' => Some(Said::Prepared),
        b'b' => Some(Said::Began),
        b'f' => Some(Said::Failed(text.to_owned())),
        b'u' => Some(Said::Unknown(text.split('\n').map(str::to_owned).collect())),
        b'k' => text.split_once('\n').map(|(name, value)| Said::Fact(name.to_owned(), value.to_owned())),
        b'z' => {
            let mut numbers = text.split(' ').map(|number| number.parse::<u64>().ok());
            let mut next = || numbers.next().flatten();
            let (status, tainted, killed_for_memory) = (next()?, next()?, next()?);
            Some(Said::Ended(Ended { status: u8::try_from(status).ok()?, tainted, killed_for_memory }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_may_come_in_pieces() {
        let mut records = Records::default();
        records.add(b'p', "");
        records.add(b'b', "");
        records.add(b'f', "no such thing");
        records.add(b'u', "mitigation=off\nquite");
        records.add(b'k', "release\n6.1.0");
        records.add(b'k', "no value");
        records.add(b'j', b"\x07o\xff\x00");
        records.add(b'j', b"\x07");
        records.add(b'z', "137 128 1");
        let bytes = records.take();
        assert!(records.is_empty());
        let expected = [
            Said::Prepared,
            Said::Began,
            Said::Failed("no such thing".into()),
            Said::Unknown(vec!["mitigation=off".into(), "quite".into()]),
            Said::Fact("release".into(), "6.1.0".into()),
            Said::Joined(7, b'o', vec![0xff, 0]),
            Said::Ended(Ended { status: 137, tainted: 128, killed_for_memory: 1 }),
        ];
        assert_eq!(Hearing::default().hear(&bytes), expected);
        let mut hearing = Hearing::default();
        let said: Vec<Said> = bytes.iter().flat_map(|byte| hearing.hear(&[*byte])).collect();
        assert_eq!(said, expected);
    }

    #[test]
    fn nonsense_says_nothing() {
        for text in ["", "1", "1 2", "256 0 0", "-1 0 0", "a b c"] {
            let mut records = Records::default();
            records.add(b'z', text);
            assert_eq!(Hearing::default().hear(&records.take()), [], "{text}");
        }
        let mut hearing = Hearing::default();
        assert_eq!(hearing.hear(&[b'z', 0xff, 0xff, 0xff, 0xff, 1, 2, 3]), []);
        assert!(hearing.bytes.is_empty());
    }
}
