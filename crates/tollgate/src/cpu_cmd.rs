//! `tollgate cpu`: the cost profiles, with the source of each figure.

use crate::table::{
    Align::{Left, Right},
    emit, exact_cycles, gigahertz, number, table,
};
use crate::validate_cmd;
use anyhow::Result;
use clap::{Args, Subcommand};
use cpu::model::Model;
use cpu::pmu::Layout;
use ledger::caches::{Branches, DeviceWrites, LINE, Level, Walks};
use ledger::profile::{Confidence, Fetch, MemoryFigures, Prices, Profile, Provenance, Sizes, Sourced};
use ledger::{Class, Family, Kind, Operation, Ticks};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use uarch::core::parameters;
use uarch::{CoreTable, Repeat};

/// Shows the modelled processors and their costs.
#[derive(Args)]
pub struct CpuArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Lists the processors
    List(ListArgs),
    /// Shows a processor's costs, each with its source and confidence
    Show(ShowArgs),
}

#[derive(Args)]
struct ListArgs {
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct ShowArgs {
    /// Name from `tollgate cpu list`, or TOML file
    #[arg(value_name = "NAME")]
    name: String,
    /// Shows the costs in a program that emulates the processor
    #[arg(long)]
    emulated: bool,
    /// Prints both as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &CpuArgs) -> Result<()> {
    match &args.command {
        Command::List(list) => {
            let profiles = Profile::names().map(Profile::named).collect::<Result<Vec<_>, _>>()?;
            if list.json {
                emit(&format!("{:#}\n", profiles.iter().map(summary).collect::<Value>()))
            } else {
                emit(&names(&profiles))
            }
        }
        Command::Show(show) => {
            let profile = crate::model::named(&show.name)?;
            match (show.json, show.emulated) {
                (true, _) => emit(&format!("{:#}\n", document(&profile))),
                (false, false) => {
                    let quotation = validate_cmd::quotation(&profile.name);
                    let quotation =
                        quotation.map_or(String::new(), |quotation| format!("{quotation} (tollgate validate)\n\n"));
                    emit(&format!("{quotation}{}", text(&profile)))
                }
                (false, true) => emit(&emulator_text(&profile)),
            }
        }
    }
}

/// Returns the number of costs of each confidence.
fn confidences(profile: &Profile) -> [usize; 4] {
    let levels = Confidence::ALL;
    let costs = profile
        .prices
        .classes
        .iter()
        .chain(profile.prices.families.iter().flatten())
        .chain(profile.prices.kinds.values());
    let mut counts = [0; 4];
    for cost in costs {
        for (count, level) in counts.iter_mut().zip(levels) {
            *count += usize::from(cost.from.confidence == *level);
        }
    }
    counts
}

/// Describes the numbers of measured and other prices.
fn confidence_text(profile: &Profile) -> String {
    let counts = confidences(profile);
    let all: usize = counts.iter().sum();
    let [high, medium, low, estimates] = counts;
    format!("{estimates} of {all} prices are estimates (H {high}, M {medium}, L {low})")
}

fn names(profiles: &[Profile]) -> String {
    let rows: Vec<Vec<String>> = profiles
        .iter()
        .map(|profile| {
            let boost = profile.boost_hz.as_ref().map_or("-".to_owned(), |hz| gigahertz(hz.value));
            let mut row = vec![profile.name.clone(), gigahertz(profile.tsc_hz.value), boost];
            row.extend(confidences(profile).map(|count| count.to_string()));
            row.push(if profile.synthetic { format!("{} (synthetic)", profile.title) } else { profile.title.clone() });
            row
        })
        .collect();
    let mut out = String::new();
    let headings = [
        ("name", Left),
        ("frequency", Right),
        ("boost", Right),
        ("H", Right),
        ("M", Right),
        ("L", Right),
        ("estimate", Right),
        ("processor", Left),
    ];
    table(&mut out, &headings, &rows);
    out.push_str("\nH, M, L, estimate: how many costs are measured, from a neighbouring processor or secondary source, known from\n");
    let others =
        |name: &str| Profile::aliases().filter(|alias| alias.1 == name).map(|alias| alias.0).collect::<Vec<_>>();
    let aliases = profiles.iter().map(|profile| (&profile.name, others(&profile.name)));
    let aliases = aliases.filter(|(_, others)| !others.is_empty());
    let aliases: Vec<String> = aliases.map(|(name, others)| format!("{name} ({})", others.join(", "))).collect();
    out.push_str("the literature, estimated. `tollgate cpu show NAME` prints each with its source.\n");
    out.push_str(&format!("\nOther names: {}.\n", aliases.join("; ")));
    out
}

fn text(profile: &Profile) -> String {
    let mut out = String::new();
    let hz = &profile.tsc_hz;
    let bits = &profile.physical_bits;
    let virtualization = &profile.virtualization;
    let mut facts = vec![("frequency", gigahertz(hz.value), &hz.from)];
    if let Some(boost) = &profile.boost_hz {
        facts.push(("boost", gigahertz(boost.value), &boost.from));
    }
    facts.extend([
        ("physical address", format!("{} bits", bits.value), &bits.from),
        ("virtualization", virtualization.value.names().collect::<Vec<_>>().join(", "), &virtualization.from),
        ("CPUID", String::new(), &profile.cpuid_from),
    ]);
    if let Some(value) = &profile.arch_capabilities {
        facts.push(("ARCH_CAPABILITIES", format!("{:#x}", value.value), &value.from));
    }
    if let (Some(revision), Some(microcode)) = (profile.microcode_revision(), &profile.microcode) {
        facts.push(("microcode", format!("{revision:#x}"), &microcode.from));
    }
    if let Some(value) = &profile.host_xcr0 {
        facts.push(("XCR0 of a host", format!("{:#x}", value.value), &value.from));
    }
    let facts: Vec<Vec<String>> = facts
        .into_iter()
        .map(|(name, value, from)| vec![name.to_owned(), value, from.confidence.name().to_owned(), from.source.clone()])
        .collect();
    out.push_str(&format!("{}: {}\n\n", profile.name, profile.title));
    table(&mut out, &[("", Left), ("", Left), ("conf.", Left), ("source", Left)], &facts);
    out.push('\n');
    for paragraph in profile.notes.split(". ") {
        out.push_str(paragraph.trim_end_matches('.'));
        out.push_str(".\n");
    }
    out.push_str(&format!("\n{}.\n", confidence_text(profile)));
    lacking_text(&mut out, profile);
    counters_text(&mut out, profile);
    prices_text(&mut out, &profile.prices);
    sizes_text(&mut out, &profile.sizes);
    core_text(&mut out, profile);
    strings_text(&mut out, profile);
    out
}

/// Returns the events that a guest's performance counters count, each with its number and its unit mask. None without counters.
fn counted(profile: &Profile) -> Option<Vec<(&'static str, u16, u8)>> {
    let profile = profile.clone().with_usual_clock();
    let model = Model::of(&profile, profile.costs(), profile.geometry(), &profile.cpuid());
    Some(Layout::of(&model)?.events().collect())
}

fn lacking_text(out: &mut String, profile: &Profile) {
    let lacking = cpu::features::lacking(profile);
    if !lacking.is_empty() {
        out.push_str(&format!(
            "\nExtensions of the processor that guests do not have: {}.\nCPUID does not show these extensions, and their instructions raise #UD.\n",
            lacking.join(", ")
        ));
    }
}

fn counters_text(out: &mut String, profile: &Profile) {
    let Some(events) = counted(profile) else { return };
    let rows: Vec<Vec<String>> = events
        .iter()
        .map(|(name, event, unit)| vec![format!("{event:02X}H/{unit:02X}H"), (*name).to_owned()])
        .collect();
    out.push_str("\nEvents of the performance counters; all others count nothing\n\n");
    table(out, &[("event", Left), ("", Left)], &rows);
}

/// A figure of the model `core`: its name, value and origin.
type CoreFigure<'a> = (&'static str, String, &'a Provenance);

/// Returns the figures of the model `core`.
fn core_figures(profile: &Profile) -> Vec<CoreFigure<'_>> {
    let mut all: Vec<CoreFigure> = Vec::new();
    all.extend(profile.core.as_ref().map(|core| ("core", core.value.clone(), &core.from)));
    let Some(caches) = &profile.caches else { return all };
    let same_set = |ticks| match ticks {
        0 => String::new(),
        ticks => format!(", {} cycles a line of a set", exact_cycles(ticks)),
    };
    let level = |level: &Level| {
        let bytes = u64::from(level.lines) * LINE;
        let transfer = match level.transfer {
            0 => String::new(),
            ticks => format!(", {} cycles a line", exact_cycles(ticks)),
        };
        let (latency, same_set) = (exact_cycles(level.latency), same_set(level.same_set));
        format!("{} KiB, {} ways, {latency} cycles{transfer}{same_set}", number(bytes >> 10), level.ways)
    };
    let loads = match caches.set_loads {
        0 => String::new(),
        loads => format!(", {loads} loads wait for a set"),
    };
    all.push(("first level, data", level(&caches.l1d.value) + &loads, &caches.l1d.from));
    let l1i = &caches.l1i.value;
    let code = format!("{} KiB, {} ways", number((u64::from(l1i.lines) * LINE) >> 10), l1i.ways);
    all.push(("first level, code", code, &caches.l1i.from));
    all.push(("second level", level(&caches.l2.value), &caches.l2.from));
    all.extend(caches.l3.as_ref().map(|l3| ("third level", level(&l3.value), &l3.from)));
    let MemoryFigures { latency, transfer, stream, same_set: of_set } = caches.memory.value;
    let [latency, transfer, stream] = [latency, transfer, stream].map(exact_cycles);
    let memory =
        format!("{latency} cycles, {transfer} cycles a line, {stream} a line past the caches{}", same_set(of_set));
    all.push(("memory", memory, &caches.memory.from));
    let between = format!("{} cycles", exact_cycles(caches.between_cores.value));
    all.push(("another core", between, &caches.between_cores.from));
    let writes = match caches.devices.value {
        DeviceWrites::L3 => "to the third level",
        DeviceWrites::Memory => "to memory",
    };
    all.push(("devices' writes", writes.to_owned(), &caches.devices.from));
    let [line, page] = caches.splits.value;
    let splits = format!("{} cycles, pages {} cycles", exact_cycles(line), exact_cycles(page));
    all.push(("across lines", splits, &caches.splits.from));
    all.push(("window", format!("{} cycles", exact_cycles(caches.window.value)), &caches.window.from));
    let Fetch { transfer, ahead, scattered, sequential } = caches.fetch.value;
    let fetch = format!("{} cycles a line, {} cycles ahead", exact_cycles(transfer), exact_cycles(ahead));
    all.push(("code fetch", fetch, &caches.fetch.from));
    all.push(("code on its way", format!("{scattered} lines, {sequential} in a row"), &caches.fetch.from));
    let Branches { table, far } = caches.branches.value;
    let far = if far > 1 { ", two for one with a far branch" } else { "" };
    let known = format!(
        "{} lines{far}, {} ways, {} cycles otherwise",
        number(table.lines.into()),
        table.ways,
        exact_cycles(table.latency)
    );
    all.push(("known branches", known, &caches.branches.from));
    all.push(("fill buffers", caches.fill_buffers.value.to_string(), &caches.fill_buffers.from));
    let Walks { pde, pdpte, pml4e, nested, walkers } = caches.walks.value;
    let structures = format!("{pde} PDEs, {pdpte} PDPTEs, {pml4e} PML4Es, {nested} guest-physical pages");
    all.push(("page walks", format!("{structures}; {walkers} at a time"), &caches.walks.from));
    all
}

