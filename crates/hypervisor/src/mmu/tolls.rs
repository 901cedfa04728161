//! Operations of the hypervisor's software since the last charge to the processor.

use ledger::Operation;
use serde::{Deserialize, Serialize};

/// Count of each operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<u64>", into = "Vec<u64>")]
pub struct Tolls {
    counts: [u64; Operation::COUNT],
}

impl Default for Tolls {
    fn default() -> Self {
        Self { counts: [0; Operation::COUNT] }
    }
}

impl From<Tolls> for Vec<u64> {
    fn from(tolls: Tolls) -> Self {
        tolls.counts.to_vec()
    }
}

impl TryFrom<Vec<u64>> for Tolls {
    type Error = &'static str;

    fn try_from(counts: Vec<u64>) -> Result<Self, Self::Error> {
        let counts = counts.try_into().map_err(|_| "not one count for each operation")?;
        let tolls = Self { counts };
        // The counts are multiplied by prices.
        let fits = tolls.counts.iter().all(|count| *count <= u64::from(u32::MAX));
        fits.then_some(tolls).ok_or("an operation that was done too often")
    }
}

impl Tolls {
    /// Adds `count` executions of an operation.
    pub fn add(&mut self, operation: Operation, count: u64) {
        self.counts[operation as usize] += count;
    }

    /// Returns true if there are no operations.
    pub fn is_empty(&self) -> bool {
        self.counts.iter().all(|count| *count == 0)
    }

    /// Returns the count of an operation.
    pub fn count(&self, operation: Operation) -> u64 {
        self.counts[operation as usize]
    }

    /// Passes the counts to `charge`, in the order of the operations' numbers, and resets them.
    pub fn drain(&mut self, mut charge: impl FnMut(Operation, u64)) {
        for operation in Operation::ALL {
            let count = std::mem::take(&mut self.counts[operation as usize]);
            if count != 0 {
                charge(operation, count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_added_and_taken_once() {
        let mut tolls = Tolls::default();
        assert!(tolls.is_empty());
        tolls.add(Operation::Fault, 2);
        tolls.add(Operation::Fault, 1);
        tolls.add(Operation::TableWrite, 7);
        tolls.add(Operation::RmapAdd, 0);
        assert!(!tolls.is_empty());
        assert_eq!((tolls.count(Operation::Fault), tolls.count(Operation::RmapAdd)), (3, 0));
        let mut charged = Vec::new();
        tolls.drain(|operation, count| charged.push((operation, count)));
        let mut expected = [(Operation::Fault, 3), (Operation::TableWrite, 7)];
        expected.sort_by_key(|(operation, _)| *operation as usize);
        assert_eq!(charged, expected);
        assert!(tolls.is_empty());
    }

    #[test]
    fn saved_counts_are_one_for_each_operation_and_have_32_bits() {
        let most = u64::from(u32::MAX);
        let counts = |len: usize, last: u64| [vec![1; len - 1], vec![last]].concat();
        let saved = counts(Operation::COUNT, most);
        assert_eq!(Vec::from(Tolls::try_from(saved.clone()).unwrap()), saved);
        assert!(Tolls::try_from(counts(Operation::COUNT, most + 1)).is_err());
        assert!(Tolls::try_from(counts(Operation::COUNT + 1, 1)).is_err());
    }
}
