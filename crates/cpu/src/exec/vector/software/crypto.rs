//! VAES, GFNI and VPCLMULQDQ.

use super::lanes::{at, by_index, each, map2, two};
use super::{Body, Form, Operands};
use iced_x86::{Instruction, Mnemonic::*};

/// Binds these instructions.
pub fn bind(i: &Instruction) -> Option<Body> {
    Some(match i.mnemonic() {
        Vaesenc => two!(u128, |state, key| substitute_and_mix(state, &MIXED, 5) ^ key),
        Vaesenclast => two!(u128, |state, key| substitute(state, &SBOX, 5) ^ key),
        Vaesdec => two!(u128, |state, key| substitute_and_mix(state, &INVERSE_MIXED, 13) ^ key),
        Vaesdeclast => two!(u128, |state, key| substitute(state, &INVERSE_SBOX, 13) ^ key),
        Vpclmulqdq => each!(u128, |form, o, n| {
            let x = at::<u64>(&o.a, 2 * n + usize::from(form.imm & 1));
            let y = at::<u64>(&o.b, 2 * n + usize::from(form.imm >> 4 & 1));
            carryless(x, y)
        }),
        Vgf2p8mulb => two!(u8, |x, y| straight_product(x, y)),
        Vgf2p8affineqb => each!(u8, |form, o, n| affine(at(&o.b, n / 8), o.a[n]) ^ form.imm),
        Vgf2p8affineinvqb => {
            each!(u8, |form, o, n| affine(at(&o.b, n / 8), INVERSE[usize::from(o.a[n])]) ^ form.imm)
        }
        _ => return None,
    })
}

/// Returns the product in GF(2^8) modulo x^8 + x^4 + x^3 + x + 1.
const fn product(x: u8, y: u8) -> u8 {
    let (mut x, mut y, mut sum) = (x, y, 0);
    while y != 0 {
        if y & 1 != 0 {
            sum ^= x;
        }
        x = (x << 1) ^ ((x >> 7) * 0x1b);
        y >>= 1;
    }
    sum
}

/// Computes [`product`] without branches, so that the compiler can vectorize it.
#[inline(always)]
fn straight_product(x: u8, y: u8) -> u8 {
    let mut x = x;
    (0..8).fold(0, |sum, bit| {
        let term = x & 0u8.wrapping_sub(y >> bit & 1);
        x = (x << 1) ^ (0u8.wrapping_sub(x >> 7) & 0x1b);
        sum ^ term
    })
}

/// Multiplicative inverses in GF(2^8); the inverse of 0 is 0.
static INVERSE: [u8; 256] = inverses();

const fn inverses() -> [u8; 256] {
    let mut table = [0; 256];
    let mut x = 1;
    while x < 256 {
        // x^254 is the inverse: 254 = 2 + 4 + ... + 128.
        let (mut power, mut result, mut n) = (x as u8, 1, 0);
        while n < 7 {
            power = product(power, power);
            result = product(result, power);
            n += 1;
        }
        table[x] = result;
        x += 1;
    }
    table
}

/// The S-box of AES (FIPS 197, 5.1.1): the inverse, followed by an affine transformation.
static SBOX: [u8; 256] = sbox();
static INVERSE_SBOX: [u8; 256] = inverse_sbox();

const fn sbox() -> [u8; 256] {
    let inverse = inverses();
    let mut table = [0; 256];
    let mut x = 0;
    while x < 256 {
        let b = inverse[x];
        let turned = b.rotate_left(1) ^ b.rotate_left(2) ^ b.rotate_left(3) ^ b.rotate_left(4);
        table[x] = b ^ turned ^ 0x63;
        x += 1;
    }
    table
}

const fn inverse_sbox() -> [u8; 256] {
    let forward = sbox();
    let mut table = [0; 256];
    let mut x = 0;
    while x < 256 {
        table[forward[x] as usize] = x as u8;
        x += 1;
    }
    table
}

/// Shifts rows and substitutes bytes: each byte is taken from `step` times its index, modulo 16.
fn substitute(state: u128, table: &[u8; 256], step: usize) -> u128 {
    let bytes = state.to_le_bytes();
    u128::from_le_bytes(std::array::from_fn(|n| table[usize::from(bytes[n * step % 16])]))
}

/// Contribution of the first byte of a column to the mixed column, indexed by the byte before substitution.
static MIXED: [u32; 256] = mixed(sbox(), [2, 1, 1, 3]);
static INVERSE_MIXED: [u32; 256] = mixed(inverse_sbox(), [14, 9, 13, 11]);

const fn mixed(substituted: [u8; 256], column: [u8; 4]) -> [u32; 256] {
    let mut table = [0; 256];
    let mut x = 0;
    while x < 256 {
        let b = substituted[x];
        table[x] = u32::from_le_bytes([
            product(b, column[0]),
            product(b, column[1]),
            product(b, column[2]),
            product(b, column[3]),
        ]);
        x += 1;
    }
    table
}

/// Shifts rows, substitutes bytes and mixes columns.
fn substitute_and_mix(state: u128, table: &[u32; 256], step: usize) -> u128 {
    let bytes = state.to_le_bytes();
    (0..4).fold(0, |result, column| {
        let part = |row: usize| table[usize::from(bytes[(4 * column + row) * step % 16])].rotate_left(8 * row as u32);
        result | u128::from(part(0) ^ part(1) ^ part(2) ^ part(3)) << (32 * column)
    })
}

/// Returns the product of polynomials over GF(2), computed with four bits of `y` at a time.
fn carryless(x: u64, y: u64) -> u128 {
    let mut multiples = [0u128; 16];
    for n in 1..16 {
        multiples[n] = multiples[n / 2] << 1 ^ if n & 1 != 0 { u128::from(x) } else { 0 };
    }
    (0..16).rev().fold(0, |sum, digit| sum << 4 ^ multiples[(y >> (4 * digit) & 15) as usize])
}

/// Computes an affine transformation: a bit of the result is the parity of the byte masked by a row of the matrix; the
/// last row gives bit 0.
fn affine(matrix: u64, x: u8) -> u8 {
    let rows = matrix.to_be_bytes();
    (0..8).fold(0, |result, bit| result | (((rows[bit] & x).count_ones() & 1) as u8) << bit)
}
