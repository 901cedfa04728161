//! The status port: how a guest says with which exit status its run is to end. `docs/marker-port.md` is the guest's view.

/// Takes the status, and reads as [`PRESENT`].
pub const STATUS: u16 = 0x1f0d;
/// What [`STATUS`] reads as.
pub const PRESENT: u8 = b'S';
