//! Names files that are not kernels, and says what to do with them.
//!
//! The first row of the table that matches a file names it. A format whose files can also match another row therefore comes
//! before that row: an ISO image, for instance, often begins with a boot sector.

use super::bytes::Image;

/// A recognized format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Name, with an article.
    pub what: &'static str,
    /// Advice for the user: the part that this machine lacks, or another way to use the file.
    pub advice: &'static str,
}

impl Kind {
    pub(super) const fn new(what: &'static str, advice: &'static str) -> Self {
        Self { what, advice }
    }
}

/// How a format is recognized.
enum Test {
    /// Bytes at offsets.
    Bytes(&'static [(usize, &'static [u8])]),
    /// A function of the whole file.
    Check(fn(&Image) -> bool),
}
use Test::{Bytes, Check};

const EXPECTED: &str = "expected a Linux bzImage, an ELF file with a PVH note, a multiboot image, or an ELF vmlinux";
const NO_BIOS: &str = "no BIOS runs in this machine: give the kernel that it would start";
const NO_UEFI: &str = "no UEFI firmware runs in this machine: give the kernel that it would start";
const NO_FIRMWARE: &str = "this machine runs no firmware: give the kernel that it would start";
const A_DISK: &str = "give it as --disk, if it is a raw image, and a kernel as --kernel";
const NOT_RAW: &str = "convert it to a raw image for --disk (qemu-img convert -O raw), and give a kernel as --kernel";
const COMPRESSED: &str = "a compressed kernel must be unpacked first, an initrd is given as --initrd beside a kernel";
const INITRD: &str = "give it as --initrd, and a kernel as --kernel";
const X86: &str = "an x86 kernel is needed";
const UNPACK: &str = "take the kernel out of it first";
pub(super) const BIOS_DISK_LOADER: Kind = Kind::new(
    "MEMDISK, which shows a disk image to a BIOS",
    "no BIOS runs in this machine: give a raw image as --disk, and a kernel as --kernel",
);
/// ELF files.
pub(super) const PROGRAM: Kind = Kind::new(
    "an ELF program for an operating system",
    "tollgate exec runs programs of this host in a Linux guest; --kernel takes a kernel",
);
pub(super) const LIBRARY: Kind = Kind::new("an ELF shared library, or a module of a boot loader", EXPECTED);
pub(super) const OBJECT: Kind = Kind::new("an ELF object file (a kernel module, or a module of GRUB)", EXPECTED);
pub(super) const CORE: Kind = Kind::new("an ELF core dump", EXPECTED);
pub(super) const BSD: Kind = Kind::new(
    "a kernel or a program of a BSD, without a PVH note or a multiboot header",
    "its own boot loader starts it, which needs a BIOS or UEFI: give a kernel that was built with a PVH note",
);
pub(super) const XEN_GUEST: Kind = Kind::new(
    "a kernel for paravirtualized guests of Xen, without a PVH note",
    "it needs the hypervisor: give Xen as --kernel and this file as its first module",
);
pub(super) const ELF32: Kind =
    Kind::new("a 32-bit ELF file without a multiboot header or a PVH note", "a kernel needs one of them to be entered");

