//! Translation plans of a block's instructions: native execution, code of the translator, or a handler call. The row of
//! an instruction states its treatment; a plan is the treatment of one form in its block.

use super::fit::{can_fix, has_memory, need, treatment};
use super::key::{AccessMode, Key};
use crate::op::{Op, SEG_FLAT};
use crate::row::{Flags, Treatment};
use iced_x86::{Instruction, OpAccess, OpKind, Register, RflagsBits};
use ledger::{Class, Family, Kind};
use x86::msr::SPEC_CTRL;
use x86::seg;

/// Translation plan of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Executed by its handler.
    Handler,
    /// Nothing happens.
    Nothing,
    /// Native instruction with replaced operands.
    Native,
    /// Native instruction, after which undefined flags are set to the interpreter's values.
    Fixed,
    /// Native vector instruction, on the host's vector registers.
    Vector,
    /// Native x87 instruction, on the host's x87 unit.
    X87,
    /// LEA.
    Lea,
    /// PUSH (64 bits).
    Push,
    /// POP to a register (64 bits).
    Pop,
    /// LEAVE (64 bits).
    Leave,
    /// PUSHFQ.
    PushFlags,
    /// CLI.
    MaskInterrupts,
    /// BT, BTS, BTR or BTC of 64 bits in memory, by a register.
    BitInMemory,
    /// STI with a NOP after it, which is the only instruction in its shadow.
    EnableInterrupts,
    /// RDTSC or RDTSCP.
    ReadTime,
    /// PAUSE.
    Pause,
    /// MOV from CR2 or CR3.
    ReadControl,
    /// SWAPGS.
    SwapBases,
    /// RDFSBASE, RDGSBASE, WRFSBASE or WRGSBASE.
    Base {
        /// The segment.
        segment: u8,
        /// True if the instruction writes the base.
        write: bool,
    },
    /// RDPKRU.
    ReadRights,
    /// WRMSR.
    WriteMsr,
    /// MOV from a segment register.
    Selector,
    /// CMPXCHG16B.
    CompareExchange16,
    /// DIV or IDIV.
    Divide {
        /// True if the flags, which are unchanged, may be used later.
        keeps_flags: bool,
    },
    /// MOVS or STOS.
    String,
    /// STAC or CLAC: the access mode changes.
    AccessControl {
        /// Value of RFLAGS.AC afterwards.
        set: bool,
    },
    /// Conditional jump.
    Branch,
    /// Jump with a known target.
    Jump,
    /// Call with a known target.
    Call,
    /// Return (64 bits).
    Return,
    /// Indirect jump or call, through a register or memory (64 bits).
    Indirect {
        /// True for a call.
        call: bool,
    },
}

impl Plan {
    /// Returns true if memory operands may belong to groups, and the groups found stay valid.
    pub fn keeps_groups(self) -> bool {
        use Plan::*;
        matches!(
            self,
            Nothing
                | Native
                | Fixed
                | Vector
                | Lea
                | Push
                | Pop
                | Leave
                | Branch
                | Jump
                | Call
                | Return
                | Indirect { .. }
        )
    }

    /// Returns true if the instruction is the last of its block and determines the next address.
    pub fn leaves(self) -> bool {
        matches!(self, Self::Branch | Self::Jump | Self::Call | Self::Return | Self::Indirect { .. })
    }
}

/// Returns the differences between the host's flags and the interpreter's after native execution.
fn flags(i: &Instruction) -> Flags {
    match treatment(i) {
        Treatment::Native(flags) => flags,
        Treatment::DoubleShift => Flags::ByCount,
        Treatment::BitTest => Flags::Same,
        _ => Flags::Listed,
    }
}

/// Returns the flags that an instruction leaves undefined.
fn undefined_flags(i: &Instruction) -> u32 {
    if flags(i) == Flags::Same { 0 } else { i.rflags_undefined() & ARITHMETIC }
}

/// The six arithmetic flags of the decoder library.
pub const ARITHMETIC: u32 =
    RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::CF | RflagsBits::PF;

/// Returns the flags that an instruction always writes if it changes any.
fn written_flags(i: &Instruction) -> u32 {
    match treatment(i) {
        Treatment::BitTest => RflagsBits::CF,
        // Undefined flags may be unchanged.
        _ => i.rflags_modified() & !undefined_flags(i),
    }
}

