//! Paging-structure caches (SDM vol. 3, 5.10.3 and 29.4.2): the entries that a page walk need not read, because they say where a
//! table is that an earlier walk has found.
//!
//! They exist for time alone: a walk reads all tables in any case, and no stale entry of these caches leads anywhere. As in the TLB,
//! entries are replaced in turn and are valid while they are newer than the last flush that applies to them. INVLPG and its like
//! drop all of a PCID, whatever the address.

use super::{Flushes, Tag, Tlb};
use ledger::caches::Walks;
use serde::{Deserialize, Serialize};

/// An entry that a walk has read.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// Physical address of the entry divided by the size of a line.
    pub line: u64,
    /// The address that is translated: linear, or guest-physical in an entry of EPT.
    pub address: u64,
    /// Log2 of the number of bytes that the entry maps.
    pub shift: u8,
    /// True for an entry of EPT.
    pub ept: bool,
}

/// The knowledge that the table for a part of the linear addresses of a PCID, or of the guest-physical addresses of an EPT pointer, has been found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    /// First address of the part.
    start: u64,
    /// Log2 of its size.
    shift: u8,
    pcid: u16,
    context: Tag,
    /// Time of the fill; 0 if never filled.
    stamp: u64,
}

/// Entries that are replaced in turn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Few {
    known: Vec<Known>,
    next: u16,
}

impl Few {
    fn new(entries: u16) -> Self {
        Self { known: vec![Known::default(); usize::from(entries)], next: 0 }
    }

    fn fits(&self, new: &Self, flushes: &Flushes) -> bool {
        self.known.len() == new.known.len()
            && (self.next == 0 || usize::from(self.next) < self.known.len())
            && self.known.iter().all(|known| known.shift < 64 && flushes.has(known.context))
    }

    fn add(&mut self, known: Known) {
        let Some(place) = self.known.get_mut(usize::from(self.next)) else { return };
        *place = known;
        self.next = (self.next + 1) % self.known.len() as u16;
    }
}

/// The paging-structure caches of one processor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Structures {
    /// Of linear addresses: PDEs, PDPTEs, and the entries above these.
    combined: [Few; 3],
    /// Of guest-physical addresses: likewise, and pages.
    guest_physical: [Few; 4],
}

/// Returns the number of the cache for entries that map 2^`shift` bytes.
fn number(shift: u8) -> usize {
    match shift {
        ..30 => 0,
        30 => 1,
        _ => 2,
    }
}

/// The cache of guest-physical pages.
const PAGES: usize = 3;

impl Structures {
    /// Creates empty caches of these sizes; of none, without a model of caches.
    pub fn new(walks: Option<&Walks>) -> Self {
        let Some(&Walks { pde, pdpte, pml4e, nested, .. }) = walks else { return Self::default() };
        let combined = [pde, pdpte, pml4e].map(Few::new);
        let [a, b, c] = combined.clone();
        Self { combined, guest_physical: [a, b, c, Few::new(nested)] }
    }

    pub fn fits(&self, new: &Self, flushes: &Flushes) -> bool {
        let fit = |all: &[Few], new: &[Few]| all.iter().zip(new).all(|(few, new)| few.fits(new, flushes));
        fit(&self.combined, &new.combined) && fit(&self.guest_physical, &new.guest_physical)
    }

    /// Drops the entries of linear addresses of a VPID with this PCID; `None` stands for all PCIDs.
    pub fn drop_pcid(&mut self, vpid: u8, pcid: Option<u16>) {
        let all = self.combined.iter_mut().flat_map(|few| &mut few.known);
        all.filter(|known| known.context.vpid == vpid && pcid.is_none_or(|pcid| pcid == known.pcid))
            .for_each(|known| known.stamp = 0);
    }

    /// Drops the entries for a linear address in a context, with this PCID.
    fn drop_address(&mut self, context: Tag, pcid: u16, linear: u64) {
        let all = self.combined.iter_mut().flat_map(|few| &mut few.known);
        all.filter(|known| {
            (known.context, known.pcid) == (context, pcid) && (known.start ^ linear) >> known.shift == 0
        })
        .for_each(|known| known.stamp = 0);
    }
}

