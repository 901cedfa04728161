//! Instructions that the hypervisor executes for the guest, and their costs.
//!
//! One mechanism executes them all ([`Cpu::emulate`](cpu::Cpu::emulate)), but only instructions that KVM decodes and
//! emulates are charged as emulation. If an exit reports the operands, the handler charges its own operations instead.

use crate::devices::{self, DeviceAddress};
use crate::events::{GuestEvent, vector};
use crate::exit_context::{ExitContext, Step};
use crate::failure::Failure;
use crate::registers::Visible;
use crate::resume_flag::returns_nowhere;
use cpu::vmx::{DeviceAccess, Emulation, Flush, GuestView, Outcome, Surroundings, VmExit};
use cpu::{BlockCache, Cpu};
use ledger::Operation;
use x86::flags;
use x86::vmx::{interruptibility, reason};

impl Visible {
    /// Adds XCR0 to the view for [`Cpu::emulate`](cpu::Cpu::emulate).
    pub fn view(&self, xcr0: u64) -> GuestView {
        GuestView { cr0: self.cr0, cr3: self.cr3, cr4: self.cr4, efer: self.efer, pdpte: self.pdpte, xcr0 }
    }

    pub(crate) fn of_view(view: &GuestView) -> Self {
        Self { cr0: view.cr0, cr3: view.cr3, cr4: view.cr4, efer: view.efer, pdpte: view.pdpte }
    }
}

