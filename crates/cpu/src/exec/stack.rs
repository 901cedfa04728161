//! PUSH, POP, ENTER, LEAVE and similar instructions.

use crate::exec::sized;
use crate::exec::stack_access::{peek, pop, push, set_stack_pointer, stack_width};
use crate::fault::{Exec, Flow};
use crate::flags::Int;
use crate::op::{Handler, Op, address_mask};
use crate::row::{Row, Treatment};
use crate::state::Cpu;
use iced_x86::{Code, Instruction, Mnemonic::*, OpKind};
use ledger::Class;
use x86::{reg, seg};

/// Instruction table rows of stack instructions.
pub static ROWS: &[Row] = &[
    Row::new(Push, Class::Store, push_any).treated(Treatment::Push).common(),
    Row::new(Pop, Class::Load, pop_any).treated(Treatment::Pop).common(),
    Row::new(Pusha, Class::Store, |_, _| Some(push_all::<u16>)),
    Row::new(Pushad, Class::Store, |_, _| Some(push_all::<u32>)),
    Row::new(Popa, Class::Load, |_, _| Some(pop_all::<u16>)),
    Row::new(Popad, Class::Load, |_, _| Some(pop_all::<u32>)),
    Row::new(Leave, Class::Load, leave).treated(Treatment::Leave).common(),
    Row::new(Enter, Class::Microcode, enter),
];

fn push_any(i: &Instruction, op: &mut Op) -> Option<Handler> {
    match i.op0_kind() {
        OpKind::Register if i.op0_register().is_segment_register() => crate::exec::segment::bind_push(i, op),
        OpKind::Register => sized!(op.size; push_register<>),
        OpKind::Memory => sized!(op.size; push_memory<>),
        _ => {
            let size = match i.code() {
                Code::Pushw_imm8 | Code::Push_imm16 => 2,
                Code::Pushd_imm8 | Code::Pushd_imm32 => 4,
                _ => 8,
            };
            sized!(size; push_immediate<>)
        }
    }
}

fn push_register<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let value = cpu.get::<T>(op.r0);
    push(cpu, value)?;
    Ok(Flow::Next)
}

fn push_memory<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let value = cpu.load::<T>(op)?;
    push(cpu, value)?;
    Ok(Flow::Next)
}

fn push_immediate<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    push(cpu, T::from_u64(op.imm))?;
    Ok(Flow::Next)
}

fn pop_any(i: &Instruction, op: &mut Op) -> Option<Handler> {
    match i.op0_kind() {
        OpKind::Register if i.op0_register().is_segment_register() => crate::exec::segment::bind_pop(i, op),
        OpKind::Register => sized!(op.size; pop_register<>),
        _ => sized!(op.size; pop_memory<>),
    }
}

fn pop_register<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    // The increment precedes the write: POP RSP leaves the popped value.
    let value = pop::<T>(cpu)?;
    cpu.set(op.r0, value);
    Ok(Flow::Next)
}

fn pop_memory<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    // An address with RSP is computed after the increment; a fault restores RSP.
    let old = cpu.arch.gpr[usize::from(reg::RSP)];
    let value = pop::<T>(cpu)?;
    if let Err(fault) = cpu.store(op, value) {
        cpu.arch.gpr[usize::from(reg::RSP)] = old;
        return Err(fault);
    }
    Ok(Flow::Next)
}

/// Segment number of stack accesses outside 64-bit mode.
fn write_stack<T: Int>(cpu: &mut Cpu, sp: u64, value: T) -> Exec {
    let sp = sp & address_mask(stack_width(cpu));
    cpu.write_seg(seg::SS, sp, value)
}

