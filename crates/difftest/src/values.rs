//! Random values that favour the corners of integers, floating-point formats and control words.

use testkit::random::Random;

/// Returns an integer: corners of every width, powers of two and their neighbours, small and random numbers.
pub fn integer(rng: &mut Random) -> u64 {
    const CORNERS: [u64; 20] = [
        0,
        1,
        2,
        0x7f,
        0x80,
        0xff,
        0x7fff,
        0x8000,
        0xffff,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        0x1_0000_0000,
        0x7fff_ffff_ffff_ffff,
        0x8000_0000_0000_0000,
        u64::MAX,
        u64::MAX - 1,
        0xffff_ffff_8000_0000,
        0xffff_ffff_ffff_ff80,
        0x0123_4567_89ab_cdef,
    ];
    match rng.below(8) {
        0 | 1 => rng.of(&CORNERS),
        2 => (1u64 << rng.below(64)).wrapping_add(rng.below(3)).wrapping_sub(1),
        3 => rng.below(256),
        4 => (rng.next() as i64 >> rng.below(64)) as u64,
        5 => rng.next() >> rng.below(64),
        _ => rng.next(),
    }
}

/// Returns an IEEE 754 value with `exponent` and `fraction` bits; all classes are about equally likely.
fn float(rng: &mut Random, exponent: u32, fraction: u32) -> u64 {
    let sign = rng.next() & 1;
    let max = (1u64 << exponent) - 1;
    let bias = max >> 1;
    let ones = (1u64 << fraction) - 1;
    let noise = match rng.below(4) {
        0 => 0,
        1 => ones,
        2 => ones & !(ones >> rng.below(u64::from(fraction))),
        _ => rng.next() & ones,
    };
    let quiet = 1u64 << (fraction - 1);
    let (e, f) = match rng.below(16) {
        0 => (0, 0),
        1 => (0, noise),
        2 => (0, rng.of(&[1, ones, quiet])),
        3 => (max, 0),
        4 => (max, quiet | noise),
        5 => (max, (noise & (quiet - 1)) | 1),
        6 => (rng.of(&[1, 2, max - 1, max - 2]), noise),
        7 | 8 => (bias.wrapping_add(rng.below(5)).wrapping_sub(2), noise),
        // These are near the limits of integers, at which conversions round and overflow.
        9 => (bias + rng.of(&[6, 7, 14, 15, 30, 31, 32, 52, 53, 62, 63, 64]).min(bias), noise),
        10 => (bias, 0),
        11 | 12 => (rng.below(max), noise),
        _ => (bias.wrapping_add(rng.below(40)).wrapping_sub(20) & max, noise),
    };
    sign << (exponent + fraction) | e << fraction | f
}

/// Returns eight bytes of lanes of one kind.
fn lanes(rng: &mut Random, kind: u64) -> u64 {
    match kind {
        0 => float(rng, 8, 23) | float(rng, 8, 23) << 32,
        1 => float(rng, 11, 52),
        2 => (0..4).fold(0, |v, i| v | float(rng, 5, 10) << (16 * i)),
        3 => integer(rng),
        4 => (0..4).fold(0, |v, i| v | (integer(rng) & 0xffff) << (16 * i)),
        5 => (0..8).fold(0, |v, i| v | (integer(rng) & 0xff) << (8 * i)),
        6 => (integer(rng) & 0xffff_ffff) | integer(rng) << 32,
        _ => rng.next(),
    }
}

/// Returns a vector register's value, or as much memory: lanes of one kind.
pub fn vector<const N: usize>(rng: &mut Random) -> [u64; N] {
    let kind = rng.of(&[0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 6, 7]);
    std::array::from_fn(|_| lanes(rng, kind))
}

/// Returns an 80-bit floating-point number: significand; sign and exponent. Some are unsupported encodings.
pub fn extended(rng: &mut Random) -> [u64; 2] {
    let sign = (rng.next() & 1) << 15;
    let integer_bit = 1u64 << 63;
    let noise = match rng.below(4) {
        0 => 0,
        1 => !0 >> 1,
        2 => !(!0 >> rng.below(63)) & (!0 >> 1),
        _ => rng.next() >> 1,
    };
    let (exponent, significand) = match rng.below(20) {
        0 | 1 => (0, 0),
        2 => (0, noise | 1),
        3 => (0, integer_bit | noise),
        4 | 5 => (0x7fff, integer_bit),
        6 => (0x7fff, integer_bit | 1 << 62 | noise),
        7 => (0x7fff, integer_bit | (noise & !(1 << 62)) | 1),
        8 => (rng.of(&[0x7fff, 0x3fff, 1, 0x7ffe]), noise),
        9 => (0x3fff, integer_bit),
        10 => (rng.of(&[1, 2, 0x7ffe, 0x7ffd]), integer_bit | noise),
        // These are at the limits of single and double precision.
        11 => (0x3fff - 1022 + rng.below(3), integer_bit | noise),
        12 => (0x3fff + rng.of(&[127, 128, 1023, 1024, 14, 15, 30, 31, 62, 63]), integer_bit | noise),
        13 => (0x3fff - rng.of(&[126, 127, 149, 150, 1022, 1023, 1074, 1075]), integer_bit | noise),
        14 => (rng.below(0x7fff), integer_bit | noise),
        _ => (0x3fff - 34 + rng.below(100), integer_bit | noise),
    };
    [significand, sign | exponent]
}

/// Returns an MXCSR with most exceptions masked.
pub fn mxcsr(rng: &mut Random) -> u32 {
    let masks = if rng.chance(85) { 0x3f } else { rng.next() as u32 & 0x3f };
    let flags = if rng.chance(50) { 0 } else { rng.next() as u32 & 0x3f };
    let modes = if rng.chance(40) { 0 } else { rng.next() as u32 & 0xe040 };
    modes | masks << 7 | flags
}

/// Returns x87 control and status words that are consistent: ES and B follow from the unmasked flags.
pub fn x87_words(rng: &mut Random) -> (u16, u16) {
    let masks = if rng.chance(85) { 0x3f } else { rng.next() as u16 & 0x3f };
    // Precision control 01 is reserved.
    let precision = rng.of(&[3u16, 3, 3, 2, 0]);
    let control = masks | 0x40 | precision << 8 | (rng.next() as u16 & 3) << 10 | (rng.next() as u16 & 1) << 12;
    let control = if rng.chance(30) { 0x37f } else { control };
    let mut status = rng.next() as u16 & 0x7f00 & !0x80;
    if rng.chance(50) {
        let flags = rng.next() as u16 & 0x7f;
        // Pending unmasked exceptions make the next waiting instruction fault, so they are rare.
        status |= if rng.chance(10) { flags } else { flags & (control | 0x40) };
    }
    if status & !control & 0x3f != 0 {
        status |= 0x8080;
    }
    (control, status)
}

/// Returns an opmask with all, no, a few, half or most bits set.
pub fn opmask(rng: &mut Random) -> u64 {
    match rng.below(8) {
        0 => 0,
        1 => u64::MAX,
        2 => rng.next() & rng.next() & rng.next(),
        3 => rng.next() | rng.next() | rng.next(),
        4 => integer(rng),
        5 => u64::MAX << rng.below(64),
        _ => rng.next(),
    }
}
