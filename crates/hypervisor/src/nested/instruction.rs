//! The instructions of VMX, which exit: L1's are carried out, those of L2 go to L1.

use crate::exit_context::{ExitContext, Step};
use crate::failure::Failure;
use crate::mmu::NestedInvept;
use cpu::vmx::{Accesses, Invalidation, Invept, Invvpid, Outcome};
use ledger::Operation;

impl ExitContext<'_> {
    /// Carries out an instruction of VMX for L1.
    pub fn vmx_instruction(&mut self) -> Result<Step, Failure> {
        // Qualification and instruction information, which say where the operand is; RIP goes on.
        self.charge(Operation::Vmread, 4);
        self.charge(Operation::Vmwrite, 1);
        self.charge(Operation::NestedInstruction, 1);
        let before = self.vcpu.visible;
        let current = self.vcpu.nested.vmx.operation.current().map(|(address, _)| address);
        let emulation = self.in_software(None);
        self.charge(Operation::GuestWalk, operand_references(&emulation.accesses));
        self.follow_invalidations(&emulation.accesses.invalidations)?;
        if current != self.vcpu.nested.vmx.operation.current().map(|(address, _)| address) {
            self.vcpu.nested.dirty = true;
        }
        if emulation.outcome == Outcome::Entered {
            self.follow_writes(&emulation);
            self.enter_inner(&emulation.view)?;
            return Ok(Step::Resume);
        }
        let (step, completed) = self.finish(&emulation)?;
        if completed && before != self.vcpu.visible {
            // An entry that failed late loads the state of the host that L1 is.
            self.changed_level(None, false)?;
        }
        if std::mem::take(&mut self.vcpu.nested.init) && !self.vcpu.nested.vmx.operation.is_on() {
            return Ok(Step::Board(cpu::Exit::Init));
        }
        Ok(step)
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
