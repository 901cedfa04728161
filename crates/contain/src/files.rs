//! Landlock: the files that the process may open by name, and the limits beyond files.

use crate::Needs;
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, Scope, path_beneath_rules,
};

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

/// Confines the calling thread, and the threads it starts later, to the files that `needs` names.
pub fn confine(needs: &Needs) -> Result<(), RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(KNOWN))?
        .handle_access(AccessNet::from_all(KNOWN))?
        .scope(Scope::from_all(KNOWN))?
        .create()?
        .add_rules(path_beneath_rules(&needs.readable, reading()))?
        .add_rules(path_beneath_rules(&needs.writable, changing()))?
        .restrict_self()?;
    Ok(())
}
