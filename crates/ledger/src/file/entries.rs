//! Blocks and events in a payload: checked once, and then read as often as somebody walks through them, without a list of
//! them in memory.

use super::fields::kind;
use crate::entry::{BlockRuns, EventCharge};
use crate::unreadable::LedgerError;
use crate::wire::{Reader, put};

/// The numbers of regions, origins, shapes and families that entries may refer to.
#[derive(Clone, Copy)]
pub(super) struct Counts {
    pub(super) regions: usize,
    pub(super) origins: usize,
    pub(super) shapes: usize,
    pub(super) families: u64,
}

/// The place that an entry is charged to, written as the difference from the entry before.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) region: u32,
    pub(super) origin: u32,
    pub(super) rip: u64,
}

impl Position {
    pub(super) fn put(&mut self, out: &mut Vec<u8>, next: Position) {
        if next.region != self.region {
            *self = Position { region: self.region, ..Position::default() };
        }
        put(out, u64::from(next.region.wrapping_sub(self.region)));
        if next.origin != self.origin {
            self.rip = 0;
        }
        put(out, u64::from(next.origin.wrapping_sub(self.origin)));
        put(out, next.rip.wrapping_sub(self.rip));
        *self = next;
    }

    fn get(&mut self, reader: &mut Reader) -> Result<Position, LedgerError> {
        let region = self.region.checked_add(reader.up_to(u64::from(u32::MAX))? as u32);
        let region = region.ok_or_else(|| reader.malformed("a region is out of range"))?;
        if region != self.region {
            *self = Position { region, ..Position::default() };
        }
        let origin = self.origin.checked_add(reader.up_to(u64::from(u32::MAX))? as u32);
        let origin = origin.ok_or_else(|| reader.malformed("an origin is out of range"))?;
        if origin != self.origin {
            self.rip = 0;
        }
        let rip =
            self.rip.checked_add(reader.number()?).ok_or_else(|| reader.malformed("an address is out of range"))?;
        *self = Position { region, origin, rip };
        Ok(*self)
    }

    /// The next place, in a region and of an origin that there are.
    pub(super) fn checked(&mut self, reader: &mut Reader, counts: Counts) -> Result<Position, LedgerError> {
        let place = self.get(reader)?;
        if place.region as usize >= counts.regions {
            return Err(reader.malformed("there is no such region"));
        }
        if place.origin as usize >= counts.origins {
            return Err(reader.malformed("there is no such origin"));
        }
        Ok(place)
    }
}

/// Entries of a payload, one after the other.
#[derive(Clone)]
struct Entries<'a> {
    reader: Reader<'a>,
    left: usize,
    place: Position,
    counts: Counts,
}

impl<'a> Entries<'a> {
    /// Checks entries of at least `bytes` bytes each, and moves the reader behind them.
    fn new<T: Ord>(
        reader: &mut Reader<'a>,
        bytes: usize,
        counts: Counts,
        read: impl Fn(&mut Self) -> Result<T, LedgerError>,
    ) -> Result<Self, LedgerError> {
        let left = reader.count(bytes)?;
        let first = Self { reader: reader.clone(), left, place: Position::default(), counts };
        let mut walk = first.clone();
        let mut before = None;
        for _ in 0..left {
            let entry = read(&mut walk)?;
            if before.is_some_and(|before| before >= entry) {
                return Err(reader.malformed("is out of order"));
            }
            before = Some(entry);
        }
        *reader = walk.reader;
        Ok(first)
    }

    fn next<T>(&mut self, read: impl Fn(&mut Self) -> Result<T, LedgerError>) -> Option<T> {
        self.left = self.left.checked_sub(1)?;
        read(self).ok()
    }
}

/// Blocks.
#[derive(Clone)]
pub(super) struct Blocks<'a>(Entries<'a>);

impl<'a> Blocks<'a> {
    pub(super) fn new(reader: &mut Reader<'a>, counts: Counts) -> Result<Self, LedgerError> {
        Ok(Self(Entries::new(reader, 5, counts, read_block)?))
    }
}

fn read_block(entries: &mut Entries) -> Result<BlockRuns, LedgerError> {
    let r = &mut entries.reader;
    let Position { region, origin, rip } = entries.place.checked(r, entries.counts)?;
    let shape = r.up_to(u64::from(u32::MAX))? as u32;
    if shape as usize >= entries.counts.shapes {
        return Err(r.malformed("there is no such shape"));
    }
    Ok(BlockRuns { region, origin, rip, shape, runs: r.number()? })
}

impl Iterator for Blocks<'_> {
    type Item = BlockRuns;

    fn next(&mut self) -> Option<BlockRuns> {
        self.0.next(read_block)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.0.left, Some(self.0.left))
    }
}

impl ExactSizeIterator for Blocks<'_> {}

/// Events.
#[derive(Clone)]
pub(super) struct Events<'a>(Entries<'a>);

impl<'a> Events<'a> {
    pub(super) fn new(reader: &mut Reader<'a>, counts: Counts) -> Result<Self, LedgerError> {
        Ok(Self(Entries::new(reader, 7, counts, read_event)?))
    }
}

fn read_event(entries: &mut Entries) -> Result<EventCharge, LedgerError> {
    let r = &mut entries.reader;
    let Position { region, origin, rip } = entries.place.checked(r, entries.counts)?;
    let kind = kind(r, entries.counts.families)?;
    Ok(EventCharge { region, origin, rip, kind, count: r.number()?, ticks: r.number()? })
}

impl Iterator for Events<'_> {
    type Item = EventCharge;

    fn next(&mut self) -> Option<EventCharge> {
        self.0.next(read_event)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.0.left, Some(self.0.left))
    }
}

impl ExactSizeIterator for Events<'_> {}
