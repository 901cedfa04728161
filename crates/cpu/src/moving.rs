//! A guest of a hypervisor moves to a processor of another model.

use crate::arch::{Arch, attention};
use crate::micro::Micro;
use crate::state::{Cpu, ImpossibleState};
use crate::time::START;
use crate::vmx::{Controls, VmExit};
use x86::vmx::reason;

impl Cpu {
    /// Takes over a guest's processor of another model, whose saved state may come from a file. Registers, time and the origin of charges are
    /// those of the saved state. TLBs, predictors and caches are this processor's own.
    ///
    /// The processor is in root mode afterwards, and of the controls only interruptibility and pending debug exceptions are left. Control
    /// registers are those of the saved processor, which the hypervisor must replace by the guest's.
    pub fn take_over(&mut self, arch: Arch, micro: Micro) -> Result<(), ImpossibleState> {
        let Micro { tlb, predictor, memory, .. } = self.micro.clone();
        self.restore(arch, Micro { run: START, tlb, predictor, memory, ..micro })?;
        if self.non_root() {
            self.arch.vm_exit = VmExit { reason: reason::EXTERNAL_INTERRUPT, ..VmExit::default() };
            self.save_guest_state();
        }
        let &Controls { interruptibility, pending_debug, .. } = self.controls();
        self.arch.attention &= !attention::VM_EXIT;
        self.abandon_guest();
        (self.controls_mut().interruptibility, self.controls_mut().pending_debug) = (interruptibility, pending_debug);
        self.mode_changed();
        Ok(())
    }

    /// Makes instructions follow the conventions of the maker that CPUID names, while a hypervisor executes them in software. Returns what
    /// [`Self::follow_maker`] needs afterwards.
    pub fn follow_shown_maker(&mut self) -> bool {
        let shown = self.wiring.capabilities.shows_amd;
        std::mem::replace(&mut self.wiring.capabilities.amd, shown)
    }

    /// Makes instructions follow the conventions of the processor's maker again.
    pub fn follow_maker(&mut self, amd: bool) {
        if std::mem::replace(&mut self.wiring.capabilities.amd, amd) != amd {
            self.mode_changed();
        }
    }
}
