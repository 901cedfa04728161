//! Performance monitoring: counters of what a processor does, for its software.
//!
//! Nothing is counted twice. A counter is a sum of the charges that the ledger gets: of events, of blocks by the number of
//! their executions, of what translated code has counted. While any counter counts, a processor also sums its charges up
//! for kernel and user code (`tally`), and before software reads or changes a register, the sums are completed and given
//! to the counters that have counted since the last time. So counters cost nothing between two such moments, and both tiers
//! count the same, because they charge the same.
//!
//! An instruction that accesses a register needs the executions of all blocks before it, which no handler of an
//! instruction can reach: it stops with `Cause::Counters`, and restarts alone after the counters
//! have been completed.
//!
//! **Overflows.** The counters are looked at when one of them may overflow that raises an interrupt: after the least time
//! that its remaining events take. The time of the look follows from the counters and the clock alone, and the look is at
//! a boundary of blocks, as all events are. For cycles the estimate is exact, unless the counter counts user or kernel code
//! alone: then the counters are looked at again.

pub(crate) mod layout;
mod msr;
pub(crate) mod registers;

pub use layout::Layout;
pub use registers::Pmu;

use crate::arch::attention;
use crate::blocks::Derived;
use crate::cache::Cache;
use crate::fault::{Cause, Exec, Fault};
use crate::state::Cpu;
use ledger::{Kind, OriginId, Ticks};
use x86::msr::DEBUGCTL_FREEZE_PERFMON_ON_PMI;

impl Cpu {
    /// Adds a charge to the sums.
    #[cold]
    pub(crate) fn tally(&mut self, origin: OriginId, kind: Kind, count: u64, ticks: Ticks) {
        let user = self.wiring.recorder.names().is_user(origin);
        self.micro.tally.counts.add(user, kind, count, ticks);
    }

    /// Notes an origin that is charged from now on, while counters count.
    #[cold]
    pub(crate) fn note_origin(&mut self) {
        let origin = self.engine.origin;
        if !self.engine.charged.contains(&origin) {
            self.engine.charged.push(origin);
        }
    }

    /// Completes the sums of the counters: adds the executions that the recorder does not know yet. That changes nothing
    /// that software can see.
    pub fn complete_tally<D: Derived>(&mut self, cache: &mut Cache<D>) {
        if !self.micro.tally.on {
            return;
        }
        cache.turn(self.wiring.index);
        self.note_origin();
        for origin in std::mem::take(&mut self.engine.charged) {
            cache.spill(origin, &mut self.wiring.recorder);
        }
        self.note_origin();
        self.micro.tally.counts.take_from(&mut cache.take_tally());
    }

    /// Tells the decoded code whether its executions are summed up. What was executed before is not.
    #[inline]
    pub(crate) fn follow_tally<D: Derived>(&mut self, cache: &mut Cache<D>) {
        cache.turn(self.wiring.index);
        if cache.is_tallied() != self.micro.tally.on {
            self.change_tally(cache);
        }
    }

    #[cold]
    fn change_tally<D: Derived>(&mut self, cache: &mut Cache<D>) {
        cache.spill_own(&mut self.wiring.recorder);
        self.engine.charged.clear();
        self.note_origin();
        cache.set_tallied(self.micro.tally.on);
    }

    /// Brings the counters up to date.
    pub(crate) fn settle_counters<D: Derived>(&mut self, cache: &mut Cache<D>) {
        if self.micro.tally.on {
            self.complete_tally(cache);
            self.apply_tally();
            self.follow_tally(cache);
        }
    }

    /// Gives the sums to the counters.
    fn apply_tally(&mut self) {
        let Some(layout) = self.wiring.pmu else { return };
        let counts = self.micro.tally.take();
        if self.arch.pmu.count(&layout, &counts).interrupts {
            if !layout.amd && self.arch.msr.debugctl & DEBUGCTL_FREEZE_PERFMON_ON_PMI != 0 {
                self.arch.pmu.freeze();
            }
            let who = self.ident();
            // Intel's processors mask the entry, which software unmasks after it has handled the overflow.
            self.wiring.bus().performance_interrupt(who, !layout.amd);
            self.attend(attention::BUS);
        }
        self.counters_changed();
    }

    /// Handles a change of the counters or their control.
    fn counters_changed(&mut self) {
        let Some(layout) = self.wiring.pmu else { return };
        let until = self.arch.pmu.until_interrupt(&layout);
        let tally = &mut self.micro.tally;
        tally.on = self.arch.pmu.counts(&layout);
        tally.look_at = until.map_or(Ticks::MAX, |until| self.micro.clock.saturating_add(until));
        self.engine.stop_at = 0;
    }

    /// Stops an instruction that accesses a register of the counters, unless they are up to date: it restarts then.
    pub(crate) fn settled(&mut self) -> Exec {
        if self.engine.settled {
            return Ok(());
        }
        self.engine.fault = Cause::Counters;
        Err(Fault)
    }

    /// Restarts an instruction that [`Cpu::settled`] has stopped. Returns true if it completed without a fault.
    #[cold]
    pub(crate) fn restart_settled<D: Derived>(&mut self, cache: &mut Cache<D>) -> bool {
        self.engine.fault = Cause::None;
        self.settle_counters(cache);
        self.engine.settled = true;
        let completed = self.step(cache);
        self.engine.settled = false;
        self.follow_tally(cache);
        completed
    }

    /// Looks at the counters if one of them may have overflowed.
    pub(crate) fn look_at_counters<D: Derived>(&mut self, cache: &mut Cache<D>) {
        // During an exit the registers are neither the guest's nor the hypervisor's.
        if self.micro.clock >= self.micro.tally.look_at && self.arch.attention & attention::VM_EXIT == 0 {
            self.settle_counters(cache);
        }
    }

    /// Brings the counters up to date before a VM exit, if it may read or change one: a list of MSRs has it then.
    pub(crate) fn settle_before_exit<D: Derived>(&mut self, cache: &mut Cache<D>) {
        let lists = &self.arch.vmx.controls.msr_lists;
        if lists.exit_store.count != 0 || lists.exit_load.count != 0 {
            self.settle_counters(cache);
        }
    }
}
