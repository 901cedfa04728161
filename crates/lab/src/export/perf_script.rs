//! The output format of `perf script`: for each sample a line with the task, the processor, the time and the event, then one line per frame from
//! the innermost on, and an empty line.

use super::{Export, task_title};
use ledger::stack::{TRUNCATED, UNKNOWN, What, file_of};
use std::fmt::Write;

/// Returns the whole text.
pub fn text(export: Export) -> String {
    let mut out = String::new();
    for sample in export.samples() {
        let task = export.task(sample.who);
        let ns = export.nanoseconds(sample.time);
        let event = match sample.what {
            What::Sample => "cycles".to_owned(),
            What::Crossing(kind) => words(&export.kind_name(kind)),
        };
        let comm = task_title(task).replace(char::is_whitespace, "_");
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "{comm} {}/{} [{:03}] {}.{:09}: {} {event}: ",
            task.pid,
            task.tid,
            sample.cpu,
            ns / 1_000_000_000,
            ns % 1_000_000_000,
            export.weight(sample.weight),
        );
        for address in export.ledger.stacks.frames(sample.stack) {
            let _ = writeln!(out, "\t{}", frame(&export, sample.who.address_space(), address));
        }
        out.push('\n');
    }
    out
}

/// Removes the separators of a line from a name.
fn words(name: &str) -> String {
    name.chars().map(|c| if c.is_whitespace() || c == ':' { '_' } else { c }).collect()
}

fn frame(export: &Export, space: ledger::AddressSpace, address: u64) -> String {
    match (address, export.ledger.symbol(space, address), file_of(address)) {
        (TRUNCATED, ..) => "0 [truncated] ([unknown])".to_owned(),
        (UNKNOWN, ..) => "0 [too_many_stacks] ([unknown])".to_owned(),
        (_, None, place) => format!("{:x} [unknown] ([unknown])", place.map_or(address, |(_, offset)| offset)),
        // Code in a file has its offset in the file.
        (_, Some((symbol, _)), Some((_, place))) if symbol.name.starts_with(&format!("{}+", symbol.module)) => {
            format!("{place:x} [unknown] ({})", words(&symbol.module))
        }
        (_, Some((symbol, offset)), Some((_, place))) => {
            format!("{place:x} {}+{offset:#x} ({})", words(&symbol.name), words(&symbol.module))
        }
        (_, Some((symbol, offset)), None) => {
            let module = match symbol.module.as_str() {
                "" => "kernel.kallsyms",
                module => module,
            };
            format!("{address:x} {}+{offset:#x} ([{}])", words(&symbol.name), words(module))
        }
    }
}

impl Export<'_> {
    /// Converts a weight to cycles, or returns a count.
    fn weight(&self, weight: u64) -> u64 {
        match self.weigh {
            ledger::summary::Weigh::Kinds(_) => weight,
            _ => weight.div_ceil(ledger::TICKS_PER_CYCLE),
        }
    }
}
