//! Descriptor-table registers, and instructions that check descriptors.

use crate::arch::TableRegister;
use crate::exec::descriptor::{Descriptor, code_of, is_null, null_segment};
use crate::exec::{get0, get1, set0};
use crate::fault::{Exec, Flow};
use crate::op::{Handler, Op};
use crate::row::Row;
use crate::state::Cpu;
use iced_x86::{Instruction, Mnemonic::*, OpKind};
use ledger::{Class, Family, Kind};
use x86::vmx::reason;
use x86::{descriptor, vector};

/// Instruction table rows of descriptor-table instructions.
pub static ROWS: &[Row] = &[
    Row::end(Lgdt, Class::System, |_, _| Some(load_table::<true>)).of_system(),
    Row::end(Lidt, Class::System, |_, _| Some(load_table::<false>)).of_system(),
    Row::end(Sgdt, Class::System, |_, _| Some(store_table::<true>)),
    Row::end(Sidt, Class::System, |_, _| Some(store_table::<false>)),
    Row::end(Lldt, Class::System, |i, op| selector(i, op, lldt)).of_system(),
    Row::end(Ltr, Class::System, |i, op| selector(i, op, ltr)).of_system(),
    Row::end(Sldt, Class::System, |i, op| selector(i, op, sldt)),
    Row::end(Str, Class::System, |i, op| selector(i, op, str_)),
    Row::new(Verr, Class::Microcode, |i, op| selector(i, op, verr)),
    // VERW ends its block, because the clearing of the processor's buffers takes additional time.
    Row::end(Verw, Class::Microcode, |i, op| selector(i, op, verw)),
    Row::new(Lar, Class::Microcode, |i, op| query(i, op, lar)),
    Row::new(Lsl, Class::Microcode, |i, op| query(i, op, lsl)),
    Row::new(Arpl, Class::Microcode, |i, op| selector(i, op, arpl)),
];

fn selector(i: &Instruction, op: &mut Op, handler: Handler) -> Option<Handler> {
    // The forms differ only in operand 0 being memory or not.
    op.imm = u64::from(i.op0_kind() == OpKind::Memory);
    Some(handler)
}

fn query(i: &Instruction, op: &mut Op, handler: Handler) -> Option<Handler> {
    op.imm = u64::from(i.op1_kind() == OpKind::Memory);
    Some(handler)
}

/// Reads the 16-bit operand 0.
fn operand(cpu: &mut Cpu, op: &Op) -> Exec<u16> {
    if op.imm != 0 { cpu.load::<u16>(op) } else { Ok(cpu.get::<u16>(op.r0)) }
}

impl Cpu {
    fn charge_table(&mut self, load: bool) {
        self.charge(Kind::new(Family::DescriptorTable, u32::from(load)), 1);
    }

    /// Charges the clearing of buffers by VERW with a memory operand on processors with MD_CLEAR (Intel, "Deep dive:
    /// analysis of microarchitectural data sampling"). The profile knows these processors; the price is added to the
    /// class's.
    fn charge_buffers(&mut self) {
        self.charge_mitigation(Kind::new(Family::DescriptorTable, 2));
    }
}

fn load_table<const GLOBAL: bool>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.privileged()?;
    cpu.table_exit(reason::GDTR_IDTR, op, if GLOBAL { 2 } else { 3 })?;
    let mut bytes = [0u8; 10];
    let width = if cpu.engine.long64 { 8 } else { 4 };
    cpu.load_bytes(op, &mut bytes[..2 + width])?;
    let limit = u16::from_le_bytes([bytes[0], bytes[1]]);
    let mut base = [0u8; 8];
    base.copy_from_slice(&bytes[2..10]);
    let mut base = u64::from_le_bytes(base);
    if !cpu.engine.long64 {
        base &= if operand_16(op) { 0x00ff_ffff } else { 0xffff_ffff };
    } else if !cpu.canonical_base(base) {
        return Err(cpu.gp(0));
    }
    cpu.charge_table(true);
    let register = TableRegister { base, limit };
    if GLOBAL {
        cpu.arch.gdtr = register;
    } else {
        cpu.arch.idtr = register;
    }
    Ok(Flow::End)
}

