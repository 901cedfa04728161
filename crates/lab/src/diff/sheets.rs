//! A diff as tables, with the same rows for the terminal and for Markdown.

use super::origin::{Differing, Origin, Provenance, short};
use super::sentence::{cells, percent, signed_percent};
use super::{Diff, EntryChange, Figures, Side, is_aside};
use crate::difference::Change;
use crate::format::Align::{self, Left, Right};
use crate::format::{gigahertz, listed, number, signed, table, text_table, whole_cycles};
use crate::markdown;
use ledger::TICKS_PER_CYCLE;

/// A table.
pub struct Sheet {
    /// Title of the table.
    pub title: String,
    /// Column headings.
    pub headings: Vec<(String, Align)>,
    /// Rows.
    pub rows: Vec<Vec<String>>,
}

/// The name of the difference that an interval belongs to.
const DIFFERENCE: &str = "difference of the pairs (Hodges-Lehmann)";

/// Returns headings from texts.
pub(super) fn headings<T: Into<String>>(of: impl IntoIterator<Item = (T, Align)>) -> Vec<(String, Align)> {
    of.into_iter().map(|(text, side)| (text.into(), side)).collect()
}

/// Returns the headings of pairs of columns for both sides.
fn paired(diff: &Diff, whats: &[&str]) -> Vec<String> {
    whats.iter().flat_map(|what| [&diff.a, &diff.b].map(|side| format!("{what} {}", side.name))).collect()
}

pub(super) fn rounded(value: f64) -> String {
    number(value.round().max(0.0) as u64)
}

fn change(before: f64, after: f64) -> String {
    match (before, after) {
        _ if before == after => String::new(),
        (0.0, _) => "new".to_owned(),
        _ => signed_percent((after - before) / before),
    }
}

/// Returns the first table: the totals of both sides.
fn overview(diff: &Diff) -> Sheet {
    let sides = [&diff.a, &diff.b];
    let row = |name: &str, of: fn(&Figures) -> f64, shown: fn(f64) -> String| {
        let [before, after] = sides.map(|side| side.mean(of));
        vec![name.to_owned(), shown(before), shown(after), change(before, after)]
    };
    let plain =
        |name: &str, of: &dyn Fn(&Side) -> String| vec![name.to_owned(), of(sides[0]), of(sides[1]), String::new()];
    let seconds = |seconds: f64| format!("{seconds:.6} s");
    let several = diff.verdict.interval.is_some();
    let cycles = if several { "cycles of the command, mean" } else { "cycles of the command" };
    let mut rows = vec![row(cycles, |run| run.cycles, rounded)];
    if several {
        let (difference, interval) = cells(&diff.verdict);
        let shown = if interval.is_empty() { difference } else { format!("{difference} ({interval})") };
        rows.insert(0, vec![DIFFERENCE.to_owned(), String::new(), String::new(), shown]);
        let [before, after] = sides.map(|side| side.cycles.median);
        rows.push(vec!["  median".to_owned(), rounded(before), rounded(after), change(before, after)]);
        rows.push(plain("  lowest", &|side| rounded(side.cycles.least)));
        rows.push(plain("  highest", &|side| rounded(side.cycles.most)));
        rows.push(plain("  deviation", &|side| percent(side.cycles.spread())));
    }
    rows.push(row("instructions of the command", |run| run.instructions as f64, rounded));
    rows.push(row("cycles of other tasks and interrupts", |run| run.meanwhile, rounded));
    rows.push(row("virtual time, beginning to end", |run| run.elapsed, seconds));
    rows.push(plain("  at a frequency of", &|side| gigahertz(side.tsc_hz)));
    let settled = |side: &Side| side.settled_after().map_or("never".to_owned(), |after| format!("{after:.6} s"));
    rows.push(plain("kernel busy before the command", &settled));
    let [a, b] = sides.map(|side| side.name.as_str());
    Sheet { title: String::new(), headings: headings([("", Left), (a, Right), (b, Right), ("change", Right)]), rows }
}