fn core_text(out: &mut String, profile: &Profile) {
    let figures = core_figures(profile);
    if figures.is_empty() {
        return;
    }
    out.push_str("\nOf the model core\n\n");
    let rows: Vec<Vec<String>> = figures
        .into_iter()
        .map(|(name, value, from)| vec![name.to_owned(), value, from.confidence.name().to_owned(), from.source.clone()])
        .collect();
    table(out, &[("", Left), ("", Left), ("conf.", Left), ("source", Left)], &rows);
}

/// A repeated string instruction: its name, and what a core has of it.
type Repeated<'a> = (&'static str, Repeat, &'a parameters::Repeated);

/// Returns the figures of repeated string instructions, with the table of the core that has them.
fn strings(profile: &Profile) -> Option<(&'static CoreTable, [Repeated<'static>; 4])> {
    let core = CoreTable::named(&profile.core.as_ref()?.value).ok()?;
    let strings = &core.parameters.string;
    let all = [
        ("REP MOVSB, MOVSW", Repeat::Movs, &strings.movs),
        ("REP MOVSD, MOVSQ", Repeat::MovsWide, &strings.movs_wide),
        ("REP STOSB, STOSW", Repeat::Stos, &strings.stos),
        ("REP STOSD, STOSQ", Repeat::StosWide, &strings.stos_wide),
    ];
    Some((core, all))
}

