//! Shared boots: a machine is saved once its kernel has booted and process 1 asks for its order. The next run with the same kernel and settings
//! continues from there. The order and the command's files come afterwards.

use super::session::Session;
use super::settle::{Settle, Settled};
use crate::contain::Sandbox;
use crate::output::{OutputFile, PARTIAL, say};
use crate::places;
use crate::table::hexadecimal;
use anyhow::{Context, Result};
use ledger::Ticks;
use ledger::profile::Profile;
use ledger::stack::Keeps;
use machine::snapshot::{Charges, bytes};
use machine::{Machine, Outcome};
use rustix::fs::{Access, access};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::thread::{Builder, JoinHandle};
use std::time::SystemTime;

/// Bytes of all boots that are kept. The least recently used ones are removed: a boot of 512 MiB has some 45 MB, and a comparison of two kernels
/// under six layouts has twelve.
const KEPT: u64 = 3 << 30;
/// Beginning of a message on a boot that is not kept.
const NOT_KEPT: &str = "the booted machine is not kept for the next run, which will boot again:";
/// Extension of boot files.
const EXTENSION: &str = "boot";

/// A boot that is kept, or can be.
pub struct Boot {
    directory: PathBuf,
    /// Facts beside the machine's description that identify the boot.
    facts: Vec<(String, String)>,
}

fn hash(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

/// Returns the directory for boots, and makes it.
fn directory() -> Result<PathBuf> {
    let directory = places::cache()?.join("boots");
    std::fs::create_dir_all(&directory).with_context(|| format!("can't make {}", directory.display()))?;
    Ok(directory)
}

/// Says once, for a measurement whose runs are not shown, that none of them can keep its boot.
pub fn remark() {
    static SAID: Once = Once::new();
    let usable = directory().and_then(|directory| {
        access(&directory, Access::WRITE_OK).with_context(|| format!("can't write to {}", directory.display()))
    });
    if let Err(error) = usable {
        SAID.call_once(|| not_kept(&error));
    }
}

/// Says why a boot can't be kept.
fn not_kept(error: &anyhow::Error) {
    say(&format!("tollgate: {NOT_KEPT} {error:#}"));
}

/// Identifies a file without reading it.
fn stamp(path: &Path) -> Option<String> {
    let file = std::fs::metadata(path).ok()?;
    Some(format!("{} {} {}.{:09} {}", path.display(), file.len(), file.mtime(), file.mtime_nsec(), file.ino()))
}

impl Boot {
    /// Finds the boot of a kernel image with an initial RAM disk on a processor, with the stacks that were recorded meanwhile. None if there
    /// is no directory for boots, which is said.
    pub fn find(image: &Path, archive: &[u8], profile: &Profile, stacks: Keeps) -> Option<Self> {
        let directory = directory().map_err(|error| not_kept(&error)).ok()?;
        let facts = vec![
            ("kernel".to_owned(), stamp(image)?),
            ("initrd".to_owned(), hash(archive)),
            ("profile".to_owned(), hash(format!("{profile:?}").as_bytes())),
            ("stacks".to_owned(), format!("{stacks:?}")),
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

    /// Returns a machine whose kernel has booted. None if no boot is kept.
    fn restored(&self, making: &Making) -> Result<Option<Machine>> {
        let mut machine = (making.for_boot)()?;
        let path = self.path(&machine);
        if is_irregular(&path) {
            return Ok(None);
        }
        let Ok(bytes) = File::open(&path).and_then(|file| bytes::read(&file, KEPT)) else { return Ok(None) };
        if machine.restore_with(&bytes, &self.facts, making.charges).is_err() {
            // The file is damaged or from another program, and the restored machine unusable.
            let _ = std::fs::remove_file(&path);
            return Ok(None);
        }
        if let Ok(file) = File::open(&path) {
            // Mark the boot as used. If the time can't be written, the boot is removed earlier.
            let _ = file.set_modified(SystemTime::now());
        }
        Ok(Some(machine))
    }

    /// Prepares to keep the boot of a machine. None if it can't be kept, which is said; the next run then boots again.
    pub fn keeper(self, machine: &Machine, sandbox: Sandbox) -> Option<Keep> {
        self.prune();
        let path = self.path(machine);
        // A pipe with the name of a boot would never take it.
        if is_irregular(&path) {
            let removed = std::fs::remove_file(&path).with_context(|| format!("can't remove {}", path.display()));
            removed.map_err(|error| not_kept(&error)).ok()?;
        }
        let file = OutputFile::create_for(sandbox, &path, "kept boot").map_err(|error| not_kept(&error)).ok()?;
        Some(Keep { file, facts: self.facts })
    }

    /// Makes room for one more boot: removes the least recently used ones.
    fn prune(&self) {
        let Ok(entries) = std::fs::read_dir(&self.directory) else { return };
        let kept = |path: PathBuf| {
            let file = std::fs::metadata(&path).ok()?;
            Some(Kept { used: file.modified().ok()?, size: file.len(), path })
        };
        let boots = entries.flatten().map(|entry| entry.path()).filter(|path| takes_room(path));
        for boot in surplus(boots.filter_map(kept).collect(), KEPT) {
            // Another run may have removed the file.
            let _ = std::fs::remove_file(boot.path);
        }
    }
}

/// Returns true if a file is a boot, or what a process has left that was killed while it wrote one.
fn takes_room(path: &Path) -> bool {
    let extension = path.extension().unwrap_or_default();
    extension == EXTENSION || extension.as_encoded_bytes().starts_with(PARTIAL.as_bytes())
}

/// A boot that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    used: SystemTime,
    size: u64,
    path: PathBuf,
}

/// Returns the boots to be removed, so that those left and another one, as large as the largest, have at most so many bytes.
fn surplus(mut boots: Vec<Kept>, most: u64) -> Vec<Kept> {
    boots.sort_by(|a, b| (b.used, &b.path).cmp(&(a.used, &a.path)));
    let mut sum = boots.iter().map(|boot| boot.size).max().unwrap_or(0);
    let mut fits = |boot: &Kept| {
        sum = sum.saturating_add(boot.size);
        sum <= most
    };
    let left = boots.iter().map_while(|boot| Some(boot).filter(|boot| fits(boot))).count();
    boots.split_off(left)
}

/// The destination of a boot that will be kept.
pub struct Keep {
    file: OutputFile,
    facts: Vec<(String, String)>,
}

impl Keep {
    /// Keeps the boot of a machine; a thread writes it while the machine goes on. After an error the next run boots again.
    fn keep(self, machine: &mut Machine) -> Option<JoinHandle<()>> {
        let captured = machine.capture(&self.facts).ok()?;
        let file = self.file;
        let write = move || {
            if let Ok(snapshot) = captured.file() {
                let _ = file.write(&snapshot);
            }
        };
        Builder::new().name("kept boot".to_owned()).spawn(write).ok()
    }
}

/// A boot that is being written. The process must not end before this is dropped, which waits until the file is complete.
#[derive(Default)]
pub struct Keeping(Option<JoinHandle<()>>);

impl Drop for Keeping {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // After an error there is no file, and the next run boots again.
            let _ = thread.join();
        }
    }
}

