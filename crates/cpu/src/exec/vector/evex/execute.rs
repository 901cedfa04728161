//! Execution of forms.

use super::form::{Form, Level};
use super::{memory, ready};
use crate::arch::NOT_LOADED;
use crate::exec::vector::execute::{self, FLAGS, MASKS, signal};
use crate::exec::vector::software::{Function, Operands, Outcome};
use crate::fault::{Exec, Flow};
use crate::native::{Kind, wide};
use crate::op::Op;
use crate::state::Cpu;
use x86::flags;

/// Returns a vector register as bytes.
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

/// Executes an instruction of any form.
pub fn run(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let form = Form::of(op);
    match form.level {
        Level::Avx512 => ready(cpu)?,
        Level::Avx => execute::ready::<true>(cpu)?,
        Level::Sse => execute::ready::<false>(cpu)?,
    }
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
        Kind::Vector(_) if form.level == Level::Sse => {
            let mut whole = bytes(cpu, op.r0);
            whole[..16].copy_from_slice(&outcome.dest[..16]);
            set_bytes(cpu, op.r0, &whole);
        }
        Kind::Vector(_) => set_bytes(cpu, op.r0, &outcome.dest),
        Kind::Opmask => cpu.arch.vector.k[usize::from(op.r0 & 7)] = outcome.k,
        Kind::General(_) => cpu.set::<u64>(op.r0, outcome.general),
        Kind::Memory => memory::store(cpu, op, &form.access, selected, &outcome.dest)?,
        Kind::None => {}
    }
    Ok(Flow::Next)
}

/// Computes the outcome, and raises the exceptions.
fn compute(cpu: &mut Cpu, form: &Form, operands: &Operands) -> Exec<Outcome> {
    // Unmasked exceptions affect which exceptions occur and what is flushed to zero: these cases are computed in
    // software.
    let all_masked = !form.mxcsr || form.quiet || operands.mxcsr & MASKS == MASKS;
    let outcome = match (&form.native, &form.software) {
        (Some(stub), software) if software.is_none() || all_masked && wide() => {
            if form.mxcsr {
                cpu.arch.vector.loaded = NOT_LOADED;
            }
            let operands = Operands { mxcsr: (operands.mxcsr & !FLAGS) | MASKS, ..*operands };
            let mut outcome = Outcome::NONE;
            // SAFETY: the stub reads `operands` and writes `outcome`; all exceptions are masked.
            unsafe { stub(&operands, &mut outcome) };
            outcome
        }
        (_, Some(function)) => function.run(operands),
        _ => return Err(cpu.ud()),
    };
    if form.software.as_ref().is_some_and(Function::masks_exceptions) {
        cpu.arch.vector.mxcsr |= outcome.mxcsr_flags & FLAGS;
    } else if form.mxcsr && !form.quiet {
        signal(cpu, outcome.mxcsr_flags & FLAGS)?;
    }
    Ok(outcome)
}
