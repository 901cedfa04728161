//! The functions of two cells whose names match patterns: the cycles of each in both cells, as means over layouts, and their difference.

use crate::charges::{Tallies, Tally};
use crate::format::{number, signed};
use crate::layouts::Spread;
use crate::results::Measured;
use ledger::{TICKS_PER_CYCLE, pattern};
use serde::Serialize;
use std::collections::BTreeSet;

/// Name of the line that sums all functions.
const ALL: &str = "all of these";

/// A function in two cells.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Function {
    /// Its name, with those of its module and its machine in brackets.
    pub name: String,
    /// Cycles in the first cell.
    pub before: f64,
    /// Cycles in the second cell.
    pub after: f64,
    /// Instructions in the first cell.
    pub instructions_before: f64,
    /// Instructions in the second cell.
    pub instructions_after: f64,
    /// The difference of the cycles layout by layout. None if there is one layout.
    pub difference: Option<Spread>,
}

impl Function {
    /// Compares the tallies of a function, or their sums over several, in pairs of one layout.
    fn new(name: &str, pairs: &[(Tally, Tally)]) -> Self {
        let cycles = |tally: Tally| tally.ticks as f64 / TICKS_PER_CYCLE as f64;
        let mean = |of: &dyn Fn(&(Tally, Tally)) -> f64| pairs.iter().map(of).sum::<f64>() / pairs.len().max(1) as f64;
        let differences: Vec<f64> = pairs.iter().map(|(before, after)| cycles(*after) - cycles(*before)).collect();
        Self {
            name: name.to_owned(),
            before: mean(&|pair| cycles(pair.0)),
            after: mean(&|pair| cycles(pair.1)),
            instructions_before: mean(&|pair| pair.0.count as f64),
            instructions_after: mean(&|pair| pair.1.count as f64),
            difference: Spread::of(&differences),
        }
    }

    /// Returns the cells of its line in a table: the difference, cycles and instructions before and after, and the name.
    pub fn cells(&self) -> Vec<String> {
        let whole = |value: f64| number(value.round() as u64);
        let figures = [self.before, self.after, self.instructions_before, self.instructions_after].map(whole);
        [vec![self.difference()], figures.to_vec(), vec![self.name.clone()]].concat()
    }

    /// Formats the difference, with its interval if there are layouts: `+1,250 (+310 to +2,190)`.
    pub fn difference(&self) -> String {
        let whole = |cycles: f64| signed(cycles.round() as i128);
        self.difference.map_or_else(|| whole(self.after - self.before), |spread| spread.text(whole))
    }
}

/// Returns true if a pattern matches the name of a function, with or without what is in brackets behind it.
fn is_of(patterns: &[String], name: &str) -> bool {
    let alone = name.split_once(" [").map_or(name, |(function, _)| function);
    patterns.iter().any(|wanted| pattern::matches(wanted, alone) || pattern::matches(wanted, name))
}

/// Returns the sum of all functions that match a pattern, and then each of them, the largest difference first. The list is empty if no function matches.
pub fn between(before: &Measured, after: &Measured, patterns: &[String]) -> Vec<Function> {
    let pairs: Vec<(&Tallies, &Tallies)> = before.functions().zip(after.functions()).collect();
    let names = pairs.iter().flat_map(|(before, after)| before.keys().chain(after.keys()));
    let names: BTreeSet<&String> = names.filter(|name| is_of(patterns, name)).collect();
    if names.is_empty() {
        return Vec::new();
    }
    let of = |list: &Tallies, names: &BTreeSet<&String>| {
        names.iter().filter_map(|name| list.get(*name)).fold(Tally::default(), |mut sum, tally| {
            sum.add(*tally);
            sum
        })
    };
    let function = |name: &str, names: &BTreeSet<&String>| {
        let tallies: Vec<(Tally, Tally)> =
            pairs.iter().map(|(before, after)| (of(before, names), of(after, names))).collect();
        Function::new(name, &tallies)
    };
    let mut each: Vec<Function> = names.iter().map(|name| function(name, &BTreeSet::from([*name]))).collect();
    let size = |function: &Function| (function.after - function.before).abs();
    each.sort_by(|a, b| size(b).total_cmp(&size(a)).then_with(|| a.name.cmp(&b.name)));
    [vec![function(ALL, &names)], each].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{layouts, testing};

    fn patterns(list: &[&str]) -> Vec<String> {
        list.iter().map(|pattern| (*pattern).to_owned()).collect()
    }

    #[test]
    fn a_name_matches_with_and_without_its_module() {
        for (wanted, name) in [
            ("kvm_*", "kvm_cpuid [kvm]"),
            ("kvm_cpuid", "kvm_cpuid [kvm] [guest]"),
            ("* [kvm_intel]", "vmx_vcpu_run [kvm_intel]"),
            ("vmx_vcpu_run [kvm_intel]", "vmx_vcpu_run [kvm_intel]"),
        ] {
            assert!(is_of(&patterns(&["other", wanted]), name), "{wanted} {name}");
        }
        assert!(!is_of(&patterns(&["kvm"]), "kvm_cpuid [kvm]") && !is_of(&[], "x"));
    }

    #[test]
    fn functions_are_compared_layout_by_layout() {
        let (experiment, first) = testing::results(4);
        let two = |result: &crate::results::ExperimentResult, wanted: &[&str]| {
            let of = |column| result.measured(&experiment, 0, column).unwrap();
            between(of(1), of(2), &patterns(wanted))
        };
        // 40 MOV CR3 and 40 or 4 exits, with all of the hypervisor's work for them.
        let one = two(&first, &["load_*"]);
        let names: Vec<&str> = one.iter().map(|function| function.name.as_str()).collect();
        assert_eq!(names, [ALL, "load_cr3"]);
        assert_eq!((one[0].difference, one[0].before - one[0].after), (None, 36.0 * 1940.0));
        assert_eq!(one[1].difference(), "-69,840");
        assert_eq!(two(&first, &["store_*"]), []);
        let mut second = first.clone();
        for measured in second.cells.iter_mut().filter_map(|cell| cell.measured.as_mut()) {
            measured.entries.symbols.values_mut().for_each(|tally| tally.ticks *= 2);
        }
        let both = layouts::joined(&[first, second]).unwrap();
        let found = &two(&both, &["load_*"])[1];
        assert!((found.before - 1.5 * one[1].before).abs() < 1e-6, "{found:?}");
        let spread = found.difference.unwrap();
        assert!((spread.mean + 1.5 * 69_840.0).abs() < 1e-6 && spread.low < spread.mean, "{spread:?}");
    }
}
