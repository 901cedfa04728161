//! Tests of the walker alone: interpretation of entries in each layout, and agreement of the processor's walk with
//! inspection.

use crate::access::{Access, Privilege};
use crate::fault::Cause;
use crate::paging::*;
use crate::ram::Ram;
use crate::testing::{self, Random};
use std::collections::BTreeMap;
use x86::control::*;
use x86::ept;
use x86::page::*;
use x86::vector;

/// Memory as words, and the order of their accesses.
#[derive(Default)]
struct Words {
    words: BTreeMap<u64, u64>,
    read: Vec<u64>,
    written: Vec<(u64, u64)>,
}

/// Error: there is no memory at the address.
#[derive(Debug, PartialEq, Eq)]
struct Nowhere(u64);

impl ReadEntry for Words {
    type Stop = Nowhere;

    fn read(&mut self, address: u64, _: bool) -> Result<u64, Nowhere> {
        self.read.push(address);
        self.words.get(&address).copied().ok_or(Nowhere(address))
    }
}

impl UpdateEntry for Words {
    fn update(&mut self, address: u64, _: bool, value: u64) -> Result<(), Nowhere> {
        self.written.push((address, value));
        Ok(())
    }
}

/// Returns the reserved bits, of 51:13, in an entry that maps a page of 2^`shift` bytes, from the manual's tables.
fn reserved_of_page(shift: u32) -> u64 {
    match shift {
        SHIFT => 0,
        SHIFT_2M => 0x001f_e000,
        SHIFT_1G => 0x3fff_e000,
        _ => unreachable!(),
    }
}

#[test]
fn reserved_bits_are_those_of_the_manual() {
    for (long, nxe, physical_bits) in
        [(true, true, 46), (true, false, 52), (true, true, 36), (false, true, 40), (false, false, 36)]
    {
        let layout = Layout64::new(long, nxe, physical_bits);
        let always = (0..64).filter(|bit| {
            (*bit == 63 && !nxe) || ((52..63).contains(bit) && !long) || (physical_bits..52).contains(bit)
        });
        let always = always.fold(0, |all, bit| all | 1u64 << bit);
        for shift in [SHIFT, SHIFT_2M, SHIFT_1G, SHIFT_PML4, SHIFT_PML5] {
            for page in [false, true].into_iter().filter(|page| !*page || shift <= SHIFT_1G) {
                let kind = if page && shift != SHIFT { PS } else { 0 };
                let here = match (page, shift) {
                    (true, _) => reserved_of_page(shift),
                    (false, SHIFT_PML4 | SHIFT_PML5) => PS,
                    // With PS the entry would map a page.
                    (false, _) => 0,
                };
                for bit in 0..64 {
                    let entry = P | kind | 1 << bit;
                    if layout.is_page(entry, shift) != page {
                        continue;
                    }
                    let expected = (always | here) >> bit & 1 != 0;
                    assert_eq!(layout.is_reserved(entry, shift, page), expected, "{layout:?} {shift} {page} bit {bit}");
                }
            }
        }
    }
}

#[test]
fn pages_of_4_mib_have_as_many_address_bits_as_the_processor() {
    for (physical_bits, high) in [(32, 0), (36, 0x0001_e000), (40, 0x001f_e000), (46, 0x001f_e000)] {
        let layout = Layout32::new(true, physical_bits);
        for bit in 0..32 {
            let entry = P | PS | 1 << bit;
            let reserved = bit == 21 || HIGH_4M & !high & 1 << bit != 0;
            assert_eq!(layout.is_reserved(entry, SHIFT_4M, true), reserved, "{physical_bits} bits, bit {bit}");
            assert!(!layout.is_reserved(entry, SHIFT, true) && !layout.is_reserved(entry, SHIFT_4M, false));
        }
    }
    let layout = Layout32::new(true, 40);
    assert_eq!(layout.page(0x1240_0000 | 0x5a << HIGH_4M_SHIFT | P | PS, SHIFT_4M), 0x5a_1240_0000);
    assert!(!Layout32::new(false, 40).is_page(P | PS, SHIFT_4M), "without CR4.PSE the bit is ignored");
}

