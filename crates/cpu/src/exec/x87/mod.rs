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

use crate::table::Row;
use iced_x86::Mnemonic::*;
use ledger::Class::{X87, X87Slow};

/// Instruction table rows of the x87 unit.
pub static ROWS: &[Row] = &[
    Row::new(Fld, X87, load::fld),
    Row::new(Fild, X87, load::fild),
    Row::new(Fbld, X87Slow, |i, op| bound(i, op, load::fbld)),
    Row::new(Fld1, X87, |i, op| bound(i, op, load::constant::<{ load::ONE }>)),
    Row::new(Fldl2t, X87, |i, op| bound(i, op, load::constant::<{ load::L2T }>)),
    Row::new(Fldl2e, X87, |i, op| bound(i, op, load::constant::<{ load::L2E }>)),
    Row::new(Fldpi, X87, |i, op| bound(i, op, load::constant::<{ load::PI }>)),
    Row::new(Fldlg2, X87, |i, op| bound(i, op, load::constant::<{ load::LG2 }>)),
    Row::new(Fldln2, X87, |i, op| bound(i, op, load::constant::<{ load::LN2 }>)),
    Row::new(Fldz, X87, |i, op| bound(i, op, load::constant::<{ load::ZERO }>)),
    Row::new(Fcmovb, X87, |i, op| bound(i, op, load::fcmov::<2>)),
    Row::new(Fcmovnb, X87, |i, op| bound(i, op, load::fcmov::<3>)),
    Row::new(Fcmove, X87, |i, op| bound(i, op, load::fcmov::<4>)),
    Row::new(Fcmovne, X87, |i, op| bound(i, op, load::fcmov::<5>)),
    Row::new(Fcmovbe, X87, |i, op| bound(i, op, load::fcmov::<6>)),
    Row::new(Fcmovnbe, X87, |i, op| bound(i, op, load::fcmov::<7>)),
    Row::new(Fcmovu, X87, |i, op| bound(i, op, load::fcmov::<10>)),
    Row::new(Fcmovnu, X87, |i, op| bound(i, op, load::fcmov::<11>)),
    Row::new(Fxch, X87, |i, op| bound(i, op, load::fxch)),
    Row::new(Fst, X87, store::fst::<false>),
    Row::new(Fstp, X87, store::fst::<true>),
    Row::new(Fstpnce, X87, |i, op| bound(i, op, store::fstpnce)),
    Row::new(Fist, X87, store::fist::<false>),
    Row::new(Fistp, X87, store::fist::<true>),
    Row::new(Fisttp, X87, store::fisttp),
    Row::new(Fbstp, X87Slow, |i, op| bound(i, op, store::fbstp)),
    Row::new(Fadd, X87, arithmetic::real::<Add>),
    Row::new(Fsub, X87, arithmetic::real::<Sub>),
    Row::new(Fsubr, X87, arithmetic::real::<SubR>),
    Row::new(Fmul, X87, arithmetic::real::<Mul>),
    Row::new(Fdiv, X87Slow, arithmetic::real::<Div>),
    Row::new(Fdivr, X87Slow, arithmetic::real::<DivR>),
    Row::new(Faddp, X87, |i, op| bound(i, op, arithmetic::registers::<Add, true>)),
    Row::new(Fsubp, X87, |i, op| bound(i, op, arithmetic::registers::<Sub, true>)),
    Row::new(Fsubrp, X87, |i, op| bound(i, op, arithmetic::registers::<SubR, true>)),
    Row::new(Fmulp, X87, |i, op| bound(i, op, arithmetic::registers::<Mul, true>)),
    Row::new(Fdivp, X87Slow, |i, op| bound(i, op, arithmetic::registers::<Div, true>)),
    Row::new(Fdivrp, X87Slow, |i, op| bound(i, op, arithmetic::registers::<DivR, true>)),
    Row::new(Fiadd, X87, arithmetic::integer::<Add>),
    Row::new(Fisub, X87, arithmetic::integer::<Sub>),
    Row::new(Fisubr, X87, arithmetic::integer::<SubR>),
    Row::new(Fimul, X87, arithmetic::integer::<Mul>),
    Row::new(Fidiv, X87Slow, arithmetic::integer::<Div>),
    Row::new(Fidivr, X87Slow, arithmetic::integer::<DivR>),
    Row::new(Fabs, X87, |i, op| bound(i, op, arithmetic::sign::<false>)),
    Row::new(Fchs, X87, |i, op| bound(i, op, arithmetic::sign::<true>)),
    Row::new(Fsqrt, X87Slow, |i, op| bound(i, op, |cpu, op| arithmetic::function(cpu, op, host::sqrt, 1))),
    Row::new(Frndint, X87Slow, |i, op| bound(i, op, |cpu, op| arithmetic::function(cpu, op, host::round, 1))),
    Row::new(Fscale, X87Slow, |i, op| bound(i, op, |cpu, op| arithmetic::function(cpu, op, host::scale, 2))),
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
    Row::new(Fcom, X87, compare::fcom::<false, 0>),
    Row::new(Fcomp, X87, compare::fcom::<false, 1>),
    Row::new(Fcompp, X87, |i, op| bound(i, op, compare::pair::<false>)),
    Row::new(Fucom, X87, compare::fcom::<true, 0>),
    Row::new(Fucomp, X87, compare::fcom::<true, 1>),
    Row::new(Fucompp, X87, |i, op| bound(i, op, compare::pair::<true>)),
    Row::new(Ficom, X87, compare::ficom::<0>),
    Row::new(Ficomp, X87, compare::ficom::<1>),
    Row::new(Ftst, X87, |i, op| bound(i, op, compare::ftst)),
    Row::new(Fcomi, X87, |i, op| bound(i, op, compare::fcomi::<false, 0>)),
    Row::new(Fcomip, X87, |i, op| bound(i, op, compare::fcomi::<false, 1>)),
    Row::new(Fucomi, X87, |i, op| bound(i, op, compare::fcomi::<true, 0>)),
    Row::new(Fucomip, X87, |i, op| bound(i, op, compare::fcomi::<true, 1>)),
    Row::new(Fxam, X87, |i, op| bound(i, op, compare::fxam)),
    Row::new(Fincstp, X87, |i, op| bound(i, op, environment::rotate::<1>)),
    Row::new(Fdecstp, X87, |i, op| bound(i, op, environment::rotate::<7>)),
    Row::new(Ffree, X87, |i, op| bound(i, op, environment::ffree::<false>)),
    Row::new(Ffreep, X87, |i, op| bound(i, op, environment::ffree::<true>)),
    Row::new(Fnop, X87, |i, op| bound(i, op, environment::fnop)),
    Row::new(Fneni, X87, |_, _| Some(environment::ignored)),
    Row::new(Fndisi, X87, |_, _| Some(environment::ignored)),
    Row::new(Fnsetpm, X87, |_, _| Some(environment::ignored)),
    Row::new(Wait, X87, |_, _| Some(environment::wait)),
    Row::new(Fnclex, X87, |_, _| Some(environment::fnclex)),
    Row::new(Fninit, X87Slow, |_, _| Some(environment::fninit)),
    Row::new(Fldcw, X87, |_, _| Some(environment::fldcw)),
    Row::new(Fnstcw, X87, |_, _| Some(environment::fnstcw)),
    Row::new(Fnstsw, X87, environment::fnstsw),
    Row::new(Fldenv, X87Slow, |_, _| Some(environment::fldenv)),
    Row::new(Fnstenv, X87Slow, |_, _| Some(environment::fnstenv)),
    Row::new(Frstor, X87Slow, |_, _| Some(environment::frstor)),
    Row::new(Fnsave, X87Slow, |_, _| Some(environment::fnsave)),
];

/// Returns the current rounding mode.
fn rounding(cpu: &crate::state::Cpu) -> Rounding {
    Rounding::of(cpu.arch.x87.control)
}
