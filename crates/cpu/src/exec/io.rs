//! Port I/O: IN, OUT, INS, OUTS, and their permissions.

use crate::arch::attention;
use crate::fault::{Exec, Flow};
use crate::flags::Int;
use crate::op::{Handler, Op, SEG_FLAT, address_mask};
use crate::row::Row;
use crate::state::Cpu;
use crate::vmx::DeviceAccess;
use iced_x86::{Instruction, Mnemonic::*, OpKind, Register};
use ledger::{Class, Family, Kind};
use x86::vmx::qualification::io as qualification;
use x86::{flags, reg, seg};

/// Instruction table rows of port instructions.
pub static ROWS: &[Row] = &[
    Row::end(In, Class::System, bind_in),
    Row::end(Out, Class::System, bind_out),
    Row::end(Insb, Class::System, |_, op| strings::<u8>(op, ins::<u8>)),
    Row::end(Insw, Class::System, |_, op| strings::<u16>(op, ins::<u16>)),
    Row::end(Insd, Class::System, |_, op| strings::<u32>(op, ins::<u32>)),
    Row::end(Outsb, Class::System, |_, op| strings::<u8>(op, outs::<u8>)),
    Row::end(Outsw, Class::System, |_, op| strings::<u16>(op, outs::<u16>)),
    Row::end(Outsd, Class::System, |_, op| strings::<u32>(op, outs::<u32>)),
];

fn strings<T: Int>(op: &mut Op, handler: Handler) -> Option<Handler> {
    op.size = T::SIZE;
    Some(handler)
}

fn accumulator_size(register: Register) -> u8 {
    match register {
        Register::AL => 1,
        Register::AX => 2,
        _ => 4,
    }
}

fn bind_in(i: &Instruction, op: &mut Op) -> Option<Handler> {
    op.size = accumulator_size(i.op0_register());
    Some(if i.op1_kind() == OpKind::Register { input::<true> } else { input::<false> })
}

fn bind_out(i: &Instruction, op: &mut Op) -> Option<Handler> {
    op.size = accumulator_size(i.op1_register());
    Some(if i.op0_kind() == OpKind::Register { output::<true> } else { output::<false> })
}

fn port<const DX: bool>(cpu: &Cpu, op: &Op) -> u16 {
    if DX { cpu.get::<u16>(reg::RDX) } else { op.imm as u8 as u16 }
}

fn immediate<const DX: bool>() -> u64 {
    if DX { 0 } else { qualification::IMMEDIATE }
}

fn input<const DX: bool>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let port = port::<DX>(cpu, op);
    cpu.check_port(port, op.size)?;
    cpu.port_exit(port, op.size, qualification::IN | immediate::<DX>())?;
    let value = cpu.port_in(port, op.size);
    cpu.set_sized(reg::RAX, op.size, u64::from(value));
    Ok(Flow::End)
}

fn output<const DX: bool>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let port = port::<DX>(cpu, op);
    cpu.check_port(port, op.size)?;
    cpu.port_exit(port, op.size, immediate::<DX>())?;
    let value = cpu.reg(reg::RAX) as u32;
    cpu.port_out(port, op.size, value);
    Ok(Flow::End)
}

impl Cpu {
    /// Checks IOPL and the I/O permission bitmap.
    fn check_port(&mut self, port: u16, size: u8) -> Exec {
        if !self.protected() || (!self.v8086() && self.arch.cpl <= self.iopl()) {
            return Ok(());
        }
        let tr = self.arch.tr;
        if tr.rights & 8 == 0 || tr.limit < 0x67 {
            return Err(self.gp(0));
        }
        let map: u16 = self.read_system(tr.base.wrapping_add(0x66))?;
        let offset = u64::from(map) + u64::from(port >> 3);
        // Two bytes are always read, because the ports of one access may be in both.
        if offset + 1 > u64::from(tr.limit) {
            return Err(self.gp(0));
        }
        let bits: u16 = self.read_system(tr.base.wrapping_add(offset))?;
        let wanted = ((1u16 << size) - 1) << (port & 7);
        if bits & wanted != 0 { Err(self.gp(0)) } else { Ok(()) }
    }

