//! Tests of tiles against a simple model and the manual's conditions.

use super::*;
use crate::testing::{DATA, Machine, RAM, Raised, Random};
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use x86::vector;

const UD: Raised = Raised { vector: vector::UD, code: None };
const NM: Raised = Raised { vector: vector::NM, code: None };
const GP: Raised = Raised { vector: vector::GP, code: Some(0) };

/// Address of configuration images.
const CONFIG: u64 = DATA;
/// Address of tile data.
const TILE_AT: u64 = DATA + 0x1000;

fn machine() -> Machine {
    let mut m = Machine::long64(3);
    m.cpu.arch.xcr0 = m.cpu.wiring.xstate.user;
    m
}

/// Returns a configuration image with the given rows and bytes of the tiles.
fn image(shapes: &[(u8, u8)]) -> [u8; 64] {
    let mut image = [0; 64];
    image[0] = 1;
    for (n, (rows, bytes)) in shapes.iter().enumerate() {
        (image[48 + n], image[16 + 2 * n]) = (*rows, *bytes);
    }
    image
}

fn configure(m: &mut Machine, image: &[u8; 64]) -> Result<(), Raised> {
    m.poke(CONFIG, image);
    m.execute(|a| a.ldtilecfg(ptr(CONFIG)))
}

#[test]
fn a_configuration_is_taken_as_the_manual_has_it() {
    let good = image(&[(16, 64), (1, 3), (2, 4), (3, 64), (4, 4), (5, 5), (6, 6), (7, 7)]);
    let mut m = machine();
    m.cpu.arch.tiles.set_row(3, 3, &[1; 64]);
    configure(&mut m, &good).unwrap();
    assert!(!m.cpu.arch.tiles.are_in_use());
    m.execute(|a| a.sttilecfg(ptr(DATA + 64))).unwrap();
    assert_eq!(m.peek::<64>(DATA + 64), good);
    for (at, value) in
        [(0, 2), (2, 1), (15, 1), (17, 1), (16, 65), (48, 17), (48, 0), (16, 0), (32, 1), (47, 1), (56, 1), (63, 1)]
    {
        let mut bad = good;
        bad[at] = value;
        assert_eq!(configure(&mut m, &bad), Err(GP), "byte {at}");
        assert_eq!(m.cpu.arch.tiles.config.image(), good);
    }
    // With palette 0 the other bytes are ignored.
    let mut none = [0xff; 64];
    none[0] = 0;
    configure(&mut m, &none).unwrap();
    m.execute(|a| a.sttilecfg(ptr(DATA + 64))).unwrap();
    assert_eq!(m.peek::<64>(DATA + 64), [0; 64]);
}

#[test]
fn tiles_go_to_and_from_memory_by_rows() {
    let mut m = machine();
    let mut with_start = image(&[(5, 12), (5, 12)]);
    configure(&mut m, &with_start).unwrap();
    let bytes: Vec<u8> = (0..0x400u32).map(|n| (n * 7 + 1) as u8).collect();
    m.poke(TILE_AT, &bytes);
    m.cpu.arch.tiles.tile_mut(0).fill(0xee);
    (m.cpu.arch.gpr[0], m.cpu.arch.gpr[3]) = (TILE_AT + 0x100, 10);
    m.execute(|a| a.tileloadd(tmm0, ptr(rax + rbx * 2 - 0x80))).unwrap();
    for row in 0..16 {
        let mut expected = [0; 64];
        if row < 5 {
            expected[..12].copy_from_slice(&bytes[0x80 + 20 * row..][..12]);
        }
        assert_eq!(*m.cpu.arch.tiles.row(0, row), expected, "row {row}");
    }
    // A negative stride, and the third row as start row.
    with_start[1] = 3;
    let kept = m.cpu.arch.tiles.clone();
    m.cpu.arch.tiles.config = TileConfig::from_image(&with_start).unwrap();
    m.cpu.arch.gpr[3] = (-64i64) as u64;
    m.execute(|a| a.tilestored(ptr(rax + rbx), tmm0)).unwrap();
    for row in 0..5u64 {
        let at = TILE_AT + 0x100 - 64 * row;
        let old = &bytes[(at - TILE_AT) as usize..][..12];
        let expected = if row >= 3 { &kept.row(0, row as usize)[..12] } else { old };
        assert_eq!(m.peek::<12>(at), *expected, "row {row}");
    }
    assert_eq!(m.cpu.arch.tiles.config.start_row, 0);
}

