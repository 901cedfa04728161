//! The settings of a side in one text: options of `tollgate exec`, and words for the kernel's command line.

use crate::exec_runs::{self, options};
use clap::Command;
use std::ffi::OsString;

/// What a side is set to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Options of `tollgate exec`.
    pub options: Vec<OsString>,
    /// Words for the command line of the kernel.
    pub words: String,
}

/// A word as it is written, and without its quotation marks.
#[derive(Debug, PartialEq, Eq)]
struct Word {
    written: String,
    meant: String,
}

/// Splits a text at its spaces. What stands in quotation marks is not split.
fn split(text: &str) -> Result<Vec<Word>, String> {
    let mut words = Vec::new();
    let mut word: Option<Word> = None;
    let mut quote: Option<char> = None;
    for c in text.chars() {
        if quote.is_none() && c.is_whitespace() {
            words.extend(word.take());
            continue;
        }
        let word = word.get_or_insert(Word { written: String::new(), meant: String::new() });
        word.written.push(c);
        match quote {
            Some(mark) if c == mark => quote = None,
            None if c == '"' || c == '\'' => quote = Some(c),
            _ => word.meant.push(c),
        }
    }
    if let Some(mark) = quote {
        return Err(format!("a quotation mark {mark} has no counterpart"));
    }
    words.extend(word);
    Ok(words)
}

/// Returns the words of a text, as a shell understands quotation marks.
pub fn words(text: &str) -> Result<Vec<String>, String> {
    Ok(split(text)?.into_iter().map(|word| word.meant).collect())
}

/// Returns true if a word is an option. A kernel's parameter does not begin with two hyphens.
fn is_option(word: &str) -> bool {
    word.strip_prefix("--").is_some_and(|name| name.starts_with(|c: char| c.is_ascii_alphabetic()))
}

impl Settings {
    /// Parses the settings of a side.
    pub fn parse(text: &str) -> Result<Self, String> {
        let known = options();
        let takes_value = |word: &str| {
            let name = word.trim_start_matches('-');
            known.iter().any(|arg| arg.get_long() == Some(name) && arg.get_action().takes_values())
        };
        let mut given = Vec::new();
        let mut parameters = Vec::new();
        let mut words = split(text)?.into_iter();
        while let Some(word) = words.next() {
            if !is_option(&word.meant) {
                parameters.push(word.written);
                continue;
            }
            let value = if takes_value(&word.meant) { words.next() } else { None };
            match value {
                // Joined, so that a value may begin with a hyphen.
                Some(value) => given.push(format!("{}={}", word.meant, value.meant)),
                None => given.push(word.meant),
            }
        }
        let parser = Command::new("side").no_binary_name(true).disable_help_flag(true).args(known.clone());
        let matches = parser.try_get_matches_from(given).map_err(|error| exec_runs::described(&error))?;
        let options = known.iter().flat_map(|arg| exec_runs::given(arg, &matches)).collect();
        Ok(Self { options, words: parameters.join(" ") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> (Vec<OsString>, String) {
        let Settings { mut options, words } = Settings::parse(text).unwrap();
        options.sort();
        (options, words)
    }

    #[test]
    fn what_begins_with_two_hyphens_is_an_option_and_the_rest_is_for_the_kernel() {
        let (options, words) = parse(" --cpu icx pti=off  --mmu=shadow --oops-ok dyndbg=\"file x +p\" quiet");
        assert_eq!(options, ["--cpu=icx", "--mmu=shadow", "--oops-ok"].map(OsString::from));
        assert_eq!(words, "pti=off dyndbg=\"file x +p\" quiet", "the kernel reads quotation marks itself");
        let (options, _) = parse("--kernel '/tmp/a b/bzImage' --env X=1 --env Y=2 --append --x");
        assert_eq!(
            options,
            ["--append=--x", "--env=X=1", "--env=Y=2", "--kernel=/tmp/a b/bzImage"].map(OsString::from)
        );
        assert_eq!(parse(""), (Vec::new(), String::new()));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, why) in [
            ("--cpuu icx", "unexpected argument '--cpuu'"),
            ("--cpu", "--cpu"),
            ("--cpu icx --cpu skx", "cannot be used multiple times"),
            ("--mmu none", "possible values"),
            ("--ledger x", "unexpected argument '--ledger'"),
            ("pti=\"off", "quotation mark"),
        ] {
            let error = Settings::parse(text).unwrap_err();
            assert!(error.contains(why) && !error.contains('\n'), "{text}: {error}");
        }
    }
}
