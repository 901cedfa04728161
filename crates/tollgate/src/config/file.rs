//! The user's configuration file: its place, its keys and their values.

use anyhow::{Context, Result, anyhow, bail};
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The variable that names another file. An empty one means that there is none.
pub const VARIABLE: &str = lab::diff::runner::CONFIGURATION;
/// The file in the user's directory for configurations.
const FILE: &str = "tollgate/config.toml";
/// Larger than any configuration file, in bytes.
const LARGEST: u64 = 1 << 20;
/// Letters in which a key may differ from one that is meant.
const NEAR: usize = 2;

/// The keys, and the commands that have an option of that name.
pub const KEYS: [(&str, &[&str]); 14] = [
    ("cpu", &["exec", "diff", "stat", "series"]),
    ("cpus", &["exec", "diff", "stat", "series"]),
    ("escape", &["exec"]),
    ("jobs", &["diff", "stat", "series"]),
    ("kernel", &["exec", "diff", "stat"]),
    ("layouts", &["diff", "series"]),
    ("margin", &["diff", "series"]),
    ("memory", &["exec", "diff", "stat", "series"]),
    ("model", &["exec", "diff", "stat", "series"]),
    ("repeat", &["stat"]),
    ("settle", &["diff", "stat", "series"]),
    ("tier", &["exec", "diff", "stat", "series"]),
    ("time-limit", &["diff"]),
    ("user", &["exec", "diff", "stat", "series"]),
];
/// The commands that have sections of their own.
pub const COMMANDS: [&str; 4] = ["exec", "diff", "stat", "series"];

/// A value in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The key: the name of an option.
    pub key: &'static str,
    /// The command that it is for; None for all that have the option.
    pub section: Option<&'static str>,
    /// The value.
    pub value: String,
    /// The line of the file.
    pub line: usize,
}

/// The file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Its path. None if the variable says that there is none, or if there is no directory for it.
    pub path: Option<PathBuf>,
    /// True if the file exists.
    pub exists: bool,
    /// Its values.
    pub all: Vec<Setting>,
}

/// Returns the path of the file, and true if the user names it by the variable.
fn path() -> Option<(PathBuf, bool)> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    match std::env::var_os(VARIABLE) {
        Some(named) if named.is_empty() => None,
        Some(named) => Some((named.into(), true)),
        None => {
            let base = set("XDG_CONFIG_HOME").filter(|base| base.is_absolute());
            Some((base.or_else(|| Some(set("HOME")?.join(".config")))?.join(FILE), false))
        }
    }
}

/// Returns the known name that a text resembles.
fn meant(text: &str, known: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let distance = |name: &&str| strsim::damerau_levenshtein(&text.to_lowercase().replace('_', "-"), name);
    known.min_by_key(distance).filter(|name| distance(name) <= NEAR)
}

/// Replaces the sign for the home directory at the beginning of a value.
fn expanded(value: &str) -> String {
    let home = std::env::var("HOME").ok().filter(|home| !home.is_empty());
    match (value.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => format!("{home}/{rest}"),
        _ => value.to_owned(),
    }
}

