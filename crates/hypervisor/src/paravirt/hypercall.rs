//! Hypercalls: the number in RAX, arguments in RBX, RCX, RDX and RSI, the result in RAX.

/// A page directory is about to be freed; RBX is its guest-physical address.
pub const FREE_PGD: u64 = 1;
/// Flushes all translations, including global ones.
pub const FLUSH_TLB: u64 = 2;

/// Success.
pub const OK: i64 = 0;
/// Error: only the kernel may call.
pub const EPERM: i64 = -1;
/// Error: an argument is invalid.
pub const EINVAL: i64 = -22;
/// Error: the call does not exist.
pub const ENOSYS: i64 = -1000;
