//! Loads and stores of segment registers.

use crate::arch::{Segment, attention};
use crate::exec::descriptor::{code_of, is_null, null_segment};
use crate::exec::get1;
use crate::exec::stack_access::{peek, push, set_stack_pointer};
use crate::fault::{Exec, Flow};
use crate::op::{Handler, Op};
use crate::row::{Row, Treatment};
use crate::state::Cpu;
use iced_x86::{Code, Instruction, Mnemonic::*, OpKind, Register};
use ledger::Class;
use x86::{reg, rights, seg, vector};

/// Instruction table rows of far-pointer loads.
pub static ROWS: &[Row] = &[
    Row::new(Lds, Class::Microcode, far_pointer::<{ seg::DS }>).treated(Treatment::LoadSegment),
    Row::new(Les, Class::Microcode, far_pointer::<{ seg::ES }>).treated(Treatment::LoadSegment),
    Row::end(Lss, Class::Microcode, far_pointer::<{ seg::SS }>).treated(Treatment::LoadSegment),
    Row::new(Lfs, Class::Microcode, far_pointer::<{ seg::FS }>).treated(Treatment::LoadSegment),
    Row::new(Lgs, Class::Microcode, far_pointer::<{ seg::GS }>).treated(Treatment::LoadSegment),
];

impl Cpu {
    /// Returns the segment register contents for a load of a selector into ES, SS, DS, FS or GS, after all checks.
    pub(crate) fn checked_segment(&mut self, which: u8, selector: u16) -> Exec<Segment> {
        if !self.protected() || self.v8086() {
            return Ok(self.real_segment(which, selector));
        }
        if which == seg::SS {
            let cpl = self.arch.cpl;
            // In 64-bit mode a null SS is valid below CPL 3, if its RPL equals the CPL.
            if is_null(selector) && self.engine.long64 && cpl != 3 && selector as u8 & 3 == cpl {
                return Ok(null_segment(selector, cpl));
            }
            return self.stack_segment_for(selector, cpl, vector::GP);
        }
        if is_null(selector) {
            return Ok(null_segment(selector, 0));
        }
        let mut d = self.read_descriptor(selector, vector::GP)?;
        let outranked = !d.conforming() && (selector as u8 & 3 > d.dpl() || self.arch.cpl > d.dpl());
        if !d.readable() || outranked {
            return Err(self.gp(code_of(selector)));
        }
        if !d.present() {
            return Err(self.raise_code(vector::NP, code_of(selector)));
        }
        self.mark_accessed(&mut d)?;
        Ok(d.segment(selector))
    }

    /// Returns the segment register contents for a load in real or virtual-8086 mode. Real mode keeps limit and size
    /// ("unreal mode").
    pub(crate) fn real_segment(&self, which: u8, selector: u16) -> Segment {
        let old = self.arch.seg[usize::from(which & 7)];
        if self.v8086() {
            return v8086_segment(selector);
        }
        let kept = old.rights & (rights::G | rights::DB);
        let kind = rights::ACCESSED | rights::RW | rights::S | rights::P;
        let code = if which == seg::CS { rights::CODE } else { 0 };
        let limit = if old.usable() { old.limit } else { 0xffff };
        Segment { base: u64::from(selector) << 4, limit, rights: kept | kind | code, selector }
    }

    /// Loads a selector into ES, SS, DS, FS or GS.
    pub(crate) fn load_segment(&mut self, which: u8, selector: u16) -> Exec {
        let segment = self.checked_segment(which, selector)?;
        self.arch.seg[usize::from(which & 7)] = segment;
        Ok(())
    }
}

/// Returns the segment register contents for a selector in virtual-8086 mode.
pub(crate) fn v8086_segment(selector: u16) -> Segment {
    let rights = rights::ACCESSED | rights::RW | rights::S | rights::P | 3 << rights::DPL_SHIFT;
    Segment { base: u64::from(selector) << 4, limit: 0xffff, rights, selector }
}

fn loaded(cpu: &mut Cpu, which: u8) -> Flow {
    if which != seg::SS {
        return Flow::Next;
    }
    cpu.attend(attention::SS_SHADOW);
    Flow::End
}

/// Binds MOV to or from a segment register.
pub(crate) fn bind_mov(i: &Instruction, op: &mut Op) -> Option<Handler> {
    op.class = Class::Microcode;
    if i.op0_kind() == OpKind::Register && i.op0_register().is_segment_register() {
        if i.op0_register() == Register::CS {
            return None;
        }
        return Some(if i.op1_kind() == OpKind::Memory { load_memory } else { load_register });
    }
    if i.op0_kind() == OpKind::Memory {
        return Some(store_memory);
    }
    Some(store_register)
}

fn load_register(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let selector = get1::<u16>(cpu, op);
    cpu.load_segment(op.r0, selector)?;
    Ok(loaded(cpu, op.r0))
}

