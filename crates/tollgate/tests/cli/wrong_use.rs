//! Command lines that are wrong, and names that a file does not have.

use crate::program::{Files, POWER_OFF, PRINT, WRONG_ARGUMENTS, run, wrong_use};

#[test]
fn wrong_arguments_are_explained() {
    let files = Files::new("arguments");
    let good = files.good();
    for arguments in [
        &[][..],
        &["--kernel"],
        &["--kernel", &good, "--memory", "lots"],
        &["--kernel", &good, "--memory", "99999999999T"],
        &["--kernel", &good, "--cpus", "x"],
        &["--kernel", &good, "--timeout", "0"],
        &["--kernel", &good, "--limit", "soon"],
        &["--kernel", &good, "--tier", "fast"],
        &["--kernel", &good, "--nonsense"],
        &["--kernel", &good, "--memory", "-5M"],
        &["--kernel", &good, "--timeout", "-1"],
        &["--kernel", &good, "--cpus", "-1"],
    ] {
        let (status, printed, error) = run(arguments);
        assert_eq!((status, printed.as_str()), (WRONG_ARGUMENTS, ""), "{arguments:?}: {error}");
        assert!(error.starts_with("error: "), "{error}");
        assert!(!error.contains("-- -"), "a wrong number is no file name: {error}");
        assert!(!error.contains("invalid digit"), "{error}");
    }
}

#[test]
fn names_that_a_file_does_not_have_are_a_wrong_use() {
    let files = Files::new("names");
    let kernel = files.guest("kernel", &[PRINT, POWER_OFF].concat());
    let ledger = &*files.path("ledger");
    assert_eq!(run(&["--kernel", &kernel, "--ledger", ledger, "--call-graph", "--call-sites"]).0, 0);
    let no_region = "the ledger has no regions of interest";
    wrong_use(&["report", ledger, ledger], &format!("`tollgate compare {ledger} {ledger}` shows two side by side"));
    wrong_use(&["report", ledger, "--region", "zz"], no_region);
    wrong_use(&["report", ledger, "--task", "zz"], "the ledger has no task 'zz'; it has: ");
    wrong_use(&["report", ledger, "--of", "zz"], "no call stack has the function 'zz'");
    wrong_use(&["report", ledger, "--event", "zz", "--folded"], "the ledger has no crossing 'zz' with call stacks");
    wrong_use(&["report", ledger, "--what-if", "cached(CPUID.4)"], "CPUID 0x4 was not executed here");
    wrong_use(&["compare", ledger, ledger, "--region", "zz"], no_region);
    wrong_use(&["compare", ledger, ledger, "--task", "zz"], "the ledger has no task 'zz'");
    for format in ["folded", "perf-script", "timeline"] {
        wrong_use(&["export", ledger, "--format", format, "--region", "zz"], no_region);
        wrong_use(&["export", ledger, "--format", format, "--task", "zz"], "the ledger has no task 'zz'");
    }
    wrong_use(&["export", ledger, "--format", "folded", "--event", "zz"], "the ledger has no crossing 'zz'");
    wrong_use(&["export", ledger, "--format", "timeline", "--event", "zz"], "leave it out");
}

#[test]
fn wrong_words_are_a_wrong_use() {
    let options: [(&[&str], &str); 8] = [
        (&["--cpu", "nosuch"], "there is no processor profile 'nosuch'"),
        (&["--cpu", "skx,foo"], "there is no such option; there are: pmu, unpatched, boost, ghz=N"),
        (&["--cpu", "skx,"], "an option belongs behind each comma"),
        (&["--cpu", "skx,pmu,pmu"], "it is given twice"),
        (&["--memory", "5"], "5 bytes of guest memory is less than the minimum of 1 MiB"),
        (&["--cpus", "256"], "a number from 1 to 255 is expected"),
        (&["--platform", "hvm", "--cpu", "skx,pmu"], "it needs --platform bare"),
        (&["--mmu", "tdp"], "it needs --platform hvm"),
    ];
    for (words, message) in options {
        for command in ["exec", "stat", "diff"] {
            wrong_use(&[&[command], words, &["--", "true"]].concat(), message);
        }
        wrong_use(&[&["run", "--kernel", "k"], words].concat(), message);
    }
    wrong_use(&["stat", "--user", "nobody", "--", "true"], "--user nobody: root, or numbers");
    wrong_use(&["diff", "--side", "a", "--side", "b=--cpu=nosuch", "--", "true"], "no processor profile 'nosuch'");
    wrong_use(&["cpu", "show", "nosuch"], "there is no processor profile 'nosuch'");
    for option in ["--html=x", "--junit=x", "--json", "--markdown", "--csv", "--fail-above=1"] {
        let name = option.split('=').next().unwrap();
        let message = format!("{name} shows a comparison, and there is one side, a: name another one by --side");
        wrong_use(&["diff", "--side", "a", "--save", "y", option, "--", "true"], &message);
    }
}
