//! Indirect branches in a report: their table, and the estimates of `--what-if`.

use crate::table::{
    Align::{Left, Right},
    cycles, number, share, table,
};
use crate::usage::WrongArguments;
use anyhow::{Result, bail};
use ledger::summary::{Direct, Saved, Selection, Site};
use ledger::{Class, Family, Ledger, Taken, Ticks, Way};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::str::FromStr;

/// A hypothetical change for which `--what-if` estimates the charges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhatIf {
    /// A compare and a direct branch replace an indirect branch.
    Direct(Direct),
    /// The guest loads the result of a CPUID leaf from memory.
    Cached {
        /// The leaf.
        leaf: u32,
    },
}

const FORMS: &str = "direct(SITE), direct(SITE=TARGET,TARGET) or cached(CPUID.LEAF)";

/// Returns the names in a list of targets, each once: a second compare with a target never meets it.
fn parse_targets(list: &str) -> Result<Vec<String>, String> {
    let mut targets: Vec<String> = Vec::new();
    for name in list.split(',').map(str::trim) {
        if name.is_empty() {
            return Err("a target is missing after '=' or ','; direct(SITE) uses the most frequent target".to_owned());
        }
        if !targets.iter().any(|known| known == name) {
            targets.push(name.to_owned());
        }
    }
    Ok(targets)
}

impl FromStr for WhatIf {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is none of {FORMS}");
        let (verb, rest) = text.trim().split_once('(').ok_or_else(wrong)?;
        let inside = rest.strip_suffix(')').ok_or_else(wrong)?.trim();
        match verb.trim() {
            "direct" => {
                let (place, targets) = match inside.split_once('=') {
                    Some((place, list)) => (place.trim(), parse_targets(list)?),
                    None => (inside, Vec::new()),
                };
                let direct = Direct { place: place.to_owned(), targets };
                if place.is_empty() { Err(wrong()) } else { Ok(Self::Direct(direct)) }
            }
            "cached" => {
                let leaf = inside.strip_prefix("CPUID.").or_else(|| inside.strip_prefix("cpuid.")).ok_or_else(wrong)?;
                let parsed = match leaf.strip_prefix("0x") {
                    Some(digits) => u32::from_str_radix(digits, 16),
                    None => leaf.parse(),
                };
                parsed.map(|leaf| Self::Cached { leaf }).map_err(|_| wrong())
            }
            _ => Err(wrong()),
        }
    }
}

/// The effect of a change.
struct Outcome {
    /// The site or the leaf of CPUID that the change replaces.
    of: String,
    what: String,
    /// The number of executions, and the number of those that the change affects.
    count: u64,
    changed: u64,
    before: Ticks,
    after: Ticks,
    assumes: &'static str,
}

impl From<Saved> for Outcome {
    fn from(saved: Saved) -> Self {
        let Saved { place, targets, count, direct, before, after } = saved;
        let what = format!("{place}: compare with {}, then a direct branch", targets.join(", "));
        Self { of: place, what, count, changed: direct, before, after, assumes: DIRECT }
    }
}

const DIRECT: &str = "each target costs a compare and a conditional branch, mispredicted as often as other branches, until one matches; the branch to the \
     match is direct. Executions with other targets keep the indirect branch. Caches, inlining and the layout of code stay unchanged";
const CACHED: &str =
    "each CPUID is a load that hits the first-level cache. The cost of reading the values once is not included";

