//! Tests of two levels: random EPT tables of a guest, and random page tables of its nested guest, on shadow EPT and on
//! a processor that the guest has for itself. The results of the nested guest's accesses must be equal, and so must be
//! memory, including accessed and dirty flags and the log of pages. The guest executes INVEPT exactly where the manual
//! requires it.

use super::super::guest_ept::{EptExit, EptFormat, Nested, NestedInvept, Pml};
use super::super::{NestedFault, ept};
use super::stress::states;
use super::*;
use crate::config::NestedRoots;
use testkit::Random;
use x86::page::{A, D, OFFSET};
use x86::vmx::{primary, reason, secondary};

/// Size of RAM in bytes.
const RAM: u64 = 8 << 20;
/// Frames of the tables of the guest's EPT, by level: index 0 is the last level.
const EPT: [std::ops::Range<u64>; 4] = [0x109..0x110, 0x105..0x109, 0x102..0x105, 0x100..0x102];
/// Frames of the nested guest's page tables, by level, if they are in its memory.
const TABLES: [std::ops::Range<u64>; 4] = [0x148..0x150, 0x144..0x148, 0x142..0x144, 0x140..0x142];
/// Frame of the page-modification log.
const LOG: u64 = 0x180;
/// Features of the tables of the guest's EPT.
pub(super) const FORMAT: EptFormat =
    EptFormat { execute_only: true, flags: true, pages_2m: true, pages_1g: true, mode_based: false };

/// Result of an access of the nested guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Memory or a device, at this address of the guest.
    Place(u64),
    /// A page fault with this error code.
    Fault(u32),
    /// An exit to the guest.
    Exit(EptExit),
}

fn configs() -> Vec<VmConfig> {
    let base = VmConfig { unrestricted_guest: false, ..VmConfig::default() };
    let mut all = Vec::new();
    for mmu in [MmuMode::Tdp, MmuMode::LegacyTdp] {
        all.push(VmConfig { mmu, ..base.clone() });
        all.push(VmConfig { mmu, unsync: false, nested_roots: NestedRoots::Drop, ..base.clone() });
        all.push(VmConfig { mmu, huge_pages: false, mmu_pages: Some(64), ..base.clone() });
    }
    all
}

/// Sets up the two-dimensional walk of the nested guest in a processor.
fn load_nested(cpu: &mut Cpu, guest: &Guest, eptp: u64, format: EptFormat) {
    load(cpu, guest);
    let mode_based = if format.mode_based { secondary::MODE_BASED_EXECUTE } else { 0 };
    let controls = &mut cpu.arch.vmx.controls;
    controls.primary = primary::SECONDARY;
    controls.secondary = secondary::EPT | secondary::UNRESTRICTED_GUEST | mode_based;
    controls.eptp = eptp;
    cpu.arch.vmx.ept = true;
}

/// Returns the result of a processor's walk.
fn met(cpu: &mut Cpu, linear: u64, access: Access, privilege: Privilege) -> Result<Entry, Found> {
    if let Ok(walked) = cpu.walk(linear, access, privilege) {
        return Ok(walked.entry);
    }
    let exit = cpu.arch.vm_exit;
    let (gpa, qualification) = (exit.guest_physical, exit.qualification);
    Err(match std::mem::take(&mut cpu.engine.fault) {
        Cause::Exception(14, Some(code)) => Found::Fault(code),
        Cause::VmExit => Found::Exit(match exit.reason {
            reason::EPT_VIOLATION => EptExit::Violation { gpa, linear: exit.guest_linear, qualification },
            reason::EPT_MISCONFIGURATION => EptExit::Misconfiguration { gpa },
            reason::PML_FULL => EptExit::LogFull { gpa: 0, linear: 0, qualification },
            other => panic!("reason {other}"),
        }),
        other => panic!("{other:?}"),
    })
}

