//! A ledger: the charges of a run by origin and cause, ready to be saved, compared and reported.

use crate::branch::BranchRuns;
use crate::charge::{AddressSpace, Amount, OriginId, RegionId, Shape};
use crate::coarse::{Coarseness, Range};
use crate::entry::{BlockRuns, EventCharge, SavedSymbol};
use crate::fold::{self, Fitting, Folded, Functions, MOST_ENTRIES, Recording};
use crate::recorder::{Recorder, Region};
use crate::stack::Stacks;
use crate::stays::Entries;
use crate::symbols::Symbols;
use crate::task::{Task, TaskId};
use crate::{Class, Costs, Family, Kind, Origin, Profile, Ticks};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;

/// The description of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Name of the cost profile.
    pub profile: String,
    /// Frequency of the core and of the TSC, in hertz.
    pub tsc_hz: u64,
    /// The profile's ticks per instruction of each class, in the order of [`Class::ALL`]. They are no part of the sums: blocks and events have
    /// ticks of their own.
    pub class_ticks: [u32; Class::COUNT],
    /// Final clock of each virtual CPU, in ticks.
    pub clocks: Vec<Ticks>,
    /// Further facts about the run: kernel, command line, memory, versions.
    pub metadata: BTreeMap<String, String>,
    /// Names of kinds whose parameter is a number chosen by the board or the decoder: devices, opcodes, vectors.
    pub names: BTreeMap<Kind, String>,
}

impl Header {
    /// Creates the header of a run on `profile` whose virtual CPUs ended at `clocks`.
    pub fn new(profile: &Profile, clocks: Vec<Ticks>) -> Self {
        Self::priced(profile, &profile.costs(), clocks)
    }

    /// Creates the header of a run at other prices, such as those of [`Profile::emulated_costs`].
    pub fn priced(profile: &Profile, costs: &Costs, clocks: Vec<Ticks>) -> Self {
        Self {
            profile: profile.name.clone(),
            tsc_hz: profile.tsc_hz.value,
            class_ticks: costs.class,
            clocks,
            metadata: BTreeMap::new(),
            names: BTreeMap::new(),
        }
    }
}

/// The charges of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    /// Description of the run.
    pub header: Header,
    /// Regions of interest. The first has no name and stands for everything outside regions.
    pub regions: Vec<Region>,
    /// Tasks with charges, sorted. The first has no name and stands for no task.
    pub tasks: Vec<Task>,
    /// Origins, sorted. Their tasks are numbers in the list of tasks. Their regions are 0 here, because blocks and events have regions of their own.
    pub origins: Vec<Origin>,
    /// Shapes of blocks, sorted.
    pub shapes: Vec<Shape>,
    /// Symbols of the charged addresses, sorted.
    pub symbols: Vec<SavedSymbol>,
    /// Executed blocks, sorted.
    pub blocks: Vec<BlockRuns>,
    /// Events, sorted.
    pub events: Vec<EventCharge>,
    /// The ranges of addresses and the tasks that are merged for lack of room.
    pub folded: Folded,
    /// Indirect branches by target, sorted, if the run recorded them.
    pub branches: Vec<BranchRuns>,
    /// Call stacks and the trace, if the run recorded them.
    pub stacks: Stacks,
    /// Entries to the kernel, and the stays there.
    pub entries: Entries,
}

/// The totals of a consistent ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Ticks of all entries, which equal those of all clocks.
    pub ticks: Ticks,
    /// Ticks of ordinary instructions.
    pub instruction_ticks: Ticks,
    /// Ordinary instructions executed.
    pub instructions: u64,
}

/// An inconsistency in a ledger.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// The sum of the entries differs from the clocks.
    #[error("the entries add up to {entries} ticks, the clocks of the virtual CPUs to {clocks}")]
    Sum {
        /// Sum of the entries.
        entries: u128,
        /// Sum of the clocks.
        clocks: u128,
    },
    /// The sums overflow.
    #[error("the sums overflow")]
    Overflow,
}

