//! Performance counters: their registers, what they count, and their interrupts, which are the same on both tiers.

use cpu::bus::{Bus, Ident};
use cpu::{Cpu, Exit, Model, Tier};
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use ledger::profile::{Clock, Profile};
use ledger::{Class, Family, Recorder, TICKS_PER_CYCLE};
use std::sync::{Arc, Mutex};
use testkit::{CODE, DATA, Machine, Raised, STACK, set_flat_segments, set_long_mode};
use x86::control::CR4_PCE;
use x86::msr::*;
use x86::{reg, rights, vector};

/// In a selector: counts in user code and in the kernel, enabled.
const ALL: u64 = 0x43_0000;
/// In a selector: an overflow raises an interrupt.
const INTERRUPT: u64 = 1 << 20;
/// Events of Intel's and AMD's processors: cycles, instructions, branches, mispredicted branches.
const INTEL: [u64; 4] = [0x3c, 0xc0, 0xc4, 0xc5];
const AMD: [u64; 4] = [0x76, 0xc0, 0xc2, 0xc3];
/// Intel's references to the last cache, and misses of it.
const CACHE: [u64; 2] = [0x4f2e, 0x412e];
const TURNS: u32 = 3000;

/// A board that notes the interrupts of counters, and delivers none.
#[derive(Default)]
struct Board {
    masks: Vec<bool>,
}

impl Bus for Board {
    fn read(&mut self, _: Ident, _: u64, _: u8) -> u64 {
        u64::MAX
    }
    fn write(&mut self, _: Ident, _: u64, _: u8, _: u64) {}
    fn device(&self, _: u64) -> u32 {
        0
    }
    fn port_in(&mut self, _: Ident, _: u16, _: u8) -> u32 {
        u32::MAX
    }
    fn port_out(&mut self, _: Ident, _: u16, _: u8, _: u32) {}
    fn msr_read(&mut self, _: Ident, _: u32) -> Option<u64> {
        None
    }
    fn msr_write(&mut self, _: Ident, _: u32, _: u64) -> bool {
        false
    }
    fn acknowledge(&mut self, _: Ident) -> Option<u8> {
        None
    }
    fn end_of_interrupt(&mut self, _: Ident) {}
    fn cr8(&mut self, _: Ident) -> u8 {
        0
    }
    fn set_cr8(&mut self, _: Ident, _: u8) {}
    fn performance_interrupt(&mut self, _: Ident, masks: bool) {
        self.masks.push(masks);
    }
}

struct Counting {
    machine: Machine,
    board: Arc<Mutex<Board>>,
    /// Address of the next piece of code: decoded code is not written.
    next: u64,
}

fn processor(name: &str, clock: Clock, machine: &Machine, board: &Arc<Mutex<Board>>) -> Cpu {
    let profile = Profile::find(name).unwrap().with_clock(clock).unwrap();
    let model = Model::of(&profile, profile.costs(), profile.geometry(), &profile.cpuid());
    let (ram, root) = (machine.cpu.wiring.ram.clone(), machine.cpu.arch.cr3);
    let mut cpu = Cpu::new(0, Arc::new(model), ram, board.clone(), Recorder::default());
    set_long_mode(&mut cpu, root, 0, true);
    cpu
}

impl Counting {
    fn new(name: &str, clock: Clock, tier: Tier) -> Self {
        let mut machine = Machine::long64(0);
        let board = Arc::new(Mutex::new(Board::default()));
        machine.cpu = processor(name, clock, &machine, &board);
        machine.cpu.arch.rip = CODE;
        machine.cpu.arch.gpr[usize::from(reg::RSP)] = STACK;
        machine.cache.code.tier = tier;
        Self { machine, board, next: CODE + 0x8000 }
    }

