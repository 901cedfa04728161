//! The hypervisor: a malicious guest under every configuration, on processors with and without each virtualization
//! feature. Every run must end in a named way, leave consistent MMU tables, and repeat exactly, to the tick. A guest
//! that reads nothing that may differ must compute the same as on bare hardware.

mod code;
mod guest;
mod same;

use crate::decode;
use ::hypervisor::config::{Cr0Wp, MmuMode};
use ::hypervisor::{Failure, Hypervisor, Vcpu, VmConfig};
use ::ledger::profile::Profile;
use ::ledger::{Costs, Family, Header, Kind, Ledger, Recorder, Symbols, TICKS_PER_CYCLE};
use arbitrary::{Result, Unstructured};
use cpu::arch::attention;
use cpu::bus::lock;
use cpu::bus::{Bus, Ident};
use cpu::model::Model;
use cpu::{BlockCache, Cpu, Exit, Ram};
use guest::{Mode, POOL, RAM};
use hypervisor::config::Switches;
use hypervisor::mmu::Mmu;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use x86::{flags, reg};

/// Virtual time on bare hardware, in cycles.
const CYCLES: u64 = 20_000;
/// Virtual time under the hypervisor if exits are almost free.
const FREE_CYCLES: u64 = 200_000;
/// Virtual time under the hypervisor at a profile's prices.
const PRICED_CYCLES: u64 = 3_000_000;
/// Permitted excess over a deadline: one instruction, and one exit with all its consequences.
const SLACK: u64 = 20_000_000;
/// Number of pieces of a run, between which external events happen.
const SLICES: u64 = 8;
/// Number of times that devices may interrupt a run.
const EXITS: usize = 300;

/// Profiles of the guests' processors.
const PROFILES: [&str; 4] = ["skx", "core2", "zen3", "max"];

/// A board that answers by address and records the accesses.
#[derive(Default)]
struct Board {
    accesses: Vec<(u8, u64, u64)>,
    interrupt: Option<u8>,
    cr8: u8,
}

impl Board {
    fn note(&mut self, kind: u8, at: u64, value: u64) {
        if self.accesses.len() < 4096 {
            self.accesses.push((kind, at, value));
        }
    }
}

impl Bus for Board {
    fn read(&mut self, _: Ident, address: u64, size: u8) -> u64 {
        let value = (address.wrapping_mul(0x5851_f42d_4c95_7f2d) ^ 0x5a) >> (64 - 8 * u32::from(size));
        self.note(size, address, value);
        value
    }
    fn write(&mut self, _: Ident, address: u64, size: u8, value: u64) {
        self.note(0x10 | size, address, value);
    }
    fn device(&self, _: u64) -> u32 {
        0
    }
    fn port_in(&mut self, _: Ident, port: u16, size: u8) -> u32 {
        let value = u32::from(port).wrapping_mul(0x9e37_79b9) >> (32 - 8 * u32::from(size));
        self.note(0x20 | size, u64::from(port), u64::from(value));
        value
    }
    fn port_out(&mut self, _: Ident, port: u16, size: u8, value: u32) {
        self.note(0x30 | size, u64::from(port), u64::from(value));
    }
    fn msr_read(&mut self, _: Ident, index: u32) -> Option<u64> {
        (index == 0x1b).then_some(0xfee0_0900)
    }
    fn msr_write(&mut self, _: Ident, index: u32, _: u64) -> bool {
        index == 0x1b
    }
    fn acknowledge(&mut self, _: Ident) -> Option<u8> {
        self.interrupt.take()
    }
    fn end_of_interrupt(&mut self, _: Ident) {}
    fn cr8(&mut self, _: Ident) -> u8 {
        self.cr8
    }
    fn set_cr8(&mut self, _: Ident, value: u8) {
        self.cr8 = value;
    }
    fn performance_interrupt(&mut self, _: Ident, _: bool) {}
}

/// A profile and the objects made of it.
struct Processor {
    profile: Profile,
    priced: Arc<Model>,
    free: Arc<Model>,
}

thread_local! {
    static PROCESSORS: [OnceCell<Processor>; PROFILES.len()] = const { [const { OnceCell::new() }; PROFILES.len()] };
}

fn processor<T>(number: usize, then: impl FnOnce(&Processor) -> T) -> T {
    PROCESSORS.with(|all| {
        then(all[number].get_or_init(|| {
            let profile = Profile::named(PROFILES[number]).expect("it is built in");
            let priced = decode::model(&profile);
            let free = Costs::free();
            // Emulation takes time too, so that emulated code ends.
            let price = |family| match family {
                Family::Operation => TICKS_PER_CYCLE / 10,
                _ => free.of(Kind::new(family, 0)),
            };
            let costs = Costs::new(free.class, Family::ALL.map(price), []);
            let free = Model { costs, ..priced.clone() };
            Processor { profile, priced: Arc::new(priced), free: Arc::new(free) }
        }))
    })
}

