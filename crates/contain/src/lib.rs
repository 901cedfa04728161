//! Confinement of a process: the files and system calls that remain available after its setup.
//!
//! A process that runs a guest parses data that the guest controls: code to translate, device descriptors, network frames. A bug there could give the
//! guest control of the process. [`confine`] drops every privilege that the process does not need, so that such control gains little:
//!
//! - Landlock (landlock(7)) restricts access to the named files and directories. It also denies TCP ports, signals to other processes and abstract sockets.
//! - Seccomp (seccomp(2)) restricts system calls to a [table](calls), some of them to certain arguments. Any other call prints its name and ends the
//!   process by SIGSYS.
//!
//! Descriptors that the process has opened remain usable: it opens its files, sockets, terminals and /dev/kvm first. [`Inherited`] closes those that it has
//! from the program that started it. The confinement can't be lifted, and threads inherit it.

#![deny(unsafe_code)]

pub mod calls;
#[allow(unsafe_code, reason = "a descriptor that another program has opened has a number only")]
mod descriptors;
mod files;
mod filter;
mod needs;
#[allow(unsafe_code, reason = "a signal's handler is installed, and reads what the kernel says of the call")]
mod refused;

pub use calls::Use;
pub use descriptors::Inherited;
pub use needs::Needs;

use calls::{Call, KEEPER};
use std::os::fd::BorrowedFd;
use thiserror::Error;

/// The reason why a process could not be confined.
#[derive(Debug, Error)]
pub enum ContainError {
    /// The process has several threads. Landlock applies only to the calling thread and the threads that it starts later.
    #[error("the process already has {0} threads")]
    Threads(usize),
    /// The kernel rejected the Landlock rules.
    #[error("Landlock")]
    Files(#[from] landlock::RulesetError),
    /// The kernel rejected the seccomp filter.
    #[error("seccomp")]
    Calls(#[from] seccompiler::Error),
    /// The seccomp filter could not be built.
    #[error("seccomp")]
    Filter(#[from] seccompiler::BackendError),
    /// The handler that names a refused call could not be installed.
    #[error("can't handle SIGSYS: {0}")]
    Signal(std::io::Error),
}

/// Confines this process, which must have one thread, to what `needs` lists. Landlock applies as far as the host's kernel supports it.
///
/// # Errors
/// Returns an error if the process has several threads, or if the kernel rejects a rule or a filter.
pub fn confine(needs: &Needs) -> Result<(), ContainError> {
    has_one_thread()?;
    files::confine(needs)?;
    filter(filter::needed(needs))
}

/// Confines this process, which must have one thread, to what the process needs that writes or removes one file in an open directory: it creates new
/// files there, renames and removes them. It can't read a file, and opens none that exists.
///
/// # Errors
/// Returns an error if the process has several threads, or if the kernel rejects a rule or a filter.
pub fn confine_keeper(directory: BorrowedFd) -> Result<(), ContainError> {
    has_one_thread()?;
    files::confine_to(directory)?;
    filter(KEEPER.iter())
}

fn has_one_thread() -> Result<(), ContainError> {
    // The number of threads is unknown if /proc is not mounted.
    match std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count) {
        1 => Ok(()),
        threads => Err(ContainError::Threads(threads)),
    }
}

fn filter(calls: impl Iterator<Item = &'static Call>) -> Result<(), ContainError> {
    refused::announce().map_err(ContainError::Signal)?;
    for program in filter::programs(calls)? {
        seccompiler::apply_filter(&program)?;
    }
    Ok(())
}
