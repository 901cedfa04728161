//! Virtual-machine extensions: the controls and the guest's non-register state (SDM vol. 3, chapter 24).

pub mod capability;
pub mod error;
pub mod qualification;
pub mod reason;
pub mod vmcs;

/// Pin-based execution controls (SDM vol. 3, 24.6.1).
pub mod pin {
    /// External interrupts exit.
    pub const EXTERNAL_INTERRUPT: u32 = 1 << 0;
    /// NMIs exit.
    pub const NMI: u32 = 1 << 3;
    /// NMI blocking applies to virtual NMIs.
    pub const VIRTUAL_NMIS: u32 = 1 << 5;
    /// The VMX-preemption timer is active.
    pub const PREEMPTION_TIMER: u32 = 1 << 6;
    /// Interrupts are posted.
    pub const POSTED_INTERRUPTS: u32 = 1 << 7;
}

/// Primary processor-based execution controls (SDM vol. 3, 24.6.2).
pub mod primary {
    /// An exit as soon as interrupts can be delivered.
    pub const INTERRUPT_WINDOW: u32 = 1 << 2;
    /// The TSC offset is in effect.
    pub const TSC_OFFSETTING: u32 = 1 << 3;
    /// HLT exits.
    pub const HLT: u32 = 1 << 7;
    /// INVLPG exits.
    pub const INVLPG: u32 = 1 << 9;
    /// MWAIT exits.
    pub const MWAIT: u32 = 1 << 10;
    /// RDPMC exits.
    pub const RDPMC: u32 = 1 << 11;
    /// RDTSC and RDTSCP exit.
    pub const RDTSC: u32 = 1 << 12;
    /// MOV to CR3 exits.
    pub const CR3_LOAD: u32 = 1 << 15;
    /// MOV from CR3 exits.
    pub const CR3_STORE: u32 = 1 << 16;
    /// MOV to CR8 exits.
    pub const CR8_LOAD: u32 = 1 << 19;
    /// MOV from CR8 exits.
    pub const CR8_STORE: u32 = 1 << 20;
    /// The task priority is stored in the virtual-APIC page.
    pub const TPR_SHADOW: u32 = 1 << 21;
    /// An exit as soon as virtual NMIs can be delivered.
    pub const NMI_WINDOW: u32 = 1 << 22;
    /// MOV to and from debug registers exits.
    pub const MOV_DR: u32 = 1 << 23;
    /// All port accesses exit.
    pub const UNCONDITIONAL_IO: u32 = 1 << 24;
    /// Bitmaps select the port accesses that exit.
    pub const IO_BITMAPS: u32 = 1 << 25;
    /// An exit after each instruction.
    pub const MONITOR_TRAP: u32 = 1 << 27;
    /// Bitmaps select the MSR accesses that exit.
    pub const MSR_BITMAPS: u32 = 1 << 28;
    /// MONITOR exits.
    pub const MONITOR: u32 = 1 << 29;
    /// PAUSE exits.
    pub const PAUSE: u32 = 1 << 30;
    /// The secondary controls are active.
    pub const SECONDARY: u32 = 1 << 31;
}

