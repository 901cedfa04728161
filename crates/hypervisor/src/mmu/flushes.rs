//! TLB flushes that must precede the entry of the guest, with KVM's distinctions.

use serde::{Deserialize, Serialize};

/// Pending flushes of a virtual processor. Each kind uses its own instruction (KVM's vmx_flush_tlb_all,
/// vmx_flush_tlb_current and vmx_flush_tlb_guest in arch/x86/kvm/vmx/vmx.c):
///
/// | | under EPT | with shadow tables |
/// |---|---|---|
/// | all contexts | INVEPT, global | INVVPID, all contexts |
/// | the current context | INVEPT of its root | INVVPID of its VPID |
/// | the guest's TLB | INVVPID of its VPID | INVVPID of its VPID |
///
/// Without VPIDs there is no INVVPID, and each entry flushes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flushes {
    /// The hypervisor has changed tables that any context may have used (KVM_REQ_TLB_FLUSH).
    pub all: bool,
    /// The hypervisor has changed tables below the current root, or their use (KVM_REQ_TLB_FLUSH_CURRENT).
    pub current: bool,
    /// The guest has flushed its TLB (KVM_REQ_TLB_FLUSH_GUEST).
    pub guest: bool,
    /// A root has been loaded for which the processor may have stale translations (the end of kvm_mmu_load).
    pub loaded: bool,
}

impl Flushes {
    /// Initial flushes of a virtual processor, also after a reset.
    pub const RESET: Self = Self { all: false, current: false, guest: true, loaded: false };

    /// Returns true if any flush is pending.
    pub fn any(self) -> bool {
        self.all || self.current || self.guest || self.loaded
    }

    /// Returns the union of both.
    pub fn and(self, other: Self) -> Self {
        Self {
            all: self.all || other.all,
            current: self.current || other.current,
            guest: self.guest || other.guest,
            loaded: self.loaded || other.loaded,
        }
    }

    /// Returns true if the current context is flushed. A request without a root is served by the flush when the root is
    /// loaded; a flush of all contexts includes the current one, but not a root loaded afterwards.
    pub fn of_current(self) -> bool {
        self.loaded || (self.current && !self.all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_twice_is_due_once() {
        let all = Flushes { all: true, ..Flushes::default() };
        let current = Flushes { current: true, ..Flushes::default() };
        let loaded = Flushes { loaded: true, ..Flushes::default() };
        let both = all.and(current);
        assert_eq!(both, Flushes { all: true, current: true, ..Flushes::default() });
        assert!(current.of_current() && !both.of_current() && both.and(loaded).of_current());
        assert!(Flushes::RESET.and(loaded).guest && !Flushes::default().any());
        assert!([all, current, loaded, Flushes::RESET].into_iter().all(Flushes::any));
    }
}
