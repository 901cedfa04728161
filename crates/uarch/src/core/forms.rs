//! The table of a core's forms: what an instruction takes, by its encoding and the kind of its operands.
//!
//! A file of forms (`profiles/cores/NAME.forms`) has one line for each set of equal values:
//!
//! ```text
//! 1/2 1@6 .5 p0156+p23 | ADD AND CMP:bB,dD,qQ,wW; SBB:dD
//! │   │   │  │            └ mnemonics, and the operands with which they take that
//! │   │   │  └ uops by the ports that can execute each: `2*p06+p23` is two on port 0 or 6 and one on port 2 or 3; `0` is none
//! │   │   └ cycles an instruction if nothing else limits it; with `!` it occupies a unit that is not a port, such as the divider
//! │   └ latency from registers to the result, `least-greatest` over pairs of operands, `?` if unknown; after `@` that from the address
//! └ uops in the fused domain, and in the unfused domain if they are more (AMD: macro-operations)
//! ```
//!
//! Operands are one letter each: `b w d q` general registers of 8 to 64 bits, `c` the register CL, `x y z` vector registers, `n` an MMX
//! register, `k` a mask, `s` a segment register, `r` a control or debug register, `i` an immediate, `I` one of 64 bits, `1` the constant 1, `j` a branch target, `B W D Q X Y
//! Z` memory of 8 to 512 bits, `T G F` memory of other sizes, `u v t` a vector of addresses. `-` is no operand, `$` those of a string instruction.
//! LEA's address follows after `_`: `b` base, `i` index, `s` scaled index, `+` displacement, `r` relative to RIP. A mnemonic with a LOCK or REP
//! prefix begins with `LOCK` or `REP`. Masking and broadcasts of AVX-512 have the values of the plain form.

use super::CoreError;
use iced_x86::{Code, Instruction, Mnemonic, OpCodeOperandKind, Register};
use std::collections::HashMap;

/// The uops of one kind in a form: how many, and the ports that execute them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uops {
    /// How many.
    pub count: u16,
    /// Ports, one bit each, in the order of the core's list.
    pub ports: u32,
}

/// What the instructions of one form take.
#[derive(Clone, Debug, PartialEq)]
pub struct Values {
    /// Uops in the fused domain: slots of the pipeline's narrowest part.
    pub fused: u16,
    /// Uops in the unfused domain.
    pub unfused: u16,
    /// Least and greatest latency from a register to a result, in cycles.
    pub latency: Option<(u16, u16)>,
    /// Latency from the address to the result, load included, in cycles.
    pub address: Option<u16>,
    /// Reciprocal throughput, in ticks (thousandths of a cycle).
    pub throughput: u32,
    /// The instruction occupies a unit that is not a port for its reciprocal throughput.
    pub serial: bool,
    /// Uops by port.
    pub uops: Vec<Uops>,
}

/// The most uops of one kind, and the most kinds of uops of an instruction.
const MOST_UOPS: u16 = 2_000;
const MOST_KINDS: usize = 16;

/// The most cycles of an instruction: RDRAND has tens of thousands.
pub const MOST_CYCLES: f64 = 100_000.0;
/// The most cycles of latency.
const MOST_LATENCY: u16 = 10_000;

/// Number of a set of values in a core's table.
pub type FormId = u16;

/// No values: the form is not in the table.
pub const NO_FORM: FormId = FormId::MAX;

/// A parsed file of forms.
#[derive(Debug)]
pub struct Forms {
    values: Vec<Values>,
    /// For each code of the decoder: register form, memory form, and both with a LOCK or REP prefix.
    codes: Vec<[FormId; 4]>,
    /// LEA by size and shape of its address.
    lea: HashMap<String, FormId>,
}

