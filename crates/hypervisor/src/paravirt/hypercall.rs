//! Hypercalls: the number in RAX, arguments in RBX, RCX, RDX and RSI, the result in RAX.

/// A page directory is about to be freed; RBX is its guest-physical address.
pub const FREE_PGD: u64 = 1;
/// All translations are to go, global ones included.
pub const FLUSH_TLB: u64 = 2;

/// Done.
pub const OK: i64 = 0;
/// Only the kernel may call.
pub const EPERM: i64 = -1;
/// An argument makes no sense.
pub const EINVAL: i64 = -22;
/// There is no such call.
pub const ENOSYS: i64 = -1000;
