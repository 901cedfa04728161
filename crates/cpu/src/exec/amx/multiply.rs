//! Tile multiplication. Each 32-bit element consists of two halves or four bytes.

use crate::arch::{ROW, TILE};

/// Interpretation of the sources' elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    /// Bytes, both sources signed.
    SignedSigned,
    /// Bytes, first source signed.
    SignedUnsigned,
    /// Bytes, second source signed.
    UnsignedSigned,
    /// Unsigned bytes.
    UnsignedUnsigned,
    /// Pairs of BF16.
    Brain,
    /// Pairs of FP16.
    Half,
}

/// Number of elements in a row.
const ELEMENTS: usize = ROW / 4;

/// MXCSR of the sums: all exceptions masked, round to nearest, denormals are zeros, results flushed to zero.
const SUM_MXCSR: u32 = 0x1f80 | 1 << 15 | 1 << 6;

/// Returns a row as 32-bit elements.
fn row(tile: &[u8; TILE], number: usize) -> [u32; ELEMENTS] {
    let bytes = &tile.as_chunks::<ROW>().0[number];
    std::array::from_fn(|n| u32::from_le_bytes(bytes.as_chunks().0[n]))
}

impl Product {
    /// Adds the product of `first` (rows by depth) and `second` (depth by columns) to `to`; elements outside of the
    /// shape become zero.
    pub fn add(self, to: &mut [u8; TILE], first: &[u8; TILE], second: &[u8; TILE], shape: [usize; 3]) {
        let [rows, depth, columns] = shape;
        let seconds: [[u32; ELEMENTS]; ELEMENTS] = std::array::from_fn(|k| row(second, k));
        for m in 0..rows {
            let (firsts, mut sums) = (row(first, m), row(to, m));
            match self {
                Self::Brain => add_pairs(&mut sums, &firsts, &seconds, depth, brain),
                Self::Half => add_pairs(&mut sums, &firsts, &seconds, depth, half),
                _ => {
                    for (a, others) in firsts.iter().zip(&seconds).take(depth) {
                        for (sum, b) in sums.iter_mut().zip(others) {
                            *sum = sum.wrapping_add(self.dot(*a, *b));
                        }
                    }
                }
            }
            sums[columns..].fill(0);
            for (bytes, sum) in to.as_chunks_mut::<ROW>().0[m].as_chunks_mut().0.iter_mut().zip(sums) {
                *bytes = sum.to_le_bytes();
            }
        }
        to[rows * ROW..].fill(0);
    }

    /// Returns the sum of the products of four bytes.
    fn dot(self, a: u32, b: u32) -> u32 {
        let signs = match self {
            Self::SignedSigned => (true, true),
            Self::SignedUnsigned => (true, false),
            Self::UnsignedSigned => (false, true),
            _ => (false, false),
        };
        let value = |byte: u8, signed: bool| if signed { i32::from(byte as i8) } else { i32::from(byte) };
        let pairs = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
        pairs.map(|(a, b)| value(a, signs.0) * value(b, signs.1)).sum::<i32>() as u32
    }
}

/// Converts BF16 to single precision.
fn brain(bits: u16) -> u32 {
    u32::from(bits) << 16
}

/// Converts FP16 to single precision, which represents all values, including denormals.
fn half(bits: u16) -> u32 {
    let (sign, exponent, fraction) = (u32::from(bits >> 15), u32::from(bits >> 10 & 31), u32::from(bits & 0x3ff));
    let magnitude = match (exponent, fraction) {
        (0, 0) => 0,
        (0, _) => {
            // The highest bit of the fraction becomes the implicit bit.
            let shift = fraction.leading_zeros() - 21;
            (113 - shift) << 23 | (fraction << shift & 0x3ff) << 13
        }
        // Infinities, and unchanged NaNs.
        (31, _) => 0xff << 23 | fraction << 13,
        _ => (exponent + 112) << 23 | fraction << 13,
    };
    sign << 31 | magnitude
}

/// Converts the halves of elements to single precision.
fn singles(elements: &[u32; ELEMENTS], single: fn(u16) -> u32) -> [u32; 2 * ELEMENTS] {
    std::array::from_fn(|n| single((elements[n / 2] >> (16 * (n % 2))) as u16))
}

/// Adds to each element of a row the sum of all products of its pairs, in the manual's order: the products of the lower
/// halves and those of the upper halves are summed separately, by fused operations; then both sums are added, and the
/// result is added to the element.
fn add_pairs(
    sums: &mut [u32; ELEMENTS],
    firsts: &[u32; ELEMENTS],
    seconds: &[[u32; ELEMENTS]; ELEMENTS],
    depth: usize,
    single: fn(u16) -> u32,
) {
    if depth == 0 {
        return;
    }
    let firsts = singles(firsts, single);
    let seconds = seconds.map(|elements| singles(&elements, single));
    let mut mxcsr = [0, SUM_MXCSR];
    // SAFETY: the loop reads `depth` pairs of `firsts` and as many rows of `seconds`, at most 16 each, and the last
    // part reads and writes the 16 elements of `sums`. Hosts have AVX2 and FMA (see `native`); MXCSR is restored.
    unsafe {
        std::arch::asm!(
            "stmxcsr dword ptr [r8]",
            "ldmxcsr dword ptr [r8 + 4]",
            "vxorps ymm0, ymm0, ymm0",
            "vxorps ymm1, ymm1, ymm1",
            "vxorps ymm2, ymm2, ymm2",
            "vxorps ymm3, ymm3, ymm3",
            "2:",
            "vbroadcastsd ymm4, qword ptr [rsi]",
            "vfmadd231ps ymm0, ymm4, ymmword ptr [rdx]",
            "vfmadd231ps ymm1, ymm4, ymmword ptr [rdx + 32]",
            "vfmadd231ps ymm2, ymm4, ymmword ptr [rdx + 64]",
            "vfmadd231ps ymm3, ymm4, ymmword ptr [rdx + 96]",
            "add rsi, 8",
            "add rdx, 128",
            "dec rcx",
            "jnz 2b",
            // Sums of adjacent pairs; within each half of a register, those of the first operand come first.
            "vhaddps ymm0, ymm0, ymm1",
            "vhaddps ymm2, ymm2, ymm3",
            "vpermpd ymm0, ymm0, 0xd8",
            "vpermpd ymm2, ymm2, 0xd8",
            "vmovups ymm1, ymmword ptr [rdi]",
            "vmovups ymm3, ymmword ptr [rdi + 32]",
            "vaddps ymm0, ymm1, ymm0",
            "vaddps ymm2, ymm3, ymm2",
            "vmovups ymmword ptr [rdi], ymm0",
            "vmovups ymmword ptr [rdi + 32], ymm2",
            "ldmxcsr dword ptr [r8]",
            "vzeroupper",
            inout("rsi") firsts.as_ptr() => _,
            inout("rdx") seconds.as_ptr() => _,
            inout("rcx") depth.min(ELEMENTS) => _,
            inout("rdi") sums.as_mut_ptr() => _,
            inout("r8") mxcsr.as_mut_ptr() => _,
            clobber_abi("C"),
            options(nostack),
        );
    }
}
