//! Rearrangement of elements: shuffles, permutations, unpacks, blends, broadcasts, compression and expansion.

use super::lanes::{Element, at, by_index, each, finish, low_bits};
use super::{Body, Bytes, Form, Operands, Outcome};
use iced_x86::{Instruction, Mnemonic::*, OpKind};

/// Binds permutations.
pub fn bind(i: &Instruction) -> Option<Body> {
    if let Some(body) = within_lanes(i) {
        return Some(body);
    }
    Some(match i.mnemonic() {
        Vpermb => each!(u8, |f, o, n| at(&o.b, usize::from(o.a[n]) % f.length)),
        Vpermw => each!(u16, |f, o, n| at(&o.b, usize::from(at::<u16>(&o.a, n)) % (f.length / 2))),
        Vpermd | Vpermps => each!(u32, |f, o, n| at(&o.b, index::<u32>(&o.a, n) % (f.length / 4))),
        Vpermq | Vpermpd if i.op_kind(2) == OpKind::Immediate8 => {
            each!(u64, |f, o, n| at(&o.a, (n & !3) + two_bits(f, n)))
        }
        Vpermq | Vpermpd => each!(u64, |f, o, n| at(&o.b, index::<u64>(&o.a, n) % (f.length / 8))),
        Vpermi2b => each!(u8, |f, o, n| from_two(f, &o.a, &o.b, usize::from(o.dest[n]))),
        Vpermi2w => each!(u16, |f, o, n| from_two(f, &o.a, &o.b, usize::from(at::<u16>(&o.dest, n)))),
        Vpermi2d | Vpermi2ps => each!(u32, |f, o, n| from_two(f, &o.a, &o.b, index::<u32>(&o.dest, n))),
        Vpermi2q | Vpermi2pd => each!(u64, |f, o, n| from_two(f, &o.a, &o.b, index::<u64>(&o.dest, n))),
        Vpermt2b => each!(u8, |f, o, n| from_two(f, &o.dest, &o.b, usize::from(o.a[n]))),
        Vpermt2w => each!(u16, |f, o, n| from_two(f, &o.dest, &o.b, usize::from(at::<u16>(&o.a, n)))),
        Vpermt2d | Vpermt2ps => each!(u32, |f, o, n| from_two(f, &o.dest, &o.b, index::<u32>(&o.a, n))),
        Vpermt2q | Vpermt2pd => each!(u64, |f, o, n| from_two(f, &o.dest, &o.b, index::<u64>(&o.a, n))),
        Valignd => each!(u32, |f, o, n| align(f, o, n)),
        Valignq => each!(u64, |f, o, n| align(f, o, n)),
        Vshuff32x4 | Vshufi32x4 => each!(u32, |f, o, n| shuffle_lanes(f, o, n)),
        Vshuff64x2 | Vshufi64x2 => each!(u64, |f, o, n| shuffle_lanes(f, o, n)),
        Vpbroadcastb => each!(u8, |_f, o, _n| o.a[0]),
        Vpbroadcastw => each!(u16, |_f, o, _n| at(&o.a, 0)),
        Vpbroadcastd | Vbroadcastss => each!(u32, |_f, o, _n| at(&o.a, 0)),
        Vpbroadcastq | Vbroadcastsd => each!(u64, |_f, o, _n| at(&o.a, 0)),
        Vbroadcastf32x2 | Vbroadcasti32x2 => each!(u32, |_f, o, n| at(&o.a, n % 2)),
        Vbroadcastf32x4 | Vbroadcasti32x4 => each!(u32, |_f, o, n| at(&o.a, n % 4)),
        Vbroadcastf32x8 | Vbroadcasti32x8 => each!(u32, |_f, o, n| at(&o.a, n % 8)),
        Vbroadcastf64x2 | Vbroadcasti64x2 => each!(u64, |_f, o, n| at(&o.a, n % 2)),
        Vbroadcastf64x4 | Vbroadcasti64x4 => each!(u64, |_f, o, n| at(&o.a, n % 4)),
        Vinsertf32x4 | Vinserti32x4 => each!(u32, |f, o, n| insert::<u32, 16>(f, o, n)),
        Vinsertf64x2 | Vinserti64x2 => each!(u64, |f, o, n| insert::<u64, 16>(f, o, n)),
        Vinsertf32x8 | Vinserti32x8 => each!(u32, |f, o, n| insert::<u32, 32>(f, o, n)),
        Vinsertf64x4 | Vinserti64x4 => each!(u64, |f, o, n| insert::<u64, 32>(f, o, n)),
        Vextractf32x4 | Vextracti32x4 => extract::<u32, 16>,
        Vextractf64x2 | Vextracti64x2 => extract::<u64, 16>,
        Vextractf32x8 | Vextracti32x8 => extract::<u32, 32>,
        Vextractf64x4 | Vextracti64x4 => extract::<u64, 32>,
        Vpblendmb => blend::<u8>,
        Vpblendmw => blend::<u16>,
        Vpblendmd | Vblendmps => blend::<u32>,
        Vpblendmq | Vblendmpd => blend::<u64>,
        Vpcompressb => compress::<u8>,
        Vpcompressw => compress::<u16>,
        Vpcompressd | Vcompressps => compress::<u32>,
        Vpcompressq | Vcompresspd => compress::<u64>,
        Vpexpandb => expand::<u8>,
        Vpexpandw => expand::<u16>,
        Vpexpandd | Vexpandps => expand::<u32>,
        Vpexpandq | Vexpandpd => expand::<u64>,
        _ => return None,
    })
}

