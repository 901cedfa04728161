//! Port 0x80 (power-on self-test codes, and the delay of old drivers), and the debug console of Bochs at port 0xe9.

use crate::device::{At, Claim, Device, DeviceContext};
use crate::state::{Plain, StateError};
use serde::{Deserialize, Serialize};

/// Self-test code; a write takes time and has no other effect.
pub const POST_CODE: u16 = 0x80;
/// Debug console.
pub const DEBUG_CONSOLE: u16 = 0xe9;

/// Both ports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DebugPorts {
    code: u8,
    /// Console output that has not been reported to the board.
    #[serde(skip)]
    pub output: Vec<u8>,
}

impl DebugPorts {
    /// Reads a port. The console reads as its own port number, by which guests detect it.
    pub fn read(&self, port: u16) -> u8 {
        match port {
            POST_CODE => self.code,
            DEBUG_CONSOLE => DEBUG_CONSOLE as u8,
            _ => 0xff,
        }
    }

    /// Writes a port.
    pub fn write(&mut self, port: u16, value: u8) {
        match port {
            POST_CODE => self.code = value,
            DEBUG_CONSOLE => self.output.push(value),
            _ => {}
        }
    }

    /// Returns the last self-test code, which shows the progress of a silent guest.
    pub fn code(&self) -> u8 {
        self.code
    }
}

const CLAIMS: &[Claim] =
    &[Claim::bytes("POST code (I/O delay)", POST_CODE, 1), Claim::bytes("debug console", DEBUG_CONSOLE, 1)];

impl Device for DebugPorts {
    fn claims(&self) -> &'static [Claim] {
        CLAIMS
    }

    fn read(&mut self, at: At, _ctx: &mut DeviceContext) -> u64 {
        DebugPorts::read(self, at.port(CLAIMS)).into()
    }

    fn write(&mut self, at: At, value: u64, ctx: &mut DeviceContext) {
        DebugPorts::write(self, at.port(CLAIMS), value as u8);
        ctx.print(&mut self.output);
    }
}

impl Plain for DebugPorts {
    fn check(&self, _current: &Self) -> Result<(), StateError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_keep_what_is_written() {
        let mut ports = DebugPorts::default();
        b"hi".iter().for_each(|&byte| ports.write(DEBUG_CONSOLE, byte));
        ports.write(POST_CODE, 0x55);
        ports.write(0x81, 0x66);
        assert_eq!((ports.output.as_slice(), ports.code()), (&b"hi"[..], 0x55));
        assert_eq!([POST_CODE, DEBUG_CONSOLE, 0x81].map(|port| ports.read(port)), [0x55, 0xe9, 0xff]);
    }
}
