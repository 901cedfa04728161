//! The loop that enters the guest and handles its exits.

use crate::controls;
use crate::events::{Entered, Events, GuestEvent};
use crate::exit_context::{ExitContext, Step};
use crate::exits;
use crate::failure::Failure;
use crate::mmu::Flushes;
use crate::nested::Nested;
use crate::registers::Visible;
use crate::vcpu::Vcpu;
use crate::vm::Hypervisor;
use cpu::arch::attention;
use cpu::vmx::VmExit;
use cpu::{BlockCache, Cpu, Exit};
use ledger::{Family, Kind, Operation, Ticks};
use x86::msr::SPEC_CTRL;
use x86::vmx::{interruptibility, interruption, reason};

impl Vcpu {
    /// Runs the guest until an event that concerns the board, or until `deadline`. A board calls this instead of
    /// [`Cpu::run`], always with the same processor.
    pub fn run(
        &mut self,
        vm: &mut Hypervisor,
        cpu: &mut Cpu,
        cache: &mut BlockCache,
        deadline: Ticks,
    ) -> Result<Exit, Failure> {
        let mut context = ExitContext { vcpu: self, vm, cpu, cache, exit: VmExit::default() };
        let held = match context.vcpu.held.take() {
            Some(held) => held,
            None => context.arrive()?,
        };
        let exit = context.run(deadline);
        match exit {
            Ok(Exit::Debug | Exit::Sample) => context.vcpu.held = Some(held),
            _ => context.cpu.attend(held),
        }
        context.show();
        exit
    }
}

