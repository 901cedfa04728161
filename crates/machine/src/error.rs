//! Why a machine can't be made.

use crate::loader::LoadError;
use crate::memory::MemoryError;

/// Why a machine can't be made.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// Guest memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The kernel or what goes with it.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Firmware's tables.
    #[error(transparent)]
    Firmware(#[from] crate::firmware::FirmwareError),
    /// The devices.
    #[error(transparent)]
    Board(#[from] crate::board::BoardError),
    /// More pages of tables than there can be.
    #[error("--mmu-pages {0} is too much: there are {max} pages, some of which are for other things", max = crate::hypervisor_memory::HypervisorMemory::MOST_PAGES)]
    TablePages(u32),
    /// The hypervisor.
    #[error(transparent)]
    Hypervisor(#[from] hypervisor::SetupError),
    /// Number of processors.
    #[error("{0} processors: between 1 and {max} can be had", max = crate::MAX_CPUS)]
    Cpus(usize),
}
