//! `tollgate exec`: commands of this host in the cloud, backports and full kernels.

use super::network::Served;
use crate::bench::{Bench, need};
use crate::images::kernel;
use crate::root;
use crate::run::{Run, program, tollgate};
use crate::test::{Group, Outcome, Stop};
use sha2::{Digest, Sha256};
use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

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
        let mut output = bench.expect(&run, 0, "\"getppid\"")?;
        for name in ["fork, exec and exit", "gzip"] {
            output = output.shows(&format!("\"{name}\""))?;
        }
        Ok(())
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
    group.add("commands_join_a_running_guest", commands_join);
    group
}

/// Commands join a guest by its socket, which is in a directory of this test's own.
fn commands_join(bench: &Bench) -> Outcome {
    kernel("cloud")?;
    let sockets = bench.file("tollgate");
    let own = |words: &str| {
        let place = bench.file("").into_os_string().into_string().expect("a temporary directory has a simple name");
        Run::new("env").arg(format!("XDG_RUNTIME_DIR={place}")).arg(program()).arg("exec").words(words)
    };
    let join = |words: &str, script: &str| own("--join").words(words).words("-- sh -c").arg(script);
    let none = "no guest that can be joined runs";
    bench.expect(&join("", "true"), 126, none)?;
    let script = "echo made >/tmp/made; while [ ! -e /tmp/stop ]; do sleep 0.05; done; echo first ended";
    let first = own("--kernel cloud --model flat --joinable --ledger joined.ledger --add cat -- sh -c").arg(script);
    let guest = bench.start(&first)?;
    bench.until(|| bench.expect(&join("", "cat /tmp/made"), 0, "^made$").is_ok(), "the guest is joined")?;
    // Streams, status, surroundings.
    bench.expect(&join("", "echo out; echo err >&2; exit 7"), 7, "^out$")?.shows("^err$")?;
    bench.expect(&join("--env A=set --cwd /tmp --user 7:8", "echo $A $(pwd)"), 0, "^set /tmp$")?;
    bench.expect(&join("", "cat; echo read").typed(b"typed\n", Duration::ZERO), 0, "^typed$")?.shows("^read$")?;
    bench.expect(&join("", "kill -TERM $$"), 143, "")?;
    bench.expect(&own("--join -- no-such-program"), 127, "No such file or directory in the guest")?;
    bench.expect(&own("--join --memory 1G -- true"), 2, "'--memory <SIZE>'")?;
    bench.expect(&join("1", "true"), 126, "no guest 1 that can be joined runs")?;
    bench.expect(&join("one", "true"), 2, "a guest's number is expected")?;
    let several = (0..4).map(|number| bench.start(&join("", &format!("sleep 0.2; echo number {number}"))));
    for (number, started) in several.collect::<Vec<_>>().into_iter().enumerate() {
        bench.expect_of(started?, 0, &format!("^number {number}$"))?;
    }
    // What makes no sense ends the join alone, and who goes away hangs up.
    let names = || std::fs::read_dir(&sockets).into_iter().flatten().flatten().map(|entry| entry.path());
    let socket = names().next().ok_or_else(|| Stop::Failed("the guest has no socket".into()))?;
    for bytes in [&[0xff; 1 << 16][..], b"v\x01\0\0\x001a\x02\0\0\0shg\0\0\0\0i\xff", b""] {
        UnixStream::connect(&socket)?.write_all(bytes)?;
        bench.expect(&join("", "echo here"), 0, "^here$")?;
    }
    // Connections without a command take no place of one.
    let idle = (0..40).map(|_| UnixStream::connect(&socket)).collect::<Result<Vec<_>, _>>()?;
    bench.expect(&join("", "echo here"), 0, "^here$")?;
    drop(idle);
    // A guest whose process is stopped is not waited for, and goes on as if nobody had come.
    let id = socket.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let signal = |name: &str| bench.expect(&Run::new("kill").arg(name).arg(&id), 0, "").map(drop);
    signal("-STOP")?;
    bench.expect(&join("", ": >/tmp/stop"), 126, "the guest's process is stopped")?;
    signal("-CONT")?;
    bench.expect(&join("", "[ ! -e /tmp/stop ] && echo here"), 0, "^here$")?;
    // With a second guest, the number is needed.
    let other = bench.start(&own("--kernel cloud --model flat --joinable -- sh -c").arg(script))?;
    bench.until(|| names().count() == 2, "a second guest listens")?;
    bench.expect(&join("", "true"), 2, "needs the number of one of these guests")?.shows("--joinable --ledger")?;
    for path in names() {
        let id = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        bench.until(|| bench.expect(&join(&id, "true"), 0, "").is_ok(), "each of the guests is joined")?;
        if path != socket {
            bench.expect(&join(&id, ": >/tmp/stop"), 0, "")?;
        }
    }
    bench.expect_of(other, 0, "^first ended$")?;
    bench.until(|| names().count() == 1, "the second guest's socket is removed")?;
    // The guest ends with its first command.
    let waits = bench.start(&join("", "sleep 1000"))?;
    bench.expect(&join("", ": >/tmp/stop"), 0, "")?;
    bench.expect_of(waits, 125, "the guest's first command has ended")?;
    bench.expect_of(guest, 0, "^first ended$")?;
    bench.expect(&tollgate("report joined.ledger"), 0, "^joined by +[0-9]+ commands$")?;
    bench.expect(
        &tollgate("report joined.ledger --region joined"),
        0,
        "^region +joined, entered [0-9]+ times, open for ",
    )?;
    bench.until(|| names().count() == 0, "the socket is removed")?;
    drop(UnixListener::bind(sockets.join("1.socket"))?);
    bench.expect(&join("", "true"), 126, none)?;
    bench.until(|| names().count() == 0, "a stale socket is removed")
}

fn exec(flavour: &str) -> Result<Run, Stop> {
    kernel(flavour)?;
    Ok(tollgate("exec --kernel").words(flavour))
}
