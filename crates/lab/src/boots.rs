//! Boots that several cells share: the first cell that needs one saves its machine when the guest asks for its workload, and the others begin
//! from there.

use crate::store::Partial;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The name of a snapshot in its directory.
const SNAPSHOT: &str = "booted";

/// The way in which a cell starts.
#[derive(Debug, PartialEq, Eq)]
pub enum Begin {
    /// It boots.
    Boots,
    /// It boots, and saves the machine here on the way.
    Saves(PathBuf),
    /// It begins here.
    From(PathBuf),
    /// It waits until another cell has booted.
    Waits,
}

#[derive(Debug)]
enum State {
    /// Nobody has begun.
    New,
    /// This cell boots.
    Booting(usize, Partial),
    /// The snapshot is there.
    Booted(Partial),
    /// There will be none.
    Alone,
}

/// A boot.
#[derive(Debug)]
struct Boot {
    state: State,
    /// The number of cells that have not ended yet.
    left: usize,
}

/// The boots of some cells.
#[derive(Debug, Default)]
pub struct Boots {
    boots: Vec<Boot>,
    /// By cell.
    of: BTreeMap<usize, usize>,
}

impl Boots {
    /// Of cells, each with the fingerprint of its boot.
    pub fn new(cells: impl IntoIterator<Item = (usize, String)>) -> Self {
        let mut by_print: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (cell, print) in cells {
            by_print.entry(print).or_default().push(cell);
        }
        let mut all = Self::default();
        // One cell alone does not need a snapshot.
        for cells in by_print.into_values().filter(|cells| cells.len() > 1) {
            all.of.extend(cells.iter().map(|cell| (*cell, all.boots.len())));
            all.boots.push(Boot { state: State::New, left: cells.len() });
        }
        all
    }

    /// The way in which a cell may start now. `directory` makes a directory for a snapshot.
    pub fn begin(&mut self, cell: usize, directory: impl FnOnce() -> std::io::Result<Partial>) -> Begin {
        let Some(boot) = self.of.get(&cell).map(|boot| &mut self.boots[*boot]) else { return Begin::Boots };
        match &boot.state {
            State::New => match directory() {
                Ok(directory) => {
                    let path = directory.path().join(SNAPSHOT);
                    boot.state = State::Booting(cell, directory);
                    Begin::Saves(path)
                }
                Err(_) => {
                    boot.state = State::Alone;
                    Begin::Boots
                }
            },
            State::Booting(..) => Begin::Waits,
            State::Booted(directory) => Begin::From(directory.path().join(SNAPSHOT)),
            State::Alone => Begin::Boots,
        }
    }

    /// Looks which snapshots have been written.
    pub fn look(&mut self) {
        for boot in &mut self.boots {
            boot.state = match std::mem::replace(&mut boot.state, State::New) {
                State::Booting(_, directory) if directory.path().join(SNAPSHOT).is_file() => State::Booted(directory),
                other => other,
            };
        }
    }

    /// A cell has ended, or will never begin. If it was to save its machine, and has not, the others boot themselves.
    pub fn ended(&mut self, cell: usize) {
        self.look();
        let Some(boot) = self.of.remove(&cell).map(|boot| &mut self.boots[boot]) else { return };
        boot.left -= 1;
        let failed = matches!(boot.state, State::Booting(by, _) if by == cell);
        if failed || boot.left == 0 {
            // The directory goes, and the snapshot with it.
            boot.state = State::Alone;
        }
    }
}
