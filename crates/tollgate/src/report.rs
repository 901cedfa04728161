//! `tollgate report`: shows the charges of a run, for people and for programs.

use crate::entries;
use crate::identity::{RELEASE, STATE};
use crate::output;
use crate::report_csv;
use crate::sites::{self, WhatIf};
use crate::stacks;
use crate::table::{
    Align::{Left, Right},
    Print, ROWS, counted, cycles, emit, emit_parts, gigahertz, limit, number, read_ledger, seconds, share, shortened,
    table, title, whole_cycles,
};
use crate::top_down;
use crate::usage::WrongArguments;
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use ledger::summary::{By, Cause, Row, Selection, TaskLine, Top, UNNAMED_FACT, Unnamed, Who};
use ledger::{Amount, Class, Family, Kind, Ledger};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Facts about a run that its report begins with.
const IN_HEAD: [&str; 4] = ["command", "command line", "model", "platform"];
/// Name of the fact about the kernel's image.
const IMAGE: &str = "kernel";
/// Name of the fact that a guest has moved to another processor.
const MOVED: &str = machine::moves::FACT;

/// Shows the charges of a run: the boundaries that were crossed, by which code, how often, and at what cost.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tollgate report boot.ledger
  tollgate report boot.ledger --by symbol --top 40
  tollgate report boot.ledger --region hackbench
  tollgate report boot.ledger --by task
  tollgate report boot.ledger --by entry --task hackbench
  tollgate report guest.ledger --by exit
  tollgate report boot.ledger --task hackbench --by symbol
  tollgate report guest.ledger --level 0 --by symbol
  tollgate report boot.ledger --top-down --by comm
  tollgate report boot.ledger --by call-site
  tollgate report boot.ledger --stacks
  tollgate report boot.ledger --stacks --event 'MOV CR3' --task hackbench
  tollgate report boot.ledger --functions --top 20
  tollgate report boot.ledger --of 'copy_*' --task hackbench
  tollgate report boot.ledger --folded | grep schedule
  tollgate report boot.ledger --svg flame.svg
  tollgate report boot.ledger --what-if 'direct(udp_queue_rcv_one_skb=sock_def_readable)'
  tollgate report boot.ledger --json | jq .kinds
  tollgate report boot.ledger --json --by symbol --top 5
  tollgate report boot.ledger --csv --by entry > entries.csv")]
pub struct ReportArgs {
    /// The ledger
    #[arg(value_name = "LEDGER")]
    ledger: PathBuf,
    /// A second ledger, which is refused
    #[arg(value_name = "LEDGER", hide = true)]
    second: Option<PathBuf>,
    /// Prints the report as JSON: the complete one, or what --by and --top select
    #[arg(long)]
    json: bool,
    /// Prints the lines of one table as comma-separated values, with the numbers of --json [default table: symbol]
    #[arg(long, conflicts_with_all = ["json", "top_down", "what_if", "stacks", "folded", "svg"])]
    csv: bool,
    /// Shows one table only
    #[arg(long, value_enum)]
    by: Option<Table>,
    /// Rows per table; 0 for all [default: 25; with --json: 0]
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// Restricts the report to a region of interest
    #[arg(long, value_name = "NAME")]
    region: Option<String>,
    /// Restricts the report to a virtualization level: 0 is the machine or the hypervisor, 1 its guest
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=2))]
    level: Option<u8>,
    /// Restricts the report to the tasks of a name, with the wildcards * and ?, or to the process or thread of a number
    #[arg(long, value_name = "COMM|PID")]
    task: Option<String>,
    /// Splits the cycles as top-down analysis does, those of each line of --by [default: symbol]. For runs with the model core
    #[arg(long, conflicts_with_all = ["what_if", "stacks", "folded", "svg"])]
    top_down: bool,
    #[command(flatten)]
    stacks: stacks::StacksArgs,
    /// Estimates the charges after a change: direct(SITE[=TARGET,...]) or cached(CPUID.LEAF). May be repeated
    #[arg(long, value_name = "CHANGE")]
    what_if: Vec<WhatIf>,
}

/// A table of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Table {
    /// Functions
    Symbol,
    /// Addresses
    Address,
    /// Kinds of events
    Kind,
    /// Classes of instructions
    Class,
    /// Address spaces
    Space,
    /// Rings
    Ring,
    /// Virtualization levels: a hypervisor and its guest
    Level,
    /// Regions of interest
    Region,
    /// Tasks of the guest, interrupts and soft interrupts
    Task,
    /// Tasks of the guest, merged by name
    Comm,
    /// Entries to the kernel: system calls, exceptions, interrupts, with everything below them
    Entry,
    /// VM exits: the time from each to the next entry into the guest, by reason and level
    Exit,
    /// Indirect calls, jumps and returns with their targets, for a run with --call-sites
    CallSite,
}

