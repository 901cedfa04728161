//! Code: arbitrary bytes are executed from arbitrary registers, in every mode and privilege level, on the processor of
//! each profile. The processor must return at its deadline, and its clock must be the sum of its charges.

use ::ledger::profile::Profile;
use ::ledger::{Costs, Header, Ledger, Symbols, TICKS_PER_CYCLE, Ticks};
use arbitrary::{Result, Unstructured};
use cpu::arch::{Segment, TableRegister, attention};
use cpu::model::Model;
use cpu::time::predictor::Predictor;
use cpu::tlb::Tlb;
use cpu::{Bus, Exit, Features, Ident, capability::Capabilities};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use testkit::{CODE, DATA, Machine, RAM, STACK, set_flat_segments};
use x86::control::*;
use x86::{flags, rights, seg};

/// Virtual time of an input, in cycles.
const CYCLES: u64 = 4_000;
/// Cycles that one instruction may take beyond that; WBINVD is the most expensive.
const SLACK: u64 = 5_000_000;
/// Number of times that the processor may leave its loop.
const EXITS: usize = 300;

/// Addresses of the guest's tables.
const GDT: u64 = 0x30_0000;
const IDT: u64 = 0x31_0000;
const TSS: u64 = 0x32_0000;
const LDT: u64 = 0x33_0000;
/// Address of the page tables that [`Machine`] makes.
const PAGE_TABLES: u64 = 0x1000;

/// A board on which every address answers.
struct NoisyBus {
    state: u64,
}

impl NoisyBus {
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        self.state ^ self.state >> 29
    }
}

impl Bus for NoisyBus {
    fn read(&mut self, _: Ident, _: u64, size: u8) -> u64 {
        assert!(matches!(size, 1..=8), "a read of {size} bytes");
        self.next() >> (64 - 8 * u32::from(size))
    }
    fn write(&mut self, _: Ident, _: u64, size: u8, _: u64) {
        assert!(matches!(size, 1..=8), "a write of {size} bytes");
    }
    fn device(&self, _: u64) -> u32 {
        0
    }
    fn port_in(&mut self, _: Ident, _: u16, size: u8) -> u32 {
        assert!(matches!(size, 1 | 2 | 4), "a port of {size} bytes");
        (self.next() as u32) >> (32 - 8 * u32::from(size))
    }
    fn port_out(&mut self, _: Ident, _: u16, size: u8, _: u32) {
        assert!(matches!(size, 1 | 2 | 4), "a port of {size} bytes");
    }
    fn msr_read(&mut self, _: Ident, index: u32) -> Option<u64> {
        (index == 0x1b || index >> 8 == 8).then(|| self.next())
    }
    fn msr_write(&mut self, _: Ident, index: u32, _: u64) -> bool {
        index == 0x1b || index >> 8 == 8
    }
    fn acknowledge(&mut self, _: Ident) -> Option<u8> {
        let n = self.next();
        (n & 3 != 0).then_some((n >> 8) as u8)
    }
    fn end_of_interrupt(&mut self, _: Ident) {}
    fn cr8(&mut self, _: Ident) -> u8 {
        self.next() as u8 & 15
    }
    fn set_cr8(&mut self, _: Ident, value: u8) {
        assert!(value < 16);
    }
    fn performance_interrupt(&mut self, _: Ident, _: bool) {}
}

/// Returns the model of a profile's processor.
pub(crate) fn model(profile: &Profile) -> Model {
    Model::of(profile, profile.costs(), profile.geometry(), &profile.cpuid())
}

/// Returns a model that has all features and free events, and the profiles' models.
fn models() -> Vec<Arc<Model>> {
    let mut models: Vec<_> =
        Profile::names().map(|name| model(&Profile::named(name).expect("it is built in"))).collect();
    let max = Profile::names().position(|name| name == "max").expect("it is built in");
    models.push(Model { costs: Costs::free(), ..models[max].clone() });
    // Most inputs run on the model with the most instructions.
    models.swap(0, max);
    models.into_iter().map(Arc::new).collect()
}

thread_local! {
    static MODELS: OnceCell<Vec<Arc<Model>>> = const { OnceCell::new() };
}

