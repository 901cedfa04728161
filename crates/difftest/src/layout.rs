//! Where things are: linear addresses that are the same natively and in the emulated processor.
//!
//! All of it lies below 2 GiB, so that 32-bit displacements, 32-bit addressing and 32-bit code reach it.

use x86::page::PAGE;

/// Everything below is inside this reservation.
pub const RESERVED: u64 = 0x1000_0000;
/// Its size: also what a bit offset in a register that holds an address of the arena reaches (BTS and its like).
pub const RESERVED_LEN: u64 = 0x300_0000;
/// The page of code; filled with INT3 apart from the instruction under test and the jump after it.
pub const CODE: u64 = RESERVED;
/// The instruction under test.
pub const CODE_START: u64 = CODE + 0x800;
/// Where that jump goes from 64-bit code.
pub const STUB64: u64 = CODE + 0x1000;
/// Where it goes from 32-bit code.
pub const STUB32: u64 = STUB64 + 16;
/// State to load, state stored, state of the host: see `native`.
pub const CONTEXT: u64 = RESERVED + 0x10_0000;
/// A page of code for the sweep, filled with INT3 apart from the instruction; nothing is after it.
pub const SWEEP: u64 = RESERVED + 0x18_0000;
/// Memory that instructions access: [`ARENA_PAGES`] pages with the [`RIGHTS`] given.
pub const ARENA: u64 = RESERVED + 0x20_0000;
/// Addresses up to this far outside the arena are known to be unmapped.
pub const MARGIN: u64 = 0x8_0000;

/// What may be done with a page of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Nothing: not present.
    None,
    /// Reading.
    Read,
    /// Reading and writing.
    Write,
}

/// Pages of the arena.
pub const ARENA_PAGES: usize = 8;
/// Bytes of the arena.
pub const ARENA_LEN: usize = ARENA_PAGES * PAGE as usize;

/// Rights of each page: data (1 and 2, then a read-only one), and the stack (5 and 6), between holes.
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

/// Usual stack pointer: between the two pages of the stack.
pub const STACK: u64 = ARENA + 6 * PAGE;

/// Rights at an address.
pub fn rights(address: u64) -> Rights {
    let page = address.wrapping_sub(ARENA) / PAGE;
    RIGHTS.get(page as usize).copied().unwrap_or(Rights::None)
}

/// Ranges of consecutive writable pages, as offsets in the arena.
pub fn writable() -> [std::ops::Range<usize>; 2] {
    [0x1000..0x3000, 0x5000..0x7000]
}
