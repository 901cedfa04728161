//! Translation plans of a block's instructions: native execution, code of the translator, or a handler call.

use super::key::{AccessMode, Key};
use crate::op::{Op, SEG_FLAT};
use iced_x86::{Instruction, Mnemonic, OpAccess, OpKind, Register, RflagsBits};
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

/// Returns true if the host executes the instruction as the interpreter does, except for undefined flags.
fn is_native(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
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
            | Cmovo
            | Cmovno
            | Cmovb
            | Cmovae
            | Cmove
            | Cmovne
            | Cmovbe
            | Cmova
            | Cmovs
            | Cmovns
            | Cmovp
            | Cmovnp
            | Cmovl
            | Cmovge
            | Cmovle
            | Cmovg
            | Seto
            | Setno
            | Setb
            | Setae
            | Sete
            | Setne
            | Setbe
            | Seta
            | Sets
            | Setns
            | Setp
            | Setnp
            | Setl
            | Setge
            | Setle
            | Setg
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
            | Shld
            | Shrd
            | Imul
            | Mul
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
    )
}

/// Returns the flags that an instruction leaves undefined.
pub fn undefined_flags(instruction: &Instruction) -> u32 {
    use Mnemonic::*;
    match instruction.mnemonic() {
        // All processors clear AF, or change only CF.
        And | Or | Xor | Test | Bt | Bts | Btr | Btc => 0,
        _ => instruction.rflags_undefined() & ARITHMETIC,
    }
}

/// The six arithmetic flags of the decoder library.
pub const ARITHMETIC: u32 =
    RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::CF | RflagsBits::PF;

/// Returns the flags that an instruction always writes if it changes any.
fn written_flags(instruction: &Instruction) -> u32 {
    use Mnemonic::*;
    match instruction.mnemonic() {
        Bt | Bts | Btr | Btc => RflagsBits::CF,
        // Undefined flags may be unchanged.
        _ => instruction.rflags_modified() & !undefined_flags(instruction),
    }
}

/// Returns true if an instruction changes flags only for some counts.
fn conditional_flags(i: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(i.mnemonic(), Shl | Sal | Shr | Sar | Rol | Ror | Rcl | Rcr | Shld | Shrd)
        && (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Register && i.op_register(n) == Register::CL)
}

/// Returns the plan if 32-bit code differs from 64-bit code.
fn plan_narrow(i: &Instruction, op: &Op) -> Option<Plan> {
    use iced_x86::Code::*;
    let near = i.op0_kind() == OpKind::NearBranch32;
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
        _ if i.mnemonic() == Mnemonic::Jmp && near => Plan::Jump,
        _ if i.is_jcc_short_or_near() && near => Plan::Branch,
        _ if matches!(
            i.mnemonic(),
            Mnemonic::Push | Mnemonic::Pop | Mnemonic::Leave | Mnemonic::Jmp | Mnemonic::Call
        ) =>
        {
            Plan::Handler
        }
        _ if matches!(i.mnemonic(), Mnemonic::Ret | Mnemonic::Vzeroupper | Mnemonic::Vzeroall) => Plan::Handler,
        // Memory operands with 16-bit addresses, or through CS, FS or GS.
        _ if op.has(Op::MEM) && !segment_fits(op, true) => Plan::Handler,
        _ => return None,
    })
}