/// Returns true with a 16-bit operand size, for which LGDT and LIDT load 24 bits of the base.
pub(crate) fn operand_16(op: &Op) -> bool {
    use iced_x86::Code;
    [Code::Lgdt_m1632_16, Code::Lidt_m1632_16, Code::Sgdt_m1632_16, Code::Sidt_m1632_16]
        .iter()
        .any(|c| *c as u16 == op.form.code())
}

fn store_table<const GLOBAL: bool>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.umip()?;
    cpu.table_exit(reason::GDTR_IDTR, op, if GLOBAL { 0 } else { 1 })?;
    let register = if GLOBAL { cpu.arch.gdtr } else { cpu.arch.idtr };
    let mut bytes = [0u8; 10];
    bytes[..2].copy_from_slice(&register.limit.to_le_bytes());
    bytes[2..].copy_from_slice(&register.base.to_le_bytes());
    let width = if cpu.engine.long64 { 8 } else { 4 };
    cpu.store_bytes(op, &bytes[..2 + width])?;
    cpu.charge_table(false);
    Ok(Flow::End)
}

fn lldt(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.only_protected()?;
    cpu.privileged()?;
    cpu.table_exit(reason::LDTR_TR, op, 2)?;
    let selector = operand(cpu, op)?;
    if is_null(selector) {
        cpu.charge_table(true);
        cpu.arch.ldtr = null_segment(selector, 0);
        return Ok(Flow::End);
    }
    let d = system_descriptor(cpu, selector, |kind| kind == descriptor::LDT)?;
    cpu.charge_table(true);
    cpu.arch.ldtr = d.segment(selector);
    Ok(Flow::End)
}

fn ltr(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.only_protected()?;
    cpu.privileged()?;
    cpu.table_exit(reason::LDTR_TR, op, 3)?;
    let selector = operand(cpu, op)?;
    if is_null(selector) {
        return Err(cpu.gp(0));
    }
    let long = cpu.long_mode();
    let available = |kind| kind == descriptor::TSS32 || (!long && kind == descriptor::TSS16);
    let d = if long {
        system_descriptor(cpu, selector, |kind| kind == descriptor::TSS32)?
    } else {
        system_descriptor(cpu, selector, available)?
    };
    cpu.set_busy(d.address, true)?;
    cpu.charge_table(true);
    cpu.arch.tr = d.segment(selector);
    cpu.arch.tr.rights |= u32::from(descriptor::BUSY);
    Ok(Flow::End)
}

/// Reads an LDT or TSS descriptor from the GDT for LLDT or LTR.
fn system_descriptor(cpu: &mut Cpu, selector: u16, good: impl Fn(u8) -> bool) -> Exec<Descriptor> {
    let code = code_of(selector);
    if selector & 4 != 0 {
        return Err(cpu.gp(code));
    }
    let mut d = cpu.read_descriptor(selector, vector::GP)?;
    if !d.is_system() || !good(d.kind()) {
        return Err(cpu.gp(code));
    }
    if !d.present() {
        return Err(cpu.raise_code(vector::NP, code));
    }
    if cpu.long_mode() {
        cpu.read_high(&mut d, vector::GP)?;
        if !cpu.canonical_base(d.base()) {
            return Err(cpu.gp(code));
        }
    }
    Ok(d)
}

fn store_selector(cpu: &mut Cpu, op: &Op, value: u16) -> Exec<Flow> {
    if op.imm != 0 {
        cpu.store::<u16>(op, value)?;
    } else {
        cpu.set_sized(op.r0, op.size, u64::from(value));
    }
    cpu.charge_table(false);
    Ok(Flow::End)
}

fn sldt(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.only_protected()?;
    cpu.umip()?;
    cpu.table_exit(reason::LDTR_TR, op, 0)?;
    store_selector(cpu, op, cpu.arch.ldtr.selector)
}

