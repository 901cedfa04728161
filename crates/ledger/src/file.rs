//! The ledger's file: versioned, compressed, the same bytes for the same run. `docs/ledger-format.md` describes it.
//!
//! The reader is handed files by strangers: it allocates no more than what a file of the largest
//! payload needs, and whatever is wrong is an error. The writer knows the reader's limits, and writes nothing beyond them.

mod entries;
pub(crate) mod fields;

use crate::branch;
use crate::coarse::{Coarseness, Range};
use crate::entry::SavedSymbol;
use crate::fold::{Folded, MOST_ENTRIES};
use crate::ledger::{Header, Ledger, SavedFunctions};
use crate::recorder::{LONGEST_REGION_NAME, MOST_REGIONS, Region};
use crate::stack::{self, Stacks};
use crate::stays::{self, Entries};
use crate::task::{LONGEST_COMM, MOST_TASKS, Task, TaskKind};
use crate::unreadable::{BEFORE_HYPERVISORS, LARGEST_PAYLOAD, LedgerError, VERSION};
use crate::wire::{Reader, fnv1a, put, put_cut};
use crate::{Class, Family, FoldedPlace, Ticks};
use entries::{Blocks, Counts, Events, Position};
use fields::{BEFORE_FOLDING, BEFORE_GUESTS, address_space, kind, list, origin, put_kind, put_origin, sorted_list};
use std::collections::BTreeMap;

/// The version without stays in the kernel.
const BEFORE_STAYS: u16 = 7;
/// The version in which shapes had no ticks: every instruction of a class had the price in the header.
const BEFORE_TICKS: u16 = 6;
/// The version without stacks.
const BEFORE_STACKS: u16 = 5;
/// The version without branches and stacks.
const BEFORE_BRANCHES: u16 = 4;
/// The first bytes of a ledger. The first is no text, the last two show what text transfer does to a file.
const MAGIC: [u8; 8] = *b"\x8fLEDGR\r\n";
/// Uncompressed bytes in a frame, at most.
const FRAME: usize = 1 << 20;
/// Bytes in front of the frames: magic, version, length and hash of the frames.
const PREAMBLE: usize = 26;
/// Texts longer than these are refused; in bytes.
const LONGEST_NAME: usize = 4096;
const LONGEST_METADATA: usize = 1 << 16;
/// The most virtual CPUs.
const MOST_CPUS: usize = 4096;
/// The most facts that describe a run, and the most kinds that have names of their own.
const MOST_FACTS: usize = 1 << 12;
const MOST_NAMES: usize = 1 << 18;

/// A ledger that no reader would take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the ledger is too large: {bytes} bytes, {entries} entries and {symbols} functions, where {LARGEST_PAYLOAD} bytes and \
     {MOST_ENTRIES} of each are the most. A shorter run (--limit) or fewer --symbols make it smaller"
)]
pub struct TooLarge {
    bytes: usize,
    entries: usize,
    symbols: usize,
}

impl Ledger {
    /// The file's bytes.
    pub fn to_bytes(&self) -> Result<Vec<u8>, TooLarge> {
        let entries = self.blocks.len() + self.events.len();
        let payload = self.payload(VERSION);
        if payload.len() > LARGEST_PAYLOAD || entries > MOST_ENTRIES || self.symbols.len() > MOST_ENTRIES {
            return Err(TooLarge { bytes: payload.len(), entries, symbols: self.symbols.len() });
        }
        Ok(framed(&payload, VERSION))
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
        let payload = unpack(frames)?;
        parse(Reader::new(&payload), version)
    }

