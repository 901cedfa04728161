use super::*;
use crate::diff::several::{Several, of_two};
use crate::diff::tests::{runs, terms, varied};
use crate::diff::{Answer, Diff, Provenance};

fn side(name: &str, words: &str, irets: u64) -> Runs {
    let mut side = Runs { name: name.to_owned(), ..runs("cloud", words, varied(1_000_000, irets)) };
    side.origin.configuration = Some("CONFIG_HZ=250\n".to_owned());
    side.runs.iter_mut().for_each(|run| run.stacks = Folded::default());
    side
}

fn saved(sides: &[Runs]) -> Saved {
    let provenance = Provenance { version: "1.2.3".to_owned(), again: "again".to_owned(), ..Provenance::default() };
    let remarks = Remarks {
        warnings: vec!["a warning".to_owned()],
        notes: vec!["a note".to_owned()],
        provenance,
        ..Remarks::default()
    };
    let plan = Plan::Looks;
    Saved::new(sides, &Measurement { command: "hackbench -l 10", settle: 0.2, plan, reference: 0, remarks: &remarks })
}

/// Returns a small result as a file has it.
fn document() -> Vec<u8> {
    let mut sides = [side("base", "", 1_000), side("off", "mitigations=off", 1_500)];
    sides.iter_mut().for_each(|side| side.runs.truncate(2));
    saved(&sides).to_json().unwrap().into_bytes()
}

fn labelled(label: &str, saved: Saved) -> Labelled {
    Labelled { label: label.to_owned(), saved }
}

#[test]
fn what_is_read_is_what_was_saved() {
    let sides = [side("base", "", 1_000), side("off", "mitigations=off", 1_500)];
    let saved = saved(&sides);
    let again = Saved::read(saved.to_json().unwrap().as_bytes()).unwrap();
    assert_eq!(again, saved);
    assert_eq!(again.runs().unwrap(), sides);
    let combined = combine(&[labelled("x", again)]).unwrap();
    assert_eq!((combined.reference.as_str(), &combined.sides[..]), ("base", &sides[..]));
    let shown = |sides: &[Runs]| Several::new(String::new(), sides, 0, &terms(None), Remarks::default()).unwrap();
    let texts = [&sides[..], &combined.sides].map(|sides| crate::diff::several::text(&shown(sides), 10));
    assert_eq!(texts[0], texts[1]);
    assert_eq!(
        (&combined.remarks.warnings[..], &combined.remarks.notes[..]),
        (&["a warning".to_owned()][..], &["a note".to_owned()][..])
    );
}

#[test]
fn a_side_that_both_files_have_is_one_side() {
    let first = saved(&[side("base", "", 1_000), side("off", "mitigations=off", 1_500)]);
    let mut base = side("base", "", 1_000);
    base.runs.truncate(3);
    let second = saved(&[base, side("nopti", "nopti", 1_200)]);
    let combined = combine(&[labelled("first", first), labelled("second", second)]).unwrap();
    let names: Vec<&str> = combined.sides.iter().map(|side| side.name.as_str()).collect();
    assert_eq!((names, combined.sides[0].runs.len()), (vec!["base", "off", "nopti"], 6));
    assert_eq!(combined.remarks.warnings, ["first: a warning", "second: a warning"]);
    let several = Several::new(combined.command, &combined.sides, 0, &terms(None), combined.remarks).unwrap();
    let answers: Vec<Answer> = several.comparisons().map(|diff| diff.verdict.answer).collect();
    assert_eq!(answers, [Answer::More, Answer::More]);
}

#[test]
fn a_combination_is_saved_as_it_is_shown() {
    let file = |name: &str, words: &str, layouts: usize| {
        let mut one = side(name, words, 1_000);
        one.runs.truncate(layouts);
        saved(&[one])
    };
    let all = [labelled("first", file("base", "", 6)), labelled("second", file("off", "mitigations=off", 3))];
    let combined = combine(&all).unwrap();
    check_one(&all, &combined).unwrap();
    let remarks = combined.remarks_to_save();
    let plan = combined.plan;
    let measurement =
        Measurement { command: &combined.command, settle: combined.settle, plan, reference: 0, remarks: &remarks };
    let again = Saved::read(Saved::new(&combined.sides, &measurement).to_json().unwrap().as_bytes()).unwrap();
    let again = combine(&[labelled("both", again)]).unwrap();
    assert_eq!((&again.sides, &again.remarks), (&combined.sides, &combined.remarks));
    // More of the first side makes the note on the layouts of the second one another.
    let reversed = [labelled("second", all[1].saved.clone()), labelled("first", all[0].saved.clone())];
    let combined = combine(&reversed).unwrap();
    assert!(combined.remarks.notes.iter().any(|note| note.starts_with("base has 6 layouts, of which 3")));
    assert!(!combined.remarks_to_save().notes.iter().any(|note| note.contains("6 layouts")));
}

