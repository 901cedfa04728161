//! The command line that measures the same again.

use lab::runner::quoted;
use std::ffi::OsString;

/// Options that take a value and do not change what is measured.
const WITH_VALUE: [&str; 7] = ["--junit", "--html", "--save", "--keep", "--top", "--jobs", "--time-limit"];
/// Options without a value that do not change what is measured.
const ALONE: [&str; 4] = ["--json", "--markdown", "--csv", "--fresh"];

/// The layouts of a measurement whose number a time limit or the user decided.
#[derive(Clone, Copy)]
pub struct Fixed {
    /// Their number.
    pub layouts: usize,
    /// The seed of the first one.
    pub seed: Option<u64>,
}

/// Returns the command line. `arguments` are those of this process.
pub fn command(arguments: impl Iterator<Item = OsString>, fixed: Option<Fixed>) -> String {
    let mut words = vec!["tollgate".to_owned()];
    let mut given = arguments.skip(1).map(|word| word.to_string_lossy().into_owned());
    let mut options = true;
    let mut has_seed = false;
    while let Some(word) = given.next() {
        options &= word != "--";
        if !options {
            words.extend(fixed.map(|Fixed { layouts, .. }| format!("--layouts {layouts}")));
            // With --layouts 1 no layout is drawn unless a seed is given.
            let single = fixed.filter(|fixed| fixed.layouts == 1 && !has_seed).and_then(|fixed| fixed.seed);
            words.extend(single.map(|seed| format!("--seed {seed}")));
            words.extend(std::iter::once(word).chain(given).map(|word| quoted(&word)));
            break;
        }
        let has_no_effect = |name: &str| WITH_VALUE.contains(&name) || (fixed.is_some() && name == "--layouts");
        if has_no_effect(&word) {
            given.next();
            continue;
        }
        let name = word.split('=').next().unwrap_or_default();
        has_seed |= name == "--seed";
        if !ALONE.contains(&name) && !has_no_effect(name) {
            words.push(quoted(&word));
        }
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_shapes_the_output_is_left_out() {
        let words = [
            "/usr/bin/tollgate",
            "diff",
            "--kernel",
            "cloud",
            "--csv=layouts",
            "--save",
            "saved.json",
            "--json",
            "--html",
            "x.html",
            "--a=mitigations=off",
            "--keep=d",
            "--time-limit",
            "9",
            "--",
            "sh",
            "-c",
            "echo $HOME; ls --json",
        ];
        let fixed = |layouts: Option<usize>| layouts.map(|layouts| Fixed { layouts, seed: Some(1) });
        let line = |layouts| command(words.iter().map(OsString::from), fixed(layouts));
        let command = "sh -c 'echo $HOME; ls --json'";
        assert_eq!(line(None), format!("tollgate diff --kernel cloud --a=mitigations=off -- {command}"));
        assert_eq!(line(Some(8)), format!("tollgate diff --kernel cloud --a=mitigations=off --layouts 8 -- {command}"));
        // The directory has the kernels that the series built and the results that it measured, so the command names the directory.
        let series = ["tollgate", "series", "--state", "built here", "--csv", "--", "true"];
        assert_eq!(
            super::command(series.iter().map(OsString::from), None),
            "tollgate series --state 'built here' -- true"
        );
        for given in [&["--layouts", "9"][..], &["--layouts=9"]] {
            let words = [&["tollgate", "diff"], given, &["--", "true"]].concat();
            let line = |layouts| super::command(words.iter().map(OsString::from), fixed(layouts));
            assert_eq!(line(Some(1)), "tollgate diff --layouts 1 --seed 1 -- true");
            assert_eq!(line(Some(2)), "tollgate diff --layouts 2 -- true");
            assert_eq!(line(None), format!("tollgate diff {} -- true", given.join(" ")));
        }
        let seeded = ["tollgate", "diff", "--seed=1", "--", "true"];
        let line = super::command(seeded.iter().map(OsString::from), fixed(Some(1)));
        assert_eq!(line, "tollgate diff --seed=1 --layouts 1 -- true");
    }
}