/// Returns true if an instruction changes flags only for some counts.
fn conditional_flags(i: &Instruction) -> bool {
    flags(i) == Flags::ByCount
        && (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Register && i.op_register(n) == Register::CL)
}

/// Returns the plan if 32-bit code differs from 64-bit code.
fn plan_narrow(i: &Instruction, op: &Op) -> Option<Plan> {
    use iced_x86::Code::*;
    Some(match i.code() {
        Push_r32 | Pushd_imm8 | Pushd_imm32 => Plan::Push,
        Pop_r32 => Plan::Pop,
        Leaved => Plan::Leave,
        Call_rel32_32 => Plan::Call,
        Retnd | Retnd_imm16 => Plan::Return,
        Jmp_rm32 => Plan::Indirect { call: false },
        Call_rm32 => Plan::Indirect { call: true },
        // In 64-bit mode these bytes are prefixes; the emitter uses other encodings.
        Inc_r32 | Dec_r32 => Plan::Native,
        Pushfd | Pushd_ES | Pushd_CS | Pushd_SS | Pushd_DS | Popd_ES | Popd_SS | Popd_DS => Plan::Handler,
        VEX_Vzeroupper | VEX_Vzeroall => Plan::Handler,
        _ => plan_narrow_row(i, op)?,
    })
}

/// Returns the plan if 32-bit code differs from 64-bit code in all forms of an instruction.
fn plan_narrow_row(i: &Instruction, op: &Op) -> Option<Plan> {
    let near = i.op0_kind() == OpKind::NearBranch32;
    Some(match treatment(i) {
        Treatment::Jump if near => Plan::Jump,
        Treatment::Branch if near => Plan::Branch,
        Treatment::Push | Treatment::Pop | Treatment::Leave => Plan::Handler,
        Treatment::Jump | Treatment::Call | Treatment::Return => Plan::Handler,
        // Memory operands with 16-bit addresses, or through CS, FS or GS.
        _ if op.has(Op::MEM) && !segment_fits(op, true) => Plan::Handler,
        _ => return None,
    })
}

