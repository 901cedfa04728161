//! Tests of two-dimensional walks against a different model: recursive, and on plain words.

use crate::Cpu;
use crate::access::{Access, Privilege};
use crate::fault::Cause;
use crate::ram::Ram;
use crate::testing::{self, Random};
use crate::tlb::perm;
use x86::control::*;
use x86::page::{ADDRESS, NX};
use x86::vector;
use x86::vmx::{primary, reason, secondary};

const RAM: u64 = 4 << 20;
/// Guest-physical frames of the guest's tables, four for each level, and host frames of EPT tables.
const GUEST: u64 = 0x100;
const EPT: u64 = 0x200;
const PHYSICAL: u64 = 46;

/// Paging mode of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Off,
    Bits32,
    Pae,
    Long,
}

/// Expected result of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Mapped { physical: u64, size: u64, references: u32, perms: u8 },
    PageFault { code: u32 },
    Violation { qualification: u64, physical: u64 },
    Misconfiguration { physical: u64 },
}

/// Model of the memory as words, and of the relevant registers.
struct World {
    words: Vec<u64>,
    mode: Mode,
    eptp: u64,
    cr3: u64,
    pdpte: [u64; 4],
    wp: bool,
    pse: bool,
    nxe: bool,
    smep: bool,
    pge: bool,
    references: u32,
}

struct Step {
    host: u64,
    size: u64,
    rights: u64,
    clean: bool,
}

impl World {
    fn word(&self, address: u64) -> u64 {
        self.words.get((address / 8) as usize).copied().unwrap_or(u64::MAX)
    }

    fn narrow(&self, address: u64) -> u64 {
        if address >= RAM { 0xffff_ffff } else { self.word(address) >> (8 * (address & 4)) & 0xffff_ffff }
    }

    fn flags(&self) -> bool {
        self.eptp & 64 != 0
    }

    /// Walks EPT from the level with pages of `size`, given its table; `place` contains the high bits of the
    /// qualification.
    fn ept(&mut self, table: u64, size: u64, gpa: u64, want: u64, rights: u64, place: u64) -> Result<Step, Expected> {
        let at = table + (gpa / size % 512) * 8;
        let entry = self.word(at);
        self.references += 1;
        let rights = rights & entry & 7;
        let violation = Expected::Violation { qualification: want | rights << 3 | place, physical: gpa };
        if entry & 7 == 0 {
            return Err(violation);
        }
        let leaf = size == 4096 || (entry & 0x80 != 0 && size <= 1 << 30);
        let bad_address = entry & ADDRESS >> PHYSICAL << PHYSICAL != 0;
        let bad = match leaf {
            true => matches!(entry >> 3 & 7, 2 | 3 | 7) || entry & ADDRESS & (size - 1) != 0,
            false => entry & 0x78 != 0 || entry & 0x80 != 0,
        };
        if bad_address || bad || entry & 3 == 2 {
            return Err(Expected::Misconfiguration { physical: gpa });
        }
        let step = if leaf {
            if rights & want != want {
                return Err(violation);
            }
            let host = entry & ADDRESS & !(size - 1) | gpa & (size - 1);
            Step { host, size, rights, clean: self.flags() && entry & 0x200 == 0 && want & 2 == 0 }
        } else {
            self.ept(entry & ADDRESS, size / 512, gpa, want, rights, place)?
        };
        if self.flags() {
            self.words[(at / 8) as usize] |= 0x100 | if leaf && want & 2 != 0 { 0x200 } else { 0 };
        }
        Ok(step)
    }

    fn place(&mut self, gpa: u64, want: u64, place: u64) -> Result<Step, Expected> {
        if gpa >> 48 != 0 {
            return Err(Expected::Violation { qualification: want | place, physical: gpa });
        }
        self.ept(self.eptp & ADDRESS, 1 << 39, gpa, want, 7, place)
    }

    fn table_entry(&mut self, gpa: u64) -> Result<u64, Expected> {
        let want = if self.flags() { 3 } else { 1 };
        self.place(gpa, want, 0x80).map(|s| s.host)
    }

    fn walk(&mut self, linear: u64, access: Access, user: bool) -> Expected {
        self.references = 0;
        self.translate(linear, access, user).unwrap_or_else(|e| e)
    }

