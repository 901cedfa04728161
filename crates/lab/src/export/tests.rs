use super::*;
use crate::report::browser;
use inferno::collapse::{Collapse, perf};
use ledger::stack::{Keeps, Record, StackId};
use ledger::{Amount, Family, Header, Profile, Recorder, Symbol, Symbols};
use serde_json::Value;

const SYSCALL: Kind = Kind::new(Family::Syscall, 0);
const KERNEL: u64 = 0xffff_ffff_8100_0000;

/// Two tasks on two processors, with samples, a crossing and a trace.
fn ledger(trace: bool) -> Ledger {
    let mut recorder = Recorder::default().keeping(Keeps { interval: 21_000_000, crossings: true, trace });
    let who = |recorder: &mut Recorder, kind, pid, comm: &str| {
        let task = recorder.task(Task::new(kind, pid, pid, comm));
        recorder.origin(Origin { task, ..Origin::new(0, 0, 0x1000) })
    };
    let work = who(&mut recorder, TaskKind::Process, 42, "my work");
    let idle = who(&mut recorder, TaskKind::Idle, 0, "swapper/1");
    let deep = recorder.stack(&[KERNEL + 8, KERNEL + 0x48, 0x40_1000], true);
    let flat = recorder.stack(&[KERNEL + 0x44], false);
    recorder.add(work, KERNEL, SYSCALL, 3, 3000);
    recorder.add(idle, KERNEL, SYSCALL, 1, 1000);
    recorder.add_samples(work, deep, 3);
    recorder.add_samples(idle, flat, 1);
    recorder.add_crossing(work, deep, SYSCALL, Amount { count: 3, ticks: 3000 });
    let mut record = |time, cpu, origin, moment, ticks, stack| {
        if trace {
            recorder.trace(Record { time, cpu, origin, moment, ticks, stack });
        }
    };
    record(10_000, 0, work, Moment::Event(SYSCALL), 3000, deep);
    record(20_000, 0, work, Moment::Samples(3), 0, deep);
    record(30_000, 0, idle, Moment::Task, 0, StackId(0));
    record(5_000, 1, idle, Moment::Samples(1), 0, flat);
    let profile = Profile::named("skx").unwrap();
    let mut symbols = Symbols::default();
    let functions = vec![Symbol::new(KERNEL, 0x40, "do_syscall_64"), Symbol::new(KERNEL + 0x40, 0x40, "entry: it")];
    symbols.add("", ledger::AddressSpace::default(), functions);
    symbols.add("a.out", ledger::AddressSpace::default(), vec![Symbol::new(0x40_1000, 0x10, "main")]);
    Ledger::new(Header::new(&profile, vec![2000, 2000]), &recorder, &symbols)
}

fn bytes(ledger: &Ledger, weigh: &Weigh, format: Format) -> Vec<u8> {
    let export = Export { ledger, selection: ledger.all(), weigh };
    let bytes = export.to_bytes(format).unwrap();
    assert_eq!(bytes, export.to_bytes(format).unwrap(), "the same ledger gives the same bytes");
    bytes
}

fn json(ledger: &Ledger, weigh: &Weigh, format: Format) -> Value {
    serde_json::from_slice(&bytes(ledger, weigh, format)).unwrap()
}

#[test]
fn perf_script_is_read_by_those_who_collapse_stacks() {
    for trace in [false, true] {
        let text = bytes(&ledger(trace), &Weigh::Samples, Format::PerfScript);
        let mut lines = Vec::new();
        perf::Folder::default().collapse(&text[..], &mut lines).unwrap();
        let lines = String::from_utf8(lines).unwrap();
        assert_eq!(lines.lines().count(), 2, "{lines}");
        assert!(lines.contains("my_work;main;entry__it;do_syscall_64 "), "{lines}");
        assert!(lines.contains("[truncated];entry__it "), "{lines}");
    }
    let text = bytes(&ledger(true), &Weigh::Kinds(vec![SYSCALL]), Format::PerfScript);
    assert!(String::from_utf8(text).unwrap().contains("my_work 42/42 [000] 0.000000004: 1 SYSCALL: \n"));
}

