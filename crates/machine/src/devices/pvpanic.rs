//! The pvpanic port, by which a kernel that has panicked says so. Linux has a driver for it (`pvpanic-mmio`), which finds it by the
//! ACPI device `QEMU0001`.

use crate::device::{At, Claim, Device, DeviceContext, Ending, Request};
use crate::state::{Plain, StateError};
use serde::{Deserialize, Serialize};

/// Takes events, and reads as those that are understood.
pub const PVPANIC: u16 = 0x505;

/// The kernel has panicked.
const PANICKED: u8 = 1 << 0;
/// It has panicked, and another kernel will take over to save its memory.
const CRASH_LOADED: u8 = 1 << 1;
/// What [`PVPANIC`] reads as.
pub const EVENTS: u8 = PANICKED | CRASH_LOADED;

/// Whether a kernel that writes these events has panicked and does nothing more.
pub fn ends(events: u8) -> bool {
    events & (PANICKED | CRASH_LOADED) == PANICKED
}

const CLAIMS: &[Claim] = &[Claim::bytes("pvpanic", PVPANIC, 1)];

/// The port.
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