fn strings_text(out: &mut String, profile: &Profile) {
    let Some((core, all)) = strings(profile) else { return };
    let lengths: BTreeSet<u32> = all.iter().flat_map(|(.., figures)| figures.cycles.iter().map(|at| at.0)).collect();
    let row = |name: String, of: &dyn Fn(Repeat, &parameters::Repeated) -> String| {
        std::iter::once(name).chain(all.iter().map(|(_, repeat, figures)| of(*repeat, figures))).collect::<Vec<_>>()
    };
    // Both operands are at the beginning of a page.
    let taken = |repeat, length: u32| exact_cycles(uarch::string(core, repeat, length.into(), 0, Some(0)));
    let mut rows: Vec<_> =
        lengths.iter().map(|length| row(number((*length).into()), &|repeat, _| taken(repeat, *length))).collect();
    let shown = |figure: f64| if figure == 0.0 { "-".to_owned() } else { figure.to_string() };
    rows.push(row("each further line of 64".to_owned(), &|_, figures| shown(figures.line)));
    rows.push(row("not aligned to 32, more".to_owned(), &|_, figures| shown(figures.unaligned)));
    rows.push(row("  from this length on".to_owned(), &|_, figures| figures.unaligned_from.to_string()));
    rows.push(row("  more for a line".to_owned(), &|_, figures| shown(figures.unaligned_line)));
    rows.push(row("1 to 63 above the source".to_owned(), &|_, figures| shown(figures.overlap)));
    rows.push(row("  more for a byte".to_owned(), &|_, figures| shown(figures.overlap_byte)));
    out.push_str("\nOf the model core: repeated string instructions by length in bytes, in cycles\n\n");
    let headings = [("bytes", Left)].into_iter().chain(all.iter().map(|(name, ..)| (*name, Right)));
    table(out, &headings.collect::<Vec<_>>(), &rows);
    out.push_str(&format!(
        "\nBetween two lengths the time is proportional. The bytes hit the first-level cache. Alignment and distance are those of the destination.\nsource: {}\n",
        core.parameters.string.source
    ));
}