/// Reads an interesting number: an address, an edge case, or any number.
fn number(input: &mut Unstructured) -> Result<u64> {
    Ok(match input.arbitrary::<u8>()? {
        choice @ 0..=63 => {
            const USEFUL: [u64; 16] = [
                0,
                1,
                CODE,
                DATA,
                STACK,
                GDT,
                IDT,
                TSS,
                PAGE_TABLES,
                RAM,
                1 << 31,
                1 << 32,
                1 << 47,
                u64::MAX,
                0xffff_8000_0000_0000,
                0xfee0_0000,
            ];
            let near = [0, 1, 0xfff, 8u64.wrapping_neg()][usize::from(choice >> 4)];
            USEFUL[usize::from(choice & 15)].wrapping_add(near)
        }
        small @ 64..=127 => u64::from(small - 64),
        128..=159 => u64::from(input.arbitrary::<u16>()?),
        160..=191 => u64::from(input.arbitrary::<u32>()?),
        _ => input.arbitrary()?,
    })
}

/// Creates a machine in the mode and at the privilege level that `choice` selects.
fn machine(choice: u8) -> Machine {
    let cpl = if choice & 8 != 0 { 3 } else { 0 };
    match choice & 7 {
        0 => Machine::real16(),
        1 => Machine::protected32(cpl),
        2 => {
            let mut machine = Machine::protected32(cpl);
            set_flat_segments(&mut machine.cpu, cpl, 0);
            machine.cpu.arch.rip = 0x8000;
            machine
        }
        3 => {
            let mut machine = Machine::protected32(3);
            machine.cpu.arch.flags |= flags::VM;
            for i in 0..6 {
                machine.cpu.arch.seg[i] = Segment { rights: 0xf3, ..Segment::real(0, i == usize::from(seg::CS)) };
            }
            machine.cpu.arch.rip = 0x8000;
            machine.cpu.mode_changed();
            machine
        }
        4 => Machine::compatibility32(cpl),
        _ => Machine::long64(cpl),
    }
}

/// Writes descriptors of all kinds, gates to the code and a task state segment, so that not all loads fault.
fn tables(machine: &mut Machine) {
    let long = machine.cpu.long_mode();
    let mut gdt = [0u64; 64];
    for (index, dpl) in [(1, 0u64), (2, 3)] {
        let flat = 0x00c0_9000_0000_ffff | dpl << 45;
        // These are code and data, then expand-down, conforming, 16-bit and not present segments.
        let width: u64 = if long { 0x20 << 48 } else { 0x40 << 48 };
        gdt[index * 6] = flat | 0xa << 40 | width;
        gdt[index * 6 + 1] = flat | 0x2 << 40 | 0x40 << 48;
        gdt[index * 6 + 2] = flat | 0x6 << 40;
        gdt[index * 6 + 3] = flat | 0xe << 40;
        gdt[index * 6 + 4] = 0x0000_9a00_0000_ffff | dpl << 45;
        gdt[index * 6 + 5] = flat & !(1 << 47);
    }
    let system = |kind: u64, base: u64, limit: u64| {
        limit & 0xffff | (base & 0xff_ffff) << 16 | (kind | 0xe0) << 40 | (base >> 24 & 0xff) << 56
    };
    gdt[20] = system(9, TSS, 0x2fff);
    gdt[22] = system(2, LDT, 0xff);
    gdt[24] = system(1, TSS + 0x8000, 0xff);
    gdt[26] = system(9, TSS + 0x4000, 0x2fff);
    let gate = |kind: u64, selector: u64, offset: u64| {
        offset & 0xffff | selector << 16 | (kind | 0xe0) << 40 | (offset >> 16 & 0xffff) << 48
    };
    gdt[28] = gate(12, 6 * 8, CODE);
    gdt[30] = gate(5, 26 * 8, 0);
    gdt[32] = gate(4, 10 * 8, 0x8000);
    for (i, descriptor) in gdt.iter().enumerate() {
        machine.poke(GDT + 8 * i as u64, &descriptor.to_le_bytes());
        machine.poke(LDT + 8 * i as u64, &descriptor.to_le_bytes());
    }
    let size = if long { 16 } else { 8 };
    for vector in 0..256u64 {
        let kind = [14, 15, 14, if long { 14 } else { 5 }][vector as usize & 3];
        let selector = if kind == 5 { 26 * 8 } else { 6 * 8 };
        machine.poke(IDT + size * vector, &gate(kind, selector, CODE + (vector & 7)).to_le_bytes());
    }
    for task in [TSS, TSS + 0x4000] {
        for at in (4..104).step_by(4) {
            machine.poke(task + at, &(STACK as u32 - 0x1000).to_le_bytes());
        }
        machine.poke(task + 4, &(STACK as u32).to_le_bytes());
        machine.poke(task + 8, &(7 * 8u32).to_le_bytes());
        if !long {
            machine.poke(task + 28, &0u32.to_le_bytes());
            machine.poke(task + 32, &(CODE as u32).to_le_bytes());
            machine.poke(task + 36, &2u32.to_le_bytes());
            for (i, selector) in [7u32, 6, 7, 7, 7, 7].into_iter().enumerate() {
                machine.poke(task + 72 + 4 * i as u64, &(selector * 8).to_le_bytes());
            }
        }
        machine.poke(task + 100, &0x68_0000u32.to_le_bytes());
    }
    let cpu = &mut machine.cpu;
    cpu.arch.gdtr = TableRegister { base: GDT, limit: 64 * 8 - 1 };
    cpu.arch.idtr = TableRegister { base: IDT, limit: (256 * size - 1) as u16 };
    cpu.arch.tr = Segment { base: TSS, limit: 0x2fff, rights: 0x8b, selector: 20 * 8 };
    cpu.arch.ldtr = Segment { base: LDT, limit: 0xff, rights: 0x82, selector: 22 * 8 };
    let selectors = if cpu.v8086() || !cpu.protected() { None } else { Some(if cpu.arch.cpl == 3 { 12 } else { 6 }) };
    if let Some(code) = selectors {
        let rpl = u16::from(cpu.arch.cpl);
        for (i, segment) in cpu.arch.seg.iter_mut().enumerate().take(6) {
            segment.selector = (8 * (code + u16::from(i != usize::from(seg::CS)))) | rpl;
        }
    }
}