impl Table {
    /// Returns the lines of a table that sums up places, and what one of them is.
    fn lines(self) -> Option<(By, &'static str)> {
        Some(match self {
            Self::Symbol => (By::Symbol, "symbol"),
            Self::Address => (By::Address, "address"),
            Self::Space => (By::Space, "space"),
            Self::Ring => (By::Ring, "ring"),
            Self::Level => (By::Level, "level"),
            Self::Region => (By::Region, "region"),
            Self::Task => (By::Task, "task"),
            Self::Comm => (By::Comm, "task"),
            Self::Kind | Self::Class | Self::CallSite | Self::Entry | Self::Exit => return None,
        })
    }
}

/// The part of a ledger that a report covers.
#[derive(Clone, Copy, Default)]
struct Part<'a> {
    region: Option<&'a str>,
    task: Option<&'a str>,
}

/// The tables that the user has selected for programs, and the number of their rows.
#[derive(Clone, Copy, Default)]
struct Chosen {
    by: Option<Table>,
    top: Option<usize>,
}

impl Chosen {
    /// Returns the number of rows if the tables are those for people: without halted time and ordered by time. `None` stands
    /// for the complete document.
    fn rows(self) -> Option<usize> {
        let top = self.top.unwrap_or(0);
        (self.by.is_some() || top != 0).then_some(limit(top))
    }
}

/// Refuses options of which one would have no effect.
fn check(args: &ReportArgs) -> Result<()> {
    if let Some(second) = &args.second {
        let (first, second) = (args.ledger.display(), second.display());
        let text = format!("a report is of one ledger: `tollgate compare {first} {second}` shows two side by side");
        bail!(WrongArguments::new(text));
    }
    let estimates = !args.what_if.is_empty();
    if args.task.is_some() && (args.by == Some(Table::CallSite) || estimates) {
        bail!(WrongArguments::new("indirect branches are not recorded by task: leave out --task"));
    }
    if args.top_down && args.by.is_some_and(|by| by.lines().is_none()) {
        bail!(WrongArguments::new("--top-down splits functions, addresses, tasks, regions, rings, levels and spaces"));
    }
    // A document contains both the estimates and the tables.
    if estimates && !args.json && (args.by.is_some() || args.top.is_some()) {
        bail!(WrongArguments::new("--what-if prints no tables: leave out --by and --top, or use --json"));
    }
    Ok(())
}

/// Runs the command.
pub fn run(args: &ReportArgs) -> Result<()> {
    check(args)?;
    output::distinct(args.stacks.output(), [("the ledger", &args.ledger)])?;
    let ledger = read_ledger(&args.ledger)?;
    let selection = select(&ledger, args.region.as_deref())?;
    let selection = args.level.map_or(selection, |level| selection.at_level(level));
    let selection = select_task(selection, args.task.as_deref())?;
    let part = Part { region: args.region.as_deref(), task: args.task.as_deref() };
    if args.by == Some(Table::CallSite) {
        sites::has_branches(&ledger)?;
    }
    if args.stacks.wanted() {
        let form = stacks::Form { json: args.json, csv: args.csv, top: args.top };
        return stacks::run(&args.stacks, &ledger, selection, part.region, &form);
    }
    if args.top_down {
        split(args, &ledger, selection, part)?;
    } else if args.csv {
        let chosen = Chosen { by: Some(args.by.unwrap_or(Table::Symbol)), top: args.top };
        emit(&csv(&ledger, selection, part, chosen))?;
    } else if args.json {
        let changes = sites::what_if_json(&ledger, selection, &args.what_if)?;
        let chosen = Chosen { by: args.by, top: args.top };
        emit_parts(|print| document(&ledger, selection, part, chosen, changes, print))?;
    } else if args.what_if.is_empty() {
        emit(&text(&ledger, selection, part, args.by, args.top.unwrap_or(ROWS)))?;
    } else {
        let mut out = String::new();
        head(&mut out, &ledger, selection, part);
        sites::what_if_text(&mut out, &ledger, selection, &args.what_if)?;
        foot(&mut out, &ledger);
        emit(&out)?;
    }
    ledger.verify().with_context(|| format!("{} contradicts itself", args.ledger.display()))?;
    Ok(())
}

