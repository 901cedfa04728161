//! Which blocks are translated as one: the block that is asked for, and those that most likely come after it; where nothing is recorded, in
//! functions that are called and after they return too.
//!
//! A trace is entered at its first block only. Where the guest goes another way it is left, and what was executed of it is
//! counted at once, under a number that stands for its blocks so far ([`BlockCache::prefix`]). Nothing is due between its
//! blocks: it is only entered where that is certain. A page is checked whenever the trace comes to it from another one.

use super::Key;
use super::key::AccessMode;
use super::plan::{Plan, event, plans};
use crate::cache::{Block, BlockCache, DEAD};
use crate::counters::CHEAPEST;
use crate::decode::{mode, operation};
use crate::op::Op;
use crate::state::Cpu;
use iced_x86::Instruction;
use ledger::{Class, Family, Kind, Ticks};
use x86::page::PAGE;

/// Blocks of a trace at most.
pub const MOST_PARTS: usize = 8;
/// Operations of a trace at most, unless it is a single block.
const MOST_OPERATIONS: usize = 64;
/// Time between the beginnings of the first block and the last, at most.
pub const SPAN: Ticks = 1 << 20;
/// Bytes of a line of code.
const LINE: u64 = 64;
/// How a trace goes on after a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It ends.
    End,
    /// With the target of the block's last instruction, a jump.
    Taken,
    /// With the instruction after its last.
    Next,
}

/// How a misprediction is charged: counted under this number, and this much time.
#[derive(Clone, Copy, Debug)]
pub struct Miss {
    /// A number of [`BlockCache::event`](crate::cache::BlockCache::event).
    pub counter: u32,
    /// Its price.
    pub ticks: i32,
}

/// What an instruction charges besides its class, each time or so often as it says: counted under a number, if at all, and this
/// much time.
#[derive(Clone, Copy, Debug)]
pub struct Surcharge {
    /// See [`Miss::counter`].
    pub counter: Option<u32>,
    /// Its price.
    pub ticks: u32,
}

/// A block of a trace.
pub struct Part {
    /// Its number.
    pub index: u32,
    /// The block.
    pub block: Block,
    /// Its operations.
    pub ops: Vec<Op>,
    /// Number under which executions of the trace up to here are counted.
    pub counter: u32,
    /// What it was made of.
    pub instructions: Vec<Instruction>,
    /// What becomes of them.
    pub plans: Vec<Plan>,
    /// What they charge besides their class.
    pub events: Vec<Option<Surcharge>>,
    /// How a misprediction of the last instruction is charged.
    pub miss: Option<Miss>,
    /// Its page is part of a large one, most likely.
    pub large: bool,
    /// The instruction in the shadow of STI, if the block ends with that and it is translated.
    pub shadow: Option<Shadow>,
    /// How the trace goes on.
    pub way: Way,
}

impl Part {
    /// Leaves the last instruction to its handler.
    fn by_handler(&mut self) {
        self.plans.last_mut().into_iter().for_each(|plan| *plan = Plan::Handler);
    }

    /// What it charges, but for repetitions of string instructions and mispredictions, of which there are none within a trace.
    pub fn time(&self) -> Ticks {
        self.block.cost + self.events.iter().flatten().map(|event| u64::from(event.ticks)).sum::<Ticks>()
    }

    /// The linear address of its page.
    pub fn page(&self) -> u64 {
        self.block.rip & !(PAGE - 1)
    }
}

/// What to translate.
pub struct TraceSource<'a> {
    /// The number of the translation.
    pub number: u32,
    /// The blocks, in the order of execution.
    pub parts: &'a [Part],
    /// Under which access it runs.
    pub key: Key,
    /// Executions are counted, and predictors modelled.
    pub recorded: bool,
    /// Slots of the modelled target cache.
    pub target_slots: usize,
    /// Each x87 instruction notes its operand's address.
    pub data_pointers: bool,
    /// Bits of IA32_SPEC_CTRL that exist.
    pub spec_ctrl: u64,
}

impl TraceSource<'_> {
    /// Time between the beginnings of the first block and the last.
    pub fn span(&self) -> Ticks {
        let before = &self.parts[..self.parts.len() - 1];
        before.iter().map(Part::time).sum()
    }
}

/// Where in a trace a handler runs an instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandlerSite {
    /// The trace goes on after the block.
    pub inside: bool,
    /// What was executed of the trace has not been counted.
    pub uncounted: bool,
    /// The number of the translation.
    pub number: u32,
    /// Which of its parts it is.
    pub part: usize,
}

// The number of a part has four bits.
const _: () = assert!(MOST_PARTS <= 1 << 4);

impl HandlerSite {
    /// As translated code has it.
    pub fn encode(self) -> u32 {
        self.number << 6 | (self.part as u32) << 2 | u32::from(self.uncounted) << 1 | u32::from(self.inside)
    }