/// Returns true if a path is that of something which is no regular file, such as a link. Such a thing is neither read nor written.
fn is_irregular(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|file| !file.is_file())
}

/// How machines for a run are made.
pub struct Making<'a> {
    /// Makes a machine that boots its kernel.
    pub new: &'a dyn Fn() -> Result<Machine>,
    /// Makes a machine for a kept boot.
    pub for_boot: &'a dyn Fn() -> Result<Machine>,
    /// When the charges of a kept boot are restored.
    pub charges: Charges,
}

/// Returns a machine, and true if its kernel has booted already. A boot that has not ended by the virtual time `limit` is not used: the run ends
/// within it.
pub fn prepare(making: &Making, boot: Option<&Boot>, limit: Option<Ticks>) -> Result<(Machine, bool)> {
    if let Some(boot) = boot
        && let Some(machine) = boot.restored(making)?
        && limit.is_none_or(|limit| machine.now() < limit)
    {
        return Ok((machine, true));
    }
    Ok(((making.new)()?, false))
}

/// Runs the machine to its end, and keeps its boot if `boot` is given; `keeping` stands for the work that may remain then. With `settle`, the
/// command waits until the guest has settled; the second result is the outcome of that wait.
pub fn run(
    machine: &mut Machine,
    session: &mut Session,
    boot: Option<Keep>,
    keeping: &mut Keeping,
    settle: Option<Settle>,
) -> (Outcome, Option<Settled>) {
    let ready = session.prepared();
    if let Some(boot) = boot {
        let mut stop = |machine: &Machine| machine.board().workload_asked() || ready.get().is_some();
        if let Some(outcome) = machine.run_until(session, &mut stop) {
            return (outcome, None);
        }
        // Process 1 of a kernel without I/O ports for programs does not ask for its orders: when it is ready, it has them, and the boot is not
        // one for other commands.
        if ready.get().is_none() {
            keeping.0 = boot.keep(machine);
        }
    }
    let mut settled = None;
    if let Some(settle) = settle {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn boots_and_parts_of_boots_take_room() {
        let taking = ["a.boot", "a.boot.partial-12", "a", "boot", "a.ledger"].map(|path| takes_room(Path::new(path)));
        assert_eq!(taking, [true, true, false, false, false]);
    }

    #[test]
    fn the_boots_that_were_used_last_are_kept() {
        let boot = |seconds, size| Kept {
            used: SystemTime::UNIX_EPOCH + Duration::from_secs(seconds),
            size,
            path: PathBuf::from(format!("{seconds}.{EXTENSION}")),
        };
        let boots = vec![boot(3, 40), boot(1, 10), boot(4, 20), boot(2, 30)];
        assert_eq!(surplus(boots.clone(), 140), []);
        assert_eq!(surplus(boots.clone(), 139), [boot(1, 10)]);
        // The third does not fit, and nothing that is older takes its place.
        assert_eq!(surplus(boots.clone(), 115), [boot(2, 30), boot(1, 10)]);
        assert_eq!(surplus(boots.clone(), 59).len(), 4);
        assert_eq!(surplus(Vec::new(), 0), []);
    }
}
