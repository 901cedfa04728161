//! Tests with synthetic images of each kind, and with broken ones.

use proptest::prelude::*;

use super::*;
use crate::memory::layout;

const MIB: u64 = 1 << 20;
const KERNEL_AT: u64 = 16 * MIB;

fn put(image: &mut [u8], offset: usize, value: &[u8]) {
    image[offset..offset + value.len()].copy_from_slice(value);
}

/// Returns a bzImage that needs 1 MiB at 16 MiB.
fn bzimage() -> Vec<u8> {
    let mut image = vec![0; 5 * 512 + 0x400];
    put(&mut image, 0x1f1, &[4]);
    put(&mut image, 0x1f4, &(0x400u32 / 16).to_le_bytes());
    put(&mut image, 0x1fe, &[0x55, 0xaa, 0xeb, 0x66]);
    put(&mut image, 0x202, b"HdrS");
    put(&mut image, 0x206, &[0x0f, 0x02]);
    put(&mut image, 0x211, &[1]);
    put(&mut image, 0x214, &(MIB as u32).to_le_bytes());
    put(&mut image, 0x22c, &0x7fff_ffffu32.to_le_bytes());
    put(&mut image, 0x230, &0x20_0000u32.to_le_bytes());
    put(&mut image, 0x234, &[1, 21, 3, 0]);
    put(&mut image, 0x238, &2047u32.to_le_bytes());
    put(&mut image, 0x258, &KERNEL_AT.to_le_bytes());
    put(&mut image, 0x260, &(MIB as u32).to_le_bytes());
    image[5 * 512..].fill(0x90);
    image
}

/// Returns an ELF64 file with one segment of 0x100 bytes (0x2000 in memory), and its entry 16 bytes into it.
fn elf64(address: u64) -> Vec<u8> {
    let mut image = vec![0; 0x300];
    put(&mut image, 0, b"\x7fELF\x02\x01\x01");
    put(&mut image, 16, &[2, 0, 62, 0, 1]);
    put(&mut image, 24, &(address + 16).to_le_bytes());
    put(&mut image, 32, &64u64.to_le_bytes());
    put(&mut image, 54, &[56, 0, 2, 0]);
    put(&mut image, 64, &[1, 0, 0, 0, 7]);
    put(&mut image, 64 + 8, &0x200u64.to_le_bytes());
    put(&mut image, 64 + 16, &address.to_le_bytes());
    put(&mut image, 64 + 24, &address.to_le_bytes());
    put(&mut image, 64 + 32, &0x100u64.to_le_bytes());
    put(&mut image, 64 + 40, &0x2000u64.to_le_bytes());
    image[0x200..].fill(0xcc);
    image
}

/// Returns the image of [`elf64`] with a PVH note, whose entry is 32 bytes into the segment.
fn pvh(address: u64) -> Vec<u8> {
    let mut image = elf64(address);
    put(&mut image, 120, &[4, 0, 0, 0, 4]);
    put(&mut image, 120 + 8, &0x180u64.to_le_bytes());
    put(&mut image, 120 + 32, &20u64.to_le_bytes());
    put(&mut image, 120 + 48, &4u64.to_le_bytes());
    put(&mut image, 0x180, &[4, 0, 0, 0, 4, 0, 0, 0, 18, 0, 0, 0]);
    put(&mut image, 0x18c, b"Xen\0");
    put(&mut image, 0x190, &(address as u32 + 32).to_le_bytes());
    image
}

/// Returns an ELF32 file with a multiboot header and one segment.
fn multiboot(address: u32) -> Vec<u8> {
    let mut image = vec![0; 0x300];
    put(&mut image, 0, b"\x7fELF\x01\x01\x01");
    put(&mut image, 16, &[2, 0, 3, 0, 1]);
    put(&mut image, 24, &(address + 16).to_le_bytes());
    put(&mut image, 28, &52u32.to_le_bytes());
    put(&mut image, 42, &[32, 0, 1, 0]);
    put(&mut image, 52, &1u32.to_le_bytes());
    put(&mut image, 56, &0x200u32.to_le_bytes());
    put(&mut image, 60, &address.to_le_bytes());
    put(&mut image, 64, &address.to_le_bytes());
    put(&mut image, 68, &0x100u32.to_le_bytes());
    put(&mut image, 72, &0x2000u32.to_le_bytes());
    put(&mut image, 0xb0, &header(0));
    image[0x200..].fill(0xcc);
    image
}

/// Changes the virtual address and flags of the ELF32 segment, and the entry point.
fn link(image: &mut [u8], virtual_address: u32, flags: u32, entry: u32) {
    put(image, 24, &entry.to_le_bytes());
    put(image, 60, &virtual_address.to_le_bytes());
    put(image, 76, &flags.to_le_bytes());
}

/// Changes the virtual address of the ELF64 segment, and the entry point.
fn link64(image: &mut [u8], virtual_address: u64, entry: u64) {
    put(image, 24, &entry.to_le_bytes());
    put(image, 64 + 16, &virtual_address.to_le_bytes());
}

fn header(flags: u32) -> [u8; 12] {
    let mut bytes = [0; 12];
    put(&mut bytes, 0, &0x1bad_b002u32.to_le_bytes());
    put(&mut bytes, 4, &flags.to_le_bytes());
    put(&mut bytes, 8, &0u32.wrapping_sub(0x1bad_b002u32.wrapping_add(flags)).to_le_bytes());
    bytes
}

/// Returns a file that is not ELF, with addresses in its multiboot header at byte 16, which is loaded at 0x100010.
fn flat(load_end: u32, bss_end: u32) -> Vec<u8> {
    let mut image = vec![0xcc; 0x200];
    put(&mut image, 16, &header(1 << 16));
    let fields = [0x10_0010, 0x10_0000, load_end, bss_end, 0x10_0040u32];
    for (index, field) in fields.iter().enumerate() {
        put(&mut image, 28 + 4 * index, &field.to_le_bytes());
    }
    image
}

fn ram(mib: u64) -> GuestRam {
    GuestRam::new(mib * MIB).unwrap()
}

