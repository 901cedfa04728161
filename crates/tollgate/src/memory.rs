//! What a run has taken of the host's memory.

use cpu::cache::Taken;
use serde_json::{Value, json};

/// In bytes, for `tollgate run --json`.
pub fn report(taken: Taken) -> Value {
    json!({ "peak": peak(), "code": taken.code, "metadata": taken.metadata })
}

/// The most that was resident at a time; nothing where the host's kernel does not say.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
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
