//! The measurements of a validation, one after the other on this machine, then side by side in the models.

use crate::bare::{self, BareError};
use crate::blocks;
use crate::choice::Fit;
use crate::clock::Clock as NativeClock;
use crate::families::{bandwidth, branches, caches, code, pairs, tlb};
use crate::kernel::Kernel;
use crate::linux::{self, Guest};
use crate::native::{Measured, NativeError, Process};
use crate::program::Program;
use crate::result::{Family, Pair, Row, Validation};
use crate::shared::{self, count_shared};
use iced_x86::{Formatter, GasFormatter};
use ledger::profile::{Clock, Profile};
use silicon::host::Processor;
use silicon::measure::Traced;
use silicon::sample::{draw, usual_programs};
use silicon::{Block, Failure, program};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Seed of the choice of blocks.
const SEED: u64 = 1;
/// Blocks that are measured.
const BLOCKS: [usize; 2] = [600, 120];
/// The most instructions that a note names.
const MOST_NAMED: usize = 6;
/// Time for which a kernel is repeated, in parts of a second.
const BUDGETS: [u64; 2] = [40, 100];

/// Reason why there is no validation.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The program cannot be assembled.
    #[error("the program for the measurements cannot be assembled: {0}")]
    Assembly(#[from] iced_x86::IcedError),
    /// The process failed.
    #[error(transparent)]
    Native(#[from] NativeError),
}

/// The models beside which this machine is measured, the one in question first.
pub fn models(profile: &Profile) -> Vec<(String, Profile)> {
    let of = |clock: Clock| Some((clock.name().to_owned(), profile.clone().with_clock(clock).ok()?));
    [Clock::Core, Clock::Flat].into_iter().filter_map(of).collect()
}

/// How far a validation has come: what is being done, and which part of it is complete.
pub type Progress<'a> = &'a mut dyn FnMut(&str, f64);

/// The place of a kernel in the result.
enum Place {
    /// A row of a family: its number, group and place on the axis.
    Row(usize, String, f64),
    /// A way of a pair.
    Way(usize),
}

/// A family of kernels of the program: name, description, unit and axis.
const FAMILIES: [(&str, &str, &str, Option<&str>); 5] = [
    (
        "caches",
        "A load whose address depends on the load before, in random order, in pages of 2 MiB",
        "cycles",
        Some("bytes"),
    ),
    (
        "TLB",
        "A load whose address depends on the load before, of one line in each page of 4 KiB",
        "cycles",
        Some("pages"),
    ),
    ("bandwidth", "A line that is read, written or copied in order by vectors of 16 bytes", "cycles", Some("bytes")),
    ("branches", "A branch, with the load of its direction or target", "cycles", None),
    ("code", "A line of eight instructions in a loop over so much code", "cycles", Some("bytes")),
];

/// Returns all kernels of the program.
fn kernels(quick: bool) -> (Vec<(Place, Kernel)>, Vec<&'static str>) {
    let mut all = Vec::new();
    let curve = |family, group: &str, at: u64, kernel| (Place::Row(family, group.to_owned(), at as f64), kernel);
    all.extend(caches::kernels(quick).into_iter().map(|(at, kernel)| curve(0, "", at, kernel)));
    all.extend(tlb::kernels(quick).into_iter().map(|(at, kernel)| curve(1, "", at, kernel)));
    all.extend(bandwidth::kernels(quick).into_iter().map(|(way, at, kernel)| curve(2, way.name(), at, kernel)));
    all.extend(branches::kernels(quick).into_iter().map(|kernel| curve(3, "", 0, kernel)));
    all.extend(code::kernels(quick).into_iter().map(|(order, at, kernel)| curve(4, order.name(), at, kernel)));
    let pairs = pairs::pairs();
    let names = pairs.iter().map(|pair| pair.name).collect();
    for (n, pair) in pairs.into_iter().enumerate() {
        all.extend(pair.ways.map(|kernel| (Place::Way(n), kernel)));
    }
    (all, names)
}

/// Computes on all of the host's processors, and returns the results in the order of the tasks.
fn side_by_side<T: Send>(tasks: usize, progress: &mut dyn FnMut(f64), task: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(BTreeMap::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let work = || {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= tasks {
                    break;
                }
                let result = task(n);
                done.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(n, result);
            }
        };
        let workers: Vec<_> = (0..threads.min(tasks)).map(|_| scope.spawn(work)).collect();
        while !workers.iter().all(|worker| worker.is_finished()) {
            progress(next.load(Ordering::Relaxed).min(tasks) as f64 / tasks as f64);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    });
    done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()).into_values().collect()
}

