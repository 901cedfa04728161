//! Repeated string instructions: time by length and alignment.

use crate::core::CoreTable;
use crate::core::parameters::Repeated;

/// A repeated string instruction that has a fast form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Repeat {
    /// REP MOVS.
    Movs,
    /// REP STOS.
    Stos,
}

/// Returns the ticks that REP MOVS or REP STOS takes for `length` bytes that hit the first-level cache, start-up included.
/// `destination` is the address of the first byte that is written.
pub fn string(core: &CoreTable, repeat: Repeat, length: u64, destination: u64) -> u64 {
    let figures = match repeat {
        Repeat::Movs => &core.parameters.string.movs,
        Repeat::Stos => &core.parameters.string.stos,
    };
    ticks(figures, length, destination)
}

fn ticks(figures: &Repeated, length: u64, destination: u64) -> u64 {
    let ticks = |cycles: f64| (cycles * 1000.0).round() as u64;
    let mut before = (0u64, 0u64);
    let mut time = None;
    for &(at, cycles) in &figures.cycles {
        let here = (u64::from(at), ticks(cycles));
        if length <= here.0 {
            let (span, rise) = (here.0 - before.0, here.1.saturating_sub(before.1));
            time = Some((rise * (length - before.0)).checked_div(span).map_or(here.1, |more| before.1 + more));
            break;
        }
        before = here;
    }
    let per_line = |cycles: f64, bytes: u64| (u128::from(ticks(cycles)) * u128::from(bytes) / 64) as u64;
    let mut time = time.unwrap_or_else(|| before.1.saturating_add(per_line(figures.line, length - before.0)));
    if !destination.is_multiple_of(32) && length > 0 {
        time = time.saturating_add(ticks(figures.unaligned)).saturating_add(per_line(figures.unaligned_line, length));
    }
    time
}
