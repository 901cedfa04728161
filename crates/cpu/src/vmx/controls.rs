//! Contents of a VMCS that are not in registers: the controls of non-root mode, and other guest state.

use super::root::operation::NO_VMCS;
use super::vmcs::ShadowVmcs;
use std::sync::Arc;
use x86::page::OFFSET;
use x86::vmx::{function, interruption, pin, primary, secondary};

/// I/O bitmaps A and B, in this order.
pub type IoBitmap = [u8; 8192];
/// MSR bitmaps: reads of low MSRs, reads of high MSRs, writes of low MSRs, writes of high MSRs.
pub type MsrBitmap = [u8; 4096];

/// Serialization of bitmaps as bytes.
mod bitmap {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::sync::Arc;

    pub fn serialize<S: Serializer, const N: usize>(bitmap: &Option<Arc<[u8; N]>>, to: S) -> Result<S::Ok, S::Error> {
        bitmap.as_ref().map(|bitmap| bitmap.as_slice()).serialize(to)
    }

    pub fn deserialize<'d, D: Deserializer<'d>, const N: usize>(from: D) -> Result<Option<Arc<[u8; N]>>, D::Error> {
        let Some(bytes) = Option::<Vec<u8>>::deserialize(from)? else { return Ok(None) };
        let length = bytes.len();
        let bitmap = <[u8; N]>::try_from(bytes).map_err(|_| D::Error::invalid_length(length, &"a whole bitmap"))?;
        Ok(Some(Arc::new(bitmap)))
    }
}

/// A list of MSRs in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MsrList {
    /// Physical address.
    pub address: u64,
    /// Number of entries.
    pub count: u32,
}

/// Lists of MSRs that transitions process (SDM vol. 3, 24.7.2 and 24.8.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MsrLists {
    /// Stored on VM exits.
    pub exit_store: MsrList,
    /// Loaded on VM exits.
    pub exit_load: MsrList,
    /// Loaded on VM entries.
    pub entry_load: MsrList,
}

