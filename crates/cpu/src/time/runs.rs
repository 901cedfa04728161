//! Prices of the instructions of a run, and the contexts in which they have them.

use crate::model::Model;
use crate::op::Op;
use crate::time::{Place, START};
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
    numbers: FxHashMap<Context, Place>,
}

impl Default for Runs {
    fn default() -> Self {
        let numbers = [(Context::default(), START)].into_iter().collect();
        Self { contexts: vec![Context::default()], numbers }
    }
}

impl Runs {
    /// Returns the number of a context.
    fn number(&mut self, context: Context) -> Place {
        if context.0.is_empty() {
            return START;
        }
        if let Some(number) = self.numbers.get(&context) {
            return *number;
        }
        let Ok(number) = Place::try_from(self.contexts.len()) else { return START };
        self.contexts.push(context.clone());
        self.numbers.insert(context, number);
        number
    }

    /// Passes the marginal prices of operations that follow the context `place` to `put`, and returns the context after
    /// them.
    fn follow(&self, model: &Model, place: Place, ops: &[Op], put: impl FnMut(u32)) -> Context {
        let mut context = self.contexts[usize::from(place)].clone();
        ops.iter().map(|op| model.timing.instruction(&model.costs, &mut context, op)).for_each(put);
        context
    }

    /// Returns the marginal prices of operations that follow the context `place`, and the context after them; `ends` is
    /// true if the last of them ends the run.
    pub fn price(&mut self, model: &Model, place: Place, ops: &[Op], ends: bool) -> (Vec<u32>, Place) {
        let mut ticks = Vec::with_capacity(ops.len());
        let after = self.follow(model, place, ops, |price| ticks.push(price));
        (ticks, if ends { START } else { self.number(after) })
    }

    /// Returns the same for one operation.
    pub fn price_one(&mut self, model: &Model, place: Place, op: &Op, ends: bool) -> (u32, Place) {
        let mut ticks = 0;
        let after = self.follow(model, place, std::slice::from_ref(op), |price| ticks = price);
        (ticks, if ends { START } else { self.number(after) })
    }

    /// Returns the context after operations that follow the context `place`.
    pub fn after(&mut self, model: &Model, place: Place, ops: &[Op]) -> Place {
        let after = self.follow(model, place, ops, |_| ());
        self.number(after)
    }

    /// Returns true if there is a context of this number.
    pub fn has(&self, place: Place) -> bool {
        usize::from(place) < self.contexts.len()
    }

    /// Returns the contexts for a saved state.
    pub(crate) fn save(&self) -> Vec<Context> {
        self.contexts.clone()
    }

    /// Restores the contexts of a saved state. Returns `None` if they cannot be those of a machine.
    pub(crate) fn restore(saved: &[Context]) -> Option<Self> {
        let mut runs = Self::default();
        let (first, rest) = saved.split_first()?;
        let same = |(at, context): (usize, &Context)| usize::from(runs.number(context.clone())) == at + 1;
        (*first == Context::default() && rest.iter().enumerate().all(same)).then_some(runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_saved_and_restored_by_number() {
        let mut runs = Runs::default();
        let [a, b] = [1, 2].map(|byte| runs.number(Context(vec![byte])));
        assert_eq!((a, b, runs.number(Context(vec![1])), runs.number(Context::default())), (1, 2, 1, START));
        assert!(runs.has(2) && !runs.has(3));
        assert_eq!(Runs::restore(&runs.save()), Some(runs));
        let saved = |bytes: &[&[u8]]| bytes.iter().map(|bytes| Context(bytes.to_vec())).collect::<Vec<_>>();
        for wrong in [saved(&[]), saved(&[&[1]]), saved(&[&[], &[1], &[1]]), saved(&[&[], &[]])] {
            assert_eq!(Runs::restore(&wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn contexts_beyond_the_limit_begin_a_run() {
        let mut runs = Runs::default();
        for n in 1..=u32::from(Place::MAX) {
            assert_ne!(runs.number(Context(n.to_le_bytes().to_vec())), START);
        }
        assert_eq!(runs.number(Context(vec![1])), START);
        assert_eq!(runs.number(Context(1u32.to_le_bytes().to_vec())), 1);
    }
}
