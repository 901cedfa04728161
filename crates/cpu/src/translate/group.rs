//! Groups of adjacent memory operands in a trace, which share one probe.
//!
//! The origin of register values is tracked through a trace: a copy, or the sum of a register and a constant, has a
//! known distance from its source. Operands with known distances form a group. The first one that is executed probes
//! for all bytes of its group. If they are in one page, their host address is stored, and the others need no probe.
//! Otherwise a copy of the trace takes over that probes for each operand. The copy is also used after a handler, which
//! may have changed the tables.

use super::layout::MOST_GROUPS;
use super::plan::{Plan, writes};
use super::trace::Part;
use crate::front::PAGES;
use crate::op::{NO_REG, Op};
use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpKind};
use rustc_hash::FxHashMap;
use x86::page::PAGE;
use x86::{reg, seg};

/// Maximum size of a group in bytes: larger groups cross pages more often.
const WIDEST: i64 = 256;
/// The same for lines.
const WIDEST_IN_LINES: i64 = 32;

/// Kind of an instruction's operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Which {
    /// The explicit memory operand.
    Explicit,
    /// The stack slot of a push or pop, at a register plus a constant.
    Stack { base: u8, plus: i32 },
}

/// A group of operands.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Index of the group, below [`MOST_GROUPS`].
    pub number: usize,
    /// Size from the first to the last byte.
    pub len: i32,
    /// True if a part of it is written.
    pub write: bool,
}

/// Membership of an operand in a group.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// The group.
    pub group: Group,
    /// Offset from the lowest byte of the group.
    pub offset: i32,
}

/// Variable part of an address.
#[derive(Clone, Copy, PartialEq, Eq)]
struct AddressBase {
    segment: Option<u8>,
    base: Option<u32>,
    index: Option<(u32, u8)>,
}

/// A value: an unknown, plus a constant.
#[derive(Clone, Copy)]
struct Value {
    unknown: u32,
    plus: i64,
}

/// A memory access.
struct Operand {
    origin: AddressBase,
    /// Constant part of its address.
    address: i64,
    size: i64,
    write: bool,
    /// True for an access to the stack.
    stack: bool,
}

/// A potential group.
struct Candidate {
    origin: AddressBase,
    first: i64,
    end: i64,
    write: bool,
    members: u32,
    /// Index of the group, if it becomes one.
    number: Option<usize>,
}

/// Groups of a trace.
pub struct Groups {
    candidates: Vec<Candidate>,
    /// Operands by part, operation and kind: index of the candidate, and the constant part of the address.
    operands: FxHashMap<(usize, usize, Which), (usize, i64)>,
    /// Values of the registers.
    registers: [Value; 16],
    /// The most recent unknown.
    unknown: u32,
    /// Size of an address and of a stack slot in bytes.
    word: u8,
    /// Maximum size of a group in bytes.
    widest: i64,
}

impl Groups {
    /// Finds the groups of a trace, in 32-bit code if `narrow`. The fast path knows units of 2^`shift` bytes.
    pub fn of(parts: &[Part], narrow: bool, shift: u8, factory: &mut InstructionInfoFactory) -> Self {
        let registers = std::array::from_fn(|number| Value { unknown: number as u32, plus: 0 });
        let unknown = registers.len() as u32;
        let word = if narrow { 4 } else { 8 };
        let widest = if shift < PAGES { WIDEST_IN_LINES } else { WIDEST };
        let mut groups =
            Self { candidates: Vec::new(), operands: FxHashMap::default(), registers, unknown, word, widest };
        for (number, part) in parts.iter().enumerate() {
            for (at, ((plan, op), i)) in part.plans.iter().zip(&part.ops).zip(&part.instructions).enumerate() {
                groups.follow((number, at), *plan, op, i, factory);
            }
        }
        let useful = groups.candidates.iter_mut().filter(|group| group.members > 1);
        useful.take(MOST_GROUPS).enumerate().for_each(|(number, group)| group.number = Some(number));
        groups
    }

