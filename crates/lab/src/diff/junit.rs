//! The outcome of a diff as tests in the JUnit format, which continuous integration systems collect: one for each comparison.

use super::{Diff, Interrupted, Runs, sheets};
use crate::report::ReportError;
use minijinja::value::Serde;
use minijinja::{Environment, Value, context};
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
{%- elif case.error %}
      <error type="{{ case.error.kind }}" message="{{ case.error.message }}">{{ case.sentence }}</error>
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
    /// The reason why the measurement was not completed. A limit that is exceeded nevertheless is a failure.
    error: Option<Error>,
    sentence: String,
    decision: String,
    properties: Vec<(String, String)>,
    text: String,
}

/// The reason why a test says nothing for certain.
#[derive(Clone, Serialize)]
struct Error {
    kind: &'static str,
    message: String,
}

impl Error {
    /// The user has ended the measurement.
    fn interrupted(message: String) -> Self {
        Self { kind: "interrupted", message }
    }
}

/// Escapes the characters that have a meaning in a text or an attribute of XML.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            c => out.push(c),
        }
    }
    out
}

/// Replaces characters that XML can't represent, even escaped.
fn clean(text: &str) -> String {
    text.replace(|c: char| c.is_control() && !"\n\t\r".contains(c), "\u{fffd}")
}

/// Returns the name of a test, which is the same with and without a result.
fn name(command: &str, a: &str, b: &str) -> String {
    clean(&format!("{command} ({a} → {b})"))
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
    let stopped = stopped.chain(diff.time_limit.map(|limit| ("time limit".to_owned(), limit.to_string())));
    let text = warnings.iter().map(|warning| format!("{warning}\n")).chain([sheets::text(diff, TOP)]);
    Case {
        name: name(&diff.command, &diff.a.title, &diff.b.title),
        time: format!("{:.6}", diff.b.mean(|run| run.elapsed)),
        failed: diff.verdict.exceeded(),
        properties: stopped.chain(properties).map(|(name, value)| (clean(&name), clean(&value))).collect(),
        error: interrupted.map(Error::interrupted),
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
    render(comparisons.map(|diff| case(diff, warnings, interrupted)).collect())
}

/// A measurement without a result.
pub struct Unmeasured<'a> {
    /// The sides, without runs.
    pub sides: &'a [Runs],
    /// The position of the reference.
    pub reference: usize,
    /// True if the user ended the measurement.
    pub interrupted: bool,
    /// The reason why there is no result.
    pub text: &'a str,
    /// The last lines of the output of a run that failed.
    pub output: &'a [String],
}

impl Unmeasured<'_> {
    /// Returns the document with an error for each comparison that was asked for.
    pub fn document(&self) -> Result<String, ReportError> {
        let reference = &self.sides[self.reference];
        let others = self.sides.iter().enumerate().filter(|(side, _)| *side != self.reference);
        let message = clean(self.text);
        let error = match self.interrupted {
            true => Error::interrupted(message),
            false => Error { kind: "failed", message },
        };
        let case = |side: &Runs| Case {
            name: name(&side.command, &reference.title, &side.title),
            time: "0".to_owned(),
            failed: false,
            error: Some(error.clone()),
            sentence: String::new(),
            decision: String::new(),
            properties: Vec::new(),
            text: clean(&self.output.join("\n")),
        };
        render(others.map(|(_, side)| case(side)).collect())
    }
}

fn render(cases: Vec<Case>) -> Result<String, ReportError> {
    let mut environment = Environment::new();
    environment.set_formatter(|out, _, value| Ok(out.write_str(&escaped(&value.to_string()))?));
    environment.add_template("junit.xml", DOCUMENT)?;
    Ok(environment.get_template("junit.xml")?.render(context! {
        failures => cases.iter().filter(|case| case.failed).count(),
        errors => cases.iter().filter(|case| !case.failed && case.error.is_some()).count(),
        cases => Value::from(Serde(cases)),
    })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_characters_with_a_meaning_are_escaped() {
        assert_eq!(escaped("/usr/bin/a 'b' \"c\" <d> & e"), "/usr/bin/a 'b' &quot;c&quot; &lt;d&gt; &amp; e");
    }
}
