//! Tests that look for firmware's results as later software does.

use super::*;
use crate::memory::E820Kind;
use crate::{Host, Machine, Outcome, Poll};

fn config(cpus: u32) -> FirmwareConfig {
    FirmwareConfig {
        apic_ids: (0..cpus).collect(),
        io_apic_id: 0,
        processor: SmbiosProcessor {
            manufacturer: "GenuineIntel".into(),
            name: "Some CPU".into(),
            id: [1, 2],
            mhz: 2100,
        },
        virtual_machine: false,
        second_of_day: 3600,
    }
}

fn installed(bytes: u64, cpus: u32) -> (GuestRam, Firmware) {
    let ram = GuestRam::new(bytes).unwrap();
    let firmware = install(&ram, &config(cpus)).unwrap();
    (ram, firmware)
}

fn read(ram: &GuestRam, address: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    assert!(ram.read(address, &mut bytes));
    bytes
}

fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, b| sum.wrapping_add(*b))
}

#[test]
fn the_data_area_leads_to_the_extended_one() {
    let (ram, firmware) = installed(64 << 20, 1);
    let low = &firmware.low_memory;
    assert_eq!(low.len(), 0x500);
    let ebda = number(low, 0x40e, 2) << 4;
    assert_eq!(number(low, 0x413, 2) << 10, ebda);
    assert_eq!(number(&read(&ram, ebda, 1), 0, 1) << 10, 0xa_0000 - ebda);
    // Conventional memory has the same end in the memory map.
    let first = ram.e820()[0];
    assert_eq!((first.start, first.len, first.kind), (0, ebda, E820Kind::Usable));
    assert_eq!(number(low, 0x400, 2), 0x3f8);
    assert_eq!(number(low, 0x410, 2) >> 9 & 7, 1, "serial ports");
    let [head, tail, start, end] = [0x41a, 0x41c, 0x480, 0x482].map(|at| number(low, at, 2));
    assert_eq!((head, tail, end), (start, start, start + 32));
    assert_eq!(number(low, 0x46c, 4), 65_543, "an hour of 18.2 Hz");
}

#[test]
fn the_root_pointer_is_found_by_a_search() {
    let (ram, firmware) = installed(64 << 20, 1);
    let found = (0xe_0000..0x10_0000).step_by(16).find(|&at| read(&ram, at, 8) == b"RSD PTR ");
    assert_eq!(found, Some(firmware.rsdp));
}

/// Returns the tables to which an entry point refers: type, formatted part, strings.
fn structures(ram: &GuestRam, address: u64, len: u64) -> Vec<(u8, Vec<u8>, Vec<String>)> {
    let bytes = read(ram, address, len as usize);
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let formatted = bytes[at..at + usize::from(bytes[at + 1])].to_vec();
        at += formatted.len();
        let end = at + bytes[at..].windows(2).position(|pair| pair == [0, 0]).unwrap();
        let strings = bytes[at..end].split(|&b| b == 0).filter(|s| !s.is_empty());
        let strings = strings.map(|s| String::from_utf8(s.to_vec()).unwrap()).collect();
        found.push((formatted[0], formatted, strings));
        at = end + 2;
    }
    assert_eq!(at, bytes.len());
    found
}

fn smbios(ram: &GuestRam) -> Vec<(u8, Vec<u8>, Vec<String>)> {
    let at =
        |anchor: &[u8]| (0xf_0000..0x10_0000).step_by(16).find(|&at| read(ram, at, anchor.len()) == anchor).unwrap();
    let old = read(ram, at(b"_SM_"), 31);
    assert_eq!((usize::from(old[5]), sum(&old), &old[16..21], sum(&old[16..])), (31, 0, &b"_DMI_"[..], 0));
    let new = read(ram, at(b"_SM3_"), 24);
    assert_eq!((usize::from(new[6]), sum(&new)), (24, 0));
    let found = structures(ram, number(&new, 16, 8), number(&new, 12, 4));
    assert_eq!(structures(ram, number(&old, 24, 4), number(&old, 22, 2)), found);
    assert_eq!(number(&old, 28, 2), found.len() as u64);
    let longest =
        found.iter().map(|(_, f, s)| f.len() + (s.iter().map(|s| s.len() + 1).sum::<usize>()).max(1) + 1).max();
    assert_eq!(Some(number(&old, 8, 2) as usize), longest);
    found
}

