//! The charges of a running machine: executions of blocks, and events.

use super::coarse::AREA;
use super::{Amount, OriginId, ShapeId};
use crate::{Class, Family, Kind};
use hashbrown::HashTable;
use rustc_hash::{FxBuildHasher, FxHashMap};
use std::hash::BuildHasher;

/// Executions of one block, in 20 bytes, because a run has millions of blocks.
#[derive(Clone, Copy)]
pub(super) struct Run {
    rip: [u32; 2],
    origin: OriginId,
    shape: ShapeId,
    /// Low half of the executions; the high half is in [`Runs::high`].
    low: u32,
}

impl Run {
    fn is(&self, origin: OriginId, rip: [u32; 2], shape: ShapeId) -> bool {
        self.rip == rip && self.origin == origin && self.shape == shape
    }
}

/// Executed blocks: dense storage in chunks, which never moves, and an index of four bytes per block.
#[derive(Default)]
pub(super) struct Runs {
    chunks: Vec<Vec<Run>>,
    index: HashTable<u32>,
    high: FxHashMap<u32, u32>,
}

pub(super) const CHUNK: usize = 1 << 14;

#[inline]
fn hash(origin: OriginId, rip: [u32; 2], shape: ShapeId) -> u64 {
    FxBuildHasher
        .hash_one((u64::from(rip[0]) | u64::from(rip[1]) << 32, u64::from(origin.0) << 32 | u64::from(shape.0)))
}

impl Runs {
    /// Adds executions of a block. Returns true if the block is new.
    #[inline]
    pub(super) fn add(&mut self, origin: OriginId, rip: u64, shape: ShapeId, runs: u64) -> bool {
        let rip = [rip as u32, (rip >> 32) as u32];
        let hash = hash(origin, rip, shape);
        let chunks = &mut self.chunks;
        let found =
            self.index.find(hash, |&at| chunks[at as usize / CHUNK][at as usize % CHUNK].is(origin, rip, shape));
        let (at, before, new) = match found {
            Some(&at) => (at, chunks[at as usize / CHUNK][at as usize % CHUNK].low, false),
            None => (self.insert(hash, Run { rip, origin, shape, low: 0 }), 0, true),
        };
        let sum = u64::from(before).saturating_add(runs);
        self.chunks[at as usize / CHUNK][at as usize % CHUNK].low = sum as u32;
        if sum >> 32 != 0 {
            let high = self.high.entry(at).or_default();
            *high = high.saturating_add((sum >> 32) as u32);
        }
        new
    }

    #[cold]
    fn insert(&mut self, hash_of_run: u64, run: Run) -> u32 {
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let chunks = &mut self.chunks;
        let last = chunks.len() - 1;
        let at = (last * CHUNK + chunks[last].len()) as u32;
        chunks[last].push(run);
        self.index.insert_unique(hash_of_run, at, |&at| {
            let run = &chunks[at as usize / CHUNK][at as usize % CHUNK];
            hash(run.origin, run.rip, run.shape)
        });
        at
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (OriginId, u64, ShapeId, u64)> + '_ {
        self.chunks.iter().flatten().zip(0u32..).map(|(run, at)| {
            let high = self.high.get(&at).copied().unwrap_or(0);
            let rip = u64::from(run.rip[0]) | u64::from(run.rip[1]) << 32;
            (run.origin, rip, run.shape, u64::from(run.low) | u64::from(high) << 32)
        })
    }

    /// Returns the blocks, and frees memory on the way.
    pub(super) fn drain(self) -> impl Iterator<Item = (OriginId, u64, ShapeId, u64)> {
        let Self { chunks, high, .. } = self;
        chunks.into_iter().flatten().zip(0u32..).map(move |(run, at)| {
            let high = high.get(&at).copied().unwrap_or(0);
            let rip = u64::from(run.rip[0]) | u64::from(run.rip[1]) << 32;
            (run.origin, rip, run.shape, u64::from(run.low) | u64::from(high) << 32)
        })
    }
}

