//! The course of a series: what is built and measured, in which order, and what becomes of what fails. Who builds and measures is behind a trait.

use super::{Bisection, Broken, Commit, Found, Mark, Outcome, Search};
use crate::diff::{Held, Runs, Terms, judge};

/// The outcome of a build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Built {
    /// The kernel is there; kernels of the same name are the same, byte for byte.
    Kernel(String),
    /// It could not be built.
    Broken(Broken),
    /// The user stopped it.
    Stopped,
}

/// The outcome of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub enum Measured {
    /// The runs of the commit.
    One(Box<Runs>),
    /// The runs of both commits of a pair.
    Two(Box<[Runs; 2]>),
    /// The kernel did not boot, or the command failed.
    Broken(Broken),
    /// The user stopped it.
    Stopped,
}

/// The builder of a series' kernels, which also measures commands in them.
pub trait Workshop {
    /// An error of the workshop itself, and not of a commit.
    type Error;

    /// Builds a commit.
    fn build(&mut self, commit: usize) -> Result<Built, Self::Error>;

    /// Measures a commit alone.
    fn measure(&mut self, commit: usize) -> Result<Measured, Self::Error>;

    /// Measures a commit in pairs with one that has runs, until the pairs decide; with a limit, until they are within it or above it.
    fn compare(&mut self, with: (usize, &Runs), commit: usize, limit: Option<f64>) -> Result<Measured, Self::Error>;

    /// Returns true if the user has stopped the series: what was measured last may have fewer runs than it needs.
    fn is_stopped(&self) -> bool;

    /// Tells what is about to happen: the number of commits that are left.
    fn begins(&mut self, commit: usize, left: usize);

    /// Tells what became of a commit.
    fn ended(&mut self, commit: usize, outcome: &Outcome);
}

/// The outcomes of a series' commits.
#[derive(Debug, Default)]
pub struct Course {
    /// The outcome of each commit.
    pub outcomes: Vec<Outcome>,
    /// The kernels that were built, or found built.
    pub kernels: usize,
    /// True if the user stopped the series.
    pub stopped: bool,
    /// The commit without which nothing can be compared, if that is broken.
    pub needed: Option<usize>,
    images: Vec<Option<String>>,
}

/// A commit that has the runs of another one, because its image is the same.
fn of_same_image(commit: &Commit, runs: &Runs) -> Runs {
    Runs { name: commit.name.clone(), title: commit.subject.clone(), ..runs.clone() }
}

impl Course {
    fn new(commits: usize) -> Self {
        Self { outcomes: vec![Outcome::Untried; commits], images: vec![None; commits], ..Self::default() }
    }

    /// Returns the runs of a commit.
    pub fn runs(&self, commit: usize) -> Option<&Runs> {
        match &self.outcomes[commit] {
            Outcome::Measured(runs, _) => Some(runs),
            _ => None,
        }
    }

    /// Notes the runs of a commit, and of those with the same image.
    fn note(&mut self, commits: &[Commit], commit: usize, runs: Runs) {
        for (other, other_commit) in commits.iter().enumerate() {
            let same = other != commit && self.images[other].is_some() && self.images[other] == self.images[commit];
            if let (true, Outcome::Measured(known, _)) = (same, &mut self.outcomes[other]) {
                **known = of_same_image(other_commit, &runs);
            }
        }
        let same_as = match &self.outcomes[commit] {
            Outcome::Measured(_, same_as) => same_as.clone(),
            _ => None,
        };
        self.outcomes[commit] = Outcome::Measured(Box::new(runs), same_as);
    }

