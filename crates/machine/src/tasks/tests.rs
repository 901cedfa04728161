//! Tests with a kernel of a few instructions, in real mode, whose functions have the names of a real kernel's.

use super::*;
use crate::board::{Board, Parts};
use crate::devices::marker;
use crate::vcpus::{Activity, Vcpus};
use cpu::arch::Segment;
use cpu::model::{CpuidEntry, CpuidRegs};
use iced_x86::IcedError;
use iced_x86::code_asm::{CodeAssembler, CodeLabel, al, ax, dx, edi, esi, word_ptr};
use ledger::profile::Profile;
use ledger::{Context, Costs, Family, Geometry, Recorder};
use std::sync::{Arc, Mutex};
use testkit::assemble;
use x86::seg;

const START: u64 = 0x1000;
const NAME: u32 = 0x9000;
/// Distance between tasks.
const TASK: u32 = 0x2000;

/// Returns the address of a task; 0 is the idle task.
fn task(number: u32) -> u32 {
    0x2_0000 + number * TASK
}

/// Returns the memory of a task in a kernel without BTF: numbers and names at the offsets where
/// [`Learner`](ledger::symbols::task_struct::Learner) finds them.
fn memory_of(number: u32, comm: &str) -> Vec<u8> {
    let mut bytes = vec![0x5a; TASK as usize];
    bytes[100..104].copy_from_slice(&number.to_le_bytes());
    bytes[104..108].copy_from_slice(&number.to_le_bytes());
    bytes[200..216].fill(0);
    bytes[200..200 + comm.len()].copy_from_slice(comm.as_bytes());
    bytes
}

/// The functions of the kernel, each of which returns at once, and their addresses.
struct Functions {
    labels: [CodeLabel; 4],
}

const NAMES: [&str; 4] = ["__switch_to", "wake_up_new_task", "__set_task_comm", "handle_softirqs.isra.0"];

/// Assembler of a kernel's code.
struct Code<'a> {
    a: &'a mut CodeAssembler,
    functions: Functions,
}

impl Code<'_> {
    /// Emits an instruction that is charged: CPUID.
    fn work(&mut self) -> Result<(), IcedError> {
        self.a.cpuid()
    }

    fn call(&mut self, function: usize, first: u32, second: u32) -> Result<(), IcedError> {
        self.a.mov(edi, first)?;
        self.a.mov(esi, second)?;
        self.a.call(self.functions.labels[function])
    }

    fn switch(&mut self, from: u32, to: u32) -> Result<(), IcedError> {
        self.call(0, task(from), task(to))
    }

    fn make(&mut self, number: u32) -> Result<(), IcedError> {
        self.call(1, task(number), 0)
    }

    /// Emits soft interrupts that do some work. A kernel's return addresses are 8 bytes long.
    fn soft_interrupts(&mut self) -> Result<(), IcedError> {
        (0..3).try_for_each(|_| self.a.push(0))?;
        self.call(3, 0, 0)
    }

    fn say(&mut self, name: &str, command: marker::Command) -> Result<(), IcedError> {
        self.a.mov(dx, i32::from(marker::NAME))?;
        for byte in name.bytes().chain([0]) {
            self.a.mov(al, i32::from(byte))?;
            self.a.out(dx, al)?;
        }
        self.a.mov(dx, i32::from(marker::CONTROL))?;
        self.a.mov(al, command as i32)?;
        self.a.out(dx, al)
    }
}

/// Runs a kernel on one processor; `names` are the names of the tasks in memory. Returns the origin of the work: kind
/// and name of the task, context, and region.
fn run(
    linux: bool,
    names: &[&str],
    write: impl FnOnce(&mut Code) -> Result<(), IcedError>,
) -> Vec<(String, Context, String)> {
    observe(linux, names, write).works
}

/// What a kernel did: the origin of the work; whether the processor was idle, one entry for each change; and stays in the kernel.
struct Observed {
    works: Vec<(String, Context, String)>,
    idle: Vec<bool>,
    stays: ledger::stays::Entries,
    named: Option<Result<(), TasksError>>,
}

