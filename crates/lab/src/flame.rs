//! Flame graphs: where the cycles of a cell went, from the level and the ring to the function and the cause.

use inferno::flamegraph::{self, Options, color::BackgroundColor};
use ledger::summary::{By, Cause, Line, Lines};
use ledger::{Kind, Ledger, TICKS_PER_CYCLE};
use std::collections::BTreeMap;

/// What the lines of a stack may not contain.
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

/// Lines `level;ring;function;cause cycles`, in order, of a region or the whole run. Cycles are rounded, and what rounds to
/// nothing is left out.
pub fn stacks(ledger: &Ledger, region: Option<&str>) -> Vec<String> {
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
        let cause = match kind {
            None => "instructions".to_owned(),
            Some(kind) => match Cause::of(kind) {
                Cause::Instructions => "instructions".to_owned(),
                Cause::TlbMisses => "TLB misses".to_owned(),
                Cause::Mispredictions => "mispredictions".to_owned(),
                Cause::Halted => "halted".to_owned(),
                Cause::Crossing(kind) => ledger.describe(kind),
            },
        };
        let line =
            format!("{};ring {};{};{}", level(origin.level, guests), origin.ring, frame(&function), frame(&cause));
        let sum = stacks.entry(line).or_default();
        *sum = sum.saturating_add(ticks);
    }
    let cycles = |ticks: u128| (ticks + u128::from(TICKS_PER_CYCLE) / 2) / u128::from(TICKS_PER_CYCLE);
    let lines = stacks.into_iter().map(|(stack, ticks)| (stack, cycles(ticks))).filter(|(_, cycles)| *cycles != 0);
    lines.map(|(stack, cycles)| format!("{stack} {cycles}")).collect()
}

/// The flame graph of such lines as SVG, the same for the same lines; `None` if there is nothing to draw.
pub fn svg(stacks: &[String]) -> Option<String> {
    let mut options = Options::default();
    options.title = String::new();
    options.count_name = "cycles".to_owned();
    options.bgcolors = "#ffffff".parse::<BackgroundColor>().ok();
    options.deterministic = true;
    options.min_width = 0.1;
    options.font_size = 12;
    let mut svg = Vec::new();
    flamegraph::from_lines(&mut options, stacks.iter().map(String::as_str), &mut svg).ok()?;
    String::from_utf8(svg).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ledger;

    #[test]
    fn stacks_say_who_and_why() {
        assert_eq!(
            stacks(&ledger(4), Some("work")),
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
        assert!(stacks(&ledger(0), None)[0].starts_with("machine;"));
    }

    #[test]
    fn the_same_stacks_give_the_same_drawing() {
        let stacks = stacks(&ledger(4), None);
        let drawing = svg(&stacks).unwrap();
        assert_eq!(svg(&stacks).unwrap(), drawing);
        assert!(drawing.contains("load_cr3"));
        assert_eq!(svg(&[]), None);
    }
}