/// Binds instructions that operate within 128-bit lanes.
fn within_lanes(i: &Instruction) -> Option<Body> {
    let by_immediate = i.op_count() > 2 && i.op_kind(2) == OpKind::Immediate8;
    Some(match i.mnemonic() {
        Vpunpcklbw => each!(u8, |_f, o, n| unpack::<u8, 0>(o, n)),
        Vpunpcklwd => each!(u16, |_f, o, n| unpack::<u16, 0>(o, n)),
        Vpunpckldq | Vunpcklps => each!(u32, |_f, o, n| unpack::<u32, 0>(o, n)),
        Vpunpcklqdq | Vunpcklpd => each!(u64, |_f, o, n| unpack::<u64, 0>(o, n)),
        Vpunpckhbw => each!(u8, |_f, o, n| unpack::<u8, 1>(o, n)),
        Vpunpckhwd => each!(u16, |_f, o, n| unpack::<u16, 1>(o, n)),
        Vpunpckhdq | Vunpckhps => each!(u32, |_f, o, n| unpack::<u32, 1>(o, n)),
        Vpunpckhqdq | Vunpckhpd => each!(u64, |_f, o, n| unpack::<u64, 1>(o, n)),
        Vpshufb => {
            each!(u8, |_f, o, n| { if o.b[n] & 0x80 != 0 { 0 } else { o.a[(n & !15) + usize::from(o.b[n] & 15)] } })
        }
        Vpshufd => each!(u32, |f, o, n| at(&o.a, (n & !3) + two_bits(f, n))),
        Vpshuflw => each!(u16, |f, o, n| if n & 4 == 0 { at(&o.a, (n & !3) + two_bits(f, n)) } else { at(&o.a, n) }),
        Vpshufhw => each!(u16, |f, o, n| if n & 4 != 0 { at(&o.a, (n & !3) + two_bits(f, n)) } else { at(&o.a, n) }),
        Vshufps => each!(u32, |f, o, n| at(if n & 2 == 0 { &o.a } else { &o.b }, (n & !3) + two_bits(f, n))),
        Vshufpd => {
            each!(u64, |f, o, n| { at(if n & 1 == 0 { &o.a } else { &o.b }, (n & !1) + usize::from(f.imm >> n & 1)) })
        }
        Vpermilps if by_immediate => each!(u32, |f, o, n| at(&o.a, (n & !3) + two_bits(f, n))),
        Vpermilps => each!(u32, |_f, o, n| at(&o.a, (n & !3) + usize::from(o.b[n * 4] & 3))),
        Vpermilpd if by_immediate => each!(u64, |f, o, n| at(&o.a, (n & !1) + usize::from(f.imm >> n & 1))),
        Vpermilpd => each!(u64, |_f, o, n| at(&o.a, (n & !1) + usize::from(o.b[n * 8] >> 1 & 1))),
        Vpalignr => each!(u8, |f, o, n| {
            match n % 16 + usize::from(f.imm) {
                from @ 0..16 => o.b[(n & !15) + from],
                from @ 16..32 => o.a[(n & !15) + from - 16],
                _ => 0,
            }
        }),
        Vmovddup => each!(u64, |_f, o, n| at(&o.a, n & !1)),
        Vmovsldup => each!(u32, |_f, o, n| at(&o.a, n & !1)),
        Vmovshdup => each!(u32, |_f, o, n| at(&o.a, n | 1)),
        Vinsertps if i.op_kind(2) == OpKind::Memory => each!(u32, |f, o, n| insert_single(f, o, n, 0)),
        Vinsertps => each!(u32, |f, o, n| insert_single(f, o, n, usize::from(f.imm >> 6))),
        _ => return None,
    })
}

