//! What needs Linux: paths through the kernel, and whole programs, on this machine and in a modelled one.

use crate::clock::Clock;
use crate::families::paths;
use crate::kernel::Kernel;
use crate::native::{self, Measured, Process, Times};
use crate::program::{self, Program, Stamps};
use crate::result::{Family, Row, Validation};
use crate::shared::{self, count_shared};
use crate::workloads::{Workload, workloads};
use silicon::release;
use std::path::Path;

/// Measurements of each path in the modelled machine: the timer's interrupts are in few of them.
const REPEATS: u64 = 5;
/// Time for which a path is repeated on this machine, in parts of a second.
const BUDGET: u64 = 20;
/// Runs of a program on this machine.
const RUNS: [usize; 2] = [11, 7];
/// Part of the moments with other work on the core that a note names.
const BUSY: f64 = 0.2;

/// A modelled machine with Linux.
pub trait Guest: Sync {
    /// Returns an empty directory for the files that commands need. Whoever makes the machine removes it.
    fn directory(&self) -> &Path;

    /// Runs a command of this host under a model of time, with these files and this input.
    fn run(&self, model: &str, command: &[String], files: Files, input: &Path) -> Result<Ran, GuestError>;
}

/// Files of this host that a command sees in the modelled machine, beside the program and its libraries.
#[derive(Clone, Copy, Debug)]
pub enum Files<'a> {
    /// This file or directory.
    Of(&'a Path),
    /// All.
    All,
}

/// Reason why a command has no figures in the modelled machine.
#[derive(Clone, Debug, thiserror::Error)]
pub enum GuestError {
    /// There is no such machine.
    #[error("the guest does not run: {0}")]
    Guest(String),
    /// The command fails there.
    #[error("the command fails in the guest: {0}")]
    Command(String),
}

/// A command that ran in a modelled machine.
pub struct Ran {
    /// Standard output.
    pub output: Vec<u8>,
    /// Instructions of the command outside the kernel.
    pub instructions: u64,
    /// Cycles of these instructions, and of what they waited for.
    pub cycles: f64,
}

/// How far the measurements have come.
type Progress<'a> = &'a mut dyn FnMut(&str, f64);

/// Adds the families of programs and paths, or the reasons why there are none. `entries` are those of the reorder buffer, if they are known.
pub fn run(guest: &dyn Guest, quick: bool, entries: Option<f64>, result: &mut Validation, progress: Progress) {
    let directory = guest.directory();
    progress("the kernels of this machine and of the guest", 0.0);
    result.notes.extend(kernels_of_both(guest, &result.models));
    let mitigations = crate::mitigations::of_host();
    if !mitigations.is_empty() {
        result.notes.push(format!("The guest's kernel mitigates what this machine's does: {}.", mitigations.join(" ")));
    }
    if let Some(modules) = crate::security::of_host() {
        result
            .notes
            .push(format!("The guest's kernel has the security modules of this machine's that it knows: {modules}."));
    }
    match of_paths(guest, directory, &result.models, entries, &mut result.notes, progress) {
        Ok(family) => result.families.push(family),
        Err(reason) => result.notes.push(format!("No paths through the kernel: {reason}.")),
    }
    let (family, notes) = of_programs(guest, directory, quick, &result.models, entries, progress);
    result.families.extend(family);
    result.notes.extend(notes);
}

/// Returns the releases of this machine's kernel and of the guest's.
fn kernels_of_both(guest: &dyn Guest, models: &[String]) -> Option<String> {
    let own = release::of_host()?;
    let command = ["uname", "-r"].map(str::to_owned);
    let ran = guest.run(models.last()?, &command, Files::Of(Path::new("/dev/null")), Path::new("/dev/null")).ok()?;
    let other = String::from_utf8_lossy(&ran.output);
    let other = other.trim();
    let nearer = match release::version(&own) == release::version(other) {
        true => "",
        false => " --kernel takes a nearer one: a release, the file of a package, or an image.",
    };
    Some(format!(
        "This machine's kernel is Linux {own}, the guest's {other}: they differ in version, options and mitigations, and so do their paths.{nearer}"
    ))
}