    /// Runs until HLT. Returns where the counters interrupted: time and instruction.
    fn run(&mut self) -> Vec<(u64, u64)> {
        let mut interrupts = Vec::new();
        for _ in 0..1_000_000 {
            let before = self.board.lock().unwrap().masks.len();
            let exit = self.machine.run(700_000);
            if self.board.lock().unwrap().masks.len() != before {
                interrupts.push((self.machine.cpu.micro.clock, self.machine.cpu.arch.rip));
            }
            match exit {
                Exit::Halt => return interrupts,
                Exit::Deadline | Exit::Bus => {}
                other => panic!("{other:?}"),
            }
        }
        panic!("no end");
    }

    /// Reads a register by an instruction.
    fn read(&mut self, index: u32) -> u64 {
        self.machine.cpu.arch.rip = self.next;
        self.next += 0x40;
        self.machine.code(|a| {
            a.mov(ecx, index)?;
            a.rdmsr()?;
            a.hlt()
        });
        self.run();
        let cpu = &self.machine.cpu;
        cpu.reg(reg::RDX) << 32 | cpu.reg(reg::RAX)
    }

    /// Writes a register by an instruction. Returns false if that raises #GP.
    fn write(&mut self, index: u32, value: u64) -> bool {
        self.machine.cpu.arch.rip = self.next;
        self.next += 0x40;
        self.machine.code(|a| {
            write(a, index, value)?;
            a.hlt()
        });
        // Without a table of handlers an exception shuts the processor down.
        match self.machine.run(1_000_000) {
            Exit::Halt => true,
            Exit::Bus => {
                self.run();
                true
            }
            Exit::Shutdown => false,
            other => panic!("{other:?}"),
        }
    }
}

fn write(a: &mut CodeAssembler, index: u32, value: u64) -> Result<(), IcedError> {
    a.mov(ecx, index)?;
    a.mov(eax, value as u32)?;
    a.mov(edx, (value >> 32) as u32)?;
    a.wrmsr()
}

/// A loop of loads, stores, calls and branches, whose data does not fit into the first cache.
fn body(a: &mut CodeAssembler) -> Result<(), IcedError> {
    let (mut top, mut even, mut function) = (a.create_label(), a.create_label(), a.create_label());
    a.mov(ebp, TURNS)?;
    a.mov(esi, DATA as u32)?;
    a.mov(ebx, 12345)?;
    a.jmp(top)?;
    a.set_label(&mut function)?;
    a.add(rbx, qword_ptr(rsi + rdi))?;
    a.ret()?;
    a.set_label(&mut top)?;
    a.imul_3(ebx, ebx, 1_103_515_245)?;
    a.add(ebx, 12345)?;
    a.mov(edi, ebx)?;
    a.shr(edi, 12)?;
    a.and(edi, 0xf_ffc0)?;
    a.mov(qword_ptr(rsi + rdi), rbx)?;
    a.call(function)?;
    a.test(ebx, 0x10000)?;
    a.jz(even)?;
    a.add(ebx, 7)?;
    a.set_label(&mut even)?;
    a.dec(ebp)?;
    a.jnz(top)
}

/// Number of instructions of [`body`], except for those after its branch.
const BODY: u64 = 4 + 11 * TURNS as u64 + 2 * TURNS as u64;

/// Programs these counters, runs [`body`], stops the counters and halts.
fn program(a: &mut CodeAssembler, amd: bool, events: &[u64], fixed: u64, start: &[u64]) -> Result<(), IcedError> {
    let (selector, counter, step) = if amd { (PERF_CTL0, EXT_PERF_CTR0, 2) } else { (PERFEVTSEL0, A_PMC0, 1) };
    for (number, value) in start.iter().enumerate() {
        write(a, counter + step * number as u32, *value)?;
    }
    if !amd {
        write(a, PERF_GLOBAL_CTRL, 0)?;
        write(a, FIXED_CTR_CTRL, fixed)?;
    }
    for (number, event) in events.iter().enumerate() {
        write(a, selector + step * number as u32, *event)?;
    }
    if !amd {
        write(a, PERF_GLOBAL_CTRL, ((1 << events.len()) - 1) | if fixed != 0 { 7 << 32 } else { 0 })?;
    }
    body(a)?;
    match amd {
        false => write(a, PERF_GLOBAL_CTRL, 0)?,
        true => (0..events.len() as u32).try_for_each(|number| write(a, selector + step * number, 0))?,
    }
    a.hlt()
}

