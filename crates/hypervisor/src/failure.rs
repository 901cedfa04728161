//! Ends of a run that are nobody's instruction: what the hypervisor cannot go on after.

use cpu::vmx::EntryFailure;
use std::fmt;

/// Where the guest was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestPosition {
    /// RIP.
    pub rip: u64,
    /// The bytes there, as far as they can be read.
    pub bytes: [u8; 15],
    /// How many of them could.
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

/// Why a virtual CPU cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// An exit that there is no handler for.
    #[error("VM exit {name} (reason {reason}, qualification {qualification:#x}) is not handled: {place}")]
    Unhandled {
        /// Basic reason.
        reason: u32,
        /// Its name.
        name: &'static str,
        /// Exit qualification.
        qualification: u64,
        /// Where.
        place: GuestPosition,
    },
    /// An instruction that cannot be emulated.
    #[error("emulation failed, {reason}: {place}")]
    Emulation {
        /// What it came to.
        reason: &'static str,
        /// Where.
        place: GuestPosition,
    },
    /// The processor refused to enter the guest.
    #[error("{failure}: {place}")]
    Entry {
        /// Why.
        failure: EntryFailure,
        /// Where.
        place: GuestPosition,
    },
    /// A bound that the hypervisor keeps has been reached.
    #[error("{limit}: {place}")]
    Limit {
        /// Its name.
        limit: String,
        /// Where.
        place: GuestPosition,
    },
}
