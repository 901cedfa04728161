//! Repeated string instructions: time by length and alignment.

use crate::core::CoreTable;
use crate::core::parameters::Repeated;

/// A repeated string instruction that has a fast form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Repeat {
    /// REP MOVSB, REP MOVSW.
    Movs,
    /// REP MOVSD, REP MOVSQ.
    MovsWide,
    /// REP STOSB, REP STOSW.
    Stos,
    /// REP STOSD, REP STOSQ.
    StosWide,
}

/// Returns the ticks that a repeated string instruction takes for `length` bytes that hit the first-level cache, start-up included.
/// `destination` and `source` are the addresses of the first bytes; REP STOS has no source.
pub fn string(core: &CoreTable, repeat: Repeat, length: u64, destination: u64, source: Option<u64>) -> u64 {
    let strings = &core.parameters.string;
    let figures = match repeat {
        Repeat::Movs => &strings.movs,
        Repeat::MovsWide => &strings.movs_wide,
        Repeat::Stos => &strings.stos,
        Repeat::StosWide => &strings.stos_wide,
    };
    cycles(figures, length, destination, source)
}

/// Ticks of a number of cycles for each of so many pieces of `size` bytes.
fn ticks(cycles: f64, bytes: u64, size: u64) -> u64 {
    let each = (cycles * 1000.0).round() as u128;
    u64::try_from(each * u128::from(bytes) / u128::from(size)).unwrap_or(u64::MAX)
}

fn cycles(figures: &Repeated, length: u64, destination: u64, source: Option<u64>) -> u64 {
    let behind = source.map_or(0, |source| destination.wrapping_sub(source) & 0xfff);
    if figures.overlap > 0.0 && (1..64).contains(&behind) && length > 0 {
        return ticks(figures.overlap, 1, 1).saturating_add(ticks(figures.overlap_byte, length, 1));
    }
    let mut before = (0u64, 0u64);
    let mut time = None;
    for &(at, cycles) in &figures.cycles {
        let here = (u64::from(at), ticks(cycles, 1, 1));
        if length <= here.0 {
            let span = here.0 - before.0;
            let part = |of: u64| (of * (length - before.0)).checked_div(span).unwrap_or(0);
            time = Some(if span == 0 || length == here.0 {
                here.1
            } else {
                (before.1 + part(here.1.saturating_sub(before.1))).saturating_sub(part(before.1.saturating_sub(here.1)))
            });
            break;
        }
        before = here;
    }
    let time = time.unwrap_or_else(|| before.1.saturating_add(ticks(figures.line, length - before.0, 64)));
    if destination.is_multiple_of(32) || length < u64::from(figures.unaligned_from) {
        return time;
    }
    time.saturating_add(ticks(figures.unaligned, 1, 1)).saturating_add(ticks(figures.unaligned_line, length, 64))
}
