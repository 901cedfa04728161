//! The fields of a VMCS: a table in which each field has an index. VMREAD, VMWRITE, the format in memory, entries,
//! exits and debuggers use it.

use super::capability::VmxCapabilities;
use x86::vmx::vmcs::*;
use x86::vmx::{entry, pin, primary, secondary};

/// Control without which a field does not exist: capability word and bit.
#[derive(Clone, Copy, Debug)]
enum Needs {
    Nothing,
    Pin(u32),
    Primary(u32),
    Secondary(u32),
    Entry(u32),
    /// The processor lacks the feature of the field.
    Never,
}

/// Returns the condition for the existence of a field (SDM vol. 3, appendix B).
fn needs(encoding: u32) -> Needs {
    match encoding {
        VPID => Needs::Secondary(secondary::VPID),
        POSTED_INTERRUPT_VECTOR | POSTED_INTERRUPT_DESCRIPTOR => Needs::Pin(pin::POSTED_INTERRUPTS),
        EPTP_INDEX | VIRTUALIZATION_EXCEPTION_ADDRESS => Needs::Secondary(secondary::EPT_VIOLATION_VE),
        GUEST_INTERRUPT_STATUS | EOI_EXIT_BITMAP_0..=EOI_EXIT_BITMAP_3 => {
            Needs::Secondary(secondary::VIRTUAL_INTERRUPTS)
        }
        PML_INDEX | PML_ADDRESS => Needs::Secondary(secondary::PML),
        MSR_BITMAP => Needs::Primary(primary::MSR_BITMAPS),
        VIRTUAL_APIC_ADDRESS | TPR_THRESHOLD => Needs::Primary(primary::TPR_SHADOW),
        APIC_ACCESS_ADDRESS => Needs::Secondary(secondary::APIC_ACCESSES),
        VM_FUNCTION_CONTROLS | EPTP_LIST_ADDRESS => Needs::Secondary(secondary::VM_FUNCTIONS),
        EPT_POINTER | GUEST_PHYSICAL_ADDRESS | GUEST_PDPTE0..=GUEST_PDPTE3 => Needs::Secondary(secondary::EPT),
        VMREAD_BITMAP | VMWRITE_BITMAP => Needs::Secondary(secondary::VMCS_SHADOWING),
        XSS_EXIT_BITMAP => Needs::Secondary(secondary::XSAVES),
        TSC_MULTIPLIER => Needs::Secondary(secondary::TSC_SCALING),
        GUEST_PAT | HOST_PAT => Needs::Entry(entry::LOAD_PAT),
        GUEST_EFER | HOST_EFER => Needs::Entry(entry::LOAD_EFER),
        SECONDARY_CONTROLS => Needs::Primary(primary::SECONDARY),
        PLE_GAP | PLE_WINDOW => Needs::Secondary(secondary::PAUSE_LOOP),
        PREEMPTION_TIMER_VALUE => Needs::Pin(pin::PREEMPTION_TIMER),
        HLAT_PREFIX_SIZE | LAST_PID_POINTER_INDEX | ENCLS_EXIT_BITMAP | SUB_PAGE_PERMISSION_TABLE => Needs::Never,
        GUEST_PERF_GLOBAL_CTRL | GUEST_BNDCFGS | GUEST_RTIT_CTL | GUEST_PKRS => Needs::Never,
        HOST_PERF_GLOBAL_CTRL | HOST_PKRS => Needs::Never,
        GUEST_S_CET..=GUEST_INTERRUPT_SSP_TABLE_ADDRESS | HOST_S_CET..=HOST_INTERRUPT_SSP_TABLE_ADDRESS => {
            Needs::Entry(entry::LOAD_CET)
        }
        _ => Needs::Nothing,
    }
}

/// Number of fields: those in [`NAMES`].
pub const COUNT: usize = NAMES.len();

/// Marks encodings without a field.
const NOBODY: u8 = u8::MAX;

/// Indices of the fields in [`NAMES`], by the number of their encoding.
static PLACES: [u8; NUMBERS] = {
    assert!(COUNT < NOBODY as usize);
    let mut places = [NOBODY; NUMBERS];
    let mut at = 0;
    while at < COUNT {
        match number_of(NAMES[at].0) {
            Some(number) => places[number] = at as u8,
            None => panic!("an encoding that has no number"),
        }
        at += 1;
    }
    places
};

/// Returns the index in [`NAMES`] of the field with an encoding, whose bit for the upper half must be clear.
#[inline]
pub fn place(encoding: u32) -> Option<usize> {
    let place = PLACES[number_of(encoding)?];
    (place != NOBODY).then_some(usize::from(place))
}

/// Returns true if a processor with these capabilities has a field.
pub fn exists(encoding: u32, capabilities: &VmxCapabilities) -> bool {
    match needs(encoding) {
        Needs::Nothing => true,
        Needs::Never => false,
        Needs::Pin(control) => capabilities.pin.offers(control),
        Needs::Primary(control) => capabilities.primary.offers(control),
        Needs::Secondary(control) => capabilities.secondary.offers(control),
        Needs::Entry(control) => capabilities.entry.offers(control),
    }
}

/// Returns the highest index of the existing fields.
pub(super) fn highest_index(capabilities: &VmxCapabilities) -> u64 {
    let there = NAMES.iter().filter(|(encoding, _)| exists(*encoding, capabilities));
    there.map(|(encoding, _)| u64::from(encoding >> INDEX_SHIFT & INDEX_MASK)).max().unwrap_or(0)
}

/// Returns the mask of a field's bits.
#[inline]
pub const fn mask(encoding: u32) -> u64 {
    match encoding >> WIDTH_SHIFT & 3 {
        width::WORD => 0xffff,
        width::LONG => 0xffff_ffff,
        _ => u64::MAX,
    }
}

/// Returns true if a field is read-only to software.
pub const fn is_information(encoding: u32) -> bool {
    encoding >> TYPE_SHIFT & 3 == kind::INFORMATION
}
