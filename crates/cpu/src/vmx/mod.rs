//! VMX non-root mode: the contract between the processor and a hypervisor (SDM vol. 3, chapters 24 to 27).
//!
//! There is no VMCS in memory. The hypervisor writes the guest's registers into the processor's fields and calls
//! [`Cpu::vm_entry`] with [`Controls`]; [`Cpu::run`] then runs the guest until something exits, and returns
//! [`Exit::Vm`](crate::Exit::Vm) with the details in [`vm_exit`](crate::arch::Arch::vm_exit). The guest's registers are still in the processor's fields;
//! guest state that no register holds (interruptibility, activity, pending debug exceptions) is in the controls.
//!
//! [`Cpu::vm_entry`]: crate::Cpu::vm_entry
//! [`Cpu::run`]: crate::Cpu::run

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
mod information;
pub(crate) mod instructions;
mod invalidate;
mod io;
mod msr;
mod registers;
#[cfg(test)]
mod tag_tests;
mod transition;

#[cfg(test)]
mod tests;

pub use controls::{Controls, IoBitmap, MsrBitmap};
pub use emulate::{Accesses, DeviceAccess, Emulating, Emulation, GuestPhysical, GuestView, Outcome, Stretch};
pub(crate) use ept::{Placed, Purpose};
pub use events::Delivering;
pub use information::VmExit;
pub use instructions::Pauses;
pub use invalidate::{Flush, Invept, Invvpid};
pub use transition::EntryFailure;

use ledger::Ticks;
use serde::{Deserialize, Serialize};
use x86::vmx::primary;

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
    /// HLT was executed without an exit: nothing but events goes on.
    pub halted: bool,
    /// When the VMX-preemption timer runs out.
    pub timer_at: Ticks,
    /// The registers as the guest sees them, for [`Cpu::look_up`](crate::Cpu::look_up), where they are not the processor's own;
    /// the hypervisor keeps it up to date.
    pub visible: Option<GuestView>,
    /// Registers that translation depends on, as the last transition found them: CR0, CR4, EFER, PKRU, PKRS.
    pub left_under: [u64; 5],
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
    /// What is added to the time-stamp counter now.
    pub fn tsc_offset(&self) -> u64 {
        let offset = self.active && self.controls.primary(primary::TSC_OFFSETTING);
        if offset { self.controls.tsc_offset } else { 0 }
    }
}

impl Default for NonRoot {
    fn default() -> Self {
        Self {
            active: false,
            ept: false,
            controls: Controls::default(),
            halted: false,
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
