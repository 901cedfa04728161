//! The encodings in random programs.

use cpu::row::Role;
use cpu::table::row;
use iced_x86::{Code, CpuidFeature, EncodingKind, Mnemonic, OpCodeOperandKind as Kind};
use std::sync::LazyLock;

/// Encodings to draw from.
pub struct Forms {
    /// Encodings of ordinary compiled code.
    pub common: Vec<Code>,
    /// Encodings of the x87 unit.
    pub x87: Vec<Code>,
    /// Encodings on registers of AVX-512, and of extensions that came with it.
    pub wide: Vec<Code>,
    /// All other encodings that do not change the mode of the program.
    pub all: Vec<Code>,
}

/// Forms of 64-bit code and of 32-bit code.
pub static FORMS: LazyLock<[Forms; 2]> = LazyLock::new(|| [64, 32].map(forms));

/// Returns true if the form was added after programs were named by their seeds.
fn is_new(code: Code) -> bool {
    // These existed, as no operations.
    let hint = matches!(code.mnemonic(), Mnemonic::Rdsspd | Mnemonic::Rdsspq);
    let shadow_stacks = has_feature(code, &["CET_SS"]) && !hint;
    is_wide(code) || shadow_stacks || has_feature(code, &["AMX", "AVX_IFMA", "AVX_NE_CONVERT"])
}

/// Returns true if a form is of AVX-512, or of an extension that came with it.
fn is_wide(code: Code) -> bool {
    code.encoding() == EncodingKind::EVEX || has_feature(code, &["AVX512", "AVX_VNNI", "GFNI"])
}

/// Returns true if a form is of an extension whose name begins with one of these.
fn has_feature(code: Code, names: &[&str]) -> bool {
    let one = |feature: &CpuidFeature| names.iter().any(|name| format!("{feature:?}").starts_with(name));
    code.cpuid_features().iter().any(one)
}

fn forms(bits: u32) -> Forms {
    let role = |code: Code| row(code.mnemonic()).map(|row| row.role);
    let exists = |code: &Code| {
        let info = code.op_code();
        role(*code).is_some()
            && matches!(code.encoding(), EncodingKind::Legacy | EncodingKind::VEX | EncodingKind::EVEX)
            && info.is_available_in_mode(bits)
            && if bits == 64 { info.intel_decoder64() } else { info.intel_decoder32() }
            && info.is_instruction()
            && !code.is_jmp_near()
            && !code.is_jmp_short()
            && !code.is_call_near()
            && !code.is_jcc_short_or_near()
    };
    let usable = |code: &Code| exists(code) && !is_new(*code);
    let wide = Code::values().filter(exists).filter(|code| is_wide(*code));
    let common = Code::values().filter(usable).filter(|code| {
        role(*code) == Some(Role::Common)
            && code.op_code().op_kinds().iter().all(|kind| !matches!(kind, Kind::seg_reg | Kind::cr_reg | Kind::dr_reg))
    });
    let all = Code::values().filter(usable).filter(|code| {
        role(*code) != Some(Role::System)
            && !code.is_jmp_far_indirect()
            && !code.is_call_far_indirect()
            && !code.is_jmp_far()
            && !code.is_call_far()
            && code.op_code().op_kinds().iter().all(|kind| !matches!(kind, Kind::seg_reg | Kind::cr_reg | Kind::dr_reg))
    });
    let unit = |code: &Code| {
        let mut families = cpu::table::FAMILIES.iter().filter(|(name, _)| *name == "x87");
        families.any(|(_, rows)| rows.iter().any(|row| row.mnemonic == code.mnemonic()))
    };
    let x87 = Code::values().filter(usable).filter(unit);
    Forms { common: common.collect(), x87: x87.collect(), wide: wide.collect(), all: all.collect() }
}
