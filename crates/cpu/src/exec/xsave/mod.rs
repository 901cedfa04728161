//! Saving and restoring processor state: FXSAVE, FXRSTOR, the XSAVE family, XCR0 and PKRU.
//!
//! The modified optimization of XSAVEOPT and XSAVES is a licence to skip components that are known not to have changed; here
//! nothing is known, so every component in use is written.

pub mod layout;
mod legacy;
#[cfg(test)]
#[allow(unsafe_code, reason = "the host's own instructions are the reference")]
mod tests;

use crate::exec::vector::misc::MXCSR_MASK;
use crate::fault::{Exec, Flow};
use crate::op::{Handler, Op, SEG_FLAT};
use crate::state::Cpu;
use crate::table::Row;
use iced_x86::{Instruction, Mnemonic::*};
use layout::{COMPONENTS, HEADER_END, LONGEST, compacted_offset, compacted_size, standard_size};
use ledger::{Class, Family, Kind};
use x86::control::*;
use x86::vmx::{reason, secondary};
use x86::{reg, vector};

pub use layout::{supported, xstate_cpuid};

/// Rows of state saving.
pub static ROWS: &[Row] = &[
    Row::new(Fxsave, Class::StateSave, |_, _| Some(fxsave::<false>)),
    Row::new(Fxsave64, Class::StateSave, |_, _| Some(fxsave::<true>)),
    Row::new(Fxrstor, Class::StateSave, |_, _| Some(fxrstor::<false>)),
    Row::new(Fxrstor64, Class::StateSave, |_, _| Some(fxrstor::<true>)),
    Row::new(Xsave, Class::StateSave, saving),
    Row::new(Xsave64, Class::StateSave, saving),
    Row::new(Xsaveopt, Class::StateSave, saving),
    Row::new(Xsaveopt64, Class::StateSave, saving),
    Row::new(Xsavec, Class::StateSave, saving),
    Row::new(Xsavec64, Class::StateSave, saving),
    Row::new(Xsaves, Class::StateSave, saving),
    Row::new(Xsaves64, Class::StateSave, saving),
    Row::end(Xrstor, Class::StateSave, |_, _| Some(xrstor::<false, false>)),
    Row::end(Xrstor64, Class::StateSave, |_, _| Some(xrstor::<true, false>)),
    Row::end(Xrstors, Class::StateSave, |_, _| Some(xrstor::<false, true>)),
    Row::end(Xrstors64, Class::StateSave, |_, _| Some(xrstor::<true, true>)),
    Row::new(Xgetbv, Class::Microcode, |_, _| Some(xgetbv)),
    Row::end(Xsetbv, Class::System, |_, _| Some(xsetbv)),
    Row::new(Rdpkru, Class::Microcode, |_, _| Some(rdpkru)),
    Row::end(Wrpkru, Class::System, |_, _| Some(wrpkru)),
];

/// XCOMP_BV: the area is in the compacted format.
const COMPACTED: u64 = 1 << 63;
/// MXCSR after reset.
const MXCSR_INIT: u32 = 0x1f80;

/// EDX:EAX.
fn pair(cpu: &Cpu) -> u64 {
    cpu.reg(reg::RAX) & 0xffff_ffff | cpu.reg(reg::RDX) << 32
}

fn set_pair(cpu: &mut Cpu, value: u64) {
    cpu.set::<u32>(reg::RAX, value as u32);
    cpu.set::<u32>(reg::RDX, (value >> 32) as u32);
}

/// Linear address of a save area: canonical, and aligned or #GP(0).
fn area(cpu: &mut Cpu, op: &Op, len: usize, align: u64, write: bool) -> Exec<u64> {
    let linear = cpu.operand_linear(op, len as u64, write)?;
    if cpu.engine.long64 && !cpu.canonical(linear) {
        // Which exception that is depends on the segment.
        let privilege = cpu.privilege();
        cpu.prepare_read(linear, 1, privilege, op.seg)?;
    }
    if linear & (align - 1) != 0 {
        let stack = op.seg == SEG_FLAT + 1 && !cpu.canonical(linear);
        return Err(cpu.raise_code(if stack { vector::SS } else { vector::GP }, 0));
    }
    Ok(linear)
}

/// Makes sure that the whole area can be written.
fn prepare(cpu: &mut Cpu, op: &Op, linear: u64, len: usize) -> Exec {
    let privilege = cpu.privilege();
    cpu.prepare_write(linear, len as u64, privilege, op.seg)
}

fn fx_ready(cpu: &mut Cpu) -> Exec {
    if cpu.arch.cr0 & CR0_EM != 0 {
        return Err(cpu.ud());
    }
    if cpu.arch.cr0 & CR0_TS != 0 {
        return Err(cpu.nm());
    }
    Ok(())
}

