//! Random programs: pieces of code of random instructions that jump, call and return among each other.

use cpu::Tier;
use cpu::testing::tiers::{ABSENT, ALIAS, CODE_PAGES, LOW, OTHER, READ_ONLY, RECOVERY, STACK, Start, Width};
use cpu::testing::{CODE, DATA, Random};
use iced_x86::{
    Code, Decoder, DecoderOptions, Encoder, EncodingKind, Formatter, GasFormatter, Instruction, MemoryOperand,
    Mnemonic, OpCodeOperandKind as Kind, OpKind, Register,
};
use std::fmt::Write;
use std::sync::LazyLock;

const PAGE: u64 = 4096;
/// Bytes of a piece, at most.
const PIECE: u64 = 112;
/// Bytes left for the jump at its end.
const END: u64 = 14;

/// Encodings to draw from.
struct Forms {
    /// Those of ordinary compiled code.
    common: Vec<Code>,
    /// Those of the x87 unit.
    x87: Vec<Code>,
    /// Everything else that does not change the mode the program runs in.
    all: Vec<Code>,
}

/// Those of 64-bit code, then those of 32-bit code.
static FORMS: LazyLock<[Forms; 2]> = LazyLock::new(|| [64, 32].map(forms));

fn forms(bits: u32) -> Forms {
    use Mnemonic::*;
    let rows: Vec<Mnemonic> =
        cpu::table::FAMILIES.iter().flat_map(|(_, rows)| rows.iter().map(|row| row.mnemonic)).collect();
    let usable = |code: &Code| {
        let info = code.op_code();
        rows.contains(&code.mnemonic())
            && matches!(code.encoding(), EncodingKind::Legacy | EncodingKind::VEX)
            && info.is_available_in_mode(bits)
            && if bits == 64 { info.intel_decoder64() } else { info.intel_decoder32() }
            && info.is_instruction()
            && !code.is_jmp_near()
            && !code.is_jmp_short()
            && !code.is_call_near()
            && !code.is_jcc_short_or_near()
    };
    let common = Code::values().filter(usable).filter(|code| {
        matches!(
            code.mnemonic(),
            Mov | Movzx
                | Movsx
                | Movsxd
                | Xchg
                | Add
                | Or
                | Adc
                | Sbb
                | And
                | Sub
                | Xor
                | Cmp
                | Test
                | Inc
                | Dec
                | Neg
                | Not
                | Lea
                | Cmovb
                | Cmove
                | Cmovg
                | Cmovs
                | Cmovp
                | Cmovo
                | Cmovbe
                | Setb
                | Sete
                | Setl
                | Setp
                | Seto
                | Seta
                | Sets
                | Cbw
                | Cwde
                | Cdqe
                | Cwd
                | Cdq
                | Cqo
                | Bswap
                | Movbe
                | Cmpxchg
                | Xadd
                | Clc
                | Stc
                | Cmc
                | Popcnt
                | Shl
                | Sal
                | Shr
                | Sar
                | Rol
                | Ror
                | Rcl
                | Rcr
                | Shld
                | Shrd
                | Imul
                | Mul
                | Div
                | Idiv
                | Bt
                | Bts
                | Btr
                | Btc
                | Bsf
                | Bsr
                | Tzcnt
                | Lzcnt
                | Rorx
                | Shlx
                | Shrx
                | Sarx
                | Pdep
                | Pext
                | Mulx
                | Andn
                | Blsr
                | Blsi
                | Blsmsk
                | Bzhi
                | Bextr
                | Crc32
                | Adcx
                | Adox
                | Push
                | Pop
                | Leave
                | Pushfq
                | Pushfd
                | Lahf
                | Sahf
                | Nop
                | Endbr64
                | Endbr32
        ) && code.op_code().op_kinds().iter().all(|kind| !matches!(kind, Kind::seg_reg | Kind::cr_reg | Kind::dr_reg))
    });
    let all = Code::values().filter(usable).filter(|code| {
        !matches!(
            code.mnemonic(),
            Hlt | Mwait
                | Monitor
                | Mwaitx
                | Monitorx
                | Umwait
                | Tpause
                | Iret
                | Iretd
                | Iretq
                | Sysret
                | Sysretq
                | Sysexit
                | Sysexitq
                | Syscall
                | Sysenter
                | Lgdt
                | Lidt
                | Lldt
                | Ltr
                | Lmsw
                | Clts
                | Wrmsr
                | Rsm
                | Int
                | Int1
                | Int3
                | Retf
                | Vmxon
                | Vmxoff
                | Vmlaunch
                | Vmresume
                | Vmcall
                | Vmmcall
                | Xsetbv
        ) && !code.is_jmp_far_indirect()
            && !code.is_call_far_indirect()
            && !code.is_jmp_far()
            && !code.is_call_far()
            && code.op_code().op_kinds().iter().all(|kind| !matches!(kind, Kind::seg_reg | Kind::cr_reg | Kind::dr_reg))
    });
    let unit = |code: &Code| {
        let mut families = cpu::table::FAMILIES.iter().filter(|(name, _)| *name == "x87");
        families.any(|(_, rows)| rows.iter().any(|row| row.mnemonic == code.mnemonic()))
    };
    let x87 = Code::values().filter(usable).filter(unit);
    Forms { common: common.collect(), x87: x87.collect(), all: all.collect() }
}

