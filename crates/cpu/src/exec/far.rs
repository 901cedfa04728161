//! Far jumps, calls and returns: to code segments, through call gates, to tasks.

use crate::arch::Segment;
use crate::exec::cet::{NewStack, ShadowChange};
use crate::exec::descriptor::{Descriptor, Stack, code_of, is_null, null_segment};
use crate::exec::segment::v8086_segment;
use crate::exec::task::Switch;
use crate::fault::{Exec, Flow};
use crate::op::{Handler, Op};
use crate::row::Row;
use crate::state::Cpu;
use iced_x86::{Code, Instruction, Mnemonic::*, OpKind};
use ledger::{Class, Family, Kind};
use x86::{descriptor, reg, seg, vector};

/// Instruction table row of the far return; the far forms of JMP and CALL are in the rows of these instructions.
pub static ROWS: &[Row] = &[Row::end(Retf, Class::Microcode, bind_return).of_system()];

/// Binds JMP ptr16:n and JMP m16:n.
pub(crate) fn bind_jump(i: &Instruction, op: &mut Op) -> Option<Handler> {
    op.class = Class::Microcode;
    if i.op0_kind() != OpKind::Memory {
        return Some(jump_direct);
    }
    op.size = pointer_size(i.code());
    Some(jump_memory)
}

/// Binds CALL ptr16:n and CALL m16:n.
pub(crate) fn bind_call(i: &Instruction, op: &mut Op) -> Option<Handler> {
    op.class = Class::Microcode;
    if i.op0_kind() != OpKind::Memory {
        return Some(call_direct);
    }
    op.size = pointer_size(i.code());
    Some(call_memory)
}

fn bind_return(i: &Instruction, op: &mut Op) -> Option<Handler> {
    op.size = match i.code() {
        Code::Retfw | Code::Retfw_imm16 => 2,
        Code::Retfd | Code::Retfd_imm16 => 4,
        _ => 8,
    };
    op.imm &= 0xffff;
    Some(far_return)
}

fn pointer_size(code: Code) -> u8 {
    match code {
        Code::Jmp_m1616 | Code::Call_m1616 => 2,
        Code::Jmp_m1632 | Code::Call_m1632 => 4,
        _ => 8,
    }
}

fn direct(op: &Op) -> (u64, u16) {
    (op.imm & 0xffff_ffff, (op.imm >> 32) as u16)
}

fn jump_direct(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let (offset, selector) = direct(op);
    cpu.far_jump(selector, offset)
}

fn jump_memory(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let (offset, selector) = cpu.load_far(op, op.size)?;
    cpu.far_jump(selector, offset)
}

fn call_direct(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let (offset, selector) = direct(op);
    cpu.far_call(selector, offset, op.size)
}

fn call_memory(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let (offset, selector) = cpu.load_far(op, op.size)?;
    cpu.far_call(selector, offset, op.size)
}

impl Cpu {
    /// Returns true in real and virtual-8086 mode, in which selectors do not refer to descriptors.
    fn untabled(&self) -> bool {
        !self.protected() || self.v8086()
    }

    /// Returns CS after a far transfer in real or virtual-8086 mode.
    fn untabled_code(&self, selector: u16) -> Segment {
        if self.v8086() { v8086_segment(selector) } else { self.real_segment(seg::CS, selector) }
    }

    fn charge_far(&mut self) {
        self.charge(Kind::new(Family::FarTransfer, 0), 1);
    }

    fn enter_code(&mut self, cs: Segment, rip: u64, cpl: u8) -> Flow {
        self.arch.seg[usize::from(seg::CS)] = cs;
        self.arch.rip = rip;
        self.arch.cpl = cpl;
        self.mode_changed();
        Flow::End
    }

    /// Enters a code segment, and expects ENDBRANCH there if branches are tracked.
    fn enter_tracked(&mut self, cs: Segment, rip: u64, cpl: u8) -> Flow {
        let flow = self.enter_code(cs, rip, cpl);
        self.track_far();
        flow
    }

    /// Returns true if a code segment is in 64-bit mode.
    fn is_64_bit(&self, cs: &Segment) -> bool {
        self.long_mode() && Self::is_long(cs)
    }

    /// Computes the effects of a far return on the shadow stack.
    fn shadow_far_return(&mut self, cs: &Segment, selector: u16, rip: u64, cpl: u8) -> Exec<ShadowChange> {
        let long = self.is_64_bit(cs);
        let to = self.target_address(long, cs.base, rip);
        self.shadow_return(cpl, long, selector, to)
    }

    /// Checks a target offset against its code segment.
    fn check_target(&mut self, cs: &Segment, offset: u64) -> Exec {
        let good =
            if self.long_mode() && Self::is_long(cs) { self.canonical(offset) } else { offset <= u64::from(cs.limit) };
        if good { Ok(()) } else { Err(self.gp(0)) }
    }

    /// Reads the target of a far pointer: code segment, gate or TSS.
    fn far_target(&mut self, selector: u16) -> Exec<Descriptor> {
        if is_null(selector) {
            return Err(self.gp(0));
        }
        self.read_descriptor(selector, vector::GP)
    }

