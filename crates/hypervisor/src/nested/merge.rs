//! vmcs02: vmcs12 combined with L0's requirements (KVM's `prepare_vmcs02`), field by field.

use cpu::vmx::{Controls, MsrBitmap};
use std::sync::Arc;
use x86::msr::{BITMAP_PART, X2APIC_EOI, X2APIC_FIRST, X2APIC_LAST, X2APIC_SELF_IPI, X2APIC_TPR};
use x86::vector;
use x86::vmx::{pin, primary, secondary};

/// Pin-based controls that L2 has at L1's request. External interrupts and NMIs always exit to L0; posted interrupts
/// are processed in software.
const PIN: u32 = pin::PREEMPTION_TIMER;
/// Primary controls that L2 has at L1's request. L0 handles windows, bitmaps, the TPR shadow and time itself.
const PRIMARY: u32 = primary::HLT
    | primary::INVLPG
    | primary::MWAIT
    | primary::RDPMC
    | primary::RDTSC
    | primary::CR3_LOAD
    | primary::CR3_STORE
    | primary::CR8_LOAD
    | primary::CR8_STORE
    | primary::MOV_DR
    | primary::UNCONDITIONAL_IO
    | primary::MONITOR_TRAP
    | primary::MONITOR
    | primary::PAUSE;
/// Secondary controls that L2 has at L1's request.
const SECONDARY: u32 = secondary::RDTSCP
    | secondary::INVPCID
    | secondary::XSAVES
    | secondary::APIC_ACCESSES
    | secondary::X2APIC
    | secondary::APIC_REGISTERS
    | secondary::VIRTUAL_INTERRUPTS
    | secondary::DESCRIPTOR_TABLE
    | secondary::WBINVD
    | secondary::RDRAND
    | secondary::RDSEED
    | secondary::PAUSE_LOOP
    | secondary::TSC_SCALING
    | secondary::VM_FUNCTIONS;
/// Secondary controls of vmcs01 that serve L1 itself, not L0.
const SECONDARY_OF_L1: u32 = secondary::RDTSCP | secondary::INVPCID | secondary::XSAVES | secondary::VMCS_SHADOWING;

/// Pages of L1 to which vmcs12 refers, at their addresses in L0; `None` if there is no memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Pages {
    /// The virtual-APIC page.
    pub virtual_apic: Option<u64>,
    /// The APIC-access page.
    pub apic_access: Option<u64>,
    /// The MSR bitmaps.
    pub msr_bitmap: Option<Box<MsrBitmap>>,
}

/// Returns the time-stamp counter of L2 relative to the processor's: offset and multiplier.
fn time(inner: &Controls, offset: u64) -> (u64, u64) {
    if !inner.primary(primary::TSC_OFFSETTING) {
        return (offset, 1 << 48);
    }
    if !inner.secondary(secondary::TSC_SCALING) {
        return (offset.wrapping_add(inner.tsc_offset), 1 << 48);
    }
    // L1's offset may be negative.
    let scaled = (i128::from(offset as i64) * i128::from(inner.tsc_multiplier)) >> 48;
    ((scaled as u64).wrapping_add(inner.tsc_offset), inner.tsc_multiplier)
}

/// Returns the MSR bitmaps of L2: the union of the exits that both levels request.
fn msr_bitmap(outer: &Controls, inner: &Controls, pages: &Pages) -> Option<Arc<MsrBitmap>> {
    let wanted = pages.msr_bitmap.as_ref().filter(|_| inner.primary(primary::MSR_BITMAPS))?;
    let mut merged = outer.msr_bitmap.clone()?;
    let own = Arc::make_mut(&mut merged);
    let virtualized = |index: u32, write: bool| {
        let interrupts = inner.secondary(secondary::VIRTUAL_INTERRUPTS);
        let registers = inner.secondary(secondary::APIC_REGISTERS);
        inner.secondary(secondary::X2APIC)
            && match (index, write) {
                (X2APIC_TPR, _) => true,
                (X2APIC_EOI | X2APIC_SELF_IPI, true) => interrupts,
                (_, false) => registers,
                _ => false,
            }
    };
    for index in X2APIC_FIRST..=X2APIC_LAST {
        for write in [false, true] {
            let at = if write { 2 * BITMAP_PART } else { 0 } + (index >> 3) as usize;
            if virtualized(index, write) {
                own[at] &= !(1 << (index & 7));
            }
        }
    }
    own.iter_mut().zip(wanted.iter()).for_each(|(own, wanted)| *own |= wanted);
    Some(merged)
}

