//! The outcome of a diff as tests in the JUnit format, which continuous integration systems collect: one for each comparison.

use super::{Diff, Interrupted, sheets};
use crate::report::ReportError;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Value, context};
use serde::Serialize;

/// Rows of each table in the test's output.
const TOP: usize = 10;

const DOCUMENT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="{{ cases | length }}" failures="{{ failures }}" errors="{{ errors }}">
  <testsuite name="tollgate diff" tests="{{ cases | length }}" failures="{{ failures }}" errors="{{ errors }}" skipped="0">
{%- for case in cases %}
    <testcase classname="tollgate.diff" name="{{ case.name }}" time="{{ case.time }}">
      <properties>
{%- for (name, value) in case.properties %}
        <property name="{{ name }}" value="{{ value }}"/>
{%- endfor %}
      </properties>
{%- if case.failed %}
      <failure type="regression" message="{{ case.sentence }}">{{ case.decision }}</failure>
{%- elif case.interrupted %}
      <error type="interrupted" message="{{ case.interrupted }}">{{ case.sentence }}</error>
{%- endif %}
      <system-out>{{ case.text }}</system-out>
    </testcase>
{%- endfor %}
  </testsuite>
</testsuites>
"#;

/// A test: one comparison.
#[derive(Serialize)]
struct Case {
    name: String,
    time: String,
    failed: bool,
    /// The remark on a measurement that was not completed. A limit that is exceeded nevertheless is a failure.
    interrupted: Option<String>,
    sentence: String,
    decision: String,
    properties: Vec<(String, String)>,
    text: String,
}

/// Replaces characters that XML can't represent, even escaped.
fn clean(text: &str) -> String {
    text.replace(|c: char| c.is_control() && !"\n\t\r".contains(c), "\u{fffd}")
}

/// Returns the test of a comparison. Its time is B's virtual time in seconds.
fn case(diff: &Diff, warnings: &[String], interrupted: Option<Interrupted>) -> Case {
    let (a, b) = (&diff.a.name, &diff.b.name);
    let rows = sheets::provenance(diff).rows.into_iter();
    let properties = rows.flat_map(|row| {
        let [name, of_a, of_b] = <[String; 3]>::try_from(row).unwrap_or_default();
        match of_b.as_str() {
            "" => vec![(name, of_a)],
            _ => vec![(format!("{name} of {a}"), of_a), (format!("{name} of {b}"), of_b)],
        }
    });
    let interrupted = interrupted.map(|interrupted| interrupted.to_string());
    let stopped = interrupted.iter().map(|interrupted| ("interrupted".to_owned(), interrupted.clone()));
    let text = warnings.iter().map(|warning| format!("{warning}\n")).chain([sheets::text(diff, TOP)]);
    Case {
        name: clean(&format!("{} ({} → {})", diff.command, diff.a.title, diff.b.title)),
        time: format!("{:.6}", diff.b.mean(|run| run.elapsed)),
        failed: diff.verdict.exceeded(),
        properties: stopped.chain(properties).map(|(name, value)| (clean(&name), clean(&value))).collect(),
        interrupted,
        sentence: clean(&diff.sentence),
        decision: clean(diff.decision.as_deref().unwrap_or_default()),
        text: clean(&text.collect::<String>()),
    }
}

/// Returns the document with a test for each comparison. `warnings` are those that the comparisons share, and do not have themselves.
pub fn document<'a>(
    comparisons: impl Iterator<Item = &'a Diff>,
    warnings: &[String],
    interrupted: Option<Interrupted>,
) -> Result<String, ReportError> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.add_template("junit.xml", DOCUMENT)?;
    let cases: Vec<Case> = comparisons.map(|diff| case(diff, warnings, interrupted)).collect();
    Ok(environment.get_template("junit.xml")?.render(context! {
        failures => cases.iter().filter(|case| case.failed).count(),
        errors => cases.iter().filter(|case| !case.failed && case.interrupted.is_some()).count(),
        cases => Value::from(Serde(cases)),
    })?)
}
