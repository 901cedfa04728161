//! The program as a process of this machine.
//!
//! The module has `unsafe`: a process is bound to a processor, and its times are read, by calls of the C library.

use crate::counters::Counters;
use crate::kernel::Kernel;
use crate::layout;
use crate::program::{self, CHAIN_CYCLES, Program, Stamps, WINDOWS, waiting};
use crate::result::SHARED;
use crate::workloads::ENVIRONMENT;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::MemfdFlags;
use serde::{Deserialize, Serialize};
use silicon::options::ALONE;
use silicon::stats;
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Time after which a process that does not answer is given up.
const LONGEST: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// Measurements that a figure is made of, at least.
const LEAST: usize = 6;
/// Time for which a kernel is measured if other work shares the core.
const PATIENCE: Duration = Duration::from_millis(1000);
/// Time within which the figure of an idle core is found before the first kernel is measured, and measurements that show it.
const QUIET: Duration = Duration::from_millis(300);
const CALIBRATION: u64 = 32;
/// Time after which the core's other thread is taken to be awake all the time.
const AWAKE: Duration = Duration::from_secs(4);

/// A figure of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Cycles of the core for a step.
    pub cycles: f64,
    /// Least and greatest figure of three parts of the measurements.
    pub interval: [f64; 2],
    /// Cycles of the core in one step of the time stamp counter.
    pub per_stamp: f64,
    /// Other work shared the core all the time.
    pub shared: bool,
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
    /// The program's file, which the paths that execute it find among this process's descriptors.
    _file: File,
    /// The processor that it is bound to.
    processor: usize,
    /// The time of overlapping chains while the core's other thread sleeps, in terms of the time of the chain of additions.
    window: f64,
    /// The time of the same chains if each waits for the one before it, in the same terms.
    waiting: f64,
    /// Address of the function whose chains wait for each other.
    waits: u64,
    /// Entries of the whole reorder buffer, if they are known.
    whole: Option<f64>,
    /// The time of overlapping chains was looked for long enough.
    is_calibrated: bool,
    /// Kernels during whose measurements other work shared the core.
    shared: usize,
    /// Measurements, and those during which nothing else executed on the core.
    moments: [usize; 2],
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process ends by itself at the end of its input; a process that hangs does not.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    /// Starts the program on one processor. The program asks for real-time priority.
    pub fn start(program: &Program) -> Result<Self, NativeError> {
        let start = || {
            let descriptor = rustix::fs::memfd_create("validate", MemfdFlags::CLOEXEC)?;
            let mut file = File::from(descriptor);
            file.write_all(&program.elf())?;
            let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
            // Keys on the terminal signal this program, which then ends its children itself.
            let mut command = Command::new(path);
            command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
            let child = command.spawn()?;
            Ok((child, file))
        };
        let (mut child, file) = start().map_err(NativeError::Start)?;
        let (to, from) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let processor = bind(child.id());
        Ok(Self {
            child,
            to,
            from,
            _file: file,
            processor,
            window: f64::INFINITY,
            waiting: f64::INFINITY,
            waits: program.waiting,
            whole: None,
            is_calibrated: false,
            shared: 0,
            moments: [0; 2],
        })
    }

    /// Says how many entries the core's reorder buffer has. Before the first kernel is measured, a moment is awaited at which a program has them.
    pub fn with_entries(mut self, whole: Option<f64>) -> Self {
        self.whole = whole;
        self
    }

    /// Sends a request and returns the answer. Data stay in the process until others are sent.
    fn request(&mut self, kernel: &Kernel, entry: u64, repeats: u64, data: bool) -> Result<Vec<Stamps>, Error> {
        self.to.write_all(&program::request(kernel, entry, repeats, data))?;
        self.to.flush()?;
        let mut answer = vec![0; (layout::ANSWER * repeats) as usize];
        let mut rest = answer.as_mut_slice();
        while !rest.is_empty() {
            self.wait()?;
            match self.from.read(rest)? {
                0 => return Err(Error::from(ErrorKind::UnexpectedEof)),
                len => rest = &mut rest[len..],
            }
        }
        Ok(program::answers(&answer))
    }

    /// Waits for a part of an answer.
    fn wait(&self) -> Result<(), Error> {
        let mut from = [PollFd::new(&self.from, PollFlags::IN)];
        match rustix::event::poll(&mut from, Some(&LONGEST)) {
            Ok(0) => Err(Error::from(ErrorKind::TimedOut)),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Measures a kernel: as often as fits into `budget` time stamps, at least 9 times. If other work shared the core for most of
    /// that time, the kernel is measured again until enough measurements were taken in quiet moments.
    pub fn measure(&mut self, kernel: &Kernel, entry: u64, budget: u64) -> Result<Measured, NativeError> {
        let ended = |error| NativeError::Ended(kernel.name.clone(), error);
        let first = self.request(kernel, entry, 1, true).map_err(ended)?[0].kernel.max(1);
        let repeats = (budget / first).clamp(9, layout::MOST_REPEATS.min(150));
        let begin = Instant::now();
        while !self.is_calibrated {
            let samples = self.request(&waiting(), self.waits, CALIBRATION, false).map_err(ended)?;
            self.undisturbed(&samples);
            self.waiting =
                usual(&samples, |stamps| stamps.kernel).map_or(self.waiting, |least| self.waiting.min(least));
            let seen = self.whole.is_none_or(|whole| self.entries().is_some_and(|entries| entries >= whole * SHARED));
            self.is_calibrated = begin.elapsed() >= if seen { QUIET } else { AWAKE };
        }
        let begin = Instant::now();
        let (mut samples, mut alone) = (Vec::new(), Vec::new());
        loop {
            let more = self.request(kernel, entry, repeats, false).map_err(ended)?;
            samples.extend_from_slice(&more);
            alone.extend(self.undisturbed(&more));
            if alone.len() >= LEAST || begin.elapsed() >= PATIENCE {
                break;
            }
        }
        let shared = alone.len() < LEAST;
        if shared {
            self.shared += 1;
            alone = samples;
        }
        alone.truncate(alone.len() / 3 * 3);
        let least =
            stats::undisturbed(alone.iter().map(|stamps| stamps.chain), silicon::options::grain()).unwrap_or(1.0);
        let per_stamp = CHAIN_CYCLES / least;
        // The core may change its frequency between two measurements. A chain that was interrupted does not show it.
        let figure = |samples: &[Stamps]| {
            let whole = samples.iter().filter(|stamps| stamps.chain as f64 <= least * stats::INTERRUPTED);
            let ratios: Vec<f64> = whole.map(|stamps| stamps.kernel as f64 / stamps.chain.max(1) as f64).collect();
            let ratio = stats::quantile(&ratios, stats::QUIETER)?;
            Some(ratio * CHAIN_CYCLES / (kernel.rounds as f64 * kernel.steps))
        };
        let cycles = figure(&alone).expect("the least chain was not interrupted");
        let parts: Vec<f64> = alone.chunks(alone.len() / 3).filter_map(figure).collect();
        let least = parts.iter().copied().fold(cycles, f64::min);
        let greatest = parts.iter().copied().fold(cycles, f64::max);
        Ok(Measured { cycles, interval: [least, greatest], per_stamp, shared })
    }

    /// Returns the measurements during which nothing else executed on the core. The fewest cycles that overlapping chains have taken so far tell
    /// which.
    fn undisturbed(&mut self, samples: &[Stamps]) -> Vec<Stamps> {
        if samples.len() >= CALIBRATION as usize {
            self.window = usual(samples, |stamps| stamps.window).map_or(self.window, |least| self.window.min(least));
        }
        let alone = undisturbed(samples, self.window);
        self.moments[0] += samples.len().saturating_sub(1);
        self.moments[1] += alone.len();
        alone
    }

    /// Returns the processor that the process is bound to.
    pub fn processor(&self) -> usize {
        self.processor
    }

    /// Returns the cycles that an overlapping chain takes while the core's other thread sleeps, if anything was measured.
    pub fn window(&self) -> Option<f64> {
        Some(self.window * CHAIN_CYCLES / WINDOWS).filter(|cycles| cycles.is_normal())
    }

    /// Returns the number of kernels during whose measurements other work shared the core.
    pub fn shared(&self) -> usize {
        self.shared
    }

    /// Returns the part of all measurements beside which other work executed on the core.
    pub fn busy(&self) -> f64 {
        let [all, alone] = self.moments.map(|count| count as f64);
        1.0 - alone / all.max(1.0)
    }

    /// Returns the entries of the reorder buffer that a program has, at its best, if anything was measured. If they are many, the time of
    /// the square roots themselves makes them seem fewer.
    pub fn entries(&self) -> Option<f64> {
        Some(silicon::window::ENTRIES * self.waiting / self.window).filter(|entries| entries.is_normal())
    }

    /// Returns true if the process, which has answered, has real-time priority.
    #[allow(unsafe_code, reason = "the standard library has no call for a process's priority")]
    pub fn is_real_time(&self) -> bool {
        // SAFETY: the process is a child that nobody has waited for.
        unsafe { libc::sched_getscheduler(self.child.id() as i32) == libc::SCHED_FIFO }
    }

    /// Returns the bytes of the process that are in pages of 2 MiB.
    pub fn huge_bytes(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id())).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("AnonHugePages:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kilobytes.unwrap_or(0) << 10
    }
}

