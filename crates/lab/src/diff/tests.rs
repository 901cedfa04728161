use super::*;
use crate::charges::Tally;
use ledger::stays::Stays;
use ledger::{Class, Gate, Profile, Stay};
use origin::{File, Files};
use statistics::Plan;

/// Stays of an entry, all with this number of cycles.
fn stays(gate: Gate, plural: &str, count: u64, cycles: u64) -> entries::Named {
    let mut stays = Stays::default();
    for _ in 0..count {
        let ticks = cycles * TICKS_PER_CYCLE;
        stays.durations.add(ticks);
        stays.sum.add(Stay { ticks, enter: ticks / 10, mitigation: 0, leave: ticks / 5 });
    }
    entries::Named { gate, plural: plural.to_owned(), stays }
}

/// A run that pays for instructions and IRETs, in cycles.
pub(crate) fn run(seed: Option<u64>, instructions: u64, irets: u64) -> Run {
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
        priced: [
            (Priced::Class(Class::Alu), instructions * TICKS_PER_CYCLE),
            (Priced::Kind(ledger::Kind::new(ledger::Family::Iret, 0)), irets * 100 * TICKS_PER_CYCLE),
        ]
        .into(),
        meanwhile: [("[interrupts]".to_owned(), cycles(5_000, 9_000))].into(),
        entries: [("write".to_owned(), stays(Gate::Call, "calls of write", 10, 500 + irets))].into(),
        entries_meanwhile: [("NMI".to_owned(), stays(Gate::Nmi, "NMI", 3, 700))].into(),
        elapsed: 2_100_000 * TICKS_PER_CYCLE,
    };
    let stacks = Folded {
        lines: vec!["sh;main;work 700".to_owned(), format!("sh;main {}", paid.total().count)],
        call_stacks: true,
    };
    Run { seed, paid, stacks, settled_after: 0.012 }
}

pub(crate) fn runs(title: &str, words: &str, runs: Vec<Run>) -> Runs {
    let origin = Origin {
        processor: "a processor".to_owned(),
        profile: "skx".to_owned(),
        model: "flat".to_owned(),
        release: Some("6.1.0".to_owned()),
        image: format!("sha256 {} 7 bytes", "ab".repeat(32)),
        command_line: format!("quiet {words}"),
        state: [("mitigation of meltdown".to_owned(), if words.is_empty() { "PTI" } else { "Vulnerable" }.to_owned())]
            .into(),
        ..Origin::default()
    };
    let prices = Some(Known::of(&Profile::named("skx").unwrap().prices, &runs));
    Runs {
        name: title.to_owned(),
        title: title.to_owned(),
        command: "hackbench -l 10".to_owned(),
        parameters: Vec::new(),
        files: Files { list: Vec::new(), more: 3, tree: "ef".repeat(32) },
        tsc_hz: 2_100_000_000,
        clock: Clock::Flat,
        prices,
        origin,
        runs,
    }
}

pub(crate) fn terms(limit: Option<f64>) -> Terms {
    Terms { plan: Plan::Looks, margin: 0.01, limit }
}

fn diff(a: Vec<Run>, b: Vec<Run>, limit: Option<f64>) -> Diff {
    let file = File { path: "/usr/bin/hackbench".to_owned(), sha256: "cd".repeat(32), bytes: 7 };
    let seeds = a[0].seed.zip(a.last().and_then(|run| run.seed)).map(|(first, last)| [first, last]);
    let provenance = Provenance {
        version: "1.2.3".to_owned(),
        seeds,
        again: "tollgate diff --kernel cloud --b mitigations=off -- hackbench -l 10".to_owned(),
        files: vec![file],
        more_files: 0,
        tree: "ef".repeat(32),
    };
    let warnings = vec!["A: a warning about <this>".to_owned()];
    let remarks = Remarks { warnings, notes: vec!["A note.".to_owned()], provenance, ..Remarks::default() };
    let b = Runs { name: "B".to_owned(), ..runs("cloud | <mitigations=off>", "mitigations=off", b) };
    let a = Runs { name: "A".to_owned(), ..runs("cloud", "", a) };
    // A layout that was not drawn is that of --layouts 1.
    let plan = if seeds.is_none() { Plan::Fixed } else { Plan::Looks };
    Diff::new("hackbench -l 10".to_owned(), &a, &b, &Terms { plan, ..terms(limit) }, remarks)
}

