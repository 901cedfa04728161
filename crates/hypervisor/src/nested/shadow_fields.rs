//! Fields of the shadow VMCS: those that L1 accesses without exits.

use cpu::vmx::{VmxCapabilities, field_exists};
use x86::vmx::vmcs::*;

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
    pub(super) read_only: Vec<u32>,
    pub(super) read_write: Vec<u32>,
}

impl ShadowFields {
    /// Returns the fields for a guest with these capabilities.
    pub fn of(offered: &VmxCapabilities) -> Self {
        let there = |fields: &[u32]| fields.iter().copied().filter(|field| field_exists(*field, offered)).collect();
        Self { read_only: there(READ_ONLY), read_write: there(READ_WRITE) }
    }
}
