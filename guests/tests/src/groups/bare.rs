//! Bare-metal programs and the multitasking kernel on the bare processor.

use crate::bench::Wanted;
use crate::images::bare_guests;
use crate::run::{Run, bare, kernel, tollgate};
use crate::test::Group;

/// The kinds of programs of `guests/bare`.
const FORMS: [&str; 2] = ["elf", "pvh"];
/// Targets of the multitasking kernel.
pub const TARGETS: [&str; 3] = ["x86_64", "pae", "i386"];

pub fn group() -> Group {
    let mut group = Group::new("bare", 120);
    programs(&mut group);
    hypervisors(&mut group);
    endings(&mut group);
    kernels(&mut group, "", |run| run);
    group.add("kernel_paravirt_is_refused_without_a_hypervisor", |bench| {
        bare_guests()?;
        bench.expect(&kernel("i386", "iterations=10 paravirt=1"), 1, "i386, plain").map(drop)
    });
    for target in ["x86_64", "i386"] {
        group.add(format!("kernel_{target}_declares_its_tasks"), move |bench| {
            bare_guests()?;
            let ledger = bench.file("ledger");
            let run = kernel(target, "workload=hackbench tasks=8 loops=20 tell-tasks=1").with("--ledger", &ledger);
            bench.expect(&run, 1, "^kernel: pass")?;
            bench.expect(&tollgate("report").arg(ledger).words("--by task"), 0, r"process \([0-9]+\)").map(drop)
        });
    }
    group.add("two_runs_have_equal_ledgers", |bench| {
        bare_guests()?;
        for name in ["a", "b"] {
            let run = bare("switch.elf", "iterations=5000").with("--ledger", bench.file(name));
            bench.expect(&run, 1, "^switch: 10000 iterations")?;
        }
        bench.equal("a", "b")
    });
    group
}

fn programs(group: &mut Group) {
    for form in FORMS {
        for program in ["switch", "syscall", "fault", "cpuid", "undefined"] {
            group.add(format!("{program}_{form}"), move |bench| {
                bare_guests()?;
                let run = bare(&format!("{program}.{form}"), "iterations=1000").words("--cpu skx");
                bench.expect(&run, 1, &format!("^{program}: [12]000 iterations")).map(drop)
            });
        }
        group.add(format!("indirect_{form}"), move |bench| {
            bare_guests()?;
            let run = bare(&format!("indirect.{form}"), "iterations=1000 targets=3").words("--cpu skx");
            bench.expect(&run, 1, "^indirect-retpoline: 1000 iterations").map(drop)
        });
        group.add(format!("power_off_by_acpi_{form}"), move |bench| {
            bare_guests()?;
            let run = bare(&format!("cpuid.{form}"), "iterations=10 exit=acpi");
            bench.expect(&run, 0, "^cpuid: 10 iterations").map(drop)
        });
    }
}

