//! Loads a guest image into memory and determines the processor's state at its entry.
//!
//! The contents decide on the type of an image: a Linux bzImage (64-bit or 32-bit boot protocol), an ELF file with a
//! PVH entry note, a multiboot 1 image (ELF or with addresses in its header), or a bare 64-bit ELF `vmlinux`. No image
//! is trusted: every offset is checked against the file, every address against usable memory and against the parts that
//! have been placed already.

mod bytes;
mod elf;
mod entry;
mod error;
mod kind;
mod linux;
mod module;
mod multiboot;
mod pvh;
mod space;
#[cfg(test)]
mod tests;

pub use entry::{Entry, EntrySegment, EntryTable, Mode};
pub use error::{Kind, LoadError};
pub use module::{Module, join_modules, split_modules};

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::memory::GuestRam;
use bytes::Image;
use space::LoadSpace;

/// Maximum length of a command line for an image that doesn't state its own limit.
const MAX_COMMAND_LINE: usize = 4095;

/// Data that accompanies an image.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// Name of the image: the first word of a multiboot command line.
    pub name: &'a str,
    /// Command line.
    pub cmdline: &'a str,
    /// Initial RAM disk, or the modules of a multiboot image.
    pub modules: &'a [Module],
    /// Address of the ACPI root pointer, if there is one.
    pub rsdp: Option<u64>,
    /// Contents that firmware leaves from address 0 on; an image may occupy this range instead.
    pub low_memory: &'a [u8],
}

/// Largest kernel: its code is below 4 GiB. Larger files are disk images, which would fill the host's memory.
const MAX_KERNEL: u64 = 4 << 30;
/// Bytes by which a larger file is named.
const HEAD: u64 = 128 << 10;

/// Reads a whole file that will be loaded beside a kernel.
pub fn read_file(path: &Path) -> Result<Vec<u8>, LoadError> {
    read(path, u64::MAX).map(|(bytes, _)| bytes)
}

/// Reads a whole kernel. A file that is too large for one is named by its first bytes.
pub fn read_kernel(path: &Path) -> Result<Vec<u8>, LoadError> {
    match read(path, MAX_KERNEL)? {
        (bytes, len) if len <= MAX_KERNEL => Ok(bytes),
        (head, _) if kind::is_known(&Image(&head)) => Err(LoadError::NotAKernel(kind::of(&Image(&head)))),
        (_, len) => Err(LoadError::TooLarge { len, max: MAX_KERNEL }),
    }
}

/// Reads a kernel that may contain symbols, or nothing: the machine of [`crate::Machine::for_snapshot`] needs no more.
pub fn read_symbols(path: &Path) -> Result<Vec<u8>, LoadError> {
    const ELF: [u8; 4] = *b"\x7fELF";
    let mut first = [0; ELF.len()];
    let failed = |cause| LoadError::Read { path: path.to_path_buf(), cause };
    match File::open(path).map_err(failed)?.read_exact(&mut first) {
        Ok(()) if first == ELF => read_kernel(path),
        _ => Ok(Vec::new()),
    }
}

/// Reads a file, or its first bytes if it has more than `max`. Returns the length of the file as well.
fn read(path: &Path, max: u64) -> Result<(Vec<u8>, u64), LoadError> {
    let failed = |cause| LoadError::Read { path: path.to_path_buf(), cause };
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(LoadError::NotAFile(path.to_path_buf()));
    }
    let wanted = if metadata.len() > max { HEAD } else { u64::MAX };
    let mut bytes = Vec::with_capacity(metadata.len().min(wanted) as usize + 1);
    file.take(wanted).read_to_end(&mut bytes).map_err(failed)?;
    Ok((bytes, metadata.len()))
}

