//! Results as Markdown: the tables of `docs/experiments`.

use crate::Experiment;
use crate::difference::{Difference, factors};
use crate::format::{factor, number, signed};
use crate::functions;
use crate::layouts::has_differences;
use crate::markdown::{cell, plain};
use crate::results::ExperimentResult;
use crate::shown;
use crate::text::{absent, asked};
use ledger::TICKS_PER_CYCLE;

fn row(out: &mut String, cells: &[String]) {
    out.push_str(&format!("| {} |\n", cells.join(" | ")));
}

fn head(out: &mut String, cells: &[&str]) {
    row(out, &cells.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
    let rules: Vec<&str> = cells.iter().enumerate().map(|(at, _)| if at == 0 { "---" } else { "---:" }).collect();
    out.push_str(&format!("|{}|\n", rules.join("|")));
}

/// Returns one experiment's tables, with the `top` main causes of each difference, and the functions whose names match `patterns`.
pub fn markdown(experiment: &Experiment, result: &ExperimentResult, top: usize, patterns: &[String]) -> String {
    let mut out = format!("## {}\n\n", plain(&experiment.title));
    let [rows, asked] = asked(experiment, result);
    let titles: Vec<String> = asked.iter().map(|column| cell(&experiment.columns[*column].title)).collect();
    let mut headings = vec!["", ""];
    headings.extend(titles.iter().map(String::as_str));
    head(&mut out, &headings);
    for (at, line) in rows.into_iter().map(|at| (at, &experiment.rows[at])) {
        let columns = || asked.iter().copied();
        let shown = |column| shown::cell(experiment, result, at, column);
        let mut title = Some(cell(&format!("{} ({})", line.line.title, shown::unit(experiment, at))));
        let mut push = |what: &str, cells: Vec<String>| {
            row(&mut out, &[vec![title.take().unwrap_or_default(), what.to_owned()], cells].concat());
        };
        if !line.published.is_empty() {
            let published = |column| shown(column).published.unwrap_or_else(|| "–".to_owned());
            push("published", columns().map(published).collect());
        }
        let ours = |column| match shown(column).ours {
            Some(ours) => format!("**{ours}**"),
            None => absent(experiment, result, at, column).to_owned(),
        };
        push("ours", columns().map(ours).collect());
        if !line.published.is_empty() {
            let ratio = |column| match shown(column).ratio {
                Some(ratio) => format!("{ratio:.2}"),
                None => "–".to_owned(),
            };
            push("ours/published", columns().map(ratio).collect());
        }
    }
    for note in shown::notes(experiment, result) {
        out.push_str(&format!("\n{}\n", plain(&note)));
    }
    let pairs = factors(experiment);
    let with_differences = has_differences(&pairs, experiment, result);
    if pairs.iter().any(|pair| pair.factors(experiment, result).is_some()) {
        out.push_str("\n### Times faster\n\n");
        let headings = ["", "published", "ours", "difference"];
        head(&mut out, if with_differences { &headings } else { &headings[..3] });
    }
    for pair in &pairs {
        if let Some((published, ours)) = pair.factors(experiment, result) {
            let (from, to, within) = pair.titles(experiment);
            let published = published.map_or_else(|| "–".to_owned(), factor);
            let compared = pair.compared(experiment, result);
            let ours = compared.map_or_else(|| factor(ours), |compared| compared.factor.text(factor));
            let mut cells = vec![cell(&format!("{from} → {to}, {within}")), published, ours];
            if with_differences {
                let unit = experiment.rows[pair.from.0].metric.unit();
                cells.push(compared.map_or_else(|| "–".to_owned(), |compared| compared.difference(unit)));
            }
            row(&mut out, &cells);
        }
    }
    for pair in pairs.iter().filter(|_| top != 0) {
        let Some((before, after)) = pair.measured(experiment, result) else { continue };
        let difference = Difference::new(before, after);
        let total = difference.total.ticks();
        if total == 0 {
            continue;
        }
        let (from, to, within) = pair.titles(experiment);
        out.push_str(&format!("\n### {}\n\n", plain(&format!("{from} → {to}, {within}"))));
        head(&mut out, &["cause", "cycles", "share", "count before", "after"]);
        for change in difference.causes.iter().take(top) {
            let cycles = signed(change.ticks() / i128::from(TICKS_PER_CYCLE));
            let share = format!("{:.1}%", change.ticks() as f64 / total as f64 * 100.0);
            let counts = [number(change.before.count), number(change.after.count)];
            let [before, after] = counts;
            row(&mut out, &[cell(&change.name), cycles, share, before, after]);
        }
    }
    for pair in pairs.iter().filter(|_| !patterns.is_empty()) {
        let Some((before, after)) = pair.measured(experiment, result) else { continue };
        let found = functions::between(before, after, patterns);
        let (from, to, within) = pair.titles(experiment);
        let title = format!("{from} → {to}, {within}: functions {}", patterns.join(", "));
        out.push_str(&format!("\n### {}\n\n", plain(&title)));
        if found.is_empty() {
            out.push_str("No function of either has such a name.\n");
            continue;
        }
        head(&mut out, &["function", "difference", "cycles before", "after", "instructions before", "after"]);
        for function in found.iter().take(1 + top) {
            let mut cells = function.cells();
            cells.rotate_right(1);
            cells[0] = cell(&cells[0]);
            row(&mut out, &cells);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use crate::testing;

    #[test]
    fn the_tables_are_as_they_should_be() {
        let (experiment, result) = testing::results(4);
        insta::assert_snapshot!(super::markdown(&experiment, &result, 3, &["load_*".to_owned()]));
    }
}
