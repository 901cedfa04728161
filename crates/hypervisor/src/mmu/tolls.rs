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
