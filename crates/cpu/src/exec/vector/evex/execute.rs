//! Running forms.

use super::form::Form;
use super::{Operands, Outcome, memory, ready};
use crate::arch::NOT_LOADED;
use crate::exec::vector::execute::{FLAGS, MASKS, signal};
use crate::fault::{Exec, Flow};
use crate::native::Kind;
use crate::op::Op;
use crate::state::Cpu;
use x86::flags;

/// A vector register as bytes.
pub(super) fn bytes(cpu: &Cpu, register: u8) -> [u8; 64] {
    let mut out = [0; 64];
    for (word, chunk) in cpu.arch.vector.zmm(register).iter().zip(out.as_chunks_mut::<8>().0) {
        *chunk = word.to_le_bytes();
    }
    out
}

/// Sets a whole vector register.
pub(super) fn set_bytes(cpu: &mut Cpu, register: u8, from: &[u8; 64]) {
    let mut words = [0; 8];
    for (word, chunk) in words.iter_mut().zip(from.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*chunk);
    }
    cpu.arch.vector.set_zmm(register, &words);
}

fn quad(value: u64) -> [u8; 64] {
    let mut out = [0; 64];
    out[..8].copy_from_slice(&value.to_le_bytes());
    out
}

/// Runs an EVEX-encoded instruction.
pub fn run(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    ready(cpu)?;
    let form = Form::of(op);
    let selected = form.masked.then(|| cpu.arch.vector.k[usize::from(op.size & 7)]);
    let stores = form.memory == 0 && form.writes;
    let value = |cpu: &mut Cpu, n: usize, register: u8| -> Exec<[u8; 64]> {
        Ok(match form.kinds[n] {
            Kind::None => [0; 64],
            Kind::Vector(width) => {
                let mut value = bytes(cpu, register);
                value[usize::from(width).min(64)..].fill(0);
                value
            }
            Kind::Opmask => quad(cpu.arch.vector.k[usize::from(register & 7)]),
            Kind::General(width) => {
                let value = cpu.reg(register & 15);
                quad(if width == 8 { value } else { value & 0xffff_ffff })
            }
            Kind::Memory if stores => [0; 64],
            Kind::Memory => {
                let mut value = [0; 64];
                memory::load(cpu, op, &form.access, selected, &mut value)?;
                value
            }
        })
    };
    let operands = Operands {
        dest: value(cpu, 0, op.r0)?,
        a: value(cpu, 1, op.r1)?,
        b: value(cpu, 2, op.r2)?,
        c: [0; 64],
        mask: selected.unwrap_or(u64::MAX),
        mxcsr: cpu.arch.vector.mxcsr,
    };
    let outcome = compute(cpu, form, &operands)?;
    if form.flags {
        cpu.arch.lazy.load(outcome.rflags & flags::ARITH);
    }
    match form.kinds[0] {
        _ if !form.writes => {}
        Kind::Vector(_) => set_bytes(cpu, op.r0, &outcome.dest),
        Kind::Opmask => cpu.arch.vector.k[usize::from(op.r0 & 7)] = outcome.k,
        Kind::General(_) => cpu.set::<u64>(op.r0, outcome.general),
        Kind::Memory => memory::store(cpu, op, &form.access, selected, &outcome.dest)?,
        Kind::None => {}
    }
    Ok(Flow::Next)
}

/// Has the outcome computed, and signals the exceptions.
fn compute(cpu: &mut Cpu, form: &Form, operands: &Operands) -> Exec<Outcome> {
    let Some(stub) = form.native else { return Err(cpu.ud()) };
    if form.mxcsr {
        cpu.arch.vector.loaded = NOT_LOADED;
    }
    let guest = operands.mxcsr;
    let mut operands = *operands;
    operands.mxcsr = (guest & !FLAGS) | MASKS;
    let mut outcome = Outcome { dest: [0; 64], k: 0, general: 0, mxcsr_flags: 0, rflags: 0 };
    // SAFETY: the stub reads one and writes the other; all exceptions are masked.
    unsafe { stub(&operands, &mut outcome) };
    if form.mxcsr && !form.quiet {
        signal(cpu, outcome.mxcsr_flags & FLAGS)?;
    }
    Ok(outcome)
}
