//! Random operations of a guest on its page tables, in all modes and without a hypervisor at once: every access must
//! have the same result, and memory must be equal, including accessed and dirty flags.

pub(super) mod states;

use super::*;
use crate::config::NestedRoots;
use testkit::Random;

/// Size of RAM in bytes.
const RAM: u64 = 8 << 20;
/// Frames that contain tables, which the guest can write through a mapping.
///
/// The frames form layers: entries in a frame of one layer usually point to frames of the layer below, and those of the
/// lowest layer to data.
const ARENA: std::ops::Range<u64> = 0x100..0x128;
/// Number of frames per layer.
const LAYER: u64 = 8;
/// Frames of the tables that map the arena, to which nothing else points.
const KEPT: u64 = 0x180;
/// Address at which the guest maps the arena; 2 MiB aligned, and outside of the tested ranges.
const WINDOW: u64 = 0x3fc0_0000;
/// Tested indices of level-4 tables, PDPTs, and so on.
const INDEXES: [u64; 5] = [0, 1, 2, 3, 511];

/// Paging mode of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Unpaged,
    Legacy,
    Pae,
    Long,
    Long5,
}

const SHAPES: [Shape; 5] = [Shape::Unpaged, Shape::Legacy, Shape::Pae, Shape::Long, Shape::Long5];

struct World {
    random: Random,
    shape: Shape,
    guest: Guest,
    /// Mode and registers of the other virtual processor.
    other: (Shape, Guest),
    /// Mode and registers of both virtual processors at the other level: the nested guest, or the guest.
    resting: [(Shape, Guest); 2],
    bare: Bare,
    rigs: Vec<Rig>,
    /// True if the guest is well-behaved: its tables are valid, and it flushes no more than necessary.
    tame: bool,
    /// Last-level entries that were changed since the last full flush, and the address that was flushed.
    changed: BTreeMap<u64, u64>,
    /// Contents of memory when the dirty log was last read, for each rig.
    logged: Vec<Option<Vec<u8>>>,
    trace: Vec<String>,
}

fn configs() -> Vec<VmConfig> {
    let base = VmConfig { unrestricted_guest: false, ..VmConfig::default() };
    let mut all = Vec::new();
    for mmu in MmuMode::ALL {
        all.push(VmConfig { mmu: *mmu, ..base.clone() });
    }
    all.push(VmConfig { mmu: MmuMode::Shadow, unsync: false, ..base.clone() });
    all.push(VmConfig { mmu: MmuMode::Shadow, nested_roots: NestedRoots::Drop, ..base.clone() });
    all.push(VmConfig {
        mmu: MmuMode::Shadow,
        mmu_pages: Some(64),
        cr0_wp: Cr0Wp::Unload,
        huge_pages: false,
        ..base.clone()
    });
    all.push(VmConfig { mmu: MmuMode::ShadowNocache, mmu_pages: Some(64), huge_pages: false, ..base.clone() });
    all.push(VmConfig { mmu: MmuMode::Tdp, mmu_pages: Some(64), huge_pages: false, cr0_wp: Cr0Wp::GuestOwned, ..base });
    all
}

impl World {
    fn new(seed: u64) -> Self {
        let random = Random::new(seed);
        let rigs: Vec<Rig> = configs().iter().map(|config| Rig::new(config, RAM)).collect();
        let logged = rigs.iter().map(|_| None).collect();
        let guest = Guest { cr0: CR0_PE, rflags: 2, ..Guest::default() };
        let nested = Guest { nested: Some(Nested::default()), ..guest };
        let mut world = Self {
            random,
            shape: Shape::Unpaged,
            guest,
            other: (Shape::Unpaged, guest),
            resting: [(Shape::Unpaged, nested); 2],
            bare: Bare::new(RAM),
            rigs,
            tame: seed.is_multiple_of(2),
            changed: BTreeMap::new(),
            logged,
            trace: Vec::new(),
        };
        world.fill();
        world.switch_shape();
        world.swap();
        world.switch_shape();
        world
    }