impl Ledger {
    /// Creates the ledger of a run whose recorder has finished. Resolves charged addresses with `symbols`. If there are too many entries, folds those
    /// with the smallest charges.
    pub fn new(header: Header, recorder: &Recorder, symbols: &Symbols) -> Self {
        Self::fitting(header, recorder, symbols, MOST_ENTRIES)
    }

    pub(crate) fn fitting(header: Header, recorder: &Recorder, symbols: &Symbols, most: usize) -> Self {
        let names = recorder.names();
        let numbered = names.origins().to_vec();
        let (tasks, task_at) = tasks(names.tasks(), &numbered);
        let (shapes, shape_at) = sorted(names.shapes());
        let regions = names.regions().to_vec();
        drop(names);
        let plain =
            |origin: &Origin| Origin { region: RegionId(0), task: TaskId(task_at[origin.task.0 as usize]), ..*origin };
        let mut origins: Vec<Origin> = numbered.iter().map(plain).collect();
        origins.sort_unstable();
        origins.dedup();
        let at = |origin: &Origin| {
            let number = origins.binary_search(&plain(origin)).unwrap_or_default();
            (u32::from(origin.region.0), number as u32)
        };
        let origin_at: Vec<(u32, u32)> = numbered.iter().map(at).collect();
        // A run has millions of blocks: allocate their list at once, to avoid copies as it grows.
        let mut blocks = Vec::with_capacity(recorder.blocks().count());
        blocks.extend(recorder.blocks().map(|(origin, rip, shape, runs)| {
            let (region, origin) = origin_at[origin.0 as usize];
            BlockRuns { region, origin, rip, shape: shape_at[shape.0 as usize], runs }
        }));
        blocks.sort_unstable();
        let events = events(recorder, &origin_at);
        let folded = Folded { recorded: recorder.coarseness(), ..Folded::default() };
        let branches = branches(recorder, &numbered);
        let origin_in_ledger = |number: OriginId| {
            let origin = numbered[number.0 as usize];
            Origin { task: TaskId(task_at[origin.task.0 as usize]), ..origin }
        };
        let stacks = recorder.stacks(origin_in_ledger);
        let entries = recorder.entries(origin_in_ledger);
        let none = Vec::new();
        let mut ledger = Self {
            header,
            regions,
            tasks,
            origins,
            shapes,
            symbols: none,
            blocks,
            events,
            folded,
            branches,
            stacks,
            entries,
        };
        let ids: FxHashMap<(u32, u32), OriginId> = origin_at.iter().copied().zip((0..).map(OriginId)).collect();
        ledger.fit(symbols, most, &|region, origin, rip| recorder.range(*ids.get(&(region, origin))?, rip));
        ledger.drop_unused();
        ledger.drop_unused_prices();
        ledger.resolve(symbols);
        ledger
    }

    /// Clears the prices of unused classes beyond [`Class::FIRST`], so that a ledger does not change when classes are added.
    fn drop_unused_prices(&mut self) {
        let mut used = [false; Class::COUNT];
        self.shapes.iter().flatten().for_each(|(class, ..)| used[*class as usize] = true);
        let instructions = self.events.iter().filter(|event| event.kind.family == Family::Instruction);
        instructions
            .filter_map(|event| Class::from_index(event.kind.param as usize))
            .for_each(|c| used[c as usize] = true);
        let prices = self.header.class_ticks.iter_mut().zip(used).skip(Class::FIRST);
        prices.filter(|(_, used)| !used).for_each(|(price, _)| *price = 0);
    }

    /// Folds entries until the rest fits.
    fn fit(&mut self, functions: &dyn Functions, most: usize, ranges: Ranges) {
        let (blocks, events) = (std::mem::take(&mut self.blocks), std::mem::take(&mut self.events));
        let walks = (|| blocks.iter().copied(), || events.iter().copied());
        if blocks.len() + events.len() > most && self.fold(functions, most, ranges, walks.0, walks.1) {
            return;
        }
        if self.folded.recorded != Coarseness::default() {
            self.folded.places = fold::recorded(ranges, walks.0(), walks.1());
        }
        (self.blocks, self.events) = (blocks, events);
    }

