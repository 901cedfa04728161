//! Nested VMX: the guest (L1) is a hypervisor, which runs nested guests (L2) on this hypervisor (L0).
//!
//! | name | purpose | location |
//! |---|---|---|
//! | vmcs01 | L0 runs L1 with it | the processor's controls while L1 runs, [`Nested::outer`] while L2 does |
//! | vmcs12 | L1 wrote it for L2 | L1's memory; the current one in [`Nested::vmx`] |
//! | vmcs02 | L0 runs L2 with it: vmcs12 with the requirements of vmcs01 | the processor's controls while L2 runs |
//!
//! The instructions, checks and transitions are the processor's own ([`cpu::vmx::GuestVmx`]), executed in emulation on
//! L1's memory. This module implements KVM's part: the combination of the two VMCSs (`merge.rs`), the selection of the
//! level that handles an exit of L2 (`exit.rs`), events across levels (`events.rs`), and the prices.

mod entry;
mod events;
mod exit;
mod instruction;
mod merge;
mod offer;
mod shadow_fields;
mod shadow_vmcs;

pub(crate) use offer::offer;
pub(crate) use shadow_fields::ShadowFields;

use cpu::vmx::{Controls, GuestVmx, VmExit};
use ledger::Ticks;
use serde::{Deserialize, Serialize};

/// State of a virtual CPU for a guest hypervisor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Nested {
    /// L1's VMX: its operation, the current vmcs12, and the controls of vmcs12 while L2 runs.
    pub vmx: GuestVmx,
    /// Controls of vmcs01 while L2 runs.
    pub outer: Option<Box<Controls>>,
    /// An exit to L1 that precedes everything else in L2.
    pub due: Option<VmExit>,
    /// True if L1 has entered L2, which has not run yet: the event that L1 injects comes first.
    pub entering: bool,
    /// Time at which the VMX-preemption timer that L1 has set for L2 expires.
    pub timer_at: Ticks,
    /// Time of the processor's last exit.
    pub left_at: Ticks,
    /// True if an INIT signal waits for L1 to leave VMX operation, or for L2.
    pub init: bool,
    /// VPID of vmcs12 with which L2's translations are tagged.
    pub vpid: u16,
    /// True if rarely changed fields of vmcs12 have been written since they were copied to vmcs02.
    pub dirty: bool,
    /// True if rarely used state of L2 has not been copied from vmcs02 yet.
    pub rare_left: bool,
}

impl Default for Nested {
    fn default() -> Self {
        Self {
            vmx: GuestVmx::default(),
            outer: None,
            due: None,
            entering: false,
            timer_at: Ticks::MAX,
            left_at: 0,
            init: false,
            vpid: 0,
            dirty: true,
            rare_left: false,
        }
    }
}

impl Nested {
    /// Returns the controls of vmcs12, if L2 runs.
    pub fn running(&self) -> Option<&Controls> {
        self.vmx.running.as_deref()
    }

    /// Returns the reason for which a saved state is impossible, if it is.
    pub fn wrong(&self) -> Option<&'static str> {
        let table = [
            (!self.vmx.is_whole(), "its guest's VMX is impossible"),
            (self.vmx.running.is_some() != self.outer.is_some(), "it runs its guest's guest without its guest"),
            (self.vmx.running.is_none() && (self.due.is_some() || self.entering), "it is in a guest that there is not"),
        ];
        table.into_iter().find_map(|(wrong, what)| wrong.then_some(what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_states_are_refused() {
        assert_eq!(Nested::default().wrong(), None);
        let running = GuestVmx { running: Some(Box::default()), ..GuestVmx::default() };
        let table = [
            Nested { vmx: running, outer: Some(Box::default()), ..Nested::default() },
            Nested { outer: Some(Box::default()), ..Nested::default() },
            Nested { due: Some(VmExit::default()), ..Nested::default() },
            Nested { entering: true, ..Nested::default() },
        ];
        for nested in table {
            assert!(nested.wrong().is_some(), "{nested:?}");
        }
    }
}
