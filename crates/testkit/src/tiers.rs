//! The same program under the interpreter and the translator, which must agree in everything that a guest or a ledger
//! shows.
//!
//! Around the program there is enough of an operating system to continue after faults: each exception continues at the
//! address in [`RECOVERY`], with a valid stack pointer, until [`LIVES`] is used up; then the processor halts.

use crate::debugger::Debugger;
use crate::{CODE, DATA, Machine, Random, assemble, set_flat_segments, set_long_mode};
use cpu::arch::{F80, Segment, TableRegister, attention};
use cpu::bus::lock;
use cpu::bus::{Bus, Ident};
use cpu::ram::Ram;
use cpu::time::{Core, Flat, Timing};
use cpu::{Cpu, Exit, Model, Tier};
use iced_x86::code_asm::*;
use ledger::caches::{Caches, Code, DeviceWrites, Level, Walks};
use ledger::profile::Profile;
use ledger::{Amount, Costs, Geometry, Kind, Origin, Recorder, RegionId, Sets, Shape, Ticks};
use std::fmt::Write;
use std::sync::{Arc, Mutex};
use uarch::CoreTable;
use x86::control::*;
use x86::page::PAGE;
use x86::{rights, seg};

/// Number of pages of code, from [`CODE`] on.
pub const CODE_PAGES: u64 = 4;
/// Data below the first megabyte: two pages.
pub const LOW: u64 = 0x4_2000;
/// A read-only page; [`DATA`] and the page after it are writable.
pub const READ_ONLY: u64 = DATA + 2 * PAGE;
/// A page that is not mapped.
pub const ABSENT: u64 = DATA + 3 * PAGE;
/// A page of the other privilege.
pub const OTHER: u64 = DATA + 4 * PAGE;
/// A second mapping of the second page of code.
pub const ALIAS: u64 = DATA + 5 * PAGE;
/// Address at which execution continues after an exception: 8 bytes in a page of their own.
pub const RECOVERY: u64 = DATA + 6 * PAGE;
/// Number of exceptions still to be survived: 4 bytes.
pub const LIVES: u64 = RECOVERY + 8;
/// Address at which exception handlers save a register.
const KEPT: u64 = RECOVERY + 16;
/// Number of interrupts taken.
const TAKEN: u64 = RECOVERY + 24;
/// Middle of the two stack pages.
pub const STACK: u64 = DATA + 0x1_1000;

const GDT: u64 = 0x4000;
const IDT: u64 = 0x5000;
const TSS: u64 = 0x6000;
const HANDLERS: u64 = 0x7000;
const COMMON: u64 = HANDLERS + 0x800;
const HANDLER_STACK: u64 = 0xa000;
const PT: [u64; 2] = [0x8000, 0xc000];
const ROOT: u64 = 0x1000;
/// All these tables, with the level-4, level-3 and level-2 tables.
const SYSTEM: std::ops::Range<u64> = ROOT..0xd000;

/// The vector of the board's interrupts.
const INTERRUPT: u64 = 0x20;

/// The mode of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 64-bit mode.
    Long,
    /// Compatibility mode: 32-bit code under a 64-bit operating system.
    Compatibility,
    /// 32-bit protected mode with PAE paging and flat segments.
    Protected,
}

/// A board with one interrupt line, which each write to a port raises.
#[derive(Default)]
struct Board {
    raised: bool,
}

impl Bus for Board {
    fn read(&mut self, _: Ident, _: u64, size: u8) -> u64 {
        u64::MAX >> (64 - 8 * u32::from(size.clamp(1, 8)))
    }
    fn write(&mut self, _: Ident, _: u64, _: u8, _: u64) {}
    fn device(&self, _: u64) -> u32 {
        0
    }
    fn port_in(&mut self, _: Ident, _: u16, size: u8) -> u32 {
        u32::MAX >> (32 - 8 * u32::from(size.clamp(1, 4)))
    }
    fn port_out(&mut self, _: Ident, _: u16, _: u8, _: u32) {
        self.raised = true;
    }
    fn msr_read(&mut self, _: Ident, _: u32) -> Option<u64> {
        None
    }
    fn msr_write(&mut self, _: Ident, _: u32, _: u64) -> bool {
        false
    }
    fn acknowledge(&mut self, _: Ident) -> Option<u8> {
        std::mem::take(&mut self.raised).then_some(INTERRUPT as u8)
    }
    fn end_of_interrupt(&mut self, _: Ident) {}
    fn cr8(&mut self, _: Ident) -> u8 {
        0
    }
    fn set_cr8(&mut self, _: Ident, _: u8) {}
    fn performance_interrupt(&mut self, _: Ident, _: bool) {}
}

