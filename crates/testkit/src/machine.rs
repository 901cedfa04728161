//! A processor with flat memory and an empty board, for tests that run a few instructions.
//!
//! RAM is [`RAM`] bytes from address 0 and, with paging, mapped to itself with 2 MiB user pages. Code goes to [`CODE`],
//! data may be kept at [`DATA`], and the stack starts at [`STACK`] and grows down.
//!
//! This file is compiled twice: in `testkit`, and in the unit tests of `cpu`, where `cpu` is the crate itself.

use super::assemble;
use cpu::BlockCache;
use cpu::arch::Segment;
use cpu::bus::NoDevices;
use cpu::decode::MAX_LENGTH;
use cpu::fault::{Cause, Flow};
use cpu::model::Model;
use cpu::ram::Ram;
use cpu::run::Exit;
use cpu::state::Cpu;
use iced_x86::code_asm::CodeAssembler;
use ledger::{Costs, Geometry, Recorder, Ticks};
use std::sync::{Arc, Mutex};
use x86::control::*;
use x86::{reg, rights, seg};

/// Size of RAM in bytes.
pub const RAM: u64 = 16 << 20;
/// Address at which code is loaded.
pub const CODE: u64 = 0x10_0000;
/// Unused memory, up to [`STACK`]'s pages.
pub const DATA: u64 = 0x20_0000;
/// Initial stack pointer; a megabyte below it is free.
pub const STACK: u64 = 0x80_0000;

const PML4: u64 = 0x1000;
const PDPT: u64 = 0x2000;
const PD: u64 = 0x3000;

/// Returns a model in which all events cost nothing and CPUID is empty.
pub fn model() -> Model {
    Model {
        costs: Costs::free(),
        timing: Arc::new(cpu::time::Flat),
        geometry: Geometry::generic(),
        cpuid: Vec::new(),
        tsc_hz: 1_000_000_000,
        arch_capabilities: 0,
        microcode: 0,
        vmx: None,
        amd: false,
        physical_bits: 46,
        recorded: true,
        branches: false,
    }
}

/// Returns a processor after RESET with this RAM, on a board without devices.
pub fn cpu(ram: Ram) -> Cpu {
    let recorder = Recorder::default();
    Cpu::new(0, Arc::new(model()), ram, Arc::new(Mutex::new(NoDevices)), recorder)
}

/// An exception that an instruction raised and that was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raised {
    /// Vector.
    pub vector: u8,
    /// Error code, for vectors that have one.
    pub code: Option<u32>,
}

/// Returns a flat segment of privilege level `dpl`.
fn flat(selector: u16, dpl: u32, kind: u32) -> Segment {
    let rights = rights::ACCESSED | rights::RW | rights::S | rights::P | rights::G | kind | dpl << rights::DPL_SHIFT;
    Segment { base: 0, limit: u32::MAX, rights, selector: selector | dpl as u16 }
}

/// Puts the processor into flat segments at privilege level `cpl`. `kind` is the code segment's `L` or `DB`.
pub fn set_flat_segments(cpu: &mut Cpu, cpl: u8, kind: u32) {
    let dpl = u32::from(cpl);
    for i in 0..6 {
        cpu.arch.seg[i] = flat(0x10, dpl, rights::DB);
    }
    cpu.arch.seg[usize::from(seg::CS)] = flat(0x08, dpl, rights::CODE | kind);
    cpu.arch.cpl = cpl;
    cpu.mode_changed();
}

/// Enters long mode at `cpl` on page tables at `cr3`, with everything enabled that user code needs; 64-bit mode if
/// `code64`, else 32-bit compatibility mode.
pub fn set_long_mode(cpu: &mut Cpu, cr3: u64, cpl: u8, code64: bool) {
    cpu.arch.cr0 = CR0_PE | CR0_MP | CR0_ET | CR0_NE | CR0_WP | CR0_PG;
    cpu.arch.cr4 = CR4_PAE | CR4_PGE | CR4_OSFXSR | CR4_OSXMMEXCPT | CR4_FSGSBASE | CR4_OSXSAVE;
    cpu.arch.cr3 = cr3;
    cpu.arch.xcr0 = 7 | XCR0_AVX512;
    cpu.arch.msr.efer = EFER_SCE | EFER_LME | EFER_LMA | EFER_NXE;
    set_flat_segments(cpu, cpl, if code64 { rights::L } else { rights::DB });
    cpu.micro.tlb.flush_all();
    cpu.mapping_changed();
}

/// A processor and its blocks.
pub struct Machine {
    /// The processor.
    pub cpu: Cpu,
    /// The processor's blocks, for [`Machine::run`].
    pub cache: BlockCache,
}

impl Machine {
    /// Creates a machine in 16-bit real mode, all segments at 0.
    pub fn real16() -> Self {
        let mut cpu = cpu(Ram::anonymous(RAM));
        for i in 0..6 {
            cpu.arch.seg[i] = Segment::real(0, i == usize::from(seg::CS));
        }
        cpu.mode_changed();
        Self { cpu, cache: BlockCache::new() }.ready(0x8000, 0x7000)
    }

