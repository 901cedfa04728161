//! String instructions: MOVS, STOS, LODS, CMPS, SCAS.
//!
//! A repeated instruction is interruptible between iterations: it stops at the first one after the deadline, with its
//! registers updated so far, and RIP unchanged. Forward runs inside pages that are on the fast path are executed in
//! bulk, for the same charge as single iterations: processors move whole words independently of the element size, so
//! that MOVS and STOS cost by the number of bytes, and the others by the number of iterations.

use crate::exec::{sized, vector};
use crate::fault::{Cause, Exec, Fault, Flow};
use crate::flags::Int;
use crate::op::{Handler, Op, SEG_FLAT, address_mask};
use crate::row::{Row, Treatment};
use crate::state::Cpu;
use crate::stops::Iterated;
use crate::time::Repeated;
use iced_x86::{Instruction, Mnemonic::*};
use ledger::{Class, Family, Kind};
use x86::{flags, reg, seg};

/// Instruction table rows of string instructions.
pub static ROWS: &[Row] = &[
    Row::new(Movsb, Class::String, string::<Move>).treated(Treatment::String),
    Row::new(Movsw, Class::String, string::<Move>).treated(Treatment::String),
    Row::new(Movsd, Class::String, movsd).treated(Treatment::String),
    Row::new(Movsq, Class::String, string::<Move>).treated(Treatment::String),
    Row::new(Stosb, Class::String, string::<Store>).treated(Treatment::String),
    Row::new(Stosw, Class::String, string::<Store>).treated(Treatment::String),
    Row::new(Stosd, Class::String, string::<Store>).treated(Treatment::String),
    Row::new(Stosq, Class::String, string::<Store>).treated(Treatment::String),
    Row::new(Lodsb, Class::String, string::<Load>),
    Row::new(Lodsw, Class::String, string::<Load>),
    Row::new(Lodsd, Class::String, string::<Load>),
    Row::new(Lodsq, Class::String, string::<Load>),
    Row::new(Cmpsb, Class::String, string::<Compare>),
    Row::new(Cmpsw, Class::String, string::<Compare>),
    Row::new(Cmpsd, Class::String, cmpsd).treated(Treatment::Vector),
    Row::new(Cmpsq, Class::String, string::<Compare>),
    Row::new(Scasb, Class::String, string::<Scan>),
    Row::new(Scasw, Class::String, string::<Scan>),
    Row::new(Scasd, Class::String, string::<Scan>),
    Row::new(Scasq, Class::String, string::<Scan>),
];

/// One iteration of a string instruction.
trait Step {
    /// True if REPE and REPNE also check ZF.
    const COMPARES: bool;
    /// True if the instruction writes memory.
    const WRITES: bool = false;
    const USES_SI: bool;
    const USES_DI: bool;

    fn once<T: Int>(cpu: &mut Cpu, op: &Op, si: u64, di: u64) -> Exec;

    /// Executes up to `count` forward iterations in bulk if possible; returns their number.
    fn many<T: Int>(_cpu: &mut Cpu, _op: &Op, _si: u64, _di: u64, _count: u64) -> u64 {
        0
    }
}

struct Move;
struct Store;
struct Load;
struct Compare;
struct Scan;

/// Returns the segment of the destination: ES, or flat in 64-bit mode.
#[inline(always)]
fn destination(cpu: &Cpu) -> u8 {
    if cpu.engine.long64 { SEG_FLAT } else { seg::ES }
}

/// Returns the number of whole elements between linear addresses and the ends of their pages or lines.
fn whole(cpu: &Cpu, size: u64, count: u64, linear: &[u64]) -> u64 {
    let unit = 1u64 << cpu.engine.front.shift();
    linear.iter().map(|l| (unit - (l & (unit - 1))) / size).fold(count, u64::min)
}

/// Returns the linear address for a bulk operation, which is possible only in segments without a limit check.
fn bulk_linear(cpu: &Cpu, segment: u8, offset: u64) -> Option<u64> {
    if segment >= SEG_FLAT {
        return Some(offset);
    }
    let s = &cpu.arch.seg[usize::from(segment & 7)];
    cpu.engine.long64.then(|| s.base.wrapping_add(offset))
}

impl Step for Move {
    const COMPARES: bool = false;
    const WRITES: bool = true;
    const USES_SI: bool = true;
    const USES_DI: bool = true;

    #[inline(always)]
    fn once<T: Int>(cpu: &mut Cpu, op: &Op, si: u64, di: u64) -> Exec {
        let value = cpu.read_seg::<T>(op.seg, si)?;
        let segment = destination(cpu);
        cpu.write_seg(segment, di, value)
    }