/// The initial state of a program.
#[derive(Clone)]
pub struct Start {
    /// Mode of the program.
    pub width: Width,
    /// Privilege level.
    pub cpl: u8,
    /// CR4.SMAP.
    pub smap: bool,
    /// Initial instruction pointer, in the pages of code.
    pub rip: u64,
    /// Bytes of the pages of code.
    pub code: Vec<u8>,
    /// General registers.
    pub gpr: [u64; 16],
    /// Arithmetic flags, AC and IF.
    pub flags: u64,
    /// Bases of FS and GS.
    pub bases: [u64; 2],
    /// True if each x87 instruction records its operand's address and selectors, as on older processors.
    pub pointers: bool,
    /// True if charges are recorded and predictors are modelled.
    pub recorded: bool,
    /// Seed for the contents of data, stacks, vector and x87 registers.
    pub seed: u64,
    /// Addresses with probes; each switches the charging to another owner.
    pub probes: Vec<u64>,
    /// Tier of the second machine.
    pub tier: Tier,
    /// Number of executions before translation under [`Tier::Auto`].
    pub threshold: u16,
}

/// The two machines.
pub struct Tiers {
    /// Models without and with recorded charges.
    models: [Arc<Model>; 2],
    /// The interpreting machine and the other one.
    machines: [Machine; 2],
    boards: [Arc<Mutex<Board>>; 2],
    pages: Vec<u64>,
    probes: Vec<u64>,
    debugger: Option<Debugger>,
}

impl Default for Tiers {
    fn default() -> Self {
        Self::new()
    }
}

impl Tiers {
    /// Creates both machines.
    pub fn new() -> Self {
        Self::timed(Arc::new(Flat))
    }

    /// Creates both machines with this model of time.
    pub fn timed(timing: Arc<dyn Timing>) -> Self {
        Self::of(timing, None)
    }

    /// Creates both machines with the model of time that has a pipeline and caches. The caches have few lines, so that these
    /// are replaced.
    pub fn of_core(table: Option<&'static CoreTable>) -> Self {
        let level = |lines, ways, latency| Level { lines, ways, latency, transfer: latency / 4, same_set: latency / 2 };
        let caches = Caches {
            l1d: level(16, 2, 4_000),
            code: Code {
                l1i: level(16, 2, 0),
                transfer: 4_000,
                ahead: 20_000,
                scattered: 2,
                sequential: 6,
                branches: ledger::caches::Branches { table: level(8, 2, 12_000), far: 2 },
            },
            l2: level(32, 4, 14_000),
            l3: Some(level(64, 4, 50_000)),
            memory_latency: 150_000,
            memory_transfer: 20_000,
            memory_stream: 20_000,
            memory_same_set: 60_000,
            set_loads: 12,
            between_cores: 90_000,
            device_writes: DeviceWrites::L3,
            splits: [500, 10_000],
            window: 20_000,
            fill_buffers: 4,
            walks: Walks { pde: 4, pdpte: 2, pml4e: 1, nested: 2, walkers: 2 },
        };
        Self::of(Arc::new(Core { table }), Some(caches))
    }

