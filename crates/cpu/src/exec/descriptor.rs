//! Descriptors: reads from GDT and LDT, and accesses to stacks that are not (yet) current.

use crate::access::Privilege;
use crate::arch::Segment;
use crate::fault::{Exec, Fault};
use crate::op::SEG_FLAT;
use crate::state::Cpu;
use x86::{descriptor, reg, rights, seg, vector};

/// A descriptor, with its selector and the linear address from which it was read.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    /// First eight bytes.
    pub raw: u64,
    /// Next eight bytes of a 16-byte descriptor, if they were read.
    pub high: u64,
    /// Linear address of its table entry.
    pub address: u64,
    /// Selector by which it was read.
    pub selector: u16,
}

impl Descriptor {
    /// Returns the base address.
    pub fn base(&self) -> u64 {
        (self.raw >> 16 & 0xff_ffff) | (self.raw >> 56 << 24) | self.high << 32
    }

    /// Returns the limit in bytes.
    pub fn limit(&self) -> u32 {
        let limit = (self.raw & 0xffff | self.raw >> 32 & 0xf_0000) as u32;
        if self.rights() & rights::G != 0 { limit << 12 | 0xfff } else { limit }
    }

    /// Returns the access rights in the format of [`Segment::rights`].
    pub fn rights(&self) -> u32 {
        (self.raw >> 40) as u32 & 0xf0ff
    }

    /// Returns the type field.
    pub fn kind(&self) -> u8 {
        self.rights() as u8 & 15
    }

    /// Returns the descriptor privilege level.
    pub fn dpl(&self) -> u8 {
        (self.rights() >> rights::DPL_SHIFT) as u8 & 3
    }

    fn has(&self, bit: u32) -> bool {
        self.rights() & bit != 0
    }

    /// Returns true if the present bit is set.
    pub fn present(&self) -> bool {
        self.has(rights::P)
    }

    /// Returns true for a code segment.
    pub fn is_code(&self) -> bool {
        self.has(rights::S) && self.has(rights::CODE)
    }

    /// Returns true for a data segment.
    pub fn is_data(&self) -> bool {
        self.has(rights::S) && !self.has(rights::CODE)
    }

    /// Returns true for a system descriptor or gate.
    pub fn is_system(&self) -> bool {
        !self.has(rights::S)
    }

    /// Returns true for a conforming code segment.
    pub fn conforming(&self) -> bool {
        self.is_code() && self.has(rights::DC)
    }

    /// Returns true for a writable data segment.
    pub fn writable(&self) -> bool {
        self.is_data() && self.has(rights::RW)
    }

    /// Returns true for a readable segment: data, or readable code.
    pub fn readable(&self) -> bool {
        self.is_data() || (self.is_code() && self.has(rights::RW))
    }

    /// Returns true if L and D are both set, which is invalid for a code segment in long mode.
    pub fn long_and_big(&self) -> bool {
        self.has(rights::L) && self.has(rights::DB)
    }

    /// Returns true for a 64-bit code segment.
    pub fn long(&self) -> bool {
        self.has(rights::L)
    }

    /// Returns the segment register contents that a load of this descriptor gives.
    pub fn segment(&self, selector: u16) -> Segment {
        Segment { base: self.base(), limit: self.limit(), rights: self.rights(), selector }
    }

    /// Returns the target selector of a gate.
    pub fn gate_selector(&self) -> u16 {
        (self.raw >> 16) as u16
    }

    /// Returns the target offset of a gate.
    pub fn gate_offset(&self) -> u64 {
        (self.raw & 0xffff) | (self.raw >> 48 << 16) | self.high << 32
    }
}

/// Returns the selector part of an error code.
pub fn code_of(selector: u16) -> u32 {
    u32::from(selector & 0xfffc)
}

/// Returns true for a null selector.
pub fn is_null(selector: u16) -> bool {
    selector & 0xfffc == 0
}

/// Returns the segment register contents after a load of a null selector.
pub fn null_segment(selector: u16, dpl: u8) -> Segment {
    let rights = rights::UNUSABLE | u32::from(dpl) << rights::DPL_SHIFT;
    Segment { base: 0, limit: 0, rights, selector }
}

