//! Execution of forms: common parts of vector instructions.

use crate::arch::{F80, NOT_LOADED};
use crate::exec::vector::exact;
use crate::exec::vector::form::{Dot, Form, Tiny};
use crate::fault::{Exec, Fault, Flow};
use crate::native::{Extra, HOST_MXCSR, OperandKind, load_mxcsr};
use crate::op::Op;
use crate::state::Cpu;
use x86::control::*;
use x86::{flags, vector};

/// MXCSR: the six exception flags.
pub const FLAGS: u32 = 0x3f;
/// MXCSR: the six masks.
pub const MASKS: u32 = 0x1f80;
/// MXCSR: flush to zero.
const FTZ: u32 = 1 << 15;
/// MXCSR: underflow mask.
const UM: u32 = 1 << 11;
/// Flags of exceptions that precede the computation: invalid, denormal, divide by zero.
const BEFORE: u32 = 7;
/// MXCSR: denormals are zeros.
const DAZ: u32 = 1 << 6;
const OE: u32 = 1 << 3;
const UE: u32 = 1 << 4;
const PE: u32 = 1 << 5;

/// XCR0: SSE and AVX state.
pub(crate) const AVX_STATE: u64 = XCR0_SSE | XCR0_AVX;
/// x87 status: an unmasked exception is pending.
const ES: u16 = 1 << 7;
/// x87 status: top of stack.
const TOP: u16 = 7 << 11;

/// Buffer for memory operands.
#[repr(C, align(64))]
pub struct Stage(pub [u8; 64]);

/// Raises an exception unless the operating system has enabled SSE (or, with `VEX`, AVX) instructions.
#[inline(always)]
pub fn ready<const VEX: bool>(cpu: &mut Cpu) -> Exec {
    let ok = if VEX {
        cpu.arch.cr0 & (CR0_TS | CR0_PE) == CR0_PE
            && cpu.arch.cr4 & CR4_OSXSAVE != 0
            && cpu.arch.xcr0 & AVX_STATE == AVX_STATE
            && cpu.arch.flags & flags::VM == 0
    } else {
        cpu.arch.cr0 & (CR0_EM | CR0_TS) == 0 && cpu.arch.cr4 & CR4_OSFXSR != 0
    };
    if ok { Ok(()) } else { Err(not_ready(cpu, VEX)) }
}

#[cold]
fn not_ready(cpu: &mut Cpu, vex: bool) -> Fault {
    let exists = if vex {
        cpu.protected() && !cpu.v8086() && cpu.arch.cr4 & CR4_OSXSAVE != 0 && cpu.arch.xcr0 & AVX_STATE == AVX_STATE
    } else {
        cpu.arch.cr0 & CR0_EM == 0 && cpu.arch.cr4 & CR4_OSFXSR != 0
    };
    if exists { cpu.nm() } else { cpu.ud() }
}

/// Raises an exception unless MMX instructions may be executed.
pub fn mmx_ready(cpu: &mut Cpu) -> Exec {
    if cpu.arch.cr0 & CR0_EM != 0 {
        return Err(cpu.ud());
    }
    if cpu.arch.cr0 & CR0_TS != 0 {
        return Err(cpu.nm());
    }
    if cpu.arch.x87.status & ES != 0 && cpu.arch.cr0 & CR0_NE != 0 {
        return Err(cpu.raise(vector::MF));
    }
    Ok(())
}

/// Updates the x87 state for an MMX instruction: top of stack 0, no register empty.
pub fn enter_mmx(cpu: &mut Cpu) {
    clear_top(cpu);
    cpu.arch.x87.tags = 0xff;
}

/// Executes the part of [`enter_mmx`] that precedes a store's fault on current processors.
pub fn clear_top(cpu: &mut Cpu) {
    cpu.arch.x87.status &= !TOP;
}

/// Returns the linear address of a memory operand. Raises #GP(0) if it is misaligned.
#[inline(always)]
pub fn aligned(cpu: &mut Cpu, op: &Op, len: u64, mask: u8, write: bool) -> Exec<u64> {
    let linear = cpu.operand_linear(op, len, write)?;
    if linear & u64::from(mask) != 0 {
        return Err(cpu.gp(0));
    }
    Ok(linear)
}