    /// What it was made from.
    pub fn decode(code: u32) -> Self {
        Self { inside: code & 1 != 0, uncounted: code & 2 != 0, number: code >> 6, part: (code >> 2) as usize & 15 }
    }
}

/// A call within a trace.
#[derive(Clone)]
struct Call {
    /// The part that ends with it.
    part: usize,
    /// Where it is returned to.
    next: u64,
}

/// A NOP after STI. It runs on its own, so it is charged by itself, and belongs to no block.
#[derive(Clone, Copy)]
pub struct Shadow {
    /// Its address.
    pub rip: u64,
    /// The address after it.
    pub next: u64,
    /// What it is charged as.
    pub class: Class,
}

impl Cpu {
    /// The trace that begins with a block; nothing if the block cannot be translated. Blocks that have not been executed `warm`
    /// times are not in it.
    pub(super) fn trace(&mut self, cache: &mut BlockCache, head: u32, key: Key, warm: u16) -> Vec<Part> {
        let first = self.part(cache, head, key);
        let Some(first) = first.and_then(|part| self.numbered(cache, part, key, None)) else { return Vec::new() };
        let (mut operations, mut span) = (first.ops.len(), 0);
        let mut trace = vec![first];
        // Those that have not returned.
        let mut calls = Vec::new();
        while trace.len() < MOST_PARTS {
            let number = trace.len() - 1;
            let mut inner = calls.clone();
            let last = &mut trace[number];
            let Some((way, rip)) = self.likely(cache, last, number, key, &mut inner) else { break };
            let Some(index) = self.successor(cache, last, rip) else { break };
            if !cache.translations.is_warm(index, warm) {
                break;
            }
            let Some(part) = self.part(cache, index, key) else { break };
            operations += part.ops.len();
            span += last.time();
            let same_mode = part.block.mode == last.block.mode;
            if operations > MOST_OPERATIONS || span > SPAN || part.block.second != 0 || !same_mode {
                break;
            }
            let Some(part) = self.numbered(cache, part, key, Some(last.counter)) else { break };
            last.way = way;
            trace.push(part);
            calls = inner;
        }
        // A function that does not return within the trace is not part of it.
        if let Some(call) = calls.first() {
            trace.truncate(call.part + 1);
            trace[call.part].way = Way::End;
        }
        // What comes after the shadow must be known, since nothing else can go on there.
        if let Some(last) = trace.last_mut().filter(|last| last.shadow.is_some()) {
            last.shadow = None;
            last.events.last_mut().into_iter().for_each(|event| *event = None);
            last.by_handler();
        }
        trace
    }

    /// The part with the numbers under which it is counted, after what `before` stands for; `None` if there are none left.
    fn numbered(&mut self, cache: &mut BlockCache, mut part: Part, key: Key, before: Option<u32>) -> Option<Part> {
        part.events = self.events(cache, &part, key);
        part.miss = self.miss(cache, &part);
        part.large = self.engine.front.is_large(part.block.rip);
        if self.wiring.model.recorded {
            part.counter = cache.prefix(before, part.index)?;
        }
        Some(part)
    }

    /// A block as part of a translation, if it can be one.
    fn part(&self, cache: &BlockCache, index: u32, key: Key) -> Option<Part> {
        let block = &cache.blocks[index as usize];
        // The counter of a block that costs next to nothing could overflow, if it is all that a loop consists of; outside 64-bit
        // mode, the limit of CS would have to be compared with where the second page begins.
        let turns = cache.ops_of(index).last().is_none_or(|last| is_branch(last.class));
        let cheap = self.wiring.model.recorded && block.cost < CHEAPEST && turns;
        let crosses = block.second != 0 && key.narrow;
        if block.probe || block.breakpoint || crosses || cheap || (block.mode & 3 == mode::BITS64) == key.narrow {
            return None;
        }
        let mut bytes = vec![0; usize::from(block.len)];
        let here = bytes.len().min((PAGE - (block.physical & (PAGE - 1))) as usize);
        let (here, there) = bytes.split_at_mut(here);
        if !self.wiring.ram.read_bytes(block.physical, here) || !self.wiring.ram.read_bytes(block.second, there) {
            return None;
        }
        let ops = cache.ops_of(index);
        let mut instructions: Vec<Instruction> = Vec::with_capacity(ops.len());
        let mut at = 0;
        while instructions.len() < ops.len() && at < bytes.len() {
            let rip = block.rip.wrapping_add(at as u64);
            let instruction = Self::decode_one(&bytes[at..], rip, block.mode).ok()?;
            at += instruction.len().max(1);
            instructions.push(self.as_model(instruction));
        }
        let same = instructions.len() == ops.len()
            && instructions.iter().zip(ops).all(|(i, op)| i.len() == usize::from(op.len));
        let mut plans = plans(&instructions, ops, key.narrow);
        // Where branches are tracked, the handlers see to it that ENDBRANCH comes next; when it is executed here, nothing waits for it.
        let records = self.wiring.model.branches;
        let handled = |plan: &Plan| match plan {
            Plan::Indirect { .. } => records || block.mode & mode::TRACKED != 0,
            Plan::Return => records,
            _ => false,
        };
        plans.iter_mut().filter(|plan| handled(plan)).for_each(|plan| *plan = Plan::Handler);
        let ops = ops.to_vec();
        let mut part = Part {
            index,
            block: *block,
            ops,
            counter: 0,
            instructions,
            plans,
            events: Vec::new(),
            miss: None,
            large: false,
            shadow: None,
            way: Way::End,
        };
        if part.plans.last() == Some(&Plan::EnableInterrupts) {
            let next = block.rip.wrapping_add(u64::from(block.len));
            let stops = cache.probes.contains(next) || cache.breakpoints.contains(next);
            part.shadow = self.shadow(block, key).filter(|_| !stops);
            if part.shadow.is_none() {
                part.by_handler();
            }
        }
        same.then_some(part)
    }

