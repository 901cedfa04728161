//! VMX capabilities: controls and features that software may use, as the capability MSRs say (SDM vol. 3, appendix A).
//! The profile gives those of the real processor; features that are not executed here are removed.

use ledger::profile::{AllowedSettings, Vmx};
use x86::control::{CR0_NE, CR0_PE, CR0_PG};
use x86::vmx::capability::{ept_vpid, misc};
use x86::vmx::{entry, exit, pin, primary, secondary};

/// Controls of the default1 class, which software sets unless it reads the TRUE capability MSRs (SDM vol. 3, A.2).
mod default1 {
    pub const PIN: u32 = 0x16;
    pub const PRIMARY: u32 = 0x0401_e172;
    pub const EXIT: u32 = 0x0003_6dff;
    pub const ENTRY: u32 = 0x0000_11ff;
}

/// Controls that are executed, except those that are always 1.
pub(super) mod executed {
    use super::{entry, exit, pin, primary, secondary};

    pub const PIN: u32 =
        pin::EXTERNAL_INTERRUPT | pin::NMI | pin::VIRTUAL_NMIS | pin::PREEMPTION_TIMER | pin::POSTED_INTERRUPTS;
    pub const PRIMARY: u32 = primary::INTERRUPT_WINDOW
        | primary::TSC_OFFSETTING
        | primary::HLT
        | primary::INVLPG
        | primary::MWAIT
        | primary::RDPMC
        | primary::RDTSC
        | primary::CR3_LOAD
        | primary::CR3_STORE
        | primary::CR8_LOAD
        | primary::CR8_STORE
        | primary::TPR_SHADOW
        | primary::NMI_WINDOW
        | primary::MOV_DR
        | primary::UNCONDITIONAL_IO
        | primary::IO_BITMAPS
        | primary::MONITOR_TRAP
        | primary::MSR_BITMAPS
        | primary::MONITOR
        | primary::PAUSE
        | primary::SECONDARY;
    pub const SECONDARY: u32 = secondary::APIC_ACCESSES
        | secondary::EPT
        | secondary::DESCRIPTOR_TABLE
        | secondary::RDTSCP
        | secondary::X2APIC
        | secondary::VPID
        | secondary::WBINVD
        | secondary::UNRESTRICTED_GUEST
        | secondary::APIC_REGISTERS
        | secondary::VIRTUAL_INTERRUPTS
        | secondary::PAUSE_LOOP
        | secondary::RDRAND
        | secondary::INVPCID
        | secondary::VM_FUNCTIONS
        | secondary::VMCS_SHADOWING
        | secondary::RDSEED
        | secondary::PML
        | secondary::EPT_VIOLATION_VE
        | secondary::XSAVES
        | secondary::MODE_BASED_EXECUTE
        | secondary::TSC_SCALING;
    pub const EXIT: u32 = exit::SAVE_DEBUG
        | exit::HOST_64
        | exit::ACKNOWLEDGE_INTERRUPT
        | exit::SAVE_PAT
        | exit::LOAD_PAT
        | exit::SAVE_EFER
        | exit::LOAD_EFER
        | exit::SAVE_PREEMPTION_TIMER
        | exit::LOAD_CET;
    pub const ENTRY: u32 =
        entry::LOAD_DEBUG | entry::IA32E_GUEST | entry::LOAD_PAT | entry::LOAD_EFER | entry::LOAD_CET;
    /// Executed features in IA32_VMX_MISC, without its numeric fields.
    pub const MISC: u64 = {
        use super::misc::*;
        SAVES_LMA | HLT | SHUTDOWN | WAIT_FOR_SIPI | VMWRITE_ANY | LENGTH_0
    };
    /// Executed features in IA32_VMX_EPT_VPID_CAP.
    pub const EPT_VPID: u64 = {
        use super::ept_vpid::*;
        EXECUTE_ONLY
            | FOUR_LEVELS
            | UNCACHEABLE
            | WRITE_BACK
            | PAGES_2M
            | PAGES_1G
            | INVEPT
            | ACCESSED_DIRTY
            | ADVANCED_INFORMATION
            | INVEPT_SINGLE
            | INVEPT_ALL
            | INVVPID
            | INVVPID_ADDRESS
            | INVVPID_SINGLE
            | INVVPID_ALL
            | INVVPID_RETAINING_GLOBALS
    };
}

/// Allowed settings of a word of controls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bits that must be set according to the plain capability MSR.
    plain: u32,
    /// Bits that must be set.
    must: u32,
    /// Bits that may be set.
    may: u32,
}

impl Settings {
    fn of(allowed: AllowedSettings, default1: u32, executed: u32) -> Self {
        Self {
            plain: allowed.allowed_0,
            must: allowed.true_allowed_0.unwrap_or(allowed.allowed_0),
            may: allowed.allowed_1 & (default1 | executed),
        }
    }

    /// Returns true if a word of controls may have this value.
    pub fn admits(&self, value: u32) -> bool {
        value & self.must == self.must && value & !self.may == 0
    }

    /// Returns true if a control may be set.
    pub fn offers(&self, control: u32) -> bool {
        self.may & control == control
    }