impl Rig {
    /// Performs an access of the nested guest.
    pub(super) fn nested_access(
        &mut self,
        guest: &mut Guest,
        linear: u64,
        access: Access,
        privilege: Privilege,
    ) -> Found {
        self.emulated = false;
        for _ in 0..64 {
            let root = self.enter(guest);
            assert_eq!(root.levels, 4);
            let format = guest.nested.unwrap().ept;
            let flags = if root.flags { ept::EPTP_ACCESSED_DIRTY } else { 0 };
            load_nested(&mut self.cpu, guest, root.hpa | ept::EPTP_FOUR_LEVELS | ept::WRITE_BACK | flags, format);
            if let Some(entry) = self.tlb.get(&(linear >> 12)).copied() {
                let clean = access == Access::Write && entry.perms & cpu::tlb::perm::DIRTY == 0;
                if !clean && self.cpu.permitted(&entry, access, privilege).is_ok() {
                    return Found::Place(entry.physical | linear & OFFSET);
                }
                self.tlb.remove(&(linear >> 12));
            }
            let fault = match met(&mut self.cpu, linear, access, privilege) {
                Ok(mut entry) => {
                    entry.physical |= linear & ((1 << entry.shift) - 1) & !OFFSET;
                    self.tlb.insert(linear >> 12, entry);
                    return Found::Place(entry.physical | linear & OFFSET);
                }
                Err(Found::Exit(EptExit::Violation { gpa, linear, qualification })) => {
                    Fault::Violation { gpa, linear, qualification }
                }
                Err(Found::Exit(EptExit::Misconfiguration { gpa })) => Fault::Misconfiguration { gpa },
                Err(other) => return other,
            };
            let resolution = self.mmu.fault(&mut self.vcpu, guest, fault);
            self.logged(guest);
            match resolution {
                Resolution::Fixed => {}
                Resolution::Reflect(EptExit::LogFull { qualification, .. }) => {
                    return Found::Exit(EptExit::LogFull { gpa: 0, linear: 0, qualification });
                }
                Resolution::Reflect(exit) => return Found::Exit(exit),
                Resolution::Emulate { mmio } => {
                    self.emulated = true;
                    let found = self.nested_emulate(guest, linear, access, privilege);
                    if let Found::Place(place) = found {
                        let tables = guest.cr0 & CR0_PG != 0;
                        assert!(!mmio || place >= RAM || tables, "{}: {place:#x} is no device", self.name);
                    }
                    return found;
                }
                other => panic!("{other:?}"),
            }
        }
        panic!("{}: {linear:#x} {access:?} {privilege:?} is never resolved", self.name);
    }

    /// Performs an access of the nested guest in software.
    fn nested_emulate(&mut self, guest: &mut Guest, linear: u64, access: Access, privilege: Privilege) -> Found {
        let walked = self.mmu.nested_walk(guest, linear, asked(access, privilege));
        self.logged(guest);
        match walked {
            Ok(place) => Found::Place(place),
            Err(NestedFault::Page(fault)) => Found::Fault(fault.code),
            Err(NestedFault::Exit(EptExit::LogFull { qualification, .. })) => {
                Found::Exit(EptExit::LogFull { gpa: 0, linear: 0, qualification })
            }
            Err(NestedFault::Exit(exit)) => {
                if let EptExit::Violation { gpa, .. } = exit {
                    self.mmu.nested_violation(&self.vcpu, gpa);
                }
                Found::Exit(exit)
            }
        }
    }

    fn logged(&mut self, guest: &mut Guest) {
        let logged = self.mmu.take_logged();
        if let Some(pml) = guest.nested.as_mut().and_then(|nested| nested.pml.as_mut()) {
            pml.index = pml.index.wrapping_sub(logged);
        }
    }

    /// Performs a write of the guest itself.
    fn guest_write(&mut self, guest: &Guest, gpa: u64, bytes: &[u8]) {
        match self.access(guest, gpa, Access::Write, Privilege::Supervisor) {
            Met::Memory(hpa) => self.write(hpa, bytes),
            other => panic!("{other:?}"),
        }
    }
}

