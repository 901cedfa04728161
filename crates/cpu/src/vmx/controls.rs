//! What a VMCS holds besides the registers: the controls of non-root mode, and the guest state that no register has.

use std::rc::Rc;

/// Pin-based execution controls (SDM vol. 3, 24.6.1).
pub mod pin {
    #![allow(missing_docs)]
    pub const EXTERNAL_INTERRUPT: u32 = 1 << 0;
    pub const NMI: u32 = 1 << 3;
    pub const VIRTUAL_NMIS: u32 = 1 << 5;
    pub const PREEMPTION_TIMER: u32 = 1 << 6;
    /// The controls that there are.
    pub const ALL: u32 = EXTERNAL_INTERRUPT | NMI | VIRTUAL_NMIS | PREEMPTION_TIMER;
}

/// Primary processor-based execution controls (SDM vol. 3, 24.6.2).
pub mod primary {
    #![allow(missing_docs)]
    pub const INTERRUPT_WINDOW: u32 = 1 << 2;
    pub const TSC_OFFSETTING: u32 = 1 << 3;
    pub const HLT: u32 = 1 << 7;
    pub const INVLPG: u32 = 1 << 9;
    pub const MWAIT: u32 = 1 << 10;
    pub const RDPMC: u32 = 1 << 11;
    pub const RDTSC: u32 = 1 << 12;
    pub const CR3_LOAD: u32 = 1 << 15;
    pub const CR3_STORE: u32 = 1 << 16;
    pub const CR8_LOAD: u32 = 1 << 19;
    pub const CR8_STORE: u32 = 1 << 20;
    pub const NMI_WINDOW: u32 = 1 << 22;
    pub const MOV_DR: u32 = 1 << 23;
    pub const UNCONDITIONAL_IO: u32 = 1 << 24;
    pub const IO_BITMAPS: u32 = 1 << 25;
    pub const MONITOR_TRAP: u32 = 1 << 27;
    pub const MSR_BITMAPS: u32 = 1 << 28;
    pub const MONITOR: u32 = 1 << 29;
    pub const PAUSE: u32 = 1 << 30;
    pub const SECONDARY: u32 = 1 << 31;
    /// The controls that there are.
    pub const ALL: u32 = INTERRUPT_WINDOW
        | TSC_OFFSETTING
        | HLT
        | INVLPG
        | MWAIT
        | RDPMC
        | RDTSC
        | CR3_LOAD
        | CR3_STORE
        | CR8_LOAD
        | CR8_STORE
        | NMI_WINDOW
        | MOV_DR
        | UNCONDITIONAL_IO
        | IO_BITMAPS
        | MONITOR_TRAP
        | MSR_BITMAPS
        | MONITOR
        | PAUSE
        | SECONDARY;
}

/// Secondary processor-based execution controls (SDM vol. 3, 24.6.2).
pub mod secondary {
    #![allow(missing_docs)]
    pub const EPT: u32 = 1 << 1;
    pub const DESCRIPTOR_TABLE: u32 = 1 << 2;
    pub const RDTSCP: u32 = 1 << 3;
    pub const VPID: u32 = 1 << 5;
    pub const WBINVD: u32 = 1 << 6;
    pub const UNRESTRICTED_GUEST: u32 = 1 << 7;
    pub const PAUSE_LOOP: u32 = 1 << 10;
    pub const RDRAND: u32 = 1 << 11;
    pub const INVPCID: u32 = 1 << 12;
    pub const RDSEED: u32 = 1 << 16;
    pub const XSAVES: u32 = 1 << 20;
    /// The controls that there are.
    pub const ALL: u32 = EPT
        | DESCRIPTOR_TABLE
        | RDTSCP
        | VPID
        | WBINVD
        | UNRESTRICTED_GUEST
        | PAUSE_LOOP
        | RDRAND
        | INVPCID
        | RDSEED
        | XSAVES;
}

/// VM-exit controls (SDM vol. 3, 24.7.1). Those that only say what is copied between the processor and a VMCS do not exist:
/// the guest's registers stay in the processor.
pub mod exit {
    #![allow(missing_docs)]
    pub const ACKNOWLEDGE_INTERRUPT: u32 = 1 << 15;
    pub const SAVE_PREEMPTION_TIMER: u32 = 1 << 22;
    /// The controls that there are.
    pub const ALL: u32 = ACKNOWLEDGE_INTERRUPT | SAVE_PREEMPTION_TIMER;
}

/// VM-entry controls (SDM vol. 3, 24.8.1), with the same omission as [`exit`].
pub mod entry {
    #![allow(missing_docs)]
    pub const IA32E_GUEST: u32 = 1 << 9;
    /// The controls that there are.
    pub const ALL: u32 = IA32E_GUEST;
}

/// Interruption information: of VM entries, VM exits and IDT vectoring (SDM vol. 3, 24.8.3, 24.9.2, 24.9.3).
pub mod interruption {
    #![allow(missing_docs)]
    pub const VECTOR: u32 = 0xff;
    pub const TYPE: u32 = 7 << 8;
    pub const EXTERNAL: u32 = 0 << 8;
    pub const NMI: u32 = 2 << 8;
    pub const HARDWARE_EXCEPTION: u32 = 3 << 8;
    pub const SOFTWARE_INTERRUPT: u32 = 4 << 8;
    pub const PRIVILEGED_SOFTWARE_EXCEPTION: u32 = 5 << 8;
    pub const SOFTWARE_EXCEPTION: u32 = 6 << 8;
    /// On entry: a monitor-trap-flag exit becomes pending.
    pub const OTHER_EVENT: u32 = 7 << 8;
    pub const ERROR_CODE: u32 = 1 << 11;
    /// VM exits: IRET had unblocked NMIs before the fault.
    pub const NMI_UNBLOCKED: u32 = 1 << 12;
    pub const VALID: u32 = 1 << 31;
}

