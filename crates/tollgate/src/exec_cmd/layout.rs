//! Layouts: the incidental conditions that a seed varies without changing the work of a run. They are the positions of code and data, the order of
//! free pages, the size of the environment, and the distance of the command's start from timer ticks
//! ([why they matter](../../../../docs/decisions/0024-layouts.md)).

use std::ffi::OsString;

/// Kernel parameters that shuffle the free pages, and make the kernel trust RDRAND as a source of random numbers.
pub const WORDS: &str = "page_alloc.shuffle=1 random.trust_cpu=on";
/// Name of the environment variable with a variable length.
const VARIABLE: &str = "TOLLGATE_LAYOUT";
/// Bound of the value's length: a page, which exceeds any alignment of the stack.
const LONGEST_VALUE: u64 = 4096;
/// Bound of the delay after a tick, in nanoseconds: the longest tick period of any kernel (CONFIG_HZ=100).
const PERIOD: u64 = 10_000_000;

/// A layout, drawn from a seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Seed of RDRAND, which decides the positions of kernel, programs and stacks.
    pub random: u64,
    /// Length of the additional variable's value.
    environment: u64,
    /// Delay of the command's start, in nanoseconds.
    pub delay: u64,
}

impl Layout {
    /// Draws the layout of a seed.
    pub fn new(seed: u64) -> Self {
        // splitmix64 gives good numbers from any seed.
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        Self { random: next(), environment: next() % LONGEST_VALUE, delay: next() % PERIOD }
    }

    /// Returns the additional variable.
    pub fn variable(&self) -> (OsString, OsString) {
        (VARIABLE.into(), "x".repeat(self.environment as usize).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_seed_has_its_layout() {
        assert_eq!(Layout::new(7), Layout::new(7));
        let layouts: Vec<Layout> = (0..100).map(Layout::new).collect();
        let parts: [fn(&Layout) -> u64; 3] = [|l| l.random, |l| l.environment, |l| l.delay];
        for of in parts {
            assert!(layouts.iter().map(of).collect::<BTreeSet<_>>().len() > 90);
        }
        assert!(layouts.iter().all(|l| l.environment < LONGEST_VALUE && l.delay < PERIOD));
    }
}