/// Returns what an entry says.
fn known(reading: &Reading, pcid: u16, flushes: &Flushes) -> Known {
    let start = reading.address >> reading.shift << reading.shift;
    Known { start, shift: reading.shift, pcid, context: flushes.current, stamp: flushes.now }
}

/// Returns true if the caches of linear addresses know what an entry of the view's PCID says.
fn has_combined(few: &Few, wanted: &Known, flushes: &Flushes) -> bool {
    let of = |known: &Known| (known.start, known.shift, known.pcid, known.context);
    few.known.iter().any(|known| of(known) == of(wanted) && known.stamp >= flushes.view.since)
}

/// Returns true if the caches of guest-physical addresses know what an entry of EPT says.
fn has_guest_physical(few: &Few, wanted: &Known, flushes: &Flushes) -> bool {
    let of = |known: &Known| (known.start, known.shift, known.context.ept);
    let since = flushes.epts[usize::from(wanted.context.ept)].all;
    few.known.iter().any(|known| of(known) == of(wanted) && known.stamp > since)
}

impl Tlb {
    /// Passes to `read` the line of each entry that the walker reads, because no cache says what is in it, and adds what the
    /// walk has found. The entries are those of a complete walk, in its order.
    pub fn walked(&mut self, readings: &[Reading], pcid: u16, mut read: impl FnMut(u64)) {
        self.flushes.look_with(pcid);
        let Self { structures, flushes, .. } = self;
        let Some(last) = readings.iter().rposition(|reading| !reading.ept) else {
            return structures.walked_ept(readings, flushes, &mut read);
        };
        let has = |reading: &Reading| {
            let few = &structures.combined[number(reading.shift)];
            !reading.ept && has_combined(few, &known(reading, pcid, flushes), flushes)
        };
        // The entry that is known has the host-physical address of the next table, so that EPT is not needed to find it.
        let mut at = match readings[..last].iter().rposition(has) {
            Some(found) => {
                readings.iter().skip(found + 1).position(|next| !next.ept).map_or(last, |next| found + 1 + next)
            }
            None => 0,
        };
        while let Some(reading) = readings.get(at) {
            if reading.ept {
                let walk = &readings[at..];
                let end = walk.iter().position(|other| !other.ept).unwrap_or(walk.len());
                structures.walked_ept(&walk[..end], flushes, &mut read);
                at += end;
            } else {
                read(reading.line);
                if at < last {
                    structures.combined[number(reading.shift)].add(known(reading, pcid, flushes));
                }
                at += 1;
            }
        }
    }

    /// Drops what the paging-structure caches have for a linear address, whose access has faulted (SDM vol. 3, 5.10.4.1).
    pub fn forget_tables(&mut self, linear: u64, pcid: u16) {
        self.structures.drop_address(self.flushes.current, pcid, linear);
    }
}

