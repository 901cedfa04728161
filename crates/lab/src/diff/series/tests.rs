use super::*;
use crate::diff::Answer;
use crate::diff::tests::{run, runs, terms, varied};

fn commit(name: &str, subject: &str) -> Commit {
    Commit { commit: format!("{name}{}", "0".repeat(33)), name: name.to_owned(), subject: subject.to_owned() }
}

fn measured(name: &str, irets: u64, same_as: Option<&str>) -> Outcome {
    let side = Runs { name: name.to_owned(), ..runs("a subject", "", varied(1_000_000, irets)) };
    Outcome::Measured(Box::new(side), same_as.map(str::to_owned))
}

fn broken(why: &str) -> Broken {
    Broken {
        why: why.to_owned(),
        log: vec!["fs/pipe.c:7: error: ‘x’ undeclared".to_owned(), "make: *** failed".to_owned()],
    }
}

/// Seven commits: the fourth costs more, and three have no figures of their own.
fn commits() -> Vec<(Commit, Outcome)> {
    vec![
        (commit("aaaaaaa", "Linux"), measured("aaaaaaa", 1_000, None)),
        (commit("bbbbbbb", "docs: a comma"), measured("bbbbbbb", 1_000, Some("aaaaaaa"))),
        (commit("ccccccc", "fs: a mistake"), Outcome::NotBuilt(broken("make ended with status 2"))),
        (commit("ddddddd", "pipe: <slower>"), measured("ddddddd", 1_500, None)),
        (commit("eeeeeee", "mm: panics"), Outcome::NotMeasured(broken("the kernel panicked"))),
        (commit("fffffff", "net: nothing"), measured("fffffff", 1_501, None)),
        (commit("1111111", "last"), Outcome::Untried),
    ]
}

fn about() -> About {
    About { command: "hackbench -l 10".to_owned(), range: "aaaaaaa..1111111".to_owned(), interrupted: false }
}

fn remarks() -> Remarks {
    let provenance = Provenance {
        version: "1.2.3".to_owned(),
        seeds: Some([1, 6]),
        again: "tollgate series --tree linux --range a..b -- hackbench -l 10".to_owned(),
        ..Provenance::default()
    };
    Remarks {
        warnings: vec!["a <warning>".to_owned()],
        notes: vec!["A note.".to_owned()],
        provenance,
        ..Remarks::default()
    }
}

pub(crate) fn sample() -> Series {
    Series::new(about(), commits(), None, &terms(None), remarks())
}

fn searched(found: Option<Found>, marks: Vec<Option<Mark>>) -> Series {
    let bisection = Bisection { above: 0.02, marks, found, kernels: 4 };
    Series::new(about(), commits(), Some(bisection), &terms(None), remarks())
}

#[test]
fn a_series_reads_well() {
    insta::assert_snapshot!("text", sample().text());
    insta::assert_snapshot!("markdown", sample().markdown());
    insta::assert_snapshot!("csv", sample().csv());
}

#[test]
fn each_commit_is_compared_with_the_measured_one_before_it_and_with_the_first() {
    let series = sample();
    let previous = |row: usize| series.rows[row].previous.as_ref().map(|diff| diff.a.name.as_str());
    assert_eq!((previous(0), previous(1), previous(2)), (None, Some("aaaaaaa"), None));
    assert_eq!((previous(3), previous(5)), (Some("bbbbbbb"), Some("ddddddd")), "what is broken is passed over");
    let first = series.rows[5].first.as_ref().unwrap();
    assert!(first.answer == Answer::More && first.relative > 0.04);
    assert_eq!(series.changes().map(|(row, _)| row.commit.name.as_str()).collect::<Vec<_>>()[0], "ddddddd");
    // Only layouts that both have are compared.
    let mut all = commits();
    let more = Runs {
        name: "ddddddd".to_owned(),
        ..runs("x", "", [varied(1_000_000, 1_500), vec![run(Some(7), 1_000_000, 1_500)]].concat())
    };
    all[3].1 = Outcome::Measured(Box::new(more), None);
    let series = Series::new(about(), all, None, &terms(None), remarks());
    assert_eq!(series.rows[3].previous.as_ref().unwrap().verdict.differences.len(), 6);
    assert_eq!(series.rows[3].side.as_ref().unwrap().runs.len(), 7);
}

