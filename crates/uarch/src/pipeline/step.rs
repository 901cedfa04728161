//! What the pipeline needs to know of an instruction.

use crate::core::forms::has_memory;
use crate::core::parameters::{Operands, Renames};
use crate::core::{CoreTable, FormId, NO_FORM};
use iced_x86::{
    Code, FlowControl, Instruction, InstructionInfoFactory, MemorySize, Mnemonic, OpAccess, OpKind, Register,
    RflagsBits,
};

/// Number of a register of the pipeline's model: general registers, carry, other flags, vectors, masks, x87 and MMX.
pub(super) type Reg = u8;

pub(super) const CARRY: Reg = 16;
pub(super) const FLAGS: Reg = 17;
pub(super) const VECTORS: Reg = 18;
pub(super) const MASKS: Reg = 50;
const X87: Reg = 58;
/// First of the places in memory that are followed like registers.
pub(super) const PLACES: Reg = 59;
/// Registers and places.
pub(super) const REGS: usize = 67;
pub(super) const RSP: Reg = 4;

/// A small list of registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Regs {
    list: [Reg; 8],
    len: u8,
}

impl Regs {
    fn push(&mut self, reg: Reg) {
        if !self.contains(reg) && usize::from(self.len) < self.list.len() {
            self.list[usize::from(self.len)] = reg;
            self.len += 1;
        }
    }

    pub(super) fn contains(&self, reg: Reg) -> bool {
        self.as_slice().contains(&reg)
    }

    pub(super) fn as_slice(&self) -> &[Reg] {
        &self.list[..usize::from(self.len)]
    }
}

/// A place in memory: an address whose registers do not change names the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    /// Base register, or `Reg::MAX` for none.
    pub base: Reg,
    /// Displacement.
    pub displacement: i64,
}

/// How an instruction ends a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// It does not.
    #[default]
    None,
    /// A conditional branch.
    Conditional,
    /// A jump, call or return.
    Taken,
}

/// What the pipeline needs to know of an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub(super) form: FormId,
    /// Ticks if no table has the form.
    pub(super) flat: u32,
    /// Registers that the result depends on.
    pub(super) reads: Regs,
    /// Registers that the address depends on.
    pub(super) addresses: Regs,
    pub(super) writes: Regs,
    pub(super) load: Option<u8>,
    pub(super) store: Option<u8>,
    /// The place of the load, and the place of the store.
    pub(super) from: Option<Place>,
    pub(super) to: Option<Place>,
    /// Bytes of the access.
    pub(super) bytes: u8,
    /// Bytes by which the instruction moves the stack pointer, and moves it before its access.
    pub(super) stack: i32,
    /// The stack engine moves the stack pointer, so that no instruction waits for that.
    pub(super) engine: bool,
    /// The stack pointer is an operand that the instruction changes, so that the stack engine's offset is added to it first. LEA
    /// takes the offset into its own sum.
    pub(super) adds_to_stack: bool,
    pub(super) index: bool,
    pub(super) scaled: bool,
    /// The load is one that renaming can do.
    pub(super) renamed: bool,
    /// The load is one for which the core may predict the store that it needs.
    pub(super) predicted: bool,
    /// The instruction loads, and does nothing else.
    pub(super) moves_from_memory: bool,
    /// The instruction stores, and does nothing else.
    pub(super) moves_to_memory: bool,
    /// Ticks of the front end for a taken branch.
    pub(super) taken: u32,
    /// The same if the branch ends a run that begins behind a direct call or a return.
    pub(super) taken_when_called: u32,
    /// Parts of an entry of the cache of decoded uops.
    pub(super) entries: u32,
    /// The greatest latency is that from registers of the other class.
    pub(super) crosses: bool,
    pub(super) end: End,
    /// A comparison that may be one with the branch behind it.
    pub(super) fuses: bool,
    /// The result does not depend on the operands.
    pub(super) idiom: bool,
    /// A move that needs no execution.
    pub(super) moves: bool,
    /// A slot more than the form says.
    pub(super) unlaminated: bool,
    /// The least latency is that of the results that code mostly uses: the low half of a product.
    pub(super) low: bool,
    /// Waits for all in front of it.
    pub(super) fence: bool,
    /// An operand is one of the bytes AH, BH, CH and DH.
    pub(super) high_byte: bool,
    /// Ticks of the front end beside those of its width: a prefix changes the instruction's length.
    pub(super) length_changing: u32,
    /// Which unit that is no port a serial form occupies.
    pub(super) unit: u8,
    pub(super) repeats: bool,
    /// The lowest byte of the address.
    pub(super) at: u8,
    /// Length in bytes.
    pub(super) length: u8,
    /// Bytes from the next instruction to the target of a direct branch.
    pub(super) distance: Option<i64>,
}