#[test]
fn misconfigured_entries_are_those_of_the_manual() {
    let layout = LayoutEpt::new(!((1 << 46) - 1));
    let leaf = ept::RIGHTS | ept::WRITE_BACK << ept::TYPE_SHIFT;
    for rights in 1..8 {
        let bad = rights & 3 == ept::WRITE;
        assert_eq!(layout.is_reserved(leaf & !ept::RIGHTS | rights, SHIFT, true), bad, "rights {rights}");
        assert_eq!(layout.is_reserved(rights, SHIFT_PML4, false), bad, "rights {rights}");
    }
    for kind in 0..8 {
        let entry = leaf & !(ept::TYPE_MASK << ept::TYPE_SHIFT) | kind << ept::TYPE_SHIFT;
        assert_eq!(layout.is_reserved(entry, SHIFT, true), matches!(kind, 2 | 3 | 7), "memory type {kind}");
    }
    for (shift, page, reserved) in [
        (SHIFT, true, 0u64),
        (SHIFT_2M, true, 0x001f_f000),
        (SHIFT_1G, true, 0x3fff_f000),
        (SHIFT_2M, false, 0x78),
        (SHIFT_1G, false, 0x78),
        (SHIFT_PML4, false, 0xf8),
    ] {
        let base = if page { leaf | if shift == SHIFT { 0 } else { ept::LARGE } } else { ept::RIGHTS };
        for bit in (7..64).chain(if page { 7..7 } else { 3..7 }) {
            let entry = base | 1 << bit;
            if layout.is_page(entry, shift) != page {
                continue;
            }
            let expected = reserved >> bit & 1 != 0 || (46..52).contains(&bit);
            assert_eq!(layout.is_reserved(entry, shift, page), expected, "{shift} {page} bit {bit}");
        }
    }
}

#[test]
fn levels_are_counted_from_the_smallest_pages() {
    assert_eq!([SHIFT, SHIFT_4M].map(level::<Layout32>), [1, 2]);
    assert_eq!([SHIFT, SHIFT_2M, SHIFT_1G, SHIFT_PML4, SHIFT_PML5].map(level::<Layout64>), [1, 2, 3, 4, 5]);
}

/// Returns five consecutive tables that map an address with these flags in their entries.
fn five(flags: [u64; 5]) -> (Words, Root, u64) {
    let address = 0x00ab_cdef_0123_4567u64;
    let mut words = Words::default();
    for (i, flags) in flags.into_iter().enumerate() {
        let (table, shift) = (0x1000 * (i as u64 + 1), SHIFT_PML5 - 9 * i as u32);
        words.words.insert(table + (address >> shift & 0x1ff) * 8, (table + 0x1000) | flags);
    }
    (words, Root { table: 0x1000, shift: SHIFT_PML5 }, address)
}

#[test]
fn a_walk_keeps_what_it_read_and_marks_it_from_the_top() {
    let flags = [P | RW | US, P | RW | US | A, P | US, P | RW | US | NX, P | RW | US];
    let (mut words, root, address) = five(flags);
    let layout = Layout64::new(true, true, 46);
    let mut path = Path::default();
    let leaf = walk(&layout, root, address, &mut words, &mut path).expect("mapped");
    assert_eq!((leaf.entry, leaf.shift), (0x6000 | P | RW | US, SHIFT));
    assert_eq!(layout.page(leaf.entry, leaf.shift), 0x6000);
    assert_eq!(path.common() & (RW | US | NX), US, "one entry forbids writes, one fetches");
    assert_eq!(path.entries().iter().map(|entry| entry.address).collect::<Vec<_>>(), words.read);
    path.mark::<Layout64, _>(&mut words, true).expect("all are there");
    let expected: Vec<_> = [0usize, 2, 3, 4].map(|i| (words.read[i], (0x1000 * (i as u64 + 2)) | flags[i] | A)).into();
    let (last, above) = words.written.split_last().expect("written");
    assert_eq!((above, *last), (&expected[..3], (expected[3].0, expected[3].1 | D)), "the second has the flag already");
    path.mark::<Layout64, _>(&mut words, true).expect("all are there");
    assert_eq!(words.written.len(), 4, "once they are set, nothing is written");
}