struct World {
    random: Random,
    /// Registers of the guest.
    outer: Guest,
    /// Registers of the nested guest, on the current virtual processor and on the other one.
    guest: Guest,
    other: Guest,
    bare: Cpu,
    rigs: Vec<Rig>,
    trace: Vec<String>,
    seen: [u32; 5],
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let format = EptFormat { mode_based: random.one_in(3), ..FORMAT };
        let nested = Nested { eptp: Some(0), ept: format, pml: None };
        let guest = Guest { cr0: CR0_PE, rflags: 2, nested: Some(nested), ..Guest::default() };
        let mut world = Self {
            random,
            outer: Guest { cr0: CR0_PE, rflags: 2, ..Guest::default() },
            guest,
            other: guest,
            bare: testkit::cpu(Ram::anonymous(RAM)),
            rigs: configs().iter().map(|config| Rig::new(config, RAM)).collect(),
            trace: Vec::new(),
            seen: [0; 5],
        };
        world.fill();
        for _ in 0..2 {
            world.choose_pointer();
            world.choose_shape();
            world.swap();
        }
        world
    }

    fn poke(&self, gpa: u64, value: u64) {
        self.bare.wiring.ram.write(gpa, value);
        for rig in &self.rigs {
            rig.ram().write(gpa, value);
        }
    }

    /// Initializes the tables, mostly with one-to-one mappings.
    fn fill(&mut self) {
        for level in 1..=4u8 {
            for frame in EPT[usize::from(level) - 1].clone() {
                for index in 0..if level == 1 { 512 } else { 4 } {
                    let value = self.ept_entry(level, frame, index);
                    self.poke(frame << 12 | (index * 8), value);
                }
            }
            for frame in TABLES[usize::from(level) - 1].clone() {
                for index in (0..512).step_by(if level == 1 { 1 } else { 128 }) {
                    let value = self.table_entry(level);
                    self.poke(frame << 12 | (index * 8), value);
                }
            }
        }
    }

    /// Returns an entry of the guest's EPT, usually a useful one.
    fn ept_entry(&mut self, level: u8, frame: u64, index: u64) -> u64 {
        let random = &mut self.random;
        if random.one_in(200) {
            return random.next() & random.next();
        }
        let noise = 14;
        let large = level > 1 && level < 4 && random.one_in(if level == 2 { 3 } else { 16 });
        let target = if level == 1 {
            // Each table of the last level maps one range of memory.
            let straight = (frame & 3) << 9 | index;
            match random.below(noise * 2) {
                0 => random.below(0x900),
                1 => random.of(&[0xfee00, 0x801, 0x3_ffff_ffff]),
                2 => EPT[random.below(4) as usize].start,
                _ => straight,
            }
        } else if large {
            let mask = (1u64 << (9 * (level - 1))) - 1;
            let straight = if level == 2 { index << 9 } else { 0 };
            match random.below(noise) {
                0 => random.below(0x1000),
                1 => random.below(0x1000) & !mask,
                _ => straight,
            }
        } else {
            let below = EPT[usize::from(level) - 2].clone();
            match random.below(noise * 2) {
                0 => random.below(0x900),
                1 => EPT[random.below(4) as usize].start,
                _ => below.start + random.below(below.end - below.start),
            }
        };
        let mut value = target << 12 | if large { ept::LARGE } else { 0 };
        value |= match random.below(noise) {
            0 => random.below(8),
            1 => ept::EXECUTE,
            2 => ept::READ | ept::EXECUTE,
            3 => ept::READ | ept::WRITE,
            _ => ept::RIGHTS,
        };
        if !random.one_in(8) {
            value |= ept::USER_EXECUTE;
        }
        for bit in [ept::ACCESSED, ept::DIRTY, 1 << 11, ept::SUPPRESS_VE, 1 << 52] {
            if random.one_in(3) {
                value |= bit;
            }
        }
        if large || level == 1 {
            let kind = if random.one_in(60) { random.below(8) } else { random.of(&[ept::WRITE_BACK, 0, 1, 4, 5]) };
            value |= kind << ept::TYPE_SHIFT;
        } else if random.one_in(80) {
            value |= 1 << (3 + random.below(5));
        }
        if random.one_in(200) {
            value |= 1 << 47;
        }
        value
    }

    /// Returns an entry of a page table of the nested guest.
    fn table_entry(&mut self, level: u8) -> u64 {
        let random = &mut self.random;
        let large = level > 1 && level < 4 && random.one_in(6);
        let target = match level {
            1 => random.below(0x800),
            _ if large => random.below(4) << 9,
            _ => {
                let below = TABLES[usize::from(level) - 2].clone();
                below.start + random.below(below.end - below.start)
            }
        };
        let mut value = target << 12 | 1;
        for (bit, of) in [(2u64, 6), (4, 6)] {
            if !random.one_in(of) {
                value |= bit;
            }
        }
        for (bit, of) in [(A, 2), (D, 2), (1 << 8, 3), (1 << 63, 12), (1 << 52, 40), (1 << 47, 80)] {
            if random.one_in(of) {
                value |= bit;
            }
        }
        if large {
            value |= 1 << 7;
        }
        if random.one_in(16) { value & !1 } else { value }
    }

    fn log(&mut self, what: String) {
        self.trace.push(what);
    }

    fn nested(&mut self) -> &mut Nested {
        self.guest.nested.as_mut().unwrap()
    }

    fn choose_pointer(&mut self) {
        let flags = if self.random.one_in(3) { 0 } else { ept::EPTP_ACCESSED_DIRTY };
        let frame = EPT[3].start + self.random.below(2);
        let mode_based = self.random.one_in(3);
        let nested = self.nested();
        nested.eptp = Some(frame << 12 | flags | ept::EPTP_FOUR_LEVELS | ept::WRITE_BACK);
        nested.ept.mode_based = mode_based;
        let logs = flags != 0 && self.random.one_in(2);
        self.nested().pml = logs.then_some(Pml { address: LOG << 12, index: 511 });
        let what = format!("{:x?}", self.guest.nested);
        self.log(what);
        self.clear_tlb();
    }

    /// The processor's translations are tagged with the context; these tests do not model tags.
    fn clear_tlb(&mut self) {
        self.rigs.iter_mut().for_each(|rig| rig.tlb.clear());
    }

    fn choose_shape(&mut self) {
        let long = CR4_PAE;
        let shape = self.random.below(4);
        let guest = &mut self.guest;
        guest.cr0 = CR0_PE;
        guest.cr4 = 0;
        guest.efer = 0;
        let random = &mut self.random;
        let table = |level: usize, random: &mut Random| (TABLES[level - 1].start + random.below(2)) << 12;
        match shape {
            0 => {}
            1 => {
                guest.cr4 = CR4_PSE;
                guest.cr3 = table(2, random);
            }
            2 => {
                guest.cr4 = CR4_PAE;
                guest.pdpte = std::array::from_fn(|_| table(2, random) | u64::from(!random.one_in(6)));
            }
            _ => {
                guest.cr4 = long;
                guest.efer = EFER_LME | EFER_LMA | EFER_NXE;
                guest.cr3 = table(4, random);
            }
        }
        if shape != 0 {
            guest.cr0 |= CR0_PG | if random.one_in(2) { CR0_WP } else { 0 };
            guest.cr4 |= random.of(&[0, CR4_SMEP, CR4_SMAP, CR4_PGE]);
        }
        let what = format!("{:x?}", self.guest);
        self.log(what);
        self.clear_tlb();
    }

    fn probe(&mut self) -> u64 {
        let random = &mut self.random;
        let (guest, low) = (&self.guest, random.below(0x200) * 8);
        if guest.cr0 & CR0_PG == 0 {
            return match random.below(12) {
                0 => random.below(1 << 32),
                1 => random.of(&[0x4000_0000, 0x8000_0000]) | random.below(RAM),
                _ => random.below(RAM + (1 << 20)),
            };
        }
        if guest.efer & EFER_LMA == 0 {
            return (random.below(4) << 30 | random.below(4) << 28 | random.below(512) << 12 | low) & 0xffff_ffff;
        }
        let upper = |random: &mut Random| random.below(2) * 128;
        upper(random) << 39 | upper(random) << 30 | (random.below(4) * 128) << 21 | random.below(512) << 12 | low
    }

    fn bare_access(&mut self, linear: u64, access: Access, privilege: Privilege) -> Found {
        let nested = self.guest.nested.unwrap();
        load_nested(&mut self.bare, &self.guest, nested.eptp.unwrap(), nested.ept);
        if let Some(pml) = nested.pml {
            let controls = &mut self.bare.arch.vmx.controls;
            controls.secondary |= secondary::PML;
            (controls.pml_address, controls.pml_index) = (pml.address, pml.index);
        }
        match met(&mut self.bare, linear, access, privilege) {
            Ok(entry) => Found::Place(entry.physical | linear & ((1 << entry.shift) - 1)),
            Err(other) => other,
        }
    }

    /// Performs an access on all machines, and compares the results.
    fn access(&mut self, linear: u64, access: Access, privilege: Privilege) -> Found {
        self.guest.cpl = if privilege == Privilege::Supervisor { 0 } else { 3 };
        let found = self.bare_access(linear, access, privilege);
        let logged = self.bare.arch.vmx.controls.pml_index;
        for rig in &mut self.rigs {
            let mut guest = self.guest;
            let here = rig.nested_access(&mut guest, linear, access, privilege);
            assert_eq!(here, found, "{}: {linear:#x} {access:?} {privilege:?} {:#x?}", rig.name, self.guest);
            if let Some(pml) = guest.nested.unwrap().pml {
                assert_eq!(pml.index, logged, "{}: the index of the log", rig.name);
            }
            let faults = rig.mmu.stats().faults;
            if matches!(found, Found::Place(_)) && !rig.emulated {
                assert_eq!(rig.nested_access(&mut guest, linear, access, privilege), found);
                assert_eq!(rig.mmu.stats().faults, faults, "{}: a fault that was put right comes again", rig.name);
            }
        }
        if let Some(pml) = self.nested().pml.as_mut() {
            pml.index = logged;
            if pml.index > 511 && !matches!(found, Found::Place(_)) {
                pml.index = 511;
            }
        }
        self.seen[match found {
            Found::Place(_) => 0,
            Found::Fault(_) => 1,
            Found::Exit(EptExit::Violation { .. }) => 2,
            Found::Exit(EptExit::Misconfiguration { .. }) => 3,
            Found::Exit(EptExit::LogFull { .. }) => 4,
        }] += 1;
        found
    }

    fn any_access(&mut self) -> (u64, Found) {
        let linear = self.probe();
        let access = self.random.of(&[Access::Read, Access::Read, Access::Write, Access::Fetch]);
        let privilege = self.random.of(&[Privilege::User, Privilege::Supervisor]);
        self.log(format!("{access:?} {linear:#x} {privilege:?}"));
        (linear, self.access(linear, access, privilege))
    }

    /// Performs a write of the guest itself.
    fn store(&mut self, gpa: u64, value: u64) {
        self.log(format!("guest writes {gpa:#x} {value:#x}"));
        self.bare.wiring.ram.write(gpa, value);
        for rig in &mut self.rigs {
            rig.guest_write(&self.outer, gpa, &value.to_le_bytes());
        }
    }

    /// Executes INVEPT on both virtual processors.
    fn invept(&mut self) {
        self.log("invept".into());
        let single = self.random.one_in(2);
        for rig in &mut self.rigs {
            for _ in 0..2 {
                match single {
                    true => EPT[3].clone().for_each(|frame| {
                        rig.mmu.nested_invept(&mut rig.vcpu, NestedInvept::Single(frame << 12));
                    }),
                    false => rig.mmu.nested_invept(&mut rig.vcpu, NestedInvept::All),
                }
                rig.swap();
            }
        }
    }

    /// Flushes the nested guest's TLB on both virtual processors.
    fn flush(&mut self) {
        for rig in &mut self.rigs {
            for _ in 0..2 {
                rig.mmu.flush_guest(&mut rig.vcpu);
                rig.swap();
            }
        }
    }

    fn swap(&mut self) {
        std::mem::swap(&mut self.guest, &mut self.other);
        self.rigs.iter_mut().for_each(Rig::swap);
        self.log("swap".into());
    }

    /// Returns the location of an entry in the guest's EPT.
    fn slot(&mut self) -> (u8, u64, u64) {
        let level = self.random.of(&[1, 1, 1, 1, 2, 2, 3, 4]);
        let frames = EPT[usize::from(level) - 1].clone();
        let frame = frames.start + self.random.below(frames.end - frames.start);
        (level, frame, if level == 1 { self.random.below(512) } else { self.random.below(4) })
    }

    /// Changes EPT entries in any way.
    fn change(&mut self) {
        for _ in 0..=self.random.below(4) {
            let (level, frame, index) = self.slot();
            let value = if self.random.one_in(5) { 0 } else { self.ept_entry(level, frame, index) };
            self.store(frame << 12 | (index * 8), value);
        }
        self.invept();
    }

    /// Lets the guest map pages after violations, which needs no INVEPT: the violation invalidates.
    fn follow(&mut self) {
        let (linear, _) = self.any_access();
        let mut wanted = Access::Read;
        if let Some((at, value)) = self.last_entry(linear)
            && value & ept::RIGHTS != 0
        {
            // A read-only page is unmapped, which a write detects; after that, a read must not find the old page.
            self.store(at, value & !ept::WRITE);
            self.invept();
            self.access(linear, Access::Read, Privilege::Supervisor);
            self.store(at, 0);
            wanted = Access::Write;
        }
        for _ in 0..6 {
            let found = self.access(linear, wanted, Privilege::Supervisor);
            wanted = Access::Read;
            let Found::Exit(EptExit::Violation { gpa, .. }) = found else { break };
            let Some((at, old)) = self.last_entry_of(gpa) else { break };
            let level = EPT.iter().position(|frames| frames.contains(&(at >> 12)));
            // For a large page, the violation has only invalidated the processor's translation of this address.
            let Some(level) = level.filter(|level| *level == 0 || old == 0) else { break };
            let value = self.ept_entry(level as u8 + 1, at >> 12, at >> 3 & 0x1ff) | ept::RIGHTS;
            self.store(at, value);
        }
        self.invept();
    }

    /// Returns the EPT entry at which the translation of an address ends, with paging disabled.
    fn last_entry(&self, linear: u64) -> Option<(u64, u64)> {
        (self.guest.cr0 & CR0_PG == 0).then(|| self.last_entry_of(linear & 0xffff_ffff)).flatten()
    }

    fn last_entry_of(&self, gpa: u64) -> Option<(u64, u64)> {
        let mut table = self.guest.nested.unwrap().eptp.unwrap() & ept::ADDRESS;
        for level in (1..=4u8).rev() {
            let at = table | (index(gpa, level) as u64 * 8);
            let value: u64 = self.bare.wiring.ram.read(at)?;
            let rights = ept::RIGHTS | if self.guest.nested.unwrap().ept.mode_based { ept::USER_EXECUTE } else { 0 };
            if value & rights == 0 || level == 1 || value & ept::LARGE != 0 {
                return Some((at, value));
            }
            table = value & ept::ADDRESS;
        }
        None
    }

    /// Lets the nested guest write to any address.
    fn write_somewhere(&mut self) {
        let linear = self.probe() & !7;
        let value = if self.random.one_in(2) { self.random.next() } else { self.ept_entry(1, 0x109, 7) };
        self.log(format!("write {linear:#x} {value:#x}"));
        if let Found::Place(place) = self.access(linear, Access::Write, Privilege::Supervisor)
            && place < RAM
        {
            self.bare.wiring.ram.write(place, value);
            for rig in &mut self.rigs {
                rig.write(place, &value.to_le_bytes());
            }
        }
        self.invept();
        self.flush();
    }

    fn change_tables(&mut self) {
        for _ in 0..=self.random.below(3) {
            let level = self.random.of(&[1, 1, 2, 3, 4]);
            let frames = TABLES[usize::from(level) - 1].clone();
            let frame = frames.start + self.random.below(frames.end - frames.start);
            let index = if level == 1 { self.random.below(512) } else { self.random.below(4) * 128 };
            let value = self.table_entry(level);
            self.store(frame << 12 | (index * 8), value);
        }
        self.flush();
    }

    fn interfere(&mut self) {
        let what = self.random.below(8);
        let gfn = EPT[3].start + self.random.below(0x10);
        let linear = self.random.below(RAM);
        self.log(format!("interfere {what} {gfn:#x}"));
        for rig in &mut self.rigs {
            match what {
                0 => {
                    let config = rig.mmu.slots().find(0).unwrap().config;
                    assert!(rig.mmu.remove_slot(0));
                    rig.check();
                    rig.mmu.add_slot(config).unwrap();
                }
                1 => drop(rig.mmu.unprotect(gfn)),
                2 => rig.mmu.unload(&mut rig.vcpu),
                3 => rig.mmu.nested_invvpid(&mut rig.vcpu),
                4 => drop(rig.mmu.log_dirty(0, true)),
                5 => drop(rig.mmu.log_dirty(0, false)),
                6 => drop(rig.mmu.take_dirty_log(0)),
                _ => drop(rig.access(&self.outer, linear, Access::Write, Privilege::Supervisor)),
            }
        }
    }

    fn step(&mut self) {
        match self.random.below(31) {
            0..=9 => {
                for _ in 0..10 {
                    self.any_access();
                }
            }
            10..=15 => self.change(),
            16..=19 => self.follow(),
            20 | 21 => self.change_tables(),
            22 => self.choose_pointer(),
            23 | 24 => self.choose_shape(),
            25 => self.swap(),
            26 => self.write_somewhere(),
            27 if self.random.one_in(4) => {
                for (rig, config) in self.rigs.iter_mut().zip(configs()) {
                    states::replace(rig, &config);
                }
            }
            _ => self.interfere(),
        }
    }

    fn compare_memory(&self) {
        let (mut expected, mut found) = (vec![0; RAM as usize], vec![0; RAM as usize]);
        assert!(self.bare.wiring.ram.read_bytes(0, &mut expected));
        for rig in &self.rigs {
            assert!(rig.ram().read_bytes(0, &mut found));
            if let Some(at) = (0..RAM as usize).find(|at| expected[*at] != found[*at]) {
                panic!("{}: {at:#x} holds {:#x}, not {:#x}", rig.name, found[at], expected[at]);
            }
        }
    }

    fn finish(&mut self) {
        self.compare_memory();
        for rig in &mut self.rigs {
            rig.check();
            rig.mmu.unload(&mut rig.vcpu);
            rig.mmu.unload(&mut rig.other.0);
            rig.check();
            rig.mmu.zap_all();
            rig.check();
            assert_eq!(rig.mmu.pages_used().0, 0, "{}: pages leak", rig.name);
        }
    }
}

