//! Settings without an effect: words of a command line that change nothing, and sides that the kernel shows to be alike.

use crate::exec_cmd::parameters;
use lab::diff::origin::Origin;
use std::collections::BTreeSet;

/// Words that say what a kernel does without them (Documentation/admin-guide/kernel-parameters.txt).
const DEFAULTS: [&str; 15] = [
    "apic=quiet",
    "indirect_target_selection=on",
    "l1tf=flush",
    "mds=full",
    "mitigations=auto",
    "mmio_stale_data=full",
    "pti=auto",
    "retbleed=auto",
    "spec_rstack_overflow=safe-ret",
    "spec_store_bypass_disable=auto",
    "spectre_bhi=on",
    "spectre_v2=auto",
    "spectre_v2_user=auto",
    "split_lock_detect=warn",
    "tsx_async_abort=full",
];

/// What is known of one side.
pub struct Known<'a> {
    /// Name of the side.
    pub name: &'a str,
    pub origin: &'a Origin,
    /// Words that the kernel does not know.
    pub unknown: &'a [String],
    /// Words for modules that are not loaded.
    pub unloaded: &'a [String],
}

/// Returns the words of one command line that another lacks.
fn own<'a>(of: &'a Origin, other: &Origin) -> Vec<&'a str> {
    let other: BTreeSet<&str> = other.command_line.split_whitespace().collect();
    of.command_line.split_whitespace().filter(|word| !other.contains(word)).collect()
}

/// Returns the words that a command line has more often than another, which has them too.
fn repeated<'a>(of: &'a Origin, other: &Origin) -> BTreeSet<&'a str> {
    let times =
        |origin: &Origin, word: &str| origin.command_line.split_whitespace().filter(|other| *other == word).count();
    let words = of.command_line.split_whitespace();
    words.filter(|word| (1..times(of, word)).contains(&times(other, word))).collect()
}

/// Returns true if the kernel showed the same state on both sides. What it did not show is not the same.
fn shows_the_same(a: &Origin, b: &Origin) -> bool {
    !a.state.is_empty() && a.state == b.state
}

/// Describes words of modules that are not loaded.
pub fn of_modules(name: &str, unloaded: &[String]) -> Vec<String> {
    let module = |word: &str| word.split('.').next().unwrap_or_default().to_owned();
    let text = |word: &String| {
        format!(
            "{name}: `{word}` is a parameter of the module {}, which the kernel has not loaded: it has no effect",
            module(word)
        )
    };
    unloaded.iter().map(text).collect()
}

/// What is found about the settings of both sides.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Differences that change nothing.
    pub warnings: Vec<String>,
    /// A remark on words whose effect the kernel does not show.
    pub note: Option<String>,
    /// True if the sides differ only in words without an effect.
    pub nothing_else: bool,
}

