//! Data layout of translated code: guest registers in host registers, and the data at the stack pointer.
//!
//! The stack pointer points 12 bytes into the current [`Area`]: its low six bits are therefore 12,
//! and it serves as the shift count that turns addresses into page numbers, without another register.

use super::asm::{M, R};
use super::jumps::{JUMP_SLOTS, Jump};
use crate::arch::{F80, VectorState, X87};
use crate::f80::status::EXCEPTIONS;
use crate::front::{Area, Attached, Half, Slot, Table, fetch_slot, large_slot};
use crate::time::conditional::Conditional;
use crate::time::predictor::Target;
use crate::time::recent::Recent;
use std::ffi::c_void;
use std::mem::offset_of;

/// Offset of the stack pointer in the area.
pub const BIAS: usize = 12;

/// Guest registers that are in memory while translated code runs, in the order of [`Running::memory`].
pub const IN_MEMORY: [u8; 5] = [8, 9, 10, 11, 15];

/// Returns the host register of a guest register, or `None` if it is in memory.
///
/// Registers that instructions use implicitly (RAX, RDX, RBX, RSI, RDI) have the same number; RCX is reserved for
/// JRCXZ.
pub fn host(guest: u8) -> Option<R> {
    Some(match guest {
        1 => R::R9,
        4 => R::R15,
        14 => R(8),
        0 | 2 | 3 | 5..=7 | 12 | 13 => R(guest),
        _ => return None,
    })
}

/// Negated time until the next event is due: the high half is zero when it is due.
pub const BUDGET: R = R::R14;
/// Scratch register that JRCXZ tests.
pub const TEST: R = R::RCX;
/// Scratch register.
pub const FIRST: R = R::R10;
/// Scratch register.
pub const SECOND: R = R::R11;

/// Maximum number of groups in a trace.
pub const MOST_GROUPS: usize = 16;

/// Data of translated code at its stack pointer.
#[repr(C)]
pub struct Running {
    /// Return addresses of its calls.
    pub(super) pushed: [u64; 2],
    /// Guest registers, see [`IN_MEMORY`].
    pub(super) memory: [u64; IN_MEMORY.len()],
    /// Newest entry of the modelled return stack.
    pub(super) returns: *mut u64,
    /// Execution counters of blocks for the current origin.
    pub(super) counts: *mut u32,
    /// Bases of FS and GS.
    pub(super) bases: [u64; 2],
    /// Bits of an address that select its slot in a table.
    pub(super) slot_mask: u64,
    /// Bits of an address that are the offset in its page or line.
    pub(super) offset_mask: u64,
    /// All other bits.
    pub(super) beyond_mask: u64,
    /// Bits of an indirect branch's target that select its slot.
    pub(super) jump_mask: u64,
    /// Modelled targets of indirect branches.
    pub(super) targets: *mut Target,
    /// The processor's general registers.
    pub(super) registers: *mut u64,
    /// OF in the low byte, the other arithmetic flags in the next.
    pub(super) flags: u64,
    /// RFLAGS.IF, at its position.
    pub(super) interrupts: u64,
    /// RFLAGS.AC, at its position.
    pub(super) access_control: u64,
    /// Other system flags of RFLAGS that can be set in a pushed image.
    pub(super) system_flags: u64,
    /// See [`BUDGET`].
    pub(super) budget: i64,
    /// One word for each kind of vector instruction, and for x87 instructions; 0 if they may be executed now, see
    /// [`Need`].
    pub(super) missing: [u64; NEEDS],
    /// Value of [`Running::missing`] after the registers have been loaded.
    pub(super) refused: [u64; NEEDS],
    /// State for which [`Running::refused`] was computed, see `Cpu::refused_for`.
    pub(super) refused_for: [u64; 2],
    /// Loaded vector registers: 0 for none, else the sum of [`LOADED`], [`LOADED_UPPER`] and [`LOADED_HIGH`].
    pub(super) loaded: u64,
    /// 0 if bits 511:256 of all vector registers are clear, or if the host's registers have none.
    pub(super) upper: u64,
    /// The processor's vector registers and MXCSR.
    pub(super) vector: *mut VectorState,
    /// The host's MXCSR for compiled code.
    pub(super) host_mxcsr: u64,
    /// Bits that are 0 in an address aligned to 16 bytes.
    pub(super) aligned_to_16: u64,
    /// Bits that are 0 in an address aligned to 32 bytes.
    pub(super) aligned_to_32: u64,
    /// Bits that are 0 in an address aligned to 64 bytes.
    pub(super) aligned_to_64: u64,
    /// Host addresses of the lowest bytes of groups of operands, see [`super::group`].
    pub(super) found: [u64; MOST_GROUPS],
    /// Target of a call while the stack is probed.
    pub(super) target: u64,
    /// Guest target of an indirect branch during the lookup of its translation.
    pub(super) wanted: u64,
    /// Address at which to continue.
    pub(super) resume: u64,
    /// Linear address and argument of [`super::dispatch::refill`].
    pub(super) refilled: [u64; 2],
    /// The host's stack pointer.
    pub(super) host_stack: u64,
    /// Argument for [`super::dispatch::slow`]: its [`Handover`](super::dispatch::Handover).
    pub(super) context: *mut c_void,
    /// Base value of [`BUDGET`].
    pub(super) base: u64,
    /// Nonzero in non-root mode.
    pub(super) non_root: u64,
    /// Targets of indirect branches, see [`super::Jumps`].
    pub(super) jumps: *const Jump,
    /// All operations ([`Op`](crate::op::Op)).
    pub(super) ops: *const c_void,
    /// Lines of code and branches that are known, see [`crate::code_lines`].
    pub(super) known_code: *const u32,
    /// Time at which the modelled front end began anew, as [`BUDGET`] counts.
    pub(super) redirected: i64,
    /// Modelled directions of conditional branches, if they are predicted.
    pub(super) conditional: *mut Conditional,
    /// The processor's ring of the addresses at which the last runs began.
    pub(super) recent: *mut Recent,
    /// Modelled targets of indirect branches by paths, if these are predicted.
    pub(super) paths: *mut Target,
    /// See [`Paths::mask`](crate::time::paths::Paths::mask).
    pub(super) path_mask: u64,
    /// See [`Paths::path`](crate::time::paths::Paths::path).
    pub(super) path: u64,
    /// Registers and flags during [`super::predict::predict`].
    pub(super) saved: [u64; 11],
    /// See [`super::unit`].
    pub(super) x87: Unit,
}

