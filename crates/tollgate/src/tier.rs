//! The options that say what executes a guest's instructions.

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use cpu::Tier;

/// What executes the guest's instructions.
#[derive(Args)]
pub struct TierArgs {
    /// What executes the guest's instructions. A ledger does not depend on it, only how long the run takes
    #[arg(long, value_name = "TIER", value_enum, default_value_t = TierName::Auto)]
    tier: TierName,
    /// Runs every block in both tiers and stops at the first difference, with a disassembly. For those who work on the
    /// translator: it takes longer than either tier
    #[arg(long)]
    check_translation: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TierName {
    /// The interpreter alone: the reference
    Interpreter,
    /// The translator, from a block's first execution on
    Translator,
    /// The interpreter first, and the translator for what is executed often
    Auto,
}

impl TierArgs {
    /// The tier, and whether translations are checked.
    pub fn resolve(&self) -> Result<(Tier, bool)> {
        let tier = match self.tier {
            TierName::Interpreter => Tier::Interpreter,
            TierName::Translator => Tier::Translator,
            TierName::Auto => Tier::Auto,
        };
        if self.check_translation && tier == Tier::Interpreter {
            bail!("--check-translation has nothing to check: it needs --tier translator or auto");
        }
        Ok((tier, self.check_translation))
    }

    /// The same, as arguments of `tollgate run`.
    pub fn arguments(&self) -> Result<Vec<String>> {
        let (_, check) = self.resolve()?;
        let value = self.tier.to_possible_value();
        let mut arguments = vec!["--tier".to_owned(), value.map_or_else(String::new, |v| v.get_name().to_owned())];
        arguments.extend(check.then(|| "--check-translation".to_owned()));
        Ok(arguments)
    }
}
