//! Samples at fixed intervals of virtual time, and an observer of crossings: both look at the processor and change nothing of it.
//!
//! A sample is taken at the first block boundary at or after its instant, before any event is delivered there. Both tiers end
//! blocks at the same places and times, so both take the same samples. The instants are the multiples of the interval on the
//! processor's own clock: the next one follows from the clock alone, and a processor that is restored continues with it.

use crate::arch::attention;
use crate::state::Cpu;
use ledger::{Family, Kind, OriginId, Ticks};

/// A crossing, or time spent halted, that has been charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charged {
    /// Who is charged.
    pub origin: OriginId,
    /// The address of the instruction.
    pub rip: u64,
    /// The kind of the event.
    pub kind: Kind,
    /// How often it happened.
    pub count: u64,
    /// The price; the clock has moved by it already.
    pub ticks: Ticks,
}

/// Looks at a processor when a crossing is charged, and when it has been halted.
pub trait Observer {
    /// The registers are those of the instruction that causes the crossing, but for RIP, which may be that of the next one.
    fn charged(&self, cpu: &Cpu, charged: Charged);
}

impl Cpu {
    /// Takes samples every so many ticks from now on; 0: none.
    pub fn sample_every(&mut self, interval: Ticks) {
        self.wiring.sample_every = interval;
        self.skip_samples();
        self.engine.stop_at = 0;
    }

    /// Leaves out the samples up to now: a processor that has been halted has executed nothing to be sampled.
    pub fn skip_samples(&mut self) {
        let passed = self.micro.clock.checked_div(self.wiring.sample_every);
        self.engine.sample_at =
            passed.map_or(Ticks::MAX, |passed| (passed + 1).saturating_mul(self.wiring.sample_every));
    }

    /// Whether a sample is due, or several.
    #[inline]
    pub fn sample_due(&self) -> bool {
        // The registers are neither the guest's nor the hypervisor's while an exit is under way.
        self.micro.clock >= self.engine.sample_at && self.arch.attention & attention::VM_EXIT == 0
    }

    /// Takes the samples that are due, and says how many.
    pub fn take_samples(&mut self) -> u64 {
        let first = self.engine.sample_at;
        self.skip_samples();
        let passed = self.engine.sample_at.saturating_sub(first);
        passed.checked_div(self.wiring.sample_every).unwrap_or(0)
    }

    /// Charges time spent halted, in which no samples are taken.
    pub fn charge_halt(&mut self, count: u64, ticks: Ticks) {
        self.charge_ticks(Kind::new(Family::Halt, 0), count, ticks);
        self.skip_samples();
    }

    /// When the processor leaves its fast path at the latest.
    pub(crate) fn next_stop(&self) -> Ticks {
        self.engine.deadline.min(self.engine.sample_at)
    }

    /// [`stop_at`](crate::engine::Engine::stop_at) as it would be without samples: they split no repeated string instruction, since that begins
    /// anew, at a price.
    pub(crate) fn stop_but_for_samples(&self) -> Ticks {
        match self.engine.stop_at == self.engine.sample_at {
            true => self.engine.deadline.min(self.arch.vmx.timer_at),
            false => self.engine.stop_at,
        }
    }

    /// Tells the observer of a charge.
    #[cold]
    pub(crate) fn observe(&self, origin: OriginId, rip: u64, kind: Kind, count: u64, ticks: Ticks) {
        let halted = kind.family == Family::Halt;
        if (kind.family.is_crossing() || halted)
            && let Some(observer) = &self.wiring.observer
        {
            observer.charged(self, Charged { origin, rip, kind, count, ticks });
        }
    }
}