fn options() -> Options<'static> {
    Options { name: "kernel", cmdline: "console=ttyS0", modules: &[], rsdp: Some(0xe0000), low_memory: &[] }
}

fn module(bytes: &[u8], cmdline: &str) -> Module {
    Module { bytes: bytes.to_vec(), cmdline: cmdline.to_owned(), file: String::new() }
}

fn initrd(bytes: &[u8]) -> [Module; 1] {
    [module(bytes, "initrd")]
}

fn read<const N: usize>(ram: &GuestRam, address: u64) -> [u8; N] {
    let mut bytes = [0; N];
    assert!(ram.read(address, &mut bytes), "{address:#x}");
    bytes
}

fn read32(ram: &GuestRam, address: u64) -> u64 {
    u32::from_le_bytes(read(ram, address)).into()
}

fn read64(ram: &GuestRam, address: u64) -> u64 {
    u64::from_le_bytes(read(ram, address))
}

fn text(ram: &GuestRam, address: u64) -> String {
    (address..).map(|a| read::<1>(ram, a)[0]).take_while(|&b| b != 0).map(char::from).collect()
}

fn fails(mib: u64, image: &[u8]) -> LoadError {
    load(&ram(mib), image, &options()).unwrap_err()
}

/// Translates an address with the page tables of the entry state.
fn translate(ram: &GuestRam, cr3: u64, address: u64) -> u64 {
    let pointer = read64(ram, cr3 + 8 * (address >> 39)) & !0xfff;
    let directory = read64(ram, pointer + 8 * (address >> 30 & 511)) & !0xfff;
    let page = read64(ram, directory + 8 * (address >> 21 & 511));
    assert_eq!(page & 0xfff, 0x83);
    (page & !0xfff) + (address & 0x1f_ffff)
}

#[test]
fn a_bzimage_is_entered_in_long_mode() {
    let ram = ram(64);
    let entry = load(&ram, &bzimage(), &Options { modules: &initrd(&[7; 5000]), ..options() }).unwrap();
    assert_eq!((entry.mode, entry.rip), (Mode::Long64, KERNEL_AT + 0x200));
    assert_eq!(read::<4>(&ram, KERNEL_AT), [0x90; 4]);
    for address in [0, 0x1234_5678, 0xffff_ffff] {
        assert_eq!(translate(&ram, entry.cr3, address), address);
    }
    let zero = entry.rsi;
    assert_eq!(read::<4>(&ram, zero + 0x202), *b"HdrS");
    assert_eq!(read::<1>(&ram, zero + 0x210), [0xff]);
    assert_eq!(read64(&ram, zero + 0x70), 0xe0000);
    assert_eq!(text(&ram, read32(&ram, zero + 0x228)), "console=ttyS0");
    let start = read32(&ram, zero + 0x218);
    assert_eq!(start, 64 * MIB - 8192);
    assert_eq!(read32(&ram, zero + 0x21c), 5000);
    assert_eq!(read::<1>(&ram, start + 4999), [7]);
    assert_eq!(read::<1>(&ram, zero + 0x1e8), [ram.e820().len() as u8]);
    assert_eq!(read64(&ram, zero + 0x2d0 + 40 + 8), 63 * MIB);
    let cs = read64(&ram, entry.gdt.base + u64::from(entry.cs.selector));
    assert_eq!(cs, 0x00af_9b00_0000_ffff);
}

#[test]
fn the_last_paragraph_of_a_bzimage_need_not_be_whole() {
    let image = bzimage();
    let ram = ram(64);
    load(&ram, &image[..image.len() - 15], &options()).unwrap();
    assert_eq!(read::<3>(&ram, KERNEL_AT + 0x3f0), [0x90, 0, 0]);
    assert!(matches!(fails(64, &image[..image.len() - 16]), LoadError::Truncated { .. }));
}

#[test]
fn a_32_bit_bzimage_is_entered_in_protected_mode() {
    let mut image = bzimage();
    image[0x236] = 0;
    let entry = load(&ram(64), &image, &options()).unwrap();
    assert_eq!((entry.mode, entry.rip), (Mode::Protected32, KERNEL_AT));
    assert_ne!(entry.rsi, 0);
}

#[test]
fn an_initrd_respects_its_limit_unless_the_kernel_takes_it_anywhere() {
    let mut image = bzimage();
    put(&mut image, 0x22c, &(32 * MIB as u32 - 1).to_le_bytes());
    let big = initrd(&vec![1; 20 * MIB as usize]);
    let small = initrd(&[1; 100]);
    let ram = ram(64);
    let entry = load(&ram, &image, &Options { modules: &small, ..options() }).unwrap();
    assert_eq!(read32(&ram, entry.rsi + 0x218), 32 * MIB - 4096);
    let ram = self::ram(64);
    let entry = load(&ram, &image, &Options { modules: &big, ..options() }).unwrap();
    assert_eq!(read32(&ram, entry.rsi + 0x218), 44 * MIB);
    image[0x236] = 1;
    let refused = load(&self::ram(64), &image, &Options { modules: &big, ..options() });
    assert!(matches!(refused, Err(LoadError::InitrdTooBig { .. })), "{refused:?}");
}

#[test]
fn broken_bzimages_are_refused() {
    let whole = bzimage();
    let change = |offset: usize, value: &[u8]| {
        let mut image = whole.clone();
        put(&mut image, offset, value);
        image
    };
    assert!(matches!(fails(64, &change(0x206, &[1, 2])), LoadError::OldProtocol { major: 2, minor: 1 }));
    assert!(matches!(fails(64, &change(0x214, &[0; 4])), LoadError::RealMode));
    assert!(matches!(fails(64, &change(0x230, &[3])), LoadError::Malformed(_)));
    assert!(matches!(fails(64, &change(0x1fe, &[0])), LoadError::Malformed(_)));
    assert!(matches!(fails(64, &change(0x211, &[0])), LoadError::Malformed(_)));
    assert!(matches!(fails(64, &change(0x201, &[0xff])), LoadError::Malformed(_)));
    assert!(matches!(fails(64, &change(0x1f4, &[0xff; 4])), LoadError::Truncated { .. }));
    assert!(matches!(fails(64, &change(0x1f4, &[0; 4])), LoadError::Malformed(_)));
    assert!(matches!(fails(64, &change(0x258, &[0xff; 8])), LoadError::Outside { .. }));
    assert!(matches!(fails(64, &change(0x25c, &[1])), LoadError::Outside { .. }));
    assert!(matches!(fails(64, &change(0x260, &[0xff; 4])), LoadError::Outside { .. }));
    let mut fixed = change(0x258, &[0; 8]);
    fixed[0x234] = 0;
    assert!(matches!(fails(64, &fixed), LoadError::Malformed(_)));
    let long = "x".repeat(2048);
    let refused = load(&ram(64), &whole, &Options { cmdline: &long, ..options() });
    assert!(matches!(refused, Err(LoadError::CommandLineTooLong { len: 2048, max: 2047 })));
}

