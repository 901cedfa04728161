//! The frequency of this machine's core.

use crate::kernel::Kernel;
use crate::native::{NativeError, Process};
use crate::program::Program;

/// Measurements of the frequency, of which the greatest counts: other work can only make the core seem slower.
const MEASUREMENTS: usize = 9;

/// The frequency of the core at any moment.
pub(crate) struct Clock {
    process: Process,
    kernel: Kernel,
    entry: u64,
}

impl Clock {
    /// Starts the process. `entries` are those of the core's reorder buffer, if they are known.
    pub(crate) fn new(entries: Option<f64>) -> Result<Self, String> {
        let kernel = Kernel::new("clock", 1, |_| Ok(()), |a| a.nop());
        let program = Program::new(std::slice::from_ref(&kernel)).map_err(|error| error.to_string())?;
        let process = Process::start(&program).map_err(|error| error.to_string())?.with_entries(entries);
        Ok(Self { process, kernel, entry: program.functions[0] })
    }

    /// Returns the processor whose core this is.
    pub(crate) fn processor(&self) -> usize {
        self.process.processor()
    }

    /// Returns the part of all measurements so far beside which other work executed on the core.
    pub(crate) fn busy(&self) -> f64 {
        self.process.busy()
    }

    /// Returns the cycles that an overlapping chain takes while the core's other thread sleeps.
    pub(crate) fn window(&mut self) -> Option<f64> {
        self.hz().ok()?;
        self.process.window()
    }

    pub(crate) fn hz(&mut self) -> Result<f64, NativeError> {
        Ok(self.process.measure(&self.kernel, self.entry, 0)?.per_stamp * silicon::options::stamp_hz())
    }
}

/// Returns the frequency of the core while it works.
pub fn hz() -> Result<f64, String> {
    let mut clock = Clock::new(None)?;
    let measured: Result<Vec<f64>, _> = (0..MEASUREMENTS).map(|_| clock.hz()).collect();
    Ok(measured.map_err(|error| error.to_string())?.into_iter().fold(0.0, f64::max))
}