    /// Writes the same initial contents to all memories.
    fn fill(&mut self) {
        let poke = |world: &mut Self, gpa: u64, value: u64| {
            world.bare.ram().write(gpa, value);
            for rig in &world.rigs {
                rig.ram().write(gpa, value);
            }
        };
        for frame in ARENA {
            for index in INDEXES {
                let value = self.entry(frame);
                poke(self, (frame << 12) | (index * 8), value);
            }
        }
        // The window: permanent tables for each mode, whose top entries are copied to every root when it is loaded.
        for (number, frame) in ARENA.enumerate() {
            let (number, entry) = (number as u64, frame << 12 | 3);
            // 64-bit and PAE: last level.
            poke(self, (KEPT << 12) + number * 8, entry);
        }
        for number in 0..ARENA.end - ARENA.start {
            let hpa = ((KEPT + 1) << 12) + number * 4;
            let value = (ARENA.start + number) << 12 | 3;
            self.bare.ram().write(hpa, value as u32);
            for rig in &self.rigs {
                rig.ram().write(hpa, value as u32);
            }
        }
        // 64-bit and PAE: page directory, and the PDPT above it.
        poke(self, ((KEPT + 2) << 12) + 0x1fe * 8, KEPT << 12 | 3);
        poke(self, (KEPT + 3) << 12, (KEPT + 2) << 12 | 3);
    }

    /// Returns a frame of the arena, of the given layer if possible.
    fn table(&mut self, layer: Option<u64>) -> u64 {
        let random = &mut self.random;
        match layer.filter(|layer| *layer * LAYER < ARENA.end - ARENA.start) {
            Some(layer) if self.tame || !random.one_in(8) => ARENA.start + layer * LAYER + random.below(LAYER),
            _ => ARENA.start + random.below(ARENA.end - ARENA.start),
        }
    }

    /// Returns an entry for a table in `frame`, usually a useful one.
    fn entry(&mut self, frame: u64) -> u64 {
        let layer = (frame - ARENA.start) / LAYER;
        if !self.tame && self.random.one_in(60) {
            return self.random.next() & self.random.next();
        }
        let rarely = if self.tame { 4 } else { 1 };
        let large = self.random.one_in(rarely * if layer == 0 { 30 } else { 8 });
        let below = self.table(layer.checked_sub(1));
        let random = &mut self.random;
        let frame = match random.below(20 * rarely) {
            0 => random.of(&[0xfee00, 0xd0000, 0xd0003, 0x800, 0xfffff, 0x3_ffff_ffff]),
            1 | 2 if rarely == 1 => random.below(0x800),
            _ if large => random.of(&[0, 0x200, 0x400, 0x600, 0x600, 0x800, 0x4_0000]),
            _ if layer == 0 => random.of(&[0x200, 0x300, 0x380, 0x600]) + random.below(8),
            _ => below,
        };
        let mut value = frame << 12 | 1;
        for (bit, of) in [(2u64, 6 * rarely), (4, 5 * rarely)] {
            if !random.one_in(of) {
                value |= bit;
            }
        }
        for (bit, of) in
            [(1u64 << 5, 2), (1 << 6, 2), (1 << 8, 3), (1 << 63, 10 * rarely), (1 << 52, 80), (1 << 47, 150)]
        {
            if random.one_in(of) {
                value |= bit;
            }
        }
        if large {
            value |= 1 << 7;
            if !random.one_in(8) {
                value &= !0x1f_e000;
            }
        }
        if random.one_in(16 * rarely) {
            value &= !1;
        }
        value
    }

    fn log(&mut self, what: String) {
        self.trace.push(what);
    }

    /// Returns a tested address.
    fn probe(&mut self) -> u64 {
        let random = &mut self.random;
        let levels = match self.shape {
            Shape::Unpaged => return random.below(RAM + (2 << 20)),
            Shape::Legacy => {
                let (directory, table) = (random.of(&INDEXES), random.of(&INDEXES));
                return (directory << 22 | table << 12 | (random.below(0x1ff) * 8)) & 0xffff_ffff;
            }
            Shape::Pae => 2,
            Shape::Long => 4,
            Shape::Long5 => 5,
        };
        let mut linear = random.below(0x1ff) * 8;
        for level in 1..=levels {
            linear |= random.of(&INDEXES) << (12 + 9 * (level - 1));
        }
        match self.shape {
            Shape::Pae => (linear & 0x3fff_ffff) | random.below(4) << 30,
            Shape::Long => ((linear << 16) as i64 >> 16) as u64,
            _ => ((linear << 7) as i64 >> 7) as u64,
        }
    }