impl ExitContext<'_> {
    /// Executes the instruction at RIP and handles its writes; the caller charges for it. The second value is true if
    /// the instruction completed; otherwise its exception will be injected. The caller handles changes of control
    /// registers.
    pub fn execute_for_guest(&mut self) -> Result<(Step, bool), Failure> {
        let emulation = self.in_software(None);
        self.finish(&emulation)
    }

    /// Emulates the instruction at RIP, and charges for the emulation.
    pub fn emulate(&mut self) -> Result<Step, Failure> {
        self.emulate_with(None)
    }

    /// Emulates the delivery of an event.
    pub fn emulate_event(&mut self, event: GuestEvent) -> Result<Step, Failure> {
        self.emulate_with(Some(event))
    }

    fn emulate_with(&mut self, event: Option<GuestEvent>) -> Result<Step, Failure> {
        let before = self.vcpu.visible;
        let emulation = self.in_software(event);
        self.charge_emulation(&emulation);
        let (step, completed) = self.finish(&emulation)?;
        if completed {
            self.control_registers_changed(before, None)?;
            self.follow_flushes(&emulation.accesses.flushes)?;
        }
        Ok(step)
    }

    /// Executes an instruction that invalidates translations, and returns the invalidations.
    pub fn execute_invalidation(&mut self) -> Result<(Step, Vec<Flush>), Failure> {
        let emulation = self.in_software(None);
        let (step, _) = self.finish(&emulation)?;
        Ok((step, emulation.accesses.flushes))
    }

    /// Performs the invalidations of an instruction.
    pub fn follow_flushes(&mut self, flushes: &[Flush]) -> Result<(), Failure> {
        flushes.iter().try_for_each(|flush| match *flush {
            Flush::Page(linear) | Flush::PageOf { linear, .. } => self.invalidate_page(linear),
            Flush::Pcid(pcid) => self.invalidate_pcid(Some(pcid)),
            Flush::All | Flush::NonGlobal => self.flush_guest(),
        })
    }

    pub fn in_software(&mut self, event: Option<GuestEvent>) -> Emulation {
        self.software(|cpu, view, surroundings, cache| match event {
            None => cpu.emulate_in(view, surroundings, cache),
            Some(event) => {
                let fields = (event.information, event.error, event.length);
                cpu.emulate_event(view, surroundings, cache, fields)
            }
        })
    }

    /// Lets the processor execute something in software, with the guest's view of its registers.
    pub fn software<T>(
        &mut self,
        work: impl FnOnce(&mut Cpu, &GuestView, &mut Surroundings, &mut BlockCache) -> T,
    ) -> T {
        let memory = Some(self.vm.memory.clone());
        let vmx = self.vm.offer.map(|offer| (&mut self.vcpu.nested.vmx, offer));
        let mut surroundings = Surroundings { memory, vmx };
        let cpu = &mut *self.cpu;
        let view = self.vcpu.visible.view(cpu.arch.xcr0);
        // The guest's time-stamp counter differs from the processor's by its offset.
        let offset = cpu.arch.msr.tsc_offset;
        cpu.arch.msr.tsc_offset = offset.wrapping_add(self.vcpu.tsc_offset);
        let maker = cpu.follow_shown_maker();
        let result = work(cpu, &view, &mut surroundings, self.cache);
        cpu.follow_maker(maker);
        self.vcpu.tsc_offset = cpu.arch.msr.tsc_offset.wrapping_sub(offset);
        cpu.arch.msr.tsc_offset = offset;
        result
    }

    /// Handles the result of an emulation.
    pub fn finish(&mut self, emulation: &Emulation) -> Result<(Step, bool), Failure> {
        self.follow_writes(emulation);
        let exits = emulation.outcome == Outcome::Exit;
        let completed = !exits && !matches!(emulation.outcome, Outcome::Exception { .. } | Outcome::Shutdown);
        if completed || exits {
            self.vcpu.visible = Visible::of_view(&emulation.view);
            self.cpu.arch.xcr0 = emulation.view.xcr0;
        }
        if completed {
            let held = self.take_held_breakpoints();
            self.trap(emulation.trap | held);
        }
        let step = match emulation.outcome {
            Outcome::Completed | Outcome::Mwait { .. } | Outcome::Entered => Step::Resume,
            Outcome::Exit => {
                let exit = self.cpu.arch.vm_exit;
                if exit.basic() == reason::EPT_VIOLATION {
                    self.with_mmu(|mmu, vcpu, _| mmu.nested_violation(vcpu, exit.guest_physical))?;
                }
                if returns_nowhere(&exit) {
                    self.forget_handler();
                }
                self.reflect_next(exit);
                Step::Resume
            }
            Outcome::Exception { vector: vector::PF, code, address, .. } => {
                self.raise_page_fault(address, code.unwrap_or(0));
                Step::Resume
            }
            Outcome::Exception { vector: vector::DB, dr6, .. } => {
                self.raise_debug(dr6);
                Step::Resume
            }
            Outcome::Exception { vector, code, .. } => {
                self.raise(vector, code);
                Step::Resume
            }
            Outcome::Halt => self.halt(),
            Outcome::Shutdown if self.in_inner() => {
                self.forget_handler();
                self.reflect_next(VmExit { reason: reason::TRIPLE_FAULT, ..VmExit::default() });
                Step::Resume
            }
            Outcome::Shutdown => Step::Board(cpu::Exit::Shutdown),
        };
        Ok((step, completed))
    }

    /// Handles writes to the guest's memory.
    pub fn follow_writes(&mut self, emulation: &Emulation) {
        for write in &emulation.accesses.writes {
            self.page_written(write.address, write.len);
        }
        for entry in &emulation.accesses.marked_entries {
            self.vm.mmu.entry_marked(*entry);
        }
    }

    /// Charges decoding, walks and accesses.
    fn charge_emulation(&mut self, emulation: &Emulation) {
        // RIP, RFLAGS, and the access rights of CS are read; RIP and RFLAGS are written.
        self.charge(Operation::Vmread, 3);
        self.charge(Operation::Vmwrite, 2);
        self.charge(Operation::Emulate, 1);
        self.charge(Operation::GuestWalk, u64::from(emulation.accesses.references));
        for device in &emulation.accesses.devices {
            let access = match *device {
                DeviceAccess::Port { port, .. } => DeviceAddress::Port(port),
                DeviceAccess::Memory { address, .. } => DeviceAddress::Memory(address),
                DeviceAccess::Msr { .. } | DeviceAccess::TaskPriority { .. } => DeviceAddress::ApicRegister,
            };
            self.charge_device(access);
        }
    }

    /// Charges an access to a device.
    pub fn charge_device(&mut self, access: DeviceAddress) {
        self.charge(devices::operation(self.vm.config.irqchip, access), 1);
    }

    /// Emulates the next step of code that the processor cannot run itself: an event, or one instruction.
    pub fn emulate_next(&mut self) -> Result<Step, Failure> {
        let blocking = self.cpu.controls().interruptibility;
        let shadow = blocking & (interruptibility::STI | interruptibility::MOV_SS) != 0;
        let nmi_open = !shadow && blocking & interruptibility::NMI == 0;
        let open = !shadow && self.cpu.arch.flags & flags::IF != 0;
        let event = match self.vcpu.events.next.take() {
            None if self.vcpu.events.nmi && nmi_open => {
                self.vcpu.events.nmi = false;
                Some(GuestEvent::nmi())
            }
            None if self.vcpu.events.waiting && open => self.acknowledge(),
            next => next,
        };
        match event {
            Some(event) => {
                self.charge(Operation::Inject, 1);
                if event.sets_resume_flag() {
                    self.set_resume_flag(true);
                }
                self.emulate_event(event)
            }
            None => self.emulate(),
        }
    }
}
