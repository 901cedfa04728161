//! Tests of x87 instructions against the host's, with complete states: registers, tags, control, status, pointers,
//! memory, flags.

use cpu::Cpu;
use cpu::arch::F80;
use iced_x86::{Decoder, DecoderOptions, Mnemonic};
use std::collections::BTreeMap;
use testkit::{DATA, Machine, Random, host_is_amd, step_bytes};

/// A page of code that loads an x87 state, executes one instruction, and saves the state.
struct Host {
    page: *mut u8,
}

/// Offset of the instruction in the page.
const AT: usize = 64;
const MEMORY: usize = 128;
const ARITHMETIC_FLAGS: u64 = 0x8d5;

impl Host {
    fn new() -> Self {
        // SAFETY: a fresh private mapping.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(page, libc::MAP_FAILED);
        Self { page: page.cast() }
    }

    /// Executes an instruction whose memory operand is at RSI. Returns RFLAGS and RAX, and the address of the
    /// instruction.
    fn run(&self, instruction: &[u8], state: &mut [u8; 108], memory: &mut [u8; MEMORY], flags: u64) -> (u64, u64, u32) {
        // frstor [rdi]; mov r8, rdx; xor eax, eax; push rcx; popfq; jmp to AT
        let mut before = vec![0xdd, 0x27, 0x49, 0x89, 0xd0, 0x31, 0xc0, 0x51, 0x9d];
        before.resize(AT, 0x90);
        before.extend_from_slice(instruction);
        // pushfq; pop rcx; mov [r8], rax; mov rax, rcx; fnsave [rdi]; ret
        before.extend_from_slice(&[0x9c, 0x59, 0x49, 0x89, 0x00, 0x48, 0x89, 0xc8, 0xdd, 0x37, 0xc3]);
        let mut rax = 0u64;
        // SAFETY: the page belongs to this value, writable and executable; the code follows the calling convention and
        // leaves the x87 unit in the state after FNSAVE, as the convention requires.
        let flags = unsafe {
            std::ptr::copy_nonoverlapping(before.as_ptr(), self.page, before.len());
            let code: extern "sysv64" fn(*mut u8, *mut u8, *mut u64, u64) -> u64 = std::mem::transmute(self.page);
            code(state.as_mut_ptr(), memory.as_mut_ptr(), &mut rax, flags)
        };
        (flags & ARITHMETIC_FLAGS, rax, (self.page as usize + AT) as u32)
    }
}

fn significand(random: &mut Random) -> u64 {
    let ones = 1u64 << 63;
    match random.below(9) {
        0 => ones,
        1 => ones | 1,
        2 => u64::MAX,
        3 => ones | 1 << random.below(63),
        4 => ones | random.next() << 40,
        5 => ones | random.next() << 11,
        6 => !(u64::MAX >> random.below(63) >> 1),
        _ => ones | random.next(),
    }
}

fn value(random: &mut Random) -> F80 {
    let sign = (random.next() as u16) << 15;
    let integer = 1u64 << 63;
    let (exponent, significand) = match random.below(24) {
        0 => (0, 0),
        1 => (0x7fff, integer),
        2 => (0x7fff, integer | 1 << 62 | random.next() >> 2),
        3 => (0x7fff, integer | 1 | random.next() >> 2),
        4 => (0, significand(random) >> random.of(&[0, 0, 1, 2, 30, 62, 63])),
        5 => (random.of(&[1, 2, 0x3fff, 0x7ffe, 0x7fff]), random.next() >> 1),
        6 => (
            random.of(&[1, 2, 3, 64, 65, 0x7ffd, 0x7ffe, 0x3c00, 0x3c01, 0x3f80, 0x3f81, 0x407e, 0x43fe]),
            significand(random),
        ),
        7 => (random.below(0x7fff) as u16, significand(random)),
        8..=11 => (0x3fff + random.below(66) as u16, significand(random)),
        12 => (0x3fbf + random.below(140) as u16, significand(random)),
        13 => (0x3fff, integer),
        _ => (0x3fff - 10 + random.below(20) as u16, significand(random)),
    };
    F80 { significand, sign_exponent: exponent | sign }
}

