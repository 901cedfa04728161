//! Accesses to control registers, and the effects of their changes.

use crate::devices::DeviceAddress;
use crate::events::vector;
use crate::exit_context::{ExitContext, Step};
use crate::failure::Failure;
use crate::registers::Visible;
use ledger::Operation;
use x86::control::{CR3_NO_FLUSH, CR4_PCIDE};
use x86::vmx::qualification::control_register as qualification;

/// Handles the exit of a control register access (SDM vol. 3, table 27-3).
pub(super) fn access(context: &mut ExitContext) -> Result<Step, Failure> {
    let what = context.qualification();
    context.charge(Operation::ControlRegister, 1);
    let number = what & qualification::NUMBER;
    let to = what & qualification::TYPE == 0;
    let before = context.vcpu.visible;
    let register = (what >> qualification::REGISTER_SHIFT & qualification::REGISTER) as usize;
    let given = context.cpu.arch.gpr[register];
    let given = if context.cpu.engine.long64 { given } else { given & 0xffff_ffff };
    if number == 8 {
        context.charge_device(DeviceAddress::ApicRegister);
    }
    if to && number == 4 && !offered(context, given) {
        context.raise(vector::GP, Some(0));
        return Ok(Step::Resume);
    }
    if !to || number != 3 {
        return context.emulate_register_access(before, None);
    }
    // A root that the guest found in the cache and that has been dropped since.
    let paravirt = context.vcpu.paravirt.state.is_some() && !context.in_inner();
    let meant = context.vcpu.paravirt.cr3.retired(given).filter(|_| paravirt);
    let value = meant.unwrap_or(given);
    let kept = std::mem::replace(&mut context.cpu.arch.gpr[register], value);
    let step = context.emulate_register_access(before, Some(value));
    context.cpu.arch.gpr[register] = kept;
    step
}

impl ExitContext<'_> {
    /// Executes the access with the guest's registers and handles the changes. `cr3` is the value moved to CR3.
    fn emulate_register_access(&mut self, before: Visible, cr3: Option<u64>) -> Result<Step, Failure> {
        self.charge(Operation::Vmread, 3);
        self.charge(Operation::Vmwrite, 1);
        let (step, completed) = self.execute_for_guest()?;
        if completed {
            self.control_registers_changed(before, cr3)?;
        }
        Ok(step)
    }

    /// Handles changes of the guest's control registers since `before`. `cr3` is the value written to CR3, even if it
    /// is unchanged.
    pub fn control_registers_changed(&mut self, before: Visible, cr3: Option<u64>) -> Result<(), Failure> {
        let now = self.vcpu.visible;
        if before.cr0 != now.cr0 {
            // The register and its shadow.
            self.charge(Operation::Vmwrite, 2);
            self.mmu_cr0_changed(before.cr0)?;
        }
        if before.cr4 != now.cr4 {
            self.charge(Operation::Vmwrite, 2);
            self.mmu_cr4_changed(before.cr4)?;
            if (before.cr4 ^ now.cr4) & CR4_PCIDE != 0 {
                self.size_cr3_cache()?;
            }
            self.cpuid_may_have_changed();
        }
        if before.efer != now.efer {
            self.mmu_efer_changed(before.efer)?;
        }
        if let Some(value) = cr3.or((before.cr3 != now.cr3).then_some(now.cr3)) {
            let no_flush = now.cr4 & CR4_PCIDE != 0 && value & CR3_NO_FLUSH != 0;
            self.mmu_new_cr3(!no_flush)?;
        }
        Ok(())
    }
}

/// Checks the bits of CR4: raises #GP for a bit that CPUID does not offer although the processor has it.
fn offered(context: &mut ExitContext, value: u64) -> bool {
    value & crate::cpuid::hidden_cr4(&context.vm.config) == 0
}
