//! Paging: sizes of pages, entries of page tables (SDM vol. 3, 4.3 to 4.5) and error codes of page faults (4.7).

/// Size in bytes of the smallest page, and of every paging structure except one.
pub const PAGE: u64 = 1 << SHIFT;
/// Log2 of [`PAGE`].
pub const SHIFT: u32 = 12;
/// Mask of an address's offset in its page.
pub const OFFSET: u64 = PAGE - 1;
/// Log2 of the size of pages that a directory of PAE, 4-level and 5-level paging maps.
pub const SHIFT_2M: u32 = 21;
/// Log2 of the size of pages that a directory of 32-bit paging maps.
pub const SHIFT_4M: u32 = 22;
/// Log2 of the size of pages that a page-directory-pointer table maps.
pub const SHIFT_1G: u32 = 30;
/// Log2 of the size that an entry of a PML4 table maps.
pub const SHIFT_PML4: u32 = 39;
/// Log2 of the size that an entry of a PML5 table maps.
pub const SHIFT_PML5: u32 = 48;

/// Present.
pub const P: u64 = 1 << 0;
/// Writable.
pub const RW: u64 = 1 << 1;
/// User-mode accesses are allowed.
pub const US: u64 = 1 << 2;
/// Page-level write-through.
pub const PWT: u64 = 1 << 3;
/// Page-level cache disable.
pub const PCD: u64 = 1 << 4;
/// Accessed.
pub const A: u64 = 1 << 5;
/// Dirty.
pub const D: u64 = 1 << 6;
/// The entry maps a page in a table above the last level.
pub const PS: u64 = 1 << 7;
/// Global, in an entry that maps a page.
pub const G: u64 = 1 << 8;
/// No instruction fetches.
pub const NX: u64 = 1 << 63;
/// Bits 51:12 of an entry of eight bytes: the address of a table or page.
pub const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// Bits 31:12 of an entry of four bytes: the address of a table or 4 KiB page.
pub const ADDRESS_32: u64 = 0xffff_f000;
/// Bits 31:22 of an entry that maps a 4 MiB page.
pub const ADDRESS_4M: u64 = 0xffc0_0000;
/// Bits 20:13 of an entry that maps a 4 MiB page: bits 39:32 of its address.
pub const HIGH_4M: u64 = 0x001f_e000;
/// Position of [`HIGH_4M`].
pub const HIGH_4M_SHIFT: u32 = 13;
/// Reserved bit 21 of an entry that maps a 4 MiB page.
pub const RESERVED_4M: u64 = 1 << 21;
/// PAT, in an entry that maps a page larger than 4 KiB; the address bits above it and below the size of the page are reserved.
pub const PAT_LARGE: u64 = 1 << 12;
/// Bits 62:52, which are reserved in PAE paging.
pub const RESERVED_PAE: u64 = 0x7ff0_0000_0000_0000;
/// Reserved bits below the address in an entry of a page-directory-pointer table of PAE paging: 2:1 and 8:5.
pub const RESERVED_PDPTE: u64 = 0x1e6;
/// Position of the protection key, bits 62:59 of an entry that maps a page.
pub const KEY_SHIFT: u32 = 59;
/// Mask of a protection key.
pub const KEY_MASK: u64 = 15;

/// Error codes of page faults.
pub mod code {
    /// The translation was present and denied the access; otherwise it was not present.
    pub const PRESENT: u32 = 1 << 0;
    /// Write.
    pub const WRITE: u32 = 1 << 1;
    /// User-mode access.
    pub const USER: u32 = 1 << 2;
    /// A reserved bit was set.
    pub const RESERVED: u32 = 1 << 3;
    /// Instruction fetch.
    pub const FETCH: u32 = 1 << 4;
    /// A protection key denied the access.
    pub const KEY: u32 = 1 << 5;
    /// Access to a shadow stack.
    pub const SHADOW_STACK: u32 = 1 << 6;
}