#[test]
fn a_row_that_faults_is_where_the_instruction_goes_on() {
    for store in [false, true] {
        let mut m = machine();
        configure(&mut m, &image(&[(16, 64)])).unwrap();
        for row in 0..16 {
            m.cpu.arch.tiles.set_row(0, row, &[0xaa; 64]);
        }
        // Row 4 is beyond the mapped memory, and row 5 is not reached.
        (m.cpu.arch.gpr[0], m.cpu.arch.gpr[3]) = (RAM - 4 * 64, 64);
        let raised =
            m.execute(|a| if store { a.tilestored(ptr(rax + rbx), tmm0) } else { a.tileloadd(tmm0, ptr(rax + rbx)) });
        assert_eq!(raised.map_err(|r| r.vector), Err(vector::PF));
        assert_eq!(m.cpu.arch.tiles.config.start_row, 4);
        if store {
            assert_eq!(m.peek::<64>(RAM - 64), [0xaa; 64]);
        } else {
            assert_eq!((m.cpu.arch.tiles.row(0, 3)[0], m.cpu.arch.tiles.row(0, 4)[0]), (0, 0xaa));
        }
        // The handler has mapped memory.
        m.cpu.arch.gpr[0] = TILE_AT;
        m.poke(TILE_AT, &[0x55; 1024]);
        m.execute(|a| if store { a.tilestored(ptr(rax + rbx), tmm0) } else { a.tileloadd(tmm0, ptr(rax + rbx)) })
            .unwrap();
        assert_eq!(m.cpu.arch.tiles.config.start_row, 0);
        if store {
            assert_eq!((m.peek::<1>(TILE_AT + 255), m.peek::<1>(TILE_AT + 256)), ([0x55], [0xaa]));
        } else {
            assert_eq!((m.cpu.arch.tiles.row(0, 3)[0], m.cpu.arch.tiles.row(0, 4)[0]), (0, 0x55));
        }
    }
}

type Write = fn(&mut CodeAssembler) -> Result<(), IcedError>;

const USES: [Write; 6] = [
    |a| a.tileloadd(tmm0, ptr(rax + rbx)),
    |a| a.tileloaddt1(tmm0, ptr(rax + rbx)),
    |a| a.tilestored(ptr(rax + rbx), tmm0),
    |a| a.tilezero(tmm0),
    |a| a.tdpbssd(tmm0, tmm1, tmm2),
    |a| a.tdpbf16ps(tmm0, tmm1, tmm2),
];
const OTHERS: [Write; 3] = [|a| a.ldtilecfg(ptr(CONFIG)), |a| a.sttilecfg(ptr(CONFIG)), |a| a.tilerelease()];

/// Returns a machine with tile shapes that every instruction accepts.
fn ready() -> Machine {
    let mut m = machine();
    configure(&mut m, &image(&[(4, 16), (4, 8), (2, 16)])).unwrap();
    (m.cpu.arch.gpr[0], m.cpu.arch.gpr[3]) = (TILE_AT, 64);
    m
}

#[test]
fn exceptions_are_those_of_their_types() {
    for write in USES.into_iter().chain(OTHERS) {
        ready().execute(write).unwrap();
        for spoil in [
            (|m| m.cpu.arch.cr4 &= !CR4_OSXSAVE) as fn(&mut Machine),
            |m| m.cpu.arch.xcr0 &= !XCR0_TILE_DATA,
            |m| m.cpu.arch.xcr0 &= !(1 << 17),
        ] {
            let mut m = ready();
            spoil(&mut m);
            assert_eq!(m.execute(write), Err(UD));
        }
        // CR0.TS does not affect tiles.
        let mut m = ready();
        m.cpu.arch.cr0 |= CR0_TS;
        m.execute(write).unwrap();
    }
    for write in USES {
        let mut m = ready();
        m.cpu.arch.tiles.config = TileConfig::default();
        assert_eq!(m.execute(write), Err(UD), "not configured");
        let mut m = ready();
        m.cpu.arch.msr.xfd = XCR0_TILE_DATA;
        assert_eq!((m.execute(write), m.cpu.arch.msr.xfd_err), (Err(NM), XCR0_TILE_DATA));
    }
    for write in OTHERS {
        let mut m = ready();
        m.cpu.arch.msr.xfd = XCR0_TILE_DATA;
        m.execute(write).unwrap();
    }
    for write in &USES[..3] {
        let mut m = ready();
        m.cpu.arch.tiles.config.start_row = 4;
        assert_eq!(m.execute(write), Err(UD), "no such row");
        let mut m = ready();
        m.cpu.arch.tiles.config.shapes[0].bytes = 15;
        assert_eq!(m.execute(write), Err(UD), "no whole elements");
    }
    // TILEZERO accepts any shape.
    let mut m = ready();
    m.cpu.arch.tiles.config.shapes[0].bytes = 15;
    m.execute(|a| a.tilezero(tmm0)).unwrap();
}

#[test]
fn products_want_shapes_that_fit() {
    let good = [(4, 16), (4, 8), (2, 16)];
    for (n, shape) in [(0, (5, 16)), (0, (4, 12)), (1, (4, 12)), (1, (5, 8)), (2, (2, 12)), (2, (3, 16)), (2, (2, 15))]
    {
        let mut shapes = good;
        shapes[n] = shape;
        let mut m = machine();
        configure(&mut m, &image(&shapes)).unwrap();
        for write in &USES[4..] {
            assert_eq!(m.execute(write), Err(UD), "{shapes:?}");
        }
    }
    for write in [
        (|a| a.tdpbuud(tmm0, tmm0, tmm2)) as Write,
        |a| a.tdpbuud(tmm0, tmm1, tmm0),
        |a| a.tdpbuud(tmm0, tmm1, tmm1),
        |a| a.tdpbuud(tmm0, tmm1, tmm3),
    ] {
        assert_eq!(ready().execute(write), Err(UD));
    }
}

