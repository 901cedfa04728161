//! IRET, in all modes.

use crate::arch::Segment;
use crate::exec::descriptor::{Stack, code_of, is_null, null_segment};
use crate::exec::segment::v8086_segment;
use crate::exec::task::Switch;
use crate::fault::{Exec, Flow};
use crate::op::{Handler, Op};
use crate::row::Row;
use crate::state::Cpu;
use iced_x86::{Instruction, Mnemonic::*};
use ledger::{Class, Family, Kind};
use x86::control::CR4_VME;
use x86::{flags, reg, rights, seg, vector};

/// Instruction table rows of interrupt returns.
pub static ROWS: &[Row] = &[
    Row::end(Iret, Class::System, sized::<2>).of_system(),
    Row::end(Iretd, Class::System, sized::<4>).of_system(),
    Row::end(Iretq, Class::System, sized::<8>).of_system(),
];

fn sized<const SIZE: u8>(_: &Instruction, op: &mut Op) -> Option<Handler> {
    op.size = SIZE;
    Some(iret)
}

fn iret(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    // An IRET that faults unblocks NMIs too.
    cpu.unblock_nmis();
    let flow = interrupt_return(cpu, op.size)?;
    cpu.arch.vmx.nmi_unblocked = false;
    Ok(flow)
}

fn interrupt_return(cpu: &mut Cpu, size: u8) -> Exec<Flow> {
    if !cpu.protected() {
        real(cpu, size)?;
    } else if cpu.v8086() {
        virtual8086(cpu, size)?;
    } else if cpu.long_mode() {
        if cpu.arch.flags & flags::NT != 0 {
            return Err(cpu.gp(0));
        }
        protected(cpu, size)?;
    } else if cpu.arch.flags & flags::NT != 0 {
        let tss = cpu.back_link()?;
        cpu.task_switch_exit(&tss, Switch::Iret)?;
        cpu.charge(Kind::new(Family::Iret, 0), 1);
        let flow = cpu.run_task_switch(tss, Switch::Iret)?;
        cpu.handler_ends();
        cpu.origin_changed();
        return Ok(flow);
    } else {
        protected(cpu, size)?;
    }
    Ok(Flow::End)
}

/// Returns the flags that IRET may change, by operand size and privilege before the return.
fn mask(cpu: &Cpu, size: u8) -> u64 {
    let mut mask = flags::ARITH | flags::TF | flags::DF | flags::NT;
    if size >= 4 {
        mask |= flags::RF | flags::AC | flags::ID;
    }
    if cpu.arch.cpl <= cpu.iopl() {
        mask |= flags::IF;
    }
    if cpu.arch.cpl == 0 {
        mask |= flags::IOPL;
        if size >= 4 {
            mask |= flags::VIF | flags::VIP;
        }
    }
    mask
}

fn real(cpu: &mut Cpu, size: u8) -> Exec {
    let mut stack = Stack::current(cpu);
    let rip = stack.pop(cpu, size)?;
    let cs = stack.pop(cpu, size)? as u16;
    let image = stack.pop(cpu, size)?;
    if rip > u64::from(cpu.arch.seg[usize::from(seg::CS)].limit) {
        return Err(cpu.gp(0));
    }
    cpu.charge(Kind::new(Family::Iret, 0), 1);
    stack.commit(cpu);
    cpu.arch.seg[usize::from(seg::CS)] = cpu.real_segment(seg::CS, cs);
    cpu.arch.rip = rip;
    let mut mask = flags::ARITH | flags::TF | flags::DF | flags::NT | flags::IF | flags::IOPL;
    if size >= 4 {
        mask |= flags::RF | flags::AC | flags::ID;
    }
    cpu.set_rflags((cpu.rflags() & !mask) | (image & mask));
    cpu.handler_ends();
    cpu.mode_changed();
    Ok(())
}

