//! The x87 unit.
//!
//! With CR0.NE = 0 a pending exception does not stop an instruction: hardware would assert FERR#, which is not
//! connected on this board.

mod arithmetic;
mod compare;
mod environment;
mod load;
pub mod stack;
mod store;
mod transcendental;

use crate::exec::x87::stack::bound;
use crate::f80::host::{Add, Div, DivR, Mul, Sub, SubR};
use crate::f80::{Rounding, host, remainder, transcendental as f};

use crate::row::{Row, Treatment};
use iced_x86::Mnemonic::*;
use ledger::Class::{X87, X87Slow};

/// Treatment of instructions that compute, or load a value.
const READS: Treatment = Treatment::X87 { notes: true, writes: false };
/// Treatment of instructions that store a value.
const WRITES: Treatment = Treatment::X87 { notes: true, writes: true };
/// Treatment of instructions that set the state of the unit.
const CONTROLS: Treatment = Treatment::X87 { notes: false, writes: false };
/// Treatment of instructions that store the state of the unit.
const STORES_CONTROL: Treatment = Treatment::X87 { notes: false, writes: true };

/// Instruction table rows of the x87 unit.
pub static ROWS: &[Row] = &[
    Row::new(Fld, X87, load::fld).treated(READS),
    Row::new(Fild, X87, load::fild).treated(READS),
    Row::new(Fbld, X87Slow, |i, op| bound(i, op, load::fbld)),
    Row::new(Fld1, X87, |i, op| bound(i, op, load::constant::<{ load::ONE }>)).treated(READS),
    Row::new(Fldl2t, X87, |i, op| bound(i, op, load::constant::<{ load::L2T }>)).treated(READS),
    Row::new(Fldl2e, X87, |i, op| bound(i, op, load::constant::<{ load::L2E }>)).treated(READS),
    Row::new(Fldpi, X87, |i, op| bound(i, op, load::constant::<{ load::PI }>)).treated(READS),
    Row::new(Fldlg2, X87, |i, op| bound(i, op, load::constant::<{ load::LG2 }>)).treated(READS),
    Row::new(Fldln2, X87, |i, op| bound(i, op, load::constant::<{ load::LN2 }>)).treated(READS),
    Row::new(Fldz, X87, |i, op| bound(i, op, load::constant::<{ load::ZERO }>)).treated(READS),
    Row::new(Fcmovb, X87, |i, op| bound(i, op, load::fcmov::<2>)).treated(READS),
    Row::new(Fcmovnb, X87, |i, op| bound(i, op, load::fcmov::<3>)).treated(READS),
    Row::new(Fcmove, X87, |i, op| bound(i, op, load::fcmov::<4>)).treated(READS),
    Row::new(Fcmovne, X87, |i, op| bound(i, op, load::fcmov::<5>)).treated(READS),
    Row::new(Fcmovbe, X87, |i, op| bound(i, op, load::fcmov::<6>)).treated(READS),
    Row::new(Fcmovnbe, X87, |i, op| bound(i, op, load::fcmov::<7>)).treated(READS),
    Row::new(Fcmovu, X87, |i, op| bound(i, op, load::fcmov::<10>)).treated(READS),
    Row::new(Fcmovnu, X87, |i, op| bound(i, op, load::fcmov::<11>)).treated(READS),
    Row::new(Fxch, X87, |i, op| bound(i, op, load::fxch)).treated(READS),
    Row::new(Fst, X87, store::fst::<false>).treated(WRITES),
    Row::new(Fstp, X87, store::fst::<true>).treated(WRITES),
    Row::new(Fstpnce, X87, |i, op| bound(i, op, store::fstpnce)),
    Row::new(Fist, X87, store::fist::<false>).treated(WRITES),
    Row::new(Fistp, X87, store::fist::<true>).treated(WRITES),
    Row::new(Fisttp, X87, store::fisttp).treated(WRITES),
    Row::new(Fbstp, X87Slow, |i, op| bound(i, op, store::fbstp)),
    Row::new(Fadd, X87, arithmetic::real::<Add>).treated(READS),
    Row::new(Fsub, X87, arithmetic::real::<Sub>).treated(READS),
    Row::new(Fsubr, X87, arithmetic::real::<SubR>).treated(READS),
    Row::new(Fmul, X87, arithmetic::real::<Mul>).treated(READS),
    Row::new(Fdiv, X87Slow, arithmetic::real::<Div>).treated(READS),
    Row::new(Fdivr, X87Slow, arithmetic::real::<DivR>).treated(READS),
    Row::new(Faddp, X87, |i, op| bound(i, op, arithmetic::registers::<Add, true>)).treated(READS),
    Row::new(Fsubp, X87, |i, op| bound(i, op, arithmetic::registers::<Sub, true>)).treated(READS),
    Row::new(Fsubrp, X87, |i, op| bound(i, op, arithmetic::registers::<SubR, true>)).treated(READS),
    Row::new(Fmulp, X87, |i, op| bound(i, op, arithmetic::registers::<Mul, true>)).treated(READS),
    Row::new(Fdivp, X87Slow, |i, op| bound(i, op, arithmetic::registers::<Div, true>)).treated(READS),
    Row::new(Fdivrp, X87Slow, |i, op| bound(i, op, arithmetic::registers::<DivR, true>)).treated(READS),
    Row::new(Fiadd, X87, arithmetic::integer::<Add>).treated(READS),
    Row::new(Fisub, X87, arithmetic::integer::<Sub>).treated(READS),
    Row::new(Fisubr, X87, arithmetic::integer::<SubR>).treated(READS),
    Row::new(Fimul, X87, arithmetic::integer::<Mul>).treated(READS),
    Row::new(Fidiv, X87Slow, arithmetic::integer::<Div>).treated(READS),
    Row::new(Fidivr, X87Slow, arithmetic::integer::<DivR>).treated(READS),
    Row::new(Fabs, X87, |i, op| bound(i, op, arithmetic::sign::<false>)).treated(READS),
    Row::new(Fchs, X87, |i, op| bound(i, op, arithmetic::sign::<true>)).treated(READS),
    Row::new(Fsqrt, X87Slow, |i, op| bound(i, op, |cpu, op| arithmetic::function(cpu, op, host::sqrt, 1)))
        .treated(READS),
    Row::new(Frndint, X87Slow, |i, op| bound(i, op, |cpu, op| arithmetic::function(cpu, op, host::round, 1)))
        .treated(READS),
    Row::new(Fscale, X87Slow, |i, op| bound(i, op, |cpu, op| arithmetic::function(cpu, op, host::scale, 2)))
        .treated(READS),
    Row::new(Fprem, X87Slow, |i, op| bound(i, op, |cpu, op| arithmetic::remainder(cpu, op, remainder::truncating))),
    Row::new(Fprem1, X87Slow, |i, op| bound(i, op, |cpu, op| arithmetic::remainder(cpu, op, remainder::nearest))),
    Row::new(Fxtract, X87Slow, |i, op| bound(i, op, arithmetic::fxtract)),
    Row::new(Fsin, X87Slow, |i, op| bound(i, op, |cpu, op| transcendental::circular(cpu, op, f::sine))),
    Row::new(Fcos, X87Slow, |i, op| bound(i, op, |cpu, op| transcendental::circular(cpu, op, f::cosine))),
    Row::new(Fsincos, X87Slow, |i, op| {
        bound(i, op, |cpu, op| transcendental::two_results(cpu, op, transcendental::fsincos))
    }),
    Row::new(Fptan, X87Slow, |i, op| {
        bound(i, op, |cpu, op| transcendental::two_results(cpu, op, transcendental::fptan))
    }),
    Row::new(Fpatan, X87Slow, |i, op| {
        bound(i, op, |cpu, op| transcendental::into_second(cpu, op, f::arctangent_of_quotient))
    }),
    Row::new(F2xm1, X87Slow, |i, op| bound(i, op, |cpu, op| arithmetic::function(cpu, op, f::power_minus_one, 1))),
    Row::new(Fyl2x, X87Slow, |i, op| bound(i, op, |cpu, op| transcendental::into_second(cpu, op, f::y_log2_x))),
    Row::new(Fyl2xp1, X87Slow, |i, op| {
        bound(i, op, |cpu, op| transcendental::into_second(cpu, op, f::y_log2_x_plus_1))
    }),
    Row::new(Fcom, X87, compare::fcom::<false, 0>).treated(READS),
    Row::new(Fcomp, X87, compare::fcom::<false, 1>).treated(READS),
    Row::new(Fcompp, X87, |i, op| bound(i, op, compare::pair::<false>)).treated(READS),
    Row::new(Fucom, X87, compare::fcom::<true, 0>).treated(READS),
    Row::new(Fucomp, X87, compare::fcom::<true, 1>).treated(READS),
    Row::new(Fucompp, X87, |i, op| bound(i, op, compare::pair::<true>)).treated(READS),
    Row::new(Ficom, X87, compare::ficom::<0>).treated(READS),
    Row::new(Ficomp, X87, compare::ficom::<1>).treated(READS),
    Row::new(Ftst, X87, |i, op| bound(i, op, compare::ftst)).treated(READS),
    Row::new(Fcomi, X87, |i, op| bound(i, op, compare::fcomi::<false, 0>)).treated(READS),
    Row::new(Fcomip, X87, |i, op| bound(i, op, compare::fcomi::<false, 1>)).treated(READS),
    Row::new(Fucomi, X87, |i, op| bound(i, op, compare::fcomi::<true, 0>)).treated(READS),
    Row::new(Fucomip, X87, |i, op| bound(i, op, compare::fcomi::<true, 1>)).treated(READS),
    Row::new(Fxam, X87, |i, op| bound(i, op, compare::fxam)).treated(READS),
    Row::new(Fincstp, X87, |i, op| bound(i, op, environment::rotate::<1>)).treated(READS),
    Row::new(Fdecstp, X87, |i, op| bound(i, op, environment::rotate::<7>)).treated(READS),
    Row::new(Ffree, X87, |i, op| bound(i, op, environment::ffree::<false>)).treated(READS),
    Row::new(Ffreep, X87, |i, op| bound(i, op, environment::ffree::<true>)).treated(READS),
    Row::new(Fnop, X87, |i, op| bound(i, op, environment::fnop)).treated(READS),
    Row::new(Fneni, X87, |_, _| Some(environment::ignored)),
    Row::new(Fndisi, X87, |_, _| Some(environment::ignored)),
    Row::new(Fnsetpm, X87, |_, _| Some(environment::ignored)),
    Row::new(Wait, X87, |_, _| Some(environment::wait)).treated(CONTROLS),
    Row::new(Fnclex, X87, |_, _| Some(environment::fnclex)).treated(CONTROLS),
    Row::new(Fninit, X87Slow, |_, _| Some(environment::fninit)),
    Row::new(Fldcw, X87, |_, _| Some(environment::fldcw)).treated(CONTROLS),
    Row::new(Fnstcw, X87, |_, _| Some(environment::fnstcw)).treated(STORES_CONTROL),
    Row::new(Fnstsw, X87, environment::fnstsw).treated(STORES_CONTROL),
    Row::new(Fldenv, X87Slow, |_, _| Some(environment::fldenv)),
    Row::new(Fnstenv, X87Slow, |_, _| Some(environment::fnstenv)),
    Row::new(Frstor, X87Slow, |_, _| Some(environment::frstor)),
    Row::new(Fnsave, X87Slow, |_, _| Some(environment::fnsave)),
];

/// Returns the current rounding mode.
fn rounding(cpu: &crate::state::Cpu) -> Rounding {
    Rounding::of(cpu.arch.x87.control)
}
