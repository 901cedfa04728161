//! The outcome of a diff in words.

use super::statistics::Interval;
use super::verdict::CONFIDENCE;
use super::{Answer, EntryChange, Held, Side, Verdict};
use crate::charges::Tally;
use crate::difference::Change;
use crate::format::{counted, number};
use ledger::TICKS_PER_CYCLE;

/// Prefixes of large numbers.
const SCALES: [(f64, &str); 3] = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
/// The most digits behind the point of a percentage.
const MOST_DIGITS: usize = 3;
/// Significant digits of cycles that are equal.
const EQUAL: usize = 4;
/// Significant digits of a difference without an interval.
const WITHOUT_INTERVAL: i32 = 2;

/// Returns two numbers of cycles in the same unit, and that unit. `digits` is the number of significant digits of the larger one.
fn scaled(a: f64, b: f64, digits: usize) -> (String, String, &'static str) {
    let most = a.max(b);
    let found = SCALES.iter().find(|(scale, _)| most >= *scale);
    let &(scale, unit) = found.unwrap_or(&(1.0, ""));
    let before = ((most / scale).max(1.0).log10().floor() as usize) + 1;
    let figure = |n: f64| format!("{:.*}", if scale == 1.0 { 0 } else { digits.saturating_sub(before) }, n / scale);
    (figure(a), figure(b), unit)
}

/// The digits with which the percentages and cycles of an answer are shown: as many as the interval's width allows, and more where an end of the interval
/// would be shown at the margin or the limit, or beyond it. All parts of the answer have the same digits.
#[derive(Clone, Copy)]
struct Precision {
    /// Digits behind the point of percentages.
    percent: usize,
    /// Significant digits of cycles.
    cycles: usize,
}

impl Precision {
    fn of(verdict: &Verdict) -> Self {
        // The last digit is that of the half width's first one.
        let width = verdict.uncertainty() * 100.0;
        let without = (verdict.relative * 100.0).abs() / 10f64.powi(WITHOUT_INTERVAL - 1);
        let figure = match verdict.interval {
            Some(interval) if interval.confidence >= CONFIDENCE => width,
            // Few pairs may be close together by chance.
            Some(_) => width.max(without),
            None => without,
        };
        let digits = if figure > 0.0 { -figure.log10().floor() } else { MOST_DIGITS as f64 };
        let least = digits.clamp(0.0, MOST_DIGITS as f64) as usize;
        let ends: Vec<f64> = verdict.interval.iter().flat_map(|interval| [interval.low, interval.high]).collect();
        let judged = if ends.is_empty() { vec![verdict.relative] } else { ends.clone() };
        let is_right = |digits: &usize| {
            let margin = ends.iter().all(|end| same_side(end.abs(), verdict.margin, *digits));
            margin && verdict.limit.is_none_or(|limit| judged.iter().all(|part| same_side(*part, limit, *digits)))
        };
        let percent = (least..=MOST_DIGITS).find(is_right).unwrap_or(least);
        Self { percent, cycles: least + 3 }
    }

    /// Formats the absolute value of a fraction as a percentage. What would be shown as zero gets more digits.
    fn percent(self, part: f64) -> String {
        let percent = (part * 100.0).abs();
        let shown = |digits: usize| format!("{percent:.digits$}");
        let is_zero = |text: &String| text.bytes().all(|byte| matches!(byte, b'0' | b'.'));
        if percent == 0.0 {
            return "0%".to_owned();
        }
        let found = (self.percent..=MOST_DIGITS.max(self.percent)).map(shown).find(|text| !is_zero(text));
        found.map_or_else(|| "less than 0.001%".to_owned(), |text| format!("{text}%"))
    }

    /// Formats a fraction as a percentage with its sign. What would be shown as zero has none.
    fn signed(self, part: f64) -> String {
        let text = self.percent(part);
        match text.starts_with(|c: char| c.is_ascii_digit()) && part != 0.0 {
            true => format!("{}{text}", if part < 0.0 { "-" } else { "+" }),
            false => "0%".to_owned(),
        }
    }
}

