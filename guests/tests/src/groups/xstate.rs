//! Tiles and shadow stacks of programs under Linux 6.12, on the profile that has them and on one that has neither.

use crate::images::{linux, selftests, xstate};
use crate::test::Group;

pub fn group() -> Group {
    let mut group = Group::on_request("xstate", 900);
    for tier in ["auto", "interpreter"] {
        group.add(format!("tiles_and_shadow_stacks_{tier}"), move |bench| {
            let run = linux("backports", xstate()?)?.append("").words("--cpu emr --tier").words(tier);
            bench.expect(&run, 0, "^xstate: 15 passed, 0 failed, 0 skipped").map(drop)
        });
    }
    group.add("linuxs_own_tests_of_extended_state", |bench| {
        let run = linux("backports", selftests()?)?.words("--cpu emr").append("tollgate.run=selftests");
        bench.expect(&run, 0, "workload selftests: status 0").map(drop)
    });
    group.add("neither_on_skx", |bench| {
        let run = linux("backports", xstate()?)?.append("").words("--cpu skx");
        bench.expect(&run, 0, "^xstate: 0 passed, 0 failed, 2 skipped").map(drop)
    });
    group
}