impl Cpu {
    /// Returns the address of the descriptor of a selector, or `None` if `bytes` bytes there exceed the table's limit.
    pub(crate) fn descriptor_address(&self, selector: u16, bytes: u64) -> Option<u64> {
        let (base, limit) = if selector & 4 != 0 {
            if !self.arch.ldtr.usable() {
                return None;
            }
            (self.arch.ldtr.base, u64::from(self.arch.ldtr.limit))
        } else {
            (self.arch.gdtr.base, u64::from(self.arch.gdtr.limit))
        };
        let offset = u64::from(selector & 0xfff8);
        (offset + bytes - 1 <= limit).then(|| base.wrapping_add(offset))
    }

    /// Reads the descriptor of a selector. Raises `vector`(selector) beyond the table's limit.
    pub(crate) fn read_descriptor(&mut self, selector: u16, vector: u8) -> Exec<Descriptor> {
        let Some(address) = self.descriptor_address(selector, 8) else {
            return Err(self.raise_code(vector, code_of(selector)));
        };
        let raw = self.read_system::<u64>(address)?;
        Ok(Descriptor { raw, high: 0, address, selector })
    }

    /// Reads the upper half of a 16-byte descriptor in long mode.
    pub(crate) fn read_high(&mut self, descriptor: &mut Descriptor, vector: u8) -> Exec {
        let selector = descriptor.selector;
        if self.descriptor_address(selector, 16).is_none() {
            return Err(self.raise_code(vector, code_of(selector)));
        }
        descriptor.high = self.read_system::<u64>(descriptor.address.wrapping_add(8))?;
        // The type field of the upper half must be zero.
        if descriptor.high >> 40 & 0x1f != 0 {
            return Err(self.raise_code(vector, code_of(selector)));
        }
        Ok(())
    }

    /// Sets the accessed bit of a code or data descriptor, in memory if it was clear, and in the copy.
    pub(crate) fn mark_accessed(&mut self, descriptor: &mut Descriptor) -> Exec {
        if !descriptor.has(rights::ACCESSED) {
            descriptor.raw |= 1 << 40;
            self.write_system::<u8>(descriptor.address.wrapping_add(5), (descriptor.raw >> 40) as u8)?;
        }
        Ok(())
    }

    /// Sets or clears the busy bit of a TSS descriptor in memory.
    pub(crate) fn set_busy(&mut self, address: u64, busy: bool) -> Exec {
        let kind: u8 = self.read_system(address.wrapping_add(5))?;
        let bit = descriptor::BUSY;
        self.write_system(address.wrapping_add(5), if busy { kind | bit } else { kind & !bit })
    }

    /// Checks a selector for SS at a privilege level, and returns the segment register contents. `vector` is #GP for a
    /// load by an instruction and #TS for one from a TSS.
    pub(crate) fn stack_segment_for(&mut self, selector: u16, cpl: u8, vector: u8) -> Exec<Segment> {
        let code = code_of(selector);
        if is_null(selector) {
            return Err(self.raise_code(vector, 0));
        }
        let mut d = self.read_descriptor(selector, vector)?;
        if selector as u8 & 3 != cpl || !d.writable() || d.dpl() != cpl {
            return Err(self.raise_code(vector, code));
        }
        if !d.present() {
            return Err(self.raise_code(vector::SS, code));
        }
        self.mark_accessed(&mut d)?;
        Ok(d.segment(selector))
    }

    /// Returns the inner stack pointer of a TSS for a privilege level: SS and ESP, or a null SS and RSP in long mode.
    pub(crate) fn inner_stack(&mut self, level: u8) -> Exec<(u16, u64)> {
        let tr = self.arch.tr;
        let ts = code_of(tr.selector);
        let level = u64::from(level);
        let long = self.long_mode();
        let wide = tr.rights & 8 != 0;
        let (offset, size) = match (long, wide) {
            (true, _) => (4 + 8 * level, 8),
            (_, true) => (4 + 8 * level, 6),
            _ => (2 + 4 * level, 4),
        };
        if offset + size - 1 > u64::from(tr.limit) {
            return Err(self.raise_code(vector::TS, ts));
        }
        let at = tr.base.wrapping_add(offset);
        if long {
            return Ok((0, self.read_system::<u64>(at)?));
        }
        if wide {
            let esp = self.read_system::<u32>(at)?;
            return Ok((self.read_system::<u16>(at.wrapping_add(4))?, u64::from(esp)));
        }
        let sp = self.read_system::<u16>(at)?;
        Ok((self.read_system::<u16>(at.wrapping_add(2))?, u64::from(sp)))
    }
}

