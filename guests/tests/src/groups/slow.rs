//! The demo, four processors, and the full and the backports kernels.

use super::linux::ENDED;
use crate::bench::{Bench, need};
use crate::images::{cloud, disk, initrd, kernel, linux, net};
use crate::run::{Run, tollgate};
use crate::test::{Group, Outcome, Stop};

pub fn group() -> Group {
    let mut group = Group::on_request("slow", 1800);
    group.add("demo", |bench| {
        bench.expect(&cloud()?.append("tollgate.run=demo"), 0, "workload demo: status 0").map(drop)
    });
    group.add("four_processors_on_one_of_the_hosts", four_processors);
    group.add("microcode_is_there_unless_it_is_left_out", |bench| {
        kernel("cloud")?;
        let states = |cpu: &str| {
            let exec = tollgate("exec --kernel cloud --model flat --cpu").words(cpu).words("-- sh -c");
            exec.arg("grep -H . /sys/devices/system/cpu/vulnerabilities/*")
        };
        for cpu in ["hsw", "skx", "clx", "icx", "spr", "emr", "max", "zen3", "zen4"] {
            bench.expect(&states(cpu), 0, "/spectre_v2:Mitigation")?.lacks("(?i)no microcode|:Vulnerable")?;
        }
        bench.expect(&states("skx,unpatched"), 0, "/mds:Vulnerable: .*no microcode").map(drop)
    });
    for (name, options) in [
        ("flat", "--cpu skx,pmu --model flat"),
        ("core", "--cpu skx,pmu --model core"),
        ("amd", "--cpu zen3,pmu --model core"),
    ] {
        group.add(format!("perf_counts_in_the_guest_{name}"), move |bench| perf_stat(bench, options));
        group.add(format!("perf_samples_on_both_tiers_{name}"), move |bench| perf_record(bench, options));
    }
    // The newest kernels that packages offer: those of the next release's backports, and those that are tried before a release.
    for (name, flavour) in [("backports", "cloud@trixie-backports"), ("candidate", "cloud@experimental")] {
        group.add(format!("the_newest_kernel_s_modules_and_tasks_have_names_{name}"), move |bench| {
            names(bench, flavour)
        });
    }
    group.add("backports_kernel", |bench| {
        let run = linux("backports", initrd()?)?.append("tollgate.run=none");
        bench.expect(&run, 0, "workload none: status 0").map(drop)
    });
    group.add("full_kernel_with_an_ext4_root_disk", |bench| {
        let (disk, initrd) = disk()?;
        // The guest writes to the disk.
        let copy = bench.file("root.img");
        std::fs::copy(disk, &copy)?;
        let append = "root=/dev/vda tollgate.run=\"df; region h hackbench -g 1 -l 20\"";
        bench.expect(&linux("amd64", initrd)?.with("--disk", copy).append(append), 0, ENDED).map(drop)
    });
    group
}

/// Checks that a kernel with modules on its network's path names them and its tasks, and warns of nothing.
fn names(bench: &Bench, flavour: &str) -> Outcome {
    let run =
        linux(flavour, net(flavour)?)?.words("--net sink --json").append("tollgate.run=pktgen tollgate.frames=500");
    let ended = bench.expect(&run.with("--ledger", bench.file("a")), 0, r#""unnamed":\[\]"#)?;
    ended.lacks("warning: .* without names")?;
    let report = |by: &str| tollgate("report --region pktgen --top 0 --by").words(by).arg(bench.file("a"));
    let symbols = bench.expect(&report("symbol"), 0, r" pktgen_thread_worker \[pktgen\] ")?;
    symbols.shows(r" start_xmit \[virtio_net\] ")?.lacks("^without names .* kernel modules:")?;
    bench.expect(&report("comm"), 0, " kpktgend_0 ")?.lacks("^without names .* tasks:").map(drop)
}

/// A command that executes user code for some time.
const COMMAND: &str = "i=0; while [ $i -lt 5000 ]; do i=$((i+1)); done";

/// Runs perf in a guest with performance counters.
fn perf(bench: &Bench, ledger: &str, options: &str, words: &str) -> Result<Run, Stop> {
    need("perf")?;
    kernel("cloud")?;
    let exec = tollgate("exec --kernel cloud --user root").words(options).with("--ledger", bench.file(ledger));
    Ok(exec.words("-- perf").words(words).arg(COMMAND))
}

/// Checks that `perf stat` in the guest counts what the ledger has.
fn perf_stat(bench: &Bench, options: &str) -> Outcome {
    let run = perf(bench, "a", options, "stat -x, -e instructions:u,cycles:u,branches:u -- /bin/sh -c")?;
    let output = bench.expect(&run, 0, "^[0-9]+,,instructions:u,")?;
    let counted = output.text();
    let count = |event: &str| -> f64 {
        let line = counted.lines().find(|line| line.contains(&format!(",,{event},")));
        line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or_default()
    };
    let report = tollgate("report --region exec --task sh --by ring").arg(bench.file("a"));
    let ledger = bench.expect(&report, 0, " ring 3 ")?;
    let text = ledger.text();
    let line = text.lines().find(|line| line.contains(" ring 3 ")).unwrap_or_default();
    let figures: Vec<f64> =
        line.split_whitespace().filter_map(|word| word.replace(',', "").parse().ok()).take(2).collect();
    for (event, figure) in ["cycles:u", "instructions:u"].into_iter().zip(figures) {
        // The ledger also has the steps of repeated strings, and what the task executes before perf enables the counters.
        if (count(event) / figure - 1.0).abs() > 0.005 {
            return Err(ledger.failed(&format!("perf counts {} {event}, the ledger has {figure}", count(event))));
        }
    }
    if count("branches:u") < count("instructions:u") / 20.0 {
        return Err(output.failed("there are too few branches"));
    }
    Ok(())
}

/// Checks that `perf record` in the guest takes the same samples on both tiers, as often as the counter overflows.
fn perf_record(bench: &Bench, options: &str) -> Outcome {
    for (event, period) in [("cycles", "100000"), ("instructions:u", "50000")] {
        let words = format!("record -o - -e {event} -c {period} -- /bin/sh -c");
        for (tier, ledger) in [("interpreter", "a"), ("translator", "b")] {
            let run = perf(bench, ledger, &format!("{options} --tier {tier}"), &words)?;
            bench.expect(&run, 0, "perf record: Captured")?;
        }
        bench.equal("a", "b")?;
        let report = tollgate("report --by kind --top 0").arg(bench.file("a"));
        bench.expect(&report, 0, r" [1-9][0-9]{2,} .* NMI$")?;
    }
    Ok(())
}

/// Checks that the number of host processors does not matter to a run.
fn four_processors(bench: &Bench) -> Outcome {
    need("taskset")?;
    let run = cloud()?.words("--cpus 4").append("tollgate.run=smp");
    let output = bench.expect(&run.clone().with("--ledger", bench.file("a")), 0, "processors: 4")?;
    output.shows("workload smp: status 0")?;
    let status = std::fs::read_to_string("/proc/self/status")?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let first = allowed.and_then(|list| list.trim().split([',', '-']).next());
    let first = first.ok_or_else(|| Stop::Failed("/proc/self/status names no processors".to_owned()))?;
    let pinned = Run::new("taskset").words("-c").arg(first).words("nice -n 10").arg(&run.program).and(&run);
    bench.expect(&pinned.with("--ledger", bench.file("b")), 0, "workload smp: status 0")?;
    bench.equal("a", "b")
}
