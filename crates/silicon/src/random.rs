//! Repeatable random numbers.

/// A small, fast and repeatable source of random numbers (xorshift64*).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates the source of a seed; neighbouring seeds give unrelated sources.
    pub fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        // The first numbers are as small as the seed.
        for _ in 0..8 {
            random.next();
        }
        random
    }

    /// Creates the source of a path of numbers, such as (seed, form, index).
    pub fn of_path(path: &[u64]) -> Self {
        path.iter().fold(Self::new(0), |mut before, number| Self::new(before.next() ^ number))
    }

    /// Returns 64 random bits.
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "it has no end")]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `n`, which is small beside 2^31.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 16) % n
    }

    /// Returns true once in `n` times.
    #[inline]
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns true `percent` times of a hundred.
    #[inline]
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns one of these.
    #[inline]
    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    /// Returns the bytes of a seed.
    pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
        let mut random = Self::new(seed);
        (0..len).map(|_| (random.next() >> 56) as u8).collect()
    }
}
