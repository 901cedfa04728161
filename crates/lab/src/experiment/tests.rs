use super::*;

const GOOD: &str = r#"
title = "Sample"
[source]
text = "Somebody, once"
reference = "<1@example.org>"
[defaults]
profile = "skx"
platform = "hvm"
append = "always=1"
[guest.g]
image = "g.elf"
made-by = "make"
[[column]]
id = "a"
title = "A"
set = { mmu = "shadow" }
[[column]]
id = "b"
title = "B"
set = { mmu = "tdp", append = "column=1" }
[[row]]
id = "r"
title = "R"
set = { guest = "g", append = "row=1" }
metric = { region = "work", per = 10, unit = "us" }
published = { a = 1.5 }
[[factor]]
from = "a"
to = "b"
"#;

fn parsed(text: &str) -> Result<Experiment, String> {
    parse::experiment("x.toml", "x", None, text).map_err(|error| error.to_string())
}

#[track_caller]
fn refused(change: (&str, &str), message: &str) {
    assert!(GOOD.contains(change.0), "{}", change.0);
    let error = parsed(&GOOD.replacen(change.0, change.1, 1)).expect_err("should be refused");
    assert!(error.contains(message), "{error}");
    assert!(error.starts_with("x.toml:") && !error.contains('\n'), "{error}");
}

#[test]
fn the_built_in_experiments_are_good() {
    for name in names() {
        let experiment = Experiment::named(name).unwrap_or_else(|error| panic!("{error}"));
        assert!(!experiment.cells().is_empty(), "{name}");
    }
}

#[test]
fn a_cell_has_what_experiment_column_and_row_set() {
    let experiment = parsed(GOOD).unwrap();
    let cells = experiment.cells();
    assert_eq!(cells.iter().map(Cell::id).collect::<Vec<_>>(), ["r/a", "r/b"]);
    let line = |cell: &Cell| cell.arguments().join(" ");
    assert_eq!(
        cells.iter().map(line).collect::<Vec<_>>(),
        [
            "run --kernel g.elf --append always=1 row=1 --cpu skx --model flat --platform hvm --mmu shadow",
            "run --kernel g.elf --append always=1 column=1 row=1 --cpu skx --model flat --platform hvm --mmu tdp"
        ]
    );
    assert_eq!(cells.iter().map(Cell::published).collect::<Vec<_>>(), [Some(1.5), None]);
    assert_eq!(experiment.factors, [Factor::Columns(0, 1)]);
}

#[test]
fn a_cell_whose_value_is_of_a_sink_prints_the_sinks_figures() {
    let text = GOOD.replacen("unit = \"us\"", "sink = \"lost\", unit = \"frames\"", 1);
    let experiment = parsed(&text).unwrap();
    assert!(experiment.rows[0].metric.is_count());
    assert!(experiment.cells()[0].arguments().ends_with(&["--json".to_owned()]));
    assert!(!experiment.cells()[0].boot_arguments().contains(&"--json".to_owned()), "the boot is the same");
}

#[test]
fn a_cell_names_its_model_of_time() {
    let models = |setting: &str| {
        let text = GOOD.replacen("profile = \"skx\"", &format!("profile = \"skx\"\n{setting}"), 1);
        parsed(&text).map(|experiment| experiment.cells()[0].arguments().join(" "))
    };
    assert!(models("").unwrap().contains("--model flat"));
    assert!(models("model = \"core\"").unwrap().contains("--model core"));
    assert!(models("model = \"exact\"").unwrap_err().to_string().contains("expected `flat` or `core`"));
}

#[test]
fn on_kvm_switches_are_parameters_and_variants_of_its_modules() {
    let text = GOOD.replacen("platform = \"hvm\"", "platform = \"kvm\"\ncr0-wp = \"in-place\"\ncpus = 2", 1);
    let experiment = parsed(&text).unwrap();
    let lines: Vec<String> = experiment.cells().iter().map(|cell| cell.arguments().join(" ")).collect();
    let line = |words: &str| {
        format!("run --kernel g.elf --append always=1 {words} tollgate.cpus=2 --cpu skx --model flat --cpus 3")
    };
    let expected = [
        "row=1 kvm_intel.ept=0 tollgate.kvm=cr0-wp-in-place",
        "column=1 row=1 kvm.tdp_mmu=1 tollgate.kvm=cr0-wp-in-place",
    ];
    assert_eq!(lines, expected.map(line));
}

