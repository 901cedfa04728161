//! What a seed varies of a run without changing what the run does: where code and data lie, the order of free pages, the size of the environment, and the distance of
//! the command's beginning from timer ticks. Each of these moves results ([why so](../../../../docs/decisions/0023-layouts.md)).

use std::ffi::OsString;

/// Words for the kernel's command line: the kernel draws the order of free pages, and takes RDRAND for a source of random numbers.
pub const WORDS: &str = "page_alloc.shuffle=1 random.trust_cpu=on";
/// The variable of the environment whose length varies.
const VARIABLE: &str = "TOLLGATE_LAYOUT";
/// Its value is shorter than this: a page, which is more than any alignment of the stack.
const LONGEST_VALUE: u64 = 4096;
/// The command begins less than this after a tick, in nanoseconds: the longest period between the ticks of any kernel (CONFIG_HZ=100).
const PERIOD: u64 = 10_000_000;

/// A layout, drawn from a seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Seed of what RDRAND returns: the places of kernel, programs and stacks follow from it.
    pub random: u64,
    /// Length of the additional variable's value.
    environment: u64,
    /// By how much the command begins later, in nanoseconds.
    pub delay: u64,
}

impl Layout {
    /// The layout of a seed.
    pub fn new(seed: u64) -> Self {
        // splitmix64, whose numbers are good from any seed on.
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        Self { random: next(), environment: next() % LONGEST_VALUE, delay: next() % PERIOD }
    }

    /// The additional variable.
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
        for of in [|l: &Layout| l.random, |l: &Layout| l.environment, |l: &Layout| l.delay] {
            assert!(layouts.iter().map(of).collect::<BTreeSet<_>>().len() > 90);
        }
        assert!(layouts.iter().all(|l| l.environment < LONGEST_VALUE && l.delay < PERIOD));
    }
}