/// Secondary processor-based execution controls (SDM vol. 3, 24.6.2).
pub mod secondary {
    /// Accesses to the APIC's page are virtualized.
    pub const APIC_ACCESSES: u32 = 1 << 0;
    /// Extended page tables.
    pub const EPT: u32 = 1 << 1;
    /// LGDT and similar instructions exit.
    pub const DESCRIPTOR_TABLE: u32 = 1 << 2;
    /// RDTSCP exists.
    pub const RDTSCP: u32 = 1 << 3;
    /// The x2APIC's registers are virtualized.
    pub const X2APIC: u32 = 1 << 4;
    /// Virtual-processor identifiers.
    pub const VPID: u32 = 1 << 5;
    /// WBINVD exits.
    pub const WBINVD: u32 = 1 << 6;
    /// Guests may run without paging and in real-address mode.
    pub const UNRESTRICTED_GUEST: u32 = 1 << 7;
    /// The APIC's registers are virtualized.
    pub const APIC_REGISTERS: u32 = 1 << 8;
    /// Virtual interrupts are delivered.
    pub const VIRTUAL_INTERRUPTS: u32 = 1 << 9;
    /// PAUSE loops exit.
    pub const PAUSE_LOOP: u32 = 1 << 10;
    /// RDRAND exits.
    pub const RDRAND: u32 = 1 << 11;
    /// INVPCID exists.
    pub const INVPCID: u32 = 1 << 12;
    /// VM functions.
    pub const VM_FUNCTIONS: u32 = 1 << 13;
    /// VMCS shadowing.
    pub const VMCS_SHADOWING: u32 = 1 << 14;
    /// ENCLS exits.
    pub const ENCLS: u32 = 1 << 15;
    /// RDSEED exits.
    pub const RDSEED: u32 = 1 << 16;
    /// Page-modification logging.
    pub const PML: u32 = 1 << 17;
    /// EPT violations may be #VE.
    pub const EPT_VIOLATION_VE: u32 = 1 << 18;
    /// XSAVES and XRSTORS exist.
    pub const XSAVES: u32 = 1 << 20;
    /// Execute permission of EPT depends on the guest's mode.
    pub const MODE_BASED_EXECUTE: u32 = 1 << 22;
    /// The TSC is scaled.
    pub const TSC_SCALING: u32 = 1 << 25;
}

/// VM-exit controls (SDM vol. 3, 24.7.1).
pub mod exit {
    /// DR7 and DEBUGCTL are saved.
    pub const SAVE_DEBUG: u32 = 1 << 2;
    /// The host runs in 64-bit mode.
    pub const HOST_64: u32 = 1 << 9;
    /// An exit acknowledges the interrupt that caused it.
    pub const ACKNOWLEDGE_INTERRUPT: u32 = 1 << 15;
    /// PAT is saved.
    pub const SAVE_PAT: u32 = 1 << 18;
    /// PAT is loaded.
    pub const LOAD_PAT: u32 = 1 << 19;
    /// EFER is saved.
    pub const SAVE_EFER: u32 = 1 << 20;
    /// EFER is loaded.
    pub const LOAD_EFER: u32 = 1 << 21;
    /// The value of the VMX-preemption timer is saved.
    pub const SAVE_PREEMPTION_TIMER: u32 = 1 << 22;
    /// CET state is loaded.
    pub const LOAD_CET: u32 = 1 << 28;
    /// PKRS is loaded.
    pub const LOAD_PKRS: u32 = 1 << 29;
}

/// VM-entry controls (SDM vol. 3, 24.8.1).
pub mod entry {
    /// DR7 and DEBUGCTL are loaded.
    pub const LOAD_DEBUG: u32 = 1 << 2;
    /// The guest is in IA-32e mode.
    pub const IA32E_GUEST: u32 = 1 << 9;
    /// PAT is loaded.
    pub const LOAD_PAT: u32 = 1 << 14;
    /// EFER is loaded.
    pub const LOAD_EFER: u32 = 1 << 15;
    /// CET state is loaded.
    pub const LOAD_CET: u32 = 1 << 20;
    /// PKRS is loaded.
    pub const LOAD_PKRS: u32 = 1 << 22;
    /// The entry goes to system-management mode.
    pub const SMM: u32 = 1 << 10;
    /// The entry ends the dual-monitor treatment.
    pub const DEACTIVATE_DUAL_MONITOR: u32 = 1 << 11;
}

/// VM functions (SDM vol. 3, 24.6.14), by bit of the VM-function controls.
pub mod function {
    /// EPTP switching.
    pub const EPTP_SWITCHING: u32 = 0;
    /// Entries of the EPTP list.
    pub const EPTP_LIST_ENTRIES: u64 = 512;
}

