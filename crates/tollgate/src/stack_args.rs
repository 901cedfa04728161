//! Options that select the call stacks in a ledger.

use clap::Args;
use ledger::stack::{self, Keeps};
use std::time::Duration;

/// Options of the commands that run a guest.
#[derive(Args)]
pub struct StackArgs {
    /// Records the call stack of each processor in the ledger at fixed intervals of virtual time, such as 10us. Samples cost the guest nothing
    #[arg(long, value_name = "INTERVAL", requires = "ledger", value_parser = stack::interval)]
    sample: Option<Duration>,
    /// Records the call stack of each crossing in the ledger
    #[arg(long, requires = "ledger")]
    call_graph: bool,
    /// Records the time of each crossing, sample and task switch in the ledger
    #[arg(long, requires = "ledger")]
    trace: bool,
}

/// Checks the text of an interval for a command that passes it on.
pub fn interval(text: &str) -> Result<String, String> {
    stack::interval(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
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
