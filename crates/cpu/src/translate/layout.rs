//! Where translated code finds things: guest registers in host registers, and what the stack pointer leads to.
//!
//! The stack pointer points 12 bytes into the current [`Area`](crate::front::Area): the low six bits of it are then 12, which
//! makes it the shift count that turns addresses into page numbers, without a register for that.

use super::asm::{M, R};
use crate::arch::VectorState;
use crate::front::{Area, Half, Jump, Table, fetch_slot, large_slot};
use crate::op::Op;
use crate::predict::{Return, Target};
use std::mem::offset_of;

/// How far into the area the stack pointer points.
pub const BIAS: usize = 12;

/// Guest registers that live in memory while translated code runs, in the order of [`Running::memory`].
pub const IN_MEMORY: [u8; 5] = [8, 9, 10, 11, 15];

/// The host register that holds a guest register, unless it is in memory.
///
/// Those that instructions name implicitly (RAX, RDX, RBX, RSI, RDI) keep their place; RCX is needed for JRCXZ.
pub fn host(guest: u8) -> Option<R> {
    Some(match guest {
        1 => R::R9,
        4 => R::R15,
        14 => R(8),
        0 | 2 | 3 | 5..=7 | 12 | 13 => R(guest),
        _ => return None,
    })
}

/// Time until something is due, negative: the high half is zero once it is.
pub const BUDGET: R = R::R14;
/// Scratch registers: the one that JRCXZ tests, and two more.
pub const TEST: R = R::RCX;
/// See [`TEST`].
pub const FIRST: R = R::R10;
/// See [`TEST`].
pub const SECOND: R = R::R11;

/// Groups of a trace at most.
pub const MOST_GROUPS: usize = 16;

/// What translated code keeps at its stack pointer.
#[repr(C)]
pub struct Running {
    /// Return addresses of the calls it makes.
    pub(super) pushed: [u64; 2],
    /// Guest registers, see [`IN_MEMORY`].
    pub(super) memory: [u64; IN_MEMORY.len()],
    /// Newest entry of the modelled return stack.
    pub(super) returns: *mut Return,
    /// Executions of blocks by the current origin.
    pub(super) counts: *mut u32,
    /// Bases of FS and GS.
    pub(super) bases: [u64; 2],
    /// Which bits of an address find its slot in a table.
    pub(super) page_mask: u64,
    /// Which bits of an address are the offset in its page.
    pub(super) offset_mask: u64,
    /// Which bits of an indirect branch's target find its slot.
    pub(super) jump_mask: u64,
    /// Modelled targets of indirect branches.
    pub(super) targets: *mut Target,
    /// The processor's general registers.
    pub(super) registers: *mut u64,
    /// OF in the low byte, the other arithmetic flags in the next.
    pub(super) flags: u64,
    /// RFLAGS.IF, in its place.
    pub(super) interrupts: u64,
    /// RFLAGS.AC, in its place.
    pub(super) access_control: u64,
    /// The rest of RFLAGS that is no arithmetic flag and can be set in an image that is pushed.
    pub(super) system_flags: u64,
    /// See [`BUDGET`].
    pub(super) budget: i64,
    /// 0 for each kind of vector instruction, and for x87 instructions, that may run now, see [`Need`].
    pub(super) missing: [u64; NEEDS],
    /// What [`Running::missing`] becomes once the registers are loaded.
    pub(super) refused: [u64; NEEDS],
    /// Which are: 0 for none, else the sum of [`LOADED`], [`LOADED_UPPER`] and [`LOADED_HIGH`].
    pub(super) loaded: u64,
    /// 0 if bits 511:256 of all vector registers are clear.
    pub(super) upper: u64,
    /// The processor's vector registers and MXCSR.
    pub(super) vector: *mut VectorState,
    /// The host's MXCSR for compiled code.
    pub(super) host_mxcsr: u64,
    /// Which bits of an address aligned to 16 bytes are 0.
    pub(super) aligned_to_16: u64,
    /// Which bits of an address aligned to 32 bytes are 0.
    pub(super) aligned_to_32: u64,
    /// Which bits of an address aligned to 64 bytes are 0.
    pub(super) aligned_to_64: u64,
    /// Host addresses of the lowest bytes of groups of operands, see [`super::group`].
    pub(super) found: [u64; MOST_GROUPS],
    /// Where a call goes while the stack is probed.
    pub(super) target: u64,
    /// The guest's target of an indirect branch, while its translation is looked for.
    pub(super) wanted: u64,
    /// Where to go on.
    pub(super) resume: u64,
    /// The host's stack pointer.
    pub(super) host_stack: u64,
    /// What is handed to [`super::dispatch::slow`].
    pub(super) context: *mut super::dispatch::Handover,
    /// What [`BUDGET`] counts from.
    pub(super) base: u64,
    /// 0 outside non-root mode.
    pub(super) non_root: u64,
    /// Targets of indirect branches, see [`crate::front::Jumps`].
    pub(super) jumps: *const Jump,
    /// All operations.
    pub(super) ops: *const Op,
    /// See [`super::x87`].
    pub(super) x87: super::x87::Unit,
}