/// Returns the host address of the `len` bytes of a memory source: guest memory itself, or the stage with a copy.
#[inline(always)]
fn source(cpu: &mut Cpu, op: &Op, form: &Form, stage: &mut Stage) -> Exec<*mut u8> {
    let len = usize::from(form.memory_len);
    let linear = aligned(cpu, op, len as u64, form.align, false)?;
    if let Some(host) = cpu.front_read(linear, len as u64) {
        return Ok(host.cast_mut());
    }
    cpu.read_bytes(linear, op.seg, &mut stage.0[..len.min(64)])?;
    Ok(stage.0.as_mut_ptr())
}

/// Calls the stub with these operands and result.
///
/// # Safety
/// Each pointer must be valid for an operand of its kind: aligned registers of 32 bytes for vectors, `memory_len` bytes
/// for memory; `out` may be operand 0.
#[inline(always)]
unsafe fn call<const FP: bool>(cpu: &mut Cpu, form: &Form, ops: [*mut u8; 4], out: *mut u8, len: usize) -> Exec<u64> {
    if FP {
        let guest = cpu.arch.vector.mxcsr;
        if guest & !FLAGS == HOST_MXCSR
            && let Some(stub) = form.loaded
        {
            // In the common modes the host keeps the guest's MXCSR, including the flags, from one instruction to the
            // next.
            if cpu.arch.vector.loaded != guest {
                load_mxcsr(guest);
            }
            let mxcsr = &raw mut cpu.arch.vector.mxcsr;
            // SAFETY: guaranteed by the caller; all exceptions are masked.
            let returned = unsafe { stub(ops[0], ops[1], ops[2], ops[3], mxcsr.cast(), out) };
            cpu.arch.vector.loaded = cpu.arch.vector.mxcsr;
            return Ok(returned);
        }
        cpu.arch.vector.loaded = NOT_LOADED;
        let mxcsr = &raw mut cpu.arch.vector.mxcsr;
        if cpu.arch.vector.mxcsr & MASKS != MASKS {
            // SAFETY: guaranteed by the caller.
            return unsafe { unmasked(cpu, form, ops, out, len) };
        }
        // SAFETY: guaranteed by the caller; with all exceptions masked the stub cannot fault.
        return Ok(unsafe { (form.stub)(ops[0], ops[1], ops[2], ops[3], mxcsr.cast(), out) });
    }
    let general = cpu.arch.gpr.as_mut_ptr();
    // SAFETY: guaranteed by the caller.
    Ok(unsafe { (form.stub)(ops[0], ops[1], ops[2], ops[3], general.cast(), out) })
}

/// Executes a floating-point stub while the guest has unmasked exceptions: the result, `len` bytes, is only stored if
/// none of these occurred.
///
/// # Safety
/// As for [`call`].
#[cold]
unsafe fn unmasked(cpu: &mut Cpu, form: &Form, ops: [*mut u8; 4], out: *mut u8, len: usize) -> Exec<u64> {
    if let Some(dot) = &form.dot {
        let factors = [ops[usize::from(dot.last) - 1], ops[usize::from(dot.last)]].map(|factor| {
            // SAFETY: both factors have the operands' width.
            unsafe { std::slice::from_raw_parts(factor.cast_const(), usize::from(dot.width)) }
        });
        dot_product(cpu, dot, factors)?;
    }
    let mut result = Stage([0; 64]);
    let in_memory = form.memory == 0;
    let to = if in_memory { out } else { result.0.as_mut_ptr() };
    // SAFETY: guaranteed by the caller; the result has room for any operand.
    let (returned, raised) = unsafe { attempt(cpu.arch.vector.mxcsr, form, ops, to) };
    signal(cpu, raised)?;
    if !in_memory {
        // SAFETY: `out` has room for operand 0.
        unsafe { std::ptr::copy_nonoverlapping(result.0.as_ptr(), out, len) };
    }
    Ok(returned)
}