    fn of(timing: Arc<dyn Timing>, caches: Option<Caches>) -> Self {
        let profile = Profile::named("max").expect("a built-in profile");
        // The tables have few entries, so that translations are replaced.
        let sets = |entries, ways| Sets { entries, ways };
        let geometry = Geometry {
            dtlb_4k: sets(8, 4),
            itlb_4k: sets(4, 2),
            stlb: sets(16, 4),
            target_cache: 8,
            return_stack: 4,
            ..profile.geometry()
        };
        let model = |costs, caches| {
            let geometry = Geometry { caches, predicts_directions: caches.is_some(), ..geometry };
            let model = Model::of(&profile, costs, geometry, &profile.cpuid());
            Model { timing: timing.clone(), ..model }
        };
        let unrecorded = Model { recorded: false, ..model(Costs::free(), None) };
        let models = [unrecorded, model(profile.costs(), caches)].map(Arc::new);
        let machine = || Machine::long64(0);
        let pages = SYSTEM
            .step_by(PAGE as usize)
            .chain((CODE..).step_by(PAGE as usize).take(CODE_PAGES as usize))
            .chain([LOW, LOW + PAGE, DATA, DATA + PAGE, READ_ONLY, OTHER, RECOVERY, STACK - PAGE, STACK])
            .collect();
        Self {
            models,
            machines: [machine(), machine()],
            boards: Default::default(),
            pages,
            probes: Vec::new(),
            debugger: None,
        }
    }

    /// Returns the interpreting machine.
    pub fn reference(&self) -> &Machine {
        &self.machines[0]
    }

    /// Puts both machines at the start of a program.
    pub fn start(&mut self, start: &Start) {
        let tiers = [Tier::Interpreter, start.tier];
        self.boards = Default::default();
        self.debugger = None;
        for ((machine, tier), bus) in self.machines.iter_mut().zip(tiers).zip(&self.boards) {
            let ram = machine.cpu.wiring.ram.clone();
            machine.cache.clear(&ram, &mut machine.cpu.wiring.recorder);
            machine.cache.code.remove_probes(&ram);
            machine.cache.code.set_breakpoints([]);
            // Some probes exist before the code is decoded, others are added while it runs.
            let (first, _) = start.probes.split_at(start.probes.len() / 2);
            first.iter().for_each(|at| machine.cache.code.add_probe(*at, &ram));
            machine.cache.code.tier = tier;
            machine.cache.code.threshold = start.threshold;
            let recorder = Recorder::default();
            machine.cpu = Cpu::new(0, self.models[usize::from(start.recorded)].clone(), ram, bus.clone(), recorder);
            self.probes = start.probes.clone();
            fill(machine, &self.pages, start.seed);
            assert!(start.code.len() as u64 <= CODE_PAGES * PAGE);
            machine.poke(CODE, &start.code);
            system(machine, start);
        }
    }

    /// Lets a debugger stop the second machine at random.
    pub fn debug(&mut self, seed: u64) {
        self.debugger = Some(Debugger::attach(&mut self.machines[1], seed));
    }

    /// Raises the boards' interrupt line.
    pub fn interrupt(&mut self) {
        for board in &self.boards {
            lock(board).raised = true;
        }
    }

    /// Runs both machines for this time, in whose second half the time-stamp counter can't be read, and compares them. An
    /// error describes their difference.
    pub fn run(&mut self, ticks: Ticks) -> Result<Exit, String> {
        for (machine, board) in self.machines.iter_mut().zip(&self.boards) {
            machine.cpu.set_time_limit(machine.cpu.micro.clock + ticks / 2);
            if lock(board).raised {
                machine.cpu.attend(attention::INTR);
            }
        }
        let [a, b] = &mut self.machines;
        let deadline = b.cpu.micro.clock + ticks;
        let second = match &mut self.debugger {
            None => b.run(ticks),
            Some(debugger) => debugger.run(b, deadline),
        };
        let exits = (a.run(ticks), second);
        let mut text = String::new();
        if exits.0 != exits.1 {
            let _ = writeln!(text, "exit: {:?}, translated {:?}", exits.0, exits.1);
        }
        let hits = (a.cpu.take_probe(), b.cpu.take_probe());
        if hits.0 != hits.1 {
            let _ = writeln!(text, "probe: {:x?}, translated {:x?}", hits.0, hits.1);
        }
        if let (Exit::Probe, Some(hit)) = (exits.0, hits.0) {
            for machine in [&mut *a, &mut *b] {
                let region = RegionId((hit.stack >> 4 & 3) as u16);
                let mut charged = machine.cpu.micro.charged;
                charged.region = region;
                machine.cpu.set_charged(charged);
                let ram = machine.cpu.wiring.ram.clone();
                self.probes.iter().for_each(|at| machine.cache.code.add_probe(*at, &ram));
            }
        }
        for ((name, a), (_, b)) in registers(&a.cpu).into_iter().zip(registers(&b.cpu)) {
            if a != b {
                let _ = writeln!(text, "{name}: {a:x?}, translated {b:x?}");
            }
        }
        for &page in &self.pages {
            let (x, y): ([u8; 4096], [u8; 4096]) = (a.peek(page), b.peek(page));
            if let Some(at) = (0..4096).find(|&at| x[at] != y[at]) {
                let at = at & !7;
                let (x, y) = (&x[at..at + 8], &y[at..at + 8]);
                let _ = writeln!(text, "memory at {:#x}: {x:02x?}, translated {y:02x?}", page + at as u64);
            }
        }
        if text.is_empty() { Ok(exits.0) } else { Err(text) }
    }

