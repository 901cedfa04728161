//! The kernels, by family.

pub mod bandwidth;
pub mod branches;
pub mod caches;
pub mod code;
pub mod pairs;
pub mod paths;
pub mod tlb;
