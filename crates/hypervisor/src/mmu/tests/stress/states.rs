//! Tests of saved states: an MMU that is saved and restored continues as the original does, and any modified saved
//! state is either rejected or usable.

use super::super::super::pool::{Keeping, Page};
use super::*;
use serde_json::Value;

/// All state of a machine, as in a file.
#[derive(Clone)]
pub struct File {
    pub mmu: String,
    pub vcpus: String,
    memory: Vec<u8>,
    pub tables: Vec<u64>,
}

/// Returns the quadwords of the pool.
fn tables(rig: &Rig) -> usize {
    rig.mmu.pool.iter().len() * 512
}

pub fn save(rig: &Rig) -> File {
    let mut memory = vec![0; RAM as usize];
    assert!(rig.ram().read_bytes(0, &mut memory));
    let words = 0..tables(rig) as u64;
    File {
        mmu: serde_json::to_string(&rig.mmu.save()).unwrap(),
        vcpus: serde_json::to_string(&[&rig.vcpu, &rig.other.0]).unwrap(),
        memory,
        tables: words.map(|word| rig.ram().read(POOL + 8 * word).unwrap()).collect(),
    }
}

/// Restores a file to a machine. The error is the reason for a rejection.
pub fn restore(rig: &mut Rig, file: &File) -> Result<(), String> {
    assert!(rig.ram().write_bytes(0, &file.memory));
    for (number, word) in file.tables.iter().enumerate() {
        rig.ram().write(POOL + 8 * number as u64, *word);
    }
    let mmu: SavedMmu = serde_json::from_str(&file.mmu).map_err(|error| error.to_string())?;
    let vcpus: [VcpuMmu; 2] = serde_json::from_str(&file.vcpus).map_err(|error| error.to_string())?;
    rig.mmu.restore(mmu, &[(0, &vcpus[0]), (1, &vcpus[1])]).map_err(|error| error.to_string())?;
    [rig.vcpu, rig.other.0] = vcpus;
    Ok(())
}

/// Replaces a machine by a new one that is restored from a file.
pub fn replace(rig: &mut Rig, config: &VmConfig) {
    let mut new = Rig::new(config, RAM);
    restore(&mut new, &save(rig)).unwrap_or_else(|error| panic!("{}: {error}", rig.name));
    new.tlb = std::mem::take(&mut rig.tlb);
    new.other.1 = std::mem::take(&mut rig.other.1);
    assert_eq!(new.mmu.hash, rig.mmu.hash, "{}", rig.name);
    assert_eq!(new.mmu.tracks, rig.mmu.tracks, "{}", rig.name);
    assert_eq!(new.mmu.cr3_caches, rig.mmu.cr3_caches, "{}", rig.name);
    assert_eq!(new.mmu.pool.active(), rig.mmu.pool.active(), "{}", rig.name);
    *rig = new;
}

/// Modifies one of the parts of a saved state.
pub fn forge_file(file: &File, random: &mut Random) -> File {
    let mut forged = file.clone();
    match random.below(3) {
        0 => forged.mmu = forge(&file.mmu, random),
        1 => forged.vcpus = forge(&file.vcpus, random),
        _ => {
            let in_use: Vec<usize> = (0..file.tables.len()).filter(|at| file.tables[*at] != 0).collect();
            let at = if in_use.is_empty() { 0 } else { random.of(&in_use) };
            forged.tables[at] ^= 1 << random.below(64);
        }
    }
    forged
}

impl World {
    /// Allows or forbids the guest to load CR3 without an exit.
    fn resize_cr3_caches(&mut self, entries: usize) {
        for rig in &mut self.rigs {
            rig.mmu.set_cr3_cache(&mut rig.vcpu, entries);
        }
    }

    /// Replaces all machines by new ones that are restored from files.
    fn replace_all(&mut self) {
        for (rig, config) in self.rigs.iter_mut().zip(configs()) {
            replace(rig, &config);
        }
    }

    fn assert_same(&self, other: &Self) {
        for (rig, other) in self.rigs.iter().zip(&other.rigs) {
            assert_eq!(rig.mmu.save(), other.mmu.save(), "{}", rig.name);
            assert_eq!((&rig.vcpu, &rig.other.0), (&other.vcpu, &other.other.0), "{}", rig.name);
            let (file, expected) = (save(rig), save(other));
            assert!(file.memory == expected.memory && file.tables == expected.tables, "{}", rig.name);
        }
    }
}

