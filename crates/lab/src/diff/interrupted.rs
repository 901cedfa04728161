//! The state of a measurement that its user or a time limit has stopped.

use crate::format::counted;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How far the measurement was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interrupted {
    /// Layouts that are complete.
    pub layouts: usize,
    /// Layouts after which the measurement would have ended at the latest.
    pub most: usize,
    /// True if it could have ended earlier.
    pub earlier: bool,
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { layouts, most, earlier } = *self;
        write!(f, "The measurement was interrupted after {}.", so_far(layouts, most, earlier))
    }
}

/// How far the measurement was when its time limit expired.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimeLimit {
    /// The limit, in seconds of the host's time.
    pub seconds: f64,
    /// Layouts that are complete.
    pub layouts: usize,
    /// Layouts after which the measurement would have ended at the latest.
    pub most: usize,
    /// True if it could have ended earlier.
    pub earlier: bool,
}

impl fmt::Display for TimeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seconds, layouts, most, earlier } = *self;
        write!(f, "The time limit of {seconds} s ended the measurement after {}.", so_far(layouts, most, earlier))
    }
}

/// Returns the number of complete layouts beside the number of all.
fn so_far(layouts: usize, most: usize, earlier: bool) -> String {
    let at_most = if earlier { "at most " } else { "" };
    format!("{layouts} of {at_most}{}", counted(most, "layout", "layouts"))
}
