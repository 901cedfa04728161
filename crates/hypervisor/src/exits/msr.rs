//! Exits of RDMSR and WRMSR.

use crate::controls;
use crate::devices::DeviceAddress;
use crate::events::vector;
use crate::exit_context::{ExitContext, Step};
use crate::failure::Failure;
use crate::paravirt::{MSR_HYPERCALL_PAGE, MSR_STATE_PAGE};
use ledger::Operation;
use std::sync::Arc;
use x86::{msr, reg};

/// Returns true for registers of the local APIC and its deadline timer.
fn of_apic(index: u32) -> bool {
    matches!(index, msr::APIC_BASE | msr::TSC_DEADLINE | msr::X2APIC_FIRST..=msr::X2APIC_LAST)
}

fn index(context: &ExitContext) -> u32 {
    context.cpu.arch.gpr[usize::from(reg::RCX)] as u32
}

/// Handles the exit of RDMSR.
pub(super) fn read(context: &mut ExitContext) -> Result<Step, Failure> {
    context.charge(Operation::Msr, 1);
    let index = index(context);
    let paravirt = context.vm.config.paravirt && !context.in_inner();
    let own = match index {
        MSR_HYPERCALL_PAGE if paravirt => context.vcpu.paravirt.hypercall_page,
        MSR_STATE_PAGE if paravirt => context.vcpu.paravirt.state_msr(),
        _ => return Ok(by_processor(context, index)?.0),
    };
    context.cpu.set::<u32>(reg::RAX, own as u32);
    context.cpu.set::<u32>(reg::RDX, (own >> 32) as u32);
    Ok(context.skip())
}

/// Handles the exit of WRMSR.
pub(super) fn write(context: &mut ExitContext) -> Result<Step, Failure> {
    context.charge(Operation::Msr, 1);
    let index = index(context);
    let paravirt = context.vm.config.paravirt && !context.in_inner();
    if !paravirt || !matches!(index, MSR_HYPERCALL_PAGE | MSR_STATE_PAGE) {
        let (step, completed) = by_processor(context, index)?;
        match index {
            msr::SPEC_CTRL if context.cpu.arch.msr.spec_ctrl != 0 => context.give_spec_ctrl(),
            // KVM does not check if the value differs.
            msr::XSS if completed => context.cpuid_changed(),
            msr::APIC_BASE if completed => context.cpuid_may_have_changed(),
            _ => {}
        }
        return Ok(step);
    }
    let (low, high) = (context.cpu.arch.gpr[usize::from(reg::RAX)], context.cpu.arch.gpr[usize::from(reg::RDX)]);
    let value = high << 32 | low & 0xffff_ffff;
    let good = match index {
        MSR_HYPERCALL_PAGE => context.write_hypercall_page(value),
        _ => context.write_state_page(value)?,
    };
    if good {
        return Ok(context.skip());
    }
    context.raise(vector::GP, Some(0));
    Ok(Step::Resume)
}

/// Accesses a register of the guest that the processor model or the board holds. The second value is true if the access
/// completed.
fn by_processor(context: &mut ExitContext, index: u32) -> Result<(Step, bool), Failure> {
    if of_apic(index) {
        context.charge_device(DeviceAddress::ApicRegister);
    }
    context.charge(Operation::Vmread, 3);
    context.charge(Operation::Vmwrite, 1);
    let before = context.vcpu.visible;
    let (step, completed) = context.execute_for_guest()?;
    if completed {
        context.control_registers_changed(before, None)?;
    }
    Ok((step, completed))
}

impl ExitContext<'_> {
    /// Gives the guest direct access to IA32_SPEC_CTRL. A guest that uses the register writes it at each kernel entry:
    /// from its first write on there are no exits, and each exit saves the value.
    pub(crate) fn give_spec_ctrl(&mut self) {
        // While L2 runs, L1's controls are saved separately; L2 gets the register when L1 enters it next.
        let outer = match &mut self.vcpu.nested.outer {
            Some(outer) => outer.as_mut(),
            None => self.cpu.controls_mut(),
        };
        let Some(bitmap) = &mut outer.msr_bitmap else { return };
        controls::pass_through(Arc::make_mut(bitmap), msr::SPEC_CTRL);
        self.vcpu.spec_ctrl = true;
    }
}
