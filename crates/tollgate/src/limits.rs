//! Limits on the resources of this process, which a shell sets by `ulimit`. At its start the program raises the limits that it may raise and
//! refuses limits that are too low for it. A later error that a limit may have caused names the limit.

use crate::output::say;
use anyhow::{Error, Result, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A limit with its names.
struct Limit {
    resource: Resource,
    /// The limited resource, for messages.
    what: &'static str,
    /// Option of `ulimit`.
    option: char,
    /// Bytes in a unit of `ulimit`, or 1 for numbers.
    unit: u64,
}

/// The smallest stack that the program needs, in bytes.
const STACK: u64 = 1 << 20;
/// The preferred stack in bytes: the default of Linux distributions.
const COMMON_STACK: u64 = 8 << 20;
/// The preferred number of open files. Each file that a command of `exec` has open in the guest is also open in this process.
const COMMON_FILES: u64 = 1 << 16;
/// The smallest number of open files with which a guest gets the files of a command.
pub const FILES: u64 = 64;
/// The smallest address space and data segment, in bytes, with which the program starts. With less, an allocation would fail and end the
/// program at once.
const LEAST: u64 = 32 << 20;
/// Address space in bytes that a machine needs beside guest memory: translated code and stubs, each mapped twice, images, ledger, threads.
const SPACE_OF_MACHINE: u64 = 1 << 30;
/// Data in bytes that a machine needs beside guest memory.
const DATA_OF_MACHINE: u64 = 256 << 20;
/// Address space and data in bytes of a processor whose executions are counted: counts of 512 address spaces by ring with 1.5 MiB each, and
/// the processor's own tables.
const COUNTS_OF_PROCESSOR: u64 = 800 << 20;

const FILE_SIZE: Limit = Limit { resource: Resource::Fsize, what: "the size of files", option: 'f', unit: 1024 };
const STACK_SIZE: Limit = Limit { resource: Resource::Stack, what: "the stack", option: 's', unit: 1024 };
const OPEN_FILES: Limit = Limit { resource: Resource::Nofile, what: "open files", option: 'n', unit: 1 };
const SPACE: Limit = Limit { resource: Resource::As, what: "the address space", option: 'v', unit: 1024 };
const DATA: Limit = Limit { resource: Resource::Data, what: "the data segment", option: 'd', unit: 1024 };
const PROCESSES: Limit = Limit { resource: Resource::Nproc, what: "the user's processes", option: 'u', unit: 1 };

impl Limit {
    /// Returns the present limit, unless there is none.
    fn current(&self) -> Option<u64> {
        getrlimit(self.resource).current
    }

    /// Raises the limit towards `wanted` as far as the process may.
    fn raise(&self, wanted: u64) {
        let Rlimit { current, maximum } = getrlimit(self.resource);
        let possible = maximum.map_or(wanted, |maximum| maximum.min(wanted));
        if current.is_some_and(|current| current < possible) {
            // If the limit cannot be raised, `require` refuses it, or the error that it causes later names it.
            let _ = setrlimit(self.resource, Rlimit { current: Some(possible), maximum });
        }
    }

    /// Describes the limit and the command that changes it.
    fn text(&self, current: u64) -> String {
        let unit = if self.unit == 1 { "" } else { " KiB" };
        format!("{} (`ulimit -{}`) is {}{unit}", self.what, self.option, current / self.unit)
    }

    /// Refuses a limit below `least`.
    fn require(&self, least: u64) -> Result<()> {
        match self.current() {
            Some(current) if current < least => {
                let least = format!("{}{}", least / self.unit, if self.unit == 1 { "" } else { " KiB" });
                bail!("the limit on {}, and at least {least} are needed", self.text(current))
            }
            _ => Ok(()),
        }
    }
}

/// Prepares the process: raises the limits on the stack and on open files, and refuses limits that are too low. Without the handler of SIGXFSZ, a
/// write beyond the limit on file sizes would end the program without a message; with the handler, the write fails with an error.
pub fn prepare() -> Result<()> {
    STACK_SIZE.raise(COMMON_STACK);
    STACK_SIZE.require(STACK)?;
    SPACE.require(LEAST)?;
    DATA.require(LEAST)?;
    OPEN_FILES.raise(COMMON_FILES);
    // A handler, as opposed to an ignored signal, does not reach the programs that this one starts.
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    Ok(())
}

/// The size of a machine that is about to be created.
#[derive(Clone)]
pub struct Planned {
    /// Guest memory in bytes.
    pub memory: u64,
    /// The number of processors whose executions are counted.
    pub counted: usize,
}

/// Refuses limits that the machines of a run would exceed. The program would otherwise end in the middle of the run, without a ledger.
pub fn allow_machines(machines: &[Planned]) -> Result<()> {
    let needed = |own: u64| {
        let of = |machine: &Planned| {
            let counts = COUNTS_OF_PROCESSOR.saturating_mul(machine.counted as u64);
            machine.memory.saturating_add(counts).saturating_add(own)
        };
        machines.iter().map(of).fold(0, u64::saturating_add)
    };
    SPACE.require(needed(SPACE_OF_MACHINE))?;
    DATA.require(needed(DATA_OF_MACHINE))
}

/// Refuses a limit on open files with which no guest can be given files.
pub fn allow_files() -> Result<()> {
    OPEN_FILES.require(FILES)
}

/// Returns the limits that may be the cause of an error of the system.
fn causes(code: i32) -> &'static [Limit] {
    match rustix::io::Errno::from_raw_os_error(code) {
        rustix::io::Errno::FBIG => &[FILE_SIZE],
        rustix::io::Errno::MFILE => &[OPEN_FILES],
        rustix::io::Errno::NOMEM => &[SPACE, DATA],
        rustix::io::Errno::AGAIN => &[PROCESSES],
        _ => &[],
    }
}

/// Prints the limits of this process that may be the cause of an error.
pub fn explain(error: &Error) {
    let io = error.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>()).find_map(|io| io.raw_os_error());
    for text in io.into_iter().flat_map(hints) {
        say(&text);
    }
}

/// Returns a line for each limit that may be the cause of an error of the system.
pub fn hints(code: i32) -> Vec<String> {
    let limited = causes(code).iter().filter_map(|limit| Some((limit, limit.current()?)));
    let text = |(limit, current): (&Limit, u64)| {
        format!("tollgate: the limit on {}: raise it, or use `ulimit -{} unlimited`", limit.text(current), limit.option)
    };
    limited.map(text).collect()
}
