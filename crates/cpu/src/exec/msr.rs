//! Model-specific registers that the processor holds itself. The board holds those of the local APIC.

use crate::arch::{AMD_REGISTERS, Msrs, attention};
use crate::capability::Capability;
use crate::fault::{Exec, Flow};
use crate::op::Op;
use crate::row::{Row, Treatment};
use crate::state::Cpu;
use crate::vmx::{DeviceAccess, Flush};
use iced_x86::Mnemonic::*;
use ledger::{Class, Family, Kind};
use x86::control::*;
use x86::msr::*;
use x86::{reg, seg};

/// Instruction table rows of MSR access.
pub static ROWS: &[Row] = &[
    Row::end(Rdmsr, Class::System, |_, _| Some(rdmsr)),
    Row::end(Wrmsr, Class::System, |_, _| Some(wrmsr)).treated(Treatment::WriteMsr).of_system(),
];

/// Fixed-range MTRRs in the order of [`Msrs::mtrr_fixed`].
const MTRR_FIXED: [u32; 11] = [
    MTRR_FIX64K_00000,
    MTRR_FIX16K_80000,
    MTRR_FIX16K_A0000,
    MTRR_FIX4K_C0000,
    MTRR_FIX4K_C8000,
    MTRR_FIX4K_D0000,
    MTRR_FIX4K_D8000,
    MTRR_FIX4K_E0000,
    MTRR_FIX4K_E8000,
    MTRR_FIX4K_F0000,
    MTRR_FIX4K_F8000,
];
/// MTRRcap: eight variable ranges, fixed ranges, write-combining.
const MTRR_CAP_VALUE: u64 = 0x508;
/// PKG_CST_CONFIG_CONTROL as set by firmware: locked, no package sleep states.
const PACKAGE_STATES_LOCKED: u64 = 1 << 15;
/// MISC_ENABLE: branch trace storage and PEBS are unavailable.
const MISC_ENABLE_FIXED: u64 = MISC_ENABLE_NO_BTS | MISC_ENABLE_NO_PEBS;
/// Writable bits of MISC_ENABLE.
const MISC_ENABLE_WRITABLE: u64 = 1 | 1 << 3 | 1 << 16 | 1 << 18 | 1 << 22 | 1 << 23 | 1 << 34 | 1 << 38;

/// Values that may be written to a plain register.
#[derive(Clone, Copy)]
enum Check {
    /// Values within these bits.
    Bits(u64),
    /// A canonical address.
    Canonical,
}

/// A register without side effects.
struct Plain {
    index: u32,
    field: fn(&mut Msrs) -> &mut u64,
    check: Check,
    /// Capability that the model must have.
    needs: Option<Capability>,
}

const LOW: Check = Check::Bits(0xffff_ffff);

static PLAIN: &[Plain] = &[
    Plain { index: MISC_FEATURES_ENABLES, field: |m| &mut m.misc_features, check: Check::Bits(1), needs: None },
    Plain { index: SYSENTER_CS, field: |m| &mut m.sysenter_cs, check: LOW, needs: Some(Capability::Sep) },
    Plain {
        index: SYSENTER_ESP,
        field: |m| &mut m.sysenter_esp,
        check: Check::Canonical,
        needs: Some(Capability::Sep),
    },
    Plain {
        index: SYSENTER_EIP,
        field: |m| &mut m.sysenter_eip,
        check: Check::Canonical,
        needs: Some(Capability::Sep),
    },
    Plain { index: MCG_STATUS, field: |m| &mut m.mcg_status, check: Check::Bits(0), needs: Some(Capability::Mce) },
    Plain { index: STAR, field: |m| &mut m.star, check: Check::Bits(!0), needs: Some(Capability::LongMode) },
    Plain { index: LSTAR, field: |m| &mut m.lstar, check: Check::Canonical, needs: Some(Capability::LongMode) },
    Plain { index: CSTAR, field: |m| &mut m.cstar, check: Check::Canonical, needs: Some(Capability::LongMode) },
    Plain { index: FMASK, field: |m| &mut m.fmask, check: LOW, needs: Some(Capability::LongMode) },
    Plain {
        index: KERNEL_GS_BASE,
        field: |m| &mut m.kernel_gs_base,
        check: Check::Canonical,
        needs: Some(Capability::LongMode),
    },
];

fn memory_type(kind: u64) -> bool {
    matches!(kind, 0 | 1 | 4 | 5 | 6)
}

/// Returns true if a value is valid for IA32_PAT.
pub(crate) fn good_pat(value: u64) -> bool {
    each_byte(value, |kind| memory_type(kind) || kind == 7)
}

