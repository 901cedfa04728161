//! Emulated writes of the guest to tables that are watched.

use super::Mmu;
use super::pool::{EntryRef, PageId};
use super::spte;
use ledger::Operation;
use x86::page::{PAGE, SHIFT};

/// Writes to a table without its being used in between, after which it is taken to be none any more.
const FLOOD: u32 = 3;

/// Bytes within a page that were written.
#[derive(Clone, Copy)]
struct Written {
    offset: u64,
    len: u64,
}

impl Mmu {
    /// Whether anything watches writes to guest memory.
    pub fn watches(&self) -> bool {
        !self.tracks.is_empty() || !self.pdpts.is_empty()
    }

    /// The guest has written `len` bytes at guest-physical address `gpa` by an instruction that was emulated, or someone else
    /// has written them for it.
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

    /// Accessed or dirty flags were set in an entry of a page table of the guest, or of its own guest. They change nothing in what
    /// shadows the table as such; but what is a page table for one may be a table of EPT for the other, with other bits.
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

    /// Whether a write cannot be one of a table entry.
    fn is_misaligned(&self, id: PageId, written: Written) -> bool {
        let entry = if self.pool.page(id).role.four_byte { 4 } else { 8 };
        let last = written.offset + written.len - 1;
        written.len < 4 || (written.offset ^ last) & !(entry - 1) != 0
    }

    /// Whether a table was written to so often that it is probably none any more.
    fn is_flooded(&mut self, id: PageId, in_a_row: u32) -> bool {
        if !self.unsync {
            return in_a_row >= FLOOD;
        }
        let page = self.pool.page_mut(id);
        // Last-level tables can go out of synchronization instead.
        if page.role.level == 1 {
            return false;
        }
        page.writes += 1;
        page.writes >= FLOOD
    }

    /// Maps what an entry of a last-level table says now, as long as nothing has to be unsynchronized: what the guest writes
    /// there it mostly needs soon (KVM of 2007).
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

    /// Stops watching a frame, by dropping its shadow pages: the guest uses it for something else. Whether there were any.
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

/// The shadow entries of a page that stand for bytes of the guest table.
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
