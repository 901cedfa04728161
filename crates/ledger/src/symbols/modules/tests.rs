use super::super::btf::tests::Writer;
use super::*;
use proptest::prelude::*;

const BASE: u64 = 0xffff_ffff_c000_0000;
const BTF: u64 = BASE + 0x8000;
const HEAD: u64 = BASE + 0x100;
/// The pointer to the tables of symbols behind it.
const KALLSYMS: u64 = 80;

/// Linear memory from [`BASE`].
struct Memory(Vec<u8>);

impl Memory {
    fn put(&mut self, address: u64, bytes: &[u8]) {
        let at = (address - BASE) as usize;
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn read(&self, address: u64, out: &mut [u8]) -> bool {
        let bytes =
            usize::try_from(address.wrapping_sub(BASE)).ok().and_then(|at| self.0.get(at..at.checked_add(out.len())?));
        bytes.is_some_and(|bytes| {
            out.copy_from_slice(bytes);
            true
        })
    }

    fn modules(&self) -> Vec<(String, Vec<Symbol>)> {
        self.modules_by(Some((BTF, BASE + self.0.len() as u64))).unwrap_or_default()
    }

    fn modules_by(&self, btf: Option<(u64, u64)>) -> Result<Vec<(String, Vec<Symbol>)>, ModulesError> {
        let landmarks = Landmarks { modules: Some(HEAD), btf, ..Landmarks::default() };
        modules(&landmarks, |address, out: &mut [u8]| self.read(address, out))
    }
}

/// Descriptions of modules by kernels.
#[derive(Clone, Copy, PartialEq)]
enum Version {
    Layouts,
    Memories,
}

/// A kernel that has loaded two modules and is loading a third.
fn memory(version: Version) -> Memory {
    let mut w = Writer::default();
    let int = w.add("int", 1, 0, 4, &[0x20]);
    let pointer = w.add("", 2, 0, 0, &[]);
    let name = w.array(int, 56);
    let list = w.structure("list_head", 16, &[("next", pointer, 0), ("prev", pointer, 8)]);
    let symbols = ["symtab", "num_symtab", "strtab", "typetab"];
    let symbols: Vec<_> = symbols.iter().zip([0, 8, 16, 24]).map(|(name, at)| (*name, pointer, at)).collect();
    let symbols = w.structure("mod_kallsyms", 32, &symbols);
    let mut members =
        vec![("state", int, 0), ("list", list, LIST as u32), ("name", name, 24), ("core_kallsyms", symbols, 88)];
    match version {
        Version::Layouts => {
            let layout = [("base", pointer, 0), ("size", int, 12), ("text_size", int, 8)];
            let layout = w.structure("module_layout", 16, &layout);
            members.extend([("core_layout", layout, 128), ("init_layout", layout, 192)]);
        }
        Version::Memories => {
            let memory = w.structure("module_memory", 16, &[("base", pointer, 0), ("size", int, 8)]);
            members.push(("mem", w.array(memory, 7), 128));
        }
    }
    w.structure("module", 256, &members);

    let btf = w.bytes();
    let mut memory = Memory(vec![0; 0x8000 + btf.len()]);
    memory.put(BTF, &btf);
    let structures = [BASE + 0x1000, BASE + 0x2000, BASE + 0x3000];
    memory.put(HEAD, &(structures[0] + LIST).to_le_bytes());
    for (i, (module, name)) in structures.into_iter().zip(["ext4", "crc16", "late"]).enumerate() {
        let next = structures.get(i + 1).map_or(HEAD, |next| next + LIST);
        let (text, tables) = (BASE + 0x10_0000 * (i as u64 + 1), module + 0x400);
        memory.put(module, &[0, 0, UNFORMED][i].to_le_bytes());
        memory.put(module + LIST, &next.to_le_bytes());
        memory.put(module + 24, name.as_bytes());
        memory.put(module + 128, &text.to_le_bytes());
        memory.put(module + 136, &0x300u32.to_le_bytes());
        memory.put(module + KALLSYMS, &(module + 88).to_le_bytes());
        memory.put(module + 88, &tables.to_le_bytes());
        memory.put(module + 96, &4u32.to_le_bytes());
        memory.put(module + 104, &(module + 0x800).to_le_bytes());
        memory.put(module + 112, &(module + 0x900).to_le_bytes());
        memory.put(module + 0x800, b"\0open\0close\0table\0");
        memory.put(module + 0x900, b"utTd");
        // Nothing, two functions not in order, data.
        for (symbol, (name, value)) in
            [(0, 0), (1, text + 0x200), (6, text + 0x40), (12, text + 0x1000)].iter().enumerate()
        {
            memory.put(tables + SYMBOL * symbol as u64, &u32::to_le_bytes(*name));
            memory.put(tables + SYMBOL * symbol as u64 + 8, &u64::to_le_bytes(*value));
            memory.put(tables + SYMBOL * symbol as u64 + 16, &u64::to_le_bytes(if *name == 1 { 0x100 } else { 0 }));
        }
    }
    memory
}

#[test]
fn code_that_is_freed_after_its_run_is_in_the_layout_of_every_version() {
    for version in [Version::Layouts, Version::Memories] {
        let Memory(bytes) = memory(version);
        let btf = Btf::parse(&bytes[(BTF - BASE) as usize..]).unwrap();
        let layout = Layout::new(&btf).unwrap();
        assert_eq!((layout.text, layout.init), ((128, 136), Some((192, 200))));
    }
}

#[test]
fn functions_of_loaded_modules_are_found_in_every_version() {
    for version in [Version::Layouts, Version::Memories] {
        let functions =
            |text: u64| vec![Symbol::new(text + 0x40, 0x1c0, "close"), Symbol::new(text + 0x200, 0x100, "open")];
        let expected =
            [("ext4".to_owned(), functions(BASE + 0x10_0000)), ("crc16".to_owned(), functions(BASE + 0x20_0000))];
        assert_eq!(memory(version).modules(), expected);
    }
}

#[test]
fn without_types_a_loaded_module_tells_where_symbols_are() {
    let mut memory = memory(Version::Memories);
    let expected = memory.modules();
    assert_eq!(memory.modules_by(None), Ok(expected.clone()));

    // While a module is initialized, its pointer leads elsewhere. Another pointer to the word behind it is of no consequence.
    let first = BASE + 0x1000;
    memory.put(first + KALLSYMS, &(first + 0x700).to_le_bytes());
    memory.put(first + 0x200, &(first + 0x208).to_le_bytes());
    assert_eq!(memory.modules_by(None), Ok(expected));

    for module in [first, BASE + 0x2000, BASE + 0x3000] {
        memory.put(module + 0x900, &[0xff; 4]);
        memory.put(module + KALLSYMS, &(module + 88).to_le_bytes());
    }
    assert_eq!(memory.modules_by(None), Err(ModulesError::NoTypes));
}

#[test]
fn a_list_without_an_end_ends() {
    let mut memory = memory(Version::Memories);
    memory.put(BASE + 0x2000 + LIST, &(BASE + 0x1000 + LIST).to_le_bytes());
    assert_eq!(memory.modules().len(), 2);
    memory.put(BASE + 0x2000 + LIST, &u64::MAX.to_le_bytes());
    assert_eq!(memory.modules().len(), 2);
    memory.put(BASE + 0x1000 + 96, &u32::MAX.to_le_bytes());
    assert_eq!(memory.modules()[1].1.len(), 2);
}

#[test]
fn modules_that_cannot_be_found_have_a_reason() {
    let memory = memory(Version::Layouts);
    let reason = |memory: &Memory, modules: Option<u64>, btf: Option<(u64, u64)>| {
        let landmarks = Landmarks { modules, btf, ..Landmarks::default() };
        super::modules(&landmarks, |address, out: &mut [u8]| memory.read(address, out)).err()
    };
    let all = Some((BTF, BASE + memory.0.len() as u64));
    assert_eq!(reason(&memory, Some(HEAD), all), None);
    assert_eq!(reason(&memory, None, all), Some(ModulesError::NoList));
    let mut none = Memory(memory.0.clone());
    none.put(HEAD, &HEAD.to_le_bytes());
    assert_eq!(reason(&none, Some(HEAD), None), Some(ModulesError::NoTypes));
    assert_eq!(reason(&memory, Some(HEAD), Some((BTF, BTF - 1))), Some(ModulesError::Unreadable));
    assert_eq!(reason(&memory, Some(HEAD), Some((0, u64::MAX))), Some(ModulesError::Unreadable));
    let mut others = Writer::default();
    others.structure("something else", 16, &[]);
    let mut other = Memory(memory.0[..0x8000].to_vec());
    other.0.extend(others.bytes());
    let all = Some((BTF, BASE + other.0.len() as u64));
    assert_eq!(reason(&other, Some(HEAD), all), Some(ModulesError::Layout));
}

proptest! {
    #[test]
    fn no_damage_makes_it_panic(changes in prop::collection::vec((any::<usize>(), any::<u8>()), 1..40)) {
        let mut memory = memory(Version::Layouts);
        for (at, byte) in changes {
            let at = at % memory.0.len();
            memory.0[at] = byte;
        }
        let _ = memory.modules();
        let _ = memory.modules_by(None);
    }
}