    /// The payload of a version, without what older ones don't have.
    fn payload(&self, version: u16) -> Vec<u8> {
        let mut out = Vec::new();
        let header = &self.header;
        put_cut(&mut out, &header.profile, LONGEST_NAME);
        put(&mut out, header.tsc_hz);
        let later = header.class_ticks[Class::FIRST..].iter().rposition(|ticks| *ticks != 0).map_or(0, |last| last + 1);
        let prices = &header.class_ticks[..Class::FIRST + later];
        put(&mut out, prices.len() as u64);
        prices.iter().for_each(|ticks| put(&mut out, u64::from(*ticks)));
        put(&mut out, header.clocks.len() as u64);
        header.clocks.iter().for_each(|clock| put(&mut out, *clock));
        put(&mut out, header.metadata.len() as u64);
        for (key, value) in &header.metadata {
            put_cut(&mut out, key, LONGEST_NAME);
            put_cut(&mut out, value, LONGEST_METADATA);
        }
        put(&mut out, header.names.len() as u64);
        for (kind, name) in &header.names {
            put_kind(&mut out, *kind);
            put_cut(&mut out, name, LONGEST_NAME);
        }
        put(&mut out, self.regions.len() as u64);
        for region in &self.regions {
            put_cut(&mut out, &region.name, LONGEST_REGION_NAME * 4);
            put(&mut out, region.begun);
            if version > BEFORE_FOLDING {
                put(&mut out, region.elapsed);
            }
        }
        if version > BEFORE_FOLDING {
            put(&mut out, self.tasks.len() as u64);
            for task in &self.tasks {
                put(&mut out, task.kind as u64);
                put(&mut out, u64::from(task.pid));
                put(&mut out, u64::from(task.tid));
                put_cut(&mut out, &task.comm, LONGEST_COMM);
            }
        }
        put(&mut out, self.origins.len() as u64);
        self.origins.iter().for_each(|origin| put_origin(&mut out, origin, version));
        put(&mut out, self.shapes.len() as u64);
        for shape in &self.shapes {
            put(&mut out, shape.len() as u64);
            for (class, count, ticks) in shape {
                put(&mut out, *class as u64);
                put(&mut out, u64::from(*count));
                if version > BEFORE_TICKS {
                    put(&mut out, *ticks);
                }
            }
        }
        put(&mut out, self.symbols.len() as u64);
        for symbol in &self.symbols {
            if version > BEFORE_GUESTS {
                put(&mut out, symbol.space.guest);
            }
            put(&mut out, symbol.space.root);
            put(&mut out, symbol.start);
            put(&mut out, symbol.size);
            put_cut(&mut out, &symbol.name, LONGEST_NAME);
            put_cut(&mut out, &symbol.module, LONGEST_NAME);
        }
        put(&mut out, self.blocks.len() as u64);
        let mut before = Position::default();
        for block in &self.blocks {
            before.put(&mut out, Position { region: block.region, origin: block.origin, rip: block.rip });
            put(&mut out, u64::from(block.shape));
            put(&mut out, block.runs);
        }
        put(&mut out, self.events.len() as u64);
        let mut before = Position::default();
        for event in &self.events {
            before.put(&mut out, Position { region: event.region, origin: event.origin, rip: event.rip });
            put_kind(&mut out, event.kind);
            put(&mut out, event.count);
            put(&mut out, event.ticks);
        }
        if version <= BEFORE_FOLDING {
            return out;
        }
        put(&mut out, u64::from(self.folded.recorded.index()));
        put(&mut out, self.folded.addresses);
        put(&mut out, self.folded.places.len() as u64);
        let mut before = Position::default();
        for &FoldedPlace { region, origin, rip, range } in &self.folded.places {
            before.put(&mut out, Position { region, origin, rip });
            put(&mut out, rip.wrapping_sub(range.start));
            put(&mut out, range.len);
        }
        if version > BEFORE_BRANCHES {
            branch::write(&mut out, &self.branches);
        }
        if version > BEFORE_STACKS {
            stack::write(&mut out, &self.stacks);
        }
        if version > BEFORE_STAYS {
            stays::write(&mut out, &self.entries);
        }
        out
    }
}