/// A diff of six layouts.
pub(crate) fn sample() -> Diff {
    diff(varied(1_000_000, 1_000), varied(1_000_000, 1_500), Some(0.01))
}

/// Six layouts, around a number of instructions.
pub(crate) fn varied(instructions: u64, irets: u64) -> Vec<Run> {
    let more = [0, 700, 300, 1_000, 500, 900];
    more.iter().zip(1..).map(|(more, seed)| run(Some(seed), instructions + more, irets)).collect()
}

/// The same layouts with other numbers of instructions.
fn moved(instructions: [u64; 6], irets: u64) -> Vec<Run> {
    instructions.into_iter().zip(1..).map(|(instructions, seed)| run(Some(seed), instructions, irets)).collect()
}

#[test]
fn one_layout_is_said_to_be_one() {
    let diff = diff(vec![run(None, 1_000_000, 1_000)], vec![run(None, 1_001_000, 1_500)], Some(0.01));
    let expected = "In one layout, B costs 4.6% more cycles than A (1.100 → 1.151 M): 4.5 points are IRET (500 more, most in asm_exc_page_fault).";
    assert_eq!(diff.sentence, expected);
    assert_eq!(
        diff.certainty,
        "One layout; no interval. Code and data at other places may give another answer (measure without --layouts 1)."
    );
    assert_eq!(
        diff.decision.as_deref(),
        Some("Fails: one layout without an interval has +4.6%, and --fail-above allows 1%.")
    );
    assert_eq!((diff.verdict.answer, diff.verdict.interval, diff.verdict.exceeded()), (Answer::OneLayout, None, true));
}

/// One pair of the several that were asked for: no form of the answer says more than that.
#[test]
fn an_interrupted_measurement_says_what_is_complete_in_every_form() {
    let one = |irets| vec![run(Some(1), 1_000_000, irets)];
    let side = |name: &str, irets| Runs { name: name.to_owned(), ..runs("cloud", "", one(irets)) };
    let (a, b) = (side("A", 1_000), side("B", 1_500));
    let interrupted = Interrupted { layouts: 1, most: 2, earlier: false };
    let remarks = Remarks { interrupted: Some(interrupted), ..Remarks::default() };
    let fixed = Terms { plan: Plan::Fixed, ..terms(Some(0.01)) };
    let two = Diff::new("true".to_owned(), &a, &b, &fixed, remarks.clone());
    let several = Several::new("true".to_owned(), &[a, b], 0, &fixed, remarks).unwrap();
    assert!(!two.verdict.exceeded() && !several.exceeded());
    let texts = [sheets::text(&two, 10), sheets::markdown(&two, 10), several::text(&several, 10)];
    for text in texts.into_iter().chain([several::markdown(&several, 10)]) {
        for part in ["In one layout, B costs 4.", "One layout, that of seed 1; no interval. ", "ndecided: one layout"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("| more |") && !text.contains(" more\n"), "{text}");
    }
    assert!(several::text(&several, 10).contains("one layout, no interval"));
    for page in [crate::report::diff_page(&two).unwrap(), crate::report::several_page(&several).unwrap()] {
        assert!(page.contains("in one layout; no interval") && !page.contains(">more cycles<"), "{page}");
    }
    for rows in [csv::two(&two, csv::Rows::Sides), csv::several(&several, csv::Rows::Sides)] {
        assert!(rows.ends_with(",,,,one-layout,interruption\n"), "{rows}");
    }
    for junit in [two.junit().unwrap(), several.junit().unwrap()] {
        assert!(junit.contains("failures=\"0\" errors=\"1\"") && junit.contains(">In one layout, B costs"), "{junit}");
    }
    let answers = [
        serde_json::to_value(&two.verdict),
        serde_json::to_value(&several.columns[1].against.as_ref().unwrap().verdict),
    ];
    for answer in answers.map(Result::unwrap) {
        assert_eq!((&answer["answer"], &answer["held"]), (&"one-layout".into(), &"undecided".into()));
    }
}