/// Runs a kernel likewise.
fn observe(linux: bool, names: &[&str], write: impl FnOnce(&mut Code) -> Result<(), IcedError>) -> Observed {
    let mut addresses = Vec::new();
    let bytes = assemble(16, START, |a| {
        let labels = std::array::from_fn(|_| a.create_label());
        let mut code = Code { a, functions: Functions { labels } };
        // The first access to the board, after which the kernel is looked for.
        code.a.out(0x80, al)?;
        write(&mut code)?;
        let Code { a, functions: Functions { mut labels } } = code;
        a.cli()?;
        a.hlt()?;
        for (function, label) in labels.iter_mut().enumerate() {
            a.set_label(label)?;
            a.nop()?;
            // Soft interrupts do some work.
            if function == 3 {
                a.cpuid()?;
                a.ret_1(6)?;
            } else {
                a.ret()?;
            }
            a.int3()?;
        }
        Ok(())
    });
    // The functions are at the end, and consist of NOP, RET and INT3 each.
    let mut at = bytes.len() - 3 * 3 - 7;
    for size in [3, 3, 3, 7] {
        addresses.push(START + at as u64);
        at += size;
    }
    let ram = GuestRam::new(16 << 20).unwrap();
    assert!(ram.write(START, &bytes) && ram.write(NAME.into(), b"renamed\0"));
    for (number, name) in (0u32..).zip(names) {
        assert!(ram.write(task(number).into(), &memory_of(number, name)));
    }
    let profile = Profile::find("skx").unwrap();
    let board = Arc::new(Mutex::new(Board::new(&ram, 1, &profile, Parts::default()).unwrap()));
    let leaf = CpuidEntry { leaf: 1, subleaf: None, regs: CpuidRegs { eax: 0, ebx: 0, ecx: 0, edx: 0 } };
    let model = Arc::new(cpu::Model {
        costs: Costs::free(),
        timing: Arc::new(cpu::time::Flat),
        geometry: Geometry::generic(),
        cpuid: vec![leaf],
        tsc_hz: 1_000_000_000,
        arch_capabilities: 0,
        microcode: 0,
        vmx: None,
        amd: false,
        physical_bits: 46,
        recorded: true,
        branches: false,
    });
    let view = crate::view::processor_ram(&ram, None);
    let mut cpu = Cpu::new(0, model, view, board.clone(), Recorder::default());
    for segment in [seg::CS, seg::SS, seg::DS] {
        cpu.arch.seg[usize::from(segment)] = Segment::real(0, segment == seg::CS);
    }
    cpu.arch.rip = START;
    cpu.arch.gpr[4] = 0x8000;
    cpu.arch.msr.lstar = if linux { 0x1234 } else { 0 };
    cpu.mode_changed();
    let mut vcpus = Vcpus::new(vec![cpu], board, None, ram.clone());
    // The rarely executed part of a function has its name too, and is at a lower address in a real kernel.
    let cold = Symbol::new(START, 1, "handle_softirqs.isra.0.cold");
    assert!(!kernel::is_probed(&cold));
    let parts = NAMES.iter().zip(addresses).map(|(name, address)| Symbol::new(address, 2, name));
    let functions: Vec<_> = std::iter::once(cold).chain(parts).collect();
    vcpus.tasks.use_functions(functions.clone());
    vcpus.all[0].activity = Activity::Running;
    drop(ram.take_written());
    // The state of the tasks must survive a restore at any time.
    vcpus.slice = 1;
    let mut idle = Vec::new();
    loop {
        match vcpus.run() {
            crate::vcpus::Pause::Slice => {
                let since = vcpus.tasks.idle_since();
                assert!(since.is_none_or(|since| since <= vcpus.now()));
                if idle.last() != Some(&since.is_some()) {
                    idle.push(since.is_some());
                }
                let state = vcpus.tasks.save();
                vcpus.tasks = Tasks::new(ram.clone(), 1);
                vcpus.tasks.use_functions(functions.clone());
                let Vcpus { all, cache, tasks, .. } = &mut vcpus;
                let wiring = &all[0].cpu.wiring;
                cache.code.remove_probes(&wiring.ram);
                tasks.restore(state.clone(), &wiring.recorder, cache, &wiring.ram).unwrap();
                assert_eq!(tasks.save(), state);
            }
            pause => break assert_eq!(pause, crate::vcpus::Pause::Stuck),
        }
    }
    vcpus.finish();
    vcpus.gather();
    let recorder = &vcpus.all[0].cpu.wiring.recorder;
    let header = ledger::Header::new(&profile, vec![vcpus.now()]);
    let stays = ledger::Ledger::new(header, recorder, &ledger::Symbols::default()).entries;
    let names = recorder.names();
    let mut works: Vec<_> = recorder.events().filter(|(_, _, kind, _)| kind.family == Family::Cpuid).collect();
    works.sort_unstable_by_key(|work| work.1);
    let describe = |(origin, _, _, amount): (ledger::OriginId, u64, ledger::Kind, ledger::Amount)| {
        let origin = names.origins()[origin.0 as usize];
        let task = &names.tasks()[origin.task.0 as usize];
        assert_eq!(amount.count, 1);
        let region = names.regions()[usize::from(origin.region.0)].name.clone();
        (format!("{:?} {} {}", task.kind, task.tid, task.comm), origin.context, region)
    };
    let works = works.into_iter().map(describe).collect();
    Observed { works, idle, stays, named: vcpus.tasks.are_named() }
}

