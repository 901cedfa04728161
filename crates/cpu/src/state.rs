//! The processor's state.

use crate::bus::{Bus, Ident};
use crate::capability::Capabilities;
use crate::charged::{Charged, Nesting};
use crate::fault::Cause;
use crate::features::Features;
use crate::flags::{Int, Lazy};
use crate::front::{Fetch, Front};
use crate::model::Model;
use crate::predict::Predictor;
use crate::probe::Hit;
use crate::ram::Ram;
use crate::tlb::Tlb;
use crate::vmx::{NonRoot, VmExit};
use ledger::{Kind, Operation, OriginId, Recorder, Ticks};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use x86::control::*;
use x86::debug::{DR6_FIXED, DR7_FIXED};
use x86::{flags, msr, reg, rights, seg};

/// A segment register with its hidden part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Segment {
    /// Base address.
    pub base: u64,
    /// Limit in bytes (granularity already applied).
    pub limit: u32,
    /// Access rights, see [`x86::rights`].
    pub rights: u32,
    /// Visible selector.
    pub selector: u16,
}

impl Segment {
    /// Descriptor privilege level.
    pub fn dpl(&self) -> u8 {
        (self.rights >> rights::DPL_SHIFT) as u8 & 3
    }

    /// Whether accesses through it can be done (a null selector, or a failed load in VMX terms, cannot).
    pub fn usable(&self) -> bool {
        self.rights & rights::UNUSABLE == 0
    }

    /// As after reset or a real-mode load: base = selector * 16, 64 KiB, writable data (or code for CS).
    pub fn real(selector: u16, code: bool) -> Self {
        let kind = rights::ACCESSED | rights::RW | if code { rights::CODE } else { 0 };
        Self { base: u64::from(selector) << 4, limit: 0xffff, rights: kind | rights::S | rights::P, selector }
    }
}

/// GDTR or IDTR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableRegister {
    /// Linear base.
    pub base: u64,
    /// Limit.
    pub limit: u16,
}

/// An 80-bit floating-point register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct F80 {
    /// Explicit-integer-bit significand.
    pub significand: u64,
    /// Sign and exponent.
    pub sign_exponent: u16,
}

/// x87 state. `regs` are the physical registers R0-R7; ST(i) is `regs[(top + i) & 7]`. MMX register i is
/// `regs[i].significand`.
#[derive(Clone, Copy, Debug)]
pub struct X87 {
    /// Physical registers.
    pub regs: [F80; 8],
    /// Control word.
    pub control: u16,
    /// Status word, with TOP in bits 13:11.
    pub status: u16,
    /// Bit i set: physical register i is not empty (the abridged tag of FXSAVE).
    pub tags: u8,
    /// Last opcode (11 bits).
    pub opcode: u16,
    /// Last instruction pointer.
    pub ip: u64,
    /// Last instruction's CS.
    pub cs: u16,
    /// Last data pointer.
    pub dp: u64,
    /// Last data segment.
    pub ds: u16,
}

/// Vector registers and MXCSR. The layout is relied upon by the native vector stubs.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct VectorState {
    /// YMM0-15; the low half is XMM.
    pub ymm: [[u64; 4]; 16],
    /// Control and status.
    pub mxcsr: u32,
    /// What the host's MXCSR is known to be, or [`NOT_LOADED`].
    pub loaded: u32,
}

/// The host's MXCSR may be anything that compiled code leaves behind.
pub const NOT_LOADED: u32 = 0;

/// AMD's configuration registers that are only stored: SYSCFG, HWCR, TOP_MEM, TOP_MEM2, NB_CFG, LS_CFG, IC_CFG, DC_CFG, BU_CFG2,
/// DE_CFG, OSVW length and status.
pub const AMD_REGISTERS: [u32; 12] = [
    msr::SYSCFG,
    msr::HWCR,
    msr::TOP_MEM,
    msr::TOP_MEM2,
    msr::NB_CFG,
    msr::LS_CFG,
    msr::IC_CFG,
    msr::DC_CFG,
    msr::BU_CFG2,
    msr::DE_CFG,
    msr::OSVW_ID_LENGTH,
    msr::OSVW_STATUS,
];

