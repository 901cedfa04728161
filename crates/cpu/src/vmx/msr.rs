//! RDMSR and WRMSR: which registers exit.

use crate::fault::Exec;
use crate::state::Cpu;
use x86::msr::{BITMAP_HIGH as HIGH, BITMAP_PART as PART, BITMAP_REGISTERS as RANGE};
use x86::vmx::{primary, reason};

impl Cpu {
    fn msr_exits(&self, index: u32, write: bool) -> bool {
        let controls = &self.arch.vmx.controls;
        let Some(bitmap) = controls.msr_bitmap.as_ref().filter(|_| controls.primary(primary::MSR_BITMAPS)) else {
            return true;
        };
        let (part, bit) = match index {
            0..RANGE => (0, index),
            HIGH.. if index - HIGH < RANGE => (1, index - HIGH),
            _ => return true,
        };
        let part = part + if write { 2 } else { 0 };
        bitmap[part * PART + (bit >> 3) as usize % PART] >> (bit & 7) & 1 != 0
    }

    /// RDMSR or WRMSR, after the privilege check.
    #[inline(always)]
    pub(crate) fn msr_exit(&mut self, index: u32, write: bool) -> Exec {
        if self.arch.vmx.active { self.guest_msr(index, write) } else { Ok(()) }
    }

    #[cold]
    fn guest_msr(&mut self, index: u32, write: bool) -> Exec {
        if !self.msr_exits(index, write) {
            return Ok(());
        }
        Err(self.exit_fault(if write { reason::WRMSR } else { reason::RDMSR }, 0))
    }
}
