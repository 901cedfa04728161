//! Landlock: which files are reached by name, and what beside files.

use crate::Needs;
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, Scope, path_beneath_rules,
};

/// The newest set of rights that is known here. Older kernels take those of it that they know.
const KNOWN: ABI = ABI::V6;

/// What may be done with a file or directory that is only read. Nothing is executed.
fn reading() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::ReadDir
}

/// What may be done in a directory that is changed. There are no device files among what is made.
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

/// This thread, and those that it starts, reach nothing else.
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