    /// Returns true if there are groups.
    pub fn any(&self) -> bool {
        self.candidates.iter().any(|group| group.number.is_some())
    }

    /// Returns the group membership of an operand.
    pub fn member(&self, part: usize, at: usize, which: Which) -> Option<Member> {
        let &(candidate, address) = self.operands.get(&(part, at, which))?;
        let Candidate { first, end, write, number, .. } = self.candidates[candidate];
        let group = Group { number: number?, len: (end - first) as i32, write };
        Some(Member { group, offset: (address - first) as i32 })
    }

    /// Records the operands of an instruction, and updates the register values.
    fn follow(
        &mut self,
        place: (usize, usize),
        plan: Plan,
        op: &Op,
        i: &Instruction,
        factory: &mut InstructionInfoFactory,
    ) {
        match plan {
            Plan::Native | Plan::Fixed | Plan::Vector => self.general(place, op, i, factory),
            Plan::Lea => {
                let to = i.op0_register();
                let plain = op.index == NO_REG
                    && op.base != NO_REG
                    && op.asize == self.word
                    && to.size() == usize::from(self.word);
                let sum = plain.then(|| self.sum(op.base, self.constant(op.disp)));
                self.set(to.number() as u8, sum);
            }
            Plan::Push => {
                if i.op0_kind() == OpKind::Memory {
                    self.explicit(place, op, i, false);
                }
                self.push(place);
            }
            Plan::Pop => {
                self.pop(place, 0);
                self.set(op.r0, None);
            }
            Plan::Leave => {
                self.stack(place, reg::RBP, 0, false);
                self.registers[usize::from(reg::RSP)] = self.sum(reg::RBP, i64::from(self.word));
                self.set(reg::RBP, None);
            }
            Plan::Call => self.push(place),
            Plan::Return => self.pop(place, op.imm as i64),
            Plan::Indirect { call } => {
                if i.op0_kind() == OpKind::Memory {
                    self.explicit(place, op, i, false);
                }
                if call {
                    self.push(place);
                }
            }
            Plan::Nothing | Plan::Branch | Plan::Jump => {}
            // These instructions may change any register, and their operands are probed for elsewhere.
            _ => (0..16).for_each(|register| self.set(register, None)),
        }
    }

    /// Handles an instruction that the host executes with replaced operands.
    fn general(&mut self, place: (usize, usize), op: &Op, i: &Instruction, factory: &mut InstructionInfoFactory) {
        let info = factory.info(i);
        if let Some(n) = (0..i.op_count()).find(|&n| i.op_kind(n) == OpKind::Memory) {
            self.explicit(place, op, i, writes(info.op_access(n)));
        }
        if let Some((to, value)) = self.known(i) {
            self.set(to, Some(value));
            return;
        }
        for used in info.used_registers().iter().filter(|used| writes(used.access()) && used.register().is_gpr()) {
            self.set(used.register().full_register().number() as u8, None);
        }
    }

    /// Returns the register that an instruction sets to the sum of a register and a constant, and its value.
    fn known(&self, i: &Instruction) -> Option<(u8, Value)> {
        let wide = |n: u32| {
            let register = i.op_register(n);
            let whole = register.is_gpr() && register.size() == usize::from(self.word);
            (i.op_kind(n) == OpKind::Register && whole).then(|| register.number() as u8)
        };
        let to = wide(0)?;
        let immediate = !matches!(i.op1_kind(), OpKind::Register | OpKind::Memory);
        let constant = || immediate.then(|| self.constant(i.immediate(1)));
        let value = match i.mnemonic() {
            Mnemonic::Mov => self.sum(wide(1)?, 0),
            Mnemonic::Add => self.sum(to, constant()?),
            Mnemonic::Sub => self.sum(to, constant()?.checked_neg()?),
            Mnemonic::Inc => self.sum(to, 1),
            Mnemonic::Dec => self.sum(to, -1),
            _ => return None,
        };
        Some((to, value))
    }

