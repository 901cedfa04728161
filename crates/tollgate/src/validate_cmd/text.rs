//! The result of a validation on a terminal.

use crate::table::{
    Align::{Left, Right},
    table,
};
use silicon::model::Score;
use std::fmt::Write;
use validate::result::{Family, Pair, Row, Sign, Validation};

/// Characters of a block's instructions that are shown.
const NAME: usize = 60;

fn percent(part: f64) -> String {
    format!("{:.1}%", 100.0 * part)
}

fn signed(part: f64) -> String {
    format!("{:+.1}%", 100.0 * part)
}

fn figure(value: f64) -> String {
    match value.abs() {
        size if size < 10.0 => format!("{value:.2}"),
        size if size < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

fn optional(value: Option<f64>, show: fn(f64) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

fn shortened(name: &str) -> String {
    match name.char_indices().nth(NAME) {
        Some((at, _)) => format!("{}...", &name[..at]),
        None => name.to_owned(),
    }
}

/// Returns the text. `top` rows of each list of the worst are shown; 0 shows all.
pub fn text(result: &Validation, top: usize) -> String {
    let mut out = String::new();
    let top = if top == 0 { usize::MAX } else { top };
    head(&mut out, result);
    scores(&mut out, result);
    for (model, name) in result.models.iter().enumerate().take(1) {
        groups(&mut out, result, model);
        for family in &result.families {
            worst(&mut out, family, name, model, top);
        }
    }
    pairs(&mut out, result, top);
    for note in &result.notes {
        let _ = writeln!(out, "\nNote: {note}");
    }
    out
}

fn head(out: &mut String, result: &Validation) {
    let processor = &result.processor;
    let clock = result.core_hz.map_or(String::new(), |hz| format!(" at {:.2} GHz", hz / 1e9));
    let _ = writeln!(
        out,
        "{} (family {:x}h, model {:x}h){clock}\nbeside {}: {}, {}",
        processor.name, processor.family, processor.model, result.profile, result.title, result.fit
    );
    let _ = writeln!(
        out,
        "All figures are cycles of the core. The modelled core has {:.2} GHz: a memory latency of 100 ns is {:.0} cycles.",
        result.profile_hz as f64 / 1e9,
        result.profile_hz as f64 / 1e7
    );
    out.push('\n');
}

/// The table of scores.
fn scores(out: &mut String, result: &Validation) {
    let mut headings = vec![("", Left), ("rows", Right)];
    let named: Vec<String> = result.models.iter().map(|model| format!("{model}: median error")).collect();
    for name in &named {
        headings.extend([(name.as_str(), Right), ("bias", Right), ("tau", Right), ("off by over 25%", Right)]);
    }
    let of = |score: Option<Score>| match score {
        Some(score) => [percent(score.median), signed(score.bias), optional(score.tau, |tau| format!("{tau:.2}"))],
        None => ["-"; 3].map(str::to_owned),
    };
    let mut order: Vec<&Family> = result.families.iter().collect();
    let error = |family: &Family| family.scores.first().copied().flatten().map_or(0.0, |score| score.median);
    order.sort_by(|a, b| error(b).total_cmp(&error(a)));
    let mut rows: Vec<Vec<String>> = Vec::new();
    for family in order {
        let quiet = family.rows.iter().filter(|row| !row.is_noisy()).count();
        let mut row = vec![family.name.clone(), quiet.to_string()];
        for (model, score) in family.scores.iter().enumerate() {
            row.extend(of(*score));
            row.push(family.wrong(model).to_string());
        }
        rows.push(row);
    }
    let mut total = vec!["mean of families".to_owned(), String::new()];
    for model in 0..result.models.len() {
        total.extend([optional(result.total(model), percent), String::new(), String::new(), String::new()]);
    }
    rows.push(total);
    table(out, &headings, &rows);
    if !result.pairs.is_empty() {
        out.push('\n');
        let line = |(model, name): (usize, &String)| {
            let score = result.pair_score(model);
            [name.clone(), score.pairs.to_string(), score.signs.to_string(), score.ratios.to_string()].to_vec()
        };
        let headings =
            [("two ways", Left), ("pairs", Right), ("faster way is right", Right), ("ratio within 25%", Right)];
        table(out, &headings, &result.models.iter().enumerate().map(line).collect::<Vec<_>>());
    }
}

/// The scores of groups, where a family has several.
fn groups(out: &mut String, result: &Validation, model: usize) {
    for family in result.families.iter().filter(|family| family.groups().len() > 1) {
        let line = |(group, score): (&str, Score)| {
            vec![group.to_owned(), score.blocks.to_string(), percent(score.median), signed(score.bias)]
        };
        let rows: Vec<Vec<String>> = family.scores_by_group(model).into_iter().map(line).collect();
        let _ = writeln!(out, "\n{} by group, {}\n", family.name, result.models[model]);
        table(out, &[("", Left), ("rows", Right), ("median error", Right), ("bias", Right)], &rows);
    }
}

/// The rows with the greatest errors, or a whole curve.
fn worst(out: &mut String, family: &Family, model_name: &str, model: usize, top: usize) {
    let rows: Vec<&Row> = match family.curve {
        Some(_) => family.rows.iter().collect(),
        None => family.worst(model).into_iter().take(top).collect(),
    };
    if rows.is_empty() {
        return;
    }
    let what = if family.curve.is_some() { "" } else { ", worst first" };
    let _ = writeln!(out, "\n{}: {}, {}{what}\n", family.name, family.about, family.unit);
    let line = |row: &&Row| {
        let models = row.models.iter().map(|value| optional(*value, figure));
        let mut cells = vec![figure(row.native)];
        cells.extend(models);
        let error = match () {
            () if row.shared => "shared".to_owned(),
            () if row.is_noisy() => "noise".to_owned(),
            () => optional(row.error(model), signed),
        };
        cells.extend([error, shortened(&row.name)]);
        cells
    };
    let lines: Vec<Vec<String>> = rows.iter().map(line).collect();
    let mut headings = vec![("here", Right)];
    let others = lines[0].len() - 3;
    headings.extend([(model_name, Right), ("flat", Right)].into_iter().take(others));
    headings.extend([("error", Right), ("", Left)]);
    table(out, &headings, &lines);
}

/// The pairs, those with the greatest error of the ratio first.
fn pairs(out: &mut String, result: &Validation, top: usize) {
    if result.pairs.is_empty() {
        return;
    }
    let mut order: Vec<&Pair> = result.pairs.iter().collect();
    let distance = |pair: &Pair| pair.factor(0).map_or(0.0, |factor| factor.ln().abs());
    order.sort_by(|a, b| distance(b).total_cmp(&distance(a)));
    let _ = writeln!(out, "\nTwo ways to do one thing: time of the first in terms of the second's, worst first\n");
    let line = |pair: &&Pair| {
        let models = pair.models.iter().map(|ways| optional(ways.map(Pair::ratio), |ratio| format!("{ratio:.2}")));
        let verdict = match pair.right_sign(0) {
            Some(true) => "",
            Some(false) if Pair::sign(pair.native) == Sign::Equal => "shows a difference",
            Some(false) if pair.models[0].map(Pair::sign) == Some(Sign::Equal) => "shows no difference",
            Some(false) => "wrong sign",
            None => "no figure",
        };
        let mut cells = vec![format!("{:.2}", Pair::ratio(pair.native))];
        cells.extend(models);
        cells.extend([verdict.to_owned(), pair.name.clone()]);
        cells
    };
    let mut headings = vec![("here", Right)];
    headings.extend(result.models.iter().map(|model| (model.as_str(), Right)));
    headings.extend([("", Left), ("", Left)]);
    table(out, &headings, &order.iter().take(top).map(line).collect::<Vec<_>>());
}
