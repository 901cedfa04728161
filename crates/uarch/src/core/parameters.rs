//! The figures of a core's pipeline, from `profiles/cores/NAME.toml`. Each section names its source.

use serde::Deserialize;

/// The greatest width, window and number of cycles.
const MOST: u32 = 10_000;

/// The greatest length of a repeated string instruction for which a core has its own figure.
const LONGEST_STRING: u32 = 1 << 20;

/// Returns true for a possible number of cycles.
fn is_cycles(number: f64) -> bool {
    (0.0..=f64::from(MOST)).contains(&number)
}

/// Figures of a core's pipeline.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// Name for readers.
    pub title: String,
    /// Ports: a letter, and the characters of the ports with that letter.
    pub ports: Vec<String>,
    /// Where the ports are from.
    pub ports_source: String,
    /// The front end.
    pub front: Front,
    /// Windows.
    pub window: Window,
    /// Accesses to memory.
    pub memory: Memory,
    /// Fusion and elimination.
    pub fusion: Fusion,
    /// Repeated string instructions.
    pub string: Strings,
}

/// The front end.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Front {
    /// Uops of the fused domain (AMD: macro-operations) that enter the window a cycle.
    pub issue: u32,
    /// Instructions that the decoders take a cycle.
    pub decode: u32,
    /// Bytes of code that the decoders are given a cycle.
    pub decode_bytes: u32,
    /// Uops a cycle from the cache of decoded uops.
    pub cached: u32,
    /// Cycles from one taken branch to the next, at least.
    pub taken: f64,
    /// Cycles from the branch in front to a call, at least.
    pub call: f64,
    /// The same to a return.
    pub ret: f64,
    /// Cycles of a run that begins behind a direct call or a return and ends with a call or return, at least; 0 if such a run is as any other.
    #[serde(default)]
    pub called: f64,
    /// Uops of an entry of the cache of decoded uops, of which a taken branch ends one: the front end reads an entry in a cycle. 0 if
    /// loops of such a length do not show it.
    pub entry: u32,
    /// Bytes of the aligned lines of code that the cache of decoded uops has, of which the front end reads one in a cycle; 0 if the core's lines
    /// are not known.
    #[serde(default)]
    pub line: u32,
    /// Cycles that the front end takes for an instruction with an immediate of 16 bits, whose length a prefix changes.
    #[serde(default)]
    pub length_changing: u32,
    /// Uops with an immediate of 64 bits that the front end reads in a cycle; 0 if there is no such limit.
    pub entry_wide: u32,
    /// Ports of branches.
    pub branch_ports: String,
    /// Source of these figures.
    pub source: String,
}

/// Windows: what may wait.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Entries of the reorder buffer.
    pub reorder: u32,
    /// Entries of the schedulers together.
    pub scheduler: u32,
    /// Uops of the fused domain that the core completes in a cycle.
    pub retire: u32,
    /// Source of these figures.
    pub source: String,
}

/// Accesses to memory that hit the first-level cache.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// Cycles from the address to a general register.
    pub load: u32,
    /// Cycles more with a scaled index.
    pub load_indexed: u32,
    /// Cycles from the address to a vector register, by width: 128, 256, 512 bits.
    pub load_vector: [u32; 3],
    /// Cycles from the data of a store to the result of a load of the same address, between general registers.
    pub forward: u32,
    /// The same to the operand of an instruction that does more than load.
    pub forward_operation: u32,
    /// The same to the operand of an instruction that stores its result there.
    pub forward_modify: u32,
    /// The same from a general register to a vector.
    pub forward_to_vector: u32,
    /// The same from a vector to a general register.
    pub forward_from_vector: u32,
    /// The same between vectors.
    pub forward_vector: u32,
    /// The same for a load of an address that the core renames like a register, or for which it predicts the store.
    pub forward_renamed: u32,
    /// Cycles from the data of a store to the result of a load that needs bytes which the store does not have.
    pub blocked: u32,
    /// Cycles by which an addition to the stack pointer, or a subtraction, takes longer behind PUSH, POP, CALL or RET: the stack engine
    /// has moved the stack pointer by an offset, which is added first. 0 where that is not known.
    pub stack_offset: u32,
    /// Loads for which the core remembers the stores that they need, apart from those that it renames; 0 for none.
    pub predicted_pairs: u8,
    /// Which addresses without an index the core renames.
    pub renames: Renames,
    /// Which instructions that do more than load are renamed like loads.
    pub renames_operands: Operands,
    /// Bytes of the shortest access that is renamed.
    pub renamed_bytes: u8,
    /// The cache takes two stores a cycle if they follow each other and are to the same so many bytes, and one otherwise. 0 if there is no such
    /// limit.
    pub paired_bytes: u32,
    /// Cycles by which an instruction takes longer if an operand is AH, BH, CH or DH. One such instruction executes in a cycle. 0 where that
    /// is not known.
    #[serde(default)]
    pub high_byte: u32,
    /// Ports of a read, by width: general, 128, 256, 512 bits. Empty where the forms have them.
    pub load_ports: [String; 4],
    /// Ports of a write, by width.
    pub store_ports: [String; 4],
    /// Source of these figures.
    pub source: String,
}

