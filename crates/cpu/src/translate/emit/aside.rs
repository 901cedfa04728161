//! Out-of-line code: calls of handlers, exits from a trace, and rare cases.

use super::{Aim, Emit};
use crate::front::PAGES;
use crate::time::predictor::Target;
use crate::time::recent::CUT;
use crate::translate::Code;
use crate::translate::accesses::{Access, WRITES};
use crate::translate::asm::{M, R};
use crate::translate::entry::AGAIN;
use crate::translate::key::Key;
use crate::translate::layout::{BUDGET, FIRST, Need, SECOND, TEST, field};
use crate::translate::plan::Plan;
use crate::translate::trace::{Miss, Way};
use ledger::Ticks;
use std::mem::offset_of;

/// UD2.
const UNREACHABLE: [u8; 2] = [0x0f, 0x0b];
const NOP: u8 = 0x90;

/// A piece of out-of-line code, and its return point.
pub(super) struct Stub {
    from: From,
    /// Argument for [`slow`](crate::translate::dispatch::slow).
    pub(super) code: u64,
    back: Option<Back>,
    /// The access that was probed for in vain.
    access: Option<Probed>,
    /// Needs of vector and x87 instructions that are met at the return point.
    pub(super) loaded: u8,
}

/// An access that translated code probes for.
#[derive(Clone, Copy)]
pub struct Probed {
    /// Linear address.
    pub address: Linear,
    /// Size in bytes.
    pub size: i32,
    /// True for a write.
    pub write: bool,
    /// Place of the next probe, after the access has been made possible.
    pub again: Again,
}

/// Place of another probe for the same access.
#[derive(Clone, Copy)]
pub enum Again {
    /// At this offset.
    At(usize),
    /// At an operation of a part, in the code that probes for each operand.
    Apart { part: usize, at: usize },
}

/// A linear address.
#[derive(Clone, Copy)]
pub enum Linear {
    /// In a register, which is neither `SECOND` nor `TEST`.
    Register(R),
    /// A constant.
    Constant(u64),
}

/// Return point of out-of-line code.
#[derive(Clone, Copy)]
pub(super) enum Back {
    /// At this offset.
    At(usize),
    /// After an operation of a part, in the code that probes for each operand.
    After { part: usize, at: usize },
}

/// A question of an instruction about its code.
#[derive(Clone, Copy)]
pub(super) enum Asked {
    /// The line at `line` times the size of a line, in which the instruction at `rip` begins; its block costs `rest` from there on.
    Line { rip: u64, line: u64, rest: Ticks },
    /// The branch that it is, which is always taken.
    Always,
    /// The conditional branch that it is, which is taken.
    Taken,
}

/// Origin of control flow into out-of-line code.
pub(super) enum From {
    /// A jump with this distance field.
    Jump(usize),
    /// A jump from an exit of the trace after one of its parts, which is counted here unless it has been `counted`.
    Side { site: usize, part: usize, taken: bool, counted: bool },
    /// The exit to which a link leads until it is linked.
    Link(usize),
    /// The return address of the call at the end of a part.
    Landing { site: usize, part: usize },
    /// A jump from a group of operands that was not found, to the code that probes for each operand.
    Apart { site: usize, part: usize, at: usize },
    /// A jump from a return that was not predicted.
    Unpredicted { site: usize, key: Key, part: usize, release: i32 },
    /// A jump from an indirect branch to a target outside of its trace.
    Elsewhere { site: usize, key: Key, part: usize, call: bool },
    /// A jump to code that consults the modelled predictor on a conditional branch, whose key and direction these are.
    Predict { site: usize, part: usize, key: u64, taken: bool, back: usize },
    /// Jumps to code that consults the modelled predictor on an indirect branch that has not gone to its only target, or charges its
    /// misprediction: the place of the branch in the target cache, and the branch's address.
    OtherTarget { sites: [usize; 2], part: usize, slot: i32, from: u64, back: usize },
    /// A jump to code that asks for the code of the current instruction. Afterwards the host address of the group that was held is
    /// loaded again.
    Ask { site: usize, asked: Asked, held: Option<usize>, back: usize },
    /// A jump to code that loads vector registers or the x87 unit; it retries if the need is met, and otherwise
    /// continues with the handlers of the rest of the block.
    Load { site: usize, retry: usize, need: Need, part: usize, at: usize },
}

