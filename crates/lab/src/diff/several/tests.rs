use super::*;
use crate::diff::junit::Unmeasured;
use crate::diff::tests::{run, runs, terms, varied};
use crate::diff::{Held, Provenance};

fn side(name: &str, words: &str, runs_of: Vec<Run>) -> Runs {
    Runs {
        name: name.to_owned(),
        title: format!("cloud {words}").trim_end().to_owned(),
        ..runs("cloud", words, runs_of)
    }
}

fn remarks() -> Remarks {
    let provenance = Provenance {
        version: "1.2.3".to_owned(),
        seeds: Some([1, 6]),
        again: "tollgate diff --side base --side off=mitigations=off -- hackbench -l 10".to_owned(),
        ..Provenance::default()
    };
    Remarks {
        warnings: vec!["off: a <warning>".to_owned()],
        notes: vec!["A note.".to_owned()],
        provenance,
        ..Remarks::default()
    }
}

/// Three sides: one costs more than the reference, and one the same.
pub(crate) fn sample() -> Several {
    let sides = [
        side("base", "", varied(1_000_000, 1_000)),
        side("off", "mitigations=off", varied(1_000_000, 1_500)),
        side("again", "", varied(1_000_000, 1_000)),
    ];
    Several::new("hackbench -l 10".to_owned(), &sides, 0, &terms(Some(0.01)), remarks()).unwrap()
}

#[test]
fn several_sides_read_well() {
    let several = sample();
    insta::assert_snapshot!("text", text(&several, 10));
    insta::assert_snapshot!("markdown", markdown(&several, 10));
    let junit = several.junit().unwrap();
    assert!(junit.contains("<testsuites tests=\"2\" failures=\"1\" errors=\"0\">"), "{junit}");
    assert_eq!(junit.matches("<testcase ").count(), 2);
    assert!(several.exceeded());
}

#[test]
fn the_name_of_a_side_is_no_mark_of_any_form() {
    let name = "a|b*<b>&\"_c_`,\n[x](y)";
    let sides = [side("base", "", varied(1_000_000, 1_000)), side(name, "x=`y`", varied(1_000_000, 1_500))];
    let several = Several::new("a `b`".to_owned(), &sides, 0, &terms(None), Remarks::default()).unwrap();
    let markdown = markdown(&several, 10);
    let shown = "a|b\\*&lt;b>&\"\\_c\\_\\`, \\[x\\](y)";
    assert!(markdown.contains(&format!("\n- {shown}: `` cloud x=`y` ``\n")), "{markdown}");
    assert!(markdown.contains("\n- command: `` a `b` ``\n"), "{markdown}");
    let heading = markdown.lines().find(|line| line.starts_with("| ") && line.contains("base")).unwrap();
    assert_eq!(heading.replace("\\|", "").matches('|').count(), 4, "{heading}");
    let junit = several.junit().unwrap();
    assert!(junit.contains("a|b*&lt;b&gt;&amp;&quot;_c_`") && !junit.contains("<b>"), "{junit}");
    let page = crate::report::several_page(&several).unwrap();
    assert!(page.contains("a|b*&lt;b&gt;&amp;") && !page.contains("a|b*<b>"), "{page}");
    let csv = crate::diff::csv::several(&several, crate::diff::csv::Rows::Sides);
    assert!(csv.contains("\n\"a|b*<b>&\"\"_c_`,\n[x](y)\","), "{csv}");
}

#[test]
fn a_name_in_a_sentence_is_no_code_and_refers_to_nobody() {
    let names = ["`base`", "@root &copy; #12"];
    let sides = [0, 1].map(|at| side(names[at], "", varied(1_000_000, 1_000 + 500 * at as u64)));
    let text = "`base`: `mds=ful` is no value".to_owned();
    let remarks = Remarks { warnings: vec![text], ..Remarks::default() };
    let several = Several::new("true".to_owned(), &sides, 0, &terms(None), remarks).unwrap();
    let markdown = markdown(&several, 10);
    let [base, root] = ["\\`base\\`", "@<!-- -->root &amp;copy; #<!-- -->12"];
    assert!(markdown.starts_with(&format!("> {base}: `mds=ful` is no value\n")), "{markdown}");
    assert!(
        markdown.contains(&format!("\n- **{root} costs ")) && markdown.contains(&format!("than {base} (")),
        "{markdown}"
    );
    assert!(markdown.contains(&format!("|  | {base} | {root} |\n")), "{markdown}");
    assert!(!markdown.contains("@root") && !markdown.contains("#12"), "{markdown}");
}

