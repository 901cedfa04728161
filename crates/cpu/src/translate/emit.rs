//! Emitting one trace: its head, the instructions of its blocks one after the other, and what is out of line.

use super::address::{NO_OFFSET, Operand, Page};
use super::asm::{Asm, Forward, M, R};
use super::layout::{BUDGET, FIRST, SECOND, TEST, field, host, memory_register};
use super::layout::{fetch, large};
use super::plan::Plan;
use super::run::Place;
use super::trace::Part;
use super::vector::Need;
use super::{Code, fix, vector};
use crate::front::{large_signature, signature};
use crate::op::{NO_REG, Op};
use crate::predict::Target;
use crate::ram::PAGE;
use iced_x86::{Encoder, EncodingKind, Instruction, InstructionInfoFactory, OpAccess, OpKind, Register};
use ledger::Ticks;
use std::mem::offset_of;

/// Who may access what, as far as translations differ by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// CPL 3.
    User = 0,
    /// CPL 0, without SMAP.
    Supervisor = 1,
    /// CPL 0, with SMAP and RFLAGS.AC clear.
    SupervisorOnly = 2,
    /// CPL 0, with SMAP and RFLAGS.AC set.
    Override = 3,
}

/// What a translation is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Who may access what.
    pub access: Access,
    /// 32-bit code with flat segments, else 64-bit code.
    pub narrow: bool,
}

/// How many there are.
pub const KEYS: usize = 8;

impl Key {
    /// A number below [`KEYS`]; those of 32-bit code are the upper half.
    pub fn index(self) -> usize {
        self.access as usize + if self.narrow { KEYS / 2 } else { 0 }
    }

    /// The table of [`Area::tables`](crate::front::Area::tables).
    pub fn table(self) -> usize {
        match self.access {
            Access::User => 0,
            Access::Supervisor | Access::Override => 1,
            Access::SupervisorOnly => 2,
        }
    }

    fn after(self, access_control: bool) -> Self {
        let access = match (self.access, access_control) {
            (Access::SupervisorOnly | Access::Override, true) => Access::Override,
            (Access::SupervisorOnly | Access::Override, false) => Access::SupervisorOnly,
            (other, _) => other,
        };
        Self { access, ..self }
    }
}

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
pub struct Event {
    /// See [`Miss::counter`].
    pub counter: Option<u32>,
    /// Its price.
    pub ticks: u32,
}

/// What to translate.
pub struct Source<'a> {
    /// The number of the translation.
    pub number: u32,
    /// The blocks, in the order of execution.
    pub parts: &'a [Part],
    /// Its page is part of a large one, most likely.
    pub large: bool,
    /// Under which access it runs.
    pub key: Key,
    /// Executions are counted, and predictors modelled.
    pub recorded: bool,
    /// Slots of the modelled target cache.
    pub target_slots: usize,
    /// How mispredictions of the last instruction are charged.
    pub miss: Option<Miss>,
    /// Each x87 instruction notes its operand's address.
    pub data_pointers: bool,
    /// Bits of IA32_SPEC_CTRL that exist.
    pub spec_ctrl: u64,
}

impl Source<'_> {
    /// Time between the beginnings of the first block and the last.
    pub fn span(&self) -> Ticks {
        let before = &self.parts[..self.parts.len() - 1];
        before.iter().map(Part::time).sum()
    }
}

/// Why translated code left, as it says in its exit code: see [`Code`].
#[derive(Clone, Copy, Debug)]
pub enum Aim {
    /// [`super::entry::slow`].
    Slow,
    /// [`super::entry::last`].
    Last,
    /// [`super::entry::exit`].
    Exit,
    /// Likewise, with [`Code::Return`].
    Return,
    /// [`super::entry::load`].
    Load,
    /// [`super::x87::load`].
    LoadX87,
}

/// Something out of line, and a way back.
struct Stub {
    from: From,
    /// What [`super::run::slow`] is told.
    code: u64,
    back: Option<usize>,
    /// Needs of vector and x87 instructions that are met where it comes back.
    loaded: u8,
}

