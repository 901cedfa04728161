//! Gathers: elements are loaded one by one; those loaded before a fault are kept, with their mask elements cleared.

use crate::exec::vector::evex;
use crate::exec::vector::execute::ready;
use crate::exec::vector::index::place;
use crate::exec::vector::mask::{bytes, set_bytes};
use crate::fault::{Exec, Flow};
use crate::op::{Handler, Op};
use crate::state::Cpu;
use iced_x86::{EncodingKind, Instruction, Mnemonic::*};

/// Binds a gather.
pub fn bind(i: &Instruction, op: &mut Op) -> Option<Handler> {
    match i.code().encoding() {
        EncodingKind::VEX => {}
        EncodingKind::EVEX => return evex::gather::bind(i, op),
        _ => return None,
    }
    let (destination, index, mask) = (i.op0_register(), i.memory_index(), i.op2_register());
    op.r1 = index.number() as u8;
    op.r2 = mask.number() as u8;
    if op.r0 == op.r1 || op.r0 == op.r2 || op.r1 == op.r2 {
        return None;
    }
    let (index_size, element) = match i.mnemonic() {
        Vgatherdps | Vpgatherdd => (4, 4),
        Vgatherdpd | Vpgatherdq => (4, 8),
        Vgatherqps | Vpgatherqd => (8, 4),
        Vgatherqpd | Vpgatherqq => (8, 8),
        _ => return None,
    };
    let count = (index.size() / index_size).min(destination.size() / element);
    op.size = count as u8;
    op.r3 = index.size().max(mask.size()) as u8;
    Some(match (index_size, element) {
        (4, 4) => run::<4, 4>,
        (4, _) => run::<4, 8>,
        (_, 4) => run::<8, 4>,
        _ => run::<8, 8>,
    })
}

fn run<const INDEX: usize, const ELEMENT: usize>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    ready::<true>(cpu)?;
    let count = usize::from(op.size).min(32 / INDEX.max(ELEMENT));
    let indices = bytes(cpu, op.r1);
    let mut mask = bytes(cpu, op.r2);
    let mut result = bytes(cpu, op.r0);
    // All bits of a mask element become its sign bit; beyond the vector length the mask is zero.
    let width = usize::from(op.r3 & 32).max(16);
    for element in mask[..width].chunks_exact_mut(ELEMENT) {
        let fill = if element[ELEMENT - 1] & 0x80 != 0 { 0xff } else { 0 };
        element.fill(fill);
    }
    mask[width..].fill(0);
    // The destination is unchanged until the first element has been loaded.
    let mut loaded = false;
    for n in 0..count {
        let at = n * ELEMENT;
        if mask[at] == 0 {
            continue;
        }
        let read = place::<INDEX>(cpu, op, &indices, n, ELEMENT as u64, false).and_then(|linear| {
            let element = &mut result[at..at + ELEMENT];
            cpu.read_bytes(linear, op.seg, element)
        });
        if let Err(fault) = read {
            set_bytes(cpu, op.r2, &mask);
            if loaded {
                result[width..].fill(0);
                set_bytes(cpu, op.r0, &result);
            }
            return Err(fault);
        }
        mask[at..at + ELEMENT].fill(0);
        loaded = true;
    }
    set_bytes(cpu, op.r2, &[0; 32]);
    result[count * ELEMENT..].fill(0);
    set_bytes(cpu, op.r0, &result);
    Ok(Flow::Next)
}