#[test]
fn an_interrupted_measurement_is_no_passed_test() {
    let sides = ["base", "off"].map(|name| side(name, "", varied(1_000_000, 1_000)));
    let interrupted = Interrupted { layouts: 1, most: 28, earlier: true };
    let remarks = Remarks { interrupted: Some(interrupted), warnings: vec!["A warning.".to_owned()], ..remarks() };
    let several = Several::new("true".to_owned(), &sides, 0, &terms(None), remarks.clone()).unwrap();
    let junit = several.junit().unwrap();
    let text = "The measurement was interrupted after 1 of at most 28 layouts.";
    assert_eq!(interrupted.to_string(), text);
    assert!(junit.contains("failures=\"0\" errors=\"1\">"), "{junit}");
    assert!(junit.contains(&format!("<error type=\"interrupted\" message=\"{text}\">")), "{junit}");
    assert!(junit.contains("<system-out>A warning.\n"), "{junit}");
    let [a, b] = &sides;
    let two = Diff::new("true".to_owned(), a, b, &terms(None), remarks);
    assert!(two.junit().unwrap().contains("<error type=\"interrupted\""));
    for value in [serde_json::to_value(&several).unwrap(), serde_json::to_value(&two).unwrap()] {
        assert_eq!(value["interrupted"], serde_json::json!({ "layouts": 1, "most": 28, "earlier": true }));
    }
    // Without a complete layout each comparison that was asked for is an error, under the name that it has with a result.
    let unmeasured = |interrupted| {
        let sides = sides.clone().map(|side| Runs { runs: Vec::new(), ..side });
        let (text, output) = ("why & how", ["a line".to_owned()]);
        Unmeasured { sides: &sides, reference: 0, interrupted, text, output: &output }.document().unwrap()
    };
    let name = |document: &str| {
        document.lines().find(|line| line.contains("<testcase")).unwrap().split("time=").next().map(str::to_owned)
    };
    for (interrupted, kind) in [(true, "interrupted"), (false, "failed")] {
        let document = unmeasured(interrupted);
        assert!(document.contains("tests=\"1\" failures=\"0\" errors=\"1\">"), "{document}");
        assert!(document.contains(&format!("<error type=\"{kind}\" message=\"why &amp; how\"></error>")), "{document}");
        assert!(document.contains("<system-out>a line</system-out>"), "{document}");
        assert_eq!(name(&document), name(&junit));
    }
    // A limit that is exceeded is so without the layouts that are missing.
    let costly = [side("base", "", varied(1_000_000, 1_000)), side("off", "", varied(1_000_000, 1_500))];
    let remarks = Remarks { interrupted: Some(interrupted), ..Remarks::default() };
    let several = Several::new("true".to_owned(), &costly, 0, &terms(Some(0.01)), remarks).unwrap();
    assert!(several.junit().unwrap().contains("failures=\"1\" errors=\"0\">"));
}

#[test]
fn each_side_is_compared_as_two_sides_are() {
    let several = sample();
    let (a, b) = (side("base", "", varied(1_000_000, 1_000)), side("off", "mitigations=off", varied(1_000_000, 1_500)));
    let two = Diff::new("hackbench -l 10".to_owned(), &a, &b, &terms(Some(0.01)), Remarks::default());
    let found = several.columns[1].against.as_ref().unwrap();
    assert_eq!((&found.verdict, &found.sentence, &found.causes), (&two.verdict, &two.sentence, &two.causes));
    assert_eq!(found.verdict.held, Some(Held::Exceeded));
    assert_eq!(several.columns[2].against.as_ref().unwrap().verdict.answer, Answer::Same);
    // The reference may be another side, and then the direction is the other one.
    let sides = [a, b];
    let other = Several::new(String::new(), &sides, 1, &terms(None), Remarks::default()).unwrap();
    assert_eq!(other.columns[0].against.as_ref().unwrap().verdict.answer, Answer::Less);
    assert!(other.columns[1].against.is_none() && other.base().name == "off");
}

