//! Control registers in non-root mode: masks and shadows, exits, and the effect of writes that do not exit.

use super::NonRoot;
use super::capability::CR0_FIXED;
use super::controls::Controls;
use crate::fault::Exec;
use crate::op::Op;
use crate::state::Cpu;
use x86::control::*;
use x86::vmx::qualification::control_register as qualification;
use x86::vmx::{primary, reason, secondary};

/// Bits of CR0 that LMSW can affect.
const LMSW_BITS: u64 = CR0_PE | CR0_MP | CR0_EM | CR0_TS;

impl Controls {
    /// Returns the bits of CR0 that must be set in non-root mode.
    pub fn cr0_fixed(&self) -> u64 {
        CR0_NE | if self.secondary(secondary::UNRESTRICTED_GUEST) { 0 } else { CR0_PE | CR0_PG }
    }
}

impl NonRoot {
    /// Returns the bits of CR0 that must be set now: those that VMX operation fixes (SDM vol. 3, 23.8), in non-root
    /// mode or in root mode of guest software.
    pub(crate) fn cr0_fixed(&self) -> u64 {
        match (self.active, self.operation.is_on()) {
            (true, _) => self.controls.cr0_fixed(),
            (false, true) => CR0_FIXED,
            (false, false) => 0,
        }
    }
}

/// Returns the guest's view: its own bits from the register, the host's from the shadow.
fn shadowed(register: u64, mask: u64, shadow: u64) -> u64 {
    (register & !mask) | (shadow & mask)
}

impl Cpu {
    /// Returns CR0 as read by MOV and SMSW.
    pub(crate) fn cr0_read(&self) -> u64 {
        let c = &self.arch.vmx.controls;
        if self.arch.vmx.active { shadowed(self.arch.cr0, c.cr0_mask, c.cr0_shadow) } else { self.arch.cr0 }
    }

    /// Returns CR4 as read by MOV.
    pub(crate) fn cr4_read(&self) -> u64 {
        let c = &self.arch.vmx.controls;
        if self.arch.vmx.active { shadowed(self.arch.cr4, c.cr4_mask, c.cr4_shadow) } else { self.arch.cr4 }
    }

    /// Exits for MOV from a control register, after the privilege check.
    #[inline(always)]
    pub(crate) fn control_read_exit(&mut self, op: &Op) -> Exec {
        if !self.arch.vmx.active {
            return Ok(());
        }
        let control = match op.r1 {
            3 => primary::CR3_STORE,
            8 => primary::CR8_STORE,
            _ => return Ok(()),
        };
        if !self.arch.vmx.controls.primary(control) {
            return Ok(());
        }
        let register = u64::from(op.r0) << qualification::REGISTER_SHIFT;
        Err(self.exit_fault(reason::CONTROL_REGISTER, u64::from(op.r1) | qualification::FROM | register))
    }

    /// Exits for MOV to a control register, after the privilege check, or returns the value to be written.
    #[inline(always)]
    pub(crate) fn control_write(&mut self, op: &Op, value: u64) -> Exec<u64> {
        if self.arch.vmx.active { self.guest_control_write(op, value) } else { Ok(value) }
    }

    #[cold]
    fn guest_control_write(&mut self, op: &Op, value: u64) -> Exec<u64> {
        let (exits, merged) = self.control_write_exits(op.r0, value);
        if exits {
            let register = u64::from(op.r1) << qualification::REGISTER_SHIFT;
            return Err(self.exit_fault(reason::CONTROL_REGISTER, u64::from(op.r0) | register));
        }
        Ok(merged)
    }

    /// Returns true if a write to a control register exits, and the value to be written otherwise.
    pub(super) fn control_write_exits(&self, number: u8, value: u64) -> (bool, u64) {
        let c = &self.arch.vmx.controls;
        match number {
            0 => ((value ^ c.cr0_shadow) & c.cr0_mask != 0, shadowed(value, c.cr0_mask, self.arch.cr0)),
            4 => ((value ^ c.cr4_shadow) & c.cr4_mask != 0, shadowed(value, c.cr4_mask, self.arch.cr4)),
            3 => {
                let targets = &c.cr3_targets[..(c.cr3_target_count as usize).min(c.cr3_targets.len())];
                (c.primary(primary::CR3_LOAD) && !targets.contains(&value), value)
            }
            8 => (c.primary(primary::CR8_LOAD), value),
            _ => (false, value),
        }
    }

    /// Handles a MOV of a CR3-target value to CR3: sets the charged address space.
    pub(crate) fn target_loaded(&mut self, value: u64) {
        let c = &self.arch.vmx.controls;
        if !self.arch.vmx.active || !c.primary(primary::CR3_LOAD) {
            return;
        }
        let counted = c.cr3_targets.iter().zip(&c.target_spaces).take(c.cr3_target_count as usize);
        if let Some((_, Some(space))) = counted.into_iter().find(|(target, _)| **target == value) {
            self.micro.charged_space = Some(*space);
            self.origin_changed();
        }
    }

    /// Exits for LMSW, after the privilege check and the read of its operand, or returns the value for CR0. `linear` is
    /// the address of a memory operand.
    pub(crate) fn guest_lmsw(&mut self, value: u16, linear: Option<u64>) -> Exec<u64> {
        let source = u64::from(value);
        if self.lmsw_exits(source) {
            let memory = if linear.is_some() { qualification::LMSW_MEMORY } else { 0 };
            let fault = self.exit_fault(
                reason::CONTROL_REGISTER,
                qualification::LMSW | memory | source << qualification::SOURCE_SHIFT,
            );
            self.arch.vm_exit.guest_linear = linear.unwrap_or(0);
            return Err(fault);
        }
        let own = LMSW_BITS & !self.arch.vmx.controls.cr0_mask;
        Ok((self.arch.cr0 & !(own & !CR0_PE)) | (source & own))
    }

    /// Returns true if LMSW of this value exits.
    pub(super) fn lmsw_exits(&self, source: u64) -> bool {
        let c = &self.arch.vmx.controls;
        // LMSW can set PE but not clear it.
        let differs = ((source ^ c.cr0_shadow) & (LMSW_BITS & !CR0_PE)) | (source & !c.cr0_shadow & CR0_PE);
        differs & c.cr0_mask != 0
    }

    /// Returns true if CLTS exits.
    pub(super) fn clts_exits(&self) -> bool {
        let c = &self.arch.vmx.controls;
        c.cr0_mask & c.cr0_shadow & CR0_TS != 0
    }

    /// Exits for CLTS, after the privilege check, or returns true if it clears the flag.
    pub(crate) fn guest_clts(&mut self) -> Exec<bool> {
        let c = &self.arch.vmx.controls;
        if c.cr0_mask & CR0_TS == 0 {
            return Ok(true);
        }
        if !self.clts_exits() {
            return Ok(false);
        }
        Err(self.exit_fault(reason::CONTROL_REGISTER, qualification::CLTS))
    }

    /// Exits for MOV to or from a debug register. This exit has priority even over faults because of privilege and
    /// CR4.DE.
    #[inline(always)]
    pub(crate) fn debug_register_exit(&mut self, number: u8, general: u8, from: bool) -> Exec {
        if self.arch.vmx.active && self.arch.vmx.controls.primary(primary::MOV_DR) {
            let direction = if from { qualification::FROM } else { 0 };
            let register = u64::from(general) << qualification::REGISTER_SHIFT;
            return Err(self.exit_fault(reason::MOV_DR, u64::from(number & 7) | direction | register));
        }
        Ok(())
    }
}
