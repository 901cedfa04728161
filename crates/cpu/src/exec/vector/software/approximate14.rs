//! VRCP14 and VRSQRT14.
//!
//! The architecture bounds their relative error by 2^-14, and processors differ within the bound. These are the results
//! of Intel's processors, on any host. The results are piecewise linear: the six highest bits of the argument (for the
//! root, the lowest bit of its exponent and five bits of its fraction) select a line, the next ten bits are the
//! position on it, and the other bits are ignored. A line's slope is that of the function at the middle of the line,
//! truncated to eight bits of fraction, plus half of the last bit. Its height minimizes the maximum error, to half of
//! the last bit of the result for reciprocals and to a quarter for roots, except for a few lines for which Intel chose
//! otherwise (the tests list them).
//!
//! Powers of two with an exact result have that result. No exception is raised; DAZ and FTZ have their effect.

use super::Body;
use super::float::{bits, packed, scalar};
use super::number::{Double, Environment, Format, Kind, Number, Single, infinity, unpack, zero};
use iced_x86::{Instruction, Mnemonic::*};

/// Heights of the lines of 2 / x at x = 1 + n / 64, above 1, in units of 2^-17.
const RECIPROCAL_HEIGHTS: [u32; 64] = [
    131065, 127030, 123122, 119328, 115643, 112071, 108595, 105222, 101938, 98748, 95640, 92618, 89676, 86811, 84017,
    81292, 78639, 76049, 73526, 71059, 68653, 66303, 64010, 61765, 59574, 57432, 55341, 53290, 51287, 49325, 47406,
    45527, 43690, 41887, 40124, 38392, 36698, 35037, 33408, 31811, 30248, 28709, 27201, 25723, 24273, 22845, 21446,
    20072, 18723, 17397, 16094, 14818, 13558, 12321, 11108, 9911, 8738, 7583, 6445, 5331, 4233, 3151, 2085, 1035,
];

/// Heights of the lines of 2 / sqrt(x) at x = 1 + n / 32 and then at x = 2 + n / 16, above 1, in units of 2^-18.
const ROOT_HEIGHTS: [u32; 64] = [
    262121, 254113, 246469, 239154, 232142, 225415, 218957, 212753, 206778, 201025, 195479, 190132, 184962, 179962,
    175135, 170459, 165927, 161539, 157279, 153144, 149133, 145235, 141448, 137763, 134175, 130683, 127286, 123966,
    120735, 117590, 114511, 111514, 108565, 102905, 97500, 92324, 87372, 82615, 78049, 73657, 69437, 65371, 61445,
    57661, 54005, 50474, 47057, 43755, 40551, 37443, 34431, 31513, 28675, 25918, 23236, 20632, 18098, 15629, 13223,
    10878, 8597, 6365, 4192, 2070,
];

/// Slopes by line, in 256ths of the last bit of a result per position: 2 / x^2 at the middle.
const RECIPROCAL_SLOPES: [u32; 64] = slopes(false);
/// Slopes of the lines for x^(-3/2).
const ROOT_SLOPES: [u32; 64] = slopes(true);

const fn slopes(root: bool) -> [u32; 64] {
    let mut table = [0; 64];
    let mut n = 0;
    while n < 64 {
        // Position 512.5 of 1024, in units of half a position; the first line begins at 1.
        table[n] = if root {
            let middle = ((65 + 2 * (n as u128 % 32)) << 10) + 1;
            ((1u128 << (66 - n / 32)) / (middle * middle * middle)).isqrt() as u32
        } else {
            let middle = ((129 + 2 * n as u64) << 10) + 1;
            ((1 << 43) / (middle * middle)) as u32
        };
        n += 1;
    }
    table
}

/// Returns a point on a line, with sixteen bits of fraction: `height` has `9 - scale` more of them.
fn point(height: u32, scale: u32, slope: u32, place: u32) -> i32 {
    ((height << scale) as i32 - ((2 * slope + 1) * place) as i32) >> 9
}

/// Returns the fraction of 2 / x, from the sixteen highest bits of the fraction of `x`, which is in [1, 2).
fn reciprocal_fraction(high: u32) -> u32 {
    let line = (high >> 10) as usize;
    point(RECIPROCAL_HEIGHTS[line], 8, RECIPROCAL_SLOPES[line], high & 0x3ff) as u32
}

