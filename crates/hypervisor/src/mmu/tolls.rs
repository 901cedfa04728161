//! What the hypervisor's software did since the processor was last charged for it.

use ledger::Operation;
use serde::{Deserialize, Serialize};

/// How often each operation was done.
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
        // Prices multiply them.
        let fits = tolls.counts.iter().all(|count| *count <= u64::from(u32::MAX));
        fits.then_some(tolls).ok_or("an operation that was done too often")
    }
}

impl Tolls {
    /// Notes that an operation was done `count` times.
    pub fn add(&mut self, operation: Operation, count: u64) {
        self.counts[operation as usize] += count;
    }

    /// Whether nothing was done.
    pub fn is_empty(&self) -> bool {
        self.counts.iter().all(|count| *count == 0)
    }

    /// How often an operation was done.
    pub fn count(&self, operation: Operation) -> u64 {
        self.counts[operation as usize]
    }

    /// Hands what was done to `charge`, in the order of the operations' numbers, and forgets it.
    pub fn drain(&mut self, mut charge: impl FnMut(Operation, u64)) {
        for operation in Operation::ALL {
            let count = std::mem::take(&mut self.counts[operation as usize]);
            if count != 0 {
                charge(operation, count);
            }
        }
    }
}
