//! A case: an instruction's bytes, the state before it, and the memory that it finds. A case is a function of seed,
//! form and index.

use crate::layout::*;
use crate::native;
use crate::operands::{self, Plan};
use crate::state::State;
use crate::values;
use iced_x86::{
    Code, Decoder, DecoderOptions, Encoder, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};
use testkit::random::Random;
use x86::reg;

/// Bytes written to the arena before the instruction.
#[derive(Clone, Debug)]
pub struct Poke {
    /// Address; the range is writable.
    pub address: u64,
    /// Bytes.
    pub bytes: Vec<u8>,
}

/// A test case: one instruction and the state that it starts from.
#[derive(Clone, Debug)]
pub struct Case {
    /// The instruction as decoded from [`Case::bytes`].
    pub instruction: Instruction,
    /// The instruction's bytes.
    pub bytes: Vec<u8>,
    /// State before the instruction.
    pub state: State,
    /// Changes to memory before the instruction.
    pub pokes: Vec<Poke>,
}

/// Generator of cases.
pub struct Generator {
    seed: u64,
    bits: u32,
    encoder: Encoder,
    factory: InstructionInfoFactory,
    /// The decoder's options, which follow the host.
    options: u32,
    buffer: Vec<u8>,
}

const RAX: usize = reg::RAX as usize;
const RCX: usize = reg::RCX as usize;
const RDX: usize = reg::RDX as usize;
const RBX: usize = reg::RBX as usize;
const RSP: usize = reg::RSP as usize;
const RBP: usize = reg::RBP as usize;
const RSI: usize = reg::RSI as usize;
const RDI: usize = reg::RDI as usize;

/// Returns the arena's contents before every case.
pub fn arena() -> Box<[u8; ARENA_LEN]> {
    let mut rng = Random::of_path(&[0x0061_7265_6e61]);
    let mut arena = Box::new([0; ARENA_LEN]);
    for chunk in arena.chunks_mut(32) {
        for (to, from) in chunk.chunks_mut(8).zip(values::vector::<4>(&mut rng)) {
            to.copy_from_slice(&from.to_le_bytes());
        }
    }
    arena
}

impl Generator {
    /// Creates a generator for code of this width.
    pub fn new(seed: u64, bits: u32) -> Self {
        Self {
            seed,
            bits,
            encoder: Encoder::new(bits),
            factory: InstructionInfoFactory::new(),
            options: if testkit::host_is_amd() { DecoderOptions::AMD } else { DecoderOptions::NONE },
            buffer: Vec::with_capacity(32),
        }
    }

    /// Returns the case of this number, or `None` if no attempt at it gave a case that is safe to run.
    pub fn case(&mut self, code: Code, index: u64) -> Option<Case> {
        let mut rng = Random::of_path(&[self.seed, code as u64, index, u64::from(self.bits)]);
        (0..24).find_map(|_| self.attempt(code, &mut rng))
    }

    fn attempt(&mut self, code: Code, rng: &mut Random) -> Option<Case> {
        let (mut instruction, plan) = operands::instruction(code, rng, self.bits)?;
        let mut state = self.state(rng);
        let mut pokes = Vec::new();
        self.solve(&mut instruction, &plan, &mut state, rng)?;
        let bytes = self.encode(&instruction, rng)?;
        let decoded = self.decode(&bytes)?;
        let bytes = bytes[..decoded.len()].to_vec();
        if decoded.code() != code && (cpu::table::row(decoded.mnemonic()).is_none() || !self.comparable(&decoded)) {
            return None;
        }
        self.special(&decoded, &plan, &mut state, &mut pokes, rng);
        if self.bits == 32 {
            state.gpr[..8].iter_mut().for_each(|r| *r &= 0xffff_ffff);
        }
        if !self.safe(&decoded, &state) {
            return None;
        }
        // The registers of such a host can't be compared. The numbers drawn stay the same on all hosts.
        if !native::has_avx_512() {
            state.wide = State::default().wide;
        }
        Some(Case { instruction: decoded, bytes, state, pokes })
    }

