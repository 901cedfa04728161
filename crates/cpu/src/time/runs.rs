//! Prices of the instructions of a run, and the contexts in which they have them.

use super::{Place, Price, START, Step, Steps, Timing};
use ledger::{Class, Costs};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

/// The history on which the prices of the next instructions of a run depend: plain data that the model of time defines.
/// The history is empty at the begin of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Context(pub Vec<u8>);

/// The contexts of a machine, each once. Numbers are never reused, because processors and blocks refer to them; they
/// are part of a saved state.
///
/// A model has at most as many contexts as there are numbers. Beyond that, a new context is the begin of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runs {
    contexts: Vec<Context>,
    /// For each, the price of the instructions in front of it since the begin of the run.
    elapsed: Vec<u32>,
    /// For each, true if no instruction of its run is in front of it.
    begins: Vec<bool>,
    numbers: FxHashMap<Context, Place>,
    /// See [`Runs::called`]; [`START`] until it is known.
    called: Place,
}

/// How the last of some instructions ends its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It does not.
    Never,
    /// It is a conditional branch, a call or a return: the run behind it may have a context.
    Branch,
    /// Always.
    Always,
}

impl End {
    /// Returns how an instruction of a class ends its run, if its block ends with it or not.
    pub fn of(ends: bool, class: Class) -> Self {
        match ends {
            false => Self::Never,
            true if leads_on(class) => Self::Branch,
            true => Self::Always,
        }
    }
}

/// Returns true for the classes of instructions that end a run and may have a context behind them.
pub(super) fn leads_on(class: Class) -> bool {
    matches!(class, Class::Branch | Class::Call | Class::IndirectCall | Class::Return)
}

/// The model of time and the prices of a machine, by which its instructions are priced.
#[derive(Clone, Copy)]
pub struct By<'a> {
    /// The model of time.
    pub timing: &'a dyn Timing,
    /// The prices.
    pub costs: &'a Costs,
}

impl Default for Runs {
    fn default() -> Self {
        let numbers = [(Context::default(), START)].into_iter().collect();
        Self { contexts: vec![Context::default()], elapsed: vec![0], begins: vec![true], numbers, called: START }
    }
}

impl Runs {
    /// Returns the number of a context of a model.
    fn number(&mut self, timing: &dyn Timing, context: Context) -> Place {
        // Without a history there is no comparison, for which a host's memory functions may read nothing at an address without a
        // page: a masked load from there takes hundreds of cycles.
        if context.0.is_empty() {
            return START;
        }
        if let Some(number) = self.numbers.get(&context) {
            return *number;
        }
        let Ok(number) = Place::try_from(self.contexts.len()) else { return START };
        self.elapsed.push(timing.elapsed(&context));
        self.begins.push(timing.begins(&context));
        self.contexts.push(context.clone());
        self.numbers.insert(context, number);
        number
    }

    /// Passes the marginal prices of instructions that follow the context `place` to `put`, and returns the context after
    /// them: the begin of a run if the last of them `ends` one. Behind a conditional branch that is not taken, and behind a call or return, the
    /// run begins in a context of its own.
    fn follow(&mut self, by: &By, place: Place, run: &mut Steps, put: &mut dyn FnMut(Price), ends: End) -> Place {
        let before = &self.contexts[usize::from(place)];
        if ends == End::Always {
            by.timing.run(by.costs, before, run, put, None);
            return START;
        }
        let mut after = Context::default();
        by.timing.run(by.costs, before, run, put, Some(&mut after));
        self.number(by.timing, after)
    }

    /// Returns the marginal prices of instructions that follow the context `place`, and the context after them, as [`Timing::run`] defines it.
    pub fn price(&mut self, by: &By, place: Place, run: &mut Steps, ends: End) -> (Vec<Price>, Place) {
        let mut prices = Vec::with_capacity(run.size_hint().0);
        let after = self.follow(by, place, run, &mut |price| prices.push(price), ends);
        (prices, after)
    }

    /// Returns the same for one instruction.
    pub fn price_one(&mut self, by: &By, place: Place, step: Step, ends: bool) -> (Price, Place) {
        let mut one = Price::default();
        let ends = End::of(ends, step.class);
        let after = self.follow(by, place, &mut std::iter::once(step), &mut |price| one = price, ends);
        (one, after)
    }

    /// Returns the context after instructions that follow the context `place`.
    pub fn after(&mut self, by: &By, place: Place, run: &mut Steps) -> Place {
        self.follow(by, place, run, &mut |_| (), End::Never)
    }

    /// Returns the context behind a return that is predicted. There is none before a return has been priced.
    pub fn called(&mut self, timing: &dyn Timing) -> Place {
        if self.called == START {
            self.called = self.numbers.get(&timing.called()).copied().unwrap_or(START);
        }
        self.called
    }

    /// Returns the price of the instructions in front of the context `place`, since the begin of the run.
    #[inline]
    pub fn elapsed(&self, place: Place) -> u64 {
        u64::from(self.elapsed[usize::from(place)])
    }

    /// Returns true if no instruction of its run is in front of the context `place`.
    #[inline]
    pub fn begins(&self, place: Place) -> bool {
        self.begins[usize::from(place)]
    }

    /// Returns true if there is a context of this number.
    pub fn has(&self, place: Place) -> bool {
        usize::from(place) < self.contexts.len()
    }

    /// Returns the contexts for a saved state.
    pub(crate) fn save(&self) -> Vec<Context> {
        self.contexts.clone()
    }

    /// Restores the contexts of a saved state of a model. Returns `None` if they cannot be those of a machine.
    pub(crate) fn restore(timing: &dyn Timing, saved: &[Context]) -> Option<Self> {
        let mut runs = Self::default();
        let (first, rest) = saved.split_first()?;
        let same = |(at, context): (usize, &Context)| {
            timing.knows(context) && usize::from(runs.number(timing, context.clone())) == at + 1
        };
        (*first == Context::default() && rest.iter().enumerate().all(same)).then_some(runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Flat;

    #[test]
    fn contexts_are_saved_and_restored_by_number() {
        let mut runs = Runs::default();
        let [a, b] = [1, 2].map(|byte| runs.number(&Flat, Context(vec![byte])));
        assert_eq!(
            (a, b, runs.number(&Flat, Context(vec![1])), runs.number(&Flat, Context::default())),
            (1, 2, 1, START)
        );
        assert!(runs.has(2) && !runs.has(3));
        assert_eq!(Runs::restore(&Flat, &runs.save()), Some(runs));
        let saved = |bytes: &[&[u8]]| bytes.iter().map(|bytes| Context(bytes.to_vec())).collect::<Vec<_>>();
        for wrong in [saved(&[]), saved(&[&[1]]), saved(&[&[], &[1], &[1]]), saved(&[&[], &[]])] {
            assert_eq!(Runs::restore(&Flat, &wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn contexts_beyond_the_limit_begin_a_run() {
        let mut runs = Runs::default();
        for n in 1..=u32::from(Place::MAX) {
            assert_ne!(runs.number(&Flat, Context(n.to_le_bytes().to_vec())), START);
        }
        assert_eq!(runs.number(&Flat, Context(vec![1])), START);
        assert_eq!(runs.number(&Flat, Context(1u32.to_le_bytes().to_vec())), 1);
    }
}