/// Returns the plan for an instruction with operation `op`, in 32-bit code if `narrow`, else in 64-bit mode; `lines` if caches are
/// modelled.
fn plan_one(i: &Instruction, op: &Op, narrow: bool, lines: bool) -> Plan {
    if op.form.code() != i.code() as u16 {
        // The model lacks the instruction.
        return Plan::Handler;
    }
    if narrow && let Some(plan) = plan_narrow(i, op) {
        return plan;
    }
    use iced_x86::Code;
    let canonical = |address: u64| ((address as i64) << 16 >> 16) as u64 == address;
    let (code, treatment) = (i.code(), treatment(i));
    let to_memory = i.op0_kind() == OpKind::Memory;
    match treatment {
        // This includes hints.
        Treatment::Nothing => Plan::Nothing,
        Treatment::Prefetch if lines => Plan::Handler,
        Treatment::Prefetch => Plan::Nothing,
        Treatment::Handler | Treatment::LoadSegment => Plan::Handler,
        Treatment::Native(_) => plan_native(i, op, narrow),
        Treatment::DoubleShift if op.size == 2 => Plan::Handler,
        Treatment::DoubleShift => plan_native(i, op, narrow),
        Treatment::BitTest => match plan_native(i, op, narrow) {
            // A bit offset in a register may select a bit beyond the operand.
            Plan::Native if to_memory && i.op1_kind() == OpKind::Register => {
                if op.size == 8 && op.asize == 8 {
                    Plan::BitInMemory
                } else {
                    Plan::Handler
                }
            }
            plan => plan,
        },
        Treatment::Move if i.op1_kind() == OpKind::Register && i.op1_register().is_cr() => Plan::ReadControl,
        Treatment::Move if i.op1_kind() == OpKind::Register && i.op1_register().is_segment_register() => {
            if !to_memory || native_memory(i, op, narrow) { Plan::Selector } else { Plan::Handler }
        }
        Treatment::Move => plan_native(i, op, narrow),
        // AMD processors read 32 bits, Intel's read 16.
        Treatment::ExtendDouble if code == Code::Movsxd_r16_rm16 => Plan::Handler,
        Treatment::ExtendDouble => plan_native(i, op, narrow),
        Treatment::String if is_string(i, op) => Plan::String,
        Treatment::Vector | Treatment::Opmask | Treatment::String if need(i, op).is_some() => {
            if has_memory(i) && !segment_fits(op, narrow) { Plan::Handler } else { Plan::Vector }
        }
        Treatment::Vector | Treatment::Opmask | Treatment::String => Plan::Handler,
        Treatment::X87 { .. } => {
            if has_memory(i) && !segment_fits(op, narrow) {
                Plan::Handler
            } else {
                Plan::X87
            }
        }
        Treatment::Lea if i.op0_register().is_gpr() => Plan::Lea,
        Treatment::Push if matches!(code, Code::Push_r64 | Code::Pushq_imm8 | Code::Pushq_imm32) => Plan::Push,
        Treatment::Push if code == Code::Push_rm64 && to_memory && native_memory(i, op, narrow) => Plan::Push,
        Treatment::Pop if code == Code::Pop_r64 => Plan::Pop,
        Treatment::Leave if code == Code::Leaveq => Plan::Leave,
        Treatment::PushFlags => Plan::PushFlags,
        Treatment::MaskInterrupts => Plan::MaskInterrupts,
        Treatment::EnableInterrupts => Plan::EnableInterrupts,
        Treatment::AccessControl { set } => Plan::AccessControl { set },
        Treatment::ReadTime => Plan::ReadTime,
        Treatment::Pause => Plan::Pause,
        Treatment::SwapBases => Plan::SwapBases,
        Treatment::Base { segment, write } => Plan::Base { segment, write },
        Treatment::ReadRights => Plan::ReadRights,
        Treatment::WriteMsr => Plan::WriteMsr,
        Treatment::CompareExchange16 if segment_fits(op, narrow) => Plan::CompareExchange16,
        Treatment::Divide if op.size >= 4 && divisor_fits(i, op, narrow) => Plan::Divide { keeps_flags: true },
        Treatment::Branch if i.op0_kind() == OpKind::NearBranch64 && canonical(op.imm) => Plan::Branch,
        Treatment::Jump if i.op0_kind() == OpKind::NearBranch64 && canonical(op.imm) => Plan::Jump,
        Treatment::Jump if code == Code::Jmp_rm64 => Plan::Indirect { call: false },
        Treatment::Call if code == Code::Call_rel32_64 && canonical(op.imm) => Plan::Call,
        Treatment::Call if code == Code::Call_rm64 => Plan::Indirect { call: true },
        Treatment::Return if matches!(code, Code::Retnq | Code::Retnq_imm16) => Plan::Return,
        Treatment::Lea
        | Treatment::Push
        | Treatment::Pop
        | Treatment::Leave
        | Treatment::CompareExchange16
        | Treatment::Divide
        | Treatment::Branch
        | Treatment::Jump
        | Treatment::Call
        | Treatment::Return => Plan::Handler,
    }
}

/// Returns the plan of an instruction that is native if the translator can replace its operands.
fn plan_native(i: &Instruction, op: &Op, narrow: bool) -> Plan {
    let fits = (0..i.op_count()).all(|n| match i.op_kind(n) {
        OpKind::Register => i.op_register(n).is_gpr(),
        OpKind::Memory => native_memory(i, op, narrow),
        kind => {
            matches!(kind, OpKind::Immediate8 | OpKind::Immediate16 | OpKind::Immediate32 | OpKind::Immediate64)
                || matches!(kind, OpKind::Immediate8to16 | OpKind::Immediate8to32 | OpKind::Immediate8to64)
                || kind == OpKind::Immediate32to64
        }
    });
    if fits { Plan::Native } else { Plan::Handler }
}

fn divisor_fits(i: &Instruction, op: &Op, narrow: bool) -> bool {
    match i.op0_kind() {
        OpKind::Memory => native_memory(i, op, narrow),
        // These registers contain the dividend.
        _ => !matches!(op.r0, 0 | 2),
    }
}

/// Returns true for MOVS or STOS with 64-bit addresses and no segment override, with or without REP.
fn is_string(i: &Instruction, op: &Op) -> bool {
    let string = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::MemoryESRDI);
    string && op.asize == 8 && op.seg >= SEG_FLAT && !op.has(Op::REPNE)
}

