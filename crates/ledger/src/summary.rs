//! Sums over a ledger, or over one region of it: by kind, class, symbol, address space, ring and address.
//!
//! Sums saturate: a ledger that passes [`Ledger::verify`] never reaches that.

mod entries;
mod lines;
mod sites;
mod stacks;
mod top_down;
mod unnamed;

use crate::charge::Amount;
use crate::entry::BlockRuns;
use crate::ledger::Ledger;
use crate::pattern;
use crate::recorder::Region;
use crate::{Class, Family, Kind};
pub use lines::{Line, Lines, Who};
use rustc_hash::FxHashMap;
pub use sites::{Direct, Saved, Site};
pub use stacks::{CallStack, CallTree, Weigh};
use std::collections::{BTreeMap, BTreeSet};
pub use top_down::{Bound, TopDown};
pub use unnamed::{FACT as UNNAMED_FACT, Part, Unnamed, Warning};

/// The cause of a charge, at the level of detail of a report's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Ordinary instructions of all classes.
    Instructions,
    /// TLB misses of all kinds.
    TlbMisses,
    /// Waits for lines that the first-level caches do not have.
    CacheMisses,
    /// What accesses across lines and pages take more.
    Splits,
    /// Mispredicted branches and returns.
    Mispredictions,
    /// Time spent halted.
    Halted,
    /// One kind of crossing.
    Crossing(Kind),
}

impl Cause {
    /// Returns the cause of an event.
    pub fn of(kind: Kind) -> Self {
        match kind.family {
            Family::Instruction => Cause::Instructions,
            Family::Halt => Cause::Halted,
            family if family.is_tlb_miss() => Cause::TlbMisses,
            family if family.is_cache_miss() => Cause::CacheMisses,
            Family::Split => Cause::Splits,
            family if family.is_mispredict() => Cause::Mispredictions,
            _ => Cause::Crossing(kind),
        }
    }
}

/// A line of a report: the total charge, and its parts by cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Ticks charged.
    pub ticks: u64,
    /// Instructions executed.
    pub instructions: u64,
    /// Amounts by cause, sorted. There are few, so a list takes less memory than a map.
    pub causes: Vec<(Cause, Amount)>,
}

impl Row {
    fn add(&mut self, cause: Cause, amount: Amount) {
        self.ticks = self.ticks.saturating_add(amount.ticks);
        if cause == Cause::Instructions {
            self.instructions = self.instructions.saturating_add(amount.count);
        }
        let at = match self.causes.binary_search_by_key(&cause, |(cause, _)| *cause) {
            Ok(at) => at,
            Err(at) => {
                if self.causes.is_empty() {
                    // Most lines of a long list have one cause.
                    self.causes.reserve_exact(1);
                }
                self.causes.insert(at, (cause, Amount::default()));
                at
            }
        };
        self.causes[at].1.add(amount);
    }

    /// Returns the ticks except those spent halted.
    pub fn busy(&self) -> u64 {
        self.ticks.saturating_sub(self.of(Cause::Halted).ticks)
    }

    /// Returns the charge for one cause.
    pub fn of(&self, cause: Cause) -> Amount {
        let at = self.causes.binary_search_by_key(&cause, |(cause, _)| *cause);
        at.map_or(Amount::default(), |at| self.causes[at].1)
    }

    /// Returns the charge for crossings of all kinds.
    pub fn crossings(&self) -> Amount {
        self.crossings_of(|_| true)
    }

    /// Returns the charge for VM exits, including the processor's cost of the entries after them.
    pub fn exits(&self) -> Amount {
        let exits = self.crossings_of(|family| family == Family::VmExit);
        let both = self.crossings_of(|family| matches!(family, Family::VmExit | Family::VmEntry));
        Amount { count: exits.count, ticks: both.ticks }
    }

    /// Returns the charge for the hypervisor's software.
    pub fn operations(&self) -> Amount {
        self.crossings_of(|family| family == Family::Operation)
    }

    fn crossings_of(&self, wanted: impl Fn(Family) -> bool) -> Amount {
        let mut sum = Amount::default();
        for (cause, amount) in &self.causes {
            if matches!(cause, Cause::Crossing(kind) if wanted(kind.family)) {
                sum.add(*amount);
            }
        }
        sum
    }
}