/// Events of one kind at one address, in half a cache line.
#[repr(align(32))]
struct Charge {
    rip: u64,
    /// Number of the origin and the family.
    who: u32,
    param: u32,
    amount: Amount,
}

/// Combines origin and family in one number. There are far fewer than 2^24 origins: see [`MOST_SPACES`].
#[inline]
fn who(origin: OriginId, family: Family) -> u32 {
    origin.0 << 8 | family as u32
}

impl Charge {
    #[inline]
    fn is(&self, rip: u64, who: u32, param: u32) -> bool {
        self.rip == rip && self.who == who && self.param == param
    }
}

/// Charges by event: dense storage with an index, and a cache of recent charges by a few bits of the hash, where most charges
/// find their entry.
#[derive(Default)]
pub(super) struct Charges {
    all: Vec<Charge>,
    index: HashTable<u32>,
    recent: Vec<u32>,
}

const RECENT: usize = 1 << 14;

#[inline]
fn hash_of_charge(rip: u64, who: u32, param: u32) -> u64 {
    FxBuildHasher.hash_one((rip, u64::from(who) << 32 | u64::from(param)))
}

impl Charges {
    /// Adds events. Returns true if this created an entry.
    #[inline]
    pub(super) fn add(&mut self, origin: OriginId, rip: u64, kind: Kind, amount: Amount) -> bool {
        let (who, param) = (who(origin, kind.family), kind.param);
        let hash = hash_of_charge(rip, who, param);
        let slot = hash as usize % RECENT;
        let guess = self.recent.get(slot).copied().unwrap_or(u32::MAX);
        let (at, new) = match self.all.get(guess as usize) {
            Some(charge) if charge.is(rip, who, param) => (guess as usize, false),
            _ => self.find(hash, rip, who, param),
        };
        let sum = &mut self.all[at].amount;
        sum.count += amount.count;
        sum.ticks += amount.ticks;
        new
    }

    /// Returns the position of an entry, created if needed and now in the cache, and true if it is new.
    #[inline(never)]
    fn find(&mut self, hash: u64, rip: u64, who: u32, param: u32) -> (usize, bool) {
        if self.recent.is_empty() {
            self.recent = vec![u32::MAX; RECENT];
        }
        let all = &mut self.all;
        let (at, new) = match self.index.find(hash, |&at| all[at as usize].is(rip, who, param)) {
            Some(&at) => (at, false),
            None => {
                let at = all.len() as u32;
                all.push(Charge { rip, who, param, amount: Amount::default() });
                self.index.insert_unique(hash, at, |&at| {
                    let charge = &all[at as usize];
                    hash_of_charge(charge.rip, charge.who, charge.param)
                });
                (at, true)
            }
        };
        self.recent[hash as usize % RECENT] = at;
        (at as usize, new)
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (OriginId, u64, Kind, Amount)> + '_ {
        self.all.iter().map(|charge| {
            let family = Family::ALL[(charge.who & 0xff) as usize];
            (OriginId(charge.who >> 8), charge.rip, Kind::new(family, charge.param), charge.amount)
        })
    }
}

/// All charges.
#[derive(Default)]
pub(super) struct Tables {
    pub(super) blocks: Runs,
    pub(super) events: Charges,
    /// Instructions of blocks without addresses, by the first address of their range.
    pub(super) classes: FxHashMap<(u64, OriginId, Class), Amount>,
    /// Number of entries by area, where it is counted; `None` for a dense area.
    pub(super) areas: FxHashMap<(OriginId, u64), Option<u32>>,
}

impl Tables {
    pub(super) fn len(&self) -> usize {
        self.blocks.len() + self.events.len() + self.classes.len()
    }

    pub(super) fn is_dense(&self, origin: OriginId, rip: u64) -> bool {
        self.areas.get(&(origin, rip / AREA)) == Some(&None)
    }

    /// Counts a new entry.
    pub(super) fn count(&mut self, origin: OriginId, rip: u64) {
        if let Some(count) = self.areas.entry((origin, rip / AREA)).or_insert(Some(0)) {
            *count = count.saturating_add(1);
        }
    }
}
