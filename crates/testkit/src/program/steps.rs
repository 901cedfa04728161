//! The next step of a random program: one instruction, or a few that belong together.

use super::builder::Builder;
use super::{address, value};
use crate::operands::instruction;
use crate::tiers::STACK;
use iced_x86::{Code, EncodingKind, Instruction, MemoryOperand, Register};

impl Builder<'_> {
    /// Returns an x87 instruction, or several that change the unit's state.
    fn x87_step(&mut self) -> Vec<Option<Instruction>> {
        let with = |result: Result<Instruction, iced_x86::IcedError>| result.ok();
        let random = &mut *self.random;
        let place = MemoryOperand::with_base_displ(random.of(&self.bases), 8 * random.below(8) as i64);
        match random.below(40) {
            0 | 1 => {
                // A control word mostly masks everything.
                let masks = if random.one_in(4) { random.below(64) as u32 } else { 0x3f };
                let control = masks | random.of(&[0x300, 0x300, 0x200, 0, 0x100]) | (random.below(4) as u32) << 10;
                vec![
                    with(Instruction::with2(Code::Mov_rm16_imm16, place, control)),
                    with(Instruction::with1(Code::Fldcw_m2byte, place)),
                ]
            }
            2 => vec![Some(Instruction::with(random.of(&[Code::Fninit, Code::Fnclex, Code::Wait, Code::Emms])))],
            3 => vec![with(Instruction::with1(Code::Fnstsw_AX, Register::AX))],
            4..=9 => {
                // These load a value to compute with.
                let codes = [Code::Fld_m32fp, Code::Fld_m64fp, Code::Fld_m80fp, Code::Fild_m32int, Code::Fild_m64int];
                vec![with(Instruction::with1(random.of(&codes), place))]
            }
            10..=12 => vec![Some(Instruction::with(random.of(&[Code::Fld1, Code::Fldz, Code::Fldpi, Code::Fldl2t])))],
            13..=17 => {
                let codes =
                    [Code::Fstp_m32fp, Code::Fstp_m64fp, Code::Fstp_m80fp, Code::Fistp_m32int, Code::Fisttp_m64int];
                vec![with(Instruction::with1(random.of(&codes), place))]
            }
            18 | 19 => {
                let register = Register::ST0 + random.below(8) as u32;
                vec![with(Instruction::with1(Code::Fstp_sti, register))]
            }
            _ => {
                let code = self.random.of(&self.forms().x87);
                vec![instruction(code, self)]
            }
        }
    }

    /// Moves a register that holds an address a little, or copies it, and uses it.
    fn walk(&mut self) -> Vec<Option<Instruction>> {
        let with = |result: Result<Instruction, iced_x86::IcedError>| result.ok();
        let base = self.random.of(&self.bases);
        let by = self.random.of(&[4i32, 8, -8, 1, 16, 64, -40]);
        let mut value = self.general();
        if value == 4 {
            value = 0;
        }
        let (copy, value) = (self.random.below(4) as u32, self.full(value));
        // The copy goes to RAX, RCX, RDX or RBX.
        let copy = self.full(copy);
        let load = self.sized(Code::Mov_r64_rm64, Code::Mov_r32_rm32);
        let store = self.sized(Code::Mov_rm64_r64, Code::Mov_rm32_r32);
        let here = MemoryOperand::with_base_displ(base, i64::from(by));
        match self.random.below(8) {
            0 => vec![with(Instruction::with2(self.sized(Code::Add_rm64_imm8, Code::Add_rm32_imm8), base, by))],
            1 => vec![with(Instruction::with2(self.sized(Code::Sub_rm64_imm8, Code::Sub_rm32_imm8), base, by))],
            2 => vec![with(Instruction::with1(self.sized(Code::Inc_rm64, Code::Inc_rm32), base))],
            3 => vec![with(Instruction::with2(self.sized(Code::Lea_r64_m, Code::Lea_r32_m), base, here))],
            4 => {
                let there = MemoryOperand::with_base_displ(copy, 0x20);
                vec![
                    with(Instruction::with2(store, copy, base)),
                    with(Instruction::with2(store, there, value)),
                    with(Instruction::with2(load, value, here)),
                ]
            }
            5 => {
                let there = MemoryOperand::with_base_index_scale_displ_size(base, value, 1, 8, 1);
                vec![
                    with(Instruction::with2(Code::Xor_r32_rm32, self.narrow32(value), self.narrow32(value))),
                    with(Instruction::with2(load, copy, there)),
                    with(Instruction::with2(store, there, copy)),
                ]
            }
            6 => vec![with(Instruction::with2(load, copy, here))],
            _ => vec![with(Instruction::with2(store, here, value))],
        }
    }

    /// Returns the lower half of a general register of the width of addresses.
    fn narrow32(&self, register: Register) -> Register {
        Register::EAX + register.number() as u32
    }

    /// Returns the instructions of a step.
    pub fn step(&mut self) -> Vec<Instruction> {
        if self.walks && self.random.one_in(2) {
            return self.walk().into_iter().flatten().collect();
        }
        if self.wide && self.random.one_in(2) {
            let code = self.random.of(&self.forms().wide);
            self.evex = code.encoding() == EncodingKind::EVEX;
            let made = instruction(code, self);
            self.evex = false;
            return made.into_iter().collect();
        }
        if self.x87 && self.random.one_in(2) {
            return self.x87_step().into_iter().flatten().collect();
        }
        let with = |result: Result<Instruction, iced_x86::IcedError>| result.ok();
        let made: Vec<Option<Instruction>> = match self.random.below(68) {
            0..=2 => {
                // The unchanged flags are used, if they can be compared.
                let to = if self.narrow { 0 } else { self.random.of(&[0, 9, 14]) };
                vec![
                    Some(Instruction::with(self.sized(Code::Pushfq, Code::Pushfd))),
                    with(Instruction::with1(self.sized(Code::Pop_r64, Code::Pop_r32), self.full(to))),
                ]
            }
            3..=6 => {
                let n = 1 + self.random.below(4);
                let code = match self.random.one_in(2) {
                    true => self.sized(Code::Push_r64, Code::Push_r32),
                    false => self.sized(Code::Pop_r64, Code::Pop_r32),
                };
                let mut one = || {
                    let register = self.general();
                    with(Instruction::with1(code, self.full(register)))
                };
                (0..n).map(|_| one()).collect()
            }
            7..=10 => {
                let codes = [
                    (Code::Jo_rel32_64, Code::Jo_rel32_32),
                    (Code::Jb_rel32_64, Code::Jb_rel32_32),
                    (Code::Je_rel32_64, Code::Je_rel32_32),
                    (Code::Jne_rel32_64, Code::Jne_rel32_32),
                    (Code::Jbe_rel32_64, Code::Jbe_rel32_32),
                    (Code::Js_rel32_64, Code::Js_rel32_32),
                    (Code::Jp_rel32_64, Code::Jp_rel32_32),
                    (Code::Jl_rel32_64, Code::Jl_rel32_32),
                    (Code::Jg_rel32_64, Code::Jg_rel32_32),
                ];
                let ((long, narrow), to) = (self.random.of(&codes), self.piece_start());
                vec![with(Instruction::with_branch(self.sized(long, narrow), to))]
            }
            11 | 12 => {
                let to = self.piece_start();
                vec![with(Instruction::with_branch(self.sized(Code::Call_rel32_64, Code::Call_rel32_32), to))]
            }
            13..=15 => {
                // The branch goes through a register or memory.
                let (to, through) = (self.piece_start(), self.general());
                let code = match self.random.one_in(2) {
                    true => self.sized(Code::Call_rm64, Code::Call_rm32),
                    false => self.sized(Code::Jmp_rm64, Code::Jmp_rm32),
                };
                let (set, through) = (self.set(through, to), self.full(through));
                if self.random.one_in(2) {
                    return [set, with(Instruction::with1(code, through))].into_iter().flatten().collect();
                }
                let place = MemoryOperand::with_base_displ(self.bases[0], 8 * self.random.below(16) as i64);
                vec![
                    set,
                    with(Instruction::with2(self.sized(Code::Mov_rm64_r64, Code::Mov_rm32_r32), place, through)),
                    with(Instruction::with1(code, place)),
                ]
            }
            16..=19 => {
                let release = self.random.of(&[8u32, 0, 16]);
                vec![if self.random.one_in(4) {
                    with(Instruction::with1(self.sized(Code::Retnq_imm16, Code::Retnd_imm16), release))
                } else {
                    Some(Instruction::with(self.sized(Code::Retnq, Code::Retnd)))
                }]
            }
            20 => {
                // This is a return without a call.
                let to = self.piece_start();
                vec![self.push(to as u32), Some(Instruction::with(self.sized(Code::Retnq, Code::Retnd)))]
            }
            21 => vec![Some(Instruction::with(self.random.of(&[Code::Stac, Code::Clac])))],
            22 => {
                // Code is written: an instruction somewhere else, or its operand.
                let to = self.piece_start() + self.random.below(40);
                let value = self.random.of(&[0x90, 0x48, 0xc3, 0xfd]);
                vec![with(Instruction::with2(Code::Mov_rm8_imm8, self.place(to), value))]
            }
            23 if !self.narrow => {
                let base = address(self.random);
                let code = self.random.of(&[Code::Wrfsbase_r64, Code::Wrgsbase_r64]);
                vec![self.set(0, base), with(Instruction::with1(code, Register::RAX))]
            }
            24 => {
                // POPF changes arithmetic flags, sometimes IF, TF, AC, DF and others.
                let random = &mut *self.random;
                let flags = if random.one_in(3) { random.next() & 0x4_0fd5 } else { random.next() & 0xad5 };
                let pop = Instruction::with(self.sized(Code::Popfq, Code::Popfd));
                vec![self.push(flags as u32), Some(pop)]
            }
            25..=27 => {
                let (register, to) = (self.random.below(16) as u32, address(self.random));
                vec![self.set(register, to)]
            }
            28 => {
                let to = STACK - 8 * self.random.below(200);
                vec![self.set(4, to)]
            }
            29 if !self.narrow => {
                let random = &mut *self.random;
                let count = random.of(&[0, 1, 2, 7, 64, 511, 512, 600, 4096]);
                let (to, from) = (address(random), address(random));
                let string = random.of(&[
                    Instruction::with_rep_stosb as fn(u32) -> _,
                    Instruction::with_rep_stosw,
                    Instruction::with_rep_stosd,
                    Instruction::with_rep_stosq,
                    Instruction::with_rep_movsb,
                    Instruction::with_rep_movsw,
                    Instruction::with_rep_movsd,
                    Instruction::with_rep_movsq,
                ]);
                vec![
                    with(Instruction::with2(Code::Mov_r32_imm32, Register::ECX, count)),
                    with(Instruction::with2(Code::Mov_r64_imm64, Register::RDI, to)),
                    with(Instruction::with2(Code::Mov_r64_imm64, Register::RSI, from)),
                    with(string(64)),
                ]
            }
            30 if !self.narrow => {
                // The quotient most likely fits.
                let random = &mut *self.random;
                let by = Register::RAX + random.of(&[1, 3, 6, 7, 9, 13, 14]);
                let code = random.of(&[Code::Div_rm64, Code::Idiv_rm64, Code::Div_rm32, Code::Idiv_rm32]);
                let narrow = matches!(code, Code::Div_rm32 | Code::Idiv_rm32);
                let by = if narrow { Register::EAX + (by as u32 - Register::RAX as u32) } else { by };
                let extend = match code {
                    Code::Idiv_rm64 => Some(Instruction::with(Code::Cqo)),
                    Code::Idiv_rm32 => Some(Instruction::with(Code::Cdq)),
                    _ => with(Instruction::with2(Code::Xor_r32_rm32, Register::EDX, Register::EDX)),
                };
                vec![extend, with(Instruction::with1(code, by))]
            }
            31 if !self.narrow => {
                let random = &mut *self.random;
                let (to, low) = (address(random) & !15, value(random));
                let place = MemoryOperand::with_base(Register::RSI);
                vec![
                    with(Instruction::with2(Code::Mov_r64_imm64, Register::RSI, to)),
                    with(Instruction::with2(Code::Mov_r64_rm64, Register::RAX, place)),
                    with(Instruction::with2(Code::Mov_r64_imm64, Register::RCX, low)),
                    with(Instruction::with1(Code::Cmpxchg16b_m128, place)),
                ]
            }
            32 if !self.narrow => {
                let to = Register::RAX + self.random.below(16) as u32;
                let place = MemoryOperand::with_base(self.bases[0]);
                let random = &mut *self.random;
                let segment = random.of(&[Register::DS, Register::ES, Register::CS, Register::SS]);
                match random.below(7) {
                    0 => vec![with(Instruction::with2(Code::Mov_r64m16_Sreg, to, segment))],
                    1 => vec![with(Instruction::with2(Code::Mov_rm16_Sreg, place, segment))],
                    2 => {
                        vec![with(Instruction::with2(Code::Mov_r64_cr, to, random.of(&[Register::CR2, Register::CR3])))]
                    }
                    3 => vec![Some(Instruction::with(random.of(&[Code::Rdtsc, Code::Rdtscp, Code::Pause])))],
                    4 => vec![Some(Instruction::with(Code::Swapgs))],
                    _ => vec![
                        with(Instruction::with2(Code::Mov_r32_imm32, Register::ECX, 0x48)),
                        with(Instruction::with2(Code::Mov_r32_imm32, Register::EAX, random.of(&[0, 1, 4, 2, 0x1000]))),
                        with(Instruction::with2(Code::Xor_r32_rm32, Register::EDX, Register::EDX)),
                        Some(Instruction::with(Code::Wrmsr)),
                    ],
                }
            }
            29..=34 => {
                let code = self.random.of(&self.forms().all);
                vec![instruction(code, self)]
            }
            // Interrupts are disabled, enabled, and raised by an access to the board.
            64 | 65 => vec![Some(Instruction::with(Code::Cli))],
            66 if self.random.one_in(2) => {
                vec![Some(Instruction::with(Code::Sti)), Some(Instruction::with(Code::Nopd))]
            }
            66 => vec![Some(Instruction::with(Code::Sti))],
            67 => vec![with(Instruction::with2(Code::Out_imm8_AL, 0x80, Register::AL))],
            _ => {
                let code = self.random.of(&self.forms().common);
                vec![instruction(code, self)]
            }
        };
        made.into_iter().flatten().collect()
    }
}
