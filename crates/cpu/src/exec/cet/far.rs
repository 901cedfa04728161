//! Shadow stacks at far transfers, interrupts and system calls. Their changes are computed before any register changes.

use super::code;
use crate::access::Privilege;
use crate::fault::Exec;
use crate::state::Cpu;

/// Size of a slot in bytes; far transfers use slots of this size in all modes.
const SLOT: u64 = 8;
/// Busy bit of a supervisor shadow-stack token.
const BUSY: u64 = 1;

/// Shadow stack that a transfer uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NewStack {
    /// The current one.
    Current,
    /// The one of the new privilege level.
    OfLevel,
    /// The one of an interrupt, from the interrupt SSP table, by the IST index.
    OfTable(u8),
}

/// Changes of SSP by a transfer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShadowChange {
    ssp: u64,
    /// IA32_PL3_SSP.
    user: Option<u64>,
}

impl Cpu {
    /// Returns the linear address of the next instruction, as pushed by a far call.
    fn return_address(&self) -> u64 {
        self.code_linear()
    }

    /// Returns the linear address of the target of a far return.
    pub(crate) fn target_address(&self, long: bool, base: u64, rip: u64) -> u64 {
        if long { rip } else { base.wrapping_add(rip) & 0xffff_ffff }
    }

    /// Computes the effects of a far call or interrupt to a privilege level; `long` is true if the target is 64-bit
    /// code.
    #[inline]
    pub(crate) fn shadow_call(&mut self, cpl: u8, long: bool, stack: NewStack) -> Exec<ShadowChange> {
        let same = ShadowChange { ssp: self.arch.ssp, user: None };
        if self.enforced(self.arch.cpl) | self.enforced(cpl) == 0 {
            return Ok(same);
        }
        self.shadow_call_enforced(cpl, long, stack, same)
    }

    #[cold]
    fn shadow_call_enforced(
        &mut self,
        cpl: u8,
        long: bool,
        stack: NewStack,
        mut change: ShadowChange,
    ) -> Exec<ShadowChange> {
        let (from, old) = (self.arch.cpl, self.arch.ssp);
        let leaves_user = from == 3 && cpl != 3;
        if leaves_user && self.has_shadow_stack(from) {
            change.user = Some(old);
        }
        if !self.has_shadow_stack(cpl) {
            return Ok(change);
        }
        match stack {
            NewStack::Current => {}
            NewStack::OfLevel => change.ssp = self.claim(self.arch.msr.pl_ssp[usize::from(cpl & 3)], long)?,
            NewStack::OfTable(number) => {
                let at = self.arch.msr.interrupt_ssp_table.wrapping_add(u64::from(number) * 8);
                let ssp = self.read_system::<u64>(at)?;
                change.ssp = self.claim(ssp, long)?;
            }
        }
        if !leaves_user {
            let privilege = if cpl == 3 { Privilege::User } else { Privilege::Supervisor };
            if change.ssp & 7 != 0 {
                self.shadow_write(change.ssp.wrapping_sub(4), 4, 0, privilege)?;
                change.ssp &= !7;
            }
            let cs = self.arch.seg[usize::from(x86::seg::CS)].selector;
            for value in [u64::from(cs), self.return_address(), old] {
                change.ssp = change.ssp.wrapping_sub(SLOT);
                self.shadow_write(change.ssp, 8, value, privilege)?;
            }
        }
        Ok(change)
    }

    /// Sets the busy bit of the shadow stack at an address.
    fn claim(&mut self, ssp: u64, long: bool) -> Exec<u64> {
        let aligned = ssp & 7 == 0 && (long || ssp >> 32 == 0);
        if !aligned || !self.exchange_token(ssp, ssp, ssp | BUSY)? {
            return Err(self.gp(0));
        }
        Ok(ssp)
    }