/// Interruptibility state (SDM vol. 3, table 24-3).
pub mod interruptibility {
    #![allow(missing_docs)]
    pub const STI: u32 = 1 << 0;
    pub const MOV_SS: u32 = 1 << 1;
    pub const SMI: u32 = 1 << 2;
    pub const NMI: u32 = 1 << 3;
}

/// Activity state (SDM vol. 3, 24.4.2).
pub mod activity {
    #![allow(missing_docs)]
    pub const ACTIVE: u32 = 0;
    pub const HLT: u32 = 1;
    pub const SHUTDOWN: u32 = 2;
}

/// Pending debug exceptions beyond the breakpoints of bits 3:0 (SDM vol. 3, table 24-4).
pub mod pending_debug {
    #![allow(missing_docs)]
    pub const BREAKPOINTS: u64 = 0xf;
    pub const ENABLED_BREAKPOINT: u64 = 1 << 12;
    pub const BS: u64 = 1 << 14;
}

/// I/O bitmaps A and B, one after the other.
pub type IoBitmap = [u8; 8192];
/// MSR bitmaps: reads of low MSRs, of high ones, writes of low ones, of high ones.
pub type MsrBitmap = [u8; 4096];

/// The controls, and the guest state that no register holds. The names are those of the SDM, vol. 3, 24.4 to 24.8.
#[derive(Clone, Debug, Default)]
pub struct Controls {
    /// Pin-based execution controls, see [`pin`].
    pub pin: u32,
    /// Primary processor-based execution controls, see [`primary`].
    pub primary: u32,
    /// Secondary processor-based execution controls, see [`secondary`]; only looked at with [`primary::SECONDARY`].
    pub secondary: u32,
    /// VM-exit controls, see [`exit`].
    pub exit: u32,
    /// VM-entry controls, see [`entry`]. An exit sets IA-32e mode guest to what EFER.LMA is then.
    pub entry: u32,
    /// Exceptions that exit, by vector.
    pub exception_bitmap: u32,
    /// Error-code bits of page faults that are compared.
    pub pf_error_mask: u32,
    /// What they are compared with: equal, and bit 14 of the bitmap decides; not equal, and its inverse does.
    pub pf_error_match: u32,
    /// Bits of CR0 that the host owns.
    pub cr0_mask: u64,
    /// What the guest reads in them.
    pub cr0_shadow: u64,
    /// Bits of CR4 that the host owns.
    pub cr4_mask: u64,
    /// What the guest reads in them.
    pub cr4_shadow: u64,
    /// Values that may be moved to CR3 without exit.
    pub cr3_targets: [u64; 4],
    /// How many of them count.
    pub cr3_target_count: u32,
    /// Ports that exit, with [`primary::IO_BITMAPS`]; none given: all do.
    pub io_bitmap: Option<Rc<IoBitmap>>,
    /// MSRs that exit, with [`primary::MSR_BITMAPS`]; none given: all do.
    pub msr_bitmap: Option<Rc<MsrBitmap>>,
    /// XSAVES and XRSTORS components that exit.
    pub xss_bitmap: u64,
    /// Added to the time-stamp counter, with [`primary::TSC_OFFSETTING`].
    pub tsc_offset: u64,
    /// EPT pointer.
    pub eptp: u64,
    /// Tag of the guest's translations.
    pub vpid: u16,
    /// Pause-loop exiting: the most time-stamp cycles between two PAUSEs of one loop.
    pub ple_gap: u32,
    /// Pause-loop exiting: time-stamp cycles that a loop may take.
    pub ple_window: u32,
    /// VMX-preemption timer, in units of [`super::PREEMPTION_TIMER_SHIFT`].
    pub preemption_timer: u32,

    /// Event to inject, see [`interruption`]; an exit clears its valid bit.
    pub entry_interruption: u32,
    /// Its error code.
    pub entry_error_code: u32,
    /// Length of the instruction that a software interrupt or exception comes from.
    pub entry_instruction_length: u32,

    /// Blocking by STI, MOV SS and NMI, see [`interruptibility`].
    pub interruptibility: u32,
    /// Active or halted, see [`activity`].
    pub activity: u32,
    /// Debug exceptions that are due, see [`pending_debug`].
    pub pending_debug: u64,

    /// What [`Cpu::charged_space`](crate::Cpu::charged_space) is once a value among [`Controls::cr3_targets`] has been moved to
    /// CR3.
    pub target_spaces: [Option<u64>; 4],
}

impl Controls {
    /// Whether all the given primary controls are set.
    #[inline]
    pub fn primary(&self, controls: u32) -> bool {
        self.primary & controls == controls
    }

    /// Whether the entry delivers an event.
    pub fn injects(&self) -> bool {
        let info = self.entry_interruption;
        info & interruption::VALID != 0 && info & interruption::TYPE != interruption::OTHER_EVENT
    }

    /// Whether all the given secondary controls are set and active.
    #[inline]
    pub fn secondary(&self, controls: u32) -> bool {
        self.primary & primary::SECONDARY != 0 && self.secondary & controls == controls
    }
}