    /// Compares the charges of both machines.
    pub fn charges(&mut self) -> Result<(), String> {
        let [a, b] = &mut self.machines;
        let [a, b] = [a, b].map(charges);
        let mut text = String::new();
        for (name, a, b) in [("only interpreted", &a, &b), ("only translated", &b, &a)] {
            for charge in a.iter().filter(|charge| b.binary_search(charge).is_err()) {
                let _ = writeln!(text, "{name}: {charge:x?}");
            }
        }
        if text.is_empty() { Ok(()) } else { Err(text) }
    }
}

/// A line of a ledger: origin, address, and the kind of event with its count and ticks, or the instructions of a block
/// with its executions.
type Charge = (Origin, u64, Option<(Kind, u64, Ticks)>, Option<(Shape, u64)>);

fn charges(machine: &mut Machine) -> Vec<Charge> {
    machine.cpu.record_counts(&mut machine.cache);
    let recorder = &machine.cpu.wiring.recorder;
    let names = recorder.names();
    let origin = |id: ledger::OriginId| names.origins()[id.0 as usize];
    let events = recorder.events().map(|(id, rip, kind, amount)| {
        let Amount { count, ticks } = amount;
        (origin(id), rip, Some((kind, count, ticks)), None)
    });
    let blocks = recorder
        .blocks()
        .map(|(id, rip, shape, runs)| (origin(id), rip, None, Some((names.shapes()[shape.0 as usize].clone(), runs))));
    let mut all: Vec<Charge> = events.chain(blocks).collect();
    all.sort_unstable();
    all
}

/// Returns the processor state that a guest sees or that decides its further execution.
fn registers(cpu: &Cpu) -> Vec<(String, u64)> {
    const NAMES: [&str; 16] =
        ["rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"];
    let mut all: Vec<(String, u64)> =
        NAMES.iter().zip(cpu.arch.gpr).map(|(name, value)| (name.to_string(), value)).collect();
    let x87 = &cpu.arch.x87;
    for (name, value) in [
        ("rip", cpu.arch.rip),
        ("rflags", cpu.rflags()),
        ("clock", cpu.micro.clock),
        ("spins", cpu.micro.spins.into()),
        ("attention", cpu.arch.attention.into()),
        ("cpl", cpu.arch.cpl.into()),
        ("cr0", cpu.arch.cr0),
        ("cr2", cpu.arch.cr2),
        ("cr3", cpu.arch.cr3),
        ("cr4", cpu.arch.cr4),
        ("xcr0", cpu.arch.xcr0),
        ("mxcsr", cpu.arch.vector.mxcsr.into()),
        ("x87 control", x87.control.into()),
        ("x87 status", x87.status.into()),
        ("x87 tags", x87.tags.into()),
        ("x87 opcode", x87.opcode.into()),
        ("x87 instruction", x87.ip),
        ("x87 data", x87.dp),
        ("x87 code segment", x87.cs.into()),
        ("x87 data segment", x87.ds.into()),
    ] {
        all.push((name.to_string(), value));
    }
    for (number, register) in cpu.arch.vector.ymm.iter().enumerate() {
        all.extend(register.iter().enumerate().map(|(word, value)| (format!("ymm{number}[{word}]"), *value)));
    }
    for (number, register) in cpu.arch.vector.upper.iter().enumerate() {
        all.extend(register.iter().enumerate().map(|(word, value)| (format!("zmm{number}[{}]", word + 4), *value)));
    }
    for (number, register) in cpu.arch.vector.high.iter().enumerate() {
        all.extend(register.iter().enumerate().map(|(word, value)| (format!("zmm{}[{word}]", number + 16), *value)));
    }
    all.extend(cpu.arch.vector.k.iter().enumerate().map(|(number, value)| (format!("k{number}"), *value)));
    for (number, register) in x87.regs.iter().enumerate() {
        all.push((format!("x87 r{number}"), register.significand));
        all.push((format!("x87 r{number} exponent"), register.sign_exponent.into()));
    }
    for (number, segment) in cpu.arch.seg.iter().enumerate().take(6) {
        all.push((format!("segment {number} base"), segment.base));
        all.push((format!("segment {number}"), segment.selector.into()));
    }
    all
}

