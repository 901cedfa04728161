//! Errors in images, and their messages.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

pub use super::kind::Kind;

/// Reason for which an image can't be booted. Each message is one line that says what to change.
#[derive(Debug, Error)]
pub enum LoadError {
    /// A file can't be read.
    #[error("cannot read {path}: {cause}")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the host.
        cause: io::Error,
    },
    /// The path names a directory, a socket, or another unsuitable file.
    #[error("cannot read {0}: not a regular file")]
    NotAFile(PathBuf),
    /// The file is empty.
    #[error("the {0} is empty")]
    Empty(&'static str),
    /// The file is larger than any kernel.
    #[error("the kernel's file has {len} bytes, and {max} are the limit: a disk image is given as --disk")]
    TooLarge {
        /// Length in bytes.
        len: u64,
        /// Maximum length in bytes.
        max: u64,
    },
    /// The file is unknown, or has a known format that can't be booted.
    #[error("the file is {}; {}", .0.what, .0.advice)]
    NotAKernel(Kind),
    /// A structure, or the data that it describes, extends beyond the end of the file.
    #[error("the kernel is truncated: its {what} ends at byte {end}, but the file has {len}")]
    Truncated {
        /// Name of the structure.
        what: &'static str,
        /// End of the structure.
        end: u64,
        /// Length of the file.
        len: u64,
    },
    /// Fields of a header contradict each other or the format.
    #[error("the kernel is malformed: {0}")]
    Malformed(&'static str),
    /// Boot protocol before 2.02.
    #[error("the kernel uses boot protocol {major}.{minor:02}; 2.02 (Linux 2.4) or later is needed")]
    OldProtocol {
        /// Major version.
        major: u8,
        /// Minor version.
        minor: u8,
    },
    /// A bzImage whose only entry is in real mode.
    #[error(
        "the image has a Linux boot header without a 32-bit entry point (code32_start is 0): it starts in real mode and calls a BIOS, \
         which this machine does not have (iPXE is such an image): give the kernel that it would start"
    )]
    RealMode,
    /// An ELF file for a processor that is not x86.
    #[error("the kernel is an ELF file for another processor ({name}); an x86 image is needed", name = super::elf::machine_name(*.0))]
    WrongMachine(u16),
    /// A multiboot header requires a feature that isn't offered.
    #[error(
        "the multiboot header requires features that multiboot 1 does not define (flags {0:#x}; bits 3 to 15 must be zero)"
    )]
    MultibootFlags(u32),
    /// A multiboot header has a wrong checksum.
    #[error("the multiboot header at byte {0:#x} has a wrong checksum")]
    MultibootChecksum(usize),
    /// The image has only a header of multiboot 2.
    #[error(
        "the kernel has a multiboot 2 header, which this loader cannot boot: give it a multiboot 1 header or a PVH note beside it"
    )]
    Multiboot2,
    /// There is not enough RAM at the address that the kernel requires.
    #[error(
        "the {what} needs memory from {start:#x} to {end:#x}, but the machine has {ram} bytes: give it more memory"
    )]
    TooLittleMemory {
        /// Name of the part.
        what: &'static str,
        /// Start address.
        start: u64,
        /// End address.
        end: u64,
        /// Size of RAM in bytes.
        ram: u64,
    },
    /// There is not enough RAM in the range where a Linux kernel can be.
    #[error(
        "the kernel needs memory from {start:#x} to {end:#x}, and the machine's memory ends at {ram:#x}: give it {mib} MiB or more; {why}",
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
        /// End address for that start.
        end: u64,
        /// End of RAM.
        ram: u64,
        /// True if the boot protocol allows other addresses.
        relocatable: bool,
    },
    /// The address that the image requires is not free RAM.
    #[error("the {what} at {start:#x}-{end:#x} does not lie in usable memory")]
    Outside {
        /// Name of the part.
        what: &'static str,
        /// Start address.
        start: u64,
        /// End address.
        end: u64,
    },
    /// Two parts of the image overlap.
    #[error("the {what} at {start:#x}-{end:#x} overlaps another part of the image")]
    Overlap {
        /// Name of the part.
        what: &'static str,
        /// Start address.
        start: u64,
        /// End address.
        end: u64,
    },
    /// The entry point is not inside the image.
    #[error("the entry point {0:#x} lies outside the loaded image")]
    EntryOutside(u64),
    /// The entry point is a virtual address where a physical one is needed.
    #[error(
        "the entry point {entry:#x} is a virtual address, of the byte at {physical:#x}: a PVH note and the header of a vmlinux have physical \
         ones. A kernel that relies on its own boot loader's page tables cannot be entered without a PVH note or a multiboot header"
    )]
    EntryVirtual {
        /// Entry point.
        entry: u64,
        /// Its physical address.
        physical: u64,
    },
    /// No gap of RAM is large enough.
    #[error("the initrd ({len} bytes) does not fit into guest memory next to the kernel: give the machine more memory")]
    InitrdTooBig {
        /// Length in bytes.
        len: u64,
    },
    /// There are several modules for an image that takes one.
    #[error("{0} modules for a Linux kernel, which takes one initrd")]
    OneInitrd(usize),
    /// The image occupies conventional memory.
    #[error("the image leaves no room for boot data below {0:#x}")]
    NoLowMemory(u64),
    /// The command line is longer than the kernel's maximum.
    #[error("the command line has {len} bytes; this kernel takes at most {max}")]
    CommandLineTooLong {
        /// Length in bytes.
        len: usize,
        /// Maximum length in bytes.
        max: usize,
    },
    /// The command line contains a NUL byte, at which the guest would see its end.
    #[error("the command line contains a NUL byte")]
    CommandLineNul,
}
