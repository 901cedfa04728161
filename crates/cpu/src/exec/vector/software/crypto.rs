//! VAES, GFNI and VPCLMULQDQ.

use super::lanes::{at, by_index, each, map2, two};
use super::{Body, Form, Operands};
use iced_x86::{Instruction, Mnemonic::*};

/// Binds these.
pub fn bind(i: &Instruction) -> Option<Body> {
    Some(match i.mnemonic() {
        Vaesenc => two!(u128, |state, key| mix(substitute(state, &SBOX, 5), [2, 3, 1, 1]) ^ key),
        Vaesenclast => two!(u128, |state, key| substitute(state, &SBOX, 5) ^ key),
        Vaesdec => two!(u128, |state, key| mix(substitute(state, &INVERSE_SBOX, 13), [14, 11, 13, 9]) ^ key),
        Vaesdeclast => two!(u128, |state, key| substitute(state, &INVERSE_SBOX, 13) ^ key),
        Vpclmulqdq => each!(u128, |form, o, n| {
            let x = at::<u64>(&o.a, 2 * n + usize::from(form.imm & 1));
            let y = at::<u64>(&o.b, 2 * n + usize::from(form.imm >> 4 & 1));
            carryless(x, y)
        }),
        Vgf2p8mulb => two!(u8, |x, y| product(x, y)),
        Vgf2p8affineqb => each!(u8, |form, o, n| affine(at(&o.b, n / 8), o.a[n]) ^ form.imm),
        Vgf2p8affineinvqb => {
            each!(u8, |form, o, n| affine(at(&o.b, n / 8), INVERSE[usize::from(o.a[n])]) ^ form.imm)
        }
        _ => return None,
    })
}

/// The product in GF(2^8) modulo x^8 + x^4 + x^3 + x + 1.
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

/// Multiplicative inverses in GF(2^8); that of 0 is 0.
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

/// The substitution of AES (FIPS 197, 5.1.1): the inverse, through an affine transformation.
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

/// Shifts rows and substitutes bytes: each byte comes from `step` times its index, modulo 16.
fn substitute(state: u128, table: &[u8; 256], step: usize) -> u128 {
    let bytes = state.to_le_bytes();
    u128::from_le_bytes(std::array::from_fn(|n| table[usize::from(bytes[n * step % 16])]))
}

/// Multiplies each column by a circulant matrix, whose first row is given.
fn mix(state: u128, row: [u8; 4]) -> u128 {
    let bytes = state.to_le_bytes();
    u128::from_le_bytes(std::array::from_fn(|n| {
        (0..4).fold(0, |sum, k| sum ^ product(bytes[n / 4 * 4 + (n + k) % 4], row[k]))
    }))
}

fn carryless(x: u64, y: u64) -> u128 {
    (0..64).filter(|bit| y >> bit & 1 != 0).fold(0, |sum, bit| sum ^ u128::from(x) << bit)
}

/// A bit of the result is the parity of a row of the matrix and the byte; the last row gives bit 0.
fn affine(matrix: u64, x: u8) -> u8 {
    let rows = matrix.to_be_bytes();
    (0..8).fold(0, |result, bit| result | (((rows[bit] & x).count_ones() & 1) as u8) << bit)
}
