//! Tests of every encoding in every row: execution on the host and on [`Cpu`] is compared bit by bit.

use crate::exec::vector::rows;
use crate::native::publish;
use crate::testing::{DATA, Machine, Raised, Random, step_bytes};
use iced_x86::{Code, Encoder, EncodingKind, Instruction, MemoryOperand, Mnemonic, OpKind, Register};
use testkit::operands::{Class, Operands, Part, instruction};
use x86::reg;

#[test]
fn movsd_and_cmpsd_match_the_host() {
    compare_mnemonics(&[Mnemonic::Movsd, Mnemonic::Cmpsd], 1);
}

/// State before and after a test case.
#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(C, align(64))]
struct State {
    gpr: [u64; 16],
    ymm: [[u64; 4]; 16],
    mm: [u64; 8],
    memory: [u64; 32],
    flags: u64,
    mxcsr: u64,
}

const GPR: i64 = 0;
const YMM: i64 = 128;
const MM: i64 = YMM + 512;
const MEMORY: usize = MM as usize + 64;
const FLAGS: i64 = MEMORY as i64 + 256;
const MXCSR: i64 = FLAGS + 8;
/// Offset in the memory area of the memory operand.
const AT: i64 = 64;

/// Returns a 64-bit value with a special meaning as two singles, a double, four halves or bytes.
fn value(random: &mut Random) -> u64 {
    const SINGLES: [u32; 14] = [
        0,
        0x8000_0000,
        0x3f80_0000,
        0xbf80_0000,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0000,
        0x7f80_0001,
        0x7f7f_ffff,
        1,
        0x007f_ffff,
        0x0080_0000,
        0x4f00_0000,
        0xcf00_0000,
    ];
    const DOUBLES: [u64; 14] = [
        0,
        1 << 63,
        0x3ff0 << 48,
        0xbff0 << 48,
        0x7ff0 << 48,
        0xfff0 << 48,
        0x7ff8 << 48,
        (0x7ff0 << 48) + 1,
        0x7fef_ffff_ffff_ffff,
        1,
        0x000f_ffff_ffff_ffff,
        0x0010 << 48,
        0x43e0 << 48,
        0x41e0 << 48,
    ];
    match random.below(8) {
        0 => {
            let a = SINGLES[random.below(14) as usize];
            let b = SINGLES[random.below(14) as usize];
            u64::from(a) | u64::from(b) << 32
        }
        1 => DOUBLES[random.below(14) as usize],
        2 => f64::to_bits(random.below(1000) as f64 - 500.0 + random.below(8) as f64 / 8.0),
        3 => {
            let a = (random.below(1000) as f32 / 8.0).to_bits();
            let b = (-(random.below(1000) as f32)).to_bits();
            u64::from(a) | u64::from(b) << 32
        }
        4 => random.below(20),
        5 => 0x8000_7fff_00ff_ff01 ^ random.below(4),
        6 => random.next() & random.next() & random.next(),
        _ => random.next(),
    }
}