#[test]
fn a_restored_mmu_goes_on_as_the_saved_one() {
    for seed in 100..103 {
        // Twins with equal results, because they use the same random numbers; one of them is saved and restored
        // occasionally.
        let (mut twin, mut original) = (World::new(seed), World::new(seed));
        let mut when = Random::new(seed);
        for _ in 0..100 {
            let resize = when.one_in(12).then(|| when.of(&[0, 2, 4]));
            if when.one_in(12) {
                twin.replace_all();
                twin.assert_same(&original);
            }
            for world in [&mut twin, &mut original] {
                if let Some(entries) = resize {
                    world.resize_cr3_caches(entries);
                }
                world.step();
            }
        }
        twin.assert_same(&original);
        twin.finish();
    }
}

/// Returns the value in a tree with this number.
fn node<'a>(value: &'a mut Value, number: &mut u64) -> Option<&'a mut Value> {
    if *number == 0 {
        return Some(value);
    }
    let children: Vec<&mut Value> = match value {
        Value::Array(all) => all.iter_mut().collect(),
        Value::Object(all) => all.values_mut().collect(),
        _ => return None,
    };
    for child in children {
        *number -= 1;
        let inside = count(child) - 1;
        if *number <= inside {
            return node(child, number);
        }
        *number -= inside;
    }
    None
}

/// Returns the number of values in a tree.
fn count(value: &Value) -> u64 {
    1 + match value {
        Value::Array(all) => all.iter().map(count).sum(),
        Value::Object(all) => all.values().map(count).sum(),
        _ => 0,
    }
}

/// Modifies a saved state so that it usually can still be parsed.
pub fn forge(text: &str, random: &mut Random) -> String {
    let mut value: Value = serde_json::from_str(text).unwrap();
    for _ in 0..=random.below(2) {
        // Half of the time a rare value, because most of a state consists of frames and free pages.
        let top = value.as_object().map_or(Vec::new(), |all| all.keys().cloned().collect());
        let within = match top.is_empty() || random.one_in(2) {
            true => &mut value,
            false => value.get_mut(&top[random.below(top.len() as u64) as usize]).unwrap(),
        };
        let mut number = random.below(count(within));
        let Some(found) = node(within, &mut number) else { continue };
        let numbers = [0, 1, 2, 3, 5, 63, 255, 512, 1 << 20, u64::from(u32::MAX), 1 << 40, u64::MAX];
        *found = match found.take() {
            Value::Bool(value) => Value::Bool(!value),
            Value::Number(old) if random.one_in(2) => {
                let old = old.as_u64().unwrap_or(0);
                old.wrapping_add(random.of(&[1, u64::MAX, 512, 1 << 12])).into()
            }
            Value::Number(_) => random.of(&numbers).into(),
            Value::Array(mut all) if !all.is_empty() => {
                let at = random.below(all.len() as u64) as usize;
                match random.below(3) {
                    0 => drop(all.remove(at)),
                    1 => all.insert(at, all[at].clone()),
                    _ => all.rotate_left(at),
                }
                Value::Array(all)
            }
            Value::String(name) => random.of(&["Hashed", "Tree", "Special", "Free", &name]).into(),
            Value::Null => random.below(5).into(),
            other => other,
        };
    }
    value.to_string()
}

