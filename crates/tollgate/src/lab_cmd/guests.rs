//! Checks an experiment against the files of its guests before a cell runs: the names of regions, and the lengths of command lines. A file that
//! can't be read is no error here, because each cell that needs the file reports it.

use lab::experiment::{Cell, ExperimentError, Image};
use machine::loader::longest_command_line;
use std::collections::BTreeMap;
use std::path::Path;

/// Longest name of a region that the marker ports keep, in bytes.
const LONGEST_NAME: usize = 63;
/// Largest file that is searched, in bytes.
const LARGEST: u64 = 1 << 30;
/// Beginning and end of an initial RAM disk that is not compressed (cpio, newc).
const ARCHIVE: (&[u8], &[u8]) = (b"070701", b"TRAILER!!!");
/// Characters with which a placeholder begins: a program or a script replaces it at run time by the rest of a name.
const FILLED_IN: &[u8] = b"%${";

/// Facts about the files of a guest.
struct Known {
    /// Largest length of the kernel's command line in bytes.
    longest: usize,
    /// The file that contains the guest's programs. `None` if it is compressed, so that names in it cannot be found.
    programs: Option<Vec<u8>>,
}

impl Known {
    fn of(image: &Image, root: &Path) -> Option<Self> {
        let read = |name: &str| crate::input::read(&root.join(name), LARGEST).ok();
        let plain = |bytes: &Vec<u8>| {
            let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            bytes.starts_with(ARCHIVE.0) && bytes[..end].ends_with(ARCHIVE.1)
        };
        let (kernel, initrd) = match image {
            Image::Bare(image) => (read(image)?, None),
            Image::Linux { kernel, initrd } => (read(kernel)?, Some(initrd.as_deref().and_then(read).filter(plain))),
        };
        Some(Self { longest: longest_command_line(&kernel), programs: initrd.unwrap_or(Some(kernel)) })
    }

    /// Returns false if no program of the guest, nor one of these texts, contains the name of a region.
    fn may_name(&self, region: &str, texts: &[&str]) -> bool {
        let Some(programs) = &self.programs else { return true };
        contains(programs, region.as_bytes()) || texts.iter().any(|text| contains(text.as_bytes(), region.as_bytes()))
    }
}

/// Returns true if a text contains a name as a whole word, or a beginning of the name with a placeholder behind it.
fn contains(text: &[u8], name: &[u8]) -> bool {
    let within = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte));
    let Some(first) = name.first() else { return true };
    let starts = text.iter().enumerate().filter(|(_, byte)| *byte == first).map(|(at, _)| at);
    starts.filter(|at| *at == 0 || !within(text.get(at - 1))).any(|at| {
        let same = text[at..].iter().zip(name).take_while(|(a, b)| a == b).count();
        let next = text.get(at + same);
        same == name.len() && !within(next) || next.is_some_and(|byte| FILLED_IN.contains(byte))
    })
}

/// Checks cells against their guests in the directory `root`.
pub fn check(cells: &[Cell], root: &Path) -> Result<(), ExperimentError> {
    let mut guests: BTreeMap<(&str, &str), Option<Known>> = BTreeMap::new();
    for cell in cells {
        let experiment = cell.experiment;
        let name = cell.settings.guest.as_deref().unwrap_or_default();
        let known = guests.entry((&experiment.name, name)).or_insert_with(|| Known::of(&cell.guest().image, root));
        let file = || experiment.file.clone().unwrap_or_else(|| format!("{}.toml (built in)", experiment.name));
        let error = |key: String, reason| Err(ExperimentError::Value { file: file(), key, reason });
        let row = &cell.row_of().line.id;
        if let Some(region) = cell.row_of().metric.region.as_deref().filter(|region| !region.is_empty()) {
            let key = format!("row.{row}.metric.region");
            if region.len() > LONGEST_NAME || region.trim() != region || region.chars().any(char::is_control) {
                let reason = format!(
                    "'{}' is no name of a region: 1 to {LONGEST_NAME} bytes, without control characters and outer spaces",
                    region.escape_debug()
                );
                return error(key, reason);
            }
            let texts: Vec<&str> =
                [&cell.settings.append, &cell.settings.workload].into_iter().flatten().map(|s| &**s).collect();
            if known.as_ref().is_some_and(|known| !known.may_name(region, &texts)) {
                return error(
                    key,
                    format!("the guest '{name}' has no region '{region}': its programs do not contain the name"),
                );
            }
        }
        let line = cell.command_line();
        if let Some(known) = known.as_ref().filter(|known| line.len() > known.longest) {
            let reason = format!(
                "the command line of the cell {} has {} bytes; the guest '{name}' takes at most {}",
                cell.id(),
                line.len(),
                known.longest
            );
            return error(format!("row.{row}.set.append"), reason);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_experiments_name_regions_of_their_guests() {
        // Only guests that have been built in this checkout have files to check against.
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for name in lab::experiment::names() {
            let experiment = lab::experiment::Experiment::named(name).unwrap();
            check(&experiment.cells(), &root).unwrap_or_else(|error| panic!("{error}"));
        }
    }

    #[test]
    fn a_name_stands_alone_or_is_completed_later() {
        for text in ["a syscall b", "syscall", "\0syscall\0", "\"syscall\"", "x-syscall syscall;", "sys%s", "sys${x}"] {
            assert!(contains(text.as_bytes(), b"syscall"), "{text}");
        }
        for text in ["", "a syscalls b", "x_syscall", "syscal", "sys", "my-sys%s", "sysx%s"] {
            assert!(!contains(text.as_bytes(), b"syscall"), "{text}");
        }
    }
}
