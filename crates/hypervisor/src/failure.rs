//! Failures after which the hypervisor cannot continue.

use cpu::vmx::EntryFailure;
use std::fmt;

/// Position of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestPosition {
    /// RIP.
    pub rip: u64,
    /// Bytes at RIP, as far as they can be read.
    pub bytes: [u8; 15],
    /// Number of bytes that could be read.
    pub length: usize,
}

impl fmt::Display for GuestPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RIP {:#x}, code", self.rip)?;
        if self.length == 0 {
            return f.write_str(" not readable");
        }
        self.bytes[..self.length.min(15)].iter().try_for_each(|byte| write!(f, " {byte:02x}"))
    }
}

/// Reason for which a virtual CPU cannot continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// An exit without a handler.
    #[error("VM exit {name} (reason {reason}, qualification {qualification:#x}) is not handled: {place}")]
    Unhandled {
        /// Basic reason.
        reason: u32,
        /// Name of the reason.
        name: &'static str,
        /// Exit qualification.
        qualification: u64,
        /// Position of the guest.
        place: GuestPosition,
    },
    /// An instruction that cannot be emulated.
    #[error("emulation failed, {reason}: {place}")]
    Emulation {
        /// Reason for the failure.
        reason: &'static str,
        /// Position of the guest.
        place: GuestPosition,
    },
    /// The processor refused to enter the guest.
    #[error("{failure}: {place}")]
    Entry {
        /// Reason for the refusal.
        failure: EntryFailure,
        /// Position of the guest.
        place: GuestPosition,
    },
    /// A limit of the hypervisor has been reached.
    #[error("{limit}: {place}")]
    Limit {
        /// Name of the limit.
        limit: String,
        /// Position of the guest.
        place: GuestPosition,
    },
}