fn fill(machine: &mut Machine, pages: &[u64], seed: u64) {
    let mut random = Random::new(seed);
    for page in pages {
        let mut bytes = [0; PAGE as usize];
        if !SYSTEM.contains(page) {
            for word in bytes.chunks_mut(8) {
                word.copy_from_slice(&data(&mut random).to_le_bytes());
            }
        }
        machine.poke(*page, &bytes);
    }
    for register in &mut machine.cpu.arch.vector.ymm {
        *register = std::array::from_fn(|_| data(&mut random));
    }
    let x87 = &mut machine.cpu.arch.x87;
    for register in &mut x87.regs {
        *register = real(&mut random);
    }
    let masks = if random.one_in(16) { random.below(64) as u16 } else { 0x3f };
    let modes = random.of(&[0x300, 0x300, 0x300, 0x200, 0, 0x100]) | (random.below(4) as u16) << 10;
    x87.control = 0x40 | masks | if random.one_in(2) { 0x300 } else { modes };
    x87.status = random.next() as u16 & 0x7f00 | random.below(64) as u16 & masks;
    x87.tags = if random.one_in(2) { 0 } else { random.next() as u8 };
    let vector = &mut machine.cpu.arch.vector;
    let upper = random.one_in(2);
    for register in vector.upper_mut() {
        *register = std::array::from_fn(|_| if upper { data(&mut random) } else { 0 });
    }
    for register in &mut vector.high {
        *register = std::array::from_fn(|_| data(&mut random));
    }
    vector.k = std::array::from_fn(|_| random.next());
}

/// Returns a value for an x87 register: of each class, and values that produce others.
fn real(random: &mut Random) -> F80 {
    let exponent = match random.below(12) {
        0 => 0,
        1 => 0x7fff,
        2 => random.of(&[1, 0x7ffe, 0x3f80, 0x407e, 0x3c00, 0x43fe]),
        3 => random.below(0x8000) as u16,
        _ => 0x3fff - 10 + random.below(75) as u16,
    };
    let integer = if exponent != 0 && !random.one_in(24) || random.one_in(8) { 1 << 63 } else { 0 };
    let fraction = match random.below(4) {
        0 => 0,
        1 => random.next() << random.below(64),
        2 => u64::MAX >> random.below(64),
        _ => random.next(),
    };
    F80 { significand: integer | fraction & u64::MAX >> 1, sign_exponent: exponent | (random.next() as u16) << 15 }
}

/// Returns eight bytes of data: numbers, or addresses of other data and of code.
fn data(random: &mut Random) -> u64 {
    match random.below(8) {
        0 => random.below(256),
        1 => DATA + random.below(2 * PAGE),
        2 => CODE + random.below(CODE_PAGES * PAGE),
        3 => f64::to_bits(random.below(1000) as f64 / 8.0 - 60.0),
        4 => random.of(&[0, 1 << 63, 0x7ff << 52, 0x7ff8 << 48, 0x7ff << 52 | 1, 1, 0x7f80_0001, 0x8000_0001, 0x3fff]),
        5 => real(random).significand,
        _ => random.next(),
    }
}

