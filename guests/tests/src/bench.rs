//! The place where one test runs: a directory of its own, a deadline, and checks of what commands did.

use crate::processes::Running;
use crate::run::Run;
use crate::test::{Outcome, Stop};
use regex::bytes::RegexBuilder;
use std::cell::Cell;
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The lines of an output that a failure shows.
const TAIL: usize = 30;

pub struct Bench {
    directory: TempDir,
    limit: Duration,
    deadline: Instant,
    outputs: Cell<usize>,
}

/// The wanted end of a command.
pub enum Wanted {
    Status(i32),
    /// Any status but 0, and no signal.
    AnError,
}

impl From<i32> for Wanted {
    fn from(status: i32) -> Self {
        Self::Status(status)
    }
}

/// What a command printed, standard error included.
pub struct Output {
    command: String,
    pub bytes: Vec<u8>,
}

/// A command that runs beside the test.
pub struct Background {
    command: String,
    running: Running,
    output: PathBuf,
}

impl Bench {
    pub fn new(limit: Duration) -> Result<Self, Stop> {
        let directory = tempfile::Builder::new().prefix("tollgate-guest-").tempdir()?;
        Ok(Self { directory, limit, deadline: Instant::now() + limit, outputs: Cell::new(0) })
    }

    /// Returns the path of a file in the test's directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts a command and lets it run.
    pub fn start(&self, run: &Run) -> Result<Background, Stop> {
        self.outputs.set(self.outputs.get() + 1);
        let output = self.file(&format!("output.{}", self.outputs.get()));
        let file = File::options().create_new(true).append(true).open(&output)?;
        let running = Running::start(run, &file, &file)?;
        Ok(Background { command: run.shown(), running, output })
    }

    /// Waits for a command, and returns its status and output.
    fn finish(&self, mut background: Background) -> Result<(i32, Output), Stop> {
        let status = background.running.wait(self.deadline)?;
        let output = Output { command: background.command, bytes: std::fs::read(&background.output)? };
        match status {
            Some(status) => Ok((status, output)),
            None => {
                Err(output.failed(&format!("the test has taken longer than its limit of {} s", self.limit.as_secs())))
            }
        }
    }

    /// Waits for a command that must end with the wanted status and print a line that matches the pattern.
    pub fn expect_of(&self, background: Background, wanted: impl Into<Wanted>, pattern: &str) -> Result<Output, Stop> {
        let (status, output) = self.finish(background)?;
        match wanted.into() {
            Wanted::Status(wanted) if status != wanted => {
                Err(output.failed(&format!("status {status}, wanted {wanted}")))
            }
            Wanted::AnError if status == 0 || status >= 128 => {
                Err(output.failed(&format!("status {status}, wanted an error")))
            }
            _ => output.shows(pattern),
        }
    }

    /// Runs a command that must end with the wanted status and print a line that matches the pattern.
    pub fn expect(&self, run: &Run, wanted: impl Into<Wanted>, pattern: &str) -> Result<Output, Stop> {
        self.expect_of(self.start(run)?, wanted, pattern)
    }

    /// Checks that two files of the test are equal.
    pub fn equal(&self, a: &str, b: &str) -> Outcome {
        let (left, right) = (std::fs::read(self.file(a))?, std::fs::read(self.file(b))?);
        if left == right {
            return Ok(());
        }
        let at = left.iter().zip(&right).take_while(|(left, right)| left == right).count();
        let sizes = (left.len(), right.len());
        Err(Stop::Failed(format!("'{a}' ({} bytes) and '{b}' ({} bytes) differ from byte {at} on", sizes.0, sizes.1)))
    }

