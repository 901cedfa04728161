//! The time of a load by the number of pages of 4 KiB that it may hit, one line of each.

use crate::kernel::{Data, Kernel};
use crate::layout::{PAGE, SMALL};
use iced_x86::code_asm::{qword_ptr, registers::*};

/// Loads in a round.
const LOADS: u64 = 16;

/// Returns the numbers of pages.
pub fn sizes(quick: bool) -> Vec<u64> {
    let all = [16, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096, 8192, 16384];
    match quick {
        false => all.to_vec(),
        true => vec![32, 128, 512, 2048, 8192],
    }
}

/// Returns the kernels, with their numbers of pages.
pub fn kernels(quick: bool) -> Vec<(u64, Kernel)> {
    sizes(quick).into_iter().map(|pages| (pages, kernel(pages))).collect()
}

fn kernel(pages: u64) -> Kernel {
    let warm = (2 * pages).div_ceil(LOADS);
    Kernel::new(
        format!("pages {pages}"),
        warm.clamp(64, 1024),
        |a| a.mov(rbx, SMALL),
        |a| (0..LOADS).try_for_each(|_| a.mov(rbx, qword_ptr(rbx))),
    )
    .steps(LOADS as f64)
    .warm(warm)
    .with(Data::Ring { base: SMALL, nodes: pages, step: PAGE, skew: 64, sorted: false })
}
