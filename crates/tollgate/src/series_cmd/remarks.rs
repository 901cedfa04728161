//! Remarks on the runs of a series. Many commits have the same one, with other percentages: it is said once, with the range of each percentage.

use crate::table::counted;
use lab::diff::series::Commit;
use std::collections::BTreeSet;

/// A remark that commits have in common.
struct Shared<'a> {
    /// The text between its percentages.
    between: Vec<&'a str>,
    /// For each percentage the least and the greatest one, as they are written.
    ranges: Vec<[&'a str; 2]>,
    /// Names of the commits. A remark on no single commit has none.
    names: Vec<&'a str>,
    known: BTreeSet<&'a str>,
}

/// Splits a text at its percentages: the text between them, and their figures.
fn parts(text: &str) -> (Vec<&str>, Vec<&str>) {
    let (mut between, mut figures) = (Vec::new(), Vec::new());
    let mut from = 0;
    for (at, _) in text.match_indices('%') {
        let is_figure = |byte: &u8| byte.is_ascii_digit() || *byte == b'.';
        let length = text.as_bytes()[from..at].iter().rev().take_while(|byte| is_figure(byte)).count();
        if text[at - length..at].parse::<f64>().is_ok() {
            between.push(&text[from..at - length]);
            figures.push(&text[at - length..at]);
            from = at + 1;
        }
    }
    between.push(&text[from..]);
    (between, figures)
}

fn value(figure: &str) -> f64 {
    figure.parse().unwrap_or_default()
}

impl Shared<'_> {
    fn text(&self) -> String {
        let mut text = match &self.names[..] {
            [] => String::new(),
            [name] => format!("{name}: "),
            [first, others @ ..] => {
                format!("{first} and {}: ", counted(others.len(), "other commit", "other commits"))
            }
        };
        for (number, between) in self.between.iter().enumerate() {
            text += between;
            match self.ranges.get(number) {
                Some([least, most]) if value(least) == value(most) => text += &format!("{least}%"),
                Some([least, most]) => text += &format!("{least}% to {most}%"),
                None => {}
            }
        }
        text
    }
}

/// Returns the remark behind the name of a commit, if it is on that commit.
fn on<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.strip_prefix(name)?.strip_prefix(": ")
}

/// Returns the remarks on a commit and those on no single one, each once.
pub fn of_commit(all: &[String], name: &str, commits: &[Commit]) -> Vec<String> {
    let mut own: Vec<String> = Vec::new();
    for text in all {
        let on_another = commits.iter().any(|commit| commit.name != name && on(text, &commit.name).is_some());
        if !on_another && !own.contains(text) {
            own.push(text.clone());
        }
    }
    own
}

/// Returns a remark on a commit that has another name now.
pub fn renamed(text: &str, from: &str, to: &str) -> String {
    on(text, from).map_or_else(|| text.to_owned(), |rest| format!("{to}: {rest}"))
}

/// Returns each kind of remark once.
pub fn shared(all: &[String], commits: &[Commit]) -> Vec<String> {
    let mut kinds: Vec<Shared> = Vec::new();
    for text in all {
        let named = commits.iter().find_map(|commit| {
            let rest = on(text, &commit.name)?;
            Some((commit.name.as_str(), rest))
        });
        let (name, rest) = named.map_or((None, text.as_str()), |(name, rest)| (Some(name), rest));
        let (between, figures) = parts(rest);
        let kind = kinds.iter_mut().find(|kind| kind.between == between && kind.names.is_empty() == name.is_none());
        match kind {
            None => kinds.push(Shared {
                between,
                ranges: figures.iter().map(|figure| [*figure; 2]).collect(),
                names: name.into_iter().collect(),
                known: name.into_iter().collect(),
            }),
            Some(kind) => {
                for ([least, most], figure) in kind.ranges.iter_mut().zip(figures) {
                    if value(figure) < value(least) {
                        *least = figure;
                    }
                    if value(figure) > value(most) {
                        *most = figure;
                    }
                }
                kind.names.extend(name.filter(|name| kind.known.insert(name)));
            }
        }
    }
    kinds.iter().map(Shared::text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commits(names: &[&str]) -> Vec<Commit> {
        let commit =
            |name: &&str| Commit { commit: (*name).to_owned(), name: (*name).to_owned(), subject: String::new() };
        names.iter().map(commit).collect()
    }

    #[test]
    fn each_kind_of_remark_is_said_once_with_its_range() {
        let all = [
            "aa: 12.3% of the command's time is spent in code without names, 8% of it in [vdso]",
            "aa: a word is not known",
            "bb: 12.25% of the command's time is spent in code without names, 8% of it in [vdso]",
            "cc: 13% of the command's time is spent in code without names, 8% of it in [vdso]",
            "cc: 13% of the command's time is spent in code without names, 8% of it in [vdso]",
            "bb: another remark of 5%",
            "The command depends on a name of 100% of something.",
            "The command depends on a name of 100% of something.",
        ];
        let all = all.map(str::to_owned);
        assert_eq!(
            shared(&all, &commits(&["aa", "bb", "cc"])),
            [
                "aa and 2 other commits: 12.25% to 13% of the command's time is spent in code without names, 8% of it in [vdso]",
                "aa: a word is not known",
                "bb: another remark of 5%",
                "The command depends on a name of 100% of something.",
            ]
        );
    }

    #[test]
    fn remarks_on_a_commit_are_kept_with_it() {
        let all = ["aa: x", "bb: y", "of all", "aa: x"].map(str::to_owned);
        let own = of_commit(&all, "aa", &commits(&["aa", "bb"]));
        assert_eq!(own, ["aa: x", "of all"]);
        assert_eq!(own.iter().map(|text| renamed(text, "aa", "cc")).collect::<Vec<_>>(), ["cc: x", "of all"]);
    }

    #[test]
    fn texts_are_split_at_percentages_only() {
        assert_eq!(parts("a % b %% 1.2.3% c"), (vec!["a % b %% 1.2.3% c"], vec![]));
        assert_eq!(parts("5%"), (vec!["", ""], vec!["5"]));
        assert_eq!(parts("of 5%, 6.5% é"), (vec!["of ", ", ", " é"], vec!["5", "6.5"]));
        let two = ["aa: 1%", "bb: 2%"].map(str::to_owned);
        assert_eq!(shared(&two, &commits(&["aa", "bb"])), ["aa and 1 other commit: 1% to 2%"]);
    }
}
