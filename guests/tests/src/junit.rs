//! The outcomes of the tests in the JUnit format, which continuous integration systems collect.

use crate::test::{Outcome, Stop};
use minijinja::{AutoEscape, Environment, context};
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const DOCUMENT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites>
  <testsuite name="guests" tests="{{ cases|length }}" failures="{{ failures }}" errors="0" skipped="{{ skipped }}">
{%- for case in cases %}
    <testcase classname="{{ case.group }}" name="{{ case.name }}" time="{{ case.time }}">
{%- if case.failure %}<failure message="{{ case.failure|lines|first }}">{{ case.failure }}</failure>{% endif %}
{%- if case.skipped %}<skipped message="{{ case.skipped }}"/>{% endif -%}
    </testcase>
{%- endfor %}
  </testsuite>
</testsuites>
"#;

/// The outcomes of the tests that have run.
#[derive(Default)]
pub struct Results(Mutex<Vec<(String, Duration, Outcome)>>);

impl Results {
    pub fn add(&self, name: &str, time: Duration, outcome: &Outcome) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push((name.to_owned(), time, outcome.clone()));
    }

    fn document(&self) -> Result<String, minijinja::Error> {
        let mut environment = Environment::new();
        environment.set_auto_escape_callback(|_| AutoEscape::Html);
        environment.add_template("junit.xml", DOCUMENT)?;
        // Replaces characters that XML can't represent, even escaped.
        let clean = |text: &str| text.replace(|c: char| c.is_control() && !"\n\t\r".contains(c), "\u{fffd}");
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut failures, mut skips) = (0, 0);
        let cases: Vec<_> = all
            .iter()
            .map(|(full, time, outcome)| {
                let (group, name) = full.split_once("::").unwrap_or(("", full));
                let (failure, skipped) = match outcome {
                    Ok(()) => (None, None),
                    Err(Stop::Failed(reason)) => (Some(clean(reason)), None),
                    Err(Stop::Skipped(reason)) => (None, Some(clean(reason))),
                };
                failures += u32::from(failure.is_some());
                skips += u32::from(skipped.is_some());
                context! { group, name, time => format!("{:.3}", time.as_secs_f64()), failure, skipped }
            })
            .collect();
        environment.get_template("junit.xml")?.render(context! { cases, failures, skipped => skips })
    }

    pub fn write(&self, path: &Path) -> io::Result<()> {
        std::fs::write(path, self.document().map_err(io::Error::other)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_cases() {
        let results = Results::default();
        results.add("bare::a", Duration::from_millis(1500), &Ok(()));
        results.add("bare::b::c", Duration::ZERO, &Err(Stop::Failed("status <1>\nmore \u{1b}[0m".to_owned())));
        results.add("linux::d", Duration::ZERO, &Err(Stop::Skipped("gdb & co".to_owned())));
        let expected = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>
<testsuites>
  <testsuite name=\"guests\" tests=\"3\" failures=\"1\" errors=\"0\" skipped=\"1\">
    <testcase classname=\"bare\" name=\"a\" time=\"1.500\"></testcase>
    <testcase classname=\"bare\" name=\"b::c\" time=\"0.000\"><failure message=\"status &lt;1&gt;\">status &lt;1&gt;
more \u{fffd}[0m</failure></testcase>
    <testcase classname=\"linux\" name=\"d\" time=\"0.000\"><skipped message=\"gdb &amp; co\"/></testcase>
  </testsuite>
</testsuites>
";
        assert_eq!(results.document().unwrap().trim_end(), expected.trim_end());
    }
}