    fn comparable(&self, i: &Instruction) -> bool {
        let info = i.code().op_code();
        let exists = if self.bits == 64 { info.intel_decoder64() } else { info.intel_decoder32() };
        exists && crate::forms::exclusion(i.code()).is_none()
    }

    fn state(&self, rng: &mut Random) -> State {
        let mut state = State::default();
        for r in &mut state.gpr {
            *r = values::integer(rng);
        }
        state.gpr[RSP] = STACK.wrapping_add(match rng.below(32) {
            0 => 0x1000 - rng.below(16),
            1 => 0x1000u64.wrapping_neg().wrapping_add(rng.below(16)),
            2 => rng.below(0x800),
            3 => rng.below(32).wrapping_neg(),
            _ => (rng.below(0x100) * 8).wrapping_sub(0x400),
        });
        // The flags are random: CF, PF, AF, ZF, SF and OF, and less often DF.
        state.rflags = 0x202 | rng.next() & 0x8d5 | u64::from(rng.chance(20)) << 10;
        state.fs_base = (rng.next() as i64 >> 52) as u64;
        state.gs_base = (rng.next() as i64 >> 52) as u64;
        if self.bits == 32 {
            state.fs_base = 0;
            state.gs_base = 0;
        }
        let x = &mut state.x;
        for i in 0..16 {
            let [a, b, c, d] = values::vector::<4>(rng);
            x.xmm[i] = [a, b];
            x.ymm_high[i] = [c, d];
        }
        let wide = &mut state.wide;
        for register in &mut wide.upper {
            *register = values::vector::<4>(rng);
        }
        for register in &mut wide.high {
            *register = values::vector::<8>(rng);
        }
        for k in &mut wide.k {
            *k = values::opmask(rng);
        }
        let x = &mut state.x;
        x.mxcsr = values::mxcsr(rng);
        (x.fcw, x.fsw) = values::x87_words(rng);
        x.fop = rng.next() as u16 & 0x7ff;
        x.fip = rng.next() >> 17;
        x.fdp = rng.next() >> 17;
        x.ftw = if rng.chance(60) { 0xff } else { rng.next() as u8 };
        for st in &mut x.st {
            *st = values::extended(rng);
        }
        state
    }

    /// Sets the registers of the memory operand so that its address is the planned one.
    fn solve(&self, i: &mut Instruction, plan: &Plan, state: &mut State, rng: &mut Random) -> Option<()> {
        let Some(target) = plan.target else { return Some(()) };
        let segment = match i.segment_prefix() {
            Register::FS => state.fs_base,
            Register::GS => state.gs_base,
            _ => 0,
        };
        let offset = target.wrapping_sub(segment);
        let (base, index) = (i.memory_base(), i.memory_index());
        let scale = u64::from(i.memory_index_scale());
        let displacement = i.memory_displacement64();
        if i.is_ip_rel_memory_operand() {
            i.set_memory_displacement64(offset);
            return Some(());
        }
        if plan.vector_index != 0 {
            return self.solve_vector(i, plan, state, offset, rng);
        }
        let narrow = base.size() == 4 || index.size() == 4;
        // A narrow register's upper half takes no part in the address.
        let set = |slot: &mut u64, value: u64| {
            *slot = if narrow { *slot & !0xffff_ffff | value & 0xffff_ffff } else { value };
        };
        match (base, index) {
            (Register::None, Register::None) => i.set_memory_displacement64(offset),
            (Register::None, _) => {
                let value = rng.below(0x100);
                set(&mut state.gpr[index.number()], value);
                let rest = offset.wrapping_sub(value * scale);
                i.set_memory_displacement64(if narrow || self.bits == 32 { rest & 0xffff_ffff } else { rest });
            }
            (_, Register::None) => set(&mut state.gpr[base.number()], offset.wrapping_sub(displacement)),
            _ if base == index => {
                let factor = 1 + scale;
                let value = offset / factor;
                set(&mut state.gpr[base.number()], value);
                i.set_memory_displacement64(offset - value * factor);
                i.set_memory_displ_size(1);
            }
            _ => {
                let value = if rng.chance(50) { rng.below(128).wrapping_sub(64) } else { values::integer(rng) };
                set(&mut state.gpr[index.number()], value);
                let value = if narrow || self.bits == 32 { value & 0xffff_ffff } else { value };
                let rest = offset.wrapping_sub(displacement).wrapping_sub(value.wrapping_mul(scale));
                set(&mut state.gpr[base.number()], rest);
            }
        }
        Some(())
    }

