//! What has a price, and the confidence in it, as texts.

use super::{SavedError, wrong};
use crate::diff::Runs;
use crate::diff::rests::{Known, Priced};
use ledger::profile::Confidence;
use ledger::{Class, Family, Kind};
use std::collections::BTreeMap;

/// Returns the text of something with a price: a class of instructions, or a kind of event.
pub fn text(what: Priced) -> String {
    match what {
        Priced::Class(class) => format!("class.{}", <&str>::from(class)),
        Priced::Kind(kind) => format!("event.{}.{}", <&str>::from(kind.family), kind.param),
    }
}

/// Parses the text of something with a price.
pub fn parsed(text: &str) -> Result<Priced, SavedError> {
    let parts: Vec<&str> = text.split('.').collect();
    let found = match parts[..] {
        ["class", class] => class.parse::<Class>().ok().map(Priced::Class),
        ["event", family, param] => family
            .parse::<Family>()
            .ok()
            .zip(param.parse().ok())
            .map(|(family, param)| Priced::Kind(Kind::new(family, param))),
        _ => None,
    };
    found.ok_or_else(|| wrong(format!("nothing with a price is called '{text}'")))
}

/// Returns the confidence in the price of everything that a side paid.
pub fn confidences(runs: &Runs) -> BTreeMap<String, String> {
    let all = runs.runs.iter().flat_map(|run| run.paid.priced.keys());
    let of = |what: &Priced| Some((text(*what), runs.prices.as_ref()?.confidence(*what)?.name().to_owned()));
    all.filter_map(of).collect()
}

/// Returns what is known of prices. `hash` is empty if nothing is known.
pub fn known(confidences: &BTreeMap<String, String>, hash: &str) -> Result<Option<Known>, SavedError> {
    if hash.is_empty() {
        return Ok(None);
    }
    let of = |(what, word): (&String, &String)| {
        let confidence = Confidence::ALL.iter().find(|confidence| confidence.name() == word);
        let confidence = *confidence.ok_or_else(|| wrong(format!("there is no confidence '{word}'")))?;
        Ok((parsed(what)?, confidence))
    };
    let confidences = confidences.iter().map(of).collect::<Result<_, SavedError>>()?;
    Ok(Some(Known { confidences, hash: hash.to_owned() }))
}