/// Fewer pairs than the plan wanted, since a time limit has ended the measurement: every form says that.
#[test]
fn a_measurement_that_a_time_limit_ended_says_so_in_every_form() {
    let costs =
        |irets: u64, count: u64| (1..=count).map(|seed| run(Some(seed), 1_000_000, irets + 200 * (seed % 2))).collect();
    let side = |name: &str, irets, count| Runs { name: name.to_owned(), ..runs("cloud", "", costs(irets, count)) };
    let text = |layouts: usize| {
        format!("The time limit of 2.5 s ended the measurement after {layouts} of at most 28 layouts.")
    };
    let sentences = [
        (1, "In one layout, all that the time limit allowed, B costs "),
        (3, "3 pairs of runs, all that the time limit allowed, are too few to decide if A and B differ: "),
        (8, "It is not decided within the time limit if A and B differ: "),
    ];
    for (count, sentence) in sentences {
        let mut b = side("B", 1_100, count);
        b.runs.iter_mut().step_by(2).for_each(|one| *one = run(one.seed, 800_000, 1_000));
        let a = side("A", 1_000, count);
        let layouts = usize::try_from(count).unwrap();
        let limit = TimeLimit { seconds: 2.5, layouts, most: 28, earlier: true };
        let remarks = Remarks { time_limit: Some(limit), warnings: vec![limit.to_string()], ..Remarks::default() };
        assert_eq!(limit.to_string(), text(layouts));
        let two = Diff::new("true".to_owned(), &a, &b, &terms(None), remarks.clone());
        assert!(two.sentence.starts_with(sentence), "{}", two.sentence);
        let several = Several::new("true".to_owned(), &[a, b], 0, &terms(None), remarks).unwrap();
        let pages = [crate::report::diff_page(&two).unwrap(), crate::report::several_page(&several).unwrap()];
        let texts = [sheets::text(&two, 10), several::text(&several, 10), sheets::markdown(&two, 10)];
        let texts =
            texts.into_iter().chain([several::markdown(&several, 10), two.junit().unwrap(), several.junit().unwrap()]);
        for form in texts.chain(pages) {
            assert!(form.replace('\u{a0}', " ").contains(&text(layouts)), "{form}");
        }
        for rows in [csv::two(&two, csv::Rows::Sides), csv::several(&several, csv::Rows::Sides)] {
            assert!(rows.lines().next().unwrap().ends_with(",ended_by") && rows.ends_with(",time-limit\n"), "{rows}");
        }
        for value in [serde_json::to_value(&two).unwrap(), serde_json::to_value(&several).unwrap()] {
            let expected = serde_json::json!({ "seconds": 2.5, "layouts": layouts, "most": 28, "earlier": true });
            assert_eq!(value["time_limit"], expected);
        }
    }
}

#[test]
fn the_direction_is_that_of_b() {
    let diff = diff(vec![run(Some(4), 1_001_000, 1_500)], vec![run(Some(4), 1_000_000, 1_000)], Some(0.01));
    let expected = "In one layout, B costs 4.4% fewer cycles than A (1.151 → 1.100 M): 4.3 points are IRET (500 fewer, most in asm_exc_page_fault).";
    assert_eq!(diff.sentence, expected);
    assert!(diff.certainty.starts_with("One layout, that of seed 4; no interval. "), "{}", diff.certainty);
    assert!(!diff.verdict.exceeded());
}

