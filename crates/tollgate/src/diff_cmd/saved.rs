//! Results in files: `--save` writes one, and `--load` reads and combines them.

use crate::usage::WrongArguments;
use anyhow::{Result, anyhow, bail};
use lab::diff::saved::{self, Combined, Labelled, Saved};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Larger than any saved result, in bytes.
const LARGEST: u64 = 256 << 20;

/// The name that stands for standard input.
const INPUT: &str = "-";

/// Returns true if reading a file may wait for whoever writes it, and nobody may ever do so: a FIFO with a name in a directory. The shell's process
/// substitution names a descriptor that is open already.
fn may_wait(path: &Path) -> bool {
    let is_open = ["/dev/fd", "/dev/stdin", "/proc/self/fd"].iter().any(|open| path.starts_with(open));
    let is_fifo = |metadata: std::fs::Metadata| metadata.file_type().is_fifo();
    !is_open && std::fs::metadata(path).is_ok_and(is_fifo)
}

/// Reads one file. `shown` is its name in messages.
fn bytes(path: &Path, shown: &str) -> Result<Vec<u8>> {
    if path == Path::new(INPUT) {
        return crate::input::read_stream(std::io::stdin().lock(), LARGEST, shown);
    }
    if may_wait(path) {
        bail!("{shown} is a FIFO: give its contents as standard input (--load -)");
    }
    crate::input::read(path, LARGEST)
}

/// Returns the name by which a reader knows a file: its own without the ending, or with its directories if others have that name.
fn label(path: &Path, all: &[PathBuf]) -> String {
    let stem = |path: &Path| path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let own = stem(path);
    let twice = all.iter().filter(|other| stem(other) == own).count() > 1;
    let shown = if twice { path.display().to_string() } else { own };
    shown.replace(char::is_control, "\u{fffd}")
}

/// Reads saved results, and combines them, also for a file if they are to be `saved`.
pub fn load(paths: &[PathBuf], saves: bool) -> Result<Combined> {
    let shown = |path: &Path| match path == Path::new(INPUT) {
        true => "standard input".to_owned(),
        false => path.display().to_string(),
    };
    let mut all = Vec::new();
    for path in paths {
        let bytes = bytes(path, &shown(path))?;
        // The error is a predicate of the file.
        let saved = Saved::read(&bytes).map_err(|error| anyhow!("{} {error}", shown(path)))?;
        all.push(Labelled { label: label(path, paths), saved });
    }
    let combined = saved::combine(&all).map_err(|error| anyhow!("--load: {error}"))?;
    if saves {
        saved::check_one(&all, &combined).map_err(|error| anyhow!("--save: {error}"))?;
    }
    if combined.sides.len() < 2 && !saves {
        let name = &combined.sides[0].name;
        let text = match paths {
            [path] => format!("{} has one side, {name}: name a file with another one by a further --load", shown(path)),
            _ => format!("the files have one side together, {name}: name a file with another one by a further --load"),
        };
        bail!(WrongArguments::new(text));
    }
    Ok(combined)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_known_by_its_name() {
        let paths = ["a/base.json", "new", "b/base.json"].map(PathBuf::from);
        let labels: Vec<String> = paths.iter().map(|path| label(path, &paths)).collect();
        assert_eq!(labels, ["a/base.json", "new", "b/base.json"]);
        assert_eq!(label(&paths[0], &paths[..1]), "base");
    }
}
