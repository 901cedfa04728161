//! Work of two threads: the parts of a snapshot do not depend on each other.

use std::thread::{Builder, scope};

/// Returns the results of two functions. Another thread calls the first one at the same time, if there can be one.
pub fn both<A: Send, B>(first: impl Fn() -> A + Sync, second: impl FnOnce() -> B) -> (A, B) {
    scope(|scope| match Builder::new().spawn_scoped(scope, &first) {
        Ok(other) => {
            let second = second();
            match other.join() {
                Ok(first) => (first, second),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Err(_) => (first(), second()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_results_come_back() {
        let text = "first".to_owned();
        assert_eq!(both(|| text.len(), || text.clone()), (5, "first".to_owned()));
    }
}
