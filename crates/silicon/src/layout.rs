//! Addresses of the code and of the data of a measurement.
//!
//! The whole layout lies below 2 GiB, so that 32-bit displacements reach it and pointers survive 32-bit arithmetic.

/// Size of a page.
pub const PAGE: u64 = 4096;
/// Start of the code.
pub const CODE: u64 = 0x2100_0000;
/// Greatest size of a block in bytes.
pub const MOST_BYTES: usize = 2048;
/// Greatest size of the code.
pub const CODE_LEN: u64 = 64 << 10;
/// The page of the routines' own data: see [`Slot`].
pub const SLOTS: u64 = 0x2200_0000;
/// The page to which the registers of a block point at first, each to a place of its own.
pub const SCRATCH: u64 = 0x1234_4000;
/// The pages that stand for the data of a program, to which RIP-relative operands point.
pub const STATICS: u64 = 0x1234_8000;
/// Distance of the places to which registers point.
pub const STEP: u64 = 0x100;

/// Contents of the pages that a block accesses: as an integer of 8 bytes it is a pointer to [`SCRATCH`], as a number
/// of 4 or 8 bytes it is neither infinite nor a NaN.
pub const PATTERN: u64 = SCRATCH + 0x840;

/// Returns the first value of a general register, by its number: an address of its own.
///
/// RCX is aligned to 8 bytes instead of 64 unless `aligned` is set: a shift by CL then shifts by another number than 0,
/// which some processors execute as a slow special case.
pub fn register(number: u64, aligned: bool) -> u64 {
    SCRATCH + STEP * number + if number == 1 && !aligned { 8 } else { 0 }
}

/// A quadword of the page [`SLOTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Slot {
    /// Time stamp before the block.
    Start,
    /// Time stamp after the block.
    End,
    /// Rounds of the loop, as the caller sets them.
    Rounds,
    /// Rounds that are left, if no register is free.
    Left,
    /// Stack pointer of the caller.
    Stack,
    /// MXCSR of the caller, and the one of blocks above it.
    Mxcsr,
    /// First value of vector registers, 16 bytes.
    Vector,
    /// The second half of the vector.
    VectorHigh,
}

impl Slot {
    /// Returns the slot's address.
    pub fn address(self) -> u64 {
        SLOTS + 8 * self as u64
    }
}

/// MXCSR of blocks: all exceptions masked, denormal numbers read and written as zero, so that no block pays for
/// denormal numbers that only the pattern of its data made.
pub const MXCSR: u32 = 0x9fc0;
/// Both halves of the first value of vector registers: as two numbers of 4 bytes and as one of 8 bytes they are
/// ordinary.
pub const VECTOR: u64 = 0x3fe1_2345_3fe1_2345;