/// Prints the split of top-down analysis.
fn split(args: &ReportArgs, ledger: &Ledger, selection: Selection, part: Part) -> Result<()> {
    if !top_down::applies(ledger) {
        bail!("this run's model does not separate waits from work: record the run with --model core");
    }
    let by = args.by.and_then(Table::lines).unwrap_or((By::Symbol, "symbol"));
    if args.json {
        let document = json!({
            "run": header_document(ledger),
            "total": top_down::total_json(ledger, selection),
            "lines": top_down::lines_json(ledger, selection, by.0, limit(args.top.unwrap_or(0))),
        });
        return emit(&format!("{document:#}\n"));
    }
    let mut out = String::new();
    head(&mut out, ledger, selection, part);
    top_down::total(&mut out, ledger, selection);
    top_down::lines(&mut out, ledger, selection, by, args.top.unwrap_or(ROWS));
    foot(&mut out, ledger);
    emit(&out)
}

/// Selects a region by name, or everything.
pub fn select<'a>(ledger: &'a Ledger, region: Option<&str>) -> Result<Selection<'a>> {
    let Some(name) = region else { return Ok(ledger.all()) };
    match ledger.region(name) {
        Some(selection) => Ok(selection),
        None => {
            let names: Vec<&str> = ledger.regions.iter().skip(1).map(|region| region.name.as_str()).collect();
            let text = match names.is_empty() {
                true => "the ledger has no regions of interest".to_owned(),
                false => format!("the ledger has no region '{name}'; it has: {}", names.join(", ")),
            };
            bail!(WrongArguments::new(text))
        }
    }
}

/// Restricts a selection to a task, if one is given.
pub fn select_task<'a>(selection: Selection<'a>, task: Option<&'a str>) -> Result<Selection<'a>> {
    const SHOWN: usize = 8;
    let Some(name) = task else { return Ok(selection) };
    match selection.of_task(name) {
        Some(selection) => Ok(selection),
        None => {
            let known = selection.top(By::Comm, SHOWN);
            let more = if known.of > SHOWN { ", ..." } else { "" };
            let names: Vec<&str> = known.rows.iter().map(|(name, _)| name.as_str()).collect();
            let text = format!("the ledger has no task '{name}'; it has: {}{more}", names.join(", "));
            bail!(WrongArguments::new(text))
        }
    }
}

/// Returns the report as text.
fn text(ledger: &Ledger, selection: Selection, part: Part, by: Option<Table>, top: usize) -> String {
    let mut out = String::new();
    let total = selection.total();
    let busy = total.busy();
    head(&mut out, ledger, selection, part);
    let kinds = selection.kinds();
    let all = by.is_none();
    if all && top_down::applies(ledger) {
        top_down::total(&mut out, ledger, selection);
    }
    if all {
        let crossing = |family: Family| family.is_crossing() && !family.is_hypervisor();
        let exit = |family| matches!(family, Family::VmExit | Family::VmEntry);
        let operation = |family| family == Family::Operation;
        kinds_table(&mut out, "VM exits and entries", ledger, &kinds, busy, top, &exit);
        kinds_table(&mut out, "What the hypervisor did", ledger, &kinds, busy, top, &operation);
        let heading = if ledger.has_guest() { "Other crossings" } else { "Crossings" };
        kinds_table(&mut out, heading, ledger, &kinds, busy, top, &crossing);
        kinds_table(&mut out, "TLB misses", ledger, &kinds, busy, top, &Family::is_tlb_miss);
        kinds_table(&mut out, "Cache misses", ledger, &kinds, busy, top, &Family::is_cache_miss);
        kinds_table(&mut out, "Mispredicted branches", ledger, &kinds, busy, top, &Family::is_mispredict);
        devices(&mut out, selection, busy, top);
    }
    if all || by == Some(Table::Exit) {
        entries::exits_text(&mut out, ledger, selection, busy, limit(top));
    }
    if all || by == Some(Table::Entry) {
        entries::text(&mut out, ledger, selection, busy, limit(top));
    }
    if by == Some(Table::Kind) {
        kinds_table(&mut out, "Kinds of events", ledger, &kinds, busy, top, &|_| true);
    }
    if all || by == Some(Table::Class) {
        classes(&mut out, selection, busy, top);
    }
    if by == Some(Table::Space) {
        rows(&mut out, ["Address spaces", "space"], ledger, selection.top(By::Space, limit(top)), busy);
    }
    if all && ledger.has_guest() || by == Some(Table::Level) {
        rows(&mut out, ["Levels", "level"], ledger, selection.top(By::Level, limit(top)), busy);
    }
    if all || by == Some(Table::Ring) {
        rows(&mut out, ["Rings", "ring"], ledger, selection.top(By::Ring, limit(top)), busy);
    }
    if by == Some(Table::Region) || all && part.region.is_none() && ledger.regions.len() > 1 {
        rows(&mut out, ["Regions of interest", "region"], ledger, selection.top(By::Region, limit(top)), busy);
    }
    if all && ledger.tasks.len() > 1 || by == Some(Table::Comm) {
        rows(&mut out, ["Tasks by name", "task"], ledger, selection.top(By::Comm, limit(top)), busy);
    }
    if by == Some(Table::Task) {
        rows(&mut out, ["Tasks", "task"], ledger, selection.top(By::Task, limit(top)), busy);
    }
    if all || by == Some(Table::Symbol) {
        rows(&mut out, ["Top offenders", "symbol"], ledger, selection.top(By::Symbol, limit(top)), busy);
    }
    if by == Some(Table::CallSite) {
        sites::text(&mut out, selection, busy, limit(top));
    }
    if by == Some(Table::Address) {
        rows(&mut out, ["Addresses", "address"], ledger, selection.top(By::Address, limit(top)), busy);
    }
    foot(&mut out, ledger);
    out
}

