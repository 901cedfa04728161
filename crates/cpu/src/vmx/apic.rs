//! Virtualization of the local APIC (SDM vol. 3, chapter 29): the virtual-APIC page, accesses to the APIC's page and registers, virtual
//! interrupts, posted interrupts.

use super::controls::Controls;
use super::information::VmExit;
use super::state::TrapExit;
use crate::arch::attention;
use crate::exec::interrupt::{Event, Source};
use crate::fault::{Cause, Exec, Fault};
use crate::state::Cpu;
use x86::msr::{X2APIC_EOI, X2APIC_FIRST, X2APIC_LAST, X2APIC_SELF_IPI, X2APIC_TPR};
use x86::page::OFFSET;
use x86::vmx::qualification::apic as qualification;
use x86::vmx::{pin, primary, reason, secondary};

/// Offsets of registers in the virtual-APIC page (29.1.1).
mod register {
    pub const TPR: u64 = 0x80;
    pub const PPR: u64 = 0xa0;
    pub const EOI: u64 = 0xb0;
    pub const ISR: u64 = 0x100;
    pub const IRR: u64 = 0x200;
    pub const ICR_LOW: u64 = 0x300;
    pub const ICR_HIGH: u64 = 0x310;
    pub const SELF_IPI: u64 = 0x3f0;
}

/// Registers that can be read and written if the APIC's registers are virtualized: offsets of the first and the last
/// one of a range, and true if they can be written (29.4.2 and 29.4.3.1).
const VIRTUALIZED: &[(u64, u64, bool)] = &[
    (0x020, 0x020, true),
    (0x030, 0x030, false),
    (0x080, 0x080, true),
    (0x0b0, 0x0b0, true),
    (0x0d0, 0x0f0, true),
    (0x100, 0x270, false),
    (0x280, 0x280, true),
    (0x300, 0x310, true),
    (0x320, 0x370, true),
    (0x380, 0x380, true),
    (0x3e0, 0x3e0, true),
];

/// Posted-interrupt descriptor: request bits, followed by the outstanding-notification bit (29.6).
const POSTED_WORDS: u64 = 4;
const OUTSTANDING: u64 = 32;

/// Returns the priority class of a vector: its bits 7:4.
fn class(vector: u8) -> u8 {
    vector >> 4
}

impl Cpu {
    fn virtual_register(&self, offset: u64) -> u32 {
        self.structure::<u32>(self.arch.vmx.controls.virtual_apic + offset).unwrap_or(u32::MAX)
    }

    fn set_virtual_register(&mut self, offset: u64, value: u32) {
        let at = self.arch.vmx.controls.virtual_apic + offset;
        self.set_structure(at, value);
    }

    /// Returns the virtual task priority in the virtual-APIC page of these controls.
    pub(super) fn virtual_tpr(&self, c: &Controls) -> u32 {
        self.structure::<u8>(c.virtual_apic + register::TPR).unwrap_or(u8::MAX).into()
    }

    /// Sets the bit of a vector in a 256-bit register to `value`.
    fn set_vector(&mut self, base: u64, vector: u8, value: bool) {
        let offset = base + u64::from(vector >> 5) * 16;
        let bit = 1u32 << (vector & 31);
        let old = self.virtual_register(offset);
        self.set_virtual_register(offset, if value { old | bit } else { old & !bit });
    }

    /// Returns the highest vector in a 256-bit register, or 0.
    fn highest_vector(&self, base: u64) -> u8 {
        let word = |i: u8| self.virtual_register(base + 16 * u64::from(i));
        let found = (0..8u8).rev().find_map(|i| word(i).checked_ilog2().map(|bit| i << 5 | bit as u8));
        found.unwrap_or(0)
    }

    fn requesting(&self) -> u8 {
        self.arch.vmx.controls.interrupt_status as u8
    }

    fn servicing(&self) -> u8 {
        (self.arch.vmx.controls.interrupt_status >> 8) as u8
    }

    fn set_requesting(&mut self, vector: u8) {
        let status = &mut self.arch.vmx.controls.interrupt_status;
        *status = *status & 0xff00 | u16::from(vector);
    }

    fn set_servicing(&mut self, vector: u8) {
        let status = &mut self.arch.vmx.controls.interrupt_status;
        *status = *status & 0xff | u16::from(vector) << 8;
    }

    fn has_virtual_interrupts(&self) -> bool {
        self.arch.vmx.controls.secondary(secondary::VIRTUAL_INTERRUPTS)
    }

