//! Snapshots and recorded input of a run: `--save-at`, `--restore`, `--record` and `--replay`.

use crate::contain::Sandbox;
use crate::input;
use crate::live::Live;
use crate::output::{OutputFile, described, say};
use crate::recording::{self, Recording};
use crate::usage::WrongArguments;
use anyhow::{Context, Result};
use clap::Args;
use ledger::Ticks;
use ledger::symbols::Symbol;
use machine::awaited::{Awaiting, Place};
use machine::snapshot::SnapshotError;
use machine::{Host, Machine, Outcome};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Largest snapshot or recording, in bytes.
pub const LARGEST: u64 = 1 << 40;

/// Options that save and repeat runs.
#[derive(Args)]
#[command(next_help_heading = "Options that save and repeat a run")]
pub struct MomentArgs {
    /// Saves the machine at a moment, and continues. WHEN is a virtual time in seconds, the name of a region of interest (its first
    /// start), `workload` (when the guest asks for it), or FUNCTION[+OFFSET] of the kernel or the image (its first execution). The
    /// machine is saved at the end of the slice of 2 million cycles that contains the moment. May be repeated. The guest's writes to
    /// disks stay in memory, and in the snapshot
    #[arg(long, num_args = 2, value_names = ["WHEN", "FILE"], action = clap::ArgAction::Append)]
    save_at: Vec<String>,
    /// Starts from a snapshot instead of booting the kernel. Options that describe the machine are those of the saved run, as far as
    /// they are not given; disks that the guest may write to, and networks of this host, must be given again
    #[arg(long, value_name = "FILE")]
    restore: Option<PathBuf>,
    /// Moves the restored guest of `--platform hvm` to another processor: costs are those of PROFILE from there on, and the guest keeps the
    /// CPUID of its `--cpu`. A guest that may use a feature which the other processor lacks is refused
    #[arg(long, value_name = "PROFILE")]
    migrate: Option<String>,
    /// Writes the user's input, with its virtual times, to a file for --replay
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    record: Option<PathBuf>,
    /// Gives the guest the input that --record wrote, at the same virtual times, and no other
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
}

/// The moment of a snapshot.
enum When {
    Time(Ticks),
    /// The guest asks for its workload.
    Workload,
    /// A region of interest or a function, with its number among the places that the machine waits for.
    Name(String, usize),
}

impl When {
    /// Parses a moment. Adds the place that the machine must wait for, if any, to `places`.
    fn parse(text: &str, tsc_hz: u64, places: &mut Vec<Place>) -> Self {
        let number = text.strip_suffix('s').unwrap_or(text).parse::<f64>().ok();
        match number.filter(|seconds| (0.0..1e9).contains(seconds)) {
            Some(seconds) => Self::Time(machine::machine::ticks(Duration::from_secs_f64(seconds), tsc_hz)),
            None if text == "workload" => Self::Workload,
            None => {
                places.push(Place::parse(text));
                Self::Name(text.to_owned(), places.len() - 1)
            }
        }
    }

    fn has_come(&self, machine: &Machine) -> bool {
        match self {
            Self::Time(time) => machine.vcpus.now() >= *time,
            Self::Workload => machine.board().workload_asked(),
            Self::Name(name, number) => {
                let names = machine.recorder().names();
                let region = names.known_region(name);
                let begun = region.is_some_and(|region| names.regions()[usize::from(region.0)].begun != 0);
                begun || machine.has_executed(*number) == Awaiting::Executed
            }
        }
    }

    /// Returns the reason why the moment did not come before the end of the run.
    fn missed(&self, machine: &Machine) -> &'static str {
        match self {
            _ if self.has_come(machine) => "it came in the last slice, at whose end there is nothing to save",
            Self::Name(_, number) if machine.has_executed(*number) == Awaiting::Unknown => {
                "the run ended, and it had neither a region nor a function of that name"
            }
            Self::Name(..) => "the run ended, and the function was not executed",
            Self::Workload => "the run ended, and the guest did not ask for it",
            Self::Time(_) => "the run ended before",
        }
    }
}

/// A requested snapshot.
struct Moment {
    name: String,
    when: When,
    file: OutputFile,
}

/// Snapshots, recording and replay of a run.
pub struct Moments {
    due: Vec<Moment>,
    /// Set if a file could not be written.
    failed: bool,
    record: Option<Recording>,
    images: Vec<(String, String)>,
}

impl MomentArgs {
    /// Returns true if files identify the run, by hashes of its images.
    pub fn identifies(&self) -> bool {
        self.saves() || self.record.is_some() || self.replay.is_some()
    }

    /// Returns true if input comes only from a file.
    pub fn replays(&self) -> bool {
        self.replay.is_some()
    }

