//! A series as text for the terminal: a sentence, a table with a plot, and the cause of each change.

use super::{Bisection, Found, Mark, Row, Series, Status};
use crate::diff::origin::{Provenance, short};
use crate::diff::sentence;
use crate::diff::sheets::{Sheet, command_lines, headings, mark_down, print, rounded};
use crate::diff::{Answer, Position, Verdict, is_aside};
use crate::format::Align::{Left, Right};
use crate::format::{counted, cut, listed};
use crate::markdown::{self, plain};

/// Width of the plot in characters.
const WIDTH: usize = 32;
/// Characters of a subject that are shown.
const SUBJECT: usize = 56;
/// Lines that are shown of a failed build or run.
const LOG: usize = 6;

/// Formats a limit, which has no more digits than it needs.
fn limit(above: f64) -> String {
    format!("{}%", (above * 1e8).round() / 1e6)
}

impl Row {
    /// Returns the verdict of the row in a word or two.
    pub(crate) fn word(&self) -> String {
        match (self.status, &self.previous) {
            (Status::NotBuilt, _) => "not built".to_owned(),
            (Status::NotMeasured, _) => "not measured".to_owned(),
            (Status::Untried, _) => "not tried".to_owned(),
            (Status::Measured, None) => "the first".to_owned(),
            (Status::Measured, Some(_)) if self.is_same_image() => "same image".to_owned(),
            (Status::Measured, Some(diff)) => sentence::word(&diff.verdict),
        }
    }

    /// Returns true if the kernel is that of the measured commit before it. Of a commit that takes a change back, it is that of an earlier one.
    fn is_same_image(&self) -> bool {
        self.same_as.is_some() && self.previous.as_ref().is_some_and(|diff| diff.verdict.answer == Answer::Same)
    }

    /// Returns the name with the subject, for a sentence.
    fn named(&self) -> String {
        match self.commit.subject.as_str() {
            "" => self.commit.name.clone(),
            subject => format!("{} ({subject})", self.commit.name),
        }
    }

    /// Returns the difference from the first commit as a part of it: zero for the first commit itself.
    pub(crate) fn position(&self) -> Option<Position> {
        self.side.as_ref()?;
        Some(self.first.as_ref().map(Position::of).unwrap_or_default())
    }
}

/// The plot of a series: a scale from the least to the most of all intervals, with zero.
struct Scale {
    least: f64,
    most: f64,
}

impl Scale {
    fn of(series: &Series) -> Self {
        let ends = series.rows.iter().filter_map(Row::position).flat_map(|found| [found.low, found.middle, found.high]);
        let (least, most) = ends.fold((0.0, 0.0), |(least, most): (f64, f64), end| (least.min(end), most.max(end)));
        Self { least, most }
    }

    /// Returns the column of a value.
    fn column(&self, value: f64) -> usize {
        let range = self.most - self.least;
        let part = if range > 0.0 { (value - self.least) / range } else { 0.0 };
        (part * (WIDTH - 1) as f64).round() as usize
    }

    /// Draws a row: a line for the interval, a dot for the estimate, and a bar at zero.
    fn draw(&self, row: &Row) -> String {
        let mut cells = vec![' '; WIDTH];
        cells[self.column(0.0)] = '│';
        if let Some(Position { low, middle, high }) = row.position() {
            if low < high {
                cells[self.column(low)..=self.column(high)].fill('─');
            }
            cells[self.column(middle)] = '●';
        }
        cells.into_iter().collect::<String>().trim_end().to_owned()
    }

    /// Returns the heading: the values at both ends.
    fn heading(&self) -> String {
        let end = |value: f64| if value == 0.0 { "0".to_owned() } else { sentence::signed_percent(value) };
        let (least, most) = (end(self.least), end(self.most));
        if self.most <= self.least {
            return least;
        }
        format!("{least}{}{most}", " ".repeat(WIDTH.saturating_sub(least.chars().count() + most.chars().count())))
    }
}

/// Returns true for a verdict with an interval that has the confidence which a series promises: few layouts have less.
fn is_sure(verdict: &Verdict) -> bool {
    verdict.interval.is_some_and(|interval| interval.confidence >= 0.95)
}

impl Series {
    /// Returns the rows that a search has found: one, or all that it may be.
    pub fn found(&self) -> Vec<&Row> {
        match self.bisection.as_ref().and_then(|bisection| bisection.found.as_ref()) {
            None => Vec::new(),
            Some(Found::Commit(commit)) => vec![&self.rows[*commit]],
            Some(Found::OneOf(commits)) => commits.iter().map(|commit| &self.rows[*commit]).collect(),
        }
    }