/// Controls, and guest state that is not in registers. The names are those of the SDM, vol. 3, 24.4 to 24.8.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Controls {
    /// Pin-based execution controls, see [`x86::vmx::pin`].
    pub pin: u32,
    /// Primary processor-based execution controls, see [`primary`].
    pub primary: u32,
    /// Secondary processor-based execution controls, see [`x86::vmx::secondary`]; ignored without
    /// [`primary::SECONDARY`].
    pub secondary: u32,
    /// VM-exit controls, see [`x86::vmx::exit`].
    pub exit: u32,
    /// VM-entry controls, see [`x86::vmx::entry`]. An exit sets "IA-32e mode guest" to the current EFER.LMA.
    pub entry: u32,
    /// Exceptions that exit, by vector.
    pub exception_bitmap: u32,
    /// Error-code bits of page faults that are compared.
    pub pf_error_mask: u32,
    /// Value with which they are compared: if equal, bit 14 of the bitmap decides; otherwise its inverse.
    pub pf_error_match: u32,
    /// Bits of CR0 that belong to the host.
    pub cr0_mask: u64,
    /// Value of these bits for the guest.
    pub cr0_shadow: u64,
    /// Bits of CR4 that belong to the host.
    pub cr4_mask: u64,
    /// Value of these bits for the guest.
    pub cr4_shadow: u64,
    /// Values that may be moved to CR3 without an exit.
    pub cr3_targets: [u64; 4],
    /// Number of these values in use.
    pub cr3_target_count: u32,
    /// Ports that exit, with [`primary::IO_BITMAPS`], for a hypervisor outside of the machine's memory.
    #[serde(with = "bitmap")]
    pub io_bitmap: Option<Arc<IoBitmap>>,
    /// Without [`Self::io_bitmap`], the physical addresses of I/O bitmaps A and B; if there is neither, all ports exit.
    pub io_bitmap_addresses: Option<[u64; 2]>,
    /// MSRs that exit, with [`primary::MSR_BITMAPS`], for a hypervisor outside of the machine's memory.
    #[serde(with = "bitmap")]
    pub msr_bitmap: Option<Arc<MsrBitmap>>,
    /// Without [`Self::msr_bitmap`], the physical address of the MSR bitmaps; if there is neither, all MSRs exit.
    pub msr_bitmap_address: Option<u64>,
    /// XSAVES and XRSTORS components that exit.
    pub xss_bitmap: u64,
    /// Offset of the time-stamp counter, with [`primary::TSC_OFFSETTING`].
    pub tsc_offset: u64,
    /// EPT pointer.
    pub eptp: u64,
    /// VPID, the tag of the guest's translations.
    pub vpid: u16,
    /// Pause-loop exiting: maximum number of time-stamp cycles between two PAUSEs of one loop.
    pub ple_gap: u32,
    /// Pause-loop exiting: maximum number of time-stamp cycles for a loop.
    pub ple_window: u32,
    /// VMX-preemption timer, in units given by IA32_VMX_MISC.
    pub preemption_timer: u32,
    /// Multiplier of the TSC, with 48 fraction bits, which is applied before the offset.
    pub tsc_multiplier: u64,
    /// Physical address of the virtual-APIC page.
    pub virtual_apic: u64,
    /// Physical address of the APIC-access page.
    pub apic_access: u64,
    /// TPR threshold.
    pub tpr_threshold: u32,
    /// Guest interrupt status: requesting virtual interrupt in the low byte, servicing virtual interrupt in the high one.
    pub interrupt_status: u16,
    /// Vectors whose virtual EOI exits, by bit.
    pub eoi_exits: [u64; 4],
    /// Notification vector of posted interrupts.
    pub posted_vector: u16,
    /// Physical address of the posted-interrupt descriptor.
    pub posted_descriptor: u64,
    /// Enabled VM functions, see [`x86::vmx::function`].
    pub vm_functions: u64,
    /// Physical address of the list of EPT pointers.
    pub eptp_list: u64,
    /// Index of the EPT pointer in use.
    pub eptp_index: u16,
    /// Physical address of the page-modification log.
    pub pml_address: u64,
    /// Index of the next entry of the log; above 511 the log is full.
    pub pml_index: u16,
    /// Physical address of the virtualization-exception information area.
    pub ve_address: u64,
    /// Physical addresses of the VMREAD and VMWRITE bitmaps.
    pub shadow_bitmaps: [u64; 2],
    /// VMCS link pointer: with VMCS shadowing, the shadow VMCS.
    pub link_pointer: u64,
    /// With VMCS shadowing for a hypervisor outside of the machine's memory: the shadow VMCS, which replaces
    /// [`Self::shadow_bitmaps`] and [`Self::link_pointer`].
    pub shadow_vmcs: Option<Box<ShadowVmcs>>,
    /// Lists of MSRs that a VM exit stores and loads, and a VM entry loads.
    pub msr_lists: MsrLists,

    /// Event to be injected, see [`interruption`]; an exit clears its valid bit.
    pub entry_interruption: u32,
    /// Error code of the event.
    pub entry_error_code: u32,
    /// Length of the instruction that causes a software interrupt or exception.
    pub entry_instruction_length: u32,

    /// Blocking by STI, MOV SS and NMI, see [`x86::vmx::interruptibility`].
    pub interruptibility: u32,
    /// Activity state, see [`x86::vmx::activity`].
    pub activity: u32,
    /// Pending debug exceptions, see [`x86::vmx::pending_debug`].
    pub pending_debug: u64,

    /// Value of [`charged_space`](crate::micro::Micro::charged_space) after a MOV of each value in
    /// [`Controls::cr3_targets`] to CR3.
    pub target_spaces: [Option<u64>; 4],
}

impl Controls {
    /// Returns true if all the given primary controls are set.
    #[inline]
    pub fn primary(&self, controls: u32) -> bool {
        self.primary & controls == controls
    }

    /// Returns true if the entry injects an event.
    pub fn injects(&self) -> bool {
        let info = self.entry_interruption;
        info & interruption::VALID != 0 && info & interruption::TYPE != interruption::OTHER_EVENT
    }

    /// Returns the VPID with which translations are tagged.
    pub fn tag(&self) -> u16 {
        if self.secondary(secondary::VPID) { self.vpid } else { 0 }
    }

    /// Returns true if every structure in memory is inside one page. VM entries check this; a saved state may contain
    /// any address.
    pub(crate) fn fits(&self) -> bool {
        if self.shadow_vmcs.as_ref().is_some_and(|shadow| !shadow.vmcs.is_whole()) {
            return false;
        }
        let lists = [&self.msr_lists.exit_store, &self.msr_lists.exit_load, &self.msr_lists.entry_load];
        // An entry checks the addresses that its controls use; the others may have any value.
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

    /// Returns true if the address of the shadow VMCS is possible; an entry with another address fails after it has
    /// loaded the controls.
    pub(crate) fn link_fits(&self) -> bool {
        !self.secondary(secondary::VMCS_SHADOWING) || self.link_pointer == NO_VMCS || self.link_pointer & OFFSET == 0
    }

    /// Returns the secondary controls, or 0 if they are not active.
    pub fn second(&self) -> u32 {
        if self.primary & primary::SECONDARY != 0 { self.secondary } else { 0 }
    }

    /// Returns true if all the given secondary controls are set and active.
    #[inline]
    pub fn secondary(&self, controls: u32) -> bool {
        self.primary & primary::SECONDARY != 0 && self.secondary & controls == controls
    }
}
