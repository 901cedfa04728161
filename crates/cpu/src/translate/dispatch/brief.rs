//! Callbacks that need little of the processor's state, and return to their caller: misses of the fast path, questions for code, and mispredicted
//! branches, which are by far the most frequent ones where caches are modelled.
//!
//! They charge only if no event becomes due before the trace ends. Otherwise they change nothing, and translated code calls for the
//! full form.

use super::{Handover, block_of};
use crate::op::Op;
use crate::state::Cpu;
use crate::translate::BlockCache;
use crate::translate::accesses::{self, Access, WRITES};
use crate::translate::layout::Running;
use crate::translate::questions::{self, ANSWERED};
use crate::translate::trace::HandlerSite;
use ledger::{Family, Kind, OriginId, Ticks};

/// An operation, at its site, for which translated code has called while the guest's registers are not in the processor's state.
struct Brief<'a> {
    cpu: &'a mut Cpu,
    running: &'a mut Running,
    op: &'a Op,
    /// The block of the operation, and the position of the operation in it, where caches are modelled.
    at: Option<(u32, usize)>,
    cache: &'a BlockCache,
    /// The charge must be less, so that no event becomes due before the trace ends.
    room: Ticks,
}

impl<'a> Brief<'a> {
    /// Takes the clock back from translated code; `None` if the processor needs all of its state.
    ///
    /// # Safety
    /// As for [`slow`](super::slow), whose arguments these are.
    unsafe fn take(context: *mut Handover, op: *const Op, place: u32) -> Option<Self> {
        // SAFETY: guaranteed by the caller, as for `slow`; the area is the one that is current.
        let (context, cpu, cache, running, op) = unsafe {
            let context = &mut *context;
            let (cpu, cache, running) = (context.cpu, context.cache, context.running);
            (context, &mut *cpu, &*cache, &mut *running, &*op)
        };
        cpu.micro.clock = running.base.wrapping_add(running.budget as u64);
        let stop = cpu.engine.stop_at.min(context.until);
        // The trace may go on for that long after the operation.
        let place = HandlerSite::decode(place);
        let span = cache.code.translations.span_of(place.number);
        let room = stop.saturating_sub(cpu.micro.clock).saturating_sub(span);
        if room == 0 || cpu.is_due(context, 0) {
            return None;
        }
        cpu.arch.rip = op.next;
        cpu.engine.ilen = op.len;
        let at = cpu.has_lines().then(|| block_of(cache, place, op));
        if let Some((index, at)) = at {
            cpu.note_operation(cache, index, at);
        }
        Some(Self { cpu, running, op, at, cache, room })
    }

    /// Charges for what the front end meets at the operation, if that certainly costs so little that no event becomes due; `more` is the
    /// most that is charged besides the answers to questions for code. Otherwise it returns false, and changes nothing.
    fn charge(self, more: Ticks, charge: impl FnOnce(&mut Cpu, &BlockCache, &Op, Option<(u32, usize)>)) -> bool {
        let Self { cpu, running, op, at, cache, room } = self;
        if !cpu.may_ask(room.saturating_sub(more)) {
            return false;
        }
        if let Some(memory) = &mut cpu.micro.memory {
            memory.front.redirected = running.base.wrapping_add(running.redirected as u64);
        }
        charge(cpu, cache, op, at);
        if let Some(memory) = &cpu.micro.memory {
            running.redirected = memory.front.redirected.wrapping_sub(running.base) as i64;
        }
        give_clock(cpu, running);
        true
    }
}

/// Gives the clock to translated code.
fn give_clock(cpu: &Cpu, running: &mut Running) {
    running.budget = cpu.micro.clock.wrapping_sub(running.base) as i64;
}

/// Does the same as [`ask`](super::ask), if no event becomes due. Otherwise it returns false, and changes nothing.
///
/// # Safety
/// As for [`slow`](super::slow), but the guest's registers are not in the processor's state.
pub unsafe extern "sysv64" fn ask_briefly<const TAKEN: bool>(
    context: *mut Handover,
    op: *const Op,
    place: u32,
) -> bool {
    // SAFETY: guaranteed by the caller.
    let Some(brief) = (unsafe { Brief::take(context, op, place) }) else { return false };
    brief.charge(0, |cpu, cache, op, at| match at {
        _ if TAKEN => cpu.ask_for_branch(op),
        Some((index, at)) => cpu.ask_for_operation(cache, index, at),
        None => {}
    })
}

