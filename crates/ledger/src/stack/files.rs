//! Files whose code is in stacks. A frame in a file has the file's number and an offset in place of its address, so that it does not depend on the
//! address at which a process maps the file.

use crate::wire::fnv1a;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Marks a place in a file. Bits 62 and 63 of an address are equal, so no address has this mark.
const IN_FILE: u64 = 1 << 62;
/// Position of the file's number; the offset is below it.
const FILE_SHIFT: u32 = 36;
/// Numbers of files are smaller.
const NUMBERS: u32 = 1 << 26;
/// Largest number of files. Code of further files has no name.
pub const MOST_FILES: usize = 1 << 14;
/// Length of the longest name of a file (PATH_MAX).
pub const LONGEST_PATH: usize = 4096;

/// Returns the value that stands for an offset in a file, in place of an address. `None` if the offset is too large.
pub fn in_file(file: u32, offset: u64) -> Option<u64> {
    let fits = file < NUMBERS && offset < 1 << FILE_SHIFT;
    fits.then(|| IN_FILE | u64::from(file) << FILE_SHIFT | offset)
}

/// Returns the number of a file and the offset in it that a value stands for. `None` if the value is an address.
pub fn file_of(address: u64) -> Option<(u32, u64)> {
    let place = address ^ IN_FILE;
    (place < IN_FILE).then_some(((place >> FILE_SHIFT) as u32, place & ((1 << FILE_SHIFT) - 1)))
}

/// Returns the number of a file with this name. The number depends on the name alone, so that runs agree about it.
fn number(name: &[u8]) -> u32 {
    let hash = fnv1a(name);
    (hash ^ hash >> 32) as u32 % NUMBERS
}

/// The names of files by number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Files(BTreeMap<u32, Vec<u8>>);

impl Files {
    /// Returns the number of a file. `None` if another file has that number, or if there are too many files.
    pub fn number(&mut self, name: &[u8]) -> Option<u32> {
        let number = number(name);
        match self.0.get(&number) {
            Some(known) => (known == name).then_some(number),
            None if self.0.len() >= MOST_FILES || name.len() > LONGEST_PATH => None,
            None => {
                self.0.insert(number, name.to_vec());
                Some(number)
            }
        }
    }

    /// Returns the name of a file.
    pub fn name(&self, number: u32) -> Option<&[u8]> {
        self.0.get(&number).map(Vec::as_slice)
    }

    /// Returns true if the names are ones that [`Files::number`] has numbered.
    pub(super) fn is_sound(&self) -> bool {
        let sound = |(known, name): (&u32, &Vec<u8>)| *known == number(name) && name.len() <= LONGEST_PATH;
        self.0.len() <= MOST_FILES && self.0.iter().all(sound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_a_file_is_no_address() {
        assert_eq!(in_file(5, 0x1234).and_then(file_of), Some((5, 0x1234)));
        assert_eq!(
            in_file(NUMBERS - 1, (1 << FILE_SHIFT) - 1).and_then(file_of).map(|place| place.0),
            Some(NUMBERS - 1)
        );
        assert_eq!((in_file(NUMBERS, 0), in_file(0, 1 << FILE_SHIFT)), (None, None));
        for address in [0, 0x7fff_ffff_f000, 0xffff_ffff_8100_0000, crate::stack::TRUNCATED, crate::stack::UNKNOWN] {
            assert_eq!(file_of(address), None, "{address:#x}");
        }
    }

    #[test]
    fn the_number_of_a_file_depends_on_its_name_alone() {
        let (mut one, mut other) = (Files::default(), Files::default());
        let a = one.number(b"/root/usr/bin/a").unwrap();
        other.number(b"/root/usr/bin/b");
        assert_eq!(other.number(b"/root/usr/bin/a"), Some(a));
        assert_eq!((one.name(a), one.name(a ^ 1)), (Some(&b"/root/usr/bin/a"[..]), None));
        assert_eq!(one.number(&[b'x'; LONGEST_PATH + 1]), None);
        assert!(one.is_sound());
        one.0.insert(a ^ 1, b"/root/usr/bin/a".to_vec());
        assert!(!one.is_sound());
        let mut many = Files::default();
        let numbered = (0..2 * MOST_FILES).filter(|i| many.number(format!("{i}").as_bytes()).is_some()).count();
        assert_eq!(numbered, MOST_FILES);
    }
}
