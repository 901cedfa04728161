//! Which call stacks a run keeps.

use clap::Args;
use ledger::stack::Keeps;
use std::time::Duration;

/// The options of commands that run a guest.
#[derive(Args)]
pub struct StackArgs {
    /// The ledger also has samples: at fixed intervals of virtual time, such as 10us, the call stack of each processor. They cost the guest nothing
    #[arg(long, value_name = "INTERVAL", requires = "ledger", value_parser = parse_interval)]
    sample: Option<Duration>,
    /// The ledger also has the call stack of each crossing
    #[arg(long, requires = "ledger")]
    call_graph: bool,
    /// The ledger also has the time of each crossing, sample and task switch
    #[arg(long, requires = "ledger")]
    trace: bool,
}

/// No interval is shorter.
const SHORTEST: Duration = Duration::from_nanos(100);
/// Units of time, in nanoseconds; `s` ends the names of the others.
const UNITS: [(&str, f64); 4] = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];

fn parse_interval(text: &str) -> Result<Duration, String> {
    let unit = UNITS.iter().find_map(|(unit, size)| Some((text.strip_suffix(unit)?, size)));
    let time = unit.and_then(|(number, size)| Some(number.parse::<f64>().ok()? * size));
    match time {
        Some(ns) if (SHORTEST.as_nanos() as f64..1e18).contains(&ns) => Ok(Duration::from_nanos(ns as u64)),
        _ => Err("a time from 100ns on, with its unit, such as 10us or 1ms".into()),
    }
}

impl StackArgs {
    /// What they ask for, on a processor of this frequency.
    pub fn keeps(&self, tsc_hz: u64) -> Keeps {
        Keeps {
            interval: self.sample.map_or(0, |interval| machine::machine::ticks(interval, tsc_hz)),
            crossings: self.call_graph,
            trace: self.trace,
        }
    }

    /// The option that is given, if one is.
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
