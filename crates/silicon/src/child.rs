//! Execution of a measurement's code in a forked process.
//!
//! The process maps the code, the slots and the data of [`crate::layout`], executes the functions many times, sends the
//! samples through a pipe and ends. What a block does to memory ends with the process. A page that the block accesses
//! and that is not mapped is mapped when the fault arrives; any other fault ends the process with a status that names
//! it.
//!
//! Between the fork and its end the process calls functions of the kernel only and allocates nothing, because another
//! thread of the parent may have held a lock at the time of the fork.

use crate::failure::Failure;
use crate::layout::{self, CODE, CODE_LEN, PAGE, PATTERN, SCRATCH, SLOTS, Slot};
use crate::options::{ALONE, Options, SAMPLES};
use crate::routine::{CHAIN, Code};
use crate::window;
use std::io::{Error as IoError, PipeReader, Read};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Pages that a block may touch at most, whatever the options say.
pub const PAGES: usize = 64;

/// Samples whose overlapping chains the caller is told.
const TOLD: usize = 32;

/// One round of executions: time stamps that passed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// The block, in the shorter and in the longer loop.
    pub block: [u64; 2],
    /// Dependent additions, likewise.
    pub chain: [u64; 2],
    /// Chains that overlap.
    pub window: u64,
}

/// What a process measured.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Samples {
    /// Samples that were taken.
    pub count: u64,
    /// 1 if nothing else executed on the core during any of them, as far as overlapping chains show; 0 if the figure of an idle
    /// core is not known, or if no quiet moment came.
    pub alone: u64,
    /// The first samples that were taken, whatever else executed: overlapping chains and the longer chain of additions.
    pub windows: [[u64; 2]; TOLD],
    /// Rounds of the loops of the block.
    pub rounds: u64,
    /// Rounds of the loops of additions.
    pub chain_rounds: u64,
    /// Pages that the block touched.
    pub pages: u64,
    /// Their addresses, in the order in which they were touched.
    pub addresses: [u64; PAGES],
    /// The samples.
    pub samples: [Sample; SAMPLES],
}

impl Samples {
    /// No samples.
    pub const EMPTY: Self = Self {
        count: 0,
        alone: 0,
        windows: [[0; 2]; TOLD],
        rounds: 0,
        chain_rounds: 0,
        pages: 0,
        addresses: [0; PAGES],
        samples: [Sample { block: [0; 2], chain: [0; 2], window: 0 }; SAMPLES],
    };
}

/// Status of a process that could not map its memory.
const STATUS_MAP: i32 = 90;
/// Status of a process whose block touched more pages than allowed.
const STATUS_PAGES: i32 = 91;
/// Status of a process whose block accessed memory that cannot be mapped.
const STATUS_ADDRESS: i32 = 92;
/// Added to the number of a signal that ended the block.
const STATUS_SIGNAL: i32 = 100;

/// Addresses of the pages of data, in the order of their mapping, and their number.
static MAPPED: [AtomicU64; PAGES] = [const { AtomicU64::new(0) }; PAGES];
static MAPPED_COUNT: AtomicUsize = AtomicUsize::new(0);
static MOST_PAGES: AtomicUsize = AtomicUsize::new(0);

/// Executes the code in a process of its own, and returns its samples.
pub fn run(code: &Code, options: &Options) -> Result<Box<Samples>, Failure> {
    assert!(code.bytes.len() as u64 <= CODE_LEN);
    let (read, write) = std::io::pipe().map_err(Failure::Process)?;
    // SAFETY: the child calls nothing that could wait for another thread of this process, and ends by `_exit`.
    let child = unsafe { libc::fork() };
    match child {
        -1 => Err(Failure::Process(IoError::last_os_error())),
        0 => work(code, options, write.as_raw_fd()),
        child => {
            drop(write);
            let samples = receive(read, options.limit);
            if samples.is_none() {
                // SAFETY: the process is a child that was not waited for, so that its number is its own.
                unsafe { libc::kill(child, libc::SIGKILL) };
            }
            let mut status = 0;
            // SAFETY: as above.
            while unsafe { libc::waitpid(child, &mut status, 0) } < 0 {
                let error = IoError::last_os_error();
                if error.kind() != std::io::ErrorKind::Interrupted {
                    return Err(Failure::Process(error));
                }
            }
            match samples {
                Some(bytes) => outcome(&bytes, status),
                None => Err(Failure::Time),
            }
        }
    }
}

