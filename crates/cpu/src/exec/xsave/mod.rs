//! Save and restore of processor state: FXSAVE, FXRSTOR, the XSAVE family, XCR0 and PKRU.
//!
//! The modified optimization permits XSAVEOPT and XSAVES to skip components that are known to be unmodified. It is not
//! implemented: every component in use is written.

mod component;
pub mod cpuid;
mod legacy;
#[cfg(test)]
#[allow(unsafe_code, reason = "the host's own instructions are the reference")]
mod tests;

use crate::exec::vector::misc::MXCSR_MASK;
use crate::fault::{Exec, Flow};
use crate::op::{Handler, Op, SEG_FLAT};
use crate::row::{Row, Treatment};
use crate::state::Cpu;
use crate::xstate::{Component, HEADER_END};
use component::{CONTENTS, Contents, PIECE};
use iced_x86::{Instruction, Mnemonic::*};
use ledger::{Class, Family, Kind};
use x86::control::*;
use x86::vmx::{reason, secondary};
use x86::{reg, vector};

pub use cpuid::xstate_cpuid;

/// Instruction table rows of state saving.
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
    Row::end(Xsetbv, Class::System, |_, _| Some(xsetbv)).of_system(),
    Row::new(Rdpkru, Class::Microcode, |_, _| Some(rdpkru)).treated(Treatment::ReadRights),
    Row::end(Wrpkru, Class::System, |_, _| Some(wrpkru)),
];

/// XCOMP_BV bit of the compacted format.
const COMPACTED: u64 = 1 << 63;
/// MXCSR after reset.
const MXCSR_INIT: u32 = 0x1f80;

/// Returns EDX:EAX.
fn pair(cpu: &Cpu) -> u64 {
    cpu.reg(reg::RAX) & 0xffff_ffff | cpu.reg(reg::RDX) << 32
}

fn set_pair(cpu: &mut Cpu, value: u64) {
    cpu.set::<u32>(reg::RAX, value as u32);
    cpu.set::<u32>(reg::RDX, (value >> 32) as u32);
}

/// Returns the linear address of a save area, which must be canonical. A misaligned one raises #GP(0).
fn area(cpu: &mut Cpu, op: &Op, len: usize, align: u64, write: bool) -> Exec<u64> {
    let linear = cpu.operand_linear(op, len as u64, write)?;
    if cpu.engine.long64 && !cpu.canonical(linear) {
        // The exception for a non-canonical address depends on the segment.
        let privilege = cpu.privilege();
        cpu.prepare_read(linear, 1, privilege, op.seg)?;
    }
    if linear & (align - 1) != 0 {
        let stack = op.seg == SEG_FLAT + 1 && !cpu.canonical(linear);
        return Err(cpu.raise_code(if stack { vector::SS } else { vector::GP }, 0));
    }
    Ok(linear)
}

/// Number of bytes checked together: memory is accessed in units of up to a page.
const SPAN: usize = x86::page::PAGE as usize;

/// Checks that the whole area can be written.
fn prepare_write(cpu: &mut Cpu, op: &Op, linear: u64, len: usize) -> Exec {
    let privilege = cpu.privilege();
    for at in (0..len).step_by(SPAN) {
        let from = cpu.wrap(linear.wrapping_add(at as u64));
        cpu.prepare_write(from, (len - at).min(SPAN) as u64, privilege, op.seg)?;
    }
    Ok(())
}

/// Checks that the whole area can be read.
fn prepare_read(cpu: &mut Cpu, op: &Op, linear: u64, len: usize) -> Exec {
    let privilege = cpu.privilege();
    for at in (0..len).step_by(SPAN) {
        let from = cpu.wrap(linear.wrapping_add(at as u64));
        cpu.prepare_read(from, (len - at).min(SPAN) as u64, privilege, op.seg)?;
    }
    Ok(())
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
    // The last byte is checked first.
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

/// Returns the components that are not in their initial configuration (XINUSE), without regard to MXCSR.
pub fn in_use(cpu: &Cpu) -> u64 {
    let mut used = 0;
    if !legacy::x87_is_init(cpu) {
        used |= XCR0_X87;
    }
    if !legacy::halves_are_init(cpu, 0) {
        used |= XCR0_SSE;
    }
    for component in &cpu.wiring.xstate.components {
        if !(CONTENTS[component.index].is_init)(cpu) {
            used |= component.bit();
        }
    }
    used
}

/// Variants of the instructions that save state.
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
    let layout = &cpu.wiring.xstate;
    let len = if compacts { layout.compacted_size(requested) } else { layout.standard_size(requested) };
    let linear = area(cpu, op, len, 64, true)?;
    prepare_write(cpu, op, linear, len)?;
    // Components that XFD disables are saved in their initial configuration.
    let mut used = in_use(cpu) & !cpu.disabled_state();
    if compacts && cpu.arch.vector.mxcsr != MXCSR_INIT {
        used |= XCR0_SSE;
    }
    let written = if kind == Save::Plain { requested } else { requested & used };
    save_legacy(cpu, op, linear, requested, written, compacts)?;
    save_extended(cpu, op, linear, written, compacts.then_some(requested))?;
    let at = cpu.wrap(linear.wrapping_add(512));
    if compacts {
        let mut header = [0; 16];
        header[..8].copy_from_slice(&(requested & used).to_le_bytes());
        header[8..].copy_from_slice(&(requested | COMPACTED).to_le_bytes());
        cpu.write_bytes(at, op.seg, &header)?;
    } else {
        let mut old = [0; 8];
        cpu.read_bytes(at, op.seg, &mut old)?;
        let xstate = u64::from_le_bytes(old) & !requested | (requested & used);
        cpu.write_bytes(at, op.seg, &xstate.to_le_bytes())?;
    }
    Ok(Flow::Next)
}

