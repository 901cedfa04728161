//! The unwind table of a program: `.eh_frame`, reduced to the places of the return address and of RBP.

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, Encoding, EndianSlice, Format, LittleEndian, Operation, RegisterRule,
    UnwindContext, UnwindContextStorage, UnwindExpression, UnwindSection, UnwindTableRow, X86_64,
};
use object::{Object, ObjectSection};

/// The register that an address is computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// RSP.
    Sp,
    /// RBP.
    Bp,
}

/// The caller's stack pointer. The return address is below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cfa {
    /// A register and an offset.
    From(Register, i32),
    /// The value in memory at a register and an offset, and a second offset.
    At(Register, i32, i32),
    /// RSP in the procedure linkage table: one word more from this byte of each entry of 16 bytes on.
    Linkage(u8),
    /// There is no caller.
    End,
    /// The table has a rule that is not supported, or the address is in no function.
    Unknown,
}

/// The frame of the instructions from an offset in the file on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub(super) start: u64,
    /// The caller's stack pointer.
    pub cfa: Cfa,
    /// The offset from the caller's stack pointer at which the caller's RBP is saved. `None` if RBP is unchanged.
    pub bp: Option<i32>,
}

/// Largest number of rows of a file.
const MOST_ROWS: usize = 1 << 22;
/// Operations of the longest expression that is supported.
const MOST_OPERATIONS: usize = 9;
/// Encoding of the expressions in `.eh_frame` of 64-bit files.
const ENCODING: Encoding = Encoding { address_size: 8, format: Format::Dwarf32, version: 4 };

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// The unwind table of a file.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// The rows, sorted by offset.
    pub rows: Vec<Row>,
    /// Start and length of each function, by address.
    pub functions: Vec<(u64, u64)>,
}

impl Table {
    /// Reads the table of a file up to the first entry that is damaged. `offset` maps an address to its offset in the file.
    pub fn read(file: &object::File, offset: impl Fn(u64) -> Option<u64>) -> Self {
        let mut table = Self::default();
        let _ = table.read_section(file, offset);
        table.rows.sort_by_key(|row| row.start);
        table.rows.dedup_by(|later, earlier| {
            // The end of a function has a row of its own, unless another function begins there.
            let same = later.start == earlier.start;
            if same && earlier.cfa == Cfa::Unknown {
                *earlier = *later;
            }
            same
        });
        table
    }

    fn read_section(&mut self, file: &object::File, offset: impl Fn(u64) -> Option<u64>) -> Option<()> {
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
        let mut add = |address: u64, cfa, bp| {
            if let Some(start) = offset(address) {
                self.rows.push(Row { start, cfa, bp });
            }
            (self.rows.len() < MOST_ROWS).then_some(())
        };
        while let Ok(Some(entry)) = entries.next() {
            let CieOrFde::Fde(fde) = entry else { continue };
            let Ok(fde) = fde.parse(EhFrame::cie_from_offset) else { continue };
            self.functions.push((fde.initial_address(), fde.len()));
            if let Ok(mut rows) = fde.rows(&frames, &bases, &mut context) {
                while let Ok(Some(row)) = rows.next_row() {
                    let (cfa, bp) = frame(&frames, row);
                    add(row.start_address(), cfa, bp)?;
                }
            }
            // Behind the function nothing is known.
            add(fde.initial_address().saturating_add(fde.len()), Cfa::Unknown, None)?;
        }
        Some(())
    }

    /// Returns the frame of the instruction at an offset in the file.
    pub fn row(&self, offset: u64) -> Option<Row> {
        let at = self.rows.partition_point(|row| row.start <= offset).checked_sub(1)?;
        self.rows.get(at).copied().filter(|row| row.cfa != Cfa::Unknown)
    }
}

fn base(register: gimli::Register) -> Option<Register> {
    match register {
        X86_64::RSP => Some(Register::Sp),
        X86_64::RBP => Some(Register::Bp),
        _ => None,
    }
}

/// Returns the frame of a row of the file's table.
fn frame<S>(frames: &EhFrame<Slice>, row: &UnwindTableRow<usize, S>) -> (Cfa, Option<i32>)
where
    S: UnwindContextStorage<usize>,
{
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            base(*register).zip(i32::try_from(*offset).ok()).map(|(register, offset)| Cfa::From(register, offset))
        }
        CfaRule::Expression(expression) => computed(frames, *expression),
    };
    let cfa = match row.register(X86_64::RA) {
        Some(RegisterRule::Undefined) => Some(Cfa::End),
        Some(RegisterRule::Offset(-8)) => cfa,
        _ => None,
    };
    let bp = match row.register(X86_64::RBP) {
        None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => Some(None),
        Some(RegisterRule::Offset(offset)) => i32::try_from(offset).ok().map(Some),
        _ => None,
    };
    cfa.zip(bp).unwrap_or((Cfa::Unknown, None))
}

/// Returns the caller's stack pointer as an expression computes it.
fn computed(frames: &EhFrame<Slice>, expression: UnwindExpression<usize>) -> Option<Cfa> {
    let mut operations = expression.get(frames).ok()?.operations(ENCODING);
    let mut all = Vec::with_capacity(MOST_OPERATIONS);
    while let Some(operation) = operations.next().ok()? {
        if all.len() == MOST_OPERATIONS {
            return None;
        }
        all.push(operation);
    }
    let at = |register, offset: i64, more: u64| {
        Some(Cfa::At(base(register)?, i32::try_from(offset).ok()?, i32::try_from(more).ok()?))
    };
    match all[..] {
        [Operation::RegisterOffset { register, offset, .. }, Operation::Deref { size: 8, space: false, .. }] => {
            at(register, offset, 0)
        }
        [
            Operation::RegisterOffset { register, offset, .. },
            Operation::Deref { size: 8, space: false, .. },
            Operation::PlusConstant { value },
        ] => at(register, offset, value),
        // RSP + 8 + ((RIP & 15) >= n) << 3.
        [
            Operation::RegisterOffset { register: X86_64::RSP, offset: 8, .. },
            Operation::RegisterOffset { register: X86_64::RA, offset: 0, .. },
            Operation::UnsignedConstant { value: 15 },
            Operation::And,
            Operation::UnsignedConstant { value: pushed @ 0..16 },
            Operation::Ge,
            Operation::UnsignedConstant { value: 3 },
            Operation::Shl,
            Operation::Plus,
        ] => Some(Cfa::Linkage(pushed as u8)),
        _ => None,
    }
}
