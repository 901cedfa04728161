//! Callbacks that need little of the processor's state, and return to their caller: misses of the fast path, questions for code, and mispredicted
//! branches, which are by far the most frequent ones where caches are modelled.
//!
//! They charge only if no event becomes due before the trace ends. Otherwise they change nothing, and translated code calls for the
//! full form.

use super::{Handover, block_of};
use crate::op::Op;
use crate::state::Cpu;
use crate::translate::BlockCache;
use crate::translate::layout::Running;
use crate::translate::questions::{ANSWERED, COUNTED};
use crate::translate::trace::HandlerSite;
use ledger::{Family, Kind, Ticks};

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
/// returns the argument for [`ask`](super::ask). So it does if vector registers are `loaded`, which compiled code would change.
///
/// # Safety
/// As for [`ask_briefly`].
pub unsafe extern "sysv64" fn ask_line(context: *mut Handover, question: u32, loaded: u64) -> u64 {
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
    if loaded != 0 || cpu.is_due(context, 0) || !cpu.may_ask(room) {
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
        COUNTED => asked.counter(|rip| cache.code.timed_event(rip, COUNTED)),
        _ => None,
    };
    cache.code.translations.questions[question as usize] = asked;
    let Some(counter) = counter else {
        cpu.put(context.origin, asked.rip, kind, 1, ticks);
        return ANSWERED;
    };
    // SAFETY: the table of the current origin, which has all counters of translated code.
    let [count, time] = unsafe { [0, 1].map(|at| &mut *running.counts.add(counter as usize + at)) };
    *count = count.wrapping_add(1);
    match u32::try_from(ticks).ok().and_then(|ticks| time.checked_add(ticks)) {
        Some(sum) => *time = sum,
        None => cpu.put(context.origin, asked.rip, kind, 0, ticks),
    }
    ANSWERED
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

/// In the last argument of [`refill`]: the access is a write.
pub const WRITES: u32 = 1 << 31;

/// Makes an access that was probed for in vain known to the fast path, if the modelled TLB has its page, and charges
/// for it. Returns false if the instruction's handler must execute the access. `what` is the size, and [`WRITES`].
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
    let known = cpu.refill(linear, u64::from(what & !WRITES), what & WRITES != 0, room);
    give_clock(cpu, running);
    known
}