/// Returns true if a fraction that is shown as a percentage with so many digits is still above a bound, below it or equal to it.
fn same_side(part: f64, bound: f64, digits: usize) -> bool {
    let unit = 10f64.powi(digits as i32);
    let shown = (part * 100.0 * unit).round() / unit;
    // The bound is a percentage that the user has written.
    let bound = (bound * 1e8).round() / 1e6;
    let exact = (part * 1e10).round() / 1e8;
    exact == bound || exact.total_cmp(&bound) == shown.total_cmp(&bound)
}

/// Returns what a difference within the margin is less than: the end of its interval, rounded up, or the margin if that is less.
fn within(verdict: &Verdict, interval: Interval) -> String {
    let (reach, margin) = (bound(interval.reach()), (verdict.margin * 1e8).round() / 1e6);
    let is_less = reach.trim_end_matches('%').parse::<f64>().is_ok_and(|reach| reach <= margin);
    if is_less || interval.reach() > verdict.margin { reach } else { format!("{margin}%") }
}

/// Rounds a fraction up to a percentage of one or two digits, for a bound.
fn bound(part: f64) -> String {
    let percent = (part * 100.0).max(0.001);
    let unit = 10f64.powf(percent.log10().floor());
    let digits = (-unit.log10()).max(0.0) as usize;
    format!("{:.digits$}%", (percent / unit - 1e-9).ceil() * unit)
}

/// Formats a fraction as a percentage with its significant digits.
pub fn percent(part: f64) -> String {
    let percent = (part * 100.0).abs();
    match percent {
        _ if percent >= 0.095 => format!("{percent:.1}%"),
        _ if percent >= 0.0095 => format!("{percent:.2}%"),
        0.0 => "0%".to_owned(),
        _ => "less than 0.01%".to_owned(),
    }
}

/// Formats a fraction as a percentage with its sign.
pub fn signed_percent(part: f64) -> String {
    let digits = if part.abs() < 0.000_95 { 2 } else { 1 };
    // Smaller values round to zero, which has no sign.
    let sign = if part.abs() < 0.000_05 {
        ""
    } else if part < 0.0 {
        "-"
    } else {
        "+"
    };
    format!("{sign}{:.digits$}%", part.abs() * 100.0)
}

/// The least share of a difference by which an entry explains it.
const MAIN: f64 = 0.5;
/// Significant digits of the cycles of one entry.
const OF_AN_ENTRY: i32 = 3;

/// Rounds to a few significant digits, and formats the result.
fn rounded(cycles: f64) -> String {
    let unit = 10f64.powi((cycles.max(1.0).log10().floor() as i32 + 1 - OF_AN_ENTRY).max(0));
    number(((cycles / unit).round() * unit) as u64)
}

/// Returns true if a cause says nothing about its reason: time of instructions and of misses, and the transitions of entries themselves.
fn is_diffuse(cause: &str) -> bool {
    const WORDS: [&str; 9] =
        ["instructions", "TLB", "cache misses", "mispredict", "exception", "SYS", "IRET", "INT ", "SWAPGS"];
    WORDS.iter().any(|word| cause.starts_with(word))
}

/// Returns the name of an entry behind a number: `calls of read`, and behind 1 `call of read`.
fn noun(number: &str, plural: &str) -> String {
    const NOUNS: [(&str, &str); 5] = [
        ("page faults", "page fault"),
        ("calls of ", "call of "),
        ("rounds of ", "round of "),
        ("interrupts ", "interrupt "),
        ("exceptions ", "exception "),
    ];
    let one = NOUNS.iter().filter(|_| number == "1").find_map(|(many, one)| Some((one, plural.strip_prefix(many)?)));
    one.map_or_else(|| plural.to_owned(), |(one, rest)| format!("{one}{rest}"))
}

/// Returns a part of A's cost as the beginning of a sentence, in percentage points.
fn points(precision: Precision, part: f64) -> String {
    match precision.percent(part).replace('%', "").as_str() {
        "1" => "1 point is".to_owned(),
        points => format!("{points} points are"),
    }
}

