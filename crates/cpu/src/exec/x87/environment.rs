//! Control: control and status words, environment, save and restore.

use crate::arch::F80;
use crate::exec::x87::stack::{available, enter, load_bytes, note, pending, store_bytes};
use crate::f80::status::*;
use crate::fault::{Exec, Flow};
use crate::op::{Handler, Op};
use crate::state::Cpu;
use iced_x86::Instruction;
use x86::control::*;
use x86::reg;

/// Writable bits of the control word; bit 6 reads as 1.
const CONTROL: u16 = 0x1f3f;
/// The reserved bit of the control word that reads as 1.
const CONTROL_ONE: u16 = 0x40;

pub fn wait(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    if cpu.arch.cr0 & (CR0_MP | CR0_TS) == CR0_MP | CR0_TS {
        return Err(cpu.nm());
    }
    pending(cpu)?;
    Ok(Flow::Next)
}

pub fn fnop(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    enter(cpu)?;
    note(cpu, op);
    Ok(Flow::Next)
}

/// FNENI, FNDISI and FNSETPM, which have had no effect since the 80387.
pub fn ignored(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    available(cpu)?;
    Ok(Flow::Next)
}

/// FINCSTP and FDECSTP.
pub fn rotate<const BY: u8>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    enter(cpu)?;
    let top = cpu.arch.x87.top();
    cpu.arch.x87.set_top(top + BY);
    cpu.arch.x87.status &= !C1;
    note(cpu, op);
    Ok(Flow::Next)
}

pub fn ffree<const POP: bool>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    enter(cpu)?;
    cpu.arch.x87.free(op.r0);
    cpu.arch.x87.status &= !C1;
    if POP {
        cpu.arch.x87.pop();
    }
    note(cpu, op);
    Ok(Flow::Next)
}

pub fn fnclex(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    available(cpu)?;
    cpu.arch.x87.status &= !(EXCEPTIONS | SF | ES | B);
    Ok(Flow::Next)
}

pub fn fninit(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    available(cpu)?;
    cpu.arch.x87.init();
    Ok(Flow::Next)
}

fn set_control(cpu: &mut Cpu, value: u16) {
    cpu.arch.x87.control = value & CONTROL | CONTROL_ONE;
    cpu.arch.x87.summarize();
}

pub fn fldcw(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    enter(cpu)?;
    let value = cpu.load::<u16>(op)?;
    set_control(cpu, value);
    Ok(Flow::Next)
}

pub fn fnstcw(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    available(cpu)?;
    let control = cpu.arch.x87.control;
    cpu.store(op, control)?;
    Ok(Flow::Next)
}

pub fn fnstsw(_: &Instruction, op: &mut Op) -> Option<Handler> {
    if op.has(Op::MEM) {
        return Some(|cpu, op| {
            available(cpu)?;
            let status = cpu.arch.x87.status;
            cpu.store(op, status)?;
            Ok(Flow::Next)
        });
    }
    Some(|cpu, _| {
        available(cpu)?;
        let status = cpu.arch.x87.status;
        cpu.set(reg::RAX, status);
        Ok(Flow::Next)
    })
}

/// Length of an environment with 16-bit fields.
const SHORT: usize = 14;
/// Length of an environment with 32-bit fields.
const LONG: usize = 28;
/// Length of the registers after an environment.
const REGISTERS: usize = 80;

/// Returns the alignment of an environment, which is that of its fields.
fn alignment(length: usize) -> u64 {
    if length == SHORT { 2 } else { 4 }
}

/// Returns true if the environment has the format of real and virtual-8086 mode, with linear pointers.
fn real_format(cpu: &Cpu) -> bool {
    !cpu.protected() || cpu.v8086()
}

/// Returns the seven fields of an environment, in 32-bit format.
fn fields(cpu: &Cpu) -> [u32; 7] {
    let x = &cpu.arch.x87;
    let opcode = u32::from(x.opcode & 0x7ff);
    let pointers = if real_format(cpu) {
        let ip = (u32::from(x.cs) << 4).wrapping_add(x.ip as u32);
        let dp = (u32::from(x.ds) << 4).wrapping_add(x.dp as u32);
        [0xffff_0000 | ip, (ip >> 16) << 12 | opcode, 0xffff_0000 | dp, (dp >> 16) << 12]
    } else {
        [x.ip as u32, u32::from(x.cs) | opcode << 16, x.dp as u32, 0xffff_0000 | u32::from(x.ds)]
    };
    let words = [x.control, x.status, x.tag_word()].map(|w| 0xffff_0000 | u32::from(w));
    [words[0], words[1], words[2], pointers[0], pointers[1], pointers[2], pointers[3]]
}