/// The scenario that an input describes.
#[derive(Debug)]
struct Scenario {
    processor: usize,
    priced: bool,
    config: VmConfig,
    mode: Mode,
    user: bool,
    /// Interrupts and NMIs: one bit for each slice.
    interrupts: u8,
    nmis: u8,
    /// Quadwords written to memory before the start.
    memory: Vec<(u64, u64)>,
    registers: Vec<(u8, u64)>,
    code: Vec<u8>,
    /// Changes to memory from outside, one in each slice.
    changes: Vec<(u64, u64)>,
}

impl Scenario {
    fn new(input: &mut Unstructured) -> Result<Self> {
        let [modes, switches, more, events, interrupts, nmis] = input.arbitrary::<[u8; 6]>()?;
        let processor = usize::from(modes >> 4 & 3);
        let mode = Mode::ALL[usize::from(modes & 7)];
        let mmu = MmuMode::ALL[usize::from(switches & 3)];
        let bit = |number: u8| Some(more & 1 << number != 0);
        let wanted = Switches {
            mmu: Some(mmu),
            cr0_wp: Some(Cr0Wp::ALL[usize::from(switches >> 2 & 3)]),
            paravirt: Some(switches & 0x10 != 0),
            irqchip: None,
            vpid: bit(0),
            unrestricted_guest: bit(1),
            mmu_pages: [None, Some(64), Some(72), Some(200)][usize::from(more >> 2 & 3)],
            huge_pages: bit(4),
            unsync: bit(5),
            ..Switches::default()
        };
        // Settings that the processor does not support, and those that do not fit, are chosen automatically.
        let config = self::processor(processor, |p| {
            let fewer = Switches { unrestricted_guest: None, cr0_wp: None, ..wanted.clone() };
            let least = Switches { mmu: None, vpid: None, ..fewer.clone() };
            [&wanted, &fewer, &least].into_iter().find_map(|switches| switches.resolve(&p.profile).ok())
        })
        .expect("a configuration that any processor has");
        let memory =
            (0..events & 7).map(|_| Ok((code::entry_address(input)?, code::entry(input)?))).collect::<Result<_>>()?;
        let registers = (0..events >> 3 & 3)
            .map(|_| Ok((input.arbitrary::<u8>()? & 15, code::address(input)?)))
            .collect::<Result<_>>()?;
        let mut changes = Vec::new();
        if events & 0x80 != 0 {
            for _ in 0..SLICES {
                let at = if input.arbitrary()? { code::entry_address(input)? } else { code::address(input)? & !7 };
                changes.push((at, code::entry(input)?));
            }
        }
        let disturbed = events & 0x40 != 0;
        Ok(Self {
            processor,
            priced: more & 0x80 != 0,
            config,
            mode,
            user: modes & 0x80 != 0 && mode != Mode::Real,
            interrupts: if disturbed { interrupts } else { 0 },
            nmis: if disturbed { nmis } else { 0 },
            memory,
            registers,
            code: code::code(input, mode.bits()),
            changes,
        })
    }

    /// Returns true if no external event happens.
    fn undisturbed(&self) -> bool {
        self.interrupts == 0 && self.nmis == 0 && self.changes.is_empty()
    }
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq)]
enum End {
    Exit(Exit),
    Failure(Failure),
}

/// A guest on its platform.
struct Run {
    cpu: Cpu,
    cache: BlockCache,
    hypervisor: Option<Hypervisor>,
    vcpu: Vcpu,
    board: Arc<Mutex<Board>>,
}

impl Run {
    fn new(scenario: &Scenario, virtualized: bool) -> Self {
        let config = virtualized.then(|| scenario.config.clone());
        let pages = config.as_ref().map_or(0, |config| Mmu::pool_pages(config, RAM >> 12, 1));
        let ram = if virtualized { Ram::with_hidden(RAM, POOL, u64::from(pages) << 12) } else { Ram::anonymous(RAM) };
        let board = Arc::new(Mutex::new(Board::default()));
        let recorder = Recorder::default();
        let (model, hypervisor) = processor(scenario.processor, |p| {
            let model = if scenario.priced { p.priced.clone() } else { p.free.clone() };
            (model, config.map(|config| Hypervisor::new(config, &ram, &p.profile).expect("the switches fit")))
        });
        let mut cpu = Cpu::new(0, model, ram.clone(), board.clone(), recorder);
        guest::prepare(&mut cpu, scenario.mode, scenario.user);
        for &(at, value) in &scenario.memory {
            ram.write(at, value);
        }
        for &(register, value) in &scenario.registers {
            if register != reg::RSP {
                cpu.arch.gpr[usize::from(register)] =
                    value & if scenario.mode == Mode::Long { u64::MAX } else { 0xffff_ffff };
            }
        }
        assert!(ram.write_bytes(scenario.mode.code(), &scenario.code));
        Self { cpu, cache: BlockCache::new(), hypervisor, vcpu: Vcpu::new(), board }
    }