/// Returns vmcs02. `offset` is L0's time-stamp counter offset for L1, `tag` the VPID of L2.
pub(super) fn merged(outer: &Controls, inner: &Controls, pages: &Pages, offset: u64, tag: u16) -> Controls {
    let tdp = outer.secondary(secondary::EPT);
    let bitmap = msr_bitmap(outer, inner, pages);
    let mut first = outer.primary & !(primary::IO_BITMAPS | primary::MSR_BITMAPS) | primary::UNCONDITIONAL_IO;
    first |= inner.primary & PRIMARY;
    first |= if bitmap.is_some() { primary::MSR_BITMAPS } else { 0 };
    let mut second = outer.second() & !SECONDARY_OF_L1 | inner.second() & SECONDARY;
    match pages.virtual_apic.filter(|_| inner.primary(primary::TPR_SHADOW)) {
        // L0 intercepts CR8 because of the TPR, of which L2 has its own.
        Some(_) => {
            let own = inner.primary & (primary::CR8_LOAD | primary::CR8_STORE);
            first = first & !(primary::CR8_LOAD | primary::CR8_STORE) | own | primary::TPR_SHADOW;
        }
        // Without the page, L0 executes each access as one to absent memory.
        None => second &= !(secondary::X2APIC | secondary::APIC_REGISTERS | secondary::VIRTUAL_INTERRUPTS),
    }
    if pages.apic_access.is_none() {
        second &= !secondary::APIC_ACCESSES;
    }
    first |= if second != 0 { primary::SECONDARY } else { 0 };
    if tdp && inner.secondary(secondary::EPT) {
        second |= inner.second() & secondary::MODE_BASED_EXECUTE;
    }
    let faults = outer.exception_bitmap >> vector::PF & 1 != 0;
    let (tsc_offset, tsc_multiplier) = time(inner, offset);
    Controls {
        pin: outer.pin | inner.pin & PIN,
        primary: first,
        secondary: second,
        exit: outer.exit,
        entry: outer.entry,
        exception_bitmap: outer.exception_bitmap | inner.exception_bitmap,
        // A page fault that L0 does not intercept is filtered by L1's settings.
        pf_error_mask: if faults { 0 } else { inner.pf_error_mask },
        pf_error_match: if faults { 0 } else { inner.pf_error_match },
        cr0_mask: outer.cr0_mask | inner.cr0_mask,
        cr4_mask: outer.cr4_mask | inner.cr4_mask,
        cr3_targets: inner.cr3_targets,
        cr3_target_count: if tdp { inner.cr3_target_count } else { 0 },
        msr_bitmap: bitmap,
        xss_bitmap: inner.xss_bitmap,
        tsc_offset,
        tsc_multiplier,
        vpid: tag,
        ple_gap: inner.ple_gap,
        ple_window: inner.ple_window,
        virtual_apic: pages.virtual_apic.unwrap_or(0),
        apic_access: pages.apic_access.unwrap_or(0),
        tpr_threshold: inner.tpr_threshold,
        interrupt_status: inner.interrupt_status,
        eoi_exits: inner.eoi_exits,
        interruptibility: inner.interruptibility,
        activity: inner.activity,
        pending_debug: inner.pending_debug,
        ..Controls::default()
    }
}
