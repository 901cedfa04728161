//! Hardware task switches (SDM vol. 3, chapter 8): 16-bit and 32-bit TSS, by JMP, CALL, IRET, or through a task gate.

use crate::access::{Access, Privilege};
use crate::arch::{Segment, attention};
use crate::exec::descriptor::{Descriptor, code_of, is_null, null_segment};
use crate::exec::segment::v8086_segment;
use crate::fault::{Exec, Flow};
use crate::state::Cpu;
use ledger::{Family, Kind};
use x86::control::*;
use x86::debug::{DR6_BT, DR7_LE, DR7_LOCAL};
use x86::vmx::reason;
use x86::{descriptor, flags, seg, vector};

/// Origin of a task switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Switch {
    Jump,
    Call,
    Interrupt,
    Iret,
}

impl Switch {
    /// Returns true if the old task is left and no longer busy.
    fn leaves(self) -> bool {
        matches!(self, Switch::Jump | Switch::Iret)
    }

    /// Returns true if the new task is nested in the old one.
    fn nests(self) -> bool {
        matches!(self, Switch::Call | Switch::Interrupt)
    }
}

/// Result of a switch after the point of no return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The new task runs.
    Complete,
    /// A fault occurred during the load of segments: the exception (in [`fault`](crate::engine::Engine::fault)) belongs
    /// to the new task.
    Faulted,
}

/// Offsets in a TSS of one width.
struct Layout {
    wide: bool,
    size: u8,
    minimum: u32,
    ip: u64,
    flags: u64,
    registers: u64,
    segments: u64,
    segment_count: u8,
    ldt: u64,
}

static TSS16: Layout = Layout {
    wide: false,
    size: 2,
    minimum: 0x2b,
    ip: 14,
    flags: 16,
    registers: 18,
    segments: 34,
    segment_count: 4,
    ldt: 42,
};
static TSS32: Layout = Layout {
    wide: true,
    size: 4,
    minimum: 0x67,
    ip: 32,
    flags: 36,
    registers: 40,
    segments: 72,
    segment_count: 6,
    ldt: 96,
};

fn layout(rights: u32) -> &'static Layout {
    if rights & 8 != 0 { &TSS32 } else { &TSS16 }
}

/// Contents of a TSS.
struct Image {
    cr3: u32,
    ip: u64,
    flags: u64,
    registers: [u64; 8],
    segments: [u16; 6],
    ldt: u16,
    trap: bool,
}

impl Cpu {
    /// Returns the available TSS to which a task gate or far transfer refers.
    pub(crate) fn task_of_gate(&mut self, selector: u16) -> Exec<Descriptor> {
        if is_null(selector) || selector & 4 != 0 {
            return Err(self.gp_selector(selector));
        }
        let tss = self.read_descriptor(selector, vector::GP)?;
        self.available_task(tss)
    }

    /// Checks that a descriptor is that of an available, present TSS.
    pub(crate) fn available_task(&mut self, tss: Descriptor) -> Exec<Descriptor> {
        let available = matches!(tss.kind(), descriptor::TSS16 | descriptor::TSS32);
        if !tss.is_system() || !available {
            return Err(self.gp_selector(tss.selector));
        }
        if !tss.present() {
            return Err(self.raise_code(vector::NP, code_of(tss.selector)));
        }
        Ok(tss)
    }

    /// Returns the busy TSS in the back link of the current one.
    pub(crate) fn back_link(&mut self) -> Exec<Descriptor> {
        let link: u16 = self.read_system(self.arch.tr.base)?;
        let code = code_of(link);
        if link & 4 != 0 || is_null(link) {
            return Err(self.raise_code(vector::TS, code));
        }
        let tss = self.read_descriptor(link, vector::TS)?;
        let kind = tss.kind() & !8;
        if !tss.is_system() || kind != descriptor::TSS16 | descriptor::BUSY {
            return Err(self.raise_code(vector::TS, code));
        }
        if !tss.present() {
            return Err(self.raise_code(vector::NP, code));
        }
        Ok(tss)
    }

    /// Exits for the task switch of a guest, after the checks for its validity.
    pub(crate) fn task_switch_exit(&mut self, tss: &Descriptor, why: Switch) -> Exec {
        if !self.arch.vmx.active {
            return Ok(());
        }
        if tss.limit() < layout(tss.rights()).minimum {
            return Err(self.raise_code(vector::TS, code_of(tss.selector)));
        }
        let source = match why {
            Switch::Call => 0,
            Switch::Iret => 1,
            Switch::Jump => 2,
            Switch::Interrupt => 3,
        };
        Err(self.exit_fault(reason::TASK_SWITCH, u64::from(tss.selector) | source << 30))
    }

