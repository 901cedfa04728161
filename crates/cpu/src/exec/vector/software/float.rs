//! Elementwise floating-point arithmetic: the four operations, roots, fused operations, minimum, maximum, comparison.

use super::arithmetic::{add, compare, divide, fused, maximum, minimum, multiply, square_root, subtract};
use super::lanes::{Element, finish, finish_scalar};
use super::number::{Double, Environment, Format, Half, Single};
use super::{Body, Bytes, Form, Operands, Outcome};
use iced_x86::{Instruction, Mnemonic, Mnemonic::*};
use std::cmp::Ordering;

/// Returns element `n` as bits.
#[inline(always)]
pub fn bits<F: Format>(vector: &Bytes, n: usize) -> u64 {
    F::Bits::get(vector, n).extend()
}

/// Computes each selected element from its index.
#[inline(always)]
pub fn packed<F: Format>(form: &Form, o: &Operands, f: impl Fn(&mut Environment, usize) -> u64) -> Outcome {
    let count = form.length / F::Bits::SIZE;
    packed_count::<F>(form, o, count, f)
}

/// Computes [`packed`] for a number of elements.
#[inline(always)]
pub fn packed_count<F: Format>(
    form: &Form,
    o: &Operands,
    count: usize,
    f: impl Fn(&mut Environment, usize) -> u64,
) -> Outcome {
    let mut env = Environment::new(form, o.mxcsr);
    let mut result = [0; 64];
    for n in (0..count).filter(|n| o.mask >> n & 1 != 0) {
        F::Bits::truncate(f(&mut env, n)).put(&mut result, n);
    }
    Outcome { mxcsr_flags: env.raised(form), ..finish::<F::Bits>(form, o, result, count) }
}

/// Computes element 0 if the mask selects it; the others are those of `a`.
#[inline(always)]
pub fn scalar<F: Format>(form: &Form, o: &Operands, f: impl Fn(&mut Environment) -> u64) -> Outcome {
    let mut env = Environment::new(form, o.mxcsr);
    let value = if o.mask & 1 != 0 { f(&mut env) } else { 0 };
    Outcome { mxcsr_flags: env.raised(form), ..finish_scalar::<F::Bits>(form, o, F::Bits::truncate(value)) }
}

/// Creates bodies for the six mnemonics of an operation: packed and scalar, in half, single and double precision.
macro_rules! unary {
    ($mnemonic:expr; $($ph:ident $ps:ident $pd:ident $sh:ident $ss:ident $sd:ident => $op:ident,)*) => {{
        let body: Body = match $mnemonic {
            $(
                $ph => |f, o| packed::<Half>(f, o, |env, n| $op::<Half>(env, f, bits::<Half>(&o.a, n))),
                $ps => |f, o| packed::<Single>(f, o, |env, n| $op::<Single>(env, f, bits::<Single>(&o.a, n))),
                $pd => |f, o| packed::<Double>(f, o, |env, n| $op::<Double>(env, f, bits::<Double>(&o.a, n))),
                $sh => |f, o| scalar::<Half>(f, o, |env| $op::<Half>(env, f, bits::<Half>(&o.b, 0))),
                $ss => |f, o| scalar::<Single>(f, o, |env| $op::<Single>(env, f, bits::<Single>(&o.b, 0))),
                $sd => |f, o| scalar::<Double>(f, o, |env| $op::<Double>(env, f, bits::<Double>(&o.b, 0))),
            )*
            _ => return None,
        };
        Some(body)
    }};
}

/// Creates bodies as `unary!` does, for operations with two sources.
macro_rules! binary {
    ($mnemonic:expr; $($ph:ident $ps:ident $pd:ident $sh:ident $ss:ident $sd:ident => $op:ident,)*) => {{
        let body: Body = match $mnemonic {
            $(
                $ph => |f, o| two::<Half, false>(f, o, $op::<Half>),
                $ps => |f, o| two::<Single, false>(f, o, $op::<Single>),
                $pd => |f, o| two::<Double, false>(f, o, $op::<Double>),
                $sh => |f, o| two::<Half, true>(f, o, $op::<Half>),
                $ss => |f, o| two::<Single, true>(f, o, $op::<Single>),
                $sd => |f, o| two::<Double, true>(f, o, $op::<Double>),
            )*
            _ => return None,
        };
        Some(body)
    }};
}

pub(super) use {binary, unary};

/// Computes an operation with two sources.
#[inline(always)]
pub fn two<F: Format, const SCALAR: bool>(
    form: &Form,
    o: &Operands,
    op: impl Fn(&mut Environment, &Form, u64, u64) -> u64,
) -> Outcome {
    if SCALAR {
        scalar::<F>(form, o, |env| op(env, form, bits::<F>(&o.a, 0), bits::<F>(&o.b, 0)))
    } else {
        packed::<F>(form, o, |env, n| op(env, form, bits::<F>(&o.a, n), bits::<F>(&o.b, n)))
    }
}

