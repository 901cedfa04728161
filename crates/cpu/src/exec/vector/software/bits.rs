//! Bit counts, conflict detection, bit selection, and the dot products of VNNI and IFMA.

use super::lanes::{Element, at, by_index, each, map1, map3, one, three};
use super::{Body, Form, Operands, Outcome};
use iced_x86::{Instruction, Mnemonic, Mnemonic::*};

/// Binds these EVEX forms.
pub fn bind(i: &Instruction) -> Option<Body> {
    Some(match i.mnemonic() {
        Vplzcntd => one!(u32, |x| x.leading_zeros()),
        Vplzcntq => one!(u64, |x| u64::from(x.leading_zeros())),
        Vpopcntb => one!(u8, |x| x.count_ones() as u8),
        Vpopcntw => one!(u16, |x| x.count_ones() as u16),
        Vpopcntd => one!(u32, |x| x.count_ones()),
        Vpopcntq => one!(u64, |x| u64::from(x.count_ones())),
        Vpconflictd => each!(u32, |_f, o, n| conflicts::<u32>(o, n) as u32),
        Vpconflictq => each!(u64, |_f, o, n| conflicts::<u64>(o, n)),
        Vpmultishiftqb => each!(u8, |_f, o, n| at::<u64>(&o.b, n / 8).rotate_right(u32::from(o.a[n] & 63)) as u8),
        Vpshufbitqmb => shuffle_bits,
        Vpmadd52luq => three!(u64, |d, x, y| d.wrapping_add(product52(x, y) as u64 & MASK52)),
        Vpmadd52huq => three!(u64, |d, x, y| d.wrapping_add((product52(x, y) >> 52) as u64)),
        other => return dot_product(other),
    })
}

/// Binds the VEX forms of AVX-VNNI.
pub fn bind_vnni(i: &Instruction) -> Option<Body> {
    dot_product(i.mnemonic())
}

/// VNNI: products of four bytes or two words, summed into a doubleword.
fn dot_product(mnemonic: Mnemonic) -> Option<Body> {
    Some(match mnemonic {
        Vpdpbusd => three!(i32, |d, x, y| d.wrapping_add(bytes(x, y))),
        Vpdpbusds => three!(i32, |d, x, y| d.saturating_add(bytes(x, y))),
        Vpdpwssd => three!(i32, |d, x, y| (i64::from(d) + words(x, y)) as i32),
        Vpdpwssds => three!(i32, |d, x, y| {
            (i64::from(d) + words(x, y)).clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32
        }),
        _ => return None,
    })
}

fn bytes(x: i32, y: i32) -> i32 {
    x.to_le_bytes().iter().zip(y.to_le_bytes()).map(|(&x, y)| i32::from(x) * i32::from(y as i8)).sum()
}

fn words(x: i32, y: i32) -> i64 {
    let low = i64::from(x as i16) * i64::from(y as i16);
    low + i64::from(x >> 16) * i64::from(y >> 16)
}

const MASK52: u64 = (1 << 52) - 1;

fn product52(x: u64, y: u64) -> u128 {
    u128::from(x & MASK52) * u128::from(y & MASK52)
}

/// Returns a bit for each earlier element that is equal to this one.
fn conflicts<T: Element + PartialEq>(o: &Operands, n: usize) -> u64 {
    let own = T::get(&o.a, n);
    (0..n).fold(0, |bits, earlier| bits | u64::from(T::get(&o.a, earlier) == own) << earlier)
}

/// VPSHUFBITQMB: each byte of `b` selects a bit of its quadword of `a`.
fn shuffle_bits(form: &Form, o: &Operands) -> Outcome {
    let mut k = 0;
    for n in 0..form.length {
        k |= (at::<u64>(&o.a, n / 8) >> (o.b[n] & 63) & 1) << n;
    }
    Outcome::mask(k & o.mask)
}