/// Virtualization exceptions: the information area (SDM vol. 3, 25.5.7.2), by the offset in bytes.
pub mod virtualization_exception {
    /// Exit reason that the EPT violation would have had (32 bits).
    pub const REASON: u64 = 0;
    /// All ones while the exception is handled (32 bits), which suppresses further ones.
    pub const BUSY: u64 = 4;
    /// Exit qualification (64 bits).
    pub const QUALIFICATION: u64 = 8;
    /// Guest-linear address (64 bits).
    pub const LINEAR: u64 = 16;
    /// Guest-physical address (64 bits).
    pub const PHYSICAL: u64 = 24;
    /// EPTP index (16 bits).
    pub const EPTP_INDEX: u64 = 32;
}

/// The VMCS region (SDM vol. 3, 24.2).
pub mod region {
    /// In the first 32 bits: the VMCS is a shadow.
    pub const SHADOW: u32 = 1 << 31;
    /// Offset of the VMX-abort indicator.
    pub const ABORT: u64 = 4;
    /// Size, and alignment.
    pub const SIZE: u64 = 4096;
}

/// VMX-abort indicators (SDM vol. 3, 27.7).
pub mod abort {
    /// Guest MSRs could not be saved.
    pub const SAVING_MSRS: u32 = 1;
    /// The host's PDPTEs are invalid.
    pub const HOST_PDPTE: u32 = 2;
    /// The VMCS cannot be used any more.
    pub const CORRUPTED_VMCS: u32 = 3;
    /// Host MSRs could not be loaded.
    pub const LOADING_MSRS: u32 = 4;
}

/// Interruption information: of VM entries, VM exits and IDT vectoring (SDM vol. 3, 24.8.3, 24.9.2, 24.9.3).
pub mod interruption {
    /// The vector.
    pub const VECTOR: u32 = 0xff;
    /// The type: one of those below.
    pub const TYPE: u32 = 7 << 8;
    /// External interrupt.
    pub const EXTERNAL: u32 = 0 << 8;
    /// NMI.
    pub const NMI: u32 = 2 << 8;
    /// Exception raised by the processor.
    pub const HARDWARE_EXCEPTION: u32 = 3 << 8;
    /// INT n.
    pub const SOFTWARE_INTERRUPT: u32 = 4 << 8;
    /// INT1.
    pub const PRIVILEGED_SOFTWARE_EXCEPTION: u32 = 5 << 8;
    /// INT3 or INTO.
    pub const SOFTWARE_EXCEPTION: u32 = 6 << 8;
    /// On entry: a monitor-trap-flag exit becomes pending.
    pub const OTHER_EVENT: u32 = 7 << 8;
    /// There is an error code.
    pub const ERROR_CODE: u32 = 1 << 11;
    /// VM exits: IRET had unblocked NMIs before the fault.
    pub const NMI_UNBLOCKED: u32 = 1 << 12;
    /// There is an event.
    pub const VALID: u32 = 1 << 31;
}

/// Interruptibility state (SDM vol. 3, table 24-3).
pub mod interruptibility {
    /// Blocking by STI.
    pub const STI: u32 = 1 << 0;
    /// Blocking by MOV SS or POP SS.
    pub const MOV_SS: u32 = 1 << 1;
    /// Blocking by SMI.
    pub const SMI: u32 = 1 << 2;
    /// Blocking by NMI.
    pub const NMI: u32 = 1 << 3;
}

/// Activity state (SDM vol. 3, 24.4.2).
pub mod activity {
    /// Instructions are executed.
    pub const ACTIVE: u32 = 0;
    /// HLT was executed.
    pub const HLT: u32 = 1;
    /// Triple fault.
    pub const SHUTDOWN: u32 = 2;
    /// Wait for a start-up IPI.
    pub const WAIT_FOR_SIPI: u32 = 3;
}

/// Pending debug exceptions (SDM vol. 3, table 24-4).
pub mod pending_debug {
    /// Breakpoints 0 to 3 were met.
    pub const BREAKPOINTS: u64 = 0xf;
    /// One of them was enabled.
    pub const ENABLED_BREAKPOINT: u64 = 1 << 12;
    /// Single step.
    pub const BS: u64 = 1 << 14;
}
