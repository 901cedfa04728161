//! Errors in the creation of a machine.

use crate::loader::LoadError;
use crate::memory::MemoryError;

/// Reason for which a machine can't be created.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// Guest memory can't be created.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The kernel or one of its modules can't be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Firmware tables can't be built.
    #[error(transparent)]
    Firmware(#[from] crate::firmware::FirmwareError),
    /// A device can't be created.
    #[error(transparent)]
    Board(#[from] crate::board::BoardError),
    /// `--mmu-pages` exceeds the number of table pages.
    #[error("--mmu-pages {0} is too much: there are {max} pages, some of which are for other things", max = crate::hypervisor_memory::HypervisorMemory::MOST_PAGES)]
    TablePages(u32),
    /// The hypervisor can't be set up.
    #[error(transparent)]
    Hypervisor(#[from] hypervisor::SetupError),
    /// The number of processors is out of range.
    #[error("{0} processors: between 1 and {max} can be had", max = crate::MAX_CPUS)]
    Cpus(usize),
}
