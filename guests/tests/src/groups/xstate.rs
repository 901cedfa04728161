//! Tiles and shadow stacks of programs under Linux 6.12, on the profile that has them and on one that has neither.

use crate::bench::need;
use crate::images::{linux, selftests, xstate};
use crate::root;
use crate::run::Run;
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
    group.add("selftests_of_x86_as_a_table", |bench| {
        need("apt-get")?;
        let tests = "x86 cloud --only fsgsbase_64,ioperm_64,sigreturn_64";
        let table = bench.expect(&Run::new(root().join("scripts/selftests")).words(tests), 0, "^3 tests: 3 pass$")?;
        table.shows("^sigreturn_64 +pass ")?;
        let unknown = Run::new(root().join("scripts/selftests")).words("x86 cloud --only sigretorn_64");
        bench.expect(&unknown, 1, "no test is called sigretorn_64; nearest: sigreturn_64").map(drop)
    });
    group.add("neither_on_skx", |bench| {
        let run = linux("backports", xstate()?)?.append("").words("--cpu skx");
        bench.expect(&run, 0, "^xstate: 0 passed, 0 failed, 2 skipped").map(drop)
    });
    group
}
