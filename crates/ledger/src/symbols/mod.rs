//! Symbols: from an address to the function it is in.
//!
//! Sources: the kernel's own table of symbols, found in its image or in guest memory ([`kallsyms`]); ELF files; the text
//! of a `System.map` or of `/proc/kallsyms`; and the modules that a guest has loaded, found in its memory ([`modules`]).

mod btf;
mod bzimage;
mod demangle;
mod image;
mod kallsyms;
pub mod mappings;
mod modules;
pub mod orc;
pub mod program;
pub mod task_struct;
mod text;

pub use bzimage::{ImageError, vmlinux_from_bzimage};
pub use demangle::demangle;
pub use image::ImageFunctions;
pub use kallsyms::{Kallsyms, KallsymsError, Landmarks, kallsyms};
pub use modules::{ModulesError, modules};
pub use text::{ElfError, elf, system_map};

use crate::charge::AddressSpace;
use crate::entry::SavedSymbol;
use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;
use text::raw_elf;

/// A named range of addresses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Symbol {
    /// Its first address.
    pub start: u64,
    /// Its length in bytes.
    pub size: u64,
    /// Its name.
    pub name: String,
}

impl Symbol {
    /// A symbol.
    pub fn new(start: u64, size: u64, name: &str) -> Self {
        Self { start, size, name: name.to_owned() }
    }
}

/// Symbols of the kernel, of its modules and of programs.
#[derive(Clone, Debug, Default)]
pub struct Symbols {
    tables: Vec<Table>,
    /// The reason for which the search for the machine's kernel failed, if it did.
    pub no_kernel: Option<KallsymsError>,
}

#[derive(Clone, Debug)]
struct Table {
    module: String,
    space: AddressSpace,
    /// Sorted, one for each address.
    symbols: Arc<[Symbol]>,
}

impl Symbols {
    /// Adds the symbols of a module or program; the kernel itself has an empty name. They are seen from `space`.
    pub fn add(&mut self, module: &str, space: AddressSpace, mut symbols: Vec<Symbol>) {
        symbols.retain(|symbol| symbol.size != 0);
        symbols.sort_unstable();
        symbols.dedup_by_key(|symbol| symbol.start);
        self.tables.push(Table { module: module.to_owned(), space, symbols: symbols.into() });
    }

    /// Adds the functions of a guest's kernel, or with 0 of the machine's own; they are shared with its tables and not copied.
    pub fn add_kernel(&mut self, guest: u64, kernel: &Kallsyms) {
        let space = AddressSpace::all_of(guest);
        self.tables.push(Table { module: String::new(), space, symbols: Arc::clone(&kernel.functions) });
    }

    /// The symbol that `rip` is in, seen from `space`: of that space if there is one, else of all of its guest.
    pub fn find(&self, space: AddressSpace, rip: u64) -> Option<SavedSymbol> {
        self.place(space, rip).map(|place| self.saved(place))
    }

    /// Each of the symbols that addresses, seen from spaces, are in.
    pub fn find_all(&self, seen: impl Iterator<Item = (AddressSpace, u64)>) -> BTreeSet<SavedSymbol> {
        // Many addresses have few symbols: these are told apart before they are copied.
        let places: FxHashSet<_> = seen.filter_map(|(space, rip)| self.place(space, rip)).collect();
        places.into_iter().map(|place| self.saved(place)).collect()
    }

    /// Returns the place of the symbol that `rip` is in: its table, and its number there.
    fn place(&self, space: AddressSpace, rip: u64) -> Option<(usize, usize)> {
        let [own, common] = space.candidates();
        let of = |space: AddressSpace| self.tables.iter().enumerate().filter(move |(_, table)| table.space == space);
        of(own).chain(of(common)).find_map(|(number, table)| {
            let at = table.symbols.partition_point(|s| s.start <= rip).checked_sub(1)?;
            let symbol = &table.symbols[at];
            (rip - symbol.start < symbol.size).then_some((number, at))
        })
    }

    /// Start and length of the symbol that `rip` is in, and the number of the table that it is in.
    pub(crate) fn range(&self, space: AddressSpace, rip: u64) -> Option<((u64, u64), u32)> {
        let (number, at) = self.place(space, rip)?;
        let symbol = &self.tables[number].symbols[at];
        Some(((symbol.start, symbol.size), number as u32))
    }

    fn saved(&self, (number, at): (usize, usize)) -> SavedSymbol {
        let table = &self.tables[number];
        let Symbol { start, size, name } = table.symbols[at].clone();
        SavedSymbol { space: table.space, start, size, name, module: table.module.clone() }
    }

    /// The address of the first symbol of that name, in the order in which tables were added.
    pub fn address_of(&self, name: &str) -> Option<u64> {
        self.tables.iter().find_map(|t| t.symbols.iter().find(|s| s.name == name).map(|s| s.start))
    }

    /// Returns the number of symbols.
    pub fn len(&self) -> usize {
        self.tables.iter().map(|table| table.symbols.len()).sum()
    }

