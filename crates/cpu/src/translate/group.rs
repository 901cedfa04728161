//! Memory operands of a trace that lie close together: one probe for all of them.
//!
//! Where a register comes from is followed through a trace: a copy, or the sum of a register and a constant, has a known distance from
//! what it was made of. Operands with known distances form a group. The first one that is executed probes for all bytes of its group; if
//! one page has them, their host address is kept, and the others need no probe. Otherwise a copy of the trace takes over that probes for
//! each operand on its own. So it does after a handler, which may have changed what the tables know.

use super::layout::MOST_GROUPS;
use super::plan::{Plan, writes};
use super::trace::Part;
use crate::op::{NO_REG, Op};
use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpKind};
use rustc_hash::FxHashMap;
use x86::page::PAGE;
use x86::{reg, seg};

/// Bytes from the first to the last of a group at most: the more there are, the more often they are in two pages.
const WIDEST: i64 = 256;

/// Which operand of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Which {
    /// That in memory.
    Explicit,
    /// What it pushes or pops, at a register plus a constant.
    Stack { base: u8, plus: i32 },
}

/// A group.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Its number, below [`MOST_GROUPS`].
    pub number: usize,
    /// Bytes from its first to its last.
    pub len: i32,
    /// Whether some of it is written.
    pub write: bool,
}

/// A member of a group.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// Its group.
    pub group: Group,
    /// How far from the lowest byte of its group it is.
    pub offset: i32,
}

/// What an address is computed from, apart from a constant.
#[derive(Clone, Copy, PartialEq, Eq)]
struct AddressBase {
    segment: Option<u8>,
    base: Option<u32>,
    index: Option<(u32, u8)>,
}

/// A value: something unknown, plus a constant.
#[derive(Clone, Copy)]
struct Value {
    unknown: u32,
    plus: i64,
}

/// An access to memory.
struct Operand {
    origin: AddressBase,
    /// The constant of its address.
    address: i64,
    size: i64,
    write: bool,
    /// It is in the stack.
    stack: bool,
}

/// What may become a group.
struct Candidate {
    origin: AddressBase,
    first: i64,
    end: i64,
    write: bool,
    members: u32,
    /// Its number, if it is a group.
    number: Option<usize>,
}

/// The groups of a trace.
pub struct Groups {
    candidates: Vec<Candidate>,
    /// By part, operation and operand: the number of a candidate, and the constant of the address.
    operands: FxHashMap<(usize, usize, Which), (usize, i64)>,
    /// What registers hold.
    registers: [Value; 16],
    /// The newest of what is unknown.
    unknown: u32,
    /// Bytes of an address, and of a slot of the stack.
    word: u8,
}

impl Groups {
    /// Those of a trace, in 32-bit code if `narrow`.
    pub fn of(parts: &[Part], narrow: bool, factory: &mut InstructionInfoFactory) -> Self {
        let registers = std::array::from_fn(|number| Value { unknown: number as u32, plus: 0 });
        let unknown = registers.len() as u32;
        let word = if narrow { 4 } else { 8 };
        let mut groups = Self { candidates: Vec::new(), operands: FxHashMap::default(), registers, unknown, word };
        for (number, part) in parts.iter().enumerate() {
            for (at, ((plan, op), i)) in part.plans.iter().zip(&part.ops).zip(&part.instructions).enumerate() {
                groups.follow((number, at), *plan, op, i, factory);
            }
        }
        let useful = groups.candidates.iter_mut().filter(|group| group.members > 1);
        useful.take(MOST_GROUPS).enumerate().for_each(|(number, group)| group.number = Some(number));
        groups
    }

    /// Whether there are any.
    pub fn any(&self) -> bool {
        self.candidates.iter().any(|group| group.number.is_some())
    }

    /// The group that an operand belongs to.
    pub fn member(&self, part: usize, at: usize, which: Which) -> Option<Member> {
        let &(candidate, address) = self.operands.get(&(part, at, which))?;
        let Candidate { first, end, write, number, .. } = self.candidates[candidate];
        let group = Group { number: number?, len: (end - first) as i32, write };
        Some(Member { group, offset: (address - first) as i32 })
    }

    /// Notes the operands of an instruction, and what becomes of registers.
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
            // These may do anything, and their operands are probed for elsewhere.
            _ => (0..16).for_each(|register| self.set(register, None)),
        }
    }

    /// An instruction that the host executes with other operands.
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

    /// The register that an instruction makes the sum of one and a constant.
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

    /// A constant of the size of an address.
    fn constant(&self, value: u64) -> i64 {
        if self.word == 4 { i64::from(value as i32) } else { value as i64 }
    }

    /// A register's value plus a constant.
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

    /// Takes a slot from the stack, and so many bytes more.
    fn pop(&mut self, place: (usize, usize), more: i64) {
        self.stack(place, reg::RSP, 0, false);
        self.registers[usize::from(reg::RSP)] = self.sum(reg::RSP, i64::from(self.word) + more);
    }

    /// A slot of the stack.
    fn stack(&mut self, place: (usize, usize), base: u8, plus: i32, write: bool) {
        let value = self.sum(base, i64::from(plus));
        let origin = AddressBase { segment: None, base: Some(value.unknown), index: None };
        let size = i64::from(self.word);
        let access = Operand { origin, address: value.plus, size, write, stack: true };
        self.join(place, Which::Stack { base, plus }, access);
    }

    /// The operand in memory.
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
        // Nothing that wraps around, nor what does not access memory.
        let Some(end) = address.checked_add(size).filter(|_| size > 0) else { return };
        let fixed = origin.base.is_none() && origin.index.is_none() && origin.segment.is_none();
        let fits = |group: &Candidate| {
            let (first, last) = (group.first.min(address), group.end.max(end) - 1);
            let near = last.checked_sub(first).is_some_and(|distance| distance < WIDEST);
            let pages = fixed && first & !(PAGE as i64 - 1) != last & !(PAGE as i64 - 1);
            group.origin == origin && (group.write || !write) && near && !pages
        };
        let number = match self.candidates.iter().position(fits) {
            Some(number) => number,
            None => {
                // What is read of the stack now is written later.
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