    /// Creates a machine in 32-bit protected mode, with flat segments and without paging.
    pub fn protected32(cpl: u8) -> Self {
        let mut cpu = cpu(Ram::anonymous(RAM));
        cpu.arch.cr0 = CR0_PE | CR0_MP | CR0_ET | CR0_NE;
        cpu.arch.cr4 = CR4_OSFXSR | CR4_OSXMMEXCPT | CR4_OSXSAVE;
        cpu.arch.xcr0 = 7 | XCR0_AVX512;
        set_flat_segments(&mut cpu, cpl, rights::DB);
        cpu.mapping_changed();
        Self { cpu, cache: BlockCache::new() }.ready(CODE, STACK)
    }

    /// Creates a machine in 64-bit mode.
    pub fn long64(cpl: u8) -> Self {
        Self::long(cpl, true)
    }

    /// Creates a machine in 32-bit compatibility mode.
    pub fn compatibility32(cpl: u8) -> Self {
        Self::long(cpl, false)
    }

    fn long(cpl: u8, code64: bool) -> Self {
        let mut cpu = cpu(Ram::anonymous(RAM));
        // Entries are present, writable, user, accessed, dirty; the directory's have the page size.
        cpu.wiring.ram.write(PML4, PDPT | 0x27);
        cpu.wiring.ram.write(PDPT, PD | 0x27);
        for i in 0..RAM >> 21 {
            cpu.wiring.ram.write(PD + 8 * i, i << 21 | 0xe7);
        }
        set_long_mode(&mut cpu, PML4, cpl, code64);
        Self { cpu, cache: BlockCache::new() }.ready(CODE, STACK)
    }

    fn ready(mut self, rip: u64, stack: u64) -> Self {
        self.cpu.arch.rip = rip;
        self.cpu.arch.gpr = [0; 32];
        self.cpu.arch.gpr[usize::from(reg::RSP)] = stack;
        self.cpu.arch.x87.control = 0x37f;
        self.cpu.arch.x87.tags = 0;
        self
    }

    /// Returns the width of code in bits.
    pub fn bits(&self) -> u32 {
        match self.cpu.decode_mode() & 3 {
            cpu::mode::BITS16 => 16,
            cpu::mode::BITS32 => 32,
            _ => 64,
        }
    }

    /// Writes bytes to RAM.
    pub fn poke(&mut self, address: u64, bytes: &[u8]) {
        assert!(self.cpu.wiring.ram.write_bytes(address, bytes), "not RAM: {address:#x}");
    }

    /// Reads bytes from RAM.
    pub fn peek<const N: usize>(&self, address: u64) -> [u8; N] {
        let mut bytes = [0; N];
        assert!(self.cpu.wiring.ram.read_bytes(address, &mut bytes), "not RAM: {address:#x}");
        bytes
    }

    /// Assembles code at RIP and returns its length.
    pub fn code(&mut self, write: impl FnOnce(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>) -> u64 {
        let at = self.cpu.arch.rip;
        let bytes = assemble(self.bits(), at, write);
        let linear = self.cpu.code_linear();
        self.poke(linear, &bytes);
        bytes.len() as u64
    }

    /// Executes the instruction at RIP. An exception is returned, not delivered; RIP is then the instruction's.
    pub fn step(&mut self) -> Result<Flow, Raised> {
        let linear = self.cpu.code_linear();
        let mut bytes = [0; MAX_LENGTH];
        assert!(self.cpu.wiring.ram.read_bytes(linear, &mut bytes), "code at {linear:#x} is not in RAM");
        step_bytes(&mut self.cpu, &bytes)
    }

    /// Assembles code at RIP and executes it one instruction at a time until RIP leaves it or an exception stops it.
    pub fn execute(
        &mut self,
        write: impl FnOnce(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>,
    ) -> Result<(), Raised> {
        let start = self.cpu.arch.rip;
        let len = self.code(write);
        while self.cpu.arch.rip.wrapping_sub(start) < len {
            self.step()?;
        }
        Ok(())
    }

    /// Runs as a board would, with blocks, delivered exceptions and interrupts.
    pub fn run(&mut self, ticks: Ticks) -> Exit {
        let deadline = self.cpu.micro.clock + ticks;
        self.cpu.run(&mut self.cache, deadline)
    }
}

/// Executes one instruction, given by its bytes; more may follow. An exception is returned, not delivered.
pub fn step_bytes(cpu: &mut Cpu, bytes: &[u8]) -> Result<Flow, Raised> {
    let (start, mode) = (cpu.arch.rip, cpu.decode_mode());
    let instruction = Cpu::decode_one(bytes, start, mode).unwrap_or_default();
    let (op, _) = cpu.operation_of(&instruction, mode);
    let result = op.execute(cpu);
    cpu.engine.ilen = 0;
    result.map_err(|_| {
        cpu.arch.rip = start;
        match std::mem::take(&mut cpu.engine.fault) {
            Cause::Exception(vector, code) => Raised { vector, code },
            other => panic!("{instruction:?} stopped without an exception: {other:?}"),
        }
    })
}
