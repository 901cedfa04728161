//! What can be wrong with an image, and how it is said.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why an image can't be booted. Each message is one line that says what to change.
#[derive(Debug, Error)]
pub enum LoadError {
    /// A file can't be read.
    #[error("cannot read {path}: {cause}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the host said.
        cause: io::Error,
    },
    /// A directory, a socket, ...
    #[error("cannot read {0}: not a regular file")]
    NotAFile(PathBuf),
    /// Nothing in it.
    #[error("the {0} is empty")]
    Empty(&'static str),
    /// Recognized as something that does not boot, or not recognized.
    #[error("the kernel is {0}; expected a Linux bzImage, an ELF vmlinux, or a multiboot image")]
    NotAKernel(&'static str),
    /// A structure, or what it announces, goes past the end of the file.
    #[error("the kernel is truncated: its {what} ends at byte {end}, but the file has {len}")]
    Truncated {
        /// Which structure.
        what: &'static str,
        /// Where it should end.
        end: u64,
        /// Length of the file.
        len: u64,
    },
    /// Fields of a header contradict each other or the format.
    #[error("the kernel is malformed: {0}")]
    Malformed(&'static str),
    /// Boot protocol before 2.02.
    #[error("the kernel speaks boot protocol {major}.{minor:02}; 2.02 (Linux 2.4) or later is needed")]
    OldProtocol {
        /// Major version.
        major: u8,
        /// Minor version.
        minor: u8,
    },
    /// A bzImage whose only entry is in real mode.
    #[error(
        "the image has a Linux boot header without a 32-bit entry point (code32_start is 0): it starts in real mode and calls a BIOS, \
         which this machine has not got (iPXE is such an image)"
    )]
    RealMode,
    /// An ELF file for a processor that is not x86.
    #[error("the kernel is an ELF file for another processor (machine {0}); an x86 image is needed")]
    WrongMachine(u16),
    /// A multiboot header asks for something mandatory that isn't offered.
    #[error("the multiboot header asks for features that are not offered (flags {0:#x})")]
    MultibootFlags(u32),
    /// A multiboot header with a wrong checksum.
    #[error("the multiboot header at byte {0:#x} has a wrong checksum")]
    MultibootChecksum(usize),
    /// Not enough RAM at the place where the kernel must be.
    #[error(
        "the {what} needs memory from {start:#x} to {end:#x}, but the machine has {ram} bytes: give it more memory"
    )]
    TooLittleMemory {
        /// Which part.
        what: &'static str,
        /// Where it goes.
        start: u64,
        /// Where it ends.
        end: u64,
        /// Bytes of RAM.
        ram: u64,
    },
    /// Not enough RAM where a Linux kernel can be.
    #[error(
        "the kernel needs memory from {start:#x} to {end:#x}, and the machine's ends at {ram:#x}: give it {mib} MiB or more; {why}",
        mib = end.div_ceil(1 << 20),
        why = if *relocatable {
            "loaded lower, it would move itself up to that address, which it prefers"
        } else {
            "it is not relocatable"
        }
    )]
    KernelMemory {
        /// Lowest address.
        start: u64,
        /// Where it ends from there.
        end: u64,
        /// End of RAM.
        ram: u64,
        /// The boot protocol allows other addresses.
        relocatable: bool,
    },
    /// Where the image wants to be there is something else than free RAM.
    #[error("the {what} at {start:#x}-{end:#x} does not lie in usable memory")]
    Outside {
        /// Which part.
        what: &'static str,
        /// Where it goes.
        start: u64,
        /// Where it ends.
        end: u64,
    },
    /// Two parts of the image want the same place.
    #[error("the {what} at {start:#x}-{end:#x} overlaps another part of the image")]
    Overlap {
        /// Which part.
        what: &'static str,
        /// Where it goes.
        start: u64,
        /// Where it ends.
        end: u64,
    },
    /// The entry point is not inside the image.
    #[error("the entry point {0:#x} lies outside the loaded image")]
    EntryOutside(u64),
    /// No gap of RAM is large enough.
    #[error("the initrd ({len} bytes) does not fit into guest memory next to the kernel: give the machine more memory")]
    InitrdTooBig {
        /// Its length.
        len: u64,
    },
    /// Several modules for an image that takes one.
    #[error("{0} modules for a Linux kernel, which takes one initrd")]
    OneInitrd(usize),
    /// Conventional memory is taken up by the image itself.
    #[error("the image leaves no room for boot data below {0:#x}")]
    NoLowMemory(u64),
    /// Longer than the kernel can take.
    #[error("the command line has {len} bytes; this kernel takes at most {max}")]
    CommandLineTooLong {
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The guest would see it end there.
    #[error("the command line contains a NUL byte")]
    CommandLineNul,
}
