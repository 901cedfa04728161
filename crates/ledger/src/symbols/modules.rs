//! Symbols of the modules that a Linux guest has loaded, from its memory.
//!
//! The kernel keeps a list of its modules, and the symbols of each module that `/proc/kallsyms` shows. The layout of these
//! structures comes from the kernel's own BTF. The guest's memory may hold any values, which can change only the names in a
//! report: every size is bounded, and a list that leads back into itself ends.

use super::btf::{Btf, Field};
use super::kallsyms::Landmarks;
use super::{Raw, Symbol, functions};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use x86::page::PAGE;

/// Modules of a guest.
pub(super) const MOST_MODULES: usize = 4096;
/// Symbols of all modules together.
const MOST_SYMBOLS: u64 = 1 << 20;
/// The longest name, KSYM_NAME_LEN.
const LONGEST_NAME: usize = 512;
/// The longest name of a module.
const LONGEST_MODULE_NAME: usize = 64;
/// The most code of a module.
pub(super) const LARGEST_TEXT: u64 = 1 << 30;
/// Bytes of an Elf64_Sym.
const SYMBOL: u64 = 24;
/// MODULE_STATE_UNFORMED: in the list, but not yet filled in.
pub(super) const UNFORMED: u32 = 3;
/// MOD_INIT_TEXT: the place of the code that is freed after its run in a module's array of memory (since Linux 6.4).
const INIT_TEXT: u64 = 4;

/// The reason why the modules of a kernel are not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum ModulesError {
    /// The kernel's table has no list of modules.
    #[error("the kernel's own table lists no data (CONFIG_KALLSYMS_ALL is off), so its modules can't be found")]
    NoList,
    /// The kernel has no types.
    #[error("the kernel has no BTF (CONFIG_DEBUG_INFO_BTF is off), which describes its modules")]
    NoTypes,
    /// The types can't be read.
    #[error("the kernel's BTF, which describes its modules, can't be read")]
    Unreadable,
    /// The types of a module have another layout than any known kernel.
    #[error("the layout of the kernel's `struct module` is not understood")]
    Layout,
}

/// Functions of each loaded module, in the order of the kernel's list, as far as they can be read. `read` reads linear
/// memory: all of the bytes, or it returns `false`.
pub fn modules(
    landmarks: &Landmarks,
    read: impl Fn(u64, &mut [u8]) -> bool,
) -> Result<Vec<(String, Vec<Symbol>)>, ModulesError> {
    let walk = Walk::new(landmarks, &read)?;
    let mut found = Vec::new();
    let mut budget = MOST_SYMBOLS;
    let mut seen = BTreeSet::from([walk.head]);
    let mut entry = walk.pointer(walk.head);
    while let Some(link) = entry.filter(|link| seen.len() <= MOST_MODULES && seen.insert(*link)) {
        found.extend(walk.module(link.wrapping_sub(walk.layout.list), &mut budget));
        entry = walk.pointer(link);
    }
    Ok(found)
}

/// Offsets in `struct module`, in bytes.
pub(super) struct Layout {
    pub list: u64,
    pub state: u64,
    name: u64,
    /// The address of its code, and the length (32 bits).
    pub text: (u64, u64),
    /// Likewise for the code that the kernel frees after it has run.
    pub init: Option<(u64, u64)>,
    symbols: u64,
    /// The number of symbols (32 bits).
    count: u64,
    strings: u64,
    /// The letters of the symbols' types; older kernels have none.
    letters: Option<u64>,
}

impl Layout {
    pub fn new(btf: &Btf) -> Option<Self> {
        let module = btf.structure("module")?;
        let at = |outer: Field, name: &str| btf.field(outer.of, name).map(|inner| outer.offset + inner.offset);
        let field = |name: &str| btf.field(module, name);
        let (text, init) = match field("mem") {
            // Since Linux 6.4 an array, in which code comes first.
            Some(memory) => {
                let (of, count) = btf.array(memory.of)?;
                let item = |number: u64| {
                    let item = Field { offset: memory.offset + number * btf.size(of)?, of };
                    Some((at(item, "base")?, at(item, "size")?))
                };
                (item(0)?, (u64::from(count) > INIT_TEXT).then(|| item(INIT_TEXT)).flatten())
            }
            None => {
                let area = |field: Field| Some((at(field, "base")?, at(field, "text_size")?));
                (area(field("core_layout")?)?, field("init_layout").and_then(area))
            }
        };
        let kallsyms = field("core_kallsyms")?;
        Some(Self {
            list: field("list")?.offset,
            state: field("state")?.offset,
            name: field("name")?.offset,
            text,
            init,
            symbols: at(kallsyms, "symtab")?,
            count: at(kallsyms, "num_symtab")?,
            strings: at(kallsyms, "strtab")?,
            letters: at(kallsyms, "typetab"),
        })
    }
}