#[test]
fn what_makes_no_sense_is_named() {
    let cases = [
        ("append = \"always=1\"", "vmexit = 0", "x.toml:9:1: unknown field `vmexit`"),
        ("profile = \"skx\"", "profile = \"mine.toml\"", "defaults.profile: 'mine.toml' is none of"),
        ("profile = \"skx\"\n", "", "row.r with column.a: no profile is set"),
        (
            "platform = \"hvm\"",
            "platform = \"bare\"",
            "row.r with column.a: mmu is for the platforms hvm and kvm, this is bare",
        ),
        ("platform = \"hvm\"", "platform = \"kvm\"\nunsync = \"off\"", "row.r with column.a: KVM has no unsync off"),
        ("platform = \"hvm\"", "platform = \"xen\"", "unknown variant `xen`"),
        ("append = \"always=1\"", "vpid = \"yes\"", "x.toml:9:8: unknown variant `yes`, expected `on` or `off`"),
        ("append = \"always=1\"", "vpid = true", "x.toml:9:8: invalid type: boolean `true`, expected a string"),
        ("append = \"always=1\"", "mmu-pages = -1", "x.toml:9:13: invalid value: integer `-1`, expected u32"),
        ("guest = \"g\"", "guest = \"h\"", "row.r.set.guest: 'h' is none of g"),
        ("guest = \"g\"", "guest = \"g\", mmu = \"tdp\"", "row.r with column.a: both set mmu"),
        ("image = \"g.elf\"", "", "guest.g: must have either image or kernel"),
        ("id = \"b\"", "id = \"a\"", "a: is the id of two rows or columns"),
        ("id = \"b\"", "id = \"B\"", "column.id: 'B' should be lower-case letters, digits and hyphens"),
        ("per = 10", "per = 0", "row.r.metric.per: should be above 0, is 0"),
        ("per = 10", "times = 10", "row.r.scale: is missing: a value that is scaled must say how"),
        ("unit = \"us\"", "unit = \"weeks\"", "row.r.metric.unit: 'weeks' is none of ns, us, ms, s"),
        ("region = \"work\", ", "", "row.r.metric: has none of region, result, counted, count and sink"),
        (
            "per = 10",
            "sink = \"jitter\"",
            "row.r.metric.sink: 'jitter' is none of frames, lost, reordered, rate, latency-min",
        ),
        ("per = 10", "sink = \"rate\"", "row.r.metric.unit: 'us' is none of pps, kpps, Mpps"),
        (
            "per = 10",
            "sink = \"lost\", count = \"x\"",
            "row.r.metric: has more than one of result, counted, count and sink",
        ),
        ("a = 1.5", "c = 1.5", "row.r.published.c: there is no such column"),
        ("a = 1.5", "a = -1.5", "row.r.published.a: should be above 0, is -1.5"),
        ("to = \"b\"", "to = \"r\"", "factor: 'a' and 'r' are neither two columns nor two rows"),
        (
            "[source]",
            "relative-to = { row = \"r\", column = \"b\" }\n[source]",
            "relative-to: is a cell without a published figure",
        ),
        ("[source]", "relative-to = { row = \"s\", column = \"a\" }\n[source]", "relative-to.row: there is no row 's'"),
        ("title = \"Sample\"", "title = \"\"", "title: is empty"),
        ("title = \"Sample\"", "title =", "x.toml:2:8: "),
        ("title = \"Sample\"", "title = \"é\", 1", "x.toml:2:12: "),
        ("[source]", "[defaults]", "x.toml:6:2: duplicate key"),
        (
            "made-by = \"make\"",
            "made-by = \"make\"\nstatus = 124",
            "guest.g.status: 124 is no status to expect: it says",
        ),
        ("made-by = \"make\"", "made-by = \"make\"\nstatus = 256", "guest.g.status: should be 0 to 255, is 256"),
        (
            "title = \"Sample\"",
            "title = \"Sample\"\nsample = \"10\"",
            "sample: is not a time from 100ns on, with its unit",
        ),
    ];
    for (from, to, message) in cases {
        refused((from, to), message);
    }
    let sourceless = GOOD.replace("[source]\ntext = \"Somebody, once\"\nreference = \"<1@example.org>\"\n", "");
    assert!(parsed(&sourceless).unwrap_err().contains("source: is missing"));
}