    /// Returns true if there are no symbols.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A symbol of a kernel's table before sizes are known: address, letter of its type, name.
type Raw = (u64, char, String);

/// Gives the symbols of a kernel's data the letters of data. A symbol has the letter of its section, and the data of some kernels (7.3) lie in a section
/// that is marked as code. Its first and last addresses are symbols of every kernel that lists data.
fn mark_data(raw: &mut [Raw]) {
    let address = |wanted: &str| raw.iter().find(|(_, _, name)| name == wanted).map(|symbol| symbol.0);
    let (Some(start), Some(end)) = (address("_sdata"), address("_edata")) else { return };
    for (_, letter, _) in raw.iter_mut().filter(|symbol| (start..=end).contains(&symbol.0)) {
        *letter = match *letter {
            'T' => 'D',
            't' => 'd',
            'W' => 'V',
            'w' => 'v',
            other => other,
        };
    }
}

/// Largest function. An address further behind the last symbol is in no function.
const LONGEST: u64 = 1 << 20;

/// Returns the functions among `raw`. Of several names for one address, the one that a reader would look for is kept:
/// global before local before weak, no bound of a section, with few leading underscores, short.
fn functions(mut raw: Vec<Raw>) -> Vec<Symbol> {
    let rank = |letter: char| match letter {
        'T' => 0,
        't' => 1,
        _ => 2,
    };
    let underscores = |name: &str| name.len() - name.trim_start_matches('_').len();
    // In 6.12 the first retpoline is at the address of __softirqentry_text_end.
    let bound = |name: &str| name.starts_with("__") && (name.ends_with("_start") || name.ends_with("_end"));
    raw.sort_by(|a, b| {
        let key = |(address, letter, name): &Raw| (*address, rank(*letter), bound(name), underscores(name), name.len());
        key(a).cmp(&key(b)).then_with(|| a.2.cmp(&b.2))
    });
    let mut functions: Vec<Symbol> = Vec::new();
    let mut after = raw.len();
    for i in (0..raw.len()).rev() {
        let (address, letter, _) = &raw[i];
        if raw.get(i + 1).is_some_and(|next| next.0 != *address) {
            after = i + 1;
        }
        let first = i == 0 || raw[i - 1].0 != *address;
        if first && matches!(letter, 'T' | 't' | 'W' | 'w') {
            let size = raw.get(after).map_or(LONGEST, |next| (next.0 - address).min(LONGEST));
            let name = std::mem::take(&mut raw[i].2);
            functions.push(Symbol { start: raw[i].0, size, name });
        }
    }
    functions.reverse();
    functions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_end_where_the_next_symbol_begins() {
        let raw = vec![
            (0x200, 'D', "data".to_owned()),
            (0x100, 't', "local".to_owned()),
            (0x140, 't', "__alias".to_owned()),
            (0x140, 'T', "second".to_owned()),
            (0x140, 'T', "_second".to_owned()),
            (0x140, 'T', "__text_end".to_owned()),
            (0x180, 'T', "__x86_thunk_rax".to_owned()),
            (0x180, 'T', "__text_start".to_owned()),
            (0x300, 'T', "last".to_owned()),
        ];
        let expected = [
            Symbol::new(0x100, 0x40, "local"),
            Symbol::new(0x140, 0x40, "second"),
            Symbol::new(0x180, 0x80, "__x86_thunk_rax"),
            Symbol::new(0x300, LONGEST, "last"),
        ];
        assert_eq!(functions(raw), expected);
    }

    #[test]
    fn a_kernel_s_functions_are_not_copied() {
        let functions = [Symbol::new(0x1000, 0x100, "first"), Symbol::new(0x1100, 0x100, "second")].into();
        let kernel = Kallsyms { functions, landmarks: Landmarks::default() };
        let mut symbols = Symbols::default();
        symbols.add_kernel(0, &kernel.clone());
        assert_eq!(Arc::strong_count(&kernel.functions), 2);
        assert_eq!(symbols.find(AddressSpace::of(7), 0x1101).map(|symbol| symbol.name).as_deref(), Some("second"));
    }

    #[test]
    fn a_space_of_its_own_comes_before_the_common_one() {
        let mut symbols = Symbols::default();
        symbols.add("", AddressSpace::default(), vec![Symbol::new(0x1000, 0x100, "common")]);
        symbols.add(
            "a.out",
            AddressSpace::of(7),
            vec![Symbol::new(0x1000, 0x10, "own"), Symbol::new(0x2000, 0, "empty")],
        );
        let name = |space, rip| symbols.find(AddressSpace::of(space), rip).map(|s| s.name);
        assert_eq!(name(7, 0x100f).as_deref(), Some("own"));
        assert_eq!(name(7, 0x1010).as_deref(), Some("common"));
        assert_eq!(name(8, 0x1000).as_deref(), Some("common"));
        assert_eq!(name(0, 0xfff), None);
        assert_eq!(name(0, 0x1100), None);
        assert_eq!(symbols.address_of("own"), Some(0x1000));
        assert_eq!(symbols.len(), 2);
    }
}
