//! Reference for half precision in exact arithmetic: a number is an integer times 2^-24, and rounding is a search among
//! all numbers.

use std::cmp::Ordering;

pub const INVALID: u32 = 1;
pub const DENORMAL: u32 = 2;
pub const DIVIDE_BY_ZERO: u32 = 4;
pub const OVERFLOW: u32 = 8;
pub const UNDERFLOW: u32 = 16;
pub const INEXACT: u32 = 32;

/// NaN of invalid operations.
pub const INDEFINITE: u16 = 0xfe00;
const INFINITY: u16 = 0x7c00;

/// A result and its exceptions.
pub type Rounded = (u16, u32);

pub fn is_nan(h: u16) -> bool {
    h & 0x7fff > INFINITY
}

pub fn is_infinite(h: u16) -> bool {
    h & 0x7fff == INFINITY
}

pub fn is_denormal(h: u16) -> bool {
    (1..0x400).contains(&(h & 0x7fff))
}

fn is_signalling(h: u16) -> bool {
    is_nan(h) && h & 0x200 == 0
}

pub fn negative(h: u16) -> bool {
    h >> 15 != 0
}

/// Returns the magnitude in units of 2^-24; for infinity, the power of two after the maximum number.
pub fn units(h: u16) -> u128 {
    let (exponent, fraction) = (u32::from(h >> 10 & 31), u128::from(h & 0x3ff));
    if exponent == 0 { fraction } else { (fraction | 0x400) << (exponent - 1) }
}

/// Returns the number in units of 2^-24.
pub fn signed(h: u16) -> i128 {
    let magnitude = units(h) as i128;
    if negative(h) { -magnitude } else { magnitude }
}

/// Returns the exceptions of operands, and the NaN that results from them.
pub fn operands(list: &[u16]) -> (u32, Option<u16>) {
    let invalid = if list.iter().any(|&h| is_signalling(h)) { INVALID } else { 0 };
    match list.iter().find(|&&h| is_nan(h)) {
        Some(&nan) => (invalid, Some(nan | 0x200)),
        None => (if list.iter().any(|&h| is_denormal(h)) { DENORMAL } else { 0 }, None),
    }
}

/// Rounds a magnitude, which is given by its comparison with multiples of 2^-26. `rounding` is the MXCSR field.
pub fn round(rounding: u32, negative: bool, compare: impl Fn(u128) -> Ordering) -> Rounded {
    let sign = u16::from(negative) << 15;
    // The maximum number that is not above the magnitude.
    let (mut low, mut high) = (0u16, INFINITY);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if compare(4 * units(middle)) == Ordering::Less { high = middle } else { low = middle }
    }
    if compare(4 * units(high)) != Ordering::Less {
        low = high;
    }
    let beyond = low == INFINITY;
    let exact = !beyond && compare(4 * units(low)) == Ordering::Equal;
    let half = if beyond { Ordering::Greater } else { compare(2 * (units(low) + units(low + 1))) };
    let away = match (rounding, exact) {
        (_, true) => false,
        (0, _) => half == Ordering::Greater || half == Ordering::Equal && low & 1 != 0,
        (1, _) => negative,
        (2, _) => !negative,
        _ => false,
    };
    let result = if beyond { INFINITY - u16::from(!away) } else { low + u16::from(away) };
    // Beyond the maximum number by more than rounding can correct.
    let overflow = beyond || result == INFINITY;
    // Below the minimum normal number, even after rounding to eleven bits.
    let least = 4u128 << 10;
    let tiny = compare(least) == Ordering::Less
        && match rounding {
            0 => compare(least - 1) == Ordering::Less,
            1 if negative => compare(least - 2) != Ordering::Greater,
            2 if !negative => compare(least - 2) != Ordering::Greater,
            _ => true,
        };
    let flags = match (overflow, exact) {
        (true, _) => OVERFLOW | INEXACT,
        (_, true) => 0,
        _ => INEXACT | if tiny { UNDERFLOW } else { 0 },
    };
    (sign | result, flags)
}

/// Rounds `numerator / denominator`, in units of 2^-24.
pub fn ratio(rounding: u32, numerator: i128, denominator: u128) -> Rounded {
    let magnitude = numerator.unsigned_abs();
    round(rounding, numerator < 0, |k| (4 * magnitude).cmp(&(k * denominator)))
}

/// Returns the exact sum of a product and a number; the terms determine the sign of a zero.
fn sum(rounding: u32, flags: u32, product: i128, product_sign: bool, z: u16, z_sign: bool) -> Rounded {
    let addend = if z_sign { -(units(z) as i128) } else { units(z) as i128 } << 24;
    let total = product + addend;
    if total == 0 {
        let sign = if product_sign == z_sign { z_sign } else { rounding == 1 };
        return (u16::from(sign) << 15, flags);
    }
    let (result, more) = ratio(rounding, total, 1 << 24);
    (result, flags | more)
}