enum From {
    /// A jump with this distance field leads here.
    Jump(usize),
    /// A jump from where the trace is left after one of its parts, which is counted here.
    Side { site: usize, part: usize, taken: bool },
    /// The exit that a link leads to until it is linked.
    Link(usize),
    /// What a call says is where it is returned to, in code for this key.
    Landing { site: usize, key: Key },
    /// A jump from a return that was not predicted.
    Unpredicted { site: usize, release: i32 },
    /// A jump to where an operand is probed for again, wholly; back if it is found.
    Again { site: usize, operand: Operand, hit: usize },
    /// A jump to where a misprediction is charged, and the modelled target cache, if it is concerned, learns.
    Miss { site: usize, learns: Option<(i32, u64)>, hit: usize },
    /// A jump to where vector registers or the x87 unit are loaded; back if the need is met, else to the handlers of the rest of the block.
    Load { site: usize, need: Need, part: usize, at: usize },
}

/// A jump that leads to another translation once it is linked.
#[derive(Clone, Copy)]
pub struct Link {
    /// Its distance field.
    pub site: usize,
    /// Where it leads until then.
    pub stub: usize,
    /// The block that ends here.
    pub index: u32,
    /// It ends with a jump to its target, else with its next instruction.
    pub taken: bool,
    /// Something else may have come in between.
    pub far: bool,
}

/// What is out of line of a check of a page.
struct OtherPage {
    site: usize,
    otherwise: Option<(u64, M)>,
    due: usize,
    back: usize,
}

/// What came out.
#[derive(Default)]
pub struct Emitted {
    /// The code.
    pub code: Vec<u8>,
    /// Distances to fill in once its place is known.
    pub aims: Vec<(usize, Aim)>,
    /// Where it is entered when its page must be checked.
    pub checked: usize,
    /// Where it is entered otherwise.
    pub head: usize,
    /// Where it is entered when nothing more may come before it.
    pub begin: usize,
    /// Where it leaves when something is due.
    pub due: usize,
    /// Where what is out of line begins.
    pub stubs: usize,
    /// Its ways out.
    pub links: Vec<Link>,
}

/// The emitter.
pub struct Emit<'a> {
    /// The code.
    pub asm: Asm,
    /// The block.
    pub source: &'a Source<'a>,
    encoder: &'a mut Encoder,
    factory: &'a mut InstructionInfoFactory,
    /// Under which access the instruction at hand runs.
    pub key: Key,
    stubs: Vec<Stub>,
    pages: Vec<OtherPage>,
    aims: Vec<(usize, Aim)>,
    links: Vec<Link>,
    /// The part of the trace at hand.
    part: usize,
    /// What has been executed so far has been counted.
    counted: bool,
    /// The instruction at hand.
    pub at: usize,
    /// Needs of vector and x87 instructions that are known to be met.
    pub loaded: u8,
    /// What the last probe left in the scratch registers.
    pub page: Option<Page>,
}

/// Translates a trace.
pub fn emit(source: &Source, encoder: &mut Encoder, factory: &mut InstructionInfoFactory) -> Emitted {
    let mut emit = Emit {
        asm: Asm { code: Vec::with_capacity(512) },
        source,
        encoder,
        factory,
        key: source.key,
        stubs: Vec::new(),
        pages: Vec::new(),
        aims: Vec::new(),
        links: Vec::new(),
        part: 0,
        counted: !source.recorded,
        at: 0,
        loaded: 0,
        page: None,
    };
    emit.trace()
}

impl<'a> Emit<'a> {
    fn trace(&mut self) -> Emitted {
        let (checked, due, head, begin) = self.head();
        for number in 0..self.source.parts.len() {
            self.part = number;
            self.charge();
            self.block();
        }
        let stubs = self.asm.here();
        self.out_of_line();
        Emitted {
            code: std::mem::take(&mut self.asm.code),
            aims: std::mem::take(&mut self.aims),
            checked,
            head,
            begin,
            due,
            stubs,
            links: std::mem::take(&mut self.links),
        }
    }

