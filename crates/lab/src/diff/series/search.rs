//! The search for the first commit above a limit: it halves the commits between the last one below and the first one above.

use serde::Serialize;

/// What is known of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mark {
    /// Its cost is within the limit.
    Below,
    /// Its cost is above the limit.
    Above,
    /// It could not be built or measured, or its interval contains the limit.
    Skipped,
}

/// The state of a search. The first commit is the one that the others are compared with.
#[derive(Clone, Debug)]
pub struct Search {
    marks: Vec<Option<Mark>>,
}

/// What a search has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The first commit above the limit.
    Commit(usize),
    /// The first commit above the limit is one of these: all but the last were skipped.
    OneOf(Vec<usize>),
}

impl Search {
    /// Begins a search among commits of which the first is below the limit and the last above it. There are at least two.
    pub fn new(commits: usize) -> Self {
        let mut marks = vec![None; commits];
        marks[0] = Some(Mark::Below);
        marks[commits - 1] = Some(Mark::Above);
        Self { marks }
    }

    /// Notes what is known of a commit.
    pub fn mark(&mut self, commit: usize, mark: Mark) {
        self.marks[commit] = Some(mark);
    }

    /// Returns the marks.
    pub fn marks(&self) -> &[Option<Mark>] {
        &self.marks
    }

    /// Returns the last commit below the limit in front of the first one above it, and that one.
    fn ends(&self) -> (usize, usize) {
        let of = |mark: Mark| move |known: &Option<Mark>| *known == Some(mark);
        let above = self.marks.iter().position(of(Mark::Above)).unwrap_or(self.marks.len() - 1);
        let below = self.marks[..above].iter().rposition(of(Mark::Below)).unwrap_or_default();
        (below, above)
    }

    /// Returns the commits that may still be tried.
    fn open(&self) -> Vec<usize> {
        let (below, above) = self.ends();
        (below + 1..above).filter(|commit| self.marks[*commit].is_none()).collect()
    }

    /// Returns the number of commits that may still be tried.
    pub fn left(&self) -> usize {
        self.open().len()
    }

    /// Returns the commit to be tried next: the one nearest to the middle. None if the search has ended.
    pub fn next(&self) -> Option<usize> {
        let (below, above) = self.ends();
        // Twice the distance from the middle, so that it is a whole number.
        self.open().into_iter().min_by_key(|commit| (2 * commit).abs_diff(below + above))
    }

    /// Returns the result of a search that has ended.
    pub fn found(&self) -> Found {
        let (below, above) = self.ends();
        if below + 1 == above { Found::Commit(above) } else { Found::OneOf((below + 1..=above).collect()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches among commits of which those from `first` on are above the limit; `skipped` can't be tried. Returns the result and the number of tries.
    fn search(commits: usize, first: usize, skipped: &[usize]) -> (Found, usize) {
        let mut search = Search::new(commits);
        let mut tries = 0;
        while let Some(commit) = search.next() {
            assert!(search.marks()[commit].is_none(), "nothing is tried twice");
            tries += 1;
            let mark = if commit < first { Mark::Below } else { Mark::Above };
            search.mark(commit, if skipped.contains(&commit) { Mark::Skipped } else { mark });
        }
        assert_eq!(search.left(), 0);
        (search.found(), tries)
    }

    #[test]
    fn the_commit_is_found_in_a_logarithmic_number_of_tries() {
        for commits in 2..70_usize {
            let most = (commits - 1).next_power_of_two().trailing_zeros() as usize;
            for first in 1..commits {
                let (found, tries) = search(commits, first, &[]);
                assert_eq!(found, Found::Commit(first), "{commits} {first}");
                assert!(tries <= most, "{commits} {first}: {tries} tries");
            }
        }
        assert_eq!(search(1000, 617, &[]).0, Found::Commit(617));
        assert!(search(1000, 617, &[]).1 <= 10);
    }

    #[test]
    fn commits_that_can_not_be_tried_are_passed_over() {
        assert_eq!(search(13, 5, &[6]).0, Found::Commit(5));
        assert_eq!(search(13, 5, &[4]).0, Found::OneOf(vec![4, 5]));
        assert_eq!(search(13, 5, &[5, 6]).0, Found::OneOf(vec![5, 6, 7]));
        let all: Vec<usize> = (1..12).collect();
        assert_eq!(search(13, 5, &all), (Found::OneOf((1..13).collect()), 11));
        assert_eq!(search(2, 1, &[]), (Found::Commit(1), 0));
    }
}
