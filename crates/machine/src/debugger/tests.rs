//! Tests with a small client of the protocol and a small guest.

use super::*;
use crate::Platform;
use crate::machine::{ClockSource, Config};
use crate::testing::{self, ENTRY, Nobody, hvm};
use cpu::Tier;
use iced_x86::code_asm::*;
use ledger::symbols::Symbols;
use std::cell::RefCell;
use std::rc::Rc;

const COUNTER: u32 = 0x10_1000;
const BUFFER: u32 = 0x10_2000;
const TURNS: u32 = 5;
const BYTES: u32 = 6;

/// Returns the guest's code and the addresses of its parts: it counts in memory, fills bytes, spins for some turns, and
/// exits with status 1.
fn program() -> (Vec<u8>, [u64; 4]) {
    let mut a = CodeAssembler::new(32).unwrap();
    let mut count = a.create_label();
    let mut fill = a.create_label();
    let mut spin = a.create_label();
    let mut end = a.create_label();
    a.mov(ebx, TURNS).unwrap();
    a.set_label(&mut count).unwrap();
    a.inc(dword_ptr(COUNTER)).unwrap();
    a.dec(ebx).unwrap();
    a.jnz(count).unwrap();
    a.mov(edi, BUFFER).unwrap();
    a.mov(ecx, BYTES).unwrap();
    a.mov(eax, 0x41).unwrap();
    a.set_label(&mut fill).unwrap();
    a.rep().stosb().unwrap();
    a.mov(ecx, 3_000_000).unwrap();
    a.set_label(&mut spin).unwrap();
    a.dec(ecx).unwrap();
    a.jnz(spin).unwrap();
    a.inc(dword_ptr(COUNTER)).unwrap();
    a.set_label(&mut end).unwrap();
    a.xor(eax, eax).unwrap();
    a.out(0xf4, al).unwrap();
    a.jmp(end).unwrap();
    let options = iced_x86::BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
    let result = a.assemble_options(u64::from(ENTRY), options).unwrap();
    let places = [count, fill, spin, end].map(|label| result.label_ip(&label).unwrap());
    (result.inner.code_buffer, places)
}

fn machine(tier: Tier, platform: &Platform) -> Machine {
    let code = program().0;
    Machine::new(testing::config(&code, platform.clone(), tier)).unwrap()
}

/// A client that sends packets, each after the answer to the one before, and keeps the answers.
#[derive(Default)]
struct Client {
    commands: VecDeque<Vec<u8>>,
    waiting: bool,
    answers: Vec<String>,
}

struct Script(Rc<RefCell<Client>>);

impl Wire for Script {
    fn receive(&mut self, _: Duration, into: &mut VecDeque<u8>) -> io::Result<bool> {
        let mut client = self.0.borrow_mut();
        if client.waiting {
            return Ok(true);
        }
        let Some(command) = client.commands.pop_front() else { return Ok(false) };
        client.waiting = command.first() == Some(&b'$') && !command.starts_with(b"$k");
        into.extend(command);
        Ok(true)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut client = self.0.borrow_mut();
        let text = String::from_utf8_lossy(bytes).into_owned();
        for answer in text.split('$').skip(1) {
            client.answers.push(expanded(answer.rsplit_once('#').map_or("", |(payload, _)| payload)));
            client.waiting = false;
        }
        Ok(())
    }
}

/// Expands the run-length encoding of a payload: the character after `*` encodes the number of repetitions of the one
/// before.
fn expanded(payload: &str) -> String {
    let mut text = String::new();
    let mut characters = payload.chars();
    while let Some(character) = characters.next() {
        match (character, text.chars().last()) {
            ('*', Some(last)) => {
                let more = characters.next().map_or(0, |count| (count as usize).saturating_sub(29));
                text.extend(std::iter::repeat_n(last, more));
            }
            _ => text.push(character),
        }
    }
    text
}

struct Once(Option<Script>, Vec<String>);

impl Listener for Once {
    fn accept(&mut self, _: Duration) -> io::Result<Option<Box<dyn Wire>>> {
        Ok(self.0.take().map(|script| Box::new(script) as Box<dyn Wire>))
    }

    fn note(&mut self, text: &str) {
        self.1.push(text.to_owned());
    }
}

fn packet(payload: &str) -> Vec<u8> {
    let sum = payload.bytes().fold(0u8, u8::wrapping_add);
    format!("${payload}#{sum:02x}").into_bytes()
}

