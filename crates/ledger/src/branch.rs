//! Indirect branches by site and target, as a run records them on request.
//!
//! They are counts and charge nothing: the cost of a branch is charged as an instruction, and as an event if it was mispredicted.

use crate::charge::{AddressSpace, OriginId};
use crate::unreadable::LedgerError;
use crate::wire::Reader;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use strum::{EnumCount, IntoStaticStr, VariantArray};

/// The way in which a branch gets its target.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    EnumCount,
    IntoStaticStr,
    VariantArray,
    Serialize,
    Deserialize,
)]
#[strum(serialize_all = "lowercase")]
pub enum Way {
    /// CALL through a register or memory.
    Call,
    /// JMP through a register or memory.
    Jump,
    /// Near RET.
    Return,
    /// CALL of a retpoline: a thunk that replaces its return address on the stack by the target, and returns.
    Retpoline,
}

impl Way {
    /// Returns the name of the way.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// A branch from a site to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Branch {
    /// Address of the instruction; for a retpoline, that of the CALL of the thunk (its last five bytes).
    pub site: u64,
    /// The way in which the branch gets its target.
    pub way: Way,
    /// Target; [`Branch::ELSEWHERE`] for targets without room.
    pub target: u64,
}

impl Branch {
    /// Stands for all targets without room. No code has this address.
    pub const ELSEWHERE: u64 = u64::MAX;
}

/// Executions of a branch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Taken {
    /// Number of executions.
    pub count: u64,
    /// Number of mispredictions: the predictor had another target, or none.
    pub missed: u64,
}

impl Taken {
    /// Adds further executions.
    pub(crate) fn add(&mut self, more: Self) {
        self.count = self.count.saturating_add(more.count);
        self.missed = self.missed.saturating_add(more.missed);
    }
}

/// Executions of a branch in a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BranchRuns {
    /// Region, as a number of the ledger's list.
    pub region: u32,
    /// Virtualization level.
    pub level: u8,
    /// The address space of both addresses.
    pub space: AddressSpace,
    /// The branch.
    pub branch: Branch,
    /// Number of executions.
    pub taken: Taken,
}

/// Largest number of branches with targets outside regions of interest, and again of all regions together.
pub const MOST_BRANCHES: usize = 1 << 18;

/// Largest number of entries of a run: each part has as many again without targets.
const MOST_ENTRIES: usize = 4 * MOST_BRANCHES;

/// The branches of a run. Regions of interest have room of their own, however many different branches were executed before.
#[derive(Clone, Debug)]
pub(crate) struct Branches {
    outside: Table,
    regions: Table,
    /// Number of entries with targets in each part.
    room: usize,
}

type Table = FxHashMap<(OriginId, Branch), Taken>;

impl Default for Branches {
    fn default() -> Self {
        Self::with_room(MOST_BRANCHES)
    }
}

impl Branches {
    fn with_room(room: usize) -> Self {
        Self { outside: Table::default(), regions: Table::default(), room }
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.outside.len() + self.regions.len()
    }

    /// Removes all branches, and returns them sorted.
    pub fn take(&mut self) -> Vec<(OriginId, Branch, Taken)> {
        let all = self.save();
        *self = Self::with_room(self.room);
        all
    }

    /// Adds executions inside or outside a region of interest. Without room, new branches are recorded without their target, and then also
    /// without their site.
    pub fn add(&mut self, origin: OriginId, in_region: bool, branch: Branch, taken: Taken) {
        let table = if in_region { &mut self.regions } else { &mut self.outside };
        let mut key = (origin, branch);
        if table.len() >= self.room && !table.contains_key(&key) {
            key.1.target = Branch::ELSEWHERE;
            // As many entries again for sites. Further sites share one entry.
            if table.len() >= 2 * self.room - Way::COUNT && !table.contains_key(&key) {
                key = (OriginId(0), Branch { site: 0, ..key.1 });
                self.outside.entry(key).or_default().add(taken);
                return;
            }
        }
        table.entry(key).or_default().add(taken);
    }

