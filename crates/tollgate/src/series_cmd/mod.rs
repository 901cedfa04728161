//! `tollgate series`: the cost of a command over a range of commits or patches of a kernel tree, and the commit that made it dearer.

mod build;
mod remarks;
mod state;
mod tree;
mod workshop;

use crate::diff_cmd::again;
use crate::diff_cmd::settings;
use crate::exec_cmd::command_text;
use crate::exec_runs;
use crate::forms::{self, Forms, Prepared, Target, form};
use crate::output::{self, OutputFile, say};
use crate::stat_cmd::options::Passed;
use crate::stop::{INTERRUPTED, Stop};
use crate::usage::{FAILED, WrongArguments};
use anyhow::{Context, Result, bail};
use build::{Builder, Way};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use lab::diff::origin::Provenance;
use lab::diff::series::course::Course;
use lab::diff::series::{About, Outcome, Series};
use lab::diff::statistics::Plan;
use lab::diff::{Remarks, Runs, Terms};
use lab::report;
use state::State;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tree::Tree;
use workshop::{Measuring, Shop};

/// Seconds of virtual time after which a run ends, unless the user sets a limit: a kernel that hangs is a row like another one.
const LIMIT: &str = "--limit=120";
/// Exit status if a search has found nothing.
const NOTHING_FOUND: u8 = 1;
/// The end of the message after a second signal: the loss to the user.
const NOTHING: &str = "no result is shown; what is complete is kept, and the same command line continues from there";

/// Measures a command over a range of commits or patches of a kernel tree, and finds the commit that made it slower.
#[derive(Args)]
#[command(
    override_usage = "tollgate series [OPTIONS] --tree DIR --range A..B -- COMMAND...\n       tollgate series [OPTIONS] --tree DIR --patches DIR -- COMMAND...",
    after_help = "\
Examples:
  tollgate series --tree ~/linux --range v6.12..HEAD -- hackbench -g 1 -l 100
  tollgate series --tree ~/linux --range HEAD~20.. --config ~/configs/small --html series.html -- ./benchmark
  tollgate series --tree ~/linux --patches ~/patches/v3 --base v6.12 -- ./benchmark
  tollgate series --tree ~/linux --range v6.11..v6.12 --bisect --above 2% -- perf bench sched pipe -l 2000
  tollgate series --tree ~/linux --range HEAD~5.. --make-args 'LLVM=1' --cpu zen3 --json=series.json --csv=series.csv -- ./benchmark
  tollgate series --tree ~/scripts --range main~5.. --build './build-kernel --out $TOLLGATE_OUT' -- ./benchmark

Each commit is checked out in a work tree of its own, and built in a directory of its own; the checkout in --tree is not touched. Kernels and runs are kept: the same command line goes on where an interrupted series ended, and another command uses the same kernels. A commit that can't be built, or whose kernel does not boot, is a row of the result.

The command of --build runs in the work tree. TOLLGATE_OUT is a directory for its files, TOLLGATE_COMMIT the commit, TOLLGATE_JOBS the number of jobs, and INSTALL_MOD_PATH the place for modules, as for make modules_install.

Exit status: 0 on success, or:
  1    --bisect found no commit
  2    invalid command line
  126  the first commit, or with --bisect the last one, can't be built or measured; or nothing could run
  130  interrupted"
)]
pub struct SeriesArgs {
    /// The kernel tree: a git repository
    #[arg(long, value_name = "DIR")]
    tree: PathBuf,
    /// The commits from A to B, both included; A.. ends at HEAD. Of merges, the first parents are followed
    #[arg(long, value_name = "A..B", required_unless_present = "patches", conflicts_with = "patches")]
    range: Option<String>,
    /// Patches (*.patch, *.diff), applied one after the other in the order of their names, or of the file `series` as quilt has it
    #[arg(long, value_name = "DIR")]
    patches: Option<PathBuf>,
    /// The commit below the patches
    #[arg(long, value_name = "COMMIT", default_value = "HEAD", conflicts_with = "range")]
    base: String,
    /// Searches for the first commit that costs more than --above, in a logarithmic number of builds
    #[arg(long, requires = "above")]
    bisect: bool,
    /// The limit of the search: a percentage above the first commit
    #[arg(long, value_name = "PERCENT", requires = "bisect", value_parser = crate::lab_cmd::parse_percent)]
    above: Option<f64>,
    /// The configuration of the kernels, updated by make olddefconfig [default: .config of the tree]
    #[arg(long, value_name = "FILE", conflicts_with = "build")]
    config: Option<PathBuf>,
    /// Further arguments of make, such as 'LLVM=1 KCFLAGS=-O1'. May be repeated
    #[arg(long, value_name = "ARGUMENTS", allow_hyphen_values = true, conflicts_with = "build")]
    make_args: Vec<String>,
    /// Builds by a command of the shell instead of make
    #[arg(long, value_name = "COMMAND")]
    build: Option<String>,
    /// Path of the image that --build makes, below TOLLGATE_OUT or the tree [default: arch/x86/boot/bzImage, bzImage or vmlinuz]
    #[arg(long, value_name = "PATH", requires = "build")]
    image: Option<PathBuf>,
    /// Directory of the work tree, builds, kernels and runs [default: one for each repository in ~/.cache/tollgate/series]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Builds and measures all commits again
    #[arg(long)]
    fresh: bool,
    /// Number of layouts of each pair [default: as many as decide, up to 28]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    layouts: Option<u16>,
    /// Treats a difference below this percentage as no difference
    #[arg(long, value_name = "PERCENT", default_value = "1%", value_parser = crate::lab_cmd::parse_percent)]
    margin: f64,
    /// Seed of the first layout [default: 1]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Number of parallel runs, and of jobs of make [default: the host's processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Starts the command once only the kernel's idle tasks have run for this many seconds of virtual time
    #[arg(long, value_name = "SECONDS", default_value = "0.2", value_parser = crate::run_cmd::parse_seconds)]
    settle: Duration,
    /// Prints the complete result as JSON, or writes it to a file
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = forms::OUTPUT, value_parser = forms::target())]
    json: Option<Target>,
    /// Prints Markdown for a pull request or a mail, or writes it to a file
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = forms::OUTPUT, value_parser = forms::target())]
    markdown: Option<Target>,
    /// Prints comma-separated values, or writes them to a file: a row for each commit
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = forms::OUTPUT, value_parser = forms::target())]
    csv: Option<Target>,
    /// Writes a report: one HTML file that needs no network
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Keeps the ledgers and the command's output in a directory
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    #[command(flatten)]
    passed: Passed,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", required = true, last = true, num_args = 1..)]
    command: Vec<OsString>,
}