/// Returns the entry that explains a difference, in a sentence: another number of entries, or another price of them. `whole` is the
/// difference in cycles, `cause` the largest cause, and `before` A's whole cost in cycles.
fn entry_reason(
    precision: Precision,
    whole: f64,
    before: f64,
    cause: &str,
    entries: &[EntryChange],
    place: &str,
) -> Option<String> {
    let share = |cycles: f64| cycles / whole;
    let points = |cycles: f64| points(precision, cycles / before.max(1.0));
    let by_count = |entry: &&EntryChange| share(entry.of_count()) >= MAIN && share(entry.cycles()) >= MAIN;
    let counted = entries.iter().filter(by_count);
    if let Some(entry) = counted.max_by(|a, b| share(a.of_count()).total_cmp(&share(b.of_count()))) {
        let more = entry.b.count - entry.a.count;
        let (word, each) = if more > 0.0 { ("more", entry.b.mean) } else { ("fewer", entry.a.mean) };
        let (times, each) = (number(more.abs().round() as u64), rounded(each));
        return Some(format!(
            "{} {times} {word} {}, {each} cycles each{place}",
            points(entry.cycles()),
            noun(&times, &entry.plural)
        ));
    }
    if let Some(calls) = calls_reason(whole, entries, points) {
        return Some(calls);
    }
    let by_price = |entry: &&EntryChange| share(entry.cycles()) >= MAIN && share(entry.of_price()) >= MAIN;
    let entry = entries.iter().filter(|_| is_diffuse(cause)).find(by_price)?;
    let (word, each) = match entry.b.mean - entry.a.mean {
        more if more > 0.0 => ("more", more),
        less => ("fewer", -less),
    };
    let (times, each) = (number(entry.b.count.round() as u64), rounded(each));
    let entries = noun(&times, &entry.plural);
    Some(format!("{} {times} {entries} of {each} {word} cycles each{place}", points(entry.cycles())))
}

/// The beginning of the name of a system call where it is counted.
const CALLS: &str = "calls of ";

/// Returns another number of system calls as the reason of a difference, where no call alone is most of it.
fn calls_reason(whole: f64, entries: &[EntryChange], points: impl Fn(f64) -> String) -> Option<String> {
    let calls: Vec<&EntryChange> = entries.iter().filter(|entry| entry.plural.starts_with(CALLS)).collect();
    let sum = |of: fn(&EntryChange) -> f64| calls.iter().map(|entry| of(entry)).sum::<f64>();
    let (by_count, all) = (sum(EntryChange::of_count), sum(EntryChange::cycles));
    let more = sum(|entry| entry.b.count - entry.a.count).round();
    if more.abs() <= 1.0 || by_count / whole < MAIN || all / whole < MAIN {
        return None;
    }
    let most = calls.iter().max_by(|a, b| (a.of_count() / whole).total_cmp(&(b.of_count() / whole)))?;
    let word = if more > 0.0 { "more" } else { "fewer" };
    let (times, each) = (number(more.abs() as u64), rounded(by_count / more));
    Some(format!("{} {times} {word} system calls, {each} cycles each, above all {}", points(all), most.name))
}

/// Returns the main reason of a difference: the entry that explains it, or else the largest cause in its direction, with that cause's main
/// function. `before` is A's total cost.
pub fn reason(
    verdict: &Verdict,
    before: Tally,
    causes: &[Change],
    entries: &[EntryChange],
    by_function: impl Fn(&str) -> Vec<Change>,
) -> Option<String> {
    let direction = verdict.direction();
    if direction == 0 {
        return None;
    }
    let largest = causes.iter().find(|change| change.ticks().signum() == direction)?;
    let points = points(Precision::of(verdict), largest.ticks() as f64 / before.ticks.max(1) as f64);
    let functions = by_function(&largest.name);
    let most = functions.iter().find(|change| change.ticks().signum() == direction);
    let from = most.map_or_else(String::new, |most| {
        let half = most.ticks().unsigned_abs() * 2 >= largest.ticks().unsigned_abs();
        format!(", {} in {}", if half { "most" } else { "above all" }, most.name)
    });
    let cycles = |ticks: i128| ticks as f64 / TICKS_PER_CYCLE as f64;
    let whole = causes.iter().map(|cause| cycles(cause.ticks())).sum();
    let before_in_cycles = before.ticks as f64 / TICKS_PER_CYCLE as f64;
    let place = if largest.name == "instructions" { from.as_str() } else { "" };
    let basis = basis(verdict, whole / before_in_cycles.max(1.0));
    let entry = entry_reason(Precision::of(verdict), whole, before_in_cycles, &largest.name, entries, place);
    if let Some(entry) = entry {
        return Some(basis + &entry);
    }
    let count = largest.count();
    let times = number(u64::try_from(count.unsigned_abs()).unwrap_or(u64::MAX));
    let how = match count.signum() {
        0 => "as many at another price".to_owned(),
        sign if sign == direction => {
            let (word, price) = if direction > 0 { ("more", "higher") } else { ("fewer", "lower") };
            match is_explained_by_count(largest) {
                true => format!("{times} {word}"),
                false => format!("{times} {word} at a {price} price"),
            }
        }
        1 => format!("{times} more at a lower price"),
        _ => format!("{times} fewer at a higher price"),
    };
    Some(format!("{basis}{points} {} ({how}{from})", largest.name))
}

