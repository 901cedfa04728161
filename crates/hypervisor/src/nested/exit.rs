//! From L2: who handles an exit, and the way to L1.

use crate::exit_context::ExitContext;
use crate::failure::Failure;
use crate::registers::Visible;
use cpu::vmx::{Outcome, VmExit};
use ledger::{Family, Kind, Operation, TICKS_PER_CYCLE};
use x86::vmx::{exit as exit_control, interruption, reason};
use x86::vector;

/// What KVM of Linux 6.1 reads of vmcs02 and writes to vmcs01 when it leaves L2 for L1: the state of L2; that of the host that L1 is
/// (eight segments, tables, SYSENTER, control registers, PAT, DR7).
const READS: u64 = 10;
const WRITES: u64 = 48;
/// What it reads of vmcs02 if L1 is going to look at rarely used fields.
const RARE_READS: u64 = 35;

impl ExitContext<'_> {
    /// Whether L2 runs.
    pub fn in_inner(&self) -> bool {
        self.vcpu.nested.vmx.running.is_some()
    }

    /// Whether the exit at hand is one of L2's that L1 handles.
    pub fn is_for_guest(&mut self) -> bool {
        if !self.in_inner() {
            return false;
        }
        let exit = self.exit;
        let kind = exit.interruption & interruption::TYPE;
        match exit.basic() {
            // They are L0's first; what becomes of them is seen before the next entry.
            reason::EXTERNAL_INTERRUPT => return false,
            reason::EXCEPTION_NMI if kind == interruption::NMI => return false,
            // With shadow paging, most are the hypervisor's own.
            reason::EXCEPTION_NMI
                if !self.vm.config.mmu.is_tdp() && exit.interruption & interruption::VECTOR == u32::from(vector::PF) =>
            {
                return false;
            }
            _ => {}
        }
        let view = self.vcpu.visible.view(self.cpu.arch.xcr0);
        let memory = Some(self.vm.memory.clone());
        let Some(offer) = self.vm.offer else { return false };
        let vmx = Some((&mut self.vcpu.nested.vmx, offer));
        let mut surroundings = cpu::vmx::Surroundings { memory, vmx };
        self.cpu.wanted_in_software(&view, &mut surroundings, self.cache, &exit)
    }

    /// Leaves L2 for L1, which finds this exit.
    pub fn reflect(&mut self, mut exit: VmExit) -> Result<(), Failure> {
        let Some(offer) = self.vm.offer else { return Ok(()) };
        let before = self.vcpu.visible;
        self.charge(Operation::NestedExit, 1);
        self.charge(Operation::Vmread, READS + RARE_READS);
        self.charge(Operation::Vmwrite, WRITES);
        self.cpu.charge_host_kind(Kind::new(Family::VmxInstruction, reason::VMPTRLD), 1);
        if let Some(event) = self.vcpu.events.next.take().filter(|_| exit.vectoring & interruption::VALID == 0) {
            exit.vectoring = event.information;
            exit.vectoring_error = event.error;
            exit.instruction_length = if event.length != 0 { event.length } else { exit.instruction_length };
        }
        let clock = self.cpu.micro.clock;
        let left = self.vcpu.nested.timer_at.saturating_sub(clock) / TICKS_PER_CYCLE >> offer.vmx.timer_shift();
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
        let view = before.view(self.cpu.arch.xcr0);
        let memory = Some(self.vm.memory.clone());
        let mut surroundings = cpu::vmx::Surroundings { memory, vmx: Some((&mut self.vcpu.nested.vmx, offer)) };
        let emulation = self.cpu.exit_in_software(&view, &mut surroundings, self.cache, exit);
        let interruptibility = self.cpu.controls().interruptibility;
        if let Some(mut outer) = self.vcpu.nested.outer.take() {
            outer.interruptibility = interruptibility;
            outer.activity = x86::vmx::activity::ACTIVE;
            outer.pending_debug = 0;
            *self.cpu.controls_mut() = *outer;
        }
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
        if !self.vm.config.nested_vpid && self.vm.config.vpid {
            self.charge(Operation::TlbFlush, 1);
            let vpid = self.cpu.controls().vpid;
            self.invvpid(cpu::vmx::Invvpid::Single(vpid));
        }
        self.changed_level(&before)
    }

    /// Has L2 exit to L1 before anything else happens.
    pub fn reflect_next(&mut self, exit: VmExit) {
        self.vcpu.nested.due.get_or_insert(exit);
    }
}
