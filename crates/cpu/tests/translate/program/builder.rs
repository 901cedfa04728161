//! Instructions of a form, with operands that mostly lead somewhere.

use super::forms::{FORMS, Forms};
use super::{address, general, value};
use cpu::testing::Random;
use iced_x86::{Code, Encoder, Instruction, MemoryOperand, OpCodeOperandKind as Kind, OpKind, Register};

pub struct Builder<'a> {
    pub random: &'a mut Random,
    /// Registers that hold addresses.
    pub bases: [Register; 2],
    /// 32-bit code.
    pub narrow: bool,
    /// Half of all steps are x87 instructions.
    pub x87: bool,
    /// Registers that hold addresses are moved a little, and used in between.
    pub walks: bool,
    pub starts: &'a [u64],
    pub encoder: Encoder,
    pub ip: u64,
}

impl Builder<'_> {
    pub fn forms(&self) -> &'static Forms {
        &FORMS[usize::from(self.narrow)]
    }

    /// One of the two, by the width of the code.
    pub fn sized(&self, long: Code, narrow: Code) -> Code {
        if self.narrow { narrow } else { long }
    }

    pub fn bits(&self) -> u32 {
        if self.narrow { 32 } else { 64 }
    }

    pub fn general(&mut self) -> u32 {
        general(self.random, self.narrow)
    }

    /// A general register of the width of addresses.
    pub fn full(&self, number: u32) -> Register {
        if self.narrow { Register::EAX + (number & 7) } else { Register::RAX + number }
    }

    /// Memory at an address.
    pub fn place(&self, address: u64) -> MemoryOperand {
        MemoryOperand::with_displ(address, if self.narrow { 4 } else { 8 })
    }

    /// Loads a register.
    pub fn set(&self, number: u32, value: u64) -> Option<Instruction> {
        let register = self.full(number);
        match self.narrow {
            true => Instruction::with2(Code::Mov_r32_imm32, register, value as u32),
            false => Instruction::with2(Code::Mov_r64_imm64, register, value),
        }
        .ok()
    }

    /// Pushes a constant.
    pub fn push(&self, value: u32) -> Option<Instruction> {
        Instruction::with1(self.sized(Code::Pushq_imm32, Code::Pushd_imm32), value as i32).ok()
    }

    pub fn register8(&mut self) -> Register {
        if self.random.one_in(4) {
            return Register::AH + self.random.below(4) as u32;
        }
        match self.general() {
            n @ 0..4 => Register::AL + n,
            n if self.narrow => Register::AH + (n - 4),
            n => Register::SPL + (n - 4),
        }
    }

    /// A memory operand of 32-bit code, or of 16-bit addresses.
    pub fn narrow_memory(&mut self, i: &mut Instruction) {
        let random = &mut *self.random;
        let index = Register::EAX + [0, 1, 2, 3, 5, 6, 7][random.below(7) as usize];
        let large = |i: &mut Instruction, address: u64| {
            i.set_memory_displacement64(address & 0xffff_ffff);
            i.set_memory_displ_size(4);
        };
        match random.below(16) {
            0 => large(i, address(random)),
            1 => {
                i.set_memory_index(index);
                i.set_memory_index_scale(1 << random.below(4));
                large(i, address(random));
            }
            2 => i.set_memory_base(Register::ESP),
            3 => {
                i.set_memory_base(Register::BX);
                i.set_memory_index(Register::SI);
            }
            4 => {
                i.set_memory_base(index);
                large(i, address(random));
            }
            5..=7 => {
                i.set_memory_base(self.bases[0]);
                i.set_memory_index(index);
                i.set_memory_index_scale(1 << random.below(4));
            }
            _ => i.set_memory_base(random.of(&self.bases)),
        }
        if i.memory_base() == Register::BX {
            i.set_memory_displacement64(0);
            i.set_memory_displ_size(0);
        }
    }

    pub fn memory(&mut self, i: &mut Instruction, operand: u32) {
        i.set_op_kind(operand, OpKind::Memory);
        i.set_memory_index_scale(1);
        let random = &mut *self.random;
        if random.one_in(6) {
            i.set_segment_prefix(random.of(&[Register::FS, Register::GS, Register::GS, Register::DS]));
        }
        let small = random.of(&[0, 0, 8, 16, -8, 1, 120, 0x200, -0x180]);
        i.set_memory_displacement64(small as u64);
        i.set_memory_displ_size(if small == 0 { 0 } else { 1 });
        if self.narrow {
            i.set_memory_displacement64(small as u64 & 0xffff_ffff);
            return self.narrow_memory(i);
        }
        let random = &mut *self.random;
        match random.below(20) {
            0 => {
                i.set_memory_displacement64(address(random) & 0x7fff_ffff);
                i.set_memory_displ_size(8);
            }
            1 => {
                i.set_memory_base(Register::RIP);
                i.set_memory_displacement64(address(random) & 0x3f_ffff);
                i.set_memory_displ_size(8);
            }
            2 => {
                i.set_memory_index(Register::RAX + [0, 1, 2, 3, 5, 6, 7, 9, 12, 15][random.below(10) as usize]);
                i.set_memory_index_scale(1 << random.below(4));
                i.set_memory_displacement64(address(random) & 0x7fff_ffff);
                i.set_memory_displ_size(8);
            }
            3 => i.set_memory_base(Register::RSP),
            4 => {
                // 32-bit addresses.
                i.set_memory_base(Register::EAX + self.bases[0].number() as u32);
            }
            5..=7 => {
                i.set_memory_base(self.bases[0]);
                i.set_memory_index(Register::RAX + [0, 1, 2, 3, 5, 6, 7, 9, 12, 15][random.below(10) as usize]);
                i.set_memory_index_scale(1 << random.below(4));
            }
            _ => {
                let base = random.of(&self.bases);
                i.set_memory_base(base);
            }
        }
    }

    /// An instruction of this form. `None`: the form is not known here.
    pub fn instruction(&mut self, code: Code) -> Option<Instruction> {
        let mut i = Instruction::default();
        i.set_code(code);
        let kinds: Vec<Kind> = code.op_code().op_kinds().to_vec();
        for (n, kind) in kinds.into_iter().enumerate() {
            let n = n as u32;
            let may_be_memory = matches!(
                kind,
                Kind::r8_or_mem
                    | Kind::r16_or_mem
                    | Kind::r32_or_mem
                    | Kind::r64_or_mem
                    | Kind::mm_or_mem
                    | Kind::xmm_or_mem
                    | Kind::ymm_or_mem
            );
            if kind == Kind::mem || may_be_memory && self.random.below(5) < 2 {
                self.memory(&mut i, n);
                continue;
            }
            let (narrow, random) = (self.narrow, &mut *self.random);
            let general = |random: &mut Random| general(random, narrow);
            let vectors = if narrow { 8 } else { 16 };
            let immediate = |i: &mut Instruction, kind: OpKind, value: u64| {
                i.set_op_kind(n, kind);
                match kind {
                    OpKind::Immediate8 => i.set_immediate8(value as u8),
                    OpKind::Immediate16 => i.set_immediate16(value as u16),
                    OpKind::Immediate32 => i.set_immediate32(value as u32),
                    OpKind::Immediate64 => i.set_immediate64(value),
                    OpKind::Immediate8to16 => i.set_immediate8to16(value as i8 as i16),
                    OpKind::Immediate8to32 => i.set_immediate8to32(value as i8 as i32),
                    OpKind::Immediate8to64 => i.set_immediate8to64(value as i8 as i64),
                    _ => i.set_immediate32to64(value as i32 as i64),
                }
            };
            let number = value(random);
            let register = match kind {
                Kind::r8_or_mem | Kind::r8_reg | Kind::r8_opcode => self.register8(),
                Kind::r16_or_mem | Kind::r16_reg | Kind::r16_rm | Kind::r16_opcode => Register::AX + general(random),
                Kind::r32_or_mem | Kind::r32_reg | Kind::r32_rm | Kind::r32_opcode | Kind::r32_vvvv => {
                    Register::EAX + general(random)
                }
                Kind::r64_or_mem | Kind::r64_reg | Kind::r64_rm | Kind::r64_opcode | Kind::r64_vvvv => {
                    Register::RAX + general(random)
                }
                Kind::mm_or_mem | Kind::mm_reg | Kind::mm_rm => Register::MM0 + random.below(8) as u32,
                Kind::xmm_or_mem | Kind::xmm_reg | Kind::xmm_rm | Kind::xmm_vvvv | Kind::xmm_is4 => {
                    Register::XMM0 + random.below(vectors) as u32
                }
                Kind::ymm_or_mem | Kind::ymm_reg | Kind::ymm_rm | Kind::ymm_vvvv | Kind::ymm_is4 => {
                    Register::YMM0 + random.below(vectors) as u32
                }
                Kind::sti_opcode => Register::ST0 + random.below(8) as u32,
                Kind::al => Register::AL,
                Kind::cl => Register::CL,
                Kind::ax => Register::AX,
                Kind::dx => Register::DX,
                Kind::eax => Register::EAX,
                Kind::rax => Register::RAX,
                Kind::st0 => Register::ST0,
                Kind::fs => Register::FS,
                Kind::gs => Register::GS,
                Kind::imm8 | Kind::imm8_const_1 => {
                    immediate(&mut i, OpKind::Immediate8, if kind == Kind::imm8 { number } else { 1 });
                    continue;
                }
                Kind::imm8sex16 => {
                    immediate(&mut i, OpKind::Immediate8to16, number);
                    continue;
                }
                Kind::imm8sex32 => {
                    immediate(&mut i, OpKind::Immediate8to32, number);
                    continue;
                }
                Kind::imm8sex64 => {
                    immediate(&mut i, OpKind::Immediate8to64, number);
                    continue;
                }
                Kind::imm16 => {
                    immediate(&mut i, OpKind::Immediate16, number);
                    continue;
                }
                Kind::imm32 => {
                    immediate(&mut i, OpKind::Immediate32, number);
                    continue;
                }
                Kind::imm32sex64 => {
                    immediate(&mut i, OpKind::Immediate32to64, number);
                    continue;
                }
                Kind::imm64 => {
                    immediate(&mut i, OpKind::Immediate64, number);
                    continue;
                }
                Kind::mem_offs => {
                    i.set_op_kind(n, OpKind::Memory);
                    i.set_memory_displacement64(address(random) & if narrow { 0xffff_ffff } else { u64::MAX });
                    i.set_memory_displ_size(if narrow { 4 } else { 8 });
                    continue;
                }
                Kind::seg_rSI => {
                    i.set_op_kind(n, if narrow { OpKind::MemorySegESI } else { OpKind::MemorySegRSI });
                    continue;
                }
                Kind::seg_rDI => {
                    i.set_op_kind(n, if narrow { OpKind::MemorySegEDI } else { OpKind::MemorySegRDI });
                    continue;
                }
                Kind::es_rDI => {
                    i.set_op_kind(n, if narrow { OpKind::MemoryESEDI } else { OpKind::MemoryESRDI });
                    continue;
                }
                _ => return None,
            };
            i.set_op_kind(n, OpKind::Register);
            i.set_op_register(n, register);
        }
        if code.op_code().can_use_lock_prefix() && i.op0_kind() == OpKind::Memory && self.random.one_in(3) {
            i.set_has_lock_prefix(true);
        }
        if code.op_code().can_use_rep_prefix() && self.random.one_in(2) {
            i.set_has_rep_prefix(true);
        }
        Some(i)
    }

    /// Adds an instruction if there is room for it. `false`: not.
    pub fn put(&mut self, i: &Instruction, room: u64) -> bool {
        let mut trial = Encoder::new(self.bits());
        match trial.encode(i, self.ip) {
            Ok(len) if len as u64 <= room => {
                let _ = self.encoder.encode(i, self.ip);
                self.ip += len as u64;
                true
            }
            _ => false,
        }
    }

    pub fn piece_start(&mut self) -> u64 {
        self.random.of(self.starts)
    }
}