/// Memory image of FXSAVE.
#[repr(C, align(16))]
pub struct FxsaveImage {
    pub(super) control: u16,
    pub(super) status: u16,
    pub(super) tags: u8,
    /// Opcode and pointers of the host.
    pub(super) pointers: [u8; 19],
    pub(super) mxcsr: u32,
    pub(super) mxcsr_mask: u32,
    /// ST(0) to ST(7).
    pub(super) st: [F80; 8],
    pub(super) vector: [u8; 352],
}

/// The control word of compiled code.
pub const HOST_CONTROL: u16 = 0x37f;

/// Precision control and its reserved value, which processors may interpret differently.
pub const PRECISION: u16 = 0x300;
pub const RESERVED_PRECISION: u16 = 0x100;

/// x87 data in [`Running`].
#[repr(C)]
pub struct Unit {
    /// Nonzero if the unit contains the guest's state.
    pub(super) loaded: u64,
    /// The processor's state.
    pub(super) state: *mut X87,
    /// Index plus 1 of the last recorded instruction's operation; 0 for none.
    pub(super) last: u64,
    /// Index plus 1 of the last one with a memory operand, if each records that operand's address.
    pub(super) last_data: u64,
    /// Address of that operand.
    pub(super) data: u64,
    /// Address of the current operand.
    pub(super) at_hand: u64,
    /// Exception masks, as bits of a control word.
    pub(super) exceptions: u64,
    /// Precision control, as bits of a control word.
    pub(super) precision: u64,
    /// See [`HOST_CONTROL`].
    pub(super) host_control: u64,
    /// RAX and RDX while the unit is loaded.
    pub(super) kept: [u64; 2],
    pub(super) image: FxsaveImage,
}

// SAFETY: its fields are numbers and raw pointers.
unsafe impl Attached for Running {
    /// Vector registers and x87 unit do not contain the guest's state.
    fn reset(&mut self) {
        self.missing = [1; NEEDS];
        self.loaded = 0;
        self.x87.reset();
    }
}

impl Unit {
    /// Initializes the fields of a new area: the unit does not contain the guest's state.
    pub fn reset(&mut self) {
        self.loaded = 0;
        self.last = 0;
        self.last_data = 0;
        self.exceptions = EXCEPTIONS.into();
        self.precision = PRECISION.into();
        self.host_control = HOST_CONTROL.into();
    }