#[test]
fn a_relocatable_bzimage_is_placed_at_or_above_its_preferred_address() {
    let at = |preferred: u64, alignment: u32, relocatable: u8| {
        let mut image = bzimage();
        put(&mut image, 0x230, &alignment.to_le_bytes());
        put(&mut image, 0x234, &[relocatable]);
        put(&mut image, 0x258, &preferred.to_le_bytes());
        load(&ram(32), &image, &options()).map(|entry| entry.rip - 0x200)
    };
    assert_eq!(at(KERNEL_AT, 0x20_0000, 1).unwrap(), KERNEL_AT);
    assert_eq!(at(0, 0x20_0000, 1).unwrap(), 2 * MIB);
    assert_eq!(at(0, 0x1000, 1).unwrap(), MIB);
    assert_eq!(at(5 * MIB, 0x40_0000, 1).unwrap(), 8 * MIB);
    assert_eq!(at(5 * MIB, 0x40_0000, 0).unwrap(), 5 * MIB);
    // One MiB is needed; RAM ends at 32 MiB.
    assert_eq!(at(31 * MIB, 0x1000, 1).unwrap(), 31 * MIB);
    // With alignment the kernel would begin at the end of RAM.
    assert!(at(31 * MIB, 0x20_0000, 1).unwrap_err().to_string().contains("from 0x2000000 to 0x2100000"));
    // Kernels are never placed in conventional memory, even if they are small.
    let mut small = bzimage();
    put(&mut small, 0x258, &[0; 8]);
    put(&mut small, 0x260, &[0; 4]);
    assert_eq!(load(&ram(32), &small, &options()).unwrap().rip, 2 * MIB + 0x200);
    for relocatable in [0, 1] {
        let refused = at(31 * MIB + 0x1000, 0x1000, relocatable).unwrap_err();
        assert!(matches!(refused, LoadError::KernelMemory { .. }), "{refused}");
        let text = refused.to_string();
        assert!(text.contains("give it 33 MiB") && text.contains("not relocatable") == (relocatable == 0), "{text}");
    }
}

#[test]
fn older_protocols_mean_what_they_meant() {
    let mut image = bzimage();
    put(&mut image, 0x200, &[0xeb, 0x66, b'H', b'd', b'r', b'S', 7, 2]);
    let ram = ram(64);
    let entry = load(&ram, &image, &Options { modules: &initrd(&[5]), ..options() }).unwrap();
    assert_eq!((entry.mode, entry.rip), (Mode::Protected32, MIB));
    assert_eq!(read::<2>(&ram, MIB), [0x90; 2]);
    assert_eq!(read32(&ram, entry.rsi + 0x214), MIB);
    assert_eq!(read32(&ram, entry.rsi + 0x218), 64 * MIB - 4096);
    // 2.02 has neither a command line size nor an initrd limit, and the size of the kernel is that of the file.
    put(&mut image, 0x206, &[2]);
    put(&mut image, 0x201, &[0x2a]);
    put(&mut image, 0x1f4, &[0xff; 4]);
    put(&mut image, 0x22c, &[0; 16]);
    let ram = self::ram(1024);
    let entry = load(&ram, &image, &Options { modules: &initrd(&[5]), ..options() }).unwrap();
    assert_eq!(read32(&ram, entry.rsi + 0x218), 0x3800_0000 - 4096);
    assert_eq!(read32(&ram, entry.rsi + 0x22c), 0, "beyond the header");
    let refused = load(&ram, &image, &Options { cmdline: &"x".repeat(256), ..options() });
    assert!(matches!(refused, Err(LoadError::CommandLineTooLong { len: 256, max: 255 })));
    image[0x201] = 0x29;
    assert!(matches!(fails(64, &image), LoadError::Malformed(_)));
}

#[test]
fn a_vmlinux_is_entered_at_its_entry_point_with_a_zero_page() {
    let ram = ram(64);
    let entry = load(&ram, &elf64(KERNEL_AT), &options()).unwrap();
    assert_eq!((entry.mode, entry.rip), (Mode::Long64, KERNEL_AT + 16));
    assert_eq!(read::<2>(&ram, KERNEL_AT + 0xff), [0xcc, 0]);
    assert_eq!(read::<4>(&ram, entry.rsi + 0x202), *b"HdrS");
    assert_eq!(text(&ram, read32(&ram, entry.rsi + 0x228)), "console=ttyS0");
}

#[test]
fn a_pvh_image_gets_its_start_info() {
    let ram = ram(64);
    let entry = load(&ram, &pvh(KERNEL_AT), &Options { modules: &initrd(&[9; 3]), ..options() }).unwrap();
    assert_eq!((entry.mode, entry.rip, entry.cr0), (Mode::Protected32, KERNEL_AT + 32, 0x11));
    let info = entry.rbx;
    assert_eq!(read32(&ram, info), 0x336e_c578);
    assert_eq!((read32(&ram, info + 4), read32(&ram, info + 12)), (1, 1));
    let module = read64(&ram, info + 16);
    assert_eq!((read64(&ram, module), read64(&ram, module + 8)), (64 * MIB - 4096, 3));
    assert_eq!(text(&ram, read64(&ram, module + 16)), "initrd");
    assert_eq!(text(&ram, read64(&ram, info + 24)), "console=ttyS0");
    assert_eq!(read64(&ram, info + 32), 0xe0000);
    let map = read64(&ram, info + 40);
    assert_eq!(read32(&ram, info + 48), ram.e820().len() as u64);
    assert_eq!((read64(&ram, map + 48), read64(&ram, map + 56), read32(&ram, map + 64)), (MIB, 63 * MIB, 1));
}

