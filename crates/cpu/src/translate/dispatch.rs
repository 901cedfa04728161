//! Entry into translated code, and its callbacks.

mod brief;

use super::branch::RETURNS;
use super::jumps::JUMP_MASK;
use super::key::AccessMode;
use super::layout::{NEEDS, PRECISION, Running};
use super::trace::{HandlerSite, Surcharge, TraceSource};
use super::{Code, Key, entry};
use crate::arch::NOT_LOADED;
use crate::blocks;
use crate::counters::CHEAPEST;
use crate::exec::vector::evex;
use crate::exec::vector::execute::{AVX_STATE, MASKS};
use crate::f80::status::{B, ES, EXCEPTIONS};
use crate::fault::{Exec, Flow};
use crate::front::{Mode, slot_mask};
use crate::mode;
use crate::native::{self, HOST_MXCSR};
use crate::op::Op;
use crate::state::Cpu;
use crate::tier::Tier;
use crate::time::START;
use crate::translate::BlockCache;
use crate::usage::NONE;
pub use brief::{ask_briefly, ask_line, code_of_access, code_of_question, missed_briefly, refill, refill_line};
use ledger::{Class, Kind, OriginId, Ticks};
use x86::control::*;
use x86::page::PAGE;
use x86::{flags, rights, seg};

/// Maximum time for which translated code runs before it leaves.
const LONGEST: Ticks = 1 << 30;
/// Ratio of the number of executions before a block begins a trace to that before it may be inside one.
const WARMTH: u16 = 10;

/// Flags that are stored separately or never pushed; LAHF gives the bit that is always set.
const KEPT_APART: u64 = flags::IF | flags::AC | flags::RF | flags::VM | 2;

/// Predecessor of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Before {
    /// No relevant predecessor.
    #[default]
    Nothing,
    /// An exit of a translation that may be linked to the block, unless everything has been dropped since.
    Link { number: u32, link: u8, generation: u64 },
    /// A block with an indirect end.
    Indirect,
    /// Only the head of this block, if the block is still valid.
    Head { index: u32 },
}

/// State shared by translated code and its callbacks.
pub(super) struct Handover {
    cpu: *mut Cpu,
    cache: *mut BlockCache,
    /// State in the current area.
    running: *mut Running,
    /// Time at which translated code must be left.
    until: Ticks,
    /// Origin to which blocks are charged.
    origin: OriginId,
    /// Origin of the counters to which the current area refers.
    counted: Option<OriginId>,
    /// Time since which it refers to them.
    since: Ticks,
    /// Upper bound for the handlers' own time since then, in addition to their charges.
    spent: Ticks,
    /// True if the last block ended in its handler, and the translation of its successor was not known.
    indirect: bool,
}

impl Handover {
    /// Ends a counting period: returns a lower bound of the time in which one origin's counters were used.
    fn spend(&mut self, now: Ticks) -> Ticks {
        let time = now.wrapping_sub(std::mem::replace(&mut self.since, now));
        time.saturating_add(std::mem::replace(&mut self.spent, CHEAPEST))
    }
}

impl Cpu {
    /// Returns the key of the current code, or `None` if such code is not translated.
    #[inline]
    fn key(&self) -> Option<Key> {
        // Rings 1 and 2 are not used in practice. Calls and returns with a shadow stack are left to the interpreter.
        if matches!(self.arch.cpl, 1 | 2) || self.engine.mode & mode::SHADOWED != 0 {
            return None;
        }
        let access = match self.engine.front.mode() {
            Mode::User => AccessMode::User,
            Mode::SupervisorOnly => AccessMode::SupervisorOnly,
            Mode::Supervisor if self.arch.cr4 & CR4_SMAP != 0 => AccessMode::Override,
            Mode::Supervisor => AccessMode::Supervisor,
            Mode::Slow => return None,
        };
        (self.engine.long64 || self.flat()).then_some(Key { access, narrow: !self.engine.long64 })
    }