/// Writes the operating system's tables and handlers, and sets the registers.
fn system(machine: &mut Machine, start: &Start) {
    let user = start.cpl == 3;
    let ram: Ram = machine.cpu.wiring.ram.clone();
    let own = if user { 4 } else { 0 };
    let protected = start.width == Width::Protected;
    // This is the level-4 table, or the four entries of PAE paging.
    ram.write(ROOT, if protected { 0x3001 } else { 0x2027u64 });
    ram.write(0x2000, 0x3000 | 0x27u64);
    for (number, table) in PT.into_iter().enumerate() {
        ram.write(0x3000 + 8 * number as u64, table | 0x27);
    }
    let map = |linear: u64, physical: u64, bits: u64| {
        ram.write(PT[(linear >> 21) as usize] + 8 * (linear >> 12 & 511), physical | bits);
    };
    // The pages are present and writable; some are already accessed and dirty.
    for page in SYSTEM.step_by(PAGE as usize) {
        map(page, page, 0x63);
    }
    for page in 0..CODE_PAGES {
        map(CODE + page * PAGE, CODE + page * PAGE, 0x7);
    }
    for (page, physical, bits) in [
        (LOW, LOW, 0x63 | own),
        (LOW + PAGE, LOW + PAGE, 3 | own),
        (DATA, DATA, 3 | own),
        (DATA + PAGE, DATA + PAGE, 0x63 | own),
        (READ_ONLY, READ_ONLY, 0x61 | own),
        (OTHER, OTHER, 3 | own ^ 4),
        (ALIAS, CODE + PAGE, 3 | own),
        (RECOVERY, RECOVERY, 0x63 | own),
        (STACK - PAGE, STACK - PAGE, 3 | own),
        (STACK, STACK, 0x63 | own),
    ] {
        map(page, physical, bits);
    }
    let flat = |kind: u32, dpl: u32| {
        let rights =
            kind | dpl << rights::DPL_SHIFT | rights::P | rights::S | rights::RW | rights::G | rights::ACCESSED;
        0x000f_0000_0000_ffff | u64::from(rights) << 40
    };
    let long = rights::CODE | rights::L;
    let narrow = rights::CODE | rights::DB;
    let descriptors =
        [0, flat(long, 0), flat(rights::DB, 0), flat(rights::DB, 3), flat(long, 3), flat(narrow, 0), flat(narrow, 3)];
    for (number, descriptor) in descriptors.into_iter().enumerate() {
        ram.write(GDT + 8 * number as u64, descriptor);
    }
    if protected {
        ram.write(TSS + 4, HANDLER_STACK as u32 + PAGE as u32);
        ram.write(TSS + 8, 0x10u32);
    } else {
        ram.write(TSS + 0x24, HANDLER_STACK + PAGE);
    }
    ram.write(TSS + 0x66, 0x68u16);
    for vector in 0..=INTERRUPT {
        let at = HANDLERS + 16 * vector;
        // These are interrupt gates; in long mode, they use the first stack of the table.
        let gate = (at & 0xffff) | 0x8e << 40 | (at >> 16) << 48;
        if protected {
            ram.write(IDT + 8 * vector, gate | 0x28 << 16);
        } else {
            ram.write(IDT + 16 * vector, gate | 8 << 16 | 1 << 32);
        }
    }
    if protected {
        narrow_handlers(machine, user)
    } else {
        long_handlers(machine)
    }
    ram.write(RECOVERY, start.rip);
    ram.write(LIVES, 40u32);
    ram.write(TAKEN, 0u32);

    let cpu = &mut machine.cpu;
    set_long_mode(cpu, ROOT, start.cpl, start.width == Width::Long);
    if protected {
        cpu.arch.msr.efer = EFER_NXE;
        cpu.arch.pdpte = [0x3001, 0, 0, 0];
        set_flat_segments(cpu, start.cpl, rights::DB);
    }
    let (code, stack) = match (start.width, user) {
        (Width::Long, true) => (0x23, 0x1b),
        (Width::Long, false) => (0x08, 0x10),
        (_, true) => (0x33, 0x1b),
        (_, false) => (0x28, 0x10),
    };
    cpu.arch.seg[usize::from(seg::CS)].selector = code;
    cpu.arch.seg[usize::from(seg::SS)].selector = stack;
    if start.smap {
        cpu.arch.cr4 |= CR4_SMAP;
    }
    for (which, base) in [seg::FS, seg::GS].into_iter().zip(start.bases) {
        cpu.arch.seg[usize::from(which)].base = base;
    }
    cpu.arch.gdtr = TableRegister { base: GDT, limit: 0x37 };
    cpu.arch.idtr = TableRegister { base: IDT, limit: (INTERRUPT as u16 + 1) * 16 - 1 };
    cpu.arch.tr = Segment { base: TSS, limit: 0x67, rights: 0x8b, selector: 0x38 };
    if start.pointers {
        (cpu.wiring.fdp_on_exception, cpu.wiring.fcs_deprecated) = (false, false);
    }
    cpu.arch.gpr[..16].copy_from_slice(&start.gpr);
    cpu.arch.rip = start.rip;
    cpu.set_rflags(start.flags | 2);
    cpu.mode_changed();
    cpu.mapping_changed();
}

