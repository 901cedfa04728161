//! `tollgate diff`: compares the cost of a command on two kernels, or under two settings or several, and explains the difference.

pub(crate) mod again;
pub(crate) mod asked;
mod noop;
pub(crate) mod runs;
mod saved;
mod scan;
pub(crate) mod settings;
mod sides;

use crate::exec_runs::{self, Failed, Input, Place};
use crate::forms::{self, Form, Forms, Prepared, Target, form};
use crate::output::{self, OutputFile, say};
use crate::stack_args;
use crate::stop::{INTERRUPTED, Stop};
use crate::table::{counted, emit};
use crate::usage::{FAILED, WrongArguments};
use anyhow::{Context, Result};
use asked::{Asked, Named};
use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use indicatif::{ProgressBar, ProgressStyle};
use lab::diff::junit::Unmeasured;
use lab::diff::saved::{Combined, Measurement, Saved};
use lab::diff::statistics::Plan;
use lab::diff::{Diff, Interrupted, Runs, Several, Terms, Verdict, csv, several, sheets};
use lab::report::{self, ReportError};
use runs::{How, Measured, Progress};
use scan::Scan;
use serde_json::Value;
use sides::Sides;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Exit status if B's cost exceeds the limit.
const EXCEEDED: u8 = 1;
/// Exit status if the command failed in a run.
const COMMAND_FAILED: u8 = 119;
/// The end of the message after a second signal: the loss to the user.
const NOTHING: &str = "no result is shown or saved";

/// Compares the cost of a command on two kernels, or under two settings or several, and explains the difference.
#[derive(Args)]
#[command(
    override_usage = "tollgate diff [OPTIONS] [A B] -- COMMAND...\n       tollgate diff [OPTIONS] --side NAME[=SETTINGS]... -- COMMAND...\n       tollgate diff [OPTIONS] --load FILE [--load FILE]...",
    after_help = "\
Examples:
  tollgate diff cloud backports -- hackbench -g 1 -l 100
  tollgate diff ~/linux-before ~/linux-after -- ./benchmark
  tollgate diff --kernel cloud --a mitigations=off -- hackbench
  tollgate diff --cpu skx --cpu icx -- openssl speed -seconds 1 sha256
  tollgate diff --platform hvm --mmu tdp --mmu shadow -- ls -R /usr/include
  tollgate diff --kernel cloud --b preempt=full --layouts 40 -- hackbench
  tollgate diff old/bzImage new/bzImage --fail-above 1% --junit diff.xml --markdown=comment.md -- ./benchmark
  tollgate diff --kernel cloud --side base --side nopti=pti=off --side off=mitigations=off -- hackbench -g 1 -l 20
  tollgate diff --side skx --side 'icx=--cpu icx' --side 'new=--kernel backports' -- ./benchmark
  tollgate diff --scan l=10,20,40 -- hackbench -g 1 -l {l}
  tollgate diff --side before --save before.json -- ./benchmark
  tollgate diff --load before.json --load after.json --reference before
  tollgate diff --side base --side off=mitigations=off --json=all.json --csv=layouts:layouts.csv -- ./benchmark

The comparison is of the cycles of the command's own tasks. Other tasks and interrupts are listed separately, and halted time costs nothing.

Both sides are measured in pairs of runs, each pair under a layout of its own: positions of code and data, order of free pages, size of the environment, distance from timer ticks. Pairs are added until the interval of the difference decides, at 28 at the latest.