fn run(seed: u64, steps: usize) -> [u32; 5] {
    let mut world = World::new(seed);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        for step in 0..steps {
            world.step();
            if step % 8 == 0 {
                world.rigs.iter().for_each(Rig::check);
            }
            if step % 64 == 0 {
                world.compare_memory();
            }
        }
        world.finish();
    }));
    if let Err(panic) = outcome {
        let from = world.trace.len().saturating_sub(60);
        eprintln!("seed {seed}:\n{}", world.trace[from..].join("\n"));
        std::panic::resume_unwind(panic);
    }
    world.seen
}

#[test]
fn a_guest_of_a_guest_meets_what_it_meets_on_a_processor() {
    let number = |name: &str, or| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(or);
    let (seeds, first) = (number("MMU_STRESS_SEEDS", 6), number("MMU_STRESS_FIRST", 1));
    let mut seen = [0; 5];
    for seed in first..first + seeds {
        let here = run(seed, 300);
        (0..5).for_each(|kind| seen[kind] += here[kind]);
    }
    assert!(seen[..4].iter().all(|count| *count > 50), "too few of a kind: {seen:?}");
}

#[test]
fn forged_states_with_shadow_ept_are_refused_or_can_be_gone_on_from() {
    let mut random = Random::new(11);
    let (mut accepted, mut refused) = (0, 0);
    for seed in 0..2 {
        let mut world = World::new(seed);
        (0..60).for_each(|_| world.step());
        world.any_access();
        let guest = world.guest;
        for (rig, config) in world.rigs.iter().zip(configs()) {
            let file = states::save(rig);
            let mut victim = Rig::new(&config, RAM);
            for _ in 0..20 {
                match states::restore(&mut victim, &states::forge_file(&file, &mut random)) {
                    Ok(()) => {
                        accepted += 1;
                        states::go_on(&mut victim, &guest, &mut random);
                    }
                    Err(_) => refused += 1,
                }
            }
        }
    }
    assert!(accepted > 60 && refused > 60, "{accepted} accepted, {refused} refused");
}

