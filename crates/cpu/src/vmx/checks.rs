//! Checks of VM entry (SDM vol. 3, 26.2 and 26.3). Each failure is named.

use super::controls::{entry, exit, interruption, pin, primary, secondary};
use crate::state::{Cpu, bits::*};

/// Result of a check; the error is its name.
type Check = Result<(), &'static str>;

fn require(good: bool, name: &'static str) -> Check {
    if good { Ok(()) } else { Err(name) }
}

impl Cpu {
    /// Checks on the controls (26.2.1).
    pub(super) fn check_controls(&self) -> Check {
        let c = &self.vmx.controls;
        let second = if c.primary & primary::SECONDARY != 0 { c.secondary } else { 0 };
        require(c.pin & !pin::ALL == 0, "pin-based control that does not exist")?;
        require(c.primary & !primary::ALL == 0, "primary processor-based control that does not exist")?;
        require(second & !secondary::ALL == 0, "secondary processor-based control that does not exist")?;
        require(c.exit & !exit::ALL == 0, "VM-exit control that does not exist")?;
        require(c.entry & !entry::ALL == 0, "VM-entry control that does not exist")?;
        require(c.cr3_target_count <= 4, "CR3-target count above 4")?;
        require(c.pin & pin::NMI != 0 || c.pin & pin::VIRTUAL_NMIS == 0, "virtual NMIs without NMI exiting")?;
        let window = c.primary & primary::NMI_WINDOW != 0;
        require(c.pin & pin::VIRTUAL_NMIS != 0 || !window, "NMI-window exiting without virtual NMIs")?;
        require(second & secondary::VPID == 0 || c.vpid != 0, "VPID 0")?;
        let ept = second & secondary::EPT != 0;
        let eptp = c.eptp;
        require(!ept || super::ept::valid_pointer(eptp, self.model.physical_bits), "EPT pointer")?;
        require(ept || second & secondary::UNRESTRICTED_GUEST == 0, "unrestricted guest without EPT")?;
        let timer = c.pin & pin::PREEMPTION_TIMER != 0;
        require(timer || c.exit & exit::SAVE_PREEMPTION_TIMER == 0, "preemption timer saved but not activated")?;
        self.check_injection()
    }

    /// Checks on the event to inject (26.2.1.3).
    fn check_injection(&self) -> Check {
        let c = &self.vmx.controls;
        let info = c.entry_interruption;
        if info & interruption::VALID == 0 {
            return Ok(());
        }
        let (kind, vector) = (info & interruption::TYPE, info & interruption::VECTOR);
        let good = match kind {
            interruption::EXTERNAL | interruption::SOFTWARE_INTERRUPT => true,
            interruption::NMI => vector == 2,
            interruption::HARDWARE_EXCEPTION => vector < 32,
            interruption::PRIVILEGED_SOFTWARE_EXCEPTION | interruption::SOFTWARE_EXCEPTION => vector < 32,
            interruption::OTHER_EVENT => vector == 0,
            _ => false,
        };
        require(good, "interruption type and vector")?;
        require(info & 0x7fff_f000 == 0, "reserved bits of the interruption information")?;
        let restricted = c.secondary(secondary::UNRESTRICTED_GUEST) && !self.protected();
        let pushes = matches!(vector, 8 | 10..=14 | 17) && kind == interruption::HARDWARE_EXCEPTION && !restricted;
        require((info & interruption::ERROR_CODE != 0) == pushes, "error code of the event")?;
        require(!pushes || c.entry_error_code & 0xffff_8000 == 0, "reserved bits of the error code")?;
        let software = matches!(
            kind,
            interruption::SOFTWARE_INTERRUPT
                | interruption::PRIVILEGED_SOFTWARE_EXCEPTION
                | interruption::SOFTWARE_EXCEPTION
        );
        let length = c.entry_instruction_length;
        require(!software || (1..=15).contains(&length), "instruction length of a software event")
    }

    /// Checks on the guest's state (26.3.1).
    pub(super) fn check_guest_state(&self) -> Check {
        let c = &self.vmx.controls;
        let long = c.entry & entry::IA32E_GUEST != 0;
        require(long == self.long_mode(), "IA-32e mode guest against EFER.LMA")?;
        require(self.cr0 & c.cr0_fixed() == c.cr0_fixed(), "fixed bits of CR0")?;
        require(self.cr0 & (CR0_PE | CR0_PG) != CR0_PG, "CR0.PG without CR0.PE")?;
        require(self.cr4 & CR4_VMXE != 0, "CR4.VMXE clear")?;
        require(!long || self.cr4 & CR4_PAE != 0, "IA-32e mode guest without CR4.PAE")?;
        require(long || self.cr4 & CR4_PCIDE == 0, "CR4.PCIDE outside IA-32e mode")
    }
}