/// Model-specific registers held by the processor.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Msrs {
    /// IA32_EFER.
    pub efer: u64,
    /// IA32_STAR.
    pub star: u64,
    /// IA32_LSTAR.
    pub lstar: u64,
    /// IA32_CSTAR.
    pub cstar: u64,
    /// IA32_FMASK.
    pub fmask: u64,
    /// IA32_KERNEL_GS_BASE.
    pub kernel_gs_base: u64,
    /// IA32_SYSENTER_CS.
    pub sysenter_cs: u64,
    /// IA32_SYSENTER_ESP.
    pub sysenter_esp: u64,
    /// IA32_SYSENTER_EIP.
    pub sysenter_eip: u64,
    /// IA32_PAT.
    pub pat: u64,
    /// IA32_TSC_AUX.
    pub tsc_aux: u64,
    /// IA32_TSC_ADJUST.
    pub tsc_adjust: u64,
    /// Added to the clock's cycles to give the TSC.
    pub tsc_offset: u64,
    /// IA32_XSS.
    pub xss: u64,
    /// IA32_PKRS.
    pub pkrs: u64,
    /// IA32_SPEC_CTRL.
    pub spec_ctrl: u64,
    /// MSR_POWER_CTL: stored, without effect.
    pub power_ctl: u64,
    /// IA32_MISC_ENABLE.
    pub misc_enable: u64,
    /// MISC_FEATURES_ENABLES: bit 0 is CPUID faulting.
    pub misc_features: u64,
    /// IA32_MCG_STATUS.
    pub mcg_status: u64,
    /// AMD's configuration registers, in the order of [`AMD_REGISTERS`].
    pub amd: [u64; AMD_REGISTERS.len()],
    /// IA32_DEBUGCTL.
    pub debugctl: u64,
    /// IA32_MTRR_DEF_TYPE.
    pub mtrr_def_type: u64,
    /// Fixed-range MTRRs in the order 64K, 16K (2), 4K (8).
    pub mtrr_fixed: [u64; 11],
    /// Variable-range MTRR base/mask pairs.
    pub mtrr_variable: [u64; 16],
}

/// Reasons to leave the fast path before the next block, in [`Cpu::attention`].
pub mod attention {
    /// The board asserts INTR.
    pub const INTR: u32 = 1 << 0;
    /// An NMI is pending.
    pub const NMI: u32 = 1 << 1;
    /// STI blocking: no maskable interrupt before one more instruction (SDM vol. 3, 6.8.3).
    pub const STI_SHADOW: u32 = 1 << 2;
    /// MOV SS / POP SS blocking: no interrupt, NMI or debug trap before one more instruction.
    pub const SS_SHADOW: u32 = 1 << 3;
    /// Instructions run one at a time: RFLAGS.TF, or an instruction breakpoint is enabled.
    pub const STEP: u32 = 1 << 4;
    /// A device was accessed: the board looks at timers and lines before anything else.
    pub const BUS: u32 = 1 << 5;
    /// HLT.
    pub const HALT: u32 = 1 << 6;
    /// Blocks must be invalidated.
    pub const CODE: u32 = 1 << 7;
    /// A data or I/O breakpoint matched: #DB after the instruction, with [`super::Cpu::pending_dr6`].
    pub const DEBUG: u32 = 1 << 8;
    /// Shutdown (triple fault).
    pub const SHUTDOWN: u32 = 1 << 9;
    /// MWAIT with the monitor armed.
    pub const MWAIT: u32 = 1 << 10;
    /// With MWAIT: interrupts end it even if they are masked.
    pub const MWAIT_MASKED: u32 = 1 << 11;
    /// A VM exit has been made: the hypervisor goes on.
    pub const VM_EXIT: u32 = 1 << 12;
}

/// A virtual processor.
#[repr(C)]
pub struct Cpu {
    // Fields that every instruction touches come first, then those that translated code uses, which finds them by their distances.
    /// RAX to R15; 16 and above read as zero and are never written.
    pub gpr: [u64; 32],
    /// Instruction pointer; while a handler runs, of the next instruction.
    pub rip: u64,
    /// Arithmetic flags.
    pub lazy: Lazy,
    /// The other flags, where RFLAGS has them (bit 1 set).
    pub flags: u64,
    /// Virtual time.
    pub clock: Ticks,
    /// The interpreter leaves its fast path at the first block boundary at which `clock >= stop_at`.
    pub stop_at: Ticks,
    /// When [`Cpu::run`] must return.
    pub deadline: Ticks,
    /// See [`attention`].
    pub attention: u32,
    /// Length of the instruction a handler runs for; 0 between instructions.
    pub ilen: u8,
    /// Current privilege level.
    pub cpl: u8,
    /// CS.L and EFER.LMA: 64-bit mode.
    pub long64: bool,
    /// How code is decoded, see [`crate::decode::mode`].
    pub mode: u8,
    /// ES, CS, SS, DS, FS, GS, then a flat one ([`crate::op::SEG_FLAT`]).
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
    /// Translations ready for the fast path.
    pub front: Front,