#[test]
fn a_multiboot_image_gets_its_information() {
    for address in [0x8000, 4 * MIB as u32] {
        let ram = ram(64);
        let entry = load(&ram, &multiboot(address), &Options { modules: &initrd(b"A=1\n"), ..options() }).unwrap();
        assert_eq!((entry.mode, entry.rip), (Mode::Protected32, u64::from(address) + 16));
        assert_eq!(entry.rax, 0x2bad_b002);
        let info = entry.rbx;
        assert_eq!(read32(&ram, info), 0x24d);
        assert_eq!((read32(&ram, info + 4), read32(&ram, info + 8)), (639, 63 * 1024));
        assert_eq!(text(&ram, read32(&ram, info + 16)), "kernel console=ttyS0");
        let module = read32(&ram, info + 24);
        assert_eq!(read32(&ram, info + 20), 1);
        let (start, end) = (read32(&ram, module), read32(&ram, module + 4));
        assert_eq!(end - start, 4);
        assert_eq!(read::<4>(&ram, start), *b"A=1\n");
        assert_eq!(text(&ram, read32(&ram, module + 8)), "initrd");
        let map = read32(&ram, info + 48);
        assert_eq!(read32(&ram, info + 44), 24 * ram.e820().len() as u64);
        assert_eq!((read32(&ram, map + 48), read64(&ram, map + 52), read64(&ram, map + 60)), (20, MIB, 63 * MIB));
        assert_eq!(text(&ram, read32(&ram, info + 64)), "tollgate");
    }
}

#[test]
fn modules_have_pages_and_command_lines_of_their_own() {
    let modules = [module(&[1; 5000], "vmlinuz console=hvc0"), module(b"cpio", "initrd"), module(&[3; 4096], "")];
    for (image, slots, sizes) in [(multiboot(4 * MIB as u32), 16, [5000, 4, 4096]), (pvh(4 * MIB), 32, [5000, 4, 4096])]
    {
        let ram = ram(64);
        let entry = load(&ram, &image, &Options { modules: &modules, ..options() }).unwrap();
        let is_pvh = slots == 32;
        let (count, list) = match is_pvh {
            true => (read32(&ram, entry.rbx + 12), read64(&ram, entry.rbx + 16)),
            false => (read32(&ram, entry.rbx + 20), read32(&ram, entry.rbx + 24)),
        };
        assert_eq!(count, 3);
        let mut ends = vec![4 * MIB + 0x2000];
        for (index, module) in modules.iter().enumerate() {
            let slot = list + slots * index as u64;
            let (start, len, cmdline) = match is_pvh {
                true => (read64(&ram, slot), read64(&ram, slot + 8), read64(&ram, slot + 16)),
                false => {
                    let start = read32(&ram, slot);
                    (start, read32(&ram, slot + 4) - start, read32(&ram, slot + 8))
                }
            };
            assert_eq!((start % 4096, len), (0, sizes[index]));
            assert_eq!(read::<4>(&ram, start), module.bytes[..4]);
            assert_eq!(text(&ram, cmdline), module.cmdline);
            // No two parts share a page.
            assert!(ends.iter().all(|end| start >= *end || start + len <= *end - 4096));
            ends.push((start + len).next_multiple_of(4096));
        }
    }
    let refused = load(&ram(64), &bzimage(), &Options { modules: &modules, ..options() });
    assert!(matches!(refused, Err(LoadError::OneInitrd(3))), "{refused:?}");
}

#[test]
fn a_list_of_modules_is_split_at_single_commas() {
    assert_eq!(split_modules("vmlinuz a=1,,2 b,initrd"), ["vmlinuz a=1,2 b", "initrd"]);
    assert_eq!(split_modules(",,,x"), [",", "x"]);
    assert_eq!(join_modules(["a,b c", "d"].into_iter()), "a,,b c,d");
    assert!(takes_modules(&multiboot(MIB as u32)) && takes_modules(&pvh(MIB)) && takes_modules(&flat(0, 0)));
    assert!(!takes_modules(&bzimage()) && !takes_modules(&elf64(MIB)) && !takes_modules(b""));
}

#[test]
fn firmware_s_low_memory_gives_way_to_the_image() {
    let low_memory = [0x5a; 0x500];
    for image in [bzimage(), elf64(KERNEL_AT), pvh(KERNEL_AT), multiboot(MIB as u32)] {
        let ram = ram(64);
        load(&ram, &image, &Options { low_memory: &low_memory, ..options() }).unwrap();
        assert_eq!(read::<0x501>(&ram, 0)[0x4ff..], [0x5a, 0]);
        assert_eq!(read::<1>(&ram, 0), [0x5a]);
    }
    let mut image = multiboot(0x100);
    put(&mut image, 72, &0x300u32.to_le_bytes());
    let ram = ram(64);
    load(&ram, &image, &Options { low_memory: &low_memory, ..options() }).unwrap();
    assert_eq!(read::<2>(&ram, 0xff), [0x5a, 0xcc]);
    assert_eq!(read::<2>(&ram, 0x3ff), [0, 0x5a]);
}

#[test]
fn a_multiboot_header_can_give_the_addresses() {
    for (load_end, bss_end) in [(0, 0), (0x10_0100, 0), (0x10_0200, 0x10_1000)] {
        let ram = ram(2);
        let entry = load(&ram, &flat(load_end, bss_end), &options()).unwrap();
        assert_eq!(entry.rip, 0x10_0040);
        assert_eq!(read::<1>(&ram, 0x10_0040), [0xcc]);
    }
    assert!(matches!(fails(2, &flat(0x10_0400, 0)), LoadError::Truncated { .. }));
    assert!(matches!(fails(2, &flat(0x0f_0000, 0)), LoadError::Malformed(_)));
    assert!(matches!(fails(2, &flat(0x10_0100, 0x10_0080)), LoadError::Malformed(_)));
    assert!(matches!(fails(2, &flat(0, 0xffff_ffff)), LoadError::Outside { .. }));
}