    /// Sets the registers of a gather: the base is somewhere in the arena, and each index leads to a place near it.
    fn solve_vector(
        &self,
        i: &Instruction,
        plan: &Plan,
        state: &mut State,
        offset: u64,
        rng: &mut Random,
    ) -> Option<()> {
        let base = &mut state.gpr[i.memory_base().number()];
        let value = offset.wrapping_sub(i.memory_displacement64());
        *base = if i.memory_base().size() == 4 { *base & !0xffff_ffff | value & 0xffff_ffff } else { value };
        let number = i.memory_index().number();
        let scale = i64::from(i.memory_index_scale());
        let mut word = || {
            let mut lane = || (rng.below(0x1000) as i64 - 0x800) / scale;
            if plan.vector_index == 8 { lane() as u64 } else { lane() as u32 as u64 | (lane() as u64) << 32 }
        };
        if number >= 16 {
            state.wide.high[number - 16].fill_with(word);
            return Some(());
        }
        state.x.xmm[number].fill_with(&mut word);
        state.x.ymm_high[number].fill_with(&mut word);
        state.wide.upper[number].fill_with(word);
        Some(())
    }

    /// Encodes the instruction, with some of the freedom that encodings have, and sometimes with prefixes that have no
    /// effect or that make it another instruction.
    fn encode(&mut self, i: &Instruction, rng: &mut Random) -> Option<Vec<u8>> {
        let choices = rng.next();
        self.encoder.set_prevent_vex2(choices & 3 == 0);
        self.encoder.set_vex_wig((choices >> 2 & 1) as u32);
        self.encoder.set_vex_lig((choices >> 3 & 1) as u32);
        self.encoder.set_evex_wig((choices >> 4 & 1) as u32);
        self.encoder.set_evex_lig((choices >> 5) as u32 % 3);
        self.buffer.clear();
        if choices >> 8 & 0x1f == 0 {
            self.buffer.push(rng.of(&[0x2e, 0x3e, 0x26, 0x36, 0x66, 0xf2, 0xf3, 0x66, 0xf2, 0xf3]));
        }
        let prefixes = self.buffer.len();
        self.encoder.set_buffer(std::mem::take(&mut self.buffer));
        let encoded = self.encoder.encode(i, CODE_START + prefixes as u64);
        let bytes = self.encoder.take_buffer();
        let result = (encoded.is_ok() && bytes.len() <= 15).then(|| bytes.clone());
        self.buffer = bytes;
        result
    }

    fn decode(&self, bytes: &[u8]) -> Option<Instruction> {
        let decoded = Decoder::with_ip(self.bits, bytes, CODE_START, self.options).decode();
        (!decoded.is_invalid()).then_some(decoded)
    }