    /// Returns true for 32-bit protected-mode code whose segments all begin at 0 and have no limit, as compilers
    /// assume.
    fn flat(&self) -> bool {
        let whole = |number: u8| {
            let segment = &self.arch.seg[usize::from(number)];
            segment.base == 0 && segment.limit == u32::MAX && segment.usable()
        };
        let data = |number: u8| {
            const KIND: u32 = rights::CODE | rights::DC | rights::RW;
            whole(number) && self.arch.seg[usize::from(number)].rights & KIND == rights::RW
        };
        self.engine.mode & !mode::AMD == mode::BITS32 | mode::PROTECTED
            && whole(seg::CS)
            && data(seg::DS)
            && data(seg::ES)
            && data(seg::SS)
            && self.arch.seg[usize::from(seg::SS)].rights & rights::DB != 0
    }

    /// Executes a block and its successors as translated code. Returns false if the interpreter must execute it. `last`
    /// is the block that was interpreted just before, or [`NONE`].
    #[inline]
    pub(crate) fn run_translated(
        &mut self,
        cache: &mut BlockCache,
        last: u32,
        index: u32,
        before: &mut Before,
    ) -> bool {
        let threshold = match cache.code.tier {
            Tier::Interpreter => return false,
            Tier::Translator => 1,
            Tier::Auto => cache.code.threshold,
        };
        let Some(key) = self.key() else { return false };
        cache.note_way(last, index);
        let mut entry = cache.code.translations.find(index, key);
        if entry == 0 {
            if !cache.used.warm_up(index, cache.code.translations.generation(), threshold) {
                return false;
            }
            entry = self.translate_block(cache, index, key, threshold / WARMTH);
            if entry == 0 {
                return false;
            }
        }
        // The remaining time is too short for the whole trace.
        if self.engine.stop_at.saturating_sub(self.micro.clock) <= cache.code.translations.span(entry) {
            return false;
        }
        match std::mem::take(before) {
            Before::Nothing => {}
            Before::Head { index: at } => {
                // Another address space had a different block at that address.
                let rip = cache.code.blocks[index as usize].rip;
                let begins = cache.code.blocks[index as usize].context() == START;
                if at != index && begins && self.engine.jumps.find(key.index(), rip).is_some() {
                    self.engine.jumps.fill(key.index(), rip, cache.code.translations.checked(entry) as u64);
                }
            }
            Before::Link { number, link, generation } => {
                if generation == cache.code.translations.generation() {
                    let from = cache.code.translations.way_out(number, link).index;
                    let page = |index: u32| cache.code.blocks[index as usize].rip & !(PAGE - 1);
                    let same_page = page(from) == page(index);
                    cache.code.translations.link(number, link, index, entry, same_page);
                }
            }
            // Targets of indirect branches begin a run.
            Before::Indirect if cache.code.blocks[index as usize].context() != START => {}
            Before::Indirect => {
                let code = cache.code.translations.checked(entry) as u64;
                self.engine.jumps.follow_code(cache.code.translations.generation(), key.narrow);
                self.engine.jumps.fill(key.index(), cache.code.blocks[index as usize].rip, code);
            }
        }
        *before = self.enter_translated(cache, entry);
        true
    }

    #[cold]
    fn translate_block(&mut self, cache: &mut BlockCache, index: u32, key: Key, warm: u16) -> u32 {
        if cache.renumber(&mut self.wiring.recorder) {
            return 0;
        }
        let parts = self.trace(cache, index, key, warm);
        if parts.is_empty() {
            cache.used.cool_down(index);
            return 0;
        }
        let source = TraceSource {
            number: cache.code.translations.next_number(),
            question: cache.code.translations.next_question(),
            access: cache.code.translations.next_access(),
            parts: &parts,
            key,
            recorded: self.wiring.model.recorded,
            target_slots: self.micro.predictor.slots(),
            predicts: self.follows_runs(),
            fetches: self.models_code(),
            data_pointers: !self.wiring.fdp_on_exception,
            spec_ctrl: self.spec_ctrl_bits(),
            shift: self.engine.front.shift(),
        };
        let entry = cache.code.translations.translate(&source);
        if entry == 0 {
            cache.used.cool_down(index);
        }
        entry
    }

