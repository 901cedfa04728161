//! ELF files: loadable segments, the entry point as a physical address, and notes.

use super::LoadError;
use super::bytes::Image;
use super::space::LoadSpace;
use object::LittleEndian;
use object::elf::{self, FileHeader32, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};

const HEADER: &str = "ELF header";
const NOTE: &str = "ELF note";
const LITTLE: LittleEndian = LittleEndian;
const XEN_ELFNOTE_PHYS32_ENTRY: elf::NoteType = elf::NoteType(18);

/// A loadable part of the file.
pub(super) struct Segment<'a> {
    /// Physical address.
    pub address: u64,
    virtual_address: u64,
    executable: bool,
    pub memory_len: u64,
    pub data: &'a [u8],
}

impl Segment<'_> {
    /// Returns the physical address of a virtual address in the segment.
    fn physical(&self, address: u64) -> Option<u64> {
        let offset = address.wrapping_sub(self.virtual_address);
        (offset < self.memory_len).then(|| self.address.wrapping_add(offset))
    }
}

/// A parsed file.
pub(super) struct Elf<'a> {
    /// True for ELF64.
    pub wide: bool,
    /// The entry point of the header, which may be physical or virtual.
    entry: u64,
    pub segments: Vec<Segment<'a>>,
    /// The physical address in the PVH note.
    pub pvh_entry: Option<u64>,
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
    let (file_len, memory_len) = (program.p_filesz(LITTLE).into(), program.p_memsz(LITTLE).into());
    if file_len > memory_len {
        return Err(LoadError::Malformed("an ELF segment is larger in the file than in memory"));
    }
    if memory_len == 0 {
        return Ok(None);
    }
    let data = image.slice(program.p_offset(LITTLE).into(), file_len, "ELF segment")?;
    Ok(Some(Segment {
        address: program.p_paddr(LITTLE).into(),
        virtual_address: program.p_vaddr(LITTLE).into(),
        executable: program.p_flags(LITTLE).0 & elf::PF_X.0 != 0,
        memory_len,
        data,
    }))
}

/// Returns the PVH entry point, if it is among these notes.
fn find_pvh_entry<P: ProgramHeader<Endian = LittleEndian>>(
    image: Image,
    program: &P,
) -> Result<Option<u64>, LoadError> {
    image.slice(program.p_offset(LITTLE).into(), program.p_filesz(LITTLE).into(), NOTE)?;
    // A kernel's notes have a known alignment.
    let Ok(Some(mut notes)) = program.notes(LITTLE, image.0) else { return Ok(None) };
    let cut = |_| LoadError::Malformed("an ELF note is longer than its segment");
    while let Some(note) = notes.next().map_err(cut)? {
        if note.n_type(LITTLE) == XEN_ELFNOTE_PHYS32_ENTRY && note.name() == b"Xen" {
            let value = Image(note.desc());
            let entry = if value.len() >= 8 { value.u64(0, NOTE)? } else { u64::from(value.u32(0, NOTE)?) };
            return Ok(Some(entry));
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

    fn is_loaded(&self, physical: u64) -> bool {
        self.segments.iter().any(|s| physical.wrapping_sub(s.address) < s.memory_len)
    }

    /// Translates a virtual address by the first segment that contains it.
    fn translate(&self, address: u64, only_code: bool) -> Option<u64> {
        self.segments.iter().filter(|s| s.executable || !only_code).find_map(|s| s.physical(address))
    }

    /// Returns `entry`, which must be the physical address of a byte of a segment below 4 GiB.
    pub fn physical_entry(&self, entry: u64) -> Result<u32, LoadError> {
        match u32::try_from(entry) {
            Ok(physical) if self.is_loaded(entry) => Ok(physical),
            _ => Err(match self.translate(entry, false) {
                Some(physical) if physical != entry => LoadError::EntryVirtual { entry, physical },
                _ => LoadError::EntryOutside(entry),
            }),
        }
    }

    /// Returns the physical entry point of a file whose header may have a virtual one, as multiboot kernels have that are linked for
    /// the upper half.
    ///
    /// As for QEMU and GRUB, the entry point is an address in a segment of code, which differs from the physical address
    /// where the segment's addresses differ. An entry point in no such segment is a physical address, or one in data.
    pub fn translated_entry(&self) -> Result<u32, LoadError> {
        let entry = self.entry;
        let physical = self.translate(entry, true).or_else(|| self.is_loaded(entry).then_some(entry));
        let physical = physical.or_else(|| self.translate(entry, false)).ok_or(LoadError::EntryOutside(entry))?;
        u32::try_from(physical).map_err(|_| LoadError::EntryOutside(entry))
    }

    /// Returns the entry point of a file that is entered by its header at a physical address.
    pub fn header_entry(&self) -> Result<u32, LoadError> {
        self.physical_entry(self.entry)
    }
}
