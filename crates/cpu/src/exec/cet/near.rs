//! Near calls, returns and indirect jumps with control-flow enforcement.

use super::{ENDBRANCH, NO_TRACK, SUPPRESS, code};
use crate::exec::control::{enter, go, indirect, predict_return, push_return};
use crate::exec::sized;
use crate::exec::stack_access::{pop, set_stack_pointer};
use crate::fault::{Exec, Flow};
use crate::flags::Int;
use crate::op::Op;
use crate::state::Cpu;
use iced_x86::{Code, Instruction, Register};
use ledger::{Class, Way};
use x86::reg;

/// Binds an instruction to its handler for enforced control flow, if that is a different one.
pub(crate) fn rebind(i: &Instruction, op: &mut Op) {
    let memory = op.has(Op::MEM);
    let handler = match op.class {
        Class::Call => sized!(op.size; call_direct<>),
        Class::IndirectCall if memory => sized!(op.size; call_memory<>),
        Class::IndirectCall => sized!(op.size; call_register<>),
        Class::IndirectJump if memory => sized!(op.size; jump_memory<>),
        Class::IndirectJump => sized!(op.size; jump_register<>),
        Class::Return => match i.code() {
            Code::Retnw | Code::Retnw_imm16 => sized!(2; near_return<>),
            Code::Retnd | Code::Retnd_imm16 => sized!(4; near_return<>),
            _ => sized!(8; near_return<>),
        },
        _ => super::instructions::rebind(i),
    };
    if op.is_indirect() {
        // The prefix that selects DS elsewhere (NOTRACK).
        op.r3 = u8::from(i.segment_prefix() == Register::DS);
    }
    op.exec = handler.unwrap_or(op.exec);
}

/// Returns the size of a slot on the shadow stack in bytes.
fn slot<T: Int>() -> u8 {
    if T::SIZE == 8 { 8 } else { 4 }
}

/// Pushes the return address to both stacks.
fn push_both<T: Int>(cpu: &mut Cpu, op: &Op, target: u64) -> Exec<()> {
    let old = cpu.arch.gpr[usize::from(reg::RSP)];
    push_return::<T>(cpu, op, target)?;
    // Position-independent code determines its address by a call of the next instruction, and never returns.
    if cpu.has_shadow_stack(cpu.arch.cpl) && (op.class != Class::Call || target != op.next) {
        let (ssp, privilege) = (cpu.arch.ssp.wrapping_sub(u64::from(slot::<T>())), cpu.privilege());
        let value = T::from_u64(op.next).to_u64();
        if let Err(fault) = cpu.shadow_write(ssp, slot::<T>(), value, privilege) {
            cpu.arch.gpr[usize::from(reg::RSP)] = old;
            return Err(fault);
        }
        cpu.arch.ssp = ssp;
    }
    Ok(())
}

/// Handles an indirect branch.
fn track(cpu: &mut Cpu, op: &Op) {
    let enforced = cpu.enforced(cpu.arch.cpl);
    let exempt = op.r3 != 0 && enforced & NO_TRACK != 0;
    if enforced & (ENDBRANCH | SUPPRESS) == ENDBRANCH && !exempt {
        cpu.track_near();
    }
}

fn call_direct<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    push_both::<T>(cpu, op, op.imm)?;
    Ok(enter(cpu, op, op.imm))
}

fn call_register<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let target = cpu.get::<T>(op.r0).to_u64();
    call_indirect::<T>(cpu, op, target)
}

fn call_memory<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let target = cpu.load::<T>(op)?.to_u64();
    call_indirect::<T>(cpu, op, target)
}

fn call_indirect<T: Int>(cpu: &mut Cpu, op: &Op, target: u64) -> Exec<Flow> {
    push_both::<T>(cpu, op, target)?;
    indirect(cpu, op, Way::Call, target);
    let flow = enter(cpu, op, target);
    track(cpu, op);
    Ok(flow)
}

fn jump_register<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let target = cpu.get::<T>(op.r0).to_u64();
    jump(cpu, op, target)
}

fn jump_memory<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let target = cpu.load::<T>(op)?.to_u64();
    jump(cpu, op, target)
}

fn jump(cpu: &mut Cpu, op: &Op, target: u64) -> Exec<Flow> {
    indirect(cpu, op, Way::Jump, target);
    let flow = go(cpu, target)?;
    track(cpu, op);
    Ok(flow)
}

fn near_return<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let (old, ssp) = (cpu.arch.gpr[usize::from(reg::RSP)], cpu.arch.ssp);
    let flow = return_shadowed::<T>(cpu, op);
    if flow.is_err() {
        cpu.arch.gpr[usize::from(reg::RSP)] = old;
        cpu.arch.ssp = ssp;
    }
    flow
}

fn return_shadowed<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let target = pop::<T>(cpu)?.to_u64();
    if cpu.has_shadow_stack(cpu.arch.cpl) {
        let privilege = cpu.privilege();
        if cpu.shadow_read(cpu.arch.ssp, slot::<T>(), privilege)? != target {
            return Err(cpu.control_protection(code::NEAR_RETURN));
        }
        cpu.arch.ssp = cpu.arch.ssp.wrapping_add(u64::from(slot::<T>()));
    }
    predict_return(cpu, op, target);
    let flow = go(cpu, target)?;
    if op.imm != 0 {
        let sp = cpu.arch.gpr[usize::from(reg::RSP)].wrapping_add(op.imm);
        set_stack_pointer(cpu, sp);
    }
    Ok(flow)
}