const CLOCKS: [Clock; 2] = [Clock::Flat, Clock::Core];
const TIERS: [Tier; 3] = [Tier::Interpreter, Tier::Translator, Tier::Auto];

#[test]
fn both_tiers_count_what_the_ledger_has() {
    for clock in CLOCKS {
        let counted = TIERS.map(|tier| {
            let mut c = Counting::new("skx,pmu", clock, tier);
            let events: Vec<u64> = [&INTEL[1..], &CACHE[..1]].concat().iter().map(|event| event | ALL).collect();
            c.machine.code(|a| program(a, false, &events, 0x333, &[]));
            assert_eq!(c.run(), []);
            let counts: Vec<u64> = (FIXED_CTR0..=FIXED_CTR2).chain(PMC0..=PMC3).map(|index| c.read(index)).collect();
            // The record also has what came before and after, and the accesses to the registers.
            let cpu = &mut c.machine.cpu;
            cpu.record_counts(&mut c.machine.cache);
            let of = |family: Family| -> u64 {
                let events = cpu.wiring.recorder.events().filter(|(_, _, kind, _)| kind.family == family);
                events.map(|(.., amount)| amount.count).sum()
            };
            let missed = of(Family::BranchMiss) + of(Family::IndirectMiss) + of(Family::ReturnMiss);
            let memory = of(Family::CacheMissData) + of(Family::CacheMissCode);
            let known = clock == Clock::Core;
            assert_eq!(counts[5], if known { missed } else { 0 }, "{clock:?} {tier:?}");
            assert_eq!(counts[6] > 0, known);
            assert!(counts[6] <= memory);
            (counts, cpu.micro.clock)
        });
        let [(counts, time), others @ ..] = counted;
        others.into_iter().for_each(|other| assert_eq!(other, (counts.clone(), time), "{clock:?}"));
        let [instructions, cycles, reference, general, branches, ..] = counts[..] else { panic!() };
        // The write that starts the counters, the body, and three instructions before the write that stops them.
        let more = instructions - (1 + BODY + 3);
        assert!((TURNS / 3..TURNS * 2 / 3).contains(&(more as u32)), "{more}");
        assert_eq!((instructions, cycles), (general, reference));
        assert_eq!(branches, 1 + 4 * u64::from(TURNS));
        assert!(cycles > u64::from(TURNS) && cycles < time / TICKS_PER_CYCLE);
    }
}

#[test]
fn overflows_interrupt_both_tiers_at_the_same_instruction() {
    for (name, events, amd) in [("skx,pmu", INTEL, false), ("zen3,pmu", AMD, true)] {
        for clock in CLOCKS {
            for (event, before) in events.into_iter().zip([10_000u64, 20_001, 1_777, 100]) {
                if clock == Clock::Flat && event == events[3] {
                    continue;
                }
                let outcomes = TIERS.map(|tier| {
                    let mut c = Counting::new(name, clock, tier);
                    let start = (1u64 << 48) - before;
                    c.machine.code(|a| program(a, amd, &[event | ALL | INTERRUPT], 0, &[start]));
                    let interrupts = c.run();
                    assert_eq!(c.board.lock().unwrap().masks, vec![!amd; interrupts.len()]);
                    let status = if amd { 0 } else { c.read(PERF_GLOBAL_STATUS) };
                    (interrupts, c.read(if amd { EXT_PERF_CTR0 } else { PMC0 }), status, c.machine.cpu.micro.clock)
                });
                let [(interrupts, count, status, _), ..] = &outcomes;
                assert_eq!(interrupts.len(), 1, "{name} {clock:?} {event:#x}: {count}");
                assert_eq!(*status, u64::from(!amd));
                outcomes[1..].iter().for_each(|other| assert_eq!(*other, outcomes[0], "{name} {clock:?} {event:#x}"));
            }
        }
    }
}

