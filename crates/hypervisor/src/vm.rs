//! A virtual machine: what its virtual CPUs share.

use crate::config::{Config, ConfigError};
use crate::controls::Shared;
use crate::registers::Ownership;
use cpu::Ram;

/// Why a virtual machine cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// The switches do not fit together.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is no place for the hypervisor's tables.
    #[error("there is no hidden memory for the hypervisor's tables")]
    NoPool,
}

/// A virtual machine.
pub struct Hypervisor {
    /// Its switches.
    pub config: Config,
    /// Which control-register bits are the guest's.
    pub(crate) ownership: Ownership,
    /// Bitmaps of the execution controls.
    pub(crate) shared: Shared,
}

impl Hypervisor {
    /// A machine whose memory is all of `ram`, each guest-physical address at the same host-physical one. Its hidden part is
    /// for the hypervisor's tables.
    pub fn new(config: Config, ram: &Ram) -> Result<Self, SetupError> {
        config.validate()?;
        if !ram.regions().iter().any(|region| region.hidden) {
            return Err(SetupError::NoPool);
        }
        let (ownership, shared) = (Ownership::of(&config), Shared::new(&config));
        Ok(Self { config, ownership, shared })
    }
}
