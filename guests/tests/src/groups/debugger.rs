//! gdb on a bare-metal guest.

use crate::bench::{Bench, need};
use crate::images::bare_guests;
use crate::root;
use crate::run::{Run, bare};
use crate::test::{Group, Outcome};

pub fn group() -> Group {
    let mut group = Group::new("debugger", 300);
    let platforms = [
        ("bare", "--platform bare"),
        ("interpreter", "--tier interpreter"),
        ("hvm", "--platform hvm"),
        ("hvm_shadow", "--platform hvm --mmu shadow"),
    ];
    for (name, options) in platforms {
        group.add(format!("gdb_breaks_watches_and_goes_back_{name}"), move |bench| session(bench, options));
    }
    group
}

/// Runs guests/bare/switch without a debugger, then under gdb with scripts/debugger.gdb.
fn session(bench: &Bench, options: &str) -> Outcome {
    need("gdb")?;
    bare_guests()?;
    let run = bare("switch.pvh", "iterations=1000").words(options);
    let ended = "^switch: 2000 iterations";
    bench.expect(&run.clone().with("--ledger", bench.file("plain")), 1, ended)?;
    let socket = bench.file("gdb");
    let debugged = run.with("--ledger", bench.file("debugged")).with("--gdb", format!("unix:{}", socket.display()));
    let debugged = bench.start(&debugged)?;
    bench.until(|| socket.exists(), "tollgate has made the socket for gdb")?;
    let gdb = Run::new("gdb").words("-q -nx -batch").arg(root().join("target/guests/switch.pvh"));
    let gdb = gdb.with("-ex", format!("target remote {}", socket.display()));
    let gdb = gdb.arg("-x").arg(root().join("scripts/debugger.gdb"));
    let output = bench.expect(&gdb, 0, "Breakpoint 1, .* second_task")?.shows("exited with code 01")?;
    let text = output.text();
    let values =
        text.lines().filter_map(|line| line.strip_prefix("Old value = ").or(line.strip_prefix("New value = ")));
    let values: Vec<&str> = values.take(6).collect();
    if values != ["0", "3", "3", "2", "2", "1"] {
        return Err(
            output.failed(&format!("the watched value was {values:?}, not 0, 3, 3, 2 on the way and 2, 1 back"))
        );
    }
    bench.expect_of(debugged, 1, ended)?;
    bench.equal("plain", "debugged")
}
