//! Control-flow enforcement: shadow stacks and indirect-branch tracking (SDM vol. 1, chapter 17).

/// IA32_U_CET and IA32_S_CET: shadow stacks are enabled.
pub const SHADOW_STACK: u64 = 1 << 0;
/// WRSS may write to shadow stacks.
pub const WRITE_SHADOW_STACK: u64 = 1 << 1;
/// Indirect branches must lead to ENDBRANCH.
pub const ENDBRANCH: u64 = 1 << 2;
/// A bitmap marks pages with code that need not have ENDBRANCH.
pub const LEGACY: u64 = 1 << 3;
/// The prefix 3EH exempts an indirect branch from tracking.
pub const NO_TRACK: u64 = 1 << 4;
/// A branch to a page of the bitmap does not suspend tracking.
pub const NO_SUPPRESS: u64 = 1 << 5;
/// Tracking is suspended.
pub const SUPPRESS: u64 = 1 << 10;
/// The tracker waits for ENDBRANCH.
pub const WAITS: u64 = 1 << 11;
/// Address of the bitmap.
pub const BITMAP: u64 = !0xfff;
/// Bits that are reserved.
pub const RESERVED: u64 = 0x3c0;

/// Error codes of #CP.
pub mod code {
    /// A near return does not match the shadow stack.
    pub const NEAR_RETURN: u32 = 1;
    /// A far return or IRET does not match the shadow stack.
    pub const FAR_RETURN: u32 = 2;
    /// The target of an indirect branch is not ENDBRANCH.
    pub const ENDBRANCH: u32 = 3;
    /// RSTORSSP found no restore token.
    pub const RSTORSSP: u32 = 4;
    /// SETSSBSY found no token, or a busy one.
    pub const SETSSBSY: u32 = 5;
}
