//! Linux with KVM and QEMU, and their guests.

use crate::bench::Bench;
use crate::images::{linux, modules, nested, nested_with};
use crate::run::{Run, tollgate};
use crate::test::{Group, Outcome, Stop};

/// What the machine inside runs.
const INSIDE: &str = "tollgate.inner=\"region h hackbench -g 1 -l 20\"";

/// Two commands, of which the first one prints two lines: `echo "one` and `two"`, `sh -c "exit 5"`.
const ANY_BYTES: &str = "ZWNobyAib25lCnR3byIKc2ggLWMgImV4aXQgNSIK";

pub fn group() -> Group {
    let mut group = Group::on_request("nested", 1800);
    group.add("kvm_says_that_a_processor_has_no_vmx", |bench| {
        let run = linux("cloud", nested()?)?.words("--memory 1G --cpu zen3").append("tollgate.run=kvmsmoke");
        bench.expect(&run, 1, "this processor has no VMX").map(drop)
    });
    let modes =
        [("ept", ""), ("without_unrestricted_guest", "kvm_intel.unrestricted_guest=0"), ("shadow", "kvm_intel.ept=0")];
    for (name, parameters) in modes {
        group.add(format!("a_processor_in_real_and_long_mode_{name}"), move |bench| {
            let run = host("1G")?.append(&format!("tollgate.run=kvmsmoke tollgate.count=500 {parameters}"));
            bench.expect(&run, 0, "long mode: 500 CPUID exits").map(drop)
        });
    }
    for (name, parameters) in [("ept", ""), ("shadow", "kvm_intel.ept=0")] {
        group.add(format!("linux_inside_{name}"), move |bench| {
            bench.expect(&inside(parameters)?, 0, "workload l2: status 0").map(drop)
        });
    }
    group.add("linux_inside_without_apicv_twice_with_names_of_its_functions", twice);
    let modes = [("ept", ""), ("without_nested_ept", "--nested-ept off"), ("shadow", "--mmu shadow")];
    for (name, mode) in modes {
        group.add(format!("linux_inside_on_the_hypervisor_with_names_of_its_functions_{name}"), move |bench| {
            let run = inside("")?.words("--platform hvm --nested on").words(mode).with("--ledger", bench.file("a"));
            bench.expect(&run, 0, "workload l2: status 0")?;
            let report = |options: &str| tollgate("report").words(options).arg(bench.file("a"));
            let symbols = report("--level 2 --by symbol --top 0");
            let output = bench.expect(&symbols, 0, r"copy_[a-z_]*user[a-z_]* \[guest\]")?;
            output.lacks("^without names .*guest's kernel:")?;
            tasks_inside(bench, &report)?;
            let exits = bench.expect(&report("--by exit"), 0, "nested guest to hypervisor  VM exit")?;
            exits.shows("nested guest to guest  *VM exit CPUID")?.shows(" guest to hypervisor  *VM exit").map(drop)
        });
    }
    group.add("a_command_of_any_bytes_inside", |bench| {
        let run = host("1G")?.append(&format!("tollgate.run=l2 tollgate.inner-base64={ANY_BYTES}"));
        bench.expect(&run, 5, "workload l2: status 5").map(drop)
    });
    group.add("scripts_and_a_program_of_the_user_at_each_level", scripts_of_the_user);
    group.add("a_module_that_linux_inside_loads_has_names", module_inside);
    let cut = [
        ("inside", "tollgate.run=l2 tollgate.inner", 1, "a value cannot have quotation marks within it"),
        ("of_the_first_process", "tollgate.run", 127, "tollgate.run= is cut"),
    ];
    for (name, parameter, status, message) in cut {
        group.add(format!("a_command_that_linux_would_cut_{name}"), move |bench| {
            let run = host("1G")?.append(&format!("{parameter}=\"sh -c \"exit 3; echo hi\"\""));
            bench.expect(&run, status, message).map(drop)
        });
    }
    for processors in [1, 2] {
        group.add(format!("two_processors_inside_on_{processors}"), move |bench| {
            let run = host("1G")?.with("--cpus", processors.to_string());
            let output =
                bench.expect(&run.append(&format!("tollgate.run=l2smp {INSIDE}")), 0, r"l2\| .*processors: 2")?;
            output.shows("workload l2smp: status 0").map(drop)
        });
    }
    group.add("two_levels_inside", |bench| {
        let run = host("2560M")?.append("tollgate.run=l3 tollgate.inner=none kvm_intel.nested=1");
        bench.expect(&run, 0, r"l2\| l3\| tollgate: workload none: status 0").map(drop)
    });
    group
}

