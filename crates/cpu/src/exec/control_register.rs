//! Control registers: valid values, and the effects of writes.

use crate::arch::attention;
use crate::capability::Capability;
use crate::exec::get1;
use crate::fault::{Cause, Exec, Flow};
use crate::op::{Handler, Op};
use crate::row::Row;
use crate::state::Cpu;
use crate::vmx::{DeviceAccess, Flush};
use iced_x86::{Instruction, Mnemonic::*, OpKind};
use ledger::{Class, Family, Kind};
use x86::control::*;
use x86::{page, rights, seg};

/// Instruction table rows of CR0 instructions; MOV is bound through `bind_mov`.
pub static ROWS: &[Row] = &[
    Row::end(Lmsw, Class::System, |i, _| {
        Some(if i.op0_kind() == OpKind::Memory { lmsw_memory } else { lmsw_register })
    })
    .of_system(),
    Row::end(Smsw, Class::System, |i, _| {
        Some(if i.op0_kind() == OpKind::Memory { smsw_memory } else { smsw_register })
    }),
    Row::end(Clts, Class::System, |_, _| Some(clts)).of_system(),
];

/// Parameter of the charge for a CR3 write without flush.
const CHARGE_CR3_NO_FLUSH: u32 = 0x13;

/// Parameters of [`Family::TlbFlush`].
pub(crate) mod flush {
    pub const NON_GLOBAL: u32 = 0;
    pub const ALL: u32 = 1;
    pub const ONE_PCID: u32 = 2;
}

/// Binds MOV to or from a control register.
pub(crate) fn bind_mov(i: &Instruction, op: &mut Op) -> Option<Handler> {
    op.class = Class::System;
    let to = i.op0_register().is_cr();
    let number = if to { op.r0 } else { op.r1 };
    if !matches!(number, 0 | 2 | 3 | 4 | 8) {
        return None;
    }
    Some(if to { write } else { read })
}

fn read(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.privileged()?;
    cpu.control_read_exit(op)?;
    let value = match op.r1 {
        0 => cpu.cr0_read(),
        2 => cpu.arch.cr2,
        3 => cpu.arch.cr3,
        4 => cpu.cr4_read(),
        _ => match cpu.shadow_cr8() {
            Some(value) => u64::from(value),
            None => {
                cpu.note_device(DeviceAccess::TaskPriority { write: false });
                let who = cpu.ident();
                let value = cpu.wiring.bus().cr8(who);
                u64::from(value)
            }
        },
    };
    cpu.set_sized(op.r0, op.size, value);
    Ok(Flow::End)
}

fn write(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.privileged()?;
    let value = if cpu.engine.long64 { get1::<u64>(cpu, op) } else { u64::from(get1::<u32>(cpu, op)) };
    let value = cpu.control_write(op, value)?;
    move_to(cpu, op.r0, value)?;
    Ok(Flow::End)
}

/// Returns true if one root table follows the other in memory, as those of a program with and without the kernel do in Linux
/// (page-table isolation).
fn is_isolation(from: u64, to: u64) -> bool {
    (from ^ to) & page::ADDRESS == page::PAGE
}

/// Executes MOV to a control register, after the checks for faults and exits.
fn move_to(cpu: &mut Cpu, number: u8, value: u64) -> Exec {
    let mut charged = u32::from(number);
    // Charged first, because the new CR3 or CR0 changes the address space.
    match number {
        0 => cpu.check_cr0(value)?,
        3 => {
            cpu.check_cr3(value)?;
            if cpu.arch.cr4 & CR4_PCIDE != 0 && value & CR3_NO_FLUSH != 0 {
                charged = CHARGE_CR3_NO_FLUSH;
            }
        }
        4 => cpu.check_cr4(value)?,
        8 if value & !15 != 0 => return Err(cpu.gp(0)),
        _ => {}
    }
    let kind = Kind::new(Family::ControlRegister, charged);
    match number {
        0 => cpu.write_cr0(value, kind)?,
        2 => {
            cpu.charge(kind, 1);
            cpu.arch.cr2 = value;
        }
        3 => {
            cpu.check_pdptes(value)?;
            match is_isolation(cpu.arch.cr3, value) {
                true => cpu.charge_mitigation(kind),
                false => cpu.charge(kind, 1),
            }
            cpu.load_cr3(value)?;
            cpu.target_loaded(value);
        }
        4 => cpu.write_cr4(value, kind)?,
        _ if cpu.set_shadow_cr8(value as u8) => cpu.charge(kind, 1),
        _ => {
            cpu.charge(kind, 1);
            cpu.note_device(DeviceAccess::TaskPriority { write: true });
            let who = cpu.ident();
            cpu.wiring.bus().set_cr8(who, value as u8);
            cpu.attend(attention::BUS);
        }
    }
    Ok(())
}

