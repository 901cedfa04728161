//! The ledger's file: versioned, compressed, the same bytes for the same run. `docs/ledger-format.md` describes it.
//!
//! The reader is handed files by strangers: it allocates no more than what a file of the largest
//! payload needs, and whatever is wrong is an error.

use crate::ledger::{BlockRuns, EventCharge, Header, Ledger, SavedSymbol};
use crate::recorder::{LONGEST_REGION_NAME, MOST_REGIONS, Region};
use crate::wire::{Reader, fnv1a, put, put_str};
use crate::{Class, Family, Kind, Operation, Origin};
use std::collections::BTreeMap;

/// The first bytes of a ledger. The first is no text, the last two show what text transfer does to a file.
const MAGIC: [u8; 8] = *b"\x8fLEDGR\r\n";
/// The version of the layout.
pub const VERSION: u16 = 2;
/// The version whose events end with [`Family::Undefined`]: it was never written for a guest of a hypervisor. Otherwise the same.
const BEFORE_HYPERVISORS: u16 = 1;
/// Uncompressed bytes in a frame, at most.
const FRAME: usize = 1 << 20;
/// Uncompressed bytes in all, at most: some ten million entries.
const LARGEST_PAYLOAD: usize = 128 << 20;
/// Bytes in front of the frames: magic, version, length and hash of the frames.
const PREAMBLE: usize = 26;
/// Texts longer than these are refused; in bytes.
const LONGEST_NAME: usize = 4096;
const LONGEST_METADATA: usize = 1 << 16;
/// The most virtual CPUs.
const MOST_CPUS: usize = 4096;

/// Why a file is not a usable ledger.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// It does not begin as a ledger does.
    #[error("is not a ledger")]
    NotALedger,
    /// Another version of this program wrote it.
    #[error("is a ledger of format version {found}; this program reads versions {BEFORE_HYPERVISORS} to {VERSION}")]
    Version {
        /// The version found.
        found: u16,
    },
    /// Bytes at its end are missing, or too many.
    #[error("is truncated, or something was appended to it: {found} bytes where {expected} were written")]
    Length {
        /// Bytes there should be.
        expected: u64,
        /// Bytes there are.
        found: u64,
    },
    /// Its checksum is wrong.
    #[error("is damaged: its checksum is wrong")]
    Checksum,
    /// A frame can't be decompressed.
    #[error("is damaged: a frame can't be decompressed")]
    Frame,
    /// What it says makes no sense.
    #[error("is malformed: {section}: {reason}")]
    Malformed {
        /// The section.
        section: &'static str,
        /// What is wrong.
        reason: &'static str,
    },
}