fn memory(random: &mut Random) -> [u8; MEMORY] {
    let mut bytes = [0; MEMORY];
    for b in bytes.chunks_mut(8) {
        b.copy_from_slice(&random.next().to_le_bytes());
    }
    let special = match random.below(8) {
        0 => u64::from(random.of(&[
            0u32,
            1,
            0x8000_0000,
            0x7f80_0000,
            0xff80_0000,
            0x7fc0_1234,
            0x7f80_0001,
            0x807f_ffff,
            0x3f80_0000,
        ])),
        1 => random.of(&[
            0,
            1,
            1 << 63,
            0x7ff << 52,
            0xfff << 52,
            0x7ff8 << 48,
            (0x7ff << 52) + 1,
            (1 << 52) - 1,
            1023 << 52,
        ]),
        2 => random.below(1 << 16),
        3 => random.below(100).wrapping_sub(50),
        4 => (value(random).significand >> 11) & !(1 << 52) | (1023 - 5 + random.below(10)) << 52 | random.next() << 63,
        5 => {
            let value = value(random);
            bytes[8..10].copy_from_slice(&value.sign_exponent.to_le_bytes());
            value.significand
        }
        6 => {
            for b in &mut bytes[..9] {
                *b = (random.below(10) << 4 | random.below(10)) as u8;
            }
            return bytes;
        }
        _ => return bytes,
    };
    bytes[..8].copy_from_slice(&special.to_le_bytes());
    bytes
}

/// Returns an image for FRSTOR, without a pending exception.
fn state(random: &mut Random) -> [u8; 108] {
    let masks = if random.below(2) == 0 { 0x3f } else { random.below(64) as u16 };
    let control = 0x40 | masks | (random.of(&[0, 2, 3, 3, 3, 1]) << 8) | (random.below(4) as u16) << 10;
    let status = (random.next() as u16 & 0x7f40) | (random.next() as u16 & masks);
    // Usually ST(6) and ST(7) are empty, so that loads do not overflow, and sometimes others.
    let top = u32::from(status >> 11 & 7);
    let mut empty = if random.below(6) == 0 { 0 } else { 0xc0u8.rotate_left(top) };
    if random.below(4) == 0 {
        empty |= random.next() as u8 & random.next() as u8;
    }
    let tags = (0..8).fold(0u16, |tags, i| tags | if empty >> i & 1 != 0 { 3 << (2 * i) } else { 0 });
    let mut image = [0; 108];
    for (at, word) in [(0, control), (4, status), (8, tags)] {
        image[at..at + 2].copy_from_slice(&word.to_le_bytes());
    }
    image[12..16].copy_from_slice(&0x1111_1111u32.to_le_bytes());
    image[18..20].copy_from_slice(&0x0123u16.to_le_bytes());
    image[20..24].copy_from_slice(&0x2222_2222u32.to_le_bytes());
    for i in 0..8 {
        image[28 + 10 * i..38 + 10 * i].copy_from_slice(&value(random).to_bytes());
    }
    image
}

fn word(image: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([image[at], image[at + 1]])
}

fn dword(image: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([image[at], image[at + 1], image[at + 2], image[at + 3]])
}

fn st(image: &[u8], i: usize) -> F80 {
    F80::from_bytes(image[28 + 10 * i..38 + 10 * i].try_into().unwrap())
}

/// Loads an image into the processor, without an instruction.
fn load(cpu: &mut Cpu, image: &[u8; 108]) {
    let x = &mut cpu.arch.x87;
    x.control = word(image, 0);
    x.status = word(image, 4);
    x.set_tag_word(word(image, 8));
    x.ip = dword(image, 12).into();
    x.cs = word(image, 16);
    x.ds = word(image, 24);
    x.opcode = word(image, 18);
    x.dp = dword(image, 20).into();
    x.summarize();
    for i in 0..8 {
        let physical = (usize::from(x.top()) + i) & 7;
        x.regs[physical] = st(image, i);
    }
}

/// Formats a state as text, for comparison and for reading.
fn describe(control: u16, status: u16, tags: u16, regs: [F80; 8]) -> Vec<String> {
    let mut lines = vec![format!("control {control:04x}"), format!("status {status:04x}"), format!("tags {tags:04x}")];
    lines.extend((0..8).map(|i| format!("st{i} {:04x}:{:016x}", regs[i].sign_exponent, regs[i].significand)));
    lines
}

fn of_image(image: &[u8; 108]) -> Vec<String> {
    describe(word(image, 0), word(image, 4), word(image, 8), std::array::from_fn(|i| st(image, i)))
}

