//! Linux boots from the distribution's packages.

use crate::bench::Bench;
use crate::images::{cloud, initrd, kernel, kernexec, linux};
use crate::run::tollgate;
use crate::test::{Group, Outcome};
use std::time::Duration;

/// A workload that ends with status 0.
pub const ENDED: &str = "workload .*: status 0";
/// Runs hackbench in a region.
pub const HACKBENCH: &str = "tollgate.run=\"region h hackbench -g 1 -l 20\"";

pub fn group() -> Group {
    let mut group = Group::new("linux", 900);
    group.add("two_runs_have_equal_ledgers_that_name_tasks", two_runs);
    group.add("toggles_of_cr0_wp", |bench| {
        let run = linux("cloud", kernexec()?)?.append("tollgate.run=kernexec tollgate.steps=100");
        bench.expect(&run, 0, "tollgate: [0-9]+ toggles of CR0.WP").map(drop)
    });
    group.add("processors_counters_agree_on_zen3", |bench| {
        // The brackets keep the kernel's print of its command line from the match.
        let script = "grep tsc /sys/devices/system/clocksource/clocksource0/current_clocksource && \
                      ! busybox dmesg | grep -E 'TSC [w]arp|Firmware [B]ug'";
        let run = cloud()?.words("--cpu zen3 --cpus 4").append(&format!("tollgate.run=\"{script}\""));
        bench.expect(&run, 0, ENDED).map(drop)
    });
    endings(&mut group);
    consoles(&mut group);
    group
}

fn two_runs(bench: &Bench) -> Outcome {
    let run = cloud()?.append(HACKBENCH);
    bench.expect(&run.clone().with("--ledger", bench.file("a")), 0, ENDED)?;
    bench.expect(&run.with("--ledger", bench.file("b")), 0, ENDED)?;
    bench.equal("a", "b")?;
    let report = tollgate("report --by comm --top 0").arg(bench.file("a"));
    // The kernel's threads are outside of the region.
    bench.expect(&report, 0, "kthreadd")?;
    let region = bench.expect(&report.words("--region h"), 0, "^Tasks by name")?;
    let text = region.text();
    // A row of the table begins with a share and a number of cycles; other lines continue the last column of one.
    let number = |word: &str| word.chars().all(|c| c.is_ascii_digit() || c == ',');
    let rows = text.lines().skip_while(|line| !line.starts_with("Tasks by name")).filter(|line| {
        let mut words = line.split_whitespace();
        words.next().is_some_and(|share| share.ends_with('%')) && words.next().is_some_and(number)
    });
    let rows: Vec<String> = rows.map(|row| format!("{row} ")).collect();
    let has = |row: &String, name: &str| row.contains(&format!(" {name} "));
    if !rows.iter().any(|row| has(row, "hackbench")) {
        return Err(region.failed("hackbench is not in its region"));
    }
    // The shell's and the tool's part before hackbench, and what interrupts it.
    let expected = ["hackbench", "region", "[interrupts]", "[soft interrupts]"];
    match rows.iter().find(|row| !expected.iter().any(|name| has(row, name))) {
        Some(row) => Err(region.failed(&format!("the region has another task:{row}"))),
        None => Ok(()),
    }
}

/// The exit statuses of runs by the guest's ending.
fn endings(group: &mut Group) {
    const CRASH: &str = "tollgate.run=\"echo c > /proc/sysrq-trigger\"";
    let mut ends = |name: &str, status: i32, pattern: &'static str, append: String, options: &'static str| {
        group.add(format!("ends_by_{name}"), move |bench| {
            bench.expect(&cloud()?.append(&append).words("--json").words(options), status, pattern).map(drop)
        });
    };
    let crash = |with: &str| format!("{with} {CRASH}");
    let panic = r#""reason":"panic""#;
    ends("a_workload_that_fails", 7, r#""workload_status":7"#, "tollgate.run=\"exit 7\"".into(), "");
    ends("a_signal_to_the_workload", 137, "status 137", "tollgate.run=\"kill -9 $$\"".into(), "--platform hvm");
    ends("a_panic_that_resets", 123, panic, crash("panic=-1"), "");
    ends("a_panic_that_resets_hvm_2_processors", 123, panic, crash("panic=3"), "--platform hvm --cpus 2");
    ends("a_panic_by_triple_fault", 123, panic, crash("panic=-1 reboot=t"), "--platform hvm --mmu shadow");
    ends("a_panic_that_waits", 123, panic, crash("panic=0"), "--cpus 2");
    let text = "tollgate.run=\"echo ---[ end Kernel panic - not syncing: x; sleep 1; exit 5\"";
    ends("a_workload_that_prints_a_panic", 5, r#""reason":"power-off""#, text.into(), "");
    let reboot = "tollgate.run=\"busybox reboot -f\"";
    ends("a_reboot", 0, r#""reason":"reboot""#, reboot.into(), "--platform hvm");
    ends("a_reboot_by_triple_fault", 0, r#""reason":"reboot""#, format!("reboot=t {reboot}"), "");
}

/// A script in a pipe, on each console.
fn consoles(group: &mut Group) {
    const SCRIPT: &[u8] = b"uname -r\nexit 7\n";
    group.add("a_script_in_a_pipe", |bench| {
        let run = cloud()?.append("tollgate.run=shell").typed(SCRIPT, Duration::ZERO);
        bench.expect(&run, 7, "^# exit 7|/ # exit 7").map(drop)
    });
    group.add("a_script_in_a_pipe_to_a_console_without_a_driver", |bench| {
        let run = cloud()?.with("--append", "console=hvc0 quiet tollgate.run=shell").typed(SCRIPT, Duration::ZERO);
        bench.expect(&run, 7, "workload shell: status 7").map(drop)
    });
    group.add("a_script_in_a_pipe_to_hvc0", |bench| {
        let run =
            tollgate("run --platform hvm --cpus 2").with("--kernel", kernel("backports")?).with("--initrd", initrd()?);
        let run = run.with("--append", "console=hvc0 quiet tollgate.run=shell").typed(SCRIPT, Duration::ZERO);
        bench.expect(&run, 7, "exit 7").map(drop)
    });
}