impl Step {
    /// Returns false if the core's table lacks the instruction's form, so that it takes the price of its class.
    pub fn known(&self) -> bool {
        self.form != NO_FORM
    }

    /// Returns the step of an instruction whose price the caller knows: the one that it passed to [`CoreTable::step`].
    pub fn priced_by_caller(self) -> Self {
        Self { form: NO_FORM, ..self }
    }

    /// Returns how the instruction ends a run.
    pub fn end(&self) -> End {
        self.end
    }
}

impl CoreTable {
    /// Derives what the pipeline needs to know of an instruction. `flat` is its price in ticks if no table has its form.
    pub fn step(&self, info: &mut InstructionInfoFactory, i: &Instruction, flat: u32) -> Step {
        let form = self.form(i);
        let end = match i.flow_control() {
            FlowControl::ConditionalBranch => End::Conditional,
            FlowControl::Next | FlowControl::Exception | FlowControl::Interrupt | FlowControl::XbeginXabortXend => {
                End::None
            }
            _ => End::Taken,
        };
        let mut step = Step {
            form,
            flat,
            reads: Regs::default(),
            addresses: Regs::default(),
            writes: Regs::default(),
            load: None,
            store: None,
            from: None,
            to: None,
            bytes: 0,
            stack: stack(i),
            engine: false,
            adds_to_stack: false,
            index: i.memory_index() != Register::None,
            scaled: i.memory_index() != Register::None && i.memory_index_scale() > 1,
            renamed: false,
            predicted: false,
            moves_from_memory: false,
            moves_to_memory: false,
            taken: self.taken(i.flow_control(), false),
            taken_when_called: self.taken(i.flow_control(), true),
            entries: self.entries(i),
            crosses: false,
            end,
            fuses: self.fuses(i),
            idiom: idiom(i),
            moves: false,
            unlaminated: false,
            low: matches!(i.mnemonic(), Mnemonic::Mul | Mnemonic::Imul | Mnemonic::Mulx),
            fence: matches!(
                i.mnemonic(),
                Mnemonic::Lfence | Mnemonic::Mfence | Mnemonic::Serialize | Mnemonic::Cpuid | Mnemonic::Rdtscp
            ),
            high_byte: self.parameters.memory.high_byte > 0 && (0..i.op_count()).any(|n| is_high_byte(i, n)),
            length_changing: if changes_length(i) { self.parameters.front.length_changing * 1000 } else { 0 },
            unit: crate::core::SERIAL as u8,
            repeats: i.is_string_instruction() && (i.has_rep_prefix() || i.has_repne_prefix()),
            at: i.ip() as u8,
            length: i.len() as u8,
            distance: matches!(i.op0_kind(), OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64)
                .then(|| i.near_branch_target().wrapping_sub(i.next_ip()) as i64),
        };
        step.unit = match i.mnemonic() {
            Mnemonic::Div | Mnemonic::Idiv => crate::core::DIVIDER as u8,
            mnemonic if is_vector_division(mnemonic) => crate::core::VECTOR_DIVIDER as u8,
            _ => step.unit,
        };
        self.operands(info, i, &mut step);
        step
    }

