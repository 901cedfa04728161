//! ELF files: what must be loaded, and the PVH entry note.

use super::LoadError;
use super::bytes::Image;
use super::space::Space;

const EM_386: u16 = 3;
const EM_X86_64: u16 = 62;
const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
const XEN_ELFNOTE_PHYS32_ENTRY: u32 = 18;

/// A part of the file that goes to memory.
pub(super) struct Segment<'a> {
    pub address: u64,
    pub memory_len: u64,
    pub data: &'a [u8],
}

/// A parsed file.
pub(super) struct Elf<'a> {
    /// ELF64.
    pub wide: bool,
    pub entry: u64,
    pub segments: Vec<Segment<'a>>,
    pub pvh_entry: Option<u32>,
}

/// A program header, of either width.
struct Program {
    kind: u32,
    offset: u64,
    address: u64,
    file_len: u64,
    memory_len: u64,
    align: u64,
}

pub(super) fn is_elf(image: &Image) -> bool {
    image.0.starts_with(b"\x7fELF")
}

pub(super) fn parse(image: Image<'_>) -> Result<Elf<'_>, LoadError> {
    const HEADER: &str = "ELF header";
    let wide = match image.u8(4, HEADER)? {
        1 => false,
        2 => true,
        _ => return Err(LoadError::Malformed("the ELF class is neither 32-bit nor 64-bit")),
    };
    if image.u8(5, HEADER)? != 1 {
        return Err(LoadError::Malformed("the ELF file is not little-endian"));
    }
    image.slice(0, if wide { 64 } else { 52 }, HEADER)?;
    let machine = image.u16(18, HEADER)?;
    if machine != if wide { EM_X86_64 } else { EM_386 } {
        return Err(LoadError::WrongMachine(machine));
    }
    if !matches!(image.u16(16, HEADER)?, 2 | 3) {
        return Err(LoadError::Malformed("the ELF file is not an executable (an object file or a core dump?)"));
    }
    let (entry, table, size, count) = if wide {
        (image.u64(24, HEADER)?, image.u64(32, HEADER)?, image.u16(54, HEADER)?, image.u16(56, HEADER)?)
    } else {
        let word = |at| image.u32(at, HEADER).map(u64::from);
        (word(24)?, word(28)?, image.u16(42, HEADER)?, image.u16(44, HEADER)?)
    };
    if count > 0 && size != if wide { 56 } else { 32 } {
        return Err(LoadError::Malformed("the ELF program headers have an unknown size"));
    }
    let mut file = Elf { wide, entry, segments: Vec::new(), pvh_entry: None };
    for index in 0..u64::from(count) {
        let at = table.checked_add(index * u64::from(size));
        let at = at.ok_or(LoadError::Malformed("the ELF program headers lie beyond any file"))?;
        let program = if wide { program64(image, at)? } else { program32(image, at)? };
        match program.kind {
            PT_LOAD => file.segments.extend(segment(image, &program)?),
            PT_NOTE => file.pvh_entry = file.pvh_entry.or(find_pvh_entry(image, &program)?),
            PT_INTERP => return Err(LoadError::NotAKernel("an ELF program for an operating system")),
            _ => {}
        }
    }
    if file.segments.is_empty() {
        return Err(LoadError::Malformed("the ELF file has nothing to load"));
    }
    Ok(file)
}

const PROGRAM: &str = "ELF program header";

fn program64(image: Image, at: u64) -> Result<Program, LoadError> {
    image.slice(at, 56, PROGRAM)?;
    Ok(Program {
        kind: image.u32(at, PROGRAM)?,
        offset: image.u64(at + 8, PROGRAM)?,
        address: image.u64(at + 24, PROGRAM)?,
        file_len: image.u64(at + 32, PROGRAM)?,
        memory_len: image.u64(at + 40, PROGRAM)?,
        align: image.u64(at + 48, PROGRAM)?,
    })
}

fn program32(image: Image, at: u64) -> Result<Program, LoadError> {
    image.slice(at, 32, PROGRAM)?;
    let word = |offset| image.u32(at + offset, PROGRAM).map(u64::from);
    Ok(Program {
        kind: image.u32(at, PROGRAM)?,
        offset: word(4)?,
        address: word(12)?,
        file_len: word(16)?,
        memory_len: word(20)?,
        align: word(28)?,
    })
}

fn segment<'a>(image: Image<'a>, program: &Program) -> Result<Option<Segment<'a>>, LoadError> {
    if program.file_len > program.memory_len {
        return Err(LoadError::Malformed("an ELF segment is larger in the file than in memory"));
    }
    if program.memory_len == 0 {
        return Ok(None);
    }
    let data = image.slice(program.offset, program.file_len, "ELF segment")?;
    Ok(Some(Segment { address: program.address, memory_len: program.memory_len, data }))
}

/// The PVH entry point, if it is among these notes.
fn find_pvh_entry(image: Image, program: &Program) -> Result<Option<u32>, LoadError> {
    const NOTE: &str = "ELF note";
    let notes = Image(image.slice(program.offset, program.file_len, NOTE)?);
    let align = if program.align == 8 { 8 } else { 4 };
    let mut at = 0u64;
    while at + 12 <= notes.len() {
        let name_len = u64::from(notes.u32(at, NOTE)?);
        let len = u64::from(notes.u32(at + 4, NOTE)?);
        let kind = notes.u32(at + 8, NOTE)?;
        let name = notes.slice(at + 12, name_len, NOTE)?;
        let start = (at + 12 + name_len).next_multiple_of(align);
        let value = Image(notes.slice(start, len, NOTE)?);
        if kind == XEN_ELFNOTE_PHYS32_ENTRY && name == b"Xen\0" {
            let entry = if len >= 8 { value.u64(0, NOTE)? } else { u64::from(value.u32(0, NOTE)?) };
            let entry = u32::try_from(entry);
            return Ok(Some(entry.map_err(|_| LoadError::Malformed("the PVH entry point lies above 4 GiB"))?));
        }
        at = (start + len).next_multiple_of(align);
    }
    Ok(None)
}

impl Elf<'_> {
    /// Copies the segments to their physical addresses.
    pub fn place(&self, space: &mut Space) -> Result<(), LoadError> {
        for segment in &self.segments {
            space.claim(segment.address, segment.memory_len, "ELF segment")?;
        }
        self.segments.iter().try_for_each(|s| space.fill(s.address, s.data, "ELF segment"))
    }

    /// `entry`, if it lies in a segment.
    pub fn checked_entry(&self, entry: u64) -> Result<u64, LoadError> {
        let inside = self.segments.iter().any(|s| entry.wrapping_sub(s.address) < s.memory_len);
        if inside { Ok(entry) } else { Err(LoadError::EntryOutside(entry)) }
    }

    /// The entry point of the header, which must lie below 4 GiB.
    pub fn entry32(&self) -> Result<u32, LoadError> {
        let entry = self.checked_entry(self.entry)?;
        u32::try_from(entry).map_err(|_| LoadError::EntryOutside(entry))
    }
}
