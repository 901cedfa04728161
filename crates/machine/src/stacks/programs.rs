//! The files of a guest's programs: their functions and unwind tables.
//!
//! A file is one of the trees that the guest got from the host. Paths and everything else that leads to a file are the guest's and may be anything:
//! they are looked up in the trees alone, and the files and their tables are bounded.

use super::mapped::{Mapped, MappedFiles};
use guestfs::tree::ROOT;
use guestfs::{Kind, Tree};
use ledger::stack::{file_of, in_file};
use ledger::symbols::mappings::MappedFile;
use ledger::symbols::program::{Program, Row};
use ledger::symbols::{Symbol, Symbols, demangle};
use ledger::{AddressSpace, Recorder};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Largest file that is read, and largest number of functions and rows of all files together. Further files have neither.
const LARGEST: u64 = 256 << 20;
const MOST_PARTS: usize = 1 << 24;
/// Largest number of mapped files whose names are kept.
const MOST_NAMES: usize = 1 << 12;
/// Size of a single read.
const PIECE: usize = 1 << 20;
/// Name of the tree that is the guest's root.
const ROOT_TREE: &str = "root";
/// Directory of the initial RAM disk with the files of the guest's root.
const PAYLOAD: &[u8] = b"payload";

/// A tree of files, with its name in the guest's file system.
pub type NamedTree = (String, Box<dyn Tree>);

/// The files of programs.
#[derive(Default)]
pub struct Programs {
    trees: Vec<NamedTree>,
    /// The names of mapped files that have been looked up.
    names: HashMap<MappedFile, Vec<u8>>,
    /// The programs that have been read, by number.
    programs: BTreeMap<u32, Program>,
    /// Functions and rows of all programs together.
    parts: usize,
    /// The mappings of files that stacks have shown.
    mapped: MappedFiles,
}

impl Programs {
    /// Creates the programs in these trees.
    pub fn new(trees: Vec<NamedTree>) -> Self {
        Self { trees, ..Self::default() }
    }

    /// Returns the name by which the recorder knows a mapped file: the tree and the path in it, such as
    /// `root/usr/bin/python3`, or only the last part of the path after `?/` if the file is in no tree.
    fn name(&mut self, file: &MappedFile) -> Vec<u8> {
        let parts = || file.path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
        let first = parts().next().unwrap_or_default();
        // The tree, and the number of directories above it.
        let tree = match &file.filesystem[..] {
            // A file of an overlay is named by its path there or by its path in the file system below, depending on the kernel.
            b"overlay" => Some((ROOT_TREE.as_bytes(), 0)),
            b"virtiofs" => Some((first, 1)),
            b"rootfs" if first == PAYLOAD => Some((ROOT_TREE.as_bytes(), 1)),
            _ => None,
        };
        if let Some((tree, above)) = tree {
            let name = std::iter::once(tree).chain(parts().skip(above)).collect::<Vec<_>>().join(&b'/');
            if self.size(&name) == Some(file.size) {
                return name;
            }
        }
        [b"?/", parts().next_back().unwrap_or_default()].concat()
    }

    /// Returns the number of a mapped file.
    pub fn number(&mut self, recorder: &Recorder, file: MappedFile) -> Option<u32> {
        if let Some(name) = self.names.get(&file) {
            return recorder.file(name);
        }
        let name = self.name(&file);
        if self.names.len() >= MOST_NAMES {
            self.names.clear();
        }
        recorder.file(self.names.entry(file).or_insert(name))
    }

    /// Calls `with` for a regular file: with its tree, node and size.
    fn with_file<T>(&mut self, name: &[u8], with: impl FnOnce(&mut dyn Tree, u64, u64) -> Option<T>) -> Option<T> {
        let mut parts = name.split(|byte| *byte == b'/');
        let tree = parts.next()?;
        let (_, tree) = self.trees.iter_mut().find(|(name, _)| name.as_bytes() == tree)?;
        let mut nodes = vec![ROOT];
        let mut found = None;
        for part in parts {
            let is_name = !part.is_empty() && part != b"." && part != b".." && !part.contains(&0);
            found = is_name.then(|| tree.look_up(nodes[nodes.len() - 1], part).ok()).flatten();
            let Some(found) = &found else { break };
            nodes.push(found.node);
        }
        let file = found.filter(|found| found.attributes.kind() == Kind::File);
        let result = file.and_then(|found| with(&mut **tree, found.node, found.attributes.size));
        nodes.iter().skip(1).rev().for_each(|node| tree.forget(*node, 1));
        result
    }