/// Addresses whose loads a core renames: a load of what was stored needs no access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Renames {
    /// None.
    None,
    /// Those relative to the stack pointer. For others it predicts the store that the load needs.
    Stack,
    /// All with a base and a displacement.
    All,
}

/// Instructions with a memory operand that are renamed, beside MOV and POP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operands {
    /// Those that store their result at the same place.
    Modifies,
    /// Those, and all others apart from MOVZX and MOVSX.
    All,
    /// MOVZX of a byte, arithmetic whose result is a register that it also reads, and arithmetic that stores its result at the same place if it
    /// reads no other register and no flag. No access of 16 bits.
    Arithmetic,
}

/// Fusion and elimination.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fusion {
    /// Instructions that are one with a conditional branch behind them.
    pub with_branch: Vec<String>,
    /// Such an instruction may have a memory operand.
    pub memory: bool,
    /// ... and an immediate too.
    pub memory_immediate: bool,
    /// SBB of a register with itself depends on the carry flag alone.
    pub carry_idiom: bool,
    /// Instructions of three operands with an indexed memory operand take a slot more.
    pub unlaminated: bool,
    /// MOV from the stack pointer is renamed as from any other register; otherwise it executes like LEA. True where that is not known.
    pub stack_moves: bool,
    /// MOV and MOVZX of a register to itself is renamed as from any other register. True where that is not known.
    #[serde(default = "yes")]
    pub self_moves: bool,
    /// Renaming adds an immediate of this magnitude at most (that is, from -N to N - 1) to a register of 64 bits, by ADD, SUB, INC, DEC and LEA; 0 if
    /// it does not.
    #[serde(default)]
    pub added_immediate: u32,
    /// Source of these figures.
    pub source: String,
}

/// Repeated string instructions.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Strings {
    /// REP MOVSB and MOVSW.
    pub movs: Repeated,
    /// REP MOVSD and MOVSQ.
    pub movs_wide: Repeated,
    /// REP STOSB and STOSW.
    pub stos: Repeated,
    /// REP STOSD and STOSQ.
    pub stos_wide: Repeated,
    /// Source of these figures.
    pub source: String,
}

/// What a repeated string instruction takes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Repeated {
    /// Lengths in bytes and what they take in cycles, in ascending order of lengths: between two, the time is proportional.
    pub cycles: Vec<(u32, f64)>,
    /// Cycles a line of 64 bytes beyond the last length.
    pub line: f64,
    /// Length from which the destination's alignment to 32 bytes matters.
    pub unaligned_from: u32,
    /// Cycles more if the destination is not aligned.
    pub unaligned: f64,
    /// Cycles more a line if the destination is not aligned.
    pub unaligned_line: f64,
    /// Cycles if the destination is 1 to 63 bytes above the source, modulo 4096, so that loads seem to need what was just
    /// stored; 0 if that does not matter.
    pub overlap: f64,
    /// Cycles a byte more in that case.
    pub overlap_byte: f64,
}

fn yes() -> bool {
    true
}

