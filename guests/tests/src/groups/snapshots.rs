//! Saved machines: guests are saved at points of their runs, restored, and run to their ends on either tier, with equal ledgers.
//!
//! `TOLLGATE_POINTS` is the number of points of each guest (1), `TOLLGATE_SEED` chooses them (1).

use super::bare::TARGETS;
use super::hvm::MMUS;
use crate::bench::Bench;
use crate::images::{bare_guests, cloud};
use crate::run::{Run, bare, kernel, tollgate};
use crate::test::{Group, Outcome, Stop};
use sha2::{Digest, Sha256};
use std::time::Duration;

/// Snapshots of one run; they take space on the disk.
const BATCH: u64 = 10;
const TIERS: [&str; 3] = ["interpreter", "translator", "auto"];

pub fn group() -> Group {
    // A pass over 20 points of a Linux guest takes some minutes.
    let mut group = Group::new("snapshots", 900 * number("TOLLGATE_POINTS").div_ceil(BATCH));
    of_linux(&mut group);
    of_bare_guests(&mut group);
    moves(&mut group);
    refusals(&mut group);
    moments(&mut group);
    group
}

fn number(variable: &str) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

fn of_linux(group: &mut Group) {
    let mut add = |name: &str, options: String| {
        let name = format!("at_any_point_linux_{name}");
        group.add(name.clone(), move |bench| {
            let run = cloud()?.append("tollgate.run=\"region h hackbench -g 1 -l 20\"").words(&options);
            points(bench, &name, &run, 0, "workload .*: status 0")
        });
    };
    for cpus in [1, 2, 4] {
        add(&format!("{cpus}_processors"), format!("--cpus {cpus}"));
    }
    for (name, mmu) in MMUS {
        add(name, format!("--platform hvm --mmu {mmu}"));
    }
    add("tdp_2_processors", "--platform hvm --mmu tdp --cpus 2".to_owned());
}

fn of_bare_guests(group: &mut Group) {
    let mut add = |name: String, run: Run, pattern: &'static str| {
        let name = format!("at_any_point_{name}");
        group.add(name.clone(), move |bench| {
            bare_guests()?;
            points(bench, &name, &run, 1, pattern)
        });
    };
    for program in ["switch", "syscall", "fault", "cpuid", "undefined", "indirect"] {
        let run = bare(&format!("{program}.elf"), "iterations=20000").words("--memory 16M");
        add(program.to_owned(), run, "^[a-z-]*: [24]0000 iterations");
    }
    let pass = "^kernel: pass";
    let platforms = [("skx", "--cpu skx".to_owned()), ("zen3", "--cpu zen3".to_owned())];
    let hypervisors = MMUS.map(|(name, mmu)| (name, format!("--platform hvm --mmu {mmu}")));
    for (name, options) in platforms.into_iter().chain(hypervisors) {
        for target in TARGETS {
            let stress = kernel(target, "workload=stress iterations=40000").words(&options);
            add(format!("{name}_{target}_page_tables"), stress, pass);
            let hackbench = kernel(target, "workload=hackbench tasks=8 loops=60 kernexec=1").words(&options);
            add(format!("{name}_{target}_hackbench"), hackbench, pass);
        }
    }
    let options = "--platform hvm --mmu shadow --cpu core2 --paravirt on --irqchip user";
    let run = kernel("i386", "workload=hackbench tasks=8 loops=60 paravirt=1").words(options);
    add("paravirtual_hackbench".to_owned(), run, pass);
}