    /// Loads CR3, and maps the window in the root as the guest's first action.
    fn load_root(&mut self) {
        let layer = match self.shape {
            Shape::Unpaged => 0,
            Shape::Legacy => 1,
            Shape::Pae => 2,
            Shape::Long => 3,
            Shape::Long5 => 4,
        };
        // Few distinct values, so that they are repeated.
        let frame = if !self.tame && self.random.one_in(8) {
            self.table(None)
        } else {
            ARENA.start + layer * LAYER + self.random.below(3)
        };
        let root = frame << 12;
        let window: Vec<(u64, u64)> = match self.shape {
            Shape::Unpaged => vec![],
            Shape::Legacy => vec![(root + (WINDOW >> 22) * 4, (KEPT + 1) << 12 | 3)],
            Shape::Pae => vec![(root, (KEPT + 2) << 12 | 1)],
            Shape::Long => vec![(root, (KEPT + 3) << 12 | 3)],
            // The level below is tested; it gets the window as well.
            Shape::Long5 => {
                let below = ARENA.start + 3 * LAYER + 7;
                vec![(root, below << 12 | 3), (below << 12, (KEPT + 3) << 12 | 3)]
            }
        };
        for (gpa, value) in window {
            self.store(gpa, if self.shape == Shape::Legacy { value as u32 as u64 } else { value }, self.entry_size());
        }
        self.guest.cr3 = root;
        if self.shape == Shape::Pae {
            for number in 1..4 {
                let gpa = root + number * 8;
                let table = self.table(Some(1));
                let value = table << 12 | u64::from(!self.random.one_in(6));
                self.store(gpa, value, 8);
            }
            self.guest.pdpte = std::array::from_fn(|i| self.bare.ram().read(root + 8 * i as u64).unwrap());
        }
        self.log(format!("cr3 {:#x}", self.guest.cr3));
        self.flush();
    }

    fn entry_size(&self) -> usize {
        if self.shape == Shape::Legacy { 4 } else { 8 }
    }

    /// Performs a write to memory that is emulated everywhere (or made by a device).
    fn store(&mut self, gpa: u64, value: u64, size: usize) {
        let bytes = value.to_le_bytes();
        assert!(self.bare.ram().write_bytes(gpa, &bytes[..size]));
        for rig in &mut self.rigs {
            rig.emulated = true;
            rig.write(gpa, &bytes[..size]);
        }
    }

    /// Performs a write of the guest through its window; all modes must agree on its success.
    fn write_arena(&mut self, gpa: u64, bytes: &[u8]) {
        let linear = match self.shape {
            Shape::Unpaged => gpa,
            _ => WINDOW + gpa - (ARENA.start << 12),
        };
        let through = self.tables_of(linear);
        self.write(linear, Privilege::Supervisor, bytes);
        if through.contains(&(gpa >> 12)) {
            // The mapping of the arena may have changed.
            self.flush();
        }
    }

    fn write(&mut self, linear: u64, privilege: Privilege, bytes: &[u8]) {
        self.log(format!("write {linear:#x} {privilege:?} {bytes:x?}"));
        if let Met::Memory(gpa) = self.access(linear, Access::Write, privilege) {
            assert!(self.bare.ram().write_bytes(gpa, bytes));
            for rig in &mut self.rigs {
                rig.write(gpa, bytes);
            }
        }
    }