#[test]
fn both_smbios_entry_points_lead_to_tables_that_are_whole() {
    for (mib, cpus) in [(1, 1), (64, 2), (5 << 10, 255), (1 << 20, 255)] {
        let (ram, _) = installed(mib << 20, cpus);
        let found = smbios(&ram);
        let mut handles: Vec<u64> = found.iter().map(|(_, formatted, _)| number(formatted, 2, 2)).collect();
        handles.sort_unstable();
        handles.dedup();
        assert_eq!(handles.len(), found.len());
        for kind in [0, 1, 3, 4, 16, 17, 19, 32] {
            assert!(found.iter().any(|(k, _, _)| *k == kind), "type {kind}");
        }
        assert_eq!(found.last().unwrap().0, 127);
        let of = |kind: u8| found.iter().filter(move |(k, _, _)| *k == kind).map(|(_, formatted, _)| formatted);
        let devices: u64 = of(17).map(|d| number(d, 0xc, 2)).sum();
        assert_eq!(devices, mib);
        assert_eq!(number(of(16).next().unwrap(), 0xd, 2), of(17).count() as u64);
        let mapped = of(19).map(|m| match number(m, 4, 4) {
            0xffff_ffff => number(m, 0x17, 8) + 1 - number(m, 0xf, 8),
            start => (number(m, 8, 4) + 1 - start) << 10,
        });
        assert_eq!(mapped.sum::<u64>(), mib << 20);
        let processor = of(4).next().unwrap();
        assert_eq!((number(processor, 0x14, 2), number(processor, 0x2a, 2)), (2100, u64::from(cpus)));
    }
}

#[test]
fn a_virtual_machine_says_so() {
    for virtual_machine in [false, true] {
        let ram = GuestRam::new(1 << 20).unwrap();
        install(&ram, &FirmwareConfig { virtual_machine, ..config(1) }).unwrap();
        assert_eq!(smbios(&ram)[0].1[0x13] & 0x10 != 0, virtual_machine);
    }
}

#[test]
fn every_vector_leads_to_a_handler() {
    let (ram, firmware) = installed(1 << 20, 1);
    for vector in 0..256 {
        let (offset, segment) =
            (number(&firmware.low_memory, 4 * vector, 2), number(&firmware.low_memory, 4 * vector + 2, 2));
        let code = read(&ram, (segment << 4) + offset, 32);
        assert!(code.contains(&0xcf), "vector {vector:#x}");
    }
    assert_eq!(number(&firmware.low_memory, 4 * 0x73, 4), 0xf000_ff10);
    // Handlers overlap neither each other nor the tables.
    let mut code: Vec<_> = handlers::CODE.iter().map(|h| h.address()..h.address() + h.code.len() as u64).collect();
    code.push(layout::SMBIOS);
    code.sort_by_key(|range| range.start);
    assert!(code.windows(2).all(|pair| pair[0].end <= pair[1].start));
}

