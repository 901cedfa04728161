//! Multiboot 1 images (the Multiboot Specification, version 0.6.96).

use super::bytes::{Image, put};
use super::elf::Elf;
use super::entry::{Entry, protected32};
use super::realmode;
use super::space::Space;
use super::{LoadError, Options};
use crate::memory::layout;

const HEADER_MAGIC: u32 = 0x1bad_b002;
const BOOT_MAGIC: u32 = 0x2bad_b002;
/// The header lies in the first 8 KiB of the file.
const SEARCH: usize = 8192;
const LOADER_NAME: &[u8] = b"tollgate\0";

/// Header flags: modules on page boundaries, memory information (both always given), addresses in the header.
const FLAG_PAGE_ALIGN: u32 = 1;
const FLAG_MEMORY_INFO: u32 = 2;
const FLAG_ADDRESSES: u32 = 1 << 16;
/// Flags that a loader must refuse when it doesn't know them.
const MANDATORY: u32 = 0xffff;

/// Flags of the information structure: memory sizes, command line, modules, memory map, loader name.
const INFO_FLAGS: u32 = 1 | 1 << 2 | 1 << 3 | 1 << 6 | 1 << 9;
const INFO_LEN: usize = 88;
const MODULE_LEN: usize = 16;
const MEMORY_ENTRY_LEN: usize = 24;

/// A header whose checksum is right.
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

/// Finds the header. A wrong checksum is an error only if no other place has a right one.
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
        } else if flags & MANDATORY & !(FLAG_PAGE_ALIGN | FLAG_MEMORY_INFO) != 0 {
            return Err(LoadError::MultibootFlags(flags));
        } else {
            return Ok(Some(Header { offset, flags }));
        }
    }
    broken.map_or(Ok(None), |offset| Err(LoadError::MultibootChecksum(offset)))
}

pub(super) fn load_elf(space: &mut Space, file: &Elf, options: &Options) -> Result<Entry, LoadError> {
    file.place(space)?;
    start(space, file.entry32()?, options)
}

/// Loads an image that gives its addresses in the header.
pub(super) fn load_flat(
    space: &mut Space,
    image: Image,
    header: Header,
    options: &Options,
) -> Result<Entry, LoadError> {
    const WHAT: &str = "multiboot header";
    if !header.has_addresses() {
        return Err(LoadError::Malformed("the multiboot header has no addresses, and the file is not ELF"));
    }
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

/// Places the module and the information structure.
fn start(space: &mut Space, entry: u32, options: &Options) -> Result<Entry, LoadError> {
    realmode::install(space)?;
    let module = match options.initrd {
        Some(initrd) => {
            let len = initrd.len() as u64;
            let window = layout::LEGACY_END..space.ram.low_end();
            let at = space.lowest_pages(len, window).ok_or(LoadError::InitrdTooBig { len })?;
            space.fill(at, initrd, "module")?;
            Some((at as u32, (at + len) as u32))
        }
        None => None,
    };

    // The first word of the command line is the image's name, as kernels that parse it like `argv` expect.
    let cmdline = format!("{}\0", [options.name, options.cmdline].join(" ").trim());
    let module_name = format!("{}\0", options.initrd_name);
    let map = space.ram.e820();
    let module_at = INFO_LEN;
    let map_at = module_at + MODULE_LEN;
    let cmdline_at = map_at + MEMORY_ENTRY_LEN * map.len();
    let module_name_at = cmdline_at + cmdline.len();
    let loader_name_at = module_name_at + module_name.len();
    let mut block = vec![0; loader_name_at + LOADER_NAME.len()];
    let base = space.low(block.len() as u64, 16)?;
    let address = |offset: usize| (base as u32 + offset as u32).to_le_bytes();

    let upper_kib = ((space.ram.low_end() - layout::LEGACY_END) >> 10) as u32;
    put(&mut block, 0, &INFO_FLAGS.to_le_bytes());
    put(&mut block, 4, &((layout::CONVENTIONAL_END >> 10) as u32).to_le_bytes());
    put(&mut block, 8, &upper_kib.to_le_bytes());
    put(&mut block, 16, &address(cmdline_at));
    put(&mut block, 20, &u32::from(module.is_some()).to_le_bytes());
    put(&mut block, 24, &address(module_at));
    put(&mut block, 44, &((MEMORY_ENTRY_LEN * map.len()) as u32).to_le_bytes());
    put(&mut block, 48, &address(map_at));
    put(&mut block, 64, &address(loader_name_at));
    if let Some((start, end)) = module {
        put(&mut block, module_at, &start.to_le_bytes());
        put(&mut block, module_at + 4, &end.to_le_bytes());
        put(&mut block, module_at + 8, &address(module_name_at));
    }
    for (index, entry) in map.iter().enumerate() {
        let slot = map_at + MEMORY_ENTRY_LEN * index;
        // The size field does not count itself.
        put(&mut block, slot, &(MEMORY_ENTRY_LEN as u32 - 4).to_le_bytes());
        put(&mut block, slot + 4, &entry.start.to_le_bytes());
        put(&mut block, slot + 12, &entry.len.to_le_bytes());
        put(&mut block, slot + 20, &(entry.kind as u32).to_le_bytes());
    }
    put(&mut block, cmdline_at, cmdline.as_bytes());
    put(&mut block, module_name_at, module_name.as_bytes());
    put(&mut block, loader_name_at, LOADER_NAME);
    space.fill(base, &block, "multiboot information")?;
    let entry = protected32(space, entry)?;
    Ok(Entry { rax: u64::from(BOOT_MAGIC), rbx: base, ..entry })
}
