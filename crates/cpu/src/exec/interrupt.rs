//! Delivery of exceptions and interrupts: through the IDT in long mode, through gates in protected mode, through the
//! vector table in real mode; and the handling of faults during delivery (double fault, shutdown).

use crate::arch::{Segment, attention};
use crate::exec::cet::NewStack;
use crate::exec::descriptor::{Descriptor, Stack, code_of, is_null, null_segment};
use crate::exec::task::{Arrival, Switch};
use crate::fault::{Cause, Exec, Fault};
use crate::state::Cpu;
use ledger::{Family, Kind};
use x86::control::CR4_VME;
use x86::debug::*;
use x86::{descriptor, flags, reg, rights, seg, vector};

/// Source of an event, which determines privilege checks, the EXT bit and the charged origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Exception raised by the processor.
    Exception,
    /// INTR.
    External,
    /// NMI.
    Nmi,
    /// INT n: also subject to IOPL and redirection in virtual-8086 mode.
    Int,
    /// INT3 and INTO.
    Trap,
    /// INT1: like an exception of the processor, but caused by an instruction.
    Int1,
}

impl Source {
    fn software(self) -> bool {
        matches!(self, Source::Int | Source::Trap)
    }

    /// Returns true for events that are independent of the interrupted code.
    fn is_interrupt(self) -> bool {
        matches!(self, Source::External | Source::Nmi)
    }

    /// Returns true for an event caused by a completed instruction.
    fn instruction(self) -> bool {
        self.software() || matches!(self, Source::Int1)
    }
}

/// An event in delivery.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub vector: u8,
    pub code: Option<u32>,
    pub source: Source,
    /// True if a VM entry injects the event: the hypervisor has set the associated state (CR2, DR6, DR7, RF).
    pub injected: bool,
}

impl Event {
    pub fn new(vector: u8, code: Option<u32>, source: Source) -> Self {
        Self { vector, code, source, injected: false }
    }

    /// Returns the kind of event that the delivery is charged as.
    pub fn kind(&self) -> Kind {
        let vector = u32::from(self.vector);
        match self.source {
            Source::Exception => Kind::new(Family::Exception, vector),
            Source::External => Kind::new(Family::Interrupt, vector),
            Source::Nmi => Kind::new(Family::Nmi, 0),
            _ => Kind::new(Family::SoftwareInterrupt, vector),
        }
    }
}

/// Classifies an exception for the combination of two faults (SDM vol. 3, table 6-5).
fn class(vector: u8) -> u8 {
    match vector {
        vector::DE | vector::TS | vector::NP | vector::SS | vector::GP | vector::CP => 1,
        vector::PF => 2,
        vector::DF => 3,
        _ => 0,
    }
}

impl Cpu {
    /// Delivers an exception.
    pub(crate) fn deliver_exception(&mut self, vector: u8, code: Option<u32>) {
        self.deliver(Event::new(vector, code, Source::Exception), 0);
    }

    /// Delivers an external interrupt.
    pub(crate) fn deliver_interrupt(&mut self, vector: u8) {
        self.deliver(Event::new(vector, None, Source::External), 0);
    }

    /// Delivers an NMI. Further NMIs are blocked until IRET.
    pub(crate) fn deliver_nmi(&mut self) {
        self.arch.nmi_blocked = true;
        self.deliver(Event::new(vector::NMI, None, Source::Nmi), 0);
    }

    /// Delivers an event and all exceptions that the delivery causes, up to shutdown. An injected event may belong to
    /// an instruction of `length` bytes, after which its handler returns.
    pub(crate) fn deliver(&mut self, first: Event, length: u32) {
        self.begin_run();
        let allowed = std::mem::replace(&mut self.engine.code_write_allowed, true);
        // A debug trap after HLT wakes the processor.
        self.arch.attention &= !attention::HALT;
        if !self.arch.vmx.active || !self.exception_exits(&first) {
            self.deliver_through_table(first, length);
        }
        self.engine.code_write_allowed = allowed;
    }

