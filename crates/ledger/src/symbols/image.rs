//! Functions of an image by their names, before it runs.
//!
//! If several functions have one address, tables of symbols keep the name that a reader looks for. A user who names a function
//! may use any of them.

use super::kallsyms::raw_kallsyms;
use super::{Raw, Symbol, functions, raw_elf, vmlinux_from_bzimage};
use object::{Object, ObjectSegment};
use rustc_hash::FxHashMap;

/// The functions of an image under all of their names.
#[derive(Clone, Debug, Default)]
pub struct ImageFunctions {
    /// Start and size of each function of a name, of which a kernel has several.
    named: FxHashMap<String, Vec<(u64, u64)>>,
    /// The first address of a function.
    first: Option<u64>,
    /// The image decides where in memory it goes: addresses are those that it is linked at.
    pub slides: bool,
}

impl ImageFunctions {
    /// Of an ELF file, or of the Linux kernel in a bzImage. Of what is neither, and of what has no symbols, there are none.
    pub fn of(image: &[u8]) -> Self {
        match vmlinux_from_bzimage(image) {
            Ok(vmlinux) => Self { slides: true, ..Self::of_elf(&vmlinux) },
            Err(_) if image.starts_with(b"\x7fELF") => Self::of_elf(image),
            Err(_) => Self::default(),
        }
    }

    fn of_elf(image: &[u8]) -> Self {
        let Ok(file) = object::File::parse(image) else { return Self::default() };
        let mut raw = raw_elf(&file, &mut Vec::new());
        if raw.is_empty() {
            // A stripped kernel has tables for itself, which lie in one segment.
            let tables = |data: &[u8], start| raw_kallsyms(data, Some(start)).ok();
            raw = file.segments().find_map(|s| tables(s.data().ok()?, s.address())).unwrap_or_default();
        }
        Self::new(raw)
    }

    fn new(raw: Vec<Raw>) -> Self {
        let names: Vec<_> = raw.iter().map(|(start, letter, name)| (*start, *letter, name.clone())).collect();
        let functions = functions(raw);
        let mut named: FxHashMap<String, Vec<(u64, u64)>> = FxHashMap::default();
        for (start, letter, name) in names {
            let at = functions.binary_search_by_key(&start, |function| function.start);
            if let (Ok(at), 'T' | 't' | 'W' | 'w') = (at, letter) {
                named.entry(name).or_default().push((start, functions[at].size));
            }
        }
        Self { named, first: functions.first().map(|function| function.start), slides: false }
    }

    /// Start and size of each function of that name.
    pub fn named(&self, name: &str) -> &[(u64, u64)] {
        self.named.get(name).map_or(&[], Vec::as_slice)
    }

    /// By how much the functions of the image were moved to become these, which are in the order of their addresses.
    pub fn slide_to(&self, functions: &[Symbol]) -> Option<u64> {
        Some(functions.first()?.start.wrapping_sub(self.first?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_have_all_their_names() {
        let raw = [
            (0x140, 't', "__alias"),
            (0x140, 'T', "name"),
            (0x200, 't', "twice"),
            (0x280, 't', "twice"),
            (0x300, 'D', "data"),
        ];
        let image =
            ImageFunctions::new(raw.iter().map(|(at, letter, name)| (*at, *letter, (*name).to_owned())).collect());
        assert_eq!(image.named("__alias"), [(0x140, 0xc0)]);
        assert_eq!(image.named("name"), image.named("__alias"));
        assert_eq!(image.named("twice"), [(0x200, 0x80), (0x280, 0x80)]);
        assert_eq!(image.named("data"), []);
        assert_eq!(image.slide_to(&[Symbol::new(0x20_0140, 0xc0, "name")]), Some(0x20_0000));
        assert_eq!(image.slide_to(&[]), None);
    }

    #[test]
    fn what_is_no_image_has_no_functions() {
        for bytes in [&b""[..], b"\x7fELF", &[0; 4096]] {
            assert!(ImageFunctions::of(bytes).named.is_empty());
        }
    }
}