/// Computes `x * y + z`, with the signs of product and addend negated as given.
pub fn fused(rounding: u32, [x, y, z]: [u16; 3], negate_product: bool, negate_addend: bool) -> Rounded {
    let (flags, nan) = operands(&[x, y, z]);
    if let Some(nan) = nan {
        return (nan, flags);
    }
    let product_sign = negative(x) ^ negative(y) ^ negate_product;
    let z_sign = negative(z) ^ negate_addend;
    if is_infinite(x) || is_infinite(y) {
        if units(x) == 0 || units(y) == 0 || is_infinite(z) && z_sign != product_sign {
            return (INDEFINITE, INVALID);
        }
        return (u16::from(product_sign) << 15 | INFINITY, flags);
    }
    if is_infinite(z) {
        return (u16::from(z_sign) << 15 | INFINITY, flags);
    }
    let product = (units(x) * units(y)) as i128;
    sum(rounding, flags, if product_sign { -product } else { product }, product_sign, z, z_sign)
}

pub fn add(rounding: u32, x: u16, y: u16, negate: bool) -> Rounded {
    // One times x, plus y.
    fused(rounding, [0x3c00, x, y], false, negate)
}

pub fn multiply(rounding: u32, x: u16, y: u16) -> Rounded {
    let (flags, nan) = operands(&[x, y]);
    if let Some(nan) = nan {
        return (nan, flags);
    }
    let sign = u16::from(negative(x) ^ negative(y)) << 15;
    if is_infinite(x) || is_infinite(y) {
        return if units(x) == 0 || units(y) == 0 { (INDEFINITE, INVALID) } else { (sign | INFINITY, flags) };
    }
    let (magnitude, more) = match units(x) * units(y) {
        0 => (0, 0),
        product => round(rounding, sign != 0, |k| (4 * product).cmp(&(k << 24))),
    };
    (sign | magnitude, flags | more)
}

pub fn divide(rounding: u32, x: u16, y: u16) -> Rounded {
    let (flags, nan) = operands(&[x, y]);
    if let Some(nan) = nan {
        return (nan, flags);
    }
    let sign = u16::from(negative(x) ^ negative(y)) << 15;
    match (units(x) == 0, is_infinite(x), units(y) == 0, is_infinite(y)) {
        (true, _, true, _) | (_, true, _, true) => (INDEFINITE, INVALID),
        (_, true, ..) => (sign | INFINITY, flags),
        (_, _, true, _) => (sign | INFINITY, DIVIDE_BY_ZERO),
        (true, ..) | (.., true) => (sign, flags),
        _ => {
            let (dividend, divisor) = (units(x) << 24, units(y));
            let (magnitude, more) = round(rounding, sign != 0, |k| (4 * dividend).cmp(&(k * divisor)));
            (sign | magnitude, flags | more)
        }
    }
}

pub fn square_root(rounding: u32, x: u16) -> Rounded {
    let (flags, nan) = operands(&[x]);
    match nan {
        Some(nan) => (nan, flags),
        None if units(x) == 0 => (x, flags),
        None if negative(x) => (INDEFINITE, INVALID),
        None if is_infinite(x) => (x, flags),
        None => {
            let square = units(x) << 28;
            let (result, more) = round(rounding, false, |k| square.cmp(&(k * k)));
            (result, flags | more)
        }
    }
}

/// Converts a number of a wider format, whose magnitude is `significand * 2^exponent`, to a half.
pub fn from_wide(rounding: u32, negative: bool, significand: u64, exponent: i32) -> Rounded {
    if significand == 0 {
        return (u16::from(negative) << 15, 0);
    }
    let high = exponent + 63 - significand.leading_zeros() as i32;
    // A number far beyond or below the format's range can be replaced by any other such number.
    let (significand, exponent) = match high {
        20.. => (1, 20),
        ..-40 => (1, -40),
        _ => (significand, exponent),
    };
    let (up, down) = ((exponent + 26).max(0), (-26 - exponent).max(0));
    round(rounding, negative, |k| (u128::from(significand) << up).cmp(&(k << down)))
}

/// Rounds a number of units to a multiple of `1 << shift` units.
pub fn to_multiple(rounding: u32, value: i128, shift: u32) -> i128 {
    let (whole, rest) = (value >> shift, value & ((1 << shift) - 1));
    let half = (1i128 << shift) / 2;
    let up = match rounding {
        _ if rest == 0 => false,
        0 => rest > half || rest == half && whole & 1 != 0,
        1 => false,
        2 => true,
        _ => value < 0,
    };
    (whole + i128::from(up)) << shift
}
