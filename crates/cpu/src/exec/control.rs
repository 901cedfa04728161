//! Near branches: jumps, calls, returns, loops.

use crate::exec::stack_access::{pop, push, set_stack_pointer};
use crate::exec::{far, sized};
use crate::fault::{Exec, Flow};
use crate::flags::Int;
use crate::op::{Handler, Op};
use crate::row::{Row, Treatment};
use crate::state::Cpu;
use iced_x86::{Instruction, Mnemonic::*, OpKind};
use ledger::{Branch, Class, Way};
use x86::{reg, seg};

/// Instruction table rows of near branches.
pub static ROWS: &[Row] = &[
    Row::end(Jo, Class::Branch, jcc::<0>).treated(Treatment::Branch),
    Row::end(Jno, Class::Branch, jcc::<1>).treated(Treatment::Branch),
    Row::end(Jb, Class::Branch, jcc::<2>).treated(Treatment::Branch),
    Row::end(Jae, Class::Branch, jcc::<3>).treated(Treatment::Branch),
    Row::end(Je, Class::Branch, jcc::<4>).treated(Treatment::Branch),
    Row::end(Jne, Class::Branch, jcc::<5>).treated(Treatment::Branch),
    Row::end(Jbe, Class::Branch, jcc::<6>).treated(Treatment::Branch),
    Row::end(Ja, Class::Branch, jcc::<7>).treated(Treatment::Branch),
    Row::end(Js, Class::Branch, jcc::<8>).treated(Treatment::Branch),
    Row::end(Jns, Class::Branch, jcc::<9>).treated(Treatment::Branch),
    Row::end(Jp, Class::Branch, jcc::<10>).treated(Treatment::Branch),
    Row::end(Jnp, Class::Branch, jcc::<11>).treated(Treatment::Branch),
    Row::end(Jl, Class::Branch, jcc::<12>).treated(Treatment::Branch),
    Row::end(Jge, Class::Branch, jcc::<13>).treated(Treatment::Branch),
    Row::end(Jle, Class::Branch, jcc::<14>).treated(Treatment::Branch),
    Row::end(Jg, Class::Branch, jcc::<15>).treated(Treatment::Branch),
    Row::end(Jmp, Class::Jump, jmp).treated(Treatment::Jump),
    Row::end(Call, Class::Call, call).treated(Treatment::Call),
    Row::end(Ret, Class::Return, ret).treated(Treatment::Return),
    Row::end(Loop, Class::Branch, |_, _| Some(looping::<0>)),
    Row::end(Loope, Class::Branch, |_, _| Some(looping::<1>)),
    Row::end(Loopne, Class::Branch, |_, _| Some(looping::<2>)),
    Row::end(Jcxz, Class::Branch, |_, op| address_sized(op, 2)),
    Row::end(Jecxz, Class::Branch, |_, op| address_sized(op, 4)),
    Row::end(Jrcxz, Class::Branch, |_, op| address_sized(op, 8)),
];

/// Checks the target of a branch, which must be canonical in 64-bit mode and within the CS limit elsewhere.
#[inline(always)]
fn check(cpu: &mut Cpu, target: u64) -> Exec {
    let valid = match cpu.engine.long64 {
        true => cpu.canonical(target),
        false => target <= u64::from(cpu.arch.seg[seg::CS as usize].limit),
    };
    if valid { Ok(()) } else { Err(cpu.gp(0)) }
}

/// Branches to `target`, see [`check`].
#[inline(always)]
pub(crate) fn go(cpu: &mut Cpu, target: u64) -> Exec<Flow> {
    check(cpu, target)?;
    cpu.arch.rip = target;
    Ok(Flow::End)
}

/// Ends a conditional branch that is `taken` or not.
#[inline(always)]
fn decide(cpu: &mut Cpu, op: &Op, taken: bool) -> Exec<Flow> {
    if taken {
        check(cpu, op.imm)?;
    }
    // RIP is changed afterwards: a misprediction is charged to the branch.
    cpu.conditional_branch(op, taken);
    if taken {
        cpu.arch.rip = op.imm;
    }
    Ok(Flow::End)
}

fn jcc<const CC: u8>(_: &Instruction, _: &mut Op) -> Option<Handler> {
    fn run<const CC: u8>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
        let taken = cpu.arch.lazy.condition(CC);
        decide(cpu, op, taken)
    }
    Some(run::<CC>)
}

fn looping<const KIND: u8>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    // The counter's width is the address size, which no operand shows; it follows from the decoder's code.
    let width = counter_width(op);
    let mask = crate::op::address_mask(width);
    let count = cpu.arch.gpr[usize::from(reg::RCX)].wrapping_sub(1) & mask;
    let condition = match KIND {
        0 => true,
        1 => cpu.arch.lazy.zf(),
        _ => !cpu.arch.lazy.zf(),
    };
    let flow = decide(cpu, op, count != 0 && condition)?;
    cpu.set_sized(reg::RCX, width, count);
    Ok(flow)
}