/// An address for data: mostly good ones, often near the end of a page.
fn address(random: &mut Random) -> u64 {
    let page = match random.below(32) {
        0 => READ_ONLY,
        1 => ABSENT,
        2 => OTHER,
        3 => ALIAS,
        4 => CODE + random.below(CODE_PAGES) * PAGE,
        5 => return random.next(),
        6 => random.of(&[0x0000_7fff_ffff_f000, 0xffff_8000_0000_0000, 0x0000_8000_0000_0000]),
        7..=9 => STACK - PAGE,
        10..=14 => LOW,
        15..=18 => LOW + PAGE,
        19..=24 => DATA + PAGE,
        _ => DATA,
    };
    page + match random.below(6) {
        0 => PAGE - 1 - random.below(34),
        1 => random.below(64),
        2 => random.below(PAGE),
        _ => random.below(PAGE) & !31,
    }
}

/// A number for a register.
fn value(random: &mut Random) -> u64 {
    match random.below(8) {
        0 => random.below(70),
        1 => random.next() as i8 as u64,
        2 => random.of(&[0, 1, u64::MAX, 1 << 63, 1 << 31, u32::MAX.into(), i64::MAX as u64, 0x8000, 0x80]),
        3 | 4 => random.next(),
        _ => address(random),
    }
}

fn general(random: &mut Random, narrow: bool) -> u32 {
    // RSP has its own uses, mostly.
    loop {
        let register = random.below(if narrow { 8 } else { 16 }) as u32;
        if register != 4 || random.one_in(24) {
            return register;
        }
    }
}

struct Builder<'a> {
    random: &'a mut Random,
    /// Registers that hold addresses.
    bases: [Register; 2],
    /// 32-bit code.
    narrow: bool,
    /// Half of all steps are x87 instructions.
    x87: bool,
    /// Registers that hold addresses are moved a little, and used in between.
    walks: bool,
    starts: &'a [u64],
    encoder: Encoder,
    ip: u64,
}

