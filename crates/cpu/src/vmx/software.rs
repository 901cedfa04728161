//! VMX of a guest that is itself a hypervisor, for the hypervisor below it: the same instructions, checks and
//! transitions that [`root`](super::root) implements for software on the processor, executed in emulation.
//!
//! There are three operations. If the guest hypervisor executes a VMX instruction, [`Cpu::emulate_in`] executes it in
//! root mode, on the guest's own [`Operation`](super::root::operation::Operation). If that was a successful VM entry, the outcome
//! is [`Outcome::Entered`]: the registers are those of the nested guest, whose controls are in [`GuestVmx::running`]
//! from then on. Emulation for the nested guest takes place in non-root mode with these controls, and if they cause an
//! exit, the outcome is [`Outcome::Exit`]. Finally [`Cpu::exit_in_software`] completes an exit: the registers are the
//! guest hypervisor's again.

use super::controls::Controls;
use super::emulate::{Emulation, Outcome, Surroundings};
use super::information::VmExit;
use super::offer::{GuestVmx, Offer};
use super::state::GuestView;
use crate::arch::attention;
use crate::blocks::Derived;
use crate::cache::Cache;
use crate::state::Cpu;
use ledger::Ticks;
use x86::reg;
use x86::vmx::qualification::control_register as access;
use x86::vmx::qualification::io;
use x86::vmx::{interruptibility, interruption, pin, primary, reason, secondary};

impl Controls {
    /// Returns true if an exception exits.
    pub fn intercepts(&self, vector: u8, code: Option<u32>) -> bool {
        super::events::in_bitmap(self, vector, code)
    }
}

impl Cpu {
    /// Returns the offer of the emulating hypervisor.
    #[inline]
    pub(super) fn offered_to_guest(&self) -> Option<&Offer> {
        self.engine.emulation.as_ref()?.offer()
    }

    /// Returns the bits of CR4 that the processor has, and the guest does not.
    pub(crate) fn hidden_cr4(&self) -> u64 {
        self.offered_to_guest().map_or(0, |offer| offer.hidden_cr4)
    }

    /// Replaces the processor's VMX state by that of a guest.
    pub(super) fn take_guest_vmx(&mut self, vmx: &mut GuestVmx) {
        std::mem::swap(&mut self.arch.vmx.operation, &mut vmx.operation);
        let Some(running) = vmx.running.take() else { return };
        let outer = std::mem::replace(&mut self.arch.vmx.controls, *running);
        self.arch.vmx.controls.interruptibility = outer.interruptibility;
        self.arch.vmx.ept = self.arch.vmx.controls.secondary(secondary::EPT);
        self.arch.vmx.active = true;
        self.keep_outer_controls(outer);
    }

    /// Restores the processor's VMX state.
    pub(super) fn give_back_guest_vmx(&mut self, vmx: &mut GuestVmx, outer: Option<Controls>, entered: bool) {
        std::mem::swap(&mut self.arch.vmx.operation, &mut vmx.operation);
        let in_guest = std::mem::take(&mut self.arch.vmx.active);
        self.arch.vmx.ept = false;
        let Some(outer) = outer else { return };
        let inner = std::mem::replace(&mut self.arch.vmx.controls, outer);
        if !entered {
            self.arch.vmx.controls.interruptibility = inner.interruptibility;
        }
        vmx.running = in_guest.then(|| Box::new(inner));
    }

    fn keep_outer_controls(&mut self, outer: Controls) {
        if let Some(emulating) = &mut self.engine.emulation {
            emulating.outer = Some(outer);
        }
    }

    /// Installs the controls of an entry.
    pub(super) fn take_entry_controls(&mut self, controls: Controls) {
        let outer = std::mem::replace(&mut self.arch.vmx.controls, controls);
        if self.engine.emulation.is_some() {
            self.keep_outer_controls(outer);
        }
    }