/// The counter of cycles in user code and the kernel overflows at the first boundary of blocks after the cycle.
#[test]
fn an_overflow_of_cycles_is_exact() {
    let at = |before: u64| {
        let mut c = Counting::new("skx,pmu", Clock::Flat, Tier::Translator);
        c.machine.code(|a| program(a, false, &[INTEL[0] | ALL | INTERRUPT], 0, &[(1 << 48) - before]));
        c.run()[0].0
    };
    for before in [5000, 5001, 20_000] {
        let passed = at(before) - at(2000);
        let expected = (before - 2000) * TICKS_PER_CYCLE;
        // A block of the program takes less than a hundred cycles.
        assert!(passed.abs_diff(expected) < 100 * TICKS_PER_CYCLE, "{before}: {passed}");
    }
}

#[test]
fn a_frozen_processor_counts_no_more() {
    let mut c = Counting::new("skx,pmu", Clock::Flat, Tier::Auto);
    assert!(c.write(DEBUGCTL, DEBUGCTL_FREEZE_PERFMON_ON_PMI));
    c.machine.cpu.arch.rip = CODE;
    c.machine.code(|a| program(a, false, &[INTEL[1] | ALL | INTERRUPT, INTEL[2] | ALL], 0, &[(1 << 48) - 500]));
    assert_eq!(c.run().len(), 1);
    assert!(c.read(PMC0) < 200 && c.read(PMC1) < 500, "{} {}", c.read(PMC0), c.read(PMC1));
    assert_eq!(c.read(PERF_GLOBAL_STATUS), 1);
    assert!(c.write(PERF_GLOBAL_OVF_CTRL, 1));
    assert_eq!(c.read(PERF_GLOBAL_STATUS), 0);
}

#[test]
fn a_processor_goes_on_counting_where_it_was_saved() {
    for tier in TIERS {
        let run = |saved_after: u64| {
            let mut c = Counting::new("skx,pmu", Clock::Core, tier);
            c.machine.code(|a| {
                program(a, false, &[INTEL[1] | ALL | INTERRUPT, CACHE[0] | ALL], 0x333, &[(1 << 48) - 20_000])
            });
            let end = saved_after * TICKS_PER_CYCLE;
            while c.machine.run(end - c.machine.cpu.micro.clock) != Exit::Deadline {}
            c.machine.cpu.complete_tally(&mut c.machine.cache);
            // The contexts of runs are saved with blocks, and there are none here.
            c.machine.cpu.begin_run();
            let (arch, micro) = (c.machine.cpu.arch.clone(), c.machine.cpu.micro.clone());
            let mut restored = Counting::new("skx,pmu", Clock::Core, tier);
            restored.machine.cpu = processor("skx,pmu", Clock::Core, &c.machine, &restored.board);
            restored.machine.cpu.restore(arch, micro).unwrap();
            // Both have the same memory, whose data is for the second one as it was for the first.
            let ram = c.machine.cpu.wiring.ram.clone();
            let mut data = vec![0; (STACK - DATA) as usize];
            assert!(ram.read_bytes(DATA, &mut data));
            let first = restored.run();
            assert!(ram.write_bytes(DATA, &data));
            let interrupts = [first, c.run()];
            assert_eq!(interrupts[0], interrupts[1], "{tier:?} {saved_after}");
            [restored, c]
                .map(|mut c| (PMC0..=PMC1).chain(FIXED_CTR0..=FIXED_CTR2).map(|i| c.read(i)).collect::<Vec<_>>())
        };
        for after in [7_000, 20_000, 40_000] {
            let [restored, went_on] = run(after);
            assert_eq!(restored, went_on, "{tier:?} {after}");
        }
    }
}

