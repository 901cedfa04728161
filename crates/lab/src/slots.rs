//! The slots in which a core issues instructions, for top-down analysis.

use ledger::profile::Profile;
use ledger::{TICKS_PER_CYCLE, Ticks};
use uarch::CoreTable;

/// Returns the instructions that the core of a profile issues in a cycle, if the profile and its core are built in.
pub fn width(profile: &str) -> Option<u32> {
    let core = CoreTable::named(&Profile::named(profile).ok()?.core?.value).ok()?;
    Some(core.parameters.front.issue)
}

/// Returns the time of a slot, if the number of slots in a cycle is known.
pub fn slot(width: Option<u32>) -> Option<Ticks> {
    width.map(|width| TICKS_PER_CYCLE / Ticks::from(width))
}
