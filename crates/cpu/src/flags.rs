//! Lazily evaluated arithmetic flags.
//!
//! An arithmetic instruction stores its result and its carry-out vector; the flags are computed when they are read.
//! `result` is sign-extended to 64 bits from the operand size: ZF is `result == 0`, SF its sign, PF the parity of its
//! low byte. `aux` contains CF in bit 31, CF xor OF in bit 30, AF in bit 3, in bits 15:8 a value that is xored into the
//! byte for the parity, and in bit 0 a correction to SF. The corrections are nonzero only if flags are loaded directly
//! (POPF, SAHF, IRET), because no single result may give these flags.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use x86::flags::*;
use zerocopy::{FromBytes, IntoBytes};

const CARRY: u32 = 1 << 31;
const PARTIAL: u32 = 1 << 30;

/// Lazily evaluated arithmetic flags.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lazy {
    result: u64,
    aux: u32,
}

impl PartialEq for Lazy {
    /// Returns true if the flags are equal, independently of their representation.
    fn eq(&self, other: &Self) -> bool {
        self.image() == other.image()
    }
}

impl Serialize for Lazy {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.image().serialize(to)
    }
}

impl<'d> Deserialize<'d> for Lazy {
    fn deserialize<D: Deserializer<'d>>(from: D) -> Result<Self, D::Error> {
        let mut flags = Self::default();
        flags.load(u64::deserialize(from)?);
        Ok(flags)
    }
}

mod sealed {
    /// Types that may implement [`Int`](super::Int): accesses to guest memory trust its size.
    pub trait Sealed {}
}

/// An operand size, over which integer instructions are generic.
///
/// Guest memory is accessed as these types, in [`Int::SIZE`] bytes: no other module can add one.
pub trait Int: sealed::Sealed + Copy + Eq + FromBytes + IntoBytes + 'static {
    /// Size in bytes.
    const SIZE: u8;
    /// Size in bits.
    const BITS: u32 = Self::SIZE as u32 * 8;
    /// Mask of all bits of this size.
    const MASK: u64;
    /// Zero-extends.
    fn to_u64(self) -> u64;
    /// Sign-extends.
    fn to_i64(self) -> i64;
    /// Truncates.
    fn from_u64(value: u64) -> Self;
}

macro_rules! int {
    ($t:ty, $s:ty) => {
        impl sealed::Sealed for $t {}
        impl Int for $t {
            const SIZE: u8 = size_of::<$t>() as u8;
            const MASK: u64 = <$t>::MAX as u64;
            #[inline(always)]
            fn to_u64(self) -> u64 {
                self as u64
            }
            #[inline(always)]
            fn to_i64(self) -> i64 {
                self as $s as i64
            }
            #[inline(always)]
            fn from_u64(value: u64) -> Self {
                value as $t
            }
        }
    };
}
int!(u8, i8);
int!(u16, i16);
int!(u32, i32);
int!(u64, i64);

/// Moves the top two bits of a carry-out vector and its bit 3 to their positions in `aux`.
#[inline(always)]
fn fold<T: Int>(carries: u64) -> u32 {
    let top = match T::SIZE {
        1 => (carries << 24) as u32,
        2 => (carries << 16) as u32,
        4 => carries as u32,
        _ => (carries >> 32) as u32,
    };
    (top & (CARRY | PARTIAL)) | (carries as u32 & 8)
}

impl Lazy {
    /// Sets the flags after `result = a + b (+ carry)`.
    #[inline(always)]
    pub fn set_add<T: Int>(&mut self, a: T, b: T, result: T) {
        let (a, b, r) = (a.to_u64(), b.to_u64(), result.to_u64());
        self.result = result.to_i64() as u64;
        self.aux = fold::<T>((a & b) | ((a | b) & !r));
    }

    /// Sets the flags after `result = a - b (- borrow)`.
    #[inline(always)]
    pub fn set_sub<T: Int>(&mut self, a: T, b: T, result: T) {
        let (a, b, r) = (a.to_u64(), b.to_u64(), result.to_u64());
        self.result = result.to_i64() as u64;
        self.aux = fold::<T>((!a & b) | (!(a ^ b) & r));
    }

    /// Sets the flags after AND, OR, XOR, TEST: CF, OF and AF are clear.
    #[inline(always)]
    pub fn set_logic<T: Int>(&mut self, result: T) {
        self.result = result.to_i64() as u64;
        self.aux = 0;
    }

    /// Sets the flags after a result with known CF, OF and AF.
    #[inline(always)]
    pub fn set_result<T: Int>(&mut self, result: T, cf: bool, of: bool, af: bool) {
        self.result = result.to_i64() as u64;
        self.aux = (u32::from(cf) << 31) | (u32::from(cf ^ of) << 30) | (u32::from(af) << 3);
    }