impl Ledger {
    /// The file's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut frames = Vec::new();
        for part in self.payload().chunks(FRAME) {
            let packed = lz4_flex::block::compress(part);
            frames.extend_from_slice(&(part.len() as u32).to_le_bytes());
            frames.extend_from_slice(&(packed.len() as u32).to_le_bytes());
            frames.extend_from_slice(&packed);
        }
        let mut out = Vec::with_capacity(PREAMBLE + frames.len());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&(frames.len() as u64).to_le_bytes());
        out.extend_from_slice(&fnv1a(&frames).to_le_bytes());
        out.extend_from_slice(&frames);
        out
    }

    /// The ledger in a file's bytes.
    pub fn read(bytes: &[u8]) -> Result<Self, LedgerError> {
        if bytes.get(..8) != Some(&MAGIC[..]) {
            return Err(LedgerError::NotALedger);
        }
        let length = |expected| LedgerError::Length { expected, found: bytes.len() as u64 };
        let Some((preamble, frames)) = bytes.split_at_checked(PREAMBLE) else { return Err(length(PREAMBLE as u64)) };
        let version = u16::from_le_bytes([preamble[8], preamble[9]]);
        if !(BEFORE_HYPERVISORS..=VERSION).contains(&version) {
            return Err(LedgerError::Version { found: version });
        }
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| preamble[at + i]));
        if number(10) != frames.len() as u64 {
            return Err(length(number(10).saturating_add(PREAMBLE as u64)));
        }
        if number(18) != fnv1a(frames) {
            return Err(LedgerError::Checksum);
        }
        let families = if version == BEFORE_HYPERVISORS { Family::VmExit as u64 } else { Family::ALL.len() as u64 };
        parse(&unpack(frames)?, families)
    }

    fn payload(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let header = &self.header;
        put_str(&mut out, &header.profile);
        put(&mut out, header.tsc_hz);
        put(&mut out, header.class_ticks.len() as u64);
        header.class_ticks.iter().for_each(|ticks| put(&mut out, u64::from(*ticks)));
        put(&mut out, header.clocks.len() as u64);
        header.clocks.iter().for_each(|clock| put(&mut out, *clock));
        put(&mut out, header.metadata.len() as u64);
        for (key, value) in &header.metadata {
            put_str(&mut out, key);
            put_str(&mut out, value);
        }
        put(&mut out, header.names.len() as u64);
        for (kind, name) in &header.names {
            put_kind(&mut out, *kind);
            put_str(&mut out, name);
        }
        put(&mut out, self.regions.len() as u64);
        for region in &self.regions {
            put_str(&mut out, &region.name);
            put(&mut out, region.begun);
        }
        put(&mut out, self.origins.len() as u64);
        for origin in &self.origins {
            put(&mut out, u64::from(origin.level));
            put(&mut out, u64::from(origin.ring));
            put(&mut out, origin.space);
        }
        put(&mut out, self.shapes.len() as u64);
        for shape in &self.shapes {
            put(&mut out, shape.len() as u64);
            for (class, count) in shape {
                put(&mut out, *class as u64);
                put(&mut out, u64::from(*count));
            }
        }
        put(&mut out, self.symbols.len() as u64);
        for symbol in &self.symbols {
            put(&mut out, symbol.space);
            put(&mut out, symbol.start);
            put(&mut out, symbol.size);
            put_str(&mut out, &symbol.name);
            put_str(&mut out, &symbol.module);
        }
        put(&mut out, self.blocks.len() as u64);
        let mut before = Place::default();
        for block in &self.blocks {
            before.put(&mut out, Place { region: block.region, origin: block.origin, rip: block.rip });
            put(&mut out, u64::from(block.shape));
            put(&mut out, block.runs);
        }
        put(&mut out, self.events.len() as u64);
        let mut before = Place::default();
        for event in &self.events {
            before.put(&mut out, Place { region: event.region, origin: event.origin, rip: event.rip });
            put_kind(&mut out, event.kind);
            put(&mut out, event.count);
            put(&mut out, event.ticks);
        }
        out
    }
}

/// Where an entry is charged, written as the difference from the entry before.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Place {
    region: u32,
    origin: u32,
    rip: u64,
}

impl Place {
    fn put(&mut self, out: &mut Vec<u8>, next: Place) {
        if next.region != self.region {
            *self = Place { region: self.region, ..Place::default() };
        }
        put(out, u64::from(next.region.wrapping_sub(self.region)));
        if next.origin != self.origin {
            self.rip = 0;
        }
        put(out, u64::from(next.origin.wrapping_sub(self.origin)));
        put(out, next.rip.wrapping_sub(self.rip));
        *self = next;
    }

    fn get(&mut self, reader: &mut Reader) -> Result<Place, LedgerError> {
        let region = self.region.checked_add(reader.up_to(u64::from(u32::MAX))? as u32);
        let region = region.ok_or_else(|| reader.malformed("a region is out of range"))?;
        if region != self.region {
            *self = Place { region, ..Place::default() };
        }
        let origin = self.origin.checked_add(reader.up_to(u64::from(u32::MAX))? as u32);
        let origin = origin.ok_or_else(|| reader.malformed("an origin is out of range"))?;
        if origin != self.origin {
            self.rip = 0;
        }
        let rip =
            self.rip.checked_add(reader.number()?).ok_or_else(|| reader.malformed("an address is out of range"))?;
        *self = Place { region, origin, rip };
        Ok(*self)
    }
}

