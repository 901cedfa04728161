//! Rooms: the modules at the top of a crate. `xtask/rooms.toml` lists which room never names which.

use crate::arrows::Arrows;
use crate::source::Module;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// The file of rules.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    never: Vec<Rule>,
}

/// What the modules of `from` never name.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    #[serde(rename = "crate")]
    package: String,
    /// Paths of modules, such as `exec::vector`, each with all below it. `lib` is the file at the root alone, `*` every module outside `to`.
    from: Vec<String>,
    to: Vec<String>,
    /// The invariant that the rule keeps, as a sentence.
    why: String,
}

impl Rules {
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("{} is wrong", path.display()))
    }

    /// Returns a message for each arrow that a rule of this crate forbids.
    pub fn broken(&self, package: &str, modules: &[Module], arrows: &Arrows) -> Result<Vec<String>> {
        let mut messages = Vec::new();
        for rule in self.never.iter().filter(|rule| rule.package == package) {
            for room in rule.from.iter().chain(&rule.to).filter(|room| *room != "*") {
                ensure!(modules.iter().any(|module| is_in(module, room)), "crate {package} has no module {room}");
            }
            let from = |module: &Module| {
                rule.from.iter().any(|room| match &room[..] {
                    "*" => !rule.to.iter().any(|to| is_in(module, to)),
                    room => is_in(module, room),
                })
            };
            for (at, target) in arrows {
                let (at, target) = (&modules[*at], &modules[*target]);
                if from(at) && rule.to.iter().any(|room| is_in(target, room)) {
                    let (at, target) = (name(at), name(target));
                    messages.push(format!("{package}: {at} names {target}, which it must not: {}", rule.why));
                }
            }
        }
        Ok(messages)
    }

    /// Fails if a rule is about a crate that is not there.
    pub fn check_crates(&self, packages: &[String]) -> Result<()> {
        for rule in &self.never {
            ensure!(packages.contains(&rule.package), "there is no crate {}", rule.package);
        }
        Ok(())
    }
}

fn is_in(module: &Module, room: &str) -> bool {
    match room {
        "lib" => module.path.is_empty(),
        _ => room.split("::").enumerate().all(|(at, part)| module.path.get(at).is_some_and(|own| own == part)),
    }
}

/// Returns the path of a module as a message shows it.
pub fn name(module: &Module) -> String {
    if module.path.is_empty() { "lib".to_owned() } else { module.path.join("::") }
}

/// Returns the room of a module.
pub fn room(module: &Module) -> &str {
    module.path.first().map_or("lib", |first| first)
}

/// Returns the numbers of arrows from room to room.
pub fn between<'a>(modules: &'a [Module], arrows: &Arrows) -> BTreeMap<(&'a str, &'a str), usize> {
    let mut found = BTreeMap::new();
    for (from, to) in arrows {
        let (from, to) = (room(&modules[*from]), room(&modules[*to]));
        if from != to {
            *found.entry((from, to)).or_default() += 1;
        }
    }
    found
}
