//! Runs of `tollgate exec` for a measurement: child processes, whose ledgers have what is measured.

use crate::exec_cmd::{END, ENDED, ExecArgs};
use crate::output::say;
use crate::stop::{INTERRUPTED, Stop};
use crate::table::read_ledger;
use crate::usage::WrongArguments;
use anyhow::{Context, Result, anyhow};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use lab::diff::runner::{Ended, killed, status_text};
use ledger::Profile;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options of `exec` that a measurement does not support, or defines itself.
const OWN: [&str; 18] = [
    "add_opened",
    "controlled",
    "ledger",
    "json",
    "seed",
    "settle",
    "escape",
    "console",
    "command",
    "boot",
    "record",
    "replay",
    "sample",
    "call_graph",
    "call_sites",
    "trace",
    "join",
    "joinable",
];

/// Returns the options of `exec` that a measurement supports.
pub fn options() -> Vec<Arg> {
    let exec = ExecArgs::augment_args(Command::new("exec"));
    exec.get_arguments()
        .filter(|arg| !OWN.contains(&arg.get_id().as_str()) && arg.get_long().is_some())
        .cloned()
        .collect()
}

/// Returns the words of an option of `exec` on the command line: none if it is not given.
pub fn given(option: &Arg, matches: &ArgMatches) -> Vec<OsString> {
    let id = option.get_id().as_str();
    if matches.value_source(id) != Some(ValueSource::CommandLine) {
        return Vec::new();
    }
    let name = format!("--{}", option.get_long().unwrap_or_default());
    if !option.get_action().takes_values() {
        return vec![name.into()];
    }
    let values = matches.get_raw_occurrences(id).into_iter().flatten().flatten();
    let word = |value: &OsStr| {
        let mut word = OsString::from(format!("{name}="));
        word.push(value);
        word
    };
    values.map(word).collect()
}

/// Returns the value of an option among words, if it is given.
pub fn value<'a>(words: impl Iterator<Item = &'a OsString>, name: &str) -> Option<&'a str> {
    words.filter_map(|word| word.to_str()?.strip_prefix("--")?.strip_prefix(name)?.strip_prefix('=')).next()
}

/// Returns the first line of an error of the parser, and its tip.
pub fn described(error: &clap::Error) -> String {
    let text = error.to_string();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let tip = lines.find(|line| line.starts_with("tip: ") || line.starts_with("[possible values"));
    let tip = tip.map_or_else(String::new, |tip| format!("; {}", tip.trim_start_matches("tip: ")));
    format!("{}{tip}", first.trim_start_matches("error: "))
}

/// Checks options of a run, as `exec` does, before anything is run.
pub fn check(options: &[OsString]) -> Result<()> {
    let line = [OsStr::new("exec")]
        .into_iter()
        .chain(options.iter().map(|word| &**word))
        .chain(["--", "true"].map(OsStr::new));
    let matches = ExecArgs::augment_args(Command::new("exec")).try_get_matches_from(line);
    let args = matches.and_then(|matches| ExecArgs::from_arg_matches(&matches));
    // Options that exclude each other, for instance.
    let args = args.map_err(|error| WrongArguments::new(described(&error)))?;
    args.check().map(drop)
}

/// What may be a file that a command reads, with the word that names it.
pub type Input = (&'static str, PathBuf);

/// Returns what may be files that a run with these options reads.
pub fn inputs(options: &[OsString], command: &[OsString]) -> Vec<Input> {
    let values = |name: &'static str| {
        let all = options.iter().filter_map(move |word| value(std::iter::once(word), &name[2..]));
        all.map(move |value| (name, PathBuf::from(value)))
    };
    let cpu =
        values("--cpu").filter_map(|(name, value)| Some((name, Profile::file_in(value.to_str()?)?.to_path_buf())));
    let words = command.iter().map(|word| ("the command", PathBuf::from(word)));
    values("--kernel").chain(values("--modules")).chain(values("--add")).chain(cpu).chain(words).collect()
}

/// What a run is given.
pub struct Given<'a> {
    /// Options of `exec`.
    pub options: &'a [OsString],
    /// Virtual time for which the kernel must have been idle.
    pub settle: Duration,
    /// Interval between call stacks.
    pub sample: Option<&'a str>,
    /// Seed of the layout.
    pub seed: Option<u64>,
}

impl Given<'_> {
    /// Returns the arguments of the run.
    pub fn arguments(&self, ledger: &Path, command: &[OsString]) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["exec".into()];
        arguments.extend(self.options.iter().cloned());
        arguments.push(format!("--settle={}", self.settle.as_secs_f64()).into());
        arguments.push("--controlled".into());
        arguments.extend(self.sample.map(|interval| OsString::from(format!("--sample={interval}"))));
        arguments.extend(self.seed.map(|seed| OsString::from(format!("--seed={seed}"))));
        arguments.extend([OsStr::new("--ledger"), ledger.as_os_str(), OsStr::new("--")].map(OsStr::to_owned));
        arguments.extend(command.iter().cloned());
        arguments
    }
}