    /// Computes the effects of a far return or IRET to a privilege level; `long` is true if the target is 64-bit code.
    /// The shadow stack must contain `cs` and the linear address `to`.
    #[inline]
    pub(crate) fn shadow_return(&mut self, cpl: u8, long: bool, cs: u16, to: u64) -> Exec<ShadowChange> {
        if self.enforced(self.arch.cpl) | self.enforced(cpl) == 0 {
            return Ok(ShadowChange { ssp: self.arch.ssp, user: None });
        }
        self.shadow_return_enforced(cpl, long, cs, to)
    }

    #[cold]
    fn shadow_return_enforced(&mut self, cpl: u8, long: bool, cs: u16, to: u64) -> Exec<ShadowChange> {
        let from = self.arch.cpl;
        let (mut ssp, mut new) = (self.arch.ssp, self.arch.ssp);
        let enters_user = from != 3 && cpl == 3;
        if self.has_shadow_stack(from) {
            if ssp & 7 != 0 {
                return Err(self.control_protection(code::FAR_RETURN));
            }
            if !enters_user {
                let privilege = self.privilege();
                let mut words = [0; 3];
                for word in &mut words {
                    *word = self.shadow_read(ssp, 8, privilege)?;
                    ssp = ssp.wrapping_add(SLOT);
                }
                let [old, address, selector] = words;
                if selector != u64::from(cs) || address != to || old & 3 != 0 {
                    return Err(self.control_protection(code::FAR_RETURN));
                }
                new = old;
            }
        }
        if enters_user && self.has_shadow_stack(cpl) {
            new = self.arch.msr.pl_ssp[3];
        }
        if !long && self.has_shadow_stack(cpl) && new >> 32 != 0 {
            return Err(self.gp(0));
        }
        // A shadow stack that is left is no longer busy.
        if from != 3 && self.has_shadow_stack(from) && (from != cpl || new != ssp) {
            self.exchange_token(ssp, ssp | BUSY, ssp)?;
        }
        Ok(ShadowChange { ssp: new, user: None })
    }

    /// Handles IRET to virtual-8086 mode, in which no enforcement is possible.
    pub(crate) fn shadow_return_to_virtual8086(&mut self) -> Exec {
        use super::{ENDBRANCH, SHADOW_STACK};
        if self.enforced(3) & (SHADOW_STACK | ENDBRANCH) != 0 {
            return Err(self.gp(0));
        }
        if self.has_shadow_stack(0) {
            let ssp = self.arch.ssp;
            if ssp & 7 != 0 {
                return Err(self.control_protection(code::FAR_RETURN));
            }
            self.exchange_token(ssp, ssp | BUSY, ssp)?;
        }
        Ok(())
    }

    /// Checks a far jump or call from 64-bit code to other code at the same level: SSP has 32 bits there.
    pub(crate) fn shadow_fits(&mut self, long: bool) -> Exec {
        let fits = long || self.arch.ssp >> 32 == 0 || !self.has_shadow_stack(self.arch.cpl);
        if fits { Ok(()) } else { Err(self.gp(0)) }
    }

    /// Commits a change of SSP.
    #[inline]
    pub(crate) fn commit_shadow(&mut self, change: ShadowChange) {
        self.arch.ssp = change.ssp;
        if let Some(ssp) = change.user {
            self.arch.msr.pl_ssp[3] = ssp;
        }
    }

    /// Handles SYSCALL or SYSENTER: the user's SSP is saved, and the kernel has none yet.
    pub(crate) fn shadow_system_call(&mut self) {
        if self.has_shadow_stack(self.arch.cpl) {
            self.arch.msr.pl_ssp[3] = self.arch.ssp;
        }
        if self.has_shadow_stack(0) {
            self.arch.ssp = 0;
        }
    }

    /// Handles the return to user code by SYSRET or SYSEXIT.
    pub(crate) fn shadow_system_return(&mut self) {
        if self.has_shadow_stack(3) {
            self.arch.ssp = self.arch.msr.pl_ssp[3];
        }
    }
}
