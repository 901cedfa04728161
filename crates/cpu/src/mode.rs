//! Decoding modes: what decides about the meaning of code bytes.

/// 16-bit code.
pub const BITS16: u8 = 0;
/// 32-bit code (protected or compatibility mode).
pub const BITS32: u8 = 1;
/// 64-bit mode.
pub const BITS64: u8 = 2;
/// Flag for protected mode outside virtual-8086 mode, where some instructions exist that real mode lacks.
pub const PROTECTED: u8 = 4;
/// Flag for AMD processors, which decode some bytes differently from Intel's.
pub const AMD: u8 = 8;
/// Flag for code whose calls and returns use a shadow stack, or for which a bitmap affects tracking: such code is not
/// translated.
pub const SHADOWED: u8 = 16;
/// Flag for code in which indirect branches are tracked.
pub const TRACKED: u8 = 32;
/// Flags for any kind of control-flow enforcement.
pub const ENFORCED: u8 = SHADOWED | TRACKED;