    /// Translations ready for instruction fetch.
    pub fetch: Fetch,

    /// Vector registers.
    pub vector: VectorState,
    /// x87 and MMX.
    pub x87: X87,
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
    /// Task register; the type in `rights` tells 16-bit from 32/64-bit, busy set.
    pub tr: Segment,
    /// What stopped the last instruction.
    pub fault: Cause,
    /// Linear address for #PF.
    pub fault_address: u64,
    /// DR6 bits for #DB.
    pub fault_dr6: u64,
    /// DR6 bits collected for a trap after the current instruction.
    pub pending_dr6: u64,
    /// NMIs are blocked until IRET.
    pub nmi_blocked: bool,
    /// State of the seeded generator behind RDRAND and RDSEED.
    pub random: u64,
    /// APIC id, as CPUID reports it.
    pub apic_id: u32,
    /// Processors of the machine, as CPUID reports them.
    pub processors: u32,

    /// The x87 data pointer is only updated by unmasked exceptions (CPUID.7.0:EBX\[6\]).
    pub fdp_on_exception: bool,
    /// The x87 CS and DS are saved as 0 (CPUID.7.0:EBX\[13\]).
    pub fcs_deprecated: bool,

    /// Non-root mode.
    pub vmx: Box<NonRoot>,
    /// What the last VM exit reported.
    pub vm_exit: VmExit,
    /// A debug trap is due after the current instruction because RFLAGS.TF was set before it.
    pub single_step: bool,
    /// What the model's CPUID has.
    pub capabilities: Capabilities,

    /// Modelled TLB.
    pub tlb: Tlb,
    /// Modelled branch predictor.
    pub predictor: Predictor,
    /// Guest-physical RAM.
    pub ram: Ram,
    /// Processor model.
    pub model: Arc<Model>,
    /// Extensions the model has.
    pub features: Features,
    /// The board.
    pub bus: Rc<RefCell<dyn Bus>>,
    /// Where charges go.
    pub recorder: Rc<RefCell<Recorder>>,
    /// Index on the board.
    pub index: usize,
    /// Virtualization level of what is executed: 0 on the machine itself, 1 as the guest of a hypervisor on it.
    pub level: u8,
    /// The address space that is charged where CR3 is not the guest's own, as under shadow paging; set before
    /// [`Cpu::origin_changed`].
    pub charged_space: Option<u64>,
    /// Who is charged besides; set by [`Cpu::set_charged`].
    pub charged: Charged,
    /// The probe that has been reached; see [`crate::probe`].
    pub probe: Option<Hit>,
    /// The board has been told of the probe at the next instruction.
    pub(crate) probe_passed: bool,
    /// Who is charged now; follows level, CPL and CR3.
    pub origin: OriginId,
    /// Who is charged for what a hypervisor does for the code that runs now: the same at level 0.
    pub host_origin: OriginId,
    /// Set while the instruction that hit [`Cause::CodeWrite`] restarts.
    pub code_write_allowed: bool,
    /// Guest-physical addresses of decoded or monitored bytes that were written: page and 64-byte-line mask.
    pub code_writes: Vec<(u64, u64)>,
}

