//! Differences of AMD's processors from Intel's, whose manual the processor under test follows if its model has no AMD
//! variant. They are left out of the comparison if the host is AMD's.

use crate::case::Case;
use crate::state::Outcome;
use iced_x86::{Instruction, Mnemonic, OpKind, RflagsBits};
use x86::flags;
use x86::vector::{GP, PF, SS};

/// FSW.ES.
const SUMMARY: u16 = 1 << 7;
/// FSW.UE.
const UNDERFLOW: u16 = 1 << 4;
/// MXCSR.FTZ and MXCSR.UM.
const FLUSH: u32 = 1 << 15;
const UNDERFLOW_MASKED: u32 = 1 << 11;
/// MXCSR.MM.
const MISALIGNED: u32 = 1 << 17;

/// Returns true if the case says nothing about the processor under test.
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
        // With underflow unmasked the result is not flushed to zero.
        Vreducepd | Vreduceps | Vreducesd | Vreducess => case.state.x.mxcsr & (FLUSH | UNDERFLOW_MASKED) == FLUSH,
        // Alignment is not required.
        Sha1msg1 | Sha1msg2 | Sha1nexte | Sha1rnds4 | Sha256msg1 | Sha256msg2 | Sha256rnds2 => {
            theirs != Some(GP) && ours == Some(GP)
        }
        // For counts above the width, both manuals leave the result undefined.
        Shld | Shrd => i.op1_register().size() == 2,
        // FOP, FIP, FDP are saved only with a pending exception; MXCSR_MASK has MM (APM vol. 5, FXSAVE; vol. 1, 4.2.2).
        Fxsave | Fxsave64 | Xsave | Xsave64 | Xsavec | Xsavec64 => true,
        // For an area that is not aligned, or not canonical through SS, the manuals order faults of one instruction by
        // class only.
        Xrstor | Xrstor64 => theirs == Some(GP) && ours == Some(SS),
        // The flags of a conversion may or may not be set if its store faults.
        Vcvtps2ph => theirs.is_some(),
        // The order of the fault and of the unmasked exception that suppresses the store is likewise open.
        Fist | Fistp | Fisttp | Fst | Fstp | Fbstp => {
            matches!(theirs, Some(PF | GP | SS)) && emulated.state.x.fsw & SUMMARY != 0
        }
        // Of two unreadable operands, this processor reports the first and AMD's the second.
        Cmpsb | Cmpsw | Cmpsd | Cmpsq => theirs == Some(PF) && ours == Some(PF),
        // Memory may be checked although nothing is written (SDM vol. 2, MASKMOVQ).
        Maskmovq | Maskmovdqu | Vmaskmovdqu => matches!(theirs, Some(PF | GP | SS)) && ours.is_none(),
        // MXCSR.MM (APM vol. 1, 4.2.2), which no profile announces, is reserved (SDM vol. 1, 10.2.3).
        Ldmxcsr | Vldmxcsr => ours == Some(GP) && native.state.x.mxcsr & MISALIGNED != 0,
        // The remainder by an infinity is the dividend; a denormal dividend then underflows, unless that is masked.
        Fprem | Fprem1 => native.state.x.fsw & !emulated.state.x.fsw & (SUMMARY | UNDERFLOW) == SUMMARY | UNDERFLOW,
        // These prefixes are reserved (SDM vol. 2, 2.1.1); there, REPNE turns LOOPE into LOOPNE.
        Loope | Loopne => has_prefix(case, &[0xf2, 0xf3]),
        // The data pointer is saved only with a pending exception, so a switch to another program loses it.
        Fnstenv | Fnsave => case.state.x.fsw & SUMMARY == 0 && native.state.x.fdp == 0 && case.state.x.fdp != 0,
        _ => false,
    }
}

fn has_prefix(case: &Case, wanted: &[u8]) -> bool {
    case.bytes.iter().take_while(|byte| is_prefix(**byte)).any(|byte| wanted.contains(byte))
}

fn is_prefix(byte: u8) -> bool {
    matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3)
}

/// Replaces registers and pointers that may follow the host by the host's.
pub fn adjust(case: &Case, native: &Outcome, emulated: &mut Outcome) {
    if native.state.x.fsw & SUMMARY == 0 {
        // These are saved only with a pending exception (APM vol. 5, FXSAVE).
        let (x, y) = (&native.state.x, &mut emulated.state.x);
        (y.fop, y.fip, y.fdp) = (x.fop, x.fip, x.fdp);
    } else if native.state.x.fdp == 0 && !memory_operand(&case.instruction) {
        // A switch to another program lost the pointer before this instruction, which does not set it.
        emulated.state.x.fdp = 0;
    }
    // Without any iteration, registers that hold 32-bit addresses and counts keep their upper halves there.
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

fn memory_operand(i: &Instruction) -> bool {
    (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory)
}

/// Returns the flags that both manuals leave undefined and in which Intel's processors agree.
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
