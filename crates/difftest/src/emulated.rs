//! The emulated side: the processor under test in user mode, on page tables that map the arena as it is mapped
//! natively.
//!
//! This is one of the modules with `unsafe`: the guest's memory is behind a raw pointer.

use crate::layout::*;
use crate::state::{Exception, Outcome, State, Wide};
use cpu::arch::F80;
use cpu::model::{CpuidEntry, CpuidRegs};
use cpu::ram::RamRegion;
use cpu::{Cpu, Ram};
use std::sync::Arc;
use testkit::Raised;
use x86::page::{A, D, NX, P, PAGE, RW, US};
use x86::{flags, vector};
use x86::{rights::UNUSABLE, seg};

const TABLES: u64 = 0x1000;
const TABLES_LEN: u64 = 0x8000;

/// Returns the leaves of the host's CPUID that report its instruction sets.
pub fn host_cpuid() -> Vec<CpuidEntry> {
    let basic = std::arch::x86_64::__cpuid(0).eax;
    let extended = std::arch::x86_64::__cpuid(0x8000_0000).eax;
    let leaves = [(1, 0), (7, 0), (7, 1), (13, 1), (0x14, 0), (0x8000_0001, 0), (0x8000_0008, 0)];
    let known = |leaf: u32| leaf <= if leaf < 0x8000_0000 { basic } else { extended };
    leaves
        .into_iter()
        .filter(|(leaf, _)| known(*leaf))
        .map(|(leaf, subleaf)| {
            let r = std::arch::x86_64::__cpuid_count(leaf, subleaf);
            CpuidEntry {
                leaf,
                subleaf: Some(subleaf),
                regs: CpuidRegs { eax: r.eax, ebx: r.ebx, ecx: r.ecx, edx: r.edx },
            }
        })
        .collect()
}

/// A processor in user mode.
pub struct Emulated {
    cpu: Cpu,
    arena: *mut u8,
    code64: bool,
}

fn region(start: u64, len: u64, owners: &mut Vec<Box<[u64]>>) -> RamRegion {
    let mut memory = vec![0u64; (len / 8) as usize].into_boxed_slice();
    let host = memory.as_mut_ptr().cast();
    owners.push(memory);
    RamRegion { start, len, host, read_only: false, hidden: false }
}

impl Emulated {
    /// Creates a processor in 64-bit mode or in 32-bit compatibility mode. `arena` is the arena's initial contents.
    pub fn new(arena: &[u8; ARENA_LEN], code64: bool) -> Self {
        let mut owners = Vec::new();
        let regions = vec![region(0, TABLES + TABLES_LEN, &mut owners), region(ARENA, ARENA_LEN as u64, &mut owners)];
        let host = regions[1].host;
        // SAFETY: the boxes own the memory, are never touched through references again, and their heap blocks do not move.
        let ram = unsafe { Ram::new(regions, Arc::new(owners)) };
        // There are four levels; every table is present, writable, user and accessed.
        const TABLE: u64 = P | RW | US | A;
        let tables = [(39, TABLES), (30, TABLES + 0x1000), (21, TABLES + 0x2000), (12, TABLES + 0x3000)];
        for pair in tables.windows(2) {
            let ((shift, table), (_, next)) = (pair[0], pair[1]);
            ram.write(table + (ARENA >> shift & 0x1ff) * 8, next | TABLE);
        }
        for (i, rights) in RIGHTS.iter().enumerate() {
            let address = ARENA + i as u64 * PAGE;
            let entry = match rights {
                Rights::None => continue,
                Rights::Read => address | P | US | A,
                Rights::Write => address | P | RW | US | A | D,
            };
            ram.write(TABLES + 0x3000 + (address >> 12 & 0x1ff) * 8, entry | NX);
        }
        ram.write_bytes(ARENA, arena);
        let mut cpu = testkit::cpu(ram);
        testkit::set_long_mode(&mut cpu, TABLES, 3, code64);
        // These are the selectors that Linux gives a program, so that their values compare equal.
        let selectors = if code64 { [0, 0x33, 0x2b, 0, 0, 0] } else { [0x2b, 0x23, 0x2b, 0x2b, 0, 0] };
        for (segment, selector) in cpu.arch.seg.iter_mut().zip(selectors) {
            segment.selector = selector;
        }
        if !code64 {
            // Null selectors make FS and GS unusable.
            cpu.arch.seg[usize::from(seg::FS)].rights |= UNUSABLE;
            cpu.arch.seg[usize::from(seg::GS)].rights |= UNUSABLE;
        }
        // The tables are as short as Linux's: selectors beyond them are refused, and there is no local table.
        cpu.arch.gdtr.limit = 0x7f;
        // Gates that programs may not use are refused like absent gates.
        cpu.arch.idtr.limit = 0;
        cpu.arch.ldtr.rights |= UNUSABLE;
        // The processor has the host's vendor.
        cpu.wiring.capabilities.amd = testkit::host_is_amd();
        cpu.wiring.features = cpu::Features::of(&host_cpuid());
        cpu.mode_changed();
        // The TSS is too short for an I/O permission bitmap, so the program may access no port.
        cpu.arch.tr.limit = 0x60;
        Self { cpu, arena: host, code64 }
    }

    /// Writes bytes to a writable part of the arena.
    pub fn poke(&mut self, address: u64, bytes: &[u8]) {
        self.cpu.wiring.ram.write_bytes(address, bytes);
    }

