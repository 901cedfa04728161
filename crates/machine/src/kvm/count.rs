//! Counts for the ledger of a run on KVM: exits to this program and the guest's location at each. Other costs are known
//! only to the processor.

use super::registers::State;
use ledger::{Amount, Origin};
use ledger::{Kind, Recorder, Ticks};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::time::Duration;
use x86::control::CR0_PG;

/// Maximum number of distinct locations; the others are counted as one, because the guest controls their number.
const MOST_PLACES: usize = 1 << 18;

/// Location of a guest at an exit, and the reason for the exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    rip: u64,
    ring: u8,
    space: u64,
    kind: Kind,
}

/// Exits of one virtual processor: their number, and the host time from exit to re-entry.
#[derive(Debug, Default)]
pub struct Counts(FxHashMap<Place, Amount>);

impl Counts {
    /// Counts an exit with these registers that took `ticks`.
    pub fn add(&mut self, kind: Kind, state: &State, ticks: Ticks) {
        let space = if state.sregs.cr0 & CR0_PG == 0 { 0 } else { state.sregs.cr3 & !0xfff & !(1 << 63) };
        let place = Place { rip: state.regs.rip, ring: state.sregs.ss.dpl & 3, space, kind };
        let room = self.0.len() < MOST_PLACES;
        let place = if room || self.0.contains_key(&place) { place } else { Place { rip: 0, space: 0, ..place } };
        let amount = self.0.entry(place).or_default();
        amount.count += 1;
        amount.ticks = amount.ticks.saturating_add(ticks);
    }

    /// Records the counts. Returns the total time.
    pub fn record(self, recorder: &mut Recorder) -> Ticks {
        let mut sum: Ticks = 0;
        for (Place { rip, ring, space, kind }, Amount { count, ticks }) in self.0 {
            let origin = recorder.origin(Origin::new(1, ring, space));
            recorder.add(origin, rip, kind, count, ticks);
            sum += ticks;
        }
        sum
    }
}

/// Report of a machine's run on KVM.
#[derive(Debug, Default)]
pub struct Report {
    /// Reason for which KVM could not continue.
    pub failure: Option<String>,
    /// KVM's own counters, by name.
    pub statistics: BTreeMap<String, u64>,
    /// Host time of the run.
    pub elapsed: Duration,
    /// Total time of the exits of each virtual processor, in ticks.
    pub outside: Vec<Ticks>,
}

impl Report {
    /// Returns the facts for the head of a ledger.
    pub fn facts(&self) -> Vec<(String, String)> {
        let counted = "exits to user space, with the host's time outside the guest; instructions are not".to_owned();
        let counters = self.statistics.iter().filter(|(_, value)| **value != 0);
        let counters: Vec<String> = counters.map(|(name, value)| format!("{name} {value}")).collect();
        let counters = if counters.is_empty() { "none".to_owned() } else { counters.join(", ") };
        let facts = [
            ("backend", "kvm".to_owned()),
            ("counted", counted),
            ("host time", format!("{:.6} s", self.elapsed.as_secs_f64())),
            ("kvm counters", counters),
        ];
        facts.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::symbols::Symbols;
    use ledger::{Family, Header, Ledger, Profile};

    #[test]
    fn exits_are_on_the_ledger_where_the_guest_stood_with_their_time() {
        let mut counts = Counts::default();
        let mut state = State::default();
        state.regs.rip = 0x10_0000;
        state.sregs.cr3 = 0x5000;
        counts.add(Kind::new(Family::PortOut, 0x3f8), &state, 5);
        counts.add(Kind::new(Family::PortOut, 0x3f8), &state, 7);
        (state.sregs.cr0, state.sregs.ss.dpl) = (CR0_PG, 3);
        counts.add(Kind::new(Family::PortIn, 0x60), &state, 1);
        let mut recorder = Recorder::default();
        let outside = counts.record(&mut recorder);
        recorder.finish();
        let header = Header::new(&Profile::named("skx").unwrap(), vec![outside]);
        let ledger = Ledger::new(header, &recorder, &Symbols::default());
        let seen: Vec<_> = ledger.events.iter().map(|event| (event.rip, event.count, event.ticks)).collect();
        assert_eq!(seen, [(0x10_0000, 2, 12), (0x10_0000, 1, 1)]);
        let origins: Vec<_> = ledger.origins.iter().map(|origin| (origin.ring, origin.space)).collect();
        assert_eq!(origins, [(0, 0), (3, 0x5000)]);
        assert!(ledger.verify().is_ok());
    }

    #[test]
    fn places_are_told_apart_up_to_a_limit() {
        let mut counts = Counts::default();
        let mut state = State::default();
        for rip in 0..MOST_PLACES as u64 + 10 {
            state.regs.rip = rip;
            counts.add(Kind::new(Family::Halt, 0), &state, 1);
        }
        assert!(counts.0.len() <= MOST_PLACES);
        assert_eq!(counts.0.values().map(|amount| amount.count).sum::<u64>(), MOST_PLACES as u64 + 10);
    }
}