Exit status: 0 on success, or:
  1    B costs more than --fail-above allows, also at the lower end of the interval
  2    invalid command line
  119  the command failed in a run, with whatever status (not with --ignore-failure); there is no result
  120 to 125  a kernel or guest failed, as for `tollgate exec`
  126  nothing could run
  127  the command was not found
  130  interrupted: the result is that of the layouts that are complete (a second Ctrl-C ends the measurement at once); also if
       --fail-above or --junit judges such a result that --load shows"
)]
pub struct DiffArgs {
    /// Two kernels, each as for `tollgate exec --kernel`
    #[arg(value_names = ["A", "B"], num_args = 0..=2)]
    kernels: Vec<OsString>,
    /// Appends words to the command line of A's kernel
    #[arg(long, value_name = "WORDS", default_value = "", hide_default_value = true, allow_hyphen_values = true)]
    a: String,
    /// Appends words to the command line of B's kernel
    #[arg(long, value_name = "WORDS", default_value = "", hide_default_value = true, allow_hyphen_values = true)]
    b: String,
    /// Adds a side with a name. Its settings are words for its kernel's command line and options of tollgate exec
    #[arg(long, value_name = "NAME[=SETTINGS]", value_parser = Named::parse, conflicts_with_all = ["kernels", "a", "b"])]
    side: Vec<Named>,
    /// Makes a side for each value: {NAME} in the command and in settings is replaced. With several scans, there is a side for each combination
    #[arg(long, value_name = "NAME=VALUE,...", value_parser = Scan::parse, conflicts_with_all = ["kernels", "a", "b"])]
    scan: Vec<Scan>,
    /// Writes the result to a file with all that --load needs: what is measured, also a single side, or what --load combines
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Shows a saved result instead of measuring; several are combined, and their sides compared. With - it is read from standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kernels", "a", "b", "side", "scan", "layouts", "time_limit", "seed", "jobs", "settle", "sample", "keep"])]
    load: Vec<PathBuf>,
    /// The side with which the others are compared [default: the first one]
    #[arg(long, value_name = "NAME")]
    reference: Option<String>,
    /// Number of layouts, each a pair of runs; with 1 there is no interval, and without --seed no layout is drawn [default: as many as decide, up to 28]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    layouts: Option<u16>,
    /// Begins no further pair of runs after this many seconds of the host's time. The number of layouts then depends on the host
    #[arg(long, value_name = "SECONDS", value_parser = crate::run_cmd::parse_seconds, conflicts_with = "layouts")]
    time_limit: Option<Duration>,
    /// Treats a difference below this percentage as no difference
    #[arg(long, value_name = "PERCENT", default_value = "1%", value_parser = crate::lab_cmd::parse_percent)]
    margin: f64,
    /// Seed of the first layout [default: 1]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Number of parallel runs [default: the host's processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Starts the command once only the kernel's idle tasks have run for this many seconds of virtual time
    #[arg(long, value_name = "SECONDS", default_value = "0.2", value_parser = crate::run_cmd::parse_seconds)]
    settle: Duration,
    /// Exits with status 1 if B costs more than this percentage above A, even at the lower end of the interval
    #[arg(long, value_name = "PERCENT", value_parser = crate::lab_cmd::parse_percent)]
    fail_above: Option<f64>,
    /// Rows per table; 0 for all
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// Prints the complete result as JSON, or writes it to a file
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = forms::OUTPUT, value_parser = forms::target())]
    json: Option<Target>,
    /// Prints Markdown for a pull request, or writes it to a file
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = forms::OUTPUT, value_parser = forms::target())]
    markdown: Option<Target>,
    /// Prints comma-separated values, or writes them to a file: a row for each of the sides, or of the layouts of each side. May be repeated
    #[arg(long, value_name = "ROWS[:FILE]", num_args = 0..=1, require_equals = true, default_missing_value = "sides", value_parser = table())]
    csv: Vec<Table>,
    /// Writes the result as a JUnit test
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Writes a report: one HTML file that needs no network
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Takes the command's call stacks at intervals of virtual time, such as 10us, for the graph of --html
    #[arg(long, value_name = "INTERVAL", value_parser = stack_args::interval)]
    sample: Option<String>,
    /// Keeps the ledgers and the command's output in a directory
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    #[command(flatten)]
    sides: Sides,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", required_unless_present = "load", conflicts_with = "load", last = true, num_args = 1..)]
    command: Vec<OsString>,
}

/// A form of the result.
#[derive(Clone, Copy)]
enum Kind {
    Json,
    Markdown,
    Csv(csv::Rows),
}

/// `--csv[=ROWS[:FILE]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Table {
    rows: csv::Rows,
    target: Target,
}