fn fxsave<const WIDE: bool>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    fx_ready(cpu)?;
    let linear = area(cpu, op, 512, 16, true)?;
    let privilege = cpu.privilege();
    // The last byte is looked at first.
    cpu.prepare_write(linear.wrapping_add(511), 1, privilege, op.seg)?;
    let mut image = [0; 512];
    legacy::save_x87(cpu, &mut image, WIDE);
    legacy::save_mxcsr(cpu, &mut image);
    let xmm = legacy::xmm(cpu);
    legacy::save_halves(cpu, &mut image[xmm.clone()], 0);
    cpu.write_bytes(linear, op.seg, &image[..xmm.end])?;
    Ok(Flow::Next)
}

fn fxrstor<const WIDE: bool>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    fx_ready(cpu)?;
    let linear = area(cpu, op, 512, 16, false)?;
    let privilege = cpu.privilege();
    cpu.prepare_read(linear.wrapping_add(511), 1, privilege, op.seg)?;
    let mut image = [0; 512];
    cpu.read_bytes(linear, op.seg, &mut image)?;
    let mxcsr = legacy::mxcsr(&image);
    if mxcsr & !MXCSR_MASK != 0 {
        return Err(cpu.gp(0));
    }
    legacy::restore_x87(cpu, &image, WIDE);
    cpu.arch.vector.mxcsr = mxcsr;
    let xmm = legacy::xmm(cpu);
    legacy::restore_halves(cpu, &image[xmm], 0);
    Ok(Flow::Next)
}

fn x_ready(cpu: &mut Cpu) -> Exec {
    if cpu.arch.cr4 & CR4_OSXSAVE == 0 {
        return Err(cpu.ud());
    }
    if cpu.arch.cr0 & CR0_TS != 0 {
        return Err(cpu.nm());
    }
    Ok(())
}

/// Components that are not in their initial configuration (XINUSE), MXCSR not looked at.
pub fn in_use(cpu: &Cpu) -> u64 {
    let mut used = 0;
    for (component, init) in [
        (XCR0_X87, legacy::x87_is_init(cpu)),
        (XCR0_SSE, legacy::halves_are_init(cpu, 0)),
        (XCR0_AVX, legacy::halves_are_init(cpu, 2)),
        (XCR0_PKRU, cpu.arch.pkru == 0),
    ] {
        if !init {
            used |= component;
        }
    }
    used
}

/// What the instructions that save differ in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Save {
    /// XSAVE.
    Plain,
    /// XSAVEOPT: components in their initial configuration are not written.
    Optimized,
    /// XSAVEC: compacted.
    Compacted,
    /// XSAVES: compacted, with supervisor state.
    Supervisor,
}

fn saving(i: &Instruction, op: &mut Op) -> Option<Handler> {
    let (kind, wide) = match i.mnemonic() {
        Xsave => (Save::Plain, false),
        Xsave64 => (Save::Plain, true),
        Xsaveopt => (Save::Optimized, false),
        Xsaveopt64 => (Save::Optimized, true),
        Xsavec => (Save::Compacted, false),
        Xsavec64 => (Save::Compacted, true),
        Xsaves => (Save::Supervisor, false),
        Xsaves64 => (Save::Supervisor, true),
        _ => return None,
    };
    op.imm = u64::from(wide);
    Some(match kind {
        Save::Plain => |cpu, op| save(cpu, op, Save::Plain),
        Save::Optimized => |cpu, op| save(cpu, op, Save::Optimized),
        Save::Compacted => |cpu, op| save(cpu, op, Save::Compacted),
        Save::Supervisor => |cpu, op| save(cpu, op, Save::Supervisor),
    })
}