/// Computes a product of bytes as specified by the manual, element by element.
fn bytes_model(to: u32, a: [u8; 4], b: [u8; 4], signs: (bool, bool)) -> u32 {
    (0..4).fold(to, |sum, n| {
        let x = if signs.0 { a[n] as i8 as i64 } else { a[n] as i64 };
        let y = if signs.1 { b[n] as i8 as i64 } else { b[n] as i64 };
        (i64::from(sum) + x * y) as u32
    })
}

fn flushed(value: f32) -> f32 {
    if value.is_subnormal() { 0f32.copysign(value) } else { value }
}

/// Computes a fused sum of products as specified by the manual: round to nearest, denormal operands and results are
/// zeros.
fn fused(a: f32, b: f32, sum: f32) -> f32 {
    flushed(flushed(a).mul_add(flushed(b), flushed(sum)))
}

fn added(a: f32, b: f32) -> f32 {
    flushed(flushed(a) + flushed(b))
}

/// Returns true if both are the same number, or NaNs, for which the manual specifies no more.
fn same(a: u32, b: f32) -> bool {
    a == b.to_bits() || (f32::from_bits(a).is_nan() && b.is_nan())
}

/// Returns the value of an FP16 number.
fn half_model(bits: u16) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 0x3ff));
    let magnitude = match exponent {
        31 if fraction != 0.0 => f64::NAN,
        31 => f64::INFINITY,
        0 => fraction * 2f64.powi(-24),
        _ => (fraction + 1024.0) * 2f64.powi(exponent - 25),
    };
    (if bits >> 15 != 0 { -magnitude } else { magnitude }) as f32
}

#[test]
fn products_are_those_of_the_model() {
    let mut random = Random::new(1);
    for round in 0..400 {
        let [rows, depth, columns] = std::array::from_fn(|_| random.below(16) as u8 + 1);
        let mut m = machine();
        configure(&mut m, &image(&[(rows, 4 * columns), (rows, 4 * depth), (depth, 4 * columns)])).unwrap();
        for tile in 0..3 {
            for element in m.cpu.arch.tiles.tile_mut(tile).as_chunks_mut::<2>().0 {
                let bits = random.next() as u16;
                // Few exponents, so that sums are of similar numbers; or any, including denormals, infinities and NaNs.
                let value = if round % 2 == 0 { bits & 0x81ff | 0x3e00 } else { bits };
                *element = value.to_le_bytes();
            }
        }
        let before = m.cpu.arch.tiles.clone();
        let element = |tile: usize, row: usize, n: usize| -> [u8; 4] { before.row(tile, row).as_chunks().0[n] };
        let pick = round % 6;
        let writes: [Write; 6] = [
            |a| a.tdpbssd(tmm0, tmm1, tmm2),
            |a| a.tdpbsud(tmm0, tmm1, tmm2),
            |a| a.tdpbusd(tmm0, tmm1, tmm2),
            |a| a.tdpbuud(tmm0, tmm1, tmm2),
            |a| a.tdpbf16ps(tmm0, tmm1, tmm2),
            |a| a.tdpfp16ps(tmm0, tmm1, tmm2),
        ];
        // The guest's rounding mode is ignored, and its flags are not written.
        m.cpu.arch.vector.mxcsr = 0x7f80;
        m.execute(writes[pick]).unwrap();
        assert_eq!(m.cpu.arch.vector.mxcsr, 0x7f80);
        for row in 0..16 {
            for n in 0..16 {
                let found = u32::from_le_bytes(m.cpu.arch.tiles.row(0, row).as_chunks().0[n]);
                if row >= rows.into() || n >= columns.into() {
                    assert_eq!(found, 0);
                    continue;
                }
                let to = u32::from_le_bytes(element(0, row, n));
                let pairs = || (0..usize::from(depth)).map(|k| (element(1, row, k), element(2, k, n)));
                if pick < 4 {
                    let signs = (pick < 2, pick == 0 || pick == 2);
                    assert_eq!(found, pairs().fold(to, |sum, (a, b)| bytes_model(sum, a, b, signs)), "{pick}");
                    continue;
                }
                let single = |[low, high]: [u8; 2]| match pick {
                    4 => f32::from_le_bytes([0, 0, low, high]),
                    _ => half_model(u16::from_le_bytes([low, high])),
                };
                let sum = |half: usize| {
                    pairs().fold(0f32, |sum, (a, b)| {
                        fused(single(a.as_chunks().0[half]), single(b.as_chunks().0[half]), sum)
                    })
                };
                let expected = added(f32::from_bits(to), added(sum(0), sum(1)));
                assert!(same(found, expected), "{found:#x} {expected:e}, {pick}");
            }
        }
    }
}

#[test]
fn releasing_leaves_nothing() {
    let mut m = ready();
    m.cpu.arch.tiles.set_row(7, 15, &[1; 64]);
    m.execute(|a| a.tilerelease()).unwrap();
    assert_eq!(m.cpu.arch.tiles, Default::default());
}
