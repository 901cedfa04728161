//! The instructions of VMX, which exit: L1's are carried out, those of L2 go to L1.

use super::shadow_vmcs::{is_frequent, is_rare_state};
use crate::exit_context::{ExitContext, Step};
use crate::failure::Failure;
use crate::mmu::NestedInvept;
use cpu::vmx::{Accesses, Invalidation, Invept, Invvpid, Outcome};
use ledger::{Family, Kind, Operation};
use x86::vmx::reason;

/// Where instruction information has the register with the encoding of a field.
const REG2_SHIFT: u32 = 28;
/// VMREADs by which KVM of Linux 6.1 copies the state that L1 rarely looks at (`sync_vmcs02_to_vmcs12_rare`).
const RARE_READS: u64 = 35;

impl ExitContext<'_> {
    /// Carries out an instruction of VMX for L1.
    pub fn vmx_instruction(&mut self) -> Result<Step, Failure> {
        // Qualification and instruction information, which say where the operand is; RIP goes on.
        self.charge(Operation::Vmread, 4);
        self.charge(Operation::Vmwrite, 1);
        self.charge(Operation::NestedInstruction, 1);
        let before = self.vcpu.visible;
        let reason = self.exit.basic();
        let of_field = matches!(reason, reason::VMREAD | reason::VMWRITE);
        let current = self.current_vmcs12();
        // With a VMCS, KVM copies the shadow back when it is entered or put down.
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
            // An entry that failed late loads the state of the host that L1 is.
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

    /// VMREAD or VMWRITE of a field that the shadow VMCS has not, or that there is no shadow VMCS for.
    fn follow_field(&mut self, reason: u32) {
        let register = self.exit.instruction_information >> REG2_SHIFT;
        let encoding = self.cpu.arch.gpr[register as usize] as u32;
        match reason {
            reason::VMWRITE => self.vcpu.nested.dirty |= !is_frequent(encoding),
            _ if is_rare_state(encoding) => self.charge_rare_state(),
            _ => {}
        }
    }

    /// State that L1 rarely looks at is copied from vmcs02, which becomes the current VMCS for that.
    fn charge_rare_state(&mut self) {
        if std::mem::take(&mut self.vcpu.nested.rare_left) {
            self.charge(Operation::Vmread, RARE_READS);
            self.cpu.charge_host_kind(Kind::new(Family::VmxInstruction, reason::VMPTRLD), 2);
        }
    }

    /// Follows INVEPT and INVVPID.
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

    /// INVVPID: the tags of all of L1's guests are one.
    fn nested_invvpid(&mut self, what: Invvpid) -> Result<(), Failure> {
        let vpid = self.inner_tag(self.cpu.controls().vpid);
        self.invvpid(match what {
            Invvpid::Address { linear, .. } => Invvpid::Address { vpid, linear },
            _ => Invvpid::Single(vpid),
        });
        self.with_mmu(|mmu, vcpu, _| mmu.nested_invvpid(vcpu))
    }
}

/// Entries of tables that were read for the operand: the walk for the instruction itself is one that the exit spares.
fn operand_references(accesses: &Accesses) -> u64 {
    let walks = u64::from(accesses.walks.max(1));
    u64::from(accesses.references) * (walks - 1) / walks
}
