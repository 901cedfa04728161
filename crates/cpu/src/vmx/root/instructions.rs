//! VMX instructions in root mode (SDM vol. 3, chapter 30). In non-root mode they exit, except VMREAD and VMWRITE of a
//! shadow VMCS.

use super::super::capability::CR0_FIXED;
use super::super::fields::{exists, is_information, mask, place};
use super::super::vmcs::{Vmcs, field_address, store_launch_state};
use super::super::{Invept, Invvpid};
use super::operation::{NO_VMCS, Operation};
use crate::exec;
use crate::fault::{Exec, Flow};
use crate::op::{Handler, Op};
use crate::row::Row;
use crate::state::Cpu;
use iced_x86::Mnemonic::*;
use ledger::{Class, Family, Kind};
use x86::control::*;
use x86::flags::{CF, ZF};
use x86::msr::{FEATURE_CONTROL_LOCKED, FEATURE_CONTROL_VMX};
use x86::vmx::capability::{ept_vpid, misc};
use x86::vmx::{error, reason, region, secondary, vmcs};

/// Instruction table rows of VMX.
pub static ROWS: &[Row] = &[
    Row::end(Vmcall, Class::System, |_, _| Some(vmcall)).of_system(),
    Row::end(Vmmcall, Class::System, |_, _| Some(vmmcall)).of_system(),
    Row::end(Vmfunc, Class::System, |_, _| Some(vmfunc)).of_system(),
    Row::end(Vmclear, Class::System, |_, _| Some(vmclear)),
    Row::end(Vmlaunch, Class::System, |_, _| Some(vmlaunch)).of_system(),
    Row::end(Vmptrld, Class::System, |_, _| Some(vmptrld)),
    Row::end(Vmptrst, Class::System, |_, _| Some(vmptrst)),
    Row::end(Vmread, Class::System, |_, _| Some(vmread)),
    Row::end(Vmresume, Class::System, |_, _| Some(vmresume)).of_system(),
    Row::end(Vmwrite, Class::System, |_, op| from_register(op, vmwrite)),
    Row::end(Vmxoff, Class::System, |_, _| Some(vmxoff)).of_system(),
    Row::end(Vmxon, Class::System, |_, _| Some(vmxon)).of_system(),
    Row::end(Invept, Class::System, |_, op| from_register(op, invept)),
    Row::end(Invvpid, Class::System, |_, op| from_register(op, invvpid)),
];

/// Binds an instruction whose first operand is the register of ModRM.reg: it becomes the second operand, as in VMREAD
/// and in exit information (Reg2).
fn from_register(op: &mut Op, handler: Handler) -> Option<Handler> {
    std::mem::swap(&mut op.r0, &mut op.r1);
    Some(handler)
}

/// Outcome of a VMX instruction (SDM vol. 3, 30.2).
enum Outcome {
    Succeeded,
    /// VMfailInvalid.
    Invalid,
    /// VMfail: VMfailValid with a number of [`error`], or VMfailInvalid if there is no current VMCS.
    Failed(u32),
}

use Outcome::{Failed, Invalid, Succeeded};

impl Cpu {
    /// Reports the outcome of an instruction, and charges it.
    fn conclude(&mut self, instruction: u32, outcome: Outcome) -> Exec<Flow> {
        self.charge(Kind::new(Family::VmxInstruction, instruction), 1);
        self.report(outcome);
        Ok(Flow::End)
    }

    fn report(&mut self, outcome: Outcome) {
        let operation = &mut self.arch.vmx.operation;
        let image = match outcome {
            Succeeded => 0,
            Failed(number) if operation.current != NO_VMCS => {
                operation.vmcs.set(vmcs::INSTRUCTION_ERROR, u64::from(number));
                ZF
            }
            Failed(_) | Invalid => CF,
        };
        self.arch.lazy.load(image);
    }

    /// Returns true in a mode in which VMX instructions exist: 64-bit and protected mode, but not real, virtual-8086
    /// and compatibility mode.
    fn in_a_mode_of_vmx(&self) -> bool {
        let compatibility = self.long_mode() && !self.engine.long64;
        self.protected() && !self.v8086() && !compatibility
    }

