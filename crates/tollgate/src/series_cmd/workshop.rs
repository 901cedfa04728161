//! The workshop of a series: it builds kernels, and measures the command in them as `tollgate diff` does. Runs are kept, and used again if one of them, made
//! anew, is the same.

use super::build::Builder;
use super::remarks;
use super::state::{Kept, State};
use super::tree::Tree;
use crate::diff_cmd::asked::Asked;
use crate::diff_cmd::runs::{self, How, Progress};
use crate::exec_cmd::{Kernel, command_text};
use crate::exec_runs::{Failed, Place};
use crate::output::say;
use crate::stop::Stop;
use crate::table::counted;
use anyhow::Result;
use indicatif::ProgressBar;
use lab::diff::runner::status_text;
use lab::diff::saved::Measurement;
use lab::diff::series::course::{Built, Measured, Workshop};
use lab::diff::series::{Broken, Commit, Outcome};
use lab::diff::statistics::Plan;
use lab::diff::{Held, Remarks, Runs, Terms, Verdict};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What is measured, and how.
pub struct Measuring {
    pub layouts: Option<u16>,
    pub seed: Option<u64>,
    pub jobs: Option<u16>,
    pub settle: Duration,
    pub keep: Option<PathBuf>,
    pub terms: Terms,
    /// Options of `tollgate exec`.
    pub options: Vec<OsString>,
    pub command: Vec<OsString>,
    /// The hash of all that decides the runs in a kernel, apart from the files of the host.
    pub by: String,
    /// True if nothing is used that was measured before.
    pub fresh: bool,
}

/// What is known of the runs of earlier series.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// One of them was made again, and was the same.
    Proven,
    /// One of them was made again, and differed; or they are not wanted.
    None,
    /// None was made again so far.
    Untested,
}

/// The workshop.
pub struct Shop<'a> {
    pub tree: &'a Tree,
    pub state: &'a State,
    pub builder: Builder<'a>,
    pub measuring: &'a Measuring,
    pub commits: &'a [Commit],
    pub stop: &'a Stop,
    bar: ProgressBar,
    images: Vec<Option<String>>,
    trust: Trust,
    title: String,
    /// What a reader must know about the runs: for each commit, and also several times.
    pub remarks: Remarks,
    /// Number of commits whose runs an earlier series has left.
    pub found: usize,
    /// Commits that this series has measured.
    own: BTreeSet<usize>,
}

/// Returns the reason why a run failed. The last words of `tollgate exec` say it.
fn broken(Failed { status, by_command, tail, text, .. }: Failed) -> Broken {
    let said = tail.iter().rev().find_map(|line| line.strip_prefix("tollgate: "));
    // Without an output, the text has the reason why there is none.
    let why = match said {
        _ if by_command => format!("the command ended with {}", status_text(status)),
        Some(said) => format!("{said} (status {status})"),
        None if tail.is_empty() => text,
        None => format!("the run ended with status {status}"),
    };
    Broken { why, log: tail }
}

impl<'a> Shop<'a> {
    pub fn new(
        tree: &'a Tree,
        state: &'a State,
        builder: Builder<'a>,
        measuring: &'a Measuring,
        commits: &'a [Commit],
        stop: &'a Stop,
        bar: ProgressBar,
    ) -> Self {
        let trust = if measuring.fresh { Trust::None } else { Trust::Untested };
        let images = vec![None; commits.len()];
        Self {
            tree,
            state,
            builder,
            measuring,
            commits,
            stop,
            bar,
            images,
            trust,
            title: String::new(),
            remarks: Remarks::default(),
            found: 0,
            own: BTreeSet::new(),
        }
    }

    /// Returns a commit as a side of a diff.
    fn asked(&self, commit: usize) -> Asked {
        let Commit { commit: hash, name, .. } = &self.commits[commit];
        let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
        Asked {
            name: name.clone(),
            stem: format!("{}-{}", commit, name.chars().map(plain).collect::<String>()),
            kernel: Some(self.builder.kernel(hash).display().to_string()),
            options: self.measuring.options.clone(),
            differing: Vec::new(),
            words: String::new(),
            command: self.measuring.command.clone(),
            parameters: Vec::new(),
        }
    }