    /// Folds blocks and events, which are more than `most`. Returns true on success.
    pub(crate) fn fold<B, E>(
        &mut self,
        functions: &dyn Functions,
        most: usize,
        ranges: Ranges,
        blocks: impl Fn() -> B,
        events: impl Fn() -> E,
    ) -> bool
    where
        B: Iterator<Item = BlockRuns>,
        E: Iterator<Item = EventCharge>,
    {
        let recorded = self.folded.recorded;
        let context = Recording { origins: &self.origins, shapes: &self.shapes, functions, recorded, ranges };
        let Some(fitting) = fold::fold(&context, most, blocks, events) else { return false };
        let Fitting { origins, blocks, events, folded } = fitting;
        (self.origins, self.blocks, self.events, self.folded) = (origins, blocks, events, folded);
        true
    }

    /// Drops shapes and origins that folding has left unused.
    pub(crate) fn drop_unused(&mut self) {
        let mut used = vec![false; self.shapes.len()];
        self.blocks.iter().for_each(|block| used[block.shape as usize] = true);
        let at = keep(&mut self.shapes, &used);
        self.blocks.iter_mut().for_each(|block| block.shape = at[block.shape as usize]);
        let mut used = vec![false; self.origins.len()];
        self.blocks.iter().for_each(|block| used[block.origin as usize] = true);
        self.events.iter().for_each(|event| used[event.origin as usize] = true);
        let at = keep(&mut self.origins, &used);
        self.blocks.iter_mut().for_each(|block| block.origin = at[block.origin as usize]);
        self.events.iter_mut().for_each(|event| event.origin = at[event.origin as usize]);
        self.folded.places.iter_mut().for_each(|place| place.origin = at[place.origin as usize]);
        let mut used = vec![false; self.tasks.len()];
        // The entry for no task is always the first.
        used.iter_mut().take(1).for_each(|used| *used = true);
        let origins = || self.origins.iter().chain(&self.stacks.origins).chain(&self.entries.origins);
        origins().for_each(|origin| used[origin.task.0 as usize] = true);
        let at = keep(&mut self.tasks, &used);
        let others = self.stacks.origins.iter_mut().chain(&mut self.entries.origins);
        let origins = self.origins.iter_mut().chain(others);
        origins.for_each(|origin| origin.task = TaskId(at[origin.task.0 as usize]));
    }

    /// Names the kinds of the ledger's events whose parameter is a number of the board or the decoder.
    pub fn name_kinds(&mut self, name: impl Fn(Kind) -> Option<String>) {
        let kinds: FxHashSet<Kind> = self.events.iter().map(|event| event.kind).collect();
        self.header.names = kinds.into_iter().filter_map(|kind| Some((kind, name(kind)?))).collect();
    }

    /// Resolves the charged addresses. Replaces earlier results.
    pub fn resolve(&mut self, symbols: &Symbols) {
        let blocks = self.blocks.iter().map(|b| (b.origin, b.rip));
        let events = self.events.iter().map(|e| (e.origin, e.rip));
        let charged = blocks.chain(events).map(|(o, rip)| (self.origins[o as usize].address_space(), rip));
        let ends = |runs: &BranchRuns| [runs.branch.site, runs.branch.target].map(|rip| (runs.space, rip));
        let seen = charged.chain(self.branches.iter().flat_map(ends)).chain(self.frames());
        self.symbols = symbols.find_all(seen).into_iter().collect();
    }

