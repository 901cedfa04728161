//! Parts that several sections of a payload have: kinds, origins, address spaces, lists.

use crate::charge::{AddressSpace, Origin};
use crate::task::{Context, TaskId};
use crate::unreadable::LedgerError;
use crate::wire::{Reader, put};
use crate::{Class, Family, Kind, Operation};

/// The version whose entries were as many as a payload has room for, without [`Folded`].
pub(super) const BEFORE_FOLDING: u16 = 2;
/// The version in which guests of a hypervisor on the machine were not told apart: no origin and no symbol had a guest.
pub(super) const BEFORE_GUESTS: u16 = 3;

/// An origin, without its region.
pub(crate) fn put_origin(out: &mut Vec<u8>, origin: &Origin, version: u16) {
    put(out, u64::from(origin.level));
    put(out, u64::from(origin.ring));
    if version > BEFORE_FOLDING {
        put(out, origin.context as u64);
        put(out, u64::from(origin.task.0));
    }
    if version > BEFORE_GUESTS {
        put(out, origin.guest);
    }
    put(out, origin.space);
}

/// The same again, of a ledger with so many tasks.
pub(crate) fn origin(r: &mut Reader, version: u16, tasks: usize) -> Result<Origin, LedgerError> {
    let (level, ring) = (r.up_to(2)? as u8, r.up_to(3)? as u8);
    let (context, task) = match version > BEFORE_FOLDING {
        true => (r.up_to(Context::ALL.len() as u64 - 1)?, r.up_to(tasks as u64 - 1)?),
        false => (0, 0),
    };
    let (context, task) = (Context::ALL[context as usize], TaskId(task as u32));
    let AddressSpace { guest, root } = address_space(r, version)?;
    Ok(Origin { context, task, guest, ..Origin::new(level, ring, root) })
}

pub(crate) fn put_kind(out: &mut Vec<u8>, kind: Kind) {
    put(out, kind.family as u64);
    put(out, u64::from(kind.param));
}

/// A kind of the first `families` families.
pub(crate) fn kind(reader: &mut Reader, families: u64) -> Result<Kind, LedgerError> {
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

pub(super) fn address_space(r: &mut Reader, version: u16) -> Result<AddressSpace, LedgerError> {
    let guest = if version > BEFORE_GUESTS { r.number()? } else { 0 };
    Ok(AddressSpace { guest, root: r.number()? })
}

/// A list of at most `most` items of at least `bytes` bytes each.
pub(super) fn list<T>(
    r: &mut Reader,
    bytes: usize,
    most: usize,
    mut item: impl FnMut(&mut Reader) -> Result<T, LedgerError>,
) -> Result<Vec<T>, LedgerError> {
    let count = r.count(bytes)?;
    if count > most {
        return Err(r.malformed("there are too many"));
    }
    let mut items = Vec::with_capacity(count.min(1 << 16));
    for _ in 0..count {
        items.push(item(r)?);
    }
    Ok(items)
}

/// The same of items that are in order.
pub(crate) fn sorted_list<T: Ord>(
    r: &mut Reader,
    bytes: usize,
    most: usize,
    item: impl FnMut(&mut Reader) -> Result<T, LedgerError>,
) -> Result<Vec<T>, LedgerError> {
    let items = list(r, bytes, most, item)?;
    if items.is_sorted_by(|a, b| a < b) { Ok(items) } else { Err(r.malformed("is out of order")) }
}
