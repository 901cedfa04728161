//! The demo, four processors, and the full and the backports kernels.

use super::linux::ENDED;
use crate::bench::{Bench, need};
use crate::images::{cloud, disk, initrd, linux, net};
use crate::run::{Run, tollgate};
use crate::test::{Group, Outcome, Stop};

pub fn group() -> Group {
    let mut group = Group::on_request("slow", 1800);
    group.add("demo", |bench| {
        bench.expect(&cloud()?.append("tollgate.run=demo"), 0, "workload demo: status 0").map(drop)
    });
    group.add("four_processors_on_one_of_the_hosts", four_processors);
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
    ended.lacks("warning: without names")?;
    let report = |by: &str| tollgate("report --region pktgen --top 0 --by").words(by).arg(bench.file("a"));
    let symbols = bench.expect(&report("symbol"), 0, r" pktgen_thread_worker \[pktgen\] ")?;
    symbols.shows(r" start_xmit \[virtio_net\] ")?.lacks("^without names .* kernel modules:")?;
    bench.expect(&report("comm"), 0, " kpktgend_0 ")?.lacks("^without names .* tasks:").map(drop)
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
