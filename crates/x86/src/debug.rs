//! Debug registers (SDM vol. 3, 17.2).

/// Breakpoints 0 to 3 were met.
pub const DR6_BREAKPOINTS: u64 = 0xf;
/// The next instruction accesses a debug register, with [`DR7_GD`].
pub const DR6_BD: u64 = 1 << 13;
/// Single step.
pub const DR6_BS: u64 = 1 << 14;
/// Task switch to a task with the T flag.
pub const DR6_BT: u64 = 1 << 15;
/// Condition bits of DR6.
pub const DR6_CONDITIONS: u64 = DR6_BREAKPOINTS | DR6_BD | DR6_BS | DR6_BT;
/// Bits of DR6 that are always set, and its value after reset.
pub const DR6_FIXED: u64 = 0xffff_0ff0;

/// Local and global enable bits of the four breakpoints.
pub const DR7_ENABLED: u64 = 0xff;
/// Local enable bits of the four breakpoints, which task switches clear.
pub const DR7_LOCAL: u64 = 0x55;
/// Exact data breakpoints, local.
pub const DR7_LE: u64 = 1 << 8;
/// Exact data breakpoints, global.
pub const DR7_GE: u64 = 1 << 9;
/// General detect: accesses to debug registers fault.
pub const DR7_GD: u64 = 1 << 13;
/// Bits of DR7 that are always set, and its value after reset.
pub const DR7_FIXED: u64 = 0x400;
/// Bits of DR7 that can be written.
pub const DR7_WRITABLE: u64 = 0xffff_23ff;