    /// Sets the address of the processor's state.
    pub fn of(&mut self, state: *mut X87) {
        self.state = state;
    }

    /// Returns true if the unit contains the guest's state.
    pub fn loaded(&self) -> bool {
        self.loaded != 0
    }
}

/// In [`Running::loaded`]: YMM0-15.
pub const LOADED: u64 = 1;
/// In [`Running::loaded`]: bits 511:256 of these registers, which are clear otherwise.
pub const LOADED_UPPER: u64 = 2;
/// In [`Running::loaded`]: ZMM16-31 and the opmasks; bits 511:256 of the others may be set.
pub const LOADED_HIGH: u64 = 4;

/// Requirement of a vector instruction: the index of its word in [`Running::missing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need(u8);

/// Number of words in [`Running::missing`].
pub const NEEDS: usize = 7;

impl Need {
    /// The guest's x87 state in the host's x87 unit: see [`super::unit`].
    pub const X87: Self = Self(4);

    /// AVX-512, without or with arithmetic.
    pub const fn wide(arithmetic: bool) -> Self {
        Self(5 + arithmetic as u8)
    }

    /// In a set of needs, the bits of AVX-512.
    pub const WIDE: u8 = 3 << 5;

    /// SSE without or with arithmetic, or AVX without or with arithmetic.
    pub const fn new(vex: bool, arithmetic: bool) -> Self {
        Self(vex as u8 * 2 + arithmetic as u8)
    }

    /// Returns the index.
    pub const fn number(self) -> usize {
        self.0 as usize
    }

    /// Returns the bit in a set of needs.
    pub fn bit(self) -> u8 {
        1 << self.0
    }

    /// Returns the location of its word.
    pub fn word(self) -> M {
        M::at(R::RSP, from_stack(offset_of!(Running, missing) + 8 * self.number()))
    }
}

const fn from_stack(offset: usize) -> i32 {
    offset as i32 - BIAS as i32
}

/// Location of a field of [`Running`].
macro_rules! field {
    ($($name:tt)+) => {
        M::at(R::RSP, std::mem::offset_of!($crate::translate::layout::Running, $($name)+) as i32 - $crate::translate::layout::BIAS as i32)
    };
}
pub(super) use field;

/// Returns the location of a guest register that is in memory.
pub fn memory_register(guest: u8) -> M {
    let slot = IN_MEMORY.iter().position(|r| *r == guest).unwrap_or(0);
    M::at(R::RSP, from_stack(offset_of!(Running, memory) + 8 * slot))
}

/// Returns the location of the host address of a group of operands.
pub fn found(group: usize) -> M {
    M::at(R::RSP, from_stack(offset_of!(Running, found) + 8 * group))
}

/// Returns the location of the base of FS (4) or GS (5).
pub fn segment_base(segment: u8) -> M {
    let slot = usize::from(segment == x86::seg::GS);
    M::at(R::RSP, from_stack(offset_of!(Running, bases) + 8 * slot))
}

/// Returns the displacements of the two numbers in a table's first slot: the negated address, and the difference to the host's.
pub fn table(number: usize, write: bool) -> (i32, i32) {
    let half = if write { offset_of!(Table, write) } else { offset_of!(Table, read) };
    let at = offset_of!(Area<Running>, tables) + number * size_of::<Table>() + half;
    let first = at + offset_of!(Half, slots);
    (from_stack(first + offset_of!(Slot, negated)), from_stack(first + offset_of!(Slot, addend)))
}

/// Returns the location of the slot of a page of code.
pub fn fetch(linear: u64) -> M {
    M::at(R::RSP, from_stack(offset_of!(Area<Running>, fetch) + 8 * fetch_slot(linear)))
}

/// Returns the location of the slot of a large page of code.
pub fn large(linear: u64) -> M {
    M::at(R::RSP, from_stack(offset_of!(Area<Running>, large) + 8 * large_slot(linear)))
}

/// Returns the locations of the fields in a target's entry, whose offset from the first entry of its key is in `index`.
pub fn jump(key: usize, index: R) -> (M, M) {
    let at = |field: usize| M::at(index, (key * JUMP_SLOTS * size_of::<Jump>() + field) as i32);
    (at(offset_of!(Jump, negated)), at(offset_of!(Jump, code)))
}
