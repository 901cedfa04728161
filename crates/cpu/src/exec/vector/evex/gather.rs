//! Gathers and scatters under an opmask: elements are accessed one by one, from the lowest. Accesses before a fault are
//! kept, with their mask bits clear.

use super::execute::{bytes, set_bytes};
use super::ready;
use crate::exec::vector::index::place;
use crate::fault::{Exec, Flow};
use crate::op::{Handler, Op};
use crate::state::Cpu;
use iced_x86::{Instruction, Mnemonic::*, OpKind, Register};

/// Binds a gather or scatter.
pub fn bind(i: &Instruction, op: &mut Op) -> Option<Handler> {
    let index = i.memory_index();
    let scatter = i.op0_kind() == OpKind::Memory;
    let data = if scatter { i.op1_register() } else { i.op0_register() };
    let (index_size, element) = match i.mnemonic() {
        Vgatherdps | Vpgatherdd | Vscatterdps | Vpscatterdd => (4, 4),
        Vgatherdpd | Vpgatherdq | Vscatterdpd | Vpscatterdq => (4, 8),
        Vgatherqps | Vpgatherqd | Vscatterqps | Vpscatterqd => (8, 4),
        Vgatherqpd | Vpgatherqq | Vscatterqpd | Vpscatterqq => (8, 8),
        _ => return None,
    };
    if i.op_mask() == Register::None || (!scatter && data.number() == index.number()) {
        return None;
    }
    op.size = i.op_mask().number() as u8;
    op.r0 = data.number() as u8;
    op.r1 = index.number() as u8;
    op.r2 = (index.size() / index_size).min(data.size() / element) as u8;
    Some(match (scatter, index_size, element) {
        (false, 4, 4) => gather::<4, 4>,
        (false, 4, _) => gather::<4, 8>,
        (false, _, 4) => gather::<8, 4>,
        (false, ..) => gather::<8, 8>,
        (true, 4, 4) => scatter_elements::<4, 4>,
        (true, 4, _) => scatter_elements::<4, 8>,
        (true, _, 4) => scatter_elements::<8, 4>,
        (true, ..) => scatter_elements::<8, 8>,
    })
}

fn count<const INDEX: usize, const ELEMENT: usize>(op: &Op) -> usize {
    usize::from(op.r2).min(64 / INDEX.max(ELEMENT))
}

fn gather<const INDEX: usize, const ELEMENT: usize>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    ready(cpu)?;
    let indices = bytes(cpu, op.r1);
    let count = count::<INDEX, ELEMENT>(op);
    let k = usize::from(op.size & 7);
    let mut result = bytes(cpu, op.r0);
    // The destination is unchanged until the first element has been loaded.
    let mut loaded = false;
    for n in 0..count {
        if cpu.arch.vector.k[k] >> n & 1 == 0 {
            continue;
        }
        let at = n * ELEMENT;
        let read = place::<INDEX>(cpu, op, &indices, n, ELEMENT as u64, false)
            .and_then(|linear| cpu.read_bytes(linear, op.seg, &mut result[at..at + ELEMENT]));
        if let Err(fault) = read {
            if loaded {
                // As with VEX, elements within the length of the indices are not cleared yet.
                result[(count * INDEX.max(ELEMENT)).max(16)..].fill(0);
                set_bytes(cpu, op.r0, &result);
            }
            return Err(fault);
        }
        cpu.arch.vector.k[k] &= !(1 << n);
        loaded = true;
    }
    cpu.arch.vector.k[k] = 0;
    result[count * ELEMENT..].fill(0);
    set_bytes(cpu, op.r0, &result);
    Ok(Flow::Next)
}

fn scatter_elements<const INDEX: usize, const ELEMENT: usize>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    ready(cpu)?;
    let indices = bytes(cpu, op.r1);
    let data = bytes(cpu, op.r0);
    let count = count::<INDEX, ELEMENT>(op);
    let k = usize::from(op.size & 7);
    for n in 0..count {
        if cpu.arch.vector.k[k] >> n & 1 == 0 {
            continue;
        }
        let linear = place::<INDEX>(cpu, op, &indices, n, ELEMENT as u64, true)?;
        cpu.write_bytes(linear, op.seg, &data[n * ELEMENT..(n + 1) * ELEMENT])?;
        cpu.arch.vector.k[k] &= !(1 << n);
    }
    cpu.arch.vector.k[k] = 0;
    Ok(Flow::Next)
}