    /// Returns the value of the capability MSR, or of the TRUE one.
    pub(super) fn register(&self, of_true: bool) -> u64 {
        u64::from(self.may) << 32 | u64::from(if of_true { self.must } else { self.plain })
    }
}

/// VMX features that software may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmxCapabilities {
    /// VMCS revision identifier.
    pub revision: u32,
    /// True if the TRUE capability MSRs exist.
    pub has_true: bool,
    /// Pin-based controls.
    pub pin: Settings,
    /// Primary processor-based controls.
    pub primary: Settings,
    /// Secondary processor-based controls.
    pub secondary: Settings,
    /// VM-exit controls.
    pub exit: Settings,
    /// VM-entry controls.
    pub entry: Settings,
    /// IA32_VMX_MISC.
    pub misc: u64,
    /// IA32_VMX_EPT_VPID_CAP; 0 if it does not exist.
    pub ept_vpid: u64,
}

impl VmxCapabilities {
    /// Returns the features of a processor that are executed.
    pub fn of(vmx: &Vmx) -> Self {
        let numbers = misc::TIMER_RATE | 0x1ff << misc::CR3_TARGETS_SHIFT | 7 << misc::MSR_LIST_SHIFT;
        let secondary = Settings::of(vmx.secondary.value, 0, executed::SECONDARY);
        let paging = secondary.may & (secondary::EPT | secondary::VPID) != 0;
        let words = [&vmx.pin, &vmx.primary, &vmx.exit, &vmx.entry];
        Self {
            revision: vmx.revision.value,
            has_true: words.iter().any(|word| word.value.true_allowed_0.is_some()),
            pin: Settings::of(vmx.pin.value, default1::PIN, executed::PIN),
            primary: Settings::of(vmx.primary.value, default1::PRIMARY, executed::PRIMARY),
            secondary,
            exit: Settings::of(vmx.exit.value, default1::EXIT, executed::EXIT),
            entry: Settings::of(vmx.entry.value, default1::ENTRY, executed::ENTRY),
            misc: vmx.misc.value & (numbers | executed::MISC),
            ept_vpid: if paging { vmx.ept_vpid.value & executed::EPT_VPID } else { 0 },
        }
    }

    /// All executed features, without required bits: those of the board's hypervisor, which runs outside the machine.
    pub const EXECUTED: Self = {
        const fn any(may: u32) -> Settings {
            Settings { plain: 0, must: 0, may }
        }
        Self {
            revision: 0,
            has_true: true,
            pin: any(executed::PIN),
            primary: any(executed::PRIMARY),
            secondary: any(executed::SECONDARY),
            exit: any(executed::EXIT),
            entry: any(executed::ENTRY),
            misc: misc::HLT
                | misc::SHUTDOWN
                | misc::WAIT_FOR_SIPI
                | misc::LENGTH_0
                | 4 << misc::CR3_TARGETS_SHIFT
                | super::PREEMPTION_TIMER_SHIFT as u64,
            // The hypervisor itself walks the guest's tables.
            ept_vpid: executed::EPT_VPID & !ept_vpid::ADVANCED_INFORMATION,
        }
    };

    /// Returns the features that a hypervisor can offer to a guest: those that it emulates, and optionally EPT and
    /// VPID.
    pub fn for_guests(mut self, ept: bool, vpid: bool) -> Self {
        let mut without = secondary::EPT_VIOLATION_VE;
        if !ept {
            without |= secondary::EPT | secondary::UNRESTRICTED_GUEST | secondary::PML;
            without |= secondary::VM_FUNCTIONS | secondary::MODE_BASED_EXECUTE;
            self.ept_vpid &= !ept_vpid::OF_EPT;
        }
        if !vpid {
            without |= secondary::VPID;
            self.ept_vpid &= !ept_vpid::OF_VPID;
        }
        // Exits report no more than the hypervisor's own processor does.
        self.ept_vpid &= !ept_vpid::ADVANCED_INFORMATION;
        self.secondary.may &= !without;
        self.exit.may &= !exit::LOAD_CET;
        self.entry.may &= !entry::LOAD_CET;
        self
    }

    /// Returns log2 of the TSC ticks per unit of the preemption timer.
    pub fn timer_shift(&self) -> u32 {
        (self.misc & misc::TIMER_RATE) as u32
    }

    /// Returns the number of CR3-target values.
    pub fn cr3_targets(&self) -> u32 {
        (self.misc >> misc::CR3_TARGETS_SHIFT) as u32 & 0x1ff
    }

    /// Returns the maximum number of MSRs in a list. More give undefined behavior (A.6); this model treats the number
    /// as a limit.
    pub fn most_msrs(&self) -> u32 {
        512 * ((self.misc >> misc::MSR_LIST_SHIFT) as u32 & 7).saturating_add(1)
    }

    /// Returns true if IA32_VMX_MISC has a feature.
    pub fn has_misc(&self, feature: u64) -> bool {
        self.misc & feature != 0
    }

    /// Returns true if IA32_VMX_EPT_VPID_CAP has a feature.
    pub fn has_ept_vpid(&self, feature: u64) -> bool {
        self.ept_vpid & feature != 0
    }
}

/// Bits of CR0 that VMX operation fixes to 1 (SDM vol. 3, A.7).
pub(super) const CR0_FIXED: u64 = CR0_PE | CR0_NE | CR0_PG;
