use super::*;
use crate::difference::{Difference, pairs};
use crate::testing;

#[test]
fn a_cell_has_its_value_and_everything_charged() {
    let (experiment, result) = testing::results(4);
    let ids: Vec<String> = result.cells.iter().map(CellResult::id).collect();
    assert_eq!(ids, ["switch/native", "switch/before", "switch/after", "exits/before", "exits/after"]);
    let before = result.measured(&experiment, 0, 1).unwrap();
    // 800 blocks of 4, 40 MOV CR3, 12 misses, 40 exits with all that belongs to each.
    let cycles = 3200 + 40 * 180 + 12 * 35 + 40 * (900 + 600 + 400 + 8 * 5);
    assert_eq!(before.entries.total.ticks, cycles * 1000);
    let expected = cycles as f64 / 2.1e9 * 1e6 / 4.0;
    assert!((before.value - expected).abs() < expected * 1e-12, "{}", before.value);
    assert_eq!(before.entries.exits["CR_ACCESS"].count, 40);
    assert_eq!(before.entries.exit_symbols["load_cr3"], Tally { count: 40, ticks: 40 * 1_940_000 });
    assert_eq!(result.measured(&experiment, 1, 1).unwrap().value, 40.0);
    assert_eq!(result.cells[4].failure.as_deref(), Some("was ended by signal 9"));
}

#[test]
fn lists_add_up_to_the_total() {
    let (_, result) = testing::results(4);
    for cell in result.cells.iter().filter_map(|cell| cell.measured.as_ref()) {
        let entries = &cell.entries;
        let sum = |list: &Tallies| list.values().map(|tally| tally.ticks).sum::<u64>();
        let parts = [&entries.exits, &entries.operations, &entries.events, &entries.instructions];
        assert_eq!(parts.map(sum).iter().sum::<u64>(), entries.total.ticks);
        let charges = &cell.charges;
        assert_eq!(charges.causes().map(|cause| charges.of(cause).ticks).sum::<u64>(), entries.total.ticks);
    }
}

#[test]
fn differences_add_up_and_begin_with_what_explains_most() {
    let (experiment, result) = testing::results(4);
    for pair in pairs(&experiment) {
        let Some((before, after)) = pair.measured(&experiment, &result) else { continue };
        let difference = Difference::new(before, after);
        assert_eq!(difference.causes.iter().map(|c| c.ticks()).sum::<i128>(), difference.total.ticks());
        let sizes: Vec<u128> = difference.causes.iter().map(|c| c.ticks().unsigned_abs()).collect();
        assert!(sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
    }
}

#[test]
fn results_are_read_as_they_were_written() {
    let (_, mut result) = testing::results(4);
    let text = serde_json::to_string(&result).unwrap();
    for cell in &mut result.cells {
        cell.stacks.clear();
        cell.measured.iter_mut().for_each(|measured| measured.charges = Charges::default());
    }
    assert_eq!(serde_json::from_str::<ExperimentResult>(&text).unwrap(), result);
}

#[test]
fn a_region_that_is_not_there_is_named() {
    let ledger = testing::ledger(1);
    let error = measure::selection(&ledger, Some("play")).err().unwrap().to_string();
    assert_eq!(error, "its ledger has no region 'play'; it has: work");
}

#[test]
fn a_cell_says_which_kernel_has_no_names() {
    let (experiment, result) = testing::results(4);
    assert!(result.cells.iter().all(|cell| cell.nameless.is_empty()));
    let directory = std::env::temp_dir().join(format!("tollgate-lab-nameless-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let finished = Finished { ledger: directory.join("ledger"), output: directory.join("output") };
    let mut ledger = testing::ledger(4);
    ledger.symbols.clear();
    ledger.explain_unnamed(|part, _| format!("the reason for {}", part.name()));
    ledger.explain_tasks(false, "the reason for tasks".to_owned());
    std::fs::write(&finished.ledger, ledger.to_bytes().unwrap()).unwrap();
    std::fs::write(&finished.output, "some output\n").unwrap();
    let cell = cell(&experiment.cells()[0], &Outcome::Finished(finished)).0;
    std::fs::remove_dir_all(&directory).unwrap();
    // Programs seldom have names, and nobody is warned of them, nor of the tasks of a guest that is no Linux.
    assert_eq!(cell.unnamed.len(), 3);
    let [Nameless { share, code }] = &cell.nameless[..] else { panic!("{:?}", cell.nameless) };
    assert_eq!(code, "code of the kernel without names: the reason for kernel");
    assert!((0.8..0.95).contains(share), "{share}");
}