/// Runs the guest with a client that sends these packets. Returns the answers, the outcome of the run, and its ledger.
fn session(tier: Tier, platform: &Platform, commands: Vec<Vec<u8>>) -> (Vec<String>, Outcome, Vec<u8>) {
    let client = Rc::new(RefCell::new(Client { commands: commands.into(), ..Client::default() }));
    let mut machine = machine(tier, platform);
    let again = Make { machine: Box::new(|| Some(self::machine(tier, platform))), begin: Box::new(|_| true) };
    let mut listener = Once(Some(Script(client.clone())), Vec::new());
    let mut history = History::new(Some(again));
    if tier == Tier::Auto {
        history.keep_often();
    }
    let outcome = machine.run_debugged(&mut Nobody, &mut listener, history).unwrap();
    let ledger = machine.ledger(&Symbols::default()).to_bytes().unwrap();
    let answers = client.borrow().answers.clone();
    (answers, outcome, ledger)
}

fn debug(tier: Tier, platform: &Platform, commands: &[&str]) -> (Vec<String>, Outcome, Vec<u8>) {
    session(tier, platform, commands.iter().map(|command| packet(command)).collect())
}

fn plain(platform: &Platform) -> Vec<u8> {
    let mut machine = machine(Tier::Interpreter, platform);
    assert_eq!(machine.run(&mut Nobody), Outcome::DebugExit(1));
    machine.ledger(&Symbols::default()).to_bytes().unwrap()
}

/// Returns the value in an answer to `p`.
fn value(answer: &str) -> u64 {
    u64::from_str_radix(answer, 16).unwrap().swap_bytes()
}

const RIP: &str = "p10";
const RCX: &str = "p2";

#[test]
fn stops_leave_the_ledger_as_it_is() {
    let [count, fill, spin, end] = program().1;
    let counter = format!("m{COUNTER:x},4");
    let commands = [
        &format!("Z0,{count:x},1"),
        "c",
        RIP,
        "c",
        &counter,
        &format!("z0,{count:x},1"),
        &format!("Z2,{COUNTER:x},4"),
        "c",
        RIP,
        &counter,
        &format!("z2,{COUNTER:x},4"),
        &format!("Z1,{fill:x},1"),
        "c",
        "vCont;s:1",
        RIP,
        RCX,
        "vCont;s:1",
        RCX,
        &format!("Z1,{spin:x},1"),
        "c",
        RIP,
        "vCont;s:1",
        &format!("z1,{spin:x},1"),
        &format!("Z1,{end:x},1"),
        "c",
        RIP,
        "c",
    ];
    for platform in [Platform::Bare, hvm()] {
        let expected = plain(&platform);
        for tier in [Tier::Interpreter, Tier::Translator, Tier::Auto] {
            let (answers, outcome, ledger) = debug(tier, &platform, &commands);
            let at = |index: usize| value(&answers[index]);
            assert_eq!(outcome, Outcome::DebugExit(1));
            assert_eq!(at(2), count);
            assert_eq!(answers[4], "01000000", "before the second turn");
            assert!(answers[7].starts_with("T05") && answers[7].contains(&format!("watch:{COUNTER:x}")), "{answers:?}");
            assert!(at(8) > count && answers[9] == "02000000", "right after the write");
            // One iteration per step.
            assert_eq!((at(14), at(15), at(17)), (fill, u64::from(BYTES) - 1, u64::from(BYTES) - 2));
            assert_eq!((at(20), at(25)), (spin, end));
            assert_eq!(answers[26], "W01");
            assert!(ledger == expected, "{tier:?} on {platform:?}: another ledger");
        }
    }
}

