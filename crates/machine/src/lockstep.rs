//! Runs two machines with the same guest, one interpreting, one translating, and compares them.
//!
//! Both run for the same short stretches of virtual time. The state of every processor is compared after each stretch,
//! all of memory at longer intervals, and the charges at the end. A wrong translation is found at the stretch in which
//! it executes; that stretch is then run again from the start of the guest, block by block, to find the block.

use crate::host::{Host, HostFrame, Piece, Poll};
use crate::machine::{Machine, Outcome};
use crate::vcpus::Pause;
use cpu::Cpu;
use iced_x86::{Decoder, DecoderOptions, Formatter, GasFormatter};
use ledger::Ticks;
use ledger::symbols::Symbols;
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write;
use std::time::Duration;
use x86::page::PAGE;
use x86::reg;

/// Length of a stretch, in cycles.
const STRETCH: u64 = 20_011;
/// Number of stretches between comparisons of memory.
const MEMORY_EVERY: u64 = 20_000;

/// The two machines.
pub struct Lockstep {
    reference: Machine,
    translated: Machine,
    stretches: u64,
}

/// A difference between the two machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Index of the stretch, from the start of the guest.
    pub stretch: u64,
    /// Position of each processor before the stretch and differences after it, as text.
    pub text: String,
}

/// A host that records the input it gives to the guest.
struct Noting<'a> {
    host: &'a mut dyn Host,
    given: Poll,
}

impl Host for Noting<'_> {
    fn output(&mut self, bytes: &[u8]) {
        self.host.output(bytes);
    }
    fn poll(&mut self, now: Ticks, wanted: bool) -> Poll {
        let poll = self.host.poll(now, wanted);
        self.given.input.extend_from_slice(&poll.input);
        poll
    }
    fn frames(&mut self, room: &dyn Fn(u8) -> bool) -> Vec<HostFrame> {
        let frames = self.host.frames(room);
        self.given.frames.extend_from_slice(&frames);
        frames
    }
    fn send(&mut self, frames: Vec<HostFrame>) {
        self.host.send(frames);
    }
    fn channel_output(&mut self, channel: u8, bytes: &[u8]) {
        self.host.channel_output(channel, bytes);
    }
    fn pieces(&mut self, room: &dyn Fn(u8) -> bool) -> Vec<Piece> {
        let pieces = self.host.pieces(room);
        self.given.pieces.extend_from_slice(&pieces);
        pieces
    }
    fn attended(&self) -> bool {
        self.host.attended()
    }
    fn idle(&mut self, limit: Duration) {
        self.host.idle(limit);
    }
}

/// A host without input that stops after a number of stretches.
struct Nobody(u64);

impl Host for Nobody {
    fn output(&mut self, _: &[u8]) {}
    fn poll(&mut self, _: Ticks, _: bool) -> Poll {
        self.0 = self.0.saturating_sub(1);
        Poll { stop: self.0 == 0, ..Poll::default() }
    }
    fn idle(&mut self, _: Duration) {}
}

impl Lockstep {
    /// Pairs a machine that interprets with one that translates. Both must be created in the same way.
    pub fn new(mut reference: Machine, mut translated: Machine) -> Self {
        for machine in [&mut reference, &mut translated] {
            machine.vcpus.slice = STRETCH * ledger::TICKS_PER_CYCLE;
        }
        Self { reference, translated, stretches: 0 }
    }

    /// Finds the block that caused a difference, on machines created in the same way: runs up to the stretch before it
    /// without comparison, then block by block. If that finds no difference, as after typed input, the difference is
    /// returned unchanged.
    pub fn narrow(mut self, found: Difference) -> Difference {
        for _ in 1..found.stretch {
            self.reference.vcpus.run();
            self.translated.vcpus.run();
            self.stretches += 1;
        }
        self.reference.vcpus.slice = 1;
        self.translated.vcpus.slice = 1;
        let blocks = STRETCH * self.translated.vcpus.all.len() as u64;
        self.run(&mut Nobody(blocks)).err().unwrap_or(found)
    }

