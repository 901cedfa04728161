//! Indirect branches by the place they are at: how often, where to, what they cost, and what they would cost otherwise.

use super::Selection;
use crate::branch::{Branch, BranchRuns, Taken, Way};
use crate::charge::AddressSpace;
use crate::ledger::Ledger;
use crate::{Class, Family, Ticks};
use std::collections::BTreeMap;

/// An indirect branch of the guest's code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Virtualization level of its code.
    pub level: u8,
    /// Function and offset, or the address where no symbol is known.
    pub place: String,
    /// The way in which the branch gets its target.
    pub way: Way,
    /// The number of its executions.
    pub taken: Taken,
    /// The total cost: instructions and mispredictions.
    pub ticks: Ticks,
    /// The targets, the most frequent first.
    pub targets: Vec<(String, Taken)>,
}

/// A compare and a direct branch for some targets of a site, in place of the indirect branch (INDIRECT_CALL_n, static calls and jump labels of
/// Linux; the indirect branch stays for other targets).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Direct {
    /// The site: its place, or a function, which stands for all branches in it.
    pub place: String,
    /// The targets that are compared with, in this order. Empty: the most frequent one of each site.
    pub targets: Vec<String>,
}

/// The predicted effect of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The site.
    pub place: String,
    /// The targets that are compared with.
    pub targets: Vec<String>,
    /// Executions in all.
    pub count: u64,
    /// Executions whose target is one of them.
    pub direct: u64,
    /// The charge of the site.
    pub before: Ticks,
    /// The predicted charge.
    pub after: Ticks,
}

/// Prices of what indirect branches are made of, as a ledger has them.
struct Prices<'a> {
    ledger: &'a Ledger,
    indirect_miss: Ticks,
    return_miss: Ticks,
}

impl<'a> Prices<'a> {
    fn of(ledger: &'a Ledger) -> Self {
        // A misprediction has one price, wherever it is.
        let miss = |family: Family| {
            let event = ledger.events.iter().find(|event| event.kind.family == family && event.count != 0);
            event.map_or(0, |event| event.ticks / event.count)
        };
        Self { ledger, indirect_miss: miss(Family::IndirectMiss), return_miss: miss(Family::ReturnMiss) }
    }

    fn classes(&self, classes: &[Class]) -> Ticks {
        classes.iter().map(|class| Ticks::from(self.ledger.header.class_ticks[*class as usize])).sum()
    }

    /// The price of one execution of a branch that is predicted, and the additional price of a misprediction.
    fn each(&self, way: Way) -> (Ticks, Ticks) {
        match way {
            Way::Call => (self.classes(&[Class::IndirectCall]), self.indirect_miss),
            Way::Jump => (self.classes(&[Class::IndirectJump]), self.indirect_miss),
            Way::Return => (self.classes(&[Class::Return]), self.return_miss),
            // CALL of the thunk; there a CALL, a store over its return address, and a RET.
            Way::Retpoline => {
                (self.classes(&[Class::Call, Class::Call, Class::Store, Class::Return]), self.return_miss)
            }
        }
    }

    fn all(&self, way: Way, taken: Taken) -> Ticks {
        let (each, miss) = self.each(way);
        each.saturating_mul(taken.count).saturating_add(miss.saturating_mul(taken.missed))
    }

    /// The same as a compare with each of `compared` targets and, if one of them is met, a direct branch.
    fn direct(&self, way: Way, compared: u64) -> Ticks {
        let branch = if way == Way::Jump { Class::Jump } else { Class::Call };
        self.compares(compared).saturating_add(self.classes(&[branch]))
    }

    fn compares(&self, compared: u64) -> Ticks {
        self.classes(&[Class::Alu, Class::Branch]).saturating_mul(compared)
    }
}

