//! Symbols from ELF files and from text.

use super::{Raw, Symbol, demangle, functions, mark_data};
use object::{Object, ObjectSection, ObjectSymbol, SectionKind, SymbolKind};
use std::borrow::Cow;

/// Why a file has no usable ELF symbols.
#[derive(Debug, thiserror::Error)]
pub enum ElfError {
    /// It is not an object file, or a broken one.
    #[error("is not a readable ELF file: {0}")]
    Unreadable(String),
    /// It has no functions in its tables of symbols.
    #[error("has no symbols (it is stripped)")]
    Stripped,
}

/// Functions in the tables of symbols of an ELF file, moved by `slide`.
pub fn elf(bytes: &[u8], slide: u64) -> Result<Vec<Symbol>, ElfError> {
    let file = object::File::parse(bytes).map_err(|error| ElfError::Unreadable(error.to_string()))?;
    let mut sized = Vec::new();
    let raw = raw_elf(&file, &mut sized);
    if raw.is_empty() {
        return Err(ElfError::Stripped);
    }
    let mut symbols = functions(raw);
    sized.sort_unstable();
    for symbol in &mut symbols {
        if let Cow::Owned(name) = demangle(&symbol.name) {
            symbol.name = name;
        }
        // The size that the file gives, where it does; else up to the next symbol.
        if let Ok(at) = sized.binary_search_by_key(&symbol.start, |entry| entry.0) {
            symbol.size = sized[at].1;
        }
        symbol.start = symbol.start.wrapping_add(slide);
    }
    Ok(symbols)
}

/// The functions of an ELF file before sizes are known, and in `sized` start and size of those that the file gives sizes of. Empty if it has none.
pub(super) fn raw_elf(file: &object::File, sized: &mut Vec<(u64, u64)>) -> Vec<Raw> {
    let mut raw: Vec<Raw> = Vec::new();
    for symbol in file.symbols().chain(file.dynamic_symbols()) {
        let Ok(name) = symbol.name() else { continue };
        if symbol.kind() != SymbolKind::Text || symbol.is_undefined() || name.is_empty() {
            continue;
        }
        if symbol.size() != 0 {
            sized.push((symbol.address(), symbol.size()));
        }
        let letter = if symbol.is_weak() {
            'W'
        } else if symbol.is_global() {
            'T'
        } else {
            't'
        };
        raw.push((symbol.address(), letter, name.to_owned()));
    }
    if !raw.is_empty() {
        // The last function ends where the code ends.
        let code = file.sections().filter(|section| section.kind() == SectionKind::Text);
        raw.extend(code.map(|section| (section.address().saturating_add(section.size()), 'r', String::new())));
    }
    raw
}

/// Functions in the text of a `System.map` or of `/proc/kallsyms`, moved by `slide`. Lines that are no symbols are skipped,
/// and so are the symbols of modules.
pub fn system_map(text: &str, slide: u64) -> Vec<Symbol> {
    let raw = text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        let letter = words.next().filter(|word| word.len() == 1)?.chars().next()?;
        let name = words.next()?;
        words.next().is_none().then(|| (address.wrapping_add(slide), letter, name.to_owned()))
    });
    let mut raw: Vec<Raw> = raw.collect();
    mark_data(&mut raw);
    functions(raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_map_is_read() {
        let text = "0000000000000000 D __per_cpu_start\nffffffff81000000 T _text\nffffffff81000000 T startup_64\n\
                    ffffffff81000110 t verify\nnot a line\nffffffffc0000000 t helper\t[module]\nffffffff81000200 R table\n";
        let symbols = system_map(text, 0x100_0000);
        assert_eq!(
            symbols,
            [
                Symbol::new(0xffff_ffff_8200_0000, 0x110, "startup_64"),
                Symbol::new(0xffff_ffff_8200_0110, 0xf0, "verify"),
            ]
        );
    }

    #[test]
    fn data_with_the_letters_of_code_is_data() {
        let text = "ffffffff81000000 T _text\nffffffff81000000 T start\nffffffff81000100 T _etext\nffffffff83000000 T _sdata\n\
                    ffffffff83000040 T modules\nffffffff83000080 t table\nffffffff830000c0 W weak\nffffffff83000100 T _edata\n\
                    ffffffff83000200 T start_kernel\nffffffff83000300 T _einittext\n";
        let names: Vec<String> = system_map(text, 0).into_iter().map(|symbol| symbol.name).collect();
        assert_eq!(names, ["start", "_etext", "start_kernel", "_einittext"]);
    }

    /// A function that stays one, however the rest is compiled.
    #[inline(never)]
    fn a_function_of_its_own(number: u64) -> u64 {
        std::hint::black_box(number) ^ 0x5eed
    }

    #[test]
    fn functions_of_this_program_are_found() {
        assert_eq!(a_function_of_its_own(0), 0x5eed);
        let own = std::fs::read(std::env::current_exe().expect("has a path")).expect("is readable");
        let symbols = elf(&own, 0).expect("tests are not stripped");
        assert!(symbols.iter().any(|s| s.name.contains("a_function_of_its_own")));
        assert!(symbols.is_sorted());
    }

    #[test]
    fn what_is_no_elf_file_is_refused() {
        assert!(matches!(elf(b"\xff\xd8\xff\xe0", 0), Err(ElfError::Unreadable(_))));
    }
}