fn outcomes(ledger: &Ledger, selection: Selection, sites: &[Site], change: &WhatIf) -> Result<Vec<Outcome>> {
    match change {
        WhatIf::Direct(direct) => {
            has_branches(ledger)?;
            let saved = ledger.made_direct(sites, direct);
            if saved.is_empty() {
                bail!(WrongArguments::new(format!("--what-if: {}", why_none(sites, direct))));
            }
            let never = direct.targets.iter().find(|target| !goes_to(sites, &saved, target));
            if let Some(target) = never {
                let place = &direct.place;
                let text = format!("--what-if: no branch at '{place}' went to '{target}' (--json lists all targets)");
                bail!(WrongArguments::new(text));
            }
            Ok(saved.into_iter().map(Outcome::from).collect())
        }
        WhatIf::Cached { leaf } => {
            let is_meant = |family: Family, param: u32| family == Family::Cpuid && leaf_of(param) == *leaf;
            let kinds = selection.kinds();
            let meant = kinds.iter().filter(|(kind, _)| is_meant(kind.family, kind.param));
            let (count, before) = meant.fold((0u64, 0u64), |(count, ticks), (_, amount)| {
                (count.saturating_add(amount.count), ticks.saturating_add(amount.ticks))
            });
            if count == 0 {
                bail!(WrongArguments::new(format!("--what-if: CPUID {leaf:#x} was not executed here")));
            }
            let load = Ticks::from(ledger.header.class_ticks[Class::Load as usize]);
            let what = format!("CPUID {leaf:#x}: read from memory");
            Ok(vec![Outcome {
                of: format!("CPUID {leaf:#x}"),
                what,
                count,
                changed: count,
                before,
                after: load.saturating_mul(count),
                assumes: CACHED,
            }])
        }
    }
}

/// Fails if the run kept no indirect branches.
pub fn has_branches(ledger: &Ledger) -> Result<()> {
    match ledger.branches.is_empty() {
        true => bail!(
            "the ledger has no indirect branches: `tollgate run --call-sites` and `tollgate exec --call-sites` record them"
        ),
        false => Ok(()),
    }
}

/// Returns the reason why no call or jump can be made direct.
fn why_none(sites: &[Site], direct: &Direct) -> String {
    let place = &direct.place;
    match sites.iter().find(|site| direct.names(site)) {
        Some(site) if site.place.starts_with(INDIRECT_THUNK) => {
            format!(
                "'{place}' is a thunk that many places jump to. The ledger does not have these places, so none can be made direct"
            )
        }
        Some(_) => format!("'{place}' has returns only, which cannot be made direct"),
        None => format!("no indirect call or jump is at '{place}' (see --by call-site)"),
    }
}

/// Returns true if one of the sites has branched to the target.
fn goes_to(sites: &[Site], saved: &[Saved], target: &str) -> bool {
    let is_meant = |site: &&Site| saved.iter().any(|saved| saved.place == site.place);
    let is_target = |name: &str| name == target || name.split(' ').next() == Some(target);
    sites.iter().filter(is_meant).any(|site| site.targets.iter().any(|(name, _)| is_target(name)))
}

/// Returns the leaf of a kind of CPUID, see [`ledger::Kind::cpuid`].
fn leaf_of(param: u32) -> u32 {
    if param & 0xff == 0xd { 0xd } else { param }
}

/// Formats the share of `part` in `whole` with a sign.
fn signed_share(part: i128, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:+.3}%", part as f64 * 100.0 / whole as f64) }
}

fn difference(outcome: &Outcome) -> i128 {
    i128::from(outcome.after) - i128::from(outcome.before)
}

/// Returns the effects of all changes, and what more than one of them replaces.
fn all_outcomes(ledger: &Ledger, selection: Selection, changes: &[WhatIf]) -> Result<(Vec<Outcome>, BTreeSet<String>)> {
    let sites = selection.sites();
    let (mut all, mut known, mut shared): (Vec<Outcome>, _, _) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for change in changes {
        let outcomes = outcomes(ledger, selection, &sites, change)?;
        // One change may replace branches of two levels that have one name.
        let replaced: BTreeSet<String> = outcomes.iter().map(|outcome| outcome.of.clone()).collect();
        shared.extend(replaced.intersection(&known).cloned());
        known.extend(replaced);
        all.extend(outcomes);
    }
    Ok((all, shared))
}

/// Returns the savings of the changes as a table.
pub fn what_if_text(out: &mut String, ledger: &Ledger, selection: Selection, changes: &[WhatIf]) -> Result<()> {
    let (outcomes, shared) = all_outcomes(ledger, selection, changes)?;
    let busy = selection.total().busy();
    let mut assumptions: Vec<&str> = Vec::new();
    let mut rows = Vec::new();
    for outcome in outcomes {
        if !assumptions.contains(&outcome.assumes) {
            assumptions.push(outcome.assumes);
        }
        rows.push(vec![
            signed_share(difference(&outcome), busy),
            cycles(outcome.before),
            cycles(outcome.after),
            number(outcome.count),
            number(outcome.changed),
            outcome.what,
        ]);
    }
    out.push_str("\nWhat if\n\n");
    let headings = [
        ("of all", Right),
        ("cycles", Right),
        ("instead", Right),
        ("count", Right),
        ("changed", Right),
        ("what", Left),
    ];
    table(out, &headings, &rows);
    for of in shared {
        out.push_str(&format!("\nMore than one change replaces {of}: their gains do not add up.\n"));
    }
    for assumption in assumptions {
        out.push_str(&format!("\nAssumed: {assumption}.\n"));
    }
    Ok(())
}