/// Measures this machine, and the models of a profile. Programs and paths through the kernel need a guest.
pub fn run(
    profile: &Profile,
    fit: &str,
    quick: bool,
    guest: Option<&dyn Guest>,
    progress: Progress,
) -> Result<Validation, RunError> {
    let models = models(profile);
    let names = models.iter().map(|(name, _)| name.clone()).collect();
    let mut result = Validation::new(Processor::of_host(), names, quick);
    result.profile = profile.name.clone();
    result.title = profile.title.clone();
    result.fit = fit.to_owned();
    result.profile_hz = profile.tsc_hz.value;
    if virtualized() {
        result.notes.push(
            "This machine is virtual: its misses of the TLB walk two-dimensional tables, which the bare profile does not."
                .into(),
        );
    }
    let entries = known_entries(profile, fit);
    result.families.extend(of_blocks(&models, quick, entries, &mut result.notes, progress));
    of_program(&models, quick, entries, &mut result, progress)?;
    if let Some(guest) = guest {
        linux::run(guest, quick, entries, &mut result, progress);
    }
    Ok(result)
}

/// Returns true if CPUID reports a hypervisor (leaf 1, ECX, bit 31).
fn virtualized() -> bool {
    std::arch::x86_64::__cpuid(1).ecx & 1 << 31 != 0
}

/// A core of this machine, on which blocks are measured.
struct Machine {
    options: silicon::Options,
}

impl Machine {
    /// Finds out what overlapping chains take while nothing else executes on the core.
    fn new(entries: Option<f64>) -> Self {
        let mut clock = NativeClock::new(entries).ok();
        let processor = clock.as_ref().map(NativeClock::processor);
        let idle = clock.as_mut().and_then(NativeClock::window);
        Self { options: silicon::Options { processor, idle, ..silicon::Options::default() } }
    }

    /// Measures a block.
    fn measure(&mut self, block: &Block) -> Result<Traced, Failure> {
        let traced = silicon::measure::trace_block(block, &self.options)?;
        self.learn(&traced);
        Ok(traced)
    }

    fn learn(&mut self, traced: &Traced) {
        self.options.idle = Some(self.options.idle.map_or(traced.window, |idle| idle.min(traced.window)));
    }
}

