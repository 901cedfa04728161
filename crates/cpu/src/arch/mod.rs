//! Architectural state: registers and pending events.

mod registers;
mod tiles;

pub use registers::*;
pub use tiles::*;

use crate::flags::Lazy;
use crate::pmu::registers::Pmu;
use crate::vmx::information::VmExit;
use crate::vmx::state::NonRoot;
use serde::{Deserialize, Serialize};
use x86::debug::{DR6_FIXED, DR7_FIXED};

/// Reasons to leave the fast path before the next block, in [`attention`](crate::arch::Arch::attention).
pub mod attention {
    /// The board asserts INTR.
    pub const INTR: u32 = 1 << 0;
    /// An NMI is pending.
    pub const NMI: u32 = 1 << 1;
    /// STI blocking: no maskable interrupt before one more instruction (SDM vol. 3, 6.8.3).
    pub const STI_SHADOW: u32 = 1 << 2;
    /// MOV SS / POP SS blocking: no interrupt, NMI or debug trap before one more instruction.
    pub const SS_SHADOW: u32 = 1 << 3;
    /// Instructions run one at a time: RFLAGS.TF, or a breakpoint is enabled.
    pub const STEP: u32 = 1 << 4;
    /// A device was accessed: the board checks timers and lines before anything else.
    pub const BUS: u32 = 1 << 5;
    /// HLT.
    pub const HALT: u32 = 1 << 6;
    /// Blocks must be invalidated.
    pub const CODE: u32 = 1 << 7;
    /// A data or I/O breakpoint matched: #DB after the instruction, with [`pending_dr6`](crate::arch::Arch::pending_dr6).
    pub const DEBUG: u32 = 1 << 8;
    /// Shutdown (triple fault).
    pub const SHUTDOWN: u32 = 1 << 9;
    /// MWAIT with the monitor armed.
    pub const MWAIT: u32 = 1 << 10;
    /// With MWAIT: interrupts end it even if they are masked.
    pub const MWAIT_MASKED: u32 = 1 << 11;
    /// A VM exit is complete: the hypervisor continues.
    pub const VM_EXIT: u32 = 1 << 12;
    /// The next instruction must be ENDBRANCH.
    pub const ENDBRANCH: u32 = 1 << 14;
    /// An INIT signal that VMX operation blocks: it causes an exit in non-root mode, and a reset after VMXOFF.
    pub const INIT: u32 = 1 << 13;
}

/// Architectural state of a virtual processor: plain data that can be saved, compared and printed by field.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[repr(C)]
pub struct Arch {
    /// A virtual processor.
    /// RAX to R15; 16 and above read as zero and are never written.
    pub gpr: [u64; 32],
    /// Instruction pointer; while a handler runs, the address of the next instruction.
    pub rip: u64,
    /// Arithmetic flags.
    pub lazy: Lazy,
    /// Other flags, at their positions in RFLAGS (bit 1 set).
    pub flags: u64,
    /// See [`attention`].
    pub attention: u32,
    /// Current privilege level.
    pub cpl: u8,
    /// ES, CS, SS, DS, FS, GS, and a flat segment (`SEG_FLAT`).
    pub seg: [Segment; 8],
    /// Control register 0.
    pub cr0: u64,
    /// Page-fault linear address.
    pub cr2: u64,
    /// Root of the page tables and PCID.
    pub cr3: u64,
    /// Control register 4.
    pub cr4: u64,
    /// Model-specific registers.
    pub msr: Msrs,
    /// Vector registers.
    pub vector: VectorState,
    /// x87 and MMX.
    pub x87: X87,
    /// AMX tiles.
    pub tiles: Tiles,
    /// Shadow-stack pointer.
    pub ssp: u64,
    /// Extended control register 0.
    pub xcr0: u64,
    /// Protection keys of user pages.
    pub pkru: u32,
    /// Debug registers (DR4, DR5 unused).
    pub dr: [u64; 8],
    /// PDPTEs, loaded with CR3 under PAE paging.
    pub pdpte: [u64; 4],
    /// Global descriptor table.
    pub gdtr: TableRegister,
    /// Interrupt descriptor table.
    pub idtr: TableRegister,
    /// Local descriptor table.
    pub ldtr: Segment,
    /// Task register; the type in `rights` distinguishes 16-bit from 32/64-bit, and is busy.
    pub tr: Segment,
    /// True if NMIs are blocked until IRET.
    pub nmi_blocked: bool,
    /// DR6 bits collected for a trap after the current instruction.
    pub pending_dr6: u64,
    /// True if a debug trap follows the current instruction because RFLAGS.TF was set before it.
    pub single_step: bool,
    /// VMX state, including non-root mode.
    pub vmx: Box<NonRoot>,
    /// Exit information of the last VM exit.
    pub vm_exit: VmExit,
    /// Performance counters.
    pub pmu: Pmu,
}

impl Arch {
    /// Creates a state in which all registers are zero except those that never are.
    pub(crate) fn new() -> Self {
        Self {
            gpr: [0; 32],
            rip: 0,
            lazy: Lazy::default(),
            flags: 2,
            attention: 0,
            cpl: 0,
            seg: [Segment::default(); 8],
            cr0: 0,
            cr2: 0,
            cr3: 0,
            cr4: 0,
            msr: Msrs::default(),
            vector: VectorState::RESET,
            x87: X87 {
                regs: [F80::default(); 8],
                control: 0x40,
                status: 0,
                tags: 0xff,
                opcode: 0,
                ip: 0,
                cs: 0,
                dp: 0,
                ds: 0,
            },
            tiles: Tiles::default(),
            ssp: 0,
            xcr0: 1,
            pkru: 0,
            dr: [0, 0, 0, 0, 0, 0, DR6_FIXED, DR7_FIXED],
            pdpte: [0; 4],
            gdtr: TableRegister::default(),
            idtr: TableRegister::default(),
            ldtr: Segment::default(),
            tr: Segment::default(),
            nmi_blocked: false,
            pending_dr6: 0,
            single_step: false,
            vmx: Box::default(),
            vm_exit: VmExit::default(),
            pmu: Pmu::default(),
        }
    }
}
