//! Moves between registers and memory, without a stub.

use crate::exec::vector::execute::{aligned, ready};
use crate::exec::vector::{bind, evex};
use crate::fault::{Exec, Flow};
use crate::flags::Int;
use crate::op::{Handler, Op};
use crate::state::Cpu;
use iced_x86::{Instruction, Mnemonic::*, OpKind};

/// Selects a handler by VEX encoding, with the generic arguments that follow.
macro_rules! by_encoding {
    ($vex:expr; $handler:ident $(, $arg:tt)*) => {
        if $vex { Some($handler::<true $(, $arg)*> as Handler) } else { Some($handler::<false $(, $arg)*> as Handler) }
    };
}

/// Binds a move.
pub fn bind(i: &Instruction, op: &mut Op) -> Option<Handler> {
    use iced_x86::EncodingKind::{EVEX, Legacy, VEX};
    let encoding = i.code().encoding();
    if encoding == EVEX {
        return evex::integer(i, op);
    }
    if encoding != Legacy && encoding != VEX {
        return None;
    }
    let vex = encoding == VEX;
    let registers: Vec<_> = (0..i.op_count()).filter(|&n| i.op_kind(n) == OpKind::Register).collect();
    if registers.iter().any(|&n| i.op_register(n).is_mm()) {
        return bind::integer(i, op);
    }
    let ymm = registers.iter().any(|&n| i.op_register(n).is_ymm());
    let len = i.memory_size().size();
    let (to_memory, from_memory) = (i.op0_kind() == OpKind::Memory, i.op1_kind() == OpKind::Memory);
    let general = |n: u32| i.op_register(n).is_gpr();
    match i.mnemonic() {
        Movd | Movq | Vmovd | Vmovq => match (to_memory, from_memory, len) {
            (true, _, 4) => by_encoding!(vex; store_low, u32),
            (true, _, 8) => by_encoding!(vex; store_low, u64),
            (_, true, 4) => by_encoding!(vex; load_low, u32),
            (_, true, 8) => by_encoding!(vex; load_low, u64),
            _ if general(0) && i.op0_register().is_gpr32() => by_encoding!(vex; to_general, u32),
            _ if general(0) => by_encoding!(vex; to_general, u64),
            _ if general(1) && i.op1_register().is_gpr32() => by_encoding!(vex; from_general, u32),
            _ if general(1) => by_encoding!(vex; from_general, u64),
            _ => by_encoding!(vex; low_quad),
        },
        Movss | Movsd | Vmovss | Vmovsd => match (to_memory, from_memory, len) {
            (true, _, 4) => by_encoding!(vex; store_low, u32),
            (true, _, 8) => by_encoding!(vex; store_low, u64),
            (_, true, 4) => by_encoding!(vex; load_low, u32),
            (_, true, 8) => by_encoding!(vex; load_low, u64),
            _ => bind::integer(i, op),
        },
        mnemonic => {
            let unaligned = matches!(mnemonic, Movups | Movupd | Movdqu | Lddqu | Vmovups | Vmovupd | Vmovdqu | Vlddqu);
            match (to_memory, from_memory, ymm, unaligned) {
                (true, _, false, true) => by_encoding!(vex; store, 16, 0),
                (true, _, false, false) => by_encoding!(vex; store, 16, 15),
                (true, _, true, true) => by_encoding!(vex; store, 32, 0),
                (true, _, true, false) => by_encoding!(vex; store, 32, 31),
                (_, true, false, true) => by_encoding!(vex; load, 16, 0),
                (_, true, false, false) => by_encoding!(vex; load, 16, 15),
                (_, true, true, true) => by_encoding!(vex; load, 32, 0),
                (_, true, true, false) => by_encoding!(vex; load, 32, 31),
                (_, _, true, _) => by_encoding!(vex; copy, 4),
                _ => by_encoding!(vex; copy, 2),
            }
        }
    }
}

/// Returns a vector register as 64-bit words.
#[inline(always)]
fn slot(cpu: &mut Cpu, register: u8) -> &mut [u64; 4] {
    &mut cpu.arch.vector.ymm[usize::from(register & 15)]
}

/// Writes the low words of a register; VEX-encoded instructions clear the others.
#[inline(always)]
fn put<const VEX: bool, const WORDS: usize>(cpu: &mut Cpu, register: u8, value: [u64; WORDS]) {
    let to = slot(cpu, register);
    to[..WORDS].copy_from_slice(&value);
    if VEX {
        to[WORDS..].fill(0);
        cpu.arch.vector.clear_upper(register);
    }
}

fn copy<const VEX: bool, const WORDS: usize>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    ready::<VEX>(cpu)?;
    let mut value = [0; WORDS];
    value.copy_from_slice(&slot(cpu, op.r1)[..WORDS]);
    put::<VEX, WORDS>(cpu, op.r0, value);
    Ok(Flow::Next)
}

fn load<const VEX: bool, const LEN: usize, const ALIGN: u8>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    ready::<VEX>(cpu)?;
    let linear = aligned(cpu, op, LEN as u64, ALIGN, false)?;
    let mut bytes = [0u8; LEN];
    cpu.read_bytes(linear, op.seg, &mut bytes)?;
    let to = slot(cpu, op.r0);
    for (word, chunk) in to.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*chunk);
    }
    if VEX {
        to[LEN / 8..].fill(0);
        cpu.arch.vector.clear_upper(op.r0);
    }
    Ok(Flow::Next)
}

fn store<const VEX: bool, const LEN: usize, const ALIGN: u8>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    ready::<VEX>(cpu)?;
    let linear = aligned(cpu, op, LEN as u64, ALIGN, true)?;
    let mut bytes = [0u8; LEN];
    for (word, chunk) in slot(cpu, op.r1).iter().zip(bytes.as_chunks_mut::<8>().0) {
        *chunk = word.to_le_bytes();
    }
    cpu.write_bytes(linear, op.seg, &bytes)?;
    Ok(Flow::Next)
}

fn load_low<const VEX: bool, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    ready::<VEX>(cpu)?;
    let value = cpu.load::<T>(op)?.to_u64();
    put::<VEX, 2>(cpu, op.r0, [value, 0]);
    Ok(Flow::Next)
}

fn store_low<const VEX: bool, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    ready::<VEX>(cpu)?;
    let value = T::from_u64(slot(cpu, op.r1)[0]);
    cpu.store(op, value)?;
    Ok(Flow::Next)
}

fn to_general<const VEX: bool, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    ready::<VEX>(cpu)?;
    let value = T::from_u64(slot(cpu, op.r1)[0]);
    cpu.set(op.r0, value);
    Ok(Flow::Next)
}

fn from_general<const VEX: bool, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    ready::<VEX>(cpu)?;
    let value = cpu.get::<T>(op.r1).to_u64();
    put::<VEX, 2>(cpu, op.r0, [value, 0]);
    Ok(Flow::Next)
}

/// MOVQ between vector registers.
fn low_quad<const VEX: bool>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    ready::<VEX>(cpu)?;
    let value = slot(cpu, op.r1)[0];
    put::<VEX, 2>(cpu, op.r0, [value, 0]);
    Ok(Flow::Next)
}
