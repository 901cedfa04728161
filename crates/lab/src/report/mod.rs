//! Results for programs (JSON), for documents (Markdown), and as one self-contained page (HTML).

mod chart;
mod markdown;
mod page;

pub use markdown::markdown;
pub use page::html;

use crate::Experiment;
use crate::difference::{Difference, Pair, factors, pairs};
use crate::results::{ExperimentResult, FORMAT};
use serde_json::{Value, json};

/// Why a report can't be made.
#[derive(Debug, thiserror::Error)]
#[error("the report can't be made: {0}")]
pub struct ReportError(#[from] minijinja::Error);

/// All results, with factors and differences.
pub fn document(experiments: &[Experiment], results: &[ExperimentResult]) -> Value {
    let each: Vec<Value> = experiments.iter().zip(results).map(|(e, result)| one(e, result)).collect();
    json!({ "format": FORMAT, "program": env!("CARGO_PKG_VERSION"), "experiments": each })
}

fn one(experiment: &Experiment, result: &ExperimentResult) -> Value {
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
            value["difference"] = json!(Difference::new(&before.entries, &after.entries));
            Some(value)
        })
        .collect();
    let mut value = json!(result);
    value["title"] = json!(experiment.title);
    value["factors"] = json!(factors);
    value["differences"] = json!(differences);
    value
}
