//! Integer arithmetic, packs and logic.

use super::lanes::{at, by_index, each, map1, map2, map3, one, three, two};
use super::{Body, Form, Operands};
use iced_x86::{Instruction, Mnemonic::*};

/// Binds integer arithmetic and logic.
pub fn bind(i: &Instruction) -> Option<Body> {
    Some(match i.mnemonic() {
        Vpaddb => two!(u8, |x, y| x.wrapping_add(y)),
        Vpaddw => two!(u16, |x, y| x.wrapping_add(y)),
        Vpaddd => two!(u32, |x, y| x.wrapping_add(y)),
        Vpaddq => two!(u64, |x, y| x.wrapping_add(y)),
        Vpaddsb => two!(i8, |x, y| x.saturating_add(y)),
        Vpaddsw => two!(i16, |x, y| x.saturating_add(y)),
        Vpaddusb => two!(u8, |x, y| x.saturating_add(y)),
        Vpaddusw => two!(u16, |x, y| x.saturating_add(y)),
        Vpsubb => two!(u8, |x, y| x.wrapping_sub(y)),
        Vpsubw => two!(u16, |x, y| x.wrapping_sub(y)),
        Vpsubd => two!(u32, |x, y| x.wrapping_sub(y)),
        Vpsubq => two!(u64, |x, y| x.wrapping_sub(y)),
        Vpsubsb => two!(i8, |x, y| x.saturating_sub(y)),
        Vpsubsw => two!(i16, |x, y| x.saturating_sub(y)),
        Vpsubusb => two!(u8, |x, y| x.saturating_sub(y)),
        Vpsubusw => two!(u16, |x, y| x.saturating_sub(y)),
        Vpmaxsb => two!(i8, |x, y| x.max(y)),
        Vpmaxsw => two!(i16, |x, y| x.max(y)),
        Vpmaxsd => two!(i32, |x, y| x.max(y)),
        Vpmaxsq => two!(i64, |x, y| x.max(y)),
        Vpmaxub => two!(u8, |x, y| x.max(y)),
        Vpmaxuw => two!(u16, |x, y| x.max(y)),
        Vpmaxud => two!(u32, |x, y| x.max(y)),
        Vpmaxuq => two!(u64, |x, y| x.max(y)),
        Vpminsb => two!(i8, |x, y| x.min(y)),
        Vpminsw => two!(i16, |x, y| x.min(y)),
        Vpminsd => two!(i32, |x, y| x.min(y)),
        Vpminsq => two!(i64, |x, y| x.min(y)),
        Vpminub => two!(u8, |x, y| x.min(y)),
        Vpminuw => two!(u16, |x, y| x.min(y)),
        Vpminud => two!(u32, |x, y| x.min(y)),
        Vpminuq => two!(u64, |x, y| x.min(y)),
        Vpabsb => one!(i8, |x| x.wrapping_abs()),
        Vpabsw => one!(i16, |x| x.wrapping_abs()),
        Vpabsd => one!(i32, |x| x.wrapping_abs()),
        Vpabsq => one!(i64, |x| x.wrapping_abs()),
        Vpavgb => two!(u8, |x, y| ((u16::from(x) + u16::from(y) + 1) >> 1) as u8),
        Vpavgw => two!(u16, |x, y| ((u32::from(x) + u32::from(y) + 1) >> 1) as u16),
        Vpmullw => two!(u16, |x, y| x.wrapping_mul(y)),
        Vpmulld => two!(u32, |x, y| x.wrapping_mul(y)),
        Vpmullq => two!(u64, |x, y| x.wrapping_mul(y)),
        Vpmulhw => two!(i16, |x, y| ((i32::from(x) * i32::from(y)) >> 16) as i16),
        Vpmulhuw => two!(u16, |x, y| ((u32::from(x) * u32::from(y)) >> 16) as u16),
        Vpmulhrsw => two!(i16, |x, y| ((((i32::from(x) * i32::from(y)) >> 14) + 1) >> 1) as i16),
        Vpmuludq => two!(u64, |x, y| (x & 0xffff_ffff) * (y & 0xffff_ffff)),
        Vpmuldq => two!(i64, |x, y| i64::from(x as i32) * i64::from(y as i32)),
        Vpmaddwd => two!(u32, |x, y| words(x, y)),
        Vpmaddubsw => two!(u16, |x, y| bytes(x, y)),
        Vpsadbw => two!(u64, |x, y| differences(x.to_le_bytes(), y.to_le_bytes())),
        Vdbpsadbw => each!(u16, |form, o, n| double_block(form, o, n)),
        Vpacksswb => each!(i8, |_f, o, n| pack(o, n, |v| at::<i16>(v.0, v.1).clamp(-0x80, 0x7f) as i8)),
        Vpackuswb => each!(u8, |_f, o, n| pack(o, n, |v| at::<i16>(v.0, v.1).clamp(0, 0xff) as u8)),
        Vpackssdw => each!(i16, |_f, o, n| pack(o, n, |v| at::<i32>(v.0, v.1).clamp(-0x8000, 0x7fff) as i16)),
        Vpackusdw => each!(u16, |_f, o, n| pack(o, n, |v| at::<i32>(v.0, v.1).clamp(0, 0xffff) as u16)),
        Vpandd | Vandps => two!(u32, |x, y| x & y),
        Vpandq | Vandpd => two!(u64, |x, y| x & y),
        Vpandnd | Vandnps => two!(u32, |x, y| !x & y),
        Vpandnq | Vandnpd => two!(u64, |x, y| !x & y),
        Vpord | Vorps => two!(u32, |x, y| x | y),
        Vporq | Vorpd => two!(u64, |x, y| x | y),
        Vpxord | Vxorps => two!(u32, |x, y| x ^ y),
        Vpxorq | Vxorpd => two!(u64, |x, y| x ^ y),
        Vpternlogd => {
            three!(u32, form, |d, x, y| ternary(form.imm, u64::from(d), u64::from(x), u64::from(y)) as u32)
        }
        Vpternlogq => three!(u64, form, |d, x, y| ternary(form.imm, d, x, y)),
        _ => return None,
    })
}