/// Binds arithmetic.
pub fn bind(i: &Instruction) -> Option<Body> {
    [bind_binary, bind_unary, compared, bind_fused].iter().find_map(|bind| bind(i.mnemonic()))
}

fn bind_binary(mnemonic: Mnemonic) -> Option<Body> {
    binary! { mnemonic;
        Vaddph Vaddps Vaddpd Vaddsh Vaddss Vaddsd => add,
        Vsubph Vsubps Vsubpd Vsubsh Vsubss Vsubsd => subtract,
        Vmulph Vmulps Vmulpd Vmulsh Vmulss Vmulsd => multiply,
        Vdivph Vdivps Vdivpd Vdivsh Vdivss Vdivsd => divide,
        Vminph Vminps Vminpd Vminsh Vminss Vminsd => minimum,
        Vmaxph Vmaxps Vmaxpd Vmaxsh Vmaxss Vmaxsd => maximum,
    }
}

fn bind_unary(mnemonic: Mnemonic) -> Option<Body> {
    unary! { mnemonic;
        Vsqrtph Vsqrtps Vsqrtpd Vsqrtsh Vsqrtss Vsqrtsd => square_root,
    }
}

/// Binds comparisons into an opmask and into RFLAGS.
fn compared(mnemonic: Mnemonic) -> Option<Body> {
    Some(match mnemonic {
        Vcmpph => to_mask::<Half, false>,
        Vcmpps => to_mask::<Single, false>,
        Vcmppd => to_mask::<Double, false>,
        Vcmpsh => to_mask::<Half, true>,
        Vcmpss => to_mask::<Single, true>,
        Vcmpsd => to_mask::<Double, true>,
        Vcomish => to_flags::<Half, true>,
        Vcomiss => to_flags::<Single, true>,
        Vcomisd => to_flags::<Double, true>,
        Vucomish => to_flags::<Half, false>,
        Vucomiss => to_flags::<Single, false>,
        Vucomisd => to_flags::<Double, false>,
        _ => return None,
    })
}

/// Predicates of VCMP: a bit each for less, equal, greater and unordered operands, for which the predicate is true. The
/// predicates from 16 on repeat these with the opposite signalling of QNaNs.
const PREDICATES: [u8; 16] = [
    0b0010, 0b0001, 0b0011, 0b1000, 0b1101, 0b1110, 0b1100, 0b0111, //
    0b1010, 0b1001, 0b1011, 0b0000, 0b0101, 0b0110, 0b0100, 0b1111,
];

/// Predicates below 16 for which a QNaN is invalid: bit n for predicate n.
const SIGNALLING: u16 = 0b0110_0110_0110_0110;

/// Returns the bit of a relation in [`PREDICATES`].
fn relation(order: Option<Ordering>) -> u32 {
    match order {
        Some(Ordering::Less) => 0,
        Some(Ordering::Equal) => 1,
        Some(Ordering::Greater) => 2,
        None => 3,
    }
}

fn to_mask<F: Format, const SCALAR: bool>(form: &Form, o: &Operands) -> Outcome {
    let count = if SCALAR { 1 } else { form.length / F::Bits::SIZE };
    let predicate = form.imm & 15;
    let signalling = (SIGNALLING >> predicate & 1 != 0) != (form.imm & 16 != 0);
    let mut env = Environment::new(form, o.mxcsr);
    let mut k = 0;
    for n in (0..count).filter(|n| o.mask >> n & 1 != 0) {
        let order = compare::<F>(&mut env, signalling, bits::<F>(&o.a, n), bits::<F>(&o.b, n));
        k |= u64::from(PREDICATES[usize::from(predicate)] >> relation(order) & 1) << n;
    }
    Outcome { mxcsr_flags: env.raised(form), ..Outcome::mask(k) }
}

/// Compares and sets ZF, PF and CF; the first source is the first operand.
fn to_flags<F: Format, const SIGNALLING: bool>(form: &Form, o: &Operands) -> Outcome {
    let mut env = Environment::new(form, o.mxcsr);
    let order = compare::<F>(&mut env, SIGNALLING, bits::<F>(&o.dest, 0), bits::<F>(&o.a, 0));
    let rflags = [0x01, 0x40, 0x00, 0x45][relation(order) as usize];
    Outcome { mxcsr_flags: env.raised(form), rflags, ..Outcome::of([0; 64]) }
}

/// Sign of the addend of a fused operation, by the parity of the element.
const PLUS: u8 = 0;
const MINUS: u8 = 1;
const MINUS_PLUS: u8 = 2;
const PLUS_MINUS: u8 = 3;