    fn many<T: Int>(cpu: &mut Cpu, op: &Op, si: u64, di: u64, count: u64) -> u64 {
        let (Some(from), Some(to)) = (bulk_linear(cpu, op.seg, si), bulk_linear(cpu, destination(cpu), di)) else {
            return 0;
        };
        let size = u64::from(T::SIZE);
        let n = whole(cpu, size, count, &[from, to]);
        let bytes = n * size;
        if n < 2 {
            return 0;
        }
        let (Some(source), Some(target)) = (cpu.front_read(from, bytes), cpu.front_write(to, bytes)) else { return 0 };
        let distance = (target as usize).wrapping_sub(source as usize);
        if distance != 0 && distance < bytes as usize {
            // The destination overlaps the source ahead of it: later elements read what earlier ones wrote.
            return 0;
        }
        // SAFETY: both ranges are RAM inside one page each, as ensured by the fast path; `copy` allows overlap.
        unsafe { std::ptr::copy(source, target, bytes as usize) };
        n
    }
}

impl Step for Store {
    const COMPARES: bool = false;
    const WRITES: bool = true;
    const USES_SI: bool = false;
    const USES_DI: bool = true;

    #[inline(always)]
    fn once<T: Int>(cpu: &mut Cpu, _: &Op, _: u64, di: u64) -> Exec {
        let value = cpu.get::<T>(reg::RAX);
        let segment = destination(cpu);
        cpu.write_seg(segment, di, value)
    }

    fn many<T: Int>(cpu: &mut Cpu, _: &Op, _: u64, di: u64, count: u64) -> u64 {
        let Some(to) = bulk_linear(cpu, destination(cpu), di) else { return 0 };
        let size = u64::from(T::SIZE);
        let n = whole(cpu, size, count, &[to]);
        let Some(target) = cpu.front_write(to, n * size) else { return 0 };
        let value = cpu.get::<T>(reg::RAX);
        for i in 0..n as usize {
            // SAFETY: element `i` of `n` is inside the range that the fast path has returned.
            unsafe { target.cast::<T>().add(i).write_unaligned(value) };
        }
        n
    }
}

impl Step for Load {
    const COMPARES: bool = false;
    const USES_SI: bool = true;
    const USES_DI: bool = false;

    #[inline(always)]
    fn once<T: Int>(cpu: &mut Cpu, op: &Op, si: u64, _: u64) -> Exec {
        let value = cpu.read_seg::<T>(op.seg, si)?;
        cpu.set(reg::RAX, value);
        Ok(())
    }
}

impl Step for Compare {
    const COMPARES: bool = true;
    const USES_SI: bool = true;
    const USES_DI: bool = true;

    #[inline(always)]
    fn once<T: Int>(cpu: &mut Cpu, op: &Op, si: u64, di: u64) -> Exec {
        let segment = destination(cpu);
        let b = cpu.read_seg::<T>(segment, di)?;
        let a = cpu.read_seg::<T>(op.seg, si)?;
        cpu.arch.lazy.set_sub(a, b, T::from_u64(a.to_u64().wrapping_sub(b.to_u64())));
        Ok(())
    }
}

impl Step for Scan {
    const COMPARES: bool = true;
    const USES_SI: bool = false;
    const USES_DI: bool = true;

    #[inline(always)]
    fn once<T: Int>(cpu: &mut Cpu, _: &Op, _: u64, di: u64) -> Exec {
        let a = cpu.get::<T>(reg::RAX);
        let segment = destination(cpu);
        let b = cpu.read_seg::<T>(segment, di)?;
        cpu.arch.lazy.set_sub(a, b, T::from_u64(a.to_u64().wrapping_sub(b.to_u64())));
        Ok(())
    }
}

/// Returns the element size in bytes, by mnemonic.
fn element(i: &Instruction) -> u8 {
    match i.mnemonic() {
        Movsb | Stosb | Lodsb | Cmpsb | Scasb => 1,
        Movsw | Stosw | Lodsw | Cmpsw | Scasw => 2,
        Movsd | Stosd | Lodsd | Cmpsd | Scasd => 4,
        _ => 8,
    }
}

fn string<S: Step>(i: &Instruction, op: &mut Op) -> Option<Handler> {
    op.size = element(i);
    if op.has(Op::REPE) || op.has(Op::REPNE) { sized!(op.size; repeated<S>) } else { sized!(op.size; single<S>) }
}

/// Binds MOVSD, which is also an SSE2 instruction; one mnemonic has one row.
fn movsd(i: &Instruction, op: &mut Op) -> Option<Handler> {
    match i.code() {
        iced_x86::Code::Movsd_m32_m32 => string::<Move>(i, op),
        _ => vector::shared(i, op),
    }
}

