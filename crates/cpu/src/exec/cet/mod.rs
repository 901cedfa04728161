//! Control-flow enforcement: shadow stacks and indirect-branch tracking (SDM vol. 1, chapter 17).
//!
//! Code for which either is enabled is decoded in a mode of its own. Its calls, returns and indirect branches have
//! other handlers (`near`), so that other code has no overhead. Far transfers, interrupts and system calls check at run
//! time (`far`).

mod far;
mod instructions;
pub(crate) mod near;
#[cfg(test)]
mod tests;

use crate::access::{Access, Privilege};
use crate::arch::attention;
use crate::capability::Capability;
use crate::fault::{Exec, Fault};
use crate::mode;
use crate::op::{Op, SEG_FLAT};
use crate::state::Cpu;
pub(crate) use far::{NewStack, ShadowChange};
use iced_x86::Code;
pub use instructions::ROWS;
use x86::cet::*;
use x86::control::CR4_CET;
use x86::page::OFFSET;
use x86::vector;

/// Encodings of ENDBR64 and ENDBR32.
const ENDBR64: u32 = 0xfa1e_0ff3;
const ENDBR32: u32 = 0xfb1e_0ff3;

impl Cpu {
    /// Returns true if the model has shadow stacks or branch tracking.
    pub(crate) fn has_cet(&self) -> bool {
        self.wiring.capabilities.has(Capability::CetSs) || self.wiring.capabilities.has(Capability::CetIbt)
    }

    /// Returns true if a value is valid for IA32_U_CET or IA32_S_CET.
    pub(crate) fn good_cet_control(&self, value: u64) -> bool {
        let unless = |capability, bits| if self.wiring.capabilities.has(capability) { 0 } else { bits };
        let stacks = unless(Capability::CetSs, SHADOW_STACK | WRITE_SHADOW_STACK);
        let tracking = unless(Capability::CetIbt, !(SHADOW_STACK | WRITE_SHADOW_STACK));
        let tracker = value & (SUPPRESS | WAITS);
        value & (RESERVED | stacks | tracking) == 0 && tracker != SUPPRESS | WAITS && self.canonical_base(value)
    }

    /// Returns the enforced features at a privilege level: IA32_U_CET or IA32_S_CET, or 0 if neither applies.
    #[inline]
    pub(crate) fn enforced(&self, cpl: u8) -> u64 {
        if self.arch.cr4 & CR4_CET == 0 || !self.protected() || self.v8086() {
            return 0;
        }
        if cpl == 3 { self.arch.msr.u_cet } else { self.arch.msr.s_cet }
    }

    /// Returns true if there is a shadow stack at a privilege level.
    #[inline]
    pub(crate) fn has_shadow_stack(&self, cpl: u8) -> bool {
        self.enforced(cpl) & SHADOW_STACK != 0
    }

    /// Returns the decoding mode flags of code at the current level that follow from the enforced features.
    pub(crate) fn cet_mode(&self) -> u8 {
        let enforced = self.enforced(self.arch.cpl);
        let when = |bits, mode| if enforced & bits != 0 { mode } else { 0 };
        when(SHADOW_STACK | LEGACY, mode::SHADOWED) | when(ENDBRANCH, mode::TRACKED)
    }

    /// Handles a change of the enforced features, or of the privilege level on which they depend.
    #[cold]
    pub(crate) fn follow_enforcement(&mut self) {
        self.follow_tracker();
        let tracked = self.engine.mode & mode::TRACKED != 0;
        let before = &mut self.engine.tracked[usize::from(self.arch.cpl == 3)];
        if *before != tracked {
            *before = tracked;
            // There may be translations for both modes at the same addresses.
            self.engine.jumps.forget();
            self.engine.returns.forget_all();
        }
    }

    /// Returns true if the next instruction is ENDBRANCH, as far as the modelled TLB can translate its address.
    fn is_at_endbranch(&mut self) -> bool {
        let bytes = if self.engine.long64 { ENDBR64 } else { ENDBR32 };
        let (linear, pcid, privilege) = (self.code_linear(), self.pcid(), self.privilege());
        let Some(entry) = self.micro.tlb.first(linear, true, pcid).copied() else { return false };
        if !self.plainly_permitted(&entry, Access::Fetch, privilege) || linear & OFFSET > OFFSET - 3 {
            return false;
        }
        let physical = entry.physical | linear & ((1 << entry.shift) - 1);
        self.backing(physical).and_then(|at| self.wiring.ram.read::<u32>(at)) == Some(bytes)
    }

