//! Results as JSON for programs, as Markdown for documents, and as one self-contained HTML page.

mod axis;
#[cfg(test)]
pub(crate) mod browser;
mod compare;
mod csv;
mod diff;
mod entries;
mod flame;
mod headline;
mod interval;
mod markdown;
mod page;
mod plot;
mod series;
mod trend;
mod waterfall;

pub use csv::csv;
pub use diff::{diff_page, several_page};
pub use markdown::markdown;
pub use page::html;
pub use series::series_page;

use crate::difference::{Difference, Pair, factors, pairs};
use crate::experiment::{Line, Row, Skip};
use crate::functions;
use crate::results::{ExperimentResult, FORMAT, Interrupted};
use crate::{Cell, Experiment};
use serde_json::{Value, json};

/// The style sheet that all pages share.
pub const STYLE: &str = include_str!("page.css");

/// The reason why a report can't be made.
#[derive(Debug, thiserror::Error)]
#[error("can't create the report")]
pub struct ReportError(#[from] minijinja::Error);

/// Returns all results, with factors and differences, and with the functions whose names match `patterns`. [`crate::check::Document`] reads this document.
pub fn document(
    experiments: &[Experiment],
    results: &[ExperimentResult],
    interrupted: Option<Interrupted>,
    patterns: &[String],
) -> Value {
    let each: Vec<Value> = experiments.iter().zip(results).map(|(e, result)| one(e, result, patterns)).collect();
    let mut document = json!({ "format": FORMAT, "program": env!("CARGO_PKG_VERSION"), "experiments": each });
    if let Some(interrupted) = interrupted {
        document["interrupted"] = json!(interrupted);
    }
    document
}

/// Returns the description of an experiment, without results.
pub fn description(experiment: &Experiment) -> Value {
    let source = experiment.source.as_ref().map(|source| json!({ "text": source.text, "reference": source.reference }));
    let column = |column: &Line| json!({ "id": column.id, "title": column.title });
    let row = |row: &Row| json!({ "id": row.line.id, "title": row.line.title, "unit": row.metric.unit(), "scale": row.scale });
    let cell = |cell: &Cell| json!({ "id": cell.id(), "command": cell.command(), "published": cell.published() });
    let skip = |skip: &Skip| {
        let (row, column) = (&experiment.rows[skip.row].line.id, &experiment.columns[skip.column].id);
        json!({ "id": format!("{row}/{column}"), "reason": skip.reason })
    };
    json!({
        "name": experiment.name,
        "title": experiment.title,
        "about": experiment.about,
        "source": source,
        "rows": experiment.rows.iter().map(row).collect::<Value>(),
        "columns": experiment.columns.iter().map(column).collect::<Value>(),
        "cells": experiment.cells().iter().map(cell).collect::<Value>(),
        "left_out": experiment.skips.iter().map(skip).collect::<Value>(),
    })
}

fn one(experiment: &Experiment, result: &ExperimentResult, patterns: &[String]) -> Value {
    let cell =
        |(row, column): (usize, usize)| format!("{}/{}", experiment.rows[row].line.id, experiment.columns[column].id);
    let between = |pair: &Pair| json!({ "from": cell(pair.from), "to": cell(pair.to) });
    let factors: Vec<Value> = factors(experiment)
        .iter()
        .filter_map(|pair| {
            let (published, ours) = pair.factors(experiment, result)?;
            let mut value = between(pair);
            value["published"] = json!(published);
            value["ours"] = json!(ours);
            Some(value)
        })
        .collect();
    let differences: Vec<Value> = pairs(experiment)
        .iter()
        .filter_map(|pair| {
            let (before, after) = pair.measured(experiment, result)?;
            let mut value = between(pair);
            value["difference"] = json!(Difference::new(before, after));
            if !patterns.is_empty() {
                value["functions"] = json!(functions::between(before, after, patterns));
            }
            Some(value)
        })
        .collect();
    let mut value = json!(result);
    value["title"] = json!(experiment.title);
    value["factors"] = json!(factors);
    value["differences"] = json!(differences);
    value
}