    /// Returns the form whose values an instruction takes: its own, or that of the addition which it is to renaming.
    fn form(&self, i: &Instruction) -> FormId {
        let fusion = &self.parameters.fusion;
        let stack_move =
            matches!(i.code(), Code::Mov_r64_rm64 | Code::Mov_rm64_r64) && i.op1_register() == Register::RSP;
        if is_move(i) && stack_move && !fusion.stack_moves {
            return self.forms.addition();
        }
        let itself = is_move(i) && number(i.op0_register()) == number(i.op1_register());
        if itself && !fusion.self_moves && i.op0_register().is_gpr() {
            return self.forms.executed_addition();
        }
        match added(i).filter(|_| fusion.added_immediate > 0) {
            Some(by) if (-i64::from(fusion.added_immediate)..i64::from(fusion.added_immediate)).contains(&by) => {
                self.forms.addition()
            }
            Some(_) => self.forms.executed_addition(),
            None => self.forms.of(i),
        }
    }

    /// Returns true if the table has how long an instruction occupies the core, as a measurement and not as what its ports allow.
    pub fn is_measured_alone(&self, step: &Step) -> bool {
        self.forms.values(step.form).is_some_and(|values| values.serial)
    }

    /// Returns the ticks of the front end for a taken branch, which ends a run behind a direct call or return if that was `called`.
    fn taken(&self, flow: FlowControl, called: bool) -> u32 {
        let front = &self.parameters.front;
        let called = if called { front.called } else { 0.0 };
        let cycles = match flow {
            FlowControl::Call => front.call.max(called),
            // The run to which it leads is priced as any other, so that what the return takes longer there is added here.
            FlowControl::IndirectCall => front.call.max(called) + (front.called - front.ret).max(0.0),
            FlowControl::Return => front.ret.max(called),
            _ => front.taken,
        };
        (cycles * 1000.0) as u32
    }

