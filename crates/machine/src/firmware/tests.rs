//! Looks for what firmware leaves as software that runs after it does.

use super::*;
use crate::memory::E820Kind;

fn config(cpus: u32) -> Config {
    Config {
        apic_ids: (0..cpus).collect(),
        io_apic_id: 0,
        processor: Processor { manufacturer: "GenuineIntel".into(), name: "Some CPU".into(), id: [1, 2], mhz: 2100 },
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
    // Conventional memory ends there in the memory map, too.
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

/// The tables that an entry point leads to: type, formatted part, strings.
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
        install(&ram, &Config { virtual_machine, ..config(1) }).unwrap();
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
    // Handlers neither overlap each other nor the tables.
    let mut code: Vec<_> = handlers::CODE.iter().map(|h| h.address()..h.address() + h.code.len() as u64).collect();
    code.push(layout::SMBIOS);
    code.sort_by_key(|range| range.start);
    assert!(code.windows(2).all(|pair| pair[0].end <= pair[1].start));
}
