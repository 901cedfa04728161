use super::*;
use crate::charges::Tally;

/// A run that pays for instructions and IRETs, in cycles.
fn run(seed: Option<u64>, instructions: u64, irets: u64) -> Run {
    let cycles = |count, cycles| Tally { count, ticks: cycles * TICKS_PER_CYCLE };
    let part = |cause: &str, function: &str| (cause.to_owned(), function.to_owned());
    let paid = Paid {
        parts: [
            (part("instructions", "copy_page"), cycles(instructions, instructions)),
            (part("IRET", "asm_exc_page_fault"), cycles(irets, irets * 100)),
        ]
        .into(),
        functions: [
            ("copy_page".to_owned(), cycles(instructions, instructions)),
            ("asm_exc_page_fault".to_owned(), cycles(0, irets * 100)),
        ]
        .into(),
        meanwhile: [("[interrupts]".to_owned(), cycles(5_000, 9_000))].into(),
        elapsed: 2_100_000 * TICKS_PER_CYCLE,
    };
    let stacks = Folded {
        lines: vec!["sh;main;work 700".to_owned(), format!("sh;main {}", paid.total().count)],
        call_stacks: true,
    };
    Run { seed, paid, stacks, settled_after: 0.012 }
}

fn runs(title: &str, runs: Vec<Run>) -> Runs {
    Runs { title: title.to_owned(), tsc_hz: 2_100_000_000, runs }
}

fn diff(a: Vec<Run>, b: Vec<Run>, limit: Option<f64>) -> Diff {
    Diff::new("hackbench -l 10".to_owned(), &runs("cloud", a), &runs("cloud | <mitigations=off>", b), limit)
}

/// A diff of five layouts.
pub(crate) fn sample() -> Diff {
    diff(varied(1_000_000, 1_000), varied(1_000_000, 1_500), Some(0.01))
}

/// Five layouts, around a number of instructions.
fn varied(instructions: u64, irets: u64) -> Vec<Run> {
    [0, 700, 300, 1_000, 500].iter().zip(1..).map(|(more, seed)| run(Some(seed), instructions + more, irets)).collect()
}

#[test]
fn one_layout_is_said_to_be_one() {
    let diff = diff(vec![run(None, 1_000_000, 1_000)], vec![run(None, 1_001_000, 1_500)], Some(0.01));
    let expected = "B costs 4.6% more cycles than A (1.100 → 1.151 M): 4.5 points are IRET (500 more, most in asm_exc_page_fault).";
    assert_eq!(diff.sentence, expected);
    assert_eq!(
        diff.certainty,
        "Measured with one layout of code and data: the result may differ with other layouts (--vary N)."
    );
    assert_eq!((diff.verdict.answer, diff.verdict.interval, diff.verdict.exceeded), (Answer::More, None, true));
}

#[test]
fn the_direction_is_that_of_b() {
    let diff = diff(vec![run(Some(4), 1_001_000, 1_500)], vec![run(Some(4), 1_000_000, 1_000)], Some(0.01));
    let expected = "B costs 4.4% fewer cycles than A (1.151 → 1.100 M): 4.3 points are IRET (500 fewer, most in asm_exc_page_fault).";
    assert_eq!(diff.sentence, expected);
    assert_eq!(
        diff.certainty,
        "Measured with the layout of seed 4: the result may differ with other layouts (--vary N)."
    );
    assert!(!diff.verdict.exceeded);
}

#[test]
fn equal_runs_cost_the_same() {
    let one = || vec![run(None, 1_000_000, 1_000)];
    let diff = diff(one(), one(), Some(0.0));
    assert_eq!(diff.sentence, "B costs as many cycles as A (1.100 M).");
    assert_eq!((diff.verdict.answer, diff.verdict.exceeded), (Answer::Same, false));
    assert!(diff.causes.is_empty() && diff.functions.is_empty());
}

#[test]
fn a_difference_below_the_noise_is_none() {
    let diff = diff(varied(1_000_000, 1_000), varied(1_000_200, 1_000), Some(0.0));
    assert_eq!(diff.sentence, "No difference established: +0.02% (1.101 → 1.101 M cycles) is within the noise.");
    assert_eq!((diff.verdict.answer, diff.verdict.exceeded), (Answer::Noise, false));
}

#[test]
fn a_difference_beyond_the_noise_fails_when_all_of_it_is_beyond_the_limit() {
    let with = |limit| diff(varied(1_000_000, 1_000), varied(1_000_000, 1_110), Some(limit)).verdict;
    let verdict = with(0.009);
    let interval = verdict.interval.unwrap();
    assert!(verdict.answer == Answer::More && interval.low < 0.01 && interval.high > 0.01 && interval.low > 0.009);
    assert!(verdict.exceeded);
    // B costs 1% more, and the interval begins below that.
    assert!(!with(0.01).exceeded);
}

#[test]
fn a_price_is_told_apart_from_a_count() {
    let mut dearer = run(None, 1_000_000, 1_000);
    dearer.paid.functions.get_mut("asm_exc_page_fault").unwrap().ticks *= 2;
    dearer.paid.parts.iter_mut().filter(|((cause, _), _)| cause == "IRET").for_each(|(_, tally)| tally.ticks *= 2);
    let diff = diff(vec![run(None, 1_000_000, 1_000)], vec![dearer], None);
    assert!(diff.sentence.ends_with(": 9.1 points are IRET (as many at another price, most in asm_exc_page_fault)."));
}

#[test]
fn the_tables_read_well() {
    let diff = sample();
    insta::assert_snapshot!("text", sheets::text(&diff, 10));
    insta::assert_snapshot!("markdown", sheets::markdown(&diff, 10));
    insta::assert_snapshot!("junit", diff.junit().unwrap());
}

#[test]
fn the_page_shows_names_as_text() {
    let page = crate::report::diff_page(&diff(varied(1_000_000, 1_000), varied(1_000_000, 1_500), None)).unwrap();
    assert!(page.contains("cloud | &lt;mitigations=off&gt;") && page.contains(">B costs 4.5% more cycles"), "{page}");
}

#[test]
fn a_side_that_never_settled_is_named() {
    let mut restless = run(None, 1_000_000, 1_000);
    restless.settled_after = f64::INFINITY;
    let diff = diff(vec![restless], vec![run(None, 1_000_000, 1_000)], None);
    assert!(diff.notes[0].starts_with("A never settled"));
    assert_eq!(serde_json::to_value(&diff).unwrap()["a"]["runs"][0]["settled_after"], serde_json::Value::Null);
}
