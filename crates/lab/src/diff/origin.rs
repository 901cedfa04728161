//! The origin of a diff: what each side was measured on, what differs between the sides, and how to measure again.

use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Number of characters shown of a hash.
const SHORT_HASH: usize = 12;
/// Names of facts whose value is a list of words, of which the words that one side lacks are shown.
const LISTS: [&str; 3] = ["features", "bugs", "modules"];
/// Number of words shown of a list.
const MOST_WORDS: usize = 12;

/// A file of the host that the command could read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct File {
    /// Path in the guest.
    pub path: String,
    /// SHA-256 of the contents, in hexadecimal digits.
    pub sha256: String,
    /// Length in bytes.
    pub bytes: u64,
}

/// The processor, the kernel and the inputs of a side.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Origin {
    /// The modelled processor in full.
    pub processor: String,
    /// Name of its profile.
    pub profile: String,
    /// The model of time.
    pub model: String,
    /// Release of the kernel, if the guest said it.
    pub release: Option<String>,
    /// Hash and length of the kernel's image.
    pub image: String,
    /// The kernel's command line.
    pub command_line: String,
    /// Further inputs of the machine: memory, initial RAM disk, platform, devices.
    pub inputs: BTreeMap<String, String>,
    /// State of the kernel after the command: mitigations, features of the processor, modules, options of the configuration.
    pub state: BTreeMap<String, String>,
    /// The file of the kernel's configuration, if there is one. Only what differs is part of the document.
    #[serde(skip)]
    pub configuration: Option<String>,
}

/// Something that differs between the sides, apart from the costs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Differing {
    /// What it is.
    pub what: String,
    /// A's value.
    pub a: String,
    /// B's value.
    pub b: String,
}

/// Version, seeds, files and the command that measures the same again, for both sides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Provenance {
    /// Version of Tollgate.
    pub version: String,
    /// First and last seed of the layouts. None: no layout was drawn.
    pub seeds: Option<[u64; 2]>,
    /// The command that measures the same again.
    pub again: String,
    /// The files of the host that the command could read. Empty if it could read all.
    pub files: Vec<File>,
    /// Number of files that are not in the list, for lack of room.
    pub more_files: usize,
    /// Hash of the list of all files with their hashes; "of the host" if the command could read all.
    pub tree: String,
}

/// Shortens the digits of a hash.
pub fn short(hash: &str) -> String {
    let digits = |word: &str| word.len() == 64 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let shown = |word: &str| if digits(word) { word[..SHORT_HASH].to_owned() } else { word.to_owned() };
    hash.split(' ').map(shown).collect::<Vec<_>>().join(" ")
}

/// Returns the words of one list that another lacks.
fn lacking(all: &str, other: &str) -> String {
    without(all.split_whitespace(), other.split_whitespace())
}

/// Returns the options of one configuration that another lacks or has with another value.
fn options(all: &str, other: &str) -> String {
    without(set_options(all), set_options(other))
}

/// Returns the options that a configuration sets, without the beginning that all have.
fn set_options(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.strip_prefix("CONFIG_"))
}

fn without<'a>(all: impl Iterator<Item = &'a str>, other: impl Iterator<Item = &'a str>) -> String {
    let other: BTreeSet<&str> = other.collect();
    let mut words: Vec<&str> = all.filter(|word| !other.contains(word)).collect();
    let more = words.len().saturating_sub(MOST_WORDS);
    words.truncate(MOST_WORDS);
    let more = if more > 0 { format!(" and {more} others") } else { String::new() };
    words.join(" ") + &more
}

/// Lists what differs between two origins, besides costs.
pub fn differing(a: &Origin, b: &Origin) -> Vec<Differing> {
    let mut all = Vec::new();
    let mut add = |what: &str, a: &str, b: &str| {
        if a != b {
            let shown = |text: &str| if text.is_empty() { "–".to_owned() } else { short(text) };
            all.push(Differing { what: what.to_owned(), a: shown(a), b: shown(b) });
        }
    };
    add("processor", &a.processor, &b.processor);
    add("model of time", &a.model, &b.model);
    let release = |origin: &Origin| origin.release.clone().unwrap_or_default();
    add("kernel", &release(a), &release(b));
    add("image", &a.image, &b.image);
    let words = [lacking(&a.command_line, &b.command_line), lacking(&b.command_line, &a.command_line)];
    add("words of the command line", &words[0], &words[1]);
    for (of_a, of_b) in [(&a.inputs, &b.inputs), (&a.state, &b.state)] {
        let names: BTreeSet<&String> = of_a.keys().chain(of_b.keys()).collect();
        for name in names {
            let [before, after] = [of_a, of_b].map(|of| of.get(name).map_or("", String::as_str));
            if LISTS.contains(&name.as_str()) {
                add(name, &lacking(before, after), &lacking(after, before));
            } else {
                add(name, before, after);
            }
        }
    }
    if let (Some(of_a), Some(of_b)) = (&a.configuration, &b.configuration) {
        add("configuration", &options(of_a, of_b), &options(of_b, of_a));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_listed_and_lists_show_what_one_side_lacks() {
        let state = |pti: &str, features: &str| {
            [("mitigation of meltdown".to_owned(), pti.to_owned()), ("features".to_owned(), features.to_owned())].into()
        };
        let a = Origin {
            command_line: "quiet panic=-1 mitigations=off".into(),
            state: state("Vulnerable", "fpu tsc ibrs_enhanced"),
            image: format!("sha256 {} 7 bytes", "ab".repeat(32)),
            ..Origin::default()
        };
        let b = Origin {
            command_line: "quiet panic=-1".into(),
            state: state("Mitigation: PTI", "fpu pti tsc"),
            ..a.clone()
        };
        let found = differing(&a, &b);
        let rows: Vec<[&str; 3]> = found.iter().map(|row| [&*row.what, &*row.a, &*row.b]).collect();
        assert_eq!(
            rows,
            [
                ["words of the command line", "mitigations=off", "–"],
                ["features", "ibrs_enhanced", "pti"],
                ["mitigation of meltdown", "Vulnerable", "Mitigation: PTI"],
            ]
        );
        assert_eq!(differing(&a, &a), []);
        let configured = |text: &str| Origin { configuration: Some(text.to_owned()), ..a.clone() };
        let lines = "# comment\nCONFIG_HZ=250\nCONFIG_NAME=\"two words\"\n";
        let found = differing(&configured(lines), &configured("CONFIG_HZ=1000\n# CONFIG_NAME is not set\n"));
        assert_eq!((&*found[0].a, &*found[0].b, found.len()), ("HZ=250 NAME=\"two words\"", "HZ=1000", 1));
        assert_eq!(differing(&a, &configured(lines)), [], "one configuration is not known");
        let other = Origin { image: format!("sha256 {} 7 bytes", "cd".repeat(32)), ..a.clone() };
        assert_eq!(differing(&a, &other)[0].b, "sha256 cdcdcdcdcdcd 7 bytes");
    }
}
