//! Several saved results as one: sides of the same name and the same inputs are joined, others of the same name get the name of their file.

use super::{Saved, SavedError};
use crate::diff::origin::{File, Provenance};
use crate::diff::several::{LONGEST_NAME, MOST_SIDES, is_name};
use crate::diff::statistics::Plan;
use crate::diff::{Remarks, Run, Runs};
use crate::format::counted;

/// A saved result with the name by which a reader knows its file.
pub struct Labelled {
    /// The name.
    pub label: String,
    /// The result.
    pub saved: Saved,
}

/// Results that can't be compared.
#[derive(Debug, thiserror::Error)]
pub enum CombineError {
    /// A result is wrong.
    #[error("{0} {1}")]
    Saved(String, SavedError),
    /// The commands differ.
    #[error("{0} has measured `{1}`, and {2} `{3}`: the costs of different commands can't be compared")]
    Commands(String, String, String, String),
    /// Two sides have the same name.
    #[error("two sides have the name '{0}', also with the name of their file")]
    Names(String),
    /// There are too many sides.
    #[error("the files have {0} sides together, and a comparison has at most {MOST_SIDES}")]
    TooMany(usize),
}

/// Results that can be compared, and can't be one file, because a file has one value of what differs between them.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// Versions or settling times differ.
    #[error(
        "the combination can't be one file, because {0} and {1} differ in {2}: keep both files, and combine them by --load each time"
    )]
    Differing(String, String, &'static str),
    /// A result was changed.
    #[error("{0} {1}: a new file would hide that, so keep the files, and combine them by --load each time")]
    Changed(String, &'static str),
    /// A name is too long for a file.
    #[error(
        "the name '{0}', which has the name of its file, has more than {LONGEST_NAME} characters: give the file a shorter name"
    )]
    Name(String),
}

/// Checks that a combination of results can be saved as one.
pub fn check_one(all: &[Labelled], combined: &Combined) -> Result<(), SaveError> {
    let first = &all[0];
    for Labelled { label, saved } in all {
        let differs = |what| Err(SaveError::Differing(first.label.clone(), label.clone(), what));
        if let Some(why) = saved.suspicion() {
            return Err(SaveError::Changed(label.clone(), why));
        }
        if saved.version != first.saved.version {
            return differs("their versions of Tollgate");
        }
        if saved.settle != first.saved.settle {
            return differs("the time for which the kernels were idle before the command (--settle)");
        }
    }
    let wrong = combined.sides.iter().find(|side| !is_name(&side.name));
    wrong.map_or(Ok(()), |side| Err(SaveError::Name(side.name.clone())))
}

/// The sides of several results.
#[derive(Debug)]
pub struct Combined {
    /// The command line, before parameters were replaced.
    pub command: String,
    /// Seconds of virtual time for which the kernels were idle before the command began: those of the first file.
    pub settle: f64,
    /// The sides.
    pub sides: Vec<Runs>,
    /// Name of the side with which the others are compared unless another one is named: that of the first file.
    pub reference: String,
    /// When the numbers of pairs were decided.
    pub plan: Plan,
    /// Warnings, notes and provenance.
    pub remarks: Remarks,
}

impl Combined {
    /// Returns the remarks for a file: without those on the layouts of several files, which each combination has of its own.
    pub fn remarks_to_save(&self) -> Remarks {
        let base = self.sides.iter().find(|side| side.name == self.reference);
        let own = base.map(|base| of_layouts(&self.sides, base)).unwrap_or_default();
        let notes = self.remarks.notes.iter().filter(|note| !own.contains(note)).cloned().collect();
        Remarks { notes, ..self.remarks.clone() }
    }

    /// Returns true for the two sides of a comparison of A and B that was saved, as [`crate::diff::Diff`] shows it.
    pub fn is_of_two(&self) -> bool {
        matches!(&self.sides[..], [a, b] if a.name == "A" && b.name == "B" && a.command == b.command && a.parameters == b.parameters)
            && self.reference == "A"
    }
}

/// A side with the number of its file.
struct Member {
    file: usize,
    runs: Runs,
}

