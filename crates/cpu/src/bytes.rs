//! Accesses to more bytes than a register has, up to a page: vectors, save areas and structures.
//!
//! They are made in pieces where the fast path does not have all of them, after it is known that none of the pieces will fault.

use crate::access::Privilege;
use crate::fault::Exec;
use crate::mem::OFFSET;
use crate::op::Op;
use crate::state::Cpu;
use ledger::Ticks;
use ledger::caches::LINE;
use x86::page::PAGE;

impl Cpu {
    /// Reads a memory operand of any length up to a page (vectors, save areas), all or nothing.
    pub(crate) fn load_bytes(&mut self, op: &Op, out: &mut [u8]) -> Exec {
        let linear = self.operand_linear(op, out.len() as u64, false)?;
        self.read_bytes(linear, op.seg, out)
    }

    /// Writes a memory operand of any length up to a page, all or nothing.
    pub(crate) fn store_bytes(&mut self, op: &Op, from: &[u8]) -> Exec {
        let linear = self.operand_linear(op, from.len() as u64, true)?;
        self.write_bytes(linear, op.seg, from)
    }

    /// Reads up to a page at a linear address with the current privilege, all or nothing.
    pub fn read_bytes(&mut self, linear: u64, segment: u8, out: &mut [u8]) -> Exec {
        self.read_in_pieces(linear, segment, out)?;
        self.charge_split_vector(linear, out.len() as u64);
        Ok(())
    }

    fn read_in_pieces(&mut self, linear: u64, segment: u8, out: &mut [u8]) -> Exec {
        if self.read_known(linear, out) {
            return Ok(());
        }
        let privilege = self.privilege();
        self.prepare_read(linear, out.len() as u64, privilege, segment)?;
        // Usually the pages are on the fast path now.
        if self.read_known(linear, out) {
            return Ok(());
        }
        let mut done = 0;
        while done < out.len() {
            let at = self.wrap(linear.wrapping_add(done as u64));
            let rest = &mut out[done..];
            if let Some(len) = self.rest_of_line(at, rest.len())
                && let Some(host) = self.reach_part(at, len, false, privilege)
            {
                // SAFETY: `reach_part` has returned the address of these bytes of RAM; `out` is not guest memory.
                unsafe { std::ptr::copy_nonoverlapping(host, rest.as_mut_ptr(), len) };
                done += len;
                continue;
            }
            let len = rest.len().min(8);
            let value = self.read_split(at, len as u64, privilege, segment)?;
            rest[..len].copy_from_slice(&value.to_le_bytes()[..len]);
            done += len;
        }
        Ok(())
    }

    /// Writes up to a page at a linear address with the current privilege, all or nothing.
    pub fn write_bytes(&mut self, linear: u64, segment: u8, from: &[u8]) -> Exec {
        self.write_in_pieces(linear, segment, from)?;
        self.charge_split_vector(linear, from.len() as u64);
        Ok(())
    }

    fn write_in_pieces(&mut self, linear: u64, segment: u8, from: &[u8]) -> Exec {
        if self.write_known(linear, from) {
            return Ok(());
        }
        let privilege = self.privilege();
        self.prepare_write(linear, from.len() as u64, privilege, segment)?;
        if self.write_known(linear, from) {
            return Ok(());
        }
        let mut rest = from;
        while !rest.is_empty() {
            let at = self.wrap(linear.wrapping_add((from.len() - rest.len()) as u64));
            if let Some(len) = self.rest_of_line(at, rest.len())
                && let Some(host) = self.reach_part(at, len, true, privilege)
            {
                // SAFETY: `reach_part` has returned the address of these writable bytes of RAM; `from` is not guest memory.
                unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), host, len) };
                rest = &rest[len..];
                continue;
            }
            let (chunk, behind) = rest.split_at(rest.len().min(8));
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            self.write_split(at, chunk.len() as u64, u64::from_le_bytes(bytes), privilege, segment)?;
            rest = behind;
        }
        Ok(())
    }

    /// Returns how many of `len` bytes at an address are in the address's line, if pieces of 8 bytes from there on are in one
    /// line each: then the first piece of a line is all that the modelled caches see of it.
    #[inline]
    fn rest_of_line(&self, linear: u64, len: usize) -> Option<usize> {
        linear.is_multiple_of(8).then(|| ((LINE - linear % LINE) as usize).min(len))
    }

    /// Accesses bytes of a line as the first piece of them would, and returns their host address, if the fast path has the line or
    /// the TLB's page is known.
    #[inline]
    fn reach_part(&mut self, linear: u64, len: usize, write: bool, privilege: Privilege) -> Option<*mut u8> {
        let len = len as u64;
        let known = match write {
            true => self.front_write(linear, len),
            false => self.front_read(linear, len).map(<*const u8>::cast_mut),
        };
        known.or_else(|| self.reach_known(self.front_mode(privilege), linear, len, write, Ticks::MAX))
    }

    /// Charges for an access to a vector that is not in one line. Larger areas are accessed in pieces.
    fn charge_split_vector(&mut self, linear: u64, size: u64) {
        if size <= LINE {
            self.charge_split(linear, size);
        }
    }

    /// Reads up to a page if all of it is on the fast path.
    #[inline]
    fn read_known(&self, linear: u64, out: &mut [u8]) -> bool {
        let here = (PAGE - (linear & OFFSET)).min(out.len() as u64);
        let (first, second) = out.split_at_mut(here as usize);
        let Some(host) = self.front_read(linear, here) else { return false };
        if !second.is_empty() {
            let next = self.wrap(linear.wrapping_add(here));
            let Some(host) = self.front_read(next, second.len() as u64) else { return false };
            // SAFETY: `front_read` has returned the address of these bytes of RAM; `out` is not guest memory.
            unsafe { std::ptr::copy_nonoverlapping(host, second.as_mut_ptr(), second.len()) };
        }
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(host, first.as_mut_ptr(), first.len()) };
        true
    }

    /// Writes up to a page if all of it is on the fast path.
    #[inline]
    fn write_known(&self, linear: u64, from: &[u8]) -> bool {
        let here = (PAGE - (linear & OFFSET)).min(from.len() as u64);
        let (first, second) = from.split_at(here as usize);
        let Some(host) = self.front_write(linear, here) else { return false };
        if !second.is_empty() {
            let next = self.wrap(linear.wrapping_add(here));
            let Some(host) = self.front_write(next, second.len() as u64) else { return false };
            // SAFETY: `front_write` has returned the address of these writable bytes of RAM; `from` is not guest
            // memory.
            unsafe { std::ptr::copy_nonoverlapping(second.as_ptr(), host, second.len()) };
        }
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(first.as_ptr(), host, first.len()) };
        true
    }
}