/// Sets registers to values that a guest could have reached.
fn registers(machine: &mut Machine, input: &mut Unstructured) -> Result<()> {
    let cpu = &mut machine.cpu;
    let count = input.int_in_range(0..=24u8)?;
    for _ in 0..count {
        let register = input.arbitrary::<u8>()?;
        let value = number(input)?;
        match register {
            0..=63 => cpu.arch.gpr[usize::from(register & 15)] = value,
            64..=95 => {
                cpu.arch.vector.ymm[usize::from(register & 15)] = [value, !value, value << 17, value.rotate_left(40)]
            }
            96..=111 => {
                let slot = &mut cpu.arch.x87.regs[usize::from(register & 7)];
                (slot.significand, slot.sign_exponent) = (value, value.rotate_left(11) as u16);
                cpu.arch.x87.tags |= 1 << (register & 7);
            }
            112 => cpu.arch.x87.control = value as u16 & 0x1f7f | 0x40,
            113 => cpu.arch.x87.status = value as u16 & 0x7fff,
            114 => cpu.arch.vector.mxcsr = value as u32 & 0xffff,
            115 => cpu.set_rflags((value & flags::ALL & !flags::VM) | (cpu.arch.flags & flags::VM)),
            116 => cpu.arch.cr0 ^= value & (CR0_MP | CR0_EM | CR0_TS | CR0_NE | CR0_WP | CR0_AM),
            117 => {
                let may = CR4_VME | CR4_PVI | CR4_TSD | CR4_DE | CR4_PSE | CR4_PCE | CR4_OSFXSR | CR4_OSXMMEXCPT;
                let more = CR4_UMIP | CR4_FSGSBASE | CR4_OSXSAVE | CR4_SMEP | CR4_SMAP | CR4_PGE;
                cpu.arch.cr4 ^= value & (may | more);
            }
            118..=121 => {
                cpu.arch.dr[usize::from(register - 118)] = value;
                cpu.arch.dr[7] = value >> 3 & 0xffff_2bff | 0x400;
                if cpu.breakpoints_enabled() {
                    cpu.attend(attention::STEP);
                }
            }
            122 => cpu.arch.pkru = value as u32,
            123 => cpu.arch.msr.lstar = CODE | value & 0xf,
            124 => cpu.arch.msr.star = 0x0033_0030_0000_0000 | value & 0xffff_ffff,
            125 => {
                cpu.arch.msr.sysenter_cs = 6 * 8;
                (cpu.arch.msr.sysenter_eip, cpu.arch.msr.sysenter_esp) = (CODE, STACK);
            }
            126 => {
                let segment = &mut cpu.arch.seg[[seg::FS, seg::GS][usize::from(value & 1 != 0)] as usize];
                segment.base =
                    if cpu.engine.long64 { ((value << 16) as i64 >> 16) as u64 } else { value & 0xffff_ffff };
            }
            127 => {
                let segment = &mut cpu.arch.seg[usize::from(seg::DS)];
                if !cpu.engine.long64 {
                    segment.limit = value as u32;
                    segment.rights ^= (value >> 40) as u32 & (rights::RW | rights::DC | rights::DB | rights::P);
                }
            }
            128..=159 => {
                let place = [GDT, IDT, TSS, LDT, PAGE_TABLES, PAGE_TABLES + 0x1000, DATA, STACK - 128];
                let at = place[usize::from(register & 7)] + 8 * u64::from(input.arbitrary::<u8>()?);
                machine_poke(cpu, at, value);
            }
            160..=175 => {
                cpu.attend([attention::NMI, attention::INTR, attention::STI_SHADOW][usize::from(register % 3)])
            }
            176 => cpu.arch.xcr0 = [1, 3, 7, 0x207][usize::from(value as u8 & 3)],
            177 => cpu.arch.msr.efer ^= value & (EFER_SCE | EFER_NXE),
            _ => {}
        }
    }
    cpu.micro.tlb.flush_all();
    cpu.mapping_changed();
    cpu.mode_changed();
    Ok(())
}