#[test]
fn what_a_file_can_not_say_is_not_saved() {
    let (a, mut b) = (saved(&[side("base", "", 1_000)]), saved(&[side("off", "nopti", 1_500)]));
    let error = |b: &Saved, label: &str| {
        let all = [labelled("a", a.clone()), labelled(label, b.clone())];
        check_one(&all, &combine(&all).unwrap()).map_err(|error| error.to_string())
    };
    assert_eq!(error(&b, "b"), Ok(()));
    b.version = "1.3.0".to_owned();
    assert!(error(&b, "b").unwrap_err().starts_with("b was changed after it was saved"));
    b.seal();
    assert!(error(&b, "b").unwrap_err().contains("a and b differ in their versions of Tollgate: keep both files"));
    (b.version, b.settle) = (a.version.clone(), 0.5);
    b.seal();
    assert!(error(&b, "b").unwrap_err().contains("--settle"));
    let mut same = saved(&[side("base", "nopti", 1_500)]);
    same.seal();
    assert!(error(&same, &"x".repeat(64)).unwrap_err().contains("give the file a shorter name"));
}

#[test]
fn other_sides_of_the_same_name_get_the_name_of_their_file() {
    let (a, b) = (saved(&[side("A", "", 1_000)]), saved(&[side("A", "", 1_500)]));
    let combined = combine(&[labelled("before", a.clone()), labelled("after", b.clone())]).unwrap();
    let names: Vec<&str> = combined.sides.iter().map(|side| side.name.as_str()).collect();
    assert_eq!((names, combined.reference.as_str()), (vec!["before:A", "after:A"], "before:A"));
    let error = combine(&[labelled("x", a), labelled("x", b)]).unwrap_err();
    assert_eq!(error.to_string(), "two sides have the name 'x:A', also with the name of their file");
}

