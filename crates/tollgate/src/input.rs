//! Input files named by the user.

use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Reads a whole file of at most `largest` bytes. The limit also stops reading from endless devices.
pub fn read(path: &Path, largest: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(largest + 1).read_to_end(&mut bytes))
        .with_context(|| format!("{} can't be read", path.display()))?;
    if bytes.len() as u64 > largest {
        bail!("{} is too large: more than {largest} bytes", path.display());
    }
    Ok(bytes)
}