#[test]
fn the_run_goes_back() {
    let [count, fill, spin, end] = program().1;
    let counter = format!("m{COUNTER:x},4");
    let commands = [
        &format!("Z0,{end:x},1"),
        "c",
        &counter,
        &format!("Z2,{COUNTER:x},4"),
        "bc",
        &counter,
        RIP,
        "bc",
        &counter,
        &format!("Z1,{fill:x},1"),
        "c",
        "bc",
        "bs",
        "bs",
        RIP,
        &format!("z2,{COUNTER:x},4"),
        &format!("z1,{fill:x},1"),
        &format!("Z1,{count:x},1"),
        "bc",
        "bc",
        &counter,
        RIP,
        &format!("z1,{count:x},1"),
        "bc",
        RIP,
        "vCont;s:1",
        "bs",
        RIP,
        "c",
        RIP,
        &counter,
        "c",
    ];
    for platform in [Platform::Bare, hvm()] {
        let expected = plain(&platform);
        for tier in [Tier::Interpreter, Tier::Auto] {
            let (answers, outcome, ledger) = debug(tier, &platform, &commands);
            let at = |index: usize| value(&answers[index]);
            let turns = |turns: u32| format!("{:02x}000000", turns);
            assert_eq!(outcome, Outcome::DebugExit(1));
            assert_eq!(answers[2], turns(TURNS + 1));
            // Back over the last write, then over that of the last turn.
            assert!(answers[4].contains(&format!("watch:{COUNTER:x}")), "{answers:?}");
            assert_eq!(answers[5], turns(TURNS));
            assert!(at(6) > spin && at(6) < end);
            assert_eq!(answers[8], turns(TURNS - 1));
            // Forward over the write, which is reported again, and back.
            assert!(answers[10].contains("watch:") && answers[11].contains("watch:"), "{answers:?}");
            assert!(at(14) > count && at(14) < fill, "{:#x}", at(14));
            assert_eq!((answers[20].as_str(), at(21)), (turns(TURNS - 3).as_str(), count), "{answers:?}");
            assert!(answers[23].contains("replaylog:begin"), "{answers:?}");
            assert_eq!(at(24), u64::from(ENTRY));
            assert_eq!(at(27), u64::from(ENTRY));
            assert_eq!((at(29), answers[30].as_str()), (end, turns(TURNS + 1).as_str()));
            assert!(ledger == expected, "{tier:?} on {platform:?}: another ledger");
        }
    }
}

#[test]
fn a_run_that_began_at_a_snapshot_goes_back_to_it() {
    let [_, _, spin, end] = program().1;
    for platform in [Platform::Bare, hvm()] {
        let expected = plain(&platform);
        let mut slices = 0;
        let mut saved = machine(Tier::Auto, &platform);
        // After the bytes have been filled.
        let outcome = saved.run_until(&mut Nobody, &mut |_| {
            slices += 1;
            slices > 2
        });
        assert_eq!(outcome, None);
        let file = saved.snapshot(&[]).unwrap();
        let begin = |machine: &mut Machine| machine.restore(&file, &[]).is_ok();
        let commands = [
            &format!("Z1,{end:x},1"),
            "c",
            "bs",
            RIP,
            "c",
            &format!("Z2,{COUNTER:x},4"),
            "bc",
            RIP,
            "bc",
            "c",
            "c",
            "c",
        ];
        let commands: VecDeque<Vec<u8>> = commands.iter().map(|command| packet(command)).collect();
        let client = Rc::new(RefCell::new(Client { commands, ..Client::default() }));
        let again = Make { machine: Box::new(|| Some(machine(Tier::Auto, &platform))), begin: Box::new(begin) };
        let mut history = History::new(Some(again));
        history.keep_often();
        let mut machine = machine(Tier::Auto, &platform);
        assert!(begin(&mut machine));
        let outcome =
            machine.run_debugged(&mut Nobody, &mut Once(Some(Script(client.clone())), Vec::new()), history).unwrap();
        let answers = client.borrow().answers.clone();
        assert_eq!(outcome, Outcome::DebugExit(1), "{answers:?}");
        let at = |index: usize| value(&answers[index]);
        assert!(at(3) > spin && at(3) < end, "{answers:?}");
        assert!(answers[6].contains("watch:") && at(7) > spin && at(7) < end, "{answers:?}");
        assert!(answers[8].contains("replaylog:begin"), "{answers:?}");
        assert!(answers[9].contains("watch:") && answers[11] == "W01", "{answers:?}");
        assert!(machine.ledger(&Symbols::default()).to_bytes().unwrap() == expected, "another ledger");
    }
}