fn save(cpu: &mut Cpu, op: &Op, kind: Save) -> Exec<Flow> {
    if kind == Save::Supervisor {
        cpu.needs_control(secondary::XSAVES)?;
    }
    x_ready(cpu)?;
    if kind == Save::Supervisor && cpu.arch.cpl != 0 {
        return Err(cpu.gp(0));
    }
    let compacts = matches!(kind, Save::Compacted | Save::Supervisor);
    let enabled = if kind == Save::Supervisor { cpu.arch.xcr0 | cpu.arch.msr.xss } else { cpu.arch.xcr0 };
    let requested = enabled & pair(cpu);
    if kind == Save::Supervisor {
        cpu.supervisor_state_exit(reason::XSAVES, op, requested)?;
    }
    let len = if compacts { compacted_size(requested) } else { standard_size(requested) };
    let linear = area(cpu, op, len, 64, true)?;
    prepare(cpu, op, linear, len)?;
    let mut used = in_use(cpu);
    if compacts && cpu.arch.vector.mxcsr != MXCSR_INIT {
        used |= XCR0_SSE;
    }
    let written = if kind == Save::Plain { requested } else { requested & used };
    let mut image = [0; LONGEST];
    let at = |offset: usize| linear.wrapping_add(offset as u64);
    if written & XCR0_X87 != 0 {
        legacy::save_x87(cpu, &mut image, op.imm != 0);
        cpu.write_bytes(at(0), op.seg, &image[legacy::X87_HEAD])?;
        cpu.write_bytes(at(32), op.seg, &image[legacy::X87_REGISTERS])?;
    }
    // In the standard format MXCSR goes with either of SSE and AVX, in use or not.
    let mxcsr = if compacts { written & XCR0_SSE } else { requested & (XCR0_SSE | XCR0_AVX) };
    if mxcsr != 0 {
        legacy::save_mxcsr(cpu, &mut image);
        cpu.write_bytes(at(24), op.seg, &image[legacy::MXCSR])?;
    }
    if written & XCR0_SSE != 0 {
        let xmm = legacy::xmm(cpu);
        legacy::save_halves(cpu, &mut image[xmm.clone()], 0);
        cpu.write_bytes(at(xmm.start), op.seg, &image[xmm])?;
    }
    for component in COMPONENTS.iter().filter(|c| written >> c.number & 1 != 0) {
        let offset = if compacts { compacted_offset(requested, component.number) } else { component.offset };
        let bytes = &mut image[offset..offset + component.size];
        let len = save_component(cpu, component.number, bytes);
        cpu.write_bytes(at(offset), op.seg, &bytes[..len])?;
    }
    if compacts {
        let mut header = [0; 16];
        header[..8].copy_from_slice(&(requested & used).to_le_bytes());
        header[8..].copy_from_slice(&(requested | COMPACTED).to_le_bytes());
        cpu.write_bytes(at(512), op.seg, &header)?;
    } else {
        let mut old = [0; 8];
        cpu.read_bytes(at(512), op.seg, &mut old)?;
        let xstate = u64::from_le_bytes(old) & !requested | (requested & used);
        cpu.write_bytes(at(512), op.seg, &xstate.to_le_bytes())?;
    }
    Ok(Flow::Next)
}

/// Writes a component of the extended region; returns how many of its bytes the current mode writes.
fn save_component(cpu: &Cpu, number: u32, bytes: &mut [u8]) -> usize {
    if 1 << number == XCR0_AVX {
        legacy::save_halves(cpu, bytes, 2);
        return 16 * legacy::registers(cpu);
    }
    bytes[..4].copy_from_slice(&cpu.arch.pkru.to_le_bytes());
    bytes.len()
}

/// What a header asks for: which components are in the area, and whether it is compacted. `None` is #GP.
fn header(image: &[u8], enabled: u64, supervisor: bool, compaction: bool) -> Option<(u64, Option<u64>)> {
    let words: [u64; 8] = std::array::from_fn(|n| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&image[512 + 8 * n..520 + 8 * n]);
        u64::from_le_bytes(bytes)
    });
    let [present, layout, rest @ ..] = words;
    if layout & COMPACTED == 0 {
        let good = !supervisor && present & !enabled == 0 && layout == 0 && rest[0] == 0;
        return good.then_some((present, None));
    }
    let components = layout & !COMPACTED;
    let good = compaction && components & !enabled == 0 && present & !components == 0 && rest == [0; 6];
    good.then_some((present, Some(components)))
}

