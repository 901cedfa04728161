//! Masked moves: only the elements that the mask selects touch memory.

use crate::exec::vector::run::{enter_mmx, mmx_ready, ready};
use crate::fault::{Exec, Flow};
use crate::op::{Handler, Op, address_mask};
use crate::state::{Cpu, reg};
use iced_x86::{EncodingKind, Instruction, Mnemonic::*, OpKind};

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

/// Bytes of a vector register.
pub(crate) fn bytes(cpu: &Cpu, register: u8) -> [u8; 32] {
    let mut out = [0; 32];
    for (word, chunk) in cpu.vector.ymm[usize::from(register & 15)].iter().zip(out.as_chunks_mut::<8>().0) {
        *chunk = word.to_le_bytes();
    }
    out
}

/// Sets a whole vector register.
pub(crate) fn set_bytes(cpu: &mut Cpu, register: u8, from: &[u8; 32]) {
    for (word, chunk) in cpu.vector.ymm[usize::from(register & 15)].iter_mut().zip(from.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*chunk);
    }
}

/// Runs of neighbouring selected elements: (offset, length) in bytes.
fn runs(mask: &[u8], element: usize) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for at in (0..mask.len()).step_by(element) {
        // An element's sign bit selects it.
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

/// Linear addresses of runs from `offset` in the operand's segment, all of them checked for the access before any is made.
fn place(cpu: &mut Cpu, op: &Op, offset: u64, mask: u64, runs: &[(usize, usize)], write: bool) -> Exec<Vec<u64>> {
    let mut linear = Vec::with_capacity(runs.len());
    for &(start, len) in runs {
        let address = cpu.linear(op.seg, offset.wrapping_add(start as u64) & mask, len as u64, write)?;
        let privilege = cpu.privilege();
        if write {
            cpu.prepare_write(address, len as u64, privilege, op.seg)?;
        } else {
            cpu.prepare_read(address, len as u64, privilege, op.seg)?;
        }
        linear.push(address);
    }
    Ok(linear)
}

fn store_masked(cpu: &mut Cpu, op: &Op, offset: u64, data: &[u8], mask: &[u8], element: usize) -> Exec {
    let runs = runs(mask, element);
    let linear = place(cpu, op, offset, address_mask(op.asize), &runs, true)?;
    for (&(start, len), &address) in runs.iter().zip(&linear) {
        cpu.write_bytes(address, op.seg, &data[start..start + len])?;
    }
    Ok(())
}

fn load<const ELEMENT: usize>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    ready::<true>(cpu)?;
    let len = usize::from(op.size).min(32);
    let mask = bytes(cpu, op.r1);
    let runs = runs(&mask[..len], ELEMENT);
    let offset = op.ea(cpu);
    let linear = place(cpu, op, offset, address_mask(op.asize), &runs, false)?;
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
    store_masked(cpu, op, offset, &data[..len], &mask[..len], ELEMENT)?;
    Ok(Flow::Next)
}

fn destination(cpu: &Cpu, op: &Op) -> u64 {
    cpu.reg(reg::RDI) & address_mask(op.asize)
}

fn maskmovdqu<const VEX: bool>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    ready::<VEX>(cpu)?;
    let (data, mask) = (bytes(cpu, op.r1), bytes(cpu, op.r2));
    let offset = destination(cpu, op);
    store_masked(cpu, op, offset, &data[..16], &mask[..16], 1)?;
    Ok(Flow::Next)
}

fn maskmovq(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    mmx_ready(cpu)?;
    let data = cpu.x87.regs[usize::from(op.r1 & 7)].significand.to_le_bytes();
    let mask = cpu.x87.regs[usize::from(op.r2 & 7)].significand.to_le_bytes();
    let offset = destination(cpu, op);
    enter_mmx(cpu);
    store_masked(cpu, op, offset, &data, &mask, 1)?;
    Ok(Flow::Next)
}