/// Returns the approximation for the magnitude of a finite number: an exponent and sixteen bits of fraction.
pub fn reciprocal_of(x: &Number) -> (i32, u32) {
    if x.significand == 1 << 63 {
        (-x.exponent, 0)
    } else {
        (-x.exponent - 1, reciprocal_fraction((x.significand >> 47) as u32 & 0xffff))
    }
}

/// Returns the fraction of 2 / sqrt(x), from the fifteen highest bits of the fraction of `x`, which is in [1, 2) or, if
/// `odd`, in [2, 4).
fn root_fraction(odd: bool, high: u32) -> u32 {
    let line = (high >> 10) as usize + if odd { 32 } else { 0 };
    point(ROOT_HEIGHTS[line], 7, ROOT_SLOPES[line], high & 0x3ff) as u32
}

/// Returns the approximation for the root of a finite number.
pub fn reciprocal_root_of(x: &Number) -> (i32, u32) {
    let (odd, half) = (x.exponent & 1 != 0, x.exponent >> 1);
    if !odd && x.significand == 1 << 63 {
        (-half, 0)
    } else {
        (-half - 1, root_fraction(odd, (x.significand >> 48) as u32 & 0x7fff))
    }
}

/// Binds the four packed and four scalar forms.
pub fn bind(i: &Instruction) -> Option<Body> {
    Some(match i.mnemonic() {
        Vrcp14ps => |f, o| packed::<Single>(f, o, |env, n| reciprocal::<Single>(env, bits::<Single>(&o.a, n))),
        Vrcp14pd => |f, o| packed::<Double>(f, o, |env, n| reciprocal::<Double>(env, bits::<Double>(&o.a, n))),
        Vrcp14ss => |f, o| scalar::<Single>(f, o, |env| reciprocal::<Single>(env, bits::<Single>(&o.b, 0))),
        Vrcp14sd => |f, o| scalar::<Double>(f, o, |env| reciprocal::<Double>(env, bits::<Double>(&o.b, 0))),
        Vrsqrt14ps => |f, o| packed::<Single>(f, o, |env, n| root::<Single>(env, bits::<Single>(&o.a, n))),
        Vrsqrt14pd => |f, o| packed::<Double>(f, o, |env, n| root::<Double>(env, bits::<Double>(&o.a, n))),
        Vrsqrt14ss => |f, o| scalar::<Single>(f, o, |env| root::<Single>(env, bits::<Single>(&o.b, 0))),
        Vrsqrt14sd => |f, o| scalar::<Double>(f, o, |env| root::<Double>(env, bits::<Double>(&o.b, 0))),
        _ => return None,
    })
}

fn reciprocal<F: Format>(env: &Environment, a: u64) -> u64 {
    let x = unpack::<F>(env, a);
    match x.kind {
        Kind::Quiet | Kind::Signalling => return a | F::QUIET,
        Kind::Infinite => return zero::<F>(x.negative),
        Kind::Zero => return infinity::<F>(x.negative),
        Kind::Finite => {}
    }
    let (exponent, fraction) = reciprocal_of(&x);
    if exponent > F::BIAS {
        return infinity::<F>(x.negative);
    }
    let significand = u64::from(1 << 16 | fraction) << (F::FRACTION - 16);
    let magnitude = if exponent >= F::LEAST {
        significand + (((exponent + F::BIAS - 1) as u64) << F::FRACTION)
    } else if env.flush_to_zero {
        0
    } else {
        // At most two bits are shifted out, all of them zero.
        significand >> (F::LEAST - exponent)
    };
    zero::<F>(x.negative) | magnitude
}