    /// Waits until something is so. The test's limit is the limit.
    pub fn until(&self, mut so: impl FnMut() -> bool, what: &str) -> Outcome {
        while !so() {
            if Instant::now() >= self.deadline {
                return Err(Stop::Failed(format!("in {} s, {what} has not happened", self.limit.as_secs())));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Output {
    pub fn failed(&self, reason: &str) -> Stop {
        let text = String::from_utf8_lossy(&self.bytes);
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(TAIL)..].iter().map(|line| format!("\n  | {line}"));
        Stop::Failed(format!("{reason}\n  $ {}{}", self.command, tail.collect::<String>()))
    }

    /// Checks that a line matches the pattern.
    pub fn shows(self, pattern: &str) -> Result<Self, Stop> {
        match self.count(pattern) {
            0 => Err(self.failed(&format!("no line matches '{pattern}'"))),
            _ => Ok(self),
        }
    }

    /// Checks that no line matches the pattern.
    pub fn lacks(self, pattern: &str) -> Result<Self, Stop> {
        match self.count(pattern) {
            0 => Ok(self),
            many => Err(self.failed(&format!("{many} lines match '{pattern}'"))),
        }
    }

    fn count(&self, pattern: &str) -> usize {
        let pattern = RegexBuilder::new(pattern).unicode(false).build().expect("patterns of tests are correct");
        self.bytes.split(|byte| *byte == b'\n').filter(|line| pattern.is_match(line)).count()
    }

    /// Returns the output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    /// Returns the output without figures with a decimal point: times, which depend on the platform.
    pub fn without_times(&self) -> String {
        let times = regex::Regex::new(r"[0-9]+\.[0-9]+").expect("the pattern is correct");
        times.replace_all(&self.text(), "").into_owned()
    }

    /// Checks that this output is another one, times excepted.
    pub fn is_but_for_times(&self, other: &str) -> Outcome {
        let mine = self.without_times();
        if mine == other {
            return Ok(());
        }
        let differs = mine.lines().zip(other.lines()).find(|(mine, other)| mine != other);
        Err(self.failed(&format!("the output is another one; the first lines that differ: {differs:?}")))
    }
}

/// Returns a TCP port that no program of this host uses.
pub fn free_port() -> Result<u16, Stop> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Succeeds if a program is installed.
pub fn need(program: &str) -> Outcome {
    let path = std::env::var_os("PATH").unwrap_or_default();
    match std::env::split_paths(&path).any(|directory| Path::new(&directory).join(program).is_file()) {
        true => Ok(()),
        false => Err(Stop::Skipped(format!("{program} is not installed"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bench() -> Bench {
        Bench::new(Duration::from_secs(60)).unwrap()
    }

    fn shell(script: &str) -> Run {
        Run::new("sh").with("-c", script)
    }

    #[test]
    fn status_and_output_are_checked() {
        let script = "echo one; echo two >&2; exit 3";
        bench().expect(&shell(script), 3, "^two$").unwrap().shows("^one$").unwrap().lacks("three").unwrap();
        bench().expect(&shell(script), Wanted::AnError, "one").unwrap();
        let reason = |result: Result<Output, Stop>| result.err().unwrap().to_string();
        let told = reason(bench().expect(&shell(script), 0, "one"));
        assert_eq!(told, format!("status 3, wanted 0\n  $ sh -c '{script}'\n  | one\n  | two"));
        assert!(reason(bench().expect(&shell(script), 3, "^three")).starts_with("no line matches '^three'"));
        assert!(reason(bench().expect(&shell("exit 0"), Wanted::AnError, "")).starts_with("status 0, wanted an error"));
        assert!(reason(bench().expect(&shell("kill -9 $$"), Wanted::AnError, "")).starts_with("status 137"));
    }

    #[test]
    fn a_test_that_takes_too_long_ends_and_shows_its_output() {
        let bench = Bench::new(Duration::from_millis(500)).unwrap();
        let stop = bench.expect(&shell("echo begun; sleep 1000"), 0, "").err().unwrap().to_string();
        assert!(stop.starts_with("the test has taken longer than its limit of 0 s"), "{stop}");
        assert!(bench.until(|| false, "a miracle").is_err());
    }

    #[test]
    fn files_are_compared_by_their_bytes() {
        let bench = bench();
        for (name, text) in [("a", "12345"), ("b", "12345"), ("c", "12x45")] {
            std::fs::write(bench.file(name), text).unwrap();
        }
        bench.equal("a", "b").unwrap();
        let told = bench.equal("a", "c").unwrap_err().to_string();
        assert_eq!(told, "'a' (5 bytes) and 'c' (5 bytes) differ from byte 2 on");
        assert!(bench.equal("a", "nowhere").is_err());
    }

    #[test]
    fn outputs_are_compared_without_times() {
        let output = |text: &str| Output { command: String::new(), bytes: text.into() };
        output("[  1.25] x 3").is_but_for_times(&output("[  7.5] x 3").without_times()).unwrap();
        assert!(output("[  1.25] x 3").is_but_for_times(&output("[  1.25] x 4").without_times()).is_err());
    }
}
