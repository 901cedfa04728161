//! Emulated writes of the guest to watched tables.

use super::Mmu;
use super::pool::{EntryRef, PageId};
use super::spte;
use ledger::Operation;
use x86::page::{PAGE, SHIFT};

/// Number of writes to a table without a use in between, after which it is assumed to be no table any more.
const FLOOD: u32 = 3;

/// A written range of bytes in a page.
#[derive(Clone, Copy)]
struct Written {
    offset: u64,
    len: u64,
}

impl Mmu {
    /// Returns true if any writes to guest memory are watched.
    pub fn watches(&self) -> bool {
        !self.tracks.is_empty() || !self.pdpts.is_empty()
    }

    /// Handles a write of `len` bytes at guest-physical address `gpa` by an emulated instruction, or on behalf of the
    /// guest.
    pub fn page_written(&mut self, gpa: u64, len: u64) {
        let mut at = gpa;
        let end = gpa.saturating_add(len);
        while at < end {
            let here = (end - at).min(PAGE - at % PAGE);
            self.mark_written(at >> 12);
            if self.watches() {
                self.table_written(at >> 12, Written { offset: at % PAGE, len: here });
            }
            at += here;
        }
    }

    /// Handles accessed or dirty flags that were set in a page-table entry of the guest or a nested guest. They do not
    /// affect shadow pages of the table as such; but a page table of one may be an EPT table of the other, with
    /// different bits.
    pub fn entry_marked(&mut self, gpa: u64) {
        let index = (gpa / 8 % 512) as u16;
        let differs = |id: &PageId| {
            let page = self.pool.page(*id);
            let Some(format) = page.role.ept.filter(|_| !page.role.direct) else { return false };
            let at = EntryRef { page: *id, index };
            let (entry, value) = (self.pool.entry(at), self.read_guest(gpa & !7, true).0);
            entry != 0 && !self.agrees(at, entry, self.ept_entry(page.role, format, value))
        };
        match self.hash.get(&(gpa >> SHIFT)).is_some_and(|bucket| bucket.iter().any(differs)) {
            true => self.page_written(gpa & !7, 8),
            false => self.mark_written(gpa >> SHIFT),
        }
    }

    fn table_written(&mut self, gfn: u64, written: Written) {
        self.pdpt_written(gfn, written.offset, written.len);
        self.tolls.add(Operation::HashLookup, 1);
        let Some(bucket) = self.hash.get(&gfn).cloned() else { return };
        let in_a_row = if self.last_write.0 == gfn { self.last_write.1 + 1 } else { 1 };
        self.last_write = (gfn, in_a_row);
        let mut flush = false;
        for id in bucket {
            let page = self.pool.page(id);
            if page.role.direct {
                continue;
            }
            if self.is_misaligned(id, written) {
                self.stats.misaligned += 1;
                self.zap_page(id);
                continue;
            }
            if self.is_flooded(id, in_a_row) {
                self.stats.flooded += 1;
                self.zap_page(id);
                continue;
            }
            let role = self.pool.page(id).role;
            for index in entries(role.four_byte, role.level, role.quadrant, written) {
                let at = EntryRef { page: id, index };
                flush |= self.drop_entry(at);
                if !self.unsync {
                    self.reload_entry(at);
                }
            }
        }
        if flush {
            self.flush_all();
        }
    }

    /// Returns true if a write can't be that of a table entry.
    fn is_misaligned(&self, id: PageId, written: Written) -> bool {
        let entry = if self.pool.page(id).role.four_byte { 4 } else { 8 };
        let last = written.offset + written.len - 1;
        written.len < 4 || (written.offset ^ last) & !(entry - 1) != 0
    }

    /// Returns true if a table was written so often that it probably is no table any more.
    fn is_flooded(&mut self, id: PageId, in_a_row: u32) -> bool {
        if !self.unsync {
            return in_a_row >= FLOOD;
        }
        let page = self.pool.page_mut(id);
        // Last-level tables can become unsynchronized instead.
        if page.role.level == 1 {
            return false;
        }
        page.writes += 1;
        page.writes >= FLOOD
    }

    /// Maps the new contents of an entry in a last-level table, as long as nothing has to be unsynchronized: the guest
    /// usually needs it soon (KVM of 2007).
    pub(super) fn reload_entry(&mut self, at: EntryRef) {
        let page = self.pool.page(at.page);
        if page.role.level != 1 {
            return;
        }
        let (role, gfn) = (page.role, page.gfn);
        let (value, _) = self.read_guest((gfn << 12) + role.guest_offset(usize::from(at.index)), !role.four_byte);
        let Some((gfn, access)) = self.used_entry(role, value) else { return };
        self.tolls.add(Operation::SlotLookup, 1);
        if self.slots.find(gfn).is_some_and(|slot| access & spte::WRITE == 0 || !slot.config.log_dirty) {
            self.map_ahead(at, gfn, access);
        }
    }

    /// Stops watching a frame by dropping its shadow pages, because the guest uses it for something else. Returns true
    /// if there were any.
    pub fn unprotect(&mut self, gfn: u64) -> bool {
        self.tolls.add(Operation::HashLookup, 1);
        let Some(bucket) = self.hash.get(&gfn).cloned() else { return false };
        let mut any = false;
        for id in bucket {
            if !self.pool.page(id).role.direct {
                self.zap_page(id);
                any = true;
            }
        }
        any
    }
}

/// Returns the shadow entries of a page for a range of bytes in the guest table.
fn entries(four_byte: bool, level: u8, quadrant: u8, written: Written) -> impl Iterator<Item = u16> {
    let size = if four_byte { 4 } else { 8 };
    let (first, last) = (written.offset / size, (written.offset + written.len - 1) / size);
    // A 4-byte entry above the last level has two shadow entries.
    let each = if four_byte && level > 1 { 2 } else { 1 };
    let range = first * each..(last + 1) * each;
    let base = u64::from(quadrant) * 512;
    range.filter_map(move |number| number.checked_sub(base).filter(|index| *index < 512).map(|index| index as u16))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(four_byte: bool, level: u8, quadrant: u8, offset: u64, len: u64) -> Vec<u16> {
        entries(four_byte, level, quadrant, Written { offset, len }).collect()
    }

    #[test]
    fn bytes_of_a_table_belong_to_entries_of_its_parts() {
        assert_eq!(at(false, 1, 0, 0x10, 8), [2]);
        assert_eq!(at(false, 1, 0, 0x14, 4), [2]);
        assert_eq!(at(true, 1, 0, 0x14, 4), [5]);
        assert_eq!(at(true, 1, 1, 0x14, 4), [0u16; 0]);
        assert_eq!(at(true, 1, 1, 0xffc, 4), [511]);
        assert_eq!(at(true, 2, 3, 0xffc, 4), [510, 511]);
        assert_eq!(at(true, 2, 0, 0, 8), [0, 1, 2, 3]);
    }
}