fn host(memory: &str) -> Result<Run, Stop> {
    Ok(linux("cloud", nested()?)?.words("--cpu skx").with("--memory", memory))
}

fn inside(parameters: &str) -> Result<Run, Stop> {
    Ok(host("1G")?.append(&format!("tollgate.run=l2 {INSIDE} {parameters}")))
}

fn twice(bench: &Bench) -> Outcome {
    for name in ["a", "b"] {
        let run = inside("kvm_intel.enable_apicv=0")?.with("--ledger", bench.file(name));
        bench.expect(&run, 0, "workload l2: status 0")?;
    }
    bench.equal("a", "b")?;
    let report = |options: &str| tollgate("report").words(options).arg(bench.file("a"));
    bench.expect(&report("--level 1 --by symbol --top 0"), 0, r"copy_[a-z_]*user[a-z_]* \[guest\]")?;
    tasks_inside(bench, &report)?;
    bench.expect(&report("--by exit"), 0, " guest to host  *VM exit CPUID").map(drop)
}

/// Runs a script with quotes of all kinds in L1, which starts L2 with another one, with a file of data and a program of this host.
fn scripts_of_the_user(bench: &Bench) -> Outcome {
    let file = |name: &str, text: &str| {
        let path = bench.file(name);
        std::fs::write(&path, text)?;
        Ok::<_, Stop>(path.to_string_lossy().into_owned())
    };
    let host = file("host.sh", ". /lib/hosting.sh\nload_kvm\nl2\necho \"l2 ends with $?, 'a' \\\"b\\\"\"\nexit 7\n")?;
    let guest = file("guest.sh", "cat /bin/data\nenv -i /bin/factor 221\nexit 5\n")?;
    let data = file("data", "$data `of` \"the\" user\n")?;
    let factor = ["/usr/bin/factor", "/bin/factor"].into_iter().find(|program| std::path::Path::new(program).exists());
    let factor = factor.ok_or_else(|| Stop::Skipped("this host has no program 'factor'".to_owned()))?;
    let image = bench.file("initramfs.cpio").to_string_lossy().into_owned();
    let options = ["--to", &image, "--l1", &host, "--l2", &guest, "--l2-file", &data, "--l2-file", factor];
    let run = linux("cloud", nested_with(&options)?)?.words("--cpu skx --memory 1G").append("tollgate.run=mine");
    let output = bench.expect(&run, 7, "l2 ends with 5, 'a' \"b\"")?;
    output.shows(r#"l2\| \$data `of` "the" user"#)?.shows(r"l2\| 221: 13 17").map(drop)
}

/// Loads a module in L2, which ends soon afterwards. When it is loaded, the module measures its functions.
fn module_inside(bench: &Bench) -> Outcome {
    let module = modules("cloud")?.join("kernel/lib/raid6/raid6_pq.ko").to_string_lossy().into_owned();
    let guest = bench.file("guest.sh");
    std::fs::write(&guest, "insmod /bin/raid6_pq.ko\n")?;
    let [image, guest] = [bench.file("initramfs.cpio"), guest].map(|file| file.to_string_lossy().into_owned());
    let options = ["--to", &image, "--l2", &guest, "--l2-file", &module];
    let run = linux("cloud", nested_with(&options)?)?.words("--cpu skx --memory 1G").with("--ledger", bench.file("a"));
    bench.expect(&run.append("tollgate.run=l2"), 0, "workload l2: status 0")?;
    let symbols = tollgate("report --level 1 --by symbol --top 0").arg(bench.file("a"));
    bench.expect(&symbols, 0, r" raid6_[a-z0-9_]* \[guest raid6_pq\] ").map(drop)
}

/// Checks that tasks and interrupts of the Linux inside are told from those of its host.
fn tasks_inside(bench: &Bench, report: &impl Fn(&str) -> Run) -> Outcome {
    let tasks = bench.expect(&report("--by comm --top 0"), 0, r" hackbench \[guest\] ")?;
    tasks.shows(r" qemu-system-x86 ")?.shows(r" swapper/0 \[guest\] ")?.shows(r" \[guest interrupts\] ").map(drop)
}