fn head(out: &mut String, ledger: &Ledger, selection: Selection, part: Part) {
    let header = &ledger.header;
    let total = &selection.total();
    let busy = total.busy();
    let mut line = |name: &str, value: String| out.push_str(&format!("{name:<13} {value}\n"));
    line("processor", format!("{}, {}", header.profile, gigahertz(header.tsc_hz)));
    // The profile is the last one of a guest that has moved.
    if let Some(moves) = header.metadata.get(MOVED) {
        line(MOVED, fact(moves));
    }
    for key in IN_HEAD {
        if let Some(value) = header.metadata.get(key) {
            line(key, fact(value));
        }
    }
    // The release says more than the hash of the image, which is below the tables then.
    if let Some(kernel) = header.metadata.get(RELEASE).or_else(|| header.metadata.get(IMAGE)) {
        line(IMAGE, fact(kernel));
    }
    if let Some(folded) = ledger.folded.describe() {
        line("folded", folded);
    }
    line("virtual CPUs", number(header.clocks.len() as u64));
    let clock = header.clocks.iter().copied().max().unwrap_or(0);
    line("virtual time", format!("{:.6} s", seconds(clock, header.tsc_hz)));
    if let Some(region) = part.region {
        line("region", region_line(ledger, region));
    }
    if let Some(task) = part.task {
        line("task", task.to_owned());
    }
    line("cycles", format!("{} ({} of them halted)", cycles(total.ticks), cycles(total.of(Cause::Halted).ticks)));
    let part = |amount: Amount, what: &str| {
        let (count, spent) = (number(amount.count), cycles(amount.ticks));
        format!("{count}{what}: {spent} cycles, {} of the unhalted cycles", share(amount.ticks, busy))
    };
    line("instructions", part(total.of(Cause::Instructions), ""));
    line("crossings", part(total.crossings(), ""));
    if ledger.has_guest() {
        line("  VM exits", part(total.exits(), ", with the entries after them"));
        line("  hypervisor", part(total.operations(), " operations"));
    }
    line("TLB misses", part(total.of(Cause::TlbMisses), ""));
    let caches = total.of(Cause::CacheMisses);
    if caches != Amount::default() {
        line("cache misses", part(caches, ""));
    }
    let splits = total.of(Cause::Splits);
    if splits != Amount::default() {
        line("across lines", part(splits, " accesses"));
    }
    let directions = selection.kinds().keys().any(|kind| kind.family == Family::BranchMiss);
    let branches = if directions { " branches and returns" } else { " indirect branches and returns" };
    line("mispredicted", part(total.of(Cause::Mispredictions), branches));
    match ledger.verify() {
        Ok(_) => line("balance", "the entries add up to the clock".to_owned()),
        Err(error) => line("balance", format!("WRONG: {error}")),
    }
    for unnamed in selection.unnamed() {
        line("without names", format!("{} of the time, in {}", share(unnamed.ticks, unnamed.of), unnamed.describe()));
    }
}

