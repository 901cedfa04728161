//! Compares what happened natively with what happened in the emulated processor.

use crate::case::Case;
use crate::layout::ARENA;
use crate::state::{Difference, Outcome, fields, flag_names, show};
use iced_x86::Mnemonic;

/// Flags that the manual leaves undefined and where our choice, which depends on nothing but the operands, is not that of
/// every processor: mnemonics, flags, and where the manual (SDM vol. 2) says so.
const UNDEFINED_FLAGS: &[(&[Mnemonic], u64, &str)] = &[];

/// Flags that are not compared after an instruction.
fn undefined_flags(mnemonic: Mnemonic) -> u64 {
    UNDEFINED_FLAGS.iter().filter(|(list, ..)| list.contains(&mnemonic)).fold(0, |all, (_, flags, _)| all | flags)
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
}

/// What differs, memory apart.
pub fn outcomes(case: &Case, native: &Outcome, emulated: &Outcome) -> Vec<Difference> {
    let undefined = undefined_flags(case.instruction.mnemonic());
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

/// What differs in memory: the first few bytes.
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
