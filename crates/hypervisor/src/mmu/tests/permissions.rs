//! Permissions, and accessed and dirty flags, in all modes against a walk of the guest's tables that shares no code with
//! the hypervisor or the processor: the rules of SDM vol. 3, 4.6 and 4.8, written down once more.

use super::units::{RAM, ROOT, config};
use super::*;
use testkit::Random;
use x86::flags::AC;
use x86::page::{A, D, NX, P, PS, RW, US};

/// Addresses of the small page, and of the large one.
const SMALL: u64 = 0x30_0000;
const LARGE: u64 = 0x40_0000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Legacy,
    Pae,
    Long,
}

/// A guest's tables for one address, with an entry per level.
#[derive(Clone, Debug)]
struct Tables {
    shape: Shape,
    linear: u64,
    /// Addresses and values of the entries, from the top. PDPTEs of PAE paging are not among them.
    path: Vec<(u64, u64)>,
    large: bool,
}

impl Tables {
    fn random(random: &mut Random) -> Self {
        let shape = random.of(&[Shape::Legacy, Shape::Pae, Shape::Long]);
        let levels = if shape == Shape::Long { 4 } else { 2 };
        let low = random.of(&[0x40_1123, 0x7fbf_f123, 0x8000_0123, 0xffff_f123, 0xc061_2123u64]);
        let linear = if shape == Shape::Long { low as u32 as i32 as i64 as u64 } else { low };
        let large = random.one_in(4);
        let mut path = Vec::new();
        for level in (if large { 2 } else { 1 }..=levels).rev() {
            let table = ROOT + (levels - level) * 0x1000;
            let at = match shape {
                Shape::Legacy => table + (linear >> (2 + 10 * level) & 0x3ff) * 4,
                _ => table + (linear >> (3 + 9 * level) & 0x1ff) * 8,
            };
            let target = match level {
                1 => SMALL,
                2 if large => LARGE,
                _ => table + 0x1000,
            };
            let mut value = target | if level == 2 && large { PS } else { 0 };
            for (bit, none_in) in [(P, 30), (RW, 5), (US, 5), (A, 3), (D, 3)] {
                value |= if random.one_in(none_in) { 0 } else { bit };
            }
            if shape != Shape::Legacy && random.one_in(8) {
                value |= NX;
            }
            path.push((at, value));
        }
        Self { shape, linear, path, large }
    }

    fn write(&self, ram: &Ram) {
        for (at, value) in &self.path {
            match self.shape {
                Shape::Legacy => ram.write(*at, *value as u32),
                _ => ram.write(*at, *value),
            };
        }
    }

    fn read(&self, ram: &Ram) -> Vec<u64> {
        let wide = self.shape != Shape::Legacy;
        let value = |at: u64| if wide { ram.read::<u64>(at) } else { ram.read::<u32>(at).map(u64::from) };
        self.path.iter().map(|(at, _)| value(*at).unwrap()).collect()
    }

    /// Returns registers for these tables.
    fn guest(&self, random: &mut Random) -> Guest {
        let mut guest = Guest { cr0: CR0_PE | CR0_PG, cr3: ROOT, rflags: 2, ..Guest::default() };
        match self.shape {
            Shape::Legacy => guest.cr4 = CR4_PSE,
            Shape::Pae => {
                guest.cr4 = CR4_PAE;
                guest.cr3 = ROOT + 0x8000;
                guest.pdpte[(self.linear >> 30) as usize] = ROOT | P;
            }
            Shape::Long => (guest.cr4, guest.efer) = (CR4_PAE, EFER_LME | EFER_LMA),
        }
        guest.efer |= if random.one_in(5) { 0 } else { EFER_NXE };
        guest
    }

    /// Returns the error code of an access, or the address of the memory.
    fn expected(&self, guest: &Guest, access: Access, privilege: Privilege) -> Met {
        let (write, fetch, user) = (access == Access::Write, access == Access::Fetch, privilege == Privilege::User);
        let (wp, smep, smap) = (guest.cr0 & CR0_WP != 0, guest.cr4 & CR4_SMEP != 0, guest.cr4 & CR4_SMAP != 0);
        let nxe = guest.efer & EFER_NXE != 0 && self.shape != Shape::Legacy;
        let shown = (u32::from(write) << 1) | (u32::from(user) << 2) | (u32::from(fetch && (nxe || smep)) << 4);
        for (_, value) in &self.path {
            if value & P == 0 {
                return Met::Fault(shown);
            }
            if value & NX != 0 && !nxe {
                return Met::Fault(shown | 0b1001);
            }
        }
        let all = |bit| self.path.iter().all(|(_, value)| value & bit != 0);
        let any = |bit| self.path.iter().any(|(_, value)| value & bit != 0);
        let lifted = privilege == Privilege::Supervisor && guest.rflags & AC != 0;
        let allowed = if user {
            all(US) && (!write || all(RW)) && !(fetch && any(NX))
        } else if all(US) && if fetch { smep } else { smap && !lifted } {
            false
        } else if fetch {
            !any(NX)
        } else {
            !write || all(RW) || !wp
        };
        if !allowed {
            return Met::Fault(shown | 1);
        }
        let within = match (self.large, self.shape) {
            (false, _) => return Met::Memory(SMALL | self.linear & 0xfff),
            (true, Shape::Legacy) => self.linear & 0x3f_ffff,
            (true, _) => self.linear & 0x1f_ffff,
        };
        Met::Memory(LARGE | within)
    }

