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
pub struct Asm {
    /// Code so far.
    pub code: Vec<u8>,
    /// True if the host executes `loop` as fast as `jrcxz`.
    pub counts_down: bool,
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

    /// Jumps unless RCX is zero, with a 32-bit distance that is filled in later: returns the offset of the distance. RCX is unchanged if
    /// the jump is made, and has no defined value otherwise.
    ///
    /// Most of the jumps are never made. The form for [`Self::counts_down`] then has no taken branch, which would need a place in the host's
    /// branch target buffer: code of the usual size has more such jumps than the buffer has places. It is `loop`, which decrements RCX and
    /// jumps unless that makes it zero. Its short distance leads to a `jmp` in the constant of the next instruction.
    pub fn flagless_jump_unless_zero(&mut self) -> usize {
        if self.counts_down {
            self.flagless_lea(R::RCX, M::at(R::RCX, 1));
        }
        self.decide()
    }

    /// `lea rcx, [m]` (64 bits if `wide`, else 32), and a jump unless that is zero, as in [`Self::flagless_jump_unless_zero`].
    pub fn flagless_jump_unless_zero_sum(&mut self, wide: bool, m: M) -> usize {
        let m = M { disp: m.disp + i32::from(self.counts_down), ..m };
        if wide {
            self.flagless_lea(R::RCX, m)
        } else {
            self.flagless_lea32(R::RCX, m)
        }
        self.decide()
    }

    /// Where the host counts down, `loop` to a `jmp` in the constant of `movabs rcx`; otherwise `jrcxz` over a `jmp`.
    fn decide(&mut self) -> usize {
        if self.counts_down {
            self.bytes(&[0xe2, 2, 0x48, 0xb9, 0xe9, 0, 0, 0, 0, 0x90, 0x90, 0x90]);
            self.here() - 7
        } else {
            self.bytes(&[0xe3, 5]);
            self.jump()
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic};

    /// Decodes the instructions at an offset, up to `count`.
    fn decode(code: &[u8], at: usize, count: usize) -> Vec<Instruction> {
        let mut decoder = Decoder::with_ip(64, &code[at..], at as u64, DecoderOptions::NONE);
        (0..count).map(|_| decoder.decode()).collect()
    }

    #[test]
    fn a_jump_that_is_not_made_passes_no_other_jump_on_hosts_that_count_down() {
        let mut asm = Asm { code: Vec::new(), counts_down: true };
        let site = asm.flagless_jump_unless_zero();
        let end = asm.here();
        asm.aim(site, end + 100);
        let [sum, decision, constant] = decode(&asm.code, 0, 3)[..] else { panic!("three instructions") };
        assert_eq!((sum.mnemonic(), sum.memory_displacement64()), (Mnemonic::Lea, 1));
        assert_eq!((decision.mnemonic(), constant.mnemonic()), (Mnemonic::Loop, Mnemonic::Mov));
        assert_eq!(constant.next_ip(), end as u64, "it continues behind the constant");
        let inside = decode(&asm.code, decision.near_branch_target() as usize, 1)[0];
        assert_eq!((inside.mnemonic(), inside.near_branch_target()), (Mnemonic::Jmp, end as u64 + 100));
    }

    #[test]
    fn a_sum_is_one_more_where_it_is_counted_down() {
        let sum = M::indexed(R::RCX, R::R10, 0, -5);
        for (counts_down, displacement) in [(false, -5), (true, -4)] {
            let mut asm = Asm { code: Vec::new(), counts_down };
            let site = asm.flagless_jump_unless_zero_sum(true, sum);
            let end = asm.here();
            asm.aim(site, end + 100);
            let [lea, decision] = decode(&asm.code, 0, 2)[..] else { panic!("two instructions") };
            assert_eq!((lea.mnemonic(), lea.memory_displacement64() as i64), (Mnemonic::Lea, displacement));
            let jump = match counts_down {
                true => decision.near_branch_target(),
                false => decision.next_ip(),
            };
            let jump = decode(&asm.code, jump as usize, 1)[0];
            assert_eq!((jump.mnemonic(), jump.near_branch_target()), (Mnemonic::Jmp, end as u64 + 100));
            assert!(
                counts_down || decision.mnemonic() == Mnemonic::Jrcxz && decision.near_branch_target() == end as u64
            );
        }
    }
}