#[test]
fn every_step_can_be_taken_back() {
    let steps = 40;
    let mut commands = vec![RIP];
    for _ in 0..steps {
        commands.extend(["vCont;s:1", RIP, RCX]);
    }
    for _ in 0..steps {
        commands.extend(["bs", RIP]);
    }
    commands.push("D");
    let expected = plain(&Platform::Bare);
    let (answers, outcome, ledger) = debug(Tier::Auto, &Platform::Bare, &commands);
    assert_eq!(outcome, Outcome::DebugExit(1));
    let forward: Vec<&String> = std::iter::once(&answers[0]).chain((0..steps).map(|i| &answers[2 + 3 * i])).collect();
    let back: Vec<&String> = (0..steps).map(|i| &answers[1 + 3 * steps + 2 * i + 1]).collect();
    assert_eq!(back.into_iter().rev().collect::<Vec<_>>(), forward[..steps]);
    assert!(ledger == expected);
}

#[test]
fn the_ledger_so_far_does_not_change_the_ledger() {
    let [count, fill, ..] = program().1;
    // `monitor ledger` and `monitor exits` in the middle of a block.
    let commands = [&format!("Z0,{:x},1", count + 7), "c", "qRcmd,6c6564676572", "vCont;s:1", "qRcmd,6578697473"];
    let (answers, outcome, ledger) = debug(Tier::Auto, &hvm(), &commands);
    assert_eq!(outcome, Outcome::DebugExit(1));
    assert!(answers[2].starts_with('O') && answers[5].starts_with('O'), "{answers:?}");
    assert!(ledger == plain(&hvm()));
    // An end in the middle of a block keeps the ledger correct.
    let (.., ledger) = debug(Tier::Auto, &Platform::Bare, &[&format!("Z0,{fill:x},1"), "c", "vCont;s:1", "k"]);
    assert!(ledger::Ledger::read(&ledger).unwrap().verify().is_ok());
}

#[test]
fn with_the_hosts_clock_time_goes_on() {
    let end = program().1[3];
    let commands = [format!("Z1,{end:x},1"), "c".to_owned(), "D".to_owned()].map(|command| packet(&command));
    let client = Rc::new(RefCell::new(Client { commands: commands.into(), ..Client::default() }));
    let config = testing::config(&program().0, Platform::Bare, Tier::Interpreter);
    let mut machine = Machine::new(Config { clock: ClockSource::Host, ..config }).unwrap();
    let history = History::new(None);
    let outcome =
        machine.run_debugged(&mut Nobody, &mut Once(Some(Script(client.clone())), Vec::new()), history).unwrap();
    assert_eq!(outcome, Outcome::DebugExit(1));
    assert!(client.borrow().answers[1].starts_with("T05"), "{:?}", client.borrow().answers);
    // The guest itself takes 6 million cycles for its 6 million instructions, each of which takes the host more than
    // one.
    let cycles = machine.vcpus.now() / ledger::TICKS_PER_CYCLE;
    assert!(cycles > 12_000_000, "{cycles}");
}

#[test]
fn memory_is_read_and_written_by_both_kinds_of_addresses() {
    let commands = [
        &format!("M{COUNTER:x},4:07000000"),
        "Qqemu.PhyMemMode:1",
        &format!("m{COUNTER:x},4"),
        "qqemu.PhyMemMode",
        "mffffffff000,4",
        "bs",
        "qRcmd,68656c70",
        "k",
    ];
    let (answers, outcome, _) = debug(Tier::Auto, &Platform::Bare, &commands);
    assert_eq!(outcome, Outcome::Stopped);
    assert_eq!(answers[..4], ["OK", "OK", "07000000", "1"]);
    assert!(answers[4].starts_with('E'), "{answers:?}");
    assert_eq!(answers[5], "", "what the debugger has changed can't be repeated");
    assert!(answers[6].len() > 10, "{answers:?}");
}

#[test]
fn control_registers_are_written_as_the_guest_may() {
    // cr0, cr2, cr3 and efer.
    let number = |name: &str| super::registers::REGISTERS.iter().position(|register| register.name == name).unwrap();
    let write = |name: &str, value: u64| format!("P{:x}={:016x}", number(name), value.swap_bytes());
    let read = |name: &str| format!("p{:x}", number(name));
    let commands = [
        // Paging without protection, and a reserved bit, would fault: the write has no effect and can be undone.
        write("cr0", 0x8000_0000),
        write("efer", 1 << 40),
        "vCont;s:1".to_owned(),
        "bs".to_owned(),
        write("cr2", 0x1234_5000),
        read("cr2"),
        write("cr0", 0x3b),
        read("cr0"),
        write("cr3", 0x5000),
        read("cr3"),
        "bs".to_owned(),
        "D".to_owned(),
    ];
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    let (answers, outcome, ledger) = debug(Tier::Auto, &Platform::Bare, &commands);
    assert_eq!(outcome, Outcome::DebugExit(1));
    assert!(answers[0].starts_with('E') && answers[1].starts_with('E'), "{answers:?}");
    assert!(answers[3].starts_with('T'), "{answers:?}");
    let values = [4, 6, 8].map(|at| (answers[at].as_str(), value(&answers[at + 1])));
    assert_eq!(values, [("OK", 0x1234_5000), ("OK", 0x3b), ("OK", 0x5000)]);
    assert_eq!(answers[10], "", "what the debugger has changed can't be repeated");
    assert!(ledger::Ledger::read(&ledger).unwrap().verify().is_ok());
    let (answers, ..) = debug(Tier::Auto, &hvm(), &[&write("cr3", 0x5000), &write("cr2", 0x5000), "k"]);
    assert!(answers[0].starts_with('E') && answers[1] == "OK", "a guest's CR3 is not the processor's: {answers:?}");
}