#[test]
fn a_virtual_entry_point_of_a_multiboot_image_is_translated_by_its_segment() {
    const CODE: u32 = 5;
    const DATA: u32 = 6;
    let entered = |image: &[u8]| load(&ram(64), image, &options()).map(|entry| entry.rip);
    // The form of GNU Mach: linked at 0xc1000000, loaded at 16 MiB.
    for flags in [CODE, DATA] {
        let mut image = multiboot(KERNEL_AT as u32);
        link(&mut image, 0xc100_0000, flags, 0xc100_0010);
        assert_eq!(entered(&image).unwrap(), KERNEL_AT + 0x10);
        // Also in the part that is not in the file, and nowhere else.
        link(&mut image, 0xc100_0000, flags, 0xc100_1fff);
        assert_eq!(entered(&image).unwrap(), KERNEL_AT + 0x1fff);
        link(&mut image, 0xc100_0000, flags, 0xc100_2000);
        assert!(matches!(fails(64, &image), LoadError::EntryOutside(0xc100_2000)));
        link(&mut image, 0xc100_0000, flags, 0xc0ff_ffff);
        assert!(matches!(fails(64, &image), LoadError::EntryOutside(0xc0ff_ffff)));
        // A physical entry point of such a file.
        link(&mut image, 0xc100_0000, flags, KERNEL_AT as u32 + 4);
        assert_eq!(entered(&image).unwrap(), KERNEL_AT + 4);
    }
    // Where the two readings contradict each other, code counts before a physical address, and that before data.
    for (flags, entry) in [(CODE, KERNEL_AT + 0x10), (DATA, KERNEL_AT + 0x1010)] {
        let mut image = multiboot(KERNEL_AT as u32);
        link(&mut image, KERNEL_AT as u32 + 0x1000, flags, KERNEL_AT as u32 + 0x1010);
        assert_eq!(entered(&image).unwrap(), entry);
    }
    // An address space that ends with the segment.
    let mut image = multiboot(KERNEL_AT as u32);
    link(&mut image, 0xffff_f000, CODE, 0xffff_fffc);
    assert_eq!(entered(&image).unwrap(), KERNEL_AT + 0xffc);
    link(&mut image, 0xffff_f000, CODE, 0x10);
    assert!(matches!(fails(64, &image), LoadError::EntryOutside(0x10)));
}

#[test]
fn a_64_bit_multiboot_image_is_entered_in_protected_mode() {
    let mut image = elf64(KERNEL_AT);
    put(&mut image, 0xb0, &header(3));
    put(&mut image, 56, &[1]);
    for (linked, entry) in [(KERNEL_AT, KERNEL_AT + 16), (0xffff_ffff_8100_0000, 0xffff_ffff_8100_0010)] {
        link64(&mut image, linked, entry);
        let entry = load(&ram(64), &image, &options()).unwrap();
        assert_eq!((entry.mode, entry.rip, entry.rax), (Mode::Protected32, KERNEL_AT + 16, 0x2bad_b002));
    }
}

#[test]
fn virtual_entry_points_of_other_images_are_named() {
    const LINKED: u64 = 0xffff_ffff_8100_0000;
    let mut image = elf64(KERNEL_AT);
    link64(&mut image, LINKED, KERNEL_AT + 16);
    assert_eq!(load(&ram(64), &image, &options()).unwrap().rip, KERNEL_AT + 16);
    link64(&mut image, LINKED, LINKED + 16);
    let named = |error: LoadError, at: u64| match error {
        LoadError::EntryVirtual { entry, physical } => assert_eq!((entry, physical), (LINKED + at, KERNEL_AT + at)),
        error => panic!("{error}"),
    };
    named(fails(64, &image), 16);
    // The entry point of a PVH note of 8 bytes.
    let mut image = pvh(KERNEL_AT);
    link64(&mut image, LINKED, LINKED + 16);
    assert_eq!(load(&ram(64), &image, &options()).unwrap().rip, KERNEL_AT + 32);
    put(&mut image, 120 + 32, &24u64.to_le_bytes());
    put(&mut image, 0x184, &[8]);
    put(&mut image, 0x190, &(LINKED + 32).to_le_bytes());
    named(fails(64, &image), 32);
    put(&mut image, 0x190, &(1u64 << 32).to_le_bytes());
    assert!(matches!(fails(64, &image), LoadError::EntryOutside(0x1_0000_0000)));
}

#[test]
fn segments_and_entry_points_above_4_gib_are_loaded_or_refused() {
    let high = elf64(1 << 32);
    assert!(matches!(fails(64, &high), LoadError::Outside { start: 0x1_0000_0000, .. }));
    // With memory there, the segment is loaded, but the entry state reaches 4 GiB.
    assert!(matches!(fails(3 << 10 | 64, &high), LoadError::EntryOutside(0x1_0000_0010)));
    let mut image = elf64(1 << 32);
    put(&mut image, 0xb0, &header(0));
    put(&mut image, 56, &[1]);
    link64(&mut image, 0x10_0000, 0x10_0010);
    assert!(matches!(fails(3 << 10 | 64, &image), LoadError::EntryOutside(0x10_0010)));
    // Two segments: code at 16 MiB, data above 4 GiB.
    let mut image = elf64(KERNEL_AT);
    image.copy_within(64..120, 120);
    put(&mut image, 120 + 24, &(1u64 << 32).to_le_bytes());
    let ram = ram(3 << 10 | 64);
    assert_eq!(load(&ram, &image, &options()).unwrap().rip, KERNEL_AT + 16);
    assert_eq!(read::<1>(&ram, 1 << 32), [0xcc]);
}

#[test]
fn a_multiboot_image_that_prefers_a_video_mode_is_told_that_there_is_none() {
    let mut image = multiboot(MIB as u32);
    put(&mut image, 0xb0, &header(7));
    let ram = ram(16);
    let entry = load(&ram, &image, &options()).unwrap();
    assert_eq!(read32(&ram, entry.rbx) & (1 << 11 | 1 << 12), 0);
    put(&mut image, 0xb0, &header(15));
    assert!(matches!(fails(16, &image), LoadError::MultibootFlags(15)));
}

