//! The modelled processor without a board: 64-bit mode, pages where the caller wants them, nothing else.

use crate::kernel::Kernel;
use crate::layout::{self, CODE, CODE_LEN, CONTROL, CONTROL_LEN, HUGE, HUGE_LEN, SMALL, SMALL_LEN, STACK, STACK_LEN};
use crate::program::Program;
use cpu::arch::Segment;
use cpu::bus::NoDevices;
use cpu::run::Exit;
use cpu::{BlockCache, Cpu, Features, Model, Ram};
use iced_x86::Instruction;
use layout::Slot;
use ledger::profile::Profile;
use ledger::{Recorder, TICKS_PER_CYCLE};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use x86::control::*;
use x86::page::{A, D, P, PAGE, PS, RW, US};
use x86::{reg, rights, seg};

/// Size of a large page.
const LARGE: u64 = 2 << 20;
/// Page of the code that calls a function, and the code: CALL RAX, HLT.
const STUB: u64 = 0x1_0000;
const CALL_AND_HALT: [u8; 3] = [0xff, 0xd0, 0xf4];
/// Cycles after which a kernel is given up.
const LIMIT: u64 = 20_000_000_000;

/// Reason why the model has no figure.
#[derive(Debug, thiserror::Error)]
pub enum BareError {
    /// An exception, for which no handler exists.
    #[error(
        "the modelled processor stops at {0:#x}: an instruction raises an exception that it does not raise natively"
    )]
    Stopped(u64),
    /// The kernel does not end.
    #[error("the modelled processor does not end the kernel")]
    Endless,
}

/// Returns the model of a profile's processor.
fn model_of(profile: &Profile) -> Model {
    Model::of(profile, profile.costs(), profile.geometry(), &profile.cpuid())
}

/// Returns true if the processor of a profile does not execute an instruction.
pub fn lacks(profile: &Profile, instruction: &Instruction) -> bool {
    let seen = cpu::table::view(Features::of(&model_of(profile).cpuid), instruction);
    seen.is_none_or(|seen| cpu::table::row(seen.mnemonic()).is_none())
}

/// The processor, its memory and its page tables.
pub struct Bare {
    cpu: Cpu,
    cache: BlockCache,
    ram: u64,
    /// The next free page of RAM.
    free: u64,
    /// Physical addresses of mapped pages of 4 KiB.
    small: BTreeMap<u64, u64>,
    /// Physical addresses of mapped pages of 2 MiB.
    large: BTreeMap<u64, u64>,
}

impl Bare {
    /// Creates the processor of a profile with so many bytes of RAM.
    pub fn new(profile: &Profile, ram: u64) -> Self {
        let model = model_of(profile);
        let recorder = Recorder::default();
        let components = model.static_cpuid(0xd, 0).eax;
        let memory = Ram::anonymous(ram);
        let mut cpu = Cpu::new(0, Arc::new(model), memory, Arc::new(Mutex::new(NoDevices)), recorder);
        let root = PAGE;
        cpu.arch.cr0 = CR0_PE | CR0_MP | CR0_ET | CR0_NE | CR0_WP | CR0_PG;
        cpu.arch.cr4 = CR4_PAE | CR4_PGE | CR4_OSFXSR | CR4_OSXMMEXCPT | CR4_OSXSAVE;
        cpu.arch.cr3 = root;
        cpu.arch.xcr0 = u64::from(components) & (7 | XCR0_AVX512) | 1;
        cpu.arch.msr.efer = EFER_SCE | EFER_LME | EFER_LMA | EFER_NXE;
        let flat = |selector, kind| {
            let rights = rights::ACCESSED | rights::RW | rights::S | rights::P | rights::G | kind;
            Segment { base: 0, limit: u32::MAX, rights, selector }
        };
        cpu.arch.seg[..6].fill(flat(0x10, rights::DB));
        cpu.arch.seg[usize::from(seg::CS)] = flat(0x08, rights::CODE | rights::L);
        cpu.arch.idtr.limit = 0;
        cpu.arch.cpl = 0;
        cpu.arch.x87.control = 0x37f;
        cpu.arch.x87.tags = 0;
        cpu.mode_changed();
        cpu.micro.tlb.flush_all();
        cpu.mapping_changed();
        Self { cpu, cache: BlockCache::new(), ram, free: 2 * PAGE, small: BTreeMap::new(), large: BTreeMap::new() }
    }

    /// Takes free RAM of this size and alignment.
    fn take(&mut self, size: u64) -> u64 {
        let at = self.free.next_multiple_of(size);
        self.free = at + size;
        assert!(self.free <= self.ram, "the layout fits into RAM");
        at
    }

