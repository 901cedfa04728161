//! CPUID.

use crate::events::vector;
use crate::exit_context::{ExitContext, Step};
use crate::failure::Failure;
use ledger::Operation;
use x86::reg;

/// Handles the exit of CPUID.
pub(super) fn cpuid(context: &mut ExitContext) -> Result<Step, Failure> {
    let cpu = &mut *context.cpu;
    // CPUID faulting (MISC_FEATURES_ENABLES).
    if cpu.arch.msr.misc_features & 1 != 0 && cpu.arch.cpl != 0 {
        context.raise(vector::GP, Some(0));
        return Ok(Step::Resume);
    }
    context.cpuid_wanted();
    let cpu = &mut *context.cpu;
    let (leaf, subleaf) = (cpu.arch.gpr[usize::from(reg::RAX)] as u32, cpu.arch.gpr[usize::from(reg::RCX)] as u32);
    let regs = crate::cpuid::cpuid(context.vm, &context.vcpu.runtime_cpuid, cpu, leaf, subleaf);
    for (number, value) in [(reg::RAX, regs.eax), (reg::RBX, regs.ebx), (reg::RCX, regs.ecx), (reg::RDX, regs.edx)] {
        cpu.set::<u32>(number, value);
    }
    context.charge(Operation::CpuidLookup, 1);
    Ok(context.skip())
}
