//! Random operands: turns a decoder code into an instruction.

use crate::layout::*;
use crate::rng::Rng;
use crate::values;
use iced_x86::{Code, Instruction, OpCodeOperandKind, OpKind, Register};
use x86::page::PAGE;

/// Index of vector register lanes that hold addresses, for gathers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    /// Where the memory operand is meant to be.
    pub target: Option<u64>,
    /// The memory operand uses a vector of indices with elements of this many bytes.
    pub vector_index: u8,
}

fn gpr8(rng: &mut Rng, bits: u32) -> Register {
    Register::AL + rng.below(if bits == 64 { 20 } else { 8 }) as u32
}

fn numbered(rng: &mut Rng, first: Register, bits: u32) -> Register {
    first + rng.below(if bits == 64 { 16 } else { 8 }) as u32
}

fn fixed(kind: OpCodeOperandKind) -> Option<Register> {
    use OpCodeOperandKind as K;
    Some(match kind {
        K::al => Register::AL,
        K::cl => Register::CL,
        K::ax => Register::AX,
        K::dx => Register::DX,
        K::eax => Register::EAX,
        K::rax => Register::RAX,
        K::st0 => Register::ST0,
        K::es => Register::ES,
        K::cs => Register::CS,
        K::ss => Register::SS,
        K::ds => Register::DS,
        K::fs => Register::FS,
        K::gs => Register::GS,
        _ => return None,
    })
}

/// The register of a register operand, or of one that may be a register.
fn register(kind: OpCodeOperandKind, rng: &mut Rng, bits: u32) -> Option<Register> {
    use OpCodeOperandKind as K;
    Some(match kind {
        K::r8_or_mem | K::r8_reg | K::r8_opcode => gpr8(rng, bits),
        K::r16_or_mem | K::r16_reg | K::r16_reg_mem | K::r16_rm | K::r16_opcode => numbered(rng, Register::AX, bits),
        K::r32_or_mem | K::r32_reg | K::r32_reg_mem | K::r32_rm | K::r32_opcode | K::r32_vvvv => {
            numbered(rng, Register::EAX, bits)
        }
        K::r64_or_mem | K::r64_reg | K::r64_reg_mem | K::r64_rm | K::r64_opcode | K::r64_vvvv => {
            numbered(rng, Register::RAX, bits)
        }
        K::mm_or_mem | K::mm_reg | K::mm_rm => Register::MM0 + rng.below(8) as u32,
        K::xmm_or_mem | K::xmm_reg | K::xmm_rm | K::xmm_vvvv | K::xmm_is4 | K::xmm_is5 => {
            numbered(rng, Register::XMM0, bits)
        }
        K::ymm_or_mem | K::ymm_reg | K::ymm_rm | K::ymm_vvvv | K::ymm_is4 | K::ymm_is5 => {
            numbered(rng, Register::YMM0, bits)
        }
        K::sti_opcode => Register::ST0 + rng.below(8) as u32,
        K::cr_reg => rng.pick(&[Register::CR0, Register::CR2, Register::CR3, Register::CR4]),
        K::dr_reg => Register::DR0 + rng.below(8) as u32,
        K::seg_reg => Register::ES + rng.below(6) as u32,
        _ => return fixed(kind),
    })
}

fn may_be_memory(kind: OpCodeOperandKind) -> bool {
    use OpCodeOperandKind as K;
    matches!(
        kind,
        K::r8_or_mem | K::r16_or_mem | K::r32_or_mem | K::r64_or_mem | K::mm_or_mem | K::xmm_or_mem | K::ymm_or_mem
    )
}

/// An address for an access of `size` bytes: anywhere in the data pages, aligned or not, often next to a page's end, now and
/// then where it faults.
pub fn target(rng: &mut Rng, size: u64) -> u64 {
    let size = size.clamp(1, 1024);
    let align = if rng.chance(60) { size.next_power_of_two().min(64) } else { 1 };
    let within = ARENA + 0x1000 + rng.below(0x2000 - size);
    let address = match rng.below(40) {
        // Across the boundary of the two data pages.
        0 | 1 => ARENA + 0x2000 - rng.below(size + 1),
        // Up to, and into, the read-only page.
        2 => ARENA + 0x3000 - rng.below(size + 1),
        3 => ARENA + 0x3000 + rng.below(0x1000 - size),
        // Into the holes.
        4 => ARENA + 0x4000 - rng.below(size + 1),
        5 => ARENA + 0x1000 - rng.below(size + 1),
        6 => ARENA + 0x4000 + rng.below(0x1000),
        _ => within,
    };
    address & !(align - 1)
}