    /// Returns the part of an entry of the cache of decoded uops that an instruction takes, in thousandths.
    fn entries(&self, i: &Instruction) -> u32 {
        let front = &self.parameters.front;
        let wide = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Immediate64);
        1000u32.checked_div(if wide { front.entry_wide } else { front.entry }).unwrap_or(0)
    }

    fn fuses(&self, i: &Instruction) -> bool {
        let fusion = &self.parameters.fusion;
        let name = match i.mnemonic() {
            Mnemonic::Cmp => "cmp",
            Mnemonic::Test => "test",
            Mnemonic::Add => "add",
            Mnemonic::Sub => "sub",
            Mnemonic::And => "and",
            Mnemonic::Or => "or",
            Mnemonic::Xor => "xor",
            Mnemonic::Inc => "inc",
            Mnemonic::Dec => "dec",
            _ => return false,
        };
        if !fusion.with_branch.iter().any(|listed| listed == name)
            || i.op0_kind() == OpKind::Memory && !matches!(name, "cmp" | "test")
        {
            return false;
        }
        let memory = has_memory(i);
        let immediate = i.op_count() == 2 && !matches!(i.op1_kind(), OpKind::Register | OpKind::Memory);
        !memory || fusion.memory && !i.is_ip_rel_memory_operand() && (!immediate || fusion.memory_immediate)
    }

    fn operands(&self, info: &mut InstructionInfoFactory, i: &Instruction, step: &mut Step) {
        let used = info.info(i);
        let stack_engine =
            i.stack_pointer_increment() != 0 && !matches!(i.mnemonic(), Mnemonic::Leave | Mnemonic::Enter);
        step.engine = stack_engine && !names(i, Register::RSP);
        let memory = has_memory(i);
        let is_lea = i.mnemonic() == Mnemonic::Lea;
        let carry_idiom = self.parameters.fusion.carry_idiom
            && i.mnemonic() == Mnemonic::Sbb
            && i.op1_kind() == OpKind::Register
            && i.op0_register() == i.op1_register();
        for register in used.used_registers() {
            let Some(reg) = number(register.register()) else { continue };
            if reg == RSP && step.engine {
                continue;
            }
            let access = register.access();
            let written =
                matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite);
            let mut read = matches!(
                access,
                OpAccess::Read
                    | OpAccess::CondRead
                    | OpAccess::ReadWrite
                    | OpAccess::ReadCondWrite
                    | OpAccess::CondWrite
            );
            // A write of 8 or 16 bits keeps the rest of the register.
            read |= written && reg < 16 && register.register().size() < 4;
            if memory
                && !is_lea
                && read
                && is_address(i, register.register())
                && !written
                && !names(i, register.register())
            {
                step.addresses.push(reg);
                continue;
            }
            if memory && !is_lea && is_address(i, register.register()) {
                step.addresses.push(reg);
            }
            if read && !step.idiom && !carry_idiom {
                step.reads.push(reg);
            }
            if written {
                step.writes.push(reg);
            }
        }
        let flags = |bits: u32| {
            [
                (CARRY, bits & RflagsBits::CF != 0),
                (
                    FLAGS,
                    bits & (RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::PF) != 0,
                ),
            ]
        };
        for (reg, read) in flags(i.rflags_read()) {
            if read {
                step.reads.push(reg);
            }
        }
        for (reg, written) in flags(i.rflags_modified()) {
            if written {
                step.writes.push(reg);
            }
        }
        for access in used.used_memory() {
            let (read, write) = match access.access() {
                OpAccess::Read | OpAccess::CondRead => (true, false),
                OpAccess::Write | OpAccess::CondWrite => (false, true),
                OpAccess::ReadWrite | OpAccess::ReadCondWrite => (true, true),
                _ => continue,
            };
            let width = width(access.memory_size(), i);
            let size = access.memory_size().size();
            let base = number(access.base().full_register());
            // A place of more bytes than a register has is none that anything forwards to.
            let place = (access.index() == Register::None && !step.repeats && (1..=64).contains(&size))
                .then(|| Place { base: base.unwrap_or(Reg::MAX), displacement: access.displacement() as i64 });
            if place.is_some() {
                step.bytes = size as u8;
            }
            if read {
                step.load = Some(width);
                step.from = place;
            }
            if write {
                step.store = Some(width);
                step.to = place;
            }
        }
        step.adds_to_stack = !is_lea && step.reads.contains(RSP) && step.writes.contains(RSP);
        let moves = matches!(
            i.mnemonic(),
            Mnemonic::Mov | Mnemonic::Movzx | Mnemonic::Pop | Mnemonic::Ret | Mnemonic::Retf | Mnemonic::Leave
        );
        step.moves_from_memory = moves;
        step.moves_to_memory = step.store.is_some() && step.load.is_none() && is_store(i.mnemonic());
        let renames_operand = match self.parameters.memory.renames_operands {
            Operands::Modifies => step.store.is_some(),
            Operands::All => step.store.is_some() || !matches!(i.mnemonic(), Mnemonic::Movzx | Mnemonic::Movsx),
            Operands::Arithmetic => is_arithmetic(i, step),
        };
        let narrow = self.parameters.memory.renames_operands == Operands::Arithmetic && step.bytes == 2;
        let whole = step.load == Some(0)
            && step.bytes >= self.parameters.memory.renamed_bytes
            && !narrow
            && (renames_operand || matches!(i.mnemonic(), Mnemonic::Mov | Mnemonic::Pop))
            && !i.has_lock_prefix()
            && i.mnemonic() != Mnemonic::Xchg;
        let base = step.from.map(|place| place.base).filter(|_| whole);
        (step.renamed, step.predicted) = match self.parameters.memory.renames {
            Renames::None => (false, false),
            Renames::Stack => (base == Some(RSP), base.is_some_and(|base| base != RSP)),
            Renames::All => (base.is_some_and(|base| base < CARRY), false),
        };
        let classes = |regs: Regs, vectors: bool| {
            regs.as_slice().iter().any(|reg| if vectors { (VECTORS..MASKS).contains(reg) } else { *reg < CARRY })
        };
        step.crosses = classes(step.reads, false) && classes(step.reads, true);
        if let Some(values) = self.forms.values(step.form) {
            step.moves = (is_move(i) || i.mnemonic() == Mnemonic::Xchg)
                && values.uops.is_empty()
                && step.load.is_none()
                && step.store.is_none();
            step.unlaminated =
                self.parameters.fusion.unlaminated && step.index && i.op_count() >= 3 && step.load.is_some();
        }
    }
}