fn of_cpu(cpu: &Cpu) -> Vec<String> {
    let x = &cpu.arch.x87;
    describe(x.control, x.status, x.tag_word(), std::array::from_fn(|i| x.st(i as u8)))
}

const TRANSCENDENTAL: [Mnemonic; 8] = [
    Mnemonic::Fsin,
    Mnemonic::Fcos,
    Mnemonic::Fsincos,
    Mnemonic::Fptan,
    Mnemonic::Fpatan,
    Mnemonic::F2xm1,
    Mnemonic::Fyl2x,
    Mnemonic::Fyl2xp1,
];

/// Returns all x87 encodings that the decoder knows, with the memory operand at RSI.
fn encodings() -> Vec<(Vec<u8>, Mnemonic)> {
    let mut all = Vec::new();
    for opcode in 0xd8..=0xdf {
        for modrm in (0xc0..=0xff).chain((0..8).map(|reg| reg << 3 | 6)) {
            let bytes = vec![opcode, modrm];
            let instruction = Decoder::with_ip(64, &bytes, 0, DecoderOptions::NONE).decode();
            if !instruction.is_invalid() {
                all.push((bytes, instruction.mnemonic()));
            }
        }
    }
    all.push((vec![0x9b], Mnemonic::Wait));
    for (opcode, reg, mnemonic) in [
        (0xd9, 4, Mnemonic::Fldenv),
        (0xd9, 6, Mnemonic::Fnstenv),
        (0xdd, 4, Mnemonic::Frstor),
        (0xdd, 6, Mnemonic::Fnsave),
    ] {
        all.push((vec![0x66, opcode, reg << 3 | 6], mnemonic));
    }
    all
}

/// Returns the distance of two values in units of the last place, or `None` if it is not a small number.
fn distance(a: F80, b: F80) -> Option<u64> {
    let line = |v: F80| i128::from(v.sign_exponent & 0x7fff) << 63 | i128::from(v.significand & u64::MAX >> 1);
    let distance = (line(a) - line(b)).unsigned_abs();
    (a.negative() == b.negative() && distance < 1000).then_some(distance as u64)
}

/// Permits a difference of one unit in the host's results, and any C1, which gives the rounding direction.
fn tolerate(native: &mut [u8; 108], cpu: &Cpu, initial: &[u8; 108]) {
    const C1: u8 = 2;
    if native[4] & !initial[4] & 0x40 == 0 {
        native[5] = native[5] & !C1 | (cpu.arch.x87.status >> 8) as u8 & C1;
    }
    for i in 0..2 {
        let own = cpu.arch.x87.st(i);
        let distance = distance(own, st(native, i.into()));
        if distance == Some(1) && own.exponent().min(st(native, i.into()).exponent()) == 0 {
            // At the limit, one may be tiny and the other not.
            native[4] = native[4] & !0x10 | cpu.arch.x87.status as u8 & 0x10;
        }
        if distance.is_some_and(|d| d <= 1) {
            let at = 28 + 10 * usize::from(i);
            native[at..at + 10].copy_from_slice(&own.to_bytes());
            // One of them may be zero.
            let physical = u32::from(cpu.arch.x87.top().wrapping_add(i) & 7);
            let tags = word(native, 8) & !(3 << (2 * physical)) | cpu.arch.x87.tag_word() & 3 << (2 * physical);
            native[8..10].copy_from_slice(&tags.to_le_bytes());
        }
    }
}

/// Returns true if instruction and data pointers are the same on all processors: AMD processors record the opcode of
/// every instruction, Intel's only of those that raise an unmasked exception (APM vol. 1, 6.2.5; SDM vol. 1, 8.1.9.1).
/// Without a pending exception, saving the state, which the host's kernel may do at any time, loses them on AMD's (APM
/// vol. 5, FXSAVE).
fn pointers_compare(native: &[u8; 108]) -> bool {
    const SUMMARY: u8 = 0x80;
    !host_is_amd() || native[4] & SUMMARY != 0
}