fn virtual8086(cpu: &mut Cpu, size: u8) -> Exec {
    let extended = cpu.arch.cr4 & CR4_VME != 0;
    if cpu.iopl() < 3 && (!extended || size != 2) {
        return Err(cpu.gp(0));
    }
    let mut stack = Stack::current(cpu);
    let rip = stack.pop(cpu, size)?;
    let cs = stack.pop(cpu, size)? as u16;
    let image = stack.pop(cpu, size)?;
    if rip > 0xffff {
        return Err(cpu.gp(0));
    }
    let old = cpu.rflags();
    let new = if cpu.iopl() == 3 {
        let mut mask = flags::ARITH | flags::TF | flags::DF | flags::NT | flags::IF;
        if size >= 4 {
            mask |= flags::RF | flags::AC | flags::ID;
        }
        (old & !mask) | (image & mask)
    } else {
        // The program's IF is VIF; the program may neither set TF nor enable a pending virtual interrupt.
        if image & flags::TF != 0 || (image & flags::IF != 0 && old & flags::VIP != 0) {
            return Err(cpu.gp(0));
        }
        let mask = flags::ARITH | flags::TF | flags::DF | flags::NT;
        let vif = if image & flags::IF != 0 { flags::VIF } else { 0 };
        (old & !(mask | flags::VIF)) | (image & mask) | vif
    };
    cpu.charge(Kind::new(Family::Iret, 0), 1);
    stack.commit(cpu);
    cpu.arch.seg[usize::from(seg::CS)] = v8086_segment(cs);
    cpu.arch.rip = rip;
    cpu.set_rflags(new);
    cpu.handler_ends();
    cpu.mode_changed();
    Ok(())
}

fn protected(cpu: &mut Cpu, size: u8) -> Exec {
    let mut stack = Stack::current(cpu);
    let rip = stack.pop(cpu, size)?;
    let selector = stack.pop(cpu, size)? as u16;
    let image = stack.pop(cpu, size)?;
    if image & flags::VM != 0 && size == 4 && cpu.arch.cpl == 0 && !cpu.long_mode() {
        return to_virtual8086(cpu, stack, rip, selector, image);
    }
    let (cs, cpl) = cpu.return_segment(selector)?;
    let outward = cpl > cpu.arch.cpl;
    let target_long = cpu.long_mode() && Cpu::is_long(&cs);
    let from_long = cpu.engine.long64;
    let mut outer = None;
    if outward || from_long {
        let sp = stack.pop(cpu, size)?;
        let ss = stack.pop(cpu, size)? as u16;
        outer = Some((sp, cpu.return_stack(ss, cpl, target_long)?));
    }
    let limit_ok = if target_long { cpu.canonical(rip) } else { rip <= u64::from(cs.limit) };
    if !limit_ok {
        return Err(cpu.gp(0));
    }
    let to = cpu.target_address(target_long, cs.base, rip);
    let shadow = cpu.shadow_return(cpl, target_long, selector, to)?;
    cpu.charge(Kind::new(Family::Iret, 0), 1);
    cpu.commit_shadow(shadow);
    let mask = mask(cpu, size);
    match outer {
        Some((sp, ss)) => {
            cpu.arch.seg[usize::from(seg::SS)] = ss;
            cpu.set_outer_sp(sp, &ss, target_long);
        }
        None => stack.commit(cpu),
    }
    cpu.arch.seg[usize::from(seg::CS)] = cs;
    cpu.arch.rip = rip;
    cpu.arch.cpl = cpl;
    if outward {
        cpu.drop_inner_segments();
    }
    cpu.set_rflags((cpu.rflags() & !mask) | (image & mask));
    cpu.handler_ends();
    cpu.mode_changed();
    Ok(())
}

