//! `--backend kvm`, in a Linux with KVM on this program: no hardware is needed.

use crate::bench::Bench;
use crate::images::{bare_guests, linux, nested_tollgate};
use crate::run::{Run, bare, tollgate};
use crate::test::{Group, Outcome, Stop};

/// Guests of the workload `tollgate`, and their exit statuses.
const GUESTS: [(i32, &str); 17] = [
    (1, "switch.pvh"),
    (1, "syscall.pvh"),
    (1, "fault.elf"),
    (1, "cpuid.elf"),
    (1, "undefined.elf"),
    (1, "indirect.pvh"),
    (0, "power off"),
    (125, "triple fault"),
    (125, "halt"),
    (124, "spin"),
    (126, "profile"),
    (1, "kernel x86_64"),
    (1, "kernel x86_64 idle"),
    (1, "kernel pae"),
    (1, "kernel pae idle"),
    (1, "kernel i386"),
    (1, "kernel i386 idle"),
];

pub fn group() -> Group {
    let mut group = Group::on_request("kvm", 1800);
    let refused = [
        ("a_profile", "--cpu skx"),
        ("a_clock", "--clock virtual"),
        ("a_tier", "--tier interpreter"),
        ("a_platform", "--platform hvm"),
        ("a_debugger", "--gdb 1234"),
        ("a_snapshot", "--save-at 1 never.snapshot"),
    ];
    for (name, option) in refused {
        group.add(format!("{name}_is_refused_with_the_reason"), move |bench| {
            bare_guests()?;
            let run = bare("switch.pvh", "").words("--backend kvm").words(option);
            bench.expect(&run, 2, "or use --backend software").map(drop)
        });
    }
    group.add("backend_auto_with_a_ledger_is_not_kvm", |bench| {
        bare_guests()?;
        let run = bare("switch.pvh", "iterations=10").words("--backend auto").with("--ledger", bench.file("ledger"));
        bench.expect(&run, 1, "^switch: 20 iterations")?;
        bench.expect(&tollgate("report").arg(bench.file("ledger")), 0, "")?.lacks("^backend").map(drop)
    });
    group.add("bare_metal_guests", |bench| {
        let run = host()?.append("tollgate.run=tollgate tollgate.cpus=none");
        let output = bench.expect(&run, 0, "workload tollgate: status 0")?;
        let shows =
            |output, (status, guest)| crate::bench::Output::shows(output, &format!("^kvm: {guest}: status {status}"));
        GUESTS.into_iter().try_fold(output, shows).map(drop)
    });
    group.add("linux_on_1_and_2_processors", linux_inside);
    group.add("a_panic_that_waits", |bench| {
        let append = "tollgate.run=tollgate tollgate.guests=none tollgate.append=panic=0 \
                      tollgate.inner=\"echo c >/proc/sysrq-trigger\"";
        bench.expect(&host()?.append(append), 123, "^kvm: Linux, 1: status 123").map(drop)
    });
    group
}

fn host() -> Result<Run, Stop> {
    bare_guests()?;
    Ok(linux("cloud", nested_tollgate()?)?.words("--memory 1G --cpu skx"))
}

fn linux_inside(bench: &Bench) -> Outcome {
    let append = "tollgate.run=tollgate tollgate.guests=none tollgate.cpus=\"1 2\" \
                  tollgate.inner=\"nproc; hackbench -g 1 -l 20\"";
    let mut output = bench.expect(&host()?.append(append), 0, "workload tollgate: status 0")?;
    for pattern in
        ["^kvm: Linux, 1: status 0", "^kvm: Linux, 2: status 0", "^kvm counters .*exits [1-9]", "OUT 0x3f8 COM1"]
    {
        output = output.shows(pattern)?;
    }
    // Names of the guest's functions.
    output.shows("native_write_msr|io_serial_out|default_idle|native_apic_mem_write|acpi_idle").map(drop)
}
