//! Extended page tables: their pointer (SDM vol. 3, table 24-8) and entries (28.3.2).

/// Memory type of the tables, in the EPT pointer.
pub const EPTP_TYPE: u64 = 7;
/// Number of levels minus one, in the EPT pointer.
pub const EPTP_LENGTH: u64 = 7 << EPTP_LENGTH_SHIFT;
/// Position of [`EPTP_LENGTH`].
pub const EPTP_LENGTH_SHIFT: u32 = 3;
/// [`EPTP_LENGTH`] of four levels.
pub const EPTP_FOUR_LEVELS: u64 = 3 << EPTP_LENGTH_SHIFT;
/// Accessed and dirty flags are enabled.
pub const EPTP_ACCESSED_DIRTY: u64 = 1 << 6;
/// Bits of the EPT pointer that must be clear.
pub const EPTP_RESERVED: u64 = 0xf80;

/// Reads are allowed.
pub const READ: u64 = 1;
/// Writes are allowed.
pub const WRITE: u64 = 2;
/// Instruction fetches are allowed.
pub const EXECUTE: u64 = 4;
/// All permissions; an entry with none of them is not present.
pub const RIGHTS: u64 = READ | WRITE | EXECUTE;
/// Position of the memory type in a leaf entry.
pub const TYPE_SHIFT: u32 = 3;
/// Bits of a memory type.
pub const TYPE_MASK: u64 = 7;
/// Memory types that do not exist, as a set: 2, 3 and 7.
pub const RESERVED_TYPES: u64 = 1 << 2 | 1 << 3 | 1 << 7;
/// Reserved bits of an entry that points to a table; in a PML4 table [`LARGE`] is reserved too, elsewhere it maps a
/// page.
pub const RESERVED_TABLE: u64 = 0xf8;
/// The entry maps a page in a table above the last level.
pub const LARGE: u64 = 1 << 7;
/// The entry was used.
pub const ACCESSED: u64 = 1 << 8;
/// The page was written.
pub const DIRTY: u64 = 1 << 9;
/// Bits 51:12: the address of a table or page.
pub const ADDRESS: u64 = crate::page::ADDRESS;
/// Guest-physical address bits that four levels translate.
pub const ADDRESS_BITS: u32 = 48;

/// User code may be fetched, with mode-based execute control; [`EXECUTE`] then applies to supervisor code.
pub const USER_EXECUTE: u64 = 1 << 10;
/// An EPT violation of this page is a VM exit, not a virtualization exception.
pub const SUPPRESS_VE: u64 = 1 << 63;

/// Memory type uncacheable (SDM vol. 3, 11.3).
pub const UNCACHEABLE: u64 = 0;
/// Memory type write-back (SDM vol. 3, 11.3).
pub const WRITE_BACK: u64 = 6;