    fn translate(&mut self, linear: u64, access: Access, user: bool) -> Result<Expected, Expected> {
        let write = access == Access::Write;
        let fetch = access == Access::Fetch;
        let want = [1, 2, 4][access as usize];
        let (mut page, mut size, mut perms) = (linear & 0xffff_ffff, 1 << 30, perm::WRITE | perm::USER | perm::DIRTY);
        if self.mode != Mode::Off {
            let fetch_shown = self.smep || (self.mode != Mode::Bits32 && self.nxe);
            let shown = u32::from(write) << 1 | u32::from(user) << 2 | u32::from(fetch && fetch_shown) << 4;
            let fault = |bits: u32| Err(Expected::PageFault { code: bits | shown });
            let (wide, levels) = match self.mode {
                Mode::Long => (true, 4),
                Mode::Pae => (true, 2),
                _ => (false, 2),
            };
            let mut table = match self.mode {
                Mode::Pae => {
                    let pdpte = self.pdpte[(linear >> 30) as usize];
                    if pdpte & 1 == 0 {
                        return fault(0);
                    }
                    pdpte & ADDRESS
                }
                _ => self.cr3,
            };
            let (mut writable, mut user_page, mut no_execute) = (true, true, false);
            let mut used = Vec::new();
            for level in (0..levels).rev() {
                let (bits, entry_size) = if wide { (9, 8) } else { (10, 4) };
                size = 1u64 << (12 + bits * level);
                let gpa = table + linear / size % (1 << bits) * entry_size;
                let host = self.table_entry(gpa)?;
                self.references += 1;
                let entry = if wide { self.word(host) } else { self.narrow(host) };
                if entry & 1 == 0 {
                    return fault(0);
                }
                let large = entry & 0x80 != 0 && (level == 1 || level == 2) && (wide || self.pse);
                let mut reserved = 0;
                if wide {
                    reserved |= ADDRESS >> PHYSICAL << PHYSICAL | if self.nxe { 0 } else { NX };
                    reserved |= if self.mode == Mode::Pae { 0x7ff0_0000_0000_0000 } else { 0 };
                    reserved |= if large { (size - 1) & 0x3fff_e000 } else { 0 };
                    reserved |= if level == 3 { 0x80 } else { 0 };
                } else if large {
                    reserved = 1 << 21;
                }
                if entry & reserved != 0 {
                    return fault(9);
                }
                writable &= entry & 2 != 0;
                user_page &= entry & 4 != 0;
                no_execute |= wide && entry & NX != 0;
                used.push((gpa, host, entry));
                if level == 0 || large {
                    page = match (wide, large) {
                        (false, true) => entry & 0xffc0_0000 | (entry >> 13 & 0xff) << 32,
                        (false, false) => entry & 0xffff_f000,
                        _ => entry & ADDRESS & !(size - 1),
                    };
                    perms = if writable { perm::WRITE } else { 0 }
                        | if user_page { perm::USER } else { 0 }
                        | if no_execute { perm::NO_EXECUTE } else { 0 }
                        | if entry & 0x100 != 0 && self.pge { perm::GLOBAL } else { 0 }
                        | if entry & 0x40 != 0 || write { perm::DIRTY } else { 0 };
                    break;
                }
                table = entry & if wide { ADDRESS } else { 0xffff_f000 };
            }
            let allowed = match access {
                _ if user && !user_page => false,
                Access::Read => true,
                Access::Write => writable || (!user && !self.wp),
                Access::Fetch => !no_execute && (user || !user_page || !self.smep),
                Access::ShadowRead | Access::ShadowWrite => unreachable!("the model has no shadow stacks"),
            };
            if !allowed {
                return fault(1);
            }
            let last = used.len() - 1;
            for (i, (gpa, host, entry)) in used.into_iter().enumerate() {
                let set = 0x20 | if i == last && write { 0x40 } else { 0 };
                if entry & set != set {
                    let counted = self.references;
                    self.place(gpa, 3, 0x80)?;
                    self.references = counted;
                    if host < RAM {
                        let shift = if wide { 0 } else { 8 * (host & 4) };
                        self.words[(host / 8) as usize] |= set << shift;
                    }
                }
            }
            page |= linear & (size - 1);
        }
        let step = self.place(page, want, 0x180)?;
        if step.clean {
            perms &= !perm::DIRTY;
        }
        let denied = [(1, perm::EPT_NO_READ), (2, perm::EPT_NO_WRITE), (4, perm::EPT_NO_FETCH)];
        perms |= denied.iter().filter(|(bit, _)| step.rights & bit == 0).fold(0, |all, (_, perm)| all | perm);
        let size = size.min(step.size);
        Ok(Expected::Mapped { physical: step.host, size, references: self.references, perms })
    }
}