/// Binds CMPSD, which is also an SSE2 instruction.
fn cmpsd(i: &Instruction, op: &mut Op) -> Option<Handler> {
    match i.code() {
        iced_x86::Code::Cmpsd_m32_m32 => string::<Compare>(i, op),
        _ => vector::shared(i, op),
    }
}

#[inline(always)]
fn advance(cpu: &mut Cpu, op: &Op, register: u8, elements: u64) {
    let bytes = elements.wrapping_mul(u64::from(op.size));
    let delta = if cpu.arch.flags & flags::DF != 0 { bytes.wrapping_neg() } else { bytes };
    let value = cpu.arch.gpr[usize::from(register)].wrapping_add(delta);
    cpu.set_sized(register, op.asize, value);
}

#[inline(always)]
fn pointers(cpu: &Cpu, op: &Op) -> (u64, u64) {
    let mask = address_mask(op.asize);
    (cpu.arch.gpr[usize::from(reg::RSI)] & mask, cpu.arch.gpr[usize::from(reg::RDI)] & mask)
}

#[inline(always)]
fn step<S: Step, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec {
    let (si, di) = pointers(cpu, op);
    S::once::<T>(cpu, op, si, di)?;
    moved::<S>(cpu, op, 1);
    Ok(())
}

#[inline(always)]
fn moved<S: Step>(cpu: &mut Cpu, op: &Op, elements: u64) {
    if S::USES_SI {
        advance(cpu, op, reg::RSI, elements);
    }
    if S::USES_DI {
        advance(cpu, op, reg::RDI, elements);
    }
}

fn single<S: Step, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    step::<S, T>(cpu, op)?;
    Ok(Flow::Next)
}

/// A repeated instruction with 32-bit addresses clears the upper halves of its counter, and of the pointers of MOVS and
/// STOS, even without an iteration (the manual is silent; Intel processors do so).
fn zero_extend<S: Step>(cpu: &mut Cpu) {
    cpu.arch.gpr[usize::from(reg::RCX)] &= 0xffff_ffff;
    if S::WRITES {
        if S::USES_SI {
            cpu.arch.gpr[usize::from(reg::RSI)] &= 0xffff_ffff;
        }
        cpu.arch.gpr[usize::from(reg::RDI)] &= 0xffff_ffff;
    }
}

/// Number of bytes that a step of MOVS or STOS moves.
const STEP: u64 = 8;

/// Returns the number of steps for which `elements` iterations in one run are charged.
fn steps<S: Step, T: Int>(elements: u64) -> u64 {
    if S::WRITES { elements.saturating_mul(u64::from(T::SIZE)).div_ceil(STEP) } else { elements }
}

/// Returns the minimum number of iterations in one run that are charged as at least `steps`.
fn iterations<S: Step, T: Int>(steps: u64) -> u64 {
    match steps.checked_sub(1) {
        Some(before) if S::WRITES => (before.saturating_mul(STEP) / u64::from(T::SIZE)).saturating_add(1),
        _ => steps,
    }
}

fn repeated<S: Step, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let mask = address_mask(op.asize);
    let per_step = cpu.class_price(Class::StringStep).max(1);
    let (mut done, mut before) = (0, cpu.arch.lazy);
    if let Some(stopped) = &cpu.engine.stopping.iterated {
        (done, before) = (stopped.done, stopped.before);
        cpu.engine.stopping.iterated = None;
    }
    let arrived = done;
    let mut interrupted = false;
    if op.asize == 4 {
        zero_extend::<S>(cpu);
    }
    let result = loop {
        let count = cpu.arch.gpr[usize::from(reg::RCX)] & mask;
        if count == 0 {
            break Ok(Flow::Next);
        }
        if cpu.engine.stopping.iterating && done != arrived {
            cpu.engine.stopping.iterated = Some(Iterated { done, before });
            cpu.engine.fault = Cause::Iteration;
            return Err(Fault);
        }
        // Interrupts are taken between iterations, and not before the first.
        let due = iterations::<S, T>(cpu.stop_but_for_samples().saturating_sub(cpu.micro.clock).div_ceil(per_step));
        if done != 0 && done >= due {
            interrupted = true;
            break Ok(Flow::End);
        }
        let forward = cpu.arch.flags & flags::DF == 0;
        let many = if forward && !S::COMPARES && op.asize == 8 && !cpu.engine.stopping.iterating {
            let (si, di) = pointers(cpu, op);
            S::many::<T>(cpu, op, si, di, count.min(due.saturating_sub(done).max(1)))
        } else {
            0
        };
        if many != 0 {
            moved::<S>(cpu, op, many);
            cpu.set_sized(reg::RCX, op.asize, count - many);
            done += many;
            continue;
        }
        if let Err(fault) = step::<S, T>(cpu, op) {
            // The registers hold the progress; the flags are those before the instruction (SDM vol. 2, REP).
            cpu.arch.lazy = before;
            break Err(fault);
        }
        cpu.set_sized(reg::RCX, op.asize, count - 1);
        done += 1;
        if S::COMPARES && cpu.arch.lazy.zf() != op.has(Op::REPE) {
            break Ok(Flow::Next);
        }
    };
    if done != 0 || result.is_ok() {
        charge_steps::<S, T>(cpu, op, done);
    }
    if interrupted {
        // The iterations were charged to this instruction, which begins again.
        cpu.arch.rip = op.rip();
    }
    result
}

