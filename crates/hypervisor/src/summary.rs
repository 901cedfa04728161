//! Summary of a machine after its run.

use crate::mmu::VcpuMmu;
use crate::vcpu::Vcpu;
use crate::vm::Hypervisor;

impl Hypervisor {
    /// Returns counters and sizes of the MMU, as names and values for the head of a ledger.
    pub fn summary(&self) -> Vec<(&'static str, String)> {
        let stats = self.mmu.stats();
        let (used, limit) = self.mmu.pages_used();
        let facts = [
            ("mmu pages, limit", u64::from(limit)),
            ("mmu pages, at the end", u64::from(used)),
            ("mmu pages, at most", stats.peak_pages),
            ("mmu pages, made", stats.allocated),
            ("mmu pages, limit met", stats.limit_mmu_pages),
            ("mmu pages, recycled at the limit", stats.recycled),
        ];
        facts.into_iter().map(|(name, value)| (name, value.to_string())).collect()
    }

    /// Checks that every page of the MMU has a user, and that its tables are consistent; `vcpus` are all virtual CPUs.
    /// The error describes the first inconsistency.
    pub fn check<'a>(&self, vcpus: impl Iterator<Item = &'a Vcpu>) -> Result<(), String> {
        let mmus: Vec<&VcpuMmu> = vcpus.filter_map(|vcpu| vcpu.mmu.as_ref()).collect();
        self.mmu.check(&mmus)
    }
}
