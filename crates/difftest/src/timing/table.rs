//! A core's table of forms, measured on this machine's processor: what `uarch` reads from `profiles/cores/NAME.forms`.
//!
//! Every form of the table of a known core is measured twice. Copies that do not depend on each other give its reciprocal
//! throughput, and a chain through each register that it reads gives its latencies. Time alone shows neither how many
//! uops an instruction has nor which ports execute it: both are those of the known core, and a set of ports gets as many
//! members as the throughput shows. What could not be measured keeps the values of the known core.

use iced_x86::{Code, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register, UsedRegister};
use serde::{Deserialize, Serialize};
use silicon::Block;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use testkit::operands::{Class, Operands, Part, instruction};
use uarch::core::forms;

/// Copies of an instruction that do not depend on each other, with results in vector registers.
const COPIES: u32 = 12;
/// Copies behind each other that a register chains which the instruction implies, before the chain is broken.
const CHAINED: usize = 4;
/// General registers for results, without those that instructions imply, and the register for other operands.
const RESULTS: [u32; 9] = [3, 5, 7, 8, 9, 10, 11, 12, 13];
const OTHER: u32 = 14;
/// A form that takes so many times as long as its width and its ports explain occupies something else.
const SERIAL: f64 = 1.9;
/// The register that addresses are in.
const POINTER: Register = Register::RSI;

/// One line of a table, without the forms.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Line {
    /// Uops, as the table has them.
    pub uops: String,
    /// Latency, as the table has it.
    pub latency: String,
    /// Reciprocal throughput, with `!` if a unit that is no port is occupied.
    pub throughput: String,
    /// Ports, as the table has them.
    pub ports: String,
}

impl Line {
    /// Returns the cycles by which width and ports bound the form.
    fn bound(&self, issue: f64) -> f64 {
        let uops = self.uops.split('/').next().and_then(|uops| uops.parse::<f64>().ok()).unwrap_or(0.0);
        let kinds = self.kinds().filter(|(_, set)| *set != "0");
        let bounds = kinds.map(|(count, set)| count.and_then(|count| count.parse().ok()).unwrap_or(1.0) / members(set));
        bounds.fold(uops / issue, f64::max)
    }

    /// Returns the kinds of uops: how many, if the table says so, and the set of ports.
    fn kinds(&self) -> impl Iterator<Item = (Option<&str>, &str)> {
        self.ports.split('+').map(|kind| kind.split_once('*').map_or((None, kind), |(count, set)| (Some(count), set)))
    }

    /// Returns true if uops of the form are executed by this set of ports.
    pub fn has_ports(&self, set: &str) -> bool {
        self.kinds().any(|(_, ports)| ports == set)
    }
}

/// Measured cycles of a form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Reciprocal throughput.
    pub throughput: Option<f64>,
    /// Least and greatest latency from a register to the result.
    pub latency: Option<(f64, f64)>,
}

impl Figures {
    /// Returns true if these can be the figures of an instruction.
    pub fn are_possible(&self) -> bool {
        let cycles =
            self.throughput.into_iter().chain(self.latency.into_iter().flat_map(|(least, most)| [least, most]));
        cycles.into_iter().all(|cycles| (0.0..=forms::MOST_CYCLES).contains(&cycles))
    }
}

/// Reads the lines of a table: the values of each form.
pub fn read(text: &str) -> BTreeMap<String, Line> {
    let mut forms = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let Some((left, right)) = line.split_once(" | ") else { continue };
        let mut columns = left.split(' ').map(str::to_owned);
        let mut next = || columns.next().unwrap_or_default();
        let line = Line { uops: next(), latency: next(), throughput: next(), ports: next() };
        for (mnemonics, operands) in right.split("; ").filter_map(|group| group.split_once(':')) {
            for mnemonic in mnemonics.split(' ') {
                for operands in operands.split(',') {
                    forms.insert(format!("{mnemonic}:{operands}"), line.clone());
                }
            }
        }
    }
    forms
}

