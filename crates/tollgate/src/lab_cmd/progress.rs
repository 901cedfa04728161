//! Progress bar on a terminal; silent in a pipe.

use crate::output::say;
use crate::table::counted;
use indicatif::{ProgressBar, ProgressStyle};
use lab::Cell;
use lab::failure::groups;
use lab::runner::{Outcome, Watch};
use std::io::IsTerminal;
use std::time::Duration;

/// Largest number of names beside the bar.
const MOST_NAMES: usize = 12;

/// A bar with the names of the running cells.
pub struct Progress {
    bar: Option<ProgressBar>,
    running: Vec<String>,
    finished_before: usize,
    /// Failure reasons that have been reported.
    said: Vec<String>,
}

impl Progress {
    /// Creates a bar for `cells` cells.
    pub fn new(cells: usize) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(cells as u64);
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} cells  {elapsed}  {wide_msg}");
            // The template is constant. If it were invalid, the bar would have the default style.
            if let Ok(style) = style {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(250));
            bar
        });
        Self { bar, running: Vec::new(), finished_before: 0, said: Vec::new() }
    }

    fn show(&self) {
        if let Some(bar) = &self.bar {
            bar.set_message(self.running.iter().take(MOST_NAMES).map(String::as_str).collect::<Vec<_>>().join("  "));
        }
    }
}

impl Watch for Progress {
    fn damaged(&mut self, cells: &[(&Cell, String)]) {
        let named: Vec<(String, &String)> = cells.iter().map(|(cell, reason)| (cell.full_id(), reason)).collect();
        let say_all = || {
            for (group, reason) in groups(named.iter().map(|(cell, reason)| (cell.as_str(), *reason))) {
                say(&format!("tollgate: {group}: runs again, because its kept result is damaged: {reason}"));
            }
        };
        match &self.bar {
            Some(bar) => bar.suspend(say_all),
            None => say_all(),
        }
    }

    fn begun(&mut self, cell: &Cell) {
        self.running.push(cell.full_id());
        self.show();
    }

    fn done(&mut self, cell: &Cell, outcome: &Outcome, ran: bool) {
        let id = cell.full_id();
        self.running.retain(|running| *running != id);
        self.finished_before += usize::from(!ran && matches!(outcome, Outcome::Finished(_)));
        if let Some(bar) = &self.bar {
            bar.inc(1);
            // All failures are listed at the end. The first failure of each kind is also shown at once.
            if let Outcome::Failed(failure) = outcome
                && ran
                && !self.said.contains(&failure.reason)
            {
                bar.println(format!("{id}: {}", failure.reason));
                self.said.push(failure.reason.clone());
            }
        }
        self.show();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        if self.bar.is_some() && self.finished_before != 0 {
            let were = if self.finished_before == 1 { "was" } else { "were" };
            say(&format!("{} {were} finished before", counted(self.finished_before, "cell", "cells")));
        }
    }
}