#[test]
fn equal_runs_cost_the_same() {
    let one = diff(vec![run(None, 1_000_000, 1_000)], vec![run(None, 1_000_000, 1_000)], Some(0.0));
    assert_eq!(one.sentence, "In one layout, B costs as many cycles as A (1.100 M).");
    assert_eq!((one.verdict.answer, one.verdict.exceeded()), (Answer::Same, false));
    assert!(one.causes.is_empty() && one.functions.is_empty() && one.rests.is_none());
    let several = diff(varied(1_000_000, 1_000), varied(1_000_000, 1_000), None);
    assert_eq!(several.verdict.answer, Answer::Same);
    assert!(several.certainty.contains("6 pairs of runs") && several.certainty.contains("equal to the cycle"));
}

#[test]
fn a_difference_below_the_margin_is_bounded() {
    let b = moved([1_000_200, 1_000_300, 1_000_600, 1_000_300, 1_000_600, 1_000_800], 1_000);
    let diff = diff(varied(1_000_000, 1_000), b, Some(0.001));
    assert_eq!(diff.sentence, "A and B differ by less than 0.07% (-0.06% to +0.03%; medians 1.1006 → 1.1004 M).");
    assert_eq!((diff.verdict.answer, diff.verdict.exceeded()), (Answer::Within, false));
    assert_eq!(diff.decision.as_deref(), Some("Passes: --fail-above allows 0.1%, and the interval ends at +0.03%."));
}

#[test]
fn what_is_not_decided_says_how_many_layouts_would_do() {
    let b = moved([900_000, 1_300_000, 950_000, 1_250_000, 1_000_000, 1_200_000], 1_000);
    let open = diff(varied(1_000_000, 1_000), b, Some(0.01));
    assert_eq!(open.verdict.answer, Answer::Undecided);
    let count = open.verdict.sufficient.unwrap();
    assert!((7..100).contains(&count), "{count}");
    assert!(
        open.sentence
            .starts_with("It is not decided if A and B differ: the difference is between -9% and +27% (medians "),
        "{}",
        open.sentence
    );
    let advice = format!("; {count} layouts would probably decide (measure again with --layouts {count}).");
    assert!(open.sentence.ends_with(&advice), "{}", open.sentence);
    let decision = open.decision.unwrap();
    assert!(decision.starts_with("Passes, but undecided: --fail-above allows 1%, "), "{decision}");
    // Fewer than six pairs decide nothing, and say why.
    let few = diff(varied(1_000_000, 1_000)[..3].to_vec(), varied(1_000_000, 1_500)[..3].to_vec(), None);
    assert_eq!(few.verdict.answer, Answer::Undecided);
    let found = &few.sentence;
    assert!(
        found.starts_with("3 pairs of runs are too few to decide if A and B differ: the difference in them is "),
        "{found}"
    );
    assert!(
        few.certainty.contains("its interval has 75% confidence; ")
            && few.certainty.ends_with("Six pairs are the fewest that can decide.")
    );
}