/// Causes are parts of the change of the means, in which a layout that costs far more than the others weighs more than in the estimate of the
/// difference. Returns what says so, as the beginning of a reason, where the two are far from each other.
fn basis(verdict: &Verdict, of_means: f64) -> String {
    match (of_means - verdict.relative).abs() > MAIN * verdict.relative.abs() {
        true => format!("in the means, which differ by {}, ", Precision::of(verdict).signed(of_means)),
        false => String::new(),
    }
}

/// Returns true if the change of the count, at the price of before, is at least half of the change in ticks. What did not occur before had no
/// price.
fn is_explained_by_count(change: &Change) -> bool {
    let (count, ticks) = (i128::from(change.before.count), i128::from(change.before.ticks));
    count == 0 || 2 * (change.count() * ticks / count).abs() >= change.ticks().abs()
}

/// Returns the outcome in one sentence. `advises` is false where the sides have the same settings, so that more layouts are no advice. `limited` is true
/// if a time limit ended the measurement: where more pairs could have given another answer, the sentence says so.
pub fn answer(verdict: &Verdict, [a, b]: [&Side; 2], reason: Option<String>, advises: bool, limited: bool) -> String {
    let precision = Precision::of(verdict);
    let (of_a, of_b) = (&a.name, &b.name);
    let (before, after, unit) = scaled(a.cycles.median, b.cycles.median, precision.cycles);
    let medians = if verdict.interval.is_some() { "medians " } else { "" };
    let cycles = format!("{medians}{before} → {after} {unit}").trim_end().to_owned();
    let how_much = precision.percent(verdict.relative);
    let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
    let ends = |more: bool| {
        let Some(Interval { low, high, .. }) = verdict.interval else { return String::new() };
        let [near, far] = if more { [low, high] } else { [high, low] };
        format!("{} to {}; ", precision.percent(near), precision.percent(far))
    };
    let signed = |between: &str, and: &str| {
        let Some(Interval { low, high, .. }) = verdict.interval else { return String::new() };
        format!("{between}{} {and} {}", precision.signed(low), precision.signed(high))
    };
    match verdict.answer {
        Answer::More | Answer::Less | Answer::OneLayout if !advises => format!(
            "{of_a} and {of_b} have the same settings: a difference of {how_much} ({}{cycles}) is that of their layouts.",
            ends(verdict.answer == Answer::More)
        ),
        Answer::More => format!("{of_b} costs {how_much} more cycles than {of_a} ({}{cycles}){reason}.", ends(true)),
        Answer::Less => format!("{of_b} costs {how_much} fewer cycles than {of_a} ({}{cycles}){reason}.", ends(false)),
        Answer::OneLayout => {
            let word = if verdict.direction() < 0 { "fewer" } else { "more" };
            let all = if limited { ", all that the time limit allowed" } else { "" };
            format!("In one layout{all}, {of_b} costs {how_much} {word} cycles than {of_a} ({cycles}){reason}.")
        }
        Answer::Same => {
            let (cycles, _, unit) = scaled(a.cycles.median, b.cycles.median, EQUAL);
            let cycles = format!("{cycles} {unit}");
            let within = if verdict.interval.is_some() { "" } else { "In one layout, " };
            format!("{within}{of_b} costs as many cycles as {of_a} ({}).", cycles.trim_end())
        }
        Answer::Within => {
            let most = verdict.interval.map_or_else(|| bound(verdict.margin), |interval| within(verdict, interval));
            format!("{of_a} and {of_b} differ by less than {most} ({}; {cycles}).", signed("", "to"))
        }
        Answer::Undecided if !advises => format!(
            "{of_a} and {of_b} have the same settings: a difference {} ({cycles}) is that of their layouts.",
            signed("between ", "and")
        ),
        Answer::Undecided => {
            let all = if limited { ", all that the time limit allowed," } else { "" };
            let within = if limited { " within the time limit" } else { "" };
            let opening = match verdict.interval.filter(|interval| interval.confidence < CONFIDENCE) {
                Some(_) => {
                    let pairs = a.runs.len().min(b.runs.len());
                    format!(
                        "{pairs} pairs of runs{all} are too few to decide if {of_a} and {of_b} differ: the difference in them is "
                    )
                }
                None => format!("It is not decided{within} if {of_a} and {of_b} differ: the difference is "),
            };
            let between = match cells(verdict) {
                (middle, ends) if ends == format!("{middle} to {middle}") => middle,
                _ => signed("between ", "and"),
            };
            format!("{opening}{between} ({cycles}){}.", advice(verdict, advises))
        }
    }
}

