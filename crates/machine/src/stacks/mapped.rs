//! The mappings of files in address spaces, as far as call stacks have shown them. By these mappings charges, which are known by their addresses,
//! get the names of the functions of programs.

use ledger::AddressSpace;
use std::collections::BTreeMap;
use std::ops::Range;

/// Largest number of mappings that are remembered.
const MOST: usize = 1 << 13;

/// A part of a file that is mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// The addresses.
    pub range: Range<u64>,
    /// The number of the file.
    pub number: u32,
    /// The offset in the file of the first address.
    pub offset: u64,
}

impl Mapped {
    /// Returns true if both have the same byte of the same file at each address.
    fn agrees(&self, other: &Self) -> bool {
        self.number == other.number
            && self.offset.wrapping_sub(self.range.start) == other.offset.wrapping_sub(other.range.start)
    }
}

/// Mappings by address space and first address. Page tables may be those of one process after the other: addresses at which different
/// files were seen have no certain file.
#[derive(Default)]
pub struct MappedFiles {
    by_space: BTreeMap<AddressSpace, BTreeMap<u64, (Mapped, bool)>>,
    count: usize,
}

impl MappedFiles {
    /// Notes that a part of a file is mapped.
    pub fn see(&mut self, space: AddressSpace, mut new: Mapped) {
        if self.count >= MOST && !self.by_space.contains_key(&space) {
            return;
        }
        let known = self.by_space.entry(space).or_default();
        if known.get(&new.range.start).is_some_and(|(old, _)| *old == new) || new.range.is_empty() {
            return;
        }
        let overlaps = |old: &Mapped| old.range.start < new.range.end && new.range.start < old.range.end;
        let touched: Vec<u64> = known.iter().filter(|(_, (old, _))| overlaps(old)).map(|(start, _)| *start).collect();
        let mut certain = true;
        for start in touched {
            let Some((old, was_certain)) = known.remove(&start) else { continue };
            self.count -= 1;
            certain &= was_certain && old.agrees(&new);
            let (first, end) = (old.range.start.min(new.range.start), old.range.end.max(new.range.end));
            new.offset = new.offset.wrapping_sub(new.range.start.wrapping_sub(first));
            new.range = first..end;
        }
        if self.count < MOST {
            self.count += 1;
            known.insert(new.range.start, (new, certain));
        }
    }

    /// Returns the mappings whose addresses have had one file only.
    pub fn certain(&self) -> Vec<(AddressSpace, Mapped)> {
        let all = self.by_space.iter().flat_map(|(space, known)| known.values().map(move |mapped| (*space, mapped)));
        all.filter(|(_, (_, certain))| *certain).map(|(space, (mapped, _))| (space, mapped.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(range: Range<u64>, number: u32, offset: u64) -> Mapped {
        Mapped { range, number, offset }
    }

    fn space(root: u64) -> AddressSpace {
        AddressSpace { guest: 0, root }
    }

    #[test]
    fn parts_of_one_file_are_joined() {
        let mut files = MappedFiles::default();
        files.see(space(1), mapped(0x5000..0x7000, 1, 0x1000));
        files.see(space(1), mapped(0x4000..0x6000, 1, 0));
        files.see(space(1), mapped(0x8000..0x9000, 1, 0));
        files.see(space(2), mapped(0x5000..0x6000, 2, 0));
        let expected = [
            (space(1), mapped(0x4000..0x7000, 1, 0)),
            (space(1), mapped(0x8000..0x9000, 1, 0)),
            (space(2), mapped(0x5000..0x6000, 2, 0)),
        ];
        assert_eq!(files.certain(), expected);
    }

    #[test]
    fn addresses_of_two_files_have_none() {
        for other in [mapped(0x5800..0x6800, 2, 0x800), mapped(0x5800..0x6800, 1, 0)] {
            let mut files = MappedFiles::default();
            files.see(space(1), mapped(0x5000..0x6000, 1, 0));
            files.see(space(1), other);
            files.see(space(1), mapped(0x5000..0x6000, 1, 0));
            assert_eq!(files.certain(), []);
        }
    }

    #[test]
    fn their_number_is_limited() {
        let mut files = MappedFiles::default();
        (0..2 * MOST as u64).for_each(|at| files.see(space(at), mapped(0x5000..0x6000, 1, 0)));
        assert_eq!(files.certain().len(), MOST);
    }
}
