//! Sums over a ledger, or over one region of it: by kind, class, symbol, address space, ring and address.
//!
//! Sums saturate: a ledger that passes [`Ledger::verify`] never reaches that.

use crate::ledger::{BlockRuns, Ledger};
use crate::recorder::Amount;
use crate::{Class, Family, Kind};
use std::collections::BTreeMap;

/// What something was charged for, coarsely enough for a line of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Ordinary instructions of all classes.
    Instructions,
    /// TLB misses of all kinds.
    TlbMisses,
    /// Mispredicted indirect branches and returns.
    Mispredictions,
    /// Time spent halted.
    Halted,
    /// One kind of crossing.
    Crossing(Kind),
}

impl Cause {
    /// The cause of an event.
    pub fn of(kind: Kind) -> Self {
        match kind.family {
            Family::Instruction => Cause::Instructions,
            Family::Halt => Cause::Halted,
            family if family.is_tlb_miss() => Cause::TlbMisses,
            family if family.is_mispredict() => Cause::Mispredictions,
            _ => Cause::Crossing(kind),
        }
    }
}

/// A line of a report: something, what it was charged in all, and for what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Ticks charged.
    pub ticks: u64,
    /// Instructions executed.
    pub instructions: u64,
    /// Ticks and counts by cause.
    pub causes: BTreeMap<Cause, Amount>,
}

impl Row {
    fn add(&mut self, cause: Cause, amount: Amount) {
        self.ticks = self.ticks.saturating_add(amount.ticks);
        if cause == Cause::Instructions {
            self.instructions = self.instructions.saturating_add(amount.count);
        }
        add(self.causes.entry(cause).or_default(), amount);
    }

    /// Ticks except those spent halted.
    pub fn busy(&self) -> u64 {
        self.ticks.saturating_sub(self.of(Cause::Halted).ticks)
    }

    /// What was charged for one cause.
    pub fn of(&self, cause: Cause) -> Amount {
        self.causes.get(&cause).copied().unwrap_or_default()
    }

    /// What was charged for crossings of all kinds.
    pub fn crossings(&self) -> Amount {
        self.crossings_of(|_| true)
    }

    /// VM exits, with what the processor took for them and for the entries after them.
    pub fn exits(&self) -> Amount {
        let exits = self.crossings_of(|family| family == Family::VmExit);
        let both = self.crossings_of(|family| matches!(family, Family::VmExit | Family::VmEntry));
        Amount { count: exits.count, ticks: both.ticks }
    }

    /// What a hypervisor's software did.
    pub fn operations(&self) -> Amount {
        self.crossings_of(|family| family == Family::Operation)
    }

    fn crossings_of(&self, wanted: impl Fn(Family) -> bool) -> Amount {
        let mut sum = Amount::default();
        for (cause, amount) in &self.causes {
            if matches!(cause, Cause::Crossing(kind) if wanted(kind.family)) {
                add(&mut sum, *amount);
            }
        }
        sum
    }
}

fn add(sum: &mut Amount, amount: Amount) {
    sum.count = sum.count.saturating_add(amount.count);
    sum.ticks = sum.ticks.saturating_add(amount.ticks);
}

/// What lines are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Functions, with what could not be resolved in a few lines of its own.
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
}

/// A ledger, or a part of it.
#[derive(Clone, Copy)]
pub struct Selection<'a> {
    ledger: &'a Ledger,
    region: Option<u32>,
    level: Option<u8>,
}