/// Returns true if two sides are the same one: equal inputs, and equal costs under every layout that both have, at least one.
fn is_same(a: &Runs, b: &Runs) -> bool {
    let hash = |runs: &Runs| runs.prices.as_ref().map(|known| known.hash.clone());
    let inputs = a.title == b.title
        && a.command == b.command
        && a.parameters == b.parameters
        && a.files == b.files
        && a.tsc_hz == b.tsc_hz
        && a.clock == b.clock
        && a.origin == b.origin
        && hash(a) == hash(b);
    let common: Vec<(&Run, &Run)> =
        a.runs.iter().filter_map(|run| Some((run, b.runs.iter().find(|other| other.seed == run.seed)?))).collect();
    inputs && !common.is_empty() && common.into_iter().all(|(a, b)| a == b)
}

/// Adds the runs of a side that another one lacks.
fn join(to: &mut Runs, from: Runs) {
    if let (Some(to), Some(from)) = (&mut to.prices, from.prices) {
        to.confidences.extend(from.confidences);
    }
    for run in from.runs {
        if !to.runs.iter().any(|known| known.seed == run.seed) {
            to.runs.push(run);
        }
    }
    to.runs.sort_by_key(|run| run.seed);
}

fn add(list: &mut Vec<String>, text: String) {
    if !list.contains(&text) {
        list.push(text);
    }
}

/// Says in what the measurements of two files differ, beyond their sides.
fn differences(all: &[Labelled]) -> Vec<String> {
    let first = &all[0];
    let mut warnings = Vec::new();
    for other in &all[1..] {
        let (a, b) = (&first.label, &other.label);
        if first.saved.version != other.saved.version {
            warnings.push(format!(
                "{a} is of Tollgate {}, and {b} of Tollgate {}: prices and models may differ.",
                first.saved.version, other.saved.version
            ));
        }
        if first.saved.settle != other.saved.settle {
            warnings.push(format!(
                "In {a} the kernels were idle for {} seconds before the command began, and in {b} for {}.",
                first.saved.settle, other.saved.settle
            ));
        }
    }
    warnings
}

/// Says which profiles of the same name have other prices.
fn prices(members: &[Member], all: &[Labelled]) -> Vec<String> {
    let mut warnings = Vec::new();
    for (number, a) in members.iter().enumerate() {
        for b in members[number + 1..].iter().filter(|b| b.file != a.file) {
            let same = a.runs.origin.profile == b.runs.origin.profile && a.runs.clock == b.runs.clock;
            let hashes = [a, b].map(|member| member.runs.prices.as_ref().map(|known| &known.hash));
            if same && hashes[0] != hashes[1] {
                let (profile, [a, b]) = (&a.runs.origin.profile, [a, b].map(|member| &all[member.file].label));
                add(&mut warnings, format!("The profile {profile} has other prices in {a} than in {b}."));
            }
        }
    }
    warnings
}

/// Gives sides of the same name the name of their file too.
fn rename(members: &mut [Member], all: &[Labelled]) -> Result<(), CombineError> {
    let names: Vec<String> = members.iter().map(|member| member.runs.name.clone()).collect();
    for member in members.iter_mut() {
        if names.iter().filter(|name| **name == member.runs.name).count() > 1 {
            member.runs.name = format!("{}:{}", all[member.file].label, member.runs.name);
        }
    }
    let twice =
        (1..members.len()).find(|at| members[..*at].iter().any(|member| member.runs.name == members[*at].runs.name));
    twice.map_or(Ok(()), |twice| Err(CombineError::Names(members[twice].runs.name.clone())))
}

/// Says which sides have layouts that the one they are compared with lacks.
fn of_layouts(sides: &[Runs], base: &Runs) -> Vec<String> {
    let note = |other: &Runs| {
        let common = other.runs.iter().filter(|run| base.runs.iter().any(|known| known.seed == run.seed)).count();
        let (name, of) = (&other.name, counted(other.runs.len(), "layout", "layouts"));
        let [are, only] = match common {
            1 => ["is also one", "this one is"],
            _ => ["are also those", "these are"],
        };
        (common < other.runs.len())
            .then(|| format!("{name} has {of}, of which {common} {are} of {}: only {only} compared.", base.name))
    };
    sides.iter().filter(|other| other.name != base.name).filter_map(note).collect()
}