/// Writes a table: a line for each set of equal values, and in it the mnemonics that have equal operands together.
pub fn write(forms: &BTreeMap<String, Line>) -> String {
    let mut lines: BTreeMap<&Line, BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
    for (name, line) in forms {
        let Some((mnemonic, operands)) = name.split_once(':') else { continue };
        lines.entry(line).or_default().entry(mnemonic).or_default().push(operands);
    }
    let mut text = String::new();
    for (line, mnemonics) in lines {
        let mut groups: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (mnemonic, operands) in mnemonics {
            groups.entry(operands.join(",")).or_default().push(mnemonic);
        }
        let mut groups: Vec<_> = groups.into_iter().map(|(operands, names)| (names.join(" "), operands)).collect();
        groups.sort();
        let groups: Vec<_> = groups.into_iter().map(|(names, operands)| format!("{names}:{operands}")).collect();
        let Line { uops, latency, throughput, ports } = line;
        let _ = writeln!(text, "{uops} {latency} {throughput} {ports} | {}", groups.join("; "));
    }
    text
}

/// The operands of one copy of an instruction.
struct Planned {
    memory: bool,
    /// Numbers of the register operands, in their order: 0 is the chain's register, others are results or sources.
    registers: Vec<u32>,
    next: usize,
    displacement: u64,
}

impl Operands for Planned {
    fn in_memory(&mut self) -> bool {
        self.memory
    }

    fn accepts(&mut self, part: Part) -> bool {
        match part {
            Part::Register(class) | Part::Either(class) => {
                !matches!(class, Class::Segment | Class::Control | Class::Debug | Class::Test | Class::X87)
            }
            Part::Memory => self.memory,
            Part::Fixed(_) | Part::Immediate(_) | Part::One => true,
            _ => false,
        }
    }

    fn register(&mut self, class: Class) -> Register {
        let number = self.registers.get(self.next).or(self.registers.last()).copied().unwrap_or(0);
        self.next += 1;
        let general = RESULTS.get(number as usize).copied().unwrap_or(OTHER);
        let vector = if number == u32::MAX { 15 } else { number % 15 };
        match class {
            Class::Byte if general < 4 => Register::AL + general,
            Class::Byte => Register::SPL + (general - 4),
            Class::Word => Register::AX + general,
            Class::Double => Register::EAX + general,
            Class::Quad => Register::RAX + general,
            Class::Mmx => Register::MM0 + if number == u32::MAX { 7 } else { number % 7 },
            Class::Xmm => Register::XMM0 + vector,
            Class::Ymm => Register::YMM0 + vector,
            Class::Zmm => Register::ZMM0 + vector,
            Class::Opmask => Register::K1 + if number == u32::MAX { 6 } else { number % 6 },
            Class::X87 | Class::Segment | Class::Control | Class::Debug | Class::Test => Register::None,
        }
    }

    fn memory(&mut self, i: &mut Instruction, _: Part) {
        i.set_memory_base(POINTER);
        i.set_memory_displacement64(self.displacement);
        i.set_memory_displ_size(u32::from(self.displacement > 0));
    }

    fn offset(&mut self, _: &mut Instruction) {}

    fn address_bits(&mut self) -> u32 {
        64
    }

    fn immediate(&mut self, _: OpKind) -> u64 {
        3
    }

    fn branch(&mut self, _: bool) -> u64 {
        0
    }

    fn prefixes(&mut self, _: &mut Instruction) {}
}

/// One encoding of a form.
#[derive(Clone, Copy, Debug)]
struct Encoding {
    code: Code,
    memory: bool,
    prefix: bool,
}

impl Encoding {
    /// Returns the instruction with these registers in the order of its operands; the last one stands for all further ones.
    fn with(self, registers: &[u32], displacement: u64) -> Option<Instruction> {
        let mut planned = Planned { memory: self.memory, registers: registers.to_vec(), next: 0, displacement };
        let mut i = instruction(self.code, &mut planned)?;
        if i.op_kinds().any(|kind| kind == OpKind::Memory) != self.memory {
            return None;
        }
        i.set_has_lock_prefix(self.prefix);
        Some(i)
    }

