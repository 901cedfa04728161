//! The outcome of a diff as one test in the JUnit format, which continuous integration systems collect.

use super::{Diff, sheets};
use crate::report::ReportError;
use minijinja::{AutoEscape, Environment, context};

/// Rows of each table in the test's output.
const TOP: usize = 10;

const DOCUMENT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="1" failures="{{ failures }}" errors="0">
  <testsuite name="tollgate diff" tests="1" failures="{{ failures }}" errors="0" skipped="0">
    <testcase classname="tollgate.diff" name="{{ name }}" time="{{ time }}">
      <properties>
{%- for (name, value) in properties %}
        <property name="{{ name }}" value="{{ value }}"/>
{%- endfor %}
      </properties>
{%- if failures %}
      <failure type="regression" message="{{ sentence }}">{{ decision }}</failure>
{%- endif %}
      <system-out>{{ text }}</system-out>
    </testcase>
  </testsuite>
</testsuites>
"#;

/// Returns the document. The test's time is B's virtual time in seconds.
pub fn document(diff: &Diff) -> Result<String, ReportError> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.add_template("junit.xml", DOCUMENT)?;
    // Replaces characters that XML can't represent, even escaped.
    let clean = |text: &str| text.replace(|c: char| c.is_control() && !"\n\t\r".contains(c), "\u{fffd}");
    let rows = sheets::provenance(diff).rows.into_iter();
    let properties: Vec<(String, String)> = rows
        .flat_map(|row| {
            let [name, a, b] = <[String; 3]>::try_from(row).unwrap_or_default();
            match b.as_str() {
                "" => vec![(name, a)],
                _ => vec![(format!("{name} of A"), a), (format!("{name} of B"), b)],
            }
        })
        .map(|(name, value)| (name, clean(&value)))
        .collect();
    Ok(environment.get_template("junit.xml")?.render(context! {
        failures => u8::from(diff.verdict.exceeded()),
        name => clean(&format!("{} ({} → {})", diff.command, diff.a.title, diff.b.title)),
        time => format!("{:.6}", diff.b.mean(|run| run.elapsed)),
        sentence => clean(&diff.sentence),
        decision => clean(diff.decision.as_deref().unwrap_or_default()),
        properties,
        text => clean(&sheets::text(diff, TOP)),
    })?)
}
