//! In which mode of the processor a translation is valid.

/// Who may access what, as far as translations differ by it.
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

/// What a translation is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Who may access what.
    pub access: AccessMode,
    /// 32-bit code with flat segments, else 64-bit code.
    pub narrow: bool,
}

/// How many there are.
pub const KEYS: usize = 8;

impl Key {
    /// A number below [`KEYS`]; those of 32-bit code are the upper half.
    pub fn index(self) -> usize {
        self.access as usize + if self.narrow { KEYS / 2 } else { 0 }
    }

    /// The table of [`Area::tables`](crate::front::Area::tables).
    pub fn table(self) -> usize {
        match self.access {
            AccessMode::User => 0,
            AccessMode::Supervisor | AccessMode::Override => 1,
            AccessMode::SupervisorOnly => 2,
        }
    }

    /// After STAC or CLAC.
    pub fn after(self, access_control: bool) -> Self {
        let access = match (self.access, access_control) {
            (AccessMode::SupervisorOnly | AccessMode::Override, true) => AccessMode::Override,
            (AccessMode::SupervisorOnly | AccessMode::Override, false) => AccessMode::SupervisorOnly,
            (other, _) => other,
        };
        Self { access, ..self }
    }
}