/// Assembles a function that loads a state, executes the instruction, and stores the state.
fn harness(tested: &[u8]) -> unsafe extern "sysv64" fn(*mut State) {
    use Register::*;
    let at = |base: Register, displacement: i64| MemoryOperand::with_base_displ(base, displacement);
    let numbered = |first: Register, n: usize| first + n as u32;
    let mut out = Encoder::new(64);
    let mut put = |i: Result<Instruction, iced_x86::IcedError>| {
        out.encode(&i.unwrap(), 0).unwrap();
    };
    let saved = [RBX, RBP, R12, R13, R14, R15, RDI];
    for register in saved {
        put(Instruction::with1(Code::Push_r64, register));
    }
    for n in 0..16 {
        put(Instruction::with2(Code::VEX_Vmovdqa_ymm_ymmm256, numbered(YMM0, n), at(RDI, YMM + 32 * n as i64)));
    }
    for n in 0..8 {
        put(Instruction::with2(Code::Movq_mm_mmm64, numbered(MM0, n), at(RDI, MM + 8 * n as i64)));
    }
    put(Instruction::with1(Code::Push_rm64, at(RDI, FLAGS)));
    put(Ok(Instruction::with(Code::Popfq)));
    put(Instruction::with1(Code::Ldmxcsr_m32, at(RDI, MXCSR)));
    for n in (0..16).filter(|n| *n != 4 && *n != 7).chain([7]) {
        put(Instruction::with2(Code::Mov_r64_rm64, numbered(RAX, n), at(RDI, GPR + 8 * n as i64)));
    }
    let mut code = out.take_buffer();
    code.extend_from_slice(tested);
    let mut out = Encoder::new(64);
    let mut put = |i: Result<Instruction, iced_x86::IcedError>| {
        out.encode(&i.unwrap(), 0).unwrap();
    };
    put(Instruction::with1(Code::Push_r64, RDI));
    put(Instruction::with2(Code::Mov_r64_rm64, RDI, at(RSP, 8)));
    put(Ok(Instruction::with(Code::Pushfq)));
    put(Instruction::with1(Code::Pop_rm64, at(RDI, FLAGS)));
    for n in (0..16).filter(|n| *n != 4 && *n != 7) {
        put(Instruction::with2(Code::Mov_rm64_r64, at(RDI, GPR + 8 * n as i64), numbered(RAX, n)));
    }
    put(Instruction::with1(Code::Pop_rm64, at(RDI, GPR + 56)));
    put(Instruction::with1(Code::Stmxcsr_m32, at(RDI, MXCSR)));
    for n in 0..16 {
        put(Instruction::with2(Code::VEX_Vmovdqa_ymmm256_ymm, at(RDI, YMM + 32 * n as i64), numbered(YMM0, n)));
    }
    for n in 0..8 {
        put(Instruction::with2(Code::Movq_mmm64_mm, at(RDI, MM + 8 * n as i64), numbered(MM0, n)));
    }
    put(Ok(Instruction::with(Code::VEX_Vzeroupper)));
    put(Ok(Instruction::with(Code::Emms)));
    put(Instruction::with1(Code::Pushq_imm32, 0x1f80));
    put(Instruction::with1(Code::Ldmxcsr_m32, at(RSP, 0)));
    put(Instruction::with1(Code::Pop_r64, RAX));
    for register in saved.into_iter().rev() {
        put(Instruction::with1(Code::Pop_r64, register));
    }
    put(Ok(Instruction::with(Code::Retnq)));
    code.extend_from_slice(&out.take_buffer());
    let code = publish(&code).unwrap();
    // SAFETY: the code preserves callee-saved registers, and accesses only the given state.
    unsafe { std::mem::transmute::<*const u8, unsafe extern "sysv64" fn(*mut State)>(code) }
}

/// Operand generator of the tested instructions; memory operands are at RBX + [`AT`].
struct Chosen<'a>(&'a mut Random);

impl Operands for Chosen<'_> {
    fn in_memory(&mut self) -> bool {
        self.0.below(2) != 0
    }

    fn accepts(&mut self, part: Part) -> bool {
        use Class::*;
        match part {
            Part::Register(class) => matches!(class, Xmm | Ymm | Mmx | Double | Quad),
            Part::Either(class) => matches!(class, Xmm | Ymm | Mmx | Double | Quad),
            Part::Immediate(kind) => kind == OpKind::Immediate8,
            Part::Memory | Part::Gathered { .. } | Part::Masked => true,
            _ => false,
        }
    }

    fn register(&mut self, class: Class) -> Register {
        let random = &mut *self.0;
        // RBX and RSP are reserved.
        let general = [0, 1, 2, 5, 6, 8, 9, 10, 15];
        match class {
            Class::Xmm => Register::XMM0 + random.below(16) as u32,
            Class::Ymm => Register::YMM0 + random.below(16) as u32,
            Class::Mmx => Register::MM0 + random.below(8) as u32,
            Class::Double => Register::EAX + random.of(&general),
            _ => Register::RAX + random.of(&general),
        }
    }

    fn memory(&mut self, i: &mut Instruction, part: Part) {
        i.set_memory_base(Register::RBX);
        if let Part::Gathered { first, .. } = part {
            i.set_memory_index(first + self.0.below(16) as u32);
            i.set_memory_index_scale(1 << self.0.below(4));
        } else {
            i.set_memory_displacement64(AT as u64);
            i.set_memory_displ_size(1);
        }
    }

    fn offset(&mut self, _: &mut Instruction) {
        unreachable!("not accepted")
    }

    fn address_bits(&mut self) -> u32 {
        64
    }

    fn immediate(&mut self, _: OpKind) -> u64 {
        self.0.next()
    }

    fn branch(&mut self, _: bool) -> u64 {
        unreachable!("not accepted")
    }

    fn prefixes(&mut self, _: &mut Instruction) {}
}

