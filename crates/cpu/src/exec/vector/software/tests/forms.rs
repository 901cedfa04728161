//! Generates instructions of a form with fixed registers.

use crate::testing::Random;
use iced_x86::{Code, Instruction, OpCodeOperandKind, OpKind, Register, RoundingControl};

/// Offset of the memory operand from RDI.
pub const MEMORY: u64 = 192;

/// Kinds of an instruction's operands.
pub struct Shape {
    /// The operand in memory.
    pub memory: Option<u32>,
}

impl Shape {
    pub fn of(i: &Instruction) -> Self {
        Shape { memory: (0..i.op_count()).find(|&n| i.op_kind(n) == OpKind::Memory) }
    }
}

/// Returns the register of an operand: 1 to 3 for vectors, K2 and K3, RAX and RCX.
fn register(kind: OpCodeOperandKind, n: u32) -> Option<Register> {
    use OpCodeOperandKind::*;
    let of = |base: Register| Some(Register::try_from(base as usize + n as usize + 1).expect("a register"));
    match kind {
        xmm_reg | xmm_rm | xmm_vvvv | xmm_or_mem => of(Register::XMM0),
        ymm_reg | ymm_rm | ymm_vvvv | ymm_or_mem => of(Register::YMM0),
        zmm_reg | zmm_rm | zmm_vvvv | zmm_or_mem => of(Register::ZMM0),
        k_reg => Some(Register::K2),
        k_rm => Some(Register::K3),
        r32_reg | r32_rm | r32_or_mem => Some(if n == 0 { Register::EAX } else { Register::ECX }),
        r64_reg | r64_rm | r64_or_mem => Some(if n == 0 { Register::RAX } else { Register::RCX }),
        _ => Option::None,
    }
}

/// Returns instructions of the form: register and memory operands, broadcast, each rounding mode, masks, with a random
/// immediate each.
pub fn variants(code: Code, random: &mut Random) -> Vec<Instruction> {
    let op = code.op_code();
    let kinds = op.op_kinds();
    let mut list = Vec::new();
    for source in 0..3 {
        // Registers, memory, broadcast.
        let in_memory = source != 0;
        if source == 2 && !op.can_broadcast() {
            continue;
        }
        let mut i = Instruction::new();
        i.set_code(code);
        let mut memory = false;
        let mut possible = true;
        for (n, &kind) in kinds.iter().enumerate() {
            let n = n as u32;
            let name = format!("{kind:?}");
            if kind == OpCodeOperandKind::imm8 {
                i.set_op_kind(n, OpKind::Immediate8);
                i.set_immediate8(random.next() as u8);
            } else if name == "mem" || in_memory && name.ends_with("_or_mem") {
                if !in_memory {
                    possible = false;
                    break;
                }
                i.set_op_kind(n, OpKind::Memory);
                i.set_memory_base(Register::RDI);
                i.set_memory_displacement64(MEMORY);
                i.set_memory_displ_size(8);
                memory = true;
            } else {
                let register = register(kind, n).unwrap_or_else(|| panic!("{code:?}: operand {kind:?}"));
                i.set_op_kind(n, OpKind::Register);
                i.set_op_register(n, register);
            }
        }
        if !possible || memory != in_memory {
            continue;
        }
        i.set_is_broadcast(source == 2);
        let mut roundings = vec![(RoundingControl::None, false)];
        if !in_memory && op.can_use_rounding_control() {
            use RoundingControl::*;
            roundings.extend([(RoundToNearest, false), (RoundDown, false), (RoundUp, false), (RoundTowardZero, false)]);
        }
        if !in_memory && op.can_suppress_all_exceptions() && !op.can_use_rounding_control() {
            roundings.push((RoundingControl::None, true));
        }
        for (rounding, quiet) in roundings {
            i.set_rounding_control(rounding);
            i.set_suppress_all_exceptions(quiet);
            let required = op.require_op_mask_register();
            for mask in 0..3 {
                let zeroing = mask == 2;
                if mask == 0 && required
                    || mask != 0 && !op.can_use_op_mask_register()
                    || zeroing && (!op.can_use_zeroing_masking() || i.op0_kind() == OpKind::Memory)
                {
                    continue;
                }
                let mut masked = i;
                masked.set_op_mask(if mask == 0 { Register::None } else { Register::K1 });
                masked.set_zeroing_masking(zeroing);
                list.push(masked);
            }
        }
    }
    list
}