#[test]
fn a_debugger_that_waits_long_for_an_answer_is_not_lost() {
    for mode in ["?", "QStartNoAckMode"] {
        let commands = [packet("?"), packet(mode), b"-".to_vec(), packet("qfThreadInfo"), b"-".to_vec(), packet("c")];
        let (answers, outcome, _) = session(Tier::Auto, &Platform::Bare, commands.into());
        assert_eq!(outcome, Outcome::DebugExit(1));
        assert_eq!((answers.len(), answers.last().map(String::as_str)), (4, Some("W01")), "{answers:?}");
    }
}

#[test]
fn nonsense_ends_the_session_and_not_the_run() {
    let expected = plain(&Platform::Bare);
    let mut seed = 1u64;
    let mut random = move || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as u8
    };
    let letters = b"gGpPmMXcCsSvqQzZHTkDbB!?;:,0129af-#$}*\x03+xR";
    for round in 0..60 {
        let payload: Vec<u8> = (0..1 + random() % 24)
            .map(|_| if round % 3 == 0 { random() } else { letters[usize::from(random()) % letters.len()] })
            // Commands that change the guest or end the run are excluded.
            .filter(|byte| !b"kGPMX".contains(byte))
            .collect();
        let sum = payload.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        let mut bytes = vec![b'$'];
        bytes.extend(&payload);
        bytes.extend(format!("#{sum:02x}").bytes());
        // The client does not wait for answers.
        let commands = vec![b"+".to_vec(), [b"+".to_vec(), bytes].concat(), b"$#00$".to_vec()];
        let (_, outcome, ledger) = session(Tier::Auto, &Platform::Bare, commands);
        assert_eq!(outcome, Outcome::DebugExit(1), "{payload:?}");
        assert!(ledger == expected, "{payload:?}");
    }
}

#[test]
fn breakpoints_that_are_never_reached_are_named_with_the_reason() {
    let [_, fill, _, end] = program().1;
    let notes = |commands: &[String]| {
        let commands = commands.iter().map(|command| packet(command)).collect();
        let client = Rc::new(RefCell::new(Client { commands, ..Client::default() }));
        let mut machine = machine(Tier::Auto, &Platform::Bare);
        let mut listener = Once(Some(Script(client)), Vec::new());
        machine.run_debugged(&mut Nobody, &mut listener, History::new(None)).unwrap();
        listener.1
    };
    let set = |kind: u8, address: u64| format!("Z{kind},{address:x},1");
    let go = || "c".to_owned();
    // Each is reached in its turn, and one of them is removed before the guest runs.
    let commands = [set(0, fill), set(1, end), set(0, 0x123), "z0,123,1".to_owned(), go(), go(), go()];
    assert_eq!(notes(&commands), Vec::<String>::new());
    let commands = [set(0, fill), set(1, fill + 1), go(), go()];
    let text = format!("a breakpoint was never reached ({:#x}): that code was not executed", fill + 1);
    assert_eq!(notes(&commands), [text]);
    let kernel = |n: u64| 0xffff_ffff_8100_0000 + n;
    let commands: Vec<String> = (0..6).map(|n| set(0, kernel(n))).chain([go(), go()]).collect();
    let listed = (0..4).map(|n| format!("{:#x}", kernel(n))).collect::<Vec<_>>().join(", ");
    let found = notes(&commands);
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with(&format!("6 breakpoints were never reached ({listed}, ...): ")), "{found:?}");
}
