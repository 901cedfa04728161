use super::*;
use ledger::{Entry, Gate, Header, Operation, Origin, Profile, Recorder, Stay, Symbol, Symbols, Task, TaskKind};

/// A run with everything in it; `scale` makes it longer.
pub(crate) fn sample(scale: u64) -> Ledger {
    const KERNEL: u64 = 0xffff_ffff_8100_0000;
    let profile = Profile::named("skx").expect("is built in");
    let costs = profile.costs();
    let mut recorder = Recorder::default();
    let region = recorder.region("work");
    recorder.region_begins(region);
    let task = recorder.task(Task::new(TaskKind::Process, 42, 42, "work"));
    let idle = recorder.task(Task::new(TaskKind::Idle, 0, 0, "swapper/0"));
    let [kernel, user] =
        [0, 3].map(|ring| recorder.origin(Origin { region, task, ..Origin::new(0, ring, 0x100_0000) }));
    let asleep = recorder.origin(Origin { task: idle, ..Origin::new(0, 0, 0x100_0000) });
    let mut clock = 0;
    for (origin, rip, runs) in [(kernel, KERNEL, 9000 * scale), (kernel, KERNEL + 0x80, 400), (user, 0x40_1000, 50_000)]
    {
        let counts = [(Class::Alu, 6), (Class::Load, 3), (Class::Store, 1), (Class::Branch, 1)];
        let shape = ledger::evenly_priced(&counts, &costs.class);
        clock += shape.iter().map(|part| part.2).sum::<u64>() * runs;
        let shape = recorder.shape(&shape);
        recorder.add_block(origin, rip, shape, runs);
    }
    for (origin, rip, kind, count) in [
        (user, 0x40_1010, Kind::new(Family::Syscall, 0), 800),
        (kernel, KERNEL + 0x30, Kind::new(Family::Sysret, 0), 800),
        (user, 0x40_1020, Kind::new(Family::Exception, 14), 25 * scale),
        (kernel, KERNEL + 0x90, Kind::new(Family::Iret, 0), 25 * scale),
        (kernel, KERNEL + 0x84, Kind::new(Family::ControlRegister, 3), 100),
        (kernel, KERNEL + 0x88, Kind::cpuid(0xd, 2), 3),
        (kernel, KERNEL + 0x8c, Kind::new(Family::Wrmsr, 0x6e0), 60),
        (kernel, KERNEL + 0x94, Kind::new(Family::PortOut, 0x3f8), 44),
        (kernel, KERNEL + 0x94, Kind::new(Family::PortIn, 0x3f8), 44),
        (kernel, KERNEL + 0x98, Kind::new(Family::MmioWrite, 2), 7),
        (kernel, KERNEL + 0x20, Kind::new(Family::TlbMissData, 4), 300 * scale),
        (user, 0x40_1000, Kind::new(Family::StlbHitData, 0), 900),
        (kernel, KERNEL + 0x24, Kind::new(Family::IndirectMiss, 0), 120),
        (kernel, KERNEL + 0x28, Kind::new(Family::Instruction, Class::StringStep as u32), 4096),
    ] {
        let price = match kind.family {
            Family::Instruction => u64::from(costs.class[kind.param as usize]),
            _ => costs.of(kind),
        };
        recorder.add(origin, rip, kind, count, price * count);
        clock += price * count;
    }
    for (gate, number, count, ticks) in [
        (Gate::Call, 1, 800, 900_000),
        (Gate::Exception, 14, 25 * scale, 2_104_000),
        (Gate::Interrupt, 0xec, 3, 4_000_000),
    ] {
        for longer in 0..count {
            let stay = Stay { ticks: ticks + 1000 * longer, enter: 42_000, mitigation: 506_000, leave: 42_000 };
            recorder.add_stay(kernel, Entry::new(gate, number), stay, gate == Gate::Exception && longer < 5);
        }
    }
    recorder.region_ends(region, clock);
    recorder.add(asleep, KERNEL + 0x100, Kind::new(Family::Halt, 0), 2, 4_200_000_000);
    clock += 4_200_000_000;
    let mut header = Header::new(&profile, vec![clock]);
    header.metadata.insert("command line".to_owned(), format!("console=ttyS0 scale={scale}"));
    header.metadata.insert("kernel".to_owned(), "vmlinuz-6.1.0".to_owned());
    header.names.insert(Kind::new(Family::PortOut, 0x3f8), "serial".to_owned());
    header.names.insert(Kind::new(Family::MmioWrite, 2), "virtio-blk".to_owned());
    let mut symbols = Symbols::default();
    let functions = [(0, 0x80, "entry_SYSCALL_64"), (0x80, 0x40, "exc_page_fault"), (0x100, 0x10, "default_idle")];
    symbols.add(
        "",
        ledger::AddressSpace::default(),
        functions.map(|(at, size, name)| Symbol::new(KERNEL + at, size, name)).to_vec(),
    );
    Ledger::new(header, &recorder, &symbols)
}