    /// Returns the virtual time in seconds.
    pub fn seconds(&self) -> f64 {
        self.translated.seconds()
    }

    /// Returns the machine that translates.
    pub fn translated(&self) -> &Machine {
        &self.translated
    }

    /// Runs until the guest or the host ends both machines, or until they differ. The host gets the console of the
    /// translating machine.
    pub fn run(&mut self, host: &mut dyn Host) -> Result<Outcome, Difference> {
        loop {
            let before = places(&self.translated);
            let pauses = (self.reference.vcpus.run(), self.translated.vcpus.run());
            self.stretches += 1;
            self.compare(pauses, &before)?;
            self.reference.board().console_output();
            self.reference.board().network_output();
            let mut noting = Noting { host: &mut *host, given: Poll::default() };
            let outcome = self.translated.outside(pauses.1, &mut noting);
            self.reference.feed(&noting.given);
            if let Some(outcome) = outcome {
                self.memory(&before)?;
                self.charges(&before)?;
                return Ok(outcome);
            }
            if self.stretches.is_multiple_of(MEMORY_EVERY) {
                self.memory(&before)?;
            }
        }
    }

    fn compare(&self, pauses: (Pause, Pause), before: &[StretchStart]) -> Result<(), Difference> {
        let mut text = String::new();
        if pauses.0 != pauses.1 {
            let _ = writeln!(text, "stopped for: {:?}, translated {:?}", pauses.0, pauses.1);
        }
        for (a, b) in self.reference.vcpus.all.iter().zip(&self.translated.vcpus.all) {
            differences(&a.cpu, &b.cpu, &mut text);
        }
        if text.is_empty() { Ok(()) } else { Err(self.difference(before, &text)) }
    }

    fn difference(&self, before: &[StretchStart], text: &str) -> Difference {
        let places: String = before.iter().map(|place| place.describe(&self.translated)).collect();
        Difference { stretch: self.stretches, text: places + text }
    }

    /// Compares all charges. The machines can't be run any further.
    fn charges(&mut self, before: &[StretchStart]) -> Result<(), Difference> {
        let [ours, theirs] = [&mut self.reference, &mut self.translated].map(|machine| {
            machine.finish();
            machine.ledger(&Symbols::default()).to_bytes()
        });
        if ours == theirs {
            return Ok(());
        }
        let text = "what was charged differs: `tollgate compare` shows it for the ledgers of both tiers";
        Err(self.difference(before, text))
    }

    fn memory(&self, before: &[StretchStart]) -> Result<(), Difference> {
        for range in self.reference.ram.host_ranges() {
            for page in (0..range.len).step_by(PAGE as usize) {
                let at = range.start + page;
                let same = self
                    .reference
                    .ram
                    .with_ram(at, PAGE, |ours| self.translated.ram.with_ram(at, PAGE, |theirs| ours == theirs));
                if !same {
                    let text = format!("memory at {at:#x} differs");
                    return Err(self.difference(before, &text));
                }
            }
        }
        Ok(())
    }
}

/// Position of a processor before a stretch.
struct StretchStart {
    cpu: usize,
    rip: u64,
    physical: u64,
    clock: Ticks,
    width: u32,
}

fn places(machine: &Machine) -> Vec<StretchStart> {
    let place = |cpu: &Cpu| StretchStart {
        cpu: cpu.wiring.index,
        rip: cpu.arch.rip,
        // The page of code that was executed last may be another one.
        physical: cpu.look_up_on_board(cpu.visible().cr3, cpu.code_linear()).unwrap_or(u64::MAX),
        clock: cpu.micro.clock,
        width: if cpu.engine.long64 { 64 } else { 32 },
    };
    machine.vcpus.all.iter().map(|vcpu| place(&vcpu.cpu)).collect()
}

