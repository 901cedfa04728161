//! Multiboot 1 images (the Multiboot Specification, version 0.6.96), and the header of version 2, whose images are refused.

use super::bytes::{Image, put};
use super::elf::Elf;
use super::entry::{Entry, protected32};
use super::space::LoadSpace;
use super::{LoadError, Options};
use crate::memory::layout;

const HEADER_MAGIC: u32 = 0x1bad_b002;
const BOOT_MAGIC: u32 = 0x2bad_b002;
/// The header is in the first 8 KiB of the file.
const SEARCH: usize = 8192;
/// Version 2: the first 32 KiB, magic, and alignment of the header.
const SEARCH_2: usize = 32768;
const HEADER_MAGIC_2: u32 = 0xe852_50d6;
const ALIGNMENT_2: usize = 8;
const LOADER_NAME: &str = "tollgate";

/// Header flags: modules on page boundaries, memory information (both always provided), a preferred video mode, addresses in
/// the header.
const FLAG_PAGE_ALIGN: u32 = 1;
const FLAG_MEMORY_INFO: u32 = 2;
const FLAG_VIDEO: u32 = 4;
const FLAG_ADDRESSES: u32 = 1 << 16;
/// Flags that a loader must refuse if it doesn't know them.
const MANDATORY: u32 = 0xffff;
/// Known flags. The machine has no display; as in QEMU, an image that prefers a video mode boots without one, and finds no video
/// information in its flags.
const KNOWN: u32 = FLAG_PAGE_ALIGN | FLAG_MEMORY_INFO | FLAG_VIDEO;

/// Flags of the information structure: memory sizes, command line, modules, memory map, loader name.
const INFO_FLAGS: u32 = 1 | 1 << 2 | 1 << 3 | 1 << 6 | 1 << 9;
const INFO_LEN: usize = 88;
const MODULE_LEN: usize = 16;
const MEMORY_ENTRY_LEN: usize = 24;

/// A header with a correct checksum.
#[derive(Clone, Copy)]
pub(super) struct Header {
    offset: u64,
    flags: u32,
}

impl Header {
    pub fn has_addresses(&self) -> bool {
        self.flags & FLAG_ADDRESSES != 0
    }
}

/// Finds the header. A wrong checksum is an error only if there is no other header with a correct one.
pub(super) fn find(image: &Image) -> Result<Option<Header>, LoadError> {
    let mut broken = None;
    for (index, words) in image.0[..image.0.len().min(SEARCH)].chunks_exact(4).enumerate() {
        if words != HEADER_MAGIC.to_le_bytes() {
            continue;
        }
        let offset = 4 * index as u64;
        let flags = image.u32(offset + 4, "multiboot header")?;
        let checksum = image.u32(offset + 8, "multiboot header")?;
        if HEADER_MAGIC.wrapping_add(flags).wrapping_add(checksum) != 0 {
            broken = broken.or(Some(4 * index));
        } else if flags & MANDATORY & !KNOWN != 0 {
            return Err(LoadError::MultibootFlags(flags));
        } else {
            return Ok(Some(Header { offset, flags }));
        }
    }
    broken.map_or(Ok(None), |offset| Err(LoadError::MultibootChecksum(offset)))
}