    /// Completes a VM entry in software.
    pub(super) fn entered_in_software(&mut self) {
        self.arch.vmx.active = true;
        if let Some(emulating) = &mut self.engine.emulation {
            emulating.entered = true;
        }
    }

    /// Returns true if the previous instruction blocks VM entries.
    pub(super) fn blocked_by_mov_ss(&self) -> bool {
        match self.engine.emulation {
            Some(_) => self.arch.vmx.controls.interruptibility & interruptibility::MOV_SS != 0,
            None => self.arch.vmx.shadow & attention::SS_SHADOW != 0,
        }
    }

    /// Returns the time-stamp counter at the processor's exit: the guest hypervisor does not see the time that software
    /// has taken since then.
    pub(super) fn tsc_at_exit(&self) -> u64 {
        let at = self.engine.emulation.as_ref().and_then(|emulating| emulating.left_at);
        self.tsc_of(at.unwrap_or(self.micro.clock))
    }

    /// Completes an exit of a nested guest, whose registers are in the processor and in `view`: its state is stored in
    /// the VMCS, that of the guest hypervisor is loaded from it. The processor has exited at time `left_at`, to which a
    /// stored time-stamp counter refers.
    pub fn exit_in_software<D: Derived>(
        &mut self,
        view: &GuestView,
        surroundings: &mut Surroundings,
        cache: &mut Cache<D>,
        exit: VmExit,
        left_at: Ticks,
    ) -> Emulation {
        self.exit_begins_in_software(exit.basic());
        self.in_software(view, surroundings, cache, |cpu| {
            cpu.arch.vm_exit = exit;
            if let Some(emulating) = &mut cpu.engine.emulation {
                emulating.left_at = Some(left_at);
            }
            (cpu.arch.vmx.active, cpu.arch.vmx.ept) = (false, false);
            cpu.exit_to_software();
            cpu.emulated_outcome()
        })
    }

    /// Processes the posted interrupts of a nested guest if this is the vector of their notification. Returns true in
    /// that case.
    pub fn post_in_software<D: Derived>(
        &mut self,
        view: &GuestView,
        surroundings: &mut Surroundings,
        cache: &mut Cache<D>,
        vector: u8,
    ) -> bool {
        let mut posted = false;
        self.in_software(view, surroundings, cache, |cpu| {
            posted = cpu.take_posted_interrupts(vector);
            Outcome::Completed
        });
        posted
    }

    /// Returns true if the controls of a guest hypervisor request an exit of its guest, if that depends on the
    /// controls; the processor, which has exited, has decided on the rest.
    pub fn wanted_in_software<D: Derived>(
        &mut self,
        view: &GuestView,
        surroundings: &mut Surroundings,
        cache: &mut Cache<D>,
        exit: &VmExit,
    ) -> bool {
        let mut wanted = false;
        self.in_software(view, surroundings, cache, |cpu| {
            wanted = cpu.wants_exit(exit);
            Outcome::Completed
        });
        wanted
    }