fn str_(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.only_protected()?;
    cpu.umip()?;
    cpu.table_exit(reason::LDTR_TR, op, 1)?;
    store_selector(cpu, op, cpu.arch.tr.selector)
}

/// Reads a descriptor without a fault for an invalid selector: returns `None` for a null selector or one beyond its
/// table.
fn probe(cpu: &mut Cpu, selector: u16) -> Exec<Option<Descriptor>> {
    if is_null(selector) || cpu.descriptor_address(selector, 8).is_none() {
        return Ok(None);
    }
    cpu.read_descriptor(selector, vector::GP).map(Some)
}

/// Returns true if CPL and RPL allow access to a descriptor's segment.
fn reachable(cpu: &Cpu, d: &Descriptor) -> bool {
    d.conforming() || (d.dpl() >= cpu.arch.cpl && d.dpl() >= d.selector as u8 & 3)
}

fn verr(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    verify(cpu, op, Descriptor::readable)?;
    Ok(Flow::Next)
}

fn verw(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    verify(cpu, op, Descriptor::writable)?;
    if op.imm != 0 {
        cpu.charge_buffers();
    }
    Ok(Flow::End)
}

fn verify(cpu: &mut Cpu, op: &Op, allows: fn(&Descriptor) -> bool) -> Exec<()> {
    cpu.only_protected()?;
    let selector = operand(cpu, op)?;
    let good = probe(cpu, selector)?.is_some_and(|d| !d.is_system() && reachable(cpu, &d) && allows(&d));
    cpu.arch.lazy.set_zf(good);
    Ok(())
}

/// Reads the source selector of LAR and LSL.
fn source(cpu: &mut Cpu, op: &Op) -> Exec<u16> {
    if op.imm != 0 { cpu.load::<u16>(op) } else { Ok(get1::<u16>(cpu, op)) }
}

fn lar(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.only_protected()?;
    let selector = source(cpu, op)?;
    let long = cpu.long_mode();
    use descriptor::*;
    let good = match probe(cpu, selector)? {
        Some(d) if reachable(cpu, &d) => {
            let known = match d.kind() & !if matches!(d.kind(), 3 | 11) { BUSY } else { 0 } {
                _ if !d.is_system() => true,
                LDT | TSS32 | CALL_GATE32 => true,
                TSS16 | CALL_GATE16 | TASK_GATE => !long,
                _ => false,
            };
            known.then_some(d)
        }
        _ => None,
    };
    cpu.arch.lazy.set_zf(good.is_some());
    if let Some(d) = good {
        cpu.set_sized(op.r0, op.size, d.raw >> 32 & 0x00ff_ff00);
    }
    Ok(Flow::Next)
}

fn lsl(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.only_protected()?;
    let selector = source(cpu, op)?;
    let long = cpu.long_mode();
    use descriptor::*;
    let good = match probe(cpu, selector)? {
        Some(d) if reachable(cpu, &d) => {
            let known = match d.kind() & !if matches!(d.kind(), 3 | 11) { BUSY } else { 0 } {
                _ if !d.is_system() => true,
                LDT | TSS32 => true,
                TSS16 => !long,
                _ => false,
            };
            known.then_some(d)
        }
        _ => None,
    };
    cpu.arch.lazy.set_zf(good.is_some());
    if let Some(d) = good {
        cpu.set_sized(op.r0, op.size, u64::from(d.limit()));
    }
    Ok(Flow::Next)
}

fn arpl(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.only_protected()?;
    let rpl = get1::<u16>(cpu, op) & 3;
    if op.imm != 0 {
        let mut lower = false;
        cpu.modify::<u16>(op, |_, old| {
            lower = old & 3 < rpl;
            if lower { old & !3 | rpl } else { old }
        })?;
        cpu.arch.lazy.set_zf(lower);
        return Ok(Flow::Next);
    }
    let old = get0::<u16>(cpu, op);
    let lower = old & 3 < rpl;
    cpu.arch.lazy.set_zf(lower);
    if lower {
        set0(cpu, op, old & !3 | rpl);
    }
    Ok(Flow::Next)
}
