//! The modelled Linux of a validation: each command is a run of `tollgate exec`, whose ledger has its instructions.

use crate::table::read_ledger;
use ledger::summary::{By, Cause};
use ledger::{Context, TICKS_PER_CYCLE};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use validate::linux::{Files, Guest, GuestError, Ran};
use validate::workloads::ENVIRONMENT;

/// Statuses of `tollgate exec` from this one on say that the command did not run, or did not end.
const NOT_RUN: i32 = 120;
/// Seconds after which a command is given up.
const TIMEOUT: &str = "300";
/// The line of a ledger's table of rings that programs have.
const PROGRAMS: &str = "ring 3";

/// Runs of `tollgate exec`.
pub struct Exec<'a> {
    /// Directory for the ledgers.
    pub ledgers: &'a Path,
    /// Directory for the files that commands need.
    pub files: &'a Path,
    /// Profile.
    pub profile: String,
    /// Kernel, if it is not the default.
    pub kernel: Option<String>,
    /// Number of runs so far, for the names of ledgers.
    pub runs: AtomicUsize,
}

impl Guest for Exec<'_> {
    fn directory(&self) -> &Path {
        self.files
    }

    fn run(&self, model: &str, command: &[String], files: Files, input: &Path) -> Result<Ran, GuestError> {
        let number = self.runs.fetch_add(1, Ordering::Relaxed);
        let ledger = self.ledgers.join(format!("{number}.ledger"));
        let ran = self.execute(model, command, files, input, &ledger);
        let _ = std::fs::remove_file(&ledger);
        ran
    }
}

impl Exec<'_> {
    fn execute(
        &self,
        model: &str,
        command: &[String],
        files: Files,
        input: &Path,
        ledger: &Path,
    ) -> Result<Ran, GuestError> {
        let guest = |text: String| GuestError::Guest(text);
        let program = std::env::current_exe().map_err(|error| guest(error.to_string()))?;
        let mut exec = Command::new(program);
        // The defaults of the user are no part of a validation.
        exec.env(crate::config::file::VARIABLE, "");
        exec.args(["exec", "--cpu", &self.profile, "--model", model, "--user", "root"]);
        for (name, value) in ENVIRONMENT {
            exec.args(["--env", &format!("{name}={value}")]);
        }
        exec.args(["--cwd", "/", "--timeout", TIMEOUT]).arg("--ledger").arg(ledger);
        match files {
            Files::Of(path) => exec.arg("--add").arg(path),
            Files::All => exec.arg("--root"),
        };
        let mut parameters = validate::mitigations::of_host().join(" ");
        if let Some(modules) = validate::security::of_host() {
            parameters.push(' ');
            parameters.push_str(&modules);
        }
        exec.args(["--append", parameters.trim()]);
        exec.args(self.kernel.iter().flat_map(|kernel| ["--kernel", kernel.as_str()]));
        exec.arg("--").args(command);
        // Keys on the terminal signal this program, which then ends its children itself.
        exec.process_group(0);
        exec.stdin(File::open(input).map_err(|error| guest(error.to_string()))?);
        let ended = exec.stderr(Stdio::piped()).output().map_err(|error| guest(error.to_string()))?;
        let status = ended.status.code().unwrap_or(NOT_RUN);
        if status != 0 {
            let errors = String::from_utf8_lossy(&ended.stderr);
            let last = errors.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
            let text = format!("`tollgate exec` ends with status {status}: {}", last.trim());
            return Err(if status >= NOT_RUN { GuestError::Guest(text) } else { GuestError::Command(text) });
        }
        let ledger = read_ledger(ledger).map_err(|error| guest(error.to_string()))?;
        let region = ledger
            .region(lab::diff::paid::COMMAND)
            .ok_or_else(|| guest("the ledger has no region of the command".into()))?;
        let rings = region.in_context(Context::Task).rows(By::Ring);
        let own = rings.get(PROGRAMS).ok_or_else(|| guest("the ledger has no program".into()))?;
        // What the program pays for entering the kernel is no time of its own.
        let causes = [Cause::Instructions, Cause::TlbMisses, Cause::CacheMisses, Cause::Splits, Cause::Mispredictions];
        let ticks: u64 = causes.into_iter().map(|cause| own.of(cause).ticks).sum();
        Ok(Ran { output: ended.stdout, instructions: own.instructions, cycles: ticks as f64 / TICKS_PER_CYCLE as f64 })
    }
}