/// The family of basic blocks.
fn of_blocks(
    models: &[(String, Profile)],
    quick: bool,
    entries: Option<f64>,
    notes: &mut Vec<String>,
    progress: Progress,
) -> Option<Family> {
    let programs = usual_programs();
    let mut chosen: Vec<Block> = Vec::new();
    for (n, path) in programs.iter().enumerate() {
        let count = BLOCKS[usize::from(quick)];
        let share = count * (n + 1) / programs.len() - count * n / programs.len();
        match program::blocks(path) {
            Ok(blocks) => chosen.extend(draw(SEED, blocks, share)),
            Err(error) => notes.push(format!("No blocks of a program: {error}.")),
        }
    }
    let mut machine = Machine::new(entries);
    let mut measured: Vec<(Block, Traced)> = Vec::new();
    let mut beside: Vec<usize> = Vec::new();
    let mut failures: BTreeMap<&str, usize> = BTreeMap::new();
    let count = chosen.len();
    for (n, block) in chosen.into_iter().enumerate() {
        progress("blocks on this machine", n as f64 / count as f64);
        match machine.measure(&block) {
            Ok(traced) => {
                beside.extend((!traced.alone).then_some(measured.len()));
                measured.push((block, traced));
            }
            Err(failure) => *failures.entry(failure.name()).or_default() += 1,
        }
    }
    // Other work may have ended since.
    beside.retain(|n| {
        progress("blocks on this machine", 1.0);
        let (block, traced) = &mut measured[*n];
        match machine.measure(block) {
            Ok(again) if again.alone => *traced = again,
            _ => return true,
        }
        false
    });
    if !beside.is_empty() {
        notes.push(shared::note(beside.len(), measured.len(), "blocks"));
    }
    let tasks = measured.len() * models.len();
    let figures = side_by_side(tasks, &mut |part| progress("blocks in the models", part), |n| {
        blocks::measure(&models[n % models.len()].1, &measured[n / models.len()].1)
    });
    notes.extend(without_figure(models, &measured, &figures));
    let noisy = failures.remove("noise").unwrap_or(0);
    if noisy > count / 10 {
        notes.push(format!(
            "{noisy} of {count} blocks have no figure because their measurements disagree: this machine has other work."
        ));
    }
    let mut rows: Vec<Row> = measured
        .iter()
        .zip(figures.chunks(models.len()))
        .map(|((block, traced), figures)| Row {
            name: text(block),
            group: silicon::family::Family::of(block.instructions()).name().to_owned(),
            at: 0.0,
            native: traced.cycles.cycles,
            interval: traced.cycles.interval,
            shared: !traced.alone,
            models: figures.iter().map(|figure| figure.as_ref().ok().copied()).collect(),
        })
        .collect();
    count_shared(&mut rows);
    let about = "Basic blocks of programs of this machine, each repeated";
    (!rows.is_empty()).then(|| Family::new("blocks", about, "cycles", None, rows, models.len()))
}

/// Says which blocks have no figure of a model, and which instructions are the reason. There is a figure for each block and model.
fn without_figure(
    models: &[(String, Profile)],
    measured: &[(Block, Traced)],
    figures: &[Result<f64, BareError>],
) -> Vec<String> {
    // The instruction at which each block stops, and whether the processor lacks it.
    let stop = |(block, figures): (usize, &[Result<f64, BareError>])| {
        let (model, error) =
            figures.iter().enumerate().find_map(|(model, figure)| Some((model, figure.as_ref().err()?)))?;
        let instruction = match error {
            BareError::Stopped(at) => blocks::instruction_at(&measured[block].1, *at),
            BareError::Endless => None,
        };
        let lacks = instruction.is_some_and(|instruction| bare::lacks(&models[model].1, &instruction));
        Some((lacks, instruction.map(|instruction| format!("{:?}", instruction.mnemonic()).to_uppercase())))
    };
    let (lacking, others): (Vec<_>, Vec<_>) =
        figures.chunks(models.len()).enumerate().filter_map(stop).partition(|(lacks, _)| *lacks);
    let said = [
        (lacking, "can't be executed by the profile's processor, which lacks"),
        (others, "have no figure of a model, which stops at"),
    ];
    let said = said.into_iter().filter(|(stops, _)| !stops.is_empty());
    said.map(|(stops, why)| {
        let names = stops.iter().filter_map(|(_, name)| name.clone()).collect();
        stopping(stops.len(), why, &names)
    })
    .collect()
}

/// Says that so many blocks have no figure because of these instructions.
fn stopping(failed: usize, why: &str, instructions: &BTreeSet<String>) -> String {
    let blocks = match failed {
        1 => format!("1 block {}", why.replacen("have ", "has ", 1)),
        _ => format!("{failed} blocks {why}"),
    };
    let named: Vec<&str> = instructions.iter().take(MOST_NAMED).map(String::as_str).collect();
    let others = match instructions.len() - named.len() {
        0 => String::new(),
        1 => " and another one".to_owned(),
        others => format!(" and {others} others"),
    };
    match named[..] {
        [] => format!("{}.", blocks.rsplit_once(", which").map_or(&*blocks, |(begin, _)| begin)),
        _ => format!("{blocks} {}{others}.", named.join(", ")),
    }
}

fn text(block: &Block) -> String {
    let mut text = String::new();
    for instruction in block.instructions() {
        if !text.is_empty() {
            text.push_str("; ");
        }
        GasFormatter::new().format(instruction, &mut text);
    }
    text
}

