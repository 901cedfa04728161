//! The tests, one file per group.

mod bare;
mod debugger;
mod diff;
mod exec;
mod hvm;
mod kvm;
mod linux;
mod linux_mmus;
mod nested;
mod network;
mod other;
mod patches;
mod slow;
mod snapshots;
mod tiers;
mod xstate;

use crate::test::Test;

/// Returns all tests. Those that take long come first, so that no processor idles at the end.
pub fn all() -> Vec<Test> {
    let groups = [
        snapshots::group(),
        tiers::group(),
        linux_mmus::group(),
        linux::group(),
        hvm::group(),
        bare::group(),
        debugger::group(),
        slow::group(),
        other::group(),
        nested::group(),
        kvm::group(),
        xstate::group(),
        network::group(),
        patches::group(),
        exec::group(),
        diff::group(),
    ];
    groups.into_iter().flat_map(crate::test::Group::tests).collect()
}
