//! Addresses of the program of a validation: the same in a process and in the modelled processor.
//!
//! All of them lie below 2 GiB, so that 32-bit displacements reach them.

/// Size of a page.
pub const PAGE: u64 = 4096;
/// Start of the code.
pub const CODE: u64 = 0x40_0000;
/// Greatest size of the code.
pub const CODE_LEN: u64 = 0x40_0000;
/// The pages of the program's own variables: see [`Slot`].
pub const CONTROL: u64 = 0x80_0000;
/// Size of these pages.
pub const CONTROL_LEN: u64 = 0x1_0000;
/// Results of repeated measurements.
pub const RESULTS: u64 = CONTROL + 0x1000;
/// Most measurements of a request: the results fill the pages of variables.
pub const MOST_REPEATS: u64 = (CONTROL_LEN - 0x1000) / ANSWER;
/// Bytes of the result of one measurement.
pub const ANSWER: u64 = 24;
/// End of the stack of the bare processor.
pub const STACK: u64 = 0xa0_0000;
/// Size of that stack.
pub const STACK_LEN: u64 = 0x1_0000;
/// Data in pages of 4 KiB.
pub const SMALL: u64 = 0x100_0000;
/// Size of these data.
pub const SMALL_LEN: u64 = 0x500_0000;
/// Data in pages of 2 MiB, where the host allows them.
pub const HUGE: u64 = 0x800_0000;
/// Size of these data.
pub const HUGE_LEN: u64 = 0x800_0000;

/// A quadword of the page [`CONTROL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Slot {
    /// Address of the function that is measured.
    Entry,
    /// Rounds of its loop.
    Rounds,
    /// Rounds before the first time stamp.
    Warm,
    /// Measurements that are left.
    Repeats,
    /// Pieces of data that follow the request.
    Pieces,
    /// Address of a piece of data.
    Address,
    /// Length of a piece of data.
    Length,
    /// Time stamps that the loop took.
    Elapsed,
    /// The first time stamp.
    Start,
    /// Place of the next result.
    Next,
    /// Address of the process's name.
    Name,
}

impl Slot {
    /// Returns the slot's address.
    pub fn address(self) -> u64 {
        CONTROL + 8 * self as u64
    }
}

/// Bytes of a request in front of its data: the slots from [`Slot::Entry`] to [`Slot::Pieces`].
pub const REQUEST: usize = 40;
