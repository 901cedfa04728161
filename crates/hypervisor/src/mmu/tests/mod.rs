//! Tests with a processor that is reduced to its page walks, on each of the MMUs and on plain guest tables: the results
//! must agree.

mod checks;
mod costs;
mod memory;
mod nested;
mod permissions;
mod roots;
mod shadow_ept;
mod stress;
mod units;

use super::guest_walk::wanted;
use super::role::Paging;
use super::spte::{self, index};
use super::*;
use cpu::Cpu;
use cpu::fault::Cause;
use cpu::tlb::Entry;
use cpu::walk::{Access, Privilege};
use std::collections::BTreeMap;
use x86::control::*;
use x86::page::code;

/// Host-physical address of the pool.
const POOL: u64 = 0xd000_0000;
/// Features of the host.
const HOST: HostFeatures = HostFeatures { physical_bits: 46, ept_flags: true, gigabyte_pages: true };

/// Result of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Met {
    /// Memory at this address.
    Memory(u64),
    /// No memory, at this guest-physical address.
    Device(u64),
    /// A page fault with this error code.
    Fault(u32),
}

/// Returns the error-code bits of an access.
fn asked(access: Access, privilege: Privilege) -> u32 {
    let user = if privilege == Privilege::User { code::USER } else { 0 };
    user | match access {
        Access::Read => 0,
        Access::Write => code::WRITE,
        Access::Fetch => code::FETCH,
        Access::ShadowRead => code::SHADOW_STACK,
        Access::ShadowWrite => code::SHADOW_STACK | code::WRITE,
    }
}

/// Loads registers into a processor.
fn load(cpu: &mut Cpu, guest: &Guest) {
    cpu.arch.cr0 = guest.cr0;
    cpu.arch.cr3 = guest.cr3;
    cpu.arch.cr4 = guest.cr4;
    cpu.arch.msr.efer = guest.efer;
    cpu.arch.pdpte = guest.pdpte;
    cpu.arch.flags = guest.rflags;
    cpu.arch.cpl = guest.cpl;
    cpu.arch.pkru = guest.pkru;
    cpu.arch.msr.pkrs = u64::from(guest.pkrs);
}

/// A guest without a hypervisor.
struct Bare {
    cpu: Cpu,
    size: u64,
}

impl Bare {
    fn new(size: u64) -> Self {
        Self { cpu: testkit::cpu(Ram::anonymous(size)), size }
    }

    fn ram(&self) -> &Ram {
        &self.cpu.wiring.ram
    }

    fn access(&mut self, guest: &Guest, linear: u64, access: Access, privilege: Privilege) -> Met {
        load(&mut self.cpu, guest);
        match self.cpu.walk(linear, access, privilege) {
            Ok(walked) => {
                let offset = linear & ((1 << walked.entry.shift) - 1);
                let gpa = walked.entry.physical | offset;
                if gpa < self.size { Met::Memory(gpa) } else { Met::Device(gpa) }
            }
            Err(_) => match self.cpu.engine.fault {
                Cause::Exception(14, Some(code)) => Met::Fault(code),
                other => panic!("{other:?}"),
            },
        }
    }
}

/// A guest in a virtual machine.
struct Rig {
    mmu: Mmu,
    vcpu: VcpuMmu,
    cpu: Cpu,
    /// The processor's TLB, by page.
    tlb: BTreeMap<u64, Entry>,
    /// State and TLB of the other virtual processor.
    other: (VcpuMmu, BTreeMap<u64, Entry>),
    /// True if the last access was emulated.
    emulated: bool,
    name: String,
}

impl Rig {
    fn new(config: &VmConfig, size: u64) -> Self {
        Self::with_slots(
            config,
            &[SlotConfig { gfn: 0, pages: size >> 12, hpa: 0, read_only: false, log_dirty: false }],
        )
    }

