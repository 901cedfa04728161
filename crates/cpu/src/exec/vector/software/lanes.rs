//! Vectors as elements: access, elementwise operations, and masking of results.

use super::{Body, Bytes, Form, Operands, Outcome};

/// An element of a vector.
pub trait Element: Copy + Default {
    /// Its size in bytes.
    const SIZE: usize;
    /// Returns the element with index `n`.
    fn get(vector: &Bytes, n: usize) -> Self;
    /// Writes the element with index `n`.
    fn put(self, vector: &mut Bytes, n: usize);
    /// Returns the low bits of a number.
    fn truncate(bits: u64) -> Self;
    /// Returns the element as 64 bits, sign-extended if it is signed.
    fn extend(self) -> u64;
}

macro_rules! element {
    ($($t:ty),*) => {$(
        impl Element for $t {
            const SIZE: usize = size_of::<$t>();

            #[inline(always)]
            fn get(vector: &Bytes, n: usize) -> Self {
                <$t>::from_le_bytes(vector.as_chunks().0[n])
            }

            #[inline(always)]
            fn put(self, vector: &mut Bytes, n: usize) {
                vector.as_chunks_mut().0[n] = self.to_le_bytes();
            }

            #[inline(always)]
            fn truncate(bits: u64) -> Self {
                bits as $t
            }

            #[inline(always)]
            fn extend(self) -> u64 {
                self as u64
            }
        }
    )*};
}

element!(u8, u16, u32, u64, u128, i8, i16, i32, i64);

/// Returns a mask of the low `count` bits.
pub fn low_bits(count: usize) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

/// Merges or zeroes the elements outside the mask; the destination has `count` elements, and the rest is zero.
#[inline(always)]
pub fn finish<T: Element>(form: &Form, o: &Operands, mut result: Bytes, count: usize) -> Outcome {
    let all = low_bits(count);
    if o.mask & all != all {
        for n in 0..count {
            if o.mask >> n & 1 == 0 {
                let value = if form.zeroing { T::default() } else { T::get(&o.dest, n) };
                value.put(&mut result, n);
            }
        }
    }
    result[count * T::SIZE..].fill(0);
    Outcome::of(result)
}

/// Returns the result of a scalar operation: element 0 under the mask, the rest of the 128 bits from the first source.
#[inline(always)]
pub fn finish_scalar<T: Element>(form: &Form, o: &Operands, value: T) -> Outcome {
    let mut result = [0; 64];
    result[..16].copy_from_slice(&o.a[..16]);
    let value = match (o.mask & 1, form.zeroing) {
        (1, _) => value,
        (_, true) => T::default(),
        (_, false) => T::get(&o.dest, 0),
    };
    value.put(&mut result, 0);
    Outcome::of(result)
}

/// Computes each element of the destination from its index.
#[inline(always)]
pub fn by_index<T: Element>(form: &Form, o: &Operands, f: impl Fn(usize) -> T) -> Outcome {
    let count = form.length / T::SIZE;
    let mut result = [0; 64];
    for n in 0..count {
        f(n).put(&mut result, n);
    }
    finish::<T>(form, o, result, count)
}

/// Computes each element from that of `a`; the wider of the two element types fills the vector length.
#[inline(always)]
pub fn map1<A: Element, R: Element>(form: &Form, o: &Operands, f: impl Fn(A) -> R) -> Outcome {
    let count = form.length / A::SIZE.max(R::SIZE);
    let mut result = [0; 64];
    for n in 0..count {
        f(A::get(&o.a, n)).put(&mut result, n);
    }
    finish::<R>(form, o, result, count)
}

/// Computes each element from those of `a` and `b`.
#[inline(always)]
pub fn map2<T: Element>(form: &Form, o: &Operands, f: impl Fn(T, T) -> T) -> Outcome {
    by_index(form, o, |n| f(T::get(&o.a, n), T::get(&o.b, n)))
}

/// Computes each element from those of the old destination, `a` and `b`.
#[inline(always)]
pub fn map3<T: Element>(form: &Form, o: &Operands, f: impl Fn(T, T, T) -> T) -> Outcome {
    by_index(form, o, |n| f(T::get(&o.dest, n), T::get(&o.a, n), T::get(&o.b, n)))
}

/// Computes a bit of the opmask for each element that the mask selects.
#[inline(always)]
pub fn test<T: Element>(form: &Form, o: &Operands, f: impl Fn(T, T) -> bool) -> Outcome {
    let mut k = 0;
    for n in 0..form.length / T::SIZE {
        k |= u64::from(f(T::get(&o.a, n), T::get(&o.b, n))) << n;
    }
    Outcome::mask(k & o.mask)
}

/// Creates a body that maps elements of `a`.
macro_rules! one {
    ($t:ty, |$x:ident| $e:expr) => {
        (|form: &Form, o: &Operands| map1(form, o, |$x: $t| $e)) as Body
    };
    ($t:ty, $form:ident, |$x:ident| $e:expr) => {
        (|$form: &Form, o: &Operands| map1($form, o, |$x: $t| $e)) as Body
    };
}

/// Creates a body that maps elements of `a` and `b`.
macro_rules! two {
    ($t:ty, |$x:ident, $y:ident| $e:expr) => {
        (|form: &Form, o: &Operands| map2::<$t>(form, o, |$x, $y| $e)) as Body
    };
    ($t:ty, $form:ident, |$x:ident, $y:ident| $e:expr) => {
        (|$form: &Form, o: &Operands| map2::<$t>($form, o, |$x, $y| $e)) as Body
    };
}

/// Creates a body that maps elements of the old destination, `a` and `b`.
macro_rules! three {
    ($t:ty, |$d:ident, $x:ident, $y:ident| $e:expr) => {
        (|form: &Form, o: &Operands| map3::<$t>(form, o, |$d, $x, $y| $e)) as Body
    };
    ($t:ty, $form:ident, |$d:ident, $x:ident, $y:ident| $e:expr) => {
        (|$form: &Form, o: &Operands| map3::<$t>($form, o, |$d, $x, $y| $e)) as Body
    };
}

/// Creates a body that computes an element from its index.
macro_rules! each {
    ($t:ty, |$form:ident, $o:ident, $n:ident| $e:expr) => {
        (|$form: &Form, $o: &Operands| by_index::<$t>($form, $o, |$n| $e)) as Body
    };
}

pub(super) use {each, one, three, two};

/// Returns element `n` of type `T` in `v`.
#[inline(always)]
pub fn at<T: Element>(v: &Bytes, n: usize) -> T {
    T::get(v, n)
}

/// Returns a body that copies the vector in elements.
pub fn moved<T: Element>() -> Body {
    |form, o| map1(form, o, |x: T| x)
}
