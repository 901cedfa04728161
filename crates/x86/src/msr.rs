//! Model-specific registers (SDM vol. 4, chapter 2; APM vol. 2, appendix A).

named! { u32;
    TSC = 0x10, "IA32_TIME_STAMP_COUNTER";
    PLATFORM_ID = 0x17, "IA32_PLATFORM_ID";
    APIC_BASE = 0x1b, "IA32_APIC_BASE";
    FEATURE_CONTROL = 0x3a, "IA32_FEATURE_CONTROL";
    TSC_ADJUST = 0x3b, "IA32_TSC_ADJUST";
    SPEC_CTRL = 0x48, "IA32_SPEC_CTRL";
    PRED_CMD = 0x49, "IA32_PRED_CMD";
    BIOS_SIGN_ID = 0x8b, "IA32_BIOS_SIGN_ID";
    PMC0 = 0xc1, "IA32_PMC0";
    PMC1 = 0xc2, "IA32_PMC1";
    PMC2 = 0xc3, "IA32_PMC2";
    PMC3 = 0xc4, "IA32_PMC3";
    PMC4 = 0xc5, "IA32_PMC4";
    PMC5 = 0xc6, "IA32_PMC5";
    PMC6 = 0xc7, "IA32_PMC6";
    PMC7 = 0xc8, "IA32_PMC7";
    PLATFORM_INFO = 0xce, "MSR_PLATFORM_INFO";
    CORE_CAPABILITIES = 0xcf, "IA32_CORE_CAPABILITIES";
    PKG_CST_CONFIG_CONTROL = 0xe2, "MSR_PKG_CST_CONFIG_CONTROL";
    MTRR_CAP = 0xfe, "IA32_MTRRCAP";
    ARCH_CAPABILITIES = 0x10a, "IA32_ARCH_CAPABILITIES";
    FLUSH_CMD = 0x10b, "IA32_FLUSH_CMD";
    MCU_OPT_CTRL = 0x123, "IA32_MCU_OPT_CTRL";
    MISC_FEATURES_ENABLES = 0x140, "MSR_MISC_FEATURES_ENABLES";
    SYSENTER_CS = 0x174, "IA32_SYSENTER_CS";
    SYSENTER_ESP = 0x175, "IA32_SYSENTER_ESP";
    SYSENTER_EIP = 0x176, "IA32_SYSENTER_EIP";
    MCG_CAP = 0x179, "IA32_MCG_CAP";
    MCG_STATUS = 0x17a, "IA32_MCG_STATUS";
    PERFEVTSEL0 = 0x186, "IA32_PERFEVTSEL0";
    PERFEVTSEL1 = 0x187, "IA32_PERFEVTSEL1";
    PERFEVTSEL2 = 0x188, "IA32_PERFEVTSEL2";
    PERFEVTSEL3 = 0x189, "IA32_PERFEVTSEL3";
    PERFEVTSEL4 = 0x18a, "IA32_PERFEVTSEL4";
    PERFEVTSEL5 = 0x18b, "IA32_PERFEVTSEL5";
    PERFEVTSEL6 = 0x18c, "IA32_PERFEVTSEL6";
    PERFEVTSEL7 = 0x18d, "IA32_PERFEVTSEL7";
    MISC_ENABLE = 0x1a0, "IA32_MISC_ENABLE";
    /// State components whose use raises #NM.
    XFD = 0x1c4, "IA32_XFD";
    /// State components that caused the last #NM due to IA32_XFD.
    XFD_ERR = 0x1c5, "IA32_XFD_ERR";
    LBR_SELECT = 0x1c8, "MSR_LBR_SELECT";
    LASTBRANCH_TOS = 0x1c9, "MSR_LASTBRANCH_TOS";
    DEBUGCTL = 0x1d9, "IA32_DEBUGCTL";
    POWER_CTL = 0x1fc, "MSR_POWER_CTL";
    MTRR_PHYS_BASE0 = 0x200, "IA32_MTRR_PHYSBASE0";
    MTRR_PHYS_MASK7 = 0x20f, "IA32_MTRR_PHYSMASK7";
    MTRR_FIX64K_00000 = 0x250, "IA32_MTRR_FIX64K_00000";
    MTRR_FIX16K_80000 = 0x258, "IA32_MTRR_FIX16K_80000";
    MTRR_FIX16K_A0000 = 0x259, "IA32_MTRR_FIX16K_A0000";
    MTRR_FIX4K_C0000 = 0x268, "IA32_MTRR_FIX4K_C0000";
    MTRR_FIX4K_C8000 = 0x269, "IA32_MTRR_FIX4K_C8000";
    MTRR_FIX4K_D0000 = 0x26a, "IA32_MTRR_FIX4K_D0000";
    MTRR_FIX4K_D8000 = 0x26b, "IA32_MTRR_FIX4K_D8000";
    MTRR_FIX4K_E0000 = 0x26c, "IA32_MTRR_FIX4K_E0000";
    MTRR_FIX4K_E8000 = 0x26d, "IA32_MTRR_FIX4K_E8000";
    MTRR_FIX4K_F0000 = 0x26e, "IA32_MTRR_FIX4K_F0000";
    MTRR_FIX4K_F8000 = 0x26f, "IA32_MTRR_FIX4K_F8000";
    PAT = 0x277, "IA32_PAT";
    MTRR_DEF_TYPE = 0x2ff, "IA32_MTRR_DEF_TYPE";
    FIXED_CTR0 = 0x309, "IA32_FIXED_CTR0";
    FIXED_CTR1 = 0x30a, "IA32_FIXED_CTR1";
    FIXED_CTR2 = 0x30b, "IA32_FIXED_CTR2";
    PERF_CAPABILITIES = 0x345, "IA32_PERF_CAPABILITIES";
    FIXED_CTR_CTRL = 0x38d, "IA32_FIXED_CTR_CTRL";
    PERF_GLOBAL_STATUS = 0x38e, "IA32_PERF_GLOBAL_STATUS";
    PERF_GLOBAL_CTRL = 0x38f, "IA32_PERF_GLOBAL_CTRL";
    PERF_GLOBAL_OVF_CTRL = 0x390, "IA32_PERF_GLOBAL_OVF_CTRL";
    VMX_BASIC = 0x480, "IA32_VMX_BASIC";
    VMX_PINBASED_CTLS = 0x481, "IA32_VMX_PINBASED_CTLS";
    VMX_PROCBASED_CTLS = 0x482, "IA32_VMX_PROCBASED_CTLS";
    VMX_EXIT_CTLS = 0x483, "IA32_VMX_EXIT_CTLS";
    VMX_ENTRY_CTLS = 0x484, "IA32_VMX_ENTRY_CTLS";
    VMX_MISC = 0x485, "IA32_VMX_MISC";
    VMX_CR0_FIXED0 = 0x486, "IA32_VMX_CR0_FIXED0";
    VMX_CR0_FIXED1 = 0x487, "IA32_VMX_CR0_FIXED1";
    VMX_CR4_FIXED0 = 0x488, "IA32_VMX_CR4_FIXED0";
    VMX_CR4_FIXED1 = 0x489, "IA32_VMX_CR4_FIXED1";
    VMX_VMCS_ENUM = 0x48a, "IA32_VMX_VMCS_ENUM";
    VMX_PROCBASED_CTLS2 = 0x48b, "IA32_VMX_PROCBASED_CTLS2";
    VMX_EPT_VPID_CAP = 0x48c, "IA32_VMX_EPT_VPID_CAP";
    VMX_TRUE_PINBASED_CTLS = 0x48d, "IA32_VMX_TRUE_PINBASED_CTLS";
    VMX_TRUE_PROCBASED_CTLS = 0x48e, "IA32_VMX_TRUE_PROCBASED_CTLS";
    VMX_TRUE_EXIT_CTLS = 0x48f, "IA32_VMX_TRUE_EXIT_CTLS";
    VMX_TRUE_ENTRY_CTLS = 0x490, "IA32_VMX_TRUE_ENTRY_CTLS";
    VMX_VMFUNC = 0x491, "IA32_VMX_VMFUNC";
    A_PMC0 = 0x4c1, "IA32_A_PMC0";
    A_PMC1 = 0x4c2, "IA32_A_PMC1";
    A_PMC2 = 0x4c3, "IA32_A_PMC2";
    A_PMC3 = 0x4c4, "IA32_A_PMC3";
    A_PMC4 = 0x4c5, "IA32_A_PMC4";
    A_PMC5 = 0x4c6, "IA32_A_PMC5";
    A_PMC6 = 0x4c7, "IA32_A_PMC6";
    A_PMC7 = 0x4c8, "IA32_A_PMC7";
    U_CET = 0x6a0, "IA32_U_CET";
    S_CET = 0x6a2, "IA32_S_CET";
    PL0_SSP = 0x6a4, "IA32_PL0_SSP";
    PL1_SSP = 0x6a5, "IA32_PL1_SSP";
    PL2_SSP = 0x6a6, "IA32_PL2_SSP";
    PL3_SSP = 0x6a7, "IA32_PL3_SSP";
    INTERRUPT_SSP_TABLE_ADDR = 0x6a8, "IA32_INTERRUPT_SSP_TABLE_ADDR";
    TSC_DEADLINE = 0x6e0, "IA32_TSC_DEADLINE";
    PKRS = 0x6e1, "IA32_PKRS";
    X2APIC_ID = 0x802, "IA32_X2APIC_APICID";
    X2APIC_VERSION = 0x803, "IA32_X2APIC_VERSION";
    X2APIC_TPR = 0x808, "IA32_X2APIC_TPR";
    X2APIC_PPR = 0x80a, "IA32_X2APIC_PPR";
    X2APIC_EOI = 0x80b, "IA32_X2APIC_EOI";
    X2APIC_LDR = 0x80d, "IA32_X2APIC_LDR";
    X2APIC_SIVR = 0x80f, "IA32_X2APIC_SIVR";
    X2APIC_ESR = 0x828, "IA32_X2APIC_ESR";
    X2APIC_ICR = 0x830, "IA32_X2APIC_ICR";
    X2APIC_LVT_TIMER = 0x832, "IA32_X2APIC_LVT_TIMER";
    X2APIC_INIT_COUNT = 0x838, "IA32_X2APIC_INIT_COUNT";
    X2APIC_CUR_COUNT = 0x839, "IA32_X2APIC_CUR_COUNT";
    X2APIC_DIV_CONF = 0x83e, "IA32_X2APIC_DIV_CONF";
    X2APIC_SELF_IPI = 0x83f, "IA32_X2APIC_SELF_IPI";
    XSS = 0xda0, "IA32_XSS";
    EFER = 0xc000_0080, "IA32_EFER";
    STAR = 0xc000_0081, "IA32_STAR";
    LSTAR = 0xc000_0082, "IA32_LSTAR";
    CSTAR = 0xc000_0083, "IA32_CSTAR";
    FMASK = 0xc000_0084, "IA32_FMASK";
    FS_BASE = 0xc000_0100, "IA32_FS_BASE";
    GS_BASE = 0xc000_0101, "IA32_GS_BASE";
    KERNEL_GS_BASE = 0xc000_0102, "IA32_KERNEL_GS_BASE";
    TSC_AUX = 0xc000_0103, "IA32_TSC_AUX";
    PERF_EVT_SEL0 = 0xc001_0000, "PerfEvtSel0";
    PERF_CTR3 = 0xc001_0007, "PerfCtr3";
    SYSCFG = 0xc001_0010, "SYSCFG";
    HWCR = 0xc001_0015, "HWCR";
    TOP_MEM = 0xc001_001a, "TOP_MEM";
    TOP_MEM2 = 0xc001_001d, "TOP_MEM2";
    NB_CFG = 0xc001_001f, "NB_CFG";
    OSVW_ID_LENGTH = 0xc001_0140, "OSVW_ID_Length";
    OSVW_STATUS = 0xc001_0141, "OSVW_Status";
    PERF_CTL0 = 0xc001_0200, "PERF_CTL0";
    EXT_PERF_CTR0 = 0xc001_0201, "PERF_CTR0";
    PERF_CTL1 = 0xc001_0202, "PERF_CTL1";
    EXT_PERF_CTR1 = 0xc001_0203, "PERF_CTR1";
    PERF_CTL2 = 0xc001_0204, "PERF_CTL2";
    EXT_PERF_CTR2 = 0xc001_0205, "PERF_CTR2";
    PERF_CTL3 = 0xc001_0206, "PERF_CTL3";
    EXT_PERF_CTR3 = 0xc001_0207, "PERF_CTR3";
    PERF_CTL4 = 0xc001_0208, "PERF_CTL4";
    EXT_PERF_CTR4 = 0xc001_0209, "PERF_CTR4";
    PERF_CTL5 = 0xc001_020a, "PERF_CTL5";
    EXT_PERF_CTR5 = 0xc001_020b, "PERF_CTR5";
    LS_CFG = 0xc001_1020, "LS_CFG";
    IC_CFG = 0xc001_1021, "IC_CFG";
    DC_CFG = 0xc001_1022, "DC_CFG";
    DE_CFG = 0xc001_1029, "DE_CFG";
    BU_CFG2 = 0xc001_102a, "BU_CFG2";
}

