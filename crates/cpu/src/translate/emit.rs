//! Code emission for one trace: its head, and the instructions of its blocks in order.

mod aside;
mod code;
mod general;

use super::Code;
use super::accesses::Access;
use super::asm::{Asm, M, R};
use super::group::{Groups, Member, Which};
use super::key::{AccessMode, Key};
use super::layout::{BUDGET, FIRST, SECOND, TEST, fetch, field, large};
use super::plan::Plan;
use super::questions::LineQuestion;
use super::trace::{HandlerSite, Part, Surcharge, TraceSource, Way};
use crate::front::{large_signature, signature};
use crate::native;
use crate::op::Op;
use crate::time::recent::Recent;
use aside::{From, Lost, OtherPage, Stub};
pub use aside::{Linear, Probed};
use iced_x86::{Encoder, Instruction, InstructionInfoFactory};
use x86::page::PAGE;

/// Target of a jump or call out of the trace; exit codes are defined by [`Code`].
#[derive(Clone, Copy, Debug)]
pub enum Aim {
    /// [`super::entry::slow`].
    Slow,
    /// [`super::entry::last`].
    Last,
    /// [`super::entry::refill`].
    Refill,
    /// [`super::entry::refill_last`].
    RefillLast,
    /// [`super::entry::refill_line`].
    RefillLine,
    /// [`super::entry::refill_line_last`].
    RefillLineLast,
    /// [`super::predict::predict`].
    Predict,
    /// [`super::predict::predict_target`].
    PredictTarget,
    /// [`super::entry::missed`].
    Missed,
    /// [`super::entry::missed_taken`].
    MissedTaken,
    /// [`super::entry::ask`].
    Ask,
    /// [`super::entry::ask_taken`].
    AskTaken,
    /// [`super::entry::ask_line`].
    AskLine,
    /// [`super::entry::exit`].
    Exit,
    /// [`super::entry::exit`] with [`Code::Return`].
    Return,
    /// [`super::entry::load`].
    Load,
    /// [`super::entry::load_wide`].
    LoadWide,
    /// [`super::unit::load`].
    LoadX87,
}

/// A jump that is linked to another translation later.
#[derive(Clone, Copy)]
pub struct Link {
    /// Offset of its distance field.
    pub site: usize,
    /// Target until it is linked.
    pub stub: usize,
    /// Block that ends here.
    pub index: u32,
    /// True if the block ends with a jump to its target, false if with its next instruction.
    pub taken: bool,
    /// True if another operation may have intervened.
    pub far: bool,
}

/// Result of the emission.
#[derive(Default)]
pub struct Emitted {
    /// Code.
    pub code: Vec<u8>,
    /// Distances to be filled in when the address of the code is known.
    pub aims: Vec<(usize, Aim)>,
    /// Entry point that checks the page.
    pub checked: usize,
    /// Entry point that does not check the page.
    pub head: usize,
    /// Entry point if no event is due.
    pub begin: usize,
    /// Exit for a due event.
    pub due: usize,
    /// Start of the out-of-line code.
    pub stubs: usize,
    /// Exits.
    pub links: Vec<Link>,
    /// Questions for lines of code.
    pub questions: Vec<LineQuestion>,
    /// Accesses that may miss lines of the fast path, and the arguments of their calls for a handler.
    pub accesses: Vec<Access>,
    pub access_codes: Vec<u64>,
}

/// Emitter for one trace.
pub struct Emit<'a> {
    /// Buffer of emitted code.
    pub asm: Asm,
    /// Source of the trace.
    pub source: &'a TraceSource<'a>,
    encoder: &'a mut Encoder,
    factory: &'a mut InstructionInfoFactory,
    /// Access mode of the current instruction.
    pub key: Key,
    stubs: Vec<Stub>,
    pages: Vec<OtherPage>,
    aims: Vec<(usize, Aim)>,
    links: Vec<Link>,
    questions: Vec<LineQuestion>,
    accesses: Vec<Access>,
    access_codes: Vec<u64>,
    /// Index of the current part of the trace.
    part: usize,
    /// True if the executed parts have been counted.
    counted: bool,
    /// Index of the current instruction.
    pub at: usize,
    /// Needs of vector and x87 instructions that are known to be met.
    pub loaded: u8,
    /// Location of the operand that has been probed for.
    pub operand: M,
    /// Groups of operands, while they are probed for together.
    groups: Option<&'a Groups>,
    /// Groups whose host addresses are stored, by bit.
    found: u32,
    /// Pages of code whose checks are still valid, while operands are probed for together.
    checked: Vec<u64>,
    /// Group whose host address is in `FIRST`.
    held: Option<usize>,
    /// Line of code of the instruction in front of the current one.
    line: Option<u64>,
    /// Part and index of the last instruction that has accessed an operand.
    accessed: Option<(usize, usize)>,
    /// Start of the operations of each part in the code that probes for each operand: before the executed parts are
    /// counted, and after.
    places: Vec<Vec<(usize, usize)>>,
    /// Access mode of the trace's calls, by part, and the address of their return.
    landings: Vec<(Key, Option<usize>)>,
}