#[test]
fn only_layouts_that_both_have_are_compared() {
    let more: Vec<Run> = (0..9).map(|seed| run(Some(seed), 1_000_000 + seed * 100, 1_000)).collect();
    let sides = [side("base", "", more), side("off", "", varied(1_000_000, 1_500))];
    let several = Several::new(String::new(), &sides, 0, &terms(None), remarks()).unwrap();
    assert_eq!((several.columns[0].side.runs.len(), several.columns[1].against.as_ref().unwrap().a.runs.len()), (9, 6));
    let apart = [side("base", "", vec![run(None, 1, 1)]), side("off", "", varied(1_000_000, 1_500))];
    let error = Several::new(String::new(), &apart, 0, &terms(None), remarks()).unwrap_err();
    assert_eq!(error.to_string(), "off and base have no layout in common: they can't be compared");
}

#[test]
fn sides_with_unequal_numbers_of_layouts_say_so() {
    let more: Vec<Run> = (1..=9).map(|seed| run(Some(seed), 1_000_000 + seed * 100, 1_000)).collect();
    let few = varied(1_000_000, 1_500)[..2].to_vec();
    let sides = [side("base", "", more), side("off", "x", varied(1_000_000, 1_500)), side("few", "y", few)];
    let several = Several::new(String::new(), &sides, 0, &terms(None), Remarks::default()).unwrap();
    let text = text(&several, 10);
    let row = |name: &str| -> Vec<&str> {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"));
        line[name.len()..].split_whitespace().collect()
    };
    assert_eq!((row("  confidence"), row("  of them compared")), (vec!["95%", "50%"], vec!["6", "2"]));
    assert_eq!(row("layouts")[..4], ["seeds", "1", "to", "9"]);
    assert!(row("layouts").ends_with(&["seeds", "1", "to", "6", "seeds", "1", "to", "2"]), "{text}");
    assert!(text.contains("\nThe intervals have unequal confidence, "), "{text}");
    let page = crate::report::several_page(&several).unwrap();
    assert!(page.contains("compared with the reference, in intervals of unequal confidence."));
    let alike = super::text(&sample(), 10);
    assert!(
        !alike.contains("  confidence") && !alike.contains("of them compared") && !alike.contains("unequal"),
        "{alike}"
    );
}

#[test]
fn what_is_not_decided_is_said_of_a_side() {
    let sides = [
        side("base", "", varied(1_000_000, 1_000)[..3].to_vec()),
        side("off", "", varied(1_000_000, 1_500)[..3].to_vec()),
    ];
    let several = Several::new(String::new(), &sides, 0, &terms(None), remarks()).unwrap();
    let sentence = several.sentences().next().unwrap();
    assert!(sentence.starts_with("3 pairs of runs are too few to decide if base and off differ: "), "{sentence}");
}

#[test]
fn a_table_of_a_terminal_has_few_columns_and_the_reference_first() {
    let sides: Vec<Runs> = (0..9).map(|n| side(&format!("s{n}"), "", varied(1_000_000, 1_000 + n))).collect();
    let several = Several::new("x".to_owned(), &sides, 2, &terms(None), remarks()).unwrap();
    let text = text(&several, 10);
    let heads: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| line.contains("  s0") || line.contains("  s8"))
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(heads[0], ["s2", "s0", "s1", "s3", "s4", "s5", "s6"]);
    assert_eq!(heads[1], ["s2", "s7", "s8"]);
}

#[test]
fn the_document_has_the_sides_with_their_comparisons() {
    let value = serde_json::to_value(sample()).unwrap();
    assert_eq!((&value["format"], &value["reference"]), (&1.into(), &"base".into()));
    assert_eq!(value["sides"][0]["against"], serde_json::Value::Null);
    let off = &value["sides"][1];
    assert_eq!((&off["name"], &off["against"]["verdict"]["answer"]), (&"off".into(), &"more".into()));
    assert_eq!(off["runs"].as_array().unwrap().len(), 6);
    assert!(off["against"]["sentence"].as_str().unwrap().starts_with("off costs 4.543% more cycles than base"));
}

#[test]
fn the_page_has_a_section_for_each_comparison() {
    let page = crate::report::several_page(&sample()).unwrap();
    assert!(page.contains("<table class=\"plot trend\">"), "{page}");
    assert!(page.contains("the reference"), "{page}");
    for part in
        ["id=\"sides\"", "off against base", "again against base", "id=\"diff2:a..b\"", "off: a &lt;warning&gt;"]
    {
        assert!(page.contains(part), "{part}");
    }
}