/// Executes a stub with all exceptions masked. Returns its return value, and the exceptions that occur with the guest's
/// masks.
///
/// # Safety
/// As for [`call`]; `to` receives the result.
unsafe fn attempt(guest: u32, form: &Form, ops: [*mut u8; 4], to: *mut u8) -> (u64, u32) {
    // With underflow unmasked, results are not flushed.
    let flush = if guest & UM == 0 { FTZ } else { 0 };
    let mut mxcsr = ((guest & !FLAGS) | MASKS) & !flush;
    // SAFETY: guaranteed by the caller.
    let returned = unsafe { (form.stub)(ops[0], ops[1], ops[2], ops[3], (&raw mut mxcsr).cast(), to) };
    let mut raised = mxcsr & FLAGS;
    if guest & UM == 0
        && let Tiny::Elements(size, width) = form.tiny
    {
        // SAFETY: the result is at least as wide as its elements.
        let bytes = unsafe { std::slice::from_raw_parts(to, usize::from(width)) };
        if bytes.chunks_exact(usize::from(size)).any(is_denormal) {
            raised |= UE;
        }
    }
    // Masked overflow and underflow imply the precision exception as reported; unmasked ones are evaluated with an
    // unbounded exponent.
    let bounds = raised & (OE | UE);
    if raised & PE != 0
        && bounds != 0
        && bounds & (guest >> 7) == 0
        && let Some(rounding) = &form.rounding
    {
        let sources = rounding.sources().map(|n| {
            // SAFETY: each source operand has at least the bytes that the instruction uses.
            unsafe { std::slice::from_raw_parts(ops[n].cast_const(), usize::from(rounding.width)) }
        });
        let (size, precision) = (usize::from(rounding.size), i32::from(rounding.precision));
        let operands = exact::Operands { sources, size, precision, daz: guest & DAZ != 0 };
        if !exact::inexact(rounding.operation, &operands) {
            raised &= !PE;
        }
    }
    (returned, raised)
}

/// Sets exception flags, and raises #XM if one of them is unmasked.
pub(super) fn signal(cpu: &mut Cpu, raised: u32) -> Exec {
    let enabled = !(cpu.arch.vector.mxcsr >> 7) & FLAGS;
    // Exceptions before the computation suppress those after it.
    let shown = if raised & enabled & BEFORE != 0 { raised & BEFORE } else { raised };
    cpu.arch.vector.mxcsr |= shown;
    if raised & enabled == 0 {
        return Ok(());
    }
    let vector = if cpu.arch.cr4 & CR4_OSXMMEXCPT != 0 { vector::XM } else { vector::UD };
    Err(cpu.raise(vector))
}

/// Raises the exceptions of a dot product's steps in their order.
fn dot_product(cpu: &mut Cpu, dot: &Dot, factors: [&[u8]; 2]) -> Exec {
    let size = usize::from(dot.size);
    let mut stages = [Stage([0; 64]), Stage([0; 64])];
    for (stage, factor) in stages.iter_mut().zip(factors) {
        for (n, element) in factor.chunks_exact(size).enumerate() {
            if dot.selected >> (n % (16 / size)) & 1 != 0 {
                stage.0[n * size..][..size].copy_from_slice(element);
            }
        }
    }
    let [mut a, mut b] = stages;
    for step in 0..=dot.additions {
        let form = if step == 0 { dot.multiply } else { dot.add };
        let mut result = Stage([0; 64]);
        let ops = [a.0.as_mut_ptr(), a.0.as_mut_ptr(), b.0.as_mut_ptr(), b.0.as_mut_ptr()];
        // SAFETY: these forms have three 256-bit register operands, for which stages are large enough.
        let (_, raised) = unsafe { attempt(cpu.arch.vector.mxcsr, form, ops, result.0.as_mut_ptr()) };
        signal(cpu, raised)?;
        a = Stage(result.0);
        b = result;
    }
    Ok(())
}

fn is_denormal(element: &[u8]) -> bool {
    let mut bytes = [0; 8];
    bytes[..element.len()].copy_from_slice(element);
    let value = u64::from_le_bytes(bytes);
    let (exponent, fraction) = match element.len() {
        2 => (0x7c00, 0x3ff),
        4 => (0x7f80_0000, 0x7f_ffff),
        _ => (0x7ff << 52, (1 << 52) - 1),
    };
    value & exponent == 0 && value & fraction != 0
}

/// Returns the number of bytes that a result occupies in a vector register: VEX-encoded instructions write all of it.
#[inline(always)]
const fn width(vex: bool) -> usize {
    if vex { 32 } else { 16 }
}

/// Executes a form whose operands are all vector registers.
pub fn registers<const VEX: bool, const FP: bool>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    ready::<VEX>(cpu)?;
    let form = Form::of(op);
    let at = |cpu: &mut Cpu, r: u8| (&raw mut cpu.arch.vector.ymm[usize::from(r & 15)]).cast::<u8>();
    let ops = [at(cpu, op.r0), at(cpu, op.r1), at(cpu, op.r2), at(cpu, op.r3)];
    // SAFETY: all operands of this form are vector registers, to which the pointers refer.
    unsafe { call::<FP>(cpu, form, ops, ops[0], width(VEX))? };
    if VEX {
        cpu.arch.vector.clear_upper(op.r0);
    }
    Ok(Flow::Next)
}