/// A run like [`sample`] as the guest of a hypervisor.
pub(crate) fn guest() -> Ledger {
    const KERNEL: u64 = 0xffff_ffff_8100_0000;
    let profile = Profile::named("core2").expect("is built in");
    let costs = profile.costs();
    let mut recorder = Recorder::default();
    let [host, host_user, kernel, user] =
        [(0, 0), (0, 3), (1, 0), (1, 3)].map(|(level, ring)| recorder.origin(Origin::new(level, ring, 0x100_0000)));
    let mut clock = 0;
    for (origin, rip, runs) in [(kernel, KERNEL, 9000), (user, 0x40_1000, 50_000)] {
        let counts = [(Class::Alu, 6), (Class::Load, 3), (Class::Store, 1), (Class::Branch, 1)];
        let shape = ledger::evenly_priced(&counts, &costs.class);
        clock += shape.iter().map(|part| part.2).sum::<u64>() * runs;
        let shape = recorder.shape(&shape);
        recorder.add_block(origin, rip, shape, runs);
    }
    for (origin, rip, kind, count) in [
        (user, 0x40_1010, Kind::new(Family::Syscall, 0), 800),
        (kernel, KERNEL + 0x30, Kind::new(Family::Sysret, 0), 800),
        (user, 0x40_1000, Kind::new(Family::TlbMissData, 4), 300),
        (host, KERNEL + 0x84, Kind::new(Family::VmExit, 28), 100),
        (host, KERNEL + 0x94, Kind::new(Family::VmExit, 30), 88),
        (host_user, 0x40_1020, Kind::new(Family::VmExit, 0), 25),
        (host, KERNEL + 0x84, Kind::new(Family::VmEntry, 0), 188),
        (host_user, 0x40_1020, Kind::new(Family::VmEntry, 0), 25),
        (host, KERNEL + 0x84, Kind::operation(Operation::RunLoop), 188),
        (host_user, 0x40_1020, Kind::operation(Operation::RunLoop), 25),
        (host, KERNEL + 0x84, Kind::operation(Operation::ControlRegister), 100),
        (host, KERNEL + 0x94, Kind::operation(Operation::DeviceUser), 88),
        (host_user, 0x40_1020, Kind::operation(Operation::GuestWalk), 50),
    ] {
        let ticks = costs.of(kind) * count;
        recorder.add(origin, rip, kind, count, ticks);
        clock += ticks;
    }
    let mut header = Header::new(&profile, vec![clock]);
    header.metadata.insert("platform".to_owned(), "hvm".to_owned());
    let mut symbols = Symbols::default();
    let functions = [(0, 0x80, "entry_SYSCALL_64"), (0x80, 0x40, "exc_page_fault")];
    symbols.add(
        "",
        ledger::AddressSpace::default(),
        functions.map(|(at, size, name)| Symbol::new(KERNEL + at, size, name)).to_vec(),
    );
    Ledger::new(header, &recorder, &symbols)
}

/// Returns a ledger with exits of a guest and of a nested guest, on this platform.
pub(crate) fn exits(platform: &str) -> Ledger {
    let profile = Profile::find("skx").expect("is built in");
    let mut recorder = Recorder::default();
    let [outer, inner] = [0, 1].map(|level| recorder.origin(Origin::new(level, 0, 0)));
    for (origin, gate, reason, count, longest) in [
        (outer, Gate::VmExit, 10, 100, 3_000_000),
        (outer, Gate::NestedExit, 10, 50, 4_000_000),
        (inner, Gate::VmExit, 10, 50, 90_000_000),
        (outer, Gate::Exception, 14, 1, 700_000),
    ] {
        for number in 1..=count {
            let ticks = if number == count { longest } else { 2_000_000 };
            let stay = Stay { ticks, enter: 700_000, mitigation: 20_000, leave: 500_000 };
            recorder.add_stay(origin, Entry::new(gate, reason), stay, false);
        }
    }
    let mut header = Header::new(&profile, vec![0]);
    header.metadata.insert("platform".to_owned(), platform.to_owned());
    Ledger::new(header, &recorder, &Symbols::default())
}