/// Returns the savings of the changes as JSON.
pub fn what_if_json(ledger: &Ledger, selection: Selection, changes: &[WhatIf]) -> Result<Vec<Value>> {
    let (outcomes, shared) = all_outcomes(ledger, selection, changes)?;
    let value = |outcome: Outcome| {
        json!({
            "what": outcome.what, "count": outcome.count, "changed": outcome.changed,
            "before_ticks": outcome.before, "after_ticks": outcome.after, "assumes": outcome.assumes,
            "overlaps": shared.contains(&outcome.of),
        })
    };
    Ok(outcomes.into_iter().map(value).collect())
}

/// Beginning of the names of Linux's thunks for indirect calls and jumps.
const INDIRECT_THUNK: &str = "__x86_indirect_";

/// Returns the name of a site's kind. Linux has separate names for its thunks.
fn way(site: &Site) -> String {
    const THUNKS: &[(&str, &str)] = &[
        ("__x86_indirect_thunk", "retpoline, jump"),
        ("__x86_indirect_call_thunk", "retpoline, call depth"),
        ("__x86_indirect_jump_thunk", "retpoline, call depth"),
        ("__x86_return_thunk", "return thunk"),
        ("__x86_return_skl", "return thunk, call depth"),
        ("retbleed_return_thunk", "return thunk"),
        ("srso_", "return thunk"),
        ("zen_untrain_ret", "return thunk"),
    ];
    let known = THUNKS.iter().find(|(name, _)| site.way == Way::Return && site.place.starts_with(name));
    known.map_or(site.way.name(), |(_, what)| what).to_owned()
}

/// Number of targets shown in a line. JSON has all.
const SHOWN: usize = 1;

fn targets(site: &Site) -> String {
    let part = |taken: &Taken| taken.count as f64 * 100.0 / site.taken.count.max(1) as f64;
    let mut shown: Vec<String> =
        site.targets.iter().take(SHOWN).map(|(name, taken)| format!("{name} {:.0}%", part(taken))).collect();
    if site.targets.len() > SHOWN {
        shown.push(format!("{} more", site.targets.len() - SHOWN));
    }
    shown.join(", ")
}

/// Appends the table of sites.
pub fn text(out: &mut String, selection: Selection, busy: u64, top: usize) {
    let sites = selection.sites();
    if sites.is_empty() {
        out.push_str("\nThis part of the run has no indirect branches.\n");
        return;
    }
    let shown: Vec<Vec<String>> = sites
        .iter()
        .take(top)
        .map(|site| {
            vec![
                share(site.ticks, busy),
                cycles(site.ticks),
                number(site.taken.count),
                number(site.taken.missed),
                way(site),
                site.place.clone(),
                targets(site),
            ]
        })
        .collect();
    let more = if shown.len() < sites.len() { format!(" ({} of {})", shown.len(), sites.len()) } else { String::new() };
    out.push_str(&format!("\nIndirect branches{more}\n\n"));
    let headings = [
        ("share", Right),
        ("cycles", Right),
        ("count", Right),
        ("missed", Right),
        ("kind", Left),
        ("site", Left),
        ("targets", Left),
    ];
    table(out, &headings, &shown);
}