    fn step(&mut self, deadline: u64) -> End {
        if lock(&self.board).interrupt.is_some() {
            self.cpu.attend(attention::INTR);
        } else {
            self.cpu.arch.attention &= !attention::INTR;
        }
        match &mut self.hypervisor {
            Some(vm) => match self.vcpu.run(vm, &mut self.cpu, &mut self.cache, deadline) {
                Ok(exit) => End::Exit(exit),
                Err(failure) => End::Failure(failure),
            },
            None => End::Exit(self.cpu.run(&mut self.cache, deadline)),
        }
    }

    /// Runs until the guest stops for good or its time is over.
    fn finish(&mut self, scenario: &Scenario) -> End {
        let cycles = match (&self.hypervisor, scenario.priced) {
            (None, _) => CYCLES,
            (_, false) => FREE_CYCLES,
            (_, true) => PRICED_CYCLES,
        };
        let slice = cycles * TICKS_PER_CYCLE / SLICES;
        let mut exits = 0;
        let mut end = End::Exit(Exit::Deadline);
        for number in 0..SLICES {
            if scenario.interrupts & 1 << number != 0 {
                lock(&self.board).interrupt = Some(0x40 + number as u8);
            }
            if scenario.nmis & 1 << number != 0 {
                self.cpu.attend(attention::NMI);
            }
            // Devices cannot reach hidden memory either.
            let change = scenario.changes.get(number as usize).filter(|(at, _)| !self.cpu.wiring.ram.is_hidden(*at));
            if let Some((at, value)) = change {
                self.cpu.wiring.ram.write(*at, *value);
            }
            let deadline = slice * (number + 1);
            loop {
                end = self.step(deadline);
                let late = self.cpu.micro.clock.saturating_sub(deadline);
                assert!(late <= SLACK * TICKS_PER_CYCLE, "it ran until {}", self.cpu.micro.clock);
                match end {
                    End::Exit(Exit::Bus) if exits < EXITS => exits += 1,
                    End::Exit(Exit::Deadline) => break,
                    End::Exit(Exit::Halt | Exit::Mwait { .. }) if !scenario.undisturbed() => {
                        // The guest sleeps until the next slice.
                        self.cpu.micro.clock = self.cpu.micro.clock.max(deadline);
                        break;
                    }
                    _ => return end,
                }
            }
        }
        end
    }

    /// Checks the invariants at the end of a run.
    fn check(&mut self, scenario: &Scenario) {
        if let Some(vm) = &self.hypervisor {
            vm.check([&self.vcpu].into_iter()).unwrap_or_else(|wrong| panic!("{wrong}"));
        }
        assert!(
            self.cpu.arch.flags & 2 != 0 && self.cpu.arch.flags & !(flags::ALL | 2) == 0,
            "flags {:#x}",
            self.cpu.arch.flags
        );
        self.cpu.record_counts(&mut self.cache);
        if !scenario.undisturbed() {
            // Sleep is not charged.
            return;
        }
        let header = Header {
            profile: String::new(),
            tsc_hz: self.cpu.wiring.model.tsc_hz,
            class_ticks: self.cpu.wiring.model.costs.class,
            clocks: vec![self.cpu.micro.clock],
            metadata: BTreeMap::new(),
            names: BTreeMap::new(),
        };
        let ledger = Ledger::new(header, &self.cpu.wiring.recorder, &Symbols::default());
        ledger.verify().expect("the entries add up to the clock");
    }
}

/// Makes a guest of the bytes, and runs it.
pub fn run(data: &[u8]) {
    // An input that is too short makes no guest.
    if let Ok(scenario) = Scenario::new(&mut Unstructured::new(data)) {
        execute(&scenario);
    }
}

fn execute(scenario: &Scenario) {
    let run = |virtualized| {
        let mut run = Run::new(scenario, virtualized);
        let end = run.finish(scenario);
        run.check(scenario);
        (run, end)
    };
    let (first, end) = run(true);
    let (second, repeated) = run(true);
    assert_eq!(end, repeated, "the end is another when the run is repeated");
    assert_eq!(first.cpu.micro.clock, second.cpu.micro.clock, "the clock is another when the run is repeated");
    same::repeated(&first, &second);
    if scenario.undisturbed() && !matches!(end, End::Failure(_)) {
        let (bare, expected) = run(false);
        same::as_bare(scenario, &bare, expected, &first, end);
    }
}