    /// What the instructions of a part charge besides their class.
    fn events(&self, cache: &mut BlockCache, part: &Part, key: Key) -> Vec<Option<Surcharge>> {
        let mut kinds: Vec<_> = part.instructions.iter().map(|i| (i.ip(), event(i, key))).collect();
        if let (Some(shadow), Some(last)) = (part.shadow, kinds.last_mut()) {
            *last = (shadow.rip, Some(Kind::new(Family::Instruction, shadow.class as u32)));
        }
        kinds.into_iter().map(|(at, kind)| self.event(cache, at, kind?)).collect()
    }

    /// How a misprediction of a part's last instruction is charged, if that is recorded.
    fn miss(&self, cache: &mut BlockCache, part: &Part) -> Option<Miss> {
        let op = part.ops.last().filter(|_| self.wiring.model.recorded)?;
        let family = match op.class {
            Class::Return => Family::ReturnMiss,
            Class::IndirectJump | Class::IndirectCall => Family::IndirectMiss,
            _ => return None,
        };
        let kind = Kind::new(family, 0);
        let price = self.wiring.model.costs.of(kind);
        let ticks = i32::try_from(price).ok()?;
        Some(Miss { counter: cache.event(op.rip(), kind, price)?, ticks })
    }

    /// Where a part most likely goes on, if that can be in its trace; `calls` are those that have not returned.
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
        // Where executions are counted, there would be more to count than is worth it; outside 64-bit mode functions are left alone.
        if turns && (key.narrow || self.wiring.model.recorded) {
            return None;
        }
        if let Plan::Call | Plan::Indirect { call: true } = plan {
            calls.push(Call { part: number, next: last.next });
        }
        match plan {
            Plan::Branch if cache.translations.is_taken(part.index) => Some((Way::Taken, last.imm)),
            Plan::Branch => Some((Way::Next, last.next)),
            Plan::Jump | Plan::Call => Some((Way::Taken, last.imm)),
            Plan::Return => Some((Way::Taken, calls.pop()?.next)),
            Plan::Indirect { .. } => Some((Way::Taken, cache.only_successor(part.index)?)),
            Plan::EnableInterrupts => part.shadow.map(|shadow| (Way::Next, shadow.next)),
            Plan::Handler => None,
            // The block was cut off here.
            _ => Some((Way::Next, last.next)),
        }
    }

    /// The block at `rip`, which a part leads to, if that can be in its trace.
    fn successor(&mut self, cache: &mut BlockCache, part: &Part, rip: u64) -> Option<u32> {
        let page = match part.block.physical {
            DEAD => return None,
            physical if rip & !(PAGE - 1) == part.page() => physical & !(PAGE - 1),
            _ => self.engine.front.code_page(rip, self.arch.cpl == 3)?,
        };
        cache.block_in_page(part.index, page, rip)
    }

    /// The instruction after a block that ends with STI, if it is a NOP in the same line of code, so that whatever changes it
    /// drops the block.
    fn shadow(&self, block: &Block, key: Key) -> Option<Shadow> {
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
        let instruction = self.as_model(Self::decode_one(bytes, rip, block.mode).ok()?);
        let (op, ends) = operation(&instruction, block.mode);
        let nop = plans(&[instruction], &[op], false) == [Plan::Nothing];
        (nop && !ends).then_some(Shadow { rip, next: op.next, class: op.class })
    }
}

/// Whether instructions of a class may go elsewhere without their handlers.
fn is_branch(class: Class) -> bool {
    use Class::*;
    matches!(class, Branch | Jump | Call | Return | IndirectJump | IndirectCall)
}
