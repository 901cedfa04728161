//! Two machines with the same guest, one interpreting, one translating, held against each other.
//!
//! Both run for the same short stretches of virtual time. After each, the state of every processor must be the same, from
//! time to time so must all of memory, and at the end what was charged: a translation that goes wrong is found at the stretch in
//! which it does, which is then run again from the start of the guest, block by block, to name the block.

use crate::machine::{Host, Machine, Outcome, Poll};
use crate::vcpus::Pause;
use cpu::Cpu;
use iced_x86::{Decoder, DecoderOptions, Formatter, GasFormatter};
use ledger::Ticks;
use ledger::symbols::Symbols;
use std::fmt::Write;
use std::time::Duration;
use x86::page::PAGE;
use x86::{reg, seg};

/// A stretch, in cycles.
const STRETCH: u64 = 20_011;
/// Stretches between comparisons of memory.
const MEMORY_EVERY: u64 = 20_000;

/// The two machines.
pub struct Lockstep {
    reference: Machine,
    translated: Machine,
    stretches: u64,
}

/// What is not the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The stretch, from the start of the guest.
    pub stretch: u64,
    /// Where each processor was before it and the differences after it, for people.
    pub text: String,
}

/// A host that notes what it gives to the guest.
struct Noting<'a> {
    host: &'a mut dyn Host,
    input: Vec<u8>,
}

impl Host for Noting<'_> {
    fn output(&mut self, bytes: &[u8]) {
        self.host.output(bytes);
    }
    fn poll(&mut self, now: Ticks, wanted: bool) -> Poll {
        let poll = self.host.poll(now, wanted);
        self.input.extend_from_slice(&poll.input);
        poll
    }
    fn attended(&self) -> bool {
        self.host.attended()
    }
    fn idle(&mut self, limit: Duration) {
        self.host.idle(limit);
    }
}

