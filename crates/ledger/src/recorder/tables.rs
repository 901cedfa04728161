//! The charges of a running machine: executions of blocks, and events.

use super::coarse::AREA;
use super::{Amount, OriginId, ShapeId};
use crate::{Class, Family, Kind};
use hashbrown::HashTable;
use rustc_hash::{FxBuildHasher, FxHashMap};
use std::hash::BuildHasher;

/// A block: its address and its shape.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Block {
    rip: [u32; 2],
    shape: ShapeId,
}

impl Block {
    fn new(rip: u64, shape: ShapeId) -> Self {
        Self { rip: [rip as u32, (rip >> 32) as u32], shape }
    }

    fn rip(self) -> u64 {
        u64::from(self.rip[0]) | u64::from(self.rip[1]) << 32
    }

    #[inline]
    fn hash(self) -> u64 {
        FxBuildHasher.hash_one((self.rip(), self.shape.0))
    }
}

/// Executed blocks. A run has millions of them: the kernel's, under the origin of every process. Blocks are numbered, and each origin
/// has a short sorted list of its own by number, so that counts that arrive together are merged in one pass.
#[derive(Default)]
pub(super) struct Runs {
    blocks: Vec<Block>,
    numbers: HashTable<u32>,
    /// Numbers of blocks with the low half of their executions, by origin; the high half is in [`Self::high`].
    by_origin: Vec<Vec<(u32, u32)>>,
    high: FxHashMap<(OriginId, u32), u32>,
    len: usize,
    /// Room for counts that are being added.
    batch: Vec<(u32, u64)>,
}

impl Runs {
    /// Adds executions of blocks: their addresses, shapes and numbers of executions. Calls `is_new` with the address of each that the
    /// origin did not have.
    pub(super) fn add(
        &mut self,
        origin: OriginId,
        blocks: impl Iterator<Item = (u64, ShapeId, u64)>,
        mut is_new: impl FnMut(u64),
    ) {
        let mut batch = std::mem::take(&mut self.batch);
        batch.extend(blocks.map(|(rip, shape, runs)| (self.number(Block::new(rip, shape)), runs)));
        batch.sort_unstable_by_key(|&(number, _)| number);
        batch.dedup_by(|next, sum| {
            let equal = next.0 == sum.0;
            if equal {
                sum.1 = sum.1.saturating_add(next.1);
            }
            equal
        });
        let index = origin.0 as usize;
        if self.by_origin.len() <= index {
            self.by_origin.resize_with(index + 1, Vec::new);
        }
        let list = &mut self.by_origin[index];
        // What the list has is added there; what it does not have is kept at the front of the batch.
        let (mut at, mut new) = (0, 0);
        for next in 0..batch.len() {
            let (number, runs) = batch[next];
            at += steps_to(&list[at..], number);
            let before = match list.get(at) {
                Some(&(found, low)) if found == number => low,
                _ => {
                    batch[new] = (number, runs);
                    new += 1;
                    is_new(self.blocks[number as usize].rip());
                    continue;
                }
            };
            let sum = u64::from(before).saturating_add(runs);
            list[at].1 = sum as u32;
            Self::carry(&mut self.high, origin, number, sum);
        }
        if new != 0 {
            let mut merged = Vec::with_capacity(list.len() + new);
            let mut old = list.iter().copied().peekable();
            for &(number, runs) in &batch[..new] {
                while let Some(before) = old.next_if(|before| before.0 < number) {
                    merged.push(before);
                }
                merged.push((number, runs as u32));
                Self::carry(&mut self.high, origin, number, runs);
            }
            merged.extend(old);
            *list = merged;
        }
        self.len += new;
        batch.clear();
        self.batch = batch;
    }

    fn carry(high: &mut FxHashMap<(OriginId, u32), u32>, origin: OriginId, number: u32, sum: u64) {
        if sum >> 32 != 0 {
            let high = high.entry((origin, number)).or_default();
            *high = high.saturating_add((sum >> 32) as u32);
        }
    }

    /// Returns the number of a block. Equal blocks have equal numbers.
    #[inline]
    fn number(&mut self, block: Block) -> u32 {
        let blocks = &mut self.blocks;
        let hash = block.hash();
        if let Some(&number) = self.numbers.find(hash, |&number| blocks[number as usize] == block) {
            return number;
        }
        let number = blocks.len() as u32;
        blocks.push(block);
        self.numbers.insert_unique(hash, number, |&number| blocks[number as usize].hash());
        number
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (OriginId, u64, ShapeId, u64)> + '_ {
        (0..).map(OriginId).zip(&self.by_origin).flat_map(move |(origin, all)| {
            all.iter().map(move |&entry| {
                let (rip, shape, runs) = self.whole(origin, entry);
                (origin, rip, shape, runs)
            })
        })
    }

    /// Returns the blocks of one origin after the other, and frees memory on the way.
    pub(super) fn drain(mut self) -> impl Iterator<Item = (OriginId, Vec<(u64, ShapeId, u64)>)> {
        let by_origin = std::mem::take(&mut self.by_origin);
        (0..)
            .map(OriginId)
            .zip(by_origin)
            .map(move |(origin, list)| (origin, list.into_iter().map(|entry| self.whole(origin, entry)).collect()))
    }

    /// Returns the address, the shape and the executions of a list's entry.
    fn whole(&self, origin: OriginId, (number, low): (u32, u32)) -> (u64, ShapeId, u64) {
        let block = self.blocks[number as usize];
        let high = self.high.get(&(origin, number)).copied().unwrap_or(0);
        (block.rip(), block.shape, u64::from(low) | u64::from(high) << 32)
    }
}

/// Returns the number of entries of a sorted list before a number, by steps that double: the number is often near.
fn steps_to(list: &[(u32, u32)], number: u32) -> usize {
    let mut end = 1;
    while end <= list.len() && list[end - 1].0 < number {
        end *= 2;
    }
    let start = end / 2;
    start + list[start..end.min(list.len())].partition_point(|entry| entry.0 < number)
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

    fn hash(&self) -> u64 {
        hash_of_charge(self.rip, self.who, self.param)
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
    /// Makes room for more entries.
    pub(super) fn reserve(&mut self, more: usize) {
        self.all.reserve(more);
        self.index.reserve(more, |&at| self.all[at as usize].hash());
    }

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
                self.index.insert_unique(hash, at, |&at| all[at as usize].hash());
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
    pub(super) areas: Areas,
}

impl Tables {
    pub(super) fn len(&self) -> usize {
        self.blocks.len() + self.events.len() + self.classes.len()
    }

    pub(super) fn is_dense(&self, origin: OriginId, rip: u64) -> bool {
        self.areas.get(&(origin, rip / AREA)) == Some(&None)
    }
}

/// Number of entries by area, where it is counted; `None` for a dense area.
pub(super) type Areas = FxHashMap<(OriginId, u64), Option<u32>>;

/// Counts a new entry.
pub(super) fn count(areas: &mut Areas, origin: OriginId, rip: u64) {
    if let Some(count) = areas.entry((origin, rip / AREA)).or_insert(Some(0)) {
        *count = count.saturating_add(1);
    }
}
