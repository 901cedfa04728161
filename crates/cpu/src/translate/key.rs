//! Processor modes for which translations are distinguished.

/// Access mode, as far as it affects translations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessMode {
    /// CPL 3.
    User = 0,
    /// CPL 0, without SMAP.
    Supervisor = 1,
    /// CPL 0, with SMAP and RFLAGS.AC clear.
    SupervisorOnly = 2,
    /// CPL 0, with SMAP and RFLAGS.AC set.
    Override = 3,
}

/// Mode for which a translation is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Access mode.
    pub access: AccessMode,
    /// True for 32-bit code with flat segments, false for 64-bit code.
    pub narrow: bool,
}

/// Number of keys.
pub const KEYS: usize = 8;

impl Key {
    /// Returns an index below [`KEYS`]; those of 32-bit code are the upper half.
    pub fn index(self) -> usize {
        self.access as usize + if self.narrow { KEYS / 2 } else { 0 }
    }

    /// Returns the index of the table in [`Area::tables`](crate::front::Area::tables).
    pub fn table(self) -> usize {
        match self.access {
            AccessMode::User => 0,
            AccessMode::Supervisor | AccessMode::Override => 1,
            AccessMode::SupervisorOnly => 2,
        }
    }

    /// Returns the key after STAC or CLAC.
    pub fn after(self, access_control: bool) -> Self {
        let access = match (self.access, access_control) {
            (AccessMode::SupervisorOnly | AccessMode::Override, true) => AccessMode::Override,
            (AccessMode::SupervisorOnly | AccessMode::Override, false) => AccessMode::SupervisorOnly,
            (other, _) => other,
        };
        Self { access, ..self }
    }
}
