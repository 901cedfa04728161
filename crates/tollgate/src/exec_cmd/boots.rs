//! Boots that runs share: a machine is saved when its kernel has booted and process 1 asks what to do, and the next run with the same kernel and settings
//! goes on from there. What the guest is told, and the files that it finds, come afterwards.

use super::session::Session;
use super::settle::{Settle, Settled};
use crate::contain::Sandbox;
use crate::output::OutputFile;
use crate::places;
use anyhow::Result;
use ledger::profile::Profile;
use machine::{Machine, Outcome};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Boots that are kept; those that were used least recently go.
const KEPT: usize = 8;
/// What files of boots end in.
const EXTENSION: &str = "boot";

/// A boot that is, or can be, kept.
pub struct Boot {
    directory: PathBuf,
    /// What it was made from beside the machine's description.
    facts: Vec<(String, String)>,
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A file as it is now, without reading it.
fn stamp(path: &Path) -> Option<String> {
    let file = std::fs::metadata(path).ok()?;
    Some(format!("{} {} {}.{:09} {}", path.display(), file.len(), file.mtime(), file.mtime_nsec(), file.ino()))
}

impl Boot {
    /// The boot of a kernel's image with an initial RAM disk on a processor. None: there is nowhere to keep it.
    pub fn find(image: &Path, archive: &[u8], profile: &Profile) -> Option<Self> {
        let directory = places::cache().ok()?.join("boots");
        std::fs::create_dir_all(&directory).ok()?;
        let facts = vec![
            ("kernel".to_owned(), stamp(image)?),
            ("initrd".to_owned(), hash(archive)),
            ("profile".to_owned(), hash(format!("{profile:?}").as_bytes())),
            // Another build may keep other things.
            ("program".to_owned(), stamp(&std::env::current_exe().ok()?)?),
        ];
        Some(Self { directory, facts })
    }

    fn path(&self, machine: &Machine) -> PathBuf {
        // Where the first processor stands is said of a machine that runs, too.
        let made = machine.description().into_iter().filter(|(key, _)| *key != "entry");
        let all = format!("{:?} {:?}", self.facts, made.collect::<Vec<_>>());
        self.directory.join(hash(all.as_bytes())).with_extension(EXTENSION)
    }

    /// Prepares to keep the boot of a machine. None: it can't be kept, and is made again.
    pub fn keeper(self, machine: &Machine, sandbox: Sandbox) -> Option<Keep> {
        self.prune();
        let file = OutputFile::create_for(sandbox, &self.path(machine), "kept boot").ok()?;
        Some(Keep { file, facts: self.facts })
    }

    /// Makes room for one more: removes all but those that were used last.
    fn prune(&self) {
        let Ok(entries) = std::fs::read_dir(&self.directory) else { return };
        let used = |path: PathBuf| Some((std::fs::metadata(&path).ok()?.modified().ok()?, path));
        let boots =
            entries.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == EXTENSION));
        let mut boots: Vec<(SystemTime, PathBuf)> = boots.filter_map(used).collect();
        boots.sort();
        for (_, path) in boots.iter().rev().skip(KEPT - 1) {
            // Another run may have removed it.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A boot that is to be kept.
pub struct Keep {
    file: OutputFile,
    facts: Vec<(String, String)>,
}

impl Keep {
    /// Keeps the boot of a machine. One that can't be kept is made again.
    fn keep(self, machine: &mut Machine) {
        if let Ok(snapshot) = machine.snapshot(&self.facts) {
            let _ = self.file.write(&snapshot);
        }
    }
}

/// A machine, and whether its kernel has booted already.
pub fn prepare(make: &dyn Fn() -> Result<Machine>, boot: Option<&Boot>) -> Result<(Machine, bool)> {
    let mut machine = make()?;
    let Some(boot) = boot else { return Ok((machine, false)) };
    let path = boot.path(&machine);
    let Ok(bytes) = std::fs::read(&path) else { return Ok((machine, false)) };
    if machine.restore(&bytes, &boot.facts).is_ok() {
        if let Ok(file) = std::fs::File::open(&path) {
            // It counts as used; where that can't be written it is made again earlier.
            let _ = file.set_modified(SystemTime::now());
        }
        return Ok((machine, true));
    }
    // A damaged file, or one of a program that keeps other things: the machine is good for nothing now.
    let _ = std::fs::remove_file(&path);
    Ok((make()?, false))
}

/// Runs the machine to its end. With `boot`, the boot is kept on the way. With `settle`, the command waits until the guest has settled, and the
/// second value tells how that ended.
pub fn run(
    machine: &mut Machine,
    session: &mut Session,
    boot: Option<Keep>,
    settle: Option<Settle>,
) -> (Outcome, Option<Settled>) {
    if let Some(boot) = boot {
        if let Some(outcome) = machine.run_until(session, &mut |machine| machine.board.borrow().workload_asked()) {
            return (outcome, None);
        }
        boot.keep(machine);
    }
    let mut settled = None;
    if let Some(settle) = settle {
        let ready = session.prepared();
        let mut stop = |machine: &Machine| {
            settled = ready.get().and_then(|ready| settle.look(machine, ready));
            settled.is_some()
        };
        if let Some(outcome) = machine.run_until(session, &mut stop) {
            return (outcome, None);
        }
        session.go(settle.delay);
    }
    (machine.run(session), settled)
}