    /// Prepares particular instructions so that they are interesting or harmless.
    fn special(&self, i: &Instruction, plan: &Plan, state: &mut State, pokes: &mut Vec<Poke>, rng: &mut Random) {
        let mut poke = |address: u64, bytes: &[u8]| {
            let writable =
                (0..bytes.len()).take_while(|&n| rights(address.wrapping_add(n as u64)) == Rights::Write).count();
            if writable != 0 {
                pokes.push(Poke { address, bytes: bytes[..writable].to_vec() });
            }
        };
        let words = |words: &[u64]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
        if let Some(target) = plan.target {
            poke(target, &words(&values::vector::<8>(rng)));
        }
        let size = i.memory_size().size() as u64;
        match i.mnemonic() {
            m if i.is_string_instruction() => {
                let narrow =
                    (0..i.op_count()).any(|n| matches!(i.op_kind(n), OpKind::MemoryESEDI | OpKind::MemorySegESI));
                let segment = match i.segment_prefix() {
                    Register::FS => state.fs_base,
                    Register::GS => state.gs_base,
                    _ => 0,
                };
                let source = operands::target(rng, size).wrapping_sub(segment);
                let destination = operands::target(rng, size);
                let count = match rng.below(10) {
                    0 => 0,
                    1 => rng.below(0x2000),
                    _ => rng.below(24),
                };
                let noise = if narrow { rng.next() & !0xffff_ffff } else { 0 };
                state.gpr[RSI] = source & if narrow { 0xffff_ffff } else { !0 } | noise;
                state.gpr[RDI] = destination | noise;
                state.gpr[RCX] = count | noise;
                // Memory holds runs of equal bytes, so that comparisons do not stop at once.
                if matches!(m, Mnemonic::Cmpsb | Mnemonic::Cmpsw | Mnemonic::Cmpsd | Mnemonic::Cmpsq) {
                    let bytes = [rng.next() as u8; 64];
                    poke(source.wrapping_add(segment), &bytes);
                    poke(destination, &bytes[..rng.below(65) as usize]);
                } else if matches!(m, Mnemonic::Scasb | Mnemonic::Scasw | Mnemonic::Scasd | Mnemonic::Scasq)
                    && rng.chance(50)
                {
                    poke(destination, &words(&[state.gpr[RAX]; 8]));
                }
            }
            Mnemonic::Xlatb => {
                let address = operands::target(rng, 1).wrapping_sub(state.gpr[RAX] & 0xff);
                state.gpr[RBX] = address.wrapping_sub(match i.segment_prefix() {
                    Register::FS => state.fs_base,
                    Register::GS => state.gs_base,
                    _ => 0,
                });
            }
            Mnemonic::Maskmovq | Mnemonic::Maskmovdqu | Mnemonic::Vmaskmovdqu => {
                // The processor decides if bytes that the mask leaves out may fault, so all of them are writable.
                state.gpr[RDI] = ARENA + 0x1000 + rng.below(0x2000 - 16);
            }
            // Registers and memory show how far these get before a fault.
            Mnemonic::Popa | Mnemonic::Popad | Mnemonic::Pusha | Mnemonic::Pushad => {
                state.gpr[RSP] = STACK.wrapping_add(rng.below(0x800)).wrapping_sub(0x400);
            }
            Mnemonic::Enter | Mnemonic::Leave => {
                state.gpr[RBP] = STACK.wrapping_add(rng.below(0x100) * 8).wrapping_sub(0x400);
            }
            // Most quotients fit.
            Mnemonic::Div | Mnemonic::Idiv if rng.chance(80) => {
                state.gpr[RDX] = match rng.below(3) {
                    0 => 0,
                    1 if i.mnemonic() == Mnemonic::Idiv => (state.gpr[RAX] as i64 >> 63) as u64,
                    _ => rng.below(64),
                };
                if size == 1 || i.op0_register().is_gpr8() {
                    state.gpr[RAX] = values::integer(rng) & 0x3ff;
                }
            }
            // Half of the comparisons succeed.
            Mnemonic::Cmpxchg if plan.target.is_some() && rng.chance(50) => {
                poke(plan.target.unwrap_or(0), &words(&[state.gpr[RAX]]));
            }
            Mnemonic::Cmpxchg8b if rng.chance(50) => {
                let value = state.gpr[RAX] & 0xffff_ffff | state.gpr[RDX] << 32;
                poke(plan.target.unwrap_or(0), &words(&[value]));
            }
            Mnemonic::Cmpxchg16b if rng.chance(50) => {
                poke(plan.target.unwrap_or(0), &words(&[state.gpr[RAX], state.gpr[RDX]]));
            }
            // TF would trap in the host's stub, AC would fault there, and the program may not set the rest.
            Mnemonic::Popf | Mnemonic::Popfd | Mnemonic::Popfq => {
                let allowed = 0x8d5 | 1 << 10 | 1 << 14 | 1 << 21 | 1 << 9 | 3 << 12 | 1 << 16 | 1 << 19 | 1 << 20;
                poke(state.gpr[RSP], &words(&[rng.next() & allowed]));
            }
            Mnemonic::Ret => {
                poke(state.gpr[RSP], &operands::indirect_target(rng, self.bits).to_le_bytes()[..self.bits as usize / 8])
            }
            Mnemonic::Jmp | Mnemonic::Call => {
                let mut to = operands::indirect_target(rng, self.bits);
                if i.mnemonic() == Mnemonic::Call && to >> 62 != 0 {
                    // Processors differ in the order of writing the return address and finding the target bad.
                    to = CODE + 0x100;
                }
                match i.op0_kind() {
                    OpKind::Memory => poke(plan.target.unwrap_or(0), &to.to_le_bytes()),
                    OpKind::Register => state.gpr[i.op0_register().number()] = to,
                    _ => {}
                }
            }
            Mnemonic::Loop
            | Mnemonic::Loope
            | Mnemonic::Loopne
            | Mnemonic::Jcxz
            | Mnemonic::Jecxz
            | Mnemonic::Jrcxz
                if rng.chance(60) =>
            {
                state.gpr[RCX] = rng.of(&[0, 1, 2, 0x1_0000, 0x1_0001, 0x1_0000_0000, 0x1_0000_0001]);
            }
            Mnemonic::Ldmxcsr | Mnemonic::Vldmxcsr if rng.chance(90) => {
                poke(plan.target.unwrap_or(0), &values::mxcsr(rng).to_le_bytes());
            }
            Mnemonic::Xsave
            | Mnemonic::Xsave64
            | Mnemonic::Xsavec
            | Mnemonic::Xsavec64
            | Mnemonic::Xrstor
            | Mnemonic::Xrstor64 => {
                // The host may have more state components than the processor under test.
                let (low, high) = (state.gpr[RAX] & 7, 0);
                for (register, value) in [(RAX, low), (RDX, high)] {
                    if ![i.memory_base(), i.memory_index()].iter().any(|r| r.is_gpr() && r.number() == register) {
                        state.gpr[register] = value;
                    }
                }
                let target = plan.target.unwrap_or(0);
                let junk = if rng.chance(5) { rng.next() } else { 0 };
                // Processors of any linear-address width keep these pointers.
                poke(target.wrapping_add(8), &words(&[rng.next() >> 17, rng.next() >> 17]));
                poke(target.wrapping_add(24), &values::mxcsr(rng).to_le_bytes());
                poke(target.wrapping_add(512), &words(&[rng.next() & 7, junk, 0, 0, 0, 0, 0, 0]));
            }
            Mnemonic::Fxrstor | Mnemonic::Fxrstor64 => {
                poke(plan.target.unwrap_or(0).wrapping_add(8), &words(&[rng.next() >> 17, rng.next() >> 17]));
                poke(plan.target.unwrap_or(0).wrapping_add(24), &values::mxcsr(rng).to_le_bytes());
            }
            // Bit offsets reach far from the operand, so they are kept small.
            Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc
                if i.op0_kind() == OpKind::Memory && i.op1_kind() == OpKind::Register =>
            {
                let number = i.op1_register().number();
                if i.memory_base().number() != number && i.memory_index().number() != number {
                    state.gpr[number] = rng.below(0x8000).wrapping_sub(0x4000);
                }
            }
            _ => {}
        }
    }

