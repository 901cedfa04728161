//! Emulation: one instruction, or the delivery of one event, done in software for a hypervisor.
//!
//! The processor's own instruction handlers do the work, in root mode, under the control registers that the guest believes in.
//! Memory is reached through the guest's own page tables and a map from guest-physical to host-physical addresses, never
//! through the TLB; nothing is charged, and no time passes. What was accessed is reported, so that the hypervisor can set a
//! price on it and follow up on writes to page tables.

use super::controls::Controls;
use super::invalidate::{Flush, Invalidation};
use super::software::{GuestVmx, Offer};
use crate::arch::attention;
use crate::cache::BlockCache;
use crate::decode::execute;
use crate::fault::{Cause, Exec};
use crate::state::Cpu;
use crate::tlb::Entry;
use crate::walk::{Access, Privilege};
use ledger::Ticks;
use std::fmt::Debug;
use std::rc::Rc;
use x86::debug::DR6_BS;
use x86::page::PAGE;
use x86::vmx::interruptibility;
use x86::{flags, vector};

/// The registers of a guest that a hypervisor may keep apart from the processor's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct GuestView {
    /// CR0.
    pub cr0: u64,
    /// CR3.
    pub cr3: u64,
    /// CR4.
    pub cr4: u64,
    /// IA32_EFER.
    pub efer: u64,
    /// PDPTEs, used under PAE paging outside long mode.
    pub pdpte: [u64; 4],
    /// XCR0.
    pub xcr0: u64,
}

impl GuestView {
    /// What the processor's own registers hold.
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

    /// Long mode is active.
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

/// Where a guest's memory is.
pub trait GuestPhysical: Debug {
    /// Host-physical address of a guest-physical one; `None` where the guest has no RAM.
    fn host(&self, guest_physical: u64) -> Option<u64>;
}

/// A stretch of guest-physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// First byte.
    pub address: u64,
    /// Bytes; it does not leave its page.
    pub len: u64,
}

/// A device that was accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceAccess {
    /// By port.
    Port {
        /// Number.
        port: u16,
        /// Bytes.
        size: u8,
        /// OUT.
        write: bool,
    },
    /// By guest-physical address.
    Memory {
        /// Address.
        address: u64,
        /// Bytes.
        size: u8,
        /// Written.
        write: bool,
    },
    /// A model-specific register that the board holds.
    Msr {
        /// Index.
        index: u32,
        /// WRMSR.
        write: bool,
    },
    /// CR8.
    TaskPriority {
        /// Written.
        write: bool,
    },
}

/// What was accessed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accesses {
    /// Walks of the guest's page tables: one for each page and kind of access.
    pub walks: u32,
    /// Entries of the guest's page tables that they read.
    pub references: u32,
    /// Guest RAM that was read as data.
    pub reads: Vec<Stretch>,
    /// Guest RAM that was written, or was about to be when something failed.
    pub writes: Vec<Stretch>,
    /// Page-table entries whose accessed or dirty flags were set.
    pub marked_entries: Vec<u64>,
    /// Devices, in order.
    pub devices: Vec<DeviceAccess>,
    /// What the instruction invalidated in the TLB that it believes in. The processor's TLB has not been touched.
    pub flushes: Vec<Flush>,
    /// Likewise by INVEPT and INVVPID.
    pub invalidations: Vec<Invalidation>,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done, or one iteration of it, and RIP is still on it.
    Completed,
    /// It raised an exception and has changed nothing; the exception has not been delivered.
    Exception {
        /// Vector.
        vector: u8,
        /// Error code, if the vector has one.
        code: Option<u32>,
        /// What CR2 becomes on delivery, for a page fault.
        address: u64,
        /// Bits that delivery sets in DR6, for a debug exception.
        dr6: u64,
    },
    /// HLT is done.
    Halt,
    /// MWAIT is done, and waits.
    Mwait {
        /// Interrupts end it even if they are masked.
        masked: bool,
    },
    /// The processor shut down (triple fault).
    Shutdown,
    /// A guest hypervisor has entered its guest, see `software.rs`.
    Entered,
    /// The guest of a guest hypervisor exits: [`vm_exit`](crate::arch::Arch::vm_exit) says why.
    Exit,
}

/// What a guest is emulated in.
#[derive(Default)]
pub struct Surroundings<'a> {
    /// Where its memory is; without it, guest-physical addresses are host-physical ones.
    pub memory: Option<Rc<dyn GuestPhysical>>,
    /// Its VMX, if it has that, and what of it the guest may use.
    pub vmx: Option<(&'a mut GuestVmx, Offer)>,
}

/// The result of an emulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emulation {
    /// How it ended.
    pub outcome: Outcome,
    /// The registers of the view after it.
    pub view: GuestView,
    /// Debug traps that are due after a completed instruction, as bits of DR6.
    pub trap: u64,
    /// What was accessed.
    pub accesses: Accesses,
}