    fn with_slots(config: &VmConfig, slots: &[SlotConfig]) -> Self {
        let size = slots.iter().map(|slot| slot.hpa + (slot.pages << 12)).max().unwrap_or(0);
        let frames = slots.iter().map(|slot| slot.pages).sum();
        let pages = Mmu::pool_pages(config, frames, 2);
        let ram = Ram::with_hidden(size, POOL, u64::from(pages) * 4096);
        let mut mmu = Mmu::new(config, HOST, ram.clone(), POOL, pages, frames).unwrap();
        for slot in slots {
            mmu.add_slot(*slot).unwrap();
        }
        let vcpu = mmu.add_vcpu().unwrap();
        let other = (mmu.add_vcpu().unwrap(), BTreeMap::new());
        let name = format!("{config:?}");
        Self { mmu, vcpu, cpu: testkit::cpu(ram), tlb: BTreeMap::new(), other, emulated: false, name }
    }

    fn ram(&self) -> &Ram {
        &self.cpu.wiring.ram
    }

    fn is_tdp(&self) -> bool {
        self.mmu.mode.is_tdp()
    }

    /// Performs the steps before each entry.
    fn enter(&mut self, guest: &Guest) -> Root {
        let root = self.mmu.prepare(&mut self.vcpu, guest).unwrap();
        if self.mmu.take_flushes(&mut self.vcpu).any() {
            self.tlb.clear();
        }
        self.mmu.take_written();
        root
    }

    fn access(&mut self, guest: &Guest, linear: u64, access: Access, privilege: Privilege) -> Met {
        self.emulated = false;
        for _ in 0..32 {
            let root = self.enter(guest);
            let fault = match self.is_tdp() {
                true => match self.two_dimensions(guest, root, linear, access, privilege) {
                    Ok(met) => return met,
                    Err(fault) => fault,
                },
                false => match self.one_dimension(guest, root, linear, access, privilege) {
                    Ok(met) => return met,
                    Err(code) => Fault::Page { linear, code },
                },
            };
            match self.mmu.fault(&mut self.vcpu, guest, fault) {
                Resolution::Fixed => {}
                Resolution::Inject(fault) => {
                    assert_eq!(fault.linear, linear);
                    return Met::Fault(fault.code);
                }
                Resolution::Emulate { .. } => {
                    self.emulated = true;
                    return self.emulate(guest, linear, access, privilege);
                }
                Resolution::Reflect(exit) => panic!("{exit:?}"),
                Resolution::Limit(name) => panic!("{name}"),
            }
        }
        panic!("{}: {linear:#x} {access:?} {privilege:?} is never resolved", self.name);
    }

    /// Returns the result of an access that software emulates.
    fn emulate(&mut self, guest: &Guest, linear: u64, access: Access, privilege: Privilege) -> Met {
        if guest.cr0 & CR0_PG == 0 {
            return self.place(linear & 0xffff_ffff);
        }
        // The walk treats implicit accesses as those of a supervisor at CPL 3.
        let guest = Guest { cpl: if privilege == Privilege::Implicit { 3 } else { guest.cpl }, ..*guest };
        match self.mmu.walk_guest(&guest, linear, wanted(asked(access, privilege))) {
            Ok(walk) => self.place(walk.gfn << 12 | linear & 0xfff),
            Err(fault) => Met::Fault(fault.code),
        }
    }

    fn place(&self, gpa: u64) -> Met {
        self.mmu.slots().translate(gpa).map_or(Met::Device(gpa), Met::Memory)
    }

    /// Accesses memory as the processor does with shadow tables. The error is the error code.
    fn one_dimension(
        &mut self,
        guest: &Guest,
        root: Root,
        linear: u64,
        access: Access,
        privilege: Privilege,
    ) -> Result<Met, u32> {
        let paging = Paging::of(guest);
        let mut real = Guest { cr3: root.hpa, ..*guest };
        real.cr0 |= CR0_PG | CR0_PE | CR0_WP;
        real.efer |= EFER_NXE;
        real.cr4 |= CR4_PAE;
        if !paging.enabled {
            real.cr4 &= !(CR4_SMEP | CR4_SMAP);
        }
        if root.levels == 3 {
            assert!(!paging.long);
            real.pdpte = std::array::from_fn(|i| self.ram().read(root.hpa + 8 * i as u64).unwrap());
        } else {
            assert!(paging.long && root.levels == paging.levels());
        }
        load(&mut self.cpu, &real);
        if let Some(entry) = self.tlb.get(&(linear >> 12)).copied() {
            let clean = access == Access::Write && entry.perms & cpu::tlb::perm::DIRTY == 0;
            if !clean && self.cpu.permitted(&entry, access, privilege).is_ok() {
                return Ok(Met::Memory(entry.physical | linear & 0xfff));
            }
            self.tlb.remove(&(linear >> 12));
        }
        match self.cpu.walk(linear, access, privilege) {
            Ok(walked) => {
                let offset = linear & ((1 << walked.entry.shift) - 1) & !0xfff;
                let mut entry = walked.entry;
                entry.physical |= offset;
                self.tlb.insert(linear >> 12, entry);
                Ok(Met::Memory(entry.physical | linear & 0xfff))
            }
            Err(_) => match self.cpu.engine.fault {
                Cause::Exception(14, Some(code)) => Err(code),
                other => panic!("{other:?}"),
            },
        }
    }

