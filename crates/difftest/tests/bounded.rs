//! A bounded run over every form: the work of the command, small enough for every test run.

use difftest::forms::forms;
use difftest::native::Unavailable;
use difftest::runner::{Report, Runner};
use std::collections::HashSet;

/// Number of cases in all.
const CASES: u64 = 200_000;

/// The native side owns fixed addresses and signals of the process, so one test does all the work.
#[test]
fn every_form_does_what_the_host_does() {
    let mut runner = match Runner::new(1, 64) {
        Ok(runner) => runner,
        Err(reason @ (Unavailable::Feature(_) | Unavailable::Map { .. } | Unavailable::Signals(_))) => {
            eprintln!("SKIPPED: {reason}");
            return;
        }
        Err(other) => panic!("{other}"),
    };
    let (forms, _) = forms(64);
    let per_form = CASES.div_ceil(forms.len() as u64);
    let (mut shown, mut forms_shown) = (Vec::new(), HashSet::new());
    let tallies = runner.run(&forms, 0..per_form, |event| {
        if let Report::Mismatch(mismatch) = event
            && shown.len() < 200
            && forms_shown.insert(mismatch.code.clone())
        {
            shown.push(format!("{}: {}\n    {:?}", mismatch.repeat(), mismatch.instruction, mismatch.differences));
        }
    });
    let cases: u64 = tallies.values().map(|t| t.cases).sum();
    let mismatches: u64 = tallies.values().map(|t| t.mismatches).sum();
    assert!(cases > CASES / 2, "only {cases} cases could be made");
    assert_eq!(mismatches, 0, "of {cases} cases; the first:\n{}", shown.join("\n"));
}
