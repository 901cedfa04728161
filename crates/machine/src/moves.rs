//! Moves of a machine's guest to other processors, for its ledger.

use ledger::{TICKS_PER_CYCLE, Ticks};
use serde::{Deserialize, Serialize};

/// Name of the ledger's fact.
pub const FACT: &str = "moved";
/// Largest number of moves, and of bytes of a name, in a file.
const MOST: usize = 1 << 10;

/// A move of the guest to another processor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// Name of the processor that it left.
    pub from: String,
    /// Name of the processor on which it went on.
    pub to: String,
    /// Virtual time.
    pub at: Ticks,
}

/// Returns true if moves, which may come from a file, are possible.
pub fn fit(moves: &[Move]) -> bool {
    moves.len() < MOST && moves.iter().all(|one| one.from.len().max(one.to.len()) < MOST)
}

/// Describes moves, for a ledger.
pub fn describe(moves: &[Move]) -> Option<String> {
    let one = |Move { from, to, at }: &Move| format!("{from} to {to} after {} cycles", at / TICKS_PER_CYCLE);
    let all: Vec<String> = moves.iter().map(one).collect();
    (!all.is_empty()).then(|| all.join(", "))
}
