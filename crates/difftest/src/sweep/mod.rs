//! A sweep of the opcode space: every encoding, defined or not, on the host's processor and on the processor under
//! test, at privilege level 3.
//!
//! Random instructions of known forms cannot show that a form is unknown. A sweep compares the rest: the vector, error
//! code and address of a fault, or the address at which execution continues, which also gives the length. The results
//! of instructions are compared by the other modules.

mod exclusions;
pub mod space;

use crate::emulated::{Emulated, host_cpuid};
use crate::layout::{ARENA, ARENA_LEN, CODE, STACK, SWEEP, writable};
use crate::native::{Native, Trap, Unavailable};
use crate::state::State;
use cpu::model::CpuidEntry;
use iced_x86::{Code, CpuidFeature, Formatter, GasFormatter, Instruction};
use serde::{Deserialize, Serialize};
use space::{AT, DATA, Encoding, Map};
use std::collections::BTreeMap;
use x86::page::{PAGE, code};
use x86::vector;

/// The reaction of a processor to an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reaction {
    /// The instruction completes, and execution continues at this address.
    Goes(u64),
    /// The instruction faults.
    Faults {
        /// Vector.
        vector: u8,
        /// Error code; 0 for vectors without one.
        code: u32,
        /// Address of a page fault.
        address: u64,
        /// Length of the instruction in bytes; 0 if it is undefined.
        len: usize,
    },
}

impl Reaction {
    fn vector(&self) -> Option<u8> {
        match self {
            Self::Goes(_) => None,
            Self::Faults { vector, .. } => Some(*vector),
        }
    }

    /// Describes the reaction in words, for an instruction at [`AT`].
    pub fn describe(&self) -> String {
        const NAMES: [&str; 20] = [
            "DE", "DB", "NMI", "BP", "OF", "BR", "UD", "NM", "DF", "9", "TS", "NP", "SS", "GP", "PF", "15", "MF", "AC",
            "MC", "XM",
        ];
        match *self {
            Self::Goes(rip) if (1..=15).contains(&rip.wrapping_sub(AT)) => format!("completes, {} bytes", rip - AT),
            Self::Goes(rip) => format!("goes to {rip:#x}"),
            Self::Faults { vector, code, address, len } => {
                let name = NAMES.get(usize::from(vector)).unwrap_or(&"?");
                let code = if matches!(vector, 10..=14) { format!("({code:#x})") } else { String::new() };
                let address = if vector == 14 { format!(" at {address:#x}") } else { String::new() };
                let len = if len != 0 { format!(", {len} bytes") } else { String::new() };
                format!("#{name}{code}{address}{len}")
            }
        }
    }
}

/// Encodings with unequal outcomes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// Common properties: map, opcode, /r, form of the operand, outcomes.
    pub group: String,
    /// Number of encodings.
    pub count: u64,
    /// Width of code.
    pub bits: u32,
    /// Bytes of the first encoding.
    pub bytes: String,
    /// The first encoding as the decoder prints it.
    pub instruction: String,
    /// Outcome on the host.
    pub native: String,
    /// Outcome on the processor under test.
    pub emulated: String,
}

/// Counts of a sweep.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SweepCounts {
    /// Number of encodings.
    pub encodings: u64,
    /// Number of encodings with equal outcomes.
    pub equal: u64,
    /// Number of these that are undefined on both sides.
    pub undefined: u64,
    /// Encodings that are not compared, by reason.
    pub excluded: BTreeMap<String, u64>,
    /// Number of encodings with unequal outcomes.
    pub unequal: u64,
    /// These encodings, by their common properties.
    pub findings: BTreeMap<String, Finding>,
}

impl SweepCounts {
    /// Adds the counts of another part.
    pub fn add(&mut self, other: SweepCounts) {
        self.encodings += other.encodings;
        self.equal += other.equal;
        self.undefined += other.undefined;
        self.unequal += other.unequal;
        for (reason, count) in other.excluded {
            *self.excluded.entry(reason).or_default() += count;
        }
        for (group, finding) in other.findings {
            self.findings.entry(group).and_modify(|own| own.count += finding.count).or_insert(finding);
        }
    }
}

/// The part of the space that a sweep goes through.
#[derive(Clone, Debug)]
pub struct Part {
    /// Opcode maps.
    pub maps: Vec<Map>,
    /// One encoding in this many is executed, spread evenly; 1 for all.
    pub every: u64,
    /// Number of this worker, and number of workers.
    pub share: (u64, u64),
}