/// Returns true if the image has a header of version 2.
pub(super) fn is_version_2(image: &Image) -> bool {
    let head = &image.0[..image.0.len().min(SEARCH_2)];
    (0..head.len()).step_by(ALIGNMENT_2).any(|at| {
        let word = |index: usize| {
            head[at..].get(4 * index..4 * index + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        };
        // Magic, architecture, length and checksum add up to zero.
        let words = [word(0), word(1), word(2), word(3)];
        words[0] == Some(HEADER_MAGIC_2)
            && words.into_iter().try_fold(0u32, |sum, word| Some(sum.wrapping_add(word?))) == Some(0)
    })
}

pub(super) fn load_elf(space: &mut LoadSpace, file: &Elf, options: &Options) -> Result<Entry, LoadError> {
    file.place(space)?;
    start(space, file.translated_entry()?, options)
}

/// Loads an image with addresses in its header.
pub(super) fn load_flat(
    space: &mut LoadSpace,
    image: Image,
    header: Header,
    options: &Options,
) -> Result<Entry, LoadError> {
    const WHAT: &str = "multiboot header";
    let field = |index: u64| image.u32(header.offset + 12 + 4 * index, WHAT).map(u64::from);
    let (header_address, load, load_end, bss_end, entry) = (field(0)?, field(1)?, field(2)?, field(3)?, field(4)?);
    let malformed = LoadError::Malformed("the addresses in the multiboot header contradict each other");
    let Some(offset) = header_address.checked_sub(load).and_then(|n| header.offset.checked_sub(n)) else {
        return Err(malformed);
    };
    let len = match load_end {
        0 => image.len() - offset,
        _ if load_end <= load => return Err(malformed),
        _ => load_end - load,
    };
    let memory_len = match bss_end {
        0 => len,
        _ if bss_end < load + len => return Err(malformed),
        _ => bss_end - load,
    };
    let data = image.slice(offset, len, "multiboot image")?;
    space.claim(load, memory_len, "multiboot image")?;
    space.fill(load, data, "multiboot image")?;
    if entry.wrapping_sub(load) >= memory_len {
        return Err(LoadError::EntryOutside(entry));
    }
    start(space, entry as u32, options)
}

/// Strings at the end of the information structure.
struct Texts {
    /// Offset of the next string.
    at: usize,
    bytes: Vec<u8>,
}

impl Texts {
    /// Appends a string and returns its offset.
    fn add(&mut self, text: &str) -> usize {
        let at = self.at;
        self.bytes.extend(text.as_bytes());
        self.bytes.push(0);
        self.at += text.len() + 1;
        at
    }
}

/// Places the modules and the information structure.
fn start(space: &mut LoadSpace, entry: u32, options: &Options) -> Result<Entry, LoadError> {
    let window = layout::LEGACY_END..space.ram.low_end();
    let mut modules = Vec::new();
    for module in options.modules {
        let len = module.bytes.len() as u64;
        let at = space.lowest_pages(len, window.clone()).ok_or(LoadError::InitrdTooBig { len })?;
        space.fill(at, &module.bytes, "module")?;
        modules.push((at as u32, (at + len) as u32));
    }

    // The first word of a command line is the file name, as expected by kernels that parse it like `argv`.
    let cmdline = [options.name, options.cmdline].join(" ");
    let map = space.ram.e820();
    let modules_at = INFO_LEN;
    let map_at = modules_at + MODULE_LEN * modules.len();
    let mut texts = Texts { at: map_at + MEMORY_ENTRY_LEN * map.len(), bytes: Vec::new() };
    let cmdline_at = texts.add(cmdline.trim());
    let module_texts: Vec<usize> = options.modules.iter().map(|module| texts.add(&module.cmdline)).collect();
    let loader_name_at = texts.add(LOADER_NAME);
    let mut block = vec![0; texts.at];
    let base = space.low(block.len() as u64, 16)?;
    let address = |offset: usize| (base as u32 + offset as u32).to_le_bytes();

    let upper_kib = ((space.ram.low_end() - layout::LEGACY_END) >> 10) as u32;
    put(&mut block, 0, &INFO_FLAGS.to_le_bytes());
    put(&mut block, 4, &((layout::CONVENTIONAL_END >> 10) as u32).to_le_bytes());
    put(&mut block, 8, &upper_kib.to_le_bytes());
    put(&mut block, 16, &address(cmdline_at));
    put(&mut block, 20, &(modules.len() as u32).to_le_bytes());
    put(&mut block, 24, &address(modules_at));
    put(&mut block, 44, &((MEMORY_ENTRY_LEN * map.len()) as u32).to_le_bytes());
    put(&mut block, 48, &address(map_at));
    put(&mut block, 64, &address(loader_name_at));
    for (index, ((start, end), text)) in modules.into_iter().zip(module_texts).enumerate() {
        let slot = modules_at + MODULE_LEN * index;
        put(&mut block, slot, &start.to_le_bytes());
        put(&mut block, slot + 4, &end.to_le_bytes());
        put(&mut block, slot + 8, &address(text));
    }
    for (index, entry) in map.iter().enumerate() {
        let slot = map_at + MEMORY_ENTRY_LEN * index;
        // The size field does not include itself.
        put(&mut block, slot, &(MEMORY_ENTRY_LEN as u32 - 4).to_le_bytes());
        put(&mut block, slot + 4, &entry.start.to_le_bytes());
        put(&mut block, slot + 12, &entry.len.to_le_bytes());
        put(&mut block, slot + 20, &(entry.kind as u32).to_le_bytes());
    }
    put(&mut block, cmdline_at, &texts.bytes);
    space.fill(base, &block, "multiboot information")?;
    let entry = protected32(space, entry)?;
    Ok(Entry { rax: u64::from(BOOT_MAGIC), rbx: base, ..entry })
}
