//! The translator beside the interpreter: in lockstep, and by the ledgers.

use super::bare::TARGETS;
use super::linux::{ENDED, HACKBENCH};
use crate::bench::{Bench, Wanted};
use crate::images::{bare_guests, cloud};
use crate::run::{Run, bare, kernel};
use crate::test::{Group, Outcome};

/// Both tiers run in lockstep, from each block's first execution on.
const LOCKSTEP: &str = "--tier translator --check-translation";
const AGREED: &str = "the tiers agree$";

pub fn group() -> Group {
    let mut group = Group::new("tiers", 1200);
    for (name, options) in [("", ""), ("_2_processors", "--cpus 2"), ("_tdp", "--platform hvm --mmu tdp")] {
        group.add(format!("lockstep_linux{name}"), move |bench| {
            bench.expect(&cloud()?.append(HACKBENCH).words(options).words(LOCKSTEP), 0, AGREED).map(drop)
        });
    }
    for cpus in [1, 2] {
        group.add(format!("equal_ledgers_linux_{cpus}_processors"), move |bench| {
            equal_ledgers(bench, &cloud()?.append(HACKBENCH).with("--cpus", cpus.to_string()), 0, ENDED)
        });
    }
    // The watchdog uses a counter.
    group.add("equal_ledgers_linux_counters", |bench| {
        equal_ledgers(bench, &cloud()?.append(HACKBENCH).words("--model core --cpu skx,pmu --cpus 2"), 0, ENDED)
    });
    // It has more translations than the memory for them holds.
    group.add("equal_ledgers_linux_core", |bench| {
        let run = cloud()?.append(HACKBENCH).words("--model core --cpu zen3 --cpus 2");
        equal_ledgers(bench, &run, 0, ENDED)
    });
    let hackbench = "workload=hackbench tasks=8 loops=20";
    for (name, options) in [("", ""), ("_hvm", "--platform hvm --cpu skx")] {
        group.add(format!("equal_ledgers_kernel_hackbench{name}"), move |bench| {
            bare_guests()?;
            equal_ledgers(bench, &kernel("x86_64", hackbench).words(options), 1, "^kernel: pass")
        });
    }
    let mut lockstep = |name: String, run: Run| {
        group.add(format!("lockstep_{name}"), move |bench| {
            bare_guests()?;
            bench.expect(&run.clone().words(LOCKSTEP), 1, AGREED).map(drop)
        });
    };
    for program in ["switch", "syscall", "fault", "cpuid", "undefined"] {
        let run = bare(&format!("{program}.elf"), "iterations=1000").words("--cpu skx");
        lockstep(program.to_owned(), run);
    }
    lockstep("indirect".to_owned(), bare("indirect.elf", "iterations=1000 targets=3").words("--cpu skx"));
    for target in TARGETS {
        lockstep(format!("kernel_{target}_hackbench"), kernel(target, &format!("{hackbench} kernexec=1")));
        lockstep(format!("kernel_{target}_page_tables"), kernel(target, "workload=stress iterations=5000"));
    }
    for mmu in ["shadow", "tdp"] {
        let run = kernel("x86_64", hackbench).words("--platform hvm --cpu skx --mmu").words(mmu);
        lockstep(format!("kernel_x86_64_hackbench_{mmu}"), run);
    }
    group.add("lockstep_garbage", |bench| {
        bare_guests()?;
        bench.expect(&bare("garbage.elf", "seed=1").words(LOCKSTEP), Wanted::AnError, AGREED).map(drop)
    });
    group
}

/// Checks that each tier ends with that status and leaves the same ledger.
fn equal_ledgers(bench: &Bench, run: &Run, status: i32, pattern: &str) -> Outcome {
    for tier in ["interpreter", "auto", "translator"] {
        bench.expect(&run.clone().with("--tier", tier).with("--ledger", bench.file(tier)), status, pattern)?;
        bench.equal("interpreter", tier)?;
    }
    Ok(())
}