/// Executes a form in which operand `N` is a memory source, and the others are vector registers.
pub fn loading<const VEX: bool, const FP: bool, const N: usize>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    ready::<VEX>(cpu)?;
    let form = Form::of(op);
    let mut stage = std::mem::MaybeUninit::<Stage>::uninit();
    // SAFETY: a stage consists of bytes; `source` has written those that are read.
    let memory = source(cpu, op, form, unsafe { &mut *stage.as_mut_ptr() })?;
    let at = |cpu: &mut Cpu, r: u8| (&raw mut cpu.arch.vector.ymm[usize::from(r & 15)]).cast::<u8>();
    let mut ops = [at(cpu, op.r0), at(cpu, op.r1), at(cpu, op.r2), at(cpu, op.r3)];
    ops[N] = memory;
    // SAFETY: operand N is `memory_len` readable bytes, the other pointers refer to vector registers.
    unsafe { call::<FP>(cpu, form, ops, ops[0], width(VEX))? };
    if VEX {
        cpu.arch.vector.clear_upper(op.r0);
    }
    Ok(Flow::Next)
}

/// Executes a form with any operands.
pub fn general<const VEX: bool, const FP: bool>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let form = Form::of(op);
    if form.sse || !form.mmx {
        ready::<VEX>(cpu)?;
    }
    if form.mmx {
        mmx_ready(cpu)?;
    }
    let mut stage = Stage([0; 64]);
    let stores = form.memory == 0 && form.writes;
    let memory = if stores || form.memory == 4 { stage.0.as_mut_ptr() } else { source(cpu, op, form, &mut stage)? };
    let mut destination = 0;
    if stores && !FP {
        destination = aligned(cpu, op, u64::from(form.memory_len), form.align, true)?;
    }
    let mut ops = [memory; 4];
    for (i, register) in [op.r0, op.r1, op.r2, op.r3].into_iter().enumerate() {
        ops[i] = match form.kinds[i] {
            OperandKind::Xmm | OperandKind::Ymm => (&raw mut cpu.arch.vector.ymm[usize::from(register & 15)]).cast(),
            OperandKind::General => (&raw mut cpu.arch.gpr[usize::from(register & 15)]).cast(),
            OperandKind::Mmx => {
                let slot: *mut F80 = &raw mut cpu.arch.x87.regs[usize::from(register & 7)];
                // SAFETY: a field of a valid register.
                unsafe { (&raw mut (*slot).significand).cast() }
            }
            OperandKind::Memory | OperandKind::None => memory,
        };
    }
    let out = match form.extra {
        Extra::Index { .. } => (&raw mut cpu.arch.gpr[1]).cast(),
        Extra::Mask { .. } => (&raw mut cpu.arch.vector.ymm[0]).cast(),
        _ => ops[0],
    };
    let len = match form.kinds[0] {
        _ if !form.writes => 0,
        OperandKind::Xmm | OperandKind::Ymm => width(VEX),
        OperandKind::General | OperandKind::Mmx => 8,
        OperandKind::Memory | OperandKind::None => 0,
    };
    if form.mmx && stores {
        clear_top(cpu);
    } else if form.mmx {
        // The MMX state is entered even if the conversion faults.
        enter_mmx(cpu);
    }
    // SAFETY: each pointer refers to an operand of its kind, or to the stage.
    let returned = unsafe { call::<FP>(cpu, form, ops, out, len)? };
    if stores {
        if FP {
            // Numeric exceptions precede those of the store.
            destination = aligned(cpu, op, u64::from(form.memory_len), form.align, true)?;
        }
        cpu.write_bytes(destination, op.seg, &stage.0[..usize::from(form.memory_len).min(64)])?;
    }
    if form.mmx && stores {
        enter_mmx(cpu);
    }
    if VEX && form.writes && matches!(form.kinds[0], OperandKind::Xmm | OperandKind::Ymm) {
        cpu.arch.vector.clear_upper(op.r0);
    } else if VEX && matches!(form.extra, Extra::Mask { .. }) {
        cpu.arch.vector.clear_upper(0);
    }
    if form.flags {
        cpu.arch.lazy.load(returned & flags::ARITH);
    }
    if form.writes && form.kinds[0] == OperandKind::Mmx {
        cpu.arch.x87.regs[usize::from(op.r0 & 7)].sign_exponent = 0xffff;
    }
    Ok(Flow::Next)
}