    fn deliver_through_table(&mut self, first: Event, length: u32) {
        let mut event = first;
        let start = self.arch.rip;
        self.event_begins(&event, self.micro.clock);
        self.delivery_begins(length);
        // An exception also ends blocking by STI or MOV SS.
        self.arch.attention &= !(attention::STI_SHADOW | attention::SS_SHADOW);
        self.before_delivery(&event);
        self.handler_begins(event.source.is_interrupt());
        loop {
            let entered = self.enter_handler(&event);
            if entered.is_ok() {
                break;
            }
            if event.injected {
                self.arch.rip = start;
            }
            let (second, code) = match std::mem::take(&mut self.engine.fault) {
                Cause::Exception(second, code) => (second, code),
                Cause::VmExit => {
                    self.handler_abandoned();
                    return self.exit_in_delivery(&event, length);
                }
                _ => return self.shut_down(),
            };
            // EXT bit: the fault occurred during the delivery of an event that no instruction requested.
            let external = matches!(second, vector::TS | vector::NP | vector::SS | vector::GP);
            let code = if external && !event.source.software() { code.map(|c| c | 1) } else { code };
            let mut next = Event::new(second, code, Source::Exception);
            if self.arch.vmx.active && self.nested_exits(&next, &event, length) {
                self.handler_abandoned();
                return;
            }
            let pair = if event.source == Source::Exception { (class(event.vector), class(second)) } else { (0, 0) };
            match pair {
                (3, 1 | 2) => return self.shut_down(),
                (1, 1) | (2, 1 | 2) => {
                    self.before_delivery(&next);
                    next = Event::new(vector::DF, Some(0), Source::Exception);
                    if self.arch.vmx.active && self.exception_exits(&next) {
                        self.handler_abandoned();
                        return;
                    }
                }
                _ => self.before_delivery(&next),
            }
            event = next;
        }
        self.delivery_ends();
    }

    /// Handles a triple fault: shutdown, or a VM exit.
    pub(crate) fn shut_down(&mut self) {
        if self.arch.vmx.active {
            self.triple_fault_exit();
        } else {
            self.attend(attention::SHUTDOWN);
        }
    }

    /// Changes the state that an exception affects before its handler is entered.
    fn before_delivery(&mut self, event: &Event) {
        if event.source != Source::Exception || event.injected {
            return;
        }
        match event.vector {
            vector::PF => self.arch.cr2 = self.engine.fault_address,
            vector::DB => {
                self.arch.dr[6] = (self.arch.dr[6] & !DR6_BREAKPOINTS) | self.engine.fault_dr6;
                self.arch.dr[7] &= !DR7_GD;
                // SDM vol. 3, 17.4.1 and 17.4.3: the handler is neither recorded nor traced.
                self.arch.msr.debugctl = 0;
            }
            _ => {}
        }
    }

    /// Delivers a software interrupt: called by the instruction's handler, with RIP after the instruction.
    pub(crate) fn software_interrupt(&mut self, vector: u8, source: Source) -> Exec {
        let event = Event::new(vector, None, source);
        self.event_begins(&event, self.micro.clock);
        let entered = match self.arch.vmx.active {
            true => self.guest_software_interrupt(&event),
            false => self.enter_handler(&event),
        };
        if entered.is_err() {
            self.event_abandoned();
        }
        entered?;
        self.handler_begins(false);
        Ok(())
    }

    /// Charges a delivery to the interrupted instruction; called after the last step that can fail.
    fn charge_delivery(&mut self, event: &Event) {
        self.charge(event.kind(), 1);
    }

    /// Returns RFLAGS as pushed: RF is set for faults, so that the same breakpoint does not stop the instruction again,
    /// and clear after INT n and similar instructions, which an IRET with RF may have preceded.
    pub(crate) fn pushed_flags(&self, event: &Event) -> u64 {
        let fault = match event.vector {
            _ if event.source != Source::Exception || event.injected => false,
            vector::DB => self.engine.fault_dr6 & DR6_BD != 0,
            vector::BP | vector::OF | vector::DF | vector::MC | vector::NMI => false,
            _ => true,
        };
        let completed = event.source.instruction() && !event.injected;
        (self.rflags() | if fault { flags::RF } else { 0 }) & if completed { !flags::RF } else { u64::MAX }
    }