/// The subject of a table's lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Functions. Addresses without a symbol share a few lines.
    Symbol,
    /// Addresses of blocks, and of the instructions of events.
    Address,
    /// Address spaces.
    Space,
    /// Virtualization levels and rings.
    Ring,
    /// Virtualization levels.
    Level,
    /// Regions of interest.
    Region,
    /// Tasks of the guest; interrupts and soft interrupts are lines of their own.
    Task,
    /// Tasks merged by name.
    Comm,
}

/// A filter of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted<'a> {
    /// Tasks with the name of the task that has this number; those of a guest of a hypervisor that runs on the machine, or the machine's own.
    Comm(u32, bool),
    /// Tasks whose names match a pattern.
    Pattern(&'a str),
    /// The process or thread with this number.
    Number(u32),
    /// Work in this context, which interrupts any task.
    Context(crate::Context),
    /// Likewise, in such a guest or outside.
    Interrupts(crate::Context, bool),
    /// Charges without a known task, likewise.
    None(bool),
}

/// A ledger, or a part of it.
#[derive(Clone, Copy)]
pub struct Selection<'a> {
    ledger: &'a Ledger,
    region: Option<u32>,
    level: Option<u8>,
    task: Option<Wanted<'a>>,
}

/// A line of [`By::Task`].
#[derive(Clone, Debug)]
pub struct TaskLine<'a> {
    /// Its name.
    pub name: String,
    /// Its subject.
    pub who: Who<'a>,
    /// True if that is part of a guest of a hypervisor that runs on the machine.
    pub inside: bool,
    /// Its charges.
    pub row: Row,
}

impl Ledger {
    /// Selects all of the ledger.
    pub fn all(&self) -> Selection<'_> {
        Selection { ledger: self, region: None, level: None, task: None }
    }

    /// Selects a region of interest, or the charges outside all regions by the name of that line; `None` if no line has the name.
    pub fn region(&self, name: &str) -> Option<Selection<'_>> {
        let name = if name == lines::OUTSIDE { "" } else { name };
        let is = |region: &Region| region.name == name || lines::given(&region.name) == name;
        let region = self.regions.iter().position(is)?;
        Some(Selection { region: Some(region as u32), ..self.all() })
    }

    /// Returns true if a guest of a hypervisor has charges.
    pub fn has_guest(&self) -> bool {
        self.origins.iter().any(|origin| origin.level != 0)
    }

    /// Returns the title of a kind in reports.
    pub fn describe(&self, kind: Kind) -> String {
        kind.describe(self.name_of(kind))
    }

    /// Returns the title of a cause in reports.
    pub fn describe_cause(&self, cause: Cause) -> String {
        match cause {
            Cause::Instructions => "instructions".to_owned(),
            Cause::TlbMisses => "TLB misses".to_owned(),
            Cause::CacheMisses => "cache misses".to_owned(),
            Cause::Splits => "accesses across lines".to_owned(),
            Cause::Mispredictions => "mispredictions".to_owned(),
            Cause::Halted => "halted".to_owned(),
            Cause::Crossing(kind) => self.describe(kind),
        }
    }

    /// Returns the name that the board or the decoder gave to a kind. A device has one name for reading and writing.
    pub fn name_of(&self, kind: Kind) -> Option<&str> {
        let other = match kind.family {
            Family::PortIn => Family::PortOut,
            Family::PortOut => Family::PortIn,
            Family::MmioRead => Family::MmioWrite,
            Family::MmioWrite => Family::MmioRead,
            family => family,
        };
        let names = &self.header.names;
        names.get(&kind).or_else(|| names.get(&Kind::new(other, kind.param))).map(String::as_str)
    }
}

impl<'a> Selection<'a> {
    /// Restricts the selection to one virtualization level.
    pub fn at_level(self, level: u8) -> Self {
        Self { level: Some(level), ..self }
    }