impl Cpu {
    /// A processor after RESET (SDM vol. 3, table 9-1), as number `index` with that APIC id.
    pub fn new(
        index: usize,
        model: Arc<Model>,
        ram: Ram,
        bus: Rc<RefCell<dyn Bus>>,
        recorder: Rc<RefCell<Recorder>>,
    ) -> Self {
        let origin = Self::first_origin(&recorder);
        let geometry = model.geometry;
        let leaf7 = model.static_cpuid(7, 0).ebx;
        let features = Features::of(&model.cpuid);
        let mut cpu = Self {
            gpr: [0; 32],
            rip: 0,
            lazy: Lazy::default(),
            flags: 2,
            clock: 0,
            stop_at: 0,
            deadline: 0,
            attention: 0,
            ilen: 0,
            cpl: 0,
            long64: false,
            mode: 0,
            seg: [Segment::default(); 8],
            front: Front::new(),
            fetch: Fetch::new(),
            vector: VectorState { ymm: [[0; 4]; 16], mxcsr: 0x1f80, loaded: NOT_LOADED },
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
            cr0: 0,
            cr2: 0,
            cr3: 0,
            cr4: 0,
            xcr0: 1,
            pkru: 0,
            dr: [0, 0, 0, 0, 0, 0, DR6_FIXED, DR7_FIXED],
            pdpte: [0; 4],
            gdtr: TableRegister::default(),
            idtr: TableRegister::default(),
            ldtr: Segment::default(),
            tr: Segment::default(),
            msr: Msrs::default(),
            fault: Cause::None,
            fault_address: 0,
            fault_dr6: 0,
            pending_dr6: 0,
            nmi_blocked: false,
            random: 0x9e37_79b9_7f4a_7c15 ^ index as u64,
            apic_id: index as u32,
            fdp_on_exception: leaf7 & 1 << 6 != 0,
            fcs_deprecated: leaf7 & 1 << 13 != 0,
            vmx: Box::default(),
            vm_exit: VmExit::default(),
            single_step: false,
            processors: 1,
            capabilities: Capabilities::of(&model),
            tlb: Tlb::new(&geometry),
            predictor: Predictor::new(&geometry),
            ram,
            model,
            features,
            bus,
            recorder,
            index,
            level: 0,
            charged_space: None,
            charged: Charged::default(),
            probe: None,
            probe_passed: false,
            origin,
            host_origin: origin,
            code_write_allowed: false,
            code_writes: Vec::new(),
        };
        cpu.reset(false);
        cpu
    }

    /// RESET, or INIT, which leaves the x87, vector and most model-specific state alone (SDM vol. 3, 9.1).
    pub fn reset(&mut self, init: bool) {
        self.abandon_guest();
        self.charged.nesting = Nesting::default();
        self.gpr = [0; 32];
        self.gpr[reg::RDX as usize] = 0x600;
        self.rip = 0xfff0;
        self.flags = 2;
        self.lazy.load(0);
        self.cr0 = if init { (self.cr0 & (CR0_CD | CR0_NW)) | CR0_ET } else { CR0_CD | CR0_NW | CR0_ET };
        self.cr2 = 0;
        self.cr3 = 0;
        self.cr4 = 0;
        self.dr = [0, 0, 0, 0, 0, 0, DR6_FIXED, DR7_FIXED];
        self.seg = [Segment::real(0, false); 8];
        self.seg[seg::CS as usize] = Segment { base: 0xffff_0000, ..Segment::real(0xf000, true) };
        self.seg[crate::op::SEG_FLAT as usize] =
            Segment { base: 0, limit: u32::MAX, rights: rights::RW | rights::S | rights::P, selector: 0 };
        self.gdtr = TableRegister { base: 0, limit: 0xffff };
        self.idtr = TableRegister { base: 0, limit: 0xffff };
        self.ldtr = Segment { base: 0, limit: 0xffff, rights: 0x82, selector: 0 };
        self.tr = Segment { base: 0, limit: 0xffff, rights: 0x8b, selector: 0 };
        self.msr.efer = 0;
        self.nmi_blocked = false;
        self.ram.disarm_monitor(self.index);
        self.attention = 0;
        self.cpl = 0;
        if !init {
            let offset = self.msr.tsc_offset;
            self.msr =
                Msrs { pat: 0x0007_0406_0007_0406, tsc_offset: offset, misc_enable: 1 | 1 << 18, ..Msrs::default() };
            self.vector = VectorState { ymm: [[0; 4]; 16], mxcsr: 0x1f80, loaded: NOT_LOADED };
            self.x87.control = 0x40;
            self.x87.status = 0;
            self.x87.tags = 0xff;
            self.xcr0 = 1;
            self.pkru = 0;
        }
        self.tlb.flush_everything();
        self.mode_changed();
    }

    /// A general register, or zero for numbers from 16.
    #[inline(always)]
    pub fn reg(&self, number: u8) -> u64 {
        self.gpr[usize::from(number & 31)]
    }

    /// Reads a register at operand size.
    #[inline(always)]
    pub fn get<T: Int>(&self, number: u8) -> T {
        T::from_u64(self.gpr[usize::from(number & 15)])
    }

    /// Writes a register at operand size: 32-bit writes clear the upper half, smaller ones leave the rest.
    #[inline(always)]
    pub fn set<T: Int>(&mut self, number: u8, value: T) {
        let slot = &mut self.gpr[usize::from(number & 15)];
        *slot = if T::SIZE >= 4 { value.to_u64() } else { (*slot & !T::MASK) | value.to_u64() };
    }