fn guest_entry(random: &mut Random, mode: Mode, level: u64) -> u64 {
    let large = level == 1 && random.one_in(6) || level == 2 && random.one_in(12);
    let size = match (mode, level) {
        (Mode::Bits32, 1) => 4 << 20,
        (_, level) => 1 << (12 + 9 * level),
    };
    let target = if level == 0 || large {
        // Data anywhere in the first two gigabytes, tables included.
        random.below(1 << 31) & !(size - 1) & ADDRESS
    } else {
        (GUEST + 4 * (level - 1) + random.below(4)) << 12
    };
    let mut entry = target | random.below(1 << 7) & 0x66 | 1 | if large { 0x80 } else { 0 };
    for (odds, bits) in [(10, 1), (4, 2), (4, 4)] {
        entry = if random.one_in(odds) { entry & !bits } else { entry | bits };
    }
    entry |= if level == 0 && random.one_in(3) { 0x180 } else { 0 };
    if mode == Mode::Long || mode == Mode::Pae {
        entry |= if random.one_in(6) { NX } else { 0 };
        entry |= if random.one_in(60) { 1 << (46 + random.below(10)) } else { 0 };
        entry |= if random.one_in(60) { 1 << (12 + random.below(10)) } else { 0 };
    } else if large {
        entry |= random.below(256) << 13 & if random.one_in(8) { 0x1f_e000 } else { 0 };
        entry |= if random.one_in(20) { 1 << 21 } else { 0 };
    }
    entry
}

fn ept_entry(random: &mut Random, level: u64, index: u64) -> u64 {
    let large = level == 1 && random.one_in(8) || level == 2 && random.one_in(24);
    let size = 1u64 << (12 + 9 * level);
    let target = if level == 0 || large {
        // The first four megabytes, which contain the guest's tables, are mapped one to one; the rest is mapped
        // randomly.
        if index < 1024 && level == 0 || large && random.one_in(2) { index * 4096 } else { random.below(1 << 34) }
    } else {
        (EPT + 4 * (level - 1) + if level == 1 { index & 1 } else { random.below(4) }) << 12
    };
    let mut entry = target & !(size.min(1 << 30) - 1) & ADDRESS;
    if level > 0 && !large {
        entry = target;
    }
    entry |= random.below(1 << 10) & 0x300 | 7;
    entry |= if level == 0 || large { random.of(&[0x30, 0x30, 0x00, 0x28]) } else { 0 };
    entry |= if large { 0x80 } else { 0 };
    for (odds, bits) in [(14, 1), (8, 2), (10, 4), (40, 7)] {
        entry &= if random.one_in(odds) { !bits } else { !0 };
    }
    entry |= if random.one_in(150) { 1 << (3 + random.below(50)) & !0x380 } else { 0 };
    entry | if random.one_in(4) { random.below(1 << 11) << 52 } else { 0 }
}

fn build(random: &mut Random, mode: Mode) -> World {
    let mut words = vec![0; (RAM / 8) as usize];
    for level in 0..4u64 {
        for table in 0..4u64 {
            for i in 0..512u64 {
                let at = ((GUEST + 4 * level + table) << 9 | i) as usize;
                words[at] = match mode {
                    Mode::Bits32 => {
                        guest_entry(random, mode, level) & 0xffff_ffff | guest_entry(random, mode, level) << 32
                    }
                    _ => guest_entry(random, mode, level),
                };
                let frame = if level == 0 { table << 9 | i } else { i };
                let at = ((EPT + 4 * level + table) << 9 | i) as usize;
                words[at] = ept_entry(random, level, frame);
            }
        }
    }
    let top = if mode == Mode::Long { 3 } else { 1 };
    let pdpte = std::array::from_fn(|_| (GUEST + 4 + random.below(4)) << 12 | u64::from(!random.one_in(8)));
    World {
        words,
        mode,
        eptp: (EPT + 12) << 12 | 3 << 3 | 6 | random.below(2) << 6,
        cr3: (GUEST + 4 * top) << 12,
        pdpte,
        wp: random.one_in(2),
        pse: !random.one_in(4),
        nxe: !random.one_in(4),
        smep: random.one_in(3),
        pge: random.one_in(2),
        references: 0,
    }
}

