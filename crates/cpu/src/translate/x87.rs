//! x87 instructions: native, on the host's x87 unit.
//!
//! Compiled code expects that unit to be empty and to have a control word of its own, so it contains the guest's state
//! only from the first x87 instruction of a piece of translated code on ([`super::unit::load`]), until it leaves or
//! calls a handler, as with vector registers. All exceptions must be masked and none pending, so that no instruction
//! can trap. The host then updates registers, tags, condition codes and exception flags. The pointers of the last
//! instruction, which on the host would refer to translated code, are recorded by index and resolved when the state is
//! taken back. Functions whose results differ between processors are left to their handlers.

use super::asm::{M, R};
use super::emit::Emit;
use super::fit::{has_memory, treatment};
use super::layout::{FIRST, Need, RESERVED_PRECISION, TEST, field};
use crate::row::Treatment;
use iced_x86::Mnemonic;

impl Emit<'_> {
    /// Emits the current instruction.
    pub fn x87(&mut self) -> bool {
        let mut i = *self.instruction();
        let Treatment::X87 { notes, writes } = treatment(&i) else { return false };
        self.ready(Need::X87);
        if i.mnemonic() == Mnemonic::Wait {
            return true;
        }
        if !has_memory(&i) {
            if notes && !self.next_notes() {
                self.note(field!(x87.last));
            }
            return self.native(&i);
        }
        let notes_data = notes && self.source.data_pointers;
        if notes_data {
            self.let_go();
            if !self.address(FIRST, false, false) {
                return false;
            }
            self.asm.flagless_store(field!(x87.at_hand), FIRST);
        }
        let Some(stub) = self.probe(writes) else { return false };
        let mut otherwise = None;
        if i.mnemonic() == Mnemonic::Fldcw {
            otherwise = Some(self.check_control());
        }
        if notes_data {
            self.asm.flagless_load(TEST, field!(x87.at_hand));
            self.asm.flagless_store(field!(x87.data), TEST);
            self.note(field!(x87.last_data));
        }
        if notes {
            self.note(field!(x87.last));
        }
        self.at_operand(&mut i);
        if !self.native(&i) {
            return false;
        }
        self.back_here(stub);
        for stub in otherwise.into_iter().flatten() {
            self.back_here(stub);
            // The handler may have unmasked exceptions.
            self.loaded &= !Need::X87.bit();
        }
        true
    }

    /// Records the current instruction as the last one.
    fn note(&mut self, place: M) {
        self.asm.flagless_store_constant32(place, (self.number() + 1) as i32);
    }

    /// Returns true if the next instruction certainly records itself, so that this one need not.
    fn next_notes(&self) -> bool {
        let Some(next) = self.part().instructions.get(self.at + 1) else { return false };
        next.code() as u16 == self.part().ops[self.at + 1].form.code()
            && !has_memory(next)
            && matches!(treatment(next), Treatment::X87 { notes: true, .. })
    }

    /// Lets the handler load a control word that unmasks an exception or has a reserved precision.
    fn check_control(&mut self) -> [usize; 2] {
        self.asm.flagless_load_part(true, TEST, self.operand);
        self.asm.flagless_not(TEST);
        self.asm.flagless_extract(TEST, TEST, field!(x87.exceptions));
        let unmasked = self.or_otherwise();
        self.asm.flagless_load_part(true, TEST, self.operand);
        self.asm.flagless_extract(TEST, TEST, field!(x87.precision));
        self.asm.flagless_lea(TEST, M::at(TEST, -i32::from(RESERVED_PRECISION >> 8)));
        let reserved = self.asm.flagless_if_zero();
        let good = self.asm.jump();
        self.asm.land(reserved);
        let bad = self.otherwise();
        let here = self.asm.here();
        self.asm.aim(good, here);
        [unmasked, bad]
    }
}