fn machine_poke(cpu: &mut cpu::Cpu, at: u64, value: u64) {
    assert!(cpu.wiring.ram.write_bytes(at, &value.to_le_bytes()));
}

/// Prepares a machine as the bytes select, and runs it.
pub fn run(data: &[u8]) {
    let mut input = Unstructured::new(data);
    // An input that is too short makes no machine.
    let _ = execute(&mut input);
}

fn execute(input: &mut Unstructured) -> Result<()> {
    let (mode, choices) = input.arbitrary::<(u8, u8)>()?;
    let model = MODELS.with(|cell| {
        let models = cell.get_or_init(models);
        models[if choices & 0x80 != 0 { 0 } else { usize::from(choices & 0x0f) % models.len() }].clone()
    });
    let mut machine = machine(mode);
    let cpu = &mut machine.cpu;
    cpu.wiring.features = Features::of(&model.cpuid);
    cpu.wiring.capabilities = Capabilities::of(&model);
    cpu.micro.tlb = Tlb::new(&model.geometry);
    cpu.micro.predictor = Predictor::new(&model.geometry);
    cpu.wiring.model = model.clone();
    cpu.wiring.bus = Arc::new(Mutex::new(NoisyBus { state: u64::from(choices) }));
    if choices & 0x10 == 0 {
        tables(&mut machine);
    }
    registers(&mut machine, input)?;
    let code = input.peek_bytes(input.len()).unwrap_or_default();
    let at = machine.cpu.code_linear();
    machine.poke(at, &code[..code.len().min(4096)]);
    let deadline = CYCLES * TICKS_PER_CYCLE;
    for _ in 0..EXITS {
        let exit = machine.cpu.run(&mut machine.cache, deadline);
        check(&machine, deadline);
        match exit {
            // No one sends a start-up signal to a waiting guest.
            Exit::Deadline | Exit::Shutdown | Exit::Init | Exit::WaitForStartup => break,
            // The guest never enters non-root mode.
            Exit::Vm => unreachable!("a VM exit without a hypervisor"),
            Exit::Probe => unreachable!("there are no probes"),
            Exit::Debug => unreachable!("there is no debugger"),
            Exit::Sample => unreachable!("no samples are asked for"),
            Exit::Halt | Exit::Mwait { .. } => machine.cpu.attend(attention::NMI),
            Exit::Bus => {
                if machine.cpu.micro.clock.is_multiple_of(3) {
                    machine.cpu.attend(attention::INTR);
                }
            }
        }
    }
    machine.cpu.record_counts(&mut machine.cache);
    account(&machine, &model);
    Ok(())
}

