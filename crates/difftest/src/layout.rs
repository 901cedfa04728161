//! The memory layout: linear addresses that are the same natively and in the emulated processor.
//!
//! The whole layout lies below 2 GiB, so that 32-bit displacements, 32-bit addressing and 32-bit code reach it.

use x86::page::PAGE;

/// Start of the reservation, which contains everything below.
pub const RESERVED: u64 = 0x1000_0000;
/// Size of the reservation. A bit offset in a register that holds an address of the arena also reaches this far (BTS
/// and similar).
pub const RESERVED_LEN: u64 = 0x300_0000;
/// The code page, filled with INT3 apart from the instruction under test and the jump after it.
pub const CODE: u64 = RESERVED;
/// Address of the instruction under test.
pub const CODE_START: u64 = CODE + 0x800;
/// Target of that jump in 64-bit code.
pub const STUB64: u64 = CODE + 0x1000;
/// Target of that jump in 32-bit code.
pub const STUB32: u64 = STUB64 + 16;
/// State to load, stored state, and the host's state: see `native`.
pub const CONTEXT: u64 = RESERVED + 0x10_0000;
/// The sweep's code page, filled with INT3 apart from the instruction; nothing follows it.
pub const SWEEP: u64 = RESERVED + 0x18_0000;
/// The arena, which instructions access: [`ARENA_PAGES`] pages with the given [`RIGHTS`].
pub const ARENA: u64 = RESERVED + 0x20_0000;
/// Distance outside the arena within which all addresses are unmapped.
pub const MARGIN: u64 = 0x8_0000;

/// Permitted accesses to a page of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// No access: the page is not present.
    None,
    /// Reads.
    Read,
    /// Reads and writes.
    Write,
}

/// Number of pages of the arena.
pub const ARENA_PAGES: usize = 8;
/// Size of the arena in bytes.
pub const ARENA_LEN: usize = ARENA_PAGES * PAGE as usize;

/// Rights of each page: data (1 and 2, then a read-only page) and stack (5 and 6), with holes between them.
pub const RIGHTS: [Rights; ARENA_PAGES] = [
    Rights::None,
    Rights::Write,
    Rights::Write,
    Rights::Read,
    Rights::None,
    Rights::Write,
    Rights::Write,
    Rights::None,
];

/// Usual stack pointer, between the two pages of the stack.
pub const STACK: u64 = ARENA + 6 * PAGE;

/// Returns the rights at an address.
pub fn rights(address: u64) -> Rights {
    let page = address.wrapping_sub(ARENA) / PAGE;
    RIGHTS.get(page as usize).copied().unwrap_or(Rights::None)
}

/// Returns the ranges of consecutive writable pages as offsets in the arena.
pub fn writable() -> [std::ops::Range<usize>; 2] {
    [0x1000..0x3000, 0x5000..0x7000]
}