impl StretchStart {
    /// Describes the instructions at the position, and their translation.
    fn describe(&self, machine: &Machine) -> String {
        let mut text = format!("cpu {} before, at {:#x}, time {}:\n", self.cpu, self.rip, self.clock);
        let mut bytes = [0; 64];
        if machine.vcpus.all[self.cpu].cpu.wiring.ram.read_bytes(self.physical, &mut bytes) {
            let mut formatter = GasFormatter::new();
            let decoder = Decoder::with_ip(self.width, &bytes, self.rip, DecoderOptions::NONE);
            for instruction in decoder.into_iter().take(12) {
                let mut line = String::new();
                formatter.format(&instruction, &mut line);
                let _ = writeln!(text, "  {:x}: {line}", instruction.ip());
            }
        }
        for listing in machine.vcpus.cache.listings(self.physical, self.rip) {
            let _ = write!(text, "translated to:\n{}", listing.text);
        }
        text
    }
}

/// Maximum number of differences that are listed for one processor: its tables have thousands of fields.
const MOST_DIFFERENCES: usize = 100;

/// Lists the differences between two processors by the fields of their whole state.
fn differences(a: &Cpu, b: &Cpu, text: &mut String) {
    if a.rflags() != b.rflags() {
        let _ = writeln!(text, "rflags: {:#x}, translated {:#x}", a.rflags(), b.rflags());
    }
    let mut found = Vec::new();
    if a.arch != b.arch {
        compare("", &fields(&a.arch), &fields(&b.arch), &mut found);
    }
    if a.micro != b.micro {
        compare("", &fields(&a.micro), &fields(&b.micro), &mut found);
    }
    for (name, a, b) in found.iter().take(MOST_DIFFERENCES) {
        let _ = writeln!(text, "{name}: {a}, translated {b}");
    }
    if found.len() > MOST_DIFFERENCES {
        let _ = writeln!(text, "and {} more", found.len() - MOST_DIFFERENCES);
    }
}

/// Returns the fields of plain data, with their names.
fn fields(of: &impl Serialize) -> Value {
    // Plain data has string keys and integers only.
    serde_json::to_value(of).unwrap_or_default()
}

/// Finds the leaves that differ between two trees: name and both values.
fn compare(name: &str, a: &Value, b: &Value, found: &mut Vec<(String, String, String)>) {
    let below = |name: &str, part: &str| if name.is_empty() { part.to_owned() } else { format!("{name}.{part}") };
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            for (part, a) in a {
                compare(&below(name, part), a, b.get(part).unwrap_or(&Value::Null), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (number, (a, b)) in a.iter().zip(b).enumerate() {
                let part = match name {
                    "gpr" if number < reg::NAMES.len() => reg::NAMES[number].to_owned(),
                    _ => format!("{name}[{number}]"),
                };
                compare(&part, a, b, found);
            }
        }
        _ if a == b => {}
        _ => found.push((name.to_owned(), shown(a), shown(b))),
    }
}

