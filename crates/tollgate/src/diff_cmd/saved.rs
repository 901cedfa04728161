//! Results in files: `--save` writes one, and `--load` reads and combines them.

use crate::usage::WrongArguments;
use anyhow::{Result, anyhow, bail};
use lab::diff::saved::{self, Combined, Labelled, Saved};
use std::path::{Path, PathBuf};

/// Larger than any saved result, in bytes.
const LARGEST: u64 = 256 << 20;

/// Returns the name by which a reader knows a file: its own without the ending, or with its directories if others have that name.
fn label(path: &Path, all: &[PathBuf]) -> String {
    let stem = |path: &Path| path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let own = stem(path);
    let twice = all.iter().filter(|other| stem(other) == own).count() > 1;
    let shown = if twice { path.display().to_string() } else { own };
    shown.replace(char::is_control, "\u{fffd}")
}

/// Reads saved results, and combines them.
pub fn load(paths: &[PathBuf]) -> Result<Combined> {
    let mut all = Vec::new();
    for path in paths {
        let bytes = crate::input::read(path, LARGEST)?;
        // The error is a predicate of the file.
        let saved = Saved::read(&bytes).map_err(|error| anyhow!("{} {error}", path.display()))?;
        all.push(Labelled { label: label(path, paths), saved });
    }
    let combined = saved::combine(&all).map_err(|error| anyhow!("--load: {error}"))?;
    if combined.sides.len() < 2 {
        let (name, path) = (&combined.sides[0].name, paths[0].display());
        let text = format!("{path} has one side, {name}: name a file with another one by a further --load");
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