    /// Performs an access on all machines, and compares the results.
    fn access(&mut self, linear: u64, access: Access, privilege: Privilege) -> Met {
        // Implicit accesses of the supervisor itself are excluded: the method that detects them leaves accessed flags
        // behind.
        self.guest.cpl = if privilege == Privilege::Supervisor { 0 } else { 3 };
        let met = self.bare.access(&self.guest, linear, access, privilege);
        for rig in &mut self.rigs {
            let here = rig.access(&self.guest, linear, access, privilege);
            assert_eq!(here, met, "{}: {linear:#x} {access:?} {privilege:?} {:#x?}", rig.name, self.guest);
        }
        met
    }

    fn any_access(&mut self, linear: u64) {
        let access = self.random.of(&[Access::Read, Access::Write, Access::Fetch]);
        let privilege = self.random.of(&[Privilege::User, Privilege::Supervisor, Privilege::Implicit]);
        // The processor itself does not fetch with implicit privilege.
        let privilege =
            if access == Access::Fetch && privilege == Privilege::Implicit { Privilege::User } else { privilege };
        let stale = |gpa: u64| self.changed.get(&gpa).is_some_and(|flushed| *flushed != linear >> 12);
        if self.leaf_of(linear).is_some_and(stale) {
            // Another address of the same entry was flushed, this one was not.
            return;
        }
        self.log(format!("{access:?} {linear:#x} {privilege:?}"));
        self.access(linear, access, privilege);
    }

    /// Switches to the other virtual processor.
    fn swap(&mut self) {
        std::mem::swap(&mut self.shape, &mut self.other.0);
        std::mem::swap(&mut self.guest, &mut self.other.1);
        self.resting.swap(0, 1);
        self.rigs.iter_mut().for_each(Rig::swap);
        self.log("swap".into());
    }

    /// Moves this virtual processor from the guest to its nested guest, which has no EPT, or back, without VPIDs:
    /// everything is flushed. Both share their memory here, and may share tables.
    fn transition(&mut self) {
        let old = (self.shape, self.guest);
        (self.shape, self.guest) = std::mem::replace(&mut self.resting[0], old);
        self.log(format!("transition, nested {} {:?}", self.guest.nested.is_some(), self.shape));
        let tags = TransitionTags { entry: self.guest.nested.is_some(), vpid12: None, vpid02: false };
        for rig in &mut self.rigs {
            rig.mmu.nested_transition(&mut rig.vcpu, &self.guest);
            rig.mmu.nested_transition_flush(&mut rig.vcpu, tags, 0);
            rig.tlb.clear();
        }
    }

    /// Loads CR3 on both virtual processors, after which all translations must match the tables.
    fn flush(&mut self) {
        self.changed.clear();
        for _ in 0..2 {
            self.reload();
            self.swap();
        }
    }

    /// Loads CR3 on this virtual processor again.
    fn reload(&mut self) {
        let guest = self.guest;
        self.log("flush".into());
        for rig in &mut self.rigs {
            rig.new_cr3(&guest);
        }
    }

    /// Flushes one address on both virtual processors.
    fn invlpg(&mut self, linear: u64) {
        self.log(format!("invlpg {linear:#x}"));
        for rig in &mut self.rigs {
            for _ in 0..2 {
                rig.invlpg(linear);
                rig.swap();
            }
        }
    }

    fn compare_memory(&mut self) {
        let mut expected = vec![0; RAM as usize];
        assert!(self.bare.ram().read_bytes(0, &mut expected));
        let mut found = vec![0; RAM as usize];
        for rig in &self.rigs {
            assert!(rig.ram().read_bytes(0, &mut found));
            if let Some(at) = (0..RAM as usize).find(|at| expected[*at] != found[*at]) {
                panic!("{}: {at:#x} holds {:#x}, not {:#x}", rig.name, found[at], expected[at]);
            }
        }
    }