impl Table {
    /// Parses the option's value: the rows, a file, or both.
    fn parse(value: OsString) -> Result<Self, String> {
        let rows = [(csv::Rows::Sides, "sides"), (csv::Rows::Layouts, "layouts")];
        for (rows, name) in rows {
            match value.as_bytes().strip_prefix(name.as_bytes()) {
                Some([]) => return Ok(Self { rows, target: Target::Output }),
                Some([b':', file @ ..]) => {
                    let target = Target::parse(OsStr::from_bytes(file).to_owned())?;
                    return Ok(Self { rows, target });
                }
                _ => {}
            }
        }
        // A name of a file has a dot or a slash, so that misspelled rows make no file.
        match Target::parse(value)? {
            Target::File(path) if !path.as_os_str().as_bytes().iter().any(|byte| b"./".contains(byte)) => {
                let name = path.display();
                Err(format!("there are rows of sides and of layouts; a file is named as in ./{name} or sides:{name}"))
            }
            target => Ok(Self { rows: csv::Rows::Sides, target }),
        }
    }
}

/// Returns the parser of the value of `--csv`.
fn table() -> impl TypedValueParser<Value = Table> {
    OsStringValueParser::new().try_map(Table::parse)
}

/// Reports an invalid command line, as the parser of `program` does.
fn wrong_use(mut program: clap::Command, text: &str) -> ! {
    program.build();
    let diff = program.find_subcommand_mut("diff").expect("the command is in the list of commands");
    diff.error(ErrorKind::ArgumentConflict, text).exit()
}

/// Runs the command. `program` is the parser of the whole command line.
pub fn run(args: &DiffArgs, program: clap::Command) -> Result<ExitCode> {
    match args.kernels.len() {
        0 | 2 => {}
        _ => wrong_use(
            program,
            "two kernels are compared, A and B: to compare settings of one kernel, give it by --kernel",
        ),
    }
    if !args.kernels.is_empty() && (0..2).any(|side| args.sides.kernel(side).is_some()) {
        wrong_use(program, "kernels are given as A and B, or by --kernel");
    }
    if !args.load.is_empty() {
        if args.sides != Sides::default() {
            wrong_use(program, "--load shows a saved measurement, on which options of tollgate exec have no effect");
        }
        return load(args);
    }
    let named = !args.side.is_empty() || !args.scan.is_empty();
    let (asked, reference) = match asked(args) {
        Ok(asked) => asked,
        Err(text) => wrong_use(program, &text),
    };
    let files = Files::create(args, asked.iter().flat_map(inputs).collect())?;
    let plan = if args.layouts.is_some() { Plan::Fixed } else { Plan::Looks };
    let terms = Terms { plan, margin: args.margin, limit: args.fail_above };
    let stop = Stop::on_signals(NOTHING).context("signals can't be caught")?;
    let (sides, mut remarks) = match measure(args, &asked, reference, &terms, named, &stop)? {
        Measured::Sides(sides, remarks) => (sides, remarks),
        Measured::Failed(failed, sides) => {
            if let Some(file) = files.shown.junit {
                let Failed { interrupted, text, tail: output, .. } = &failed;
                let unmeasured = Unmeasured { sides: &sides, reference, interrupted: *interrupted, text, output };
                file.write(unmeasured.document()?.as_bytes())?;
            }
            failed.report();
            return Ok(ExitCode::from(without_result(&failed)));
        }
    };
    let interrupted = remarks.interrupted;
    let ended = interrupted.map(|interrupted| interrupted.to_string());
    let ended = ended.or_else(|| remarks.time_limit.map(|limit| limit.to_string()));
    remarks.warnings.splice(0..0, ended);
    let command = crate::exec_cmd::command_text(&args.command);
    stop.shows();
    if let Some(file) = files.save {
        let settle = args.settle.as_secs_f64();
        let measurement = Measurement { command: &command, settle, plan, reference, remarks: &remarks };
        let saved = Saved::new(&sides, &measurement).to_json().context("can't write the result as JSON")?;
        file.write(saved.as_bytes())?;
    }
    let files = files.shown;
    let exceeded = match &sides[..] {
        [a, b] if !named => {
            let diff = Diff::new(command, a, b, &terms, remarks);
            show(args, files, &diff)?;
            diff.verdict.exceeded()
        }
        // A single side is measured for a file.
        [side] => {
            remarks.warnings.iter().for_each(|warning| say(&format!("tollgate: {warning}")));
            say_saved(side)?;
            false
        }
        sides => {
            let several = Several::new(command, sides, reference, &terms, remarks)?;
            show(args, files, &several)?;
            several.exceeded()
        }
    };
    Ok(status(exceeded, interrupted))
}

