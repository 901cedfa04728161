//! Makes a ledger of at most [`MOST_ENTRIES`] entries out of more: the addresses that were charged least fold into the function
//! that they are in, and where that does not do, functions into their image, and so on. Nothing is lost but detail: all sums
//! by what still is told apart stay exact.

use crate::charge::{AddressSpace, Amount, Shape};
use crate::coarse::{Coarseness, Range};
use crate::entry::{BlockRuns, EventCharge};
use crate::{Family, Kind, Origin};
use rustc_hash::FxHashMap;
use std::collections::hash_map::Entry;
use std::iter::Peekable;

/// The most blocks and events of a ledger.
pub const MOST_ENTRIES: usize = 1 << 21;

/// An address whose charges stand for a range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FoldedPlace {
    /// The region.
    pub region: u32,
    /// The origin.
    pub origin: u32,
    /// The address that they are charged to.
    pub rip: u64,
    /// The range that the place stands for: a function, a page, or half of the address space (in that case only addresses in one image).
    pub range: Range,
}

/// The addresses that a ledger does not distinguish.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folded {
    /// The coarseness with which the run was recorded.
    pub recorded: Coarseness,
    /// The number of recorded addresses that were folded when the ledger was made, each counted for each region and origin.
    pub addresses: u64,
    /// The places that folded addresses are charged to, sorted.
    pub places: Vec<FoldedPlace>,
}

impl Folded {
    /// The range that an address stands for, if it stands for more than itself.
    pub fn range(&self, region: u32, origin: u32, rip: u64) -> Option<Range> {
        let at = self.places.binary_search_by_key(&(region, origin, rip), |p| (p.region, p.origin, p.rip)).ok()?;
        Some(self.places[at].range)
    }

    /// A report's description of the folding; `None` if everything is distinguished.
    pub fn describe(&self) -> Option<String> {
        let mut parts = Vec::new();
        if self.addresses != 0 {
            parts.push(format!("{} addresses of {} functions or pages", self.addresses, self.places.len()));
        }
        if self.recorded != Coarseness::default() {
            parts.push(self.recorded.describe().to_owned());
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

/// The positions of functions.
pub(crate) trait Functions {
    /// The function that an address is in, seen from a space, and the number of its image.
    fn function(&self, space: AddressSpace, rip: u64) -> Option<(Range, u32)>;
}

/// The data that entries refer to.
pub(crate) struct Recording<'a> {
    pub(crate) origins: &'a [Origin],
    pub(crate) shapes: &'a [Shape],
    pub(crate) functions: &'a dyn Functions,
    /// The coarseness with which the run was recorded.
    pub(crate) recorded: Coarseness,
    /// The range that an address of a region and an origin stands for.
    pub(crate) ranges: &'a dyn Fn(u32, u32, u64) -> Option<Range>,
}

/// Blocks and events that fit, sorted, and the origins that they refer to.
pub(crate) struct Fitting {
    pub(crate) origins: Vec<Origin>,
    pub(crate) blocks: Vec<BlockRuns>,
    pub(crate) events: Vec<EventCharge>,
    pub(crate) folded: Folded,
}

/// The units into which addresses fold.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Into {
    /// Their function; where there is none, their page.
    Function,
    /// Their image; where there is none, their half of the address space.
    Image,
    /// Their half of the address space.
    Half,
}

#[derive(Clone, Copy)]
struct Plan {
    into: Into,
    /// True if the addresses with the largest charges are kept.
    hot: bool,
    /// True if numbers that a guest chooses are distinguished.
    numbers: bool,
    /// True if address spaces are distinguished.
    spaces: bool,
}

/// The plans, which are tried in order until the ledger fits.
const PLANS: [Plan; 5] = [
    Plan { into: Into::Function, hot: true, numbers: true, spaces: true },
    Plan { into: Into::Image, hot: true, numbers: true, spaces: true },
    Plan { into: Into::Half, hot: true, numbers: true, spaces: true },
    Plan { into: Into::Half, hot: true, numbers: false, spaces: true },
    Plan { into: Into::Half, hot: false, numbers: false, spaces: false },
];

/// Walks blocks and events place by place; both are sorted.
struct Places<B: Iterator<Item = BlockRuns>, E: Iterator<Item = EventCharge>> {
    blocks: Peekable<B>,
    events: Peekable<E>,
    here: (Vec<BlockRuns>, Vec<EventCharge>),
}

impl<B: Iterator<Item = BlockRuns>, E: Iterator<Item = EventCharge>> Places<B, E> {
    fn new(blocks: B, events: E) -> Self {
        Self { blocks: blocks.peekable(), events: events.peekable(), here: Default::default() }
    }

