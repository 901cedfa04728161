//! Tests that run whole guests on the released program `tollgate` and check their ends, outputs and ledgers.
//!
//! Each test has a name `group::name`, a directory of its own and a time limit. Groups that need long or much are run on request
//! only. `CONTRIBUTING.md` says how to run one test or one group.

#![forbid(unsafe_code)]

mod bench;
mod groups;
mod images;
mod junit;
mod processes;
mod run;
mod test;

use libtest_mimic::{Arguments, Completion, Trial};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use test::{Stop, Test};

/// Memory that the largest guests take, as a bound for tests at the same time.
const MEMORY_PER_TEST: u64 = 4 << 30;

/// Runs the tests that the command line selects, and returns the exit status of this process.
pub fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    let tests = groups::all();
    arguments.include_ignored |= arguments.filter.as_deref().is_some_and(|filter| asks_for(filter, &tests));
    arguments.test_threads.get_or_insert_with(threads);
    if !arguments.list {
        processes::end_with_this_process();
    }
    let results = Arc::new(junit::Results::default());
    let trials = tests.into_iter().map(|test| trial(test, results.clone())).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    if let Some(path) = std::env::var_os("TOLLGATE_JUNIT").filter(|_| !arguments.list)
        && let Err(error) = results.write(Path::new(&path))
    {
        eprintln!("{} can't be written: {error}", PathBuf::from(path).display());
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}

/// Whether a filter names a group that is run on request, or tests in it.
fn asks_for(filter: &str, tests: &[Test]) -> bool {
    tests.iter().any(|test| test.on_request && filter.split("::").next() == Some(test.group()))
}

/// Returns the number of tests that this host runs at the same time.
fn threads() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = free.and_then(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0);
    processors.min((kilobytes * 1024 / MEMORY_PER_TEST) as usize).max(1)
}

fn trial(test: Test, results: Arc<junit::Results>) -> Trial {
    let on_request = test.on_request;
    Trial::ignorable_test(test.name.clone(), move || {
        let start = std::time::Instant::now();
        let outcome = test.run();
        results.add(&test.name, start.elapsed(), &outcome);
        match outcome {
            Ok(()) => Ok(Completion::Completed),
            Err(Stop::Skipped(reason)) => Ok(Completion::ignored_with(reason)),
            Err(Stop::Failed(reason)) => Err(reason.into()),
        }
    })
    .with_ignored_flag(on_request)
}

/// Returns the directory of the checkout.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the crate is in guests/tests").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_different_and_a_group_selects_its_tests_only() {
        let tests = groups::all();
        let names: BTreeSet<&str> = tests.iter().map(|test| test.name.as_str()).collect();
        assert_eq!(names.len(), tests.len());
        let groups: BTreeSet<&str> = tests.iter().map(Test::group).collect();
        assert_eq!(groups.len(), 16);
        for name in names {
            assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || "_:".contains(c)), "{name}");
            let named = groups.iter().filter(|group| name.contains(&format!("{group}::"))).count();
            assert_eq!(named, 1, "{name}");
        }
    }

    #[test]
    fn a_filter_for_a_group_that_is_run_on_request_is_the_request() {
        let tests = groups::all();
        for (filter, asked) in
            [("nested::", true), ("nested", true), ("slow::demo", true), ("bare::", false), ("ledger", false)]
        {
            assert_eq!(asks_for(filter, &tests), asked, "{filter}");
        }
    }

    #[test]
    fn the_documents_name_tests_that_exist() {
        let tests = groups::all();
        for document in ["docs/SPECIFICATION.md", "CONTRIBUTING.md"] {
            let text = std::fs::read_to_string(root().join(document)).unwrap();
            let mut named = 0;
            for word in text.split(|c: char| c.is_whitespace() || "`=".contains(c)) {
                let Some((group, name)) = word.split_once("::") else { continue };
                if tests.iter().any(|test| test.group() == group) {
                    assert!(name.is_empty() || tests.iter().any(|test| test.name == word), "{document}: {word}");
                    named += 1;
                }
            }
            assert!(named > 3, "{document} names {named} tests");
        }
    }
}