#[test]
fn registers_have_the_bits_that_the_manual_gives_them() {
    let mut c = Counting::new("skx,pmu", Clock::Flat, Tier::Interpreter);
    let leaf = c.machine.cpu.cpuid(0xa, 0);
    assert_eq!((leaf.eax, leaf.ebx, leaf.edx), (0x0730_0402, 0x58, 0x603));
    assert_eq!(c.read(PERF_CAPABILITIES), PERF_CAPABILITIES_FULL_WIDTH);
    assert_eq!(c.read(PERF_GLOBAL_CTRL), 0xf, "the general counters");
    assert_eq!(c.read(MISC_ENABLE) & MISC_ENABLE_PERFMON, MISC_ENABLE_PERFMON);
    let refused = [
        (PERFEVTSEL0, 1 << 21),
        (PERFEVTSEL0, 1 << 32),
        (PERFEVTSEL4, 0),
        (A_PMC0, 1 << 48),
        (FIXED_CTR0, 1 << 48),
        (FIXED_CTR_CTRL, 4),
        (FIXED_CTR_CTRL, 1 << 12),
        (PERF_GLOBAL_CTRL, 1 << 4),
        (PERF_GLOBAL_CTRL, 1 << 35),
        (PERF_GLOBAL_STATUS, 0),
        (PERF_GLOBAL_OVF_CTRL, 1 << 5),
        (PERF_CAPABILITIES, 0),
        (DEBUGCTL, 1 << 13),
    ];
    for (index, value) in refused {
        assert!(!c.write(index, value), "{index:#x} {value:#x}");
        // A shutdown leaves the processor as it was.
        c.machine.cpu.arch.rip = CODE;
        set_flat_segments(&mut c.machine.cpu, 0, rights::L);
    }
    for (index, value, read) in [
        (PMC1, 0x8000_0001, 0xffff_8000_0001),
        (PMC1, 0xffff_0000_0001, 1),
        (A_PMC1, 0x8000_0000_0001, 0x8000_0000_0001),
        (FIXED_CTR2, 0x1234_5678_9abc, 0x1234_5678_9abc),
        (PERFEVTSEL3, 0xffdf_ffff, 0xffdf_ffff),
        (FIXED_CTR_CTRL, 0xbbb, 0xbbb),
        (PERF_GLOBAL_CTRL, 0x7_0000_000f, 0x7_0000_000f),
        (PERF_GLOBAL_CTRL, 0, 0),
    ] {
        assert!(c.write(index, value), "{index:#x} {value:#x}");
        assert_eq!(c.read(index), read, "{index:#x}");
    }
    let fresh = Counting::new("skx,pmu", Clock::Flat, Tier::Interpreter).machine.cpu.arch.pmu;
    c.machine.cpu.reset(true);
    assert_ne!(c.machine.cpu.arch.pmu, fresh, "INIT keeps them");
    c.machine.cpu.reset(false);
    assert_eq!(c.machine.cpu.arch.pmu, fresh);
}

#[test]
fn without_the_option_there_are_no_counters() {
    for name in ["skx", "zen3"] {
        let mut c = Counting::new(name, Clock::Flat, Tier::Interpreter);
        assert_eq!(c.machine.cpu.cpuid(0xa, 0).eax, 0);
        assert_eq!(c.machine.cpu.cpuid(1, 0).ecx & 1 << 15, 0);
        c.machine.cpu.arch.rip = CODE;
        assert_eq!(c.machine.execute(|a| a.rdpmc()), Err(Raised { vector: vector::GP, code: Some(0) }));
        assert!(!c.write(if name == "skx" { PMC0 } else { PERF_CTL0 }, 0), "{name}");
    }
}

