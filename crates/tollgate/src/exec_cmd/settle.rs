//! The wait before the command begins, until the kernel has nothing left to do: what a kernel puts off while it boots would otherwise run while the command does, in one
//! run and not in another.

use ledger::Ticks;
use machine::Machine;

/// A kernel that always has something to do is not waited for longer, in seconds of virtual time.
const PATIENCE: u64 = 3;

/// How long is waited.
#[derive(Clone, Copy, Debug)]
pub struct Settle {
    /// Until only idle tasks have run for so long.
    quiet: Ticks,
    /// No longer than this in all.
    limit: Ticks,
    /// By how much the command begins later, in nanoseconds.
    pub delay: u64,
}

/// How the wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// So long after the command's files were there, nothing was left to do.
    After(Ticks),
    /// There was something to do until the end, or the kernel's tasks are not known.
    Never,
}

impl Settle {
    /// A wait until only idle tasks have run for a time; `second` is one of virtual time.
    pub fn new(quiet: Ticks, second: Ticks, delay: u64) -> Self {
        Self { quiet, limit: quiet.saturating_add(PATIENCE * second), delay }
    }

    /// Whether a guest that has been ready since a time has settled now.
    pub fn look(&self, machine: &Machine, ready: Ticks) -> Option<Settled> {
        self.decide(machine.now(), ready, machine.vcpus.tasks.idle_since())
    }

    fn decide(&self, now: Ticks, ready: Ticks, idle: Option<Ticks>) -> Option<Settled> {
        let since = idle.map(|idle| idle.max(ready));
        if let Some(since) = since.filter(|since| now.saturating_sub(*since) >= self.quiet) {
            return Some(Settled::After(since - ready));
        }
        (now.saturating_sub(ready) >= self.limit).then_some(Settled::Never)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_has_settled_when_only_idle_tasks_have_run_for_a_while() {
        let settle = Settle::new(10, 100, 0);
        assert_eq!(settle.decide(60, 50, None), None);
        assert_eq!(settle.decide(60, 50, Some(51)), None);
        assert_eq!(settle.decide(61, 50, Some(51)), Some(Settled::After(1)));
        // It was idle long before it was ready.
        assert_eq!(settle.decide(55, 50, Some(20)), None);
        assert_eq!(settle.decide(60, 50, Some(20)), Some(Settled::After(0)));
        assert_eq!(settle.decide(360, 50, Some(355)), Some(Settled::Never));
        assert_eq!(settle.decide(360, 50, None), Some(Settled::Never));
    }
}
