//! What a VMCS holds besides the registers: the controls of non-root mode, and the guest state that no register has.

use super::root::NO_VMCS;
use super::vmcs::ShadowVmcs;
use std::rc::Rc;
use x86::page::OFFSET;
use x86::vmx::{function, interruption, pin, primary, secondary};

/// I/O bitmaps A and B, one after the other.
pub type IoBitmap = [u8; 8192];
/// MSR bitmaps: reads of low MSRs, of high ones, writes of low ones, of high ones.
pub type MsrBitmap = [u8; 4096];

/// Bitmaps as bytes of a file.
mod bitmap {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::rc::Rc;

    pub fn serialize<S: Serializer, const N: usize>(bitmap: &Option<Rc<[u8; N]>>, to: S) -> Result<S::Ok, S::Error> {
        bitmap.as_ref().map(|bitmap| bitmap.as_slice()).serialize(to)
    }

    pub fn deserialize<'d, D: Deserializer<'d>, const N: usize>(from: D) -> Result<Option<Rc<[u8; N]>>, D::Error> {
        let Some(bytes) = Option::<Vec<u8>>::deserialize(from)? else { return Ok(None) };
        let length = bytes.len();
        let bitmap = <[u8; N]>::try_from(bytes).map_err(|_| D::Error::invalid_length(length, &"a whole bitmap"))?;
        Ok(Some(Rc::new(bitmap)))
    }
}

/// A list of MSRs in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MsrList {
    /// Physical address.
    pub address: u64,
    /// Entries.
    pub count: u32,
}

/// The lists of MSRs that transitions go through (SDM vol. 3, 24.7.2 and 24.8.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MsrLists {
    /// Stored on VM exits.
    pub exit_store: MsrList,
    /// Loaded on VM exits.
    pub exit_load: MsrList,
    /// Loaded on VM entries.
    pub entry_load: MsrList,
}

/// The controls, and the guest state that no register holds. The names are those of the SDM, vol. 3, 24.4 to 24.8.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Controls {
    /// Pin-based execution controls, see [`x86::vmx::pin`].
    pub pin: u32,
    /// Primary processor-based execution controls, see [`primary`].
    pub primary: u32,
    /// Secondary processor-based execution controls, see [`x86::vmx::secondary`]; only looked at with [`primary::SECONDARY`].
    pub secondary: u32,
    /// VM-exit controls, see [`x86::vmx::exit`].
    pub exit: u32,
    /// VM-entry controls, see [`x86::vmx::entry`]. An exit sets IA-32e mode guest to what EFER.LMA is then.
    pub entry: u32,
    /// Exceptions that exit, by vector.
    pub exception_bitmap: u32,
    /// Error-code bits of page faults that are compared.
    pub pf_error_mask: u32,
    /// What they are compared with: equal, and bit 14 of the bitmap decides; not equal, and its inverse does.
    pub pf_error_match: u32,
    /// Bits of CR0 that the host owns.
    pub cr0_mask: u64,
    /// What the guest reads in them.
    pub cr0_shadow: u64,
    /// Bits of CR4 that the host owns.
    pub cr4_mask: u64,
    /// What the guest reads in them.
    pub cr4_shadow: u64,
    /// Values that may be moved to CR3 without exit.
    pub cr3_targets: [u64; 4],
    /// How many of them count.
    pub cr3_target_count: u32,
    /// Ports that exit, with [`primary::IO_BITMAPS`], of a hypervisor outside the machine's memory.
    #[serde(with = "bitmap")]
    pub io_bitmap: Option<Rc<IoBitmap>>,
    /// If there is no [`Self::io_bitmap`], the physical addresses of I/O bitmaps A and B; none given: all ports exit.
    pub io_bitmap_addresses: Option<[u64; 2]>,
    /// MSRs that exit, with [`primary::MSR_BITMAPS`], of a hypervisor outside the machine's memory.
    #[serde(with = "bitmap")]
    pub msr_bitmap: Option<Rc<MsrBitmap>>,
    /// If there is no [`Self::msr_bitmap`], the physical address of the MSR bitmaps; none given: all MSRs exit.
    pub msr_bitmap_address: Option<u64>,
    /// XSAVES and XRSTORS components that exit.
    pub xss_bitmap: u64,
    /// Added to the time-stamp counter, with [`primary::TSC_OFFSETTING`].
    pub tsc_offset: u64,
    /// EPT pointer.
    pub eptp: u64,
    /// Tag of the guest's translations.
    pub vpid: u16,
    /// Pause-loop exiting: the most time-stamp cycles between two PAUSEs of one loop.
    pub ple_gap: u32,
    /// Pause-loop exiting: time-stamp cycles that a loop may take.
    pub ple_window: u32,
    /// VMX-preemption timer, in units that IA32_VMX_MISC gives.
    pub preemption_timer: u32,
    /// The TSC is multiplied by this, with 48 bits behind the binary point, before the offset is added.
    pub tsc_multiplier: u64,
    /// The physical address of the virtual-APIC page.
    pub virtual_apic: u64,
    /// The physical address of the APIC-access page.
    pub apic_access: u64,
    /// TPR threshold.
    pub tpr_threshold: u32,
    /// Guest interrupt status: requesting virtual interrupt in the low byte, servicing virtual interrupt in the high one.
    pub interrupt_status: u16,
    /// Vectors whose virtual EOI exits: bit by vector.
    pub eoi_exits: [u64; 4],
    /// The vector by which posted interrupts are announced.
    pub posted_vector: u16,
    /// The physical address of the posted-interrupt descriptor.
    pub posted_descriptor: u64,
    /// VM functions that are enabled, see [`x86::vmx::function`].
    pub vm_functions: u64,
    /// The physical address of the list of EPT pointers.
    pub eptp_list: u64,
    /// Which of them is in use.
    pub eptp_index: u16,
    /// The physical address of the page-modification log.
    pub pml_address: u64,
    /// The entry of the log that is written next; beyond 511: it is full.
    pub pml_index: u16,
    /// The physical address of the virtualization-exception information area.
    pub ve_address: u64,
    /// The physical addresses of the VMREAD and VMWRITE bitmaps.
    pub shadow_bitmaps: [u64; 2],
    /// VMCS link pointer: with VMCS shadowing, the shadow VMCS.
    pub link_pointer: u64,
    /// With VMCS shadowing, of a hypervisor outside the machine's memory: the shadow VMCS, in place of what [`Self::shadow_bitmaps`] and
    /// [`Self::link_pointer`] lead to.
    pub shadow_vmcs: Option<Box<ShadowVmcs>>,
    /// MSRs that a VM exit stores, then loads, and a VM entry loads.
    pub msr_lists: MsrLists,

    /// Event to inject, see [`interruption`]; an exit clears its valid bit.
    pub entry_interruption: u32,
    /// Its error code.
    pub entry_error_code: u32,
    /// Length of the instruction that a software interrupt or exception comes from.
    pub entry_instruction_length: u32,

    /// Blocking by STI, MOV SS and NMI, see [`x86::vmx::interruptibility`].
    pub interruptibility: u32,
    /// Activity state, see [`x86::vmx::activity`].
    pub activity: u32,
    /// Debug exceptions that are due, see [`x86::vmx::pending_debug`].
    pub pending_debug: u64,

    /// What [`charged_space`](crate::micro::Micro::charged_space) is once a value among [`Controls::cr3_targets`] has been moved to
    /// CR3.
    pub target_spaces: [Option<u64>; 4],
}

