//! Linux by its own boot protocol (Documentation/arch/x86/boot.rst): bzImage, and `vmlinux` without a PVH entry.

use super::bytes::{Image, put};
use super::elf::Elf;
use super::entry::{Entry, long64, protected32};
use super::space::Space;
use super::{LoadError, Options};
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
    pub const TYPE_OF_LOADER: usize = 0x210;
    pub const LOADFLAGS: usize = 0x211;
    pub const CODE32_START: usize = 0x214;
    pub const RAMDISK_IMAGE: usize = 0x218;
    pub const RAMDISK_SIZE: usize = 0x21c;
    pub const CMD_LINE_PTR: usize = 0x228;
    pub const INITRD_ADDR_MAX: usize = 0x22c;
    pub const KERNEL_ALIGNMENT: usize = 0x230;
    pub const XLOADFLAGS: usize = 0x236;
    pub const CMDLINE_SIZE: usize = 0x238;
    pub const PREF_ADDRESS: usize = 0x258;
    pub const INIT_SIZE: usize = 0x260;
    /// End of what a setup header may occupy.
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
const OLDEST: u16 = 0x020a;
/// Protocol stated to a `vmlinux`, which has no header of its own.
const CURRENT: u16 = 0x020f;
/// The 64-bit entry point, from the start of the protected-mode kernel.
const ENTRY64: u64 = 0x200;
const SETUP: &str = "setup header";

pub(super) fn is_bzimage(image: &Image) -> bool {
    image.0.get(at::HEADER..at::HEADER + 4) == Some(HEADER)
}

pub(super) fn load_bzimage(space: &mut Space, image: Image, options: &Options) -> Result<Entry, LoadError> {
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
    let header_end = at::HEADER + usize::from(u8(at::JUMP_LENGTH)?);
    if !(at::INIT_SIZE + 4..=at::SETUP_HEADER_LIMIT).contains(&header_end) {
        return Err(LoadError::Malformed("the setup header has an impossible length"));
    }
    let header = image.slice(at::SETUP_HEADER as u64, (header_end - at::SETUP_HEADER) as u64, SETUP)?;

    let setup_sectors = match u8(at::SETUP_HEADER)? {
        0 => 4,
        n => u64::from(n),
    };
    let payload_len = u64::from(u32(at::SYSSIZE)?) * 16;
    let payload = image.slice((setup_sectors + 1) * 512, payload_len, "protected-mode kernel")?;
    if payload_len <= ENTRY64 {
        return Err(LoadError::Malformed("the protected-mode kernel is empty"));
    }

    let max = u32(at::CMDLINE_SIZE)?.min(u32::from(u16::MAX)) as usize;
    if options.cmdline.len() > max {
        return Err(LoadError::CommandLineTooLong { len: options.cmdline.len(), max });
    }

    let load = image.u64(at::PREF_ADDRESS as u64, SETUP)?;
    if load < layout::LEGACY_END {
        return Err(LoadError::Malformed("the kernel wants to be loaded below 1 MiB"));
    }
    let room = payload_len.max(u64::from(u32(at::INIT_SIZE)?));
    space.claim(load, room, "kernel")?;
    space.fill(load, payload, "kernel")?;

    let xloadflags = u16(at::XLOADFLAGS)?;
    let start = u32::try_from(load).map_err(|_| LoadError::Malformed("the kernel wants to be loaded above 4 GiB"))?;
    let mut zero_page = zero_page(space, options)?;
    // The copied header overwrites what `zero_page` put into it, so the loader's fields come last.
    put(&mut zero_page, at::SETUP_HEADER, header);
    put(&mut zero_page, at::CODE32_START, &start.to_le_bytes());
    let low_limit = (u64::from(u32(at::INITRD_ADDR_MAX)?) + 1).min(space.ram.low_end());
    let anywhere = xloadflags & XLF_CAN_BE_LOADED_ABOVE_4G != 0;
    finish(space, zero_page, low_limit, anywhere, options).and_then(|rsi| {
        let entry =
            if xloadflags & XLF_KERNEL_64 != 0 { long64(space, load + ENTRY64)? } else { protected32(space, start)? };
        Ok(Entry { rsi, ..entry })
    })
}

pub(super) fn load_vmlinux(space: &mut Space, file: &Elf, options: &Options) -> Result<Entry, LoadError> {
    const ALIGNMENT: u32 = 0x100_0000;
    file.place(space)?;
    // The identity map of the entry state ends at 4 GiB.
    let rip = u64::from(file.entry32()?);
    let mut zero_page = zero_page(space, options)?;
    put(&mut zero_page, at::BOOT_FLAG, &BOOT_FLAG.to_le_bytes());
    put(&mut zero_page, at::HEADER, HEADER);
    put(&mut zero_page, at::VERSION, &CURRENT.to_le_bytes());
    put(&mut zero_page, at::LOADFLAGS, &[LOADED_HIGH]);
    put(&mut zero_page, at::KERNEL_ALIGNMENT, &ALIGNMENT.to_le_bytes());
    let rsi = finish(space, zero_page, space.ram.low_end(), true, options)?;
    Ok(Entry { rsi, ..long64(space, rip)? })
}

/// The zero page as far as it lies outside the setup header.
fn zero_page(space: &Space, options: &Options) -> Result<Vec<u8>, LoadError> {
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

/// Fills in the loader's fields of the setup header, places command line, initrd and zero page, and returns the
/// address of the latter.
fn finish(
    space: &mut Space,
    mut page: Vec<u8>,
    initrd_limit: u64,
    initrd_anywhere: bool,
    options: &Options,
) -> Result<u64, LoadError> {
    put(&mut page, at::TYPE_OF_LOADER, &[LOADER_UNDEFINED]);
    put(&mut page, at::VID_MODE, &VIDEO_NORMAL.to_le_bytes());
    let mut cmdline = options.cmdline.as_bytes().to_vec();
    cmdline.push(0);
    let cmdline = space.place_low(&cmdline, 16)?;
    put(&mut page, at::CMD_LINE_PTR, &(cmdline as u32).to_le_bytes());
    let (mut start, mut len) = (0, 0);
    if let Some(initrd) = options.initrd {
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
