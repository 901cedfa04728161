//! Reset registers: system control port A (0x92), and the reset control register (0xcf9), to which the FADT refers.

use crate::device::{At, Claim, Device, DeviceContext, Ending, Request};
use crate::state::{Plain, StateError, require};
use serde::{Deserialize, Serialize};

/// System control port A.
pub const SYSTEM_CONTROL_A: u16 = 0x92;
/// Reset control register. It decodes only byte accesses: wider ones at 0xcf8 belong to PCI.
pub const RESET_CONTROL: u16 = 0xcf9;
/// Value that resets the machine when written to [`RESET_CONTROL`].
pub const RESET_VALUE: u8 = 0x06;

const FAST_RESET: u8 = 1 << 0;
const A20: u8 = 1 << 1;
const RESET_CPU: u8 = 1 << 2;
/// Kind of reset, and the bit for a power cycle.
const RESET_KIND: u8 = 1 << 1 | 1 << 3;

/// Both registers. The A20 gate is stored but always open.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResetPorts {
    system_control: u8,
    reset_control: u8,
    reset: bool,
}

impl Default for ResetPorts {
    fn default() -> Self {
        Self::new()
    }
}

impl ResetPorts {
    /// Creates the registers with A20 open.
    pub fn new() -> Self {
        Self { system_control: A20, reset_control: 0, reset: false }
    }

    /// Returns true if the guest has requested a reset since the last call.
    pub fn take_reset(&mut self) -> bool {
        std::mem::take(&mut self.reset)
    }

    /// Reads a register.
    pub fn read(&self, port: u16) -> u8 {
        match port {
            SYSTEM_CONTROL_A => self.system_control,
            RESET_CONTROL => self.reset_control,
            _ => 0xff,
        }
    }

    /// Writes a register; a rising edge of the reset bit resets the machine.
    pub fn write(&mut self, port: u16, value: u8) {
        match port {
            SYSTEM_CONTROL_A => {
                self.reset |= value & !self.system_control & FAST_RESET != 0;
                self.system_control = value & (FAST_RESET | A20);
            }
            RESET_CONTROL => {
                self.reset |= value & RESET_CPU != 0;
                self.reset_control = value & RESET_KIND;
            }
            _ => {}
        }
    }
}

const CLAIMS: &[Claim] =
    &[Claim::bytes("system control", SYSTEM_CONTROL_A, 1), Claim::bytes("reset control", RESET_CONTROL, 1)];

impl Device for ResetPorts {
    fn claims(&self) -> &'static [Claim] {
        CLAIMS
    }

    fn read(&mut self, at: At, _ctx: &mut DeviceContext) -> u64 {
        ResetPorts::read(self, at.port(CLAIMS)).into()
    }

    fn write(&mut self, at: At, value: u64, ctx: &mut DeviceContext) {
        ResetPorts::write(self, at.port(CLAIMS), value as u8);
        if self.take_reset() {
            ctx.request(Request::End(Ending::Reset));
        }
    }
}

impl Plain for ResetPorts {
    fn check(&self, _current: &Self) -> Result<(), StateError> {
        require(!self.reset, "a reset that is asked for")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reset_bits_reset() {
        for (port, values, reset) in [
            (SYSTEM_CONTROL_A, &[0x03][..], true),
            (SYSTEM_CONTROL_A, &[0x02], false),
            (RESET_CONTROL, &[0x02], false),
            (RESET_CONTROL, &[0x02, RESET_VALUE], true),
            (RESET_CONTROL, &[0x0e], true),
            (0x93, &[0xff], false),
        ] {
            let mut ports = ResetPorts::new();
            values.iter().for_each(|&value| ports.write(port, value));
            assert_eq!((ports.take_reset(), ports.take_reset()), (reset, false), "{port:#x} {values:x?}");
        }
    }

    #[test]
    fn a20_reads_back() {
        let mut ports = ResetPorts::new();
        assert_eq!(ports.read(SYSTEM_CONTROL_A), 2);
        ports.write(SYSTEM_CONTROL_A, 0);
        assert_eq!((ports.read(SYSTEM_CONTROL_A), ports.read(RESET_CONTROL), ports.read(0)), (0, 0, 0xff));
    }
}