    /// Measures commits; the first is the reference.
    fn run(
        &mut self,
        commits: &[usize],
        known: Vec<Option<Runs>>,
        layouts: Option<u16>,
        limit: Option<f64>,
    ) -> Result<runs::Measured> {
        let asked: Vec<Asked> = commits.iter().map(|commit| self.asked(*commit)).collect();
        let Measuring { seed, jobs, settle, keep, .. } = self.measuring;
        let terms = Terms { limit, ..self.measuring.terms };
        // The number of pairs of a search depends on the limit alone.
        let decided = |verdict: &Verdict| match limit {
            None => verdict.is_decided(),
            Some(_) => verdict.held != Some(Held::Undecided),
        };
        // Each layout is drawn, also a single one: it is one of those that a pair has.
        let place = Place::new("series", keep.as_deref(), self.stop)?;
        let how = How {
            layouts,
            time_limit: None,
            seed: Some(seed.unwrap_or(1)),
            jobs: *jobs,
            settle: *settle,
            sample: None,
            draws: false,
            decided: &decided,
            place: &place,
            stop: self.stop,
        };
        let (bar, title) = (self.bar.clone(), self.title.clone());
        let mut progress = |progress: Progress| match progress {
            Progress::Runs(done) => bar.set_message(format!("{title}: {done} runs")),
            Progress::Pairs(pairs, verdicts) => {
                bar.set_message(format!("{title}: {}", runs::found(verdicts, pairs, false)));
            }
        };
        let measured = runs::measure(&how, &asked, known, 0, &terms, &mut progress)?;
        if let runs::Measured::Sides(_, remarks) = &measured {
            let Remarks { warnings, notes, provenance, .. } = remarks.clone();
            self.remarks.warnings.extend(warnings);
            self.remarks.notes.extend(notes);
            self.remarks.provenance = provenance;
        }
        Ok(measured)
    }

    /// Returns the runs that this series or an earlier one has left, if they are what would be measured now.
    fn known(&mut self, commit: usize) -> Result<Option<Runs>> {
        let Some(image) = self.images[commit].clone().filter(|_| self.trust != Trust::None) else { return Ok(None) };
        let Some(kept) = self.state.load(&self.measuring.by, &image) else { return Ok(None) };
        let Kept { mut runs, warnings, notes } = kept;
        let known_as = runs.name.clone();
        let Commit { name, subject, .. } = &self.commits[commit];
        (runs.name, runs.title) = (name.clone(), subject.clone());
        if self.own.contains(&commit) {
            return Ok(Some(runs));
        }
        if self.trust == Trust::Untested {
            let again = self.run(&[commit], Vec::new(), Some(1), None)?;
            self.trust = match again {
                runs::Measured::Sides(sides, ..) => {
                    let same = sides[0].files == runs.files && sides[0].runs.first() == runs.runs.first();
                    if same { Trust::Proven } else { Trust::None }
                }
                runs::Measured::Failed(Failed { interrupted: true, .. }, _) => return Ok(None),
                runs::Measured::Failed(..) => Trust::None,
            };
            if self.trust == Trust::None {
                self.say("the command's files have changed since the last series: all commits are measured again");
                return Ok(None);
            }
        }
        self.found += 1;
        let renamed = |text: &String| remarks::renamed(text, &known_as, &runs.name);
        self.remarks.warnings.extend(warnings.iter().map(renamed));
        self.remarks.notes.extend(notes.iter().map(renamed));
        Ok(Some(runs))
    }