/// Saves a guest at points spread over its run, restores each snapshot, runs it to its end, and compares the ledgers.
fn points(bench: &Bench, name: &str, run: &Run, status: i32, pattern: &str) -> Outcome {
    bench.expect(&run.clone().with("--ledger", bench.file("whole")), status, pattern)?;
    let report = bench.expect(&tollgate("report --top 0").arg(bench.file("whole")), 0, "^virtual time")?;
    let seconds = report.text().lines().find_map(|line| {
        let mut words = line.strip_prefix("virtual time")?.split_whitespace();
        words.next()?.parse::<f64>().ok()
    });
    let seconds = seconds.ok_or_else(|| report.failed("the report has no virtual time"))?;
    let (all, seed) = (number("TOLLGATE_POINTS"), number("TOLLGATE_SEED"));
    let drawn = |what: &str, at: u64| {
        let digest = Sha256::digest(format!("{seed} {name} {what} {at}"));
        u64::from_le_bytes(digest[..8].try_into().expect("a digest has 32 bytes"))
    };
    let tier = |what, at| TIERS[(drawn(what, at) % TIERS.len() as u64) as usize];
    for first in (0..all).step_by(BATCH as usize) {
        let batch = first..all.min(first + BATCH);
        let moment = |at| format!("{:.9}", seconds * (drawn("moment", at) as f64 / 2f64.powi(64)));
        let mut saving = run.clone().with("--tier", tier("saving", first)).with("--ledger", bench.file("saving"));
        for at in batch.clone() {
            saving = saving.with("--save-at", moment(at)).arg(bench.file(&format!("{at}.snapshot")));
        }
        // A moment in the last slice has nothing to save, which the program says with another status.
        if let Err(stop) = bench.expect(&saving, status, pattern) {
            bench.expect(&saving, 126, "it came in the last slice").map_err(|_| stop)?;
        }
        bench.equal("whole", "saving")?;
        for at in batch {
            let snapshot = bench.file(&format!("{at}.snapshot"));
            if std::fs::metadata(&snapshot).map_or(0, |file| file.len()) == 0 {
                continue;
            }
            let restored = run.clone().with("--tier", tier("restored", at)).with("--restore", &snapshot);
            let output = bench.expect(&restored.with("--ledger", bench.file("rest")), status, "")?;
            bench
                .equal("whole", "rest")
                .map_err(|stop| output.failed(&format!("saved at {} s: {stop}", moment(at))))?;
            std::fs::remove_file(snapshot)?;
        }
    }
    Ok(())
}

/// Guests that move to another processor, some of them to the other maker's.
fn moves(group: &mut Group) {
    for target in TARGETS {
        group.add(format!("moved_{target}_with_paravirtual_hypercalls"), move |bench| {
            bare_guests()?;
            let options = "--platform hvm --mmu shadow --cpu core2 --paravirt on --irqchip user";
            let run = kernel(target, "workload=hackbench tasks=8 loops=200 paravirt=1").words(options);
            moved(bench, &run, "0.02", "zen3", 1, "^kernel: pass")
        });
        group.add(format!("moved_{target}_page_tables"), move |bench| {
            bare_guests()?;
            let run =
                kernel(target, "workload=stress iterations=40000").words("--platform hvm --cpu zen3 --mmu shadow");
            moved(bench, &run, "0.02", "zen4 --mmu tdp", 1, "^kernel: pass")
        });
    }
    let linux = [
        ("core2_to_zen3", "--cpu core2", "zen3"),
        ("core2_to_zen3_2_processors", "--cpu core2 --cpus 2", "zen3"),
        ("skx_to_icx", "--cpu skx", "icx"),
        ("skx_to_icx_2_processors", "--cpu skx --cpus 2", "icx --mmu legacy-tdp"),
        ("zen3_to_zen4_shadow", "--cpu zen3 --mmu shadow", "zen4"),
    ];
    for (name, options, to) in linux {
        group.add(format!("moved_linux_{name}"), move |bench| {
            let run = cloud()?.append("tollgate.run=\"region h hackbench -g 1 -l 50\"");
            let run = run.words(&format!("--model flat --platform hvm {options}"));
            moved(bench, &run, "h", to, 0, "workload .*: status 0")
        });
    }
}

/// Saves a guest, and moves it twice, on different tiers: it runs to its end, with equal ledgers. `to` is the processor, and options for it.
fn moved(bench: &Bench, run: &Run, when: &str, to: &str, status: i32, pattern: &str) -> Outcome {
    let snapshot = bench.file("saved.snapshot");
    bench.expect(&run.clone().with("--save-at", when).arg(&snapshot), status, pattern)?;
    for (name, tier) in [("a", "interpreter"), ("b", "auto")] {
        let moved = tollgate("run").with("--restore", &snapshot).words(&format!("--tier {tier} --migrate {to}"));
        bench.expect(&moved.with("--ledger", bench.file(name)), status, pattern)?;
    }
    bench.equal("a", "b")
}

