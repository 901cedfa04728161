//! The stack, and the ways in which a block ends.

use super::asm::{M, R};
use super::emit::Emit;
use super::layout::{FIRST, SECOND, TEST, field, host, jumps, memory_register};
use crate::op::Op;
use crate::predict::{Predictor, Return, Target};
use iced_x86::OpKind;
use std::mem::offset_of;

/// Number of RSP.
const RSP: u8 = crate::state::reg::RSP;
/// The host register that holds the guest's RSP.
const STACK: R = R::R15;

impl Emit<'_> {
    /// Probes for the eight bytes below the top of the stack; they are at `FIRST + SECOND - 7`.
    fn probe_push(&mut self) -> usize {
        self.probe_base(RSP, -8, 8, true)
    }

    /// Moves the stack pointer.
    fn move_stack(&mut self, by: i32) {
        self.asm.flagless_lea(STACK, M::at(STACK, by));
        match &mut self.page {
            Some(page) if page.base == RSP => {
                page.first -= i64::from(by);
                page.last -= i64::from(by);
            }
            _ => {}
        }
    }

    pub fn found() -> M {
        M::indexed(FIRST, SECOND, 0, -7)
    }

    /// PUSH.
    pub fn push(&mut self) -> bool {
        if self.instruction().op0_kind() == OpKind::Memory {
            let Some(load) = self.probe(false) else { return false };
            self.asm.flagless_load(FIRST, Self::found());
            self.asm.flagless_store(field!(target), FIRST);
            self.push_kept();
            self.back_here(load);
            return true;
        }
        let stub = self.probe_push();
        if self.instruction().op0_kind() == OpKind::Register {
            let value = self.value(self.op().r0, TEST);
            self.asm.flagless_store(Self::found(), value);
        } else {
            let Ok(value) = i32::try_from(self.op().imm as i64) else { return false };
            self.asm.flagless_store_constant(Self::found(), value);
        }
        self.move_stack(-8);
        self.back_here(stub);
        true
    }

    /// PUSHFQ.
    pub fn push_flags(&mut self) -> bool {
        self.asm.flagless_copy(FIRST, R::RAX);
        // lahf; seto al; movzx ecx, ah; movzx eax, al; rorx eax, eax, 21: OF is bit 11.
        self.asm.bytes(&[0x9f, 0x0f, 0x90, 0xc0, 0x0f, 0xb6, 0xcc, 0x0f, 0xb6, 0xc0]);
        self.asm.flagless_rotate(false, R::RAX, R::RAX, 21);
        self.asm.flagless_lea(TEST, M::indexed(TEST, R::RAX, 0, 0));
        self.asm.flagless_copy(R::RAX, FIRST);
        for rest in [field!(interrupts), field!(access_control), field!(system_flags)] {
            self.asm.flagless_load(SECOND, rest);
            self.asm.flagless_lea(TEST, M::indexed(TEST, SECOND, 0, 0));
        }
        self.asm.flagless_store(field!(target), TEST);
        self.push_kept();
        true
    }

    /// Pushes what is kept in the area.
    fn push_kept(&mut self) {
        self.page = None;
        let stub = self.probe_push();
        self.asm.flagless_load(TEST, field!(target));
        self.asm.flagless_store(Self::found(), TEST);
        self.move_stack(-8);
        self.back_here(stub);
    }

    /// POP to a register.
    pub fn pop(&mut self) -> bool {
        let guest = self.op().r0;
        let stub = self.probe_base(RSP, 0, 8, false);
        match host(guest) {
            Some(STACK) => {
                self.asm.flagless_load(STACK, Self::found());
                self.page = None;
            }
            Some(to) => {
                self.asm.flagless_load(to, Self::found());
                self.move_stack(8);
            }
            None => {
                self.asm.flagless_load(TEST, Self::found());
                self.asm.flagless_store(memory_register(guest), TEST);
                self.move_stack(8);
            }
        }
        self.back_here(stub);
        true
    }

    /// LEAVE.
    pub fn leave(&mut self) -> bool {
        let stub = self.probe_base(5, 0, 8, false);
        self.asm.flagless_lea(STACK, M::at(R::RBP, 8));
        self.asm.flagless_load(R::RBP, Self::found());
        self.page = None;
        self.back_here(stub);
        true
    }

    /// Jcc: the flags are the guest's.
    pub fn branch(&mut self) -> bool {
        let condition = self.instruction().condition_code() as u8;
        // The decoder library numbers conditions from 1, in the order of their encodings.
        self.link(0, Some(condition - 1));
        self.link(1, None);
        true
    }

    /// Pushes the return address and notes it in the modelled return stack. Nothing may fail afterwards.
    fn note_call(&mut self, next: u64) {
        self.asm.flagless_constant(TEST, next);
        self.asm.flagless_store(Self::found(), TEST);
        self.asm.flagless_lea(STACK, M::at(STACK, -8));
        if !self.source.recorded {
            return;
        }
        self.asm.flagless_load(SECOND, field!(returns));
        self.asm.flagless_load(SECOND, M::at(SECOND, offset_of!(Return, next) as i32));
        self.asm.flagless_store(field!(returns), SECOND);
        self.asm.flagless_constant(TEST, next.wrapping_neg());
        self.asm.flagless_store(M::at(SECOND, offset_of!(Return, negated) as i32), TEST);
    }

    /// CALL to a known place.
    pub fn call(&mut self) -> bool {
        let next = self.op().next;
        self.probe_push();
        self.note_call(next);
        self.link(0, None);
        true
    }

    /// Where the target in `target` is translated, in `code`; jumps to the handler if that is not known. Uses `TEST`; the
    /// target's register may be `code`.
    fn find_target(&mut self, target: R, other: R) {
        let (negated, code) = jumps(self.key as usize);
        self.asm.flagless_extract(TEST, target, field!(jump_mask));
        self.asm.flagless_lea(TEST, M::indexed(TEST, TEST, 0, 0));
        self.asm.flagless_load(other, M::indexed(R::RSP, TEST, 3, negated));
        self.asm.flagless_lea(other, M::indexed(other, target, 0, 0));
        self.asm.flagless_load(target, M::indexed(R::RSP, TEST, 3, code));
        self.asm.flagless_copy(TEST, other);
        self.or_otherwise();
    }

    /// RET.
    pub fn ret(&mut self) -> bool {
        let Ok(release) = i32::try_from(self.op().imm + 8) else { return false };
        self.probe_base(RSP, 0, 8, false);
        self.asm.flagless_load(FIRST, Self::found());
        if self.source.recorded {
            self.asm.flagless_load(SECOND, field!(returns));
            self.asm.flagless_load(TEST, M::at(SECOND, offset_of!(Return, negated) as i32));
            self.asm.flagless_lea(TEST, M::indexed(TEST, FIRST, 0, 0));
            self.or_otherwise();
        }
        self.find_target(FIRST, SECOND);
        if self.source.recorded {
            self.asm.flagless_load(SECOND, field!(returns));
            self.asm.flagless_load(SECOND, M::at(SECOND, offset_of!(Return, previous) as i32));
            self.asm.flagless_store(field!(returns), SECOND);
        }
        self.asm.flagless_lea(STACK, M::at(STACK, release));
        self.asm.jump_register(FIRST);
        true
    }

    /// Indirect JMP or CALL. Its target is kept in the area while the stack is probed.
    pub fn indirect(&mut self, call: bool) -> bool {
        let op: Op = *self.op();
        let page = self.page.take();
        if self.instruction().op0_kind() == OpKind::Memory {
            self.page = page;
            if !super::plan::native_memory(self.instruction(), &op) || self.probe(false).is_none() {
                return false;
            }
            self.asm.flagless_load(FIRST, Self::found());
        } else {
            let from = self.value(op.r0, FIRST);
            if from != FIRST {
                self.asm.flagless_copy(FIRST, from);
            }
        }
        self.page = None;
        if self.source.recorded && !self.predicted(&op) {
            return false;
        }
        self.find_target(FIRST, SECOND);
        if call {
            self.asm.flagless_store(field!(target), FIRST);
            self.probe_push();
            self.note_call(op.next);
            self.asm.flagless_load(FIRST, field!(target));
        }
        self.asm.jump_register(FIRST);
        true
    }

    /// Leaves it to the handler unless the modelled predictor has the target in `FIRST`. `false`: that cannot be looked up.
    fn predicted(&mut self, op: &Op) -> bool {
        // The slot is the same on every processor.
        let slot = Predictor::slot(op.rip(), self.source.target_slots) * size_of::<Target>();
        let Ok(slot) = i32::try_from(slot) else { return false };
        self.asm.flagless_load(SECOND, field!(targets));
        self.asm.flagless_load(SECOND, M::at(SECOND, slot + offset_of!(Target, from) as i32));
        self.asm.flagless_constant(TEST, op.rip().wrapping_neg());
        self.asm.flagless_lea(TEST, M::indexed(TEST, SECOND, 0, 0));
        self.or_otherwise();
        self.asm.flagless_load(SECOND, field!(targets));
        self.asm.flagless_load(TEST, M::at(SECOND, slot + offset_of!(Target, to) as i32));
        self.asm.flagless_not(TEST);
        self.asm.flagless_lea(TEST, M::indexed(TEST, FIRST, 0, 1));
        self.or_otherwise();
        true
    }

    /// Goes on if `TEST` is zero; else the handler runs the instruction.
    pub fn or_otherwise(&mut self) {
        let hit = self.asm.flagless_if_zero();
        self.otherwise();
        self.asm.land(hit);
    }
}