    /// Returns the charge of translated code for an event at `rip`.
    pub(super) fn event(&self, cache: &mut BlockCache, rip: u64, kind: Kind) -> Option<Surcharge> {
        // The handler of a crossing reports it to the observer.
        if kind.family.is_crossing() && self.wiring.observer.is_some() {
            return None;
        }
        self.surcharge(cache, rip, kind, self.wiring.model.price(kind))
    }

    /// Returns the charge of translated code for an event at `rip` at this price.
    pub(super) fn surcharge(&self, cache: &mut BlockCache, rip: u64, kind: Kind, price: Ticks) -> Option<Surcharge> {
        // A price of zero is a charge too: the event may be counted, and the instruction is executed inline.
        let ticks = u32::try_from(price).ok().filter(|ticks| *ticks < 1 << 24)?;
        let counter = match self.wiring.model.recorded {
            true => Some(cache.code.event(rip, kind, price)?),
            false => None,
        };
        Some(Surcharge { counter, ticks })
    }

    fn enter_translated(&mut self, cache: &mut BlockCache, entry: u32) -> Before {
        let code = cache.code.translations.begin(entry);
        let started = self.micro.clock;
        let mut context = Handover {
            cpu: std::ptr::null_mut(),
            cache: std::ptr::null_mut(),
            running: std::ptr::null_mut(),
            until: started.saturating_add(LONGEST),
            origin: self.engine.origin,
            counted: None,
            since: started,
            spent: CHEAPEST,
            indirect: false,
        };
        let running = self.prepare_area(cache, &mut context);
        context.cpu = self;
        context.cache = cache;
        // SAFETY: the area has been prepared for the current state, and `code` is the head of a translation for the
        // current key whose page is the current one. Until it returns, `self` and `cache` are only used through
        // `context`.
        let exit = unsafe { entry::enter(running, code) };
        let left = Code::decode(exit as u32);
        if left != Code::Plain {
            self.leave_area(&context, cache);
        }
        if let Some(origin) = context.counted {
            cache.spend(origin, context.spend(self.micro.clock), &mut self.wiring.recorder);
        }
        match left {
            Code::Plain if context.indirect => Before::Indirect,
            Code::Plain => Before::Nothing,
            Code::Return => {
                // SAFETY: the area that has been current until now.
                self.arch.rip = unsafe { (*context.running).wanted };
                self.micro.run = cache.code.runs.called(&*self.wiring.model.timing);
                Before::Indirect
            }
            Code::Head { index } => {
                let block = &cache.code.blocks[index as usize];
                (self.arch.rip, self.micro.run) = (block.rip, block.context());
                Before::Head { index }
            }
            Code::Link { number, link } => {
                let way_out = cache.code.translations.way_out(number, link);
                let Some(last) = cache.code.ops_of(way_out.index).last() else { return Before::Nothing };
                self.arch.rip = if way_out.taken { last.imm } else { last.next };
                // The way that a call does not take is that of its return.
                let leads_on = self.arch.rip == last.next || last.class == Class::Call;
                self.micro.run = if leads_on { cache.code.blocks[way_out.index as usize].after } else { START };
                Before::Link { number, link, generation: cache.code.translations.generation() }
            }
        }
    }