impl ExitContext<'_> {
    /// Takes over the attention flags that the board has set since the last run. Returns those that must wait until the
    /// next run.
    fn arrive(&mut self) -> Result<u32, Failure> {
        if !self.vcpu.adopted {
            self.adopt()?;
        } else if self.vcpu.moved {
            self.settle()?;
        }
        self.follow_others()?;
        let events = &mut self.vcpu.events;
        let root = !self.cpu.non_root();
        let asserted = self.cpu.arch.attention & attention::INTR != 0;
        // The hypervisor already knows of it, or is about to check: no exit is needed.
        if !asserted || root || events.waiting {
            events.waiting = asserted;
            self.cpu.arch.attention &= !attention::INTR;
        }
        if self.vcpu.kicked {
            events.waiting |= asserted;
            self.cpu.attend(attention::INTR);
        }
        if self.cpu.arch.attention & attention::NMI == 0 {
            return Ok(0);
        }
        if events.nmi {
            // One NMI is already pending; while the guest is in its handler no more are kept.
            self.cpu.arch.attention &= !attention::NMI;
            return Ok(if self.cpu.arch.nmi_blocked { 0 } else { attention::NMI });
        }
        if root {
            events.nmi = true;
            self.cpu.arch.attention &= !attention::NMI;
        }
        Ok(0)
    }

    /// Handles requests of other virtual CPUs: the interrupt that they would send makes the guest exit first.
    fn follow_others(&mut self) -> Result<(), Failure> {
        let behind = self.vcpu.followed != self.vm.announced.count;
        let asked = self.with_mmu(|mmu, vcpu, _| mmu.take_flushes(vcpu))?;
        self.vcpu.due = self.vcpu.due.and(asked);
        self.vcpu.kicked = self.cpu.non_root() && (self.vcpu.kicked || asked.any() || behind);
        Ok(())
    }

    /// Adopts the processor's state as the guest's.
    fn adopt(&mut self) -> Result<(), Failure> {
        let cpu = &mut *self.cpu;
        self.vcpu.visible = Visible::of(cpu);
        self.vcpu.events = Events::default();
        *self.vcpu.nested = Nested::default();
        (cpu.arch.vmx.inner, cpu.arch.vmx.guest_operation) = (None, false);
        self.vcpu.spec_ctrl = false;
        *cpu.controls_mut() = controls::fixed(&self.vm.config, &self.vm.shared, &self.vm.ownership, cpu);
        self.vcpu.due = self.vcpu.due.and(Flushes::RESET);
        self.vcpu.adopted = true;
        self.update_cpuid(false);
        self.unregister()?;
        self.vcpu.paravirt.hypercall_page = 0;
        self.reset_mmu()
    }

    /// Publishes the guest's view of its registers for inspection of its memory.
    fn show(&mut self) {
        if self.cpu.non_root() {
            self.ownership().follow(&mut self.vcpu.visible, self.cpu);
        }
        self.cpu.arch.vmx.visible = Some(self.vcpu.visible.view(self.cpu.arch.xcr0));
    }

    fn run(&mut self, deadline: Ticks) -> Result<Exit, Failure> {
        loop {
            // A start-up signal makes the processor exit between runs.
            let left = self.cpu.arch.attention & attention::VM_EXIT != 0;
            if !self.cpu.non_root() && !left {
                if self.cpu.stops_after() {
                    return Ok(Exit::Debug);
                }
                if let Some(exit) = self.due(deadline) {
                    if exit == Exit::Deadline && !self.must_emulate() {
                        // KVM has no end of a turn: it loads a root that an exit has unloaded before it enters the
                        // guest again. Until the next turn of this virtual CPU, the others must find the root in use.
                        self.load_root()?;
                    }
                    return Ok(exit);
                }
                if self.leave_for_guest()? {
                    continue;
                }
                if self.must_emulate() {
                    if self.cpu.stops_here(self.cache) {
                        return Ok(Exit::Debug);
                    }
                    if let Step::Board(exit) = self.emulate_next()? {
                        return Ok(exit);
                    }
                    continue;
                }
                match self.enter()? {
                    None => {}
                    Some(Step::Resume) => continue,
                    Some(Step::Board(exit)) => return Ok(exit),
                }
            }
            match self.cpu.run(self.cache, deadline) {
                Exit::Vm => {
                    self.exit = self.cpu.arch.vm_exit;
                    self.vcpu.nested.left_at = self.cpu.micro.clock;
                    self.left()?;
                    let entered = self.follow_exit();
                    if self.is_for_guest() {
                        self.reflect(self.exit)?;
                        continue;
                    }
                    self.take_interrupted(entered);
                    if let Step::Board(exit) = exits::handle(self)? {
                        return Ok(exit);
                    }
                }
                exit => return Ok(exit),
            }
        }
    }

    /// Returns an exit for the board that must precede the entry of the guest.
    fn due(&mut self, deadline: Ticks) -> Option<Exit> {
        if std::mem::take(&mut self.vcpu.events.shutdown) {
            self.vcpu.events.next = None;
            return Some(Exit::Shutdown);
        }
        if self.cpu.arch.attention & attention::BUS != 0 {
            self.cpu.arch.attention &= !attention::BUS;
            return Some(Exit::Bus);
        }
        if self.cpu.arch.attention & attention::INIT != 0 {
            self.cpu.arch.attention &= !attention::INIT;
            if !self.vcpu.in_vmx_operation() {
                return Some(Exit::Init);
            }
            self.vcpu.nested.init = true;
        }
        if self.cpu.arch.attention & attention::CODE != 0 {
            self.cpu.drop_written_code(self.cache);
        }
        (self.cpu.micro.clock >= deadline).then_some(Exit::Deadline)
    }

    /// Handles changes of the guest's own register bits after an exit.
    fn left(&mut self) -> Result<(), Failure> {
        self.charge(Operation::RunLoop, 1);
        if self.vcpu.spec_ctrl {
            self.cpu.charge_host_kind(Kind::new(Family::Rdmsr, SPEC_CTRL), 1);
        }
        self.ownership().follow(&mut self.vcpu.visible, self.cpu);
        self.charge_xsave_state();
        self.follow_cached_root()
    }

    /// Takes over events whose delivery the exit interrupted: they will be injected again.
    fn take_interrupted(&mut self, entered: Option<Entered>) {
        let exit = self.exit;
        let length = exit.instruction_length;
        if let Some(event) = GuestEvent::interrupted(exit.vectoring, exit.vectoring_error, length) {
            self.vcpu.events.next = Some(event);
            if exit.basic() == reason::EXCEPTION_NMI {
                self.interrupted_by_fault(&event, entered);
            }
            if event.kind() == interruption::NMI {
                // It will be injected again, and will block NMIs then.
                self.cpu.controls_mut().interruptibility &= !interruptibility::NMI;
            }
        }
    }
}