    /// PPR virtualization (29.1.3).
    fn virtualize_ppr(&mut self) {
        let tpr = self.virtual_register(register::TPR) as u8;
        let servicing = self.servicing();
        let ppr = if class(tpr) >= class(servicing) { tpr } else { servicing & 0xf0 };
        self.set_virtual_register(register::PPR, ppr.into());
    }

    /// Evaluation of pending virtual interrupts (29.2.1).
    fn evaluate_virtual_interrupts(&mut self) {
        let ppr = self.virtual_register(register::PPR) as u8;
        let window = self.arch.vmx.controls.primary(primary::INTERRUPT_WINDOW);
        self.arch.vmx.virtual_interrupt = !window && class(self.requesting()) > class(ppr);
        self.engine.stop_at = 0;
    }

    /// Schedules an exit after the running instruction.
    fn trap_exit(&mut self, reason: u32, qualification: u64) {
        self.arch.vmx.trap_exit = Some(TrapExit { reason, qualification });
        self.engine.stop_at = 0;
    }

    /// Virtualizes a write to the task priority (29.1.2).
    fn virtualize_tpr(&mut self) {
        if self.has_virtual_interrupts() {
            self.virtualize_ppr();
            self.evaluate_virtual_interrupts();
        } else if self.below_threshold() {
            self.trap_exit(reason::TPR_BELOW_THRESHOLD, 0);
        }
    }

    fn below_threshold(&self) -> bool {
        let controls = &self.arch.vmx.controls;
        self.virtual_tpr(controls) >> 4 < controls.tpr_threshold & 15
    }

    /// Virtualizes an EOI (29.1.4).
    fn virtualize_eoi(&mut self) {
        let vector = self.servicing();
        self.set_vector(register::ISR, vector, false);
        let next = self.highest_vector(register::ISR);
        self.set_servicing(next);
        self.virtualize_ppr();
        if self.arch.vmx.controls.eoi_exits[usize::from(vector >> 6)] >> (vector & 63) & 1 != 0 {
            self.trap_exit(reason::VIRTUALIZED_EOI, vector.into());
        } else {
            self.evaluate_virtual_interrupts();
        }
    }

    /// Virtualizes a self-IPI (29.1.5).
    fn virtualize_self_ipi(&mut self, vector: u8) {
        self.request(vector);
        self.evaluate_virtual_interrupts();
    }

    fn request(&mut self, vector: u8) {
        self.set_vector(register::IRR, vector, true);
        let highest = self.requesting().max(vector);
        self.set_requesting(highest);
    }

    /// Performs the APIC virtualization of a VM entry (26.3.2.5 and 26.7.7).
    pub(super) fn enter_virtual_apic(&mut self) {
        self.arch.vmx.virtual_interrupt = false;
        self.arch.vmx.trap_exit = None;
        let controls = &self.arch.vmx.controls;
        if !controls.primary(primary::TPR_SHADOW) {
            return;
        }
        if self.has_virtual_interrupts() {
            self.virtualize_ppr();
            self.evaluate_virtual_interrupts();
        } else if controls.secondary(secondary::APIC_ACCESSES) && self.below_threshold() {
            self.trap_exit(reason::TPR_BELOW_THRESHOLD, 0);
        }
    }

    /// Performs the exit that an instruction has scheduled, before anything else. Returns true if there was one.
    pub(crate) fn leave_after_instruction(&mut self) -> bool {
        let Some(TrapExit { reason, qualification }) = self.arch.vmx.trap_exit.take() else { return false };
        self.arch.vm_exit = VmExit { reason, qualification, ..VmExit::default() };
        self.leave_guest();
        true
    }

    /// Delivers a pending virtual interrupt (29.2.2), which nothing blocks. Returns true if there was one.
    pub(super) fn deliver_virtual_interrupt(&mut self) -> bool {
        if !self.arch.vmx.virtual_interrupt {
            return false;
        }
        let vector = self.requesting();
        self.arch.vmx.virtual_interrupt = false;
        self.set_vector(register::ISR, vector, true);
        self.set_servicing(vector);
        self.set_virtual_register(register::PPR, u32::from(vector & 0xf0));
        self.set_vector(register::IRR, vector, false);
        let next = self.highest_vector(register::IRR);
        self.set_requesting(next);
        self.arch.vmx.activity = x86::vmx::activity::ACTIVE;
        self.deliver(Event::new(vector, None, Source::External), 0);
        true
    }