/// Returns the name of the task and the cycles of each stay, in a kernel whose software interrupt 0x21 does some work, and meanwhile
/// switches to another task, which does `other` works and soft interrupts.
fn stays_with(other: usize) -> Vec<(ledger::Entry, String, u64)> {
    let names = ["swapper/0", "first", "second"];
    let found = observe(true, &names, |code| {
        // The call's return address is that of the handler.
        let mut over = code.a.create_label();
        code.a.call(over)?;
        code.work()?;
        code.switch(1, 2)?;
        (0..other).try_for_each(|_| code.work())?;
        code.soft_interrupts()?;
        code.switch(2, 1)?;
        code.work()?;
        code.a.iret()?;
        code.a.set_label(&mut over)?;
        code.a.pop(ax)?;
        code.a.mov(word_ptr(4 * 0x21), ax)?;
        code.make(1)?;
        code.make(2)?;
        code.switch(0, 1)?;
        code.a.int(0x21)
    });
    let all = found.stays.all.iter();
    all.map(|one| {
        let origin = found.stays.origins[one.origin as usize];
        let (task, context) = (origin.task, origin.context);
        (one.entry, format!("{} {context:?}", task.0), one.stays.sum.ticks)
    })
    .collect()
}

#[test]
fn a_stay_contains_no_other_task() {
    let (few, many) = (stays_with(1), stays_with(20));
    assert_eq!(few, many);
    let entries: Vec<_> = few.iter().map(|stay| (stay.0.gate, stay.0.number)).collect();
    assert_eq!(entries, [(ledger::Gate::Software, 0x21), (ledger::Gate::SoftInterrupts, 0)]);
    assert_ne!(few[0].1, few[1].1, "the task that ran the handler, and soft interrupts on top of the other one");
}

fn expect(found: Vec<(String, Context, String)>, expected: &[(&str, Context, &str)]) {
    let found: Vec<_> =
        found.iter().map(|(task, context, region)| (task.as_str(), *context, region.as_str())).collect();
    assert_eq!(found, expected);
}

#[test]
fn a_kernel_without_types_tells_its_tasks() {
    let names = ["swapper/0", "init", "kthreadd", "worker"];
    let found = run(true, &names, |code| {
        code.work()?;
        (1..=2).try_for_each(|number| code.make(number))?;
        code.switch(0, 2)?;
        // The thread that creates kernel threads has number 2, which is unknown until the third task is created.
        code.make(3)?;
        code.switch(2, 1)?;
        code.work()?;
        code.call(2, task(1), NAME)?;
        code.work()?;
        code.switch(1, 0)?;
        code.work()
    });
    use Context::Task;
    expect(
        found,
        &[
            ("Idle 0 swapper/0", Task, ""),
            ("Process 1 init", Task, ""),
            ("Process 1 renamed", Task, ""),
            ("Idle 0 swapper/0", Task, ""),
        ],
    );
}

