//! Host pointers of pages, or of lines, for one kind of access.
//!
//! Without a model of caches, the unit of a table is a page. With one, it is a line that is in the modelled cache, so that a
//! hit in the table implies one there.

use crate::ram::GROUP;
use x86::page::PAGE;

/// Number of slots for adjacent pages or lines: many more than the modelled TLB has entries, because these may be for large pages,
/// and more than the modelled cache has lines.
const ADJACENT: usize = 1 << 11;
/// Number of parts of the address space whose pages have slots of their own. Kernels have much of what they use often (memory of each
/// processor, stacks, descriptor tables) at the begin of parts, which would share slots. Lines share them: what decides there is how much
/// of the host's caches the slots take.
const PARTS: usize = 1 << 2;
/// Lowest bit of an address that selects the part.
const PART: u32 = 45;
/// Number of slots.
pub const SLOTS: usize = ADJACENT * PARTS;

/// Log2 of the size of a page.
pub const PAGES: u8 = 12;

/// Number of groups of adjacent slots, which share cache lines.
const GROUPS: usize = SLOTS / GROUP;
/// Log2 of the size of the regions by which pieces of large pages are found.
const REGION: u8 = 21;

/// A page or line. Both numbers are side by side, because an access needs both: they share a line of the host's cache.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Slot {
    /// Negated linear address of the page or line: the sum with an address in it is the offset.
    pub negated: u64,
    /// Difference between host address and linear address in the page or line.
    pub addend: u64,
}

impl Slot {
    /// Returns the linear address of the page or line.
    fn linear(&self) -> u64 {
        self.negated.wrapping_neg()
    }
}

/// Host pointers of pages or lines for one kind of access, indexed by the low bits of their number.
#[repr(C, align(16))]
pub struct Half {
    /// The pages or lines.
    pub slots: [Slot; SLOTS],
    /// Log2 of the size of a page or line.
    shift: u8,
    /// Groups that may contain pages.
    filled: [u64; GROUPS / 64],
    /// Slots for parts of pages larger than 4 KiB.
    large: [u64; SLOTS / 64],
    /// Slots that may be for pages of one address space, which are not global.
    private: [u64; SLOTS / 64],
    /// Regions that may contain such parts, by [`region`].
    regions: u64,
}

/// The attributes, in the TLB, of the page to which a slot belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// True for a page larger than 4 KiB.
    pub large: bool,
    /// True for a global page, which all address spaces have.
    pub global: bool,
}

/// Pages to be added: some of an aligned group.
#[derive(Clone, Copy)]
pub struct Pages {
    /// Linear address of the requested page.
    pub page: u64,
    /// Host address of the requested page.
    pub host: u64,
    /// Available pages of its group, including itself; more than one if it is part of a larger page.
    pub which: u8,
    /// The page in the TLB.
    pub mapped: Mapped,
}

/// Returns the contents of an empty slot: a page that belongs to another slot, so that no address matches. It does not
/// belong to the next slot either, in which an access that crosses pages ends.
#[inline(always)]
fn nothing(slot: usize, shift: u8) -> u64 {
    let (adjacent, part) = ((slot ^ (ADJACENT / 2)) % ADJACENT, slot / ADJACENT);
    ((adjacent as u64) << shift | (part as u64) << PART).wrapping_neg()
}

/// Returns the number of parts of the address space with slots of their own.
#[inline(always)]
fn parts(shift: u8) -> usize {
    if shift == PAGES { PARTS } else { 1 }
}

/// Returns the slot of the page or line of 2^`shift` bytes at an address.
#[inline(always)]
pub fn slot(linear: u64, shift: u8) -> usize {
    let (adjacent, part) = ((linear >> (shift & 63)) as usize % ADJACENT, (linear >> PART) as usize % parts(shift));
    part * ADJACENT + adjacent
}

/// Returns the bits of an address that select its slot, in tables of pages or lines of 2^`shift` bytes: in their order, they are the
/// number of the slot.
pub fn slot_mask(shift: u8) -> u64 {
    (ADJACENT as u64 - 1) << shift | (parts(shift) as u64 - 1) << PART
}

/// Hashes the number of a 2 MiB region to one bit of a word. Regions with the same bit have the same slots for pages.
#[inline(always)]
fn region(linear: u64) -> u64 {
    const NEAR: u64 = 64 / PARTS as u64;
    const _: () = assert!(ADJACENT as u64 * PAGE <= NEAR << REGION);
    1 << ((linear >> REGION) % NEAR + NEAR * ((linear >> PART) % PARTS as u64))
}

