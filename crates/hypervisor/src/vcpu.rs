//! State of a virtual CPU. `enter_loop.rs` runs it.

use crate::cpuid::runtime::RuntimeCpuid;
use crate::events::Events;
use crate::mmu::Flushes;
use crate::nested::Nested;
use crate::paravirt::Paravirt;
use crate::registers::Visible;
use cpu::Cpu;
use serde::{Deserialize, Serialize};
use x86::flags;
use x86::page::OFFSET;
use x86::vmx::pin;

/// A virtual CPU: the hypervisor's state for it in addition to the processor's own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Vcpu {
    /// Control registers as seen by the guest.
    pub(crate) visible: Visible,
    /// Parts of CPUID that depend on registers.
    pub(crate) runtime_cpuid: RuntimeCpuid,
    /// Events to be injected.
    pub(crate) events: Events,
    /// Roots and role.
    pub(crate) mmu: Option<crate::mmu::VcpuMmu>,
    /// State of the paravirtual interface.
    pub(crate) paravirt: Paravirt,
    /// Offset of the guest's time-stamp counter.
    pub(crate) tsc_offset: u64,
    /// State for a guest hypervisor.
    pub(crate) nested: Box<Nested>,
    /// Flushes of the guest's translations that must precede its next run.
    pub(crate) due: Flushes,
    /// True if the guest has its debug registers, until the next exit.
    pub(crate) debug_registers: bool,
    /// True if the guest accesses IA32_SPEC_CTRL directly.
    pub(crate) spec_ctrl: bool,
    /// True if another virtual CPU has requested an exit of this one.
    pub(crate) kicked: bool,
    /// Number of announcements of freed page directories that have been processed.
    pub(crate) followed: u64,
    /// Attention flags for the processor after a debugger has stopped it in the middle of a run.
    pub(crate) held: Option<u32>,
    /// True if [`Vcpu::visible`] is valid: false before the first entry and after the board has reset the processor.
    pub(crate) adopted: bool,
    /// True if the guest has come from another hypervisor and has not run here yet.
    pub(crate) moved: bool,
}

impl Vcpu {
    /// Creates a virtual CPU that adopts the processor's state when it first runs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the reason for which a saved state is impossible, if it is; the MMU is not checked. `announced` is the
    /// number of announced page directories at the time of the save.
    pub(crate) fn wrong(&self, announced: u64) -> Option<&'static str> {
        let unaligned = self.paravirt.state.is_some_and(|page| page.address() & OFFSET != 0);
        let table = [
            (self.followed > announced, "it has followed announcements that nobody made"),
            (unaligned, "its state page is no page"),
            (self.moved && self.mmu.is_some(), "it has tables here, although it has not run here yet"),
        ];
        table.into_iter().find_map(|(wrong, what)| wrong.then_some(what)).or_else(|| self.nested.wrong())
    }

    /// Marks the processor's state as the guest's, after the board has reset the processor or set its registers.
    pub fn replaced(&mut self) {
        self.adopted = false;
        self.held = None;
    }

    /// Returns true if the guest is a hypervisor in VMX operation, which blocks INIT signals.
    pub(crate) fn in_vmx_operation(&self) -> bool {
        self.nested.vmx.operation.is_on()
    }

    /// Returns true if an external interrupt ends HLT: for a nested guest, if it is interruptible or the guest
    /// hypervisor intercepts interrupts. Interception by this hypervisor is irrelevant.
    pub fn interrupts_end_halt(&self, cpu: &Cpu) -> bool {
        match self.nested.running() {
            Some(inner) => inner.pin & pin::EXTERNAL_INTERRUPT != 0 || cpu.arch.flags & flags::IF != 0,
            None => cpu.interrupts_end_halt(),
        }
    }

    /// Returns the control registers as seen by the guest; the processor's own are those of non-root mode.
    pub fn visible(&self, cpu: &Cpu) -> Visible {
        if self.adopted { self.visible } else { Visible::of(cpu) }
    }
}