/// Appends the facts about the run that the head does not have: its inputs, and the state of its kernel.
fn foot(out: &mut String, ledger: &Ledger) {
    let metadata = &ledger.header.metadata;
    let elsewhere = |key: &str| {
        let head = IN_HEAD.contains(&key) || key == MOVED || key == RELEASE;
        head || key.starts_with(UNNAMED_FACT) || key == IMAGE && !metadata.contains_key(RELEASE)
    };
    let facts = metadata.iter().filter(|(key, _)| !elsewhere(key));
    let (state, inputs): (Vec<_>, Vec<_>) = facts.partition(|(key, _)| key.starts_with(STATE));
    for (title, facts) in [("Inputs of the run", inputs), ("State of the kernel after the command", state)] {
        if facts.is_empty() {
            continue;
        }
        let name = |key: &str| key.strip_prefix(STATE).unwrap_or(key).to_owned();
        let rows: Vec<Vec<String>> = facts.iter().map(|(key, value)| vec![name(key), fact(value)]).collect();
        *out += &format!("\n{title}\n\n");
        table(out, &[("", Left), ("", Left)], &rows);
    }
}

/// Describes a region: how often and how long it was open.
fn region_line(ledger: &Ledger, name: &str) -> String {
    match ledger.regions.iter().find(|region| region.name == name) {
        // Older files have no duration.
        Some(region) if region.elapsed != 0 => {
            let times = if region.begun == 1 { "once".to_owned() } else { format!("{} times", number(region.begun)) };
            format!("{name}, entered {times}, open for {:.6} s", seconds(region.elapsed, ledger.header.tsc_hz))
        }
        _ => name.to_owned(),
    }
}

/// Number of digits shown of a hash: enough for people to distinguish files.
const HASH_DIGITS: usize = 16;

/// Formats a fact about a run; of a hash only the first digits, and of a list only its length.
pub fn fact(value: &str) -> String {
    let lines = value.trim_end().lines().count();
    if lines > 1 {
        return format!("{} (--json has them)", counted(lines, "line", "lines"));
    }
    match value.strip_prefix("sha256 ").and_then(|rest| rest.split_once(' ')) {
        Some((hash, rest)) if hash.len() > HASH_DIGITS && hash.is_ascii() => {
            format!("sha256 {}.. {rest}", &hash[..HASH_DIGITS])
        }
        _ => value.to_owned(),
    }
}

fn kinds_table(
    out: &mut String,
    heading: &str,
    ledger: &Ledger,
    kinds: &BTreeMap<Kind, Amount>,
    busy: u64,
    top: usize,
    wanted: &dyn Fn(Family) -> bool,
) {
    let mut kinds: Vec<(Kind, Amount)> =
        kinds.iter().filter(|(kind, _)| wanted(kind.family)).map(|(kind, amount)| (*kind, *amount)).collect();
    if kinds.is_empty() {
        return;
    }
    sort(&mut kinds);
    let shown: Vec<Vec<String>> = kinds
        .iter()
        .take(limit(top))
        .map(|(kind, amount)| {
            let each = amount.ticks.checked_div(amount.count).unwrap_or(0);
            let share = if kind.family == Family::Halt { "-".to_owned() } else { share(amount.ticks, busy) };
            vec![share, cycles(amount.ticks), number(amount.count), cycles(each), ledger.describe(*kind)]
        })
        .collect();
    title(out, heading, shown.len(), kinds.len());
    table(out, &[("share", Right), ("cycles", Right), ("count", Right), ("each", Right), ("kind", Left)], &shown);
}

/// Sorts the lines of a table, the largest time first.
fn sort<K: Ord>(lines: &mut [(K, Amount)]) {
    lines.sort_by(|a, b| (b.1.ticks, b.1.count).cmp(&(a.1.ticks, a.1.count)).then_with(|| a.0.cmp(&b.0)));
}

/// Returns the time of the reads and writes of a device.
fn device_ticks((reads, writes): &(Amount, Amount)) -> u64 {
    reads.ticks.saturating_add(writes.ticks)
}

/// Returns the devices with their reads and writes, the largest time first.
fn sorted_devices(selection: Selection) -> Vec<(String, (Amount, Amount))> {
    let mut devices: Vec<_> = selection.devices().into_iter().collect();
    devices.sort_by(|a, b| device_ticks(&b.1).cmp(&device_ticks(&a.1)).then_with(|| a.0.cmp(&b.0)));
    devices
}

/// Returns the executed classes of instructions, the largest time first.
fn sorted_classes(selection: Selection) -> Vec<(Class, Amount)> {
    let mut classes: Vec<(Class, Amount)> = Class::ALL.into_iter().zip(selection.classes()).collect();
    classes.retain(|(_, amount)| amount.count != 0);
    sort(&mut classes);
    classes
}

