//! What is said on the channel `control` between this program and process 1 of the guest (guests/linux/exec/init.c): records of a letter, a
//! length (32 bits, little-endian) and a text.

/// Names of the channels, in the order of their numbers.
pub const CHANNELS: [&str; 4] = ["control", "stdin", "stdout", "stderr"];
/// Number of the channel for records.
pub const CONTROL: u8 = 0;
/// … for what the command reads.
pub const INPUT: u8 = 1;
/// … for what it writes.
pub const OUTPUT: u8 = 2;
/// … for its messages.
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

    /// All of them, as they are sent.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// How the command ended, as the guest has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its exit status, 128 + n after signal n.
    pub status: u8,
    /// What has tainted the kernel (Linux: Documentation/admin-guide/tainted-kernels.rst).
    pub tainted: u64,
    /// Processes that were killed for want of memory.
    pub killed_for_memory: u64,
}

/// What the guest says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// The guest asks what to do: it can't have been saved knowing it.
    Ready,
    /// Everything is ready, and the command waits for the guest to settle.
    Prepared,
    /// The command is about to execute its first instruction.
    Began,
    /// It has ended.
    Ended(Ended),
    /// There is no command, and this is why.
    Failed(String),
}

/// Takes what the guest says apart.
#[derive(Debug, Default)]
pub struct Hearing {
    bytes: Vec<u8>,
}

impl Hearing {
    /// What is said by bytes that have come, as far as they are whole. What makes no sense is left out: a program of the guest may write there.
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
            said.extend(understand(*kind, &String::from_utf8_lossy(text)));
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
        records.add(b'z', "137 128 1");
        let bytes = records.take();
        assert!(records.is_empty());
        let expected = [
            Said::Prepared,
            Said::Began,
            Said::Failed("no such thing".into()),
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