impl Ledger {
    /// All of the ledger.
    pub fn all(&self) -> Selection<'_> {
        Selection { ledger: self, region: None, level: None }
    }

    /// What was charged in a region of interest; `None` if there is none of that name.
    pub fn region(&self, name: &str) -> Option<Selection<'_>> {
        let region = self.regions.iter().position(|region| region.name == name)?;
        Some(Selection { ledger: self, region: Some(region as u32), level: None })
    }

    /// Whether a guest of a hypervisor was charged anything.
    pub fn has_guest(&self) -> bool {
        self.origins.iter().any(|origin| origin.level != 0)
    }

    /// What a report calls a kind.
    pub fn describe(&self, kind: Kind) -> String {
        kind.describe(self.name_of(kind))
    }

    /// The name that the board or the decoder gave to a kind. A device has one name for reading and writing.
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
    /// Only what was charged at one virtualization level.
    pub fn at_level(self, level: u8) -> Self {
        Self { level: Some(level), ..self }
    }

    fn has(self, region: u32, origin: u32) -> bool {
        self.region.is_none_or(|wanted| wanted == region)
            && self.level.is_none_or(|wanted| wanted == self.ledger.origins[origin as usize].level)
    }

    fn blocks(self) -> impl Iterator<Item = &'a BlockRuns> {
        self.ledger.blocks.iter().filter(move |b| self.has(b.region, b.origin))
    }

    /// Every charge: where (position of origin, address, region), cause, kind if it is an event, amount.
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

    /// Everything in one line.
    pub fn total(self) -> Row {
        let mut total = Row::default();
        self.charges(|_, cause, _, amount| total.add(cause, amount));
        total
    }

    /// Events by kind, without ordinary instructions.
    pub fn kinds(self) -> BTreeMap<Kind, Amount> {
        let mut kinds = BTreeMap::new();
        self.charges(|_, cause, kind, amount| {
            if let (Some(kind), false) = (kind, cause == Cause::Instructions) {
                add(kinds.entry(kind).or_default(), amount);
            }
        });
        kinds
    }

    /// Instructions by class, in the order of [`Class::ALL`].
    pub fn classes(self) -> Vec<Amount> {
        let mut classes = vec![Amount::default(); Class::COUNT];
        let price = |class: Class| u64::from(self.ledger.header.class_ticks[class as usize]);
        for block in self.blocks() {
            for &(class, count) in &self.ledger.shapes[block.shape as usize] {
                let count = u64::from(count).saturating_mul(block.runs);
                add(&mut classes[class as usize], Amount { count, ticks: count.saturating_mul(price(class)) });
            }
        }
        self.charges(|_, cause, kind, amount| {
            if let (Cause::Instructions, Some(kind)) = (cause, kind)
                && let Some(class) = classes.get_mut(kind.param as usize)
            {
                add(class, amount);
            }
        });
        classes
    }

    /// Port and memory-mapped I/O by device: reads, writes.
    pub fn devices(self) -> BTreeMap<String, (Amount, Amount)> {
        let mut devices: BTreeMap<String, (Amount, Amount)> = BTreeMap::new();
        for (kind, amount) in self.kinds() {
            let port = matches!(kind.family, Family::PortIn | Family::PortOut);
            if !kind.family.is_device() {
                continue;
            }
            let name = match self.ledger.name_of(kind) {
                Some(name) => name.to_owned(),
                None if port => format!("port {:#x}", kind.param),
                None => format!("device {}", kind.param),
            };
            let device = devices.entry(name).or_default();
            let read = matches!(kind.family, Family::PortIn | Family::MmioRead);
            add(if read { &mut device.0 } else { &mut device.1 }, amount);
        }
        devices
    }

    /// Lines by what `by` says, in the order of their names.
    pub fn rows(self, by: By) -> BTreeMap<String, Row> {
        // Names are made once for each place that differs, not for each charge.
        let mut places: BTreeMap<(u64, u64), Row> = BTreeMap::new();
        let origins = &self.ledger.origins;
        self.charges(|(origin, rip, region), cause, _, amount| {
            let place = match by {
                By::Symbol | By::Address => (u64::from(origin), rip),
                By::Space => (origins[origin as usize].space, 0),
                By::Ring => (u64::from(origins[origin as usize].level), u64::from(origins[origin as usize].ring)),
                By::Level => (u64::from(origins[origin as usize].level), 0),
                By::Region => (u64::from(region), 0),
            };
            places.entry(place).or_default().add(cause, amount);
        });
        let mut rows: BTreeMap<String, Row> = BTreeMap::new();
        for (place, row) in places {
            let total = rows.entry(self.place_name(by, place)).or_default();
            for (cause, amount) in row.causes {
                total.add(cause, amount);
            }
        }
        rows
    }

    fn place_name(self, by: By, (first, second): (u64, u64)) -> String {
        match by {
            By::Symbol | By::Address => {
                let origin = self.ledger.origins[first as usize];
                let symbol = self.ledger.symbol(origin.space, second);
                match (by, symbol) {
                    (By::Symbol, Some((symbol, _))) if symbol.module.is_empty() => symbol.name.clone(),
                    (By::Symbol, Some((symbol, _))) => format!("{} [{}]", symbol.name, symbol.module),
                    (By::Symbol, None) if origin.ring == 3 => "[user code]".to_owned(),
                    (By::Symbol, None) if second >> 63 == 0 => "[kernel, low addresses]".to_owned(),
                    (By::Symbol, None) => "[kernel, no symbol]".to_owned(),
                    (_, Some((symbol, offset))) => format!("{second:#x} {}+{offset:#x}", symbol.name),
                    (_, None) => format!("{second:#x}"),
                }
            }
            By::Space if first == 0 => "no paging".to_owned(),
            By::Space => format!("{first:#x}"),
            By::Ring if !self.ledger.has_guest() => format!("ring {second}"),
            By::Ring if first == 0 => format!("hypervisor, for ring {second}"),
            By::Ring => format!("{}, ring {second}", level_name(first)),
            By::Level if first == 0 && !self.ledger.has_guest() => "the machine itself".to_owned(),
            By::Level => level_name(first),
            By::Region => match self.ledger.regions[first as usize].name.as_str() {
                "" => "(outside)".to_owned(),
                name => name.to_owned(),
            },
        }
    }
}

/// What a level is called where there is a guest.
fn level_name(level: u64) -> String {
    match level {
        0 => "hypervisor".to_owned(),
        1 => "guest".to_owned(),
        2 => "nested guest".to_owned(),
        _ => format!("level {level}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::tests::{guest, sample};

    #[test]
    fn every_way_to_sum_gives_the_clock() {
        for ledger in [sample(), guest()] {
            let clock: u64 = ledger.header.clocks.iter().sum();
            assert_eq!(ledger.all().total().ticks, clock);
            for by in [By::Symbol, By::Address, By::Space, By::Ring, By::Level, By::Region] {
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