/// Returns a table of changes; `count` is what is counted.
fn sheet(diff: &Diff, title: &str, count: &str, changes: &[Change], top: usize) -> Option<Sheet> {
    if changes.is_empty() {
        return None;
    }
    let whole = diff.a.cycles.mean;
    let more = if changes.len() > top { format!(" ({top} of {})", changes.len()) } else { String::new() };
    let row = |change: &Change| {
        let half = i128::from(TICKS_PER_CYCLE / 2) * change.ticks().signum();
        let cycles = (change.ticks() + half) / i128::from(TICKS_PER_CYCLE);
        let points = change.ticks() as f64 / TICKS_PER_CYCLE as f64 / whole;
        vec![
            signed(cycles),
            if whole == 0.0 { String::new() } else { signed_percent(points) },
            number(whole_cycles(change.before.ticks)),
            number(whole_cycles(change.after.ticks)),
            number(change.before.count),
            number(change.after.count),
            change.name.clone(),
        ]
    };
    let numbers =
        ["change".to_owned(), format!("of {}", diff.a.name)].into_iter().chain(paired(diff, &["cycles", count]));
    Some(Sheet {
        title: format!("{title}{more}"),
        headings: numbers.map(|heading| (heading, Right)).chain(headings([("", Left)])).collect(),
        rows: changes.iter().take(top).map(row).collect(),
    })
}

/// Returns the table of the parts of top-down analysis.
fn top_down(diff: &Diff) -> Option<Sheet> {
    if diff.top_down.is_empty() {
        return None;
    }
    let [before, after] = [&diff.a, &diff.b].map(|side| side.cycles.mean.max(1.0));
    let row = |part: &Change| {
        let cycles = [part.before.ticks, part.after.ticks].map(whole_cycles);
        let shares = [cycles[0] as f64 / before, cycles[1] as f64 / after];
        let mut cells = vec![signed(i128::from(cycles[1]) - i128::from(cycles[0]))];
        cells.extend(cycles.map(number));
        cells.extend(shares.map(percent));
        cells.push(part.name.clone());
        cells
    };
    let numbers = ["change".to_owned()].into_iter().chain(paired(diff, &["cycles", "share"]));
    Some(Sheet {
        title: "What the command paid, top-down".to_owned(),
        headings: numbers.map(|heading| (heading, Right)).chain(headings([("", Left)])).collect(),
        rows: diff.top_down.iter().map(row).collect(),
    })
}

/// Returns a table of entries by their changes.
fn entries(diff: &Diff, title: &str, changes: &[EntryChange], top: usize) -> Option<Sheet> {
    if changes.is_empty() {
        return None;
    }
    let whole = diff.a.cycles.mean;
    let more = if changes.len() > top { format!(" ({top} of {})", changes.len()) } else { String::new() };
    let row = |change: &EntryChange| {
        let (a, b) = (&change.a, &change.b);
        let mut cells = vec![signed(change.cycles().round() as i128), signed_percent(change.cycles() / whole.max(1.0))];
        let pairs = [(a.count, b.count), (a.total, b.total), (a.mean, b.mean), (a.median, b.median), (a.p99, b.p99)];
        cells.extend(pairs.into_iter().flat_map(|(a, b)| [rounded(a), rounded(b)]));
        cells.push(change.name.clone());
        cells
    };
    let numbers = ["change".to_owned(), format!("of {}", diff.a.name)];
    let numbers = numbers.into_iter().chain(paired(diff, &["count", "total", "mean", "median", "p99"]));
    Some(Sheet {
        title: format!("{title}{more}"),
        headings: numbers.map(|heading| (heading, Right)).chain(headings([("", Left)])).collect(),
        rows: changes.iter().take(top).map(row).collect(),
    })
}

/// Returns the table of the way of entries: in, mitigations, handler, and out, in cycles of the mean.
fn ways(diff: &Diff, top: usize) -> Option<Sheet> {
    let changes = &diff.entries;
    if changes.is_empty() {
        return None;
    }
    let row = |change: &EntryChange| {
        let (a, b) = (&change.a, &change.b);
        let parts = [(a.enter, b.enter), (a.mitigation, b.mitigation), (a.handler, b.handler), (a.leave, b.leave)];
        let cells = parts.into_iter().flat_map(|(a, b)| [rounded(a), rounded(b)]);
        cells.chain([change.name.clone()]).collect()
    };
    let numbers = paired(diff, &["enter", "mitigation", "handler", "leave"]).into_iter();
    let more = if changes.len() > top { format!(" ({top} of {})", changes.len()) } else { String::new() };
    Some(Sheet {
        title: format!("The mean of an entry, from the way in to the way out{more}"),
        headings: numbers.map(|heading| (heading, Right)).chain(headings([("", Left)])).collect(),
        rows: changes.iter().take(top).map(row).collect(),
    })
}

