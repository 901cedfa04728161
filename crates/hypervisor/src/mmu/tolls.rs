//! What the hypervisor's software did since the processor was last charged for it.

use ledger::Operation;

/// How often each operation was done.
#[derive(Clone, Debug)]
pub struct Tolls {
    counts: [u64; Operation::COUNT],
}

impl Default for Tolls {
    fn default() -> Self {
        Self { counts: [0; Operation::COUNT] }
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