#[test]
fn multiboot_2_is_named_unless_there_is_another_way_in() {
    let mut second = [0; 16];
    for (index, word) in [0xe852_50d6, 0, 16, 0u32.wrapping_sub(0xe852_50d6 + 16)].into_iter().enumerate() {
        put(&mut second, 4 * index, &word.to_le_bytes());
    }
    for mut image in [elf64(KERNEL_AT), vec![0xcc; 0x300]] {
        put(&mut image, 0x1c0, &second);
        assert!(matches!(fails(64, &image), LoadError::Multiboot2));
        // A header with a wrong checksum, or at an address that is not a multiple of 8, is none.
        image[0x1c8] ^= 1;
        assert!(!matches!(load(&ram(64), &image, &options()), Err(LoadError::Multiboot2)));
        image[0x1c0..0x1d0].fill(0);
        put(&mut image, 0x1c4, &second);
        assert!(!matches!(load(&ram(64), &image, &options()), Err(LoadError::Multiboot2)));
    }
    for mut image in [pvh(KERNEL_AT), multiboot(KERNEL_AT as u32), flat(0, 0)] {
        put(&mut image, 0x1c0, &second);
        load(&ram(64), &image, &options()).unwrap();
    }
}

#[test]
fn broken_multiboot_headers_are_refused() {
    let mut image = multiboot(MIB as u32);
    image[0xb8] ^= 1;
    assert!(matches!(fails(16, &image), LoadError::MultibootChecksum(0xb0)));
    put(&mut image, 0xb0, &header(8));
    assert!(matches!(fails(16, &image), LoadError::MultibootFlags(8)));
    put(&mut image, 0xb0, &[0; 12]);
    assert!(matches!(fails(16, &image), LoadError::NotAKernel(_)));
}

#[test]
fn broken_elf_files_are_refused() {
    let whole = elf64(KERNEL_AT);
    let change = |offset: usize, value: &[u8]| {
        let mut image = whole.clone();
        put(&mut image, offset, value);
        image
    };
    assert!(matches!(fails(64, &change(18, &[183])), LoadError::WrongMachine(183)));
    assert!(matches!(fails(64, &change(4, &[3])), LoadError::Malformed(_)));
    assert!(matches!(fails(64, &change(5, &[2])), LoadError::WrongMachine(0x3e00)));
    assert!(matches!(fails(64, &change(5, &[3])), LoadError::Malformed(_)));
    assert!(matches!(fails(64, &change(16, &[0])), LoadError::Malformed(_)));
    assert!(matches!(fails(64, &change(54, &[55])), LoadError::Malformed(_)));
    assert!(matches!(fails(64, &change(64, &[0])), LoadError::Malformed(_)));
    assert!(matches!(fails(64, &change(32, &[0xff; 8])), LoadError::Truncated { .. }));
    assert!(matches!(fails(64, &change(64 + 8, &[0xff; 8])), LoadError::Truncated { .. }));
    assert!(matches!(fails(64, &change(64 + 40, &[0x10, 0])), LoadError::Malformed(_)));
    assert!(matches!(fails(64, &change(64 + 40, &[0xff; 8])), LoadError::Outside { .. }));
    assert!(matches!(fails(64, &change(64 + 24, &0xa0000u64.to_le_bytes())), LoadError::Outside { .. }));
    assert!(matches!(fails(64, &change(24, &[0; 8])), LoadError::EntryOutside(0)));
    assert!(matches!(fails(8, &whole), LoadError::TooLittleMemory { .. }));
    let mut twice = whole.clone();
    twice.copy_within(64..120, 120);
    assert!(matches!(fails(64, &twice), LoadError::Overlap { .. }));
}

#[test]
fn what_is_not_a_kernel_is_named() {
    for (bytes, word) in [
        (&b"\xff\xd8\xff\xe0\0\x10JFIF"[..], "JPEG"),
        (b"MZ\x90\0 some program", "DOS program"),
        (b"\x1f\x8b\x08", "gzip"),
        (&[0; 4096], "zeroes"),
        (b"hello, world", "a text file"),
        (b"\x01\x02\x03", "not in a format"),
    ] {
        let message = fails(16, bytes).to_string();
        assert!(message.contains(word) && !message.contains('\n'), "{message}");
    }
    assert!(matches!(fails(16, b""), LoadError::Empty("kernel")));
    let empty = load(&ram(64), &bzimage(), &Options { modules: &initrd(&[]), ..options() });
    assert!(matches!(empty, Err(LoadError::Empty("initrd"))));
    let nul = load(&ram(64), &bzimage(), &Options { cmdline: "a\0b", ..options() });
    assert!(matches!(nul, Err(LoadError::CommandLineNul)));
    assert!(matches!(read_file(Path::new("/nonexistent")), Err(LoadError::Read { .. })));
    assert!(matches!(read_file(Path::new("/")), Err(LoadError::NotAFile(_))));
}

#[test]
fn a_file_larger_than_any_kernel_is_named_and_not_read() {
    use std::os::unix::fs::FileExt;
    let path = std::env::temp_dir().join(format!("tollgate-large-kernel-{}", std::process::id()));
    let file = File::create(&path).unwrap();
    // A sparse file, which takes no room on the disk.
    file.set_len(MAX_KERNEL + 1).unwrap();
    file.write_all_at(b"\x01", 0).unwrap();
    let unknown = read_kernel(&path).unwrap_err();
    file.write_all_at(b"EFI PART", 512).unwrap();
    let disk = read_kernel(&path).unwrap_err().to_string();
    file.set_len(4096).unwrap();
    let small = read_kernel(&path).map(|bytes| bytes.len());
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(unknown, LoadError::TooLarge { len, .. } if len == MAX_KERNEL + 1), "{unknown}");
    assert!(disk.contains("a disk image with a GPT; give it as --disk"), "{disk}");
    assert_eq!(small.unwrap(), 4096);
    assert!(matches!(read_kernel(Path::new("/")), Err(LoadError::NotAFile(_))));
}