/// Reads until the process closes the pipe. Returns `None` if that takes longer than the limit.
fn receive(mut from: PipeReader, limit: Duration) -> Option<Vec<u8>> {
    let deadline = std::time::Instant::now() + limit;
    let mut bytes = Vec::new();
    let mut part = [0; 1 << 14];
    loop {
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        let mut poll = libc::pollfd { fd: from.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        match unsafe { libc::poll(&mut poll, 1, left.as_millis() as i32) } {
            0 => return None,
            n if n < 0 => continue,
            _ => match from.read(&mut part) {
                Ok(0) => return Some(bytes),
                Ok(n) => bytes.extend_from_slice(&part[..n]),
                Err(_) => return Some(bytes),
            },
        }
    }
}

fn outcome(bytes: &[u8], status: i32) -> Result<Box<Samples>, Failure> {
    if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0 && bytes.len() == size_of::<Samples>() {
        let mut samples = Box::new(Samples::EMPTY);
        // SAFETY: the type consists of integers only, and the lengths are equal.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut *samples).cast::<u8>(), bytes.len());
        }
        return Ok(samples);
    }
    let signal = |signal| match signal {
        libc::SIGSEGV | libc::SIGBUS => Failure::Protection,
        libc::SIGILL => Failure::Illegal,
        libc::SIGFPE => Failure::Arithmetic,
        libc::SIGTRAP => Failure::Trap,
        libc::SIGKILL | libc::SIGXCPU => Failure::Time,
        other => Failure::Signal(other),
    };
    Err(if libc::WIFSIGNALED(status) {
        signal(libc::WTERMSIG(status))
    } else {
        match libc::WEXITSTATUS(status) {
            STATUS_MAP => Failure::Memory,
            STATUS_PAGES => Failure::Pages,
            STATUS_ADDRESS => Failure::Address,
            other => signal(other - STATUS_SIGNAL),
        }
    })
}

/// The life of the process.
fn work(code: &Code, options: &Options, to: i32) -> ! {
    // SAFETY: all of the process's memory is its own, its only thread is this one, and the code of a measurement
    // preserves what the calling convention requires. A block may overwrite anything; the process then ends, or its
    // samples are not those of the expected size.
    unsafe {
        restrict(options);
        MOST_PAGES.store(options.pages.min(PAGES), Ordering::Relaxed);
        let stack = map(0, 64 << 10, 0);
        let samples = map(0, size_of::<Samples>() as u64, 0);
        let written = map(CODE, CODE_LEN, libc::PROT_EXEC);
        let slots = map(SLOTS, PAGE, 0);
        if stack == 0 || samples == 0 || written != CODE || slots != SLOTS || !add_page(SCRATCH) {
            libc::_exit(STATUS_MAP);
        }
        std::ptr::copy_nonoverlapping(code.bytes.as_ptr(), CODE as *mut u8, code.bytes.len());
        (Slot::Vector.address() as *mut [u64; 2]).write([layout::VECTOR; 2]);
        ((Slot::Mxcsr.address() + 4) as *mut u32).write(layout::MXCSR);
        handle_signals(stack as *mut libc::c_void);
        let samples = &mut *(samples as *mut Samples);
        sample(code, options, samples);
        samples.pages = MAPPED_COUNT.load(Ordering::Relaxed) as u64;
        for (address, page) in samples.addresses.iter_mut().zip(&MAPPED) {
            *address = page.load(Ordering::Relaxed);
        }
        let mut from = std::slice::from_raw_parts((&raw const *samples).cast::<u8>(), size_of::<Samples>());
        while !from.is_empty() {
            match libc::write(to, from.as_ptr().cast(), from.len()) {
                n if n > 0 => from = &from[n as usize..],
                _ => libc::_exit(STATUS_MAP),
            }
        }
        libc::_exit(0)
    }
}

