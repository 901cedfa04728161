//! The shares of measured and of estimated prices in a sum.

use ledger::Ticks;
use ledger::profile::Confidence;

/// Ticks by the confidence of their prices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    /// Ticks at measured prices, of the processor itself or of a similar one.
    pub measured: u128,
    /// Ticks at prices that are derived, or known only from the literature.
    pub estimated: u128,
}

impl Trust {
    /// Classifies ticks by the confidence of their price. Ticks without a price, such as halted time, count for neither.
    pub fn of(confidence: Option<Confidence>, ticks: Ticks) -> Self {
        let ticks = u128::from(ticks);
        match confidence {
            Some(Confidence::High | Confidence::Medium) => Self { measured: ticks, estimated: 0 },
            Some(Confidence::Low | Confidence::Estimate) => Self { measured: 0, estimated: ticks },
            None => Self::default(),
        }
    }

    /// Returns the sum of both.
    pub fn and(self, other: Self) -> Self {
        Self { measured: self.measured + other.measured, estimated: self.estimated + other.estimated }
    }

    /// Returns `None` if no price is known.
    pub fn known(self) -> Option<Self> {
        (self != Self::default()).then_some(self)
    }

    /// Returns the fraction at measured prices.
    pub fn share(self) -> f64 {
        self.measured as f64 / (self.measured + self.estimated) as f64
    }

    /// Returns `measured` or `estimated` if that part exceeds nine tenths, else `mixed`.
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
