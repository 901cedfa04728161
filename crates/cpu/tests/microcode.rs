//! Registers that microcode updates add exist with them, and not without them.

use cpu::bus::NoDevices;
use cpu::{Cpu, Model};
use ledger::Recorder;
use ledger::profile::Profile;
use std::sync::{Arc, Mutex};
use testkit::{CODE, Machine, set_long_mode};
use x86::msr::*;
use x86::reg;

fn machine(name: &str) -> Machine {
    let mut machine = Machine::long64(0);
    let profile = Profile::find(name).unwrap();
    let model = Model::of(&profile, profile.costs(), profile.geometry(), &profile.cpuid());
    let (ram, root) = (machine.cpu.wiring.ram.clone(), machine.cpu.arch.cr3);
    machine.cpu = Cpu::new(0, Arc::new(model), ram, Arc::new(Mutex::new(NoDevices)), Recorder::default());
    set_long_mode(&mut machine.cpu, root, 0, true);
    machine
}

/// Reads a register; `None` for #GP.
fn read(machine: &mut Machine, index: u32) -> Option<u64> {
    machine.cpu.arch.rip = CODE;
    machine.cpu.arch.gpr[usize::from(reg::RCX)] = index.into();
    machine.execute(|a| a.rdmsr()).ok()?;
    Some(machine.cpu.reg(reg::RDX) << 32 | machine.cpu.reg(reg::RAX))
}

/// Writes a register. Returns false for #GP.
fn write(machine: &mut Machine, index: u32, value: u64) -> bool {
    machine.cpu.arch.rip = CODE;
    let gpr = &mut machine.cpu.arch.gpr;
    gpr[usize::from(reg::RCX)] = index.into();
    gpr[usize::from(reg::RAX)] = value & 0xffff_ffff;
    gpr[usize::from(reg::RDX)] = value >> 32;
    machine.execute(|a| a.wrmsr()).is_ok()
}

#[test]
fn registers_of_a_feature_exist_with_it() {
    for (name, there) in [("skx", true), ("skx,unpatched", false), ("hsw", true), ("hsw,unpatched", false)] {
        let mut m = machine(name);
        for (index, value) in [(SPEC_CTRL, 7), (PRED_CMD, 1), (FLUSH_CMD, 1)] {
            assert_eq!(write(&mut m, index, value), there, "{name} {index:#x}");
            assert!(!write(&mut m, index, 1 << 8), "{name} {index:#x}");
        }
        assert_eq!(read(&mut m, MCU_OPT_CTRL).is_some(), name == "skx", "{name}");
        assert_eq!(read(&mut m, ARCH_CAPABILITIES).is_some(), name == "skx", "{name}");
    }
    for (name, sbpb) in [("zen3", true), ("zen3,unpatched", false)] {
        let mut m = machine(name);
        assert!(write(&mut m, PRED_CMD, PRED_CMD_IBPB));
        assert_eq!(write(&mut m, PRED_CMD, PRED_CMD_SBPB), sbpb);
    }
}

#[test]
fn the_revision_is_where_the_vendor_has_it() {
    assert_eq!(read(&mut machine("skx"), BIOS_SIGN_ID), Some(0x200_7006 << 32));
    assert_eq!(read(&mut machine("skx,unpatched"), BIOS_SIGN_ID), Some(0x200_0035 << 32));
    assert_eq!(read(&mut machine("zen3"), BIOS_SIGN_ID), Some(0xa00_11d7));
}

#[test]
fn a_locked_mitigation_of_gather_data_sampling_stays_enabled() {
    let mut m = machine("icx");
    assert!(!write(&mut m, MCU_OPT_CTRL, 1));
    assert!(write(&mut m, MCU_OPT_CTRL, MCU_OPT_CTRL_GDS_MITG_DIS));
    assert_eq!(read(&mut m, MCU_OPT_CTRL), Some(MCU_OPT_CTRL_GDS_MITG_DIS));
    assert!(write(&mut m, MCU_OPT_CTRL, MCU_OPT_CTRL_GDS_MITG_DIS | MCU_OPT_CTRL_GDS_MITG_LOCK));
    assert!(write(&mut m, MCU_OPT_CTRL, MCU_OPT_CTRL_GDS_MITG_DIS));
    assert_eq!(read(&mut m, MCU_OPT_CTRL), Some(MCU_OPT_CTRL_GDS_MITG_LOCK));
    m.cpu.reset(false);
    assert_eq!(m.cpu.arch.msr.mcu_opt_ctrl, 0);
}
