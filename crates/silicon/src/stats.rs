//! Statistics of figures beside measurements.

/// Returns the mean of the samples that nothing disturbed: those within a step of the clock, or 1/500, of the least.
///
/// A time stamp that advances in steps rounds a duration down or up, and the mean of both is the duration.
pub fn undisturbed(samples: impl IntoIterator<Item = u64>, grain: u64) -> Option<f64> {
    let samples: Vec<u64> = samples.into_iter().collect();
    let least = *samples.iter().min()?;
    let limit = least + (grain + 1).max(least / 500);
    let near: Vec<u64> = samples.into_iter().filter(|sample| *sample <= limit).collect();
    Some(near.iter().sum::<u64>() as f64 / near.len() as f64)
}

/// Returns a quantile by linear interpolation, `None` of nothing.
pub fn quantile(figures: &[f64], at: f64) -> Option<f64> {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = at.clamp(0.0, 1.0) * sorted.len().checked_sub(1)? as f64;
    let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    Some(low + (high - low) * place.fract())
}

/// Factor by which a loop takes longer than the fastest of its kind if something has interrupted it.
pub const INTERRUPTED: f64 = 1.25;

/// Which of the figures of a measurement counts: most disturbances make one greater, and a clock that advances in steps makes the least too
/// small.
pub const QUIETER: f64 = 0.25;

/// Returns the median, `None` of nothing.
pub fn median(figures: &[f64]) -> Option<f64> {
    quantile(figures, 0.5)
}

/// Returns the quieter times as a part of the usual time of something that other work hardly delays, `None` of nothing.
///
/// Neither the very least time nor one of the others decides: something may have interrupted it, or a clock that advances in steps
/// may have cut it short.
pub fn usual_ratio(times: &[f64], others: &[f64]) -> Option<f64> {
    Some(quantile(times, 0.2)? / median(others)?.max(1.0))
}

/// Returns Kendall's tau-b of pairs: 1 if both orders are the same, -1 if one is the other's reverse.
///
/// Two figures that differ by less than `tie` of the greater count as equal. `None` if one side is constant.
pub fn kendall(pairs: &[(f64, f64)], tie: f64) -> Option<f64> {
    let order = |a: f64, b: f64| {
        if (a - b).abs() <= tie * a.abs().max(b.abs()) { 0 } else { (a > b) as i64 - (a < b) as i64 }
    };
    let (mut concordant, mut first, mut second) = (0, 0, 0);
    for (n, a) in pairs.iter().enumerate() {
        for b in &pairs[n + 1..] {
            let (x, y) = (order(a.0, b.0), order(a.1, b.1));
            concordant += x * y;
            first += x * x;
            second += y * y;
        }
    }
    let scale = ((first as f64) * (second as f64)).sqrt();
    (scale > 0.0).then(|| concordant as f64 / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tau_counts_pairs_in_the_same_order() {
        let pairs = |ys: &[f64]| ys.iter().enumerate().map(|(x, y)| (x as f64, *y)).collect::<Vec<_>>();
        assert_eq!(kendall(&pairs(&[1.0, 2.0, 3.0, 4.0]), 0.0), Some(1.0));
        assert_eq!(kendall(&pairs(&[4.0, 3.0, 2.0, 1.0]), 0.0), Some(-1.0));
        // Of six pairs, one is in the other order.
        assert_eq!(kendall(&pairs(&[1.0, 2.0, 4.0, 3.0]), 0.0), Some(4.0 / 6.0));
        assert_eq!(kendall(&pairs(&[1.0, 1.0, 1.0]), 0.0), None);
        // 100 and 101 are equal within 2 %.
        assert_eq!(kendall(&[(100.0, 1.0), (101.0, 5.0), (200.0, 7.0)], 0.02), Some(2.0 / 6f64.sqrt()));
    }

    #[test]
    fn quantiles_are_interpolated() {
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(quantile(&[0.0, 10.0], 0.25), Some(2.5));
    }

    #[test]
    fn a_clock_of_steps_is_averaged() {
        // A duration of 110 by a clock of steps of 25 is 100 in three samples of five and 125 in the others.
        let samples = [100, 100, 125, 100, 125, 400, 1000];
        assert_eq!(undisturbed(samples, 25), Some(110.0));
        assert_eq!(undisturbed([], 25), None);
    }
}