impl Cpu {
    /// Writes a control register from outside: has the effect of a MOV at the current instruction, including its
    /// charge. Returns false, without any change, if the MOV would fault. The processor must not be in the middle of a
    /// [block](Cpu::abandon_block).
    pub fn write_control(&mut self, number: u8, value: u64) -> bool {
        let moved = matches!(number, 0 | 2 | 3 | 4 | 8) && move_to(self, number, value).is_ok();
        if !moved {
            self.engine.fault = Cause::None;
        }
        moved
    }

    /// Returns the address bits that exceed the model's physical address width.
    pub(crate) fn beyond_physical(&self) -> u64 {
        let bits = u32::from(self.wiring.model.physical_bits).min(52);
        !((1u64 << bits) - 1)
    }

    fn check_cr0(&mut self, value: u64) -> Exec {
        let bad = value >> 32 != 0
            || (value & CR0_PG != 0 && value & CR0_PE == 0)
            || (value & CR0_NW != 0 && value & CR0_CD == 0);
        // Control-flow enforcement requires write protection.
        let bad = bad || (value & CR0_WP == 0 && self.arch.cr4 & CR4_CET != 0);
        let fixed = self.arch.vmx.cr0_fixed();
        if bad || value & fixed != fixed {
            return Err(self.gp(0));
        }
        let turned = (self.arch.cr0 ^ value) & CR0_PG != 0;
        if turned && value & CR0_PG != 0 && self.arch.msr.efer & EFER_LME != 0 {
            let cs_long = self.arch.seg[usize::from(seg::CS)].rights & rights::L != 0;
            let narrow_task = self.arch.tr.rights & 0xf <= 3;
            if self.arch.cr4 & CR4_PAE == 0 || cs_long || narrow_task {
                return Err(self.gp(0));
            }
        }
        if turned && value & CR0_PG == 0 && (self.engine.long64 || self.arch.cr4 & CR4_PCIDE != 0) {
            return Err(self.gp(0));
        }
        Ok(())
    }

    /// Writes CR0 with a value that [`Cpu::check_cr0`] has accepted.
    fn write_cr0(&mut self, value: u64, kind: Kind) -> Exec {
        const KEPT: u64 = CR0_PE | CR0_MP | CR0_EM | CR0_TS | CR0_NE | CR0_WP | CR0_AM | CR0_NW | CR0_CD | CR0_PG;
        let value = (value & KEPT) | CR0_ET;
        let changed = self.arch.cr0 ^ value;
        let pae = value & CR0_PG != 0 && self.arch.cr4 & CR4_PAE != 0 && self.arch.msr.efer & EFER_LME == 0;
        if pae && changed & (CR0_PG | CR0_CD | CR0_NW) != 0 {
            self.load_pdptes(self.arch.cr3)?;
        }
        self.charge(kind, 1);
        self.arch.cr0 = value;
        if changed & CR0_PG != 0 {
            if value & CR0_PG == 0 {
                self.arch.msr.efer &= !EFER_LMA;
            } else if self.arch.msr.efer & EFER_LME != 0 {
                self.arch.msr.efer |= EFER_LMA;
            }
        }
        if changed & CR0_PE != 0 {
            self.arch.cpl = 0;
        }
        if changed & (CR0_PG | CR0_PE) != 0 {
            self.flush_everything();
        }
        self.mapping_changed();
        self.mode_changed();
        Ok(())
    }

