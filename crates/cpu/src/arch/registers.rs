//! Registers with internal structure.

use serde::{Deserialize, Serialize};
use x86::{msr, rights};

/// Segment number for "base 0, no check": 64-bit accesses through CS, DS, ES and SS.
pub const SEG_FLAT: u8 = 6;

/// A segment register with its hidden part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Returns the descriptor privilege level.
    pub fn dpl(&self) -> u8 {
        (self.rights >> rights::DPL_SHIFT) as u8 & 3
    }

    /// Returns true if the segment can be used for accesses: it is unusable after a null selector or, in terms of VMX,
    /// a failed load.
    pub fn usable(&self) -> bool {
        self.rights & rights::UNUSABLE == 0
    }

    /// Returns a segment as after reset or a real-mode load: base = selector * 16, 64 KiB, writable data (or code for
    /// CS).
    pub fn real(selector: u16, code: bool) -> Self {
        let kind = rights::ACCESSED | rights::RW | if code { rights::CODE } else { 0 };
        Self { base: u64::from(selector) << 4, limit: 0xffff, rights: kind | rights::S | rights::P, selector }
    }
}

/// GDTR or IDTR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableRegister {
    /// Linear base.
    pub base: u64,
    /// Limit.
    pub limit: u16,
}

/// An 80-bit floating-point register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C)]
pub struct F80 {
    /// Explicit-integer-bit significand.
    pub significand: u64,
    /// Sign and exponent.
    pub sign_exponent: u16,
}

/// x87 state. `regs` are the physical registers R0-R7; ST(i) is `regs[(top + i) & 7]`. MMX register i is
/// `regs[i].significand`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct X87 {
    /// Physical registers.
    pub regs: [F80; 8],
    /// Control word.
    pub control: u16,
    /// Status word, with TOP in bits 13:11.
    pub status: u16,
    /// Bit i is set if physical register i is not empty (the abridged tag of FXSAVE).
    pub tags: u8,
    /// Last opcode (11 bits).
    pub opcode: u16,
    /// Last instruction pointer.
    pub ip: u64,
    /// CS of the last instruction.
    pub cs: u16,
    /// Last data pointer.
    pub dp: u64,
    /// Last data segment.
    pub ds: u16,
}

/// Vector registers and MXCSR. The layout is relied upon by the native vector stubs.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[repr(C, align(64))]
pub struct VectorState {
    /// YMM0-15; the low half is XMM.
    pub ymm: [[u64; 4]; 16],
    /// Bits 511:256 of ZMM0-15 (ZMM_Hi256). Use [`VectorState::upper_mut`] to write them.
    pub upper: [[u64; 4]; 16],
    /// ZMM16-31 (Hi16_ZMM).
    pub high: [[u64; 8]; 16],
    /// Opmask registers.
    pub k: [u64; 8],
    /// Control and status.
    pub mxcsr: u32,
    /// Known value of the host's MXCSR, or [`NOT_LOADED`]; not part of the state.
    #[serde(skip)]
    pub loaded: u32,
    /// 1 if bits 511:256 of all registers are known to be clear, else 0; not part of the state.
    #[serde(skip)]
    pub upper_is_clear: u64,
}

impl VectorState {
    /// Reset state: registers clear, floating-point exceptions masked.
    pub const RESET: Self = Self {
        ymm: [[0; 4]; 16],
        upper: [[0; 4]; 16],
        high: [[0; 8]; 16],
        k: [0; 8],
        mxcsr: 0x1f80,
        loaded: NOT_LOADED,
        upper_is_clear: 1,
    };

    /// Returns bits 511:256 of all registers for writing.
    #[inline]
    pub fn upper_mut(&mut self) -> &mut [[u64; 4]; 16] {
        self.upper_is_clear = 0;
        &mut self.upper
    }

    /// Returns true if bits 511:256 of some register are set.
    #[inline]
    pub fn upper_in_use(&mut self) -> bool {
        if self.upper_is_clear == 0 {
            self.upper_is_clear = u64::from(self.upper == [[0; 4]; 16]);
        }
        self.upper_is_clear == 0
    }

    /// Returns a whole register, ZMM0-31.
    #[inline]
    pub fn zmm(&self, number: u8) -> [u64; 8] {
        let n = usize::from(number & 15);
        if number & 16 != 0 {
            return self.high[n];
        }
        let mut value = [0; 8];
        value[..4].copy_from_slice(&self.ymm[n]);
        value[4..].copy_from_slice(&self.upper[n]);
        value
    }

    /// Clears bits 511:256 of a register, as VEX-encoded instructions do for their destination.
    #[inline(always)]
    pub fn clear_upper(&mut self, number: u8) {
        self.upper[usize::from(number & 15)] = [0; 4];
    }

    /// Sets a whole register, ZMM0-31.
    #[inline]
    pub fn set_zmm(&mut self, number: u8, value: &[u64; 8]) {
        let n = usize::from(number & 15);
        if number & 16 != 0 {
            self.high[n] = *value;
            return;
        }
        self.ymm[n].copy_from_slice(&value[..4]);
        self.upper_mut()[n].copy_from_slice(&value[4..]);
    }
}

impl PartialEq for VectorState {
    fn eq(&self, other: &Self) -> bool {
        let registers = |s: &Self| (s.ymm, s.upper, s.high, s.k, s.mxcsr);
        registers(self) == registers(other)
    }
}

/// Marks the host's MXCSR as unknown: compiled code may have changed it.
pub const NOT_LOADED: u32 = 0;

/// AMD's configuration registers that have no effect: SYSCFG, HWCR, TOP_MEM, TOP_MEM2, NB_CFG, LS_CFG, IC_CFG, DC_CFG,
/// BU_CFG2, DE_CFG, OSVW length and status.
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

/// Values of [`AMD_REGISTERS`] at power-on.
pub const AMD_RESET: [u64; AMD_REGISTERS.len()] = [0, msr::HWCR_TSC_FREQ_SEL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Model-specific registers of the processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Difference between the TSC and the clock's cycles.
    pub tsc_offset: u64,
    /// IA32_XSS.
    pub xss: u64,
    /// IA32_U_CET.
    pub u_cet: u64,
    /// IA32_S_CET.
    pub s_cet: u64,
    /// IA32_PL0_SSP to IA32_PL3_SSP.
    pub pl_ssp: [u64; 4],
    /// IA32_INTERRUPT_SSP_TABLE_ADDR.
    pub interrupt_ssp_table: u64,
    /// IA32_XFD.
    pub xfd: u64,
    /// IA32_XFD_ERR.
    pub xfd_err: u64,
    /// IA32_PKRS.
    pub pkrs: u64,
    /// IA32_SPEC_CTRL.
    pub spec_ctrl: u64,
    /// IA32_MCU_OPT_CTRL.
    pub mcu_opt_ctrl: u64,
    /// MSR_POWER_CTL, which has no effect.
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
    /// IA32_FEATURE_CONTROL.
    pub feature_control: u64,
    /// IA32_MTRR_DEF_TYPE.
    pub mtrr_def_type: u64,
    /// Fixed-range MTRRs in the order 64K, 16K (2), 4K (8).
    pub mtrr_fixed: [u64; 11],
    /// Variable-range MTRR base/mask pairs.
    pub mtrr_variable: [u64; 16],
}
