//! Boots that runs share.

use super::session::Session;
use anyhow::Result;
use machine::{Machine, Outcome};

/// Runs the machine to its end.
pub fn run(machine: &mut Machine, session: &mut Session) -> Result<Outcome> {
    Ok(machine.run(session))
}
