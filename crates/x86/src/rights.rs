//! Access rights of segments, in the format of a VMCS (SDM vol. 3, table 24-2).

/// Accessed.
pub const ACCESSED: u32 = 1;
/// Writable for data, readable for code.
pub const RW: u32 = 2;
/// Expand-down for data, conforming for code.
pub const DC: u32 = 4;
/// Code.
pub const CODE: u32 = 8;
/// The type: the four bits above, or one of [`crate::descriptor`] for a system segment.
pub const TYPE: u32 = 0xf;
/// Code or data; otherwise a system segment.
pub const S: u32 = 1 << 4;
/// Position of the descriptor privilege level.
pub const DPL_SHIFT: u32 = 5;
/// Present.
pub const P: u32 = 1 << 7;
/// 64-bit code.
pub const L: u32 = 1 << 13;
/// 32-bit code or stack.
pub const DB: u32 = 1 << 14;
/// The limit is in pages.
pub const G: u32 = 1 << 15;
/// Unusable.
pub const UNUSABLE: u32 = 1 << 16;
/// Bits that must be clear.
pub const RESERVED: u32 = 0xfffe_0f00;
