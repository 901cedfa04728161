//! Bits of the VMX capability MSRs (SDM vol. 3, appendix A).

/// IA32_VMX_BASIC (A.1).
pub mod basic {
    /// The VMCS revision identifier.
    pub const REVISION: u64 = 0x7fff_ffff;
    /// Position of the size of VMCS regions in bytes: 13 bits.
    pub const SIZE_SHIFT: u32 = 32;
    /// Addresses of VMCS regions and their structures are limited to 32 bits.
    pub const ADDRESS_32: u64 = 1 << 48;
    /// Position of the memory type of these structures.
    pub const TYPE_SHIFT: u32 = 50;
    /// Exits of INS and OUTS report instruction information.
    pub const STRING_IO_INFORMATION: u64 = 1 << 54;
    /// The TRUE capability MSRs exist.
    pub const TRUE_CONTROLS: u64 = 1 << 55;
}

/// IA32_VMX_MISC (A.6).
pub mod misc {
    /// The preemption timer counts down when the TSC bit with this number changes.
    pub const TIMER_RATE: u64 = 0x1f;
    /// Exits save EFER.LMA in the "IA-32e mode guest" control.
    pub const SAVES_LMA: u64 = 1 << 5;
    /// Activity state HLT.
    pub const HLT: u64 = 1 << 6;
    /// Activity state shutdown.
    pub const SHUTDOWN: u64 = 1 << 7;
    /// Activity state wait-for-SIPI.
    pub const WAIT_FOR_SIPI: u64 = 1 << 8;
    /// Position of the number of CR3-target values: 9 bits.
    pub const CR3_TARGETS_SHIFT: u32 = 16;
    /// Position of the recommended maximum of MSRs in a list: 512 times one more than these 3 bits.
    pub const MSR_LIST_SHIFT: u32 = 25;
    /// VMWRITE can write read-only fields.
    pub const VMWRITE_ANY: u64 = 1 << 29;
    /// Software interrupts may be injected with an instruction length of 0.
    pub const LENGTH_0: u64 = 1 << 30;
}

/// IA32_VMX_EPT_VPID_CAP (A.10).
pub mod ept_vpid {
    /// Execute-only pages.
    pub const EXECUTE_ONLY: u64 = 1 << 0;
    /// Four levels of tables.
    pub const FOUR_LEVELS: u64 = 1 << 6;
    /// Uncacheable tables.
    pub const UNCACHEABLE: u64 = 1 << 8;
    /// Write-back tables.
    pub const WRITE_BACK: u64 = 1 << 14;
    /// Pages of 2 MiB.
    pub const PAGES_2M: u64 = 1 << 16;
    /// Pages of 1 GiB.
    pub const PAGES_1G: u64 = 1 << 17;
    /// INVEPT.
    pub const INVEPT: u64 = 1 << 20;
    /// Accessed and dirty flags.
    pub const ACCESSED_DIRTY: u64 = 1 << 21;
    /// Advanced information in the exit qualification of EPT violations.
    pub const ADVANCED_INFORMATION: u64 = 1 << 22;
    /// INVEPT of one EPT pointer.
    pub const INVEPT_SINGLE: u64 = 1 << 25;
    /// INVEPT of all EPT pointers.
    pub const INVEPT_ALL: u64 = 1 << 26;
    /// INVVPID.
    pub const INVVPID: u64 = 1 << 32;
    /// INVVPID of an address.
    pub const INVVPID_ADDRESS: u64 = 1 << 40;
    /// INVVPID of a VPID.
    pub const INVVPID_SINGLE: u64 = 1 << 41;
    /// INVVPID of all VPIDs.
    pub const INVVPID_ALL: u64 = 1 << 42;
    /// INVVPID of a VPID except for global translations.
    pub const INVVPID_RETAINING_GLOBALS: u64 = 1 << 43;
    /// Bits for EPT.
    pub const OF_EPT: u64 = 0xffff_ffff;
    /// Bits for VPIDs.
    pub const OF_VPID: u64 = !OF_EPT;
}