/// Returns the numbers of the bits that are set in a word, the lowest first.
#[inline(always)]
pub(super) fn set_bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = word.trailing_zeros() as usize;
        (word != 0).then(|| {
            word &= word - 1;
            lowest
        })
    })
}

impl Half {
    /// Creates an empty half with pages or lines of 2^`shift` bytes.
    pub fn empty(shift: u8) -> Self {
        let mut half = Self {
            slots: [Slot::default(); SLOTS],
            shift,
            filled: [0; GROUPS / 64],
            large: [0; SLOTS / 64],
            private: [0; SLOTS / 64],
            regions: 0,
        };
        half.reset(shift);
        half
    }

    /// Initializes zeroed memory to an empty half. Memory that stays zero is not touched: it is a page at 0, which belongs to the first
    /// slot, in which an access ends that begins in the last one, and behind which no bytes begin in the second one.
    pub fn reset(&mut self, shift: u8) {
        self.shift = shift;
        for slot in [0, 1, parts(shift) * ADJACENT - 1] {
            self.slots[slot].negated = nothing(slot, shift);
        }
    }

    /// Returns true if a slot has no page, except perhaps the one at 0.
    fn is_empty(&self, slot: usize) -> bool {
        let negated = self.slots[slot].negated;
        negated == 0 || negated == nothing(slot, self.shift)
    }

    /// Drops all pages.
    pub fn clear(&mut self) {
        for (word, filled) in self.filled.iter_mut().enumerate() {
            for group in set_bits(std::mem::take(filled)) {
                let first = (word * 64 + group) * GROUP;
                for (i, slot) in self.slots[first..first + GROUP].iter_mut().enumerate() {
                    slot.negated = nothing(first + i, self.shift);
                }
            }
        }
        self.large = [0; SLOTS / 64];
        self.private = [0; SLOTS / 64];
        self.regions = 0;
    }

    /// Drops all pages that are not global.
    pub fn clear_private(&mut self) {
        for (word, private) in self.private.iter_mut().enumerate() {
            let bits = std::mem::take(private);
            self.large[word] &= !bits;
            for i in set_bits(bits).map(|bit| word * 64 + bit) {
                self.slots[i].negated = nothing(i, self.shift);
            }
        }
    }

    /// Notes to which kind of page the slots of `bits`, in one word of 64, belong from now on; `linear` is in the page.
    fn note(&mut self, word: usize, bits: u64, linear: u64, mapped: Mapped) {
        let (large, private) = (&mut self.large[word], &mut self.private[word]);
        (*large, *private) = (*large & !bits, *private & !bits);
        if mapped.large {
            *large |= bits;
            self.regions |= region(linear);
        }
        if !mapped.global {
            *private |= bits;
        }
    }

    /// Adds pages: the requested page replaces the one in its slot if `must` is set; the others only use empty slots.
    pub fn fill(&mut self, pages: Pages, must: bool) {
        let wanted = slot(pages.page, PAGES);
        let (first, offset) = (wanted & !(GROUP - 1), wanted % GROUP);
        let mut taken = 0;
        for number in set_bits(pages.which.into()) {
            let i = first + number;
            if (must && number == offset) || self.is_empty(i) {
                let distance = (number as u64).wrapping_sub(offset as u64).wrapping_mul(PAGE);
                let negated = pages.page.wrapping_add(distance).wrapping_neg();
                self.slots[i] = Slot { negated, addend: pages.host.wrapping_sub(pages.page) };
                taken |= 1u64 << number;
            }
        }
        let group = first / GROUP;
        self.filled[group / 64] |= 1 << (group % 64);
        self.note(first / 64, taken << (first % 64), pages.page, pages.mapped);
    }

    /// Adds the line at an address, which is at `host`.
    pub fn fill_line(&mut self, linear: u64, host: u64, mapped: Mapped) {
        let i = slot(linear, self.shift);
        self.slots[i] = Slot { negated: linear.wrapping_neg(), addend: host.wrapping_sub(linear) };
        self.filled[i / GROUP / 64] |= 1 << (i / GROUP % 64);
        self.note(i / 64, 1 << (i % 64), linear, mapped);
    }

