//! The values and the parameters with which the functions of this folder are called.

/// A vector register, or the bytes that an instruction reads from memory, zero-extended.
pub type Bytes = [u8; 64];

/// Values of an instruction's operands.
///
/// A vector register or a memory operand is zero-extended; a memory operand contains the bytes in memory, before a
/// broadcast. General registers and opmasks that are sources occupy the low eight bytes of their operand. The host's
/// instructions read some of the values here, so they are aligned.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Operands {
    /// Old value of the first operand, which is also a source of some instructions (and only a source for those that
    /// compare into RFLAGS). For a merged destination in memory, this is the old memory contents.
    pub dest: Bytes,
    /// The second operand.
    pub a: Bytes,
    /// The third operand.
    pub b: Bytes,
    /// The fourth operand, if it is not an immediate.
    pub c: Bytes,
    /// The opmask, all ones for instructions without one.
    pub mask: u64,
    /// MXCSR: rounding, denormals and exception masks.
    pub mxcsr: u32,
}

/// Results of an instruction. Only the fields for its destination and kind are meaningful.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Outcome {
    /// The vector destination, merged or zeroed under the mask, with zeros above the vector length. The first bytes are
    /// stored to a destination in memory.
    pub dest: Bytes,
    /// The opmask destination.
    pub k: u64,
    /// The general register destination.
    pub general: u64,
    /// MXCSR exception flags that the instruction raises, including unmasked ones.
    pub mxcsr_flags: u32,
    /// ZF, PF and CF of a comparison that sets flags; OF, SF and AF are cleared.
    pub rflags: u64,
}

impl Outcome {
    /// Outcome of an instruction without results.
    pub const NONE: Self = Self { dest: [0; 64], k: 0, general: 0, mxcsr_flags: 0, rflags: 0 };

    pub(super) fn of(dest: Bytes) -> Self {
        Outcome { dest, k: 0, general: 0, mxcsr_flags: 0, rflags: 0 }
    }

    pub(super) fn mask(k: u64) -> Self {
        Outcome { k, ..Outcome::of([0; 64]) }
    }
}

/// Parameters in the encoding of an instruction.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// The immediate.
    pub(super) imm: u8,
    /// The vector length in bytes.
    pub(super) length: usize,
    /// True if elements outside the mask become zero instead of being kept.
    pub(super) zeroing: bool,
    /// Embedded rounding: the value that replaces MXCSR.RC.
    pub(super) rounding: Option<u8>,
    /// True if exceptions are suppressed, by embedded rounding or by {sae}.
    pub(super) quiet: bool,
    /// True if the general register, or the integer in memory, has 64 bits.
    pub(super) wide: bool,
    /// Size in bytes of a memory operand that is broadcast, otherwise 0.
    pub(super) broadcast: usize,
    /// True if exceptions are recorded as if they were masked.
    pub(super) recording: bool,
    /// Index of the source operand in memory: 0 for `a`, 1 for `b`, 2 for `c`.
    pub(super) memory: u8,
}

/// Function that computes one instruction.
pub type Body = fn(&Form, &Operands) -> Outcome;