/// A form of the result.
#[derive(Clone, Copy)]
enum Kind {
    Json,
    Markdown,
    Csv,
}

/// Returns the hash of what decides the runs in a kernel, apart from the files of the host.
fn measured_by(args: &SeriesArgs) -> Result<String> {
    let program = std::env::current_exe().and_then(std::fs::read).context("can't read this program's own file")?;
    let mut options: Vec<&[u8]> = args.passed.words.iter().map(|word| word.as_bytes()).collect();
    options.sort_unstable();
    let numbers = format!("{:?} {:?} {}", args.settle, args.seed, args.command.len());
    let command = args.command.iter().map(|word| word.as_bytes());
    Ok(state::hash([program.as_slice(), numbers.as_bytes()].into_iter().chain(command).chain(options)))
}

/// Returns how kernels are built.
fn way(args: &SeriesArgs) -> Result<Way> {
    if let Some(command) = &args.build {
        return Ok(Way::Command(command.clone(), args.image.clone()));
    }
    let mut words = Vec::new();
    for text in &args.make_args {
        words.extend(settings::words(text).map_err(|error| WrongArguments::new(format!("--make-args: {error}")))?);
    }
    let config = build::configuration(args.config.as_deref(), &args.tree)?;
    Ok(Way::Make(config, words.into_iter().map(OsString::from).collect()))
}

/// Returns version, seeds, files and the command that measures the same again.
fn provenance(of_runs: Provenance, course: &Course) -> Provenance {
    let runs: Vec<&Runs> = (0..course.outcomes.len()).filter_map(|commit| course.runs(commit)).collect();
    let seeds = runs.iter().flat_map(|runs| runs.runs.iter().filter_map(|run| run.seed));
    let most = runs.iter().max_by_key(|runs| runs.runs.len());
    let ends = most.and_then(|runs| runs.runs.first()?.seed.zip(runs.runs.last()?.seed));
    Provenance {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        seeds: seeds.max().and(ends).map(|(first, last)| [first, last]),
        again: again::command(crate::config::line().into_iter(), None),
        ..of_runs
    }
}

