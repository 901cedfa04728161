//! The section of a ledger file with the stays.

use super::recorded::{GATES, MOST_CLASSES, MOST_ENTRIES};
use super::{BITS, CLASSES, Durations, Entries, Entry, EntryStays, Gate, Stay, Stays};
use crate::file::fields::{origin, put_origin, sorted_list};
use crate::unreadable::LedgerError;
use crate::wire::{Reader, put};
use crate::{Amount, Origin, RegionId};
use strum::VariantArray;

/// Writes the section.
pub(crate) fn write(out: &mut Vec<u8>, entries: &Entries) {
    put(out, entries.origins.len() as u64);
    for who in &entries.origins {
        put(out, u64::from(who.region.0));
        put_origin(out, who, crate::VERSION);
    }
    put(out, entries.all.len() as u64);
    for EntryStays { origin, entry, stays } in &entries.all {
        put(out, u64::from(*origin));
        put(out, entry.gate as u64);
        put(out, u64::from(entry.number));
        let Stay { ticks, enter, mitigation, leave } = stays.sum;
        let Amount { count, ticks: nested } = stays.nested;
        [ticks, enter, mitigation, leave, count, nested].into_iter().for_each(|number| put(out, number));
        let classes = &stays.durations.classes;
        put(out, classes.len() as u64);
        let mut before = 0;
        for (class, amount) in classes {
            put(out, u64::from(class - before));
            before = *class;
            put(out, amount.count);
            put(out, amount.ticks);
        }
    }
}

/// Reads the section of a ledger with this many regions and tasks.
pub(crate) fn read(r: &mut Reader, regions: usize, tasks: usize) -> Result<Entries, LedgerError> {
    r.section("stays");
    let origins = sorted_list(r, 6, MOST_ENTRIES, |r| {
        let region = RegionId(r.up_to((regions as u64).saturating_sub(1))? as u16);
        Ok(Origin { region, ..origin(r, crate::VERSION, tasks)? })
    })?;
    let count = r.count(10)?;
    let mut all: Vec<EntryStays> = Vec::with_capacity(count.min(1 << 12));
    let mut classes = 0;
    for _ in 0..count {
        let origin = r.number()?;
        if origin >= origins.len() as u64 {
            return Err(r.malformed("there is no such origin"));
        }
        let gate = Gate::VARIANTS[r.up_to(GATES - 1)? as usize];
        let number = r.up_to(u64::from(u32::MAX))? as u32;
        let entry = Entry::new(gate, number);
        if entry.number != number {
            return Err(r.malformed("there is no such entry"));
        }
        let mut figures = [0; 6];
        for figure in &mut figures {
            *figure = r.number()?;
        }
        let [ticks, enter, mitigation, leave, count, nested] = figures;
        let durations = durations(r)?;
        classes += durations.classes.len();
        let nested = Amount { count, ticks: nested };
        let stays = Stays { durations, sum: Stay { ticks, enter, mitigation, leave }, nested };
        all.push(EntryStays { origin: origin as u32, entry, stays });
    }
    // Beyond a number of classes, each entry has those of powers of two.
    let most = 2 * MOST_ENTRIES;
    if all.len() > most || classes > MOST_CLASSES + most * usize::from(CLASSES >> BITS) {
        return Err(r.malformed("there are too many"));
    }
    match all.is_sorted_by(|a, b| (a.origin, a.entry) < (b.origin, b.entry)) {
        true => Ok(Entries { origins, all }),
        false => Err(r.malformed("is out of order")),
    }
}

fn durations(r: &mut Reader) -> Result<Durations, LedgerError> {
    let count = r.count(3)?;
    let mut classes = Vec::with_capacity(count.min(usize::from(CLASSES)));
    let mut last = 0;
    for number in 0..count {
        let distance = r.up_to(u64::from(CLASSES))? as u16;
        if number != 0 && distance == 0 {
            return Err(r.malformed("is out of order"));
        }
        last += distance;
        if last >= CLASSES {
            return Err(r.malformed("there is no such duration"));
        }
        let amount = Amount { count: r.number()?, ticks: r.number()? };
        if amount.count == 0 {
            return Err(r.malformed("there is no stay of a duration"));
        }
        classes.push((last, amount));
    }
    Ok(Durations { classes })
}
