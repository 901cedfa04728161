use super::*;
use crate::Experiment;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A directory for one test with a program that stands in for `tollgate run`: it counts its runs, writes a "ledger" with its
/// arguments, and does what the guest's command line says.
struct Bench {
    /// One test at a time: a program that another test is writing while this one starts a child can't be started.
    _turn: MutexGuard<'static, ()>,
    directory: PathBuf,
    experiment: Experiment,
}

const PROGRAM: &str = r#"#!/bin/sh
echo run >> runs
echo "arguments: $*"
for last in "$@"; do :; done
case "$*" in
*fail*) echo "it hurts"; exit 3 ;;
*panics*) exit 123 ;;
*resets*) exit 122 ;;
*endless*) exec sleep 1000 ;;
esac
echo "$*" > "$last"
"#;

impl Bench {
    fn new(test: &str, rows: &[(&str, &str)]) -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = std::env::temp_dir().join(format!("tollgate-lab-{}-{test}", std::process::id()));
        // What an earlier run has left.
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("program"), PROGRAM).unwrap();
        std::fs::set_permissions(directory.join("program"), std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(directory.join("g.elf"), "guest").unwrap();
        let mut text = "title = 'x'\n[defaults]\nprofile = 'skx'\nplatform = 'bare'\nguest = 'g'\n".to_owned();
        text += "[guest.g]\nimage = 'g.elf'\nmade-by = 'make guests'\n[metric]\nregion = 'w'\nunit = 's'\n";
        text += "[[column]]\nid = 'column'\ntitle = 'C'\n";
        for (id, append) in rows {
            text += &format!("[[row]]\nid = '{id}'\ntitle = '{id}'\nset = {{ append = '{append}' }}\n");
        }
        let file = directory.join("x.toml");
        std::fs::write(&file, text).unwrap();
        Self { _turn: turn, experiment: Experiment::load(&file).unwrap(), directory }
    }

    fn run(&self, fresh: bool, stop: &AtomicBool) -> Vec<Outcome> {
        struct Nobody;
        impl Watch for Nobody {}
        let options = Options {
            program: self.directory.join("program"),
            root: self.directory.clone(),
            out: self.directory.join("out"),
            jobs: 2,
            fresh,
            tier: vec!["--tier".into(), "auto".into()],
        };
        run(&self.experiment.cells(), &options, stop, &mut Nobody).unwrap()
    }

    fn runs(&self) -> usize {
        std::fs::read_to_string(self.directory.join("runs")).unwrap_or_default().lines().count()
    }

    fn left(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.directory.join("out")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[test]
fn a_finished_cell_is_not_run_again() {
    let bench = Bench::new("cache", &[("a", "one"), ("b", "two"), ("c", "one")]);
    let go = AtomicBool::new(false);
    let first = bench.run(false, &go);
    assert!(first.iter().all(|outcome| matches!(outcome, Outcome::Finished(_))), "{first:?}");
    assert_eq!(first[0], first[2], "the same command line is the same cell");
    assert_eq!((bench.runs(), bench.left().len()), (2, 2));
    assert_eq!(bench.run(false, &go), first);
    assert_eq!(bench.runs(), 2);
    assert_eq!(bench.run(true, &go), first);
    assert_eq!(bench.runs(), 4);
    std::fs::write(bench.directory.join("g.elf"), "another guest").unwrap();
    assert_ne!(bench.run(false, &go), first);
    assert_eq!(bench.runs(), 6);
}

#[test]
fn a_cell_whose_kernel_ends_is_named_so() {
    let bench = Bench::new("kernel", &[("a", "panics"), ("b", "resets")]);
    let outcomes = bench.run(false, &AtomicBool::new(false));
    for (outcome, words) in outcomes.iter().zip(["the guest's kernel panicked", "a reset that nobody asked for"]) {
        assert!(matches!(outcome, Outcome::Failed(failure) if failure.reason.contains(words)), "{outcome:?}");
    }
}

#[test]
fn a_failing_cell_is_named_and_the_others_go_on() {
    let bench = Bench::new("broken", &[("a", "fail"), ("b", "two")]);
    let outcomes = bench.run(false, &AtomicBool::new(false));
    let Outcome::Failed(failure) = &outcomes[0] else { panic!("{outcomes:?}") };
    assert_eq!(failure.reason, "ended with status 3 where 0 was expected");
    assert_eq!(failure.tail.last().unwrap(), "it hurts");
    assert!(matches!(outcomes[1], Outcome::Finished(_)));
    assert_eq!(bench.left().len(), 1);
    bench.run(false, &AtomicBool::new(false));
    assert_eq!(bench.runs(), 3, "a failure is not kept");
}

#[test]
fn what_a_cell_needs_and_how_to_make_it_is_said() {
    let bench = Bench::new("missing", &[("a", "one")]);
    std::fs::remove_file(bench.directory.join("g.elf")).unwrap();
    let outcomes = bench.run(false, &AtomicBool::new(false));
    let Outcome::Failed(failure) = &outcomes[0] else { panic!("{outcomes:?}") };
    assert!(failure.reason.contains("g.elf can't be read"), "{failure:?}");
    assert!(failure.reason.ends_with("'make guests' makes it"), "{failure:?}");
}

#[test]
fn an_interrupted_run_leaves_finished_cells_only() {
    let bench = Bench::new("stop", &[("a", "one"), ("b", "endless"), ("c", "endless 2")]);
    let stop = AtomicBool::new(false);
    let outcomes = std::thread::scope(|scope| {
        let running = scope.spawn(|| bench.run(false, &stop));
        while bench.runs() < 3 {
            std::thread::sleep(NAP);
        }
        // The first cell may still be writing.
        while !bench
            .directory
            .join("out")
            .read_dir()
            .unwrap()
            .any(|e| e.unwrap().file_name().to_string_lossy().len() == 32)
        {
            std::thread::sleep(NAP);
        }
        stop.store(true, Ordering::Relaxed);
        running.join().unwrap()
    });
    assert!(matches!(outcomes[0], Outcome::Finished(_)), "{outcomes:?}");
    assert_eq!(outcomes[1..], [Outcome::Interrupted, Outcome::Interrupted]);
    assert_eq!(bench.left().len(), 1);
}