#[test]
fn rdpmc_names_counters_as_the_vendor_does() {
    for (name, good, bad) in [
        ("skx,pmu", &[0, 3, 1 << 30, 1 << 30 | 2][..], &[4, 1 << 30 | 3, 1 << 31][..]),
        ("zen3,pmu", &[0, 5], &[6, 1 << 30]),
    ] {
        let mut c = Counting::new(name, Clock::Flat, Tier::Interpreter);
        for index in bad {
            c.machine.cpu.arch.gpr[usize::from(reg::RCX)] = *index;
            assert_eq!(
                c.machine.execute(|a| a.rdpmc()),
                Err(Raised { vector: vector::GP, code: Some(0) }),
                "{index:#x}"
            );
        }
        for (number, index) in good.iter().enumerate() {
            c.machine.cpu.arch.rip = CODE + 0x100 * (1 + number as u64);
            c.machine.code(|a| {
                a.mov(ecx, *index as u32)?;
                a.mov(rax, -1i64)?;
                a.mov(rdx, -1i64)?;
                a.rdpmc()?;
                a.hlt()
            });
            c.run();
            assert_eq!((c.machine.cpu.reg(reg::RAX), c.machine.cpu.reg(reg::RDX)), (0, 0), "{index:#x}");
        }
        // User code needs CR4.PCE.
        set_flat_segments(&mut c.machine.cpu, 3, rights::L);
        c.machine.cpu.arch.gpr[usize::from(reg::RCX)] = 0;
        c.machine.cpu.arch.rip = CODE;
        assert_eq!(c.machine.execute(|a| a.rdpmc()), Err(Raised { vector: vector::GP, code: Some(0) }));
        c.machine.cpu.arch.cr4 |= CR4_PCE;
        c.machine.cpu.arch.rip = CODE + 0x1000;
        c.machine.code(|a| {
            a.rdpmc()?;
            a.mov(ebx, 1)?;
            a.hlt()
        });
        // HLT is not for user code.
        assert_eq!(c.machine.run(1_000_000), Exit::Shutdown);
        assert_eq!(c.machine.cpu.reg(reg::RBX), 1);
    }
}

/// A counter mask, an inversion and edges count cycles, of which the model knows only that each is one.
#[test]
fn masks_compare_with_the_one_cycle_of_a_cycle() {
    let count = |selector: u64| {
        let mut c = Counting::new("skx,pmu", Clock::Flat, Tier::Auto);
        c.machine.code(|a| program(a, false, &[selector], 0, &[]));
        c.run();
        c.read(PMC0)
    };
    let cycles = count(0x3c | ALL);
    let (mask, inverted, edge) = (1 << 24, 1 << 23, 1 << 18);
    assert!(cycles > u64::from(TURNS));
    for (selector, expected) in [
        (ALL | mask, cycles),
        (ALL | (2 * mask), 0),
        (ALL | mask | inverted, 0),
        (ALL | (2 * mask) | inverted, cycles),
        (ALL | inverted, cycles),
        (ALL | edge, 0),
        (ALL & !(1 << 22), 0),
        (1 << 22, 0),
        (1 << 22 | 1 << 17, cycles),
        (1 << 22 | 1 << 16, 0),
    ] {
        assert_eq!(count(0x3c | selector), expected, "{selector:#x}");
    }
    assert_eq!(count(0xc0 | ALL | mask), 0);
    assert_eq!(count(0xd0 | ALL), 0, "the model does not know it");
}

#[test]
fn no_class_of_steps_is_an_instruction() {
    // Counts of a repeated string are those of one instruction.
    let mut c = Counting::new("skx,pmu", Clock::Flat, Tier::Auto);
    c.machine.code(|a| {
        write(a, FIXED_CTR_CTRL, 0x3)?;
        write(a, PERF_GLOBAL_CTRL, 1 << 32)?;
        a.mov(edi, DATA as u32)?;
        a.mov(ecx, 1000)?;
        a.rep().stosq()?;
        write(a, PERF_GLOBAL_CTRL, 0)?;
        a.hlt()
    });
    c.run();
    assert_eq!(c.read(FIXED_CTR0), 1 + 3 + 3);
    c.machine.cpu.record_counts(&mut c.machine.cache);
    let steps = c
        .machine
        .cpu
        .wiring
        .recorder
        .events()
        .filter(|(_, _, kind, _)| kind.family == Family::Instruction && kind.param == Class::StringStep as u32);
    assert_eq!(steps.map(|(.., amount)| amount.count).sum::<u64>(), 1000);
}
