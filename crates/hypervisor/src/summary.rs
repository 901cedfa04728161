//! What is left to say about a machine when its run is over.

use crate::mmu::VcpuMmu;
use crate::vcpu::Vcpu;
use crate::vm::Hypervisor;

impl Hypervisor {
    /// What the MMU did and holds, as names and values for the head of a ledger.
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

    /// Whether every page of the MMU's is in use for a reason, and its tables are what they should be; `vcpus` are all there
    /// are. What is wrong.
    pub fn check<'a>(&self, vcpus: impl Iterator<Item = &'a Vcpu>) -> Result<(), String> {
        let mmus: Vec<&VcpuMmu> = vcpus.filter_map(|vcpu| vcpu.mmu.as_ref()).collect();
        self.mmu.check(&mmus)
    }
}
