//! The files that a guest's programs are in.

use guestfs::Packed;
use ledger::AddressSpace;
use ledger::stack::{MOST_FILES, in_file};
use ledger::symbols::program::Program;
use ledger::symbols::{Symbol, Symbols};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;

/// The files. A file's number follows from its path, so that runs and snapshots agree about it.
pub struct Programs {
    files: Packed,
    by_number: BTreeMap<u32, Entry>,
}

struct Entry {
    path: Vec<u8>,
    node: u64,
    /// Read on first use.
    program: Option<Program>,
}

/// Returns the number of a path.
fn number(path: &[u8]) -> u32 {
    let mut hasher = fnv::FnvHasher::default();
    hasher.write(path);
    let hash = hasher.finish();
    (hash ^ hash >> 32) as u32 % MOST_FILES
}

impl Programs {
    /// Creates the programs among these files. Of two files with the same number only the first is known.
    pub fn new(files: Packed) -> Self {
        let mut by_number = BTreeMap::new();
        for file in files.walk().into_iter().filter(|file| file.target.is_none()) {
            let path = [b"/", &file.path[..]].concat();
            by_number.entry(number(&path)).or_insert(Entry { path, node: file.node, program: None });
        }
        Self { files, by_number }
    }

    /// Returns the number of the file of a path, if it is known.
    pub fn number(&self, path: &[u8]) -> Option<u32> {
        let number = number(path);
        self.by_number.get(&number).filter(|entry| entry.path == path).map(|_| number)
    }

    /// Returns the program of a number. A file that can't be read has no functions.
    pub fn program(&mut self, number: u32) -> Option<&Program> {
        let Self { files, by_number } = self;
        let entry = by_number.get_mut(&number)?;
        Some(
            entry.program.get_or_insert_with(|| {
                files.contents(entry.node).map(|bytes| Program::parse(&bytes)).unwrap_or_default()
            }),
        )
    }

    /// Adds the functions of the files of these numbers, at the places that stacks have them.
    pub fn add_to(&mut self, symbols: &mut Symbols, numbers: &BTreeSet<u32>) {
        for number in numbers {
            let moved = |symbol: &Symbol| Some(Symbol { start: in_file(*number, symbol.start)?, ..symbol.clone() });
            let Some(program) = self.program(*number) else { continue };
            let functions = program.functions().iter().filter_map(moved).collect();
            let path = self.by_number.get(number).map_or(&[][..], |entry| &entry.path);
            let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            symbols.add(&String::from_utf8_lossy(name), AddressSpace::default(), functions);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::stack::file_of;
    use std::path::Path;

    #[test]
    fn functions_are_found_by_the_path_of_their_file() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let mut files = Packed::new();
        files.put_bytes(Path::new("/usr/bin/program"), 0o755, &own).unwrap();
        files.put_bytes(Path::new("/etc/text"), 0o644, b"text").unwrap();
        files.put_link(Path::new("/bin"), b"usr/bin").unwrap();
        let mut programs = Programs::new(files);
        assert_eq!((programs.number(b"/bin/program"), programs.number(b"/bin")), (None, None));
        let (program, text) = (programs.number(b"/usr/bin/program").unwrap(), programs.number(b"/etc/text").unwrap());
        assert!(programs.program(text).unwrap().functions().is_empty());
        let name = "functions_are_found_by_the_path_of_their_file";
        let function = programs.program(program).unwrap().functions().iter().find(|f| f.name.contains(name)).unwrap();
        let address = in_file(program, function.start).unwrap();
        assert_eq!(file_of(address), Some((program, function.start)));
        let mut symbols = Symbols::default();
        programs.add_to(&mut symbols, &[program, text, 1].into());
        let found = symbols.find(AddressSpace::of(0x1000), address).unwrap();
        assert!(found.name.contains(name) && found.module == "program", "{found:?}");
    }
}