/// The families of the program's kernels, and the pairs.
fn of_program(
    models: &[(String, Profile)],
    quick: bool,
    entries: Option<f64>,
    result: &mut Validation,
    progress: Progress,
) -> Result<(), RunError> {
    let (all, names) = kernels(quick);
    let (places, kernels): (Vec<Place>, Vec<Kernel>) = all.into_iter().unzip();
    let program = Program::new(&kernels)?;
    let natives = native(&program, &kernels, quick, entries, result, progress)?;
    let tasks: Vec<(usize, usize)> = (0..kernels.len())
        .filter(|n| natives[*n].is_some())
        .flat_map(|n| (0..models.len()).map(move |model| (n, model)))
        .collect();
    let figures = side_by_side(tasks.len(), &mut |part| progress("microbenchmarks in the models", part), |task| {
        let (n, model) = tasks[task];
        bare::measure(&models[model].1, &program, &kernels[n], program.functions[n])
    });
    let mut modelled = vec![vec![None; models.len()]; kernels.len()];
    for ((n, model), figure) in tasks.iter().zip(figures) {
        match figure {
            Ok(figure) => modelled[*n][*model] = Some(figure),
            Err(error) => {
                result.notes.push(format!("No figure of {} for '{}': {error}.", models[*model].0, kernels[*n].name))
            }
        }
    }
    let mut rows: [Vec<Row>; FAMILIES.len()] = Default::default();
    let mut ways: Vec<Vec<(Measured, Vec<Option<f64>>)>> = vec![Vec::new(); names.len()];
    for (((place, kernel), native), models) in places.into_iter().zip(&kernels).zip(natives).zip(modelled) {
        let Some(native) = native else { continue };
        match place {
            Place::Row(family, group, at) => rows[family].push(Row {
                name: kernel.name.clone(),
                group,
                at,
                native: native.cycles,
                interval: native.interval,
                shared: native.shared,
                models,
            }),
            Place::Way(pair) => ways[pair].push((native, models)),
        }
    }
    for ((name, about, unit, curve), mut rows) in FAMILIES.into_iter().zip(rows) {
        if !rows.is_empty() {
            count_shared(&mut rows);
            result.families.push(Family::new(name, about, unit, curve, rows, models.len()));
        }
    }
    let cycles = |name: &str| {
        let mut rows = result.families.iter().flat_map(|family| &family.rows);
        rows.find(|row| row.name == name).map(|row| row.native)
    };
    if branches::forgets_targets(cycles) {
        result.notes.push(
            "Indirect branches are predicted by their last target alone here, as a mitigation of Spectre v2 does it (IBRS or STIBP, of this kernel or \
             of the host's). The models predict targets by history."
                .into(),
        );
    }
    for (name, ways) in names.iter().zip(ways) {
        let [(a, first), (b, second)] = &ways[..] else { continue };
        let both = |model: usize| Some([first[model]?, second[model]?]);
        let models = (0..models.len()).map(both).collect();
        result.pairs.push(Pair { name: (*name).to_owned(), native: [a.cycles, b.cycles], models });
    }
    Ok(())
}

/// Returns the entries of this machine's reorder buffer, if the profile has its core.
fn known_entries(profile: &Profile, fit: &str) -> Option<f64> {
    [Fit::Exact, Fit::Core].iter().any(|known| known.text() == fit).then(|| entries_of(profile)).flatten()
}

/// Returns the entries of the reorder buffer of a profile's core.
fn entries_of(profile: &Profile) -> Option<f64> {
    let core = uarch::CoreTable::named(&profile.core.as_ref()?.value).ok()?;
    Some(f64::from(core.parameters.window.reorder))
}

