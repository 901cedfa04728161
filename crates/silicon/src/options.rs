//! How a block is measured, and by which clock.

use std::time::Duration;

/// Factor by which overlapping chains take longer than on an idle core, at most, if nothing shares the core: beside another thread it is
/// about 2.
pub const ALONE: f64 = 1.25;

/// Most samples of a measurement.
pub const SAMPLES: usize = 400;

/// How a block is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// Most samples, each of which executes the block in two loops and a chain of additions in two more.
    pub samples: usize,
    /// How often the block is repeated in a sample at most. More repetitions let a block that walks through memory
    /// leave the first-level cache.
    pub repeats: u64,
    /// Most pages that the block may touch.
    pub pages: usize,
    /// The processor that measures; without one, the one on which the caller runs.
    pub processor: Option<usize>,
    /// Cycles that an overlapping chain takes while the core's other thread sleeps: see [`crate::window`].
    /// If it is known, only samples during which nothing else executed on the core count.
    pub idle: Option<f64>,
    /// Time for which such samples are looked for, before others count too.
    pub patience: Duration,
    /// Time after which the block is given up.
    pub limit: Duration,
    /// Steps in which the time stamp advances; see [`grain`].
    pub grain: u64,
}

impl Default for Options {
    fn default() -> Self {
        let limit = Duration::from_millis(1000);
        let patience = Duration::from_millis(150);
        Self { samples: SAMPLES, repeats: 512, pages: 8, processor: None, idle: None, patience, limit, grain: grain() }
    }
}

/// Returns the time stamp.
fn stamp() -> u64 {
    // SAFETY: every x86-64 processor has the instruction; programs may execute it unless Linux forbids it.
    #[allow(unsafe_code, reason = "the time stamp is read")]
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
}

/// Returns the steps in which the time stamp advances: on AMD's processors many cycles, on Intel's about one.
pub fn grain() -> u64 {
    static GRAIN: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    *GRAIN.get_or_init(|| {
        let mut steps: Vec<u64> = (0..2000).map(|_| (stamp(), stamp())).map(|(a, b)| b.wrapping_sub(a)).collect();
        steps.retain(|step| *step > 0);
        steps.into_iter().min().unwrap_or(1).max(1)
    })
}

/// Returns the frequency of the time stamp counter, by the clock of the kernel.
pub fn stamp_hz() -> f64 {
    static FREQUENCY: std::sync::OnceLock<f64> = std::sync::OnceLock::new();
    *FREQUENCY.get_or_init(|| {
        let (start, first) = (std::time::Instant::now(), stamp());
        while start.elapsed() < Duration::from_millis(50) {
            std::hint::spin_loop();
        }
        stamp().wrapping_sub(first) as f64 / start.elapsed().as_secs_f64()
    })
}