impl Selection<'_> {
    /// The indirect branches that the run kept, the most expensive first. Address spaces are told apart only where there are no symbols. Branches
    /// have no tasks, so a selection of tasks has the branches of all.
    pub fn sites(self) -> Vec<Site> {
        let prices = Prices::of(self.ledger);
        let wanted = |runs: &&BranchRuns| {
            self.region.is_none_or(|region| region == runs.region) && self.level.is_none_or(|level| level == runs.level)
        };
        let mut sites: BTreeMap<(u8, String, Way), BTreeMap<String, Taken>> = BTreeMap::new();
        for runs in self.ledger.branches.iter().filter(wanted) {
            let place = self.ledger.place(runs.space, runs.branch.site);
            let target = self.ledger.place(runs.space, runs.branch.target);
            let targets = sites.entry((runs.level, place, runs.branch.way)).or_default();
            targets.entry(target).or_default().add(runs.taken);
        }
        let site = |((level, place, way), targets): ((u8, String, Way), BTreeMap<String, Taken>)| {
            let mut taken = Taken::default();
            targets.values().for_each(|more| taken.add(*more));
            let mut targets: Vec<(String, Taken)> = targets.into_iter().collect();
            targets.sort_by(|a, b| b.1.count.cmp(&a.1.count).then_with(|| a.0.cmp(&b.0)));
            Site { level, place, way, taken, ticks: prices.all(way, taken), targets }
        };
        let mut sites: Vec<Site> = sites.into_iter().map(site).collect();
        sites.sort_by(|a, b| {
            b.ticks.cmp(&a.ticks).then_with(|| (&a.place, a.way, a.level).cmp(&(&b.place, b.way, b.level)))
        });
        sites
    }
}

impl Direct {
    /// True if the change names this site, or the function that it is in.
    pub fn names(&self, site: &Site) -> bool {
        let whole = site.place.split_once('+').map_or(site.place.as_str(), |(function, _)| function);
        let bare = site.place.split(' ').next().unwrap_or_default();
        [whole, bare, site.place.as_str()].contains(&self.place.as_str())
    }
}

impl Ledger {
    /// The function that an address is in, with its image, and the offset; or the address.
    pub fn place(&self, space: AddressSpace, address: u64) -> String {
        if address == Branch::ELSEWHERE {
            return "[elsewhere]".to_owned();
        }
        match self.symbol(space, address) {
            Some((symbol, offset)) => {
                let name = super::lines::symbol_name(symbol);
                match (offset, name.split_once(' ')) {
                    (0, _) => name,
                    (_, Some((function, image))) => format!("{function}+{offset:#x} {image}"),
                    (_, None) => format!("{name}+{offset:#x}"),
                }
            }
            None => format!("{address:#x}"),
        }
    }

