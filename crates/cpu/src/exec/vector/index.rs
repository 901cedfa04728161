//! Addresses of elements in gathers and scatters.

use crate::fault::Exec;
use crate::op::{Op, address_mask};
use crate::state::Cpu;

/// Returns the linear address of an element.
pub(super) fn place<const INDEX: usize>(
    cpu: &mut Cpu,
    op: &Op,
    indices: &[u8],
    n: usize,
    len: u64,
    write: bool,
) -> Exec<u64> {
    let mut index = [0; 8];
    index[..INDEX].copy_from_slice(&indices[n * INDEX..(n + 1) * INDEX]);
    let index = match INDEX {
        4 => u64::from_le_bytes(index) as i32 as u64,
        _ => u64::from_le_bytes(index),
    };
    let offset = cpu.reg(op.base).wrapping_add(index << (op.scale & 3)).wrapping_add(op.disp);
    cpu.linear(op.seg, offset & address_mask(op.asize), len, write)
}
