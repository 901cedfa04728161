//! Memory operands: their addresses, and the probe of the fast path's tables.

use super::asm::{M, R};
use super::emit::Emit;
use super::layout::{FIRST, SECOND, TEST, field, host, memory_register, segment_base, table};
use crate::front::slot as page_slot;
use crate::op::NO_REG;
use crate::ram::PAGE;
use crate::state::seg;

/// A memory operand at a register plus a displacement.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    base: u8,
    disp: i32,
    size: i32,
    write: bool,
    table: usize,
}

/// What the scratch registers hold after a probe: `FIRST` the offset in its page of the byte at a guest register plus `last`,
/// `SECOND` the page's host address.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// The guest register.
    pub base: u8,
    /// The lowest displacement that is known to be in the page: that of the last operand.
    pub first: i64,
    /// See above.
    pub last: i64,
    /// The page may be written; else it may be read.
    pub write: bool,
}

/// What `FIRST` is made where it no longer holds an offset: not one within a page of any.
pub const NO_OFFSET: u64 = 0x4000_0000;

impl Emit<'_> {
    /// A guest register's value in a host register: its own, or `scratch`.
    pub fn value(&mut self, guest: u8, scratch: R) -> R {
        host(guest).unwrap_or_else(|| {
            self.asm.flagless_load(scratch, memory_register(guest));
            scratch
        })
    }

    /// The address of the memory operand at hand, without its segment's base unless `based`, in `to`; cut to 32 bits if `narrow`. May use
    /// all scratch registers.
    pub fn address(&mut self, to: R, narrow: bool, based: bool) -> bool {
        let op = *self.op();
        if op.asize == 2 {
            return false;
        }
        let narrow = narrow || op.asize == 4;
        let disp = if op.asize == 4 { Ok(op.disp as i32) } else { i32::try_from(op.disp as i64) };
        let Ok(disp) = disp else {
            if op.base != NO_REG || op.index != NO_REG {
                return false;
            }
            self.asm.flagless_constant(to, if narrow { op.disp & 0xffff_ffff } else { op.disp });
            return self.add_base(to, based);
        };
        match (op.base, op.index) {
            (NO_REG, NO_REG) => {
                self.asm.flagless_constant(to, if narrow { op.disp & 0xffff_ffff } else { op.disp });
            }
            (NO_REG, index) => {
                let index = self.value(index, SECOND);
                self.asm.flagless_lea_scaled(!narrow, to, index, op.scale & 3, disp);
            }
            (base, index) => {
                let base = self.value(base, FIRST);
                let index = if index == NO_REG { None } else { Some((self.value(index, SECOND), op.scale & 3)) };
                let m = M { base, index, disp };
                if narrow { self.asm.flagless_lea32(to, m) } else { self.asm.flagless_lea(to, m) }
            }
        }
        self.add_base(to, based)
    }

    fn add_base(&mut self, to: R, based: bool) -> bool {
        let segment = self.op().seg;
        if based && (segment == seg::FS || segment == seg::GS) {
            self.asm.flagless_load(SECOND, segment_base(segment));
            self.asm.flagless_lea(to, M::indexed(to, SECOND, 0, 0));
        }
        true
    }

    /// Probes for the memory operand at hand: afterwards it is at `FIRST + SECOND - (size - 1)`. Returns the stub for a miss.
    /// `None`: its address cannot be had.
    pub fn probe(&mut self, write: bool) -> Option<usize> {
        let op = *self.op();
        let size = self.instruction().memory_size().size() as i32;
        let narrow = self.key.narrow;
        let plain = op.asize == if narrow { 4 } else { 8 } && op.seg != seg::FS && op.seg != seg::GS;
        if plain && op.base == NO_REG && op.index == NO_REG {
            self.page = None;
            let address = if narrow { op.disp & 0xffff_ffff } else { op.disp };
            return Some(self.probe_constant(address, size, write));
        }
        let disp = if narrow { Ok(op.disp as i32) } else { i32::try_from(op.disp as i64) };
        if plain
            && op.index == NO_REG
            && let Ok(disp) = disp
        {
            return Some(self.probe_base(op.base, disp, size, write));
        }
        self.page = None;
        if !self.address(FIRST, false, true) {
            return None;
        }
        Some(self.probe_at(FIRST, size, write))
    }

    /// Probes for `size` bytes at a guest register plus a displacement. If the last probe was at the same register, the page is
    /// most likely the same one, and only its bounds are checked.
    pub fn probe_base(&mut self, base: u8, disp: i32, size: i32, write: bool) -> usize {
        let mut wanted = Operand { base, disp, size, write, table: self.key.table() };
        let first = i64::from(disp);
        let last = first + i64::from(size) - 1;
        let known = self
            .page
            .filter(|page| page.base == base && (page.write || !write) && (last - page.last).unsigned_abs() < PAGE);
        let Some(page) = known else {
            self.page = Some(Page { base, first, last, write });
            return self.probe_operand(wanted);
        };
        // What is found elsewhere must serve for all that this page would have served for.
        wanted.write = page.write;
        let distance = (last - page.last) as i32;
        if first >= page.first {
            // It begins in the page, and must end there.
            if distance != 0 {
                self.asm.flagless_lea(FIRST, M::at(FIRST, distance));
            }
            self.asm.flagless_shift_right(TEST, FIRST, R::RSP);
        } else {
            // It ends in the page or before, and must begin there.
            self.asm.flagless_lea(TEST, M::at(FIRST, distance + 1 - size));
            self.asm.flagless_lea(FIRST, M::at(FIRST, distance));
            self.asm.flagless_shift_right(TEST, TEST, R::RSP);
        }
        self.page = Some(Page { base, first, last, write: page.write });
        let hit = self.asm.flagless_if_zero();
        let stub = self.probe_again(wanted);
        self.asm.land(hit);
        stub
    }

    /// The whole probe of an operand.
    fn probe_operand(&mut self, operand: Operand) -> usize {
        self.find(operand);
        self.decide()
    }

    /// The probe of an operand up to the decision: `FIRST` is an offset in a page if it is found.
    pub fn find(&mut self, Operand { base, disp, size, write, table }: Operand) {
        let base = self.value(base, FIRST);
        let at = if self.key.narrow {
            // The upper halves of registers may hold anything.
            self.asm.flagless_lea32(FIRST, M::at(base, disp));
            FIRST
        } else if disp == 0 {
            base
        } else {
            self.asm.flagless_lea(FIRST, M::at(base, disp));
            FIRST
        };
        self.look(at, size, write, table);
    }

    /// Probes for `size` bytes at the address in `at`, which is neither `SECOND` nor `TEST`.
    pub fn probe_at(&mut self, at: R, size: i32, write: bool) -> usize {
        self.look(at, size, write, self.key.table());
        self.decide()
    }

    fn look(&mut self, at: R, size: i32, write: bool, number: usize) {
        let (negated, hosts) = table(number, write);
        self.asm.flagless_extract(TEST, at, field!(page_mask));
        self.asm.flagless_load(SECOND, M::indexed(R::RSP, TEST, 3, negated));
        self.asm.flagless_lea(FIRST, M::indexed(at, SECOND, 0, size - 1));
        self.asm.flagless_load(SECOND, M::indexed(R::RSP, TEST, 3, hosts));
    }

    fn probe_constant(&mut self, address: u64, size: i32, write: bool) -> usize {
        let (negated, hosts) = table(self.key.table(), write);
        let slot = 8 * page_slot(address) as i32;
        let last = address.wrapping_add(size as u64 - 1);
        self.asm.flagless_load(SECOND, M::at(R::RSP, negated + slot));
        match i32::try_from(last as i64) {
            Ok(last) => self.asm.flagless_lea(FIRST, M::at(SECOND, last)),
            Err(_) => {
                self.asm.flagless_constant(FIRST, last);
                self.asm.flagless_lea(FIRST, M::indexed(FIRST, SECOND, 0, 0));
            }
        }
        self.asm.flagless_load(SECOND, M::at(R::RSP, hosts + slot));
        self.decide()
    }

    /// Whether the offset in the page, of the last byte, is one.
    fn decide(&mut self) -> usize {
        // The stack pointer's low six bits are 12.
        self.asm.flagless_shift_right(TEST, FIRST, R::RSP);
        let hit = self.asm.flagless_if_zero();
        let stub = self.otherwise();
        self.asm.land(hit);
        stub
    }
}
