//! Tests with guests of a few instructions, entered with the test's controls.

mod checks;
mod events;
mod instructions;
mod random;
mod state;

use super::{Controls, EntryFailure, VmExit};
use crate::Exit;
use crate::arch::{Segment, TableRegister};
use crate::ram::Ram;
use crate::state::Cpu;
use crate::testing::{CODE, DATA, Machine, RAM, STACK, cpu, set_flat_segments};
use crate::translate::BlockCache;
use iced_x86::IcedError;
use iced_x86::code_asm::CodeAssembler;
use x86::control::*;
use x86::vmx::{entry, primary, secondary};
use x86::{reg, rights, seg};

/// Time by which every test guest has exited.
const LONG: u64 = 1 << 40;
/// The guest's interrupt descriptor table.
const IDT: u64 = DATA + 0x1000;
/// The guest's global descriptor table: null, 64-bit or 32-bit code, data, TSS.
const GDT: u64 = DATA + 0x2000;
const TSS: u64 = DATA + 0x3000;
/// Handlers of all vectors: 16 bytes each, HLT.
const HANDLERS: u64 = DATA + 0x4000;
/// EPT tables that map everything to itself.
const EPT: u64 = DATA + 0x8000;
/// A 32-bit page directory of 4 MiB pages.
const DIRECTORY: u64 = DATA + 0xb000;

/// Mode of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Long,
    /// Protected mode with 32-bit paging.
    Paged,
    /// Real-address mode, as an unrestricted guest.
    Real,
}

struct Guest {
    m: Machine,
    controls: Controls,
}

impl Guest {
    fn new(mode: Mode, cpl: u8) -> Self {
        let mut m = match mode {
            Mode::Long => Machine::long64(cpl),
            Mode::Paged => paged32(cpl),
            Mode::Real => Machine::real16(),
        };
        m.cpu.arch.cr0 |= CR0_NE | CR0_ET;
        m.cpu.arch.cr4 |= CR4_VMXE;
        m.cpu.set_rflags(2);
        let mut controls = Controls { primary: primary::SECONDARY, ..Controls::default() };
        match mode {
            Mode::Long => controls.entry |= entry::IA32E_GUEST,
            Mode::Paged => {}
            Mode::Real => unrestricted(&mut m, &mut controls),
        }
        let mut guest = Self { m, controls };
        match mode {
            Mode::Real => guest.real_vectors(),
            _ => guest.tables(mode == Mode::Long),
        }
        guest
    }

    fn long() -> Self {
        Self::new(Mode::Long, 0)
    }

    /// Sets up interrupt vectors of real-address mode, each to its handler.
    fn real_vectors(&mut self) {
        for vector in 0..256u64 {
            let far = HLT_REAL + 16 * vector;
            self.m.poke(4 * vector, &(far as u32).to_le_bytes());
            self.m.poke(far, &[0xf4]);
        }
        self.m.cpu.arch.idtr = TableRegister { base: 0, limit: 0x3ff };
    }

    /// Sets up descriptor tables, and handlers of all vectors that halt.
    fn tables(&mut self, long: bool) {
        let code = if long { 0x00af_9b00_0000_ffff } else { 0x00cf_9b00_0000_ffff };
        let tss = 0x0000_8b00_0000_0067 | (TSS & 0xff_ffff) << 16 | (TSS >> 24) << 56;
        let user_code: u64 = if long { 0x00af_fb00_0000_ffff } else { 0x00cf_fb00_0000_ffff };
        let entries: [u64; 8] =
            [0, code, 0x00cf_9300_0000_ffff, tss, 0, user_code, 0x00cf_f300_0000_ffff, 0x0000_8900_0000_0067];
        for (i, entry) in entries.iter().enumerate() {
            self.m.poke(GDT + 8 * i as u64, &entry.to_le_bytes());
        }
        for vector in 0..256u64 {
            let handler = HANDLERS + 16 * vector;
            let low = (handler & 0xffff) | 8 << 16 | 0xee00 << 32 | (handler >> 16 & 0xffff) << 48;
            if long {
                self.m.poke(IDT + 16 * vector, &low.to_le_bytes());
                self.m.poke(IDT + 16 * vector + 8, &0u64.to_le_bytes());
            } else {
                self.m.poke(IDT + 8 * vector, &low.to_le_bytes());
            }
            self.m.poke(handler, &[0xf4]);
        }
        let sp = STACK - 0x1000;
        // No I/O permission bitmap.
        self.m.poke(TSS + 0x66, &0x68u16.to_le_bytes());
        if long {
            self.m.poke(TSS + 4, &sp.to_le_bytes());
        } else {
            self.m.poke(TSS + 4, &(sp as u32).to_le_bytes());
            self.m.poke(TSS + 8, &0x10u16.to_le_bytes());
        }
        let cpu = &mut self.m.cpu;
        cpu.arch.gdtr = TableRegister { base: GDT, limit: 63 };
        cpu.arch.idtr = TableRegister { base: IDT, limit: 0xfff };
        cpu.arch.tr = Segment { base: TSS, limit: 0x67, rights: 0x8b, selector: 0x18 };
    }