fn counter_width(op: &Op) -> u8 {
    use iced_x86::Code;
    const CX: &[Code] = &[
        Code::Loop_rel8_16_CX,
        Code::Loop_rel8_32_CX,
        Code::Loope_rel8_16_CX,
        Code::Loope_rel8_32_CX,
        Code::Loopne_rel8_16_CX,
        Code::Loopne_rel8_32_CX,
    ];
    const RCX: &[Code] = &[
        Code::Loop_rel8_16_RCX,
        Code::Loop_rel8_64_RCX,
        Code::Loope_rel8_16_RCX,
        Code::Loope_rel8_64_RCX,
        Code::Loopne_rel8_16_RCX,
        Code::Loopne_rel8_64_RCX,
    ];
    let is = |list: &[Code]| list.iter().any(|c| *c as u16 == op.form.code());
    if is(CX) {
        2
    } else if is(RCX) {
        8
    } else {
        4
    }
}

fn address_sized(op: &mut Op, width: u8) -> Option<Handler> {
    op.asize = width;
    Some(|cpu, op| {
        let taken = cpu.arch.gpr[usize::from(reg::RCX)] & crate::op::address_mask(op.asize) == 0;
        decide(cpu, op, taken)
    })
}

fn jmp(i: &Instruction, op: &mut Op) -> Option<Handler> {
    match i.op0_kind() {
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => Some(|cpu, op| go(cpu, op.imm)),
        OpKind::FarBranch16 | OpKind::FarBranch32 => far::bind_jump(i, op),
        kind => {
            if i.is_jmp_far_indirect() {
                return far::bind_jump(i, op);
            }
            op.class = Class::IndirectJump;
            if kind == OpKind::Memory { sized!(op.size; jmp_memory<>) } else { sized!(op.size; jmp_register<>) }
        }
    }
}

#[inline(always)]
pub(crate) fn indirect(cpu: &mut Cpu, op: &Op, way: Way, target: u64) {
    let predicted = cpu.indirect_branch(op, target);
    if cpu.wiring.model.branches {
        cpu.record_branch(Branch { site: op.rip(), way, target }, !predicted);
    }
}

fn jmp_register<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let target = cpu.get::<T>(op.r0).to_u64();
    indirect(cpu, op, Way::Jump, target);
    go(cpu, target)
}

fn jmp_memory<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let target = cpu.load::<T>(op)?.to_u64();
    indirect(cpu, op, Way::Jump, target);
    go(cpu, target)
}

fn call(i: &Instruction, op: &mut Op) -> Option<Handler> {
    match i.op0_kind() {
        OpKind::NearBranch16 => Some(call_direct::<u16>),
        OpKind::NearBranch32 => Some(call_direct::<u32>),
        OpKind::NearBranch64 => Some(call_direct::<u64>),
        OpKind::FarBranch16 | OpKind::FarBranch32 => far::bind_call(i, op),
        kind => {
            if i.is_call_far_indirect() {
                return far::bind_call(i, op);
            }
            op.class = Class::IndirectCall;
            if kind == OpKind::Memory { sized!(op.size; call_memory<>) } else { sized!(op.size; call_register<>) }
        }
    }
}

fn call_direct<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    push_return::<T>(cpu, op, op.imm)?;
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
    push_return::<T>(cpu, op, target)?;
    // The return address is stored before a wrong prediction has been found: the store does not wait for the refill.
    indirect(cpu, op, Way::Call, target);
    Ok(enter(cpu, op, target))
}

/// Checks the target of a call, and pushes the return address. RIP is still that of the call, to which misses of the push are charged.
#[inline(always)]
pub(crate) fn push_return<T: Int>(cpu: &mut Cpu, op: &Op, target: u64) -> Exec<()> {
    check(cpu, target)?;
    push(cpu, T::from_u64(op.next))
}

/// Continues at the target of a call.
#[inline(always)]
pub(crate) fn enter(cpu: &mut Cpu, op: &Op, target: u64) -> Flow {
    cpu.arch.rip = target;
    cpu.near_call(op.next);
    Flow::End
}

fn ret(i: &Instruction, op: &mut Op) -> Option<Handler> {
    use iced_x86::Code::*;
    let size = match i.code() {
        Retnw | Retnw_imm16 => 2,
        Retnd | Retnd_imm16 => 4,
        _ => 8,
    };
    op.imm &= 0xffff;
    sized!(size; ret_near<>)
}

/// Charges a return to `target` if it was not predicted, after the target was popped from the stack.
#[inline(always)]
pub(crate) fn predict_return(cpu: &mut Cpu, op: &Op, target: u64) {
    let predicted = cpu.near_return(target);
    if cpu.wiring.model.branches {
        cpu.record_return(op.rip(), target, !predicted);
    }
}

fn ret_near<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let old = cpu.arch.gpr[usize::from(reg::RSP)];
    let target = pop::<T>(cpu)?.to_u64();
    predict_return(cpu, op, target);
    match go(cpu, target) {
        Ok(flow) => {
            if op.imm != 0 {
                let sp = cpu.arch.gpr[usize::from(reg::RSP)].wrapping_add(op.imm);
                set_stack_pointer(cpu, sp);
            }
            Ok(flow)
        }
        Err(fault) => {
            cpu.arch.gpr[usize::from(reg::RSP)] = old;
            Err(fault)
        }
    }
}
