//! Moves: whole vectors under a mask, scalars, general registers, opmasks, and conversions of element width.

use super::lanes::{Element, at, by_index, each, finish, finish_scalar, map1, moved};
use super::{Body, Form, Operands, Outcome};
use iced_x86::{Instruction, Mnemonic, Mnemonic::*};

/// Binds moves.
pub fn bind(i: &Instruction) -> Option<Body> {
    let three = i.op_count() == 3;
    Some(match i.mnemonic() {
        Vmovdqu8 => moved::<u8>(),
        Vmovdqu16 => moved::<u16>(),
        Vmovaps | Vmovups | Vmovdqa32 | Vmovdqu32 | Vmovntps => moved::<u32>(),
        Vmovapd | Vmovupd | Vmovdqa64 | Vmovdqu64 | Vmovntpd | Vmovntdq | Vmovntdqa => moved::<u64>(),
        Vmovsh if three => |f, o| finish_scalar::<u16>(f, o, at(&o.b, 0)),
        Vmovss if three => |f, o| finish_scalar::<u32>(f, o, at(&o.b, 0)),
        Vmovsd if three => |f, o| finish_scalar::<u64>(f, o, at(&o.b, 0)),
        Vmovsh => |f, o| finish::<u16>(f, o, o.a, 1),
        Vmovss => |f, o| finish::<u32>(f, o, o.a, 1),
        Vmovsd => |f, o| finish::<u64>(f, o, o.a, 1),
        Vmovw => |_, o| single(u64::from(at::<u16>(&o.a, 0))),
        Vmovd => |_, o| single(u64::from(at::<u32>(&o.a, 0))),
        Vmovq => |_, o| single(at(&o.a, 0)),
        Vmovhlps => |_, o| pair(at(&o.b, 1), at(&o.a, 1)),
        Vmovlps | Vmovlpd if three => |_, o| pair(at(&o.b, 0), at(&o.a, 1)),
        Vmovlps | Vmovlpd => |_, o| single(at(&o.a, 0)),
        Vmovlhps => |_, o| pair(at(&o.a, 0), at(&o.b, 0)),
        Vmovhps | Vmovhpd if three => |_, o| pair(at(&o.a, 0), at(&o.b, 0)),
        Vmovhps | Vmovhpd => |_, o| single(at(&o.a, 1)),
        Vpextrb => |f, o| single(u64::from(o.a[usize::from(f.imm & 15)])),
        Vpextrw => |f, o| single(u64::from(at::<u16>(&o.a, usize::from(f.imm & 7)))),
        Vpextrd | Vextractps => |f, o| single(u64::from(at::<u32>(&o.a, usize::from(f.imm & 3)))),
        Vpextrq => |f, o| single(at(&o.a, usize::from(f.imm & 1))),
        Vpinsrb => each!(u8, |f, o, n| if usize::from(f.imm & 15) == n { o.b[0] } else { o.a[n] }),
        Vpinsrw => each!(u16, |f, o, n| at(if usize::from(f.imm & 7) == n { &o.b } else { &o.a }, own(f, 7, n))),
        Vpinsrd => each!(u32, |f, o, n| at(if usize::from(f.imm & 3) == n { &o.b } else { &o.a }, own(f, 3, n))),
        Vpinsrq => each!(u64, |f, o, n| at(if usize::from(f.imm & 1) == n { &o.b } else { &o.a }, own(f, 1, n))),
        Vpmovm2b => each!(u8, |_f, o, n| if bit(o, n) { u8::MAX } else { 0 }),
        Vpmovm2w => each!(u16, |_f, o, n| if bit(o, n) { u16::MAX } else { 0 }),
        Vpmovm2d => each!(u32, |_f, o, n| if bit(o, n) { u32::MAX } else { 0 }),
        Vpmovm2q => each!(u64, |_f, o, n| if bit(o, n) { u64::MAX } else { 0 }),
        Vpbroadcastmb2q => each!(u64, |_f, o, _n| u64::from(o.a[0])),
        Vpbroadcastmw2d => each!(u32, |_f, o, _n| u32::from(at::<u16>(&o.a, 0))),
        other => return widening(other).or_else(|| narrowing(other)),
    })
}