    /// Restricts the selection to the tasks of a name, to the process or thread of a number, or to the tasks whose names match a
    /// [pattern], without the interrupts on top of them; or to a line of interrupts that [`Selection::rows`] names. Returns `None`
    /// if there is no match. A name of tasks of both the machine and a guest on it means the machine's; the guest's end with ` [guest]` in
    /// [`Selection::rows`].
    pub fn of_task(self, task: &'a str) -> Option<Self> {
        let tasks = self.ledger.tasks.iter().zip(0u32..);
        let (name, inside) = task.strip_suffix(lines::INSIDE).map_or((task, false), |name| (name, true));
        let is_called = |known: &crate::Task| known.comm == name || lines::given(&known.comm) == name;
        let has = |inside: bool| {
            let is =
                |who: &&crate::Origin| who.is_inside() == inside && self.level.is_none_or(|wanted| wanted == who.level);
            let mut those = self.ledger.origins.iter().filter(is);
            those.any(|who| who.task.0 != 0 && is_called(&self.ledger.tasks[who.task.0 as usize]))
        };
        let called = || {
            let (_, at) = tasks.clone().find(|(known, _)| is_called(known) && !name.is_empty())?;
            Some(Wanted::Comm(at, inside || !has(false) && has(true)))
        };
        let number = || {
            let number: u32 = task.parse().ok()?;
            let is = |known: &crate::Task| known.pid == number || known.tid == number;
            tasks.clone().skip(1).any(|(known, _)| is(known)).then_some(Wanted::Number(number))
        };
        let context = |inside| {
            let mut all = crate::Context::ALL.iter().copied();
            let found = all.find(|context| lines::context_name(*context, inside) == Some(task));
            found.map(|context| Wanted::Interrupts(context, inside))
        };
        let none = [false, true].into_iter().find(|inside| task == lines::no_task(*inside)).map(Wanted::None);
        let alike = || {
            let is = |known: &crate::Task| pattern::matches(task, &known.comm);
            let found = pattern::has_wildcards(task) && tasks.clone().skip(1).any(|(known, _)| is(known));
            found.then_some(Wanted::Pattern(task))
        };
        let wanted =
            none.or_else(|| context(false)).or_else(|| context(true)).or_else(called).or_else(number).or_else(alike)?;
        Some(Self { task: Some(wanted), ..self })
    }

    /// Restricts the selection to a context: to the tasks themselves, or to one kind of interrupt.
    pub fn in_context(self, context: crate::Context) -> Self {
        Self { task: Some(Wanted::Context(context)), ..self }
    }

    fn has(self, region: u32, origin: u32) -> bool {
        self.includes(region, &self.ledger.origins[origin as usize])
    }

    fn includes(self, region: u32, who: &crate::Origin) -> bool {
        self.region.is_none_or(|wanted| wanted == region)
            && self.level.is_none_or(|wanted| wanted == who.level)
            && self.task.is_none_or(|wanted| self.is_of(wanted, who))
    }

    fn is_of(self, wanted: Wanted<'a>, who: &crate::Origin) -> bool {
        let task = &self.ledger.tasks[who.task.0 as usize];
        let own = who.context == crate::Context::Task && who.task.0 != 0;
        match wanted {
            Wanted::Comm(as_this, inside) => {
                own && who.is_inside() == inside && task.comm == self.ledger.tasks[as_this as usize].comm
            }
            Wanted::Pattern(pattern) => own && pattern::matches(pattern, &task.comm),
            Wanted::Number(number) => own && (task.pid == number || task.tid == number),
            Wanted::Context(context) => who.context == context,
            Wanted::Interrupts(context, inside) => who.context == context && who.is_inside() == inside,
            Wanted::None(inside) => who.context == crate::Context::Task && who.task.0 == 0 && who.is_inside() == inside,
        }
    }

