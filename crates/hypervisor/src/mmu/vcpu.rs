//! The MMU of one virtual processor: the roots that it has.

use super::nested::Level;
use super::pool::PageId;
use super::role::{Paging, Role};
use super::{Flushes, Mmu};
use serde::{Deserialize, Serialize};

/// Roots of other address spaces that a virtual processor keeps beside the current one (64-bit guests).
pub(super) const KEPT: usize = 3;

/// The tables at the top of one address space of the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RootSet {
    /// The role of its tables.
    pub role: Role,
    /// The guest's CR3, or the EPT pointer that it has for its own guest; 0 where it does not matter.
    pub cr3: u64,
    /// The guest's PDPTEs, for PAE paging.
    pub pdpte: [u64; 4],
    /// Four tables below PDPTEs; otherwise the first is the root itself.
    pub is_pae: bool,
    /// The tables.
    pub pages: [Option<PageId>; 4],
    /// Which 32 bytes of the virtual processor's page of PDPTEs.
    pub place: u8,
    /// [`Mmu::generation`] when it was loaded.
    pub generation: u64,
    /// Writes seen to the guest's page directory pointer table.
    pub pdpt_version: u64,
}

/// The pinned roots of a virtual processor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cr3Cache {
    pub(super) sets: Vec<Option<RootSet>>,
    /// Which one is in use.
    pub(super) active: Option<usize>,
    pub(super) last: usize,
    pub(super) changed: bool,
}

impl Cr3Cache {
    /// How many roots can be pinned; 0: the cache is off.
    pub fn entries(&self) -> usize {
        self.sets.len()
    }

    /// What no cache can be like.
    pub fn wrong(&self) -> Option<&'static str> {
        let in_use = |at: usize| self.sets.get(at).is_some_and(Option::is_some);
        let fits = self.sets.len() <= Mmu::CR3_CACHE && self.last <= self.sets.len() && self.active.is_none_or(in_use);
        (!fits).then_some("its CR3 cache has no such entries")
    }

    /// The one in use.
    pub fn active(&self) -> Option<&RootSet> {
        self.sets.get(self.active?)?.as_ref()
    }
}

/// The MMU of a virtual processor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuMmu {
    pub(super) paging: Paging,
    /// Whether the guest or its own guest runs.
    pub(super) level: Level,
    /// The roots in use, unless they are in the CR3 cache, or shadow EPT is.
    pub(super) own: Option<RootSet>,
    /// Roots used before.
    pub(super) kept: Vec<RootSet>,
    /// The shadow EPT in use, or used last.
    pub(super) ept_own: Option<RootSet>,
    /// Shadow EPT used before.
    pub(super) ept_kept: Vec<RootSet>,
    pub(super) cache: Cr3Cache,
    /// The page for PDPTEs: 128 times 32 bytes.
    pub(super) pdptes: PageId,
    pub(super) sync: bool,
    pub(super) due: Flushes,
    pub(super) flushes: u64,
    /// The last fault that found nothing to put right.
    pub(super) spurious: Option<(u64, u32)>,
}

impl VcpuMmu {
    /// The roots in use.
    pub(super) fn current(&self) -> Option<&RootSet> {
        match self.level {
            Level::Ept { .. } => self.ept_own.as_ref(),
            Level::Guest | Level::Nested => self.own.as_ref().or_else(|| self.cache.active()),
        }
    }

    /// The place of the roots in use that are not in the CR3 cache.
    pub(super) fn own_mut(&mut self) -> &mut Option<RootSet> {
        match self.level {
            Level::Ept { .. } => &mut self.ept_own,
            Level::Guest | Level::Nested => &mut self.own,
        }
    }

    /// The place of the roots that the other of both kinds had in use last.
    pub(super) fn resting_mut(&mut self) -> &mut Option<RootSet> {
        match self.level {
            Level::Ept { .. } => &mut self.own,
            Level::Guest | Level::Nested => &mut self.ept_own,
        }
    }

    /// All its sets of roots.
    pub(super) fn sets(&self) -> impl Iterator<Item = &RootSet> {
        self.guest_sets().chain(self.ept_sets())
    }

    /// Those that shadow no EPT.
    pub(super) fn guest_sets(&self) -> impl Iterator<Item = &RootSet> {
        self.own.iter().chain(&self.kept).chain(self.cache.sets.iter().flatten())
    }

    /// Those that do.
    pub(super) fn ept_sets(&self) -> impl Iterator<Item = &RootSet> {
        self.ept_own.iter().chain(&self.ept_kept)
    }
}
