//! RCPPS, RCPSS, RSQRTPS, RSQRTSS.
//!
//! The architecture only bounds their error (1.5 * 2^-12, relative), and processors differ within the bound. Here a
//! result is the exact one rounded to twelve significant bits, which is the same on every host.

use crate::exec::vector::execute::{Stage, aligned, ready};
use crate::fault::{Exec, Flow};
use crate::op::{Handler, Op};
use crate::state::Cpu;
use iced_x86::{EncodingKind, Instruction, Mnemonic::*, OpKind};

const SIGN: u32 = 1 << 31;
const INFINITY: u32 = 0x7f80_0000;
const QUIET: u32 = 1 << 22;
const DEFAULT_NAN: u32 = 0xffc0_0000;
/// Number of significand bits that are dropped.
const DROPPED: u32 = 12;

/// Rounds a positive normal number to twelve significant bits; other numbers become 0.
fn shorten(value: f64) -> u32 {
    let bits = (value as f32).to_bits();
    if bits >> 23 == 0 {
        return 0;
    }
    // Rounds to nearest; a carry into the exponent is correct.
    (bits + (1 << (DROPPED - 1))) & !((1 << DROPPED) - 1)
}

/// Returns an approximation of 1 / x.
pub fn reciprocal(bits: u32) -> u32 {
    let (sign, magnitude) = (bits & SIGN, bits & !SIGN);
    match magnitude {
        m if m > INFINITY => bits | QUIET,
        INFINITY => sign,
        m if m >> 23 == 0 => sign | INFINITY,
        m => sign | shorten(1.0 / f64::from(f32::from_bits(m))),
    }
}

/// Returns an approximation of 1 / sqrt(x).
pub fn reciprocal_root(bits: u32) -> u32 {
    let (sign, magnitude) = (bits & SIGN, bits & !SIGN);
    match magnitude {
        m if m > INFINITY => bits | QUIET,
        m if m >> 23 == 0 => sign | INFINITY,
        _ if sign != 0 => DEFAULT_NAN,
        INFINITY => 0,
        m => shorten(1.0 / f64::from(f32::from_bits(m)).sqrt()),
    }
}

/// Binds one of the eight instructions.
pub fn bind(i: &Instruction, op: &mut Op) -> Option<Handler> {
    let vex = match i.code().encoding() {
        EncodingKind::Legacy => false,
        EncodingKind::VEX => true,
        _ => return None,
    };
    let scalar = matches!(i.mnemonic(), Rcpss | Rsqrtss | Vrcpss | Vrsqrtss);
    let root = matches!(i.mnemonic(), Rsqrtps | Rsqrtss | Vrsqrtps | Vrsqrtss);
    // The last operand is the source; a scalar VEX form takes the other elements from the operand before it.
    let last = i.op_count() - 1;
    let source = if last == 2 { op.r2 } else { op.r1 };
    op.r3 = source;
    op.r2 = if vex && scalar { op.r1 } else { op.r0 };
    op.imm = u64::from(i.op_kind(last) == OpKind::Memory);
    op.size = if scalar { 4 } else { i.op0_register().size() as u8 };
    Some(match (vex, root) {
        (false, false) => run::<false, false>,
        (false, true) => run::<false, true>,
        (true, false) => run::<true, false>,
        (true, true) => run::<true, true>,
    })
}

fn run<const VEX: bool, const ROOT: bool>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    ready::<VEX>(cpu)?;
    let len = usize::from(op.size).min(32);
    let mut stage = Stage([0; 64]);
    if op.imm != 0 {
        let mask = if !VEX && len == 16 { 15 } else { 0 };
        let linear = aligned(cpu, op, len as u64, mask, false)?;
        cpu.read_bytes(linear, op.seg, &mut stage.0[..len])?;
    } else {
        for (word, chunk) in cpu.arch.vector.ymm[usize::from(op.r3 & 15)].iter().zip(stage.0.as_chunks_mut::<8>().0) {
            *chunk = word.to_le_bytes();
        }
    }
    let mut result = cpu.arch.vector.ymm[usize::from(op.r2 & 15)];
    for (n, chunk) in stage.0[..len].as_chunks::<4>().0.iter().enumerate() {
        let x = u32::from_le_bytes(*chunk);
        let y = if ROOT { reciprocal_root(x) } else { reciprocal(x) };
        let shift = 32 * (n & 1);
        result[n / 2] = (result[n / 2] & !(0xffff_ffff << shift)) | u64::from(y) << shift;
    }
    if VEX && len < 32 {
        result[2] = 0;
        result[3] = 0;
    }
    cpu.arch.vector.ymm[usize::from(op.r0 & 15)] = result;
    if VEX {
        cpu.arch.vector.clear_upper(op.r0);
    }
    Ok(Flow::Next)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The architecture's bound on the relative error.
    const BOUND: f64 = 1.5 / 4096.0;

    #[test]
    fn errors_are_within_the_architecture_s_bound() {
        for step in 0..200_000u32 {
            let bits = 0x0080_0000u32.wrapping_add(step.wrapping_mul(10_000));
            let x = f64::from(f32::from_bits(bits));
            if bits < 0x7e80_0000 {
                let y = f64::from(f32::from_bits(reciprocal(bits)));
                assert!((y * x - 1.0).abs() <= BOUND, "rcp {bits:#x}");
            }
            if bits < INFINITY {
                let y = f64::from(f32::from_bits(reciprocal_root(bits)));
                assert!((y * x.sqrt() - 1.0).abs() <= BOUND, "rsqrt {bits:#x}");
            }
        }
    }

    #[test]
    fn special_values() {
        assert_eq!(reciprocal(0), INFINITY);
        assert_eq!(reciprocal(SIGN | 1), SIGN | INFINITY);
        assert_eq!(reciprocal(SIGN | INFINITY), SIGN);
        assert_eq!(reciprocal(0x7f80_0001), 0x7fc0_0001);
        assert_eq!(reciprocal(0x7f00_0000), 0);
        assert_eq!(reciprocal_root(SIGN), SIGN | INFINITY);
        assert_eq!(reciprocal_root(0xbf80_0000), DEFAULT_NAN);
        assert_eq!(reciprocal_root(INFINITY), 0);
    }
}