    /// Flushes all translations; charged.
    pub(crate) fn flush_everything(&mut self) {
        self.flush_tlb(Flush::All);
        self.charge(Kind::new(Family::TlbFlush, flush::ALL), 1);
    }

    fn check_cr3(&mut self, value: u64) -> Exec {
        if !self.long_mode() {
            return Ok(());
        }
        let allowed = if self.arch.cr4 & CR4_PCIDE != 0 { CR3_NO_FLUSH } else { 0 };
        if value & self.beyond_physical() & !allowed != 0 { Err(self.gp(0)) } else { Ok(()) }
    }

    /// Checks the PDPTEs: with PAE paging outside long mode, a MOV to CR3 loads them, which may fault.
    fn check_pdptes(&mut self, value: u64) -> Exec {
        if self.arch.cr0 & CR0_PG != 0 && self.arch.cr4 & CR4_PAE != 0 && !self.long_mode() {
            self.load_pdptes(value)?;
        }
        Ok(())
    }

    /// Returns true if a PDPTE is not present, or has no reserved bit set.
    pub(crate) fn good_pdpte(&self, entry: u64) -> bool {
        entry & page::P == 0 || entry & (page::RESERVED_PDPTE | self.beyond_physical()) == 0
    }

    /// Reads the four PDPTEs. Reserved bits in a present one raise #GP, and nothing has changed then.
    pub(crate) fn load_pdptes(&mut self, cr3: u64) -> Exec {
        let base = cr3 & CR3_ADDRESS_PAE;
        let mut entries = [0u64; 4];
        for (i, entry) in entries.iter_mut().enumerate() {
            *entry = self.read_pdpte(base + 8 * i as u64)?;
            if !self.good_pdpte(*entry) {
                return Err(self.gp(0));
            }
        }
        self.arch.pdpte = entries;
        Ok(())
    }

    /// Loads CR3, and flushes the translations that this invalidates. PDPTEs are loaded if the paging mode has them.
    pub(crate) fn load_cr3(&mut self, value: u64) -> Exec {
        self.check_pdptes(value)?;
        let tagged = self.arch.cr4 & CR4_PCIDE != 0;
        self.arch.cr3 = value & !CR3_NO_FLUSH;
        if !self.long_mode() {
            self.arch.cr3 &= 0xffff_ffff;
        }
        let flushed = if !tagged {
            self.flush_tlb(Flush::Pcid(0));
            self.charge(Kind::new(Family::TlbFlush, flush::NON_GLOBAL), 1);
            Some(0)
        } else if value & CR3_NO_FLUSH == 0 {
            let pcid = (value & CR3_PCID) as u16;
            self.flush_tlb(Flush::Pcid(pcid));
            self.charge(Kind::new(Family::TlbFlush, flush::ONE_PCID), 1);
            Some(pcid)
        } else {
            None
        };
        self.space_changed(flushed);
        self.origin_changed();
        Ok(())
    }

    /// Returns the bits of CR4 that exist according to CPUID.
    pub(crate) fn cr4_bits(&self) -> u64 {
        use Capability::*;
        const BITS: &[(Capability, u64)] = &[
            (Vme, CR4_VME | CR4_PVI),
            (De, CR4_DE),
            (Pse, CR4_PSE),
            (Pae, CR4_PAE),
            (Mce, CR4_MCE),
            (Pge, CR4_PGE),
            (Fxsr, CR4_OSFXSR),
            (Sse, CR4_OSXMMEXCPT),
            (Umip, CR4_UMIP),
            (La57, CR4_LA57),
            (Vmx, CR4_VMXE),
            (FsGsBase, CR4_FSGSBASE),
            (Pcid, CR4_PCIDE),
            (Xsave, CR4_OSXSAVE),
            (Smep, CR4_SMEP),
            (Smap, CR4_SMAP),
            (Pku, CR4_PKE),
            (Pks, CR4_PKS),
            (CetSs, CR4_CET),
            (CetIbt, CR4_CET),
        ];
        let always = CR4_TSD | CR4_PCE;
        let there =
            BITS.iter().filter(|(f, _)| self.wiring.capabilities.has(*f)).fold(always, |all, (_, bits)| all | bits);
        there & !self.hidden_cr4()
    }