    /// Returns to which kind of page a slot belongs.
    pub fn mapped(&self, slot: usize) -> Mapped {
        let has = |bits: &[u64]| bits[slot / 64] >> (slot % 64) & 1 != 0;
        Mapped { large: has(&self.large), global: !has(&self.private) }
    }

    /// Drops the line at an address.
    fn drop_line(&mut self, linear: u64) {
        let i = slot(linear, self.shift);
        if self.slots[i].linear() == linear {
            self.slots[i].negated = nothing(i, self.shift);
        }
    }

    /// Drops the lines of a page of 4 KiB.
    fn drop_lines(&mut self, page: u64) {
        let (first, count) = (slot(page, self.shift), 1 << (PAGES - self.shift));
        for group in (first..first + count).step_by(GROUP) {
            if self.filled[group / GROUP / 64] >> (group / GROUP % 64) & 1 == 0 {
                continue;
            }
            for i in group..group + GROUP {
                if self.slots[i].linear() >> PAGES == page >> PAGES {
                    self.slots[i].negated = nothing(i, self.shift);
                }
            }
        }
    }

    /// Returns the host address of `len` bytes inside one page or line.
    #[inline(always)]
    pub fn find(&self, linear: u64, len: u64) -> Option<u64> {
        let i = slot(linear, self.shift);
        // A string instruction may request zero bytes.
        let behind = len.wrapping_sub(1);
        let last = linear.wrapping_add(self.slots[i].negated).wrapping_add(behind);
        if last >> (self.shift & 63) == 0 { Some(linear.wrapping_add(self.slots[i].addend)) } else { None }
    }

    /// Drops a page, or a line, and all of its parts.
    #[inline]
    pub fn drop_range(&mut self, linear: u64, shift: u8) {
        if shift < PAGES {
            self.drop_line(linear);
        } else if shift == PAGES && self.shift < PAGES {
            self.drop_lines(linear);
        } else if shift == PAGES {
            let i = slot(linear, PAGES);
            if self.slots[i].linear() >> 12 == linear >> 12 {
                self.slots[i].negated = nothing(i, PAGES);
            }
        } else if self.regions & region(linear) != 0 || shift > REGION {
            self.drop_large(linear, shift);
        }
    }