/// Loads `image` into `ram`, which must be new: parts of the image that are zero are not written.
pub fn load(ram: &GuestRam, image: &[u8], options: &Options) -> Result<Entry, LoadError> {
    if image.is_empty() {
        return Err(LoadError::Empty("kernel"));
    }
    if options.modules.iter().any(|module| module.bytes.is_empty()) {
        return Err(LoadError::Empty("initrd"));
    }
    if options.cmdline.contains('\0') || options.modules.iter().any(|module| module.cmdline.contains('\0')) {
        return Err(LoadError::CommandLineNul);
    }
    let space = &mut LoadSpace::new(ram);
    let entry = place(space, Image(image), options)?;
    space.fill_free(0, options.low_memory, "firmware's data")?;
    Ok(entry)
}

/// Places the image and the data that accompanies it.
fn place(space: &mut LoadSpace, image: Image, options: &Options) -> Result<Entry, LoadError> {
    if linux::is_bzimage(&image) {
        return linux::load_bzimage(space, image, options);
    }
    if options.cmdline.len() > MAX_COMMAND_LINE {
        return Err(LoadError::CommandLineTooLong { len: options.cmdline.len(), max: MAX_COMMAND_LINE });
    }
    let header = multiboot::find(&image);
    if !elf::is_elf(&image) {
        return match header {
            Ok(Some(header)) if header.has_addresses() => multiboot::load_flat(space, image, header, options),
            // The magic of another file, such as a boot loader that looks for it in kernels.
            _ if kind::is_known(&image) => Err(LoadError::NotAKernel(kind::of(&image))),
            Ok(Some(_)) => Err(LoadError::Malformed("the multiboot header has no addresses, and the file is not ELF")),
            Ok(None) if multiboot::is_version_2(&image) => Err(LoadError::Multiboot2),
            Ok(None) => Err(LoadError::NotAKernel(kind::of(&image))),
            Err(error) => Err(error),
        };
    }
    let file = elf::parse(image)?;
    if let Some(entry) = file.pvh_entry {
        return pvh::load(space, &file, entry, options);
    }
    match header {
        Ok(Some(header)) if header.has_addresses() => multiboot::load_flat(space, image, header, options),
        Ok(Some(_)) => multiboot::load_elf(space, &file, options),
        Ok(None) if multiboot::is_version_2(&image) => Err(LoadError::Multiboot2),
        header => match file.stranger {
            Some(kind) => Err(LoadError::NotAKernel(kind)),
            None => match header.map(|_| file.wide)? {
                true => linux::load_vmlinux(space, &file, options),
                false => Err(LoadError::NotAKernel(kind::ELF32)),
            },
        },
    }
}

/// Checks that a file is a Linux kernel by its header: a bzImage, or an ELF vmlinux of 64 bits.
///
/// # Errors
/// Returns an error that says what the file is, or that it can't be read.
pub fn check_linux(path: &Path) -> Result<(), LoadError> {
    let bytes = read_kernel(path)?;
    let image = Image(&bytes);
    if linux::is_bzimage(&image) {
        return Ok(());
    }
    if bytes.is_empty() {
        return Err(LoadError::Empty("kernel"));
    }
    if kind::is_known(&image) || !elf::is_elf(&image) {
        return Err(LoadError::NotAKernel(kind::of(&image)));
    }
    match elf::parse(image)? {
        elf::Elf { stranger: Some(kind), .. } => Err(LoadError::NotAKernel(kind)),
        elf::Elf { wide: false, .. } => Err(LoadError::NotAKernel(kind::ELF32)),
        _ => Ok(()),
    }
}

/// Returns the largest length of a command line for an image, in bytes.
pub fn longest_command_line(image: &[u8]) -> usize {
    let image = Image(image);
    linux::longest_command_line(&image).unwrap_or(MAX_COMMAND_LINE)
}

/// Returns true if the image takes modules with command lines, as multiboot and PVH images do, instead of one initial
/// RAM disk.
pub fn takes_modules(image: &[u8]) -> bool {
    let image = Image(image);
    !linux::is_bzimage(&image)
        && (matches!(multiboot::find(&image), Ok(Some(_)))
            || elf::is_elf(&image) && elf::parse(image).is_ok_and(|file| file.pvh_entry.is_some()))
}