struct Walk<'a, R> {
    read: &'a R,
    layout: Layout,
    head: u64,
}

impl<'a, R: Fn(u64, &mut [u8]) -> bool> Walk<'a, R> {
    fn new(landmarks: &Landmarks, read: &'a R) -> Result<Self, ModulesError> {
        let head = landmarks.modules.ok_or(ModulesError::NoList)?;
        landmarks.btf.ok_or(ModulesError::NoTypes)?;
        let bytes = landmarks.btf_bytes(read).ok_or(ModulesError::Unreadable)?;
        let types = Btf::parse(&bytes).ok_or(ModulesError::Unreadable)?;
        let layout = Layout::new(&types).ok_or(ModulesError::Layout)?;
        Ok(Self { read, layout, head })
    }

    fn bytes<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        (self.read)(address, &mut bytes).then_some(bytes)
    }

    fn pointer(&self, address: u64) -> Option<u64> {
        self.bytes(address).map(u64::from_le_bytes)
    }

    fn number(&self, address: u64) -> Option<u32> {
        self.bytes(address).map(u32::from_le_bytes)
    }

    /// Reads a string that ends with a zero within `longest` bytes. The memory behind it may not be mapped.
    fn string(&self, mut address: u64, longest: usize) -> Option<String> {
        let mut string = Vec::new();
        while string.len() < longest {
            let mut chunk = [0; 64];
            let chunk = &mut chunk[..(PAGE - address % PAGE).min(64) as usize];
            if !(self.read)(address, chunk) {
                return None;
            }
            let end = chunk.iter().position(|byte| *byte == 0);
            string.extend_from_slice(&chunk[..end.unwrap_or(chunk.len())]);
            if end.is_some() {
                return String::from_utf8(string).ok().filter(|s| !s.is_empty() && !s.contains(char::is_control));
            }
            address = address.wrapping_add(chunk.len() as u64);
        }
        None
    }

    /// Name and functions of the module whose structure is at `module`.
    fn module(&self, module: u64, budget: &mut u64) -> Option<(String, Vec<Symbol>)> {
        let at = |offset: u64| module.wrapping_add(offset);
        let layout = &self.layout;
        if self.number(at(layout.state))? == UNFORMED {
            return None;
        }
        let name = self.string(at(layout.name), LONGEST_MODULE_NAME)?;
        let text = self.pointer(at(layout.text.0))?;
        let end = text.checked_add(u64::from(self.number(at(layout.text.1))?))?;
        if end - text > LARGEST_TEXT {
            return None;
        }
        let count = u64::from(self.number(at(layout.count))?);
        let (symbols, strings) = (self.pointer(at(layout.symbols))?, self.pointer(at(layout.strings))?);
        let letters = match layout.letters {
            Some(offset) => Some(self.pointer(at(offset))?),
            None => None,
        };
        // The last function ends where the code does.
        let mut raw: Vec<Raw> = vec![(end, 'r', String::new())];
        for i in 0..count {
            *budget = budget.checked_sub(1)?;
            let Some(symbol) = self.bytes::<{ SYMBOL as usize }>(symbols.wrapping_add(SYMBOL * i)) else { break };
            let value = u64::from_le_bytes(std::array::from_fn(|i| symbol[8 + i]));
            let string = u64::from(u32::from_le_bytes(std::array::from_fn(|i| symbol[i])));
            if !(text..end).contains(&value) {
                continue;
            }
            let letter = match letters {
                Some(letters) => self.bytes::<1>(letters.wrapping_add(i)).map_or('t', |[letter]| char::from(letter)),
                None => 't',
            };
            if let Some(name) = self.string(strings.wrapping_add(string), LONGEST_NAME) {
                raw.push((value, letter, name));
            }
        }
        Some((name, functions(raw)))
    }
}

#[cfg(test)]
mod tests;