/// Out-of-line part of a page check: the alternative slot, and the action if the page is not known.
pub(super) struct OtherPage {
    pub(super) site: usize,
    pub(super) otherwise: Option<(u64, M)>,
    pub(super) lost: Lost,
    pub(super) back: usize,
}

/// Action if a page is not known.
#[derive(Clone, Copy)]
pub(super) enum Lost {
    /// The trace is not entered.
    Head { due: usize },
    /// The trace is left after this part.
    After(usize),
}

impl Emit<'_> {
    /// Adds out-of-line code.
    pub(super) fn aside(&mut self, from: From) -> &mut Stub {
        let number = self.stubs.len();
        self.stubs.push(Stub { from, code: 0, back: None, access: None, loaded: 0 });
        &mut self.stubs[number]
    }

    /// Emits the checks of the alternative slots, and the actions if they fail.
    fn check_other_pages(&mut self) {
        for OtherPage { site, otherwise, lost, back } in std::mem::take(&mut self.pages) {
            let due = match lost {
                Lost::Head { due } => due,
                Lost::After(part) => self.lose(part),
            };
            let Some(otherwise) = otherwise else {
                self.asm.aim(site, due);
                continue;
            };
            let here = self.asm.here();
            self.asm.aim(site, here);
            let difference = self.difference(otherwise);
            let away = self.asm.flagless_jump_unless_zero_sum(true, difference);
            self.asm.aim(away, due);
            let on = self.asm.jump();
            self.asm.aim(on, back);
        }
    }

    /// Leaves the trace after a part, to its successor.
    fn lose(&mut self, part: usize) -> usize {
        let here = self.asm.here();
        self.part = part;
        self.counted = !self.source.recorded;
        self.count();
        self.note_calls(part + 1);
        // The successor may be in the middle of a run, unlike the target of a return.
        self.leave_before(part + 1);
        here
    }

    /// Continues if `TEST` is zero; otherwise operands are probed for one by one from the current instruction on.
    pub fn or_apart(&mut self) {
        let from = From::Apart { site: self.asm.flagless_jump_unless_zero(), part: self.part, at: self.at };
        self.aside(from);
    }

    /// Emits a jump to a handler call for the current instruction, which then continues at the point set by
    /// [`Emit::back_here`].
    pub fn otherwise(&mut self) -> usize {
        let site = self.asm.jump();
        self.otherwise_from(site)
    }

    /// Continues if `TEST` is zero; otherwise the handler executes the instruction. Returns the stub with the handler
    /// call, for [`Emit::back_here`].
    pub fn or_otherwise(&mut self) -> usize {
        let site = self.asm.flagless_jump_unless_zero();
        self.otherwise_from(site)
    }

    fn otherwise_from(&mut self, site: usize) -> usize {
        let (code, loaded) = (self.slow_code(), self.loaded);
        let stub = self.aside(From::Jump(site));
        (stub.code, stub.loaded) = (code, loaded);
        self.stubs.len() - 1
    }

    /// Returns true if the current instruction has accessed another operand, and notes that it accesses one.
    pub fn accesses_another(&mut self) -> bool {
        let here = Some((self.part, self.at));
        std::mem::replace(&mut self.accessed, here) == here
    }

    /// Continues if `TEST` is zero, otherwise as [`Emit::otherwise`] does, unless the access can be made possible. Probing
    /// again may begin with the instruction, whose other operand may have left the tables for this one: then the handler
    /// executes the instruction.
    pub fn or_refill(&mut self, access: Probed) -> usize {
        if self.accesses_another() && self.groups.is_some() {
            return self.or_otherwise();
        }
        let stub = self.or_otherwise();
        self.stubs[stub].access = Some(access);
        stub
    }

    /// Returns the place at which to probe again for an access whose probe begins at `start`. The page that has left the
    /// TLB for this access may be that of a group.
    pub fn again(&self, start: usize) -> Again {
        match self.groups {
            Some(_) => Again::Apart { part: self.part, at: self.at },
            None => Again::At(start),
        }
    }

    /// Continues unless one of two jumps was made because the indirect branch at `from` has not gone to its only target: then the modelled
    /// predictor is consulted, if targets are predicted by paths, or a misprediction is charged. The place of the branch in the target cache
    /// is `slot`, and its target is saved in the area.
    pub fn not_its_target(&mut self, sites: [usize; 2], slot: i32, from: u64) {
        let (part, back) = (self.part, self.asm.here());
        self.aside(From::OtherTarget { sites, part, slot, from, back });
    }

    /// Continues if a sum is zero; otherwise the modelled predictor is consulted on the conditional branch at the end of the
    /// current part.
    pub fn or_predict(&mut self, sum: M, key: u64, taken: bool) {
        let site = self.asm.flagless_jump_unless_zero_sum(true, sum);
        let from = From::Predict { site, part: self.part, key, taken, back: self.asm.here() };
        let (code, loaded) = (self.slow_code(), self.loaded);
        let stub = self.aside(from);
        (stub.code, stub.loaded) = (code, loaded);
    }

    /// Charges a misprediction, and updates the target cache.
    pub fn miss(&mut self, learns: Option<(i32, u64)>) {
        let Some(Miss { counter, ticks }) = self.part().miss else { return };
        self.count_under(counter);
        self.asm.flagless_lea(BUDGET, M::at(BUDGET, ticks));
        if self.source.predicts {
            self.note_run(CUT);
        }
        if self.source.fetches {
            self.asm.flagless_store(field!(redirected), BUDGET);
        }
        if let Some((slot, from)) = learns {
            self.asm.flagless_load(SECOND, field!(targets));
            self.asm.flagless_constant(TEST, from);
            self.asm.flagless_store(M::at(SECOND, slot + offset_of!(Target, from) as i32), TEST);
            self.asm.flagless_load(TEST, field!(wanted));
            self.asm.flagless_store(M::at(SECOND, slot + offset_of!(Target, to) as i32), TEST);
        }
    }

    /// Continues if `TEST` is zero; otherwise the vector registers or the x87 unit are loaded first.
    pub fn or_load(&mut self, retry: usize, need: Need) {
        let site = self.asm.flagless_jump_unless_zero();
        let from = From::Load { site, retry, need, part: self.part, at: self.at };
        self.aside(from);
    }

    /// Sets the return point of a stub, after the current instruction: the handler may have invalidated the groups.
    pub fn back_here(&mut self, stub: impl Into<Option<usize>>) {
        let Some(stub) = stub.into() else { return };
        self.stubs[stub].back = Some(match self.groups {
            Some(_) => Back::After { part: self.part, at: self.at },
            None => Back::At(self.asm.here()),
        });
    }

    /// Loads the return address of the call at the end of a part into `TEST`.
    pub fn landing(&mut self, part: usize) -> R {
        let from = From::Landing { site: self.asm.flagless_place(TEST), part };
        self.aside(from);
        TEST
    }

    /// Continues if a difference is zero; otherwise the current return was not predicted.
    pub fn or_unpredicted(&mut self, difference: M, release: i32) {
        let site = self.asm.flagless_jump_unless_zero_sum(true, difference);
        let from = From::Unpredicted { site, key: self.key, part: self.part, release };
        self.aside(from);
    }

    /// Continues if a difference is zero; otherwise the current indirect branch leaves its trace.
    pub fn or_elsewhere(&mut self, difference: M, call: bool) {
        let site = self.asm.flagless_jump_unless_zero_sum(true, difference);
        let from = From::Elsewhere { site, key: self.key, part: self.part, call };
        let loaded = self.loaded;
        self.aside(from).loaded = loaded;
    }

    /// Emits all out-of-line code.
    pub(super) fn out_of_line(&mut self) {
        self.check_other_pages();
        let mut refused = Vec::new();
        // Out-of-line code may add more of it.
        while !self.stubs.is_empty() {
            for stub in std::mem::take(&mut self.stubs) {
                self.stub(&stub, &mut refused);
            }
        }
        for part in 0..self.source.parts.len() {
            self.refuse(part, &refused);
        }
    }

    fn stub(&mut self, stub: &Stub, refused: &mut Vec<(usize, usize, usize)>) {
        let here = self.asm.here();
        match stub.from {
            From::Jump(site) => {
                self.asm.aim(site, here);
                self.by_handler(stub);
            }
            From::Side { site, part, taken, counted } => {
                self.asm.aim(site, here);
                (self.part, self.counted, self.loaded) = (part, counted, stub.loaded);
                if self.source.models_directions() {
                    self.decided(taken);
                }
                self.count();
                self.note_calls(part);
                self.link(taken, None);
            }
            From::Link(link) => {
                let site = self.links[link].site;
                self.links[link].stub = here;
                self.asm.aim(site, here);
                let code = Code::Link { number: self.source.number, link: link as u8 };
                self.asm.flagless_constant(TEST, u64::from(code.encode()));
                let site = self.asm.jump();
                self.aims.push((site, Aim::Exit));
            }
            From::Landing { site, part } => {
                let (key, known) = self.landings[part];
                self.asm.aim(site, known.unwrap_or(here));
                if known.is_some() {
                    return;
                }
                self.landings[part].1 = Some(here);
                // The return has loaded its key's index into `TEST`.
                self.asm.flagless_lea32(TEST, M::at(TEST, -(key.index() as i32)));
                let other = self.asm.flagless_jump_unless_zero();
                self.aims.push((other, Aim::Return));
                self.part = part;
                self.link(false, None);
                if let Some(link) = self.links.last_mut() {
                    link.far = true;
                }
            }
            From::Apart { site, part, at } => {
                let place = self.places[part][at].1;
                self.asm.aim(site, place);
            }
            From::Unpredicted { site, key, part, release } => {
                self.asm.aim(site, here);
                self.end_at(part, key);
                self.unpredicted(release);
            }
            From::Elsewhere { site, key, part, call } => {
                self.asm.aim(site, here);
                self.end_at(part, key);
                self.loaded = stub.loaded;
                // The first emission was possible.
                self.indirect(call);
            }
            From::Predict { site, part, key, taken, back } => {
                self.asm.aim(site, here);
                self.part = part;
                self.asm.flagless_constant(TEST, key | u64::from(taken));
                let call = self.asm.call();
                self.aims.push((call, Aim::Predict));
                let predicted = self.asm.flagless_if_zero();
                self.asm.flagless_constant(TEST, stub.code);
                let call = self.asm.call();
                self.aims.push((call, if taken { Aim::MissedTaken } else { Aim::Missed }));
                self.call_load(stub.loaded);
                self.asm.land(predicted);
                let site = self.asm.jump();
                self.asm.aim(site, back);
            }
            From::OtherTarget { sites, part, slot, from, back } => {
                sites.into_iter().for_each(|site| self.asm.aim(site, here));
                self.part = part;
                if self.source.predicts {
                    self.asm.flagless_constant(TEST, slot as u64);
                    self.asm.flagless_constant(SECOND, from);
                    let call = self.asm.call();
                    self.aims.push((call, Aim::PredictTarget));
                    let predicted = self.asm.flagless_if_zero();
                    self.miss(None);
                    self.asm.land(predicted);
                } else {
                    self.miss(Some((slot, from)));
                }
                let site = self.asm.jump();
                self.asm.aim(site, back);
            }
            From::Ask { site, asked, held, back } => {
                self.asm.aim(site, here);
                self.ask(stub.code, asked, held, stub.loaded, back);
            }
            From::Load { site, retry, need, part, at } => {
                self.asm.aim(site, here);
                self.call_load(need.bit());
                self.asm.flagless_load(TEST, need.word());
                refused.push((self.asm.flagless_jump_unless_zero(), part, at));
                let site = self.asm.jump();
                self.asm.aim(site, retry);
            }
        }
    }

    /// Emits the last instruction of a part out of line, after which the trace is left.
    fn end_at(&mut self, part: usize, key: Key) {
        (self.part, self.key) = (part, key);
        self.at = self.part().ops.len() - 1;
        self.let_go();
        self.counted = !self.source.recorded || self.part().way == Way::End;
        self.count();
        self.note_calls(part);
    }

    /// Returns the calls of the trace that have not returned before a part.
    pub(super) fn calls_before(&self, part: usize) -> Vec<usize> {
        let mut calls = Vec::new();
        for (number, part) in self.source.parts[..part].iter().enumerate() {
            match part.plans.last() {
                Some(Plan::Call | Plan::Indirect { call: true }) => calls.push(number),
                Some(Plan::Return) => drop(calls.pop()),
                _ => {}
            }
        }
        calls
    }

    /// Records the calls that have not returned before a part, for an exit from the trace inside a called function.
    fn note_calls(&mut self, part: usize) {
        for call in self.calls_before(part) {
            self.note_call(call);
        }
    }

    /// Executes the rest of a part by handlers, from the first refused instruction on. The execution has not been
    /// counted then: no part ends with a vector instruction after it.
    fn refuse(&mut self, part: usize, refused: &[(usize, usize, usize)]) {
        let here = |(_, number, at): &(usize, usize, usize)| (*number == part).then_some(*at);
        let Some(first) = refused.iter().filter_map(here).min() else { return };
        self.part = part;
        self.counted = !self.source.recorded;
        for at in first..self.part().ops.len() {
            let here = self.asm.here();
            let sites = refused.iter().filter(|(_, number, from)| (*number, *from) == (part, at));
            sites.for_each(|(site, ..)| self.asm.aim(*site, here));
            self.at = at;
            self.call_handler(self.slow_code());
        }
    }

    /// Calls the handler for an instruction, and returns as if it had been executed in line.
    fn by_handler(&mut self, stub: &Stub) {
        // While vector or x87 registers are loaded, compiled code cannot be called without storing them.
        match stub.access {
            Some(access) if stub.loaded == 0 => return self.refill(stub, access),
            _ => self.call_handler(stub.code),
        }
        match stub.back {
            Some(back) => {
                self.call_load(stub.loaded);
                self.jump_back(back);
            }
            // The instruction faults, or is the last: the handler does not return.
            None => self.asm.bytes(&UNREACHABLE),
        }
    }

    /// Makes an access possible and probes for it again, or calls the handler for the instruction.
    fn refill(&mut self, stub: &Stub, access: Probed) {
        match access.address {
            Linear::Register(at) if at == FIRST => {}
            Linear::Register(at) => self.asm.flagless_copy(FIRST, at),
            Linear::Constant(address) => self.asm.flagless_constant(FIRST, address),
        }
        let last = self.is_last(stub.code);
        let aim = if self.source.shift == PAGES {
            let writes = if access.write { WRITES } else { 0 };
            self.asm.flagless_constant(SECOND, u64::from(access.size as u32 | writes));
            self.asm.flagless_constant(TEST, stub.code);
            if last { Aim::RefillLast } else { Aim::Refill }
        } else {
            let number = self.source.access + self.accesses.len() as u32;
            self.accesses.push(Access::new(access.size as u32, access.write));
            self.access_codes.push(stub.code);
            self.asm.flagless_constant(TEST, number.into());
            if last { Aim::RefillLineLast } else { Aim::RefillLine }
        };
        let site = self.asm.call();
        self.aims.push((site, aim));
        let handled = self.asm.here();
        match stub.back {
            Some(back) => self.jump_back(back),
            None => {
                self.asm.bytes(&UNREACHABLE);
                self.asm.bytes(&UNREACHABLE);
                self.asm.bytes(&[NOP]);
            }
        }
        debug_assert_eq!(self.asm.here(), handled + AGAIN);
        let again = match access.again {
            Again::At(place) => place,
            Again::Apart { part, at } => self.places[part][at].1,
        };
        let site = self.asm.jump();
        self.asm.aim(site, again);
    }

    fn jump_back(&mut self, back: Back) {
        let site = self.asm.jump();
        self.asm.aim(site, self.back(back));
    }

    /// Resolves a return point.
    fn back(&self, back: Back) -> usize {
        match back {
            Back::At(place) => place,
            Back::After { part, at } => self.places[part][at + 1].0,
        }
    }

    pub(super) fn call_handler(&mut self, code: u64) {
        self.asm.flagless_constant(TEST, code);
        let site = self.asm.call();
        let last = self.is_last(code);
        self.aims.push((site, if last { Aim::Last } else { Aim::Slow }));
    }

    /// Returns true if the operation of a handler call is the last of its block.
    fn is_last(&self, code: u64) -> bool {
        self.source.parts.iter().any(|part| part.block.first + part.block.count == code as u32 + 1)
    }

    /// Loads the registers for these needs.
    pub(super) fn call_load(&mut self, needs: u8) {
        let x87 = needs & Need::X87.bit();
        // Loading the AVX-512 registers includes the others.
        let vectors = if needs & Need::WIDE != 0 { Aim::LoadWide } else { Aim::Load };
        for (needed, aim) in [(x87, Aim::LoadX87), (needs ^ x87, vectors)] {
            if needed != 0 {
                let site = self.asm.call();
                self.aims.push((site, aim));
            }
        }
    }
}
