//! The work of a hypervisor's software around VM exits, in steps for which a profile has prices.

use strum::{EnumCount, EnumMessage, EnumString, IntoStaticStr, VariantArray};

/// One step of a hypervisor's software: the parameter of [`crate::Family::Operation`].
///
/// A step's price is that of its code and of the memory it touches; what the processor does by itself (the exit, the entry, the
/// refilling of the TLB) is charged as events.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    EnumCount,
    EnumString,
    EnumMessage,
    IntoStaticStr,
    VariantArray,
)]
#[strum(serialize_all = "snake_case")]
#[repr(u32)]
pub enum Operation {
    /// All software around one exit and the entry after it: the guest's registers, the host's state, finding the handler, the
    /// checks before the next entry. VMREADs and VMWRITEs that every exit needs are in it.
    #[strum(message = "run loop")]
    RunLoop,
    /// VMREAD beyond those of the run loop.
    #[strum(message = "VMREAD")]
    Vmread,
    /// VMWRITE beyond those of the run loop.
    #[strum(message = "VMWRITE")]
    Vmwrite,
    /// One entry of the guest's page tables is read: its frame is looked up in the memory slots, the entry loaded and checked.
    #[strum(message = "guest table entries read")]
    GuestWalk,
    /// One entry of the hypervisor's own tables (shadow or EPT) is read on the way down.
    #[strum(message = "own table entries read")]
    TableRead,
    /// One entry of the hypervisor's own tables is made and written.
    #[strum(message = "own table entries written")]
    TableWrite,
    /// A page for a table of the hypervisor's own is taken from where such pages are kept, with what describes it.
    #[strum(message = "table pages allocated")]
    PageAllocate,
    /// A page for a table is filled with empty entries.
    #[strum(message = "table pages zeroed")]
    PageZero,
    /// A page of a table goes back to where such pages are kept.
    #[strum(message = "table pages freed")]
    PageFree,
    /// A shadow page is looked up by guest frame and role.
    #[strum(message = "shadow pages looked up")]
    HashLookup,
    /// An entry of a table is added to the reverse map of its frame.
    #[strum(message = "reverse map additions")]
    RmapAdd,
    /// An entry of a table is removed from the reverse map of its frame.
    #[strum(message = "reverse map removals")]
    RmapRemove,
    /// One entry is visited on the way along a reverse map.
    #[strum(message = "reverse map entries visited")]
    RmapWalk,
    /// Write permission is taken from one entry.
    #[strum(message = "entries write-protected")]
    WriteProtect,
    /// The memory slot of a guest frame is looked up, and through it the frame's host page.
    #[strum(message = "memory slot look-ups")]
    SlotLookup,
    /// A root is taken into use: found or made, and counted.
    #[strum(message = "roots loaded")]
    RootLoad,
    /// A root is put down: its count goes down, and what it pinned is let go. Pages that are freed then are charged as such.
    #[strum(message = "roots released")]
    RootFree,
    /// The role of the MMU is worked out anew, with the tables for the guest's permissions.
    #[strum(message = "MMU roles computed")]
    RoleUpdate,
    /// One entry of an unsync shadow page is compared with the guest's entry, and put right.
    #[strum(message = "shadow entries synchronized")]
    SyncEntry,
    /// INVEPT.
    #[strum(message = "INVEPT")]
    Invept,
    /// INVVPID.
    #[strum(message = "INVVPID")]
    Invvpid,
    /// The hypervisor decides on a TLB flush and asks for it; the instruction that flushes is charged as such.
    #[strum(message = "TLB flush requests")]
    TlbFlush,
    /// One instruction is fetched, decoded and emulated.
    #[strum(message = "instructions emulated")]
    Emulate,
    /// A device model inside the kernel handles an access.
    #[strum(message = "device model in the kernel")]
    DeviceKernel,
    /// Round trip to the user-space part of the hypervisor, with its device model.
    #[strum(message = "device model in user space")]
    DeviceUser,
    /// An event is injected: chosen, acknowledged where it comes from, and put into the controls.
    #[strum(message = "events injected")]
    Inject,
    /// The answer to a CPUID is looked up.
    #[strum(message = "CPUID look-ups")]
    CpuidLookup,
    /// The parts of the guest's CPUID that depend on its registers are recomputed; sizes of XSAVE areas are charged separately.
    #[strum(message = "CPUID updates")]
    CpuidUpdate,
    /// The size of an XSAVE area is worked out: the components are gone through. CPUIDs that are executed for it are events.
    #[strum(message = "XSAVE sizes computed")]
    XstateSize,
    /// An MSR is read or written for the guest.
    #[strum(message = "MSR accesses")]
    Msr,
    /// A hypercall is told from others and done.
    #[strum(message = "hypercalls")]
    Hypercall,
    /// One frame is entered into, or cleared from, the log of written frames.
    #[strum(message = "dirty log")]
    DirtyLog,
    /// One set of state (FPU, or the MSRs that entries do not switch) is switched between the guest and the host.
    #[strum(message = "guest and host state switched")]
    StateLoad,
    /// An interrupt or NMI window is asked for, or taken back.
    #[strum(message = "interrupt windows")]
    InterruptWindow,
    /// Software side of an access to a control register: its checks, shadows and consequences, without those charged by name.
    #[strum(message = "control register accesses")]
    ControlRegister,
    /// The fixed part of handling a page fault or an EPT violation.
    #[strum(message = "faults handled")]
    Fault,
    /// The paravirtual state page of a virtual CPU is updated.
    #[strum(message = "paravirtual state updates")]
    ProfileMove,
    /// An instruction of VMX of a guest hypervisor is carried out: its operand is found, permissions and the current VMCS are checked.
    #[strum(message = "VMX instructions carried out")]
    NestedInstruction,
    /// A guest hypervisor's VM entry: its VMCS is checked and merged with the hypervisor's own. VMWRITEs and VMPTRLDs are charged as such.
    #[strum(message = "nested entries")]
    NestedEntry,
    /// A VM exit to a guest hypervisor: its VMCS is filled, its state taken from there.
    #[strum(message = "nested exits")]
    NestedExit,
    /// MSR bitmaps of a guest hypervisor are merged with the hypervisor's own.
    #[strum(message = "MSR bitmaps merged")]
    NestedBitmap,
}

impl Operation {
    /// Every operation, in the order of its discriminant.
    pub const ALL: [Self; Self::COUNT] = *<Self as VariantArray>::VARIANTS.first_chunk().unwrap();
    /// The number of operations.
    pub const COUNT: usize = <Self as EnumCount>::COUNT;

    /// The identifier used in profiles and in machine-readable output.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The name of the operation in a report.
    pub fn title(self) -> &'static str {
        self.get_message().unwrap_or_default()
    }

    /// The operation with that number.
    pub fn from_index(index: usize) -> Option<Self> {
        Self::ALL.get(index).copied()
    }

    /// The operation with that identifier.
    pub fn from_name(name: &str) -> Option<Self> {
        name.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_listed_in_order_under_names_of_their_own() {
        assert!(Operation::ALL.iter().enumerate().all(|(i, operation)| *operation as usize == i));
        assert!(Operation::ALL.into_iter().all(|o| Operation::from_name(o.name()) == Some(o)));
        let mut titles = Operation::ALL.map(Operation::title);
        titles.sort_unstable();
        assert!(titles.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
