//! Selection of the blocks that are translated together: the requested block and its likely successors. If nothing is
//! recorded, this includes called functions and the code after their return.
//!
//! A trace is entered at its first block only. If the guest takes another path, the trace is left, and the executed
//! blocks are counted at once, by a counter for its blocks so far (`Blocks::prefix`). No event is due between its
//! blocks: it is entered only if that is certain. A page is checked whenever the trace enters it from another one.

use super::Key;
use super::key::AccessMode;
use super::plan::{Plan, event, plans};
use crate::blocks::{Block, DEAD};
use crate::counters::CHEAPEST;
use crate::decode::operation;
use crate::mode;
use crate::op::Op;
use crate::op::Timed;
use crate::state::Cpu;
use crate::time::{Place, Repeated, START};
use crate::translate::BlockCache;
use iced_x86::Instruction;
use ledger::{Class, Family, Kind, Ticks};
use x86::page::PAGE;

/// Maximum number of blocks in a trace.
pub const MOST_PARTS: usize = 8;
/// Maximum number of operations in a trace, unless it is a single block.
const MOST_OPERATIONS: usize = 64;
/// Maximum time from the begin of the first block to the begin of the last.
pub const SPAN: Ticks = 1 << 20;
/// Size of a line of code in bytes.
const LINE: u64 = 64;
/// Continuation of a trace after a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The trace ends.
    End,
    /// The target of the block's last instruction, a jump.
    Taken,
    /// The instruction after the block's last.
    Next,
}

/// Charge of a misprediction: counter and time.
#[derive(Clone, Copy, Debug)]
pub struct Miss {
    /// Counter of [`Blocks::event`](crate::blocks::Blocks::event).
    pub counter: u32,
    /// Price.
    pub ticks: i32,
}

/// Charge of an instruction in addition to its class, for each execution or as often as it specifies: counter, if there
/// is one, and time.
#[derive(Clone, Copy, Debug)]
pub struct Surcharge {
    /// See [`Miss::counter`].
    pub counter: Option<u32>,
    /// Price.
    pub ticks: u32,
}

/// A block of a trace.
pub struct Part {
    /// Index of the block.
    pub index: u32,
    /// Copy of the block.
    pub block: Block,
    /// Operations.
    pub ops: Vec<Op>,
    /// For each operation, the price of the block from the operation on, in ticks.
    pub rests: Vec<Ticks>,
    /// Counter of executions of the trace up to this block.
    pub counter: u32,
    /// Decoded instructions.
    pub instructions: Vec<Instruction>,
    /// Plans of the instructions.
    pub plans: Vec<Plan>,
    /// Charges of the instructions in addition to their class.
    pub events: Vec<Option<Surcharge>>,
    /// Charge of a misprediction of the last instruction, an indirect branch or a return.
    pub miss: Option<Miss>,
    /// True if a run begins with it whose begin is noted.
    pub begins: bool,
    /// True if its page probably is part of a large one.
    pub large: bool,
    /// The instruction in the shadow of STI, if the block ends with STI and it is translated.
    pub shadow: Option<Shadow>,
    /// Continuation of the trace.
    pub way: Way,
}

impl Part {
    /// Leaves the last instruction to its handler.
    fn by_handler(&mut self) {
        self.plans.last_mut().into_iter().for_each(|plan| *plan = Plan::Handler);
    }

    /// Returns the most that it costs, without iterations of string instructions and mispredicted targets, which do not
    /// occur inside a trace.
    pub fn time(&self) -> Ticks {
        let events = self.events.iter().flatten().map(|event| u64::from(event.ticks)).sum::<Ticks>();
        self.block.cost + events
    }

    /// Returns the linear address of its page.
    pub fn page(&self) -> u64 {
        self.block.rip & !(PAGE - 1)
    }
}

/// Source of a translation.
#[derive(Clone, Copy)]
pub struct TraceSource<'a> {
    /// Index of the translation.
    pub number: u32,
    /// Index of its first question for a line of code.
    pub question: u32,
    /// Index of its first access that may miss lines of the fast path.
    pub access: u32,
    /// Blocks in the order of execution.
    pub parts: &'a [Part],
    /// Mode for which it is translated.
    pub key: Key,
    /// True if executions are counted and predictors modelled.
    pub recorded: bool,
    /// Number of slots in the modelled target cache.
    pub target_slots: usize,
    /// True if directions of conditional branches are predicted.
    pub predicts: bool,
    /// True if lines of code and known branches are modelled.
    pub fetches: bool,
    /// True if each x87 instruction records its operand's address.
    pub data_pointers: bool,
    /// Log2 of the size of the pages or lines in the fast path's tables.
    pub shift: u8,
    /// Bits of IA32_SPEC_CTRL that exist.
    pub spec_ctrl: u64,
}

