//! What a sweep does not execute, and which differences are the vendors' or the processor's own, each with the reason.

use super::Reaction;
use super::space::{Encoding, Map};
use iced_x86::{Instruction, Mnemonic};
use x86::vector;

/// Why an encoding is not executed, or `None` if it is.
pub fn not_run(encoding: &Encoding) -> Option<&'static str> {
    let modrm = encoding.modrm.unwrap_or(0);
    let (register, memory) = (modrm >> 3 & 7, modrm < 0xc0);
    match (encoding.map, encoding.opcode) {
        (Map::One, 0xcc | 0xf1) => Some("a trap to the kernel's debugger (INT3, INT1)"),
        (Map::Two, 0x05 | 0x34) => Some("a call of the kernel with arguments that nobody chose (SYSCALL, SYSENTER)"),
        (Map::Two, 0x01) if matches!(modrm, 0xc1 | 0xd9) => {
            Some("a call of the hypervisor that the host may run on (VMCALL, VMMCALL)")
        }
        (Map::Two, 0x01) if matches!(modrm, 0xd8 | 0xda..=0xdf) && testkit::host_is_amd() => {
            Some("SVM may be enabled by the hypervisor that the host runs on")
        }
        (Map::Two, 0x01) if matches!(modrm, 0xfa | 0xfb | 0xff) && testkit::host_is_amd() => {
            Some("the hypervisor that the host runs on may hide it (MONITORX, MWAITX, PVALIDATE)")
        }
        (Map::Two, 0x00) if register < 2 => Some("the kernel may answer in the processor's place (UMIP)"),
        (Map::Two, 0x01) if memory && register < 2 || register == 4 => {
            Some("the kernel may answer in the processor's place (UMIP)")
        }
        _ => None,
    }
}

/// Why outcomes may differ, or `None` if they may not.
pub fn explained(
    encoding: &Encoding,
    instruction: &Instruction,
    native: &Reaction,
    emulated: &Reaction,
) -> Option<&'static str> {
    use Mnemonic::*;
    let amd = testkit::host_is_amd();
    let undefined = emulated.vector() == Some(vector::UD);
    match instruction.mnemonic() {
        // SDM vol. 2, MASKMOVDQU: exceptions with a mask of zeros are the processor's choice.
        Maskmovq | Maskmovdqu | Vmaskmovdqu => {
            Some("whether memory is looked at with a mask of zeros is the processor's choice")
        }
        Arpl => Some("whether memory has to be writable if nothing is written to it is the processor's choice"),
        // SDM vol. 2, 2.1.1: reserved with these. AMD's processors take them for what they say of ZF.
        Loope | Loopne if repeats(encoding) => Some("LOOPE and LOOPNE with the other repeat prefix are reserved"),
        // The order of faults of one instruction is the processor's choice (SDM vol. 3, table 7-2, below class 10).
        Retf if instruction.op_count() != 0 && native.vector() == Some(vector::PF) => {
            Some("whether a far return looks at the outer stack before the selector is the processor's choice")
        }
        _ if amd && undefined && is_lock_verw(encoding) => Some("AMD's processors execute VERW with LOCK"),
        // The manuals have W1 alone.
        _ if amd && undefined && is_permutation(encoding) => {
            Some("AMD's processors ignore VEX.W of VPERMQ and VPERMPD")
        }
        INVALID if undefined && is_opmask(encoding) => {
            Some("an instruction on opmasks, with bits that name no register: the processor under test has none")
        }
        _ => None,
    }
}

fn repeats(encoding: &Encoding) -> bool {
    encoding.bytes[..encoding.len].iter().any(|byte| matches!(byte, 0xf2 | 0xf3))
}

fn is_lock_verw(encoding: &Encoding) -> bool {
    (encoding.map, encoding.opcode) == (Map::Two, 0)
        && encoding.modrm.is_some_and(|modrm| modrm >> 3 & 7 == 5)
        && encoding.bytes[..encoding.len].contains(&0xf0)
}

fn is_permutation(encoding: &Encoding) -> bool {
    matches!(encoding.bytes, [0xc4, map, last, 0x00 | 0x01, ..] if map & 0x1f == 3 && last & 0x87 == 0x05)
}

/// KADD to KXOR, KMOV and KSHIFT, whatever their registers.
fn is_opmask(encoding: &Encoding) -> bool {
    let opmask = |map: u8| match map {
        1 => matches!(encoding.opcode, 0x41 | 0x42 | 0x44..=0x47 | 0x4a | 0x4b | 0x90..=0x93 | 0x98 | 0x99),
        3 => matches!(encoding.opcode, 0x30..=0x33),
        _ => false,
    };
    encoding.map == Map::Vex
        && match encoding.bytes {
            [0xc5, ..] => opmask(1),
            [0xc4, second, ..] => opmask(second & 0x1f),
            _ => false,
        }
}