    /// Checks a code segment as the target of a direct far jump or call.
    fn direct_code(&mut self, mut d: Descriptor) -> Exec<Segment> {
        let selector = d.selector;
        let rpl = selector as u8 & 3;
        let level_ok =
            if d.conforming() { d.dpl() <= self.arch.cpl } else { rpl <= self.arch.cpl && d.dpl() == self.arch.cpl };
        if !level_ok || (self.long_mode() && d.long_and_big()) {
            return Err(self.gp_selector(selector));
        }
        if !d.present() {
            return Err(self.raise_code(vector::NP, code_of(selector)));
        }
        self.mark_accessed(&mut d)?;
        Ok(d.segment(selector & !3 | u16::from(self.arch.cpl)))
    }

    /// Checks the privilege for a gate or TSS descriptor.
    fn check_gate_level(&mut self, d: &Descriptor) -> Exec {
        if d.dpl() < self.arch.cpl || d.dpl() < d.selector as u8 & 3 {
            return Err(self.gp_selector(d.selector));
        }
        Ok(())
    }

    fn far_task(&mut self, d: Descriptor, why: Switch) -> Exec<Flow> {
        self.check_gate_level(&d)?;
        let tss = if d.kind() == descriptor::TASK_GATE {
            if !d.present() {
                return Err(self.raise_code(vector::NP, code_of(d.selector)));
            }
            self.task_of_gate(d.gate_selector())?
        } else {
            if d.selector & 4 != 0 {
                return Err(self.gp_selector(d.selector));
            }
            self.available_task(d)?
        };
        self.run_task_switch(tss, why)
    }

    /// Returns the code segment of a call gate, and its privilege level.
    fn gate_code(&mut self, gate: &mut Descriptor) -> Exec<Descriptor> {
        self.check_gate_level(gate)?;
        if !gate.present() {
            return Err(self.raise_code(vector::NP, code_of(gate.selector)));
        }
        let long = self.long_mode();
        if long {
            self.read_high(gate, vector::GP)?;
        }
        let selector = gate.gate_selector();
        if is_null(selector) {
            return Err(self.gp(0));
        }
        let code = self.read_descriptor(selector, vector::GP)?;
        let long_ok = !long || (code.long() && !code.long_and_big());
        if !code.is_code() || code.dpl() > self.arch.cpl || !long_ok {
            return Err(self.gp_selector(selector));
        }
        if !code.present() {
            return Err(self.raise_code(vector::NP, code_of(selector)));
        }
        Ok(code)
    }

    fn far_jump(&mut self, selector: u16, offset: u64) -> Exec<Flow> {
        if self.untabled() {
            if offset > 0xffff {
                return Err(self.gp(0));
            }
            self.charge_far();
            let cs = self.untabled_code(selector);
            return Ok(self.enter_code(cs, offset, self.arch.cpl));
        }
        let mut d = self.far_target(selector)?;
        if d.is_code() {
            let cs = self.direct_code(d)?;
            self.check_target(&cs, offset)?;
            self.shadow_fits(self.is_64_bit(&cs))?;
            self.charge_far();
            return Ok(self.enter_tracked(cs, offset, self.arch.cpl));
        }
        use descriptor::*;
        let long = self.long_mode();
        match d.kind() {
            CALL_GATE32 if d.is_system() => {}
            CALL_GATE16 if d.is_system() && !long => {}
            TASK_GATE | TSS16 | TSS32 if d.is_system() && !long => return self.far_task(d, Switch::Jump),
            _ => return Err(self.gp_selector(selector)),
        }
        let wide = d.kind() == CALL_GATE32;
        let mut code = self.gate_code(&mut d)?;
        if !code.conforming() && code.dpl() != self.arch.cpl {
            return Err(self.gp_selector(code.selector));
        }
        self.mark_accessed(&mut code)?;
        let cs = code.segment(code.selector & !3 | u16::from(self.arch.cpl));
        let offset = if wide { d.gate_offset() } else { d.gate_offset() & 0xffff };
        self.check_target(&cs, offset)?;
        self.charge_far();
        Ok(self.enter_tracked(cs, offset, self.arch.cpl))
    }

    fn far_call(&mut self, selector: u16, offset: u64, size: u8) -> Exec<Flow> {
        let old_cs = self.arch.seg[usize::from(seg::CS)].selector;
        let rip = self.arch.rip;
        if self.untabled() {
            let mut stack = Stack::current(self);
            stack.push(self, size, u64::from(old_cs))?;
            stack.push(self, size, rip)?;
            if offset > 0xffff {
                return Err(self.gp(0));
            }
            self.charge_far();
            stack.commit(self);
            let cs = self.untabled_code(selector);
            return Ok(self.enter_code(cs, offset, self.arch.cpl));
        }
        let mut d = self.far_target(selector)?;
        if d.is_code() {
            let cs = self.direct_code(d)?;
            let mut stack = Stack::current(self);
            stack.push(self, size, u64::from(old_cs))?;
            stack.push(self, size, rip)?;
            self.check_target(&cs, offset)?;
            let long = self.is_64_bit(&cs);
            self.shadow_fits(long)?;
            let shadow = self.shadow_call(self.arch.cpl, long, NewStack::Current)?;
            self.charge_far();
            stack.commit(self);
            self.commit_shadow(shadow);
            return Ok(self.enter_tracked(cs, offset, self.arch.cpl));
        }
        use descriptor::*;
        let long = self.long_mode();
        match d.kind() {
            CALL_GATE32 if d.is_system() => {}
            CALL_GATE16 if d.is_system() && !long => {}
            TASK_GATE | TSS16 | TSS32 if d.is_system() && !long => return self.far_task(d, Switch::Call),
            _ => return Err(self.gp_selector(selector)),
        }
        let code = self.gate_code(&mut d)?;
        self.call_gate(&d, code)
    }