/// Returns the exit status of a measurement whose run has failed. A command that fails has a status of its own, so that none of its own looks like a verdict.
fn without_result(failed: &Failed) -> u8 {
    const OF_EXEC: [u8; 9] = [WrongArguments::STATUS, 120, 121, 122, 123, 124, 125, 126, 127];
    match failed.status {
        _ if failed.by_command => COMMAND_FAILED,
        status if failed.interrupted || OF_EXEC.contains(&status) => status,
        _ => FAILED,
    }
}

/// Returns the exit status of a measurement with a result.
fn status(exceeded: bool, interrupted: Option<Interrupted>) -> ExitCode {
    match exceeded {
        _ if interrupted.is_some() => ExitCode::from(INTERRUPTED),
        true => ExitCode::from(EXCEEDED),
        false => ExitCode::SUCCESS,
    }
}

/// Measures the sides, with a bar on a terminal.
fn measure(
    args: &DiffArgs,
    asked: &[Asked],
    reference: usize,
    terms: &Terms,
    named: bool,
    stop: &Stop,
) -> Result<Measured> {
    let place = Place::new("diff", args.keep.as_deref(), stop)?;
    let how = How {
        layouts: args.layouts,
        time_limit: args.time_limit,
        seed: args.seed,
        jobs: args.jobs,
        settle: args.settle,
        sample: args.sample.as_deref(),
        draws: args.html.is_some(),
        decided: &Verdict::is_decided,
        place: &place,
        stop,
    };
    let bar = ProgressBar::new_spinner();
    bar.set_style(ProgressStyle::with_template("{spinner} {pos} runs, {elapsed} {msg}")?);
    bar.tick();
    let mut progress = |progress: Progress| match progress {
        Progress::Runs(done) => bar.set_position(done as u64),
        Progress::Pairs(1, verdicts) => bar.println(format!("tollgate: {}", runs::found(verdicts, 1, named))),
        Progress::Pairs(pairs, verdicts) => bar.set_message(runs::found(verdicts, pairs, named)),
    };
    let measured = runs::measure(&how, asked, Vec::new(), reference, terms, &mut progress);
    bar.finish_and_clear();
    measured
}

/// Returns what the sides are asked to be, and the position of the reference.
fn asked(args: &DiffArgs) -> Result<(Vec<Asked>, usize), String> {
    if args.side.is_empty() && args.scan.is_empty() {
        if args.reference.is_some() {
            return Err("--reference names one of several sides, which --side or --scan give".to_owned());
        }
        return Ok((asked::two(args).to_vec(), 0));
    }
    let sides = asked::several(&args.side, &args.scan, &args.sides, &args.command)?;
    if sides.len() < 2 && args.save.is_none() {
        return Err("a comparison has at least two sides; with --save a single one can be measured".to_owned());
    }
    if let ([side], Some(option)) = (&sides[..], args.shows()) {
        return Err(format!(
            "{option} shows a comparison, and there is one side, {}: name another one by --side",
            side.name
        ));
    }
    let names: Vec<&str> = sides.iter().map(|side| side.name.as_str()).collect();
    let position = args.reference.as_ref().map(|name| position(name, &names));
    let reference = position.transpose()?.unwrap_or_default();
    Ok((sides, reference))
}