#[test]
fn every_truncation_is_refused() {
    for image in [bzimage(), elf64(KERNEL_AT), pvh(KERNEL_AT), multiboot(MIB as u32)] {
        let ram = ram(64);
        // The size of a bzImage is in paragraphs: up to 15 bytes of the last one may be missing.
        let whole = if linux::is_bzimage(&Image(&image)) { image.len() - 15 } else { image.len() };
        for len in 0..whole {
            assert!(load(&ram, &image[..len], &options()).is_err(), "{len} of {}", image.len());
        }
    }
}

#[test]
fn an_image_that_fills_conventional_memory_leaves_no_room() {
    let mut image = multiboot(0x1000);
    put(&mut image, 72, &((layout::CONVENTIONAL_END - 0x1000) as u32).to_le_bytes());
    assert!(matches!(fails(16, &image), LoadError::NoLowMemory(_)));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn mutations_never_panic(
        which in 0usize..5,
        changes in prop::collection::vec((0usize..0x300, prop_oneof![any::<u8>(), Just(0), Just(0xff), Just(0x7f)]), 1..12),
        modules in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..4),
    ) {
        let mut image = match which {
            0 => bzimage(),
            1 => elf64(MIB),
            2 => pvh(MIB),
            3 => multiboot(MIB as u32),
            _ => flat(0, 0),
        };
        for (offset, value) in changes {
            let offset = offset % image.len();
            image[offset] = value;
        }
        let ram = ram(18);
        let modules: Vec<Module> = modules.iter().map(|bytes| module(bytes, "module with arguments")).collect();
        if let Err(error) = load(&ram, &image, &Options { modules: &modules, low_memory: &[1; 0x500], ..options() }) {
            prop_assert!(!error.to_string().contains('\n'));
        }
    }
}

/// Returns `len` zeroes with these bytes at these offsets.
fn head(len: usize, parts: &[(usize, &[u8])]) -> Vec<u8> {
    let mut image = vec![0; len];
    for (at, bytes) in parts {
        put(&mut image, *at, bytes);
    }
    image
}

/// Returns the head of a PE file with one section.
fn pe(machine: u16, subsystem: u16, section: &[u8]) -> Vec<u8> {
    let (machine, subsystem) = (machine.to_le_bytes(), subsystem.to_le_bytes());
    let parts: [(usize, &[u8]); 8] = [
        (0, b"MZ"),
        (0x3c, &[0x80]),
        (0x80, b"PE\0\0"),
        (0x84, &machine),
        (0x86, &[1]),
        (0x94, &[0xf0]),
        (0x98 + 68, &subsystem),
        (0x98 + 0xf0, section),
    ];
    head(0x400, &parts)
}

fn refused(image: &[u8], words: &[&str]) {
    let message = fails(64, image).to_string();
    assert!(words.iter().all(|word| message.contains(word)), "{words:?}: {message}");
    assert!(!message.contains('\n') && !message.contains("  "), "{message}");
}

#[test]
fn boot_loaders_firmware_and_disks_are_named_with_what_is_missing() {
    let jump = 0x1_0000 - 16;
    for (image, words) in [
        (pe(0x8664, 10, b".text\0\0\0"), ["UEFI application", "no UEFI firmware"]),
        (pe(0x14c, 11, b".text\0\0\0"), ["UEFI application", "no UEFI firmware"]),
        (pe(0xaa64, 10, b".text\0\0\0"), ["UEFI application (PE) for another processor", "x86"]),
        (pe(0x8664, 10, b".linux\0\0"), ["unified kernel image", "objcopy"]),
        (pe(0x8664, 3, b".text\0\0\0"), ["Windows program", "expected"]),
        (head(64, &[(0, b"MZ")]), ["DOS program", "expected"]),
        (head(0x9000, &[(0x1fe, &[0x55, 0xaa]), (0x8001, b"CD001")]), ["ISO 9660", "take kernel and initrd"]),
        (head(0x9000, &[(0x1fe, &[0x55, 0xaa])]), ["boot sector", "no BIOS"]),
        (head(440, &[(0, b"\x33\xc0\xfa\x8e\xd8")]), ["master boot record", "no BIOS"]),
        (head(0x9000, &[(0x1fe, &[0x55, 0xaa]), (512, b"EFI PART")]), ["GPT", "--disk"]),
        (head(0x9000, &[(0x1fe, &[0x55, 0xaa]), (0x36, b"FAT12   ")]), ["FAT file system", "--disk"]),
        (head(0x9000, &[(0x438, b"\x53\xef")]), ["ext4", "--disk"]),
        (head(0x1000, &[(0, b"QFI\xfb")]), ["qcow2", "qemu-img"]),
        (head(0x1000, &[(0x28, b"_FVH")]), ["firmware volume", "no firmware"]),
        (head(0x3000, &[(0, &[0, 4, 0, 0x14]), (0x1028, b"_FVH")]), ["firmware volume", "no firmware"]),
        (head(0x1_0000, &[(jump, b"\xea\x5b\xe0\0\xf0")]), ["firmware ROM", "no firmware"]),
        (head(0x400, &[(0, &[0x55, 0xaa, 2, 0xeb])]), ["option ROM", "no BIOS"]),
        (head(0x400, &[(0, b"\xea\x05\0\xc0\x07")]), ["iPXE", "no BIOS"]),
        (head(0x400, &[(0, b"\xea\x1c\x82\0\0")]), ["GRUB", "no BIOS"]),
        (head(64, &[(0, b"\x1f\x8b\x08")]), ["gzip", "unpacked first"]),
        (head(64, &[(0, b"070701")]), ["initramfs", "--initrd"]),
        (head(64, &[(0x38, b"ARM\x64")]), ["arm64", "x86"]),
        (head(64, &[(0, b"MZ"), (0x38, b"RSC\x05")]), ["RISC-V", "x86"]),
        (head(64, &[(0, b"\x27\x05\x19\x56")]), ["uImage", "out of it"]),
        (head(64, &[(0, b"!<arch>\ndebian-binary")]), ["Debian package", "out of it"]),
    ] {
        refused(&image, &words);
    }
    // A boot loader that looks for kernels with a multiboot header contains its magic.
    let mut image = pe(0x8664, 10, b".text\0\0\0");
    put(&mut image, 0x3f0, &0x1bad_b002u32.to_le_bytes());
    refused(&image, &["UEFI application"]);
    put(&mut image, 0x3f0, &header(0));
    refused(&image, &["UEFI application"]);
    let mut image = bzimage();
    put(&mut image, 0x20e, &0x800u16.to_le_bytes());
    put(&mut image, 0xa00, b"MEMDISK 6.04");
    refused(&image, &["MEMDISK", "no BIOS"]);
}

