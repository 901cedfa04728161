//! Emulation: one instruction, or the delivery of one event, executed in software for a hypervisor.
//!
//! The processor's own instruction handlers execute it, in root mode, with the guest's view of the control registers.
//! Memory is accessed through the guest's own page tables and a map from guest-physical to host-physical addresses,
//! never through the TLB. Nothing is charged, and no time passes. All accesses are reported, so that the hypervisor can
//! charge for them and react to writes to page tables.

use super::emulating::{Accesses, DeviceAccess, Emulating, Found, GuestPhysical};
use super::offer::{GuestVmx, Offer};
use super::state::GuestView;
use crate::access::{Access, Privilege};
use crate::arch::attention;
use crate::blocks::Derived;
use crate::cache::Cache;
use crate::fault::{Cause, Exec};
use crate::state::Cpu;
use crate::tlb::Entry;
use std::sync::Arc;
use x86::debug::DR6_BS;
use x86::page::PAGE;
use x86::vmx::interruptibility;
use x86::{flags, vector};

impl GuestView {
    /// Returns the values of the processor's own registers.
    pub fn of(cpu: &Cpu) -> Self {
        Self {
            cr0: cpu.arch.cr0,
            cr3: cpu.arch.cr3,
            cr4: cpu.arch.cr4,
            efer: cpu.arch.msr.efer,
            pdpte: cpu.arch.pdpte,
            xcr0: cpu.arch.xcr0,
        }
    }

    /// Returns true if long mode is active.
    pub fn long_mode(&self) -> bool {
        self.efer & x86::control::EFER_LMA != 0
    }

    fn load(&self, cpu: &mut Cpu) {
        cpu.arch.cr0 = self.cr0;
        cpu.arch.cr3 = self.cr3;
        cpu.arch.cr4 = self.cr4;
        cpu.arch.msr.efer = self.efer;
        cpu.arch.pdpte = self.pdpte;
        cpu.arch.xcr0 = self.xcr0;
    }
}

/// Outcome of an emulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The instruction, or one iteration of it, is complete; in the latter case RIP is unchanged.
    Completed,
    /// The instruction raised an exception without other changes; the exception has not been delivered.
    Exception {
        /// Vector.
        vector: u8,
        /// Error code, if the vector has one.
        code: Option<u32>,
        /// Value of CR2 on delivery of a page fault.
        address: u64,
        /// Bits that the delivery of a debug exception sets in DR6.
        dr6: u64,
    },
    /// HLT was executed.
    Halt,
    /// MWAIT was executed, and the processor waits.
    Mwait {
        /// True if interrupts wake the processor even if they are masked.
        masked: bool,
    },
    /// The processor shut down (triple fault).
    Shutdown,
    /// A guest hypervisor has entered its guest, see `software.rs`.
    Entered,
    /// A nested guest exits: [`vm_exit`](crate::arch::Arch::vm_exit) has the details.
    Exit,
}

/// Environment of an emulation.
#[derive(Default)]
pub struct Surroundings<'a> {
    /// Map of the guest's memory; without it, guest-physical addresses are host-physical ones.
    pub memory: Option<Arc<dyn GuestPhysical>>,
    /// The guest's VMX state, if it has VMX, and the features that are offered to it.
    pub vmx: Option<(&'a mut GuestVmx, Offer)>,
}

/// Result of an emulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emulation {
    /// Outcome.
    pub outcome: Outcome,
    /// Registers of the view after the emulation.
    pub view: GuestView,
    /// Debug traps that follow a completed instruction, as bits of DR6.
    pub trap: u64,
    /// Accesses.
    pub accesses: Accesses,
}

impl Cpu {
    /// Executes the instruction at RIP in software, in root mode, as a guest with these control registers would.
    /// `memory` maps the guest's memory; without it, guest-physical addresses are host-physical ones.
    ///
    /// The guest's other registers are the processor's. Afterwards the control registers have their values from before
    /// the call; their values after the instruction are in [`Emulation::view`]. A completed instruction ends blocking
    /// by STI and MOV SS in [`Controls::interruptibility`](super::Controls::interruptibility), or sets it.
    pub fn emulate<D: Derived>(
        &mut self,
        view: &GuestView,
        memory: Option<&Arc<dyn GuestPhysical>>,
        cache: &mut Cache<D>,
    ) -> Emulation {
        let mut surroundings = Surroundings { memory: memory.cloned(), vmx: None };
        self.emulate_in(view, &mut surroundings, cache)
    }