fn check(cases: u64, seed: u64, transcendental: bool) {
    let host = Host::new();
    let mut random = Random::new(seed);
    let mut machine = Machine::long64(3);
    let cpu = &mut machine.cpu;
    // According to the host's CPUID.
    let features = std::arch::x86_64::__cpuid_count(7, 0).ebx;
    cpu.wiring.fdp_on_exception = features >> 6 & 1 != 0;
    cpu.wiring.fcs_deprecated = features >> 13 & 1 != 0;
    let code = cpu.arch.rip;
    let all: Vec<_> = encodings().into_iter().filter(|(_, m)| TRANSCENDENTAL.contains(m) == transcendental).collect();
    let mut failures: BTreeMap<String, (u64, String)> = BTreeMap::new();
    for case in 0..cases {
        let (bytes, mnemonic) = all[(case % all.len() as u64) as usize].clone();
        let initial = state(&mut random);
        if transcendental && st(&initial, 0).exponent() <= 1 && st(&initial, 0).significand == 1 << 63 {
            // Just below the smallest normal number, processors differ in the detection of tiny results.
            continue;
        }
        let memory = memory(&mut random);
        let flags = random.next() & ARITHMETIC_FLAGS;

        let (mut native, mut native_memory) = (initial, memory);
        let (native_flags, native_rax, at) = host.run(&bytes, &mut native, &mut native_memory, 0x202 | flags);

        load(cpu, &initial);
        cpu.arch.rip = code;
        cpu.arch.gpr[0] = 0;
        cpu.arch.gpr[6] = DATA;
        cpu.arch.lazy.load(flags);
        cpu.wiring.ram.write_bytes(DATA, &memory);
        let raised = step_bytes(cpu, &bytes).err();
        let mut own_memory = [0; MEMORY];
        cpu.wiring.ram.read_bytes(DATA, &mut own_memory);

        if transcendental {
            tolerate(&mut native, cpu, &initial);
        }
        let environment = matches!(mnemonic, Mnemonic::Fnstenv | Mnemonic::Fnsave);
        if environment {
            // The saved pointers are compared by their value before.
            native_memory[108..].fill(0);
            own_memory[108..].fill(0);
            if !pointers_compare(&native) {
                let pointers = if bytes[0] == 0x66 { 6..14 } else { 12..28 };
                native_memory[pointers.clone()].copy_from_slice(&own_memory[pointers]);
            }
        }
        let same_memory = native_memory == own_memory;
        let mut wanted = of_image(&native);
        let mut got = of_cpu(cpu);
        if pointers_compare(&native) {
            let pointer = |value: u32, now: u32| if value == now { "here".into() } else { format!("{value:x}") };
            wanted.push(format!("ip {}", pointer(dword(&native, 12), at)));
            got.push(format!("ip {}", pointer(cpu.arch.x87.ip as u32, code as u32)));
            wanted.push(format!("opcode {:03x}", word(&native, 18)));
            got.push(format!("opcode {:03x}", cpu.arch.x87.opcode));
            if bytes.last().is_some_and(|b| *b < 0x40) {
                wanted.push(format!("dp {}", pointer(dword(&native, 20), native_memory.as_ptr() as u32)));
                got.push(format!("dp {}", pointer(cpu.arch.x87.dp as u32, DATA as u32)));
            }
        }
        wanted.push(format!("flags {native_flags:x} rax {native_rax:x} memory {:02x?} None", &native_memory[..28]));
        got.push(format!(
            "flags {:x} rax {:x} memory {:02x?} {raised:?}",
            cpu.rflags() & ARITHMETIC_FLAGS,
            cpu.arch.gpr[0],
            &own_memory[..28]
        ));
        if wanted != got || !same_memory {
            let name = format!("{mnemonic:?} {bytes:02x?}");
            let entry = failures.entry(name).or_insert_with(|| {
                let mut text = String::new();
                for (i, (w, g)) in wanted.iter().zip(&got).enumerate() {
                    let from = of_image(&initial).get(i).cloned().unwrap_or_default();
                    let mark = if w == g { " " } else { "*" };
                    text += &format!("  {mark} was {from:30} host {w:30} own {g}\n");
                }
                (0, text + &format!("    memory {:02x?} flags {flags:x}\n", &memory[..16]))
            });
            entry.0 += 1;
        }
    }
    for (name, (count, text)) in &failures {
        println!("{name}: {count} failures, the first\n{text}");
    }
    assert!(failures.is_empty(), "{} encodings differ from the host", failures.len());
}

#[test]
fn every_encoding_does_what_the_host_does() {
    check(400_000, 0x1234_5678_9abc_def1, false);
}

#[test]
fn transcendental_results_are_within_a_unit_of_the_hosts() {
    check(100_000, 0x0fed_cba9_8765_4321, true);
}