/// Binds the process to one processor, raises its priority if that is allowed, and limits its time.
///
/// # Safety
///
/// Only the process of a measurement calls this.
unsafe fn restrict(options: &Options) {
    // SAFETY: the arguments are valid; what is refused is left as it was.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(options.processor.unwrap_or(libc::sched_getcpu().max(0) as usize), &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
        let seconds = options.limit.as_secs().max(1);
        libc::setrlimit(libc::RLIMIT_CPU, &libc::rlimit { rlim_cur: seconds, rlim_max: seconds });
        libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 });
        let micros = options.limit.as_micros() as u64;
        libc::setrlimit(libc::RLIMIT_RTTIME, &libc::rlimit { rlim_cur: micros, rlim_max: micros });
        libc::sched_setscheduler(0, libc::SCHED_FIFO, &libc::sched_param { sched_priority: 1 });
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
}

/// Maps memory that can be read and written, at an address unless it is 0. Returns 0 if that is not possible.
///
/// # Safety
///
/// Only the process of a measurement calls this.
unsafe fn map(address: u64, len: u64, more: i32) -> u64 {
    let fixed = if address == 0 { 0 } else { libc::MAP_FIXED_NOREPLACE };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE | fixed;
    // SAFETY: nothing that exists is replaced.
    let got =
        unsafe { libc::mmap(address as *mut _, len as usize, libc::PROT_READ | libc::PROT_WRITE | more, flags, -1, 0) };
    if got == libc::MAP_FAILED { 0 } else { got as u64 }
}

/// Adds a page of data.
///
/// # Safety
///
/// As for [`map`].
unsafe fn add_page(address: u64) -> bool {
    let count = MAPPED_COUNT.load(Ordering::Relaxed);
    // SAFETY: the page was just mapped.
    unsafe {
        if count == PAGES || map(address, PAGE, 0) != address {
            return false;
        }
        fill(address);
    }
    MAPPED[count].store(address, Ordering::Relaxed);
    MAPPED_COUNT.store(count + 1, Ordering::Relaxed);
    true
}

/// Gives a page its first contents.
///
/// # Safety
///
/// The page is one of the data.
unsafe fn fill(page: u64) {
    for at in (page..page + PAGE).step_by(8) {
        // SAFETY: the page is mapped and no reference points to it.
        unsafe { (at as *mut u64).write_volatile(PATTERN) };
    }
}