fn each_byte(value: u64, good: impl Fn(u64) -> bool) -> bool {
    value.to_le_bytes().iter().all(|b| good(u64::from(*b)))
}

/// Returns true if the board holds a register.
fn on_board(cpu: &Cpu, index: u32) -> bool {
    match index {
        APIC_BASE => true,
        TSC_DEADLINE => cpu.wiring.capabilities.has(Capability::TscDeadline),
        X2APIC_FIRST..=X2APIC_LAST => cpu.wiring.capabilities.has(Capability::X2apic),
        _ => false,
    }
}

impl Cpu {
    /// Reads a model-specific register. Returns `None` for #GP.
    pub(crate) fn read_msr(&mut self, index: u32) -> Option<u64> {
        if on_board(self, index) {
            self.note_device(DeviceAccess::Msr { index, write: false });
            let who = self.ident();
            let value = self.wiring.bus().msr_read(who, index);
            self.attend(attention::BUS);
            return value;
        }
        if let Some(plain) = self.plain(index) {
            return Some(*(plain.field)(&mut self.arch.msr));
        }
        if let Some(value) = self.read_counter_msr(index) {
            return Some(value);
        }
        let capabilities = self.wiring.capabilities;
        let when = |needed, value| if capabilities.has(needed) { Some(value) } else { None };
        match index {
            TSC => Some(self.tsc()),
            DEBUGCTL => Some(self.arch.msr.debugctl),
            PLATFORM_ID if !capabilities.shows_amd => Some(0),
            FEATURE_CONTROL if !capabilities.shows_amd => Some(self.arch.msr.feature_control),
            VMX_BASIC..=VMX_VMFUNC => self.vmx_msr(index),
            TSC_ADJUST => when(Capability::TscAdjust, self.arch.msr.tsc_adjust),
            SPEC_CTRL if self.spec_ctrl_bits() != 0 => Some(self.arch.msr.spec_ctrl),
            BIOS_SIGN_ID => {
                let revision = u64::from(self.wiring.model.microcode);
                Some(if capabilities.shows_amd { revision } else { revision << 32 })
            }
            MCU_OPT_CTRL if self.mcu_opt_ctrl_bits() != 0 => Some(self.arch.msr.mcu_opt_ctrl),
            PLATFORM_INFO if !capabilities.shows_amd => Some((self.wiring.model.tsc_hz / 100_000_000) << 8 | 1 << 31),
            PKG_CST_CONFIG_CONTROL if self.intel_idle() => Some(PACKAGE_STATES_LOCKED),
            POWER_CTL if self.intel_idle() => Some(self.arch.msr.power_ctl),
            MTRR_CAP => when(Capability::Mtrr, MTRR_CAP_VALUE),
            CORE_CAPABILITIES => when(Capability::CoreCapabilities, 0),
            ARCH_CAPABILITIES => when(Capability::ArchCapabilities, self.wiring.model.arch_capabilities),
            MCG_CAP => when(Capability::Mce, 0),
            MISC_ENABLE if !capabilities.shows_amd => {
                let counters = if self.wiring.pmu.is_some() { MISC_ENABLE_PERFMON } else { 0 };
                Some(self.arch.msr.misc_enable | MISC_ENABLE_FIXED | counters)
            }
            MTRR_PHYS_BASE0..=MTRR_PHYS_MASK7 => {
                when(Capability::Mtrr, self.arch.msr.mtrr_variable[(index - MTRR_PHYS_BASE0) as usize])
            }
            // There are no performance events: counters read as zero.
            PERF_EVT_SEL0..=PERF_CTR3 if capabilities.shows_amd => Some(0),
            PAT => when(Capability::Pat, self.arch.msr.pat),
            MTRR_DEF_TYPE => when(Capability::Mtrr, self.arch.msr.mtrr_def_type),
            PKRS => when(Capability::Pks, self.arch.msr.pkrs),
            XSS => when(Capability::Xsaves, self.arch.msr.xss),
            U_CET if self.has_cet() => Some(self.arch.msr.u_cet),
            S_CET if self.has_cet() => Some(self.arch.msr.s_cet),
            PL0_SSP..=PL3_SSP => when(Capability::CetSs, self.arch.msr.pl_ssp[(index - PL0_SSP) as usize]),
            INTERRUPT_SSP_TABLE_ADDR => when(Capability::CetSs, self.arch.msr.interrupt_ssp_table),
            XFD => when(Capability::Xfd, self.arch.msr.xfd),
            XFD_ERR => when(Capability::Xfd, self.arch.msr.xfd_err),
            EFER if capabilities.has(Capability::LongMode) || capabilities.has(Capability::Nx) => {
                Some(self.arch.msr.efer)
            }
            FS_BASE => when(Capability::LongMode, self.arch.seg[usize::from(seg::FS)].base),
            GS_BASE => when(Capability::LongMode, self.arch.seg[usize::from(seg::GS)].base),
            TSC_AUX if capabilities.has(Capability::Rdtscp) || capabilities.has(Capability::Rdpid) => {
                Some(self.arch.msr.tsc_aux)
            }
            _ => self.other(index).map(|slot| *slot),
        }
    }

