//! `tollgate export`: converts call stacks and traces for other programs.

use crate::output::{self, OutputFile};
use crate::report::{select, select_task};
use crate::stacks::weigh;
use crate::table::read_ledger;
use crate::usage::WrongArguments;
use anyhow::{Context, Result, bail};
use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use lab::export::{Export, Format};
use ledger::summary::Weigh;
use std::path::PathBuf;
use strum::VariantArray;

/// Converts the call stacks or the trace of a ledger to the format of another program.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate export --format firefox boot.ledger -o boot.json       (open at profiler.firefox.com)
  tollgate export --format perf-script boot.ledger | inferno-collapse-perf | inferno-flamegraph > flame.svg
  tollgate export --format speedscope boot.ledger --task hackbench -o boot.speedscope.json
  tollgate export --format perfetto boot.ledger -o boot.trace.json    (a run with --trace; open at ui.perfetto.dev)
  tollgate export --format timeline boot.ledger -o boot.html          (a run with --trace; open in a browser)
  tollgate export --format folded boot.ledger --event syscall

The ledger must come from a run with --sample, --call-graph or --trace. Without --trace, samples have no times and follow one another.")]
pub struct ExportArgs {
    /// The ledger
    #[arg(value_name = "LEDGER")]
    ledger: PathBuf,
    /// Output format
    #[arg(long, value_enum)]
    format: FormatArg,
    /// Output file [default: standard output]
    #[arg(long, short = 'o', value_name = "FILE")]
    output: Option<PathBuf>,
    /// Exports the call stacks of crossings of a kind, such as `MOV CR3` or `syscall`, instead of samples
    #[arg(long, value_name = "KIND")]
    event: Option<String>,
    /// Restricts the output to a region of interest
    #[arg(long, value_name = "NAME")]
    region: Option<String>,
    /// Restricts the output to the tasks of a name, with the wildcards * and ?, or to the process or thread of a number
    #[arg(long, value_name = "COMM|PID")]
    task: Option<String>,
}

/// A format as a value of an option.
#[derive(Clone, Copy)]
struct FormatArg(Format);

impl ValueEnum for FormatArg {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [FormatArg; Format::VARIANTS.len()] = {
            let mut all = [FormatArg(Format::Folded); Format::VARIANTS.len()];
            let mut at = 0;
            while at < all.len() {
                all[at] = FormatArg(Format::VARIANTS[at]);
                at += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self.0 {
            Format::PerfScript => "the text of perf script",
            Format::Firefox => "a profile for the Firefox Profiler",
            Format::Speedscope => "a profile for Speedscope",
            Format::Perfetto => "a trace for Perfetto or chrome://tracing",
            Format::Timeline => "a page with a timeline of a trace, for any browser",
            Format::Folded => "lines of stacks and their weight",
        };
        Some(PossibleValue::new(<&str>::from(self.0)).help(help))
    }
}

/// Runs the command.
pub fn run(args: &ExportArgs) -> Result<()> {
    output::distinct(output::named("--output", &args.output), [("the ledger", &args.ledger)])?;
    let ledger = read_ledger(&args.ledger)?;
    let selection = select_task(select(&ledger, args.region.as_deref())?, args.task.as_deref())?;
    // A trace needs no stacks.
    let weigh = match args.format.0 {
        Format::Perfetto | Format::Timeline if args.event.is_some() => {
            bail!(WrongArguments::new("--event selects call stacks, and this format has all crossings: leave it out"))
        }
        Format::Perfetto | Format::Timeline => Weigh::Crossings,
        _ => weigh(&ledger, args.event.as_deref())?,
    };
    // Report an unwritable file before the work, not after it.
    let file = args.output.as_deref().map(|path| OutputFile::create(path, "export")).transpose()?;
    let bytes = Export { ledger: &ledger, selection, weigh: &weigh }.to_bytes(args.format.0);
    let bytes = bytes.with_context(|| args.ledger.display().to_string())?;
    match file {
        Some(file) => file.write(&bytes),
        None => crate::table::emit(&String::from_utf8_lossy(&bytes)),
    }
}
