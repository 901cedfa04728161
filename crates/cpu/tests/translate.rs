//! Tests of the translator against the interpreter.

use cpu::counters::MOST_BLOCKS;
use cpu::{Exit, Tier};
use iced_x86::IcedError;
use iced_x86::code_asm::{
    CodeAssembler, dword_ptr, ecx, edx, k1, qword_ptr, r10, r11, r12, rax, rbx, rcx, rdx, rsi, xmm3, xmmword_ptr, ymm4,
    ymmword_ptr, zmm1, zmm2, zmm5, zmmword_ptr,
};
use ledger::Family;
use std::time::{Duration, Instant};
use testkit::tiers::{CODE_PAGES, OTHER, READ_ONLY, RECOVERY, STACK, Start, Tiers, Width};
use testkit::{CODE, DATA, Machine, Random};

/// Virtual time limit of a program, in ticks, and maximum number of stretches.
const LONGEST: u64 = 20_000_000;
const MOST_STOPS: u64 = 400;
/// Number of programs in a test run.
const PROGRAMS: u64 = 600;

/// Runs a program on both tiers, in stretches of random length. The error describes a difference.
fn compare(tiers: &mut Tiers, seed: u64) -> Result<(), String> {
    let (random, start) = testkit::program::of(seed);
    tiers.start(&start);
    run(tiers, random)
}

fn run(tiers: &mut Tiers, mut random: Random) -> Result<(), String> {
    let stretch = random.of(&[1, 10_000, 100_000, 1_000_000, LONGEST]);
    let interrupts = random.of(&[0, 1, 4]);
    for _ in 0..MOST_STOPS {
        if interrupts != 0 && random.one_in(interrupts) {
            tiers.interrupt();
        }
        let exit = tiers.run(1 + random.below(2 * stretch))?;
        if !matches!(exit, Exit::Deadline | Exit::Bus | Exit::Probe) || tiers.reference().cpu.micro.clock > LONGEST {
            break;
        }
    }
    tiers.charges()
}

/// Maximum number of findings that are reported.
const MOST_FINDINGS: usize = 10;

/// Random programs. In the environment, `TRANSLATE_SEED` selects one program, `TRANSLATE_SECONDS` sets the duration,
/// and `TRANSLATE_FROM` the first seed.
#[test]
fn random_programs_do_the_same_on_both_tiers() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let begun = Instant::now();
    let only = number("TRANSLATE_SEED");
    let first = only.or(number("TRANSLATE_FROM")).unwrap_or(1);
    let (least, time) = match number("TRANSLATE_SECONDS") {
        _ if only.is_some() => (1, Duration::ZERO),
        Some(seconds) => (0, Duration::from_secs(seconds)),
        None => (PROGRAMS, Duration::ZERO),
    };
    let mut tiers = Tiers::new();
    let (mut seed, mut findings) = (first, Vec::new());
    while (seed < first + least || begun.elapsed() < time) && findings.len() < MOST_FINDINGS {
        if !time.is_zero() {
            // If a signal ends the test, the last line names the program.
            eprintln!("TRANSLATE_SEED={seed}");
        }
        if let Err(difference) = compare(&mut tiers, seed) {
            findings.push(format!("TRANSLATE_SEED={seed}\n{difference}"));
        }
        seed += 1;
    }
    eprintln!("{} programs in {:?}", seed - first, begun.elapsed());
    if only.is_some() {
        eprintln!("{}", testkit::program::listing(&testkit::program::of(first).1));
    }
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

/// The second machine is stopped at random, before, after and within instructions: there must be no difference.
#[test]
fn random_programs_do_the_same_under_a_debugger() {
    let mut tiers = Tiers::new();
    for seed in 1..=PROGRAMS {
        let (random, start) = testkit::program::of(seed);
        tiers.start(&start);
        tiers.debug(seed);
        if let Err(difference) = run(&mut tiers, random) {
            panic!("program {seed}\n{difference}");
        }
    }
}

/// Ensures that random programs of 32-bit code compare two tiers.
#[test]
fn flat_32_bit_code_is_translated() {
    for mut machine in [Machine::protected32(0), Machine::protected32(3), Machine::compatibility32(3)] {
        machine.cache.code.tier = Tier::Translator;
        let at = machine.cpu.arch.rip;
        // add eax, [esp]; jmp to it
        machine.poke(at, &[0x03, 0x04, 0x24, 0xeb, 0xfb]);
        machine.run(100_000);
        assert_eq!(machine.cache.listings(at, at).len(), 1);
    }
}

/// Programs that have found a bug: a segment load within a block of 32-bit code.
#[test]
fn what_was_found_once_stays_mended() {
    let mut tiers = Tiers::new();
    for seed in [34_662, 58_668] {
        if let Err(difference) = compare(&mut tiers, seed) {
            panic!("TRANSLATE_SEED={seed}\n{difference}");
        }
    }
}

/// When there are too many blocks, all are dropped, including the one that has just led to the next.
#[test]
fn everything_may_be_dropped_between_two_blocks() {
    let mut machine = Machine::long64(0);
    machine.cache.code.tier = Tier::Translator;
    // Each jump is a block.
    let jumps = MOST_BLOCKS + 1000;
    let at = 0x40_0000;
    machine.poke(at, &[0xeb, 0x00].repeat(jumps));
    machine.poke(at + 2 * jumps as u64, &[0xf4]);
    for _ in 0..2 {
        machine.cpu.arch.rip = at;
        assert_eq!(machine.run(u64::MAX / 2), Exit::Halt);
        assert_eq!(machine.cpu.arch.rip, at + 2 * jumps as u64 + 1);
    }
}

