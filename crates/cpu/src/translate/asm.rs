//! A small assembler for the instructions of translated code that are not the guest's own.
//!
//! Instructions whose names begin with `flagless` do not change the arithmetic flags, which are the guest's.

use iced_x86::Register;

/// A host register, by its number in encodings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct R(pub u8);

#[allow(missing_docs)]
impl R {
    pub const RAX: R = R(0);
    pub const RCX: R = R(1);
    pub const RSP: R = R(4);
    pub const RBP: R = R(5);
    pub const R9: R = R(9);
    pub const R10: R = R(10);
    pub const R11: R = R(11);
    pub const R14: R = R(14);
    pub const R15: R = R(15);
}

impl R {
    /// Returns the register of the decoder library.
    pub fn named(self) -> Register {
        Register::RAX + u32::from(self.0)
    }
}

/// A memory operand.
#[derive(Clone, Copy, Debug)]
pub struct M {
    /// Base register.
    pub base: R,
    /// Index register and log2 of its scale; RSP cannot be one.
    pub index: Option<(R, u8)>,
    /// Displacement.
    pub disp: i32,
}

impl M {
    /// Creates an operand from a base and a displacement.
    pub fn at(base: R, disp: i32) -> Self {
        Self { base, index: None, disp }
    }

    /// Creates an operand from a base, an index and a displacement.
    pub fn indexed(base: R, index: R, scale: u8, disp: i32) -> Self {
        Self { base, index: Some((index, scale)), disp }
    }
}

/// A forward jump whose target is not known yet.
#[derive(Clone, Copy, Debug)]
pub struct Forward(usize);

/// Buffer of emitted code.
#[derive(Default)]
pub struct Asm {
    /// Code so far.
    pub code: Vec<u8>,
}

impl Asm {
    /// Returns the number of bytes so far.
    pub fn here(&self) -> usize {
        self.code.len()
    }