    /// Executes a task switch of an instruction: a fault of the new task is delivered here, in the new task.
    pub(crate) fn run_task_switch(&mut self, tss: Descriptor, why: Switch) -> Exec<Flow> {
        self.task_switch_exit(&tss, why)?;
        if self.switch_task(tss, why)? == Arrival::Faulted {
            self.fault_in_new_task();
        }
        Ok(Flow::End)
    }

    /// Delivers the fault that occurred during the load of the new task.
    pub(crate) fn fault_in_new_task(&mut self) {
        self.engine.ilen = 0;
        self.deliver_fault();
    }

    /// Switches to another task. On error nothing has changed.
    pub(crate) fn switch_task(&mut self, tss: Descriptor, why: Switch) -> Exec<Arrival> {
        let new = layout(tss.rights());
        if tss.limit() < new.minimum {
            return Err(self.raise_code(vector::TS, code_of(tss.selector)));
        }
        let old_tr = self.arch.tr;
        let old = layout(old_tr.rights);
        if old_tr.limit < old.minimum {
            return Err(self.raise_code(vector::TS, code_of(old_tr.selector)));
        }
        let base = tss.base();
        // All accesses must be possible before anything changes.
        self.prepare_system(old_tr.base, u64::from(old.minimum) + 1, Access::Write)?;
        self.prepare_system(base, u64::from(new.minimum) + 1, Access::Read)?;
        self.prepare_system(base, 2, if why.nests() { Access::Write } else { Access::Read })?;
        let old_descriptor = self.arch.gdtr.base.wrapping_add(u64::from(old_tr.selector & 0xfff8));
        self.prepare_system(old_descriptor, 8, Access::Write)?;
        self.prepare_system(tss.address, 8, Access::Write)?;
        let image = self.read_task(base, new)?;
        self.charge(Kind::new(Family::TaskSwitch, 0), 1);
        let allowed = std::mem::replace(&mut self.engine.code_write_allowed, true);
        let written = self.leave_task(&old_tr, old, old_descriptor, &tss, why);
        self.engine.code_write_allowed = allowed;
        written?;
        self.arch.tr = tss.segment(tss.selector);
        self.arch.tr.rights |= u32::from(descriptor::BUSY);
        self.arch.cr0 |= CR0_TS;
        if self.enter_task_state(&image, new, why).is_err() {
            return Ok(Arrival::Faulted);
        }
        if image.trap {
            self.arch.pending_dr6 |= DR6_BT;
            self.attend(attention::DEBUG);
        }
        Ok(Arrival::Complete)
    }

    fn prepare_system(&mut self, linear: u64, size: u64, access: Access) -> Exec {
        let linear = linear & 0xffff_ffff;
        if access == Access::Write {
            let allowed = std::mem::replace(&mut self.engine.code_write_allowed, true);
            let ready = self.prepare_write(linear, size, Privilege::Implicit, seg::DS);
            self.engine.code_write_allowed = allowed;
            return ready;
        }
        self.prepare_read(linear, size, Privilege::Implicit, seg::DS)
    }

    fn read_field(&mut self, at: u64, size: u8) -> Exec<u64> {
        if size == 4 { self.read_system::<u32>(at).map(u64::from) } else { self.read_system::<u16>(at).map(u64::from) }
    }

    fn write_field(&mut self, at: u64, size: u8, value: u64) -> Exec {
        if size == 4 { self.write_system::<u32>(at, value as u32) } else { self.write_system::<u16>(at, value as u16) }
    }

    fn read_task(&mut self, base: u64, layout: &Layout) -> Exec<Image> {
        let at = |offset: u64| base.wrapping_add(offset);
        let mut image = Image {
            cr3: if layout.wide { self.read_system::<u32>(at(28))? } else { 0 },
            ip: self.read_field(at(layout.ip), layout.size)?,
            flags: self.read_field(at(layout.flags), layout.size)?,
            registers: [0; 8],
            segments: [0; 6],
            ldt: self.read_system::<u16>(at(layout.ldt))?,
            trap: layout.wide && self.read_system::<u16>(at(100))? & 1 != 0,
        };
        let step = u64::from(layout.size);
        for i in 0..8 {
            image.registers[i as usize] = self.read_field(at(layout.registers + i * step), layout.size)?;
        }
        for i in 0..u64::from(layout.segment_count) {
            image.segments[i as usize] = self.read_system::<u16>(at(layout.segments + i * step))?;
        }
        Ok(image)
    }

    /// Saves the old task, and updates the busy bits of both tasks.
    fn leave_task(&mut self, tr: &Segment, old: &Layout, old_entry: u64, tss: &Descriptor, why: Switch) -> Exec {
        if why.leaves() {
            self.set_busy(old_entry, false)?;
        }
        let at = |offset: u64| tr.base.wrapping_add(offset);
        let mut image = self.rflags();
        if why == Switch::Iret {
            image &= !flags::NT;
        }
        self.write_field(at(old.ip), old.size, self.arch.rip)?;
        self.write_field(at(old.flags), old.size, image)?;
        let step = u64::from(old.size);
        for i in 0..8 {
            let value = self.arch.gpr[i as usize];
            self.write_field(at(old.registers + i * step), old.size, value)?;
        }
        for i in 0..u64::from(old.segment_count) {
            let selector = self.arch.seg[i as usize].selector;
            self.write_system::<u16>(at(old.segments + i * step), selector)?;
        }
        if why.nests() {
            self.write_system::<u16>(tss.base(), tr.selector)?;
        }
        if why != Switch::Iret {
            self.set_busy(tss.address, true)?;
        }
        Ok(())
    }