/// A stack for pushes and pops that precede the change of registers.
#[derive(Clone, Copy)]
pub(crate) struct Stack {
    /// Stack segment; ignored if `flat`.
    pub segment: Segment,
    /// Stack pointer, within `mask`.
    pub sp: u64,
    /// Bits of the stack pointer that are used.
    pub mask: u64,
    /// True for a 64-bit stack without segmentation.
    pub flat: bool,
    /// Privilege of the accesses.
    pub privilege: Privilege,
    /// Error code of #SS for accesses outside of the segment.
    pub code: u32,
}

impl Stack {
    /// Returns the current stack.
    pub fn current(cpu: &Cpu) -> Self {
        let mut stack =
            Self::new(cpu.arch.seg[usize::from(seg::SS)], cpu.arch.gpr[usize::from(reg::RSP)], cpu.arch.cpl, 0);
        if cpu.engine.long64 {
            stack = Self::long(cpu.arch.gpr[usize::from(reg::RSP)], cpu.arch.cpl);
        }
        stack
    }

    /// Creates a stack in a segment.
    pub fn new(segment: Segment, sp: u64, cpl: u8, code: u32) -> Self {
        let mask = if segment.rights & rights::DB != 0 { 0xffff_ffff } else { 0xffff };
        Self { segment, sp: sp & mask, mask, flat: false, privilege: privilege(cpl), code }
    }

    /// Creates a 64-bit stack.
    pub fn long(sp: u64, cpl: u8) -> Self {
        Self { segment: Segment::default(), sp, mask: u64::MAX, flat: true, privilege: privilege(cpl), code: 0 }
    }

    fn outside(&self, cpu: &mut Cpu) -> Fault {
        cpu.raise_code(vector::SS, self.code)
    }

    fn linear(&self, cpu: &mut Cpu, sp: u64, size: u8, write: bool) -> Exec<u64> {
        let last = sp.wrapping_add(u64::from(size) - 1);
        if self.flat {
            if !cpu.canonical(sp) || !cpu.canonical(last) {
                return Err(self.outside(cpu));
            }
            return Ok(sp);
        }
        let s = &self.segment;
        let code = s.rights & rights::CODE != 0;
        let limit = u64::from(s.limit);
        let inside = if !code && s.rights & rights::DC != 0 { sp > limit && last <= self.mask } else { last <= limit };
        let real = !cpu.protected() || cpu.v8086();
        let allowed = s.usable() && (real || !write || (!code && s.rights & rights::RW != 0));
        if !inside || !allowed {
            return Err(self.outside(cpu));
        }
        Ok(s.base.wrapping_add(sp) & 0xffff_ffff)
    }

    /// Pushes 2, 4 or 8 bytes.
    pub fn push(&mut self, cpu: &mut Cpu, size: u8, value: u64) -> Exec {
        let sp = self.sp.wrapping_sub(u64::from(size)) & self.mask;
        let linear = self.linear(cpu, sp, size, true)?;
        cpu.write_as(linear, size, value, self.privilege, SEG_FLAT + 1)?;
        self.sp = sp;
        Ok(())
    }

    /// Reads `size` bytes at `offset` bytes above the stack pointer.
    pub fn peek(&self, cpu: &mut Cpu, size: u8, offset: u64) -> Exec<u64> {
        let sp = self.sp.wrapping_add(offset) & self.mask;
        let linear = self.linear(cpu, sp, size, false)?;
        cpu.read_as(linear, size, self.privilege, SEG_FLAT + 1)
    }

    /// Pops 2, 4 or 8 bytes.
    pub fn pop(&mut self, cpu: &mut Cpu, size: u8) -> Exec<u64> {
        let value = self.peek(cpu, size, 0)?;
        self.skip(u64::from(size));
        Ok(value)
    }

    /// Drops `bytes` bytes.
    pub fn skip(&mut self, bytes: u64) {
        self.sp = self.sp.wrapping_add(bytes) & self.mask;
    }

    /// Writes the stack pointer back to the register; bits outside the mask are kept.
    pub fn commit(&self, cpu: &mut Cpu) {
        let old = cpu.arch.gpr[usize::from(reg::RSP)];
        let kept = if self.mask == 0xffff_ffff { 0 } else { old & !self.mask };
        cpu.arch.gpr[usize::from(reg::RSP)] = kept | self.sp & self.mask;
    }
}

fn privilege(cpl: u8) -> Privilege {
    if cpl == 3 { Privilege::User } else { Privilege::Supervisor }
}