fn put_kind(out: &mut Vec<u8>, kind: Kind) {
    put(out, kind.family as u64);
    put(out, u64::from(kind.param));
}

/// A kind of the first `families` families.
fn kind(reader: &mut Reader, families: u64) -> Result<Kind, LedgerError> {
    let number = reader.up_to(255)?;
    let family = Family::from_index(number as usize).filter(|_| number < families);
    let family = family.ok_or_else(|| reader.malformed("there is no such family of events"))?;
    let param = reader.up_to(u64::from(u32::MAX))? as u32;
    if family == Family::Instruction && Class::from_index(param as usize).is_none() {
        return Err(reader.malformed("there is no such class"));
    }
    if family == Family::Operation && Operation::from_index(param as usize).is_none() {
        return Err(reader.malformed("there is no such operation"));
    }
    Ok(Kind::new(family, param))
}

fn unpack(mut frames: &[u8]) -> Result<Vec<u8>, LedgerError> {
    let mut payload = Vec::new();
    while !frames.is_empty() {
        let (lengths, rest) = frames.split_at_checked(8).ok_or(LedgerError::Frame)?;
        let length = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| lengths[at + i])) as usize;
        let (packed, rest) = rest.split_at_checked(length(4)).ok_or(LedgerError::Frame)?;
        // LZ4 expands a byte to 255 at most: more is a lie that would cost memory.
        let size = length(0);
        if size > FRAME || size > packed.len().saturating_mul(255) {
            return Err(LedgerError::Frame);
        }
        let part = lz4_flex::block::decompress(packed, size).map_err(|_| LedgerError::Frame)?;
        if part.len() != size {
            return Err(LedgerError::Frame);
        }
        if payload.len() + size > LARGEST_PAYLOAD {
            return Err(LedgerError::Frame);
        }
        payload.extend_from_slice(&part);
        frames = rest;
    }
    Ok(payload)
}

fn parse(payload: &[u8], families: u64) -> Result<Ledger, LedgerError> {
    let r = &mut Reader::new(payload);
    let header = header(r, families)?;
    r.section("regions");
    let regions = list(r, 2, |r| Ok(Region { name: r.string(LONGEST_REGION_NAME * 4)?, begun: r.number()? }))?;
    if regions.len() > MOST_REGIONS || regions.first().is_none_or(|first| !first.name.is_empty()) {
        return Err(r.malformed("the first has a name, or there are too many"));
    }
    r.section("origins");
    let origins = list(r, 3, |r| Ok(Origin { level: r.up_to(2)? as u8, ring: r.up_to(3)? as u8, space: r.number()? }))?;
    in_order(r, &origins)?;
    r.section("shapes");
    let shapes = list(r, 1, |r| {
        list(r, 2, |r| {
            let class = Class::from_index(r.up_to(255)? as usize);
            Ok((class.ok_or_else(|| r.malformed("there is no such class"))?, r.up_to(u64::from(u32::MAX))? as u32))
        })
    })?;
    in_order(r, &shapes)?;
    r.section("symbols");
    let symbols = list(r, 5, |r| {
        Ok(SavedSymbol {
            space: r.number()?,
            start: r.number()?,
            size: r.number()?,
            name: r.string(LONGEST_NAME)?,
            module: r.string(LONGEST_NAME)?,
        })
    })?;
    in_order(r, &symbols)?;
    r.section("blocks");
    let mut place = Place::default();
    let blocks = list(r, 5, |r| {
        let Place { region, origin, rip } = checked(r, &mut place, regions.len(), origins.len())?;
        let shape = r.up_to(u64::from(u32::MAX))? as u32;
        if shape as usize >= shapes.len() {
            return Err(r.malformed("there is no such shape"));
        }
        Ok(BlockRuns { region, origin, rip, shape, runs: r.number()? })
    })?;
    in_order(r, &blocks)?;
    r.section("events");
    let mut place = Place::default();
    let events = list(r, 7, |r| {
        let Place { region, origin, rip } = checked(r, &mut place, regions.len(), origins.len())?;
        Ok(EventCharge { region, origin, rip, kind: kind(r, families)?, count: r.number()?, ticks: r.number()? })
    })?;
    in_order(r, &events)?;
    std::mem::replace(r, Reader::new(&[])).finish()?;
    Ok(Ledger { header, regions, origins, shapes, symbols, blocks, events })
}

