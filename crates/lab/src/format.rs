//! Plain text: tables with aligned columns, and numbers that people can read.

use ledger::{TICKS_PER_CYCLE, Ticks};

/// On which side a column's cells are flush.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Left: words.
    Left,
    /// Right: numbers.
    Right,
}

/// Lines are wrapped, or cut, to be no wider.
pub const WIDTH: usize = 110;

/// Appends a table: its headings, and its rows. The last column, if it is flush left, may be wrapped.
pub fn table(out: &mut String, headings: &[(&str, Align)], rows: &[Vec<String>]) {
    let last = headings.len() - 1;
    let wide = |s: &str| s.chars().count();
    let mut widths: Vec<usize> = headings.iter().map(|(heading, _)| wide(heading)).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(wide(cell));
        }
    }
    let before: usize = widths[..last].iter().map(|width| width + 2).sum();
    let wrapped = headings[last].1 == Align::Left;
    if wrapped {
        widths[last] = widths[last].min(WIDTH.saturating_sub(before).max(24));
    }
    let mut line = |cells: &[&str]| {
        let mut text = String::new();
        for (i, cell) in cells.iter().enumerate() {
            let padding = " ".repeat(widths[i].saturating_sub(wide(cell)));
            match headings[i].1 {
                Align::Left => text.extend([cell, padding.as_str()]),
                Align::Right => text.extend([padding.as_str(), cell]),
            }
            text.push_str("  ");
        }
        out.push_str(text.trim_end());
        out.push('\n');
    };
    // A list of facts has no headings.
    if headings.iter().any(|(heading, _)| !heading.is_empty()) {
        line(&headings.iter().map(|(heading, _)| *heading).collect::<Vec<_>>());
        let rules: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
        line(&rules.iter().map(String::as_str).collect::<Vec<_>>());
    }
    for row in rows {
        let mut cells: Vec<&str> = row.iter().map(String::as_str).collect();
        if !wrapped {
            line(&cells);
            continue;
        }
        let text = std::mem::take(&mut cells[last]);
        for (i, part) in wrap(text, widths[last]).into_iter().enumerate() {
            if i == 1 {
                cells.fill("");
            }
            cells[last] = part;
            line(&cells);
        }
    }
}

/// A table of texts is no wider, unless it has too many columns: the width of a terminal.
const OF_TEXTS: usize = 80;
/// The least width to which a column of texts is narrowed.
const LEAST: usize = 16;

/// Narrows columns so that a line of all of them has at most `most` characters: the widest first, and none below [`LEAST`].
fn narrowed(widths: &[usize], most: usize) -> Vec<usize> {
    let between = 2 * widths.len().saturating_sub(1);
    let total = |bound: usize| widths.iter().map(|width| *width.min(&bound)).sum::<usize>() + between;
    let widest = widths.iter().copied().max().unwrap_or_default();
    let bound = (LEAST..=widest).rev().find(|bound| total(*bound) <= most).unwrap_or(LEAST);
    widths.iter().map(|width| *width.min(&bound)).collect()
}

/// Splits a text into lines no wider than `width`: at spaces, and within a word that is too long.
fn folded(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for part in wrap(text, width) {
        let chars: Vec<char> = part.chars().collect();
        match chars.is_empty() {
            true => lines.push(String::new()),
            false => lines.extend(chars.chunks(width.max(1)).map(|line| line.iter().collect::<String>())),
        }
    }
    lines
}

