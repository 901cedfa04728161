//! The MMU of one virtual processor: its roots.

use super::flushes::Flushes;
use super::guest_ept::Level;
use super::pool::PageId;
use super::role::{Paging, Role};
use serde::{Deserialize, Serialize};

/// Maximum number of entries of a CR3 cache, which is the number of CR3-target values in processors.
pub(super) const CR3_CACHE: usize = 4;

/// Number of roots of other address spaces that a virtual processor keeps in addition to the current one (64-bit
/// guests).
pub(super) const KEPT: usize = 3;

/// Top-level tables of one address space of the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RootSet {
    /// Role of the tables.
    pub role: Role,
    /// The guest's CR3, or its EPT pointer for a nested guest; 0 if it does not matter.
    pub cr3: u64,
    /// The guest's PDPTEs, for PAE paging.
    pub pdpte: [u64; 4],
    /// True for four tables below PDPTEs; otherwise the first table is the root itself.
    pub is_pae: bool,
    /// Tables.
    pub pages: [Option<PageId>; 4],
    /// Index of its 32 bytes in the virtual processor's page of PDPTEs.
    pub place: u8,
    /// [`Mmu::generation`] at the time of the load.
    pub generation: u64,
    /// Number of writes to the guest's page directory pointer table.
    pub pdpt_version: u64,
}

/// Pinned roots of a virtual processor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cr3Cache {
    pub(super) sets: Vec<Option<RootSet>>,
    /// Index of the active entry.
    pub(super) active: Option<usize>,
    pub(super) last: usize,
    pub(super) changed: bool,
}

impl Cr3Cache {
    /// Returns the maximum number of pinned roots; 0 if the cache is disabled.
    pub fn entries(&self) -> usize {
        self.sets.len()
    }

    /// Returns the reason for which the state is impossible, if it is.
    pub fn wrong(&self) -> Option<&'static str> {
        let in_use = |at: usize| self.sets.get(at).is_some_and(Option::is_some);
        let fits = self.sets.len() <= CR3_CACHE && self.last <= self.sets.len() && self.active.is_none_or(in_use);
        (!fits).then_some("its CR3 cache has no such entries")
    }

    /// Returns the active entry.
    pub fn active(&self) -> Option<&RootSet> {
        self.sets.get(self.active?)?.as_ref()
    }
}

/// A page directory pointer table whose PDPTEs belong to cached roots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pdpt {
    pub users: u32,
    pub version: u64,
}

/// The guest's registers after it has loaded CR3 without an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adopted {
    /// CR3 as seen by the guest.
    pub cr3: u64,
    /// PDPTEs, for PAE paging.
    pub pdpte: [u64; 4],
}

/// The MMU of a virtual processor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuMmu {
    pub(super) paging: Paging,
    /// Owner of the current roots: the guest or a nested guest.
    pub(super) level: Level,
    /// Current roots, unless they are in the CR3 cache, or shadow EPT is active.
    pub(super) own: Option<RootSet>,
    /// Previous roots.
    pub(super) kept: Vec<RootSet>,
    /// Current or last shadow EPT.
    pub(super) ept_own: Option<RootSet>,
    /// Previous shadow EPT.
    pub(super) ept_kept: Vec<RootSet>,
    pub(super) cache: Cr3Cache,
    /// Page for PDPTEs: 128 times 32 bytes.
    pub(super) pdptes: PageId,
    pub(super) sync: bool,
    pub(super) due: Flushes,
    pub(super) flushes: u64,
    /// Last fault that needed no change.
    pub(super) spurious: Option<(u64, u32)>,
}

impl VcpuMmu {
    /// Returns the current roots.
    pub(super) fn current(&self) -> Option<&RootSet> {
        match self.level {
            Level::Ept { .. } => self.ept_own.as_ref(),
            Level::Guest | Level::Nested => self.own.as_ref().or_else(|| self.cache.active()),
        }
    }

    /// Returns the storage of the current roots outside of the CR3 cache.
    pub(super) fn own_mut(&mut self) -> &mut Option<RootSet> {
        match self.level {
            Level::Ept { .. } => &mut self.ept_own,
            Level::Guest | Level::Nested => &mut self.own,
        }
    }

    /// Returns the storage of the last roots of the other kind.
    pub(super) fn resting_mut(&mut self) -> &mut Option<RootSet> {
        match self.level {
            Level::Ept { .. } => &mut self.own,
            Level::Guest | Level::Nested => &mut self.ept_own,
        }
    }

    /// Returns all sets of roots.
    pub(super) fn sets(&self) -> impl Iterator<Item = &RootSet> {
        self.guest_sets().chain(self.ept_sets())
    }

    /// Returns the sets that do not shadow EPT.
    pub(super) fn guest_sets(&self) -> impl Iterator<Item = &RootSet> {
        self.own.iter().chain(&self.kept).chain(self.cache.sets.iter().flatten())
    }

    /// Returns the sets that shadow EPT.
    pub(super) fn ept_sets(&self) -> impl Iterator<Item = &RootSet> {
        self.ept_own.iter().chain(&self.ept_kept)
    }
}
