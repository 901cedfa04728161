//! The backend that executes the guest: this program, or the host's processor through KVM.

use crate::output::say;
use crate::usage::WrongArguments;
use anyhow::{Result, anyhow, bail};
use clap::ValueEnum;
use machine::kvm::Kvm;

/// Values of `--backend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// Tollgate's own processor: deterministic, with a ledger of every cycle
    Software,
    /// The host's processor through /dev/kvm: fast, with a ledger of exits only
    Kvm,
    /// kvm if the host has it, unless KVM emulates kernels, or a ledger or another option needs software
    Auto,
}

impl Backend {
    /// Opens KVM if the guest is to run on it. `software` is the reason why other options need Tollgate's own processor, if any; `ledger` is true if
    /// a ledger of every cycle is requested.
    pub fn open(self, software: Option<&str>, ledger: bool) -> Result<Option<Kvm>> {
        match (self, software) {
            (Self::Software, _) => Ok(None),
            (Self::Kvm, Some(why)) => {
                bail!(WrongArguments::new(format!("{why}: leave it out with --backend kvm, or use --backend software")))
            }
            (Self::Kvm, None) => {
                let kvm = Kvm::open().map_err(|error| anyhow!(error).context("--backend kvm"))?;
                if let Some(emulated) = kvm.emulated() {
                    say(&format!("tollgate: {emulated}"));
                }
                Ok(Some(kvm))
            }
            (Self::Auto, None) if !ledger => Ok(Kvm::open().ok().filter(|kvm| kvm.emulated().is_none())),
            (Self::Auto, _) => Ok(None),
        }
    }
}
