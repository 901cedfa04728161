//! Ports with which a test program ends the run: the debug-exit port, and the "Shutdown" port of Bochs.

use crate::device::{At, Claim, Device, DeviceContext, Ending, Request};
use crate::state::{Plain, StateError, require};
use serde::{Deserialize, Serialize};

/// Debug exit port, 1 to 4 bytes.
pub const DEBUG_EXIT: u16 = 0xf4;
/// The port that takes the bytes of "Shutdown".
pub const SHUTDOWN: u16 = 0x8900;

const WORD: &[u8] = b"Shutdown";

/// Returns the exit status for a value written to [`DEBUG_EXIT`]. A host keeps eight bits of it.
pub fn exit_status(value: u32) -> u8 {
    (value << 1 | 1) as u8
}

/// Both ports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExitPorts {
    /// Number of bytes of the word that have been received.
    matched: usize,
}

impl ExitPorts {
    /// Handles a byte for the "Shutdown" port. Returns true if it completes the word.
    fn shutdown(&mut self, value: u8) -> bool {
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

const CLAIMS: &[Claim] = &[Claim::ports("debug exit", DEBUG_EXIT, 1), Claim::bytes("shutdown", SHUTDOWN, 1)];

impl Device for ExitPorts {
    fn claims(&self) -> &'static [Claim] {
        CLAIMS
    }

    fn read(&mut self, _at: At, _ctx: &mut DeviceContext) -> u64 {
        u64::MAX
    }

    fn write(&mut self, at: At, value: u64, ctx: &mut DeviceContext) {
        match at.claim {
            0 => ctx.request(Request::End(Ending::DebugExit(exit_status(value as u32)))),
            _ if self.shutdown(value as u8) => ctx.request(Request::End(Ending::PowerOff)),
            _ => {}
        }
    }
}

impl Plain for ExitPorts {
    fn check(&self, _current: &Self) -> Result<(), StateError> {
        require(self.matched < WORD.len(), "more bytes than the word has")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_not_longer_than_it_is() {
        let possible = |matched| ExitPorts { matched }.check(&ExitPorts::default()).is_ok();
        assert_eq!([0, 7, 8, usize::MAX].map(possible), [true, true, false, false]);
    }

    /// A machine whose processors wait, and whose devices have no event, is one that nothing wakes.
    #[test]
    fn a_device_that_only_answers_wakes_no_machine() {
        assert_eq!(Device::next_event(&ExitPorts::default()), None);
    }

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
            let mut port = ExitPorts::default();
            assert_eq!(text.bytes().filter(|&byte| port.shutdown(byte)).count(), ends, "{text}");
        }
    }
}
