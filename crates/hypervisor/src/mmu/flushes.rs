//! Which flushes of the processor's translations are due before the guest is entered, told apart as KVM does.

use serde::{Deserialize, Serialize};

/// Flushes that a virtual processor must make. Each kind has its instruction (KVM's vmx_flush_tlb_all, vmx_flush_tlb_current and
/// vmx_flush_tlb_guest in arch/x86/kvm/vmx/vmx.c):
///
/// | | under EPT | with shadow tables |
/// |---|---|---|
/// | all contexts | INVEPT, global | INVVPID, all contexts |
/// | the current context | INVEPT of its root | INVVPID of its VPID |
/// | the guest's TLB | INVVPID of its VPID | INVVPID of its VPID |
///
/// Without VPIDs there is no INVVPID: each entry flushes then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flushes {
    /// Tables of the hypervisor have changed that any context may have used (KVM_REQ_TLB_FLUSH).
    pub all: bool,
    /// Tables of the hypervisor that the current root leads to, or what they are used for, have changed
    /// (KVM_REQ_TLB_FLUSH_CURRENT).
    pub current: bool,
    /// The guest has flushed its TLB (KVM_REQ_TLB_FLUSH_GUEST).
    pub guest: bool,
    /// A root was loaded, of which the processor may still know what was there before (the end of kvm_mmu_load).
    pub loaded: bool,
}

impl Flushes {
    /// What a virtual processor begins with, and what a reset leads to.
    pub const RESET: Self = Self { all: false, current: false, guest: true, loaded: false };

    /// Whether any is due.
    pub fn any(self) -> bool {
        self.all || self.current || self.guest || self.loaded
    }

    /// Those of both.
    pub fn and(self, other: Self) -> Self {
        Self {
            all: self.all || other.all,
            current: self.current || other.current,
            guest: self.guest || other.guest,
            loaded: self.loaded || other.loaded,
        }
    }

    /// Whether the current context is flushed. Where there was no root when that was asked for, the flush is the one of its
    /// loading; where all contexts are flushed, so is the current one, but a root loaded after that is flushed as well.
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
    }
}