/// Changes the second program header of an ELF64 file: type, and contents at 0x180.
fn second(image: &mut [u8], kind: u32, contents: &[u8]) {
    put(image, 120, &kind.to_le_bytes());
    put(image, 120 + 8, &0x180u64.to_le_bytes());
    put(image, 120 + 32, &(contents.len() as u64).to_le_bytes());
    put(image, 120 + 48, &4u64.to_le_bytes());
    put(image, 0x180, contents);
}

fn note(owner: &[u8], kind: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![owner.len() as u8, 0, 0, 0, value.len() as u8, 0, 0, 0, kind, 0, 0, 0];
    for part in [owner, value] {
        bytes.extend(part);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    bytes
}

#[test]
fn a_segment_of_notes_may_be_filled_up_with_zeros() {
    const NOTE: u32 = 4;
    let entry = note(b"Xen\0", 18, &(KERNEL_AT as u32 + 32).to_le_bytes());
    let other = note(b"Linux\0", 1, &[0; 4]);
    for padding in 0..40 {
        let rip = |notes: &[u8]| {
            let mut image = elf64(KERNEL_AT);
            second(&mut image, NOTE, &[notes, &vec![0; padding]].concat());
            load(&ram(64), &image, &options()).map(|entry| entry.rip)
        };
        assert_eq!(rip(&entry).unwrap(), KERNEL_AT + 32, "{padding}");
        if padding == 0 || padding >= 12 {
            assert_eq!(rip(&other).unwrap(), KERNEL_AT + 16, "{padding}");
        } else {
            assert!(matches!(rip(&other), Err(LoadError::Malformed(_))), "{padding}");
        }
    }
}

#[test]
fn elf_files_that_are_not_kernels_are_named() {
    const DYNAMIC: u32 = 2;
    const INTERP: u32 = 3;
    const NOTE: u32 = 4;
    const TLS: u32 = 7;
    for (kind, contents, word) in [
        (INTERP, b"/lib64/ld-linux-x86-64.so.2\0".to_vec(), "program for an operating system"),
        (TLS, vec![], "program for an operating system"),
        (NOTE, note(b"GNU\0", 1, &[0; 16]), "program for an operating system"),
        (NOTE, note(b"Go\0", 4, b"id"), "program for an operating system"),
        (DYNAMIC, vec![0; 16], "shared library"),
        (INTERP, b"/red/herring\0".to_vec(), "BSD"),
        (NOTE, note(b"NetBSD\0", 1, &[0; 4]), "BSD"),
        (NOTE, note(b"Xen\0", 6, b"GNU Mach"), "Xen"),
    ] {
        let mut image = elf64(KERNEL_AT);
        second(&mut image, kind, &contents);
        refused(&image, &[word]);
        put(&mut image, 0xb0, &0x1bad_b002u32.to_le_bytes());
        refused(&image, &[word]);
        // The same file boots with a multiboot header or with a PVH note, as FreeBSD's kernel has beside its interpreter.
        put(&mut image, 0xb0, &header(0));
        load(&ram(64), &image, &options()).unwrap();
        let mut image = elf64(KERNEL_AT);
        image.resize(0x400, 0);
        second(&mut image, kind, &contents);
        put(&mut image, 56, &[3]);
        let pvh = note(b"Xen\0", 18, &(KERNEL_AT as u32 + 32).to_le_bytes());
        image.copy_within(64..120, 176);
        put(&mut image, 176, &[4, 0, 0, 0, 4]);
        put(&mut image, 176 + 8, &0x300u64.to_le_bytes());
        put(&mut image, 176 + 32, &(pvh.len() as u64).to_le_bytes());
        put(&mut image, 176 + 48, &4u64.to_le_bytes());
        put(&mut image, 0x300, &pvh);
        assert_eq!(load(&ram(64), &image, &options()).unwrap().rip, KERNEL_AT + 32, "{word}");
        // Notes in a section count as well.
        put(&mut image, 176, &[0, 0, 0, 0]);
        put(&mut image, 40, &0x340u64.to_le_bytes());
        put(&mut image, 58, &[64, 0, 2]);
        put(&mut image, 0x380 + 4, &[7]);
        put(&mut image, 0x380 + 24, &0x300u64.to_le_bytes());
        put(&mut image, 0x380 + 32, &(pvh.len() as u64).to_le_bytes());
        put(&mut image, 0x380 + 48, &[4]);
        assert_eq!(load(&ram(64), &image, &options()).unwrap().rip, KERNEL_AT + 32, "{word}");
    }
    // Linux for Xen has such a note as well, and is a vmlinux.
    let mut image = elf64(KERNEL_AT);
    second(&mut image, NOTE, &note(b"Xen\0", 6, b"linux"));
    load(&ram(64), &image, &options()).unwrap();
    for (kind, word) in [(1, "object file"), (4, "core dump")] {
        let mut image = elf64(KERNEL_AT);
        image[16] = kind;
        refused(&image, &[word]);
    }
    for (machine, name) in [(183u16, "arm64"), (243, "RISC-V"), (9999, "machine 9999")] {
        let mut image = elf64(KERNEL_AT);
        put(&mut image, 18, &machine.to_le_bytes());
        refused(&image, &[name]);
        image[5] = 2;
        put(&mut image, 18, &machine.to_be_bytes());
        refused(&image, &[name]);
    }
    let mut image = multiboot(MIB as u32);
    put(&mut image, 0xb0, &[0; 12]);
    refused(&image, &["32-bit ELF file without a multiboot header or a PVH note"]);
}