impl Structures {
    /// Performs [`Tlb::walked`] for the entries of EPT that translate one guest-physical address.
    fn walked_ept(&mut self, readings: &[Reading], flushes: &Flushes, read: &mut impl FnMut(u64)) {
        let cache = |at: usize| if at + 1 == readings.len() { PAGES } else { number(readings[at].shift) };
        let has = |at: &usize| {
            has_guest_physical(&self.guest_physical[cache(*at)], &known(&readings[*at], 0, flushes), flushes)
        };
        let from = (0..readings.len()).rev().find(has).map_or(0, |at| at + 1);
        for (at, reading) in readings.iter().enumerate().skip(from) {
            read(reading.line);
            self.guest_physical[cache(at)].add(known(reading, 0, flushes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::Geometry;

    fn tlb() -> Tlb {
        let walks = Walks { pde: 4, pdpte: 2, pml4e: 1, nested: 1, walkers: 1 };
        Tlb { structures: Structures::new(Some(&walks)), ..Tlb::new(&Geometry::generic()) }
    }

    /// The entries of a walk of four levels for a linear address, each in a line of its own.
    fn four(linear: u64) -> Vec<Reading> {
        let entry =
            |shift| Reading { line: linear >> shift << 8 | u64::from(shift), address: linear, shift, ept: false };
        [39, 30, 21, 12].map(entry).to_vec()
    }

    /// The same in a guest, whose tables are at the address of their line.
    fn nested(linear: u64) -> Vec<Reading> {
        let through = |address: u64| {
            let entry = |shift| Reading { line: 1 << 40 | address >> shift, address, shift, ept: true };
            [39, 30, 21, 12].map(entry)
        };
        let guest = four(linear).into_iter().flat_map(|entry| through(entry.line << 12).into_iter().chain([entry]));
        guest.chain(through(linear)).collect()
    }

    fn count(tlb: &mut Tlb, readings: &[Reading], pcid: u16) -> usize {
        let mut count = 0;
        tlb.walked(readings, pcid, |_| count += 1);
        count
    }

    #[test]
    fn a_walk_reads_what_no_cache_knows() {
        let mut tlb = tlb();
        assert_eq!(count(&mut tlb, &four(0x1000), 0), 4);
        assert_eq!(count(&mut tlb, &four(0x2000), 0), 1, "the same table");
        assert_eq!(count(&mut tlb, &four(0x2000), 1), 4, "another PCID");
        assert_eq!(count(&mut tlb, &four(0x20_0000), 0), 2, "the next table");
        assert_eq!(count(&mut tlb, &four(0x4000_0000), 0), 4, "the entry of the PML4 was replaced by that of PCID 1");
    }

    #[test]
    fn flushes_apply_to_the_tables() {
        let mut tlb = tlb();
        let again = |tlb: &mut Tlb, pcid| count(tlb, &four(0x1000), pcid);
        for flush in [
            (|tlb: &mut Tlb| tlb.flush_pcid(0)) as fn(&mut Tlb),
            |tlb| tlb.flush_non_global(),
            |tlb| tlb.flush_all(),
            |tlb| tlb.flush_everything(),
            |tlb| tlb.flush_page(0x7000_0000, 0),
            |tlb| tlb.flush_page_of_vpid(0, 0x7000_0000),
            |tlb| tlb.flush_vpid(0, true),
            |tlb| tlb.forget_tables(0x3000, 0),
        ] {
            again(&mut tlb, 0);
            assert_eq!(again(&mut tlb, 0), 1);
            flush(&mut tlb);
            assert_eq!(again(&mut tlb, 0), 4);
        }
        again(&mut tlb, 0);
        for other in [
            (|tlb: &mut Tlb| tlb.flush_pcid(1)) as fn(&mut Tlb),
            |tlb| tlb.flush_page(0x1000, 1),
            |tlb| {
                tlb.forget_tables(0x20_0000, 0);
            },
        ] {
            other(&mut tlb);
            assert_eq!(again(&mut tlb, 0), 1);
        }
    }

    #[test]
    fn a_two_dimensional_walk_has_caches_for_both_dimensions() {
        let mut tlb = tlb();
        assert!(!tlb.enter(1, Some(0x1000)));
        let first = count(&mut tlb, &nested(0x1000), 0);
        assert!((9..24).contains(&first), "{first}: tables of the guest are near each other");
        assert_eq!(count(&mut tlb, &nested(0x1000), 0), 1, "its own table is known, and the page that was last");
        assert_eq!(count(&mut tlb, &nested(0x2000), 0), 2, "the entry of another page in the same tables of EPT");
        tlb.flush_vpid(1, true);
        let anew = count(&mut tlb, &nested(0x2000), 0);
        assert!((5..first).contains(&anew), "{anew}: INVVPID keeps guest-physical mappings");
        tlb.flush_ept(None);
        assert!(count(&mut tlb, &nested(0x2000), 0) >= first);
    }
}