/// Runs a task for each model at the same time.
fn for_each<T: Send>(models: &[String], task: impl Fn(&str) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = models.iter().map(|model| scope.spawn(|| task(model))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the task does not panic")).collect()
    })
}

/// The paths through the kernel: the program answers the same requests here and in the modelled machine.
fn of_paths(
    guest: &dyn Guest,
    directory: &Path,
    models: &[String],
    entries: Option<f64>,
    notes: &mut Vec<String>,
    progress: Progress,
) -> Result<Family, String> {
    let kernels = paths::kernels();
    let program = Program::new(&kernels).map_err(|error| error.to_string())?;
    let natives = natively(&program, &kernels, entries, progress)?;
    let beside = natives.iter().filter(|native| native.shared).count();
    if beside > 0 {
        notes.push(shared::note(beside, natives.len(), "paths through the kernel"));
    }
    progress("paths in the models", 0.0);
    let write = |name: &str, bytes: &[u8]| {
        let path = directory.join(name);
        std::fs::write(&path, bytes).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok::<_, String>(path)
    };
    let file = write("paths", &program.elf())?;
    make_executable(&file).map_err(|error| error.to_string())?;
    let requests = kernels.iter().zip(&program.functions);
    let requests: Vec<u8> =
        requests.flat_map(|(kernel, entry)| program::request(kernel, *entry, REPEATS, true)).collect();
    let input = write("requests", &requests)?;
    let command = [file.display().to_string()];
    let modelled = for_each(models, |model| {
        let ran = guest.run(model, &command, Files::Of(&file), &input).map_err(|error| error.to_string())?;
        let answers = program::answers(&ran.output);
        if answers.len() != kernels.len() * REPEATS as usize {
            return Err(format!(
                "the program gives {} of {} answers in the modelled machine",
                answers.len(),
                kernels.len() * REPEATS as usize
            ));
        }
        let least = |(kernel, samples): (&Kernel, &[Stamps])| {
            let ticks = samples.iter().map(|sample| sample.kernel).min().unwrap_or(0);
            ticks as f64 / (kernel.rounds as f64 * kernel.steps)
        };
        Ok::<Vec<f64>, String>(kernels.iter().zip(answers.chunks(REPEATS as usize)).map(least).collect())
    });
    if let Some(reason) = modelled.iter().find_map(|figures| figures.as_ref().err()) {
        return Err(reason.clone());
    }
    let row = |(n, (kernel, native)): (usize, (&Kernel, &Measured))| Row {
        name: kernel.name.clone(),
        group: String::new(),
        at: 0.0,
        native: native.cycles,
        interval: native.interval,
        shared: native.shared,
        models: modelled.iter().map(|figures| figures.as_ref().ok().map(|figures| figures[n])).collect(),
    };
    let mut rows: Vec<Row> = kernels.iter().zip(&natives).enumerate().map(row).collect();
    count_shared(&mut rows);
    let about = "A path through the kernel, in user and kernel mode, on this machine's kernel and on the guest's";
    Ok(Family::new("kernel", about, "cycles", None, rows, models.len()))
}

fn natively(
    program: &Program,
    kernels: &[Kernel],
    entries: Option<f64>,
    progress: Progress,
) -> Result<Vec<Measured>, String> {
    let budget = silicon::options::stamp_hz() as u64 / BUDGET;
    let mut process = Process::start(program).map_err(|error| error.to_string())?.with_entries(entries);
    let mut measured = Vec::new();
    for (n, kernel) in kernels.iter().enumerate() {
        progress("paths on this machine", n as f64 / kernels.len() as f64);
        measured.push(process.measure(kernel, program.functions[n], budget).map_err(|error| error.to_string())?);
    }
    Ok(measured)
}

fn make_executable(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
}