    /// Prepares the current area for translated code.
    fn prepare_area(&mut self, cache: &mut BlockCache, context: &mut Handover) -> *mut Running {
        let stop = self.engine.stop_at.min(context.until);
        let due = self.is_due(context, 0);
        let base = if due { self.micro.clock } else { stop };
        let image = self.arch.lazy.image();
        let generation = cache.code.translations.generation();
        // The ring's other arrays are beside the modelled one in the processor.
        let first = std::ptr::from_mut(self).cast::<u8>().wrapping_add(RETURNS).cast::<u64>();
        let (entries, newest) = self.micro.predictor.returns();
        self.engine.returns.follow(first, entries, generation, cache.code.translations.unknown_return());
        let returns = first.wrapping_add(newest);
        let targets = self.micro.predictor.exposed_targets();
        let conditional = self.micro.predictor.exposed_directions();
        let recent = &raw mut self.micro.recent;
        let (paths, path_mask, path) = match self.micro.predictor.paths() {
            Some(paths) => (paths.exposed(), paths.mask(), paths.path),
            None => (std::ptr::null_mut(), 0, 0),
        };
        let known_code = self.engine.known_code.expose();
        let redirected = self.micro.memory.as_ref().map_or(0, |memory| memory.front.redirected);
        let bases = [self.arch.seg[usize::from(seg::FS)].base, self.arch.seg[usize::from(seg::GS)].base];
        let registers = self.arch.gpr.as_mut_ptr();
        let budget = self.micro.clock.wrapping_sub(base) as i64;
        let upper = self.arch.vector.upper_in_use();
        let refused_for = self.refused_for(upper);
        let changed = self.engine.front.current().running.refused_for != refused_for;
        let refused = changed.then(|| self.refused(upper));
        // The first instruction is outside.
        let non_root = u64::from(self.arch.vmx.active);
        let system = self.arch.flags;
        let narrow = !self.engine.long64;
        let vector = &raw mut self.arch.vector;
        let x87 = &raw mut self.arch.x87;
        self.engine.jumps.follow_code(generation, narrow);
        let jumps = self.engine.jumps.expose();
        let shift = self.engine.front.shift();
        let area = self.engine.front.current();
        let running = &mut area.running;
        let mut counts_here = context.counted == Some(context.origin);
        if !std::ptr::eq(context.running, running) {
            if !context.running.is_null() {
                // SAFETY: the area that has been current until now; areas live as long as the processor.
                let before = unsafe { &*context.running };
                running.resume = before.resume;
                running.host_stack = before.host_stack;
            }
            context.running = running;
            counts_here = false;
            // Values that do not change until the area is left.
            running.slot_mask = slot_mask(shift);
            running.offset_mask = (1 << shift) - 1;
            running.beyond_mask = !running.offset_mask;
            running.jump_mask = JUMP_MASK;
            running.registers = registers;
            running.vector = vector;
            running.x87.of(x87);
            running.host_mxcsr = u64::from(HOST_MXCSR);
            running.aligned_to_16 = 15;
            running.aligned_to_32 = 31;
            running.aligned_to_64 = 63;
            running.context = std::ptr::from_mut(context).cast();
            running.ops = cache.code.ops.as_ptr().cast();
            running.non_root = non_root;
            running.targets = targets;
            running.conditional = conditional;
            running.recent = recent;
            (running.paths, running.path_mask) = (paths, path_mask);
            running.known_code = known_code;
            running.jumps = jumps;
        }
        if !counts_here {
            if let Some(origin) = context.counted {
                cache.spend(origin, context.spend(self.micro.clock), &mut self.wiring.recorder);
            }
            context.counted = Some(context.origin);
            running.counts = match self.wiring.model.recorded {
                true => cache.counts(context.origin, &mut self.wiring.recorder),
                false => std::ptr::null_mut(),
            };
        }
        running.redirected = redirected.wrapping_sub(base) as i64;
        running.returns = returns;
        running.path = path;
        running.bases = bases;
        running.flags = image >> 11 & 1 | (image & 0xff) << 8;
        running.interrupts = system & flags::IF;
        running.access_control = system & flags::AC;
        running.system_flags = system & !KEPT_APART;
        running.base = base;
        running.budget = budget;
        if let Some(refused) = refused {
            (running.refused, running.refused_for) = (refused, refused_for);
        }
        // A host without the upper halves leaves them in memory: SSE instructions preserve them, and others are refused.
        running.upper = u64::from(upper && native::wide());
        running
    }

    /// Returns true if an event is due within `span`: then it must be handled at the head of the next block. Also
    /// returns true if that block may no longer be at its address.
    fn is_due(&self, context: &Handover, span: Ticks) -> bool {
        let stop = self.engine.stop_at.min(context.until);
        self.micro.clock.saturating_add(span) >= stop
            || self.engine.fetch.left()
            || self.engine.origin != context.origin
    }