    fn blocks(self) -> impl Iterator<Item = &'a BlockRuns> {
        self.ledger.blocks.iter().filter(move |b| self.has(b.region, b.origin))
    }

    /// Calls `each` for every charge with its position (origin, address, region), its cause, its kind if it is an event, and its amount.
    fn charges(self, mut each: impl FnMut((u32, u64, u32), Cause, Option<Kind>, Amount)) {
        let costs = self.ledger.shape_costs();
        let narrow = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
        for block in self.blocks() {
            let (ticks, count) = costs[block.shape as usize];
            let runs = u128::from(block.runs);
            let amount =
                Amount { count: narrow(count.saturating_mul(runs)), ticks: narrow(ticks.saturating_mul(runs)) };
            each((block.origin, block.rip, block.region), Cause::Instructions, None, amount);
        }
        for event in self.ledger.events.iter().filter(|e| self.has(e.region, e.origin)) {
            let amount = Amount { count: event.count, ticks: event.ticks };
            each((event.origin, event.rip, event.region), Cause::of(event.kind), Some(event.kind), amount);
        }
    }

    /// Returns the total.
    pub fn total(self) -> Row {
        let mut total = Row::default();
        self.charges(|_, cause, _, amount| total.add(cause, amount));
        total
    }

    /// Returns events by kind, without ordinary instructions.
    pub fn kinds(self) -> BTreeMap<Kind, Amount> {
        let mut kinds: BTreeMap<_, Amount> = BTreeMap::new();
        self.charges(|_, cause, kind, amount| {
            if let (Some(kind), false) = (kind, cause == Cause::Instructions) {
                kinds.entry(kind).or_default().add(amount);
            }
        });
        kinds
    }

    /// Returns instructions by class, in the order of [`Class::ALL`].
    pub fn classes(self) -> Vec<Amount> {
        let mut classes = vec![Amount::default(); Class::COUNT];
        for block in self.blocks() {
            for &(class, count, ticks) in &self.ledger.shapes[block.shape as usize] {
                let count = u64::from(count).saturating_mul(block.runs);
                classes[class as usize].add(Amount { count, ticks: ticks.saturating_mul(block.runs) });
            }
        }
        self.charges(|_, cause, kind, amount| {
            if let (Cause::Instructions, Some(kind)) = (cause, kind)
                && let Some(class) = classes.get_mut(kind.param as usize)
            {
                class.add(amount);
            }
        });
        classes
    }

    /// Returns port and memory-mapped I/O by device: reads, writes.
    pub fn devices(self) -> BTreeMap<String, (Amount, Amount)> {
        let mut devices: BTreeMap<String, (Amount, Amount)> = BTreeMap::new();
        for (kind, amount) in self.kinds() {
            let port = matches!(kind.family, Family::PortIn | Family::PortOut);
            if !kind.family.is_device() {
                continue;
            }
            let name = match self.ledger.name_of(kind) {
                Some(name) => name.to_owned(),
                None if kind.is_without_number() => "(further ports)".to_owned(),
                None if port => format!("port {:#x}", kind.param),
                None => format!("device {}", kind.param),
            };
            let device = devices.entry(name).or_default();
            let read = matches!(kind.family, Family::PortIn | Family::MmioRead);
            let sum = if read { &mut device.0 } else { &mut device.1 };
            sum.add(amount);
        }
        devices
    }

    /// Returns sums by line. A name is made once per line, not per charge.
    fn sums(self, lines: &Lines) -> FxHashMap<Line, Row> {
        let mut sums: FxHashMap<Line, Row> = FxHashMap::default();
        self.charges(|place, cause, _, amount| sums.entry(lines.of(place)).or_default().add(cause, amount));
        sums
    }

    /// Returns the lines of a table, in the order of their names.
    pub fn rows(self, by: By) -> BTreeMap<String, Row> {
        let lines = Lines::new(self.ledger, by);
        let mut rows: BTreeMap<String, Row> = BTreeMap::new();
        for (line, row) in self.sums(&lines) {
            let total = rows.entry(lines.name(line)).or_default();
            row.causes.into_iter().for_each(|(cause, amount)| total.add(cause, amount));
        }
        rows
    }

    /// Returns the lines of [`By::Task`] with their tasks, in the order of their names.
    pub fn tasks(self) -> Vec<TaskLine<'a>> {
        let lines = Lines::new(self.ledger, By::Task);
        let sums = self.sums(&lines).into_iter();
        let mut tasks: Vec<_> = sums.map(|(line, row)| (lines.name(line), line, row)).collect();
        tasks.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
        let describe = |(name, line, row)| {
            let (who, inside) = lines.who(line);
            TaskLine { name, who, inside, row }
        };
        tasks.into_iter().map(describe).collect()
    }

    /// Returns the number of calls of each function, by the names of the lines of [`By::Symbol`]: the executions of the block at its first address.
    /// Folded functions have none.
    pub fn calls(self) -> BTreeMap<String, u64> {
        let lines = Lines::new(self.ledger, By::Symbol);
        let mut calls: FxHashMap<Line, u64> = FxHashMap::default();
        for block in self.blocks() {
            let space = self.ledger.origins[block.origin as usize].address_space();
            let begins = self.ledger.symbol(space, block.rip).is_some_and(|(_, offset)| offset == 0);
            if begins && self.ledger.folded.range(block.region, block.origin, block.rip).is_none() {
                let runs = calls.entry(lines.of((block.origin, block.rip, block.region))).or_default();
                *runs = runs.saturating_add(block.runs);
            }
        }
        let mut names: BTreeMap<String, u64> = BTreeMap::new();
        for (line, runs) in calls {
            let sum = names.entry(lines.name(line)).or_default();
            *sum = sum.saturating_add(runs);
        }
        names
    }

    /// Returns instructions, and ticks except those spent halted, of the lines of [`Selection::rows`].
    pub fn busy(self, by: By) -> BTreeMap<String, Amount> {
        let lines = Lines::new(self.ledger, by);
        let mut places: FxHashMap<Line, Amount> = FxHashMap::default();
        self.charges(|place, cause, _, amount| {
            let count = if cause == Cause::Instructions { amount.count } else { 0 };
            let ticks = if cause == Cause::Halted { 0 } else { amount.ticks };
            places.entry(lines.of(place)).or_default().add(Amount { count, ticks });
        });
        let mut rows: BTreeMap<_, Amount> = BTreeMap::new();
        for (line, amount) in places {
            rows.entry(lines.name(line)).or_default().add(amount);
        }
        rows
    }

    /// Returns the `most` lines with the largest time except halted time, the largest first and equal ones by name. Unlike
    /// [`Selection::rows`] it needs little memory besides the lines it returns.
    pub fn top(self, by: By, most: usize) -> Top {
        let lines = Lines::new(self.ledger, by);
        let mut times: FxHashMap<Line, u64> = FxHashMap::default();
        self.charges(|place, cause, _, amount| {
            let time = times.entry(lines.of(place)).or_default();
            *time = time.saturating_add(if cause == Cause::Halted { 0 } else { amount.ticks });
        });
        times.retain(|_, time| *time != 0);
        let of = times.len();
        let mut chosen: BTreeSet<(std::cmp::Reverse<u64>, String, Line)> = BTreeSet::new();
        for (line, time) in times {
            let time = std::cmp::Reverse(time);
            let full = chosen.len() >= most;
            // Make a name only where it may matter.
            if full && chosen.last().is_none_or(|last| time > last.0) {
                continue;
            }
            chosen.insert((time, lines.name(line), line));
            if full {
                chosen.pop_last();
            }
        }
        let at: FxHashMap<Line, usize> = chosen.iter().enumerate().map(|(at, chosen)| (chosen.2, at)).collect();
        let mut rows: Vec<(String, Row)> = chosen.into_iter().map(|(_, name, _)| (name, Row::default())).collect();
        self.charges(|place, cause, _, amount| {
            if let Some(&at) = at.get(&lines.of(place)) {
                rows[at].1.add(cause, amount);
            }
        });
        Top { rows, of }
    }
}