#[test]
fn speedscope_s_file_is_as_its_schema_has_it() {
    let file = json(&ledger(false), &Weigh::Samples, Format::Speedscope);
    assert_eq!(file["$schema"], "https://www.speedscope.app/file-format-schema.json");
    let frames = file["shared"]["frames"].as_array().unwrap();
    assert!(frames.iter().all(|frame| frame["name"].is_string()));
    let profiles = file["profiles"].as_array().unwrap();
    assert_eq!(profiles.len(), 2);
    for profile in profiles {
        assert_eq!((&profile["type"], &profile["unit"]), (&"sampled".into(), &"nanoseconds".into()));
        let (samples, weights) = (profile["samples"].as_array().unwrap(), profile["weights"].as_array().unwrap());
        assert_eq!(samples.len(), weights.len());
        let sum: u64 = weights.iter().map(|weight| weight.as_u64().unwrap()).sum();
        assert_eq!(profile["endValue"].as_u64().unwrap() - profile["startValue"].as_u64().unwrap(), sum);
        let indices = samples.iter().flat_map(|stack| stack.as_array().unwrap());
        assert!(indices.into_iter().all(|frame| (frame.as_u64().unwrap() as usize) < frames.len()));
    }
    assert_eq!(profiles[0]["name"], "my work (42)");
    assert_eq!(file["activeProfileIndex"], 0);
}

#[test]
fn firefox_s_profile_has_tables_that_fit_together() {
    let profile = json(&ledger(true), &Weigh::Samples, Format::Firefox);
    assert!(profile["meta"]["preprocessedProfileVersion"].as_u64().unwrap() >= 50);
    let threads = profile["threads"].as_array().unwrap();
    assert_eq!(threads.len(), 2);
    let work = threads.iter().find(|thread| thread["name"] == "my work").unwrap();
    let samples = &work["samples"];
    assert_eq!(samples["length"], 1);
    assert_eq!(samples["weight"][0], 3);
    let strings = &work["stringArray"];
    // From the sample's stack to the names of its functions.
    let (mut names, mut stack) = (Vec::new(), samples["stack"][0].clone());
    while let Some(at) = stack.as_u64() {
        let frame = work["stackTable"]["frame"][at as usize].as_u64().unwrap() as usize;
        let function = work["frameTable"]["func"][frame].as_u64().unwrap() as usize;
        let name = work["funcTable"]["name"][function].as_u64().unwrap() as usize;
        names.push(strings[name].as_str().unwrap().to_owned());
        stack = work["stackTable"]["prefix"][at as usize].clone();
    }
    assert_eq!(names, ["do_syscall_64", "entry: it", "main [a.out]"]);
}

#[test]
fn firefox_s_thread_has_the_name_of_its_last_program() {
    let mut recorder = Recorder::default().keeping(Keeps { interval: 21_000_000, crossings: false, trace: true });
    let stack = recorder.stack(&[KERNEL], true);
    let tasks = [(82, 82, "init"), (82, 82, "python3"), (82, 83, "worker"), (0, 0, "swapper/0"), (0, 0, "swapper/1")];
    for (time, (pid, tid, comm)) in (1..).zip(tasks) {
        let kind = if pid == 0 { TaskKind::Idle } else { TaskKind::Process };
        let task = recorder.task(Task::new(kind, pid, tid, comm));
        let origin = recorder.origin(Origin { task, ..Origin::new(0, 0, KERNEL) });
        recorder.add(origin, KERNEL, SYSCALL, 1, 1000);
        recorder.add_samples(origin, stack, 1);
        recorder.trace(Record { time, cpu: 0, origin, moment: Moment::Samples(1), ticks: 0, stack });
    }
    let header = Header::new(&Profile::named("skx").unwrap(), vec![5000]);
    let profile = json(&Ledger::new(header, &recorder, &Symbols::default()), &Weigh::Samples, Format::Firefox);
    let threads = profile["threads"].as_array().unwrap();
    let shown = |thread: &Value| {
        let name = |key: &str| thread[key].as_str().unwrap().to_owned();
        (name("processName"), name("name"), thread["samples"]["length"].as_u64().unwrap())
    };
    let mut shown: Vec<_> = threads.iter().map(shown).collect();
    shown.sort();
    let expected = [
        ("python3", "python3", 2),
        ("python3", "worker", 1),
        ("swapper/0", "swapper/0", 1),
        ("swapper/1", "swapper/1", 1),
    ];
    assert_eq!(shown, expected.map(|(process, thread, count)| (process.to_owned(), thread.to_owned(), count)));
}