/// Checks the invariants of a processor that is not running.
fn check(machine: &Machine, deadline: Ticks) {
    let cpu = &machine.cpu;
    assert!(cpu.micro.clock <= deadline + SLACK * TICKS_PER_CYCLE, "it ran until {}", cpu.micro.clock);
    assert!(cpu.arch.flags & 2 != 0 && cpu.arch.flags & !(flags::ALL | 2) == 0, "flags {:#x}", cpu.arch.flags);
    assert_eq!(cpu.engine.long64, cpu.long_mode() && cpu.arch.seg[usize::from(seg::CS)].rights & rights::L != 0);
    assert_eq!(cpu.engine.mode, cpu.decode_mode());
    if !cpu.engine.long64 {
        assert!(cpu.arch.rip <= u64::from(u32::MAX), "rip {:#x} outside 64-bit mode", cpu.arch.rip);
    }
    let pg = cpu.arch.cr0 & CR0_PG != 0;
    assert_eq!(cpu.long_mode(), cpu.arch.msr.efer & EFER_LME != 0 && pg, "long mode follows from LME and PG");
    assert!(!pg || cpu.protected(), "paging without protection");
    assert!(!cpu.v8086() || cpu.arch.cpl == 3 && !cpu.long_mode(), "virtual-8086 mode at level {}", cpu.arch.cpl);
    assert!(cpu.arch.x87.status & 0x8000 == 0 || cpu.arch.x87.status & 0x80 != 0, "busy without an exception");
}

/// Checks that the sum over the entries is the clock.
fn account(machine: &Machine, model: &Model) {
    let header = Header {
        profile: String::new(),
        tsc_hz: model.tsc_hz,
        class_ticks: model.costs.class,
        clocks: vec![machine.cpu.micro.clock],
        metadata: BTreeMap::new(),
        names: BTreeMap::new(),
    };
    let ledger = Ledger::new(header, &machine.cpu.wiring.recorder, &Symbols::default());
    ledger.verify().expect("the entries add up to the clock");
}