    /// Maps a page of this size, unless it is mapped.
    fn map_page(&mut self, address: u64, size: u64) {
        let known = if size == LARGE { &self.large } else { &self.small };
        if known.contains_key(&address) {
            return;
        }
        let mut table = PAGE;
        let last = if size == LARGE { 21 } else { 12 };
        for shift in [39, 30, 21].into_iter().take_while(|shift| *shift > last) {
            let entry = table + (address >> shift & 0x1ff) * 8;
            let present: u64 = self.cpu.wiring.ram.read(entry).unwrap_or(0);
            table = present & !(PAGE - 1);
            if present & P == 0 {
                table = self.take(PAGE);
                self.cpu.wiring.ram.write(entry, table | P | RW | US | A);
            }
        }
        let physical = self.take(size);
        let large = if size == LARGE { PS } else { 0 };
        let entry = table + (address >> last & 0x1ff) * 8;
        self.cpu.wiring.ram.write(entry, physical | P | RW | US | A | D | large);
        let known = if size == LARGE { &mut self.large } else { &mut self.small };
        known.insert(address, physical);
    }

    /// Maps memory in pages of 4 KiB.
    pub fn map(&mut self, address: u64, len: u64) {
        let first = address & !(PAGE - 1);
        (first..address + len).step_by(PAGE as usize).for_each(|page| self.map_page(page, PAGE));
    }

    /// Maps memory in pages of 2 MiB.
    pub fn map_large(&mut self, address: u64, len: u64) {
        let first = address & !(LARGE - 1);
        (first..address + len).step_by(LARGE as usize).for_each(|page| self.map_page(page, LARGE));
    }

    /// Returns the physical address of mapped memory.
    fn physical(&self, address: u64) -> u64 {
        match self.small.get(&(address & !(PAGE - 1))) {
            Some(page) => page + address % PAGE,
            None => self.large[&(address & !(LARGE - 1))] + address % LARGE,
        }
    }

    /// Writes to mapped memory.
    pub fn write(&mut self, address: u64, bytes: &[u8]) {
        let mut at = address;
        let mut rest = bytes;
        while !rest.is_empty() {
            let len = rest.len().min((PAGE - at % PAGE) as usize);
            let physical = self.physical(at);
            self.cpu.wiring.ram.write_bytes(physical, &rest[..len]);
            (at, rest) = (at + len as u64, &rest[len..]);
        }
    }

    /// Writes a quadword to mapped memory.
    pub fn write_quad(&mut self, address: u64, value: u64) {
        self.write(address, &value.to_le_bytes());
    }

    /// Reads a quadword of mapped memory.
    pub fn read_quad(&self, address: u64) -> u64 {
        self.cpu.wiring.ram.read(self.physical(address)).unwrap_or(0)
    }

    /// Calls a function with this stack.
    pub fn call(&mut self, function: u64, stack: u64) -> Result<(), BareError> {
        self.map(STUB, PAGE);
        self.write(STUB, &CALL_AND_HALT);
        self.cpu.arch.rip = STUB;
        self.cpu.arch.gpr[usize::from(reg::RAX)] = function;
        self.cpu.arch.gpr[usize::from(reg::RSP)] = stack;
        let deadline = self.cpu.micro.clock + LIMIT * TICKS_PER_CYCLE;
        match self.cpu.run(&mut self.cache, deadline) {
            Exit::Halt => Ok(()),
            Exit::Deadline => Err(BareError::Endless),
            _ => Err(BareError::Stopped(self.cpu.arch.rip)),
        }
    }
}

/// Returns the cycles of a step of a kernel on the processor of a profile.
pub fn measure(profile: &Profile, program: &Program, kernel: &Kernel, entry: u64) -> Result<f64, BareError> {
    let mut bare = Bare::new(profile, 400 << 20);
    bare.map(CODE, program.code.len() as u64);
    bare.map(CONTROL, CONTROL_LEN);
    bare.map(STACK - STACK_LEN, STACK_LEN);
    bare.map(SMALL, SMALL_LEN);
    bare.map_large(HUGE, HUGE_LEN);
    debug_assert!(program.code.len() as u64 <= CODE_LEN);
    bare.write(CODE, &program.code);
    for piece in &kernel.data {
        let (address, bytes) = piece.contents();
        bare.write(address, &bytes);
    }
    for (slot, value) in [(Slot::Rounds, kernel.rounds), (Slot::Warm, kernel.warm)] {
        bare.write_quad(slot.address(), value);
    }
    bare.call(entry, STACK)?;
    Ok(bare.read_quad(Slot::Elapsed.address()) as f64 / (kernel.rounds as f64 * kernel.steps))
}