impl Forms {
    /// Parses a file of forms. `port` returns the bits of the ports that one name of the file stands for.
    pub(super) fn parse(file: &str, text: &str, port: impl Fn(&str) -> Option<u32>) -> Result<Self, CoreError> {
        let mut values = Vec::new();
        let mut named: HashMap<String, FormId> = HashMap::new();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            let wrong = |what| CoreError::Form { file: file.into(), line: number + 1, what };
            let (left, right) = line.split_once(" | ").ok_or(wrong("there is no ` | `"))?;
            let id = FormId::try_from(values.len()).map_err(|_| wrong("there are too many lines"))?;
            values.push(parse_values(left, &port).map_err(wrong)?);
            for group in right.split("; ") {
                let (mnemonics, operands) = group.split_once(':').ok_or(wrong("a group has no `:`"))?;
                for mnemonic in mnemonics.split(' ') {
                    for operands in operands.split(',') {
                        if named.insert(format!("{mnemonic}:{operands}"), id).is_some() {
                            return Err(wrong("a form is there twice"));
                        }
                    }
                }
            }
        }
        let mut codes = vec![[NO_FORM; 4]; Code::values().len()];
        let mut key = String::new();
        for code in Code::values().filter(|code| *code != Code::INVALID) {
            for (variant, form) in codes[code as usize].iter_mut().enumerate() {
                if let Some(id) = find(&named, code, variant & 1 != 0, variant & 2 != 0, &mut key) {
                    *form = id;
                }
            }
        }
        let lea = named.iter().filter_map(|(name, id)| Some((name.strip_prefix("LEA:")?.to_owned(), *id))).collect();
        Ok(Self { values, codes, lea })
    }

    /// Returns the values of a form.
    pub fn values(&self, id: FormId) -> Option<&Values> {
        self.values.get(usize::from(id))
    }

    /// Returns all values.
    pub fn all(&self) -> &[Values] {
        &self.values
    }

    /// Returns the form of an instruction, or [`NO_FORM`].
    pub fn of(&self, i: &Instruction) -> FormId {
        if i.mnemonic() == Mnemonic::Lea {
            return self.lea(i);
        }
        let memory = has_memory(i);
        let prefix = i.has_lock_prefix() || (i.is_string_instruction() && (i.has_rep_prefix() || i.has_repne_prefix()));
        self.code(i.code(), memory, prefix)
    }

    /// Returns the form of an encoding: of its register or memory variant, with or without a LOCK or REP prefix.
    pub fn code(&self, code: Code, memory: bool, prefix: bool) -> FormId {
        self.codes[code as usize][usize::from(memory) | usize::from(prefix) << 1]
    }

    /// Returns the form of LEA of a register and a displacement.
    pub(crate) fn addition(&self) -> FormId {
        self.lea.get("q_b+").copied().unwrap_or(NO_FORM)
    }

    /// Returns the form of an addition that executes: that of an immediate to a register.
    pub(crate) fn executed_addition(&self) -> FormId {
        self.code(Code::Add_rm64_imm32, false, false)
    }

    fn lea(&self, i: &Instruction) -> FormId {
        let size = match i.op0_register().size() {
            2 => "w",
            4 => "d",
            _ => "q",
        };
        let mut shape = format!("{size}_");
        if i.is_ip_rel_memory_operand() {
            shape.push('r');
        } else {
            if i.memory_base() != Register::None {
                shape.push('b');
            }
            match (i.memory_index(), i.memory_index_scale()) {
                (Register::None, _) => {}
                (_, 1) => shape.push('i'),
                _ => shape.push('s'),
            }
            // A base of RBP or R13 has a displacement, even if it is 0.
            if i.memory_displ_size() != 0 {
                shape.push('+');
            }
        }
        self.lea.get(&shape).copied().unwrap_or(NO_FORM)
    }
}

/// Returns true if an operand is in memory.
pub(crate) fn has_memory(i: &Instruction) -> bool {
    i.memory_base() != Register::None
        || i.memory_index() != Register::None
        || (0..i.op_count()).any(|n| i.op_kind(n) == iced_x86::OpKind::Memory)
}

fn parse_values(text: &str, port: impl Fn(&str) -> Option<u32>) -> Result<Values, &'static str> {
    let mut parts = text.split(' ');
    let mut next = || parts.next().ok_or("a column is missing");
    let (uops, latency, throughput, ports) = (next()?, next()?, next()?, next()?);
    let (fused, unfused) = uops.split_once('/').unwrap_or((uops, uops));
    let count = |text: &str| {
        let count = text.parse::<u16>().map_err(|_| "a count of uops is no number")?;
        if count <= MOST_UOPS { Ok(count) } else { Err("there are too many uops") }
    };
    let (between, address) =
        latency.split_once('@').map_or((latency, None), |(between, address)| (between, Some(address)));
    let latency = match between {
        "?" => None,
        _ => {
            let (least, greatest) = between.split_once('-').unwrap_or((between, between));
            Some((cycles(least)?, cycles(greatest)?))
        }
    };
    let (throughput, serial) = throughput.strip_suffix('!').map_or((throughput, false), |number| (number, true));
    let mut kinds = Vec::new();
    for kind in ports.split('+').filter(|kind| *kind != "0") {
        let (number, names) = kind.split_once('*').unwrap_or(("1", kind));
        kinds.push(Uops { count: count(number)?, ports: port(names).ok_or("a port is not in the core's list")? });
    }
    if kinds.len() > MOST_KINDS {
        return Err("there are too many kinds of uops");
    }
    Ok(Values {
        fused: count(fused)?,
        unfused: count(unfused)?,
        latency,
        address: address.map(cycles).transpose()?,
        throughput: ticks(throughput)?,
        serial,
        uops: kinds,
    })
}

fn ticks(text: &str) -> Result<u32, &'static str> {
    let number: f64 = text.parse().map_err(|_| "a number of cycles is no number")?;
    if !(0.0..=MOST_CYCLES).contains(&number) {
        return Err("a number of cycles is not possible");
    }
    Ok((number * 1000.0).round() as u32)
}

fn cycles(text: &str) -> Result<u16, &'static str> {
    let cycles = u16::try_from(ticks(text)?.div_ceil(1000)).ok().filter(|cycles| *cycles <= MOST_LATENCY);
    cycles.ok_or("a latency is not possible")
}