fn emulator_text(profile: &Profile) -> String {
    let emulator = &profile.emulator;
    let mut out = format!("{}, emulated by {}\n\n", profile.name, emulator.title);
    let fact = |name: &str, fact: &Sourced<bool>, [yes, no]: [&str; 2]| {
        let value = if fact.value { yes } else { no };
        [name, value, fact.from.confidence.name(), &fact.from.source].map(str::to_owned).to_vec()
    };
    let facts = [
        fact("global pages at a MOV to CR3", &emulator.keeps_global, ["kept", "dropped"]),
        fact("large pages", &emulator.keeps_large, ["kept as such", "kept in pieces"]),
    ];
    table(&mut out, &[("", Left), ("", Left), ("conf.", Left), ("source", Left)], &facts);
    prices_text(&mut out, &emulator.prices);
    sizes_text(&mut out, &emulator.sizes);
    out
}

fn prices_text(out: &mut String, prices: &Prices) {
    let mut costs = |title: &str, rows: Vec<(String, &Sourced<Ticks>)>| {
        if rows.is_empty() {
            return;
        }
        out.push_str(&format!("\n{title}, in cycles\n\n"));
        let rows: Vec<Vec<String>> = rows
            .into_iter()
            .map(|(name, cost)| {
                let from = &cost.from;
                vec![exact_cycles(cost.value), from.confidence.name().to_owned(), name, from.source.clone()]
            })
            .collect();
        table(out, &[("cycles", Right), ("conf.", Left), ("of", Left), ("source", Left)], &rows);
    };
    let classes = Class::ALL.into_iter().zip(&prices.classes).map(|(class, cost)| (class.name().to_owned(), cost));
    costs("Instructions by class", classes.collect());
    costs("Events", events(prices));
    let operation =
        |operation: Operation| Some((operation.title().to_owned(), prices.figure(Kind::operation(operation))?));
    costs("What a hypervisor's software does", Operation::ALL.into_iter().filter_map(operation).collect());
}