    /// The instructions of a part.
    fn block(&mut self) {
        let part = self.part();
        let behind = part.plans.len() - 1;
        let mut handled = false;
        for (at, plan) in part.plans.iter().enumerate() {
            self.at = at;
            match (part.way, plan) {
                (Way::Taken, Plan::Jump) if at == behind => return,
                (way @ (Way::Taken | Way::Next), Plan::Branch) if at == behind => return self.stay(way),
                (Way::End, plan) if at == behind && (plan.leaves() || *plan == Plan::Handler) => self.count(),
                _ => {}
            }
            handled = !self.one(*plan);
            if handled {
                self.handler();
            }
            if let Plan::AccessControl { set } = plan {
                self.key = self.key.after(*set);
            }
        }
        // A handler at the end leaves.
        if part.way == Way::End && !handled && !part.plans.last().is_some_and(|plan| plan.leaves()) {
            self.count();
            self.link(false, None);
        }
    }

    /// The checks on entry.
    fn head(&mut self) -> (usize, usize, usize, usize) {
        let Part { index, block, .. } = &self.source.parts[0];
        let due = self.asm.here();
        self.asm.flagless_constant(TEST, u64::from(Code::Head { index: *index }.encode()));
        let site = self.asm.jump();
        self.aims.push((site, Aim::Exit));
        let checked = self.asm.here();
        self.check_page(block.rip, block.physical, due);
        let head = self.asm.here();
        // Nothing may be due before any of the blocks.
        let begins = match self.source.span() {
            0 => BUDGET,
            span => {
                self.asm.flagless_lea(TEST, M::at(BUDGET, span as i32));
                TEST
            }
        };
        self.asm.flagless_rotate(true, TEST, begins, 32);
        self.asm.flagless_if_zero32_back(due);
        if block.second != 0 {
            self.check_page((block.rip & !(PAGE - 1)).wrapping_add(PAGE), block.second, due);
        }
        (checked, due, head, self.asm.here())
    }

    /// Charges the part at hand.
    fn charge(&mut self) {
        self.asm.flagless_lea(BUDGET, M::at(BUDGET, self.part().block.cost as i32));
    }

    /// Counts what has been executed, the part at hand included, unless that has been done.
    fn count(&mut self) {
        if !self.counted {
            self.counted = true;
            self.page = None;
            self.count_under(self.part().counter);
        }
    }

    /// What the instruction at hand charges besides its class.
    pub fn event(&self) -> Option<Event> {
        self.part().events[self.at]
    }

    /// Adds one to a counter.
    pub fn count_under(&mut self, counter: u32) {
        let count = M::at(TEST, 4 * counter as i32);
        self.asm.flagless_load(TEST, field!(counts));
        self.asm.flagless_load32(SECOND, count);
        self.asm.flagless_lea32(SECOND, M::at(SECOND, 1));
        self.asm.flagless_store32(count, SECOND);
    }

    /// Goes on if a page is known to be where it was, on its own or, if it can be, in a large page: the less likely of the two is
    /// looked at out of line.
    fn check_page(&mut self, linear: u64, physical: u64, due: usize) {
        let user = self.source.key.access == Access::User;
        let small = (signature(linear, physical, user).0, fetch(linear));
        let whole = (large_signature(linear, physical, user).0, large(linear));
        let either = (linear ^ physical) & ((1 << 21) - 1) & !(PAGE - 1) == 0;
        let (likely, otherwise) = match (either, self.source.large) {
            (false, _) => (small, None),
            (true, false) => (small, Some(whole)),
            (true, true) => (whole, Some(small)),
        };
        let found = self.holds(likely);
        let site = self.asm.jump();
        self.asm.land(found);
        self.pages.push(OtherPage { site, otherwise, due, back: self.asm.here() });
    }

    /// Whether a slot for pages of code holds a signature: a jump from where it does.
    fn holds(&mut self, (signature, slot): (u64, M)) -> Forward {
        self.asm.flagless_constant(FIRST, signature.wrapping_neg());
        self.asm.flagless_load(TEST, slot);
        self.asm.flagless_lea(TEST, M::indexed(TEST, FIRST, 0, 0));
        self.asm.flagless_if_zero()
    }

