//! Linux boot protocol (Documentation/arch/x86/boot.rst): bzImage, and `vmlinux` without a PVH entry.

use super::bytes::{Image, put};
use super::elf::Elf;
use super::entry::{Entry, long64, protected32};
use super::space::LoadSpace;
use super::{LoadError, Module, Options, kind};
use crate::memory::layout;

/// Offsets in the zero page (`struct boot_params`). The setup header has the same offsets in the file.
mod at {
    pub const ACPI_RSDP_ADDR: usize = 0x070;
    pub const EXT_RAMDISK_IMAGE: usize = 0x0c0;
    pub const EXT_RAMDISK_SIZE: usize = 0x0c4;
    pub const E820_ENTRIES: usize = 0x1e8;
    pub const SETUP_HEADER: usize = 0x1f1;
    pub const SYSSIZE: usize = 0x1f4;
    pub const VID_MODE: usize = 0x1fa;
    pub const BOOT_FLAG: usize = 0x1fe;
    pub const JUMP_LENGTH: usize = 0x201;
    pub const HEADER: usize = 0x202;
    pub const VERSION: usize = 0x206;
    /// Address of the version string, from the second sector on.
    pub const KERNEL_VERSION: usize = 0x20e;
    pub const TYPE_OF_LOADER: usize = 0x210;
    pub const LOADFLAGS: usize = 0x211;
    pub const CODE32_START: usize = 0x214;
    pub const RAMDISK_IMAGE: usize = 0x218;
    pub const RAMDISK_SIZE: usize = 0x21c;
    pub const CMD_LINE_PTR: usize = 0x228;
    pub const INITRD_ADDR_MAX: usize = 0x22c;
    pub const KERNEL_ALIGNMENT: usize = 0x230;
    pub const RELOCATABLE_KERNEL: usize = 0x234;
    pub const XLOADFLAGS: usize = 0x236;
    pub const CMDLINE_SIZE: usize = 0x238;
    pub const PREF_ADDRESS: usize = 0x258;
    pub const INIT_SIZE: usize = 0x260;
    /// Maximum end of a setup header.
    pub const SETUP_HEADER_LIMIT: usize = 0x290;
    pub const E820_TABLE: usize = 0x2d0;
}

const ZERO_PAGE_LEN: usize = 4096;
const BOOT_FLAG: u16 = 0xaa55;
const HEADER: &[u8; 4] = b"HdrS";
const LOADED_HIGH: u8 = 1;
const XLF_KERNEL_64: u16 = 1;
const XLF_CAN_BE_LOADED_ABOVE_4G: u16 = 2;
const LOADER_UNDEFINED: u8 = 0xff;
const VIDEO_NORMAL: u16 = 0xffff;
/// The first protocol with a command line anywhere in low memory, and the protocols that added fields.
const OLDEST: u16 = 0x0202;
const PROTOCOL_INITRD_MAX: u16 = 0x0203;
const PROTOCOL_SYSSIZE: u16 = 0x0204;
const PROTOCOL_RELOCATABLE: u16 = 0x0205;
const PROTOCOL_CMDLINE_SIZE: u16 = 0x0206;
const PROTOCOL_PREF_ADDRESS: u16 = 0x020a;
const PROTOCOL_XLOADFLAGS: u16 = 0x020c;
/// Maximum command line of kernels that do not state one.
const OLD_CMDLINE_MAX: u32 = 255;
const OLD_INITRD_MAX: u32 = 0x37ff_ffff;
/// Protocol version for a `vmlinux`, which has no header.
const CURRENT: u16 = 0x020f;
const SECTOR: u64 = 512;
/// Unit of `syssize`.
const PARAGRAPH: u64 = 16;
/// Offset of the 64-bit entry point from the start of the protected-mode kernel.
const ENTRY64: u64 = 0x200;
const SETUP: &str = "setup header";

pub(super) fn is_bzimage(image: &Image) -> bool {
    image.0.get(at::HEADER..at::HEADER + 4) == Some(HEADER)
}

