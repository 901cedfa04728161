//! Both sides of a validation execute the same kernels. The model's side is deterministic; nothing is said about the
//! time of the native one.

use ledger::profile::{Clock, Profile};
use validate::families::{bandwidth, branches, caches, pairs, paths, tlb};
use validate::kernel::Kernel;
use validate::native::Process;
use validate::program::Program;
use validate::{bare, blocks};

/// Every family's kernels of a quick validation, with few rounds.
fn kernels() -> Vec<Kernel> {
    let mut all: Vec<Kernel> = Vec::new();
    all.extend(caches::kernels(true).into_iter().take(3).map(|(_, kernel)| kernel));
    all.extend(tlb::kernels(true).into_iter().take(2).map(|(_, kernel)| kernel));
    all.extend(
        bandwidth::kernels(true).into_iter().filter(|(_, size, _)| *size < 1 << 20).map(|(_, _, kernel)| kernel),
    );
    all.extend(branches::kernels(true));
    all.extend(pairs::pairs().into_iter().flat_map(|pair| pair.ways));
    for kernel in &mut all {
        (kernel.rounds, kernel.warm) = (kernel.rounds.min(50), kernel.warm.min(10));
    }
    all
}

#[test]
fn the_model_gives_the_same_figures_twice() {
    let kernels = kernels();
    let program = Program::new(&kernels).unwrap();
    for clock in [Clock::Core, Clock::Flat] {
        let profile = Profile::named("zen3").unwrap().with_clock(clock).unwrap();
        for (kernel, entry) in kernels.iter().zip(&program.functions) {
            let figure = || bare::measure(&profile, &program, kernel, *entry).unwrap();
            let first = figure();
            assert!(first > 0.0, "{}", kernel.name);
            assert_eq!(first.to_bits(), figure().to_bits(), "{}", kernel.name);
        }
    }
}

#[test]
fn a_process_executes_every_kernel() {
    let kernels = kernels();
    let program = Program::new(&kernels).unwrap();
    let mut process = Process::start(&program).unwrap();
    for (kernel, entry) in kernels.iter().zip(&program.functions) {
        let measured = process.measure(kernel, *entry, 0).unwrap();
        assert!(measured.interval[0] <= measured.cycles && measured.cycles <= measured.interval[1]);
    }
}

#[test]
fn a_process_executes_every_path_through_the_kernel() {
    let mut kernels = paths::kernels();
    kernels.iter_mut().for_each(|kernel| (kernel.rounds, kernel.warm) = (3, 1));
    let program = Program::new(&kernels).unwrap();
    let mut process = Process::start(&program).unwrap();
    for (kernel, entry) in kernels.iter().zip(&program.functions) {
        process.measure(kernel, *entry, 0).unwrap();
    }
}

#[test]
fn a_kernel_that_ends_the_process_is_named() {
    let kernels = [Kernel::new("undefined", 1, |_| Ok(()), |a| a.ud2())];
    let program = Program::new(&kernels).unwrap();
    let mut process = Process::start(&program).unwrap();
    let error = process.measure(&kernels[0], program.functions[0], 0).unwrap_err().to_string();
    assert!(error.contains("while it measured undefined"), "{error}");
    let profile = Profile::named("zen3").unwrap();
    let error = bare::measure(&profile, &program, &kernels[0], program.functions[0]).unwrap_err().to_string();
    assert!(error.contains("raises an exception"), "{error}");
}

#[test]
fn a_chain_of_loads_costs_the_latency_of_its_cache() {
    let kernels: Vec<Kernel> = caches::kernels(true).into_iter().take(3).map(|(_, kernel)| kernel).collect();
    let program = Program::new(&kernels).unwrap();
    let profile = Profile::named("zen3").unwrap().with_clock(Clock::Core).unwrap();
    let cycles = |n: usize| bare::measure(&profile, &program, &kernels[n], program.functions[n]).unwrap();
    let caches = profile.caches.as_ref().unwrap();
    let latency = |ticks: u64| ticks as f64 / ledger::TICKS_PER_CYCLE as f64;
    // 16 KiB are in the first level, 64 KiB in the second. The first loads look for their page in the TLB.
    let (first, second) = (latency(caches.l1d.value.latency), latency(caches.l2.value.latency));
    assert!(cycles(1) >= first && cycles(1) < 1.2 * first, "{}", cycles(1));
    assert!(cycles(2) >= second && cycles(2) < 1.3 * second, "{}", cycles(2));
}

#[test]
fn a_measured_block_is_executed_by_the_model() {
    // mov rax, [rbx + 100000h]; imul rax, rcx: the page of the operand is the one that the native side touched.
    let block = silicon::Block::decode(&[0x48, 0x8b, 0x83, 0, 0, 0x10, 0, 0x48, 0x0f, 0xaf, 0xc1]).unwrap();
    // On a host whose load changes all the time there may be no figure.
    let Ok(traced) = silicon::measure::trace_block(&block, &silicon::Options::default()) else { return };
    assert_eq!(traced.pages.len(), 2);
    let profile = Profile::named("zen3").unwrap().with_clock(Clock::Core).unwrap();
    let cycles = blocks::measure(&profile, &traced).unwrap();
    assert!((0.9..1.2).contains(&cycles), "{cycles}");
}
