//! Call stacks with names, and the tree that they form.

use super::{Selection, lines};
use crate::ledger::Ledger;
use crate::stack::{Record, StackCharge, StackId, TRUNCATED, UNKNOWN, What};
use crate::{AddressSpace, Kind, Origin};
use std::collections::BTreeMap;

/// The weight of stacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Weigh {
    /// Ticks of samples.
    Samples,
    /// Ticks charged for all crossings.
    Crossings,
    /// Number of crossings of these kinds.
    Kinds(Vec<Kind>),
}

/// A stack with names (the task first, then the outermost function) and its weight.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallStack {
    /// The names.
    pub names: Vec<String>,
    /// The weight.
    pub weight: u64,
}

/// A node of the call tree: a function with its callees, or the root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallTree {
    /// Weight of the function and all its callees.
    pub total: u64,
    /// Weight of the function itself.
    pub own: u64,
    /// Callees by name.
    pub called: BTreeMap<String, CallTree>,
}

impl CallTree {
    /// Builds the tree of these stacks.
    pub fn of(stacks: &[CallStack]) -> Self {
        let mut root = Self::default();
        for CallStack { names, weight } in stacks {
            let mut node = &mut root;
            node.total = node.total.saturating_add(*weight);
            for name in names {
                node = node.called.entry(name.clone()).or_default();
                node.total = node.total.saturating_add(*weight);
            }
            node.own = node.own.saturating_add(*weight);
        }
        root
    }

    /// Returns the callees, the heaviest first.
    pub fn heaviest(&self) -> Vec<(&str, &Self)> {
        let mut called: Vec<_> = self.called.iter().map(|(name, tree)| (name.as_str(), tree)).collect();
        called.sort_by_key(|(_, tree)| std::cmp::Reverse(tree.total));
        called
    }
}

impl Ledger {
    /// Returns the name of the frame at an address.
    pub fn frame_name(&self, space: AddressSpace, address: u64) -> String {
        match address {
            TRUNCATED => "[truncated]".to_owned(),
            UNKNOWN => "[too many stacks]".to_owned(),
            _ => match self.symbol(space, address) {
                Some((symbol, _)) => lines::symbol_name(symbol),
                None if address >> 63 == 0 => "[user code]".to_owned(),
                None => "[kernel, no symbol]".to_owned(),
            },
        }
    }

    /// Returns the first name of an origin's stacks: its task, or the interrupt context.
    pub fn task_of(&self, origin: &Origin) -> String {
        let inside = origin.is_inside();
        match (lines::context_name(origin.context, inside), origin.task.0) {
            (Some(context), _) => context.to_owned(),
            (None, 0) => lines::no_task(inside).to_owned(),
            (None, number) => {
                let name = lines::given(&self.tasks[number as usize].comm);
                if inside { format!("{name}{}", lines::INSIDE) } else { name.into_owned() }
            }
        }
    }

    /// Returns the kinds of crossings with stacks whose family has this name, or whose description begins with it.
    pub fn kinds_called(&self, name: &str) -> Vec<Kind> {
        let name = name.to_lowercase();
        let all = self.kinds_with_stacks();
        let called = |is: &dyn Fn(Kind) -> bool| all.iter().copied().filter(|kind| is(*kind)).collect::<Vec<_>>();
        let described = |kind| self.describe(kind).to_lowercase();
        let exactly = called(&|kind| described(kind) == name || kind.family.name() == name);
        if exactly.is_empty() { called(&|kind| described(kind).starts_with(&name)) } else { exactly }
    }

    /// Returns the kinds of crossings that have stacks.
    pub fn kinds_with_stacks(&self) -> Vec<Kind> {
        let kind = |charge: &StackCharge| match charge.what {
            What::Crossing(kind) => Some(kind),
            What::Sample => None,
        };
        let mut kinds: Vec<Kind> = self.stacks.charges.iter().filter_map(kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    /// Returns the default weight: samples, else crossings. `None` if the ledger has no stacks.
    pub fn weigh(&self) -> Option<Weigh> {
        let keeps = self.stacks.keeps;
        match (keeps.interval, keeps.crossings) {
            (0, false) => None,
            (0, true) => Some(Weigh::Crossings),
            _ => Some(Weigh::Samples),
        }
    }
}

impl<'a> Selection<'a> {
    /// Returns the sums by stack.
    pub fn stack_charges(self) -> impl Iterator<Item = &'a StackCharge> {
        self.ledger.stacks.charges.iter().filter(move |charge| self.has_origin(charge.origin))
    }

    /// Returns the trace.
    pub fn records(self) -> impl Iterator<Item = &'a Record<u32>> {
        self.ledger.stacks.records.iter().filter(move |record| self.has_origin(record.origin))
    }