    /// Returns true if the result may be in any register.
    fn has_any_result(self) -> bool {
        let of = |n| self.with(&[n, u32::MAX], 0).map(|i| i.op0_register());
        of(0) != of(1)
    }
}

/// Returns the instruction that makes a register independent of what was before: a zero idiom, which needs no port.
fn zeroed(register: Register) -> Option<Instruction> {
    let (code, register) = if register.is_gpr() {
        (Code::Xor_r32_rm32, register.full_register32())
    } else if register.is_vector_register() {
        (Code::Xorps_xmm_xmmm128, Register::XMM0 + register.number() as u32)
    } else {
        return None;
    };
    Instruction::with2(code, register, register).ok()
}

/// Measures a form. `cycles` returns what a block takes.
fn figures(encoding: Encoding, cycles: &mut impl FnMut(&[Instruction]) -> Option<f64>) -> Figures {
    Figures { throughput: throughput(encoding, cycles), latency: latencies(encoding, cycles) }
}

/// Returns the registers that an instruction reads, and those that it writes.
fn uses(i: &Instruction) -> (Vec<Register>, Vec<Register>) {
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(i);
    let of = |accesses: &[OpAccess]| -> Vec<Register> {
        let wanted = |used: &&UsedRegister| accesses.contains(&used.access());
        info.used_registers().iter().filter(wanted).map(|used| used.register().full_register()).collect()
    };
    use OpAccess::{CondRead, CondWrite, Read, ReadCondWrite, ReadWrite, Write};
    (of(&[Read, CondRead, ReadWrite, ReadCondWrite]), of(&[Write, CondWrite, ReadWrite, ReadCondWrite]))
}

fn throughput(encoding: Encoding, cycles: &mut impl FnMut(&[Instruction]) -> Option<f64>) -> Option<f64> {
    let first = encoding.with(&[0, u32::MAX], 0)?;
    let general = (0..first.op_count()).any(|n| first.op_register(n).is_gpr());
    let copies = if general { RESULTS.len() as u32 } else { COPIES };
    let copies: Vec<Instruction> =
        (0..copies).map(|n| encoding.with(&[n, u32::MAX], 64 * u64::from(n))).collect::<Option<_>>()?;
    let (reads, writes) = uses(&copies[0]);
    let (other_reads, _) = uses(&copies[1]);
    // A register that all copies read and write chains them, as flags do.
    let mut chained: Vec<Register> =
        reads.iter().filter(|r| writes.contains(r) && other_reads.contains(r)).copied().collect();
    chained.retain(|register| *register != POINTER);
    let flags = copies[0].rflags_read() & copies[0].rflags_modified() != 0;
    if flags && chained.is_empty() {
        chained.push(Register::RAX);
    }
    let idioms: Vec<Instruction> = chained.into_iter().map(zeroed).collect::<Option<_>>()?;
    let block: Vec<Instruction> =
        copies.chunks(CHAINED).flat_map(|chain| idioms.iter().chain(chain)).copied().collect();
    Some(cycles(&block)? / copies.len() as f64)
}

fn latencies(encoding: Encoding, cycles: &mut impl FnMut(&[Instruction]) -> Option<f64>) -> Option<(f64, f64)> {
    let plain = encoding.with(&[0, u32::MAX], 0)?;
    let operands = (0..plain.op_count()).filter(|n| plain.op_kind(*n) == OpKind::Register).count();
    let (_, writes) = uses(&plain);
    let mut found: Option<(f64, f64)> = None;
    for source in 0..operands.max(1) {
        // The operand in question is the result's register; others are not.
        let registers: Vec<u32> = (0..operands).map(|n| if n == 0 || n == source { 0 } else { u32::MAX }).collect();
        let i = encoding.with(&registers, 0)?;
        let result = i.op0_register().full_register();
        let (reads, _) = uses(&i);
        let is_chain = i.op0_kind() == OpKind::Register && writes.contains(&result) && reads.contains(&result);
        if !is_chain || (source > 0 && i.op_register(source as u32).full_register() != result) {
            continue;
        }
        let taken = cycles(&[i])?;
        found = Some(found.map_or((taken, taken), |(least, greatest)| (least.min(taken), greatest.max(taken))));
    }
    found
}

