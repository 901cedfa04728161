//! MOVS and STOS, also with REP: forward, inside pages that are in the tables, and while no event is due.

use super::asm::{M, R};
use super::emit::Emit;
use super::layout::{BUDGET, FIRST, SECOND, TEST, field};
use super::trace::Way;
use crate::op::Op;
use iced_x86::OpKind;
use x86::flags;

/// Guest registers, by their host registers.
const RCX: R = R::R9;
const RSI: R = R(6);
const RDI: R = R(7);
/// A host register that is used temporarily.
const RDX: R = R(2);
/// Log2 of the number of bytes that a step of MOVS or STOS moves.
const STEP_SHIFT: u64 = 3;

impl Emit<'_> {
    /// Emits MOVS or STOS.
    pub fn string(&mut self) -> bool {
        let op = *self.op();
        let moves = (0..2).any(|n| self.instruction().op_kind(n) == OpKind::MemorySegRSI);
        // Check of the direction flag.
        self.asm.flagless_load(SECOND, field!(system_flags));
        self.asm.flagless_constant(TEST, flags::DF);
        self.asm.flagless_extract_by(TEST, SECOND, TEST);
        let mut stubs = vec![self.or_otherwise()];
        let done = if op.has(Op::REPE) {
            self.repeated(&op, moves, &mut stubs)
        } else {
            self.single(&op, moves, &mut stubs);
            true
        };
        stubs.into_iter().for_each(|stub| self.back_here(stub));
        done
    }

    fn single(&mut self, op: &Op, moves: bool, stubs: &mut Vec<usize>) {
        let size = i32::from(op.size);
        let mut value = R::RAX;
        if moves {
            stubs.push(self.probe_at(RSI, size, false));
            let at = self.operand;
            match size {
                8 => self.asm.flagless_load(TEST, at),
                4 => self.asm.flagless_load32(TEST, at),
                _ => self.asm.flagless_load_part(size == 2, TEST, at),
            }
            self.asm.flagless_store(field!(target), TEST);
        }
        stubs.push(self.probe_at(RDI, size, true));
        let at = self.operand;
        if moves {
            self.asm.flagless_load(TEST, field!(target));
            self.asm.flagless_lea(RSI, M::at(RSI, size));
            value = TEST;
        }
        match size {
            8 => self.asm.flagless_store(at, value),
            4 => self.asm.flagless_store32(at, value),
            _ => self.asm.flagless_store_part(size == 2, at, value),
        }
        self.asm.flagless_lea(RDI, M::at(RDI, size));
    }

    /// Probes for all elements at `pointer`; `FIRST` is then the host address of the first one. `only` is true if the
    /// instruction has no other elements: their page may leave the TLB for this one.
    fn elements(&mut self, pointer: R, op: &Op, write: bool, only: bool, stubs: &mut Vec<usize>) {
        let size = i32::from(op.size);
        if only {
            stubs.push(self.probe_at(pointer, size, write));
        } else {
            self.look(pointer, size, write);
            stubs.push(self.or_otherwise());
        }
        self.asm.flagless_lea(FIRST, self.operand);
        // The last element must end in the page or line of the first one.
        self.asm.flagless_extract(TEST, FIRST, field!(offset_mask));
        self.asm.flagless_lea(TEST, M::indexed(TEST, RCX, op.size.trailing_zeros() as u8, -1));
        self.beyond();
        stubs.push(self.or_otherwise());
    }

    fn repeated(&mut self, op: &Op, moves: bool, stubs: &mut Vec<usize>) -> bool {
        let Some(event) = self.event() else { return false };
        let scale = op.size.trailing_zeros() as u8;
        self.asm.flagless_copy(TEST, RCX);
        let none = self.asm.flagless_if_zero();
        let some = self.asm.jump_on();
        self.asm.land(none);
        let end = self.asm.jump();
        self.asm.land(some);
        // Fewer than the number of bytes in a page, so nothing overflows.
        self.asm.flagless_shift_right(TEST, RCX, R::RSP);
        stubs.push(self.or_otherwise());
        if moves {
            self.elements(RSI, op, false, false, stubs);
            self.asm.flagless_store(field!(target), FIRST);
        }
        self.elements(RDI, op, true, !moves, stubs);
        // `SECOND` is the number of steps, and the time after them follows from it.
        if u64::from(scale) == STEP_SHIFT {
            self.asm.flagless_copy(SECOND, RCX);
        } else {
            self.asm.flagless_lea_scaled(true, SECOND, RCX, scale, (1 << STEP_SHIFT) - 1);
            self.asm.flagless_constant(TEST, STEP_SHIFT);
            self.asm.flagless_shift_right(SECOND, SECOND, TEST);
        }
        self.asm.flagless_store(field!(wanted), RDX);
        if let Some(counter) = event.counter {
            // A step is so cheap that its counter could overflow.
            self.asm.flagless_load(TEST, field!(counts));
            self.asm.flagless_load32(TEST, M::at(TEST, 4 * counter as i32));
            self.asm.flagless_constant(RDX, 31);
            self.asm.flagless_shift_right(TEST, TEST, RDX);
            self.asm.flagless_load(RDX, field!(wanted));
            stubs.push(self.or_otherwise());
        }
        self.asm.flagless_constant(RDX, u64::from(event.ticks));
        self.asm.flagless_multiply(RDX, TEST, SECOND);
        self.asm.flagless_load(RDX, field!(wanted));
        self.asm.flagless_lea(TEST, M::indexed(BUDGET, TEST, 0, 0));
        self.asm.flagless_store(field!(wanted), TEST);
        if self.part().way != Way::End {
            // No event may become due within a trace.
            self.asm.flagless_lea(TEST, M::at(TEST, self.source.span() as i32));
        }
        self.asm.flagless_rotate(true, TEST, TEST, 32);
        self.asm.flagless_lea32(TEST, M::at(TEST, 0));
        let due = self.asm.flagless_if_zero();
        let in_time = self.asm.jump_on();
        self.asm.land(due);
        stubs.push(self.otherwise());
        self.asm.land(in_time);
        // No later step can fail.
        self.asm.flagless_load(BUDGET, field!(wanted));
        self.asm.flagless_lea(TEST, M::indexed(RDI, RCX, scale, 0));
        self.asm.flagless_store(field!(wanted), TEST);
        self.asm.flagless_copy(RDI, FIRST);
        if let Some(counter) = event.counter {
            let count = M::at(TEST, 4 * counter as i32);
            self.asm.flagless_load(TEST, field!(counts));
            self.asm.flagless_load32(FIRST, count);
            self.asm.flagless_lea32(FIRST, M::indexed(FIRST, SECOND, 0, 0));
            self.asm.flagless_store32(count, FIRST);
        }
        if moves {
            self.asm.flagless_lea(FIRST, M::indexed(RSI, RCX, scale, 0));
            self.asm.flagless_load(RSI, field!(target));
        }
        self.asm.flagless_copy(TEST, RCX);
        self.asm.repeat_string(moves, op.size);
        self.asm.flagless_load(RDI, field!(wanted));
        if moves {
            self.asm.flagless_copy(RSI, FIRST);
        }
        self.asm.flagless_constant(RCX, 0);
        let here = self.asm.here();
        self.asm.aim(end, here);
        true
    }
}