fn find(named: &HashMap<String, FormId>, code: Code, memory: bool, prefix: bool, key: &mut String) -> Option<FormId> {
    let operands = write_key(code, memory, prefix, key)?;
    if let Some(id) = named.get(key.as_str()) {
        return Some(*id);
    }
    // A shift by the constant 1 takes what one by an immediate takes, and a result of 64 bits, of which the upper half is zero, what one
    // of 32 bits takes, if the table has no more.
    if key.ends_with('1') {
        key.pop();
        key.push('i');
    } else if key[operands..].starts_with('q') {
        key.replace_range(operands..=operands, "d");
    }
    named.get(key.as_str()).copied()
}

/// Returns the name of an encoding in a table of forms, `ADD:dD` for example: of its register or memory variant, with or without a LOCK or REP
/// prefix. LEA and forms with an operand that has no letter have none.
pub fn name(code: Code, memory: bool, prefix: bool) -> Option<String> {
    let mut key = String::new();
    write_key(code, memory, prefix, &mut key).filter(|_| code.mnemonic() != Mnemonic::Lea).map(|_| key)
}

/// Writes a form's name, and returns where its operands begin.
fn write_key(code: Code, memory: bool, prefix: bool, key: &mut String) -> Option<usize> {
    use std::fmt::Write;
    let info = code.op_code();
    key.clear();
    let mnemonic = code.mnemonic();
    let string = is_string(code);
    if prefix {
        if !string && !info.can_use_lock_prefix() {
            return None;
        }
        key.push_str(if string { "REP" } else { "LOCK" });
    }
    let at = key.len();
    let _ = write!(key, "{mnemonic:?}");
    key[at..].make_ascii_uppercase();
    key.push(':');
    let operands = key.len();
    if string {
        key.push('$');
    } else {
        for n in 0..info.op_count() {
            key.push(letter(info.op_kind(n), memory, info.memory_size().size())?);
        }
        if operands == key.len() {
            key.push('-');
        }
    }
    Some(operands)
}

/// Returns true for the string instructions, whose operands are implied.
fn is_string(code: Code) -> bool {
    let mut i = Instruction::new();
    i.set_code(code);
    i.is_string_instruction()
}

/// Returns the letter of an operand, if forms with such an operand are described.
fn letter(kind: OpCodeOperandKind, memory: bool, bytes: usize) -> Option<char> {
    use OpCodeOperandKind as K;
    let in_memory = || match bytes {
        1 => 'B',
        2 => 'W',
        4 => 'D',
        8 => 'Q',
        10 => 'T',
        16 => 'X',
        24 => 'G',
        32 => 'Y',
        64 => 'Z',
        _ => 'F',
    };
    let either = |register: char| if memory { in_memory() } else { register };
    Some(match kind {
        K::r8_or_mem => either('b'),
        K::r16_or_mem => either('w'),
        K::r32_or_mem => either('d'),
        K::r64_or_mem => either('q'),
        K::mm_or_mem => either('n'),
        K::xmm_or_mem => either('x'),
        K::ymm_or_mem => either('y'),
        K::zmm_or_mem => either('z'),
        K::k_or_mem => either('k'),
        K::mem | K::mem_offs if memory => in_memory(),
        K::mem_vsib32x | K::mem_vsib64x if memory => 'u',
        K::mem_vsib32y | K::mem_vsib64y if memory => 'v',
        K::mem_vsib32z | K::mem_vsib64z if memory => 't',
        K::r8_reg | K::r8_opcode | K::al => 'b',
        K::r16_reg | K::r16_reg_mem | K::r16_rm | K::r16_opcode | K::ax | K::dx => 'w',
        K::r32_reg | K::r32_reg_mem | K::r32_rm | K::r32_opcode | K::r32_vvvv | K::eax => 'd',
        K::r64_reg | K::r64_reg_mem | K::r64_rm | K::r64_opcode | K::r64_vvvv | K::rax => 'q',
        K::seg_reg | K::es | K::cs | K::ss | K::ds | K::fs | K::gs => 's',
        K::k_reg | K::kp1_reg | K::k_rm | K::k_vvvv => 'k',
        K::mm_reg | K::mm_rm => 'n',
        K::xmm_reg | K::xmm_rm | K::xmm_vvvv | K::xmmp3_vvvv | K::xmm_is4 | K::xmm_is5 => 'x',
        K::ymm_reg | K::ymm_rm | K::ymm_vvvv | K::ymm_is4 | K::ymm_is5 => 'y',
        K::zmm_reg | K::zmm_rm | K::zmm_vvvv | K::zmmp3_vvvv => 'z',
        K::cr_reg | K::dr_reg => 'r',
        K::cl => 'c',
        K::imm8 | K::imm8sex16 | K::imm8sex32 | K::imm8sex64 | K::imm16 | K::imm32 | K::imm32sex64 | K::imm4_m2z => 'i',
        K::imm64 => 'I',
        K::imm8_const_1 => '1',
        K::br16_1 | K::br32_1 | K::br64_1 | K::br16_2 | K::br32_4 | K::br64_4 => 'j',
        _ => return None,
    })
}