#[test]
fn exits_are_told_apart_by_both_levels() {
    let ledger = exits("hvm");
    insta::assert_snapshot!(text(&ledger, ledger.all(), Part::default(), Some(Table::Exit), 0));
    let values = entries::exit_values(&ledger, ledger.all().at_level(1), None);
    assert_eq!(values.len(), 1);
    let keys = ["count", "ticks", "median", "max", "mean", "processor", "software", "mitigation"];
    let ticks = 49 * 2_000_000 + 90_000_000;
    let mean = ticks / 50;
    let expected = [50, ticks, 2_000_000, 90_000_000, mean, 1_200_000, mean - 1_200_000, 20_000];
    assert_eq!(keys.map(|key| &values[0][key]), expected.map(|figure: u64| json!(figure)).each_ref());
    let sums = ["processor", "software"].map(|key| &values[0]["sums"][key]);
    assert_eq!(sums, [50 * 1_200_000, ticks - 50 * 1_200_000].map(|figure: u64| json!(figure)).each_ref());
    assert_eq!((&values[0]["guest"], &values[0]["hypervisor"]), (&json!("nested guest"), &json!("guest")));
    let bare = exits("bare");
    let first = &entries::exit_values(&bare, bare.all(), None)[0];
    assert_eq!((&first["guest"], &first["hypervisor"], &first["level"]), (&json!("guest"), &json!("host"), &json!(0)));
    let kernel: Vec<_> = ledger.all().entries().into_keys().collect();
    assert_eq!(kernel, [Entry::new(Gate::Exception, 14)]);
}

#[test]
fn the_parts_of_an_entry_are_means_as_its_mean_is() {
    let ledger = sample(1);
    for line in entries::values(&ledger, ledger.all(), None) {
        let [count, ticks, mean] = ["count", "ticks", "mean"].map(|key| line[key].as_u64().unwrap());
        assert_eq!(mean, ticks / count);
        let parts = ["enter", "mitigation", "handler", "leave"];
        for part in parts {
            assert_eq!(line[part].as_u64(), line["sums"][part].as_u64().map(|sum| sum / count), "{part}");
        }
        let sum: u64 = parts.iter().map(|part| line["sums"][part].as_u64().unwrap()).sum();
        assert!(sum == ticks && line["enter"] == 42_000, "{line}");
    }
}

