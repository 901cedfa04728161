//! Input files named by the user.

use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Reads a whole file of at most `largest` bytes. The limit also stops reading from endless devices.
pub fn read(path: &Path, largest: u64) -> Result<Vec<u8>> {
    let shown = path.display().to_string();
    let file = File::open(path).with_context(|| format!("{shown} can't be read"))?;
    let mut bytes = Vec::new();
    // A vector that grows while it is read copies what it has. The size of what is no regular file says nothing, and may be anything.
    let size = file.metadata().map_or(0, |file| file.len()).min(largest);
    let _ = bytes.try_reserve_exact(usize::try_from(size).unwrap_or_default());
    filled(bytes, file, largest, &shown)
}

/// Reads at most `largest` bytes until the end. `shown` names the source in messages.
pub fn read_stream(source: impl Read, largest: u64, shown: &str) -> Result<Vec<u8>> {
    filled(Vec::new(), source, largest, shown)
}

/// Reads at most `largest` bytes into an empty vector, which may have room already.
fn filled(mut bytes: Vec<u8>, source: impl Read, largest: u64, shown: &str) -> Result<Vec<u8>> {
    source.take(largest + 1).read_to_end(&mut bytes).with_context(|| format!("{shown} can't be read"))?;
    if bytes.len() as u64 > largest {
        bail!("{shown} is too large: more than {largest} bytes");
    }
    Ok(bytes)
}

/// Reads a regular file of at most `largest` bytes. `what` names its contents in error messages.
pub fn read_regular(path: &Path, largest: u64, what: &str) -> Result<Vec<u8>> {
    // A device may be endless, and the limit for large snapshots exceeds the host's memory.
    if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        bail!("can't read the {what}: {} is not a regular file", path.display());
    }
    read(path, largest).with_context(|| format!("can't read the {what}"))
}