/// Returns the charge of translated code for an instruction in addition to its class.
pub fn event(i: &Instruction, key: Key) -> Option<Kind> {
    Some(match treatment(i) {
        Treatment::SwapBases if key.access != AccessMode::User => Kind::new(Family::Swapgs, 0),
        Treatment::WriteMsr if key.access != AccessMode::User => Kind::new(Family::Wrmsr, SPEC_CTRL),
        Treatment::String if i.has_rep_prefix() => Kind::new(Family::Instruction, Class::StringStep as u32),
        _ => return None,
    })
}

/// Returns true if the translator computes the address of this memory operand.
pub fn native_memory(i: &Instruction, op: &Op, narrow: bool) -> bool {
    let moffs = i.memory_base() == Register::None && i.memory_displ_size() == 8 && !i.is_ip_rel_memory_operand() && {
        use iced_x86::Code::*;
        matches!(
            i.code(),
            Mov_AL_moffs8
                | Mov_AX_moffs16
                | Mov_EAX_moffs32
                | Mov_RAX_moffs64
                | Mov_moffs8_AL
                | Mov_moffs16_AX
                | Mov_moffs32_EAX
                | Mov_moffs64_RAX
        )
    };
    let size = i.memory_size().size();
    segment_fits(op, narrow) && !moffs && matches!(size, 1 | 2 | 4 | 8)
}

/// Returns true if the translator computes addresses in this segment and of this size.
fn segment_fits(op: &Op, narrow: bool) -> bool {
    if narrow {
        return op.asize == 4 && matches!(op.seg, seg::ES | seg::SS | seg::DS);
    }
    (op.seg >= SEG_FLAT || op.seg == seg::FS || op.seg == seg::GS) && op.asize >= 4
}

/// Returns true if an instruction loads a segment register.
fn loads_segment(i: &Instruction) -> bool {
    match treatment(i) {
        Treatment::Move | Treatment::Pop => i.op0_kind() == OpKind::Register && i.op0_register().is_segment_register(),
        treatment => treatment == Treatment::LoadSegment,
    }
}

/// Returns the plans for the instructions of a block.
pub fn plans(instructions: &[Instruction], ops: &[Op], narrow: bool, lines: bool) -> Vec<Plan> {
    let mut plans: Vec<Plan> = instructions.iter().zip(ops).map(|(i, op)| plan_one(i, op, narrow, lines)).collect();
    // After it the segments may not be those for which 32-bit code is translated.
    if narrow && let Some(loaded) = instructions.iter().position(loads_segment) {
        plans[loaded..].fill(Plan::Handler);
    }
    for n in 0..plans.len() {
        if let Plan::Divide { .. } = plans[n] {
            let dead = die(ARITHMETIC, &instructions[n + 1..], &plans[n + 1..]);
            plans[n] = Plan::Divide { keeps_flags: !dead };
        }
        if plans[n] == Plan::Native && flags(&instructions[n]) == Flags::Differ {
            plans[n] = if can_fix(&instructions[n], &ops[n]) { Plan::Fixed } else { Plan::Handler };
        }
        if plans[n] == Plan::Native {
            let undefined = undefined_flags(&instructions[n]);
            if undefined != 0 && !die(undefined, &instructions[n + 1..], &plans[n + 1..]) {
                plans[n] = if can_fix(&instructions[n], &ops[n]) { Plan::Fixed } else { Plan::Handler };
            }
        }
    }
    plans
}

/// Returns true if flags are overwritten before any use: by an instruction that reads them, or at a possible exit from
/// the block.
fn die(mut flags: u32, instructions: &[Instruction], plans: &[Plan]) -> bool {
    for (i, plan) in instructions.iter().zip(plans) {
        match plan {
            Plan::Nothing | Plan::Lea => continue,
            Plan::Native if !has_memory(i) => {}
            _ => return false,
        }
        if i.rflags_read() & flags != 0 {
            return false;
        }
        if !conditional_flags(i) {
            flags &= !written_flags(i);
            if flags == 0 {
                return true;
            }
        }
    }
    false
}

/// Returns true if an operand may be written.
pub fn writes(access: OpAccess) -> bool {
    matches!(access, OpAccess::Write | OpAccess::ReadWrite | OpAccess::CondWrite | OpAccess::ReadCondWrite)
}
