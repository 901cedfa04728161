//! Tests the behavior on other hosts: without AVX-512, and with another form of decisions in translated code. The same programs, on both
//! tiers, have the same results as on this host.
//!
//! The switches affect the whole process, so this is a separate test program. If the host has no AVX-512, both runs without it are equal.

use cpu::Exit;
use cpu::native::{decide_by_loop, limit_to_256_bits};
use testkit::tiers::Tiers;

/// Virtual time limit of a program, in ticks.
const LONGEST: u64 = 5_000_000;
const PROGRAMS: u64 = 100;

/// Runs a program on both tiers. Returns its result: vector state, general registers, time.
fn outcome(seed: u64) -> (cpu::arch::VectorState, [u64; 32], u64) {
    let mut tiers = Tiers::new();
    let (_, start) = testkit::program::of(seed);
    tiers.start(&start);
    for _ in 0..40 {
        let exit = tiers.run(LONGEST / 10).unwrap_or_else(|difference| panic!("program {seed}\n{difference}"));
        let goes_on = matches!(exit, Exit::Deadline | Exit::Bus | Exit::Probe);
        if !goes_on || tiers.reference().cpu.micro.clock > LONGEST {
            break;
        }
    }
    let cpu = &tiers.reference().cpu;
    (cpu.arch.vector, cpu.arch.gpr, cpu.micro.clock)
}

#[test]
fn programs_leave_the_same_without_avx_512() {
    // Every eighth program contains AVX-512 instructions.
    let seeds: Vec<u64> = (0..PROGRAMS).map(|n| 5 + 8 * n).collect();
    let wide: Vec<_> = seeds.iter().map(|seed| outcome(*seed)).collect();
    limit_to_256_bits(true);
    for (seed, expected) in seeds.iter().zip(wide) {
        assert_eq!(outcome(*seed), expected, "program {seed}");
    }
}

#[test]
fn programs_do_the_same_however_translated_code_decides() {
    for seed in 0..PROGRAMS {
        let [by_loop, by_jrcxz] = [true, false].map(|choice| {
            decide_by_loop(choice);
            outcome(seed)
        });
        assert_eq!(by_loop, by_jrcxz, "program {seed}");
    }
}