    /// Returns all branches, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (OriginId, Branch, Taken)> + '_ {
        let both = self.outside.iter().chain(&self.regions);
        both.map(|((origin, branch), taken)| (*origin, *branch, *taken))
    }

    /// Returns all branches, sorted.
    pub fn save(&self) -> Vec<(OriginId, Branch, Taken)> {
        let mut saved: Vec<_> = self.iter().collect();
        saved.sort_unstable();
        saved
    }

    /// Restores saved branches; `in_region` returns true if an origin is in a region of interest. Returns `None` if there are more branches than possible,
    /// or duplicates.
    pub fn restore(saved: Vec<(OriginId, Branch, Taken)>, in_region: impl Fn(OriginId) -> bool) -> Option<Self> {
        let mut restored = Self::default();
        for (origin, branch, taken) in &saved {
            let is_rest = branch.site == 0 && branch.target == Branch::ELSEWHERE;
            let table = if !is_rest && in_region(*origin) { &mut restored.regions } else { &mut restored.outside };
            table.insert((*origin, *branch), *taken);
        }
        let whole = restored.outside.len() + restored.regions.len() == saved.len();
        (whole && saved.len() <= MOST_ENTRIES).then_some(restored)
    }
}

/// Writes branches, encoded as differences where these are small.
pub(crate) fn write(out: &mut Vec<u8>, branches: &[BranchRuns]) {
    use crate::wire::put;
    put(out, branches.len() as u64);
    for runs in branches {
        let BranchRuns { region, level, space, branch, taken } = runs;
        for number in [u64::from(*region), u64::from(*level), space.guest, space.root, branch.site, branch.way as u64] {
            put(out, number);
        }
        for number in [branch.target, taken.count, taken.missed] {
            put(out, number);
        }
    }
}

/// Reads the branches of a ledger with this many regions.
pub(crate) fn read(r: &mut Reader, regions: usize) -> Result<Vec<BranchRuns>, LedgerError> {
    r.section("branches");
    let count = r.count(9)?;
    if count > MOST_ENTRIES {
        return Err(r.malformed("there are too many"));
    }
    let mut branches: Vec<BranchRuns> = Vec::with_capacity(count.min(1 << 16));
    for _ in 0..count {
        let (region, level) = (r.up_to(regions as u64 - 1)? as u32, r.up_to(2)? as u8);
        let space = AddressSpace { guest: r.number()?, root: r.number()? };
        let site = r.number()?;
        let way = Way::VARIANTS[r.up_to(Way::COUNT as u64 - 1)? as usize];
        let branch = Branch { site, way, target: r.number()? };
        let taken = Taken { count: r.number()?, missed: r.number()? };
        if taken.missed > taken.count {
            return Err(r.malformed("more were missed than executed"));
        }
        branches.push(BranchRuns { region, level, space, branch, taken });
    }
    let key = |runs: &BranchRuns| (runs.region, runs.level, runs.space, runs.branch);
    match branches.is_sorted_by(|a, b| key(a) < key(b)) {
        true => Ok(branches),
        false => Err(r.malformed("is out of order")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONCE: Taken = Taken { count: 1, missed: 0 };
    const MISSED: Taken = Taken { count: 1, missed: 1 };

    fn to(site: u64, target: u64) -> Branch {
        Branch { site, way: Way::Return, target }
    }

    #[test]
    fn a_region_has_room_for_its_own_branches() {
        let room = 20;
        let mut branches = Branches::with_room(room);
        for site in 1..=2 * room as u64 {
            branches.add(OriginId(1), false, to(site, 7), ONCE);
        }
        branches.add(OriginId(1), false, to(u64::MAX, 7), MISSED);
        branches.add(OriginId(2), true, to(u64::MAX, 7), MISSED);
        let saved = branches.save();
        let of = |origin| saved.iter().filter(move |entry| entry.0 == OriginId(origin));
        // The first branches outside regions have targets, as many again only their sites, and the rest share one entry.
        assert_eq!(of(1).filter(|entry| entry.1.target == 7).count(), room);
        assert_eq!(of(1).count(), 2 * room - Way::COUNT);
        let rest = Taken { count: Way::COUNT as u64 + 1, missed: 1 };
        assert_eq!(of(0).collect::<Vec<_>>(), [&(OriginId(0), to(0, Branch::ELSEWHERE), rest)]);
        assert_eq!(of(2).collect::<Vec<_>>(), [&(OriginId(2), to(u64::MAX, 7), Taken { count: 1, missed: 1 })]);

        let mut restored = Branches::restore(saved.clone(), |origin| origin == OriginId(2)).expect("is right");
        assert_eq!(restored.save(), saved);
        restored.add(OriginId(2), true, to(1, 8), ONCE);
        branches.add(OriginId(2), true, to(1, 8), ONCE);
        assert_eq!(restored.save(), branches.save());
    }
}