/// Both sides.
pub struct Sweeper {
    native: Native,
    emulated: Emulated,
    bits: u32,
    state: State,
    arena: Box<[u8; ARENA_LEN]>,
    cpuid: Vec<CpuidEntry>,
}

/// Returns the arena's contents: addresses of INT3s, to which returns and indirect branches lead. As selectors they are
/// beyond the end of any table.
fn arena(bits: u32) -> Box<[u8; ARENA_LEN]> {
    let mut arena = Box::new([0; ARENA_LEN]);
    let target = (CODE + 0x400).to_le_bytes();
    // Read-only memory stays zero: it is written once for both widths.
    for range in writable() {
        let chunk = bits as usize / 8;
        arena[range].chunks_mut(chunk).for_each(|word| word.copy_from_slice(&target[..chunk]));
    }
    arena
}

/// Returns a state whose registers all lead into the arena, are aligned, and are no selectors.
fn state() -> State {
    let mut state = State::default();
    for (register, n) in state.gpr.iter_mut().zip(0u64..) {
        *register = DATA + n * 0x40;
    }
    state.wide.k = [u64::MAX; 8];
    state.gpr[4] = STACK;
    state.gpr[5] = STACK + 0x40;
    state
}

impl Sweeper {
    /// Creates a sweeper for code of this width.
    pub fn new(bits: u32) -> Result<Self, Unavailable> {
        let native = Native::new(&arena(bits))?;
        Ok(Self::with(native, bits))
    }

    fn with(native: Native, bits: u32) -> Self {
        let arena = arena(bits);
        let emulated = Emulated::new(&arena, bits == 64);
        Self { native, emulated, bits, state: state(), arena, cpuid: host_cpuid() }
    }

    /// Returns the same sweeper for code of another width.
    pub fn switch(self, bits: u32) -> Self {
        Self::with(self.native, bits)
    }

    fn reset(&mut self) {
        for range in writable() {
            let address = ARENA + range.start as u64;
            self.native.poke(address, &self.arena[range.clone()]);
            self.emulated.poke(address, &self.arena[range]);
        }
    }

    fn trap(&mut self, bytes: &[u8], at: u64) -> Trap {
        self.native.trap(bytes, at, &self.state, self.bits == 64)
    }

    /// Returns the host's reaction. `len` is the instruction's length according to the processor under test.
    fn natively(&mut self, bytes: &[u8], len: usize) -> Reaction {
        let trap = self.trap(bytes, AT);
        let before = trap.rip.wrapping_sub(1);
        let interrupted = trap.vector == vector::BP && trap.rip != AT;
        if interrupted && [CODE, SWEEP].iter().any(|page| (*page..page + PAGE).contains(&before)) {
            return Reaction::Goes(before);
        }
        let fetch = trap.vector == vector::PF && trap.code & code::FETCH != 0;
        if fetch && trap.address == trap.rip && trap.rip != AT {
            return Reaction::Goes(trap.rip);
        }
        let address = if trap.vector == vector::PF { trap.address } else { 0 };
        let mut outcome = Reaction::Faults { vector: trap.vector, code: trap.code, address, len: 0 };
        if trap.rip != AT {
            // Another instruction faulted.
            outcome = Reaction::Goes(trap.rip);
        } else if trap.vector != vector::UD
            && let Reaction::Faults { len: own, .. } = &mut outcome
        {
            *own = self.length(bytes, len);
        }
        outcome
    }

    /// Returns the length of a faulting instruction: the number of bytes before the end of a page with which its fetch
    /// does not fault.
    fn length(&mut self, bytes: &[u8], guess: usize) -> usize {
        let mut padded = [0xcc; 15];
        padded[..bytes.len()].copy_from_slice(bytes);
        let end = SWEEP + PAGE;
        let mut fetched = |len: usize| {
            self.reset();
            let start = end - len as u64;
            let trap = self.trap(&padded[..len], start);
            trap.vector != vector::PF || trap.address != end || trap.rip != start
        };
        if fetched(guess) && (guess == 1 || !fetched(guess - 1)) {
            return guess;
        }
        (1..=15).find(|len| fetched(*len)).unwrap_or(0)
    }

