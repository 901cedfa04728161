//! Shifts, rotations and funnel shifts.

use super::lanes::{at, by_index, each, map1, map2, map3, one, three, two};
use super::{Body, Form, Operands};
use iced_x86::{Instruction, Mnemonic::*, OpKind};

/// Logical left shift; a count of the width or more gives zero.
macro_rules! left {
    ($x:expr, $n:expr) => {
        $x.checked_shl(u32::try_from($n).unwrap_or(u32::MAX)).unwrap_or(0)
    };
}

/// Logical right shift; a count of the width or more gives zero.
macro_rules! right {
    ($x:expr, $n:expr) => {
        $x.checked_shr(u32::try_from($n).unwrap_or(u32::MAX)).unwrap_or(0)
    };
}

/// Arithmetic right shift; a count of the width or more gives the sign.
macro_rules! arithmetic {
    ($t:ty, $x:expr, $n:expr) => {
        $x >> u32::try_from($n).unwrap_or(u32::MAX).min(<$t>::BITS - 1)
    };
}

/// Shifts all elements by an immediate or by the low quadword of `b`.
macro_rules! uniform {
    ($i:expr, $t:ty, |$x:ident, $n:ident| $e:expr) => {
        if $i.op_kind(2) == OpKind::Immediate8 {
            one!($t, form, |$x| {
                let $n = u64::from(form.imm);
                $e
            })
        } else {
            |form: &Form, o: &Operands| {
                let $n = at::<u64>(&o.b, 0);
                map1(form, o, |$x: $t| $e)
            }
        }
    };
}

/// Binds shifts.
pub fn bind(i: &Instruction) -> Option<Body> {
    Some(match i.mnemonic() {
        Vpsllw => uniform!(i, u16, |x, n| left!(x, n)),
        Vpslld => uniform!(i, u32, |x, n| left!(x, n)),
        Vpsllq => uniform!(i, u64, |x, n| left!(x, n)),
        Vpsrlw => uniform!(i, u16, |x, n| right!(x, n)),
        Vpsrld => uniform!(i, u32, |x, n| right!(x, n)),
        Vpsrlq => uniform!(i, u64, |x, n| right!(x, n)),
        Vpsraw => uniform!(i, i16, |x, n| arithmetic!(i16, x, n)),
        Vpsrad => uniform!(i, i32, |x, n| arithmetic!(i32, x, n)),
        Vpsraq => uniform!(i, i64, |x, n| arithmetic!(i64, x, n)),
        Vpsllvw => two!(u16, |x, n| left!(x, n)),
        Vpsllvd => two!(u32, |x, n| left!(x, n)),
        Vpsllvq => two!(u64, |x, n| left!(x, n)),
        Vpsrlvw => two!(u16, |x, n| right!(x, n)),
        Vpsrlvd => two!(u32, |x, n| right!(x, n)),
        Vpsrlvq => two!(u64, |x, n| right!(x, n)),
        Vpsravw => two!(i16, |x, n| arithmetic!(i16, x, n as u16)),
        Vpsravd => two!(i32, |x, n| arithmetic!(i32, x, n as u32)),
        Vpsravq => two!(i64, |x, n| arithmetic!(i64, x, n as u64)),
        Vprold => one!(u32, form, |x| x.rotate_left(u32::from(form.imm))),
        Vprolq => one!(u64, form, |x| x.rotate_left(u32::from(form.imm))),
        Vprord => one!(u32, form, |x| x.rotate_right(u32::from(form.imm))),
        Vprorq => one!(u64, form, |x| x.rotate_right(u32::from(form.imm))),
        Vprolvd => two!(u32, |x, n| x.rotate_left(n % 32)),
        Vprolvq => two!(u64, |x, n| x.rotate_left((n % 64) as u32)),
        Vprorvd => two!(u32, |x, n| x.rotate_right(n % 32)),
        Vprorvq => two!(u64, |x, n| x.rotate_right((n % 64) as u32)),
        Vpshldw => two!(u16, form, |x, y| funnel_left(16, x.into(), y.into(), form.imm.into()) as u16),
        Vpshldd => two!(u32, form, |x, y| funnel_left(32, x.into(), y.into(), form.imm.into()) as u32),
        Vpshldq => two!(u64, form, |x, y| funnel_left(64, x, y, form.imm.into())),
        Vpshrdw => two!(u16, form, |x, y| funnel_right(16, x.into(), y.into(), form.imm.into()) as u16),
        Vpshrdd => two!(u32, form, |x, y| funnel_right(32, x.into(), y.into(), form.imm.into()) as u32),
        Vpshrdq => two!(u64, form, |x, y| funnel_right(64, x, y, form.imm.into())),
        Vpshldvw => three!(u16, |d, x, n| funnel_left(16, d.into(), x.into(), n.into()) as u16),
        Vpshldvd => three!(u32, |d, x, n| funnel_left(32, d.into(), x.into(), n.into()) as u32),
        Vpshldvq => three!(u64, |d, x, n| funnel_left(64, d, x, n)),
        Vpshrdvw => three!(u16, |d, x, n| funnel_right(16, d.into(), x.into(), n.into()) as u16),
        Vpshrdvd => three!(u32, |d, x, n| funnel_right(32, d.into(), x.into(), n.into()) as u32),
        Vpshrdvq => three!(u64, |d, x, n| funnel_right(64, d, x, n)),
        // Neither has a mask: whole bytes move within 128-bit lanes.
        Vpslldq => each!(u128, |form, o, n| left!(at::<u128>(&o.a, n), u32::from(form.imm) * 8)),
        Vpsrldq => each!(u128, |form, o, n| right!(at::<u128>(&o.a, n), u32::from(form.imm) * 8)),
        _ => return None,
    })
}

/// Returns the upper half of `x:y` shifted left.
fn funnel_left(width: u32, x: u64, y: u64, count: u64) -> u64 {
    let both = u128::from(x) << width | u128::from(y);
    ((both << (count % u64::from(width))) >> width) as u64
}

/// Returns the lower half of `y:x` shifted right.
fn funnel_right(width: u32, x: u64, y: u64, count: u64) -> u64 {
    let both = u128::from(y) << width | u128::from(x);
    (both >> (count % u64::from(width))) as u64
}