    /// The predicted charges of each call and jump that `direct` names. A return has no target of its own.
    pub fn made_direct(&self, sites: &[Site], direct: &Direct) -> Vec<Saved> {
        let prices = Prices::of(self);
        let meant = |site: &&Site| site.way != Way::Return && direct.names(site);
        let saved = |site: &Site| {
            let frequent = site.targets.iter().take(1).map(|(name, _)| name.clone());
            let compared = if direct.targets.is_empty() { frequent.collect() } else { direct.targets.clone() };
            let mut after: Ticks = 0;
            let mut met = 0u64;
            for (name, taken) in &site.targets {
                let bare = name.split(' ').next().unwrap_or_default();
                let number = compared.iter().position(|wanted| wanted == name || wanted == bare);
                let ticks = match number {
                    Some(number) => {
                        met = met.saturating_add(taken.count);
                        prices.direct(site.way, number as u64 + 1).saturating_mul(taken.count)
                    }
                    None => {
                        let compares = prices.compares(compared.len() as u64).saturating_mul(taken.count);
                        compares.saturating_add(prices.all(site.way, *taken))
                    }
                };
                after = after.saturating_add(ticks);
            }
            Saved {
                place: site.place.clone(),
                targets: compared,
                count: site.taken.count,
                direct: met,
                before: site.ticks,
                after,
            }
        };
        sites.iter().filter(meant).map(saved).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbols::Symbol;
    use crate::{Header, Kind, Origin, Profile, Recorder, Symbols};

    const CALLER: u64 = 0xffff_ffff_8100_0000;
    const CALLEES: u64 = 0xffff_ffff_8200_0000;

    /// A site that goes to two functions, three times to the first and once to the second, which is not predicted; and a retpoline.
    fn ledger() -> Ledger {
        let profile = Profile::named("skx").expect("is built in");
        let costs = profile.costs();
        let mut recorder = Recorder::default();
        let mut clock = 0;
        for space in [0x1000, 0x2000] {
            let origin = recorder.origin(Origin::new(0, 0, space));
            let site = CALLER + 0x10;
            for (target, missed) in [(0, false), (0, false), (0, true), (0x40, true)] {
                recorder.add_branch(origin, Branch { site, way: Way::Call, target: CALLEES + target }, missed);
            }
            let retpoline = Branch { site: CALLER + 0x20, way: Way::Retpoline, target: CALLEES };
            recorder.add_branch(origin, retpoline, true);
            for (family, count) in [(Family::IndirectMiss, 2), (Family::ReturnMiss, 1)] {
                let ticks = costs.of(Kind::new(family, 0)) * count;
                recorder.add(origin, site, Kind::new(family, 0), count, ticks);
                clock += ticks;
            }
        }
        let mut symbols = Symbols::default();
        let functions = vec![
            Symbol::new(CALLER, 0x40, "udp_rcv"),
            Symbol::new(CALLEES, 0x40, "first"),
            Symbol::new(CALLEES + 0x40, 0x40, "second"),
        ];
        symbols.add("", AddressSpace::default(), functions);
        Ledger::new(Header::new(&profile, vec![clock]), &recorder, &symbols)
    }

    #[test]
    fn sites_have_their_targets_and_costs() {
        let ledger = ledger();
        let prices = Profile::named("skx").expect("is built in").costs();
        let sites = ledger.all().sites();
        let site = sites.iter().find(|site| site.way == Way::Call).expect("is there");
        assert_eq!((site.place.as_str(), site.taken), ("udp_rcv+0x10", Taken { count: 8, missed: 4 }));
        let targets: Vec<_> = site.targets.iter().map(|(name, taken)| (name.as_str(), taken.count)).collect();
        assert_eq!(targets, [("first", 6), ("second", 2)]);
        let each = u64::from(prices.class[Class::IndirectCall as usize]);
        assert_eq!(site.ticks, 8 * each + 4 * prices.of(Kind::new(Family::IndirectMiss, 0)));
        let retpoline = sites.iter().find(|site| site.way == Way::Retpoline).expect("is there");
        assert!(retpoline.ticks > 2 * prices.of(Kind::new(Family::ReturnMiss, 0)));
    }

    #[test]
    fn a_level_has_its_own_sites() {
        let mut ledger = ledger();
        assert!(ledger.all().at_level(1).sites().is_empty());
        ledger.branches.retain(|runs| runs.branch.way == Way::Retpoline);
        ledger.branches.iter_mut().for_each(|runs| runs.level = 1);
        let guest = ledger.all().at_level(1).sites();
        assert_eq!((guest.len(), guest[0].level, guest[0].way), (1, 1, Way::Retpoline));
        assert!(ledger.all().at_level(0).sites().is_empty());
    }

    #[test]
    fn a_direct_call_costs_a_compare_and_a_call() {
        let ledger = ledger();
        let sites = ledger.all().sites();
        let class = |class: Class| u64::from(ledger.header.class_ticks[class as usize]);
        let compare = class(Class::Alu) + class(Class::Branch);
        let direct = |place: &str, targets: &[&str]| {
            let targets = targets.iter().map(|&name| name.to_owned()).collect();
            ledger.made_direct(&sites, &Direct { place: place.to_owned(), targets })
        };
        let [one] = &direct("udp_rcv+0x10", &[])[..] else { panic!("one site") };
        assert_eq!((one.direct, one.count, one.targets.len()), (6, 8, 1));
        let miss = Prices::of(&ledger).indirect_miss;
        let rest = 2 * (compare + class(Class::IndirectCall) + miss);
        assert_eq!(one.after, 6 * (compare + class(Class::Call)) + rest);
        let [both] = &direct("udp_rcv+0x10", &["second", "first"])[..] else { panic!("one site") };
        assert_eq!(both.after, 8 * class(Class::Call) + (2 + 6 * 2) * compare);
        assert_eq!(direct("udp_rcv", &[]).len(), 2, "all sites of the function");
        assert!(direct("udp_rcv+0x11", &[]).is_empty());
    }

    #[test]
    fn a_ledger_with_branches_is_read_as_it_was_written() {
        let ledger = ledger();
        let bytes = ledger.to_bytes().expect("fits");
        assert_eq!(Ledger::read(&bytes), Ok(ledger.clone()));
        let mut wrong = ledger;
        wrong.branches.swap(0, 1);
        assert!(Ledger::read(&wrong.to_bytes().expect("fits")).is_err());
    }
}