/// The largest lines of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Top {
    /// Names and sums.
    pub rows: Vec<(String, Row)>,
    /// The number of all lines.
    pub of: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::tests::{guest, sample};
    use crate::{Context, Header, Origin, Profile, Recorder, Symbols, Task, TaskId, TaskKind};

    #[test]
    fn every_way_to_sum_gives_the_clock() {
        for ledger in [sample(), guest()] {
            let clock: u64 = ledger.header.clocks.iter().sum();
            assert_eq!(ledger.all().total().ticks, clock);
            for by in [By::Symbol, By::Address, By::Space, By::Ring, By::Level, By::Region, By::Task, By::Comm] {
                assert_eq!(ledger.all().rows(by).values().map(|row| row.ticks).sum::<u64>(), clock, "{by:?}");
            }
            let levels = [0, 1, 2].map(|level| ledger.all().at_level(level).total().ticks);
            assert_eq!(levels.iter().sum::<u64>(), clock);
            let kinds: u64 = ledger.all().kinds().values().map(|amount| amount.ticks).sum();
            let classes: u64 = ledger.all().classes().iter().map(|amount| amount.ticks).sum();
            assert_eq!(kinds + classes, clock);
        }
    }

    #[test]
    fn a_hypervisor_and_its_guest_are_told_apart() {
        let ledger = guest();
        let names = |by| ledger.all().rows(by).into_keys().collect::<Vec<_>>();
        assert_eq!(names(By::Level), ["guest", "hypervisor"]);
        assert_eq!(names(By::Ring), ["guest, ring 0", "guest, ring 3", "hypervisor, for ring 0"]);
        let (all, host) = (ledger.all().total(), ledger.all().at_level(0).total());
        assert_eq!((all.exits().count, all.exits().ticks), (6, 6 * (304_250 + 304_250)));
        assert_eq!(host.instructions, 0);
        assert_eq!(host.crossings().ticks, host.exits().ticks + host.operations().ticks);
        // The hypervisor's work is charged where the guest caused it.
        assert!(ledger.all().at_level(0).rows(By::Symbol).contains_key("do_syscall_64"));
    }

    #[test]
    fn regions_are_the_parts_of_the_whole() {
        let ledger = sample();
        let ticks = |name| ledger.region(name).map(|selection| selection.total().ticks);
        assert_eq!(ticks("").unwrap() + ticks("work").unwrap(), ledger.all().total().ticks);
        assert_eq!(ticks("play"), None);
        assert_eq!(ledger.region("work").unwrap().rows(By::Ring).keys().collect::<Vec<_>>(), ["ring 3"]);
    }

    #[test]
    fn tasks_are_told_apart_from_what_interrupts_them() {
        let ledger = sample();
        let names = |by| ledger.all().rows(by).into_keys().collect::<Vec<_>>();
        assert_eq!(names(By::Task), ["[interrupts]", "[no task]", "swapper/0 [idle]", "work (7)"]);
        assert_eq!(names(By::Comm), ["[interrupts]", "[no task]", "swapper/0", "work"]);
        let ticks = |task| ledger.all().of_task(task).map(|selection| selection.total().ticks);
        assert_eq!(ticks("work"), ticks("7"));
        assert_eq!(ticks("wo*"), ticks("work"));
        assert_eq!(ticks("?or?"), ticks("work"));
        assert_eq!(ticks("*"), Some(ticks("work").unwrap() + ticks("swapper/0").unwrap()));
        assert_eq!((ticks("wo"), ticks("play*")), (None, None));
        assert_eq!(ticks("[interrupts]"), Some(1_400_000));
        assert_eq!(ticks("swapper/0"), Some(5_000_000_000));
        let clock: u64 = ledger.header.clocks.iter().sum();
        let rest = ledger.all().rows(By::Task)["[no task]"].ticks;
        assert_eq!(ticks("[no task]"), Some(rest));
        assert_eq!(ticks("work").unwrap() + 1_400_000 + 5_000_000_000 + rest, clock);
        for unknown in ["play", "", "8", "[soft interrupt]"] {
            assert_eq!(ticks(unknown), None, "{unknown}");
        }
        assert_eq!(ticks("[soft interrupts]"), Some(0));
        // An interrupt belongs to the region of the task that it interrupts.
        assert_eq!(
            ledger.region("work").unwrap().of_task("work").unwrap().total(),
            ledger.all().of_task("work").unwrap().total()
        );
    }

    /// The sample, with a process and a region named like lines of the report itself.
    fn pretender() -> Ledger {
        let mut ledger = sample();
        for task in ledger.tasks.iter_mut().filter(|task| task.comm == "work") {
            task.comm = "[interrupts]".to_owned();
        }
        ledger.regions[1].name = "(outside)".to_owned();
        ledger
    }

    #[test]
    fn a_process_cannot_pass_for_the_interrupts() {
        let (ledger, honest) = (pretender(), sample());
        let names = |by| ledger.all().rows(by).into_keys().collect::<Vec<_>>();
        assert_eq!(names(By::Comm), ["\"[interrupts]\"", "[interrupts]", "[no task]", "swapper/0"]);
        assert_eq!(names(By::Task), ["\"[interrupts]\" (7)", "[interrupts]", "[no task]", "swapper/0 [idle]"]);
        assert_eq!(names(By::Region), ["\"(outside)\"", "(outside)"]);
        let task = |name| ledger.all().of_task(name).unwrap().total();
        assert_eq!(task("[interrupts]"), honest.all().of_task("[interrupts]").unwrap().total());
        assert_eq!(task("\"[interrupts]\""), honest.all().of_task("work").unwrap().total());
        let region = |name| ledger.region(name).unwrap().total();
        assert_eq!(region("(outside)"), honest.region("").unwrap().total());
        assert_eq!(region("\"(outside)\""), honest.region("work").unwrap().total());
    }

    #[test]
    fn lines_by_task_say_whom_they_are_about() {
        let ledger = pretender();
        let tasks = ledger.all().tasks();
        let whom = |name: &str| tasks.iter().find(|task| task.name == name).unwrap().who;
        assert!(
            matches!(whom("\"[interrupts]\" (7)"), Who::Task(task) if task.tid == 7 && task.comm == "[interrupts]")
        );
        assert_eq!(whom("[interrupts]"), Who::Context(crate::Context::Interrupt));
        assert_eq!(whom("[no task]"), Who::Nobody);
        let rows = ledger.all().rows(By::Task);
        assert!(tasks.iter().all(|task| rows[&task.name] == task.row) && tasks.len() == rows.len());
    }

    #[test]
    fn tasks_and_interrupts_of_a_guest_are_not_those_of_the_machine() {
        let mut recorder = Recorder::default();
        let hackbench = recorder.task(Task::new(TaskKind::Process, 7, 7, "hackbench"));
        let qemu = recorder.task(Task::new(TaskKind::Process, 9, 9, "qemu"));
        let origins = [
            (0, 0, hackbench, Context::Task),
            (0, 0, qemu, Context::Interrupt),
            (0, 0x5000, qemu, Context::Task),
            (1, 0x5000, hackbench, Context::Task),
            (1, 0x5000, hackbench, Context::Interrupt),
            (1, 0x5000, TaskId(0), Context::Task),
            (1, 0, qemu, Context::Task),
        ];
        for ((level, guest, task, context), number) in origins.into_iter().zip(0..) {
            let origin = recorder.origin(Origin { level, guest, task, context, ..Origin::default() });
            recorder.add(origin, 0x1000, Kind::new(Family::Cpuid, 0), 1, 1 << number);
        }
        let ledger =
            Ledger::new(Header::new(&Profile::named("skx").unwrap(), vec![127]), &recorder, &Symbols::default());
        let found: Vec<_> = ledger.all().rows(By::Comm).into_iter().map(|(name, row)| (name, row.ticks)).collect();
        let expected = [
            ("[guest interrupts]", 16),
            ("[guest, no task]", 32),
            ("[interrupts]", 2),
            ("hackbench", 1),
            ("hackbench [guest]", 8),
            ("qemu", 4 + 64),
        ];
        assert_eq!(found, expected.map(|(name, ticks)| (name.to_owned(), ticks)));
        for (name, ticks) in expected {
            assert_eq!(ledger.all().of_task(name).unwrap().total().ticks, ticks, "{name}");
        }
        assert_eq!(ledger.all().of_task("hack*").unwrap().total().ticks, 9);
        assert_eq!(ledger.all().at_level(1).of_task("hackbench").unwrap().total().ticks, 8);
        let inside: Vec<_> =
            ledger.all().tasks().into_iter().filter(|line| line.inside).map(|line| line.name).collect();
        assert_eq!(inside, ["[guest interrupts]", "[guest, no task]", "hackbench (7) [guest]"]);
    }

    #[test]
    fn symbols_and_what_has_none_are_lines() {
        let rows = sample().all().rows(By::Symbol);
        let names: Vec<_> = rows.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "[kernel, low addresses]",
                "[kernel, no symbol]",
                "[user code]",
                "default_idle",
                "do_syscall_64",
                "main [a.out]"
            ]
        );
    }

    #[test]
    fn a_device_is_one_line_for_reading_and_writing() {
        let mut ledger = sample();
        let mut read = *ledger.events.iter().find(|e| e.kind.family == Family::PortOut).unwrap();
        read.kind.family = Family::PortIn;
        ledger.events.push(read);
        let devices = ledger.all().devices();
        assert_eq!(devices.keys().collect::<Vec<_>>(), ["serial", "virtio-blk"]);
        assert_eq!((devices["serial"].0.count, devices["serial"].1.count), (5, 15));
    }
}