    /// Executes an instruction as [`Self::emulate`] does, for a guest that may be a hypervisor.
    pub fn emulate_in<D: Derived>(
        &mut self,
        view: &GuestView,
        surroundings: &mut Surroundings,
        cache: &mut Cache<D>,
    ) -> Emulation {
        self.in_software(view, surroundings, cache, Self::emulate_instruction)
    }

    /// Delivers an event through the guest's interrupt table in software; its format is VM-entry interruption
    /// information (SDM vol. 3, 24.8.3). The caller must set CR2 and DR6 before.
    pub fn emulate_event<D: Derived>(
        &mut self,
        view: &GuestView,
        surroundings: &mut Surroundings,
        cache: &mut Cache<D>,
        (information, error_code, instruction_length): (u32, u32, u32),
    ) -> Emulation {
        self.in_software(view, surroundings, cache, |cpu| {
            let controls = &mut cpu.arch.vmx.controls;
            controls.entry_interruption = information;
            controls.entry_error_code = error_code;
            controls.entry_instruction_length = instruction_length;
            cpu.inject();
            cpu.arch.vmx.controls.entry_interruption = 0;
            cpu.emulated_outcome()
        })
    }

    pub(super) fn in_software<D: Derived>(
        &mut self,
        view: &GuestView,
        surroundings: &mut Surroundings,
        cache: &mut Cache<D>,
        body: impl FnOnce(&mut Self) -> Outcome,
    ) -> Emulation {
        debug_assert!(!self.non_root() && self.engine.emulation.is_none());
        let real = GuestView::of(self);
        let allowed = std::mem::replace(&mut self.engine.code_write_allowed, true);
        let offer = surroundings.vmx.as_ref().map(|(_, offer)| *offer);
        let memory = surroundings.memory.clone();
        self.engine.emulation = Some(Box::new(Emulating { memory, offer, ..Emulating::default() }));
        if let Some((vmx, _)) = &mut surroundings.vmx {
            self.take_guest_vmx(vmx);
        }
        view.load(self);
        self.engine.ilen = 0;
        self.arch.attention &= !LEFT_BEHIND;
        self.arch.pending_dr6 = 0;
        self.mode_changed();
        let outcome = body(self);
        let trap = std::mem::take(&mut self.arch.pending_dr6);
        self.arch.attention &= !(LEFT_BEHIND & !(attention::STI_SHADOW | attention::SS_SHADOW));
        let after = GuestView::of(self);
        let mut done = self.engine.emulation.take().unwrap_or_default();
        if let Some((vmx, _)) = &mut surroundings.vmx {
            self.give_back_guest_vmx(vmx, done.outer.take(), done.entered);
        }
        self.engine.ilen = 0;
        self.arch.single_step = false;
        self.engine.code_write_allowed = allowed;
        self.show_privilege_level();
        real.load(self);
        if done.mapping_changed {
            self.mapping_changed();
        }
        self.mode_changed();
        self.drop_written_code(cache);
        Emulation { outcome, view: after, trap, accesses: done.accesses }
    }

    fn emulate_instruction(&mut self) -> Outcome {
        let start = self.arch.rip;
        let blocked = self.arch.vmx.controls.interruptibility & interruptibility::MOV_SS != 0;
        let resume = self.arch.flags & flags::RF != 0;
        if !resume && (!blocked || self.wiring.capabilities.amd) {
            let hit = self.instruction_breakpoint();
            if hit != 0 {
                self.debug_trap(hit);
                return self.emulated_fault();
            }
        }
        self.arch.single_step = self.arch.flags & flags::TF != 0;
        if self.execute_in_software().is_err() {
            self.arch.rip = start;
            return self.emulated_fault();
        }
        if self.has_entered() {
            self.arch.pending_dr6 = 0;
            return Outcome::Entered;
        }
        if resume {
            self.arch.flags &= !flags::RF;
        }
        if self.arch.single_step && self.arch.attention & attention::SS_SHADOW == 0 {
            self.arch.pending_dr6 |= DR6_BS;
        }
        self.emulated_outcome()
    }

    fn has_entered(&self) -> bool {
        self.engine.emulation.as_ref().is_some_and(|emulating| emulating.entered)
    }

    fn execute_in_software(&mut self) -> Exec {
        let mode = self.engine.mode;
        let linear = self.code_linear();
        if self.engine.long64 && !self.canonical(linear) {
            return Err(self.gp(0));
        }
        let privilege = self.privilege();
        let (physical, _) = self.translate(linear, Access::Fetch, privilege)?;
        let (instruction, _) = self.fetch_at(linear, physical, mode)?;
        let (op, _) = self.operation_of(&instruction, mode);
        // Repeated instructions stop after one iteration.
        self.engine.stop_at = 0;
        op.execute(self).map(|_| ())
    }