/// Instructions whose time depends on their operands, or that wait for something else than their operands.
fn is_special(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Div | Idiv | Rdtsc | Rdtscp | Rdpmc | Cpuid | Pause | Rdrand | Rdseed | Lea | Push | Pop | Enter | Leave
    )
}

/// Measures all forms of a table that this processor executes. `cycles` returns what a block takes, and is asked in an order
/// that depends on the table alone; `progress` is told how many forms of how many are done.
pub fn measure(
    base: &BTreeMap<String, Line>,
    mut cycles: impl FnMut(&[Instruction]) -> Option<f64>,
    mut progress: impl FnMut(usize, usize),
) -> BTreeMap<String, Figures> {
    let mut encodings: BTreeMap<String, Encoding> = BTreeMap::new();
    for code in Code::values().filter(|code| *code != Code::INVALID && !is_special(code.mnemonic())) {
        for (memory, prefix) in [(false, false), (true, false), (true, true)] {
            let Some(name) = forms::name(code, memory, prefix).filter(|name| base.contains_key(name)) else { continue };
            let encoding = Encoding { code, memory, prefix };
            let fits = |i| Block::new(&[i]).is_ok();
            // Of two encodings, the one whose result may be in any register has no chain of its own.
            let is_better =
                encodings.get(&name).is_none_or(|other| !other.has_any_result() && encoding.has_any_result());
            if is_better && encoding.with(&[0, u32::MAX], 0).is_some_and(fits) {
                encodings.insert(name, encoding);
            }
        }
    }
    let count = encodings.len();
    let mut found = BTreeMap::new();
    for (n, (name, encoding)) in encodings.into_iter().enumerate() {
        progress(n, count);
        let figures = figures(encoding, &mut cycles);
        if figures != Figures::default() {
            found.insert(name, figures);
        }
    }
    found
}

/// Sets of a core's ports: of each set of the known core, those that its forms may have.
#[derive(Clone, Debug)]
pub struct Ports {
    /// For each set of the known core, its set here, and other sets that forms may have instead.
    pub sets: BTreeMap<String, Vec<String>>,
    /// Slots of the pipeline's narrowest part.
    pub issue: f64,
}

/// Returns the number of ports of a set.
fn members(set: &str) -> f64 {
    set.len().saturating_sub(1) as f64
}

/// Returns the values of a form by its figures. `alone` are those of the form that has registers only: nothing but its ports
/// bounds its throughput, and its latency is that of the form after its load.
pub fn derive(base: &Line, figures: &Figures, alone: &Figures, ports: &Ports) -> Line {
    let mut line = base.clone();
    let throughput = figures.throughput;
    let known = !base.latency.starts_with(['?', '0']) || base.latency.starts_with("0-");
    if let Some(latency) = figures.latency.or(alone.latency.filter(|_| known)) {
        line.latency = latency_text(&base.latency, latency);
    }
    line.ports = base
        .kinds()
        .map(|(count, set)| {
            let counted = |set: &str| count.map_or(set.to_owned(), |count| format!("{count}*{set}"));
            let Some(sets) = ports.sets.get(set) else { return counted(set) };
            let single = count.is_none_or(|count| count == "2" && base.uops.starts_with('1'));
            let rate = alone
                .throughput
                .or(throughput)
                .filter(|_| single && !base.ports.contains('+'))
                .map(|cycles| 1.0 / cycles);
            // A set is as wide as the rate, of which a tenth may be lost to the order in which ports are chosen.
            let fits = |set: &&String| rate.is_none_or(|rate| members(set) <= rate * 1.25);
            let set = sets.iter().find(fits).or(sets.last()).map_or(set, |set| set);
            if rate.is_none() { counted(set) } else { set.to_owned() }
        })
        .collect::<Vec<_>>()
        .join("+");
    if let Some(cycles) = throughput {
        let serial = base.throughput.ends_with('!') || cycles > SERIAL * (line.bound(ports.issue)).max(1.0);
        line.throughput = format!("{}{}", short(cycles), if serial { "!" } else { "" });
    }
    // No more uops can be issued than the width lets through.
    if let Some(cycles) = throughput
        && let (Ok(uops), false) = (base.uops.parse::<f64>(), base.uops.contains('/'))
        && uops > 1.0
        && uops > cycles * ports.issue * 1.1
    {
        line.uops = format!("{}", (cycles * ports.issue).round().max(1.0));
    }
    line
}