    pub(crate) fn enter_handler(&mut self, event: &Event) -> Exec {
        self.engine.delivering = true;
        let entered = self.enter_handler_by_mode(event);
        self.engine.delivering = false;
        entered
    }

    fn enter_handler_by_mode(&mut self, event: &Event) -> Exec {
        if !self.protected() {
            return self.enter_real(event);
        }
        if self.v8086() && event.source == Source::Int {
            let redirected = self.arch.cr4 & CR4_VME != 0 && !self.redirection_bit(event.vector)?;
            if redirected {
                return self.enter_virtual8086(event);
            }
            // A hypervisor has checked IOPL before it injects.
            let checked = !event.injected || self.arch.cr4 & CR4_VME != 0;
            if checked && self.iopl() < 3 {
                return Err(self.gp(0));
            }
        }
        let long = self.long_mode();
        let code = u32::from(event.vector) << 3 | 2;
        let size = if long { 16 } else { 8 };
        let offset = u64::from(event.vector) * size;
        if offset + size - 1 > u64::from(self.arch.idtr.limit) {
            return Err(self.gp(code));
        }
        let address = self.arch.idtr.base.wrapping_add(offset);
        let raw = self.read_system::<u64>(address)?;
        let high = if long { self.read_system::<u64>(address.wrapping_add(8))? & 0xffff_ffff } else { 0 };
        let gate = Descriptor { raw, high, address, selector: 0 };
        use descriptor::*;
        let known = match gate.kind() {
            INTERRUPT_GATE32 | TRAP_GATE32 => true,
            TASK_GATE | INTERRUPT_GATE16 | TRAP_GATE16 => !long,
            _ => false,
        };
        if !gate.is_system() || !known || (event.source.software() && gate.dpl() < self.arch.cpl) {
            return Err(self.gp(code));
        }
        if !gate.present() {
            return Err(self.raise_code(vector::NP, code));
        }
        if gate.kind() == TASK_GATE {
            return self.enter_task(event, &gate);
        }
        self.enter_gate(event, &gate)
    }

    fn enter_task(&mut self, event: &Event, gate: &Descriptor) -> Exec {
        let selector = gate.gate_selector();
        let tss = self.task_of_gate(selector)?;
        self.arch.flags = self.arch.flags & !flags::RF | self.pushed_flags(event) & flags::RF;
        self.task_switch_exit(&tss, Switch::Interrupt)?;
        // Charged before the switch, after which RIP is the new task's.
        self.charge_delivery(event);
        self.arch.single_step = false;
        if self.switch_task(tss, Switch::Interrupt)? == Arrival::Faulted {
            if !event.source.software() {
                return Err(Fault);
            }
            self.fault_in_new_task();
            return Ok(());
        }
        if let Some(code) = event.code {
            let mut stack = Stack::current(self);
            let size = if self.arch.tr.rights & 8 != 0 { 4 } else { 2 };
            stack.push(self, size, u64::from(code))?;
            stack.commit(self);
        }
        Ok(())
    }