/// An address that is not canonical, whatever the paging depth.
fn non_canonical(rng: &mut Rng) -> u64 {
    rng.bits() & !(3 << 62) | 1 << (62 + rng.below(2))
}

fn vector_index(kind: OpCodeOperandKind) -> Option<(u8, Register)> {
    use OpCodeOperandKind as K;
    match kind {
        K::mem_vsib32x => Some((4, Register::XMM0)),
        K::mem_vsib64x => Some((8, Register::XMM0)),
        K::mem_vsib32y => Some((4, Register::YMM0)),
        K::mem_vsib64y => Some((8, Register::YMM0)),
        _ => None,
    }
}

/// Gives the instruction a memory operand at a random place. Which values its registers must have is decided later.
fn memory(i: &mut Instruction, kind: OpCodeOperandKind, rng: &mut Rng, bits: u32, plan: &mut Plan) {
    let size = i.memory_size().size() as u64;
    let mut address = target(rng, if size == 0 { 64 } else { size });
    let narrow = rng.chance(12);
    let full = if bits == 64 { Register::RAX } else { Register::EAX };
    let first = if narrow && bits == 64 { Register::EAX } else { full };
    if rng.chance(15) {
        i.set_segment_prefix(rng.pick(&[
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
        1 => rng.bits() as i8 as i64,
        2 => rng.bits() as i32 as i64 >> rng.below(24),
        _ => rng.bits() as i32 as i64,
    };
    let displacement = if bits == 64 { displacement as u64 } else { displacement as u32 as u64 };
    i.set_memory_displacement64(displacement);
    i.set_memory_displ_size(u32::from(displacement != 0));
    if let Some((bytes, vector)) = vector_index(kind) {
        i.set_memory_base(numbered(rng, first, bits));
        i.set_memory_index(numbered(rng, vector, bits));
        i.set_memory_displacement64((rng.bits() as i8 as i64) as u64 & if bits == 64 { !0 } else { 0xffff_ffff });
        plan.vector_index = bytes;
        return;
    }
    let index = |rng: &mut Rng| loop {
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
    // Forms without a base have room for the address in the displacement; with only an index, it is solved for later.
    if i.memory_base() == Register::None || i.is_ip_rel_memory_operand() {
        i.set_memory_displacement64(address);
        if i.memory_index() != Register::None {
            i.set_memory_displ_size(if bits == 64 && !narrow { 8 } else { 4 });
        }
    }
}

/// Where a branch may go: the code page, away from the instruction itself.
fn landing(rng: &mut Rng, near: bool) -> u64 {
    loop {
        let offset = if near { 0x800 - 100 + rng.below(200) } else { rng.below(PAGE) };
        if !(0x7f0..0x820).contains(&offset) {
            return CODE + offset;
        }
    }
}

/// A landing place for indirect branches and returns: now and then one where nothing can be fetched.
pub fn indirect_target(rng: &mut Rng, bits: u32) -> u64 {
    match rng.below(20) {
        0 => ARENA + rng.below(ARENA_LEN as u64),
        1 if bits == 64 => non_canonical(rng),
        _ => landing(rng, false),
    }
}

/// Builds an instruction of this form with random operands. `None`: this draw cannot be had.
pub fn instruction(code: Code, rng: &mut Rng, bits: u32) -> Option<(Instruction, Plan)> {
    use OpCodeOperandKind as K;
    let info = code.op_code();
    let mut plan = Plan::default();
    let mut i = Instruction::default();
    i.set_code(code);
    for n in 0..info.op_count() {
        let kind = info.op_kind(n);
        if may_be_memory(kind) && rng.chance(50) {
            i.set_op_kind(n, OpKind::Memory);
            memory(&mut i, kind, rng, bits, &mut plan);
            continue;
        }
        if let Some(register) = register(kind, rng, bits) {
            i.set_op_kind(n, OpKind::Register);
            i.set_op_register(n, register);
            continue;
        }
        let narrow = rng.chance(20);
        match kind {
            K::mem | K::mem_vsib32x | K::mem_vsib32y | K::mem_vsib64x | K::mem_vsib64y => {
                i.set_op_kind(n, OpKind::Memory);
                memory(&mut i, kind, rng, bits, &mut plan);
            }
            K::mem_offs => {
                let address = target(rng, i.memory_size().size() as u64);
                i.set_op_kind(n, OpKind::Memory);
                i.set_memory_displacement64(address);
                i.set_memory_displ_size(if bits == 64 && !narrow { 8 } else { 4 });
                if rng.chance(20) {
                    i.set_segment_prefix(rng.pick(&[Register::FS, Register::GS, Register::SS, Register::ES]));
                }
                plan.target = Some(address);
            }
            K::seg_rSI => {
                i.set_op_kind(n, if narrow == (bits == 64) { OpKind::MemorySegESI } else { OpKind::MemorySegRSI })
            }
            K::es_rDI => {
                i.set_op_kind(n, if narrow == (bits == 64) { OpKind::MemoryESEDI } else { OpKind::MemoryESRDI })
            }
            K::seg_rDI => {
                i.set_op_kind(n, if narrow == (bits == 64) { OpKind::MemorySegEDI } else { OpKind::MemorySegRDI })
            }
            K::seg_rBX_al => {
                i.set_op_kind(n, OpKind::Memory);
                i.set_memory_base(if narrow == (bits == 64) { Register::EBX } else { Register::RBX });
                i.set_memory_index(Register::AL);
                i.set_memory_index_scale(1);
            }
            K::imm8 if n > 0 && matches!(info.op_kind(n - 1), K::imm16 | K::imm8) => {
                i.set_op_kind(n, OpKind::Immediate8_2nd);
                i.set_immediate8_2nd(if rng.chance(80) { rng.below(4) as u8 } else { rng.bits() as u8 });
            }
            K::imm8 => {
                i.set_op_kind(n, OpKind::Immediate8);
                i.set_immediate8(if rng.chance(50) { rng.bits() } else { values::integer(rng) } as u8);
            }
            K::imm8_const_1 => {
                i.set_op_kind(n, OpKind::Immediate8);
                i.set_immediate8(1);
            }
            K::imm8sex16 => {
                i.set_op_kind(n, OpKind::Immediate8to16);
                i.set_immediate8to16(i16::from(values::integer(rng) as i8));
            }
            K::imm8sex32 => {
                i.set_op_kind(n, OpKind::Immediate8to32);
                i.set_immediate8to32(i32::from(values::integer(rng) as i8));
            }
            K::imm8sex64 => {
                i.set_op_kind(n, OpKind::Immediate8to64);
                i.set_immediate8to64(i64::from(values::integer(rng) as i8));
            }
            K::imm16 => {
                i.set_op_kind(n, OpKind::Immediate16);
                i.set_immediate16(values::integer(rng) as u16);
            }
            K::imm32 => {
                i.set_op_kind(n, OpKind::Immediate32);
                i.set_immediate32(values::integer(rng) as u32);
            }
            K::imm32sex64 => {
                i.set_op_kind(n, OpKind::Immediate32to64);
                i.set_immediate32to64(i64::from(values::integer(rng) as i32));
            }
            K::imm64 => {
                i.set_op_kind(n, OpKind::Immediate64);
                i.set_immediate64(values::integer(rng));
            }
            K::br64_1 | K::br64_4 => {
                i.set_op_kind(n, OpKind::NearBranch64);
                i.set_near_branch64(landing(rng, kind == K::br64_1));
            }
            K::br32_1 | K::br32_4 => {
                i.set_op_kind(n, OpKind::NearBranch32);
                i.set_near_branch32(landing(rng, kind == K::br32_1) as u32);
            }
            _ => return None,
        }
    }
    if info.can_use_lock_prefix() && i.op0_kind() == OpKind::Memory && rng.chance(30) {
        i.set_has_lock_prefix(true);
    }
    if (info.can_use_rep_prefix() || info.can_use_repne_prefix()) && i.is_string_instruction() {
        match rng.below(4) {
            0 | 1 if info.can_use_rep_prefix() => i.set_has_rep_prefix(true),
            2 if info.can_use_repne_prefix() => i.set_has_repne_prefix(true),
            _ => {}
        }
    }
    Some((i, plan))
}
