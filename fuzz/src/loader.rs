//! Kernel images, initial RAM disks and command lines: each is loaded, or refused in one line.

use ::ledger::symbols;
use arbitrary::Unstructured;
use machine::loader::{self, Mode, Module, Options};
use machine::memory::GuestRam;

const MIB: u64 = 1 << 20;

/// Splits the bytes into options, initrd and kernel, and loads them; reads symbols from the kernel as a report would.
pub fn run(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let Ok((choices, cmdline_len, initrd_len)) = input.arbitrary::<(u8, u16, u16)>() else { return };
    let mut part = |len: u16| {
        let len = usize::from(len).min(input.len());
        input.bytes(len).unwrap_or_default()
    };
    let cmdline = String::from_utf8_lossy(part(cmdline_len)).into_owned();
    let module = Module { bytes: part(initrd_len).to_vec(), cmdline: cmdline.clone(), file: String::new() };
    let modules = vec![module; 4];
    let kernel = input.take_rest();
    // Most inputs have room for a kernel at 16 MiB, the address of the seeds' kernels.
    let size = [MIB, 16 * MIB, 32 * MIB, 32 * MIB][usize::from(choices & 3)];
    let ram = GuestRam::new(size).expect("the host has memory");
    let options = Options {
        name: "kernel",
        cmdline: &cmdline,
        modules: &modules[..if choices & 4 == 0 { 0 } else { 1 + usize::from(choices >> 6) }],
        rsdp: (choices & 8 != 0).then_some(0xe_0000),
        low_memory: &[1; 0x500],
    };
    match loader::load(&ram, kernel, &options) {
        Ok(entry) => {
            let limit = if entry.mode == Mode::Long64 { u64::from(u32::MAX) } else { size };
            assert!(entry.rip <= limit, "entered at {:#x}", entry.rip);
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
    if choices & 16 != 0 {
        let vmlinux = symbols::vmlinux_from_bzimage(kernel);
        let image = vmlinux.as_deref().unwrap_or(kernel);
        drop(symbols::kallsyms(image, Some(0xffff_ffff_8100_0000)));
        drop(symbols::elf(image, 0));
        symbols::system_map(&cmdline, 0);
    }
}

fn put(image: &mut [u8], at: usize, bytes: &[u8]) {
    image[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Returns a bzImage that needs a mebibyte at 16 MiB.
fn bz_image() -> Vec<u8> {
    let mut image = vec![0x90; 2 * 512 + 0x400];
    image[..1024].fill(0);
    put(&mut image, 0x1f1, &[1]);
    put(&mut image, 0x1f4, &(0x400u32 / 16).to_le_bytes());
    put(&mut image, 0x1fe, &[0x55, 0xaa, 0xeb, 0x66]);
    put(&mut image, 0x202, b"HdrS\x0f\x02");
    put(&mut image, 0x211, &[1]);
    put(&mut image, 0x214, &(MIB as u32).to_le_bytes());
    put(&mut image, 0x22c, &0x7fff_ffffu32.to_le_bytes());
    put(&mut image, 0x230, &0x20_0000u32.to_le_bytes());
    put(&mut image, 0x234, &[1, 21, 3, 0]);
    put(&mut image, 0x238, &2047u32.to_le_bytes());
    put(&mut image, 0x258, &(16 * MIB).to_le_bytes());
    put(&mut image, 0x260, &(MIB as u32).to_le_bytes());
    image
}

/// Returns an ELF file with a segment at 16 MiB; with `pvh`, it has a note with the PVH entry point.
fn elf(pvh: bool) -> Vec<u8> {
    let mut image = vec![0xcc; 0x280];
    image[..0x200].fill(0);
    put(&mut image, 0, b"\x7fELF\x02\x01\x01");
    put(&mut image, 16, &[2, 0, 62, 0, 1]);
    put(&mut image, 24, &(16 * MIB + 16).to_le_bytes());
    put(&mut image, 32, &64u64.to_le_bytes());
    put(&mut image, 54, &[56, 0, 1 + u8::from(pvh), 0]);
    put(&mut image, 64, &[1, 0, 0, 0, 7]);
    for (at, value) in [(8, 0x200), (24, 16 * MIB), (32, 0x80), (40, 0x2000)] {
        put(&mut image, 64 + at, &value.to_le_bytes());
    }
    put(&mut image, 120, &[4, 0, 0, 0, 4]);
    for (at, value) in [(8, 0x180u64), (32, 20), (48, 4)] {
        put(&mut image, 120 + at, &value.to_le_bytes());
    }
    put(&mut image, 0x180, b"\x04\0\0\0\x04\0\0\0\x12\0\0\0Xen\0");
    put(&mut image, 0x190, &(16 * MIB as u32 + 32).to_le_bytes());
    image
}

/// Returns a multiboot image: with addresses in its header, or as a 32-bit ELF file.
fn multiboot(addresses: bool) -> Vec<u8> {
    let mut image = vec![0xcc; 0x200];
    let flags = u32::from(addresses) << 16 | 3;
    let mut header = Vec::new();
    for word in [0x1bad_b002, flags, 0u32.wrapping_sub(0x1bad_b002 + flags)] {
        header.extend(word.to_le_bytes());
    }
    for word in [0x10_00b0u32, 0x10_0000, 0x10_0200, 0x10_1000, 0x10_0100] {
        header.extend(word.to_le_bytes());
    }
    if !addresses {
        put(&mut image, 0, b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x03\0\x01\0\0\0\x10\0\x10\0\x34\0\0\0");
        put(&mut image, 42, &[32, 0, 1, 0]);
        for (at, word) in [(0, 1u32), (4, 0x100), (12, 0x10_0000), (16, 0x100), (20, 0x2000)] {
            put(&mut image, 52 + at, &word.to_le_bytes());
        }
    }
    put(&mut image, 0xb0, &header);
    image
}

/// Returns one image of each kind, with and without its accompanying parts.
pub fn seeds() -> Vec<Vec<u8>> {
    let images = [bz_image(), elf(true), elf(false), multiboot(true), multiboot(false), b"\xff\xd8\xff\xe0".to_vec()];
    let mut seeds = Vec::new();
    for image in &images {
        for choices in [0x02u8, 0x1f] {
            let mut seed = vec![choices, 3, 0, 4, 0];
            seed.extend(b"a=bcpio");
            seed.extend(image);
            seeds.push(seed);
        }
    }
    seeds
}