    /// Returns true if an external interrupt is the notification of posted interrupts, which are then processed (29.6).
    pub(super) fn take_posted_interrupts(&mut self, vector: u8) -> bool {
        let controls = &self.arch.vmx.controls;
        if controls.pin & pin::POSTED_INTERRUPTS == 0 || controls.posted_vector != u16::from(vector) {
            return false;
        }
        let descriptor = controls.posted_descriptor;
        let who = self.ident();
        self.wiring.bus().end_of_interrupt(who);
        self.attend(attention::BUS);
        self.request_posted(descriptor);
        self.evaluate_virtual_interrupts();
        true
    }

    /// Moves the requests of a posted-interrupt descriptor to the virtual-APIC page.
    fn request_posted(&mut self, descriptor: u64) {
        let flags = self.structure::<u8>(descriptor + OUTSTANDING).unwrap_or(0);
        self.set_structure(descriptor + OUTSTANDING, flags & !1);
        for word in 0..POSTED_WORDS {
            let requests = self.structure::<u64>(descriptor + 8 * word).unwrap_or(0);
            self.set_structure(descriptor + 8 * word, 0u64);
            for bit in (0..64).filter(|bit| requests >> bit & 1 != 0) {
                self.request((word * 64 + bit) as u8);
            }
        }
    }

    /// Returns CR8 as read by a guest with a TPR shadow.
    pub(crate) fn shadow_cr8(&self) -> Option<u8> {
        let controls = &self.arch.vmx.controls;
        let shadowed = self.arch.vmx.active && controls.primary(primary::TPR_SHADOW);
        shadowed.then(|| (self.virtual_tpr(controls) >> 4) as u8)
    }

    /// Handles MOV to CR8 in a guest. Returns true if the value went to its TPR shadow.
    pub(crate) fn set_shadow_cr8(&mut self, value: u8) -> bool {
        if !self.arch.vmx.active || !self.arch.vmx.controls.primary(primary::TPR_SHADOW) {
            return false;
        }
        self.set_virtual_register(register::TPR, u32::from(value & 15) << 4);
        self.virtualize_tpr();
        true
    }

    /// RDMSR of an x2APIC register: returns its virtual value, if it is virtualized (29.5).
    pub(crate) fn virtual_x2apic_read(&self, index: u32) -> Option<u64> {
        let controls = &self.arch.vmx.controls;
        let here = self.arch.vmx.active && controls.secondary(secondary::X2APIC);
        let all = controls.secondary(secondary::APIC_REGISTERS);
        if !here || !(X2APIC_FIRST..=X2APIC_LAST).contains(&index) || !all && index != X2APIC_TPR {
            return None;
        }
        let offset = u64::from(index & 0xff) << 4;
        let low = self.virtual_register(offset);
        Some(u64::from(self.virtual_register(offset + 4)) << 32 | u64::from(low))
    }

    /// WRMSR of an x2APIC register: returns true if the value is valid, or `None` if the register is not virtualized
    /// (29.5).
    pub(crate) fn virtual_x2apic_write(&mut self, index: u32, value: u64) -> Option<bool> {
        if !self.arch.vmx.active || !self.arch.vmx.controls.secondary(secondary::X2APIC) {
            return None;
        }
        match index {
            X2APIC_TPR if value >> 8 == 0 => {
                self.set_virtual_register(register::TPR, value as u32);
                self.set_virtual_register(register::TPR + 4, 0);
                self.virtualize_tpr();
            }
            X2APIC_EOI if self.has_virtual_interrupts() && value == 0 => {
                self.set_virtual_register(register::EOI, 0);
                self.virtualize_eoi();
            }
            X2APIC_SELF_IPI if self.has_virtual_interrupts() && value >> 8 == 0 => {
                self.set_virtual_register(register::SELF_IPI, value as u32);
                match class(value as u8) {
                    0 => self.trap_exit(reason::APIC_WRITE, register::SELF_IPI),
                    _ => self.virtualize_self_ipi(value as u8),
                }
            }
            X2APIC_TPR => return Some(false),
            X2APIC_EOI | X2APIC_SELF_IPI if self.has_virtual_interrupts() => return Some(false),
            _ => return None,
        }
        Some(true)
    }

    /// Returns true if a physical page is the APIC-access page.
    #[inline]
    pub(crate) fn is_apic_access_page(&self, address: u64) -> bool {
        self.arch.vmx.active
            && self.arch.vmx.controls.secondary(secondary::APIC_ACCESSES)
            && address & !OFFSET == self.arch.vmx.controls.apic_access
    }