/// Returns the first sites of the table as JSON.
pub fn json(selection: Selection, top: usize) -> Vec<Value> {
    let target =
        |(name, taken): &(String, Taken)| json!({ "name": name, "count": taken.count, "missed": taken.missed });
    let site = |site: &Site| {
        json!({
            "site": site.place, "kind": way(site), "level": site.level, "count": site.taken.count,
            "missed": site.taken.missed, "ticks": site.ticks, "targets": site.targets.iter().map(target).collect::<Vec<_>>(),
        })
    };
    selection.sites().iter().take(top).map(site).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read() {
        let direct = |place: &str, targets: &[&str]| {
            let targets = targets.iter().map(|&name| name.to_owned()).collect();
            Ok(WhatIf::Direct(Direct { place: place.to_owned(), targets }))
        };
        assert_eq!("direct(udp_rcv+0x10)".parse(), direct("udp_rcv+0x10", &[]));
        assert_eq!(" direct( f = a, b )".parse(), direct("f", &["a", "b"]));
        assert_eq!("direct(f=a,b,a)".parse(), direct("f", &["a", "b"]));
        assert_eq!("cached(CPUID.0xd)".parse(), Ok(WhatIf::Cached { leaf: 0xd }));
        assert_eq!("cached(cpuid.1)".parse(), Ok(WhatIf::Cached { leaf: 1 }));
        for wrong in [
            "",
            "direct",
            "direct()",
            "direct(=a)",
            "direct(f=)",
            "direct(f=a,)",
            "direct(a",
            "cached(1)",
            "cached(CPUID.x)",
            "batch(f, 2)",
        ] {
            assert!(wrong.parse::<WhatIf>().is_err(), "{wrong}");
        }
    }

    const CODE: u64 = 0xffff_ffff_8100_0000;
    const THUNK: u64 = CODE + 0x1000;

    /// A function with a call, a jump to a thunk, and a return.
    fn ledger() -> Ledger {
        let mut recorder = ledger::Recorder::default();
        let origin = recorder.origin(ledger::Origin::new(0, 0, 0x1000));
        for (site, way) in [(CODE + 0x10, Way::Call), (THUNK + 0x10, Way::Return), (CODE + 0x30, Way::Return)] {
            recorder.add_branch(origin, ledger::Branch { site, way, target: CODE + 0x100 }, false);
        }
        let mut symbols = ledger::Symbols::default();
        let function = |(at, name)| ledger::Symbol::new(at, 0x40, name);
        let functions = [(CODE, "udp_rcv"), (CODE + 0x100, "target"), (THUNK, "__x86_indirect_thunk_rax")];
        symbols.add("", ledger::AddressSpace::default(), functions.map(function).to_vec());
        let profile = ledger::Profile::named("skx").expect("is built in");
        Ledger::new(ledger::Header::new(&profile, vec![0]), &recorder, &symbols)
    }

    /// The estimates for changes, or the reason why there are none.
    fn estimates(changes: &[&str]) -> Result<String, String> {
        let (ledger, mut out) = (ledger(), String::new());
        let changes: Vec<WhatIf> = changes.iter().map(|text| text.parse().expect("is right")).collect();
        let made = what_if_text(&mut out, &ledger, ledger.all(), &changes);
        made.map(|()| out).map_err(|error| error.to_string())
    }

    #[test]
    fn a_site_that_cannot_be_direct_says_why() {
        let refused = |change: &str| estimates(&[change]).expect_err("there is nothing to change");
        assert!(refused("direct(__x86_indirect_thunk_rax+0x10)").contains("is a thunk that many places jump to"));
        assert!(refused("direct(__x86_indirect_thunk_rax)").contains("is a thunk that many places jump to"));
        assert!(refused("direct(udp_rcv+0x30)").contains("has returns only"));
        assert!(refused("direct(nowhere)").contains("no indirect call or jump is at 'nowhere'"));
    }

    #[test]
    fn changes_of_one_site_overlap() {
        let note = "More than one change replaces udp_rcv+0x10: their gains do not add up.";
        let both = ["direct(udp_rcv)", "direct(udp_rcv+0x10=target)"];
        assert_eq!(estimates(&both).expect("are possible").matches(note).count(), 1);
        assert!(!estimates(&both[..1]).expect("is possible").contains("add up"));
        let ledger = ledger();
        let changes = both.map(|text| text.parse().expect("is right"));
        let values = what_if_json(&ledger, ledger.all(), &changes).expect("are possible");
        assert!(values.len() == 2 && values.iter().all(|value| value["overlaps"] == true), "{values:?}");
    }
}
