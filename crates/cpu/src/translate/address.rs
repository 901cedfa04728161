//! Memory operands: their addresses, and the lookup ("probe") in the fast path's tables.

use super::asm::{M, R};
use super::emit::{Emit, Linear, Probed};
use super::group::{Member, Which};
use super::layout::{FIRST, SECOND, TEST, field, found, host, memory_register, segment_base, table};
use crate::front::{PAGES, Slot, slot};
use crate::op::{NO_REG, Op};
use x86::seg;

impl Emit<'_> {
    /// Returns a host register with a guest register's value: its own, or `scratch`.
    pub fn value(&mut self, guest: u8, scratch: R) -> R {
        host(guest).unwrap_or_else(|| {
            self.asm.flagless_load(scratch, memory_register(guest));
            scratch
        })
    }

    /// Computes the address of the current memory operand in `to`, without its segment's base unless `based`, truncated
    /// to 32 bits if `narrow`. May use all scratch registers.
    pub fn address(&mut self, to: R, narrow: bool, based: bool) -> bool {
        let op = *self.op();
        self.address_of(op, to, narrow, based)
    }

    fn address_of(&mut self, op: Op, to: R, narrow: bool, based: bool) -> bool {
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

    /// Probes for the current memory operand, which is then at [`Emit::operand`]. Returns the stub for a miss, if there
    /// is one, or `None` if the address cannot be computed.
    pub fn probe(&mut self, write: bool) -> Option<Option<usize>> {
        if let Some(member) = self.member(Which::Explicit) {
            return self.reach(member, Which::Explicit).then_some(None);
        }
        let op = *self.op();
        let size = self.instruction().memory_size().size() as i32;
        self.let_go();
        if self.is_plain(&op) && op.base == NO_REG && op.index == NO_REG {
            let address = if self.key.narrow { op.disp & 0xffff_ffff } else { op.disp };
            return Some(Some(self.probe_constant(address, size, write)));
        }
        let at = self.address_near(op, 0)?;
        Some(Some(self.probe_at(at, size, write)))
    }

    /// Returns true if an operand's address has the usual width, and no segment base.
    fn is_plain(&self, op: &Op) -> bool {
        op.asize == if self.key.narrow { 4 } else { 8 } && op.seg != seg::FS && op.seg != seg::GS
    }

    /// Returns a register with the address of an operand minus `less`: a guest register if that contains it, else
    /// `FIRST`.
    fn address_near(&mut self, op: Op, less: i32) -> Option<R> {
        let op = Op { disp: op.disp.wrapping_sub(less as u64), ..op };
        if self.is_plain(&op) && op.index == NO_REG && op.disp == 0 && !self.key.narrow {
            return Some(self.value(op.base, FIRST));
        }
        self.address_of(op, FIRST, false, true).then_some(FIRST)
    }

    /// Makes the current memory operand, or its stack slot, available at [`Emit::operand`], without a probe if its
    /// group has been found. Returns false if the address cannot be computed.
    pub fn reach(&mut self, member: Member, which: Which) -> bool {
        let Member { group, offset } = member;
        if !self.has_found(group.number) {
            self.let_go();
            // The lowest byte of the group.
            let at = match which {
                Which::Explicit => self.address_near(*self.op(), offset),
                Which::Stack { base, plus } => Some(self.address_at(base, plus - offset)),
            };
            let Some(at) = at else { return false };
            self.look(at, group.len, group.write);
            self.or_apart();
            self.asm.flagless_lea(FIRST, M::indexed(at, SECOND, 0, 0));
            self.asm.flagless_store(found(group.number), FIRST);
        } else if self.held() != Some(group.number) {
            self.asm.flagless_load(FIRST, found(group.number));
        }
        self.accesses_another();
        self.hold(group.number);
        self.operand = M::at(FIRST, offset);
        true
    }

    /// Probes for `size` bytes at a guest register plus a displacement.
    pub fn probe_base(&mut self, base: u8, disp: i32, size: i32, write: bool) -> usize {
        self.let_go();
        let at = self.address_at(base, disp);
        self.probe_at(at, size, write)
    }

    /// Returns a register with a guest register plus a displacement: that register or `FIRST`.
    fn address_at(&mut self, base: u8, disp: i32) -> R {
        let base = self.value(base, FIRST);
        if self.key.narrow {
            // The upper halves of registers are undefined.
            self.asm.flagless_lea32(FIRST, M::at(base, disp));
            FIRST
        } else if disp == 0 {
            base
        } else {
            self.asm.flagless_lea(FIRST, M::at(base, disp));
            FIRST
        }
    }

    /// Probes for `size` bytes at the address in `at`, which is neither `SECOND` nor `TEST`.
    pub fn probe_at(&mut self, at: R, size: i32, write: bool) -> usize {
        let again = self.again(self.asm.here());
        self.look(at, size, write);
        self.or_refill(Probed { address: Linear::Register(at), size, write, again })
    }

    /// Sets `TEST` to zero if the table contains the page of `size` bytes at the address in `at`; [`Emit::operand`] is
    /// their location then.
    pub fn look(&mut self, at: R, size: i32, write: bool) {
        let (negated, addend) = table(self.key.table(), write);
        self.asm.flagless_extract(TEST, at, field!(slot_mask));
        // A slot has 16 bytes.
        self.asm.flagless_lea(TEST, M::indexed(TEST, TEST, 0, 0));
        self.asm.flagless_load(SECOND, M::indexed(R::RSP, TEST, 3, addend));
        self.asm.flagless_load(TEST, M::indexed(R::RSP, TEST, 3, negated));
        self.asm.flagless_lea(TEST, M::indexed(at, TEST, 0, size - 1));
        self.beyond();
        self.operand = M::indexed(at, SECOND, 0, 0);
    }

    /// Sets `TEST` to zero if it is an offset in a page or line.
    pub fn beyond(&mut self) {
        if self.source.shift == PAGES {
            // The low six bits of the stack pointer are 12.
            self.asm.flagless_shift_right(TEST, TEST, R::RSP);
        } else {
            self.asm.flagless_extract(TEST, TEST, field!(beyond_mask));
        }
    }

    fn probe_constant(&mut self, address: u64, size: i32, write: bool) -> usize {
        let again = self.again(self.asm.here());
        let (negated, addend) = table(self.key.table(), write);
        let slot = (size_of::<Slot>() * slot(address, self.source.shift)) as i32;
        let last = address.wrapping_add(size as u64 - 1);
        self.asm.flagless_load(TEST, M::at(R::RSP, negated + slot));
        match i32::try_from(last as i64) {
            Ok(last) => self.asm.flagless_lea(TEST, M::at(TEST, last)),
            Err(_) => {
                self.asm.flagless_constant(FIRST, last);
                self.asm.flagless_lea(TEST, M::indexed(FIRST, TEST, 0, 0));
            }
        }
        self.asm.flagless_load(SECOND, M::at(R::RSP, addend + slot));
        self.beyond();
        self.operand = match i32::try_from(address as i64) {
            Ok(address) => M::at(SECOND, address),
            Err(_) => M::indexed(FIRST, SECOND, 0, 1 - size),
        };
        self.or_refill(Probed { address: Linear::Constant(address), size, write, again })
    }
}
