//! DIV and IDIV.

use super::asm::{M, R};
use super::emit::Emit;
use super::layout::{FIRST, SECOND, TEST};
use iced_x86::{Mnemonic, OpKind};

const RDX: R = R(2);

impl Emit<'_> {
    /// DIV or IDIV of a number that is no wider than the divisor; the handler executes the others, and those that may
    /// fault. The interpreter leaves the flags unchanged.
    pub fn divide(&mut self, keeps_flags: bool) -> bool {
        let op = *self.op();
        let wide = op.size == 8;
        let signed = self.instruction().mnemonic() == Mnemonic::Idiv;
        let mut stubs = Vec::new();
        let by = if self.instruction().op0_kind() == OpKind::Memory {
            let Some(stub) = self.probe(false) else { return false };
            stubs.extend(stub);
            let at = self.operand;
            if wide {
                self.asm.flagless_load(FIRST, at)
            } else {
                self.asm.flagless_load32(FIRST, at)
            }
            FIRST
        } else {
            self.value(op.r0, FIRST)
        };
        // Neither 0 nor, if one quotient would overflow, -1.
        self.take(wide, TEST, M::at(by, i32::from(signed)));
        if signed {
            self.asm.flagless_constant(SECOND, 1u64.wrapping_neg() << 1);
            self.asm.flagless_extract_by(TEST, TEST, SECOND);
        }
        let bad = self.asm.flagless_if_zero();
        let good = self.asm.jump_on();
        self.asm.land(bad);
        stubs.push(self.otherwise());
        self.asm.land(good);
        // The upper half must be the zero or sign extension of the lower half.
        if signed {
            let low = if wide {
                R::RAX
            } else {
                // movsxd r11, eax
                self.asm.bytes(&[0x4c, 0x63, 0xd8]);
                SECOND
            };
            self.asm.flagless_constant(TEST, 63);
            self.asm.flagless_shift_right_signed(TEST, low, TEST);
            self.asm.flagless_not(TEST);
            self.take(wide, TEST, M::indexed(TEST, RDX, 0, 1));
        } else {
            self.take(wide, TEST, M::at(RDX, 0));
        }
        stubs.push(self.or_otherwise());
        if keeps_flags {
            self.asm.flagless_copy(TEST, R::RAX);
            // lahf; seto al; movzx r11d, ax
            self.asm.bytes(&[0x9f, 0x0f, 0x90, 0xc0, 0x44, 0x0f, 0xb7, 0xd8]);
            self.asm.flagless_copy(R::RAX, TEST);
        }
        self.asm.divide(wide, signed, by);
        if keeps_flags {
            self.asm.flagless_copy(TEST, R::RAX);
            self.asm.flagless_copy(R::RAX, SECOND);
            // add al, 127; sahf
            self.asm.bytes(&[0x04, 0x7f, 0x9e]);
            self.asm.flagless_copy(R::RAX, TEST);
        }
        stubs.into_iter().for_each(|stub| self.back_here(stub));
        true
    }

    /// `lea to, [m]`, of 64 bits or 32.
    fn take(&mut self, wide: bool, to: R, m: M) {
        if wide { self.asm.flagless_lea(to, m) } else { self.asm.flagless_lea32(to, m) }
    }
}
