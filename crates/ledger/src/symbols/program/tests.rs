use super::*;
use proptest::prelude::*;

/// A function that stays one, however the rest is compiled.
#[inline(never)]
fn a_function_with_a_frame(number: u64) -> u64 {
    std::hint::black_box([number; 40]).iter().sum()
}

fn own() -> Vec<u8> {
    std::fs::read(std::env::current_exe().expect("has a path")).expect("is readable")
}

#[test]
fn functions_and_frames_of_this_program_are_found() {
    assert_eq!(a_function_with_a_frame(1), 40);
    let program = Program::parse(&own());
    let named = program.functions().iter().find(|symbol| symbol.name.contains("a_function_with_a_frame"));
    let start = named.expect("tests are not stripped").start;
    // At a function's first instruction there is only the return address.
    let row = program.row(start).expect("is described");
    assert_eq!((row.cfa, row.bp), (Cfa::From(Register::Sp, 8), None));
    let entry = program.functions().iter().find(|symbol| symbol.name == "_start").expect("is there").start;
    assert_eq!(program.row(entry).expect("is described").cfa, Cfa::End);
    assert!(program.function(start + 1).is_some_and(|found| found.name.contains("a_function_with_a_frame")));
    assert!(program.functions().is_sorted());
    assert!(program.table.rows.is_sorted_by_key(|row| row.start));
    assert_eq!(program.row(0), None);
}

#[test]
fn code_without_a_name_has_that_of_its_section() {
    let mut all = vec![Symbol::new(0x20, 0x10, "b"), Symbol::new(0x50, 0x10, "c")];
    fill(&mut all, vec![Symbol::new(0x28, 0x10, "f"), Symbol::new(0x10, 0x8, "e")]);
    fill(&mut all, vec![Symbol::new(0x0, 0x60, ".text"), Symbol::new(0x60, 0, ".empty")]);
    let ranges: Vec<_> = all.iter().map(|s| (s.start, s.start + s.size, s.name.as_str())).collect();
    let expected = [
        (0, 0x10, ".text"),
        (0x10, 0x18, "e"),
        (0x18, 0x20, ".text"),
        (0x20, 0x30, "b"),
        (0x30, 0x38, "f"),
        (0x38, 0x50, ".text"),
        (0x50, 0x60, "c"),
    ];
    assert_eq!(ranges, expected);
}

#[test]
fn what_is_no_program_has_no_functions() {
    for bytes in [&b""[..], b"\x7fELF", b"#!/bin/sh\n", &[0; 4096]] {
        let program = Program::parse(bytes);
        assert!(program.functions().is_empty() && program.row(0x1000).is_none());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn no_damage_makes_it_panic(changes in prop::collection::vec((0usize..4096, any::<u8>()), 1..8), deep in prop::collection::vec((any::<usize>(), any::<u8>()), 0..64)) {
        // The headers of a program with little else.
        let mut bytes = std::fs::read("/bin/true").unwrap_or_else(|_| own());
        let len = bytes.len();
        for (at, byte) in changes.into_iter().map(|(at, byte)| (at % len, byte)).chain(deep.into_iter().map(|(at, byte)| (at % len, byte))) {
            bytes[at] = byte;
        }
        let program = Program::parse(&bytes);
        let _ = (program.row(0x1000), program.function(0x1000));
    }
}