/// Returns the difference and its interval in the cells of a table: the interval is empty where there is none.
pub fn cells(verdict: &Verdict) -> (String, String) {
    let precision = Precision::of(verdict);
    let ends = |Interval { low, high, .. }| format!("{} to {}", precision.signed(low), precision.signed(high));
    let interval = verdict.interval.filter(|_| verdict.answer != Answer::Same);
    (precision.signed(verdict.relative), interval.map(ends).unwrap_or_default())
}

/// Returns the outcome in a word or two, for a cell of a table.
pub fn word(verdict: &Verdict) -> String {
    match (verdict.answer, verdict.interval) {
        (Answer::More, _) => "more".to_owned(),
        (Answer::Less, _) => "fewer".to_owned(),
        (Answer::Same, Some(_)) => "equal".to_owned(),
        (Answer::Same, None) => "equal in one layout".to_owned(),
        (Answer::OneLayout, _) => "one layout, no interval".to_owned(),
        (Answer::Within, Some(interval)) => format!("within {}", within(verdict, interval)),
        (Answer::Undecided | Answer::Within, _) => "not decided".to_owned(),
    }
}

/// Returns the outcome as a figure and its meaning.
pub fn short(verdict: &Verdict) -> (String, String) {
    let precision = Precision::of(verdict);
    let part = |part: f64| precision.signed(part).replace('-', "−");
    let (figure, word) = match (verdict.answer, verdict.interval) {
        (Answer::More, _) => (part(verdict.relative), "more cycles"),
        (Answer::Less, _) => (part(verdict.relative), "fewer cycles"),
        (Answer::Same, Some(_)) => ("0%".to_owned(), "equal"),
        (Answer::Same, None) => ("0%".to_owned(), "in one layout; no interval"),
        (Answer::OneLayout, _) => (part(verdict.relative), "in one layout; no interval"),
        (Answer::Within, Some(interval)) => (format!("< {}", within(verdict, interval)), "different"),
        (Answer::Undecided | Answer::Within, _) => ("?".to_owned(), "not decided"),
    };
    (figure, word.to_owned())
}

/// Says how many layouts would decide what is not decided, as the end of a sentence.
fn advice(verdict: &Verdict, advises: bool) -> String {
    match verdict.sufficient.filter(|_| advises) {
        Some(count) => format!("; {count} layouts would probably decide (measure again with --layouts {count})"),
        None if advises => "; even 1000 layouts would probably not decide".to_owned(),
        None => String::new(),
    }
}

/// Returns the confidence of an interval.
pub fn confidence(interval: &Interval) -> String {
    format!("{:.1}%", interval.confidence * 100.0).replace(".0%", "%")
}