/// Appends a table of texts, whose cells are wrapped if it would be too wide. A row with a single text, which holds for all columns, is one line, so that
/// a command in it can be copied.
pub fn text_table(out: &mut String, headings: &[&str], rows: &[Vec<String>]) {
    let wide = |text: &str| text.chars().count();
    let holds_for_all = |row: &[String]| row.len() > 2 && row[2..].iter().all(String::is_empty);
    let mut widths: Vec<usize> = headings.iter().map(|heading| wide(heading)).collect();
    for row in rows {
        let own = if holds_for_all(row) { &row[..1] } else { row };
        widths.iter_mut().zip(own).for_each(|(width, cell)| *width = (*width).max(wide(cell)));
    }
    let widths = narrowed(&widths, OF_TEXTS);
    let mut line = |cells: &[&str]| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        out.push_str(padded.collect::<Vec<_>>().join("  ").trim_end());
        out.push('\n');
    };
    line(headings);
    let rules: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    line(&rules.iter().map(String::as_str).collect::<Vec<_>>());
    for row in rows {
        if holds_for_all(row) {
            line(&[&row[0], &row[1]]);
            continue;
        }
        let cells: Vec<Vec<String>> = row.iter().zip(&widths).map(|(cell, width)| folded(cell, *width)).collect();
        for number in 0..cells.iter().map(Vec::len).max().unwrap_or_default() {
            let part = |cell: &'_ Vec<String>| cell.get(number).cloned().unwrap_or_default();
            let parts: Vec<String> = cells.iter().map(part).collect();
            line(&parts.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }
}

/// Splits at spaces into parts no wider than `width`, unless a word is.
fn wrap(text: &str, width: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    while rest.chars().count() > width {
        let limit = rest.char_indices().nth(width + 1).map_or(rest.len(), |(at, _)| at);
        let at = rest[..limit].rfind(' ').or_else(|| rest.find(' '));
        let Some(at) = at.filter(|at| *at != 0) else { break };
        parts.push(&rest[..at]);
        rest = rest[at..].trim_start();
    }
    parts.push(rest);
    parts
}

/// A number with its thousands apart.
pub fn number(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i != 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A number of things, in the singular or the plural: `1 layout`, `1,200 layouts`.
pub fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{} {}", number(count as u64), if count == 1 { one } else { many })
}

/// Joins words as a sentence does: `a, b and c`.
pub fn listed<T: AsRef<str>>(words: &[T]) -> String {
    match words {
        [] => String::new(),
        [one] => one.as_ref().to_owned(),
        [all @ .., last] => {
            format!("{} and {}", all.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(", "), last.as_ref())
        }
    }
}

/// Returns bytes, such as those of a hash, as hexadecimal digits.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A difference with its sign, and its thousands apart.
pub fn signed(n: i128) -> String {
    let sign = match n {
        0 => "",
        n if n < 0 => "-",
        _ => "+",
    };
    format!("{sign}{}", number(u64::try_from(n.unsigned_abs()).unwrap_or(u64::MAX)))
}

/// Ticks as whole cycles.
pub fn cycles(ticks: Ticks) -> String {
    number(whole_cycles(ticks))
}

/// Ticks rounded to cycles.
pub fn whole_cycles(ticks: Ticks) -> u64 {
    ticks / TICKS_PER_CYCLE + u64::from(ticks % TICKS_PER_CYCLE >= TICKS_PER_CYCLE / 2)
}

/// Ticks as cycles with what decimals they have.
pub fn exact_cycles(ticks: Ticks) -> String {
    let whole = number(ticks / TICKS_PER_CYCLE);
    match ticks % TICKS_PER_CYCLE {
        0 => whole,
        thousandths => format!("{whole}.{thousandths:03}").trim_end_matches('0').to_owned(),
    }
}

/// A part of a whole, in percent.
pub fn share(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".to_owned(),
        whole => format!("{:.2}%", part as f64 / whole as f64 * 100.0),
    }
}

/// A change, in percent of what was there before.
pub fn change(before: u64, after: u64) -> String {
    match (before, after) {
        (before, after) if before == after => String::new(),
        (0, _) => "new".to_owned(),
        (_, 0) => "gone".to_owned(),
        (before, after) => format!("{:+.1}%", (after as f64 - before as f64) / before as f64 * 100.0),
    }
}