    fn call_gate(&mut self, gate: &Descriptor, mut code: Descriptor) -> Exec<Flow> {
        let long = self.long_mode();
        let wide = gate.kind() == descriptor::CALL_GATE32;
        let size = if long {
            8
        } else if wide {
            4
        } else {
            2
        };
        let offset = if wide { gate.gate_offset() } else { gate.gate_offset() & 0xffff };
        let inward = !code.conforming() && code.dpl() < self.arch.cpl;
        let cpl = if inward { code.dpl() } else { self.arch.cpl };
        let old_cs = self.arch.seg[usize::from(seg::CS)].selector;
        let old_ss = self.arch.seg[usize::from(seg::SS)].selector;
        let old_stack = Stack::current(self);
        let (mut stack, ss) = match (inward, long) {
            (false, _) => (if long { Stack::long(self.arch.gpr[usize::from(reg::RSP)], cpl) } else { old_stack }, None),
            (true, true) => {
                let (_, sp) = self.inner_stack(cpl)?;
                (Stack::long(sp, cpl), Some(null_segment(u16::from(cpl), cpl)))
            }
            (true, false) => {
                let (selector, sp) = self.inner_stack(cpl)?;
                let ss = self.stack_segment_for(selector, cpl, vector::TS)?;
                (Stack::new(ss, sp, cpl, code_of(selector)), Some(ss))
            }
        };
        self.mark_accessed(&mut code)?;
        let cs = code.segment(code.selector & !3 | u16::from(cpl));
        self.check_target(&cs, offset)?;
        if inward {
            stack.push(self, size, u64::from(old_ss))?;
            stack.push(self, size, self.arch.gpr[usize::from(reg::RSP)])?;
            let parameters = if long { 0 } else { gate.raw >> 32 & 31 };
            for i in (0..parameters).rev() {
                let value = old_stack.peek(self, size, i * u64::from(size))?;
                stack.push(self, size, value)?;
            }
        }
        stack.push(self, size, u64::from(old_cs))?;
        let rip = self.arch.rip;
        stack.push(self, size, rip)?;
        let shadow = if inward { NewStack::OfLevel } else { NewStack::Current };
        let shadow = self.shadow_call(cpl, long, shadow)?;
        self.charge_far();
        if let Some(ss) = ss {
            self.arch.seg[usize::from(seg::SS)] = ss;
        }
        stack.commit(self);
        self.commit_shadow(shadow);
        Ok(self.enter_tracked(cs, offset, cpl))
    }
}

fn far_return(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let size = op.size;
    let mut stack = Stack::current(cpu);
    let rip = stack.pop(cpu, size)?;
    let selector = stack.pop(cpu, size)? as u16;
    if cpu.untabled() {
        if rip > 0xffff {
            return Err(cpu.gp(0));
        }
        cpu.charge_far();
        stack.skip(op.imm);
        stack.commit(cpu);
        let cs = cpu.untabled_code(selector);
        return Ok(cpu.enter_code(cs, rip, cpu.arch.cpl));
    }
    let (cs, cpl) = cpu.return_segment(selector)?;
    stack.skip(op.imm);
    if cpl == cpu.arch.cpl {
        cpu.check_target(&cs, rip)?;
        let shadow = cpu.shadow_far_return(&cs, selector, rip, cpl)?;
        cpu.charge_far();
        stack.commit(cpu);
        cpu.commit_shadow(shadow);
        return Ok(cpu.enter_code(cs, rip, cpl));
    }
    let sp = stack.pop(cpu, size)?;
    let ss = stack.pop(cpu, size)? as u16;
    let target_long = cpu.long_mode() && Cpu::is_long(&cs);
    let ss = cpu.return_stack(ss, cpl, target_long)?;
    cpu.check_target(&cs, rip)?;
    let shadow = cpu.shadow_far_return(&cs, selector, rip, cpl)?;
    cpu.charge_far();
    cpu.commit_shadow(shadow);
    cpu.arch.seg[usize::from(seg::SS)] = ss;
    // The parameters are removed from the outer stack too.
    cpu.set_outer_sp(sp.wrapping_add(op.imm), &ss, target_long);
    let flow = cpu.enter_code(cs, rip, cpl);
    cpu.drop_inner_segments();
    Ok(flow)
}