fn root<F: Format>(env: &Environment, a: u64) -> u64 {
    let x = unpack::<F>(env, a);
    match x.kind {
        Kind::Quiet | Kind::Signalling => return a | F::QUIET,
        Kind::Zero => return infinity::<F>(x.negative),
        _ if x.negative => return F::DEFAULT_NAN,
        Kind::Infinite => return 0,
        Kind::Finite => {}
    }
    let (exponent, fraction) = reciprocal_root_of(&x);
    ((exponent + F::BIAS) as u64) << F::FRACTION | u64::from(fraction) << (F::FRACTION - 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the maximum relative error of a line with a height, over all arguments of its positions.
    fn greatest_error(height: u32, scale: u32, slope: u32, value: impl Fn(f64) -> f64) -> f64 {
        (0..1024).fold(0.0, |greatest, place| {
            let y = 1.0 + f64::from(point(height, scale, slope, place)) / 65536.0;
            let [low, high] = [0.0, 1.0].map(|end| (y / value((f64::from(place) + end) / 1024.0) - 1.0).abs());
            low.max(high).max(greatest)
        })
    }

    /// Returns the distance of a height from the one with the minimum of the maximum error.
    fn distance(height: u32, scale: u32, slope: u32, value: impl Fn(f64) -> f64) -> i32 {
        let error = |step: i32| greatest_error(height.wrapping_add_signed(step), scale, slope, &value);
        assert!(error(0) < f64::exp2(-14.0));
        let least = (-8..=8).map(error).fold(f64::MAX, f64::min);
        (-8..=8).filter(|&step| error(step) <= least * (1.0 + 1e-9)).min_by_key(|step| step.abs()).unwrap_or(0)
    }

    #[test]
    fn heights_are_those_with_the_least_error_but_for_some() {
        let found: Vec<_> = (0..64)
            .map(|n| {
                let value = |place: f64| 2.0 / (1.0 + (n as f64 + place) / 64.0);
                (n, distance(RECIPROCAL_HEIGHTS[n], 8, RECIPROCAL_SLOPES[n], value))
            })
            .filter(|&(_, distance)| distance != 0)
            .collect();
        assert_eq!(found, [(28, 2), (41, 1), (57, 1), (59, -4), (60, -4), (61, -4), (62, -3), (63, -1)]);
        let found: Vec<_> = (0..64)
            .map(|n| {
                let scale = if n < 32 { 1.0 } else { 2.0 };
                let value = |place: f64| 2.0 / (scale * (1.0 + ((n % 32) as f64 + place) / 32.0)).sqrt();
                (n, distance(ROOT_HEIGHTS[n], 7, ROOT_SLOPES[n], value))
            })
            .filter(|&(_, distance)| distance != 0)
            .collect();
        let lower = [(15, 1), (16, 1), (17, 1), (18, 1), (23, 2), (24, 3)];
        let upper = [(48, 2), (49, 5), (50, 1), (52, 1)];
        assert_eq!(found, [&lower[..], &upper[..]].concat());
    }

    #[test]
    fn special_values_are_those_of_the_manual() {
        let plain = Environment::new(&super::super::tests::form(), 0x1f80);
        let zeros = Environment::new(&super::super::tests::form(), 0x9fc0);
        let single = |env: &Environment, x: f32| f32::from_bits(reciprocal::<Single>(env, x.to_bits().into()) as u32);
        let rooted = |env: &Environment, x: f32| f32::from_bits(root::<Single>(env, x.to_bits().into()) as u32);
        let tiny = f32::from_bits(1);
        assert_eq!(single(&plain, 0.0), f32::INFINITY);
        assert_eq!(single(&plain, -tiny), f32::NEG_INFINITY);
        assert_eq!(single(&plain, f32::exp2(-127.0)), f32::exp2(127.0));
        assert_eq!(single(&zeros, f32::exp2(-127.0)), f32::INFINITY);
        assert_eq!(single(&plain, f32::exp2(127.0)), f32::exp2(-127.0));
        assert_eq!(single(&zeros, f32::exp2(127.0)), 0.0);
        assert!((single(&plain, f32::MAX) * f32::MAX - 1.0).abs() < f32::exp2(-14.0));
        assert_eq!(single(&plain, f32::NEG_INFINITY).to_bits(), 0x8000_0000);
        assert_eq!(rooted(&plain, 4.0), 0.5);
        assert!((rooted(&plain, 2.0) * f32::sqrt(2.0) - 1.0).abs() < f32::exp2(-14.0));
        assert_eq!(rooted(&plain, -0.0), f32::NEG_INFINITY);
        assert_eq!(rooted(&plain, f32::INFINITY), 0.0);
        assert_eq!(rooted(&plain, -1.0).to_bits(), 0xffc0_0000);
        assert_eq!(rooted(&plain, f32::exp2(-148.0)), f32::exp2(74.0));
        assert_eq!(rooted(&zeros, f32::exp2(-148.0)), f32::INFINITY);
    }
}
