//! The host memory used by a run.

use cpu::cache::Taken;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{Read, Seek};
use std::sync::OnceLock;

/// The status file of this process in /proc, opened before the confinement.
static STATUS: OnceLock<Option<File>> = OnceLock::new();

/// Returns the memory in bytes, for `tollgate run --json`.
pub fn report(taken: Taken) -> Value {
    json!({ "peak": peak(), "code": taken.code, "metadata": taken.metadata })
}

/// Opens the file that [`report`] reads.
pub fn prepare() {
    open();
}

fn open() -> &'static Option<File> {
    STATUS.get_or_init(|| File::open("/proc/self/status").ok())
}

/// Returns the peak resident size, or None if the host's kernel does not report it.
fn peak() -> Option<u64> {
    let mut file = open().as_ref()?;
    file.rewind().ok()?;
    let mut status = String::new();
    file.read_to_string(&mut status).ok()?;
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB"))?;
    Some(kilobytes.trim().parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_stays_when_memory_is_given_back() {
        let before = peak().unwrap();
        let large = std::hint::black_box(vec![1u8; 64 << 20]);
        assert_eq!(large[large.len() / 2], 1);
        drop(large);
        let after = peak().unwrap();
        assert!(after >= 64 << 20 && after >= before, "{before} {after}");
    }
}
