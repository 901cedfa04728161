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
pub(crate) mod capability;
mod checks;
mod controls;
mod emulate;
#[cfg(test)]
mod emulate_random_tests;
#[cfg(test)]
mod emulate_tests;
mod emulating;
mod ept;
#[cfg(test)]
mod ept_tests;
mod events;
mod fields;
mod flush;
pub(crate) mod information;
pub(crate) mod instructions;
mod invalidate;
mod io;
mod msr;
mod offer;
mod registers;
pub(crate) mod root;
mod software;
pub(crate) mod state;
mod structure;
#[cfg(test)]
mod tag_tests;
mod transition;
mod vmcs;

#[cfg(test)]
mod tests;

pub use capability::{Settings, VmxCapabilities};
pub use controls::{Controls, IoBitmap, MsrBitmap, MsrList, MsrLists};
pub use emulate::{Emulation, Outcome, Surroundings};
pub use emulating::{Accesses, DeviceAccess, Emulating, GuestPhysical, Stretch};
pub(crate) use ept::{Placed, Purpose};
pub use fields::exists as field_exists;
pub use flush::{Flush, Invalidation, Invept, Invvpid};
pub use information::VmExit;
pub use offer::{GuestVmx, Offer};
pub use root::operation::Operation;
pub use state::{Delivering, GuestView, NestedGuest, NonRoot, Pauses, TrapExit};
pub use transition::EntryFailure;
pub use vmcs::{ShadowVmcs, Vmcs};

/// Log2 of the ratio between the rates of the time-stamp counter and the VMX-preemption timer.
pub const PREEMPTION_TIMER_SHIFT: u32 = 5;