    /// Returns true if the machine is saved or restored. Its disks then stay unchanged.
    pub fn saves(&self) -> bool {
        !self.save_at.is_empty() || self.restore.is_some()
    }

    /// Returns the processor to which the restored guest moves.
    pub fn destination(&self) -> Option<&str> {
        self.migrate.as_deref()
    }

    /// Returns the options that write files, with these files.
    pub fn outputs(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let saved = self.save_at.iter().skip(1).step_by(2).map(|file| ("--save-at", Path::new(file)));
        saved.chain(self.record.iter().map(|file| ("--record", &**file)))
    }

    /// Returns the options that name files which are read, with these files.
    pub fn inputs(&self) -> impl Iterator<Item = (&'static str, PathBuf)> {
        let restore = self.restore.iter().map(|file| ("--restore", file.clone()));
        restore.chain(self.replay.iter().map(|file| ("--replay", file.clone())))
    }

    /// Returns the files that are read before the run, and again if the machine is created again.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.restore.iter().chain(&self.replay)
    }

    /// Returns true if --save-at waits for the function.
    pub fn names(&self, symbol: &Symbol) -> bool {
        self.save_at.iter().step_by(2).any(|when| Place::parse(when).function == symbol.name)
    }

    /// Prepares a machine that has not run.
    ///
    /// `symbols` are functions beside those of the image.
    pub fn prepare(
        &self,
        machine: &mut Machine,
        images: Vec<(String, String)>,
        tsc_hz: u64,
        symbols: &[Symbol],
        sandbox: Sandbox,
    ) -> Result<Moments> {
        if let Some(path) = &self.restore {
            let failed = || format!("can't restore the snapshot {}", path.display());
            let bytes = input::read_regular(path, LARGEST, "snapshot")?;
            let restored = match self.migrate.is_some() {
                true => machine.restore_or_move(&bytes, &images),
                false => machine.restore(&bytes, &images),
            };
            restored.map_err(|error| match error {
                SnapshotError::NestedHere => WrongArguments::new(error.to_string()).into(),
                error => anyhow::Error::new(error).context(failed()),
            })?;
        }
        if let Some(path) = &self.replay {
            recording::replay(machine, path, LARGEST, &images)?;
        }
        let record = self.record.as_ref().map(|path| Recording::start(machine, path, &images, sandbox)).transpose()?;
        let (pairs, _) = self.save_at.as_chunks::<2>();
        let mut places = Vec::new();
        let moment = |[when, file]: &[String; 2]| {
            let file = OutputFile::create_for(sandbox, Path::new(file), "snapshot")?;
            anyhow::Ok(Moment { name: when.clone(), when: When::parse(when, tsc_hz, &mut places), file })
        };
        let due = pairs.iter().map(moment).collect::<Result<_>>()?;
        machine.await_functions(places, symbols);
        Ok(Moments { due, failed: false, record, images })
    }
}

impl Moments {
    /// Runs the machine to its end, and takes snapshots on the way. A snapshot that cannot be written does not end the run.
    ///
    /// `live` shows pictures of the run.
    pub fn run(&mut self, machine: &mut Machine, host: &mut dyn Host, mut live: Option<Live>) -> Outcome {
        loop {
            let due = &self.due;
            let mut stop = |m: &Machine| {
                live.as_ref().is_some_and(Live::is_due) || due.iter().any(|moment| moment.when.has_come(m))
            };
            if let Some(outcome) = machine.run_until(host, &mut stop) {
                if let Some(live) = live {
                    live.finish(machine);
                }
                return outcome;
            }
            if let Some(live) = live.as_mut().filter(|live| live.is_due()) {
                live.show(machine);
            }
            while let Some(at) = self.due.iter().position(|moment| moment.when.has_come(machine)) {
                let moment = self.due.remove(at);
                let snapshot = machine.snapshot(&self.images).context("can't take a snapshot");
                let written = snapshot.and_then(|snapshot| moment.file.write(&snapshot));
                self.note(written.with_context(|| format!("--save-at {}", moment.name)));
            }
        }
    }

    /// Reports a file that could not be written.
    fn note(&mut self, written: Result<()>) {
        if let Err(error) = written {
            say(&format!("tollgate: {}", described(&error)));
            self.failed = true;
        }
    }

    /// Writes the files that are complete only after the run, and reports moments that did not come. Returns true if all moments came
    /// and all files were written.
    pub fn finish(mut self, machine: &Machine) -> bool {
        if let Some(recording) = self.record.take() {
            self.note(recording.write(machine));
        }
        for moment in &self.due {
            say(&format!("tollgate: --save-at {}: {}", moment.name, moment.when.missed(machine)));
        }
        self.due.is_empty() && !self.failed
    }
}
