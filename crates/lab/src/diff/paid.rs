//! The costs of one run, from its ledger: those of the command's tasks, and separately those of the rest of the machine.

use super::entries::{self, ByEntry};
use super::rests::Priced;
use crate::charges::{Charges, Tallies, Tally};
use ledger::summary::{By, Cause, Selection};
use ledger::{Context, Family, Ledger, TICKS_PER_CYCLE};
use std::collections::BTreeMap;

/// The region of interest of the command and its descendants.
pub const COMMAND: &str = "exec";
/// The region of interest of everything else while the command runs.
pub const OTHERS: &str = "others";

/// The ledger of a command does not know when the command ran: processes of the guest begin and end its regions by an I/O
/// port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCommand {
    /// No region has begun.
    #[error(
        "the ledger has no region '{COMMAND}': the guest's kernel lets no program use I/O ports, because it is locked down or lacks CONFIG_X86_IOPL_IOPERM, which `tollgate config-kernel` adds to a tree"
    )]
    Ports,
    /// Process 1 has begun the region of everything, and the command's process has not begun its own.
    #[error(
        "the ledger has no region '{COMMAND}': the command's process ended before it could execute the program, so the guest's kernel may have a fault"
    )]
    Ended,
}

/// Returns the regions of a command, and of everything else while it runs.
pub fn regions(ledger: &Ledger) -> Result<[Selection<'_>; 2], NoCommand> {
    let others = ledger.region(OTHERS).ok_or(NoCommand::Ports)?;
    Ok([ledger.region(COMMAND).ok_or(NoCommand::Ended)?, others])
}

/// Costs, each part with its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paid {
    /// Ticks by cause and function; the instruction count comes with the cause of instructions. Halted time is excluded.
    pub parts: BTreeMap<(String, String), Tally>,
    /// Instructions and total ticks by function.
    pub functions: Tallies,
    /// Ticks by what has a price. Halted time is excluded.
    pub priced: BTreeMap<Priced, u64>,
    /// Costs of the rest of the machine by task; interrupts and soft interrupts have entries of their own.
    pub meanwhile: Tallies,
    /// Stays of the command's tasks in the kernel.
    pub entries: ByEntry,
    /// Stays of the rest of the machine, with interrupts and soft interrupts.
    pub entries_meanwhile: ByEntry,
    /// Virtual time from the command's start to its end, in ticks.
    pub elapsed: u64,
}

/// Returns the name of a cause in a sentence.
fn cause_name(ledger: &Ledger, cause: Cause) -> String {
    match cause {
        Cause::Mispredictions => "mispredicted branches and returns".to_owned(),
        cause => ledger.describe_cause(cause),
    }
}

impl Paid {
    /// Returns the costs in the ledger of a run of one command.
    pub fn of(ledger: &Ledger) -> Result<Self, NoCommand> {
        let [command, others] = regions(ledger)?;
        let mut paid = Self::default();
        for (function, row) in command.in_context(Context::Task).rows(By::Symbol) {
            if row.busy() != 0 {
                let tally = Tally { count: row.instructions, ticks: row.busy() };
                paid.functions.entry(function.clone()).or_default().add(tally);
            }
            for (cause, amount) in row.causes.into_iter().filter(|(cause, _)| *cause != Cause::Halted) {
                paid.parts.entry((cause_name(ledger, cause), function.clone())).or_default().add(amount.into());
            }
        }
        let charges = Charges::new(ledger, command.in_context(Context::Task));
        let kinds = charges.kinds.iter().filter(|(kind, _)| kind.family != Family::Halt);
        paid.priced.extend(kinds.map(|(kind, (_, tally))| (Priced::Kind(*kind), tally.ticks)));
        paid.priced.extend(charges.classes.iter().map(|(class, tally)| (Priced::Class(*class), tally.ticks)));
        let interrupts = [Context::SoftInterrupt, Context::Interrupt].map(|context| command.in_context(context));
        for part in interrupts.into_iter().chain([others]) {
            paid.add_meanwhile(part);
            entries::add(&mut paid.entries_meanwhile, ledger, part);
        }
        entries::add(&mut paid.entries, ledger, command.in_context(Context::Task));
        paid.elapsed = ledger.regions.iter().find(|region| region.name == OTHERS).map_or(0, |region| region.elapsed);
        Ok(paid)
    }

    fn add_meanwhile(&mut self, part: Selection) {
        for (name, amount) in part.busy(By::Comm) {
            if amount.ticks != 0 {
                self.meanwhile.entry(name).or_default().add(amount.into());
            }
        }
    }

    /// Returns the command's instructions and ticks in total.
    pub fn total(&self) -> Tally {
        sum(&self.functions)
    }

    /// Returns the command's cycles.
    pub fn cycles(&self) -> f64 {
        self.total().ticks as f64 / TICKS_PER_CYCLE as f64
    }