    /// Returns the exception that stopped the instruction.
    fn emulated_fault(&mut self) -> Outcome {
        match std::mem::take(&mut self.engine.fault) {
            Cause::Exception(vector, code) => {
                let address = if vector == vector::PF { self.engine.fault_address } else { 0 };
                let dr6 = if vector == vector::DB { self.engine.fault_dr6 } else { 0 };
                self.arch.pending_dr6 = 0;
                Outcome::Exception { vector, code, address, dr6 }
            }
            Cause::VmExit if self.arch.vmx.active => {
                self.arch.pending_dr6 = 0;
                self.instruction_exit();
                Outcome::Exit
            }
            Cause::Shutdown
            | Cause::None
            | Cause::CodeWrite
            | Cause::Ahead
            | Cause::Counters
            | Cause::Iteration
            | Cause::VmExit => Outcome::Shutdown,
        }
    }

    /// Returns the outcome of a completed instruction.
    pub(super) fn emulated_outcome(&mut self) -> Outcome {
        let shadows =
            [(attention::STI_SHADOW, interruptibility::STI), (attention::SS_SHADOW, interruptibility::MOV_SS)];
        let set = shadows.iter().filter(|(shadow, _)| self.arch.attention & shadow != 0);
        let blocking = set.fold(0, |all, (_, bit)| all | bit);
        let nmi = if self.arch.nmi_blocked { interruptibility::NMI } else { 0 };
        self.arch.vmx.controls.interruptibility = nmi | blocking;
        let due = self.arch.attention;
        if self.arch.vmx.trap_exit.is_some() {
            self.leave_after_instruction();
        }
        if self.arch.attention & attention::VM_EXIT != 0 {
            Outcome::Exit
        } else if due & attention::SHUTDOWN != 0 {
            Outcome::Shutdown
        } else if due & attention::HALT != 0 {
            Outcome::Halt
        } else if due & attention::MWAIT != 0 {
            Outcome::Mwait { masked: due & attention::MWAIT_MASKED != 0 }
        } else {
            Outcome::Completed
        }
    }

    /// Translates an address as [`Self::translate`] does, by the guest's page tables alone.
    #[cold]
    pub(crate) fn translate_in_software(
        &mut self,
        linear: u64,
        access: Access,
        privilege: Privilege,
    ) -> Exec<(u64, Entry)> {
        let (page, offset) = (linear & !(PAGE - 1), linear & (PAGE - 1));
        let known = self.engine.emulation.as_ref().and_then(|e| {
            let same = |f: &&Found| f.linear == page && f.access == access && f.privilege == privilege;
            e.found.iter().find(same).copied()
        });
        if let Some(found) = known {
            return Ok((found.physical | offset, found.entry));
        }
        let walked = self.walk(linear, access, privilege)?;
        let entry = walked.entry;
        let physical = entry.physical | (page & ((1u64 << entry.shift) - 1));
        if let Some(emulating) = &mut self.engine.emulation {
            emulating.accesses.walks += 1;
            emulating.accesses.references += walked.references;
            emulating.found.push(Found { linear: page, access, privilege, physical, entry });
        }
        Ok((physical | offset, entry))
    }

    /// Records a device access in an emulation.
    pub(crate) fn note_device(&mut self, device: DeviceAccess) {
        if let Some(emulating) = &mut self.engine.emulation {
            emulating.accesses.devices.push(device);
        }
    }

    /// Returns the address in RAM of a translated physical address, which is guest-physical in an emulation. Returns
    /// `None` if there is no RAM.
    #[inline]
    pub(crate) fn backing(&self, address: u64) -> Option<u64> {
        let Some(emulating) = &self.engine.emulation else { return Some(address) };
        let host = match &emulating.memory {
            Some(memory) => memory.host(address)?,
            None => address,
        };
        self.wiring.ram.visible_page(host).is_some().then_some(host)
    }
}

/// Attention flags that an instruction may set for the interpreter's loop, which the hypervisor handles instead.
const LEFT_BEHIND: u32 = attention::STI_SHADOW
    | attention::SS_SHADOW
    | attention::DEBUG
    | attention::HALT
    | attention::MWAIT
    | attention::MWAIT_MASKED
    | attention::SHUTDOWN
    | attention::VM_EXIT;