/// Returns what an instruction adds to a register of 64 bits, if that is an immediate.
fn added(i: &Instruction) -> Option<i64> {
    let register = |n| i.op_kind(n) == OpKind::Register && i.op_register(n).is_gpr64();
    match i.mnemonic() {
        Mnemonic::Inc if register(0) => Some(1),
        Mnemonic::Dec if register(0) => Some(-1),
        Mnemonic::Add if register(0) && is_immediate(i, 1) => Some(i.immediate(1) as i64),
        Mnemonic::Sub if register(0) && is_immediate(i, 1) => Some((i.immediate(1) as i64).wrapping_neg()),
        Mnemonic::Lea if register(0) && i.memory_base().is_gpr64() && i.memory_index() == Register::None => {
            Some(i.memory_displacement64() as i64)
        }
        _ => None,
    }
}

fn is_immediate(i: &Instruction, n: u32) -> bool {
    matches!(i.op_kind(n), OpKind::Immediate8to64 | OpKind::Immediate32to64)
}

/// Returns true for arithmetic that [`Operands::Arithmetic`] renames.
fn is_arithmetic(i: &Instruction, step: &Step) -> bool {
    use Mnemonic::{
        Add, And, Btc, Btr, Bts, Dec, Imul, Inc, Movzx, Neg, Not, Or, Rol, Ror, Sal, Sar, Shl, Shr, Sub, Xor,
    };
    match i.mnemonic() {
        Movzx => step.bytes == 1,
        Add | And | Imul | Or | Sub | Xor if step.store.is_none() => i.op0_kind() == OpKind::Register,
        Add | And | Btc | Btr | Bts | Dec | Inc | Neg | Not | Or | Rol | Ror | Sal | Sar | Shl | Shr | Sub | Xor => {
            step.store.is_some() && (0..i.op_count()).all(|n| i.op_kind(n) != OpKind::Register)
        }
        _ => false,
    }
}

/// Returns the bytes by which an instruction moves the stack pointer, if that is known.
fn stack(i: &Instruction) -> i32 {
    let by = match (
        i.mnemonic(),
        i.op_count() == 2 && i.op0_kind() == OpKind::Register && i.op0_register() == Register::RSP,
    ) {
        (Mnemonic::Add, true) => 1,
        (Mnemonic::Sub, true) => -1,
        _ => return i.stack_pointer_increment(),
    };
    match i.op1_kind() {
        OpKind::Immediate8to64 | OpKind::Immediate32to64 => (i.immediate(1) as i32).wrapping_mul(by),
        _ => 0,
    }
}

/// Returns true if a register is an operand by name, not only part of an address.
fn names(i: &Instruction, register: Register) -> bool {
    let full = register.full_register();
    (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Register && i.op_register(n).full_register() == full)
}

/// Returns true if the prefix for operands of 16 bits changes the length of the instruction's immediate. RET and ENTER have immediates of 16 bits
/// without that prefix.
fn changes_length(i: &Instruction) -> bool {
    (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Immediate16) && i.code().op_code().operand_size() == 16
}

fn is_high_byte(i: &Instruction, n: u32) -> bool {
    i.op_kind(n) == OpKind::Register
        && matches!(i.op_register(n), Register::AH | Register::BH | Register::CH | Register::DH)
}

fn is_address(i: &Instruction, register: Register) -> bool {
    let full = register.full_register();
    full == i.memory_base().full_register() || full == i.memory_index().full_register()
}

fn number(register: Register) -> Option<Reg> {
    let full = register.full_register();
    if full.is_gpr64() {
        Some(full.number() as Reg)
    } else if full.is_vector_register() {
        Some(VECTORS + full.number() as Reg)
    } else if full.is_k() {
        Some(MASKS + full.number() as Reg)
    } else if full.is_st() || full.is_mm() {
        Some(X87)
    } else {
        None
    }
}

fn width(size: MemorySize, i: &Instruction) -> u8 {
    let vector = (0..i.op_count()).any(|n| {
        i.op_kind(n) == OpKind::Register && (i.op_register(n).is_vector_register() || i.op_register(n).is_mm())
    });
    match size.size() {
        64 => 3,
        32 => 2,
        16 => 1,
        _ => u8::from(vector),
    }
}

