//! What executes the guest: this program, or the host's processor through KVM.

use crate::run_cmd::RunArgs;
use anyhow::{Result, anyhow, bail};
use clap::ValueEnum;
use machine::kvm::Kvm;

/// A backend, as `--backend` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// Tollgate's own processor: deterministic, with a ledger of every cycle
    Software,
    /// The host's processor, by /dev/kvm: at its speed, with a ledger of exits alone
    Kvm,
    /// kvm where the host has it, and neither a ledger nor any other option needs software
    Auto,
}

impl Backend {
    /// A virtual machine of KVM, if the guest runs on one.
    pub fn open(self, args: &RunArgs) -> Result<Option<Kvm>> {
        let only_software = args.needs_software();
        match (self, only_software) {
            (Self::Software, _) => Ok(None),
            (Self::Kvm, Some(why)) => bail!("{why}: leave it out with --backend kvm, or use --backend software"),
            (Self::Kvm, None) => Kvm::open().map(Some).map_err(|error| anyhow!(error).context("--backend kvm")),
            (Self::Auto, None) if args.ledger.is_none() => Ok(Kvm::open().ok()),
            (Self::Auto, _) => Ok(None),
        }
    }
}