    /// Counts the executed part of a trace.
    #[cold]
    fn count_parts(&mut self, cache: &mut BlockCache, origin: OriginId, place: HandlerSite, index: u32) {
        for part in 0..place.part {
            let index = cache.code.translations.part(place.number, part);
            cache.count(index, origin, &mut self.wiring.recorder);
        }
        cache.count(index, origin, &mut self.wiring.recorder);
    }

    /// Returns all parts of the state on which [`Cpu::refused`] depends; never zero.
    #[inline]
    fn refused_for(&self, upper: bool) -> [u64; 2] {
        let x87 = &self.arch.x87;
        let control = u64::from(x87.control & (EXCEPTIONS | PRECISION)) | u64::from(x87.status & (ES | B)) << 16;
        let vector = u64::from(self.arch.vector.mxcsr & MASKS) << 32 | u64::from(upper) << 62 | 1 << 63;
        let enabled = self.arch.xcr0 & (AVX_STATE | evex::STATE);
        let cr4 = self.arch.cr4 & (CR4_OSFXSR | CR4_OSXSAVE);
        [control | vector, self.arch.cr0 & (CR0_EM | CR0_TS | CR0_PE) | enabled << 8 | cr4 << 32]
    }

    /// Returns the kinds of vector and x87 instructions that must be left to their handlers, by
    /// [`super::layout::Need`]. Depends on nothing but [`Cpu::refused_for`] and the host.
    #[inline(never)]
    fn refused(&self, upper: bool) -> [u64; NEEDS] {
        let sse = self.arch.cr0 & (CR0_EM | CR0_TS) == 0 && self.arch.cr4 & CR4_OSFXSR != 0;
        let avx = self.arch.cr0 & (CR0_TS | CR0_PE) == CR0_PE
            && self.arch.cr4 & CR4_OSXSAVE != 0
            && self.arch.xcr0 & AVX_STATE == AVX_STATE
            // They clear bits that the registers of such a host do not have.
            && (!upper || native::wide());
        let wide = avx && native::wide() && self.arch.xcr0 & evex::STATE == evex::STATE;
        // Arithmetic uses the guest's MXCSR, which must mask all exceptions.
        let arithmetic = sse && self.arch.vector.mxcsr & MASKS == MASKS;
        let [vector, wide_arithmetic] = [avx && arithmetic, wide && arithmetic];
        [!sse, !arithmetic, !avx, !vector, self.x87_refused(), !wide, !wide_arithmetic].map(u64::from)
    }

    /// Continues after a block whose last instruction was executed by its handler, without leaving translated code if
    /// the translation of the successor is known and no event is due.
    fn go_on(&mut self, cache: &mut BlockCache, context: &mut Handover) -> *mut Running {
        context.indirect = true;
        context.spent += CHEAPEST;
        let goes_on = self.goes_on(cache);
        let key = match self.key() {
            Some(key) if goes_on => key,
            _ => return std::ptr::null_mut(),
        };
        self.engine.jumps.follow_code(cache.code.translations.generation(), key.narrow);
        // Targets of indirect branches begin a run.
        let begins = self.micro.run == START;
        let known = self.engine.jumps.find(key.index(), self.arch.rip).filter(|_| begins);
        let Some(code) = known.or_else(|| self.find_target(cache, key)) else {
            return std::ptr::null_mut();
        };
        // The translation itself checks its page.
        self.engine.fetch.follow();
        context.origin = self.engine.origin;
        let running = self.prepare_area(cache, context);
        // SAFETY: it belongs to the current area, to which nothing else refers.
        unsafe { (*running).resume = code };
        running
    }