    /// Accesses memory as the processor does with the guest's tables and EPT.
    fn two_dimensions(
        &mut self,
        guest: &Guest,
        root: Root,
        linear: u64,
        access: Access,
        privilege: Privilege,
    ) -> Result<Met, Fault> {
        assert_eq!(root.levels, 4);
        let write = access == Access::Write;
        let mut gpa = linear & 0xffff_ffff;
        if guest.cr0 & CR0_PG != 0 {
            let guest = Guest { cpl: if privilege == Privilege::Implicit { 3 } else { guest.cpl }, ..*guest };
            let walk = match self.mmu.walk_guest(&guest, linear, wanted(asked(access, privilege))) {
                Ok(walk) => walk,
                Err(fault) => return Ok(Met::Fault(fault.code)),
            };
            if !walk.unbacked {
                let levels = usize::from(walk.level) - 1..usize::from(Paging::of(&guest).levels());
                for step in &walk.steps[levels] {
                    self.ept(root, step.gfn << 12, true)?;
                }
            }
            gpa = walk.gfn << 12 | linear & 0xfff;
        }
        Ok(Met::Memory(self.ept(root, gpa, write)?))
    }

    /// Walks EPT as the processor does.
    fn ept(&mut self, root: Root, gpa: u64, write: bool) -> Result<u64, Fault> {
        if gpa >> 48 != 0 {
            return Err(Fault::Misconfiguration { gpa });
        }
        let violation = |rights: u64| {
            let access = if write { ept::WRITE } else { ept::READ };
            Fault::Violation { gpa, linear: 0, qualification: access | rights << RIGHTS_SHIFT }
        };
        let mut table = root.hpa;
        for level in (1..=4u8).rev() {
            let entry: u64 = self.ram().read(table + index(gpa, level) as u64 * 8).unwrap();
            match entry & 7 {
                2 | 6 => return Err(Fault::Misconfiguration { gpa }),
                0 => return Err(violation(0)),
                _ => {}
            }
            if write && entry & 2 == 0 {
                return Err(violation(entry & 7));
            }
            if level == 1 || entry & 0x80 != 0 {
                let mask = (spte::frames(level) << 12) - 1;
                assert_eq!(spte::address(entry) & mask, 0, "reserved bits of a large page");
                return Ok(spte::address(entry) | gpa & mask);
            }
            table = spte::address(entry);
        }
        unreachable!()
    }

    /// Writes to the memory of an access.
    fn write(&mut self, hpa: u64, bytes: &[u8]) {
        assert!(self.cpu.wiring.ram.write_bytes(hpa, bytes));
        if self.emulated {
            // Slots of these tests map addresses one to one.
            self.mmu.page_written(hpa, bytes.len() as u64);
        }
    }

    /// Switches to the other virtual processor.
    fn swap(&mut self) {
        std::mem::swap(&mut self.vcpu, &mut self.other.0);
        std::mem::swap(&mut self.tlb, &mut self.other.1);
    }

    fn invlpg(&mut self, linear: u64) {
        self.mmu.invlpg(&mut self.vcpu, linear);
        // If a large page of the guest is in the TLB in pieces, the processor drops one of them.
        self.tlb.retain(|page, entry| page << 12 >> entry.shift != linear >> entry.shift);
    }

    fn new_cr3(&mut self, guest: &Guest) {
        self.mmu.new_cr3(&mut self.vcpu, guest, true);
        self.tlb.clear();
    }

    fn check(&self) {
        if let Err(wrong) = self.mmu.check(&[&self.vcpu, &self.other.0]) {
            panic!("{}: {wrong}", self.name);
        }
    }
}