    /// Returns true if a page of 2^`shift` bytes contains the APIC-access page.
    #[inline]
    pub(crate) fn has_apic_access_page(&self, address: u64, shift: u8) -> bool {
        self.arch.vmx.active
            && self.arch.vmx.controls.secondary(secondary::APIC_ACCESSES)
            && (address ^ self.arch.vmx.controls.apic_access) >> shift == 0
    }

    /// Returns true if an access to the APIC-access page is virtualized (29.4.2 and 29.4.3.1).
    fn virtualizes_access(&self, offset: u64, size: u64, write: bool) -> bool {
        let controls = &self.arch.vmx.controls;
        if !controls.primary(primary::TPR_SHADOW) || self.engine.delivering || (offset & 15) + size > 4 {
            return false;
        }
        let register = offset & !15;
        if controls.secondary(secondary::APIC_REGISTERS) {
            return VIRTUALIZED
                .iter()
                .any(|(first, last, writable)| (*first..=*last).contains(&register) && (*writable || !write));
        }
        let with_interrupts = write && self.has_virtual_interrupts();
        register == register::TPR || with_interrupts && matches!(register, register::EOI | register::ICR_LOW)
    }

    #[cold]
    fn apic_access_exit(&mut self, offset: u64, write: bool) -> Fault {
        let kind = match (self.engine.delivering, write) {
            (true, _) => qualification::DELIVERY,
            (false, true) => qualification::WRITE,
            (false, false) => qualification::READ,
        };
        self.exit_fault(reason::APIC_ACCESS, kind << qualification::TYPE_SHIFT | offset)
    }

    /// Handles a fetch from the APIC-access page, which exits.
    pub(crate) fn fetch_from_apic_page(&mut self, address: u64) -> Fault {
        let kind = qualification::FETCH << qualification::TYPE_SHIFT;
        self.exit_fault(reason::APIC_ACCESS, kind | address & OFFSET)
    }

    /// Reads from the APIC-access page.
    pub(crate) fn apic_page_read(&mut self, address: u64, size: u64) -> Exec<u64> {
        let offset = address & OFFSET;
        if !self.virtualizes_access(offset, size, false) {
            return Err(self.apic_access_exit(offset, false));
        }
        let word = u64::from(self.virtual_register(offset & !15)) >> (8 * (offset & 3));
        Ok(word & (u64::MAX >> (64 - 8 * size)))
    }

    /// Writes to the APIC-access page. The emulation follows the instruction, which is therefore executed alone.
    pub(crate) fn apic_page_write(&mut self, address: u64, size: u64, value: u64) -> Exec {
        let offset = address & OFFSET;
        if !self.virtualizes_access(offset, size, true) {
            return Err(self.apic_access_exit(offset, true));
        }
        if !self.engine.code_write_allowed {
            self.engine.fault = Cause::CodeWrite;
            return Err(Fault);
        }
        let register = offset & !15;
        let shift = 8 * (offset & 3);
        let mask = (u32::MAX >> (32 - 8 * size as u32)) << shift;
        let word = self.virtual_register(register) & !mask | (value as u32) << shift & mask;
        self.set_virtual_register(register, word);
        self.emulate_apic_write(register, word);
        Ok(())
    }

    /// APIC-write emulation (29.4.3.2).
    fn emulate_apic_write(&mut self, register: u64, word: u32) {
        match register {
            register::TPR => {
                self.set_virtual_register(register::TPR, word & 0xff);
                self.virtualize_tpr();
            }
            register::EOI if self.has_virtual_interrupts() => {
                self.set_virtual_register(register::EOI, 0);
                self.virtualize_eoi();
            }
            register::ICR_LOW if self.has_virtual_interrupts() && is_self_ipi(word) => {
                self.virtualize_self_ipi(word as u8);
            }
            register::ICR_HIGH => self.set_virtual_register(register::ICR_HIGH, word & 0xff00_0000),
            _ => self.trap_exit(reason::APIC_WRITE, register),
        }
    }
}

/// Returns true if a command is a self-IPI that can be virtualized: fixed, edge-triggered, with a valid vector, and the
/// self shorthand.
fn is_self_ipi(command: u32) -> bool {
    const RESERVED: u32 = 0xfff0_0000 | 3 << 16 | 1 << 13 | 1 << 12;
    const SELF: u32 = 1 << 18;
    let shorthand = command & 3 << 18 == SELF;
    let (fixed, edge) = (command & 7 << 8 == 0, command & 1 << 15 == 0);
    command & RESERVED == 0 && shorthand && fixed && edge && class(command as u8) != 0
}