/// Returns the plan for an instruction with operation `op`, in 32-bit code if `narrow`, else in 64-bit mode.
fn plan_one(i: &Instruction, op: &Op, narrow: bool) -> Plan {
    use Mnemonic::*;
    if op.code != i.code() as u16 {
        // The model lacks the instruction.
        return Plan::Handler;
    }
    if narrow && let Some(plan) = plan_narrow(i, op) {
        return plan;
    }
    let canonical = |address: u64| ((address as i64) << 16 >> 16) as u64 == address;
    match i.mnemonic() {
        // This includes hints.
        _ if op.class == Class::Nop => return Plan::Nothing,
        // There is nothing to wait for.
        Lfence | Sfence | Mfence => return Plan::Nothing,
        Lea if i.op0_register().is_gpr() => return Plan::Lea,
        // AMD processors read 32 bits, Intel's read 16.
        Movsxd if i.code() == iced_x86::Code::Movsxd_r16_rm16 => return Plan::Handler,
        Push if op.size == 8 || i.op0_kind() != OpKind::Register => {
            return match i.code() {
                iced_x86::Code::Push_r64 | iced_x86::Code::Pushq_imm8 | iced_x86::Code::Pushq_imm32 => Plan::Push,
                iced_x86::Code::Push_rm64 if i.op0_kind() == OpKind::Memory && native_memory(i, op, narrow) => {
                    Plan::Push
                }
                _ => Plan::Handler,
            };
        }
        Pop if i.code() == iced_x86::Code::Pop_r64 => return Plan::Pop,
        Leave if i.code() == iced_x86::Code::Leaveq => return Plan::Leave,
        Pushfq => return Plan::PushFlags,
        Cli => return Plan::MaskInterrupts,
        Sti => return Plan::EnableInterrupts,
        Rdtsc | Rdtscp => return Plan::ReadTime,
        Pause => return Plan::Pause,
        Swapgs => return Plan::SwapBases,
        Wrmsr => return Plan::WriteMsr,
        Cmpxchg16b if segment_fits(op, narrow) => return Plan::CompareExchange16,
        Div | Idiv if op.size >= 4 && divisor_fits(i, op, narrow) => return Plan::Divide { keeps_flags: true },
        Mov if i.op0_kind() == OpKind::Register && i.op1_kind() == OpKind::Register && i.op1_register().is_cr() => {
            return Plan::ReadControl;
        }
        Mov if i.op1_kind() == OpKind::Register && i.op1_register().is_segment_register() => {
            let memory = i.op0_kind() == OpKind::Memory;
            return if !memory || native_memory(i, op, narrow) { Plan::Selector } else { Plan::Handler };
        }
        Movsb | Movsw | Movsd | Movsq | Stosb | Stosw | Stosd | Stosq if is_string(i, op) => return Plan::String,
        Stac => return Plan::AccessControl { set: true },
        Clac => return Plan::AccessControl { set: false },
        Jmp if i.op0_kind() == OpKind::NearBranch64 && canonical(op.imm) => return Plan::Jump,
        Call if i.code() == iced_x86::Code::Call_rel32_64 && canonical(op.imm) => return Plan::Call,
        Ret if matches!(i.code(), iced_x86::Code::Retnq | iced_x86::Code::Retnq_imm16) => return Plan::Return,
        Jmp if matches!(i.code(), iced_x86::Code::Jmp_rm64) => return Plan::Indirect { call: false },
        Call if matches!(i.code(), iced_x86::Code::Call_rm64) => return Plan::Indirect { call: true },
        _ if i.is_jcc_short_or_near() && i.op0_kind() == OpKind::NearBranch64 && canonical(op.imm) => {
            return Plan::Branch;
        }
        _ => {}
    }
    let registers =
        if super::vector::need(i, op).is_some() { Some(Plan::Vector) } else { super::x87::form(i).map(|_| Plan::X87) };
    if let Some(plan) = registers {
        let memory = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory);
        return if memory && !segment_fits(op, narrow) { Plan::Handler } else { plan };
    }
    let registers_fit = (0..i.op_count()).all(|n| match i.op_kind(n) {
        OpKind::Register => i.op_register(n).is_gpr(),
        OpKind::Memory => native_memory(i, op, narrow),
        kind => {
            matches!(kind, OpKind::Immediate8 | OpKind::Immediate16 | OpKind::Immediate32 | OpKind::Immediate64)
                || matches!(kind, OpKind::Immediate8to16 | OpKind::Immediate8to32 | OpKind::Immediate8to64)
                || kind == OpKind::Immediate32to64
        }
    });
    if !is_native(i.mnemonic()) || !registers_fit {
        return Plan::Handler;
    }
    // For counts above 16, processors differ in the result.
    if matches!(i.mnemonic(), Shld | Shrd) && op.size == 2 {
        return Plan::Handler;
    }
    // A bit offset in a register may select a bit beyond the operand.
    if matches!(i.mnemonic(), Bt | Bts | Btr | Btc)
        && i.op0_kind() == OpKind::Memory
        && i.op1_kind() == OpKind::Register
    {
        return if op.size == 8 && op.asize == 8 { Plan::BitInMemory } else { Plan::Handler };
    }
    Plan::Native
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
    use Mnemonic::*;
    Some(match i.mnemonic() {
        Swapgs if key.access != AccessMode::User => Kind::new(Family::Swapgs, 0),
        Wrmsr if key.access != AccessMode::User => Kind::new(Family::Wrmsr, SPEC_CTRL),
        Movsb | Movsw | Movsd | Movsq | Stosb | Stosw | Stosd | Stosq if i.has_rep_prefix() => {
            Kind::new(Family::Instruction, Class::StringStep as u32)
        }
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
    match i.mnemonic() {
        Mnemonic::Mov | Mnemonic::Pop => i.op0_kind() == OpKind::Register && i.op0_register().is_segment_register(),
        mnemonic => matches!(mnemonic, Mnemonic::Lds | Mnemonic::Les | Mnemonic::Lss | Mnemonic::Lfs | Mnemonic::Lgs),
    }
}

/// Returns the plans for the instructions of a block.
pub fn plans(instructions: &[Instruction], ops: &[Op], narrow: bool) -> Vec<Plan> {
    let mut plans: Vec<Plan> = instructions.iter().zip(ops).map(|(i, op)| plan_one(i, op, narrow)).collect();
    // After it the segments may not be those for which 32-bit code is translated.
    if narrow && let Some(loaded) = instructions.iter().position(loads_segment) {
        plans[loaded..].fill(Plan::Handler);
    }
    for n in 0..plans.len() {
        if let Plan::Divide { .. } = plans[n] {
            let dead = die(ARITHMETIC, &instructions[n + 1..], &plans[n + 1..]);
            plans[n] = Plan::Divide { keeps_flags: !dead };
        }
        if matches!(instructions[n].mnemonic(), Mnemonic::Bsf | Mnemonic::Bsr) && plans[n] == Plan::Native {
            plans[n] = if super::fix::can_fix(&instructions[n], &ops[n]) { Plan::Fixed } else { Plan::Handler };
        }
        if plans[n] == Plan::Native {
            let undefined = undefined_flags(&instructions[n]);
            if undefined != 0 && !die(undefined, &instructions[n + 1..], &plans[n + 1..]) {
                plans[n] = if super::fix::can_fix(&instructions[n], &ops[n]) { Plan::Fixed } else { Plan::Handler };
            }
        }
    }
    plans
}

/// Returns true if flags are overwritten before any use: by an instruction that reads them, or at a possible exit from
/// the block.
fn die(mut flags: u32, instructions: &[Instruction], plans: &[Plan]) -> bool {
    for (i, plan) in instructions.iter().zip(plans) {
        let memory = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory);
        match plan {
            Plan::Nothing | Plan::Lea => continue,
            Plan::Native if !memory => {}
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