fn shown(value: &Value) -> String {
    value.as_u64().map_or_else(|| value.to_string(), |number| format!("{number:#x}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Platform;
    use crate::testing;
    use cpu::Tier;

    /// Creates a machine that counts for a few stretches, puts `value` into EBX, and exits with status 1.
    fn machine(value: u8, tier: Tier) -> Machine {
        let code = [
            &[0xb9, 0x00, 0x90, 0, 0][..], // mov ecx, 0x9000
            &[0x49, 0x75, 0xfd],           // dec ecx; jnz
            &[0xbb, value, 0, 0, 0],       // mov ebx, value
            &[0x31, 0xc0, 0xe6, 0xf4],     // xor eax, eax; out 0xf4, al
            &[0xeb, 0xfe],                 // jmp
        ]
        .concat();
        Machine::new(testing::config(&code, Platform::Bare, tier)).unwrap()
    }

    fn both(values: [u8; 2]) -> Lockstep {
        Lockstep::new(machine(values[0], Tier::Interpreter), machine(values[1], Tier::Translator))
    }

    #[test]
    fn the_same_guest_is_the_same_on_both() {
        assert_eq!(both([1, 1]).run(&mut Nobody(100)), Ok(Outcome::DebugExit(1)));
    }

    #[test]
    fn a_difference_is_narrowed_to_its_block() {
        let found = both([1, 2]).run(&mut Nobody(100)).unwrap_err();
        assert!(found.text.contains("rbx: 0x1, translated 0x2"), "{}", found.text);
        let narrowed = both([1, 2]).narrow(found.clone());
        assert!(narrowed.stretch > found.stretch, "{narrowed:?}");
        assert!(narrowed.text.starts_with("cpu 0 before, at 0x100038,"), "{}", narrowed.text);
        assert!(narrowed.text.contains("rbx: 0x1, translated 0x2"), "{}", narrowed.text);
    }

    /// Returns copies of a tree, each with one leaf changed.
    fn changed(value: &Value, name: &str, out: &mut Vec<(String, Value)>) {
        match value {
            Value::Bool(is) => out.push((name.to_owned(), Value::from(!is))),
            Value::Number(number) => {
                out.push((name.to_owned(), Value::from(number.as_u64().expect("no other numbers") ^ 1)));
            }
            Value::Null | Value::String(_) => {}
            Value::Array(parts) => {
                for (number, part) in parts.iter().enumerate() {
                    let mut inner = Vec::new();
                    changed(part, &format!("{name}[{number}]"), &mut inner);
                    for (name, part) in inner {
                        let mut whole = parts.clone();
                        whole[number] = part;
                        out.push((name, Value::Array(whole)));
                    }
                }
            }
            Value::Object(parts) => {
                for (key, part) in parts {
                    let mut inner = Vec::new();
                    changed(part, &format!("{name}.{key}"), &mut inner);
                    for (name, part) in inner {
                        let mut whole = parts.clone();
                        whole.insert(key.clone(), part);
                        out.push((name, Value::Object(whole)));
                    }
                }
            }
        }
    }

    #[test]
    fn a_change_of_any_field_is_found() {
        let mut both = both([1, 1]);
        let right = both.translated.vcpus.all[0].cpu.arch.clone();
        let mut wrong = Vec::new();
        changed(&fields(&right), "", &mut wrong);
        let names: Vec<&str> = wrong.iter().map(|(name, _)| name.as_str()).collect();
        for name in [".msr.lstar", ".msr.mtrr_variable[15]", ".dr[7]", ".gdtr.limit", ".idtr.base", ".ldtr.rights"] {
            assert!(names.contains(&name), "{name} is no field");
        }
        for name in [".tr.limit", ".seg[1].rights", ".seg[5].limit", ".pkru", ".msr.efer", ".vmx.controls.pin"] {
            assert!(names.contains(&name), "{name} is no field");
        }
        let pause = (Pause::Slice, Pause::Slice);
        assert_eq!(both.compare(pause, &[]), Ok(()));
        for (name, state) in wrong {
            both.translated.vcpus.all[0].cpu.arch = serde_json::from_value(state).expect("the same fields");
            let found = both.compare(pause, &[]).expect_err(&name);
            assert!(!found.text.is_empty(), "{name}");
        }
        both.translated.vcpus.all[0].cpu.arch = right;
        assert_eq!(both.compare(pause, &[]), Ok(()));
    }

    #[test]
    fn time_and_translations_are_compared() {
        let mut both = both([1, 1]);
        both.translated.vcpus.all[0].cpu.micro.clock += 1;
        let found = both.compare((Pause::Slice, Pause::Slice), &[]).expect_err("time");
        assert!(found.text.contains("clock: 0x0, translated 0x1"), "{}", found.text);
        both.translated.vcpus.all[0].cpu.micro.clock -= 1;
        both.translated.vcpus.all[0].cpu.micro.tlb.flush_all();
        both.compare((Pause::Slice, Pause::Slice), &[]).expect_err("a flush");
    }
}