    /// Handles an indirect branch.
    fn track_near(&mut self) {
        // If the next instruction is known to be ENDBRANCH, the wait would end at once, so the tracker does not wait at
        // all. The difference is visible only in the tracker that an interrupt between both instructions finds, and the
        // arrival of an interrupt must not change the charges.
        if !self.is_at_endbranch() {
            self.set_tracker(WAITS);
        }
    }

    /// Raises #CP.
    #[cold]
    pub(crate) fn control_protection(&mut self, code: u32) -> Fault {
        self.raise_code(vector::CP, code)
    }

    /// Sets the tracker of the current level: [`WAITS`] and [`SUPPRESS`].
    fn set_tracker(&mut self, tracker: u64) {
        let control = if self.arch.cpl == 3 { &mut self.arch.msr.u_cet } else { &mut self.arch.msr.s_cet };
        *control = *control & !(WAITS | SUPPRESS) | tracker;
        self.follow_tracker();
    }

    /// Handles a change of the level or the tracker: if the tracker waits, the next instruction is checked for
    /// ENDBRANCH.
    pub(crate) fn follow_tracker(&mut self) {
        const WAITING: u64 = ENDBRANCH | WAITS;
        if self.enforced(self.arch.cpl) & WAITING == WAITING {
            self.attend(attention::ENDBRANCH);
        } else {
            self.arch.attention &= !attention::ENDBRANCH;
        }
    }

    /// Handles a far transfer, after which ENDBRANCH is expected.
    pub(crate) fn track_far(&mut self) {
        if self.enforced(self.arch.cpl) & ENDBRANCH != 0 {
            self.set_tracker(WAITS);
        }
    }

    /// Checks the next instruction while the tracker waits for ENDBRANCH.
    #[cold]
    pub(crate) fn expect_endbranch(&mut self, op: &Op) -> Exec {
        let wanted = if self.engine.long64 { Code::Endbr64 } else { Code::Endbr32 };
        // INT3 is executed first, as debuggers expect.
        if [wanted as u16, Code::Int3 as u16].contains(&op.form.code()) {
            return Ok(());
        }
        let enforced = self.enforced(self.arch.cpl);
        if enforced & LEGACY != 0 {
            let page = (self.code_linear() & ((1 << 48) - 1)) >> 12;
            let address = self.wrap((enforced & BITMAP).wrapping_add(page >> 3));
            let privilege = self.privilege();
            if self.read_as(address, 1, privilege, SEG_FLAT)? >> (page & 7) & 1 != 0 {
                self.set_tracker(if enforced & NO_SUPPRESS == 0 { SUPPRESS } else { 0 });
                return Ok(());
            }
        }
        Err(self.control_protection(code::ENDBRANCH))
    }

    /// Reads from a shadow stack.
    fn shadow_read(&mut self, linear: u64, size: u8, privilege: Privilege) -> Exec<u64> {
        let linear = self.wrap(linear);
        self.shadow_access(linear, size, Access::ShadowRead, None, privilege)
    }

    /// Writes to a shadow stack.
    fn shadow_write(&mut self, linear: u64, size: u8, value: u64, privilege: Privilege) -> Exec {
        let linear = self.wrap(linear);
        self.shadow_access(linear, size, Access::ShadowWrite, Some(value), privilege)?;
        Ok(())
    }

    /// Exchanges a token of a supervisor's shadow stack for another. Returns false if the expected one was not there.
    fn exchange_token(&mut self, linear: u64, expected: u64, new: u64) -> Exec<bool> {
        let found = self.shadow_read(linear, 8, Privilege::Supervisor)?;
        // The token is written in any case, as by a locked instruction.
        let value = if found == expected { new } else { found };
        self.shadow_write(linear, 8, value, Privilege::Supervisor)?;
        Ok(found == expected)
    }
}