#[test]
fn a_table_is_also_comma_separated() {
    let ledger = sample(1);
    let of = |by| {
        let chosen = Chosen { by: Some(by), top: Some(2) };
        let text = csv(&ledger, ledger.all(), Part::default(), chosen);
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    for by in Table::value_variants() {
        let lines = of(*by);
        let columns = |line: &String| line.split(',').count();
        let name = lines.first().is_none_or(|line| line.starts_with("name,") || line.starts_with("site,"));
        assert!(name && lines.len() <= 3, "{by:?}: {lines:?}");
        assert!(*by != Table::Symbol || lines.len() == 3 && columns(&lines[0]) == 4, "{lines:?}");
    }
}

#[test]
fn the_report_of_a_guest_reads_well() {
    let ledger = guest();
    ledger.verify().expect("is consistent");
    insta::assert_snapshot!(text(&ledger, ledger.all(), Part::default(), None, 6));
}

#[test]
fn what_the_hypervisor_did_for_whom_reads_well() {
    let ledger = guest();
    insta::assert_snapshot!(text(&ledger, ledger.all().at_level(0), Part::default(), Some(Table::Symbol), 0));
}

#[test]
fn the_report_reads_well() {
    let ledger = sample(1);
    ledger.verify().expect("is consistent");
    insta::assert_snapshot!(text(&ledger, ledger.all(), Part::default(), None, 6));
}

#[test]
fn one_table_of_one_region_reads_well() {
    let ledger = sample(1);
    insta::assert_snapshot!(text(
        &ledger,
        ledger.region("work").unwrap(),
        Part { region: Some("work"), task: None },
        Some(Table::Kind),
        0
    ));
}

#[test]
fn programs_are_told_everything() {
    let ledger = sample(1);
    let mut text = String::new();
    let mut print = |part: &str| {
        text.push_str(part);
        Ok(())
    };
    document(&ledger, ledger.all(), Part::default(), Chosen::default(), Vec::new(), &mut print).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(format!("{value:#}\n"), text, "it is printed as one document would be");
    let ticks = |list: &str| value[list].as_array().unwrap().iter().map(|l| l["ticks"].as_u64().unwrap()).sum::<u64>();
    let clock = ledger.header.clocks[0];
    for list in ["symbols", "rings", "levels", "spaces", "regions", "tasks"] {
        assert_eq!(ticks(list), clock, "{list}");
    }
    assert_eq!(value["run"]["consistent"], true);
    assert_eq!(value["devices"]["serial"]["writes"]["count"], 44);
}

#[test]
fn a_guest_that_has_moved_has_that_below_the_processor() {
    let mut ledger = sample(1);
    ledger.header.metadata.insert(MOVED.to_owned(), "core2 to zen3 after 1000 cycles".to_owned());
    let shown = text(&ledger, ledger.all(), Part::default(), Some(Table::Ring), 0);
    let lines: Vec<&str> = shown.lines().take(2).collect();
    assert!(
        lines[0].starts_with("processor ") && lines[1] == "moved         core2 to zen3 after 1000 cycles",
        "{shown}"
    );
    assert_eq!(shown.matches("moved ").count(), 1);
}

#[test]
fn code_without_names_is_said() {
    let mut ledger = sample(1);
    ledger.explain_unnamed(|part, _| format!("a reason for {}", part.name()));
    let shown = text(&ledger, ledger.all(), Part::default(), Some(Table::Ring), 0);
    assert!(
        shown.contains("\nwithout names 64.19% of the time, in code of programs: a reason for programs\n"),
        "{shown}"
    );
    assert!(!shown.contains("unnamed"), "its fact is not shown twice: {shown}");
    let mut printed = String::new();
    let mut print = |part: &str| {
        printed.push_str(part);
        Ok(())
    };
    document(&ledger, ledger.all(), Part::default(), Chosen::default(), Vec::new(), &mut print).unwrap();
    let value: Value = serde_json::from_str(&printed).unwrap();
    let unnamed = value["unnamed"].as_array().unwrap();
    assert_eq!(unnamed.len(), 1);
    assert_eq!((&unnamed[0]["part"], &unnamed[0]["nested"]), (&json!("programs"), &json!(false)));
    let ticks = ledger.all().unnamed()[0].ticks;
    assert_eq!((&unnamed[0]["ticks"], &unnamed[0]["reason"]), (&json!(ticks), &json!("a reason for programs")));
    assert!((unnamed[0]["share"].as_f64().unwrap() - 0.6419).abs() < 0.0001);
}

/// Returns the JSON of the sample with these options.
fn chosen(by: Option<Table>, top: Option<usize>) -> Value {
    let ledger = sample(1);
    let mut text = String::new();
    let mut print = |part: &str| {
        text.push_str(part);
        Ok(())
    };
    document(&ledger, ledger.all(), Part::default(), Chosen { by, top }, Vec::new(), &mut print).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn programs_are_told_the_table_that_people_see() {
    let ledger = sample(1);
    let mut tables = Vec::new();
    for by in Table::value_variants() {
        let value = chosen(Some(*by), Some(2));
        let members = value.as_object().unwrap();
        let head = ["region", "run", "task", "total", "unnamed"];
        let table: Vec<_> = members.iter().filter(|(name, _)| !head.contains(&name.as_str())).collect();
        let [(name, table)] = table[..] else { panic!("{by:?}: {members:?}") };
        tables.push(name.clone());
        let Value::Array(lines) = table else {
            assert_eq!((name.as_str(), table.as_object().unwrap().len()), ("classes", 2));
            continue;
        };
        assert!(lines.len() <= 2, "{name}");
        // The lines are those of the text, in its order.
        let text = text(&ledger, ledger.all(), Part::default(), Some(*by), 2);
        let names = lines.iter().map(|line| line["name"].as_str().unwrap());
        let at: Vec<_> = names.map(|name| text.rfind(name).unwrap_or_else(|| panic!("{name}: {text}"))).collect();
        assert!(at.is_sorted(), "{name}: {text}");
    }
    let known = [
        "symbols",
        "addresses",
        "kinds",
        "classes",
        "spaces",
        "rings",
        "levels",
        "regions",
        "tasks",
        "comms",
        "entries",
        "exits",
        "call_sites",
    ];
    assert_eq!(tables, known);
    let length = |by, top| chosen(Some(by), top)["kinds"].as_array().unwrap().len();
    assert_eq!(length(Table::Kind, Some(0)), length(Table::Kind, None));
    assert_eq!(chosen(None, Some(0)), chosen(None, None));
    let top = chosen(None, Some(1));
    for list in ["symbols", "entries", "kinds", "rings", "levels", "spaces", "regions", "tasks"] {
        assert_eq!(top[list].as_array().unwrap().len(), 1, "{list}");
    }
    assert_eq!(top["devices"].as_object().unwrap().keys().collect::<Vec<_>>(), ["serial"]);
}

#[test]
fn functions_are_called_as_often_as_their_first_block_runs() {
    let ledger = sample(1);
    let symbols: Vec<Value> = symbol_lines(&ledger, ledger.all(), None).collect();
    let calls = |name: &str| symbols.iter().find(|line| line["name"] == name).map(|line| line["calls"].clone());
    assert_eq!(calls("entry_SYSCALL_64"), Some(json!(9000)));
    assert_eq!(calls("exc_page_fault"), Some(json!(400)));
    // It was charged, but not from its first address on; and what has no symbol is not one function.
    assert_eq!(calls("default_idle"), Some(json!(0)));
    assert_eq!(calls("[user code]"), Some(json!(0)));
}

#[test]
fn tasks_are_identified_by_fields_of_their_own() {
    let mut ledger = sample(1);
    for task in ledger.tasks.iter_mut().filter(|task| task.pid == 42) {
        (task.comm, task.tid) = ("[interrupts]".to_owned(), 43);
    }
    let tasks: Vec<Value> = task_lines(&ledger, ledger.all(), None).collect();
    let line = |name: &str| tasks.iter().find(|task| task["name"] == name).unwrap_or_else(|| panic!("{tasks:?}"));
    let fields = |name| ["kind", "pid", "tid", "comm"].map(|field| line(name)[field].clone());
    let process = [json!("process"), json!(42), json!(43), json!("[interrupts]")];
    assert_eq!(fields("\"[interrupts]\" (42, thread 43)"), process);
    assert_eq!(fields("swapper/0 [idle]"), [json!("idle"), json!(0), json!(0), json!("swapper/0")]);
}

#[test]
fn an_unknown_task_is_refused_with_those_there_are() {
    let ledger = sample(1);
    let error = select_task(ledger.all(), Some("play")).err().expect("there is none").to_string();
    assert_eq!(error, "the ledger has no task 'play'; it has: work");
    assert_eq!(select_task(ledger.all(), Some("42")).unwrap().total(), ledger.region("work").unwrap().total());
}

#[test]
fn a_report_says_which_part_of_a_run_it_is_about() {
    let ledger = sample(1);
    let part = Part { region: Some("(outside)"), task: Some("[no task]") };
    let selection = select_task(select(&ledger, part.region).unwrap(), part.task).unwrap();
    let head = text(&ledger, selection, part, Some(Table::Kind), 1);
    assert!(head.contains("\nregion        (outside)\ntask          [no task]\n"), "{head}");
    let mut json = String::new();
    let mut print = |part: &str| {
        json.push_str(part);
        Ok(())
    };
    document(&ledger, selection, part, Chosen::default(), Vec::new(), &mut print).unwrap();
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&value["region"], &value["task"]), (&json!("(outside)"), &json!("[no task]")));
}

#[test]
fn the_tasks_read_well() {
    let ledger = sample(1);
    insta::assert_snapshot!(text(&ledger, ledger.all(), Part::default(), Some(Table::Task), 0));
}

#[test]
fn an_unknown_region_is_refused_with_those_there_are() {
    let ledger = sample(1);
    let error = select(&ledger, Some("play")).err().expect("there is none").to_string();
    assert_eq!(error, "the ledger has no region 'play'; it has: work");
}

#[test]
fn a_contradiction_is_shown() {
    let mut ledger = sample(1);
    ledger.header.clocks[0] += 1;
    assert!(
        text(&ledger, ledger.all(), Part::default(), None, 1).contains("\nbalance       WRONG: the entries add up to ")
    );
}

#[test]
fn long_names_are_shortened_in_the_middle() {
    assert_eq!(shortened("short"), "short");
    let long = "a".repeat(50) + &"z".repeat(50);
    assert_eq!(shortened(&long), "a".repeat(21) + ".." + &"z".repeat(21));
}