    fn drop_large(&mut self, linear: u64, shift: u8) {
        // A region has a slot for each of its pages, and lines in all slots.
        let words = 1 << (REGION - 12 - 6);
        let first = slot(linear, PAGES) / 64 / words * words;
        let words = match shift {
            REGION if self.shift == PAGES => first..first + words,
            _ => 0..SLOTS / 64,
        };
        // A region that has been searched completely contains only the pages that were found.
        let mut regions = if shift == REGION { self.regions & !region(linear) } else { 0 };
        for word in words {
            for i in set_bits(self.large[word]).map(|bit| word * 64 + bit) {
                let page = self.slots[i].linear();
                if page >> shift == linear >> shift {
                    self.slots[i].negated = nothing(i, self.shift);
                    self.large[word] &= !(1 << (i % 64));
                } else {
                    regions |= region(page);
                }
            }
        }
        self.regions = regions;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_slot_matches_no_access() {
        let half = Half::empty(PAGES);
        let parts = (0..2 * PARTS as u64).map(|part| part << (PART - 12));
        for page in parts.flat_map(|part| (0..2 * ADJACENT as u64).map(move |page| part | page)).chain([u64::MAX >> 12])
        {
            // Inside the page, and across its end.
            for (offset, len) in [(0, 1), (0, 8), (PAGE - 8, 8), (PAGE - 4, 8), (PAGE - 1, 64), (0, 0)] {
                let linear = (page * PAGE).wrapping_add(offset);
                assert_eq!(half.find(linear, len), None, "{len} bytes at {linear:#x}");
            }
        }
    }

    #[test]
    fn the_bits_of_the_mask_are_the_slot() {
        for (linear, shift) in
            [(0xffff_8b7a_1f01_f123, 12), (0x55ea_9fb7_e048, 12), (u64::MAX, 6), (0x7fd5_5c50_7fc0, 6)]
        {
            let mask = slot_mask(shift);
            let extracted = (0..64).filter(|bit| mask >> bit & 1 != 0).enumerate();
            let expected = extracted.fold(0, |all, (to, from)| all | (linear >> from & 1) << to);
            assert_eq!(slot(linear, shift) as u64, expected);
        }
    }

    /// Returns the pages of the group of `page` that are found.
    fn found(half: &Half, page: u64) -> u8 {
        let first = page & !(GROUP as u64 * PAGE - 1);
        (0..GROUP as u64).filter(|i| half.find(first + i * PAGE, 8).is_some()).fold(0, |all, i| all | 1 << i)
    }

    const OWN: Mapped = Mapped { large: false, global: false };
    const SMALL: Pages = Pages { page: 0x1_0020_3000, host: 0x7000, which: 1 << 3, mapped: OWN };
    /// Another page for the slot of [`SMALL`], with five others of its group.
    const LARGE: Pages = Pages {
        page: 0xffff_8000_00a0_3000,
        host: 0x10_3000,
        which: 0x7e,
        mapped: Mapped { large: true, global: true },
    };

    #[test]
    fn neighbours_take_empty_slots_only() {
        let mut half = Half::empty(PAGES);
        half.fill(SMALL, true);
        half.fill(LARGE, false);
        assert_eq!((found(&half, SMALL.page), found(&half, LARGE.page)), (1 << 3, 0x76));
        half.fill(LARGE, true);
        assert_eq!((found(&half, SMALL.page), found(&half, LARGE.page)), (0, 0x7e));
        assert_eq!(half.find(LARGE.page + 0x10, 8), Some(LARGE.host + 0x10));
        assert_eq!(half.find(LARGE.page - PAGE + 0x10, 8), Some(LARGE.host - PAGE + 0x10));
        half.clear();
        assert_eq!(found(&half, LARGE.page), 0);
    }

    #[test]
    fn a_large_page_goes_with_all_its_parts_and_nothing_else() {
        let other = Pages { page: LARGE.page + (64 << REGION), which: 1 << 3, ..LARGE };
        for shift in [21, 22, 30] {
            let mut half = Half::empty(PAGES);
            half.fill(LARGE, true);
            half.fill(Pages { page: LARGE.page + 8 * PAGE, ..LARGE }, true);
            half.fill(other, true);
            half.fill(Pages { page: SMALL.page + 0x10_0000, ..SMALL }, true);
            half.drop_range(LARGE.page & !((1 << shift) - 1), shift);
            let left = if shift == 30 { 0 } else { 1 << 3 };
            assert_eq!((found(&half, LARGE.page), found(&half, LARGE.page + 8 * PAGE)), (0, 0), "{shift}");
            assert_eq!((found(&half, other.page), found(&half, SMALL.page + 0x10_0000)), (left, 1 << 3), "{shift}");
            half.drop_range(other.page & !((1 << 21) - 1), 21);
            assert_eq!(found(&half, other.page), 0, "{shift}");
        }
    }

    #[test]
    fn large_pages_of_two_parts_go_one_by_one() {
        let other = Pages { page: LARGE.page ^ 1 << PART, ..LARGE };
        let mut half = Half::empty(PAGES);
        for first in [LARGE, other] {
            let second = Pages { page: first.page ^ 1 << PART, ..first };
            half.fill(LARGE, true);
            half.fill(other, true);
            half.drop_range(first.page & !((1 << REGION) - 1), REGION);
            assert_eq!((found(&half, first.page), found(&half, second.page)), (0, 0x7e));
            half.drop_range(second.page & !((1 << REGION) - 1), REGION);
            assert_eq!(found(&half, second.page), 0);
        }
    }

    #[test]
    fn global_pages_outlive_an_address_space() {
        let mut half = Half::empty(PAGES);
        half.fill(SMALL, true);
        half.fill(LARGE, false);
        half.clear_private();
        assert_eq!((found(&half, SMALL.page), found(&half, LARGE.page)), (0, 0x76));
        // The slot of the page that went belongs to a global page now, and the other way round.
        half.fill(LARGE, true);
        half.fill(
            Pages { mapped: Mapped { global: false, ..LARGE.mapped }, which: 1 << 4, page: LARGE.page + PAGE, ..LARGE },
            true,
        );
        half.clear_private();
        assert_eq!(found(&half, LARGE.page), 0x6e);
    }

    #[test]
    fn a_small_page_goes_alone() {
        let mut half = Half::empty(PAGES);
        half.fill(LARGE, true);
        half.drop_range(LARGE.page, 12);
        assert_eq!(found(&half, LARGE.page), 0x76);
    }
}