/// Returns the table of what differs between the sides, apart from the costs.
pub fn differing(diff: &Diff) -> Option<Sheet> {
    let row = |row: &Differing| vec![row.what.clone(), row.a.clone(), row.b.clone()];
    (!diff.differs.is_empty()).then(|| Sheet {
        title: format!("Differences between {} and {} other than costs", diff.a.name, diff.b.name),
        headings: headings([("", Left), (&*diff.a.name, Left), (&*diff.b.name, Left)]),
        rows: diff.differs.iter().map(row).collect(),
    })
}

/// Returns the seeds of a side's layouts in words.
pub(super) fn seeds(side: &Side) -> String {
    let all: Vec<u64> = side.runs.iter().filter_map(|run| run.seed).collect();
    let follow = all.windows(2).all(|pair| pair[0].wrapping_add(1) == pair[1]);
    match (&all[..], follow) {
        ([], _) => "none drawn".to_owned(),
        ([seed], _) => format!("seed {seed}"),
        ([first, .., last], true) => format!("seeds {first} to {last}"),
        (all, false) => format!("seeds {}", listed(&all.iter().map(u64::to_string).collect::<Vec<_>>())),
    }
}

/// Returns the table of what both sides were measured on, without command lines.
fn measured_on(diff: &Diff) -> Sheet {
    let Provenance { version, files, more_files, tree, .. } = &diff.provenance;
    let mut rows = Vec::new();
    let mut row = |name: &str, of: &dyn Fn(&Origin) -> String| {
        let [a, b] = [&diff.a.origin, &diff.b.origin].map(of);
        let b = if a == b { "the same".to_owned() } else { b };
        if !a.is_empty() || b != "the same" {
            rows.push(vec![name.to_owned(), a, b]);
        }
    };
    row("processor", &|origin| format!("{} (profile {})", origin.processor, origin.profile));
    row("model of time", &|origin| origin.model.clone());
    row("kernel", &|origin| origin.release.clone().unwrap_or_default());
    row("image", &|origin| short(&origin.image));
    let mut both = |name: &str, text: String| rows.push(vec![name.to_owned(), text, String::new()]);
    let count = files.len() + more_files;
    both(
        "files of the host",
        if count == 0 { tree.clone() } else { format!("{count}, together sha256 {}", short(tree)) },
    );
    both("layouts", seeds(&diff.a));
    both("version", format!("Tollgate {version}"));
    let headings = headings([("", Left), (&*diff.a.name, Left), (&*diff.b.name, Left)]);
    Sheet { title: "Measured on".to_owned(), headings, rows }
}

/// Returns the table of what both sides were measured on.
pub fn provenance(diff: &Diff) -> Sheet {
    let mut sheet = measured_on(diff);
    let lines = [("command", &diff.command), ("again", &diff.provenance.again)];
    sheet.rows.extend(lines.map(|(name, line)| vec![name.to_owned(), line.clone(), String::new()]));
    sheet
}

/// Returns the totals, and the tables of costs.
pub fn sheets(diff: &Diff, top: usize) -> Vec<Sheet> {
    std::iter::once(overview(diff)).chain(costs(diff, top)).collect()
}

/// Returns the tables of costs, with the `top` largest changes of each list.
pub(super) fn costs(diff: &Diff, top: usize) -> Vec<Sheet> {
    let by_entry = "What the command paid, by entry to the kernel, with everything below";
    let lists = [
        sheet(diff, "What the command paid, by cause", "count", &diff.causes, top),
        top_down(diff),
        sheet(diff, "What the command paid, by function", "instructions", &diff.functions, top),
        entries(diff, by_entry, &diff.entries, top),
        ways(diff, top),
        sheet(diff, "Other tasks and interrupts, while the command ran", "instructions", &diff.meanwhile, top),
        entries(diff, "Entries to the kernel of other tasks, and interrupts", &diff.entries_meanwhile, top),
    ];
    lists.into_iter().flatten().collect()
}

/// Returns the remarks behind the answer, in their order.
pub fn remarks(diff: &Diff) -> impl Iterator<Item = &String> {
    let certainty = std::iter::once(&diff.certainty);
    let notes = diff.notes.iter().filter(|note| !is_aside(note));
    certainty.chain(&diff.decision).chain(diff.rests.iter().map(|rests| &rests.sentence)).chain(notes)
}

