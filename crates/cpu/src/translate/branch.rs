//! The stack, and the ends of blocks.

use super::asm::{M, R};
use super::emit::Emit;
use super::group::Which;
use super::layout::{FIRST, SECOND, TEST, field, host, jump, memory_register};
use crate::op::Op;
use crate::returns::Returns;
use crate::state::Cpu;
use crate::time::conditional::{Conditional, STEADY, key};
use crate::time::predictor::{Predictor, Target};
use iced_x86::OpKind;
use std::mem::offset_of;

/// Number of RSP.
const RSP: u8 = x86::reg::RSP;
/// Number of RBP.
const RBP: u8 = x86::reg::RBP;
/// Host register that contains the guest's RSP.
const STACK: R = R::R15;

/// Distance of the modelled return stack from the begin of a processor.
pub(super) const RETURNS: usize = offset_of!(Cpu, micro.predictor) + Predictor::RETURNS;

/// Returns the location of what [`Returns`](crate::returns::Returns) has for an entry of the modelled return stack, whose address is in `entry`, in
/// one of its arrays.
fn of_return(entry: R, array: usize) -> M {
    let at = offset_of!(Cpu, engine.returns) + array;
    M::at(entry, at as i32 - RETURNS as i32)
}

impl Emit<'_> {
    /// Returns the size of a stack slot in bytes.
    fn word(&self) -> i32 {
        if self.key.narrow { 4 } else { 8 }
    }

    /// Probes for the slot below the top of the stack, which is then at [`Emit::operand`].
    fn probe_push(&mut self) -> Option<usize> {
        self.probe_stack(RSP, -self.word(), true)
    }

    /// Probes for a stack slot.
    fn probe_stack(&mut self, base: u8, plus: i32, write: bool) -> Option<usize> {
        let which = Which::Stack { base, plus };
        match self.member(which) {
            Some(member) if self.reach(member, which) => None,
            _ => Some(self.probe_base(base, plus, self.word(), write)),
        }
    }

    /// Reads a stack slot or another operand of its size.
    fn load_slot(&mut self, to: R) {
        let slot = self.operand;
        if self.key.narrow { self.asm.flagless_load32(to, slot) } else { self.asm.flagless_load(to, slot) }
    }

    /// Writes a stack slot.
    fn store_slot(&mut self, from: R) {
        let slot = self.operand;
        if self.key.narrow { self.asm.flagless_store32(slot, from) } else { self.asm.flagless_store(slot, from) }
    }

    /// Writes a constant to a stack slot. May use `TEST`.
    fn store_slot_constant(&mut self, value: u64) {
        match i32::try_from(value as i64) {
            _ if self.key.narrow => self.asm.flagless_store_constant32(self.operand, value as i32),
            Ok(value) => self.asm.flagless_store_constant(self.operand, value),
            Err(_) => {
                self.asm.flagless_constant(TEST, value);
                self.store_slot(TEST);
            }
        }
    }

    /// `lea to, [from + by]`, of the size of a stack slot.
    fn add_to(&mut self, to: R, from: R, by: i32) {
        let sum = M::at(from, by);
        if self.key.narrow { self.asm.flagless_lea32(to, sum) } else { self.asm.flagless_lea(to, sum) }
    }

    /// Adds `by` to the stack pointer.
    fn move_stack(&mut self, by: i32) {
        self.add_to(STACK, STACK, by);
    }

    /// PUSH.
    pub fn push(&mut self) -> bool {
        if self.instruction().op0_kind() == OpKind::Memory {
            let Some(load) = self.probe(false) else { return false };
            self.load_slot(FIRST);
            self.asm.flagless_store(field!(target), FIRST);
            self.push_kept();
            self.back_here(load);
            return true;
        }
        let stub = self.probe_push();
        if self.instruction().op0_kind() == OpKind::Register {
            let value = self.value(self.op().r0, TEST);
            self.store_slot(value);
        } else {
            self.store_slot_constant(self.op().imm);
        }
        self.move_stack(-self.word());
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

    /// Pushes the value that is saved in the area.
    fn push_kept(&mut self) {
        self.let_go();
        let stub = self.probe_push();
        self.asm.flagless_load(TEST, field!(target));
        self.store_slot(TEST);
        self.move_stack(-self.word());
        self.back_here(stub);
    }

    /// POP to a register.
    pub fn pop(&mut self) -> bool {
        let guest = self.op().r0;
        let word = self.word();
        let stub = self.probe_stack(RSP, 0, false);
        match host(guest) {
            Some(STACK) => {
                self.load_slot(STACK);
                self.let_go();
            }
            Some(to) => {
                self.load_slot(to);
                self.move_stack(word);
            }
            None => {
                self.load_slot(TEST);
                self.asm.flagless_store(memory_register(guest), TEST);
                self.move_stack(word);
            }
        }
        self.back_here(stub);
        true
    }

    /// LEAVE.
    pub fn leave(&mut self) -> bool {
        let word = self.word();
        let stub = self.probe_stack(RBP, 0, false);
        self.add_to(STACK, R::RBP, word);
        self.load_slot(R::RBP);
        self.let_go();
        self.back_here(stub);
        true
    }

    /// Returns the encoding of a Jcc's condition.
    pub fn condition(&self) -> u8 {
        // The decoder library numbers conditions from 1, in encoding order.
        self.instruction().condition_code() as u8 - 1
    }

    /// Jcc: the flags are the guest's.
    pub fn branch(&mut self) -> bool {
        if self.source.models_directions() {
            let site = self.asm.jump_if(self.condition());
            self.decided(false);
            self.link(false, None);
            let here = self.asm.here();
            self.asm.aim(site, here);
            self.decided(true);
            self.link(true, None);
        } else {
            self.link(true, Some(self.condition()));
            self.link(false, None);
        }
        true
    }

    /// Records the direction of the conditional branch at the end of the current part, and charges a misprediction. A
    /// branch that has gone the same way for a long time changes nothing. If the branch is taken, it must be known to the front
    /// end too.
    pub fn decided(&mut self, taken: bool) {
        self.let_go();
        self.at = self.part().ops.len() - 1;
        if self.source.predicts {
            self.predict_direction(taken);
        }
        if taken {
            self.ask_for_taken();
        }
    }

    fn predict_direction(&mut self, taken: bool) {
        let key = key(self.op().rip());
        let count = M::at(TEST, Conditional::count_of(key) as i32);
        self.asm.flagless_load(TEST, field!(conditional));
        self.asm.flagless_load_part(false, TEST, count);
        let steady = if taken { STEADY } else { -STEADY };
        self.or_predict(M::at(TEST, -i32::from(steady as u8)), key, taken);
    }

    /// Pushes the return address. No later step may fail.
    fn push_return(&mut self, next: u64) {
        self.store_slot_constant(next);
        self.move_stack(-self.word());
        self.calls_under_key();
    }

    /// Records the call at the end of a part in the modelled return stack.
    pub fn note_call(&mut self, part: usize) {
        let next = self.source.parts[part].ops.last().map_or(0, |op| op.next);
        self.asm.flagless_load(SECOND, field!(returns));
        self.asm.flagless_load(SECOND, of_return(SECOND, offset_of!(Returns, next)));
        self.asm.flagless_store(field!(returns), SECOND);
        let landing = self.landing(part);
        self.asm.flagless_store(of_return(SECOND, offset_of!(Returns, code)), landing);
        self.asm.flagless_constant(TEST, next.wrapping_neg());
        self.asm.flagless_store(M::at(SECOND, 0), TEST);
    }

    /// CALL with a known target.
    pub fn call(&mut self) -> bool {
        self.probe_push();
        self.push_return(self.op().next);
        self.note_call(self.number_of_part());
        self.link(true, None);
        true
    }

    /// CALL within a trace. If the handler executes it, the trace is left. The call is recorded if the trace is left
    /// before it returns.
    pub fn call_within(&mut self) {
        self.probe_push();
        self.push_return(self.op().next);
    }

    /// Replaces the guest address in `target` by the address of its translation; jumps to the handler if that is not
    /// known. Uses `TEST` and `other`.
    fn find_target(&mut self, target: R, other: R) {
        let (negated, code) = jump(self.key.index(), other);
        self.asm.flagless_extract(TEST, target, field!(jump_mask));
        self.asm.flagless_lea(TEST, M::indexed(TEST, TEST, 0, 0));
        self.asm.flagless_load(other, field!(jumps));
        self.asm.flagless_lea(other, M::indexed(other, TEST, 3, 0));
        self.asm.flagless_load(TEST, negated);
        self.asm.flagless_lea(TEST, M::indexed(TEST, target, 0, 0));
        self.asm.flagless_load(target, code);
        self.or_otherwise();
    }

    /// RET. An entry of the modelled return stack that matches also has the address at which translated code continues.
    pub fn ret(&mut self) -> bool {
        let word = self.word();
        let Ok(release) = i32::try_from(self.op().imm) else { return false };
        if self.source.recorded && self.part().miss.is_none() {
            return false;
        }
        self.probe_stack(RSP, 0, false);
        self.load_slot(FIRST);
        self.asm.flagless_store(field!(wanted), FIRST);
        self.asm.flagless_load(SECOND, field!(returns));
        self.asm.flagless_load(TEST, M::at(SECOND, 0));
        self.or_unpredicted(M::indexed(TEST, FIRST, 0, 0), release + word);
        self.asm.flagless_load(TEST, of_return(SECOND, offset_of!(Returns, previous)));
        self.asm.flagless_store(field!(returns), TEST);
        self.move_stack(release + word);
        self.asm.flagless_constant(TEST, self.key.index() as u64);
        self.asm.jump_memory(of_return(SECOND, offset_of!(Returns, code)));
        true
    }

    /// RET of a call in the same trace. If the handler executes it, the trace is left.
    pub fn return_within(&mut self) {
        let word = self.word();
        // The maximum released is 64 KiB.
        let release = self.op().imm as i32 + word;
        self.probe_stack(RSP, 0, false);
        self.load_slot(FIRST);
        let difference = self.difference_to(self.following());
        self.or_unpredicted(difference, release);
        self.move_stack(release);
        self.let_go();
    }

    /// Returns the difference between `FIRST` and a value, which is a sum of registers and a constant. Uses `TEST`.
    fn difference_to(&mut self, value: u64) -> M {
        match i32::try_from(value.wrapping_neg() as i64) {
            Ok(negated) if negated != i32::MAX => M::at(FIRST, negated),
            _ => {
                self.asm.flagless_constant(TEST, value.wrapping_neg());
                M::indexed(TEST, FIRST, 0, 0)
            }
        }
    }

    /// The rest of a RET that was not predicted; it releases `release` bytes of the stack.
    pub fn unpredicted(&mut self, release: i32) {
        self.find_target(FIRST, SECOND);
        self.miss(None);
        self.asm.flagless_load(SECOND, field!(returns));
        self.asm.flagless_load(SECOND, of_return(SECOND, offset_of!(Returns, previous)));
        self.asm.flagless_store(field!(returns), SECOND);
        self.move_stack(release);
        self.asm.jump_register(FIRST);
    }

    /// Indirect JMP or CALL. Its target is saved in the area while the stack is probed.
    pub fn indirect(&mut self, call: bool) -> bool {
        let op: Op = *self.op();
        // Every processor uses the same slot.
        let slot = Predictor::slot(op.rip(), self.source.target_slots) * size_of::<Target>();
        let Ok(slot) = i32::try_from(slot) else { return false };
        if !self.target(&op) || self.source.recorded && self.part().miss.is_none() {
            return false;
        }
        if self.source.recorded {
            self.asm.flagless_store(field!(wanted), FIRST);
        }
        self.find_target(FIRST, SECOND);
        if call {
            self.asm.flagless_store(field!(target), FIRST);
            self.probe_push();
            self.push_return(op.next);
            self.note_call(self.number_of_part());
        }
        if self.source.recorded {
            self.predict(slot, op.rip());
        }
        if call {
            self.asm.flagless_load(FIRST, field!(target));
        }
        self.asm.jump_register(FIRST);
        true
    }

    /// Indirect JMP or CALL within a trace, with an exit for other targets. If the handler executes it, the trace is
    /// left.
    pub fn indirect_within(&mut self, call: bool) {
        let op: Op = *self.op();
        if !self.target(&op) {
            return self.handler();
        }
        let difference = self.difference_to(self.following());
        self.or_elsewhere(difference, call);
        if call {
            self.probe_push();
            self.push_return(op.next);
        }
    }

    /// Loads the target of the current indirect branch into `FIRST`. Returns false if that is not possible.
    fn target(&mut self, op: &Op) -> bool {
        if self.instruction().op0_kind() == OpKind::Memory {
            if !super::plan::native_memory(self.instruction(), op, self.key.narrow) || self.probe(false).is_none() {
                return false;
            }
            self.load_slot(FIRST);
        } else {
            let from = self.value(op.r0, FIRST);
            if from != FIRST || self.key.narrow {
                self.add_to(FIRST, from, 0);
            }
        }
        self.let_go();
        true
    }

    /// Charges the branch at `from` unless the modelled predictor has its target, which is saved in the area. No later
    /// step may fail.
    fn predict(&mut self, slot: i32, from: u64) {
        self.asm.flagless_load(SECOND, field!(targets));
        self.asm.flagless_load(SECOND, M::at(SECOND, slot + offset_of!(Target, from) as i32));
        self.asm.flagless_constant(TEST, from.wrapping_neg());
        // If the slot belongs to another branch, its target is not a prediction.
        let other_branch = self.asm.flagless_jump_unless_zero_sum(true, M::indexed(TEST, SECOND, 0, 0));
        self.asm.flagless_load(SECOND, field!(targets));
        self.asm.flagless_load(SECOND, M::at(SECOND, slot + offset_of!(Target, to) as i32));
        self.asm.flagless_not(SECOND);
        self.asm.flagless_load(TEST, field!(wanted));
        let other_target = self.asm.flagless_jump_unless_zero_sum(true, M::indexed(TEST, SECOND, 0, 1));
        self.not_its_target([other_branch, other_target], slot, from);
    }
}