impl Running {
    /// As fresh areas have it: the vector registers and the x87 unit are not the guest's.
    pub(crate) fn reset(&mut self) {
        self.missing = [1; NEEDS];
        self.loaded = 0;
        self.x87.reset();
    }
}

/// In [`Running::loaded`]: YMM0-15.
pub const LOADED: u64 = 1;
/// In [`Running::loaded`]: bits 511:256 of these, which are clear otherwise.
pub const LOADED_UPPER: u64 = 2;
/// In [`Running::loaded`]: ZMM16-31 and the opmasks; bits 511:256 of the others may be set.
pub const LOADED_HIGH: u64 = 4;

/// What a vector instruction needs: its word of [`Running::missing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need(u8);

/// Words of [`Running::missing`].
pub const NEEDS: usize = 7;

impl Need {
    /// The guest's x87 state in the host's unit: see [`super::x87`].
    pub const X87: Self = Self(4);

    /// AVX-512 without or with arithmetic.
    pub const fn wide(arithmetic: bool) -> Self {
        Self(5 + arithmetic as u8)
    }

    /// In a set of needs, those of AVX-512.
    pub const WIDE: u8 = 3 << 5;

    /// SSE without or with arithmetic, AVX without or with.
    pub const fn new(vex: bool, arithmetic: bool) -> Self {
        Self(vex as u8 * 2 + arithmetic as u8)
    }

    /// Its number.
    pub const fn number(self) -> usize {
        self.0 as usize
    }

    /// Bit in a set of needs.
    pub fn bit(self) -> u8 {
        1 << self.0
    }

    /// Its word.
    pub fn word(self) -> M {
        M::at(R::RSP, from_stack(offset_of!(Running, missing) + 8 * self.number()))
    }
}

const fn from_stack(offset: usize) -> i32 {
    offset as i32 - BIAS as i32
}

/// A field of [`Running`].
macro_rules! field {
    ($($name:tt)+) => {
        M::at(R::RSP, std::mem::offset_of!($crate::translate::layout::Running, $($name)+) as i32 - $crate::translate::layout::BIAS as i32)
    };
}
pub(super) use field;

/// Place of a guest register that lives in memory.
pub fn memory_register(guest: u8) -> M {
    let slot = IN_MEMORY.iter().position(|r| *r == guest).unwrap_or(0);
    M::at(R::RSP, from_stack(offset_of!(Running, memory) + 8 * slot))
}

/// Where the host address of a group of operands is kept.
pub fn found(group: usize) -> M {
    M::at(R::RSP, from_stack(offset_of!(Running, found) + 8 * group))
}

/// The base of FS (4) or GS (5).
pub fn segment_base(segment: u8) -> M {
    let slot = usize::from(segment == x86::seg::GS);
    M::at(R::RSP, from_stack(offset_of!(Running, bases) + 8 * slot))
}

/// Displacements of a table's two arrays, negated addresses and what leads to the host's.
pub fn table(number: usize, write: bool) -> (i32, i32) {
    let half = if write { offset_of!(Table, write) } else { offset_of!(Table, read) };
    let at = offset_of!(Area, tables) + number * size_of::<Table>() + half;
    (from_stack(at + offset_of!(Half, negated)), from_stack(at + offset_of!(Half, addend)))
}

/// The slot of a page of code.
pub fn fetch(linear: u64) -> M {
    M::at(R::RSP, from_stack(offset_of!(Area, fetch) + 8 * fetch_slot(linear)))
}

/// The slot of a large page of code.
pub fn large(linear: u64) -> M {
    M::at(R::RSP, from_stack(offset_of!(Area, large) + 8 * large_slot(linear)))
}

/// Fields of the entry of a target, whose distance from the first of its key is in `index`.
pub fn jump(key: usize, index: R) -> (M, M) {
    let at = |field: usize| M::at(index, (key * crate::front::JUMP_SLOTS * size_of::<Jump>() + field) as i32);
    (at(offset_of!(Jump, negated)), at(offset_of!(Jump, code)))
}
