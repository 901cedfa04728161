//! Symbols of the modules that a Linux guest has loaded, from its memory.
//!
//! The kernel keeps a list of its modules, and the symbols of each module that `/proc/kallsyms` shows. The layout of these
//! structures comes from the kernel's own BTF, or without BTF from a loaded module: a pointer in it leads to the word behind
//! the pointer, where the tables of its symbols are. The guest's memory may hold any values, which can change only the names
//! in a report: every size is bounded, and a list that leads back into itself ends.

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
/// The first members of `struct module` in every 64-bit kernel, and the length of a module's name there.
const LIST: u64 = 8;
const NAME: u64 = 24;
const NAME_LENGTH: u64 = 56;
/// The part of `struct module` in which its pointer to its symbols is looked for where there are no types.
const LARGEST_MODULE: u64 = 2 << 10;

/// The reason why the modules of a kernel are not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum ModulesError {
    /// The kernel's table has no list of modules.
    #[error("the kernel's own table lists no data (CONFIG_KALLSYMS_ALL is off), so its modules can't be found")]
    NoList,
    /// The kernel has no types, and no module is understood without them.
    #[error(
        "the kernel has no BTF (CONFIG_DEBUG_INFO_BTF is off), which describes its modules, and none of them tells the layout of its symbols"
    )]
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
    let mut budget = MOST_SYMBOLS;
    Ok(walk.modules().filter_map(|module| walk.module(module, &mut budget)).collect())
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
    symbols: SymbolTables,
}

/// Offsets of the tables of a module's symbols in `struct module`, in bytes.
#[derive(Clone, Copy)]
struct SymbolTables {
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
            symbols: SymbolTables {
                symbols: at(kallsyms, "symtab")?,
                count: at(kallsyms, "num_symtab")?,
                strings: at(kallsyms, "strtab")?,
                letters: at(kallsyms, "typetab"),
            },
        })
    }
}

impl SymbolTables {
    /// The tables in `struct mod_kallsyms` at that offset, as it is since Linux 5.2.
    fn at(offset: u64) -> Self {
        Self { symbols: offset, count: offset + 8, strings: offset + 16, letters: Some(offset + 24) }
    }
}

struct Walk<'a, R> {
    read: &'a R,
    head: u64,
    list: u64,
    state: u64,
    name: u64,
    /// As in [`Layout`]; not known without types.
    text: Option<(u64, u64)>,
    symbols: SymbolTables,
}

impl<'a, R: Fn(u64, &mut [u8]) -> bool> Walk<'a, R> {
    fn new(landmarks: &Landmarks, read: &'a R) -> Result<Self, ModulesError> {
        let head = landmarks.modules.ok_or(ModulesError::NoList)?;
        if landmarks.btf.is_none() {
            return Self::without_types(head, read).ok_or(ModulesError::NoTypes);
        }
        let bytes = landmarks.btf_bytes(read).ok_or(ModulesError::Unreadable)?;
        let types = Btf::parse(&bytes).ok_or(ModulesError::Unreadable)?;
        let Layout { list, state, name, text, symbols, .. } = Layout::new(&types).ok_or(ModulesError::Layout)?;
        Ok(Self { read, head, list, state, name, text: Some(text), symbols })
    }

    /// The layout that a loaded module tells.
    fn without_types(head: u64, read: &'a R) -> Option<Self> {
        let of = |symbols| Self { read, head, list: LIST, state: 0, name: NAME, text: None, symbols };
        let walk = of(SymbolTables::at(NAME + NAME_LENGTH));
        walk.modules().find_map(|module| walk.symbols_of(module)).map(of)
    }