/// Ends of the setup header by protocol version, for the fields that are read here.
const HEADER_ENDS: [(u16, usize); 5] = [
    (OLDEST, at::CMD_LINE_PTR + 4),
    (PROTOCOL_INITRD_MAX, at::INITRD_ADDR_MAX + 4),
    (PROTOCOL_RELOCATABLE, at::RELOCATABLE_KERNEL + 1),
    (PROTOCOL_CMDLINE_SIZE, at::CMDLINE_SIZE + 4),
    (PROTOCOL_PREF_ADDRESS, at::INIT_SIZE + 4),
];

/// The fields of the setup header that affect loading; fields that an old protocol lacks have their historical values.
struct Setup<'a> {
    /// Bytes that are copied to the zero page.
    header: &'a [u8],
    /// The protected-mode kernel.
    payload: &'a [u8],
    /// Number of bytes that the kernel needs at its load address until it knows the memory map.
    init_size: u64,
    preferred: u64,
    /// Alignment of a relocatable kernel.
    alignment: Option<u64>,
    xloadflags: u16,
    cmdline_max: usize,
    /// End of the memory in which the initrd may be.
    initrd_end: u64,
}

fn setup<'a>(image: &Image<'a>) -> Result<Setup<'a>, LoadError> {
    let u8 = |offset| image.u8(offset as u64, SETUP);
    let u16 = |offset| image.u16(offset as u64, SETUP);
    let u32 = |offset| image.u32(offset as u64, SETUP);

    if u16(at::BOOT_FLAG)? != BOOT_FLAG {
        return Err(LoadError::Malformed("the boot sector has no 0xaa55 signature"));
    }
    let version = u16(at::VERSION)?;
    if version < OLDEST {
        let [minor, major] = version.to_le_bytes();
        return Err(LoadError::OldProtocol { major, minor });
    }
    if u8(at::LOADFLAGS)? & LOADED_HIGH == 0 {
        return Err(LoadError::Malformed("a zImage, which loads below 1 MiB, cannot be booted"));
    }
    if is_bios_disk_loader(image, u16(at::KERNEL_VERSION)?) {
        return Err(LoadError::NotAKernel(kind::BIOS_DISK_LOADER));
    }
    if u32(at::CODE32_START)? == 0 {
        return Err(LoadError::RealMode);
    }
    let least = HEADER_ENDS.iter().rfind(|(since, _)| version >= *since).map_or(0, |(_, end)| *end);
    let header_end = at::HEADER + usize::from(u8(at::JUMP_LENGTH)?);
    if !(least..=at::SETUP_HEADER_LIMIT).contains(&header_end) {
        return Err(LoadError::Malformed("the setup header has an impossible length"));
    }
    let setup_sectors = match u8(at::SETUP_HEADER)? {
        0 => 4,
        n => u64::from(n),
    };
    let payload = payload(image, (setup_sectors + 1) * SECTOR, version)?;
    let since = |protocol, field, before| if version >= protocol { u32(field) } else { Ok(before) };
    let relocatable = version >= PROTOCOL_RELOCATABLE && u8(at::RELOCATABLE_KERNEL)? != 0;
    let preferred = match version >= PROTOCOL_PREF_ADDRESS {
        true => image.u64(at::PREF_ADDRESS as u64, SETUP)?,
        false => layout::LEGACY_END,
    };
    Ok(Setup {
        header: image.slice(at::SETUP_HEADER as u64, (header_end - at::SETUP_HEADER) as u64, SETUP)?,
        payload,
        init_size: u64::from(since(PROTOCOL_PREF_ADDRESS, at::INIT_SIZE, 0)?),
        preferred,
        // Kernels from before the preferred address aligned themselves after they had been loaded at 1 MiB.
        alignment: match relocatable && version >= PROTOCOL_PREF_ADDRESS {
            true => Some(u64::from(u32(at::KERNEL_ALIGNMENT)?)),
            false => None,
        },
        xloadflags: if version >= PROTOCOL_XLOADFLAGS { u16(at::XLOADFLAGS)? } else { 0 },
        cmdline_max: since(PROTOCOL_CMDLINE_SIZE, at::CMDLINE_SIZE, OLD_CMDLINE_MAX)?.min(u32::from(u16::MAX)) as usize,
        initrd_end: u64::from(since(PROTOCOL_INITRD_MAX, at::INITRD_ADDR_MAX, OLD_INITRD_MAX)?) + 1,
    })
}