/// A value with as many decimals as its size needs.
pub fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 1000.0 => 0,
        v if v >= 100.0 => 1,
        v if v >= 1.0 || v == 0.0 => 2,
        v if v >= 0.1 => 3,
        _ => 4,
    };
    format!("{value:.decimals$}")
}

/// A factor between two values.
pub fn factor(value: f64) -> String {
    format!("{}x", figure(value))
}

/// A frequency in GHz.
pub fn gigahertz(hz: u64) -> String {
    format!("{:.3} GHz", hz as f64 / 1e9)
}

/// Converts ticks to seconds.
pub fn seconds(ticks: Ticks, hz: u64) -> f64 {
    ticks as f64 / TICKS_PER_CYCLE as f64 / hz as f64
}

/// Shortens a text to a number of characters, of which an ellipsis is the last.
pub fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!([0, 999, 1000, 1_234_567].map(number), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [0, 1, 1200].map(|count| counted(count, "layout", "layouts")),
            ["0 layouts", "1 layout", "1,200 layouts"]
        );
        assert_eq!([-1500, 0, 20].map(signed), ["-1,500", "0", "+20"]);
        assert_eq!([1_499, 1_500, 2_000].map(cycles), ["1", "2", "2"]);
        assert_eq!([1_250, 2_000, 5].map(exact_cycles), ["1.25", "2", "0.005"]);
        assert_eq!([share(1, 3), share(1, 0)], ["33.33%", "-"]);
        assert_eq!([change(4, 5), change(0, 5), change(5, 0), change(0, 0)], ["+25.0%", "new", "gone", ""]);
    }

    #[test]
    fn figures_have_the_decimals_they_need() {
        let figures = [12345.6, 123.45, 61.184, 1.0, 0.9, 0.25, 0.01234, 0.0].map(figure);
        assert_eq!(figures, ["12346", "123.5", "61.18", "1.00", "0.900", "0.250", "0.0123", "0.00"]);
    }

    #[test]
    fn all_columns_of_texts_are_wrapped() {
        let words = |text: &str| text.repeat(20).trim_end().to_owned();
        let command = words("command ");
        let rows = [
            vec!["features".to_owned(), words("ibrs "), words("stibp_always_on ")],
            vec!["short".to_owned(), "–".to_owned(), "x".repeat(50)],
            vec!["again".to_owned(), command.clone(), String::new()],
        ];
        let mut out = String::new();
        text_table(&mut out, &["", "A", "B"], &rows);
        let (long, others): (Vec<&str>, Vec<&str>) = out.lines().partition(|line| line.starts_with("again"));
        assert!(others.iter().all(|line| line.chars().count() <= OF_TEXTS), "{out}");
        assert_eq!(long, [format!("again     {command}")]);
        assert_eq!(others.concat().matches('x').count(), 50, "{out}");
        assert_eq!(narrowed(&[8, 99, 20], 80), [8, 48, 20]);
        assert_eq!(narrowed(&[34, 90, 90], 80), [25, 25, 25]);
        assert_eq!(narrowed(&[40; 9], 80), [LEAST; 9]);
    }

    #[test]
    fn long_text_in_the_last_column_is_wrapped() {
        let mut out = String::new();
        let text = "word ".repeat(40).trim_end().to_owned();
        table(&mut out, &[("n", Align::Right), ("text", Align::Left)], &[vec!["17".to_owned(), text]]);
        assert_eq!(out.lines().count(), 4);
        assert!(out.lines().all(|line| line.len() <= WIDTH));
        assert!(out.lines().nth(3).unwrap().starts_with("    word"));
        assert_eq!(wrap("unbreakable", 4), ["unbreakable"]);
        assert_eq!(folded("one unbreakable", 5), ["one", "unbre", "akabl", "e"]);
        assert_eq!(wrap("äöü äöü", 4), ["äöü", "äöü"]);
    }
}