#[test]
fn the_same_image_is_that_of_the_commit_before() {
    // A search measured the last commit first, then the one before it, whose kernel is the same.
    let found = vec![
        (commit("aaaaaaa", "Linux"), measured("aaaaaaa", 1_000, None)),
        (commit("bbbbbbb", "slower"), measured("bbbbbbb", 1_500, Some("ccccccc"))),
        (commit("ccccccc", "nothing"), measured("ccccccc", 1_500, None)),
        (commit("ddddddd", "back"), measured("ddddddd", 1_000, Some("aaaaaaa"))),
    ];
    let series = Series::new(about(), found, None, &terms(None), remarks());
    let words: Vec<_> = series.rows.iter().map(|row| (row.word(), row.same_as.as_deref())).collect();
    let expected = [("the first", None), ("more", None), ("same image", Some("bbbbbbb")), ("fewer", Some("aaaaaaa"))];
    assert_eq!(words, expected.map(|(word, same)| (word.to_owned(), same)));
    assert!(series.summary().ends_with("1 costs more, 1 costs less and 1 has the same image."), "{}", series.summary());
}

#[test]
fn a_search_says_what_it_found() {
    let marks = vec![Some(Mark::Below), None, Some(Mark::Skipped), Some(Mark::Above), None, None, Some(Mark::Above)];
    let one = searched(Some(Found::Commit(3)), marks.clone());
    let said =
        "ddddddd (pipe: <slower>) is the first commit that costs more than 2% above aaaaaaa: 4 kernels of 7 decided.";
    assert_eq!(one.search_in_words().unwrap(), said);
    assert!(one.text().contains(&format!("{said}\n")));
    assert_eq!(one.rows[3].first.as_ref().unwrap().held, Some(super::super::Held::Exceeded));
    let several = searched(Some(Found::OneOf(vec![2, 3])), marks.clone());
    let said = "The first commit that costs more than 2% above aaaaaaa is one of ccccccc and ddddddd: all but the last could not be decided.";
    assert_eq!(several.search_in_words().unwrap(), said);
    assert_eq!(several.found().len(), 2);
    let none = searched(None, vec![Some(Mark::Below), None, None, None, None, None, Some(Mark::Below)]);
    assert!(none.search_in_words().unwrap().starts_with("1111111 (last) does not cost more than 2% above aaaaaaa"));
    let open = searched(None, vec![Some(Mark::Below), None, None, None, None, None, Some(Mark::Skipped)]);
    assert!(open.search_in_words().unwrap().contains("is not decided at 2%"));
}

#[test]
fn an_interrupted_search_says_how_far_it_came() {
    let stopped = |outcomes: Vec<(Commit, Outcome)>, marks: Vec<Option<Mark>>| {
        let bisection = Bisection { above: 0.02, marks, found: None, kernels: 1 };
        let about = About { interrupted: true, ..about() };
        Series::new(about, outcomes, Some(bisection), &terms(None), Remarks::default())
    };
    let nothing: Vec<_> = commits().into_iter().map(|(commit, _)| (commit, Outcome::Untried)).collect();
    let text = stopped(nothing.clone(), vec![None; 7]).text();
    let said = "The search is not complete: it is not known yet if 1111111 costs more than 2% above aaaaaaa.\n";
    assert!(text.starts_with(said), "{text}");
    assert!(
        !text.contains("files of the host") && !text.contains("layouts") && !text.contains("median cycles"),
        "{text}"
    );
    let one = commits().into_iter().take(1).chain(nothing.into_iter().skip(1)).collect();
    let text = stopped(one, vec![None; 7]).text();
    assert!(text.contains("median cycles") && text.contains("layouts") && !text.contains('●'), "{text}");
    let mut marks = vec![Some(Mark::Below), None, Some(Mark::Skipped), None, None, None, Some(Mark::Above)];
    let words = |marks: &[Option<Mark>]| stopped(commits(), marks.to_vec()).search_in_words().unwrap();
    let open = "The search is not complete: the first commit that costs more than 2% above aaaaaaa is one of";
    assert_eq!(words(&marks), format!("{open} 6, from bbbbbbb to 1111111."));
    marks[1] = Some(Mark::Below);
    marks[3] = Some(Mark::Above);
    assert_eq!(words(&marks), format!("{open} 2, from ccccccc to ddddddd."));
    marks[2] = Some(Mark::Below);
    assert_eq!(words(&marks), "ddddddd is the first commit that costs more than 2% above aaaaaaa.");
}