#[test]
fn settings_without_an_effect_are_no_reason_for_more_layouts() {
    let b = || moved([900_000, 1_300_000, 950_000, 1_250_000, 1_000_000, 1_200_000], 1_000);
    let shown = |pairs: usize, idle: &[&str]| {
        let side =
            |name: &str, all: Vec<Run>| Runs { name: name.to_owned(), ..runs("cloud", "", all[..pairs].to_vec()) };
        let (a, b) = (side("A", varied(1_000_000, 1_000)), side("B", b()));
        let remarks = Remarks { idle: idle.iter().map(|name| (*name).to_owned()).collect(), ..Remarks::default() };
        sheets::text(&Diff::new("true".to_owned(), &a, &b, &terms(Some(0.01)), remarks), 10)
    };
    for pairs in [1, 3, 6] {
        let advice = |text: &str| ["would probably", "--layouts", "can decide"].iter().any(|word| text.contains(word));
        assert!(advice(&shown(pairs, &[])) && !advice(&shown(pairs, &["B"])), "{}", shown(pairs, &["B"]));
    }
    let layouts = "A and B have the same settings: a difference of ";
    assert!(shown(1, &["B"]).contains(layouts) && !shown(1, &[]).contains(layouts), "{}", shown(1, &["B"]));
    // Layouts can differ in all pairs alike.
    let all = Runs { name: "B".to_owned(), ..runs("cloud", "", varied(1_000_000, 1_500)) };
    let remarks = Remarks { idle: vec!["B".to_owned()], ..Remarks::default() };
    let diff = Diff::new("true".to_owned(), &runs("cloud", "", varied(1_000_000, 1_000)), &all, &terms(None), remarks);
    assert!(
        diff.verdict.answer == Answer::More && diff.sentence.contains("have the same settings"),
        "{}",
        diff.sentence
    );
    assert!(shown(1, &[]).contains("another answer (six layouts are the fewest that can decide)."));
}

#[test]
fn a_difference_fails_when_all_of_the_interval_is_beyond_the_limit() {
    let b = moved([1_000_000, 1_000_900, 1_000_100, 1_001_000, 1_000_300, 1_000_900], 1_110);
    let with = |limit| diff(varied(1_000_000, 1_000), b.clone(), Some(limit));
    let found = with(0.009);
    let interval = found.verdict.interval.unwrap();
    assert!(
        found.verdict.answer == Answer::More && interval.low < 0.01 && interval.high > 0.01 && interval.low > 0.009
    );
    assert!(found.verdict.exceeded());
    let why = found.decision.unwrap();
    assert!(why.starts_with("Fails: --fail-above allows 0.9%, and the interval begins above that, at +0.98"), "{why}");
    // The estimate is above the limit, and the interval begins below it.
    let open = with(0.0099).verdict;
    assert!(open.relative > 0.0099 && !open.exceeded() && open.held == Some(Held::Undecided));
}

#[test]
fn a_price_is_told_apart_from_a_count() {
    let mut dearer = run(None, 1_000_000, 1_000);
    dearer.paid.functions.get_mut("asm_exc_page_fault").unwrap().ticks *= 2;
    dearer.paid.parts.iter_mut().filter(|((cause, _), _)| cause == "IRET").for_each(|(_, tally)| tally.ticks *= 2);
    let diff = diff(vec![run(None, 1_000_000, 1_000)], vec![dearer], None);
    assert!(diff.sentence.ends_with(": 9.1 points are IRET (as many at another price, most in asm_exc_page_fault)."));
}

/// Returns a run whose instructions differ by `more` because of page faults: their number, and the cycles of each.
fn faulting(more: u64, faults: u64, cycles: u64) -> Run {
    let mut run = run(None, 1_000_000 + more, 1_000);
    let fault = stays(Gate::Exception, "page faults", faults, cycles);
    run.paid.entries.insert("exception #PF".to_owned(), fault);
    run
}

#[test]
fn an_entry_explains_a_difference_that_instructions_do_not() {
    let reason = |a: Run, b: Run| diff(vec![a], vec![b], None).sentence.split_once(": ").unwrap().1.to_owned();
    let more = reason(faulting(0, 100, 2_104), faulting(104_500, 150, 2_104));
    assert_eq!(more, "9.6 points are 50 more page faults, 2,100 cycles each, most in copy_page.");
    let fewer = reason(faulting(104_500, 150, 2_104), faulting(0, 100, 2_104));
    assert_eq!(fewer, "8.7 points are 50 fewer page faults, 2,100 cycles each, most in copy_page.");
    let dearer = reason(faulting(0, 100, 2_000), faulting(50_000, 100, 2_480));
    assert_eq!(dearer, "4.4 points are 100 page faults of 480 more cycles each, most in copy_page.");
    // Page faults are a small part of this difference.
    let other = reason(faulting(0, 100, 2_000), faulting(50_000, 102, 2_000));
    assert_eq!(other, "4.5 points are instructions (50,000 more, most in copy_page).");
    // More entries, each of which costs less, are no explanation by price.
    let cheaper = reason(faulting(0, 100, 2_000), faulting(100_000, 200, 1_500));
    assert_eq!(cheaper, "9.1 points are 100 more page faults, 1,500 cycles each, most in copy_page.");
}