    fn step(&mut self) {
        let what = if self.tame {
            self.random.of(&[0, 15, 15, 15, 15, 40, 40, 40, 70, 75, 85, 94, 95, 95, 96, 97, 98, 98, 99])
        } else {
            self.random.below(100)
        };
        if self.tame && what == 85 && !self.random.one_in(8) {
            return;
        }
        match what {
            // Changes of any entries, followed by a full flush.
            0..=9 => {
                for _ in 0..=self.random.below(3) {
                    let frame = ARENA.start + self.random.below(ARENA.end - ARENA.start);
                    let size = self.entry_size();
                    let gpa = frame << 12 | (self.random.of(&INDEXES) * size as u64);
                    let value = if self.random.one_in(5) { 0 } else { self.entry(frame) };
                    self.write_arena(gpa, &value.to_le_bytes()[..size]);
                }
                self.flush();
            }
            10..=34 => self.change_leaf(),
            35..=64 => {
                for _ in 0..10 {
                    let linear = self.probe();
                    self.any_access(linear);
                }
            }
            65..=72 => self.load_root(),
            73..=84 => self.toggle(),
            85..=87 => self.switch_shape(),
            88..=90 => self.reuse(),
            91..=93 => self.write_somewhere(),
            94 => self.dirty_log(),
            95 => self.swap(),
            96 => self.reload(),
            97 => self.change_large(),
            98 => self.transition(),
            _ => self.interfere(),
        }
    }

    /// Changes the last-level entry of one address, and flushes only that address.
    fn change_leaf(&mut self) {
        let linear = self.probe();
        let Some(gpa) = self.leaf_of(linear) else { return };
        if !ARENA.contains(&(gpa >> 12)) {
            return;
        }
        let size = self.entry_size();
        let value = if self.random.one_in(4) { 0 } else { self.entry(gpa >> 12) };
        self.any_access(linear);
        // The write itself may use the changed translation, so that only a full flush would be sufficient.
        self.write_arena(gpa, &value.to_le_bytes()[..size]);
        self.invlpg(linear);
        self.changed.insert(gpa, linear >> 12);
        for _ in 0..4 {
            self.any_access(linear);
        }
        if !self.tame {
            self.flush();
        }
    }

    /// Maps a large page, replaces it by another one, and flushes one address of it.
    fn change_large(&mut self) {
        let linear = self.probe();
        let Some(depth) = self.levels().checked_sub(2) else { return };
        let Some(gpa) = self.path(linear).get(depth).copied() else { return };
        if !ARENA.contains(&(gpa >> 12)) {
            return;
        }
        let shift = if self.shape == Shape::Legacy { 22 } else { 21 };
        let mask = (1u64 << shift) - 1;
        let near: [u64; 6] = std::array::from_fn(|_| (linear & !mask) | (self.random.next() & mask & !0x7ff));
        for number in 0..2 {
            let frame = self.random.of(&[0, 0x200, 0x400, 0x600]) & !(mask >> 12);
            let value = (frame << 12) | 0x80 | self.random.of(&[0x7, 0x27, 0x67, 0x65, 0x63, 0x61]);
            self.write_arena(gpa, &value.to_le_bytes()[..self.entry_size()]);
            if number == 0 {
                self.flush();
            } else {
                self.invlpg(near[0]);
            }
            // Other addresses may still use the old entry, or the address is not mapped by it after all.
            if self.path(linear).last() != Some(&gpa) {
                break;
            }
            for other in near {
                self.any_access(other);
            }
        }
        self.flush();
    }

    /// Returns the location of the last-level entry for an address.
    fn leaf_of(&self, linear: u64) -> Option<u64> {
        let path = self.path(linear);
        (path.len() == self.levels()).then(|| path.last().copied()).flatten()
    }

    /// Returns the frames of the tables that translate an address.
    fn tables_of(&self, linear: u64) -> Vec<u64> {
        self.path(linear).iter().map(|address| address >> 12).collect()
    }

    fn levels(&self) -> usize {
        match self.shape {
            Shape::Unpaged => 0,
            Shape::Legacy | Shape::Pae => 2,
            Shape::Long => 4,
            Shape::Long5 => 5,
        }
    }