    fn has_origin(self, origin: u32) -> bool {
        let who = &self.ledger.stacks.origins[origin as usize];
        self.includes(u32::from(who.region.0), who)
    }

    /// Returns the stacks with names, sorted; stacks with equal names are merged.
    pub fn call_stacks(self, weigh: &Weigh) -> Vec<CallStack> {
        let mut sums: BTreeMap<(String, AddressSpace, StackId), u64> = BTreeMap::new();
        for charge in self.stack_charges() {
            let weight = match (weigh, charge.what) {
                (Weigh::Samples, What::Sample) | (Weigh::Crossings, What::Crossing(_)) => charge.ticks,
                (Weigh::Kinds(kinds), What::Crossing(kind)) if kinds.contains(&kind) => charge.count,
                _ => continue,
            };
            let who = &self.ledger.stacks.origins[charge.origin as usize];
            let sum = sums.entry((self.ledger.task_of(who), who.address_space(), charge.stack)).or_default();
            *sum = sum.saturating_add(weight);
        }
        let mut names: BTreeMap<(AddressSpace, u64), String> = BTreeMap::new();
        let mut stacks: BTreeMap<Vec<String>, u64> = BTreeMap::new();
        for ((task, space, stack), weight) in sums {
            let frame = |address| {
                names.entry((space, address)).or_insert_with(|| self.ledger.frame_name(space, address)).clone()
            };
            let mut line: Vec<String> = self.ledger.stacks.frames(stack).map(frame).collect();
            line.push(task);
            line.reverse();
            let sum = stacks.entry(line).or_default();
            *sum = sum.saturating_add(weight);
        }
        stacks.into_iter().map(|(names, weight)| CallStack { names, weight }).collect()
    }

    /// Returns the origin with a number.
    pub fn origin_of(self, number: u32) -> &'a Origin {
        &self.ledger.stacks.origins[number as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::{Both, Keeps};
    use crate::{Amount, Family, RegionId, TaskId};

    const SYSCALL: Kind = Kind::new(Family::Syscall, 0);

    fn ledger() -> Ledger {
        let ledger = crate::ledger::tests::sample();
        let task = ledger.tasks.iter().position(|task| task.comm == "work").unwrap() as u32;
        let mut both = Both::default();
        let mut add = |frames: &[u64], what, count| {
            both.charge(frames, frames.len() > 1, what, Amount { count, ticks: count * 10 });
        };
        add(&[0xffff_ffff_8100_0048, 0xffff_ffff_8100_0008, 0x40_1010], What::Sample, 3);
        add(&[0xffff_ffff_8100_0049, 0xffff_ffff_8100_0008, 0x40_1010], What::Sample, 4);
        add(&[0x5555], What::Sample, 1);
        add(&[0x40_1010, 0x40_1011], What::Crossing(SYSCALL), 2);
        let keeps = Keeps { interval: 10, crossings: true, trace: false };
        let origin = Origin { region: RegionId(1), task: TaskId(task), ..Origin::new(0, 0, 0x1000_0000) };
        Ledger { stacks: both.finish(keeps, origin), ..ledger }
    }

    fn lines(stacks: &[CallStack]) -> Vec<String> {
        stacks.iter().map(|stack| format!("{} {}", stack.names.join(";"), stack.weight)).collect()
    }

    #[test]
    fn stacks_have_names() {
        let ledger = ledger();
        assert_eq!(ledger.weigh(), Some(Weigh::Samples));
        assert_eq!(
            lines(&ledger.all().call_stacks(&Weigh::Samples)),
            ["work;[truncated];[user code] 10", "work;main [a.out];do_syscall_64;default_idle 70"]
        );
        assert_eq!(ledger.kinds_called("syscall"), [SYSCALL]);
        let kinds = Weigh::Kinds(vec![SYSCALL]);
        assert_eq!(lines(&ledger.all().call_stacks(&kinds)), ["work;main [a.out];main [a.out] 2"]);
        assert_eq!(ledger.region("work").unwrap().call_stacks(&kinds).len(), 1);
        assert_eq!(ledger.all().at_level(1).call_stacks(&kinds).len(), 0);
        assert_eq!(ledger.all().of_task("swapper/0").unwrap().call_stacks(&kinds).len(), 0);
    }

    #[test]
    fn a_tree_has_totals() {
        let tree = CallTree::of(&ledger().all().call_stacks(&Weigh::Samples));
        assert_eq!(tree.total, 80);
        let work = &tree.called["work"];
        assert_eq!(work.heaviest()[0].0, "main [a.out]");
        assert_eq!(work.called["main [a.out]"].called["do_syscall_64"].called["default_idle"].own, 70);
    }
}
