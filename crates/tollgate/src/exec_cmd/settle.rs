//! The wait before the command, until the guest's kernel is idle. Work that a kernel defers at boot would otherwise run beside the command, in one
//! run and not in another.

use ledger::Ticks;
use machine::Machine;

/// Longest wait for a kernel that is never idle, in seconds of virtual time.
const PATIENCE: u64 = 3;

/// Parameters of the wait.
#[derive(Clone, Copy, Debug)]
pub struct Settle {
    /// Required time in which only idle tasks run.
    quiet: Ticks,
    /// Longest wait.
    limit: Ticks,
    /// Further delay of the command's start, in nanoseconds.
    pub delay: u64,
}

/// The outcome of the wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The kernel became idle this long after the command was ready.
    After(Ticks),
    /// The kernel was never idle, or its tasks are unknown.
    Never,
}

impl Settle {
    /// Creates a wait for `quiet` ticks of idle tasks; `second` is a second of virtual time in ticks.
    pub fn new(quiet: Ticks, second: Ticks, delay: u64) -> Self {
        Self { quiet, limit: quiet.saturating_add(PATIENCE * second), delay }
    }

    /// Returns the outcome for a guest that has been ready since `ready`, or None while the wait goes on.
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
        // The guest was idle long before the command was ready.
        assert_eq!(settle.decide(55, 50, Some(20)), None);
        assert_eq!(settle.decide(60, 50, Some(20)), Some(Settled::After(0)));
        assert_eq!(settle.decide(360, 50, Some(355)), Some(Settled::Never));
        assert_eq!(settle.decide(360, 50, None), Some(Settled::Never));
    }
}
