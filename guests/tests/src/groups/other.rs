//! Software that is not Linux (memtest86+, Xen with a Linux dom0, iPXE), and firmware's tables as dmidecode reads them.

use super::linux::ENDED;
use crate::bench::Bench;
use crate::images::{initrd, kernel, linux, other};
use crate::run::{Run, tollgate};
use crate::test::{Group, Outcome, Stop};

pub fn group() -> Group {
    let mut group = Group::on_request("other", 1800);
    group.add("memtest_tests_0_to_9_on_both_tiers", memtest);
    group.add("memtest_a_whole_pass", |bench| {
        bench.expect(&memtest_run("translator", 200)?, 124, "Pass: +1 +Errors: 0").map(drop)
    });
    let platforms = [("bare_2_processors", "bare --cpus 2"), ("tdp", "hvm --mmu tdp"), ("shadow", "hvm --mmu shadow")];
    for (name, platform) in platforms {
        group.add(format!("xen_with_a_linux_dom0_{name}"), move |bench| {
            let dom0 =
                format!("{} console=hvc0 quiet tollgate.run=\"hackbench -g 1 -l 20\"", kernel("amd64")?.display());
            let run = tollgate("run").with("--kernel", other("xen")?).with("--append", "com1=115200,8n1 console=com1");
            let run =
                run.with("--initrd", format!("{dom0},{}", initrd()?.display())).words("--platform").words(platform);
            bench.expect(&run, 0, ENDED)?.shows("Entering ACPI S5").map(drop)
        });
    }
    group.add("ipxe_is_refused_with_the_reason", |bench| {
        bench.expect(&tollgate("run").with("--kernel", other("ipxe")?), 126, "calls a BIOS").map(drop)
    });
    group.add("linux_in_64_mib_is_refused_with_the_reason", |bench| {
        let run = tollgate("run --memory 64M").with("--kernel", kernel("cloud")?);
        bench.expect(&run, 126, "give it 68 MiB or more").map(drop)
    });
    group.add("dmidecode_reads_firmwares_tables", |bench| {
        let run = linux("cloud", other("dmidecode")?)?.append("tollgate.run=dmidecode");
        let output = bench.expect(&run, 0, "Product Name: PC")?;
        output.lacks("(?i)bad index|invalid|truncated|wrong|broken|out of spec|checksum").map(drop)
    });
    group
}

/// Tests 0 to 9 of memtest86+ take some seconds of virtual time with little memory; the tenth waits for 160.
fn memtest_run(tier: &str, limit: u32) -> Result<Run, Stop> {
    let run = tollgate("run --memory 8M --append console=ttyS0,115200").with("--kernel", other("memtest")?);
    Ok(run.with("--tier", tier).with("--limit", limit.to_string()))
}

fn memtest(bench: &Bench) -> Outcome {
    for tier in ["interpreter", "translator"] {
        let run = memtest_run(tier, 15)?.with("--ledger", bench.file(tier));
        bench.expect(&run, 124, r"#10 \[Bit fade")?.lacks("Errors: +[1-9]")?;
    }
    bench.equal("interpreter", "translator")
}
