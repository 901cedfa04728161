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
    /// ACPI tables.
    #[error(transparent)]
    Acpi(#[from] crate::acpi::AcpiError),
    /// Too many devices.
    #[error(transparent)]
    Pci(#[from] crate::pci::PciError),
    /// The platform is not there yet.
    #[error("the platform {0} cannot run guests in this version: use --platform bare")]
    Platform(&'static str),
    /// Number of processors.
    #[error("{0} processors: between 1 and {max} can be had", max = crate::MAX_CPUS)]
    Cpus(usize),
}