    /// Raises #UD if VMX instructions do not exist, exits in non-root mode, and raises #GP unless the CPL is 0.
    /// `information` is the operand's part of the exit information.
    fn root_only(&mut self, op: &Op, reason: u32, information: Option<u32>) -> Exec {
        let on = self.arch.vmx.active || self.arch.vmx.operation.is_on();
        if self.wiring.capabilities.amd || !on || !self.in_a_mode_of_vmx() {
            return exec::undefined(self, op).map(|_| ());
        }
        if self.arch.vmx.active {
            return Err(match information {
                Some(information) => self.operand_exit(reason, op, information),
                None => self.exit_fault(reason, 0),
            });
        }
        self.privileged()
    }

    /// Reads a physical address from memory: the operand of VMXON, VMCLEAR and VMPTRLD. The inner error is an address
    /// that can't be a VMCS region.
    fn region_operand(&mut self, op: &Op) -> Exec<Result<u64, u64>> {
        let address = self.load::<u64>(op)?;
        Ok(if self.page_aligned(address) { Ok(address) } else { Err(address) })
    }

    /// Leaves VMX operation.
    fn leave_operation(&mut self) {
        self.release_vmcs();
        self.arch.vmx.operation = Operation::default();
        // INIT is no longer blocked.
        self.attend(crate::arch::attention::BUS);
    }
}

/// Returns the register operands for exit information.
fn registers(op: &Op) -> u32 {
    u32::from(op.r0) << 3 | u32::from(op.r1) << 28
}

fn vmxon(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let on = cpu.arch.vmx.active || cpu.arch.vmx.operation.is_on();
    if on {
        cpu.root_only(op, reason::VMXON, Some(registers(op)))?;
        return cpu.conclude(reason::VMXON, Failed(error::VMXON_IN_ROOT));
    }
    let enabled = cpu.arch.cr4 & CR4_VMXE != 0;
    let Some(capabilities) = cpu.software_capabilities().copied() else { return exec::undefined(cpu, op) };
    if !enabled || !cpu.in_a_mode_of_vmx() {
        return exec::undefined(cpu, op);
    }
    cpu.privileged()?;
    let control = FEATURE_CONTROL_LOCKED | FEATURE_CONTROL_VMX;
    if cpu.arch.cr0 & CR0_FIXED != CR0_FIXED || cpu.arch.msr.feature_control & control != control {
        return Err(cpu.gp(0));
    }
    let Ok(address) = cpu.region_operand(op)? else { return cpu.conclude(reason::VMXON, Invalid) };
    if cpu.region_revision(address) != capabilities.revision {
        return cpu.conclude(reason::VMXON, Invalid);
    }
    cpu.arch.vmx.operation = Operation { vmxon: Some(address), ..Operation::default() };
    cpu.wiring.ram.disarm_monitor(cpu.wiring.index);
    cpu.conclude(reason::VMXON, Succeeded)
}

fn vmxoff(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.root_only(op, reason::VMXOFF, None)?;
    cpu.leave_operation();
    cpu.conclude(reason::VMXOFF, Succeeded)
}

fn vmclear(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.root_only(op, reason::VMCLEAR, Some(registers(op)))?;
    let outcome = match cpu.region_operand(op)? {
        Err(_) => Failed(error::VMCLEAR_ADDRESS),
        Ok(address) if Some(address) == cpu.arch.vmx.operation.vmxon => Failed(error::VMCLEAR_VMXON_POINTER),
        Ok(address) => {
            if address == cpu.arch.vmx.operation.current {
                cpu.release_vmcs();
            }
            if let Some(host) = cpu.region_written(address) {
                store_launch_state(&cpu.wiring.ram, host, false);
            }
            Succeeded
        }
    };
    cpu.conclude(reason::VMCLEAR, outcome)
}