/// Returns a few instructions of each kind in each mode; mutations do the rest.
pub fn seeds() -> Vec<Vec<u8>> {
    const CODES: [&[u8]; 22] = [
        // add, push, pop, loop
        &[0x01, 0xd8, 0x50, 0x5b, 0xe2, 0xfa],
        // rep movsb, rep stosd, repe cmpsb
        &[0xf3, 0xa4, 0xf3, 0xab, 0xf3, 0xa6],
        // int 0x80, int3, into or undefined, ud2
        &[0xcd, 0x80, 0xcc, 0xce, 0x0f, 0x0b],
        // mov cr0, eax; mov cr3, eax; mov cr4, eax; mov eax, cr2
        &[0x0f, 0x22, 0xc0, 0x0f, 0x22, 0xd8, 0x0f, 0x22, 0xe0, 0x0f, 0x20, 0xd0],
        // cpuid, rdmsr, wrmsr, rdtsc, rdpmc
        &[0x0f, 0xa2, 0x0f, 0x32, 0x0f, 0x30, 0x0f, 0x31, 0x0f, 0x33],
        // lgdt, lidt, ltr, lldt, str, sldt
        &[0x0f, 0x01, 0x10, 0x0f, 0x01, 0x18, 0x0f, 0x00, 0xd8, 0x0f, 0x00, 0xd0, 0x0f, 0x00, 0xc8],
        // mov ds, ax; mov ss, ax; pop fs; lar; lsl; verr
        &[0x8e, 0xd8, 0x8e, 0xd0, 0x0f, 0xa1, 0x0f, 0x02, 0xc1, 0x0f, 0x03, 0xc1, 0x0f, 0x00, 0xe0],
        // syscall, sysret, sysenter, sysexit
        &[0x0f, 0x05, 0x0f, 0x07, 0x0f, 0x34, 0x0f, 0x35],
        // iret, retf, far jump and call through memory
        &[0xcf, 0xcb, 0xff, 0x28, 0xff, 0x18],
        // far jump and call with immediates
        &[0xea, 0, 0, 0x10, 0, 0x30, 0, 0x9a, 0, 0, 0, 0, 0xe0, 0],
        // fld, fadd, fsin, fprem, fsave, fxsave, emms
        &[0xd9, 0xe8, 0xd8, 0xc1, 0xd9, 0xfe, 0xd9, 0xf8, 0xdd, 0x30, 0x0f, 0xae, 0x00, 0x0f, 0x77],
        // addps, cvtps2dq, pshufb, divpd
        &[0x0f, 0x58, 0xc1, 0x66, 0x0f, 0x5b, 0xc1, 0x66, 0x0f, 0x38, 0x00, 0xc1, 0x66, 0x0f, 0x5e, 0xc8],
        // vaddps ymm, vpermq, vpgatherdd, vfmadd
        &[
            0xc5, 0xf4, 0x58, 0xc2, 0xc4, 0xe3, 0xfd, 0, 0xc1, 1, 0xc4, 0xe2, 0x75, 0x90, 4, 0x10, 0xc4, 0xe2, 0xf5,
            0x98, 0xc2,
        ],
        // xsave, xrstor, xgetbv, xsetbv, xsaves
        &[0x0f, 0xae, 0x20, 0x0f, 0xae, 0x28, 0x0f, 0x01, 0xd0, 0x0f, 0x01, 0xd1, 0x0f, 0xc7, 0x28],
        // in, out, ins, outs
        &[0xe4, 0x40, 0xe6, 0x40, 0xec, 0xef, 0xf3, 0x6c, 0xf3, 0x6f],
        // mov dr7, eax; mov eax, dr6; popf; pushf; int1
        &[0x0f, 0x23, 0xf8, 0x0f, 0x21, 0xf0, 0x9d, 0x9c, 0xf1],
        // cli, sti, hlt, pause, monitor, mwait
        &[0xfa, 0xfb, 0xf4, 0xf3, 0x90, 0x0f, 0x01, 0xc8, 0x0f, 0x01, 0xc9],
        // div, idiv, mul, imul, aam, shld, rcl
        &[0xf7, 0xf1, 0xf7, 0xf9, 0xf7, 0xe1, 0x0f, 0xaf, 0xc1, 0xd4, 0x0a, 0x0f, 0xa5, 0xc8, 0xd3, 0xd0],
        // lock cmpxchg8b, xadd, cmpxchg16b, bts in memory, xchg
        &[0xf0, 0x0f, 0xc7, 0x08, 0x0f, 0xc1, 0x08, 0x48, 0x0f, 0xc7, 0x08, 0x0f, 0xab, 0x08, 0x87, 0x08],
        // invlpg, invpcid, wbinvd, clts, swapgs, smsw, lmsw
        &[
            0x0f, 0x01, 0x38, 0x66, 0x0f, 0x38, 0x82, 0x08, 0x0f, 0x09, 0x0f, 0x06, 0x0f, 0x01, 0xf8, 0x0f, 0x01, 0xe0,
            0x0f, 0x01, 0xf0,
        ],
        // enter, leave, pusha, popa, bound, arpl
        &[0xc8, 0x10, 0, 3, 0xc9, 0x60, 0x61, 0x62, 0x08, 0x63, 0x08],
        // sha256rnds2, aesenc, pclmulqdq, pext, adcx, rdrand, rdpid, xbegin
        &[
            0x0f, 0x38, 0xcb, 0xc1, 0x66, 0x0f, 0x38, 0xdc, 0xc1, 0x66, 0x0f, 0x3a, 0x44, 0xc1, 0, 0xc4, 0xe2, 0xfa,
            0xf5, 0xc1, 0x66, 0x0f, 0x38, 0xf6, 0xc1, 0x0f, 0xc7, 0xf0,
        ],
    ];
    let mut seeds = Vec::new();
    for mode in [0u8, 1, 9, 2, 3, 4, 12, 5, 13] {
        for code in CODES {
            // RAX and RSI point to data, RCX is 16, and RDI points near the stack.
            let mut seed = vec![mode, 0x80, 4, 0, 3, 1, 64 + 16, 6, 3, 7, 48 + 4];
            seed.extend(code);
            seeds.push(seed);
        }
    }
    seeds
}
