//! Preparation of a guest entry: injected events, requested windows, and register contents.

use crate::events::{GuestEvent, vector};
use crate::exit_context::{ExitContext, Step};
use crate::failure::Failure;
use cpu::arch::attention;
use cpu::vmx::EntryFailure;
use ledger::Operation;
use x86::control::CR0_PE;
use x86::debug::{DR6_BREAKPOINTS, DR7_GD};
use x86::flags;
use x86::vmx::{entry, interruptibility, interruption, primary};

impl ExitContext<'_> {
    /// Loads the guest's root, events and registers, and enters the guest. If the processor cannot run the next code,
    /// it is emulated instead, and the resulting step is returned.
    pub fn enter(&mut self) -> Result<Option<Step>, Failure> {
        let root = self.load_root()?;
        self.inject();
        self.program();
        self.program_root(root);
        self.charge_xsave_state();
        match self.cpu.vm_reentry() {
            Ok(()) => {
                if std::mem::take(&mut self.vcpu.nested.entering) && std::mem::take(&mut self.vcpu.nested.init) {
                    // It was blocked until now, and L2 exits at once.
                    self.cpu.attend(attention::INIT);
                }
                Ok(None)
            }
            Err(EntryFailure::GuestState(_)) if !self.vm.config.unrestricted_guest => {
                // Segments in a state that only real mode leaves behind, during a switch to protected mode.
                self.take_back();
                self.emulate_next().map(Some)
            }
            Err(failure) => Err(Failure::Entry { failure, place: self.place() }),
        }
    }

    /// Handles a failed entry: the event to be injected is pending again.
    fn take_back(&mut self) {
        self.cpu.controls_mut().entry_interruption = 0;
        if let Some(entered) = self.vcpu.events.entered.take() {
            self.set_resume_flag(entered.before);
            self.vcpu.events.next = entered.event;
        }
    }

    /// Selects the event to be injected, and requests windows for events that cannot be injected yet.
    fn inject(&mut self) {
        let blocking = self.cpu.controls().interruptibility;
        let shadow = blocking & (interruptibility::STI | interruptibility::MOV_SS) != 0;
        let nmi_shut = shadow || blocking & interruptibility::NMI != 0;
        let open = !shadow && self.cpu.arch.flags & flags::IF != 0;
        // While L2 runs they may belong to L1, which cannot be told yet.
        let (nmis_away, interrupts_away) = self.of_guest_hypervisor();
        let event = if let Some(event) = self.vcpu.events.next.take() {
            Some(event)
        } else if self.vcpu.events.nmi && !nmi_shut && !nmis_away {
            self.vcpu.events.nmi = false;
            Some(GuestEvent::nmi())
        } else if self.vcpu.events.waiting && open && !interrupts_away {
            self.acknowledge()
        } else {
            None
        };
        if interrupts_away && self.vcpu.events.waiting {
            self.exit_for_interrupt();
        }
        self.charge(Operation::Inject, u64::from(event.is_some()));
        self.follow_entry(event);
        // Exceptions have no error codes in real mode.
        let codeless = if self.vcpu.visible.cr0 & CR0_PE == 0 { interruption::ERROR_CODE } else { 0 };
        let windows_away = self.windows_of_guest_hypervisor();
        let controls = self.cpu.controls_mut();
        (controls.entry_interruption, controls.entry_error_code, controls.entry_instruction_length) =
            event.map_or((0, 0, 0), |event| (event.information & !codeless, event.error, event.length));
        let windows =
            [(primary::INTERRUPT_WINDOW, self.vcpu.events.waiting), (primary::NMI_WINDOW, self.vcpu.events.nmi)];
        let wanted = windows.iter().filter(|(_, wanted)| *wanted).fold(windows_away, |all, (bit, _)| all | bit);
        let asked = controls.primary & (primary::INTERRUPT_WINDOW | primary::NMI_WINDOW);
        controls.primary = controls.primary & !asked | wanted;
        self.charge(Operation::InterruptWindow, u64::from((asked ^ wanted).count_ones()));
    }

    /// Takes the interrupt that the board asserts, if it is still asserted.
    pub fn acknowledge(&mut self) -> Option<GuestEvent> {
        self.vcpu.events.waiting = false;
        let who = self.cpu.ident();
        let vector = self.cpu.wiring.bus().acknowledge(who);
        // The board must check its lines before the next interrupt can be considered asserted.
        self.cpu.attend(attention::BUS);
        if vector.is_some() && self.vm.config.irqchip == crate::config::Irqchip::User {
            self.charge(Operation::DeviceUser, 1);
        }
        vector.map(GuestEvent::external)
    }

    /// Schedules an exception for the next entry. #PF writes its address to CR2 now.
    pub fn raise(&mut self, vector: u8, code: Option<u32>) {
        if !self.exception_for_guest(vector, code, 0) {
            self.put(vector, code);
        }
    }

    fn put(&mut self, vector: u8, code: Option<u32>) {
        self.vcpu.events.raise(vector, code);
        if self.vcpu.events.next.is_some_and(|event| event.vector() == vector::DF) {
            self.forget_handler();
        }
    }

    /// Schedules #PF.
    pub fn raise_page_fault(&mut self, address: u64, code: u32) {
        if self.exception_for_guest(vector::PF, Some(code), address) {
            return;
        }
        self.cpu.arch.cr2 = address;
        self.put(vector::PF, Some(code));
    }

    /// Schedules #DB, which sets these bits of DR6.
    pub fn raise_debug(&mut self, dr6: u64) {
        if self.exception_for_guest(vector::DB, None, dr6) {
            return;
        }
        self.cpu.arch.dr[6] = self.cpu.arch.dr[6] & !DR6_BREAKPOINTS | dr6;
        self.cpu.arch.dr[7] &= !DR7_GD;
        self.put(vector::DB, None);
    }

    /// Returns true if the processor cannot run the next code: real mode, and with two-dimensional paging also unpaged
    /// protected mode, without unrestricted guest.
    pub fn must_emulate(&self) -> bool {
        let visible = &self.vcpu.visible;
        let config = &self.vm.config;
        !config.unrestricted_guest && (visible.cr0 & CR0_PE == 0 || config.mmu.is_tdp() && !visible.paging())
    }

    /// Writes registers and controls for the entry.
    pub fn program(&mut self) {
        let visible = self.vcpu.visible;
        let ownership = self.ownership();
        let cpu = &mut *self.cpu;
        cpu.arch.cr0 = ownership.real_cr0(&visible);
        cpu.arch.cr4 = ownership.real_cr4(&visible);
        cpu.arch.msr.efer = ownership.real_efer(&visible);
        let controls = cpu.controls_mut();
        controls.cr0_shadow = visible.cr0;
        controls.cr4_shadow = visible.cr4;
        controls.entry = if visible.long() { entry::IA32E_GUEST } else { 0 };
        // The guest keeps its debug registers for one run.
        let exiting = if std::mem::take(&mut self.vcpu.debug_registers) { 0 } else { primary::MOV_DR };
        controls.primary = controls.primary & !primary::MOV_DR | exiting;
        if self.in_inner() {
            self.program_inner();
        } else {
            self.cpu.controls_mut().tsc_offset = self.vcpu.tsc_offset;
        }
    }
}