    /// Returns each address of a stack, with its address space.
    fn frames(&self) -> impl Iterator<Item = (AddressSpace, u64)> {
        let mut seen = FxHashSet::default();
        let mut frames = Vec::new();
        for (origin, mut stack) in self.stacks.uses() {
            let space = self.stacks.origins[origin as usize].address_space();
            while let Some(node) = self.stacks.node(stack).filter(|_| seen.insert((space, stack))) {
                frames.push((space, node.address));
                stack = node.caller;
            }
        }
        frames.into_iter()
    }

    /// Returns the symbol that contains `rip` in `space`, and the offset within.
    pub fn symbol(&self, space: AddressSpace, rip: u64) -> Option<(&SavedSymbol, u64)> {
        let symbol = &self.symbols[self.symbol_at(space, rip)?];
        Some((symbol, rip - symbol.start))
    }

    /// Returns the number of the symbol that contains `rip` in `space`.
    pub(crate) fn symbol_at(&self, space: AddressSpace, rip: u64) -> Option<usize> {
        symbol_at(&self.symbols, space, rip)
    }

    /// Returns the cost of one execution of each shape: ticks, instructions.
    pub fn shape_costs(&self) -> Vec<(u128, u128)> {
        let sum =
            |(ticks, n): (u128, u128), part: &(Class, u32, Ticks)| (ticks + u128::from(part.2), n + u128::from(part.1));
        self.shapes.iter().map(|shape| shape.iter().fold((0, 0), sum)).collect()
    }

    /// Checks that the entries add up to the clock, and returns the sums.
    pub fn verify(&self) -> Result<Totals, VerifyError> {
        let shapes = self.shape_costs();
        let (mut entries, mut instruction_ticks, mut instructions) = (0u128, 0u128, 0u128);
        let add = |sum: &mut u128, n: u128| sum.checked_add(n).map(|n| *sum = n).ok_or(VerifyError::Overflow);
        for block in &self.blocks {
            let (ticks, count) = shapes[block.shape as usize];
            add(&mut instruction_ticks, ticks.checked_mul(u128::from(block.runs)).ok_or(VerifyError::Overflow)?)?;
            add(&mut instructions, count.checked_mul(u128::from(block.runs)).ok_or(VerifyError::Overflow)?)?;
        }
        for event in &self.events {
            let is_instruction = event.kind.family == Family::Instruction;
            let sum = if is_instruction { &mut instruction_ticks } else { &mut entries };
            add(sum, u128::from(event.ticks))?;
            if is_instruction {
                add(&mut instructions, u128::from(event.count))?;
            }
        }
        add(&mut entries, instruction_ticks)?;
        let clocks = self.header.clocks.iter().map(|clock| u128::from(*clock)).sum();
        if entries != clocks {
            return Err(VerifyError::Sum { entries, clocks });
        }
        let narrow = |n: u128| u64::try_from(n).map_err(|_| VerifyError::Overflow);
        Ok(Totals {
            ticks: narrow(entries)?,
            instruction_ticks: narrow(instruction_ticks)?,
            instructions: narrow(instructions)?,
        })
    }
}

/// Returns the range that an address of a region and an origin is folded into, if any.
type Ranges<'a> = &'a dyn Fn(u32, u32, u64) -> Option<Range>;

/// Returns the events of a run, sorted. Instructions of blocks whose addresses were not kept are events too.
fn events(recorder: &Recorder, origin_at: &[(u32, u32)]) -> Vec<EventCharge> {
    let mut events: Vec<EventCharge> = Vec::with_capacity(recorder.events().count() + recorder.classes().count());
    events.extend(recorder.events().map(|(origin, rip, kind, amount)| {
        let (region, origin) = origin_at[origin.0 as usize];
        EventCharge { region, origin, rip, kind, count: amount.count, ticks: amount.ticks }
    }));
    events.extend(recorder.classes().map(|(origin, rip, class, Amount { count, ticks })| {
        let (region, origin) = origin_at[origin.0 as usize];
        EventCharge { region, origin, rip, kind: Kind::new(Family::Instruction, class as u32), count, ticks }
    }));
    events.sort_unstable();
    // Single instructions of a class may be charged to an address that blocks fold into.
    events.dedup_by(|next, event| {
        let key = |event: &EventCharge| (event.region, event.origin, event.rip, event.kind);
        let same = key(next) == key(event);
        if same {
            event.count = event.count.saturating_add(next.count);
            event.ticks = event.ticks.saturating_add(next.ticks);
        }
        same
    });
    events
}

