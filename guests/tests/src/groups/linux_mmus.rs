//! A Linux boot under the hypervisor, with each MMU.

use super::hvm::MMUS;
use super::linux::{ENDED, HACKBENCH};
use crate::bench::Bench;
use crate::images::{cloud, kernexec, linux};
use crate::run::{Run, tollgate};
use crate::test::{Group, Outcome, Stop};
use std::sync::OnceLock;

pub fn group() -> Group {
    let mut group = Group::new("linux_mmus", 900);
    for (name, mmu) in MMUS {
        group.add(format!("prints_the_same_{name}"), move |bench| prints_the_same(bench, mmu));
        // The markers of a region are port accesses of user code, which AMD's SYSRET has entered.
        group.add(format!("zen3_{name}"), move |bench| {
            let run = cloud()?.words("--cpu zen3 --platform hvm --mmu").words(mmu);
            bench.expect(&run.append("nokaslr tollgate.run=\"region h true\""), 0, ENDED).map(drop)
        });
    }
    group.add("prints_the_same_emulated", |bench| {
        let bare = on_the_processor(bench)?;
        bench.expect(&hackbench()?.words("--platform emulated"), 0, ENDED)?.is_but_for_times(&bare)
    });
    let places = [("role", "role"), ("unload", "unload"), ("in_place", "in-place"), ("guest_owned", "guest-owned")];
    for (name, wp) in places {
        group.add(format!("toggles_of_cr0_wp_{name}"), move |bench| {
            let run = linux("cloud", kernexec()?)?.append("tollgate.run=kernexec tollgate.steps=20");
            let run = run.words("--platform hvm --mmu tdp --cr0-wp").words(wp);
            bench.expect(&run, 0, "tollgate: [0-9]+ toggles of CR0.WP").map(drop)
        });
    }
    group
}

fn hackbench() -> Result<Run, Stop> {
    Ok(cloud()?.append(&format!("nokaslr {HACKBENCH}")))
}

/// Returns the output of the run without a hypervisor, times excepted, which several tests need.
fn on_the_processor(bench: &Bench) -> Result<String, Stop> {
    static PRINTED: OnceLock<Result<String, Stop>> = OnceLock::new();
    PRINTED.get_or_init(|| Ok(bench.expect(&hackbench()?, 0, ENDED)?.without_times())).clone()
}

fn prints_the_same(bench: &Bench, mmu: &str) -> Outcome {
    let run = hackbench()?.words("--platform hvm --mmu").words(mmu);
    bench
        .expect(&run.clone().with("--ledger", bench.file("a")), 0, ENDED)?
        .is_but_for_times(&on_the_processor(bench)?)?;
    let report = tollgate("report").arg(bench.file("a"));
    // No page of tables is lost.
    bench.expect(&report, 0, "^mmu check +clean")?;
    let exits = bench.expect(&report.words("--region h --by kind --top 0"), 0, "VM exit")?;
    if !mmu.ends_with("tdp") {
        return exits.shows("CR_ACCESS").map(drop);
    }
    exits.lacks("VM exit (CR_ACCESS|INVLPG|EXCEPTION_NMI)")?;
    if mmu == "tdp" {
        bench.expect(&run.with("--ledger", bench.file("b")), 0, ENDED)?;
        bench.equal("a", "b")?;
    }
    Ok(())
}
