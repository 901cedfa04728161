//! Instructions in other encodings that some hosts lack, mapped to EVEX-encoded ones that software can compute.

use super::form::Level;
use iced_x86::{Code, Code::*, Instruction, OpKind};

/// An instruction, the state that must be enabled for it, and the EVEX-encoded instruction with the same result.
const SAME: &[(Code, Level, Code)] = &[
    (VEX_Vaesenc_ymm_ymm_ymmm256, Level::Avx, EVEX_Vaesenc_ymm_ymm_ymmm256),
    (VEX_Vaesenclast_ymm_ymm_ymmm256, Level::Avx, EVEX_Vaesenclast_ymm_ymm_ymmm256),
    (VEX_Vaesdec_ymm_ymm_ymmm256, Level::Avx, EVEX_Vaesdec_ymm_ymm_ymmm256),
    (VEX_Vaesdeclast_ymm_ymm_ymmm256, Level::Avx, EVEX_Vaesdeclast_ymm_ymm_ymmm256),
    (VEX_Vpclmulqdq_ymm_ymm_ymmm256_imm8, Level::Avx, EVEX_Vpclmulqdq_ymm_ymm_ymmm256_imm8),
    (VEX_Vgf2p8mulb_xmm_xmm_xmmm128, Level::Avx, EVEX_Vgf2p8mulb_xmm_k1z_xmm_xmmm128),
    (VEX_Vgf2p8mulb_ymm_ymm_ymmm256, Level::Avx, EVEX_Vgf2p8mulb_ymm_k1z_ymm_ymmm256),
    (VEX_Vgf2p8affineqb_xmm_xmm_xmmm128_imm8, Level::Avx, EVEX_Vgf2p8affineqb_xmm_k1z_xmm_xmmm128b64_imm8),
    (VEX_Vgf2p8affineqb_ymm_ymm_ymmm256_imm8, Level::Avx, EVEX_Vgf2p8affineqb_ymm_k1z_ymm_ymmm256b64_imm8),
    (VEX_Vgf2p8affineinvqb_xmm_xmm_xmmm128_imm8, Level::Avx, EVEX_Vgf2p8affineinvqb_xmm_k1z_xmm_xmmm128b64_imm8),
    (VEX_Vgf2p8affineinvqb_ymm_ymm_ymmm256_imm8, Level::Avx, EVEX_Vgf2p8affineinvqb_ymm_k1z_ymm_ymmm256b64_imm8),
    (Gf2p8mulb_xmm_xmmm128, Level::Sse, EVEX_Vgf2p8mulb_xmm_k1z_xmm_xmmm128),
    (Gf2p8affineqb_xmm_xmmm128_imm8, Level::Sse, EVEX_Vgf2p8affineqb_xmm_k1z_xmm_xmmm128b64_imm8),
    (Gf2p8affineinvqb_xmm_xmmm128_imm8, Level::Sse, EVEX_Vgf2p8affineinvqb_xmm_k1z_xmm_xmmm128b64_imm8),
    (VEX_Vpdpbusd_xmm_xmm_xmmm128, Level::Avx, EVEX_Vpdpbusd_xmm_k1z_xmm_xmmm128b32),
    (VEX_Vpdpbusd_ymm_ymm_ymmm256, Level::Avx, EVEX_Vpdpbusd_ymm_k1z_ymm_ymmm256b32),
    (VEX_Vpdpbusds_xmm_xmm_xmmm128, Level::Avx, EVEX_Vpdpbusds_xmm_k1z_xmm_xmmm128b32),
    (VEX_Vpdpbusds_ymm_ymm_ymmm256, Level::Avx, EVEX_Vpdpbusds_ymm_k1z_ymm_ymmm256b32),
    (VEX_Vpdpwssd_xmm_xmm_xmmm128, Level::Avx, EVEX_Vpdpwssd_xmm_k1z_xmm_xmmm128b32),
    (VEX_Vpdpwssd_ymm_ymm_ymmm256, Level::Avx, EVEX_Vpdpwssd_ymm_k1z_ymm_ymmm256b32),
    (VEX_Vpdpwssds_xmm_xmm_xmmm128, Level::Avx, EVEX_Vpdpwssds_xmm_k1z_xmm_xmmm128b32),
    (VEX_Vpdpwssds_ymm_ymm_ymmm256, Level::Avx, EVEX_Vpdpwssds_ymm_k1z_ymm_ymmm256b32),
];

/// Returns the EVEX-encoded instruction with the same result, and the state that must be enabled. For a legacy
/// instruction the destination becomes the first source.
pub fn of(i: &Instruction) -> Option<(Instruction, Level)> {
    let &(_, level, code) = SAME.iter().find(|(code, ..)| *code == i.code())?;
    let mut same = *i;
    same.set_code(code);
    if level == Level::Sse {
        if i.op_count() == 3 {
            same.set_op_kind(3, OpKind::Immediate8);
        }
        same.set_op_kind(2, i.op1_kind());
        if i.op1_kind() == OpKind::Register {
            same.set_op2_register(i.op1_register());
        }
        same.set_op1_kind(OpKind::Register);
        same.set_op1_register(i.op0_register());
    }
    Some((same, level))
}