    /// Appends bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.code.extend_from_slice(bytes);
    }

    fn modrm(&mut self, reg: u8, m: M) {
        let reg = (reg & 7) << 3;
        let base = m.base.0 & 7;
        // RBP and R13 as a base always need a displacement.
        let (mode, size) = match m.disp {
            0 if base != 5 => (0, 0),
            -128..=127 => (0x40, 1),
            _ => (0x80, 4),
        };
        match m.index {
            Some((index, scale)) => {
                debug_assert!(index != R::RSP);
                self.bytes(&[mode | reg | 4, scale << 6 | (index.0 & 7) << 3 | base]);
            }
            None if base == 4 => self.bytes(&[mode | reg | 4, 0x24]),
            None => self.code.push(mode | reg | base),
        }
        self.code.extend_from_slice(&m.disp.to_le_bytes()[..size]);
    }

    fn rex(&mut self, wide: bool, reg: u8, m: M) {
        let index = m.index.map_or(0, |(index, _)| index.0);
        let rex = 0x40 | u8::from(wide) << 3 | (reg >> 3) << 2 | (index >> 3) << 1 | m.base.0 >> 3;
        if rex != 0x40 {
            self.code.push(rex);
        }
    }

    fn rex_registers(&mut self, wide: bool, reg: R, rm: R) {
        let rex = 0x40 | u8::from(wide) << 3 | (reg.0 >> 3) << 2 | rm.0 >> 3;
        if rex != 0x40 {
            self.code.push(rex);
        }
    }

    fn registers(&mut self, reg: R, rm: R) {
        self.code.push(0xc0 | (reg.0 & 7) << 3 | rm.0 & 7);
    }

    /// `mov to, from` (64 bits).
    pub fn flagless_copy(&mut self, to: R, from: R) {
        self.rex_registers(true, from, to);
        self.code.push(0x89);
        self.registers(from, to);
    }

    /// `mov to, [m]` (64 bits).
    pub fn flagless_load(&mut self, to: R, m: M) {
        self.rex(true, to.0, m);
        self.code.push(0x8b);
        self.modrm(to.0, m);
    }

    /// `mov to, [m]` (32 bits, zero-extended).
    pub fn flagless_load32(&mut self, to: R, m: M) {
        self.rex(false, to.0, m);
        self.code.push(0x8b);
        self.modrm(to.0, m);
    }

    /// `mov [m], from` (64 bits).
    pub fn flagless_store(&mut self, m: M, from: R) {
        self.rex(true, from.0, m);
        self.code.push(0x89);
        self.modrm(from.0, m);
    }

    /// `mov [m], from` (32 bits).
    pub fn flagless_store32(&mut self, m: M, from: R) {
        self.rex(false, from.0, m);
        self.code.push(0x89);
        self.modrm(from.0, m);
    }

    /// `mov qword [m], value`.
    pub fn flagless_store_constant(&mut self, m: M, value: i32) {
        self.rex(true, 0, m);
        self.code.push(0xc7);
        self.modrm(0, m);
        self.code.extend_from_slice(&value.to_le_bytes());
    }

    /// `mov dword [m], value`.
    pub fn flagless_store_constant32(&mut self, m: M, value: i32) {
        self.rex(false, 0, m);
        self.code.push(0xc7);
        self.modrm(0, m);
        self.code.extend_from_slice(&value.to_le_bytes());
    }

    /// `lea to, [m]` (64 bits).
    pub fn flagless_lea(&mut self, to: R, m: M) {
        self.rex(true, to.0, m);
        self.code.push(0x8d);
        self.modrm(to.0, m);
    }

    /// `lea to, [m]` (32 bits).
    pub fn flagless_lea32(&mut self, to: R, m: M) {
        self.rex(false, to.0, m);
        self.code.push(0x8d);
        self.modrm(to.0, m);
    }

    /// `lea to, [index << scale + disp]`, 64 or 32 bits, without a base.
    pub fn flagless_lea_scaled(&mut self, wide: bool, to: R, index: R, scale: u8, disp: i32) {
        let rex = 0x40 | u8::from(wide) << 3 | (to.0 >> 3) << 2 | (index.0 >> 3) << 1;
        if rex != 0x40 {
            self.code.push(rex);
        }
        self.bytes(&[0x8d, (to.0 & 7) << 3 | 4, scale << 6 | (index.0 & 7) << 3 | 5]);
        self.code.extend_from_slice(&disp.to_le_bytes());
    }

    /// `mov to, value`, in the shortest encoding.
    pub fn flagless_constant(&mut self, to: R, value: u64) {
        let rex = 0x40 | to.0 >> 3;
        if u32::try_from(value).is_ok() {
            if rex != 0x40 {
                self.code.push(rex);
            }
            self.code.push(0xb8 | to.0 & 7);
            self.code.extend_from_slice(&(value as u32).to_le_bytes());
        } else if i32::try_from(value as i64).is_ok() {
            self.bytes(&[rex | 8, 0xc7, 0xc0 | to.0 & 7]);
            self.code.extend_from_slice(&(value as u32).to_le_bytes());
        } else {
            self.bytes(&[rex | 8, 0xb8 | to.0 & 7]);
            self.code.extend_from_slice(&value.to_le_bytes());
        }
    }

    /// `rorx to, from, count`: 64 bits if `wide`, else 32.
    pub fn flagless_rotate(&mut self, wide: bool, to: R, from: R, count: u8) {
        let rxb = 0xe0 ^ (to.0 >> 3) << 7 ^ (from.0 >> 3) << 5;
        self.bytes(&[0xc4, rxb & 0xe0 | 3, 0x7b | u8::from(wide) << 7, 0xf0]);
        self.registers(to, from);
        self.code.push(count);
    }

    /// `shrx to, from, count` (64 bits).
    pub fn flagless_shift_right(&mut self, to: R, from: R, count: R) {
        let rxb = 0xe0 ^ (to.0 >> 3) << 7 ^ (from.0 >> 3) << 5;
        self.bytes(&[0xc4, rxb & 0xe0 | 2, 0x80 | (!count.0 & 15) << 3 | 3, 0xf7]);
        self.registers(to, from);
    }

    /// `sarx to, from, count` (64 bits).
    pub fn flagless_shift_right_signed(&mut self, to: R, from: R, count: R) {
        let rxb = 0xe0 ^ (to.0 >> 3) << 7 ^ (from.0 >> 3) << 5;
        self.bytes(&[0xc4, rxb & 0xe0 | 2, 0x80 | (!count.0 & 15) << 3 | 2, 0xf7]);
        self.registers(to, from);
    }

    /// `pext to, from, [mask]` (64 bits).
    pub fn flagless_extract(&mut self, to: R, from: R, mask: M) {
        let index = mask.index.map_or(0, |(index, _)| index.0);
        let rxb = 0xe0 ^ (to.0 >> 3) << 7 ^ (index >> 3) << 6 ^ (mask.base.0 >> 3) << 5;
        self.bytes(&[0xc4, rxb & 0xe0 | 2, 0x80 | (!from.0 & 15) << 3 | 2, 0xf5]);
        self.modrm(to.0, mask);
    }

    /// `not at` (64 bits), which does not change flags.
    pub fn flagless_not(&mut self, at: R) {
        self.rex_registers(true, R(2), at);
        self.code.push(0xf7);
        self.registers(R(2), at);
    }

    /// `jrcxz` forward.
    pub fn flagless_if_zero(&mut self) -> Forward {
        self.bytes(&[0xe3, 0]);
        Forward(self.here())
    }

    /// `jecxz` back.
    pub fn flagless_if_zero32_back(&mut self, to: usize) {
        let distance = to as isize - (self.here() as isize + 3);
        debug_assert!((-128..0).contains(&distance));
        self.bytes(&[0x67, 0xe3, distance as u8]);
    }

    /// Sets the target of a short forward jump. Returns false if it is too far.
    pub fn land(&mut self, from: Forward) -> bool {
        let distance = self.here() - from.0;
        self.code[from.0 - 1] = distance as u8;
        distance <= 127
    }

    /// `jmp` with a 32-bit distance that is filled in later: returns the offset of the distance.
    pub fn jump(&mut self) -> usize {
        self.bytes(&[0xe9, 0, 0, 0, 0]);
        self.here() - 4
    }

    /// `jcc` with a 32-bit distance that is filled in later: returns the offset of the distance.
    pub fn jump_if(&mut self, condition: u8) -> usize {
        self.bytes(&[0x0f, 0x80 | condition, 0, 0, 0, 0]);
        self.here() - 4
    }

    /// `call` with a 32-bit distance that is filled in later: returns the offset of the distance.
    pub fn call(&mut self) -> usize {
        self.bytes(&[0xe8, 0, 0, 0, 0]);
        self.here() - 4
    }

    /// `lea to, [rip + distance]` with a distance that is filled in later: returns the offset of the distance.
    pub fn flagless_place(&mut self, to: R) -> usize {
        self.bytes(&[0x48 | (to.0 >> 3) << 2, 0x8d, (to.0 & 7) << 3 | 5, 0, 0, 0, 0]);
        self.here() - 4
    }

    /// `jmp [m]`.
    pub fn jump_memory(&mut self, m: M) {
        self.rex(false, 4, m);
        self.code.push(0xff);
        self.modrm(4, m);
    }

    /// `jmp register`.
    pub fn jump_register(&mut self, to: R) {
        self.rex_registers(false, R(4), to);
        self.code.push(0xff);
        self.registers(R(4), to);
    }

    /// Fills in a distance within this code.
    pub fn aim(&mut self, site: usize, to: usize) {
        let distance = (to as i64 - (site as i64 + 4)) as i32;
        self.code[site..site + 4].copy_from_slice(&distance.to_le_bytes());
    }
}

