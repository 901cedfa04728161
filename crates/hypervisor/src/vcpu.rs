//! A virtual CPU, and the loop around entering the guest and handling its exits.

use crate::controls;
use crate::events::Events;
use crate::failure::{Failure, Place};
use crate::paravirt::Paravirt;
use crate::registers::Visible;
use crate::vm::Hypervisor;
use cpu::{BlockCache, Cpu, Exit};
use ledger::Ticks;

/// A virtual CPU: what the hypervisor keeps for one besides the processor's own state.
#[derive(Debug, Default)]
pub struct Vcpu {
    /// The guest's control registers as it sees them.
    pub(crate) visible: Visible,
    /// What is to be injected.
    pub(crate) events: Events,
    /// Its part of the paravirtual interface.
    pub(crate) paravirt: Paravirt,
    /// [`Vcpu::visible`] is what the guest has: false before the first entry and after the board has reset the processor.
    adopted: bool,
}

impl Vcpu {
    /// A virtual CPU that takes over whatever state the processor has when it is first run.
    pub fn new() -> Self {
        Self::default()
    }

    /// The board has reset the processor or set its registers: what it holds is the guest's state now.
    pub fn replaced(&mut self) {
        self.adopted = false;
    }

    /// The guest's control registers as it sees them; the processor's own are those of non-root mode.
    pub fn visible(&self, cpu: &Cpu) -> Visible {
        if self.adopted { self.visible } else { Visible::of(cpu) }
    }

    /// Runs the guest until something concerns the board, or until `deadline`: what a board calls in place of [`Cpu::run`],
    /// always with the same processor.
    pub fn run(
        &mut self,
        vm: &mut Hypervisor,
        cpu: &mut Cpu,
        cache: &mut BlockCache,
        deadline: Ticks,
    ) -> Result<Exit, Failure> {
        if !self.adopted {
            self.visible = Visible::of(cpu);
            self.events = Events::default();
            self.paravirt = Paravirt::default();
            *cpu.controls_mut() = controls::fixed(&vm.config, &vm.shared, &vm.ownership, cpu);
            self.adopted = true;
        }
        if let Err(failure) = cpu.vm_reentry() {
            return Err(Failure::Entry { failure, place: Place { rip: cpu.rip, bytes: [0; 15], length: 0 } });
        }
        match cpu.run(cache, deadline) {
            Exit::Vm => {
                let exit = cpu.vm_exit;
                let reason = exit.basic();
                Err(Failure::Unhandled {
                    reason,
                    name: ledger::operation::exit_reason_name(reason).unwrap_or("unknown"),
                    qualification: exit.qualification,
                    place: Place { rip: cpu.rip, bytes: [0; 15], length: 0 },
                })
            }
            exit => Ok(exit),
        }
    }
}
