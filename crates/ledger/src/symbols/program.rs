//! A program or shared library: its functions, and the table by which its stacks are unwound.
//!
//! All places are offsets in the file, so they are the same wherever the file is mapped.

use super::{Raw, Symbol, functions, raw_elf};
use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, LittleEndian, RegisterRule, UnwindContext, UnwindSection, X86_64,
};
use object::{Object, ObjectSection, ObjectSegment, SectionKind};

/// The place of the caller's stack pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cfa {
    /// An offset from RSP.
    Sp(i32),
    /// An offset from RBP.
    Bp(i32),
    /// There is no caller.
    End,
    /// The table does not say it in a way that is understood.
    Unknown,
}

/// The frame of the instructions from an offset in the file on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    start: u64,
    /// The caller's stack pointer; the return address is in front of it.
    pub cfa: Cfa,
    /// The offset from the caller's stack pointer at which the caller's RBP is saved, if it is.
    pub bp: Option<i32>,
}

/// Maximum number of rows of a file.
const MOST_ROWS: usize = 1 << 23;

/// A program or shared library.
#[derive(Clone, Debug, Default)]
pub struct Program {
    functions: Vec<Symbol>,
    /// Sorted, one for each offset.
    rows: Vec<Row>,
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
    /// Reads an ELF file of x86-64. A file that is none has no functions.
    pub fn parse(bytes: &[u8]) -> Self {
        let Ok(file) = object::File::parse(bytes) else { return Self::default() };
        if file.architecture() != object::Architecture::X86_64 {
            return Self::default();
        }
        let segments: Vec<Segment> = file
            .segments()
            .map(|segment| (segment.address(), segment.file_range().1, segment.file_range().0))
            .collect();
        let mut table = Table { segments: &segments, rows: Vec::new(), described: Vec::new() };
        let _ = table.read(&file);
        let Table { mut rows, described, .. } = table;
        rows.sort_by_key(|row| row.start);
        rows.dedup_by(|later, earlier| {
            // The end of a function is a row of its own, unless another function begins there.
            let same = later.start == earlier.start;
            if same && earlier.cfa == Cfa::Unknown {
                *earlier = *later;
            }
            same
        });
        let functions = named(&file, described);
        let moved = |symbol: Symbol| Some(Symbol { start: offset(&segments, symbol.start)?, ..symbol });
        Self { functions: functions.into_iter().filter_map(moved).collect(), rows }
    }

    /// Returns the functions, by their offsets in the file.
    pub fn functions(&self) -> &[Symbol] {
        &self.functions
    }

    /// Returns the frame of the instruction at an offset in the file.
    pub fn row(&self, offset: u64) -> Option<Row> {
        let at = self.rows.partition_point(|row| row.start <= offset).checked_sub(1)?;
        self.rows.get(at).copied().filter(|row| row.cfa != Cfa::Unknown)
    }
}

/// Returns the functions of a file by their addresses: those with names, those that only the unwind table describes, and
/// the sections in which the other code is.
fn named(file: &object::File, described: Vec<(u64, u64)>) -> Vec<Symbol> {
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
    let is_section = |function: &(u64, u64)| sections.iter().any(|(start, size, _)| (*start, *size) == *function);
    let described = described.into_iter().filter(|function| !is_section(function));
    fill(&mut all, described.map(|(start, size)| Symbol { start, size, name: format!("{start:#x}") }).collect());
    fill(&mut all, sections.into_iter().map(|(start, size, name)| Symbol { start, size, name }).collect());
    all
}

/// Adds ranges where no symbol is: of each the parts that are free.
fn fill(all: &mut Vec<Symbol>, mut more: Vec<Symbol>) {
    all.sort_unstable();
    more.sort_unstable();
    let mut added = Vec::new();
    let mut taken = all.iter().map(|symbol| (symbol.start, symbol.start.saturating_add(symbol.size))).peekable();
    // The end of everything before.
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

/// The rows of a file as they are read.
struct Table<'a> {
    segments: &'a [Segment],
    rows: Vec<Row>,
    /// Start and length of each function, by address.
    described: Vec<(u64, u64)>,
}

impl Table<'_> {
    /// Reads `.eh_frame`, up to what is not understood.
    fn read(&mut self, file: &object::File) -> Option<()> {
        let section = file.section_by_name(".eh_frame")?;
        let data = section.data().ok()?;
        let address = |name| file.section_by_name(name).map_or(0, |section| section.address());
        let bases = BaseAddresses::default()
            .set_eh_frame(section.address())
            .set_text(address(".text"))
            .set_got(address(".got"));
        let frames = EhFrame::new(data, LittleEndian);
        let mut entries = frames.entries(&bases);
        let mut context = UnwindContext::new();
        while let Ok(Some(entry)) = entries.next() {
            let CieOrFde::Fde(fde) = entry else { continue };
            let Ok(fde) = fde.parse(EhFrame::cie_from_offset) else { continue };
            self.described.push((fde.initial_address(), fde.len()));
            let Ok(mut rows) = fde.rows(&frames, &bases, &mut context) else { continue };
            while let Ok(Some(row)) = rows.next_row() {
                let (cfa, bp) = frame(row);
                self.add(row.start_address(), cfa, bp)?;
            }
            // Behind the function nothing is known.
            self.add(fde.initial_address().saturating_add(fde.len()), Cfa::Unknown, None)?;
        }
        Some(())
    }

    fn add(&mut self, address: u64, cfa: Cfa, bp: Option<i32>) -> Option<()> {
        if let Some(start) = offset(self.segments, address) {
            self.rows.push(Row { start, cfa, bp });
        }
        (self.rows.len() < MOST_ROWS).then_some(())
    }
}

/// Returns the frame of a row.
fn frame<S: gimli::UnwindContextStorage<usize>>(row: &gimli::UnwindTableRow<usize, S>) -> (Cfa, Option<i32>) {
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => match (*register, i32::try_from(*offset)) {
            (X86_64::RSP, Ok(offset)) => Cfa::Sp(offset),
            (X86_64::RBP, Ok(offset)) => Cfa::Bp(offset),
            _ => Cfa::Unknown,
        },
        CfaRule::Expression(_) => Cfa::Unknown,
    };
    let cfa = match row.register(X86_64::RA) {
        Some(RegisterRule::Undefined) => Cfa::End,
        Some(RegisterRule::Offset(-8)) => cfa,
        _ => Cfa::Unknown,
    };
    match row.register(X86_64::RBP) {
        None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => (cfa, None),
        Some(RegisterRule::Offset(offset)) => match i32::try_from(offset) {
            Ok(offset) => (cfa, Some(offset)),
            Err(_) => (Cfa::Unknown, None),
        },
        _ => (Cfa::Unknown, None),
    }
}

#[cfg(test)]
mod tests;
