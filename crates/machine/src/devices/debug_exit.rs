//! Ways for a test program to end the run: the debug exit port, and the "Shutdown" port of Bochs.

/// Debug exit port, 1 to 4 bytes.
pub const DEBUG_EXIT: u16 = 0xf4;
/// The port that takes the bytes of "Shutdown".
pub const SHUTDOWN: u16 = 0x8900;

const WORD: &[u8] = b"Shutdown";

/// Exit status that a value written to [`DEBUG_EXIT`] stands for. A host keeps eight bits of it.
pub fn exit_status(value: u32) -> u8 {
    (value << 1 | 1) as u8
}

/// The "Shutdown" port.
#[derive(Clone, Debug, Default)]
pub struct ShutdownPort {
    matched: usize,
}

impl ShutdownPort {
    /// Takes a byte; whether it completes the word.
    pub fn write(&mut self, value: u8) -> bool {
        self.matched = match self.matched {
            at if value == WORD[at] => at + 1,
            _ => usize::from(value == WORD[0]),
        };
        if self.matched == WORD.len() {
            self.matched = 0;
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_statuses() {
        for (value, status) in [(0, 1), (1, 3), (38, 77), (0x80, 1), (u32::MAX, 0xff)] {
            assert_eq!(exit_status(value), status, "{value:#x}");
        }
    }

    #[test]
    fn shutdown_needs_the_whole_word() {
        for (text, ends) in [
            ("Shutdown", 1),
            ("Shutdow", 0),
            ("ShutShutdown", 1),
            ("SShutdown", 1),
            ("shutdown", 0),
            ("ShutdownShutdown", 2),
        ] {
            let mut port = ShutdownPort::default();
            assert_eq!(text.bytes().filter(|&byte| port.write(byte)).count(), ends, "{text}");
        }
    }
}