    /// Returns the plain register with this index, if the model has it.
    fn plain(&self, index: u32) -> Option<&'static Plain> {
        let plain = PLAIN.iter().find(|p| p.index == index)?;
        plain.needs.is_none_or(|f| self.wiring.capabilities.has(f)).then_some(plain)
    }

    /// Returns a fixed MTRR or an AMD configuration register.
    fn other(&mut self, index: u32) -> Option<&mut u64> {
        if self.wiring.capabilities.has(Capability::Mtrr)
            && let Some(i) = MTRR_FIXED.iter().position(|m| *m == index)
        {
            return Some(&mut self.arch.msr.mtrr_fixed[i]);
        }
        let i = AMD_REGISTERS.iter().position(|m| *m == index).filter(|_| self.wiring.capabilities.shows_amd)?;
        Some(&mut self.arch.msr.amd[i])
    }

    /// Returns true if the model has the registers of Intel's sleep states, which MWAIT enters.
    fn intel_idle(&self) -> bool {
        !self.wiring.capabilities.shows_amd && self.wiring.capabilities.has(Capability::Monitor)
    }

    /// Returns the bits of IA32_SPEC_CTRL that exist.
    pub(crate) fn spec_ctrl_bits(&self) -> u64 {
        use Capability::*;
        const BITS: &[(Capability, u64)] =
            &[(SpecCtrl, 1), (AmdIbrs, 1), (Stibp, 2), (AmdStibp, 2), (Ssbd, 4), (AmdSsbd, 4)];
        let bits = BITS.iter().filter(|(f, _)| self.wiring.capabilities.has(*f)).fold(0, |all, (_, bit)| all | bit);
        let more = self.wiring.model.leaf(7, 2).map_or(0, |r| r.edx);
        // PSFD, IPRED_CTRL, RRSBA_CTRL, BHI_CTRL.
        const MORE: [(u32, u64); 4] = [(0, 1 << 7), (1, 3 << 3), (2, 3 << 5), (4, 1 << 10)];
        MORE.iter().filter(|(bit, _)| more >> bit & 1 != 0).fold(bits, |all, (_, bits)| all | bits)
    }

    /// Returns the bits of IA32_MCU_OPT_CTRL that exist: those of gather data sampling.
    fn mcu_opt_ctrl_bits(&self) -> u64 {
        let reported = self.wiring.capabilities.has(Capability::ArchCapabilities);
        let controls = self.wiring.model.arch_capabilities & ARCH_CAPABILITIES_GDS_CTRL != 0;
        if reported && controls { MCU_OPT_CTRL_GDS_MITG_DIS | MCU_OPT_CTRL_GDS_MITG_LOCK } else { 0 }
    }

    /// Writes a model-specific register. Returns false for #GP.
    pub(crate) fn write_msr(&mut self, index: u32, value: u64) -> bool {
        if on_board(self, index) {
            self.note_device(DeviceAccess::Msr { index, write: true });
            let who = self.ident();
            let good = self.wiring.bus().msr_write(who, index, value);
            self.attend(attention::BUS);
            return good;
        }
        if let Some(plain) = self.plain(index) {
            let good = match plain.check {
                Check::Bits(bits) => value & !bits == 0,
                Check::Canonical => self.canonical_base(value),
            };
            if good {
                *(plain.field)(&mut self.arch.msr) = value;
            }
            return good;
        }
        if let Some(good) = self.write_counter_msr(index, value) {
            return good;
        }
        let capabilities = self.wiring.capabilities;
        match index {
            DEBUGCTL => {
                let good = value & !self.debugctl_bits() == 0;
                if good {
                    self.arch.msr.debugctl = value;
                }
                good
            }
            TSC => {
                let delta = value.wrapping_sub(self.machine_tsc());
                self.arch.msr.tsc_offset = self.arch.msr.tsc_offset.wrapping_add(delta);
                self.arch.msr.tsc_adjust = self.arch.msr.tsc_adjust.wrapping_add(delta);
                true
            }
            TSC_ADJUST if capabilities.has(Capability::TscAdjust) => {
                let delta = value.wrapping_sub(self.arch.msr.tsc_adjust);
                self.arch.msr.tsc_offset = self.arch.msr.tsc_offset.wrapping_add(delta);
                self.arch.msr.tsc_adjust = value;
                true
            }
            SPEC_CTRL if self.spec_ctrl_bits() != 0 => {
                let good = value & !self.spec_ctrl_bits() == 0;
                if good {
                    self.arch.msr.spec_ctrl = value;
                }
                good
            }
            PERF_EVT_SEL0..=PERF_CTR3 if capabilities.shows_amd => true,
            PRED_CMD if capabilities.has(Capability::SpecCtrl) || capabilities.has(Capability::AmdIbpb) => {
                let allowed = PRED_CMD_IBPB | if capabilities.has(Capability::Sbpb) { PRED_CMD_SBPB } else { 0 };
                let good = value & !allowed == 0;
                if good && value != 0 {
                    self.micro.predictor.barrier();
                }
                good
            }
            FLUSH_CMD if capabilities.has(Capability::FlushL1d) => value & !1 == 0,
            MCU_OPT_CTRL if self.mcu_opt_ctrl_bits() != 0 => {
                let good = value & !self.mcu_opt_ctrl_bits() == 0;
                let locked = self.arch.msr.mcu_opt_ctrl & MCU_OPT_CTRL_GDS_MITG_LOCK != 0;
                if good && !locked {
                    // A lock leaves the mitigation enabled.
                    let lock = value & MCU_OPT_CTRL_GDS_MITG_LOCK;
                    self.arch.msr.mcu_opt_ctrl = if lock != 0 { lock } else { value };
                }
                good
            }
            POWER_CTL if self.intel_idle() => {
                self.arch.msr.power_ctl = value;
                true
            }
            FEATURE_CONTROL if self.wiring.model.vmx.is_some() => {
                const WRITABLE: u64 = FEATURE_CONTROL_LOCKED | FEATURE_CONTROL_VMX;
                let good = self.arch.msr.feature_control & FEATURE_CONTROL_LOCKED == 0 && value & !WRITABLE == 0;
                if good {
                    self.arch.msr.feature_control = value;
                }
                good
            }
            // A write starts the sequence that reads the revision.
            BIOS_SIGN_ID => true,
            MISC_ENABLE if !capabilities.shows_amd => {
                let counters = if self.wiring.pmu.is_some() { MISC_ENABLE_PERFMON } else { 0 };
                let good = value & !(MISC_ENABLE_WRITABLE | MISC_ENABLE_FIXED | counters) == 0;
                if good {
                    self.arch.msr.misc_enable = value & MISC_ENABLE_WRITABLE;
                }
                good
            }
            EFER if capabilities.has(Capability::LongMode) || capabilities.has(Capability::Nx) => {
                self.write_efer(value)
            }
            FS_BASE | GS_BASE if capabilities.has(Capability::LongMode) && self.canonical_base(value) => {
                let which = if index == FS_BASE { seg::FS } else { seg::GS };
                self.arch.seg[usize::from(which)].base = value;
                true
            }
            TSC_AUX if capabilities.has(Capability::Rdtscp) || capabilities.has(Capability::Rdpid) => {
                let good = value >> 32 == 0;
                if good {
                    self.arch.msr.tsc_aux = value;
                }
                good
            }
            PKRS if capabilities.has(Capability::Pks) && value >> 32 == 0 => {
                self.arch.msr.pkrs = value;
                self.mapping_changed();
                true
            }
            XSS if capabilities.has(Capability::Xsaves) => {
                let good = value & !self.wiring.xstate.supervisor == 0;
                if good {
                    self.arch.msr.xss = value;
                }
                good
            }
            U_CET | S_CET if self.has_cet() => {
                let good = self.good_cet_control(value);
                if good {
                    *(if index == U_CET { &mut self.arch.msr.u_cet } else { &mut self.arch.msr.s_cet }) = value;
                    self.mode_changed();
                }
                good
            }
            PL0_SSP..=PL3_SSP if capabilities.has(Capability::CetSs) => {
                let good = value & 3 == 0 && self.canonical_base(value);
                if good {
                    self.arch.msr.pl_ssp[(index - PL0_SSP) as usize] = value;
                }
                good
            }
            INTERRUPT_SSP_TABLE_ADDR if capabilities.has(Capability::CetSs) => {
                let good = self.canonical_base(value);
                if good {
                    self.arch.msr.interrupt_ssp_table = value;
                }
                good
            }
            XFD | XFD_ERR if capabilities.has(Capability::Xfd) => {
                let good = value & !self.wiring.xstate.disablable == 0;
                let register = if index == XFD { &mut self.arch.msr.xfd } else { &mut self.arch.msr.xfd_err };
                if good {
                    *register = value;
                }
                good
            }
            PAT if capabilities.has(Capability::Pat) => {
                let good = good_pat(value);
                if good {
                    self.arch.msr.pat = value;
                }
                good
            }
            _ => self.write_range(index, value),
        }
    }

    /// Writes MTRRs and AMD's configuration registers.
    fn write_range(&mut self, index: u32, value: u64) -> bool {
        let beyond = self.beyond_physical();
        let mtrr = self.wiring.capabilities.has(Capability::Mtrr);
        match index {
            MTRR_PHYS_BASE0..=MTRR_PHYS_MASK7 if mtrr => {
                let base = index & 1 == 0;
                let good = if base { memory_type(value & 0xff) && value & 0xf00 == 0 } else { value & 0x7ff == 0 };
                if good && value & beyond == 0 {
                    self.arch.msr.mtrr_variable[(index - MTRR_PHYS_BASE0) as usize] = value;
                }
                good && value & beyond == 0
            }
            MTRR_DEF_TYPE if mtrr => {
                let good = value & !0xcff == 0 && memory_type(value & 0xff);
                if good {
                    self.arch.msr.mtrr_def_type = value;
                }
                good
            }
            _ => {
                let fixed = MTRR_FIXED.contains(&index);
                if fixed && !each_byte(value, memory_type) {
                    return false;
                }
                match self.other(index) {
                    Some(slot) => {
                        *slot = value;
                        true
                    }
                    None => false,
                }
            }
        }
    }

    /// Returns the bits of IA32_EFER that exist.
    pub(crate) fn efer_bits(&self) -> u64 {
        let capabilities = self.wiring.capabilities;
        let mut known = EFER_LMA;
        for (feature, bit) in [
            (Capability::Syscall, EFER_SCE),
            (Capability::LongMode, EFER_LME),
            (Capability::Nx, EFER_NXE),
            (Capability::Ffxsr, 1 << 14),
        ] {
            known |= if capabilities.has(feature) { bit } else { 0 };
        }
        known
    }

    /// Writes IA32_EFER as WRMSR does. Returns false, without any change, if WRMSR would fault.
    pub fn write_efer(&mut self, value: u64) -> bool {
        let known = self.efer_bits();
        let changed = self.arch.msr.efer ^ value;
        if value & !known != 0 || (changed & EFER_LME != 0 && self.arch.cr0 & CR0_PG != 0) {
            return false;
        }
        self.arch.msr.efer = (value & !EFER_LMA) | (self.arch.msr.efer & EFER_LMA);
        if changed & EFER_NXE != 0 {
            // Cached translations contain the execute permission that was computed with the old setting.
            self.flush_tlb(Flush::All);
        }
        self.mapping_changed();
        self.mode_changed();
        true
    }
}

