//! The time of a load by the size of the memory that it may hit: lmbench's lat_mem_rd, in random order.

use crate::kernel::{Data, Kernel};
use crate::layout::HUGE;
use iced_x86::code_asm::{qword_ptr, registers::*};

/// Size of a line.
const LINE: u64 = 64;
/// Loads in a round.
const LOADS: u64 = 16;

/// Returns the sizes, in bytes.
pub fn sizes(quick: bool) -> Vec<u64> {
    let quarters = |power: u32| [4u64, 6].map(|quarter| quarter << (power - 2));
    let all: Vec<u64> = (12..=25).flat_map(quarters).chain([64 << 20]).collect();
    match quick {
        false => all,
        true => [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20].to_vec(),
    }
}

/// Returns the kernels, with their sizes.
pub fn kernels(quick: bool) -> Vec<(u64, Kernel)> {
    sizes(quick).into_iter().map(|size| (size, kernel(size))).collect()
}

fn kernel(size: u64) -> Kernel {
    let nodes = size / LINE;
    // The ring is followed once before it is measured, because its data came through the caches in another order. All of it, so that
    // the next measurement, which begins at the same node, does not find what the last one left.
    let warm = nodes.div_ceil(LOADS);
    let rounds = warm.clamp(64, 12_000);
    Kernel::new(
        format!("load {size}"),
        rounds,
        |a| a.mov(rbx, HUGE),
        |a| (0..LOADS).try_for_each(|_| a.mov(rbx, qword_ptr(rbx))),
    )
    .steps(LOADS as f64)
    .warm(warm)
    .with(Data::Ring { base: HUGE, nodes, step: LINE, skew: 0, sorted: false })
}