impl TraceSource<'_> {
    /// Returns true if the direction of a conditional branch has an effect on the model.
    pub fn models_directions(&self) -> bool {
        self.predicts || self.fetches
    }

    /// Returns the time from the begin of the first block to the begin of the last.
    pub fn span(&self) -> Ticks {
        let before = &self.parts[..self.parts.len() - 1];
        before.iter().map(Part::time).sum()
    }
}

/// Site of a handler call in a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandlerSite {
    /// True if the trace continues after the block.
    pub inside: bool,
    /// True if the executed part of the trace has not been counted.
    pub uncounted: bool,
    /// Index of the translation.
    pub number: u32,
    /// Index of the part.
    pub part: usize,
}

// The index of a part has four bits.
const _: () = assert!(MOST_PARTS <= 1 << 4);

impl HandlerSite {
    /// Encodes the site for translated code.
    pub fn encode(self) -> u32 {
        self.number << 6 | (self.part as u32) << 2 | u32::from(self.uncounted) << 1 | u32::from(self.inside)
    }

    /// Decodes a site.
    pub fn decode(code: u32) -> Self {
        Self { inside: code & 1 != 0, uncounted: code & 2 != 0, number: code >> 6, part: (code >> 2) as usize & 15 }
    }
}

/// A call in a trace.
#[derive(Clone)]
struct Call {
    /// Index of the part that ends with it.
    part: usize,
    /// Return address.
    next: u64,
}

/// A NOP after STI. It is executed alone, so it is charged separately, and belongs to no block.
#[derive(Clone, Copy)]
pub struct Shadow {
    /// Address.
    pub rip: u64,
    /// Address of the next instruction.
    pub next: u64,
    /// Class as which it is charged.
    pub class: Class,
    /// Its price.
    pub ticks: u32,
    /// Context after it.
    pub after: Place,
    /// Its guest-physical address, if a run begins with it whose begin is noted.
    pub begins: Option<u64>,
}

impl Cpu {
    /// Selects the trace that begins with a block; it is empty if the block cannot be translated. Blocks with fewer
    /// than `warm` executions are excluded.
    pub(super) fn trace(&mut self, cache: &mut BlockCache, head: u32, key: Key, warm: u16) -> Vec<Part> {
        let first = self.part(cache, head, key);
        let Some(first) = first.and_then(|part| self.numbered(cache, part, key, None)) else { return Vec::new() };
        let (mut operations, mut span) = (first.ops.len(), 0);
        let mut trace = vec![first];
        // Calls that have not returned.
        let mut calls = Vec::new();
        while trace.len() < MOST_PARTS {
            let number = trace.len() - 1;
            let mut inner = calls.clone();
            let last = &mut trace[number];
            let Some((way, rip)) = self.likely(cache, last, number, key, &mut inner) else { break };
            let Some(index) = self.successor(cache, last, rip) else { break };
            if !cache.used.is_warm(index, warm) && !cache.code.translations.has(index) {
                break;
            }
            let Some(part) = self.part(cache, index, key) else { break };
            operations += part.ops.len();
            span += last.time();
            let same_mode = part.block.mode() == last.block.mode();
            if operations > MOST_OPERATIONS || span > SPAN || part.block.second != 0 || !same_mode {
                break;
            }
            let Some(part) = self.numbered(cache, part, key, Some(last.counter)) else { break };
            last.way = way;
            trace.push(part);
            calls = inner;
        }
        // A function that does not return within the trace is removed from it.
        if let Some(call) = calls.first() {
            trace.truncate(call.part + 1);
            trace[call.part].way = Way::End;
        }
        // The instruction after the shadow must be known, because the trace can't continue elsewhere.
        if let Some(last) = trace.last_mut().filter(|last| last.shadow.is_some()) {
            last.shadow = None;
            last.events.last_mut().into_iter().for_each(|event| *event = None);
            last.by_handler();
        }
        trace
    }

