//! The VM-execution controls of a machine, as KVM sets them.

use crate::config::VmConfig;
use crate::events::vector;
use crate::paravirt::page;
use crate::registers::Ownership;
use cpu::Cpu;
use cpu::capability::Capability;
use cpu::vmx::{Controls, IoBitmap, MsrBitmap};
use ledger::profile::Virtualization;
use std::sync::Arc;
use x86::msr;
use x86::vmx::{pin, primary, secondary};

/// The port used for I/O delays.
pub const DELAY_PORT: u16 = 0x80;

/// MSRs that the guest reads and writes without an exit: FS and GS base, KERNEL_GS_BASE, and the SYSENTER registers.
const PASSED_THROUGH: &[u32] =
    &[msr::SYSENTER_CS, msr::SYSENTER_ESP, msr::SYSENTER_EIP, msr::FS_BASE, msr::GS_BASE, msr::KERNEL_GS_BASE];
/// MSRs that the guest only reads without an exit: the time-stamp counter.
const READ_THROUGH: &[u32] = &[msr::TSC];

/// Bitmaps and constants shared by all virtual CPUs of a machine.
#[derive(Clone, Debug)]
pub struct Shared {
    io: Option<Arc<IoBitmap>>,
    msr: Option<Arc<MsrBitmap>>,
    secondary: bool,
    /// Number of the processor's CR3-target values that may be used.
    pub cr3_targets: usize,
}

impl Shared {
    /// Creates them for a configuration on a processor.
    pub fn new(config: &VmConfig, processor: &Virtualization) -> Self {
        // Without the paravirtual interface all ports exit, which needs no bitmap.
        let io = config.paravirt.then(|| {
            let mut bitmap = [0xff; 8192];
            bitmap[usize::from(DELAY_PORT) / 8] &= !(1 << (DELAY_PORT % 8));
            Arc::new(bitmap)
        });
        let mut msr = [0xff; 4096];
        for index in PASSED_THROUGH {
            pass_through(&mut msr, *index);
        }
        for index in READ_THROUGH {
            clear(&mut msr, *index, false);
        }
        Self {
            io,
            msr: processor.msr_bitmap.then(|| Arc::new(msr)),
            // Secondary controls were introduced with EPT and VPID.
            secondary: processor.ept || processor.vpid,
            cr3_targets: usize::from(processor.cr3_targets).min(page::ENTRIES),
        }
    }
}

/// Permits the guest to read and write a register without an exit.
pub fn pass_through(bitmap: &mut MsrBitmap, index: u32) {
    clear(bitmap, index, false);
    clear(bitmap, index, true);
}

fn clear(bitmap: &mut MsrBitmap, index: u32, write: bool) {
    let half = if index >= msr::BITMAP_HIGH { msr::BITMAP_PART } else { 0 };
    let start = half + if write { 2 * msr::BITMAP_PART } else { 0 };
    let bit = (index % msr::BITMAP_REGISTERS) as usize;
    bitmap[start + bit / 8] &= !(1 << (bit % 8));
}

/// Returns the controls that are constant for a virtual CPU. Masks and shadows are set at each entry.
pub fn fixed(config: &VmConfig, shared: &Shared, ownership: &Ownership, cpu: &Cpu) -> Controls {
    let tdp = config.mmu.is_tdp();
    let has = |capability| cpu.wiring.capabilities.has(capability);
    let mut first = primary::HLT
        | primary::MWAIT
        | primary::MONITOR
        | primary::RDPMC
        | primary::MOV_DR
        | primary::CR8_LOAD
        | primary::CR8_STORE
        | primary::TSC_OFFSETTING;
    first |= if shared.msr.is_some() { primary::MSR_BITMAPS } else { 0 };
    first |= if shared.io.is_some() { primary::IO_BITMAPS } else { primary::UNCONDITIONAL_IO };
    if !tdp {
        first |= primary::CR3_LOAD | primary::CR3_STORE | primary::INVLPG;
    }
    let second = [
        (secondary::EPT, tdp),
        (secondary::UNRESTRICTED_GUEST, config.unrestricted_guest),
        (secondary::VPID, config.vpid),
        (secondary::RDTSCP, has(Capability::Rdtscp)),
        (secondary::INVPCID, has(Capability::Invpcid)),
        (secondary::XSAVES, has(Capability::Xsaves)),
        (secondary::WBINVD, true),
    ];
    let second = second.iter().filter(|(_, on)| *on && shared.secondary).fold(0, |all, (bit, _)| all | bit);
    if second != 0 {
        first |= primary::SECONDARY;
    }
    let intercepted = [vector::UD, vector::MC, vector::DB, vector::AC];
    let mut exceptions = intercepted.iter().fold(0, |all, vector| all | 1 << vector);
    if !tdp {
        exceptions |= 1 << vector::PF;
    }
    Controls {
        pin: pin::EXTERNAL_INTERRUPT | pin::NMI | pin::VIRTUAL_NMIS,
        primary: first,
        secondary: second,
        exception_bitmap: exceptions,
        cr0_mask: !ownership.cr0,
        cr4_mask: !ownership.cr4,
        io_bitmap: shared.io.clone(),
        msr_bitmap: shared.msr.clone(),
        // Tag 0 belongs to the hypervisor.
        vpid: if config.vpid { (cpu.wiring.index % 0xffff) as u16 + 1 } else { 0 },
        ..Controls::default()
    }
}