const KINDS: &[(Test, Kind)] = &[
    (Check(|image| image.0.iter().all(|&byte| byte == 0)), Kind::new("all zeroes", EXPECTED)),
    // Kernels of other processors, some of which are also EFI programs.
    (Bytes(&[(0x38, b"ARM\x64")]), Kind::new("an arm64 Linux Image", X86)),
    (Bytes(&[(0x38, b"RSC\x05")]), Kind::new("a RISC-V Linux Image", X86)),
    (Bytes(&[(0x24, b"\x18\x28\x6f\x01")]), Kind::new("an Arm Linux zImage", X86)),
    (Bytes(&[(0, b"MZ"), (4, b"zimg")]), Kind::new("a compressed EFI kernel image (zboot)", NO_UEFI)),
    // Programs with PE headers.
    (
        Check(is_unified),
        Kind::new(
            "a unified kernel image (a UEFI application that contains a kernel)",
            "no UEFI firmware runs in this machine: take the kernel out with objcopy -O binary --only-section=.linux FILE vmlinuz",
        ),
    ),
    (Check(|image| pe(image).is_some_and(|p| p.is_efi() && p.is_x86())), Kind::new("a UEFI application (PE)", NO_UEFI)),
    (
        Check(|image| pe(image).is_some_and(|p| p.is_efi())),
        Kind::new("a UEFI application (PE) for another processor", X86),
    ),
    (Check(|image| pe(image).is_some()), Kind::new("a Windows program (PE)", EXPECTED)),
    (Bytes(&[(0, b"MZ")]), Kind::new("a DOS program", EXPECTED)),
    // Compressed files and archives.
    (Bytes(&[(0, b"\x1f\x8b")]), Kind::new("gzip data", COMPRESSED)),
    (Bytes(&[(0, b"\xfd7zXZ\0")]), Kind::new("xz data", COMPRESSED)),
    (Bytes(&[(0, b"\x28\xb5\x2f\xfd")]), Kind::new("zstd data", COMPRESSED)),
    (Bytes(&[(0, b"BZh")]), Kind::new("bzip2 data", COMPRESSED)),
    (Bytes(&[(0, b"\x5d\0\0")]), Kind::new("LZMA data", COMPRESSED)),
    (Bytes(&[(0, b"\x02\x21\x4c\x18")]), Kind::new("LZ4 data", COMPRESSED)),
    (Bytes(&[(0, b"\x04\x22\x4d\x18")]), Kind::new("LZ4 data", COMPRESSED)),
    (Bytes(&[(0, b"\x89LZO\0")]), Kind::new("LZO data", COMPRESSED)),
    (Bytes(&[(0, b"0707")]), Kind::new("a cpio archive (an initramfs)", INITRD)),
    (Bytes(&[(0, b"\xc7\x71")]), Kind::new("a cpio archive (an initramfs)", INITRD)),
    (Bytes(&[(257, b"ustar")]), Kind::new("a tar archive", UNPACK)),
    (Bytes(&[(0, b"PK\x03\x04")]), Kind::new("a zip archive", UNPACK)),
    (Bytes(&[(0, b"!<arch>\ndebian")]), Kind::new("a Debian package", UNPACK)),
    (Bytes(&[(0, b"!<arch>")]), Kind::new("an ar archive (a library)", EXPECTED)),
    (Bytes(&[(0, b"\xed\xab\xee\xdb")]), Kind::new("an RPM package", UNPACK)),
    // Kernels and programs for other loaders.
    (Bytes(&[(0, b"\x27\x05\x19\x56")]), Kind::new("a uImage, for U-Boot", UNPACK)),
    (Bytes(&[(0, b"\xd0\x0d\xfe\xed")]), Kind::new("a device tree, or an image of U-Boot (FIT)", EXPECTED)),
    (Bytes(&[(0, b"ANDROID!")]), Kind::new("an Android boot image", UNPACK)),
    (Bytes(&[(0, b"CHROMEOS")]), Kind::new("a ChromeOS kernel image", UNPACK)),
    (Bytes(&[(0, b"MSWIM\0")]), Kind::new("a Windows image (WIM)", EXPECTED)),
    (Bytes(&[(0, b"\xcf\xfa\xed\xfe")]), Kind::new("a Mach-O file (macOS)", EXPECTED)),
    (Bytes(&[(0, b"\xce\xfa\xed\xfe")]), Kind::new("a Mach-O file (macOS)", EXPECTED)),
    (Bytes(&[(0, b"\xca\xfe\xba\xbe")]), Kind::new("a Mach-O file of several processors, or a Java class", EXPECTED)),
    (Bytes(&[(0, b"ELF")]), Kind::new("an ELF file whose first byte is missing", EXPECTED)),
    // Optical disks, disks and file systems.
    (
        Bytes(&[(0x8001, b"CD001")]),
        Kind::new(
            "an ISO 9660 image",
            "no BIOS and no UEFI firmware run in this machine: take kernel and initrd out of it, and give the image as --disk",
        ),
    ),
    (Bytes(&[(0, b"QFI\xfb")]), Kind::new("a qcow2 disk image", NOT_RAW)),
    (Bytes(&[(0, b"QED\0")]), Kind::new("a QED disk image", NOT_RAW)),
    (Bytes(&[(0, b"KDMV")]), Kind::new("a VMDK disk image", NOT_RAW)),
    (Bytes(&[(0, b"# Disk DescriptorFile")]), Kind::new("the description of a VMDK disk image", NOT_RAW)),
    (Bytes(&[(0x40, b"\x7f\x10\xda\xbe")]), Kind::new("a VDI disk image", NOT_RAW)),
    (Bytes(&[(0, b"vhdxfile")]), Kind::new("a VHDX disk image", NOT_RAW)),
    (Bytes(&[(0, b"conectix")]), Kind::new("a VHD disk image", NOT_RAW)),
    (Bytes(&[(512, b"EFI PART")]), Kind::new("a disk image with a GPT", A_DISK)),
    (Bytes(&[(4096, b"EFI PART")]), Kind::new("a disk image with a GPT", A_DISK)),
    (Bytes(&[(0x36, b"FAT1"), (0x1fe, b"\x55\xaa")]), Kind::new("a FAT file system", A_DISK)),
    (Bytes(&[(0x52, b"FAT32"), (0x1fe, b"\x55\xaa")]), Kind::new("a FAT file system", A_DISK)),
    (Bytes(&[(3, b"NTFS    ")]), Kind::new("an NTFS file system", A_DISK)),
    (Bytes(&[(3, b"EXFAT   ")]), Kind::new("an exFAT file system", A_DISK)),
    (Bytes(&[(0x438, b"\x53\xef")]), Kind::new("an ext2, ext3 or ext4 file system", A_DISK)),
    (Bytes(&[(0, b"XFSB")]), Kind::new("an XFS file system", A_DISK)),
    (Bytes(&[(0x10040, b"_BHRfS_M")]), Kind::new("a Btrfs file system", A_DISK)),
    (Bytes(&[(0, b"hsqs")]), Kind::new("a SquashFS file system", A_DISK)),
    (Bytes(&[(0x400, b"\xe2\xe1\xf5\xe0")]), Kind::new("an EROFS file system", A_DISK)),
    (Bytes(&[(0, b"LUKS\xba\xbe")]), Kind::new("an encrypted disk (LUKS)", A_DISK)),
    // Firmware.
    (Check(is_firmware_volume), Kind::new("a UEFI firmware volume", NO_FIRMWARE)),
    (Check(is_option_rom), Kind::new("an option ROM of an adapter", NO_BIOS)),
    (
        Check(is_firmware_rom),
        Kind::new("a firmware ROM (a BIOS, coreboot, U-Boot or UEFI), which begins at its last bytes", NO_FIRMWARE),
    ),
    // Boot code for a BIOS: network boot programs, and loaders that begin with a jump away from the place that a BIOS put them at.
    (Bytes(&[(0, b"\xea\x05\x00\xc0\x07")]), Kind::new("a network boot program for a BIOS (iPXE)", NO_BIOS)),
    (Bytes(&[(0, b"\xea\x24\x7c\x00\x00")]), Kind::new("a network boot program for a BIOS (PXELINUX)", NO_BIOS)),
    (
        Bytes(&[(0, b"\xfa\xea"), (3, b"\x7c\x00\x00")]),
        Kind::new("the boot loader of an optical disk for a BIOS (ISOLINUX)", NO_BIOS),
    ),
    (Bytes(&[(0, b"\xea\x1c\x82\x00\x00")]), Kind::new("a core image of GRUB for a BIOS", NO_BIOS)),
    (Bytes(&[(0, b"\xe8\x00\x00\xeb\x3b")]), Kind::new("a core image of GRUB for a BIOS", NO_BIOS)),
    (Bytes(&[(0, b"\xb2\x7f\xea\x00\x82")]), Kind::new("a core image of GRUB for a BIOS", NO_BIOS)),
    (Bytes(&[(0, b"\x52\x56\xbe\x1b\x81")]), Kind::new("a core image of GRUB for a BIOS", NO_BIOS)),
    (Bytes(&[(0, b"\xeb\x5e\x80\x05\x20\x39")]), Kind::new("a boot loader for a BIOS (GRUB for DOS)", NO_BIOS)),
    (Check(is_boot_record), Kind::new("a master boot record without its signature: code for a BIOS", NO_BIOS)),
    (
        Bytes(&[(0x1fe, b"\x55\xaa")]),
        Kind::new(
            "a boot sector, or a disk image for a BIOS",
            "no BIOS runs in this machine: give it as --disk, and a kernel as --kernel",
        ),
    ),
    // Other files.
    (Bytes(&[(0, b"\xff\xd8\xff")]), Kind::new("a JPEG picture", EXPECTED)),
    (Bytes(&[(0, b"\x89PNG")]), Kind::new("a PNG picture", EXPECTED)),
    (Bytes(&[(0, b"GIF8")]), Kind::new("a GIF picture", EXPECTED)),
    (Bytes(&[(0, b"%PDF")]), Kind::new("a PDF document", EXPECTED)),
    (
        Bytes(&[(0, b"version https://git-lfs")]),
        Kind::new("a pointer of Git LFS, not the file itself", "fetch the file (git lfs pull)"),
    ),
    (Bytes(&[(0, b"#!")]), Kind::new("a script", EXPECTED)),
    (Check(is_text), Kind::new("a text file", EXPECTED)),
];

