//! VMX non-root mode: the contract between the processor and a hypervisor (SDM vol. 3, chapters 24 to 27).
//!
//! A hypervisor of the board writes the guest's registers into the processor's fields and calls [`Cpu::vm_entry`] with [`Controls`];
//! [`Cpu::run`] then runs the guest until something exits, and returns [`Exit::Vm`](crate::Exit::Vm) with the details in
//! [`vm_exit`](crate::arch::Arch::vm_exit). The guest's registers are still in the processor's fields; guest state that no register holds
//! (interruptibility, activity, pending debug exceptions) is in the controls.
//!
//! Guest software has the instructions of VMX and VMCSs in memory instead: `root` makes controls and registers of the current VMCS,
//! and puts them back on an exit. In between, both use the same non-root mode.
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

/// The VMX-preemption timer counts down at the rate of the time-stamp counter divided by two to this power.
pub const PREEMPTION_TIMER_SHIFT: u32 = 5;

/// State of non-root mode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NonRoot {
    /// The processor is in non-root mode.
    pub active: bool,
    /// Guest-physical addresses are translated through EPT: only in non-root mode.
    pub ept: bool,
    /// The controls.
    pub controls: Controls,
    /// Guest software has entered VMX operation: its hypervisor is in charge of non-root mode.
    pub operation: Operation,
    /// The guest of the board's hypervisor is a hypervisor itself, in VMX operation that is emulated for it.
    pub guest_operation: bool,
    /// The guest is a hypervisor whose own guest runs: which one ([`ledger::Origin::guest`]).
    pub inner: Option<u64>,
    /// The activity state, see [`x86::vmx::activity`]: if it is not active, nothing but events goes on.
    pub activity: u32,
    /// When the VMX-preemption timer runs out.
    pub timer_at: Ticks,
    /// The registers as the guest sees them, for [`Cpu::look_up`](crate::Cpu::look_up), where they are not the processor's own;
    /// the hypervisor keeps it up to date.
    pub visible: Option<GuestView>,
    /// Registers that translation depends on, as the last transition found them: CR0, CR4, EFER, PKRU, PKRS.
    pub left_under: [u64; 5],
    /// An exit that comes after the running instruction.
    pub trap_exit: Option<TrapExit>,
    /// A virtual interrupt is to be delivered.
    pub virtual_interrupt: bool,
    /// An exit because of the monitor trap flag comes next.
    pub trap_pending: bool,
    /// Blocking by STI or MOV SS under which the running instruction was started ([`crate::arch::attention`]).
    pub shadow: u32,
    /// The software interrupt whose delivery met the exception in [`fault`](crate::engine::Engine::fault).
    pub delivering: Option<Delivering>,
    /// The running IRET has unblocked NMIs.
    pub nmi_unblocked: bool,
    /// The PAUSE loop it is in.
    pub pauses: Pauses,
}

impl NonRoot {
    /// The time-stamp counter as the guest reads it, where the processor's is `tsc` (25.3).
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