#[test]
fn a_small_pool_is_recycled_and_bounded() {
    let config = VmConfig { mmu_pages: Some(64), huge_pages: false, unrestricted_guest: false, ..VmConfig::default() };
    for mmu in [MmuMode::Tdp, MmuMode::LegacyTdp] {
        let mut rig = Rig::new(&VmConfig { mmu, ..config.clone() }, RAM);
        // Each of 64 top-level tables leads to the same last-level table by a path of its own.
        let entry = |frame: u64| frame << 12 | ept::RIGHTS;
        for number in 0..64u64 {
            let [top, upper, middle] = [0x200 + number, 0x240 + number, 0x280 + number];
            for (table, value) in [(top, entry(upper)), (upper, entry(middle)), (middle, entry(0x2c0))] {
                rig.ram().write(table << 12, value);
            }
        }
        rig.ram().write(0x2c0_000, entry(0x300) | ept::WRITE_BACK << ept::TYPE_SHIFT);
        for number in 0..256u64 {
            let eptp = (0x200 + number % 64) << 12 | ept::EPTP_FOUR_LEVELS | ept::WRITE_BACK;
            let nested = Nested { eptp: Some(eptp), ept: FORMAT, pml: None };
            let mut guest = Guest { cr0: CR0_PE, rflags: 2, nested: Some(nested), ..Guest::default() };
            let found = rig.nested_access(&mut guest, 0x123, Access::Write, Privilege::Supervisor);
            assert_eq!(found, Found::Place(0x300_123));
            assert!(rig.mmu.pages_used().0 <= 64);
            rig.check();
        }
        assert!(rig.mmu.stats().recycled > 100, "{:?}", rig.mmu.stats());
    }
}

