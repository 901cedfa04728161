use super::*;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

/// A directory for one test, with a store in it.
struct Bench(PathBuf);

impl Bench {
    fn new(test: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("tollgate-store-{}-{test}", std::process::id()));
        // An earlier run may have left files.
        let _ = std::fs::remove_dir_all(&directory);
        Self(directory)
    }

    fn store(&self) -> Store {
        Store::open(&self.0, &AtomicBool::new(false)).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn file(&self, fingerprint: &str, name: &str) -> PathBuf {
        self.0.join(fingerprint).join(name)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A fingerprint of one digit.
fn print(digit: char) -> String {
    digit.to_string().repeat(32)
}

/// Keeps a cell whose ledger is `ledger`.
fn keep(store: &Store, fingerprint: &str, ledger: &[u8]) -> Finished {
    let partial = store.partial().unwrap();
    std::fs::write(partial.path().join(LEDGER), ledger).unwrap();
    std::fs::write(partial.path().join(OUTPUT), "printed\n").unwrap();
    store.keep(&partial, fingerprint, "tollgate run").unwrap()
}

/// Says that a cell was used so long ago.
fn age(bench: &Bench, fingerprint: &str, days: u64) {
    Record::touch(&bench.0.join(fingerprint), SystemTime::now() - Duration::from_secs(days * 86_400));
}

#[test]
fn what_is_kept_is_found_and_nothing_else() {
    let bench = Bench::new("kept");
    let store = bench.store();
    assert_eq!(store.find(&print('a')), Found::Nothing);
    let finished = keep(&store, &print('a'), b"a ledger");
    assert_eq!(store.find(&print('a')), Found::Finished(finished.clone()));
    assert_eq!(std::fs::read(&finished.ledger).unwrap(), b"a ledger");
    assert_eq!(std::fs::read(&finished.output).unwrap(), b"printed\n");
    assert_eq!(store.find(&print('b')), Found::Nothing);
    assert_eq!(bench.names(), [print('a')]);
}

#[test]
fn whatever_is_wrong_with_a_kept_cell_is_named_and_a_new_one_takes_its_place() {
    let bench = Bench::new("damaged");
    let store = bench.store();
    let fingerprint = print('a');
    let at = |name| bench.file(&fingerprint, name);
    let directory = |path: PathBuf| {
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("x"), "x").unwrap();
    };
    type Damage<'a> = (&'a str, Box<dyn Fn() + 'a>);
    let write = |name: &'static str, bytes: &'static [u8]| Box::new(move || std::fs::write(at(name), bytes).unwrap());
    let damages: Vec<Damage> = vec![
        ("its file 'ledger' is empty", write(LEDGER, b"")),
        ("its file 'ledger' is not what was written", write(LEDGER, b"a le")),
        ("its file 'ledger' is not what was written", write(LEDGER, b"a ledges")),
        ("its file 'output' is not what was written", write(OUTPUT, b"printef\n")),
        ("its file 'cell.json' is not a record", write(record::RECORD, b"")),
        (
            "its file 'cell.json' is of format version 9",
            Box::new(|| {
                let text = std::fs::read_to_string(at(record::RECORD)).unwrap();
                std::fs::write(at(record::RECORD), text.replacen("\"format\":1", "\"format\":9", 1)).unwrap();
            }),
        ),
        ("it has no file 'cell.json'", Box::new(|| std::fs::remove_file(at(record::RECORD)).unwrap())),
        ("it has no file 'ledger'", Box::new(|| std::fs::remove_file(at(LEDGER)).unwrap())),
        ("'ledger' is not a file", Box::new(|| directory(at(LEDGER)))),
        ("'output' is not a file", Box::new(|| directory(at(OUTPUT)))),
        ("it has no file 'cell.json'", Box::new(|| directory(at(record::RECORD)))),
        (
            "it has no file 'cell.json'",
            Box::new(|| {
                std::fs::remove_dir_all(bench.0.join(&fingerprint)).unwrap();
                std::fs::write(bench.0.join(&fingerprint), "a file").unwrap();
            }),
        ),
        (
            "'ledger' is not a file",
            Box::new(|| {
                std::fs::remove_file(at(LEDGER)).unwrap();
                std::os::unix::fs::symlink("/dev/zero", at(LEDGER)).unwrap();
            }),
        ),
    ];
    for (reason, damage) in damages {
        keep(&store, &fingerprint, b"a ledger");
        damage();
        assert_eq!(store.find(&fingerprint), Found::Damaged(reason.to_owned()));
        keep(&store, &fingerprint, b"a ledger");
        assert!(matches!(store.find(&fingerprint), Found::Finished(_)), "{reason}");
        assert_eq!(bench.names(), std::slice::from_ref(&fingerprint), "{reason}");
    }
}

#[test]
fn a_cell_without_a_ledger_is_not_kept() {
    let bench = Bench::new("without");
    let store = bench.store();
    let partial = store.partial().unwrap();
    std::fs::write(partial.path().join(OUTPUT), "").unwrap();
    assert_eq!(store.keep(&partial, &print('a'), ""), Err("it has no file 'ledger'".to_owned()));
    drop(partial);
    assert!(bench.names().is_empty(), "{:?}", bench.names());
}

#[test]
fn the_same_cell_from_two_laboratories_is_kept_once() {
    let bench = Bench::new("twice");
    let (one, two) = (bench.store(), bench.store());
    let identity = || {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(bench.file(&print('a'), LEDGER)).unwrap().ino()
    };
    let first = keep(&one, &print('a'), b"a ledger");
    let inode = identity();
    assert_eq!(keep(&two, &print('a'), b"a ledger"), first);
    assert_eq!(identity(), inode, "a reader of the first would have lost it");
    keep(&two, &print('a'), b"another ledger");
    assert_eq!(std::fs::read(first.ledger).unwrap(), b"another ledger");
    assert_eq!(bench.names(), [print('a')]);
}

#[test]
fn unfinished_cells_are_swept_once_nobody_has_them_open() {
    let bench = Bench::new("sweep");
    let store = bench.store();
    let living = store.partial().unwrap();
    std::fs::write(living.path().join(OUTPUT), "").unwrap();
    let name = living.path().file_name().unwrap().to_str().unwrap().to_owned();
    let dead = bench.0.join(".partial-1-1");
    std::fs::create_dir(&dead).unwrap();
    std::fs::write(dead.join("ledger.partial-7"), "half").unwrap();
    // Neither is ours.
    std::fs::write(bench.0.join(".partial-file"), "").unwrap();
    std::fs::create_dir(bench.0.join("mine")).unwrap();
    drop(bench.store());
    assert_eq!(bench.names(), [name, ".partial-file".to_owned(), "mine".to_owned()]);
    // A killed process leaves the directory without the lock.
    let kept = living.path().to_path_buf();
    let inherited = std::fs::File::open(&kept).unwrap();
    drop(living);
    std::fs::create_dir(&kept).unwrap();
    drop(inherited);
    drop(bench.store());
    assert_eq!(bench.names(), [".partial-file", "mine"]);
}

#[test]
fn a_name_that_is_taken_is_passed_over() {
    let bench = Bench::new("taken");
    let store = bench.store();
    let taken = store.partial().unwrap();
    let number: u64 = taken.path().to_str().unwrap().rsplit('-').next().unwrap().parse().unwrap();
    for next in number + 1..number + 50 {
        let name = format!("{PARTIAL}{}-{next}", std::process::id());
        // Another test may have counted so far meanwhile.
        let _ = std::fs::create_dir(bench.0.join(name));
    }
    let partial = store.partial().unwrap();
    assert!(partial.path().is_dir() && partial.path() != taken.path());
}

#[test]
fn pruning_removes_what_was_not_used_for_longest() {
    let bench = Bench::new("prune");
    let store = bench.store();
    for (digit, days) in [('a', 30), ('b', 2), ('c', 10), ('d', 1)] {
        keep(&store, &print(digit), &[0; 10_000]);
        age(&bench, &print(digit), days);
    }
    let nobody = BTreeSet::new();
    let all = store.prune(&Pruning { dry_run: true, ..Pruning::default() }, &nobody).unwrap();
    assert_eq!((all.removed.number, all.kept.number), (0, 4));
    let each = all.kept.bytes / 4;
    assert!((10_000..50_000).contains(&each), "{each}");
    let old = Pruning { age: Some(Duration::from_secs(9 * 86_400)), dry_run: true, ..Pruning::default() };
    assert_eq!(store.prune(&old, &nobody).unwrap().removed, prune::Size { number: 2, bytes: 2 * each });
    assert_eq!(bench.names().len(), 4, "nothing was to be removed");
    // The next to go would be c.
    store.find(&print('c'));
    let some = Pruning { keep: Some(2 * each), ..Pruning::default() };
    let spared = BTreeSet::from([bench.0.join(print('b'))]);
    let pruned = store.prune(&some, &spared).unwrap();
    assert_eq!(
        (pruned.removed.number, pruned.kept, pruned.failed),
        (2, prune::Size { number: 2, bytes: 2 * each }, None)
    );
    assert_eq!(bench.names(), [print('b'), print('c')]);
    let failed = store.partial().unwrap();
    assert_eq!(store.keep_output(&failed, &print('e')), None, "there is no output");
    std::fs::write(failed.path().join(OUTPUT), [0; 10_000]).unwrap();
    let output = store.keep_output(&failed, &print('e')).unwrap();
    drop(failed);
    let pruned = store.prune(&Pruning { keep: Some(0), ..Pruning::default() }, &BTreeSet::from([output])).unwrap();
    assert_eq!((pruned.removed.number, bench.names()), (2, vec![print('e') + FAILED]));
    keep(&store, &print('e'), &[0; 10_000]);
    keep(&store, &print('f'), &[0; 10_000]);
    assert_eq!(bench.names(), [print('e'), print('f')], "a finished cell has not failed");
    std::fs::write(bench.0.join(print('d') + FAILED), "").unwrap();
    std::fs::write(bench.0.join("notes.failed"), "").unwrap();
    let exact = store.prune(&some, &nobody).unwrap();
    assert_eq!(exact.removed.number, 0, "what fits stays");
    let everything = store.prune(&Pruning { keep: Some(0), ..Pruning::default() }, &nobody).unwrap();
    assert_eq!((everything.removed.number, everything.kept.bytes), (3, 0));
    assert_eq!(bench.names(), ["notes.failed"]);
}

#[test]
fn pruning_touches_nothing_that_is_not_certainly_a_cell() {
    let bench = Bench::new("foreign");
    let store = bench.store();
    let damaged = print('a');
    keep(&store, &damaged, b"a ledger");
    std::fs::remove_file(bench.file(&damaged, record::RECORD)).unwrap();
    let (foreign, upper, file) = (print('b'), "A".repeat(32), print('c'));
    std::fs::create_dir(bench.0.join(&foreign)).unwrap();
    std::fs::write(bench.file(&foreign, "thesis.tex"), "").unwrap();
    std::fs::create_dir(bench.0.join(&upper)).unwrap();
    std::fs::create_dir(bench.0.join("a".repeat(31))).unwrap();
    std::fs::write(bench.0.join(&file), "").unwrap();
    let pruned = store.prune(&Pruning { keep: Some(0), ..Pruning::default() }, &BTreeSet::new()).unwrap();
    assert_eq!((pruned.removed.number, pruned.kept.number), (1, 0));
    assert_eq!(bench.names(), [upper, "a".repeat(31), foreign, file]);
}

#[test]
fn nothing_is_removed_from_under_another_laboratory() {
    let bench = Bench::new("busy");
    assert!(Store::existing(&bench.0).unwrap().is_none());
    let (one, two) = (bench.store(), bench.store());
    keep(&one, &print('a'), b"a ledger");
    let everything = Pruning { keep: Some(0), ..Pruning::default() };
    assert_eq!(two.prune(&everything, &BTreeSet::new()), None);
    drop(two);
    let error = Store::existing(&bench.0).unwrap_err().to_string();
    assert!(error.contains("is in use by a running `tollgate lab`"), "{error}");
    drop(one);
    let pruner = Store::existing(&bench.0).unwrap().unwrap();
    // A run waits for it, or is told to stop.
    let error = Store::open(&bench.0, &AtomicBool::new(true)).unwrap_err().to_string();
    assert!(error.contains("is in use by another process that removes cells from it"), "{error}");
    std::thread::scope(|scope| {
        let run = scope.spawn(|| bench.store());
        std::thread::sleep(2 * directory::NAP);
        assert_eq!(pruner.prune(&everything, &BTreeSet::new()).unwrap().removed.number, 1);
        drop(pruner);
        run.join().unwrap();
    });
}

#[test]
fn a_store_that_is_no_directory_is_named() {
    let bench = Bench::new("file");
    std::fs::write(&bench.0, "").unwrap();
    for error in [Store::open(&bench.0, &AtomicBool::new(false)).unwrap_err(), Store::existing(&bench.0).unwrap_err()] {
        assert!(error.to_string().contains("can't be used for the results"), "{error}");
    }
    std::fs::remove_file(&bench.0).unwrap();
}

#[test]
fn a_store_that_can_only_be_read_has_its_cells() {
    let bench = Bench::new("read-only");
    keep(&bench.store(), &print('a'), b"a ledger");
    let set = |mode| {
        for path in [bench.0.clone(), bench.0.join(print('a'))] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    set(0o555);
    assert!(matches!(bench.store().find(&print('a')), Found::Finished(_)));
    set(0o755);
}

#[test]
fn pruning_sweeps_too_and_says_how_much() {
    let bench = Bench::new("prune-sweep");
    let store = bench.store();
    std::fs::create_dir(bench.0.join(".partial-1-1")).unwrap();
    std::fs::create_dir(bench.0.join(".partial-1-2")).unwrap();
    let nobody = BTreeSet::new();
    let dry = store.prune(&Pruning { dry_run: true, ..Pruning::default() }, &nobody).unwrap();
    assert_eq!((dry.unfinished, bench.names().len()), (0, 2));
    let wet = store.prune(&Pruning::default(), &nobody).unwrap();
    assert_eq!((wet.unfinished, bench.names().len()), (2, 0));
}

#[test]
fn a_cell_that_has_no_place_is_not_kept() {
    let bench = Bench::new("place");
    let store = bench.store();
    let partial = store.partial().unwrap();
    std::fs::write(partial.path().join(LEDGER), "x").unwrap();
    std::fs::write(partial.path().join(OUTPUT), "x").unwrap();
    let error = store.keep(&partial, "no/such", "").unwrap_err();
    assert!(error.contains("no/such can't be made: "), "{error}");
    drop(partial);
    assert!(bench.names().is_empty());
}