/// Charges so many iterations of a repeated instruction, which have been executed without interruption.
fn charge_steps<S: Step, T: Int>(cpu: &mut Cpu, op: &Op, done: u64) {
    let steps = steps::<S, T>(done);
    if S::WRITES {
        let (si, di) = pointers(cpu, op);
        let length = done.saturating_mul(u64::from(T::SIZE));
        let source = S::USES_SI.then(|| si.wrapping_sub(length));
        let repeated = Repeated { size: T::SIZE, length, destination: di.wrapping_sub(length), source };
        if let Some(price) = cpu.wiring.model.timing.repeated(&repeated) {
            let kind = Kind::new(Family::Instruction, Class::StringStep as u32);
            let price = if cpu.arch.flags & flags::DF == 0 {
                price
            } else {
                // The slow form: its start and its steps have the prices of classes.
                cpu.class_price(Class::String) + cpu.class_price(Class::StringStep) * steps
            };
            return cpu.charge_ticks(kind, steps.max(1), price);
        }
    }
    if steps != 0 {
        cpu.charge_class(Class::StringStep, steps);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{DATA, Machine};
    use iced_x86::code_asm::*;
    use ledger::TICKS_PER_CYCLE;

    /// Runs a repeated instruction of `count` iterations with `steps` left before the deadline, forwards or backwards
    /// from the middle of the data. Returns the number of iterations and of steps executed.
    fn go(
        write: impl FnOnce(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>,
        (count, steps): (u64, u64),
        backwards: bool,
    ) -> (u64, u64) {
        let mut m = Machine::long64(0);
        m.cpu.arch.gpr[usize::from(reg::RCX)] = count;
        m.cpu.arch.gpr[usize::from(reg::RSI)] = DATA + 0x10_0000 - 3;
        m.cpu.arch.gpr[usize::from(reg::RDI)] = DATA + 0x8_0000 - 5;
        m.cpu.arch.flags |= if backwards { flags::DF } else { 0 };
        m.cpu.engine.stop_at = m.cpu.micro.clock.saturating_add(steps.saturating_mul(TICKS_PER_CYCLE));
        let before = m.cpu.micro.clock;
        m.code(write);
        let start = m.cpu.arch.rip;
        m.step().expect("no exception");
        let own = |steps: &(_, u64, Kind, _)| steps.2.family != Family::Instruction || steps.1 == start;
        assert!(
            m.cpu.wiring.recorder.events().all(|steps| own(&steps)),
            "an interrupted instruction is charged its steps"
        );
        (count - m.cpu.arch.gpr[usize::from(reg::RCX)], (m.cpu.micro.clock - before) / TICKS_PER_CYCLE)
    }

    #[test]
    fn moves_and_stores_cost_by_what_they_moved() {
        for backwards in [false, true] {
            for count in [0, 1, 8, 9, 5000, 10_001] {
                let all = (count, u64::MAX);
                assert_eq!(go(|a| a.rep().movsb(), all, backwards), (count, count.div_ceil(8)));
                assert_eq!(go(|a| a.rep().movsw(), all, backwards), (count, count.div_ceil(4)));
                assert_eq!(go(|a| a.rep().stosd(), all, backwards), (count, count.div_ceil(2)));
                assert_eq!(go(|a| a.rep().stosq(), all, backwards), (count, count));
                assert_eq!(go(|a| a.rep().lodsb(), all, backwards), (count, count));
            }
        }
    }

    #[test]
    fn they_stop_at_the_first_iteration_after_the_deadline() {
        for backwards in [false, true] {
            assert_eq!(go(|a| a.rep().movsb(), (10_000, 1000), backwards), (7993, 1000));
            assert_eq!(go(|a| a.rep().stosw(), (10_000, 1000), backwards), (3997, 1000));
            assert_eq!(go(|a| a.rep().movsd(), (10_000, 1000), backwards), (1999, 1000));
            assert_eq!(go(|a| a.rep().stosq(), (10_000, 1000), backwards), (1000, 1000));
            assert_eq!(go(|a| a.rep().lodsb(), (10_000, 1000), backwards), (1000, 1000));
            assert_eq!(go(|a| a.rep().stosb(), (10_000, 0), backwards), (1, 1));
        }
    }
}