/// Answers a question for a line of code by its index, if no event becomes due, and returns [`ANSWERED`]. Otherwise the function changes nothing, and
/// returns the argument for [`ask`](super::ask). No vector registers are loaded.
///
/// # Safety
/// As for [`ask_briefly`].
pub unsafe extern "sysv64" fn ask_line(context: *mut Handover, question: u32) -> u64 {
    // SAFETY: guaranteed by the caller, as for `slow`; the area is the one that is current.
    let (context, cpu, cache, running) = unsafe {
        let context = &mut *context;
        let (cpu, cache, running) = (context.cpu, context.cache, context.running);
        (context, &mut *cpu, &mut *cache, &mut *running)
    };
    let mut asked = cache.code.translations.questions[question as usize];
    let clock = running.base.wrapping_add(running.budget as u64);
    let stop = cpu.engine.stop_at.min(context.until);
    let room = stop.saturating_sub(clock).saturating_sub(asked.span.into());
    cpu.micro.clock = clock;
    if cpu.is_due(context, 0) || !cpu.may_ask(room) {
        return asked.code;
    }
    if let Some(memory) = &mut cpu.micro.memory {
        memory.front.redirected = running.base.wrapping_add(running.redirected as u64);
    }
    let now = clock.saturating_sub(asked.rest.into());
    let Some((kind, ticks)) = cpu.bring_code(asked.line.into(), now) else { return ANSWERED };
    running.budget = running.budget.wrapping_add(ticks as i64);
    if running.counts.is_null() {
        return ANSWERED;
    }
    let counter = match kind {
        questions::COUNTED => asked.waits.of(&mut cache.code, asked.rip, kind),
        _ => None,
    };
    cache.code.translations.questions[question as usize] = asked;
    // SAFETY: the table is that of the current origin.
    unsafe { count(cpu, running, context.origin, counter, asked.rip, kind, ticks) };
    ANSWERED
}

/// Returns the argument of a question for [`ask`](super::ask): what [`ask_line`] returns if vector registers are loaded. A function that
/// moves one word changes none of them.
///
/// # Safety
/// As for [`ask_briefly`].
#[inline(never)]
pub unsafe extern "sysv64" fn code_of_question(context: *mut Handover, question: u32) -> u64 {
    // SAFETY: guaranteed by the caller, as for `slow`.
    let cache = unsafe { &*(*context).cache };
    cache.code.translations.questions[question as usize].code
}

/// Counts a cache miss at an instruction by its counter, or records it if it has none.
///
/// # Safety
/// The area's table of counters is that of `origin`: it has all counters of translated code.
#[inline(always)]
unsafe fn count(
    cpu: &mut Cpu,
    running: &Running,
    origin: OriginId,
    counter: Option<u32>,
    rip: u64,
    kind: Kind,
    ticks: Ticks,
) {
    let Some(counter) = counter else { return cpu.put(origin, rip, kind, 1, ticks) };
    // SAFETY: guaranteed by the caller.
    let [count, time] = unsafe { [0, 1].map(|at| &mut *running.counts.add(counter as usize + at)) };
    *count = count.wrapping_add(1);
    match u32::try_from(ticks).ok().and_then(|ticks| time.checked_add(ticks)) {
        Some(sum) => *time = sum,
        None => cpu.put(origin, rip, kind, 0, ticks),
    }
}

/// Does the same as [`missed`](super::missed), if no event becomes due. Otherwise it returns false, and changes nothing.
///
/// # Safety
/// As for [`ask_briefly`].
pub unsafe extern "sysv64" fn missed_briefly<const TAKEN: bool>(
    context: *mut Handover,
    op: *const Op,
    place: u32,
) -> bool {
    // SAFETY: guaranteed by the caller.
    let Some(brief) = (unsafe { Brief::take(context, op, place) }) else { return false };
    // Besides, the core waits for a load that is on its way.
    let refill = brief.cpu.wiring.model.price(Kind::new(Family::BranchMiss, 0));
    let behind = brief.cpu.late_behind_runs(brief.op);
    let more = refill + brief.op.late().max(behind);
    brief.charge(more, |cpu, _, op, _| {
        cpu.charge_late_direction(op, behind);
        if TAKEN {
            cpu.ask_for_branch(op);
        }
    })
}

