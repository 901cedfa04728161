//! State saving, against the architecture's words and against images made by the host.

use super::*;
use crate::arch::F80;
use crate::testing::{DATA, Machine, Raised, host_is_amd};
use iced_x86::code_asm::*;
use x86::vector;

const GP: Raised = Raised { vector: vector::GP, code: Some(0) };
const UD: Raised = Raised { vector: vector::UD, code: None };
const NM: Raised = Raised { vector: vector::NM, code: None };

/// A machine with something in every component, and its data filled with 0xab.
fn machine(cpl: u8) -> Machine {
    let mut m = Machine::long64(cpl);
    m.cpu.arch.cr4 |= CR4_PKE;
    m.cpu.arch.xcr0 = XCR0_X87 | XCR0_SSE | XCR0_AVX | XCR0_PKRU;
    fill(&mut m);
    m.poke(DATA, &[0xab; 1024]);
    m.poke(DATA + 512, &[0; 64]);
    m
}

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
    m.cpu.arch.vector.mxcsr = 0x1fa5;
    m.cpu.arch.pkru = 0x4;
}

/// What XSAVE saves.
#[derive(PartialEq, Debug)]
struct Image {
    ymm: [[u64; 4]; 16],
    mxcsr: u32,
    regs: [F80; 8],
    words: (u16, u16, u8, u16, u64, u64),
    pkru: u32,
}

fn image(m: &Machine) -> Image {
    let (v, x) = (&m.cpu.arch.vector, &m.cpu.arch.x87);
    let words = (x.control, x.status, x.tags, x.opcode, x.ip, x.dp);
    Image { ymm: v.ymm, mxcsr: v.mxcsr, regs: x.regs, words, pkru: m.cpu.arch.pkru }
}

fn request(m: &mut Machine, components: u64) {
    m.cpu.arch.gpr[0] = components;
    m.cpu.arch.gpr[2] = 0;
}

fn clear(m: &mut Machine) {
    request(m, u64::from(u32::MAX));
    m.poke(DATA + 4096, &[0; 576]);
    m.poke(DATA + 4096 + 24, &0x1f80u32.to_le_bytes());
    m.execute(|a| a.xrstor64(ptr(DATA + 4096))).unwrap();
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
        // Again, half of it from areas in which the rest is in its initial configuration.
        clear(&mut m);
        m.cpu.arch.vector.ymm = before.ymm;
        request(&mut m, u64::MAX);
        m.poke(DATA + 512, &[0; 64]);
        m.execute(save).unwrap();
        assert_eq!(u64::from_le_bytes(m.peek(DATA + 512)), XCR0_SSE | XCR0_AVX);
        fill(&mut m);
        request(&mut m, u64::MAX);
        m.execute(restore).unwrap();
        assert_eq!((m.cpu.arch.vector.ymm, m.cpu.arch.vector.mxcsr, m.cpu.arch.pkru), (before.ymm, MXCSR_INIT, 0));
        assert!(legacy::x87_is_init(&m.cpu));
    }
}

#[test]
fn unrequested_components_are_left_alone() {
    let mut m = machine(3);
    m.poke(DATA + 512, &0xffu64.to_le_bytes());
    request(&mut m, XCR0_AVX);
    m.execute(|a| a.xsave64(ptr(DATA))).unwrap();
    let area: [u8; 1024] = m.peek(DATA);
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
    // MXCSR belongs to SSE alone here.
    assert_eq!(area[24..32], [0xab; 8]);
    assert_eq!(area[584], 0xab);
}

#[test]
fn bad_headers_are_general_protection() {
    for (xstate, layout, rest) in [
        (1u64 << 5, 0u64, 0u64),
        (0, 1, 0),
        (0, 0, 1),
        (0, COMPACTED | 1 << 5, 0),
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
    // XRSTORS knows only the compacted format.
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
    // x87 alone does not look at it.
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
        // SAFETY: the image is valid; the host's own state is put back.
        unsafe {
            let mut own = Area([0; 512]);
            std::arch::asm!("fxsave64 [{own}]", "fxrstor64 [{image}]", "fxsave64 [{image}]", "fxrstor64 [{own}]",
                own = in(reg) &mut own, image = in(reg) &mut host);
        }
        if host_is_amd() {
            // MXCSR_MASK: bit 17 is MM there (APM vol. 1, 4.2.2) and reserved here (SDM vol. 1, 10.2.3).
            host.0[30] &= !2;
            if !pending {
                // FOP, FIP, FDP: not saved there without a pending exception (APM vol. 5, FXSAVE).
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
    for (value, good) in [(1, true), (3, true), (7, true), (0x207, true), (5, false), (6, false), (0x407, false)] {
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
    assert_eq!((leaf(&m, 0).eax, leaf(&m, 0).ebx, leaf(&m, 0).ecx), (0x207, 840, 840));
    assert_eq!((leaf(&m, 1).eax, leaf(&m, 1).ebx), (0xf, 840));
    assert_eq!((leaf(&m, 2).eax, leaf(&m, 2).ebx, leaf(&m, 9).eax, leaf(&m, 9).ebx), (256, 576, 8, 832));
    m.cpu.arch.xcr0 = 0x203;
    assert_eq!((leaf(&m, 0).ebx, leaf(&m, 1).ebx), (840, 584));
    m.cpu.arch.xcr0 = 3;
    assert_eq!((leaf(&m, 0).ebx, leaf(&m, 1).ebx, leaf(&m, 3)), (576, 576, Default::default()));
}