    /// The next place: region, origin, address. Its entries are in `here`.
    fn next(&mut self) -> Option<(u32, u32, u64)> {
        let block = self.blocks.peek().map(|b| (b.region, b.origin, b.rip));
        let event = self.events.peek().map(|e| (e.region, e.origin, e.rip));
        let place = block.into_iter().chain(event).min()?;
        let (blocks, events) = &mut self.here;
        blocks.clear();
        events.clear();
        while let Some(block) = self.blocks.next_if(|b| (b.region, b.origin, b.rip) == place) {
            blocks.push(block);
        }
        while let Some(event) = self.events.next_if(|e| (e.region, e.origin, e.rip) == place) {
            events.push(event);
        }
        Some(place)
    }

    fn entries(&self) -> usize {
        self.here.0.len() + self.here.1.len()
    }

    /// The size of the charges here: the number of bits of their ticks.
    fn size(&self, costs: &[u128]) -> usize {
        let blocks = self.here.0.iter().map(|b| costs[b.shape as usize].saturating_mul(u128::from(b.runs)));
        let events = self.here.1.iter().map(|e| u128::from(e.ticks));
        let ticks = blocks.chain(events).fold(0u128, u128::saturating_add);
        (u128::BITS - ticks.leading_zeros()) as usize
    }
}

/// The place at which addresses of one range are summed.
struct Target {
    origin: u32,
    range: Range,
    /// The lowest of the addresses.
    rip: u64,
    addresses: u64,
}

/// The places of addresses that a run recorded coarsely.
pub(crate) fn recorded(
    ranges: &dyn Fn(u32, u32, u64) -> Option<Range>,
    blocks: impl Iterator<Item = BlockRuns>,
    events: impl Iterator<Item = EventCharge>,
) -> Vec<FoldedPlace> {
    let mut places = Vec::new();
    let mut walk = Places::new(blocks, events);
    while let Some((region, origin, rip)) = walk.next() {
        places.extend(ranges(region, origin, rip).map(|range| FoldedPlace { region, origin, rip, range }));
    }
    places
}

/// Folds entries, which are more than `most`. `None` if there is no way.
pub(crate) fn fold<B, E>(
    context: &Recording,
    most: usize,
    blocks: impl Fn() -> B,
    events: impl Fn() -> E,
) -> Option<Fitting>
where
    B: Iterator<Item = BlockRuns>,
    E: Iterator<Item = EventCharge>,
{
    let ticks = |shape: &Shape| shape.iter().map(|part| u128::from(part.2)).sum();
    let costs: Vec<u128> = context.shapes.iter().map(ticks).collect();
    let mut sizes = [0usize; u128::BITS as usize + 1];
    let mut walk = Places::new(blocks(), events());
    while walk.next().is_some() {
        sizes[walk.size(&costs)] += walk.entries();
    }
    // Places from this size on are kept: they have half of the room.
    let mut room = most / 2;
    let larger = sizes.iter().rev().take_while(|&&entries| {
        let fits = entries <= room;
        room = room.saturating_sub(entries);
        fits
    });
    let from = sizes.len() - larger.count();
    PLANS.into_iter().find_map(|plan| {
        let mut folding = Folding { context, plan, most, costs: &costs, from, ..Folding::new(context) };
        folding.run(Places::new(blocks(), events()))
    })
}

/// One attempt.
struct Folding<'a> {
    context: &'a Recording<'a>,
    plan: Plan,
    most: usize,
    costs: &'a [u128],
    from: usize,
    out: Fitting,
    /// Targets by origin, image and range, of one region, and of one origin if spaces are told apart.
    targets: FxHashMap<(u32, u32, Range), u32>,
    list: Vec<Target>,
    sums: FxHashMap<(u32, Kind), Amount>,
}

impl<'a> Folding<'a> {
    fn new(context: &'a Recording<'a>) -> Self {
        let folded = Folded { recorded: context.recorded, ..Folded::default() };
        let origins = context.origins.to_vec();
        Self {
            context,
            plan: PLANS[0],
            most: 0,
            costs: &[],
            from: 0,
            out: Fitting { origins, blocks: Vec::new(), events: Vec::new(), folded },
            targets: FxHashMap::default(),
            list: Vec::new(),
            sums: FxHashMap::default(),
        }
    }