/// Returns what something takes, of the time of the chain of additions, while little else executes on the core.
fn usual(samples: &[Stamps], of: fn(&Stamps) -> u64) -> Option<f64> {
    let all = |of: fn(&Stamps) -> u64| samples.iter().map(|stamps| of(stamps) as f64).collect::<Vec<_>>();
    stats::usual_ratio(&all(of), &all(|stamps| stamps.chain))
}

/// Returns the measurements during which nothing else executed on the core: overlapping chains took no longer before and
/// after the kernel than they do on an idle core, whose figure is `least`.
fn undisturbed(samples: &[Stamps], least: f64) -> Vec<Stamps> {
    let chain = samples.iter().map(|stamps| stamps.chain).min().unwrap_or(1);
    let alone = |stamps: &Stamps| stamps.window as f64 <= chain as f64 * least * ALONE;
    samples.windows(2).filter(|pair| pair.iter().all(alone)).map(|pair| pair[1]).collect()
}

/// What a command took.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Seconds outside the kernel.
    pub user: f64,
    /// Seconds inside the kernel.
    pub system: f64,
    /// Cycles outside the kernel, if the processor's counters may be read.
    pub cycles: Option<f64>,
    /// Instructions outside the kernel, likewise.
    pub instructions: Option<f64>,
}