impl DiffArgs {
    /// Returns an option that shows a comparison or decides by it, if one is given.
    fn shows(&self) -> Option<&'static str> {
        let given = [
            ("--html", self.html.is_some()),
            ("--junit", self.junit.is_some()),
            ("--json", self.json.is_some()),
            ("--markdown", self.markdown.is_some()),
            ("--csv", !self.csv.is_empty()),
            ("--fail-above", self.fail_above.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(option, _)| option)
    }

    /// Returns the forms of the result that are asked for.
    fn forms(&self) -> Result<Forms<'_, Kind>, WrongArguments> {
        let documents = [form("--json", Kind::Json, &self.json), form("--markdown", Kind::Markdown, &self.markdown)];
        let tables =
            self.csv.iter().map(|Table { rows, target }| Form { option: "--csv", kind: Kind::Csv(*rows), target });
        Forms::new(documents.into_iter().flatten().chain(tables))
    }
}

/// Returns the position of the reference.
fn position(name: &str, names: &[&str]) -> Result<usize, String> {
    let error = || format!("--reference {name}: there is no side of this name; there are: {}", names.join(", "));
    names.iter().position(|known| *known == name).ok_or_else(error)
}

/// Shows saved results.
fn load(args: &DiffArgs) -> Result<ExitCode> {
    let inputs = args.load.iter().map(|file| ("--load", file.clone())).collect();
    let files = Files::create(args, inputs)?;
    let combined = saved::load(&args.load, args.save.is_some())?;
    let (is_of_two, to_save) = (combined.is_of_two(), combined.remarks_to_save());
    let Combined { command, settle, sides, reference, plan, remarks } = combined;
    let names: Vec<&str> = sides.iter().map(|side| side.name.as_str()).collect();
    let reference = position(args.reference.as_ref().unwrap_or(&reference), &names).map_err(WrongArguments::new)?;
    if let Some(file) = files.save {
        let measurement = Measurement { command: &command, settle, plan, reference, remarks: &to_save };
        let saved = Saved::new(&sides, &measurement).to_json().context("can't write the result as JSON")?;
        file.write(saved.as_bytes())?;
    }
    let files = files.shown;
    if let [side] = &sides[..] {
        say_saved(side)?;
        return Ok(ExitCode::SUCCESS);
    }
    let terms = Terms { plan, margin: args.margin, limit: args.fail_above };
    // Whoever only looks at an interrupted measurement has what was asked for; a verdict or a test has the status of the measurement.
    let decides = args.fail_above.is_some() || args.junit.is_some();
    let interrupted = remarks.interrupted.filter(|_| decides);
    let exceeded = match &sides[..] {
        // It is shown as it was when it was measured.
        [a, b] if is_of_two && reference == 0 => {
            let diff = several::of_two(command, a, b, &terms, remarks)?;
            show(args, files, &diff)?;
            diff.verdict.exceeded()
        }
        sides => {
            let several = Several::new(command, sides, reference, &terms, remarks)?;
            show(args, files, &several)?;
            several.exceeded()
        }
    };
    Ok(status(exceeded, interrupted))
}

/// Says what was saved of a single side, which is compared with nothing.
fn say_saved(side: &Runs) -> Result<()> {
    let are = if side.runs.len() == 1 { "is" } else { "are" };
    emit(&format!("{}: {} {are} saved.\n", side.name, counted(side.runs.len(), "layout", "layouts")))
}

/// Returns what may be files that a side's runs read.
fn inputs(side: &Asked) -> Vec<Input> {
    let kernel = side.kernel.iter().map(|kernel| ("a kernel", PathBuf::from(kernel)));
    kernel.chain(exec_runs::inputs(&side.options, &side.command)).collect()
}

/// The files that are written.
struct Files {
    save: Option<OutputFile>,
    shown: ShownFiles,
}

/// What shows the result: what is printed, and the files for readers and programs.
struct ShownFiles {
    forms: Prepared<Kind>,
    junit: Option<OutputFile>,
    html: Option<OutputFile>,
}