/// Returns true for an image whose version string is that of MEMDISK. Its 32-bit part relies on the real-mode part, which is not executed.
fn is_bios_disk_loader(image: &Image, version: u16) -> bool {
    const NAME: &[u8] = b"MEMDISK ";
    version != 0 && image.slice(u64::from(version) + SECTOR, NAME.len() as u64, SETUP).is_ok_and(|name| name == NAME)
}

/// Returns the protected-mode kernel, as far as it is in the file.
fn payload<'a>(image: &Image<'a>, start: u64, version: u16) -> Result<&'a [u8], LoadError> {
    const WHAT: &str = "protected-mode kernel";
    let len = match version >= PROTOCOL_SYSSIZE {
        true => u64::from(image.u32(at::SYSSIZE as u64, SETUP)?) * PARAGRAPH,
        false => image.len().saturating_sub(start),
    };
    if len <= ENTRY64 {
        return Err(LoadError::Malformed("the protected-mode kernel is empty"));
    }
    // The size is rounded up to paragraphs; the file need not be padded.
    let missing = start.saturating_add(len).saturating_sub(image.len());
    image.slice(start, if missing < PARAGRAPH { len - missing } else { len }, WHAT)
}

/// Allocates memory for the kernel and returns its start.
///
/// A relocatable kernel that is loaded below its preferred address moves itself up to that address, which is therefore
/// the lowest one used.
fn claim(space: &mut LoadSpace, setup: &Setup) -> Result<u64, LoadError> {
    const WHAT: &str = "kernel";
    const END: u64 = 1 << 32;
    let len = setup.init_size.max(setup.payload.len() as u64);
    let start = match setup.alignment {
        None if setup.preferred < layout::LEGACY_END => {
            return Err(LoadError::Malformed("the kernel wants to be loaded below 1 MiB"));
        }
        None => Some(setup.preferred),
        Some(alignment) if !alignment.is_power_of_two() => {
            return Err(LoadError::Malformed("the kernel's alignment is not a power of two"));
        }
        Some(alignment) => setup.preferred.max(layout::LEGACY_END).checked_next_multiple_of(alignment),
    };
    let outside = LoadError::Outside { what: WHAT, start: start.unwrap_or(u64::MAX), end: u64::MAX };
    let Some((start, end)) = start.and_then(|start| Some((start, start.checked_add(len)?))) else {
        return Err(outside);
    };
    if end > space.ram.low_end() && end <= layout::LOW_RAM_END {
        let relocatable = setup.alignment.is_some();
        return Err(LoadError::KernelMemory { start, end, ram: space.ram.low_end(), relocatable });
    }
    match setup.alignment {
        Some(alignment) => {
            space.lowest(len, alignment, start..END).ok_or(LoadError::Outside { what: WHAT, start, end })
        }
        None => space.claim(start, len, WHAT).map(|()| start),
    }
}

/// Returns the largest length of a command line for a bzImage.
pub(super) fn longest_command_line(image: &Image) -> Option<usize> {
    if is_bzimage(image) { Some(setup(image).ok()?.cmdline_max) } else { None }
}

pub(super) fn load_bzimage(space: &mut LoadSpace, image: Image, options: &Options) -> Result<Entry, LoadError> {
    let setup = setup(&image)?;
    if options.cmdline.len() > setup.cmdline_max {
        return Err(LoadError::CommandLineTooLong { len: options.cmdline.len(), max: setup.cmdline_max });
    }
    let load = claim(space, &setup)?;
    let start = u32::try_from(load).map_err(|_| LoadError::Malformed("the kernel wants to be loaded above 4 GiB"))?;
    space.fill(load, setup.payload, "kernel")?;

    let mut zero_page = zero_page(space, options)?;
    // The copied header overwrites fields that `zero_page` has set, so the loader's fields come last.
    put(&mut zero_page, at::SETUP_HEADER, setup.header);
    put(&mut zero_page, at::CODE32_START, &start.to_le_bytes());
    let low_limit = setup.initrd_end.min(space.ram.low_end());
    let anywhere = setup.xloadflags & XLF_CAN_BE_LOADED_ABOVE_4G != 0;
    let rsi = finish(space, zero_page, low_limit, anywhere, options)?;
    let entry =
        if setup.xloadflags & XLF_KERNEL_64 != 0 { long64(space, load + ENTRY64)? } else { protected32(space, start)? };
    Ok(Entry { rsi, ..entry })
}