    /// Returns true if everything that the instruction accesses is in or near the arena, where it cannot do harm.
    fn safe(&mut self, i: &Instruction, state: &State) -> bool {
        let low = ARENA - MARGIN..ARENA + MARGIN;
        let bits = self.bits;
        let fine = |address: u64| {
            let canonical = (address as i64) << 7 >> 7 == address as i64;
            low.contains(&address) || (bits == 64 && !canonical && address >> 62 != 0 && address >> 62 != 3)
        };
        let info = self.factory.info(i);
        for memory in info.used_memory() {
            if memory.access() == OpAccess::NoMemAccess {
                continue;
            }
            let lanes = if memory.vsib_size() == 0 { 1 } else { 16 };
            for lane in 0..lanes {
                let address =
                    memory.virtual_address(lane, |register, element, size| value(state, register, element, size));
                if address.is_some_and(|a| !fine(a)) || (address.is_none() && lane == 0) {
                    return false;
                }
            }
        }
        // A target that could not be chosen may lead anywhere.
        if matches!(i.mnemonic(), Mnemonic::Jmp | Mnemonic::Call) && i.op0_kind() == OpKind::Memory {
            let address = i.virtual_address(0, 0, |r, e, s| value(state, r, e, s)).unwrap_or(0);
            if (0..8).any(|n| rights(address.wrapping_add(n)) == Rights::Read) {
                return false;
            }
        }
        let bit_test = matches!(i.mnemonic(), Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc);
        if bit_test && i.op0_kind() == OpKind::Memory && i.op1_kind() == OpKind::Register {
            let size = i.op1_register().size();
            let value = state.gpr[i.op1_register().number()];
            let bit = (value << (64 - 8 * size)) as i64 >> (64 - 8 * size);
            let address = i.virtual_address(0, 0, |r, e, s| self::value(state, r, e, s)).unwrap_or(0);
            return fine(address.wrapping_add((bit >> 3) as u64));
        }
        // Pointers cannot be poked into read-only memory.
        if matches!(i.mnemonic(), Mnemonic::Fxrstor | Mnemonic::Fxrstor64) {
            let address = i.virtual_address(0, 0, |r, e, s| value(state, r, e, s)).unwrap_or(0);
            return (8..24).all(|n| rights(address.wrapping_add(n)) != Rights::Read);
        }
        // Both processors have only these state components.
        use Mnemonic::{Xrstor, Xrstor64, Xsave, Xsave64, Xsavec, Xsavec64};
        if matches!(i.mnemonic(), Xsave | Xsave64 | Xsavec | Xsavec64 | Xrstor | Xrstor64) {
            // If parts of an area cannot be accessed, the processor chooses which parts it touches, and in which order.
            let address = i.virtual_address(0, 0, |r, e, s| value(state, r, e, s)).unwrap_or(0);
            let touchable = |n: u64| rights(address.wrapping_add(n)) == Rights::Write;
            let whole = !low.contains(&address) || (touchable(0) && touchable(1088));
            return whole && state.gpr[RAX] & 0xffff_fff8 == 0 && state.gpr[RDX] as u32 == 0;
        }
        true
    }
}

/// Returns a register's value as the address computations of the decoder library request it.
fn value(state: &State, register: Register, element: usize, size: usize) -> Option<u64> {
    if register.is_vector_register() {
        let n = register.number();
        let mut words = [0; 8];
        if n < 16 {
            words[..2].copy_from_slice(&state.x.xmm[n]);
            words[2..4].copy_from_slice(&state.x.ymm_high[n]);
            words[4..].copy_from_slice(&state.wide.upper[n]);
        } else {
            words = state.wide.high[n - 16];
        }
        if element * size >= register.size() {
            return None;
        }
        let word = words[element * size / 8];
        return Some(if size == 4 {
            u64::from((word >> (32 * (element & 1))) as u32) as i32 as i64 as u64
        } else {
            word
        });
    }
    if register.is_segment_register() {
        return Some(match register {
            Register::FS => state.fs_base,
            Register::GS => state.gs_base,
            _ => 0,
        });
    }
    if register.is_gpr() {
        let value = state.gpr[register.full_register().number()];
        return Some(match register.size() {
            1 => value & 0xff,
            2 => value & 0xffff,
            4 => value & 0xffff_ffff,
            _ => value,
        });
    }
    Some(0)
}