    /// Writes a register at an operand size known at run time (1 means the low byte).
    pub fn set_sized(&mut self, number: u8, size: u8, value: u64) {
        match size {
            1 => self.set::<u8>(number, value as u8),
            2 => self.set::<u16>(number, value as u16),
            4 => self.set::<u32>(number, value as u32),
            _ => self.set::<u64>(number, value),
        }
    }

    /// RFLAGS.
    pub fn rflags(&self) -> u64 {
        self.flags | self.lazy.image()
    }

    /// Sets all of RFLAGS; reserved bits are kept as the architecture has them. Callers decide what may change.
    pub fn set_rflags(&mut self, value: u64) {
        self.lazy.load(value);
        let changed = self.flags ^ value;
        self.flags = (value & flags::ALL & !flags::ARITH) | 2;
        if changed & flags::AC != 0 {
            self.access_changed();
        }
        if self.flags & (flags::TF | flags::RF) != 0 {
            self.attend(attention::STEP);
        }
        if changed & flags::IF != 0 && self.flags & flags::IF != 0 {
            self.stop_at = 0;
        }
    }

    /// Asks for the slow path before the next block.
    #[inline]
    pub fn attend(&mut self, what: u32) {
        self.attention |= what;
        self.stop_at = 0;
    }

    /// Long mode is active (64-bit or compatibility mode).
    pub fn long_mode(&self) -> bool {
        self.msr.efer & EFER_LMA != 0
    }

    /// Protected mode (CR0.PE), virtual-8086 mode included.
    pub fn protected(&self) -> bool {
        self.cr0 & CR0_PE != 0
    }

    /// Virtual-8086 mode.
    pub fn v8086(&self) -> bool {
        self.flags & flags::VM != 0
    }

    /// Current I/O privilege level.
    pub fn iopl(&self) -> u8 {
        (self.flags >> 12) as u8 & 3
    }

    /// Follows a change of CPL, CS, CR0, CR4 or EFER: derived state, access rights on the fast path, who is charged.
    pub fn mode_changed(&mut self) {
        self.fetch.leave();
        self.long64 = self.long_mode() && self.seg[seg::CS as usize].rights & rights::L != 0;
        self.mode = self.decode_mode();
        self.access_changed();
        self.origin_changed();
        self.stop_at = 0;
    }

    /// Who asks the board.
    pub fn ident(&self) -> Ident {
        Ident { cpu: self.index, now: self.clock }
    }

    /// Charges `count` events of one kind to the current instruction, at the model's price each, and moves the clock.
    pub fn charge(&mut self, kind: Kind, count: u64) {
        let ticks = self.model.costs.of(kind) * count;
        self.charge_ticks(kind, count, ticks);
    }

    /// Charges `count` steps of a hypervisor's software to the current instruction, at level 0.
    pub fn charge_host(&mut self, operation: Operation, count: u64) {
        self.charge_host_kind(Kind::operation(operation), count);
    }

    /// Charges `count` events that the processor or a hypervisor causes at level 0 for the sake of the current instruction.
    pub fn charge_host_kind(&mut self, kind: Kind, count: u64) {
        let ticks = self.model.costs.of(kind).saturating_mul(count);
        self.clock += ticks;
        self.record(self.host_origin, kind, count, ticks);
    }

    /// Charges an event whose price the caller knows (time spent halted, for one).
    pub fn charge_ticks(&mut self, kind: Kind, count: u64, ticks: Ticks) {
        if self.vmx.emulation.is_some() {
            // The hypervisor has its own prices for what it emulates.
            return;
        }
        self.clock += ticks;
        self.record(self.origin, kind, count, ticks);
    }

    fn record(&self, origin: OriginId, kind: Kind, count: u64, ticks: Ticks) {
        if self.model.recorded {
            let rip = self.rip.wrapping_sub(u64::from(self.ilen));
            self.recorder.borrow_mut().add(origin, rip, kind, count, ticks);
        }
    }

    /// The time-stamp counter as RDTSC reads it.
    pub fn tsc(&self) -> u64 {
        self.machine_tsc().wrapping_add(self.vmx.tsc_offset())
    }

    /// The time-stamp counter as it is outside non-root mode.
    pub fn machine_tsc(&self) -> u64 {
        (self.clock / ledger::TICKS_PER_CYCLE).wrapping_add(self.msr.tsc_offset)
    }
}
