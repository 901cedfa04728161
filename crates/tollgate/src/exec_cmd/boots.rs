//! Shared boots: a machine is saved once its kernel has booted and process 1 asks for its order. The next run with the same kernel and settings
//! continues from there. The order and the command's files come afterwards.

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

/// Number of boots that are kept. The least recently used ones are removed.
const KEPT: usize = 8;
/// Extension of boot files.
const EXTENSION: &str = "boot";

/// A boot that is kept, or can be.
pub struct Boot {
    directory: PathBuf,
    /// Facts beside the machine's description that identify the boot.
    facts: Vec<(String, String)>,
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Identifies a file without reading it.
fn stamp(path: &Path) -> Option<String> {
    let file = std::fs::metadata(path).ok()?;
    Some(format!("{} {} {}.{:09} {}", path.display(), file.len(), file.mtime(), file.mtime_nsec(), file.ino()))
}

impl Boot {
    /// Finds the boot of a kernel image with an initial RAM disk on a processor. None if there is no directory for boots.
    pub fn find(image: &Path, archive: &[u8], profile: &Profile) -> Option<Self> {
        let directory = places::cache().ok()?.join("boots");
        std::fs::create_dir_all(&directory).ok()?;
        let facts = vec![
            ("kernel".to_owned(), stamp(image)?),
            ("initrd".to_owned(), hash(archive)),
            ("profile".to_owned(), hash(format!("{profile:?}").as_bytes())),
            // Another build may save other state.
            ("program".to_owned(), stamp(&std::env::current_exe().ok()?)?),
        ];
        Some(Self { directory, facts })
    }

    fn path(&self, machine: &Machine) -> PathBuf {
        // The entry point is part of a running machine's description, too.
        let made = machine.description().into_iter().filter(|(key, _)| *key != "entry");
        let all = format!("{:?} {:?}", self.facts, made.collect::<Vec<_>>());
        self.directory.join(hash(all.as_bytes())).with_extension(EXTENSION)
    }

    /// Prepares to keep the boot of a machine. None if it can't be kept; the next run then boots again.
    pub fn keeper(self, machine: &Machine, sandbox: Sandbox) -> Option<Keep> {
        self.prune();
        let file = OutputFile::create_for(sandbox, &self.path(machine), "kept boot").ok()?;
        Some(Keep { file, facts: self.facts })
    }

    /// Makes room for one more boot: removes the least recently used ones.
    fn prune(&self) {
        let Ok(entries) = std::fs::read_dir(&self.directory) else { return };
        let used = |path: PathBuf| Some((std::fs::metadata(&path).ok()?.modified().ok()?, path));
        let boots =
            entries.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == EXTENSION));
        let mut boots: Vec<(SystemTime, PathBuf)> = boots.filter_map(used).collect();
        boots.sort();
        for (_, path) in boots.iter().rev().skip(KEPT - 1) {
            // Another run may have removed the file.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The destination of a boot that will be kept.
pub struct Keep {
    file: OutputFile,
    facts: Vec<(String, String)>,
}

impl Keep {
    /// Keeps the boot of a machine. After an error the next run boots again.
    fn keep(self, machine: &mut Machine) {
        if let Ok(snapshot) = machine.snapshot(&self.facts) {
            let _ = self.file.write(&snapshot);
        }
    }
}

/// Returns a machine, and true if its kernel has booted already.
pub fn prepare(make: &dyn Fn() -> Result<Machine>, boot: Option<&Boot>) -> Result<(Machine, bool)> {
    let mut machine = make()?;
    let Some(boot) = boot else { return Ok((machine, false)) };
    let path = boot.path(&machine);
    let Ok(bytes) = std::fs::read(&path) else { return Ok((machine, false)) };
    if machine.restore(&bytes, &boot.facts).is_ok() {
        if let Ok(file) = std::fs::File::open(&path) {
            // Mark the boot as used. If the time can't be written, the boot is removed earlier.
            let _ = file.set_modified(SystemTime::now());
        }
        return Ok((machine, true));
    }
    // The file is damaged or from another program, and the restored machine unusable.
    let _ = std::fs::remove_file(&path);
    Ok((make()?, false))
}

/// Runs the machine to its end, and keeps its boot if `boot` is given. With `settle`, the command waits until the guest has settled; the second
/// result is the outcome of that wait.
pub fn run(
    machine: &mut Machine,
    session: &mut Session,
    boot: Option<Keep>,
    settle: Option<Settle>,
) -> (Outcome, Option<Settled>) {
    if let Some(boot) = boot {
        if let Some(outcome) = machine.run_until(session, &mut |machine| machine.board().workload_asked()) {
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