fn header(r: &mut Reader, families: u64) -> Result<Header, LedgerError> {
    let profile = r.string(LONGEST_NAME)?;
    let tsc_hz = r.number()?;
    if tsc_hz == 0 {
        return Err(r.malformed("the clock does not run"));
    }
    let prices = list(r, 1, |r| Ok(r.up_to(u64::from(u32::MAX))? as u32))?;
    let class_ticks = prices.try_into().map_err(|_| r.malformed("there is not one price for each class"))?;
    let clocks = list(r, 1, |r| r.number())?;
    if clocks.len() > MOST_CPUS {
        return Err(r.malformed("there are too many virtual CPUs"));
    }
    r.section("metadata");
    let metadata = map(r, 2, |r| Ok((r.string(LONGEST_NAME)?, r.string(LONGEST_METADATA)?)))?;
    r.section("names");
    let names = map(r, 3, |r| Ok((kind(r, families)?, r.string(LONGEST_NAME)?)))?;
    Ok(Header { profile, tsc_hz, class_ticks, clocks, metadata, names })
}

/// A list of items of at least `bytes` bytes each.
fn list<T>(
    r: &mut Reader,
    bytes: usize,
    mut item: impl FnMut(&mut Reader) -> Result<T, LedgerError>,
) -> Result<Vec<T>, LedgerError> {
    let count = r.count(bytes)?;
    let mut items = Vec::with_capacity(count.min(1 << 16));
    for _ in 0..count {
        items.push(item(r)?);
    }
    Ok(items)
}

fn map<K: Ord, V>(
    r: &mut Reader,
    bytes: usize,
    item: impl FnMut(&mut Reader) -> Result<(K, V), LedgerError>,
) -> Result<BTreeMap<K, V>, LedgerError> {
    let items = list(r, bytes, item)?;
    match items.is_sorted_by(|a, b| a.0 < b.0) {
        true => Ok(items.into_iter().collect()),
        false => Err(r.malformed("is out of order")),
    }
}

fn checked(r: &mut Reader, place: &mut Place, regions: usize, origins: usize) -> Result<Place, LedgerError> {
    let place = place.get(r)?;
    if place.region as usize >= regions {
        return Err(r.malformed("there is no such region"));
    }
    if place.origin as usize >= origins {
        return Err(r.malformed("there is no such origin"));
    }
    Ok(place)
}

