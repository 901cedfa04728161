//! A decoded instruction in the format of the interpreter.

use crate::fault::{Exec, Flow};
use crate::state::Cpu;

/// Function that executes an instruction.
///
/// On entry [`rip`](crate::arch::Arch::rip) already is the address of the next instruction. A handler that returns an
/// error has not changed any architectural state (the interpreter restores `rip`).
pub type Handler = fn(&mut Cpu, &Op) -> Exec<Flow>;

/// Register number that reads as zero: "no base", "no index".
pub const NO_REG: u8 = 16;

/// Segment number for "base 0, no check": 64-bit accesses through CS, DS, ES and SS.
pub const SEG_FLAT: u8 = 6;

/// A decoded instruction.
///
/// `r0`..`r3` are register numbers in the order of the operands (0-15; MMX, segment, control and debug registers have
/// their own numbers). [`Op::HIGH0`] applies to the byte registers AH, CH, DH, BH. `imm` is the immediate sign-extended
/// to 64 bits, a branch target, or a value that the binding of the instruction defines.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Op {
    /// Handler that executes it.
    pub exec: Handler,
    /// Address of the next instruction (linear in 64-bit mode; offset in CS otherwise).
    pub next: u64,
    /// Immediate or other 64-bit value.
    pub imm: u64,
    /// Displacement, sign-extended; absolute for RIP-relative operands.
    pub disp: u64,
    /// Base register or [`NO_REG`].
    pub base: u8,
    /// Index register or [`NO_REG`].
    pub index: u8,
    /// Log2 of the index scale.
    pub scale: u8,
    /// Segment of the memory operand (0 ES, 1 CS, 2 SS, 3 DS, 4 FS, 5 GS, [`SEG_FLAT`]).
    pub seg: u8,
    /// Register of operand 0.
    pub r0: u8,
    /// Register of operand 1.
    pub r1: u8,
    /// Register of operand 2.
    pub r2: u8,
    /// Register of operand 3.
    pub r3: u8,
    /// Instruction length in bytes.
    pub len: u8,
    /// Operand size in bytes (2, 4, 8; 1 for byte operations; vector length for vectors).
    pub size: u8,
    /// Address size in bytes (2, 4, 8).
    pub asize: u8,
    /// Flags: [`Op::HIGH0`] and others.
    pub flags: u8,
    /// [`ledger::Class`] as which it is charged.
    pub class: ledger::Class,
    /// Decoder's code number (iced-x86 `Code`), for names and counting.
    pub code: u16,
}

impl Op {
    /// `r0` is AH, CH, DH or BH (the register number is 0-3).
    pub const HIGH0: u8 = 1;
    /// `r1` is AH, CH, DH or BH.
    pub const HIGH1: u8 = 2;
    /// LOCK prefix.
    pub const LOCK: u8 = 4;
    /// REP/REPE prefix.
    pub const REPE: u8 = 8;
    /// REPNE prefix.
    pub const REPNE: u8 = 16;
    /// Operand 0 is memory (else the memory operand, if any, is a later one).
    pub const MEM0: u8 = 32;
    /// Some operand is memory.
    pub const MEM: u8 = 64;

    /// Returns true if a flag is set.
    #[inline(always)]
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns the effective address (offset in its segment) of the memory operand.
    #[inline(always)]
    pub fn ea(&self, cpu: &Cpu) -> u64 {
        let ea = cpu.reg(self.base).wrapping_add(cpu.reg(self.index) << (self.scale & 3)).wrapping_add(self.disp);
        if self.asize == 8 { ea } else { ea & address_mask(self.asize) }
    }

    /// Returns the address of this instruction.
    #[inline(always)]
    pub fn rip(&self) -> u64 {
        self.next.wrapping_sub(u64::from(self.len))
    }
}

/// Returns the mask of an address of `asize` bytes.
#[inline(always)]
pub fn address_mask(asize: u8) -> u64 {
    match asize {
        2 => 0xffff,
        4 => 0xffff_ffff,
        _ => u64::MAX,
    }
}
