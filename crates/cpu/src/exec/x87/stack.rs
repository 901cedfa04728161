//! The register stack, the checks at the begin of every x87 instruction, and the reporting of exceptions.

use crate::arch::{F80, X87};
use crate::f80::status::*;
use crate::fault::Exec;
use crate::op::{Handler, Op, SEG_FLAT};
use crate::state::Cpu;
use iced_x86::{Instruction, OpCodeOperandKind, Register};
use x86::control::*;
use x86::{flags, seg, vector};

impl X87 {
    /// Returns the number of the physical register that is ST(0).
    pub fn top(&self) -> u8 {
        (self.status >> 11) as u8 & 7
    }

    /// Makes a physical register ST(0).
    pub fn set_top(&mut self, top: u8) {
        self.status = self.status & !(7 << 11) | u16::from(top & 7) << 11;
    }

    fn physical(&self, i: u8) -> usize {
        usize::from(self.top().wrapping_add(i) & 7)
    }

    /// Returns true if ST(i) is not empty.
    pub fn full(&self, i: u8) -> bool {
        self.tags >> self.physical(i) & 1 != 0
    }

    /// Returns ST(i).
    pub fn st(&self, i: u8) -> F80 {
        self.regs[self.physical(i)]
    }

    /// Writes ST(i), which then is not empty.
    pub fn set_st(&mut self, i: u8, value: F80) {
        let physical = self.physical(i);
        self.regs[physical] = value;
        self.tags |= 1 << physical;
    }

    /// Empties ST(i).
    pub fn free(&mut self, i: u8) {
        self.tags &= !(1 << self.physical(i));
    }

    /// Pushes a value.
    pub fn push(&mut self, value: F80) {
        self.set_top(self.top().wrapping_sub(1));
        self.set_st(0, value);
    }

    /// Pops the top of the stack.
    pub fn pop(&mut self) {
        self.free(0);
        self.set_top(self.top() + 1);
    }

    /// Updates ES and B after a change of either word: they are set if a flagged exception is unmasked.
    pub fn summarize(&mut self) {
        self.status &= !(ES | B);
        if self.status & !self.control & EXCEPTIONS != 0 {
            self.status |= ES | B;
        }
    }

    /// Returns the full tag word: valid, zero, special or empty for each register.
    pub fn tag_word(&self) -> u16 {
        use crate::f80::FpClass;
        (0..8).fold(0, |word, i| {
            let tag = match self.regs[i].class() {
                _ if self.tags >> i & 1 == 0 => 3,
                FpClass::Normal => 0,
                FpClass::Zero => 1,
                _ => 2,
            };
            word | tag << (2 * i)
        })
    }

    /// Loads a full tag word, of which only the empty tags are used.
    pub fn set_tag_word(&mut self, word: u16) {
        self.tags = (0..8).fold(0, |tags, i| tags | u8::from(word >> (2 * i) & 3 != 3) << i);
    }

    /// Initializes the unit as FNINIT does.
    pub fn init(&mut self) {
        *self = Self { regs: self.regs, control: 0x37f, status: 0, tags: 0, opcode: 0, ip: 0, cs: 0, dp: 0, ds: 0 };
    }
}

/// Binds a handler whose instruction sets the pointers: `op.imm` becomes the recorded opcode.
pub fn bound(i: &Instruction, op: &mut Op, handler: Handler) -> Option<Handler> {
    op.imm = u64::from(opcode(i));
    Some(handler)
}

/// Returns the low three bits of the first opcode byte, followed by the second byte.
fn opcode(i: &Instruction) -> u16 {
    let info = i.code().op_code();
    let encoded = info.op_code() as u16;
    if info.op_code_len() == 2 {
        // For register forms both bytes are known; the register number is in the low three bits.
        return (encoded & 0x7ff) + encoded_register(i);
    }
    let reg = info.group_index().max(0) as u16;
    (encoded & 7) << 8 | reg << 3 | mod_rm(i)
}

/// Returns the number of the ST(i) that the opcode encodes.
fn encoded_register(i: &Instruction) -> u16 {
    let info = i.code().op_code();
    let n = (0..info.op_count()).find(|n| info.op_kind(*n) == OpCodeOperandKind::sti_opcode);
    n.map_or(0, |n| i.op_register(n).number() as u16 & 7)
}

/// Returns Mod and R/M of a memory operand, in the encoding that assemblers choose.
fn mod_rm(i: &Instruction) -> u16 {
    let (base, index) = (i.memory_base(), i.memory_index());
    let sixteen = [base, index].iter().any(|r| r.is_gpr16()) || (i.memory_displ_size() == 2 && base == Register::None);
    let mode = match i.memory_displ_size() {
        _ if base == Register::None || i.is_ip_rel_memory_operand() => 0,
        0 => 0,
        1 => 0x40,
        _ => 0x80,
    };
    let rm = if sixteen {
        match (base, index) {
            (Register::BX, Register::SI) => 0,
            (Register::BX, Register::DI) => 1,
            (Register::BP, Register::SI) => 2,
            (Register::BP, Register::DI) => 3,
            (Register::SI, _) => 4,
            (Register::DI, _) => 5,
            (Register::BX, _) => 7,
            _ => 6,
        }
    } else if i.is_ip_rel_memory_operand() {
        5
    } else if base == Register::None {
        if index == Register::None && i.memory_index_scale() == 1 && i.code_size() != iced_x86::CodeSize::Code64 {
            5
        } else {
            4
        }
    } else if index != Register::None || i.memory_index_scale() != 1 {
        4
    } else {
        base.number() as u16 & 7
    };
    mode | rm
}