    /// Assigns counters to a part, which follows the blocks counted by `before`. Returns `None` if there are none left.
    fn numbered(&mut self, cache: &mut BlockCache, mut part: Part, key: Key, before: Option<u32>) -> Option<Part> {
        part.events = self.events(cache, &part, key);
        part.miss = self.miss(cache, &part);
        part.large = self.engine.front.is_large(part.block.rip);
        if self.wiring.model.recorded {
            part.counter = cache.code.prefix(before, part.index)?;
        }
        Some(part)
    }

    /// Converts a block to a part of a translation, if possible.
    fn part(&self, cache: &mut BlockCache, index: u32, key: Key) -> Option<Part> {
        let block = cache.code.blocks[index as usize];
        // The counter of a block with almost no cost could overflow in a loop of only that block. Outside 64-bit mode,
        // the CS limit would have to be compared with the start of the second page.
        let turns = cache.code.ops_of(index).last().is_none_or(|last| is_branch(last.class));
        let cheap = self.wiring.model.recorded && block.cost < CHEAPEST && turns;
        let crosses = block.second != 0 && key.narrow;
        if block.probe || block.breakpoint || crosses || cheap || (block.mode() & 3 == mode::BITS64) == key.narrow {
            return None;
        }
        let mut bytes = vec![0; usize::from(block.len)];
        let here = bytes.len().min((PAGE - (block.physical & (PAGE - 1))) as usize);
        let (here, there) = bytes.split_at_mut(here);
        if !self.wiring.ram.read_bytes(block.physical, here) || !self.wiring.ram.read_bytes(block.second, there) {
            return None;
        }
        let ops = cache.code.ops_of(index);
        let mut instructions: Vec<Instruction> = Vec::with_capacity(ops.len());
        let mut at = 0;
        while instructions.len() < ops.len() && at < bytes.len() {
            let rip = block.rip.wrapping_add(at as u64);
            let instruction = Self::decode_one(&bytes[at..], rip, block.mode()).ok()?;
            at += instruction.len().max(1);
            instructions.push(self.as_model(instruction));
        }
        let same = instructions.len() == ops.len()
            && instructions.iter().zip(ops).all(|(i, op)| i.len() == usize::from(op.len));
        let mut plans = plans(&instructions, ops, key.narrow, self.has_lines());
        // With branch tracking, the handlers ensure that ENDBRANCH comes next; when it is executed here, the tracker
        // does not wait.
        let records = self.wiring.model.branches;
        let handled = |plan: &Plan| match plan {
            Plan::Indirect { .. } => records || block.mode() & mode::TRACKED != 0,
            Plan::Return => records,
            _ => false,
        };
        plans.iter_mut().filter(|plan| handled(plan)).for_each(|plan| *plan = Plan::Handler);
        let ops = ops.to_vec();
        let mut part = Part {
            index,
            block,
            ops,
            rests: cache.code.rests_of(index).to_vec(),
            counter: 0,
            instructions,
            plans,
            events: Vec::new(),
            miss: None,
            begins: self.notes_begin(&cache.code.runs, block.context()),
            large: false,
            shadow: None,
            way: Way::End,
        };
        if part.plans.last() == Some(&Plan::EnableInterrupts) {
            let next = block.rip.wrapping_add(u64::from(block.len));
            let stops = cache.code.probes.contains(next) || cache.code.breakpoints.contains(next);
            part.shadow = self.shadow(cache, block, key).filter(|_| !stops);
            if part.shadow.is_none() {
                part.by_handler();
            }
        }
        same.then_some(part)
    }

    /// Returns the charges of a part's instructions in addition to their class.
    fn events(&self, cache: &mut BlockCache, part: &Part, key: Key) -> Vec<Option<Surcharge>> {
        // In a model that prices a repeated instruction by its length, the handler charges the instruction.
        let by_length = self.wiring.model.timing.repeated(&Repeated::default()).is_some();
        let step = Kind::new(Family::Instruction, Class::StringStep as u32);
        let of = |i: &Instruction, cache: &mut BlockCache| {
            self.event(cache, i.ip(), event(i, key).filter(|kind| !(by_length && *kind == step))?)
        };
        let mut events: Vec<_> = part.instructions.iter().map(|i| of(i, cache)).collect();
        if let (Some(shadow), Some(last)) = (part.shadow, events.last_mut()) {
            let kind = Kind::new(Family::Instruction, shadow.class as u32);
            *last = self.surcharge(cache, shadow.rip, kind, u64::from(shadow.ticks));
        }
        events
    }