/// Returns a latency in the table's form. A least latency of 0, which the known core has for equal registers, stays.
fn latency_text(base: &str, (least, greatest): (f64, f64)) -> String {
    let (between, address) = base.split_once('@').map_or((base, None), |(between, address)| (between, Some(address)));
    let idiom = between.starts_with("0-") || between == "0";
    let (least, greatest) = (if idiom { 0.0 } else { (least - 0.05).round() }, (greatest - 0.05).round());
    let mut text = if least < greatest { format!("{least}-{greatest}") } else { format!("{greatest}") };
    if let Some(address) = address {
        let _ = write!(text, "@{address}");
    }
    text
}

/// Returns a reciprocal throughput with two digits.
fn short(cycles: f64) -> String {
    let near = [0.13, 0.17, 0.2, 0.25, 0.33, 0.5, 0.67, 0.75, 1.0, 1.33, 1.5, 2.0, 3.0, 4.0];
    let known = near.into_iter().find(|value| (cycles / value - 1.0).abs() < 0.06);
    let rounded = known.unwrap_or(if cycles < 10.0 { (cycles * 10.0).round() / 10.0 } else { cycles.round() });
    let text = format!("{rounded}");
    text.strip_prefix('0').filter(|rest| rest.starts_with('.')).map_or(text.clone(), str::to_owned)
}

/// Returns the name of the form with a register in place of the memory operand.
pub fn register_form(name: &str) -> Option<String> {
    let (mnemonic, operands) = name.split_once(':')?;
    let mnemonic = mnemonic.strip_prefix("LOCK").unwrap_or(mnemonic);
    let vector = operands.contains(['x', 'y', 'z']);
    let plain: String = operands
        .chars()
        .map(|letter| match letter {
            'B' | 'W' | 'D' | 'Q' if vector => 'x',
            'B' | 'W' | 'D' | 'Q' | 'X' | 'Y' | 'Z' => letter.to_ascii_lowercase(),
            other => other,
        })
        .collect();
    (plain != operands).then(|| format!("{mnemonic}:{plain}"))
}

