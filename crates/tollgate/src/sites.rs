//! Indirect branches in a report: their table, and the estimates of `--what-if`.

use crate::table::{
    Align::{Left, Right},
    cycles, number, share, table,
};
use anyhow::{Result, bail};
use ledger::summary::{Direct, Saved, Selection, Site};
use ledger::{Class, Family, Ledger, Taken, Ticks, Way};
use serde_json::{Value, json};
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

impl FromStr for WhatIf {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is none of {FORMS}");
        let (verb, rest) = text.trim().split_once('(').ok_or_else(wrong)?;
        let inside = rest.strip_suffix(')').ok_or_else(wrong)?.trim();
        match verb.trim() {
            "direct" => {
                let (place, targets) = inside.split_once('=').unwrap_or((inside, ""));
                let named = |name: &&str| !name.is_empty();
                let targets: Vec<String> = targets.split(',').map(str::trim).filter(named).map(str::to_owned).collect();
                let place = place.trim().to_owned();
                if place.is_empty() { Err(wrong()) } else { Ok(Self::Direct(Direct { place, targets })) }
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
        Self { what, count, changed: direct, before, after, assumes: DIRECT }
    }
}

const DIRECT: &str = "each target costs a compare and a conditional branch, which is mispredicted as often as others are, until one is met; the branch to it \
     is direct. Others go on as now. Nothing else changes: caches, inlining, the layout of code";
const CACHED: &str = "each CPUID is a load that hits the first-level cache. Reading the values once is left out";

fn outcomes(ledger: &Ledger, selection: Selection, sites: &[Site], change: &WhatIf) -> Result<Vec<Outcome>> {
    match change {
        WhatIf::Direct(direct) => {
            if ledger.branches.is_empty() {
                bail!("the ledger has no indirect branches: run with --call-sites");
            }
            let saved = ledger.made_direct(sites, direct);
            if saved.is_empty() {
                bail!("no indirect call or jump is at '{}' (see --by call-site)", direct.place);
            }
            let never = direct.targets.iter().find(|target| !goes_to(sites, &saved, target));
            if let Some(target) = never {
                bail!("no branch at '{}' went to '{target}' (--json lists all targets)", direct.place);
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
                bail!("--what-if: CPUID {leaf:#x} was not executed here");
            }
            let load = Ticks::from(ledger.header.class_ticks[Class::Load as usize]);
            let what = format!("CPUID {leaf:#x}: read from memory");
            Ok(vec![Outcome {
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

/// Returns the savings of the changes as a table.
pub fn what_if_text(
    out: &mut String,
    ledger: &Ledger,
    selection: Selection,
    region: Option<&str>,
    changes: &[WhatIf],
) -> Result<()> {
    let sites = ledger.sites(region);
    let busy = selection.total().busy();
    let mut assumptions: Vec<&str> = Vec::new();
    let mut rows = Vec::new();
    for change in changes {
        for outcome in outcomes(ledger, selection, &sites, change)? {
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
    for assumption in assumptions {
        out.push_str(&format!("\nAssumed: {assumption}.\n"));
    }
    Ok(())
}

/// Returns the savings of the changes as JSON.
pub fn what_if_json(
    ledger: &Ledger,
    selection: Selection,
    region: Option<&str>,
    changes: &[WhatIf],
) -> Result<Vec<Value>> {
    let sites = ledger.sites(region);
    let mut all = Vec::new();
    for change in changes {
        all.extend(outcomes(ledger, selection, &sites, change)?.into_iter().map(|outcome| {
            json!({
                "what": outcome.what, "count": outcome.count, "changed": outcome.changed,
                "before_ticks": outcome.before, "after_ticks": outcome.after, "assumes": outcome.assumes,
            })
        }));
    }
    Ok(all)
}

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
pub fn text(out: &mut String, ledger: &Ledger, region: Option<&str>, busy: u64, top: usize) {
    let sites = ledger.sites(region);
    if sites.is_empty() {
        out.push_str("\nThe ledger has no indirect branches: run with --call-sites.\n");
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
pub fn json(ledger: &Ledger, region: Option<&str>, top: usize) -> Vec<Value> {
    let target =
        |(name, taken): &(String, Taken)| json!({ "name": name, "count": taken.count, "missed": taken.missed });
    let site = |site: &Site| {
        json!({
            "site": site.place, "kind": way(site), "level": site.level, "count": site.taken.count,
            "missed": site.taken.missed, "ticks": site.ticks, "targets": site.targets.iter().map(target).collect::<Vec<_>>(),
        })
    };
    ledger.sites(region).iter().take(top).map(site).collect()
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
        assert_eq!("cached(CPUID.0xd)".parse(), Ok(WhatIf::Cached { leaf: 0xd }));
        assert_eq!("cached(cpuid.1)".parse(), Ok(WhatIf::Cached { leaf: 1 }));
        for wrong in ["", "direct", "direct()", "direct(=a)", "direct(a", "cached(1)", "cached(CPUID.x)", "batch(f, 2)"]
        {
            assert!(wrong.parse::<WhatIf>().is_err(), "{wrong}");
        }
    }
}