fn vmptrld(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.root_only(op, reason::VMPTRLD, Some(registers(op)))?;
    let outcome = match cpu.region_operand(op)? {
        Err(_) => Failed(error::VMPTRLD_ADDRESS),
        Ok(address) if Some(address) == cpu.arch.vmx.operation.vmxon => Failed(error::VMPTRLD_VMXON_POINTER),
        Ok(address) => {
            let found = cpu.region_revision(address);
            let capabilities = *cpu.vmx_capabilities();
            let shadow = found & region::SHADOW != 0;
            let shadows = capabilities.secondary.offers(secondary::VMCS_SHADOWING);
            if found & !region::SHADOW != capabilities.revision || shadow && !shadows {
                Failed(error::VMPTRLD_REVISION)
            } else {
                if address != cpu.arch.vmx.operation.current {
                    cpu.release_vmcs();
                    cpu.arch.vmx.operation.vmcs = Vmcs::load(&cpu.wiring.ram, cpu.backing(address));
                    cpu.arch.vmx.operation.current = address;
                }
                Succeeded
            }
        }
    };
    cpu.conclude(reason::VMPTRLD, outcome)
}

fn vmptrst(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.root_only(op, reason::VMPTRST, Some(registers(op)))?;
    let current = cpu.arch.vmx.operation.current;
    cpu.store::<u64>(op, current)?;
    cpu.conclude(reason::VMPTRST, Succeeded)
}

/// Location of the fields for VMREAD and VMWRITE.
enum Holder {
    /// The current VMCS.
    Current,
    /// The shadow VMCS at this address.
    Memory(u64),
    /// The shadow VMCS of a hypervisor outside of the machine's memory.
    Shadow,
}

impl Cpu {
    fn holds_nothing(&self, holder: &Holder) -> bool {
        match holder {
            Holder::Current => self.arch.vmx.operation.current == NO_VMCS,
            Holder::Memory(region) => *region == NO_VMCS,
            Holder::Shadow => false,
        }
    }

    /// Returns the field at this index, or `otherwise` if it is not in memory.
    fn held_value(&self, holder: &Holder, place: usize, otherwise: u64) -> u64 {
        match (holder, &self.arch.vmx.controls.shadow_vmcs) {
            (Holder::Memory(region), _) => self.structure::<u64>(field_address(*region, place)).unwrap_or(otherwise),
            (Holder::Shadow, Some(shadow)) => shadow.vmcs.value(place),
            _ => self.arch.vmx.operation.vmcs.value(place),
        }
    }

    /// Returns true if VMREAD or VMWRITE (`which` of the bitmaps) of a field exits despite VMCS shadowing.
    pub(in crate::vmx) fn shadow_exits(&self, encoding: u64, which: usize) -> bool {
        if !self.arch.vmx.controls.secondary(secondary::VMCS_SHADOWING) || encoding >> 15 != 0 {
            return true;
        }
        if let Some(shadow) = &self.arch.vmx.controls.shadow_vmcs {
            return !shadow.has(encoding, which);
        }
        let address = self.arch.vmx.controls.shadow_bitmaps[which] + (encoding >> 3);
        self.structure::<u8>(address).is_none_or(|byte| byte >> (encoding & 7) & 1 != 0)
    }

    /// Performs the common checks of VMREAD and VMWRITE, and returns the VMCS that they access.
    fn field_access(&mut self, op: &Op, reason: u32, encoding: u64, which: usize) -> Exec<Holder> {
        if self.arch.vmx.active && !self.shadow_exits(encoding, which) {
            if self.wiring.capabilities.amd || !self.in_a_mode_of_vmx() {
                return exec::undefined(self, op).map(|_| Holder::Current);
            }
            self.privileged()?;
            let controls = &self.arch.vmx.controls;
            return Ok(match controls.shadow_vmcs {
                Some(_) => Holder::Shadow,
                None => Holder::Memory(controls.link_pointer),
            });
        }
        self.root_only(op, reason, Some(registers(op)))?;
        Ok(Holder::Current)
    }

    /// Returns the field with an encoding, if the processor has it: its encoding without the bit for the upper half,
    /// its index, and that bit.
    fn field(&self, encoding: u64) -> Option<(u32, usize, bool)> {
        let encoding = u32::try_from(encoding).ok()?;
        let high = encoding & vmcs::HIGH != 0;
        let whole = encoding & !vmcs::HIGH;
        let quad = encoding >> vmcs::WIDTH_SHIFT & 3 == vmcs::width::QUAD;
        let place = place(whole)?;
        let capabilities = self.software_capabilities()?;
        (exists(whole, capabilities) && (quad || !high)).then_some((whole, place, high))
    }