/// VPMOVSX and VPMOVZX.
fn widening(mnemonic: Mnemonic) -> Option<Body> {
    Some(match mnemonic {
        Vpmovsxbw => resized::<i8, i16>(),
        Vpmovsxbd => resized::<i8, i32>(),
        Vpmovsxbq => resized::<i8, i64>(),
        Vpmovsxwd => resized::<i16, i32>(),
        Vpmovsxwq => resized::<i16, i64>(),
        Vpmovsxdq => resized::<i32, i64>(),
        Vpmovzxbw => resized::<u8, u16>(),
        Vpmovzxbd => resized::<u8, u32>(),
        Vpmovzxbq => resized::<u8, u64>(),
        Vpmovzxwd => resized::<u16, u32>(),
        Vpmovzxwq => resized::<u16, u64>(),
        Vpmovzxdq => resized::<u32, u64>(),
        _ => return None,
    })
}

/// VPMOV: truncating, and saturating with and without sign.
fn narrowing(mnemonic: Mnemonic) -> Option<Body> {
    /// Saturates elements of `$a` to the range of `$r`.
    macro_rules! saturated {
        ($a:ty, $r:ty) => {
            (|form: &Form, o: &Operands| {
                map1(form, o, |x: $a| x.clamp(<$a>::from(<$r>::MIN), <$a>::from(<$r>::MAX)) as $r)
            }) as Body
        };
    }
    /// Truncates elements of `$a` to `$r`.
    macro_rules! truncated {
        ($a:ty, $r:ty) => {
            (|form: &Form, o: &Operands| map1(form, o, |x: $a| x as $r)) as Body
        };
    }
    Some(match mnemonic {
        Vpmovwb => truncated!(u16, u8),
        Vpmovdb => truncated!(u32, u8),
        Vpmovdw => truncated!(u32, u16),
        Vpmovqb => truncated!(u64, u8),
        Vpmovqw => truncated!(u64, u16),
        Vpmovqd => truncated!(u64, u32),
        Vpmovswb => saturated!(i16, i8),
        Vpmovsdb => saturated!(i32, i8),
        Vpmovsdw => saturated!(i32, i16),
        Vpmovsqb => saturated!(i64, i8),
        Vpmovsqw => saturated!(i64, i16),
        Vpmovsqd => saturated!(i64, i32),
        Vpmovuswb => saturated!(u16, u8),
        Vpmovusdb => saturated!(u32, u8),
        Vpmovusdw => saturated!(u32, u16),
        Vpmovusqb => saturated!(u64, u8),
        Vpmovusqw => saturated!(u64, u16),
        Vpmovusqd => saturated!(u64, u32),
        _ => return None,
    })
}

fn resized<A: Element, R: Element + From<A>>() -> Body {
    |form, o| map1(form, o, |x: A| R::from(x))
}

/// Returns a value without a mask, for a vector, memory or a general register.
fn single(value: u64) -> Outcome {
    Outcome { general: value, ..pair(value, 0) }
}

fn pair(low: u64, high: u64) -> Outcome {
    let mut result = [0; 64];
    low.put(&mut result, 0);
    high.put(&mut result, 1);
    Outcome::of(result)
}

/// Returns the index at which VPINSR reads element `n`: the inserted element is the first of its operand.
fn own(form: &Form, last: u8, n: usize) -> usize {
    if usize::from(form.imm & last) == n { 0 } else { n }
}

/// Returns a bit of the source opmask.
fn bit(o: &Operands, n: usize) -> bool {
    at::<u64>(&o.a, 0) >> n & 1 != 0
}
