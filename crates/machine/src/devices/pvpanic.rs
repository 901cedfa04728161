//! The pvpanic port, with which a kernel reports a panic. Linux has a driver for it (`pvpanic-mmio`), which finds the
//! device by its ACPI ID `QEMU0001`.

use crate::device::{At, Claim, Device, DeviceContext, Ending, Request};
use crate::state::{Plain, StateError};
use serde::{Deserialize, Serialize};

/// Port for events; it reads as the set of supported events.
pub const PVPANIC: u16 = 0x505;

/// The kernel has panicked.
const PANICKED: u8 = 1 << 0;
/// The kernel has panicked, and a crash kernel takes over to save its memory.
const CRASH_LOADED: u8 = 1 << 1;
/// Value that [`PVPANIC`] reads as.
pub const EVENTS: u8 = PANICKED | CRASH_LOADED;

/// Returns true if a kernel that writes these events has panicked and does nothing more.
pub fn ends(events: u8) -> bool {
    events & (PANICKED | CRASH_LOADED) == PANICKED
}

const CLAIMS: &[Claim] = &[Claim::bytes("pvpanic", PVPANIC, 1)];

/// The pvpanic port.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PvPanic;

impl Device for PvPanic {
    fn claims(&self) -> &'static [Claim] {
        CLAIMS
    }

    fn read(&mut self, _at: At, _ctx: &mut DeviceContext) -> u64 {
        EVENTS.into()
    }

    fn write(&mut self, _at: At, value: u64, ctx: &mut DeviceContext) {
        if ends(value as u8) {
            ctx.request(Request::End(Ending::Panic));
        }
    }
}

impl Plain for PvPanic {
    fn check(&self, _current: &Self) -> Result<(), StateError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_another_follows_goes_on() {
        for (events, end) in [(0, false), (PANICKED, true), (CRASH_LOADED, false), (0xff, false), (0xfd, true)] {
            assert_eq!(ends(events), end, "{events:#x}");
        }
    }
}
