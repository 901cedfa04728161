//! Why a saved MMU is not accepted.

use super::MmuError;

/// Why a saved state is not one of this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// The hidden memory has another size.
    #[error("the saved hypervisor has {saved} table pages, this one has {here}")]
    PoolSize {
        /// Pages in the saved state.
        saved: u32,
        /// Pages of this machine.
        here: u32,
    },
    /// A memory slot that this machine cannot have.
    #[error("saved {0}")]
    Slot(#[from] MmuError),
    /// A dirty log that is not as long as its slot.
    #[error("the saved dirty log of the memory slot at guest frame {gfn:#x} does not fit it")]
    DirtyLog {
        /// First frame of the slot.
        gfn: u64,
    },
    /// What is said about a page of the hypervisor's tables makes no sense.
    #[error("saved table page {page} {what}")]
    Page {
        /// Number of the page.
        page: u32,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A counter that no machine could have reached, or that contradicts another one.
    #[error("the saved counter of {0} is out of range")]
    Counter(&'static str),
    /// A range of memory that the hypervisor is said to have written is not RAM.
    #[error("the saved state reports a write to {address:#x}, which is not RAM")]
    Written {
        /// Host-physical address.
        address: u64,
    },
    /// What is said about a virtual CPU makes no sense.
    #[error("virtual CPU {vcpu}: {what}")]
    Vcpu {
        /// Its number.
        vcpu: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The tables in memory are not what the rest says.
    #[error("the hypervisor's saved tables are inconsistent: {0}")]
    Tables(String),
}