fn load_memory(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let selector = cpu.load::<u16>(op)?;
    cpu.load_segment(op.r0, selector)?;
    Ok(loaded(cpu, op.r0))
}

fn store_memory(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let selector = cpu.arch.seg[usize::from(op.r1 & 7)].selector;
    cpu.store::<u16>(op, selector)?;
    Ok(Flow::Next)
}

fn store_register(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let selector = cpu.arch.seg[usize::from(op.r1 & 7)].selector;
    cpu.set_sized(op.r0, op.size, u64::from(selector));
    Ok(Flow::Next)
}

fn stack_size(code: Code) -> u8 {
    use Code::*;
    match code {
        Pushw_ES | Pushw_CS | Pushw_SS | Pushw_DS | Pushw_FS | Pushw_GS => 2,
        Popw_ES | Popw_CS | Popw_SS | Popw_DS | Popw_FS | Popw_GS => 2,
        Pushd_ES | Pushd_CS | Pushd_SS | Pushd_DS | Pushd_FS | Pushd_GS => 4,
        Popd_ES | Popd_SS | Popd_DS | Popd_FS | Popd_GS => 4,
        _ => 8,
    }
}

/// Binds PUSH of a segment register.
pub(crate) fn bind_push(i: &Instruction, op: &mut Op) -> Option<Handler> {
    op.class = Class::Microcode;
    match stack_size(i.code()) {
        2 => Some(push_segment::<2>),
        4 => Some(push_segment::<4>),
        _ => Some(push_segment::<8>),
    }
}

fn push_segment<const SIZE: u8>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let selector = cpu.arch.seg[usize::from(op.r0 & 7)].selector;
    match SIZE {
        2 => push::<u16>(cpu, selector)?,
        8 => push::<u64>(cpu, u64::from(selector))?,
        // SDM vol. 2, PUSH: recent Intel processors keep the upper half; APM vol. 3, PUSH: it is zeroed.
        _ if cpu.wiring.capabilities.amd => push::<u32>(cpu, u32::from(selector))?,
        _ => {
            // A 32-bit push moves the stack pointer by four bytes but writes only two.
            let old = cpu.arch.gpr[usize::from(reg::RSP)];
            set_stack_pointer(cpu, old.wrapping_sub(2));
            if let Err(fault) = push::<u16>(cpu, selector) {
                cpu.arch.gpr[usize::from(reg::RSP)] = old;
                return Err(fault);
            }
        }
    }
    Ok(Flow::Next)
}

/// Binds POP of a segment register.
pub(crate) fn bind_pop(i: &Instruction, op: &mut Op) -> Option<Handler> {
    if i.op0_register() == Register::CS {
        return None;
    }
    op.class = Class::Microcode;
    op.size = stack_size(i.code());
    Some(pop_segment)
}

fn pop_segment(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let selector = match op.size {
        2 => peek::<u16>(cpu, 0)?,
        4 => peek::<u32>(cpu, 0)? as u16,
        _ => peek::<u64>(cpu, 0)? as u16,
    };
    let segment = cpu.checked_segment(op.r0, selector)?;
    // The stack pointer moves with the width of the old stack segment.
    let sp = cpu.arch.gpr[usize::from(reg::RSP)].wrapping_add(u64::from(op.size));
    set_stack_pointer(cpu, sp);
    cpu.arch.seg[usize::from(op.r0 & 7)] = segment;
    Ok(loaded(cpu, op.r0))
}

fn far_pointer<const WHICH: u8>(i: &Instruction, _: &mut Op) -> Option<Handler> {
    if i.op1_kind() != OpKind::Memory {
        return None;
    }
    Some(load_far_pointer::<WHICH>)
}

fn load_far_pointer<const WHICH: u8>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let (offset, selector) = cpu.load_far(op, op.size)?;
    cpu.load_segment(WHICH, selector)?;
    cpu.set_sized(op.r0, op.size, offset);
    // Unlike MOV and POP, LSS needs no shadow, because it loads both halves of the stack pointer.
    Ok(if WHICH == seg::SS { Flow::End } else { Flow::Next })
}

impl Cpu {
    /// Reads a far pointer: an offset of `size` bytes, then the selector.
    pub(crate) fn load_far(&mut self, op: &Op, size: u8) -> Exec<(u64, u16)> {
        let mut bytes = [0u8; 10];
        let used = usize::from(size) + 2;
        self.load_bytes(op, &mut bytes[..used])?;
        let mut offset = [0u8; 8];
        offset[..usize::from(size)].copy_from_slice(&bytes[..usize::from(size)]);
        let selector = u16::from_le_bytes([bytes[used - 2], bytes[used - 1]]);
        Ok((u64::from_le_bytes(offset), selector))
    }
}