/// Returns the confidence of the outcome in one sentence.
pub fn certainty(verdict: &Verdict, [a, b]: [&Side; 2], advises: bool) -> String {
    let pairs = counted(a.runs.len(), "pair", "pairs");
    let Some(interval) = verdict.interval else {
        // A layout that was not drawn is that of --layouts 1. A drawn one may be the first of several that were to be measured.
        let (layout, more) = match a.runs.first().and_then(|run| run.seed) {
            Some(seed) => (
                format!("One layout, that of seed {seed}; no interval"),
                " (six layouts are the fewest that can decide)",
            ),
            None => ("One layout; no interval".to_owned(), " (measure without --layouts 1)"),
        };
        let more = if advises && verdict.answer != Answer::Same { more } else { "" };
        return format!("{layout}. Code and data at other places may give another answer{more}.");
    };
    if verdict.answer == Answer::Same {
        return format!(
            "In {pairs} of runs, each under a layout of its own, the two of each pair are equal to the cycle."
        );
    }
    let confidence = confidence(&interval);
    let few = match advises && interval.confidence < 0.95 {
        true => " Six pairs are the fewest that can decide.",
        false => "",
    };
    format!(
        "The difference is the Hodges-Lehmann estimate of {pairs} of runs, each under a layout of its own, and its interval has {confidence} confidence; the standard deviations of cycles are {} ({}) and {} ({}).{few}",
        percent(a.cycles.spread()),
        a.name,
        percent(b.cycles.spread()),
        b.name,
    )
}

/// Says what a limit decides, and why. A measurement that was `interrupted` passes only if it is decided.
pub fn decision(verdict: &Verdict, [a, b]: [&Side; 2], advises: bool, interrupted: bool) -> Option<String> {
    let (limit, held) = (verdict.limit?, verdict.held?);
    let precision = Precision::of(verdict);
    let allows = format!("--fail-above allows {}%", (limit * 1e8).round() / 1e6);
    let undecided = if interrupted { "Undecided" } else { "Passes, but undecided" };
    Some(match (verdict.interval, held) {
        (None, _) => {
            let word = match held {
                Held::Exceeded => "Fails",
                Held::Within => "Passes",
                Held::Undecided => undecided,
            };
            format!("{word}: one layout without an interval has {}, and {allows}.", precision.signed(verdict.relative))
        }
        (Some(_), _) if verdict.answer == Answer::Same => {
            format!("Passes: {} costs what {} costs, and {allows}.", b.name, a.name)
        }
        (Some(interval), Held::Exceeded) => {
            format!("Fails: {allows}, and the interval begins above that, at {}.", precision.signed(interval.low))
        }
        (Some(interval), Held::Within) => {
            format!("Passes: {allows}, and the interval ends at {}.", precision.signed(interval.high))
        }
        (Some(Interval { low, high, .. }), Held::Undecided) => format!(
            "{undecided}: {allows}, and the difference is between {} and {}{}.",
            precision.signed(low),
            precision.signed(high),
            advice(verdict, advises)
        ),
    })
}

/// Returns what a limit decides as a sentence about a side with a name.
pub fn decision_on(name: &str, decision: &str) -> String {
    let mut chars = decision.chars();
    let first = chars.next().map(|first| first.to_ascii_lowercase());
    let verb = if decision.starts_with("Undecided") { "is " } else { "" };
    format!("{name} {verb}{}{}", first.map(String::from).unwrap_or_default(), chars.as_str())
}