pub(super) fn load_vmlinux(space: &mut LoadSpace, file: &Elf, options: &Options) -> Result<Entry, LoadError> {
    const ALIGNMENT: u32 = 0x100_0000;
    file.place(space)?;
    // The identity map of the entry state ends at 4 GiB.
    let rip = u64::from(file.header_entry()?);
    let mut zero_page = zero_page(space, options)?;
    put(&mut zero_page, at::BOOT_FLAG, &BOOT_FLAG.to_le_bytes());
    put(&mut zero_page, at::HEADER, HEADER);
    put(&mut zero_page, at::VERSION, &CURRENT.to_le_bytes());
    put(&mut zero_page, at::LOADFLAGS, &[LOADED_HIGH]);
    put(&mut zero_page, at::KERNEL_ALIGNMENT, &ALIGNMENT.to_le_bytes());
    let rsi = finish(space, zero_page, space.ram.low_end(), true, options)?;
    Ok(Entry { rsi, ..long64(space, rip)? })
}

/// Returns the zero page without the setup header.
fn zero_page(space: &LoadSpace, options: &Options) -> Result<Vec<u8>, LoadError> {
    let mut page = vec![0; ZERO_PAGE_LEN];
    put(&mut page, at::ACPI_RSDP_ADDR, &options.rsdp.unwrap_or(0).to_le_bytes());
    let map = space.ram.e820();
    page[at::E820_ENTRIES] = map.len() as u8;
    for (index, entry) in map.iter().enumerate() {
        let slot = at::E820_TABLE + 20 * index;
        put(&mut page, slot, &entry.start.to_le_bytes());
        put(&mut page, slot + 8, &entry.len.to_le_bytes());
        put(&mut page, slot + 16, &(entry.kind as u32).to_le_bytes());
    }
    Ok(page)
}

/// Sets the loader's fields of the setup header, and places command line, initrd and zero page. Returns the address of
/// the zero page.
fn finish(
    space: &mut LoadSpace,
    mut page: Vec<u8>,
    initrd_limit: u64,
    initrd_anywhere: bool,
    options: &Options,
) -> Result<u64, LoadError> {
    if options.modules.len() > 1 {
        return Err(LoadError::OneInitrd(options.modules.len()));
    }
    put(&mut page, at::TYPE_OF_LOADER, &[LOADER_UNDEFINED]);
    put(&mut page, at::VID_MODE, &VIDEO_NORMAL.to_le_bytes());
    let mut cmdline = options.cmdline.as_bytes().to_vec();
    cmdline.push(0);
    let cmdline = space.place_low(&cmdline, 16)?;
    put(&mut page, at::CMD_LINE_PTR, &(cmdline as u32).to_le_bytes());
    let (mut start, mut len) = (0, 0);
    if let [Module { bytes: initrd, .. }] = options.modules {
        len = initrd.len() as u64;
        start = match space.initrd_high(initrd, initrd_limit) {
            Err(LoadError::InitrdTooBig { .. }) if initrd_anywhere => space.initrd_high(initrd, u64::MAX)?,
            placed => placed?,
        };
    }
    put(&mut page, at::RAMDISK_IMAGE, &(start as u32).to_le_bytes());
    put(&mut page, at::RAMDISK_SIZE, &(len as u32).to_le_bytes());
    put(&mut page, at::EXT_RAMDISK_IMAGE, &((start >> 32) as u32).to_le_bytes());
    put(&mut page, at::EXT_RAMDISK_SIZE, &((len >> 32) as u32).to_le_bytes());
    space.place_low(&page, 4096)
}