impl Builder<'_> {
    fn forms(&self) -> &'static Forms {
        &FORMS[usize::from(self.narrow)]
    }

    /// One of the two, by the width of the code.
    fn sized(&self, long: Code, narrow: Code) -> Code {
        if self.narrow { narrow } else { long }
    }

    fn bits(&self) -> u32 {
        if self.narrow { 32 } else { 64 }
    }

    fn general(&mut self) -> u32 {
        general(self.random, self.narrow)
    }

    /// A general register of the width of addresses.
    fn full(&self, number: u32) -> Register {
        if self.narrow { Register::EAX + (number & 7) } else { Register::RAX + number }
    }

    /// Memory at an address.
    fn place(&self, address: u64) -> MemoryOperand {
        MemoryOperand::with_displ(address, if self.narrow { 4 } else { 8 })
    }

    /// Loads a register.
    fn set(&self, number: u32, value: u64) -> Option<Instruction> {
        let register = self.full(number);
        match self.narrow {
            true => Instruction::with2(Code::Mov_r32_imm32, register, value as u32),
            false => Instruction::with2(Code::Mov_r64_imm64, register, value),
        }
        .ok()
    }

    /// Pushes a constant.
    fn push(&self, value: u32) -> Option<Instruction> {
        Instruction::with1(self.sized(Code::Pushq_imm32, Code::Pushd_imm32), value as i32).ok()
    }

    fn register8(&mut self) -> Register {
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
    fn narrow_memory(&mut self, i: &mut Instruction) {
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

    fn memory(&mut self, i: &mut Instruction, operand: u32) {
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
    fn instruction(&mut self, code: Code) -> Option<Instruction> {
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
    fn put(&mut self, i: &Instruction, room: u64) -> bool {
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

    fn piece_start(&mut self) -> u64 {
        self.random.of(self.starts)
    }

    /// An x87 instruction, or several that change what the unit does.
    fn x87_step(&mut self) -> Vec<Option<Instruction>> {
        let with = |result: Result<Instruction, iced_x86::IcedError>| result.ok();
        let random = &mut *self.random;
        let place = MemoryOperand::with_base_displ(random.of(&self.bases), 8 * random.below(8) as i64);
        match random.below(40) {
            0 | 1 => {
                // A control word: mostly one that masks everything.
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
                // Something to compute with.
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
                vec![self.instruction(code)]
            }
        }
    }

    /// Something to do, as instructions.
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
        // RAX, RCX, RDX or RBX.
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

    /// The lower half of a general register of the width of addresses.
    fn narrow32(&self, register: Register) -> Register {
        Register::EAX + register.number() as u32
    }

    fn step(&mut self) -> Vec<Instruction> {
        if self.walks && self.random.one_in(2) {
            return self.walk().into_iter().flatten().collect();
        }
        if self.x87 && self.random.one_in(2) {
            return self.x87_step().into_iter().flatten().collect();
        }
        let with = |result: Result<Instruction, iced_x86::IcedError>| result.ok();
        let made: Vec<Option<Instruction>> = match self.random.below(68) {
            0..=2 => {
                // The flags as they are, where they can be compared.
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
                // Through a register or memory.
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
                // A return to where no call came from.
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
                // Arithmetic flags, sometimes IF, TF, AC, DF and others.
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
                // A quotient that fits, most likely.
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
                    3 => vec![Some(Instruction::with(Code::Rdtsc))],
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
                vec![self.instruction(code)]
            }
            // Interrupts off and on, and an access to the board after which there is one.
            64 | 65 => vec![Some(Instruction::with(Code::Cli))],
            66 if self.random.one_in(2) => {
                vec![Some(Instruction::with(Code::Sti)), Some(Instruction::with(Code::Nopd))]
            }
            66 => vec![Some(Instruction::with(Code::Sti))],
            67 => vec![with(Instruction::with2(Code::Out_imm8_AL, 0x80, Register::AL))],
            _ => {
                let code = self.random.of(&self.forms().common);
                vec![self.instruction(code)]
            }
        };
        made.into_iter().flatten().collect()
    }
}

/// The program of a seed, and what comes after it.
pub fn of(seed: u64) -> (Random, Start) {
    let mut random = Random::new(seed);
    // Those of even seeds are what they always were.
    let start = start(&mut random, seed % 2 == 1);
    // Some have probes.
    let probes = if seed % 5 == 4 { probes(&start, seed) } else { Vec::new() };
    (random, Start { recorded: seed % 4 != 3, probes, ..start })
}

/// A few addresses of instructions.
fn probes(start: &Start, seed: u64) -> Vec<u64> {
    let mut random = Random::new(seed);
    let bits = if start.width == Width::Long { 64 } else { 32 };
    let from = (start.rip - CODE) as usize;
    let instructions = Decoder::with_ip(bits, &start.code[from..], start.rip, DecoderOptions::NONE);
    instructions.into_iter().filter(|i| i.code() != Code::Int3 && random.one_in(40)).take(8).map(|i| i.ip()).collect()
}

/// Makes a program.
fn start(random: &mut Random, walks: bool) -> Start {
    let most = random.of(&[4, 40]);
    let pieces = 2 + random.below(most);
    let first = match random.below(3) {
        0 => CODE + PAGE - random.below(2 * PIECE),
        1 => CODE + random.below(PAGE),
        _ => CODE + 2 * PAGE - random.below(6 * PIECE),
    };
    let width = random.of(&[Width::Long, Width::Long, Width::Long, Width::Compatibility, Width::Protected]);
    let narrow = width != Width::Long;
    let starts: Vec<u64> = (0..pieces).map(|n| first + n * PIECE).collect();
    let mut code = vec![0xcc; (CODE_PAGES * PAGE) as usize];
    for (number, &at) in starts.iter().enumerate() {
        let bases = [general(random, narrow), general(random, narrow)];
        let x87 = random.one_in(4);
        let encoder = Encoder::new(if narrow { 32 } else { 64 });
        let mut builder =
            Builder { random, bases: [Register::None; 2], narrow, x87, walks, starts: &starts, encoder, ip: at };
        builder.bases = bases.map(|n| builder.full(n));
        let next = starts[(number + 1) % starts.len()];
        let limit = at + PIECE - END;
        let mut first: Vec<Instruction> = Vec::new();
        if builder.random.one_in(2) {
            let code = builder.sized(Code::Mov_rm64_imm32, Code::Mov_rm32_imm32);
            first.extend(Instruction::with2(code, builder.place(RECOVERY), next as i32));
        }
        for base in bases {
            if !builder.random.one_in(4) {
                let to = address(builder.random);
                first.extend(builder.set(base, to));
            }
        }
        for i in first {
            builder.put(&i, limit.saturating_sub(builder.ip));
        }
        let steps = 1 + builder.random.below(24);
        for _ in 0..steps {
            for i in builder.step() {
                builder.put(&i, limit.saturating_sub(builder.ip));
            }
        }
        let end = if builder.random.one_in(4) {
            let steps = (next.saturating_sub(builder.ip)).min(PIECE);
            let fill = vec![0x90; steps as usize];
            let from = (builder.ip - CODE) as usize;
            code[from..from + fill.len()].copy_from_slice(&fill);
            None
        } else {
            Instruction::with_branch(builder.sized(Code::Jmp_rel32_64, Code::Jmp_rel32_32), next).ok()
        };
        if let Some(end) = end {
            builder.put(&end, END);
        }
        let bytes = builder.encoder.take_buffer();
        let from = (at - CODE) as usize;
        code[from..from + bytes.len()].copy_from_slice(&bytes);
    }
    let cpl = random.of(&[0, 3, 3]);
    let mut gpr = [0; 16];
    gpr.fill_with(|| value(random));
    gpr[4] = STACK - 8 * random.below(64);
    if width == Width::Protected {
        gpr.iter_mut().for_each(|register| *register &= 0xffff_ffff);
    }
    let mut bases = [address(random), address(random)];
    if narrow {
        bases = bases.map(|base| if random.one_in(2) { 0 } else { base & 0xffff_ffff });
    }
    Start {
        probes: Vec::new(),
        width,
        cpl,
        smap: cpl == 0 && random.one_in(2),
        rip: first,
        code,
        gpr,
        flags: random.next() & 0xad5 | if random.one_in(3) { 1 << 18 } else { 0 },
        bases,
        pointers: random.one_in(4),
        recorded: true,
        seed: random.next(),
        tier: if random.one_in(2) { Tier::Auto } else { Tier::Translator },
        threshold: 1 + random.below(8) as u16,
    }
}

/// A program, for people.
pub fn listing(start: &Start) -> String {
    let mut text = format!(
        "{:?}, cpl {} smap {} at {:#x}, flags {:#x}, bases {:x?}, {:?}\n{:x?}\n",
        start.width, start.cpl, start.smap, start.rip, start.flags, start.bases, start.tier, start.gpr
    );
    let from = (start.rip - CODE) as usize;
    let end = start.code.iter().rposition(|byte| *byte != 0xcc).map_or(0, |at| at + 1);
    let mut formatter = GasFormatter::new();
    let bits = if start.width == Width::Long { 64 } else { 32 };
    for i in Decoder::with_ip(bits, &start.code[from..end], start.rip, DecoderOptions::NONE) {
        if i.mnemonic() == Mnemonic::Int3 || i.mnemonic() == Mnemonic::Nop {
            continue;
        }
        let mut line = String::new();
        formatter.format(&i, &mut line);
        let _ = writeln!(text, "  {:x}: {line}", i.ip());
    }
    text
}
