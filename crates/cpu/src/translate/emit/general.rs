//! Instructions that the host executes with replaced operands.

use super::Emit;
use crate::exec::vector::{evex, form};
use crate::op::NO_REG;
use crate::translate::asm::{M, R};
use crate::translate::fit::need;
use crate::translate::fix;
use crate::translate::layout::{FIRST, SECOND, TEST, host, memory_register};
use crate::translate::plan::writes;
use iced_x86::{EncodingKind, Instruction, OpAccess, OpKind, Register};

impl Emit<'_> {
    /// Encodes an instruction with host registers. Returns false if that is not possible.
    pub fn native(&mut self, i: &Instruction) -> bool {
        let buffer = std::mem::take(&mut self.asm.code);
        let before = buffer.len();
        self.encoder.set_buffer(buffer);
        let encoded = self.encoder.encode(i, 0).is_ok();
        self.asm.code = self.encoder.take_buffer();
        if !encoded {
            self.asm.code.truncate(before);
        }
        encoded
    }

    /// `mov to, from`.
    pub fn copy(&mut self, wide: bool, to: R, from: R) {
        self.two(wide, 0x89, from, to);
    }

    /// `add to, from`.
    pub fn add(&mut self, wide: bool, to: R, from: R) {
        self.two(wide, 0x01, from, to);
    }

    /// `xor to, from`.
    pub fn xor(&mut self, wide: bool, to: R, from: R) {
        self.two(wide, 0x31, from, to);
    }

    /// `test at, at`.
    pub fn test(&mut self, wide: bool, at: R) {
        self.two(wide, 0x85, at, at);
    }

    /// `shr at, count`.
    pub fn shift_right(&mut self, wide: bool, at: R, count: u8) {
        self.two(wide, 0xc1, R(5), at);
        self.asm.code.push(count);
    }

    fn two(&mut self, wide: bool, opcode: u8, reg: R, rm: R) {
        let rex = 0x40 | u8::from(wide) << 3 | (reg.0 >> 3) << 2 | rm.0 >> 3;
        self.asm.bytes(&[rex, opcode, 0xc0 | (reg.0 & 7) << 3 | rm.0 & 7]);
    }

    /// Replaces the memory operand of an instruction by the probed one.
    pub fn at_operand(&self, i: &mut Instruction) {
        let M { base, index, disp } = self.operand;
        i.set_memory_base(base.named());
        i.set_memory_index(index.map_or(Register::None, |(index, _)| index.named()));
        i.set_memory_index_scale(1);
        i.set_memory_displacement64(i64::from(disp) as u64);
        i.set_memory_displ_size(u32::from(disp != 0));
        i.set_segment_prefix(Register::None);
    }

    /// Emits an instruction that the host executes with replaced operands.
    pub(super) fn general(&mut self, fixed: bool) -> bool {
        let mut i = *self.instruction();
        let memory = (0..i.op_count()).find(|&n| i.op_kind(n) == OpKind::Memory);
        let info = self.factory.info(&i);
        let accesses: [OpAccess; 5] = std::array::from_fn(|n| info.op_access(n as u32));
        let need = need(&i, self.op());
        if let Some(need) = need {
            self.ready(need);
        }
        let by_cl = registers_of(&i).any(|(_, register)| register == Register::CL);
        let shift = by_cl && is_shift(&i);
        if shift && memory.is_some() {
            return false;
        }
        let stub = match memory {
            Some(n) => match self.probe(writes(accesses[n as usize])) {
                Some(stub) => Some(stub),
                None => return false,
            },
            None => None,
        };
        let mut misaligned = None;
        if need.is_some() && memory.is_some() {
            let mask = match i.code().encoding() {
                EncodingKind::EVEX => evex::alignment(&i),
                encoding => form::align(&i, encoding == EncodingKind::VEX),
            };
            if mask != 0 {
                misaligned = Some(self.aligned(mask));
            }
        }
        // CH is not the second byte of its host register: it is in TEST while the instruction is executed.
        let ch = registers_of(&i).find(|(_, register)| *register == Register::CH).map(|(n, _)| n);
        let ch_written = ch.is_some_and(|n| writes(accesses[n as usize]));
        let rcx_written = registers_of(&i)
            .any(|(n, r)| Some(n) != ch && r.full_register() == Register::RCX && writes(accesses[n as usize]));
        if ch.is_some() && (shift || fixed || ch_written && rcx_written) {
            return false;
        }
        // After a probe the other two contain the address.
        let mut free: &[R] = if memory.is_some() { &[TEST] } else { &[TEST, FIRST, SECOND] };
        if shift {
            free = &[FIRST, SECOND];
        } else if fixed {
            free = &[TEST];
        } else if ch.is_some() {
            free = if memory.is_some() { &[] } else { &[FIRST, SECOND] };
            self.asm.flagless_rotate(true, TEST, R::R9, 8);
        }
        let mut loaded: [(u8, R, bool); 3] = [(0, TEST, false); 3];
        let mut used = 0;
        for n in 0..i.op_count() {
            if i.op_kind(n) != OpKind::Register {
                continue;
            }
            let register = i.op_register(n);
            if register.is_vector_register() || register.is_k() {
                continue;
            }
            if shift && n > 0 && register == Register::CL {
                self.asm.flagless_copy(TEST, R::R9);
                continue;
            }
            if register == Register::CH {
                i.set_op_register(n, Register::CL);
                continue;
            }
            let guest = register.full_register().number() as u8;
            let written = writes(accesses[n as usize]);
            let at = match host(guest) {
                Some(at) => at,
                None => match loaded[..used].iter_mut().find(|(number, ..)| *number == guest) {
                    Some((_, at, stored)) => {
                        *stored |= written;
                        *at
                    }
                    None => {
                        let Some(at) = free.get(used).copied() else { return false };
                        loaded[used] = (guest, at, written);
                        used += 1;
                        let whole = accesses[n as usize] == OpAccess::Write && register.size() >= 4;
                        let again = (n + 1..i.op_count()).any(|m| {
                            i.op_kind(m) == OpKind::Register
                                && i.op_register(m).full_register() == register.full_register()
                        });
                        if !whole || again {
                            self.asm.flagless_load(at, memory_register(guest));
                        }
                        at
                    }
                },
            };
            let Some(renamed) = rename(register, at) else { return false };
            i.set_op_register(n, renamed);
        }
        if memory.is_some() {
            self.at_operand(&mut i);
        }
        // 32-bit code has shorter encodings.
        match i.code() {
            iced_x86::Code::Inc_r32 => i.set_code(iced_x86::Code::Inc_rm32),
            iced_x86::Code::Dec_r32 => i.set_code(iced_x86::Code::Dec_rm32),
            _ => {}
        }
        // All processors run on one thread of the host: nothing can intervene between a read and its write.
        i.set_has_lock_prefix(false);
        i.set_has_rep_prefix(false);
        i.set_has_repne_prefix(false);
        i.set_has_xacquire_prefix(false);
        i.set_has_xrelease_prefix(false);
        let encoded = if fixed { fix::fix(self, &i) } else { self.native(&i) };
        if !encoded {
            return false;
        }
        if ch_written {
            self.asm.flagless_rotate(true, R::R9, TEST, 56);
        }
        for (guest, at, stored) in &loaded[..used] {
            if *stored {
                self.asm.flagless_store(memory_register(*guest), *at);
            }
        }
        let clobbers = fixed || memory.is_none() && (loaded[..used].iter().any(|(_, at, _)| *at != TEST));
        if clobbers {
            self.let_go();
        }
        if let Some(stub) = stub {
            self.back_here(stub);
        }
        self.back_here(misaligned);
        true
    }

    /// LEA: computes the address only.
    pub(super) fn lea(&mut self) -> bool {
        let register = self.instruction().op0_register();
        let guest = register.number() as u8;
        if register.size() < 4 {
            return false;
        }
        let to = host(guest).unwrap_or(FIRST);
        let op = self.op();
        let pinned = |register: u8| register == NO_REG || host(register).is_some();
        if !(pinned(op.base) && pinned(op.index)) || to == FIRST {
            self.let_go();
        }
        if !self.address(to, register.size() == 4, false) {
            return false;
        }
        if host(guest).is_none() {
            self.asm.flagless_store(memory_register(guest), to);
        }
        true
    }
}

/// Returns the register operands of an instruction, by their numbers.
fn registers_of(i: &Instruction) -> impl Iterator<Item = (u32, Register)> {
    (0..i.op_count()).filter(|&n| i.op_kind(n) == OpKind::Register).map(|n| (n, i.op_register(n)))
}

fn is_shift(i: &Instruction) -> bool {
    use iced_x86::Mnemonic::*;
    matches!(i.mnemonic(), Shl | Sal | Shr | Sar | Rol | Ror | Shld | Shrd)
}

/// Returns the part of a host register that corresponds to a guest register.
fn rename(register: Register, to: R) -> Option<Register> {
    let number = u32::from(to.0);
    match register.size() {
        8 => Some(Register::RAX + number),
        4 => Some(Register::EAX + number),
        2 => Some(Register::AX + number),
        _ => match register {
            // These registers are not moved.
            Register::AH | Register::DH | Register::BH => Some(register),
            Register::CH => None,
            _ if number < 4 => Some(Register::AL + number),
            _ => Some(Register::SPL + (number - 4)),
        },
    }
}