/// The directory for the files of the runs: the user's, or a temporary one that is removed at the end.
pub struct Place<'a> {
    /// The directory.
    pub path: PathBuf,
    stop: &'a Stop,
}

impl<'a> Place<'a> {
    /// Makes the directory; `name` is that of the command that measures.
    pub fn new(name: &str, keep: Option<&Path>, stop: &'a Stop) -> Result<Self> {
        let own = || std::env::temp_dir().join(format!("tollgate-{name}-{}", std::process::id()));
        let path = keep.map_or_else(own, Path::to_path_buf);
        if keep.is_none() {
            stop.remember(&path);
        }
        std::fs::create_dir_all(&path).with_context(|| format!("can't make the directory {}", path.display()))?;
        Ok(Self { path, stop })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.stop.remove(&self.path);
    }
}

/// A run that failed, or an interruption by the user.
pub struct Failed {
    /// True after an interruption by the user.
    pub interrupted: bool,
    /// What happened, for a person.
    pub text: String,
    /// The exit status of the run.
    pub status: u8,
    /// True if the command itself ended with that status, and not its guest or `exec`.
    pub by_command: bool,
    /// The last lines of the run's output.
    pub tail: Vec<String>,
}

impl Failed {
    /// Returns the failure of a measurement, without the output of a run.
    pub fn of(text: String) -> Self {
        Self { interrupted: false, text, status: crate::usage::FAILED, by_command: false, tail: Vec::new() }
    }

    /// Prints the failure, and the way to measure the command nevertheless.
    pub fn report(&self) {
        say(&format!("tollgate: {}", self.text));
        self.tail.iter().for_each(|line| say(&format!("    | {line}")));
        if self.by_command {
            say("tollgate: --ignore-failure measures a command that fails");
        }
    }
}

/// Returns the reason why `exec` has not run the command of a child process, if that is how the run ended.
fn refusal(status: u8, tail: &[String]) -> Option<&str> {
    let says_so = [crate::usage::FAILED, WrongArguments::STATUS].contains(&status);
    tail.last()?.strip_prefix("tollgate: error: ").filter(|_| says_so)
}

/// Returns the error of runs that could not be executed. A build or an update may have replaced this program while it ran.
pub fn not_executed(program: &Path, error: &std::io::Error) -> anyhow::Error {
    // The kernel's name of a running program whose file is gone.
    let name = program.to_string_lossy();
    let own = name.strip_suffix(" (deleted)").unwrap_or(&name);
    match error.kind() == std::io::ErrorKind::NotFound && !program.exists() {
        true => anyhow!("can't execute the runs: {own} was replaced or removed while it ran; start the command again"),
        false => anyhow!("can't execute the runs: {error}"),
    }
}

/// Removes the ledger that an earlier run has left, so that the one of a failed run is its own.
pub fn make_way(ledger: &Path) -> Result<()> {
    match std::fs::remove_file(ledger) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("can't remove {}", ledger.display()))
        }
        _ => Ok(()),
    }
}

/// Returns true if the ledger of a run says that the command itself ended.
fn command_ended(ledger: &Path) -> bool {
    read_ledger(ledger).is_ok_and(|ledger| ledger.header.metadata.get(END).is_some_and(|end| end == ENDED))
}

/// Returns the first run that failed; `named` names it by its number, and `ledger` is the file that it writes.
pub fn failed<'a>(
    outcomes: &[Ended],
    named: impl Fn(usize) -> String,
    ledger: impl Fn(usize) -> &'a Path,
) -> Option<Failed> {
    let bad = outcomes.iter().enumerate().find_map(|(number, outcome)| {
        let failed = match outcome {
            Ended::Badly(status, tail) => match refusal(*status, tail) {
                // `exec` itself has failed, and not the command.
                Some(why) => Failed { status: *status, ..Failed::of(format!("was not run: {why}")) },
                None => Failed {
                    status: *status,
                    by_command: command_ended(ledger(number)),
                    tail: tail.clone(),
                    ..Failed::of(format!("ended with {}", status_text(*status)))
                },
            },
            Ended::Killed(signal) => Failed::of(killed(*signal)),
            Ended::TooLong => Failed::of("printed too much".to_owned()),
            Ended::Well | Ended::Stopped | Ended::Late => return None,
        };
        Some(Failed { text: format!("{} {}", named(number), failed.text), ..failed })
    });
    let stopped = outcomes.contains(&Ended::Stopped);
    let interrupted = || Failed {
        interrupted: true,
        status: INTERRUPTED,
        ..Failed::of("interrupted before any layout was complete".to_owned())
    };
    bad.or_else(|| stopped.then(interrupted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, ErrorKind};

    #[test]
    fn a_program_that_was_replaced_is_named() {
        let gone =
            not_executed(Path::new("/no/such/tollgate (deleted)"), &Error::from(ErrorKind::NotFound)).to_string();
        assert!(gone.contains(": /no/such/tollgate was replaced or removed while it ran"), "{gone}");
        let other = not_executed(&std::env::current_exe().unwrap(), &Error::from(ErrorKind::NotFound)).to_string();
        assert!(!other.contains("replaced"), "{other}");
    }
}