/// Returns the indirect branches of a run, sorted. Tasks, rings and contexts are merged.
fn branches(recorder: &Recorder, origins: &[Origin]) -> Vec<BranchRuns> {
    let mut sums: BTreeMap<_, crate::Taken> = BTreeMap::new();
    for (origin, branch, taken) in recorder.branches() {
        let origin = &origins[origin.0 as usize];
        let key = (u32::from(origin.region.0), origin.level, origin.address_space(), branch);
        sums.entry(key).or_default().add(taken);
    }
    let runs = |((region, level, space, branch), taken)| BranchRuns { region, level, space, branch, taken };
    sums.into_iter().map(runs).collect()
}

/// Returns the tasks of origins, sorted, and the new position of each; the entry for no task stays the first.
fn tasks(all: &[Task], origins: &[Origin]) -> (Vec<Task>, Vec<u32>) {
    let mut used: Vec<u32> = origins.iter().map(|origin| origin.task.0).filter(|task| *task != 0).collect();
    used.sort_unstable_by(|&a, &b| all[a as usize].cmp(&all[b as usize]));
    used.dedup();
    let mut at = vec![0; all.len()];
    let mut tasks = vec![Task::default()];
    for number in used {
        at[number as usize] = tasks.len() as u32;
        tasks.push(all[number as usize].clone());
    }
    (tasks, at)
}

/// Keeps the used items, and returns the new position of each.
fn keep<T>(items: &mut Vec<T>, used: &[bool]) -> Vec<u32> {
    let mut count = 0;
    let at = used.iter().map(|used| {
        count += u32::from(*used);
        count.saturating_sub(1)
    });
    let at = at.collect();
    let mut used = used.iter();
    items.retain(|_| used.next() == Some(&true));
    at
}

/// Returns the number of the symbol that contains `rip` in `space`, among sorted symbols.
fn symbol_at(symbols: &[SavedSymbol], space: AddressSpace, rip: u64) -> Option<usize> {
    space.candidates().into_iter().find_map(|space| {
        let at = symbols.partition_point(|s| (s.space, s.start) <= (space, rip)).checked_sub(1)?;
        let symbol = &symbols[at];
        (symbol.space == space && rip - symbol.start < symbol.size).then_some(at)
    })
}

impl Functions for Symbols {
    fn function(&self, space: AddressSpace, rip: u64) -> Option<(Range, u32)> {
        let ((start, len), image) = self.range(space, rip)?;
        Some((Range { start, len }, image))
    }
}

/// The functions in a ledger file.
pub(crate) struct SavedFunctions<'a> {
    symbols: &'a [SavedSymbol],
    images: FxHashMap<&'a str, u32>,
}

impl<'a> SavedFunctions<'a> {
    pub(crate) fn new(symbols: &'a [SavedSymbol]) -> Self {
        let mut images = FxHashMap::default();
        for symbol in symbols {
            let next = images.len() as u32;
            images.entry(symbol.module.as_str()).or_insert(next);
        }
        Self { symbols, images }
    }
}

impl Functions for SavedFunctions<'_> {
    fn function(&self, space: AddressSpace, rip: u64) -> Option<(Range, u32)> {
        let symbol = &self.symbols[symbol_at(self.symbols, space, rip)?];
        let image = self.images.get(symbol.module.as_str()).copied()?;
        Some((Range { start: symbol.start, len: symbol.size }, image))
    }
}

