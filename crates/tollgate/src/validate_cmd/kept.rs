//! The kept result of a validation, one for each profile.

use crate::places;
use anyhow::{Context, Result};
use silicon::host::Processor;
use std::path::PathBuf;
use validate::Validation;

/// Returns the file for a profile.
fn file(profile: &str) -> Result<PathBuf> {
    Ok(places::cache()?.join("validation").join(format!("{profile}.json")))
}

/// Keeps a result, in place of an older one.
pub fn keep(result: &Validation) -> Result<()> {
    let path = file(&result.profile)?;
    let directory = path.parent().context("the file is in a directory")?;
    std::fs::create_dir_all(directory).with_context(|| format!("{}", directory.display()))?;
    crate::output::OutputFile::create(&path, "result")?.write(result.json().as_bytes())
}

/// Returns the sentence about a profile that was validated on this machine's processor.
pub fn quotation(profile: &str) -> Option<String> {
    let result = Validation::load(&file(profile).ok()?).ok()?;
    (result.processor == Processor::of_host()).then(|| result.quotation()).flatten()
}