fn sizes_text(out: &mut String, sizes: &Sizes) {
    out.push_str("\nSizes\n\n");
    table(
        out,
        &[("entries", Right), ("ways", Right), ("conf.", Left), ("of", Left), ("source", Left)],
        &each_size(sizes)
            .into_iter()
            .map(|(name, entries, ways, from)| {
                let ways = ways.map_or(String::new(), |ways| ways.to_string());
                vec![number(entries), ways, from.confidence.name().to_owned(), name.to_owned(), from.source.clone()]
            })
            .collect::<Vec<_>>(),
    );
}

/// Returns the families, each followed by those of its kinds that have another price.
fn events(prices: &Prices) -> Vec<(String, &Sourced<Ticks>)> {
    let mut events = Vec::new();
    for family in Family::ALL {
        let Some(cost) = &prices.families[family as usize] else { continue };
        events.push((family.title().to_owned(), cost));
        let kinds = prices.kinds.range(Kind::new(family, 0)..=Kind::new(family, u32::MAX));
        events.extend(kinds.map(|(kind, cost)| (format!("  {}", kind.describe(None)), cost)));
    }
    events
}

type Size<'a> = (&'static str, u64, Option<u16>, &'a Provenance);

fn each_size(sizes: &Sizes) -> Vec<Size<'_>> {
    let mut all: Vec<Size> = sizes
        .tlb
        .iter()
        .map(|(name, size)| (*name, u64::from(size.value.entries), Some(size.value.ways), &size.from))
        .collect();
    all.push(("target_cache", u64::from(sizes.target_cache.value), None, &sizes.target_cache.from));
    all.push(("return_stack", u64::from(sizes.return_stack.value), None, &sizes.return_stack.from));
    all
}

fn summary(profile: &Profile) -> Value {
    let [high, medium, low, estimate] = confidences(profile);
    json!({
        "name": profile.name,
        "processor": profile.title,
        "synthetic": profile.synthetic,
        "tsc_hz": profile.tsc_hz.value,
        "boost_hz": profile.boost_hz.as_ref().map(|hz| hz.value),
        "confidence": { "H": high, "M": medium, "L": low, "estimate": estimate },
    })
}