/// Runs a kernel's loop on both tiers.
fn compare_loop(assemble: fn(&mut CodeAssembler) -> Result<(), IcedError>) {
    let mut a = CodeAssembler::new(64).unwrap();
    let mut top = a.create_label();
    a.mov(ecx, 200).unwrap();
    a.set_label(&mut top).unwrap();
    assemble(&mut a).unwrap();
    a.dec(ecx).unwrap();
    a.jne(top).unwrap();
    a.hlt().unwrap();
    let mut code = a.assemble(CODE).unwrap();
    code.resize((CODE_PAGES * 4096) as usize, 0xcc);
    let mut gpr = [0; 16];
    gpr[4] = STACK;
    let start = Start {
        probes: Vec::new(),
        width: Width::Long,
        cpl: 0,
        smap: false,
        rip: CODE,
        code,
        gpr,
        flags: 0,
        bases: [DATA; 2],
        pointers: false,
        recorded: true,
        seed: 1,
        tier: Tier::Auto,
        threshold: 4,
    };
    let mut tiers = Tiers::new();
    tiers.start(&start);
    assert_eq!(tiers.run(1 << 40), Ok(Exit::Halt));
    assert_eq!(tiers.charges(), Ok(()));
}

/// Writes of FS and GS are seen by accesses that follow, in line and by handlers.
#[test]
fn bases_are_read_and_written() {
    compare_loop(|a| {
        a.lea(rdx, qword_ptr(DATA + rcx * 8))?;
        a.wrfsbase(rdx)?;
        a.mov(dword_ptr(8).fs(), ecx)?;
        a.rdfsbase(r10)?;
        a.cmp(r10, rdx)?;
        a.adc(rbx, 0)?;
        a.wrgsbase(edx)?;
        a.add(rax, qword_ptr(8).gs())?;
        // CPUID leaves translated code, and the bases are taken along.
        a.push(rcx)?;
        a.push(rbx)?;
        a.cpuid()?;
        a.pop(rbx)?;
        a.pop(rcx)?;
        a.rdgsbase(r11)?;
        a.add(r12, r11)?;
        a.add(r12, qword_ptr(8).fs())
    });
}

/// Emits a loop whose second trace finds data, has its page displaced from the TLB, and accesses it again.
fn displace(
    a: &mut CodeAssembler,
    access: fn(&mut CodeAssembler, u64) -> Result<(), IcedError>,
) -> Result<(), IcedError> {
    let mut next = a.create_label();
    a.mov(rax, qword_ptr(DATA))?;
    // Another trace begins after a return to an address without a matching call.
    a.lea(rax, qword_ptr(next))?;
    a.push(rax)?;
    a.ret()?;
    a.set_label(&mut next)?;
    a.mov(rax, qword_ptr(DATA + 0x10))?;
    // All pages are in one set of the TLB, with the stack.
    for page in [READ_ONLY, OTHER, RECOVERY] {
        access(a, page)?;
    }
    a.mov(rdx, qword_ptr(DATA + 8))
}

/// Operands of one page are probed for together, but that page may leave the TLB between them: because of a handler out
/// of line, or in line.
#[test]
fn a_page_that_leaves_the_tlb_is_missed_by_those_found_together() {
    compare_loop(|a| displace(a, |a, page| a.mov(rbx, qword_ptr(page))));
    compare_loop(|a| {
        displace(a, |a, page| {
            a.mov(rsi, page)?;
            a.lodsq()
        })
    });
}

/// A group of operands may begin in one page and end in the next.
#[test]
fn operands_close_together_may_be_in_two_pages() {
    compare_loop(|a| {
        a.lea(rsi, qword_ptr(DATA + 0xff0))?;
        a.mov(edx, 8)?;
        for _ in 0..4 {
            a.mov(qword_ptr(rsi), rdx)?;
            a.add(rdx, qword_ptr(rsi + 4))?;
            a.add(rsi, 5)?;
        }
        Ok(())
    });
}

/// A load that must be aligned does not fault if its opmask selects nothing: the instruction's handler decides, and
/// returns.
#[test]
fn misaligned_operands_of_which_nothing_is_selected_are_no_faults() {
    compare_loop(|a| {
        a.lea(rsi, qword_ptr(DATA + 4))?;
        a.kxorw(k1, k1, k1)?;
        a.vmovaps(zmm1.k1(), zmmword_ptr(rsi))?;
        a.vmovdqa32(zmm2.k1().z(), zmmword_ptr(rsi))?;
        a.vmovapd(xmm3.k1(), xmmword_ptr(rsi))?;
        a.vmovaps(ymmword_ptr(rsi).k1(), ymm4)?;
        a.vaddps(zmm5, zmm1, zmm2)?;
        a.vmovups(zmmword_ptr(DATA), zmm5)?;
        a.mov(rdx, qword_ptr(DATA + 8))
    });
}

/// The TLB misses that a guest causes with `call`, whose return address is the first access to the stack, by address.
fn misses_of_calls(tier: Tier) -> Vec<u64> {
    let mut machine = Machine::long64(3);
    machine.cache.code.tier = tier;
    machine.code(|a| {
        let mut function = a.create_label();
        a.call(function)?;
        a.nop()?;
        a.set_label(&mut function)?;
        a.hlt()
    });
    machine.run(1 << 20);
    machine.cpu.record_counts(&mut machine.cache);
    let recorder = &machine.cpu.wiring.recorder;
    recorder.events().filter(|(_, _, kind, _)| kind.family == Family::TlbMissData).map(|(_, rip, ..)| rip).collect()
}

#[test]
fn the_miss_of_a_pushed_return_address_is_charged_to_the_call() {
    for tier in [Tier::Interpreter, Tier::Translator] {
        assert_eq!(misses_of_calls(tier), [CODE], "{tier:?}");
    }
}
