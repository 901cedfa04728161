//! A program or shared library: its functions, and the table by which its stacks are unwound.
//!
//! All places are offsets in the file, so they are the same wherever the file is mapped. The file may hold any values: its tables are bounded, and
//! damaged parts are left out.

mod frames;

use super::{Raw, Symbol, functions, raw_elf};
use frames::Table;
pub use frames::{Cfa, Register, Row};
use object::{Object, ObjectSection, ObjectSegment, SectionKind};

/// A program or shared library.
#[derive(Clone, Debug, Default)]
pub struct Program {
    functions: Vec<Symbol>,
    table: Table,
}

/// A part of a file that is mapped: its address, its length, and its offset in the file.
type Segment = (u64, u64, u64);

/// Returns the offset in the file of an address.
fn offset(segments: &[Segment], address: u64) -> Option<u64> {
    let within = |segment: &&Segment| address.checked_sub(segment.0).is_some_and(|distance| distance < segment.1);
    let (start, _, offset) = segments.iter().find(within)?;
    offset.checked_add(address - start)
}

impl Program {
    /// Reads an ELF file of x86-64. Any other file has no functions.
    pub fn parse(bytes: &[u8]) -> Self {
        let Ok(file) = object::File::parse(bytes) else { return Self::default() };
        if file.architecture() != object::Architecture::X86_64 {
            return Self::default();
        }
        let segments: Vec<Segment> = file
            .segments()
            .map(|segment| (segment.address(), segment.file_range().1, segment.file_range().0))
            .collect();
        let table = Table::read(&file, |address| offset(&segments, address));
        let moved = |symbol: Symbol| Some(Symbol { start: offset(&segments, symbol.start)?, ..symbol });
        let mut functions: Vec<Symbol> = named(&file, &table.functions).into_iter().filter_map(moved).collect();
        functions.sort_unstable();
        Self { functions, table }
    }

    /// Returns the functions by their offsets in the file.
    pub fn functions(&self) -> &[Symbol] {
        &self.functions
    }

    /// Returns the function of the instruction at an offset in the file. A function without a name is called `+` and its
    /// address; other code has the name of its section.
    pub fn function(&self, offset: u64) -> Option<&Symbol> {
        let at = self.functions.partition_point(|function| function.start <= offset).checked_sub(1)?;
        self.functions.get(at).filter(|function| offset - function.start < function.size)
    }

    /// Returns the frame of the instruction at an offset in the file.
    pub fn row(&self, offset: u64) -> Option<Row> {
        self.table.row(offset)
    }

    /// Returns the number of rows and functions, which tells how much memory the program takes.
    pub fn size(&self) -> usize {
        self.functions.len() + self.table.rows.len()
    }
}

/// Returns the functions of a file by their addresses: functions with names, functions that only the unwind table has, and the sections that
/// hold the other code.
fn named(file: &object::File, unwound: &[(u64, u64)]) -> Vec<Symbol> {
    let mut sized = Vec::new();
    let raw: Vec<Raw> = raw_elf(file, &mut sized);
    let mut all = functions(raw);
    sized.sort_unstable();
    for symbol in &mut all {
        if let Ok(at) = sized.binary_search_by_key(&symbol.start, |entry| entry.0) {
            symbol.size = sized[at].1;
        }
    }
    let sections: Vec<(u64, u64, String)> = file
        .sections()
        .filter(|section| section.kind() == SectionKind::Text)
        .map(|section| (section.address(), section.size(), section.name().unwrap_or_default().to_owned()))
        .collect();
    let is_section = |function: &&(u64, u64)| sections.iter().any(|(start, size, _)| (*start, *size) == **function);
    let unwound = unwound.iter().filter(|function| !is_section(function));
    fill(&mut all, unwound.map(|&(start, size)| Symbol { start, size, name: format!("+{start:#x}") }).collect());
    fill(&mut all, sections.into_iter().map(|(start, size, name)| Symbol { start, size, name }).collect());
    all
}

/// Adds those parts of the symbols `more` at whose addresses there is no symbol yet.
fn fill(all: &mut Vec<Symbol>, mut more: Vec<Symbol>) {
    all.sort_unstable();
    more.sort_unstable();
    let mut added = Vec::new();
    let mut taken = all.iter().map(|symbol| (symbol.start, symbol.start.saturating_add(symbol.size))).peekable();
    // The end of all previous symbols.
    let mut after = 0;
    for Symbol { start, size, name } in more {
        let end = start.saturating_add(size);
        let mut at = start.max(after);
        while let Some((first, last)) = taken.next_if(|(first, _)| *first < end) {
            if at < first {
                added.push(Symbol::new(at, first - at, &name));
            }
            at = at.max(last);
        }
        if at < end {
            added.push(Symbol { start: at, size: end - at, name });
            at = end;
        }
        after = after.max(at);
    }
    all.extend(added);
    all.sort_unstable();
}

#[cfg(test)]
mod tests;