const UNKNOWN: Kind = Kind::new("not in a format that is recognized", EXPECTED);

/// Returns true if the format is in the table.
pub(super) fn is_known(image: &Image) -> bool {
    of(image) != UNKNOWN
}

/// Names the format of a file that is neither ELF nor an image that can be booted.
pub(super) fn of(image: &Image) -> Kind {
    let found = KINDS.iter().find(|(test, _)| match test {
        Bytes(parts) => parts.iter().all(|(at, bytes)| image.0.get(*at..).is_some_and(|rest| rest.starts_with(bytes))),
        Check(check) => check(image),
    });
    found.map_or(UNKNOWN, |(_, kind)| *kind)
}

/// Fields of a PE header.
struct Pe {
    machine: u16,
    sections: u16,
    subsystem: u16,
    /// Offset of the section table.
    section_table: u64,
}

const SUBSYSTEM_EFI: std::ops::RangeInclusive<u16> = 10..=13;
const MACHINES_X86: [u16; 2] = [0x14c, 0x8664];
const SECTION_LEN: u64 = 40;

impl Pe {
    fn is_efi(&self) -> bool {
        SUBSYSTEM_EFI.contains(&self.subsystem)
    }

    fn is_x86(&self) -> bool {
        MACHINES_X86.contains(&self.machine)
    }
}

