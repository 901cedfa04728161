//! Encodings of VMCS fields (SDM vol. 3, appendix B), and the components of an encoding (table 24-21).

named! { u32;
    VPID = 0x0000, "VPID";
    POSTED_INTERRUPT_VECTOR = 0x0002, "posted interrupt vector";
    EPTP_INDEX = 0x0004, "EPTP index";
    HLAT_PREFIX_SIZE = 0x0006, "HLAT prefix size";
    LAST_PID_POINTER_INDEX = 0x0008, "last PID pointer index";
    GUEST_ES_SELECTOR = 0x0800, "guest ES selector";
    GUEST_CS_SELECTOR = 0x0802, "guest CS selector";
    GUEST_SS_SELECTOR = 0x0804, "guest SS selector";
    GUEST_DS_SELECTOR = 0x0806, "guest DS selector";
    GUEST_FS_SELECTOR = 0x0808, "guest FS selector";
    GUEST_GS_SELECTOR = 0x080a, "guest GS selector";
    GUEST_LDTR_SELECTOR = 0x080c, "guest LDTR selector";
    GUEST_TR_SELECTOR = 0x080e, "guest TR selector";
    GUEST_INTERRUPT_STATUS = 0x0810, "guest interrupt status";
    PML_INDEX = 0x0812, "PML index";
    HOST_ES_SELECTOR = 0x0c00, "host ES selector";
    HOST_CS_SELECTOR = 0x0c02, "host CS selector";
    HOST_SS_SELECTOR = 0x0c04, "host SS selector";
    HOST_DS_SELECTOR = 0x0c06, "host DS selector";
    HOST_FS_SELECTOR = 0x0c08, "host FS selector";
    HOST_GS_SELECTOR = 0x0c0a, "host GS selector";
    HOST_TR_SELECTOR = 0x0c0c, "host TR selector";
    IO_BITMAP_A = 0x2000, "IO bitmap A";
    IO_BITMAP_B = 0x2002, "IO bitmap B";
    MSR_BITMAP = 0x2004, "MSR bitmap";
    EXIT_MSR_STORE_ADDRESS = 0x2006, "exit MSR store address";
    EXIT_MSR_LOAD_ADDRESS = 0x2008, "exit MSR load address";
    ENTRY_MSR_LOAD_ADDRESS = 0x200a, "entry MSR load address";
    EXECUTIVE_VMCS_POINTER = 0x200c, "executive VMCS pointer";
    PML_ADDRESS = 0x200e, "PML address";
    TSC_OFFSET = 0x2010, "TSC offset";
    VIRTUAL_APIC_ADDRESS = 0x2012, "virtual APIC address";
    APIC_ACCESS_ADDRESS = 0x2014, "APIC access address";
    POSTED_INTERRUPT_DESCRIPTOR = 0x2016, "posted interrupt descriptor";
    VM_FUNCTION_CONTROLS = 0x2018, "VM function controls";
    EPT_POINTER = 0x201a, "EPT pointer";
    EOI_EXIT_BITMAP_0 = 0x201c, "EOI exit bitmap 0";
    EOI_EXIT_BITMAP_1 = 0x201e, "EOI exit bitmap 1";
    EOI_EXIT_BITMAP_2 = 0x2020, "EOI exit bitmap 2";
    EOI_EXIT_BITMAP_3 = 0x2022, "EOI exit bitmap 3";
    EPTP_LIST_ADDRESS = 0x2024, "EPTP list address";
    VMREAD_BITMAP = 0x2026, "VMREAD bitmap";
    VMWRITE_BITMAP = 0x2028, "VMWRITE bitmap";
    VIRTUALIZATION_EXCEPTION_ADDRESS = 0x202a, "virtualization exception address";
    XSS_EXIT_BITMAP = 0x202c, "XSS exit bitmap";
    ENCLS_EXIT_BITMAP = 0x202e, "ENCLS exit bitmap";
    SUB_PAGE_PERMISSION_TABLE = 0x2030, "sub page permission table";
    TSC_MULTIPLIER = 0x2032, "TSC multiplier";
    GUEST_PHYSICAL_ADDRESS = 0x2400, "guest physical address";
    VMCS_LINK_POINTER = 0x2800, "VMCS link pointer";
    GUEST_DEBUGCTL = 0x2802, "guest DEBUGCTL";
    GUEST_PAT = 0x2804, "guest PAT";
    GUEST_EFER = 0x2806, "guest EFER";
    GUEST_PERF_GLOBAL_CTRL = 0x2808, "guest PERF global CTRL";
    GUEST_PDPTE0 = 0x280a, "guest PDPTE0";
    GUEST_PDPTE1 = 0x280c, "guest PDPTE1";
    GUEST_PDPTE2 = 0x280e, "guest PDPTE2";
    GUEST_PDPTE3 = 0x2810, "guest PDPTE3";
    GUEST_BNDCFGS = 0x2812, "guest BNDCFGS";
    GUEST_RTIT_CTL = 0x2814, "guest RTIT CTL";
    GUEST_PKRS = 0x2818, "guest PKRS";
    HOST_PAT = 0x2c00, "host PAT";
    HOST_EFER = 0x2c02, "host EFER";
    HOST_PERF_GLOBAL_CTRL = 0x2c04, "host PERF global CTRL";
    HOST_PKRS = 0x2c06, "host PKRS";
    PIN_BASED_CONTROLS = 0x4000, "pin based controls";
    PRIMARY_CONTROLS = 0x4002, "primary controls";
    EXCEPTION_BITMAP = 0x4004, "exception bitmap";
    PAGE_FAULT_ERROR_CODE_MASK = 0x4006, "page fault error code mask";
    PAGE_FAULT_ERROR_CODE_MATCH = 0x4008, "page fault error code match";
    CR3_TARGET_COUNT = 0x400a, "CR3 target count";
    EXIT_CONTROLS = 0x400c, "exit controls";
    EXIT_MSR_STORE_COUNT = 0x400e, "exit MSR store count";
    EXIT_MSR_LOAD_COUNT = 0x4010, "exit MSR load count";
    ENTRY_CONTROLS = 0x4012, "entry controls";
    ENTRY_MSR_LOAD_COUNT = 0x4014, "entry MSR load count";
    ENTRY_INTERRUPTION_INFORMATION = 0x4016, "entry interruption information";
    ENTRY_EXCEPTION_ERROR_CODE = 0x4018, "entry exception error code";
    ENTRY_INSTRUCTION_LENGTH = 0x401a, "entry instruction length";
    TPR_THRESHOLD = 0x401c, "TPR threshold";
    SECONDARY_CONTROLS = 0x401e, "secondary controls";
    PLE_GAP = 0x4020, "PLE gap";
    PLE_WINDOW = 0x4022, "PLE window";
    INSTRUCTION_ERROR = 0x4400, "instruction error";
    EXIT_REASON = 0x4402, "exit reason";
    EXIT_INTERRUPTION_INFORMATION = 0x4404, "exit interruption information";
    EXIT_INTERRUPTION_ERROR_CODE = 0x4406, "exit interruption error code";
    IDT_VECTORING_INFORMATION = 0x4408, "IDT vectoring information";
    IDT_VECTORING_ERROR_CODE = 0x440a, "IDT vectoring error code";
    EXIT_INSTRUCTION_LENGTH = 0x440c, "exit instruction length";
    EXIT_INSTRUCTION_INFORMATION = 0x440e, "exit instruction information";
    GUEST_ES_LIMIT = 0x4800, "guest ES limit";
    GUEST_CS_LIMIT = 0x4802, "guest CS limit";
    GUEST_SS_LIMIT = 0x4804, "guest SS limit";
    GUEST_DS_LIMIT = 0x4806, "guest DS limit";
    GUEST_FS_LIMIT = 0x4808, "guest FS limit";
    GUEST_GS_LIMIT = 0x480a, "guest GS limit";
    GUEST_LDTR_LIMIT = 0x480c, "guest LDTR limit";
    GUEST_TR_LIMIT = 0x480e, "guest TR limit";
    GUEST_GDTR_LIMIT = 0x4810, "guest GDTR limit";
    GUEST_IDTR_LIMIT = 0x4812, "guest IDTR limit";
    GUEST_ES_RIGHTS = 0x4814, "guest ES rights";
    GUEST_CS_RIGHTS = 0x4816, "guest CS rights";
    GUEST_SS_RIGHTS = 0x4818, "guest SS rights";
    GUEST_DS_RIGHTS = 0x481a, "guest DS rights";
    GUEST_FS_RIGHTS = 0x481c, "guest FS rights";
    GUEST_GS_RIGHTS = 0x481e, "guest GS rights";
    GUEST_LDTR_RIGHTS = 0x4820, "guest LDTR rights";
    GUEST_TR_RIGHTS = 0x4822, "guest TR rights";
    GUEST_INTERRUPTIBILITY_STATE = 0x4824, "guest interruptibility state";
    GUEST_ACTIVITY_STATE = 0x4826, "guest activity state";
    GUEST_SMBASE = 0x4828, "guest SMBASE";
    GUEST_SYSENTER_CS = 0x482a, "guest SYSENTER CS";
    PREEMPTION_TIMER_VALUE = 0x482e, "preemption timer value";
    HOST_SYSENTER_CS = 0x4c00, "host SYSENTER CS";
    CR0_GUEST_HOST_MASK = 0x6000, "CR0 guest host mask";
    CR4_GUEST_HOST_MASK = 0x6002, "CR4 guest host mask";
    CR0_READ_SHADOW = 0x6004, "CR0 read shadow";
    CR4_READ_SHADOW = 0x6006, "CR4 read shadow";
    CR3_TARGET_VALUE_0 = 0x6008, "CR3 target value 0";
    CR3_TARGET_VALUE_1 = 0x600a, "CR3 target value 1";
    CR3_TARGET_VALUE_2 = 0x600c, "CR3 target value 2";
    CR3_TARGET_VALUE_3 = 0x600e, "CR3 target value 3";
    EXIT_QUALIFICATION = 0x6400, "exit qualification";
    IO_RCX = 0x6402, "IO RCX";
    IO_RSI = 0x6404, "IO RSI";
    IO_RDI = 0x6406, "IO RDI";
    IO_RIP = 0x6408, "IO RIP";
    GUEST_LINEAR_ADDRESS = 0x640a, "guest linear address";
    GUEST_CR0 = 0x6800, "guest CR0";
    GUEST_CR3 = 0x6802, "guest CR3";
    GUEST_CR4 = 0x6804, "guest CR4";
    GUEST_ES_BASE = 0x6806, "guest ES base";
    GUEST_CS_BASE = 0x6808, "guest CS base";
    GUEST_SS_BASE = 0x680a, "guest SS base";
    GUEST_DS_BASE = 0x680c, "guest DS base";
    GUEST_FS_BASE = 0x680e, "guest FS base";
    GUEST_GS_BASE = 0x6810, "guest GS base";
    GUEST_LDTR_BASE = 0x6812, "guest LDTR base";
    GUEST_TR_BASE = 0x6814, "guest TR base";
    GUEST_GDTR_BASE = 0x6816, "guest GDTR base";
    GUEST_IDTR_BASE = 0x6818, "guest IDTR base";
    GUEST_DR7 = 0x681a, "guest DR7";
    GUEST_RSP = 0x681c, "guest RSP";
    GUEST_RIP = 0x681e, "guest RIP";
    GUEST_RFLAGS = 0x6820, "guest RFLAGS";
    GUEST_PENDING_DEBUG_EXCEPTIONS = 0x6822, "guest pending debug exceptions";
    GUEST_SYSENTER_ESP = 0x6824, "guest SYSENTER ESP";
    GUEST_SYSENTER_EIP = 0x6826, "guest SYSENTER EIP";
    GUEST_S_CET = 0x6828, "guest S CET";
    GUEST_SSP = 0x682a, "guest SSP";
    GUEST_INTERRUPT_SSP_TABLE_ADDRESS = 0x682c, "guest interrupt SSP table address";
    HOST_CR0 = 0x6c00, "host CR0";
    HOST_CR3 = 0x6c02, "host CR3";
    HOST_CR4 = 0x6c04, "host CR4";
    HOST_FS_BASE = 0x6c06, "host FS base";
    HOST_GS_BASE = 0x6c08, "host GS base";
    HOST_TR_BASE = 0x6c0a, "host TR base";
    HOST_GDTR_BASE = 0x6c0c, "host GDTR base";
    HOST_IDTR_BASE = 0x6c0e, "host IDTR base";
    HOST_SYSENTER_ESP = 0x6c10, "host SYSENTER ESP";
    HOST_SYSENTER_EIP = 0x6c12, "host SYSENTER EIP";
    HOST_RSP = 0x6c14, "host RSP";
    HOST_RIP = 0x6c16, "host RIP";
    HOST_S_CET = 0x6c18, "host S CET";
    HOST_SSP = 0x6c1a, "host SSP";
    HOST_INTERRUPT_SSP_TABLE_ADDRESS = 0x6c1c, "host interrupt SSP table address";
}