fn push_all<T: Int>(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    let size = u64::from(T::SIZE);
    let sp = cpu.arch.gpr[usize::from(reg::RSP)];
    // Nothing is written unless everything can be written.
    for i in 1..=8 {
        let at = sp.wrapping_sub(i * size) & address_mask(stack_width(cpu));
        let linear = cpu.linear(seg::SS, at, size, true)?;
        let privilege = cpu.privilege();
        cpu.prepare_write(linear, size, privilege, seg::SS)?;
    }
    for i in 0..8u8 {
        let value = cpu.get::<T>(i);
        write_stack(cpu, sp.wrapping_sub((u64::from(i) + 1) * size), value)?;
    }
    set_stack_pointer(cpu, sp.wrapping_sub(8 * size));
    Ok(Flow::Next)
}

fn pop_all<T: Int>(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    let size = u64::from(T::SIZE);
    let mut values = [T::from_u64(0); 8];
    for (i, value) in values.iter_mut().enumerate() {
        *value = peek::<T>(cpu, i as u64 * size)?;
    }
    let sp = cpu.arch.gpr[usize::from(reg::RSP)].wrapping_add(8 * size);
    for (i, value) in values.into_iter().enumerate() {
        let register = 7 - i as u8;
        if register != reg::RSP {
            cpu.set(register, value);
        }
    }
    set_stack_pointer(cpu, sp);
    Ok(Flow::Next)
}

fn leave(i: &Instruction, _: &mut Op) -> Option<Handler> {
    let size = match i.code() {
        Code::Leavew => 2,
        Code::Leaved => 4,
        _ => 8,
    };
    sized!(size; leave_sized<>)
}

fn leave_sized<T: Int>(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    let old = cpu.arch.gpr[usize::from(reg::RSP)];
    let frame = cpu.arch.gpr[usize::from(reg::RBP)];
    set_stack_pointer(cpu, frame);
    match pop::<T>(cpu) {
        Ok(value) => {
            cpu.set(reg::RBP, value);
            Ok(Flow::Next)
        }
        Err(fault) => {
            cpu.arch.gpr[usize::from(reg::RSP)] = old;
            Err(fault)
        }
    }
}

fn enter(i: &Instruction, _: &mut Op) -> Option<Handler> {
    let size = match i.code() {
        Code::Enterw_imm16_imm8 => 2,
        Code::Enterd_imm16_imm8 => 4,
        _ => 8,
    };
    sized!(size; enter_sized<>)
}

/// ENTER: `imm` is the size of the frame, `disp` the nesting level (SDM vol. 2).
fn enter_sized<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let old = cpu.arch.gpr[usize::from(reg::RSP)];
    let result = enter_frames::<T>(cpu, op);
    if result.is_err() {
        cpu.arch.gpr[usize::from(reg::RSP)] = old;
    }
    result
}

fn enter_frames<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let (bytes, level) = (op.imm & 0xffff, op.disp & 31);
    let size = u64::from(T::SIZE);
    let mask = address_mask(stack_width(cpu));
    let old_frame = cpu.arch.gpr[usize::from(reg::RBP)];
    push(cpu, T::from_u64(old_frame))?;
    let frame = cpu.arch.gpr[usize::from(reg::RSP)];
    let segment = if cpu.engine.long64 { crate::op::SEG_FLAT + 1 } else { seg::SS };
    for n in 1..level {
        let outer = cpu.read_seg::<T>(segment, old_frame.wrapping_sub(n * size) & mask)?;
        push(cpu, outer)?;
    }
    if level > 0 {
        push(cpu, T::from_u64(frame))?;
    }
    let sp = cpu.arch.gpr[usize::from(reg::RSP)].wrapping_sub(bytes);
    // The new top of the stack must be writable, although nothing is written there.
    let linear = if cpu.engine.long64 { sp } else { cpu.linear(seg::SS, sp & mask, size, true)? };
    let privilege = cpu.privilege();
    cpu.prepare_write(linear, size, privilege, segment)?;
    set_stack_pointer(cpu, sp);
    cpu.set(reg::RBP, T::from_u64(frame));
    Ok(Flow::Next)
}