/// Looks for differences between the command lines that change nothing.
pub fn found([a, b]: [&Known<'_>; 2]) -> Found {
    let same_system = a.origin.image == b.origin.image
        && a.origin.processor == b.origin.processor
        && a.origin.model == b.origin.model
        && a.origin.inputs == b.origin.inputs;
    let alike = shows_the_same(a.origin, b.origin);
    let mut all = Vec::new();
    let mut idle = true;
    let mut any = false;
    for (side, other) in [(a, b), (b, a)] {
        for word in own(side.origin, other.origin) {
            any = true;
            let listed = |list: &[String]| list.iter().any(|other| other == word);
            let is_default = alike && DEFAULTS.contains(&word);
            if is_default {
                all.push(format!("{}: `{word}` is the kernel's default, so it has no effect", side.name));
            }
            // After a value that it does not know a kernel goes on as without the word.
            let is_wrong = alike && parameters::has_unknown_value(word, side.origin.release.as_deref());
            idle &= is_default || is_wrong || listed(side.unknown) || listed(side.unloaded);
        }
        for word in repeated(side.origin, other.origin) {
            any = true;
            all.push(format!("{}: `{word}` is on the command line already, so it has no effect", side.name));
        }
    }
    let nothing_else = any && idle && same_system;
    if nothing_else {
        all.push(format!(
            "{} and {} differ only in words without an effect, so only their layouts differ.",
            a.name, b.name
        ));
    }
    Found { warnings: all, note: note(a.origin, b.origin), nothing_else }
}

/// Returns a note if the sides differ in words that change nothing of what the kernel shows.
fn note(a: &Origin, b: &Origin) -> Option<String> {
    let words = [own(a, b), own(b, a)].concat();
    let quiet = a.image == b.image && shows_the_same(a, b) && !words.is_empty();
    quiet.then(|| {
        let words = words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
        format!("With and without {words} the kernel shows the same mitigations, features and modules.")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(words: &str, pti: &str) -> Origin {
        Origin {
            command_line: format!("quiet {words}"),
            state: [("mitigation of meltdown".to_owned(), pti.to_owned())].into(),
            ..Origin::default()
        }
    }

    fn judged(a: &Origin, b: &Origin, unknown: &[String], unloaded: &[String]) -> Found {
        let of_a = Known { name: "A", origin: a, unknown: &[], unloaded: &[] };
        let of_b = Known { name: "B", origin: b, unknown, unloaded };
        found([&of_a, &of_b])
    }

    #[test]
    fn a_default_is_named_where_the_kernel_shows_no_difference() {
        let (plain, auto) = (origin("", "PTI"), origin("mitigations=auto", "PTI"));
        let Found { warnings, note, nothing_else } = judged(&plain, &auto, &[], &[]);
        assert_eq!(warnings[0], "B: `mitigations=auto` is the kernel's default, so it has no effect");
        assert!(warnings[1].starts_with("A and B differ only in words without an effect") && warnings.len() == 2);
        assert!(
            nothing_else && note.unwrap().starts_with("With and without `mitigations=auto` the kernel shows the same")
        );
        // A kernel that is built without mitigations has another default, which its state shows.
        assert_eq!(judged(&origin("", "Vulnerable"), &auto, &[], &[]), Found::default());
        // A kernel that shows nothing shows no sameness.
        let silent = |words| Origin { state: Default::default(), ..origin(words, "") };
        assert_eq!(judged(&silent(""), &silent("mitigations=auto"), &[], &[]), Found::default());
    }

    #[test]
    fn a_word_that_is_there_already_is_named() {
        let (plain, again) = (origin("", "PTI"), origin("quiet", "PTI"));
        let found = judged(&plain, &again, &[], &[]);
        assert_eq!(found.warnings[0], "B: `quiet` is on the command line already, so it has no effect");
        assert!(found.warnings.len() == 2 && found.nothing_else, "{found:?}");
        assert_eq!(judged(&plain, &plain, &[], &[]), Found::default());
        assert_eq!(judged(&again, &again, &[], &[]), Found::default());
    }

    #[test]
    fn words_without_an_effect_leave_nothing_to_compare() {
        let (plain, typo) = (origin("", "PTI"), origin("mitigation=off kvm.ept=0", "PTI"));
        let words = ["mitigation=off".to_owned(), "kvm.ept=0".to_owned()];
        let found = judged(&plain, &typo, &words[..1], &words[1..]);
        assert!(found.warnings.len() == 1 && found.nothing_else, "{found:?}");
        // With a word that may do something there is something to compare.
        assert!(!judged(&plain, &typo, &words[..1], &[]).nothing_else);
        // So it is with a value that no kernel knows, where the kernel shows no difference.
        let value = |pti| judged(&plain, &origin("pti=of", pti), &[], &[]).nothing_else;
        assert!(value("PTI") && !value("Vulnerable"));
        let other = Origin { image: "another".to_owned(), ..typo.clone() };
        assert!(!judged(&plain, &other, &words[..1], &words[1..]).nothing_else);
        assert_eq!(
            of_modules("B", &words[1..]),
            ["B: `kvm.ept=0` is a parameter of the module kvm, which the kernel has not loaded: it has no effect"]
        );
    }
}