    /// Returns a function whose costs by cause do not add up to its own. There is none in what a ledger has.
    pub fn contradiction(&self) -> Option<&str> {
        let mut by_cause: BTreeMap<&str, u64> = BTreeMap::new();
        for ((_, function), tally) in &self.parts {
            *by_cause.entry(function).or_default() += tally.ticks;
        }
        let own = |function: &str| self.functions.get(function).map_or(0, |tally| tally.ticks);
        let of_causes = |function: &str| by_cause.get(function).copied().unwrap_or_default();
        let mut all = self.functions.keys().map(String::as_str).chain(by_cause.keys().copied());
        all.find(|function| own(function) != of_causes(function))
    }

    /// Returns the costs by cause.
    pub fn causes(&self) -> Tallies {
        let mut causes = Tallies::default();
        for ((cause, _), tally) in &self.parts {
            causes.entry(cause.clone()).or_default().add(*tally);
        }
        causes
    }

    /// Returns the costs of one cause by function.
    pub fn of_cause(&self, wanted: &str) -> Tallies {
        let parts = self.parts.iter().filter(|((cause, _), _)| cause == wanted);
        parts.map(|((_, function), tally)| (function.clone(), *tally)).collect()
    }

    /// Returns the sum of several runs.
    pub fn sum<'a>(all: impl Iterator<Item = &'a Self>) -> Self {
        let mut result = Self::default();
        for one in all {
            for (part, tally) in &one.parts {
                result.parts.entry(part.clone()).or_default().add(*tally);
            }
            for (to, from) in [(&mut result.functions, &one.functions), (&mut result.meanwhile, &one.meanwhile)] {
                from.iter().for_each(|(name, tally)| to.entry(name.clone()).or_default().add(*tally));
            }
            let both = [(&mut result.entries, &one.entries), (&mut result.entries_meanwhile, &one.entries_meanwhile)];
            for (to, from) in both {
                from.iter().for_each(|(name, stays)| entries::merge(to, name.clone(), stays));
            }
            for (what, ticks) in &one.priced {
                let sum = result.priced.entry(*what).or_default();
                *sum = sum.saturating_add(*ticks);
            }
            result.elapsed = result.elapsed.saturating_add(one.elapsed);
        }
        result
    }
}

/// Returns the means of sums over a number of runs, rounded.
pub fn means(mut sums: Tallies, runs: usize) -> Tallies {
    let runs = runs.max(1) as u64;
    for tally in sums.values_mut() {
        tally.count = tally.count.saturating_add(runs / 2) / runs;
        tally.ticks = tally.ticks.saturating_add(runs / 2) / runs;
    }
    sums
}

/// Returns the sum of a list.
pub fn sum(list: &Tallies) -> Tally {
    let mut all = Tally::default();
    list.values().for_each(|tally| all.add(*tally));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(count: u64, ticks: u64) -> Tally {
        Tally { count, ticks }
    }

    #[test]
    fn means_are_rounded_after_the_parts_are_added() {
        let part = |cause: &str, function: &str| (cause.to_owned(), function.to_owned());
        let one = |ticks| Paid {
            parts: [(part("IRET", "f"), tally(2, ticks)), (part("IRET", "h"), tally(1, 1))].into(),
            functions: [("f".to_owned(), tally(1, ticks))].into(),
            priced: [(Priced::Class(ledger::Class::Alu), ticks)].into(),
            ..Paid::default()
        };
        let mut other = Paid { parts: [(part("IRET", "f"), tally(3, 30))].into(), ..one(30) };
        other.functions.insert("g".to_owned(), tally(4, 8));
        other.elapsed = 10;
        let sum = Paid::sum([&one(10), &other].into_iter());
        assert_eq!(means(sum.causes(), 2), [("IRET".to_owned(), tally(3, 21))].into(), "6 / 2, 41 / 2");
        assert_eq!(
            means(sum.of_cause("IRET"), 2),
            [("f".to_owned(), tally(3, 20)), ("h".to_owned(), tally(1, 1))].into()
        );
        assert_eq!(
            means(sum.functions.clone(), 2),
            [("f".to_owned(), tally(1, 20)), ("g".to_owned(), tally(2, 4))].into()
        );
        assert_eq!((sum.total(), sum.elapsed), (tally(6, 48), 10));
        assert_eq!(sum.priced[&Priced::Class(ledger::Class::Alu)], 40);
    }

    #[test]
    fn a_command_that_never_began_is_told_from_a_kernel_without_ports() {
        let mut ledger = crate::testing::ledger(0);
        assert_eq!(regions(&ledger).err(), Some(NoCommand::Ports));
        ledger.regions[0].name = OTHERS.to_owned();
        assert_eq!(regions(&ledger).err(), Some(NoCommand::Ended));
        ledger.regions.push(ledger::Region { name: COMMAND.to_owned(), begun: 1, elapsed: 1 });
        assert!(regions(&ledger).is_ok());
    }
}