    fn enter_gate(&mut self, event: &Event, gate: &Descriptor) -> Exec {
        let long = self.long_mode();
        let selector = gate.gate_selector();
        if is_null(selector) {
            return Err(self.gp(0));
        }
        let code = code_of(selector);
        let mut target = self.read_descriptor(selector, vector::GP)?;
        let bad_code = !target.is_code() || target.dpl() > self.arch.cpl;
        if bad_code || (long && (!target.long() || target.long_and_big())) {
            return Err(self.gp(code));
        }
        if !target.present() {
            return Err(self.raise_code(vector::NP, code));
        }
        let from_v8086 = self.v8086();
        let cpl = if target.conforming() { self.arch.cpl } else { target.dpl() };
        if from_v8086 && cpl != 0 {
            return Err(self.gp(code));
        }
        self.mark_accessed(&mut target)?;
        let old_flags = self.pushed_flags(event);
        let old = (self.arch.seg[usize::from(seg::SS)], self.arch.gpr[usize::from(reg::RSP)]);
        let (mut stack, ss) = if long {
            self.long_stack(gate, cpl)?
        } else if cpl != self.arch.cpl {
            let (selector, sp) = self.inner_stack(cpl)?;
            let ss = self.stack_segment_for(selector, cpl, vector::TS)?;
            (Stack::new(ss, sp, cpl, code_of(selector)), Some(ss))
        } else {
            (Stack::current(self), None)
        };
        // A 64-bit gate pushes quadwords.
        let size = if long {
            8
        } else if gate.kind() & 8 != 0 {
            4
        } else {
            2
        };
        let offset = if size == 2 { gate.gate_offset() & 0xffff } else { gate.gate_offset() };
        let segment = target.segment(selector & !3 | u16::from(cpl));
        if long {
            if !self.canonical(offset) {
                return Err(self.gp(0));
            }
        } else if offset > u64::from(segment.limit) {
            return Err(self.gp(0));
        }
        if from_v8086 {
            for which in [seg::GS, seg::FS, seg::DS, seg::ES] {
                let selector = self.arch.seg[usize::from(which)].selector;
                stack.push(self, size, u64::from(selector))?;
            }
        }
        if long || cpl != self.arch.cpl {
            stack.push(self, size, u64::from(old.0.selector))?;
            stack.push(self, size, old.1)?;
        }
        stack.push(self, size, old_flags)?;
        let cs = self.arch.seg[usize::from(seg::CS)].selector;
        stack.push(self, size, u64::from(cs))?;
        let rip = self.arch.rip;
        stack.push(self, size, rip)?;
        if let Some(code) = event.code {
            stack.push(self, size, u64::from(code))?;
        }
        let ist = if long { (gate.raw >> 32 & 7) as u8 } else { 0 };
        let shadow = match (ist, cpl != self.arch.cpl) {
            (0, false) => NewStack::Current,
            (0, true) => NewStack::OfLevel,
            _ => NewStack::OfTable(ist),
        };
        let shadow = self.shadow_call(cpl, long, shadow)?;
        self.charge_delivery(event);
        if from_v8086 {
            for which in [seg::GS, seg::FS, seg::DS, seg::ES] {
                self.arch.seg[usize::from(which)] = null_segment(0, 0);
            }
        }
        if let Some(ss) = ss {
            self.arch.seg[usize::from(seg::SS)] = ss;
        }
        stack.commit(self);
        self.commit_shadow(shadow);
        let interrupt_gate = gate.kind() & 1 == 0;
        self.handler_flags(interrupt_gate);
        self.arch.seg[usize::from(seg::CS)] = segment;
        self.arch.cpl = cpl;
        self.arch.rip = offset;
        self.mode_changed();
        self.track_far();
        Ok(())
    }

    /// Returns the stack of a handler in long mode: from the IST, from the TSS on a change of level, or the current
    /// one.
    fn long_stack(&mut self, gate: &Descriptor, cpl: u8) -> Exec<(Stack, Option<Segment>)> {
        let ist = gate.raw >> 32 & 7;
        let changed = cpl != self.arch.cpl;
        let sp = if ist != 0 {
            let offset = 0x24 + 8 * (ist - 1);
            if offset + 7 > u64::from(self.arch.tr.limit) {
                let code = code_of(self.arch.tr.selector);
                return Err(self.raise_code(vector::TS, code));
            }
            let at = self.arch.tr.base.wrapping_add(offset);
            self.read_system::<u64>(at)?
        } else if changed {
            self.inner_stack(cpl)?.1
        } else {
            self.arch.gpr[usize::from(reg::RSP)]
        };
        if !self.canonical(sp) {
            return Err(self.raise_code(vector::SS, 0));
        }
        Ok((Stack::long(sp & !15, cpl), changed.then(|| null_segment(u16::from(cpl), cpl))))
    }

    /// Sets the flags on entry to a handler.
    fn handler_flags(&mut self, clear_if: bool) {
        let cleared = flags::TF | flags::NT | flags::RF | flags::VM | if clear_if { flags::IF } else { 0 };
        let value = self.rflags() & !cleared;
        self.set_rflags(value);
        self.arch.single_step = false;
    }

