//! Tests of state saving against the architecture's specification, and against images from the host.

use super::*;
use crate::arch::{F80, Shape, TILES, TileConfig, Tiles, VectorState};
use crate::testing::{DATA, Machine, Raised, host_is_amd};
use crate::xstate::Layout;
use iced_x86::code_asm::*;
use x86::vector;

const GP: Raised = Raised { vector: vector::GP, code: Some(0) };
const UD: Raised = Raised { vector: vector::UD, code: None };
const NM: Raised = Raised { vector: vector::NM, code: None };

/// Returns a machine with nonzero contents in every component, and its data filled with 0xab.
fn machine(cpl: u8) -> Machine {
    let mut m = Machine::long64(cpl);
    m.cpu.arch.cr4 |= CR4_PKE;
    m.cpu.arch.xcr0 = m.cpu.wiring.xstate.user;
    fill(&mut m);
    m.poke(DATA, &[0xab; AREA]);
    m.poke(DATA + 512, &[0; 64]);
    m
}

/// Maximum number of bytes of [`DATA`] for a save area.
const AREA: usize = 0x3000;

fn fill(m: &mut Machine) {
    for (n, register) in m.cpu.arch.vector.ymm.iter_mut().enumerate() {
        *register = std::array::from_fn(|word| (n * 4 + word + 1) as u64 * 0x0101_0101_0101_0101);
    }
    for (n, register) in m.cpu.arch.x87.regs.iter_mut().enumerate() {
        *register = F80 { significand: 1 << 63 | n as u64, sign_exponent: 0x3fff + n as u16 };
    }
    m.cpu.arch.x87.status = 3 << 11;
    m.cpu.arch.x87.tags = 0xf8;
    m.cpu.arch.x87.ip = 0x1234_5678_9abc;
    m.cpu.arch.x87.dp = 0xfedc_ba98;
    m.cpu.arch.x87.opcode = 0x123;
    for (n, register) in m.cpu.arch.vector.upper_mut().iter_mut().enumerate() {
        *register = std::array::from_fn(|word| (n * 4 + word + 1) as u64 * 0x0303_0301_0101_0101);
    }
    for (n, register) in m.cpu.arch.vector.high.iter_mut().enumerate() {
        *register = std::array::from_fn(|word| (n * 8 + word + 1) as u64 * 0x0103_0101_0701_0101);
    }
    m.cpu.arch.vector.k = [1, 2, 3, 4, 5, 6, 7, 8];
    let shapes = std::array::from_fn(|n| Shape { rows: n as u8 + 1, bytes: 4 * n as u8 + 4 });
    m.cpu.arch.tiles.config = TileConfig { palette: 1, start_row: 3, shapes };
    for tile in 0..TILES {
        m.cpu.arch.tiles.set_row(tile, 2 * tile, &[0x11 * tile as u8 + 1; 64]);
    }
    m.cpu.arch.vector.mxcsr = 0x1fa5;
    m.cpu.arch.pkru = 0x4;
}

/// State that XSAVE saves.
#[derive(PartialEq, Debug)]
struct Image {
    vector: VectorState,
    regs: [F80; 8],
    words: (u16, u16, u8, u16, u64, u64),
    pkru: u32,
    tiles: Tiles,
}

fn image(m: &Machine) -> Image {
    let (v, x) = (&m.cpu.arch.vector, &m.cpu.arch.x87);
    let words = (x.control, x.status, x.tags, x.opcode, x.ip, x.dp);
    Image { vector: *v, regs: x.regs, words, pkru: m.cpu.arch.pkru, tiles: m.cpu.arch.tiles.clone() }
}

fn request(m: &mut Machine, components: u64) {
    m.cpu.arch.gpr[0] = components;
    m.cpu.arch.gpr[2] = 0;
}

fn clear(m: &mut Machine) {
    request(m, u64::from(u32::MAX));
    m.poke(DATA + 0x4000, &[0; 576]);
    m.poke(DATA + 0x4000 + 24, &0x1f80u32.to_le_bytes());
    m.execute(|a| a.xrstor64(ptr(DATA + 0x4000))).unwrap();
    assert_eq!(in_use(&m.cpu), 0);
    assert_eq!(m.cpu.arch.vector.mxcsr, MXCSR_INIT);
}

