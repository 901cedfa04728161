//! Call stacks and cost trees in the folded format, and their flame graphs. A cost tree needs no call stacks: it leads from the level and the ring to the
//! function and the cause.

use inferno::flamegraph::{self, Options, color::BackgroundColor};
use ledger::summary::{By, CallStack, Cause, Line, Lines, Weigh};
use ledger::{Kind, Ledger, TICKS_PER_CYCLE};
use std::collections::BTreeMap;

/// Replaces the separators of folded lines in a name.
fn frame(name: &str) -> String {
    name.chars().map(|c| if c == ';' || c.is_control() { ',' } else { c }).collect()
}

fn level(level: u8, guests: bool) -> &'static str {
    match (level, guests) {
        (0, false) => "machine",
        (0, true) => "hypervisor",
        (1, _) => "guest",
        _ => "nested guest",
    }
}

/// Parses a folded line into its frames, separated by `;` from the outermost on, and its weight.
pub fn parsed(line: &str) -> Option<(&str, u64)> {
    let (frames, weight) = line.rsplit_once(' ')?;
    Some((frames, weight.parse().ok()?))
}

/// Converts ticks to cycles, rounded.
fn cycles(ticks: u128) -> u128 {
    (ticks + u128::from(TICKS_PER_CYCLE) / 2) / u128::from(TICKS_PER_CYCLE)
}

/// Returns stacks in the folded format, sorted: lines `task;function;function weight`, the outermost function first. Ticks become cycles.
pub fn folded(stacks: &[CallStack], weigh: &Weigh) -> Vec<String> {
    let weight = |stack: &CallStack| match weigh {
        Weigh::Samples | Weigh::Crossings => cycles(stack.weight.into()),
        Weigh::Kinds(_) => stack.weight.into(),
    };
    let names = |stack: &CallStack| stack.names.iter().map(|name| frame(name)).collect::<Vec<_>>().join(";");
    let lines = stacks.iter().map(|stack| (names(stack), weight(stack))).filter(|(_, weight)| *weight != 0);
    lines.map(|(names, weight)| format!("{names} {weight}")).collect()
}

/// Returns the folded call stacks of a region or of the whole run, in cycles: those of samples, else those of crossings. Empty if there are none.
pub fn stacks(ledger: &Ledger, region: Option<&str>) -> Vec<String> {
    let selection = region.map_or_else(|| Some(ledger.all()), |name| ledger.region(name));
    match (selection, ledger.weigh()) {
        (Some(selection), Some(weigh)) => folded(&selection.call_stacks(&weigh), &weigh),
        _ => Vec::new(),
    }
}

/// Returns the cost tree of a region or of the whole run, sorted: lines `level;ring;function;cause cycles`. Cycles are rounded, and lines that round
/// to zero are left out.
pub fn cost_tree(ledger: &Ledger, region: Option<&str>) -> Vec<String> {
    let region = region.and_then(|name| ledger.regions.iter().position(|region| region.name == name));
    let wanted = |at: u32| region.is_none_or(|region| region == at as usize);
    let guests = ledger.origins.iter().any(|origin| origin.level != 0);
    let costs = ledger.shape_costs();
    let lines = Lines::new(ledger, By::Symbol);
    let mut places: BTreeMap<(u32, Line, Option<Kind>), u128> = BTreeMap::new();
    for block in ledger.blocks.iter().filter(|block| wanted(block.region)) {
        let ticks = costs[block.shape as usize].0.saturating_mul(u128::from(block.runs));
        let sum = places.entry((block.origin, lines.of((block.origin, block.rip, block.region)), None)).or_default();
        *sum = sum.saturating_add(ticks);
    }
    for event in ledger.events.iter().filter(|event| wanted(event.region)) {
        let kind = Some(event.kind).filter(|kind| Cause::of(*kind) != Cause::Instructions);
        let sum = places.entry((event.origin, lines.of((event.origin, event.rip, event.region)), kind)).or_default();
        *sum = sum.saturating_add(u128::from(event.ticks));
    }
    let mut stacks: BTreeMap<String, u128> = BTreeMap::new();
    for ((origin, line, kind), ticks) in places {
        let origin = ledger.origins[origin as usize];
        let function = lines.name(line);
        let cause = ledger.describe_cause(kind.map_or(Cause::Instructions, Cause::of));
        let line =
            format!("{};ring {};{};{}", level(origin.level, guests), origin.ring, frame(&function), frame(&cause));
        let sum = stacks.entry(line).or_default();
        *sum = sum.saturating_add(ticks);
    }
    let lines = stacks.into_iter().map(|(stack, ticks)| (stack, cycles(ticks))).filter(|(_, cycles)| *cycles != 0);
    lines.map(|(stack, cycles)| format!("{stack} {cycles}")).collect()
}

/// Returns the style of a drawing.
fn options(unit: &str) -> Options<'static> {
    let mut options = Options::default();
    options.title = String::new();
    options.count_name = unit.to_owned();
    options.bgcolors = "#ffffff".parse::<BackgroundColor>().ok();
    options.deterministic = true;
    options.min_width = 0.1;
    options.font_size = 12;
    options
}

/// Draws folded lines, whose weights have the given unit, as an SVG flame graph. Equal lines give equal bytes. Returns `None` if there is nothing to draw.
pub fn svg(lines: &[String], unit: &str) -> Option<String> {
    let mut svg = Vec::new();
    flamegraph::from_lines(&mut options(unit), lines.iter().map(String::as_str), &mut svg).ok()?;
    String::from_utf8(svg).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ledger;

    #[test]
    fn a_cost_tree_says_who_and_why() {
        assert_eq!(
            cost_tree(&ledger(4), Some("work")),
            [
                "guest;ring 0;do_work;TLB misses 420",
                "guest;ring 0;do_work;instructions 2000",
                "guest;ring 0;load_cr3;MOV CR3 7200",
                "guest;ring 3;[user code];instructions 1200",
                "hypervisor;ring 0;load_cr3;VM entry 2400",
                "hypervisor;ring 0;load_cr3;VM exit CR_ACCESS 3600",
                "hypervisor;ring 0;load_cr3;hypervisor: own table entries read 160",
                "hypervisor;ring 0;load_cr3;hypervisor: run loop 1600",
            ]
        );
        assert!(cost_tree(&ledger(0), None)[0].starts_with("machine;"));
    }

    #[test]
    fn the_same_lines_give_the_same_drawing() {
        let lines = cost_tree(&ledger(4), None);
        let drawing = svg(&lines, "cycles").unwrap();
        assert_eq!(svg(&lines, "cycles").unwrap(), drawing);
        assert!(drawing.contains("load_cr3"));
        assert_eq!(svg(&[], "cycles"), None);
    }

    #[test]
    fn stacks_are_folded() {
        let stack =
            |names: &[&str], weight| CallStack { names: names.iter().map(|n| (*n).to_owned()).collect(), weight };
        let stacks = [stack(&["sh", "main;x", "write"], 2600), stack(&["sh"], 400)];
        assert_eq!(folded(&stacks, &Weigh::Samples), ["sh;main,x;write 3"]);
        assert_eq!(folded(&stacks, &Weigh::Kinds(Vec::new())), ["sh;main,x;write 2600", "sh 400"]);
        assert_eq!(super::stacks(&ledger(4), None), [""; 0], "the ledger has none");
    }
}