fn pe(image: &Image) -> Option<Pe> {
    const WHAT: &str = "PE header";
    let u16_at = |offset| image.u16(offset, WHAT).ok();
    if !image.0.starts_with(b"MZ") {
        return None;
    }
    let start = u64::from(image.u32(0x3c, WHAT).ok()?);
    if image.slice(start, 4, WHAT).ok()? != b"PE\0\0" {
        return None;
    }
    let optional = start + 24;
    Some(Pe {
        machine: u16_at(start + 4)?,
        sections: u16_at(start + 6)?,
        subsystem: u16_at(optional + 68)?,
        section_table: optional + u64::from(u16_at(start + 20)?),
    })
}

/// Recognizes an EFI stub that has a kernel in one of its sections. `ukify` and `objcopy` make such files.
fn is_unified(image: &Image) -> bool {
    let Some(pe) = pe(image) else { return false };
    let name = |index: u16| image.slice(pe.section_table + u64::from(index) * SECTION_LEN, 8, "PE section").ok();
    (0..pe.sections).map_while(name).any(|name| name == b".linux\0\0")
}

/// Recognizes an image of flash memory with a firmware volume. A volume begins at a block of the flash memory, with a header that contains the
/// signature. Other data, such as a reset vector, may come before the first volume.
fn is_firmware_volume(image: &Image) -> bool {
    const BLOCK: usize = 0x1000;
    const BLOCKS: usize = 16;
    const SIGNATURE: usize = 0x28;
    image.0.chunks(BLOCK).take(BLOCKS).any(|block| block.get(SIGNATURE..SIGNATURE + 4) == Some(b"_FVH"))
}

/// Recognizes an option ROM, which begins with a signature, its length in units of 512 bytes, and a jump.
fn is_option_rom(image: &Image) -> bool {
    matches!(image.0, [0x55, 0xaa, length, ..] if *length != 0) && image.len() >= 512
}

/// Recognizes a firmware ROM. Its size is a multiple of 64 KiB, and the first instruction that a processor executes after a reset is 16 bytes
/// before its end. That instruction is a jump, or a CLI that is followed by CLD and a jump.
fn is_firmware_rom(image: &Image) -> bool {
    const UNIT: u64 = 0x1_0000;
    const RESET: u64 = 16;
    let begins = |start: u64| image.slice(start, 4, "reset vector").ok();
    let reset = image.len().checked_sub(RESET).and_then(begins);
    image.len().is_multiple_of(UNIT) && matches!(reset, Some([0xe9..=0xeb, ..] | [0xfa, 0xfc, 0xe9, _]))
}

/// Recognizes a file with the code of a master boot record, which a tool writes into the first 440 bytes of a disk. The code begins by disabling
/// interrupts and setting up a stack.
fn is_boot_record(image: &Image) -> bool {
    const RECORD: u64 = 512;
    const STARTS: [&[u8]; 3] = [b"\x33\xc0\xfa", b"\x33\xed", b"\xfa\x31\xc0"];
    image.len() < RECORD && STARTS.iter().any(|start| image.0.starts_with(start))
}

/// Recognizes text: printable ASCII characters and white space.
fn is_text(image: &Image) -> bool {
    const LOOKED_AT: usize = 4096;
    let head = &image.0[..image.0.len().min(LOOKED_AT)];
    head.iter().all(|&byte| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~'))
}
