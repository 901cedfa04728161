//! What a process that is set up can still ask of the host's kernel.
//!
//! A process that executes a guest reads what the guest has made: code that it translates, descriptors of devices, frames. A flaw there could give the
//! guest power over the process. [`confine`] takes away from the process what its work does not need, so that such power leads nowhere:
//!
//! - Landlock (landlock(7)) leaves the named files and directories, and no others. Ports, signals to other processes and abstract sockets are out of reach.
//! - Seccomp (seccomp(2)) leaves the system calls of a [table](calls), some of them with certain arguments only. Any other call ends the process by SIGSYS,
//!   after a message that names the call.
//!
//! What is open stays open: files, sockets, terminals and /dev/kvm are opened before. Nobody can undo the confinement, and threads inherit it.

#![deny(unsafe_code)]

pub mod calls;
mod files;
mod filter;
#[allow(unsafe_code, reason = "a signal's handler is installed, and reads what the kernel says of the call")]
mod refused;

pub use calls::Use;

use std::path::PathBuf;
use thiserror::Error;

/// What a process still needs.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// Files, and directories with all that is in them, that are opened for reading.
    pub readable: Vec<PathBuf>,
    /// Likewise, and they are changed, too.
    pub writable: Vec<PathBuf>,
    /// System calls beyond those that every machine needs.
    pub uses: Vec<Use>,
}

impl Needs {
    /// Whether one of the uses is this one.
    fn has(&self, wanted: Use) -> bool {
        match wanted {
            Use::Always => true,
            Use::Files => !self.readable.is_empty() || !self.writable.is_empty(),
            Use::Changes => !self.writable.is_empty(),
            other => self.uses.contains(&other),
        }
    }
}

/// Why a process is not confined.
#[derive(Debug, Error)]
pub enum ContainError {
    /// Landlock concerns one thread, and those that it starts from then on.
    #[error("the process has {0} threads already")]
    Threads(usize),
    /// The kernel refuses the rules for files.
    #[error("Landlock: {0}")]
    Files(#[from] landlock::RulesetError),
    /// The kernel refuses the filter.
    #[error("seccomp: {0}")]
    Calls(#[from] seccompiler::Error),
    /// The filter can't be made.
    #[error("seccomp: {0}")]
    Filter(#[from] seccompiler::BackendError),
    /// What is said of a refused call can't be prepared.
    #[error("SIGSYS can't be handled: {0}")]
    Signal(std::io::Error),
}

/// From now on this process, which has one thread, does nothing but what it needs. Landlock is there as far as the host's kernel knows it.
pub fn confine(needs: &Needs) -> Result<(), ContainError> {
    // Where /proc is not mounted nobody can tell.
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads != 1 {
        return Err(ContainError::Threads(threads));
    }
    files::confine(needs)?;
    refused::announce().map_err(ContainError::Signal)?;
    for program in filter::programs(needs)? {
        seccompiler::apply_filter(&program)?;
    }
    Ok(())
}