/// Returns remarks and warnings for the reader.
pub fn notes(a: &Side, b: &Side) -> Vec<String> {
    let mut notes = Vec::new();
    for side in [a, b] {
        let name = &side.name;
        if side.settled_after().is_none() {
            notes.push(format!(
                "{name}: the system never became idle before the command; its kernel was always busy, or its tasks are not known. Other work may run beside the command."
            ));
        }
    }
    if a.tsc_hz != b.tsc_hz {
        let ghz = |side: &Side| side.tsc_hz as f64 / 1e9;
        notes.push(format!(
            "{}'s cycles are of {:.3} GHz and {}'s of {:.3} GHz: in time {} takes {:.3} times as long.",
            a.name,
            ghz(a),
            b.name,
            ghz(b),
            b.name,
            b.cycles.mean / b.tsc_hz as f64 / (a.cycles.mean / a.tsc_hz as f64)
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_a_unit_that_suits_them() {
        assert_eq!(scaled(1.812e9, 1.87e9, 4), ("1.812".into(), "1.870".into(), "G"));
        assert_eq!(scaled(950e6, 1.2e9, 3), ("0.95".into(), "1.20".into(), "G"));
        assert_eq!(scaled(78.3e6, 112.2e6, 3), ("78".into(), "112".into(), "M"));
        assert_eq!(scaled(12.0, 950.0, 6), ("12".into(), "950".into(), ""));
    }

    #[test]
    fn digits_are_those_that_the_interval_allows() {
        let precision = |percent| Precision { percent, cycles: percent + 3 };
        assert_eq!([0.553, 0.398, 0.002].map(|part| precision(0).percent(part)), ["55%", "40%", "0.2%"]);
        assert_eq!([0.0261, -0.0249].map(|part| precision(1).signed(part)), ["+2.6%", "-2.5%"]);
        assert_eq!([0.0, 0.000_001].map(|part| precision(2).signed(part)), ["0%", "0%"]);
        assert_eq!(precision(2).percent(0.000_001), "less than 0.001%");
        assert_eq!([0.0234, 0.1, 0.000_41, 0.0].map(bound), ["3%", "10%", "0.05%", "0.001%"]);
    }

    #[test]
    fn both_ends_have_the_digits_that_show_them_on_their_side_of_the_margin() {
        let shown = |low: f64, high: f64, margin: f64, limit: Option<f64>| {
            let interval = Interval { low, high, confidence: 0.95 };
            let terms = crate::diff::Terms { plan: crate::diff::statistics::Plan::Fixed, margin, limit };
            let verdict =
                Verdict { interval: Some(interval), ..Verdict::new(&[(100.0, 100.5), (100.0, 99.5)], &terms) };
            cells(&verdict).1
        };
        assert_eq!(shown(-0.08, 0.0102, 0.01, None), "-8.00% to +1.02%");
        assert_eq!(shown(-0.08, 0.01, 0.01, None), "-8% to +1%");
        assert_eq!(shown(0.0002, 0.009_99, 0.01, None), "+0.020% to +0.999%");
        assert_eq!(shown(-0.08, 0.0096, 0.02, None), "-8% to +1%");
        assert_eq!(shown(-0.08, 0.0196, 0.05, Some(0.02)), "-8.00% to +1.96%");
        assert_eq!(shown(0.009_999_9, 0.02, 0.01, None), "+1.0% to +2.0%");
    }

    #[test]
    fn few_pairs_have_no_more_digits_than_one() {
        let terms = crate::diff::Terms { plan: crate::diff::statistics::Plan::Fixed, margin: 0.01, limit: None };
        let shown = |pairs: &[(f64, f64)]| cells(&Verdict::new(pairs, &terms));
        let close = [(100.0, 109.12), (100.0, 109.13)];
        assert_eq!(shown(&close), ("+9.1%".to_owned(), "+9.1% to +9.1%".to_owned()));
        assert_eq!(shown(&close.repeat(3)).0, "+9.125%");
    }

    #[test]
    fn what_is_within_the_margin_is_not_said_to_be_beyond_it() {
        let text = |reach: f64, margin: f64| {
            let interval = Interval { low: -reach / 2.0, high: reach, confidence: 0.95 };
            let pairs = [(100.0, 100.5), (100.0, 99.5)];
            let terms = crate::diff::Terms { plan: crate::diff::statistics::Plan::Fixed, margin, limit: None };
            let verdict = Verdict { answer: Answer::Within, interval: Some(interval), ..Verdict::new(&pairs, &terms) };
            [word(&verdict), short(&verdict).0]
        };
        assert_eq!(text(0.0121, 0.0125), ["within 1.25%", "< 1.25%"]);
        assert_eq!(text(0.0096, 0.01), ["within 1.0%", "< 1.0%"]);
        assert_eq!(text(0.0034, 0.01), ["within 0.4%", "< 0.4%"]);
        assert_eq!(text(0.011, 0.02), ["within 2%", "< 2%"]);
    }

    #[test]
    fn one_call_is_no_calls() {
        let names = ["calls of write", "page faults", "rounds of soft interrupts", "interrupts 33 (timer)", "NMI"];
        let one = ["call of write", "page fault", "round of soft interrupts", "interrupt 33 (timer)", "NMI"];
        assert_eq!(names.map(|name| noun("1", name)), one);
        assert_eq!(names.map(|name| noun("1,001", name)), names);
    }

    #[test]
    fn percentages_have_digits_that_say_something() {
        let texts = [0.032, -0.5, 0.000_5, 0.000_001, 0.0].map(percent);
        assert_eq!(texts, ["3.2%", "50.0%", "0.05%", "less than 0.01%", "0%"]);
        assert_eq!([0.032, -0.000_42, -0.000_01].map(signed_percent), ["+3.2%", "-0.04%", "0.00%"]);
    }
}
