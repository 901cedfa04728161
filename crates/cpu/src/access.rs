//! Kinds and privileges of accesses to memory.

use x86::page::code;

/// Kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Data read.
    Read,
    /// Data write.
    Write,
    /// Instruction fetch.
    Fetch,
    /// Read from a shadow stack.
    ShadowRead,
    /// Write to a shadow stack.
    ShadowWrite,
}

/// Privilege of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privilege {
    /// User-mode access (CPL 3).
    User,
    /// Explicit supervisor access.
    Supervisor,
    /// Implicit supervisor access (descriptor tables, TSS) at any CPL: RFLAGS.AC does not override SMAP.
    Implicit,
}

impl Access {
    /// Returns true for writes.
    #[inline(always)]
    pub fn writes(self) -> bool {
        matches!(self, Self::Write | Self::ShadowWrite)
    }

    /// Returns true for accesses to a shadow stack.
    #[inline(always)]
    pub fn is_shadow(self) -> bool {
        matches!(self, Self::ShadowRead | Self::ShadowWrite)
    }

    /// Returns the access as bits of a page fault's error code.
    #[inline(always)]
    pub(crate) fn code(self, privilege: Privilege) -> u32 {
        let user = if privilege == Privilege::User { code::USER } else { 0 };
        user | match self {
            Self::Read => 0,
            Self::Write => code::WRITE,
            Self::Fetch => code::FETCH,
            Self::ShadowRead => code::SHADOW_STACK,
            Self::ShadowWrite => code::SHADOW_STACK | code::WRITE,
        }
    }
}
