use super::*;
use crate::Experiment;
use crate::store::LEDGER;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The time after which a test gives up on something that must happen: many times what it takes on a busy host.
const PATIENCE: Duration = Duration::from_secs(120);

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
snapshot=
for word in "$@"; do
    case $before in workload) snapshot=$word ;; esac
    before=$word
done
case "$*" in *"--save-at workload"*) echo saves >> boots; case "$*" in *refuses*) exit 126 ;; *) echo booted > "$snapshot" ;; esac ;; esac
case "$*" in *--restore*) echo from >> boots ;; esac
case "$*" in
*fail*) echo "it hurts"; exit 3 ;;
*panics*) exit 123 ;;
*resets*) exit 122 ;;
*endless*) exec sleep 1000 ;;
*chatty*) echo $$ > pid; head -c 67108865 /dev/zero; exec sleep 1000 ;;
*evicted*) rm -r "$(dirname "$last")"; exit 3 ;;
*silent*) exit 0 ;;
esac
case "$*" in *--workload*) echo "ledger" > "$last" ;; *) echo "$*" > "$last" ;; esac
"#;

/// Records the reported progress.
#[derive(Default)]
struct Seen(Vec<String>);

impl Watch for Seen {
    fn damaged(&mut self, cells: &[(&Cell, String)]) {
        let each = cells.iter().map(|(cell, reason)| format!("{} {reason}", cell.id()));
        self.0.push(format!("damaged: {}", each.collect::<Vec<_>>().join(", ")));
    }

    fn begun(&mut self, cell: &Cell) {
        self.0.push(format!("{} begun", cell.id()));
    }

    fn done(&mut self, cell: &Cell, _outcome: &Outcome, ran: bool) {
        self.0.push(format!("{} {}", cell.id(), if ran { "ran" } else { "did not run" }));
    }
}

/// Stops the run at the first tick at which `so` is true of the reported progress.
struct Stopping<'a> {
    seen: Seen,
    so: &'a mut dyn FnMut(&[String]) -> bool,
    stop: &'a AtomicBool,
    since: Instant,
}

impl Watch for Stopping<'_> {
    fn begun(&mut self, cell: &Cell) {
        self.seen.begun(cell);
    }

    fn done(&mut self, cell: &Cell, outcome: &Outcome, ran: bool) {
        self.seen.done(cell, outcome, ran);
    }

    fn tick(&mut self) {
        let seen = &self.seen.0;
        if (self.so)(seen) {
            self.stop.store(true, Ordering::Relaxed);
        }
        assert!(self.since.elapsed() < PATIENCE, "the moment to stop has not come; so far: {seen:?}");
    }
}

