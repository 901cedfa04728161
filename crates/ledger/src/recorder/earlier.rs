//! The charges of a saved machine, which a thread prepares while the machine goes on.

use super::saved::SavedError;
use super::tables::Tables;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

type Work = Box<dyn FnOnce() -> Result<Tables, SavedError> + Send>;

/// Charges that are not there yet.
pub(super) struct Earlier {
    /// Number of the charges.
    pub charges: usize,
    /// The function that returns the charges; None once the thread or the recorder has called it.
    work: Arc<Mutex<Option<Work>>>,
    thread: Option<JoinHandle<Option<Result<Tables, SavedError>>>>,
}

fn take(work: &Mutex<Option<Work>>) -> Option<Work> {
    work.lock().unwrap_or_else(PoisonError::into_inner).take()
}

impl Earlier {
    pub(super) fn new(charges: usize, work: impl FnOnce() -> Result<Tables, SavedError> + Send + 'static) -> Self {
        Self { charges, work: Arc::new(Mutex::new(Some(Box::new(work)))), thread: None }
    }

    /// Starts the thread, if there can be one.
    pub(super) fn begin(&mut self) {
        if self.thread.is_none() {
            let work = Arc::clone(&self.work);
            let thread = Builder::new().name("charges".to_owned()).spawn(move || take(&work).map(|work| work()));
            self.thread = thread.ok();
        }
    }

    /// Returns the charges.
    pub(super) fn finish(self) -> Result<Tables, SavedError> {
        // The thread does nothing if the work is taken before it begins.
        let here = take(&self.work).map(|work| work());
        let there = || match self.thread?.join() {
            Ok(made) => made,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        here.or_else(there).unwrap_or_else(|| Err(SavedError::new("its charges")))
    }
}
