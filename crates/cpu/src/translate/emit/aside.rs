//! What is out of line: calls of handlers, ways out of a trace, and what is seldom needed.

use super::{Aim, Emit};
use crate::predict::Target;
use crate::translate::Code;
use crate::translate::asm::{M, R};
use crate::translate::key::Key;
use crate::translate::layout::{BUDGET, Need, SECOND, TEST, field};
use crate::translate::plan::Plan;
use crate::translate::trace::{Miss, Part, Way};
use std::mem::offset_of;

/// Something out of line, and a way back.
pub(super) struct Stub {
    from: From,
    /// What [`slow`](crate::translate::dispatch::slow) is told.
    code: u64,
    back: Option<Back>,
    /// Needs of vector and x87 instructions that are met where it comes back.
    loaded: u8,
}

/// Where what is out of line comes back.
#[derive(Clone, Copy)]
pub(super) enum Back {
    /// Here.
    At(usize),
    /// After an operation of a part, where each operand is probed for.
    After { part: usize, at: usize },
}

/// How control comes to it.
pub(super) enum From {
    /// A jump with this distance field leads here.
    Jump(usize),
    /// A jump from where the trace is left after one of its parts, which is counted here.
    Side { site: usize, part: usize, taken: bool },
    /// The exit that a link leads to until it is linked.
    Link(usize),
    /// What the call at the end of a part says is where it is returned to.
    Landing { site: usize, part: usize },
    /// A jump from where a group of operands was not found, to where each is probed for.
    Apart { site: usize, part: usize, at: usize },
    /// A jump from a return that was not predicted.
    Unpredicted { site: usize, key: Key, part: usize, release: i32 },
    /// A jump from an indirect branch that goes elsewhere than its trace.
    Elsewhere { site: usize, key: Key, part: usize, call: bool },
    /// A jump to where a misprediction is charged, and the modelled target cache, if it is concerned, learns.
    Miss { site: usize, part: usize, learns: Option<(i32, u64)>, hit: usize },
    /// A jump to where vector registers or the x87 unit are loaded; back to try again if the need is met, else to the handlers of the rest of the block.
    Load { site: usize, retry: usize, need: Need, part: usize, at: usize },
}

/// What is out of line of a check of a page: where else it may be, and what happens if it is not known.
pub(super) struct OtherPage {
    pub(super) site: usize,
    pub(super) otherwise: Option<(u64, M)>,
    pub(super) lost: Lost,
    pub(super) back: usize,
}

/// What happens if a page is not known.
#[derive(Clone, Copy)]
pub(super) enum Lost {
    /// The trace is not entered.
    Head { due: usize },
    /// It is left after this part.
    After(usize),
}

