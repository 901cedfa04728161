//! The figures of a core's pipeline, from `profiles/cores/NAME.toml`. Each section names its source.

use serde::Deserialize;

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
    /// Source of these figures.
    pub source: String,
}

/// Accesses to memory that hit the first-level cache.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// Cycles from the address to a general register.
    pub load: u32,
    /// Cycles more with an index.
    pub load_indexed: u32,
    /// Cycles from the address to a vector register, by width: 128, 256, 512 bits.
    pub load_vector: [u32; 3],
    /// Cycles from the data of a store to the result of a load of the same address.
    pub forward: u32,
    /// The same for vectors.
    pub forward_vector: u32,
    /// The same if base and displacement are equal and the core renames such addresses; equal to `forward` elsewhere.
    pub forward_renamed: u32,
    /// Ports of a read, by width: general, 128, 256, 512 bits. Empty where the forms have them.
    pub load_ports: [String; 4],
    /// Ports of a write, by width.
    pub store_ports: [String; 4],
    /// Source of these figures.
    pub source: String,
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
    /// Instructions of three operands with an indexed memory operand take a slot more.
    pub unlaminated: bool,
    /// Source of these figures.
    pub source: String,
}

/// Repeated string instructions.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Strings {
    /// REP MOVS.
    pub movs: Repeated,
    /// REP STOS.
    pub stos: Repeated,
    /// Source of these figures.
    pub source: String,
}

/// What a repeated string instruction takes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Repeated {
    /// Lengths in bytes and what they take in cycles, in ascending order: between two, the time is proportional.
    pub cycles: Vec<(u32, f64)>,
    /// Cycles a line of 64 bytes beyond the last length.
    pub line: f64,
    /// Cycles more if the destination is not aligned to 32 bytes.
    pub unaligned: f64,
    /// Cycles more a line if the destination is not aligned to 32 bytes.
    pub unaligned_line: f64,
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
        if self.window.reorder == 0 || self.window.scheduler == 0 {
            return Err("a window is 0".into());
        }
        Ok(())
    }
}