    /// Returns a range of the arena.
    pub fn memory(&self, range: std::ops::Range<usize>) -> &[u8] {
        debug_assert!(range.end <= ARENA_LEN);
        // SAFETY: the range is inside the arena's block, and nothing writes to it while the borrow of `self` lasts.
        unsafe { std::slice::from_raw_parts(self.arena.add(range.start), range.len()) }
    }

    fn load(&mut self, state: &State) {
        let cpu = &mut self.cpu;
        cpu.arch.gpr[..16].copy_from_slice(&state.gpr);
        cpu.arch.rip = CODE_START;
        cpu.arch.lazy.load(state.rflags);
        cpu.arch.flags = (state.rflags & flags::ALL & !flags::ARITH) | 2;
        cpu.arch.seg[usize::from(seg::FS)].base = state.fs_base;
        cpu.arch.seg[usize::from(seg::GS)].base = state.gs_base;
        let x = &state.x;
        for (i, ymm) in cpu.arch.vector.ymm.iter_mut().enumerate() {
            *ymm = [x.xmm[i][0], x.xmm[i][1], x.ymm_high[i][0], x.ymm_high[i][1]];
        }
        *cpu.arch.vector.upper_mut() = state.wide.upper;
        cpu.arch.vector.high = state.wide.high;
        cpu.arch.vector.k = state.wide.k;
        cpu.arch.vector.mxcsr = x.mxcsr;
        let top = usize::from(x.fsw >> 11);
        for (i, st) in x.st.iter().enumerate() {
            cpu.arch.x87.regs[(top + i) & 7] = F80 { significand: st[0], sign_exponent: st[1] as u16 };
        }
        cpu.arch.x87.control = x.fcw;
        cpu.arch.x87.status = x.fsw;
        cpu.arch.x87.tags = x.ftw;
        cpu.arch.x87.opcode = x.fop;
        cpu.arch.x87.ip = x.fip;
        cpu.arch.x87.dp = x.fdp;
        cpu.arch.x87.cs = 0;
        cpu.arch.x87.ds = 0;
        cpu.engine.fault = Default::default();
        cpu.arch.attention = 0;
    }

    fn store(&self) -> State {
        let cpu = &self.cpu;
        let mut state = State::default();
        state.gpr.copy_from_slice(&cpu.arch.gpr[..16]);
        state.rip = cpu.arch.rip;
        state.rflags = cpu.rflags();
        state.fs_base = cpu.arch.seg[usize::from(seg::FS)].base;
        state.gs_base = cpu.arch.seg[usize::from(seg::GS)].base;
        let x = &mut state.x;
        for (i, ymm) in cpu.arch.vector.ymm.iter().enumerate() {
            x.xmm[i] = [ymm[0], ymm[1]];
            x.ymm_high[i] = [ymm[2], ymm[3]];
        }
        state.wide = Wide { upper: cpu.arch.vector.upper, high: cpu.arch.vector.high, k: cpu.arch.vector.k };
        x.mxcsr = cpu.arch.vector.mxcsr;
        let top = usize::from(cpu.arch.x87.status >> 11);
        for (i, st) in x.st.iter_mut().enumerate() {
            let register = cpu.arch.x87.regs[(top + i) & 7];
            *st = [register.significand, register.sign_exponent.into()];
        }
        x.fcw = cpu.arch.x87.control;
        x.fsw = cpu.arch.x87.status;
        x.ftw = cpu.arch.x87.tags;
        x.fop = cpu.arch.x87.opcode;
        x.fip = cpu.arch.x87.ip;
        x.fdp = cpu.arch.x87.dp;
        state
    }

    /// Executes the instruction of these bytes at [`CODE_START`]. `state.rip` is ignored.
    ///
    /// An instruction that stops at its own address in order to continue (iterations of a repeated one) is resumed
    /// until it is done.
    pub fn execute(&mut self, bytes: &[u8], state: &State) -> Outcome {
        self.load(state);
        let mut padded = [0xcc; 15];
        padded[..bytes.len()].copy_from_slice(bytes);
        let exception = loop {
            match testkit::step_bytes(&mut self.cpu, &padded) {
                Ok(_) if self.cpu.arch.rip == CODE_START => {}
                Ok(_) => break None,
                Err(raised) => break Some(self.exception(raised)),
            }
        };
        debug_assert_eq!(self.cpu.engine.long64, self.code64);
        Outcome { state: self.store(), exception }
    }

    /// Executes one instruction at an address. Returns the address at which execution continues, or the exception.
    pub fn one(&mut self, bytes: &[u8; 15], at: u64, state: &State) -> Result<u64, Exception> {
        self.load(state);
        self.cpu.arch.rip = at;
        loop {
            match testkit::step_bytes(&mut self.cpu, bytes) {
                Ok(_) if self.cpu.arch.rip == at => {}
                Ok(_) => return Ok(self.cpu.arch.rip),
                Err(raised) => return Err(self.exception(raised)),
            }
        }
    }

    /// Decodes these bytes as the processor does.
    pub fn decode(&self, bytes: &[u8; 15], at: u64) -> iced_x86::Instruction {
        Cpu::decode_one(bytes, at, self.cpu.decode_mode()).unwrap_or_default()
    }

    fn exception(&mut self, raised: Raised) -> Exception {
        let address = if raised.vector == vector::PF { self.cpu.engine.fault_address } else { 0 };
        Exception { vector: raised.vector, code: raised.code.unwrap_or(0), address }
    }
}
