//! The program as a process of this machine.
//!
//! This is the module with `unsafe`: the priority of the process is set by a call of the C library.

use crate::kernel::Kernel;
use crate::layout::{self, REQUEST};
use crate::program::{CHAIN_CYCLES, Program};
use rustix::fs::MemfdFlags;
use serde::{Deserialize, Serialize};
use silicon::stats;
use std::fs::File;
use std::io::{Error, Read, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A figure of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Cycles of the core for a step.
    pub cycles: f64,
    /// Least and greatest figure of three parts of the measurements.
    pub interval: [f64; 2],
    /// Cycles of the core in one step of the time stamp counter.
    pub per_stamp: f64,
}

/// Reason why there is no figure.
#[derive(Debug, thiserror::Error)]
pub enum NativeError {
    /// The process cannot be started.
    #[error("the program for the measurements cannot be started: {0}")]
    Start(Error),
    /// The process ended.
    #[error("the program for the measurements ended while it measured {0}: {1}")]
    Ended(String, Error),
}

/// The process.
pub struct Process {
    child: Child,
    to: ChildStdin,
    from: ChildStdout,
    /// True if the process has real-time priority.
    pub fifo: bool,
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process ends by itself at the end of its input; a process that hangs does not.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    /// Starts the program on one processor, with real-time priority if that is allowed.
    pub fn start(program: &Program) -> Result<Self, NativeError> {
        let start = || {
            let descriptor = rustix::fs::memfd_create("validate", MemfdFlags::CLOEXEC)?;
            let mut file = File::from(descriptor);
            file.write_all(&program.elf())?;
            let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
            Command::new(path).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
        };
        let mut child = start().map_err(NativeError::Start)?;
        let (to, from) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let fifo = prefer(child.id());
        Ok(Self { child, to, from, fifo })
    }

    /// Sends the kernel's data, which stay in the process until others are sent.
    fn request(&mut self, kernel: &Kernel, entry: u64, repeats: u64, data: bool) -> Result<Vec<[u64; 2]>, Error> {
        let pieces = if data { kernel.data.len() as u64 } else { 0 };
        let request = [entry, kernel.rounds, kernel.warm, repeats, pieces];
        let bytes: Vec<u8> = request.iter().flat_map(|quad| quad.to_le_bytes()).collect();
        debug_assert_eq!(bytes.len(), REQUEST);
        self.to.write_all(&bytes)?;
        for piece in kernel.data.iter().take(pieces as usize) {
            let (address, bytes) = piece.contents();
            self.to.write_all(&address.to_le_bytes())?;
            self.to.write_all(&(bytes.len() as u64).to_le_bytes())?;
            self.to.write_all(&bytes)?;
        }
        self.to.flush()?;
        let mut answer = vec![0; 16 * repeats as usize];
        self.from.read_exact(&mut answer)?;
        let quad = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        Ok(answer.chunks(16).map(|pair| [quad(&pair[..8]), quad(&pair[8..])]).collect())
    }

    /// Measures a kernel: as often as fits into `budget` time stamps, at least 9 times.
    pub fn measure(&mut self, kernel: &Kernel, entry: u64, budget: u64) -> Result<Measured, NativeError> {
        let ended = |error| NativeError::Ended(kernel.name.clone(), error);
        let first = self.request(kernel, entry, 1, true).map_err(ended)?[0][0].max(1);
        let repeats = (budget / first).clamp(9, layout::MOST_REPEATS.min(150)) / 3 * 3;
        let samples = self.request(kernel, entry, repeats, false).map_err(ended)?;
        let grain = silicon::measure::grain();
        let figure = |samples: &[[u64; 2]]| {
            let least = |n: usize| stats::undisturbed(samples.iter().map(|sample| sample[n]), grain).unwrap_or(1.0);
            let per_stamp = CHAIN_CYCLES / least(1);
            (least(0) * per_stamp / (kernel.rounds as f64 * kernel.steps), per_stamp)
        };
        let (cycles, per_stamp) = figure(&samples);
        let parts: Vec<f64> = samples.chunks(samples.len().div_ceil(3)).map(|part| figure(part).0).collect();
        let least = parts.iter().copied().fold(cycles, f64::min);
        let greatest = parts.iter().copied().fold(cycles, f64::max);
        Ok(Measured { cycles, interval: [least, greatest], per_stamp })
    }

    /// Returns the bytes of the process that are in pages of 2 MiB.
    pub fn huge_bytes(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id())).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("AnonHugePages:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kilobytes.unwrap_or(0) << 10
    }
}

/// Binds a process to the processor on which this one runs, and asks for real-time priority. Returns true if the
/// kernel grants it.
#[allow(unsafe_code, reason = "the standard library has no call for a process's priority")]
fn prefer(process: u32) -> bool {
    // SAFETY: the arguments are valid, and the process is a child that nobody has waited for.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu().max(0) as usize, &mut set);
        libc::sched_setaffinity(process as i32, size_of::<libc::cpu_set_t>(), &set);
        libc::sched_setscheduler(process as i32, libc::SCHED_FIFO, &libc::sched_param { sched_priority: 1 }) == 0
    }
}
