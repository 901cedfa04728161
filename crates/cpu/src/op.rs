//! A decoded instruction in the format of the interpreter.

pub use crate::arch::SEG_FLAT;
use crate::fault::{Exec, Flow};
use crate::state::Cpu;
use crate::time::{Price, Resolution, Step};
use iced_x86::{Instruction, OpKind};
use ledger::caches::NEAR;

/// Function that executes an instruction.
///
/// On entry [`rip`](crate::arch::Arch::rip) already is the address of the next instruction. A handler that returns an
/// error has not changed any architectural state (the interpreter restores `rip`).
pub type Handler = fn(&mut Cpu, &Op) -> Exec<Flow>;

/// Register number that reads as zero: "no base", "no index".
pub const NO_REG: u8 = 16;

/// Most ticks of [`Resolution::late`] that an operation can have.
const MOST_LATE: u32 = u32::MAX >> 1;

/// Maximum length of an instruction.
pub const MAX_LENGTH: usize = 15;

/// A decoded instruction.
///
/// `r0`..`r3` are register numbers in the order of the operands (0-15; MMX, segment, control and debug registers have
/// their own numbers). [`Op::HIGH0`] applies to the byte registers AH, CH, DH, BH. `imm` is the immediate sign-extended
/// to 64 bits, a branch target, or a value that the binding of the instruction defines: handlers trust it, so that no
/// other crate can change an operation.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Op {
    /// Handler that executes it.
    pub(crate) exec: Handler,
    /// Address of the next instruction (linear in 64-bit mode; offset in CS otherwise).
    pub(crate) next: u64,
    /// Immediate or other 64-bit value. For an indirect branch see [`Op::late`].
    pub(crate) imm: u64,
    /// Displacement, sign-extended; absolute for RIP-relative operands. For a conditional branch see [`Op::resolution`].
    pub(crate) disp: u64,
    /// Base register or [`NO_REG`].
    pub(crate) base: u8,
    /// Index register or [`NO_REG`].
    pub(crate) index: u8,
    /// Log2 of the index scale.
    pub(crate) scale: u8,
    /// Segment of the memory operand (0 ES, 1 CS, 2 SS, 3 DS, 4 FS, 5 GS, [`SEG_FLAT`]).
    pub(crate) seg: u8,
    /// Register of operand 0.
    pub(crate) r0: u8,
    /// Register of operand 1.
    pub(crate) r1: u8,
    /// Register of operand 2.
    pub(crate) r2: u8,
    /// Register of operand 3.
    pub(crate) r3: u8,
    /// Instruction length in bytes.
    pub(crate) len: u8,
    /// Operand size in bytes (2, 4, 8; 1 for byte operations; vector length for vectors).
    pub(crate) size: u8,
    /// Address size in bytes (2, 4, 8).
    pub(crate) asize: u8,
    /// Flags: [`Op::HIGH0`] and others.
    pub(crate) flags: u8,
    /// [`ledger::Class`] as which it is charged.
    pub(crate) class: ledger::Class,
    /// Form: the key under which time is looked up, with the decoder's code number, for names and counting.
    pub(crate) form: Form,
}

/// An instruction to be priced: see [`crate::time`].
#[derive(Clone, Copy)]
pub struct Timed {
    /// The operation.
    pub op: Op,
    /// The instruction from which the operation was made.
    pub instruction: Instruction,
}

impl Timed {
    /// Returns what prices depend on.
    pub fn step(&self) -> Step<'_> {
        Step { class: self.op.class, instruction: &self.instruction }
    }
}

/// Form of an instruction: an encoding with the kinds and sizes of its operands. Two instructions that differ in it may
/// take different time on some processor; those that only differ in register numbers, addresses and values have the
/// same form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Form(u16);

impl Form {
    /// An operand that may be a register or memory is memory.
    const MEMORY: u16 = 1 << 13;
    /// LOCK, REP or REPNE prefix.
    const PREFIX: u16 = 1 << 14;
    /// The last two register operands are the same: the result may not depend on them.
    const SAME: u16 = 1 << 15;