impl Emit<'_> {
    /// Puts something out of line.
    pub(super) fn aside(&mut self, from: From) -> &mut Stub {
        let number = self.stubs.len();
        self.stubs.push(Stub { from, code: 0, back: None, loaded: 0 });
        &mut self.stubs[number]
    }

    /// The other places where checked pages may be, and what happens if they are in none.
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
            let found = self.holds(otherwise);
            let away = self.asm.jump();
            self.asm.aim(away, due);
            self.asm.land(found);
            let on = self.asm.jump();
            self.asm.aim(on, back);
        }
    }

    /// Leaves the trace after a part for where it goes on.
    fn lose(&mut self, part: usize) -> usize {
        let here = self.asm.here();
        self.part = part;
        self.counted = !self.source.recorded;
        self.count();
        self.note_calls(part + 1);
        self.asm.flagless_constant(TEST, self.following());
        self.asm.flagless_store(field!(wanted), TEST);
        let site = self.asm.jump();
        self.aims.push((site, Aim::Return));
        here
    }

    /// Goes on if `TEST` is zero; else operands are probed for one by one from the instruction at hand on.
    pub fn or_apart(&mut self) {
        let hit = self.asm.flagless_if_zero();
        let from = From::Apart { site: self.asm.jump(), part: self.part, at: self.at };
        self.asm.land(hit);
        self.aside(from);
    }

    /// A jump to where the handler runs the instruction at hand, which then goes on at what [`Emit::back_here`] says.
    pub fn otherwise(&mut self) -> usize {
        let site = self.asm.jump();
        let (code, loaded) = (self.slow_code(), self.loaded);
        let stub = self.aside(From::Jump(site));
        (stub.code, stub.loaded) = (code, loaded);
        self.stubs.len() - 1
    }

    /// Charges a misprediction unless `TEST` is zero; `learns` is where the target cache has the branch, and its address.
    pub fn miss_unless_zero(&mut self, learns: Option<(i32, u64)>) {
        let hit = self.asm.flagless_if_zero();
        let site = self.asm.jump();
        self.asm.land(hit);
        let from = From::Miss { site, part: self.part, learns, hit: self.asm.here() };
        self.aside(from);
    }

    /// Charges a misprediction, from which the target cache learns.
    pub fn miss(&mut self, learns: Option<(i32, u64)>) {
        let Some(Miss { counter, ticks }) = self.part().miss else { return };
        self.count_under(counter);
        self.asm.flagless_lea(BUDGET, M::at(BUDGET, ticks));
        if let Some((slot, from)) = learns {
            self.asm.flagless_load(SECOND, field!(targets));
            self.asm.flagless_constant(TEST, from);
            self.asm.flagless_store(M::at(SECOND, slot + offset_of!(Target, from) as i32), TEST);
            self.asm.flagless_load(TEST, field!(wanted));
            self.asm.flagless_store(M::at(SECOND, slot + offset_of!(Target, to) as i32), TEST);
        }
    }

    /// A jump to where the vector registers, or the x87 unit, are loaded.
    pub fn load_and(&mut self, retry: usize, need: Need) {
        let site = self.asm.jump();
        let from = From::Load { site, retry, need, part: self.part, at: self.at };
        self.aside(from);
    }

    /// The place to which a stub comes back, after the instruction at hand: its handler may have changed what was known of groups.
    pub fn back_here(&mut self, stub: impl Into<Option<usize>>) {
        let Some(stub) = stub.into() else { return };
        self.stubs[stub].back = Some(match self.groups {
            Some(_) => Back::After { part: self.part, at: self.at },
            None => Back::At(self.asm.here()),
        });
    }

    /// The address of what the call at the end of a part is returned to, in `TEST`.
    pub fn landing(&mut self, part: usize) -> R {
        let from = From::Landing { site: self.asm.flagless_place(TEST), part };
        self.aside(from);
        TEST
    }

    /// Goes on if `TEST` is zero; else the return at hand was not predicted.
    pub fn or_unpredicted(&mut self, release: i32) {
        let hit = self.asm.flagless_if_zero();
        let from = From::Unpredicted { site: self.asm.jump(), key: self.key, part: self.part, release };
        self.asm.land(hit);
        self.aside(from);
    }

    /// Goes on if `TEST` is zero; else the indirect branch at hand goes elsewhere than its trace.
    pub fn or_elsewhere(&mut self, call: bool) {
        let hit = self.asm.flagless_if_zero();
        let from = From::Elsewhere { site: self.asm.jump(), key: self.key, part: self.part, call };
        self.asm.land(hit);
        let loaded = self.loaded;
        self.aside(from).loaded = loaded;
    }

    /// Everything that has been put out of line.
    pub(super) fn out_of_line(&mut self) {
        self.check_other_pages();
        let mut refused = Vec::new();
        // What is out of line may leave more to be put there.
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
            From::Side { site, part, taken } => {
                self.asm.aim(site, here);
                self.part = part;
                self.counted = !self.source.recorded;
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
                // The return has its key's number in `TEST`.
                self.asm.flagless_lea32(TEST, M::at(TEST, -(key.index() as i32)));
                let same = self.asm.flagless_if_zero();
                let other = self.asm.jump();
                self.aims.push((other, Aim::Return));
                self.asm.land(same);
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
                // It was possible before.
                self.indirect(call);
            }
            From::Miss { site, part, learns, hit } => {
                self.asm.aim(site, here);
                self.part = part;
                self.miss(learns);
                let site = self.asm.jump();
                self.asm.aim(site, hit);
            }
            From::Load { site, retry, need, part, at } => {
                self.asm.aim(site, here);
                self.call_load(need.bit());
                self.asm.flagless_load(TEST, need.word());
                let met = self.asm.flagless_if_zero();
                refused.push((self.asm.jump(), part, at));
                self.asm.land(met);
                let site = self.asm.jump();
                self.asm.aim(site, retry);
            }
        }
    }

    /// Out of line, the last instruction of a part, after which the trace is left.
    fn end_at(&mut self, part: usize, key: Key) {
        (self.part, self.key) = (part, key);
        self.at = self.part().ops.len() - 1;
        self.let_go();
        self.counted = !self.source.recorded || self.part().way == Way::End;
        self.count();
        self.note_calls(part);
    }

    /// The calls of the trace that have not returned before a part.
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

    /// Notes the calls that have not returned before a part, where the trace is left in a function that it called.
    fn note_calls(&mut self, part: usize) {
        for call in self.calls_before(part) {
            self.note_call(call);
        }
    }

    /// The rest of a part by handlers, from the first instruction on that was refused. What is executed has not been counted
    /// then: no part ends with a vector instruction after that.
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

    /// Has the handler run an instruction, and comes back as if it had been run in line.
    fn by_handler(&mut self, stub: &Stub) {
        self.call_handler(stub.code);
        match stub.back {
            Some(back) => {
                self.call_load(stub.loaded);
                let site = self.asm.jump();
                self.asm.aim(site, self.back(back));
            }
            // It faults, or is the last: it does not come back.
            None => self.asm.bytes(&[0x0f, 0x0b]),
        }
    }

    /// Where it is that something comes back to.
    fn back(&self, back: Back) -> usize {
        match back {
            Back::At(place) => place,
            Back::After { part, at } => self.places[part][at + 1].0,
        }
    }

    pub(super) fn call_handler(&mut self, code: u64) {
        self.asm.flagless_constant(TEST, code);
        let site = self.asm.call();
        let ends = |part: &Part| part.block.first + part.block.count == code as u32 + 1;
        let last = self.source.parts.iter().any(ends);
        self.aims.push((site, if last { Aim::Last } else { Aim::Slow }));
    }

    /// Loads what these needs are about.
    fn call_load(&mut self, needs: u8) {
        let x87 = needs & Need::X87.bit();
        // What loads the registers of AVX-512 loads the others.
        let vectors = if needs & Need::WIDE != 0 { Aim::LoadWide } else { Aim::Load };
        for (needed, aim) in [(x87, Aim::LoadX87), (needs ^ x87, vectors)] {
            if needed != 0 {
                let site = self.asm.call();
                self.aims.push((site, aim));
            }
        }
    }
}