    fn size(&mut self, name: &[u8]) -> Option<u64> {
        self.with_file(name, |_, _, size| Some(size))
    }

    /// Reads a file.
    fn read(&mut self, name: &[u8]) -> Option<Vec<u8>> {
        self.with_file(name, |tree, node, size| {
            let size = usize::try_from(size).ok().filter(|size| *size as u64 <= LARGEST)?;
            let handle = tree.open(node, 0).ok()?;
            let mut bytes = Vec::with_capacity(size);
            while bytes.len() < size {
                let piece = tree.read(node, handle, bytes.len() as u64, PIECE.min(size - bytes.len()));
                match piece {
                    Ok(piece) if !piece.is_empty() => bytes.extend_from_slice(&piece),
                    _ => break,
                }
            }
            tree.close(handle);
            (bytes.len() == size).then_some(bytes)
        })
    }

    /// Returns the program of a number. A file that can't be read has no functions.
    fn program(&mut self, recorder: &Recorder, number: u32) -> &Program {
        if !self.programs.contains_key(&number) {
            let bytes = path(recorder, number).and_then(|path| self.read(&path));
            let program = bytes.map(|bytes| Program::parse(&bytes)).unwrap_or_default();
            let parts = self.parts.saturating_add(program.size());
            let fits = parts <= MOST_PARTS;
            if fits {
                self.parts = parts;
            }
            self.programs.insert(number, if fits { program } else { Program::default() });
        }
        &self.programs[&number]
    }

    /// Returns the frame of the instruction at an offset in a file.
    pub fn row(&mut self, recorder: &Recorder, number: u32, offset: u64) -> Option<Row> {
        self.program(recorder, number).row(offset)
    }

    /// Notes mappings of files in an address space.
    pub fn see(&mut self, space: AddressSpace, found: Vec<Mapped>) {
        found.into_iter().for_each(|mapped| self.mapped.see(space, mapped));
    }

    /// Adds the functions of files at the addresses at which stacks have found them mapped, by which charges are known.
    pub fn add_mapped(&mut self, recorder: &Recorder, symbols: &mut Symbols) {
        for (space, Mapped { range, number, offset }) in self.mapped.certain() {
            let file = self.file_name(recorder, number);
            let program = self.program(recorder, number);
            let size = range.end - range.start;
            let functions = program.functions().iter().filter_map(|function| {
                let at = function.start.checked_sub(offset).filter(|at| *at < size)?;
                let name = named(&file, demangle(&function.name).into_owned());
                Some(Symbol { start: range.start + at, size: function.size.min(size - at), name })
            });
            let functions = functions.collect();
            symbols.add(&file, space, functions);
        }
    }

    /// Returns the last part of a file's path.
    fn file_name(&self, recorder: &Recorder, number: u32) -> String {
        let path = path(recorder, number).unwrap_or_default();
        let name = String::from_utf8_lossy(path.rsplit(|byte| *byte == b'/').next().unwrap_or_default());
        // The guest chooses names, and must not control the terminal on which they are shown.
        name.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
    }

    /// Adds the functions of all frames that are in files. Code without a function is called by the file and its offset.
    pub fn add_to(&mut self, recorder: &Recorder, symbols: &mut Symbols) {
        let mut by_file: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
        let places = recorder.names().frames().in_files();
        for (number, offset) in places.into_iter().filter_map(file_of) {
            by_file.entry(number).or_default().insert(offset);
        }
        for (number, offsets) in by_file {
            let file = self.file_name(recorder, number);
            let program = self.program(recorder, number);
            let function = |offset: u64| {
                let (start, size, name) = match program.function(offset) {
                    Some(Symbol { start, size, name }) => (*start, *size, demangle(name).into_owned()),
                    None => (offset, 1, format!("+{offset:#x}")),
                };
                Some(Symbol { start: in_file(number, start)?, size, name: named(&file, name) })
            };
            let functions = offsets.into_iter().filter_map(function).collect();
            symbols.add(&file, AddressSpace::default(), functions);
        }
    }
}

/// Returns the name of a function for people: one without a name is called by its place in the file.
fn named(file: &str, name: String) -> String {
    if name.starts_with('+') { format!("{file}{name}") } else { name }
}

/// Returns the path by which the recorder knows a file.
fn path(recorder: &Recorder, number: u32) -> Option<Vec<u8>> {
    recorder.names().frames().files().name(number).map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests;