/// Computes a fused operation; `ORDER` selects the operands that are multiplied.
fn fuse<F: Format, const ORDER: u32, const NEGATE: bool, const ADDEND: u8, const SCALAR: bool>(
    form: &Form,
    o: &Operands,
) -> Outcome {
    let compute = |env: &mut Environment, n: usize| {
        let [d, a, b] = [&o.dest, &o.a, &o.b].map(|vector| bits::<F>(vector, n));
        let operands = match ORDER {
            132 => [d, b, a],
            213 => [a, d, b],
            _ => [a, b, d],
        };
        let minus = match ADDEND {
            PLUS => false,
            MINUS => true,
            MINUS_PLUS => n & 1 == 0,
            _ => n & 1 != 0,
        };
        fused::<F>(env, operands, NEGATE, minus)
    };
    if SCALAR {
        // The other elements are those of the first operand, which is also a source.
        let kept = Operands { a: o.dest, ..*o };
        scalar::<F>(form, &kept, |env| compute(env, 0))
    } else {
        packed::<F>(form, o, compute)
    }
}

/// Creates bodies for fused operations: three orders, three formats, packed and scalar.
macro_rules! fused_table {
    ($mnemonic:expr; $($order:literal $negate:literal $addend:ident:
        $ph:ident $ps:ident $pd:ident $($sh:ident $ss:ident $sd:ident)?,)*) => {
        match $mnemonic {
            $(
                $ph => Some(fuse::<Half, $order, $negate, $addend, false> as Body),
                $ps => Some(fuse::<Single, $order, $negate, $addend, false>),
                $pd => Some(fuse::<Double, $order, $negate, $addend, false>),
                $(
                    $sh => Some(fuse::<Half, $order, $negate, $addend, true>),
                    $ss => Some(fuse::<Single, $order, $negate, $addend, true>),
                    $sd => Some(fuse::<Double, $order, $negate, $addend, true>),
                )?
            )*
            _ => None,
        }
    };
}

fn bind_fused(mnemonic: Mnemonic) -> Option<Body> {
    fused_table! { mnemonic;
        132 false PLUS: Vfmadd132ph Vfmadd132ps Vfmadd132pd Vfmadd132sh Vfmadd132ss Vfmadd132sd,
        213 false PLUS: Vfmadd213ph Vfmadd213ps Vfmadd213pd Vfmadd213sh Vfmadd213ss Vfmadd213sd,
        231 false PLUS: Vfmadd231ph Vfmadd231ps Vfmadd231pd Vfmadd231sh Vfmadd231ss Vfmadd231sd,
        132 false MINUS: Vfmsub132ph Vfmsub132ps Vfmsub132pd Vfmsub132sh Vfmsub132ss Vfmsub132sd,
        213 false MINUS: Vfmsub213ph Vfmsub213ps Vfmsub213pd Vfmsub213sh Vfmsub213ss Vfmsub213sd,
        231 false MINUS: Vfmsub231ph Vfmsub231ps Vfmsub231pd Vfmsub231sh Vfmsub231ss Vfmsub231sd,
        132 true PLUS: Vfnmadd132ph Vfnmadd132ps Vfnmadd132pd Vfnmadd132sh Vfnmadd132ss Vfnmadd132sd,
        213 true PLUS: Vfnmadd213ph Vfnmadd213ps Vfnmadd213pd Vfnmadd213sh Vfnmadd213ss Vfnmadd213sd,
        231 true PLUS: Vfnmadd231ph Vfnmadd231ps Vfnmadd231pd Vfnmadd231sh Vfnmadd231ss Vfnmadd231sd,
        132 true MINUS: Vfnmsub132ph Vfnmsub132ps Vfnmsub132pd Vfnmsub132sh Vfnmsub132ss Vfnmsub132sd,
        213 true MINUS: Vfnmsub213ph Vfnmsub213ps Vfnmsub213pd Vfnmsub213sh Vfnmsub213ss Vfnmsub213sd,
        231 true MINUS: Vfnmsub231ph Vfnmsub231ps Vfnmsub231pd Vfnmsub231sh Vfnmsub231ss Vfnmsub231sd,
        132 false MINUS_PLUS: Vfmaddsub132ph Vfmaddsub132ps Vfmaddsub132pd,
        213 false MINUS_PLUS: Vfmaddsub213ph Vfmaddsub213ps Vfmaddsub213pd,
        231 false MINUS_PLUS: Vfmaddsub231ph Vfmaddsub231ps Vfmaddsub231pd,
        132 false PLUS_MINUS: Vfmsubadd132ph Vfmsubadd132ps Vfmsubadd132pd,
        213 false PLUS_MINUS: Vfmsubadd213ph Vfmsubadd213ps Vfmsubadd213pd,
        231 false PLUS_MINUS: Vfmsubadd231ph Vfmsubadd231ps Vfmsubadd231pd,
    }
}