fn devices(out: &mut String, selection: Selection, busy: u64, top: usize) {
    let devices = sorted_devices(selection);
    if devices.is_empty() {
        return;
    }
    let shown: Vec<Vec<String>> = devices
        .iter()
        .take(limit(top))
        .map(|(name, both)| {
            let counts = [number(both.0.count), number(both.1.count)];
            let [reads, writes] = counts;
            vec![share(device_ticks(both), busy), cycles(device_ticks(both)), reads, writes, name.clone()]
        })
        .collect();
    title(out, "Devices", shown.len(), devices.len());
    table(out, &[("share", Right), ("cycles", Right), ("reads", Right), ("writes", Right), ("device", Left)], &shown);
}

fn classes(out: &mut String, selection: Selection, busy: u64, top: usize) {
    let classes = sorted_classes(selection);
    if classes.is_empty() {
        return;
    }
    let shown: Vec<Vec<String>> = classes
        .iter()
        .take(limit(top))
        .map(|(class, amount)| {
            vec![share(amount.ticks, busy), cycles(amount.ticks), number(amount.count), class.name().to_owned()]
        })
        .collect();
    title(out, "Instructions", shown.len(), classes.len());
    table(out, &[("share", Right), ("cycles", Right), ("count", Right), ("class", Left)], &shown);
}

fn rows(out: &mut String, [heading, what]: [&str; 2], ledger: &Ledger, top: Top, busy: u64) {
    let shown: Vec<Vec<String>> = top
        .rows
        .iter()
        .map(|(name, row)| {
            let (part, spent) = (share(row.busy(), busy), cycles(row.busy()));
            vec![part, spent, number(row.instructions), shortened(name), dominant(ledger, row)]
        })
        .collect();
    title(out, heading, shown.len(), top.of);
    let headings = [("share", Right), ("cycles", Right), ("instructions", Right), (what, Left), ("for what", Left)];
    table(out, &headings, &shown);
}

/// Returns the main causes of a row's busy time: at most three, each at least five percent.
fn dominant(ledger: &Ledger, row: &Row) -> String {
    let mut causes: Vec<&(Cause, Amount)> = row.causes.iter().filter(|(cause, _)| *cause != Cause::Halted).collect();
    causes.sort_by(|a, b| b.1.ticks.cmp(&a.1.ticks).then(a.0.cmp(&b.0)));
    let parts = causes.into_iter().take(3).filter(|(_, amount)| amount.ticks.saturating_mul(20) >= row.busy().max(1));
    let parts: Vec<String> = parts
        .map(|(cause, amount)| {
            format!("{} {:.0}%", ledger.describe_cause(*cause), amount.ticks as f64 / row.busy() as f64 * 100.0)
        })
        .collect();
    parts.join(", ")
}

/// Returns the description of a run for programs.
pub fn header_document(ledger: &Ledger) -> Value {
    let header = &ledger.header;
    json!({
        "profile": header.profile,
        "tsc_hz": header.tsc_hz,
        "metadata": header.metadata,
        "clocks": header.clocks,
        "folded": ledger.folded.describe(),
        "consistent": ledger.verify().is_ok(),
    })
}

/// Returns a part of the code without names for programs.
pub fn unnamed_document(unnamed: &Unnamed) -> Value {
    json!({
        "part": unnamed.part.name(),
        "nested": unnamed.nested,
        "ticks": unnamed.ticks,
        "share": unnamed.share(),
        "reason": unnamed.reason,
    })
}

fn amount(amount: Amount) -> Value {
    json!({ "count": amount.count, "ticks": amount.ticks, "cycles": whole_cycles(amount.ticks) })
}

/// A member of the document. A list is generated and printed item by item, because it may be as long as the ledger.
enum Member {
    One(Value),
    Many(Vec<Value>),
    Lines(By),
    Symbols,
    Tasks,
}

/// Returns the members of the document in order.
fn members(ledger: &Ledger, selection: Selection, part: Part, chosen: Chosen) -> Vec<(&'static str, Member)> {
    let mut members = tables(ledger, selection, part, chosen);
    members.extend([
        ("region", Member::One(json!(part.region))),
        ("run", Member::One(header_document(ledger))),
        ("task", Member::One(json!(part.task))),
        ("total", Member::One(total(selection))),
        ("unnamed", Member::Many(selection.unnamed().iter().map(unnamed_document).collect())),
    ]);
    members.sort_by_key(|(name, _)| *name);
    members
}

