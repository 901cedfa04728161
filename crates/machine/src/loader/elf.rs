//! ELF files: loadable segments, the entry point as a physical address, notes, and signs that a file is not a kernel.

use super::LoadError;
use super::bytes::Image;
use super::kind::{self, Kind};
use super::space::LoadSpace;
use object::LittleEndian;
use object::elf::{self, FileHeader32, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};

const HEADER: &str = "ELF header";
const NOTE: &str = "ELF note";
/// Offset of the machine number in both headers.
const MACHINE_AT: u64 = 18;
const LITTLE: LittleEndian = LittleEndian;
/// Largest number of sections that are searched for notes, and of notes that are read in each of them.
const MOST_SECTIONS: usize = 1024;
const MOST_NOTES: usize = 64;
/// Types of notes whose owner is `Xen`: the operating system of a paravirtualized guest, and the entry point for PVH.
const XEN_ELFNOTE_GUEST_OS: u32 = 6;
const XEN_ELFNOTE_PHYS32_ENTRY: u32 = 18;
/// Types of notes in programs: the oldest kernel on which a program with the GNU C library runs (owner `GNU`), and the build of a Go program
/// (owner `Go`).
const GNU_ABI_TAG: u32 = 1;
const GO_BUILD_ID: u32 = 4;
/// The interpreter that FreeBSD's kernel asks for. No file has this name.
const FREEBSD_KERNEL: &[u8] = b"/red/herring";

/// Machine numbers of ELF, by name.
const MACHINES: [(u16, &str); 17] = [
    (2, "SPARC"),
    (3, "i386"),
    (8, "MIPS"),
    (15, "PA-RISC"),
    (18, "SPARC"),
    (20, "PowerPC"),
    (21, "64-bit PowerPC"),
    (22, "S/390"),
    (40, "Arm"),
    (43, "64-bit SPARC"),
    (50, "IA-64"),
    (62, "x86-64"),
    (92, "OpenRISC"),
    (183, "arm64"),
    (243, "RISC-V"),
    (258, "LoongArch"),
    (0x9026, "Alpha"),
];

/// Names the processor of a machine number.
pub(super) fn machine_name(machine: u16) -> String {
    let known = MACHINES.iter().find(|(number, _)| *number == machine);
    known.map_or_else(|| format!("machine {machine}"), |(_, name)| (*name).to_owned())
}

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
    /// The kind of a file that cannot be a kernel unless it has a PVH note or a multiboot header. `None` if the file may be one without them.
    pub stranger: Option<Kind>,
}

