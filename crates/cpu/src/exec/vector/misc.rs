//! Control and state of the vector units: MXCSR, VZEROUPPER, VZEROALL, EMMS.

use crate::exec::vector::execute::{enter_mmx, mmx_ready, ready};
use crate::fault::{Exec, Flow};
use crate::op::{Handler, Op};
use crate::state::Cpu;
use iced_x86::{Instruction, Mnemonic::*};

/// Defined bits of MXCSR.
pub const MXCSR_MASK: u32 = 0xffff;

/// Binds one of these instructions.
pub fn bind(i: &Instruction, _: &mut Op) -> Option<Handler> {
    Some(match i.mnemonic() {
        Ldmxcsr => ldmxcsr::<false>,
        Vldmxcsr => ldmxcsr::<true>,
        Stmxcsr => stmxcsr::<false>,
        Vstmxcsr => stmxcsr::<true>,
        Vzeroupper => vzeroupper,
        Vzeroall => vzeroall,
        Emms => emms,
        _ => return None,
    })
}

fn ldmxcsr<const VEX: bool>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    ready::<VEX>(cpu)?;
    let value = cpu.load::<u32>(op)?;
    if value & !MXCSR_MASK != 0 {
        return Err(cpu.gp(0));
    }
    cpu.arch.vector.mxcsr = value;
    Ok(Flow::Next)
}

fn stmxcsr<const VEX: bool>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    ready::<VEX>(cpu)?;
    let value = cpu.arch.vector.mxcsr;
    cpu.store(op, value)?;
    Ok(Flow::Next)
}

/// Returns the number of vector registers in the current mode.
fn registers(cpu: &Cpu) -> usize {
    if cpu.engine.long64 { 16 } else { 8 }
}

fn vzeroupper(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    ready::<true>(cpu)?;
    let count = registers(cpu);
    for register in &mut cpu.arch.vector.ymm[..count] {
        register[2] = 0;
        register[3] = 0;
    }
    cpu.arch.vector.upper[..count].fill([0; 4]);
    Ok(Flow::Next)
}

fn vzeroall(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    ready::<true>(cpu)?;
    let count = registers(cpu);
    cpu.arch.vector.ymm[..count].fill([0; 4]);
    cpu.arch.vector.upper[..count].fill([0; 4]);
    Ok(Flow::Next)
}

fn emms(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    mmx_ready(cpu)?;
    enter_mmx(cpu);
    cpu.arch.x87.tags = 0;
    Ok(Flow::Next)
}
