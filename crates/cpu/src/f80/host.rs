//! Rounding operations on the host's x87 unit.
//!
//! Addition, multiplication, division, square root, scaling and narrowing are fully specified, so the host executes
//! them, with the guest's control word. An unmasked exception is then pending on the host, with the result that it
//! requires (none, or one with a biased exponent), until FNCLEX clears it before the next instruction that would trap.

use crate::arch::F80;
use std::arch::asm;

/// Outcome of an operation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// The result; the first operand if an unmasked exception suppressed the result.
    pub value: F80,
    /// The status word: exceptions and condition codes.
    pub status: u16,
}

/// Data of the assembly code, accessed by offset from one pointer.
#[repr(C, align(16))]
#[derive(Default)]
struct Frame {
    a: F80,       // 0
    b: F80,       // 16
    value: F80,   // 32
    memory: u64,  // 48
    control: u16, // 56
    saved: u16,   // 58
}

/// Replaces the reserved precision control 01, which acts as 11 on the tested processors.
fn defined(control: u16) -> u16 {
    if control & 0x300 == 0x100 { control | 0x300 } else { control }
}

/// Executes x87 instructions between a known beginning and end: `$load` pushes the operands, `$work` leaves the result
/// in ST(0), and `$unload` stores it and empties the stack.
macro_rules! run {
    ($frame:expr, $load:expr, $work:expr, $unload:expr) => {{
        let status: u16;
        // SAFETY: memory operands are inside the frame. All x87 registers are declared as clobbered, so the stack is
        // empty at the start; every sequence leaves it empty. Between an instruction that may leave an exception
        // pending and FNCLEX there is no instruction that waits for exceptions. The control word is restored.
        unsafe {
            asm!(
                concat!(
                    "fnstcw word ptr [{f} + 58]\nfnclex\nfldcw word ptr [{f} + 56]\n",
                    $load, "\n", $work, "\n",
                    "fnstsw ax\ntest al, 0x80\njz 2f\nfnclex\n2:\n",
                    $unload, "\n",
                    "fldcw word ptr [{f} + 58]",
                ),
                f = in(reg) &raw mut $frame,
                out("ax") status,
                out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                options(nostack),
            );
        }
        Outcome { value: $frame.value, status }
    }};
}

/// A two-operand operation in all forms. The first operand is the destination; the second is a register or memory.
pub trait Arithmetic {
    /// Executes the operation with a register.
    fn register(control: u16, a: F80, b: F80) -> Outcome;
    /// Executes the operation with a single-precision value.
    fn single(control: u16, a: F80, b: u32) -> Outcome;
    /// Executes the operation with a double-precision value.
    fn double(control: u16, a: F80, b: u64) -> Outcome;
    /// Executes the operation with a 16-bit integer.
    fn word(control: u16, a: F80, b: u16) -> Outcome;
    /// Executes the operation with a 32-bit integer.
    fn dword(control: u16, a: F80, b: u32) -> Outcome;
}

macro_rules! with_memory {
    ($control:expr, $a:expr, $b:expr, $instruction:expr) => {{
        let mut frame = Frame { a: $a, memory: $b.into(), control: defined($control), ..Frame::default() };
        run!(frame, "fld tbyte ptr [{f}]", $instruction, "fstp tbyte ptr [{f} + 32]")
    }};
}

macro_rules! with_register {
    ($control:expr, $a:expr, $b:expr, $instruction:expr) => {{
        let mut frame = Frame { a: $a, b: $b, control: defined($control), ..Frame::default() };
        run!(
            frame,
            "fld tbyte ptr [{f} + 16]\nfld tbyte ptr [{f}]",
            $instruction,
            "fstp tbyte ptr [{f} + 32]\nfstp st(0)"
        )
    }};
}

macro_rules! arithmetic {
    ($($(#[$doc:meta])* $name:ident = $real:literal, $integer:literal;)*) => {$(
        $(#[$doc])*
        pub struct $name;

        impl Arithmetic for $name {
            fn register(control: u16, a: F80, b: F80) -> Outcome {
                with_register!(control, a, b, concat!($real, " st, st(1)"))
            }
            fn single(control: u16, a: F80, b: u32) -> Outcome {
                with_memory!(control, a, b, concat!($real, " dword ptr [{f} + 48]"))
            }
            fn double(control: u16, a: F80, b: u64) -> Outcome {
                with_memory!(control, a, b, concat!($real, " qword ptr [{f} + 48]"))
            }
            fn word(control: u16, a: F80, b: u16) -> Outcome {
                with_memory!(control, a, b, concat!($integer, " word ptr [{f} + 48]"))
            }
            fn dword(control: u16, a: F80, b: u32) -> Outcome {
                with_memory!(control, a, b, concat!($integer, " dword ptr [{f} + 48]"))
            }
        }
    )*};
}

arithmetic! {
    /// a + b.
    Add = "fadd", "fiadd";
    /// a - b.
    Sub = "fsub", "fisub";
    /// b - a.
    SubR = "fsubr", "fisubr";
    /// a * b.
    Mul = "fmul", "fimul";
    /// a / b.
    Div = "fdiv", "fidiv";
    /// b / a.
    DivR = "fdivr", "fidivr";
}

/// An operation on ST(0), or on ST(0) and ST(1), with the result in ST(0).
pub type Function = fn(control: u16, st0: F80, st1: F80) -> Outcome;

/// FSQRT.
pub fn sqrt(control: u16, st0: F80, _: F80) -> Outcome {
    with_memory!(control, st0, 0u64, "fsqrt")
}

/// FRNDINT.
pub fn round(control: u16, st0: F80, _: F80) -> Outcome {
    with_memory!(control, st0, 0u64, "frndint")
}

/// FSCALE.
pub fn scale(control: u16, st0: F80, st1: F80) -> Outcome {
    with_register!(control, st0, st1, "fscale")
}

/// Converts to single precision as FST does. The value is meaningless if an unmasked exception other than PE is
/// reported.
pub fn to_single(control: u16, a: F80) -> (u32, u16) {
    let mut frame = Frame { a, control: defined(control), ..Frame::default() };
    let outcome = run!(frame, "fld tbyte ptr [{f}]", "fst dword ptr [{f} + 48]", "fstp st(0)");
    (frame.memory as u32, outcome.status)
}

/// Converts to double precision as FST does. The value is meaningless if an unmasked exception other than PE is
/// reported.
pub fn to_double(control: u16, a: F80) -> (u64, u16) {
    let mut frame = Frame { a, control: defined(control), ..Frame::default() };
    let outcome = run!(frame, "fld tbyte ptr [{f}]", "fst qword ptr [{f} + 48]", "fstp st(0)");
    (frame.memory, outcome.status)
}
