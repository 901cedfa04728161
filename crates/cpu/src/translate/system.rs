//! Instructions on flags that concern the system, and on bits in memory.

use super::asm::{M, R};
use super::emit::{Access, Emit};
use super::layout::{FIRST, TEST, field, host};
use crate::flags;
use iced_x86::Mnemonic;

impl Emit<'_> {
    /// CLI, where no privilege can be missing.
    pub fn mask_interrupts(&mut self) -> bool {
        if self.key.access == Access::User {
            return false;
        }
        self.asm.flagless_store_constant(field!(interrupts), 0);
        true
    }

    /// STAC or CLAC, where there is no doubt that the processor has them and they are allowed.
    pub fn access_control(&mut self, set: bool) -> bool {
        if !matches!(self.key.access, Access::SupervisorOnly | Access::Override) {
            return false;
        }
        self.asm.flagless_store_constant(field!(access_control), if set { flags::AC as i32 } else { 0 });
        true
    }

    /// BT, BTS, BTR or BTC of memory by a register: the bit may be far from the operand.
    pub fn bit_in_memory(&mut self) -> bool {
        let Some(index) = host(self.op().r1) else { return false };
        let opcode = match self.instruction().mnemonic() {
            Mnemonic::Bt => 0xa3,
            Mnemonic::Bts => 0xab,
            Mnemonic::Btr => 0xb3,
            _ => 0xbb,
        };
        self.page = None;
        if self.key.narrow || !self.address(FIRST, false, true) {
            return false;
        }
        self.asm.flagless_constant(TEST, 6);
        self.asm.flagless_shift_right_signed(TEST, index, TEST);
        self.asm.flagless_lea(FIRST, M::indexed(FIRST, TEST, 3, 0));
        let write = opcode != 0xa3;
        let stub = self.probe_at(FIRST, 8, write);
        self.asm.flagless_load(TEST, Self::found());
        self.bit(opcode, TEST, index);
        if write {
            self.asm.flagless_store(Self::found(), TEST);
        }
        self.back_here(stub);
        true
    }

    /// `bt at, index` and its kin: of the flags, CF alone changes.
    fn bit(&mut self, opcode: u8, at: R, index: R) {
        let rex = 0x48 | (index.0 >> 3) << 2 | at.0 >> 3;
        self.asm.bytes(&[rex, 0x0f, opcode, 0xc0 | (index.0 & 7) << 3 | at.0 & 7]);
    }
}