fn to_virtual8086(cpu: &mut Cpu, mut stack: Stack, rip: u64, cs: u16, image: u64) -> Exec {
    let sp = stack.pop(cpu, 4)?;
    let mut selectors = [0u16; 5];
    for selector in &mut selectors {
        *selector = stack.pop(cpu, 4)? as u16;
    }
    cpu.shadow_return_to_virtual8086()?;
    cpu.charge(Kind::new(Family::Iret, 0), 1);
    let order = [seg::SS, seg::ES, seg::DS, seg::FS, seg::GS];
    for (which, selector) in order.into_iter().zip(selectors) {
        cpu.arch.seg[usize::from(which)] = v8086_segment(selector);
    }
    cpu.arch.seg[usize::from(seg::CS)] = v8086_segment(cs);
    cpu.arch.rip = rip & 0xffff;
    cpu.arch.gpr[usize::from(reg::RSP)] = sp;
    cpu.arch.cpl = 3;
    cpu.set_rflags(image);
    cpu.handler_ends();
    cpu.mode_changed();
    Ok(())
}

impl Cpu {
    /// Ends the blocking of NMIs; for a guest whose NMIs exit this applies only with virtual NMIs.
    fn unblock_nmis(&mut self) {
        use x86::vmx::pin;
        let pin = self.arch.vmx.controls.pin;
        if self.arch.vmx.active && pin & (pin::NMI | pin::VIRTUAL_NMIS) == pin::NMI {
            return;
        }
        self.arch.vmx.nmi_unblocked |= self.arch.nmi_blocked && self.arch.vmx.active;
        self.arch.nmi_blocked = false;
    }

    /// Returns the code segment to which an IRET or far RET returns, and the resulting CPL.
    pub(crate) fn return_segment(&mut self, selector: u16) -> Exec<(Segment, u8)> {
        if is_null(selector) {
            return Err(self.gp(0));
        }
        let code = code_of(selector);
        let mut d = self.read_descriptor(selector, vector::GP)?;
        let rpl = selector as u8 & 3;
        let level_ok = if d.conforming() { d.dpl() <= rpl } else { d.dpl() == rpl };
        if !d.is_code() || rpl < self.arch.cpl || !level_ok || (self.long_mode() && d.long_and_big()) {
            return Err(self.gp(code));
        }
        if !d.present() {
            return Err(self.raise_code(vector::NP, code));
        }
        self.mark_accessed(&mut d)?;
        Ok((d.segment(selector), rpl))
    }

    /// Returns the stack segment popped by a return to level `cpl`.
    pub(crate) fn return_stack(&mut self, selector: u16, cpl: u8, target_long: bool) -> Exec<Segment> {
        if is_null(selector) && target_long && cpl != 3 && selector as u8 & 3 == cpl {
            return Ok(null_segment(selector, cpl));
        }
        self.stack_segment_for(selector, cpl, vector::GP)
    }

    /// Sets the stack pointer popped by a return to another level.
    pub(crate) fn set_outer_sp(&mut self, sp: u64, ss: &Segment, target_long: bool) {
        let rsp = &mut self.arch.gpr[usize::from(reg::RSP)];
        *rsp = if target_long {
            sp
        } else if ss.rights & rights::DB != 0 {
            sp & 0xffff_ffff
        } else {
            (*rsp & !0xffff) | (sp & 0xffff)
        };
    }

    /// Invalidates data segments after a return to an outer level that may not use them.
    pub(crate) fn drop_inner_segments(&mut self) {
        for which in [seg::ES, seg::DS, seg::FS, seg::GS] {
            let s = self.arch.seg[usize::from(which)];
            let conforming = s.rights & (rights::CODE | rights::DC) == rights::CODE | rights::DC;
            if s.usable() && s.dpl() < self.arch.cpl && !conforming {
                // In long mode the base is kept: FS and GS are used independently of their selectors.
                let base = if self.long_mode() { s.base } else { 0 };
                self.arch.seg[usize::from(which)] = Segment { base, ..null_segment(0, 0) };
            }
        }
    }
}