/// Whole programs: cycles for an instruction of the program itself.
fn of_programs(
    guest: &dyn Guest,
    directory: &Path,
    quick: bool,
    models: &[String],
    entries: Option<f64>,
    progress: Progress,
) -> (Option<Family>, Vec<String>) {
    let mut notes = Vec::new();
    let all = match workloads(directory, quick) {
        Ok(all) => all,
        Err(error) => return (None, vec![format!("No programs: {error}.")]),
    };
    let mut clock = match Clock::new(entries) {
        Ok(clock) => clock,
        Err(reason) => return (None, vec![format!("No programs: {reason}.")]),
    };
    let mut rows = Vec::new();
    let mut counted = true;
    let count = all.len();
    for (n, workload) in all.iter().enumerate() {
        progress(&format!("{} on this machine", workload.name), n as f64 / count as f64);
        let native = match natively_run(&mut clock, workload, RUNS[usize::from(quick)]) {
            Ok(native) => native,
            Err(reason) => {
                notes.push(format!("No figure of {}: {reason}.", workload.name));
                continue;
            }
        };
        progress(&format!("{} in the models", workload.name), n as f64 / count as f64);
        let files = if workload.whole { Files::All } else { Files::Of(directory) };
        let ran = for_each(models, |model| guest.run(model, &workload.command, files, Path::new("/dev/null")));
        match ran.iter().find_map(|ran| ran.as_ref().err()) {
            // A machine that does not run has the same reason for every program.
            Some(GuestError::Guest(reason)) => {
                notes.push(format!("No programs: the guest does not run: {reason}."));
                break;
            }
            Some(error) => notes.push(format!("No figure of {}: {error}.", workload.name)),
            None => {}
        }
        let ran: Vec<Ran> = ran.into_iter().flatten().collect();
        let Some(first) = ran.first().filter(|first| ran.len() == models.len() && first.instructions > 0) else {
            continue;
        };
        counted &= native.instructions.is_some();
        let instructions = native.instructions.unwrap_or(first.instructions as f64);
        rows.push(Row {
            name: workload.name.clone(),
            group: String::new(),
            at: 0.0,
            native: native.cycles / instructions,
            interval: native.interval.map(|cycles| cycles / instructions),
            shared: false,
            models: ran.iter().map(|ran| Some(ran.cycles / ran.instructions as f64)).collect(),
        });
    }
    if !counted {
        notes.push(
            "The kernel grants no hardware counters (perf_event_open): cycles of programs are their user time by the measured clock, and the model counts their instructions."
                .into(),
        );
    }
    if clock.busy() > BUSY {
        notes.push(format!(
            "Between runs of programs, other work shared the core in {:.0}% of all moments. A program runs for longer than a quiet moment lasts: \
             its figure of this machine is too high.",
            clock.busy() * 100.0
        ));
    }
    let about = "Programs of this machine, the time that they spend outside the kernel";
    let family = Family::new("programs", about, "cycles per instruction", None, rows, models.len());
    ((!family.rows.is_empty()).then_some(family), notes)
}

/// What a program takes on this machine, outside the kernel.
struct Native {
    cycles: f64,
    interval: [f64; 2],
    instructions: Option<f64>,
}

fn natively_run(clock: &mut Clock, workload: &Workload, runs: usize) -> Result<Native, String> {
    let mut all: Vec<(Times, f64)> = Vec::new();
    for _ in 0..runs {
        let times = native::times(&workload.command).map_err(|error| error.to_string())?;
        all.push((times, clock.hz().map_err(|error| error.to_string())?));
    }
    // The kernel divides a program's time by what its ticks find, so that only the sum over all runs says how much of
    // the time is the program's own.
    let sum = |part: fn(&Times) -> f64| all.iter().map(|(times, _)| part(times)).sum::<f64>();
    let own = sum(|times| times.user) / sum(|times| times.user + times.system).max(1e-9);
    let cycles = |(times, hz): &(Times, f64)| times.cycles.unwrap_or((times.user + times.system) * own * hz);
    let least = |runs: &[(Times, f64)]| runs.iter().map(cycles).fold(f64::MAX, f64::min);
    let figure = least(&all);
    let parts: Vec<f64> = all.chunks(all.len().div_ceil(3)).map(least).collect();
    let greatest = parts.iter().copied().fold(figure, f64::max);
    Ok(Native { cycles: figure, interval: [figure, greatest], instructions: all[0].0.instructions })
}