#[test]
fn a_kernel_whose_tasks_have_no_names_has_a_reason() {
    let names = ["swapper/0", "init", "kthreadd", "worker"];
    let made = |number: u32| {
        let found = observe(true, &names, |code| {
            (1..=number).try_for_each(|number| code.make(number))?;
            code.switch(0, 1)
        });
        found.named
    };
    assert_eq!(made(3), Some(Ok(())));
    assert_eq!(made(2), Some(Err(TasksError::NoTypes)));
    let declared = |text: &str| observe(false, &[], |code| code.say(text, marker::Command::Task)).named;
    assert_eq!(declared("7 parent"), None, "other guests have no kernel");
}

#[test]
fn a_processor_is_idle_while_it_runs_its_idle_task() {
    let names = ["swapper/0", "init", "kthreadd", "worker"];
    let idle = observe(true, &names, |code| {
        (1..=2).try_for_each(|number| code.make(number))?;
        code.switch(0, 2)?;
        // Tasks have names from the third one on.
        code.make(3)?;
        code.work()?;
        code.switch(2, 0)?;
        code.soft_interrupts()?;
        code.switch(0, 1)?;
        code.work()?;
        code.switch(1, 2)?;
        code.switch(2, 0)?;
        code.work()
    })
    .idle;
    assert_eq!(idle, [false, true, false, true]);
    let idle = observe(false, &names, |code| code.work()).idle;
    assert!(!idle.contains(&true));
}

#[test]
fn a_region_is_a_task_and_its_descendants() {
    let names = ["swapper/0", "init", "kthreadd", "other", "child", "grandchild"];
    let found = run(true, &names, |code| {
        (1..=3).try_for_each(|number| code.make(number))?;
        code.switch(0, 1)?;
        code.say("mine", marker::Command::Begin)?;
        code.work()?;
        code.make(4)?;
        code.switch(1, 3)?;
        code.work()?;
        code.switch(3, 4)?;
        code.work()?;
        code.make(5)?;
        code.switch(4, 5)?;
        code.soft_interrupts()?;
        code.work()?;
        code.say("everything", marker::Command::BeginAll)?;
        code.switch(5, 0)?;
        code.work()?;
        code.say("everything", marker::Command::End)?;
        code.say("mine", marker::Command::End)?;
        code.switch(0, 5)?;
        code.work()
    });
    use Context::{SoftInterrupt, Task};
    expect(
        found,
        &[
            ("Process 1 init", Task, "mine"),
            ("Process 3 other", Task, ""),
            ("Process 4 child", Task, "mine"),
            ("Process 5 grandchild", Task, "mine"),
            ("Idle 0 swapper/0", Task, "everything"),
            ("Process 5 grandchild", Task, ""),
            // The work of soft interrupts is in a function after all others.
            ("Process 5 grandchild", SoftInterrupt, "mine"),
        ],
    );
}

#[test]
fn other_guests_declare_their_tasks() {
    let found = run(false, &[], |code| {
        code.work()?;
        code.say("7 parent", marker::Command::Task)?;
        code.say("all of 7", marker::Command::Begin)?;
        code.work()?;
        code.say("8 7 child", marker::Command::Task)?;
        code.work()?;
        code.say("idle", marker::Command::Task)?;
        code.work()?;
        code.say("", marker::Command::Task)?;
        code.work()
    });
    use Context::Task;
    expect(
        found,
        &[
            ("Process 0 ", Task, ""),
            ("Process 7 parent", Task, "all of 7"),
            ("Process 8 child", Task, "all of 7"),
            ("Process 0 idle", Task, ""),
            ("Process 0 ", Task, ""),
        ],
    );
}

#[test]
fn a_guest_that_lies_is_charged_all_the_same() {
    let found = run(true, &["swapper/0"], |code| {
        code.call(0, u32::MAX, u32::MAX)?;
        code.call(1, u32::MAX, 0)?;
        code.call(2, u32::MAX, u32::MAX)?;
        code.soft_interrupts()?;
        code.switch(7, 7)?;
        code.work()
    });
    assert_eq!(found.len(), 2);
}
