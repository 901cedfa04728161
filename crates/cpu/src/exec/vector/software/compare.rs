//! Comparisons and tests of integers into an opmask.

use super::lanes::test;
use super::{Body, Form, Operands, Outcome};
use iced_x86::{Instruction, Mnemonic::*};

/// Creates a body that tests elements of `a` and `b`.
macro_rules! tested {
    ($t:ty, |$x:ident, $y:ident| $e:expr) => {
        (|form: &Form, o: &Operands| test::<$t>(form, o, |$x, $y| $e)) as Body
    };
}

/// Creates a body that compares by the predicate in the immediate.
macro_rules! compared {
    ($t:ty) => {
        (|form: &Form, o: &Operands| test::<$t>(form, o, |x, y| holds(form.imm, x, y))) as Body
    };
}

/// Binds comparisons.
pub fn bind(i: &Instruction) -> Option<Body> {
    Some(match i.mnemonic() {
        Vpcmpeqb => tested!(u8, |x, y| x == y),
        Vpcmpeqw => tested!(u16, |x, y| x == y),
        Vpcmpeqd => tested!(u32, |x, y| x == y),
        Vpcmpeqq => tested!(u64, |x, y| x == y),
        Vpcmpgtb => tested!(i8, |x, y| x > y),
        Vpcmpgtw => tested!(i16, |x, y| x > y),
        Vpcmpgtd => tested!(i32, |x, y| x > y),
        Vpcmpgtq => tested!(i64, |x, y| x > y),
        Vpcmpb => compared!(i8),
        Vpcmpw => compared!(i16),
        Vpcmpd => compared!(i32),
        Vpcmpq => compared!(i64),
        Vpcmpub => compared!(u8),
        Vpcmpuw => compared!(u16),
        Vpcmpud => compared!(u32),
        Vpcmpuq => compared!(u64),
        Vptestmb => tested!(u8, |x, y| x & y != 0),
        Vptestmw => tested!(u16, |x, y| x & y != 0),
        Vptestmd => tested!(u32, |x, y| x & y != 0),
        Vptestmq => tested!(u64, |x, y| x & y != 0),
        Vptestnmb => tested!(u8, |x, y| x & y == 0),
        Vptestnmw => tested!(u16, |x, y| x & y == 0),
        Vptestnmd => tested!(u32, |x, y| x & y == 0),
        Vptestnmq => tested!(u64, |x, y| x & y == 0),
        // The sign bit of each element; there is no mask.
        Vpmovb2m => signs::<i8>(),
        Vpmovw2m => signs::<i16>(),
        Vpmovd2m => signs::<i32>(),
        Vpmovq2m => signs::<i64>(),
        _ => return None,
    })
}

/// Evaluates the predicates EQ, LT, LE, FALSE, NEQ, NLT, NLE, TRUE.
#[inline(always)]
fn holds<T: Ord>(predicate: u8, x: T, y: T) -> bool {
    let positive = match predicate & 3 {
        0 => x == y,
        1 => x < y,
        2 => x <= y,
        _ => false,
    };
    positive != (predicate & 4 != 0)
}

fn signs<T: super::lanes::Element + PartialOrd>() -> Body {
    |form, o| {
        let k = test::<T>(form, o, |x, _| x < T::default()).k;
        Outcome::mask(k)
    }
}
