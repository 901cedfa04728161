//! Which files are no ledgers that this program reads, and why.

/// The version of the layout.
pub const VERSION: u16 = 6;
/// The version whose events end with [`Family::Undefined`](crate::Family::Undefined): it was never written for a guest of a hypervisor. Otherwise the same.
pub const BEFORE_HYPERVISORS: u16 = 1;
/// Uncompressed bytes in all, at most: some ten million entries.
pub const LARGEST_PAYLOAD: usize = 128 << 20;

/// Why a file is not a usable ledger.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// It does not begin as a ledger does.
    #[error("is not a ledger")]
    NotALedger,
    /// Another version of this program wrote it.
    #[error("is a ledger of format version {found}; this program reads versions {BEFORE_HYPERVISORS} to {VERSION}")]
    Version {
        /// The version found.
        found: u16,
    },
    /// Bytes at its end are missing, or too many.
    #[error("is truncated, or something was appended to it: {found} bytes where {expected} were written")]
    Length {
        /// Bytes there should be.
        expected: u64,
        /// Bytes there are.
        found: u64,
    },
    /// Its checksum is wrong.
    #[error("is damaged: its checksum is wrong")]
    Checksum,
    /// A frame can't be decompressed.
    #[error("is damaged: a frame can't be decompressed")]
    Frame,
    /// It is larger than any ledger that is made now.
    #[error(
        "is too large: its contents are more than {} MiB. An older version wrote such files and could not read them either; \
         this version folds what is too much, so run the guest again",
        LARGEST_PAYLOAD >> 20
    )]
    TooLarge,
    /// What it says makes no sense.
    #[error("is malformed: {section}: {reason}")]
    Malformed {
        /// The section.
        section: &'static str,
        /// What is wrong.
        reason: &'static str,
    },
}
