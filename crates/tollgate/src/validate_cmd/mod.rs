//! `tollgate validate`: the distance of the modelled processor from the processor of this machine.

mod guest;
mod kept;
mod text;

use crate::exec_cmd::{Kernel, nearest};
use crate::exec_runs::Place;
use crate::model;
use crate::output::{OutputFile, distinct, named, say};
use crate::stop::Stop;
use crate::table::emit;
use anyhow::{Context, Result, anyhow};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
pub use kept::quotation;
use ledger::profile::{Frequency, Profile};
use silicon::host::Processor;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicUsize;
use validate::Validation;
use validate::choice::{Fit, choose};
use validate::linux::Guest;

/// Measures how far the modelled processor is from the processor of this machine.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate validate                            the profile of this machine's processor, or the nearest one
  tollgate validate --quick                    fewer microbenchmarks
  tollgate validate --cpu skx --html page.html
  tollgate validate --save                     `tollgate cpu show` then quotes the result
  tollgate validate --json > result.json
  tollgate validate --from result.json --html page.html

The same programs are executed on this machine and by the models `core` and `flat`. The machine should be idle.

Exit status: 0 on success, or:
  2    invalid command line
  126  nothing could be measured, or a file could not be read or written
  130  interrupted: nothing is shown or saved")]
pub struct ValidateArgs {
    /// Profile: a name from `tollgate cpu list`, or a TOML file [default: that of this machine's processor, or the nearest one]
    #[arg(long, value_name = "PROFILE", conflicts_with = "from")]
    cpu: Option<String>,
    /// Measures less, in less than a minute
    #[arg(long, conflicts_with = "from")]
    quick: bool,
    /// Shows a saved result and measures nothing
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Keeps the result for `tollgate cpu show`
    #[arg(long, conflicts_with = "from")]
    save: bool,
    /// Kernel of the guest in which programs and paths through the kernel run, as for `tollgate exec` [default: this machine's if
    /// its image is readable, else that of a package whose version is nearest; with --quick, of one that was fetched]
    #[arg(long, value_name = "K", conflicts_with = "from")]
    kernel: Option<String>,
    /// Leaves out what needs a guest: programs and paths through the kernel
    #[arg(long, conflicts_with_all = ["from", "kernel"])]
    no_guest: bool,
    /// Writes a report: one HTML file that needs no network
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Prints the complete result as JSON
    #[arg(long)]
    json: bool,
    /// Rows in each table of the largest errors; 0 for all
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
}

/// Runs the command.
pub fn run(args: &ValidateArgs) -> Result<ExitCode> {
    distinct(named("--html", &args.html), named("--from", &args.from))?;
    let html = args.html.as_deref().map(|path| OutputFile::create(path, "report")).transpose()?;
    let stop = Stop::at_first_signal("no result is shown or saved").context("signals can't be caught")?;
    let result = match &args.from {
        Some(file) => Validation::load(file)?,
        None => measured(args, &stop)?,
    };
    stop.shows();
    if args.save {
        kept::keep(&result)?;
    }
    if let Some(html) = html {
        html.write(validate::page::html(&result, lab::report::STYLE)?.as_bytes())?;
    }
    emit(&if args.json { result.json() } else { text::text(&result, args.top) })?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the name of the kernel that is nearest to this machine's, if it is another one than that of `exec`, and says which it is.
fn nearest_kernel(fetch: bool) -> Option<String> {
    let nearest = nearest::nearest(fetch)?;
    say(&format!("tollgate: the guest has Linux {} (--kernel {})", nearest.release, nearest.name));
    Some(nearest.name)
}

/// Returns a profile, and what names it, at the frequency of this machine's core, unless the user has chosen one.
fn at_this_frequency(profile: Profile, name: String) -> Result<(Profile, String)> {
    if profile.options.frequency.is_some() {
        return Ok((profile, name));
    }
    let hz = validate::clock::hz().map_err(|why| anyhow!("the frequency of the core can't be measured: {why}"))?;
    let frequency = Frequency::nearest(hz);
    let profile = profile.at(frequency).map_err(|why| anyhow!("the profile can't have {frequency}: {why}"))?;
    Ok((profile, format!("{name},{frequency}")))
}

/// Returns the result of measurements.
fn measured(args: &ValidateArgs, stop: &Stop) -> Result<Validation> {
    let (profile, fit) = match &args.cpu {
        Some(name) => (model::profile(name, None)?, Fit::Named),
        None => choose(&Processor::of_host())?,
    };
    // A kernel that can't be found is an error before anything is measured.
    if let Some(kernel) = &args.kernel {
        Kernel::find(Some(kernel), None)?;
    }
    let bar = std::io::stderr().is_terminal().then(|| {
        let style = ProgressStyle::with_template("{bar:30} {percent:>3}%  {elapsed}  {wide_msg}");
        ProgressBar::new(1000).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
    });
    let mut progress = |what: &str, part: f64| {
        stop.measures(what);
        if let Some(bar) = &bar {
            bar.set_message(what.to_owned());
            bar.set_position((1000.0 * part) as u64);
        }
    };
    let name = args.cpu.clone().unwrap_or_else(|| profile.name.clone());
    let (profile, name) = at_this_frequency(profile, name)?;
    let place = Place::new("validate", None, stop)?;
    let files = place.path.join("files");
    std::fs::create_dir(&files).with_context(|| format!("can't make the directory {}", files.display()))?;
    let kernel = args.kernel.clone().or_else(|| (!args.no_guest).then(|| nearest_kernel(!args.quick)).flatten());
    let exec = guest::Exec { ledgers: &place.path, files: &files, profile: name, kernel, runs: AtomicUsize::new(0) };
    let guest = (!args.no_guest).then_some(&exec as &dyn Guest);
    let result = validate::run::run(&profile, fit.text(), args.quick, guest, &mut progress);
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    result.context("nothing could be measured")
}