fn is_vector_division(mnemonic: Mnemonic) -> bool {
    use Mnemonic::{
        Divpd, Divps, Divsd, Divss, Sqrtpd, Sqrtps, Sqrtsd, Sqrtss, Vdivpd, Vdivps, Vdivsd, Vdivss, Vsqrtpd, Vsqrtps,
        Vsqrtsd, Vsqrtss,
    };
    matches!(
        mnemonic,
        Divpd
            | Divps
            | Divsd
            | Divss
            | Sqrtpd
            | Sqrtps
            | Sqrtsd
            | Sqrtss
            | Vdivpd
            | Vdivps
            | Vdivsd
            | Vdivss
            | Vsqrtpd
            | Vsqrtps
            | Vsqrtsd
            | Vsqrtss
    )
}

/// Returns true for moves that store an operand as it is.
fn is_store(mnemonic: Mnemonic) -> bool {
    use Mnemonic::{
        Mov, Movapd, Movaps, Movd, Movdqa, Movdqu, Movlpd, Movlps, Movq, Movsd, Movss, Movupd, Movups, Vmovapd,
        Vmovaps, Vmovd, Vmovdqa, Vmovdqa32, Vmovdqa64, Vmovdqu, Vmovdqu8, Vmovdqu16, Vmovdqu32, Vmovdqu64, Vmovlpd,
        Vmovlps, Vmovq, Vmovsd, Vmovss, Vmovupd, Vmovups,
    };
    matches!(
        mnemonic,
        Mov | Movapd
            | Movaps
            | Movd
            | Movdqa
            | Movdqu
            | Movlpd
            | Movlps
            | Movq
            | Movsd
            | Movss
            | Movupd
            | Movups
            | Vmovapd
            | Vmovaps
            | Vmovd
            | Vmovdqa
            | Vmovdqa32
            | Vmovdqa64
            | Vmovdqu
            | Vmovdqu8
            | Vmovdqu16
            | Vmovdqu32
            | Vmovdqu64
            | Vmovlpd
            | Vmovlps
            | Vmovq
            | Vmovsd
            | Vmovss
            | Vmovupd
            | Vmovups
    )
}

/// Returns true for a move between registers that renaming can do.
fn is_move(i: &Instruction) -> bool {
    use Mnemonic::{
        Mov, Movapd, Movaps, Movdqa, Movdqu, Movsxd, Movupd, Movups, Movzx, Vmovapd, Vmovaps, Vmovdqa, Vmovdqa32,
        Vmovdqa64, Vmovdqu, Vmovdqu8, Vmovdqu16, Vmovdqu32, Vmovdqu64, Vmovupd, Vmovups,
    };
    matches!(
        i.mnemonic(),
        Mov | Movapd
            | Movaps
            | Movdqa
            | Movdqu
            | Movsxd
            | Movupd
            | Movups
            | Movzx
            | Vmovapd
            | Vmovaps
            | Vmovdqa
            | Vmovdqa32
            | Vmovdqa64
            | Vmovdqu
            | Vmovdqu8
            | Vmovdqu16
            | Vmovdqu32
            | Vmovdqu64
            | Vmovupd
            | Vmovups
    ) && i.op_count() == 2
        && i.op0_kind() == OpKind::Register
        && i.op1_kind() == OpKind::Register
}

/// Returns true for an instruction whose result is zero whatever its operands are, so that renaming does its work.
fn idiom(i: &Instruction) -> bool {
    use Mnemonic::{
        Psubb, Psubd, Psubq, Psubw, Pxor, Sub, Vpsubb, Vpsubd, Vpsubq, Vpsubw, Vpxor, Vpxord, Vpxorq, Vxorpd, Vxorps,
        Xor, Xorpd, Xorps,
    };
    let last = i.op_count().wrapping_sub(1);
    matches!(
        i.mnemonic(),
        Pxor | Psubb
            | Psubd
            | Psubq
            | Psubw
            | Sub
            | Vpsubb
            | Vpsubd
            | Vpsubq
            | Vpsubw
            | Vpxor
            | Vpxord
            | Vpxorq
            | Vxorpd
            | Vxorps
            | Xor
            | Xorpd
            | Xorps
    ) && i.op_count() >= 2
        && i.op_kind(last) == OpKind::Register
        && i.op_kind(last - 1) == OpKind::Register
        && i.op_register(last) == i.op_register(last - 1)
        && i.op_register(last).size() >= 4
}