/// Makes an access that was probed for in vain known to the fast path, if the modelled TLB has its page, and charges
/// for it. Returns false if the instruction's handler must execute the access. `what` is the size, and [`WRITES`]. Caches are not modelled.
///
/// # Safety
/// As for [`ask_briefly`].
pub unsafe extern "sysv64" fn refill(
    context: *mut Handover,
    op: *const Op,
    place: u32,
    linear: u64,
    what: u32,
) -> bool {
    // SAFETY: guaranteed by the caller.
    let Some(Brief { cpu, running, room, .. }) = (unsafe { Brief::take(context, op, place) }) else { return false };
    cpu.take_system_flags(running);
    let charge = |cpu: &mut Cpu, kind, ticks| cpu.charge_ticks(kind, 1, ticks);
    let known = cpu.refill(linear, u64::from(what & !WRITES), what & WRITES != 0, room, charge);
    give_clock(cpu, running);
    known
}

/// Does the same as [`refill`] where caches are modelled, for an access by its number, and returns [`ANSWERED`], or the argument for
/// the instruction's handler. No vector registers are loaded.
///
/// # Safety
/// As for [`ask_briefly`].
pub unsafe extern "sysv64" fn refill_line(context: *mut Handover, number: u32, linear: u64) -> u64 {
    // SAFETY: guaranteed by the caller, as for `slow`; the area is the one that is current.
    let (context, cpu, cache, running) = unsafe {
        let context = &mut *context;
        let (cpu, cache, running) = (context.cpu, context.cache, context.running);
        (context, &mut *cpu, &mut *cache, &mut *running)
    };
    let mut access = cache.code.translations.accesses[number as usize];
    cpu.micro.clock = running.base.wrapping_add(running.budget as u64);
    let code = |cache: &BlockCache| cache.code.translations.access_codes[number as usize];
    if access.len == 0 {
        if learn(cpu, cache, &mut access, code(cache)).is_none() {
            return code(cache);
        }
        cache.code.translations.accesses[number as usize] = access;
    }
    let stop = cpu.engine.stop_at.min(context.until);
    let room = stop.saturating_sub(cpu.micro.clock).saturating_sub(access.span.into());
    if room == 0 || cpu.is_due(context, 0) {
        return code(cache);
    }
    cpu.arch.rip = access.next;
    let engine = &mut cpu.engine;
    engine.ilen = access.len;
    (engine.rest, engine.ahead) = (access.rest.into(), access.ahead.into());
    (engine.locked, engine.streams) = (access.locked, access.streams);
    cpu.take_system_flags(running);
    let (size, write) = (access.size(), access.writes());
    let counting = &*running;
    let charge = |cpu: &mut Cpu, kind: Kind, ticks: Ticks| {
        cpu.micro.clock += ticks;
        if counting.counts.is_null() {
            return;
        }
        let rip = access.next.wrapping_sub(access.len.into());
        let counter = match kind {
            accesses::COUNTED => access.waits.of(&mut cache.code, rip, kind),
            _ => None,
        };
        cache.code.translations.accesses[number as usize] = access;
        // SAFETY: the table is that of the current origin.
        unsafe { count(cpu, counting, context.origin, counter, rip, kind, ticks) };
    };
    let known = cpu.refill(linear, size, write, room, charge);
    give_clock(cpu, running);
    if known { ANSWERED } else { code(cache) }
}

/// Returns the argument of an access for its instruction's handler: what [`refill_line`] returns if vector registers are loaded. A function
/// that moves one word changes none of them.
///
/// # Safety
/// As for [`ask_briefly`].
#[inline(never)]
pub unsafe extern "sysv64" fn code_of_access(context: *mut Handover, number: u32) -> u64 {
    // SAFETY: guaranteed by the caller, as for `slow`.
    let cache = unsafe { &*(*context).cache };
    cache.code.translations.access_codes[number as usize]
}

/// Finds out what an access needs of its instruction and trace, at its first call; `code` is the argument for its handler.
#[cold]
fn learn(cpu: &Cpu, cache: &mut BlockCache, access: &mut Access, code: u64) -> Option<()> {
    let (number, place) = (code as u32, HandlerSite::decode((code >> 32) as u32));
    let op = &cache.code.ops[number as usize];
    let (index, at) = block_of(cache, place, op);
    let rest = cache.code.rests_of(index)[at];
    let span = cache.code.translations.span_of(place.number);
    access.of(op, [rest, cpu.charged_ahead(cache, index), span])
}