type Write = fn(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>;

const PAIRS: [(Write, Write); 4] = [
    (|a| a.xsave64(ptr(DATA)), |a| a.xrstor64(ptr(DATA))),
    (|a| a.xsaveopt64(ptr(DATA)), |a| a.xrstor64(ptr(DATA))),
    (|a| a.xsavec64(ptr(DATA)), |a| a.xrstor64(ptr(DATA))),
    (|a| a.xsaves64(ptr(DATA)), |a| a.xrstors64(ptr(DATA))),
];

#[test]
fn everything_comes_back() {
    for (save, restore) in PAIRS {
        let mut m = machine(0);
        let before = image(&m);
        request(&mut m, u64::MAX);
        m.execute(save).unwrap();
        clear(&mut m);
        request(&mut m, u64::MAX);
        m.execute(restore).unwrap();
        assert_eq!(image(&m), before);
        // Again, with half of the components from areas in which the rest is in the initial configuration.
        clear(&mut m);
        m.cpu.arch.vector.ymm = before.vector.ymm;
        request(&mut m, u64::MAX);
        m.poke(DATA + 512, &[0; 64]);
        m.execute(save).unwrap();
        assert_eq!(u64::from_le_bytes(m.peek(DATA + 512)), XCR0_SSE | XCR0_AVX);
        fill(&mut m);
        request(&mut m, u64::MAX);
        m.execute(restore).unwrap();
        let vector = &m.cpu.arch.vector;
        assert_eq!((vector.ymm, vector.mxcsr, m.cpu.arch.pkru), (before.vector.ymm, MXCSR_INIT, 0));
        assert_eq!(m.cpu.arch.tiles, Tiles::default());
        assert_eq!((vector.k, vector.upper, vector.high), ([0; 8], [[0; 4]; 16], [[0; 8]; 16]));
        assert!(legacy::x87_is_init(&m.cpu));
    }
}

#[test]
fn unrequested_components_are_left_alone() {
    let mut m = machine(3);
    m.poke(DATA + 512, &0xffu64.to_le_bytes());
    request(&mut m, XCR0_AVX);
    m.execute(|a| a.xsave64(ptr(DATA))).unwrap();
    let area: [u8; AREA] = m.peek(DATA);
    assert!(area[..24].iter().all(|b| *b == 0xab) && area[32..512].iter().all(|b| *b == 0xab));
    assert_eq!(area[24..28], 0x1fa5u32.to_le_bytes());
    assert_eq!(area[512..520], 0xffu64.to_le_bytes());
    assert_eq!(area[576..584], m.cpu.arch.vector.ymm[0][2].to_le_bytes());
    assert!(area[832..].iter().all(|b| *b == 0xab));
}

#[test]
fn compacted_areas_have_no_holes() {
    let mut m = machine(3);
    request(&mut m, XCR0_X87 | XCR0_PKRU);
    m.execute(|a| a.xsavec64(ptr(DATA))).unwrap();
    let area: [u8; 1024] = m.peek(DATA);
    assert_eq!(area[512..520], (XCR0_X87 | XCR0_PKRU).to_le_bytes());
    assert_eq!(area[520..528], (COMPACTED | XCR0_X87 | XCR0_PKRU).to_le_bytes());
    assert_eq!(area[576..584], 4u64.to_le_bytes());
    // In this format MXCSR belongs to SSE only.
    assert_eq!(area[24..32], [0xab; 8]);
    assert_eq!(area[584], 0xab);
}

#[test]
fn bad_headers_are_general_protection() {
    for (xstate, layout, rest) in [
        (1u64 << 3, 0u64, 0u64),
        (0, 1, 0),
        (0, 0, 1),
        (0, COMPACTED | 1 << 3, 0),
        (XCR0_AVX, COMPACTED | XCR0_SSE, 0),
        (0, COMPACTED, 1),
    ] {
        let mut m = machine(3);
        for (at, word) in [(512, xstate), (520, layout), (528, rest)] {
            m.poke(DATA + at, &word.to_le_bytes());
        }
        let before = image(&m);
        request(&mut m, u64::MAX);
        assert_eq!(m.execute(|a| a.xrstor64(ptr(DATA))), Err(GP));
        assert_eq!(image(&m), before);
    }
    // XRSTORS supports only the compacted format.
    let mut m = machine(0);
    assert_eq!(m.execute(|a| a.xrstors64(ptr(DATA))), Err(GP));
}

#[test]
fn reserved_mxcsr_bits_are_general_protection() {
    let mut m = machine(3);
    m.poke(DATA + 24, &0x1_1f80u32.to_le_bytes());
    request(&mut m, XCR0_SSE);
    assert_eq!(m.execute(|a| a.xrstor64(ptr(DATA))), Err(GP));
    assert_eq!(m.execute(|a| a.fxrstor64(ptr(DATA))), Err(GP));
    assert_eq!(m.execute(|a| a.ldmxcsr(dword_ptr(DATA + 24))), Err(GP));
    // x87 alone does not use MXCSR.
    request(&mut m, XCR0_X87);
    m.execute(|a| a.xrstor64(ptr(DATA))).unwrap();
}

#[test]
fn fxsave_is_as_on_the_host() {
    #[repr(align(16))]
    struct Area([u8; 512]);
    for pending in [false, true] {
        let mut m = machine(3);
        if pending {
            m.cpu.arch.x87.control &= !1;
            m.cpu.arch.x87.status |= 1;
            m.cpu.arch.x87.summarize();
        }
        m.execute(|a| a.fxsave64(ptr(DATA))).unwrap();
        let ours: [u8; 512] = m.peek(DATA);
        let mut host = Area(ours);
        // SAFETY: the image is valid; the host's own state is restored.
        unsafe {
            let mut own = Area([0; 512]);
            std::arch::asm!("fxsave64 [{own}]", "fxrstor64 [{image}]", "fxsave64 [{image}]", "fxrstor64 [{own}]",
                own = in(reg) &mut own, image = in(reg) &mut host);
        }
        if host_is_amd() {
            // MXCSR_MASK: bit 17 is MM on AMD (APM vol. 1, 4.2.2) and reserved on Intel (SDM vol. 1, 10.2.3).
            host.0[30] &= !2;
            if !pending {
                // FOP, FIP, FDP: AMD does not save them without a pending exception (APM vol. 5, FXSAVE).
                host.0[6..24].copy_from_slice(&ours[6..24]);
            }
        }
        assert_eq!(ours, host.0, "pending: {pending}");
        let before = image(&m);
        m.cpu.arch.vector.ymm.iter_mut().for_each(|r| (r[0], r[1]) = (0, 0));
        m.cpu.arch.x87.init();
        m.cpu.arch.vector.mxcsr = 0;
        m.execute(|a| a.fxrstor64(ptr(DATA))).unwrap();
        assert_eq!(image(&m), before);
    }
}

#[test]
fn conditions() {
    let mut m = machine(3);
    assert_eq!(m.execute(|a| a.xsave64(ptr(DATA + 16))), Err(GP));
    assert_eq!(m.execute(|a| a.fxsave64(ptr(DATA + 8))), Err(GP));
    assert_eq!(m.execute(|a| a.xsaves64(ptr(DATA))), Err(GP));
    assert_eq!(m.execute(|a| a.xsetbv()), Err(GP));
    m.cpu.arch.cr0 |= CR0_TS;
    assert_eq!(m.execute(|a| a.xsave64(ptr(DATA))), Err(NM));
    assert_eq!(m.execute(|a| a.fxsave64(ptr(DATA))), Err(NM));
    assert_eq!(m.execute(|a| a.paddb(xmm0, xmm1)), Err(NM));
    assert_eq!(m.execute(|a| a.vpaddb(xmm0, xmm1, xmm2)), Err(NM));
    m.cpu.arch.cr0 = m.cpu.arch.cr0 & !CR0_TS | CR0_EM;
    assert_eq!(m.execute(|a| a.paddb(xmm0, xmm1)), Err(UD));
    assert_eq!(m.execute(|a| a.paddb(mm0, mm1)), Err(UD));
    assert_eq!(m.execute(|a| a.fxsave64(ptr(DATA))), Err(UD));
    m.cpu.arch.cr0 &= !CR0_EM;
    m.cpu.arch.cr4 &= !(CR4_OSXSAVE | CR4_PKE);
    assert_eq!(m.execute(|a| a.xgetbv()), Err(UD));
    assert_eq!(m.execute(|a| a.rdpkru()), Err(UD));
    assert_eq!(m.execute(|a| a.vpaddb(xmm0, xmm1, xmm2)), Err(UD));
    m.cpu.arch.cr4 &= !CR4_OSFXSR;
    assert_eq!(m.execute(|a| a.paddb(xmm0, xmm1)), Err(UD));
    m.execute(|a| a.paddb(mm0, mm1)).unwrap();
}

#[test]
fn xcr0_takes_what_is_supported() {
    let mut m = machine(0);
    let avx512 = [(0xe7, true), (0x2e7, true), (0xe3, false), (0x67, false), (0x87, false), (0x27, false)];
    let older = [(1, true), (3, true), (7, true), (0x207, true), (5, false), (6, false), (0x407, false), (0xf, false)];
    let tiles =
        [(0x602e7, true), (0x60007, true), (0x20007, false), (0x40007, false), (0x60003, true), (0x80007, false)];
    for (value, good) in older.into_iter().chain(avx512).chain(tiles) {
        m.cpu.arch.gpr[1] = 0;
        request(&mut m, value);
        let result = m.execute(|a| a.xsetbv());
        assert_eq!(result, if good { Ok(()) } else { Err(GP) }, "{value:#x}");
        if good {
            m.execute(|a| a.xgetbv()).unwrap();
            assert_eq!(m.cpu.arch.gpr[0], value);
        }
    }
}

#[test]
fn sizes_follow_xcr0() {
    let mut m = machine(0);
    let leaf = |m: &Machine, n| xstate_cpuid(&m.cpu, n);
    let words = |regs: crate::model::CpuidRegs| (regs.eax, regs.ebx, regs.ecx);
    for (xcr0, standard, compacted) in [
        (3, 576, 576),
        (7, 832, 832),
        (0x203, 2696, 584),
        (0xe7, 2688, 2432),
        (0x2e7, 2696, 2440),
        (0x602e7, 11008, 10752),
    ] {
        m.cpu.arch.xcr0 = xcr0;
        assert_eq!((leaf(&m, 0).ebx, leaf(&m, 1).ebx), (standard, compacted), "{xcr0:#x}");
    }
    // Layout of processors with AVX-512, which have a gap for MPX.
    for (number, size, offset) in [(2, 256, 576), (5, 64, 1088), (6, 512, 1152), (7, 1024, 1664), (9, 8, 2688)] {
        assert_eq!(words(leaf(&m, number)), (size, offset, 0));
    }
    assert_eq!((words(leaf(&m, 17)), words(leaf(&m, 18))), ((64, 2752, 2), (8192, 2816, 6)));
    assert_eq!((leaf(&m, 3), leaf(&m, 63)), Default::default());
}

#[test]
fn zmm_state_outside_64_bit_mode_is_that_of_eight_registers() {
    let mut m = Machine::compatibility32(3);
    m.cpu.arch.xcr0 = m.cpu.wiring.xstate.user;
    fill(&mut m);
    m.poke(DATA, &[0xab; AREA]);
    m.poke(DATA + 512, &[0; 64]);
    request(&mut m, 0xe6);
    let before = image(&m);
    m.execute(|a| a.xsave(ptr(DATA))).unwrap();
    let area: [u8; AREA] = m.peek(DATA);
    // ZMM16 to 31 do not exist, and count as being in their initial configuration.
    assert_eq!(area[512..520], 0x66u64.to_le_bytes());
    assert!(area[1152..1152 + 256].iter().any(|b| *b != 0xab));
    assert!(area[1152 + 256..].iter().all(|b| *b == 0xab));
    *m.cpu.arch.vector.upper_mut() = [[9; 4]; 16];
    m.execute(|a| a.xrstor(ptr(DATA))).unwrap();
    let vector = &m.cpu.arch.vector;
    assert_eq!((&vector.upper[..8], &vector.upper[8..]), (&before.vector.upper[..8], &[[9; 4]; 8][..]));
    assert_eq!((vector.high, vector.k), (before.vector.high, before.vector.k));
}

#[test]
fn a_model_lies_its_components_where_its_processor_does() {
    use crate::model::Model;
    use ledger::profile::Profile;
    for (name, user, size) in [("core2", 3, 576), ("skx", 0x207, 2696), ("zen3", 0x207, 2440)] {
        let profile = Profile::named(name).unwrap();
        let model = Model::of(&profile, profile.costs(), profile.geometry(), &profile.cpuid());
        let layout = Layout::of(&model);
        assert_eq!((layout.user & !XCR0_AVX512, layout.standard_size(user)), (user, size), "{name}");
    }
}

#[test]
fn a_component_is_aligned_in_the_compacted_format_if_cpuid_says_so() {
    let mut m = machine(0);
    request(&mut m, XCR0_AVX | XCR0_PKRU | XCR0_TILES);
    m.execute(|a| a.xsavec64(ptr(DATA))).unwrap();
    let area: [u8; AREA] = m.peek(DATA);
    // PKRU ends at 840, and the tiles' configuration begins at the next multiple of 64.
    assert_eq!(area[832..840], 4u64.to_le_bytes());
    assert_eq!((area[895], area[896], area[897], area[959]), (0xab, 1, 3, 0));
    assert_eq!((area[960], area[960 + 1024 + 128], area[960 + 8192]), (1, 0x12, 0xab));
}

#[test]
fn disabled_components_are_saved_as_initial_and_not_loaded() {
    for (save, restore) in PAIRS {
        let mut m = machine(0);
        request(&mut m, u64::MAX);
        m.execute(save).unwrap();
        m.cpu.arch.msr.xfd = XCR0_TILE_DATA;
        let before = image(&m);
        // The area is not read, and everything else is unchanged.
        assert_eq!(m.execute(restore), Err(NM));
        assert_eq!((image(&m), m.cpu.arch.msr.xfd_err), (before, XCR0_TILE_DATA));
        m.poke(DATA + 512, &[0; 64]);
        m.cpu.arch.msr.xfd_err = 0;
        m.execute(save).unwrap();
        assert_eq!(u64::from_le_bytes(m.peek(DATA + 512)), 0x202e7);
        m.execute(restore).unwrap();
        assert_eq!((m.cpu.arch.tiles.are_in_use(), m.cpu.arch.msr.xfd_err), (false, 0));
        // A component that is not enabled is not disabled by XFD either.
        m.cpu.arch.xcr0 &= !XCR0_TILES;
        m.poke(DATA + 512, &[0; 64]);
        m.execute(save).unwrap();
        m.execute(restore).unwrap();
        // CR0.TS is a different reason, and is not recorded.
        m.cpu.arch.cr0 |= CR0_TS;
        assert_eq!((m.execute(restore), m.cpu.arch.msr.xfd_err), (Err(NM), 0));
    }
}

#[test]
fn a_configuration_of_tiles_that_cannot_be_is_none() {
    let mut m = machine(0);
    request(&mut m, XCR0_TILES);
    m.execute(|a| a.xsave64(ptr(DATA))).unwrap();
    m.poke(DATA + 2752 + 48, &[17]);
    let mut expected = m.cpu.arch.tiles.clone();
    expected.config = TileConfig::default();
    m.execute(|a| a.xrstor64(ptr(DATA))).unwrap();
    assert_eq!(m.cpu.arch.tiles, expected);
}

#[test]
fn memory_that_the_new_pkru_would_forbid_is_read_before() {
    let mut m = machine(3);
    request(&mut m, u64::MAX);
    m.cpu.arch.pkru = 0;
    m.execute(|a| a.xsave64(ptr(DATA))).unwrap();
    let before = image(&m);
    // Protection key 0, which all pages have, denies all accesses.
    m.poke(DATA + 2688, &[1]);
    m.poke(DATA + 512, &0x602e7u64.to_le_bytes());
    m.cpu.mapping_changed();
    m.cpu.arch.tiles = Tiles::default();
    m.execute(|a| a.xrstor64(ptr(DATA))).unwrap();
    assert_eq!((m.cpu.arch.tiles.clone(), m.cpu.arch.pkru), (before.tiles, 1));
}

#[test]
fn registers_of_disabled_state_exist_where_it_can_be_disabled() {
    use x86::msr::{XFD, XFD_ERR, XSS};
    let mut m = machine(0);
    for (index, value, good) in [
        (XFD, 1 << 18, true),
        (XFD, 1 << 17, false),
        (XFD_ERR, 1 << 18, true),
        (XFD_ERR, 1, false),
        (XSS, 1 << 8, false),
    ] {
        assert_eq!(m.cpu.write_msr(index, value), good, "{index:#x} {value:#x}");
    }
    assert_eq!((m.cpu.read_msr(XFD), m.cpu.read_msr(XFD_ERR)), (Some(1 << 18), Some(1 << 18)));
}