/// Performs random further actions of a guest and a host, without a check of the results.
pub fn go_on(rig: &mut Rig, guest: &Guest, random: &mut Random) {
    let near = |random: &mut Random| {
        let indexes = random.of(&INDEXES) << 12 | random.of(&INDEXES) << 21 | random.of(&INDEXES) << 30;
        indexes | random.of(&INDEXES) << 39 | random.below(0xfff)
    };
    for _ in 0..12 {
        let (linear, gpa) = (near(random), random.below(RAM + (1 << 20)));
        let (mmu, vcpu) = (&mut rig.mmu, &mut rig.vcpu);
        match random.below(12) {
            0..=3 if mmu.prepare(vcpu, guest).is_ok() => {
                let fault = match mmu.mode.is_tdp() {
                    true if random.one_in(8) => Fault::Misconfiguration { gpa },
                    true => Fault::Violation { gpa, linear: 0, qualification: random.below(0x40) },
                    false => Fault::Page { linear, code: random.below(32) as u32 },
                };
                mmu.fault(vcpu, guest, fault);
            }
            4 => mmu.invlpg(vcpu, linear),
            5 => mmu.page_written(gpa, random.of(&[1, 4, 8, 4096])),
            6 => mmu.flush_guest(vcpu),
            7 => mmu.new_cr3(vcpu, guest, random.one_in(2)),
            8 => {
                mmu.log_dirty(0, random.one_in(2));
                mmu.take_dirty_log(0);
            }
            9 => drop(mmu.unprotect(gpa >> 12)),
            10 => mmu.unload(vcpu),
            11 if random.one_in(2) => mmu.nested_invept(vcpu, NestedInvept::All),
            11 => rig.swap(),
            _ => {}
        }
        rig.check();
    }
    rig.mmu.unload(&mut rig.vcpu);
    rig.mmu.unload(&mut rig.other.0);
    rig.mmu.zap_all();
    rig.check();
    assert_eq!(rig.mmu.pages_used().0, 0, "{}: pages leak", rig.name);
}

#[test]
fn forged_states_are_refused_or_can_be_gone_on_from() {
    let mut random = Random::new(7);
    let (mut accepted, mut refused) = (0, 0);
    for seed in 0..2 {
        let mut world = World::new(seed);
        world.resize_cr3_caches(4);
        (0..60).for_each(|_| world.step());
        let guest = world.guest;
        for (rig, config) in world.rigs.iter().zip(configs()) {
            let file = save(rig);
            let mut victim = Rig::new(&config, RAM);
            for _ in 0..25 {
                let forged = forge_file(&file, &mut random);
                match restore(&mut victim, &forged) {
                    Ok(()) => {
                        accepted += 1;
                        go_on(&mut victim, &guest, &mut random);
                    }
                    Err(_) => refused += 1,
                }
            }
        }
    }
    assert!(accepted > 100 && refused > 100, "{accepted} accepted, {refused} refused");
}

#[test]
fn bytes_that_are_no_state_are_refused() {
    let mut random = Random::new(1);
    let mut world = World::new(1);
    (0..20).for_each(|_| world.step());
    for rig in &world.rigs {
        let text = save(rig).mmu.into_bytes();
        for _ in 0..20 {
            let mut bytes = text.clone();
            bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
            for _ in 0..random.below(4) {
                if let Some(byte) = bytes.last_mut() {
                    *byte = random.next() as u8;
                }
            }
            assert!(bytes.len() == text.len() || serde_json::from_slice::<SavedMmu>(&bytes).is_err());
        }
    }
}

#[test]
fn each_forgery_has_its_name() {
    let config = VmConfig { mmu: MmuMode::Shadow, unrestricted_guest: false, ..VmConfig::default() };
    let mut rig = Rig::new(&config, RAM);
    let guest = Guest { cr0: CR0_PE, rflags: 2, ..Guest::default() };
    rig.access(&guest, 0x1000, Access::Write, Privilege::Supervisor);
    let file = save(&rig);
    let refused = |forge: &dyn Fn(&mut File)| {
        let mut forged = file.clone();
        forge(&mut forged);
        assert!(forged.mmu != file.mmu || forged.vcpus != file.vcpus || forged.tables != file.tables);
        restore(&mut Rig::new(&config, RAM), &forged).unwrap_err()
    };
    let saved = |old: &str, new: &str| refused(&|file| file.mmu = file.mmu.replacen(old, new, 1));
    let pool = rig.mmu.pool.iter().len();
    let too_small = format!("the saved hypervisor has 1 table pages, this one has {pool}");
    assert_eq!(saved(&format!("\"size\":{pool}"), "\"size\":1"), too_small);
    let not_ram = "saved memory slot at guest frame 0x0 is not backed by RAM";
    assert_eq!(saved("\"hpa\":0,", &format!("\"hpa\":{POOL},")), not_ram);
    let log = "the saved dirty log of the memory slot at guest frame 0x0 does not fit it";
    assert_eq!(saved("\"log_dirty\":false", "\"log_dirty\":true"), log);
    let generations = format!("\"generation\":{}", rig.mmu.generation);
    let counter = "the saved counter of generations is out of range";
    assert_eq!(saved(&generations, "\"generation\":9223372036854775807"), counter);
    let mode = "saved table page 3 is kept in a way that this MMU mode does not have";
    assert_eq!(saved("\"Hashed\"", "\"Tree\""), mode);
    let tables = refused(&|file| file.tables[512 * 3] = 0x1007);
    assert!(tables.starts_with("the hypervisor's saved tables are inconsistent"), "{tables}");
    let shared = "virtual CPU 1: it has no page of PDPTEs of its own";
    assert_eq!(refused(&|file| file.vcpus = file.vcpus.replacen("\"pdptes\":2", "\"pdptes\":1", 1)), shared);
}