    /// Sets the flags after a multiplication whose low half is `low`: CF and OF are set if the product overflows it,
    /// and ZF is always clear, as on Intel processors (the manual leaves it undefined).
    #[inline(always)]
    pub fn set_product<T: Int>(&mut self, low: T, overflow: bool) {
        let low = low.to_i64() as u64;
        // A nonzero value with the sign and parity of zero.
        self.result = if low == 0 { 0x100 } else { low };
        self.aux = u32::from(overflow) << 31;
    }

    /// Clears PF; the other flags are unchanged.
    #[inline(always)]
    pub fn clear_pf(&mut self) {
        self.aux ^= u32::from(self.pf()) << 8;
    }

    /// Sets CF to `cf`; the other flags are unchanged.
    #[inline(always)]
    pub fn set_cf(&mut self, cf: bool) {
        let of = self.of();
        self.aux = (self.aux & !(CARRY | PARTIAL)) | (u32::from(cf) << 31) | (u32::from(cf ^ of) << 30);
    }

    /// Sets CF and OF; the other flags are unchanged.
    #[inline(always)]
    pub fn set_cf_of(&mut self, cf: bool, of: bool) {
        self.aux = (self.aux & !(CARRY | PARTIAL)) | (u32::from(cf) << 31) | (u32::from(cf ^ of) << 30);
    }

    /// Sets ZF to `zf`; the other flags are unchanged.
    pub fn set_zf(&mut self, zf: bool) {
        let image = self.image();
        self.load(if zf { image | ZF } else { image & !ZF });
    }

    /// Returns CF.
    #[inline(always)]
    pub fn cf(&self) -> bool {
        self.aux & CARRY != 0
    }

    /// Returns OF.
    #[inline(always)]
    pub fn of(&self) -> bool {
        (self.aux ^ (self.aux << 1)) & CARRY != 0
    }

    /// Returns ZF.
    #[inline(always)]
    pub fn zf(&self) -> bool {
        self.result == 0
    }

    /// Returns SF.
    #[inline(always)]
    pub fn sf(&self) -> bool {
        (self.result >> 63) as u32 ^ (self.aux & 1) != 0
    }

    /// Returns PF.
    #[inline(always)]
    pub fn pf(&self) -> bool {
        ((self.result as u8) ^ (self.aux >> 8) as u8).count_ones() & 1 == 0
    }

    /// Returns AF.
    #[inline(always)]
    pub fn af(&self) -> bool {
        self.aux & 8 != 0
    }

    /// Returns the six flags at their positions in RFLAGS.
    #[inline]
    pub fn image(&self) -> u64 {
        u64::from(self.cf())
            | u64::from(self.pf()) << 2
            | u64::from(self.af()) << 4
            | u64::from(self.zf()) << 6
            | u64::from(self.sf()) << 7
            | u64::from(self.of()) << 11
    }

    /// Loads the six flags from an RFLAGS image.
    #[inline]
    pub fn load(&mut self, image: u64) {
        let (cf, of) = (image & CF != 0, image & OF != 0);
        // A zero result gives ZF = 1, a small positive one ZF = 0; parity and sign are then corrected.
        self.result = u64::from(image & ZF == 0);
        let parity_even = self.result == 0;
        let flip_parity = parity_even != (image & PF != 0);
        self.aux = (u32::from(cf) << 31)
            | (u32::from(cf ^ of) << 30)
            | (u32::from(flip_parity) << 8)
            | (u32::from(image & AF != 0) << 3)
            | u32::from(image & SF != 0);
    }

    /// Returns true if condition `cc` (low four bits of Jcc's opcode) holds.
    #[inline(always)]
    pub fn condition(&self, cc: u8) -> bool {
        let holds = match (cc >> 1) & 7 {
            0 => self.of(),
            1 => self.cf(),
            2 => self.zf(),
            3 => self.cf() || self.zf(),
            4 => self.sf(),
            5 => self.pf(),
            6 => self.sf() != self.of(),
            _ => self.zf() || (self.sf() != self.of()),
        };
        holds ^ (cc & 1 != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_image_survives_load() {
        for bits in 0..64u64 {
            let image =
                (bits & 1) | (bits & 2) << 1 | (bits & 4) << 2 | (bits & 8) << 3 | (bits & 16) << 3 | (bits & 32) << 6;
            let mut lazy = Lazy::default();
            lazy.load(image);
            assert_eq!(lazy.image(), image);
        }
    }

    #[test]
    fn byte_arithmetic_matches_wide_arithmetic() {
        for a in 0..=255u8 {
            for b in 0..=255u8 {
                let mut lazy = Lazy::default();
                lazy.set_sub(a, b, a.wrapping_sub(b));
                assert_eq!(lazy.cf(), a < b);
                assert_eq!(lazy.of(), (a as i8).checked_sub(b as i8).is_none());
                assert_eq!(lazy.af(), a & 15 < b & 15);
                lazy.set_add(a, b, a.wrapping_add(b));
                assert_eq!(lazy.cf(), a.checked_add(b).is_none());
                assert_eq!(lazy.of(), (a as i8).checked_add(b as i8).is_none());
                assert_eq!(lazy.af(), (a & 15) + (b & 15) > 15);
            }
        }
    }
}
