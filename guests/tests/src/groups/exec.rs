//! `tollgate exec`: commands of this host in the cloud, backports and full kernels.

use super::network::Served;
use crate::bench::need;
use crate::images::kernel;
use crate::root;
use crate::run::{Run, tollgate};
use crate::test::{Group, Stop};
use sha2::{Digest, Sha256};

const FLAVOURS: [&str; 3] = ["cloud", "backports", "amd64"];

pub fn group() -> Group {
    let mut group = Group::on_request("exec", 900);
    for flavour in FLAVOURS {
        group.add(format!("{flavour}_boots_and_shares_the_boot"), move |bench| {
            bench.expect(&exec(flavour)?.words("--boot -- sh -c").arg("uname -s; exit 3"), 3, "^Linux")?;
            bench.expect(&exec(flavour)?.words("-- echo hello"), 0, "^hello").map(drop)
        });
        group.add(format!("{flavour}_has_the_hosts_files"), move |bench| {
            let file = root().join("README.md");
            let digest = Sha256::digest(std::fs::read(&file)?);
            let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            let run = exec(flavour)?.words("--root -- sha256sum").arg(file);
            bench.expect(&run, 0, &format!("^{digest}")).map(drop)
        });
        group.add(format!("{flavour}_panics"), move |bench| {
            let run = exec(flavour)?.words("--user root -- sh -c").arg("echo c >/proc/sysrq-trigger");
            bench.expect(&run, 123, "Kernel panic - not syncing").map(drop)
        });
        group.add(format!("{flavour}_wants_memory"), move |bench| {
            let run = exec(flavour)?.words("-m 256M -- sh -c").arg("tail /dev/zero");
            bench.expect(&run, 120, "Out of memory").map(drop)
        });
    }
    group.add("call_stacks_are_those_of_gdb_in_both_tiers", |bench| {
        kernel("cloud")?;
        ["gdb", "gcc", "python3"].into_iter().try_for_each(need)?;
        let run = Run::new(root().join("scripts/compare-stacks")).words("--kernel cloud");
        bench.expect(&run, 0, "^ok .*python").map(drop)
    });
    group.add("validate_measures_paths_and_programs_in_the_guest", |bench| {
        kernel("cloud")?;
        let run = tollgate("validate --quick --json --kernel cloud");
        bench.expect(&run, 0, "(?s)\"getppid\".*\"fork, exec and exit\".*\"gzip\"").map(drop)
    });
    group.add("a_command_is_counted", |bench| {
        kernel("cloud")?;
        let run = tollgate("stat -r 2 --kernel cloud -- sh -c").arg("echo; echo");
        let line = r"^ +[0-9,]+  instructions +# +[0-9.]+  insn per cycle +\( \+- ";
        bench.expect(&run, 0, line).map(drop)
    });
    group.add("entries_to_the_kernel_have_the_names_of_system_calls", |bench| {
        kernel("cloud")?;
        let run = tollgate("exec --kernel cloud --ledger entries.ledger -- sh -c").arg("kill -0 $$");
        bench.expect(&run, 0, "")?;
        let report = tollgate("report entries.ledger --region exec --by entry --top 0");
        bench.expect(&report, 0, r"  kill$").map(drop)
    });
    group.add("the_hosts_network", |bench| {
        ["passt", "curl"].into_iter().try_for_each(need)?;
        let server = Served::start(b"something to fetch\n".to_vec())?;
        let run = exec("cloud")?.words("--net user -- curl -s").arg(format!("http://10.0.2.2:{}/file", server.port));
        bench.expect(&run, 0, "something to fetch").map(drop)
    });
    group
}

fn exec(flavour: &str) -> Result<Run, Stop> {
    kernel(flavour)?;
    Ok(tollgate("exec --kernel").words(flavour))
}
