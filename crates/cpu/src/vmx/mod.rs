//! VMX non-root mode: the interface between the processor and a hypervisor (SDM vol. 3, chapters 24 to 27).
//!
//! A hypervisor of the board writes the guest's registers to the processor's fields and calls [`Cpu::vm_entry`] with
//! [`Controls`]; [`Cpu::run`] then runs the guest until an exit, and returns [`Exit::Vm`](crate::Exit::Vm) with the
//! details in [`vm_exit`](crate::arch::Arch::vm_exit). The guest's registers are still in the processor's fields; guest
//! state that is not in registers (interruptibility, activity, pending debug exceptions) is in the controls.
//!
//! Guest software uses VMX instructions and VMCSs in memory instead: `root` converts the current VMCS to controls and
//! registers, and back on an exit. Both use the same non-root mode.
//!
//! [`Cpu::vm_entry`]: crate::Cpu::vm_entry
//! [`Cpu::run`]: crate::Cpu::run

mod apic;
mod capability;
mod checks;
mod controls;
mod emulate;
#[cfg(test)]
mod emulate_random_tests;
#[cfg(test)]
mod emulate_tests;
mod ept;
#[cfg(test)]
mod ept_tests;
mod events;
mod fields;
mod information;
pub(crate) mod instructions;
mod invalidate;
mod io;
mod msr;
mod registers;
pub(crate) mod root;
mod software;
mod structure;
#[cfg(test)]
mod tag_tests;
mod transition;
mod vmcs;

#[cfg(test)]
mod tests;

pub use apic::TrapExit;
pub use capability::{Settings, VmxCapabilities};
pub use controls::{Controls, IoBitmap, MsrBitmap, MsrList, MsrLists};
pub use emulate::{
    Accesses, DeviceAccess, Emulating, Emulation, GuestPhysical, GuestView, Outcome, Stretch, Surroundings,
};
pub(crate) use ept::{Placed, Purpose};
pub use events::Delivering;
pub use fields::exists as field_exists;
pub use information::VmExit;
pub use instructions::Pauses;
pub use invalidate::{Flush, Invalidation, Invept, Invvpid};
pub use root::Operation;
pub use software::{GuestVmx, Offer};
pub use transition::EntryFailure;
pub use vmcs::{ShadowVmcs, Vmcs};

use ledger::Ticks;
use serde::{Deserialize, Serialize};
use x86::vmx::{activity, primary, secondary};

/// Log2 of the ratio between the rates of the time-stamp counter and the VMX-preemption timer.
pub const PREEMPTION_TIMER_SHIFT: u32 = 5;

/// A guest of a hypervisor that is itself a guest of the board's hypervisor. Addresses in the memory of such a
/// hypervisor are the board's, hence the page tables below can be read without the board's hypervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NestedGuest {
    /// Its identity in ledgers ([`ledger::Origin::guest`]): the root of its EPT, or the address of its VMCS.
    pub name: u64,
    /// True if its hypervisor defines its memory by EPT.
    pub ept: bool,
    /// The registers of its hypervisor after the next VM exit that goes to that hypervisor.
    pub host: GuestView,
}

/// State of non-root mode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NonRoot {
    /// True in non-root mode.
    pub active: bool,
    /// True if guest-physical addresses are translated through EPT, which implies non-root mode.
    pub ept: bool,
    /// Controls of the last VM entry.
    pub controls: Controls,
    /// VMX operation of guest software; if it is active, guest software controls non-root mode.
    pub operation: Operation,
    /// True if the guest of the board's hypervisor is a hypervisor itself, in emulated VMX operation.
    pub guest_operation: bool,
    /// The nested guest that runs, if the guest of the board's hypervisor is a hypervisor.
    pub inner: Option<NestedGuest>,
    /// Activity state, see [`x86::vmx::activity`]: if it is not active, only events are handled.
    pub activity: u32,
    /// Time at which the VMX-preemption timer expires.
    pub timer_at: Ticks,
    /// Registers as seen by the guest, for [`Cpu::look_up`](crate::Cpu::look_up), if they differ from the processor's;
    /// the hypervisor keeps them up to date.
    pub visible: Option<GuestView>,
    /// Registers that affect translation, at the last transition: CR0, CR4, EFER, PKRU, PKRS.
    pub left_under: [u64; 5],
    /// An exit that follows the running instruction.
    pub trap_exit: Option<TrapExit>,
    /// True if a virtual interrupt is pending delivery.
    pub virtual_interrupt: bool,
    /// True if an exit because of the monitor trap flag is pending.
    pub trap_pending: bool,
    /// Blocking by STI or MOV SS at the start of the running instruction ([`crate::arch::attention`]).
    pub shadow: u32,
    /// The software interrupt during whose delivery the exception in [`fault`](crate::engine::Engine::fault) occurred.
    pub delivering: Option<Delivering>,
    /// True if the running IRET has unblocked NMIs.
    pub nmi_unblocked: bool,
    /// Current PAUSE loop.
    pub pauses: Pauses,
}

impl NonRoot {
    /// Returns the time-stamp counter for the guest, where `tsc` is the processor's (25.3).
    pub fn guest_tsc(&self, tsc: u64) -> u64 {
        if !self.active || !self.controls.primary(primary::TSC_OFFSETTING) {
            return tsc;
        }
        let scaled = match self.controls.secondary(secondary::TSC_SCALING) {
            true => ((u128::from(tsc) * u128::from(self.controls.tsc_multiplier)) >> 48) as u64,
            false => tsc,
        };
        scaled.wrapping_add(self.controls.tsc_offset)
    }
}

impl Default for NonRoot {
    fn default() -> Self {
        Self {
            active: false,
            ept: false,
            controls: Controls::default(),
            operation: Operation::default(),
            guest_operation: false,
            inner: None,
            trap_exit: None,
            virtual_interrupt: false,
            activity: activity::ACTIVE,
            timer_at: Ticks::MAX,
            trap_pending: false,
            shadow: 0,
            delivering: None,
            nmi_unblocked: false,
            pauses: Pauses::default(),
            visible: None,
            left_under: [0; 5],
        }
    }
}
