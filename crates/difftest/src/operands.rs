//! Random operands: turns a decoder code into an instruction.

use crate::layout::*;
use crate::values;
use iced_x86::{Code, EncodingKind, Instruction, OpKind, Register};
use testkit::operands::{Class, Operands, Part, decorate};
use testkit::random::Random;
use x86::page::PAGE;

/// The plan for the memory operand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    /// Planned address of the memory operand.
    pub target: Option<u64>,
    /// Element size in bytes of the memory operand's vector of indices; 0 without one.
    pub vector_index: u8,
}

fn gpr8(rng: &mut Random, bits: u32) -> Register {
    Register::AL + rng.below(if bits == 64 { 20 } else { 8 }) as u32
}

fn numbered(rng: &mut Random, first: Register, bits: u32) -> Register {
    first + rng.below(if bits == 64 { 16 } else { 8 }) as u32
}

/// Returns a random vector register; EVEX has 32 of them.
fn vector(rng: &mut Random, first: Register, bits: u32, evex: bool) -> Register {
    if evex && bits == 64 { first + rng.below(32) as u32 } else { numbered(rng, first, bits) }
}

/// Returns an address for an access of `size` bytes: anywhere in the data pages, aligned or not, often next to a page's
/// end, and sometimes one that faults.
pub fn target(rng: &mut Random, size: u64) -> u64 {
    let size = size.clamp(1, 1024);
    let align = if rng.chance(60) { size.next_power_of_two().min(64) } else { 1 };
    let within = ARENA + 0x1000 + rng.below(0x2000 - size);
    let address = match rng.below(40) {
        // The access crosses the boundary of the two data pages.
        0 | 1 => ARENA + 0x2000 - rng.below(size + 1),
        // The access ends at the read-only page or reaches into it.
        2 => ARENA + 0x3000 - rng.below(size + 1),
        3 => ARENA + 0x3000 + rng.below(0x1000 - size),
        // The access reaches into the holes.
        4 => ARENA + 0x4000 - rng.below(size + 1),
        5 => ARENA + 0x1000 - rng.below(size + 1),
        6 => ARENA + 0x4000 + rng.below(0x1000),
        _ => within,
    };
    address & !(align - 1)
}

/// Returns an address that is not canonical at any paging depth.
fn non_canonical(rng: &mut Random) -> u64 {
    rng.next() & !(3 << 62) | 1 << (62 + rng.below(2))
}

/// Returns a branch target on the code page, away from the instruction itself.
fn landing(rng: &mut Random, near: bool) -> u64 {
    loop {
        let offset = if near { 0x800 - 100 + rng.below(200) } else { rng.below(PAGE) };
        if !(0x7f0..0x820).contains(&offset) {
            return CODE + offset;
        }
    }
}

/// Returns a target for indirect branches and returns, sometimes one that cannot be fetched.
pub fn indirect_target(rng: &mut Random, bits: u32) -> u64 {
    match rng.below(20) {
        0 => ARENA + rng.below(ARENA_LEN as u64),
        1 if bits == 64 => non_canonical(rng),
        _ => landing(rng, false),
    }
}

/// Operands under construction.
struct Chosen<'a> {
    rng: &'a mut Random,
    bits: u32,
    plan: Plan,
    /// True if the operand's address has the other width than usual.
    narrow: bool,
    /// True if the encoding is EVEX.
    evex: bool,
}

