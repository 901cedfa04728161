//! Lists of MSRs that VM entries load and VM exits store and load (SDM vol. 3, 26.4, 27.4 and 27.6).

use super::super::controls::MsrList;
use crate::state::Cpu;
use ledger::{Family, Kind};
use x86::msr::{FS_BASE, GS_BASE, TSC, X2APIC_FIRST, X2APIC_LAST};

/// IA32_BIOS_UPDT_TRIG: a list can't load microcode.
const BIOS_UPDATE_TRIGGER: u32 = 0x79;
/// IA32_SMM_MONITOR_CTL and IA32_SMBASE, which exist only in system-management mode.
const SMM_REGISTERS: [u32; 2] = [0x9b, 0x9e];
/// Size of an entry in bytes: index, reserved, value.
const ENTRY: u64 = 16;

/// Returns true if lists may contain a register.
fn in_lists(index: u32) -> bool {
    !(X2APIC_FIRST..=X2APIC_LAST).contains(&index) && !SMM_REGISTERS.contains(&index)
}

impl Cpu {
    /// Loads the registers of a list. The error is the number, from 1, of the first invalid entry.
    pub(super) fn load_msrs(&mut self, list: MsrList) -> Result<(), u64> {
        for number in 0..u64::from(list.count) {
            let at = list.address + ENTRY * number;
            let index = self.structure::<u64>(at).unwrap_or(u64::MAX);
            let value = self.structure::<u64>(at + 8).unwrap_or(u64::MAX);
            let failed = Err(number + 1);
            let Ok(index) = u32::try_from(index) else { return failed };
            if !in_lists(index) || matches!(index, FS_BASE | GS_BASE | BIOS_UPDATE_TRIGGER) {
                return failed;
            }
            if number >= u64::from(self.vmx_capabilities().most_msrs()) || !self.write_msr(index, value) {
                return failed;
            }
            self.charge_transition(Kind::new(Family::MsrList, index));
        }
        Ok(())
    }

    /// Stores the registers of a list in its entries. Returns an error if one is invalid.
    pub(super) fn store_msrs(&mut self, list: MsrList) -> Result<(), ()> {
        for number in 0..u64::from(list.count) {
            let at = list.address + ENTRY * number;
            let index = u32::try_from(self.structure::<u64>(at).unwrap_or(u64::MAX)).map_err(|_| ())?;
            if number >= u64::from(self.vmx_capabilities().most_msrs()) || !in_lists(index) {
                return Err(());
            }
            let value = if index == TSC { self.tsc_at_exit() } else { self.read_msr(index).ok_or(())? };
            self.set_structure(at + 8, value);
            self.charge_transition(Kind::new(Family::MsrList, index));
        }
        Ok(())
    }
}