    /// Loads the new task; from here on faults belong to the new task.
    fn enter_task_state(&mut self, image: &Image, layout: &Layout, why: Switch) -> Exec {
        let high = if layout.wide { 0 } else { 0xffff_0000 };
        for (i, value) in image.registers.iter().enumerate() {
            // A 16-bit TSS sets the upper halves to all ones.
            self.arch.gpr[i] = value | high;
        }
        self.arch.rip = image.ip;
        let mut new_flags = image.flags | if why.nests() { flags::NT } else { 0 };
        if !layout.wide {
            new_flags &= 0xffff;
        }
        self.set_rflags(new_flags);
        // Local breakpoints belong to the old task.
        self.arch.dr[7] &= !(DR7_LOCAL | DR7_LE);
        for (i, selector) in image.segments.iter().enumerate() {
            self.arch.seg[i] = null_segment(*selector, 0);
        }
        self.arch.ldtr = null_segment(image.ldt, 0);
        let v8086 = self.v8086();
        self.arch.cpl = if v8086 { 3 } else { image.segments[usize::from(seg::CS)] as u8 & 3 };
        // No code can run until the segments are loaded: exceptions of the checks below are delivered first.
        self.mode_changed();
        if layout.wide && self.arch.cr0 & CR0_PG != 0 {
            self.load_cr3(u64::from(image.cr3))?;
        }
        self.load_task_ldt(image.ldt)?;
        if v8086 {
            for (i, selector) in image.segments.iter().enumerate() {
                self.arch.seg[i] = v8086_segment(*selector);
            }
            self.mode_changed();
            return self.check_task_ip();
        }
        let cs = self.task_code_segment(image.segments[usize::from(seg::CS)])?;
        self.arch.seg[usize::from(seg::CS)] = cs;
        self.mode_changed();
        let ss = self.stack_segment_for(image.segments[usize::from(seg::SS)], self.arch.cpl, vector::TS)?;
        self.arch.seg[usize::from(seg::SS)] = ss;
        for which in [seg::ES, seg::DS, seg::FS, seg::GS] {
            let segment = self.task_data_segment(image.segments[usize::from(which)])?;
            self.arch.seg[usize::from(which)] = segment;
        }
        self.check_task_ip()
    }

    fn check_task_ip(&mut self) -> Exec {
        if self.arch.rip > u64::from(self.arch.seg[usize::from(seg::CS)].limit) { Err(self.gp(0)) } else { Ok(()) }
    }

    fn load_task_ldt(&mut self, selector: u16) -> Exec {
        if is_null(selector) {
            return Ok(());
        }
        let code = code_of(selector);
        if selector & 4 != 0 {
            return Err(self.raise_code(vector::TS, code));
        }
        let d = self.read_descriptor(selector, vector::TS)?;
        if !d.is_system() || d.kind() != descriptor::LDT || !d.present() {
            return Err(self.raise_code(vector::TS, code));
        }
        self.arch.ldtr = d.segment(selector);
        Ok(())
    }

    fn task_code_segment(&mut self, selector: u16) -> Exec<Segment> {
        let code = code_of(selector);
        if is_null(selector) {
            return Err(self.raise_code(vector::TS, code));
        }
        let mut d = self.read_descriptor(selector, vector::TS)?;
        let rpl = selector as u8 & 3;
        let level_ok = if d.conforming() { d.dpl() <= rpl } else { d.dpl() == rpl };
        if !d.is_code() || !level_ok {
            return Err(self.raise_code(vector::TS, code));
        }
        if !d.present() {
            return Err(self.raise_code(vector::NP, code));
        }
        self.mark_accessed(&mut d)?;
        Ok(d.segment(selector))
    }

    fn task_data_segment(&mut self, selector: u16) -> Exec<Segment> {
        if is_null(selector) {
            return Ok(null_segment(selector, 0));
        }
        let code = code_of(selector);
        let mut d = self.read_descriptor(selector, vector::TS)?;
        let outranked = !d.conforming() && (selector as u8 & 3 > d.dpl() || self.arch.cpl > d.dpl());
        if !d.readable() || outranked {
            return Err(self.raise_code(vector::TS, code));
        }
        if !d.present() {
            return Err(self.raise_code(vector::NP, code));
        }
        self.mark_accessed(&mut d)?;
        Ok(d.segment(selector))
    }
}
