//! Types of system descriptors (SDM vol. 3, table 3-2).

/// 16-bit TSS, not busy.
pub const TSS16: u8 = 1;
/// LDT.
pub const LDT: u8 = 2;
/// 16-bit call gate.
pub const CALL_GATE16: u8 = 4;
/// Task gate.
pub const TASK_GATE: u8 = 5;
/// 16-bit interrupt gate.
pub const INTERRUPT_GATE16: u8 = 6;
/// 16-bit trap gate.
pub const TRAP_GATE16: u8 = 7;
/// 32- or 64-bit TSS, not busy.
pub const TSS32: u8 = 9;
/// 32- or 64-bit call gate.
pub const CALL_GATE32: u8 = 12;
/// 32- or 64-bit interrupt gate.
pub const INTERRUPT_GATE32: u8 = 14;
/// 32- or 64-bit trap gate.
pub const TRAP_GATE32: u8 = 15;
/// With the type of a TSS: it is busy.
pub const BUSY: u8 = 2;