/// Bare-metal programs that are hypervisors themselves.
fn hypervisors(group: &mut Group) {
    group.add("a_hypervisor_and_its_guest", |bench| {
        bare_guests()?;
        bench.expect(&bare("vmx.elf", "count=100").words("--cpu skx"), 1, "^result cpuid [1-9]").map(drop)
    });
    group.add("a_hypervisor_without_ept", |bench| {
        bare_guests()?;
        bench.expect(&bare("vmx.pvh", "count=100 ept=0 osxsave=1").words("--cpu emr"), 1, "without EPT").map(drop)
    });
    let platforms = [("bare", "bare"), ("tdp", "hvm --nested on"), ("shadow", "hvm --nested on --mmu shadow")];
    for (name, platform) in platforms {
        group.add(format!("a_guests_guest_waits_for_ever_{name}"), move |bench| {
            bare_guests()?;
            let run = bare("vmx.elf", "activity=1").words("--platform").words(platform);
            bench.expect(&run, 125, "a guest with").map(drop)
        });
    }
    // Pseudo-random hypervisors see the same on the processor and on a hypervisor, in each mode of that one's memory.
    let modes = [
        ("tdp", "--mmu tdp", ""),
        ("legacy_tdp", "--mmu legacy-tdp", ""),
        ("without_nested_ept", "--nested-ept off", " ept=0"),
        ("shadow", "--mmu shadow", " ept=0"),
    ];
    for (name, mode, more) in modes {
        group.add(format!("pseudo_random_hypervisors_{name}"), move |bench| {
            bare_guests()?;
            let run = bare("vmxrandom.elf", &format!("rounds=100{more}")).words("--cpu skx");
            let wanted = "^vmxrandom: 100 rounds";
            let alone = bench.expect(&run, 1, wanted)?;
            let below = bench.expect(&run.words("--platform hvm --nested on").words(mode), 1, wanted)?;
            match alone.bytes == below.bytes {
                true => Ok(()),
                false => Err(below.failed("the hypervisors see something else than on the processor")),
            }
        });
    }
}

/// Guests that do not end well.
fn endings(group: &mut Group) {
    let mut ends = |name: &str, guest: &'static str, append: &'static str, status: i32, pattern: &'static str| {
        group.add(name, move |bench| {
            bare_guests()?;
            bench.expect(&bare(guest, append), status, pattern).map(drop)
        });
    };
    ends("unhandled_exception", "undefined.elf", "how=unhandled", 127, "unhandled exception 6");
    ends("triple_fault", "triple.elf", "", 125, "[Tt]riple ?[Ff]ault");
    ends("halts_for_ever", "spin.elf", "how=halt", 125, "about to spin");
    group.add("spins_for_ever", |bench| {
        bare_guests()?;
        bench.expect(&bare("spin.elf", "").words("--timeout 5"), 124, "about to spin").map(drop)
    });
    for seed in 1..=5 {
        group.add(format!("garbage_{seed}"), move |bench| {
            bare_guests()?;
            let run = bare("garbage.elf", &format!("seed={seed}")).words("--timeout 5");
            bench.expect(&run, Wanted::AnError, "about to execute garbage").map(drop)
        });
    }
}

/// Adds each workload of the multitasking kernel, short, on each target, plain and in W^X mode, with the options that `with` adds.
pub fn kernels(group: &mut Group, suffix: &str, with: impl Fn(Run) -> Run + Copy + Send + 'static) {
    let mut add = |name: String, target: &'static str, append: String, status: i32, pattern: &'static str| {
        group.add(format!("kernel_{target}_{name}{suffix}"), move |bench| {
            bare_guests()?;
            bench.expect(&with(kernel(target, &append)), status, pattern).map(drop)
        });
    };
    let pass = "^kernel: pass";
    for target in TARGETS {
        for (mode, kernexec) in [("plain", 0), ("kernexec", 1)] {
            let workloads = [
                ("pingpong", "workload=pingpong iterations=200"),
                ("hackbench", "workload=hackbench tasks=8 loops=20"),
                ("hackbench_pipes", "workload=hackbench transport=pipe tasks=8 loops=20"),
                ("ssdd", "workload=ssdd groups=2 iterations=50 child-first=0"),
            ];
            for (name, append) in workloads {
                add(format!("{name}_{mode}"), target, format!("{append} kernexec={kernexec}"), 1, pass);
            }
        }
        add("idle".into(), target, "workload=idle iterations=3".into(), 1, pass);
        add("toggles".into(), target, "workload=toggle".into(), 1, "^result toggle");
        add("protected_data".into(), target, "workload=violate kernexec=1".into(), 127, "exception 14, error 3,");
        add("page_tables".into(), target, "workload=stress iterations=20000".into(), 1, pass);
        if target != "x86_64" {
            add("toggles_without_paging".into(), target, "paging=off".into(), 1, "^result toggle");
        }
    }
}