/// Returns guests of each kind under each configuration; mutations do the rest.
pub fn seeds() -> Vec<Vec<u8>> {
    // These are kinds and operands, as `code` reads them.
    const PIECES: [&[u8]; 16] = [
        // CR0.WP, CR4.PGE, CR3, another root, reads of CR3 and CR8.
        &[32, 0, 0, 32, 1, 6, 33, 4, 0, 34, 5, 0, 35, 6, 0x18, 36, 6, 0x20],
        // Paging is switched off and on, PAE, level 3's protection.
        &[32, 0, 1, 32, 1, 5, 32, 1, 4, 32, 0, 1, 32, 1, 10],
        // Entries change; pages are read and written.
        &[88, 1, 0x2d, 0, 57, 0x85, 4, 0x20, 7, 81, 0x2d, 0, 89, 1, 0x2d, 0, 90, 0, 0x3d, 9],
        &[57, 5, 0, 3, 7, 88, 1, 0x0d, 0, 57, 3, 1, 160, 7, 57, 0x83, 8, 200, 5, 33, 4, 0, 91, 3, 0x1d, 0],
        // These make large pages, reflexive entries, and entries to addresses without memory.
        &[57, 2, 1, 145, 0x87, 57, 1, 2, 1, 7, 57, 4, 0, 152, 0x87, 33, 4, 0, 88, 0, 0x0d, 3, 88, 0, 0x1b, 0],
        // The state page and the hypercall page; hypercalls.
        &[121, 0, 121, 24, 141, 1, 0, 0, 142, 0x12, 0, 0, 143, 2, 0, 0, 144, 7, 1, 1],
        // These use the CR3 cache: a root, then the page's entry for it, then false entries.
        &[121, 1, 33, 5, 0, 33, 5, 7, 33, 5, 0, 151, 0x86, 0, 0, 0, 0, 152, 6, 1, 2, 3, 4, 151, 0x86, 0, 0, 0, 0],
        // These access MSRs: EFER, bases, the APIC's, and one that does not exist.
        &[121, 2, 121, 0x42, 120, 2, 121, 6, 121, 9, 120, 10, 121, 14, 122, 20],
        // These access ports, also with string instructions.
        &[156, 0x80, 0, 2, 157, 0x21, 0, 0, 158, 0x43, 0, 6, 159, 0xf8, 3, 7, 160, 0, 5, 4],
        // These access devices in memory.
        &[88, 0, 0x0c, 0, 89, 1, 0x0c, 4, 90, 3, 0x0c, 8, 91, 0x88, 0x0c, 0, 92, 4, 0x0c, 2, 93, 6, 0x0c, 1],
        // Interrupts from software, traps, flags, breakpoints.
        &[166, 0x80, 167, 3, 168, 0x22, 172, 1, 198, 34, 172, 2, 173, 4, 184, 0, 0x21, 0, 185, 7, 2, 2, 88, 0, 0x21, 0],
        // STI, HLT, PAUSE, CLTS, WBINVD, CPUID, RDTSC.
        &[198, 23, 198, 24, 198, 6, 198, 0, 198, 1, 198, 3, 198, 4, 198, 22],
        // Descriptor tables, segments, far transfers, tasks.
        &[0, 4, 0, 7, 4, 0, 198, 36, 198, 37, 198, 38, 199, 44, 178, 8, 179, 0x48, 180, 0x58, 181, 0x38, 182, 0x18],
        // SYSCALL and the rest, IRET, INVPCID, XSETBV.
        &[198, 13, 198, 14, 198, 16, 198, 17, 198, 19, 198, 20, 7, 1, 0, 198, 42, 198, 8, 198, 43],
        // A loop over writes to tables.
        &[57, 5, 1, 9, 7, 88, 1, 0x1d, 0, 57, 3, 1, 9, 7, 190, 2, 33, 4, 0, 190, 3],
        // Plain bytes.
        &[232, 0x48, 0x01, 0xd8, 0x50, 0x5b, 0xe2, 0xfa, 0x0f, 0x0b, 235, 0xf7, 0xf1, 0x0f, 0xa2, 0x8c, 0xd8, 0xfb],
    ];
    let mut seeds = Vec::new();
    for (number, piece) in PIECES.iter().enumerate() {
        for modes in [0x00u8, 0x01, 0x02, 0x03, 0x04, 0x14, 0x24, 0x12, 0x13, 0x84, 0x82] {
            for switches in 0..4u8 {
                let varied = (number as u8).wrapping_mul(37).wrapping_add(modes).wrapping_add(switches * 5);
                let mut seed = vec![modes, switches | (varied & 0x1c), varied & 0x7f, 0, 0, 0];
                if varied & 3 == 3 {
                    seed[3..].copy_from_slice(&[0x40, 0x2a, 0x04]);
                }
                seed.extend_from_slice(piece);
                seed.extend_from_slice(PIECES[(number * 5 + usize::from(varied)) % PIECES.len()]);
                seeds.push(seed);
            }
        }
    }
    seeds
}