    /// Keeps the runs of a commit.
    fn keep(&mut self, commit: usize, runs: &mut Runs) -> Result<()> {
        self.own.insert(commit);
        runs.title.clone_from(&self.commits[commit].subject);
        let Some(image) = &self.images[commit] else { return Ok(()) };
        let command = command_text(&self.measuring.command);
        let own = |all: &[String]| remarks::of_commit(all, &runs.name, self.commits);
        let Remarks { warnings, notes, provenance, .. } = &self.remarks;
        let (warnings, notes) = (own(warnings), own(notes));
        let remarks = Remarks { warnings, notes, provenance: provenance.clone(), ..Remarks::default() };
        let measurement = Measurement {
            command: &command,
            settle: self.measuring.settle.as_secs_f64(),
            plan: Plan::Fixed,
            reference: 0,
            remarks: &remarks,
        };
        self.state.save(&self.measuring.by, image, runs, &measurement)
    }

    /// Prints a line above the bar.
    fn say(&self, text: &str) {
        self.bar.suspend(|| say(&format!("tollgate: {text}")));
    }

    /// Returns a kernel that can't be used as what it is: broken.
    fn unusable(&self, commit: usize) -> Option<Broken> {
        let path = self.builder.kernel(&self.commits[commit].commit);
        let error = Kernel::find(path.to_str(), None).err()?;
        Some(Broken { why: crate::output::described(&error), log: Vec::new() })
    }
}

impl Workshop for Shop<'_> {
    type Error = anyhow::Error;

    fn build(&mut self, commit: usize) -> Result<Built> {
        self.bar.set_message(format!("{}: building", self.title));
        let hash = &self.commits[commit].commit;
        let built = self.builder.build(hash, self.stop, || self.tree.check_out(hash, self.stop))?;
        if let Built::Kernel(image) = &built {
            self.images[commit] = Some(image.clone());
            if let Some(broken) = self.unusable(commit) {
                return Ok(Built::Broken(broken));
            }
        }
        Ok(built)
    }

    fn measure(&mut self, commit: usize) -> Result<Measured> {
        let known = self.known(commit)?;
        let measured = self.run(&[commit], vec![known], self.measuring.layouts, None)?;
        Ok(match measured {
            runs::Measured::Sides(mut sides, ..) => {
                let mut runs = sides.remove(0);
                self.keep(commit, &mut runs)?;
                Measured::One(Box::new(runs))
            }
            runs::Measured::Failed(Failed { interrupted: true, .. }, _) => Measured::Stopped,
            runs::Measured::Failed(failed, _) => Measured::Broken(broken(failed)),
        })
    }

    fn compare(&mut self, (with, runs): (usize, &Runs), commit: usize, limit: Option<f64>) -> Result<Measured> {
        let known = self.known(commit)?;
        let known = vec![Some(runs.clone()), known];
        let measured = self.run(&[with, commit], known, self.measuring.layouts, limit)?;
        Ok(match measured {
            runs::Measured::Sides(sides, ..) => {
                let Ok([mut first, mut second]) = <[Runs; 2]>::try_from(sides) else { return Ok(Measured::Stopped) };
                self.keep(with, &mut first)?;
                self.keep(commit, &mut second)?;
                Measured::Two(Box::new([first, second]))
            }
            runs::Measured::Failed(Failed { interrupted: true, .. }, _) => Measured::Stopped,
            runs::Measured::Failed(failed, _) => Measured::Broken(broken(failed)),
        })
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn begins(&mut self, commit: usize, left: usize) {
        let Commit { name, .. } = &self.commits[commit];
        self.title = format!("{name}, {left} left");
        self.bar.set_message(self.title.clone());
    }

    fn ended(&mut self, commit: usize, outcome: &Outcome) {
        let Commit { name, subject, .. } = &self.commits[commit];
        let text = match outcome {
            Outcome::Measured(_, Some(other)) => format!("the same image as {other}"),
            Outcome::Measured(runs, None) => {
                format!("measured, {}", counted(runs.runs.len(), "layout", "layouts"))
            }
            // Without the first commit the series ends, and says why.
            Outcome::NotBuilt(_) | Outcome::NotMeasured(_) if commit == 0 => return,
            Outcome::NotBuilt(broken) | Outcome::NotMeasured(broken) => broken.why.clone(),
            Outcome::Untried => return,
        };
        self.say(&format!("{name} {subject}: {text}"));
    }
}
