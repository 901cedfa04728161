//! Encodings that a sweep does not execute, and differences that vendors or the processor may choose, each with the
//! reason.

use super::Reaction;
use super::space::{AT, Encoding, Map};
use iced_x86::{CodeSize, Decoder, DecoderOptions, Instruction, Mnemonic};
use x86::vector;

/// Returns the reason why an encoding is not executed, or `None` if it is.
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

/// Returns the reason why outcomes may differ, or `None` if they may not.
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
            Some("the processor may check memory for faults although the mask is zero")
        }
        Arpl => Some("the processor may require writable memory although it writes nothing"),
        // SDM vol. 2, 2.1.1: these prefixes are reserved. AMD's processors apply their condition on ZF.
        Loope | Loopne if repeats(encoding) => Some("LOOPE and LOOPNE with the other repeat prefix are reserved"),
        // The order of faults of one instruction is the processor's choice (SDM vol. 3, table 7-2, below class 10).
        Retf if instruction.op_count() != 0 && native.vector() == Some(vector::PF) => {
            Some("the processor may check the outer stack of a far return before the selector")
        }
        // The processor chooses which byte of an area in two pages it accesses first.
        Xsave | Xsave64 | Xsavec | Xsavec64 | Xsaveopt | Xsaveopt64 | Xrstor | Xrstor64
            if (native.vector(), emulated.vector()) == (Some(vector::PF), Some(vector::PF)) =>
        {
            Some("the processor chooses the page of the area at which XSAVE and XRSTOR fault first")
        }
        // The processor of a virtual machine executes them even if the hypervisor's CPUID does not announce them.
        Enqcmd | Enqcmds | Ptwrite | Movdiri | Movdir64b if undefined => {
            Some("ENQCMD, PTWRITE, MOVDIRI and MOVDIR64B are in no profile, and CPUID does not announce them")
        }
        Ldtilecfg | Sttilecfg | Tilerelease | Tilezero if undefined => {
            Some("Linux lets programs use tiles only if they ask for it, and the processor under test has not asked")
        }
        // The model's program runs with CR4.PKE = 0, the host's kernel decides for itself. AMD's processors ignore repeat prefixes there.
        _ if undefined && is_protection_keys(encoding) => {
            Some("the host's kernel has enabled RDPKRU and WRPKRU, which the model's CR4 has not")
        }
        _ if !amd && undefined && is_insertion(encoding) => {
            Some("Intel's processors ignore VEX.W of VPINSRD and VPEXTRD outside of 64-bit code")
        }
        _ if amd && undefined && is_lock_verw(encoding) => Some("AMD's processors execute VERW with LOCK"),
        // The manuals define W1 alone.
        _ if amd && undefined && is_permutation(encoding) => {
            Some("AMD's processors ignore VEX.W of VPERMQ and VPERMPD")
        }
        _ if amd && undefined && has_ignored_bits(encoding, instruction) => Some(
            "AMD's processors ignore EVEX.b of registers without rounding, EVEX.z without an opmask, and EVEX.V' in 32-bit code",
        ),
        _ if amd && undefined && names_too_high_an_opmask(encoding, instruction) => {
            Some("AMD's processors ignore the bits of VEX that would name opmasks beyond K7")
        }
        _ => None,
    }
}

/// Returns true if an undefined EVEX encoding is an instruction apart from bits that Intel's manual requires to be
/// clear (V': set).
fn has_ignored_bits(encoding: &Encoding, undefined: &Instruction) -> bool {
    const Z: u8 = 0x80;
    const B: u8 = 0x10;
    const V: u8 = 0x08;
    if encoding.map != Map::Evex {
        return false;
    }
    let mut bytes = encoding.bytes;
    bytes[3] &= !Z;
    if undefined.code_size() != CodeSize::Code64 {
        bytes[3] |= V;
    }
    let registers = encoding.modrm.is_some_and(|modrm| modrm >= 0xc0);
    let mut single = bytes;
    single[3] &= !B;
    is_defined(&bytes, undefined.code_size()) || registers && is_defined(&single, undefined.code_size())
}

/// Returns true if an undefined VEX encoding is an opmask instruction apart from bits that would name registers beyond
/// K7.
fn names_too_high_an_opmask(encoding: &Encoding, undefined: &Instruction) -> bool {
    let mut bytes = encoding.bytes;
    match bytes {
        [0xc4, ..] => {
            bytes[1] |= 0xe0;
            bytes[2] |= 0x40;
        }
        [0xc5, ..] => bytes[1] |= 0xc0,
        _ => return false,
    }
    encoding.map == Map::Vex && is_defined(&bytes, undefined.code_size())
}

/// Returns true if these bytes are an instruction in code of this size.
fn is_defined(bytes: &[u8], size: CodeSize) -> bool {
    let bits = if size == CodeSize::Code64 { 64 } else { 32 };
    let decoded = Decoder::with_ip(bits, bytes, AT, DecoderOptions::NONE).decode();
    cpu::table::row(decoded.mnemonic()).is_some()
}

fn repeats(encoding: &Encoding) -> bool {
    encoding.bytes[..encoding.len].iter().any(|byte| matches!(byte, 0xf2 | 0xf3))
}

fn is_protection_keys(encoding: &Encoding) -> bool {
    encoding.bytes[..encoding.len].windows(3).any(|bytes| matches!(bytes, [0x0f, 0x01, 0xee | 0xef]))
}

fn is_lock_verw(encoding: &Encoding) -> bool {
    (encoding.map, encoding.opcode) == (Map::Two, 0)
        && encoding.modrm.is_some_and(|modrm| modrm >> 3 & 7 == 5)
        && encoding.bytes[..encoding.len].contains(&0xf0)
}

fn is_insertion(encoding: &Encoding) -> bool {
    matches!(encoding.bytes, [0xc4, map, last, 0x16 | 0x22, ..] if map & 0x1f == 3 && last & 0x87 == 0x81)
}

fn is_permutation(encoding: &Encoding) -> bool {
    matches!(encoding.bytes, [0xc4, map, last, 0x00 | 0x01, ..] if map & 0x1f == 3 && last & 0x87 == 0x05)
}