impl Files {
    /// Prepares the files. None of them is one of the `inputs`.
    fn create(args: &DiffArgs, inputs: Vec<Input>) -> Result<Self> {
        let outputs = [("--save", &args.save), ("--junit", &args.junit), ("--html", &args.html)];
        let outputs = outputs.into_iter().filter_map(|(option, path)| output::named(option, path));
        let forms = args.forms()?;
        output::distinct(outputs.chain(forms.named()), inputs)?;
        let file =
            |path: &Option<PathBuf>, what| path.as_deref().map(|path| OutputFile::create(path, what)).transpose();
        let (junit, html) = (file(&args.junit, "test result")?, file(&args.html, "report")?);
        let shown = ShownFiles { forms: forms.create()?, junit, html };
        Ok(Self { save: file(&args.save, "result")?, shown })
    }
}

/// A result in its forms.
trait Shown {
    fn document(&self) -> serde_json::Result<Value>;
    fn warnings(&self) -> &[String];
    fn text(&self, top: usize) -> String;
    fn markdown(&self, top: usize) -> String;
    fn junit(&self) -> Result<String, ReportError>;
    fn page(&self) -> Result<String, ReportError>;
    fn csv(&self, rows: csv::Rows) -> String;
}

impl Shown for Diff {
    fn document(&self) -> serde_json::Result<Value> {
        serde_json::to_value(self)
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn text(&self, top: usize) -> String {
        sheets::text(self, top)
    }

    fn markdown(&self, top: usize) -> String {
        sheets::markdown(self, top)
    }

    fn junit(&self) -> Result<String, ReportError> {
        self.junit()
    }

    fn page(&self) -> Result<String, ReportError> {
        report::diff_page(self)
    }

    fn csv(&self, rows: csv::Rows) -> String {
        csv::two(self, rows)
    }
}

impl Shown for Several {
    fn document(&self) -> serde_json::Result<Value> {
        serde_json::to_value(self)
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn text(&self, top: usize) -> String {
        several::text(self, top)
    }

    fn markdown(&self, top: usize) -> String {
        several::markdown(self, top)
    }

    fn junit(&self) -> Result<String, ReportError> {
        self.junit()
    }

    fn page(&self) -> Result<String, ReportError> {
        report::several_page(self)
    }

    fn csv(&self, rows: csv::Rows) -> String {
        csv::several(self, rows)
    }
}

/// Prints a result and writes its files.
fn show(args: &DiffArgs, files: ShownFiles, result: &impl Shown) -> Result<()> {
    if files.forms.printed().is_some() {
        // The output is for programs, and a person does not see the warnings in it.
        result.warnings().iter().for_each(|warning| say(&format!("tollgate: {warning}")));
    }
    let top = if args.top == 0 { usize::MAX } else { args.top };
    let form = |kind| match kind {
        Kind::Json => Ok(format!("{:#}\n", result.document().context("can't write the result as JSON")?)),
        Kind::Markdown => Ok(result.markdown(top)),
        Kind::Csv(rows) => Ok(result.csv(rows)),
    };
    files.forms.show(form, || result.text(top))?;
    if let Some(file) = files.junit {
        file.write(result.junit()?.as_bytes())?;
    }
    if let Some(file) = files.html {
        file.write(result.page()?.as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_a_file_are_told_apart() {
        let parsed = |text: &str| Table::parse(text.into());
        let table = |rows, file: &str| Ok(Table { rows, target: Target::parse(file.into()).unwrap() });
        assert_eq!(parsed("sides"), table(csv::Rows::Sides, "-"));
        assert_eq!(parsed("layouts"), table(csv::Rows::Layouts, "-"));
        assert_eq!(parsed("layouts:a:b"), table(csv::Rows::Layouts, "a:b"));
        assert_eq!(parsed("sides:-"), table(csv::Rows::Sides, "-"));
        assert_eq!(parsed("layouts.csv"), table(csv::Rows::Sides, "layouts.csv"));
        assert_eq!(parsed("layouts:").unwrap_err(), "the name of the file is empty");
        assert_eq!(
            parsed("layots").unwrap_err(),
            "there are rows of sides and of layouts; a file is named as in ./layots or sides:layots"
        );
    }
}
