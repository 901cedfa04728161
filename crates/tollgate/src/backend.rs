//! The part that executes the guest: this program, or the host's processor through KVM.

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
    /// A virtual machine of KVM, if the guest runs on one. `software`: why the other options need Tollgate's own processor, if they do;
    /// `ledger`: one of every cycle would be had there.
    pub fn open(self, software: Option<&str>, ledger: bool) -> Result<Option<Kvm>> {
        match (self, software) {
            (Self::Software, _) => Ok(None),
            (Self::Kvm, Some(why)) => bail!("{why}: leave it out with --backend kvm, or use --backend software"),
            (Self::Kvm, None) => Kvm::open().map(Some).map_err(|error| anyhow!(error).context("--backend kvm")),
            (Self::Auto, None) if !ledger => Ok(Kvm::open().ok()),
            (Self::Auto, _) => Ok(None),
        }
    }
}