/// Returns the selected tables: the one of `--by`, or those of the complete report.
fn tables(ledger: &Ledger, selection: Selection, part: Part, chosen: Chosen) -> Vec<(&'static str, Member)> {
    let rows = chosen.rows();
    let sites = || Member::Many(sites::json(selection, rows.unwrap_or(usize::MAX)));
    let entries = || Member::Many(entries::values(ledger, selection, rows));
    let exits = || Member::Many(entries::exit_values(ledger, selection, rows));
    let Some(by) = chosen.by else {
        let mut all = vec![
            ("classes", classes_member(selection, rows)),
            ("devices", devices_member(selection, rows)),
            ("entries", entries()),
            ("exits", exits()),
            ("kinds", kinds_member(ledger, selection, rows)),
            ("levels", Member::Lines(By::Level)),
            ("regions", Member::Lines(By::Region)),
            ("rings", Member::Lines(By::Ring)),
            ("spaces", Member::Lines(By::Space)),
            ("symbols", Member::Symbols),
            ("tasks", Member::Tasks),
        ];
        if top_down::applies(ledger) {
            all.push(("top_down", Member::One(top_down::total_json(ledger, selection))));
        }
        // Indirect branches have no tasks.
        if !ledger.branches.is_empty() && part.task.is_none() {
            all.push(("call_sites", sites()));
        }
        return all;
    };
    vec![match by {
        Table::Address => ("addresses", Member::Lines(By::Address)),
        Table::CallSite => ("call_sites", sites()),
        Table::Class => ("classes", classes_member(selection, rows)),
        Table::Comm => ("comms", Member::Lines(By::Comm)),
        Table::Entry => ("entries", entries()),
        Table::Exit => ("exits", exits()),
        Table::Kind => ("kinds", kinds_member(ledger, selection, rows)),
        Table::Level => ("levels", Member::Lines(By::Level)),
        Table::Region => ("regions", Member::Lines(By::Region)),
        Table::Ring => ("rings", Member::Lines(By::Ring)),
        Table::Space => ("spaces", Member::Lines(By::Space)),
        Table::Symbol => ("symbols", Member::Symbols),
        Table::Task => ("tasks", Member::Tasks),
    }]
}

fn kinds_member(ledger: &Ledger, selection: Selection, rows: Option<usize>) -> Member {
    let mut kinds: Vec<(Kind, Amount)> = selection.kinds().into_iter().collect();
    if let Some(rows) = rows {
        sort(&mut kinds);
        kinds.truncate(rows);
    }
    let kinds = kinds.into_iter().map(|(kind, sum)| {
        json!({
            "family": kind.family.name(), "parameter": kind.param, "name": ledger.describe(kind),
            "count": sum.count, "ticks": sum.ticks,
        })
    });
    Member::Many(kinds.collect())
}

fn classes_member(selection: Selection, rows: Option<usize>) -> Member {
    let classes: Vec<(Class, Amount)> = match rows {
        Some(rows) => sorted_classes(selection).into_iter().take(rows).collect(),
        None => Class::ALL.into_iter().zip(selection.classes()).collect(),
    };
    let classes: BTreeMap<&str, Value> = classes.into_iter().map(|(class, sum)| (class.name(), amount(sum))).collect();
    Member::One(json!(classes))
}

fn devices_member(selection: Selection, rows: Option<usize>) -> Member {
    let devices = sorted_devices(selection).into_iter().take(rows.unwrap_or(usize::MAX));
    let value = |(reads, writes)| json!({ "reads": amount(reads), "writes": amount(writes) });
    let devices: BTreeMap<String, Value> = devices.map(|(name, both)| (name, value(both))).collect();
    Member::One(json!(devices))
}

fn total(selection: Selection) -> Value {
    let total = selection.total();
    json!({
        "ticks": total.ticks,
        "instructions": amount(total.of(Cause::Instructions)),
        "crossings": amount(total.crossings()),
        "vm_exits": amount(total.exits()),
        "hypervisor": amount(total.operations()),
        "tlb_misses": amount(total.of(Cause::TlbMisses)),
        "cache_misses": amount(total.of(Cause::CacheMisses)),
        "splits": amount(total.of(Cause::Splits)),
        "mispredictions": amount(total.of(Cause::Mispredictions)),
        "halted": amount(total.of(Cause::Halted)),
    })
}

/// Returns a line of a table.
fn line(ledger: &Ledger, name: &str, row: &Row) -> Value {
    let causes: BTreeMap<String, Value> =
        row.causes.iter().map(|(cause, sum)| (ledger.describe_cause(*cause), amount(*sum))).collect();
    json!({ "name": name, "ticks": row.ticks, "instructions": row.instructions, "causes": causes })
}

/// Returns lines by their time, the largest first. With `rows`, they are the lines of the table for people.
fn lines<'a>(
    ledger: &'a Ledger,
    selection: Selection,
    by: By,
    rows: Option<usize>,
) -> impl Iterator<Item = Value> + 'a {
    let lines = match rows {
        Some(rows) => selection.top(by, rows).rows,
        None => {
            let mut all: Vec<(String, Row)> = selection.rows(by).into_iter().collect();
            all.sort_by(|a, b| b.1.ticks.cmp(&a.1.ticks).then_with(|| a.0.cmp(&b.0)));
            all
        }
    };
    lines.into_iter().map(move |(name, row)| line(ledger, &name, &row))
}