/// Returns the items sorted, and the new position of each.
fn sorted<T: Clone + Ord>(items: &[T]) -> (Vec<T>, Vec<u32>) {
    let mut order: Vec<u32> = (0..items.len() as u32).collect();
    order.sort_unstable_by(|&a, &b| items[a as usize].cmp(&items[b as usize]));
    let mut at = vec![0; items.len()];
    for (position, &item) in order.iter().enumerate() {
        at[item as usize] = position as u32;
    }
    (order.iter().map(|&item| items[item as usize].clone()).collect(), at)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Operation;
    use crate::charge::evenly_priced;
    use crate::symbols::Symbol;

    /// Returns a small run with every kind of entry, charged consistently: its clock is the sum of its charges.
    pub(crate) fn sample() -> Ledger {
        charged(true)
    }

    /// Returns the same run, with or without the entries that file versions before the third do not have.
    pub(crate) fn charged(tasks: bool) -> Ledger {
        let profile = Profile::named("skx").expect("is built in");
        let costs = profile.costs();
        let mut recorder = Recorder::default();
        let mut clock = 0;
        let kernel = recorder.origin(Origin::new(0, 0, 0x1000_0000));
        let region = recorder.region("work");
        recorder.region_begins(region);
        let task = |kind, number, comm| match tasks {
            true => recorder.task(Task::new(kind, number, number, comm)),
            false => TaskId(0),
        };
        let idle = task(crate::TaskKind::Idle, 0, "swapper/0");
        let task = task(crate::TaskKind::Process, 7, "work");
        let context = if tasks { crate::Context::Interrupt } else { crate::Context::Task };
        let user = recorder.origin(Origin { region, task, ..Origin::new(0, 3, 0x1000_0000) });
        let asleep = recorder.origin(Origin { task: idle, ..Origin::new(0, 0, 0x1000_0000) });
        let interrupted = recorder.origin(Origin { task, context, ..Origin::new(0, 0, 0x1000_0000) });
        let early = recorder.origin(Origin::new(0, 0, 0));
        for (origin, base) in &[(early, 0x100_0000), (kernel, 0xffff_ffff_8100_0000), (user, 0x40_1000)] {
            for n in 0..20u64 {
                let counts = [(Class::Alu, 1 + n as u32 % 5), (Class::Load, 2), (Class::Branch, 1)];
                let shape = evenly_priced(&counts, &costs.class);
                clock += shape.iter().map(|part| part.2).sum::<u64>() * (100 + n);
                let shape = recorder.shape(&shape);
                recorder.add_block(*origin, base + n * 16, shape, 100 + n);
            }
            for (kind, count) in [
                (Kind::new(Family::Syscall, 0), 3),
                (Kind::new(Family::Exception, 14), 7),
                (Kind::cpuid(0xd, 2), 2),
                (Kind::new(Family::Wrmsr, 0x6e0), 11),
                (Kind::new(Family::TlbMissData, 4), 40),
                (Kind::new(Family::PortOut, 0x3f8), 5),
                (Kind::new(Family::MmioWrite, 3), 6),
                (Kind::new(Family::IndirectMiss, 0), 9),
                (Kind::new(Family::Instruction, Class::StringStep as u32), 512),
            ] {
                let price = match kind.family {
                    Family::Instruction => u64::from(costs.class[kind.param as usize]),
                    _ => costs.of(kind),
                };
                recorder.add(*origin, base + count * 8, kind, count, price * count);
                clock += price * count;
            }
        }
        if tasks {
            for ticks in [30_000, 31_000, 9_000_000] {
                let stay = crate::Stay { ticks, enter: 700, mitigation: 300, leave: 200 };
                recorder.add_stay(interrupted, crate::Entry::new(crate::Gate::Interrupt, 0xec), stay, false);
                recorder.add_stay(user, crate::Entry::new(crate::Gate::Call, 1), stay, ticks == 31_000);
            }
        }
        recorder.region_ends(region, if tasks { 7_000_000 } else { 0 });
        recorder.add(asleep, 0xffff_ffff_8100_0100, Kind::new(Family::Halt, 0), 1, 5_000_000_000);
        recorder.add(interrupted, 0xffff_ffff_8100_0104, Kind::new(Family::Interrupt, 0xec), 2, 1_400_000);
        clock += 5_001_400_000;
        let mut header = Header::new(&profile, vec![clock - 1000, 1000]);
        header.metadata.insert("kernel".to_owned(), "vmlinuz-6.1.0".to_owned());
        header.metadata.insert("command line".to_owned(), "console=ttyS0".to_owned());
        header.names.insert(Kind::new(Family::PortOut, 0x3f8), "serial".to_owned());
        header.names.insert(Kind::new(Family::MmioWrite, 3), "virtio-blk".to_owned());
        let mut symbols = Symbols::default();
        symbols.add(
            "",
            AddressSpace::default(),
            vec![
                Symbol::new(0xffff_ffff_8100_0000, 0x40, "do_syscall_64"),
                Symbol::new(0xffff_ffff_8100_0040, 0xc1, "default_idle"),
            ],
        );
        symbols.add("a.out", AddressSpace::of(0x1000_0000), vec![Symbol::new(0x40_1000, 0x1000, "main")]);
        Ledger::new(header, &recorder, &symbols)
    }

    /// Returns the charges of a hypervisor's guest and of the hypervisor.
    pub(crate) fn guest() -> Ledger {
        let profile = Profile::named("skx").expect("is built in");
        let costs = profile.costs();
        let mut recorder = Recorder::default();
        let [host, kernel, user] =
            [(0, 0), (1, 0), (1, 3)].map(|(level, ring)| recorder.origin(Origin::new(level, ring, 0x1000_0000)));
        let mut clock = 0;
        for (origin, rip, kind, count) in [
            (user, 0x40_1000, Kind::new(Family::Syscall, 0), 4),
            (kernel, 0xffff_ffff_8100_0010, Kind::new(Family::Sysret, 0), 4),
            (host, 0xffff_ffff_8100_0008, Kind::new(Family::VmExit, 28), 4),
            (host, 0xffff_ffff_8100_0020, Kind::new(Family::VmExit, 10), 2),
            (host, 0xffff_ffff_8100_0008, Kind::new(Family::VmEntry, 0), 6),
            (host, 0xffff_ffff_8100_0008, Kind::operation(Operation::RunLoop), 6),
            (host, 0xffff_ffff_8100_0008, Kind::operation(Operation::ControlRegister), 4),
        ] {
            let ticks = costs.of(kind) * count;
            recorder.add(origin, rip, kind, count, ticks);
            clock += ticks;
        }
        let shape = recorder.shape(&evenly_priced(&[(Class::Alu, 3)], &costs.class));
        recorder.add_block(user, 0x40_1000, shape, 10);
        clock += u64::from(costs.class[Class::Alu as usize]) * 30;
        let mut symbols = Symbols::default();
        symbols.add("", AddressSpace::default(), vec![Symbol::new(0xffff_ffff_8100_0000, 0x40, "do_syscall_64")]);
        Ledger::new(Header::new(&profile, vec![clock]), &recorder, &symbols)
    }

    #[test]
    fn the_sum_over_entries_is_the_clock() {
        let ledger = sample();
        let totals = ledger.verify().expect("is consistent");
        assert_eq!(totals.ticks, ledger.header.clocks.iter().sum::<u64>());
        assert!(totals.instructions > 3 * 20 * 100);
    }

    #[test]
    fn a_lost_charge_is_noticed() {
        let mut ledger = sample();
        ledger.events.pop();
        assert!(matches!(ledger.verify(), Err(VerifyError::Sum { .. })));
    }

    #[test]
    fn instructions_of_one_class_may_differ_in_their_ticks_but_the_sum_is_the_clock() {
        let mut ledger = sample();
        ledger.header.class_ticks = [0; Class::COUNT];
        let totals = ledger.verify().expect("prices of classes are no part of the sums");
        let event = ledger.events.iter_mut().find(|e| e.kind.family == Family::Instruction).expect("is there");
        event.ticks += 1;
        assert!(matches!(ledger.verify(), Err(VerifyError::Sum { .. })));
        ledger.header.clocks[0] += 1;
        let more = ledger.verify().expect("is consistent");
        assert_eq!(more.instruction_ticks, totals.instruction_ticks + 1);
        assert_eq!(more.instructions, totals.instructions);
        ledger.shapes[0][0].2 += 1;
        assert!(matches!(ledger.verify(), Err(VerifyError::Sum { .. })));
    }

    #[test]
    fn absurd_numbers_overflow_into_an_error() {
        let mut ledger = sample();
        for shape in &mut ledger.shapes {
            for part in shape {
                (part.1, part.2) = (u32::MAX, u64::MAX);
            }
        }
        for block in &mut ledger.blocks {
            block.runs = u64::MAX;
        }
        assert!(ledger.verify().is_err());
    }

    #[test]
    fn a_guest_s_symbols_are_its_own() {
        const ENTRY: u64 = 0xffff_ffff_8100_0010;
        let profile = Profile::named("skx").expect("is built in");
        let mut recorder = Recorder::default();
        for guest in [0, 0x4000, 0x5000, 0x6000] {
            let origin = recorder.origin(Origin { guest, ..Origin::new(u8::from(guest != 0), 0, 0x1000_0000) });
            recorder.add(origin, ENTRY, Kind::new(Family::Syscall, 0), 1, 1000);
        }
        let mut symbols = Symbols::default();
        for (guest, name) in [(0, "of_the_machine"), (0x4000, "of_a_guest"), (0x5000, "of_a_guest")] {
            symbols.add("", AddressSpace::all_of(guest), vec![Symbol::new(ENTRY - 0x10, 0x40, name)]);
        }
        let ledger = Ledger::new(Header::new(&profile, vec![4000]), &recorder, &symbols);
        let name =
            |guest| ledger.symbol(AddressSpace { guest, root: 0x1000_0000 }, ENTRY).map(|(s, _)| s.name.as_str());
        assert_eq!(
            [0, 0x4000, 0x5000, 0x6000].map(name),
            [Some("of_the_machine"), Some("of_a_guest"), Some("of_a_guest"), None]
        );
        let lines = |by| ledger.all().busy(by).into_keys().collect::<Vec<_>>();
        assert_eq!(
            lines(crate::summary::By::Symbol),
            ["[guest kernel, no symbol]", "of_a_guest [guest]", "of_the_machine"]
        );
        assert_eq!(
            lines(crate::summary::By::Space),
            [
                "0x10000000",
                "0x10000000 of the guest at 0x4000",
                "0x10000000 of the guest at 0x5000",
                "0x10000000 of the guest at 0x6000"
            ]
        );
        assert_eq!(lines(crate::summary::By::Ring), ["guest, ring 0", "host, ring 0"]);
        assert_eq!(lines(crate::summary::By::Level), ["guest", "host"]);
        assert_eq!(Ledger::read(&ledger.to_bytes().unwrap()), Ok(ledger));
    }

    #[test]
    fn addresses_are_resolved_within_their_space() {
        let ledger = sample();
        let name =
            |space, rip| ledger.symbol(AddressSpace::of(space), rip).map(|(s, offset)| (s.name.as_str(), offset));
        assert_eq!(name(0x1000_0000, 0xffff_ffff_8100_0048), Some(("default_idle", 8)));
        assert_eq!(name(0x2000_0000, 0xffff_ffff_8100_0008), Some(("do_syscall_64", 8)));
        assert_eq!(name(0x1000_0000, 0x40_1010), Some(("main", 0x10)));
        assert_eq!(name(0x2000_0000, 0x40_1010), None);
        assert_eq!(name(0x1000_0000, 0xffff_ffff_8100_0101), None);
    }
}
