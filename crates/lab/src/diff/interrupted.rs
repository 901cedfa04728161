//! The state of a measurement that its user has stopped.

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
        let Self { layouts, most, earlier } = self;
        let at_most = if *earlier { "at most " } else { "" };
        let most = counted(*most, "layout", "layouts");
        write!(f, "The measurement was interrupted after {layouts} of {at_most}{most}.")
    }
}