    /// Returns both reactions to an encoding, and its decoded instruction.
    pub fn compare(&mut self, bytes: &[u8; 15], len: usize) -> (Reaction, Reaction, Instruction) {
        let mut instruction = self.emulated.decode(bytes, AT);
        let mut bytes = *bytes;
        // The address is aligned, independently of the instruction's end.
        if instruction.is_ip_rel_memory_operand() && len >= 4 {
            let displacement = (DATA as u32).wrapping_sub(AT as u32 + instruction.len() as u32);
            bytes[len - 4..len].copy_from_slice(&displacement.to_le_bytes());
            instruction = self.emulated.decode(&bytes, AT);
        }
        self.reset();
        let emulated = match self.emulated.one(&bytes, AT, &self.state) {
            Ok(rip) => Reaction::Goes(rip),
            Err(e) => {
                let len = if e.vector == vector::UD { 0 } else { instruction.len() };
                Reaction::Faults { vector: e.vector, code: e.code, address: e.address, len }
            }
        };
        // Bytes behind the instruction must not be executed.
        let len = if emulated.vector() == Some(vector::UD) { len } else { instruction.len() };
        let native = self.natively(&bytes[..len], len);
        (native, emulated, instruction)
    }

    /// Goes through a part of the space.
    pub fn run(&mut self, part: &Part, mut progress: impl FnMut(&Encoding, u64)) -> SweepCounts {
        let mut totals = SweepCounts::default();
        let mut index = 0u64;
        space::each(self.bits, &part.maps, |encoding| {
            index += 1;
            // Neighbours have little in common, so a sample has some of everything.
            if index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40 & 0xff_ffff >= (1 << 24) / part.every
                || index % part.share.1 != part.share.0
            {
                return;
            }
            if totals.encodings & 0xfff == 0 {
                progress(encoding, totals.encodings);
            }
            totals.encodings += 1;
            self.one(encoding, &mut totals);
        });
        totals
    }

    fn one(&mut self, encoding: &Encoding, totals: &mut SweepCounts) {
        let mut exclude = |reason: String| *totals.excluded.entry(reason).or_default() += 1;
        if let Some(reason) = exclusions::not_run(encoding) {
            return exclude(reason.into());
        }
        let (native, emulated, instruction) = self.compare(&encoding.bytes, encoding.len);
        if native == emulated {
            totals.equal += 1;
            totals.undefined += u64::from(native.vector() == Some(vector::UD));
            return;
        }
        if emulated.vector() == Some(vector::UD)
            && let Some(names) = self.not_offered(instruction.code())
        {
            return exclude(format!("the processor under test does not offer {names}"));
        }
        if let Some(reason) = exclusions::explained(encoding, &instruction, &native, &emulated) {
            return exclude(reason.into());
        }
        totals.unequal += 1;
        let finding = self.describe(encoding, &instruction, &native, &emulated);
        totals.findings.entry(finding.group.clone()).and_modify(|own| own.count += 1).or_insert(finding);
    }

    /// Returns the extensions that the host has, of an instruction that the processor under test does not execute.
    fn not_offered(&self, code: Code) -> Option<String> {
        if !crate::forms::beyond(code) {
            return None;
        }
        let leaf =
            |leaf, subleaf| self.cpuid.iter().find(|e| e.leaf == leaf && e.subleaf == Some(subleaf)).map(|e| e.regs);
        let names = cpu::features::extensions(code, leaf)?;
        // These may be off although they are announced, and their instructions are then no operations.
        if names.iter().any(|name| matches!(name, CpuidFeature::CET_SS | CpuidFeature::CET_IBT | CpuidFeature::MPX)) {
            return None;
        }
        Some(names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", "))
    }

    fn describe(&self, encoding: &Encoding, i: &Instruction, native: &Reaction, emulated: &Reaction) -> Finding {
        let operand = match encoding.modrm {
            Some(modrm) if modrm >= 0xc0 => format!(" /{} register", modrm >> 3 & 7),
            Some(modrm) => format!(" /{} memory", modrm >> 3 & 7),
            None => String::new(),
        };
        let kind = |o: &Reaction| o.describe().split([' ', ',']).next().unwrap_or("").to_string();
        let mut text = String::new();
        GasFormatter::new().format(i, &mut text);
        let map = encoding.map.name();
        Finding {
            group: format!(
                "{}-bit {map} {:02x}{operand}: {} on the host, {} here",
                self.bits,
                encoding.opcode,
                kind(native),
                kind(emulated)
            ),
            count: 1,
            bits: self.bits,
            bytes: encoding.bytes[..encoding.len.max(i.len())]
                .iter()
                .map(|b| format!("{b:02x}"))
                .collect::<Vec<_>>()
                .join(" "),
            instruction: text,
            native: native.describe(),
            emulated: emulated.describe(),
        }
    }
}
