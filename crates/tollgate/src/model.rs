//! `--model`: the model of time.

use anyhow::{Context, Result};
use ledger::Profile;
use ledger::profile::Clock;
use strum::VariantArray;
use uarch::CoreTable;

/// Parses the name of a model.
pub fn parse(text: &str) -> Result<Clock, String> {
    text.parse().map_err(|_| {
        let known: Vec<&str> = Clock::VARIANTS.iter().map(|clock| clock.name()).collect();
        format!("there is no model of this name; there are: {}", known.join(", "))
    })
}

/// Returns a profile with the given model of time, or its own.
pub fn profile(name: &str, model: Option<Clock>) -> Result<Profile> {
    let profile = Profile::find(name)?;
    if let Some(core) = &profile.core {
        CoreTable::named(&core.value).with_context(|| format!("profile {}: core.table", profile.name))?;
    }
    Ok(match model {
        Some(model) => profile.with_clock(model)?,
        None => profile,
    })
}
