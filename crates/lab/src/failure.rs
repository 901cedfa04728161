//! Why cells have no outcome, with one entry for each cause however many cells it concerns.

use std::fmt;
use std::path::PathBuf;

/// Why a cell has no outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// In a few words.
    pub reason: String,
    /// What it printed that explains the failure.
    pub said: Vec<String>,
    /// The file with all that it printed, if it printed anything.
    pub output: Option<PathBuf>,
    /// True if the cell was run at all: a guest may be missing.
    pub ran: bool,
}

impl Failure {
    /// Returns the failure of a cell that has printed nothing, because it was not run.
    pub fn before_the_run(reason: String) -> Self {
        Self { reason, said: Vec::new(), output: None, ran: false }
    }
}

/// Cells that share something, for a message about all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group<'a> {
    /// The first of them, by its name.
    pub first: &'a str,
    /// The number of other cells.
    pub others: usize,
}

impl fmt::Display for Group<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.others {
            0 => write!(f, "{}", self.first),
            1 => write!(f, "{} and another cell", self.first),
            others => write!(f, "{} and {others} other cells", self.first),
        }
    }
}

/// Groups cells by what they share; the order is that of the first of each group.
pub fn groups<'a, T: PartialEq>(cells: impl IntoIterator<Item = (&'a str, T)>) -> Vec<(Group<'a>, T)> {
    let mut groups: Vec<(Group, T)> = Vec::new();
    for (cell, shared) in cells {
        match groups.iter_mut().find(|(_, found)| *found == shared) {
            Some((group, _)) => group.others += 1,
            None => groups.push((Group { first: cell, others: 0 }, shared)),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_with_one_cause_are_one_group() {
        let cells = [("x/a", 1), ("x/b", 2), ("x/c", 1), ("x/d", 3), ("x/e", 1), ("x/f", 2)];
        let lines: Vec<String> = groups(cells).into_iter().map(|(group, cause)| format!("{group}: {cause}")).collect();
        assert_eq!(lines, ["x/a and 2 other cells: 1", "x/b and another cell: 2", "x/d: 3"]);
    }
}