    /// Builds and measures a commit, in pairs with another one if there is one. Returns false if the user stopped it.
    fn take<W: Workshop>(
        &mut self,
        workshop: &mut W,
        commits: &[Commit],
        commit: usize,
        with: Option<usize>,
        limit: Option<f64>,
    ) -> Result<bool, W::Error> {
        let image = match &self.images[commit] {
            Some(image) => image.clone(),
            None => match workshop.build(commit)? {
                Built::Kernel(image) => image,
                Built::Broken(broken) => {
                    self.outcomes[commit] = Outcome::NotBuilt(broken);
                    return Ok(true);
                }
                Built::Stopped => return Ok(false),
            },
        };
        if self.images[commit].is_none() {
            self.kernels += 1;
            let same = (0..self.images.len()).find(|other| self.images[*other].as_ref() == Some(&image));
            self.images[commit] = Some(image);
            if let Some((other, runs)) = same.and_then(|other| Some((other, self.runs(other)?))) {
                let runs = of_same_image(&commits[commit], runs);
                self.outcomes[commit] = Outcome::Measured(Box::new(runs), Some(commits[other].name.clone()));
            }
        }
        let is_pair = |with: &usize| self.images[*with] != self.images[commit];
        let measured = match with.filter(is_pair).and_then(|with| Some((with, self.runs(with)?))) {
            Some(with) => workshop.compare(with, commit, limit)?,
            None if self.runs(commit).is_some() => return Ok(true),
            None => workshop.measure(commit)?,
        };
        match (measured, with) {
            (Measured::One(runs), _) => self.note(commits, commit, *runs),
            (Measured::Two(both), Some(with)) => {
                let [first, second] = *both;
                self.note(commits, with, first);
                self.note(commits, commit, second);
            }
            // Whoever measures a commit alone has the runs of one.
            (Measured::Two(_), None) => {}
            (Measured::Broken(broken), _) if self.runs(commit).is_none() => {
                self.outcomes[commit] = Outcome::NotMeasured(broken);
            }
            (Measured::Broken(_), _) => {}
            (Measured::Stopped, _) => return Ok(false),
        }
        Ok(!workshop.is_stopped())
    }

    /// Takes a commit with a word before and after it. Returns true if it has runs.
    fn step<W: Workshop>(
        &mut self,
        workshop: &mut W,
        commits: &[Commit],
        commit: usize,
        with: Option<usize>,
        limit: Option<f64>,
        left: usize,
    ) -> Result<bool, W::Error> {
        workshop.begins(commit, left);
        self.stopped = !self.take(workshop, commits, commit, with, limit)?;
        if !self.stopped {
            workshop.ended(commit, &self.outcomes[commit]);
        }
        Ok(!self.stopped && self.runs(commit).is_some())
    }

    /// Measures all commits, each in pairs with the measured one before it.
    pub fn of_all<W: Workshop>(workshop: &mut W, commits: &[Commit]) -> Result<Self, W::Error> {
        let mut course = Self::new(commits.len());
        let mut previous = None;
        for commit in 0..commits.len() {
            let left = commits.len() - commit - 1;
            if course.step(workshop, commits, commit, previous, None, left)? {
                previous = Some(commit);
            } else if commit == 0 && !course.stopped {
                course.needed = Some(commit);
            }
            if course.stopped || course.needed.is_some() {
                break;
            }
        }
        Ok(course)
    }

    /// Judges a commit beside the first one.
    fn mark(&self, commit: usize, above: f64, terms: &Terms) -> Mark {
        let Some((first, runs)) = self.runs(0).zip(self.runs(commit)) else { return Mark::Skipped };
        let verdict = judge(&first.runs, &runs.runs, &Terms { limit: Some(above), ..*terms });
        match verdict.held {
            Some(Held::Exceeded) => Mark::Above,
            Some(Held::Within) => Mark::Below,
            Some(Held::Undecided) | None => Mark::Skipped,
        }
    }

