//! VMX instructions, which exit: L1's are executed, those of L2 are reported to L1.

use super::shadow_fields::{is_frequent, is_rare_state};
use crate::exit_context::{ExitContext, Step};
use crate::failure::Failure;
use crate::mmu::NestedInvept;
use cpu::vmx::{Accesses, Invalidation, Invept, Invvpid, Outcome};
use ledger::{Family, Kind, Operation};
use x86::vmx::reason;

/// Position of the register operand with the field encoding in instruction information.
const REG2_SHIFT: u32 = 28;
/// Number of VMREADs with which KVM of Linux 6.1 copies rarely used state (`sync_vmcs02_to_vmcs12_rare`).
const RARE_READS: u64 = 35;

impl ExitContext<'_> {
    /// Executes a VMX instruction of L1.
    pub fn vmx_instruction(&mut self) -> Result<Step, Failure> {
        // Qualification and instruction information, which locate the operand; RIP advances.
        self.charge(Operation::Vmread, 4);
        self.charge(Operation::Vmwrite, 1);
        self.charge(Operation::NestedInstruction, 1);
        let before = self.vcpu.visible;
        let reason = self.exit.basic();
        let of_field = matches!(reason, reason::VMREAD | reason::VMWRITE);
        let current = self.current_vmcs12();
        // KVM copies the shadow VMCS back when its VMCS is entered or released.
        self.take_shadow_vmcs(matches!(reason, reason::VMLAUNCH | reason::VMRESUME));
        if of_field {
            self.follow_field(reason);
        }
        let emulation = self.in_software(None);
        self.charge(Operation::GuestWalk, operand_references(&emulation.accesses));
        self.follow_invalidations(&emulation.accesses.invalidations)?;
        self.cpu.arch.vmx.guest_operation = self.vcpu.in_vmx_operation();
        let changed = current != self.current_vmcs12();
        if changed {
            self.vcpu.nested.dirty = true;
            self.charge_rare_state();
        }
        if emulation.outcome == Outcome::Entered {
            self.follow_writes(&emulation);
            self.enter_inner(&emulation.view)?;
            return Ok(Step::Resume);
        }
        let entry = matches!(reason, reason::VMLAUNCH | reason::VMRESUME);
        self.give_shadow_vmcs(changed || entry);
        let (step, completed) = self.finish(&emulation)?;
        if completed && before != self.vcpu.visible {
            // An entry that fails late loads L1's host state.
            self.changed_level(None, false)?;
        }
        if !self.vcpu.in_vmx_operation() && std::mem::take(&mut self.vcpu.nested.init) {
            return Ok(Step::Board(cpu::Exit::Init));
        }
        Ok(step)
    }

    fn current_vmcs12(&self) -> Option<u64> {
        self.vcpu.nested.vmx.operation.current().map(|(address, _)| address)
    }

    /// Handles VMREAD or VMWRITE of a field that is not in the shadow VMCS, or without a shadow VMCS.
    fn follow_field(&mut self, reason: u32) {
        let register = self.exit.instruction_information >> REG2_SHIFT;
        let encoding = self.cpu.arch.gpr[register as usize] as u32;
        match reason {
            reason::VMWRITE => self.vcpu.nested.dirty |= !is_frequent(encoding),
            _ if is_rare_state(encoding) => self.charge_rare_state(),
            _ => {}
        }
    }

    /// Charges the copy of rarely used state from vmcs02, which becomes current for it.
    fn charge_rare_state(&mut self) {
        if std::mem::take(&mut self.vcpu.nested.rare_left) {
            self.charge(Operation::Vmread, RARE_READS);
            self.cpu.charge_host_kind(Kind::new(Family::VmxInstruction, reason::VMPTRLD), 2);
        }
    }

    /// Handles INVEPT and INVVPID.
    fn follow_invalidations(&mut self, invalidations: &[Invalidation]) -> Result<(), Failure> {
        for what in invalidations {
            match *what {
                Invalidation::Ept(what) => {
                    let what = match what {
                        Invept::Single(eptp) => NestedInvept::Single(eptp),
                        Invept::Global => NestedInvept::All,
                    };
                    self.with_mmu(|mmu, vcpu, _| mmu.nested_invept(vcpu, what))?;
                }
                Invalidation::Vpid(what) => self.nested_invvpid(what)?,
            }
        }
        Ok(())
    }

    /// Handles INVVPID: all nested guests of L1 share a tag.
    fn nested_invvpid(&mut self, what: Invvpid) -> Result<(), Failure> {
        let vpid = self.inner_tag(self.cpu.controls().vpid);
        self.invvpid(match what {
            Invvpid::Address { linear, .. } => Invvpid::Address { vpid, linear },
            _ => Invvpid::Single(vpid),
        });
        self.with_mmu(|mmu, vcpu, _| mmu.nested_invvpid(vcpu))
    }
}

/// Returns the number of table entries that were read for the operand: the walk for the instruction itself is not
/// necessary after an exit.
fn operand_references(accesses: &Accesses) -> u64 {
    let walks = u64::from(accesses.walks.max(1));
    u64::from(accesses.references) * (walks - 1) / walks
}
