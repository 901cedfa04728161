//! Options that select the call stacks in a ledger.

use clap::Args;
use ledger::stack::Keeps;
use std::time::Duration;

/// Options of the commands that run a guest.
#[derive(Args)]
pub struct StackArgs {
    /// Records the call stack of each processor in the ledger at fixed intervals of virtual time, such as 10us. Samples cost the guest nothing
    #[arg(long, value_name = "INTERVAL", requires = "ledger", value_parser = parse_interval)]
    sample: Option<Duration>,
    /// Records the call stack of each crossing in the ledger
    #[arg(long, requires = "ledger")]
    call_graph: bool,
    /// Records the time of each crossing, sample and task switch in the ledger
    #[arg(long, requires = "ledger")]
    trace: bool,
}

/// Shortest interval.
const SHORTEST: Duration = Duration::from_nanos(100);
/// Units of time in nanoseconds. `s` is last, because the other names end in it.
const UNITS: [(&str, f64); 4] = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];

fn parse_interval(text: &str) -> Result<Duration, String> {
    let unit = UNITS.iter().find_map(|(unit, size)| Some((text.strip_suffix(unit)?, size)));
    let time = unit.and_then(|(number, size)| Some(number.parse::<f64>().ok()? * size));
    match time {
        Some(ns) if (SHORTEST.as_nanos() as f64..1e18).contains(&ns) => Ok(Duration::from_nanos(ns as u64)),
        _ => Err("a time from 100ns on, with its unit, such as 10us or 1ms".into()),
    }
}

/// Checks the text of an interval for a command that passes it on.
pub fn interval(text: &str) -> Result<String, String> {
    parse_interval(text).map(|_| text.to_owned())
}

impl StackArgs {
    /// Returns the recorder's settings for a processor of this frequency.
    pub fn keeps(&self, tsc_hz: u64) -> Keeps {
        Keeps {
            interval: self.sample.map_or(0, |interval| machine::machine::ticks(interval, tsc_hz)),
            crossings: self.call_graph,
            trace: self.trace,
        }
    }

    /// Returns one of the options that are given.
    pub fn given(&self) -> Option<&'static str> {
        let table = [(self.sample.is_some(), "--sample"), (self.call_graph, "--call-graph"), (self.trace, "--trace")];
        table.into_iter().find(|(given, _)| *given).map(|(_, option)| option)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_units() {
        assert_eq!(parse_interval("10us"), Ok(Duration::from_micros(10)));
        assert_eq!(parse_interval("1.5ms"), Ok(Duration::from_micros(1500)));
        assert_eq!(parse_interval("0.1s"), Ok(Duration::from_millis(100)));
        for wrong in ["10", "us", "-1us", "99ns", "1e30s", "10 m", "NaNus"] {
            assert!(parse_interval(wrong).is_err(), "{wrong}");
        }
    }
}