impl Bench {
    fn new(test: &str, rows: &[(&str, &str)]) -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = std::env::temp_dir().join(format!("tollgate-lab-{}-{test}", std::process::id()));
        // Remove the files of an earlier run.
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("program"), PROGRAM).unwrap();
        std::fs::set_permissions(directory.join("program"), std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(directory.join("g.elf"), "guest").unwrap();
        let mut text = "title = 'x'\n[defaults]\nprofile = 'skx'\nplatform = 'bare'\nguest = 'g'\n".to_owned();
        text += "[guest.g]\nimage = 'g.elf'\nmade-by = 'make guests'\n[metric]\nregion = 'w'\nunit = 's'\n";
        text += "[[column]]\nid = 'column'\ntitle = 'C'\n";
        for (id, append) in rows {
            let key = if append.starts_with("workload ") { "workload" } else { "append" };
            text += &format!("[[row]]\nid = '{id}'\ntitle = '{id}'\nset = {{ {key} = '{append}' }}\n");
        }
        let file = directory.join("x.toml");
        std::fs::write(&file, text).unwrap();
        Self { _turn: turn, experiment: Experiment::load(&file).unwrap(), directory }
    }

    fn run(&self, fresh: bool, stop: &AtomicBool) -> Vec<Outcome> {
        self.watched(fresh, stop, &mut Seen::default())
    }

    fn watched(&self, fresh: bool, stop: &AtomicBool, seen: &mut dyn Watch) -> Vec<Outcome> {
        let options = Options {
            program: self.directory.join("program"),
            root: self.directory.clone(),
            place: Place::Here(2),
            fresh,
            tier: vec!["--tier".into(), "auto".into()],
        };
        let store = Store::open(&self.directory.join("out"), stop).unwrap();
        run(&self.experiment.cells(), &options, &store, stop, seen).unwrap()
    }

    /// Runs the cells and stops when `so` is true of the reported progress, which must happen. Returns that progress too.
    fn stopped(&self, mut so: impl FnMut(&[String]) -> bool) -> (Vec<Outcome>, Vec<String>) {
        let stop = AtomicBool::new(false);
        let mut watch = Stopping { seen: Seen::default(), so: &mut so, stop: &stop, since: Instant::now() };
        let outcomes = self.watched(false, &stop, &mut watch);
        (outcomes, watch.seen.0)
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
fn cells_that_differ_in_their_workloads_boot_once() {
    let rows = [("a", "workload 1"), ("b", "workload 2"), ("c", "workload 3"), ("d", "another boot")];
    let bench = Bench::new("boots", &rows);
    let go = AtomicBool::new(false);
    let first = bench.run(false, &go);
    assert!(first.iter().all(|outcome| matches!(outcome, Outcome::Finished(_))), "{first:?}");
    let boots = |bench: &Bench| std::fs::read_to_string(bench.directory.join("boots")).unwrap_or_default();
    assert_eq!(boots(&bench), "saves\nfrom\nfrom\n");
    assert_eq!((bench.runs(), bench.left().len()), (4, 4), "nothing is left of the snapshot");
    assert_eq!(bench.run(false, &go), first);
    assert_eq!(bench.runs(), 4);
    // A single cell that is missing boots by itself, and is the same cell.
    let Outcome::Finished(finished) = &first[1] else { panic!("it is finished") };
    std::fs::remove_dir_all(finished.ledger.parent().unwrap()).unwrap();
    assert_eq!(bench.run(false, &go), first);
    assert_eq!((bench.runs(), boots(&bench).lines().count()), (5, 3));
}

#[test]
fn where_the_first_cell_cannot_save_the_others_boot_themselves() {
    let rows = [("a", "workload refuses"), ("b", "workload 2"), ("c", "workload 3")];
    let bench = Bench::new("refuses", &rows);
    let outcomes = bench.run(false, &AtomicBool::new(false));
    assert!(matches!(&outcomes[0], Outcome::Failed(_)), "{outcomes:?}");
    assert!(outcomes[1..].iter().all(|outcome| matches!(outcome, Outcome::Finished(_))), "{outcomes:?}");
    assert_eq!(std::fs::read_to_string(bench.directory.join("boots")).unwrap(), "saves\n");
    assert_eq!(bench.left().len(), 3, "two cells, and the output of the one that failed");
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
    for (outcome, words) in outcomes.iter().zip(["the guest's kernel panicked", "an unrequested reset"]) {
        assert!(matches!(outcome, Outcome::Failed(failure) if failure.reason.contains(words)), "{outcome:?}");
    }
}

#[test]
fn a_failing_cell_is_named_and_the_others_go_on() {
    let bench = Bench::new("broken", &[("a", "fail"), ("b", "two")]);
    let outcomes = bench.run(false, &AtomicBool::new(false));
    let Outcome::Failed(failure) = &outcomes[0] else { panic!("{outcomes:?}") };
    assert_eq!(failure.reason, "ended with status 3 where 0 was expected");
    assert_eq!(failure.said.last().unwrap(), "it hurts");
    let output = std::fs::read_to_string(failure.output.as_ref().unwrap()).unwrap();
    assert!(output.starts_with("arguments: run ") && output.ends_with("it hurts\n"), "{output}");
    assert!(matches!(outcomes[1], Outcome::Finished(_)));
    assert_eq!(bench.left().len(), 2, "the finished cell and the output of the other one");
    bench.run(false, &AtomicBool::new(false));
    assert_eq!(bench.left().len(), 2);
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
fn a_cell_with_another_capture_to_replay_is_another_cell() {
    let mut bench = Bench::new("capture", &[("a", "one")]);
    bench.experiment.defaults.net = Some("sink generator:replay=c.pcapng,rate=recorded".to_owned());
    let go = AtomicBool::new(false);
    let outcomes = bench.run(false, &go);
    let Outcome::Failed(failure) = &outcomes[0] else { panic!("{outcomes:?}") };
    assert!(failure.reason.contains("c.pcapng can't be read") && !failure.reason.contains("makes it"), "{failure:?}");
    for (capture, runs) in [("frames", 1), ("frames", 1), ("other frames", 2)] {
        std::fs::write(bench.directory.join("c.pcapng"), capture).unwrap();
        assert!(matches!(bench.run(false, &go)[0], Outcome::Finished(_)));
        assert_eq!(bench.runs(), runs, "{capture}");
    }
}

#[test]
fn an_interrupted_run_leaves_finished_cells_only() {
    let bench = Bench::new("stop", &[("a", "one"), ("b", "endless"), ("c", "endless 2")]);
    let (outcomes, _) = bench.stopped(|seen| bench.runs() == 3 && seen.iter().any(|line| line == "a/column ran"));
    assert!(matches!(outcomes[0], Outcome::Finished(_)), "{outcomes:?}");
    assert_eq!(outcomes[1..], [Outcome::Interrupted, Outcome::Interrupted]);
    assert_eq!(bench.left().len(), 1);
}

#[test]
fn who_watches_is_told_what_runs_and_why() {
    let bench = Bench::new("watch", &[("a", "one"), ("b", "one")]);
    let go = AtomicBool::new(false);
    let watch = |fresh| {
        let mut seen = Seen::default();
        bench.watched(fresh, &go, &mut seen);
        seen.0
    };
    let ran = ["a/column begun", "a/column ran", "b/column did not run"];
    assert_eq!(watch(false), ran);
    assert_eq!(watch(false), ["a/column did not run", "b/column did not run"]);
    std::fs::write(bench.directory.join("out").join(&bench.left()[0]).join(LEDGER), "").unwrap();
    let seen = watch(false);
    assert_eq!(seen[0], "damaged: a/column its file 'ledger' is empty");
    assert_eq!(seen[1..], ran);
    assert_eq!(watch(true), ran);
    std::fs::remove_file(bench.directory.join("g.elf")).unwrap();
    assert_eq!(watch(false), ["a/column did not run", "b/column did not run"]);
}

#[test]
fn no_more_cells_run_at_a_time_than_was_said() {
    let bench = Bench::new("jobs", &[("a", "endless 1"), ("b", "endless 2"), ("c", "endless 3")]);
    // Twenty more looks at two cells that run begin no third one.
    let mut looks = 0;
    let (outcomes, seen) = bench.stopped(|_| {
        looks += u32::from(bench.runs() >= 2);
        looks > 20
    });
    assert_eq!(outcomes, [Outcome::Interrupted, Outcome::Interrupted, Outcome::Interrupted]);
    assert_eq!(seen.iter().filter(|line| line.ends_with("begun")).count(), 2, "{seen:?}");
    assert_eq!(bench.runs(), 2);
}

#[test]
fn a_cell_that_prints_without_end_is_ended() {
    let bench = Bench::new("chatty", &[("a", "chatty")]);
    let outcomes = bench.run(false, &AtomicBool::new(false));
    let Outcome::Failed(failure) = &outcomes[0] else { panic!("{outcomes:?}") };
    assert_eq!(failure.reason, "printed more than 67108864 bytes");
    let pid = std::fs::read_to_string(bench.directory.join("pid")).unwrap();
    assert!(!Path::new("/proc").join(pid.trim()).exists(), "it still runs");
    assert_eq!(bench.left().len(), 1, "its output is left");
}

#[test]
fn where_nothing_can_be_written_that_is_the_reason() {
    let bench = Bench::new("room", &[("a", "evicted")]);
    let outcomes = bench.run(false, &AtomicBool::new(false));
    let Outcome::Failed(failure) = &outcomes[0] else { panic!("{outcomes:?}") };
    assert!(failure.reason.contains("/out can't be written to: No such file"), "{failure:?}");
    assert!(failure.said.is_empty() && failure.output.is_none());
}

#[test]
fn a_cell_that_leaves_no_ledger_has_failed() {
    let bench = Bench::new("silent", &[("a", "silent")]);
    let outcomes = bench.run(false, &AtomicBool::new(false));
    let Outcome::Failed(failure) = &outcomes[0] else { panic!("{outcomes:?}") };
    assert_eq!(failure.reason, "can't be kept: it has no file 'ledger'");
    assert!(failure.said[0].starts_with("arguments: run --kernel g.elf"), "{failure:?}");
}

#[test]
fn a_guest_that_is_a_directory_can_not_be_read() {
    let bench = Bench::new("directory", &[("a", "one")]);
    std::fs::remove_file(bench.directory.join("g.elf")).unwrap();
    std::fs::create_dir(bench.directory.join("g.elf")).unwrap();
    let outcomes = bench.run(false, &AtomicBool::new(false));
    let Outcome::Failed(failure) = &outcomes[0] else { panic!("{outcomes:?}") };
    assert!(failure.reason.contains("g.elf can't be read: Is a directory"), "{failure:?}");
}
