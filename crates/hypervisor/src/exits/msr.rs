//! RDMSR and WRMSR.

use crate::controls;
use crate::devices::DeviceAddress;
use crate::events::vector;
use crate::exit_context::{ExitContext, Step};
use crate::failure::Failure;
use crate::paravirt::{MSR_HYPERCALL_PAGE, MSR_STATE_PAGE};
use ledger::Operation;
use std::rc::Rc;
use x86::{msr, reg};

/// Registers of the local APIC and its deadline timer.
fn of_apic(index: u32) -> bool {
    matches!(index, msr::APIC_BASE | msr::TSC_DEADLINE | msr::X2APIC_FIRST..=msr::X2APIC_LAST)
}

fn index(context: &ExitContext) -> u32 {
    context.cpu.arch.gpr[usize::from(reg::RCX)] as u32
}

/// Exit for RDMSR.
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

/// Exit for WRMSR.
pub(super) fn write(context: &mut ExitContext) -> Result<Step, Failure> {
    context.charge(Operation::Msr, 1);
    let index = index(context);
    let paravirt = context.vm.config.paravirt && !context.in_inner();
    if !paravirt || !matches!(index, MSR_HYPERCALL_PAGE | MSR_STATE_PAGE) {
        let (step, completed) = by_processor(context, index)?;
        match index {
            msr::SPEC_CTRL if context.cpu.arch.msr.spec_ctrl != 0 => context.give_spec_ctrl(),
            // KVM does not look whether the value is another.
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

/// Registers that the processor model or the board holds: they are the guest's own. Whether the access has completed.
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
    /// A guest that uses IA32_SPEC_CTRL writes it at each entry of its kernel: from its first value on it has the register
    /// without exits, and each exit saves what it holds.
    fn give_spec_ctrl(&mut self) {
        // While L2 runs, the guest's own controls are put aside; L2 has the register when L1 enters it next.
        let outer = match &mut self.vcpu.nested.outer {
            Some(outer) => outer.as_mut(),
            None => self.cpu.controls_mut(),
        };
        let Some(bitmap) = &mut outer.msr_bitmap else { return };
        controls::pass_through(Rc::make_mut(bitmap), msr::SPEC_CTRL);
        self.vcpu.spec_ctrl = true;
    }
}