/// Measures the kernels in a process.
fn native(
    program: &Program,
    kernels: &[Kernel],
    quick: bool,
    entries: Option<f64>,
    result: &mut Validation,
    progress: Progress,
) -> Result<Vec<Option<Measured>>, RunError> {
    let hz = silicon::options::stamp_hz();
    let budget = hz as u64 / BUDGETS[usize::from(quick)];
    let mut process = Process::start(program)?.with_entries(entries);
    let mut figures = Vec::new();
    for (n, kernel) in kernels.iter().enumerate() {
        progress("microbenchmarks on this machine", n as f64 / kernels.len() as f64);
        match process.measure(kernel, program.functions[n], budget) {
            Ok(figure) => figures.push(Some(figure)),
            // The processor may lack an instruction.
            Err(error @ NativeError::Ended(..)) => {
                result.notes.push(format!("No figure of this machine for '{}': {error}.", kernel.name));
                figures.push(None);
                process = Process::start(program)?.with_entries(entries);
            }
            Err(error) => return Err(error.into()),
        }
    }
    result.entries = process.entries().zip(entries).map(|(here, profile)| [here, profile]);
    if let Some([here, profile]) = result.entries
        && result.is_beside_others()
    {
        result.notes.push(format!(
            "A program had {here:.0} of {profile:.0} entries of the reorder buffer at most: the core's other thread is active all the time, and has \
             the other half. Figures of this machine are too high where instructions overlap, where their number or that of accesses \
             decides, and its caches seem smaller; those of chains are not affected."
        ));
    }
    if process.shared() > 0 {
        result.notes.push(shared::note(process.shared(), kernels.len(), "microbenchmarks"));
    }
    if !process.is_real_time() {
        result.notes.push(
            "The kernel grants no real-time priority (SCHED_FIFO): other work of this machine disturbs more measurements."
                .into(),
        );
    }
    if process.huge_bytes() == 0 {
        result.notes.push(
            "The kernel gives no pages of 2 MiB (transparent_hugepage): the curves of caches contain misses of the TLB."
                .into(),
        );
    }
    let mut clocks: Vec<f64> = figures.iter().flatten().map(|figure| figure.per_stamp * hz).collect();
    clocks.sort_by(f64::total_cmp);
    result.core_hz = clocks.get(clocks.len() / 2).copied();
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_processor_lacks_is_named() {
        let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let lacks = "can't be executed by the profile's processor, which lacks";
        assert_eq!(
            stopping(2, lacks, &named(&["VPADDB", "MOVBE"])),
            "2 blocks can't be executed by the profile's processor, which lacks MOVBE, VPADDB."
        );
        let eight = named(&["A", "B", "C", "D", "E", "F", "G", "H"]);
        assert!(stopping(9, lacks, &eight).ends_with("A, B, C, D, E, F and 2 others."));
        assert_eq!(stopping(1, lacks, &named(&[])), "1 block can't be executed by the profile's processor.");
        let stops = "have no figure of a model, which stops at";
        assert_eq!(stopping(1, stops, &named(&["MOV"])), "1 block has no figure of a model, which stops at MOV.");
        let instruction = |bytes: &[u8]| iced_x86::Decoder::new(64, bytes, 0).decode();
        let (zen5, skx) = (Profile::named("zen5").unwrap(), Profile::named("skx").unwrap());
        // CLZERO, and VPCMPD with a mask as its destination.
        let [clzero, compare] = [&[0x0f, 0x01, 0xfc][..], &[0x62, 0xf3, 0x7d, 0x28, 0x1f, 0xc8, 0x00]].map(instruction);
        assert!(
            crate::bare::lacks(&zen5, &clzero)
                && !crate::bare::lacks(&zen5, &compare)
                && !crate::bare::lacks(&skx, &compare)
        );
    }

    #[test]
    fn entries_of_the_reorder_buffer_are_those_of_the_core() {
        for (name, entries) in [("zen3", 256.0), ("skx", 224.0)] {
            assert_eq!(entries_of(&Profile::named(name).unwrap()), Some(entries), "{name}");
        }
    }

    #[test]
    fn tasks_are_complete_and_in_order() {
        let squares = side_by_side(100, &mut |_| {}, |n| n * n);
        assert_eq!(squares, (0..100).map(|n| n * n).collect::<Vec<_>>());
        assert!(side_by_side(0, &mut |_| {}, |n| n).is_empty());
    }

    #[test]
    fn names_of_kernels_are_unique() {
        let (all, _) = kernels(false);
        let mut names: Vec<String> = all.into_iter().map(|(_, kernel)| kernel.name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