    /// Returns the addresses of the entries that translate an address, from the top to the last, as far as they are in
    /// memory.
    fn path(&self, linear: u64) -> Vec<u64> {
        let ram = self.bare.ram();
        let mut path = Vec::new();
        let mut table = self.guest.cr3 & !0xfff;
        if self.shape == Shape::Pae {
            let pdpte = self.guest.pdpte[(linear >> 30) as usize & 3];
            if pdpte & 1 == 0 {
                return path;
            }
            table = pdpte & !0xfff;
        }
        for level in (1..=self.levels() as u32).rev() {
            let (address, value) = if self.shape == Shape::Legacy {
                let address = table + (linear >> (2 + 10 * level) & 0x3ff) * 4;
                (address, ram.read::<u32>(address).map(u64::from))
            } else {
                let address = table + (linear >> (3 + 9 * level) & 0x1ff) * 8;
                (address, ram.read::<u64>(address))
            };
            let Some(value) = value else { break };
            path.push(address);
            if value & 1 == 0 || (level > 1 && value & 0x80 != 0) {
                break;
            }
            table = value & x86::page::ADDRESS;
        }
        path
    }

    fn toggle(&mut self) {
        let old = self.guest;
        let paged = old.cr0 & CR0_PG != 0;
        match self.random.below(7) {
            0 | 1 => self.guest.cr0 ^= CR0_WP,
            2 => self.guest.cr4 ^= CR4_SMEP,
            3 => self.guest.cr4 ^= CR4_SMAP,
            4 => self.guest.cr4 ^= CR4_PGE,
            5 if self.shape == Shape::Legacy => self.guest.cr4 ^= CR4_PSE,
            5 if paged => self.guest.efer ^= EFER_NXE,
            _ => self.guest.rflags ^= 1 << 18,
        }
        let guest = self.guest;
        self.log(format!(
            "cr0 {:#x} cr4 {:#x} efer {:#x} rflags {:#x}",
            guest.cr0, guest.cr4, guest.efer, guest.rflags
        ));
        for rig in &mut self.rigs {
            if guest.cr0 != old.cr0 {
                rig.mmu.cr0_changed(&mut rig.vcpu, &guest, old.cr0);
            }
            if guest.cr4 != old.cr4 {
                rig.mmu.cr4_changed(&mut rig.vcpu, &guest, old.cr4);
            }
            if guest.efer != old.efer {
                rig.mmu.efer_changed(&mut rig.vcpu, &guest, old.efer);
            }
        }
    }

    fn switch_shape(&mut self) {
        let old = self.guest;
        self.shape = self.random.of(&SHAPES);
        self.guest.cr0 &= !CR0_PG;
        self.guest.cr4 &= !(CR4_PAE | CR4_LA57);
        self.guest.efer &= !(EFER_LME | EFER_LMA);
        let long = matches!(self.shape, Shape::Long | Shape::Long5);
        if self.shape != Shape::Unpaged {
            self.guest.cr0 |= CR0_PG;
        }
        if long || self.shape == Shape::Pae {
            self.guest.cr4 |= CR4_PAE;
        }
        if long {
            self.guest.efer |= EFER_LME | EFER_LMA;
        }
        if self.shape == Shape::Long5 {
            self.guest.cr4 |= CR4_LA57;
        }
        if self.shape == Shape::Legacy && !self.random.one_in(4) {
            self.guest.cr4 |= CR4_PSE;
        }
        let guest = self.guest;
        self.log(format!("{:?}", self.shape));
        // Paging is disabled, set up again and enabled; the roots in between do not matter.
        let off = Guest { cr0: old.cr0 & !CR0_PG, efer: old.efer & !EFER_LMA, ..old };
        for rig in &mut self.rigs {
            rig.mmu.cr0_changed(&mut rig.vcpu, &off, old.cr0);
            let unpaged = Guest { cr0: guest.cr0 & !CR0_PG, ..guest };
            rig.mmu.cr4_changed(&mut rig.vcpu, &unpaged, old.cr4);
            rig.mmu.efer_changed(&mut rig.vcpu, &unpaged, old.efer);
        }
        self.load_root();
        let guest = self.guest;
        for rig in &mut self.rigs {
            rig.mmu.cr0_changed(&mut rig.vcpu, &guest, guest.cr0 & !CR0_PG);
        }
    }