    /// Searches for the first commit that costs more than `above` above the first one. There are at least two commits.
    pub fn of_search<W: Workshop>(
        workshop: &mut W,
        commits: &[Commit],
        above: f64,
        terms: &Terms,
    ) -> Result<(Self, Bisection), W::Error> {
        let last = commits.len() - 1;
        let mut course = Self::new(commits.len());
        let mut bisection = Bisection { above, marks: vec![None; commits.len()], found: None, kernels: 0 };
        for (commit, with) in [(0, None), (last, Some(0))] {
            if !course.step(workshop, commits, commit, with, with.map(|_| above), last - 1)? {
                course.needed = (!course.stopped).then_some(commit);
                bisection.kernels = course.kernels;
                return Ok((course, bisection));
            }
        }
        bisection.marks[0] = Some(Mark::Below);
        bisection.marks[last] = Some(course.mark(last, above, terms));
        let mut search = Search::new(commits.len());
        if bisection.marks[last] == Some(Mark::Above) {
            while let Some(commit) = search.next() {
                let left = search.left() - 1;
                course.step(workshop, commits, commit, Some(0), Some(above), left)?;
                if course.stopped {
                    break;
                }
                search.mark(commit, course.mark(commit, above, terms));
            }
            bisection.marks = search.marks().to_vec();
            bisection.found = (!course.stopped).then(|| search.found());
        }
        bisection.kernels = course.kernels;
        // The answer is about the commit that was found beside the one before it.
        if let Some(Found::Commit(commit)) = bisection.found
            && course.runs(commit - 1).is_some()
        {
            course.stopped = !course.take(workshop, commits, commit, Some(commit - 1), None)?;
        }
        Ok((course, bisection))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::tests::{run, runs, terms};

    /// A workshop whose commits have images of their own, and whose costs are numbers of instructions.
    struct Fake {
        costs: Vec<u64>,
        images: Vec<usize>,
        unbuilt: Vec<usize>,
        unbooted: Vec<usize>,
        /// The step at which the user stops it.
        stops_at: Option<usize>,
        /// The measurement within which the user stops it, after its first layouts.
        stops_within: Option<usize>,
        log: Vec<String>,
    }

    impl Fake {
        fn new(costs: &[u64]) -> Self {
            Self {
                costs: costs.to_vec(),
                images: (0..costs.len()).collect(),
                unbuilt: Vec::new(),
                unbooted: Vec::new(),
                stops_at: None,
                stops_within: None,
                log: Vec::new(),
            }
        }

        fn logged(&mut self, text: String) -> bool {
            let stopped = self.stops_at == Some(self.log.len());
            self.log.push(text);
            stopped
        }

        fn runs(&self, commit: usize, layouts: u64) -> Runs {
            let more = [0, 70, 30, 100, 50, 90, 10, 80, 60];
            let one = |seed: u64| run(Some(seed), self.costs[commit] + more[seed as usize % 9], 1_000);
            Runs { name: commit.to_string(), ..runs("x", "", (1..=layouts).map(one).collect()) }
        }

        fn count(&self, word: &str) -> usize {
            self.log.iter().filter(|line| line.starts_with(word)).count()
        }
    }

    impl Workshop for Fake {
        type Error = std::convert::Infallible;

        fn build(&mut self, commit: usize) -> Result<Built, Self::Error> {
            if self.logged(format!("build {commit}")) {
                return Ok(Built::Stopped);
            }
            Ok(match self.unbuilt.contains(&commit) {
                true => Built::Broken(Broken { why: "make ended with status 2".to_owned(), log: Vec::new() }),
                false => Built::Kernel(self.images[commit].to_string()),
            })
        }

        fn measure(&mut self, commit: usize) -> Result<Measured, Self::Error> {
            if self.logged(format!("measure {commit}")) {
                return Ok(Measured::Stopped);
            }
            Ok(match self.unbooted.contains(&commit) {
                true => Measured::Broken(Broken { why: "the kernel panicked".to_owned(), log: Vec::new() }),
                false => Measured::One(Box::new(self.runs(commit, 6))),
            })
        }

        fn compare(&mut self, with: (usize, &Runs), commit: usize, _: Option<f64>) -> Result<Measured, Self::Error> {
            assert!(!with.1.runs.is_empty());
            if self.logged(format!("compare {} {commit}", with.0)) {
                return Ok(Measured::Stopped);
            }
            Ok(match self.unbooted.contains(&commit) {
                true => Measured::Broken(Broken { why: "the kernel panicked".to_owned(), log: Vec::new() }),
                false => Measured::Two(Box::new([self.runs(with.0, 9), self.runs(commit, 9)])),
            })
        }

        fn is_stopped(&self) -> bool {
            self.stops_within.is_some_and(|step| self.log.len() > step)
        }

        fn begins(&mut self, _: usize, _: usize) {}

        fn ended(&mut self, _: usize, _: &Outcome) {}
    }

    fn commits(count: usize) -> Vec<Commit> {
        (0..count).map(|number| Commit { name: number.to_string(), ..Commit::default() }).collect()
    }

    fn kinds(course: &Course) -> String {
        let kind = |outcome: &Outcome| match outcome {
            Outcome::Measured(_, None) => 'm',
            Outcome::Measured(_, Some(_)) => 's',
            Outcome::NotBuilt(_) => 'b',
            Outcome::NotMeasured(_) => 'p',
            Outcome::Untried => '.',
        };
        course.outcomes.iter().map(kind).collect()
    }

    #[test]
    fn broken_commits_are_passed_over() {
        let mut fake = Fake { unbuilt: vec![1], unbooted: vec![3], ..Fake::new(&[1_000_000; 6]) };
        let course = Course::of_all(&mut fake, &commits(6)).unwrap();
        assert_eq!((kinds(&course).as_str(), course.kernels, course.stopped), ("mbmpmm", 5, false));
        let pairs: Vec<&String> = fake.log.iter().filter(|line| line.starts_with("compare")).collect();
        assert_eq!(pairs, ["compare 0 2", "compare 2 3", "compare 2 4", "compare 4 5"]);
        assert_eq!(course.runs(2).unwrap().runs.len(), 9, "the runs that a later pair has added are kept");
    }

    #[test]
    fn a_series_needs_its_first_commit() {
        let mut fake = Fake { unbuilt: vec![0], ..Fake::new(&[1_000_000; 3]) };
        let course = Course::of_all(&mut fake, &commits(3)).unwrap();
        assert_eq!((kinds(&course).as_str(), course.needed), ("b..", Some(0)));
        let mut fake = Fake { unbooted: vec![2], ..Fake::new(&[1_000_000; 3]) };
        let (course, bisection) = Course::of_search(&mut fake, &commits(3), 0.01, &terms(None)).unwrap();
        assert_eq!((kinds(&course).as_str(), course.needed, bisection.found), ("m.p", Some(2), None));
    }

    #[test]
    fn what_has_the_same_image_is_not_measured_again() {
        let mut fake =
            Fake { images: vec![0, 0, 2, 2, 0], ..Fake::new(&[1_000_000, 1_000_000, 1_100_000, 1_100_000, 1_000_000]) };
        let course = Course::of_all(&mut fake, &commits(5)).unwrap();
        assert_eq!(kinds(&course), "msmss");
        assert_eq!((fake.count("measure"), fake.count("build")), (1, 5));
        let Outcome::Measured(runs, same_as) = &course.outcomes[4] else { panic!() };
        assert_eq!((runs.name.as_str(), same_as.as_deref()), ("4", Some("0")));
        assert_eq!(runs.runs.len(), 9, "it has all runs of that image");
    }

    #[test]
    fn a_stop_leaves_what_was_done() {
        let mut fake = Fake { stops_at: Some(3), ..Fake::new(&[1_000_000; 4]) };
        let course = Course::of_all(&mut fake, &commits(4)).unwrap();
        assert_eq!((kinds(&course).as_str(), course.stopped, fake.log.len()), ("m...", true, 4));
        let mut fake = Fake { stops_at: Some(4), ..Fake::new(&[1_000_000, 1_000_000, 1_100_000, 1_100_000]) };
        let (course, bisection) = Course::of_search(&mut fake, &commits(4), 0.05, &terms(None)).unwrap();
        assert!(course.stopped && bisection.found.is_none());
        assert_eq!(kinds(&course), "m..m");
    }

    #[test]
    fn a_stop_within_a_measurement_leaves_its_layouts() {
        let mut fake = Fake { stops_within: Some(3), ..Fake::new(&[1_000_000; 4]) };
        let course = Course::of_all(&mut fake, &commits(4)).unwrap();
        assert_eq!((kinds(&course).as_str(), course.stopped, fake.log.len()), ("mm..", true, 4));
    }

    #[test]
    fn a_search_builds_few_and_compares_what_it_found_with_the_commit_before() {
        let cost = |commit: u64| if commit < 7 { 1_000_000 } else { 1_030_000 };
        let mut fake = Fake::new(&(0..13).map(cost).collect::<Vec<_>>());
        let (course, bisection) = Course::of_search(&mut fake, &commits(13), 0.02, &terms(None)).unwrap();
        assert_eq!(bisection.found, Some(Found::Commit(7)));
        assert_eq!((bisection.kernels, fake.count("build"), course.stopped), (5, 5, false));
        assert_eq!(fake.log.last().unwrap(), "compare 6 7");
        // A broken commit beside it leaves two.
        let mut fake = Fake { unbuilt: vec![6], ..Fake::new(&(0..13).map(cost).collect::<Vec<_>>()) };
        let (_, bisection) = Course::of_search(&mut fake, &commits(13), 0.02, &terms(None)).unwrap();
        assert_eq!(bisection.found, Some(Found::OneOf(vec![6, 7])));
        assert_eq!(bisection.marks[6], Some(Mark::Skipped));
    }

    #[test]
    fn nothing_is_searched_where_the_last_commit_is_within_the_limit() {
        let mut fake = Fake::new(&[1_000_000, 1_030_000, 1_000_100]);
        let (course, bisection) = Course::of_search(&mut fake, &commits(3), 0.02, &terms(None)).unwrap();
        assert_eq!((kinds(&course).as_str(), bisection.found), ("m.m", None));
        assert_eq!(bisection.marks, [Some(Mark::Below), None, Some(Mark::Below)]);
    }
}