    /// Assembles code at RIP.
    fn code(mut self, write: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) -> Self {
        self.m.code(write);
        self
    }

    /// Changes the controls with `change`.
    fn with(mut self, change: impl FnOnce(&mut Controls)) -> Self {
        change(&mut self.controls);
        self
    }

    /// Changes the processor with `change`.
    fn set(mut self, change: impl FnOnce(&mut Cpu)) -> Self {
        change(&mut self.m.cpu);
        self
    }

    fn enter(&mut self) -> Result<(), EntryFailure> {
        self.m.cpu.vm_entry(self.controls.clone())
    }

    /// Enters and runs until the guest stops.
    fn go(&mut self) -> Exit {
        self.enter().expect("valid controls and state");
        self.m.run(LONG)
    }

    /// Enters and runs until it exits.
    fn exit(&mut self) -> VmExit {
        let mut exit = self.go();
        while exit == Exit::Bus {
            exit = self.m.run(LONG);
        }
        assert_eq!(exit, Exit::Vm, "no exit at {:#x}", self.m.cpu.arch.rip);
        assert!(!self.m.cpu.non_root());
        self.m.cpu.arch.vm_exit
    }

    /// Returns RIP relative to the start of the code.
    fn offset(&self) -> i64 {
        let start = if self.m.cpu.protected() { CODE } else { 0x8000 };
        self.m.cpu.arch.rip.wrapping_sub(start) as i64
    }

    fn reg(&self, number: u8) -> u64 {
        self.m.cpu.arch.gpr[usize::from(number)]
    }

    /// Returns the quadwords on the stack.
    fn stack<const N: usize>(&self) -> [u64; N] {
        let sp = self.reg(reg::RSP);
        std::array::from_fn(|i| u64::from_le_bytes(self.m.peek::<8>(sp + 8 * i as u64)))
    }

    /// Returns the vector in whose handler the guest halted.
    fn handler(&self) -> u64 {
        if self.m.cpu.protected() {
            (self.m.cpu.arch.rip - HANDLERS) / 16
        } else {
            (self.m.cpu.arch.rip - HLT_REAL) / 16
        }
    }
}

/// Handlers in real-address mode.
const HLT_REAL: u64 = 0x1_0000 - 0x1000 - 0x4000;

/// Returns a machine in protected mode at `cpl` with everything mapped one to one by 4 MiB pages.
fn paged32(cpl: u8) -> Machine {
    let mut cpu = cpu(Ram::anonymous(RAM));
    cpu.arch.cr0 = CR0_PE | CR0_MP | CR0_ET | CR0_NE | CR0_PG;
    cpu.arch.cr4 = CR4_PSE | CR4_OSFXSR;
    cpu.arch.cr3 = DIRECTORY;
    for i in 0..RAM >> 22 {
        cpu.wiring.ram.write::<u32>(DIRECTORY + 4 * i, (i << 22) as u32 | 0xe7);
    }
    set_flat_segments(&mut cpu, cpl, rights::DB);
    cpu.micro.tlb.flush_all();
    cpu.mapping_changed();
    cpu.arch.rip = CODE;
    cpu.arch.gpr = [0; 32];
    cpu.arch.gpr[usize::from(reg::RSP)] = STACK;
    Machine { cpu, cache: BlockCache::new() }
}

/// Configures an unrestricted guest: EPT that maps everything to itself.
fn unrestricted(m: &mut Machine, controls: &mut Controls) {
    const ALL: u64 = 7;
    const WRITE_BACK: u64 = 6 << 3;
    const LARGE: u64 = 1 << 7;
    m.cpu.wiring.ram.write::<u64>(EPT, (EPT + 0x1000) | ALL);
    m.cpu.wiring.ram.write::<u64>(EPT + 0x1000, (EPT + 0x2000) | ALL);
    for i in 0..RAM >> 21 {
        m.cpu.wiring.ram.write::<u64>(EPT + 0x2000 + 8 * i, i << 21 | ALL | WRITE_BACK | LARGE);
    }
    controls.secondary |= secondary::EPT | secondary::UNRESTRICTED_GUEST;
    // Write-back, four levels.
    controls.eptp = EPT | 6 | 3 << 3;
}

#[test]
fn a_guest_runs_at_level_1_and_leaves_at_level_0() {
    let mut guest = Guest::long().code(|a| {
        a.nop()?;
        a.cpuid()
    });
    guest.enter().expect("valid");
    assert!(guest.m.cpu.non_root());
    assert_eq!(guest.m.cpu.micro.level, 1);
    assert_eq!(guest.m.run(LONG), Exit::Vm);
    assert_eq!((guest.m.cpu.micro.level, guest.m.cpu.non_root()), (0, false));
    assert_eq!(guest.offset(), 1);
    assert_eq!(guest.m.cpu.arch.seg[usize::from(seg::CS)].selector, 8);
}
