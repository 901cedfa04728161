//! Pairs of a load and an access whose address is computed from what it has loaded.
//!
//! Which instructions depend on which is a property of the code, and is found there once ([`crate::dependence`]). A table has the answers,
//! by a hash of the two addresses. Like the tables of predictors, it does not notice that the code at an address has become another.

use serde::{Deserialize, Serialize};

/// Log2 of the number of pairs that are remembered.
const BITS: u32 = 14;
/// Factors by which two addresses become a hash: odd numbers whose bits have no pattern.
const FACTORS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f];

/// Pairs of instructions: the hash of each, with the answer in the lowest bit. An empty place has the hash 0.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Chains {
    pairs: Vec<u64>,
}

impl Default for Chains {
    fn default() -> Self {
        Self { pairs: vec![0; 1 << BITS] }
    }
}

/// Returns the hash of a load and an access, with 0 in the lowest bit, and its place in the table.
fn hash(load: u64, access: u64) -> (u64, usize) {
    let hash = load.wrapping_mul(FACTORS[0]).wrapping_add(access).wrapping_mul(FACTORS[1]);
    (hash & !1, (hash >> (64 - BITS)) as usize)
}

impl Chains {
    /// Returns true if a state, which may come from a file, is possible.
    pub fn fits(&self) -> bool {
        self.pairs.len() == 1 << BITS
    }

    /// Returns whether the address of an access depends on a load, if that is known.
    #[inline]
    pub fn find(&self, load: u64, access: u64) -> Option<bool> {
        let (hash, at) = hash(load, access);
        let pair = self.pairs[at];
        (pair & !1 == hash && hash != 0).then_some(pair & 1 != 0)
    }

    /// Remembers a pair, instead of another one.
    pub fn learn(&mut self, load: u64, access: u64, depends: bool) {
        let (hash, at) = hash(load, access);
        self.pairs[at] = hash | u64::from(depends);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_have_a_direction() {
        let mut chains = Chains::default();
        assert_eq!(chains.find(0, 0), None);
        chains.learn(1, 2, true);
        chains.learn(2, 1, false);
        let found = [(1, 2), (2, 1), (1, 1)].map(|(load, access)| chains.find(load, access));
        assert_eq!(found, [Some(true), Some(false), None]);
        assert!(chains.fits());
    }
}
