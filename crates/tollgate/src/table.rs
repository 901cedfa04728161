//! Tables and numbers as the laboratory sets them, ledgers from files, and output that survives a closed pipe.

use anyhow::{Context, Result};
pub use lab::format::*;
use std::io::{ErrorKind, Write};
use std::path::Path;

/// The ledger in a file.
pub fn read_ledger(path: &Path) -> Result<ledger::Ledger> {
    /// More than the largest ledger has, compressed.
    const LARGEST: u64 = 256 << 20;
    let bytes = crate::input::read(path, LARGEST)?;
    ledger::Ledger::read(&bytes).with_context(|| format!("{} is not usable", path.display()))
}

/// Prints to standard output. That nobody reads on is no error.
pub fn emit(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("standard output can't be written"),
        _ => Ok(()),
    }
}
