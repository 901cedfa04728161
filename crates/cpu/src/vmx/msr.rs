//! VMX capability MSRs, and exits of RDMSR and WRMSR.

use super::capability::{CR0_FIXED, VmxCapabilities};
use super::fields::highest_index;
use crate::fault::Exec;
use crate::state::Cpu;
use x86::control::CR4_VMXE;
use x86::msr::*;
use x86::msr::{BITMAP_HIGH as HIGH, BITMAP_PART as PART, BITMAP_REGISTERS as RANGE};
use x86::vmx::capability::basic;
use x86::vmx::{primary, reason, region, secondary};

impl Cpu {
    /// Returns the controls and features for the active hypervisor; guest software finds them in capability MSRs.
    pub(crate) fn vmx_capabilities(&self) -> &VmxCapabilities {
        let software = self.software_capabilities().filter(|_| self.arch.vmx.operation.is_on());
        software.unwrap_or(&VmxCapabilities::EXECUTED)
    }

    /// Returns the controls and features for guest software: the processor's, or those that a hypervisor emulates for
    /// its guest.
    pub(super) fn software_capabilities(&self) -> Option<&VmxCapabilities> {
        self.offered_to_guest().map(|offer| &offer.vmx).or(self.wiring.model.vmx.as_ref())
    }

    /// Reads a VMX capability MSR. Returns `None` if the processor lacks it.
    pub(crate) fn vmx_msr(&self, index: u32) -> Option<u64> {
        let c = self.software_capabilities()?;
        let when = |there: bool, value: u64| there.then_some(value);
        match index {
            VMX_BASIC => {
                let size = region::SIZE << basic::SIZE_SHIFT;
                let write_back = x86::ept::WRITE_BACK << basic::TYPE_SHIFT;
                let controls = if c.has_true { basic::TRUE_CONTROLS } else { 0 };
                Some(u64::from(c.revision) | size | write_back | basic::STRING_IO_INFORMATION | controls)
            }
            VMX_PINBASED_CTLS => Some(c.pin.register(false)),
            VMX_PROCBASED_CTLS => Some(c.primary.register(false)),
            VMX_EXIT_CTLS => Some(c.exit.register(false)),
            VMX_ENTRY_CTLS => Some(c.entry.register(false)),
            VMX_MISC => Some(c.misc),
            VMX_CR0_FIXED0 => Some(CR0_FIXED),
            VMX_CR0_FIXED1 => Some(u64::from(u32::MAX)),
            VMX_CR4_FIXED0 => Some(CR4_VMXE),
            VMX_CR4_FIXED1 => Some(self.cr4_bits()),
            VMX_VMCS_ENUM => Some(highest_index(c) << x86::vmx::vmcs::INDEX_SHIFT),
            VMX_PROCBASED_CTLS2 => when(c.primary.offers(primary::SECONDARY), c.secondary.register(false)),
            VMX_EPT_VPID_CAP => {
                when(c.secondary.offers(secondary::EPT) || c.secondary.offers(secondary::VPID), c.ept_vpid)
            }
            VMX_TRUE_PINBASED_CTLS => when(c.has_true, c.pin.register(true)),
            VMX_TRUE_PROCBASED_CTLS => when(c.has_true, c.primary.register(true)),
            VMX_TRUE_EXIT_CTLS => when(c.has_true, c.exit.register(true)),
            VMX_TRUE_ENTRY_CTLS => when(c.has_true, c.entry.register(true)),
            VMX_VMFUNC => when(c.secondary.offers(secondary::VM_FUNCTIONS), 1 << x86::vmx::function::EPTP_SWITCHING),
            _ => None,
        }
    }

    pub(super) fn msr_exits(&self, index: u32, write: bool) -> bool {
        let controls = &self.arch.vmx.controls;
        if !controls.primary(primary::MSR_BITMAPS) {
            return true;
        }
        let (part, bit) = match index {
            0..RANGE => (0, index),
            HIGH.. if index - HIGH < RANGE => (1, index - HIGH),
            _ => return true,
        };
        let part = part + if write { 2 } else { 0 };
        let at = part * PART + (bit >> 3) as usize % PART;
        let byte = match (&controls.msr_bitmap, controls.msr_bitmap_address) {
            (Some(bitmap), _) => bitmap[at],
            (None, Some(address)) => self.structure::<u8>(address + at as u64).unwrap_or(u8::MAX),
            (None, None) => u8::MAX,
        };
        byte >> (bit & 7) & 1 != 0
    }

    /// Exits for RDMSR or WRMSR, after the privilege check.
    #[inline(always)]
    pub(crate) fn msr_exit(&mut self, index: u32, write: bool) -> Exec {
        if self.arch.vmx.active { self.guest_msr(index, write) } else { Ok(()) }
    }

    #[cold]
    fn guest_msr(&mut self, index: u32, write: bool) -> Exec {
        if !self.msr_exits(index, write) {
            return Ok(());
        }
        Err(self.exit_fault(if write { reason::WRMSR } else { reason::RDMSR }, 0))
    }
}