fn refusals(group: &mut Group) {
    group.add("a_moment_that_never_comes_leaves_no_snapshot", |bench| {
        bare_guests()?;
        let snapshot = bench.file("never.snapshot");
        let run = bare("switch.elf", "iterations=1000").words("--save-at nosuch").arg(&snapshot);
        bench.expect(&run, 126, "--save-at nosuch: ")?;
        match std::fs::metadata(&snapshot) {
            Ok(file) if file.len() > 0 => Err(Stop::Failed("there is a snapshot".to_owned())),
            _ => Ok(()),
        }
    });
    group.add("a_snapshot_of_another_kernel_is_refused", |bench| {
        bare_guests()?;
        let snapshot = bench.file("some.snapshot");
        let run = bare("switch.elf", "iterations=1000").words("--save-at 0").arg(&snapshot);
        bench.expect(&run, 1, "^switch: 2000 iterations")?;
        let other = bare("switch.pvh", "iterations=1000").with("--restore", &snapshot);
        bench.expect(&other, 126, "it is of another machine: its kernel").map(drop)
    });
}

/// Moments other than a time: a function, the question for a workload, and a session at the console.
fn moments(group: &mut Group) {
    let machines = [("interpreter", "--cpus 1 --tier interpreter"), ("hvm_2_processors", "--cpus 2 --platform hvm")];
    for (name, options) in machines {
        group.add(format!("at_a_function_{name}"), move |bench| at_a_function(bench, options));
    }
    group.add("a_guest_that_asks_for_its_workload", asks);
    group.add("a_guest_that_does_not_ask_for_its_workload", |bench| {
        let run = cloud()?.append("tollgate.run=true").words("--workload true");
        bench.expect(&run, 126, "the guest has not asked").map(drop)
    });
    group.add("a_session_at_the_console_is_recorded_and_replayed", |bench| {
        let run = cloud()?.append("tollgate.run=shell");
        let record = run.clone().with("--record", bench.file("typed")).with("--ledger", bench.file("a"));
        bench.expect(&record.typed(b"uname -r\nexit 7\n", Duration::from_secs(1)), 7, "status 7")?;
        let replay = run.with("--replay", bench.file("typed")).with("--ledger", bench.file("b"));
        bench.expect(&replay, 7, "status 7")?;
        bench.equal("a", "b")
    });
}

/// The kernel moves itself (KASLR), and start_kernel is executed long before its tables can be found otherwise.
fn at_a_function(bench: &Bench, options: &str) -> Outcome {
    let run = cloud()?.append("tollgate.run=true").words(options);
    let to = |ledger: &str| run.clone().with("--ledger", bench.file(ledger));
    let ended = "workload true: status 0";
    bench.expect(&to("a"), 0, ended)?;
    let (early, late) = (bench.file("early.snapshot"), bench.file("late.snapshot"));
    let saving = to("b").with("--save-at", "start_kernel").arg(&early).with("--save-at", "rest_init+0").arg(&late);
    bench.expect(&saving, 0, ended)?;
    bench.equal("a", "b")?;
    bench.expect(&to("c").with("--restore", early), 0, ended)?;
    bench.equal("a", "c")?;
    // Restored within a function that is never executed from there on.
    let never = run.clone().with("--restore", late).words("--save-at rest_init+0x1").arg(bench.file("never.snapshot"));
    bench.expect(&never, 126, "function was not executed").map(drop)
}

fn asks(bench: &Bench) -> Outcome {
    let run = cloud()?.append("tollgate.run=-").words("--platform hvm");
    let ended = "workload true: status 0";
    let of_true = run.clone().words("--workload true");
    bench.expect(&of_true.clone().with("--ledger", bench.file("a")), 0, ended)?;
    let snapshot = bench.file("asks.snapshot");
    let another = run.clone().with("--workload", "exit 3").words("--save-at workload").arg(&snapshot);
    bench.expect(&another, 3, "status 3")?;
    bench.expect(&of_true.with("--restore", &snapshot).with("--ledger", bench.file("b")), 0, ended)?;
    bench.equal("a", "b")?;
    // The snapshot knows the workload and the other options of the saved run.
    bench.expect(&tollgate("run").with("--restore", &snapshot), 3, "status 3")?;
    bench.expect(&run, 127, "no workload").map(drop)
}