    /// Returns the entry point of the next block's translation, and adds it as a target of indirect branches. Returns
    /// `None` if more than a lookup is necessary.
    #[inline(never)]
    fn find_target(&mut self, cache: &mut BlockCache, key: Key) -> Option<u64> {
        if key.narrow {
            return None;
        }
        let page = self.engine.front.code_page(self.arch.rip, self.arch.cpl == 3)?;
        let of = blocks::key(self.engine.mode, self.micro.run);
        let index = cache.find(NONE, page | self.arch.rip & (PAGE - 1), self.arch.rip, of)?;
        if cache.code.blocks[index as usize].second != 0 {
            return None;
        }
        let code = cache.code.translations.known(index, key)? as u64;
        if self.micro.run == START {
            self.engine.jumps.fill(key.index(), self.arch.rip, code);
        }
        Some(code)
    }

    /// Returns true if translated code may go on after a site: no event may become due within a trace.
    fn stays(&self, cache: &BlockCache, context: &Handover, place: HandlerSite) -> bool {
        !(place.inside && self.is_due(context, cache.code.translations.span_of(place.number)))
    }

    /// Completes the block of an operation at which its trace is left, with the result of the operation, and continues after
    /// the block as [`Cpu::go_on`] does.
    fn leave_trace(
        &mut self,
        cache: &mut BlockCache,
        context: &mut Handover,
        place: HandlerSite,
        op: &Op,
        ran: Exec<Flow>,
    ) -> *mut Running {
        let (index, at) = block_of(cache, place, op);
        if place.uncounted {
            self.count_parts(cache, context.origin, place, index);
        }
        if !self.finish_block(cache, index, context.origin, at, ran) {
            return std::ptr::null_mut();
        }
        self.go_on(cache, context)
    }

    /// Takes the state back from the place where translated code has stored it.
    fn leave_area(&mut self, context: &Handover, cache: &BlockCache) {
        // SAFETY: the area that has been current since translated code was entered.
        let running = unsafe { &mut *context.running };
        if running.x87.loaded() {
            self.take_x87(running, cache);
        }
        self.micro.clock = running.base.wrapping_add(running.budget as u64);
        if let Some(memory) = &mut self.micro.memory {
            memory.front.redirected = running.base.wrapping_add(running.redirected as u64);
        }
        self.arch.lazy.load(running.flags >> 8 & 0xff | (running.flags & 1) << 11);
        let first = std::ptr::from_ref(self).addr() + RETURNS;
        self.micro.predictor.set_newest((running.returns.addr() - first) / size_of::<u64>());
        if let Some(paths) = self.micro.predictor.paths() {
            paths.path = running.path;
        }
        self.take_system_flags(running);
        // The host's MXCSR has the value for compiled code.
        self.arch.vector.loaded = NOT_LOADED;
    }

    /// Takes RFLAGS.IF and RFLAGS.AC back.
    fn take_system_flags(&mut self, running: &Running) {
        let changed = (self.arch.flags ^ (running.interrupts | running.access_control)) & (flags::IF | flags::AC);
        if changed != 0 {
            self.arch.flags ^= changed;
            if changed & flags::AC != 0 {
                self.access_changed();
            }
        }
    }
}

/// What translated code has called for: an operation at its site, with the processor's state as before it.
struct Called<'a> {
    context: &'a mut Handover,
    cpu: &'a mut Cpu,
    cache: &'a mut BlockCache,
    op: &'a Op,
    place: HandlerSite,
}

impl Called<'_> {
    /// Takes the state back from translated code.
    ///
    /// # Safety
    /// As for [`slow`], whose arguments these are.
    unsafe fn take(context: *mut Handover, op: *const Op, place: u32) -> Self {
        // SAFETY: guaranteed by the caller: nothing else uses the context, the processor or the cache in the meantime;
        // handlers do not change operations.
        let (context, cpu, cache, op) = unsafe {
            let context = &mut *context;
            let (cpu, cache) = (context.cpu, context.cache);
            (context, &mut *cpu, &mut *cache, &*op)
        };
        cpu.leave_area(context, cache);
        cpu.arch.rip = op.next;
        cpu.engine.ilen = op.len;
        let place = HandlerSite::decode(place);
        if cpu.has_lines() {
            let (index, at) = block_of(cache, place, op);
            cpu.note_operation(cache, index, at);
        }
        Self { context, cpu, cache, op, place }
    }
}