    /// Uses a table for data, or copies it as a whole.
    fn reuse(&mut self) {
        let frame = ARENA.start + self.random.below(ARENA.end - ARENA.start);
        let other = ARENA.start + self.random.below(ARENA.end - ARENA.start);
        let copy = self.random.one_in(2);
        for number in 0..24 {
            let size = self.random.of(&[1, 2, 4, 8, 8]);
            let mut bytes = self.random.next().to_le_bytes();
            if copy {
                assert!(self.bare.ram().read_bytes((other << 12) | (number * 8), &mut bytes));
            } else if self.random.one_in(2) {
                bytes = [0; 8];
            }
            let gpa = if copy { (frame << 12) | (number * 8) } else { frame << 12 | self.random.below(0xff8) };
            self.write_arena(gpa, &bytes[..if copy { 8 } else { size }]);
            if self.random.one_in(12) {
                break;
            }
        }
        self.flush();
    }

    /// Lets user code or the supervisor write to any address, including its own tables.
    fn write_somewhere(&mut self) {
        let linear = self.probe() & !7;
        let privilege = self.random.of(&[Privilege::User, Privilege::Supervisor]);
        let bytes = if self.random.one_in(2) { self.random.next() } else { self.entry(ARENA.start) }.to_le_bytes();
        let size = self.random.of(&[4, 8]);
        self.write(linear, privilege, &bytes[..size]);
        self.flush();
    }

    fn dirty_log(&mut self) {
        let random = self.random.below(3);
        self.log(format!("log {random}"));
        for (rig, logged) in self.rigs.iter_mut().zip(&mut self.logged) {
            let mut now = vec![0; RAM as usize];
            assert!(rig.ram().read_bytes(0, &mut now));
            match logged.take() {
                None => {
                    assert!(rig.mmu.log_dirty(0, true));
                    *logged = Some(now);
                }
                Some(before) => {
                    let log = rig.mmu.take_dirty_log(0).unwrap();
                    for frame in 0..(RAM >> 12) as usize {
                        let bytes = frame << 12..(frame + 1) << 12;
                        let dirty = log[frame / 64] & 1 << (frame % 64) != 0;
                        assert!(dirty || before[bytes.clone()] == now[bytes], "{}: frame {frame:#x}", rig.name);
                    }
                    if random == 0 {
                        assert!(rig.mmu.log_dirty(0, false));
                    } else {
                        *logged = Some(now);
                    }
                }
            }
            rig.check();
        }
    }

    /// Performs actions of the host that no guest must notice.
    fn interfere(&mut self) {
        let what = self.random.below(5);
        let gfn = ARENA.start + self.random.below(ARENA.end - ARENA.start);
        self.log(format!("interfere {what} {gfn:#x}"));
        for rig in &mut self.rigs {
            match what {
                0 => {
                    let config = rig.mmu.slots().find(0).unwrap().config;
                    assert!(rig.mmu.remove_slot(0));
                    rig.check();
                    rig.mmu.add_slot(config).unwrap();
                }
                1 => {
                    rig.mmu.unprotect(gfn);
                }
                2 => rig.mmu.unload(&mut rig.vcpu),
                3 => rig.mmu.flush_guest(&mut rig.vcpu),
                _ => {}
            }
        }
        if what == 0 {
            self.logged.iter_mut().for_each(|logged| {
                if let Some(now) = logged {
                    now.clear();
                }
            });
            for (rig, logged) in self.rigs.iter_mut().zip(&mut self.logged) {
                if logged.take().is_some() {
                    rig.mmu.log_dirty(0, false);
                }
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

fn run(seed: u64, steps: usize) {
    let mut world = World::new(seed);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        for step in 0..steps {
            world.step();
            for rig in &world.rigs {
                if step % 16 == 0 {
                    rig.check();
                }
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
}

#[test]
fn all_modes_translate_as_a_processor_does() {
    let seeds = std::env::var("MMU_STRESS_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(6);
    let first = std::env::var("MMU_STRESS_FIRST").ok().and_then(|first| first.parse().ok()).unwrap_or(1);
    for seed in first..first + seeds {
        run(seed, 300);
    }
}
