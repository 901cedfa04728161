//! Masked moves: only elements that the mask selects access memory.

use crate::exec::vector::execute::{enter_mmx, mmx_ready, ready};
use crate::fault::{Cause, Exec, Flow};
use crate::op::{Handler, Op, address_mask};
use crate::state::Cpu;
use iced_x86::{EncodingKind, Instruction, Mnemonic::*, OpKind};
use x86::page::PAGE;
use x86::{reg, vector};

/// Binds a masked move.
pub fn bind(i: &Instruction, op: &mut Op) -> Option<Handler> {
    if !matches!(i.code().encoding(), EncodingKind::Legacy | EncodingKind::VEX) {
        return None;
    }
    Some(match i.mnemonic() {
        Maskmovq => maskmovq,
        Maskmovdqu => maskmovdqu::<false>,
        Vmaskmovdqu => maskmovdqu::<true>,
        Vmaskmovps | Vpmaskmovd | Vmaskmovpd | Vpmaskmovq => {
            let store = i.op0_kind() == OpKind::Memory;
            op.size = i.op1_register().size() as u8;
            match (store, matches!(i.mnemonic(), Vmaskmovpd | Vpmaskmovq)) {
                (false, false) => load::<4>,
                (false, true) => load::<8>,
                (true, false) => store_elements::<4>,
                (true, true) => store_elements::<8>,
            }
        }
        _ => return None,
    })
}

/// Returns the bytes of a vector register.
pub(crate) fn bytes(cpu: &Cpu, register: u8) -> [u8; 32] {
    let mut out = [0; 32];
    for (word, chunk) in cpu.arch.vector.ymm[usize::from(register & 15)].iter().zip(out.as_chunks_mut::<8>().0) {
        *chunk = word.to_le_bytes();
    }
    out
}

/// Sets a whole YMM register, as a VEX-encoded instruction does.
pub(crate) fn set_bytes(cpu: &mut Cpu, register: u8, from: &[u8; 32]) {
    for (word, chunk) in cpu.arch.vector.ymm[usize::from(register & 15)].iter_mut().zip(from.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*chunk);
    }
    cpu.arch.vector.clear_upper(register);
}

/// Function that returns the address reported by a page fault, from the operand's address and the offset of the
/// faulting run. Current processors differ in this between masked moves.
type Blame = fn(u64, u64) -> u64;

/// Returns the runs of adjacent selected elements: (offset, length) in bytes.
fn runs(mask: &[u8], element: usize) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for at in (0..mask.len()).step_by(element) {
        // The sign bit of a mask element selects the element.
        if mask[at + element - 1] & 0x80 == 0 {
            continue;
        }
        match runs.last_mut() {
            Some((start, len)) if *start + *len == at => *len += element,
            _ => runs.push((at, element)),
        }
    }
    runs
}

/// Returns the linear addresses of runs from `offset` in the operand's segment. All of them are checked before any
/// access. `blame` gives the address that a page fault reports.
fn place(cpu: &mut Cpu, op: &Op, offset: u64, runs: &[(usize, usize)], write: bool, blame: Blame) -> Exec<Vec<u64>> {
    let mut linear = Vec::with_capacity(runs.len());
    let mask = address_mask(op.asize);
    for &(start, len) in runs {
        let address = cpu.linear(op.seg, offset.wrapping_add(start as u64) & mask, len as u64, write)?;
        let privilege = cpu.privilege();
        let checked = if write {
            cpu.prepare_write(address, len as u64, privilege, op.seg)
        } else {
            cpu.prepare_read(address, len as u64, privilege, op.seg)
        };
        if let Err(fault) = checked {
            let shown = blame(address.wrapping_sub(start as u64), start as u64);
            if matches!(cpu.engine.fault, Cause::Exception(vector::PF, _)) {
                // The reported address is never below the faulting page.
                cpu.engine.fault_address = shown.max(cpu.engine.fault_address & !(PAGE - 1));
            }
            return Err(fault);
        }
        linear.push(address);
    }
    Ok(linear)
}

fn store_masked(cpu: &mut Cpu, op: &Op, offset: u64, data: &[u8], runs: &[(usize, usize)], blame: Blame) -> Exec {
    let linear = place(cpu, op, offset, runs, true, blame)?;
    for (&(start, len), &address) in runs.iter().zip(&linear) {
        cpu.write_bytes(address, op.seg, &data[start..start + len])?;
    }
    Ok(())
}

/// Reports the faulting element.
fn blame_element(operand: u64, run: u64) -> u64 {
    operand.wrapping_add(run)
}

/// Reports the eight bytes that contain the fault.
fn blame_half(operand: u64, run: u64) -> u64 {
    operand.wrapping_add(run & 8)
}

fn load<const ELEMENT: usize>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    ready::<true>(cpu)?;
    let len = usize::from(op.size).min(32);
    let mask = bytes(cpu, op.r1);
    let runs = runs(&mask[..len], ELEMENT);
    let offset = op.ea(cpu);
    let linear = place(cpu, op, offset, &runs, false, blame_element)?;
    let mut result = [0; 32];
    for (&(start, len), &address) in runs.iter().zip(&linear) {
        cpu.read_bytes(address, op.seg, &mut result[start..start + len])?;
    }
    set_bytes(cpu, op.r0, &result);
    Ok(Flow::Next)
}

fn store_elements<const ELEMENT: usize>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    ready::<true>(cpu)?;
    let len = usize::from(op.size).min(32);
    let (mask, data) = (bytes(cpu, op.r1), bytes(cpu, op.r2));
    let offset = op.ea(cpu);
    store_masked(cpu, op, offset, &data[..len], &runs(&mask[..len], ELEMENT), blame_element)?;
    Ok(Flow::Next)
}

fn destination(cpu: &Cpu, op: &Op) -> u64 {
    cpu.reg(reg::RDI) & address_mask(op.asize)
}

fn maskmovdqu<const VEX: bool>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    ready::<VEX>(cpu)?;
    let (data, mask) = (bytes(cpu, op.r1), bytes(cpu, op.r2));
    let offset = destination(cpu, op);
    // The upper half is accessed first.
    let mut order = runs(&mask[8..16], 1);
    order.iter_mut().for_each(|(start, _)| *start += 8);
    order.extend(runs(&mask[..8], 1));
    store_masked(cpu, op, offset, &data[..16], &order, blame_half)?;
    Ok(Flow::Next)
}

fn maskmovq(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    mmx_ready(cpu)?;
    let data = cpu.arch.x87.regs[usize::from(op.r1 & 7)].significand.to_le_bytes();
    let mask = cpu.arch.x87.regs[usize::from(op.r2 & 7)].significand.to_le_bytes();
    let offset = destination(cpu, op);
    // Current processors enter the MMX state even if the store faults.
    enter_mmx(cpu);
    store_masked(cpu, op, offset, &data, &runs(&mask, 1), blame_half)?;
    Ok(Flow::Next)
}