    /// Sets the flags that a permitted access sets.
    fn mark(&mut self, write: bool) {
        let last = self.path.len() - 1;
        for (depth, (_, value)) in self.path.iter_mut().enumerate() {
            *value |= A | if write && depth == last { D } else { 0 };
        }
    }
}

/// Changes the registers that decide about permissions, and reports the changes.
fn toggle(rigs: &mut [Rig], guest: &mut Guest, random: &mut Random) {
    let old = *guest;
    match random.below(8) {
        0..=2 => guest.cr0 ^= CR0_WP,
        3 => guest.cr4 ^= CR4_SMEP,
        4 | 5 => guest.cr4 ^= CR4_SMAP,
        6 => guest.rflags ^= AC,
        _ => {}
    }
    for rig in rigs {
        if guest.cr0 != old.cr0 {
            rig.mmu.cr0_changed(&mut rig.vcpu, guest, old.cr0);
        }
        if guest.cr4 != old.cr4 {
            rig.mmu.cr4_changed(&mut rig.vcpu, guest, old.cr4);
        }
    }
}

#[test]
fn each_level_permits_and_registers_decide() {
    let mut random = Random::new(29);
    let mut seen = BTreeMap::new();
    let small = |mode| VmConfig { huge_pages: false, unsync: false, ..config(mode) };
    let configs = MmuMode::ALL.iter().map(|mode| config(*mode));
    let configs = configs.chain([small(MmuMode::ShadowNocache), small(MmuMode::Shadow)]);
    let mut rigs: Vec<Rig> = configs.map(|config| Rig::new(&config, RAM)).collect();
    for _ in 0..200 {
        let mut tables = Tables::random(&mut random);
        for rig in &mut rigs {
            let slot = rig.mmu.slots().find(0).unwrap().config;
            assert!(rig.mmu.remove_slot(0));
            rig.mmu.add_slot(slot).unwrap();
            rig.tlb.clear();
            tables.write(rig.ram());
        }
        let mut guest = tables.guest(&mut random);
        for _ in 0..5 {
            let access = random.of(&[Access::Read, Access::Write, Access::Write, Access::Fetch]);
            let privilege = random.of(&[Privilege::User, Privilege::Supervisor, Privilege::Implicit]);
            let privilege = if access == Access::Fetch && privilege == Privilege::Implicit {
                Privilege::Supervisor
            } else {
                privilege
            };
            guest.cpl = if privilege == Privilege::Supervisor { 0 } else { 3 };
            let expected = tables.expected(&guest, access, privilege);
            if let Met::Memory(_) = expected {
                tables.mark(access == Access::Write);
            }
            let kind = match expected {
                Met::Fault(code) => Some(code),
                _ => None,
            };
            *seen.entry(kind).or_insert(0) += 1;
            for rig in &mut rigs {
                let before = rig.mmu.stats().injected;
                let met = rig.access(&guest, tables.linear, access, privilege);
                let injected = rig.mmu.stats().injected - before;
                let by_processor = rig.is_tdp() || rig.emulated;
                assert_eq!(injected, u64::from(kind.is_some() && !by_processor), "{}", rig.name);
                let case = format!("{}: {access:?} {privilege:?} {guest:x?} {tables:x?}", rig.name);
                assert_eq!(met, expected, "{case}");
                // Fault or not, no flags but these are set.
                let found = tables.read(rig.ram());
                let values: Vec<u64> = tables.path.iter().map(|(_, value)| *value).collect();
                assert_eq!(found, values, "{case}");
            }
            toggle(&mut rigs, &mut guest, &mut random);
        }
        rigs.iter().for_each(Rig::check);
    }
    // Nearly every error code of SDM vol. 3, 4.7 that has nothing to do with keys and shadow stacks, and successes.
    assert!(seen.len() >= 16 && seen[&None] > 200, "{seen:?}");
}