/// Returns true if an exception pushes an error code.
fn has_code(vector: u64) -> bool {
    matches!(vector, 8 | 10..=14 | 17 | 21)
}

/// Writes the entries of the handlers, in 64-bit mode or 32-bit protected mode: they continue to the common part
/// without an error code. The interrupt's entry counts interrupts.
fn entries(machine: &mut Machine, bits: u32) {
    let long = bits == 64;
    for vector in 0..INTERRUPT {
        let at = HANDLERS + 16 * vector;
        let handler = assemble(bits, at, |a| {
            match has_code(vector) {
                true if long => a.add(rsp, 8)?,
                true => a.add(esp, 4)?,
                false => {}
            }
            a.jmp(COMMON)
        });
        machine.poke(at, &handler);
    }
    let at = HANDLERS + 16 * INTERRUPT;
    let interrupt = assemble(bits, at, |a| {
        a.inc(dword_ptr(TAKEN))?;
        if long { a.iretq() } else { a.iretd() }
    });
    machine.poke(at, &interrupt);
}

/// Writes the handlers in 64-bit mode.
fn long_handlers(machine: &mut Machine) {
    entries(machine, 64);
    let common = assemble(64, COMMON, |a| {
        let mut out = a.create_label();
        a.push(rax)?;
        a.dec(dword_ptr(LIVES))?;
        a.js(out)?;
        a.mov(rax, qword_ptr(RECOVERY))?;
        a.mov(qword_ptr(rsp + 8), rax)?;
        a.mov(qword_ptr(rsp + 32), STACK as i32)?;
        a.pop(rax)?;
        a.iretq()?;
        a.set_label(&mut out)?;
        a.hlt()
    });
    machine.poke(COMMON, &common);
}

/// Writes the handlers in 32-bit protected mode, for a program at level 3 if `user`, else on the same stack.
fn narrow_handlers(machine: &mut Machine, user: bool) {
    entries(machine, 32);
    let common = assemble(32, COMMON, |a| {
        let mut out = a.create_label();
        a.mov(dword_ptr(KEPT), eax)?;
        a.dec(dword_ptr(LIVES))?;
        a.js(out)?;
        if user {
            a.mov(dword_ptr(esp + 12), STACK as i32)?;
        } else {
            // The return also gets a valid stack.
            a.mov(eax, dword_ptr(esp + 8))?;
            a.mov(esp, STACK as u32 - 12)?;
            a.mov(dword_ptr(esp + 8), eax)?;
            a.mov(dword_ptr(esp + 4), 0x28)?;
        }
        a.mov(eax, dword_ptr(RECOVERY))?;
        a.mov(dword_ptr(esp), eax)?;
        a.mov(eax, dword_ptr(KEPT))?;
        a.iretd()?;
        a.set_label(&mut out)?;
        a.hlt()
    });
    machine.poke(COMMON, &common);
}