fn processor(world: &World) -> Cpu {
    let mut cpu = testing::cpu(Ram::anonymous(RAM));
    for (i, word) in world.words.iter().enumerate() {
        cpu.wiring.ram.write(8 * i as u64, *word);
    }
    let mode = world.mode;
    let when = |on, bit| if on { bit } else { 0 };
    cpu.arch.cr0 = CR0_PE | when(mode != Mode::Off, CR0_PG) | when(world.wp, CR0_WP);
    cpu.arch.cr4 = when(matches!(mode, Mode::Pae | Mode::Long), CR4_PAE)
        | when(world.pse, CR4_PSE)
        | when(world.smep, CR4_SMEP)
        | when(world.pge, CR4_PGE);
    cpu.arch.msr.efer = when(mode == Mode::Long, EFER_LMA | EFER_LME) | when(world.nxe, EFER_NXE);
    cpu.arch.cr3 = world.cr3;
    cpu.arch.pdpte = world.pdpte;
    cpu.arch.vmx.active = true;
    cpu.arch.vmx.controls.primary = primary::SECONDARY;
    cpu.arch.vmx.controls.secondary = secondary::EPT | secondary::UNRESTRICTED_GUEST;
    cpu.arch.vmx.controls.eptp = world.eptp;
    cpu.arch.vmx.ept = true;
    cpu.mapping_changed();
    cpu
}

fn outcome(cpu: &mut Cpu, linear: u64, access: Access, privilege: Privilege) -> Expected {
    if let Ok(walked) = cpu.walk(linear, access, privilege) {
        let e = walked.entry;
        let size = 1 << e.shift;
        assert_eq!((e.linear, e.physical & (size - 1)), (linear & !(size - 1), 0));
        let physical = e.physical | linear & (size - 1);
        return Expected::Mapped { physical, size, references: walked.references, perms: e.perms };
    }
    match std::mem::take(&mut cpu.engine.fault) {
        Cause::Exception(vector::PF, Some(code)) => {
            assert_eq!(cpu.engine.fault_address, linear);
            Expected::PageFault { code }
        }
        Cause::VmExit => {
            let exit = cpu.arch.vm_exit;
            let (qualification, physical) = (exit.qualification, exit.guest_physical);
            match exit.reason {
                reason::EPT_VIOLATION => {
                    assert_eq!(exit.guest_linear, linear);
                    Expected::Violation { qualification, physical }
                }
                reason::EPT_MISCONFIGURATION => Expected::Misconfiguration { physical },
                other => panic!("reason {other}"),
            }
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn two_dimensional_walks_are_as_the_model_has_them() {
    let mut random = Random::new(9);
    let mut seen = [0u32; 5];
    for round in 0..48 {
        let mode = [Mode::Long, Mode::Pae, Mode::Bits32, Mode::Off][round % 4];
        let mut world = build(&mut random, mode);
        let mut cpu = processor(&world);
        for _ in 0..1500 {
            let linear = match mode {
                Mode::Long => random.below(1 << 47),
                Mode::Off => random.below(1 << 31),
                _ => random.below(1 << 32),
            };
            let access = random.of(&[Access::Read, Access::Write, Access::Fetch]);
            let user = random.one_in(2);
            let privilege = if user { Privilege::User } else { Privilege::Supervisor };
            let expected = world.walk(linear, access, user);
            let got = outcome(&mut cpu, linear, access, privilege);
            assert_eq!(got, expected, "{mode:?} {linear:#x} {access:?} user {user} eptp {:#x}", world.eptp);
            let kind = match got {
                Expected::Mapped { references: 0..24, .. } => 0,
                Expected::Mapped { .. } => 1,
                Expected::PageFault { .. } => 2,
                Expected::Violation { .. } => 3,
                Expected::Misconfiguration { .. } => 4,
            };
            seen[kind] += 1;
        }
        for (i, word) in world.words.iter().enumerate() {
            let address = 8 * i as u64;
            assert_eq!(cpu.wiring.ram.read::<u64>(address), Some(*word), "{mode:?} word at {address:#x}");
        }
    }
    assert!(seen.iter().all(|n| *n > 300), "too few of a kind: {seen:?}");
}