    /// Truncates an operand to the width of a register.
    fn natural(&self, value: u64) -> u64 {
        if self.engine.long64 { value } else { value & 0xffff_ffff }
    }
}

fn vmread(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let encoding = cpu.natural(cpu.reg(op.r1));
    let holder = cpu.field_access(op, reason::VMREAD, encoding, 0)?;
    if cpu.holds_nothing(&holder) {
        return cpu.conclude(reason::VMREAD, Invalid);
    }
    let Some((_, place, high)) = cpu.field(encoding) else {
        return cpu.conclude(reason::VMREAD, Failed(error::UNSUPPORTED_FIELD));
    };
    let value = cpu.held_value(&holder, place, u64::MAX);
    let value = if high { value >> 32 } else { value };
    match (op.has(Op::MEM), cpu.engine.long64) {
        (true, true) => cpu.store::<u64>(op, value)?,
        (true, false) => cpu.store::<u32>(op, value as u32)?,
        (false, true) => cpu.set::<u64>(op.r0, value),
        (false, false) => cpu.set::<u32>(op.r0, value as u32),
    }
    cpu.conclude(reason::VMREAD, Succeeded)
}

fn vmwrite(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let memory = op.has(Op::MEM);
    let encoding = cpu.natural(cpu.reg(op.r1));
    let holder = cpu.field_access(op, reason::VMWRITE, encoding, 1)?;
    if cpu.holds_nothing(&holder) {
        return cpu.conclude(reason::VMWRITE, Invalid);
    }
    let Some((whole, place, high)) = cpu.field(encoding) else {
        return cpu.conclude(reason::VMWRITE, Failed(error::UNSUPPORTED_FIELD));
    };
    let anything = cpu.software_capabilities().is_some_and(|c| c.has_misc(misc::VMWRITE_ANY));
    if is_information(whole) && !anything {
        return cpu.conclude(reason::VMWRITE, Failed(error::VMWRITE_READ_ONLY));
    }
    let value = match (memory, cpu.engine.long64) {
        (true, true) => cpu.load::<u64>(op)?,
        (true, false) => u64::from(cpu.load::<u32>(op)?),
        (false, _) => cpu.natural(cpu.reg(op.r0)),
    };
    let old = cpu.held_value(&holder, place, 0);
    let value = match (high, cpu.engine.long64) {
        (true, _) => old & 0xffff_ffff | value << 32,
        // Outside 64-bit mode the upper half of a field is written separately, and cleared by a write to the field.
        (false, _) => value & mask(whole),
    };
    match holder {
        Holder::Memory(region) => cpu.set_structure(field_address(region, place), value),
        Holder::Shadow => {
            if let Some(shadow) = &mut cpu.arch.vmx.controls.shadow_vmcs {
                shadow.vmcs.set(whole, value);
            }
        }
        Holder::Current => cpu.arch.vmx.operation.vmcs.set(whole, value),
    }
    cpu.conclude(reason::VMWRITE, Succeeded)
}

fn vmlaunch(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    enter(cpu, op, true)
}

fn vmresume(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    enter(cpu, op, false)
}

fn enter(cpu: &mut Cpu, op: &Op, launch: bool) -> Exec<Flow> {
    let reason = if launch { reason::VMLAUNCH } else { reason::VMRESUME };
    cpu.root_only(op, reason, None)?;
    if cpu.wiring.pmu.is_some() {
        // A list of MSRs may have counters.
        cpu.settled()?;
    }
    let current = cpu.arch.vmx.operation.current;
    let outcome = if current == NO_VMCS || cpu.region_revision(current) & region::SHADOW != 0 {
        Some(Invalid)
    } else if cpu.blocked_by_mov_ss() {
        Some(Failed(error::ENTRY_BLOCKED_BY_MOV_SS))
    } else {
        match (launch, cpu.arch.vmx.operation.vmcs.launched) {
            (true, true) => Some(Failed(error::VMLAUNCH_NOT_CLEAR)),
            (false, false) => Some(Failed(error::VMRESUME_NOT_LAUNCHED)),
            _ => cpu.enter_by_vmcs().err().map(Failed),
        }
    };
    if let Some(outcome) = outcome {
        return cpu.conclude(reason, outcome);
    }
    Ok(Flow::End)
}