/// Has faults arrive at [`on_signal`].
///
/// # Safety
///
/// `stack` is memory of 64 KiB that nobody else uses.
unsafe fn handle_signals(stack: *mut libc::c_void) {
    // SAFETY: the handler has the signature that SA_SIGINFO requires.
    unsafe {
        let alternate = libc::stack_t { ss_sp: stack, ss_flags: 0, ss_size: 64 << 10 };
        libc::sigaltstack(&alternate, std::ptr::null_mut());
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP] {
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

/// Maps the page of a fault, after which the instruction is executed again, or ends the process.
extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid description of the signal, and this process has one thread.
    unsafe {
        // SEGV_MAPERR: nothing is mapped at the address.
        if signal != libc::SIGSEGV || (*info).si_code != 1 {
            libc::_exit(STATUS_SIGNAL + signal);
        }
        if MAPPED_COUNT.load(Ordering::Relaxed) >= MOST_PAGES.load(Ordering::Relaxed) {
            libc::_exit(STATUS_PAGES);
        }
        if !add_page((*info).si_addr() as u64 & !(PAGE - 1)) {
            libc::_exit(STATUS_ADDRESS);
        }
    }
}

/// Executes the function at `entry` and returns the time stamps that passed.
///
/// # Safety
///
/// The code of a measurement is mapped.
unsafe fn execute(entry: u64, rounds: u64) -> u64 {
    for page in &MAPPED[..MAPPED_COUNT.load(Ordering::Relaxed)] {
        // SAFETY: the page is one of the data.
        unsafe { fill(page.load(Ordering::Relaxed)) };
    }
    // SAFETY: the slots are mapped, and the function follows the calling convention.
    unsafe {
        (Slot::Rounds.address() as *mut u64).write_volatile(rounds);
        let function: extern "sysv64" fn() = std::mem::transmute(entry as *const ());
        function();
        let read = |slot: Slot| (slot.address() as *const u64).read_volatile();
        read(Slot::End).wrapping_sub(read(Slot::Start))
    }
}

/// Time stamps that the difference of two loops takes at least, if the block may be repeated often enough.
const ENOUGH: u64 = 3000;

/// Takes samples until enough of them agree.
///
/// # Safety
///
/// As for [`execute`].
unsafe fn sample(code: &Code, options: &Options, samples: &mut Samples) {
    // SAFETY: see above.
    let run = |entry, rounds| unsafe { execute(entry, rounds) };
    // The first executions map the pages.
    run(code.once, 1);
    run(code.twice, 1);
    let most = (options.repeats / code.copies.max(1) as u64).max(1);
    let mut rounds = 1;
    while rounds < most {
        let difference = (0..3).map(|_| run(code.twice, rounds)).min().unwrap_or(0);
        if difference >= 2 * ENOUGH {
            break;
        }
        rounds = (2 * rounds).min(most);
    }
    samples.rounds = rounds;
    samples.chain_rounds = ROUNDS;
    let take = || Sample {
        block: [run(code.once, rounds), run(code.twice, rounds)],
        chain: [run(code.chain[0], ROUNDS), run(code.chain[1], ROUNDS)],
        window: run(code.window, window::ROUNDS),
    };
    for window in &mut samples.windows {
        let sample = take();
        *window = [sample.window, sample.chain[1]];
    }
    if let Some(idle) = options.idle {
        let chain = samples.windows.iter().map(|[_, chain]| *chain).min().unwrap_or(0);
        let most = (chain as f64 * idle * ALONE / ADDITIONS) as u64;
        let end = now() + options.patience.as_nanos() as u64;
        let mut before = false;
        collect(options, samples, || {
            while now() < end {
                let sample = take();
                let after = sample.window <= most;
                if std::mem::replace(&mut before, after) && after {
                    return Some(sample);
                }
            }
            None
        });
        samples.alone = u64::from(samples.count >= LEAST);
    }
    if samples.alone == 0 {
        collect(options, samples, || Some(take()));
    }
}

/// Rounds of the loops that show the clock.
const ROUNDS: u64 = 48;
/// Additions of the longer chain, which takes a cycle for each, for each overlapping chain.
pub const ADDITIONS: f64 = (2 * CHAIN as u64 * ROUNDS) as f64 / (window::CHAINS as u64 * window::ROUNDS) as f64;
/// Samples without other work that make a figure, at least.
const LEAST: u64 = 24;

/// Returns the nanoseconds of a clock that only advances.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the reference is valid.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Collects samples until enough of them agree, or until there are no more.
fn collect(options: &Options, samples: &mut Samples, mut next: impl FnMut() -> Option<Sample>) {
    let most = options.samples.clamp(1, SAMPLES);
    let mut least = Sample { block: [u64::MAX; 2], chain: [u64::MAX; 2], window: 0 };
    samples.count = 0;
    for n in 0..most {
        let Some(sample) = next() else { return };
        samples.samples[n] = sample;
        samples.count = n as u64 + 1;
        for i in 0..2 {
            least.block[i] = least.block[i].min(sample.block[i]);
            least.chain[i] = least.chain[i].min(sample.chain[i]);
        }
        if n >= 31 && n % 16 == 15 {
            let near = |of: fn(&Sample) -> u64, least: u64| {
                let limit = least + least / 256 + options.grain;
                samples.samples[..=n].iter().filter(|sample| of(sample) <= limit).count() >= 16
            };
            let agree = near(|s| s.block[0], least.block[0])
                && near(|s| s.block[1], least.block[1])
                && near(|s| s.chain[0], least.chain[0])
                && near(|s| s.chain[1], least.chain[1]);
            if agree {
                return;
            }
        }
    }
}