/// Instructions for system instructions, string instructions and divisions.
impl Asm {
    /// `movzx to, byte [m]` or `movzx to, word [m]` (16 bits if `word`), zero-extended.
    pub fn flagless_load_part(&mut self, word: bool, to: R, m: M) {
        self.rex(false, to.0, m);
        self.bytes(&[0x0f, 0xb6 | u8::from(word)]);
        self.modrm(to.0, m);
    }

    /// `mov [m], from` of 8 bits or, if `word`, 16 bits; `from` is AL, CL, DL, BL or R8B and so on.
    pub fn flagless_store_part(&mut self, word: bool, m: M, from: R) {
        debug_assert!(!(4..8).contains(&from.0));
        if word {
            self.code.push(0x66);
        }
        self.rex(false, from.0, m);
        self.code.push(0x88 | u8::from(word));
        self.modrm(from.0, m);
    }

    /// `mov to, word [m]` (16 bits), which preserves the rest of the register.
    pub fn flagless_load16(&mut self, to: R, m: M) {
        self.code.push(0x66);
        self.rex(false, to.0, m);
        self.code.push(0x8b);
        self.modrm(to.0, m);
    }

    /// `pext to, from, mask` (64 bits).
    pub fn flagless_extract_by(&mut self, to: R, from: R, mask: R) {
        let rxb = 0xe0 ^ (to.0 >> 3) << 7 ^ (mask.0 >> 3) << 5;
        self.bytes(&[0xc4, rxb & 0xe0 | 2, 0x80 | (!from.0 & 15) << 3 | 2, 0xf5]);
        self.registers(to, mask);
    }

    /// `mulx high, low, by` (64 bits): multiplies by RDX.
    pub fn flagless_multiply(&mut self, high: R, low: R, by: R) {
        let rxb = 0xe0 ^ (high.0 >> 3) << 7 ^ (by.0 >> 3) << 5;
        self.bytes(&[0xc4, rxb & 0xe0 | 2, 0x80 | (!low.0 & 15) << 3 | 3, 0xf6]);
        self.registers(high, by);
    }

    /// `cmpxchg16b [m]`.
    pub fn compare_exchange_16(&mut self, m: M) {
        self.rex(true, 1, m);
        self.bytes(&[0x0f, 0xc7]);
        self.modrm(1, m);
    }

    /// `div by` or `idiv by`, of 64 bits if `wide`, else 32.
    pub fn divide(&mut self, wide: bool, signed: bool, by: R) {
        let operation = R(6 | u8::from(signed));
        self.rex_registers(wide, operation, by);
        self.code.push(0xf7);
        self.registers(operation, by);
    }

    /// `jmp` forward, short.
    pub fn jump_on(&mut self) -> Forward {
        self.bytes(&[0xeb, 0]);
        Forward(self.here())
    }

    /// `rep movs` or `rep stos` with elements of `size` bytes.
    pub fn repeat_string(&mut self, moves: bool, size: u8) {
        self.code.push(0xf3);
        match size {
            8 => self.code.push(0x48),
            2 => self.code.push(0x66),
            _ => {}
        }
        let operation = if moves { 0xa4 } else { 0xaa };
        self.code.push(operation | u8::from(size != 1));
    }
}
