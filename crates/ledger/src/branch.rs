//! Indirect branches by the place they are at and where they go: what a run keeps of them if it is asked to.
//!
//! They are counts beside the charges, not charges: what a branch costs is charged as an instruction, and as an event if it was not predicted.

use crate::recorder::{AddressSpace, OriginId};
use crate::unreadable::LedgerError;
use crate::wire::Reader;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use strum::{EnumCount, IntoStaticStr, VariantArray};

/// How a branch is told where to go.
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
    /// CALL of a retpoline: a thunk that puts the target on the stack in place of its return address, and returns.
    Retpoline,
}

impl Way {
    /// What it is called.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// A branch from one place to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Branch {
    /// Address of the instruction; of a retpoline, that of the CALL of the thunk (its last five bytes).
    pub site: u64,
    /// How it is told where to go.
    pub way: Way,
    /// Where it went; [`Branch::ELSEWHERE`]: to one of those for which there was no room.
    pub target: u64,
}

impl Branch {
    /// Stands for all targets for which there was no room. No code is there.
    pub const ELSEWHERE: u64 = u64::MAX;
}

/// How often a branch was executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Taken {
    /// How often in all.
    pub count: u64,
    /// How often the predictor had another target, or none.
    pub missed: u64,
}

impl Taken {
    /// Adds further executions.
    pub(crate) fn add(&mut self, more: Self) {
        self.count = self.count.saturating_add(more.count);
        self.missed = self.missed.saturating_add(more.missed);
    }
}

/// Executions of a branch, as a ledger has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BranchRuns {
    /// The region, a number of the ledger's list.
    pub region: u32,
    /// Virtualization level.
    pub level: u8,
    /// From where its addresses are seen.
    pub space: AddressSpace,
    /// The branch.
    pub branch: Branch,
    /// How often it was executed.
    pub taken: Taken,
}

/// The most branches that are kept with their targets of what is outside regions of interest, and as many again of all regions together.
pub const MOST_BRANCHES: usize = 1 << 18;

/// The most entries of a run: for each part as many again without targets.
const MOST_ENTRIES: usize = 4 * MOST_BRANCHES;

/// Branches of a run. A region of interest has room for its own, however many different branches were executed before it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Branches {
    outside: Table,
    regions: Table,
}

type Table = FxHashMap<(OriginId, Branch), Taken>;

impl Branches {
    /// Counts an execution, which is in a region of interest or outside. Where there are too many, those that are new have no target; then not even
    /// a site.
    pub fn add(&mut self, origin: OriginId, in_region: bool, branch: Branch, missed: bool) {
        let taken = Taken { count: 1, missed: u64::from(missed) };
        let table = if in_region { &mut self.regions } else { &mut self.outside };
        let mut key = (origin, branch);
        if table.len() >= MOST_BRANCHES && !table.contains_key(&key) {
            key.1.target = Branch::ELSEWHERE;
            // As many again, for sites; further ones are one.
            if table.len() >= 2 * MOST_BRANCHES - Way::COUNT && !table.contains_key(&key) {
                key = (OriginId(0), Branch { site: 0, ..key.1 });
                self.outside.entry(key).or_default().add(taken);
                return;
            }
        }
        table.entry(key).or_default().add(taken);
    }

    /// All of them, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (OriginId, Branch, Taken)> + '_ {
        let both = self.outside.iter().chain(&self.regions);
        both.map(|((origin, branch), taken)| (*origin, *branch, *taken))
    }

    /// All of them, sorted.
    pub fn save(&self) -> Vec<(OriginId, Branch, Taken)> {
        let mut saved: Vec<_> = self.iter().collect();
        saved.sort_unstable();
        saved
    }

    /// Those that were saved; `in_region` says of an origin whether it is in a region of interest. `None`: they are more than there can be, or one is
    /// there twice.
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

/// Writes branches, as differences where that makes them small.
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

/// Reads branches of a ledger with so many regions.
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

    fn to(site: u64, target: u64) -> Branch {
        Branch { site, way: Way::Return, target }
    }

    #[test]
    fn a_region_has_room_for_its_own_branches() {
        let mut branches = Branches::default();
        for site in 1..=2 * MOST_BRANCHES as u64 {
            branches.add(OriginId(1), false, to(site, 7), false);
        }
        branches.add(OriginId(1), false, to(u64::MAX, 7), true);
        branches.add(OriginId(2), true, to(u64::MAX, 7), true);
        let saved = branches.save();
        let of = |origin| saved.iter().filter(move |entry| entry.0 == OriginId(origin));
        // The first branches outside have their targets, as many again only their sites, and the rest is one entry.
        assert_eq!(of(1).filter(|entry| entry.1.target == 7).count(), MOST_BRANCHES);
        assert_eq!(of(1).count(), 2 * MOST_BRANCHES - Way::COUNT);
        let rest = Taken { count: Way::COUNT as u64 + 1, missed: 1 };
        assert_eq!(of(0).collect::<Vec<_>>(), [&(OriginId(0), to(0, Branch::ELSEWHERE), rest)]);
        assert_eq!(of(2).collect::<Vec<_>>(), [&(OriginId(2), to(u64::MAX, 7), Taken { count: 1, missed: 1 })]);

        let mut restored = Branches::restore(saved.clone(), |origin| origin == OriginId(2)).expect("is right");
        assert_eq!(restored.save(), saved);
        restored.add(OriginId(2), true, to(1, 8), false);
        branches.add(OriginId(2), true, to(1, 8), false);
        assert_eq!(restored.save(), branches.save());
    }
}