impl Operands for Chosen<'_> {
    fn in_memory(&mut self) -> bool {
        self.rng.chance(50)
    }

    fn accepts(&mut self, part: Part) -> bool {
        if !matches!(part, Part::Register(_) | Part::Either(_) | Part::Fixed(_)) {
            self.narrow = self.rng.chance(20);
        }
        !matches!(part, Part::Register(Class::Test) | Part::Branch { bits: 16, .. })
    }

    fn register(&mut self, class: Class) -> Register {
        let (rng, bits) = (&mut *self.rng, self.bits);
        match class {
            Class::Byte => gpr8(rng, bits),
            Class::Word => numbered(rng, Register::AX, bits),
            Class::Double => numbered(rng, Register::EAX, bits),
            Class::Quad => numbered(rng, Register::RAX, bits),
            Class::Mmx => Register::MM0 + rng.below(8) as u32,
            Class::Xmm => vector(rng, Register::XMM0, bits, self.evex),
            Class::Ymm => vector(rng, Register::YMM0, bits, self.evex),
            Class::Zmm => vector(rng, Register::ZMM0, bits, self.evex),
            Class::Opmask => Register::K0 + rng.below(8) as u32,
            Class::X87 => Register::ST0 + rng.below(8) as u32,
            Class::Segment => Register::ES + rng.below(6) as u32,
            Class::Control => rng.of(&[Register::CR0, Register::CR2, Register::CR3, Register::CR4]),
            Class::Debug => Register::DR0 + rng.below(8) as u32,
            Class::Test => unreachable!("not accepted"),
        }
    }

    /// Gives the operand a random address; the values of its registers are decided later.
    fn memory(&mut self, i: &mut Instruction, part: Part) {
        let (rng, bits, plan) = (&mut *self.rng, self.bits, &mut self.plan);
        let size = i.memory_size().size() as u64;
        let mut address = target(rng, if size == 0 { 64 } else { size });
        let narrow = rng.chance(12);
        let full = if bits == 64 { Register::RAX } else { Register::EAX };
        let first = if narrow && bits == 64 { Register::EAX } else { full };
        if rng.chance(15) {
            i.set_segment_prefix(rng.of(&[
                if bits == 64 { Register::FS } else { Register::CS },
                if bits == 64 { Register::GS } else { Register::DS },
                Register::FS,
                Register::GS,
                Register::ES,
                Register::CS,
                Register::SS,
                Register::DS,
            ]));
        }
        let shape = rng.below(100);
        if shape < 3 && bits == 64 && !narrow {
            address = non_canonical(rng);
        }
        plan.target = Some(address);
        i.set_memory_index_scale(1 << rng.below(4));
        let displacement = match rng.below(4) {
            0 => 0,
            1 => rng.next() as i8 as i64,
            2 => rng.next() as i32 as i64 >> rng.below(24),
            _ => rng.next() as i32 as i64,
        };
        let displacement = if bits == 64 { displacement as u64 } else { displacement as u32 as u64 };
        i.set_memory_displacement64(displacement);
        i.set_memory_displ_size(u32::from(displacement != 0));
        if let Part::Gathered { bytes, first: vector } = part {
            i.set_memory_base(numbered(rng, first, bits));
            i.set_memory_index(self::vector(rng, vector, bits, self.evex));
            i.set_memory_displacement64((rng.next() as i8 as i64) as u64 & if bits == 64 { !0 } else { 0xffff_ffff });
            plan.vector_index = bytes;
            return;
        }
        let index = |rng: &mut Random| loop {
            let index = numbered(rng, first, bits);
            if index.number() != 4 {
                break index;
            }
        };
        match shape {
            0..35 => i.set_memory_base(numbered(rng, first, bits)),
            35..75 => {
                i.set_memory_base(numbered(rng, first, bits));
                i.set_memory_index(index(rng));
            }
            75..85 => i.set_memory_index(index(rng)),
            85..92 if bits == 64 => {
                i.set_memory_base(if narrow { Register::EIP } else { Register::RIP });
                i.set_memory_displ_size(if narrow { 4 } else { 8 });
            }
            _ => i.set_memory_displ_size(if bits == 64 && !narrow { 8 } else { 4 }),
        }
        // Forms without a base have room for the address in the displacement; with only an index, it is solved for
        // later.
        if i.memory_base() == Register::None || i.is_ip_rel_memory_operand() {
            i.set_memory_displacement64(address);
            if i.memory_index() != Register::None {
                i.set_memory_displ_size(if bits == 64 && !narrow { 8 } else { 4 });
            }
        }
    }

    fn offset(&mut self, i: &mut Instruction) {
        let address = target(self.rng, i.memory_size().size() as u64);
        i.set_memory_displacement64(address);
        i.set_memory_displ_size(if self.bits == 64 && !self.narrow { 8 } else { 4 });
        if self.rng.chance(20) {
            i.set_segment_prefix(self.rng.of(&[Register::FS, Register::GS, Register::SS, Register::ES]));
        }
        self.plan.target = Some(address);
    }

    fn address_bits(&mut self) -> u32 {
        if self.narrow == (self.bits == 64) { 32 } else { 64 }
    }

    fn immediate(&mut self, kind: OpKind) -> u64 {
        let rng = &mut *self.rng;
        match kind {
            OpKind::Immediate8_2nd if rng.chance(80) => rng.below(4),
            OpKind::Immediate8_2nd => rng.next(),
            OpKind::Immediate8 if rng.chance(50) => rng.next(),
            _ => values::integer(rng),
        }
    }

    fn branch(&mut self, short: bool) -> u64 {
        landing(self.rng, short)
    }

    fn prefixes(&mut self, i: &mut Instruction) {
        let rng = std::cell::RefCell::new(&mut *self.rng);
        decorate(i, |percent| rng.borrow_mut().chance(percent), |end| rng.borrow_mut().below(end));
        let info = i.code().op_code();
        if info.can_use_lock_prefix() && i.op0_kind() == OpKind::Memory && self.rng.chance(30) {
            i.set_has_lock_prefix(true);
        }
        if (info.can_use_rep_prefix() || info.can_use_repne_prefix()) && i.is_string_instruction() {
            match self.rng.below(4) {
                0 | 1 if info.can_use_rep_prefix() => i.set_has_rep_prefix(true),
                2 if info.can_use_repne_prefix() => i.set_has_repne_prefix(true),
                _ => {}
            }
        }
    }
}

/// Builds an instruction of this form with random operands. Returns `None` if this draw has no encoding.
pub fn instruction(code: Code, rng: &mut Random, bits: u32) -> Option<(Instruction, Plan)> {
    let evex = code.op_code().encoding() == EncodingKind::EVEX;
    let mut chosen = Chosen { rng, bits, plan: Plan::default(), narrow: false, evex };
    let instruction = testkit::operands::instruction(code, &mut chosen)?;
    Some((instruction, chosen.plan))
}
