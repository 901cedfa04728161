//! The charges of a cell's ledger, summed by kind.

use crate::trust::Trust;
use ledger::profile::Prices;
use ledger::summary::Selection;
use ledger::{Amount, Class, Kind, Ledger};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A count and its cost in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Number of occurrences.
    pub count: u64,
    /// Cost in thousandths of a cycle.
    pub ticks: u64,
}

impl Tally {
    /// Adds another tally.
    pub(crate) fn add(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        self.ticks = self.ticks.saturating_add(other.ticks);
    }
}

impl From<Amount> for Tally {
    fn from(Amount { count, ticks }: Amount) -> Self {
        Self { count, ticks }
    }
}

/// Tallies by name.
pub type Tallies = BTreeMap<String, Tally>;

/// Charges by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Charges {
    /// Instructions, and all ticks.
    pub total: Tally,
    /// Events, with the names of their kinds in the ledger.
    pub kinds: BTreeMap<Kind, (Option<String>, Tally)>,
    /// Instructions.
    pub classes: BTreeMap<Class, Tally>,
    /// The prices behind the charges. None for a saved result.
    pub prices: Option<Arc<Prices>>,
}

impl Charges {
    /// Sums the charges of `selection`.
    pub fn new(ledger: &Ledger, selection: Selection) -> Self {
        let total = selection.total();
        let kinds = selection.kinds().into_iter();
        let classes = Class::ALL.into_iter().zip(selection.classes()).filter(|(_, amount)| amount.count != 0);
        Self {
            total: Tally { count: total.instructions, ticks: total.ticks },
            kinds: kinds.map(|(kind, sum)| (kind, (ledger.name_of(kind).map(str::to_owned), sum.into()))).collect(),
            classes: classes.map(|(class, sum)| (class, sum.into())).collect(),
            prices: None,
        }
    }

    /// Returns the confidence in the prices of a cause.
    pub fn trust(&self, cause: Option<Kind>) -> Trust {
        let Some(prices) = &self.prices else { return Trust::default() };
        match cause {
            Some(kind) => {
                let confidence = prices.figure(kind).map(|figure| figure.from.confidence);
                Trust::of(confidence, self.of(cause).ticks)
            }
            None => self.classes.iter().fold(Trust::default(), |sum, (class, tally)| {
                let confidence = prices.classes.get(*class as usize).map(|figure| figure.from.confidence);
                sum.and(Trust::of(confidence, tally.ticks))
            }),
        }
    }

    /// Returns the confidence in the prices of all charges.
    pub fn trust_of_all(&self) -> Trust {
        self.causes().fold(Trust::default(), |sum, cause| sum.and(self.trust(cause)))
    }

    /// Returns the title of a cause: of a kind, or of all instructions.
    pub fn name(&self, cause: Option<Kind>) -> String {
        let Some(kind) = cause else { return "instructions".to_owned() };
        kind.describe(self.kinds.get(&kind).and_then(|(name, _)| name.as_deref()))
    }

    /// Returns the charges of a cause.
    pub fn of(&self, cause: Option<Kind>) -> Tally {
        match cause {
            Some(kind) => self.kinds.get(&kind).map(|(_, tally)| *tally).unwrap_or_default(),
            None => self.classes.values().fold(Tally::default(), |mut sum, tally| {
                sum.add(*tally);
                sum
            }),
        }
    }

    /// Returns every cause once: the kinds of events, and all instructions as one.
    pub fn causes(&self) -> impl Iterator<Item = Option<Kind>> {
        self.kinds.keys().copied().map(Some).chain([None])
    }
}
