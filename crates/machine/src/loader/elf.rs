//! ELF files: loadable segments, and the PVH entry note.

use super::LoadError;
use super::bytes::Image;
use super::space::LoadSpace;
use object::LittleEndian;
use object::elf::{self, FileHeader32, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};

const HEADER: &str = "ELF header";
const XEN_ELFNOTE_PHYS32_ENTRY: elf::NoteType = elf::NoteType(18);

/// A loadable part of the file.
pub(super) struct Segment<'a> {
    pub address: u64,
    pub memory_len: u64,
    pub data: &'a [u8],
}

/// A parsed file.
pub(super) struct Elf<'a> {
    /// True for ELF64.
    pub wide: bool,
    pub entry: u64,
    pub segments: Vec<Segment<'a>>,
    pub pvh_entry: Option<u32>,
}

pub(super) fn is_elf(image: &Image) -> bool {
    image.0.starts_with(&elf::ELFMAG)
}

pub(super) fn parse(image: Image<'_>) -> Result<Elf<'_>, LoadError> {
    match elf::FileClass(image.u8(4, HEADER)?) {
        elf::ELFCLASS32 => read::<FileHeader32<LittleEndian>>(image, elf::EM_386),
        elf::ELFCLASS64 => read::<FileHeader64<LittleEndian>>(image, elf::EM_X86_64),
        _ => Err(LoadError::Malformed("the ELF class is neither 32-bit nor 64-bit")),
    }
}

/// Reads a file with headers of one width, for the machine type that has such files.
fn read<H: FileHeader<Endian = LittleEndian>>(image: Image<'_>, machine: elf::Machine) -> Result<Elf<'_>, LoadError> {
    const LITTLE: LittleEndian = LittleEndian;
    image.slice(0, size_of::<H>() as u64, HEADER)?;
    let header = H::parse(image.0).ok().filter(|header| header.is_little_endian());
    let header = header.ok_or(LoadError::Malformed("the ELF file is not little-endian, or of an unknown version"))?;
    if header.e_machine(LITTLE) != machine {
        return Err(LoadError::WrongMachine(header.e_machine(LITTLE).0));
    }
    if !matches!(header.e_type(LITTLE), elf::ET_EXEC | elf::ET_DYN) {
        return Err(LoadError::Malformed("the ELF file is not an executable (an object file or a core dump?)"));
    }
    let table = u64::from(header.e_phentsize(LITTLE)) * u64::from(header.e_phnum(LITTLE));
    if table != 0 {
        image.slice(header.e_phoff(LITTLE).into(), table, "ELF program header")?;
    }
    let programs = header.program_headers(LITTLE, image.0);
    let programs = programs.map_err(|_| LoadError::Malformed("the ELF program headers have an unknown size"))?;
    let entry = header.e_entry(LITTLE).into();
    let mut file = Elf { wide: header.is_type_64(), entry, segments: Vec::new(), pvh_entry: None };
    for program in programs {
        match program.p_type(LITTLE) {
            elf::PT_LOAD => file.segments.extend(segment(image, program)?),
            elf::PT_NOTE => file.pvh_entry = file.pvh_entry.or(find_pvh_entry(image, program)?),
            elf::PT_INTERP => return Err(LoadError::NotAKernel("an ELF program for an operating system")),
            _ => {}
        }
    }
    if file.segments.is_empty() {
        return Err(LoadError::Malformed("the ELF file has nothing to load"));
    }
    Ok(file)
}

fn segment<'a, P: ProgramHeader<Endian = LittleEndian>>(
    image: Image<'a>,
    program: &P,
) -> Result<Option<Segment<'a>>, LoadError> {
    let (file_len, memory_len) = (program.p_filesz(LittleEndian).into(), program.p_memsz(LittleEndian).into());
    if file_len > memory_len {
        return Err(LoadError::Malformed("an ELF segment is larger in the file than in memory"));
    }
    if memory_len == 0 {
        return Ok(None);
    }
    let data = image.slice(program.p_offset(LittleEndian).into(), file_len, "ELF segment")?;
    Ok(Some(Segment { address: program.p_paddr(LittleEndian).into(), memory_len, data }))
}

/// Returns the PVH entry point, if it is among these notes.
fn find_pvh_entry<P: ProgramHeader<Endian = LittleEndian>>(
    image: Image,
    program: &P,
) -> Result<Option<u32>, LoadError> {
    const NOTE: &str = "ELF note";
    image.slice(program.p_offset(LittleEndian).into(), program.p_filesz(LittleEndian).into(), NOTE)?;
    // A kernel's notes have a known alignment.
    let Ok(Some(mut notes)) = program.notes(LittleEndian, image.0) else { return Ok(None) };
    let cut = |_| LoadError::Malformed("an ELF note is longer than its segment");
    while let Some(note) = notes.next().map_err(cut)? {
        if note.n_type(LittleEndian) == XEN_ELFNOTE_PHYS32_ENTRY && note.name() == b"Xen" {
            let value = Image(note.desc());
            let entry = if value.len() >= 8 { value.u64(0, NOTE)? } else { u64::from(value.u32(0, NOTE)?) };
            let entry = u32::try_from(entry);
            return Ok(Some(entry.map_err(|_| LoadError::Malformed("the PVH entry point lies above 4 GiB"))?));
        }
    }
    Ok(None)
}

impl Elf<'_> {
    /// Copies the segments to their physical addresses.
    pub fn place(&self, space: &mut LoadSpace) -> Result<(), LoadError> {
        for segment in &self.segments {
            space.claim(segment.address, segment.memory_len, "ELF segment")?;
        }
        self.segments.iter().try_for_each(|s| space.fill(s.address, s.data, "ELF segment"))
    }

    /// Returns `entry` if it is in a segment.
    pub fn checked_entry(&self, entry: u64) -> Result<u64, LoadError> {
        let inside = self.segments.iter().any(|s| entry.wrapping_sub(s.address) < s.memory_len);
        if inside { Ok(entry) } else { Err(LoadError::EntryOutside(entry)) }
    }

    /// Returns the entry point in the header, which must be below 4 GiB.
    pub fn entry32(&self) -> Result<u32, LoadError> {
        let entry = self.checked_entry(self.entry)?;
        u32::try_from(entry).map_err(|_| LoadError::EntryOutside(entry))
    }
}