    fn check_cr4(&mut self, value: u64) -> Exec {
        // VMX operation fixes CR4.VMXE, even if the model does not report VMX.
        let fixed = if self.arch.vmx.active || self.arch.vmx.operation.is_on() { CR4_VMXE } else { 0 };
        if value & fixed != fixed {
            return Err(self.gp(0));
        }
        let long = self.long_mode();
        let turned = self.arch.cr4 ^ value;
        let bad = value & !(self.cr4_bits() | fixed) != 0
            || (long && value & CR4_PAE == 0)
            || (long && turned & CR4_LA57 != 0)
            || (value & CR4_CET != 0 && self.arch.cr0 & CR0_WP == 0)
            || (turned & value & CR4_PCIDE != 0 && (!long || self.arch.cr3 & CR3_PCID != 0));
        if bad { Err(self.gp(0)) } else { Ok(()) }
    }

    /// Writes CR4 with a value that [`Cpu::check_cr4`] has accepted.
    fn write_cr4(&mut self, value: u64, kind: Kind) -> Exec {
        let changed = self.arch.cr4 ^ value;
        let pae = self.arch.cr0 & CR0_PG != 0 && value & CR4_PAE != 0 && !self.long_mode();
        if pae && changed & (CR4_PAE | CR4_PGE | CR4_PSE | CR4_SMEP) != 0 {
            self.load_pdptes(self.arch.cr3)?;
        }
        self.charge(kind, 1);
        let old_pcid = self.pcid();
        self.arch.cr4 = value;
        let untagged = changed & !value & CR4_PCIDE != 0;
        if changed & (CR4_PGE | CR4_PAE | CR4_PSE | CR4_LA57) != 0 || untagged {
            self.flush_everything();
        } else if changed & value & CR4_SMEP != 0 {
            self.flush_tlb(Flush::Pcid(old_pcid));
            self.charge(Kind::new(Family::TlbFlush, flush::ONE_PCID), 1);
        }
        self.mapping_changed();
        self.mode_changed();
        Ok(())
    }
}

fn lmsw(cpu: &mut Cpu, value: u16, linear: Option<u64>) -> Exec<Flow> {
    // LMSW can set PE but not clear it, and affects no bits above TS.
    let low = CR0_MP | CR0_EM | CR0_TS;
    let value = match cpu.arch.vmx.active {
        true => cpu.guest_lmsw(value, linear)?,
        false => (cpu.arch.cr0 & !low) | u64::from(value) & (low | CR0_PE),
    };
    cpu.check_cr0(value)?;
    cpu.write_cr0(value, Kind::new(Family::ControlRegister, 0))?;
    Ok(Flow::End)
}

fn lmsw_register(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.privileged()?;
    let value = cpu.get::<u16>(op.r0);
    lmsw(cpu, value, None)
}

fn lmsw_memory(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.privileged()?;
    let value = cpu.load::<u16>(op)?;
    let linear = cpu.operand_linear(op, 2, false)?;
    lmsw(cpu, value, Some(linear))
}

impl Cpu {
    /// Raises #GP if CR4.UMIP is set and the CPL is not 0.
    pub(crate) fn umip(&mut self) -> Exec {
        if self.arch.cr4 & CR4_UMIP != 0 && self.arch.cpl != 0 { Err(self.gp(0)) } else { Ok(()) }
    }
}

fn smsw_register(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.umip()?;
    cpu.set_sized(op.r0, op.size, cpu.cr0_read());
    Ok(Flow::End)
}

fn smsw_memory(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.umip()?;
    cpu.store::<u16>(op, cpu.cr0_read() as u16)?;
    Ok(Flow::End)
}

fn clts(cpu: &mut Cpu, _: &Op) -> Exec<Flow> {
    cpu.privileged()?;
    let clears = !cpu.arch.vmx.active || cpu.guest_clts()?;
    cpu.charge(Kind::new(Family::ControlRegister, 0), 1);
    if clears {
        cpu.arch.cr0 &= !CR0_TS;
    }
    Ok(Flow::End)
}
