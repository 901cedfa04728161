//! Instructions that a guest executed, and that the real processor of its profile has, but the modelled one does not: programs that go by a
//! processor's model number, and not by CPUID, end by them.

use crate::machine::Machine;
use ledger::Family;
use std::collections::BTreeMap;
use std::fmt;

/// Instructions of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lacking {
    /// Mnemonic.
    pub mnemonic: String,
    /// Extensions that it belongs to.
    pub extensions: String,
    /// The profile.
    pub profile: String,
    /// How often #UD was raised.
    pub count: u64,
}

impl fmt::Display for Lacking {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { mnemonic, extensions, profile, count } = self;
        let times = if *count == 1 { "once".to_owned() } else { format!("{count} times") };
        write!(
            f,
            "the guest executed {mnemonic} ({extensions}), which {profile} has and Tollgate does not: #UD {times}"
        )
    }
}

impl Machine {
    /// What the guest executed in vain although its processor has it. Empty with the host's clock, where nothing is recorded.
    pub fn lacking(&self) -> Vec<Lacking> {
        let mut counts: BTreeMap<(String, String), u64> = BTreeMap::new();
        for (_, _, kind, amount) in self.recorder.borrow().events() {
            if kind.family == Family::Undefined
                && let Some(found) = cpu::features::of_real_processor(kind.param, &self.profile)
            {
                *counts.entry(found).or_default() += amount.count;
            }
        }
        let lacking = |((mnemonic, extensions), count)| {
            let profile = self.profile.name.clone();
            Lacking { mnemonic, extensions, profile, count }
        };
        counts.into_iter().map(lacking).collect()
    }
}