    /// Returns the charge of a misprediction of a part's last instruction, if that is recorded.
    fn miss(&self, cache: &mut BlockCache, part: &Part) -> Option<Miss> {
        let op = part.ops.last().filter(|_| self.wiring.model.recorded)?;
        let family = match op.class {
            Class::Return => Family::ReturnMiss,
            Class::IndirectJump | Class::IndirectCall => Family::IndirectMiss,
            _ => return None,
        };
        let kind = Kind::new(family, 0);
        let price = self.wiring.model.price(kind) + op.late();
        let ticks = i32::try_from(price).ok()?;
        Some(Miss { counter: cache.code.event(op.rip(), kind, price)?, ticks })
    }

    /// Returns the likely successor of a part, if it may be in the trace; `calls` are those that have not returned.
    fn likely(
        &self,
        cache: &BlockCache,
        part: &Part,
        number: usize,
        key: Key,
        calls: &mut Vec<Call>,
    ) -> Option<(Way, u64)> {
        let last = part.ops.last()?;
        let plan = part.plans.last()?;
        let turns = matches!(plan, Plan::Call | Plan::Return | Plan::Indirect { .. });
        // With counting, there would be too many counters; outside 64-bit mode functions are not followed.
        if turns && (key.narrow || self.wiring.model.recorded) {
            return None;
        }
        if let Plan::Call | Plan::Indirect { call: true } = plan {
            calls.push(Call { part: number, next: last.next });
        }
        match plan {
            Plan::Branch if cache.used.is_taken(part.index) => Some((Way::Taken, last.imm)),
            Plan::Branch => Some((Way::Next, last.next)),
            Plan::Jump | Plan::Call => Some((Way::Taken, last.imm)),
            Plan::Return => Some((Way::Taken, calls.pop()?.next)),
            Plan::Indirect { .. } => Some((Way::Taken, cache.only_successor(part.index)?)),
            Plan::EnableInterrupts => part.shadow.map(|shadow| (Way::Next, shadow.next)),
            Plan::Handler => None,
            // The block ended because of its size.
            _ => Some((Way::Next, last.next)),
        }
    }

    /// Returns the block at `rip` after a part, if it may be in the trace.
    fn successor(&mut self, cache: &mut BlockCache, part: &Part, rip: u64) -> Option<u32> {
        let page = match part.block.physical {
            DEAD => return None,
            physical if rip & !(PAGE - 1) == part.page() => physical & !(PAGE - 1),
            _ => self.engine.front.code_page(rip, self.arch.cpl == 3)?,
        };
        let leads_on =
            part.ops.last().is_some_and(|last| rip == last.next || matches!(last.class, Class::Call | Class::Return));
        let after = if leads_on { part.block.after } else { START };
        cache.block_in_page(part.index, page, rip, part.shadow.map_or(after, |shadow| shadow.after))
    }

    /// Returns the instruction after a block that ends with STI, if it is a NOP in the same line of code, so that any
    /// change of it drops the block.
    fn shadow(&self, cache: &mut BlockCache, block: Block, key: Key) -> Option<Shadow> {
        if key.narrow || key.access == AccessMode::User {
            return None;
        }
        let len = u64::from(block.len);
        let (rip, physical) = (block.rip.wrapping_add(len), block.physical + len);
        let mut bytes = [0; 64];
        let bytes = &mut bytes[..(physical.next_multiple_of(LINE) - physical) as usize];
        if !self.wiring.ram.read_bytes(physical, bytes) {
            return None;
        }
        let instruction = self.as_model(Self::decode_one(bytes, rip, block.mode()).ok()?);
        let (op, ends) = operation(&instruction, block.mode());
        let nop = plans(&[instruction], &[op], false, self.has_lines()) == [Plan::Nothing];
        (nop && !ends).then(|| {
            let timed = Timed { op, instruction };
            let (price, after) =
                cache.code.runs.price_one(&self.wiring.model.prices(), block.after, timed.step(), false);
            let begins = self.notes_begin(&cache.code.runs, block.after).then_some(physical);
            Shadow { rip, next: op.next, class: op.class, ticks: price.ticks, after, begins }
        })
    }
}

/// Returns true if instructions of a class may branch without their handlers.
fn is_branch(class: Class) -> bool {
    use Class::*;
    matches!(class, Branch | Jump | Call | Return | IndirectJump | IndirectCall)
}