    /// Returns the form of a decoded instruction.
    pub fn of(i: &Instruction) -> Self {
        let last = i.op_count().wrapping_sub(1);
        let same = i.op_count() > 1
            && i.op_kind(last) == OpKind::Register
            && i.op_kind(last - 1) == OpKind::Register
            && i.op_register(last) == i.op_register(last - 1);
        let memory = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory);
        let prefix = i.has_lock_prefix() || i.has_rep_prefix() || i.has_repne_prefix();
        let flag = |set, flag| if set { flag } else { 0 };
        let flags = flag(memory, Self::MEMORY) | flag(prefix, Self::PREFIX) | flag(same, Self::SAME);
        Self(i.code() as u16 | flags)
    }

    /// Returns the decoder's code number (iced-x86 `Code`).
    pub fn code(self) -> u16 {
        self.0 & (Self::MEMORY - 1)
    }
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
    /// A store that tells the processor that the data will not be needed soon.
    pub const NON_TEMPORAL: u8 = 128;

    /// Returns what kind of accesses it makes: whether they are locked, and whether they are non-temporal stores.
    #[inline(always)]
    pub(crate) fn accesses(&self) -> (bool, bool) {
        (self.class == ledger::Class::Locked, self.flags & Op::NON_TEMPORAL != 0)
    }

    /// Returns the class as which it is charged.
    #[inline(always)]
    pub fn class(&self) -> ledger::Class {
        self.class
    }

    /// Returns when the condition of a conditional branch is known, in the context for which the branch is priced.
    #[inline(always)]
    pub(crate) fn resolution(&self) -> Resolution {
        Resolution {
            elapsed: self.disp as u32,
            late: (self.disp >> 32) as u32 & MOST_LATE,
            waits_for_load: self.disp >> 63 != 0,
        }
    }

    /// Returns how long after a branch could execute its condition or target is known, in the context for which it is priced: what a
    /// misprediction costs besides the refill.
    #[inline]
    pub(crate) fn late(&self) -> ledger::Ticks {
        match self.class {
            ledger::Class::Branch => self.resolution().late.into(),
            _ if self.is_indirect() => self.imm,
            _ => 0,
        }
    }

    /// Returns true for a near indirect jump or call.
    pub(crate) fn is_indirect(&self) -> bool {
        matches!(self.class, ledger::Class::IndirectJump | ledger::Class::IndirectCall)
    }

    /// Sets the price of a conditional or indirect branch. Other instructions have no more than their ticks.
    pub(crate) fn set_price(&mut self, price: Price) {
        let Resolution { elapsed, late, waits_for_load } = price.branch;
        let late = u64::from(late.min(MOST_LATE));
        match self.class {
            ledger::Class::Branch => self.disp = u64::from(elapsed) | late << 32 | u64::from(waits_for_load) << 63,
            _ if self.is_indirect() => self.imm = late,
            _ => {}
        }
    }

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

    /// Executes the operation, which is not part of a block.
    #[inline]
    pub fn execute(&self, cpu: &mut Cpu) -> Exec<Flow> {
        // The caller may have used the host's MXCSR in the meantime.
        cpu.arch.vector.loaded = crate::arch::NOT_LOADED;
        cpu.arch.rip = self.next;
        cpu.engine.ilen = self.len;
        (self.exec)(cpu, self)
    }

    /// Returns the address of this instruction.
    #[inline(always)]
    pub fn rip(&self) -> u64 {
        self.next.wrapping_sub(u64::from(self.len))
    }

    /// Returns true for a direct branch whose target is not near.
    #[inline(always)]
    pub(crate) fn branches_far(&self) -> bool {
        use ledger::Class::{Branch, Call, Jump};
        matches!(self.class, Branch | Jump | Call) && (self.imm.wrapping_sub(self.next) as i64).unsigned_abs() > NEAR
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

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::code_asm::*;
    use iced_x86::{Code, Decoder, DecoderOptions};

    fn form(write: impl FnOnce(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>) -> Form {
        let mut assembler = CodeAssembler::new(64).unwrap();
        write(&mut assembler).unwrap();
        let code = assembler.assemble(0).unwrap();
        Form::of(&Decoder::new(64, &code, DecoderOptions::NONE).decode())
    }

    #[test]
    fn forms_differ_in_encoding_memory_prefix_and_equal_sources() {
        let forms = [
            form(|a| a.xor(eax, ecx)),
            form(|a| a.xor(rax, rcx)),
            form(|a| a.xor(eax, eax)),
            form(|a| a.xor(eax, 1)),
            form(|a| a.xor(dword_ptr(rax), ecx)),
            form(|a| a.lock().xor(dword_ptr(rax), ecx)),
            form(|a| a.xor(ecx, dword_ptr(rax))),
            form(|a| a.movsb()),
            form(|a| a.rep().movsb()),
            form(|a| a.vpxor(xmm0, xmm1, xmm2)),
            form(|a| a.vpxor(xmm0, xmm1, xmm1)),
            form(|a| a.vpxor(xmm0, xmm1, xmmword_ptr(rax))),
        ];
        let distinct: std::collections::BTreeSet<Form> = forms.into_iter().collect();
        assert_eq!(distinct.len(), forms.len(), "{forms:?}");
    }

    #[test]
    fn registers_addresses_and_values_do_not_change_the_form() {
        assert_eq!(form(|a| a.add(rbx, rsi)), form(|a| a.add(r9, r14)));
        assert_eq!(form(|a| a.mov(rbx, qword_ptr(rsi + 8))), form(|a| a.mov(rax, qword_ptr(r9 + r10 * 4))));
        assert_eq!(form(|a| a.shl(rbx, 3)), form(|a| a.shl(rcx, 60)));
    }

    #[test]
    fn every_code_of_the_decoder_fits_a_form() {
        assert!(Code::values().all(|code| (code as usize) < usize::from(Form::MEMORY)));
        let mut i = Instruction::default();
        i.set_code(Code::VEX_Vpaddb_ymm_ymm_ymmm256);
        assert_eq!(Form::of(&i).code(), Code::VEX_Vpaddb_ymm_ymm_ymmm256 as u16);
    }
}
