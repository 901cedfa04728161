//! What AMD's processors do differently from Intel's, whose manual the processor under test follows: left out of the comparison
//! where the host is AMD's.

use crate::case::Case;
use crate::state::Outcome;
use cpu::flags;
use iced_x86::{Instruction, Mnemonic, OpKind, RflagsBits};

/// FSW.ES.
const SUMMARY: u16 = 1 << 7;
const UD: u8 = 6;
const SS: u8 = 12;
const GP: u8 = 13;
const PF: u8 = 14;

/// Whether the case says nothing about the processor under test.
pub fn incomparable(case: &Case, native: &Outcome, emulated: &Outcome) -> bool {
    use Mnemonic::*;
    let i = &case.instruction;
    let vector = |outcome: &Outcome| outcome.exception.map(|e| e.vector);
    let (ours, theirs) = (vector(emulated), vector(native));
    match i.mnemonic() {
        // A fault may come after any number of elements, in any order (SDM vol. 2, VGATHERDPS; APM vol. 4, likewise).
        Vgatherdps | Vgatherdpd | Vgatherqps | Vgatherqpd | Vpgatherdd | Vpgatherdq | Vpgatherqd | Vpgatherqq => {
            theirs.is_some() && theirs == ours
        }
        // Alignment is not asked for.
        Sha1msg1 | Sha1msg2 | Sha1nexte | Sha1rnds4 | Sha256msg1 | Sha256msg2 | Sha256rnds2 => {
            theirs != Some(GP) && ours == Some(GP)
        }
        // 0F 0D with a register: no operation (SDM vol. 2, table A-3), invalid (APM vol. 3, PREFETCH).
        Reservednop => theirs == Some(UD),
        // By more than the width the result is undefined in both manuals.
        Shld | Shrd => i.op1_register().size() == 2,
        // FOP, FIP, FDP are saved with an exception pending only; MXCSR_MASK has MM (APM vol. 5, FXSAVE; vol. 1, 4.2.2).
        Fxsave | Fxsave64 | Xsave | Xsave64 | Xsavec | Xsavec64 => true,
        // An area that is not aligned, or not canonical through SS: the manuals order faults of one instruction by class only.
        Xrstor | Xrstor64 => theirs == Some(GP) && ours == Some(SS),
        // Whether the flags of a conversion are there when its store faults.
        Vcvtps2ph => theirs.is_some(),
        // Likewise which comes first, the page fault or the unmasked exception that keeps the store from being made.
        Fist | Fistp | Fisttp | Fst | Fstp | Fbstp => theirs == Some(PF) && emulated.state.x.fsw & SUMMARY != 0,
        // Reserved with these (SDM vol. 2, 2.1.1): REPNE makes LOOPNE of LOOPE there.
        Loope | Loopne if has_prefix(case, &[0xf2, 0xf3]) => true,
        // 66 is ignored (SDM vol. 2, Jcc), or cuts RIP to 16 bits (APM vol. 3, Jcc).
        _ => has_prefix(case, &[0x66]) && is_near_branch(i),
    }
}

fn has_prefix(case: &Case, wanted: &[u8]) -> bool {
    case.bytes.iter().take_while(|byte| is_prefix(**byte)).any(|byte| wanted.contains(byte))
}

fn is_prefix(byte: u8) -> bool {
    matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3)
}

fn is_near_branch(i: &Instruction) -> bool {
    i.is_jcc_short_or_near()
        || i.is_jmp_short_or_near()
        || i.is_jmp_near_indirect()
        || i.is_call_near()
        || i.is_call_near_indirect()
        || i.is_jcx_short()
        || i.is_loop()
        || i.is_loopcc()
        || i.mnemonic() == Mnemonic::Ret
}

/// Makes what a register or pointer may be that of the host.
pub fn adjust(case: &Case, native: &Outcome, emulated: &mut Outcome) {
    if native.state.x.fsw & SUMMARY == 0 {
        // Saved only with an exception pending (APM vol. 5, FXSAVE).
        let (x, y) = (&native.state.x, &mut emulated.state.x);
        (y.fop, y.fip, y.fdp) = (x.fop, x.fip, x.fdp);
    }
    // Without an iteration made, the upper halves of registers that hold 32-bit addresses and counts stay there.
    let i = &case.instruction;
    let narrow = (0..i.op_count()).any(|n| matches!(i.op_kind(n), OpKind::MemorySegESI | OpKind::MemoryESEDI));
    if narrow {
        for register in [1, 6, 7] {
            let (a, b) = (native.state.gpr[register], &mut emulated.state.gpr[register]);
            if a as u32 == *b as u32 {
                *b = a;
            }
        }
    }
}

/// The flags that both manuals leave undefined, in which Intel's processors agree with each other.
pub fn undefined_flags(instruction: &Instruction) -> u64 {
    use Mnemonic::*;
    let bits = [
        (RflagsBits::CF, flags::CF),
        (RflagsBits::PF, flags::PF),
        (RflagsBits::AF, flags::AF),
        (RflagsBits::ZF, flags::ZF),
        (RflagsBits::SF, flags::SF),
        (RflagsBits::OF, flags::OF),
    ];
    let undefined = instruction.rflags_undefined();
    let all = bits.into_iter().filter(|(bit, _)| undefined & bit != 0).fold(0, |all, (_, flag)| all | flag);
    // OF is defined for a count of 1; rotations of bytes and words through CF take the count modulo 9 or 17.
    all | if matches!(instruction.mnemonic(), Rcl | Rcr) { flags::OF } else { 0 }
}