/// Translates a trace.
pub fn emit(source: &TraceSource, encoder: &mut Encoder, factory: &mut InstructionInfoFactory) -> Emitted {
    let groups = Some(Groups::of(source.parts, source.key.narrow, source.shift, factory)).filter(Groups::any);
    let mut emit = Emit {
        asm: Asm { code: Vec::with_capacity(512), counts_down: native::decides_by_loop() },
        source,
        encoder,
        factory,
        key: source.key,
        stubs: Vec::new(),
        pages: Vec::new(),
        aims: Vec::new(),
        links: Vec::new(),
        questions: Vec::new(),
        accesses: Vec::new(),
        access_codes: Vec::new(),
        part: 0,
        counted: !source.recorded,
        at: 0,
        loaded: 0,
        operand: M::at(FIRST, 0),
        groups: groups.as_ref(),
        found: 0,
        checked: Vec::new(),
        held: None,
        line: None,
        accessed: None,
        landings: vec![(source.key, None); source.parts.len()],
        places: Vec::new(),
    };
    emit.trace()
}

impl<'a> Emit<'a> {
    fn trace(&mut self) -> Emitted {
        let (checked, due, head, begin) = self.head();
        self.blocks();
        let stubs = self.asm.here();
        if self.groups.take().is_some() {
            self.blocks();
        }
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
            questions: std::mem::take(&mut self.questions),
            accesses: std::mem::take(&mut self.accesses),
            access_codes: std::mem::take(&mut self.access_codes),
        }
    }

    /// Emits all parts.
    fn blocks(&mut self) {
        (self.key, self.counted, self.loaded) = (self.source.key, !self.source.recorded, 0);
        self.let_go();
        self.forget_groups();
        self.line = None;
        self.checked.extend(self.groups.map(|_| self.source.parts[0].page()));
        self.places.clear();
        for number in 0..self.source.parts.len() {
            self.enter(number);
            self.charge();
            self.places.push(Vec::new());
            self.block();
            if self.places[number].len() == self.part().ops.len() {
                self.place();
            }
        }
    }

    /// Records the start of the current operation.
    fn place(&mut self) {
        let here = self.asm.here();
        self.places[self.part].push((here, here));
    }

    /// Emits the instructions of a part.
    fn block(&mut self) {
        let part = self.part();
        let behind = part.plans.len() - 1;
        let mut handled = false;
        for (at, plan) in part.plans.iter().enumerate() {
            self.at = at;
            self.place();
            self.ask_for_code();
            match (part.way, plan) {
                (Way::Taken, Plan::Jump) if at == behind => return,
                (way @ (Way::Taken | Way::Next), Plan::Branch) if at == behind => return self.stay(way),
                (Way::Taken, Plan::Call) if at == behind => return self.call_within(),
                (Way::Taken, Plan::Return) if at == behind => return self.return_within(),
                (Way::Taken, Plan::Indirect { call }) if at == behind => return self.indirect_within(*call),
                (Way::End, plan) if at == behind && (plan.leaves() || *plan == Plan::Handler) => self.count(),
                _ => {}
            }
            let here = self.asm.here();
            self.places[self.part][at].1 = here;
            handled = !self.one(*plan);
            if handled {
                self.handler();
            }
            if !plan.keeps_groups() {
                self.forget_groups();
            }
            if let Plan::AccessControl { set } = plan {
                self.key = self.key.after(*set);
            }
        }
        self.place();
        // A handler at the end leaves the trace.
        if part.way == Way::End && !handled && !part.plans.last().is_some_and(|plan| plan.leaves()) {
            self.count();
            self.link(false, None);
        }
    }

    /// Emits the checks on entry.
    fn head(&mut self) -> (usize, usize, usize, usize) {
        let block = &self.source.parts[0].block;
        let due = self.asm.here();
        self.leave_before(0);
        let checked = self.asm.here();
        self.check_page(block.rip, block.physical, Lost::Head { due });
        let head = self.asm.here();
        // No event may be due before any of the blocks.
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
            let next = (block.rip & !(PAGE - 1)).wrapping_add(PAGE);
            self.check_page(next, block.second, Lost::Head { due });
        }
        (checked, due, head, self.asm.here())
    }

    /// Leaves translated code in front of a part.
    fn leave_before(&mut self, number: usize) {
        let index = self.source.parts[number].index;
        self.asm.flagless_constant(TEST, u64::from(Code::Head { index }.encode()));
        let site = self.asm.jump();
        self.aims.push((site, Aim::Exit));
    }

    /// Begins a part: if it is in another page than the previous one, that page is checked.
    fn enter(&mut self, number: usize) {
        self.part = number;
        let Some(before) = number.checked_sub(1) else { return };
        let (block, page) = (&self.part().block, self.part().page());
        if self.source.parts[before].page() != page && !self.checked.contains(&page) {
            self.let_go();
            self.check_page(block.rip, block.physical, Lost::After(before));
            self.checked.extend(self.groups.map(|_| page));
        }
    }

    /// Returns the address at which the trace continues after the current part.
    pub fn following(&self) -> u64 {
        self.source.parts[self.part + 1].block.rip
    }

    /// Charges the current part.
    fn charge(&mut self) {
        self.asm.flagless_lea(BUDGET, M::at(BUDGET, self.part().block.cost as i32));
        if self.part().begins {
            self.note_run(self.part().block.physical);
        }
    }

    /// Notes that a run begins at a guest-physical address.
    pub fn note_run(&mut self, physical: u64) {
        self.asm.flagless_load(TEST, field!(recent));
        self.asm.flagless_load_part(false, SECOND, M::at(TEST, Recent::NEXT as i32));
        let place = M::indexed(TEST, SECOND, 0, Recent::BEGINS as i32);
        match i32::try_from(physical) {
            Ok(physical) => self.asm.flagless_store_constant(place, physical),
            Err(_) => {
                self.let_go();
                self.asm.flagless_constant(FIRST, physical);
                self.asm.flagless_store(place, FIRST);
            }
        }
        self.asm.flagless_lea32(SECOND, M::at(SECOND, Recent::STRIDE.into()));
        self.asm.flagless_store_part(false, M::at(TEST, Recent::NEXT as i32), SECOND);
    }

    /// Counts the executed parts, including the current one, unless they have been counted.
    fn count(&mut self) {
        if !self.counted {
            self.counted = true;
            self.let_go();
            self.count_under(self.part().counter);
        }
    }

    /// Returns the charge of the current instruction in addition to its class.
    pub fn event(&self) -> Option<Surcharge> {
        self.part().events[self.at]
    }

    /// Increments a counter.
    pub fn count_under(&mut self, counter: u32) {
        let count = M::at(TEST, 4 * counter as i32);
        self.asm.flagless_load(TEST, field!(counts));
        self.asm.flagless_load32(SECOND, count);
        self.asm.flagless_lea32(SECOND, M::at(SECOND, 1));
        self.asm.flagless_store32(count, SECOND);
    }

    /// Continues if a page has its known translation, either by itself or, if possible, as part of a large page: the
    /// less likely of the two is checked out of line.
    fn check_page(&mut self, linear: u64, physical: u64, lost: Lost) {
        let user = self.source.key.access == AccessMode::User;
        let small = (signature(linear, physical, user).0, fetch(linear));
        let whole = (large_signature(linear, physical, user).0, large(linear));
        let either = (linear ^ physical) & ((1 << 21) - 1) & !(PAGE - 1) == 0;
        let (likely, otherwise) = match (either, self.part().large) {
            (false, _) => (small, None),
            (true, false) => (small, Some(whole)),
            (true, true) => (whole, Some(small)),
        };
        let difference = self.difference(likely);
        let site = self.asm.flagless_jump_unless_zero_sum(true, difference);
        self.pages.push(OtherPage { site, otherwise, lost, back: self.asm.here() });
    }

    /// Returns the difference between a slot for pages of code and a signature, which is a sum of registers.
    fn difference(&mut self, (signature, slot): (u64, M)) -> M {
        self.asm.flagless_constant(FIRST, signature.wrapping_neg());
        self.asm.flagless_load(TEST, slot);
        M::indexed(TEST, FIRST, 0, 0)
    }

    /// Emits an instruction. Returns false if the handler must execute it.
    fn one(&mut self, plan: Plan) -> bool {
        let before = (self.asm.here(), self.stubs.len(), self.aims.len(), self.links.len(), self.loaded);
        let (held, found) = (self.held, self.found);
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
            Plan::Pause => self.pause(),
            Plan::ReadControl => self.read_control(),
            Plan::SwapBases => self.swap_bases(),
            Plan::Base { segment, write } => self.base(segment, write),
            Plan::ReadRights => self.read_rights(),
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
        // The other plans may use the scratch registers.
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
            self.let_go();
        }
        if !done {
            self.asm.code.truncate(before.0);
            self.stubs.truncate(before.1);
            self.aims.truncate(before.2);
            self.links.truncate(before.3);
            self.loaded = before.4;
            (self.held, self.found) = (held, found);
        }
        done
    }

    /// Returns the current part of the trace.
    pub fn part(&self) -> &'a Part {
        &self.source.parts[self.part]
    }

    /// Returns its index.
    pub fn number_of_part(&self) -> usize {
        self.part
    }

    /// Returns the operation of the current instruction.
    pub fn op(&self) -> &Op {
        &self.part().ops[self.at]
    }

    /// Returns the current instruction.
    pub fn instruction(&self) -> &Instruction {
        &self.part().instructions[self.at]
    }

    /// Returns the index of the current instruction's operation.
    pub fn number(&self) -> u32 {
        self.part().block.first + self.at as u32
    }

    /// Returns the argument for a handler call: the index of the operation, and above it its site.
    fn slow_code(&self) -> u64 {
        let place = HandlerSite {
            inside: self.part().way != Way::End,
            uncounted: !self.counted,
            number: self.source.number,
            part: self.part,
        };
        u64::from(place.encode()) << 32 | u64::from(self.number())
    }

    /// Returns the group membership of an operand of the current instruction.
    pub fn member(&self, which: Which) -> Option<Member> {
        self.groups?.member(self.part, self.at, which)
    }

    /// Returns true if a group's host address is stored.
    pub fn has_found(&self, group: usize) -> bool {
        self.found >> group & 1 != 0
    }

    /// Returns the group whose host address is in `FIRST`.
    pub fn held(&self) -> Option<usize> {
        self.held
    }

    /// Records that a group's host address is stored, and in `FIRST`.
    pub fn hold(&mut self, group: usize) {
        self.found |= 1 << group;
        self.held = Some(group);
    }

    /// Records that `FIRST` may contain another value than a group's host address.
    pub fn let_go(&mut self) {
        self.held = None;
    }

    /// Records that no group is found, and no page of code is checked.
    fn forget_groups(&mut self) {
        self.found = 0;
        self.checked.clear();
    }

    /// Emits a call of the handler for the current instruction.
    pub fn handler(&mut self) {
        self.let_go();
        self.forget_groups();
        self.loaded = 0;
        self.call_handler(self.slow_code());
    }

    /// Continues at a known address: the branch target or the next instruction. With a condition, only if it holds.
    pub fn link(&mut self, taken: bool, condition: Option<u8>) {
        let site = match condition {
            Some(condition) => self.asm.jump_if(condition),
            None => self.asm.jump(),
        };
        self.aside(From::Link(self.links.len()));
        self.links.push(Link { site, stub: 0, index: self.part().index, taken, far: false });
    }

    /// Records that the current call is made, and returns, in the current access mode.
    pub fn calls_under_key(&mut self) {
        self.landings[self.part].0 = self.key;
    }

    /// Emits a conditional jump after which the trace continues on one side.
    fn stay(&mut self, way: Way) {
        let taken = way == Way::Next;
        let condition = self.condition() ^ u8::from(!taken);
        if self.source.models_directions() {
            let site = self.asm.jump_if(condition);
            let (from, loaded) = (From::Side { site, part: self.part, taken, counted: self.counted }, self.loaded);
            self.aside(from).loaded = loaded;
            self.decided(!taken);
        } else if self.counted && self.calls_before(self.part).is_empty() {
            self.link(taken, Some(condition));
        } else {
            let site = self.asm.jump_if(condition);
            let from = From::Side { site, part: self.part, taken, counted: !self.source.recorded };
            self.aside(from);
        }
    }
}
