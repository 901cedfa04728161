//! Every form that the processor executes is in a core's table, or takes the price of its class: how many do.

use iced_x86::{Code, Mnemonic};
use std::collections::HashSet;
use uarch::CoreTable;
use uarch::core::NO_FORM;

/// Share of the encodings of 64-bit mode that take their class's price, in percent, at most. The cores before AVX-512 lack its encodings.
/// The rest are x87, system instructions, and those of Intel's older coprocessors that the decoder knows.
const FALLING_BACK: [(&str, usize); 9] = [
    ("broadwell", 45),
    ("cascadelake", 22),
    ("goldencove", 13),
    ("haswell", 45),
    ("icelake", 19),
    ("skylakex", 22),
    ("zen2", 45),
    ("zen3", 45),
    ("zen4", 19),
];

#[test]
fn forms_are_in_the_table_or_counted() {
    let text = include_str!("../../../docs/instructions.md");
    let executed: HashSet<&str> = text.split_whitespace().collect();
    for (name, most) in FALLING_BACK {
        let core = CoreTable::named(name).unwrap();
        let (mut all, mut missing) = (0, 0);
        for code in Code::values().filter(|code| code.op_code().mode64() && code.mnemonic() != Mnemonic::Lea) {
            if executed.contains(&*format!("{:?}", code.mnemonic()).to_uppercase()) {
                all += 1;
                missing +=
                    usize::from([false, true].iter().all(|memory| core.forms.code(code, *memory, false) == NO_FORM));
            }
        }
        let share = missing * 100 / all;
        println!("{name}: {missing} of {all} encodings ({share} %) take the price of their class");
        assert!(share <= most, "{name}: {missing} of {all} encodings ({share} %) take the price of their class");
    }
}

#[test]
fn common_integer_instructions_are_in_every_table() {
    use Code::*;
    let register = [
        Add_r64_rm64,
        Sub_rm32_r32,
        Cmp_r64_rm64,
        Test_rm32_r32,
        Xor_r32_rm32,
        And_rm64_imm8,
        Or_r64_rm64,
        Mov_r64_rm64,
        Movzx_r32_rm8,
        Movsxd_r64_rm32,
        Imul_r64_rm64,
        Mul_rm64,
        Div_rm64,
        Idiv_rm32,
        Shl_rm64_imm8,
        Sar_rm32_1,
        Shr_rm64_CL,
        Cmove_r64_rm64,
        Sete_rm8,
        Push_r64,
        Pop_r64,
        Bsf_r64_rm64,
        Popcnt_r64_rm64,
        Cdqe,
        Cqo,
        Nopd,
        Nop_rm32,
        Endbr64,
        Jmp_rel32_64,
        Je_rel8_64,
        Call_rel32_64,
        Call_rm64,
        Retnq,
        Xchg_rm64_r64,
        Bswap_r64,
        Adc_r64_rm64,
        Neg_rm64,
        Not_rm64,
        Inc_rm32,
        Dec_rm64,
        Leaveq,
        Pmovmskb_r32_xmm,
        Pmovmskb_r64_xmm,
    ];
    let memory = [
        Add_r64_rm64,
        Add_rm64_r64,
        Cmp_rm8_imm8,
        Mov_r32_rm32,
        Mov_rm64_r64,
        Mov_rm32_imm32,
        Test_rm8_imm8,
        Movups_xmm_xmmm128,
        Xchg_rm64_r64,
        Prefetcht0_m8,
    ];
    for name in CoreTable::names() {
        let core = CoreTable::named(name).unwrap();
        for (codes, memory) in [(&register[..], false), (&memory[..], true)] {
            for code in codes {
                assert_ne!(core.forms.code(*code, memory, false), NO_FORM, "{name}: {code:?}");
            }
        }
        for code in [Add_rm64_r64, Cmpxchg_rm64_r64, Xadd_rm32_r32] {
            assert_ne!(core.forms.code(code, true, true), NO_FORM, "{name}: LOCK {code:?}");
        }
    }
}