impl Controls {
    /// Whether all the given primary controls are set.
    #[inline]
    pub fn primary(&self, controls: u32) -> bool {
        self.primary & controls == controls
    }

    /// Whether the entry delivers an event.
    pub fn injects(&self) -> bool {
        let info = self.entry_interruption;
        info & interruption::VALID != 0 && info & interruption::TYPE != interruption::OTHER_EVENT
    }

    /// The VPID that translations are tagged with.
    pub fn tag(&self) -> u16 {
        if self.secondary(secondary::VPID) { self.vpid } else { 0 }
    }

    /// Whether every structure in memory lies in one page, as VM entries make sure: what a saved state has may be anything.
    pub(crate) fn fits(&self) -> bool {
        if self.shadow_vmcs.as_ref().is_some_and(|shadow| !shadow.vmcs.is_whole()) {
            return false;
        }
        let lists = [&self.msr_lists.exit_store, &self.msr_lists.exit_load, &self.msr_lists.entry_load];
        // An entry looks at the addresses that its controls use; the others may be anything.
        let pages = [
            (self.primary(primary::TPR_SHADOW), self.virtual_apic),
            (self.secondary(secondary::APIC_ACCESSES), self.apic_access),
            (
                self.vm_functions & 1 << function::EPTP_SWITCHING != 0 && self.secondary(secondary::VM_FUNCTIONS),
                self.eptp_list,
            ),
            (self.secondary(secondary::PML), self.pml_address),
            (self.secondary(secondary::EPT_VIOLATION_VE), self.ve_address),
            (self.secondary(secondary::VMCS_SHADOWING), self.shadow_bitmaps[0] | self.shadow_bitmaps[1]),
        ];
        let used = pages.into_iter().filter_map(|(used, page)| used.then_some(page));
        let bitmaps = self.io_bitmap_addresses.into_iter().flatten().chain(self.msr_bitmap_address);
        let aligned = used.chain(bitmaps).all(|page| page & OFFSET == 0);
        let descriptor = self.pin & pin::POSTED_INTERRUPTS == 0 || self.posted_descriptor & 63 == 0;
        let lists = lists.iter().all(|list| list.count == 0 || list.address & 15 == 0);
        aligned && descriptor && lists && self.cr3_target_count as usize <= self.cr3_targets.len()
    }

    /// Whether the shadow VMCS can be where it is said to be; an entry that finds another address fails after it has loaded
    /// the controls.
    pub(crate) fn link_fits(&self) -> bool {
        !self.secondary(secondary::VMCS_SHADOWING) || self.link_pointer == NO_VMCS || self.link_pointer & OFFSET == 0
    }

    /// The secondary controls, if they count.
    pub fn second(&self) -> u32 {
        if self.primary & primary::SECONDARY != 0 { self.secondary } else { 0 }
    }

    /// Whether all the given secondary controls are set and active.
    #[inline]
    pub fn secondary(&self, controls: u32) -> bool {
        self.primary & primary::SECONDARY != 0 && self.secondary & controls == controls
    }
}
