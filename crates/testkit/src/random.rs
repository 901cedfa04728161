//! Repeatable random numbers.

/// A seeded source of random numbers (xoshiro256**): what it gives depends on its seed and on nothing else.
#[derive(Clone, Debug)]
pub struct Random([u64; 4]);

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Random {
    /// Creates the source of a seed; neighbouring seeds give unrelated sources.
    pub fn new(seed: u64) -> Self {
        Self::of_path(&[seed])
    }

    /// Creates the source of a path of numbers, such as (seed, form, index).
    pub fn of_path(path: &[u64]) -> Self {
        let mut state = 0;
        for &n in path {
            state = splitmix(&mut state) ^ n;
        }
        Self([splitmix(&mut state), splitmix(&mut state), splitmix(&mut state), splitmix(&mut state)])
    }

    /// Returns 64 random bits.
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "it has no end")]
    pub fn next(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Returns a number below `n`, which is not 0.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
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

    /// Returns an element of a list that is not empty.
    #[inline]
    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}