#[test]
fn every_switch_can_be_set() {
    use hypervisor::config::Switches;
    use hypervisor::switches::Takes;
    for switch in Switches::ALL {
        let (text, value) = match switch.takes {
            Takes::Word(_, words) => (format!("\"{}\"", words[0]), words[0]),
            Takes::OnOff => ("\"off\"".to_owned(), "off"),
            Takes::Number => ("100".to_owned(), "100"),
        };
        let set = GOOD.replace("mmu = \"shadow\"", "").replace("mmu = \"tdp\", ", "");
        let set = set.replace("append = \"always=1\"", &format!("{} = {text}", switch.name));
        let experiment = parsed(&set).unwrap_or_else(|error| panic!("{}: {error}\n{set}", switch.name));
        let arguments = experiment.cells()[0].arguments();
        let at = arguments.iter().position(|argument| *argument == format!("--{}", switch.name));
        assert_eq!(at.map(|at| arguments[at + 1].as_str()), Some(value), "{}", switch.name);
    }
}

#[test]
fn what_is_not_there_is_named() {
    let error = Experiment::find("pv-cr4").unwrap_err().to_string();
    assert!(error.contains("there is no experiment 'pv-cr4'; there are: pv-cr3"), "{error}");
    let picture = std::env::temp_dir().join(format!("tollgate-picture-{}.toml", std::process::id()));
    std::fs::write(&picture, b"\x89PNG\r\n\xff").unwrap();
    let error = Experiment::load(&picture).unwrap_err().to_string();
    std::fs::remove_file(&picture).unwrap();
    assert!(error.ends_with("is no experiment: it is not text"), "{error}");
    let error = Experiment::find("./nowhere.toml").unwrap_err().to_string();
    assert!(error.contains("./nowhere.toml can't be read"), "{error}");
}

/// Returns the first code block of a language in a document.
fn block(document: &str, language: &str) -> String {
    let start = format!("```{language}\n");
    let (_, rest) = document.split_once(&start).expect("the document has such a block");
    rest.split("```").next().unwrap_or_default().to_owned()
}

#[test]
fn the_sweep_of_the_guide_is_an_experiment() {
    let script = block(include_str!("../../../../docs/guides/slurm.md"), "sh");
    let (script, run) = script.rsplit_once("tollgate lab run").unwrap();
    assert!(run.starts_with(" ./sweep.toml "), "{run}");
    let directory = std::env::temp_dir().join(format!("tollgate-sweep-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let ran = std::process::Command::new("sh").args(["-e", "-c", script]).current_dir(&directory).status().unwrap();
    assert!(ran.success());
    let sweep = Experiment::load(&directory.join("sweep.toml")).map_err(|error| error.to_string());
    std::fs::remove_dir_all(&directory).unwrap();
    let sweep = sweep.unwrap();
    assert_eq!((sweep.rows.len(), sweep.columns.len(), sweep.cells().len()), (1000, 5, 5000));
    assert_eq!(sweep.cells()[0].full_id(), "sweep/n1000/core2");
}

#[test]
fn the_experiment_of_the_guide_is_one() {
    let text = block(include_str!("../../../../docs/guides/lab.md"), "toml");
    let experiment = parsed(&text).unwrap();
    assert_eq!(experiment.cells().iter().map(Cell::id).collect::<Vec<_>>(), ["syscall/skx", "syscall/icx"]);
}

#[test]
fn a_matrix_has_a_limit() {
    let line = |kind: &str, n: usize| format!("[[{kind}]]\nid = \"{}{n}\"\ntitle = \"t\"\n", &kind[..1]);
    let many = |kind: &str, count: usize| (0..count).map(|n| line(kind, n)).collect::<String>();
    let (head, _) = GOOD.split_once("[[column]]").unwrap();
    let text = |columns, rows| {
        let set = head.replace("append", "guest = \"g\"\nappend") + "[metric]\nregion = \"work\"\nunit = \"us\"\n";
        set + &many("column", columns) + &many("row", rows)
    };
    assert_eq!(parsed(&text(2, 1000)).unwrap().cells().len(), 2000);
    assert_eq!(parsed(&text(1, 10_001)).unwrap_err(), "x.toml: row: there should be 1 to 10000, there are 10001");
    let error = parsed(&text(101, 1000)).unwrap_err();
    assert_eq!(error, "x.toml: row: there should be at most 100000 cells, there are 101000");
}
