//! Samples at fixed intervals of virtual time, and an observer of crossings: both read the processor's state and change
//! none of it.
//!
//! A sample is taken at the first block boundary at or after its instant, before any event is delivered there. Both
//! tiers end blocks at the same addresses and times, so both take the same samples. The instants are the multiples of
//! the interval on the processor's own clock: the next one follows from the clock alone, and a restored processor
//! continues with it.

use crate::arch::attention;
use crate::observer::Charged;
use crate::state::Cpu;
use ledger::{Family, Kind, OriginId, Ticks};

impl Cpu {
    /// Takes a sample every `interval` ticks from now on; 0 disables samples.
    pub fn sample_every(&mut self, interval: Ticks) {
        self.wiring.sample_every = interval;
        self.skip_samples();
        self.engine.stop_at = 0;
    }

    /// Skips the samples up to now: a halted processor has executed nothing to be sampled.
    pub(crate) fn skip_samples(&mut self) {
        let passed = self.micro.clock.checked_div(self.wiring.sample_every);
        self.engine.sample_at =
            passed.map_or(Ticks::MAX, |passed| (passed + 1).saturating_mul(self.wiring.sample_every));
    }

    /// Returns true if at least one sample is due.
    #[inline]
    pub fn sample_due(&self) -> bool {
        // During an exit the registers are neither the guest's nor the hypervisor's.
        self.micro.clock >= self.engine.sample_at && self.arch.attention & attention::VM_EXIT == 0
    }

    /// Takes the samples that are due, and returns their number.
    pub fn take_samples(&mut self) -> u64 {
        let first = self.engine.sample_at;
        self.skip_samples();
        let passed = self.engine.sample_at.saturating_sub(first);
        passed.checked_div(self.wiring.sample_every).unwrap_or(0)
    }

    /// Charges halted time, in which no samples are taken.
    pub fn charge_halt(&mut self, count: u64, ticks: Ticks) {
        self.charge_ticks(Kind::new(Family::Halt, 0), count, ticks);
        self.stays_halted(ticks);
        self.skip_samples();
    }

    /// Returns the latest time at which the processor leaves its fast path.
    pub(crate) fn next_stop(&self) -> Ticks {
        self.engine.deadline.min(self.engine.sample_at).min(self.micro.tally.look_at)
    }

    /// Returns [`stop_at`](crate::engine::Engine::stop_at) without regard to samples and looks at performance counters: they
    /// split no repeated string instruction, since its restart has a price.
    pub(crate) fn stop_but_for_samples(&self) -> Ticks {
        let watched = self.engine.sample_at.min(self.micro.tally.look_at);
        if watched != Ticks::MAX && self.engine.stop_at == watched {
            self.engine.deadline.min(self.arch.vmx.timer_at)
        } else {
            self.engine.stop_at
        }
    }

    /// Reports a charge to the observer.
    #[cold]
    pub(crate) fn observe(&mut self, origin: OriginId, rip: u64, kind: Kind, count: u64, ticks: Ticks) {
        let halted = kind.family == Family::Halt;
        if (kind.family.is_crossing() || halted)
            && let Some(observer) = self.wiring.observer.clone()
        {
            observer.charged(self, Charged { origin, rip, kind, count, ticks });
        }
    }
}