fn start(i: &Instruction, random: &mut Random, mxcsr: u64) -> State {
    let mut s = State { gpr: [0; 16], ymm: [[0; 4]; 16], mm: [0; 8], memory: [0; 32], flags: 0x202, mxcsr };
    s.gpr.fill_with(|| value(random));
    for word in s.ymm.as_flattened_mut().iter_mut().chain(&mut s.mm).chain(&mut s.memory) {
        *word = value(random);
    }
    s.flags |= random.next() & 0x8d5;
    s.gpr[4] = 0;
    if i.memory_index().is_vector_register() {
        // Indices that stay inside the memory area with any scale.
        let index = i.memory_index().number();
        let wide = matches!(
            i.mnemonic(),
            Mnemonic::Vgatherqps | Mnemonic::Vgatherqpd | Mnemonic::Vpgatherqd | Mnemonic::Vpgatherqq
        );
        for word in &mut s.ymm[index] {
            *word &= if wide { 15 } else { 0x0000_000f_0000_000f };
        }
    }
    s
}

/// Runs a case on [`crate::Cpu`].
fn emulate(machine: &mut Machine, bytes: &[u8], from: &State) -> (State, Result<(), Raised>) {
    let cpu = &mut machine.cpu;
    cpu.arch.gpr[..16].copy_from_slice(&from.gpr);
    cpu.arch.gpr[usize::from(reg::RBX)] = DATA;
    if from.gpr[7] == u64::MAX {
        cpu.arch.gpr[usize::from(reg::RDI)] = DATA + AT as u64;
    }
    cpu.arch.vector.ymm = from.ymm;
    cpu.arch.vector.mxcsr = from.mxcsr as u32;
    for (slot, value) in cpu.arch.x87.regs.iter_mut().zip(from.mm) {
        slot.significand = value;
    }
    cpu.set_rflags(from.flags);
    for (n, word) in from.memory.iter().enumerate() {
        cpu.wiring.ram.write(DATA + 8 * n as u64, *word);
    }
    let result = step_bytes(cpu, bytes).map(|_| ());
    let mut to = *from;
    let kept = (to.gpr[3], to.gpr[7]);
    to.gpr.copy_from_slice(&cpu.arch.gpr[..16]);
    to.gpr[3] = kept.0;
    if kept.1 == u64::MAX {
        to.gpr[7] = kept.1;
    }
    to.ymm = cpu.arch.vector.ymm;
    to.mxcsr = u64::from(cpu.arch.vector.mxcsr);
    for (value, slot) in to.mm.iter_mut().zip(cpu.arch.x87.regs) {
        *value = slot.significand;
    }
    to.flags = cpu.rflags();
    for (n, word) in to.memory.iter_mut().enumerate() {
        *word = cpu.wiring.ram.read(DATA + 8 * n as u64).unwrap();
    }
    (to, result)
}