/// The upper half of a 64-bit field: access type high.
pub const HIGH: u32 = 1 << 0;
/// Bits 9:1: the index among fields of one width and type.
pub const INDEX_SHIFT: u32 = 1;
/// The index, after a shift by [`INDEX_SHIFT`].
pub const INDEX_MASK: u32 = 0x1ff;
/// Bits 11:10: the type; one of those of [`kind`].
pub const TYPE_SHIFT: u32 = 10;
/// Bits 14:13: the width; one of those of [`width`].
pub const WIDTH_SHIFT: u32 = 13;
/// Bits that are clear in all encodings.
pub const RESERVED: u32 = !0x6fff;

/// Returns a number for each encoding, composed of width, type and index, for indices in use; `None` for encodings that
/// no manual defines.
#[inline]
pub const fn number_of(encoding: u32) -> Option<usize> {
    let index = (encoding >> INDEX_SHIFT & INDEX_MASK) as usize;
    if encoding & (RESERVED | HIGH) != 0 || index >= INDICES {
        return None;
    }
    let place = (encoding >> WIDTH_SHIFT & 3) << 2 | encoding >> TYPE_SHIFT & 3;
    Some(place as usize * INDICES + index)
}

/// Limit of the indices in use.
pub const INDICES: usize = 32;
/// Limit of the results of [`number_of`].
pub const NUMBERS: usize = 16 * INDICES;

/// Types of fields.
pub mod kind {
    /// Control fields.
    pub const CONTROL: u32 = 0;
    /// Read-only data fields: VM-exit information.
    pub const INFORMATION: u32 = 1;
    /// Guest state.
    pub const GUEST: u32 = 2;
    /// Host state.
    pub const HOST: u32 = 3;
}

/// Widths of fields.
pub mod width {
    /// 16 bits.
    pub const WORD: u32 = 0;
    /// 64 bits.
    pub const QUAD: u32 = 1;
    /// 32 bits.
    pub const LONG: u32 = 2;
    /// Natural width of a register: 64 bits.
    pub const NATURAL: u32 = 3;
}
