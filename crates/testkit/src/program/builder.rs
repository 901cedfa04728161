//! Instructions of a form, with mostly valid operands.

use super::forms::{FORMS, Forms};
use super::{address, general, value};
use crate::Random;
use crate::operands::{Class, Operands, Part, decorate};
use iced_x86::{Code, Encoder, Instruction, MemoryOperand, OpKind, Register};

pub struct Builder<'a> {
    pub random: &'a mut Random,
    /// Registers that hold addresses.
    pub bases: [Register; 2],
    /// True in 32-bit code.
    pub narrow: bool,
    /// True if half of all steps are x87 instructions.
    pub x87: bool,
    /// True if half of all steps are instructions of AVX-512.
    pub wide: bool,
    /// True if the current instruction has 32 vector registers.
    pub evex: bool,
    /// True if registers that hold addresses are moved a little, and used in between.
    pub walks: bool,
    pub starts: &'a [u64],
    pub encoder: Encoder,
    pub ip: u64,
    /// The number for an operand that may be an immediate.
    pub number: u64,
}

impl Builder<'_> {
    pub fn forms(&self) -> &'static Forms {
        &FORMS[usize::from(self.narrow)]
    }

    /// Returns one of the two codes, by the width of the code.
    pub fn sized(&self, long: Code, narrow: Code) -> Code {
        if self.narrow { narrow } else { long }
    }

    pub fn bits(&self) -> u32 {
        if self.narrow { 32 } else { 64 }
    }

    pub fn general(&mut self) -> u32 {
        general(self.random, self.narrow)
    }

    /// Returns a general register of the width of addresses.
    pub fn full(&self, number: u32) -> Register {
        if self.narrow { Register::EAX + (number & 7) } else { Register::RAX + number }
    }

    /// Returns a memory operand at an address.
    pub fn place(&self, address: u64) -> MemoryOperand {
        MemoryOperand::with_displ(address, if self.narrow { 4 } else { 8 })
    }

    /// Returns an instruction that loads a register.
    pub fn set(&self, number: u32, value: u64) -> Option<Instruction> {
        let register = self.full(number);
        match self.narrow {
            true => Instruction::with2(Code::Mov_r32_imm32, register, value as u32),
            false => Instruction::with2(Code::Mov_r64_imm64, register, value),
        }
        .ok()
    }

    /// Returns an instruction that pushes a constant.
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

    /// Sets a memory operand of 32-bit code, or with 16-bit addresses.
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

    /// Adds an instruction if there is room for it; otherwise returns `false`.
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

impl Operands for Builder<'_> {
    fn in_memory(&mut self) -> bool {
        self.random.below(5) < 2
    }

    fn accepts(&mut self, part: Part) -> bool {
        if part == Part::Memory {
            return true;
        }
        // The number is drawn for every operand: programs must stay the same, so that seeds can name them.
        self.number = value(self.random);
        match part {
            // A load of these mostly faults.
            Part::Fixed(register) => !matches!(register, Register::ES | Register::CS | Register::SS | Register::DS),
            Part::Register(class) => !matches!(class, Class::Segment | Class::Control | Class::Debug | Class::Test),
            // The steps of a program have branches of their own, which lead to its other pieces.
            Part::Branch { .. } => false,
            Part::Immediate(OpKind::Immediate8_2nd) | Part::Table | Part::Gathered { .. } => false,
            _ => true,
        }
    }

    fn register(&mut self, class: Class) -> Register {
        let vectors = match (self.narrow, self.evex) {
            (true, _) => 8,
            (false, false) => 16,
            (false, true) => 32,
        };
        match class {
            Class::Byte => self.register8(),
            Class::Word => Register::AX + self.general(),
            Class::Double => Register::EAX + self.general(),
            Class::Quad => Register::RAX + self.general(),
            Class::Mmx => Register::MM0 + self.random.below(8) as u32,
            Class::Xmm => Register::XMM0 + self.random.below(vectors) as u32,
            Class::Ymm => Register::YMM0 + self.random.below(vectors) as u32,
            Class::Zmm => Register::ZMM0 + self.random.below(vectors) as u32,
            Class::Opmask => Register::K0 + self.random.below(8) as u32,
            Class::X87 => Register::ST0 + self.random.below(8) as u32,
            Class::Segment | Class::Control | Class::Debug | Class::Test => unreachable!("not accepted"),
        }
    }

    fn memory(&mut self, i: &mut Instruction, _: Part) {
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
                // The addresses have 32 bits.
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

    fn offset(&mut self, i: &mut Instruction) {
        let address = address(self.random);
        i.set_memory_displacement64(if self.narrow { address & 0xffff_ffff } else { address });
        i.set_memory_displ_size(if self.narrow { 4 } else { 8 });
    }

    fn address_bits(&mut self) -> u32 {
        self.bits()
    }

    fn immediate(&mut self, _: OpKind) -> u64 {
        self.number
    }

    fn branch(&mut self, _: bool) -> u64 {
        unreachable!("not accepted")
    }

    fn prefixes(&mut self, i: &mut Instruction) {
        let random = std::cell::RefCell::new(&mut *self.random);
        decorate(i, |percent| random.borrow_mut().below(100) < percent, |end| random.borrow_mut().below(end));
        let code = i.code().op_code();
        if code.can_use_lock_prefix() && i.op0_kind() == OpKind::Memory && self.random.one_in(3) {
            i.set_has_lock_prefix(true);
        }
        if code.can_use_rep_prefix() && self.random.one_in(2) {
            i.set_has_rep_prefix(true);
        }
    }
}