#[test]
fn a_trace_has_tracks_of_processors_and_tasks() {
    let trace = json(&ledger(true), &Weigh::Crossings, Format::Perfetto);
    let events = trace["traceEvents"].as_array().unwrap();
    for event in events {
        let keys: &[&str] = match event["ph"].as_str().unwrap() {
            "X" => &["name", "pid", "tid", "ts", "dur"],
            "i" => &["name", "pid", "tid", "ts", "s"],
            "M" => &["name", "pid", "args"],
            other => panic!("{other}"),
        };
        assert!(keys.iter().all(|key| !event[key].is_null()), "{event}");
        assert!(event["dur"].as_f64().is_none_or(|dur| dur >= 0.0));
    }
    let named = |name: &str| events.iter().filter(|event| event["name"] == name).count();
    assert_eq!((named("SYSCALL"), named("sample"), named("on CPU 0"), named("on CPU 1")), (1, 2, 2, 1));
    let without = ledger(false);
    let export = Export { ledger: &without, selection: without.all(), weigh: &Weigh::Crossings };
    assert_eq!(export.to_bytes(Format::Perfetto), Err(ExportError::NoTrace));
}

/// Returns what the script of a timeline draws.
fn drawn(page: &str) -> Value {
    let data = page.split_once("id=\"trace\">").unwrap().1.split_once("</script>").unwrap().0;
    serde_json::from_str(data).unwrap()
}

#[test]
fn a_timeline_has_the_tasks_of_each_processor_and_its_crossings() {
    let page = String::from_utf8(bytes(&ledger(true), &Weigh::Crossings, Format::Timeline)).unwrap();
    assert!(page.contains("<th scope=\"row\">my work</th><td class=\"number\">42</td>"), "{page}");
    let trace = drawn(&page);
    let (tasks, kinds) = (&trace["tasks"], &trace["kinds"]);
    assert_eq!(tasks[0], serde_json::json!(["my work", 42, 42, false]));
    assert_eq!(tasks[1], serde_json::json!(["swapper/1", 0, 0, true]));
    assert_eq!(*kinds, serde_json::json!(["SYSCALL"]));
    let numbers = |key: &str| trace[key].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect::<Vec<_>>();
    let runs = numbers("runs");
    assert_eq!(runs.len(), 3 * 4);
    let of = |cpu: u64| runs.chunks(4).filter(|run| run[0] == cpu).map(|run| run[1]).collect::<Vec<_>>();
    assert_eq!((of(0), of(1)), (vec![0, 1], vec![1]));
    assert_eq!(runs[2] + runs[3], runs[6], "a task runs until the next one does");
    assert_eq!((numbers("crossings").len(), numbers("samples").len()), (6, 10));
    let stack = trace["stacks"][numbers("crossings")[5] as usize - 1].as_array().unwrap();
    let names: Vec<&str> =
        stack.iter().map(|name| trace["names"][name.as_u64().unwrap() as usize].as_str().unwrap()).collect();
    assert_eq!(names, ["do_syscall_64", "entry: it", "main [a.out]"]);
    let without = ledger(false);
    let export = Export { ledger: &without, selection: without.all(), weigh: &Weigh::Crossings };
    assert_eq!(export.to_bytes(Format::Timeline), Err(ExportError::NoTrace));
}

