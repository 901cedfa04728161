//! Operand generator: random bits, small numbers, limits, and every kind of floating-point value.

use super::{Operands, Shape};
use crate::testing::Random;
use iced_x86::{Instruction, OpKind};

/// Returns a number with `fraction` bits of fraction in `width` bits, of a random kind.
fn float(random: &mut Random, width: u32, fraction: u32) -> u64 {
    let exponents = (1u64 << (width - 1 - fraction)) - 1;
    let bias = exponents >> 1;
    let sign = random.below(2) << (width - 1);
    let all = (1u64 << fraction) - 1;
    let exponent = match random.below(16) {
        0 | 1 => 0,
        2 => exponents,
        3 => 1 + random.below(3),
        4 => exponents - 1 - random.below(3),
        5 => bias + u64::from(width) - 1 - random.below(3),
        6 => (bias + 65).min(exponents - 1) - random.below(4).min(bias),
        7 => 1 + random.below(exponents - 1),
        8..12 => bias + random.below(4) - 2,
        _ => (bias + random.below(u64::from(2 * fraction))).saturating_sub(u64::from(fraction)).min(exponents - 1),
    };
    let significand = match random.below(8) {
        0 => 0,
        1 => all,
        2 => 1,
        3 => 1 << random.below(u64::from(fraction)),
        4 => (random.next() & all) >> random.below(u64::from(fraction)),
        5 => random.next() & all & !((1 << random.below(u64::from(fraction))) - 1),
        _ => random.next() & all,
    };
    sign | exponent << fraction | significand
}

fn element(random: &mut Random, size: usize, kind: u64) -> u64 {
    let width = 8 * size as u32;
    match kind {
        0 => random.next(),
        1 => random.below(16),
        2 => match random.below(6) {
            0 => 0,
            1 => 1,
            2 => u64::MAX,
            3 => 1 << (width - 1),
            4 => (1 << (width - 1)) - 1,
            _ => 1 << random.below(u64::from(width)),
        },
        _ => match size {
            2 if random.below(2) == 0 => float(random, 16, 7),
            2 => float(random, 16, 10),
            4 => float(random, 32, 23),
            8 => float(random, 64, 52),
            _ => random.next(),
        },
    }
}

/// Returns a vector of elements of one kind, or of mixed kinds.
pub fn vector(random: &mut Random, size: usize) -> [u8; 64] {
    let kind = random.below(8);
    let mut v = [0; 64];
    for chunk in v.chunks_exact_mut(size) {
        let kind = if kind < 4 { kind } else { 3 + random.below(5) - random.below(4) };
        chunk.copy_from_slice(&element(random, size, kind.min(3)).to_le_bytes()[..size]);
    }
    v
}

/// Returns operands for an instruction; the element size usually is that of its memory operand.
pub fn operands(i: &Instruction, shape: &Shape, random: &mut Random, case: u64) -> Operands {
    let own = i.memory_size().element_size().clamp(1, 8).next_power_of_two();
    let mut size = || if random.below(4) == 0 { 1 << random.below(4) } else { own };
    let sizes = [size(), size(), size()];
    let mut o = Operands {
        dest: vector(random, sizes[0]),
        a: vector(random, sizes[1]),
        b: vector(random, sizes[2]),
        c: [0; 64],
        mask: if i.has_op_mask() {
            match case % 8 {
                0 => u64::MAX,
                1 => 0,
                2 => random.next() | 1,
                _ => random.next(),
            }
        } else {
            u64::MAX
        },
        mxcsr: 0x1f80 | (random.below(4) as u32) << 13,
    };
    // Some exceptions are unmasked occasionally.
    if random.below(4) == 0 {
        o.mxcsr &= !((random.next() as u32 & 0x3f) << 7);
    }
    match random.below(6) {
        0 => o.mxcsr |= 0x40,
        1 => o.mxcsr |= 0x8000,
        2 => o.mxcsr |= 0x8040,
        _ => {}
    }
    // Some operands are equal occasionally.
    if random.below(16) == 0 {
        o.b = o.a;
    }
    if let Some(n) = shape.memory {
        let operand = match n {
            0 => &mut o.dest,
            1 => &mut o.a,
            _ => &mut o.b,
        };
        operand[i.memory_size().size()..].fill(0);
    }
    debug_assert!(i.op_count() > 0 && i.op0_kind() != OpKind::Immediate8);
    o
}