    fn check_other_pages(&mut self) {
        for OtherPage { site, otherwise, due, back } in std::mem::take(&mut self.pages) {
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

    /// Emits an instruction; `false`: its handler must run it.
    fn one(&mut self, plan: Plan) -> bool {
        let before = (self.asm.here(), self.stubs.len(), self.aims.len(), self.links.len(), self.loaded);
        let page = self.page;
        let done = match plan {
            Plan::Handler => false,
            Plan::Nothing => true,
            Plan::Native | Plan::Fixed | Plan::Vector => self.general(plan == Plan::Fixed),
            Plan::X87 => self.x87(),
            Plan::Lea => self.lea(),
            Plan::Push => self.push(),
            Plan::PushFlags => self.push_flags(),
            Plan::MaskInterrupts => self.mask_interrupts(),
            Plan::AccessControl { set } => self.access_control(set),
            Plan::BitInMemory => self.bit_in_memory(),
            Plan::EnableInterrupts => self.enable_interrupts(),
            Plan::ReadTime => self.read_time(),
            Plan::ReadControl => self.read_control(),
            Plan::SwapBases => self.swap_bases(),
            Plan::WriteMsr => self.write_msr(),
            Plan::Selector => self.selector(),
            Plan::CompareExchange16 => self.compare_exchange_16(),
            Plan::Divide { keeps_flags } => self.divide(keeps_flags),
            Plan::String => self.string(),
            Plan::Pop => self.pop(),
            Plan::Leave => self.leave(),
            Plan::Branch => self.branch(),
            Plan::Jump => {
                self.link(true, None);
                true
            }
            Plan::Call => self.call(),
            Plan::Return => self.ret(),
            Plan::Indirect { call } => self.indirect(call),
        };
        // The other plans leave something else in the scratch registers.
        let keeps = matches!(
            plan,
            Plan::Nothing
                | Plan::Native
                | Plan::Fixed
                | Plan::Vector
                | Plan::X87
                | Plan::Lea
                | Plan::Push
                | Plan::Pop
                | Plan::Leave
        );
        if !keeps {
            self.page = None;
        }
        if !done {
            self.asm.code.truncate(before.0);
            self.stubs.truncate(before.1);
            self.aims.truncate(before.2);
            self.links.truncate(before.3);
            self.loaded = before.4;
            self.page = page;
        }
        done
    }

    /// The part of the trace at hand.
    pub fn part(&self) -> &'a Part {
        &self.source.parts[self.part]
    }

    /// The operation of the instruction at hand.
    pub fn op(&self) -> &Op {
        &self.part().ops[self.at]
    }

    /// The instruction at hand.
    pub fn instruction(&self) -> &Instruction {
        &self.part().instructions[self.at]
    }

    /// Number of the instruction at hand's operation.
    pub fn number(&self) -> u32 {
        self.part().block.first + self.at as u32
    }

    /// What a handler is called with: the number of the operation, and above it its place, if that matters.
    fn slow_code(&self) -> u64 {
        let mut place = Place { inside: self.part().way != Way::End, uncounted: !self.counted, ..Place::default() };
        if place.uncounted && self.part > 0 {
            (place.number, place.part) = (self.source.number, self.part);
        }
        u64::from(place.encode()) << 32 | u64::from(self.number())
    }

    /// Has the handler run the instruction at hand.
    fn handler(&mut self) {
        self.page = None;
        self.loaded = 0;
        self.call_handler(self.slow_code());
    }

    /// A jump to where the handler runs the instruction at hand, which then goes on at what [`Emit::back_here`] says.
    pub fn otherwise(&mut self) -> usize {
        let site = self.asm.jump();
        self.stubs.push(Stub { from: From::Jump(site), code: self.slow_code(), back: None, loaded: self.loaded });
        self.stubs.len() - 1
    }

    /// A jump to where the operand at hand is probed for again. It comes back after the jump.
    pub fn probe_again(&mut self, operand: Operand) -> usize {
        let site = self.asm.jump();
        let from = From::Again { site, operand, hit: self.asm.here() };
        self.stubs.push(Stub { from, code: self.slow_code(), back: None, loaded: self.loaded });
        self.stubs.len() - 1
    }

    /// Charges a misprediction unless `TEST` is zero; `learns` is where the target cache has the branch, and its address.
    pub fn miss_unless_zero(&mut self, learns: Option<(i32, u64)>) {
        let hit = self.asm.flagless_if_zero();
        let site = self.asm.jump();
        self.asm.land(hit);
        let from = From::Miss { site, learns, hit: self.asm.here() };
        self.stubs.push(Stub { from, code: 0, back: None, loaded: 0 });
    }

    pub fn miss(&mut self, learns: Option<(i32, u64)>) {
        let Some(Miss { counter, ticks }) = self.source.miss else { return };
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
        let from = From::Load { site, need, part: self.part, at: self.at };
        self.stubs.push(Stub { from, code: 0, back: Some(retry), loaded: 0 });
    }

    /// The place to which a stub comes back.
    pub fn back_here(&mut self, stub: usize) {
        self.stubs[stub].back = Some(self.asm.here());
    }

    /// Goes on at a known place: the branch target or the next instruction. With a condition, if it holds.
    pub fn link(&mut self, taken: bool, condition: Option<u8>) {
        let site = match condition {
            Some(condition) => self.asm.jump_if(condition),
            None => self.asm.jump(),
        };
        self.stubs.push(Stub { from: From::Link(self.links.len()), code: 0, back: None, loaded: 0 });
        self.links.push(Link { site, stub: 0, index: self.part().index, taken, far: false });
    }

    /// The address of what the call at hand is returned to, in `TEST`.
    pub fn landing(&mut self) -> R {
        let from = From::Landing { site: self.asm.flagless_place(TEST), key: self.key };
        self.stubs.push(Stub { from, code: 0, back: None, loaded: 0 });
        TEST
    }

    /// Goes on if `TEST` is zero; else the return at hand was not predicted.
    pub fn or_unpredicted(&mut self, release: i32) {
        let hit = self.asm.flagless_if_zero();
        let from = From::Unpredicted { site: self.asm.jump(), release };
        self.asm.land(hit);
        self.stubs.push(Stub { from, code: 0, back: None, loaded: 0 });
    }

    /// A conditional jump after which the trace goes on one way.
    fn stay(&mut self, way: Way) {
        let taken = way == Way::Next;
        let condition = self.condition() ^ u8::from(!taken);
        if self.counted {
            self.link(taken, Some(condition));
        } else {
            let site = self.asm.jump_if(condition);
            let from = From::Side { site, part: self.part, taken };
            self.stubs.push(Stub { from, code: 0, back: None, loaded: 0 });
        }
    }

    fn out_of_line(&mut self) {
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
                self.count_under(self.part().counter);
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
            From::Landing { site, key } => {
                self.asm.aim(site, here);
                // The return has its key's number in `TEST`.
                self.asm.flagless_lea32(TEST, M::at(TEST, -(key.index() as i32)));
                let same = self.asm.flagless_if_zero();
                let other = self.asm.jump();
                self.aims.push((other, Aim::Return));
                self.asm.land(same);
                self.part = self.source.parts.len() - 1;
                self.link(false, None);
                if let Some(link) = self.links.last_mut() {
                    link.far = true;
                }
            }
            From::Unpredicted { site, release } => {
                self.asm.aim(site, here);
                self.part = self.source.parts.len() - 1;
                self.at = self.part().ops.len() - 1;
                self.unpredicted(release);
            }
            From::Again { site, operand, hit } => {
                self.asm.aim(site, here);
                self.find(operand);
                self.asm.flagless_shift_right(TEST, FIRST, R::RSP);
                let missed = self.asm.flagless_if_zero();
                self.by_handler(stub);
                self.asm.land(missed);
                let site = self.asm.jump();
                self.asm.aim(site, hit);
            }
            From::Miss { site, learns, hit } => {
                self.asm.aim(site, here);
                self.miss(learns);
                let site = self.asm.jump();
                self.asm.aim(site, hit);
            }
            From::Load { site, need, part, at } => {
                self.asm.aim(site, here);
                self.call_load(need.bit());
                self.asm.flagless_constant(FIRST, NO_OFFSET);
                self.asm.flagless_load(TEST, need.word());
                let met = self.asm.flagless_if_zero();
                refused.push((self.asm.jump(), part, at));
                self.asm.land(met);
                let site = self.asm.jump();
                self.asm.aim(site, stub.back.unwrap_or(here));
            }
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
                self.asm.flagless_constant(FIRST, NO_OFFSET);
                let site = self.asm.jump();
                self.asm.aim(site, back);
            }
            // It faults, or is the last: it does not come back.
            None => self.asm.bytes(&[0x0f, 0x0b]),
        }
    }

    fn call_handler(&mut self, code: u64) {
        self.asm.flagless_constant(TEST, code);
        let site = self.asm.call();
        let ends = |part: &Part| part.block.first + part.block.count == code as u32 + 1;
        let last = self.source.parts.iter().any(ends);
        self.aims.push((site, if last { Aim::Last } else { Aim::Slow }));
    }

    /// Loads what these needs are about.
    fn call_load(&mut self, needs: u8) {
        let x87 = needs & Need::X87.bit();
        for (needed, aim) in [(x87, Aim::LoadX87), (needs ^ x87, Aim::Load)] {
            if needed != 0 {
                let site = self.asm.call();
                self.aims.push((site, aim));
            }
        }
    }

    /// Encodes an instruction on host registers. `false`: it cannot be.
    pub fn native(&mut self, i: &Instruction) -> bool {
        let buffer = std::mem::take(&mut self.asm.code);
        let before = buffer.len();
        self.encoder.set_buffer(buffer);
        let encoded = self.encoder.encode(i, 0).is_ok();
        self.asm.code = self.encoder.take_buffer();
        if !encoded {
            self.asm.code.truncate(before);
        }
        encoded
    }

    /// `mov to, from`.
    pub fn copy(&mut self, wide: bool, to: R, from: R) {
        self.two(wide, 0x89, from, to);
    }

    /// `add to, from`.
    pub fn add(&mut self, wide: bool, to: R, from: R) {
        self.two(wide, 0x01, from, to);
    }

    /// `xor to, from`.
    pub fn xor(&mut self, wide: bool, to: R, from: R) {
        self.two(wide, 0x31, from, to);
    }

    /// `test at, at`.
    pub fn test(&mut self, wide: bool, at: R) {
        self.two(wide, 0x85, at, at);
    }

    /// `shr at, count`.
    pub fn shift_right(&mut self, wide: bool, at: R, count: u8) {
        self.two(wide, 0xc1, R(5), at);
        self.asm.code.push(count);
    }

    fn two(&mut self, wide: bool, opcode: u8, reg: R, rm: R) {
        let rex = 0x40 | u8::from(wide) << 3 | (reg.0 >> 3) << 2 | rm.0 >> 3;
        self.asm.bytes(&[rex, opcode, 0xc0 | (reg.0 & 7) << 3 | rm.0 & 7]);
    }

    /// An instruction that the host executes with other operands.
    fn general(&mut self, fixed: bool) -> bool {
        let mut i = *self.instruction();
        let memory = (0..i.op_count()).find(|&n| i.op_kind(n) == OpKind::Memory);
        let (accesses, written): ([OpAccess; 5], u16) = {
            let info = self.factory.info(&i);
            let written = info.used_registers().iter().filter(|used| writes(used.access()) && used.register().is_gpr());
            let written = written.fold(0, |set, used| set | 1 << used.register().full_register().number());
            (std::array::from_fn(|n| info.op_access(n as u32)), written)
        };
        let need = vector::need(&i, self.op());
        if let Some(need) = need {
            self.ready(need);
        }
        let by_cl = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Register && i.op_register(n) == Register::CL);
        let shift = by_cl && is_shift(&i);
        if shift && memory.is_some() {
            return false;
        }
        let stub = match memory {
            Some(n) => match self.probe(writes(accesses[n as usize])) {
                Some(stub) => Some(stub),
                None => return false,
            },
            None => None,
        };
        if need.is_some() && memory.is_some() {
            let vex = i.code().encoding() == EncodingKind::VEX;
            let mask = crate::exec::vector::form::align(&i, vex);
            if mask != 0 {
                self.aligned(mask, i.memory_size().size() as i32);
            }
        }
        // After a probe the two others hold the address.
        let mut free: &[R] = if memory.is_some() { &[TEST] } else { &[FIRST, SECOND, TEST] };
        if shift {
            free = &[FIRST, SECOND];
        } else if fixed {
            free = &[TEST];
        }
        let mut loaded: [(u8, R, bool); 3] = [(0, TEST, false); 3];
        let mut used = 0;
        for n in 0..i.op_count() {
            if i.op_kind(n) != OpKind::Register {
                continue;
            }
            let register = i.op_register(n);
            if register.is_vector_register() {
                continue;
            }
            if shift && n > 0 && register == Register::CL {
                self.asm.flagless_copy(TEST, R::R9);
                continue;
            }
            let guest = register.full_register().number() as u8;
            let written = writes(accesses[n as usize]);
            let at = match host(guest) {
                Some(at) => at,
                None => match loaded[..used].iter_mut().find(|(number, ..)| *number == guest) {
                    Some((_, at, stored)) => {
                        *stored |= written;
                        *at
                    }
                    None => {
                        let Some(at) = free.get(used).copied() else { return false };
                        loaded[used] = (guest, at, written);
                        used += 1;
                        let whole = accesses[n as usize] == OpAccess::Write && register.size() >= 4;
                        let again = (n + 1..i.op_count()).any(|m| {
                            i.op_kind(m) == OpKind::Register
                                && i.op_register(m).full_register() == register.full_register()
                        });
                        if !whole || again {
                            self.asm.flagless_load(at, memory_register(guest));
                        }
                        at
                    }
                },
            };
            let Some(renamed) = rename(register, at) else { return false };
            i.set_op_register(n, renamed);
        }
        if memory.is_some() {
            let size = i.memory_size().size() as i64;
            i.set_memory_base(FIRST.named());
            i.set_memory_index(SECOND.named());
            i.set_memory_index_scale(1);
            i.set_memory_displacement64((1 - size) as u64);
            i.set_memory_displ_size(u32::from(size != 1));
            i.set_segment_prefix(Register::None);
        }
        // 32-bit code has shorter forms.
        match i.code() {
            iced_x86::Code::Inc_r32 => i.set_code(iced_x86::Code::Inc_rm32),
            iced_x86::Code::Dec_r32 => i.set_code(iced_x86::Code::Dec_rm32),
            _ => {}
        }
        // All processors run on one thread of the host: nothing comes between a read and its write.
        i.set_has_lock_prefix(false);
        i.set_has_rep_prefix(false);
        i.set_has_repne_prefix(false);
        i.set_has_xacquire_prefix(false);
        i.set_has_xrelease_prefix(false);
        let encoded = if fixed { fix::fix(self, &i) } else { self.native(&i) };
        if !encoded {
            return false;
        }
        for (guest, at, stored) in &loaded[..used] {
            if *stored {
                self.asm.flagless_store(memory_register(*guest), *at);
            }
        }
        let clobbers = fixed || memory.is_none() && (loaded[..used].iter().any(|(_, at, _)| *at != TEST));
        if clobbers || self.page.is_some_and(|page| written >> page.base & 1 != 0) {
            self.page = None;
        }
        if let Some(stub) = stub {
            self.back_here(stub);
        }
        true
    }

    /// LEA: the address as it is.
    fn lea(&mut self) -> bool {
        let register = self.instruction().op0_register();
        let guest = register.number() as u8;
        if register.size() < 4 {
            return false;
        }
        let to = host(guest).unwrap_or(FIRST);
        let op = self.op();
        let pinned = |register: u8| register == NO_REG || host(register).is_some();
        if !(pinned(op.base) && pinned(op.index)) || to == FIRST || self.page.is_some_and(|page| page.base == guest) {
            self.page = None;
        }
        if !self.address(to, register.size() == 4, false) {
            return false;
        }
        if host(guest).is_none() {
            self.asm.flagless_store(memory_register(guest), to);
        }
        true
    }
}

fn writes(access: OpAccess) -> bool {
    matches!(access, OpAccess::Write | OpAccess::ReadWrite | OpAccess::CondWrite | OpAccess::ReadCondWrite)
}

fn is_shift(i: &Instruction) -> bool {
    use iced_x86::Mnemonic::*;
    matches!(i.mnemonic(), Shl | Sal | Shr | Sar | Rol | Ror | Shld | Shrd)
}

/// The part of a host register that corresponds to a guest register.
fn rename(register: Register, to: R) -> Option<Register> {
    let number = u32::from(to.0);
    match register.size() {
        8 => Some(Register::RAX + number),
        4 => Some(Register::EAX + number),
        2 => Some(Register::AX + number),
        _ => match register {
            // These stay where they are.
            Register::AH | Register::DH | Register::BH => Some(register),
            Register::CH => None,
            _ if number < 4 => Some(Register::AL + number),
            _ => Some(Register::SPL + (number - 4)),
        },
    }
}