/// Runs a case on the host.
fn host(run: unsafe extern "sysv64" fn(*mut State), from: &State) -> State {
    let mut s = *from;
    s.gpr[3] = s.memory.as_ptr() as u64;
    if from.gpr[7] == u64::MAX {
        s.gpr[7] = s.gpr[3] + AT as u64;
    }
    // SAFETY: the instruction only accesses the state's memory area.
    unsafe { run(&raw mut s) };
    s.gpr[3] = from.gpr[3];
    if from.gpr[7] == u64::MAX {
        s.gpr[7] = u64::MAX;
    }
    s
}

fn supported(code: Code) -> bool {
    use iced_x86::CpuidFeature::*;
    code.cpuid_features().iter().all(|feature| match feature {
        VAES => std::arch::is_x86_feature_detected!("vaes"),
        VPCLMULQDQ => std::arch::is_x86_feature_detected!("vpclmulqdq"),
        SHA => std::arch::is_x86_feature_detected!("sha"),
        _ => true,
    })
}

fn compare(rows: &[crate::row::Row], seed: u64) {
    let mnemonics: Vec<_> = rows.iter().map(|row| row.mnemonic).collect();
    compare_mnemonics(&mnemonics, seed);
}

fn compare_mnemonics(mnemonics: &[Mnemonic], seed: u64) {
    let mut random = Random::new(seed);
    let mut cases = 0;
    let mut machine = Machine::long64(3);
    let start_rip = machine.cpu.arch.rip;
    let mxcsrs = [0x1f80, 0x1fbf, 0x9fc0, 0x3f80, 0x5f80, 0x7f80, 0xffc0, 0x1fc0];
    for code in Code::values().filter(|c| mnemonics.contains(&c.mnemonic())) {
        let encoding = code.encoding();
        if !matches!(encoding, EncodingKind::Legacy | EncodingKind::VEX) || !supported(code) {
            continue;
        }
        for _ in 0..6 {
            let Some(i) = instruction(code, &mut Chosen(&mut random)) else { break };
            let mut encoder = Encoder::new(64);
            if encoder.encode(&i, start_rip).is_err() {
                continue;
            }
            let bytes = encoder.take_buffer();
            let gather = i.memory_index().is_vector_register();
            let registers = [i.op0_register(), i.memory_index(), i.op2_register()].map(|r| r.number());
            if gather && (registers[0] == registers[1] || registers[0] == registers[2] || registers[1] == registers[2])
            {
                // Invalid.
                continue;
            }
            let i = crate::Cpu::decode_one(&bytes, start_rip, machine.cpu.decode_mode()).unwrap();
            let run = harness(&bytes);
            let implicit_rdi =
                matches!(i.mnemonic(), Mnemonic::Maskmovq | Mnemonic::Maskmovdqu | Mnemonic::Vmaskmovdqu);
            for n in 0..24 {
                let mut from = start(&i, &mut random, mxcsrs[n % mxcsrs.len()]);
                if implicit_rdi {
                    from.gpr[7] = u64::MAX;
                }
                machine.cpu.arch.rip = start_rip;
                let (got, result) = emulate(&mut machine, &bytes, &from);
                assert_eq!(result, Ok(()), "{i} ({code:?})");
                let expected = host(run, &from);
                if got != expected {
                    panic!("{i} ({code:?})\nfrom {from:x?}\nhost {expected:x?}\ncpu  {got:x?}");
                }
                cases += 1;
            }
        }
    }
    assert!(cases > 0);
}

macro_rules! compared {
    ($($name:ident: $rows:expr;)*) => {
        $(#[test] fn $name() { compare($rows, 0x1234_5678_9abc_def1); })*
    };
}

compared! {
    moves_match_the_host: rows::MOVES;
    integer_matches_the_host: rows::INTEGER;
    vex_integer_matches_the_host: rows::VEX_INTEGER;
    float_matches_the_host: rows::FLOAT;
    vex_float_matches_the_host: rows::VEX_FLOAT;
    division_matches_the_host: rows::DIVISION;
    crypto_matches_the_host: rows::CRYPTO;
    sha_matches_the_host: rows::SHA;
    masked_moves_match_the_host: rows::MASKED;
    gathers_match_the_host: rows::GATHERS;
}
