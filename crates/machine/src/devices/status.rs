//! The status port: how a guest says with which exit status its run is to end. `docs/marker-port.md` is the guest's view.

use crate::device::{At, Claim, Device, DeviceContext, Request};
use crate::state::{Plain, StateError};
use serde::{Deserialize, Serialize};

/// Takes the status, and reads as [`PRESENT`].
pub const STATUS: u16 = 0x1f0d;
/// What [`STATUS`] reads as.
pub const PRESENT: u8 = b'S';

const CLAIMS: &[Claim] = &[Claim::bytes("status", STATUS, 1)];

/// The port.
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