    /// The tables of a module's symbols. Once a module has run its initialization, its pointer `kallsyms` leads to
    /// `core_kallsyms`, the member behind the pointer. An empty list's pointers lead to the first of the two.
    fn symbols_of(&self, module: u64) -> Option<SymbolTables> {
        let offsets = (NAME + NAME_LENGTH..LARGEST_MODULE).step_by(8);
        offsets.map(|offset| (module.wrapping_add(offset), offset + 8)).find_map(|(pointer, behind)| {
            let leads = self.pointer(pointer)? == pointer.wrapping_add(8);
            let tables = SymbolTables::at(behind);
            (leads && self.are_symbols(module, tables)).then_some(tables)
        })
    }

    /// Returns true if the tables begin as a module's do: with a symbol of zeros, an empty string, and letters of types.
    fn are_symbols(&self, module: u64, tables: SymbolTables) -> bool {
        let at = |offset: u64| self.pointer(module.wrapping_add(offset));
        let first = at(tables.symbols).and_then(|symbols| self.bytes::<{ SYMBOL as usize }>(symbols));
        let empty = at(tables.strings).and_then(|strings| self.bytes::<1>(strings));
        let count = self.number(module.wrapping_add(tables.count)).map_or(0, u64::from);
        let letters = tables.letters.and_then(at).filter(|_| count > 0 && count < MOST_SYMBOLS);
        first == Some([0; SYMBOL as usize])
            && empty == Some([0])
            && letters.is_some_and(|letters| {
                let letter = |i| self.bytes::<1>(letters.wrapping_add(i));
                (0..count.min(8))
                    .all(|i| letter(i).is_some_and(|[letter]| letter.is_ascii_alphabetic() || letter == b'?'))
            })
    }

    /// The structures of the modules in the kernel's list.
    fn modules(&self) -> impl Iterator<Item = u64> {
        let mut seen = BTreeSet::from([self.head]);
        let next =
            move |link: &u64| self.pointer(*link).filter(|next| seen.len() <= MOST_MODULES && seen.insert(*next));
        std::iter::successors(Some(self.head), next).skip(1).map(|link| link.wrapping_sub(self.list))
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
        if self.number(at(self.state))? == UNFORMED {
            return None;
        }
        let name = self.string(at(self.name), LONGEST_MODULE_NAME)?;
        let text = match self.text {
            Some((text, len)) => {
                let (text, len) = (self.pointer(at(text))?, u64::from(self.number(at(len))?));
                Some(text..text.checked_add(len)?)
            }
            None => None,
        };
        if text.as_ref().is_some_and(|text| text.end - text.start > LARGEST_TEXT) {
            return None;
        }
        let tables = self.symbols;
        let count = u64::from(self.number(at(tables.count))?);
        let (symbols, strings) = (self.pointer(at(tables.symbols))?, self.pointer(at(tables.strings))?);
        let letters = match tables.letters {
            Some(offset) => Some(self.pointer(at(offset))?),
            None => None,
        };
        // The last function ends where the code does.
        let mut end = text.as_ref().map_or(0, |text| text.end);
        let mut raw: Vec<Raw> = Vec::new();
        for i in 0..count {
            *budget = budget.checked_sub(1)?;
            let Some(symbol) = self.bytes::<{ SYMBOL as usize }>(symbols.wrapping_add(SYMBOL * i)) else { break };
            let quad = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| symbol[at + i]));
            let (value, len) = (quad(8), quad(16));
            let string = u64::from(u32::from_le_bytes(std::array::from_fn(|i| symbol[i])));
            let letter = match letters {
                Some(letters) => self.bytes::<1>(letters.wrapping_add(i)).map_or('t', |[letter]| char::from(letter)),
                None => 't',
            };
            match &text {
                Some(text) if text.contains(&value) => {}
                None if value >> 63 != 0 && matches!(letter, 'T' | 't' | 'W' | 'w') => {
                    end = end.max(value.saturating_add(len.clamp(1, LARGEST_TEXT)));
                }
                _ => continue,
            }
            if let Some(name) = self.string(strings.wrapping_add(string), LONGEST_NAME) {
                raw.push((value, letter, name));
            }
        }
        raw.push((end, 'r', String::new()));
        Some((name, functions(raw)))
    }
}

#[cfg(test)]
mod tests;