/// Returns functions by their time, the largest first, with the number of calls.
fn symbol_lines<'a>(
    ledger: &'a Ledger,
    selection: Selection<'a>,
    rows: Option<usize>,
) -> impl Iterator<Item = Value> + 'a {
    let calls = selection.calls();
    lines(ledger, selection, By::Symbol, rows).map(move |mut value| {
        let called = value["name"].as_str().and_then(|name| calls.get(name)).copied();
        value["calls"] = json!(called.unwrap_or(0));
        value
    })
}

/// Returns tasks by their time, the largest first, with the task's properties in separate fields.
fn task_lines<'a>(
    ledger: &'a Ledger,
    selection: Selection<'a>,
    rows: Option<usize>,
) -> impl Iterator<Item = Value> + 'a {
    let mut tasks = selection.tasks();
    let time = |row: &Row| if rows.is_some() { row.busy() } else { row.ticks };
    tasks.sort_by(|a, b| time(&b.row).cmp(&time(&a.row)).then_with(|| a.name.cmp(&b.name)));
    if let Some(rows) = rows {
        tasks.retain(|task| task.row.busy() != 0);
        tasks.truncate(rows);
    }
    tasks.into_iter().map(move |TaskLine { name, who, inside, row }| {
        let mut value = line(ledger, &name, &row);
        let (kind, task) = match who {
            Who::Task(task) => (Some(task.kind.name()), Some(task)),
            Who::Context(context) => (Some(context.name()), None),
            Who::Nobody => (None, None),
        };
        value["kind"] = json!(kind);
        value["pid"] = json!(task.map(|task| task.pid));
        value["tid"] = json!(task.map(|task| task.tid));
        value["comm"] = json!(task.map(|task| &task.comm));
        value["nested"] = json!(inside);
        value
    })
}

/// Prints the report as JSON.
fn document(
    ledger: &Ledger,
    selection: Selection,
    part: Part,
    chosen: Chosen,
    changes: Vec<Value>,
    print: Print,
) -> Result<()> {
    let mut before = "{\n";
    let rows = chosen.rows();
    let mut members = members(ledger, selection, part, chosen);
    if !changes.is_empty() {
        members.push(("what_if", Member::Many(changes)));
    }
    for (name, member) in members {
        print(&format!("{before}  \"{name}\": "))?;
        match member {
            Member::One(value) => print(&indented(&value, "  "))?,
            Member::Many(items) => list(&mut items.into_iter(), print)?,
            Member::Lines(by) => list(&mut lines(ledger, selection, by, rows), print)?,
            Member::Symbols => list(&mut symbol_lines(ledger, selection, rows), print)?,
            Member::Tasks => list(&mut task_lines(ledger, selection, rows), print)?,
        }
        before = ",\n";
    }
    print("\n}\n")
}

/// Returns the lines of the selected table as comma-separated values.
fn csv(ledger: &Ledger, selection: Selection, part: Part, chosen: Chosen) -> String {
    let rows = chosen.rows();
    let table = |(_, member): (&'static str, Member)| match member {
        Member::One(Value::Object(members)) => {
            let named = |(name, mut value): (String, Value)| {
                value["name"] = json!(name);
                value
            };
            report_csv::rows(members.into_iter().map(named))
        }
        Member::One(value) => report_csv::rows(std::iter::once(value)),
        Member::Many(items) => report_csv::rows(items.into_iter()),
        Member::Lines(by) => report_csv::rows(lines(ledger, selection, by, rows)),
        Member::Symbols => report_csv::rows(symbol_lines(ledger, selection, rows)),
        Member::Tasks => report_csv::rows(task_lines(ledger, selection, rows)),
    };
    tables(ledger, selection, part, chosen).into_iter().map(table).collect()
}

fn indented(value: &Value, by: &str) -> String {
    format!("{value:#}").replace('\n', &format!("\n{by}"))
}

fn list(items: &mut dyn Iterator<Item = Value>, print: Print) -> Result<()> {
    let mut before = "[\n    ";
    for item in items {
        print(&format!("{before}{}", indented(&item, "    ")))?;
        before = ",\n    ";
    }
    print(if before.starts_with('[') { "[]" } else { "\n  ]" })
}

#[cfg(test)]
#[path = "report_tests.rs"]
pub(crate) mod tests;
