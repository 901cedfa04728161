//! The shadow VMCS, in which L1 accesses most fields that a hypervisor reads and writes at each exit of its guest
//! without exits of its own.
//!
//! It is copied from vmcs12 before L1 runs, and to vmcs12 before an operation on that.

use crate::exit_context::ExitContext;
use cpu::vmx::{ShadowVmcs, VmxCapabilities, field_exists};
use ledger::{Family, Kind, Operation};
use x86::vmx::vmcs::*;
use x86::vmx::{primary, reason, secondary};

/// Fields that L1 reads (KVM's `vmcs_shadow_fields.h`).
const READ_ONLY: &[u32] = &[
    EXIT_REASON,
    EXIT_INTERRUPTION_INFORMATION,
    EXIT_INTERRUPTION_ERROR_CODE,
    EXIT_INSTRUCTION_LENGTH,
    IDT_VECTORING_INFORMATION,
    IDT_VECTORING_ERROR_CODE,
    GUEST_CS_RIGHTS,
    GUEST_SS_RIGHTS,
    EXIT_QUALIFICATION,
    GUEST_LINEAR_ADDRESS,
    GUEST_PHYSICAL_ADDRESS,
];
/// Fields that L1 reads and writes.
const READ_WRITE: &[u32] = &[
    GUEST_INTERRUPT_STATUS,
    PML_INDEX,
    HOST_FS_SELECTOR,
    HOST_GS_SELECTOR,
    PRIMARY_CONTROLS,
    EXCEPTION_BITMAP,
    ENTRY_EXCEPTION_ERROR_CODE,
    ENTRY_INTERRUPTION_INFORMATION,
    ENTRY_INSTRUCTION_LENGTH,
    TPR_THRESHOLD,
    GUEST_INTERRUPTIBILITY_STATE,
    PREEMPTION_TIMER_VALUE,
    GUEST_RIP,
    GUEST_RSP,
    GUEST_CR0,
    GUEST_CR3,
    GUEST_CR4,
    GUEST_RFLAGS,
    CR0_GUEST_HOST_MASK,
    CR0_READ_SHADOW,
    CR4_READ_SHADOW,
    HOST_FS_BASE,
    HOST_GS_BASE,
];

/// Returns true if a field is copied at each entry; other fields are copied only if L1 has written one of them.
pub(super) fn is_frequent(encoding: u32) -> bool {
    READ_WRITE.contains(&encoding)
}

/// Returns true if a field of the guest-state area is rarely used: it is copied from vmcs02 when L1 accesses it.
pub(super) fn is_rare_state(encoding: u32) -> bool {
    let guest_state = encoding >> TYPE_SHIFT & 3 == kind::GUEST;
    guest_state && !READ_WRITE.contains(&encoding) && !READ_ONLY.contains(&encoding)
}

/// Fields that L1 accesses in the shadow VMCS: those of the lists that L1 is offered. Others must fail as on a
/// processor without them.
#[derive(Default)]
pub(crate) struct ShadowFields {
    read_only: Vec<u32>,
    read_write: Vec<u32>,
}

impl ShadowFields {
    /// Returns the fields for a guest with these capabilities.
    pub fn of(offered: &VmxCapabilities) -> Self {
        let there = |fields: &[u32]| fields.iter().copied().filter(|field| field_exists(*field, offered)).collect();
        Self { read_only: there(READ_ONLY), read_write: there(READ_WRITE) }
    }
}

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
