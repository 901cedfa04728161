//! Exits of L2: selection of the handling level, and the transition to L1.

use crate::exit_context::ExitContext;
use crate::failure::Failure;
use crate::mmu::EptExit;
use crate::registers::Visible;
use cpu::vmx::{Controls, Outcome, VmExit};
use ledger::{Family, Kind, Operation, TICKS_PER_CYCLE};
use x86::vector;
use x86::vmx::qualification::ept as qualification;
use x86::vmx::{exit as exit_control, interruptibility, interruption, reason};

/// Number of fields that KVM of Linux 6.1 reads from vmcs02 and writes to vmcs01 when it leaves L2 for L1: the state of
/// L2, and L1's host state (eight segments, tables, SYSENTER, control registers, PAT, DR7).
const READS: u64 = 10;
const WRITES: u64 = 48;

impl ExitContext<'_> {
    /// Returns true while L2 runs.
    pub fn in_inner(&self) -> bool {
        self.vcpu.nested.vmx.running.is_some()
    }

    /// Returns true if L1 handles the current exit of L2.
    pub fn is_for_guest(&mut self) -> bool {
        if !self.in_inner() {
            return false;
        }
        let exit = self.exit;
        let kind = exit.interruption & interruption::TYPE;
        match exit.basic() {
            // They belong to L0 first; they are evaluated before the next entry.
            reason::EXTERNAL_INTERRUPT => return false,
            reason::EXCEPTION_NMI if kind == interruption::NMI => return false,
            // With shadow paging, most are the hypervisor's own.
            reason::EXCEPTION_NMI
                if !self.vm.config.mmu.is_tdp()
                    && exit.interruption & interruption::VECTOR == u32::from(vector::PF) =>
            {
                return false;
            }
            _ => {}
        }
        self.software(|cpu, view, surroundings, cache| cpu.wanted_in_software(view, surroundings, cache, &exit))
    }

    /// Leaves L2 for L1, with this exit.
    pub fn reflect(&mut self, mut exit: VmExit) -> Result<(), Failure> {
        let Some(offer) = self.vm.offer else { return Ok(()) };
        self.charge(Operation::NestedExit, 1);
        self.charge(Operation::Vmread, READS);
        self.charge(Operation::Vmwrite, WRITES);
        self.cpu.charge_host_kind(Kind::new(Family::VmxInstruction, reason::VMPTRLD), 1);
        if let Some(event) = self.vcpu.events.next.take().filter(|_| exit.vectoring & interruption::VALID == 0) {
            exit.vectoring = event.information;
            exit.vectoring_error = event.error;
            exit.instruction_length = if event.length != 0 { event.length } else { exit.instruction_length };
            if event.kind() == interruption::NMI {
                // It was in delivery: it blocks others.
                self.cpu.controls_mut().interruptibility |= interruptibility::NMI;
            }
        }
        let unblocked = exit.basic() == reason::EPT_VIOLATION && exit.qualification & qualification::NMI_UNBLOCKED != 0;
        if unblocked && exit.vectoring & interruption::VALID == 0 {
            // The exit reports the IRET to L1, which blocks NMIs again itself.
            self.cpu.controls_mut().interruptibility &= !interruptibility::NMI;
        }
        let clock = self.cpu.micro.clock;
        let left = (self.vcpu.nested.timer_at.saturating_sub(clock) / TICKS_PER_CYCLE) >> offer.vmx.timer_shift();
        let controls = self.cpu.controls();
        let (activity, pending, status) = (controls.activity, controls.pending_debug, controls.interrupt_status);
        if let Some(inner) = &mut self.vcpu.nested.vmx.running {
            (inner.activity, inner.pending_debug) = (activity, pending);
            if controls.secondary(x86::vmx::secondary::VIRTUAL_INTERRUPTS) {
                inner.interrupt_status = status;
            }
            if inner.exit & exit_control::SAVE_PREEMPTION_TIMER != 0 {
                inner.preemption_timer = u32::try_from(left).unwrap_or(u32::MAX);
            }
        }
        let tag = self.vcpu.nested.running().map(Controls::tag).filter(|tag| *tag != 0);
        let left_at = self.vcpu.nested.left_at;
        let emulation = self
            .software(|cpu, view, surroundings, cache| cpu.exit_in_software(view, surroundings, cache, exit, left_at));
        let interruptibility = self.cpu.controls().interruptibility;
        if let Some(mut outer) = self.vcpu.nested.outer.take() {
            outer.interruptibility = interruptibility;
            outer.activity = x86::vmx::activity::ACTIVE;
            outer.pending_debug = 0;
            *self.cpu.controls_mut() = *outer;
        }
        self.give_shadow_vmcs(true);
        self.vcpu.nested.rare_left = true;
        self.vcpu.nested.due = None;
        self.vcpu.nested.entering = false;
        self.vcpu.debug_registers = false;
        self.cpu.arch.vmx.inner = None;
        self.vcpu.visible = Visible::of_view(&emulation.view);
        self.cpu.arch.xcr0 = emulation.view.xcr0;
        self.follow_writes(&emulation);
        if emulation.outcome == Outcome::Shutdown {
            self.vcpu.events.shutdown = true;
        }
        self.changed_level(tag, false)
    }

    /// Reports an access of L2 that L1's EPT denies.
    pub fn reflect_ept(&mut self, what: EptExit) {
        let length = self.exit.instruction_length;
        let exit = |reason, qualification, gpa, linear| VmExit {
            reason,
            qualification,
            guest_physical: gpa,
            guest_linear: linear,
            instruction_length: length,
            ..VmExit::default()
        };
        self.reflect_next(match what {
            EptExit::Violation { gpa, linear, qualification } => {
                exit(reason::EPT_VIOLATION, qualification, gpa, linear)
            }
            EptExit::Misconfiguration { gpa } => exit(reason::EPT_MISCONFIGURATION, 0, gpa, 0),
            EptExit::LogFull { qualification, .. } => exit(reason::PML_FULL, qualification, 0, 0),
        });
    }

    /// Schedules an exit of L2 to L1 that precedes everything else.
    pub fn reflect_next(&mut self, exit: VmExit) {
        self.vcpu.nested.due.get_or_insert(exit);
    }
}