/// Raises #NM or #MF, as a waiting instruction does first.
#[inline(always)]
pub fn enter(cpu: &mut Cpu) -> Exec {
    if cpu.arch.cr0 & (CR0_EM | CR0_TS) != 0 || cpu.arch.x87.status & ES != 0 {
        return enter_slow(cpu);
    }
    Ok(())
}

#[cold]
#[inline(never)]
fn enter_slow(cpu: &mut Cpu) -> Exec {
    available(cpu)?;
    pending(cpu)
}

/// Raises #NM, as a non-waiting instruction does first.
#[inline(always)]
pub fn available(cpu: &mut Cpu) -> Exec {
    if cpu.arch.cr0 & (CR0_EM | CR0_TS) != 0 {
        return Err(cpu.nm());
    }
    Ok(())
}

/// Raises #MF if an unmasked exception is pending.
pub fn pending(cpu: &mut Cpu) -> Exec {
    if cpu.arch.x87.status & ES != 0 && cpu.arch.cr0 & CR0_NE != 0 {
        return Err(cpu.raise(vector::MF));
    }
    Ok(())
}

/// Reads a 10-byte operand or an environment, whose parts must be at multiples of `alignment` if alignment is checked.
pub fn load_bytes(cpu: &mut Cpu, op: &Op, out: &mut [u8], alignment: u64) -> Exec {
    check_alignment(cpu, op, out.len() as u64, false, alignment)?;
    cpu.load_bytes(op, out)
}

/// Writes a 10-byte operand or an environment.
pub fn store_bytes(cpu: &mut Cpu, op: &Op, from: &[u8], alignment: u64) -> Exec {
    check_alignment(cpu, op, from.len() as u64, true, alignment)?;
    cpu.store_bytes(op, from)
}

fn check_alignment(cpu: &mut Cpu, op: &Op, size: u64, write: bool, alignment: u64) -> Exec {
    let checked = cpu.arch.cr0 & CR0_AM != 0 && cpu.arch.flags & flags::AC != 0 && cpu.arch.cpl == 3;
    if checked && cpu.operand_linear(op, size, write)? & (alignment - 1) != 0 {
        return Err(cpu.raise_code(vector::AC, 0));
    }
    Ok(())
}

/// Completes an instruction: sets pointers, exception flags, SF and C1. Returns true if the instruction may have its
/// effect, that is, if no exception of [`BEFORE`] is unmasked.
#[inline]
pub fn report(cpu: &mut Cpu, op: &Op, flags: u16) -> bool {
    cpu.arch.x87.status = cpu.arch.x87.status & !C1 | flags & (EXCEPTIONS | SF | C1);
    note(cpu, op);
    let unmasked = flags & EXCEPTIONS & !cpu.arch.x87.control;
    if unmasked == 0 {
        return true;
    }
    cpu.arch.x87.status |= ES | B;
    cpu.arch.x87.opcode = op.imm as u16 & 0x7ff;
    note_data(cpu, op);
    unmasked & BEFORE == 0
}

/// Records the instruction in the pointers.
#[inline]
pub fn note(cpu: &mut Cpu, op: &Op) {
    note_instruction(cpu, op);
    if !cpu.wiring.fdp_on_exception {
        note_data(cpu, op);
    }
}

/// Records the address of the instruction.
#[inline]
pub fn note_instruction(cpu: &mut Cpu, op: &Op) {
    let rip = op.rip();
    cpu.arch.x87.ip = if cpu.engine.long64 { rip } else { rip & 0xffff_ffff };
    cpu.arch.x87.cs = if cpu.wiring.fcs_deprecated { 0 } else { cpu.arch.seg[usize::from(seg::CS)].selector };
}

fn note_data(cpu: &mut Cpu, op: &Op) {
    if !op.has(Op::MEM) {
        return;
    }
    cpu.arch.x87.dp = op.ea(cpu);
    cpu.arch.x87.ds = data_selector(cpu, op);
}

/// Returns the selector that is recorded for a memory operand.
pub fn data_selector(cpu: &Cpu, op: &Op) -> u16 {
    let segment = match op.seg {
        SEG_FLAT => seg::DS,
        s if s > SEG_FLAT => seg::SS,
        s => s,
    };
    if cpu.wiring.fcs_deprecated { 0 } else { cpu.arch.seg[usize::from(segment)].selector }
}

/// Handles a stack underflow: a source register is empty. Returns true if the masked response applies.
#[cold]
pub fn underflow(cpu: &mut Cpu, op: &Op) -> bool {
    report(cpu, op, IE | SF)
}

/// Handles a stack overflow: the register of a push is not empty. Returns true if the masked response applies.
#[cold]
pub fn overflow(cpu: &mut Cpu, op: &Op) -> bool {
    report(cpu, op, IE | SF | C1)
}
