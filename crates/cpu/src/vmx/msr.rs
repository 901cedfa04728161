//! Exits of RDMSR and WRMSR.

use crate::fault::Exec;
use crate::state::Cpu;
use x86::msr::{BITMAP_HIGH as HIGH, BITMAP_PART as PART, BITMAP_REGISTERS as RANGE};
use x86::vmx::{primary, reason};

impl Cpu {
    pub(super) fn msr_exits(&self, index: u32, write: bool) -> bool {
        let controls = &self.arch.vmx.controls;
        if !controls.primary(primary::MSR_BITMAPS) {
            return true;
        }
        let (part, bit) = match index {
            0..RANGE => (0, index),
            HIGH.. if index - HIGH < RANGE => (1, index - HIGH),
            _ => return true,
        };
        let part = part + if write { 2 } else { 0 };
        let at = part * PART + (bit >> 3) as usize % PART;
        let byte = match (&controls.msr_bitmap, controls.msr_bitmap_address) {
            (Some(bitmap), _) => bitmap[at],
            (None, Some(address)) => self.structure::<u8>(address + at as u64).unwrap_or(u8::MAX),
            (None, None) => u8::MAX,
        };
        byte >> (bit & 7) & 1 != 0
    }

    /// Exits for RDMSR or WRMSR, after the privilege check.
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
