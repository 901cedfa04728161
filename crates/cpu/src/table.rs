//! The instruction table: one row per mnemonic that the processor executes.
//!
//! The table drives decoding (a mnemonic without a row raises #UD, counted by name), execution (the `bind` function of
//! a row selects the handler for the operands) and the list of supported instructions in the documentation. Rows are
//! next to their handlers, one file per family, and are collected here.

use crate::exec;
use crate::features::Features;
use crate::row::{Lacking, Row};
use iced_x86::{Instruction, Mnemonic};
use std::sync::OnceLock;

/// Rows by family name.
pub static FAMILIES: &[(&str, &[Row])] = &[
    ("integer", exec::integer::ROWS),
    ("shift", exec::shift::ROWS),
    ("multiply and divide", exec::muldiv::ROWS),
    ("bits", exec::bits::ROWS),
    ("string", exec::string::ROWS),
    ("stack", exec::stack::ROWS),
    ("control", exec::control::ROWS),
    ("miscellaneous", exec::misc::ROWS),
    ("x87", exec::x87::ROWS),
    ("vector-move", exec::vector::rows::MOVES),
    ("vector-integer", exec::vector::rows::INTEGER),
    ("vector-integer-vex", exec::vector::rows::VEX_INTEGER),
    ("vector-float", exec::vector::rows::FLOAT),
    ("vector-float-vex", exec::vector::rows::VEX_FLOAT),
    ("vector-division", exec::vector::rows::DIVISION),
    ("vector-crypto", exec::vector::rows::CRYPTO),
    ("vector-sha", exec::vector::rows::SHA),
    ("vector-approximate", exec::vector::rows::APPROXIMATE),
    ("vector-masked", exec::vector::rows::MASKED),
    ("vector-gather", exec::vector::rows::GATHERS),
    ("vector-control", exec::vector::rows::CONTROL),
    ("avx512-move", exec::vector::evex::rows::MOVES),
    ("avx512-integer", exec::vector::evex::rows::INTEGER),
    ("avx512-float", exec::vector::evex::rows::FLOAT),
    ("avx512-approximate", exec::vector::evex::rows::APPROXIMATE),
    ("avx512-half-move", exec::vector::evex::rows::HALF_MOVES),
    ("avx512-half", exec::vector::evex::rows::HALF),
    ("avx512-half-division", exec::vector::evex::rows::HALF_DIVISION),
    ("avx512-scatter", exec::vector::evex::rows::SCATTERS),
    ("vnni", exec::vector::evex::rows::VNNI),
    ("galois-field", exec::vector::evex::rows::GALOIS),
    ("opmask", exec::vector::evex::rows::OPMASKS),
    ("state", exec::xsave::ROWS),
    ("tiles", exec::amx::ROWS),
    ("shadow stacks", exec::cet::ROWS),
    ("segments", exec::segment::ROWS),
    ("far transfers", exec::far::ROWS),
    ("interrupt returns", exec::iret::ROWS),
    ("fast system calls", exec::syscall::ROWS),
    ("flags", exec::flagsops::ROWS),
    ("control registers", exec::control_register::ROWS),
    ("descriptor tables", exec::tables::ROWS),
    ("model-specific registers", exec::msr::ROWS),
    ("cpuid", exec::cpuid::ROWS),
    ("ports", exec::io::ROWS),
    ("system", exec::system::ROWS),
    ("virtual machines", crate::vmx::root::ROWS),
];

/// Returns the row of a mnemonic.
pub fn row(mnemonic: Mnemonic) -> Option<&'static Row> {
    static INDEX: OnceLock<Vec<Option<&'static Row>>> = OnceLock::new();
    let index = INDEX.get_or_init(|| {
        let mut index = vec![None; Mnemonic::values().len()];
        for row in FAMILIES.iter().flat_map(|(_, rows)| rows.iter()) {
            let slot = &mut index[row.mnemonic as usize];
            assert!(slot.is_none(), "two rows for {:?}", row.mnemonic);
            *slot = Some(row);
        }
        index
    });
    index[mnemonic as usize]
}

/// Returns the instruction as a processor with these extensions decodes it, or `None` if it has no such instruction.
pub fn view(features: Features, instruction: &Instruction) -> Option<Instruction> {
    let code = instruction.code();
    if features.contains(Features::needed(code)) {
        return Some(*instruction);
    }
    match row(code.mnemonic())?.lacking {
        Lacking::Undefined => None,
        Lacking::Ignored => Some(*instruction),
        Lacking::Older(codes) => {
            let (_, older) = codes.iter().find(|(newer, _)| *newer == code)?;
            let mut instruction = *instruction;
            instruction.set_code(*older);
            Some(instruction)
        }
    }
}

/// Returns the name of a decoder's code number, by which the ledger counts undefined instructions.
pub fn code_name(code: u32) -> Option<String> {
    iced_x86::Code::try_from(code as usize).ok().map(|code| format!("{code:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{CpuidEntry, CpuidRegs};
    use iced_x86::Code;

    #[test]
    fn without_an_extension_its_instructions_are_undefined_ignored_or_older_ones() {
        // SSE and SSE2.
        let regs = CpuidRegs { edx: 1 << 26 | 1 << 25, ..CpuidRegs::default() };
        let sse2 = Features::of(&[CpuidEntry { leaf: 1, subleaf: None, regs }]);
        let seen = |features, code| {
            let mut i = Instruction::default();
            i.set_code(code);
            view(features, &i).map(|i| i.code())
        };
        for (code, expected) in [
            (Code::Paddb_xmm_xmmm128, Some(Code::Paddb_xmm_xmmm128)),
            (Code::VEX_Vpaddb_ymm_ymm_ymmm256, None),
            (Code::Prefetchw_m8, Some(Code::Prefetchw_m8)),
            (Code::Rdsspq_r64, Some(Code::Rdsspq_r64)),
            (Code::Tzcnt_r16_rm16, Some(Code::Bsf_r16_rm16)),
            (Code::Tzcnt_r32_rm32, Some(Code::Bsf_r32_rm32)),
            (Code::Lzcnt_r64_rm64, Some(Code::Bsr_r64_rm64)),
        ] {
            assert_eq!(seen(sse2, code), expected, "{code:?}");
            assert_eq!(seen(Features::ALL, code), Some(code), "{code:?}");
        }
    }
}
