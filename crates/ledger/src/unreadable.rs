//! Errors of files that are not usable ledgers.

/// Version of the file format.
pub const VERSION: u16 = 8;
/// Version whose events end with [`Family::Undefined`](crate::Family::Undefined). It was never written for a guest of a hypervisor, and is otherwise equal.
pub const BEFORE_HYPERVISORS: u16 = 1;
/// Largest uncompressed size in bytes: about ten million entries.
pub const LARGEST_PAYLOAD: usize = 128 << 20;

/// The reason why a file is not a usable ledger.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// The file does not begin like a ledger.
    #[error("is not a ledger")]
    NotALedger,
    /// The file has another version of the format.
    #[error("is a ledger of format version {found}; this program reads versions {BEFORE_HYPERVISORS} to {VERSION}")]
    Version {
        /// Version found.
        found: u16,
    },
    /// The file is truncated, or has bytes appended.
    #[error("is truncated, or something was appended to it: {found} bytes where {expected} were written")]
    Length {
        /// Expected size in bytes.
        expected: u64,
        /// Actual size in bytes.
        found: u64,
    },
    /// The checksum is wrong.
    #[error("is damaged: its checksum is wrong")]
    Checksum,
    /// A frame can't be decompressed.
    #[error("is damaged: a frame can't be decompressed")]
    Frame,
    /// The file is larger than any ledger of this version.
    #[error(
        "is too large: its contents are more than {} MiB. An older version wrote such files and could not read them either; \
         this version folds what is too much, so run the guest again",
        LARGEST_PAYLOAD >> 20
    )]
    TooLarge,
    /// The contents are invalid.
    #[error("is malformed: {section}: {reason}")]
    Malformed {
        /// The section.
        section: &'static str,
        /// The error.
        reason: &'static str,
    },
}