/// Code at 0x8000 in 32-bit protected mode: it switches to real mode, calls INT 11h, 12h, 15h and 16h, stores their
/// results at 0x9000, waits for a tick of the timer, and ends with status 7.
#[rustfmt::skip]
const REAL_MODE: [u8; 124] = [
    // lgdt [0x8070]; jmp 8:0x800e
    0x0f, 0x01, 0x15, 0x70, 0x80, 0x00, 0x00, 0xea, 0x0e, 0x80, 0x00, 0x00, 0x08, 0x00,
    // mov eax, cr0; and al, 0xfe; mov cr0, eax; jmp 0:0x801b
    0x0f, 0x20, 0xc0, 0x24, 0xfe, 0x0f, 0x22, 0xc0, 0xea, 0x1b, 0x80, 0x00, 0x00,
    // xor ax, ax; mov ds, ax; mov ss, ax; mov sp, 0x7c00; lidt [0x8076]
    0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xd0, 0xbc, 0x00, 0x7c, 0x0f, 0x01, 0x1e, 0x76, 0x80,
    // int 0x11; mov [0x9000], ax; int 0x12; mov [0x9002], ax
    0xcd, 0x11, 0xa3, 0x00, 0x90, 0xcd, 0x12, 0xa3, 0x02, 0x90,
    // clc; int 0x15; setc [0x9004]; mov [0x9005], ah; stc; int 0x16; setc [0x9006]
    0xf8, 0xcd, 0x15, 0x0f, 0x92, 0x06, 0x04, 0x90, 0x88, 0x26, 0x05, 0x90, 0xf9, 0xcd, 0x16, 0x0f, 0x92, 0x06, 0x06, 0x90,
    // mov eax, [0x46c]; sti; wait: hlt; cmp [0x46c], eax; je wait; cli
    0x66, 0xa1, 0x6c, 0x04, 0xfb, 0xf4, 0x66, 0x39, 0x06, 0x6c, 0x04, 0x74, 0xf8, 0xfa,
    // mov al, 3; out 0xf4, al; hlt; jmp; padding
    0xb0, 0x03, 0xe6, 0xf4, 0xf4, 0xeb, 0xfd, 0, 0, 0, 0,
    // A descriptor table with a 16-bit code segment; pseudo-descriptors for it and for the interrupt vectors
    0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0x9b, 0, 0, 0x0f, 0, 0x60, 0x80, 0, 0, 0xff, 0x03, 0, 0, 0, 0,
];

struct Nobody;

impl Host for Nobody {
    fn output(&mut self, _: &[u8]) {}
    fn poll(&mut self, now: ledger::Ticks, _: bool) -> Poll {
        // Stops after one second of virtual time at the latest.
        Poll { stop: now > 2_100_000_000_000, ..Poll::default() }
    }
    fn idle(&mut self, _: std::time::Duration) {}
}

#[test]
fn an_image_that_goes_back_to_real_mode_finds_a_bios_s_handlers() {
    const LOAD: u32 = 0x7fd0;
    const ENTRY: u32 = 0x8000;
    let (flags, end) = (1u32 << 16, ENTRY + REAL_MODE.len() as u32);
    let checksum = 0u32.wrapping_sub(0x1bad_b002 + flags);
    let head = [0x1bad_b002, flags, checksum, LOAD, LOAD, end, end, ENTRY, 0, 0, 0, 0];
    let config = crate::Config {
        memory: 4 << 20,
        cpus: 1,
        profile: ledger::Profile::named("skx").unwrap(),
        kernel: head.iter().flat_map(|word| word.to_le_bytes()).chain(REAL_MODE).collect(),
        kernel_name: "real".into(),
        modules: Vec::new(),
        cmdline: String::new(),
        parts: crate::board::Parts::default(),
        clock: crate::ClockSource::Virtual,
        branches: false,
        platform: crate::Platform::Bare,
        tier: cpu::Tier::Interpreter,
    };
    let mut machine = Machine::new(config).unwrap();
    assert_eq!(machine.run(&mut Nobody), Outcome::DebugExit(7));
    let found = read(&machine.ram, 0x9000, 7);
    assert_eq!((number(&found, 0, 2), number(&found, 2, 2)), (0x206, 639));
    assert_eq!(found[4..], [1, 0x86, 1], "carry of INT 15h and its error, carry of INT 16h as it was");
    assert_eq!(number(&read(&machine.ram, 0x46c, 4), 0, 4), 1, "ticks");
}
