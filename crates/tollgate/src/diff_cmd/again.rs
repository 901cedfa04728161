//! The command line that measures the same again.

use lab::runner::quoted;
use std::ffi::OsString;

/// Options that take a value and do not change what is measured.
const WITH_VALUE: [&str; 8] = ["--junit", "--html", "--save", "--keep", "--top", "--jobs", "--time-limit", "--state"];
/// Options without a value that do not change what is measured.
const ALONE: [&str; 4] = ["--json", "--markdown", "--csv", "--fresh"];

/// Returns the command line. `arguments` are those of this process; `layouts` is the number of layouts, if a time limit or the user decided it.
pub fn command(arguments: impl Iterator<Item = OsString>, layouts: Option<usize>) -> String {
    let mut words = vec!["tollgate".to_owned()];
    let mut given = arguments.skip(1).map(|word| word.to_string_lossy().into_owned());
    let mut options = true;
    while let Some(word) = given.next() {
        options &= word != "--";
        if !options {
            words.extend(layouts.map(|count| format!("--layouts {count}")));
            words.extend(std::iter::once(word).chain(given).map(|word| quoted(&word)));
            break;
        }
        let has_no_effect = |name: &str| WITH_VALUE.contains(&name) || (layouts.is_some() && name == "--layouts");
        if has_no_effect(&word) {
            given.next();
            continue;
        }
        let name = word.split('=').next().unwrap_or_default();
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
        let line = |layouts| command(words.iter().map(OsString::from), layouts);
        let command = "sh -c 'echo $HOME; ls --json'";
        assert_eq!(line(None), format!("tollgate diff --kernel cloud --a=mitigations=off -- {command}"));
        assert_eq!(line(Some(8)), format!("tollgate diff --kernel cloud --a=mitigations=off --layouts 8 -- {command}"));
        for given in [&["--layouts", "9"][..], &["--layouts=9"]] {
            let words = [&["tollgate", "diff"], given, &["--", "true"]].concat();
            let line = |layouts| super::command(words.iter().map(OsString::from), layouts);
            assert_eq!(line(Some(2)), "tollgate diff --layouts 2 -- true");
            assert_eq!(line(None), format!("tollgate diff {} -- true", given.join(" ")));
        }
    }
}