#[test]
fn a_time_ends_with_its_region_and_halts_belong_to_nobody() {
    let mut recorder = Recorder::default().keeping(Keeps { interval: 0, crossings: false, trace: true });
    let region = recorder.region("work");
    let task = recorder.task(Task::new(TaskKind::Process, 7, 7, "it"));
    let [inside, outside] = [region, ledger::RegionId(0)]
        .map(|region| recorder.origin(Origin { task, region, ..Origin::new(0, 0, 0x1000) }));
    let halt = Kind::new(Family::Halt, 0);
    let moments = [
        (10_000, outside, SYSCALL, 0),
        (20_000, inside, SYSCALL, 0),
        (30_000, inside, halt, 4_000),
        (50_000, outside, SYSCALL, 0),
    ];
    for (time, origin, kind, ticks) in moments {
        recorder.add(origin, KERNEL, kind, 1, ticks.max(1));
        recorder.trace(Record { time, cpu: 0, origin, moment: Moment::Event(kind), ticks, stack: StackId(0) });
    }
    let profile = Profile::named("skx").unwrap();
    let ledger = Ledger::new(Header::new(&profile, vec![90_000]), &recorder, &Symbols::default());
    let page = |selection| Export { ledger: &ledger, selection, weigh: &Weigh::Crossings }.to_bytes(Format::Timeline);
    let of = |selection| String::from_utf8(page(selection).unwrap()).unwrap();
    let lengths = |page: &str| {
        let runs = drawn(page)["runs"].as_array().unwrap().clone();
        runs.chunks(4).map(|run| run[3].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let ns = |ticks: u64| ticks * 1_000_000_000 / (2_100_000_000 * ledger::TICKS_PER_CYCLE);
    let near = |found: Vec<u64>, ticks: &[u64]| {
        assert_eq!(found.len(), ticks.len());
        assert!(found.iter().zip(ticks).all(|(found, ticks)| found.abs_diff(ns(*ticks)) <= 1), "{found:?}");
    };
    near(lengths(&of(ledger.all())), &[80_000]);
    let work = of(ledger.region("work").unwrap());
    near(lengths(&work), &[30_000]);
    let milliseconds = format!("{:.3} ms", ns(26_000) as f64 / 1e6);
    assert!(work.contains(&format!("<td class=\"number\">{milliseconds}</td>")), "{work}");
    near(lengths(&of(ledger.region("(outside)").unwrap())), &[10_000, 40_000]);
}

#[test]
fn a_timeline_of_a_task_has_only_its_times() {
    let ledger = ledger(true);
    let selection = ledger.all().of_task("my work").unwrap();
    let page = Export { ledger: &ledger, selection, weigh: &Weigh::Crossings }.to_bytes(Format::Timeline).unwrap();
    let trace = drawn(&String::from_utf8(page).unwrap());
    let runs = trace["runs"].as_array().unwrap();
    assert_eq!((runs.len(), trace["tasks"].as_array().unwrap().len()), (4, 1));
    assert_ne!(runs[3], 0, "it ends where another task begins");
}

/// Operates the controls of the page; the report is in `found`.
const OPERATE: &str = r#"<script>
const canvas = document.querySelector("canvas"), at = (x, y) => ({ bubbles: true, pointerId: 1, clientX: canvas.getBoundingClientRect().x + x, clientY: canvas.getBoundingClientRect().y + y });
for (const button of document.querySelectorAll(".tools button")) button.click();
for (const key of ["+", "-", "ArrowLeft", "ArrowRight", "w", "a", "s", "d", "0"]) canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
canvas.dispatchEvent(new WheelEvent("wheel", { ctrlKey: true, deltaY: -200, bubbles: true, cancelable: true }));
document.querySelector("[data-do=all]").click();
document.querySelector("[type=checkbox]").click();
const search = document.querySelector("input[type=search]");
search.value = "my work";
search.dispatchEvent(new Event("input", { bubbles: true }));
canvas.dispatchEvent(new PointerEvent("pointermove", at(canvas.clientWidth - 20, 30)));
const found = { told: document.querySelector(".told b")?.textContent };
found.drawn = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some((one) => one);
</script>
"#;

#[test]
fn a_timeline_fits_its_window_and_its_script_makes_no_error() {
    let Some(browser) = browser::installed() else { return };
    let page = String::from_utf8(bytes(&ledger(true), &Weigh::Crossings, Format::Timeline)).unwrap();
    browser::opened(browser, "timeline", &page, ["", OPERATE], |width, dark| {
        format!("{{\"told\":\"my work (42)\",\"drawn\":true,\"wide\":0,\"width\":{width},\"dark\":{dark}}}")
    });
}