/// Executes one instruction by its handler, the `LAST` of its block or another one. Returns the area's [`Running`] if
/// translated code continues, else null.
///
/// # Safety
/// Called by translated code that was entered with this context; `op` is one of its operations, and `place` is its
/// site.
pub unsafe extern "sysv64" fn slow<const LAST: bool>(
    context: *mut Handover,
    op: *const Op,
    place: u32,
) -> *mut Running {
    // SAFETY: guaranteed by the caller.
    let Called { context, cpu, cache, op, place } = unsafe { Called::take(context, op, place) };
    if cpu.models_code() {
        // Instructions behind one that had to be left to its handler come here without a question.
        let (index, at) = block_of(cache, place, op);
        cpu.ask_for_operation(cache, index, at);
    }
    match (op.exec)(cpu, op) {
        Ok(Flow::Next) if !LAST && cpu.stays(cache, context, place) => cpu.prepare_area(cache, context),
        Ok(flow) if LAST && !place.uncounted => {
            let index = cache.code.translations.part(place.number, place.part);
            cpu.micro.run = match flow {
                Flow::End => cpu.place_after(cache, index, cache.code.ops_of(index).len() - 1),
                Flow::Next => cache.code.blocks[index as usize].after,
            };
            cpu.go_on(cache, context)
        }
        ran => cpu.leave_trace(cache, context, place, op, ran),
    }
}

/// Charges the misprediction of a conditional branch, at the end of its block, that waits for a load. Returns the area's
/// [`Running`] if translated code continues, else null.
///
/// # Safety
/// As for [`slow`].
pub unsafe extern "sysv64" fn missed<const TAKEN: bool>(
    context: *mut Handover,
    op: *const Op,
    place: u32,
) -> *mut Running {
    // SAFETY: guaranteed by the caller.
    let Called { context, cpu, cache, op, place } = unsafe { Called::take(context, op, place) };
    cpu.charge_direction(op);
    if TAKEN {
        cpu.ask_for_branch(op);
    }
    if cpu.stays(cache, context, place) {
        return cpu.prepare_area(cache, context);
    }
    if TAKEN {
        cpu.arch.rip = op.imm;
    }
    cpu.leave_trace(cache, context, place, op, Ok(Flow::End))
}

/// Asks for the code of an instruction that is executed next, or, for a conditional branch that is `TAKEN`, whether the branch is
/// known. Returns the area's [`Running`] if translated code continues, else null.
///
/// # Safety
/// As for [`slow`].
pub unsafe extern "sysv64" fn ask<const TAKEN: bool>(
    context: *mut Handover,
    op: *const Op,
    place: u32,
) -> *mut Running {
    // SAFETY: guaranteed by the caller.
    let Called { context, cpu, cache, op, place } = unsafe { Called::take(context, op, place) };
    let (index, at) = block_of(cache, place, op);
    if TAKEN {
        cpu.ask_for_branch(op);
    } else {
        cpu.ask_for_operation(cache, index, at);
    }
    if cpu.stays(cache, context, place) {
        return cpu.prepare_area(cache, context);
    }
    if TAKEN {
        cpu.arch.rip = op.imm;
        return cpu.leave_trace(cache, context, place, op, Ok(Flow::End));
    }
    if place.uncounted {
        cpu.count_parts(cache, context.origin, place, index);
    }
    cpu.micro.run = cache.code.blocks[index as usize].after;
    if cpu.run_operations(cache, index, context.origin, at) { cpu.go_on(cache, context) } else { std::ptr::null_mut() }
}

/// Returns the index of the block of a site, and the position in it of one of its operations.
fn block_of(cache: &BlockCache, place: HandlerSite, op: &Op) -> (u32, usize) {
    let index = cache.code.translations.part(place.number, place.part);
    (index, (number_of(cache, op) - cache.code.blocks[index as usize].first) as usize)
}

/// Returns the index of one of the cache's operations.
fn number_of(cache: &BlockCache, op: &Op) -> u32 {
    ((std::ptr::from_ref(op).addr() - cache.code.ops.as_ptr().addr()) / size_of::<Op>()) as u32
}
