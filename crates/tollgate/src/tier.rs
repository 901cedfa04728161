//! Options that select the execution tier.

use crate::usage::WrongArguments;
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use cpu::Tier;

/// Options that select the execution tier.
#[derive(Args)]
pub struct TierArgs {
    /// Tier that executes the guest. Affects the duration of the run, but not its ledger
    #[arg(long, value_name = "TIER", value_enum, default_value_t = TierName::Auto)]
    tier: TierName,
    /// Runs the guest on the interpreter and on the tier side by side, and stops at the first difference with a disassembly. For
    /// developers of the translator: it is slower than either tier, and writes no ledger
    #[arg(long)]
    check_translation: bool,
}

/// Values of `--tier`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TierName {
    /// The interpreter alone: the reference
    Interpreter,
    /// The translator, from the first execution of a block on
    Translator,
    /// The interpreter first, and the translator for frequently executed code
    Auto,
}

impl TierArgs {
    /// Returns true if no special tier is requested.
    pub fn is_default(&self) -> bool {
        self.tier == TierName::Auto && !self.check_translation
    }

    /// Returns true if translations are checked.
    pub fn checks(&self) -> bool {
        self.check_translation
    }

    /// Returns the tier, and true if translations are checked.
    pub fn resolve(&self) -> Result<(Tier, bool)> {
        let tier = self.tier.tier();
        if self.check_translation && tier == Tier::Interpreter {
            bail!(WrongArguments::new("--check-translation has nothing to check: it needs --tier translator or auto"));
        }
        Ok((tier, self.check_translation))
    }
}

impl TierName {
    /// Returns the tier.
    pub fn tier(self) -> Tier {
        match self {
            Self::Interpreter => Tier::Interpreter,
            Self::Translator => Tier::Translator,
            Self::Auto => Tier::Auto,
        }
    }

    /// Returns the arguments of `tollgate run` that select the tier.
    pub fn arguments(self) -> Vec<String> {
        let value = self.to_possible_value().expect("no tier is left out");
        vec!["--tier".into(), value.get_name().into()]
    }
}