    fn port_in(&mut self, port: u16, size: u8) -> u32 {
        self.note_device(DeviceAccess::Port { port, size, write: false });
        self.charge(Kind::new(Family::PortIn, u32::from(port)), 1);
        let who = self.ident();
        let value = self.wiring.bus().port_in(who, port, size);
        self.attend(attention::BUS);
        self.io_breakpoint(port, size);
        value
    }

    fn port_out(&mut self, port: u16, size: u8, value: u32) {
        self.note_device(DeviceAccess::Port { port, size, write: true });
        self.charge(Kind::new(Family::PortOut, u32::from(port)), 1);
        let who = self.ident();
        let value = value & (u64::MAX >> (64 - 8 * u32::from(size & 7))) as u32;
        self.wiring.bus().port_out(who, port, size, value);
        self.attend(attention::BUS);
        self.io_breakpoint(port, size);
    }

    /// Advances a string instruction's index register by one element.
    fn advance(&mut self, register: u8, op: &Op) {
        let step = u64::from(op.size);
        let step = if self.arch.flags & flags::DF != 0 { step.wrapping_neg() } else { step };
        let value = self.reg(register).wrapping_add(step) & address_mask(op.asize);
        self.set_sized(register, op.asize, value);
    }
}

/// Returns true if a string instruction has REP.
fn repeated(op: &Op) -> bool {
    op.has(Op::REPE) || op.has(Op::REPNE)
}

/// Runs one iteration. With REP the instruction is left after each iteration with RIP unchanged, so that the board sees
/// every access at its time and interrupts can be taken in between; the index registers and the count hold the
/// progress.
fn iterate(cpu: &mut Cpu, op: &Op, direction: u64, body: fn(&mut Cpu, &Op) -> Exec) -> Exec<Flow> {
    // The permission for the port is checked even if the count is zero.
    cpu.check_port(cpu.get::<u16>(reg::RDX), op.size)?;
    cpu.port_string_exit(op, direction)?;
    let mask = address_mask(op.asize);
    if !repeated(op) {
        body(cpu, op)?;
        return Ok(Flow::End);
    }
    let count = cpu.reg(reg::RCX) & mask;
    if count == 0 {
        return Ok(Flow::End);
    }
    body(cpu, op)?;
    cpu.set_sized(reg::RCX, op.asize, (count - 1) & mask);
    if count > 1 {
        cpu.arch.rip = op.rip();
    }
    Ok(Flow::End)
}

fn ins<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    iterate(cpu, op, qualification::IN, |cpu, op| {
        let port = cpu.get::<u16>(reg::RDX);
        let offset = cpu.reg(reg::RDI) & address_mask(op.asize);
        let segment = if cpu.engine.long64 { SEG_FLAT } else { seg::ES };
        let linear = cpu.linear(segment, offset, u64::from(op.size), true)?;
        // The destination must be writable before the device is read.
        let privilege = cpu.privilege();
        cpu.prepare_write(linear, u64::from(op.size), privilege, segment)?;
        let value = cpu.port_in(port, op.size);
        cpu.write_linear::<T>(linear, segment, T::from_u64(u64::from(value)))?;
        cpu.advance(reg::RDI, op);
        Ok(())
    })
}

fn outs<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    iterate(cpu, op, 0, |cpu, op| {
        let port = cpu.get::<u16>(reg::RDX);
        let offset = cpu.reg(reg::RSI) & address_mask(op.asize);
        let value = cpu.read_seg::<T>(op.seg, offset)?;
        cpu.port_out(port, op.size, value.to_u64() as u32);
        cpu.advance(reg::RSI, op);
        Ok(())
    })
}
