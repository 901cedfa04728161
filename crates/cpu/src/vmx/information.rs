//! VM exits: reasons, and what they report.

/// Basic exit reasons (SDM vol. 3, appendix C).
pub mod reason {
    #![allow(missing_docs)]
    pub const EXCEPTION_NMI: u32 = 0;
    pub const EXTERNAL_INTERRUPT: u32 = 1;
    pub const TRIPLE_FAULT: u32 = 2;
    pub const INTERRUPT_WINDOW: u32 = 7;
    pub const NMI_WINDOW: u32 = 8;
    pub const TASK_SWITCH: u32 = 9;
    pub const CPUID: u32 = 10;
    pub const GETSEC: u32 = 11;
    pub const HLT: u32 = 12;
    pub const INVD: u32 = 13;
    pub const INVLPG: u32 = 14;
    pub const RDPMC: u32 = 15;
    pub const RDTSC: u32 = 16;
    pub const VMCALL: u32 = 18;
    pub const VMCLEAR: u32 = 19;
    pub const VMLAUNCH: u32 = 20;
    pub const VMPTRLD: u32 = 21;
    pub const VMPTRST: u32 = 22;
    pub const VMREAD: u32 = 23;
    pub const VMRESUME: u32 = 24;
    pub const VMWRITE: u32 = 25;
    pub const VMXOFF: u32 = 26;
    pub const VMXON: u32 = 27;
    pub const CONTROL_REGISTER: u32 = 28;
    pub const MOV_DR: u32 = 29;
    pub const IO: u32 = 30;
    pub const RDMSR: u32 = 31;
    pub const WRMSR: u32 = 32;
    pub const INVALID_GUEST_STATE: u32 = 33;
    pub const MWAIT: u32 = 36;
    pub const MONITOR_TRAP: u32 = 37;
    pub const MONITOR: u32 = 39;
    pub const PAUSE: u32 = 40;
    pub const GDTR_IDTR: u32 = 46;
    pub const LDTR_TR: u32 = 47;
    pub const EPT_VIOLATION: u32 = 48;
    pub const EPT_MISCONFIGURATION: u32 = 49;
    pub const INVEPT: u32 = 50;
    pub const RDTSCP: u32 = 51;
    pub const PREEMPTION_TIMER: u32 = 52;
    pub const INVVPID: u32 = 53;
    pub const WBINVD: u32 = 54;
    pub const XSETBV: u32 = 55;
    pub const RDRAND: u32 = 57;
    pub const INVPCID: u32 = 58;
    pub const RDSEED: u32 = 61;
    pub const XSAVES: u32 = 63;
    pub const XRSTORS: u32 = 64;
    /// Set with a reason when it is the entry that failed.
    pub const ENTRY_FAILURE: u32 = 1 << 31;
    /// The part that is the basic reason.
    pub const BASIC: u32 = 0xffff;
}

/// What an exit reports: the VM-exit information fields (SDM vol. 3, 24.9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VmExit {
    /// Exit reason, see [`reason`].
    pub reason: u32,
    /// Exit qualification.
    pub qualification: u64,
    /// Guest-linear address.
    pub guest_linear: u64,
    /// Guest-physical address.
    pub guest_physical: u64,
    /// Length of the instruction that exited or made the event.
    pub instruction_length: u32,
    /// Operands of the instruction that exited.
    pub instruction_information: u32,
    /// Event that exited.
    pub interruption: u32,
    /// Its error code.
    pub interruption_error: u32,
    /// Event that was being delivered.
    pub vectoring: u32,
    /// Its error code.
    pub vectoring_error: u32,
}

impl VmExit {
    /// The basic reason.
    pub fn basic(&self) -> u32 {
        self.reason & reason::BASIC
    }
}
