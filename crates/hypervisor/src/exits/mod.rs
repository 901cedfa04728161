//! Table of exit handlers by reason.

mod control_register;
mod cpuid;
mod cpuid_update;
mod ept;
mod exception;
mod halt;
mod interrupt;
mod io;
mod misc;
mod msr;
mod nested;
mod task;

use crate::exit_context::{ExitContext, Step};
use crate::failure::Failure;
use ledger::Operation;
use x86::debug::DR6_BS;
use x86::flags;
use x86::vmx::{interruptibility, pending_debug, reason};

/// Handler of an exit.
type Handler = fn(&mut ExitContext) -> Result<Step, Failure>;

const HANDLERS: &[(u32, Handler)] = &[
    (reason::EXCEPTION_NMI, exception::exception_or_nmi),
    (reason::EXTERNAL_INTERRUPT, interrupt::external),
    (reason::TRIPLE_FAULT, misc::triple_fault),
    (reason::INIT_SIGNAL, nested::init),
    (reason::INTERRUPT_WINDOW, interrupt::window),
    (reason::NMI_WINDOW, interrupt::nmi_window),
    (reason::TASK_SWITCH, task::switch),
    (reason::CPUID, cpuid::cpuid),
    (reason::GETSEC, misc::undefined),
    (reason::HLT, halt::hlt),
    (reason::INVD, misc::cache_flush),
    (reason::INVLPG, misc::invlpg),
    (reason::RDPMC, misc::rdpmc),
    (reason::VMCALL, misc::vmcall),
    (reason::VMCLEAR, nested::instruction),
    (reason::VMLAUNCH, nested::instruction),
    (reason::VMPTRLD, nested::instruction),
    (reason::VMPTRST, nested::instruction),
    (reason::VMREAD, nested::instruction),
    (reason::VMRESUME, nested::instruction),
    (reason::VMWRITE, nested::instruction),
    (reason::VMXOFF, nested::instruction),
    (reason::VMXON, nested::instruction),
    (reason::CONTROL_REGISTER, control_register::access),
    (reason::MOV_DR, misc::debug_register),
    (reason::IO, io::access),
    (reason::RDMSR, msr::read),
    (reason::WRMSR, msr::write),
    (reason::MWAIT, halt::mwait),
    (reason::MONITOR, halt::monitor),
    (reason::PAUSE, halt::pause),
    (reason::EPT_VIOLATION, ept::violation),
    (reason::EPT_MISCONFIGURATION, ept::misconfiguration),
    (reason::INVEPT, nested::instruction),
    (reason::INVVPID, nested::instruction),
    (reason::WBINVD, misc::cache_flush),
    (reason::XSETBV, misc::xsetbv),
    (reason::INVPCID, misc::invpcid),
    (reason::VMFUNC, nested::vmfunc),
];

/// Upper bound of the reasons in [`HANDLERS`].
const REASONS: usize = 64;

/// Handlers indexed by reason.
const TABLE: [Option<Handler>; REASONS] = {
    let mut table = [None; REASONS];
    let mut i = 0;
    while i < HANDLERS.len() {
        table[HANDLERS[i].0 as usize] = Some(HANDLERS[i].1);
        i += 1;
    }
    table
};

/// Handles the exit in the context.
pub(crate) fn handle(context: &mut ExitContext) -> Result<Step, Failure> {
    let reason = context.exit.basic();
    match TABLE.get(reason as usize).copied().flatten() {
        Some(handler) => handler(context),
        None => Err(context.unhandled()),
    }
}

impl ExitContext<'_> {
    /// Returns the failure for an exit without a handler.
    pub fn unhandled(&mut self) -> Failure {
        let basic = self.exit.basic();
        Failure::Unhandled {
            reason: basic,
            name: reason::name(basic).unwrap_or("unknown"),
            qualification: self.exit.qualification,
            place: self.place(),
        }
    }

    /// Continues after the instruction that exited.
    pub fn skip(&mut self) -> Step {
        self.pass();
        self.completed();
        Step::Resume
    }

    /// Advances RIP past the instruction that exited: interrupt shadows end.
    pub fn pass(&mut self) {
        // RIP, length and interruptibility are read, RIP is written.
        self.charge(Operation::Vmread, 3);
        self.charge(Operation::Vmwrite, 1);
        let next = self.cpu.arch.rip.wrapping_add(u64::from(self.exit.instruction_length));
        self.cpu.arch.rip = if self.cpu.engine.long64 { next } else { next & 0xffff_ffff };
        self.end_shadows();
    }

    /// Returns true if the previous instruction was STI or MOV SS.
    pub fn shadowed(&self) -> bool {
        self.cpu.controls().interruptibility & (interruptibility::STI | interruptibility::MOV_SS) != 0
    }

    fn end_shadows(&mut self) {
        self.cpu.controls_mut().interruptibility &= !(interruptibility::STI | interruptibility::MOV_SS);
        self.cpu.arch.flags &= !flags::RF;
    }

    /// Handles the completion of an instruction on behalf of the guest: interrupt shadows end, and a single step traps,
    /// together with breakpoints that MOV SS has deferred.
    pub fn completed(&mut self) {
        let held = self.take_held_breakpoints();
        self.end_shadows();
        self.trap(held | if self.cpu.arch.flags & flags::TF != 0 { DR6_BS } else { 0 });
    }

    /// Takes the breakpoints that MOV SS has deferred until the next instruction completes.
    pub fn take_held_breakpoints(&mut self) -> u64 {
        let held = std::mem::take(&mut self.cpu.controls_mut().pending_debug);
        if held & pending_debug::ENABLED_BREAKPOINT != 0 { held & pending_debug::BREAKPOINTS } else { 0 }
    }

    /// Reads the exit qualification.
    pub fn qualification(&mut self) -> u64 {
        self.charge(Operation::Vmread, 1);
        self.exit.qualification
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_one_handler() {
        assert!(HANDLERS.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert!(HANDLERS.iter().all(|entry| reason::name(entry.0).is_some()));
    }
}