/// Runs a command without input, whose output nobody reads. A command that fails has no times.
#[allow(unsafe_code, reason = "the standard library waits without asking for times")]
pub fn times(command: &[String]) -> Result<Times, Error> {
    let (program, arguments) = command.split_first().ok_or_else(|| Error::other("there is no command"))?;
    let counters = Counters::of_next_program();
    let mut start = Command::new(program);
    start.args(arguments).env_clear().envs(ENVIRONMENT).env("PATH", "/usr/bin:/bin");
    // GNU grep ends at the first match if its output is /dev/null.
    let output = File::from(rustix::fs::memfd_create("output", MemfdFlags::CLOEXEC)?);
    start.process_group(0);
    let child = start.stdin(Stdio::null()).stdout(output).stderr(Stdio::null()).spawn()?;
    bind(child.id());
    let mut status = 0;
    // SAFETY: the type consists of integers only.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the process is a child that nobody has waited for, and both references are valid.
    while unsafe { libc::wait4(child.id() as i32, &mut status, 0, &mut usage) } < 0 {
        let error = Error::last_os_error();
        if error.kind() != ErrorKind::Interrupted {
            return Err(error);
        }
    }
    if !libc::WIFEXITED(status) || libc::WEXITSTATUS(status) != 0 {
        return Err(Error::other(format!("{program} fails on this machine")));
    }
    let counts = counters.and_then(Counters::read);
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Ok(Times {
        user: seconds(usage.ru_utime),
        system: seconds(usage.ru_stime),
        cycles: counts.map(|counts| counts[0] as f64),
        instructions: counts.map(|counts| counts[1] as f64),
    })
}

/// Binds a process to the processor on which this one runs, and returns its number.
#[allow(unsafe_code, reason = "the standard library does not bind processes")]
fn bind(process: u32) -> usize {
    // SAFETY: the arguments are valid, and the process is a child that nobody has waited for.
    unsafe {
        let processor = libc::sched_getcpu().max(0) as usize;
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        libc::sched_setaffinity(process as i32, size_of::<libc::cpu_set_t>(), &set);
        processor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_beside_other_work_does_not_count() {
        let stamps = |kernel, window| Stamps { kernel, chain: 1000, window };
        let samples = [stamps(1, 250), stamps(2, 252), stamps(3, 400), stamps(4, 250), stamps(5, 260)];
        let kernels: Vec<u64> = undisturbed(&samples, 0.25).iter().map(|stamps| stamps.kernel).collect();
        assert_eq!(kernels, [2, 5]);
        // A chain that was interrupted says nothing about the core.
        let interrupted = Stamps { chain: 4000, ..stamps(6, 250) };
        let all = [samples.as_slice(), &[interrupted]].concat();
        assert_eq!(usual(&all, |stamps| stamps.window), Some(0.25));
    }

    #[test]
    fn a_command_has_times_unless_it_fails() {
        let run = |program: &str| times(&[program.to_owned()]);
        assert!(run("true").unwrap().user >= 0.0);
        assert!(run("false").unwrap_err().to_string().contains("false fails"));
        assert!(run("/nowhere").is_err());
    }
}