    /// Returns true if the current controls make the guest exit for this reason.
    fn wants_exit(&mut self, exit: &VmExit) -> bool {
        let controls = &self.arch.vmx.controls;
        let by_primary = BY_PRIMARY.iter().find(|(reason, _)| *reason == exit.basic());
        if let Some((_, control)) = by_primary {
            return controls.primary(*control);
        }
        let by_secondary = BY_SECONDARY.iter().find(|(reason, _)| *reason == exit.basic());
        if let Some((_, control)) = by_secondary {
            return controls.secondary(*control);
        }
        let register = |number: u8| self.arch.gpr[usize::from(number)];
        match exit.basic() {
            reason::EXCEPTION_NMI if exit.interruption & interruption::TYPE == interruption::NMI => {
                controls.pin & pin::NMI != 0
            }
            reason::EXCEPTION_NMI => {
                let code = (exit.interruption & interruption::ERROR_CODE != 0).then_some(exit.interruption_error);
                controls.intercepts((exit.interruption & interruption::VECTOR) as u8, code)
            }
            reason::EXTERNAL_INTERRUPT => controls.pin & pin::EXTERNAL_INTERRUPT != 0,
            reason::PREEMPTION_TIMER => controls.pin & pin::PREEMPTION_TIMER != 0,
            reason::PAUSE => controls.primary(primary::PAUSE) || controls.secondary(secondary::PAUSE_LOOP),
            reason::INVPCID => controls.primary(primary::INVLPG) && controls.secondary(secondary::INVPCID),
            reason::RDMSR => self.msr_exits(register(reg::RCX) as u32, false),
            reason::WRMSR => self.msr_exits(register(reg::RCX) as u32, true),
            reason::IO => {
                let port = (exit.qualification >> io::PORT_SHIFT) as u16;
                self.port_exits(port, (exit.qualification & io::SIZE) as u8 + 1)
            }
            reason::CONTROL_REGISTER => self.wants_register_exit(exit.qualification),
            reason::VMREAD => self.shadow_exits(register(exit_register(exit)), 0),
            reason::VMWRITE => self.shadow_exits(register(exit_register(exit)), 1),
            reason::XSAVES | reason::XRSTORS => {
                let requested = register(reg::RDX) << 32 | register(reg::RAX) & 0xffff_ffff;
                requested & self.arch.msr.xss & controls.xss_bitmap != 0
            }
            // Accesses to guest memory, which depend on tables.
            reason::EPT_VIOLATION | reason::EPT_MISCONFIGURATION | reason::PML_FULL => false,
            // The function may be one that is executed.
            reason::VMFUNC => false,
            _ => true,
        }
    }

    /// Returns true if an access to a control register exits (SDM vol. 3, table 27-3).
    fn wants_register_exit(&self, what: u64) -> bool {
        let controls = &self.arch.vmx.controls;
        let number = what & access::NUMBER;
        let general = (what >> access::REGISTER_SHIFT & access::REGISTER) as usize;
        let value = self.arch.gpr[general];
        let value = if self.engine.long64 { value } else { value & 0xffff_ffff };
        match (what & access::TYPE, number) {
            (0, _) => self.control_write_exits(number as u8, value).0,
            (access::FROM, 3) => controls.primary(primary::CR3_STORE),
            (access::FROM, 8) => controls.primary(primary::CR8_STORE),
            (access::CLTS, _) => self.clts_exits(),
            (access::LMSW, _) => self.lmsw_exits(what >> access::SOURCE_SHIFT & 0xffff),
            _ => false,
        }
    }
}

/// Returns the register number in the field Reg2 of instruction information.
fn exit_register(exit: &VmExit) -> u8 {
    (exit.instruction_information >> 28) as u8
}

/// Exit reasons that depend on one primary control.
const BY_PRIMARY: &[(u32, u32)] = &[
    (reason::INTERRUPT_WINDOW, primary::INTERRUPT_WINDOW),
    (reason::NMI_WINDOW, primary::NMI_WINDOW),
    (reason::HLT, primary::HLT),
    (reason::INVLPG, primary::INVLPG),
    (reason::RDPMC, primary::RDPMC),
    (reason::RDTSC, primary::RDTSC),
    (reason::RDTSCP, primary::RDTSC),
    (reason::MOV_DR, primary::MOV_DR),
    (reason::MWAIT, primary::MWAIT),
    (reason::MONITOR, primary::MONITOR),
];

/// Exit reasons that depend on one secondary control.
const BY_SECONDARY: &[(u32, u32)] = &[
    (reason::GDTR_IDTR, secondary::DESCRIPTOR_TABLE),
    (reason::LDTR_TR, secondary::DESCRIPTOR_TABLE),
    (reason::WBINVD, secondary::WBINVD),
    (reason::RDRAND, secondary::RDRAND),
    (reason::RDSEED, secondary::RDSEED),
];
