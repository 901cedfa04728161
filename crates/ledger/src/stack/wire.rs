//! The section of a ledger file with the stacks.

use super::{Keeps, MOST_CHARGES, MOST_NODES, MOST_RECORDS, Moment, Node, Record, StackCharge, StackId, Stacks, What};
use crate::file::fields::{kind, origin, put_kind, put_origin, sorted_list};
use crate::unreadable::LedgerError;
use crate::wire::{Reader, put};
use crate::{Family, Origin, RegionId};

/// Maps kernel addresses near the upper end of the address space to small numbers.
fn folded(address: u64) -> u64 {
    (address << 1) ^ ((address as i64 >> 63) as u64)
}

fn unfolded(number: u64) -> u64 {
    (number >> 1) ^ (number & 1).wrapping_neg()
}

/// Writes the section.
pub(crate) fn write(out: &mut Vec<u8>, stacks: &Stacks) {
    put(out, stacks.keeps.interval);
    put(out, u64::from(stacks.keeps.crossings) | u64::from(stacks.keeps.trace) << 1);
    put(out, stacks.origins.len() as u64);
    for who in &stacks.origins {
        put(out, u64::from(who.region.0));
        put_origin(out, who, crate::VERSION);
    }
    put(out, stacks.nodes.len() as u64);
    for (node, number) in stacks.nodes.iter().zip(1u64..) {
        put(out, number - u64::from(node.caller.0));
        put(out, folded(node.address));
    }
    put(out, stacks.charges.len() as u64);
    for charge in &stacks.charges {
        put(out, u64::from(charge.origin));
        put(out, u64::from(charge.stack.0));
        put_what(out, charge.what);
        put(out, charge.count);
        put(out, charge.ticks);
    }
    put(out, stacks.records.len() as u64);
    let mut before = (0, 0);
    for record in &stacks.records {
        let from = if before.0 == record.cpu { before.1 } else { 0 };
        before = (record.cpu, record.time);
        put(out, u64::from(record.cpu));
        put(out, record.time.wrapping_sub(from));
        put(out, u64::from(record.origin));
        match record.moment {
            Moment::Samples(count) => {
                put(out, 0);
                put(out, count);
            }
            Moment::Event(kind) => {
                put(out, 1);
                put_kind(out, kind);
            }
            Moment::Task => put(out, 2),
        }
        put(out, record.ticks);
        put(out, u64::from(record.stack.0));
    }
    put(out, stacks.lost);
}

fn put_what(out: &mut Vec<u8>, what: What) {
    match what {
        What::Sample => put(out, 0),
        What::Crossing(kind) => {
            put(out, 1);
            put_kind(out, kind);
        }
    }
}

fn event(r: &mut Reader) -> Result<crate::Kind, LedgerError> {
    kind(r, Family::ALL.len() as u64)
}

/// Reads a position in a list of `len` elements.
fn below(r: &mut Reader, len: usize) -> Result<u32, LedgerError> {
    match (len as u64).checked_sub(1) {
        Some(last) => Ok(r.up_to(last)? as u32),
        None => Err(r.malformed("a number is out of range")),
    }
}

fn few(r: &mut Reader, bytes: usize, most: usize) -> Result<usize, LedgerError> {
    let count = r.count(bytes)?;
    if count <= most { Ok(count) } else { Err(r.malformed("there are too many")) }
}

/// Reads the section of a ledger with this many regions and tasks.
pub(crate) fn read(r: &mut Reader, regions: usize, tasks: usize) -> Result<Stacks, LedgerError> {
    r.section("stacks");
    let interval = r.number()?;
    let flags = r.up_to(3)?;
    let keeps = Keeps { interval, crossings: flags & 1 != 0, trace: flags & 2 != 0 };
    let origins = sorted_list(r, 4, crate::MOST_ENTRIES, |r| {
        let region = RegionId(below(r, regions)? as u16);
        Ok(Origin { region, ..origin(r, crate::VERSION, tasks)? })
    })?;
    let nodes = nodes(r)?;
    let charges = charges(r, origins.len(), nodes.len())?;
    let records = records(r, origins.len(), nodes.len())?;
    let lost = r.number()?;
    Ok(Stacks { keeps, origins, nodes, charges, records, lost })
}

fn nodes(r: &mut Reader) -> Result<Vec<Node>, LedgerError> {
    let count = few(r, 2, MOST_NODES)?;
    let mut nodes = Vec::with_capacity(count);
    for number in 1..=count as u64 {
        let distance = r.up_to(number)?;
        if distance == 0 {
            return Err(r.malformed("a frame calls itself"));
        }
        nodes.push(Node { caller: StackId((number - distance) as u32), address: unfolded(r.number()?) });
    }
    Ok(nodes)
}

fn charges(r: &mut Reader, origins: usize, nodes: usize) -> Result<Vec<StackCharge>, LedgerError> {
    let count = few(r, 5, 3 * MOST_CHARGES)?;
    let mut charges: Vec<StackCharge> = Vec::with_capacity(count.min(1 << 16));
    for _ in 0..count {
        let (origin, stack) = (below(r, origins)?, StackId(r.up_to(nodes as u64)? as u32));
        let what = match r.up_to(1)? {
            0 => What::Sample,
            _ => What::Crossing(event(r)?),
        };
        charges.push(StackCharge { origin, stack, what, count: r.number()?, ticks: r.number()? });
    }
    let key = |charge: &StackCharge| (charge.origin, charge.stack, charge.what);
    match charges.is_sorted_by(|a, b| key(a) < key(b)) {
        true => Ok(charges),
        false => Err(r.malformed("is out of order")),
    }
}

fn records(r: &mut Reader, origins: usize, nodes: usize) -> Result<Vec<Record<u32>>, LedgerError> {
    let count = few(r, 6, MOST_RECORDS)?;
    let mut records: Vec<Record<u32>> = Vec::with_capacity(count.min(1 << 16));
    let mut before = (0, 0u64);
    for _ in 0..count {
        let cpu = r.up_to(u64::from(u16::MAX))? as u32;
        if cpu < before.0 {
            return Err(r.malformed("is out of order"));
        }
        let from = if before.0 == cpu { before.1 } else { 0 };
        let Some(time) = from.checked_add(r.number()?) else { return Err(r.malformed("a time is out of range")) };
        before = (cpu, time);
        let origin = below(r, origins)?;
        let moment = match r.up_to(2)? {
            0 => Moment::Samples(r.number()?),
            1 => Moment::Event(event(r)?),
            _ => Moment::Task,
        };
        let (ticks, stack) = (r.number()?, StackId(r.up_to(nodes as u64)? as u32));
        records.push(Record { time, cpu, origin, moment, ticks, stack });
    }
    Ok(records)
}