/// A file of a payload.
fn framed(payload: &[u8], version: u16) -> Vec<u8> {
    let mut out = vec![0; PREAMBLE];
    for part in payload.chunks(FRAME) {
        let packed = lz4_flex::block::compress(part);
        out.extend_from_slice(&(part.len() as u32).to_le_bytes());
        out.extend_from_slice(&(packed.len() as u32).to_le_bytes());
        out.extend_from_slice(&packed);
    }
    let frames = &out[PREAMBLE..];
    let (length, hash) = (frames.len() as u64, fnv1a(frames));
    out[..8].copy_from_slice(&MAGIC);
    out[8..10].copy_from_slice(&version.to_le_bytes());
    out[10..18].copy_from_slice(&length.to_le_bytes());
    out[18..26].copy_from_slice(&hash.to_le_bytes());
    out
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
            return Err(LedgerError::TooLarge);
        }
        payload.extend_from_slice(&part);
        frames = rest;
    }
    Ok(payload)
}

fn parse(mut reader: Reader, version: u16) -> Result<Ledger, LedgerError> {
    let families = if version == BEFORE_HYPERVISORS { Family::VmExit as u64 } else { Family::ALL.len() as u64 };
    let r = &mut reader;
    let header = header(r, families)?;
    r.section("regions");
    let regions = list(r, 2, MOST_REGIONS, |r| {
        let (name, begun) = (r.string(LONGEST_REGION_NAME * 4)?, r.number()?);
        Ok(Region { name, begun, elapsed: if version > BEFORE_FOLDING { r.number()? } else { 0 } })
    })?;
    if regions.first().is_none_or(|first| !first.name.is_empty()) {
        return Err(r.malformed("the first has a name"));
    }
    let tasks = if version > BEFORE_FOLDING { tasks(r)? } else { vec![Task::default()] };
    r.section("origins");
    let origins = sorted_list(r, 3, MOST_ENTRIES, |r| origin(r, version, tasks.len()))?;
    r.section("shapes");
    let shapes = sorted_list(r, 1, MOST_ENTRIES, |r| {
        list(r, 2, Class::COUNT, |r| {
            let class =
                Class::from_index(r.up_to(255)? as usize).ok_or_else(|| r.malformed("there is no such class"))?;
            let count = r.up_to(u64::from(u32::MAX))? as u32;
            let even = Ticks::from(header.class_ticks[class as usize]).saturating_mul(Ticks::from(count));
            Ok((class, count, if version > BEFORE_TICKS { r.number()? } else { even }))
        })
    })?;
    r.section("symbols");
    let symbols = sorted_list(r, 5, MOST_ENTRIES, |r| {
        Ok(SavedSymbol {
            space: address_space(r, version)?,
            start: r.number()?,
            size: r.number()?,
            name: r.string(LONGEST_NAME)?,
            module: r.string(LONGEST_NAME)?,
        })
    })?;
    let counts = Counts { regions: regions.len(), origins: origins.len(), shapes: shapes.len(), families };
    r.section("blocks");
    let blocks = Blocks::new(r, counts)?;
    r.section("events");
    let events = Events::new(r, counts)?;
    let mut ledger = Ledger {
        header,
        regions,
        tasks,
        origins,
        shapes,
        symbols,
        blocks: Vec::new(),
        events: Vec::new(),
        folded: Folded::default(),
        branches: Vec::new(),
        stacks: Stacks::default(),
        entries: Entries::default(),
    };
    if blocks.len() + events.len() <= MOST_ENTRIES {
        ledger.blocks = blocks.collect();
        ledger.events = events.collect();
    } else if version <= BEFORE_FOLDING {
        let symbols = std::mem::take(&mut ledger.symbols);
        let functions = SavedFunctions::new(&symbols);
        if !ledger.fold(&functions, MOST_ENTRIES, &|_, _, _| None, || blocks.clone(), || events.clone()) {
            return Err(LedgerError::TooLarge);
        }
        ledger.symbols = symbols;
        ledger.drop_unused();
    } else {
        return Err(r.malformed("there are too many blocks and events"));
    }
    if version > BEFORE_FOLDING {
        r.section("folded");
        ledger.folded = folded(r, counts)?;
    }
    if version > BEFORE_BRANCHES {
        ledger.branches = branch::read(r, ledger.regions.len())?;
    }
    if version > BEFORE_STACKS {
        ledger.stacks = stack::read(r, ledger.regions.len(), ledger.tasks.len())?;
        if ledger.stacks.keeps.is_nothing() && ledger.stacks != Stacks::default() {
            return Err(r.malformed("there are stacks of a run that recorded none"));
        }
    }
    if version > BEFORE_STAYS {
        ledger.entries = stays::read(r, ledger.regions.len(), ledger.tasks.len())?;
    }
    reader.finish()?;
    Ok(ledger)
}