fn in_order<T: Ord>(r: &Reader, items: &[T]) -> Result<(), LedgerError> {
    if items.is_sorted_by(|a, b| a < b) { Ok(()) } else { Err(r.malformed("is out of order")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::tests::sample;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_is_read_again() {
        let ledger = sample();
        assert_eq!(Ledger::read(&ledger.to_bytes()), Ok(ledger));
    }

    #[test]
    fn the_same_run_gives_the_same_bytes() {
        assert_eq!(sample().to_bytes(), sample().to_bytes());
    }

    #[test]
    fn a_file_of_several_frames_is_read_again() {
        let mut ledger = sample();
        ledger.blocks = (0..300_000u64)
            .map(|i| BlockRuns {
                region: 0,
                origin: (i / 150_000) as u32,
                rip: i * i,
                shape: 0,
                runs: i.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            })
            .collect();
        assert!(ledger.payload().len() > 2 * FRAME);
        assert_eq!(Ledger::read(&ledger.to_bytes()), Ok(ledger));
    }

    #[test]
    fn damage_is_recognized() {
        let bytes = sample().to_bytes();
        assert_eq!(Ledger::read(b"\xff\xd8\xff\xe0JFIF and more"), Err(LedgerError::NotALedger));
        assert_eq!(Ledger::read(&[]), Err(LedgerError::NotALedger));
        assert_eq!(
            Ledger::read(&bytes[..bytes.len() - 1]),
            Err(LedgerError::Length { expected: bytes.len() as u64, found: bytes.len() as u64 - 1 })
        );
        let mut flipped = bytes.clone();
        flipped[PREAMBLE + 20] ^= 4;
        assert_eq!(Ledger::read(&flipped), Err(LedgerError::Checksum));
        let mut newer = bytes;
        newer[8] = 3;
        assert_eq!(Ledger::read(&newer), Err(LedgerError::Version { found: 3 }));
    }

    #[test]
    fn files_from_before_there_were_hypervisors_are_read() {
        let as_version_1 = |ledger: &Ledger| {
            let mut bytes = ledger.to_bytes();
            bytes[8] = 1;
            Ledger::read(&bytes)
        };
        let mut ledger = sample();
        assert_eq!(as_version_1(&ledger), Ok(ledger.clone()));
        ledger.events.last_mut().unwrap().kind = Kind::new(Family::VmExit, 10);
        assert_eq!(Ledger::read(&ledger.to_bytes()), Ok(ledger.clone()));
        assert!(matches!(as_version_1(&ledger), Err(LedgerError::Malformed { section: "events", .. })));
    }

    /// A file around a payload, with the right lengths and checksum.
    fn around(payload: &[u8]) -> Vec<u8> {
        let mut frames = Vec::new();
        for part in payload.chunks(FRAME) {
            let packed = lz4_flex::block::compress(part);
            frames.extend_from_slice(&(part.len() as u32).to_le_bytes());
            frames.extend_from_slice(&(packed.len() as u32).to_le_bytes());
            frames.extend_from_slice(&packed);
        }
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(frames.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&fnv1a(&frames).to_le_bytes());
        bytes.extend_from_slice(&frames);
        bytes
    }

    #[test]
    fn a_frame_that_claims_to_be_huge_is_refused() {
        let mut frames = Vec::new();
        frames.extend_from_slice(&u32::MAX.to_le_bytes());
        frames.extend_from_slice(&1u32.to_le_bytes());
        frames.push(0);
        assert_eq!(unpack(&frames), Err(LedgerError::Frame));
    }

    #[test]
    fn entries_that_point_nowhere_are_refused() {
        for break_it in [
            |l: &mut Ledger| l.blocks.last_mut().unwrap().shape = 99,
            |l: &mut Ledger| l.blocks.last_mut().unwrap().origin = 99,
            |l: &mut Ledger| l.events.last_mut().unwrap().region = 99,
            |l: &mut Ledger| l.events.last_mut().unwrap().kind = Kind::new(Family::Instruction, 99),
            |l: &mut Ledger| l.events.last_mut().unwrap().kind = Kind::new(Family::Operation, 99),
            |l: &mut Ledger| l.events.swap(0, 1),
            |l: &mut Ledger| l.origins.swap(0, 1),
            |l: &mut Ledger| l.origins[0].ring = 4,
            |l: &mut Ledger| l.regions.clear(),
            |l: &mut Ledger| l.header.tsc_hz = 0,
        ] {
            let mut ledger = sample();
            break_it(&mut ledger);
            assert!(matches!(Ledger::read(&ledger.to_bytes()), Err(LedgerError::Malformed { .. })));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = Ledger::read(&bytes);
            let _ = Ledger::read(&around(&bytes));
        }

        #[test]
        fn no_change_of_a_payload_makes_the_reader_panic(
            changes in prop::collection::vec((0usize..4000, any::<u8>()), 1..8), cut in 0usize..4000,
        ) {
            let mut payload = sample().payload();
            for (at, byte) in changes {
                let at = at % payload.len();
                payload[at] = byte;
            }
            payload.truncate(payload.len() - cut % 16);
            if let Ok(ledger) = Ledger::read(&around(&payload)) {
                let _ = ledger.verify();
                let _ = ledger.symbol(0, u64::MAX);
            }
        }
    }
}