/// Reads the operands of INVEPT and INVVPID: type and descriptor.
fn invalidation(cpu: &mut Cpu, op: &Op, reason: u32) -> Exec<(u64, [u64; 2])> {
    cpu.root_only(op, reason, Some(registers(op)))?;
    let kind = cpu.natural(cpu.reg(op.r1));
    let mut descriptor = [0; 16];
    cpu.load_bytes(op, &mut descriptor)?;
    let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| descriptor[at + i]));
    Ok((kind, [half(0), half(8)]))
}

fn invept(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    if !cpu.vmx_capabilities().has_ept_vpid(ept_vpid::INVEPT) {
        return exec::undefined(cpu, op);
    }
    let (kind, [eptp, _]) = invalidation(cpu, op, reason::INVEPT)?;
    let offered = *cpu.vmx_capabilities();
    let outcome = match kind {
        1 if offered.has_ept_vpid(ept_vpid::INVEPT_SINGLE) && cpu.valid_ept_pointer(eptp) => {
            cpu.invept(Invept::Single(eptp));
            Succeeded
        }
        2 if offered.has_ept_vpid(ept_vpid::INVEPT_ALL) => {
            cpu.invept(Invept::Global);
            Succeeded
        }
        _ => Failed(error::INVALIDATION_OPERAND),
    };
    cpu.conclude(reason::INVEPT, outcome)
}

fn invvpid(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    if !cpu.vmx_capabilities().has_ept_vpid(ept_vpid::INVVPID) {
        return exec::undefined(cpu, op);
    }
    let (kind, [vpid, linear]) = invalidation(cpu, op, reason::INVVPID)?;
    let offered = *cpu.vmx_capabilities();
    let tag = u16::try_from(vpid).ok();
    let what = match (kind, tag) {
        (0, Some(vpid)) if offered.has_ept_vpid(ept_vpid::INVVPID_ADDRESS) && vpid != 0 && cpu.canonical(linear) => {
            Some(Invvpid::Address { vpid, linear })
        }
        (1, Some(vpid)) if offered.has_ept_vpid(ept_vpid::INVVPID_SINGLE) && vpid != 0 => Some(Invvpid::Single(vpid)),
        (2, Some(_)) if offered.has_ept_vpid(ept_vpid::INVVPID_ALL) => Some(Invvpid::All),
        (3, Some(vpid)) if offered.has_ept_vpid(ept_vpid::INVVPID_RETAINING_GLOBALS) && vpid != 0 => {
            Some(Invvpid::RetainGlobals(vpid))
        }
        _ => None,
    };
    let outcome = match what {
        Some(what) => {
            cpu.invvpid(what);
            Succeeded
        }
        None => Failed(error::INVALIDATION_OPERAND),
    };
    cpu.conclude(reason::INVVPID, outcome)
}

fn vmcall(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    if cpu.wiring.capabilities.amd {
        return exec::undefined(cpu, op);
    }
    if cpu.arch.vmx.active {
        return Err(cpu.exit_fault(reason::VMCALL, 0));
    }
    cpu.root_only(op, reason::VMCALL, None)?;
    // Dual-monitor treatment is not supported.
    cpu.conclude(reason::VMCALL, Failed(error::VMCALL_IN_ROOT))
}

/// AMD's instruction with this opcode.
fn vmmcall(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    if !cpu.arch.vmx.active || !cpu.wiring.capabilities.amd {
        return exec::undefined(cpu, op);
    }
    Err(cpu.exit_fault(reason::VMCALL, 0))
}

fn vmfunc(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    if !cpu.arch.vmx.active || !cpu.arch.vmx.controls.secondary(secondary::VM_FUNCTIONS) {
        return exec::undefined(cpu, op);
    }
    if !cpu.vm_function() {
        return Err(cpu.exit_fault(reason::VMFUNC, 0));
    }
    cpu.charge(Kind::new(Family::VmxInstruction, reason::VMFUNC), 1);
    Ok(Flow::End)
}
