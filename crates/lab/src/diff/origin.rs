//! The origin of a diff: what each side was measured on, what differs between the sides, and how to measure again.

use crate::format::counted;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Number of characters shown of a hash.
const SHORT_HASH: usize = 12;
/// Names of facts whose value is a list of words, of which the words that one side lacks are shown.
const LISTS: [&str; 3] = ["features", "bugs", "modules"];
/// Number of words shown of a list.
const MOST_WORDS: usize = 12;

/// A file of the host that the command could read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Path in the guest.
    pub path: String,
    /// SHA-256 of the contents, in hexadecimal digits.
    pub sha256: String,
    /// Length in bytes.
    pub bytes: u64,
}

/// The files of the host that a side's command could read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Files {
    /// The files. Empty if the command could read all.
    pub list: Vec<File>,
    /// Number of files that are not in the list, for lack of room.
    pub more: usize,
    /// Hash of the list of all files with their hashes; "of the host" if the command could read all.
    pub tree: String,
}

impl Files {
    /// Returns the number of files and their hash in a few words.
    pub fn describe(&self) -> String {
        match self.list.len() + self.more {
            0 => self.tree.clone(),
            count => format!("{count}, together sha256 {}", short(&self.tree)),
        }
    }
}

/// The processor, the kernel and the inputs of a side.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

/// Returns the words of each list that not all of the lists have.
fn uncommon<'a>(lists: Vec<Vec<&'a str>>) -> Vec<String> {
    let mut all: BTreeSet<&'a str> = lists.first().into_iter().flatten().copied().collect();
    for list in &lists {
        let list: BTreeSet<&str> = list.iter().copied().collect();
        all.retain(|word| list.contains(word));
    }
    let shown = |list: Vec<&str>| {
        let mut words: Vec<&str> = list.into_iter().filter(|word| !all.contains(word)).collect();
        let more = words.len().saturating_sub(MOST_WORDS);
        words.truncate(MOST_WORDS);
        let more = if more > 0 { format!(" and {}", counted(more, "other", "others")) } else { String::new() };
        words.join(" ") + &more
    };
    lists.into_iter().map(shown).collect()
}

/// Returns the options that a configuration sets, without the beginning that all have.
fn set_options(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.strip_prefix("CONFIG_")).collect()
}

/// Lists what differs between several origins, besides costs: its name, and its value for each of them.
pub fn among(origins: &[&Origin]) -> Vec<(String, Vec<String>)> {
    let mut all = Vec::new();
    let mut add = |what: &str, values: Vec<String>| {
        if values.iter().any(|value| *value != values[0]) {
            let shown = |text: String| if text.is_empty() { "–".to_owned() } else { short(&text) };
            all.push((what.to_owned(), values.into_iter().map(shown).collect()));
        }
    };
    let each = |of: &dyn Fn(&Origin) -> String| origins.iter().map(|origin| of(origin)).collect::<Vec<String>>();
    add("processor", each(&|origin| origin.processor.clone()));
    add("model of time", each(&|origin| origin.model.clone()));
    add("kernel", each(&|origin| origin.release.clone().unwrap_or_default()));
    add("image", each(&|origin| origin.image.clone()));
    let words = origins.iter().map(|origin| origin.command_line.split_whitespace().collect());
    add("words of the command line", uncommon(words.collect()));
    let inputs = origins.iter().map(|origin| &origin.inputs).collect::<Vec<_>>();
    let states = origins.iter().map(|origin| &origin.state).collect::<Vec<_>>();
    for facts in [inputs, states] {
        let names: BTreeSet<&String> = facts.iter().flat_map(|facts| facts.keys()).collect();
        for name in names {
            let values = facts.iter().map(|facts| facts.get(name).map_or("", String::as_str));
            if LISTS.contains(&name.as_str()) {
                add(name, uncommon(values.map(|list| list.split_whitespace().collect()).collect()));
            } else {
                add(name, values.map(str::to_owned).collect());
            }
        }
    }
    let configurations: Option<Vec<_>> =
        origins.iter().map(|origin| origin.configuration.as_deref().map(set_options)).collect();
    if let Some(configurations) = configurations {
        add("configuration", uncommon(configurations));
    }
    all
}

/// Lists what differs between two origins, besides costs.
pub fn differing(a: &Origin, b: &Origin) -> Vec<Differing> {
    let row = |(what, values): (String, Vec<String>)| {
        let mut values = values.into_iter();
        let mut next = || values.next().unwrap_or_default();
        Differing { what, a: next(), b: next() }
    };
    among(&[a, b]).into_iter().map(row).collect()
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
        // Of three, each shows what not all have.
        let third = Origin { command_line: "quiet mitigations=off nosmt".into(), ..a.clone() };
        let rows = among(&[&a, &b, &third]);
        let words = ["panic=-1 mitigations=off", "panic=-1", "mitigations=off nosmt"].map(str::to_owned);
        assert_eq!(rows[0], ("words of the command line".to_owned(), words.to_vec()));
        assert_eq!((rows.len(), &*rows[2].1[2]), (3, "Vulnerable"));
    }
}