impl Memory {
    /// Returns the most cycles from the data of a store to the result of a load.
    pub(crate) fn longest(&self) -> u32 {
        let general = self.forward.max(self.forward_operation).max(self.forward_modify).max(self.forward_renamed);
        let vectors = self.forward_to_vector.max(self.forward_from_vector).max(self.forward_vector);
        general.max(vectors).max(self.blocked)
    }
}

impl Parameters {
    /// Returns the bits of the ports that a name such as `p0156` stands for.
    pub fn ports(&self, names: &str) -> Option<u32> {
        let mut characters = names.chars();
        let group = characters.next()?;
        let mut bits = 0;
        for character in characters {
            let mut first = 0;
            let mut found = None;
            for ports in &self.ports {
                let mut members = ports.chars();
                if members.next() == Some(group)
                    && let Some(at) = members.position(|member| member == character)
                {
                    found = Some(first + at);
                }
                first += ports.len() - 1;
            }
            bits |= 1 << found?;
        }
        (bits != 0).then_some(bits)
    }

    /// Returns the names of ports.
    pub fn names(&self, bits: u32) -> String {
        let mut names = String::new();
        let mut bit = 0;
        for ports in &self.ports {
            let mut group = String::new();
            for character in ports.chars().skip(1) {
                if bits >> bit & 1 != 0 {
                    group.push(character);
                }
                bit += 1;
            }
            if !group.is_empty() {
                names.push_str(&ports[..1]);
                names.push_str(&group);
            }
        }
        names
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let ports: usize = self.ports.iter().map(|ports| ports.len().saturating_sub(1)).sum();
        if ports > 32 || self.ports.iter().any(|ports| !ports.is_ascii() || ports.len() < 2) {
            return Err("`ports` lists at most 32 ports, each group as a letter and its members".into());
        }
        if self.front.issue == 0 || self.front.decode == 0 || self.front.decode_bytes == 0 || self.front.cached == 0 {
            return Err("a width of `front` is 0".into());
        }
        let (front, window, memory) = (&self.front, &self.window, &self.memory);
        if front.line != 0 && !(front.line.is_power_of_two() && (16..=256).contains(&front.line)) {
            return Err("`line` of `front` is neither 0 nor a power of two from 16 to 256".into());
        }
        if memory.paired_bytes != 0
            && !(memory.paired_bytes.is_power_of_two() && (16..=64).contains(&memory.paired_bytes))
        {
            return Err("`paired_bytes` of `memory` is neither 0 nor a power of two from 16 to 64".into());
        }
        let figures = [front.issue, front.decode, front.decode_bytes, front.cached, window.reorder, window.scheduler]
            .into_iter()
            .chain([memory.load, memory.load_indexed, memory.forward, memory.forward_operation, memory.forward_modify])
            .chain([memory.forward_to_vector, memory.forward_from_vector, memory.forward_vector])
            .chain([
                memory.forward_renamed,
                memory.blocked,
                memory.stack_offset,
                memory.high_byte,
                front.length_changing,
                window.retire,
                front.entry,
                front.entry_wide,
            ])
            .chain(memory.load_vector);
        let branches = [front.taken, front.call, front.ret, front.called];
        if figures.into_iter().any(|figure| figure > MOST) || !branches.into_iter().all(is_cycles) {
            return Err(format!("a width, a window or a number of cycles is not between 0 and {MOST}"));
        }
        let strings = &self.string;
        for repeated in [&strings.movs, &strings.movs_wide, &strings.stos, &strings.stos_wide] {
            if !repeated.cycles.is_sorted_by(|a, b| a.0 < b.0) {
                return Err("the lengths of `string` are not in ascending order".into());
            }
            let Repeated { line, unaligned, unaligned_line, overlap, overlap_byte, .. } = *repeated;
            let figures = [line, unaligned, unaligned_line, overlap, overlap_byte];
            let lengths_are_short = repeated.cycles.iter().all(|at| at.0 <= LONGEST_STRING && is_cycles(at.1));
            if !lengths_are_short || !figures.into_iter().all(is_cycles) {
                return Err(format!(
                    "a length of `string` is more than {LONGEST_STRING}, or a number of cycles is not between 0 and {MOST}"
                ));
            }
        }
        if self.window.reorder == 0 || self.window.scheduler == 0 || self.window.retire == 0 {
            return Err("a window is 0".into());
        }
        Ok(())
    }
}
