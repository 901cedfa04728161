//! Landlock: the files that the process may open by name, and the limits beyond files.

use crate::needs::Needs;
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, Scope, path_beneath_rules,
};
use std::os::fd::BorrowedFd;

/// The newest Landlock ABI that this program knows. Older kernels enforce the subset of the rights that they support.
const KNOWN: ABI = ABI::V6;

/// Returns the rights to a file or directory that is only read. Execution is not among them.
fn reading() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::ReadDir
}

/// Returns the rights in a directory whose contents change. The creation of device files is not among them.
fn changing() -> BitFlags<AccessFs> {
    reading()
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir
        | AccessFs::MakeReg
        | AccessFs::MakeDir
        | AccessFs::MakeSym
        | AccessFs::MakeFifo
        | AccessFs::MakeSock
        | AccessFs::Refer
}

/// Returns the rights in a directory in which one file is written under a temporary name and renamed, or removed. Reading is not among them.
fn replacing() -> BitFlags<AccessFs> {
    AccessFs::WriteFile | AccessFs::MakeReg | AccessFs::RemoveFile
}

/// Returns rules that permit nothing yet.
fn nothing() -> Result<RulesetCreated, RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(KNOWN))?
        .handle_access(AccessNet::from_all(KNOWN))?
        .scope(Scope::from_all(KNOWN))?
        .create()
}

/// Confines the calling thread to writing and removing files in a directory.
pub fn confine_to(directory: BorrowedFd) -> Result<(), RulesetError> {
    nothing()?.add_rule(PathBeneath::new(directory, replacing()))?.restrict_self()?;
    Ok(())
}

/// Confines the calling thread, and the threads it starts later, to the files that `needs` names.
pub fn confine(needs: &Needs) -> Result<(), RulesetError> {
    nothing()?
        .add_rules(path_beneath_rules(&needs.readable, reading()))?
        .add_rules(path_beneath_rules(&needs.writable, changing()))?
        .restrict_self()?;
    Ok(())
}
