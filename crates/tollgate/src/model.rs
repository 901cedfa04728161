//! `--model`: the model of time.

use crate::usage::WrongArguments;
use anyhow::{Context, Result};
use ledger::Profile;
use ledger::profile::{Clock, ProfileError};
use strum::VariantArray;
use uarch::CoreTable;

/// Parses the name of a model.
pub fn parse(text: &str) -> Result<Clock, String> {
    text.parse().map_err(|_| {
        let known: Vec<&str> = Clock::VARIANTS.iter().map(|clock| clock.name()).collect();
        format!("there is no model of this name; there are: {}", known.join(", "))
    })
}

/// Returns the profile that a user names. Words that name none are a wrong command line.
pub fn named(words: &str) -> Result<Profile> {
    Profile::find(words).map_err(error)
}

fn error(error: ProfileError) -> anyhow::Error {
    if error.is_of_the_words() { WrongArguments::new(error.to_string()).into() } else { error.into() }
}

/// Returns a profile with the given model of time, or with its own: `core` if it has caches and names no other one.
pub fn profile(name: &str, model: Option<Clock>) -> Result<Profile> {
    let profile = named(name)?;
    if let Some(core) = &profile.core {
        CoreTable::named(&core.value).with_context(|| format!("profile {}: core.table", profile.name))?;
    }
    Ok(match model {
        Some(model) => profile.with_clock(model).map_err(error)?,
        None => profile.with_usual_clock(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_is_the_usual_model_of_profiles_with_caches() {
        let clock = |name: &str, model| profile(name, model).unwrap().clock;
        assert_eq!(clock("zen3", None), Clock::Core);
        assert_eq!(clock("zen3", Some(Clock::Flat)), Clock::Flat);
        // A file that names its model is taken at its word.
        let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles/zen3.toml")).unwrap();
        let file = std::env::temp_dir().join(format!("tollgate-model-{}.toml", std::process::id()));
        std::fs::write(&file, text.replacen("format = 1", "format = 1\nclock = \"flat\"", 1)).unwrap();
        let named = clock(&file.to_string_lossy(), None);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(named, Clock::Flat);
    }
}