/// The tasks: first the one that stands for none, then the others in order.
fn tasks(r: &mut Reader) -> Result<Vec<Task>, LedgerError> {
    r.section("tasks");
    let tasks = sorted_list(r, 4, MOST_TASKS + 2, |r| {
        let kind = TaskKind::ALL[r.up_to(TaskKind::ALL.len() as u64 - 1)? as usize];
        let number = |r: &mut Reader| Ok(r.up_to(u64::from(u32::MAX))? as u32);
        Ok(Task { kind, pid: number(r)?, tid: number(r)?, comm: r.string(LONGEST_COMM)? })
    })?;
    match tasks.first().is_some_and(|first| *first == Task::default()) {
        true => Ok(tasks),
        false => Err(r.malformed("the first is one")),
    }
}

fn folded(r: &mut Reader, counts: Counts) -> Result<Folded, LedgerError> {
    let recorded = Coarseness::from_index(r.number()?).ok_or_else(|| r.malformed("there is no such coarseness"))?;
    let addresses = r.number()?;
    let mut place = Position::default();
    let places = sorted_list(r, 5, MOST_ENTRIES, |r| {
        let Position { region, origin, rip } = place.checked(r, counts)?;
        let start = rip.checked_sub(r.number()?).ok_or_else(|| r.malformed("a range is out of range"))?;
        Ok(FoldedPlace { region, origin, rip, range: Range { start, len: r.number()? } })
    })?;
    Ok(Folded { recorded, addresses, places })
}

fn header(r: &mut Reader, families: u64) -> Result<Header, LedgerError> {
    let profile = r.string(LONGEST_NAME)?;
    let tsc_hz = r.number()?;
    if tsc_hz == 0 {
        return Err(r.malformed("the clock does not run"));
    }
    let prices = list(r, 1, Class::COUNT, |r| Ok(r.up_to(u64::from(u32::MAX))? as u32))?;
    if prices.len() < Class::FIRST {
        return Err(r.malformed("there is not one price for each class"));
    }
    let class_ticks = std::array::from_fn(|class| prices.get(class).copied().unwrap_or(0));
    let clocks = list(r, 1, MOST_CPUS, |r| r.number())?;
    r.section("metadata");
    let metadata = map(r, 2, MOST_FACTS, |r| Ok((r.string(LONGEST_NAME)?, r.string(LONGEST_METADATA)?)))?;
    r.section("names");
    let names = map(r, 3, MOST_NAMES, |r| Ok((kind(r, families)?, r.string(LONGEST_NAME)?)))?;
    Ok(Header { profile, tsc_hz, class_ticks, clocks, metadata, names })
}

fn map<K: Ord, V>(
    r: &mut Reader,
    bytes: usize,
    most: usize,
    item: impl FnMut(&mut Reader) -> Result<(K, V), LedgerError>,
) -> Result<BTreeMap<K, V>, LedgerError> {
    let items = list(r, bytes, most, item)?;
    match items.is_sorted_by(|a, b| a.0 < b.0) {
        true => Ok(items.into_iter().collect()),
        false => Err(r.malformed("is out of order")),
    }
}

#[cfg(test)]
mod tests;