/// A translation that this emulation has made.
#[derive(Clone, Copy, Debug)]
struct Found {
    linear: u64,
    access: Access,
    privilege: Privilege,
    physical: u64,
    entry: Entry,
}

/// An emulation that is under way.
#[derive(Debug, Default)]
pub struct Emulating {
    memory: Option<Rc<dyn GuestPhysical>>,
    accesses: Accesses,
    found: Vec<Found>,
    /// Something has changed on which the fast paths of memory depend.
    mapping_changed: bool,
    /// What a guest hypervisor may use.
    offer: Option<Offer>,
    /// The controls of the hypervisor that emulates, while those of a guest hypervisor are in their place.
    pub(super) outer: Option<Controls>,
    /// A guest hypervisor has entered its guest.
    pub(super) entered: bool,
    /// When the processor left it.
    pub(super) left_at: Option<Ticks>,
}

/// Adds a stretch, or makes the last one longer.
fn note(list: &mut Vec<Stretch>, address: u64, len: u64) {
    if list.iter().any(|s| address.wrapping_sub(s.address) < s.len && address - s.address + len <= s.len) {
        return;
    }
    match list.last_mut() {
        Some(last) if last.address + last.len == address && address & (PAGE - 1) != 0 => last.len += len,
        _ => list.push(Stretch { address, len }),
    }
}

impl Emulating {
    pub(crate) fn note_flush(&mut self, flush: Flush) {
        self.accesses.flushes.push(flush);
    }

    pub(super) fn note_invalidation(&mut self, what: Invalidation) {
        self.accesses.invalidations.push(what);
    }

    pub(super) fn offer(&self) -> Option<&Offer> {
        self.offer.as_ref()
    }

    pub(crate) fn note_mapping(&mut self) {
        self.found.clear();
        self.mapping_changed = true;
    }

    pub(crate) fn note_entry(&mut self, address: u64) {
        self.accesses.marked_entries.push(address);
    }

    pub(crate) fn note_data(&mut self, address: u64, len: u64, write: bool) {
        note(if write { &mut self.accesses.writes } else { &mut self.accesses.reads }, address, len);
    }
}

impl Cpu {
    /// Executes the instruction at RIP in software, in root mode, as a guest with these control registers would. `memory` says
    /// where its memory is; without it, guest-physical addresses are host-physical ones.
    ///
    /// The guest's other registers are the processor's. Afterwards the control registers are what they were before the call;
    /// what the instruction made of them is in [`Emulation::view`]. A completed instruction ends blocking by STI and MOV SS in
    /// [`Controls::interruptibility`](super::Controls::interruptibility), or sets it.
    pub fn emulate(
        &mut self,
        view: &GuestView,
        memory: Option<&Rc<dyn GuestPhysical>>,
        cache: &mut BlockCache,
    ) -> Emulation {
        let mut surroundings = Surroundings { memory: memory.cloned(), vmx: None };
        self.emulate_in(view, &mut surroundings, cache)
    }

    /// Likewise for a guest that may be a hypervisor.
    pub fn emulate_in(
        &mut self,
        view: &GuestView,
        surroundings: &mut Surroundings,
        cache: &mut BlockCache,
    ) -> Emulation {
        self.in_software(view, surroundings, cache, Self::emulate_instruction)
    }

    /// Delivers an event through the guest's interrupt table in software, in the format of VM-entry interruption information
    /// (SDM vol. 3, 24.8.3). CR2 and DR6 are the caller's to set before.
    pub fn emulate_event(
        &mut self,
        view: &GuestView,
        surroundings: &mut Surroundings,
        cache: &mut BlockCache,
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

    pub(super) fn in_software(
        &mut self,
        view: &GuestView,
        surroundings: &mut Surroundings,
        cache: &mut BlockCache,
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
        execute(self, &op).map(|_| ())
    }

    /// The exception that stopped the instruction.
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
            Cause::Shutdown | Cause::None | Cause::CodeWrite | Cause::Iteration | Cause::VmExit => Outcome::Shutdown,
        }
    }

    /// What completion leaves to be done.
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

    /// Translates as [`Self::translate`] does, by the guest's page tables alone.
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

    /// Notes an access to a device, in emulation.
    pub(crate) fn note_device(&mut self, device: DeviceAccess) {
        if let Some(emulating) = &mut self.engine.emulation {
            emulating.accesses.devices.push(device);
        }
    }

    /// Where a physical address is that translation has come to: in emulation that is a guest-physical one. `None`: there is
    /// no RAM.
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

/// What an instruction may leave for the interpreter's loop, which the hypervisor deals with instead.
const LEFT_BEHIND: u32 = attention::STI_SHADOW
    | attention::SS_SHADOW
    | attention::DEBUG
    | attention::HALT
    | attention::MWAIT
    | attention::MWAIT_MASKED
    | attention::SHUTDOWN
    | attention::VM_EXIT;