    /// Enters a handler in real mode, through the vector table at IDTR.
    fn enter_real(&mut self, event: &Event) -> Exec {
        let offset = u64::from(event.vector) * 4;
        if offset + 3 > u64::from(self.arch.idtr.limit) {
            let code = u32::from(event.vector) << 3 | 2;
            return Err(self.gp(code));
        }
        let entry = self.read_system::<u32>(self.arch.idtr.base.wrapping_add(offset))?;
        let mut stack = Stack::current(self);
        self.push_real(&mut stack, self.rflags())?;
        self.charge_delivery(event);
        stack.commit(self);
        let value = self.rflags() & !(flags::IF | flags::TF | flags::AC | flags::RF);
        self.set_rflags(value);
        self.arch.single_step = false;
        self.arch.seg[usize::from(seg::CS)] = self.real_segment(seg::CS, (entry >> 16) as u16);
        self.arch.rip = u64::from(entry & 0xffff);
        self.mode_changed();
        Ok(())
    }

    fn push_real(&mut self, stack: &mut Stack, image: u64) -> Exec {
        let (cs, rip) = (self.arch.seg[usize::from(seg::CS)].selector, self.arch.rip);
        stack.push(self, 2, image & 0xffff)?;
        stack.push(self, 2, u64::from(cs))?;
        stack.push(self, 2, rip & 0xffff)
    }

    /// Returns the bit of a vector in the interrupt redirection bitmap, which occupies the 32 bytes before the I/O
    /// permission bitmap.
    fn redirection_bit(&mut self, vector: u8) -> Exec<bool> {
        let tr = self.arch.tr;
        if tr.rights & 8 == 0 || tr.limit < 0x67 {
            return Err(self.gp(0));
        }
        let io_map: u16 = self.read_system(tr.base.wrapping_add(0x66))?;
        let offset = u64::from(io_map).wrapping_sub(32).wrapping_add(u64::from(vector) >> 3);
        if offset > u64::from(tr.limit) {
            return Err(self.gp(0));
        }
        let byte: u8 = self.read_system(tr.base.wrapping_add(offset))?;
        Ok(byte >> (vector & 7) & 1 != 0)
    }

    /// Delivers INT n in virtual-8086 mode to the 8086 program's own handler (CR4.VME).
    fn enter_virtual8086(&mut self, event: &Event) -> Exec {
        let entry = {
            let linear = u64::from(event.vector) * 4;
            self.read_linear::<u32>(linear, seg::DS)?
        };
        let virtual_if = self.iopl() < 3;
        let mut image = self.rflags();
        if virtual_if {
            image |= flags::IOPL;
            image = (image & !flags::IF) | if image & flags::VIF != 0 { flags::IF } else { 0 };
        }
        let mut stack = Stack::current(self);
        self.push_real(&mut stack, image)?;
        self.charge_delivery(event);
        stack.commit(self);
        let cleared = if virtual_if { flags::VIF } else { flags::IF };
        let value = self.rflags() & !(cleared | flags::TF | flags::RF);
        self.set_rflags(value);
        self.arch.single_step = false;
        self.arch.seg[usize::from(seg::CS)] = crate::exec::segment::v8086_segment((entry >> 16) as u16);
        self.arch.rip = u64::from(entry & 0xffff);
        self.mode_changed();
        Ok(())
    }

    /// Raises #GP(0) unless the CPL is 0.
    #[inline]
    pub(crate) fn privileged(&mut self) -> Exec {
        if self.arch.cpl != 0 { Err(self.gp(0)) } else { Ok(()) }
    }

    /// Raises #UD unless in protected mode outside virtual-8086 mode.
    #[inline]
    pub(crate) fn only_protected(&mut self) -> Exec {
        if !self.protected() || self.v8086() { Err(self.ud()) } else { Ok(()) }
    }

    /// Returns true if a code segment register has the L bit set.
    pub(crate) fn is_long(segment: &Segment) -> bool {
        segment.rights & rights::L != 0
    }

    /// Raises #GP(selector).
    pub(crate) fn gp_selector(&mut self, selector: u16) -> Fault {
        self.gp(code_of(selector))
    }
}