fn sourced(value: Value, from: &Provenance) -> Value {
    json!({ "value": value, "source": from.source, "confidence": from.confidence.name() })
}

/// Returns prices and sizes as JSON.
fn costs_document(prices: &Prices, sizes: &Sizes) -> Value {
    let cost = |cost: &Sourced<Ticks>| sourced(json!(cost.value as f64 / ledger::TICKS_PER_CYCLE as f64), &cost.from);
    let classes: serde_json::Map<String, Value> =
        Class::ALL.into_iter().zip(&prices.classes).map(|(class, c)| (class.name().to_owned(), cost(c))).collect();
    let families: serde_json::Map<String, Value> = Family::ALL
        .into_iter()
        .zip(&prices.families)
        .filter_map(|(family, c)| Some((family.name().to_owned(), cost(c.as_ref()?))))
        .collect();
    let kinds: Vec<Value> = prices
        .kinds
        .iter()
        .map(|(kind, c)| {
            let mut value = cost(c);
            value["family"] = json!(kind.family.name());
            value["parameter"] = json!(kind.param);
            value["name"] = json!(kind.describe(None));
            value
        })
        .collect();
    let sizes: Vec<Value> = each_size(sizes)
        .into_iter()
        .map(|(name, entries, ways, from)| {
            let mut value = sourced(json!(entries), from);
            value["name"] = json!(name);
            value["ways"] = json!(ways);
            value
        })
        .collect();
    json!({ "classes": classes, "events": families, "kinds": kinds, "sizes": sizes })
}