/// An invalid root that kept its entries would leave them behind when its last user leaves.
#[test]
fn an_invalid_root_is_empty() {
    use super::super::units::long_guest;
    for mode in [MmuMode::Shadow, MmuMode::LegacyTdp] {
        let config = VmConfig { mmu: mode, unrestricted_guest: false, ..VmConfig::default() };
        let mut rig = Rig::new(&config, RAM);
        let guest = if mode == MmuMode::Shadow { long_guest(&rig) } else { Guest { cr0: CR0_PE, ..Guest::default() } };
        rig.access(&guest, 0x1000, Access::Write, Privilege::Supervisor);
        let (file, mut victim) = (save(&rig), Rig::new(&config, RAM));
        let root = rig.vcpu.own.as_ref().and_then(|set| set.pages[0]).unwrap();
        let forged = changed(&file, &[(&format!("/pool/pages/{root}/1/invalid"), Value::Bool(true))], &[]);
        let refused = restore(&mut victim, &forged).unwrap_err();
        assert!(refused.contains("of an invalid page is"), "{mode}: {refused}");
        // An invalid root that has lost its entries is one whose user has not left yet.
        rig.mmu.zap_all();
        let file = save(&rig);
        assert!(file.mmu.contains("\"invalid\":true"), "{mode}");
        assert_eq!(restore(&mut victim, &file), Ok(()), "{mode}");
        victim.access(&guest, 0x1000, Access::Write, Privilege::Supervisor);
        victim.check();
    }
}

/// A pointer into a saved state, and another value there.
type Change<'a> = (&'a str, Value);

/// Returns a file whose parts have other values.
fn changed(file: &File, mmu: &[Change], vcpus: &[Change]) -> File {
    let apply = |text: &str, changes: &[Change]| {
        let mut tree: Value = serde_json::from_str(text).unwrap();
        for (pointer, value) in changes {
            *tree.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value.clone();
        }
        tree.to_string()
    };
    File { mmu: apply(&file.mmu, mmu), vcpus: apply(&file.vcpus, vcpus), ..file.clone() }
}