/// Facts that the notes of a file contain.
#[derive(Default)]
struct Notes {
    pvh_entry: Option<u64>,
    /// True if the file is a program for Linux.
    program: bool,
    /// True if the file is a kernel or a program of a BSD.
    bsd: bool,
    /// True if the file is a kernel other than Linux for paravirtualized guests of Xen.
    xen_guest: bool,
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
    if image.u8(5, HEADER)? == elf::ELFDATA2MSB.0 {
        let [high, low] = image.u16(MACHINE_AT, HEADER)?.to_le_bytes();
        return Err(LoadError::WrongMachine(u16::from_be_bytes([high, low])));
    }
    let header = H::parse(image.0).ok().filter(|header| header.is_little_endian());
    let header = header.ok_or(LoadError::Malformed("the ELF file has an unknown byte order or version"))?;
    if header.e_machine(LITTLE) != machine {
        return Err(LoadError::WrongMachine(header.e_machine(LITTLE).0));
    }
    match header.e_type(LITTLE) {
        elf::ET_EXEC | elf::ET_DYN => {}
        elf::ET_REL => return Err(LoadError::NotAKernel(kind::OBJECT)),
        elf::ET_CORE => return Err(LoadError::NotAKernel(kind::CORE)),
        _ => return Err(LoadError::Malformed("the ELF file is not an executable")),
    }
    let table = u64::from(header.e_phentsize(LITTLE)) * u64::from(header.e_phnum(LITTLE));
    if table != 0 {
        image.slice(header.e_phoff(LITTLE).into(), table, "ELF program header")?;
    }
    let programs = header.program_headers(LITTLE, image.0);
    let programs = programs.map_err(|_| LoadError::Malformed("the ELF program headers have an unknown size"))?;
    let entry = header.e_entry(LITTLE).into();
    let mut file = Elf { wide: header.is_type_64(), entry, segments: Vec::new(), pvh_entry: None, stranger: None };
    let mut notes = Notes::default();
    let mut library = false;
    for program in programs {
        match program.p_type(LITTLE) {
            elf::PT_LOAD => file.segments.extend(segment(image, program)?),
            elf::PT_NOTE => read_notes(image, program, &mut notes)?,
            elf::PT_INTERP => match program.interpreter(LITTLE, image.0) {
                Ok(Some(FREEBSD_KERNEL)) => notes.bsd = true,
                _ => notes.program = true,
            },
            elf::PT_TLS => notes.program = true,
            elf::PT_DYNAMIC => library = true,
            _ => {}
        }
    }
    read_note_sections(image, header, &mut notes);
    file.pvh_entry = notes.pvh_entry;
    let kinds = [
        (notes.bsd, kind::BSD),
        (notes.xen_guest, kind::XEN_GUEST),
        (notes.program, kind::PROGRAM),
        (library, kind::LIBRARY),
    ];
    file.stranger = kinds.into_iter().find_map(|(is, kind)| is.then_some(kind));
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

/// Reads the notes of a segment.
fn read_notes<P: ProgramHeader<Endian = LittleEndian>>(
    image: Image,
    program: &P,
    found: &mut Notes,
) -> Result<(), LoadError> {
    image.slice(program.p_offset(LITTLE).into(), program.p_filesz(LITTLE).into(), NOTE)?;
    // A kernel's notes have a known alignment.
    let Ok(Some(mut notes)) = program.notes(LITTLE, image.0) else { return Ok(()) };
    loop {
        match notes.next() {
            Ok(Some(note)) if is_padding(note.name(), note.n_type(LITTLE).0, note.desc()) => return Ok(()),
            Ok(Some(note)) => read_note(note.name(), note.n_type(LITTLE).0, note.desc(), found)?,
            // Notes after the one with the entry point do not change how the kernel starts, so an error in them does no harm.
            Err(_) if found.pvh_entry.is_none() => {
                return Err(LoadError::Malformed("an ELF note is longer than its segment"));
            }
            Ok(None) | Err(_) => return Ok(()),
        }
    }
}

/// Says whether this note is the zeros with which linkers fill a segment of notes up to a page.
fn is_padding(owner: &[u8], kind: u32, value: &[u8]) -> bool {
    owner.is_empty() && kind == 0 && value.is_empty()
}

/// Reads the notes in sections: kernels for Xen without a segment of notes have them there. Sections are not needed to load a file, so
/// sections and notes that cannot be read are ignored.
fn read_note_sections<H: FileHeader<Endian = LittleEndian>>(image: Image, header: &H, found: &mut Notes) {
    let Ok(sections) = header.section_headers(LITTLE, image.0) else { return };
    for section in sections.iter().take(MOST_SECTIONS) {
        let Ok(Some(mut notes)) = section.notes(LITTLE, image.0) else { continue };
        let mut seen = Notes::default();
        for _ in 0..MOST_NOTES {
            let Ok(Some(note)) = notes.next() else { break };
            if read_note(note.name(), note.n_type(LITTLE).0, note.desc(), &mut seen).is_err() {
                break;
            }
        }
        found.pvh_entry = found.pvh_entry.or(seen.pvh_entry);
        found.xen_guest |= seen.xen_guest;
        found.bsd |= seen.bsd;
    }
}

fn read_note(owner: &[u8], kind: u32, value: &[u8], found: &mut Notes) -> Result<(), LoadError> {
    match (owner, kind) {
        (b"Xen", XEN_ELFNOTE_PHYS32_ENTRY) => {
            let value = Image(value);
            let entry = if value.len() >= 8 { value.u64(0, NOTE)? } else { u64::from(value.u32(0, NOTE)?) };
            found.pvh_entry = found.pvh_entry.or(Some(entry));
        }
        (b"Xen", XEN_ELFNOTE_GUEST_OS) => found.xen_guest |= !value.starts_with(b"linux"),
        (b"GNU", GNU_ABI_TAG) | (b"Go", GO_BUILD_ID) => found.program = true,
        (b"FreeBSD" | b"NetBSD" | b"OpenBSD", _) => found.bsd = true,
        _ => {}
    }
    Ok(())
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

    /// Returns the physical entry point of a file whose header may contain a virtual address. Multiboot kernels that are linked for the
    /// upper half of the address space have such a header.
    ///
    /// QEMU and GRUB take the address in the header as a virtual address in a segment of code, and so does this function. If no segment of
    /// code contains it as a virtual address, it is a physical address within any segment, or else a virtual address in a segment of data.
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