fn document(profile: &Profile) -> Value {
    let cpuid: Vec<Value> = profile
        .cpuid()
        .into_iter()
        .map(|l| {
            let registers = [l.eax, l.ebx, l.ecx, l.edx].map(|register| format!("{register:#010x}"));
            json!({ "leaf": format!("{:#x}", l.leaf), "subleaf": l.subleaf, "registers": registers })
        })
        .collect();
    let mut document = summary(profile);
    document["lacking"] = json!(cpu::features::lacking(profile));
    document["notes"] = json!(profile.notes);
    document["physical_bits"] = sourced(json!(profile.physical_bits.value), &profile.physical_bits.from);
    let virtualization = &profile.virtualization;
    document["virtualization"] = sourced(json!(virtualization.value.names().collect::<Vec<_>>()), &virtualization.from);
    document["virtualization"]["cr3_targets"] = json!(virtualization.value.cr3_targets);
    let costs = |prices: &Prices, sizes: &Sizes, into: &mut Value| {
        if let (Value::Object(costs), Value::Object(into)) = (costs_document(prices, sizes), into) {
            into.extend(costs);
        }
    };
    costs(&profile.prices, &profile.sizes, &mut document);
    let figure = |(name, value, from): CoreFigure| json!({ "name": name, "value": value, "confidence": from.confidence.name(), "source": from.source });
    document["clock"] = json!(profile.clock.name());
    if let Some(events) = counted(profile) {
        let event = |(name, event, unit): (&str, u16, u8)| json!({ "name": name, "event": event, "unit_mask": unit });
        document["counted_events"] = events.into_iter().map(event).collect();
    }
    document["core"] = core_figures(profile).into_iter().map(figure).collect();
    if let Some((core, all)) = strings(profile) {
        let of = |figures: &parameters::Repeated| {
            json!({
                "cycles": figures.cycles,
                "line": figures.line,
                "unaligned_from": figures.unaligned_from,
                "unaligned": figures.unaligned,
                "unaligned_line": figures.unaligned_line,
                "overlap": figures.overlap,
                "overlap_byte": figures.overlap_byte,
            })
        };
        document["strings"] = all.iter().map(|(name, _, figures)| ((*name).to_owned(), of(figures))).collect();
        document["strings"]["source"] = json!(core.parameters.string.source);
    }
    let emulator = &profile.emulator;
    let fact = |fact: &Sourced<bool>| sourced(json!(fact.value), &fact.from);
    document["emulator"] = json!({
        "title": emulator.title,
        "keeps_global": fact(&emulator.keeps_global),
        "keeps_large": fact(&emulator.keeps_large),
    });
    costs(&emulator.prices, &emulator.sizes, &mut document["emulator"]);
    document["cpuid"] = Value::Array(cpuid);
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_their_events_listed() {
        let shown = |name: &str| {
            let mut out = String::new();
            counters_text(&mut out, &Profile::find(name).unwrap());
            out
        };
        assert_eq!(shown("skx"), "");
        assert!(shown("zen3,pmu").contains("76H/00H  cycles\n"), "{}", shown("zen3,pmu"));
        let intel = shown("icx,pmu");
        assert!(
            intel.contains("all others count nothing") && intel.contains("2EH/41H  misses of the last cache"),
            "{intel}"
        );
        assert_eq!(document(&Profile::find("skx,pmu").unwrap())["counted_events"].as_array().unwrap().len(), 7);
    }

    #[test]
    fn the_strings_of_a_core_are_those_that_it_charges() {
        let shown = |name: &str| {
            let mut out = String::new();
            strings_text(&mut out, &Profile::named(name).unwrap());
            out
        };
        let zen4 = shown("zen4");
        assert!(
            zen4.contains("\n4,096 ")
                && zen4.contains("each further line of 64")
                && zen4.contains("\nsource: measured")
        );
        assert_eq!(shown("core2"), "", "its instructions have the prices of their classes");
        let value = document(&Profile::named("zen4").unwrap());
        assert_eq!(value["strings"]["REP STOSB, STOSW"]["line"], 2.0);
    }

    #[test]
    fn the_list_reads_well() {
        let profiles: Vec<_> = Profile::names().map(|name| Profile::named(name).unwrap()).collect();
        insta::assert_snapshot!(names(&profiles));
    }

    #[test]
    fn the_costs_of_a_processor_read_well() {
        insta::assert_snapshot!(text(&Profile::named("emr").unwrap()));
    }

    #[test]
    fn the_costs_of_an_emulator_read_well() {
        insta::assert_snapshot!(emulator_text(&Profile::named("core2").unwrap()));
    }

    #[test]
    fn the_documentation_says_how_many_prices_are_estimates() {
        let readme = include_str!("../../../README.md");
        let skx = Profile::named("skx").unwrap();
        let counts = confidences(&skx);
        let claim = format!("{} of {} prices of `skx` are estimates", counts[3], counts.iter().sum::<usize>());
        assert!(readme.replace('\n', " ").contains(&claim), "README.md should say: {claim}");
        assert!(confidence_text(&skx).starts_with(&claim.replace(" of `skx`", "")));
        let guide = include_str!("../../../docs/profiles.md");
        for name in Profile::names() {
            let [high, medium, low, estimates] = confidences(&Profile::named(name).unwrap());
            let row = format!("| `{name}` | {high} | {medium} | {low} | {estimates} |");
            assert!(guide.contains(&row), "docs/profiles.md should have the row {row}");
        }
    }

    #[test]
    fn programs_get_every_cost() {
        for name in Profile::names() {
            let profile = Profile::named(name).unwrap();
            let value = document(&profile);
            assert_eq!(value["classes"].as_object().unwrap().len(), Class::COUNT);
            assert_eq!(value["events"].as_object().unwrap().len(), Family::ALL.len() - 6);
            assert_eq!(value["kinds"].as_array().unwrap().len(), profile.prices.kinds.len());
            let emulator = &value["emulator"];
            assert_eq!(emulator["classes"].as_object().unwrap().len(), Class::COUNT);
            assert_eq!(emulator["events"].as_object().unwrap().len(), Family::ALL.len() - 10);
        }
    }
}