fn rdmsr(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    cpu.privileged()?;
    let index = cpu.get::<u32>(reg::RCX);
    cpu.msr_exit(index, false)?;
    if index == TSC {
        cpu.in_time_order(Class::System)?;
    }
    if cpu.is_counter_msr(index) {
        cpu.settled()?;
    }
    let found = cpu.virtual_x2apic_read(index).or_else(|| cpu.read_msr(index));
    let Some(value) = found else { return Err(cpu.gp(0)) };
    cpu.charge(Kind::new(Family::Rdmsr, index), 1);
    cpu.set::<u32>(reg::RAX, value as u32);
    cpu.set::<u32>(reg::RDX, (value >> 32) as u32);
    Ok(Flow::End)
}

fn wrmsr(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    cpu.privileged()?;
    let index = cpu.get::<u32>(reg::RCX);
    let value = u64::from(cpu.get::<u32>(reg::RDX)) << 32 | u64::from(cpu.get::<u32>(reg::RAX));
    cpu.msr_exit(index, true)?;
    if cpu.is_counter_msr(index) {
        cpu.settled()?;
    }
    let written = cpu.virtual_x2apic_write(index, value);
    if !written.unwrap_or_else(|| cpu.write_msr(index, value)) {
        return Err(cpu.gp(0));
    }
    let kind = Kind::new(Family::Wrmsr, index);
    if kind.is_mitigation() {
        cpu.charge_mitigation(kind)
    } else {
        cpu.charge(kind, 1)
    }
    Ok(Flow::End)
}