    /// Returns the rows that are shown: of a search those that were tried.
    pub(crate) fn shown(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| self.bisection.is_none() || row.status != Status::Untried)
    }

    /// Returns the outcome in a sentence: how many commits cost more than the one before.
    pub fn summary(&self) -> String {
        let count = |of: &dyn Fn(&Row) -> bool| self.rows.iter().filter(|row| of(row)).count();
        let answered = |answer: Answer| {
            count(&|row: &Row| {
                !row.is_same_image() && row.previous.as_ref().is_some_and(|diff| diff.verdict.answer == answer)
            })
        };
        let margin = self.rows.iter().find_map(|row| Some(row.previous.as_ref()?.verdict.margin)).unwrap_or_default();
        let margin = format!("differ by less than {}", limit(margin));
        let parts = [
            (answered(Answer::More), "costs more".to_owned(), "cost more".to_owned()),
            (answered(Answer::Less), "costs less".to_owned(), "cost less".to_owned()),
            (answered(Answer::Within), margin.replacen("differ", "differs", 1), margin),
            (answered(Answer::Same), "costs the same".to_owned(), "cost the same".to_owned()),
            (answered(Answer::Undecided), "is not decided".to_owned(), "are not decided".to_owned()),
            (answered(Answer::OneLayout), "differs in one layout".to_owned(), "differ in one layout each".to_owned()),
            (count(&|row| row.is_same_image()), "has the same image".to_owned(), "have the same image".to_owned()),
            (count(&|row| row.status == Status::NotBuilt), "is not built".to_owned(), "are not built".to_owned()),
            (
                count(&|row| row.status == Status::NotMeasured),
                "is not measured".to_owned(),
                "are not measured".to_owned(),
            ),
            (count(&|row| row.status == Status::Untried), "is not tried".to_owned(), "are not tried".to_owned()),
        ];
        let said = parts.iter().filter(|(count, ..)| *count > 0).map(|(count, one, many)| counted(*count, one, many));
        let commits = counted(self.rows.len(), "commit", "commits");
        let early = if self.about.interrupted { "Interrupted. " } else { "" };
        let compared = if self.bisection.is_some() { "" } else { ", each against the measured one before it" };
        match listed(&said.collect::<Vec<_>>()).as_str() {
            "" => format!("{early}{commits}."),
            said => format!("{early}{commits}{compared}: {said}."),
        }
    }

    /// Returns the outcome of the search in a sentence.
    pub fn search_in_words(&self) -> Option<String> {
        let bisection = self.bisection.as_ref()?;
        let above = limit(bisection.above);
        let first = &self.rows.first()?.commit.name;
        let built = counted(bisection.kernels, "kernel", "kernels");
        let last = self.rows.last()?;
        let sentence = match &bisection.found {
            Some(Found::Commit(commit)) => format!(
                "{} is the first commit that costs more than {above} above {first}: {built} of {} decided.",
                self.rows[*commit].named(),
                self.rows.len()
            ),
            Some(Found::OneOf(commits)) => format!(
                "The first commit that costs more than {above} above {first} is one of {}: all but the last could not be decided.",
                listed(&commits.iter().map(|commit| self.rows[*commit].commit.name.clone()).collect::<Vec<_>>())
            ),
            None if self.about.interrupted => self.open_search(bisection, &above, first, last),
            None => match bisection.marks.last().copied().flatten() {
                Some(Mark::Skipped) => {
                    format!("{} against {first} is not decided at {above}, so there is no search.", last.named())
                }
                _ => format!(
                    "{} does not cost more than {above} above {first}, so there is no commit to find.",
                    last.named()
                ),
            },
        };
        let certainty = match self.searched_in_one_layout() {
            true => {
                " The search has judged by one layout, without an interval: another one may lead to another commit."
            }
            false => "",
        };
        Some(sentence + certainty)
    }

    /// Returns what a search that was interrupted knows, in a sentence.
    fn open_search(&self, bisection: &Bisection, above: &str, first: &str, last: &Row) -> String {
        let marked = |mark: Mark| move |known: &Option<Mark>| *known == Some(mark);
        let Some(end) = bisection.marks.iter().position(marked(Mark::Above)) else {
            let last = &last.commit.name;
            return format!(
                "The search is not complete: it is not known yet if {last} costs more than {above} above {first}."
            );
        };
        let begin = bisection.marks[..end].iter().rposition(marked(Mark::Below)).map_or(0, |below| below + 1);
        let name = |commit: usize| &self.rows[commit].commit.name;
        match end - begin {
            0 => format!("{} is the first commit that costs more than {above} above {first}.", name(end)),
            between => format!(
                "The search is not complete: the first commit that costs more than {above} above {first} is one of {}, from {} to {}.",
                between + 1,
                name(begin),
                name(end)
            ),
        }
    }

    /// Returns the answer of each change in a sentence.
    pub fn sentences(&self) -> Vec<String> {
        let said = |(row, diff): (&Row, &crate::diff::Diff)| {
            let subject =
                if row.commit.subject.is_empty() { String::new() } else { format!(" ({})", row.commit.subject) };
            format!("{}{subject}: {}", row.commit.name, diff.sentence)
        };
        self.changes().map(said).collect()
    }

    /// Returns the table of the commits; with `plot` it has a drawing of the costs.
    pub fn overview(&self, plot: bool) -> Sheet {
        let scale = Scale::of(self);
        let row = |row: &Row| {
            let (change, interval) =
                row.previous.as_ref().map(|diff| sentence::cells(&diff.verdict)).unwrap_or_default();
            let of_first = row.first.as_ref().map(|verdict| sentence::cells(verdict).0).unwrap_or_default();
            let median = row.side.as_ref().map(|side| rounded(side.cycles.median)).unwrap_or_default();
            let mut cells = vec![row.commit.name.clone(), median, change, interval, row.word(), of_first];
            if plot {
                cells.push(scale.draw(row));
            }
            cells.push(cut(&row.commit.subject, SUBJECT));
            cells
        };
        let mut all = headings([
            ("commit", Left),
            ("median cycles", Right),
            ("change", Right),
            ("interval", Left),
            ("verdict", Left),
            ("from the first", Right),
        ]);
        if plot {
            all.push((scale.heading(), Left));
        }
        all.push(("subject".to_owned(), Left));
        Sheet { title: String::new(), headings: all, rows: self.shown().map(row).collect() }
    }

    /// Returns the table of what was measured on. The processor and the inputs are those of the first kernel.
    pub fn measured_on(&self) -> Sheet {
        let Provenance { version, seeds, again, files, more_files, tree } = &self.provenance;
        let mut rows: Vec<[String; 2]> = Vec::new();
        if let Some((_, side)) = self.measured().next() {
            let origin = &side.origin;
            rows.push(["processor".into(), format!("{} (profile {})", origin.processor, origin.profile)]);
            rows.push(["model of time".into(), origin.model.clone()]);
            rows.push(["command line of the kernels".into(), origin.command_line.clone()]);
            rows.extend(origin.inputs.iter().map(|(name, value)| [name.clone(), short(value)]));
        }
        rows.push(["commits".into(), self.about.range.clone()]);
        rows.push(["command".into(), self.about.command.clone()]);
        let count = files.len() + more_files;
        let files = if count == 0 { tree.clone() } else { format!("{count}, together sha256 {}", short(tree)) };
        // Before the first run has ended neither is known.
        if self.measured().next().is_some() {
            rows.push(["files of the host".into(), files]);
            rows.push([
                "layouts".into(),
                match seeds {
                    Some([first, last]) if first == last => format!("seed {first}"),
                    Some([first, last]) => format!("seeds {first} to {last}"),
                    None => "none drawn".to_owned(),
                },
            ]);
        }
        rows.push(["version".into(), format!("Tollgate {version}")]);
        rows.push(["again".into(), again.clone()]);
        Sheet {
            title: "Measured on".to_owned(),
            headings: headings([("", Left), ("all commits", Left)]),
            rows: rows.into_iter().map(Vec::from).collect(),
        }
    }

    /// Returns the paragraphs below the first sentence.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let with_interval = self.rows.iter().filter_map(|row| row.previous.as_ref()).filter(|d| is_sure(&d.verdict));
        let pairs: Vec<usize> = with_interval.map(|diff| diff.verdict.differences.len()).collect();
        let certainty = pairs.iter().min().zip(pairs.iter().max()).map(|(least, most)| {
            let pairs = if least == most { counted(*least, "pair", "pairs") } else { format!("{least} to {most} pairs") };
            format!("Each change is the Hodges-Lehmann estimate of its pairs, and its interval has 95% confidence for its commit alone: {pairs} of runs, each pair under a layout of its own.")
        });
        let is_single = |diff: &crate::diff::Diff| diff.verdict.interval.is_none();
        let single = self.rows.iter().filter(|row| !row.is_same_image()).filter_map(|row| row.previous.as_ref());
        let single = single.into_iter().any(is_single).then(|| {
            "What was compared in one layout has no interval: code and data at other places may give another answer (six layouts are the fewest that can decide).".to_owned()
        });
        let compared = self.rows.iter().filter(|row| !row.is_same_image()).filter_map(|row| row.previous.as_ref());
        let few = compared.filter(|diff| diff.verdict.interval.is_some() && !is_sure(&diff.verdict));
        let few = few.map(|diff| diff.verdict.differences.len()).max().map(|most| {
            format!("{most} pairs of runs are too few to decide some of the changes: their intervals have less than 95% confidence (six layouts are the fewest that can decide).")
        });
        let notes = self.notes.iter().filter(|note| !is_aside(note)).cloned();
        certainty.into_iter().chain(few).chain(single).chain(notes).collect()
    }

    /// Returns the remarks on the tables, which stand below them.
    pub(crate) fn asides(&self) -> impl Iterator<Item = &String> {
        self.notes.iter().filter(|note| is_aside(note))
    }

    /// Returns true if the search has judged by single layouts.
    fn searched_in_one_layout(&self) -> bool {
        let mut firsts = self.rows.iter().filter_map(|row| row.first.as_ref());
        firsts.any(|verdict| verdict.answer == Answer::OneLayout)
    }

    /// Returns the series as text for the terminal.
    pub fn text(&self) -> String {
        let mut out = String::new();
        self.warnings.iter().for_each(|warning| out += &format!("{warning}\n"));
        self.search_in_words().into_iter().for_each(|sentence| out += &format!("{sentence}\n"));
        out += &format!("{}\n", self.summary());
        self.remarks().iter().for_each(|remark| out += &format!("{remark}\n"));
        if self.shown().next().is_some() {
            // A single point is no plot.
            print(&mut out, vec![self.overview(self.measured().nth(1).is_some())]);
        }
        for sentence in self.sentences() {
            out += &format!("\n{sentence}\n");
        }
        for (row, broken) in self.rows.iter().filter_map(|row| Some((row, row.broken.as_ref()?))) {
            out += &format!("\n{}: {}\n", row.named(), broken.why);
            let log = &broken.log[broken.log.len().saturating_sub(LOG)..];
            log.iter().for_each(|line| out += &format!("    | {line}\n"));
        }
        self.asides().for_each(|aside| out += &format!("\n{aside}\n"));
        print(&mut out, vec![self.measured_on()]);
        out
    }

    /// Returns the series as Markdown for a pull request or a mail.
    pub fn markdown(&self) -> String {
        let names: Vec<&str> = self.rows.iter().map(|row| &*row.commit.name).collect();
        let sentence = |text: &str| markdown::sentence(text, &names);
        let mut out = String::new();
        self.warnings.iter().for_each(|warning| out += &format!("> {}\n\n", sentence(warning)));
        self.search_in_words().iter().for_each(|text| out += &format!("**{}**\n\n", sentence(text)));
        out += &format!("**{}**\n", sentence(&self.summary()));
        self.remarks().iter().for_each(|remark| out += &format!("\n{}\n", sentence(remark)));
        out += &format!("\n- commits: {}\n", markdown::code(&self.about.range));
        out += &command_lines(&self.about.command, &self.provenance);
        if self.shown().next().is_some() {
            mark_down(&mut out, vec![self.overview(false)], 1);
        }
        if self.changes().next().is_some() {
            out.push('\n');
        }
        self.sentences().iter().for_each(|text| out += &format!("- {}\n", sentence(text)));
        for (row, broken) in self.rows.iter().filter_map(|row| Some((row, row.broken.as_ref()?))) {
            out += &format!("\n{}: {}\n", plain(&row.named()), plain(&broken.why));
            let log = &broken.log[broken.log.len().saturating_sub(LOG)..];
            if !log.is_empty() {
                out += &format!("{}\n", markdown::block(&log.join("\n"), ""));
            }
        }
        self.asides().for_each(|aside| out += &format!("\n{}\n", sentence(aside)));
        mark_down(&mut out, vec![self.measured_on()], 0);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::Terms;
    use crate::diff::statistics::Plan;

    #[test]
    fn two_layouts_have_no_interval_of_95_percent() {
        let terms = Terms { plan: Plan::Fixed, margin: 0.01, limit: None };
        let verdict = |pairs: usize| Verdict::new(&vec![(100.0, 101.0); pairs], &terms);
        assert!(verdict(2).interval.is_some() && !is_sure(&verdict(2)));
        assert!(is_sure(&verdict(6)) && !is_sure(&verdict(1)));
    }
}
