//! How much of a sum rests on measured prices, and how much on estimates.

use ledger::Ticks;
use ledger::profile::Confidence;

/// Ticks by the origin of their prices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    /// Ticks at prices that were measured, on the processor itself or on a neighbour of it.
    pub measured: u128,
    /// Ticks at prices that were reasoned, or that are only known from the literature.
    pub estimated: u128,
}

impl Trust {
    /// Of `ticks` at a price of such confidence. What has no price, such as the time spent halted, counts for neither.
    pub fn of(confidence: Option<Confidence>, ticks: Ticks) -> Self {
        let ticks = u128::from(ticks);
        match confidence {
            Some(Confidence::High | Confidence::Medium) => Self { measured: ticks, estimated: 0 },
            Some(Confidence::Low | Confidence::Estimate) => Self { measured: 0, estimated: ticks },
            None => Self::default(),
        }
    }

    /// Both together.
    pub fn and(self, other: Self) -> Self {
        Self { measured: self.measured + other.measured, estimated: self.estimated + other.estimated }
    }

    /// `None` if nothing is known of any price.
    pub fn known(self) -> Option<Self> {
        (self != Self::default()).then_some(self)
    }

    /// The part that rests on measured prices.
    pub fn share(self) -> f64 {
        self.measured as f64 / (self.measured + self.estimated) as f64
    }

    /// In a word: `measured` or `estimated` where more than nine tenths are, else `mixed`.
    pub fn word(self) -> &'static str {
        match self.share() {
            share if share >= 0.9 => "measured",
            share if share <= 0.1 => "estimated",
            _ => "mixed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_what_most_of_its_prices_are() {
        let measured = Trust::of(Some(Confidence::High), 95);
        let estimated = Trust::of(Some(Confidence::Estimate), 5);
        assert_eq!(measured.and(estimated).word(), "measured");
        assert_eq!(measured.and(Trust::of(Some(Confidence::Low), 95)).word(), "mixed");
        assert_eq!(estimated.word(), "estimated");
        assert_eq!(Trust::of(None, 1000).known(), None);
    }
}