fn environment(cpu: &Cpu, length: usize) -> [u8; LONG] {
    let mut bytes = [0; LONG];
    let width = length / 7;
    for (slot, field) in bytes.chunks_exact_mut(width).zip(fields(cpu)) {
        slot.copy_from_slice(&field.to_le_bytes()[..width]);
    }
    bytes
}

fn set_environment(cpu: &mut Cpu, bytes: &[u8]) {
    let width = bytes.len() / 7;
    let mut fields = [0u32; 7];
    for (field, chunk) in fields.iter_mut().zip(bytes.chunks_exact(width)) {
        *field = chunk.iter().rev().fold(0, |v, b| v << 8 | u32::from(*b));
    }
    let [control, status, tags, ip, ip_high, dp, dp_high] = fields;
    let real = real_format(cpu);
    let deprecated = cpu.wiring.fcs_deprecated;
    let x = &mut cpu.arch.x87;
    if real {
        x.ip = u64::from(ip & 0xffff | (ip_high >> 12 & 0xffff) << 16);
        x.dp = u64::from(dp & 0xffff | (dp_high >> 12 & 0xffff) << 16);
        x.opcode = ip_high as u16 & 0x7ff;
        (x.cs, x.ds) = (0, 0);
    } else {
        (x.ip, x.dp) = (ip.into(), dp.into());
        (x.cs, x.ds) = if deprecated { (0, 0) } else { (ip_high as u16, dp_high as u16) };
        x.opcode = (ip_high >> 16) as u16 & 0x7ff;
    }
    x.status = status as u16;
    x.set_tag_word(tags as u16);
    set_control(cpu, control as u16);
}

pub fn fnstenv(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    available(cpu)?;
    let length = usize::from(op.size).min(LONG);
    let bytes = environment(cpu, length);
    store_bytes(cpu, op, &bytes[..length], alignment(length))?;
    cpu.arch.x87.control |= EXCEPTIONS;
    cpu.arch.x87.summarize();
    Ok(Flow::Next)
}

pub fn fldenv(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    enter(cpu)?;
    let mut bytes = [0; LONG];
    let bytes = &mut bytes[..usize::from(op.size).min(LONG)];
    load_bytes(cpu, op, bytes, alignment(bytes.len()))?;
    set_environment(cpu, bytes);
    Ok(Flow::Next)
}

/// Returns the length of the environment in a save area of the instruction's size.
fn save_environment(op: &Op) -> usize {
    if usize::from(op.size) == SHORT + REGISTERS { SHORT } else { LONG }
}

pub fn fnsave(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    available(cpu)?;
    let length = save_environment(op);
    let mut bytes = [0; LONG + REGISTERS];
    bytes[..length].copy_from_slice(&environment(cpu, length)[..length]);
    for (i, slot) in (0..8).zip(bytes[length..].chunks_exact_mut(10)) {
        slot.copy_from_slice(&cpu.arch.x87.st(i).to_bytes());
    }
    store_bytes(cpu, op, &bytes[..length + REGISTERS], alignment(length))?;
    cpu.arch.x87.init();
    Ok(Flow::Next)
}

pub fn frstor(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    enter(cpu)?;
    let length = save_environment(op);
    let mut bytes = [0; LONG + REGISTERS];
    let bytes = &mut bytes[..length + REGISTERS];
    load_bytes(cpu, op, bytes, alignment(length))?;
    let (head, registers) = bytes.split_at(length);
    set_environment(cpu, head);
    let top = cpu.arch.x87.top();
    for (i, chunk) in (0..8u8).zip(registers.chunks_exact(10)) {
        let mut image = [0; 10];
        image.copy_from_slice(chunk);
        cpu.arch.x87.regs[usize::from(top.wrapping_add(i) & 7)] = F80::from_bytes(image);
    }
    Ok(Flow::Next)
}