#[test]
fn tables_have_the_format_that_the_guest_is_offered() {
    let mut rig = Rig::new(&VmConfig { unrestricted_guest: false, ..VmConfig::default() }, RAM);
    let leaf = |rights: u64| 0x300_000 | rights | ept::WRITE_BACK << ept::TYPE_SHIFT;
    for (at, value) in [(0x200_000, 0x201_407), (0x201_000, 0x202_407), (0x202_000, 0x203_407)] {
        rig.ram().write::<u64>(at, value);
    }
    let mut fetch = |ept: EptFormat, at: u64, value: u64| {
        let before: u64 = rig.ram().read(at).unwrap();
        rig.ram().write(at, value);
        let nested = Nested { eptp: Some(0x200_000 | ept::EPTP_FOUR_LEVELS | ept::WRITE_BACK), ept, pml: None };
        let mut guest = Guest { cr0: CR0_PE, rflags: 2, nested: Some(nested), ..Guest::default() };
        let found = rig.nested_access(&mut guest, 0, Access::Fetch, Privilege::Supervisor);
        rig.ram().write(at, before);
        rig.mmu.page_written(at, 8);
        rig.mmu.nested_invept(&mut rig.vcpu, NestedInvept::All);
        found
    };
    let plain = EptFormat { execute_only: false, pages_2m: false, pages_1g: false, ..FORMAT };
    let wrong = Found::Exit(EptExit::Misconfiguration { gpa: 0 });
    let execute = leaf(ept::EXECUTE);
    assert_eq!((fetch(FORMAT, 0x203_000, execute), fetch(plain, 0x203_000, execute)), (Found::Place(0x300_000), wrong));
    let user = leaf(ept::USER_EXECUTE);
    let by_mode = EptFormat { mode_based: true, ..FORMAT };
    // With paging disabled, all addresses are user addresses.
    let refused = Found::Exit(EptExit::Violation { gpa: 0, linear: 0, qualification: 0x184 });
    assert_eq!((fetch(by_mode, 0x203_000, user), fetch(FORMAT, 0x203_000, user)), (Found::Place(0x300_000), refused));
    let large = 0x200_000 | ept::RIGHTS | ept::LARGE;
    assert_eq!((fetch(FORMAT, 0x202_000, large), fetch(plain, 0x202_000, large)), (Found::Place(0x200_000), wrong));
    let huge = ept::RIGHTS | ept::LARGE;
    assert_eq!(fetch(EptFormat { pages_2m: true, ..plain }, 0x201_000, huge), wrong);
    assert_eq!(fetch(FORMAT, 0x201_000, huge), Found::Place(0));
}
