//! `tollgate lab score`: the distance of results from the published figures.

use super::settings;
use crate::table::{
    Align::{Left, Right},
    emit, table,
};
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use lab::check::Document;
use lab::score::{Quartiles, Score, Scored};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Args)]
pub struct ScoreArgs {
    /// Output of `tollgate lab run --json`
    #[arg(value_name = "RESULTS")]
    results: PathBuf,
    /// Prints the scores as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &ScoreArgs) -> Result<ExitCode> {
    let file = args.results.display();
    let bytes = std::fs::read(&args.results).with_context(|| format!("{file}"))?;
    let document = Document::read(&bytes).map_err(|error| anyhow!("{file} {error}"))?;
    let mut scores = Vec::new();
    for result in &document.experiments {
        let experiment = settings::find(result.file.as_deref().unwrap_or(&result.name))?;
        let score = Score::of(&experiment, result);
        if !score.cells.is_empty() {
            scores.push((result.name.as_str(), score));
        }
    }
    if scores.is_empty() {
        bail!("{file} has no cell with a published figure");
    }
    emit(&if args.json { as_json(&scores) } else { as_text(&scores) })?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the cells and factors of all experiments.
fn all(scores: &[(&str, Score)]) -> [Vec<Scored>; 2] {
    let of = |list: fn(&Score) -> &Vec<Scored>| scores.iter().flat_map(|(_, score)| list(score).clone()).collect();
    [of(|score| &score.cells), of(|score| &score.factors)]
}

fn as_json(scores: &[(&str, Score)]) -> String {
    let quartiles = |cells: &[Scored], factors: &[Scored]| json!({ "cells": Quartiles::of(cells), "factors": Quartiles::of(factors) });
    let each = scores.iter().map(
        |(name, score)| json!({ "name": name, "score": score, "quartiles": quartiles(&score.cells, &score.factors) }),
    );
    let [cells, factors] = all(scores);
    let document = json!({ "experiments": each.collect::<Vec<_>>(), "all": quartiles(&cells, &factors) });
    format!("{document:#}\n")
}

fn as_text(scores: &[(&str, Score)]) -> String {
    let figure = |value: f64| format!("{value:.3}");
    let mut out = String::new();
    for (what, list) in [("cell", (|s| &s.cells) as fn(&Score) -> &Vec<Scored>), ("factor", |s| &s.factors)] {
        let lines: Vec<Vec<String>> = scores
            .iter()
            .flat_map(|(name, score)| list(score).iter().map(move |scored| (name, scored)))
            .map(|(name, s)| {
                let figures = [s.published, s.ours, s.ours / s.published, s.distance()].map(figure);
                [vec![format!("{name}: {}", s.name)], figures.to_vec()].concat()
            })
            .collect();
        table(
            &mut out,
            &[(what, Left), ("published", Right), ("ours", Right), ("ratio", Right), ("|ln|", Right)],
            &lines,
        );
        out.push('\n');
    }
    let quartiles = |list: &[Scored]| match Quartiles::of(list) {
        Some(q) => [vec![q.count.to_string()], q.quartiles.map(figure).to_vec()].concat(),
        None => vec!["0".to_string(), String::new(), String::new(), String::new()],
    };
    let line = |name: &str, cells: &[Scored], factors: &[Scored]| {
        [vec![name.to_string()], quartiles(cells), quartiles(factors)].concat()
    };
    let mut lines: Vec<_> = scores.iter().map(|(name, score)| line(name, &score.cells, &score.factors)).collect();
    let [cells, factors] = all(scores);
    lines.push(line("in all", &cells, &factors));
    let three = [("25%", Right), ("median", Right), ("75%", Right)];
    let headings = [&[("|ln|", Left), ("cells", Right)][..], &three, &[("factors", Right)], &three].concat();
    table(&mut out, &headings, &lines);
    out
}
