//! Comparison of the native outcome with the outcome in the emulated processor.

use crate::case::Case;
use crate::layout::ARENA;
use crate::native::HostTraits;
use crate::state::{Difference, Outcome, fields, flag_names, show};
use crate::vendor;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use x86::flags::ARITH;
use x86::page::PAGE;

/// FSW.ES.
const SUMMARY: u16 = 1 << 7;
/// FSW.TOP.
const TOP: u16 = 7 << 11;

/// Flags that are not compared: mnemonics, flags, true if only when the instruction faults, and the reason.
const NOT_COMPARED: &[(&[Mnemonic], u64, bool, &str)] = {
    use Mnemonic::*;
    &[(
        &[Cmpsb, Cmpsw, Cmpsd, Cmpsq, Scasb, Scasw, Scasd, Scasq],
        ARITH,
        true,
        "SDM vol. 2, REP: a fault restores the flags from before the instruction; with REPNE this host's processor does not",
    )]
};

/// Returns the flags that are not compared after this instruction.
fn undefined_flags(instruction: &Instruction, faulted: bool, host: HostTraits) -> u64 {
    let mnemonic = instruction.mnemonic();
    let applies = |(list, _, only_fault, _): &&(&[Mnemonic], u64, bool, &str)| {
        list.contains(&mnemonic) && (faulted || !only_fault)
    };
    let listed = NOT_COMPARED.iter().filter(applies).fold(0, |all, (_, flags, ..)| all | flags);
    listed | if host.amd { vendor::undefined_flags(instruction) } else { 0 }
}

fn same(a: &Outcome, b: &Outcome, flags: u64) -> bool {
    let (x, y) = (&a.state.x, &b.state.x);
    a.exception == b.exception
        && a.state.gpr == b.state.gpr
        && a.state.rip == b.state.rip
        && (a.state.rflags ^ b.state.rflags) & !flags == 0
        && (a.state.fs_base, a.state.gs_base) == (b.state.fs_base, b.state.gs_base)
        && (x.fcw, x.fsw, x.ftw, x.mxcsr) == (y.fcw, y.fsw, y.ftw, y.mxcsr)
        && (x.fop, x.fip, x.fdp) == (y.fop, y.fip, y.fdp)
        && x.st.iter().zip(&y.st).all(|(a, b)| a[0] == b[0] && (a[1] ^ b[1]) & 0xffff == 0)
        && x.xmm == y.xmm
        && x.ymm_high == y.ymm_high
        && a.state.wide == b.state.wide
}

fn uses_mmx(case: &Case) -> bool {
    let i = &case.instruction;
    (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Register && i.op_register(n).is_mm())
}

/// Returns the differences apart from memory.
pub fn outcomes(case: &Case, native: &Outcome, emulated: &Outcome, host: HostTraits) -> Vec<Difference> {
    let mut adjusted = *emulated;
    if host.amd {
        vendor::adjust(case, native, &mut adjusted);
    }
    if host.data_pointer_kept && native.state.x.fdp == case.state.x.fdp && native.state.x.fsw & SUMMARY == 0 {
        adjusted.state.x.fdp = native.state.x.fdp;
    }
    // Long and masked accesses are made piece by piece, and the processor chooses which piece meets the bad page first.
    let masked = case.instruction.op_mask() != Register::None;
    let pieces = masked || case.instruction.memory_size().size() > 32 || {
        use Mnemonic::*;
        matches!(
            case.instruction.mnemonic(),
            Fldenv
                | Fnstenv
                | Frstor
                | Fnsave
                | Fxsave
                | Fxrstor
                | Fxsave64
                | Fxrstor64
                | Xsave
                | Xsave64
                | Xsavec
                | Xsavec64
                | Xrstor
                | Xrstor64
                | Maskmovq
                | Maskmovdqu
                | Vmaskmovdqu
                | Vmaskmovps
                | Vmaskmovpd
                | Vpmaskmovd
                | Vpmaskmovq
        )
    };
    if let (true, Some(a), Some(b)) = (pieces, native.exception, &mut adjusted.exception)
        && a.address / PAGE == b.address / PAGE
    {
        b.address = a.address;
    }
    // A faulting MMX instruction may leave the x87 stack as it was or as a completed one leaves it.
    if native.exception.is_some() && native.exception == adjusted.exception && uses_mmx(case) {
        let (x, y) = (&native.state.x, &mut adjusted.state.x);
        let turn = usize::from((x.fsw >> 11 & 7).wrapping_sub(y.fsw >> 11 & 7) & 7);
        y.st.rotate_left(turn);
        y.fsw = y.fsw & !TOP | x.fsw & TOP;
        y.ftw = x.ftw;
    }
    let emulated = &adjusted;
    let undefined = undefined_flags(&case.instruction, native.exception.is_some(), host);
    let mut found = Vec::new();
    if same(native, emulated, undefined) {
        return found;
    }
    if native.exception != emulated.exception {
        let describe = |o: &Outcome| match o.exception {
            None => "no exception".to_string(),
            Some(e) => format!("vector {} code {:#x} cr2 {:#x}", e.vector, e.code, e.address),
        };
        found.push(Difference { what: "exception".into(), expected: describe(native), got: describe(emulated) });
    }
    for ((what, a, size), (_, b, _)) in fields(&native.state).into_iter().zip(fields(&emulated.state)) {
        let (mut a, mut b) = (a, b);
        if what == "rflags" {
            a[0] &= !undefined;
            b[0] &= !undefined;
        }
        if a == b {
            continue;
        }
        let (mut expected, got) = (show(a, size), show(b, size));
        if what == "rflags" {
            expected += &format!(" ({} differ)", flag_names(a[0] ^ b[0]));
        }
        found.push(Difference { what, expected, got });
    }
    found
}

/// Returns true if the instruction faulted between its two stores, the first of which may have been made.
pub fn stores_in_parts(case: &Case, native: &Outcome) -> bool {
    native.exception.is_some() && case.instruction.memory_size().size() == 10
}

/// Returns the differences in memory: the first few bytes.
pub fn memory(native: &[u8], emulated: &[u8], offset: usize) -> Vec<Difference> {
    if native == emulated {
        return Vec::new();
    }
    let differing = native.iter().zip(emulated).enumerate().filter(|(_, (a, b))| a != b);
    differing
        .take(4)
        .map(|(i, (a, b))| Difference {
            what: format!("memory {:#x}", ARENA + (offset + i) as u64),
            expected: format!("{a:02x}"),
            got: format!("{b:02x}"),
        })
        .collect()
}
