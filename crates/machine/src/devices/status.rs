//! The status port, with which a guest sets the exit status of its run. `docs/marker-port.md` describes the guest's
//! view.

use crate::device::{At, Claim, Device, DeviceContext, Request};
use crate::state::{Plain, StateError};
use serde::{Deserialize, Serialize};

/// Port for the status; it reads as [`PRESENT`].
pub const STATUS: u16 = 0x1f0d;
/// Value that [`STATUS`] reads as.
pub const PRESENT: u8 = b'S';

const CLAIMS: &[Claim] = &[Claim::bytes("status", STATUS, 1)];

/// The status port.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusPort;

impl Device for StatusPort {
    fn claims(&self) -> &'static [Claim] {
        CLAIMS
    }

    fn read(&mut self, _at: At, _ctx: &mut DeviceContext) -> u64 {
        PRESENT.into()
    }

    fn write(&mut self, _at: At, value: u64, ctx: &mut DeviceContext) {
        ctx.request(Request::ExitStatus(value as u8));
    }
}

impl Plain for StatusPort {
    fn check(&self, _current: &Self) -> Result<(), StateError> {
        Ok(())
    }
}