/// Returns the remarks on the tables, which stand below them.
pub fn asides(diff: &Diff) -> impl Iterator<Item = &String> {
    diff.notes.iter().filter(|note| is_aside(note))
}

/// Returns the tables but that of what was measured on: those of costs after the totals, and before them what differs otherwise.
fn all(diff: &Diff, top: usize) -> Vec<Sheet> {
    let mut all = sheets(diff, top);
    all.splice(1..1, differing(diff));
    all
}

/// Appends tables as text for the terminal.
pub(super) fn print(out: &mut String, sheets: Vec<Sheet>) {
    for sheet in sheets {
        *out += &if sheet.title.is_empty() { "\n".to_owned() } else { format!("\n{}\n\n", sheet.title) };
        let headings: Vec<(&str, Align)> = sheet.headings.iter().map(|(text, side)| (text.as_str(), *side)).collect();
        match headings.len() > 2 && headings.iter().all(|(_, side)| *side == Left) {
            true => text_table(out, &headings.iter().map(|(text, _)| *text).collect::<Vec<_>>(), &sheet.rows),
            false => table(out, &headings, &sheet.rows),
        }
    }
}

/// Returns the tables as text for the terminal.
pub fn text(diff: &Diff, top: usize) -> String {
    let mut out = String::new();
    diff.warnings.iter().for_each(|warning| out += &format!("{warning}\n"));
    out += &format!("{}\n", diff.sentence);
    remarks(diff).for_each(|remark| out += &format!("{remark}\n"));
    out += &format!("\n{}  {}\n{}  {}\n", diff.a.name, diff.a.title, diff.b.name, diff.b.title);
    print(&mut out, all(diff, top));
    asides(diff).for_each(|aside| out += &format!("\n{aside}\n"));
    print(&mut out, vec![provenance(diff)]);
    out
}

/// Appends tables as Markdown; those behind the first `open` are folded.
pub(in crate::diff) fn mark_down(out: &mut String, sheets: Vec<Sheet>, open: usize) {
    for (number, sheet) in sheets.into_iter().enumerate() {
        let fold = number >= open;
        if fold {
            *out += &format!("\n<details><summary>{}</summary>\n", markdown::html(&sheet.title));
        } else if !sheet.title.is_empty() {
            *out += &format!("\n{}:\n", markdown::plain(&sheet.title));
        }
        let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        *out += "\n";
        *out += &row(sheet.headings.iter().map(|(heading, _)| markdown::cell(heading)).collect());
        let rule = |(_, side): &(String, Align)| if *side == Left { "---" } else { "---:" };
        *out += &format!("|{}|\n", sheet.headings.iter().map(rule).collect::<Vec<_>>().join("|"));
        for cells in &sheet.rows {
            *out += &row(cells.iter().map(|text| markdown::cell(text)).collect());
        }
        if fold {
            *out += "\n</details>\n";
        }
    }
}

/// Returns the items of a list in Markdown with the command, and with the command line that measures it again. Command lines stay as they are, so that
/// they can be copied.
pub(in crate::diff) fn command_lines(command: &str, provenance: &Provenance) -> String {
    let item = |name: &str, line: &str| format!("- {name}: {}\n", markdown::verbatim(line, "  "));
    item("command", command) + &item("again", &provenance.again)
}

/// Returns the tables as Markdown for a pull request.
pub fn markdown(diff: &Diff, top: usize) -> String {
    let mut out = String::new();
    let sentence = |text: &String| markdown::sentence(text, &[&diff.a.name, &diff.b.name]);
    diff.warnings.iter().for_each(|warning| out += &format!("> {}\n\n", sentence(warning)));
    out += &format!("**{}**\n", sentence(&diff.sentence));
    remarks(diff).for_each(|remark| out += &format!("\n{}\n", sentence(remark)));
    let [a, b] = [&diff.a.title, &diff.b.title].map(|text| markdown::code(text));
    out += &format!("\n- A: {a}\n- B: {b}\n");
    out += &command_lines(&diff.command, &diff.provenance);
    mark_down(&mut out, all(diff, top), 3);
    asides(diff).for_each(|aside| out += &format!("\n{}\n", sentence(aside)));
    mark_down(&mut out, vec![measured_on(diff)], 0);
    out
}