/// Runs the command.
pub fn run(args: &SeriesArgs) -> Result<ExitCode> {
    if let Some(name) = ["kernel", "modules"].into_iter().find(|name| args.passed.value(name).is_some()) {
        let text = format!("--{name} has no effect: the kernels of a series are built from its commits");
        bail!(WrongArguments::new(text));
    }
    exec_runs::check(&args.passed.words)?;
    let config = args.config.iter().map(|path| ("--config", path.clone()));
    let inputs = config.chain(exec_runs::inputs(&args.passed.words, &args.command));
    let forms = [
        form("--json", Kind::Json, &args.json),
        form("--markdown", Kind::Markdown, &args.markdown),
        form("--csv", Kind::Csv, &args.csv),
    ];
    let forms = Forms::new(forms.into_iter().flatten())?;
    output::distinct(output::named("--html", &args.html).into_iter().chain(forms.named()), inputs)?;
    let forms = forms.create()?;
    let html = args.html.as_deref().map(|path| OutputFile::create(path, "report")).transpose()?;
    let directory = match &args.state {
        Some(directory) => directory.clone(),
        None => state::default_directory(&tree::common_directory(&args.tree)?)?,
    };
    tree::common_directory(&args.tree)?;
    let way = way(args)?;
    let state = State::open(&directory, &args.tree)?;
    let tree = Tree::open(&args.tree, &state.tree())?;
    let (commits, range) = match (&args.range, &args.patches) {
        (Some(range), _) => (tree.range(range)?, format!("{range} of {}", args.tree.display())),
        (None, Some(patches)) => {
            let text = format!("{} on {} of {}", patches.display(), args.base, args.tree.display());
            (tree.patched(&args.base, patches)?, text)
        }
        (None, None) => bail!(WrongArguments::new("--range or --patches says which commits are measured")),
    };
    let stop = Stop::on_signals(NOTHING).context("signals can't be caught")?;
    let jobs = args.jobs.map(usize::from);
    let jobs = jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let by = build::built_by(&way)?;
    let builder = Builder { state: &state, way, jobs, by, fresh: args.fresh };
    let plan = if args.layouts.is_some() { Plan::Fixed } else { Plan::Looks };
    let mut options = args.passed.words.clone();
    if ["limit", "timeout"].iter().all(|name| args.passed.value(name).is_none()) {
        options.push(LIMIT.into());
    }
    let measuring = Measuring {
        layouts: args.layouts,
        seed: args.seed,
        jobs: args.jobs,
        settle: args.settle,
        keep: args.keep.clone(),
        terms: Terms { plan, margin: args.margin, limit: None },
        options,
        command: args.command.clone(),
        by: measured_by(args)?,
        fresh: args.fresh,
    };
    let bar = ProgressBar::new_spinner();
    bar.set_style(ProgressStyle::with_template("{spinner} {elapsed} {msg}")?);
    bar.enable_steady_tick(Duration::from_millis(200));
    let mut shop = Shop::new(&tree, &state, builder, &measuring, &commits, &stop, bar.clone());
    let (course, bisection) = match args.above {
        None => (Course::of_all(&mut shop, &commits)?, None),
        Some(above) => {
            let (course, bisection) = Course::of_search(&mut shop, &commits, above, &measuring.terms)?;
            (course, Some(bisection))
        }
    };
    bar.finish_and_clear();
    if let Some(Outcome::NotBuilt(broken) | Outcome::NotMeasured(broken)) =
        course.needed.map(|commit| &course.outcomes[commit])
    {
        let commit = course.needed.unwrap_or_default();
        let place = if commit == 0 { "first" } else { "last" };
        let name = &commits[commit].name;
        say(&format!("tollgate: the series needs the {place} commit, {name}: {}", broken.why));
        broken.log.iter().for_each(|line| say(&format!("    | {line}")));
        if matches!(course.outcomes[commit], Outcome::NotBuilt(_)) {
            say(&format!("tollgate: the whole log of the build is {}", state.directory.join("build.log").display()));
        }
        return Ok(ExitCode::from(FAILED));
    }
    let Remarks { warnings, notes, provenance: of_runs, .. } = shop.remarks.clone();
    let (warnings, notes) = (remarks::shared(&warnings, &commits), remarks::shared(&notes, &commits));
    if shop.found > 0 {
        let found = shop.found;
        say(&format!(
            "tollgate: {} of an earlier series; one of them was repeated and gave the same result",
            if found == 1 {
                "the runs of 1 commit are those".to_owned()
            } else {
                format!("the runs of {found} commits are those")
            }
        ));
    }
    let provenance = provenance(of_runs, &course);
    let about = About { command: command_text(&args.command), range, interrupted: course.stopped };
    let rows = commits.iter().cloned().zip(course.outcomes).collect();
    let series = Series::new(
        about,
        rows,
        bisection,
        &measuring.terms,
        Remarks { warnings, notes, provenance, ..Remarks::default() },
    );
    stop.shows();
    show(&series, forms, html)?;
    if course.stopped {
        say("tollgate: interrupted; the same command line continues from here");
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let nothing = series.bisection.as_ref().is_some_and(|bisection| bisection.found.is_none());
    Ok(if nothing { ExitCode::from(NOTHING_FOUND) } else { ExitCode::SUCCESS })
}

/// Prints the series, and writes its page.
fn show(series: &Series, forms: Prepared<Kind>, html: Option<OutputFile>) -> Result<()> {
    if forms.printed().is_some() {
        // The output is for programs, and a person does not see the warnings in it.
        series.warnings.iter().for_each(|warning| say(&format!("tollgate: {warning}")));
    }
    let form = |kind| match kind {
        Kind::Json => {
            let document = serde_json::to_value(series).context("can't write the result as JSON")?;
            Ok(format!("{document:#}\n"))
        }
        Kind::Markdown => Ok(series.markdown()),
        Kind::Csv => Ok(series.csv()),
    };
    forms.show(form, || series.text())?;
    match html {
        Some(file) => file.write(report::series_page(series)?.as_bytes()),
        None => Ok(()),
    }
}
