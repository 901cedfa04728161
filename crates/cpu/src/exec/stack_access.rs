//! Stack accesses of several instruction families: stack pointer, pushes and pops.

use crate::fault::Exec;
use crate::flags::Int;
use crate::op::{SEG_FLAT, address_mask};
use crate::state::Cpu;
use x86::{reg, rights, seg};

/// Returns the width of the stack pointer in bytes: 8 in 64-bit mode, else by SS.B.
#[inline(always)]
pub(crate) fn stack_width(cpu: &Cpu) -> u8 {
    if cpu.engine.long64 {
        8
    } else if cpu.arch.seg[seg::SS as usize].rights & rights::DB != 0 {
        4
    } else {
        2
    }
}

/// Writes the stack pointer with its width; a narrower one keeps the rest of RSP.
#[inline(always)]
pub(crate) fn set_stack_pointer(cpu: &mut Cpu, value: u64) {
    if cpu.engine.long64 {
        cpu.arch.gpr[usize::from(reg::RSP)] = value;
    } else {
        cpu.set_sized(reg::RSP, stack_width(cpu), value);
    }
}

/// Returns the segment number of stack accesses.
#[inline(always)]
fn stack_segment(cpu: &Cpu) -> u8 {
    if cpu.engine.long64 { SEG_FLAT + 1 } else { seg::SS }
}

/// Pushes a value; RSP changes only if the write succeeds.
#[inline(always)]
pub(crate) fn push<T: Int>(cpu: &mut Cpu, value: T) -> Exec {
    let sp = cpu.arch.gpr[usize::from(reg::RSP)].wrapping_sub(u64::from(T::SIZE));
    if cpu.engine.long64 {
        cpu.write_linear(sp, SEG_FLAT + 1, value)?;
        cpu.arch.gpr[usize::from(reg::RSP)] = sp;
        return Ok(());
    }
    let sp = sp & address_mask(stack_width(cpu));
    cpu.write_seg(seg::SS, sp, value)?;
    set_stack_pointer(cpu, sp);
    Ok(())
}

/// Reads the value `offset` bytes above the top of the stack, without moving RSP.
#[inline(always)]
pub(crate) fn peek<T: Int>(cpu: &mut Cpu, offset: u64) -> Exec<T> {
    let sp = cpu.arch.gpr[usize::from(reg::RSP)].wrapping_add(offset) & address_mask(stack_width(cpu));
    let segment = stack_segment(cpu);
    cpu.read_seg(segment, sp)
}

/// Pops a value.
#[inline(always)]
pub(crate) fn pop<T: Int>(cpu: &mut Cpu) -> Exec<T> {
    let value = peek::<T>(cpu, 0)?;
    let sp = cpu.arch.gpr[usize::from(reg::RSP)].wrapping_add(u64::from(T::SIZE));
    set_stack_pointer(cpu, sp);
    Ok(value)
}