    /// `None` if what comes out is too much.
    fn run<B, E>(&mut self, mut walk: Places<B, E>) -> Option<Fitting>
    where
        B: Iterator<Item = BlockRuns>,
        E: Iterator<Item = EventCharge>,
    {
        let context = self.context;
        let mut renumbered: Vec<u32> = (0..context.origins.len() as u32).collect();
        if !self.plan.spaces {
            let plain = |origin: &Origin| origin.without_place();
            let mut origins: Vec<Origin> = context.origins.iter().map(plain).collect();
            origins.sort_unstable();
            origins.dedup();
            let at = |origin| origins.binary_search(&plain(origin)).unwrap_or_default() as u32;
            renumbered = context.origins.iter().map(at).collect();
            self.out.origins = origins;
        }
        let mut group = (0, 0);
        while let Some((region, from, rip)) = walk.next() {
            let origin = renumbered[from as usize];
            let next = (region, if self.plan.spaces { origin } else { 0 });
            if group != next {
                self.flush(group.0);
                group = next;
            }
            let who = context.origins[from as usize];
            let recorded = (context.ranges)(region, from, rip);
            if self.plan.hot && walk.size(self.costs) >= self.from {
                self.out.blocks.extend_from_slice(&walk.here.0);
                self.out.events.extend_from_slice(&walk.here.1);
                self.out.folded.places.extend(recorded.map(|range| FoldedPlace { region, origin, rip, range }));
            } else {
                let target = self.target(who, origin, rip, recorded);
                self.sum(target, &walk.here);
            }
            if self.out.blocks.len() + self.out.events.len() + self.sums.len() > self.most {
                return None;
            }
        }
        self.flush(group.0);
        self.out.blocks.sort_unstable();
        self.out.events.sort_unstable();
        self.out.folded.places.sort_unstable();
        let nothing =
            Fitting { origins: Vec::new(), blocks: Vec::new(), events: Vec::new(), folded: Folded::default() };
        Some(std::mem::replace(&mut self.out, nothing))
    }

    /// The number of the target that an address folds into.
    fn target(&mut self, who: Origin, origin: u32, rip: u64, recorded: Option<Range>) -> u32 {
        let function = self.context.functions.function(who.address_space(), rip);
        let inside = |function: &Range, range: &Range| {
            range.start >= function.start && range.len <= function.len - (range.start - function.start)
        };
        let (range, image) = match (self.plan.into, function) {
            (Into::Function, Some((function, _))) if recorded.is_none_or(|range| inside(&function, &range)) => {
                (function, 0)
            }
            (Into::Function, _) => (recorded.unwrap_or_else(|| Range::page(rip)), 0),
            (Into::Image, Some((_, image))) => (Range::half(rip), image + 1),
            (Into::Image, None) | (Into::Half, _) => (Range::half(rip), 0),
        };
        let many = u64::from(recorded.is_some());
        match self.targets.entry((origin, image, range)) {
            Entry::Occupied(known) => {
                let target = &mut self.list[*known.get() as usize];
                target.rip = target.rip.min(rip);
                target.addresses += 1;
                *known.get()
            }
            Entry::Vacant(new) => {
                let number = self.list.len() as u32;
                new.insert(number);
                self.list.push(Target { origin, range, rip, addresses: 1 + many });
                number
            }
        }
    }

    /// Adds entries to a target, blocks by the classes of their instructions.
    fn sum(&mut self, target: u32, (blocks, events): &(Vec<BlockRuns>, Vec<EventCharge>)) {
        let numbers = self.plan.numbers;
        let sums = &mut self.sums;
        let mut add = |kind: Kind, count: u64, ticks: u64| {
            let kind = if numbers { kind } else { kind.without_number() };
            sums.entry((target, kind)).or_default().add(Amount { count, ticks });
        };
        for block in blocks {
            for &(class, count, ticks) in &self.context.shapes[block.shape as usize] {
                let count = u64::from(count).saturating_mul(block.runs);
                let ticks = ticks.saturating_mul(block.runs);
                add(Kind::new(Family::Instruction, class as u32), count, ticks);
            }
        }
        events.iter().for_each(|event| add(event.kind, event.count, event.ticks));
    }

    fn flush(&mut self, region: u32) {
        for ((target, kind), Amount { count, ticks }) in self.sums.drain() {
            let Target { origin, rip, .. } = self.list[target as usize];
            self.out.events.push(EventCharge { region, origin, rip, kind, count, ticks });
        }
        self.targets.clear();
        for Target { origin, range, rip, addresses } in self.list.drain(..).filter(|target| target.addresses > 1) {
            self.out.folded.addresses += addresses;
            self.out.folded.places.push(FoldedPlace { region, origin, rip, range });
        }
    }
}

#[cfg(test)]
mod tests;