/// Nobody, for so many stretches.
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
    /// Puts a machine that interprets beside one that translates. Both must be made the same way.
    pub fn new(mut reference: Machine, mut translated: Machine) -> Self {
        for machine in [&mut reference, &mut translated] {
            machine.vcpus.slice = STRETCH * ledger::TICKS_PER_CYCLE;
        }
        Self { reference, translated, stretches: 0 }
    }

    /// Names the block of a difference that machines made the same way had: runs up to the stretch before without looking, then
    /// block by block. Where that finds nothing, as after typed input, the difference is as it was.
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

    /// Virtual time in seconds.
    pub fn seconds(&self) -> f64 {
        self.translated.seconds()
    }

    /// The machine that translates.
    pub fn translated(&self) -> &Machine {
        &self.translated
    }

    /// Runs until the guest or the host ends both machines, or they differ. The console of the translating one is the host's.
    pub fn run(&mut self, host: &mut dyn Host) -> Result<Outcome, Difference> {
        loop {
            let before = places(&self.translated);
            let pauses = (self.reference.vcpus.run(), self.translated.vcpus.run());
            self.stretches += 1;
            self.compare(pauses, &before)?;
            self.reference.board.borrow_mut().console_output();
            let mut noting = Noting { host: &mut *host, input: Vec::new() };
            let outcome = self.translated.outside(pauses.1, &mut noting);
            self.reference.feed(&noting.input);
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

    fn compare(&self, pauses: (Pause, Pause), before: &[Place]) -> Result<(), Difference> {
        let mut text = String::new();
        if pauses.0 != pauses.1 {
            let _ = writeln!(text, "stopped for: {:?}, translated {:?}", pauses.0, pauses.1);
        }
        for (a, b) in self.reference.vcpus.all.iter().zip(&self.translated.vcpus.all) {
            differences(&a.cpu, &b.cpu, &mut text);
        }
        if text.is_empty() { Ok(()) } else { Err(self.difference(before, &text)) }
    }

    fn difference(&self, before: &[Place], text: &str) -> Difference {
        let places: String = before.iter().map(|place| place.describe(&self.translated)).collect();
        Difference { stretch: self.stretches, text: places + text }
    }

    /// Compares what was charged in all. The machines can't be run any further.
    fn charges(&mut self, before: &[Place]) -> Result<(), Difference> {
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

    fn memory(&self, before: &[Place]) -> Result<(), Difference> {
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

/// Where a processor was before a stretch.
struct Place {
    cpu: usize,
    rip: u64,
    physical: u64,
    clock: Ticks,
    width: u32,
}

fn places(machine: &Machine) -> Vec<Place> {
    let place = |cpu: &Cpu| Place {
        cpu: cpu.wiring.index,
        rip: cpu.arch.rip,
        physical: cpu.engine.fetch.physical | (cpu.code_linear() & 0xfff),
        clock: cpu.micro.clock,
        width: if cpu.engine.long64 { 64 } else { 32 },
    };
    machine.vcpus.all.iter().map(|vcpu| place(&vcpu.cpu)).collect()
}

impl Place {
    /// The instructions there, and what they are translated to.
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

fn differences(a: &Cpu, b: &Cpu, text: &mut String) {
    let mut differ = |name: &str, a: u64, b: u64| {
        if a != b {
            let _ = writeln!(text, "{name}: {a:#x}, translated {b:#x}");
        }
    };
    for (number, name) in reg::NAMES.iter().enumerate() {
        differ(name, a.arch.gpr[number], b.arch.gpr[number]);
    }
    differ("rip", a.arch.rip, b.arch.rip);
    differ("rflags", a.rflags(), b.rflags());
    differ("clock", a.micro.clock, b.micro.clock);
    differ("attention", u64::from(a.arch.attention), u64::from(b.arch.attention));
    differ("cpl", u64::from(a.arch.cpl), u64::from(b.arch.cpl));
    differ("cr0", a.arch.cr0, b.arch.cr0);
    differ("cr2", a.arch.cr2, b.arch.cr2);
    differ("cr3", a.arch.cr3, b.arch.cr3);
    differ("cr4", a.arch.cr4, b.arch.cr4);
    differ("mxcsr", u64::from(a.arch.vector.mxcsr), u64::from(b.arch.vector.mxcsr));
    for number in 0..16 {
        for word in 0..4 {
            differ(&format!("ymm{number}[{word}]"), a.arch.vector.ymm[number][word], b.arch.vector.ymm[number][word]);
        }
    }
    for number in 0..8 {
        differ(&format!("x87 r{number}"), a.arch.x87.regs[number].significand, b.arch.x87.regs[number].significand);
        let signs = (a.arch.x87.regs[number].sign_exponent, b.arch.x87.regs[number].sign_exponent);
        differ(&format!("x87 r{number} exponent"), u64::from(signs.0), u64::from(signs.1));
    }
    differ("x87 control", u64::from(a.arch.x87.control), u64::from(b.arch.x87.control));
    differ("x87 opcode", u64::from(a.arch.x87.opcode), u64::from(b.arch.x87.opcode));
    differ("x87 instruction", a.arch.x87.ip, b.arch.x87.ip);
    differ("x87 data", a.arch.x87.dp, b.arch.x87.dp);
    differ("x87 code segment", u64::from(a.arch.x87.cs), u64::from(b.arch.x87.cs));
    differ("x87 data segment", u64::from(a.arch.x87.ds), u64::from(b.arch.x87.ds));
    differ("x87 status", u64::from(a.arch.x87.status), u64::from(b.arch.x87.status));
    differ("x87 tags", u64::from(a.arch.x87.tags), u64::from(b.arch.x87.tags));
    for number in [seg::ES, seg::CS, seg::SS, seg::DS, seg::FS, seg::GS] {
        let number = usize::from(number);
        differ(&format!("segment {number} base"), a.arch.seg[number].base, b.arch.seg[number].base);
        let selectors = (a.arch.seg[number].selector, b.arch.seg[number].selector);
        differ(&format!("segment {number}"), u64::from(selectors.0), u64::from(selectors.1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Platform;
    use crate::board::Parts;
    use crate::machine::{ClockSource, Config};
    use cpu::Tier;
    use ledger::Profile;

    const ENTRY: u32 = 0x10_0030;

    /// Counts for a few stretches, puts `value` into EBX, and leaves with status 1.
    fn machine(value: u8, tier: Tier) -> Machine {
        let code = [
            &[0xb9, 0x00, 0x90, 0, 0][..], // mov ecx, 0x9000
            &[0x49, 0x75, 0xfd],           // dec ecx; jnz
            &[0xbb, value, 0, 0, 0],       // mov ebx, value
            &[0x31, 0xc0, 0xe6, 0xf4],     // xor eax, eax; out 0xf4, al
            &[0xeb, 0xfe],                 // jmp
        ]
        .concat();
        let (flags, end) = (1u32 << 16, ENTRY + code.len() as u32);
        let checksum = 0u32.wrapping_sub(0x1bad_b002 + flags);
        let head = [0x1bad_b002, flags, checksum, 0x10_0000, 0x10_0000, end, end, ENTRY, 0, 0, 0, 0];
        let kernel = head.iter().flat_map(|word| word.to_le_bytes()).chain(code).collect();
        let config = Config {
            memory: 4 << 20,
            cpus: 1,
            profile: Profile::named("skx").unwrap(),
            kernel,
            kernel_name: "counter".into(),
            modules: Vec::new(),
            cmdline: String::new(),
            parts: Parts::default(),
            clock: ClockSource::Virtual,
            platform: Platform::Bare,
            tier,
        };
        Machine::new(config).unwrap()
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
}
