use super::*;
use crate::diff::paid::COMMAND;
use ledger::stays::Stay;
use ledger::{Entry, Header, Origin, Profile, Recorder, Symbols, Task, TaskKind, evenly_priced};

/// Returns the ledger of a command that executes loads and branches, `more` of each, beside an interrupt and another task.
fn ledger(more: u64) -> Ledger {
    let profile = Profile::named("skx").unwrap();
    let costs = profile.costs();
    let mut recorder = Recorder::default();
    let (command, others) = (recorder.region(COMMAND), recorder.region(OTHERS));
    recorder.region_begins(command);
    recorder.region_begins(others);
    let task = recorder.task(Task::new(TaskKind::Process, 7, 7, "work"));
    let own = Origin { region: command, task, ..Origin::new(0, 3, 0) };
    let user = recorder.origin(own);
    let kernel = recorder.origin(Origin { ring: 0, ..own });
    let interrupt = recorder.origin(Origin { ring: 0, context: Context::Interrupt, ..own });
    let other = recorder.origin(Origin { region: others, ..Origin::new(0, 0, 0) });
    let mut clock = 0;
    let shape = evenly_priced(&[(Class::Load, 3), (Class::Branch, 1)], &costs.class);
    let ticks: u64 = shape.iter().map(|part| part.2).sum();
    let shape = recorder.shape(&shape);
    for (origin, runs) in [(user, 1000 + more), (kernel, 500), (interrupt, 10), (other, 20)] {
        recorder.add_block(origin, 0x1000, shape, runs);
        clock += ticks * runs;
    }
    for (origin, kind, count) in [
        (user, Kind::new(Family::Syscall, 0), 5),
        (kernel, Kind::new(Family::Exception, 14), 2),
        (user, Kind::new(Family::IndirectMiss, 0), 40),
        (user, Kind::new(Family::TlbMissData, 4), 30),
        (kernel, Kind::cache_miss(false, 2, false), 50),
        (kernel, Kind::cache_miss(false, 3, true), 20),
        (kernel, Kind::cache_miss(false, Kind::MEMORY, false), 10),
    ] {
        recorder.add(origin, 0x1000, kind, count, 7000 * count);
        clock += 7000 * count;
    }
    let stay = Stay { ticks: 100, ..Stay::default() };
    recorder.add_stay(kernel, Entry::new(Gate::Call, 1), stay, false);
    recorder.add_stay(interrupt, Entry::new(Gate::Interrupt, 0x30), stay, false);
    recorder.region_ends(command, 2 * clock);
    recorder.region_ends(others, 2 * clock);
    Ledger::new(Header::new(&profile, vec![clock]), &recorder, &Symbols::default())
}

fn subject(model: &'static str) -> Subject {
    Subject {
        command: "work -n 3".to_owned(),
        processor: "a processor".to_owned(),
        profile: "skx".to_owned(),
        model,
        kernel: Some("6.1.0".to_owned()),
        version: "1.2.3".to_owned(),
    }
}

fn stat(clock: Clock, more: &[u64]) -> Stat {
    let seed = |number: usize| (more.len() > 1).then_some(number as u64 + 1);
    let run = |(number, more): (usize, &u64)| Run::of(&ledger(*more), seed(number), Some(250)).unwrap();
    let runs: Vec<Run> = more.iter().enumerate().map(run).collect();
    Stat::new(subject(clock.name()), 2_000_000_000, clock, &runs)
}

fn value(stat: &Stat, name: &str) -> Option<f64> {
    stat.counters.iter().find(|counter| counter.name == name).unwrap_or_else(|| panic!("{name}")).value
}

#[test]
fn counts_are_of_the_command_alone() {
    let stat = stat(Clock::Core, &[0]);
    let expected = [
        ("instructions", 6000.0),
        ("branches", 1500.0),
        ("branch-misses", 40.0),
        ("L1-dcache-misses", 80.0),
        ("L2-data-misses", 30.0),
        ("L3-data-misses", 10.0),
        ("dTLB-misses, page walk", 30.0),
        ("system-calls", 1.0),
        ("page-faults", 2.0),
        ("interrupts", 1.0),
    ];
    for (name, count) in expected {
        assert_eq!(value(&stat, name), Some(count), "{name}");
    }
    let sum = value(&stat, "cycles:u").unwrap() + value(&stat, "cycles:k").unwrap();
    assert!((sum - value(&stat, "cycles").unwrap()).abs() < 1e-6);
    assert!(value(&stat, "cycles of interrupts and other tasks").unwrap() > 0.0);
    assert!(stat.counters.iter().all(|counter| counter.name != "vm-exits"), "there are none");
}

#[test]
fn what_the_model_does_not_count_is_said() {
    let stat = stat(Clock::Flat, &[0]);
    assert_eq!((value(&stat, "L1-dcache-misses"), value(&stat, "branch-misses")), (None, Some(40.0)));
    assert!(stat.text().contains("<not modelled>  L1-dcache-misses\n"), "{}", stat.text());
}

#[test]
fn a_model_of_a_core_has_its_cycles_top_down() {
    let stat = stat(Clock::Core, &[0]);
    let cycles = value(&stat, "cycles").unwrap();
    let sum: f64 = stat.top_down.iter().map(|counter| counter.value.unwrap()).sum();
    assert!((sum - cycles).abs() < 1e-6, "{sum} {cycles}");
    assert_eq!(stat.top_down[0].name, "retiring");
    assert_eq!(stat.top_down[0].value, Some(1500.0), "6000 instructions, four a cycle");
    assert!(self::stat(Clock::Flat, &[0]).top_down.is_empty());
}

#[test]
fn the_deviation_is_that_of_the_mean() {
    let stat = stat(Clock::Flat, &[0, 300, 600, 900]);
    let counter = stat.counters.iter().find(|counter| counter.name == "instructions").unwrap();
    let runs = [6000.0, 7200.0, 8400.0, 9600.0];
    let mean = 7800.0;
    let variance = runs.iter().map(|value: &f64| (value - mean).powi(2)).sum::<f64>() / 3.0;
    assert_eq!((counter.value, &counter.runs[..]), (Some(mean), &runs[..]));
    assert!((counter.deviation.unwrap() - variance.sqrt() / 2.0 / mean).abs() < 1e-12);
}

#[test]
fn the_table_reads_well() {
    insta::assert_snapshot!("one", stat(Clock::Core, &[0]).text());
    insta::assert_snapshot!("several", stat(Clock::Flat, &[0, 300, 600, 900]).text());
}

#[test]
fn each_run_is_a_row() {
    let text = stat(Clock::Flat, &[0, 100]).csv();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("command,seed,elapsed,user,sys,task-clock,cycles,"), "{text}");
    assert!(lines[0].contains("\"dTLB-misses, page walk\"") && !lines[0].contains("L1-dcache"), "{text}");
    let at = lines[0].split(',').position(|name| name == "instructions").unwrap();
    let instructions = |line: &str| line.split(',').nth(at).unwrap().to_owned();
    assert_eq!(
        (lines.len(), instructions(lines[1]), instructions(lines[2])),
        (3, "6000".to_owned(), "6400".to_owned())
    );
    assert!(lines[2].starts_with("work -n 3,2,"));
    // A run without a drawn layout has no seed.
    assert!(stat(Clock::Core, &[0]).csv().lines().nth(1).unwrap().starts_with("work -n 3,,"));
}