    /// Converts a constant to the size of an address.
    fn constant(&self, value: u64) -> i64 {
        if self.word == 4 { i64::from(value as i32) } else { value as i64 }
    }

    /// Returns a register's value plus a constant.
    fn sum(&self, register: u8, plus: i64) -> Value {
        let value = self.registers[usize::from(register)];
        Value { plus: value.plus.wrapping_add(plus), ..value }
    }

    fn set(&mut self, register: u8, value: Option<Value>) {
        self.unknown += 1;
        self.registers[usize::from(register)] = value.unwrap_or(Value { unknown: self.unknown, plus: 0 });
    }

    fn push(&mut self, place: (usize, usize)) {
        self.stack(place, reg::RSP, -i32::from(self.word), true);
        self.registers[usize::from(reg::RSP)] = self.sum(reg::RSP, -i64::from(self.word));
    }

    /// Pops a stack slot, and releases `more` bytes.
    fn pop(&mut self, place: (usize, usize), more: i64) {
        self.stack(place, reg::RSP, 0, false);
        self.registers[usize::from(reg::RSP)] = self.sum(reg::RSP, i64::from(self.word) + more);
    }

    /// Records a stack slot.
    fn stack(&mut self, place: (usize, usize), base: u8, plus: i32, write: bool) {
        let value = self.sum(base, i64::from(plus));
        let origin = AddressBase { segment: None, base: Some(value.unknown), index: None };
        let size = i64::from(self.word);
        let access = Operand { origin, address: value.plus, size, write, stack: true };
        self.join(place, Which::Stack { base, plus }, access);
    }

    /// Records the explicit memory operand.
    fn explicit(&mut self, place: (usize, usize), op: &Op, i: &Instruction, write: bool) {
        if op.asize != self.word {
            return;
        }
        let mut address = self.constant(op.disp);
        let mut origin = AddressBase {
            segment: (op.seg == seg::FS || op.seg == seg::GS).then_some(op.seg),
            base: None,
            index: None,
        };
        if op.base != NO_REG {
            let base = self.sum(op.base, 0);
            origin.base = Some(base.unknown);
            address = address.wrapping_add(base.plus);
        }
        if op.index != NO_REG {
            let (index, scale) = (self.sum(op.index, 0), op.scale & 3);
            origin.index = Some((index.unknown, scale));
            address = address.wrapping_add(index.plus.wrapping_shl(u32::from(scale)));
        }
        let size = i.memory_size().size() as i64;
        let stack = op.base == reg::RSP && op.index == NO_REG && origin.segment.is_none();
        self.join(place, Which::Explicit, Operand { origin, address, size, write, stack });
    }

    fn join(&mut self, place: (usize, usize), which: Which, access: Operand) {
        let Operand { origin, address, size, write, stack } = access;
        // Operands that wrap around, or do not access memory, are excluded.
        let Some(end) = address.checked_add(size).filter(|_| size > 0) else { return };
        let fixed = origin.base.is_none() && origin.index.is_none() && origin.segment.is_none();
        let fits = |group: &Candidate| {
            let (first, last) = (group.first.min(address), group.end.max(end) - 1);
            let near = last.checked_sub(first).is_some_and(|distance| distance < self.widest);
            let pages = fixed && first & !(PAGE as i64 - 1) != last & !(PAGE as i64 - 1);
            group.origin == origin && (group.write || !write) && near && !pages
        };
        let number = match self.candidates.iter().position(fits) {
            Some(number) => number,
            None => {
                // A stack slot that is read now is probably written later.
                let write = write || stack;
                self.candidates.push(Candidate { origin, first: address, end, write, members: 0, number: None });
                self.candidates.len() - 1
            }
        };
        let group = &mut self.candidates[number];
        group.members += 1;
        (group.first, group.end) = (group.first.min(address), group.end.max(end));
        self.operands.insert((place.0, place.1, which), (number, address));
    }
}
