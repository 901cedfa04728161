//! Instructions that a guest executed and that the real processor of its profile has, but the modelled one lacks.
//! Programs that select instructions by processor model instead of CPUID fail on them.

use crate::machine::Machine;
use ledger::Family;
use std::collections::BTreeMap;
use std::fmt;

/// Uses of one instruction that the model lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lacking {
    /// Mnemonic.
    pub mnemonic: String,
    /// Instruction set extensions that it belongs to.
    pub extensions: String,
    /// Name of the profile.
    pub profile: String,
    /// Number of #UD exceptions raised.
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
    /// Returns the instructions that raised #UD although the real processor has them. The list is empty with the host's
    /// clock, where nothing is recorded.
    pub fn lacking(&self) -> Vec<Lacking> {
        let mut counts: BTreeMap<(String, String), u64> = BTreeMap::new();
        for (_, _, kind, amount) in self.recorder().events() {
            if kind.family == Family::Undefined
                && let Some(found) = cpu::features::of_real_processor(kind.param, &self.profile)
            {
                *counts.entry(found).or_default() += amount.count;
            }
        }
        let lacking = |((mnemonic, extensions), count)| {
            let profile = self.profile.identity.name.clone();
            Lacking { mnemonic, extensions, profile, count }
        };
        counts.into_iter().map(lacking).collect()
    }
}