fn xrstor<const WIDE: bool, const SUPERVISOR: bool>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    if SUPERVISOR {
        cpu.needs_control(secondary::XSAVES)?;
    }
    x_ready(cpu)?;
    if SUPERVISOR && cpu.arch.cpl != 0 {
        return Err(cpu.gp(0));
    }
    let enabled = if SUPERVISOR { cpu.arch.xcr0 | cpu.arch.msr.xss } else { cpu.arch.xcr0 };
    let requested = enabled & pair(cpu);
    if SUPERVISOR {
        cpu.supervisor_state_exit(reason::XRSTORS, op, requested)?;
    }
    let linear = area(cpu, op, HEADER_END, 64, false)?;
    let mut image = [0; LONGEST];
    cpu.read_bytes(linear, op.seg, &mut image[..HEADER_END])?;
    let compaction = SUPERVISOR || cpu.wiring.features.contains(crate::Features::needed(iced_x86::Code::Xsavec_mem));
    let Some((present, compacted)) = header(&image, enabled, SUPERVISOR, compaction) else { return Err(cpu.gp(0)) };
    let loaded = requested & present;
    let len = match compacted {
        Some(components) => compacted_size(components),
        None => standard_size(loaded),
    };
    if len > HEADER_END {
        let linear = area(cpu, op, len, 64, false)?;
        cpu.read_bytes(linear, op.seg, &mut image[..len])?;
    }
    let with_mxcsr = match compacted {
        Some(_) => loaded & XCR0_SSE != 0,
        None => requested & (XCR0_SSE | XCR0_AVX) != 0,
    };
    let mxcsr = legacy::mxcsr(&image);
    if with_mxcsr && mxcsr & !MXCSR_MASK != 0 {
        return Err(cpu.gp(0));
    }
    if loaded & XCR0_X87 != 0 {
        legacy::restore_x87(cpu, &image, WIDE);
    } else if requested & XCR0_X87 != 0 {
        legacy::init_x87(cpu);
    }
    if with_mxcsr {
        cpu.arch.vector.mxcsr = mxcsr;
    } else if requested & XCR0_SSE != 0 {
        cpu.arch.vector.mxcsr = MXCSR_INIT;
    }
    if loaded & XCR0_SSE != 0 {
        let xmm = legacy::xmm(cpu);
        legacy::restore_halves(cpu, &image[xmm], 0);
    } else if requested & XCR0_SSE != 0 {
        legacy::init_halves(cpu, 0);
    }
    for component in COMPONENTS.iter().filter(|c| requested >> c.number & 1 != 0) {
        let offset = match compacted {
            Some(components) => compacted_offset(components, component.number),
            None => component.offset,
        };
        let bytes = (loaded >> component.number & 1 != 0).then(|| &image[offset..offset + component.size]);
        restore_component(cpu, component.number, bytes);
    }
    Ok(Flow::End)
}

/// Reads a component of the extended region, or puts it in its initial configuration.
fn restore_component(cpu: &mut Cpu, number: u32, bytes: Option<&[u8]>) {
    match (1 << number == XCR0_AVX, bytes) {
        (true, Some(bytes)) => legacy::restore_halves(cpu, bytes, 2),
        (true, None) => legacy::init_halves(cpu, 2),
        (false, Some(bytes)) => set_pkru(cpu, u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
        (false, None) => set_pkru(cpu, 0),
    }
}

fn set_pkru(cpu: &mut Cpu, value: u32) {
    if cpu.arch.pkru != value {
        cpu.arch.pkru = value;
        cpu.mapping_changed();
    }
}

fn xgetbv(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    if cpu.arch.cr4 & CR4_OSXSAVE == 0 {
        return Err(cpu.ud());
    }
    let value = match cpu.get::<u32>(reg::RCX) {
        0 => cpu.arch.xcr0,
        1 if layout::xgetbv1(cpu) => {
            let mxcsr = if cpu.arch.vector.mxcsr != MXCSR_INIT { XCR0_SSE } else { 0 };
            cpu.arch.xcr0 & (in_use(cpu) | mxcsr)
        }
        _ => return Err(cpu.gp(0)),
    };
    set_pair(cpu, value);
    Ok(Flow::Next)
}

fn xsetbv(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    if cpu.arch.cr4 & CR4_OSXSAVE == 0 {
        return Err(cpu.ud());
    }
    if cpu.arch.cpl == 0 {
        cpu.exit_always(reason::XSETBV)?;
    }
    let value = pair(cpu);
    let valid =
        value & XCR0_X87 != 0 && value & !supported(cpu) == 0 && (value & XCR0_AVX == 0 || value & XCR0_SSE != 0);
    if cpu.arch.cpl != 0 || cpu.get::<u32>(reg::RCX) != 0 || !valid {
        return Err(cpu.gp(0));
    }
    cpu.charge(Kind::new(Family::Xsetbv, 0), 1);
    cpu.arch.xcr0 = value;
    Ok(Flow::End)
}

fn rdpkru(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    if cpu.arch.cr4 & CR4_PKE == 0 {
        return Err(cpu.ud());
    }
    if cpu.get::<u32>(reg::RCX) != 0 {
        return Err(cpu.gp(0));
    }
    let value = u64::from(cpu.arch.pkru);
    set_pair(cpu, value);
    Ok(Flow::Next)
}

fn wrpkru(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    if cpu.arch.cr4 & CR4_PKE == 0 {
        return Err(cpu.ud());
    }
    if cpu.get::<u32>(reg::RCX) != 0 || cpu.get::<u32>(reg::RDX) != 0 {
        return Err(cpu.gp(0));
    }
    cpu.charge(Kind::new(Family::Wrpkru, 0), 1);
    let value = cpu.get::<u32>(reg::RAX);
    set_pkru(cpu, value);
    Ok(Flow::End)
}