/// Returns the table of this processor: that of the known core with what was measured.
pub fn table(
    base: &BTreeMap<String, Line>,
    measured: &BTreeMap<String, Figures>,
    ports: &Ports,
) -> (BTreeMap<String, Line>, BTreeSet<String>) {
    let mut kept = BTreeSet::new();
    let table = base.iter().map(|(name, line)| {
        let alone = register_form(name).and_then(|name| measured.get(&name).copied()).unwrap_or_default();
        if !measured.contains_key(name) {
            kept.insert(name.clone());
        }
        let line = derive(line, &measured.get(name).copied().unwrap_or_default(), &alone, ports);
        (name.clone(), line)
    });
    (table.collect(), kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use uarch::CoreTable;

    const BASE: &str = "# a comment\n\
        1 1 .25 A0123 | ADD SUB:dd,qq; NOT:d\n\
        1 1 .33 A0123 | ADD:qQ\n\
        1 0-1 .25 A0123 | XOR:qq\n\
        1 4@8 .5 F01 | AESENC:xx\n\
        2 1 .5 F01+F4 | STMXCSR:D\n";

    fn ports() -> Ports {
        let sets = |text: &str| text.split(',').map(str::to_owned).collect();
        Ports { sets: [("A0123".into(), sets("A012345,A0123,A012,A01"))].into(), issue: 8.0 }
    }

    fn line(text: &str) -> Line {
        let mut columns = text.split(' ').map(str::to_owned);
        let mut next = || columns.next().unwrap();
        Line { uops: next(), latency: next(), throughput: next(), ports: next() }
    }

    fn figures(throughput: f64, latency: Option<(f64, f64)>) -> Figures {
        Figures { throughput: Some(throughput), latency }
    }

    #[test]
    fn a_table_that_is_read_is_written_again_as_it_was() {
        let forms = read(BASE);
        assert_eq!(forms.len(), 9);
        assert_eq!(read(&write(&forms)), forms);
        for (name, parameters, text) in CoreTable::names().map(|name| {
            let (parameters, text) = CoreTable::files(name).unwrap();
            (name, parameters, text)
        }) {
            let forms = read(text);
            assert_eq!(read(&write(&forms)), forms, "{name}");
            CoreTable::parse(name, parameters, &write(&forms)).unwrap();
        }
    }

    #[test]
    fn a_set_of_ports_is_as_wide_as_the_throughput_shows() {
        let base = line("1 1 .25 A0123");
        let of = |cycles| derive(&base, &figures(cycles, None), &Figures::default(), &ports());
        assert_eq!(of(0.168), line("1 1 .17 A012345"));
        assert_eq!(of(0.26), line("1 1 .25 A0123"));
        assert_eq!(of(0.331), line("1 1 .33 A012"));
        assert_eq!(of(0.52), line("1 1 .5 A01"));
        // The load bounds the form with an operand in memory, and the form with registers shows the ports.
        let load = derive(&line("1 1 .33 A0123"), &figures(0.25, None), &figures(0.17, Some((1.0, 1.0))), &ports());
        assert_eq!(load, line("1 1 .25 A012345"));
    }

    #[test]
    fn latencies_are_whole_cycles_and_idioms_stay() {
        let derived = |base: &str, latency| derive(&line(base), &figures(0.5, latency), &Figures::default(), &ports());
        assert_eq!(derived("1 4@8 .5 F01", Some((3.02, 3.98))).latency, "3-4@8");
        assert_eq!(derived("1 0-1 .5 F01", Some((2.03, 2.03))).latency, "0-2");
        assert_eq!(derived("1 ? .5 F01", None).latency, "?");
    }

    #[test]
    fn what_takes_longer_than_width_and_ports_explain_occupies_something_else() {
        let base = line("2 1 .5 F01+F4");
        assert_eq!(derive(&base, &figures(14.0, None), &Figures::default(), &ports()).throughput, "14!");
        assert_eq!(derive(&base, &figures(1.0, None), &Figures::default(), &ports()).throughput, "1");
    }

    #[test]
    fn no_more_uops_are_issued_than_the_width_lets_through() {
        let derived = derive(&line("4 1 1 A0123"), &figures(0.25, None), &Figures::default(), &ports());
        assert_eq!(derived.uops, "2");
    }

    #[test]
    fn copies_do_not_depend_on_each_other_and_chains_do() {
        let mut asked = Vec::new();
        let base = read("1 1 .25 A0123 | ADD:qq\n1 1 .5 A03 | CDQ:-\n");
        measure(
            &base,
            |block| {
                asked.push(block.to_vec());
                Some(1.0)
            },
            |_, _| {},
        );
        let of = |mnemonic| asked.iter().filter(move |block| block.iter().any(|i| i.mnemonic() == mnemonic));
        let copies = of(Mnemonic::Add).find(|block| block.len() > 1).unwrap();
        let results: BTreeSet<_> = copies.iter().map(Instruction::op0_register).collect();
        assert_eq!(results.len(), copies.len());
        assert!(copies.iter().all(|i| !results.contains(&i.op1_register())));
        let chain = of(Mnemonic::Add).find(|block| block.len() == 1).unwrap();
        assert!(uses(&chain[0]).0.contains(&chain[0].op0_register()));
    }

    #[test]
    fn forms_have_a_form_with_registers() {
        assert_eq!(register_form("ADD:qQ").as_deref(), Some("ADD:qq"));
        assert_eq!(register_form("LOCKADD:Dd").as_deref(), Some("ADD:dd"));
        assert_eq!(register_form("MULSD:xQ").as_deref(), Some("MULSD:xx"));
        assert_eq!(register_form("ADD:qq"), None);
    }
}
