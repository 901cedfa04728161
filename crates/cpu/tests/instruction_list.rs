//! Checks that `docs/instructions.md` matches the instructions that the processor executes.
//!
//! After a change of the instruction table run the test with `UPDATE_DOCS=1` and review the difference.

use cpu::table::FAMILIES;
use std::fmt::Write;

fn document() -> String {
    let mut text = String::from(
        "# Instructions the processor executes\n\n\
         Generated from the instruction table (`crates/cpu/src/table.rs`). Mnemonics are those of the iced-x86 decoder. An\n\
         instruction that is not listed, or that the CPUID of the chosen profile lacks, raises #UD and is counted by name in the ledger.\n",
    );
    let mut total = 0;
    for (family, rows) in FAMILIES {
        let mut names: Vec<String> = rows.iter().map(|r| format!("{:?}", r.mnemonic).to_uppercase()).collect();
        names.sort();
        total += names.len();
        writeln!(text, "\n## {} ({})\n", family[..1].to_uppercase() + &family[1..], names.len()).unwrap();
        let mut line = String::new();
        for name in names {
            if line.len() + name.len() + 2 > 120 {
                writeln!(text, "{}", line.trim_end()).unwrap();
                line.clear();
            }
            write!(line, "{name} ").unwrap();
        }
        writeln!(text, "{}", line.trim_end()).unwrap();
    }
    writeln!(text, "\nIn all: {total} mnemonics.").unwrap();
    text
}

#[test]
fn the_list_in_the_documentation_is_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/instructions.md");
    let document = document();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &document).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(written == document, "docs/instructions.md is out of date: run this test with UPDATE_DOCS=1");
}
