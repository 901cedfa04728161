//! Exits of port accesses.

use crate::fault::Exec;
use crate::op::{Op, SEG_FLAT, address_mask};
use crate::state::Cpu;
use x86::page::PAGE;
use x86::vmx::qualification::io as qualification;
use x86::vmx::{primary, reason};
use x86::{reg, seg};

impl Cpu {
    /// Returns true if one of the `size` ports from `port` exits, or if they extend beyond the last port.
    pub(super) fn port_exits(&self, port: u16, size: u8) -> bool {
        let controls = &self.arch.vmx.controls;
        if !controls.primary(primary::IO_BITMAPS) {
            return controls.primary(primary::UNCONDITIONAL_IO);
        }
        let ports = u32::from(port)..u32::from(port) + u32::from(size);
        ports.into_iter().any(|port| self.port_in_bitmap(port))
    }

    fn port_in_bitmap(&self, port: u32) -> bool {
        let Ok(port) = u16::try_from(port) else { return true };
        let at = usize::from(port >> 3);
        let controls = &self.arch.vmx.controls;
        let byte = match (&controls.io_bitmap, controls.io_bitmap_addresses) {
            (Some(bitmap), _) => bitmap[at],
            (None, Some(pages)) => {
                let address = pages[at / PAGE as usize] + at as u64 % PAGE;
                self.structure::<u8>(address).unwrap_or(u8::MAX)
            }
            (None, None) => u8::MAX,
        };
        byte >> (port & 7) & 1 != 0
    }

    /// Exits for IN and OUT, after the permission check. `kind` is the instruction's part of the qualification.
    #[inline(always)]
    pub(crate) fn port_exit(&mut self, port: u16, size: u8, kind: u64) -> Exec {
        if self.arch.vmx.active { self.guest_port(port, size, kind) } else { Ok(()) }
    }

    #[cold]
    fn guest_port(&mut self, port: u16, size: u8, kind: u64) -> Exec {
        if !self.port_exits(port, size) {
            return Ok(());
        }
        let qualification =
            u64::from(port) << qualification::PORT_SHIFT | kind | u64::from(size.wrapping_sub(1)) & qualification::SIZE;
        Err(self.exit_fault(reason::IO, qualification))
    }

    /// Exits for INS (`IN` in `kind`) and OUTS.
    #[inline(always)]
    pub(crate) fn port_string_exit(&mut self, op: &Op, kind: u64) -> Exec {
        if self.arch.vmx.active { self.guest_port_string(op, kind) } else { Ok(()) }
    }

    #[cold]
    fn guest_port_string(&mut self, op: &Op, kind: u64) -> Exec {
        let port = self.get::<u16>(reg::RDX);
        let repeated = op.has(Op::REPE) || op.has(Op::REPNE);
        let kind = kind | qualification::STRING | if repeated { qualification::REP } else { 0 };
        let input = kind & qualification::IN != 0;
        self.guest_port(port, op.size, kind).inspect_err(|_| {
            let (index, segment) = if input { (reg::RDI, seg::ES) } else { (reg::RSI, op.seg) };
            let offset = self.reg(index) & address_mask(op.asize);
            // In 64-bit code only segment overrides have a base.
            let flat = segment >= SEG_FLAT || (input && self.engine.long64);
            let base = if flat { 0 } else { self.arch.seg[usize::from(segment)].base };
            let linear = base.wrapping_add(offset);
            self.arch.vm_exit.guest_linear = if self.engine.long64 { linear } else { linear & 0xffff_ffff };
            let segment = if segment >= SEG_FLAT { seg::DS } else { segment };
            self.arch.vm_exit.instruction_information =
                super::instructions::address_size(op.asize) | u32::from(segment) << 15;
        })
    }
}
