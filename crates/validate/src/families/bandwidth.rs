//! The time of a line that is read, written or copied in order, by the size of the memory.

use crate::kernel::{Data, Kernel};
use crate::layout::{HUGE, HUGE_LEN};
use iced_x86::code_asm::{registers::*, xmmword_ptr};

/// Size of a line.
const LINE: u64 = 64;
/// Lines in a round.
const LINES: u64 = 4;

/// What is done to the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// All 64 bytes are read.
    Read,
    /// All 64 bytes are written.
    Write,
    /// Half of the memory is copied to the other half.
    Copy,
}

impl Way {
    /// All.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Copy];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Copy => "copy",
        }
    }
}

/// Returns the sizes, in bytes.
pub fn sizes(quick: bool) -> Vec<u64> {
    match quick {
        false => [8, 16, 24, 64, 128, 256, 1024, 2048, 4096, 8192, 16384, 65536, 131_072].map(|k| k << 10).to_vec(),
        true => [16, 256, 4096, 131_072].map(|k| k << 10).to_vec(),
    }
}

/// Returns the kernels, with their sizes.
pub fn kernels(quick: bool) -> Vec<(Way, u64, Kernel)> {
    let of = |way| sizes(quick).into_iter().map(move |size| (way, size, kernel(way, size)));
    Way::ALL.into_iter().flat_map(of).collect()
}

fn kernel(way: Way, size: u64) -> Kernel {
    assert!(size <= HUGE_LEN);
    let range = if way == Way::Copy { size / 2 } else { size };
    let step = LINE * LINES;
    let pass = range / step;
    // A whole pass, and a thousand lines at least. A part of a large memory would stay in the third level, and the next measurement, which
    // begins at the same line, would find it there.
    let rounds = pass.max(256);
    let vectors = [xmm0, xmm1, xmm2, xmm3];
    Kernel::new(
        format!("{} {size}", way.name()),
        rounds,
        move |a| {
            a.mov(rbx, HUGE)?;
            a.mov(rsi, HUGE)?;
            a.mov(rdi, HUGE + range)?;
            a.mov(rbp, HUGE + range)?;
            vectors.into_iter().try_for_each(|v| a.pxor(v, v))
        },
        move |a| {
            for at in 0..step / 16 {
                let (vector, at) = (vectors[at as usize % 4], 16 * at as i32);
                match way {
                    Way::Read => a.movaps(vector, xmmword_ptr(rsi + at))?,
                    Way::Write => a.movaps(xmmword_ptr(rsi + at), vector)?,
                    Way::Copy => {
                        a.movaps(vector, xmmword_ptr(rsi + at))?;
                        a.movaps(xmmword_ptr(rdi + at), vector)?;
                    }
                }
            }
            // Both pointers begin again at the end of the memory.
            a.add(rsi, step as i32)?;
            a.add(rdi, step as i32)?;
            a.cmp(rsi, rbp)?;
            a.cmovae(rsi, rbx)?;
            a.mov(rcx, rdi)?;
            a.sub(rcx, range as i32)?;
            a.cmp(rcx, rbp)?;
            a.cmovae(rdi, rbp)
        },
    )
    .steps(LINES as f64)
    .warm(pass.max(64))
    .with(Data::Fill(HUGE, size, 1))
}