/// A place in the file, for messages.
struct Source<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    fn line(&self, at: usize) -> usize {
        self.text.as_bytes()[..at.min(self.text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
    }

    fn error(&self, at: usize, text: String) -> anyhow::Error {
        anyhow!("{}:{}: {text}", self.path.display(), self.line(at))
    }

    /// Reads the values of a table.
    fn table(&self, table: &DeTable, section: Option<&'static str>, all: &mut Vec<Setting>) -> Result<()> {
        for (key, value) in table {
            let (at, name) = (key.span().start, key.get_ref().as_ref());
            if let (DeValue::Table(inner), None) = (value.get_ref(), section) {
                let Some(command) = COMMANDS.iter().find(|command| **command == name) else {
                    let hint = meant(name, COMMANDS.into_iter())
                        .map_or_else(String::new, |name| format!(": is [{name}] meant?"));
                    return Err(self.error(
                        at,
                        format!("there is no section [{name}]{hint}; there are [{}]", COMMANDS.join("], [")),
                    ));
                };
                self.table(inner, Some(command), all)?;
                continue;
            }
            all.push(self.setting(at, name, value, section)?);
        }
        Ok(())
    }

    fn setting(
        &self,
        at: usize,
        name: &str,
        value: &Spanned<DeValue>,
        section: Option<&'static str>,
    ) -> Result<Setting> {
        let Some((key, commands)) = KEYS.iter().find(|(key, _)| *key == name) else {
            let hint = meant(name, KEYS.iter().map(|(key, _)| *key));
            let hint =
                hint.map_or_else(|| "`tollgate config` lists the keys".to_owned(), |key| format!("is {key} meant?"));
            return Err(self.error(at, format!("the key {name} is not known: {hint}")));
        };
        if let Some(section) = section.filter(|section| !commands.contains(section)) {
            return Err(self.error(at, format!("`tollgate {section}` has no option --{key}")));
        }
        let value = match value.get_ref() {
            DeValue::String(text) => expanded(text),
            DeValue::Integer(number) => number.to_string(),
            DeValue::Float(number) => number.to_string(),
            _ => return Err(self.error(at, format!("the value of {key} is neither a text nor a number"))),
        };
        Ok(Setting { key, section, value, line: self.line(at) })
    }
}

/// Reads the values in a text.
pub fn parse(path: &Path, text: &str) -> Result<Vec<Setting>> {
    let source = Source { path, text };
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        source.error(at, error.message().to_owned())
    })?;
    let mut all = Vec::new();
    source.table(table.get_ref(), None, &mut all)?;
    all.sort_by_key(|setting| setting.line);
    Ok(all)
}

/// Reads the file, if there is one.
pub fn load() -> Result<Settings> {
    let Some((path, named)) = path() else { return Ok(Settings::default()) };
    if !named && !path.exists() {
        return Ok(Settings { path: Some(path), ..Settings::default() });
    }
    let bytes = crate::input::read(&path, LARGEST);
    let bytes = bytes.with_context(|| if named { VARIABLE.to_owned() } else { "the configuration file".to_owned() })?;
    let Ok(text) = String::from_utf8(bytes) else { bail!("{} is not text", path.display()) };
    let all = parse(&path, &text)?;
    Ok(Settings { path: Some(path), exists: true, all })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<Setting>, String> {
        parse(Path::new("c.toml"), text).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn keys_are_for_all_commands_or_for_one() {
        let all = parsed("# mine\ncpu = \"zen3\"\ncpus = 2\n\n[diff]\nlayouts = 12\nmargin = 0.5\n").unwrap();
        let of = |key, section, value: &str, line| Setting { key, section, value: value.to_owned(), line };
        assert_eq!(
            all,
            [
                of("cpu", None, "zen3", 2),
                of("cpus", None, "2", 3),
                of("layouts", Some("diff"), "12", 6),
                of("margin", Some("diff"), "0.5", 7)
            ]
        );
        assert_eq!(parsed("").unwrap(), []);
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (text, error) in [
            ("\ncpuu = \"x\"\n", "c.toml:2: the key cpuu is not known: is cpu meant?"),
            ("time_limit = 3\n", "c.toml:1: the key time_limit is not known: is time-limit meant?"),
            ("colour = 1\n", "c.toml:1: the key colour is not known: `tollgate config` lists the keys"),
            (
                "[dif]\ncpu = \"x\"\n",
                "c.toml:1: there is no section [dif]: is [diff] meant?; there are [exec], [diff], [stat], [series]",
            ),
            ("[exec]\nlayouts = 3\n", "c.toml:2: `tollgate exec` has no option --layouts"),
            ("cpu = true\n", "c.toml:1: the value of cpu is neither a text nor a number"),
            ("cpu = [\"a\"]\n", "c.toml:1: the value of cpu is neither a text nor a number"),
        ] {
            assert_eq!(parsed(text).unwrap_err(), error, "{text}");
        }
        let error = parsed("cpu = \"a\"\ncpu = \n").unwrap_err();
        assert!(error.starts_with("c.toml:2: "), "{error}");
    }
}