/// Returns an element as an index; bits beyond the vector length are ignored later.
#[inline(always)]
fn index<T: Element + std::convert::Into<u64>>(v: &Bytes, n: usize) -> usize {
    (T::get(v, n).into() & 0xff) as usize
}

/// Returns the two bits of the immediate for element `n` of four.
#[inline(always)]
fn two_bits(form: &Form, n: usize) -> usize {
    usize::from(form.imm >> (2 * (n & 3)) & 3)
}

/// Returns an element of two concatenated vectors.
#[inline(always)]
fn from_two<T: Element>(form: &Form, low: &Bytes, high: &Bytes, index: usize) -> T {
    let count = form.length / T::SIZE;
    T::get(if index & count == 0 { low } else { high }, index % count)
}

#[inline(always)]
fn unpack<T: Element, const HIGH: usize>(o: &Operands, n: usize) -> T {
    let per_lane = 16 / T::SIZE;
    let from = n / per_lane * per_lane + HIGH * per_lane / 2 + n % per_lane / 2;
    T::get(if n & 1 == 0 { &o.a } else { &o.b }, from)
}

#[inline(always)]
fn align<T: Element>(form: &Form, o: &Operands, n: usize) -> T {
    let count = form.length / T::SIZE;
    let from = n + usize::from(form.imm) % count;
    T::get(if from < count { &o.b } else { &o.a }, from % count)
}

/// Takes the lower half of the 128-bit lanes from `a` and the upper half from `b`, selected by the immediate.
#[inline(always)]
fn shuffle_lanes<T: Element>(form: &Form, o: &Operands, n: usize) -> T {
    let (lanes, per_lane) = (form.length / 16, 16 / T::SIZE);
    let lane = n / per_lane;
    let bits = lanes.ilog2() as usize;
    let chosen = usize::from(form.imm) >> (lane * bits) & (lanes - 1);
    T::get(if lane < lanes / 2 { &o.a } else { &o.b }, chosen * per_lane + n % per_lane)
}

/// VINSERTF32X4 and similar: `SIZE` bytes of `b` replace a part of `a`.
#[inline(always)]
fn insert<T: Element, const SIZE: usize>(form: &Form, o: &Operands, n: usize) -> T {
    let (parts, per_part) = (form.length / SIZE, SIZE / T::SIZE);
    if n / per_part == usize::from(form.imm) % parts { T::get(&o.b, n % per_part) } else { T::get(&o.a, n) }
}

/// VEXTRACTF32X4 and similar: extracts a part of `a`.
fn extract<T: Element, const SIZE: usize>(form: &Form, o: &Operands) -> Outcome {
    let start = usize::from(form.imm) % (form.length / SIZE) * SIZE;
    let mut result = [0; 64];
    result[..SIZE].copy_from_slice(&o.a[start..start + SIZE]);
    finish::<T>(form, o, result, SIZE / T::SIZE)
}

fn insert_single(form: &Form, o: &Operands, n: usize, from: usize) -> u32 {
    if form.imm >> n & 1 != 0 {
        0
    } else if usize::from(form.imm >> 4 & 3) == n {
        at(&o.b, from)
    } else {
        at(&o.a, n)
    }
}

/// VBLENDM: the mask selects `b`; other elements are `a`, or zero with zeroing.
fn blend<T: Element>(form: &Form, o: &Operands) -> Outcome {
    let merged = Operands { dest: o.a, ..*o };
    by_index(form, &merged, |n| T::get(&o.b, n))
}

fn compress<T: Element>(form: &Form, o: &Operands) -> Outcome {
    let count = form.length / T::SIZE;
    let mut result = [0; 64];
    let mut filled = 0;
    for n in (0..count).filter(|n| o.mask >> n & 1 != 0) {
        T::get(&o.a, n).put(&mut result, filled);
        filled += 1;
    }
    finish::<T>(form, &Operands { mask: low_bits(filled), ..*o }, result, count)
}

fn expand<T: Element>(form: &Form, o: &Operands) -> Outcome {
    by_index(form, o, |n| T::get(&o.a, (o.mask & low_bits(n)).count_ones() as usize))
}