/// Writes the legacy region.
fn save_legacy(cpu: &mut Cpu, op: &Op, linear: u64, requested: u64, written: u64, compacts: bool) -> Exec {
    let mut image = [0; 512];
    let at = |offset: usize| linear.wrapping_add(offset as u64);
    if written & XCR0_X87 != 0 {
        legacy::save_x87(cpu, &mut image, op.imm != 0);
        cpu.write_bytes(at(0), op.seg, &image[legacy::X87_HEAD])?;
        cpu.write_bytes(at(32), op.seg, &image[legacy::X87_REGISTERS])?;
    }
    // In the standard format MXCSR is written with SSE or AVX, in use or not.
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
    Ok(())
}

/// Writes the components of the extended region; `compacted` is the bitmap of the compacted format.
fn save_extended(cpu: &mut Cpu, op: &Op, linear: u64, written: u64, compacted: Option<u64>) -> Exec {
    for index in 0..cpu.wiring.xstate.components.len() {
        let component = cpu.wiring.xstate.components[index];
        if written & component.bit() == 0 {
            continue;
        }
        let offset = cpu.wiring.xstate.offset(index, compacted);
        let len = (CONTENTS[component.index].len)(cpu);
        let mut bytes = [0; PIECE];
        for from in (0..len).step_by(PIECE) {
            let piece = &mut bytes[..(len - from).min(PIECE)];
            if cpu.disabled_state() & component.bit() == 0 {
                (CONTENTS[component.index].save)(cpu, from, piece);
            }
            let at = cpu.wrap(linear.wrapping_add((offset + from) as u64));
            cpu.write_bytes(at, op.seg, piece)?;
        }
    }
    Ok(())
}

/// Decodes a header: the components in the area, and the bitmap of the compacted format. Returns `None` for #GP.
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
    let mut image = [0; HEADER_END];
    cpu.read_bytes(linear, op.seg, &mut image)?;
    let compaction = SUPERVISOR || cpu.wiring.features.contains(crate::Features::needed(iced_x86::Code::Xsavec_mem));
    let Some((present, compacted)) = header(&image, enabled, SUPERVISOR, compaction) else { return Err(cpu.gp(0)) };
    let loaded = requested & present;
    cpu.needs_state(loaded)?;
    let len = match compacted {
        Some(components) => cpu.wiring.xstate.compacted_size(components),
        None => cpu.wiring.xstate.standard_size(loaded),
    };
    let mut linear = linear;
    if len > HEADER_END {
        linear = area(cpu, op, len, 64, false)?;
        prepare_read(cpu, op, linear, len)?;
    }
    check_extended(cpu, op, linear, loaded, compacted)?;
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
    restore_extended(cpu, op, linear, requested, loaded, compacted)?;
    Ok(Flow::End)
}

/// Raises #GP if the contents of a `loaded` component are invalid.
fn check_extended(cpu: &mut Cpu, op: &Op, linear: u64, loaded: u64, compacted: Option<u64>) -> Exec {
    for index in 0..cpu.wiring.xstate.components.len() {
        let component = cpu.wiring.xstate.components[index];
        let Some(check) = CONTENTS[component.index].check.filter(|_| loaded & component.bit() != 0) else { continue };
        let offset = cpu.wiring.xstate.offset(index, compacted);
        let mut bytes = [0; PIECE];
        let bytes = &mut bytes[..component.known().size().min(PIECE)];
        let at = cpu.wrap(linear.wrapping_add(offset as u64));
        cpu.read_bytes(at, op.seg, bytes)?;
        if !check(cpu, bytes) {
            return Err(cpu.gp(0));
        }
    }
    Ok(())
}

/// Loads the components of the extended region in `loaded`, and initializes the other requested ones. All of the area
/// must be readable.
fn restore_extended(cpu: &mut Cpu, op: &Op, linear: u64, requested: u64, loaded: u64, compacted: Option<u64>) -> Exec {
    // PKRU comes last: the new value could make the rest of the area unreadable.
    for last in [false, true] {
        for index in 0..cpu.wiring.xstate.components.len() {
            let component = cpu.wiring.xstate.components[index];
            if requested & component.bit() == 0 || (component.bit() == XCR0_PKRU) != last {
                continue;
            }
            let offset = cpu.wiring.xstate.offset(index, compacted);
            let at = (loaded & component.bit() != 0).then_some(linear.wrapping_add(offset as u64));
            restore_component(cpu, op, &component, at)?;
        }
    }
    Ok(())
}

/// Loads a component from an address, or initializes it.
fn restore_component(cpu: &mut Cpu, op: &Op, component: &Component, at: Option<u64>) -> Exec {
    let Contents { init, load, .. } = CONTENTS[component.index];
    let Some(at) = at else {
        init(cpu);
        return Ok(());
    };
    let mut bytes = [0; PIECE];
    let size = component.known().size();
    for from in (0..size).step_by(PIECE) {
        let piece = &mut bytes[..(size - from).min(PIECE)];
        let linear = cpu.wrap(at.wrapping_add(from as u64));
        cpu.read_bytes(linear, op.seg, piece)?;
        load(cpu, from, piece);
    }
    Ok(())
}

/// Sets PKRU.
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
        1 if cpuid::xgetbv1(cpu) => {
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
    let valid = cpu.wiring.xstate.allows_xcr0(value);
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