#[test]
fn system_calls_explain_together_what_no_call_explains_alone() {
    let calling = |more: u64, count: u64| {
        let mut run = run(None, 1_000_000 + more, 1_000);
        for (name, cycles) in [("getpid", 400), ("gettid", 500), ("tgkill", 600)] {
            let calls = stays(Gate::Call, &format!("calls of {name}"), count, cycles);
            run.paid.entries.insert(name.to_owned(), calls);
        }
        run
    };
    let reason = |a: Run, b: Run| diff(vec![a], vec![b], None).sentence.split_once(": ").unwrap().1.to_owned();
    let more = reason(calling(0, 100), calling(150_000, 200));
    assert_eq!(more, "14 points are 300 more system calls, 500 cycles each, above all tgkill.");
    let fewer = reason(calling(150_000, 200), calling(0, 100));
    assert_eq!(fewer, "12 points are 300 fewer system calls, 500 cycles each, above all tgkill.");
    let other = reason(calling(0, 100), calling(400_000, 200));
    assert_eq!(other, "36 points are instructions (400,000 more, most in copy_page).");
}

#[test]
fn a_cause_that_says_its_reason_is_named_before_the_entries_that_it_is_in() {
    let with = |irets, cycles| {
        let mut run = faulting(0, 100, cycles);
        run.paid.parts.insert(("WRMSR".to_owned(), "entry".to_owned()), Tally { count: irets, ticks: irets * 500_000 });
        run
    };
    let diff = diff(vec![with(0, 2_000)], vec![with(200, 3_000)], None);
    let reasons =
        sentence::reason(&diff.verdict, Tally { count: 1, ticks: 1 }, &diff.causes, &diff.entries, |_| Vec::new());
    assert_eq!(reasons, None, "nothing differs in the sum of functions");
    let verdict = |pairs: &[(f64, f64)]| Verdict::new(pairs, &terms(None));
    let ticks = Tally { count: 0, ticks: 1_000_000_000 };
    let reason = sentence::reason(&verdict(&[(1.0, 1.1)]), ticks, &diff.causes, &diff.entries, |_| Vec::new());
    assert_eq!(reason.as_deref(), Some("10 points are WRMSR (200 more)"));
    // One point is a singular.
    let ticks = Tally { count: 0, ticks: 10_000_000_000 };
    let wide = verdict(&[1.002, 1.001, 1.025, 1.013, 1.026, 1.014].map(|b| (1.0, b)));
    let reason = sentence::reason(&wide, ticks, &diff.causes, &diff.entries, |_| Vec::new());
    assert_eq!(reason.as_deref(), Some("1 point is WRMSR (200 more)"));
}

#[test]
fn causes_of_a_few_costly_layouts_are_said_to_be_those_of_the_means() {
    let a = vec![run(None, 1_000_000, 1_000); 6];
    let mut b = vec![run(None, 1_100_000, 1_000); 6];
    b[3] = run(None, 7_000_000, 1_000);
    let sentence = diff(a, b, None).sentence;
    assert!(
        sentence.contains(": in the means, which differ by +98%, 98 points are instructions (1,083,333 more"),
        "{sentence}"
    );
}

