//! A virtual CPU: what the hypervisor keeps for one. How it runs is in `enter_loop.rs`.

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

/// A virtual CPU: what the hypervisor keeps for one besides the processor's own state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Vcpu {
    /// The guest's control registers as it sees them.
    pub(crate) visible: Visible,
    /// What CPUID says of them.
    pub(crate) runtime_cpuid: RuntimeCpuid,
    /// What is to be injected.
    pub(crate) events: Events,
    /// Its roots and role.
    pub(crate) mmu: Option<crate::mmu::VcpuMmu>,
    /// Its part of the paravirtual interface.
    pub(crate) paravirt: Paravirt,
    /// Added to the processor's time-stamp counter.
    pub(crate) tsc_offset: u64,
    /// What it keeps for a guest that is a hypervisor.
    pub(crate) nested: Box<Nested>,
    /// What of the guest's translations must go before it runs again.
    pub(crate) due: Flushes,
    /// The guest has its debug registers, until the next exit.
    pub(crate) debug_registers: bool,
    /// The guest has IA32_SPEC_CTRL for itself.
    pub(crate) spec_ctrl: bool,
    /// Another virtual CPU wants this one to leave the guest.
    pub(crate) kicked: bool,
    /// Announcements of freed page directories that this one has followed.
    pub(crate) followed: u64,
    /// A debugger has stopped the processor in the midst of a run, after which it is to have this attention.
    pub(crate) held: Option<u32>,
    /// [`Vcpu::visible`] is what the guest has: false before the first entry and after the board has reset the processor.
    pub(crate) adopted: bool,
}

impl Vcpu {
    /// A virtual CPU that takes over whatever state the processor has when it is first run.
    pub fn new() -> Self {
        Self::default()
    }

    /// What is wrong with one that was saved when so many page directories had been announced, its MMU left aside.
    pub(crate) fn wrong(&self, announced: u64) -> Option<&'static str> {
        let unaligned = self.paravirt.state.is_some_and(|page| page.address() & OFFSET != 0);
        let table = [
            (self.followed > announced, "it has followed announcements that nobody made"),
            (unaligned, "its state page is no page"),
        ];
        table.into_iter().find_map(|(wrong, what)| wrong.then_some(what)).or_else(|| self.nested.wrong())
    }

    /// The board has reset the processor or set its registers: what it holds is the guest's state now.
    pub fn replaced(&mut self) {
        self.adopted = false;
        self.held = None;
    }

    /// Whether the guest is a hypervisor that has entered VMX operation, which blocks INIT signals.
    pub(crate) fn in_vmx_operation(&self) -> bool {
        self.nested.vmx.operation.is_on()
    }

    /// Whether an external interrupt ends a HLT: of a guest of the guest, if that is interruptible or its hypervisor wants to know. That this
    /// hypervisor does is no matter.
    pub fn interrupts_end_halt(&self, cpu: &Cpu) -> bool {
        match self.nested.running() {
            Some(inner) => inner.pin & pin::EXTERNAL_INTERRUPT != 0 || cpu.arch.flags & flags::IF != 0,
            None => cpu.interrupts_end_halt(),
        }
    }

    /// The guest's control registers as it sees them; the processor's own are those of non-root mode.
    pub fn visible(&self, cpu: &Cpu) -> Visible {
        if self.adopted { self.visible } else { Visible::of(cpu) }
    }
}