/// Values at the limits of what a state may have, and beyond. A state without a reason for a refusal is accepted.
#[test]
fn each_part_of_a_state_has_its_limits() {
    use super::super::units::long_guest;
    use serde_json::json;
    let counter = |name: &str| format!("the saved counter of {name} is out of range");
    let page = |number: u32, what: &str| format!("saved table page {number} {what}");
    let vcpu = |what: &str| format!("virtual CPU 0: {what}");
    let written = |at: u64| format!("the saved state reports a write to {at:#x}, which is not RAM");
    let (long, fine) = (1u64 << 62, String::new());
    let users = |users: u64, version: u64| json!({"4128": {"users": users, "version": version}});
    let pdpts = counter("users of page directory pointer tables");
    let (no_role, no_level) = (page(3, "has a role that no table has"), page(3, "has a level that no table has"));
    let (unlike, no_top) = (vcpu("its roots do not fit its paging"), vcpu("one of its roots is no table at the top"));
    let (one_table, no_pdptes) = (vcpu("its root is not one table"), vcpu("it has no page of PDPTEs of its own"));
    let too_many = vcpu("it keeps more roots than this MMU mode has");
    let caches = vcpu("its CR3 cache has no such entries");
    let no_empty = |number| page(number, "is not the root that maps nothing");
    let no_root = |number| page(number, "is not a root in use");
    let format =
        |flags| json!({"execute_only": true, "flags": flags, "pages_2m": true, "pages_1g": true, "mode_based": false});
    // Pages 0 to 2 are special. Page 3 is the root; a page for each level follows.
    let root = "/pool/pages/3/1";
    let at = |name: &str| format!("{root}/{name}");
    let shadow = [
        ("/generation".to_owned(), json!(long - 1), fine.clone()),
        ("/generation".to_owned(), json!(long), counter("generations")),
        ("/flushes".to_owned(), json!(long), counter("flushes")),
        ("/pool/next_order".to_owned(), json!(long - 1), fine.clone()),
        ("/pool/next_order".to_owned(), json!(long), counter("table pages")),
        ("/stats/faults".to_owned(), json!(long - 1), fine.clone()),
        ("/stats/faults".to_owned(), json!(long), counter("statistics")),
        ("/stats/peak_pages".to_owned(), json!(long), counter("statistics")),
        ("/last_write".to_owned(), json!([0, (1u32 << 30) - 1]), fine.clone()),
        ("/last_write".to_owned(), json!([0, 1u32 << 30]), counter("writes in a row")),
        ("/pdpts".to_owned(), users(1, long - 1), fine.clone()),
        ("/pdpts".to_owned(), users((1 << 24) - 1, 0), fine.clone()),
        ("/pdpts".to_owned(), users(0, 0), pdpts.clone()),
        ("/pdpts".to_owned(), users(1 << 24, 0), pdpts.clone()),
        ("/pdpts".to_owned(), users(1, long), counter("page directory pointer tables")),
        ("/pdpts".to_owned(), json!({"4129": {"users": 1, "version": 0}}), pdpts),
        ("/written".to_owned(), json!([[8, 8], [RAM - 4, 4]]), fine.clone()),
        ("/written".to_owned(), json!([[8, 9]]), written(8)),
        ("/written".to_owned(), json!([[RAM, 4]]), written(RAM)),
        ("/written".to_owned(), json!([[POOL, 4]]), written(POOL)),
        (at("gfn"), json!(1u64 << 40), page(3, "is for a frame that does not exist")),
        (at("gfns/511"), json!(1u64 << 40), page(3, "is for a frame that does not exist")),
        (at("gfns/511"), json!((1u64 << 40) - 1), fine.clone()),
        (at("gfns"), json!([]), page(3, "has not one frame for each entry")),
        (at("writes"), json!(1u32 << 30), page(3, "was written to too often")),
        (at("writes"), json!((1u32 << 30) - 1), fine.clone()),
        (at("unsync"), json!(true), page(3, "cannot be out of synchronization")),
        (at("role/level"), json!(0), no_level.clone()),
        (at("role/level"), json!(6), no_level.clone()),
        (at("role/access"), json!(8), no_role.clone()),
        (at("role/quadrant"), json!(3), fine.clone()),
        (at("role/quadrant"), json!(4), no_role.clone()),
        (at("role/ept"), format(true), page(3, "shadows EPT that there is not")),
        (at("order"), json!(1u64 << 40), page(3, "was made at no time of its own")),
        ("/pool/pages/4/1/order".to_owned(), json!(3), page(4, "was made at no time of its own")),
        ("/pool/pages/0/1/unsync".to_owned(), json!(true), page(0, "has a role that it cannot have")),
        ("/pool/pages/0/1/role/level".to_owned(), json!(1), page(0, "has a role that it cannot have")),
        ("/pool/free/0".to_owned(), json!(3), page(3, "is there twice, or not at all")),
        ("/pool/pages/3/0".to_owned(), json!(1 << 20), page(1 << 20, "is there twice, or not at all")),
        (at("keeping"), json!("Free"), counter("free table pages")),
        ("/pool/free".to_owned(), json!([]), counter("free table pages")),
        ("/empty_root".to_owned(), json!(3), no_empty(3)),
        ("/empty_root".to_owned(), json!(1), no_pdptes.clone()),
        ("/empty_root".to_owned(), json!(1 << 20), no_empty(1 << 20)),
        ("/tdp_roots".to_owned(), json!([3]), no_root(3)),
    ];
    let shadow_vcpus = [
        ("/0/pdptes", json!(0), no_pdptes.clone()),
        ("/0/pdptes", json!(3), no_pdptes.clone()),
        ("/0/pdptes", json!(1 << 20), no_pdptes),
        ("/0/cache/last", json!(1), caches.clone()),
        ("/0/cache/active", json!(0), caches),
        ("/0/cache/sets", json!([null, null, null, null]), fine.clone()),
        ("/0/paging/guest_mode", json!(true), vcpu("it does not know whether its guest runs, or its guest's own")),
        ("/0/paging/wp", json!(false), unlike.clone()),
        ("/0/own/role/level", json!(5), unlike.clone()),
        ("/0/own/is_pae", json!(true), unlike.clone()),
        ("/0/own/place", json!(4), fine.clone()),
        ("/0/own/place", json!(5), unlike.clone()),
        ("/0/own/pages/0", json!(null), one_table.clone()),
        ("/0/own/pages/3", json!(3), one_table),
        ("/0/own/pages/0", json!(0), fine.clone()),
        ("/0/own/pages/0", json!(1), no_top.clone()),
        ("/0/own/pages/0", json!(4), no_top.clone()),
        ("/0/own/pages/0", json!(60), no_top.clone()),
        ("/0/own/pages/0", json!(1 << 20), no_top.clone()),
        ("/0/own", json!(null), fine.clone()),
    ];
    let tdp = [
        (at("role/direct"), json!(false), page(3, "shadows a guest table")),
        (at("role/level"), json!(5), no_level),
        (at("role/access"), json!(15), no_role),
        (at("invalid"), json!(true), page(3, "is invalid, but could never be found")),
        (at("gfns"), json!([1]), page(3, "has not one frame for each entry")),
        ("/tdp_roots".to_owned(), json!([]), fine.clone()),
        ("/tdp_roots".to_owned(), json!([3, 3]), no_root(3)),
        ("/tdp_roots".to_owned(), json!([4]), no_root(4)),
        ("/tdp_roots".to_owned(), json!([0]), no_root(0)),
        ("/tdp_roots".to_owned(), json!([1 << 20]), no_root(1 << 20)),
    ];
    let tdp_vcpus = [
        ("/0/own/pages/0", json!(0), no_top),
        ("/0/own/role/nxe", json!(false), unlike),
        ("/0/cache/sets", json!([null]), too_many.clone()),
    ];
    for (mode, mmus, vcpus) in
        [(MmuMode::Shadow, &shadow[..], &shadow_vcpus[..]), (MmuMode::Tdp, &tdp[..], &tdp_vcpus[..])]
    {
        let config = VmConfig { mmu: mode, unrestricted_guest: false, ..VmConfig::default() };
        let mut rig = Rig::new(&config, RAM);
        let guest = long_guest(&rig);
        rig.access(&guest, 0x1000, Access::Write, Privilege::Supervisor);
        let file = save(&rig);
        let mut victim = Rig::new(&config, RAM);
        let mut outcome = |file: &File| restore(&mut victim, file).err().unwrap_or_default();
        assert_eq!(outcome(&file), "");
        let mut wrong = Vec::new();
        let own = serde_json::to_value(&rig.vcpu).unwrap()["own"].clone();
        let kept =
            [(3, &fine), (4, &too_many)].map(|(len, expected)| ("/0/kept", json!(vec![&own; len]), expected.clone()));
        for (pointer, value, expected) in mmus {
            let outcome = outcome(&changed(&file, &[(pointer, value.clone())], &[]));
            if outcome != *expected {
                wrong.push(format!("{pointer} {value}: {outcome}, not {expected}"));
            }
        }
        for (pointer, value, expected) in vcpus.iter().chain(&kept) {
            let outcome = outcome(&changed(&file, &[], &[(pointer, value.clone())]));
            if outcome != *expected {
                wrong.push(format!("{pointer} {value}: {outcome}, not {expected}"));
            }
        }
        assert!(wrong.is_empty(), "{mode}:\n{}", wrong.join("\n"));
        let special = serde_json::to_value(Page { keeping: Keeping::Special, order: 3, ..Page::default() }).unwrap();
        let ownerless = changed(&file, &[(root, special)], &[("/0/own", Value::Null)]);
        assert_eq!(outcome(&ownerless), page(3, "belongs to no virtual CPU"), "{mode}");
        let mut entry = file.clone();
        entry.tables[511] = 1;
        assert_eq!(outcome(&entry), no_empty(0));
    }
}
