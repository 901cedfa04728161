//! `tollgate diff`: commands in two kernels and under two settings.

use crate::bench::Bench;
use crate::images::kernel;
use crate::run::{Run, tollgate};
use crate::test::{Group, Stop};
use serde_json::Value;

/// Two thousand system calls that read a file.
const CALLS: &str = "i=0; while [ $i -lt 2000 ]; do read line </proc/loadavg; i=$((i+1)); done";

pub fn group() -> Group {
    let mut group = Group::on_request("diff", 900);
    let mut add = |name: &str, options: &'static str, script: &'static str, status: i32, pattern: &'static str| {
        group.add(name, move |bench| bench.expect(&diff(options, script)?, status, pattern).map(drop));
    };
    add("two_kernels", "cloud backports", CALLS, 0, "^B costs .* cycles");
    add("drawn_layouts", "cloud backports --layouts 7", CALLS, 0, "has 95% confidence: 7 pairs of runs");
    add("one_kernel_is_no_difference", "cloud cloud", CALLS, 0, "^A and B have the same kernel, files and settings");
    add(
        "a_default_is_no_difference",
        "--kernel cloud --b mitigations=auto --margin 5%",
        CALLS,
        0,
        "`mitigations=auto` is the kernel's default",
    );
    let script = "for i in 1 2 3 4 5; do /bin/true; done";
    let mmus = "--kernel cloud --platform hvm --mmu tdp --mmu shadow";
    add("two_mmus", mmus, script, 0, "^B costs .* more cycles");
    let less = "--kernel cloud --b mitigations=off --fail-above 5%";
    add("less_than_it_may_cost", less, CALLS, 0, "^B costs .* fewer cycles");
    let failed = "^tollgate: A, seed 1: .* ended with status 7";
    add("a_command_that_fails_is_named_with_its_side", "cloud backports", "exit 7", 119, failed);
    group.add("more_than_it_may_cost", |bench| {
        let junit = bench.file("junit");
        let options = format!("--kernel cloud --a mitigations=off --fail-above 5% --junit {}", junit.display());
        bench.expect(&diff(&options, CALLS)?, 1, "^B costs .* more cycles")?;
        match std::fs::read_to_string(junit)? {
            text if text.contains("<failure") => Ok(()),
            text => Err(Stop::Failed(format!("the JUnit file has no failure: {text}"))),
        }
    });
    group.add("a_sleep_changes_no_verdict", |bench| {
        let plain = verdict(bench, CALLS)?;
        if plain != ("one-layout".to_owned(), "WRMSR IA32_SPEC_CTRL".to_owned(), true) {
            return Err(Stop::Failed(format!("the verdict is {plain:?}")));
        }
        let slept = verdict(bench, &format!("{CALLS}; sleep 5"))?;
        match slept == plain {
            true => Ok(()),
            false => Err(Stop::Failed(format!("with a sleep the verdict is {slept:?}, not {plain:?}"))),
        }
    });
    group
}

fn diff(options: &str, script: &str) -> Result<Run, Stop> {
    kernel("cloud")?;
    kernel("backports")?;
    Ok(tollgate("diff").words(options).words("-- sh -c").arg(script))
}

/// Returns the answer of a diff, its first cause, and whether B costs more by at least a tenth.
fn verdict(bench: &Bench, script: &str) -> Result<(String, String, bool), Stop> {
    let output = bench.expect(&diff("--kernel cloud --layouts 1 --a mitigations=off --json", script)?, 0, r#"^\{"#)?;
    let text = output.text();
    let json = text.find("{\n").map(|at| serde_json::Deserializer::from_str(&text[at..]).into_iter::<Value>().next());
    let Some(Some(Ok(diff))) = json else { return Err(output.failed("the output is no JSON")) };
    let word = |value: &Value| value.as_str().unwrap_or("none").to_owned();
    let verdict = &diff["verdict"];
    let relative = verdict["relative"].as_f64().is_some_and(|share| share > 0.1);
    Ok((word(&verdict["answer"]), word(&diff["causes"][0]["name"]), relative))
}