#[test]
fn a_difference_rests_on_its_prices_and_on_the_model() {
    let rests = sample().rests.unwrap();
    assert!((rests.measured + rests.estimated + rests.modelled - 1.0).abs() < 1e-9);
    assert_eq!((rests.instructions, rests.modelled), (0.0, 0.0), "only IRETs differ");
    assert_eq!(rests.measured, 1.0, "the price of IRET is measured on skx");
    let more = diff(vec![run(None, 1_000_000, 1_000)], vec![run(None, 1_050_000, 1_500)], None).rests.unwrap();
    assert_eq!(more.instructions, 0.5);
    assert!(more.sentence.contains("50% are time of instructions; the model flat has no caches"), "{}", more.sentence);
    let mut a = runs("a", "", vec![run(None, 1_000_000, 1_000)]);
    let mut b = runs("b", "", vec![run(None, 1_050_000, 1_500)]);
    (a.clock, b.clock) = (Clock::Core, Clock::Core);
    let core = Rests::new(&a, &b).unwrap();
    assert_eq!((core.modelled, core.measured), (0.5, 0.5));
    assert!(core.sentence.ends_with("equally distant."));
    // The time until the direction is known has no price.
    let missed = Priced::Kind(ledger::Kind::new(ledger::Family::BranchMiss, 0));
    b.runs[0].paid.priced.insert(missed, 100_000 * TICKS_PER_CYCLE);
    let core = Rests::new(&a, &b).unwrap();
    assert_eq!((core.modelled, core.measured, core.instructions), (0.75, 0.25, 0.25));
    b.prices = None;
    assert_eq!(Rests::new(&a, &b), None);
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
    assert!(page.contains("cloud | &lt;mitigations=off&gt;") && page.contains(">B costs 4.543% more cycles"), "{page}");
    assert!(page.contains("A: a warning about &lt;this&gt;") && page.contains("mitigation of meltdown"));
    for part in [
        "+4.543%",
        "a processor (profile skx)",
        "hackbench</dt>",
        "tollgate diff <span class=\"whole\">--kernel</span> cloud",
    ] {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn a_side_that_never_settled_is_named() {
    let mut restless = run(None, 1_000_000, 1_000);
    restless.settled_after = f64::INFINITY;
    let diff = diff(vec![restless], vec![run(None, 1_000_000, 1_000)], None);
    assert!(diff.notes[1].starts_with("A: the system never became idle before the command"));
    assert_eq!(serde_json::to_value(&diff).unwrap()["a"]["runs"][0]["settled_after"], serde_json::Value::Null);
}

#[test]
fn a_model_of_a_core_has_both_sides_top_down() {
    let core = |runs_of: Vec<Run>, name: &str| Runs { clock: Clock::Core, ..runs(name, "", runs_of) };
    let (a, b) = (core(varied(1_000_000, 1_000), "a"), core(varied(1_000_000, 1_500), "b"));
    let diff = Diff::new(String::new(), &a, &b, &terms(None), Remarks::default());
    let parts: Vec<(&str, u64, u64)> =
        diff.top_down.iter().map(|part| (&*part.name, part.before.ticks, part.after.ticks)).collect();
    // Skylake issues four instructions a cycle; the mean layout has 567 more than the first.
    let (retiring, core) = (1_000_566 * TICKS_PER_CYCLE / 4, 100_000 * TICKS_PER_CYCLE);
    assert_eq!(parts[0], ("retiring", retiring, retiring));
    assert_eq!(parts.last(), Some(&("crossings", core, core * 3 / 2)));
    let sum = |of: fn(&(&str, u64, u64)) -> u64| parts.iter().map(of).sum::<u64>();
    let cycles = |side: &Side| (side.cycles.mean * TICKS_PER_CYCLE as f64) as u64;
    assert!(
        sum(|part| part.1).abs_diff(cycles(&diff.a)) < TICKS_PER_CYCLE
            && sum(|part| part.2).abs_diff(cycles(&diff.b)) < TICKS_PER_CYCLE
    );
    assert!(sheets::text(&diff, 3).contains("What the command paid, top-down"));
    let flat = Diff::new(String::new(), &a, &runs("b", "", varied(1, 1)), &terms(None), Remarks::default());
    assert!(flat.top_down.is_empty());
}