#[test]
fn a_walk_ends_at_the_first_entry_that_it_cannot_pass() {
    let good = P | RW | US;
    for (depth, bad, stop) in [
        (2, 0, Stop::Absent),
        (0, good | PS, Stop::Reserved),
        (4, good | 1 << 50, Stop::Reserved),
        (3, 1 << 50, Stop::Absent),
    ] {
        let mut flags = [good; 5];
        flags[depth] = bad;
        let (mut words, root, address) = five(flags);
        let outcome = walk(&Layout64::new(true, true, 46), root, address, &mut words, &mut ());
        assert_eq!((outcome.err(), words.read.len()), (Some(stop), depth + 1));
    }
    let (mut words, root, address) = five([good; 5]);
    let third = *words.words.keys().nth(2).expect("five");
    words.words.remove(&third);
    let outcome = walk(&Layout64::new(true, true, 46), root, address, &mut words, &mut ());
    assert_eq!(outcome.err(), Some(Stop::Unreachable(Nowhere(third))));
}

/// CR4 and EFER of each mode, and the address bits that its tables translate.
const MODES: [(u64, u64, u64); 5] = [
    (0, 0, u32::MAX as u64),
    (CR4_PSE, 0, u32::MAX as u64),
    (CR4_PAE, EFER_NXE, u32::MAX as u64),
    (CR4_PAE, EFER_LMA | EFER_LME, (1 << 48) - 1),
    (CR4_PAE | CR4_LA57, EFER_LMA | EFER_LME | EFER_NXE, (1 << 57) - 1),
];

#[test]
fn a_look_from_outside_finds_what_the_processor_finds() {
    /// Number of frames with tables; mapped pages may be anywhere.
    const TABLES: u64 = 8;
    let mut random = Random::new(7);
    let (mut found, mut missed) = (0, 0);
    for round in 0..2000 {
        let (cr4, efer, addresses) = MODES[round % MODES.len()];
        let mut cpu = testing::cpu(Ram::anonymous(TABLES << SHIFT));
        (cpu.arch.cr0, cpu.arch.cr3, cpu.arch.cr4) = (CR0_PE | CR0_PG, random.below(TABLES) << SHIFT, cr4);
        cpu.arch.msr.efer = efer;
        cpu.arch.pdpte = std::array::from_fn(|_| random.below(TABLES) << SHIFT | u64::from(!random.one_in(8)));
        for at in (0..TABLES << SHIFT).step_by(if cr4 & CR4_PAE != 0 { 8 } else { 4 }) {
            let odd = if random.one_in(16) { 1 << random.below(64) } else { 0 };
            let entry = random.below(TABLES) << SHIFT | random.next() & 0xfff & !PS | P ^ odd;
            let entry = if random.one_in(8) { entry | PS | random.below(1 << 20) << SHIFT } else { entry };
            match cr4 & CR4_PAE {
                0 => cpu.wiring.ram.write(at, entry as u32),
                _ => cpu.wiring.ram.write(at, entry),
            };
        }
        for _ in 0..32 {
            let linear = random.next() & addresses;
            let seen = cpu.look_up(linear);
            // The supervisor may read every mapped page.
            match cpu.walk(linear, Access::Read, Privilege::Implicit) {
                Ok(walked) => {
                    let offset = linear & ((1 << walked.entry.shift) - 1);
                    assert_eq!(seen, Some(walked.entry.physical | offset), "{linear:#x}");
                    found += 1;
                }
                Err(_) => {
                    assert!(
                        matches!(cpu.engine.fault, Cause::Exception(vector::PF, Some(code)) if code & !code::RESERVED <= 1)
                    );
                    assert_eq!(seen, None, "{linear:#x}");
                    missed += 1;
                }
            }
        }
    }
    assert!(found > 10_000 && missed > 10_000, "{found} {missed}");
}