/// Combines results, at least one.
pub fn combine(all: &[Labelled]) -> Result<Combined, CombineError> {
    let first = &all[0];
    if let Some(other) = all.iter().find(|other| other.saved.command != first.saved.command) {
        let (a, b) = (first.saved.command.clone(), other.saved.command.clone());
        return Err(CombineError::Commands(first.label.clone(), a, other.label.clone(), b));
    }
    let mut members: Vec<Member> = Vec::new();
    let mut reference = 0;
    for (file, Labelled { label, saved }) in all.iter().enumerate() {
        let sides = saved.runs().map_err(|error| CombineError::Saved(label.clone(), error))?;
        for runs in sides {
            if file == 0 && runs.name == saved.reference {
                reference = members.len();
            }
            match members.iter_mut().find(|known| known.runs.name == runs.name && is_same(&known.runs, &runs)) {
                Some(known) => join(&mut known.runs, runs),
                None => members.push(Member { file, runs }),
            }
        }
    }
    if members.len() > MOST_SIDES {
        return Err(CombineError::TooMany(members.len()));
    }
    let suspicions =
        all.iter().filter_map(|Labelled { label, saved }| Some(format!("The result {label} {}.", saved.suspicion()?)));
    let mut remarks = Remarks { warnings: suspicions.collect(), ..Remarks::default() };
    remarks.warnings.extend(differences(all));
    remarks.warnings.extend(prices(&members, all));
    let names: Vec<(usize, String)> = members.iter().map(|member| (member.file, member.runs.name.clone())).collect();
    rename(&mut members, all)?;
    for (number, Labelled { label, saved }) in all.iter().enumerate() {
        let text = |text: &String| {
            if all.len() == 1 {
                return text.clone();
            }
            // A text about a side needs the side's name alone: the one that it has beside those of the other files.
            let mut sides = saved
                .sides
                .iter()
                .filter(|side| text.strip_prefix(side.name.as_str()).is_some_and(|rest| rest.starts_with(": ")));
            let Some(side) = sides.next() else { return format!("{label}: {text}") };
            let own = names.iter().position(|(file, name)| *file == number && *name == side.name);
            let own = own.or_else(|| names.iter().position(|(_, name)| *name == side.name));
            let name = own.map_or(side.name.as_str(), |at| members[at].runs.name.as_str());
            format!("{name}{}", &text[side.name.len()..])
        };
        saved.warnings.iter().for_each(|warning| add(&mut remarks.warnings, text(warning)));
        saved.notes.iter().for_each(|note| add(&mut remarks.notes, text(note)));
    }
    remarks.interrupted = all.iter().find_map(|labelled| labelled.saved.interrupted);
    remarks.time_limit = all.iter().find_map(|labelled| labelled.saved.time_limit);
    remarks.idle = first.saved.idle.clone();
    let sides: Vec<Runs> = members.into_iter().map(|member| member.runs).collect();
    let base = &sides[reference];
    of_layouts(&sides, base).into_iter().for_each(|note| add(&mut remarks.notes, note));
    // The number of pairs is decided before the first run only where all files say so.
    let plan = if all.iter().all(|labelled| labelled.saved.fixed) { Plan::Fixed } else { Plan::Looks };
    let mut list: Vec<File> = Vec::new();
    for file in sides.iter().flat_map(|side| &side.files.list) {
        if !list.contains(file) {
            list.push(file.clone());
        }
    }
    let mut versions: Vec<&str> = all.iter().map(|labelled| labelled.saved.version.as_str()).collect();
    versions.dedup();
    let again: Vec<&str> = all.iter().map(|labelled| labelled.saved.again.as_str()).collect();
    let seed = |run: Option<&Run>| run.and_then(|run| run.seed);
    remarks.provenance = Provenance {
        version: versions.join(" and "),
        seeds: seed(base.runs.first()).zip(seed(base.runs.last())).map(|(first, last)| [first, last]),
        again: again.join("; "),
        files: list,
        more_files: base.files.more,
        tree: base.files.tree.clone(),
    };
    let (command, settle) = (first.saved.command.clone(), first.saved.settle);
    Ok(Combined { command, settle, reference: base.name.clone(), sides, plan, remarks })
}