/// First x2APIC register: the others follow at the memory offset divided by sixteen.
pub const X2APIC_FIRST: u32 = 0x800;
/// Last x2APIC register.
pub const X2APIC_LAST: u32 = 0x8ff;

/// In APIC_BASE: this is the bootstrap processor.
pub const APIC_BASE_BSP: u64 = 1 << 8;
/// In APIC_BASE: x2APIC mode.
pub const APIC_BASE_X2APIC: u64 = 1 << 10;
/// In APIC_BASE: the local APIC is enabled.
pub const APIC_BASE_ENABLE: u64 = 1 << 11;
/// In FEATURE_CONTROL: the register is locked.
pub const FEATURE_CONTROL_LOCKED: u64 = 1 << 0;
/// In FEATURE_CONTROL: VMX outside SMX operation.
pub const FEATURE_CONTROL_VMX: u64 = 1 << 2;
/// In FEATURE_CONTROL: VMX in SMX operation.
pub const FEATURE_CONTROL_VMX_IN_SMX: u64 = 1 << 1;
/// In DEBUGCTL: last branches are recorded.
pub const DEBUGCTL_LBR: u64 = 1 << 0;
/// In DEBUGCTL: RFLAGS.TF traps branches, not instructions.
pub const DEBUGCTL_BTF: u64 = 1 << 1;
/// Bits of DEBUGCTL that are implemented here. No branches are recorded, because there are no registers for them.
pub const DEBUGCTL_BITS: u64 = DEBUGCTL_LBR | DEBUGCTL_BTF;
/// In DEBUGCTL: an interrupt of the counters freezes the records of last branches, of which there are none here.
pub const DEBUGCTL_FREEZE_LBRS_ON_PMI: u64 = 1 << 11;
/// In DEBUGCTL: an interrupt of the counters stops all of them.
pub const DEBUGCTL_FREEZE_PERFMON_ON_PMI: u64 = 1 << 12;
/// In ARCH_CAPABILITIES: the mitigation of gather data sampling can be controlled by MCU_OPT_CTRL.
pub const ARCH_CAPABILITIES_GDS_CTRL: u64 = 1 << 25;
/// In MCU_OPT_CTRL: gather data sampling is not mitigated.
pub const MCU_OPT_CTRL_GDS_MITG_DIS: u64 = 1 << 4;
/// In MCU_OPT_CTRL: the mitigation of gather data sampling is locked.
pub const MCU_OPT_CTRL_GDS_MITG_LOCK: u64 = 1 << 5;
/// In PRED_CMD: indirect branch prediction barrier.
pub const PRED_CMD_IBPB: u64 = 1 << 0;
/// In PRED_CMD of AMD: selective branch prediction barrier.
pub const PRED_CMD_SBPB: u64 = 1 << 7;
/// In MISC_ENABLE: performance counters are available.
pub const MISC_ENABLE_PERFMON: u64 = 1 << 7;
/// In PERF_CAPABILITIES: A_PMC0 and the registers after it write counters in their full width.
pub const PERF_CAPABILITIES_FULL_WIDTH: u64 = 1 << 13;
/// In MISC_ENABLE: MONITOR and MWAIT.
pub const MISC_ENABLE_MONITOR: u64 = 1 << 18;
/// In MISC_ENABLE: branch trace storage is unavailable.
pub const MISC_ENABLE_NO_BTS: u64 = 1 << 11;
/// In MISC_ENABLE: PEBS is unavailable.
pub const MISC_ENABLE_NO_PEBS: u64 = 1 << 12;
/// HWCR on AMD processors: the time-stamp counter counts at the frequency of state P0.
pub const HWCR_TSC_FREQ_SEL: u64 = 1 << 24;

/// First of the high registers of an MSR bitmap (SDM vol. 3, 24.6.9).
pub const BITMAP_HIGH: u32 = 0xc000_0000;
/// Number of registers in a part of an MSR bitmap.
pub const BITMAP_REGISTERS: u32 = 0x2000;
/// Size in bytes of a part of an MSR bitmap: reads of low registers, reads of high ones, writes of low ones, writes of
/// high ones.
pub const BITMAP_PART: usize = 1024;
