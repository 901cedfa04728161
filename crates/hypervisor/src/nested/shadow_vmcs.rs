//! The shadow VMCS, in which L1 accesses most fields that a hypervisor reads and writes at each exit of its guest
//! without exits of its own.
//!
//! It is copied from vmcs12 before L1 runs, and to vmcs12 before an operation on that.

use super::shadow_fields::ShadowFields;
use crate::exit_context::ExitContext;
use cpu::vmx::ShadowVmcs;
use ledger::{Family, Kind, Operation};
use x86::vmx::{primary, reason, secondary};

impl ExitContext<'_> {
    /// Copies L1's writes to vmcs12 before an operation on it. `charged` is true if KVM copies at this point.
    pub(super) fn take_shadow_vmcs(&mut self, charged: bool) {
        let Some(shadow) = &self.cpu.controls().shadow_vmcs else { return };
        let Some(vmcs12) = self.vcpu.nested.vmx.operation.current_mut() else { return };
        let written = &self.vm.shadow_fields.read_write;
        written.iter().for_each(|field| vmcs12.set(*field, shadow.vmcs.get(*field)));
        if charged {
            self.charge(Operation::Vmread, self.vm.shadow_fields.read_write.len() as u64);
            self.charge_shadow_switch();
        }
    }

    /// Copies vmcs12 to the shadow VMCS before L1 continues. `charged` is true if KVM copies at this point.
    pub(super) fn give_shadow_vmcs(&mut self, charged: bool) {
        if !self.vm.config.shadow_vmcs {
            return;
        }
        let Some(vmcs12) = self.vcpu.nested.vmx.operation.current_mut() else {
            let controls = self.cpu.controls_mut();
            controls.secondary &= !secondary::VMCS_SHADOWING;
            controls.shadow_vmcs = None;
            return;
        };
        let controls = self.cpu.controls_mut();
        controls.primary |= primary::SECONDARY;
        controls.secondary |= secondary::VMCS_SHADOWING;
        let ShadowFields { read_only, read_write } = &self.vm.shadow_fields;
        let make = || Box::new(ShadowVmcs::new(read_only, read_write));
        let shadow = controls.shadow_vmcs.get_or_insert_with(make);
        for field in read_only.iter().chain(read_write) {
            shadow.vmcs.set(*field, vmcs12.get(*field));
        }
        if charged {
            self.charge(Operation::Vmwrite, (read_only.len() + read_write.len()) as u64);
            self.charge_shadow_switch();
        }
    }

    /// Charges the switch to the shadow VMCS, its VMCLEAR, and the switch back.
    fn charge_shadow_switch(&mut self) {
        self.cpu.charge_host_kind(Kind::new(Family::VmxInstruction, reason::VMPTRLD), 2);
        self.cpu.charge_host_kind(Kind::new(Family::VmxInstruction, reason::VMCLEAR), 1);
    }
}