/// VPMADDWD: the sum of two products of signed words.
fn words(x: u32, y: u32) -> u32 {
    let low = i32::from(x as i16) * i32::from(y as i16);
    let high = i32::from((x >> 16) as i16) * i32::from((y >> 16) as i16);
    low.wrapping_add(high) as u32
}

/// VPMADDUBSW: the saturated sum of two products of an unsigned and a signed byte.
fn bytes(x: u16, y: u16) -> u16 {
    let low = i32::from(x as u8) * i32::from(y as i8);
    let high = i32::from((x >> 8) as u8) * i32::from((y >> 8) as i8);
    (low + high).clamp(-0x8000, 0x7fff) as u16
}

/// Returns the sum of absolute differences.
fn differences<const N: usize>(x: [u8; N], y: [u8; N]) -> u64 {
    x.iter().zip(y).map(|(&x, y)| u64::from(x.abs_diff(y))).sum()
}

/// VDBPSADBW: returns a word of the result, from four bytes of `a` and four of the shuffled `b`.
fn double_block(form: &Form, o: &Operands, n: usize) -> u16 {
    let (lane, half, word) = (n / 8, n / 4 % 2, n % 4);
    let x = lane * 16 + half * 8 + word / 2 * 4;
    let y = half * 8 + word;
    // A byte of `b` after the immediate has permuted the doublewords of its 128-bit lane.
    let chosen = |byte: usize| o.b[lane * 16 + usize::from(form.imm >> (byte / 4 * 2) & 3) * 4 + byte % 4];
    (0..4).map(|k| u16::from(o.a[x + k].abs_diff(chosen(y + k)))).sum()
}

/// Packs: the low half of each 128-bit lane is taken from `a`, the high half from `b`.
#[inline(always)]
fn pack<T>(o: &Operands, n: usize, narrow: impl Fn((&super::Bytes, usize)) -> T) -> T {
    let per_half = 8 / size_of::<T>();
    let (lane, inside) = (n / (2 * per_half), n % (2 * per_half));
    let source = if inside < per_half { &o.a } else { &o.b };
    narrow((source, lane * per_half + inside % per_half))
}

/// VPTERNLOG: selects bit `4 * d + 2 * x + y` of the immediate, for each bit position.
fn ternary(imm: u8, d: u64, x: u64, y: u64) -> u64 {
    (0..8).filter(|case| imm >> case & 1 != 0).fold(0, |result, case| {
        let pick = |bit: u32, value: u64| if case >> bit & 1 != 0 { value } else { !value };
        result | pick(2, d) & pick(1, x) & pick(0, y)
    })
}