#[test]
fn the_document_has_a_row_for_each_commit() {
    let document = serde_json::to_value(sample()).unwrap();
    let rows = document["commits"].as_array().unwrap();
    let status: Vec<&str> = rows.iter().map(|row| row["status"].as_str().unwrap()).collect();
    assert_eq!(status, ["measured", "measured", "not-built", "measured", "not-measured", "measured", "untried"]);
    assert_eq!((&rows[1]["same_as"], &rows[3]["previous"]["name"]), (&"aaaaaaa".into(), &"bbbbbbb".into()));
    assert_eq!(rows[3]["previous"]["verdict"]["answer"], "more");
    assert_eq!(rows[2]["broken"]["why"], "make ended with status 2");
    assert!(rows[3]["side"]["cycles"]["median"].as_f64().unwrap() > 1e6 && rows[0]["first"].is_null());
}

#[test]
fn the_page_shows_names_as_text() {
    let page = crate::report::series_page(&sample()).unwrap();
    assert!(page.contains("pipe: &lt;slower&gt;") && !page.contains("<slower>") && !page.contains("a <warning>"));
    assert!(page.contains("id=\"commit:ddddddd\"") && page.contains("href=\"#commit:ddddddd\""));
    assert_eq!(page.matches("<tr class=\"absent\">").count(), 3);
}

#[test]
fn a_series_without_figures_is_shown_too() {
    let commits = vec![(commit("aaaaaaa", "Linux"), Outcome::Untried), (commit("bbbbbbb", ""), Outcome::Untried)];
    let about = About { interrupted: true, ..about() };
    let series = Series::new(about, commits, None, &terms(None), Remarks::default());
    assert_eq!(series.summary(), "Interrupted. 2 commits, each against the measured one before it: 2 are not tried.");
    assert!(series.text().contains("bbbbbbb") && series.csv().lines().count() == 3);
    assert!(crate::report::series_page(&series).unwrap().contains("interrupted before all commits were tried"));
}

#[test]
fn one_layout_is_said() {
    let one = |instructions: u64| vec![run(Some(1), instructions, 1_000)];
    let commits = [("aaaaaaa", 1_000_000), ("bbbbbbb", 1_000_000), ("ccccccc", 1_100_000)].map(|(name, cost)| {
        let runs = Runs { name: name.to_owned(), ..runs("x", "", one(cost)) };
        (commit(name, ""), Outcome::Measured(Box::new(runs), None))
    });
    let bisection = Bisection {
        above: 0.02,
        marks: vec![Some(Mark::Below), Some(Mark::Below), Some(Mark::Above)],
        found: Some(Found::Commit(2)),
        kernels: 3,
    };
    let text = Series::new(about(), commits.to_vec(), Some(bisection), &terms(None), Remarks::default()).text();
    assert!(text.contains("The search has judged by one layout, without an interval"), "{text}");
    assert!(text.contains("What was compared in one layout has no interval"), "{text}");
    assert!(text.contains("equal in one layout") && text.contains("one layout, no interval"), "{text}");
    assert!(!sample().text().contains("one layout"), "{}", sample().text());
}