#[test]
fn what_differs_between_files_is_said() {
    let first = saved(&[side("base", "", 1_000)]);
    let mut second = saved(&[side("off", "mitigations=off", 1_500)]);
    second.version = "1.3.0".to_owned();
    second.settle = 0.5;
    second.sides[0].prices = "another".to_owned();
    second.sides[0].runs.iter_mut().for_each(|run| run.seed = run.seed.map(|seed| seed + 4));
    let combined = combine(&[labelled("a", first.clone()), labelled("b", second.clone())]).unwrap();
    assert_eq!(
        combined.remarks.warnings[..4],
        [
            "The result b was changed after it was saved: its checksum does not match, and its figures need not be those of the measurement.",
            "a is of Tollgate 1.2.3, and b of Tollgate 1.3.0: prices and models may differ.",
            "In a the kernels were idle for 0.2 seconds before the command began, and in b for 0.5.",
            "The profile skx has other prices in a than in b.",
        ]
    );
    let note = "off has 6 layouts, of which 2 are also those of base: only these are compared.";
    assert_eq!(combined.remarks.notes.last().unwrap(), note);
    second.command = "hackbench -l 20".to_owned();
    let error = combine(&[labelled("a", first), labelled("b", second)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a has measured `hackbench -l 10`, and b `hackbench -l 20`: the costs of different commands can't be compared"
    );
}

#[test]
fn a_remark_on_sides_of_several_files_is_said_once() {
    let with = |name: &str, notes: &[&str]| {
        let mut one = saved(&[side(name, "", 1_000)]);
        one.notes = notes.iter().map(|note| (*note).to_owned()).collect();
        one.warnings = Vec::new();
        one
    };
    let files = [with("A", &["A: it is slow.", "No side."]), with("base", &["base: it is slow."])];
    let [a, base] = files.clone().map(Some);
    let combined = combine(&[labelled("d", a.unwrap()), labelled("s", base.unwrap())]).unwrap();
    let several = Several::new("x".to_owned(), &combined.sides, 0, &terms(None), combined.remarks).unwrap();
    assert_eq!(several.notes, ["A and base: it is slow.", "d: No side."]);
    // A side that has the name of its file too is named so.
    let [a, _] = files;
    let mut other = with("A", &["A: it is slow."]);
    other.sides[0].title = "another".to_owned();
    let combined = combine(&[labelled("d", a), labelled("s", other)]).unwrap();
    assert_eq!(combined.remarks.notes, ["d:A: it is slow.", "d: No side.", "s:A: it is slow."]);
}

#[test]
fn a_file_that_was_changed_is_named_first() {
    let text = String::from_utf8(document()).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let said = |text: &str| {
        let combined = combine(&[labelled("x", Saved::read(text.as_bytes()).unwrap())]).unwrap();
        combined.remarks.warnings[0].clone()
    };
    assert_eq!(said(&text), "a warning");
    // The form of the text is not the result.
    assert_eq!(said(&format!("{value:#}")), "a warning");
    let mut changed = value.clone();
    let elapsed = changed.pointer_mut("/sides/1/runs/0/elapsed").unwrap();
    *elapsed = (elapsed.as_u64().unwrap() + 1).into();
    assert!(
        said(&changed.to_string())
            .starts_with("The result x was changed after it was saved: its checksum does not match")
    );
    let mut without = value;
    without.as_object_mut().unwrap().remove("sha256");
    assert!(said(&without.to_string()).starts_with("The result x has no checksum"));
}

#[test]
fn a_key_that_no_measurement_has_is_named() {
    let document: serde_json::Value = serde_json::from_slice(&document()).unwrap();
    for (within, key) in [
        ("", "/note"),
        ("/sides/1", "/sides/1/note"),
        ("/sides/1/runs/0", "/sides/1/runs/0/note"),
        ("/sides/0/origin", "/sides/0/origin/note"),
        ("/sides/0/files", "/sides/0/files/note"),
        ("/sides/0/runs/0/entries/0/sum", "/sides/0/runs/0/entries/0/sum/note"),
    ] {
        for value in [1.into(), serde_json::Value::Null] {
            let mut changed = document.clone();
            changed.pointer_mut(within).unwrap().as_object_mut().unwrap().insert("note".to_owned(), value);
            let error = Saved::read(changed.to_string().as_bytes()).unwrap_err().to_string();
            assert_eq!(error, format!("can't be the result of a measurement: no measurement has the key {key}"));
        }
    }
    // A list that is left out where it is empty may be there.
    let mut empty = document;
    empty.as_object_mut().unwrap().insert("idle".to_owned(), serde_json::json!([]));
    assert!(Saved::read(empty.to_string().as_bytes()).is_ok());
}

#[test]
fn a_comparison_of_two_sides_has_the_same_tables_from_a_file() {
    let sides = [side("A", "", 1_000), side("B", "mitigations=off", 1_500)];
    let combined =
        combine(&[labelled("x", Saved::read(saved(&sides).to_json().unwrap().as_bytes()).unwrap())]).unwrap();
    assert!(combined.is_of_two());
    let live = Diff::new("x".to_owned(), &sides[0], &sides[1], &terms(None), Remarks::default());
    let [a, b] = &combined.sides[..] else { panic!("two sides") };
    let loaded = of_two("x".to_owned(), a, b, &terms(None), Remarks::default()).unwrap();
    assert_eq!(crate::diff::sheets::text(&loaded, 10), crate::diff::sheets::text(&live, 10));
    // Two files with a side each have the tables too.
    let [first, second] = [&sides[..1], &sides[1..]].map(saved);
    let combined = combine(&[labelled("before", first), labelled("after", second)]).unwrap();
    let several = Several::new("x".to_owned(), &combined.sides, 0, &terms(None), Remarks::default()).unwrap();
    let texts = [crate::diff::several::text(&several, 10), crate::diff::several::markdown(&several, 10)];
    for text in texts {
        for part in ["count A", "instructions A", "p99 A", "mitigation B", "of the change, at measured prices"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

#[test]
fn what_cannot_have_been_measured_is_refused() {
    let document: serde_json::Value = serde_json::from_slice(&document()).unwrap();
    let with = |pointer: &str, value: serde_json::Value| {
        let mut document = document.clone();
        *document.pointer_mut(pointer).unwrap() = value;
        Saved::read(document.to_string().as_bytes()).map(|_| ()).unwrap_err().to_string()
    };
    let run = "/sides/0/runs/0";
    for (pointer, value, why) in [
        ("/document", "a ledger".into(), "has written: it has no"),
        ("/format", 2.into(), "is of format 2, and this version of Tollgate reads format 1"),
        ("/format", "1".into(), "is no number of a format"),
        ("/sides", serde_json::json!([]), "0 sides"),
        ("/sides/0/tsc_hz", 0.into(), "0 Hz"),
        ("/sides/0/name", "off".into(), "names of its sides"),
        ("/sides/0/name", "x".repeat(65).into(), "the name of a side has 1 to 64 characters"),
        ("/sides/0/name", "a\nb".into(), "no control characters"),
        ("/sides/0/title", "\u{1b}[2J".into(), "control characters"),
        ("/sides/0/configuration", "0".into(), "the configuration of its kernel is missing"),
        ("/sides/0/runs", serde_json::json!([]), "0 runs"),
        ("/sides/0/origin/model", "best".into(), "no model of time 'best'"),
        ("/sides/0/confidence/class.alu", "X".into(), "no confidence 'X'"),
        ("/sides/0/runs/1/seed", 1.into(), "the same layout"),
        ("/reference", "x".into(), "names of its sides"),
        ("/settle", (-1).into(), "settling time"),
        (&format!("{run}/settled_after"), 1e300.into(), "out of range"),
        (&format!("{run}/elapsed"), u64::MAX.into(), "too high"),
        (&format!("{run}/elapsed"), (-1).into(), "has written: a part is missing, or of another kind"),
        (&format!("{run}/functions/0/2"), (1_u64 << 62).into(), "too high"),
        (&format!("{run}/functions/0/2"), 5.into(), "by cause do not add up to its own"),
        (&format!("{run}/functions/0/0"), "another".into(), "the costs of \"another\" by cause do not add up"),
        (&format!("{run}/parts/0/1"), "another".into(), "by cause do not add up to its own"),
        (&format!("{run}/priced/0/0"), "class.none".into(), "called 'class.none'"),
        (&format!("{run}/entries/0/gate"), "door".into(), "no kind of entry 'door'"),
        (&format!("{run}/entries/0/durations/0/0"), 65_535.into(), "durations"),
        (&format!("{run}/entries/0/durations/0/1"), 0.into(), "durations"),
    ] {
        let error = with(pointer, value);
        assert!(error.contains(why), "{pointer}: {error}");
    }
    assert!(Saved::read(b"\x8fLEDGR").unwrap_err().to_string().contains("it is not JSON (line 1, column 1)"));
    let deep = "[".repeat(100_000);
    assert!(Saved::read(deep.as_bytes()).unwrap_err().to_string().contains("it is nested too deeply"));
    let rows = document.pointer("/sides/0/runs/0/functions").unwrap().as_array().unwrap();
    let twice = [rows.as_slice(), &rows[..1]].concat();
    assert!(with(&format!("{run}/functions"), twice.into()).contains("two rows of the same name"));
    // The parser would take the last of two values.
    let text = document.to_string();
    let twice = text.replacen("\"elapsed\":", "\"elapsed\":5,\"elapsed\":", 1);
    assert_ne!(twice, text);
    assert!(Saved::read(twice.as_bytes()).unwrap_err().to_string().contains("a key stands there twice (line 1, "));
}

/// Numbers that are hard to compute with.
const EXTREME: [u64; 5] = [0, 1, 1 << 53, (1 << 61) - 1, u64::MAX];

/// Replaces the value at a position, counted over all values of a document.
fn replace(value: &mut serde_json::Value, at: &mut usize, with: &serde_json::Value) {
    if *at == 0 {
        *value = with.clone();
    }
    *at = at.wrapping_sub(1);
    match value {
        serde_json::Value::Array(all) => all.iter_mut().for_each(|value| replace(value, at, with)),
        serde_json::Value::Object(all) => all.values_mut().for_each(|value| replace(value, at, with)),
        _ => (),
    }
}

fn count(value: &serde_json::Value) -> usize {
    1 + match value {
        serde_json::Value::Array(all) => all.iter().map(count).sum(),
        serde_json::Value::Object(all) => all.values().map(count).sum(),
        _ => 0,
    }
}

/// Shows a document in every form, if it is accepted.
fn show(bytes: &[u8]) {
    let Ok(saved) = Saved::read(bytes) else { return };
    let Ok(Combined { command, sides, plan, remarks, .. }) = combine(&[labelled("x", saved)]) else { return };
    let terms = crate::diff::Terms { plan, ..terms(Some(0.01)) };
    if let Ok(several) = Several::new(command, &sides, 0, &terms, remarks) {
        crate::diff::several::text(&several, 10);
        crate::diff::several::markdown(&several, 10);
        several.junit().unwrap();
        crate::report::several_page(&several).unwrap();
        serde_json::to_value(&several).unwrap();
    }
}

#[test]
fn no_value_in_a_file_ends_the_program() {
    let document: serde_json::Value = serde_json::from_slice(&document()).unwrap();
    let numbers = EXTREME.map(serde_json::Value::from);
    let others = serde_json::json!([null, -1, 1.5, 1e300, "", "x", [], {}, true]);
    let values: Vec<&serde_json::Value> = numbers.iter().chain(others.as_array().unwrap()).collect();
    for at in 0..count(&document) {
        // Each place has some of the values; together the places have all of them.
        for value in values.iter().skip(at % 4).step_by(4) {
            let mut changed = document.clone();
            replace(&mut changed, &mut at.clone(), value);
            show(changed.to_string().as_bytes());
        }
    }
}

#[test]
fn a_file_that_is_cut_off_is_refused() {
    let document = document();
    for end in (0..document.len() - 1).step_by(97) {
        assert!(Saved::read(&document[..end]).is_err(), "{end}");
    }
    assert!(Saved::read(&document).is_ok());
}
